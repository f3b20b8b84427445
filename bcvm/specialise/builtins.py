"""Builtins that ask about types or make aggregates which only the specialiser knows."""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.errors import Unsupported
from bcvm.ops.definition import binds
from bcvm.specialise import operators
from bcvm.specialise.ssa import Aggregate, Tree, Value
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor

CLASSES: dict[str, type] = {}  # library -> the class of its tensors; frameworks add theirs
_CONTAINERS = {"tuple": tuple, "list": list, "dict": dict, "range": range, "slice": slice}


@binds("builtins.range", library="python")
def _range(b: Any, *bounds: Any) -> Aggregate:
    trees = [b.tree(t) for t in bounds]
    if not 1 <= len(trees) <= 3:
        b.unsupported("range takes one to three numbers")
    for i, t in enumerate(trees):
        if b.is_tensor(t) and b.rank(t) == 0 and b.dtype(t)[0] in "iu":
            trees[i] = t = b.item(t)
        if not b.is_scalar(t) or b.dtype(t) == "float":
            b.unsupported("a range of something that is no int")
        if isinstance(t, Value) and t in b.m.resolver.counts:
            trees[i] = t = Const(b.constant(t))
        if b.dtype(t) == "bool":
            trees[i] = b.scalar("int", t)
    start, stop, step = (Const(0), trees[0], Const(1)) if len(trees) == 1 else (*trees, Const(1))[:3]
    return Aggregate("range", (start, stop, step))


@binds("builtins.isinstance", library="python")
def _isinstance(b: Any, obj: Any, classes: Any) -> bool:
    wanted = b.constant(classes)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(c, type) for c in wanted):
        b.unsupported("isinstance of something that is no class")
    library = obj.type.library if isinstance(obj, Value) and isinstance(obj.type, Tensor) else ""
    if library in CLASSES and not any(issubclass(c, CLASSES[library]) and c is not CLASSES[library] for c in wanted):
        return issubclass(CLASSES[library], wanted)  # so are those of its subclasses
    return issubclass(class_of(obj), wanted)


@binds("builtins.type", library="python")
def _type(b: Any, obj: Any) -> Const:
    return Const(class_of(obj))


@binds("builtins.super", library="python")
def _super(b: Any, cls: Any, obj: Any) -> Aggregate:
    if not isinstance(obj, Const) or not isinstance(b.constant(cls), type) or b.constant(cls) not in type(obj.value).__mro__:
        b.unsupported("super() of other than a class and its instance")
    return Aggregate("super", (cls, obj))


@binds("builtins.hasattr", library="python")
def _hasattr(b: Any, obj: Any, name: Any) -> bool:
    text = b.constant(name)
    try:
        operators.attribute(b.m, obj, text)
        return True
    except Unsupported:
        if isinstance(obj, Const) and not hasattr(obj.value, text) and obj.path is not None and hasattr(obj.value, "__dict__") and not hasattr(type(obj.value), "__getattr__"):
            b.m.resolver.guard("absent", obj.path, text)
            return False
        raise


@binds("builtins.getattr", library="python")
def _getattr(b: Any, obj: Any, name: Any, default: Any = None) -> Any:
    text = b.constant(name)
    if default is not None and not _hasattr(b, obj, Const(text)):
        return default
    result = operators.attribute(b.m, obj, text)
    if isinstance(result, Aggregate) and result.kind == "property":
        b.unsupported("getattr of a property")
    return result


@binds("builtins.callable", library="python")
def _callable(b: Any, obj: Any) -> bool:
    if isinstance(obj, Const):
        return callable(obj.value)
    return isinstance(obj, Aggregate) and obj.kind == "method"


def class_of(tree: Tree) -> type:
    """type(object) of what a tree stands for; Unsupported if not known."""
    if isinstance(tree, Const):
        return type(tree.value)
    if isinstance(tree, Aggregate) and tree.kind in _CONTAINERS:
        return _CONTAINERS[tree.kind]
    if isinstance(tree, Value):
        t = tree.type
        if isinstance(t, Tensor):
            if t.library == "numpy":
                return np.dtype(t.dtype).type if t.scalar else np.ndarray
            if t.library in CLASSES and tree.node is not None:
                return CLASSES[t.library]
        if isinstance(t, Scalar):
            return {"int": int, "float": float, "bool": bool}[t.kind]
        if isinstance(t, PyObject) and t.cls is not None:
            return t.cls
    raise Unsupported("the class of a run-time value")


__all__ = ["CLASSES", "class_of"]
