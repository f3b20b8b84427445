"""Depthwise convolution: one input and one output channel a group. Planes are read in place, vectors are neighbouring pixels.

    rows_3x3   a kernel of 3 x 3 without dilation: each input vector serves up to three rows of output
    rows_any   any other
    flat       narrow images that the convolution leaves as wide as they are: a vector runs over the ends of rows, since for each element of the kernel all the
               pixels it meets lie at one distance from the output's; masks, made once, hide what lies outside

Sums are added up in the order (kh, kw) in each, with zeros for padding, so that which one runs changes no bit.
"""
from __future__ import annotations

from .builder import KERNEL_PARAMS, Function, Module, Value
from .conv_tiles import COLUMNS, EPILOGUE, ROWS, Columns, ConvAttrs, Form, pad_before

HIGH = 4        # output rows that are computed together
NARROW = 12     # widest image for `flat`
VECTORS = 4     # of `flat` that are computed together
SETTLED = 4096  # elements that an epilogue does at once, where planes are small

# Words of the descriptor: pointers to the plane, its weights, the output, 4 vectors of zeros; sizes and byte strides of them; first row, rows, first column,
# columns to do; padding; where `flat`'s masks are.
NAMES = ("x", "w", "out", "zeros", "height", "width", "row", "kh", "kw", "w_row", "w_column", "out_row", "first_row", "rows", "first_column", "columns",
         "top", "left", "masks")
WORD = {name: i for i, name in enumerate(NAMES)}


def suits(form: Form, stride: tuple[int, int], groups: int) -> bool:
    """Whether there are kernels for it."""
    return groups > 1 and stride[1] <= 2 and form.item >= 4 and form.target.vector_bytes >= 32


def define(module: Module, form: Form, attrs: ConvAttrs, has_bias: bool) -> None:
    """Defines depthwise(...), which takes a kernel's arguments and does its units lo..hi-1 (hi = -1: all). Columns of x and out must be dense."""
    stride, dilation = attrs.stride, attrs.dilation
    _define_rows_any(module, form, stride, dilation)
    if dilation == (1, 1):
        _define_rows_3x3(module, form, stride)
    if stride == (1, 1):
        _define_masks(module, form, dilation)
        _define_flat(module, form, dilation)
    f = Function(module, "depthwise", KERNEL_PARAMS, "i32")
    e, item = form.element, form.item
    batch, channels, height, width, _, kh, kw, oh, ow, epilogue = (f.word("%sizes", i) for i in range(EPILOGUE + 1))
    pointers = [f.load("ptr", f.gep("%operands", 40 * i)) for i in range(4 if has_bias else 3)]
    xs, ws, *bias, outs = [[f.word("%operands", 5 * i + 1 + j) for j in range(4)] for i in range(len(pointers))]
    x, w, out = pointers[0], pointers[1], pointers[-1]
    top, left = pad_before(f, attrs, kh, kw)

    parts = f.ceil_div(ow, COLUMNS)
    many = f.cmp("sgt", parts, 1)
    part = f.ceil_div(ow, parts)
    image_lines = f.mul(f.ceil_div(oh, ROWS), parts)
    lines = f.mul(batch, image_lines)
    hi = f.select(f.cmp("slt", "%hi", 0), f.mul(channels, lines), "%hi")

    flat: str = "false"
    if stride == (1, 1):
        row = f.mul(width, item)
        flat = f.both(f.cmp("eq", oh, height), f.cmp("eq", ow, width), f.cmp("sle", ow, NARROW), f.cmp("eq", xs[2], row), f.cmp("eq", outs[2], row))
    zero_bytes = VECTORS * form.target.vector_bytes
    scratch = f.alloc("%ctx", f.add(zero_bytes, f.select(flat, mask_bytes(f, form, f.mul(height, width), f.mul(kh, kw)), 0)))
    for i in range(VECTORS):
        form.store(f, "zeroinitializer", f.gep(scratch, i * form.target.vector_bytes))
    masks = f.select(flat, f(f"ptrtoint ptr {f.gep(scratch, zero_bytes)} to i64"), 0)

    d = f.words(len(NAMES))
    f.store("ptr", scratch, f.gep(d, 8 * WORD["zeros"]))
    known = {"height": height, "width": width, "row": xs[2], "kh": kh, "kw": kw, "w_row": ws[2], "w_column": ws[3], "out_row": outs[2], "top": top,
             "left": left, "masks": masks}
    for name, value in known.items():
        f.set_word(d, WORD[name], value)
    if stride == (1, 1):
        with f.when(flat):
            f.call("void", "depthwise_masks", ("ptr", d))
    small = f.both(f.cmp("eq", kh, 3), f.cmp("eq", kw, 3)) if dilation == (1, 1) else "false"
    single = f.cmp("eq", batch, 1)
    waiting = _Waiting(f, epilogue, single, oh, ow)
    with f.loop("%lo", hi) as u:
        channel = f.div(u.index, lines)
        line = f.sub(u.index, f.mul(channel, lines))
        image = f.div(line, image_lines)
        at = f.sub(line, f.mul(image, image_lines))
        count = f.select(many, 1, f.min(f.sub(image_lines, at), f.sub(hi, u.index)))
        u.step = count
        quad = f.select(many, f.div(at, parts), at)
        first_row, first_column = f.mul(quad, ROWS), f.mul(f.sub(at, f.mul(quad, parts)), part)
        rows = f.sub(f.min(f.add(first_row, f.mul(count, ROWS)), oh), first_row)
        to = f.add(f.add(f.mul(image, outs[0]), f.mul(channel, outs[1])), f.add(f.mul(first_row, outs[2]), f.mul(first_column, item)))
        plane = f.gep(x, f.add(f.mul(image, xs[0]), f.mul(channel, xs[1])))
        for name, pointer in (("x", plane), ("w", f.gep(w, f.mul(channel, ws[0]))), ("out", f.gep(out, to))):
            f.store("ptr", pointer, f.gep(d, 8 * WORD[name]))
        for name, value in {"first_row": first_row, "rows": rows, "first_column": first_column, "columns": f.min(part, f.sub(ow, first_column))}.items():
            f.set_word(d, WORD[name], value)
        value = f.load(e, f.gep(pointers[2], f.mul(channel, bias[0][1])), item) if has_bias else form.neutral
        args = (("ptr", d), (e, value))
        # Which one: a label for each.
        after = f.fresh()
        choices = ([("flat", f.both(flat, f.cmp("eq", rows, oh)))] if stride == (1, 1) else []) + ([("rows_3x3", small)] if dilation == (1, 1) else [])
        for name, condition in choices:
            yes, no = f.fresh(), f.fresh()
            f.branch(condition, yes, no)
            f.label(yes)
            f.call("void", name, *args)
            f.br(after)
            f.label(no)
        f.call("void", "rows_any", *args)
        f.br(after)
        f.label(after)
        with f.when(f.cmp("ne", epilogue, 0)):
            whole = f.cmp("eq", count, image_lines)
            f.choose(whole, lambda: waiting.add(image, channel),
                     lambda: waiting.settle(image, channel, first_row, first_column, 1, 1, rows, f.min(part, f.sub(ow, first_column))))
    waiting.flush()
    f.release("%ctx", scratch)
    f.ret(f"i32 {f.load('i32', waiting.code)}")
    f.end()


class _Waiting:
    """Whole planes that are done and wait for the epilogue: neighbouring channels of the one image, or neighbouring images of one channel."""

    def __init__(self, f: Function, epilogue: Value, single: str, oh: Value, ow: Value) -> None:
        self.f, self.epilogue, self.single, self.oh, self.ow = f, epilogue, single, oh, ow
        self.code, self.image, self.channel, self.count = (f.words(1) for _ in range(4))
        for word in (self.code, self.image, self.channel, self.count):
            f.set_word(word, 0, 0)

    def settle(self, *block: Value) -> None:
        """block: image, channel, row, column, and how many of each."""
        f = self.f
        code = f.call("i32", "settle", ("ptr", "%ctx"), ("i64", self.epilogue), *(("i64", v) for v in block))
        f.store("i32", f(f"or i32 {code}, {f.load('i32', self.code)}"), self.code)

    def flush(self) -> None:
        f = self.f
        count = f.word(self.count, 0)
        with f.when(f.cmp("ne", count, 0)):
            self.settle(f.word(self.image, 0), f.word(self.channel, 0), 0, 0, f.select(self.single, 1, count), f.select(self.single, count, 1), self.oh, self.ow)
            f.set_word(self.count, 0, 0)

    def add(self, image: Value, channel: Value) -> None:
        f = self.f
        full = f.cmp("sge", f.mul(f.word(self.count, 0), f.mul(self.oh, self.ow)), SETTLED)
        apart = f.both(f.invert(self.single), f.cmp("ne", channel, f.word(self.channel, 0)))
        with f.when(f.either(full, apart)):
            self.flush()
        with f.when(f.cmp("eq", f.word(self.count, 0), 0)):
            f.set_word(self.image, 0, image)
            f.set_word(self.channel, 0, channel)
        f.set_word(self.count, 0, f.add(f.word(self.count, 0), 1))


def _start(module: Module, form: Form, name: str) -> tuple[Function, dict[str, str]]:
    f = Function(module, name, [("ptr", "d"), (form.element, "bias")])
    return f, {n: f.load("ptr" if i < 4 else "i64", f.gep("%d", 8 * i)) for i, n in enumerate(NAMES)}


def _store(f: Function, form: Form, v: dict[str, str], sums: list[str], first: Value, column: Value) -> None:
    """Rows past the last are written to its place, and then written over."""
    mask = form.mask(f, f.sub(v["columns"], column))
    bias = f.splat(form.element, form.lanes, "%bias")
    at = f.gep(v["out"], f.mul(column, form.item))
    last = f.sub(v["rows"], 1)
    for t in reversed(range(HIGH)):
        row = f.min(f.add(first, t), last)
        form.store(f, form.add(f, sums[t], bias), f.gep(at, f.mul(row, v["out_row"])), mask)


def _line(f: Function, v: dict[str, str], row: Value, offset: Value) -> str:
    """The input row's pixels from a byte offset on; zeros for a row of padding."""
    inside = f.cmp("ult", row, v["height"])
    return f.select(inside, f.gep(f.gep(v["x"], f.mul(row, v["row"])), offset), v["zeros"], "ptr")


def _define_rows_3x3(module: Module, form: Form, stride: tuple[int, int]) -> None:
    f, v = _start(module, form, "rows_3x3")
    sh, sw = stride
    weights = [[form.splat_at(f, f.gep(f.gep(v["w"], f.mul(v["w_row"], i)), f.mul(v["w_column"], j))) for j in range(3)] for i in range(3)]
    with f.loop(0, v["columns"], form.lanes) as c:
        start = f.sub(f.mul(f.add(v["first_column"], c.index), sw), v["left"])
        x = Columns(f, form, sw, v["width"], start)
        shifts = range(3) if sw == 1 else (0, 2)    # with step 2, the second element meets what the first one's vectors skip
        masks = {s: x.pair(s) for s in shifts}
        offset = f.mul(start, form.item)
        with f.loop(0, v["rows"], HIGH) as r:
            first = f.sub(f.mul(f.add(v["first_row"], r.index), sh), v["top"])
            sums = ["zeroinitializer"] * HIGH
            for i in range((HIGH - 1) * sh + 3):
                line = _line(f, v, f.add(first, i), offset)
                loaded = {s: x.load(f.gep(line, s * form.item), masks[s]) for s in shifts}
                for j in range(3):
                    pixels = x.pick(loaded[j]) if j in loaded else x.pick(loaded[0], 1)
                    for t in range(HIGH):
                        if 0 <= i - t * sh < 3:
                            sums[t] = form.multiply_add(f, weights[i - t * sh][j], pixels, sums[t])
            _store(f, form, v, sums, r.index, c.index)
    f.ret()
    f.end()


def _define_rows_any(module: Module, form: Form, stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    f, v = _start(module, form, "rows_any")
    (sh, sw), (dh, dw) = stride, dilation
    with f.loop(0, v["columns"], form.lanes) as c:
        start = f.sub(f.mul(f.add(v["first_column"], c.index), sw), v["left"])
        x = Columns(f, form, sw, v["width"], start)
        with f.loop(0, v["rows"], HIGH) as r:
            first = f.sub(f.mul(f.add(v["first_row"], r.index), sh), v["top"])
            with f.loop(0, v["kh"], carried=((form.vector, "zeroinitializer"),) * HIGH) as i:
                lines = [_line(f, v, f.add(f.add(first, t * sh), f.mul(i.index, dh)), f.mul(start, form.item)) for t in range(HIGH)]
                exists = [f.cmp("ult", f.add(f.add(first, t * sh), f.mul(i.index, dh)), v["height"]) for t in range(HIGH)]
                weights = f.gep(v["w"], f.mul(i.index, v["w_row"]))
                with f.loop(0, v["kw"], carried=[(form.vector, s) for s in i.carried]) as j:
                    shift = f.mul(j.index, dw)
                    masks = x.pair(shift)
                    weight = form.splat_at(f, f.gep(weights, f.mul(j.index, v["w_column"])))
                    for t in range(HIGH):
                        pointer = f.gep(lines[t], f.select(exists[t], f.mul(shift, form.item), 0))
                        j.next.append(form.multiply_add(f, weight, x.pick(x.load(pointer, masks)), j.carried[t]))
                i.next = [*j.carried]
            _store(f, form, v, i.carried, r.index, c.index)
    f.ret()
    f.end()


# -- flat: masks[vector][kh][kw], a byte or two each

def _bits(form: Form) -> tuple[str, int]:
    """The type of a mask in memory, and its bytes."""
    return f"i{max(form.lanes, 8)}", max(form.lanes, 8) // 8


def mask_bytes(f: Function, form: Form, pixels: Value, kernel: Value) -> Value:
    """The size of the table."""
    return f.mul(f.mul(f.round_up(f.ceil_div(pixels, form.lanes), VECTORS), kernel), _bits(form)[1])


def _define_masks(module: Module, form: Form, dilation: tuple[int, int]) -> None:
    """depthwise_masks(d): for each vector of output pixels and element of the kernel, the lanes where it meets an input pixel."""
    f = Function(module, "depthwise_masks", [("ptr", "d")])
    v = {n: f.load("ptr" if i < 4 else "i64", f.gep("%d", 8 * i)) for i, n in enumerate(NAMES)}
    (dh, dw), n, (bits, size) = dilation, form.lanes, _bits(form)
    t = f"<{n} x i32>"
    width, height = (f.splat("i32", n, f(f"trunc i64 {v[name]} to i32")) for name in ("width", "height"))
    count = f.mul(v["height"], v["width"])
    with f.loop(0, f.round_up(count, n * VECTORS), n, carried=[("ptr", f(f"inttoptr i64 {v['masks']} to ptr"))]) as p:
        pixel = f(f"add {t} {f.splat('i32', n, f(f'trunc i64 {p.index} to i32'))}, {form.iota}")
        row = f(f"udiv {t} {pixel}, {width}")
        column = f(f"sub {t} {pixel}, {f(f'mul {t} {row}, {width}')}")
        exists = f(f"icmp ult {t} {row}, {height}")
        with f.loop(0, v["kh"], carried=[("ptr", p.carried[0])]) as i:
            down = f.splat("i32", n, f(f"trunc i64 {f.sub(f.mul(i.index, dh), v['top'])} to i32"))
            inside = f(f"and <{n} x i1> {exists}, {f(f'icmp ult {t} ' + f(f'add {t} {row}, {down}') + f', {height}')}")
            with f.loop(0, v["kw"], carried=[("ptr", i.carried[0])]) as j:
                right = f.splat("i32", n, f(f"trunc i64 {f.sub(f.mul(j.index, dw), v['left'])} to i32"))
                good = f(f"and <{n} x i1> {inside}, {f(f'icmp ult {t} ' + f(f'add {t} {column}, {right}') + f', {width}')}")
                word = f(f"bitcast <{n} x i1> {good} to i{n}")
                f.store(bits, word if n >= 8 else f(f"zext i{n} {word} to i8"), j.carried[0], size)
                j.next = [f.gep(j.carried[0], size)]
            i.next = [*j.carried]
        p.next = [*i.carried]
    f.ret()
    f.end()


def _define_flat(module: Module, form: Form, dilation: tuple[int, int]) -> None:
    f, v = _start(module, form, "flat")
    (dh, dw), n, (bits, size), item = dilation, form.lanes, _bits(form), form.item
    count = f.mul(v["height"], v["width"])
    pitch = f.mul(f.mul(v["kh"], v["kw"]), size)    # bytes from a vector's masks to the next one's
    bias = f.splat(form.element, n, "%bias")
    with f.loop(0, count, n * VECTORS, carried=[("ptr", f(f"inttoptr i64 {v['masks']} to ptr"))]) as p:
        shift = f.sub(p.index, f.add(f.mul(v["top"], v["width"]), v["left"]))
        with f.loop(0, v["kh"], carried=[("ptr", p.carried[0]), *((form.vector, "zeroinitializer"),) * VECTORS]) as i:
            line = f.gep(v["x"], f.mul(f.add(shift, f.mul(f.mul(i.index, dh), v["width"])), item))
            weights = f.gep(v["w"], f.mul(i.index, v["w_row"]))
            with f.loop(0, v["kw"], carried=[("ptr", i.carried[0]), *((form.vector, s) for s in i.carried[1:])]) as j:
                at, *sums = j.carried
                weight = form.splat_at(f, f.gep(weights, f.mul(j.index, v["w_column"])))
                pointer = f.gep(line, f.mul(j.index, dw * item))
                for k in range(VECTORS):
                    word = f.load(bits, f.gep(at, f.mul(pitch, k)), size)
                    mask = f(f"bitcast i{n} {word if n >= 8 else f(f'trunc i8 {word} to i{n}')} to <{n} x i1>")
                    sums[k] = form.multiply_add(f, weight, form.load(f, f.gep(pointer, k * n * item), mask), sums[k])
                j.next = [f.gep(at, size), *sums]
            i.next = [*j.carried]
        for k in range(VECTORS):
            first = f.add(p.index, k * n)
            mask = form.mask(f, f.max(f.sub(count, first), 0))
            form.store(f, form.add(f, i.carried[1 + k], bias), f.gep(v["out"], f.mul(first, item)), mask)
        p.next = [f.gep(p.carried[0], f.mul(pitch, VECTORS))]
    f.ret()
    f.end()
