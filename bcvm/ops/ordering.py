"""Ops whose work depends on values: orders, counts, places where something holds; and NumPy's calls that mean them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bcvm.ops import samples as s
from bcvm.ops import shaperules
from bcvm.ops.definition import Composite, Library, Op, binds, register
from bcvm.ops.elementwise import ALL, EXACT
from bcvm.ops.function_bindings import const, dtype_name, none, sequence, sizes, taken
from bcvm.ops.numpy_bindings import as_tensor, flat, into, unused
from bcvm.ops.numpy_creation import asarray, copied
from bcvm.shapes.dim import Dim, maximum, product

_INTEGERS = ("int64", "int32", "int16", "int8")


def _cost(x: Any, **_: Any) -> Any:
    return product(x) * 8, product(x) * 8


def _argsort_samples(rng: Any, dtype: str) -> Any:
    for shape, axis in (((17,), 0), ((300,), 0), ((40, 3), 0), ((3, 40), 1), ((2, 30, 4), 1), ((0,), 0), ((3, 0), 1), ((1,), 0)):
        x = s.values(rng, dtype, shape)
        if x.size > 200:
            x[::7] = x[0]  # equal ones keep their order
        yield (x,), {"axis": axis}


register(Op("argsort", ("x",), Library("argsort"), "index", shaperules.same, lambda x, axis: np.argsort(x, axis, kind="stable"), None, ("axis",), domain=ALL,
            bound=EXACT, samples=_argsort_samples, cost=_cost, doc="The indices that sort x along one axis; equal elements in their order, NaN last."))


def at_rows(b: Any, x: Any, indices: Any, axis: int) -> Any:
    """A gather from the rows behind each other, by the place of each row's start."""
    rank = b.rank(x)
    order = (*(i for i in range(rank) if i != axis), axis)
    turned, back = b.transpose(x, order), tuple(order.index(i) for i in range(rank))
    places = b.transpose(indices, order)
    length, rows = b.dims(turned)[-1], b.dims(turned)[:-1]
    starts = b.reshape(b.op("arange", 0, b.int_of(length), dims=(product(rows),), dtype="int64"), [*rows, Dim.const(1)])
    inside = b.op("where", b.op("lt", places, 0), b.op("add", places, b.int_of(length)), places)
    b.require("eq", product(rows), product(b.dims(places)[:-1]), "take_along_axis of other rows than x has")
    picked = b.op("take", b.reshape(turned, [product(b.dims(turned))]), b.op("add", inside, starts), axis=0)
    return picked if axis == rank - 1 else b.copy(b.transpose(picked, back))


def _sorted(b: Any, x: Any, axis: int) -> Any:
    order = b.op("argsort", x, axis=axis)
    return b.op("take", x, order, axis=0) if b.rank(x) == 1 else at_rows(b, x, order, axis)


register(Op("sort", ("x",), Composite(_sorted), "same", None, lambda x, axis: np.sort(x, axis, kind="stable"), None, ("axis",),
            domain=ALL, bound=EXACT, samples=_argsort_samples, cost=_cost, doc="x sorted along one axis, NaN last."))


def _bincount_samples(rng: Any, dtype: str) -> Any:
    for n, size in ((30, 5), (0, 3), (300, 300), (0, 0)):
        yield (rng.integers(0, min(max(size, 1), 128), n).astype(dtype),), {"dims": (size,)}


def _bincount(x: Any, dims: Sequence[int]) -> Any:
    if x.size and (x.min() < 0 or x.max() >= dims[0]):
        raise ValueError(f"bincount: numbers from {x.min()} to {x.max()} do not fit into {dims[0]} counts")
    return np.bincount(x, minlength=dims[0])


register(Op("bincount", ("x",), Library("bincount"), "index", shaperules.given, _bincount, None, ("dims",), effects=frozenset({"raises"}), domain=_INTEGERS,
            bound=EXACT, samples=_bincount_samples, cost=_cost, doc="How often each of 0..n-1 occurs in a vector of integers; n is the only size."))


def _flatnonzero_samples(rng: Any, dtype: str) -> Any:
    for n, size in ((0, 0), (1, 1), (40, 0), (40, 9), (40, 60)):
        yield (rng.random(n) < 0.4,), {"dims": (size,)}


def _flatnonzero_exact(x: Any, dims: Sequence[int]) -> Any:
    places = np.flatnonzero(x)[:dims[0]]
    return np.concatenate([places, np.zeros(dims[0] - len(places), np.int64)])


register(Op("flatnonzero", ("x",), Library("flatnonzero"), "index", shaperules.given, _flatnonzero_exact, None, ("dims",), domain=("bool",), bound=EXACT,
            samples=_flatnonzero_samples, cost=_cost, doc="The first n places where a vector is true, n being the only size; 0 where there are no more."))


# -- NumPy's calls

def _order(b: Any, a: Any, axis: Any, kind: Any, order: Any, stable: Any) -> tuple[Any, int]:
    if not none(b, order) or not none(b, kind) and const(b, kind) not in ("stable", "mergesort", "quicksort", "heapsort", "introsort"):
        b.unsupported("a sort by fields")
    x = as_tensor(b, a)
    if none(b, axis):
        return flat(b, x), 0
    return x, b.axis(axis, b.rank(x))


@binds("numpy.argsort", method="argsort")
def _argsort(b: Any, a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    x, on = _order(b, a, axis, kind, order, stable)
    return b.op("argsort", x, axis=on)


@binds("numpy.sort")
def _sort(b: Any, a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    x, on = _order(b, a, axis, kind, order, stable)
    return b.op("sort", x, axis=on)


@binds("numpy.take_along_axis")
def _take_along_axis(b: Any, arr: Any, indices: Any, axis: Any = -1) -> Any:
    """For indices that have as many rows as the array: no broadcasting."""
    if none(b, axis) or b.rank(arr) != b.rank(indices) or b.dtype(indices) != "int64":
        return b.unsupported("np.take_along_axis other than of int64 indices of the array's rank")
    on = b.axis(axis, b.rank(arr))
    x, length = b.dims(arr), b.dims(arr)[on]
    for i, (here, there) in enumerate(zip(x, b.dims(indices), strict=True)):
        if i != on:
            b.require("eq", here, there, "np.take_along_axis that broadcasts")
    if b.rank(arr) == 1:
        return taken(b, arr, indices, 0)
    inside = b.op("logical_and", b.op("ge", indices, b.scalar("neg", b.int_of(length))), b.op("lt", indices, b.int_of(length)))
    b.require("eq", _counted(b, b.op("logical_not", inside)), Dim.const(0), "np.take_along_axis: an index out of range")
    return at_rows(b, arr, indices, on)


def _counted(b: Any, mask: Any) -> Dim:
    """How many elements of a mask are true, known when the call runs."""
    return b.dim_of(b.item(b.op("sum", mask, axis=tuple(range(b.rank(mask))))))


@binds("numpy.cumsum", method="cumsum")
def _cumsum(b: Any, a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    unused(b, dtype=dtype)
    if none(b, axis):
        a, axis = flat(b, a), 0
    return into(b, out, b.op("cumsum", a, axis=b.axis(axis, b.rank(a))))


@binds("numpy.bincount")
def _bincounts(b: Any, x: Any, weights: Any = None, minlength: Any = 0) -> Any:
    if not none(b, weights) or not b.is_tensor(x) or b.rank(x) != 1 or b.dtype(x) not in _INTEGERS:
        return b.unsupported("np.bincount other than of a vector of signed integers, without weights")
    b.require("lt", Dim.const(0), product(b.dims(x)), "np.bincount of nothing")
    least = sizes(b, [0 if none(b, minlength) else minlength])[0]
    b.require("le", Dim.const(0), least, "np.bincount with a negative minlength")
    top = b.dim_of(b.item(b.op("max", x, axis=(0,)))) + 1
    return b.op("bincount", x, dims=(maximum(least, top),))


def true_places(b: Any, mask: Any) -> Any:
    """The places where a vector is true, or not zero."""
    hit = mask if b.dtype(mask) == "bool" else b.op("ne", mask, 0)
    n = _counted(b, hit)
    b.require("le", Dim.const(0), n, "a count is not negative")
    return b.op("flatnonzero", hit, dims=(n,))


@binds("numpy.flatnonzero")
def _flatnonzero(b: Any, a: Any) -> Any:
    return true_places(b, flat(b, a))


@binds("numpy.nonzero", method="nonzero")
def _nonzero(b: Any, a: Any) -> Any:
    if not b.is_tensor(a) or b.rank(a) != 1:
        return b.unsupported("np.nonzero of other than a vector")
    return b.tuple([true_places(b, a)])


def numbers(b: Any, values: Any, dtype: str | None) -> Any:
    """A vector of Python numbers. float16 and float32 are rounded once, from float64, as NumPy does."""
    items = sequence(b, values)
    kinds = {b.dtype(v) for v in items if b.is_scalar(v)}
    if not items or not all(b.is_scalar(v) for v in items) or kinds - {"int", "float", "bool"}:
        return b.unsupported("np.array of other than numbers")
    own = "float64" if "float" in kinds else "int64" if "int" in kinds else "bool"
    dtype = dtype or own
    if dtype not in ("float16", "float32", "float64", "int64", "bool") or dtype != own and not dtype.startswith("float"):
        return b.unsupported(f"np.array of Python numbers as {dtype}")
    wide = "float64" if dtype.startswith("float") else dtype
    return b.cast(b.op("stack", *(b.cast(v, wide) for v in items), axis=0), dtype)


@binds("numpy.array")
def _array(b: Any, a: Any, dtype: Any = None, **more: Any) -> Any:
    if not b.is_tensor(a) and b.is_sequence(a):
        unused(b, **more)
        return numbers(b, a, None if none(b, dtype) else dtype_name(b, dtype))
    x = as_tensor(b, a)
    return asarray(b, x, dtype, **more) if not none(b, dtype) and dtype_name(b, dtype) != b.dtype(x) else asarray(b, copied(b, x))
