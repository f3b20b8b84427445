"""The OpBuilder that bindings, composites and operators build SSA with (see ops.definition.OpBuilder)."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.dtypes import itemsize
from bcvm.errors import ShapeError, Unsupported
from bcvm.ops.definition import OPS, Composite, Library, Op, Reduction, ScalarExpr, View
from bcvm.ops.promotion import Operand, result_dtype
from bcvm.shapes.dim import Dim, broadcast, dim, maximum, minimum, product
from bcvm.specialise.settle import FOLD
from bcvm.specialise.ssa import Aggregate, Tree, Value
from bcvm.specialise.types import Const, Scalar, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

_NUMBER = {bool: "bool", int: "int", float: "float"}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_DIM_LIMIT = 1 << 61


class Builder:
    def __init__(self, machine: "Machine") -> None:
        self.m = machine
        self.library = "numpy"

    # -- asking
    def is_tensor(self, v: Any) -> bool:
        return isinstance(v, Value) and isinstance(v.type, Tensor)

    def is_element(self, v: Any) -> bool:
        return isinstance(v, Value) and isinstance(v.type, Tensor) and v.type.scalar

    def is_none(self, v: Any) -> bool:
        return v is None or isinstance(v, Const) and v.value is None

    def is_sequence(self, v: Any) -> bool:
        return (isinstance(v, (tuple, list)) or isinstance(v, Aggregate) and v.kind in ("tuple", "list")
                or isinstance(v, Const) and (type(v.value) in (tuple, list) or self.m.resolver.container(v) is not None))

    def require(self, how: str, a: Dim, b: Dim, message: str) -> None:
        ShapeRequests(self.m.emit).require(how, a, b, message)

    def write(self, target: Any, value: Any, exact: bool) -> Any:
        """Store a value into an array that was given for a result; returns that array. exact: dtype and sizes must be the value's."""
        from bcvm.specialise.operators import store
        out, made = self.tree(target), self.tree(value)
        if not isinstance(out, Value) or not isinstance(out.type, Tensor) or out.type.library != "numpy" or out.type.scalar:
            raise Unsupported("out= of something other than an array")
        if exact:
            if not isinstance(made, Value) or not isinstance(made.type, Tensor) or made.type.dtype != out.type.dtype or made.type.rank != out.type.rank:
                raise Unsupported("out= of another dtype or rank than the result's")
            for have, want in zip(made.type.dims, out.type.dims, strict=True):
                self.require("eq", have, want, "out= of another size than the result's")
        store(self.m, out, made, same_kind=True)
        return out

    def is_scalar(self, v: Any) -> bool:
        v = self.tree(v)
        return isinstance(v, Value) and isinstance(v.type, Scalar) or isinstance(v, Const) and type(v.value) in _NUMBER

    def tree(self, v: Any) -> Tree:
        """A tree for a tree or a Python constant."""
        if isinstance(v, (Value, Const, Aggregate)):
            return v
        if isinstance(v, Dim):
            return self.int_of(v)
        if isinstance(v, (tuple, list)):
            return Aggregate(type(v).__name__, tuple(self.tree(i) for i in v))
        return Const(v)

    def dtype(self, v: Any) -> str:
        v = self.tree(v)
        if isinstance(v, Value):
            if isinstance(v.type, Tensor):
                return v.type.dtype
            if isinstance(v.type, Scalar):
                return v.type.kind
        if isinstance(v, Const) and type(v.value) in _NUMBER:
            return _NUMBER[type(v.value)]
        raise Unsupported(f"{self.describe(v)} is neither tensor nor number")

    def rank(self, v: Any) -> int:
        return len(self.dims(v))

    def dims(self, v: Any) -> tuple[Dim, ...]:
        if isinstance(v, Value) and isinstance(v.type, Tensor):
            return v.type.dims
        if self.is_scalar(v):
            return ()
        raise Unsupported(f"{self.describe(v)} is not a tensor")

    def items(self, v: Any) -> list[Any]:
        from bcvm.specialise.instructions import sequence
        return sequence(self.m, self.tree(v))

    def constant(self, v: Any) -> Any:
        v = self.tree(v)
        if isinstance(v, Const):
            if v.path is not None and type(v.value) in (tuple, list):
                return type(v.value)(self.constant(i) for i in self.m.resolver.items(v))
            return v.value
        if isinstance(v, Aggregate) and v.kind in ("tuple", "list"):
            return tuple(self.constant(i) for i in v.items) if v.kind == "tuple" else [self.constant(i) for i in v.items]
        if isinstance(v, Value) and isinstance(v.type, Scalar):
            if v.dim is not None and v.dim.value is not None:
                return v.dim.value
            if v in self.m.resolver.scalars:
                return self.m.resolver.bind_scalar(v)
        raise Unsupported(f"{self.describe(v)} is needed as a constant")

    def axis(self, v: Any, rank: int) -> int:
        a = self.constant(v)
        if type(a) is not int or not -rank <= a < rank:
            raise Unsupported(f"axis {a!r} of rank {rank}")
        return a % rank

    def axes(self, v: Any, rank: int) -> tuple[int, ...]:
        if self.is_none(v):
            return tuple(range(rank))
        a = self.constant(v)
        out = tuple(self.axis(i, rank) for i in (a if isinstance(a, (tuple, list)) else (a,)))
        if len(set(out)) != len(out):
            raise Unsupported("an axis given twice")
        return out

    def unsupported(self, reason: str) -> Any:
        raise Unsupported(reason)

    @staticmethod
    def describe(v: Any) -> str:
        from bcvm.specialise.instructions import describe
        return describe(v)

    # -- Python numbers
    def scalar(self, name: str, *operands: Any) -> Any:
        trees = [self.tree(o) for o in operands]
        if all(isinstance(t, Const) and type(t.value) in _NUMBER for t in trees):
            try:
                return Const(FOLD[name](*(t.value for t in trees)))  # type: ignore[union-attr]
            except (ArithmeticError, ValueError, TypeError) as e:
                raise Unsupported(f"{name}: {e}") from None
        kinds = [self.dtype(t) for t in trees]
        folded = self._dim_arithmetic(name, trees, kinds)
        if folded is not None:
            return folded
        if name in ("min", "max") and len(set(kinds)) > 1:
            raise Unsupported(f"{name} of an int and a float")
        if name in ("int", "float", "bool"):
            return trees[0] if kinds[0] == name else self._scalar(name, trees, name)
        if name == "pos" or name == "abs" and kinds[0] == "bool":
            return trees[0] if kinds[0] != "bool" else self.scalar("int", trees[0])
        if name in ("sqrt", "exp", "log", "floor", "ceil", "sin", "cos", "tan", "tanh", "sinh", "cosh", "log2", "log10"):
            if kinds[0] != "float":
                if name in ("floor", "ceil"):
                    return self.scalar("int", trees[0])
                trees = [self.scalar("float", trees[0])]
            return self._scalar(name, trees, "int" if name in ("floor", "ceil") else "float")
        if name == "not":
            return self._scalar("not", [self.scalar("bool", trees[0])], "bool")
        if name in ("min", "max") and set(kinds) == {"bool"}:  # stays a bool
            name = "and" if name == "min" else "or"
        if name in ("and", "or", "xor") and set(kinds) == {"bool"}:
            return self._scalar(name, trees, "bool")
        common = "float" if "float" in kinds else "int"
        if name in ("and", "or", "xor", "shl", "shr", "invert") and common == "float":
            raise Unsupported(f"{name} of a float")
        if name == "truediv":
            common = "float"
        if name == "pow":
            power = trees[1]
            if not (isinstance(power, Const) and type(power.value) is int and power.value >= 0) and common == "int":
                raise Unsupported("an int to a power that may be negative")
            if common == "float" and not (isinstance(power, Const) and float(power.value) == int(power.value) and power.value >= 0):
                return self.scalar("pow", *(Const(self.constant(t)) for t in trees))  # of numbers that were captured
        trees = [self.scalar(common, t) for t in trees]
        if name in ("min", "max"):
            return self._scalar(name, trees, common)
        return self._scalar(name, trees, "bool" if name in _COMPARE else common)

    def _scalar(self, name: str, trees: list[Any], kind: str) -> Value:
        value = self.m.emit("scalar", tuple(self.m.as_value(t) for t in trees), Scalar(kind), fn=name)
        if kind == "int" and value.dim is None:
            value.dim = Dim.opaque(value)
        return value

    def _dim_arithmetic(self, name: str, trees: list[Any], kinds: list[str]) -> Any:
        """int arithmetic on known dims stays symbolic where it cannot overflow; comparisons are decided where intervals do."""
        if any(k != "int" for k in kinds) or len(trees) != 2 and name != "neg":
            return None
        dims = [self._dim(t) for t in trees]
        if any(d is None for d in dims):
            return None
        a, b = dims[0], dims[-1]
        assert a is not None and b is not None
        (alo, ahi), (blo, bhi) = a.interval(), b.interval()
        if name in _COMPARE:
            known = {"lt": (ahi < blo, alo >= bhi), "le": (ahi <= blo, alo > bhi), "gt": (alo > bhi, ahi <= blo), "ge": (alo >= bhi, ahi < blo),
                     "eq": (a is b, ahi < blo or alo > bhi), "ne": (ahi < blo or alo > bhi, a is b)}[name]
            return Const(True) if known[0] else Const(False) if known[1] else None
        if name == "add":
            result = a + b
        elif name == "sub":
            result = a - b
        elif name == "mul":
            result = a * b
        elif name == "neg":
            result = -a
        elif name in ("floordiv", "mod") and (blo > 0 or bhi < 0):
            result = a // b if name == "floordiv" else a % b
        elif name in ("min", "max"):
            result = minimum(a, b) if name == "min" else maximum(a, b)
        else:
            return None
        lo, hi = result.interval()
        bounded = all(-_DIM_LIMIT < x < _DIM_LIMIT for x in (alo, ahi, blo, bhi, lo, hi))
        return self.int_of(result) if bounded else None

    def _dim(self, t: Any) -> Dim | None:
        return Dim.const(t.value) if isinstance(t, Const) else t.dim

    def int_of(self, d: Dim) -> Any:
        if d.value is not None:
            return Const(d.value)
        return self.m.emit("dim", (), Scalar("int"), dim=d)

    def dim_of(self, v: Any) -> Dim:
        v = self.tree(v)
        if isinstance(v, Const) and type(v.value) in (int, bool):
            return Dim.const(int(v.value))
        if isinstance(v, Value) and isinstance(v.type, Scalar) and v.type.kind == "int":
            assert v.dim is not None
            return v.dim
        if isinstance(v, Value) and isinstance(v.type, Tensor) and v.type.rank == 0 and v.type.dtype.startswith("int"):
            return self.dim_of(self.item(v, "int"))
        raise Unsupported(f"{self.describe(v)} as a size")

    def size(self, v: Any, axis: int) -> Any:
        return self.int_of(self.dims(v)[axis])

    def item(self, v: Any, kind: str = "") -> Value:
        """The only element of a tensor, as a Python number."""
        assert isinstance(v.type, Tensor)
        kind = kind or {"b": "bool", "f": "float"}.get(v.type.dtype[0], "int")
        value = self.m.emit("item", (v,), Scalar(kind))
        if kind == "int":
            value.dim = Dim.opaque(value)
        return value

    # -- tensors
    def tuple(self, items: Sequence[Any]) -> Aggregate:
        return Aggregate("tuple", tuple(self.tree(i) for i in items))

    def list(self, items: Sequence[Any]) -> Aggregate:
        return Aggregate("list", tuple(self.tree(i) for i in items))

    def result(self, dtype: str, dims: Sequence[Dim], fresh: bool = True) -> Tensor:
        library = self.tensor_library
        return Tensor(library, dtype, tuple(dims), library == "numpy" and fresh and not dims)

    @property
    def tensor_library(self) -> str:
        return "mindspore" if self.library == "mindspore" else "numpy"

    def as_tensor(self, v: Any, dtype: str) -> Value:
        """A tensor of this dtype: a cast, or a number as a rank-0 tensor."""
        v = self.tree(v)
        if isinstance(v, Value) and isinstance(v.type, Tensor):
            return self.cast(v, dtype)
        if isinstance(v, Const) and type(v.value) in _NUMBER:
            value = v.value
            if dtype == "bool":
                value = bool(value)
            elif dtype[0] in "iu":
                if not math.isfinite(value):
                    raise Unsupported(f"{value} as {dtype}")
                value = int(value)
            else:
                value = float(value)
            return self.m.emit("fill", (), Tensor(self.tensor_library, dtype, ()), value=value)
        if isinstance(v, Value) and isinstance(v.type, Scalar):
            return self.m.emit("fill", (v,), Tensor(self.tensor_library, dtype, ()))
        raise Unsupported(f"{self.describe(v)} as a tensor")

    def cast(self, v: Any, dtype: str) -> Value:
        v = self.tree(v)
        if not (isinstance(v, Value) and isinstance(v.type, Tensor)):
            return self.as_tensor(v, dtype)
        if v.type.dtype == dtype:
            return v
        return self.m.emit("op", (v,), Tensor(v.type.library, dtype, v.type.dims, v.type.scalar), op=OPS["cast"], attrs={"dtype": dtype})

    def op(self, name: str, *operands: Any, **attrs: Any) -> Any:
        op = OPS.get(name)
        if op is None:
            raise Unsupported(f"no op {name}")
        if isinstance(op.form, Composite):
            return op.form.build(self, *operands, **attrs)
        trees = [self.tree(o) for o in operands]
        for t in trees:
            if isinstance(t, Value) and isinstance(t.type, Tensor):
                if (t.type.library == "mindspore") != (self.library == "mindspore"):
                    raise Unsupported(f"a {t.type.library} tensor in an op of {self.library}")
            elif not self.is_scalar(t):
                raise Unsupported(f"{name} of {self.describe(t)}")
        promotion = result_dtype("mindspore" if self.library == "mindspore" else "numpy", op, [self._operand(t) for t in trees], attrs)
        for check in promotion.checks:
            self._range_check(trees[check.operand], check.low, check.high)
        values = [self.as_tensor(t, loop) for t, loop in zip(trees, promotion.operands)]
        return self._emit_op(op, values, promotion.result, attrs)

    def _operand(self, t: Any) -> Operand:
        if self.is_tensor(t):
            return Operand(t.type.dtype, t.type.rank)
        dtype = self.dtype(t)
        return Operand("pybool" if dtype == "bool" else dtype, 0, t.value if isinstance(t, Const) else None)

    def _range_check(self, t: Any, low: float, high: float) -> None:
        """Leave unless a run-time number lies in low..high (a float may also be infinite or NaN): the dtypes depend on it."""
        if isinstance(t, Const):
            return
        if self.dtype(t) == "float":  # not (high < |v| < inf)
            size = self.scalar("abs", t)
            outside = self.scalar("and", self.scalar("gt", size, float(high)), self.scalar("lt", size, math.inf))
        else:
            outside = self.scalar("or", self.scalar("lt", t, int(low)), self.scalar("gt", t, int(high)))
        inside = self.scalar("not", outside)
        if not isinstance(inside, Const):
            self.m.emit("guard", (inside,))

    def _emit_op(self, op: Op, values: Sequence[Value], dtype: Any, attrs: dict[str, Any]) -> Any:
        shapes = [v.type.dims for v in values]  # type: ignore[union-attr]
        ctx = ShapeRequests(self.m.emit)
        dims = result_dims(ctx, op, shapes, attrs)
        if isinstance(op.form, (ScalarExpr, Reduction, Library)):
            return self.m.emit("op", tuple(values), self.result(dtype, dims), op=op, attrs=dict(attrs))
        if isinstance(op.form, View):
            return self._view_op(op, values[0], dims, attrs)
        raise Unsupported(f"{op.name} has no native form")

    def _view_op(self, op: Op, v: Value, dims: Any, attrs: dict[str, Any]) -> Value:
        kind = op.form.kind  # type: ignore[union-attr]
        if kind == "transpose":
            return self.transpose(v, attrs["perm"])
        if kind == "reshape":
            return self.reshape(v, dims)
        if kind == "broadcast_to":
            return self.view(v, dims, "broadcast")
        if kind == "expand_dims":
            return self.view(v, dims, "expand", axis=attrs["axis"])
        if kind == "squeeze":
            out = v
            for a in sorted(attrs["axis"], reverse=True):
                d = out.type.dims  # type: ignore[union-attr]
                out = self.view(out, d[:a] + d[a + 1:], "squeeze", axis=a)
            return out
        raise Unsupported(f"view {kind}")

    def view(self, v: Value, dims: Sequence[Dim], kind: str, **attrs: Any) -> Value:
        t = v.type
        assert isinstance(t, Tensor)
        scalar = t.library == "numpy" and not dims and kind == "slice" and attrs.pop("whole", False)
        attrs.pop("whole", None)
        readonly = t.library == "numpy" and not scalar and (t.readonly or kind == "broadcast")
        return self.m.emit("view", (v,), Tensor(t.library, t.dtype, tuple(dims), scalar, readonly=readonly), root=v, kind=kind, **attrs)

    def full(self, dims: Sequence[Any], value: Any, dtype: str) -> Value:
        sizes = [self._size(d) for d in dims]
        v = self.tree(value)
        if isinstance(v, Value) and isinstance(v.type, Tensor):
            return self.copy(self.view(self.cast(v, dtype), sizes, "broadcast"))
        self.fits(v, dtype)
        number = self.as_tensor(v, dtype).node
        assert number is not None
        self.m.block.nodes.pop()
        return self.m.emit("fill", number.operands, Tensor(self.tensor_library, dtype, tuple(sizes)), **number.attrs)

    def _size(self, d: Any) -> Dim:
        size = d if isinstance(d, Dim) else self.dim_of(d)
        if size.interval()[0] < 0:
            self.m.emit("check", how="le", a=Dim.const(0), b=size)
        if size.value is not None and size.value < 0:
            raise Unsupported("a negative size")
        return size

    def number(self, v: Any, dtype: str) -> Value:
        """A Python number as a NumPy scalar. Leaves where it does not fit."""
        self.fits(v, dtype)
        made = self.as_tensor(v, dtype)
        return self.m.emit("copy", (made,), Tensor(self.tensor_library, dtype, (), True))

    def fits(self, v: Any, dtype: str) -> None:
        """Leave unless a Python number lies in an integer dtype: others are an error, or what the processor makes of them."""
        if dtype[0] not in "iu" or self.dtype(v) == "bool" or (self.dtype(v), dtype) == ("int", "int64"):
            return
        bits = 8 * itemsize(dtype)
        low, high = (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        if isinstance(v, (int, float)) or isinstance(v, Const):
            value = v.value if isinstance(v, Const) else v
            if not low <= value <= high:
                raise Unsupported(f"{value} as {dtype}")
            return
        number = float if self.dtype(v) == "float" else int
        top = min(high, (1 << 63) - 1) if number is int else high if bits < 64 else (1 << bits - 1) - 1024
        inside = self.scalar("and", self.scalar("ge", v, number(low)), self.scalar("le", v, number(top)))
        if not isinstance(inside, Const):
            self.m.emit("guard", (inside,))

    def copy(self, v: Value) -> Value:
        if not self.is_tensor(v):
            raise Unsupported(f"a copy of {self.describe(v)}")
        t = v.type
        assert isinstance(t, Tensor)
        return self.m.emit("copy", (v,), Tensor(t.library, t.dtype, t.dims, t.scalar))

    def reshape(self, v: Any, dims: Sequence[Any], contiguous: bool = False) -> Value:
        """contiguous: a copy wherever the operand is not C-contiguous, as ravel makes one."""
        sizes = [self._size(d) for d in dims]
        old = product(self.dims(v))
        new = product(sizes)
        if old is not new:
            if old.value is not None and new.value is not None:
                raise Unsupported(f"reshape of {old} elements into {new}")
            self.m.emit("check", how="eq", a=old, b=new)
        return self.view(v, sizes, "reshape", **({"contiguous": True} if contiguous else {}))

    def transpose(self, v: Any, perm: Sequence[int]) -> Value:
        if not self.is_tensor(v):
            raise Unsupported(f"axes of {self.describe(v)}")
        dims = self.dims(v)
        if sorted(perm) != list(range(len(dims))):
            raise Unsupported(f"axes {tuple(perm)} of rank {len(dims)}")
        if not dims and v.type.scalar:
            return v  # type: ignore[no-any-return]
        if tuple(perm) == tuple(range(len(dims))):
            return self.view(v, dims, "transpose", perm=tuple(perm))
        return self.view(v, [dims[p] for p in perm], "transpose", perm=tuple(perm))

    def slice(self, v: Any, items: Sequence[Any]) -> Value:
        from bcvm.specialise.indexing import slice_view
        if not self.is_tensor(v):
            raise Unsupported(f"a slice of {self.describe(v)}")
        given = [(i[0], *(None if self.is_none(x) else self.tree(x) for x in i[1:])) for i in items]
        rest = self.rank(v) - sum(i[0] != "new" for i in given)
        return slice_view(self.m, v, given + [("slice", None, None, None)] * rest)


def result_dims(ctx: "ShapeRequests", op: Op, shapes: Sequence[tuple[Dim, ...]], attrs: dict[str, Any]) -> Any:
    """The dims of an op's result (a tuple of them for several results), and its requests to ctx. Unsupported: operands that never fit."""
    if op.shape is not None:
        try:
            return op.shape(ctx, *shapes, **attrs)
        except ShapeError as e:
            raise Unsupported(str(e)) from None
    if not isinstance(op.form, Reduction):
        return ctx.broadcast(*shapes)
    axes, keep = attrs["axis"], attrs.get("keepdims", False)
    if op.form.combine in ("max", "min", "argmax", "argmin"):
        ctx.require("le", Dim.const(1), product(shapes[0][i] for i in axes), f"{op.name} of no elements")
    return tuple(Dim.const(1) if i in axes else d for i, d in enumerate(shapes[0]) if keep or i not in axes)


class ShapeRequests:
    """ShapeContext: what cannot be decided now becomes a check node, made by emit("check", attributes)."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self.emit = emit

    def broadcast(self, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
        rank = max([len(s) for s in shapes], default=0)
        one = Dim.const(1)
        out = []
        for i in range(-rank, 0):
            result = one
            for s in shapes:
                if i + len(s) < 0 or s[i] is result:
                    continue
                d = s[i]
                if result.value != 1 and d.value != 1:
                    if result.value is not None and d.value is not None:
                        raise Unsupported(f"sizes {result} and {d} do not broadcast")
                    self.emit("check", how="bcast", a=result, b=d)
                result = broadcast(result, d)
            out.append(result)
        return tuple(out)

    def require_equal(self, a: Any, b: Any, message: str) -> None:
        self.require("eq", a, b, message)

    def require(self, how: str, a: Any, b: Any, message: str) -> None:
        a, b = dim(a), dim(b)
        if a is b and how != "lt":
            return
        if a.value is not None and b.value is not None:
            if not {"eq": a.value == b.value, "le": a.value <= b.value, "lt": a.value < b.value}[how]:
                raise Unsupported(message)
            return
        (_, ahi), (blo, _) = a.interval(), b.interval()
        if how == "le" and ahi <= blo or how == "lt" and ahi < blo:
            return
        self.emit("check", how=how, a=a, b=b, message=message)
