"""Two-dimensional convolution (cross-correlation) on NCHW, one kernel for all sizes and strides; no im2col.

Operands x[B, C, H, W], w[O, C / groups, KH, KW], bias (if any; rank 4 with the byte stride at dim 1, the others 0), out[B, O, OH, OW];
sizes = [B, C, H, W, O, KH, KW, OH, OW]. Units are rows of output: B * groups * OH, in this order (see `units`).

A block of output rows is a matrix product: rows are output channels, columns are the block's pixels, the sum runs over (channel, kh, kw). The input rows of
the block are copied with their padding, split into the phases of the stride, so that for each (channel, kh, kw) the pixels it meets lie one after the
other at a fixed offset: the micro-kernels read B through a table of offsets. Output rows follow each other at the pitch of the copied rows; what
lies between them is computed and dropped. Without padding and stride, dense images are read where they lie.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .conv_tiles import A_COLUMN, A_ROW, B_ROW, C_ROW, DEPTH, DESC_WORDS, REST, Form, define_tiles, panel_width, set_rows, stream, wide_for

PIXELS = 512    # about so many pixels make a block


@dataclass(frozen=True)
class ConvAttrs:
    """stride (rows, columns), padding (top, bottom, left, right) or "same" (half of the kernel's reach, the odd one behind), dilation (rows, columns), groups."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] | Literal["same"] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


def units(batch: int, groups: int, output_rows: int) -> int:
    """The number of units."""
    return batch * groups * output_rows


def generate(dtype: str, attrs: ConvAttrs, has_bias: bool, target: Target) -> KernelSource:
    """All operands have dtype: float32, float64 or an integer (wrapping). Raises Unsupported for others."""
    pads = () if attrs.padding == "same" else attrs.padding
    if min(*attrs.stride, *attrs.dilation, attrs.groups) < 1 or min(pads, default=0) < 0:
        raise Unsupported(f"conv2d with stride {attrs.stride}, dilation {attrs.dilation}, groups {attrs.groups}, padding {attrs.padding}")
    form = Form(dtype, target)
    module = Module()
    define_tiles(module, form, indirect=True)
    _define_pad_row(module, form)
    _define_finish(module, form)
    _define_weights(module, form)
    _define_offsets(module, form, attrs)
    _define_image(module, form, attrs)
    numbers = "_".join(str(n) for n in (*attrs.stride, *(pads or ["same"]), *attrs.dilation, attrs.groups))
    name = f"conv2d_{dtype}_{numbers}{'_bias' if has_bias else ''}"
    _define_kernel(module, form, name, attrs, has_bias)
    return module.source(name, target)


def _define_pad_row(module: Module, form: Form) -> None:
    """pad_row(to, from, step, first, last, width): zeros, but elements first..last-1 from `from` on, `step` bytes apart."""
    f = Function(module, "pad_row", [("ptr", "to"), ("ptr", "from"), ("i64", "step"), ("i64", "first"), ("i64", "last"), ("i64", "width")])
    e, item = form.element, form.item
    for start, stop in ((0, "%first"), ("%last", "%width")):
        with f.loop(start, stop) as j:
            f.store(e, form.zero, f.gep("%to", f.mul(j.index, item)), item)
    count = f.sub("%last", "%first")
    to = f.gep("%to", f.mul("%first", item))

    def dense() -> None:
        stream(f, form, count, lambda at, run: run.store(run.load(f.gep("%from", at)), f.gep(to, at)))

    def spread() -> None:
        with f.loop(0, count, carried=[("ptr", "%from")]) as j:
            f.store(e, f.load(e, j.carried[0], item), f.gep(to, f.mul(j.index, item)), item)
            j.next = [f.gep(j.carried[0], "%step")]

    f.choose(f.cmp("eq", "%step", item), dense, spread)
    f.ret()
    f.end()


def _define_finish(module: Module, form: Form) -> None:
    """finish(to, to_row, to_column, from, from_row, rows, columns, bias): to = from + bias, for one channel; in place too."""
    f = Function(module, "finish", [("ptr", "to"), ("i64", "to_row"), ("i64", "to_column"), ("ptr", "from"), ("i64", "from_row"), ("i64", "rows"),
                                    ("i64", "columns"), (form.element, "bias")])
    e, item = form.element, form.item
    with f.loop(0, "%rows", carried=[("ptr", "%to"), ("ptr", "%from")]) as r:
        to, source = r.carried

        def dense() -> None:
            stream(f, form, "%columns", lambda at, run: run.store(run.add(run.load(f.gep(source, at)), run.splat("%bias")), f.gep(to, at)))

        def spread() -> None:
            with f.loop(0, "%columns", carried=[("ptr", to)]) as j:
                value = form.add(f, f.load(e, f.gep(source, f.mul(j.index, item)), item), "%bias", vector=False)
                f.store(e, value, j.carried[0], item)
                j.next = [f.gep(j.carried[0], "%to_column")]

        f.choose(f.cmp("eq", "%to_column", item), dense, spread)
        r.next = [f.gep(to, "%to_row"), f.gep(source, "%from_row")]
    f.ret()
    f.end()


def _define_weights(module: Module, form: Form) -> None:
    """dense_weights(to, from, sizes of 4 dims, strides of 4 dims): a C-contiguous copy."""
    names = [f"n{i}" for i in range(4)] + [f"s{i}" for i in range(4)]
    f = Function(module, "dense_weights", [("ptr", "to"), ("ptr", "from"), *(("i64", n) for n in names)])
    e, item = form.element, form.item

    def nest(dim: int, to: str, source: str) -> str:
        with f.loop(0, f"%n{dim}", carried=[("ptr", to), ("ptr", source)]) as i:
            here, there = i.carried
            if dim == 3:
                f.store(e, f.load(e, there, item), here, item)
                following = f.gep(here, item)
            else:
                following = nest(dim + 1, here, there)
            i.next = [following, f.gep(there, f"%s{dim}")]
        return i.carried[0]

    nest(0, "%to", "%from")
    f.ret()
    f.end()


def _define_offsets(module: Module, form: Form, attrs: ConvAttrs) -> None:
    """offsets(to, channels, KH, KW, channel, phase_h, phase_w, row): the byte offset of the first pixel that each (channel, kh, kw) meets."""
    f = Function(module, "offsets", [("ptr", "to"), *(("i64", n) for n in ("channels", "kh", "kw", "channel", "phase_h", "phase_w", "row"))])
    (sh, sw), (dh, dw) = attrs.stride, attrs.dilation
    with f.loop(0, "%channels", carried=[("ptr", "%to")]) as c:
        with f.loop(0, "%kh", carried=[("ptr", c.carried[0])]) as i:
            down = f.mul(i.index, dh)
            line = f.add(f.add(f.mul(c.index, "%channel"), f.mul(f.div(down, sh), "%row")), f.mul(f.rem(down, sh), "%phase_h"))
            with f.loop(0, "%kw", carried=[("ptr", i.carried[0])]) as j:
                right = f.mul(j.index, dw)
                at = f.add(f.add(line, f.mul(f.div(right, sw), form.item)), f.mul(f.rem(right, sw), "%phase_w"))
                f.store("i64", at, j.carried[0])
                j.next = [f.gep(j.carried[0], 8)]
            i.next = [j.carried[0]]
        c.next = [i.carried[0]]
    f.ret()
    f.end()


def _define_image(module: Module, form: Form, attrs: ConvAttrs) -> None:
    """image(to, from, sizes): the padded input rows of a block as planes [channel][phase_h][phase_w][lines][pitch].

    top: the row of the input that the block's first padded row is; left: columns of padding; lines: rows to fill of the `space` rows of a plane."""
    names = ("channels", "height", "width", "channel", "row", "column", "top", "left", "phases_h", "phases_w", "lines", "space", "pitch")
    f = Function(module, "image", [("ptr", "to"), ("ptr", "from"), *(("i64", n) for n in names)])
    (sh, sw), item = attrs.stride, form.item
    row_size = f.mul("%pitch", item)
    plane = f.mul("%space", row_size)
    with f.loop(0, "%channels", carried=[("ptr", "%to"), ("ptr", "%from")]) as c:
        with f.loop(0, "%phases_h", carried=[("ptr", c.carried[0])]) as ph:
            with f.loop(0, "%phases_w", carried=[("ptr", ph.carried[0])]) as pw:
                # Pixel j of a line is column j * sw + pw - left of the input.
                shift = f.sub("%left", pw.index)
                first = f.min(f.select(f.cmp("sgt", shift, 0), f.ceil_div(f.max(shift, 0), sw), 0), "%pitch")
                last = f.max(f.min(f.ceil_div(f.max(f.add("%width", shift), 0), sw), "%pitch"), first)
                start = f.gep(c.carried[1], f.mul(f.sub(f.mul(first, sw), shift), "%column"))
                step = f.mul("%column", sw)
                with f.loop(0, "%lines", carried=[("ptr", pw.carried[0])]) as q:
                    line = f.add(f.add("%top", f.mul(q.index, sh)), ph.index)
                    inside = f.both(f.cmp("sge", line, 0), f.cmp("slt", line, "%height"))
                    f.call("void", "pad_row", ("ptr", q.carried[0]), ("ptr", f.gep(start, f.mul(line, "%row"))), ("i64", step), ("i64", first),
                           ("i64", f.select(inside, last, first)), ("i64", "%pitch"))
                    q.next = [f.gep(q.carried[0], row_size)]
                pw.next = [f.gep(pw.carried[0], plane)]
            ph.next = [pw.carried[0]]
        c.next = [ph.carried[0], f.gep(c.carried[1], "%channel")]
    f.ret()
    f.end()


def _dense(f: Function, item: int, sizes: list[Value], strides: list[Value]) -> str:
    """Whether these dims lie one after the other without gaps."""
    expected: Value = item
    fits = ""
    for size, stride in reversed(list(zip(sizes, strides, strict=True))):
        good = f.either(f.cmp("eq", stride, expected), f.cmp("eq", size, 1))
        fits = f.both(fits, good) if fits else good
        expected = f.mul(expected, size)
    return fits


def _define_kernel(module: Module, form: Form, name: str, attrs: ConvAttrs, has_bias: bool) -> None:
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    item = form.item
    (sh, sw), (dh, dw) = attrs.stride, attrs.dilation
    batch, channels, height, width, outputs, kh, kw, oh, ow = (f.word("%sizes", i) for i in range(9))
    pointers = [f.load("ptr", f.gep("%operands", 40 * i)) for i in range(4 if has_bias else 3)]
    strides: list[list[Value]] = [[f.word("%operands", 5 * i + 1 + j) for j in range(4)] for i in range(len(pointers))]
    x, w, out = pointers[0], pointers[1], pointers[-1]
    xs, ws, outs = strides[0], strides[1], strides[-1]
    f.fail_if(f.cmp("eq", f.mul(f.mul(batch, outputs), f.mul(oh, ow)), 0), DONE)

    groups = attrs.groups
    per_group, rows = f.div(channels, groups), f.div(outputs, groups)
    depth = f.mul(per_group, f.mul(kh, kw))
    reach_h, reach_w = f.max(f.mul(f.sub(kh, 1), dh), 0), f.max(f.mul(f.sub(kw, 1), dw), 0)
    top, left = (f.div(reach_h, 2), f.div(reach_w, 2)) if attrs.padding == "same" else (attrs.padding[0], attrs.padding[2])
    pitch = f.add(ow, f.div(reach_w, sw))
    fits = [f.cmp("eq", xs[3], item), f.cmp("eq", xs[2], f.mul(pitch, item)), f.cmp("sge", width, pitch), f.cmp("sge", height, f.add(oh, reach_h))]
    direct = f.both(*fits) if attrs.stride == (1, 1) and attrs.padding == (0, 0, 0, 0) else "false"

    # Blocks of even height; planes of the copied image.
    tall = f.ceil_div(oh, f.ceil_div(oh, f.min(f.ceil_div(PIXELS, pitch), oh)))
    space = f.add(tall, f.div(reach_h, sh))
    phases_h, phases_w = f.min(f.add(reach_h, 1), sh), f.min(f.add(reach_w, 1), sw)
    plane = f.mul(f.mul(space, pitch), item)
    # Without masks, whole vectors are computed: images must not be read in place, products not be written in place, if the last is not whole.
    most_columns = f.sub(f.mul(tall, pitch), f.sub(pitch, ow))
    even = "true" if form.masked else f.both(*(f.cmp("eq", f.rem(count, form.lanes), 0) for count in (most_columns, pitch)))
    direct = f.both(direct, even)
    phase_h = f.mul(phases_w, plane)
    image_channel = f.mul(phases_h, phase_h)

    dense_w = _dense(f, item, [per_group, kh, kw], ws[1:])
    dense_out = f.both(f.cmp("eq", pitch, ow), _dense(f, item, [oh, ow], outs[2:]), even)
    product_size = f.mul(f.round_up(most_columns, form.lanes), item)
    pieces = [
        f.mul(depth, 8),
        f.select(direct, 0, f.add(f.mul(per_group, image_channel), form.target.vector_bytes)),
        f.select(dense_w, 0, f.mul(f.mul(outputs, depth), item)),
        f.select(dense_out, 0, f.mul(rows, product_size)),
    ]
    starts: list[Value] = [0]
    for piece in pieces:
        starts.append(f.add(starts[-1], f.round_up(piece, 64)))
    scratch = f.alloc("%ctx", starts[-1])
    offsets, image, dense, block = (f.gep(scratch, s) for s in starts[:-1])

    f.call("void", "offsets", ("ptr", offsets), ("i64", per_group), ("i64", kh), ("i64", kw), ("i64", f.select(direct, xs[1], image_channel)),
           ("i64", phase_h), ("i64", plane), ("i64", f.select(direct, xs[2], f.mul(pitch, item))))
    with f.when(f.invert(dense_w)):
        f.call("void", "dense_weights", ("ptr", dense), ("ptr", w), *(("i64", n) for n in (outputs, per_group, kh, kw)), *(("i64", s) for s in ws))
    weights = f.select(dense_w, w, dense, "ptr")
    weight_row = f.select(dense_w, ws[0], f.mul(depth, item))

    d = f.words(DESC_WORDS)
    words: dict[int, Value] = {A_ROW: weight_row, A_COLUMN: item, B_ROW: f(f"ptrtoint ptr {offsets} to i64"), DEPTH: depth}
    for word, value in words.items():
        f.set_word(d, word, value)
    set_rows(f, form, d, rows)
    wide = wide_for(f, form, rows)
    hi = f.select(f.cmp("slt", "%hi", 0), f.mul(f.mul(batch, groups), oh), "%hi")
    with f.loop("%lo", hi) as unit:
        first_row = f.rem(unit.index, oh)
        other = f.div(unit.index, oh)
        group, image_number = (f.rem(other, groups), f.div(other, groups)) if groups > 1 else (0, other)
        lines = f.min(f.min(tall, f.sub(oh, first_row)), f.sub(hi, unit.index))
        unit.step = lines
        first_channel = f.mul(group, per_group)
        source = f.gep(f.gep(x, f.mul(image_number, xs[0])), f.mul(first_channel, xs[1]))
        with f.when(f.invert(direct)):
            f.call("void", "image", ("ptr", image), ("ptr", source), ("i64", per_group), ("i64", height), ("i64", width), *(("i64", s) for s in xs[1:]),
                   ("i64", f.sub(f.mul(first_row, sh), top)), ("i64", left), ("i64", phases_h), ("i64", phases_w),
                   ("i64", f.add(lines, f.div(reach_h, sh))), ("i64", space), ("i64", pitch))
        pixels = f.select(direct, f.gep(source, f.mul(first_row, xs[2])), image, "ptr")
        first_output = f.mul(group, rows)
        to = f.gep(f.gep(f.gep(out, f.mul(image_number, outs[0])), f.mul(first_output, outs[1])), f.mul(first_row, outs[2]))
        columns = f.sub(f.mul(lines, pitch), f.sub(pitch, ow))
        products = f.select(dense_out, to, block, "ptr")
        product_row = f.select(dense_out, outs[1], product_size)
        f.set_word(d, C_ROW, product_row)
        a = f.gep(weights, f.mul(first_output, weight_row))
        vectors = f.ceil_div(columns, form.lanes)
        with f.loop(0, vectors) as j:
            j.step = panel_width(f, form, f.sub(vectors, j.index), wide)
            first, span = f.mul(j.index, form.lanes), f.mul(j.step, form.lanes)
            used = f.min(span, f.sub(columns, first))
            f.set_word(d, REST, f.sub(used, f.sub(span, form.lanes)))
            at = f.mul(first, item)
            f.call("void", "block", ("ptr", a), ("ptr", f.gep(pixels, at)), ("ptr", f.gep(products, at)), ("ptr", d), ("i64", j.step))
        # -0.0 leaves every sum as it is.
        with f.when("true" if has_bias else f.invert(dense_out)), f.loop(0, rows, carried=[("ptr", to), ("ptr", products)]) as o:
            bias = "-0.0" if form.floating else "0"
            if has_bias:
                bias = f.load(form.element, f.gep(pointers[2], f.mul(f.add(first_output, o.index), strides[2][1])), item)
            f.call("void", "finish", ("ptr", o.carried[0]), ("i64", outs[2]), ("i64", outs[3]), ("ptr", o.carried[1]), ("i64", f.mul(pitch, item)),
                   ("i64", lines), ("i64", ow), (form.element, bias))
            o.next = [f.gep(o.carried[0], outs[1]), f.gep(o.carried[1], product_row)]
    f.release("%ctx", scratch)
    f.ret(f"i32 {DONE}")
    f.end()
