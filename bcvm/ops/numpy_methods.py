"""Bindings of ndarray's attributes, of the functions that read them, and of methods that are not also functions."""
from __future__ import annotations

from typing import Any

from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import const, dtype_name, none, sequence
from bcvm.ops.numpy_bindings import flat, reshaped
from bcvm.ops.numpy_creation import copied
from bcvm.shapes.dim import product


@binds("numpy.shape", attribute="shape", library="numpy")
def _shape(b: Any, a: Any) -> Any:
    return b.tuple([b.size(a, i) for i in range(b.rank(a))])


@binds("numpy.ndim", attribute="ndim", library="numpy")
def _ndim(b: Any, a: Any) -> Any:
    return b.rank(a)


@binds("numpy.size", attribute="size", library="numpy")
def _size(b: Any, a: Any, axis: Any = None) -> Any:
    if not none(b, axis):
        return b.size(a, b.axis(axis, b.rank(a)))
    return b.int_of(product(b.dims(a)))


@binds(attribute="dtype", library="numpy")
def _dtype(b: Any, x: Any) -> Any:
    import numpy as np
    return np.dtype(b.dtype(x))


@binds(attribute="itemsize", library="numpy")
def _itemsize(b: Any, x: Any) -> Any:
    from bcvm.bytecode.dtypes import itemsize
    return itemsize(b.dtype(x))


@binds(attribute=("T",), library="numpy")
def _reversed(b: Any, x: Any) -> Any:
    return b.transpose(x, tuple(range(b.rank(x)))[::-1])


@binds(attribute="mT", library="numpy")
def _matrix_transpose(b: Any, x: Any) -> Any:
    n = b.rank(x)
    return b.transpose(x, (*range(n - 2), n - 1, n - 2)) if n >= 2 else b.unsupported("mT of rank under 2")


@binds(method="reshape", library="numpy")
def _reshape(b: Any, x: Any, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
    if const(b, order) != "C" or copy is not None:
        return b.unsupported("reshape with order or copy")
    return reshaped(b, x, sequence(b, shape[0]) if len(shape) == 1 else list(shape))


@binds(method="flatten", library="numpy")
def _flatten(b: Any, x: Any, order: Any = "C") -> Any:
    return copied(b, flat(b, x)) if const(b, order) == "C" else b.unsupported("flatten with order other than C")


@binds(method="item", library="numpy")
def _item(b: Any, x: Any, *index: Any) -> Any:
    return b.item(x) if not index else b.unsupported("item with an index")


@binds(method="conj", library="numpy")
def _conj(b: Any, x: Any) -> Any:
    return x


@binds("numpy.astype", method="astype")
def _astype(b: Any, x: Any, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: Any = True, copy: Any = True) -> Any:
    if const(b, casting) != "unsafe":
        return b.unsupported("astype with a casting rule")
    return copied(b, x) if dtype_name(b, dtype) == b.dtype(x) and const(b, copy) else b.cast(x, dtype_name(b, dtype))
