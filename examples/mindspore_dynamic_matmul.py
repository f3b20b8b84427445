"""An unedited nn.Cell whose batch size changes from call to call, in every mode of MindSpore and in bcvm: make demo

Prints the bytecode, the [BCVM] lines of each compilation, and one table measured live: per new shape, ms in PyNative, ms.jit,
GRAPH_MODE and bcvm. Then the hit rate and the recompilations.
"""
from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own warnings would stand between the lines of the table
os.environ.setdefault("BCVM_LOG_LEVEL", "info")
warnings.filterwarnings("ignore", category=SyntaxWarning)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

import bcvm  # noqa: E402
from bcvm.tools.report import hit_rate, table  # noqa: E402

BATCHES = [4, 7, 1, 32, 13, 64, 5, 128]
REPEATS = 20


class DynamicMatmulCell(nn.Cell):
    """As a MindSpore user writes it; nothing in it knows of bcvm."""

    def __init__(self, inputs: int = 256, outputs: int = 128) -> None:
        super().__init__()
        weight = np.random.default_rng(0).standard_normal((inputs, outputs)).astype(np.float32)
        self.weight = ms.Parameter(Tensor(weight), name="weight")

    def construct(self, x, training=False):
        y = ops.matmul(x, self.weight)
        y = ops.relu(y)
        if training:
            y = y * 2.0
        return y


def measure(call: Callable[..., Any], stream: list[tuple[Tensor, bool]], mode: int) -> tuple[list[tuple[float, float]], list[np.ndarray]]:
    """Per call of the stream: ms of the first call with this shape and the median of its repeats, results included; and the results."""
    ms.set_context(mode=mode)
    times, results = [], []
    for x, training in stream:
        taken = []
        for _ in range(1 + REPEATS):
            start = time.perf_counter()
            result = call(x, training).asnumpy()  # waits: PyNative is asynchronous
            taken.append((time.perf_counter() - start) * 1e3)
        times.append((taken[0], statistics.median(taken[1:])))
        results.append(result.copy())
    return times, results


def main() -> None:
    cell, jit_cell, graph_cell = DynamicMatmulCell(), DynamicMatmulCell(), DynamicMatmulCell()
    fast = bcvm.jit(cell)
    print(fast.program, end="\n\n", flush=True)

    rng = np.random.default_rng(1)
    stream = [(Tensor(rng.standard_normal((batch, 256)).astype(np.float32)), i % 2 == 1) for i, batch in enumerate(BATCHES)]

    @ms.jit
    def jitted(x, training):
        return jit_cell(x, training)

    columns: dict[str, tuple[Callable[..., Any], int]] = {
        "PyNative": (DynamicMatmulCell(), ms.PYNATIVE_MODE),
        "ms.jit": (jitted, ms.PYNATIVE_MODE),
        "GRAPH_MODE": (graph_cell, ms.GRAPH_MODE),
        "bcvm": (fast, ms.PYNATIVE_MODE),
    }
    warm = (Tensor(np.zeros((3, 256), np.float32)), False)
    measured = {}
    for name, (call, mode) in columns.items():
        measure(call, [warm], mode)  # each mode has started; what follows is the price of a new shape alone
        if name == "bcvm":
            fast.warmup(warm)
        measured[name] = measure(call, stream, mode)

    expected = measured["PyNative"][1]
    for name, (_, results) in measured.items():
        for (x, _), a, b in zip(stream, results, expected, strict=True):
            assert a.shape == b.shape and np.abs(a - b).max() <= 1e-4 * np.abs(b).max(), f"{name} differs from PyNative for {x.shape}"
    rows = []
    for i, (x, training) in enumerate(stream):
        rows.append((f"{tuple(x.shape)} training={training}", *(v for name in columns for v in measured[name][0][i])))
    print(f"\nms of the first call with a new shape, and of the calls after it (median of {REPEATS})")
    print(table(("new shape", *(h for name in columns for h in (name, "then"))), rows))
    stats = fast.stats()
    print(f"\nJIT Cache: {hit_rate(stats)} hit, {stats['compiles']} compiled, {stats['recompiles']} recompilations, {stats['specialisations']} specialisations")


if __name__ == "__main__":
    main()
