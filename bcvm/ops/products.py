"""Matrix products, convolution, pooling."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bcvm.errors import ShapeError
from bcvm.ops import large, shaperules
from bcvm.ops import samples as s
from bcvm.ops.definition import Composite, Library, Op, register
from bcvm.ops.elementwise import EXACT, FLOATS, NUMBERS
from bcvm.shapes.dim import product

# Relative to the product of the operands' magnitudes.
PRODUCT_BOUND = {**EXACT, "float16": 4e-3, "float32": 2e-6, "float64": 1e-14}


def wide(*arrays: Any) -> tuple[list[Any], Any]:
    """The arrays in a dtype that products are exact enough in, and the dtype of the result."""
    dtype = np.result_type(*arrays)
    return [np.asarray(a, np.float64 if dtype.kind == "f" else dtype) for a in arrays], dtype


def _matmul_exact(a: Any, b: Any) -> Any:
    (x, y), dtype = wide(a, b)
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(x, y)).astype(dtype)[()]


def _matmul(a: Any, b: Any) -> Any:
    return large.product(a, b, np.matmul)


def _swap_last(b: Any, x: Any) -> Any:
    n = b.rank(x)
    return b.transpose(x, (*range(n - 2), n - 1, n - 2))


def _matmul_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    """1-D operands are treated as the row and the column they stand for."""
    left, right, grad = x[0], x[1], g[0]
    if b.rank(left) == 1:
        left = b.op("expand_dims", left, axis=(0,))
        grad = b.op("expand_dims", grad, axis=(b.rank(grad) - (b.rank(right) > 1),))
    if b.rank(right) == 1:
        right = b.op("expand_dims", right, axis=(1,))
        grad = b.op("expand_dims", grad, axis=(b.rank(grad),))
    dx = b.op("sum_to", b.op("matmul", grad, _swap_last(b, right)), left)
    dy = b.op("sum_to", b.op("matmul", _swap_last(b, left), grad), right)
    return b.reshape(dx, b.dims(x[0])), b.reshape(dy, b.dims(x[1]))


register(Op("matmul", ("a", "b"), Library("matmul"), "promote", shaperules.matmul, _matmul_exact, _matmul, domain=NUMBERS, bound=PRODUCT_BOUND,
            samples=s.fixed(*[((a, b), {}) for a, b in (((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
                                                        ((2, 1, 3, 4), (5, 4, 2)),
                                                        ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((1, 64), (64, 48)), ((33, 65), (65, 17)), ((4,), (2, 4, 3)),
                                                        ((2, 3, 4), (4,)))]),
            gradient=_matmul_gradient, saves=("operands",), cost=shaperules.matmul_cost, doc="NumPy's matrix product: 1-D operands, broadcast leading axes."))


def _linear_build(b: Any, x: Any, weight: Any, *bias: Any) -> Any:
    y = b.op("matmul", x, b.transpose(weight, (1, 0)))
    return b.op("add", y, bias[0]) if bias else y


def _linear(x: Any, weight: Any, *bias: Any) -> Any:
    if weight.ndim != 2:
        raise ShapeError(f"linear: the weight is [O, I], not of rank {weight.ndim}")
    y = large.product(x, np.transpose(weight))
    return y + bias[0] if bias else y


register(Op("linear", ("x", "weight", "*bias"), Composite(_linear_build), "promote", None,
            lambda x, w, *bias: (_matmul_exact(x, np.transpose(w)) + (bias[0] if bias else 0)).astype(np.result_type(x, w)), _linear, domain=FLOATS,
            bound=PRODUCT_BOUND,
            samples=s.fixed((((3, 4), (5, 4)), {}), (((2, 3, 4), (5, 4), (5,)), {}), (((4,), (5, 4), (5,)), {})),
            cost=lambda x, w, *_, **__: (product(x) * w[0] * 2, (product(x) + product(w)) * 4),
            doc="x [..., I] times weight [O, I] transposed, plus bias [O]."))


# -- convolution

UNFOLDED = 1 << 22     # bytes of the unfolded input that are held at once


def _pads(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, int, int, int]:
    if padding == "same":
        top, bottom, left, right = (int(p.value or 0) for i in (0, 1) for p in shaperules.same_padding(kernel[i], dilation[i]))
        return top, bottom, left, right
    t, b_, l, r = padding
    return t, b_, l, r


def _padded(x: Any, pads: Sequence[int], value: Any = 0) -> Any:
    if not any(pads):
        return x
    n, c, h, w = x.shape
    out = np.full((n, c, h + pads[0] + pads[1], w + pads[2] + pads[3]), value, x.dtype)
    out[:, :, pads[0]:pads[0] + h, pads[2]:pads[2] + w] = x
    return out


def _windows(x: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)) -> Any:
    """A view [N, C, H', W', KH, KW]."""
    span = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=False))
    return sliding_window_view(x, span, axis=(2, 3))[:, :, ::stride[0], ::stride[1], ::dilation[0], ::dilation[1]]


def _unfolded(x: Any, pads: Sequence[int], first: int, count: int, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Any:
    """A view [N, C, KH, KW, H', W'] of the windows of `count` rows of the padded input."""
    start, stop = first - pads[0], first - pads[0] + count
    part = x[:, :, max(start, 0):max(stop, 0)]
    above = min(max(-start, 0), count)
    part = _padded(part, (above, count - above - part.shape[2], *pads[2:]))
    windows = part[..., None, None] if tuple(kernel) == tuple(stride) == (1, 1) else _windows(part, kernel, stride, dilation)
    return windows.transpose(0, 1, 4, 5, 2, 3)


def _check_conv(x: Any, weight: Any, groups: int) -> None:
    if x.ndim != 4 or weight.ndim != 4:
        raise ShapeError(f"conv2d takes x [N, C, H, W] and weight [O, C/groups, KH, KW], not ranks {x.ndim} and {weight.ndim}")
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(f"conv2d: x {x.shape}, weight {weight.shape} and groups={groups} do not fit: the weight is [O, C/groups, KH, KW]")


def conv2d_fast(x: Any, weight: Any, *bias: Any, stride: Any = (1, 1), padding: Any = (0, 0, 0, 0), dilation: Any = (1, 1), groups: int = 1,
                multiply: Callable[[Any, Any], Any] = large.product) -> Any:
    """Matrix products of the unfolded input, some rows at a time; depthwise by shifted sums."""
    x, weight = np.asarray(x), np.asarray(weight)
    _check_conv(x, weight, groups)
    dtype = np.result_type(x, weight, *bias)
    if dtype == np.float16:
        single = [a.astype(np.float32) for a in (x, weight, *bias)]
        return conv2d_fast(*single, stride=stride, padding=padding, dilation=dilation, groups=groups, multiply=multiply).astype(dtype)
    n, c = x.shape[:2]
    o, per_group, kh, kw = weight.shape
    pads = _pads(padding, (kh, kw), dilation)
    span = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilation, strict=True)]
    sizes = [size + before + after for size, before, after in zip(x.shape[2:], pads[::2], pads[1::2], strict=True)]
    if sizes[0] < span[0] or sizes[1] < span[1]:
        raise ShapeError(f"conv2d: the kernel {kh}x{kw} is larger than the padded input {sizes[0]}x{sizes[1]}")
    height, width = ((size - reach) // step + 1 for size, reach, step in zip(sizes, span, stride, strict=True))
    if per_group == 1 and o == c:
        windows = _windows(_padded(x, pads), (kh, kw), stride, dilation)
        out = np.zeros((n, o, height, width), dtype)
        for i in range(kh):
            for j in range(kw):
                out += windows[..., i, j] * weight[:, 0, i, j][:, None, None]
    else:
        depth = per_group * kh * kw
        flat = weight.reshape(groups, o // groups, depth)
        out = np.empty((n, groups, o // groups, height * width), dtype)
        line = max(groups * depth * width * dtype.itemsize, 1)
        images = max(UNFOLDED // (line * max(height, 1)), 1)
        step = max(UNFOLDED // line, 1)
        for image, row in itertools.product(range(0, n, images), range(0, height, step)):
            some, rows = slice(image, image + images), min(step, height - row)
            columns = _unfolded(x[some], pads, row * stride[0], (rows - 1) * stride[0] + span[0], (kh, kw), stride, dilation)
            # Into strided memory NumPy multiplies without BLAS.
            out[some, ..., row * width:(row + rows) * width] = multiply(flat, columns.reshape(len(columns), groups, depth, rows * width))
        out = out.reshape(n, o, height, width)
    if bias:
        out += np.asarray(bias[0])[:, None, None]
    return out


def conv2d_exact(*arrays: Any, **attrs: Any) -> Any:
    exact, dtype = wide(*arrays)
    return conv2d_fast(*exact, **attrs, multiply=np.matmul).astype(dtype)


def _conv2d_gradient(b: Any, g: Any, x: Any, y: Any, attrs: Any) -> Any:
    from bcvm.ops.convolutions import conv2d_gradient  # which builds on this file
    return conv2d_gradient(b, g, x, y, attrs)


_CONV = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
register(Op("conv2d", ("x", "weight", "*bias"), Library("conv2d"), "promote", shaperules.conv2d, conv2d_exact, conv2d_fast, tuple(_CONV), domain=NUMBERS,
            bound=PRODUCT_BOUND,
            samples=s.fixed((((2, 3, 8, 9), (4, 3, 3, 3), (4,)), {**_CONV, "padding": (1, 1, 1, 1)}),
                            (((1, 4, 7, 7), (6, 2, 3, 2)), {**_CONV, "groups": 2, "stride": (2, 1)}),
                            (((1, 3, 9, 9), (5, 3, 3, 3)), {**_CONV, "dilation": (2, 2), "padding": "same"}),
                            (((2, 4, 6, 6), (4, 1, 3, 3), (4,)), {**_CONV, "groups": 4}),
                            (((1, 2, 4, 5), (4, 1, 3, 2), (4,)), {**_CONV, "groups": 2, "stride": (2, 1), "padding": (1, 0, 1, 2)}),
                            (((2, 2, 4, 3), (3, 2, 2, 2), (3,)), {**_CONV, "dilation": (2, 1), "padding": "same"}),
                            (((2, 3, 5, 5), (7, 3, 1, 1)), _CONV), (((0, 3, 5, 5), (2, 3, 2, 2)), {**_CONV, "padding": (0, 1, 1, 0)})),
            gradient=_conv2d_gradient, saves=("operands",), cost=shaperules.conv2d_cost, doc="x [N, C, H, W], weight [O, C/groups, KH, KW], bias [O]; padding (top, bottom, left, right) or 'same'."))


# -- pooling

def _max_pool2d(x: Any, kernel: Any, stride: Any, padding: Any = (0, 0, 0, 0)) -> Any:
    x = np.asarray(x)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _windows(_padded(x, padding, lowest), kernel, stride)
    out = windows[..., 0, 0].copy()
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            np.maximum(out, windows[..., i, j], out=out)
    return out


def _avg_pool2d(x: Any, kernel: Any, stride: Any, padding: Any = (0, 0, 0, 0), count_include_pad: bool = True) -> Any:
    x = np.asarray(x)
    windows = _windows(_padded(x, padding), kernel, stride)
    total = windows.sum(axis=(4, 5), dtype=np.float32 if x.dtype == np.float16 else x.dtype)
    if count_include_pad:
        return (total / (kernel[0] * kernel[1])).astype(x.dtype)
    inside = _windows(_padded(np.ones((1, 1) + x.shape[2:], x.dtype), padding), kernel, stride).sum(axis=(4, 5))
    return (total / inside).astype(x.dtype)


_POOL = (((2, 3, 8, 9),), {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0)}), (((1, 2, 7, 6),),
        {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1, 0, 1)})


def _pool_cost(x: Any, kernel: Any, **_: Any) -> Any:
    return product(x) * kernel[0] * kernel[1], product(x) * 8


register(Op("max_pool2d", ("x",), Library("max_pool2d"), "same", shaperules.pool2d, _max_pool2d, None, ("kernel", "stride", "padding"), domain=NUMBERS,
            bound=EXACT,
            samples=s.fixed(*_POOL), doc="The largest of each window of x [N, C, H, W]; padding (top, bottom, left, right) never wins.", cost=_pool_cost))
register(Op("avg_pool2d", ("x",), Library("avg_pool2d"), "same", shaperules.pool2d,
            lambda x, **attrs: _avg_pool2d(np.asarray(x, np.float64), **attrs).astype(np.asarray(x).dtype), _avg_pool2d,
            ("kernel", "stride", "padding", "count_include_pad"), domain=FLOATS, bound=PRODUCT_BOUND,
            samples=s.fixed(*_POOL, *[(o, {**a, "count_include_pad": False}) for o, a in _POOL]),
            doc="The mean of each window of x [N, C, H, W]; zeros of the padding count unless count_include_pad is false.", cost=_pool_cost))

