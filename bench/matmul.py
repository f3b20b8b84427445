"""The matrix product kernel alone against the FMA peak and NumPy, called through ctypes.

    python bench/matmul.py [-s table|suite|all|MxNxK ...] [-d float32] [-f plain,packed,turned] [-t 1|2] [-r ROUNDS]

Forms: plain (B as it lies), packed (B packed once, ahead), turned (B is a transposed view). For each: GF/s, its share of the measured FMA peak, its speed over
NumPy's on one thread. Rounds of all forms and NumPy take turns; times are CPU times, and a figure is the lower quartile of the rounds, or with --best the
shortest. -t 2: two Python threads do half the units each, and the last column is their speed over one thread, by the clock.
"""
from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse  # noqa: E402
import ctypes  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from functools import partial  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from bcvm.compiler import llvm, loader  # noqa: E402
from bcvm.compiler.kernels import library, matmul  # noqa: E402
from bcvm.compiler.kernels.builder import KERNEL_PARAMS, Function, Module  # noqa: E402
from bcvm.compiler.runtime import runtime  # noqa: E402
from bcvm.compiler.target import Target, host  # noqa: E402

TABLE = ("1x768x768", "4x768x768", "7x3072x768", "17x768x768", "32x768x768", "64x768x768", "128x768x768", "128x3072x768", "512x768x3072", "64x64x64", "256x256x256",
         "512x512x512", "1024x1024x1024", "200x1000x1000")
SUITE = ("1x1024x256", "7x1024x256", "37x1024x256", "64x1024x256", "128x1024x256", "1x256x1024", "7x256x1024", "37x256x1024", "64x256x1024", "128x256x1024",
         "64x768x256", "512x768x256", "1024x768x256", "512x256x256", "512x1024x256", "1024x256x1024", "1x1536x512", "1x512x512", "1x384x128", "3x384x128", "8x384x128")

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Compiled:
    """Kernels by content, and the milliseconds that each took to compile."""

    def __init__(self, target: Target) -> None:
        self.target, self.kept, self.ms = target, {}, {}  # type: Target, dict[str, Any], dict[str, float]

    def function(self, source: Any) -> Any:
        if source.key not in self.kept:
            start = time.perf_counter()
            made = llvm.compile_ir(source.ir, self.target)
            self.ms[source.name] = (time.perf_counter() - start) * 1e3
            code = loader.load(made)
            self.kept[source.key] = _KERNEL(code.address(source.name)), code
        return self.kept[source.key][0]


class Call:
    """A library kernel bound to arrays."""

    def __init__(self, compiled: Compiled, name: str, arrays: Sequence[np.ndarray]) -> None:
        call = library.library_call(name, tuple(str(a.dtype) for a in arrays), tuple(a.ndim for a in arrays), {}, compiled.target)

        def number(x: Any) -> int:
            if x is None or isinstance(x, int):
                return x or 0
            if isinstance(x, library.Size):
                return arrays[x.operand].shape[x.dim]
            return 0 if x.broadcast and arrays[x.operand].shape[x.dim] == 1 else arrays[x.operand].strides[x.dim]

        self.arrays, self.function = arrays, compiled.function(call.kernel)
        words = [w for a, strides in zip(arrays, call.strides, strict=True) for w in (a.ctypes.data, *map(number, strides))]
        sizes = [number(s) for s in call.sizes]
        self.operands, self.sizes = (ctypes.c_int64 * len(words))(*words), (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        self.units = 1
        for size, block in call.units:
            self.units *= -(-number(size) // block)

    def __call__(self, ctx: int, lo: int = 0, hi: int = -1) -> None:
        if self.function(ctx, self.operands, self.sizes, lo, hi):
            raise RuntimeError("the kernel refused")


def peak(target: Target, item: int = 4) -> Callable[[], float]:
    """Measures GF/s of multiply-adds of floats of so many bytes (8: float64) whose operands are all in registers."""
    module = Module()
    f = Function(module, "peak", KERNEL_PARAMS, "i32", public=True)
    lanes, sums = target.lanes(item), 12
    t = f"<{lanes} x {'double' if item == 8 else 'float'}>"
    one = f.load(t, "%operands", 4)
    with f.loop(0, "%hi", carried=[(t, one)] * sums) as k:
        k.next = [f.intrinsic(f"llvm.fmuladd.v{lanes}f{8 * item}", t, (t, s), (t, one), (t, one)) for s in k.carried]
    total = k.carried[0]
    for s in k.carried[1:]:
        total = f(f"fadd {t} {total}, {s}")
    f.store(t, total, "%operands", 4)
    f.ret("i32 0")
    f.end()
    source = module.source("peak", target)
    code = loader.load(llvm.compile_ir(source.ir, target))
    function, memory, rounds = _KERNEL(code.address("peak")), (ctypes.c_double * 8)(), 200_000

    def measure(code: Any = code) -> float:
        start = time.thread_time()
        function(0, memory, 0, 0, rounds)
        return 2e-9 * lanes * sums * rounds / (time.thread_time() - start)
    return measure


def seconds(run: Callable[[], object], budget: float) -> float:
    """Mean CPU time of a call, of as many as fill `budget` seconds: what other processes take meanwhile does not count."""
    run()
    start = time.thread_time()
    run()
    count = max(int(budget / max(time.thread_time() - start, 1e-7)), 1)
    start = time.thread_time()
    for _ in range(count):
        run()
    return (time.thread_time() - start) / count


def alone(call: Call, repeat: int) -> float:
    """Time of a call that one thread repeats."""
    with runtime().context() as ctx:
        start = time.perf_counter()
        for _ in range(repeat):
            call(ctx)
        return (time.perf_counter() - start) / repeat


def both(call: Call, repeat: int) -> float:
    """Time of a call when two threads do half its units each, `repeat` times over without waiting for one another in between."""
    half = call.units // 2

    def part(lo: int, hi: int) -> None:
        with runtime().context() as ctx:
            for _ in range(repeat):
                call(ctx, lo, hi)
    second = threading.Thread(target=part, args=(half, call.units))
    start = time.perf_counter()
    second.start()
    part(0, half)
    second.join()
    return (time.perf_counter() - start) / repeat


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-s", "--sizes", nargs="*", default=["all"])
    p.add_argument("-d", "--dtype", default="float32")
    p.add_argument("-f", "--forms", default="plain")
    p.add_argument("-t", "--threads", type=int, default=1, choices=(1, 2))
    p.add_argument("-r", "--rounds", type=int, default=7)
    p.add_argument("-b", "--budget", type=float, default=0.004, help="seconds per measurement")
    p.add_argument("--best", action="store_true", help="the shortest time, for a machine that others work on")
    args = p.parse_args()

    def typical(times: list[float]) -> float:
        return min(times) if args.best else sorted(times)[len(times) // 4]

    sizes = [s for name in args.sizes for s in {"table": TABLE, "suite": SUITE, "all": TABLE + SUITE}.get(name, (name,))]
    compiled, measure = Compiled(host()), peak(host(), 8 if args.dtype == "float64" else 4)
    forms, rng = args.forms.split(","), np.random.default_rng(0)
    shares: dict[str, list[float]] = {form: [] for form in forms}
    ratios: dict[str, list[float]] = {form: [] for form in forms}
    print(f"{'M x N x K':16} {'numpy':>7} " + "".join(f"{form:>8} {'peak':>5} {'/numpy':>6} {'2 thr' if args.threads == 2 else '':>6}" for form in forms))
    with runtime().context() as ctx:
        for size in sizes:
            m, n, k = map(int, size.split("x"))
            a, b = (np.asarray(rng.standard_normal(s) if args.dtype.startswith("float") else rng.integers(-9, 9, s)).astype(args.dtype) for s in ((m, k), (k, n)))
            c, expected = np.empty((m, n), args.dtype), a @ b
            calls = {}
            for form in forms:
                if form == "packed":
                    calls[form] = Call(compiled, "matmul_packed", (a, matmul.pack(b, host()), c))
                else:
                    calls[form] = Call(compiled, "matmul", (a, np.ascontiguousarray(b.T).T if form == "turned" else b, c))
                c[...] = 0
                calls[form](ctx)
                if not np.allclose(c, expected, rtol=1e-2 if args.dtype == "float16" else 1e-3, atol=1e-2):
                    raise SystemExit(f"{size} {form}: wrong result")
            times: dict[str, list[float]] = {name: [] for name in ("numpy", "peak", *forms, *(f + part for f in forms for part in ("2", " wall")))}
            for _ in range(args.rounds):
                times["peak"].append(measure())
                times["numpy"].append(seconds(partial(np.matmul, a, b, out=c), args.budget))
                for form, call in calls.items():
                    times[form].append(seconds(partial(call, ctx), args.budget))
                    if args.threads == 2:
                        count = max(int(10 * args.budget / times[form][-1]), 2)
                        times[form + " wall"].append(alone(call, count))
                        times[form + "2"].append(both(call, count))
            flops = 2e-9 * m * n * k
            numpy = typical(times["numpy"])
            top, line = max(times["peak"]), f"{size:16} {flops / numpy:7.1f} "
            for form in forms:
                took = typical(times[form])
                shares[form].append(flops / took / top)
                ratios[form].append(numpy / took)
                two = f"{min(times[form + ' wall']) / min(times[form + '2']):6.2f}" if args.threads == 2 else " " * 6
                line += f"{flops / took:8.1f} {100 * shares[form][-1]:4.0f}% {ratios[form][-1]:6.2f} {two}"
            print(line, flush=True)
    print("peak now", round(measure(), 1), "GF/s;", "; ".join(
        f"{form}: median {100 * median(shares[form]):.0f}% of peak, {float(np.exp(np.mean(np.log(ratios[form])))):.2f} x NumPy" for form in forms))
    print("compile ms:", ", ".join(f"{name} {ms:.0f}" for name, ms in compiled.ms.items()))


if __name__ == "__main__":
    main()
