"""Spliced kernels (tier 2): how long splicing takes, and how fast the code is against LLVM's (tier 3).

    python bench/splice.py [--regions 500] [--only splice|speed|start] [--json FILE]

Splicing: random regions, each spliced and loaded once; wall time per region, and the thread's own (cpu), which other processes disturb less.
Speed: both kernels of a region called in turn from native code on the same arrays; the ratio of the shortest times, LLVM's / spliced, so 1 is as
fast and less is slower.
Start: processes with tier="auto", with and without spliced kernels, while the stencils are on disk and LLVM's kernels are not, or are too.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bcvm.ops  # noqa: F401  the op table
from bcvm.compiler import llvm, loader
from bcvm.compiler.kernels.region import generate
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.compiler.runtime import runtime
from bcvm.compiler.splice.library import library, read
from bcvm.compiler.splice.splicer import splice
from bcvm.compiler.target import host
from bcvm.errors import Unsupported

clock = time.perf_counter
F, D = "float32", "float64"
_UNARY = ("neg", "abs", "relu", "sqrt", "floor", "square", "exp", "tanh", "sigmoid", "gelu", "silu", "rsqrt")
_BINARY = ("add", "sub", "mul", "truediv", "maximum", "minimum")


def region(rank: int, inputs: Sequence[Any], steps: Sequence[tuple[Any, ...]], outputs: Sequence[int] = (-1,), reduced: bool = False) -> RegionSpec:
    ins = tuple(RegionInput(i.rstrip("*"), i.endswith("*")) for i in inputs)
    made = tuple(Step(s[0], tuple(s[1]), s[2], tuple(s[3:])) for s in steps)
    types = [i.dtype for i in ins] + [s.dtype for s in made]
    return RegionSpec(rank, ins, made, tuple(RegionOutput(o % len(types), types[o], reduced) for o in outputs))


def random_region(rng: np.random.Generator) -> RegionSpec:
    """Up to 18 steps, most of which count, over 1 to 4 inputs of one dtype."""
    dtype = str(rng.choice([F, F, D]))
    inputs = [dtype + "*" * bool(k and rng.random() < 0.15) for k in range(rng.integers(1, 5))]
    steps: list[tuple[Any, ...]] = []
    values, unread = list(range(len(inputs))), list(range(len(inputs)))

    def take() -> int:
        """A value that nothing reads yet, if there is one, or any."""
        if unread and rng.random() < 0.8:
            return unread.pop(int(rng.integers(0, len(unread))))
        return int(rng.choice(values))

    def add(*step: Any) -> int:
        steps.append(step)
        return len(inputs) + len(steps) - 1

    while len(steps) < 16 and not (len(steps) > 1 and len(unread) == 1 and rng.random() < 0.2):
        roll = rng.random()
        if roll < 0.1:
            made = add("const", (), dtype, ("value", float(rng.integers(-3, 4))))
        elif roll < 0.5:
            made = add(str(rng.choice(_UNARY)), (take(),), dtype)
        elif roll < 0.6:
            made = add("where", (add("gt", (take(), take()), "bool"), take(), take()), dtype)
        else:
            made = add(str(rng.choice(_BINARY)), (take(), take()), dtype)
        values.append(made)
        unread.append(made)
    return region(int(rng.integers(1, 5)), inputs, steps, [v for v in unread if v >= len(inputs)][-2:])


def splicing(count: int) -> dict[str, float]:
    """Microseconds a region; the first of all is apart."""
    known = library()  # read from disk again below: nothing is known of its stencils yet
    rng = np.random.default_rng(0)
    specs: list[RegionSpec] = []
    while len(specs) < count + 1:
        spec = random_region(rng)
        try:
            splice(spec, known)
        except Unsupported:
            continue
        specs.append(spec)
    fresh = read() or known
    took, busy, sizes = [], [], []
    gc.collect()
    gc.disable()
    try:
        for spec in specs:
            start, begun = clock(), time.thread_time()
            code = splice(spec, fresh)
            loaded = loader.place(code, "kernel")
            took.append((clock() - start) * 1e6)
            busy.append((time.thread_time() - begun) * 1e6)
            sizes.append(len(code))
            loaded.release()
    finally:
        gc.enable()
    out = {"regions": count, "steps": statistics.mean(len(s.steps) for s in specs), "bytes": statistics.mean(sizes), "first_us": took[0]}
    for name, times in (("", took[1:]), ("cpu_", busy[1:])):
        out |= {f"{name}p{p}_us": float(np.percentile(times, p)) for p in (50, 90, 99)}
    return out


# -- speed

WORKLOADS = {
    "K4 relu(a*b+c)*s": region(2, [F, F, F], [("mul", (0, 1), F), ("add", (3, 2), F), ("relu", (4,), F), ("const", (), F, ("value", 1.5)), ("mul", (5, 6), F)]),
    "K12 arithmetic": region(2, [F, F, F], [("mul", (0, 1), F), ("add", (3, 2), F), ("sub", (4, 0), F), ("mul", (5, 3), F), ("maximum", (6, 4), F),
                                            ("add", (7, 5), F), ("mul", (8, 2), F), ("sub", (9, 7), F), ("add", (10, 3), F), ("minimum", (11, 8), F),
                                            ("mul", (12, 0), F), ("add", (13, 1), F)]),
    "KT tanh(a*b+c)": region(2, [F, F, F], [("mul", (0, 1), F), ("add", (3, 2), F), ("tanh", (4,), F)]),
    "KE sigmoid(a*b+c)*a": region(2, [F, F, F], [("mul", (0, 1), F), ("add", (3, 2), F), ("sigmoid", (4,), F), ("mul", (5, 0), F)]),
    "gelu(a+b)": region(2, [F, F], [("add", (0, 1), F), ("gelu", (2,), F)]),
    "a+b": region(2, [F, F], [("add", (0, 1), F)]),
    "where(a>b, a, b*2)": region(2, [F, F], [("gt", (0, 1), "bool"), ("const", (), F, ("value", 2.0)), ("mul", (1, 3), F), ("where", (2, 0, 4), F)]),
    "float64 a*b+c": region(2, [D, D, D], [("mul", (0, 1), D), ("add", (3, 2), D)]),
    "int64 a*b+c": region(2, ["int64"] * 3, [("mul", (0, 1), "int64"), ("add", (3, 2), "int64")]),
    "a > b": region(2, [F, F], [("gt", (0, 1), "bool")]),
    "softmax": region(2, [F], [("max", (0,), F), ("sub", (0, 1), F), ("exp", (2,), F), ("sum", (3,), F), ("truediv", (3, 4), F)]),
    "layer norm": region(2, [F, F, F], [("sum", (0,), F), ("const", (), F, ("value", 1 / 64)), ("mul", (3, 4), F), ("sub", (0, 5), F), ("square", (6,), F),
                                        ("sum", (7,), F), ("mul", (8, 4), F), ("const", (), F, ("value", 1e-5)), ("add", (9, 10), F), ("rsqrt", (11,), F),
                                        ("mul", (6, 12), F), ("mul", (13, 1), F), ("add", (14, 2), F)]),
    "sum": region(2, [F], [("sum", (0,), F)], reduced=True),
    "a*s+t, s and t per row": region(2, [F, F + "*", F + "*"], [("mul", (0, 1), F), ("add", (3, 2), F)]),
}
SHAPES = ((1, 64), (1, 1000), (1, 4096), (1, 65536), (64, 64), (64, 300))

_LOOP = """define void @repeat(ptr %kernel, ptr %ctx, ptr %ops, ptr %sizes, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %r = call i32 %kernel(ptr %ctx, ptr %ops, ptr %sizes, i64 0, i64 -1)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}"""


def speeds(rounds: int = 15, seconds: float = 0.0004) -> Iterator[tuple[str, tuple[int, int], float, float]]:
    """(workload, shape, nanoseconds of the spliced kernel, ratio)."""
    loop = loader.load(llvm.compile_ir(_LOOP))
    repeat = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(loop.address("repeat"))
    rng = np.random.default_rng(0)
    with runtime().context() as context:
        for name, spec in WORKLOADS.items():
            source = generate(spec, host())
            tier3, tier2 = loader.load(llvm.compile_ir(source.ir)), loader.place(splice(spec, library()), "kernel")
            kernels = tier3.address(source.name), tier2.address("kernel")
            for shape in SHAPES:
                arrays = [np.ascontiguousarray(rng.standard_normal(shape) * 3).astype(i.dtype) for i in spec.inputs]
                arrays += [np.zeros(shape, o.dtype) for o in spec.outputs]
                splat = [i.splat for i in spec.inputs] + [o.reduced for o in spec.outputs]
                words = np.array([w for a, s in zip(arrays, splat, strict=True) for w in (a.ctypes.data, a.strides[0], 0 if s else a.strides[1])], np.int64)
                sizes = np.array(shape, np.int64)

                def run(kernel: int, times: int, words: Any = words, sizes: Any = sizes) -> float:
                    start = clock()
                    repeat(kernel, context, words.ctypes.data, sizes.ctypes.data, times)
                    return clock() - start

                times = 1
                while run(kernels[0], times) < seconds:
                    times *= 2
                pairs = [(run(kernels[0], times), run(kernels[1], times)) for _ in range(rounds)]
                yield name, shape, min(b for _, b in pairs) / times * 1e9, min(a for a, _ in pairs) / min(b for _, b in pairs)


# -- from the first call to native code

_START = """
import json, sys, time
import numpy as np, bcvm
from bcvm.compiler.splice import library
from bcvm.vm.compile_thread import thread
mode, count = sys.argv[1], int(sys.argv[2])
if mode == "stencils":
    library.library()
    sys.exit()
if mode == "llvm":
    library.prepare = lambda later: None
sys.path.insert(0, sys.argv[3])
import program
f, arrays = bcvm.jit(program.f), [np.random.rand(*[3 + i] * (1 + i % 3)).astype(np.float32) for i in range(count)]
thread.idle()
start = time.perf_counter()
while not f.stats()["native"]:
    f(*arrays)
    time.sleep(0.0005)
native = time.perf_counter()
thread.idle()
print(json.dumps([(native - start) * 1e3, (time.perf_counter() - start) * 1e3]))
"""
_TERMS = ("np.tanh({0} * 2 + 1)", "np.exp(-{0}) * {0}", "np.maximum({0}, 0.5) - {0}", "1 / (1 + np.exp(-{0}))", "np.sqrt(np.abs({0})) + {0}",
          "{0} * {0} + 3.0", "np.minimum({0} * 0.3, 1) + {0}", "np.where({0} > 0, {0}, 0.1)", "np.floor({0} * 4) / 4", "np.log(np.abs({0}) + 1) * {0}")


def starts(rounds: int) -> Iterator[tuple[int, str, str, float, float]]:
    """(regions, kernel cache, way, milliseconds from a first call to a native one, and until nothing is compiled any more), medians."""
    with tempfile.TemporaryDirectory() as folder:
        stencils, kernels = Path(folder) / "stencils", Path(folder) / "kernels"
        stencils.mkdir(mode=0o700)

        def run(cache: Path, *arguments: str) -> Any:
            done = subprocess.run([sys.executable, "-c", _START, *arguments, folder], env={**os.environ, "BCVM_KERNEL_CACHE": str(cache)},
                                  capture_output=True, text=True, check=True, timeout=120)
            return json.loads(done.stdout) if done.stdout else None

        run(stencils, "stencils", "0")
        for count in (1, 4, 10):
            names = [f"x{i}" for i in range(count)]
            values = [_TERMS[i % 10].format(f"({_TERMS[(3 * i + 1) % 10].format(n)})") for i, n in enumerate(names)]
            text = f"import numpy as np\ndef f({', '.join(names)}):\n    return {', '.join(values)},\n"
            (Path(folder) / "program.py").write_text(text, encoding="utf-8")
            found: dict[tuple[str, str], list[Any]] = {}
            for _ in range(rounds):
                for way in ("llvm", "spliced"):
                    shutil.rmtree(kernels, ignore_errors=True)
                    shutil.copytree(stencils, kernels)
                    for cache in ("empty", "full"):
                        found.setdefault((cache, way), []).append(run(kernels, way, str(count)))
            for (cache, way), times in found.items():
                yield count, cache, way, statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=int, default=500)
    parser.add_argument("--only", choices=("splice", "speed", "start"))
    parser.add_argument("--rounds", type=int, default=5, help="processes for each figure of `start`")
    parser.add_argument("--json")
    given = parser.parse_args()
    out: dict[str, Any] = {}
    if given.only in (None, "splice"):
        out["splice"] = splicing(given.regions)
        print("  ".join(f"{k} {v:.1f}" for k, v in out["splice"].items()))
    if given.only in (None, "speed"):
        out["speed"] = [(name, shape, ns, ratio) for name, shape, ns, ratio in speeds()]
        print(f"{'':26}" + "".join(f"{a}x{b}".rjust(18) for a, b in SHAPES))
        for name in WORKLOADS:
            row = [(ns, ratio) for n, _, ns, ratio in out["speed"] if n == name]
            print(f"{name:26}" + "".join(f"{ns:.0f} ns {ratio:.2f}".rjust(18) for ns, ratio in row))
    if given.only in (None, "start"):
        out["start"] = list(starts(given.rounds))
        for count, cache, way, native, done in out["start"]:
            print(f"{count:2} regions, kernel cache {cache:5}: {way:8} native after {native:6.1f} ms, all compiled after {done:6.1f} ms")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
