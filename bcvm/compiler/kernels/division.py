"""Floor division and modulo with NumPy's semantics; nothing traps, whatever the divisor."""
from __future__ import annotations

from bcvm.bytecode import dtypes
from bcvm.compiler.kernels.libm import call
from bcvm.compiler.kernels.vector import Value, Vector, held_type


def floordiv(e: Vector, a: Value, b: Value) -> Value:
    return _floats(e, a, b)[0] if dtypes.is_float(a.dtype) else _integers(e, a, b)[0]


def mod(e: Vector, a: Value, b: Value) -> Value:
    return _floats(e, a, b)[1] if dtypes.is_float(a.dtype) else _integers(e, a, b)[1]


def _integers(e: Vector, a: Value, b: Value) -> tuple[Value, Value]:
    """x // 0 and x % 0 are 0; the smallest integer // -1 is itself."""
    if a.dtype == "bool":
        out = _integers(e, e.cast(a, "int8"), e.cast(b, "int8"))
        return out
    dtype, signed = a.dtype, dtypes.kind(a.dtype) == "i"
    zero, one = e.const(0, dtype), e.const(1, dtype)
    by_zero = e.compare("eq", b, zero)
    refused = by_zero
    if signed:
        overflow = e.bit("and", e.compare("eq", b, e.const(-1, dtype)), e.compare("eq", a, e.const(-1 << (8 * dtypes.itemsize(dtype) - 1), dtype)))
        refused = e.bit("or", by_zero, overflow)
    safe = e.select(refused, one, b)
    if dtypes.itemsize(dtype) <= 4:  # a quotient of doubles, cut to an integer, is exact for 32-bit integers
        s = held_type(dtype)
        up, down = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
        ratio = e.raw("fdiv", "double", e.convert(up, a.ref, s, "double"), e.convert(up, safe.ref, s, "double"))
        q = Value(dtype, e.convert(down, ratio, "double", s))
    else:
        q = Value(dtype, e.raw("sdiv" if signed else "udiv", held_type(dtype), a.ref, safe.ref))
    r = e.sub(a, e.mul(q, safe))
    if signed:
        wrong = e.bit("and", e.compare("ne", r, zero), e.compare("lt", e.bit("xor", r, safe), zero))
        q = e.select(wrong, e.sub(q, one), q)
        r = e.select(wrong, e.add(r, safe), r)
    return e.select(by_zero, zero, q), e.select(by_zero, zero, r)


def _floats(e: Vector, a: Value, b: Value) -> tuple[Value, Value]:
    """As npy_divmod: from the exact remainder of fmod."""
    if a.dtype in ("float16", "bfloat16"):
        wide = _floats(e, e.cast(a, "float32"), e.cast(b, "float32"))
        return e.cast(wide[0], a.dtype), e.cast(wide[1], a.dtype)
    zero, one = e.const(0, a.dtype), e.const(1, a.dtype)
    ratio = e.div(a, b)
    remainder = call(e, "fmod", a, b)
    differs = e.compare("ne", remainder, zero)
    opposite = e.bit("xor", e.compare("lt", b, zero), e.compare("lt", remainder, zero))
    wrong = e.bit("and", differs, opposite)
    q = e.div(e.sub(a, remainder), b)
    q = e.select(wrong, e.sub(q, one), q)
    r = e.select(differs, e.select(wrong, e.add(remainder, b), remainder), e.copysign(zero, b))
    whole = e.rounding("floor", q)
    whole = e.select(e.compare("gt", e.sub(q, whole), e.const(0.5, a.dtype)), e.add(whole, one), whole)
    q = e.select(e.compare("ne", q, zero), whole, e.copysign(zero, ratio))
    by_zero = e.compare("eq", b, zero)
    return e.select(by_zero, ratio, q), e.select(by_zero, remainder, r)
