"""Every elementwise op of the table, compiled, keeps the bound that its definition states."""
from __future__ import annotations

import harness
import numpy as np
import pytest
from harness import TARGETS, region

from bcvm.ops.definition import OPS, ScalarExpr

DTYPES = ("bool", "int32", "float32", "float64")
CASES = [(name, dtype) for name, op in OPS.items() if isinstance(op.form, ScalarExpr) and op.samples and name != "cast" and not name.startswith("test.")
         for dtype in op.domain if dtype in DTYPES]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference: in ulp for floats, 0 or infinity for others and for NaN and infinities."""
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else np.inf
    special = ~np.isfinite(want) | ~np.isfinite(got)
    if not np.array_equal(got[special], want[special], equal_nan=True):
        return np.inf
    a, b = got[~special].astype(np.longdouble), want[~special]
    with np.errstate(over="ignore"):
        return float((np.abs(a - b) / np.spacing(np.abs(b)).astype(np.longdouble)).max(initial=0))


@pytest.mark.parametrize("name,dtype", CASES)
def test_compiled_op_keeps_its_bound(name, dtype):
    op = OPS[name]
    limit = ("", "avx2", "baseline")[len(name) % 3]  # each form of code for a third of the ops
    for operands, attrs in op.samples(np.random.default_rng(0), dtype):
        arrays = [np.asarray(a) for a in operands]
        want = np.asarray(op.reference(*arrays, **attrs))
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        rank = max(len(shape), 1)
        sizes = shape or (1,)
        steps = [(name, tuple(range(len(arrays))), want.dtype.name, *sorted(attrs.items()))]
        spec = region(rank, [a.dtype.name for a in arrays], steps, [-1])
        got = np.zeros(sizes, want.dtype)
        harness.call(spec, [*(np.broadcast_to(a, sizes) for a in arrays), got], sizes, TARGETS[limit])
        worst = error(got, np.broadcast_to(want.reshape(want.shape or (1,)), sizes))
        assert worst <= op.bound.get(dtype, 0), (spec, worst)
