"""Bindings of MindSpore's one-dimensional and transposed convolutions, after MindSpore 2.10."""
from __future__ import annotations

from typing import Any

from bcvm.frameworks.mindspore_naming import MS, floating, primitive, same_dtype
from bcvm.ops.arguments import pair
from bcvm.ops.convolutions import bind_conv1d, bind_conv3d, bind_conv_transpose2d
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import const, present, sequence, sizes
from bcvm.shapes.dim import Dim


@binds("mindspore.ops.conv1d", **MS)
def _conv1d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: Any = "valid", padding: Any = 0, dilation: Any = 1,
            groups: Any = 1) -> Any:
    same_dtype(b, "conv1d", floating(b, x, "conv1d"), weight, *present(b, bias))
    mode, pads = str(const(b, pad_mode)).lower(), const(b, padding)
    if isinstance(pads, tuple) and len(pads) != 1 or mode not in ("pad", "valid", "same"):
        return b.unsupported("conv1d with a padding that it refuses")
    return bind_conv1d(b, x, weight, bias, stride, pads if mode == "pad" else mode, dilation, groups)


@binds("mindspore.mint.nn.functional.conv1d", **MS)
def _mint_conv1d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Any:
    same_dtype(b, "conv1d", floating(b, x, "conv1d"), weight, *present(b, bias))
    return bind_conv1d(b, x, weight, bias, stride, padding, dilation, groups)


@binds("mindspore.ops.conv3d", **MS)
def _conv3d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: Any = "valid", padding: Any = 0, dilation: Any = 1,
            groups: Any = 1) -> Any:
    same_dtype(b, "conv3d", floating(b, x, "conv3d"), weight, *present(b, bias))
    mode = str(const(b, pad_mode)).lower()
    if mode not in ("pad", "valid"):
        return b.unsupported("conv3d with pad_mode 'same'")
    return bind_conv3d(b, x, weight, bias, stride, const(b, padding) if mode == "pad" else "valid", dilation, groups)


@binds(*primitive("Conv3D"), **MS)
def _conv3d_primitive(b: Any, prim: Any, x: Any, weight: Any) -> Any:
    mode = str(prim.pad_mode).lower()
    if prim.data_format != "NCDHW" or prim.mode != 1 or mode not in ("pad", "valid"):
        return b.unsupported("Conv3D of another format or mode, or with pad_mode 'same'")
    same_dtype(b, "Conv3D", floating(b, x, "Conv3D"), weight)
    kernel = tuple(prim.kernel_size)
    for have, want in zip(b.dims(weight)[2:], kernel, strict=True):
        b.require("eq", have, Dim.const(want), "a weight of another size than the kernel's")
    return b.op("conv3d", x, weight, stride=tuple(prim.stride[2:]), padding=tuple(prim.pad) if mode == "pad" else (0,) * 6, dilation=tuple(prim.dilation[2:]),
                groups=prim.group, depth=kernel[0])


@binds("mindspore.ops.conv_transpose2d", "mindspore.mint.nn.functional.conv_transpose2d", **MS)
def _conv_transpose2d(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: Any = 1,
                      dilation: Any = 1) -> Any:
    same_dtype(b, "conv_transpose2d", floating(b, x, "conv_transpose2d"), weight, *present(b, bias))
    return bind_conv_transpose2d(b, x, weight, bias, stride, pair(const(b, padding), "padding"), output_padding, dilation, groups)


@binds(*primitive("Conv2DTranspose"), *primitive("Conv2DBackpropInput"), **MS)
def _transpose_primitive(b: Any, prim: Any, x: Any, weight: Any, shape: Any) -> Any:
    """`shape`: of the result. Padding 'same' is what makes a size of stride times that of x."""
    if prim.data_format != "NCHW" or prim.mode != 1:
        return b.unsupported("a transposed convolution of another format or mode")
    same_dtype(b, "Conv2DTranspose", floating(b, x, "Conv2DTranspose"), weight)
    kernel, stride, dilation, mode = tuple(prim.kernel_size), tuple(prim.stride[2:]), tuple(prim.dilation[2:]), str(prim.pad_mode).upper()
    for have, want in zip(b.dims(weight)[2:], kernel, strict=True):
        b.require("eq", have, Dim.const(want), "a weight of another size than the kernel's")
    if mode == "PAD":
        pads = tuple(prim.pad)
    elif mode == "SAME":
        extra = [max((k - 1) * d + 1 - s, 0) for k, d, s in zip(kernel, dilation, stride, strict=True)]
        pads = tuple(p for e in extra for p in (e // 2, e - e // 2))
    else:
        pads = (0, 0, 0, 0)
    dims = tuple(sizes(b, sequence(b, shape))[2:])
    return b.op("conv_transpose2d", x, weight, stride=stride, padding=pads, dilation=dilation, groups=prim.group, dims=dims)
