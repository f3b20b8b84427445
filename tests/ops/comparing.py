"""How a result is compared with a reference under an op's bound."""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.ops.definition import Op, ScalarExpr


def ulps(got: Any, want: Any) -> float:
    """The largest distance in units of the last place of the wanted value; infinite where NaN or infinities differ."""
    got, want = np.asarray(got), np.asarray(want)
    if not want.size:
        return 0.0
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else np.inf
    finite = np.isfinite(want)
    if not (np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)])):
        return np.inf
    if not finite.any():
        return 0.0
    with np.errstate(all="ignore"):
        distance = np.abs(got[finite].astype(np.longdouble) - want[finite].astype(np.longdouble)) / np.spacing(np.abs(want[finite])).astype(np.longdouble)
    return float(np.max(distance))


def relative(got: Any, want: Any) -> float:
    """The largest error relative to the largest magnitude of the wanted values (at least 1)."""
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else np.inf
    finite = np.isfinite(want)
    if not (np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)])):
        return np.inf
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64))) / max(1.0,
            float(np.max(np.abs(want[finite]).astype(np.float64)))))


def check(op: Op, got: Any, want: Any) -> None:
    """Assert that dtype, shape and values agree within the op's bound."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape, f"{op.name}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    allowed = op.bound.get(want.dtype.name, 0.0)
    error = ulps(got, want) if isinstance(op.form, ScalarExpr) else relative(got, want)
    assert error <= allowed, f"{op.name} {want.dtype}: error {error}, allowed {allowed}"
