"""The attention kernel alone, called through ctypes on one thread: microseconds, GF/s and the error against float64.

    python bench/attention.py [-d float32] [-s 12x128x64 1x12x1x256x64 ...] [--masks causal] [--views] [-t THREADS] [-r ROUNDS]

A size is HEADSxLENGTHxDIM, or BATCHxHEADSxQUERIESxKEYSxDIM. --views: heads are transposed views of [B, S, H * D]. -t: calls of a jitted function on so many threads
instead, without masks, by the clock. With --torch the same sizes by torch's scaled_dot_product_attention on as many threads, in an interpreter that has torch.
"""
from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).absolute().parent.parent))

SIZES = ("12x16x64", "12x32x64", "12x64x64", "12x128x64", "12x512x64", "1x12x1x64x64", "1x12x1x256x64", "1x12x1x2048x64", "1x12x4x256x64", "4x4x64x64x64", "8x4x128x128x64")


def parse(size: str) -> tuple[int, int, int, int, int]:
    n = [int(x) for x in size.split("x")]
    if len(n) == 3:
        return 1, n[0], n[1], n[1], n[2]
    batch, heads, rows, keys, dim = n
    return batch, heads, rows, keys, dim


def arrays(size: str, dtype: str, views: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    batch, heads, rows, keys, dim = parse(size)
    out = []
    for length in (rows, keys, keys):
        a = rng.standard_normal((batch, length, heads, dim) if views else (batch, heads, length, dim)).astype(dtype)
        out.append(a.swapaxes(1, 2) if views else a)
    return out


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    s = np.matmul(q.astype(np.float64), k.swapaxes(-1, -2).astype(np.float64)) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(*s.shape[-2:]).astype(bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(np.matmul(p / p.sum(-1, keepdims=True), v.astype(np.float64)))


def ours(q: np.ndarray, k: np.ndarray, v: np.ndarray, masks: Sequence[str]) -> tuple[Callable[[], object], np.ndarray]:
    import ctypes

    from bcvm.compiler import llvm, loader
    from bcvm.compiler.kernels import attention
    from bcvm.compiler.runtime import runtime
    from bcvm.compiler.target import host
    source = attention.generate(str(q.dtype), 2, masks, host())
    code = loader.load(llvm.compile_ir(source.ir, host()))
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    scale = np.array(1 / np.sqrt(q.shape[-1]), q.dtype)
    kt = k.swapaxes(-1, -2)
    words = [w for a in (q, kt, v, scale, out) for w in (a.ctypes.data, *(a.strides or (0, 0, 0, 0)))]
    operands = (ctypes.c_int64 * len(words))(*words)
    sizes = (ctypes.c_int64 * 7)(*q.shape[:3], k.shape[2], q.shape[3], v.shape[3], 0)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.address(source.name))
    holder = runtime().context()
    ctx = holder.__enter__()
    keep = (code, scale, q, k, v, out, holder)

    def call(keep: object = keep) -> int:
        return int(function(ctx, operands, sizes, 0, -1))
    return call, out


def jitted(q: np.ndarray, k: np.ndarray, v: np.ndarray, threads: int) -> tuple[Callable[[], object], np.ndarray]:
    import bcvm
    scale = q.dtype.type(1 / np.sqrt(q.shape[-1]))
    f = bcvm.jit(lambda q, k, v: bcvm.ops.softmax(q @ k.transpose(0, 1, 3, 2) * scale) @ v, threads=threads, tier="full", background=False)
    return lambda: f(q, k, v), f(q, k, v)


def torch_call(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, threads: int) -> Callable[[], object]:
    import torch
    torch.set_num_threads(threads)
    tq, tk, tv = (torch.from_numpy(a) for a in (q, k, v))
    return lambda: torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, is_causal=causal)


def measure(call: Callable[[], object], rounds: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of a call, of this thread's own time unless said otherwise: the least of the rounds, which others on the machine disturb least."""
    call()
    start = clock()
    call()
    repeat = max(1, int(0.01 / max(clock() - start, 1e-6)))
    times = []
    for _ in range(rounds):
        start = clock()
        for _ in range(repeat):
            call()
        times.append((clock() - start) / repeat)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-s", "--sizes", nargs="+", default=SIZES)
    parser.add_argument("-d", "--dtype", default="float32")
    parser.add_argument("-r", "--rounds", type=int, default=9)
    parser.add_argument("--masks", default="")
    parser.add_argument("--views", action="store_true")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("-t", "--threads", type=int, default=0)
    options = parser.parse_args()
    masks = tuple(filter(None, options.masks.split(",")))
    if masks and options.threads:
        parser.error("-t measures attention without masks")
    print(f"{'batch x heads x queries x keys x dim':38}{'us':>10}{'GF/s':>8}{'error':>10}")
    for size in options.sizes:
        q, k, v = arrays(size, options.dtype, options.views)
        batch, heads, rows, keys, dim = parse(size)
        error = ""
        if options.torch:
            call = torch_call(q, k, v, "causal" in masks, options.threads or 1)
        else:
            call, out = jitted(q, k, v, options.threads) if options.threads else ours(q, k, v, masks)
            call()
            expected = exact(q, k, v, "causal" in masks)
            error = f"{abs(out - expected).max() / abs(expected).max():.1e}"
        seconds = measure(call, options.rounds, time.perf_counter if options.threads else time.thread_time)
        print(f"{f'{batch} x {heads} x {rows} x {keys} x {dim}':38}{seconds * 1e6:10.1f}{4 * batch * heads * rows * keys * dim / seconds / 1e9:8.1f}{error:>10}")


if __name__ == "__main__":
    main()
