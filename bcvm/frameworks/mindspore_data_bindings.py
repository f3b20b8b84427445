"""Bindings of MindSpore's convolution, pooling, data movement, creation and tensor attributes, after MindSpore 2.10."""
from __future__ import annotations

from typing import Any

from bcvm.bytecode.dtypes import is_float
from bcvm.frameworks.mindspore_naming import MS, bind_primitive, floating, ms_dtype, named, of_tensor, primitive, same_dtype, settled
from bcvm.ops.arguments import pair
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import axes, const, counted, dtype_name, flag, listed, none, present, resolved, sequence, sizes, squeeze
from bcvm.ops.numpy_bindings import equal_parts, parts, tiled
from bcvm.shapes.dim import Dim, maximum, product

_WHOLE = ("slice", None, None, None)

# -- convolution and pooling


def _same_pads(b: Any, x: Any, kernel: Any, stride: Any, dilation: Any = (1, 1)) -> list[Any]:
    """Padding (before, after) per axis that gives ceil(size / stride) places, as dims."""
    out = []
    for i, size in enumerate(b.dims(x)[2:]):
        if stride[i] == 1:
            total = Dim.const(1) * (kernel[i] - 1) * dilation[i]
        else:
            places = (size + (stride[i] - 1)) // stride[i]
            total = maximum(0, (places - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - size)
        out.append((total // 2, (total + 1) // 2))
    return out


def _padded(b: Any, x: Any, pads: list[Any], value: float) -> tuple[Any, tuple[int, ...]]:
    """x and the constant padding that is left to the kernel; padding known only at run time is done before it."""
    flat = [p for pair_ in pads for p in pair_]
    if all(p.value is not None for p in flat):
        return x, tuple(p.value for p in flat)
    zero = Dim.const(0)
    return b.op("pad", x, pads=((zero, zero), (zero, zero), *map(tuple, pads)), value=value), (0, 0, 0, 0)


def _convolution(b: Any, x: Any, weight: Any, bias: tuple[Any, ...], pad_mode: Any, padding: Any, stride: Any, dilation: Any, groups: int,
                 kernel: Any = None) -> Any:
    """kernel: its sizes, where they are known besides those of the weight."""
    same_dtype(b, "conv2d", floating(b, x, "conv2d"), weight, *bias)
    mode = str(pad_mode).lower()
    if mode == "same":
        kernel = kernel or list(b.dims(weight)[2:])
        x, pads = _padded(b, x, _same_pads(b, x, kernel, stride, dilation), 0)
    elif mode == "valid":
        pads = (0, 0, 0, 0)
    else:
        values = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
        pads = (values[0], values[0], values[1], values[1]) if len(values) == 2 else values
    return b.op("conv2d", x, weight, *bias, stride=stride, padding=pads, dilation=dilation, groups=groups)


@binds("mindspore.ops.conv2d", **MS)
def _conv2d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: Any = "valid", padding: Any = 0, dilation: Any = 1,
            groups: Any = 1) -> Any:
    return _convolution(b, x, weight, present(b, bias), const(b, pad_mode), const(b, padding), pair(const(b, stride), "stride"),
                        pair(const(b, dilation), "dilation"), const(b, groups))


@binds("mindspore.mint.nn.functional.conv2d", **MS)
def _mint_conv2d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Any:
    pads = const(b, padding)
    mode = pads if isinstance(pads, str) else "pad"
    return _convolution(b, x, weight, present(b, bias), mode, pads, pair(const(b, stride), "stride"), pair(const(b, dilation), "dilation"), const(b, groups))


@binds(*primitive("Conv2D"), **MS)
def _conv2d_primitive(b: Any, prim: Any, x: Any, weight: Any) -> Any:
    if prim.data_format != "NCHW" or prim.mode != 1:
        return b.unsupported("Conv2D of another format or mode")
    kernel = tuple(prim.kernel_size)
    for have, want in zip(b.dims(weight)[2:], kernel):
        b.require("eq", have, Dim.const(want), "a weight of another size than the kernel's")
    return _convolution(b, x, weight, (), prim.pad_mode, tuple(prim.pad), tuple(prim.stride[2:]), tuple(prim.dilation[2:]), prim.group, kernel)


def _pooling(b: Any, x: Any, op: str, kernel: Any, stride: Any, same: bool, **attrs: Any) -> Any:
    floating(b, x, op)
    pads: Any = (0, 0, 0, 0)
    if same:
        if op == "avg_pool2d":
            attrs["count_include_pad"] = False
        wanted = _same_pads(b, x, kernel, stride)
        if op == "avg_pool2d" and any(p.value is None for pair_ in wanted for p in pair_):
            return b.unsupported("average pooling with pad_mode 'same' and a stride over sizes that are not constant")
        x, pads = _padded(b, x, wanted, float("-inf"))
    return b.op(op, x, kernel=kernel, stride=stride, padding=pads, **attrs)


def _is_same(prim: Any) -> bool:
    return str(prim.init_attrs["pad_mode"]).upper() == "SAME"


@binds(*primitive("MaxPool"), **MS)
def _max_pool(b: Any, prim: Any, x: Any) -> Any:
    if prim.init_attrs["data_format"] != "NCHW":
        return b.unsupported("MaxPool of another format")
    return _pooling(b, x, "max_pool2d", tuple(prim.kernel_size)[-2:], tuple(prim.strides)[-2:], _is_same(prim))


@binds(*primitive("AvgPool"), **MS)
def _avg_pool(b: Any, prim: Any, x: Any) -> Any:
    if prim.init_attrs["data_format"] != "NCHW":
        return b.unsupported("AvgPool of another format")
    return _pooling(b, x, "avg_pool2d", tuple(prim.kernel_size)[-2:], tuple(prim.strides)[-2:], _is_same(prim))


@binds("mindspore.ops.max_pool2d", **MS)
def _max_pool2d(b: Any, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: Any = False,
                ceil_mode: Any = False) -> Any:
    if flag(b, return_indices) or flag(b, ceil_mode) or pair(const(b, dilation), "dilation") != (1, 1):
        return b.unsupported("max_pool2d with indices, ceil_mode or dilation")
    kernel, p = pair(const(b, kernel_size), "kernel"), pair(const(b, padding), "padding")
    return b.op("max_pool2d", floating(b, x, "max_pool2d"), kernel=kernel, stride=kernel if none(b, stride) else pair(const(b, stride), "stride"),
                padding=(p[0], p[0], p[1], p[1]))


@binds("mindspore.ops.avg_pool2d", **MS)
def _avg_pool2d(b: Any, x: Any, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, ceil_mode: Any = False, count_include_pad: Any = True,
                divisor_override: Any = 0) -> Any:
    if flag(b, ceil_mode) or const(b, divisor_override) or not isinstance(const(b, padding), int):
        return b.unsupported("avg_pool2d with ceil_mode, divisor_override or uneven padding")
    return b.op("avg_pool2d", floating(b, x, "avg_pool2d"), kernel=pair(const(b, kernel_size), "kernel"), stride=pair(const(b, stride), "stride"),
                padding=(const(b, padding),) * 4, count_include_pad=flag(b, count_include_pad))


@binds("mindspore.ops.adaptive_avg_pool2d", "mindspore.mint.nn.functional.adaptive_avg_pool2d", **MS)
def _adaptive_avg_pool2d(b: Any, x: Any, output_size: Any) -> Any:
    if const(b, output_size) not in (1, (1, 1)):
        return b.unsupported("adaptive_avg_pool2d to more than one place")
    rank = b.rank(floating(b, x, "adaptive_avg_pool2d"))
    return b.op("mean", x, axis=(rank - 2, rank - 1), keepdims=True)


binds(*primitive("AdaptiveAvgPool2D"), **MS)(lambda b, prim, x: _adaptive_avg_pool2d(b, x, tuple(prim.output_size)))


@binds("mindspore.ops.scaled_dot_product_attention", "mindspore.mint.nn.functional.scaled_dot_product_attention", **MS)
def _attention(b: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False, scale: Any = None) -> Any:
    if const(b, dropout_p):
        return b.unsupported("attention with dropout")
    same_dtype(b, "attention", q, k, v)
    return b.op("scaled_dot_product_attention", q, k, v, *present(b, attn_mask), causal=flag(b, is_causal),
                scale=None if none(b, scale) else float(const(b, scale)))


@binds("mindspore.ops.dropout", "mindspore.mint.nn.functional.dropout", **MS)
def _dropout(b: Any, x: Any, p: Any = 0.5, training: Any = True, *more: Any, **options: Any) -> Any:
    return b.unsupported("dropout in training") if flag(b, training) and const(b, p) != 0 else x


# -- joins and splits

def _tensors(b: Any, tensors: Any, what: str) -> list[Any]:
    """The items of a list or tuple of tensors."""
    return [of_tensor(b, t, what) for t in listed(b, tensors, f"MindSpore's {what}")]


def _concat(b: Any, tensors: Any, axis: Any = 0, **options: Any) -> Any:
    items = _tensors(b, tensors, "concat")
    same_dtype(b, "concat", *items)
    return b.op("concat", *items, axis=b.axis(options.get("dim", axis), b.rank(items[0])))


def _stack(b: Any, tensors: Any, axis: Any = 0, **options: Any) -> Any:
    items = _tensors(b, tensors, "stack")
    same_dtype(b, "stack", *items)
    return b.op("stack", *items, axis=b.axis(options.get("dim", axis), b.rank(items[0]) + 1))


binds(*named("cat", "concat"), **MS)(_concat)
binds(*named("stack"), **MS)(_stack)
binds(*primitive("Concat"), **MS)(lambda b, prim, tensors: _concat(b, tensors, prim.axis))
binds(*primitive("Stack"), **MS)(lambda b, prim, tensors: _stack(b, tensors, prim.axis))


@binds("mindspore.ops.split", "mindspore.mint.split", method="split", **MS)
def _split(b: Any, x: Any, split_size_or_sections: Any, axis: Any = 0, **options: Any) -> Any:
    """An int is the size of each part; how many there are must be known."""
    on = b.axis(options.get("dim", axis), b.rank(x))
    size = b.dims(x)[on]
    if not isinstance(split_size_or_sections, int) and b.is_sequence(split_size_or_sections):
        bounds, stop = [], Dim.const(0)
        for d in sizes(b, sequence(b, split_size_or_sections)):
            b.require("le", Dim.const(0), d, "split: a section is negative")
            stop = stop + d
            bounds.append(stop)
        b.require("eq", stop, size, "split: the sections do not add up to the size")
        return b.tuple(parts(b, x, bounds, on))
    each = sizes(b, [split_size_or_sections])[0]
    count = settled(b, (size + (each - 1)) // each) if each.value != 0 else None
    if count is None and each.value is None:  # a number that was captured: how many parts there are makes it a constant
        each = Dim.const(const(b, split_size_or_sections))
        count = settled(b, (size + (each.value - 1)) // each.value) if each.value else None
    if count is None:
        return b.unsupported("split by a size whose number of parts is not constant")
    return b.tuple(parts(b, x, [each * (i + 1) for i in range(count - 1)] + [None], on))


@binds(*primitive("Split"), **MS)
def _split_primitive(b: Any, prim: Any, x: Any) -> Any:
    return b.tuple(equal_parts(b, x, prim.output_num, b.axis(prim.axis, b.rank(x))))


@binds("mindspore.ops.chunk", "mindspore.mint.chunk", method="chunk", **MS)
def _chunk(b: Any, x: Any, chunks: Any, axis: Any = 0, **options: Any) -> Any:
    """Parts of ceil(size / chunks), while that gives `chunks` parts whatever the size: known sizes, or multiples of chunks."""
    on, n = b.axis(options.get("dim", axis), b.rank(x)), const(b, chunks)
    size = b.dims(x)[on]
    if n == 1:
        return b.tuple([x])
    if size.value is None:
        return b.tuple(equal_parts(b, x, n, on))  # other sizes leave native code
    each = -(-size.value // n)
    count = -(-size.value // each) if each else 1
    return b.tuple(parts(b, x, [Dim.const(each * (i + 1)) for i in range(count - 1)] + [None], on))


@binds(*named("unbind", "unstack"), method="unbind", **MS)
def _unbind(b: Any, x: Any, axis: Any = 0, **options: Any) -> Any:
    on = b.axis(options.get("dim", axis), b.rank(x))
    n = b.dims(x)[on].value
    return b.tuple([b.slice(x, [_WHOLE] * on + [("index", i)]) for i in range(n)]) if n is not None else b.unsupported("unbind of a size that is not constant")


# -- shapes

@binds(*named("reshape", "view"), **MS)
def _reshape(b: Any, x: Any, *shape: Any) -> Any:
    return b.reshape(x, resolved(b, x, sequence(b, shape[0]) if len(shape) == 1 else list(shape)))


binds(method=("reshape", "view"), **MS)(_reshape)
bind_primitive("Reshape", _reshape)


def _permute(b: Any, x: Any, *perm: Any) -> Any:
    rank = b.rank(x)
    order = sequence(b, perm[0]) if len(perm) == 1 else list(perm)
    return b.transpose(x, tuple(b.axis(p, rank) for p in order))


def _swapaxes(b: Any, x: Any, axis0: Any, axis1: Any) -> Any:
    rank = b.rank(x)
    i, j = b.axis(axis0, rank), b.axis(axis1, rank)
    perm = list(range(rank))
    perm[i], perm[j] = j, i
    return b.transpose(x, tuple(perm))


def _transpose_method(b: Any, x: Any, *given: Any) -> Any:
    """No argument reverses, one is the permutation, two ints are swapped, more are the permutation."""
    if not given:
        return b.transpose(x, tuple(range(b.rank(x)))[::-1])
    return _swapaxes(b, x, *given) if len(given) == 2 else _permute(b, x, *given)


binds("mindspore.ops.transpose", "mindspore.ops.auto_generate.transpose", *named("permute"), method="permute", **MS)(_permute)
binds("mindspore.mint.transpose", *named("swapaxes", "swapdims"), method=("swapaxes", "swapdims"), **MS)(_swapaxes)
binds(method="transpose", **MS)(_transpose_method)
bind_primitive("Transpose", _permute)


@binds("mindspore.ops.movedim", "mindspore.ops.moveaxis", **MS)
def _movedim(b: Any, x: Any, source: Any, destination: Any) -> Any:
    rank = b.rank(x)
    src, dst = [b.axis(v, rank) for v in sequence(b, source)], [b.axis(v, rank) for v in sequence(b, destination)]
    order = [i for i in range(rank) if i not in src]
    for d, s in sorted(zip(dst, src, strict=False)):
        order.insert(d, s)
    return b.transpose(x, tuple(order))


@binds(*named("expand_dims", "unsqueeze"), method=("expand_dims", "unsqueeze"), **MS)
def _expand_dims(b: Any, x: Any, axis: Any = None, **options: Any) -> Any:
    return b.op("expand_dims", x, axis=(b.axis(options.get("dim", axis), b.rank(x) + 1),))


bind_primitive("ExpandDims", _expand_dims)


@binds(*named("squeeze"), method="squeeze", **MS)
def _squeeze(b: Any, x: Any, axis: Any = None, **options: Any) -> Any:
    axis = options.get("dim", axis)
    return squeeze(b, x, None if not none(b, axis) and not isinstance(axis, int) and b.is_sequence(axis) and not b.items(axis) else axis)


binds(*primitive("Squeeze"), **MS)(lambda b, prim, x: squeeze(b, x, tuple(prim.axis) or None))


@binds("mindspore.ops.flatten", **MS)
def _flatten(b: Any, x: Any, order: Any = "C", *, start_dim: Any = 1, end_dim: Any = -1) -> Any:
    """Rank 0 becomes rank 1."""
    rank, dims = b.rank(x), list(b.dims(x))
    if const(b, order) != "C":
        return b.unsupported("flatten with order F")
    if rank < 2:
        return b.reshape(x, [product(dims)])
    first, last = b.axis(start_dim, rank), b.axis(end_dim, rank)
    return b.reshape(x, dims[:first] + [product(dims[first:last + 1])] + dims[last + 1:])


@binds(method="flatten", **MS)
def _flatten_method(b: Any, x: Any, order: Any = "C", *, start_dim: Any = 0, end_dim: Any = -1) -> Any:
    return _flatten(b, x, order, start_dim=start_dim, end_dim=end_dim)


@binds("mindspore.mint.flatten", **MS)
def _mint_flatten(b: Any, x: Any, start_dim: Any = 0, end_dim: Any = -1) -> Any:
    return _flatten(b, x, "C", start_dim=start_dim, end_dim=end_dim)


bind_primitive("Flatten", lambda b, x: _flatten(b, x))


@binds("mindspore.ops.broadcast_to", "mindspore.mint.broadcast_to", method="broadcast_to", **MS)
def _broadcast_to(b: Any, x: Any, shape: Any) -> Any:
    """-1 keeps a size."""
    wanted = sizes(b, sequence(b, shape))
    dims = [None] * (len(wanted) - b.rank(x)) + list(b.dims(x))
    if any(w.value == -1 and d is None for w, d in zip(wanted, dims, strict=False)):
        return b.unsupported("broadcast_to with a new axis of -1")
    for w in wanted:
        if w.value is None:
            b.require("le", Dim.const(0), w, "broadcast_to: a size that is negative")
    return b.op("broadcast_to", x, dims=tuple(d if w.value == -1 else w for w, d in zip(wanted, dims, strict=False)))


@binds(*named("tile"), method="tile", **MS)
def _tile(b: Any, x: Any, *reps: Any) -> Any:
    return tiled(b, x, sizes(b, sequence(b, reps[0]) if len(reps) == 1 else list(reps)))


bind_primitive("Tile", _tile)


@binds(*named("flip"), method="flip", **MS)
def _flip(b: Any, x: Any, dims: Any) -> Any:
    on = axes(b, dims, b.rank(x))
    return b.slice(x, [("slice", None, None, -1 if i in on else None) for i in range(b.rank(x))])


@binds("mindspore.mint.narrow", "mindspore.ops.narrow", method="narrow", **MS)
def _narrow(b: Any, x: Any, dim: Any, start: Any, length: Any) -> Any:
    on = b.axis(dim, b.rank(x))
    first, n = sizes(b, [start, length])
    b.require("le", Dim.const(0), first, "narrow: start is negative")
    b.require("le", Dim.const(0), n, "narrow: length is negative")
    b.require("le", first + n, b.dims(x)[on], "narrow: out of bounds")
    return b.slice(x, [_WHOLE] * on + [("slice", b.int_of(first), b.int_of(first + n), None)])


@binds(*named("gather"), **MS)
def _gather(b: Any, x: Any, indices: Any, axis: Any, batch_dims: Any = 0) -> Any:
    """mindspore.ops.gather (mint.gather is another function: see below)."""
    if const(b, batch_dims) != 0 or not b.is_tensor(indices):
        return b.unsupported("gather with batch_dims")
    return b.op("take", x, indices, axis=b.axis(axis, b.rank(x)))


binds("mindspore.mint.gather", **MS)(lambda b, *args, **options: b.unsupported("mint.gather"))
binds(*primitive("Gather"), **MS)(lambda b, prim, x, indices, axis: _gather(b, x, indices, axis, prim.batch_dims))


@binds("mindspore.ops.embedding", "mindspore.mint.nn.functional.embedding", **MS)
def _embedding(b: Any, indices: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = 2.0, scale_grad_by_freq: Any = False) -> Any:
    """Has no CPU kernel in MindSpore 2.10; bcvm runs it."""
    return b.op("embedding", indices, weight) if none(b, max_norm) else b.unsupported("embedding with max_norm")


def _one_hot_of(b: Any, indices: Any, depth: Any, on_value: Any, off_value: Any, axis: Any) -> Any:
    if const(b, axis) != -1 or b.is_tensor(depth):
        return b.unsupported("one_hot along another axis")
    if not b.is_tensor(on_value):
        if const(b, on_value) != 1 or const(b, off_value) != 0:
            return b.unsupported("one_hot with other values than 1 and 0")
        return b.op("one_hot", indices, depth=sizes(b, [depth])[0], dtype="int64" if b.dtype(on_value) == "int" else "float32")
    same_dtype(b, "one_hot", on_value, off_value)
    hit = b.op("one_hot", indices, depth=sizes(b, [depth])[0], dtype="bool")
    return b.op("where", hit, on_value, off_value)


@binds("mindspore.ops.one_hot", **MS)
def _one_hot(b: Any, indices: Any, depth: Any, on_value: Any = 1, off_value: Any = 0, axis: Any = -1) -> Any:
    return _one_hot_of(b, indices, depth, on_value, off_value, axis)


binds(*primitive("OneHot"), **MS)(lambda b, prim, indices, depth, on, off: _one_hot_of(b, indices, depth, on, off, prim.axis))


@binds("mindspore.ops.pad", "mindspore.mint.nn.functional.pad", **MS)
def _pad(b: Any, x: Any, padding: Any, mode: Any = "constant", value: Any = None) -> Any:
    """(before, after) pairs from the last axis on; never negative."""
    if const(b, mode) != "constant" or b.is_tensor(padding):
        return b.unsupported("pad in another mode than constant")
    flat = sizes(b, sequence(b, padding))
    for d in flat:
        b.require("le", Dim.const(0), d, "pad: a negative padding")
    flat = [maximum(d, 0) for d in flat]  # what the check leaves of its interval
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)][::-1]
    zero = Dim.const(0)
    return b.op("pad", x, pads=tuple([(zero, zero)] * (b.rank(x) - len(pairs)) + pairs), value=0 if none(b, value) else const(b, value))


binds(*primitive("Pad"), **MS)(lambda b, prim, x: b.op("pad", x, pads=tuple(map(tuple, prim.paddings)), value=0))
for _name in ("tril", "triu"):
    binds(*named(_name), method=_name, **MS)(lambda b, x, diagonal=0, name=_name: b.op(name, x, k=const(b, diagonal)))


@binds("mindspore.ops.StridedSlice", **MS)
def _strided_slice(b: Any, prim: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    if any(getattr(prim, f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")):
        return b.unsupported("StridedSlice with masks")
    return b.slice(x, [("slice", s, e, const(b, k)) for s, e, k in zip(sequence(b, begin), sequence(b, end), sequence(b, strides), strict=False)])


# -- creation


def _filled(name: str, value: int) -> None:
    def function(b: Any, size: Any, dtype: Any = None) -> Any:
        return b.full(sizes(b, sequence(b, size)), value, "float32" if none(b, dtype) else dtype_name(b, dtype))

    def like(b: Any, x: Any, *, dtype: Any = None) -> Any:
        x = of_tensor(b, x, f"{name}_like")
        return b.full(list(b.dims(x)), value, b.dtype(x) if none(b, dtype) else dtype_name(b, dtype))
    binds(*named(name), **MS)(function)
    binds(*named(f"{name}_like"), **MS)(like)
    bind_primitive(name.capitalize(), function)
    bind_primitive(f"{name.capitalize()}Like", like)


_filled("zeros", 0)
_filled("ones", 1)


@binds(*named("full"), **MS)
def _full(b: Any, size: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    """Only with a dtype: without one MindSpore 2.10's depends on earlier calls."""
    return b.unsupported("full without a dtype") if none(b, dtype) else b.full(sizes(b, sequence(b, size)), fill_value, dtype_name(b, dtype))


@binds(*named("full_like"), **MS)
def _full_like(b: Any, x: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    x = of_tensor(b, x, "full_like")
    return b.full(list(b.dims(x)), fill_value, b.dtype(x) if none(b, dtype) else dtype_name(b, dtype))


@binds(*named("arange"), **MS)
def _arange(b: Any, start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Any:
    return counted(b, start, end, step, "int64" if none(b, dtype) else dtype_name(b, dtype), forward=True)


@binds("mindspore.numpy.utils_const._iota", **MS)
def _iota(b: Any, dtype: Any, num: Any, increasing: Any = True) -> Any:
    """What mindspore.numpy's arange, linspace and others make theirs of: 0, 1, ... num - 1."""
    n = sizes(b, [num])[0]
    b.require("lt", Dim.const(0), n, "a tensor of no elements")
    return counted(b, 0, num, 1, dtype_name(b, dtype)) if flag(b, increasing) else b.slice(counted(b, 0, num, 1, dtype_name(b, dtype)), [("slice", None, None, -1)])


@binds("mindspore.ops.eye", "mindspore.mint.eye", **MS)
def _eye(b: Any, n: Any, m: Any = None, dtype: Any = None) -> Any:
    rows, columns = sizes(b, [n, n if none(b, m) else m])
    return b.op("eye", dims=(rows, columns), k=0, dtype="float32" if none(b, dtype) else dtype_name(b, dtype))


# -- asking a tensor

def shape_of(b: Any, x: Any) -> Any:
    return b.tuple([b.size(x, i) for i in range(b.rank(x))])


def _rank(b: Any, x: Any) -> Any:
    return b.rank(x)


def _elements(b: Any, x: Any) -> Any:
    return b.int_of(product(b.dims(x)))


def _dtype(b: Any, x: Any) -> Any:
    return ms_dtype(b, b.dtype(x))


binds("mindspore.ops.shape", "mindspore.ops.function.shape_", attribute="shape", **MS)(shape_of)
binds("mindspore.ops.rank", attribute="ndim", method=("dim", "ndimension"), **MS)(_rank)
binds("mindspore.ops.size", attribute="size", method="numel", **MS)(_elements)
binds(attribute="dtype", **MS)(_dtype)
binds(attribute="T", **MS)(lambda b, x: b.transpose(x, tuple(range(b.rank(x)))[::-1]))
bind_primitive("Shape", shape_of)
bind_primitive("Rank", _rank)
bind_primitive("Size", _elements)
binds("mindspore.ops.DType", "mindspore.ops.operations.array_ops.DType", **MS)(lambda b, prim, x: _dtype(b, x))


binds(*named("is_floating_point"), method="is_floating_point", **MS)(lambda b, x: is_float(b.dtype(x)))


@binds(method="item", **MS)
def _item(b: Any, x: Any, *index: Any) -> Any:
    return b.item(x) if not index else b.unsupported("item with an index")


binds(method="contiguous", **MS)(lambda b, x: x)
binds(*named("clone"), method=("copy", "clone"), **MS)(lambda b, x: b.copy(x))
