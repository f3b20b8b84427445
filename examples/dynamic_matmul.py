"""A small layer whose batch size changes from call to call, on NumPy arrays: bcvm run examples/dynamic_matmul.py

Prints the bytecode, what bcvm decided, and per new batch size the time of the first call beside plain NumPy's.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import bcvm
from bcvm.tools.report import hit_rate, table

BATCHES = [4, 7, 1, 32, 13, 64, 5, 128, 17, 96, 2, 50]


WEIGHT = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)


def dynamic_matmul(x: bcvm.Tensor["B, 256"], training: bool = False) -> bcvm.Tensor["B, 128"]:  # noqa: F821
    """relu(x @ WEIGHT); in training also scaled, as dropout of a half would."""
    y = np.matmul(x, WEIGHT)
    y = np.maximum(y, 0)
    if training:
        y = y * 2.0
    return y


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def main() -> None:
    fast = bcvm.jit(dynamic_matmul)
    rng = np.random.default_rng(1)

    first = rng.standard_normal((BATCHES[0], 256)).astype(np.float32)
    print(fast.program, end="\n\n")
    fast.warmup((first, False))  # one compilation serves every batch size and both values of training
    print(fast.explain(first, False), end="\n\n")

    rows = []
    for i, batch in enumerate(BATCHES):
        x = rng.standard_normal((batch, 256)).astype(np.float32)
        training = i % 2 == 1
        plain_ms, expected = milliseconds(lambda x=x, t=training: dynamic_matmul(x, t))
        fast_ms, result = milliseconds(lambda x=x, t=training: fast(x, t))
        difference = float(np.abs(result - expected).max() / (np.abs(expected).max() + 1e-9))
        assert result.shape == expected.shape and difference < 1e-4, f"batch {batch}: differs from NumPy by {difference:.2g}"
        rows.append((f"({batch}, 256) training={training}", plain_ms, fast_ms, difference))
    print(table(("new shape", "NumPy ms", "bcvm ms", "difference"), rows))
    stats = fast.stats()
    print(f"\nJIT Cache: {hit_rate(stats)} hit, {stats['compiles']} compiled, {stats['recompiles']} recompilations, {stats['specialisations']} specialisations")


if __name__ == "__main__":
    main()
