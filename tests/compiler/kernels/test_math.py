"""Error of the mathematical functions, in ulp, over dense samples, for every form of code; and their special values."""
from __future__ import annotations

import harness
import numpy as np
import pytest
from harness import TARGETS
from scipy import special as ss

from bcvm.compiler.kernels.math import emit
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.ops.definition import OPS, Op, ScalarExpr


def _op(name: str, arity: int = 1) -> str:
    full = f"test.math.{name}"
    if full not in OPS:
        OPS[full] = Op(full, ("a", "b")[:arity], ScalarExpr(lambda e, *x: emit(e, name, *x)))
    return full


def evaluate(name: str, target, *x: np.ndarray) -> np.ndarray:
    dtype = x[0].dtype.name
    spec = RegionSpec(1, tuple(RegionInput(dtype) for _ in x), (Step(_op(name, len(x)), tuple(range(len(x))), dtype),), (RegionOutput(len(x), dtype),))
    out = np.empty_like(x[0])
    harness.call(spec, [*x, out], [out.size], target)
    return out


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest error in units of the last place of the exact result; infinite for a wrong NaN or infinity."""
    with np.errstate(over="ignore"):
        want = exact.astype(got.dtype)
    if not (np.isnan(got) == np.isnan(want)).all() or (np.isinf(want) & (got != want)).any():
        return np.inf
    fine = np.isfinite(want)
    if np.isinf(got[fine]).any():
        return np.inf
    error = np.abs(got[fine].astype(exact.dtype) - exact[fine]) / np.spacing(np.abs(want[fine])).astype(exact.dtype)
    return float(error.max(initial=0))


def samples32(positive=False) -> np.ndarray:
    """Every 100003rd float32 bit pattern, and a dense part around 1."""
    bits = np.arange(0, 1 << 32, 100003, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.linspace(-20, 20, 200001, dtype=np.float32), np.linspace(-120, 120, 50001, dtype=np.float32),
                        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45], np.float32)])
    return np.abs(x) if positive else x


def _gelu(x):
    """In extended precision: x * exp(-x^2/2) * erfcx(|x|/sqrt 2) / 2 below 0."""
    wide = x.astype(np.longdouble)
    size = np.minimum(np.abs(wide), 1000)
    tail = np.exp(-size * size / 2) * ss.erfcx((size * np.sqrt(np.longdouble(0.5))).astype(np.float64)) / 2
    return np.where(np.isneginf(x), -0.0, np.where(x < 0, wide * tail, wide - np.where(x < 1000, wide, 0) * tail))


def _times_sigmoid(x, y):
    z = np.exp(-np.abs(y))
    return np.where(np.isneginf(x), -0.0, np.where(x < 0, x * z, x) / (1 + z))


def _gelu_tanh(x):
    return _times_sigmoid(x, 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


EXACT = {"exp": np.exp, "expm1": np.expm1, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "log": np.log, "erf": ss.erf, "gelu": _gelu, "gelu_tanh": _gelu_tanh,
         "silu": lambda x: _times_sigmoid(x, x), "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "exp2": np.exp2, "sinh": np.sinh, "cosh": np.cosh,
         "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos, "cbrt": np.cbrt}
LIMIT32 = {"exp": 1.3, "log": 1.3, "expm1": 3, "tanh": 3, "sigmoid": 3, "erf": 1.5, "gelu": 12, "gelu_tanh": 256, "silu": 4}


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("name", EXACT)
def test_float32_error(name, limit):
    x = samples32()
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
    assert ulps(evaluate(name, TARGETS[limit], x), exact) <= LIMIT32.get(name, 1.0)


LIMIT64 = {"cbrt": 4, "expm1": 4, "tanh": 4, "sigmoid": 4, "gelu": 32, "gelu_tanh": 2000, "silu": 4, "log": 1.5, "exp": 1.5}


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("name", EXACT)
def test_float64_error(name, limit):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-30, 30, 20000), rng.uniform(-1, 1, 20000), rng.uniform(-800, 800, 20000), rng.standard_normal(5000) * 1e-5,
                        np.exp(rng.uniform(-740, 700, 5000)), [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 5e-324]])
    with np.errstate(all="ignore"):
        wide = x if name == "erf" else x.astype(np.longdouble)
        exact = EXACT[name](wide)
    assert ulps(evaluate(name, TARGETS[limit], x), exact) <= LIMIT64.get(name, 3.0)


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow(dtype, limit):
    rng = np.random.default_rng(0)
    corners = np.array([0.0, -0.0, 1, -1, 2, -2, 3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-30, 1e30, 7, -3], dtype)
    a, b = (v.ravel() for v in np.meshgrid(corners, corners))
    x = np.concatenate([a, rng.uniform(0, 50, 50000).astype(dtype), rng.uniform(-5, 5, 2000).astype(dtype)])
    y = np.concatenate([b, rng.uniform(-20, 20, 50000).astype(dtype), rng.integers(-20, 20, 2000).astype(dtype)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    got = evaluate("pow", TARGETS[limit], x, y)
    assert ulps(got, exact) <= 1.0
    zero = exact == 0
    assert (np.signbit(got[zero]) == np.signbit(exact[zero])).all()


@pytest.mark.parametrize("limit", TARGETS)
def test_the_sign_of_zero_is_kept(limit):
    x = np.array([-0.0, 0.0], np.float32)
    for name in ("expm1", "tanh", "erf", "gelu", "silu", "sin", "tan", "sinh", "atan", "asin", "log1p"):
        for dtype in (np.float32, np.float64):
            assert np.signbit(evaluate(name, TARGETS[limit], x.astype(dtype))).tolist() == [True, False], (name, dtype)


@pytest.mark.parametrize("limit", TARGETS)
def test_half_precision_functions_are_rounded_once(limit):
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        for name in ("exp", "tanh", "log"):
            want = EXACT[name](x.astype(np.float64))
            assert ulps(evaluate(name, TARGETS[limit], x), want) <= 0.51
