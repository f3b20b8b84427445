"""Mathematical functions, elementwise: exp, log, sin, erf, ... Integers become floating point first."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bcvm.ops import numerics
from bcvm.ops import samples as s
from bcvm.ops.elementwise import FLOATS, elementwise


def bound(float32: float, float64: float, float16: float = 1.0) -> dict[str, float]:
    """Allowed error in ulp."""
    return {"float16": float16, "float32": float32, "float64": float64}


def function(name: str, fn: Callable[..., Any], ulp32: float, doc: str, *, ulp64: float = 4.0, ulp16: float = 1.0, low: float = -8.0, high: float = 8.0,
             expr: Any = None,
             derivative: Any = None, flops: int = 12, exact: Any = None, corners: bool = True) -> None:
    """derivative(b, x, y): the factor of the incoming gradient."""
    gradient = None if derivative is None else lambda b, g, x, y, attrs: (b.op("mul", g[0], derivative(b, x[0], y[0])),)
    elementwise(name, ("x",), expr or (lambda e, x: e.math(name, x)), fn, doc, dtype="float", domain=FLOATS, bound=bound(ulp32, ulp64, ulp16),
                reference=exact or numerics.exactly(fn), samples=s.unary(low, high, corners), gradient=gradient, saves=("operands", "results"), flops=flops)


def _reciprocal(b: Any, x: Any) -> Any:
    return b.op("reciprocal", x)


function("exp", np.exp, 4, "e to the x.", derivative=lambda b, x, y: y)
function("expm1", np.expm1, 6, "exp(x) - 1, exact near 0.", derivative=lambda b, x, y: b.op("add", y, 1))
function("exp2", np.exp2, 4, "2 to the x.", derivative=lambda b, x, y: b.op("mul", y, 0.6931471805599453))
function("log", np.log, 4, "The natural logarithm.", low=0, high=20, derivative=lambda b, x, y: _reciprocal(b, x))
function("log1p", np.log1p, 6, "log(1 + x), exact near 0.", low=-1, high=20, derivative=lambda b, x, y: _reciprocal(b, b.op("add", x, 1)))
function("log2", np.log2, 6, "The logarithm to base 2.", low=0, high=20, derivative=lambda b, x, y: _reciprocal(b, b.op("mul", x, 0.6931471805599453)))
function("log10", np.log10, 6, "The logarithm to base 10.", low=0, high=20, derivative=lambda b, x, y: _reciprocal(b, b.op("mul", x, 2.302585092994046)))
function("sin", np.sin, 4, "The sine.", derivative=lambda b, x, y: b.op("cos", x))
function("cos", np.cos, 4, "The cosine.", derivative=lambda b, x, y: b.op("neg", b.op("sin", x)))
function("tan", np.tan, 8, "The tangent.", derivative=lambda b, x, y: b.op("add", b.op("square", y), 1))
function("sinh", np.sinh, 8, "The hyperbolic sine.", derivative=lambda b, x, y: b.op("cosh", x))
function("cosh", np.cosh, 8, "The hyperbolic cosine.", derivative=lambda b, x, y: b.op("sinh", x))
function("tanh", np.tanh, 4, "The hyperbolic tangent.", derivative=lambda b, x, y: b.op("sub", 1, b.op("square", y)))
function("arctan", np.arctan, 6, "The inverse tangent.", expr=lambda e, x: e.math("atan", x),
         derivative=lambda b, x, y: _reciprocal(b, b.op("add", b.op("square", x), 1)))
function("sqrt", np.sqrt, 0, "The square root.", ulp64=0, low=0, high=50, expr=lambda e, x: e.sqrt(x), exact=np.sqrt, flops=4,
         derivative=lambda b, x, y: b.op("truediv", 0.5, y))
function("reciprocal", lambda x: np.true_divide(1, numerics.floating(x)).astype(numerics.floating(x).dtype)[()], 0, "1 / x.", ulp64=0, expr=lambda e,
         x: e.div(e.const(1, x.dtype), x), flops=4,
         derivative=lambda b, x, y: b.op("neg", b.op("square", y)))


def _rsqrt(x: Any) -> Any:
    x = numerics.floating(x)
    return np.asarray(1 / np.sqrt(x)).astype(x.dtype)[()]


function("rsqrt", _rsqrt, 2, "1 / sqrt(x).", ulp64=2, low=0, high=50, expr=lambda e, x: e.div(e.const(1, x.dtype), e.sqrt(x)), flops=8,
         derivative=lambda b, x, y: b.op("mul", b.op("mul", y, _reciprocal(b, x)), -0.5))
function("erf", numerics.erf, 2, "The error function.", exact=numerics.erf_exact, flops=20,
         derivative=lambda b, x, y: b.op("mul", b.op("exp", b.op("neg", b.op("square", x))), 1.1283791670955126))
