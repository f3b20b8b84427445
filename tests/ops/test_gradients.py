"""Gradients agree with finite differences."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bcvm.ops  # noqa: F401
from bcvm.ops.definition import OPS
from tests.ops.executing import Executor

NAMES = [name for name, op in OPS.items() if op.gradient is not None and "float64" in op.domain and name != "cast"]
POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "pow", "truediv", "prod"}


def cases(name: str) -> Any:
    """The op's samples without corners, and away from kinks and poles."""
    rng = np.random.default_rng(5)
    count = 0
    for operands, attrs in OPS[name].samples(np.random.default_rng(1), "float64"):  # type: ignore[misc]
        size = max((np.size(o) for o in operands), default=0)
        if not 0 < size <= 120 or any(np.asarray(o).dtype.kind == "f" and not np.all(np.abs(o) < 50) for o in operands):
            continue
        fresh = tuple(o if np.asarray(o).dtype.kind != "f" else np.asarray(rng.uniform(0.3, 2, np.shape(o)) if name in POSITIVE else rng.uniform(0.1, 2,
                np.shape(o)) * rng.choice([-1, 1], np.shape(o)))
                      for o in operands)
        yield fresh, attrs
        count += 1
        if count == 4:
            return


@pytest.mark.parametrize("name", NAMES)
def test_gradient(name: str) -> None:
    op, b, seen = OPS[name], Executor("numpy"), 0
    assert op.gradient is not None and op.reference is not None
    for operands, attrs in cases(name):
        result = np.asarray(op.reference(*operands, **attrs))
        weights = np.random.default_rng(2).normal(size=result.shape)
        grads = op.gradient(b, (weights,), operands, (result,), attrs)
        assert len(grads) == len(operands)
        for i, (operand, grad) in enumerate(zip(operands, grads, strict=True)):
            if grad is None or np.asarray(operand).dtype.kind != "f":
                continue
            grad = np.asarray(grad)
            assert grad.shape == np.shape(operand) and grad.dtype == np.float64, (name, i)
            for index in list(np.ndindex(np.shape(operand)))[:8]:
                step = np.zeros(np.shape(operand))
                step[index] = 1e-6
                def at(sign: int, i: int = i, step: Any = step, operands: Any = operands, attrs: Any = attrs) -> Any:
                    moved = [o + sign * step if j == i else o for j, o in enumerate(operands)]
                    return np.asarray(op.reference(*moved, **attrs))
                numeric = float(np.sum((at(1) - at(-1)) * weights) / 2e-6)
                assert abs(numeric - grad[index]) <= 1e-4 * max(1.0, abs(numeric)), (name, i, index, numeric, grad[index])
                seen += 1
    assert seen
