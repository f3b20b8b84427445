"""Activation functions, elementwise."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from bcvm.ops import numerics
from bcvm.ops import samples as s
from bcvm.ops.elementwise import FLOATS, elementwise
from bcvm.ops.functions_math import bound, function


def _float_like(x: Any, out: Any) -> Any:
    return np.asarray(out).astype(numerics.floating(x).dtype, copy=False)[()]


def _relu(x: Any) -> Any:
    x = np.asarray(x)
    return np.maximum(x, x.dtype.type(0))


def _relu_ms(x: Any) -> Any:
    x = np.asarray(x)
    return np.where(x > 0, x, x.dtype.type(0))[()]


def _relu_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    return (b.op("where", b.op("gt", x[0], 0), g[0], b.op("mul", g[0], 0)),)


elementwise("relu", ("x",), lambda e, x: e.maximum(x, e.const(0, x.dtype)), _relu, "maximum(x, 0); NaN stays.", dtype="same",
            gradient=_relu_gradient, saves=("operands",))
elementwise("relu_ms", ("x",), lambda e, x: e.select(e.compare("gt", x, e.const(0, x.dtype)), x, e.const(0, x.dtype)), _relu_ms,
            "x > 0 ? x : 0, MindSpore's relu: NaN gives 0.", dtype="same", gradient=_relu_gradient, saves=("operands",))


def _clamped(e: Any, x: Any, low: float, high: float) -> Any:
    return e.minimum(e.maximum(x, e.const(low, x.dtype)), e.const(high, x.dtype))


def _relu6(x: Any) -> Any:
    x = np.asarray(x)
    return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6))


elementwise("relu6", ("x",), lambda e, x: _clamped(e, x, 0, 6), _relu6, "x clipped to 0..6; NaN stays.", dtype="same",
            gradient=lambda b, g, x, y, attrs: (b.op("where", b.op("logical_and", b.op("gt", x[0], 0), b.op("lt", x[0], 6)), g[0], b.op("mul", g[0], 0)),),
            saves=("operands",))

function("sigmoid", numerics.sigmoid, 4, "1 / (1 + exp(-x)).", exact=numerics.sigmoid_exact, flops=16,
         derivative=lambda b, x, y: b.op("mul", y, b.op("sub", 1, y)))


def _silu_derivative(b: Any, x: Any, y: Any) -> Any:
    sig = b.op("sigmoid", x)
    return b.op("add", sig, b.op("mul", y, b.op("sub", 1, sig)))


def _gelu_derivative(b: Any, x: Any, y: Any) -> Any:
    """Phi(x) + x * phi(x)."""
    cumulative = b.op("mul", b.op("add", b.op("erf", b.op("mul", x, math.sqrt(0.5))), 1), 0.5)
    density = b.op("mul", b.op("exp", b.op("mul", b.op("square", x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.op("add", cumulative, b.op("mul", x, density))


def _gelu_tanh_derivative(b: Any, x: Any, y: Any) -> Any:
    """With s = sigmoid(u): s + x * s * (1 - s) * du/dx."""
    k = 2 * math.sqrt(2 / math.pi)
    square = b.op("square", x)
    sig = b.op("sigmoid", b.op("mul", b.op("mul", x, b.op("add", b.op("mul", square, 0.044715), 1)), k))
    slope = b.op("mul", b.op("add", b.op("mul", square, 3 * 0.044715), 1), k)
    return b.op("add", sig, b.op("mul", b.op("mul", b.op("mul", x, sig), b.op("sub", 1, sig)), slope))


# Where the result is a denormal the error of the factor is multiplied by x: the bounds cover it.
function("silu", numerics.silu, 64, "x * sigmoid(x).", ulp64=800, exact=numerics.silu_exact, flops=17, derivative=_silu_derivative)
function("gelu", numerics.gelu, 16, "x * Phi(x), the erf form.", ulp64=64, exact=numerics.gelu_exact, flops=30, derivative=_gelu_derivative)
# The exponent is rounded before exp: the error grows with it.
function("gelu_tanh", numerics.gelu_tanh, 256, "x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh form of gelu.", ulp64=4096,
         exact=numerics.gelu_tanh_exact,
         flops=22, derivative=_gelu_tanh_derivative)


def _softplus(e: Any, x: Any) -> Any:
    return e.add(e.maximum(x, e.const(0, x.dtype)), e.math("log1p", e.math("exp", e.neg(e.abs(x)))))


function("softplus", numerics.softplus, 8, "log(1 + exp(x)).", exact=numerics.softplus_exact, flops=24, expr=_softplus,
         derivative=lambda b, x, y: b.op("sigmoid", x))


def _hsigmoid(x: Any) -> Any:
    x = numerics.floating(x)
    t = x.dtype.type
    return np.minimum(np.maximum(x + t(3), t(0)), t(6)) * t(1 / 6)


def _hsigmoid_expr(e: Any, x: Any) -> Any:
    return e.mul(_clamped(e, e.add(x, e.const(3, x.dtype)), 0, 6), e.const(1 / 6, x.dtype))


def _hswish(x: Any) -> Any:
    x = numerics.floating(x)
    return x * _hsigmoid(x)


function("hsigmoid", _hsigmoid, 2, "relu6(x + 3) / 6.", ulp16=4, expr=_hsigmoid_expr, exact=_hsigmoid, flops=4,
         derivative=lambda b, x, y: b.op("where", b.op("lt", b.op("abs", x), 3.0), 1 / 6, 0.0))
function("hswish", _hswish, 2, "x * relu6(x + 3) / 6.", ulp16=4, expr=lambda e, x: e.mul(x, _hsigmoid_expr(e, x)), exact=_hswish, flops=5,
         derivative=lambda b, x, y: b.op("where", b.op("le", x, -3.0), 0.0, b.op("where", b.op("ge", x, 3.0), 1.0,
                                                                                 b.op("mul", b.op("add", b.op("mul", x, 2), 3), 1 / 6))))


def _leaky_relu(x: Any, alpha: float = 0.01) -> Any:
    x = np.asarray(x)
    return np.where(x > 0, x, x * x.dtype.type(alpha))[()]


elementwise("leaky_relu", ("x",), lambda e, x, alpha=0.01: e.select(e.compare("gt", x, e.const(0, x.dtype)), x, e.mul(x, e.const(alpha, x.dtype))), _leaky_relu,
            "x where positive, else alpha * x.", dtype="same", attrs=("alpha",), domain=FLOATS, bound=bound(0, 0, 1), samples=s.unary(alpha=0.2),
            gradient=lambda b, g, x, y, attrs: (b.op("where", b.op("gt", x[0], 0), g[0], b.op("mul", g[0], attrs.get("alpha", 0.01))),), saves=("operands",))


def _elu(x: Any, alpha: float = 1.0) -> Any:
    x = numerics.floating(x)
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, x.dtype.type(0))))[()]


elementwise("elu", ("x",), lambda e, x, alpha=1.0: e.select(e.compare("gt", x, e.const(0, x.dtype)), x,
                                                            e.mul(e.const(alpha, x.dtype), e.math("expm1", e.minimum(x, e.const(0, x.dtype))))),
            _elu, "x where positive, else alpha * (exp(x) - 1).", dtype="float", attrs=("alpha",), domain=FLOATS, bound=bound(8, 8, 2),
            reference=numerics.exactly(_elu), samples=s.unary(alpha=0.7),
            gradient=lambda b, g, x, y, attrs: (b.op("where", b.op("gt", x[0], 0), g[0], b.op("mul", g[0], b.op("add", y[0], attrs.get("alpha", 1.0)))),),
            saves=("operands", "results"))

