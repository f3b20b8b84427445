"""The public functions of bcvm.ops: each runs an op at once on NumPy arrays or MindSpore tensors; in a compiled program it is the op.

Promotion and errors are NumPy's. Results have the kind of the first tensor: NumPy in, NumPy out; MindSpore in, MindSpore out.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bcvm.errors import ShapeError
from bcvm.ops.arguments import Pair, axes_of, axis_of, pad_pairs, padding4, pair
from bcvm.ops.definition import OPS, Op

Axis = int | Sequence[int] | None
Array = Any  # a NumPy array, NumPy scalar or MindSpore tensor


def _is_mindspore(x: Any) -> bool:
    return type(x).__module__.startswith("mindspore")


def run(name: str, *operands: Any, **attrs: Any) -> Any:
    """Run an op by name on arrays, its eager form if it has one."""
    op = OPS[name]
    fn: Callable[..., Any] = op.eager or op.reference  # type: ignore[assignment]
    for o in operands:
        if type(o) is not np.ndarray and _is_mindspore(o):
            return _boxed(o, fn(*(v.asnumpy() if _is_mindspore(v) else v for v in operands), **attrs))
    return fn(*operands, **attrs)


def _boxed(like: Any, out: Any) -> Any:
    """A NumPy result as a tensor of the library of `like`."""
    import sys
    if isinstance(out, (tuple, list)):
        return type(out)(_boxed(like, o) for o in out)
    tensor = sys.modules["mindspore"].Tensor
    return tensor.from_numpy(np.ascontiguousarray(out)) if np.ndim(out) else tensor(np.asarray(out))


def public(op: Op) -> Callable[..., Any]:
    """A function for an op that has none of its own: operands by position, attributes by keyword."""
    name = op.name

    def function(*operands: Any, **attrs: Any) -> Any:
        if len(operands) != count and not starred or attrs and attrs.keys() - set(op.attrs):
            raise TypeError(f"bcvm.ops.{name}{function.__signature__} does not take {len(operands)} operands and {sorted(attrs)}")  # type: ignore[attr-defined]
        return run(name, *operands, **attrs)

    count = len(op.operands)
    starred = "*" in "".join(op.operands)
    kinds = inspect.Parameter
    parameters = [kinds(o.lstrip("*"), kinds.VAR_POSITIONAL if o.startswith("*") else kinds.POSITIONAL_ONLY) for o in op.operands]
    parameters += [kinds(a, kinds.KEYWORD_ONLY) for a in op.attrs]
    function.__name__ = function.__qualname__ = name
    function.__module__ = "bcvm.ops"
    function.__doc__ = f"{op.doc}\n\nDtypes: {', '.join(op.domain)}."
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _shape(x: Array) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def _present(*values: Any) -> tuple[Any, ...]:
    return tuple(v for v in values if v is not None)


# -- reductions

def _reduction(name: str, doc: str) -> Callable[..., Any]:
    def function(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return run(name, x, axis=axes_of(axis, len(_shape(x))), keepdims=keepdims)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} axis: None for all, an int or several."
    return function


sum = _reduction("sum", "The sum over axes; small integers are summed as int64.")  # noqa: A001
prod = _reduction("prod", "The product over axes; small integers as int64.")
max = _reduction("max", "The largest over axes; NaN if any is.")  # noqa: A001
min = _reduction("min", "The smallest over axes; NaN if any is.")  # noqa: A001
any = _reduction("any", "Whether any element is true.")  # noqa: A001
all = _reduction("all", "Whether all elements are true.")  # noqa: A001
mean = _reduction("mean", "The mean over axes; of integers in float64.")


def argmax(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """The first index (int64) of the largest element, or of the first NaN; axis None: in the flattened tensor."""
    return run("argmax", x, axis=axes_of(axis, len(_shape(x))), keepdims=keepdims)


def argmin(x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    """The first index (int64) of the smallest element, or of the first NaN; axis None: in the flattened tensor."""
    return run("argmin", x, axis=axes_of(axis, len(_shape(x))), keepdims=keepdims)


def var(x: Array, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """The variance over axes, divided by the number of elements less ddof."""
    return run("var", x, axis=axes_of(axis, len(_shape(x))), ddof=ddof, keepdims=keepdims)


def std(x: Array, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """The square root of var."""
    return run("std", x, axis=axes_of(axis, len(_shape(x))), ddof=ddof, keepdims=keepdims)


def cumsum(x: Array, axis: int = -1) -> Array:
    """Running sums along an axis."""
    return run("cumsum", x, axis=axis_of(axis, len(_shape(x))))


def logsumexp(x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over axes, without overflow."""
    return run("logsumexp", x, axis=axes_of(axis, len(_shape(x))), keepdims=keepdims)


def softmax(x: Array, axis: Axis = -1) -> Array:
    """exp(x) divided by its sum over an axis (or several). x [...] -> [...]."""
    return run("softmax", x, axis=axes_of(axis, len(_shape(x))))


def log_softmax(x: Array, axis: Axis = -1) -> Array:
    """The logarithm of softmax, exact where softmax underflows."""
    return run("log_softmax", x, axis=axes_of(axis, len(_shape(x))))


# -- activations with options

def gelu(x: Array, approximate: str = "none") -> Array:
    """x * Phi(x); approximate="tanh" takes the tanh form."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return run("gelu" if approximate == "none" else "gelu_tanh", x)


def leaky_relu(x: Array, alpha: float = 0.01) -> Array:
    """x where positive, else alpha * x."""
    return run("leaky_relu", x, alpha=alpha)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """x where positive, else alpha * (exp(x) - 1)."""
    return run("elu", x, alpha=alpha)


def cast(x: Array, dtype: Any) -> Array:
    """x with another dtype (a name or a NumPy dtype)."""
    return run("cast", x, dtype=np.dtype(dtype).name)


# -- norms

def _trailing(x: Array, weight: Array | None, axis: Axis, what: str) -> tuple[int, ...]:
    """Axes of a norm: those given; a weight of rank n must fit the last n."""
    shape = _shape(x)
    axes = axes_of(axis, len(shape))
    if weight is not None:
        n = len(_shape(weight))
        if axis == -1 and n > 1:
            axes = tuple(range(len(shape) - n, len(shape)))
        if _shape(weight) != shape[len(shape) - n:]:
            raise ShapeError(f"{what}: weight {list(_shape(weight))} does not fit the last axes of x {list(shape)}")
    return axes


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, axis: Axis = -1) -> Array:
    """(x - mean) / sqrt(var + eps) over the last axes, times weight, plus bias. A weight of rank n > 1 normalises over the last n axes.

    x [..., D], weight [D], bias [D] -> [..., D]. ShapeError if weight does not fit.
    """
    axes = _trailing(x, weight, axis, "layer_norm")
    if weight is None and bias is not None:
        return run("add", run("layer_norm", x, axis=axes, eps=eps), bias)
    return run("layer_norm", x, *_present(weight, bias), axis=axes, eps=eps)


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6, axis: Axis = -1) -> Array:
    """x / sqrt(mean(x^2) + eps) over the last axes, times weight. x [..., D], weight [D] -> [..., D]."""
    return run("rms_norm", x, *_present(weight), axis=_trailing(x, weight, axis, "rms_norm"), eps=eps)


def batch_norm(x: Array, mean: Array, var: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of x [N, C, ...]; mean, var, weight, bias [C]. Inference only."""
    if weight is None and bias is not None:
        return run("bias_add", run("batch_norm", x, mean, var, eps=eps), bias)
    return run("batch_norm", x, mean, var, *_present(weight, bias), eps=eps)


def group_norm(x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """Each group of channels of x [N, C, ...] normalised, then weight [C] and bias [C]. ShapeError unless groups divides C."""
    if _shape(x)[1] % groups:
        raise ShapeError(f"group_norm: {groups} groups do not divide the {_shape(x)[1]} channels")
    if weight is None and bias is not None:
        return run("bias_add", run("group_norm", x, groups=groups, eps=eps), bias)
    return run("group_norm", x, *_present(weight, bias), groups=groups, eps=eps)


def normalize(x: Array, axis: Axis = -1, eps: float = 1e-12) -> Array:
    """x divided by its Euclidean norm over axes (at least eps)."""
    return run("normalize", x, axis=axes_of(axis, len(_shape(x))), eps=eps)


# -- linear algebra, convolution, attention

def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [..., I] times weight [O, I] transposed, plus bias [O] -> [..., O]."""
    return run("linear", x, weight, *_present(bias))


def conv2d(x: Array, weight: Array, bias: Array | None = None, stride: Pair = 1, padding: Any = 0, dilation: Pair = 1, groups: int = 1) -> Array:
    """x [N, C, H, W], weight [O, C/groups, KH, KW], bias [O] -> [N, O, H', W'].

    padding: an int, (height, width), (top, bottom, left, right), 'valid' or, with stride 1, 'same'. ShapeError if sizes do not fit.
    """
    pads = padding4(padding, "conv2d: padding")
    if pads == "same" and pair(stride, "stride") != (1, 1):
        raise ValueError("conv2d: padding='same' needs stride 1")
    return run("conv2d", x, weight, *_present(bias), stride=pair(stride, "stride"), padding=pads, dilation=pair(dilation, "dilation"), groups=groups)


def max_pool2d(x: Array, kernel: Pair, stride: Pair | None = None, padding: Any = 0) -> Array:
    """The largest of each window of x [N, C, H, W]; stride defaults to the kernel."""
    k = pair(kernel, "kernel")
    return run("max_pool2d", x, kernel=k, stride=k if stride is None else pair(stride, "stride"), padding=padding4(padding))


def avg_pool2d(x: Array, kernel: Pair, stride: Pair | None = None, padding: Any = 0, count_include_pad: bool = True) -> Array:
    """The mean of each window of x [N, C, H, W]; stride defaults to the kernel."""
    k = pair(kernel, "kernel")
    return run("avg_pool2d", x, kernel=k, stride=k if stride is None else pair(stride, "stride"), padding=padding4(padding),
               count_include_pad=count_include_pad)


def scaled_dot_product_attention(q: Array, k: Array, v: Array, mask: Array | None = None, is_causal: bool = False, scale: float | None = None) -> Array:
    """softmax(q k^T * scale + mask) v.

    q [..., L, E], k [..., S, E], v [..., S, V] -> [..., L, V]. mask broadcasts to [..., L, S]: bool keeps where true, floats are added.
    is_causal keeps columns up to the row. scale defaults to 1/sqrt(E).
    """
    return run("scaled_dot_product_attention", q, k, v, *_present(mask), causal=is_causal, scale=scale)


def embedding(indices: Array, weight: Array) -> Array:
    """Rows of weight [V, D] for integer indices [...]: [..., D]. IndexError if one is out of range."""
    return run("embedding", indices, weight)


def one_hot(indices: Array, depth: int, dtype: Any = "float32") -> Array:
    """[..., depth]: 1 at the index, 0 elsewhere."""
    return run("one_hot", indices, depth=depth, dtype=np.dtype(dtype).name)


# -- moving data

def concat(tensors: Sequence[Array], axis: int = 0) -> Array:
    """The tensors behind each other along an axis."""
    tensors = list(tensors)
    return run("concat", *tensors, axis=axis_of(axis, len(_shape(tensors[0]))))


def stack(tensors: Sequence[Array], axis: int = 0) -> Array:
    """The tensors along a new axis."""
    tensors = list(tensors)
    return run("stack", *tensors, axis=axis_of(axis, len(_shape(tensors[0])) + 1))


def take(x: Array, indices: Array, axis: int = 0) -> Array:
    """x[..., indices, ...] along an axis. IndexError if an index is out of range."""
    return run("take", x, indices, axis=axis_of(axis, len(_shape(x))))


def pad(x: Array, pads: Any, value: float = 0) -> Array:
    """x with `before` and `after` elements of a value on each axis: pads is an int, a (before, after) pair, or one per axis."""
    return run("pad", x, pads=pad_pairs(pads, len(_shape(x))), value=value)


def reshape(x: Array, *dims: Any) -> Array:
    """The same elements in C order with other sizes; one may be -1."""
    sizes = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return run("reshape", x, dims=tuple(sizes))


def transpose(x: Array, perm: Sequence[int] | None = None) -> Array:
    """Axes in the order of perm; reversed by default."""
    rank = len(_shape(x))
    return run("transpose", x, perm=tuple(range(rank))[::-1] if perm is None else tuple(axis_of(p, rank) for p in perm))


def broadcast_to(x: Array, dims: Sequence[int]) -> Array:
    """x repeated to these sizes; a read-only view."""
    return run("broadcast_to", x, dims=tuple(dims))


def expand_dims(x: Array, axis: Axis) -> Array:
    """New axes of size 1 at these places of the result."""
    n = 1 if isinstance(axis, int) else len(tuple(axis or ()))
    return run("expand_dims", x, axis=axes_of(axis, len(_shape(x)) + n))


def squeeze(x: Array, axis: Axis = None) -> Array:
    """Without the axes of size 1, or without these."""
    shape = _shape(x)
    return run("squeeze", x, axis=tuple(i for i, d in enumerate(shape) if d == 1) if axis is None else axes_of(axis, len(shape)))


def tril(x: Array, k: int = 0) -> Array:
    """The last two axes' lower triangle up to the k-th diagonal, 0 elsewhere."""
    return run("tril", x, k=k)


def triu(x: Array, k: int = 0) -> Array:
    """The last two axes' upper triangle from the k-th diagonal on, 0 elsewhere."""
    return run("triu", x, k=k)


# -- creation; NumPy arrays

def full(dims: Any, value: float, dtype: Any = "float32") -> Array:
    """A NumPy array of these sizes filled with a value."""
    return run("full", value, dims=(dims,) if isinstance(dims, int) else tuple(dims), dtype=np.dtype(dtype).name)


def zeros(dims: Any, dtype: Any = "float32") -> Array:
    """A NumPy array of zeros."""
    return full(dims, 0, dtype)


def ones(dims: Any, dtype: Any = "float32") -> Array:
    """A NumPy array of ones."""
    return full(dims, 1, dtype)


def arange(start: int, stop: int | None = None, step: int = 1, dtype: Any = "int64") -> Array:
    """start, start + step, ... below stop; one argument is the stop."""
    if stop is None:
        start, stop = 0, start
    return run("arange", start, step, dims=(len(range(start, stop, step)),), dtype=np.dtype(dtype).name)


def eye(rows: int, columns: int | None = None, k: int = 0, dtype: Any = "float32") -> Array:
    """1 on the k-th diagonal, 0 elsewhere."""
    return run("eye", dims=(rows, rows if columns is None else columns), k=k, dtype=np.dtype(dtype).name)
