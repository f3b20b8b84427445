"""Every budget of the design, measured: python bench/budgets.py [--only WORD[,WORD]] [--json FILE]

One line a budget: its limit, the figure, ok or OVER; `--` where there is nothing to measure yet. The exit code is 1 if one is over, or failed. Figures move with the
machine and with what else it does; the ones that compare (growth, ratios) do so within one run. No kernel comes from the disk: BCVM_KERNEL_CACHE is off.
"""
from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
clock = time.perf_counter


class Figure(NamedTuple):
    """One budget: value must be at most limit (at least, if `floor`)."""

    what: str
    value: float
    limit: float
    unit: str
    floor: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.floor else self.value <= self.limit


class Absent(Exception):
    """What is to be measured is not part of this version."""


MEASURES: dict[str, Callable[[], Iterator[Figure]]] = {}


def measure(fn: Callable[[], Iterator[Figure]]) -> Callable[[], Iterator[Figure]]:
    MEASURES[fn.__name__] = fn
    return fn


# -- helpers

def python(code: str) -> Any:
    """The JSON that a fresh interpreter prints last."""
    with tempfile.TemporaryDirectory() as folder:  # a file: functions need a source to be read from
        script = Path(folder) / "measured.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, str(script)], cwd=HERE, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def loops(count: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two loops over `repeat`: one calls f(a0, .., a<count - 1>), one does nothing. Arguments are spelt out: unpacking would cost as much as an entry."""
    names = ", ".join(f"a{i}" for i in range(count))
    scope: dict[str, Any] = {}
    exec(f"def call(repeat, f, {names}):\n    for _ in repeat: f({names})\ndef empty(repeat, f, {names}):\n    for _ in repeat: pass", scope)
    return scope["call"], scope["empty"]


def per_call(fn: Callable[..., Any], *args: Any, seconds: float = 0.05, best_of: int = 7) -> float:
    """Seconds of one call from Python: the best of some runs. The loop's own cost is taken off, the call instruction's is not."""
    call, empty = loops(len(args))

    def run(loop: Callable[..., None], n: int) -> float:
        repeat = itertools.repeat(None, n)
        start = clock()
        loop(repeat, fn, *args)
        return clock() - start

    n = 1
    while run(call, n) < seconds / 4:
        n *= 2
    gc.disable()
    try:
        taken = min(run(call, n) for _ in range(best_of)) - min(run(empty, n) for _ in range(best_of))
    finally:
        gc.enable()
    if taken <= 0:
        raise RuntimeError("a call that takes no time was not measured: the machine is too busy")
    return taken / n


def resident_mib(field: str = "VmRSS") -> float:
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


def module(source: str) -> ModuleType:
    """A module from text in a file of its own, so that its functions have a source that can be believed."""
    folder = tempfile.mkdtemp()
    path = Path(folder) / "generated.py"
    path.write_text("import numpy as np\n" + source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def native(fn: Callable[..., Any], *example: Any, **options: Any) -> Any:
    """The function jitted and compiled; RuntimeError if calls with these arguments do not run native."""
    import bcvm
    f = bcvm.jit(fn, tier="full", background=False, **options)
    f.warmup(example)
    before = f.stats()["native"]
    f(*example)
    if f.stats()["native"] == before:
        raise RuntimeError(f"{fn.__name__} does not run native: {f.stats()['fallbacks']}")
    return f


# -- budgets

@measure
def imports() -> Iterator[Figure]:
    code = """
import json, os, time, numpy
threads = len(os.listdir("/proc/self/task"))
start = time.perf_counter()
import bcvm
imported = time.perf_counter()
bcvm.jit  # loads what a first @bcvm.jit needs
print(json.dumps([imported - start, time.perf_counter() - start, len(os.listdir("/proc/self/task")) - threads]))
"""
    alone, with_jit, threads = zip(*(python(code) for _ in range(7)), strict=True)
    yield Figure("import of bcvm beyond NumPy", statistics.median(alone) * 1e3, 150, "ms")
    yield Figure("import of bcvm and of all that @bcvm.jit needs", statistics.median(with_jit) * 1e3, 150, "ms")
    yield Figure("threads started by the import", max(threads), 0, "threads")


@measure
def source() -> Iterator[Figure]:
    import bcvm
    body = "\n".join(f"    if flag:\n        x = np.maximum(x @ w + {i}.5, 0)\n    else:\n        x = x * {i}.25 + y[:, :{i + 1}].sum()" for i in range(24))
    text = "\n\n".join(f"def f{k}(x, y, w, flag=True):\n    z = x\n{body}\n    x = x + z\n    return x" for k in range(5))  # 100 lines each
    made = module(text)
    times = []
    for k in range(5):
        start = clock()
        program = bcvm.jit(getattr(made, f"f{k}")).program
        times.append(clock() - start)
        assert len(program.code) > 100
    yield Figure("source to program, 100 lines", statistics.median(times) * 1e3, 10, "ms")


@measure
def interpreter() -> Iterator[Figure]:
    import bcvm
    text = "\n\n".join(f"def f{n}(x, y):\n" + "    x = x + y\n" * n + "    return x" for n in (10, 110))
    made = module(text)
    x, y = floats(4, 4), floats(4, 4, seed=1)
    cost: dict[tuple[str, int], float] = {}
    for _ in range(3):  # interleaved, so that both kinds meet the same disturbances
        for n in (10, 110):
            fn = getattr(made, f"f{n}")
            jitted = bcvm.jit(fn, tier="interpret")
            for kind, call in (("plain", fn), ("interpreted", jitted)):
                cost[kind, n] = min(cost.get((kind, n), 1.0), per_call(call, x, y))
            stats = jitted.stats()
            if stats["native"] or not stats["interpreted"]:
                raise RuntimeError(f"tier='interpret' did not interpret: {stats}")
    slope = {kind: (cost[kind, 110] - cost[kind, 10]) / 100 for kind in ("plain", "interpreted")}
    yield Figure("tier 1, beyond the op's own work", (slope["interpreted"] - slope["plain"]) * 1e6, 1.5, "us/instruction", note=f"NumPy's own add: {slope['plain'] * 1e6:.2f} us")


def many_regions(count: int, apart: int = 0) -> Callable[..., Any]:
    """A function of `count` regions that differ from each other, and from those of other values of `apart`, with a matrix product between each two."""
    ops = ("np.maximum({}, {})", "np.minimum({}, {})", "({} + {})", "({} - {})", "({} * {})")
    lines = []
    for i in range(count):
        expression = "x"
        for step in range(3):
            expression = ops[(i // 5 ** step) % 5].format(expression, f"{i + step + 1 + apart}.5" if step else "y")
        lines.append(f"    x = {expression} @ w")
    return module("def f(x, y, w):\n" + "\n".join(lines) + "\n    return x").f


@measure
def compiler() -> Iterator[Figure]:
    import bcvm
    x, y, w = floats(8, 16), floats(8, 16, seed=1), floats(16, 16, seed=2) * 0.01
    native(many_regions(1), x, y, w)  # LLVM has started
    per_region: dict[int, float] = {}
    for count in (10, 30, 100, 300):
        took = []
        for turn in range(3):
            f = bcvm.jit(many_regions(count, 1000 * (turn + 1)), tier="full", background=False)
            start = clock()
            f.warmup((x, y, w))
            took.append((clock() - start) / count)
            if f.stats()["compiles"] == 0:
                raise RuntimeError(f"{count} regions were not compiled: {f.stats()['fallbacks']}")
        per_region[count] = statistics.median(took)
    yield Figure("tier 3, per unique kernel", max(per_region.values()) * 1e3, 5, "ms", note=", ".join(f"{n}: {t * 1e3:.2f}" for n, t in per_region.items()))
    yield Figure("tier 3, time per region, 300 against 10", per_region[300] / per_region[10], 1.5, "x", note="linear is 1")


@measure
def splice() -> Iterator[Figure]:
    import bcvm
    from bcvm.compiler import loader
    from bcvm.compiler.region import RegionSpec
    from bcvm.compiler.splice import library, splicer
    from bcvm.errors import CompileError, Unsupported
    try:
        stencils = library.library()
    except CompileError as e:
        raise Absent(str(e)) from None
    x, y, w = floats(8, 16), floats(8, 16, seed=1), floats(16, 16, seed=2) * 0.01
    f = bcvm.jit(many_regions(100), tier="splice")
    f.warmup((x, y, w))
    specs = [k.spec for k in f._bcvm.site.specialisations[-1].code.compiled.kernels if isinstance(k.spec, RegionSpec)]
    took = []
    for spec in specs:
        start = clock()
        try:
            code = loader.place(splicer.splice(spec, stencils), "kernel")
        except Unsupported:
            continue
        took.append(clock() - start)
        code.release()
    if len(took) < 0.9 * len(specs):
        raise RuntimeError(f"{len(specs) - len(took)} of {len(specs)} kernels have no spliced form")
    yield Figure("tier 2, per region", statistics.median(took) * 1e6, 100, "us", note=f"{len(took)} regions")


def identity(x, y):
    return x


def small(x, y):
    return np.maximum((x + y) * np.float32(2.0), 0)


@measure
def entry() -> Iterator[Figure]:
    x, y = floats(4, 4), floats(4, 4, seed=1)
    enter = per_call(native(identity, x, y), x, y)
    whole = per_call(native(small, x, y), x, y)
    yield Figure("entry of a native call, two NumPy arrays", enter * 1e9, 150, "ns")
    yield Figure("kernel choice (bound: a whole call of one region, beyond its entry)", (whole - enter) * 1e6, 1, "us", note=f"the whole call: {whole * 1e9:.0f} ns, NumPy's: {per_call(small, x, y) * 1e9:.0f} ns")


@measure
def mindspore() -> Iterator[Figure]:
    if importlib.util.find_spec("mindspore") is None:
        raise Absent("MindSpore is not in this environment; `make bench` measures its entry in .venv-mindspore")
    import mindspore as ms

    import bcvm
    ms.set_context(mode=ms.PYNATIVE_MODE)
    x, y = ms.Tensor(floats(4, 4)), ms.Tensor(floats(4, 4, seed=1))
    yield Figure("entry of a native call, two MindSpore tensors", per_call(native(identity, x, y), x, y) * 1e6, 2, "us")

    def layer(count: int) -> Any:
        total = " + ".join(f"self.p{i}" for i in range(count))
        text = "from mindspore import nn\nclass Layer(nn.Cell):\n    def construct(self, x):\n        return x + " + total
        cell = module(text).Layer()
        for i in range(count):
            setattr(cell, f"p{i}", ms.Parameter(ms.Tensor(floats(4, 4, seed=i)), name=f"p{i}"))
        return cell

    jitted = {count: bcvm.jit(layer(count), tier="full", background=False) for count in (1, 21)}
    for f in jitted.values():
        f.warmup((x,))
    cost = dict.fromkeys(jitted, math.inf)
    for count in list(cost) * 5:  # interleaved, best of five
        cost[count] = min(cost[count], per_call(jitted[count], x))
    yield Figure("each captured Parameter (with an add of 16 elements)", (cost[21] - cost[1]) / 20 * 1e6, 0.2, "us")


@measure
def recompilations() -> Iterator[Figure]:
    class Scale:
        offset = 0.0  # a default of the class, which an instance's own value comes to hide

        def __init__(self) -> None:
            self.factor = 1.0

    scale = Scale()

    def f(x, y, number, training):
        z = np.maximum(x @ y * number, 0) * scale.factor
        if training:
            z = z + 1.0
        return z

    g = native(f, floats(3, 4), floats(4, 5), 1.0, True)
    rng = np.random.default_rng(0)
    for i in range(300):
        a, b, c = (int(n) for n in rng.integers(0, 40, 3))
        scale.factor = i * 0.5
        g(floats(a, b, seed=i), floats(b, c, seed=i + 1), i * 0.25, i % 2 == 0)

    def h(x):
        return x + scale.offset

    k = native(h, floats(3, 4))
    for i in range(20):
        scale.offset = i * 0.5
        k(floats(3, 4, seed=i))
    yield Figure("recompilations over 300 sizes, numbers, attribute values", g.stats()["recompiles"], 0, "compilations", note=f"{g.stats()['specialisations']} specialisations")
    yield Figure("recompilations when an attribute comes to hide its class's default", k.stats()["recompiles"], 0, "compilations")


@measure
def memory() -> Iterator[Figure]:
    f = native(small, floats(4, 4), floats(4, 4, seed=1))
    shapes = [(1 + i % 173, 1 + i // 173) for i in range(20_000)]
    data = np.ones(1 + 20_000, np.float32)
    at_start = 0.0
    for i, (a, b) in enumerate(shapes):
        x = data[: a * b].reshape(a, b)
        f(x, x)
        if i == 2_000:
            gc.collect()
            at_start = resident_mib()
    gc.collect()
    yield Figure("resident memory, from 2,000 to 20,000 shapes", resident_mib() - at_start, 5, "MiB growth")


PEAK = """
import json, sys
import numpy as np
sys.path.insert(0, {here!r})
from budgets import resident_mib, native
def f(x, y):
    a = x * 2.0 + y
    b = np.maximum(a, 0) - y * 0.5
    return np.tanh(b) * a + np.abs(x - b)
shape = (2048, 4096)
x = np.ones(shape, np.float32); y = np.ones(shape, np.float32)
call = native(f, x[:2], y[:2]) if {fast} else f
call(x[:2], y[:2])
open("/proc/self/clear_refs", "w").write("5")
before = resident_mib(); call(x, y)
print(json.dumps(resident_mib("VmHWM") - before))
"""


@measure
def peak() -> Iterator[Figure]:
    plain, fast = (statistics.median(python(PEAK.format(here=str(HERE), fast=fast)) for _ in range(3)) for fast in (False, True))
    yield Figure("peak memory of a call, against NumPy's", fast / plain, 0.72, "x", note=f"{fast:.0f} and {plain:.0f} MiB; a chain of 32 MiB arrays")


@measure
def callers() -> Iterator[Figure]:
    x, y = floats(64, 64), floats(64, 64, seed=1)
    f = native(small, x, y)
    calls = 40_000
    numbers = list(range(60))

    def python(x: Any, y: Any) -> int:  # about as long, and nothing but the interpreter
        return sum(numbers)

    rate = dict.fromkeys(itertools.product((f, python), (1, 2, 8)), 0.0)
    for called, count in list(rate) * 5:  # interleaved, best of five
        def work(n: int = calls // count, called: Callable[..., Any] = called) -> None:
            for _ in range(n):
                called(x, y)
        before = f.stats()["calls"]
        threads = [threading.Thread(target=work) for _ in range(count)]
        start = clock()
        for t in threads: t.start()
        for t in threads: t.join()
        taken = clock() - start
        if called is f and f.stats()["calls"] - before != calls:
            raise RuntimeError(f"{count} callers: {f.stats()['calls'] - before} of {calls} calls were counted")
        rate[called, count] = max(rate[called, count], calls / taken)
    for count in (2, 8):
        note = f"{rate[f, 1] / 1e3:.0f}k calls/s, {rate[f, count] / 1e3:.0f}k; a function in Python of that length {rate[python, count] / rate[python, 1]:.3f}"
        yield Figure(f"throughput, {count} callers against 1", rate[f, count] / rate[f, 1], 0.9, "x", floor=True, note=note)


@measure
def first_calls() -> Iterator[Figure]:
    suite = HERE / "suite"
    workloads = ("tiny", "chain", "mlp", "branch", "bert", "rnn", "decode", "conv", "while")

    def run(workload: str, peer: str) -> float:
        done = subprocess.run([sys.executable, str(suite / "peer.py"), workload, peer], capture_output=True, text=True, timeout=300)
        rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not rows:
            raise RuntimeError(f"{workload} {peer}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return float(json.loads(rows[-1])["first"])

    for workload in workloads:
        plain, fast = (statistics.median(run(workload, peer) for _ in range(3)) for peer in ("numpy", "bcvm"))
        yield Figure(f"first call of {workload}, at most twice NumPy's plus 2 ms", fast, 2 * plain + 2, "ms", note=f"NumPy's: {plain:.2f}")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(MEASURES), help="of: " + ", ".join(MEASURES))
    p.add_argument("--json", type=Path, help="write the figures to this file too")
    args = p.parse_args()
    os.environ["BCVM_KERNEL_CACHE"] = "off"
    names = args.only.split(",")
    if unknown := [n for n in names if n not in MEASURES]:
        p.error(f"no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    figures, bad = [], 0
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}")
    for name in names:
        try:
            for figure in MEASURES[name]():
                figures.append(figure._asdict() | {"holds": figure.holds})
                bad += not figure.holds
                bound = f"{'>=' if figure.floor else '<='} {figure.limit:.4g}"
                print(f"{'ok  ' if figure.holds else 'OVER'} {figure.what:72} {figure.value:10.3f} {figure.unit:15} {bound:10} {figure.note}", flush=True)
        except Absent as e:
            figures.append({"what": name, "absent": str(e)})
            print(f"--   {name}: {e}", flush=True)
        except Exception as e:  # one budget that cannot be measured does not hide the others
            bad += 1
            figures.append({"what": name, "failed": f"{type(e).__name__}: {e}"})
            print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
