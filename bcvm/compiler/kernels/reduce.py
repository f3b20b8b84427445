"""Reductions over lanes: accumulators, their combination, and the fold to one scalar. The order depends on sizes alone."""
from __future__ import annotations

import math

from bcvm.bytecode import dtypes
from bcvm.compiler.kernels.text import Function
from bcvm.compiler.kernels.vector import HALF, Value, Vector, held_type

_METHOD = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "add", "all": "mul"}


class Accumulator:
    """One reduction. Its state is one value, or a value and an index for argmax and argmin (an int32 position in a piece of the row,
    until `total` makes it a position in the row). Half types accumulate in float32."""

    def __init__(self, combine: str, operand: str, result: str) -> None:
        self.how, self.result = combine, result
        self.arg = combine in ("argmax", "argmin")
        dtype = operand if combine in ("max", "min") or self.arg else "bool" if combine in ("any", "all") else result
        self.dtype = "float32" if dtype in HALF and combine in ("sum", "prod") else dtype
        self.state = [self.dtype, "int32"] if self.arg else [self.dtype]

    def identity(self, e: Vector) -> list[Value]:
        if self.how in ("max", "min") or self.arg:  # an element that is no better than the limit leaves index 0, which is then right
            limit = e.const(_limit(self.dtype, self.how), self.dtype)
            return [limit, e.const(0, "int32")] if self.arg else [limit]
        return [e.const(1 if self.how in ("prod", "all") else 0, self.dtype)]

    def combine(self, e: Vector, a: Value, b: Value) -> Value:
        out: Value = getattr(e, _METHOD[self.how])(a, b)
        return out

    def _better(self, e: Vector, x: Value, best: Value) -> Value:
        """Whether x wins: larger (smaller), or a NaN against a number."""
        if x.dtype == "bool":
            return e.bit("and", x, e.invert(best)) if self.how == "argmax" else e.bit("and", best, e.invert(x))
        how = "gt" if self.how == "argmax" else "lt"
        if not dtypes.is_float(x.dtype):
            return e.compare(how, x, best)
        s = held_type(x.dtype)
        wins = Value("bool", e.raw(f"fcmp u{how}", s, x.ref, best.ref))
        return e.bit("and", wins, Value("bool", e.raw("fcmp ord", s, best.ref, best.ref)))

    def step(self, e: Vector, state: list[Value], x: Value, mask: str | None, index: Value | None) -> list[Value]:
        """The state with one vector of elements added; index: their positions in the row (argmax, argmin)."""
        x = e.cast(x, self.dtype)
        if self.arg:
            assert index is not None
            take = self._better(e, x, state[0])  # later in the row: an equal one does not replace
            if mask is not None:
                take = e.bit("and", take, Value("bool", mask))
            return [e.select(take, b, a) for a, b in zip(state, [x, index], strict=True)]
        new = self.combine(e, state[0], x)
        return [new if mask is None else e.select(Value("bool", mask), new, state[0])]

    def total(self, e: Vector, state: list[Value], start: str) -> list[Value]:
        """The state of a piece of the row that starts there, with positions in the whole row."""
        if not self.arg:
            return state
        at = e.cast(state[1], "int64")
        return [state[0], at if start == "0" else e.add(at, e.broadcast(Value("int64", start)))]

    def _merge(self, e: Vector, state: list[Value], other: list[Value]) -> list[Value]:
        """Of two parts in any order: the better, of equals the earlier."""
        take, back = self._better(e, other[0], state[0]), self._better(e, state[0], other[0])
        equal = e.invert(e.bit("or", take, back))
        take = e.bit("or", take, e.bit("and", equal, e.compare("lt", other[1], state[1])))
        return [e.select(take, b, a) for a, b in zip(state, other, strict=True)]

    def merge(self, e: Vector, state: list[Value], other: list[Value]) -> list[Value]:
        return self._merge(e, state, other) if self.arg else [self.combine(e, state[0], other[0])]

    def fold(self, e: Vector, state: list[Value]) -> Value:
        """All lanes together: the scalar result."""
        one = Vector(e.f, 1)
        if not self.arg:
            return one.cast(self._fold_bool(e, state[0]) if self.dtype == "bool" else e.fold(self.combine, state[0]), self.result)
        return one.cast(self._fold_index(e, state), self.result)

    def _fold_bool(self, e: Vector, v: Value) -> Value:
        if self.how in ("any", "max", "sum"):
            return Value("bool", e.any(v.ref))
        return Vector(e.f, 1).invert(Value("bool", e.any(e.invert(v).ref)))

    def _fold_index(self, e: Vector, state: list[Value]) -> Value:
        if e.lanes == 1:
            return state[1]
        n = e.lanes // 2
        part = Vector(e.f, n)
        low, high = ([e.part(v, i, n) for v in state] for i in (0, n))
        return self._fold_index(part, self._merge(part, low, high))


def _limit(dtype: str, how: str) -> float | int:
    """What no element is worse than."""
    how = how.removeprefix("arg")
    if dtypes.is_float(dtype):
        return -math.inf if how == "max" else math.inf
    if dtype == "bool":
        return how == "min"
    bits, signed = 8 * dtypes.itemsize(dtype), dtypes.kind(dtype) == "i"
    low, high = (-1 << (bits - 1), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return low if how == "max" else high


def lane_numbers(f: Function, lanes: int, start: str) -> Value:
    """start, start + 1, ... as int32 lanes; start is an i64 below 2^31."""
    low = f.op(f"trunc i64 {start} to i32")
    if lanes == 1:
        return Value("int32", low)
    e = Vector(f, lanes)
    iota = "<" + ", ".join(f"i32 {i}" for i in range(lanes)) + ">"
    return Value("int32", e.raw("add", "i32", e.broadcast(Value("int32", low)).ref, iota))


def held(e: Vector, dtype: str) -> str:
    return e.ty(held_type(dtype))
