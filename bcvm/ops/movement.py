"""Ops that move or look at data: views, joins, gathers, padding."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bcvm.ops import samples as s
from bcvm.ops import shaperules
from bcvm.ops.definition import Composite, Library, Op, View, register
from bcvm.ops.elementwise import ALL, EXACT, FLOATS
from bcvm.shapes.dim import Dim, product

_ALIASES = frozenset({"aliases"})


def _view(name: str, shape: Any, reference: Any, attrs: tuple[str, ...], doc: str, samples: Any, gradient: Any = None,
          operands: tuple[str, ...] = ("x",)) -> None:
    register(Op(name, operands, View(name), "same", shape, reference, None, attrs, effects=_ALIASES, domain=ALL, bound=EXACT, samples=samples,
                gradient=gradient, saves=("operands",) if gradient else (), cost=lambda *_, **__: (Dim.const(0), Dim.const(0)), doc=doc))


def _index(items: Sequence[Any]) -> Any:
    """The NumPy index of slice items."""
    out: list[Any] = []
    for item in items:
        out.append(None if item[0] == "new" else item[1] if item[0] == "index" else slice(*item[1:]))
    return tuple(out)


def _like(b: Any, g: Any, x: Any) -> Any:
    return (b.reshape(g[0], b.dims(x[0])),)


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


_view("transpose", shaperules.transposed, lambda x, perm: np.transpose(x, perm), ("perm",), "Axes in the order of perm.",
      s.fixed((((3, 4),), {"perm": (1, 0)}), (((2, 3, 4),), {"perm": (2, 0, 1)}), (((),), {"perm": ()}), (((0, 2),), {"perm": (1, 0)})),
      lambda b, g, x, y, attrs: (b.transpose(g[0], _inverse(attrs["perm"])),))
_view("reshape", shaperules.reshaped, lambda x, dims: np.reshape(x, tuple(dims)), ("dims",), "The same elements in C order with other sizes; no -1.",
      s.fixed((((3, 4),), {"dims": (2, 6)}), (((1,),), {"dims": ()}), (((0, 3),), {"dims": (5, 0)}), (((2, 3, 4),), {"dims": (24,)})),
      lambda b, g, x, y, attrs: _like(b, g, x))
_view("slice", shaperules.sliced, lambda x, items: x[_index(items)], ("items",), "x[items]; items as in OpBuilder.slice.",
      s.fixed((((5, 6),), {"items": (("slice", 1, 4, None), ("slice", None, None, 2))}), (((5, 6),), {"items": (("index", -1),)}),
              (((5,),), {"items": (("slice", None, None, -1),)}), (((5,),), {"items": (("new",), ("slice", 3, 1, None))}),
              (((5, 2),), {"items": (("slice", -3, 99, 2), ("new",))})))
_view("broadcast_to", shaperules.broadcasted, lambda x, dims: np.broadcast_to(x, tuple(dims)), ("dims",),
      "Repeated along axes of size 1 and new leading axes; read only.",
      s.fixed((((3,),), {"dims": (2, 3)}), (((),), {"dims": (4,)}), (((2, 1),), {"dims": (2, 0)})), lambda b, g, x, y, attrs: (b.op("sum_to", g[0], x[0]),))
_view("expand_dims", shaperules.expanded, lambda x, axis: np.expand_dims(x, tuple(axis)), ("axis",), "New axes of size 1 at these places of the result.",
      s.fixed((((3,),), {"axis": (0,)}), (((3, 4),), {"axis": (1, 3)}), (((),), {"axis": (0,)})), lambda b, g, x, y, attrs: _like(b, g, x))
_view("squeeze", shaperules.squeezed, lambda x, axis: np.squeeze(x, tuple(axis)), ("axis",), "Without these axes, which have size 1.",
      s.fixed((((1, 3),), {"axis": (0,)}), (((1, 1),), {"axis": (0, 1)}), (((3, 1, 0),), {"axis": (1,)})), lambda b, g, x, y, attrs: _like(b, g, x))


# -- joins

def _join_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    axis, start, out = attrs["axis"], Dim.const(0), []
    for part in x:
        stop = start + b.dims(part)[axis]
        whole = ("slice", None, None, None)
        out.append(b.slice(g[0], [whole] * axis + [("slice", b.int_of(start), b.int_of(stop), None)]))
        start = stop
    return tuple(out)


def _moved_cost(*operands: Any, **_: Any) -> Any:
    count = sum((product(o) for o in operands), Dim.const(0))
    return Dim.const(0), count * 8


register(Op("concat", ("*tensors",), Library("concat"), "promote", shaperules.concatenated, lambda *t, axis: np.concatenate(t, axis), None, ("axis",),
            domain=ALL,
            bound=EXACT, samples=s.fixed((((3, 4), (2, 4)), {"axis": 0}), (((3, 1), (3, 0), (3, 5)), {"axis": 1}), (((2, 3, 4),), {"axis": 2}),
                                         (((0,), (0,)), {"axis": 0})),
            gradient=_join_gradient, saves=("operands",), cost=_moved_cost, doc="The tensors behind each other along an axis."))
register(Op("stack", ("*tensors",), Composite(lambda b, *t, axis: b.op("concat", *[b.op("expand_dims", x, axis=(axis,)) for x in t], axis=axis)), "promote",
            None,
            lambda *t, axis: np.stack(t, axis), None, ("axis",), domain=ALL, bound=EXACT,
            samples=s.fixed((((3, 4), (3, 4)), {"axis": 0}), (((3,), (3,)), {"axis": 1}), (((), ()), {"axis": 0})), cost=_moved_cost,
            doc="The tensors along a new axis."))

# -- gathers


def _take_samples(rng: Any, dtype: str) -> Any:
    for shape, indices, axis in (((5, 3), (4,), 0), ((5, 3), (2, 2), 1), ((7,), (), 0), ((4, 0), (3,), 0), ((4, 2), (0,), 0)):
        yield (s.values(rng, dtype, shape), rng.integers(-shape[axis], shape[axis], indices)), {"axis": axis}


register(Op("take", ("x", "indices"), Library("take"), "same", shaperules.taken, lambda x, indices, axis: np.take(x, indices, axis), None, ("axis",),
            effects=frozenset({"raises"}), domain=ALL, bound=EXACT, samples=_take_samples, cost=lambda x, i, **_: (Dim.const(0), product(i) * 8),
            doc="x[..., indices, ...] along an axis; negative indices count from the end, others out of range are an IndexError."))


def _embedding_samples(rng: Any, dtype: str) -> Any:
    for n in ((3,), (2, 4), ()):
        yield (rng.integers(0, 6, n), s.values(rng, dtype, (6, 5))), {}


register(Op("embedding", ("indices", "weight"), Composite(lambda b, indices, weight: b.op("take", weight, indices, axis=0)), "same", None,
            lambda indices, weight: np.take(weight, indices, 0), None, domain=FLOATS, bound=EXACT, samples=_embedding_samples,
            cost=lambda i, w, **_: (Dim.const(0), product(i) * w[-1] * 8), doc="Rows of weight [V, D] for indices [...]: [..., D]."))


def _one_hot(indices: Any, depth: int, dtype: str = "float32") -> Any:
    return np.equal(np.asarray(indices)[..., None], np.arange(depth)).astype(dtype)


def _one_hot_build(b: Any, indices: Any, depth: Any, dtype: str = "float32") -> Any:
    d = depth if isinstance(depth, (int, Dim)) else b.dim_of(depth)
    places = b.op("arange", 0, 1, dims=(d if isinstance(d, Dim) else Dim.const(d),), dtype=b.dtype(indices))
    return b.cast(b.op("eq", b.op("expand_dims", indices, axis=(b.rank(indices),)), places), dtype)


def _one_hot_samples(rng: Any, dtype: str) -> Any:
    for n in ((3,), (2, 4), (), (0,)):
        yield (rng.integers(-1, 6, n),), {"depth": 5, "dtype": dtype}


register(Op("one_hot", ("indices",), Composite(_one_hot_build), "explicit", None, _one_hot, None, ("depth", "dtype"), domain=FLOATS, bound=EXACT,
            samples=_one_hot_samples, cost=lambda i, depth, **_: (product(i) * depth, product(i) * depth * 4),
            doc="[..., depth], 1 at the index and 0 elsewhere; rows of an index out of range are 0."))


# -- padding and triangles

def _pad(x: Any, pads: Sequence[tuple[int, int]], value: float = 0) -> Any:
    return np.pad(x, [tuple(p) for p in pads], constant_values=value) if pads else np.asarray(x)


def _pad_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    items = []
    for (before, _), d in zip(attrs["pads"], b.dims(x[0]), strict=False):
        start = d * 0 + before
        items.append(("slice", b.int_of(start), b.int_of(start + d), None))
    return (b.slice(g[0], items),)


register(Op("pad", ("x",), Library("pad"), "same", shaperules.padded, _pad, None, ("pads", "value"), domain=ALL, bound=EXACT,
            samples=s.fixed((((3,),), {"pads": ((1, 2),), "value": 1}), (((2, 3),), {"pads": ((0, 0), (2, 1)), "value": 0}),
                            (((0, 2),), {"pads": ((1, 1), (0, 0)), "value": 1})),
            gradient=_pad_gradient, saves=("operands",), cost=lambda x, **_: (Dim.const(0), product(x) * 8),
            doc="x with `before` and `after` elements of a value added on each axis."))


def _triangle(name: str, keep: str, fn: Any) -> None:
    def build(b: Any, x: Any, k: int = 0) -> Any:
        rows, columns = b.dims(x)[-2:]
        i = b.op("expand_dims", b.op("arange", k, 1, dims=(rows,), dtype="int64"), axis=(1,))
        j = b.op("arange", 0, 1, dims=(columns,), dtype="int64")
        return b.op("where", b.op(keep, j, i), x, b.cast(0, b.dtype(x)))
    register(Op(name, ("x",), Composite(build), "same", None, lambda x, k=0: fn(x, k), None, ("k",), domain=ALL, bound=EXACT,
                samples=s.fixed((((4, 5),), {"k": 0}), (((2, 3, 3),), {"k": 1}), (((3, 3),), {"k": -1})),
                cost=lambda x, **_: (product(x), product(x) * 8),
                doc=f"x where the column {'is at most' if keep == 'le' else 'is at least'} the row + k, else 0."))


_triangle("tril", "le", np.tril)
_triangle("triu", "ge", np.triu)
