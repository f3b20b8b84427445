"""Reductions over axes. Attrs: `axis`, a tuple of non-negative ints, and `keepdims`."""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.ops import samples as s
from bcvm.ops import shaperules
from bcvm.ops.definition import Library, Op, Reduction, register
from bcvm.ops.elementwise import ALL, EXACT, FLOATS, NUMBERS
from bcvm.shapes.dim import product

_ATTRS = ("axis", "keepdims")


def _cost(x: Any, **_: Any) -> Any:
    return product(x), product(x) * 4


def kept(b: Any, y: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """A reduced value with its axes back, as 1, so that it broadcasts against x."""
    return y if keepdims or not axis else b.op("expand_dims", y, axis=tuple(axis))


def _accumulated(name: str) -> Any:
    """Floating point is summed in at least double precision and rounded once."""
    fn = getattr(np, name)

    def reference(x: Any, axis: Any = (), keepdims: bool = False) -> Any:
        x = np.asarray(x)
        with np.errstate(all="ignore"):
            if x.dtype.kind == "f":
                wide = np.longdouble if x.dtype.itemsize == 8 else np.float64
                return np.asarray(fn(x, axis=tuple(axis), keepdims=keepdims, dtype=wide)).astype(x.dtype)[()]
            return fn(x, axis=tuple(axis), keepdims=keepdims)
    return reference


def _plain(name: str) -> Any:
    fn = getattr(np, name)

    def eager(x: Any, axis: Any = (), keepdims: bool = False) -> Any:
        return fn(x, axis=tuple(axis), keepdims=keepdims)
    return eager


def _index(name: str) -> Any:
    fn = getattr(np, name)

    def eager(x: Any, axis: Any = (), keepdims: bool = False) -> Any:
        """One axis; several must be all of them, and then the index counts in the flattened operand."""
        x = np.asarray(x)
        return fn(x, axis=axis[0] if len(axis) == 1 else None, keepdims=keepdims)
    return eager


def _sum_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    return (b.op("broadcast_to", kept(b, g[0], x[0], attrs["axis"], attrs.get("keepdims", False)), dims=b.dims(x[0])),)


def _extreme_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    """Shared equally by the elements that are the extreme one."""
    axis, keepdims = attrs["axis"], attrs.get("keepdims", False)
    hit = b.cast(b.op("eq", x[0], kept(b, y[0], x[0], axis, keepdims)), b.dtype(x[0]))
    share = b.op("truediv", hit, b.op("sum", hit, axis=axis, keepdims=True))
    return (b.op("mul", share, kept(b, g[0], x[0], axis, keepdims)),)


# Relative error for sums; against the sum of the magnitudes where terms cancel.
_SUM_BOUND = {**EXACT, "float16": 2e-3, "float32": 1e-5, "float64": 1e-13}

register(Op("sum", ("x",), Reduction("sum"), "sum", shaperules.reduced, _accumulated("sum"), _plain("sum"), _ATTRS, domain=ALL, bound=_SUM_BOUND,
            samples=s.reduction(), gradient=_sum_gradient, saves=("operands",), cost=_cost, doc="The sum over axes."))
register(Op("prod", ("x",), Reduction("prod"), "sum", shaperules.reduced, _accumulated("prod"), _plain("prod"), _ATTRS, domain=ALL, bound=_SUM_BOUND,
            samples=s.reduction(), cost=_cost, doc="The product over axes.",
            gradient=lambda b, g, x, y, attrs: (b.op("truediv", b.op("mul", kept(b, g[0], x[0], attrs["axis"], attrs.get("keepdims", False)),
                                                                     kept(b, y[0], x[0], attrs["axis"], attrs.get("keepdims", False))), x[0]),),
            saves=("operands", "results")))
register(Op("max", ("x",), Reduction("max"), "same", shaperules.nonempty_reduced, _plain("max"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(empty=False), gradient=_extreme_gradient, saves=("operands", "results"), cost=_cost,
            doc="The largest over axes; NaN if any is."))
register(Op("min", ("x",), Reduction("min"), "same", shaperules.nonempty_reduced, _plain("min"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(empty=False), gradient=_extreme_gradient, saves=("operands", "results"), cost=_cost,
            doc="The smallest over axes; NaN if any is."))
register(Op("any", ("x",), Reduction("any"), "bool", shaperules.reduced, _plain("any"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(), cost=_cost, doc="Whether any is true."))
register(Op("all", ("x",), Reduction("all"), "bool", shaperules.reduced, _plain("all"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(), cost=_cost, doc="Whether all are true."))
register(Op("argmax", ("x",), Reduction("argmax"), "index", shaperules.nonempty_reduced, _index("argmax"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(empty=False, single_axis=True), cost=_cost,
            doc="The first index of the largest, or of the first NaN; all axes: in the flattened tensor."))
register(Op("argmin", ("x",), Reduction("argmin"), "index", shaperules.nonempty_reduced, _index("argmin"), None, _ATTRS, domain=ALL, bound=EXACT,
            samples=s.reduction(empty=False, single_axis=True), cost=_cost,
            doc="The first index of the smallest, or of the first NaN; all axes: in the flattened tensor."))


def _cumsum_samples(rng: Any, dtype: str) -> Any:
    for shape, axis in (((17,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1), ((0,), 0), ((3, 0), 0)):
        yield (s.values(rng, dtype, shape, -2, 2),), {"axis": axis}


def _cumsum_exact(x: Any, axis: int) -> Any:
    x = np.asarray(x)
    if x.dtype.kind == "f":
        return np.cumsum(x, axis, dtype=np.longdouble if x.dtype.itemsize == 8 else np.float64).astype(x.dtype)
    return np.cumsum(x, axis)


register(Op("cumsum", ("x",), Library("cumsum"), "sum", shaperules.same, _cumsum_exact, lambda x, axis: np.cumsum(x, axis), ("axis",), domain=NUMBERS,
            bound=_SUM_BOUND, samples=_cumsum_samples, cost=_cost, doc="Running sums along one axis."))


def _sum_to(grad: Any, like: Any) -> Any:
    grad, shape = np.asarray(grad), np.shape(like)
    lead = grad.ndim - len(shape)
    grad = grad.sum(axis=tuple(range(lead)), dtype=grad.dtype)
    return grad.sum(axis=tuple(i for i, d in enumerate(shape) if d == 1 and grad.shape[i] != 1), keepdims=True, dtype=grad.dtype)[()]


register(Op("sum_to", ("grad", "like"), Library("sum_to"), "same", lambda ctx, grad, like: tuple(like), _sum_to, None, domain=FLOATS, bound=_SUM_BOUND,
            samples=s.fixed((((3, 4), (4,)), {}), (((3, 4), (3, 1)), {}), (((2, 3), (2, 3)), {}), (((2, 3), ()), {})),
            cost=_cost, doc="grad summed over the axes that `like` was broadcast along: the gradient of broadcasting."))
