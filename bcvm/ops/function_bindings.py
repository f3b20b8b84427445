"""Bindings of the public functions of bcvm.ops: the same signatures over an OpBuilder."""
from __future__ import annotations

from typing import Any

from bcvm.ops.arguments import pad_pairs, padding4, pair
from bcvm.ops.definition import BINDINGS, OPS, ScalarExpr, binds
from bcvm.shapes.dim import Dim, maximum, product

# -- shared with the bindings of other libraries


def const(b: Any, v: Any) -> Any:
    """The Python value of an argument, tuples and lists included."""
    if isinstance(v, (tuple, list)):
        return tuple(const(b, i) for i in v)
    if v is not None and not isinstance(v, (bool, int, float, str)) and b.is_sequence(v):
        return tuple(const(b, i) for i in b.items(v))
    return b.constant(v)


def none(b: Any, v: Any) -> bool:
    return v is None or bool(b.is_none(v))


def present(b: Any, *values: Any) -> tuple[Any, ...]:
    return tuple(v for v in values if not none(b, v))


def sequence(b: Any, v: Any) -> list[Any]:
    """The items of a tuple or list argument; a single value is one item."""
    if isinstance(v, (tuple, list)):
        return list(v)
    return list(b.items(v)) if not isinstance(v, (int, float)) and b.is_sequence(v) else [v]


def listed(b: Any, v: Any, what: str) -> list[Any]:
    """The items of a tuple or list; other things, a tensor too, are refused."""
    if not isinstance(v, (tuple, list)) and not b.is_sequence(v):
        b.unsupported(f"{what} of {b.describe(v)}, which is no list or tuple")
    return sequence(b, v)


def sizes(b: Any, items: list[Any]) -> list[Dim]:
    """The dims that int values hold."""
    return [v if isinstance(v, Dim) else Dim.const(v) if isinstance(v, int) else b.dim_of(v) for v in items]


def resolved(b: Any, x: Any, items: list[Any]) -> list[Dim]:
    """Sizes of a reshape with a -1 replaced. A size that may be -1 at run time is resolved there, by the same formula."""
    dims = sizes(b, items)
    unknown = [i for i, d in enumerate(dims) if d.interval()[0] < 0]
    if sum(dims[i].value is not None for i in unknown) > 1:
        b.unsupported("reshape with more than one unknown size")
    out = list(dims)
    for i in unknown:
        rest, others = _cancelled(list(b.dims(x)), dims[:i] + dims[i + 1:])
        if dims[i].value is not None:
            if dims[i].value != -1:
                b.unsupported("reshape with a negative size")
            b.require("lt", Dim.const(0), product(dims[:i] + dims[i + 1:]), "reshape with -1 beside a size of 0")
            out[i] = product(rest) // maximum(1, product(others))
        else:
            is_negative = maximum(0, 1 - maximum(0, dims[i] + 1))  # 1 where the size is negative, else 0
            out[i] = dims[i] * (1 - is_negative) + is_negative * (product(rest) // maximum(1, product(others)))
    return out


def _cancelled(a: list[Dim], b: list[Dim]) -> tuple[list[Dim], list[Dim]]:
    """Two lists of factors without those they share."""
    rest = list(a)
    others = []
    for d in b:
        if d in rest:
            rest.remove(d)
        else:
            others.append(d)
    return rest, others


def axes(b: Any, v: Any, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if none(b, v) else tuple(b.axes(v, rank))


def flag(b: Any, v: Any) -> bool:
    return bool(const(b, v))


def broadcast_bias(b: Any, y: Any, bias: Any) -> Any:
    return b.op("bias_add", y, bias)


# -- operands by position, attributes by keyword

def by_position(name: str) -> None:
    """Bind the function that an op without one of its own gets (functions.public)."""
    def binding(b: Any, *operands: Any, **attrs: Any) -> Any:
        return b.op(name, *operands, **{k: const(b, v) for k, v in attrs.items()})
    if f"bcvm.ops.{name}" not in BINDINGS.get("bcvm", {}):
        binds(f"bcvm.ops.{name}")(binding)


for _name, _op in list(OPS.items()):
    if (isinstance(_op.form, ScalarExpr) and not _op.attrs) or _name in ("sum_to", "bias_add", "cast_fp16", "matmul"):
        by_position(_name)


@binds("bcvm.ops.gelu")
def _gelu(b: Any, x: Any, approximate: Any = "none") -> Any:
    form = const(b, approximate)
    return b.op("gelu", x) if form == "none" else b.op("gelu_tanh", x) if form == "tanh" else b.unsupported(f"gelu approximate={form!r}")


@binds("bcvm.ops.leaky_relu")
def _leaky_relu(b: Any, x: Any, alpha: Any = 0.01) -> Any:
    return b.op("leaky_relu", x, alpha=float(const(b, alpha)))


@binds("bcvm.ops.elu")
def _elu(b: Any, x: Any, alpha: Any = 1.0) -> Any:
    return b.op("elu", x, alpha=float(const(b, alpha)))


def dtype_name(b: Any, v: Any) -> str:
    """The name of a dtype argument: a name, a NumPy dtype or scalar type, a Python type, a MindSpore dtype."""
    value = b.constant(v)
    text = str(value)
    if type(value).__module__.startswith("mindspore") or text.startswith("mindspore."):
        return _known(b, text.split(".")[-1].lower().rstrip("_"))
    import numpy as np
    try:
        dtype = np.dtype(value)
    except TypeError:
        return str(b.unsupported(f"dtype {value!r}"))
    if not dtype.isnative:
        b.unsupported(f"byte-swapped dtype {value!r}")
    return _known(b, dtype.name)


def _known(b: Any, name: str) -> str:
    from bcvm.bytecode.dtypes import NAMES, kind
    return name if name in NAMES and kind(name) != "c" else str(b.unsupported(f"dtype {name}"))


@binds("bcvm.ops.cast")
def _cast(b: Any, x: Any, dtype: Any) -> Any:
    return b.cast(x, dtype_name(b, dtype))


# -- reductions

def _reduction(name: str) -> None:
    def binding(b: Any, x: Any, axis: Any = None, keepdims: Any = False) -> Any:
        return b.op(name, x, axis=axes(b, axis, b.rank(x)), keepdims=flag(b, keepdims))
    binds(f"bcvm.ops.{name}")(binding)


for _name in ("sum", "prod", "max", "min", "any", "all", "mean", "argmax", "argmin", "logsumexp"):
    _reduction(_name)


def _spread(name: str) -> None:
    def binding(b: Any, x: Any, axis: Any = None, ddof: Any = 0, keepdims: Any = False) -> Any:
        return b.op(name, x, axis=axes(b, axis, b.rank(x)), ddof=const(b, ddof), keepdims=flag(b, keepdims))
    binds(f"bcvm.ops.{name}")(binding)


_spread("var")
_spread("std")


def _along(name: str, last: Any = -1) -> None:
    def binding(b: Any, x: Any, axis: Any = last) -> Any:
        return b.op(name, x, axis=axes(b, axis, b.rank(x)))
    binds(f"bcvm.ops.{name}")(binding)


_along("softmax")
_along("log_softmax")


@binds("bcvm.ops.cumsum")
def _cumsum(b: Any, x: Any, axis: Any = -1) -> Any:
    return b.op("cumsum", x, axis=b.axis(axis, b.rank(x)))


# -- norms

def _norm_axes(b: Any, x: Any, weight: Any, axis: Any) -> tuple[int, ...]:
    rank, n = b.rank(x), 1 if none(b, weight) else b.rank(weight)
    if const(b, axis) == -1:
        return tuple(range(rank - n, rank)) if n > 1 else (rank - 1,)
    return axes(b, axis, rank)


@binds("bcvm.ops.layer_norm")
def _layer_norm(b: Any, x: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, axis: Any = -1) -> Any:
    on = _norm_axes(b, x, weight, axis)
    if none(b, weight) and not none(b, bias):
        return b.op("add", b.op("layer_norm", x, axis=on, eps=const(b, eps)), bias)
    return b.op("layer_norm", x, *present(b, weight, bias), axis=on, eps=const(b, eps))


@binds("bcvm.ops.rms_norm")
def _rms_norm(b: Any, x: Any, weight: Any = None, eps: Any = 1e-6, axis: Any = -1) -> Any:
    return b.op("rms_norm", x, *present(b, weight), axis=_norm_axes(b, x, weight, axis), eps=const(b, eps))


@binds("bcvm.ops.batch_norm")
def _batch_norm(b: Any, x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    if none(b, weight) and not none(b, bias):
        return broadcast_bias(b, b.op("batch_norm", x, mean, var, eps=const(b, eps)), bias)
    return b.op("batch_norm", x, mean, var, *present(b, weight, bias), eps=const(b, eps))


@binds("bcvm.ops.group_norm")
def _group_norm(b: Any, x: Any, groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    if none(b, weight) and not none(b, bias):
        return broadcast_bias(b, b.op("group_norm", x, groups=const(b, groups), eps=const(b, eps)), bias)
    return b.op("group_norm", x, *present(b, weight, bias), groups=const(b, groups), eps=const(b, eps))


@binds("bcvm.ops.normalize")
def _normalize(b: Any, x: Any, axis: Any = -1, eps: Any = 1e-12) -> Any:
    return b.op("normalize", x, axis=axes(b, axis, b.rank(x)), eps=const(b, eps))


# -- linear algebra, convolution, attention

@binds("bcvm.ops.linear")
def _linear(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return b.op("linear", x, weight, *present(b, bias))


@binds("bcvm.ops.conv2d")
def _conv2d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Any:
    pads, steps = padding4(const(b, padding)), pair(const(b, stride), "stride")
    if pads == "same" and steps != (1, 1):
        return b.unsupported("conv2d with padding='same' and a stride")
    return b.op("conv2d", x, weight, *present(b, bias), stride=steps, padding=pads, dilation=pair(const(b, dilation), "dilation"), groups=const(b, groups))


@binds("bcvm.ops.max_pool2d")
def _max_pool2d(b: Any, x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Any:
    k = pair(const(b, kernel), "kernel")
    return b.op("max_pool2d", x, kernel=k, stride=k if none(b, stride) else pair(const(b, stride), "stride"), padding=padding4(const(b, padding)))


@binds("bcvm.ops.avg_pool2d")
def _avg_pool2d(b: Any, x: Any, kernel: Any, stride: Any = None, padding: Any = 0, count_include_pad: Any = True) -> Any:
    k = pair(const(b, kernel), "kernel")
    return b.op("avg_pool2d", x, kernel=k, stride=k if none(b, stride) else pair(const(b, stride), "stride"), padding=padding4(const(b, padding)),
                count_include_pad=flag(b, count_include_pad))


@binds("bcvm.ops.scaled_dot_product_attention")
def _attention(b: Any, q: Any, k: Any, v: Any, mask: Any = None, is_causal: Any = False, scale: Any = None) -> Any:
    return b.op("scaled_dot_product_attention", q, k, v, *present(b, mask), causal=flag(b, is_causal), scale=None if none(b, scale) else float(const(b, scale)))


@binds("bcvm.ops.embedding")
def _embedding(b: Any, indices: Any, weight: Any) -> Any:
    return b.op("embedding", indices, weight)


@binds("bcvm.ops.one_hot")
def _one_hot(b: Any, indices: Any, depth: Any, dtype: Any = "float32") -> Any:
    return b.op("one_hot", indices, depth=sizes(b, [depth])[0], dtype=dtype_name(b, dtype))


# -- moving data

@binds("bcvm.ops.concat")
def _concat(b: Any, tensors: Any, axis: Any = 0) -> Any:
    items = sequence(b, tensors)
    return b.op("concat", *items, axis=b.axis(axis, b.rank(items[0])))


@binds("bcvm.ops.stack")
def _stack(b: Any, tensors: Any, axis: Any = 0) -> Any:
    items = sequence(b, tensors)
    return b.op("stack", *items, axis=b.axis(axis, b.rank(items[0]) + 1))


@binds("bcvm.ops.take")
def _take(b: Any, x: Any, indices: Any, axis: Any = 0) -> Any:
    return taken(b, x, indices, b.axis(axis, b.rank(x)))


def taken(b: Any, x: Any, indices: Any, axis: int) -> Any:
    """Native code checks indices as it copies. NumPy also checks those that copy nothing: that is left to it."""
    b.require("lt", Dim.const(0), product(b.dims(x)[axis + 1:]), "take of empty rows")
    return b.op("take", x, indices, axis=axis)


@binds("bcvm.ops.pad")
def _pad(b: Any, x: Any, pads: Any, value: Any = 0) -> Any:
    return b.op("pad", x, pads=pad_pairs(const(b, pads), b.rank(x)), value=const(b, value))


@binds("bcvm.ops.reshape")
def _reshape(b: Any, x: Any, *dims: Any) -> Any:
    return b.reshape(x, resolved(b, x, sequence(b, dims[0]) if len(dims) == 1 else list(dims)))


@binds("bcvm.ops.transpose")
def _transpose(b: Any, x: Any, perm: Any = None) -> Any:
    rank = b.rank(x)
    return b.transpose(x, tuple(range(rank))[::-1] if none(b, perm) else tuple(b.axis(p, rank) for p in sequence(b, perm)))


@binds("bcvm.ops.broadcast_to")
def _broadcast_to(b: Any, x: Any, dims: Any) -> Any:
    return b.op("broadcast_to", x, dims=tuple(sizes(b, sequence(b, dims))))


@binds("bcvm.ops.expand_dims")
def _expand_dims(b: Any, x: Any, axis: Any) -> Any:
    items = sequence(b, axis)
    return b.op("expand_dims", x, axis=tuple(sorted(b.axis(a, b.rank(x) + len(items)) for a in items)))


def squeeze(b: Any, x: Any, axis: Any = None) -> Any:
    """Without an axis only constant sizes are decided; then a rank must not depend on sizes."""
    if none(b, axis):
        dims = b.dims(x)
        if any(d.value is None for d in dims):
            return b.unsupported("squeeze without an axis: the rank would depend on sizes")
        on = tuple(i for i, d in enumerate(dims) if d.value == 1)
    else:
        on = axes(b, axis, b.rank(x))
    return b.op("squeeze", x, axis=on) if on else x


binds("bcvm.ops.squeeze")(squeeze)


@binds("bcvm.ops.tril")
def _tril(b: Any, x: Any, k: Any = 0) -> Any:
    return b.op("tril", x, k=const(b, k))


@binds("bcvm.ops.triu")
def _triu(b: Any, x: Any, k: Any = 0) -> Any:
    return b.op("triu", x, k=const(b, k))


# -- creation

@binds("bcvm.ops.full")
def _full(b: Any, dims: Any, value: Any, dtype: Any = "float32") -> Any:
    return b.full(sizes(b, sequence(b, dims)), value, dtype_name(b, dtype))


@binds("bcvm.ops.zeros")
def _zeros(b: Any, dims: Any, dtype: Any = "float32") -> Any:
    return b.full(sizes(b, sequence(b, dims)), 0, dtype_name(b, dtype))


@binds("bcvm.ops.ones")
def _ones(b: Any, dims: Any, dtype: Any = "float32") -> Any:
    return b.full(sizes(b, sequence(b, dims)), 1, dtype_name(b, dtype))


def counted(b: Any, start: Any, stop: Any, step: Any, dtype: str, forward: bool = False) -> Any:
    """arange over ints; the step is a constant. forward: steps away from the end are an error of the library's, not an empty result."""
    if none(b, stop):
        start, stop = 0, start
    if any(b.dtype(v) != "int" for v in (start, stop, step) if not isinstance(v, int)):
        return b.unsupported("arange over floats: its length depends on rounding")
    if dtype == "bool":
        return b.unsupported("arange of bools")
    k = const(b, step)
    if k == 0:
        return b.unsupported("arange with step 0")
    first, last = sizes(b, [start, stop])
    span = last - first if k > 0 else first - last
    if forward:
        b.require("le", Dim.const(0), span, "arange away from its end")
    return b.op("arange", start, k, dims=(maximum(0, (span + (abs(k) - 1)) // abs(k)),), dtype=dtype)


@binds("bcvm.ops.arange")
def _arange(b: Any, start: Any, stop: Any = None, step: Any = 1, dtype: Any = "int64") -> Any:
    return counted(b, start, stop, step, dtype_name(b, dtype))


@binds("bcvm.ops.eye")
def _eye(b: Any, rows: Any, columns: Any = None, k: Any = 0, dtype: Any = "float32") -> Any:
    n, m = sizes(b, [rows, rows if none(b, columns) else columns])
    return b.op("eye", dims=(n, m), k=const(b, k), dtype=dtype_name(b, dtype))
