"""What the CPU can do, asked once from LLVM: lanes, FMA, registers. Code is generated for the machine it runs on."""
from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from bcvm.compiler import store
from bcvm.compiler.process import Unavailable, process
from bcvm.compiler.worker import Compiler


@dataclass(frozen=True)
class Target:
    """vector_bytes: 64 (AVX-512), 32 (AVX2), 16 (baseline). registers: vector registers."""

    cpu: str
    features: str
    vector_bytes: int
    registers: int
    fma: bool

    @property
    def avx512(self) -> bool:
        return self.vector_bytes == 64

    def lanes(self, itemsize: int) -> int:
        return self.vector_bytes // itemsize


@cache
def host(limit: str = "") -> Target:
    """This machine's target. limit: '' (all it has), 'avx2', 'baseline': for tests of the other forms."""
    cpu, has = _processor()
    avx512 = all(has.get(f) for f in ("avx512f", "avx512vl", "avx512dq", "avx512bw")) and not limit
    avx2 = has.get("avx2", False) and has.get("fma", False) and limit != "baseline"
    if avx512:
        features = ",".join(("+" if on else "-") + name for name, on in has.items()) + ",-prefer-256-bit"
        return Target(cpu, features, 64, 32, True)
    features = "+avx2,+fma,+f16c,+bmi,+bmi2" if avx2 else "+sse2"
    return Target("haswell" if avx2 else "x86-64", features, 32 if avx2 else 16, 16, avx2)


@cache
def _processor() -> tuple[str, dict[str, bool]]:
    """Name and features as LLVM says them, which it is asked once for a machine and a version of llvmlite: loading it takes long."""
    def ask() -> bytes:
        try:
            said = process.host()
        except Unavailable:
            said = Compiler().host()
        return json.dumps(said).encode()
    lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    machine = [line for line in lines if line.startswith(("vendor_id", "cpu family", "model", "stepping", "flags"))]
    name, features = json.loads(store.remembered(f"processor {version('llvmlite')} {machine}", ask))
    return str(name), dict(features)


def available_threads() -> int:
    """The processors that this process may use: those of its affinity mask, and no more than its control group's share of time (cgroup v2, cpu.max)."""
    count = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, -(-int(quota) // int(period))))  # "max": no quota
    return count
