"""Bindings of NumPy's functions that make arrays: filled, counted, of other arrays, of numbers of a dtype."""
from __future__ import annotations

from typing import Any

from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import const, counted, dtype_name, none, sequence, sizes
from bcvm.ops.numpy_bindings import as_tensor, unused
from bcvm.shapes.dim import Dim

# -- creation


def _filled(name: str, value: Any) -> None:
    def binding(b: Any, shape: Any, dtype: Any = "float64", order: Any = "C", **more: Any) -> Any:
        unused(b, **more)
        return b.full(sizes(b, sequence(b, shape)), value, "float64" if none(b, dtype) else dtype_name(b, dtype))

    def like(b: Any, a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, **more: Any) -> Any:
        unused(b, **more)
        a = as_tensor(b, a)
        dims = list(b.dims(a)) if none(b, shape) else sizes(b, sequence(b, shape))
        return b.full(dims, value, b.dtype(a) if none(b, dtype) else dtype_name(b, dtype))
    binds(f"numpy.{name}")(binding)
    binds(f"numpy.{name}_like")(like)


_filled("zeros", 0)
_filled("ones", 1)
_filled("empty", 0)  # NumPy leaves the values open; zeros are as good and the same each time


@binds("numpy.full")
def _full(b: Any, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **more: Any) -> Any:
    unused(b, **more)
    if b.is_tensor(fill_value) and b.rank(fill_value):
        return b.unsupported("np.full with an array")
    name = b.dtype(as_tensor(b, fill_value)) if none(b, dtype) else dtype_name(b, dtype)
    return b.full(sizes(b, sequence(b, shape)), fill_value, name)


@binds("numpy.full_like")
def _full_like(b: Any, a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, **more: Any) -> Any:
    unused(b, shape=shape, **more)
    if b.is_tensor(fill_value) and b.rank(fill_value):
        return b.unsupported("np.full_like with an array")
    a = as_tensor(b, a)
    return b.full(list(b.dims(a)), fill_value, b.dtype(a) if none(b, dtype) else dtype_name(b, dtype))


@binds("numpy.arange")
def _arange(b: Any, start: Any = None, stop: Any = None, step: Any = 1, dtype: Any = None, **more: Any) -> Any:
    unused(b, **more)
    return counted(b, start, stop, 1 if none(b, step) else step, "int64" if none(b, dtype) else dtype_name(b, dtype))


def _eye(b: Any, N: Any, M: Any = None, k: Any = 0, dtype: Any = "float64", order: Any = "C", **more: Any) -> Any:
    unused(b, **more)
    n, m = sizes(b, [N, N if none(b, M) else M])
    return b.op("eye", dims=(n, m), k=const(b, k), dtype=dtype_name(b, dtype))


binds("numpy.eye")(_eye)
binds("numpy.identity")(lambda b, n, dtype="float64", **more: _eye(b, n, None, 0, dtype, **more))

# -- dtypes


@binds("numpy.asarray")
def asarray(b: Any, a: Any, dtype: Any = None, **more: Any) -> Any:
    unused(b, **more)
    if not b.is_tensor(a):
        return b.unsupported("an array from other than an array")
    x = a if none(b, dtype) else b.cast(a, dtype_name(b, dtype))
    return b.reshape(x, ()) if b.is_element(x) else x  # of a NumPy scalar an array of rank 0


@binds("numpy.ascontiguousarray")
def _contiguous(b: Any, a: Any, dtype: Any = None, **more: Any) -> Any:
    """A reshape to the sizes that it has, which copies where it must; of rank 0 it is of rank 1."""
    x = asarray(b, a, dtype, **more)
    return b.reshape(x, list(b.dims(x)) or [Dim.const(1)], contiguous=True)


def _scalar_type(name: str, dtype: str) -> None:
    def binding(b: Any, value: Any = 0) -> Any:
        if b.is_tensor(value) and (b.rank(value) or b.is_element(value)):
            return b.cast(value, dtype)
        if b.is_tensor(value):
            value = b.item(value)
        return b.number(value, dtype) if b.is_scalar(value) else b.unsupported(f"np.{name} of other than an array or a number")
    binds(f"numpy.{name}")(binding)


for _name, _dtype in [(n, n) for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                                       "float64")] + [("bool_", "bool")]:
    _scalar_type(_name, _dtype)


def copied(b: Any, x: Any) -> Any:
    """A tensor of its own: what is written into it must not reach x."""
    return b.copy(as_tensor(b, x))


binds("numpy.copy")(lambda b, a, order="K", subok=False: asarray(b, copied(b, a)))
binds(method="copy", library="numpy")(lambda b, a, order="C": copied(b, a))
