"""Micro-kernels of convolution: tiles of sums held in registers, and what moves data for them.

    sum[i, j] = sum over k of A[i, k] * B[k, j]      for some rows i and some vectors of columns j, each sum in the order of k

An element of A is broadcast, a row of B is read as vectors. Both lie anywhere: A[i, k] at a + rows[i] + steps[k].a, B[k, 0] at b + steps[k].b, with tables of
byte offsets. So one set of tiles serves both ways to convolve: A the weights and B the pixels, or A the pixels and B the weights.
After the BLIS micro-kernel (Van Zee and van de Geijn 2015) and the indirect convolution algorithm (Dukhan 2019).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...errors import Unsupported
from ..abi import llvm_type
from ..target import Target
from .builder import DONE, Function, Module, Value

ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "float64": 8}

OUTPUTS, ROWS, COLUMNS = 32, 4, 256     # of a unit of work, at most

# Words of the descriptor that strip and tile get. STEPS: address of the table {a, b, ahead} of `DEPTH` steps. C_ROW: byte stride of C's rows. REST: lanes in use of
# the last vector, 1 to all (looked at if form.masked). RESUME: 1 if the sums go on from what C holds, 0 if they start with the bias. BIAS_ROW: bytes from a row's bias to the next one's. FETCH: address
# of what is needed next: step k of the n-th tile brings FETCH + n * FETCH_TILE + steps[k].ahead to L2, while n is less than FETCH_TILES.
STEPS, DEPTH, C_ROW, REST, RESUME, BIAS_ROW, FETCH, FETCH_TILE, FETCH_TILES = range(9)
DESC_WORDS = 9
STEP_BYTES = 24
EPILOGUE = 9    # the word of a convolution's sizes that leads to its epilogue


@dataclass(frozen=True)
class ConvAttrs:
    """stride (rows, columns), padding (top, bottom, left, right) or "same" (half of the kernel's reach, the odd one behind), dilation (rows, columns), groups.

    padding "given": top and left are two more words of the sizes, behind the epilogue."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] | Literal["same", "given"] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


def pad_before(f: Function, attrs: ConvAttrs, kh: Value, kw: Value) -> tuple[Value, Value]:
    """The padding above and at the left."""
    if attrs.padding == "same":
        top, left = (f.div(f.max(f.mul(f.sub(k, 1), d), 0), 2) for k, d in zip((kh, kw), attrs.dilation, strict=True))
        return top, left
    if attrs.padding == "given":
        return f.word("%sizes", EPILOGUE + 1), f.word("%sizes", EPILOGUE + 2)
    return attrs.padding[0], attrs.padding[2]


@dataclass(frozen=True)
class Form:
    """How a dtype is computed on a target."""

    dtype: str
    target: Target

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise Unsupported(f"no native convolution for {self.dtype}")

    @property
    def element(self) -> str:
        return llvm_type(self.dtype)

    @property
    def item(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.item)

    @property
    def vector(self) -> str:
        return self.wide(1)

    def wide(self, vectors: int) -> str:
        return f"<{self.lanes * vectors} x {self.element}>"

    def suffix(self, vectors: int) -> str:
        return f"v{self.lanes * vectors}" + {"float": "f32", "double": "f64"}.get(self.element, self.element)

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def tiles(self) -> dict[int, tuple[int, ...]]:
        """Rows of the tiles of each width in vectors, most first."""
        return {4: (6, 3), 3: (8,), 2: (8, 3), 1: (8,)} if self.target.registers >= 32 else {2: (6, 3), 1: (8,)}

    @property
    def vectors(self) -> int:
        return max(self.tiles)

    @property
    def masked(self) -> bool:
        """Whether parts of vectors can be loaded and stored."""
        return self.target.avx512

    # Emission

    def multiply_add(self, f: Function, a: str, b: str, c: str, vectors: int = 1) -> str:
        t = self.wide(vectors)
        if self.floating:
            return f.intrinsic(f"llvm.fmuladd.{self.suffix(vectors)}", t, (t, a), (t, b), (t, c))
        times, plus = ("and", "or") if self.dtype == "bool" else ("mul", "add")
        return f(f"{plus} {t} {f(f'{times} {t} {a}, {b}')}, {c}")

    @property
    def neutral(self) -> str:
        """What leaves every sum as it is."""
        return "-0.0" if self.floating else "0"

    @property
    def zero(self) -> str:
        return "0.0" if self.floating else "0"

    def add(self, f: Function, a: str, b: str, vectors: int = 1) -> str:
        """Of so many vectors, or of scalars (0)."""
        op = "fadd" if self.floating else "or" if self.dtype == "bool" else "add"
        return f(f"{op} {self.wide(vectors) if vectors else self.element} {a}, {b}")

    @property
    def iota(self) -> str:
        """0, 1, 2, ... as i32."""
        return self.iota_from(0)

    def iota_from(self, first: int, vectors: int = 1) -> str:
        return "<" + ", ".join(f"i32 {first + i}" for i in range(self.lanes * vectors)) + ">"

    def mask(self, f: Function, count: Value, vectors: int = 1) -> str:
        """Lanes 0..count-1."""
        n = self.lanes * vectors
        narrow = f(f"trunc i64 {count} to i32")
        return f(f"icmp ugt <{n} x i32> {f.splat('i32', n, narrow)}, {self.iota_from(0, vectors)}")

    def load(self, f: Function, pointer: str, mask: str = "", other: str = "zeroinitializer", vectors: int = 1) -> str:
        """other: what lanes without the mask get."""
        t, bits = self.wide(vectors), f"<{self.lanes * vectors} x i1>"
        if not mask:
            return f.load(t, pointer, self.item)
        name = f.module.declare(f"llvm.masked.load.{self.suffix(vectors)}.p0", t, "ptr", "i32 immarg", bits, t)
        return f(f"call {t} {name}(ptr {pointer}, i32 {self.item}, {bits} {mask}, {t} {other})")

    def store(self, f: Function, value: str, pointer: str, mask: str = "", vectors: int = 1) -> None:
        t, bits = self.wide(vectors), f"<{self.lanes * vectors} x i1>"
        if not mask:
            f.store(t, value, pointer, self.item)
            return
        name = f.module.declare(f"llvm.masked.store.{self.suffix(vectors)}.p0", "void", t, "ptr", "i32 immarg", bits)
        f.emit(f"call void {name}({t} {value}, ptr {pointer}, i32 {self.item}, {bits} {mask})")

    def splat_at(self, f: Function, pointer: str) -> str:
        """The element at a pointer in all lanes."""
        return f.splat(self.element, self.lanes, f.load(self.element, pointer, self.item))


class Columns:
    """Reads every `step`-th pixel of a row, for output columns that begin where the input column is `start`; what lies outside 0..width-1 is hidden.

    The pointers given are to the pixel at start + shift."""

    def __init__(self, f: Function, form: Form, step: int, width: Value, start: Value) -> None:
        self.f, self.form, self.step, self.width, self.start = f, form, step, width, start

    def mask(self, shift: Value) -> str:
        f, n = self.f, self.form.lanes
        base, limit = (f.splat("i32", n, f(f"trunc i64 {v} to i32")) for v in (f.add(self.start, shift), self.width))
        return f(f"icmp ult <{n} x i32> {f(f'add <{n} x i32> {base}, {self.form.iota}')}, {limit}")

    def pair(self, shift: Value) -> list[str]:
        """The masks of `load`, one a vector."""
        return [self.mask(self.f.add(shift, self.form.lanes * i)) for i in range(self.step)]

    def load(self, pointer: str, masks: list[str], other: str = "zeroinitializer") -> list[str]:
        return [self.form.load(self.f, self.f.gep(pointer, self.form.target.vector_bytes * i), m, other) for i, m in enumerate(masks)]

    def pick(self, loaded: list[str], phase: int = 0) -> str:
        """Pixels phase, phase + step, ... of what was loaded."""
        n, result = self.form.lanes, loaded[0]
        wanted = range(phase, n * self.step, self.step)
        for i in range(max(len(loaded) - 1, 1) if self.step > 1 else 0):
            # Lane k has what it wants once its vector has come by.
            here = n * (i + 1)
            order = [(k if i else place) if place < here else n + place - here if place < here + n else 0 for k, place in enumerate(wanted)]
            result = self.f.shuffle(self.form.element, n, result, loaded[i + 1], order)
        return result


# -- tiles

def define_strip(module: Module, form: Form) -> None:
    """Defines strip(a, rows, b, c, bias, count, vectors, descriptor): `count` rows of one panel, `vectors` vectors wide, in tiles.

    rows: table of the byte offsets of the rows of A, with as many entries more as a tile has rows, which must be readable (their sums are dropped)."""
    for v, heights in form.tiles.items():
        for r in heights:
            _define_tile(module, form, r, v)
    f = Function(module, "strip", [*(("ptr", n) for n in ("a", "rows", "b", "c", "bias")), ("i64", "count"), ("i64", "vectors"), ("ptr", "d")])
    c_row, bias_row = f.word("%d", C_ROW), f.word("%d", BIAS_ROW)
    shapes = [(r, v) for v, heights in form.tiles.items() for r in heights]
    height: dict[int, Value] = {}
    for place in range(2):      # the rows of the taller and the lower tile of this width
        height[place] = 0
        for v, heights in form.tiles.items():
            height[place] = f.select(f.cmp("eq", "%vectors", v), heights[min(place, len(heights) - 1)], height[place])
    fetch, fetch_tile, fetch_tiles = (f.word("%d", w) for w in (FETCH, FETCH_TILE, FETCH_TILES))
    with f.loop(0, "%count", carried=[("ptr", "%rows"), ("ptr", "%c"), ("ptr", "%bias"), ("i64", "0")]) as t:
        rows, c, bias, number = t.carried
        ahead = f(f"inttoptr i64 {f.add(fetch, f.mul(fetch_tile, f.select(f.cmp('slt', number, fetch_tiles), number, 0)))} to ptr")
        left = f.sub("%count", t.index)
        tall = f.select(f.cmp("sle", left, height[1]), height[1], height[0])
        used = f.min(tall, left)
        key = f.add(f.mul(tall, 8), "%vectors")
        after = f.fresh()
        cases = " ".join(f"i64 {8 * n + v}, label %k{n}_{v}" for n, v in shapes)
        f.emit(f"switch i64 {key}, label %{after} [ {cases} ]")
        for n, v in shapes:
            f.label(f"k{n}_{v}")
            f.call("void", f"tile{n}_{v}", ("ptr", "%a"), ("ptr", rows), ("ptr", "%b"), ("ptr", c), ("ptr", bias), ("i64", used), ("ptr", "%d"),
                   ("ptr", ahead))
            f.br(after)
        f.label(after)
        t.step = tall
        t.next = [f.gep(rows, f.mul(tall, 8)), f.gep(c, f.mul(tall, c_row)), f.gep(bias, f.mul(tall, bias_row)), str(f.add(number, 1))]
    f.ret()
    f.end()


def _define_tile(module: Module, form: Form, rows: int, vectors: int) -> None:
    """tile(a, rows, b, c, bias, used, d): the rows from `used` on repeat the last one.

    Neighbouring vectors are one value of the text, in powers of two, as others would be rounded up."""
    f = Function(module, f"tile{rows}_{vectors}", [*(("ptr", n) for n in ("a", "rows", "b", "c", "bias")), ("i64", "used"), ("ptr", "d"),
                                                     ("ptr", "ahead")])
    steps, depth, c_row, rest, resume, bias_row = (f.word("%d", w) for w in (STEPS, DEPTH, C_ROW, REST, RESUME, BIAS_ROW))
    table = f(f"inttoptr i64 {steps} to ptr")
    width = form.lanes * form.item
    parts = [(v, n) for v, n in {1: ((0, 1),), 2: ((0, 2),), 3: ((0, 2), (2, 1)), 4: ((0, 4),)}[vectors]]    # first vector, vectors
    masks = [form.mask(f, f.add(rest, (vectors - 1 - v) * form.lanes), n) if form.masked and v + n == vectors else "" for v, n in parts]
    last = f.sub("%used", 1)
    places: list[Value] = [0, *(f.min(i, last) for i in range(1, rows))]
    a = [f.gep("%a", f.word("%rows", i)) if i == 0 else f.gep("%a", f.load("i64", f.gep("%rows", f.mul(places[i], 8)))) for i in range(rows)]
    c = [f.gep("%c", f.mul(place, c_row)) for place in places]
    cells = [(i, p) for i in range(rows) for p in range(len(parts))]

    def splats(pointer: str) -> list[str]:
        one = f.load(form.element, pointer, form.item)
        return [f.splat(form.element, form.lanes * n, one) for _, n in parts]

    biases = [splats(f.gep("%bias", f.mul(place, bias_row))) for place in places]
    with f.loop(0, resume, carried=[(form.wide(parts[p][1]), biases[i][p]) for i, p in cells]) as start:
        start.next = [form.load(f, f.gep(c[i], parts[p][0] * width), masks[p], vectors=parts[p][1]) for i, p in cells]
    with f.loop(0, depth, carried=[("ptr", table), *((form.wide(parts[p][1]), s) for (_, p), s in zip(cells, start.carried, strict=True))]) as k:
        step, *sums = k.carried
        at, line = f.word(step, 0), f.gep("%b", f.word(step, 1))
        if vectors > 1:
            f.prefetch(f.gep("%ahead", f.word(step, 2)), 2)
        columns = [form.load(f, f.gep(line, v * width), mask, vectors=n) for (v, n), mask in zip(parts, masks, strict=True)]
        for i in range(rows):   # the order matters: nothing is scheduled afterwards
            for p, one in enumerate(splats(f.gep(a[i], at))):
                place = i * len(parts) + p
                sums[place] = form.multiply_add(f, one, columns[p], sums[place], parts[p][1])
        k.next = [f.gep(step, STEP_BYTES), *sums]
    for (i, p), value in zip(cells, k.carried[1:], strict=True):
        form.store(f, value, f.gep(c[i], parts[p][0] * width), masks[p], parts[p][1])
    f.ret()
    f.end()


def widest(f: Function, form: Form, rows: Value) -> Value:
    """Vectors of the widest tiles for so many rows."""
    if form.vectors < 4:
        return form.vectors
    return f.select(f.cmp("sle", f.round_up(rows, 8), f.mul(f.ceil_div(rows, 3), 3)), 3, 4)    # 8 x 3, or 6 x 4


# -- epilogues

def define_settle(module: Module) -> None:
    """Defines settle(ctx, epilogue, image, output, row, column, images, outputs, rows, columns): the epilogue, if there is one, on a block. The kernel's code."""
    names = ("image", "output", "row", "column", "images", "outputs", "rows", "columns")
    f = Function(module, "settle", [("ptr", "ctx"), ("i64", "epilogue"), *(("i64", n) for n in names)], "i32", glue=True)
    f.fail_if(f.cmp("eq", "%epilogue", 0), DONE)
    place = f.words(len(names))
    for i, name in enumerate(names):
        f.set_word(place, i, f"%{name}")
    f.ret(f"i32 {f.through_table('%ctx', 'finish', '%ctx', f('inttoptr i64 %epilogue to ptr'), place)}")
    f.end()


# -- tables

def define_tables(module: Module, form: Form, depth_block: int) -> None:
    """Defines small loops of the kernel, which is compiled in a hurry.

    ahead(steps, depth, weight_row, outputs): the third column of the steps: while the weights of a depth are in use, their rows of the next depth are fetched, a line a step
    lists(bias, from, apart, outputs, table, count, step): elements `apart` bytes apart; i * step for i < count, and the last of them 16 times more
    pixels(to, offset, rows, columns, down, right): offsets of a rectangle of pixels, and 16 zeros: the last tile may look at more of them"""
    f = Function(module, "ahead", [("ptr", "steps"), *(("i64", n) for n in ("depth", "weight_row", "outputs"))])
    with f.loop(0, "%depth", depth_block) as block:
        with f.loop(block.index, f.min(f.add(block.index, depth_block), "%depth"), carried=[("i64", "0"), ("i64", "0")]) as k:
            row, line = k.carried
            f.store("i64", f.add(f.mul(row, "%weight_row"), line), f.gep("%steps", f.add(f.mul(k.index, STEP_BYTES), 16)))
            last = f.cmp("eq", f.add(row, 1), "%outputs")
            k.next = [f.select(last, 0, f.add(row, 1)), f.select(last, f.add(line, 64), line)]
    f.ret()
    f.end()
    f = Function(module, "lists", [("ptr", "bias"), ("ptr", "from"), ("i64", "apart"), ("i64", "outputs"), ("ptr", "table"), ("i64", "count"), ("i64", "step")])
    with f.loop(0, "%outputs", carried=[("ptr", "%from")]) as o:
        f.store(form.element, f.load(form.element, o.carried[0], form.item), f.gep("%bias", f.mul(o.index, form.item)), form.item)
        o.next = [f.gep(o.carried[0], "%apart")]
    with f.loop(0, f.add("%count", 16)) as o:
        f.store("i64", f.mul(f.min(o.index, f.sub("%count", 1)), "%step"), f.gep("%table", f.mul(o.index, 8)))
    f.ret()
    f.end()
    f = Function(module, "pixels", [("ptr", "to"), *(("i64", n) for n in ("offset", "rows", "columns", "down", "right"))])
    with f.loop(0, "%rows", carried=[("i64", "%offset"), ("ptr", "%to")]) as r:
        with f.loop(0, "%columns", carried=[("i64", r.carried[0]), ("ptr", r.carried[1])]) as c:
            f.store("i64", c.carried[0], c.carried[1])
            c.next = [str(f.add(c.carried[0], "%right")), f.gep(c.carried[1], 8)]
        r.next = [str(f.add(r.carried[0], "%down")), c.carried[1]]
    with f.loop(0, 16) as i:
        f.store("i64", 0, f.gep(r.carried[1], f.mul(i.index, 8)))
    f.ret()
    f.end()


# -- streams

@dataclass(frozen=True)
class Run:
    """Some neighbouring elements: a vector, a part of one, or a single element."""

    f: Function
    form: Form
    single: bool = False
    mask: str = ""

    def load(self, pointer: str) -> str:
        return self.f.load(self.form.element, pointer, self.form.item) if self.single else self.form.load(self.f, pointer, self.mask)

    def store(self, value: str, pointer: str) -> None:
        if self.single:
            self.f.store(self.form.element, value, pointer, self.form.item)
        else:
            self.form.store(self.f, value, pointer, self.mask)

    def add(self, a: str, b: str) -> str:
        return self.form.add(self.f, a, b, int(not self.single))


def stream(f: Function, form: Form, count: Value, body: Callable[[Value, Run], None]) -> None:
    """Calls body(byte offset, run) for whole vectors, then for what is left of `count` neighbouring elements."""
    whole = f.mul(f.div(count, form.lanes), form.lanes)
    with f.loop(0, whole, form.lanes) as j:
        body(f.mul(j.index, form.item), Run(f, form))
    if form.masked:
        with f.when(f.cmp("slt", whole, count)):
            body(f.mul(whole, form.item), Run(f, form, mask=form.mask(f, f.sub(count, whole))))
    else:
        with f.loop(whole, count) as j:
            body(f.mul(j.index, form.item), Run(f, form, single=True))


def define_square(module: Module, form: Form) -> None:
    """Defines square(to, to at, from, from at, loaded, stored, bias): n vectors of n lanes plus a vector of bias, transposed.

    from, to: tables of n pointers, to which the byte offsets `at` are added; the last one is stored first. loaded, stored: lanes in use, if form.masked."""
    f = Function(module, "square", [(t, n) for t, n in (("ptr", "to"), ("i64", "to_at"), ("ptr", "from"), ("i64", "from_at"), ("i64", "loaded"), ("i64", "stored"), ("ptr", "bias"))])
    bias = form.load(f, "%bias")
    loaded, stored = (form.mask(f, c) if form.masked else "" for c in ("%loaded", "%stored"))
    rows = [form.add(f, form.load(f, f.gep(f.load("ptr", f.gep("%from", 8 * i)), "%from_at"), loaded), bias) for i in range(form.lanes)]
    for i, value in reversed(list(enumerate(transpose(f, form, rows)))):
        form.store(f, value, f.gep(f.load("ptr", f.gep("%to", 8 * i)), "%to_at"), stored)
    f.ret()
    f.end()


def _pointers(f: Function, form: Form, to: str, base: Value, step: Value, last: Value | None = None) -> None:
    """Fills a table: base + i * step, at most of i = last."""
    with f.loop(0, form.lanes) as i:
        at = i.index if last is None else f.min(i.index, last)
        f.store("ptr", f.gep(str(base), f.mul(at, step)), f.gep(to, f.mul(i.index, 8)))


def define_turn(module: Module, form: Form) -> None:
    """Defines turn(to, to row, from, from row, rows, columns, bias): to[j, i] = from[i, j] + bias[i's vector of columns].

    from has `rows` rows of `columns` elements, to has `columns` rows. bias: `columns` values, one for each row of `to`. Whole vectors of `from` and `bias`
    are read, and whole blocks of rows where parts of vectors can be stored."""
    f = Function(module, "turn", [("ptr", "to"), ("i64", "to_row"), ("ptr", "from"), ("i64", "from_row"), ("i64", "rows"), ("i64", "columns"), ("ptr", "bias")])
    n, item = form.lanes, form.item
    whole = "%rows" if form.masked else f.mul(f.div("%rows", n), n)
    if item >= 4:
        targets, sources = f.words(n), f.words(n)
        with f.loop(0, "%columns", n) as j:
            at = f.mul(j.index, item)
            # What lies past the columns is written over by the last one.
            _pointers(f, form, targets, f.gep("%to", f.mul(j.index, "%to_row")), "%to_row", f.sub(f.sub("%columns", j.index), 1))
            _pointers(f, form, sources, f.gep("%from", at), "%from_row")
            with f.loop(0, whole, n) as i:
                f.call("void", "square", ("ptr", targets), ("i64", f.mul(i.index, item)), ("ptr", sources), ("i64", f.mul(i.index, "%from_row")), ("i64", n),
                       ("i64", f.sub("%rows", i.index)), ("ptr", f.gep("%bias", at)))
    else:
        whole = 0
    if not (form.masked and item >= 4):
        with f.loop(whole, "%rows") as i, f.loop(0, "%columns") as j:
            at = f.mul(j.index, item)
            value = f.load(form.element, f.gep(f.gep("%from", f.mul(i.index, "%from_row")), at), item)
            value = form.add(f, value, f.load(form.element, f.gep("%bias", at), item), vectors=0)
            f.store(form.element, value, f.gep(f.gep("%to", f.mul(j.index, "%to_row")), f.mul(i.index, item)), item)
    f.ret()
    f.end()


def define_pack(module: Module, form: Form) -> None:
    """Defines pack(to, to row, from, from row, rows, depth, zeros): to[k, i] = from[i, k]; rows of `to` are whole vectors, what lies past `rows` is any number.

    Rows of `to` past `depth` are written too, up to a whole vector of them. zeros: a vector of them."""
    names = ("to_row", "from", "from_row", "rows", "depth", "zeros")
    f = Function(module, "pack", [("ptr", "to"), *(("ptr" if n in ("from", "zeros") else "i64", n) for n in names)])
    n, item = form.lanes, form.item
    whole: Value = "%depth" if form.masked else f.mul(f.div("%depth", n), n)
    if item >= 4:
        targets, sources = f.words(n), f.words(n)
        with f.loop(0, "%rows", n) as j:
            _pointers(f, form, sources, f.gep("%from", f.mul(j.index, "%from_row")), "%from_row", f.sub(f.sub("%rows", j.index), 1))
            _pointers(f, form, targets, f.gep("%to", f.mul(j.index, item)), "%to_row")
            with f.loop(0, whole, n) as k:
                f.call("void", "square", ("ptr", targets), ("i64", f.mul(k.index, "%to_row")), ("ptr", sources), ("i64", f.mul(k.index, item)),
                       ("i64", f.sub("%depth", k.index)), ("i64", n), ("ptr", "%zeros"))
    else:
        whole = 0
    if not (form.masked and item >= 4):
        with f.loop(0, "%rows") as i, f.loop(whole, "%depth") as k:
            value = f.load(form.element, f.gep(f.gep("%from", f.mul(i.index, "%from_row")), f.mul(k.index, item)), item)
            f.store(form.element, value, f.gep(f.gep("%to", f.mul(k.index, "%to_row")), f.mul(i.index, item)), item)
    f.ret()
    f.end()


def transpose(f: Function, form: Form, v: list[str]) -> list[str]:
    """Transposes n vectors of n lanes: at distance s = 1, 2, ... the two off-diagonal s x s blocks change places."""
    n = form.lanes
    s = 1
    while s < len(v):
        low = [n + i - s if i & s else i for i in range(n)]
        high = [n + i if i & s else i + s for i in range(n)]
        v = [f.shuffle(form.element, n, v[i & ~s], v[i | s], high if i & s else low) for i in range(len(v))]
        s *= 2
    return v
