"""Bindings of MindSpore's sorts, after MindSpore 2.10. Where elements are equal topk gives the first ones; MindSpore gives some of them, and puts NaN anywhere."""
from __future__ import annotations

from typing import Any

from bcvm.bytecode.dtypes import kind
from bcvm.frameworks.mindspore_naming import MS
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import flag, none, sequence, sizes
from bcvm.ops.numpy_bindings import flat
from bcvm.ops.ordering import at_rows
from bcvm.shapes.dim import Dim


def _order(b: Any, x: Any, axis: int, descending: bool) -> Any:
    """The indices (int64) that sort x; equal elements in their order."""
    if not descending:
        return b.op("argsort", x, axis=axis)
    if kind(b.dtype(x)) == "b":
        return b.unsupported("a sort of bools")
    return b.op("argsort", b.op("neg" if kind(b.dtype(x)) == "f" else "invert", x), axis=axis)


def _picked(b: Any, x: Any, order: Any, axis: int) -> Any:
    return b.op("take", x, order, axis=0) if b.rank(x) == 1 else at_rows(b, x, order, axis)


@binds("mindspore.ops.argsort", method="argsort", **MS)
def _argsort(b: Any, x: Any, axis: Any = -1, descending: Any = False) -> Any:
    return b.cast(_order(b, x, b.axis(axis, b.rank(x)), flag(b, descending)), "int32")


@binds("mindspore.ops.sort", **MS)
def _sort(b: Any, x: Any, axis: Any = -1, descending: Any = False) -> Any:
    on = b.axis(axis, b.rank(x))
    order = _order(b, x, on, flag(b, descending))
    return b.tuple([_picked(b, x, order, on), b.cast(order, "int32")])


@binds("mindspore.ops.topk", method="topk", **MS)
def _topk(b: Any, x: Any, k: Any, dim: Any = None, largest: Any = True, sorted: Any = True) -> Any:
    on = b.axis(-1 if none(b, dim) else dim, b.rank(x))
    n = sizes(b, [k])[0]
    b.require("le", Dim.const(0), n, "topk of a negative number of elements")
    b.require("le", n, b.dims(x)[on], "topk of more elements than there are")
    order = _order(b, x, on, flag(b, largest))
    first = b.slice(order, [("slice", None, None, None)] * on + [("slice", None, b.int_of(n), None)])
    return b.tuple([_picked(b, x, first, on), b.cast(first, "int32")])


@binds("mindspore.ops.repeat_interleave", method="repeat_interleave", **MS)
def _repeat(b: Any, x: Any, repeats: Any, axis: Any = None) -> Any:
    """The same number for every element: a broadcast and a reshape."""
    if b.is_tensor(repeats) or b.is_sequence(repeats) and len(sequence(b, repeats)) != 1:
        return b.unsupported("repeat_interleave with a number for each element")
    x, on = (flat(b, x), 0) if none(b, axis) else (x, b.axis(axis, b.rank(x)))
    n = sizes(b, sequence(b, repeats))[0]
    b.require("lt", Dim.const(0), n, "repeats must be positive")
    dims = list(b.dims(x))
    wide = b.op("broadcast_to", b.op("expand_dims", x, axis=(on + 1,)), dims=(*dims[:on + 1], n, *dims[on + 1:]))
    return b.reshape(b.copy(wide), [*dims[:on], dims[on] * n, *dims[on + 1:]])
