"""Convolution by 3 x 3 weights in steps of one: Winograd's F(2x2, 3x3), 16 products for four pixels where the direct way needs 36.

With d a square of 4 x 4 input pixels, g the weights and y the square of 2 x 2 results they give (Lavin and Gray 2016):

    V = B' d B     U = G g G'     M[p] = sum over channels of U[p] * V[p], for each of the 16 places p     y = A' M A

    B' d = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)     G g = (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2)     A' m = (m0 + m1 + m2, m1 - m2 - m3)

A result depends on no pixel outside its own window, before rounding too. Lanes are squares of the result, row after row. Units with a result that is not finite are
left to the direct way, so that infinities are the same and a sum of the transforms that overflows does no harm.
"""
from __future__ import annotations

from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .conv_tiles import (
    BIAS_ROW,
    C_ROW,
    COLUMNS,
    DEPTH,
    DESC_WORDS,
    EPILOGUE,
    FETCH,
    OUTPUTS,
    REST,
    ROWS,
    STEP_BYTES,
    STEPS,
    ConvAttrs,
    Form,
    pad_before,
    widest,
)
from .conv_units import ordered_by_lines, rectangles

PLACES = 16
CENTRE = 5              # the place that all four results add: where the bias goes
CHUNK = 32              # channels whose weights are transposed together
FAST_BYTES = 3 << 17    # transformed pixels and products of a block: they stay in L2
FEWEST = 64             # squares of a block, for which all weights are transformed


def suits(form: Form, attrs: ConvAttrs) -> bool:
    """Whether there are kernels for it."""
    return form.floating and form.masked and attrs.stride == attrs.dilation == (1, 1) and attrs.groups == 1


def pays(f: Function, channels: Value, outputs: Value, images: Value, oh: Value, ow: Value) -> str:
    """Whether it is faster than the direct way, by cycles of a vector unit with 16 lanes: measured for 8 to 512 channels and outputs, 5 x 5 to 120 x 120 pixels."""
    squares, rows = f.mul(images, f.mul(f.ceil_div(oh, 2), f.ceil_div(ow, 2))), f.round_up(outputs, 8)
    each = f.add(f.mul(f.add(channels, 5), rows), f.mul(f.mul(channels, 4), f.ceil_div(outputs, OUTPUTS)))
    here = f.add(f.mul(squares, each), f.mul(f.mul(channels, 10), f.round_up(outputs, 16)))
    there = f.div(f.mul(f.mul(f.mul(channels, 9), rows), f.mul(images, f.mul(oh, ow))), 16)
    return f.cmp("slt", here, there)


def define(module: Module, form: Form, name: str, attrs: ConvAttrs, has_bias: bool) -> None:
    """Defines the kernel, which calls `direct` where that is faster or where this way cannot: weights must be dense 3 x 3 ones, columns of x and out too."""
    _define_weights(module, form)
    _define_input(module, form)
    _define_output(module, form)
    _Kernel(Function(module, "winograd", KERNEL_PARAMS, "i32", glue=True), form, attrs, has_bias).write()
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True, glue=True)
    batch, channels, _, _, outputs, kh, kw, oh, ow = (f.word("%sizes", i) for i in range(EPILOGUE))
    xs, ws, outs = (operand_strides(f, i) for i in (0, 1, 3 if has_bias else 2))
    fits = f.both(*(f.cmp("eq", a, b) for a, b in ((kh, 3), (kw, 3), (xs[3], form.item), (outs[3], form.item), (ws[3], form.item), (ws[2], 3 * form.item), (ws[1], 9 * form.item))))
    taken, other = f.fresh(), f.fresh()
    f.branch(f.both(fits, pays(f, channels, outputs, batch, oh, ow)), taken, other)
    for label, callee in ((taken, "winograd"), (other, "direct")):
        f.label(label)
        f.ret(f"i32 {f.call('i32', callee, *((t, f'%{n}') for t, n in KERNEL_PARAMS))}")
    f.end()


def operand_strides(f: Function, operand: int) -> list[str]:
    return [f.word("%operands", 5 * operand + 1 + j) for j in range(4)]


def _binary(f: Function, form: Form, op: str, a: str, b: str) -> str:
    return f(f"{op} {form.vector} {a}, {b}")


def _define_weights(module: Module, form: Form) -> None:
    """winograd_weights(to, plane, from, channels): U from g, both with OUTPUTS outputs a row; from[channel, kh, kw, output]."""
    f = Function(module, "winograd_weights", [("ptr", "to"), ("i64", "plane"), ("ptr", "from"), ("i64", "channels")])
    row = OUTPUTS * form.item
    half = f.splat(form.element, form.lanes, "0.5")

    def transformed(a: str, b: str, c: str) -> list[str]:
        ends = _binary(f, form, "fmul", _binary(f, form, "fadd", a, c), half)
        middle = _binary(f, form, "fmul", b, half)
        return [a, _binary(f, form, "fadd", ends, middle), _binary(f, form, "fsub", ends, middle), c]

    with f.loop(0, "%channels", carried=[("ptr", "%to"), ("ptr", "%from")]) as c:
        with f.loop(0, row, form.target.vector_bytes) as v:
            source, to = f.gep(c.carried[1], v.index), f.gep(c.carried[0], v.index)
            given = [form.load(f, f.gep(source, i * row)) for i in range(9)]
            columns = [transformed(*given[j::3]) for j in range(3)]
            for i in range(4):
                for value in transformed(*(columns[j][i] for j in range(3))):
                    form.store(f, value, to)
                    to = f.gep(to, "%plane")
        c.next = [f.gep(c.carried[0], row), f.gep(c.carried[1], 9 * row)]
    f.ret()
    f.end()


def _define_input(module: Module, form: Form) -> None:
    """winograd_input(to, plane, step, from, channels, channel, row, top, height, left, width, squares, lines, zeros): V of `lines` rows of squares.

    from: the input's first pixel. top, left: where the first square begins, maybe outside. zeros: of four vectors."""
    names = ("channels", "channel", "row", "top", "height", "left", "width", "squares", "lines")
    f = Function(module, "winograd_input", [("ptr", "to"), ("i64", "plane"), ("i64", "step"), ("ptr", "from"), *(("i64", n) for n in names), ("ptr", "zeros")])
    n, item, wide = form.lanes, form.item, form.target.vector_bytes
    offsets = [0, wide, 2 * item, wide + 2 * item]
    limit = f.splat("i32", n, f("trunc i64 %width to i32"))
    first = f.gep("%from", f.add(f.mul("%top", "%row"), f.mul("%left", item)))

    def transformed(a: str, b: str, c: str, d: str) -> list[str]:
        return [_binary(f, form, op, x, y) for op, x, y in (("fsub", a, c), ("fadd", b, c), ("fsub", c, b), ("fsub", b, d))]

    with f.loop(0, "%channels", carried=[("ptr", "%to"), ("ptr", first)]) as c:
        with f.loop(0, "%squares", n) as t:
            twice = f.mul(t.index, 2)
            column = f.splat("i32", n, f(f"trunc i64 {f.add('%left', twice)} to i32"))
            masks = [f(f"icmp ult <{n} x i32> {f(f'add <{n} x i32> {column}, {form.iota_from(offset // item)}')}, {limit}") for offset in offsets]
            start = f.gep(c.carried[1], f.mul(twice, item))
            used = form.mask(f, f.sub("%squares", t.index))

            def line(q: Value) -> list[str]:
                exists = f(f"icmp ult i64 {f.add('%top', q)}, %height")
                p = f.select(exists, f.gep(start, f.mul(q, "%row")), "%zeros", "ptr")
                for at in range(0, 2 * wide, 64):   # of the next channel
                    f.prefetch(f.gep(p, f.add("%channel", at)))
                a, b, later, last = (form.load(f, f.gep(p, offset), mask) for offset, mask in zip(offsets, masks, strict=True))
                return transformed(*(f.shuffle(form.element, n, x, y, range(k, 2 * n, 2)) for x, y in ((a, b), (later, last)) for k in range(2)))

            to = f.gep(c.carried[0], f.mul(t.index, item))
            with f.loop(0, "%lines", carried=[("ptr", to), *((form.vector, v) for v in (*line(0), *line(1)))]) as r:
                to, *above = r.carried
                q = f.mul(r.index, 2)
                below = [*line(f.add(q, 2)), *line(f.add(q, 3))]
                r.next = [f.gep(to, f.mul("%squares", item)), *below]
                square = [transformed(above[j], above[4 + j], below[j], below[4 + j]) for j in range(4)]
                for i in range(4):
                    for j in range(4):
                        form.store(f, square[j][i], to, used)
                        to = f.gep(to, "%plane")
        c.next = [f.gep(c.carried[0], "%step"), f.gep(c.carried[1], "%channel")]
    f.ret()
    f.end()


def _define_output(module: Module, form: Form) -> None:
    """winograd_output(to, channel, row, from, plane, step, outputs, rows, columns): y of one row of squares from M. 1 if one of them is not finite.

    rows: 1 or 2; columns: of the result, those of the last square may be one."""
    names = ("plane", "step", "outputs", "rows", "columns")
    f = Function(module, "winograd_output", [("ptr", "to"), ("i64", "channel"), ("i64", "row"), ("ptr", "from"), *(("i64", n) for n in names)], "i64")
    n, wide = form.lanes, form.target.vector_bytes
    low = [i // 2 + (i & 1) * n for i in range(n)]
    both = f.cmp("sgt", "%rows", 1)
    nothing = f.splat(form.element, n, "0.0")

    def results(a: str, b: str, c: str, d: str) -> tuple[str, str]:
        return (_binary(f, form, "fadd", _binary(f, form, "fadd", a, b), c), _binary(f, form, "fsub", _binary(f, form, "fsub", b, c), d))

    with f.loop(0, "%outputs", carried=[("ptr", "%to"), ("ptr", "%from"), (form.vector, nothing)]) as o:
        with f.loop(0, "%columns", 2 * n, carried=[("ptr", o.carried[0]), ("ptr", o.carried[1]), (form.vector, o.carried[2])]) as t:
            to, source, seen = t.carried
            masks = [form.mask(f, f.max(f.sub(f.sub("%columns", t.index), i * n), 0)) for i in range(2)]
            masks += [f.select(both, m, "zeroinitializer", f"<{n} x i1>") for m in masks]
            places = []
            for _ in range(PLACES):
                places.append(form.load(f, source))
                source = f.gep(source, "%plane")
            sides = [results(*places[4 * i:4 * i + 4]) for i in range(4)]
            pairs = [results(*(s[j] for s in sides)) for j in range(2)]
            for i, line in enumerate((to, f.gep(to, "%row"))):
                for k in range(2):
                    value, mask = f.shuffle(form.element, n, pairs[0][i], pairs[1][i], [x + k * n // 2 for x in low]), masks[2 * i + k]
                    form.store(f, value, f.gep(line, k * wide), mask)
                    checked = form.multiply_add(f, value, nothing, seen)
                    seen = f(f"select <{n} x i1> {mask}, {form.vector} {checked}, {form.vector} {seen}")
            t.next = [f.gep(to, 2 * wide), f.gep(t.carried[1], wide), seen]
        o.next = [f.gep(o.carried[0], "%channel"), f.gep(o.carried[1], "%step"), t.carried[2]]
    lanes = f(f"fcmp uno {form.vector} {o.carried[2]}, {nothing}")
    bits = f(f"bitcast <{n} x i1> {lanes} to i{n}")
    some = f(f"icmp ne i{n} {bits}, 0")
    f.ret(f"i64 {f(f'zext i1 {some} to i64')}")
    f.end()


class _Kernel:
    """Writes winograd(...), with a kernel's arguments."""

    def __init__(self, f: Function, form: Form, attrs: ConvAttrs, has_bias: bool) -> None:
        self.f, self.form, self.attrs, self.has_bias = f, form, attrs, has_bias

    def write(self) -> None:
        f, form, item = self.f, self.form, self.form.item
        batch, channels, self.height, self.width, self.outputs, kh, kw, self.oh, self.ow, self.epilogue = (f.word("%sizes", i) for i in range(EPILOGUE + 1))
        self.channels = channels
        pointers = [f.load("ptr", f.gep("%operands", 40 * i)) for i in range(4 if self.has_bias else 3)]
        self.x, self.w, self.out = pointers[0], pointers[1], pointers[-1]
        self.xs, ws, self.outs = (operand_strides(f, i) for i in (0, 1, len(pointers) - 1))
        self.weight_row = ws[0]
        self.top, self.left = pad_before(f, self.attrs, kh, kw)

        self.parts = f.ceil_div(self.ow, COLUMNS)
        self.columns = f.ceil_div(self.ow, self.parts)
        self.image_lines = f.mul(f.ceil_div(self.oh, ROWS), self.parts)
        self.all_lines = f.mul(batch, self.image_lines)
        self.blocks = f.ceil_div(self.outputs, OUTPUTS)
        per_line = f.mul(f.ceil_div(self.columns, 2), ROWS // 2)
        lines = f.div(FAST_BYTES // (PLACES * item), f.mul(per_line, f.add(channels, OUTPUTS)))
        lines = f.min(f.max(lines, f.ceil_div(FEWEST, per_line)), self.all_lines)

        self.u_row = OUTPUTS * item
        # An odd number of cache lines, and planes one more apart: neighbours lie in different sets of the caches.
        self.step = f(f"or i64 {f.round_up(f.mul(f.add(f.mul(per_line, lines), form.lanes), item), 64)}, 64")
        self.u_plane, self.v_plane, self.m_plane = (f.add(f.mul(n, s), 64) for n, s in ((channels, self.u_row), (channels, self.step), (self.step, OUTPUTS)))
        starts: list[Value] = [0]
        for piece in (f.mul(channels, STEP_BYTES), (OUTPUTS + 16) * 8, (9 * CHUNK + form.lanes) * self.u_row,
                      *(f.mul(p, PLACES) for p in (self.u_plane, self.v_plane, self.m_plane)), f.add(f.mul(self.outputs, item), 64), 4 * form.target.vector_bytes):
            starts.append(f.add(starts[-1], f.round_up(piece, 64)))
        scratch = f.alloc("%ctx", starts[-1])
        steps, self.table, self.packed, self.u, self.v, self.m, self.bias, self.zeros = (f.gep(scratch, s) for s in starts[:-1])
        for i in range(4):
            form.store(f, "zeroinitializer", f.gep(self.zeros, i * form.target.vector_bytes))
        bias, apart = (pointers[2], f.word("%operands", 12)) if self.has_bias else (self.zeros, "0")
        f.call("void", "lists", ("ptr", self.bias), ("ptr", bias), ("i64", apart), ("i64", self.outputs), ("ptr", self.table), ("i64", OUTPUTS), ("i64", item))
        with f.loop(0, channels, carried=[("ptr", steps), ("i64", "0"), ("i64", "0")]) as c:
            words: tuple[Value, ...] = (*c.carried[1:], 0)
            for i, value in enumerate(words):
                f.set_word(c.carried[0], i, value)
            c.next = [f.gep(c.carried[0], STEP_BYTES), f.add(c.carried[1], self.u_row), f.add(c.carried[2], self.step)]

        self.d = f.words(DESC_WORDS)
        steps_at = f(f"ptrtoint ptr {steps} to i64")
        contents: dict[int, Value] = {STEPS: steps_at, FETCH: steps_at, DEPTH: channels, C_ROW: self.step, REST: form.lanes}
        for word in range(DESC_WORDS):
            f.set_word(self.d, word, contents.get(word, 0))
        self.code, self.held = f.words(1), f.words(1)   # held: the block of outputs whose weights U holds
        f.set_word(self.code, 0, DONE)
        f.set_word(self.held, 0, -1)
        input_bytes = f.mul(f.mul(f.mul(batch, channels), f.mul(self.height, self.width)), item)
        self.by_lines = ordered_by_lines(f, input_bytes, f.mul(f.mul(channels, 9 * item), self.outputs))
        with rectangles(f, self.blocks, self.all_lines, self.by_lines) as (low, high, start, stop):
            count = f.sub(stop, start)
            even = f.ceil_div(count, f.ceil_div(count, lines))
            with f.loop(start, stop, even) as block:
                self._block(low, high, block.index, f.min(f.add(block.index, even), stop))
        f.release("%ctx", scratch)
        f.ret(f"i32 {f.load('i32', self.code)}")
        f.end()

    def _line(self, line: Value) -> tuple[Value, ...]:
        """Image, first row, rows, first column, columns."""
        f = self.f
        image, at = f.div(line, self.image_lines), f.rem(line, self.image_lines)
        quad = f.div(at, self.parts)
        row, column = f.mul(quad, ROWS), f.mul(f.sub(at, f.mul(quad, self.parts)), self.columns)
        return image, row, f.min(f.sub(self.oh, row), ROWS), column, f.min(f.sub(self.ow, column), self.columns)

    def _block(self, low: Value, high: Value, start: Value, stop: Value) -> None:
        """Blocks of outputs low..high-1 at lines start..stop-1."""
        f, item = self.f, self.form.item
        with f.loop(start, stop, carried=[("i64", "0")]) as s:
            # The lines of one image follow one another, if they are whole.
            image, row, rows, column, columns = self._line(s.index)
            count = f.select(f.cmp("eq", self.parts, 1), f.min(f.sub(stop, s.index), f.sub(self.image_lines, f.rem(s.index, self.image_lines))), 1)
            s.step = count
            rows = f.min(f.add(rows, f.mul(f.sub(count, 1), ROWS)), f.sub(self.oh, row))
            across, down = f.ceil_div(columns, 2), f.ceil_div(rows, 2)
            f.call("void", "winograd_input", ("ptr", f.gep(self.v, f.mul(s.carried[0], item))), ("i64", self.v_plane), ("i64", self.step),
                   ("ptr", f.gep(self.x, f.mul(image, self.xs[0]))), ("i64", self.channels), ("i64", self.xs[1]), ("i64", self.xs[2]), ("i64", f.sub(row, self.top)),
                   ("i64", self.height), ("i64", f.sub(column, self.left)), ("i64", self.width), ("i64", across), ("i64", down), ("ptr", self.zeros))
            s.next = [f.add(s.carried[0], f.mul(across, down))]
        squares = s.carried[0]
        with f.loop(low, high) as o:
            first = f.mul(o.index, OUTPUTS)
            outputs = f.min(f.sub(self.outputs, first), OUTPUTS)
            bias = f.gep(self.bias, f.mul(first, item))
            with f.when(f.cmp("ne", o.index, f.word(self.held, 0))):
                f.set_word(self.held, 0, o.index)
                self._weights(first, outputs)
            self._products(outputs, squares, bias)
            self._results(o.index, first, outputs, start, stop)

    def _weights(self, first: Value, outputs: Value) -> None:
        f, item = self.f, self.form.item
        source = f.gep(self.w, f.mul(first, self.weight_row))
        with f.loop(0, self.channels, CHUNK, carried=[("ptr", source), ("ptr", self.u)]) as c:
            channels = f.min(f.sub(self.channels, c.index), CHUNK)
            f.call("void", "pack", ("ptr", self.packed), ("i64", self.u_row), ("ptr", c.carried[0]), ("i64", self.weight_row), ("i64", outputs), ("i64", f.mul(channels, 9)),
                   ("ptr", self.zeros))
            f.call("void", "winograd_weights", ("ptr", c.carried[1]), ("i64", self.u_plane), ("ptr", self.packed), ("i64", channels))
            c.next = [f.gep(c.carried[0], CHUNK * 9 * item), f.gep(c.carried[1], CHUNK * self.u_row)]

    def _products(self, outputs: Value, squares: Value, bias: Value) -> None:
        f, form = self.f, self.form
        vectors = f.ceil_div(squares, form.lanes)
        most = widest(f, form, outputs)
        with f.loop(0, PLACES, carried=[("ptr", p) for p in (self.u, self.v, self.m)]) as p:
            a, b, c = p.carried
            centre = f.cmp("eq", p.index, CENTRE)
            f.set_word(self.d, BIAS_ROW, f.select(centre, form.item, 0))
            with f.loop(0, vectors) as v:
                left = f.sub(vectors, v.index)
                v.step = width = f.ceil_div(left, f.ceil_div(left, most))
                at = f.mul(v.index, form.target.vector_bytes)
                f.call("void", "strip", ("ptr", a), ("ptr", self.table), ("ptr", f.gep(b, at)), ("ptr", f.gep(c, at)), ("ptr", f.select(centre, bias, self.zeros, "ptr")),
                       ("i64", outputs), ("i64", width), ("ptr", self.d))
            p.next = [f.gep(a, self.u_plane), f.gep(b, self.v_plane), f.gep(c, self.m_plane)]

    def _results(self, block: Value, first: Value, outputs: Value, start: Value, stop: Value) -> None:
        f, outs = self.f, self.outs
        with f.loop(start, stop, carried=[("ptr", self.m)]) as s:
            image, row, rows, column, columns = self._line(s.index)
            across = f.mul(f.ceil_div(columns, 2), self.form.item)
            to = f.gep(self.out, f.add(f.add(f.mul(image, outs[0]), f.mul(first, outs[1])), f.add(f.mul(row, outs[2]), f.mul(column, self.form.item))))
            with f.loop(0, rows, 2, carried=[("ptr", to), ("ptr", s.carried[0]), ("i64", "0")]) as r:
                found = f.call("i64", "winograd_output", ("ptr", r.carried[0]), ("i64", outs[1]), ("i64", outs[2]), ("ptr", r.carried[1]), ("i64", self.m_plane),
                               ("i64", self.step), ("i64", outputs), ("i64", f.sub(rows, r.index)), ("i64", columns))
                r.next = [f.gep(r.carried[0], f.mul(outs[2], 2)), f.gep(r.carried[1], across), f(f"or i64 {found}, {r.carried[2]}")]
            s.next = [r.carried[1]]

            def again() -> None:
                unit = f.select(self.by_lines, f.add(f.mul(s.index, self.blocks), block), f.add(f.mul(block, self.all_lines), s.index))
                self._add_code(f.call("i32", "direct", ("ptr", "%ctx"), ("ptr", "%operands"), ("ptr", "%sizes"), ("i64", unit), ("i64", f.add(unit, 1))))

            def settle() -> None:
                place = (self.epilogue, image, first, row, column, 1, outputs, rows, columns)
                self._add_code(f.call("i32", "settle", ("ptr", "%ctx"), *(("i64", v) for v in place)))

            f.choose(f.cmp("ne", r.carried[2], 0), again, settle)

    def _add_code(self, code: str) -> None:
        f = self.f
        f.store("i32", f(f"or i32 {code}, {f.load('i32', self.code)}"), self.code)
