"""Arithmetic, comparison, logic and bit ops: one value per element of the broadcast operands."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.ops import large
from bcvm.ops import samples as s
from bcvm.ops.definition import Composite, Op, ScalarExpr, register
from bcvm.ops.shaperules import elementwise_cost

_fn: Any  # the loops over families rebind it
FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + ("bool",)
EXACT = {name: 0.0 for name in ALL}


def elementwise(name: str, operands: tuple[str, ...], expr: Callable[..., Any], function: Callable[..., Any], doc: str, *, dtype: str = "promote",
                domain: tuple[str, ...] = NUMBERS, bound: dict[str, float] = EXACT, reference: Callable[..., Any] | None = None,
                samples: Any = None, gradient: Any = None, saves: tuple[str, ...] = (), attrs: tuple[str, ...] = (), flops: int = 1) -> Op:
    """Register a ScalarExpr op. `function` is the eager form; where it is a ufunc, it also gives NumPy's dtype rule."""
    eager = function if isinstance(function, np.ufunc) or len(operands) > 1 or attrs else large.pointwise(name, function)
    default_samples = s.unary() if len(operands) == 1 else s.binary()
    return register(Op(
        name, operands, ScalarExpr(expr), dtype=dtype, reference=_quiet(reference or function), eager=eager, attrs=attrs, domain=domain, bound=bound,
        samples=samples or default_samples, gradient=gradient, saves=saves,
        cost=lambda *dims, **_: elementwise_cost(*dims, flops=flops), doc=doc))


def _quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Native code raises no floating-point warnings; nor does a reference."""
    def reference(*arrays: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*arrays, **attrs)
    return reference


def scalar_if_0d(x: Any) -> Any:
    """As ufuncs do: rank 0 as a NumPy scalar."""
    return x[()]


def unreduced(b: Any, grad: Any, like: Any) -> Any:
    """A gradient summed back to the dims of the operand that was broadcast."""
    return b.op("sum_to", grad, like)


# -- arithmetic

_AB = ("a", "b")


def _add(e: Any, a: Any, b: Any) -> Any:
    return e.bit("or", a, b) if a.dtype == "bool" else e.add(a, b)


def _mul(e: Any, a: Any, b: Any) -> Any:
    return e.bit("and", a, b) if a.dtype == "bool" else e.mul(a, b)


elementwise("add", _AB, _add, np.add, "a + b; of bools, or.", domain=ALL,
            gradient=lambda b, g, x, y, attrs: (unreduced(b, g[0], x[0]), unreduced(b, g[0], x[1])), saves=("operands",))
elementwise("sub", _AB, lambda e, a, b: e.sub(a, b), np.subtract, "a - b.",
            gradient=lambda b, g, x, y, attrs: (unreduced(b, g[0], x[0]), unreduced(b, b.op("neg", g[0]), x[1])), saves=("operands",))
elementwise("mul", _AB, _mul, np.multiply, "a * b; of bools, and.", domain=ALL,
            gradient=lambda b, g, x, y, attrs: (unreduced(b, b.op("mul", g[0], x[1]), x[0]), unreduced(b, b.op("mul", g[0], x[0]), x[1])), saves=("operands",))
elementwise("truediv", _AB, lambda e, a, b: e.div(a, b), np.true_divide, "a / b, floating point.", dtype="float", domain=FLOATS,
            gradient=lambda b, g, x, y, attrs: (unreduced(b, b.op("truediv", g[0], x[1]), x[0]),
                                                unreduced(b, b.op("neg", b.op("truediv", b.op("mul", g[0], y[0]), x[1])), x[1])), saves=("operands", "results"))
elementwise("floordiv", _AB, lambda e, a, b: e.floordiv(a, b), np.floor_divide, "a // b, rounded down; an integer divided by 0 is 0.")
elementwise("mod", _AB, lambda e, a, b: e.mod(a, b), np.remainder, "a % b with the sign of b; an integer modulo 0 is 0.")


def _integer_pow(e: Any, a: Any, b: Any) -> Any:
    """By squaring, over the bits of the exponent; a negative one is handled by the caller."""
    one, zero = e.const(1, a.dtype), e.const(0, a.dtype)
    result, base, rest = one, a, b
    for _ in range(8 * dtypes.itemsize(a.dtype) - (dtypes.kind(a.dtype) == "i")):
        odd = e.compare("ne", e.bit("and", rest, one), zero)
        result = e.select(odd, e.mul(result, base), result)
        base, rest = e.mul(base, base), e.bit("shr", rest, one)
    return result


def _pow(e: Any, a: Any, b: Any) -> Any:
    if dtypes.is_float(a.dtype):
        return e.math("pow", a, b)
    return _integer_pow(e, a, b)


def _pow_reference(a: Any, b: Any) -> Any:
    if np.result_type(a, b).kind == "f" and np.result_type(a, b).itemsize < 8:
        return np.asarray(np.power(np.asarray(a, np.float64), np.asarray(b, np.float64))).astype(np.result_type(a, b))[()]
    return np.power(a, b)


def _pow_samples(rng: Any, dtype: str) -> Any:
    low = 0 if dtype in INTEGERS else -3
    yield from s.binary(low=0 if low < 0 else -4, high=6, low2=low, high2=3, corners=dtype in FLOATS)(rng, dtype)


elementwise("pow", _AB, _pow, np.power, "a ** b; of integers, wrapping (a negative integer exponent is an error of NumPy).",
            reference=_pow_reference, samples=_pow_samples, flops=20, bound={**EXACT, "float16": 1, "float32": 4, "float64": 4},
            gradient=lambda b, g, x, y, attrs: (unreduced(b, b.op("mul", g[0], b.op("mul", x[1], b.op("pow", x[0], b.op("sub", x[1], 1)))), x[0]),
                                                unreduced(b, b.op("mul", g[0], b.op("mul", y[0], b.op("log", x[0]))), x[1])), saves=("operands", "results"))


def _pow_ms(e: Any, a: Any, b: Any) -> Any:
    """Integer powers with a negative exponent: 1/a**-b cut to an integer, as MindSpore has it."""
    if dtypes.is_float(a.dtype):
        return e.math("pow", a, b)
    zero, one = e.const(0, a.dtype), e.const(1, a.dtype)
    if dtypes.kind(a.dtype) == "u":
        return _integer_pow(e, a, b)
    minus = e.neg(one)
    even = e.compare("eq", e.bit("and", b, one), zero)
    unit = e.select(e.compare("eq", a, one), one, e.select(e.compare("eq", a, minus), e.select(even, one, minus), zero))
    return e.select(e.compare("lt", b, zero), unit, _integer_pow(e, a, b))


def _pow_ms_eager(a: Any, b: Any) -> Any:
    if np.result_type(a, b).kind != "i":
        return np.power(a, b)
    a, b = np.broadcast_arrays(a, b)
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, unit, np.power(a, np.maximum(b, 0))).astype(a.dtype)[()]


elementwise("pow_ms", _AB, _pow_ms, _pow_ms_eager, "a ** b as in MindSpore: integers with a negative exponent give 1, -1 or 0.", flops=20,
            reference=lambda a, b: _pow_reference(a, b) if np.result_type(a, b).kind == "f" else _pow_ms_eager(a, b),
            bound={**EXACT, "float16": 1, "float32": 4, "float64": 4}, samples=s.binary(low=-4, high=4, low2=-3, high2=3, corners=False),
            domain=FLOATS + ("int8", "int16", "int32", "int64"))


def _limit(dtype: str, which: str) -> int:
    return int(getattr(np.iinfo(dtype), which))


def _floordiv_ms(e: Any, a: Any, b: Any) -> Any:
    if dtypes.is_float(a.dtype):
        return e.floordiv(a, b)
    zero = e.const(0, a.dtype)
    limit = e.select(e.compare("gt", a, zero), e.const(_limit(a.dtype, "max"), a.dtype),
                     e.select(e.compare("lt", a, zero), e.const(_limit(a.dtype, "min"), a.dtype), zero))
    return e.select(e.compare("eq", b, zero), limit, e.floordiv(a, b))


def _floordiv_ms_eager(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        out = np.floor_divide(a, b)
    if out.dtype.kind not in "iu":
        return out
    info = np.iinfo(out.dtype)
    return np.where(np.equal(b, 0), np.where(np.greater(a, 0), info.max, np.where(np.less(a, 0), info.min, 0)).astype(out.dtype), out)[()]


elementwise("floordiv_ms", _AB, _floordiv_ms, _floordiv_ms_eager, "a // b as in MindSpore: an integer divided by 0 is the largest or smallest one.",
            domain=FLOATS + ("int8", "int16", "int32", "int64"))


def _mod_ms(e: Any, a: Any, b: Any) -> Any:
    if dtypes.is_float(a.dtype):
        return e.mod(a, b)
    limit = _limit(a.dtype, "min") if dtypes.itemsize(a.dtype) >= 4 else 0
    return e.select(e.compare("eq", b, e.const(0, a.dtype)), e.const(limit, a.dtype), e.mod(a, b))


def _mod_ms_eager(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        out = np.remainder(a, b)
    if out.dtype.kind != "i":
        return out
    limit = np.iinfo(out.dtype).min if out.dtype.itemsize >= 4 else 0
    return np.where(np.equal(b, 0), np.array(limit, out.dtype), out)[()]


elementwise("mod_ms", _AB, _mod_ms, _mod_ms_eager, "a % b as in MindSpore: an int32 or int64 modulo 0 is the smallest one.",
            domain=FLOATS + ("int8", "int16", "int32", "int64"))

elementwise("neg", ("x",), lambda e, x: e.neg(x), np.negative, "-x.", gradient=lambda b, g, x, y, attrs: (b.op("neg", g[0]),))
elementwise("pos", ("x",), lambda e, x: x, np.positive, "+x.", gradient=lambda b, g, x, y, attrs: (g[0],))
elementwise("abs", ("x",), lambda e, x: x if x.dtype == "bool" else e.abs(x), np.absolute, "The absolute value.", domain=ALL,
            gradient=lambda b, g, x, y, attrs: (b.op("mul", g[0], b.op("sign", x[0])),), saves=("operands",))
elementwise("square", ("x",), lambda e, x: e.mul(x, x), np.square, "x * x.",
            gradient=lambda b, g, x, y, attrs: (b.op("mul", g[0], b.op("mul", x[0], 2)),), saves=("operands",))


def _sign(e: Any, x: Any) -> Any:
    zero, one = e.const(0, x.dtype), e.const(1, x.dtype)
    if dtypes.kind(x.dtype) == "u":
        return e.select(e.compare("gt", x, zero), one, zero)
    out = e.select(e.compare("gt", x, zero), one, e.select(e.compare("lt", x, zero), e.neg(one), zero))
    return e.select(e.compare("ne", x, x), x, out) if dtypes.is_float(x.dtype) else out


elementwise("sign", ("x",), _sign, np.sign, "-1, 0 or 1; NaN stays.")


def _sign_ms(e: Any, x: Any) -> Any:
    zero, one = e.const(0, x.dtype), e.const(1, x.dtype)
    return e.select(e.compare("gt", x, zero), one, e.select(e.compare("lt", x, zero), e.neg(one), zero))


elementwise("sign_ms", ("x",), _sign_ms, lambda x: cast_array(np.where(np.isnan(x), 0, np.sign(x)), np.asarray(x).dtype)[()],
            "-1, 0 or 1 as in MindSpore: 0 for NaN.", domain=FLOATS + ("int8", "int16", "int32", "int64"))

# -- extremes

def _extreme_gradient(how: str) -> Any:
    def gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
        first = b.op(how, x[0], x[1])
        zero = b.op("mul", g[0], 0)
        return unreduced(b, b.op("where", first, g[0], zero), x[0]), unreduced(b, b.op("where", first, zero, g[0]), x[1])
    return gradient


def _logical_extreme(method: str, bits: str) -> Any:
    return lambda e, a, b: e.bit(bits, a, b) if a.dtype == "bool" else getattr(e, method)(a, b)


elementwise("maximum", _AB, _logical_extreme("maximum", "or"), np.maximum, "The larger; NaN if either is.", domain=ALL,
            gradient=_extreme_gradient("ge"), saves=("operands",))
elementwise("minimum", _AB, _logical_extreme("minimum", "and"), np.minimum, "The smaller; NaN if either is.", domain=ALL,
            gradient=_extreme_gradient("le"), saves=("operands",))
elementwise("fmax", _AB, _logical_extreme("fmax", "or"), np.fmax, "The larger; NaN only if both are.", domain=ALL)
elementwise("fmin", _AB, _logical_extreme("fmin", "and"), np.fmin, "The smaller; NaN only if both are.", domain=ALL)
elementwise("maximum_ms", _AB, lambda e, a, b: e.select(e.compare("gt", a, b), a, b), lambda a, b: scalar_if_0d(np.where(np.greater(a, b), a, b)),
            "a > b ? a : b, MindSpore's maximum: b where either is NaN.", gradient=_extreme_gradient("gt"), saves=("operands",))
elementwise("minimum_ms", _AB, lambda e, a, b: e.select(e.compare("lt", a, b), a, b), lambda a, b: scalar_if_0d(np.where(np.less(a, b), a, b)),
            "a < b ? a : b, MindSpore's minimum: b where either is NaN.", gradient=_extreme_gradient("lt"), saves=("operands",))
def _clip_samples(rng: Any, dtype: str) -> Any:
    for x, low, high in (((7,), (), ()), ((3, 4), (4,), (3, 1)), ((0,), (), ()), ((), (), ())):
        yield (s.values(rng, dtype, x), s.values(rng, dtype, low, -4, 0), s.values(rng, dtype, high, 1, 4)), {}
    if dtype in FLOATS:
        yield (s.special(dtype), np.array(-1, dtype), np.array(1, dtype)), {}


elementwise("clip", ("x", "low", "high"), lambda e, x, low, high: e.minimum(e.maximum(x, low), high), np.clip, "minimum(maximum(x, low), high).",
            samples=_clip_samples,
            gradient=lambda b, g, x, y, attrs: (unreduced(b, b.op("where", b.op("eq", x[0], y[0]), g[0], b.op("mul", g[0], 0)), x[0]), None, None),
            saves=("operands", "results"))


def _where_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    zero = b.op("mul", g[0], 0)
    return None, unreduced(b, b.op("where", x[0], g[0], zero), x[1]), unreduced(b, b.op("where", x[0], zero, g[0]), x[2])


elementwise("where", ("condition", "a", "b"), lambda e, c, a, b: e.select(c, a, b), lambda c, a, b: scalar_if_0d(np.where(c, a, b)), "condition ? a : b.",
            domain=ALL,
            samples=s.ternary, gradient=_where_gradient, saves=("operands",))
elementwise("copysign", _AB, lambda e, a, b: e.copysign(a, b), np.copysign, "|a| with the sign of b.", dtype="float", domain=FLOATS)

# -- rounding

for _name, _fn, _doc in (("floor", np.floor, "Rounded down."), ("ceil", np.ceil, "Rounded up."), ("trunc", np.trunc, "Rounded towards 0."),
                         ("rint", np.rint, "Rounded to the nearest integer, halves to even.")):
    elementwise(_name, ("x",), lambda e, x, mode=_name: e.rounding(mode, x) if dtypes.is_float(x.dtype) else x, _fn, _doc,
                dtype="float", domain=FLOATS)

# -- comparison and logic

for _name, _fn in (("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal)):
    elementwise(_name, _AB, lambda e, a, b, how=_name: e.compare(how, a, b), _fn, f"Comparison {_name}; NaN is not equal to anything.", dtype="bool",
                domain=ALL)


def _truth(e: Any, x: Any) -> Any:
    return e.cast(x, "bool")


for _name, _bits, _fn in (("logical_and", "and", np.logical_and), ("logical_or", "or", np.logical_or), ("logical_xor", "xor", np.logical_xor)):
    elementwise(_name, _AB, lambda e, a, b, how=_bits: e.bit(how, _truth(e, a), _truth(e, b)), _fn, f"{_name} of truth values.", dtype="bool", domain=ALL)
elementwise("logical_not", ("x",), lambda e, x: e.bit("xor", _truth(e, x), e.const(True, "bool")), np.logical_not, "Not x.", dtype="bool", domain=ALL)

_WHOLE = INTEGERS + ("bool",)
for _name, _fn in (("and_", np.bitwise_and), ("or_", np.bitwise_or), ("xor", np.bitwise_xor)):
    elementwise(_name, _AB, lambda e, a, b, how=_name: e.bit(how.strip("_"), a, b), _fn, f"Bitwise {_name.strip('_')}.", domain=_WHOLE)
elementwise("invert", ("x",), lambda e, x: e.bit("xor", x, e.const(True, "bool")) if x.dtype == "bool" else e.invert(x), np.invert,
            "Bitwise not; of bools, not.", domain=_WHOLE)


def _shift(how: str) -> Any:
    """NumPy defines shifts by the width or more, and by negative counts: everything is shifted out."""
    def expr(e: Any, a: Any, b: Any) -> Any:
        bits = 8 * dtypes.itemsize(a.dtype)
        zero, most = e.const(0, a.dtype), e.const(bits - 1, a.dtype)
        inside = e.compare("le", b, most)
        if dtypes.kind(a.dtype) == "i":
            inside = e.bit("and", inside, e.compare("ge", b, zero))
        shifted = e.bit(how, a, e.select(inside, b, zero))
        out = e.bit("shr", a, most) if how == "shr" and dtypes.kind(a.dtype) == "i" else zero
        return e.select(inside, shifted, out)
    return expr


elementwise("lshift", _AB, _shift("shl"), np.left_shift, "a << b.", domain=INTEGERS, samples=s.binary(high2=40, low2=0))
elementwise("rshift", _AB, _shift("shr"), np.right_shift, "a >> b.", domain=INTEGERS, samples=s.binary(high2=40, low2=0))

elementwise("isnan", ("x",), lambda e, x: e.compare("ne", x, x), np.isnan, "Whether x is NaN.", dtype="bool", domain=ALL)


def _isinf(e: Any, x: Any) -> Any:
    if not dtypes.is_float(x.dtype):
        return e.compare("ne", x, x)
    return e.compare("eq", e.abs(x), e.const(float("inf"), x.dtype))


def _isfinite(e: Any, x: Any) -> Any:
    if not dtypes.is_float(x.dtype):
        return e.compare("eq", x, x)
    return e.compare("lt", e.abs(x), e.const(float("inf"), x.dtype))


elementwise("isinf", ("x",), _isinf, np.isinf, "Whether x is an infinity.", dtype="bool", domain=ALL)
elementwise("isfinite", ("x",), _isfinite, np.isfinite, "Whether x is neither NaN nor an infinity.", dtype="bool", domain=ALL)

# -- cast


def _cast_samples(rng: Any, dtype: str) -> Any:
    """What C leaves undefined (NaN and large numbers to integers) is left out."""
    for to in ALL:
        for shape in ((33,), ()):
            yield (s.values(rng, dtype, shape, 0 if to.startswith("u") else -8, 100),), {"dtype": to}
    if dtype in FLOATS:
        for to in FLOATS + ("bool",):
            yield (s.special(dtype),), {"dtype": to}


def cast_array(x: Any, dtype: Any) -> Any:
    """As astype, an array of rank 0 stays one."""
    with np.errstate(all="ignore"):
        out = np.asarray(x).astype(dtype, copy=False)
        return out if isinstance(x, np.ndarray) else out[()]


elementwise("cast", ("x",), lambda e, x, dtype: e.cast(x, dtype), cast_array, "x with another dtype, as NumPy's astype.", dtype="explicit", attrs=("dtype",),
            domain=ALL, samples=_cast_samples, gradient=lambda b, g, x, y, attrs: (b.cast(g[0], b.dtype(x[0])),), saves=("operands",))
register(Op("cast_fp16", ("x",), Composite(lambda b, x: b.cast(x, "float16")), dtype="explicit", reference=lambda x: cast_array(x, "float16"), domain=FLOATS,
            bound=EXACT, samples=s.unary(), cost=lambda x, **_: elementwise_cost(x), doc="x as float16; what FUSED_ADD_RELU_CAST_FP16 ends with."))
