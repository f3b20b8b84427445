"""Two-dimensional convolution (cross-correlation) on any strides, one kernel for all sizes; no im2col.

Operands x[B, C, H, W], w[O, C / groups, KH, KW], bias (if any; rank 4 with the byte stride at dim 1, the others 0), out[B, O, OH, OW];
sizes = [B, C, H, W, O, KH, KW, OH, OW, epilogue (see abi), or 0]. Units: see `units`.

A block of output pixels is a matrix product, whose sums run over k = (channel, kh, kw); the micro-kernels read it through tables of offsets. There are
two direct ways, and Winograd's for kernels of 3 x 3 in steps of one (conv_winograd.py):

    by pixels    a row of the product is an output channel, its columns are neighbouring pixels of one output row. The weights stay where they lie.
    by outputs   a row of the product is a pixel, its columns are output channels. The weights are transposed block by block, the sums are transposed back:
                 dear for few channels or few pixels, but no vector is ever half empty where rows of the image end, and strides cost nothing.

Which way is decided by the sizes; each sum is added up in the same order either way, so no partition of the units changes a bit. Where there is padding, the
block's input rows are copied with it, else they are read in place.
"""
from __future__ import annotations

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from . import conv_depthwise as depthwise
from . import conv_winograd as winograd
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .conv_tiles import (
    BIAS_ROW,
    C_ROW,
    COLUMNS,
    DEPTH,
    DESC_WORDS,
    EPILOGUE,
    FETCH,
    FETCH_TILE,
    FETCH_TILES,
    OUTPUTS,
    REST,
    RESUME,
    ROWS,
    STEP_BYTES,
    STEPS,
    ConvAttrs,
    Form,
    define_pack,
    define_settle,
    define_square,
    define_strip,
    define_tables,
    define_turn,
    pad_before,
    stream,
    widest,
)
from .conv_units import LARGE, ordered_by_lines, rectangles, units

__all__ = ["COLUMNS", "LARGE", "OUTPUTS", "ROWS", "ConvAttrs", "generate", "units"]

PIXELS = 768        # about so many pixels make a block
DEPTH_BLOCK = 384   # so many k are done before the next ones: transposed weights of this depth stay in L2


def generate(dtype: str, attrs: ConvAttrs, has_bias: bool, target: Target) -> KernelSource:
    """All operands have dtype: float32, float64 or an integer (wrapping). Raises Unsupported for others."""
    pads = (attrs.padding,) if isinstance(attrs.padding, str) else attrs.padding
    form = Form(dtype, target)
    module = Module()
    numbers = "_".join(str(n) for n in (*attrs.stride, *pads, *attrs.dilation, attrs.groups))
    name = f"conv2d_{dtype}_{numbers}{'_bias' if has_bias else ''}"
    if winograd.suits(form, attrs):
        define(module, form, "direct", attrs, has_bias, public=False)
        winograd.define(module, form, name, attrs, has_bias)
    else:
        define(module, form, name, attrs, has_bias)
    return module.source(name, target)


def define(module: Module, form: Form, name: str, attrs: ConvAttrs, has_bias: bool, public: bool = True) -> None:
    """Defines the kernel and all that it calls."""
    pads = () if isinstance(attrs.padding, str) else attrs.padding
    if min(*attrs.stride, *attrs.dilation, attrs.groups) < 1 or min(pads, default=0) < 0:
        raise Unsupported(f"conv2d with stride {attrs.stride}, dilation {attrs.dilation}, groups {attrs.groups}, padding {attrs.padding}")
    define_strip(module, form)
    if form.item >= 4:
        define_square(module, form)
    define_turn(module, form)
    define_pack(module, form)
    define_settle(module)
    _define_pad_row(module, form)
    _define_image(module, form)
    _define_weights(module, form)
    _define_steps(module, form, attrs)
    _define_finish(module, form)
    if depthwise.suits(form, attrs.stride, attrs.groups):
        depthwise.define(module, form, attrs, has_bias)
    define_tables(module, form, DEPTH_BLOCK)
    _Kernel(Function(module, name, KERNEL_PARAMS, "i32", public=public, glue=True), form, attrs, has_bias).write()


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


def _define_image(module: Module, form: Form) -> None:
    """image(to, from, ...): padded input rows as planes [channel][line][phase][pitch], `plane` and `line` bytes apart.

    top: the row of the input that the first line is; left: columns of padding. Phase p of a line holds the columns p, p + step, p + 2 step, ... of the
    padded row. A vector past the end may be written."""
    names = ("plane", "line", "channels", "height", "width", "channel", "row", "column", "top", "left", "phases", "step", "lines", "pitch")
    f = Function(module, "image", [("ptr", "to"), ("ptr", "from"), *(("i64", n) for n in names)])
    item = form.item
    with f.loop(0, "%phases") as p:
        shift = f.sub("%left", p.index)
        first = f.min(f.ceil_div(f.max(shift, 0), "%step"), "%pitch")
        last = f.max(f.min(f.ceil_div(f.max(f.add("%width", shift), 0), "%step"), "%pitch"), first)
        offset = f.mul(f.sub(f.mul(first, "%step"), shift), "%column")
        step = f.mul("%column", "%step")
        here = f.mul(p.index, f.mul("%pitch", item))
        narrow = f.both(f.cmp("eq", step, item), f.cmp("sle", "%pitch", form.lanes)) if form.masked else "false"
        # Where a line is one vector, its mask fills in the padding, and what it writes too far is written over by the next line.
        inside = f(f"xor <{form.lanes} x i1> {form.mask(f, last)}, {form.mask(f, first)}") if form.masked else ""
        with f.loop(0, "%channels", carried=[("ptr", f.gep("%to", here)), ("ptr", f.gep("%from", offset))]) as c:
            with f.loop(0, "%lines", carried=[("ptr", c.carried[0])]) as q:
                at = f.add("%top", q.index)
                exists = f.both(f.cmp("sge", at, 0), f.cmp("slt", at, "%height"))
                source = f.gep(c.carried[1], f.mul(at, "%row"))

                def whole(to: str = q.carried[0], source: str = source, exists: str = exists) -> None:
                    start = f.gep(source, f.sub(0, f.mul(first, item)))
                    mask = f.select(exists, inside, "zeroinitializer", f"<{form.lanes} x i1>")
                    form.store(f, form.load(f, start, mask), to)

                def any_row(to: str = q.carried[0], source: str = source, exists: str = exists) -> None:
                    end = f.select(exists, last, first)
                    f.call("void", "pad_row", ("ptr", to), ("ptr", source), ("i64", step), ("i64", first), ("i64", end), ("i64", "%pitch"))

                if form.masked:
                    f.choose(narrow, whole, any_row)
                else:
                    any_row()
                q.next = [f.gep(q.carried[0], "%line")]
            c.next = [f.gep(c.carried[0], "%plane"), f.gep(c.carried[1], "%channel")]
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


def _define_steps(module: Module, form: Form, attrs: ConvAttrs) -> None:
    """steps(to, channels, KH, KW, channel, row, pixel, phase, step, weight, flip): for each (channel, kh, kw) the byte offsets of a pixel and,
    `weight` bytes apart, of the weights; the weights first if flip. Nothing is fetched ahead."""
    names = ("channels", "kh", "kw", "channel", "row", "pixel", "phase", "step", "weight", "flip")
    f = Function(module, "steps", [("ptr", "to"), *(("i64", n) for n in names)])
    dh, dw = attrs.dilation
    here, there = f.mul("%flip", 8), f.sub(8, f.mul("%flip", 8))
    # The first channel, then each from the one before.
    with f.loop(0, "%kh", carried=[("ptr", "%to"), ("i64", "0")]) as i:
        line = f.mul(f.mul(i.index, dh), "%row")
        with f.loop(0, "%kw", carried=[("ptr", i.carried[0]), ("i64", i.carried[1])]) as j:
            to, weight = j.carried
            right: Value = f.mul(j.index, dw)
            at = line
            if attrs.stride[1] > 1:
                turns = f.div(right, "%step")
                at, right = f.add(line, f.mul(f.sub(right, f.mul(turns, "%step")), "%phase")), turns
            f.store("i64", f.add(at, f.mul(right, "%pixel")), f.gep(to, here))
            f.store("i64", weight, f.gep(to, there))
            f.store("i64", 0, f.gep(to, 16))
            j.next = [f.gep(to, STEP_BYTES), str(f.add(weight, "%weight"))]
        i.next = [*j.carried]
    size = f.mul("%kh", "%kw")
    apart = f.mul("%weight", size)
    with f.loop(size, f.mul("%channels", size), carried=[("ptr", "%to"), ("ptr", f.gep("%to", f.mul(size, STEP_BYTES)))]) as k:
        before, to = k.carried
        for place, more in ((here, "%channel"), (there, apart)):
            f.store("i64", f.add(f.load("i64", f.gep(before, place)), more), f.gep(to, place))
        f.store("i64", 0, f.gep(to, 16))
        k.next = [f.gep(before, STEP_BYTES), f.gep(to, STEP_BYTES)]
    f.ret()
    f.end()


def _define_finish(module: Module, form: Form) -> None:
    """finish(to, channel, row, column, from, from_row, rows, columns, outputs, bias): sums [rows * columns][outputs] plus bias to where they belong."""
    f = Function(module, "finish", [("ptr", "to"), *(("i64", n) for n in ("channel", "row", "column")), ("ptr", "from"),
                                    *(("i64", n) for n in ("from_row", "rows", "columns", "outputs")), ("ptr", "bias")])
    e, item = form.element, form.item

    def dense() -> None:
        flat = f.either(f.cmp("eq", "%row", f.mul("%columns", item)), f.cmp("eq", "%rows", 1))
        rows, columns = f.select(flat, 1, "%rows"), f.select(flat, f.mul("%rows", "%columns"), "%columns")
        with f.loop(0, rows, carried=[("ptr", "%to"), ("ptr", "%from")]) as r:
            to, source = r.carried
            f.call("void", "turn", ("ptr", to), ("i64", "%channel"), ("ptr", source), ("i64", "%from_row"), ("i64", columns), ("i64", "%outputs"),
                   ("ptr", "%bias"))
            r.next = [f.gep(to, "%row"), f.gep(source, f.mul(columns, "%from_row"))]

    def spread() -> None:
        with f.loop(0, "%rows", carried=[("ptr", "%to"), ("ptr", "%from")]) as r:
            with f.loop(0, "%columns", carried=[("ptr", r.carried[0]), ("ptr", r.carried[1])]) as c:
                to, source = c.carried

                def last() -> None:
                    stream(f, form, "%outputs", lambda at, run: run.store(run.add(run.load(f.gep(source, at)), run.load(f.gep("%bias", at))), f.gep(to, at)))

                def single() -> None:
                    with f.loop(0, "%outputs", carried=[("ptr", to)]) as o:
                        at = f.mul(o.index, item)
                        value = form.add(f, f.load(e, f.gep(source, at), item), f.load(e, f.gep("%bias", at), item), vectors=0)
                        f.store(e, value, o.carried[0], item)
                        o.next = [f.gep(o.carried[0], "%channel")]

                f.choose(f.cmp("eq", "%channel", item), last, single)
                c.next = [f.gep(to, "%column"), f.gep(source, "%from_row")]
            r.next = [f.gep(r.carried[0], "%row"), c.carried[1]]

    f.choose(f.cmp("eq", "%column", item), dense, spread)
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


class _Kernel:
    """Writes the kernel. Words that start with `per_` are those of a group."""

    def __init__(self, f: Function, form: Form, attrs: ConvAttrs, has_bias: bool) -> None:
        self.f, self.form, self.attrs, self.has_bias = f, form, attrs, has_bias

    def write(self) -> None:
        f, form, attrs, item = self.f, self.form, self.attrs, self.form.item
        (sh, sw), (dh, dw), groups, lanes = attrs.stride, attrs.dilation, attrs.groups, form.lanes
        batch, channels, height, width, outputs, kh, kw, oh, ow, self.epilogue = (f.word("%sizes", i) for i in range(EPILOGUE + 1))
        self.height, self.width, self.oh, self.ow = height, width, oh, ow
        self.input_bytes = f.mul(f.mul(f.mul(batch, channels), f.mul(height, width)), item)
        pointers = [f.load("ptr", f.gep("%operands", 40 * i)) for i in range(4 if self.has_bias else 3)]
        strides: list[list[Value]] = [[f.word("%operands", 5 * i + 1 + j) for j in range(4)] for i in range(len(pointers))]
        x, w, self.out = pointers[0], pointers[1], pointers[-1]
        self.xs, ws, self.outs = xs, _, outs = strides[0], strides[1], strides[-1]
        f.fail_if(f.cmp("eq", f.mul(f.mul(batch, outputs), f.mul(oh, ow)), 0), DONE)

        self.per_channels, self.per_outputs = f.div(channels, groups), f.div(outputs, groups)
        per_channels, per_outputs = self.per_channels, self.per_outputs
        if depthwise.suits(form, attrs.stride, groups):
            dense, other = f.fresh(), f.fresh()
            f.branch(f.both(*(f.cmp("eq", n, 1) for n in (per_channels, per_outputs)), *(f.cmp("eq", s[3], item) for s in (xs, outs))), dense, other)
            f.label(dense)
            f.ret(f"i32 {f.call('i32', 'depthwise', *((t, f'%{n}') for t, n in KERNEL_PARAMS))}")
            f.label(other)
        self.depth = depth = f.mul(per_channels, f.mul(kh, kw))
        self.reach_h, self.reach_w = f.max(f.mul(f.sub(kh, 1), dh), 0), f.max(f.mul(f.sub(kw, 1), dw), 0)
        self.top, self.left = pad_before(f, attrs, kh, kw)

        # Lines: blocks of up to ROWS rows and `columns` columns, in the order (image, row, column).
        self.parts = f.ceil_div(ow, COLUMNS)
        self.columns = f.ceil_div(ow, self.parts)
        self.image_lines = f.mul(f.ceil_div(oh, ROWS), self.parts)
        all_lines = f.mul(batch, self.image_lines)
        lines = f.select(f.cmp("sgt", self.parts, 1), 1, f.max(f.div(PIXELS, f.mul(self.columns, ROWS)), 1))
        lines = f.min(lines, all_lines)

        # Which way: cycles of a vector unit for 16 x 256 elements of the result.
        whole = f.both(f.cmp("sle", f.add(f.mul(f.sub(oh, 1), sh), f.add(self.reach_h, 1)), height),
                       f.cmp("sle", f.add(f.mul(f.sub(ow, 1), sw), f.add(self.reach_w, 1)), width),
                       f.cmp("eq", self.top, 0), f.cmp("eq", self.left, 0))
        row_bytes = f.mul(ow, item)
        flat = f.both(whole, f.cmp("eq", self.parts, 1), *(f.cmp("eq", s, row_bytes) for s in (xs[2], outs[2]))) if attrs.stride == (1, 1) else "false"
        run = f.select(flat, f.mul(oh, ow), self.columns)
        by_pixels = f.div(f.mul(f.mul(depth, 256), f.round_up(run, lanes)), run)
        if sw > 1:
            by_pixels = f.add(by_pixels, f.div(f.mul(per_channels, 256 * 24 * sh * sw), per_outputs))
        by_outputs = f.add(f.add(f.mul(depth, 256), f.div(f.mul(depth, 1536), f.mul(batch, f.mul(oh, ow)))), 1280)
        by_outputs = f.div(f.mul(by_outputs, f.round_up(per_outputs, lanes)), per_outputs)
        by_outputs = f.select(f.cmp("sle", per_outputs, lanes), f.div(f.mul(by_outputs, 5), 4), by_outputs)    # such narrow tiles are short of loads
        pixels = f.both(f.cmp("sle", by_pixels, by_outputs), f.cmp("eq", outs[3], item))
        if not form.masked:
            pixels = f.both(pixels, f.cmp("eq", f.rem(run, lanes), 0), f.either(f.cmp("eq", self.parts, 1), f.cmp("eq", f.rem(ow, self.columns), 0)))
        self.pixels = pixels
        self.direct = direct = f.both(whole, f.either(f.invert(pixels), f.cmp("eq", xs[3], item)) if sw == 1 else f.invert(pixels))
        self.flat = f.both(flat, direct)

        # The copied image.
        last = f.both(f.invert(pixels), f.cmp("eq", xs[1], item), f.cmp("eq", xs[3], f.mul(per_channels, item)))
        self.step: Value = 1
        self.phases: Value = 1
        if sw > 1:
            self.step, self.phases = f.select(pixels, sw, 1), f.select(pixels, f.min(f.add(self.reach_w, 1), sw), 1)
        self.inner = f.select(last, per_channels, 1)
        self.pitch = f.select(pixels, f.add(self.columns, f.div(self.reach_w, sw)), f.add(f.add(f.mul(f.sub(self.columns, 1), sw), self.reach_w), 1))
        line_bytes = f.mul(f.mul(self.pitch, self.inner), f.mul(self.phases, item))
        space = f.mul(lines, f.add(self.reach_h, ROWS * sh))
        # An odd number of cache lines apart: the channels spread over all sets of the caches. Between them, room for a vector that `image` writes too far.
        plane = f(f"or i64 {f.round_up(f.add(f.mul(space, line_bytes), form.target.vector_bytes), 64)}, 64")
        self.image_channel = f.select(last, item, plane)
        self.channel = f.select(direct, xs[1], self.image_channel)
        self.row = f.select(direct, xs[2], line_bytes)
        self.pixel = f.select(direct, xs[3], f.mul(self.inner, item))
        self.last = last

        few = f.both(f.cmp("sge", "%hi", 0), f.cmp("sle", f.sub("%hi", "%lo"), all_lines))   # one block of outputs
        self.panel_outputs = f.min(per_outputs, f.select(few, OUTPUTS, 2 * OUTPUTS))
        dense_w = _dense(f, item, [per_channels, kh, kw], ws[1:])
        self.weight_row = f.select(dense_w, ws[0], f.mul(depth, item))
        self.panel = f.mul(f.min(f.round_up(per_outputs, lanes), 2 * OUTPUTS), item)      # bytes of a row of transposed weights, and of sums
        if 2 * OUTPUTS % lanes:
            self.panel = f.round_up(self.panel, form.target.vector_bytes)
        most = f.mul(f.mul(lines, self.columns), ROWS)
        slack = max(form.target.vector_bytes, 64)
        starts: list[Value] = [0]
        for piece in (
            f.mul(depth, STEP_BYTES),
            f.mul(f.add(f.select(pixels, f.add(per_outputs, 0), most), 16), 8),
            f.select(direct, 0, f.add(f.select(last, f.mul(space, line_bytes), f.mul(per_channels, plane)), slack)),
            f.select(dense_w, 0, f.mul(f.mul(outputs, depth), item)),
            f.select(pixels, 0, f.mul(f.add(f.min(depth, DEPTH_BLOCK), lanes), self.panel)),
            f.select(pixels, 0, f.mul(f.add(most, lanes), self.panel)),
            f.add(f.mul(outputs, item), 2 * slack),
        ):
            starts.append(f.add(starts[-1], f.round_up(piece, 64)))
        scratch = f.alloc("%ctx", starts[-1])
        self.steps, self.table, self.image, dense, self.packed, self.sums, self.bias = (f.gep(scratch, s) for s in starts[:-1])
        self.zeros = f.gep(self.bias, f.add(f.round_up(f.mul(outputs, item), 64), 64))

        phase = f.mul(self.pitch, item)
        f.call("void", "steps", ("ptr", self.steps), ("i64", per_channels), ("i64", kh), ("i64", kw), ("i64", self.channel), ("i64", self.row),
               ("i64", self.pixel), ("i64", phase), ("i64", self.step), ("i64", f.select(pixels, item, self.panel)), ("i64", f(f"zext i1 {pixels} to i64")))
        with f.when(f.invert(dense_w)):
            f.call("void", "dense_weights", ("ptr", dense), ("ptr", w), *(("i64", n) for n in (outputs, per_channels, kh, kw)), *(("i64", s) for s in ws))
        self.weights = f.select(dense_w, w, dense, "ptr")
        form.store(f, "zeroinitializer", self.zeros)
        bias, step = (pointers[2], strides[2][1]) if self.has_bias else (self.zeros, 0)
        f.call("void", "lists", ("ptr", self.bias), ("ptr", bias), ("i64", step), ("i64", outputs), ("ptr", self.table),
               ("i64", f.select(pixels, per_outputs, -16)), ("i64", self.weight_row))

        self.d = d = f.words(DESC_WORDS)
        steps_at = f(f"ptrtoint ptr {self.steps} to i64")
        first_words: dict[int, Value] = {STEPS: steps_at, DEPTH: depth, C_ROW: f.select(pixels, outs[1], self.panel), REST: lanes, RESUME: 0,
                                         BIAS_ROW: f.select(pixels, item, 0), FETCH: steps_at, FETCH_TILE: 0, FETCH_TILES: 0}
        for word, content in first_words.items():
            f.set_word(d, word, content)
        self.steps_at = steps_at
        with f.when(f.invert(pixels)):
            f.call("void", "ahead", ("ptr", self.steps), ("i64", depth), ("i64", self.weight_row), ("i64", self.panel_outputs))
        self.x = x
        self.code = f.words(1)
        f.set_word(self.code, 0, DONE)
        self._ranges(all_lines, lines)
        f.release("%ctx", scratch)
        f.ret(f"i32 {f.load('i32', self.code)}")
        f.end()

    def _settle(self, image: Value, output: Value, row: Value, column: Value, outputs: Value, rows: Value, columns: Value) -> None:
        """A block of the result is done."""
        f = self.f
        code = f.call("i32", "settle", ("ptr", "%ctx"), *(("i64", v) for v in (self.epilogue, image, f.add(self.first_output, output), row, column, 1, outputs, rows, columns)))
        f.store("i32", f(f"or i32 {code}, {f.load('i32', self.code)}"), self.code)

    def _ranges(self, all_lines: Value, lines: Value) -> None:
        f, groups = self.f, self.attrs.groups
        columns = groups if groups > 1 else f.ceil_div(self.per_outputs, OUTPUTS)
        by_lines = ordered_by_lines(f, self.input_bytes, f.mul(f.mul(self.depth, self.per_outputs), self.form.item)) if groups == 1 else "false"
        with rectangles(f, columns, all_lines, by_lines) as (low, high, start, stop):
            # Blocks of even size.
            count = f.sub(stop, start)
            even = f.ceil_div(count, f.ceil_div(count, lines))
            if groups > 1:
                with f.loop(low, high) as g:
                    self._blocks(g.index, 0, self.per_outputs, start, stop, even)
            else:
                self._blocks(0, f.mul(low, OUTPUTS), f.min(f.mul(high, OUTPUTS), self.per_outputs), start, stop, even)

    def _blocks(self, group: Value, first: Value, last: Value, start: Value, stop: Value, lines: Value) -> None:
        """Outputs first..last-1 of a group at lines start..stop-1."""
        f, groups = self.f, self.attrs.groups
        self.source = f.gep(self.x, f.mul(f.mul(group, self.per_channels), self.xs[1])) if groups > 1 else self.x
        self.first_output = f.mul(group, self.per_outputs)
        self.to = f.gep(self.out, f.mul(self.first_output, self.outs[1]))
        self.a = f.gep(self.weights, f.mul(self.first_output, self.weight_row))
        with f.loop(start, stop, lines) as block:
            end = f.min(f.add(block.index, lines), stop)
            count = self._gather(block.index, end)
            f.choose(self.pixels, lambda: self._by_pixels(block.index, end, first, last), lambda: self._by_outputs(block.index, end, count, first, last))

    def _segment(self, line: Value, end: Value) -> tuple[Value, ...]:
        """The lines from `line` on that lie in one image: how many, the image, first row, rows, first column, columns."""
        f = self.f
        image, at = f.div(line, self.image_lines), f.rem(line, self.image_lines)
        count = f.min(f.sub(self.image_lines, at), f.sub(end, line))
        quad = f.div(at, self.parts)
        many = f.cmp("sgt", self.parts, 1)
        row = f.mul(quad, ROWS)
        # With several parts of a row, a block is one line.
        rows = f.sub(f.min(f.add(row, f.mul(f.select(many, 1, count), ROWS)), self.oh), row)
        column = f.mul(f.sub(at, f.mul(quad, self.parts)), self.columns)
        return count, image, row, rows, column, f.min(self.columns, f.sub(self.ow, column))

    def _gather(self, start: Value, end: Value) -> Value:
        """Copies the input of a block, if it must be copied, and writes the table of its pixels, if rows are pixels. Returns how many there are."""
        f, xs = self.f, self.xs
        sh, sw = self.attrs.stride
        with f.loop(start, end, carried=[("i64", "0"), ("i64", "0")]) as s:
            line, pixel = s.carried
            count, image, row, rows, column, columns = self._segment(s.index, end)
            s.step = count
            with f.when(f.invert(self.direct)):
                inner = self.inner
                f.call("void", "image", ("ptr", f.gep(self.image, f.mul(line, self.row))), ("ptr", f.gep(self.source, f.mul(image, xs[0]))),
                       ("i64", self.image_channel), ("i64", self.row), ("i64", f.select(self.last, 1, self.per_channels)), ("i64", self.height),
                       ("i64", f.mul(self.width, inner)), ("i64", xs[1]), ("i64", xs[2]), ("i64", f.select(self.last, self.form.item, xs[3])),
                       ("i64", f.sub(f.mul(row, sh), self.top)), ("i64", f.mul(f.sub(self.left, f.mul(column, sw)), inner)), ("i64", self.phases),
                       ("i64", self.step), ("i64", f.add(f.mul(f.sub(rows, 1), sh), f.add(self.reach_h, 1))), ("i64", f.mul(self.pitch, inner)))
            place = f.add(f.mul(image, xs[0]), f.add(f.mul(f.mul(row, sh), self.row), f.mul(f.mul(column, sw), self.pixel)))
            base = f.select(self.direct, place, f.mul(line, self.row))
            with f.when(f.invert(self.pixels)):
                f.call("void", "pixels", ("ptr", f.gep(self.table, f.mul(pixel, 8))), *(("i64", n) for n in (
                    base, rows, columns, f.mul(self.row, sh), f.mul(self.pixel, sw))))
            s.next = [str(f.add(line, f.add(f.mul(f.sub(rows, 1), sh), f.add(self.reach_h, 1)))), str(f.add(pixel, f.mul(rows, columns)))]
        return s.carried[1]

    def _by_pixels(self, start: Value, end: Value, first: Value, last: Value) -> None:
        f, form, item = self.f, self.form, self.form.item
        sh, sw = self.attrs.stride
        weights = f.gep(self.table, f.mul(first, 8))
        with f.loop(start, end, carried=[("i64", "0")]) as s:
            line = s.carried[0]
            count, image, row, rows, column, columns = self._segment(s.index, end)
            s.step = count
            place = f.add(f.mul(f.mul(row, sh), self.row), f.mul(f.mul(column, sw), item))
            b = f.select(self.direct, f.gep(self.source, f.add(f.mul(image, self.xs[0]), place)), f.gep(self.image, f.mul(line, self.row)), "ptr")
            c = f.gep(self.to, f.add(f.add(f.mul(image, self.outs[0]), f.mul(row, self.outs[2])), f.add(f.mul(column, item), f.mul(first, self.outs[1]))))
            bias = f.gep(self.bias, f.mul(f.add(self.first_output, first), item))
            runs, length = f.select(self.flat, 1, rows), f.select(self.flat, f.mul(rows, columns), columns)
            vectors = f.ceil_div(length, form.lanes)
            most = widest(f, form, f.sub(last, first))
            with f.loop(0, runs, carried=[("ptr", b), ("ptr", c)]) as r:
                with f.loop(0, vectors) as v:
                    left = f.sub(vectors, v.index)
                    v.step = wide = f.ceil_div(left, f.ceil_div(left, most))    # even widths
                    done = f.mul(f.add(f.add(v.index, wide), -1), form.lanes)
                    f.set_word(self.d, REST, f.min(f.sub(length, done), form.lanes))
                    at = f.mul(v.index, form.target.vector_bytes)
                    f.call("void", "strip", ("ptr", self.a), ("ptr", weights), ("ptr", f.gep(r.carried[0], at)), ("ptr", f.gep(r.carried[1], at)),
                           ("ptr", bias), ("i64", f.sub(last, first)), ("i64", wide), ("ptr", self.d))
                r.next = [f.gep(r.carried[0], f.mul(self.row, sh)), f.gep(r.carried[1], self.outs[2])]
            self._settle(image, first, row, column, f.sub(last, first), rows, columns)
            s.next = [str(f.add(line, f.add(f.mul(f.sub(rows, 1), sh), f.add(self.reach_h, 1))))]

    def _by_outputs(self, start: Value, end: Value, pixels: Value, first: Value, last: Value) -> None:
        f, form, item, lanes = self.f, self.form, self.form.item, self.form.lanes
        base = f.select(self.direct, self.source, self.image, "ptr")
        # Panels of even width.
        vectors = f.ceil_div(f.sub(last, first), lanes)
        most = 2 * OUTPUTS // lanes or 1
        wide = f.ceil_div(vectors, f.ceil_div(vectors, most))
        with f.loop(first, last, f.mul(wide, lanes)) as o:
            outputs = f.min(f.sub(last, o.index), f.mul(wide, lanes))
            used = f.ceil_div(outputs, lanes)
            weights = f.gep(self.a, f.mul(o.index, self.weight_row))
            # A sum over nothing is one too.
            with f.loop(0, f.max(self.depth, 1), DEPTH_BLOCK) as k:
                depth = f.min(f.sub(self.depth, k.index), DEPTH_BLOCK)
                f.call("void", "pack", ("ptr", self.packed), ("i64", self.panel), ("ptr", f.gep(weights, f.mul(k.index, item))), ("i64", self.weight_row),
                       ("i64", outputs), ("i64", depth), ("ptr", self.zeros))
                f.set_word(self.d, STEPS, f.add(self.steps_at, f.mul(k.index, STEP_BYTES)))
                f.set_word(self.d, DEPTH, depth)
                following = f.add(k.index, DEPTH_BLOCK)
                ahead = f.select(f.cmp("slt", following, self.depth), f.mul(following, item), f.mul(outputs, self.weight_row))
                f.set_word(self.d, FETCH, f(f"ptrtoint ptr {f.gep(weights, ahead)} to i64"))
                lines = f.max(f.div(DEPTH_BLOCK, self.panel_outputs), 1)
                f.set_word(self.d, FETCH_TILE, f.mul(lines, 64))
                f.set_word(self.d, FETCH_TILES, f.div(DEPTH_BLOCK * item // 64, lines))
                f.set_word(self.d, RESUME, f(f"zext i1 {f.cmp('sgt', k.index, 0)} to i64"))
                b = f.gep(self.packed, f.sub(0, f.mul(k.index, self.panel)))
                with f.loop(0, used, form.vectors) as v:
                    at = f.mul(v.index, form.target.vector_bytes)
                    f.call("void", "strip", ("ptr", base), ("ptr", self.table), ("ptr", f.gep(b, at)), ("ptr", f.gep(self.sums, at)), ("ptr", self.zeros),
                           ("i64", pixels), ("i64", f.min(form.vectors, f.sub(used, v.index))), ("ptr", self.d))
            bias = f.gep(self.bias, f.mul(f.add(self.first_output, o.index), item))
            with f.loop(start, end, carried=[("ptr", self.sums)]) as s:
                count, image, row, rows, column, columns = self._segment(s.index, end)
                s.step = count
                place = f.add(f.mul(row, self.outs[2]), f.mul(column, self.outs[3]))
                to = f.gep(self.to, f.add(f.add(f.mul(image, self.outs[0]), f.mul(o.index, self.outs[1])), place))
                f.call("void", "finish", ("ptr", to), *(("i64", n) for n in self.outs[1:]), ("ptr", s.carried[0]), ("i64", self.panel), ("i64", rows),
                       ("i64", columns), ("i64", outputs), ("ptr", bias))
                self._settle(image, o.index, row, column, outputs, rows, columns)
                s.next = [f.gep(s.carried[0], f.mul(f.mul(rows, columns), self.panel))]
