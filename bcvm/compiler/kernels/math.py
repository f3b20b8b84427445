"""Mathematical functions in vector form. Coefficients highest degree first; minimax fits of our own unless a source is named.

float32 in float32: exp, expm1, tanh, sigmoid, log, erf, gelu. float32 in float64 (where a plain form is then accurate enough): the
rest. float64: exp, expm1, log, tanh, sigmoid, gelu. What has no vector form here goes lane by lane through libm.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from bcvm.compiler.kernels import libm, math_tables
from bcvm.compiler.kernels.avx512 import has_tables, masked, suffix
from bcvm.compiler.kernels.vector import HALF, Value, Vector
from bcvm.errors import Unsupported

Fn = Callable[..., Value]
_SINGLE: dict[str, Fn] = {}
_DOUBLE: dict[str, Fn] = {}
_WIDE: dict[str, Fn] = {}  # float64 forms that are accurate enough for float32 only


def emit(e: Vector, name: str, *x: Value) -> Value:
    dtype = x[0].dtype
    if dtype in HALF:
        return e.cast(emit(e, name, *(e.cast(v, "float32") for v in x)), dtype)
    if dtype == "float64":
        return _DOUBLE[name](e, *x) if name in _DOUBLE else libm.call(e, name, *x)
    if dtype != "float32":
        raise Unsupported(f"{name} of {dtype}")
    if name in _SINGLE:
        return _SINGLE[name](e, *x)
    wide = _WIDE.get(name) or _DOUBLE.get(name)
    if wide is None:
        return libm.call(e, name, *x)

    def run(part: Vector, *values: Value) -> Value:
        return part.cast(wide(part, *(part.cast(v, "float64") for v in values)), "float32")
    return e.halves(run, *x) if 8 * e.lanes > e.target.vector_bytes and e.lanes > 1 else run(e, *x)


def k(e: Vector, x: Value, value: float) -> Value:
    return e.const(value, x.dtype)


def horner(e: Vector, coefficients: tuple[float, ...], x: Value) -> Value:
    p = k(e, x, coefficients[0])
    for c in coefficients[1:]:
        p = e.fma(p, x, k(e, x, c))
    return p


def at_most(e: Vector, x: Value, limit: float) -> Value:
    """min(x, limit); NaN stays."""
    c = k(e, x, limit)
    return e.select(e.compare("lt", c, x), c, x)


def at_least(e: Vector, x: Value, limit: float) -> Value:
    c = k(e, x, limit)
    return e.select(e.compare("gt", c, x), c, x)


# -- powers of two


class Power:
    """x * log2(base) split as a whole number n and what remains: `n` as a float, `scale(a)` = a * 2^n, `pow2()` = 2^n for small n."""

    def __init__(self, e: Vector, exponent: Value) -> None:
        self.e, self.dtype = e, exponent.dtype
        double = self.dtype == "float64"
        self.int, self.mantissa, self.bias = ("int64", 52, 1023) if double else ("int32", 23, 127)
        self.suffix = suffix(e, self.dtype)
        if self.suffix:
            self.n = e.rounding("rint", exponent)
            return
        magic = e.const(1.5 * 2.0 ** self.mantissa, self.dtype)  # the sum's low bits are the rounded integer
        shifted = e.add(exponent, magic)
        self.n = e.sub(shifted, magic)
        self.i = e.sub(self._bits(shifted), self._bits(magic))

    def _bits(self, v: Value) -> Value:
        s, i = ("double", "i64") if self.dtype == "float64" else ("float", "i32")
        return Value(self.int, self.e.convert("bitcast", v.ref, s, i))

    def _two_to(self, i: Value) -> Value:
        e = self.e
        bits = e.bit("shl", e.add(i, e.const(self.bias, self.int)), e.const(self.mantissa, self.int))
        s, t = ("double", "i64") if self.dtype == "float64" else ("float", "i32")
        return Value(self.dtype, e.convert("bitcast", bits.ref, t, s))

    def scale(self, a: Value) -> Value:
        e = self.e
        if self.suffix:
            return masked(e, "scalef", self.suffix, a, (e.type_of(a.dtype), self.n.ref))
        half = Value(self.int, e.raw("ashr", "i64" if self.dtype == "float64" else "i32", self.i.ref, e.const(1, self.int).ref))
        return e.mul(e.mul(a, self._two_to(half)), self._two_to(e.sub(self.i, half)))

    def pow2(self) -> Value:
        e = self.e
        return self.scale(e.const(1, self.dtype)) if self.suffix else self._two_to(self.i)


_LN2 = {"float32": (0.693145751953125, math.log(2) - 0.693145751953125), "float64": (0.6931471803691238, 1.9082149292705877e-10)}  # float64: fdlibm
_EXP32 = (0.0013814433477818966, 0.008368796668946743, 0.041668396443128586, 0.1666651964187622, 0.4999999403953552, 1.0, 1.0)
_EXP64 = tuple(1 / math.factorial(i) for i in range(13, -1, -1))


def _reduce(e: Vector, x: Value) -> tuple[Power, Value]:
    p = Power(e, e.mul(x, k(e, x, 1 / math.log(2))))
    high, low = _LN2[x.dtype]
    r = e.fma(p.n, k(e, x, -high), x)
    return p, e.fma(p.n, k(e, x, -low), r)


def _exp_unclamped(e: Vector, x: Value, factor: Value | None = None) -> Value:
    """exp(x) (* factor), the factor applied before 2^n may make a denormal."""
    p, r = _reduce(e, x)
    y = horner(e, _EXP64 if x.dtype == "float64" else _EXP32, r)
    return p.scale(y if factor is None else e.mul(y, factor))


def exp(e: Vector, x: Value) -> Value:
    low, high = (-746.0, 710.0) if x.dtype == "float64" else (-104.5, 89.0)
    return _exp_unclamped(e, at_least(e, at_most(e, x, high), low))


def _expm1_part(e: Vector, r: Value) -> Value:
    q = horner(e, _EXP64[:-2] if r.dtype == "float64" else _EXP32[:5], r)
    return e.fma(e.mul(q, r), r, r)


def expm1(e: Vector, x: Value) -> Value:
    low, high = (-40.0, 710.0) if x.dtype == "float64" else (-20.0, 89.0)
    p, r = _reduce(e, at_least(e, at_most(e, x, high), low))
    q = _expm1_part(e, r)
    # 2^(n-1) is finite where 2^n is not yet needed
    half = k(e, x, 0.5)
    s = p.scale(half)
    y = e.fma(s, q, e.sub(s, half))
    y = e.add(y, y)
    return e.select(e.compare("lt", e.abs(x), k(e, x, 1e-30)), x, y)  # keeps -0 and denormals


def tanh(e: Vector, x: Value) -> Value:
    u = at_most(e, e.abs(x), 20.0 if x.dtype == "float64" else 9.5)
    p, r = _reduce(e, e.add(u, u))
    q, s = _expm1_part(e, r), p.pow2()
    t = e.fma(s, q, e.sub(s, k(e, x, 1)))
    return e.copysign(e.div(t, e.add(t, k(e, x, 2))), x)


def _exp_minus_abs(e: Vector, x: Value) -> Value:
    return exp_low(e, e.neg(e.abs(x)))


def exp_low(e: Vector, x: Value, factor: Value | None = None) -> Value:
    """exp of what is not positive; with a factor up to 1000 in size."""
    return _exp_unclamped(e, at_least(e, x, -760.0 if x.dtype == "float64" else -120.0), factor)


def sigmoid(e: Vector, x: Value) -> Value:
    z, one = _exp_minus_abs(e, x), k(e, x, 1)
    return e.div(e.select(e.compare("lt", x, k(e, x, 0)), z, one), e.add(one, z))


def _times_sigmoid(e: Vector, x: Value, y: Value) -> Value:
    """x * sigmoid(y), where y has the sign of x; accurate where the sigmoid alone is denormal."""
    z, one = _exp_minus_abs(e, y), k(e, x, 1)
    scaled = exp_low(e, e.neg(e.abs(y)), at_least(e, x, -1000.0))
    return e.div(e.select(e.compare("lt", x, k(e, x, 0)), scaled, x), e.add(one, z))


def silu(e: Vector, x: Value) -> Value:
    return _times_sigmoid(e, x, x)


def gelu_tanh(e: Vector, x: Value) -> Value:
    c = 2 * math.sqrt(2 / math.pi)
    u = e.fma(e.mul(x, x), k(e, x, 0.044715 * c), k(e, x, c))
    return _times_sigmoid(e, x, e.mul(u, x))


# -- logarithms


def _mantissa_exponent(e: Vector, x: Value) -> tuple[Value, Value]:
    """x = m * 2^n with m in [0.75, 1.5) for float32, [sqrt(1/2), sqrt(2)) for float64: where the polynomials hold. Without AVX-512 only for positive finite x."""
    form = suffix(e, x.dtype)
    if form:
        m = masked(e, "getmant", form, x, ("i32", "11"))  # interval [0.75, 1.5), NaN for a negative x
        n = e.sub(masked(e, "getexp", form, x), masked(e, "getexp", form, m))
        if x.dtype == "float32":
            return m, n
        large = e.compare("gt", m, k(e, x, math.sqrt(2)))
        return e.select(large, e.mul(m, k(e, x, 0.5)), m), e.select(large, e.add(n, k(e, x, 1)), n)
    double = x.dtype == "float64"
    s, i, name, mantissa = ("double", "i64", "int64", 52) if double else ("float", "i32", "int32", 23)
    tiny = e.compare("lt", x, k(e, x, 2.2250738585072014e-308 if double else 1.1754943508222875e-38))
    normal = e.select(tiny, e.mul(x, k(e, x, 2.0 ** mantissa)), x)
    bits = Value(name, e.convert("bitcast", normal.ref, s, i))
    base = e.const(0x3FE6A09E << 32 if double else 0x3F400000, name)
    n = e.bit("shr", e.sub(bits, base), e.const(mantissa, name))
    m = Value(x.dtype, e.convert("bitcast", e.sub(bits, e.bit("shl", n, e.const(mantissa, name))).ref, i, s))
    if double:  # no packed conversion of 64-bit integers before AVX-512: by the low bits of a large float
        magic = e.const(1.5 * 2.0 ** 52, x.dtype)
        wide = e.add(n, Value(name, e.convert("bitcast", magic.ref, s, i)))
        exponent = e.sub(Value(x.dtype, e.convert("bitcast", wide.ref, i, s)), magic)
    else:
        exponent = e.cast(n, x.dtype)
    return m, e.select(tiny, e.sub(exponent, k(e, x, float(mantissa))), exponent)


def _log_specials(e: Vector, x: Value, y: Value) -> Value:
    if suffix(e, x.dtype):
        return y
    zero, infinity = k(e, x, 0), k(e, x, math.inf)
    y = e.select(e.compare("lt", x, infinity), y, x)  # infinity and NaN
    y = e.select(e.compare("lt", x, zero), k(e, x, math.nan), y)
    return e.select(e.compare("eq", x, zero), k(e, x, -math.inf), y)


_LOG32 = (-0.045079853385686874, 0.10464324057102203, -0.13162074983119965, 0.1447850465774536, -0.1664724498987198, 0.19990846514701843, -0.2500009834766388,
          0.3333345055580139)
# fdlibm's e_log.c (Sun Microsystems)
_LOG64 = (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01, 2.857142874366239149e-01,
          3.999999999940941908e-01, 6.666666666666735130e-01)


def _log32(e: Vector, x: Value) -> Value:
    m, n = _mantissa_exponent(e, x)
    f = e.sub(m, k(e, x, 1))
    high, low = _LN2["float32"]
    p = e.fma(horner(e, _LOG32, f), f, k(e, x, -0.5))
    y = e.add(e.fma(n, k(e, x, low), e.mul(p, e.mul(f, f))), f)
    return _log_specials(e, x, e.fma(n, k(e, x, high), y))


def _log64(e: Vector, x: Value) -> Value:
    m, n = _mantissa_exponent(e, x)
    f = e.sub(m, k(e, x, 1))
    s = e.div(f, e.add(f, k(e, x, 2)))
    z = e.mul(s, s)
    r = e.mul(z, horner(e, _LOG64, z))
    hfsq = e.mul(e.mul(f, f), k(e, x, 0.5))
    high, low = _LN2["float64"]
    inner = e.fma(s, e.add(hfsq, r), e.mul(n, k(e, x, low)))
    y = e.fma(n, k(e, x, high), e.sub(f, e.sub(hfsq, inner)))
    return _log_specials(e, x, y)


# -- erf and gelu

_ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_LARGE = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def _erf32(e: Vector, x: Value) -> Value:
    a = e.abs(x)
    small = e.fma(x, horner(e, _ERF_SMALL, e.mul(x, x)), x)
    t = at_most(e, a, 4.2)
    r = e.fma(horner(e, _ERF_LARGE, t), t, e.neg(t))
    large = e.copysign(e.sub(k(e, x, 1), _exp_unclamped(e, r)), x)
    return e.select(e.compare("gt", a, k(e, x, 0.927734375)), large, small)


_ERFCX32 = (0.0008588077034801245, 0.006941675208508968, -0.015977708622813225, 0.03640361502766609, -0.06661607325077057, 0.09382903575897217,
            -0.10099167376756668, 0.06809256225824356, 0.015377343632280827, -0.1396210491657257, 1.2329951524734497)


_ERFCX64 = (-2.5482082366243262e-09, -4.486627618219198e-09, 3.024913987242867e-08, 7.91418132775221e-08, -1.3241269480545838e-07,
            -5.878135579704522e-07, 3.5527858807661133e-07, 3.4510779591846706e-06, -7.341135947073952e-07, -2.0090730789818978e-05,
            4.951666423851824e-06, 0.00012509647380905652, -0.00010516060791481325, -0.000779831746281349, 0.0018886905247649567,
            0.002529391759457878, -0.023770514937522098, 0.0683080273471108, -0.11927366341422148, 0.12964515870270396, -0.047562294353474845,
            -0.135621106124582, 1.2530080582697303)
# where q = (a - c)/(a + c), its polynomial, and the |x| beyond which Phi(-|x|) is 0
_GELU = {"float32": (4.0, _ERFCX32, 14.7), "float64": (3.0, _ERFCX64, 39.0)}


def _product_error(e: Vector, a: Value, b: Value, product: Value) -> Value:
    """a*b - product, exactly (Dekker's splitting where there is no FMA)."""
    if e.target.fma:
        return e.fma(a, b, e.neg(product))
    factor = k(e, a, 134217729.0 if a.dtype == "float64" else 4097.0)

    def split(v: Value) -> tuple[Value, Value]:
        c = e.mul(v, factor)
        high = e.sub(c, e.sub(c, v))
        return high, e.sub(v, high)
    (ah, al), (bh, bl) = split(a), split(b)
    error = e.sub(e.mul(ah, bh), product)
    return e.add(e.add(e.add(error, e.mul(ah, bl)), e.mul(al, bh)), e.mul(al, bl))


def gelu(e: Vector, x: Value) -> Value:
    """x * Phi(x), without cancellation for a negative x: max(x, 0) - |x| * Phi(-|x|)."""
    a = at_most(e, e.abs(x), _GELU[x.dtype][2])
    x = at_least(e, x, -0.0)
    return math_tables.less_tail(e, x, a) if has_tables(e, x.dtype) else e.sub(x, _normal_tail(e, a))


def _normal_tail(e: Vector, a: Value) -> Value:
    """a * Phi(-a), where Phi(-a) = exp(-a^2/2) * erfcx(a/sqrt 2) / 2. Two divisions, which run beside the multiplications; by one, or by an estimate and
    Newton's step, it takes longer (measured on Zen 4)."""
    centre, coefficients, _ = _GELU[a.dtype]
    c = k(e, a, centre * math.sqrt(2))  # q and g in terms of a/sqrt 2, both fractions widened by sqrt 2
    q = e.div(e.sub(a, c), e.add(a, c))
    g = e.div(horner(e, tuple(0.5 * p for p in coefficients), q), e.fma(a, k(e, a, math.sqrt(2)), k(e, a, 1)))
    return e.mul(a, e.mul(_exp_minus_half_square(e, a), g))


def _exp_minus_half_square(e: Vector, a: Value) -> Value:
    """exp(-a^2/2): what the square loses by rounding, times as much, would show in the result."""
    h = e.mul(a, k(e, a, 0.5))
    s = e.mul(h, a)
    if not e.target.fma:
        v = _exp_unclamped(e, e.neg(s))
        return e.sub(v, e.mul(_product_error(e, h, a, s), v))
    p = Power(e, e.mul(s, k(e, a, -1 / math.log(2))))
    high, low = _LN2[a.dtype]
    rest = e.fma(h, a, e.mul(p.n, k(e, a, high)))  # the second product is exact, the first is not rounded
    r = e.fma(p.n, k(e, a, -low), e.neg(rest))
    return p.scale(horner(e, _EXP64 if a.dtype == "float64" else _EXP32, r))


# -- functions of float32 that are evaluated in float64


def _log1p(e: Vector, x: Value) -> Value:
    series = e.mul(x, horner(e, (1 / 3, -0.5, 1.0), x))
    return e.select(e.compare("lt", e.abs(x), k(e, x, 1e-4)), series, _log64(e, e.add(x, k(e, x, 1))))


def _sinh(e: Vector, x: Value) -> Value:
    z = exp(e, x)
    y = e.mul(e.sub(z, e.div(k(e, x, 1), z)), k(e, x, 0.5))
    q = e.mul(x, x)
    series = e.mul(x, horner(e, (1 / 362880, 1 / 5040, 1 / 120, 1 / 6, 1.0), q))
    return e.select(e.compare("lt", e.abs(x), k(e, x, 0.5)), series, y)


def _cosh(e: Vector, x: Value) -> Value:
    z = exp(e, x)
    return e.mul(e.add(z, e.div(k(e, x, 1), z)), k(e, x, 0.5))


def _pow(e: Vector, x: Value, y: Value) -> Value:
    """C's pow: exp(y * log|x|), then sign and special cases."""
    zero, one, infinity = k(e, x, 0), k(e, x, 1), k(e, x, math.inf)
    size = e.abs(x)
    t = e.mul(y, _log64(e, size))
    z = exp(e, t)
    whole = e.compare("eq", e.rounding("rint", y), y)
    half = e.mul(y, k(e, x, 0.5))
    odd = e.bit("and", whole, e.compare("ne", e.rounding("rint", half), half))
    negative = e.compare("lt", e.copysign(one, x), zero)
    z = e.select(e.bit("and", odd, negative), e.neg(z), z)
    root = e.bit("and", e.bit("and", e.compare("lt", x, zero), e.compare("lt", size, infinity)), e.bit("and", e.compare("ne", e.abs(y), infinity), e.invert(whole)))
    z = e.select(root, k(e, x, math.nan), z)
    unit = e.bit("or", e.compare("eq", x, one), e.compare("eq", y, zero))
    unit = e.bit("or", unit, e.bit("and", e.compare("eq", size, one), e.compare("eq", e.abs(y), infinity)))
    return e.select(unit, one, z)


# Taylor coefficients: |r| <= pi/4, the error is far below float32's
_SIN = tuple((-1.0) ** i / math.factorial(2 * i + 1) for i in range(6, -1, -1))
_COS = tuple((-1.0) ** i / math.factorial(2 * i) for i in range(7, -1, -1))
_FAR = 2.0 ** 20


def _quadrant(e: Vector, x: Value) -> tuple[Value, Value, Value]:
    """sin r, cos r and the number of the quadrant, r = x - n*pi/2 (two parts of pi/2)."""
    near = e.select(e.compare("lt", e.abs(x), k(e, x, _FAR)), x, k(e, x, 0))
    magic = k(e, x, 1.5 * 2.0 ** 52)
    shifted = e.fma(near, k(e, x, 2 / math.pi), magic)
    n = e.sub(shifted, magic)
    r = e.fma(n, k(e, x, -1.57079632673412561417), near)  # 33 bits of pi/2 and the rest (fdlibm's split): exact products with n
    r = e.fma(n, k(e, x, -6.07710050650619224932e-11), r)
    z = e.mul(r, r)
    bits = Value("int64", e.convert("bitcast", shifted.ref, "double", "i64"))
    return e.mul(r, horner(e, _SIN, z)), horner(e, _COS, z), bits


def _far(e: Vector, name: str, x: Value, y: Value) -> Value:
    """Lanes too far from 0 (and infinities, NaN) through libm: all lanes of a vector that has one."""
    far = e.invert(e.compare("lt", e.abs(x), k(e, x, _FAR)))
    f, t = e.f, e.type_of(x.dtype)
    slow, done = f.fresh("far"), f.fresh("near")
    before = f.block
    f.branch(e.any(far.ref), slow, done)
    f.label(slow)
    exact = libm.call(e, name, x)
    f.jump(done)
    f.label(done)
    return Value(x.dtype, f.op(f"phi {t} [ {y.ref}, %{before} ], [ {exact.ref}, %{slow} ]"))


def _trigonometric(name: str, first: int) -> Fn:
    def emit_one(e: Vector, x: Value) -> Value:
        s, c, n = _quadrant(e, x)
        one = e.const(1, "int64")
        n = e.add(n, e.const(first, "int64"))
        odd = e.compare("ne", e.bit("and", n, one), e.const(0, "int64"))
        y = e.select(odd, c, s)
        minus = e.compare("ne", e.bit("and", n, e.const(2, "int64")), e.const(0, "int64"))
        return _far(e, name, x, e.select(minus, e.neg(y), y))
    return emit_one


def _tan(e: Vector, x: Value) -> Value:
    s, c, n = _quadrant(e, x)
    odd = e.compare("ne", e.bit("and", n, e.const(1, "int64")), e.const(0, "int64"))
    return _far(e, "tan", x, e.div(e.select(odd, e.neg(c), s), e.select(odd, s, c)))


# fdlibm's s_atan.c (Sun Microsystems), for |x| <= 7/16
_ATAN = (1.62858201153657823623e-02, -3.65315727442169155270e-02, 4.97687799461593236017e-02, -5.83357013379057348645e-02, 6.66107313738753120669e-02,
         -7.69187620504482999495e-02, 9.09088713343650656196e-02, -1.11111104054623557880e-01, 1.42857142725034663711e-01, -1.99999999998764832476e-01,
         3.33333333333329318027e-01)


def _atan(e: Vector, x: Value) -> Value:
    """atan(a) = b + atan(t) with |t| < 7/16: t = -1/a over 2.4375, (a - 1)/(a + 1) over 0.4375."""
    a, one = e.abs(x), k(e, x, 1)
    over, middle = e.compare("gt", a, k(e, x, 2.4375)), e.compare("gt", a, k(e, x, 0.4375))
    numerator = e.select(over, k(e, x, -1), e.select(middle, e.sub(a, one), a))
    denominator = e.select(over, a, e.select(middle, e.add(a, one), one))
    t = e.div(numerator, denominator)
    base = e.select(over, k(e, x, math.pi / 2), e.select(middle, k(e, x, math.pi / 4), k(e, x, 0)))
    z = e.mul(t, t)
    return e.copysign(e.add(base, e.sub(t, e.mul(t, e.mul(z, horner(e, _ATAN, z))))), x)


def _asin(e: Vector, x: Value) -> Value:
    root = e.sqrt(e.mul(e.sub(k(e, x, 1), x), e.add(k(e, x, 1), x)))
    return _atan(e, e.div(x, root))


def _acos(e: Vector, x: Value) -> Value:
    root = e.sqrt(e.div(e.sub(k(e, x, 1), x), e.add(k(e, x, 1), x)))
    y = _atan(e, root)
    return e.add(y, y)


def _scaled(fn: Fn, factor: float) -> Fn:
    def emit_one(e: Vector, x: Value) -> Value:
        y = fn(e, x)
        return e.mul(y, k(e, y, factor))
    return emit_one


def _exp2(e: Vector, x: Value) -> Value:
    return exp(e, e.mul(x, k(e, x, math.log(2))))


_SINGLE.update(exp=exp, expm1=expm1, tanh=tanh, sigmoid=sigmoid, silu=silu, gelu_tanh=gelu_tanh, log=_log32, erf=_erf32, gelu=gelu)
_DOUBLE.update(exp=exp, expm1=expm1, tanh=tanh, sigmoid=sigmoid, silu=silu, gelu_tanh=gelu_tanh, gelu=gelu, log=_log64)
_WIDE.update(log1p=_log1p, log2=_scaled(_log64, 1 / math.log(2)), log10=_scaled(_log64, 1 / math.log(10)), exp2=_exp2, sinh=_sinh, cosh=_cosh, pow=_pow,
             sin=_trigonometric("sin", 0), cos=_trigonometric("cos", 1), tan=_tan, atan=_atan, asin=_asin, acos=_acos)
