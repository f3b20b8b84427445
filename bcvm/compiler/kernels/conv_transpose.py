"""Transposed two-dimensional convolution, by convolutions.

Operands x[B, C, H, W], w[C, O / groups, KH, KW], bias (if any; rank 4 with the byte stride at dim 1, the others 0), out[B, O, OH, OW];
sizes = [B, C, H, W, O, KH, KW, OH, OW]. Units: groups * stride rows * stride columns phases, then as many as the convolution of the largest phase has.

Output rows oh whose oh + top leaves the same remainder r by the stride are met by the elements kh = r, r + stride, ... of the kernel alone, at the input rows
(oh + top - kh) / stride: a convolution of stride 1 with every stride-th element of the turned kernel, written to every stride-th row. All are views.
"""
from __future__ import annotations

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .conv import COLUMNS, OUTPUTS, ROWS, define
from .conv_tiles import ConvAttrs, Form


def generate(dtype: str, attrs: ConvAttrs, has_bias: bool, target: Target) -> KernelSource:
    """All operands have dtype: float32, float64 or an integer (wrapping). Raises Unsupported for others, and for dilation together with stride."""
    if min(*attrs.stride, *attrs.dilation, attrs.groups) < 1 or isinstance(attrs.padding, str) or min(attrs.padding) < 0:
        raise Unsupported(f"conv_transpose2d with stride {attrs.stride}, dilation {attrs.dilation}, groups {attrs.groups}, padding {attrs.padding}")
    if any(s > 1 and d > 1 for s, d in zip(attrs.stride, attrs.dilation, strict=True)):
        raise Unsupported("conv_transpose2d with dilation and stride")
    form = Form(dtype, target)
    module = Module()
    define(module, form, "convolve", ConvAttrs(padding="given", dilation=attrs.dilation), has_bias, public=False)
    numbers = "_".join(str(n) for n in (*attrs.stride, *attrs.padding, *attrs.dilation, attrs.groups))
    name = f"conv_transpose2d_{dtype}_{numbers}{'_bias' if has_bias else ''}"
    _define_kernel(module, name, attrs, has_bias)
    return module.source(name, target)


def _define_kernel(module: Module, name: str, attrs: ConvAttrs, has_bias: bool) -> None:
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    (sh, sw), groups = attrs.stride, attrs.groups
    batch, channels, height, width, outputs, kh, kw, oh, ow = (f.word("%sizes", i) for i in range(9))
    pointers = [f.load("ptr", f.gep("%operands", 40 * i)) for i in range(4 if has_bias else 3)]
    xs, ws, *bias, outs = [[f.word("%operands", 5 * i + 1 + j) for j in range(4)] for i in range(len(pointers))]
    per_channels, per_outputs = f.div(channels, groups), f.div(outputs, groups)
    f.fail_if(f.cmp("eq", f.mul(f.mul(batch, outputs), f.mul(oh, ow)), 0), DONE)
    blocks = f.mul(f.ceil_div(per_outputs, OUTPUTS), batch)
    most = f.mul(f.mul(blocks, f.ceil_div(oh, sh * ROWS)), f.ceil_div(ow, sw * COLUMNS))
    hi = f.select(f.cmp("slt", "%hi", 0), f.mul(most, groups * sh * sw), "%hi")

    operands, sizes = f.words(5 * len(pointers)), f.words(12)
    with f.loop("%lo", hi) as u:
        phase = f.div(u.index, most)
        start = f.sub(u.index, f.mul(phase, most))
        stop = f.min(most, f.sub(hi, f.mul(phase, most)))
        u.step = f.sub(stop, start)
        group, at = f.div(phase, sh * sw), f.rem(phase, sh * sw)
        remainders = (f.div(at, sw), f.rem(at, sw))
        rows = [_axis(f, *a) for a in zip(remainders, attrs.stride, attrs.dilation, attrs.padding[::2], (height, width), (kh, kw), (oh, ow), strict=True)]
        x = f.gep(pointers[0], f.mul(f.mul(group, per_channels), xs[1]))
        w = f.gep(pointers[1], f.mul(f.mul(group, per_channels), ws[0]))
        out = f.gep(pointers[-1], f.mul(f.mul(group, per_outputs), outs[1]))
        for i, axis in enumerate(rows):
            x = f.gep(x, f.mul(axis.skipped, xs[2 + i]))
            w = f.gep(w, f.mul(axis.last, ws[2 + i]))
            out = f.gep(out, f.mul(axis.first, outs[2 + i]))
        turned = [f.sub(0, f.mul(ws[2 + i], s)) for i, s in enumerate(attrs.stride)]
        spread = [f.mul(outs[2 + i], s) for i, s in enumerate(attrs.stride)]
        views: list[tuple[str, list[Value]]] = [(x, [*xs]), (w, [ws[1], ws[0], *turned])]
        if has_bias:
            views.append((f.gep(pointers[2], f.mul(f.mul(group, per_outputs), bias[0][1])), [*bias[0]]))
        views.append((out, [outs[0], outs[1], *spread]))
        for i, (pointer, strides) in enumerate(views):
            f.store("ptr", pointer, f.gep(operands, 40 * i))
            for j, stride in enumerate(strides):
                f.set_word(operands, 5 * i + 1 + j, stride)
        v, h = rows[1], rows[0]
        for i, n in enumerate((batch, per_channels, h.height, v.height, per_outputs, h.taps, v.taps, h.places, v.places, 0, h.before, v.before)):
            f.set_word(sizes, i, n)
        # The phase's units in proportion.
        units = f.mul(f.mul(blocks, f.ceil_div(h.places, ROWS)), f.ceil_div(v.places, COLUMNS))
        low, high = (f.div(f.mul(n, units), most) for n in (start, stop))
        with f.when(f.cmp("slt", low, high)):
            code = f.call("i32", "convolve", ("ptr", "%ctx"), ("ptr", operands), ("ptr", sizes), ("i64", low), ("i64", high))
            bad, good = f.fresh(), f.fresh()
            f.branch(f(f"icmp ne i32 {code}, {DONE}"), bad, good)
            f.label(bad)
            f.ret(f"i32 {code}")
            f.label(good)
    f.ret(f"i32 {DONE}")
    f.end()


class _axis:
    """One axis of a phase, the output places whose sum with the padding leaves `remainder`.

    first: the first of them; places: how many; taps: elements of the kernel that they meet; last: the last of those; before: padding in front of the input;
    skipped: elements of the input that lie before all; height: what is left of it."""

    def __init__(self, f: Function, remainder: Value, stride: int, dilation: int, pad: int, height: Value, kernel: Value, size: Value) -> None:
        self.first = f.rem(f.add(f.sub(remainder, pad), stride * (pad // stride + 1)), stride) if stride > 1 else 0
        self.places = f.div(f.add(f.sub(f.max(size, self.first), self.first), stride - 1), stride)
        self.taps = f.div(f.add(f.max(f.sub(kernel, remainder), 0), stride - 1), stride)
        self.last = f.add(remainder, f.mul(f.max(f.sub(self.taps, 1), 0), stride))
        start = f.div(f.sub(f.add(self.first, pad), remainder), stride)
        before = f.sub(f.mul(f.max(f.sub(self.taps, 1), 0), dilation), start)
        self.before = f.max(before, 0)
        self.skipped = f.min(f.max(f.sub(0, before), 0), height)
        self.height = f.sub(height, self.skipped)
