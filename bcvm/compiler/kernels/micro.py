"""Micro-kernels of the matrix product: tiles of C held in registers.

C[i, j] = sum over k of A[i, k] * B[k, j] for a tile of at most ROWS rows and a panel of columns: `form.vectors` vectors, or one. An element of A is broadcast,
a row of B is read as one long vector (unit column stride), which the code generator cuts into registers. All strides are in bytes. After the BLIS
micro-kernel (Van Zee and van de Geijn 2015).

With AVX-512 a panel may end anywhere: C is loaded and stored masked, and so are the last rows of B that would be read beyond its end (`edge`); all others are read as
whole vectors, since a masked load is an instruction more for the units that multiply. Otherwise tiles know whole vectors only: the callers round B and C up to them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ...errors import Unsupported
from ..abi import llvm_type
from ..target import Target
from .builder import Function, Module, Value

ROWS = 6    # of a tile
NARROW_ROWS = (1, 3, ROWS)  # of tiles of a panel of one vector
PREFETCHING = 4     # tiles of so many rows ask for memory ahead; those of fewer wait for it anyway
AHEAD_ROWS = 8      # of B, that are asked for before they are needed
LINE = 64           # bytes of a line of the caches

# Words of the descriptor of block and tile. INIT: what sums start from, one row of INIT_ROW, or 0 for C itself. AHEAD: how far behind a row of B memory is
# asked for. MASK: a bit for each column of the panel that is used, in as many words as it takes.
A_ROW, A_COLUMN, B_ROW, C_ROW, DEPTH, INIT, INIT_ROW, AHEAD, MASK = range(9)

ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "float64": 8}
HALVES = ("float16", "bfloat16")
_SHORT = {"float": "f32", "double": "f64", "half": "f16"}


@dataclass(frozen=True)
class Form:
    """How a dtype is computed on a target. Halves are computed as float32: `read` and `write` convert, `load` and `store` do not."""

    dtype: str
    target: Target

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE and not self.half:
            raise Unsupported(f"no native matrix kernels for {self.dtype}")
        if self.dtype == "float16" and self.target.vector_bytes < 32:
            raise Unsupported("no native matrix kernels for float16 on a CPU without F16C")

    @cached_property
    def half(self) -> bool:
        return self.dtype in HALVES

    @cached_property
    def held(self) -> str:
        """The dtype that is computed with."""
        return "float32" if self.half else self.dtype

    @cached_property
    def element(self) -> str:
        return llvm_type(self.held)

    @cached_property
    def item(self) -> int:
        """Bytes of an element in scratch and in packed panels."""
        return ITEMSIZE[self.held]

    @cached_property
    def kept(self) -> int:
        """Bytes of an element of the operands."""
        return 2 if self.half else self.item

    @cached_property
    def lanes(self) -> int:
        return self.target.lanes(self.item)

    @cached_property
    def vector(self) -> str:
        return self.wide(1)

    def wide(self, vectors: int) -> str:
        return f"<{self.lanes * vectors} x {self.element}>"

    @cached_property
    def floating(self) -> bool:
        return self.held.startswith("float")

    @cached_property
    def vectors(self) -> int:
        """Of a panel."""
        return 4 if self.target.registers >= 32 else 2

    @cached_property
    def panel(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @cached_property
    def masked(self) -> bool:
        """Whether parts of vectors can be loaded and stored."""
        return self.target.avx512

    @cached_property
    def mask_words(self) -> int:
        return -(-self.panel // 64)

    # Arithmetic

    def _suffix(self, lanes: int, element: str = "") -> str:
        element = element or self.element
        return f"v{lanes}{_SHORT.get(element, element)}"

    def multiply_add(self, f: Function, a: str, b: str, c: str, vectors: int = 1) -> str:
        """a * b + c of so many vectors, or of scalars (0)."""
        t = self.wide(vectors) if vectors else self.element
        if self.floating:
            suffix = self._suffix(self.lanes * vectors) if vectors else "f32" if self.element == "float" else "f64"
            return f.intrinsic(f"llvm.fmuladd.{suffix}", t, (t, a), (t, b), (t, c))
        times, plus = ("and", "or") if self.dtype == "bool" else ("mul", "add")
        return f(f"{plus} {t} {f(f'{times} {t} {a}, {b}')}, {c}")

    def add(self, f: Function, a: str, b: str) -> str:
        op = "fadd" if self.floating else "or" if self.dtype == "bool" else "add"
        return f(f"{op} {self.vector} {a}, {b}")

    def mask(self, f: Function, count: Value, vectors: int = 1) -> str:
        """Lanes 0..count-1."""
        n = self.lanes * vectors
        iota = ", ".join(f"i32 {i}" for i in range(n))
        narrow = f(f"trunc i64 {count} to i32")
        return f(f"icmp ugt <{n} x i32> {f.splat('i32', n, narrow)}, <{iota}>")

    # Memory

    def _load(self, f: Function, element: str, lanes: int, size: int, pointer: str, mask: str) -> str:
        t = f"<{lanes} x {element}>"
        if not mask:
            return f.load(t, pointer, size)
        name = f.module.declare(f"llvm.masked.load.{self._suffix(lanes, element)}.p0", t, "ptr", "i32 immarg", f"<{lanes} x i1>", t)
        return f(f"call {t} {name}(ptr {pointer}, i32 {size}, <{lanes} x i1> {mask}, {t} zeroinitializer)")

    def _store(self, f: Function, value: str, element: str, lanes: int, size: int, pointer: str, mask: str) -> None:
        t = f"<{lanes} x {element}>"
        if not mask:
            f.store(t, value, pointer, size)
            return
        name = f.module.declare(f"llvm.masked.store.{self._suffix(lanes, element)}.p0", "void", t, "ptr", "i32 immarg", f"<{lanes} x i1>")
        f.emit(f"call void {name}({t} {value}, ptr {pointer}, i32 {size}, <{lanes} x i1> {mask})")

    def load(self, f: Function, pointer: str, mask: str = "", vectors: int = 1) -> str:
        return self._load(f, self.element, self.lanes * vectors, self.item, pointer, mask)

    def store(self, f: Function, value: str, pointer: str, mask: str = "", vectors: int = 1) -> None:
        self._store(f, value, self.element, self.lanes * vectors, self.item, pointer, mask)

    def read(self, f: Function, pointer: str, mask: str = "", vectors: int = 1) -> str:
        """Vectors of an operand."""
        if not self.half:
            return self.load(f, pointer, mask, vectors)
        n = self.lanes * vectors
        raw = self._load(f, "half" if self.dtype == "float16" else "i16", n, 2, pointer, mask)
        return self._widen(f, raw, n)

    def read_one(self, f: Function, pointer: str) -> str:
        if not self.half:
            return f.load(self.element, pointer, self.item)
        return self._widen(f, f.load("half" if self.dtype == "float16" else "i16", pointer, 2), 0)

    def write(self, f: Function, value: str, pointer: str, mask: str = "") -> None:
        """A vector of the result."""
        if not self.half:
            self.store(f, value, pointer, mask)
            return
        raw = self._narrow(f, value, self.lanes)
        self._store(f, raw, "half" if self.dtype == "float16" else "i16", self.lanes, 2, pointer, mask)

    def write_one(self, f: Function, value: str, pointer: str) -> None:
        if not self.half:
            f.store(self.element, value, pointer, self.item)
            return
        f.store("half" if self.dtype == "float16" else "i16", self._narrow(f, value, 0), pointer, 2)

    def _widen(self, f: Function, raw: str, lanes: int) -> str:
        """A half, or a vector of them, as float."""
        half, i16, i32, single = (_vector(lanes, e) for e in ("half", "i16", "i32", "float"))
        if self.dtype == "float16":
            return f(f"fpext {half} {raw} to {single}")
        bits = f(f"zext {i16} {raw} to {i32}")
        bits = f(f"shl {i32} {bits}, {_constant(lanes, 16)}")
        return f(f"bitcast {i32} {bits} to {single}")

    def _narrow(self, f: Function, value: str, lanes: int) -> str:
        """Rounds half to even; a NaN stays one."""
        half, i16, i32, single, i1 = (_vector(lanes, e) for e in ("half", "i16", "i32", "float", "i1"))
        if self.dtype == "float16":
            return f(f"fptrunc {single} {value} to {half}")
        bits = f(f"bitcast {single} {value} to {i32}")
        odd = f(f"and {i32} {f(f'lshr {i32} {bits}, {_constant(lanes, 16)}')}, {_constant(lanes, 1)}")
        rounded = f(f"add {i32} {f(f'add {i32} {bits}, {_constant(lanes, 0x7FFF)}')}, {odd}")
        nan = f(f"fcmp uno {single} {value}, {value}")
        rounded = f(f"select {i1} {nan}, {i32} {_constant(lanes, 0x7FC00000)}, {i32} {rounded}")
        return f(f"trunc {i32} {f(f'lshr {i32} {rounded}, {_constant(lanes, 16)}')} to {i16}")


def _vector(lanes: int, element: str) -> str:
    return f"<{lanes} x {element}>" if lanes else element


def _constant(lanes: int, number: int) -> str:
    return f"<{', '.join([f'i32 {number}'] * lanes)}>" if lanes else str(number)


# Tiles

def define_tiles(module: Module, form: Form) -> None:
    """Defines block(a, b, c, descriptor, rows, full): all rows of one panel, in tiles. full: 1, or 0 for a panel of one vector.

    The rows of a full panel are split evenly; narrow panels are too rare to have tiles of each number of rows.
    With masks also edge(the same), which reads B masked, and adds to C."""
    shapes = [*((r, form.vectors) for r in range(1, ROWS + 1)), *((r, 1) for r in NARROW_ROWS)]
    for r, v in shapes:
        _define_tile(module, form, f"tile{r}_{v}", r, v)
    if form.masked:
        _define_edge(module, form)
    tile = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "d")]
    f = Function(module, "tile", [*tile, ("i64", "rows"), ("i64", "full")])
    key = f.add(f.mul("%rows", 2), "%full")
    f.emit(f"switch i64 {key}, label %none [ {' '.join(f'i64 {r * 2 + (v > 1)}, label %k{r}_{v}' for r, v in shapes)} ]")
    for r, v in shapes:
        f.label(f"k{r}_{v}")
        f.emit(f"tail call void @tile{r}_{v}(ptr %a, ptr %b, ptr %c, ptr %d)")
        f.ret()
    f.label("none")
    f.ret()
    f.end()

    f = Function(module, "block", [*tile, ("i64", "rows"), ("i64", "full")])
    a_row, c_row = f.word("%d", A_ROW), f.word("%d", C_ROW)
    tiles = f.ceil_div("%rows", ROWS)
    small = f.div("%rows", tiles)
    larger = f.sub("%rows", f.mul(small, tiles))
    border = f.mul(larger, f.add(small, 1))     # the rows in front of it are in tiles of one row more
    full = f.cmp("ne", "%full", 0)
    with f.loop(0, "%rows", carried=[("ptr", "%a"), ("ptr", "%c")]) as i:
        even = f.add(small, f(f"zext i1 {f.cmp('slt', i.index, border)} to i64"))
        rows: Value = 1
        for r in NARROW_ROWS[1:]:
            rows = f.select(f.cmp("sge", f.sub("%rows", i.index), r), r, rows)
        i.step = rows = f.select(full, even, rows)
        f.call("void", "tile", ("ptr", i.carried[0]), ("ptr", "%b"), ("ptr", i.carried[1]), ("ptr", "%d"), ("i64", rows), ("i64", "%full"))
        i.next = [f.gep(i.carried[0], f.mul(rows, a_row)), f.gep(i.carried[1], f.mul(rows, c_row))]
    f.ret()
    f.end()


def _define_edge(module: Module, form: Form) -> None:
    for v in (form.vectors, 1):
        _define_tile(module, form, f"edge_{v}", 1, v, edge=True)
    f = Function(module, "edge", [*(("ptr", n) for n in "abcd"), ("i64", "rows"), ("i64", "full")])
    full = f.cmp("ne", "%full", 0)
    with f.loop(0, "%rows", carried=[("ptr", "%a"), ("ptr", "%c")]) as i:
        a, c = i.carried
        arguments = [("ptr", a), ("ptr", "%b"), ("ptr", c), ("ptr", "%d")]
        f.choose(full, lambda: f.call("void", f"edge_{form.vectors}", *arguments), lambda: f.call("void", "edge_1", *arguments))
        i.next = [f.gep(a, f.word("%d", A_ROW)), f.gep(c, f.word("%d", C_ROW))]
    f.ret()
    f.end()


def whole_rows(f: Function, form: Form, depth: Value, left: Value, row: Value, used: Value, width: Value) -> Value:
    """How many of the next `depth` rows of B can be read `width` columns wide, where `left` rows follow in all, `row` bytes apart, of which `used` columns are there."""
    if not form.masked:
        return depth
    item = form.item
    beyond = f.mul(f.sub(width, used), item)    # bytes that are read behind a row; those of the last row are not there
    rows = f.sub(left, f.ceil_div(beyond, f.max(row, 1)))
    return f.select(f.cmp("eq", beyond, 0), depth, f.select(f.cmp("sgt", row, 0), f.max(f.min(depth, rows), 0), 0))


def _define_tile(module: Module, form: Form, name: str, rows: int, vectors: int, edge: bool = False) -> None:
    f = Function(module, name, [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "d")])
    a_row, a_column, b_row, c_row, depth = (f.word("%d", w) for w in (A_ROW, A_COLUMN, B_ROW, C_ROW, DEPTH))
    offsets = [f.mul(a_row, i) for i in range(rows)]
    t = form.wide(vectors)
    mask = f.load(f"<{form.lanes * vectors} x i1>", f.gep("%d", 8 * MASK)) if form.masked else ""
    given = f.load("ptr", f.gep("%d", 8 * INIT))
    own = f(f"icmp eq ptr {given}, null")
    first, step = f.select(own, "%c", given, "ptr"), f.select(own, c_row, f.word("%d", INIT_ROW))
    sums = [form.load(f, f.gep(first, f.mul(step, i)), mask, vectors) for i in range(rows)]
    ahead = f.gep("%b", f.word("%d", AHEAD)) if rows >= PREFETCHING and vectors > 1 else ""
    with f.loop(0, depth, carried=[("ptr", "%a"), ("ptr", "%b"), *((t, s) for s in sums), *([("ptr", ahead)] if ahead else [])]) as k:
        a, b, *sums = k.carried[:2 + rows]
        columns = form.load(f, b, mask if edge else "", vectors)
        for i in range(rows):
            one = f.splat(form.element, form.lanes * vectors, f.load(form.element, f.gep(a, offsets[i]), form.item))
            sums[i] = form.multiply_add(f, one, columns, sums[i], vectors)
        k.next = [f.gep(a, a_column), f.gep(b, b_row), *sums]
        if ahead:
            ahead = k.carried[-1]
            for at in range(0, vectors * form.lanes * form.item, LINE):
                f.prefetch(f.gep(ahead, at))
            k.next.append(f.gep(ahead, b_row))
    for i in range(rows):
        form.store(f, k.carried[2 + i], f.gep("%c", f.mul(c_row, i)), mask, vectors)
    f.ret()
    f.end()


def set_mask(f: Function, form: Form, descriptor: str, columns: Value) -> None:
    """The panel's first `columns` columns, at least 1, are used."""
    if not form.masked:
        return
    for w in range(form.mask_words):
        count = f.max(f.min(f.sub(columns, 64 * w), 64), 0)
        bits = f.arith("lshr", -1, f.arith("and", f.sub(64, count), 63))
        f.set_word(descriptor, MASK + w, f.select(f.cmp("eq", count, 0), 0, bits))


@dataclass(frozen=True)
class Run:
    """Some neighbouring elements: vectors, a part of them, or a single element."""

    f: Function
    form: Form
    vectors: int = 0
    mask: str = ""

    @property
    def single(self) -> bool:
        return not self.vectors

    @property
    def type(self) -> str:
        return self.form.wide(self.vectors) if self.vectors else self.form.element

    def read(self, pointer: str) -> str:
        return self.form.read(self.f, pointer, self.mask, self.vectors) if self.vectors else self.form.read_one(self.f, pointer)

    def load(self, pointer: str) -> str:
        return self.form.load(self.f, pointer, self.mask, self.vectors) if self.vectors else self.f.load(self.form.element, pointer, self.form.item)

    def store(self, value: str, pointer: str) -> None:
        if self.vectors:
            self.form.store(self.f, value, pointer, self.mask, self.vectors)
        else:
            self.f.store(self.form.element, value, pointer, self.form.item)

    def write(self, value: str, pointer: str) -> None:
        """Of one vector or element."""
        if self.vectors:
            self.form.write(self.f, value, pointer, self.mask)
        else:
            self.form.write_one(self.f, value, pointer)

    def multiply_add(self, a: str, b: str, c: str) -> str:
        return self.form.multiply_add(self.f, a, b, c, self.vectors)

    def zero_if(self, condition: str, value: str) -> str:
        zero = "zeroinitializer" if self.vectors else "0.0" if self.form.floating else "0"
        return self.f.select(condition, zero, value, self.type)


def stream(f: Function, form: Form, count: Value, body: Callable[[Value, Run], None], vectors: int = 1) -> None:
    """Calls body(first element, run) for all of `count` neighbouring elements, so many vectors at a time."""
    step = form.lanes * vectors
    if form.masked:
        with f.loop(0, count, step) as j:
            body(j.index, Run(f, form, vectors, form.mask(f, f.sub(count, j.index), vectors)))
        return
    whole = f.mul(f.div(count, step), step)
    with f.loop(0, whole, step) as j:
        body(j.index, Run(f, form, vectors))
    with f.loop(whole, count) as j:
        body(j.index, Run(f, form))
