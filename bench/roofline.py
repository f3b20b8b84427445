"""What the machine can do, measured, and what generated code does of it.

    python bench/roofline.py [--threads 1,2] [--rounds 5] [--only WORD[,WORD]] [--elements 16777216] [--json FILE]

Ceilings, per number of threads: copy bandwidth (libc's memcpy; a generated loop; the same with stores that pass by the cache), and float32 multiply-adds whose
operands are in registers, from a kernel of bcvm's own compiler. Below them whole jitted calls: elementwise regions and rows into an existing result of 16M
elements, with the bytes that they must read and write against the best copy, and products, convolutions and attention with their flops against the peak.
Bytes of a copy are those read plus those written. All of one line is measured in turns; figures are medians.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import bcvm  # noqa: E402
from bcvm import ops  # noqa: E402
from bcvm.compiler import llvm, loader  # noqa: E402
from bcvm.compiler.kernels.builder import KERNEL_PARAMS, Function, Module  # noqa: E402
from bcvm.compiler.target import host  # noqa: E402

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
KEPT: list[Any] = []  # loaded code lives as long as the process
clock = time.perf_counter


def compiled(module: Module, name: str) -> Any:
    code = loader.load(llvm.compile_ir(module.source(name, host()).ir))
    KEPT.append(code)
    return _KERNEL(code.address(name))


def peak_kernel() -> Any:
    """hi rounds of independent multiply-adds; enough of them to hide their latency."""
    module, lanes, sums = Module(), host().lanes(4), 12
    f = Function(module, "peak", KERNEL_PARAMS, "i32", public=True)
    t = f"<{lanes} x float>"
    one = f.load(t, "%operands", 4)
    with f.loop(0, "%hi", carried=[(t, one)] * sums) as k:
        k.next = [f.intrinsic(f"llvm.fmuladd.v{lanes}f32", t, (t, s), (t, one), (t, one)) for s in k.carried]
    total = k.carried[0]
    for s in k.carried[1:]:
        total = f(f"fadd {t} {total}, {s}")
    f.store(t, total, "%operands", 4)
    f.ret("i32 0")
    f.end()
    return compiled(module, "peak")


def copy_kernel(streaming: bool) -> Any:
    """operands: source, target; bytes lo..hi, multiples of 4 vectors. streaming: stores that pass by the cache."""
    module, width = Module(), host().vector_bytes
    name = f"copy_{int(streaming)}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    t = f"<{width // 4} x float>"
    source, target = f.load("ptr", "%operands"), f.load("ptr", f.gep("%operands", 8))
    with f.loop("%lo", "%hi", 4 * width) as i:
        values = [f.load(t, f.gep(f.gep(source, i.index), width * k), width) for k in range(4)]
        for k, v in enumerate(values):
            f.emit(f"store {t} {v}, ptr {f.gep(f.gep(target, i.index), width * k)}, align {width}{', !nontemporal !0' if streaming else ''}")
    f.ret("i32 0")
    f.end()
    if streaming:
        module.functions.append("!0 = !{i32 1}")
    return compiled(module, name)


def aligned(count: int) -> np.ndarray[Any, Any]:
    """float32 ones that begin at a page."""
    raw = np.ones(count + 1024, np.float32)
    start = -raw.ctypes.data % 4096 // 4
    return raw[start:start + count]


def together(part: Callable[[int], None], threads: int) -> float:
    """Seconds until part(0..threads-1) are done, each on a thread."""
    ready, helpers = threading.Barrier(threads), []

    def run(i: int) -> None:
        ready.wait()
        part(i)
    for i in range(1, threads):
        helpers.append(threading.Thread(target=run, args=(i,)))
        helpers[-1].start()
    ready.wait()
    start = clock()
    part(0)
    for h in helpers:
        h.join()
    return clock() - start


class Work(NamedTuple):
    """What to time. run(threads) -> seconds; amount: bytes or flops of one run; copies: it is bound by memory."""

    name: str
    run: Callable[[int], float]
    amount: float
    copies: bool


def ceilings(elements: int) -> list[Work]:
    x, y = aligned(elements), aligned(elements)
    size = elements * 4
    pointers = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes, memcpy.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
    rounds, one = 2_000_000, [(ctypes.c_float * 16)(*(0.5,) * 16) for _ in range(8)]
    fma, plain, streaming = peak_kernel(), copy_kernel(False), copy_kernel(True)

    def libc(threads: int) -> float:
        each = size // threads
        return together(lambda i: memcpy(y.ctypes.data + i * each, x.ctypes.data + i * each, each), threads)

    def generated(kernel: Any) -> Callable[[int], float]:
        return lambda threads: together(lambda i: kernel(None, pointers, None, i * size // threads, (i + 1) * size // threads), threads)

    def peak(threads: int) -> float:
        return together(lambda i: fma(None, one[i], None, 0, rounds), threads) / threads
    KEPT.append((x, y))
    return [Work("memcpy", libc, 2 * size, True), Work("generated copy", generated(plain), 2 * size, True),
            Work("generated copy, streaming", generated(streaming), 2 * size, True), Work("multiply-add", peak, 2 * host().lanes(4) * 12 * rounds, False)]


def scale_add(x, z):
    return np.add(x * 2.0, 1.0, out=z)


def multiply_add(x, y, z):
    return np.add(x * y, x, out=z)


def relu_bias(x, b, z):
    return np.maximum(x + b, 0, out=z)


def sigmoid_gate(x, y, z):
    z[...] = ops.sigmoid(x) * y


def gelu_bias(x, b, z):
    z[...] = ops.gelu(x + b)


def softmax(x, z):
    z[...] = ops.softmax(x)


def layer_norm(x, g, b, z):
    z[...] = ops.layer_norm(x, g, b)


def residual_norm(x, y, g, b, z):
    z[...] = ops.layer_norm(x + y, g, b)


def matmul(x, w):
    return x @ w


def conv(x, w):
    return ops.conv2d(x, w, padding=1)


def attention(q, k, v):
    return ops.scaled_dot_product_attention(q, k, v)


def jitted(fn: Callable[..., Any], args: tuple[Any, ...], amount: float, copies: bool, note: str) -> Work:
    made: dict[int, Any] = {}

    def run(threads: int) -> float:
        if threads not in made:
            f = made[threads] = bcvm.jit(fn, tier="full", background=False, threads=threads)
            f.warmup(args)
            f(*args)
            if not f.stats()["native"]:
                raise RuntimeError(f"{fn.__name__} did not run native: {f.stats()['fallbacks']}")
        f = made[threads]
        start = clock()
        f(*args)
        return clock() - start
    return Work(f"{fn.__name__} {note}", run, amount, copies)


def works(elements: int) -> list[Work]:
    def floats(*shape: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(0).standard_normal(shape, np.float32)

    columns = 1024
    rows = elements // columns
    x, y, z = floats(rows, columns), floats(rows, columns), np.ones((rows, columns), np.float32)
    g, b = floats(columns), floats(columns)
    size, note = 4 * rows * columns, f"{rows}x{columns}"
    found = [jitted(scale_add, (x, z), 2 * size, True, note), jitted(multiply_add, (x, y, z), 3 * size, True, note),
             jitted(relu_bias, (x, b, z), 2 * size, True, note), jitted(sigmoid_gate, (x, y, z), 3 * size, True, note),
             jitted(gelu_bias, (x, b, z), 2 * size, True, note), jitted(softmax, (x, z), 2 * size, True, note),
             jitted(layer_norm, (x, g, b, z), 2 * size, True, note), jitted(residual_norm, (x, y, g, b, z), 3 * size, True, note)]
    for m, n, k in ((128, 1024, 256), (512, 768, 768), (1024, 1024, 1024)):
        found.append(jitted(matmul, (floats(m, k), floats(k, n)), 2.0 * m * n * k, False, f"{m}x{n}x{k}"))
    for batch, channels, side in ((1, 64, 56), (8, 64, 56), (1, 256, 14)):
        found.append(jitted(conv, (floats(batch, channels, side, side), floats(channels, channels, 3, 3)), 18.0 * batch * channels * channels * side * side, False,
                            f"3x3 {batch}x{channels}x{side}x{side}"))
    for batch, heads, length, dim in ((1, 12, 64, 64), (1, 12, 512, 64), (8, 4, 128, 64)):
        found.append(jitted(attention, (floats(batch, heads, length, dim),) * 3, 4.0 * batch * heads * length * length * dim, False, f"{batch}x{heads}x{length}x{dim}"))
    return found


def pairs(work: Work, against: list[Work], threads: int, rounds: int, budget: float) -> tuple[float, list[float]]:
    """GB/s or GF/s of a work, and its share of each ceiling: medians over rounds in which all take turns."""
    everything = [work, *against]
    counts = []
    for w in everything:
        w.run(threads)
        counts.append(max(1, min(1000, int(budget / max(w.run(threads), 1e-7)))))
    rates = [[w.amount * 1e-9 / statistics.fmean(w.run(threads) for _ in range(n)) for w, n in zip(everything, counts, strict=True)] for _ in range(rounds)]
    return statistics.median(r[0] for r in rates), [statistics.median(r[0] / r[1 + i] for r in rates) for i in range(len(against))]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--budget", type=float, default=0.02, help="seconds a round")
    p.add_argument("--only", default="", help="lines whose name has one of these words in it; ceilings are always measured")
    p.add_argument("--elements", type=int, default=1 << 24)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    figures: list[dict[str, Any]] = []
    counts, words = [int(t) for t in args.threads.split(",")], args.only.split(",")
    tops = ceilings(args.elements)
    print(f"{'':36}" + "".join(f"{str(t) + ' thread' + 's' * (t > 1):>14}{'/memcpy or':>13}{'/best copy':>11}" for t in counts) + f"\n{'':36}" + f"{'':14}{'/peak':>13}{'':11}" * len(counts))
    best: dict[int, Work] = {}
    for work in tops:
        line = f"{work.name:36}"
        for t in counts:
            rate, (share,) = pairs(work, [tops[0] if work.copies else work], t, args.rounds, args.budget)
            if work.copies and (t not in best or share > figures_share(figures, best[t], t)):
                best[t] = work
            figures.append({"what": work.name, "threads": t, "rate": rate, "unit": "GB/s" if work.copies else "GF/s", "shares": [share]})
            line += f"{rate:9.1f} {figures[-1]['unit']}{share:13.0%}{'':11}"
        print(line, flush=True)
    for work in (w for w in works(args.elements) if any(word in w.name for word in words)):
        line = f"{work.name:36}"
        for t in counts:
            rate, shares = pairs(work, [tops[0], best[t]] if work.copies else [tops[-1]], t, args.rounds, args.budget)
            figures.append({"what": work.name, "threads": t, "rate": rate, "unit": "GB/s" if work.copies else "GF/s", "shares": shares})
            line += f"{rate:9.1f} {figures[-1]['unit']}{shares[0]:13.0%}" + (f"{shares[1]:11.0%}" if work.copies else f"{'':11}")
        print(line, flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


def figures_share(figures: list[dict[str, Any]], work: Work, threads: int) -> float:
    """The share that was measured of a ceiling."""
    return next(f["shares"][0] for f in figures if f["what"] == work.name and f["threads"] == threads)


if __name__ == "__main__":
    raise SystemExit(main())
