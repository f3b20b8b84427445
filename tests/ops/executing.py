"""Builders that run at once on NumPy arrays: what they give must be what a specialiser and compiler give."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.errors import ShapeError, Unsupported
from bcvm.ops import numerics
from bcvm.ops.arguments import axes_of, axis_of
from bcvm.ops.definition import OPS, Composite, Op, ScalarExpr
from bcvm.ops.promotion import Operand, result_dtype
from bcvm.shapes.dim import Dim, broadcast


class Shapes:
    """A ShapeContext whose dims are all constant."""

    def broadcast(self, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
        rank = max(map(len, shapes), default=0)
        out = [Dim.const(1)] * rank
        for s in shapes:
            for i, d in enumerate(s):
                out[rank - len(s) + i] = broadcast(out[rank - len(s) + i], d)
        return tuple(out)

    def require_equal(self, a: Dim, b: Dim, message: str) -> None:
        self.require("eq", a, b, message)

    def require(self, how: str, a: Dim, b: Dim, message: str) -> None:
        x, y = a.value, b.value
        assert x is not None and y is not None
        if not {"eq": x == y, "le": x <= y, "lt": x < y}[how]:
            raise ShapeError(message)


class V:
    """A lane-wise value of a NumPy dtype, all of whose lanes are computed at once."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    @property
    def dtype(self) -> str:
        return str(self.array.dtype.name)


class Vectors:
    """A VectorBuilder over arrays. Asserts that operands of a method share their dtype."""

    def const(self, value: Any, dtype: str) -> V:
        return V(np.array(value).astype(dtype))

    def cast(self, a: V, dtype: str) -> V:
        return V(a.array.astype(dtype))

    def _two(self, fn: Any, a: V, b: V) -> V:
        assert a.dtype == b.dtype, (fn, a.dtype, b.dtype)
        out = V(fn(a.array, b.array))
        assert out.dtype == a.dtype, (fn, a.dtype, out.dtype)
        return out

    def add(self, a: V, b: V) -> V: return self._two(np.add, a, b)
    def sub(self, a: V, b: V) -> V: return self._two(np.subtract, a, b)
    def mul(self, a: V, b: V) -> V: return self._two(np.multiply, a, b)
    def div(self, a: V, b: V) -> V: return self._two(np.true_divide, a, b)
    def floordiv(self, a: V, b: V) -> V: return self._two(np.floor_divide, a, b)
    def mod(self, a: V, b: V) -> V: return self._two(np.remainder, a, b)
    def minimum(self, a: V, b: V) -> V: return self._two(np.minimum, a, b)
    def maximum(self, a: V, b: V) -> V: return self._two(np.maximum, a, b)
    def fmin(self, a: V, b: V) -> V: return self._two(np.fmin, a, b)
    def fmax(self, a: V, b: V) -> V: return self._two(np.fmax, a, b)
    def copysign(self, a: V, b: V) -> V: return self._two(np.copysign, a, b)
    def neg(self, a: V) -> V: return V(np.negative(a.array))
    def abs(self, a: V) -> V: return V(np.abs(a.array))
    def sqrt(self, a: V) -> V: return V(np.sqrt(a.array))
    def fma(self, a: V, b: V, c: V) -> V: return self.add(self.mul(a, b), c)

    def rounding(self, mode: str, a: V) -> V:
        return V(getattr(np, mode)(a.array))

    def compare(self, how: str, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        return V({"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}[how](a.array, b.array))

    def select(self, c: V, a: V, b: V) -> V:
        assert c.dtype == "bool" and a.dtype == b.dtype
        return V(np.where(c.array, a.array, b.array))

    def bit(self, how: str, a: V, b: V) -> V:
        assert dtypes.kind(a.dtype) in "biu"
        if how in ("shl", "shr"):
            assert np.all((b.array >= 0) & (b.array < 8 * a.array.dtype.itemsize)), "undefined shift"
        return self._two({"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift}[how], a, b)

    def invert(self, a: V) -> V:
        assert a.dtype != "bool"
        return V(np.invert(a.array))

    def math(self, name: str, *a: V) -> V:
        own = {"sigmoid": numerics.sigmoid_exact, "erf": numerics.erf_exact, "gelu": numerics.gelu_exact, "silu": numerics.silu_exact,
                               "gelu_tanh": numerics.gelu_tanh_exact, "atan": np.arctan, "pow": np.power}
        return V((own.get(name) or getattr(np, name))(*(v.array for v in a)))


def run_expr(op: Op, *operands: Any, **attrs: Any) -> Any:
    """A ScalarExpr op by its expression, operands cast to their computation dtype first; half precision is computed in float32 and rounded once."""
    assert isinstance(op.form, ScalarExpr)
    promotion = result_dtype("numpy", op, [operand_of(o) for o in operands], attrs)
    with np.errstate(all="ignore"):
        values = np.broadcast_arrays(*(np.asarray(o).astype(d) for o, d in zip(operands, promotion.operands, strict=False)))
        half = "float16" in promotion.operands
        out = op.form.expr(Vectors(), *(V(v.astype(np.float32) if half and v.dtype == np.float16 else v) for v in values), **attrs)
        if half and promotion.result == "float16":
            out = V(out.array.astype(np.float16))
    assert out.dtype == promotion.result, (op.name, out.dtype, promotion)
    return np.broadcast_to(out.array, values[0].shape)


def operand_of(v: Any) -> Operand:
    if isinstance(v, (bool, int, float)) and not isinstance(v, np.generic):
        return Operand({bool: "pybool", int: "int", float: "float"}[type(v)], 0, v)
    a = np.asarray(v)
    return Operand(str(a.dtype.name), a.ndim)


class Executor:
    """An OpBuilder whose values are arrays and Python objects. Shape rules are checked against what the references give."""

    def __init__(self, library: str = "numpy") -> None:
        self.library = library

    def is_tensor(self, v: Any) -> bool: return isinstance(v, (np.ndarray, np.generic))
    def describe(self, v: Any) -> str: return type(v).__name__
    def is_element(self, v: Any) -> bool: return isinstance(v, np.generic)
    def is_none(self, v: Any) -> bool: return v is None
    def is_scalar(self, v: Any) -> bool: return isinstance(v, (bool, int, float)) and not isinstance(v, np.generic)
    def is_sequence(self, v: Any) -> bool: return isinstance(v, (tuple, list))
    def rank(self, v: Any) -> int: return int(np.ndim(v))
    def dims(self, v: Any) -> tuple[Dim, ...]: return tuple(Dim.const(d) for d in np.shape(v))
    def items(self, v: Any) -> list[Any]: return list(v)
    def constant(self, v: Any) -> Any: return v
    def axis(self, v: Any, rank: int) -> int: return axis_of(v, rank)
    def axes(self, v: Any, rank: int) -> tuple[int, ...]: return axes_of(v, rank)
    def size(self, v: Any, axis: int) -> Any: return int(np.shape(v)[axis])
    def tuple(self, items: Sequence[Any]) -> Any: return tuple(items)
    def list(self, items: Sequence[Any]) -> Any: return list(items)
    def copy(self, v: Any) -> Any: return v.copy()
    def cast(self, v: Any, dtype: str) -> Any: return np.asarray(v).astype(dtype)
    def number(self, v: Any, dtype: str) -> Any: return np.dtype(dtype).type(v)
    def require(self, how: str, a: Dim, b: Dim, message: str) -> None: Shapes().require(how, a, b, message)

    def dtype(self, v: Any) -> str:
        return str(v.dtype.name) if self.is_tensor(v) else type(v).__name__

    def unsupported(self, reason: str) -> Any:
        raise Unsupported(reason)

    def item(self, v: Any) -> Any: return v.item()

    def int_of(self, d: Dim) -> Any:
        assert d.value is not None
        return d.value

    def dim_of(self, v: Any) -> Dim:
        assert type(v) is int
        return Dim.const(v)

    def scalar(self, name: str, *operands: Any) -> Any:
        import operator
        own: dict[str, Any] = {"int": int, "float": float, "bool": bool, "min": min, "max": max, "abs": abs, "floor": math.floor, "ceil": math.ceil,
                               "trunc": math.trunc}
        fn = own.get(name) or getattr(operator, name, None) or getattr(math, name)
        return fn(*operands)

    def full(self, dims: Sequence[Any], value: Any, dtype: str) -> Any: return self.op("full", value, dims=tuple(dims), dtype=dtype)
    def reshape(self, v: Any, dims: Sequence[Any], contiguous: bool = False) -> Any: return self.op("reshape", v, dims=tuple(dims))
    def transpose(self, v: Any, perm: Sequence[int]) -> Any: return self.op("transpose", v, perm=tuple(perm))
    def slice(self, v: Any, items: Sequence[Any]) -> Any: return self.op("slice", v, items=tuple(items))

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        op = OPS[name]
        assert attrs.keys() <= set(op.attrs), (name, attrs)
        plain = {k: _plain(v) for k, v in attrs.items()}
        if isinstance(op.form, Composite):
            return op.form.build(self, *operands, **attrs)
        promotion = result_dtype(self.library, op, [operand_of(o) for o in operands], plain)
        arrays = [np.asarray(o).astype(d) for o, d in zip(operands, promotion.operands, strict=False)]
        assert op.reference is not None
        with np.errstate(all="ignore"):
            out = np.asarray(op.reference(*arrays, **plain))
        dims = op.shape(Shapes(), *map(self.dims, arrays), **attrs) if op.shape else Shapes().broadcast(*map(self.dims, arrays))
        assert tuple(d.value for d in dims) == out.shape, (name, dims, out.shape)
        assert out.dtype.name == promotion.result, (name, out.dtype, promotion)
        return out


def _plain(v: Any) -> Any:
    if isinstance(v, Dim):
        return v.value
    return tuple(map(_plain, v)) if isinstance(v, (tuple, list)) else v
