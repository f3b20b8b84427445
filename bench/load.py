"""How calls hold up: under load, across forks and exits, from many threads.

    python bench/load.py [--only load,forks,exits,threads,callers] [--short] [-w WORKLOADS] [-p PEERS] [--json FILE]

load      each workload of the suite while two other processes keep both cores busy: bcvm against the best peer under the same load, at most 1.5x
forks     1000 forks (50) of a process whose compile thread and thread pool are at work: each child calls native code, checks and ends
exits     200 interpreters (10) that end at random moments while code is compiled and called: exit code 0, no hang, nothing on stderr but bcvm's own lines
threads   8 threads for 60 s (3 s) on shared functions, with sizes that change and functions that are new: every result is checked
callers   throughput of 1, 2 and 8 calling threads, with calls of 1 us, of some 50 us and of 1 ms
--short   the numbers in brackets, fewer workloads and peers.  The exit code is 1 if something is wrong.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "suite"), str(HERE.parent)]
from budgets import floats, module, native  # noqa: E402

clock = time.perf_counter
Result = tuple[str, bool, str]  # what, whether it holds, figures
TESTS: dict[str, Callable[[argparse.Namespace], Iterator[Result]]] = {}


def test(fn: Callable[[argparse.Namespace], Iterator[Result]]) -> Callable[[argparse.Namespace], Iterator[Result]]:
    TESTS[fn.__name__] = fn
    return fn


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that take all the processor time they get."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for p in started:
            p.kill()
            p.wait()


@test
def load(args: argparse.Namespace) -> Iterator[Result]:
    from run import MORE, PEERS, WORKLOADS, interpreters, once
    found = interpreters()
    workloads = args.w.split(",") if args.w else ("tiny", "mlp", "rnn") if args.short else WORKLOADS + MORE
    peers = [p for p in (args.p.split(",") if args.p else ("numpy", "torch", "bcvm") if args.short else ("numpy", "torch", "ort", "jax", "bcvm")) if PEERS[p] in found]
    ours = [p for p in peers if p.startswith("bcvm")]
    with busy(2):
        for workload in workloads:
            rows = {p: once(workload, p, found[PEERS[p]], 300) for p in peers}
            times = {p: r["again"]["total"] for p, r in rows.items() if "fail" not in r and r["err"] <= r["tol"]}
            best = min((p for p in times if p not in ours), key=times.__getitem__, default=None)
            for p in ours:
                if best is None or p not in times:
                    yield f"{workload} under load", False, f"{p}: {rows[p].get('fail', 'no peer to compare with')}"
                    continue
                yield (f"{workload} under load", times[p] <= 1.5 * times[best],
                       f"{p} {times[p] / times[best]:.2f}x {best}: " + ", ".join(f"{q} {t:.1f} ms" for q, t in times.items()))


def gate(x, y):
    return np.tanh(x) * y + 1.0


def layer(x, w):
    return np.maximum(x @ w, 0) @ w.T


@test
def forks(args: argparse.Namespace) -> Iterator[Result]:
    """Children are made while the parent's threads call native code and compile."""
    import bcvm
    count = 50 if args.short else 1000
    small, large, w = (floats(3, 4), floats(3, 4, seed=1)), (floats(600, 700), floats(600, 700, seed=1)), floats(700, 300)
    f, g = native(gate, *small), native(layer, large[0], w)
    wanted = gate(*large)
    stop = threading.Event()

    def work() -> None:
        i = 0
        while not stop.is_set():
            f(*large)
            g(large[0], w)
            if i % 20 == 0:
                bcvm.jit(module(f"def h(x):\n    return x * {i}.5 + {i}\n").h)(small[0])
            i += 1
    helper = threading.Thread(target=work)
    helper.start()
    bad, slowest, begun = 0, 0.0, clock()
    for i in range(count):
        start = clock()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                fresh = bcvm.jit(gate, tier="full", background=False) if i % 10 == 0 else f
                code = 0 if np.allclose(fresh(*large), wanted, atol=1e-6) and np.isfinite(g(large[0], w)).all() else 2
            finally:
                os._exit(code)
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                bad += status != 0
                break
            if clock() - start > 60:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                bad += 1
                break
            time.sleep(0.001)
        slowest = max(slowest, clock() - start)
    stop.set()
    helper.join()
    right = np.allclose(f(*large), wanted, atol=1e-6)
    yield f"{count} forks", bad == 0 and bool(right), f"{bad} children failed or hung; {(clock() - begun) / count * 1e3:.1f} ms each, slowest {slowest * 1e3:.0f} ms"


EXITING = """
import sys, threading, time
sys.path.insert(0, {root!r})
import numpy as np, bcvm
def f(x, w): return np.maximum(x @ w, 0) * 2.0
def g(x): return np.tanh(x) + bcvm.ops.softmax(x)
x, w = np.ones((300, 200), np.float32), np.ones((200, 400), np.float32)
def work():
    for _ in range(20): bcvm.jit(g)(x); a(x, w)
    while True: a(x, w)
a = bcvm.jit(f)
for _ in range({threads}): threading.Thread(target=work, daemon=True).start()
end = time.perf_counter() + {delay}
while time.perf_counter() < end: a(x[:int(end * 1e6) % 300], w)
{last}
"""


@test
def exits(args: argparse.Namespace) -> Iterator[Result]:
    count, rng, bad, begun, noisy = 10 if args.short else 200, random.Random(0), [], clock(), 0
    for _ in range(count):
        code = EXITING.format(root=str(HERE.parent), threads=rng.choice((0, 0, 1, 2)), delay=rng.choice((0, 0.3)) * rng.random(),
                              last=rng.choice(("", "sys.exit(0)", "a.warmup((x, w))")))
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(code)
            script.flush()
            try:
                done = subprocess.run([sys.executable, script.name], capture_output=True, text=True, timeout=120)
                lines = done.stderr.splitlines()
                noisy += bool(lines)
                if done.returncode or any(not line.startswith("[BCVM]") for line in lines):
                    bad.append(f"code {done.returncode}: {done.stderr.strip()[-100:]}")
            except subprocess.TimeoutExpired:
                bad.append("hung")
    yield f"{count} interpreter exits at random moments", not bad, f"{len(bad)} bad {sorted(set(bad))[:3]}, {noisy} with a line of bcvm's; {(clock() - begun) / count * 1e3:.0f} ms each"


@test
def threads(args: argparse.Namespace) -> Iterator[Result]:
    import bcvm
    seconds, count = 3 if args.short else 60, 8
    f, g = native(gate, floats(3, 4), floats(3, 4)), native(layer, floats(3, 64), floats(64, 32))
    until, wrong, calls = clock() + seconds, [], [0] * count

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while clock() < until:
                n, m = int(rng.integers(0, 300)), int(rng.integers(1, 300))
                x, y = rng.standard_normal((n, m), np.float32), rng.standard_normal((n, m), np.float32)
                w = rng.standard_normal((m, 40), np.float32)
                pairs = [(f(x, y), gate(x, y)), (g(x, w), layer(x, w))]
                if calls[seed] % 50 == 0:
                    k = int(rng.integers(1, 99))
                    fresh = module(f"def h(x):\n    return np.maximum(x * {k}.5, {k})\n").h
                    pairs.append((bcvm.jit(fresh)(x), fresh(x)))
                for got, want in pairs:
                    if got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-3):
                        wrong.append(f"{want.shape}: wrong result")
                calls[seed] += 1
        except Exception as e:  # shown below; a thread's own traceback would be lost among the others
            wrong.append(f"{type(e).__name__}: {e}")
    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for t in workers: t.start()
    for t in workers: t.join(seconds + 60)
    hung = sum(t.is_alive() for t in workers)
    yield f"{count} threads, {seconds} s", not wrong and not hung, f"{sum(calls)} rounds, {len(wrong)} wrong {sorted(set(wrong))[:3]}, {hung} hung"


@test
def callers(args: argparse.Namespace) -> Iterator[Result]:
    sizes = {"1 us": (gate, (floats(8, 8), floats(8, 8, seed=1))), "50 us": (gate, (floats(200, 200), floats(200, 200, seed=1))),
             "1 ms": (layer, (floats(128, 768), floats(768, 512)))}
    for name, (fn, given) in sizes.items():
        f = native(fn, *given)
        start = clock()
        for _ in range(20): f(*given)
        calls = max(64, int((0.1 if args.short else 0.5) / ((clock() - start) / 20)) // 8 * 8)
        rate = dict.fromkeys((1, 2, 8), 0.0)
        for n in list(rate) * (3 if args.short else 7):  # in turns, the best of each
            def work(f: Any = f, given: Any = given, mine: int = calls // n) -> None:
                for _ in range(mine): f(*given)
            workers = [threading.Thread(target=work) for _ in range(n)]
            start = clock()
            for t in workers: t.start()
            for t in workers: t.join()
            rate[n] = max(rate[n], calls / (clock() - start))
        yield (f"throughput, calls of {name}", min(rate[2], rate[8]) >= 0.9 * rate[1],
               ", ".join(f"{n} callers {r:,.0f}/s ({r / rate[1]:.2f}x)" for n, r in rate.items()))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(TESTS), help="of: " + ", ".join(TESTS))
    p.add_argument("--short", action="store_true")
    p.add_argument("-w", default="", help="workloads of `load`")
    p.add_argument("-p", default="", help="peers of `load`")
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    if unknown := [n for n in args.only.split(",") if n not in TESTS]:
        p.error(f"no test {', '.join(unknown)}; there are {', '.join(TESTS)}")
    found = []
    for name in args.only.split(","):
        for what, holds, figures in TESTS[name](args):
            found.append({"what": what, "holds": holds, "figures": figures})
            print(f"{'ok  ' if holds else 'BAD '} {what:44} {figures}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if all(f["holds"] for f in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
