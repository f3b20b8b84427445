"""Functions in float32 by tables of 32 numbers, where a vector's lanes are looked up in one instruction, beside the multiplications: polynomials of low
degree instead of divisions and of higher degrees (table-driven exp: P. T. P. Tang, ACM Transactions on Mathematical Software 15(2), 1989)."""
from __future__ import annotations

import math
from functools import cache

import numpy as np

from bcvm.compiler.kernels.avx512 import TABLE, lookup
from bcvm.compiler.kernels.vector import Value, Vector

_LN2_HIGH = 355 / 512  # its product with a multiple of 1/32 below 256 is exact
_LN2_LOW = math.log(2) - _LN2_HIGH
_EXP = (0.49999413, 1.00001173, 1.0)  # exp(r) for |r| <= ln(2)/64 within 8.5e-8
_RANGE = 64  # results are wanted down to 2^-149, by factors that are no denormals: what is small is first 2^64 times as large


@cache
def _powers() -> tuple[float, ...]:
    """2^(64 + i/32) without the i that a multiple of 1/32 adds, which is shifted so that its whole part comes to the exponent."""
    powers = np.float32(2.0) ** (_RANGE + np.arange(TABLE) / TABLE).astype(np.float32)
    return tuple((powers.view(np.int32) - (np.arange(TABLE, dtype=np.int32) << 18)).view(np.float32).tolist())


@cache
def _erfcx_half() -> tuple[tuple[float, ...], ...]:
    """erfcx(a / sqrt 2) / 2 in 32 segments, eighths of a power of two of a + 1 from 1 to 16: the tables of the coefficients of t^4, ..., 1, where t is how
    far a + 1 is in its segment. They interpolate at the nodes of Chebyshev. The place in a table is what the 5 bits of a + 1, as a float, say that
    tell the segment."""
    nodes = (1 - np.cos(np.pi * (np.arange(5) + 0.5) / 5)) / 2
    by_place: dict[int, list[float]] = {}
    for octave in range(4):
        for eighth in range(8):
            width = 2.0 ** octave / 8
            t = nodes * width
            values = [0.5 * math.exp(a * a / 2) * math.erfc(a / math.sqrt(2)) for a in 2.0 ** octave + eighth * width - 1 + t]
            by_place[(127 + octave) % 4 * 8 + eighth] = np.linalg.solve(np.vander(t, 5), values).tolist()
    return tuple(zip(*(by_place[i] for i in range(TABLE)), strict=True))


def _bits(e: Vector, x: Value) -> str:
    return e.convert("bitcast", x.ref, "float", "i32")


def _float(e: Vector, bits: str) -> Value:
    return Value("float32", e.convert("bitcast", bits, "i32", "float"))


def less_tail(e: Vector, x: Value, a: Value) -> Value:
    """x - a * Phi(-a), where Phi(-a) = exp(-a^2/2) * erfcx(a / sqrt 2) / 2 and 0 <= a < 15. e: where `avx512.has_tables` says so. The text of the two
    factors alternates: a processor looks only so far ahead for work that depends on nothing under way."""
    def k(v: float) -> Value:
        return e.const(v, "float32")
    h = e.mul(a, k(0.5))
    b = e.add(a, k(1))
    square = e.mul(h, a)
    place = _bits(e, b)
    segment = e.raw("lshr", "i32", place, e.integer(20, "i32"))
    start = e.raw("and", "i32", place, e.integer(-1 << 20, "i32"))
    magic = k(1.5 * 2.0 ** 18)  # a sum with it is a multiple of 1/32, as a whole number in its lowest bits
    shifted = e.fma(square, k(-1 / math.log(2)), magic)
    t = e.sub(b, _float(e, start))
    tables = _erfcx_half()
    g = lookup(e, tables[0], segment)
    g = e.fma(g, t, lookup(e, tables[1], segment))
    n = e.sub(shifted, magic)
    rest = e.fma(h, a, e.mul(n, k(_LN2_HIGH)))  # the square without rounding: what it loses, times as much, would show in the result
    bits = _bits(e, shifted)
    power = e.raw("add", "i32", _bits(e, lookup(e, _powers(), bits)), e.raw("shl", "i32", bits, e.integer(18, "i32")))
    g = e.fma(g, t, lookup(e, tables[2], segment))
    r = e.fma(n, k(-_LN2_LOW), e.neg(rest))
    g = e.fma(g, t, lookup(e, tables[3], segment))
    p = e.fma(r, k(_EXP[0]), k(_EXP[1]))
    g = e.fma(g, t, lookup(e, tables[4], segment))
    p = e.fma(p, r, k(_EXP[2]))
    ga = e.mul(g, e.mul(a, _float(e, power)))
    return e.fma(e.mul(p, ga), k(-0.5 ** _RANGE), x)
