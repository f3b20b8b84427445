"""How long calls are held up while native code is made for them: python bench/stalls.py [WORKLOAD ...] [-r ROUNDS] [--warm]

Each workload of bench/suite runs in fresh processes. Its stream is interpreted three times (the median of a call is what it costs), then run by
a jitted function while native code is made in the background. A line has, each the median of the rounds:

    beyond   ms by which the worst call of the stream took longer than interpreting it (asked: at most 5)
    noise    the same for one more interpretation of the stream: what this machine does to a call while nothing is compiled
    native   ms from the first call until native code was entered
    slow     ms of the slowest native call of that stream, the compile thread at work or not, and what is asked: three times the p99 of the steady state plus 2
    first    ms of the first `bcvm.jit` of the process
    held     MiB of resident memory at the end of the stream beyond those before the first call, and those of the compile process

Kernels are compiled anew unless --warm takes them from the folder of earlier processes.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SUITE = Path(__file__).resolve().parent / "suite"
WORKLOADS = ("tiny", "chain", "mlp", "branch", "bert", "rnn", "decode", "conv", "while")
clock = time.perf_counter


def resident(pid: int | str | None = "self") -> float:
    if pid is None or not Path(f"/proc/{pid}/status").exists():
        return 0.0
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next((int(line.split()[1]) for line in f if line.startswith("VmRSS")), 0) / 1024


def one(name: str) -> dict[str, Any]:
    sys.path.insert(0, str(SUITE))
    import peers_bcvm
    import workloads

    import bcvm
    from bcvm.compiler.process import process
    workload = workloads.ALL[name]()
    bcvm.jit  # noqa: B018  loads what @bcvm.jit needs
    start = clock()
    bcvm.jit(lambda x: x + 1)
    first = clock() - start
    jitted, _, _ = peers_bcvm.make(workload, "bcvm", 1)
    plain = bcvm.jit(jitted.__wrapped__, tier="interpret")

    def stream(f: Any) -> list[float]:
        times = []
        for call in workload.calls:
            start = clock()
            f(*call)
            times.append(clock() - start)
        return times

    passes = [stream(plain) for _ in range(3)]
    usual = [statistics.median(t) for t in zip(*passes, strict=True)]
    noise = max(a - b for a, b in zip(stream(plain), usual, strict=True))
    before = resident()
    times, native, entered, slow, taken = [], None, clock(), 0.0, 0
    for call in workload.calls:
        start = clock()
        jitted(*call)
        times.append(clock() - start)
        if jitted.stats()["native"] > taken:
            native, taken, slow = native or clock() - entered, taken + 1, max(slow, times[-1])
    beyond = max(a - b for a, b in zip(times[1:], usual[1:], strict=True))
    steady = sorted(t for _ in range(3) for t in stream(jitted))
    return {"slow": slow * 1e3, "allowed": 3e3 * steady[int(0.99 * len(steady))] + 2, "beyond": beyond * 1e3, "noise": noise * 1e3, "native": None if native is None else native * 1e3, "first": first * 1e3,
            "held": resident() - before, "process": resident(process.pid)}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workloads", nargs="*", default=WORKLOADS)
    p.add_argument("-r", "--rounds", type=int, default=3)
    p.add_argument("--warm", action="store_true")
    p.add_argument("--one", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return 0
    environment = dict(os.environ) if args.warm else {**os.environ, "BCVM_KERNEL_CACHE": "off"}
    print(f"{'workload':10}{'beyond':>8}{'noise':>8}{'native':>9}{'slow':>8}{'':>8}{'first':>8}{'held':>8}  worst of each round")
    over = 0
    for name in args.workloads:
        rounds = []
        for _ in range(args.rounds):
            done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=300, env=environment)
            if done.returncode:
                raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
            rounds.append(json.loads(done.stdout.strip().splitlines()[-1]))
        middle = {k: statistics.median(r[k] if r[k] is not None else float("inf") for r in rounds) for k in rounds[0]}
        over += middle["beyond"] > 5 or middle["slow"] > middle["allowed"]
        print(f"{name:10}{middle['beyond']:8.1f}{middle['noise']:8.1f}{middle['native']:9.0f}{middle['slow']:8.2f} of {middle['allowed']:4.1f}{middle['first']:8.1f}{middle['held']:5.0f}+{middle['process']:.0f}"
              f"  {', '.join('{:.1f}'.format(r['beyond']) for r in rounds)}", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
