"""Convolutions besides conv2d: one-dimensional, transposed, and what their gradients and conv2d's share.

Transposed convolution after PyTorch's and MindSpore's conv_transpose2d: the gradient of conv2d with respect to its input.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.errors import ShapeError
from bcvm.ops import samples as s
from bcvm.ops import shaperules
from bcvm.ops.arguments import Pair, padding4, pair
from bcvm.ops.definition import Composite, Library, Op, binds, register
from bcvm.ops.elementwise import FLOATS, NUMBERS
from bcvm.ops.function_bindings import const, none, present
from bcvm.ops.functions import Array, run
from bcvm.ops.products import PRODUCT_BOUND, conv2d_exact, conv2d_fast, wide
from bcvm.shapes.dim import Dim, product

# -- conv1d: conv2d of height 1


def _flat(stride: int, padding: Any, dilation: int) -> dict[str, Any]:
    return {"stride": (1, stride), "padding": padding if padding == "same" else (0, 0, *padding), "dilation": (1, dilation)}


def _conv1d_build(b: Any, x: Any, weight: Any, *bias: Any, stride: int, padding: Any, dilation: int, groups: int) -> Any:
    y = b.op("conv2d", b.op("expand_dims", x, axis=(2,)), b.op("expand_dims", weight, axis=(2,)), *bias, **_flat(stride, padding, dilation), groups=groups)
    return b.op("squeeze", y, axis=(2,))


def _conv1d(convolve: Any) -> Any:
    def conv1d(x: Any, weight: Any, *bias: Any, stride: int, padding: Any, dilation: int, groups: int) -> Any:
        if np.ndim(x) != 3 or np.ndim(weight) != 3:
            raise ShapeError(f"conv1d takes x [N, C, L] and weight [O, C/groups, K], not ranks {np.ndim(x)} and {np.ndim(weight)}")
        return convolve(np.expand_dims(x, 2), np.expand_dims(weight, 2), *bias, **_flat(stride, padding, dilation), groups=groups)[:, :, 0]
    return conv1d


def _conv1d_cost(x: Any, w: Any, *_: Any, stride: int = 1, **__: Any) -> Any:
    return x[0] * x[2] * product(w) * 2 // stride, (product(x) + product(w)) * 4


_ONE = {"stride": 1, "padding": (0, 0), "dilation": 1, "groups": 1}
register(Op("conv1d", ("x", "weight", "*bias"), Composite(_conv1d_build), "promote", None, _conv1d(conv2d_exact), _conv1d(conv2d_fast), tuple(_ONE),
            domain=NUMBERS, bound=PRODUCT_BOUND,
            samples=s.fixed((((2, 3, 9), (4, 3, 3), (4,)), {**_ONE, "padding": (1, 1)}), (((1, 4, 11), (6, 2, 3)), {**_ONE, "groups": 2, "stride": 2}),
                            (((1, 3, 9), (5, 3, 3)), {**_ONE, "dilation": 2, "padding": "same"})),
            cost=_conv1d_cost, doc="x [N, C, L], weight [O, C/groups, K], bias [O]; padding (left, right) or 'same'."))


# -- conv3d: the planes that a window meets lie side by side as channels

def _conv3d_build(b: Any, x: Any, weight: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, depth: int) -> Any:
    """conv2d of B * OD images of C * KD channels."""
    if b.rank(x) != 5 or b.rank(weight) != 5:
        raise ShapeError(f"conv3d takes x [N, C, D, H, W] and weight [O, C/groups, KD, KH, KW], not ranks {b.rank(x)} and {b.rank(weight)}")
    zero = Dim.const(0)
    if padding[0] or padding[1]:
        x = b.op("pad", x, pads=((zero, zero), (zero, zero), (Dim.const(padding[0]), Dim.const(padding[1])), (zero, zero), (zero, zero)), value=0)
    n, c, size, h, w = b.dims(x)
    o, per, kernel, kh, kw = b.dims(weight)
    b.require("eq", kernel, Dim.const(depth), "conv3d: the kernel has another depth than `depth` says")
    places = shaperules.window(size, depth, stride[0], 0, 0, dilation[0])
    b.require("le", Dim.const(1), places, "conv3d: the kernel is larger than the padded input (axis 2)")
    whole = ("slice", None, None, None)
    spans = [("slice", k * dilation[0], b.int_of((places - 1) * stride[0] + (k * dilation[0] + 1)), stride[0]) for k in range(depth)]
    planes = [b.slice(x, [whole, whole, span, whole, whole]) for span in spans]
    folded = b.op("stack", *(b.transpose(p, (0, 2, 1, 3, 4)) for p in planes), axis=3)
    y = b.op("conv2d", b.reshape(folded, (n * places, c * depth, h, w)), b.reshape(weight, (o, per * depth, kh, kw)), *bias, stride=stride[1:],
             padding=padding[2:], dilation=dilation[1:], groups=groups)
    return b.copy(b.transpose(b.reshape(y, (n, places, *b.dims(y)[1:])), (0, 2, 1, 3, 4)))


def _conv3d(convolve: Any) -> Any:
    def conv3d(x: Any, weight: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, depth: int) -> Any:
        x, weight = np.asarray(x), np.asarray(weight)
        if x.ndim != 5 or weight.ndim != 5:
            raise ShapeError(f"conv3d takes x [N, C, D, H, W] and weight [O, C/groups, KD, KH, KW], not ranks {x.ndim} and {weight.ndim}")
        if weight.shape[2] != depth:
            raise ShapeError(f"conv3d: the kernel has a depth of {weight.shape[2]}, not {depth}")
        x = np.pad(x, ((0, 0), (0, 0), tuple(padding[:2]), (0, 0), (0, 0)))
        places = (x.shape[2] - (depth - 1) * dilation[0] - 1) // stride[0] + 1
        if places < 1:
            raise ShapeError(f"conv3d: the kernel's depth {depth} is larger than the padded input's {x.shape[2]}")
        planes = [x[:, :, k * dilation[0]:k * dilation[0] + (places - 1) * stride[0] + 1:stride[0]].swapaxes(1, 2) for k in range(depth)]
        folded = np.stack(planes, 3).reshape(x.shape[0] * places, x.shape[1] * depth, *x.shape[3:])
        y = convolve(folded, weight.reshape(weight.shape[0], weight.shape[1] * depth, *weight.shape[3:]), *bias, stride=stride[1:], padding=padding[2:],
                     dilation=dilation[1:], groups=groups)
        return y.reshape(x.shape[0], places, *y.shape[1:]).swapaxes(1, 2)
    return conv3d


def _conv3d_cost(x: Any, w: Any, *_: Any, stride: Any = (1, 1, 1), **__: Any) -> Any:
    return x[0] * x[2] * x[3] * x[4] * product(w) * 2 // (stride[0] * stride[1] * stride[2]), (product(x) + product(w)) * 4


_THREE = {"stride": (1, 1, 1), "padding": (0,) * 6, "dilation": (1, 1, 1), "groups": 1}
register(Op("conv3d", ("x", "weight", "*bias"), Composite(_conv3d_build), "promote", None, _conv3d(conv2d_exact), _conv3d(conv2d_fast), (*_THREE, "depth"),
            domain=FLOATS, bound=PRODUCT_BOUND,
            samples=s.fixed((((2, 2, 5, 4, 6), (3, 2, 3, 2, 3), (3,)), {**_THREE, "padding": (1, 1, 0, 1, 1, 1), "depth": 3}),
                            (((1, 4, 7, 5, 5), (2, 2, 2, 3, 3)), {**_THREE, "groups": 2, "stride": (2, 1, 2), "dilation": (2, 1, 1), "depth": 2}),
                            (((1, 3, 4, 4, 4), (5, 3, 1, 1, 1)), {**_THREE, "depth": 1})),
            cost=_conv3d_cost,
            doc="x [N, C, D, H, W], weight [O, C/groups, KD, KH, KW], bias [O]; padding (front, back, top, bottom, left, right); depth: KD."))


# -- transposed

def _places(size: Any, kernel: Any, stride: int, pads: Any, dilation: int) -> Any:
    """The size that a transposed convolution gives without output padding."""
    return (size - 1) * stride - pads[0] - pads[1] + (kernel - 1) * dilation + 1


def conv_transpose2d_shape(ctx: Any, x: Any, w: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, dims: Any) -> tuple[Dim, ...]:
    """x [N, C, H, W], w [C, O/groups, KH, KW], bias [O] -> [N, O, *dims]."""
    if len(x) != 4 or len(w) != 4:
        raise ShapeError(f"conv_transpose2d takes x [N, C, H, W] and weight [C, O/groups, KH, KW], not ranks {len(x)} and {len(w)}")
    ctx.require_equal(x[1], w[0], "conv_transpose2d: channels of x and of the weight differ")
    if groups != 1:
        ctx.require_equal(w[0] % groups, Dim.const(0), "conv_transpose2d: groups must divide the input channels")
    for b in bias:
        if len(b) != 1:
            raise ShapeError(f"conv_transpose2d takes a bias of rank 1, not {len(b)}")
        ctx.require_equal(b[0], w[1] * groups, "conv_transpose2d: bias and output channels differ")
    for i in (0, 1):
        ctx.require("le", _places(x[2 + i], w[2 + i], stride[i], padding[2 * i:2 * i + 2], dilation[i]), shaperules.dim(dims[i]),
                    f"conv_transpose2d: the result is smaller than what x and the kernel give (axis {2 + i})")
        ctx.require("le", Dim.const(1), shaperules.dim(dims[i]), f"conv_transpose2d: the result is empty (axis {2 + i})")
    return x[0], w[1] * groups, shaperules.dim(dims[0]), shaperules.dim(dims[1])


def _conv_transpose2d(x: Any, weight: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, dims: Any) -> Any:
    """One matrix product, whose columns are added up where they belong."""
    x, weight = np.asarray(x), np.asarray(weight)
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"conv_transpose2d takes x [N, C, H, W] and weight [C, O/groups, KH, KW], not ranks {x.ndim} and {weight.ndim}")
    if x.shape[1] != weight.shape[0] or x.shape[1] % groups:
        raise ShapeError(f"conv_transpose2d: x {x.shape}, weight {weight.shape} and groups={groups} do not fit: the weight is [C, O/groups, KH, KW]")
    (n, c, h, w), (_, per, kh, kw) = x.shape, weight.shape
    dtype = np.result_type(x, weight, *bias)
    if dtype == np.float16:
        return _conv_transpose2d(*(np.asarray(a, np.float32) for a in (x, weight, *bias)), stride=stride, padding=padding, dilation=dilation, groups=groups,
                                 dims=dims).astype(dtype)
    columns = np.matmul(weight.reshape(groups, c // groups, per * kh * kw).swapaxes(1, 2), x.reshape(n, groups, c // groups, h * w))
    columns = columns.reshape(n, groups * per, kh, kw, h, w)
    (top, _, left, _), (rows, width) = padding, dims
    sizes = [max(before + size, (places - 1) * step + (kernel - 1) * d + 1, 0)
             for before, size, places, kernel, step, d in zip((top, left), (rows, width), (h, w), (kh, kw), stride, dilation)]
    out = np.zeros((n, groups * per, *sizes), dtype)
    if h and w:
        for i in range(kh):
            for j in range(kw):
                y, z = i * dilation[0], j * dilation[1]
                out[:, :, y:y + (h - 1) * stride[0] + 1:stride[0], z:z + (w - 1) * stride[1] + 1:stride[1]] += columns[:, :, i, j]
    out = out[:, :, top:top + rows, left:left + width]
    return out + np.asarray(bias[0])[:, None, None] if bias else np.ascontiguousarray(out)


def _conv_transpose2d_exact(*arrays: Any, **attrs: Any) -> Any:
    exact, dtype = wide(*arrays)
    return _conv_transpose2d(*exact, **attrs).astype(dtype)


def _pads(b: Any, weight: Any, attrs: Any) -> tuple[int, ...]:
    """The padding as numbers."""
    if attrs["padding"] != "same":
        return tuple(attrs["padding"])
    pads = tuple(p.value for i in (0, 1) for p in shaperules.same_padding(b.dims(weight)[2 + i], attrs["dilation"][i]) if p.value is not None)
    return pads if len(pads) == 4 else b.unsupported("the gradient of a convolution with padding 'same' whose kernel size is not constant")


def _cut(b: Any, x: Any, rows: Dim, columns: Dim) -> Any:
    whole = ("slice", None, None, None)
    return b.slice(x, [whole, whole, ("slice", None, b.int_of(rows), None), ("slice", None, b.int_of(columns), None)])


def _weight_gradient(b: Any, x: Any, g: Any, weight: Any, attrs: Any, pads: tuple[int, ...]) -> Any:
    """Of conv2d, whose input was x and whose result has the gradient g: a convolution of x with g as its kernel, images and channels changing places."""
    groups = attrs["groups"]
    n, c, h, w = b.dims(x)
    if groups == 1:
        swapped = b.transpose(x, (1, 0, 2, 3))
    else:
        swapped = b.reshape(b.transpose(b.reshape(x, (n, Dim.const(groups), c // groups, h, w)), (2, 1, 0, 3, 4)), (c // groups, n * groups, h, w))
    y = b.op("conv2d", swapped, b.transpose(g, (1, 0, 2, 3)), stride=attrs["dilation"], padding=pads, dilation=attrs["stride"], groups=groups)
    return b.transpose(_cut(b, y, *b.dims(weight)[2:]), (1, 0, 2, 3))


def conv2d_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    pads = _pads(b, x[1], attrs)
    shared = {"stride": attrs["stride"], "padding": pads, "dilation": attrs["dilation"], "groups": attrs["groups"]}
    dx = b.op("conv_transpose2d", g[0], x[1], **shared, dims=tuple(b.dims(x[0])[2:]))
    return dx, _weight_gradient(b, x[0], g[0], x[1], attrs, pads), *(b.op("sum", g[0], axis=(0, 2, 3), keepdims=False) for _ in x[2:])


def _conv_transpose2d_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    shared = {n: attrs[n] for n in ("stride", "padding", "dilation", "groups")}
    dx = _cut(b, b.op("conv2d", g[0], x[1], **shared), *b.dims(x[0])[2:])
    return dx, _weight_gradient(b, g[0], x[0], x[1], attrs, attrs["padding"]), *(b.op("sum", g[0], axis=(0, 2, 3), keepdims=False) for _ in x[2:])


def _transpose_cost(x: Any, w: Any, *_: Any, **__: Any) -> Any:
    return product(x) * w[1] * w[2] * w[3] * 2, (product(x) + product(w)) * 4


_TWO = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
register(Op("conv_transpose2d", ("x", "weight", "*bias"), Library("conv_transpose2d"), "promote", conv_transpose2d_shape, _conv_transpose2d_exact,
            _conv_transpose2d, (*_TWO, "dims"), domain=NUMBERS, bound=PRODUCT_BOUND,
            samples=s.fixed((((2, 3, 4, 5), (3, 4, 3, 3), (4,)), {**_TWO, "padding": (1, 1, 1, 1), "dims": (4, 5)}),
                            (((1, 4, 5, 3), (4, 3, 3, 2)), {**_TWO, "groups": 2, "stride": (2, 1), "dims": (12, 4)}),
                            (((1, 2, 3, 4), (2, 2, 3, 3), (2,)), {**_TWO, "stride": (2, 3), "padding": (1, 0, 0, 2), "dims": (6, 10)}),
                            (((2, 2, 3, 3), (2, 3, 2, 2)), {**_TWO, "dilation": (2, 1), "dims": (5, 4)}),
                            (((1, 2, 2, 2), (2, 1, 2, 2), (1,)), {**_TWO, "stride": (3, 3), "dims": (5, 5)})),
            gradient=_conv_transpose2d_gradient, saves=("operands",), cost=_transpose_cost,
            doc="The gradient of conv2d with respect to its input: x [N, C, H, W], weight [C, O/groups, KH, KW], bias [O] -> [N, O, *dims]."))


def _conv_transpose1d_build(b: Any, x: Any, weight: Any, *bias: Any, stride: int, padding: Any, dilation: int, groups: int, dims: Any) -> Any:
    y = b.op("conv_transpose2d", b.op("expand_dims", x, axis=(2,)), b.op("expand_dims", weight, axis=(2,)), *bias, **_flat(stride, padding, dilation),
             groups=groups, dims=(Dim.const(1), shaperules.dim(dims[0])))
    return b.op("squeeze", y, axis=(2,))


def _conv_transpose1d(convolve: Any) -> Any:
    def conv_transpose1d(x: Any, weight: Any, *bias: Any, stride: int, padding: Any, dilation: int, groups: int, dims: Any) -> Any:
        if np.ndim(x) != 3 or np.ndim(weight) != 3:
            raise ShapeError(f"conv_transpose1d takes x [N, C, L] and weight [C, O/groups, K], not ranks {np.ndim(x)} and {np.ndim(weight)}")
        return convolve(np.expand_dims(x, 2), np.expand_dims(weight, 2), *bias, **_flat(stride, padding, dilation), groups=groups, dims=(1, *dims))[:, :, 0]
    return conv_transpose1d


register(Op("conv_transpose1d", ("x", "weight", "*bias"), Composite(_conv_transpose1d_build), "promote", None, _conv_transpose1d(_conv_transpose2d_exact),
            _conv_transpose1d(_conv_transpose2d), (*_ONE, "dims"), domain=FLOATS, bound=PRODUCT_BOUND,
            samples=s.fixed((((2, 3, 6), (3, 4, 3), (4,)), {**_ONE, "padding": (1, 1), "dims": (6,)}),
                            (((1, 4, 5), (4, 3, 4)), {**_ONE, "groups": 2, "stride": 2, "dims": (12,)})),
            cost=lambda x, w, *_, **__: (product(x) * w[1] * w[2] * 2, (product(x) + product(w)) * 4),
            doc="x [N, C, L], weight [C, O/groups, K], bias [O] -> [N, O, *dims]."))


# -- public functions and their bindings

def _pad_pair(padding: Any) -> Any:
    """'same' as it is; 'valid', an int, (n,) or (left, right) as the latter."""
    if padding == "same":
        return "same"
    if padding == "valid":
        return 0, 0
    if isinstance(padding, str) or not isinstance(padding, int) and len(padding) not in (1, 2):
        raise ValueError(f"padding: an int, (left, right), 'same' or 'valid', not {padding!r}")
    return (padding, padding) if isinstance(padding, int) else (padding[0], padding[-1])


def _one(value: Any, what: str) -> int:
    """An int, or the one int of a sequence."""
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int):
        raise ValueError(f"{what}: one int, not {value!r}")
    return value


def _numbers(padding: Any) -> Any:
    if padding == "same":
        raise ValueError("a transposed convolution takes padding as numbers, not 'same'")
    return padding


def conv1d(x: Array, weight: Array, bias: Array | None = None, stride: int = 1, padding: Any = 0, dilation: int = 1, groups: int = 1) -> Array:
    """x [N, C, L], weight [O, C/groups, K], bias [O] -> [N, O, L'].

    padding: an int, (left, right), 'valid' or, with stride 1, 'same'. ShapeError if sizes do not fit."""
    pads = _pad_pair(padding)
    if pads == "same" and _one(stride, "stride") != 1:
        raise ValueError("conv1d: padding='same' needs stride 1")
    return run("conv1d", x, weight, *(() if bias is None else (bias,)), stride=_one(stride, "stride"), padding=pads, dilation=_one(dilation, "dilation"),
               groups=groups)


def _three(value: Any, what: str) -> tuple[int, int, int]:
    """An int for all, or three."""
    if isinstance(value, int):
        return value, value, value
    if len(value) != 3:
        raise ValueError(f"{what}: one int or three, not {value!r}")
    return value[0], value[1], value[2]


def _six(padding: Any) -> tuple[int, ...]:
    """'valid', an int, (depth, height, width) or (front, back, top, bottom, left, right) as the latter."""
    if padding == "valid":
        return (0,) * 6
    if isinstance(padding, str) or not isinstance(padding, int) and len(padding) not in (3, 6):
        raise ValueError(f"padding: an int, (depth, height, width), six numbers or 'valid', not {padding!r}")
    if not isinstance(padding, int) and len(padding) == 6:
        return tuple(padding)
    return tuple(p for p in _three(padding, "padding") for _ in range(2))


def conv3d(x: Array, weight: Array, bias: Array | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
           depth: int | None = None) -> Array:
    """x [N, C, D, H, W], weight [O, C/groups, KD, KH, KW], bias [O] -> [N, O, D', H', W'].

    padding: an int, (depth, height, width), (front, back, top, bottom, left, right) or 'valid'. depth: KD; native code is made only where it is said.
    ShapeError if sizes do not fit."""
    return run("conv3d", x, weight, *(() if bias is None else (bias,)), stride=_three(stride, "stride"), padding=_six(padding),
               dilation=_three(dilation, "dilation"), groups=groups,
               depth=np.shape(weight)[2] if depth is None else depth)


def conv_transpose1d(x: Array, weight: Array, bias: Array | None = None, stride: int = 1, padding: Any = 0, output_padding: int = 0, dilation: int = 1,
                     groups: int = 1) -> Array:
    """x [N, C, L], weight [C, O/groups, K], bias [O] -> [N, O, (L - 1) stride - padding + dilation (K - 1) + output_padding + 1]."""
    attrs = {"stride": _one(stride, "stride"), "padding": _numbers(_pad_pair(padding)), "dilation": _one(dilation, "dilation")}
    size = _places(np.shape(x)[-1], np.shape(weight)[-1], attrs["stride"], attrs["padding"], attrs["dilation"]) + _one(output_padding, "output_padding")
    return run("conv_transpose1d", x, weight, *(() if bias is None else (bias,)), **attrs, groups=groups, dims=(size,))


def conv_transpose2d(x: Array, weight: Array, bias: Array | None = None, stride: Pair = 1, padding: Any = 0, output_padding: Pair = 0, dilation: Pair = 1,
                     groups: int = 1) -> Array:
    """x [N, C, H, W], weight [C, O/groups, KH, KW], bias [O] -> [N, O, H', W'], H' = (H - 1) stride - padding + dilation (KH - 1) + output_padding + 1."""
    steps, pads, gaps, more = pair(stride, "stride"), _numbers(padding4(padding)), pair(dilation, "dilation"), pair(output_padding, "output_padding")
    dims = tuple(_places(np.shape(x)[2 + i], np.shape(weight)[2 + i], steps[i], pads[2 * i:2 * i + 2], gaps[i]) + more[i] for i in (0, 1))
    return run("conv_transpose2d", x, weight, *(() if bias is None else (bias,)), stride=steps, padding=pads, dilation=gaps, groups=groups, dims=dims)


@binds("bcvm.ops.conv1d")
def bind_conv1d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Any:
    pads, step = _pad_pair(const(b, padding)), _one(const(b, stride), "stride")
    if pads == "same" and step != 1:
        return b.unsupported("conv1d with padding='same' and a stride")
    return b.op("conv1d", x, weight, *present(b, bias), stride=step, padding=pads, dilation=_one(const(b, dilation), "dilation"), groups=const(b, groups))


@binds("bcvm.ops.conv3d")
def bind_conv3d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1, depth: Any = None) -> Any:
    if b.rank(weight) != 5:
        return b.unsupported("conv3d with a weight of another rank")
    known = b.dims(weight)[2].value if none(b, depth) else const(b, depth)
    if known is None:
        return b.unsupported("conv3d whose kernel's depth is not constant: say depth=")
    return b.op("conv3d", x, weight, *present(b, bias), stride=_three(const(b, stride), "stride"), padding=_six(const(b, padding)),
                dilation=_three(const(b, dilation), "dilation"), groups=const(b, groups), depth=known)


@binds("bcvm.ops.conv_transpose1d")
def bind_conv_transpose1d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1,
                          groups: Any = 1) -> Any:
    step, pads, gap = _one(const(b, stride), "stride"), _pad_pair(const(b, padding)), _one(const(b, dilation), "dilation")
    if b.rank(x) != 3 or b.rank(weight) != 3 or pads == "same":
        return b.unsupported("conv_transpose1d of other ranks or paddings")
    size = _places(b.dims(x)[2], b.dims(weight)[2], step, pads, gap) + _one(const(b, output_padding), "output_padding")
    return b.op("conv_transpose1d", x, weight, *present(b, bias), stride=step, padding=pads, dilation=gap, groups=const(b, groups), dims=(size,))


@binds("bcvm.ops.conv_transpose2d")
def bind_conv_transpose2d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1,
                          groups: Any = 1) -> Any:
    steps, pads, gaps = pair(const(b, stride), "stride"), padding4(const(b, padding)), pair(const(b, dilation), "dilation")
    if b.rank(x) != 4 or b.rank(weight) != 4 or pads == "same":
        return b.unsupported("conv_transpose2d of other ranks or paddings")
    more = pair(const(b, output_padding), "output_padding")
    dims = tuple(_places(b.dims(x)[2 + i], b.dims(weight)[2 + i], steps[i], pads[2 * i:2 * i + 2], gaps[i]) + more[i] for i in (0, 1))
    return b.op("conv_transpose2d", x, weight, *present(b, bias), stride=steps, padding=pads, dilation=gaps, groups=const(b, groups), dims=dims)
