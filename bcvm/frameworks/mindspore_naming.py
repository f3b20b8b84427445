"""What the bindings of MindSpore share: its names, and checks for what PyNative refuses."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bcvm.bytecode.dtypes import is_float
from bcvm.ops.definition import binds
from bcvm.shapes.dim import Dim
from bcvm.specialise import settle

MS: dict[str, str] = {"library": "mindspore"}


def named(*names: str) -> list[str]:
    """Each name in mindspore.ops, mindspore.mint and mindspore.mint.nn.functional; binding is by identity, so aliases do no harm."""
    return [f"mindspore.{place}.{n}" for n in names for place in ("ops", "mint", "mint.nn.functional", "ops.auto_generate", "ops.function")]


def primitive(name: str) -> list[str]:
    """The class of a primitive, and the instance that MindSpore's functions share."""
    return [f"mindspore.ops.{name}", f"mindspore.ops.auto_generate.{name}"]


def floating(b: Any, x: Any, what: str) -> Any:
    return x if b.is_tensor(x) and is_float(b.dtype(x)) else b.unsupported(f"MindSpore's {what} of {b.dtype(x)}")


def of_tensor(b: Any, x: Any, what: str) -> Any:
    """PyNative takes no number in its place."""
    return x if b.is_tensor(x) else b.unsupported(f"MindSpore's {what} of {b.describe(x)}")


def same_dtype(b: Any, what: str, *tensors: Any) -> None:
    if len({b.dtype(t) for t in tensors}) > 1:
        b.unsupported(f"MindSpore's {what} of tensors of different dtypes")


def settled(b: Any, d: Any) -> int | None:
    """What a size is. One that sizes of weights decide, and nothing that is passed to the call, is what it was when the graph was made; checked at
    every call."""
    if d.value is not None:
        return int(d.value)
    try:
        value = settle.size(b.m, d)
    except LookupError:
        return None
    b.require("eq", d, Dim.const(value), "a weight of another size")
    return value


def bind_primitive(name: str, function: Callable[..., Any]) -> None:
    binds(*primitive(name), **MS)(lambda b, prim, *args: function(b, *args))


def ms_dtype(b: Any, name: str) -> Any:
    """MindSpore's dtype object."""
    module = sys.modules["mindspore"]
    return getattr(module, "bool_" if name == "bool" else name)
