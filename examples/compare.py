"""What the examples share: one cell over a stream of shapes in each mode of MindSpore and in bcvm, and the table of that."""
from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("GLOG_v", "3")
warnings.filterwarnings("ignore", category=SyntaxWarning)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402

import bcvm.mindspore  # noqa: E402
from bcvm.tools.report import hit_rate, table  # noqa: E402

REPEATS = 5


def run(call: Callable[..., Any], stream: Sequence[tuple[Any, ...]]) -> tuple[list[float], list[float], list[np.ndarray]]:
    """Per item of the stream: ms of the first call, median ms of the calls after it, the result."""
    first, then, results = [], [], []
    for args in stream:
        taken = []
        for _ in range(1 + REPEATS):
            start = time.perf_counter()
            result = call(*args).asnumpy()  # waits: PyNative is asynchronous
            taken.append((time.perf_counter() - start) * 1e3)
        first.append(taken[0])
        then.append(statistics.median(taken[1:]))
        results.append(result.copy())
    return first, then, results


def compare(make: Callable[[], Any], warm: tuple[Any, ...], stream: Sequence[tuple[Any, ...]], label: Callable[..., str], tolerance: float = 1e-4) -> None:
    """Prints the table. make: a new cell with the same weights each time. warm: arguments that each mode is started with. AssertionError where a
    mode differs from PyNative by more than `tolerance` of the largest result."""
    measured = {}
    for name, mode in (("PyNative", ms.PYNATIVE_MODE), ("GRAPH_MODE", ms.GRAPH_MODE), ("bcvm", None)):
        cell = make()
        cell.set_train(False)
        if mode is None:
            bcvm.mindspore.enable()
            ms.set_context(mode=ms.BYTECODE_VM)
            cell(*warm)
            bcvm.mindspore.functions()[0].warmup(warm)
        else:
            ms.set_context(mode=mode)
        run(cell, [warm])
        measured[name] = run(cell, stream)
    expected = measured["PyNative"][2]
    for name, (_, _, results) in measured.items():
        for a, b in zip(results, expected, strict=True):
            assert a.shape == b.shape and np.abs(a - b).max() <= tolerance * np.abs(b).max(), f"{name} differs from PyNative by {np.abs(a - b).max():.1e}"
    rows = [(label(*args), *(v for first, then, _ in measured.values() for v in (first[i], then[i]))) for i, args in enumerate(stream)]
    print(f"ms of the first call with a new shape, and of the calls after it (median of {REPEATS})")
    print(table(("new shape", *(h for name in measured for h in (name, "then"))), rows))
    stats = bcvm.mindspore.functions()[0].stats()
    print(f"\nJIT Cache: {hit_rate(stats)} hit, {stats['compiles']} compiled, {stats['recompiles']} recompilations")
    bcvm.mindspore.disable()
