"""The figures that the system's published description gives, each beside ours, measured now.

    python bench/claims.py [--only WORD[,WORD]] [--rounds 7] [--json FILE]

`described` is the description's figure, which speaks of other hardware; `ours` is measured here, on CPU, and `compared` says what against what. A
comparison takes turns within one process. Nothing is estimated: launches and bytes are counted by standing between driver and kernels.
"""
from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "suite"), str(HERE.parent)]
from budgets import floats, module  # noqa: E402

import bcvm  # noqa: E402
from bcvm import ops  # noqa: E402

clock = time.perf_counter
ROUNDS = [7]


class Claim(NamedTuple):
    what: str
    described: str
    ours: str
    compared: str
    holds: bool


CLAIMS: dict[str, Callable[[], Iterator[Claim]]] = {}


def claim(fn: Callable[[], Iterator[Claim]]) -> Callable[[], Iterator[Claim]]:
    CLAIMS[fn.__name__] = fn
    return fn


def full(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The function jitted, compiled and known to run native."""
    f = bcvm.jit(fn, tier="full", background=False, **options)
    f.warmup(args)
    f(*args)
    if not f.stats()["native"]:
        raise RuntimeError(f"{fn.__name__} did not run native: {f.stats()['fallbacks']} {f.stats()['exits']}")
    return f


def in_turns(*runs: Callable[[], Any], seconds: float = 0.03) -> list[float]:
    """Median seconds of each, all measured in each round."""
    counts = []
    for run in runs:
        run()
        start = clock()
        run()
        counts.append(max(1, int(seconds / max(clock() - start, 1e-7))))
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS[0]):
        for mine, run, n in zip(times, runs, counts, strict=True):
            start = clock()
            for _ in range(n):
                run()
            mine.append((clock() - start) / n)
    return [statistics.median(t) for t in times]


def launches(f: Any, *args: Any) -> tuple[int, int]:
    """(kernel launches, bytes that the kernels' operands span) of one call. Each kernel's slot leads through a function that reads its operands."""
    from bcvm.compiler.region import RegionSpec
    from bcvm.compiler.runtime import runtime
    slots, made, seen = runtime().slots, [], []
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    def between(spec: Any, address: int) -> Any:
        original = kind(address)

        def kernel(ctx: int, operands: int, sizes: int, lo: int, hi: int) -> int:
            if lo <= 0:  # the first piece of a launch
                rank = spec.rank
                extent = (ctypes.c_int64 * rank).from_address(sizes)
                dtypes = [o.dtype for o in (*spec.inputs, *spec.outputs)]
                words = (ctypes.c_int64 * (len(dtypes) * (1 + rank))).from_address(operands)
                seen.append(sum(np.dtype(t).itemsize * math.prod(extent[i] for i in range(rank) if words[n * (1 + rank) + 1 + i]) for n, t in enumerate(dtypes)))
            return int(original(ctx, operands, sizes, lo, hi))
        return kind(kernel)

    requests = f._bcvm.site.specialisations[-1].code.compiled.kernels
    if not all(isinstance(k.spec, RegionSpec) for k in requests):
        raise RuntimeError("a kernel other than a region's")
    before = {k.slot: slots.get(k.slot) for k in requests}
    try:
        for k in requests:
            made.append(between(k.spec, before[k.slot]))
            slots.set(k.slot, ctypes.cast(made[-1], ctypes.c_void_p).value or 0)
        f(*args)
    finally:
        for slot, address in before.items():
            slots.set(slot, address)
    return len(seen), sum(seen)


LAYER = """import bcvm
def layer(x: bcvm.Tensor["{B}, {S}, 256"], w, v, g, b) -> bcvm.Tensor["{B}, {S}, 256"]:
    y = np.maximum(x @ w, 0) @ v
    y = bcvm.ops.layer_norm(x + y, g, b)
    return y.reshape({B} * {S}, 256).reshape({B}, {S}, 256)
"""


def encoded(batch: Any, length: Any) -> int:
    """Bytes of the program of the layer for these sizes, or for all if they are names."""
    text = LAYER.format(B=batch, S=length)
    if isinstance(batch, str):
        text = text.replace("    y = np.maximum", "    B, S, _ = x.shape\n    y = np.maximum", 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.bc"
        bcvm.jit(module(text).layer).program.save(str(path))
        return path.stat().st_size


@claim
def bytecode() -> Iterator[Claim]:
    shapes = [(1, 16), (4, 64), (8, 128), (2, 33)]
    symbolic, each = encoded("B", "S"), [encoded(*s) for s in shapes]
    for n in (2, 4):
        yield Claim("bytecode size", "40% smaller", f"{1 - symbolic / sum(each[:n]):.0%} smaller ({symbolic} against {sum(each[:n])} bytes)",
                    f"one .bc file of a layer for all sizes, against {n} files with sizes written out, for {n} shapes; one alone has {each[0]}", symbolic <= 0.6 * sum(each[:n]))


@claim
def norm() -> Iterator[Claim]:
    def layer(x, y, g, b):
        return ops.layer_norm(x + y, g, b)
    args = (floats(8, 128, 768), floats(8, 128, 768, seed=1), floats(768), floats(768, seed=2))
    fused, split = full(layer, *args, threads=1), full(layer, *args, threads=1, fusion=False)
    (n, moved), (m, moved_split) = launches(fused, *args), launches(split, *args)
    yield Claim("layer norm with its residual: memory traffic", "62% less", f"{1 - moved / moved_split:.0%} less ({moved / 1e6:.1f} against {moved_split / 1e6:.1f} MB)",
                "bytes of the operands of all kernels that one call ran, [8, 128, 768], against fusion=False", moved <= 0.38 * moved_split)
    yield Claim("layer norm with its residual: launches", "89% fewer", f"{1 - n / m:.0%} fewer ({n} against {m})", "kernels that the call ran, against fusion=False", n <= 0.11 * m)
    a, b = in_turns(partial(fused, *args), partial(split, *args))
    yield Claim("layer norm with its residual: time", "-", f"{b / a:.1f}x faster", "the same two", True)


@claim
def attention() -> Iterator[Claim]:
    def attend(q, k, v):
        return ops.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v
    example = tuple(floats(2, 8, 64, 64, seed=i) for i in range(3))
    fused, split = full(attend, *example), full(attend, *example, fusion=False)
    for batch in (1, 16):
        args = tuple(floats(batch, 8, 128, 64, seed=i) for i in range(3))
        a, b = in_turns(partial(fused, *args), partial(split, *args))
        taken = "; ".join(line.partition("ops]")[0] + "ops]" for line in fused.explain(*args).regions)
        yield Claim(f"attention, batch {batch}", "2.1x, fused at batch 16, split at batch 1", f"{b / a:.2f}x", f"as the call runs ({taken}) against fusion=False, 8 heads, 128 x 64",
                    b >= 2.1 * a if batch == 16 else b >= 0.95 * a)


@claim
def convolution() -> Iterator[Claim]:
    def block(x, w, mean, var, g, b):
        return np.maximum(ops.batch_norm(ops.conv2d(x, w, padding=1), mean, var, g, b), 0)
    weights = (floats(64, 64, 3, 3), floats(64), np.abs(floats(64, seed=1)) + 1, floats(64, seed=2), floats(64, seed=3))
    fused, split = full(block, floats(2, 64, 8, 8), *weights), full(block, floats(2, 64, 8, 8), *weights, fusion=False)
    for batch in (1, 16):
        x = floats(batch, 64, 28, 28)
        a, b = in_turns(partial(fused, x, *weights), partial(split, x, *weights))
        yield Claim(f"conv + bn + relu, batch {batch}", "1.8x fused" if batch > 1 else "not slower", f"{b / a:.2f}x", "64 channels, 28 x 28, 3 x 3, against fusion=False",
                    b >= 1.8 * a if batch > 1 else b >= 0.95 * a)


@claim
def interpreter() -> Iterator[Claim]:
    from workloads import ALL
    bert = ALL["bert"](60)
    sides = [("NumPy", "peers_numpy", "numpy")] + ([("MindSpore PyNative", "peers_ms", "ms")] if importlib.util.find_spec("mindspore") else [])
    for label, name, peer in sides:
        fn, to, back = importlib.import_module(name).make(bert, peer, 2)
        interpreted = bcvm.jit(fn, tier="interpret")
        calls = [tuple(map(to, c)) for c in sorted(bert.calls, key=lambda c: c[0].size)]
        for size, call in (("smallest", calls[0]), ("median", calls[30])):
            def both(f: Any, back: Any = back, call: Any = call) -> Any:
                return back(f(*call))
            a, b = in_turns(partial(both, fn), partial(both, interpreted))
            yield Claim(f"interpreter on BERT, {label}", "at most 35% slower", f"{b / a - 1:+.0%}",
                        f"tier='interpret' against the same function in plain {label}, the {size} call of 60, {list(call[0].shape)}", b <= 1.35 * a)


@claim
def choice() -> Iterator[Claim]:
    def gate(x, y):
        return ops.sigmoid(ops.relu(x) + y)
    small, large = (1, 64, 1, 1), (32, 64, 224, 224)
    fused, split = full(gate, floats(1, 1, 1, 1), floats(1, 1, 1, 1)), full(gate, floats(1, 1, 1, 1), floats(1, 1, 1, 1), fusion=False)
    decisions = []
    for shape in (small, large):
        args = floats(*shape), floats(*shape, seed=1)
        decisions.append([line.partition("ops]")[0] + "ops]" for line in fused.explain(*args).regions])
        a, b = in_turns(partial(fused, *args), partial(split, *args))
        yield Claim(f"relu-add-sigmoid at {shape}", "chosen differently", f"{b / a:.2f}x", f"as the call runs ({'; '.join(decisions[-1])}) against fusion=False", b >= 0.95 * a)
    yield Claim("relu-add-sigmoid: one decision for both shapes", "chosen differently", "the same" if decisions[0] == decisions[1] else "differ",
                "what explain says for the two shapes; a difference that does not pay is no aim", True)


@claim
def single() -> Iterator[Claim]:
    text = "def f{i}(x, y):\n    return np.maximum(np.tanh(x * {i}.25) + y, {i}.5) * x\n"
    made = module("\n".join(text.format(i=i) for i in range(1, 24)))
    x, y = floats(64, 256), floats(64, 256, seed=1)
    full(made.f1, x, y)  # the compiler has started
    times: dict[str, list[float]] = {"first": [], "compiled": [], "later": []}
    for i in range(2, 24):
        kind = "first" if i % 2 else "compiled"
        options: dict[str, Any] = {} if kind == "first" else {"tier": "full", "background": False}
        f = bcvm.jit(getattr(made, f"f{i}"), **options)
        start = clock()
        f(x, y)
        times[kind].append(clock() - start)
        f.warmup((x, y))
        start = clock()
        f(x, y)
        times["later"].append(clock() - start)
    for kind, words in (("first", "the first call ever of a function, native code made behind it"), ("compiled", "the first call, which waits for its native code"),
                        ("later", "a native call")):
        t = statistics.median(times[kind]) * 1e3
        yield Claim(f"single call, {kind}", "under 5 ms", f"{t:.2f} ms", f"{words}; [64, 256], median of {len(times[kind])}", t < 5)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(CLAIMS), help="of: " + ", ".join(CLAIMS))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    ROUNDS[0] = args.rounds
    if unknown := [n for n in args.only.split(",") if n not in CLAIMS]:
        p.error(f"no claim {', '.join(unknown)}; there are {', '.join(CLAIMS)}")
    found: list[dict[str, Any]] = []
    for name in args.only.split(","):
        try:
            for c in CLAIMS[name]():
                found.append(c._asdict())
                print(f"{'ok  ' if c.holds else 'MISS'} {c.what:48} {c.described:42} {c.ours:42} {c.compared}", flush=True)
        except Exception as e:  # one claim that cannot be measured does not hide the others
            found.append({"what": name, "failed": f"{type(e).__name__}: {e}", "holds": False})
            print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if all(f["holds"] for f in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
