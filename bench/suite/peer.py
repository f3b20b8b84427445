"""Time one peer on one workload: python peer.py WORKLOAD PEER -> one JSON line.

setup    ms to build the function (sessions, decorators), import excluded
first    wall ms of the first call ever
stream   the rest of the calls, each with its own shape, once
again    the same stream repeated, best of three a call: the steady state
mem_mb   how far resident memory rose over the stream, at its highest, above what was held before the first call
err      against the reference, on twelve calls of the stream and on the same twelve as they came out of the last repetition: the largest over
         the outputs, relative to the largest magnitude of the reference; 1e9 for a wrong shape, count or NaN. Checked last
tol      what the workload allows
dtype    of the outputs, as they came
stats    bcvm only: what it counted, and the share of native calls in the repetitions
"""
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np
from more import MORE
from workloads import ALL

wname, peer = sys.argv[1:3]
threads = int(os.environ.get("PEER_THREADS", "2"))
W = (ALL | MORE)[wname]()


def quantiles(ts):
    ts = np.array(ts) * 1e3
    return dict(total=round(float(ts.sum()), 3), p50=round(float(np.percentile(ts, 50)), 5),
                p99=round(float(np.percentile(ts, 99)), 4), max=round(float(ts.max()), 4))


def memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field): return int(line.split()[1]) / 1024


def reset_peak():
    try: open("/proc/self/clear_refs", "w").write("5")
    except OSError: pass


def keep(o): return tuple(np.array(a) for a in (o if isinstance(o, tuple) else (o,)))


def difference(os_, rs):
    if len(os_) != len(rs): return 1e9
    worst = 0.0
    for o, r in zip(os_, rs, strict=False):
        if o.shape != r.shape or not np.isfinite(o).all(): return 1e9
        wide = np.float64 if "f" in (o.dtype.kind, r.dtype.kind) else np.int64
        worst = max(worst, float(np.abs(o.astype(wide) - r.astype(wide)).max(initial=0) / (np.abs(r).max(initial=0) + 1e-9)))
    return worst


clock = time.perf_counter
module = ("more_" if wname in MORE else "peers_") + peer.split("-")[0]
if importlib.util.find_spec(module) is None: raise SystemExit(f"no {peer} form")
make = importlib.import_module(module).make
t = clock()
fn, to, back = make(W, peer, threads)
setup = (clock() - t) * 1e3
calls = [tuple(to(a) for a in c) for c in W.calls]
step = max(1, len(calls) // 6)
checked = sorted({*range(6), *range(step - 1, len(calls), step)})
reset_peak()
before = memory("VmRSS")
t = clock()
o = back(fn(*calls[0]))
first = (clock() - t) * 1e3
kept = [(0, keep(o))]
ts = []
for i, c in enumerate(calls[1:], 1):
    t = clock()
    o = back(fn(*c))
    ts.append(clock() - t)
    if i in checked: kept.append((i, keep(o)))
mem = memory("VmHWM") - before
counted = fn.stats() if hasattr(fn, "stats") else None
best = None
for turn in range(3):
    run = []
    for i, c in enumerate(calls[1:], 1):
        t = clock()
        o = back(fn(*c))
        run.append(clock() - t)
        if turn == 2 and i in checked: kept.append((i, keep(o)))
    best = run if best is None else [min(a, b) for a, b in zip(best, run, strict=False)]
refs = {i: keep(W.ref(*W.calls[i])) for i, _ in kept}
err = max(difference(o, refs[i]) for i, o in kept)
row = dict(workload=wname, peer=peer, setup=round(setup, 2), first=round(first, 2), stream=quantiles(ts), again=quantiles(best),
           err=float(f"{err:.2g}"), tol=getattr(W, "tol", 1e-4), dtype=",".join(str(a.dtype) for a in kept[0][1]), mem_mb=round(mem))
if counted is not None:
    end = fn.stats()
    row["stats"] = dict(compiles=end["compiles"], recompiles=end["recompiles"], specialisations=end["specialisations"], fallbacks=end["fallbacks"],
                        code_bytes=[counted["code_bytes"], end["code_bytes"]], native_again=(end["native"] - counted["native"]) / (end["calls"] - counted["calls"]),
                        call_py=len(fn.program.imports))
print(json.dumps(row))
