"""From an object a program calls to the binding that stands for it.

    binding_for(np.sum)                -> ("numpy", fn, None)
    binding_for(ops.LayerNorm(-1,-1))  -> ("mindspore", fn, the instance)
    method_for("numpy", "sum"), attribute_for("numpy", "shape"), operator_for("mindspore", "floordiv")

A binding is called as fn(builder, *arguments), for an instance as fn(builder, instance, *arguments); a method, attribute or operator
as fn(builder, tensor, *arguments).
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from bcvm.ops.definition import BINDINGS, METHODS, OPS
from bcvm.turns import checkpoint

Binding = Callable[..., Any]

_by_object: dict[int, tuple[Any, str, Binding]] = {}    # id -> (the object, kept alive; library; binding)
_by_class: dict[type, tuple[str, Binding]] = {}         # primitive classes, whose instances are called
_resolved: set[str] = set()                             # names whose object is found: once, whatever is put under the name later
_stamp: tuple[int, int] = (0, 0)


def binding_for(obj: Any) -> tuple[str, Binding, Any] | None:
    """Library, binding and, for a callable instance of a bound class, the instance. None if the object is not bound."""
    found = _known(obj)
    if found is None and _stamp != _current():
        _rebuild()
        found = _known(obj)
    return found


def method_for(library: str, name: str) -> Binding | None:
    """The binding of a tensor method."""
    return METHODS.get(library, {}).get(name)


def attribute_for(library: str, name: str) -> Binding | None:
    """The binding of a tensor attribute (`shape`)."""
    return METHODS.get(library, {}).get("." + name)


def operator_for(library: str, name: str) -> Binding | None:
    """The binding of a Python operator (`add`, `matmul`, `lt`, `invert`, as CALL_OP names them) on a library's tensors: the library's own
    where its rules differ, else the op of that name."""
    own = METHODS.get(library, {}).get(f"operator {name}")
    if own is not None:
        return own
    return (lambda b, *operands: b.op(name, *operands)) if name in OPS else None


def _known(obj: Any) -> tuple[str, Binding, Any] | None:
    entry = _by_object.get(id(obj))
    if entry is not None and entry[0] is obj:
        return entry[1], entry[2], None
    by_class = _by_class.get(type(obj))
    return (*by_class, obj) if by_class is not None else None


def _current() -> tuple[int, int]:
    return len(sys.modules), sum(len(names) for names in BINDINGS.values())


def _rebuild() -> None:
    global _stamp
    _stamp = _current()
    for library, names in BINDINGS.items():
        for name, fn in names.items():
            checkpoint()
            if name in _resolved:
                continue
            obj = _resolve(name)
            if obj is None or _foreign(obj, name):
                continue
            _resolved.add(name)
            if isinstance(obj, type) and library == "mindspore":
                _by_class[obj] = (library, fn)
            else:
                _by_object[id(obj)] = (obj, library, fn)


def _foreign(obj: Any, name: str) -> bool:
    """A Python function of somebody else that was put in place of the library's."""
    return isinstance(obj, FunctionType) and (obj.__module__ or "").partition(".")[0] != name.partition(".")[0]


def _resolve(name: str) -> Any:
    """The object of a qualified name, of what is imported already; None if there is none in this version."""
    root, *path = name.split(".")
    obj = sys.modules.get(root)
    for step in path:
        if obj is None:
            return None
        obj = getattr(obj, step, None)
    return obj
