"""Ops made of other ops: means, softmax, norms, attention.

Half precision is computed in float32 and rounded once; integers become floating point first.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.ops import numerics, shaperules
from bcvm.ops import samples as s
from bcvm.ops.definition import Composite, Op, register
from bcvm.ops.elementwise import EXACT, FLOATS, NUMBERS
from bcvm.shapes.dim import Dim, product

# Relative to the largest magnitude of the result.
_BOUND = {**EXACT, "float16": 4e-3, "float32": 2e-5, "float64": 1e-12}


def _cost(x: Any, *_: Any, **__: Any) -> Any:
    return product(x) * 8, product(x) * 8


def _composite(name: str, operands: tuple[str, ...], build: Callable[..., Any], exact: Callable[..., Any], attrs: tuple[str, ...], samples: Any, doc: str, *,
               dtype: str = "float", shape: Any = shaperules.same, domain: tuple[str, ...] = FLOATS, eager: Any = None) -> None:
    """`exact` computes in float64; the same code in the operand's dtype is the eager form."""
    register(Op(name, operands, Composite(build), dtype, shape, numerics.exactly(exact), eager or _eager(exact), attrs, domain=domain, bound=_BOUND,
                samples=samples, cost=_cost, doc=doc))


def _eager(fn: Callable[..., Any]) -> Callable[..., Any]:
    def eager(*arrays: Any, **attrs: Any) -> Any:
        arrays = tuple(a if isinstance(a, np.ndarray) and a.dtype.kind in "fb" else numerics.floating(a) for a in arrays)
        dtype = arrays[0].dtype
        if dtype.itemsize == 2:
            arrays = tuple(a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays)
        with np.errstate(all="ignore"):
            return np.asarray(fn(*arrays, **attrs)).astype(dtype, copy=False)[()]
    return eager


# -- building blocks over an OpBuilder

def widened(b: Any, x: Any) -> tuple[Any, str]:
    """x in the dtype to compute in, and the dtype of the result."""
    given = b.dtype(x)
    if not dtypes.is_float(given):
        wide = "float32" if b.library == "mindspore" else "float64"
        return b.cast(x, wide), wide
    if dtypes.itemsize(given) == 2:
        return b.cast(x, "float32"), given
    return x, given


def narrowed(b: Any, y: Any, dtype: str) -> Any:
    return y if b.dtype(y) == dtype else b.cast(y, dtype)


def _as(b: Any, v: Any, like: Any) -> Any:
    """v with the dtype of `like`."""
    return v if b.is_tensor(v) and b.dtype(v) == b.dtype(like) else b.cast(v, b.dtype(like))


def count(b: Any, x: Any, axis: Sequence[int]) -> Dim:
    return product(b.dims(x)[i] for i in axis)


def average(b: Any, x: Any, axis: Sequence[int], keepdims: bool, less: int = 0) -> Any:
    """The sum over axes divided by the number of elements, less `less` (never under 0)."""
    n = count(b, x, axis)
    number = b.cast(b.int_of(n), b.dtype(x))
    if less:
        number = b.op("maximum", b.op("sub", number, b.cast(less, b.dtype(x))), b.cast(0, b.dtype(x)))
    return b.op("truediv", b.op("sum", x, axis=tuple(axis), keepdims=keepdims), number)


def _axis(x: Any, axis: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis)


# -- mean, var, std

def _mean_build(b: Any, x: Any, axis: Any, keepdims: bool = False) -> Any:
    w, dtype = widened(b, x)
    return narrowed(b, average(b, w, axis, keepdims), dtype)


def _var_build(b: Any, x: Any, axis: Any, ddof: int = 0, keepdims: bool = False) -> Any:
    w, dtype = widened(b, x)
    d = b.op("sub", w, average(b, w, axis, True))
    return narrowed(b, average(b, b.op("mul", d, d), axis, keepdims, ddof), dtype)


def _std_build(b: Any, x: Any, axis: Any, ddof: int = 0, keepdims: bool = False) -> Any:
    w, dtype = widened(b, x)
    return narrowed(b, b.op("sqrt", _var_build(b, w, axis, ddof, keepdims)), dtype)


def _without_warning(name: str) -> Any:
    fn = getattr(np, name)

    def run(x: Any, axis: Any, **attrs: Any) -> Any:
        import warnings
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN; native code does not warn either
            return fn(x, axis=tuple(axis), **attrs)
    return run


def _plain(name: str) -> Any:
    fn = getattr(np, name)
    return lambda x, axis, **attrs: fn(x, axis=tuple(axis), **attrs)


def _with(samples: Any, **more: Any) -> Any:
    def run(rng: Any, dtype: str) -> Any:
        for operands, attrs in samples(rng, dtype):
            yield operands, {**attrs, **more}
    return run


_composite("mean", ("x",), _mean_build, _without_warning("mean"), ("axis", "keepdims"), s.reduction(), "The mean over axes.", dtype="mean",
           shape=shaperules.reduced, domain=NUMBERS, eager=_plain("mean"))
_composite("var", ("x",), _var_build, _without_warning("var"), ("axis", "ddof", "keepdims"), _with(s.reduction(corners=False), ddof=0),
           "The variance over axes.",
           dtype="mean", shape=shaperules.reduced, domain=NUMBERS, eager=_plain("var"))
_composite("std", ("x",), _std_build, _without_warning("std"), ("axis", "ddof", "keepdims"), _with(s.reduction(corners=False), ddof=0),
           "The standard deviation over axes.",
           dtype="mean", shape=shaperules.reduced, domain=NUMBERS, eager=_plain("std"))


# -- softmax and its kin

def _largest(x: Any, axis: Any) -> Any:
    return np.maximum.reduce(x, tuple(axis), keepdims=True)


def _total(x: Any, axis: Any) -> Any:
    return np.add.reduce(x, tuple(axis), keepdims=True)


def _average(x: Any, axis: Any) -> Any:
    total = _total(x, axis)
    return total / total.dtype.type(max(x.size, 1) / max(total.size, 1))


def _shifted(x: Any, axis: Any) -> Any:
    return x - (_largest(x, axis) if x.size else 0)


def _softmax(x: Any, axis: Any = (-1,)) -> Any:
    e = np.exp(_shifted(x, axis))
    return np.multiply(e, 1 / _total(e, axis), out=e) if e.ndim else e / e


def _log_softmax(x: Any, axis: Any = (-1,)) -> Any:
    d = _shifted(x, axis)
    return d - np.log(_total(np.exp(d), axis))


def _logsumexp(x: Any, axis: Any, keepdims: bool = False) -> Any:
    m = _largest(x, axis)
    m = np.where(np.isfinite(m), m, x.dtype.type(0))
    total = np.log(_total(np.exp(x - m), axis)) + m
    return total if keepdims else np.squeeze(total, axis)


def _softmax_build(b: Any, x: Any, axis: Any = (-1,)) -> Any:
    w, dtype = widened(b, x)
    e = b.op("exp", b.op("sub", w, b.op("max", w, axis=axis, keepdims=True)))
    # one division a row: a vector of them takes as long as the exponentials
    return narrowed(b, b.op("mul", e, b.op("reciprocal", b.op("sum", e, axis=axis, keepdims=True))), dtype)


def _log_softmax_build(b: Any, x: Any, axis: Any = (-1,)) -> Any:
    w, dtype = widened(b, x)
    d = b.op("sub", w, b.op("max", w, axis=axis, keepdims=True))
    return narrowed(b, b.op("sub", d, b.op("log", b.op("sum", b.op("exp", d), axis=axis, keepdims=True))), dtype)


def _logsumexp_build(b: Any, x: Any, axis: Any, keepdims: bool = False) -> Any:
    w, dtype = widened(b, x)
    m = b.op("max", w, axis=axis, keepdims=True)
    m = b.op("where", b.op("isfinite", m), m, b.cast(0, b.dtype(w)))
    total = b.op("add", b.op("log", b.op("sum", b.op("exp", b.op("sub", w, m)), axis=axis, keepdims=True)), m)
    if axis and not keepdims:
        total = b.op("squeeze", total, axis=tuple(axis))
        total = total if b.rank(total) else b.op("pos", total)  # of rank 0 a number, as ops give it, not a view
    return narrowed(b, total, dtype)


_ROWS = s.fixed((((3, 17),), {"axis": (1,)}), (((3, 17),), {"axis": (0,)}), (((2, 3, 4),), {"axis": (1,)}), (((40,),), {"axis": (0,)}),
                (((2, 1),), {"axis": (1,)}),
                (((0, 5),), {"axis": (1,)}), ((np.array([[1e4, 0.0, -1e4], [-np.inf, 0.0, 1.0]], np.float32),), {"axis": (1,)}))
_composite("softmax", ("x",), _softmax_build, _softmax, ("axis",), _ROWS, "exp(x) divided by its sum over axes.")
_composite("log_softmax", ("x",), _log_softmax_build, _log_softmax, ("axis",), _ROWS, "The logarithm of softmax.")
_composite("logsumexp", ("x",), _logsumexp_build, _logsumexp, ("axis", "keepdims"), _with(_ROWS, keepdims=False), "log(sum(exp(x))) over axes.",
           shape=shaperules.reduced)


# -- norms

def _layer_norm(x: Any, *affine: Any, axis: Any = (-1,), eps: float = 1e-5) -> Any:
    d = x - _average(x, axis)
    d *= 1 / np.sqrt(_average(d * d, axis) + x.dtype.type(eps))
    return _scaled(d, *affine)


def _rms_norm(x: Any, *weight: Any, axis: Any = (-1,), eps: float = 1e-6) -> Any:
    return _scaled(x * (1 / np.sqrt(_average(x * x, axis) + x.dtype.type(eps))), *weight)


def _scaled(y: Any, *affine: Any) -> Any:
    for i, a in enumerate(affine):
        y = y + a if i else y * a
    return y


def _scaled_build(b: Any, y: Any, *affine: Any) -> Any:
    for i, a in enumerate(affine):
        y = b.op("add" if i else "mul", y, _as(b, a, y))
    return y


def _inverse_root(b: Any, v: Any, eps: float) -> Any:
    return b.op("rsqrt", b.op("add", v, b.cast(eps, b.dtype(v))))


def _layer_norm_build(b: Any, x: Any, *affine: Any, axis: Any = (-1,), eps: float = 1e-5) -> Any:
    w, dtype = widened(b, x)
    d = b.op("sub", w, average(b, w, axis, True))
    y = b.op("mul", d, _inverse_root(b, average(b, b.op("mul", d, d), axis, True), eps))
    return narrowed(b, _scaled_build(b, y, *affine), dtype)


def _rms_norm_build(b: Any, x: Any, *weight: Any, axis: Any = (-1,), eps: float = 1e-6) -> Any:
    w, dtype = widened(b, x)
    y = b.op("mul", w, _inverse_root(b, average(b, b.op("mul", w, w), axis, True), eps))
    return narrowed(b, _scaled_build(b, y, *weight), dtype)


_composite("layer_norm", ("x", "*affine"), _layer_norm_build, _layer_norm, ("axis", "eps"),
           s.fixed((((3, 17), (17,), (17,)), {"axis": (1,), "eps": 1e-5}), (((2, 3, 4), (3, 4)), {"axis": (1, 2), "eps": 1e-5}),
                   (((2, 33),), {"axis": (1,), "eps": 1e-3}),
                   (((0, 5), (5,)), {"axis": (1,), "eps": 1e-5})),
           "(x - mean) / sqrt(var + eps) over the last axes, times weight, plus bias.")
_composite("rms_norm", ("x", "*weight"), _rms_norm_build, _rms_norm, ("axis", "eps"),
           s.fixed((((3, 17), (17,)), {"axis": (1,), "eps": 1e-6}), (((2, 3, 4),), {"axis": (2,), "eps": 1e-5})),
           "x / sqrt(mean(x^2) + eps) over the last axes, times weight.")


def _channel(b: Any, v: Any, x: Any) -> Any:
    """A per-channel vector so that it broadcasts against x [N, C, ...]."""
    return b.op("expand_dims", v, axis=tuple(i for i in range(b.rank(x)) if i != 1)) if b.rank(x) > 1 else v


def _per_channel(v: Any, x: Any) -> Any:
    return np.reshape(v, (-1,) + (1,) * (x.ndim - 2)) if x.ndim > 1 else v


def _batch_norm(x: Any, mean: Any, var: Any, *affine: Any, eps: float = 1e-5) -> Any:
    factor = 1 / np.sqrt(var + var.dtype.type(eps))
    if affine:
        factor = factor * affine[0]
    y = (x - _per_channel(mean, x)) * _per_channel(factor, x)
    return y + _per_channel(affine[1], x) if len(affine) > 1 else y


def _batch_norm_build(b: Any, x: Any, mean: Any, var: Any, *affine: Any, eps: float = 1e-5) -> Any:
    w, dtype = widened(b, x)
    factor = _inverse_root(b, _as(b, var, w), eps)
    if affine:
        factor = b.op("mul", factor, _as(b, affine[0], w))
    y = b.op("mul", b.op("sub", w, _channel(b, _as(b, mean, w), w)), _channel(b, factor, w))
    if len(affine) > 1:
        y = b.op("add", y, _channel(b, _as(b, affine[1], w), w))
    return narrowed(b, y, dtype)


def _batch_norm_samples(rng: Any, dtype: str) -> Any:
    for shape, n in (((2, 3, 4, 5), 4), ((2, 3), 2), ((4, 3, 2), 3)):
        vectors = [s.values(rng, dtype, (3,)), s.values(rng, dtype, (3,), 0.5, 4), s.values(rng, dtype, (3,)), s.values(rng, dtype, (3,))]
        yield (s.values(rng, dtype, shape), *vectors[:n]), {"eps": 1e-5}


_composite("batch_norm", ("x", "mean", "var", "*affine"), _batch_norm_build, _batch_norm, ("eps",), _batch_norm_samples,
           "(x - mean) / sqrt(var + eps) per channel of x [N, C, ...], times weight, plus bias: batch normalisation at inference.")


def _group_norm(x: Any, *affine: Any, groups: int, eps: float = 1e-5) -> Any:
    y = _layer_norm(x.reshape(x.shape[0], groups, x[0].size // groups if x.shape[0] else 0), axis=(2,), eps=eps).reshape(x.shape)
    return _scaled(y, *(_per_channel(a, x) for a in affine))


def _group_norm_build(b: Any, x: Any, *affine: Any, groups: int, eps: float = 1e-5) -> Any:
    w, dtype = widened(b, x)
    dims = b.dims(w)
    rest = (dims[1] // groups) * product(dims[2:])
    y = b.reshape(_layer_norm_build(b, b.reshape(w, (dims[0], Dim.const(groups), rest)), axis=(2,), eps=eps), dims)
    return narrowed(b, _scaled_build(b, y, *(_channel(b, _as(b, a, w), w) for a in affine)), dtype)


_composite("group_norm", ("x", "*affine"), _group_norm_build, _group_norm, ("groups", "eps"),
           s.fixed((((2, 6, 3, 4), (6,), (6,)), {"groups": 3, "eps": 1e-5}), (((2, 4),), {"groups": 2, "eps": 1e-5})),
           "layer_norm of each group of channels of x [N, C, ...], then weight and bias per channel.")


def _normalize(x: Any, axis: Any = (-1,), eps: float = 1e-12) -> Any:
    return x / np.maximum(np.sqrt(_total(x * x, axis)), x.dtype.type(eps))


def _normalize_build(b: Any, x: Any, axis: Any = (-1,), eps: float = 1e-12) -> Any:
    w, dtype = widened(b, x)
    norm = b.op("sqrt", b.op("sum", b.op("mul", w, w), axis=axis, keepdims=True))
    return narrowed(b, b.op("truediv", w, b.op("maximum", norm, b.cast(eps, b.dtype(w)))), dtype)


_composite("normalize", ("x",), _normalize_build, _normalize, ("axis", "eps"), _with(s.fixed((((3, 17),), {"axis": (1,)}), (((3, 5),), {"axis": (0,)})),
                                                                                     eps=1e-12),
           "x divided by its Euclidean norm over axes, which counts as at least eps.")


# -- bias, attention

def _bias_add_build(b: Any, x: Any, bias: Any) -> Any:
    return b.op("add", x, _channel(b, bias, x))


_composite("bias_add", ("x", "bias"), _bias_add_build, lambda x, bias: x + _per_channel(bias, x), (),
           s.fixed((((2, 3, 4, 5), (3,)), {}), (((2, 3), (3,)), {}), (((0, 3, 2), (3,)), {})), "x [N, C, ...] plus a bias [C] per channel.", dtype="promote")


def _attention(q: Any, k: Any, v: Any, *mask: Any, causal: bool = False, scale: float | None = None) -> Any:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(factor)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]).astype(bool), scores, scores.dtype.type(-np.inf))
    for m in mask:
        scores = np.where(m, scores, scores.dtype.type(-np.inf)) if m.dtype.kind == "b" else scores + m
    return np.matmul(_softmax(scores, (-1,)), v)


def _attention_exact(q: Any, k: Any, v: Any, *mask: Any, **attrs: Any) -> Any:
    with np.errstate(all="ignore"):
        wide = [np.asarray(a) if np.asarray(a).dtype.kind == "b" else np.asarray(a, np.float64) for a in (q, k, v, *mask)]
        return _attention(*wide, **attrs).astype(np.asarray(q).dtype)


def _attention_build(b: Any, q: Any, k: Any, v: Any, *mask: Any, causal: bool = False, scale: Any = None) -> Any:
    w, dtype = widened(b, q)
    k, v, n = _as(b, k, w), _as(b, v, w), b.rank(k)
    if scale is None:
        width = b.cast(b.int_of(b.dims(q)[-1]), b.dtype(w))
        factor = b.op("truediv", b.cast(1, b.dtype(w)), b.op("sqrt", width))
    else:
        factor = b.cast(scale, b.dtype(w))
    scores = b.op("mul", b.op("matmul", w, b.transpose(k, (*range(n - 2), n - 1, n - 2))), factor)
    lowest = b.cast(-math.inf, b.dtype(w))
    if causal:
        rows, columns = b.dims(scores)[-2:]
        i = b.op("expand_dims", b.op("arange", 0, 1, dims=(rows,), dtype="int64"), axis=(1,))
        scores = b.op("where", b.op("le", b.op("arange", 0, 1, dims=(columns,), dtype="int64"), i), scores, lowest)
    for m in mask:
        scores = b.op("where", m, scores, lowest) if b.dtype(m) == "bool" else b.op("add", scores, _as(b, m, w))
    return narrowed(b, b.op("matmul", b.op("softmax", scores, axis=(b.rank(scores) - 1,)), v), dtype)


def _attention_shape(ctx: Any, q: Any, k: Any, v: Any, *mask: Any, **_: Any) -> Any:
    scores = shaperules.matmul(ctx, q, (*k[:-2], k[-1], k[-2]))
    return shaperules.matmul(ctx, scores, v)


def _attention_samples(rng: Any, dtype: str) -> Any:
    def r(*shape: int) -> Any:
        return s.values(rng, dtype, shape, -2, 2)
    yield (r(2, 3, 5, 8), r(2, 3, 7, 8), r(2, 3, 7, 6)), {"causal": False, "scale": None}
    yield (r(5, 8), r(5, 8), r(5, 8)), {"causal": True, "scale": None}
    yield (r(2, 1, 8), r(2, 9, 8), r(2, 9, 8), r(1, 9)), {"causal": False, "scale": 0.5}
    yield (r(2, 4, 8), r(2, 4, 8), r(2, 4, 8), np.tri(4, dtype=bool)), {"causal": False, "scale": None}


register(Op("scaled_dot_product_attention", ("q", "k", "v", "*mask"), Composite(_attention_build), "same", _attention_shape, _attention_exact,
            _eager(_attention),
            ("causal", "scale"), domain=FLOATS, bound=_BOUND, samples=_attention_samples,
            cost=lambda q, k, v, *_, **__: (product(q) * k[-2] * 2 + product(q[:-1]) * k[-2] * v[-1] * 2, (product(q) + product(k) + product(v)) * 4),
            doc="softmax(q k^T * scale + mask) v; a bool mask keeps where true, causal keeps columns up to the row."))
