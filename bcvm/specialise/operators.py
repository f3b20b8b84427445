"""Python's operators, truth and attributes on trees."""
from __future__ import annotations

import enum
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bcvm.errors import Unsupported
from bcvm.ops.definition import METHODS
from bcvm.ops.lookup import operator_for
from bcvm.specialise.resolve import IDENTITY
from bcvm.specialise.ssa import Aggregate, Tree, Value
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

_SCALAR_NAMES = {"and_": "and", "or_": "or", "lshift": "shl", "rshift": "shr"}
_PYTHON: dict[str, Callable[..., Any]] = {
    n: getattr(operator, n) for n in
    "add sub mul truediv floordiv mod pow matmul neg pos invert eq ne lt le gt ge and_ or_ xor lshift rshift".split()
}
INPLACE = {"i" + n.rstrip("_"): n for n in "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split()}
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))


def apply(m: "Machine", name: str, args: list[Tree]) -> Tree:
    """The result of one CALL_OP."""
    if name in ("is", "is_not"):
        for x, y in (args, args[::-1]):
            if isinstance(x, Const) and type(x.value) is bool and isinstance(y, Value) and isinstance(y.type, Scalar):
                if y.type.kind != "bool":
                    return Const(name == "is_not")
                return y if x.value == (name == "is") else m.builder.scalar("not", y)
        same = identical(*args)
        return Const(same == (name == "is"))
    if name == "not":
        t = truth(m, args[0])
        return Const(not t.value) if isinstance(t, Const) else m.builder.scalar("not", t)
    if name in ("in", "not_in"):
        return Const(contains(m, args[0], args[1]) == (name == "in"))
    if name in INPLACE:
        return inplace(m, INPLACE[name], args[0], args[1])
    if all(isinstance(a, Const) and type(a.value) in _PLAIN for a in args) and name in _PYTHON and not any(isinstance(a, Const) and type(a.value) is tuple and a.path for a in args):
        try:
            return m.resolver.literal(_PYTHON[name](*(a.value for a in args)))  # type: ignore[union-attr]
        except Exception as e:  # whatever Python raises here, the interpreter raises when it gets there
            raise Unsupported(f"{type(e).__name__}: {e}") from None
    if name in ("eq", "ne") and len(args) == 2 and all(isinstance(a, Const) and a.handle is None and comparable(a.value) for a in args):
        return Const(bool(_PYTHON[name](*(a.value for a in args))))  # type: ignore[union-attr]
    args = [plain_sequence(m, a) for a in args]
    if any(isinstance(a, Aggregate) for a in args):
        return aggregates(m, name, args)
    tensors = [a for a in args if isinstance(a, Value) and isinstance(a.type, Tensor)]
    if not tensors:
        if name in ("eq", "ne") and any(isinstance(a, Const) and (a.value is None or type(a.value) in (str, bytes)) for a in args) and all(
                isinstance(a, Const) and type(a.value) in _PLAIN or m.builder.is_scalar(a) for a in args):
            return Const(name == "ne")  # a number and something that is none
        if all(m.builder.is_scalar(a) for a in args) and name != "matmul":
            return m.builder.scalar(_SCALAR_NAMES.get(name, name), *args)
        raise Unsupported(f"{name} of {' and '.join(m.builder.describe(a) for a in args)}")
    with library_of(m, tensors):
        binding = operator_for(m.builder.library, name)
        if binding is None:
            raise Unsupported(f"operator {name} of a tensor")
        return m.builder.tree(binding(m.builder, *args))


def comparable(value: Any) -> bool:
    """Whether == of the object is known to run no code of the user's: plain values, and what is guarded by identity."""
    cls = type(value)
    return cls in _PLAIN or issubclass(cls, enum.Enum) or issubclass(cls, tuple(IDENTITY)) and not isinstance(cls.__eq__, types.FunctionType)


class library_of:
    """Run with the rules of the library that the tensors come from."""

    def __init__(self, m: "Machine", tensors: list[Value], library: str = "") -> None:
        self.m = m
        self.library = "mindspore" if any(t.type.library == "mindspore" for t in tensors) else library or "numpy"  # type: ignore[union-attr]

    def __enter__(self) -> None:
        self.before, self.m.builder.library = self.m.builder.library, self.library

    def __exit__(self, *_: object) -> None:
        self.m.builder.library = self.before


def plain_sequence(m: "Machine", a: Tree) -> Tree:
    if isinstance(a, Const) and type(a.value) in (tuple, list):
        return Aggregate(type(a.value).__name__, tuple(m.resolver.items(a)))
    return a


def aggregates(m: "Machine", name: str, args: list[Tree]) -> Tree:
    """+ and * and comparison of tuples and lists."""
    a, b = (args + [None])[:2]
    if isinstance(a, Aggregate) and isinstance(b, Aggregate) and a.kind == b.kind and a.kind in ("tuple", "list"):
        if name == "add":
            return Aggregate(a.kind, a.items + b.items)
        if name in ("eq", "ne"):
            result: Tree = Const(len(a.items) == len(b.items))
            if len(a.items) == len(b.items):
                for x, y in zip(a.items, b.items):
                    if x is y:
                        continue
                    if not (m.builder.is_scalar(x) and m.builder.is_scalar(y)) and not isinstance(x, Const):
                        raise Unsupported("comparison of sequences that hold tensors")
                    result = m.builder.scalar("and", result, apply(m, "eq", [x, y]))
            return result if name == "eq" else apply(m, "not", [result])
    sequence, count = (a, b) if isinstance(a, Aggregate) else (b, a)
    if name == "mul" and isinstance(sequence, Aggregate) and sequence.kind in ("tuple", "list") and m.builder.is_scalar(count) and m.builder.dtype(count) == "int":
        times = m.builder.constant(count)
        if times * len(sequence.items) < 10_000:
            return Aggregate(sequence.kind, sequence.items * times)
    raise Unsupported(f"{name} of {' and '.join(m.builder.describe(x) for x in args)}")


def identical(a: Tree, b: Tree) -> bool:
    if isinstance(a, Const) and isinstance(b, Const):
        if type(a.value) in (int, float, str, bytes, tuple) and type(a.value) is type(b.value):
            raise Unsupported("identity of equal constants")
        return a.value is b.value
    if a is b:
        return True
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and (x.value is None or isinstance(x.value, type) or x.value is Ellipsis):
            if not (isinstance(y, Value) and isinstance(y.type, PyObject)):
                return False
        if isinstance(x, Const) and type(x.value) is bool and isinstance(y, Value) and isinstance(y.type, Tensor):
            return False
    raise Unsupported("identity of run-time values")


def contains(m: "Machine", item: Tree, container: Tree) -> bool:
    if isinstance(container, Const) and isinstance(container.value, (set, frozenset)) and container.handle is not None:
        raise Unsupported("membership in a set that may change")
    if isinstance(item, Const) and isinstance(container, Const) and type(container.value) in (str, dict, tuple, list, frozenset):
        if type(container.value) in (dict, tuple, list):
            m.resolver.items(container)
            if type(container.value) in (tuple, list) and not all(isinstance(i, Const) for i in m.resolver.items(container)):
                raise Unsupported("membership among run-time values")
        return item.value in container.value
    if isinstance(item, Const) and isinstance(container, Aggregate) and container.kind in ("tuple", "list", "dict"):
        items = container.items[::2] if container.kind == "dict" else container.items
        if all(isinstance(i, Const) for i in items):
            return any(item.value is i.value or item.value == i.value for i in items)  # type: ignore[union-attr]
    raise Unsupported("membership among run-time values")


def truth(m: "Machine", tree: Tree) -> Const | Value:
    """bool(tree): a constant or a bool value."""
    if isinstance(tree, Const):
        v = tree.value
        if type(v) in (tuple, list, dict, set, frozenset):
            return Const(m.resolver.length(tree) > 0)
        if type(v) in _PLAIN or v is Ellipsis:
            return Const(bool(v))
        if not hasattr(type(v), "__bool__") and not hasattr(type(v), "__len__"):
            return Const(True)
    elif isinstance(tree, Aggregate):
        if tree.kind in ("tuple", "list", "dict"):
            return Const(bool(tree.items))
        if tree.kind == "method":
            return Const(True)
    elif isinstance(tree, Value):
        if isinstance(tree.type, Scalar):
            if tree.type.kind == "bool":
                return tree
            return m.builder.scalar("bool", tree)
        if isinstance(tree.type, Tensor):
            return m.builder.item(tree, "bool")
    raise Unsupported(f"truth of {m.builder.describe(tree)}")


def inplace(m: "Machine", name: str, target: Tree, operand: Tree) -> Tree:
    """target op= operand. NumPy arrays are written in place; everything else, and MindSpore tensors, get a new value."""
    if isinstance(target, (Aggregate, Const)) and (isinstance(target, Aggregate) and target.kind in ("list", "dict") or isinstance(target, Const) and type(target.value) in (list, dict)):
        raise Unsupported("in-place change of a list or dict")
    if isinstance(target, Value) and isinstance(target.type, Tensor) and target.type.library == "numpy" and not target.type.scalar:
        if name == "matmul" and not (m.builder.is_tensor(operand) and m.builder.rank(operand) > 1):
            raise Unsupported("an in-place matrix product with an operand of rank under 2")
        result = apply(m, name, [target, operand])
        assert isinstance(result, Value) and isinstance(result.type, Tensor)
        store(m, target, result, same_kind=True)
        return target
    return apply(m, name, [target, operand])


_KINDS = {"b": 0, "u": 1, "i": 2, "f": 3}


def store(m: "Machine", view: Value, value: Tree, same_kind: bool = False) -> None:
    """Write value into the memory of view, broadcast and cast."""
    t = view.type
    assert isinstance(t, Tensor)
    if t.readonly:
        raise Unsupported("a store into a read-only view")
    b = m.builder
    if not b.is_tensor(value) and not b.is_scalar(value):
        raise Unsupported(f"storing {b.describe(value)} into a tensor")
    if same_kind and _KINDS[b.dtype(value)[0]] > _KINDS[t.dtype[0]]:
        raise Unsupported(f"an in-place result of {b.dtype(value)} in {t.dtype}")
    if b.is_scalar(value):
        b.fits(value, t.dtype)
    v = b.as_tensor(value, t.dtype)
    vdims = v.type.dims  # type: ignore[union-attr]
    if len(vdims) > t.rank:
        raise Unsupported("a value of higher rank stored into a tensor")
    for have, want in zip(reversed(vdims), reversed(t.dims)):
        if have is want or have.value == 1:
            continue
        if have.value is not None and want.value is not None:
            raise Unsupported(f"a value of size {have} stored into size {want}")
        # As in broadcasting, except that the target never grows.
        m.emit("check", how="bcast", a=have, b=want)
        m.emit("check", how="bcast_into", a=have, b=want)
    for i in m.graph.inputs:
        if i.value is view.root:
            i.writable = True
    if view.root.node is None:  # a block parameter, or an input: any input of this dtype may have come here
        m.stored_through.add(t.dtype)
    m.emit("store", (view, v))


def attribute(m: "Machine", tree: Tree, name: str) -> Tree:
    """tree.name"""
    if isinstance(tree, Const):
        return m.resolver.attribute(tree, name)
    if isinstance(tree, Value) and isinstance(tree.type, Tensor):
        methods = METHODS.get(tree.type.library, {})
        with library_of(m, [tree]):
            if "." + name in methods:
                return m.builder.tree(methods["." + name](m.builder, tree))
        if name in methods:
            return Aggregate("method", (tree, Const(name)))
        raise Unsupported(f"attribute {name} of a {tree.type.library} tensor")
    if isinstance(tree, Aggregate) and tree.kind in ("dict", "tuple", "list") and name in ("items", "keys", "values", "get", "index", "count"):
        return Aggregate("method", (tree, Const(name)))
    if isinstance(tree, Aggregate) and tree.kind == "list" and name in ("append", "extend"):
        return Aggregate("method", (tree, Const(name)))
    if isinstance(tree, Aggregate) and tree.kind == "super":
        cls, obj = tree.items
        assert isinstance(cls, Const) and isinstance(obj, Const)
        return m.resolver.of_super(cls, obj, name)
    raise Unsupported(f"attribute {name} of {m.builder.describe(tree)}")
