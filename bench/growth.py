"""How compile time and code size grow, and how soon calls are native.

    python bench/growth.py [--only layers,regions,native] [--sizes 1,3,6,12] [--regions 10,30,100,300,1000] [-w WORKLOADS] [--rounds 3] [--json FILE]

layers    a transformer of 1, 3, 6 and 12 layers as one function over its list of layers: time until native code is there, and its bytes
regions   functions of 10 to 1000 fused regions that all differ, with a matrix product between each two
native    for each workload of the suite, from the start of its first call to the end of the first native one, its calls following each other
Each figure is from fresh processes without kernels on disk, the median over rounds. Linear: the last column, time or bytes a piece against the smallest
size's, stays near 1.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PRELUDE = f"""
import json, sys, time
sys.path[:0] = [{str(HERE)!r}, {str(HERE / 'suite')!r}, {str(HERE.parent)!r}]
import numpy as np
import bcvm
from budgets import floats, many_regions, native
clock = time.perf_counter
native(lambda x: x + 1.0, floats(2))  # the compiler has started
def cold(fn, *args):
    begun = clock()
    f = bcvm.jit(fn)
    source = clock() - begun
    f.warmup(args)
    took = clock() - begun
    f(*args)
    s = f.stats()
    if not s["native"]:
        raise RuntimeError(f"not native: {{s['fallbacks']}} {{s['exits']}}")
    compiled = f._bcvm.site.specialisations[-1].code.compiled
    print(json.dumps(dict(ms=took * 1e3, source_ms=source * 1e3, bytes=s["code_bytes"], kernels=len(compiled.kernels), regions=len(compiled.regions),
                          steps=f.explain(*args).steps_ms)))
"""
LAYERS = """
D, H, F = 256, 4, 1024
def weights(i):
    return [floats(*shape, seed=i) * 0.05 for shape in ((D, 3 * D), (3 * D,), (D, D), (D,), (D,), (D,), (D, F), (F,), (F, D), (D,), (D,), (D,))]
layers = [weights(i) for i in range({count})]
def model(x):
    B, S, _ = x.shape
    for wqkv, bqkv, wo, bo, g1, e1, w1, b1, w2, b2, g2, e2 in layers:
        q, k, v = np.split(x @ wqkv + bqkv, 3, -1)
        q = q.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
        k = k.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
        v = v.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
        a = bcvm.ops.softmax(q @ k.transpose(0, 1, 3, 2) / 8.0, -1) @ v
        x = bcvm.ops.layer_norm(x + a.transpose(0, 2, 1, 3).reshape(B, S, D) @ wo + bo, g1, e1)
        x = bcvm.ops.layer_norm(x + bcvm.ops.gelu(x @ w1 + b1) @ w2 + b2, g2, e2)
    return x
cold(model, floats(2, 16, D))
"""
REGIONS = """
cold(many_regions({count}), floats(8, 16), floats(8, 16, seed=1), floats(16, 16, seed=2) * 0.01)
"""
NATIVE = """
from workloads import ALL
from more import MORE
import importlib
W = (ALL | MORE)[{workload!r}]()
f, to, back = importlib.import_module({module!r}).make(W, "bcvm", 2)
begun = clock()
calls = 0
while not f.stats()["native"]:
    f(*W.calls[calls % len(W.calls)])
    calls += 1
    if clock() - begun > 20:
        raise RuntimeError(f"not native after 20 s: {{f.stats()}}")
print(json.dumps(dict(ms=(clock() - begun) * 1e3, calls=calls, compile_ms=f.explain(*W.calls[0]).steps_ms)))
"""


def run(code: str) -> dict[str, Any]:
    """What a fresh interpreter with an empty kernel cache prints last."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "grown.py"
        script.write_text(PRELUDE + code, encoding="utf-8")
        env = dict(os.environ, BCVM_KERNEL_CACHE="off")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, env=env)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def medians(code: str, rounds: int) -> dict[str, Any]:
    rows = [run(code) for _ in range(rounds)]
    return {k: statistics.median(r[k] for r in rows) if isinstance(v, (int, float)) else v for k, v in rows[0].items()}


def growth(what: str, template: str, sizes: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    first: dict[str, Any] = {}
    print(f"{what:10} {'ms':>9} {'source':>8} {'kernels':>8} {'bytes':>10} {'ms each':>9} {'bytes each':>11}   ms and bytes each, against the smallest")
    for n in sizes:
        row = medians(template.format(count=n), rounds)
        first = first or {"ms": row["ms"] / n, "bytes": row["bytes"] / n}
        print(f"{n:10} {row['ms']:9.1f} {row['source_ms']:8.1f} {row['kernels']:8} {row['bytes']:10,} {row['ms'] / n:9.2f} {row['bytes'] / n:11,.0f}   "
              f"{row['ms'] / n / first['ms']:.2f} {row['bytes'] / n / first['bytes']:.2f}   " + ", ".join(f"{k} {v:.1f}" for k, v in row["steps"].items()), flush=True)
        yield {"what": what, "size": n, **row}


def soon(workloads: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    from run import MORE
    print(f"{'workload':12} {'ms':>8} {'calls':>6}   compile time by step, ms")
    for w in workloads:
        row = medians(NATIVE.format(workload=w, module=("more" if w in MORE else "peers") + "_bcvm"), rounds)
        print(f"{w:12} {row['ms']:8.1f} {row['calls']:6.0f}   " + ", ".join(f"{k} {v:.1f}" for k, v in row["compile_ms"].items()), flush=True)
        yield {"what": "native", "workload": w, **row}


def main() -> int:
    sys.path[:0] = [str(HERE / "suite")]
    from run import MORE, WORKLOADS
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="layers,regions,native")
    p.add_argument("--sizes", default="1,3,6,12")
    p.add_argument("--regions", default="10,30,100,300,1000")
    p.add_argument("-w", default=",".join(WORKLOADS + MORE), help="workloads of `native`")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    parts = {"layers": lambda: growth("layers", LAYERS, [int(n) for n in args.sizes.split(",")], args.rounds),
             "regions": lambda: growth("regions", REGIONS, [int(n) for n in args.regions.split(",")], args.rounds),
             "native": lambda: soon(args.w.split(","), args.rounds)}
    if unknown := [n for n in args.only.split(",") if n not in parts]:
        p.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    found, bad = [], 0
    for name in args.only.split(","):
        try:
            for row in parts[name]():
                found.append(row)
        except RuntimeError as e:
            bad += 1
            print(f"FAIL {name}: {e}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
