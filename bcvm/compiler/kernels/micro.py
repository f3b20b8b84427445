"""Micro-kernels shared by matrix product and convolution: tiles of C held in registers, and copies that pack B.

C[i, j] = sum over k of A[i, k] * B[k, j] for a tile of at most `rows` rows and `vectors` vectors of columns. An element of A is broadcast, a row of B
is read as vectors (unit column stride). All strides are in bytes. After the BLIS micro-kernel (Van Zee and van de Geijn 2015).

With AVX-512 the last vector is masked, which costs nothing. Otherwise tiles know whole vectors only: the callers round B and C up to them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import Unsupported
from ..abi import llvm_type
from ..target import Target
from .builder import Function, Module, Value

# Words of the descriptor that block and tile get. REST: lanes in use of the last vector, 1 to all (looked at if form.masked).
# B_ROW: byte stride of B's rows, or, for kernels with `indirect`, the address of K byte offsets of B's rows. The last three: see set_rows.
A_ROW, A_COLUMN, B_ROW, C_ROW, DEPTH, REST, TILES, LARGER, SMALL = range(9)
DESC_WORDS = 9

ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Form:
    """How a dtype is computed on a target. wide: for few rows, the width in vectors that keeps enough sums in flight and reads long runs of B."""

    dtype: str
    target: Target

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise Unsupported(f"no native matrix kernels for {self.dtype}")

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
        return f"<{self.lanes} x {self.element}>"

    @property
    def suffix(self) -> str:
        return f"v{self.lanes}" + {"float": "f32", "double": "f64"}.get(self.element, self.element)

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def rows(self) -> int:
        return 6

    @property
    def vectors(self) -> int:
        return 4 if self.target.registers >= 32 else 2

    @property
    def wide(self) -> dict[int, int]:
        return {1: 16, 2: 8} if self.target.registers >= 32 else {1: 8, 2: 4}

    @property
    def masked(self) -> bool:
        """Whether parts of vectors can be loaded and stored."""
        return self.target.avx512

    # Emission

    def multiply_add(self, f: Function, a: str, b: str, c: str, vector: bool = True) -> str:
        t = self.vector if vector else self.element
        if self.floating:
            suffix = self.suffix if vector else "f32" if self.element == "float" else "f64"
            return f.intrinsic(f"llvm.fmuladd.{suffix}", t, (t, a), (t, b), (t, c))
        times, plus = ("and", "or") if self.dtype == "bool" else ("mul", "add")
        return f(f"{plus} {t} {f(f'{times} {t} {a}, {b}')}, {c}")

    @property
    def zero(self) -> str:
        return "0.0" if self.floating else "0"

    def add(self, f: Function, a: str, b: str, vector: bool = True) -> str:
        op = "fadd" if self.floating else "or" if self.dtype == "bool" else "add"
        return f(f"{op} {self.vector if vector else self.element} {a}, {b}")

    def mask(self, f: Function, count: Value) -> str:
        """Lanes 0..count-1."""
        iota = ", ".join(f"i32 {i}" for i in range(self.lanes))
        narrow = f(f"trunc i64 {count} to i32")
        return f(f"icmp ugt <{self.lanes} x i32> {f.splat('i32', self.lanes, narrow)}, <{iota}>")

    def load(self, f: Function, pointer: str, mask: str = "") -> str:
        if not mask:
            return f.load(self.vector, pointer, self.item)
        name = f.module.declare(f"llvm.masked.load.{self.suffix}.p0", self.vector, "ptr", "i32 immarg", f"<{self.lanes} x i1>", self.vector)
        return f(f"call {self.vector} {name}(ptr {pointer}, i32 {self.item}, <{self.lanes} x i1> {mask}, {self.vector} zeroinitializer)")

    def store(self, f: Function, value: str, pointer: str, mask: str = "") -> None:
        if not mask:
            f.store(self.vector, value, pointer, self.item)
            return
        name = f.module.declare(f"llvm.masked.store.{self.suffix}.p0", "void", self.vector, "ptr", "i32 immarg", f"<{self.lanes} x i1>")
        f.emit(f"call void {name}({self.vector} {value}, ptr {pointer}, i32 {self.item}, <{self.lanes} x i1> {mask})")


def define_tiles(module: Module, form: Form, indirect: bool = False) -> None:
    """Defines block(a, b, c, descriptor, rows, vectors): all rows of one panel of `vectors` vectors, split evenly into tiles.

    The widths that may be asked for: see panel_width."""
    shapes = [(r, v) for r in range(1, form.rows + 1) for v in (1, 2, 4) if v <= form.vectors] + [(r, v) for r, v in form.wide.items() if v > form.vectors]
    for r, v in shapes:
        _define_tile(module, form, r, v, indirect)
    f = Function(module, "tile", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "d"), ("i64", "rows"), ("i64", "vectors")])
    key = f.add(f.mul("%rows", 32), "%vectors")
    cases = " ".join(f"i64 {r * 32 + v}, label %k{r}_{v}" for r, v in shapes)
    f.emit(f"switch i64 {key}, label %none [ {cases} ]")
    for r, v in shapes:
        f.label(f"k{r}_{v}")
        f.emit(f"tail call void @tile{r}_{v}(ptr %a, ptr %b, ptr %c, ptr %d)")
        f.ret()
    f.label("none")
    f.ret()
    f.end()
    _define_block(module, form)


def _define_block(module: Module, form: Form) -> None:
    f = Function(module, "block", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "d"), ("i64", "vectors")])
    tiles, larger, small = (f.word("%d", w) for w in (TILES, LARGER, SMALL))
    a_row, c_row = f.word("%d", A_ROW), f.word("%d", C_ROW)
    with f.loop(0, tiles, carried=[("ptr", "%a"), ("ptr", "%c")]) as t:
        rows = f.add(small, f(f"zext i1 {f.cmp('slt', t.index, larger)} to i64"))
        f.call("void", "tile", ("ptr", t.carried[0]), ("ptr", "%b"), ("ptr", t.carried[1]), ("ptr", "%d"), ("i64", rows), ("i64", "%vectors"))
        t.next = [f.gep(t.carried[0], f.mul(rows, a_row)), f.gep(t.carried[1], f.mul(rows, c_row))]
    f.ret()
    f.end()


def set_rows(f: Function, form: Form, descriptor: str, rows: Value) -> None:
    """Splits rows > 0 evenly into tiles: `LARGER` tiles of SMALL + 1 rows come first."""
    tiles = f.ceil_div(rows, form.rows)
    small = f.div(rows, tiles)
    f.set_word(descriptor, TILES, tiles)
    f.set_word(descriptor, SMALL, small)
    f.set_word(descriptor, LARGER, f.sub(rows, f.mul(small, tiles)))


def panel_width(f: Function, form: Form, vectors: Value, wide: Value) -> Value:
    """Vectors of the next panel where `vectors` are left: `wide` while they last, then a power of two up to form.vectors."""
    width: Value = 1
    for v in (2, 4):
        if v <= form.vectors:
            width = f.select(f.cmp("sge", vectors, v), v, width)
    return f.select(f.cmp("sge", vectors, wide), wide, width)


def wide_for(f: Function, form: Form, rows: Value) -> str:
    """The `wide` of panel_width for this number of rows in all."""
    result: Value = 1 << 40
    for r, v in form.wide.items():
        if v > form.vectors:
            result = f.select(f.cmp("eq", rows, r), v, result)
    return str(result)


def _define_tile(module: Module, form: Form, rows: int, vectors: int, indirect: bool) -> None:
    f = Function(module, f"tile{rows}_{vectors}", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "d")])
    a_row, a_column, b_row, c_row, depth, rest = (f.word("%d", w) for w in (A_ROW, A_COLUMN, B_ROW, C_ROW, DEPTH, REST))
    a_offsets = [f.mul(a_row, i) for i in range(rows)]
    offsets = f(f"inttoptr i64 {b_row} to ptr") if indirect else ""
    masks = [""] * (vectors - 1) + [form.mask(f, rest) if form.masked else ""]
    with f.loop(0, depth, carried=[("ptr", "%a"), ("ptr", "%b"), *((form.vector, "zeroinitializer"),) * (rows * vectors)]) as k:
        a, b, *sums = k.carried
        line = f.gep("%b", f.load("i64", f.gep(offsets, f.mul(k.index, 8)))) if indirect else b
        columns = [form.load(f, f.gep(line, v * form.lanes * form.item), masks[v]) for v in range(vectors)]
        for i in range(rows):
            one = f.splat(form.element, form.lanes, f.load(form.element, f.gep(a, a_offsets[i]), form.item))
            for v in range(vectors):
                sums[i * vectors + v] = form.multiply_add(f, one, columns[v], sums[i * vectors + v])
        k.next = [f.gep(a, a_column), b if indirect else f.gep(b, b_row), *sums]
    row = "%c"
    for i in range(rows):
        row = f.gep(row, c_row) if i else row
        for v in range(vectors):
            form.store(f, k.carried[2 + i * vectors + v], f.gep(row, v * form.lanes * form.item), masks[v])
    f.ret()
    f.end()


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
        return self.form.add(self.f, a, b, not self.single)

    def splat(self, scalar: str) -> str:
        return scalar if self.single else self.f.splat(self.form.element, self.form.lanes, scalar)


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


# Packing: a panel of B, K rows of `width` columns (whole vectors), becomes rows that lie one after the other.

def _define_pack(module: Module, name: str, write: Callable[[Function], None]) -> None:
    """name(to, from, row stride, column stride, K, columns, width). Columns from `columns` to `width` hold zeros or anything: their sums are not stored."""
    f = Function(module, name, [("ptr", "to"), ("ptr", "from"), ("i64", "row"), ("i64", "column"), ("i64", "depth"), ("i64", "columns"), ("i64", "width")])
    write(f)
    f.ret()
    f.end()


def define_packs(module: Module, form: Form) -> None:
    """Defines pack_rows (unit column stride), pack_columns (unit row stride: a transposed B) and pack_any.

    pack_columns may write K rounded up to whole vectors."""
    item, lanes = form.item, form.lanes

    def rows(f: Function) -> None:
        size = f.mul("%width", item)
        with f.loop(0, "%depth", carried=[("ptr", "%to"), ("ptr", "%from")]) as k:
            to, source = k.carried
            stream(f, form, "%columns", lambda at, run: run.store(run.load(f.gep(source, at)), f.gep(to, at)))
            k.next = [f.gep(to, size), f.gep(source, "%row")]

    def anything(f: Function) -> None:
        size = f.mul("%width", item)
        with f.loop(0, "%columns", carried=[("ptr", "%to"), ("ptr", "%from")]) as j:
            with f.loop(0, "%depth", carried=[("ptr", j.carried[0]), ("ptr", j.carried[1])]) as k:
                f.store(form.element, f.load(form.element, k.carried[1], item), k.carried[0], item)
                k.next = [f.gep(k.carried[0], size), f.gep(k.carried[1], "%row")]
            j.next = [f.gep(j.carried[0], item), f.gep(j.carried[1], "%column")]

    def columns(f: Function) -> None:
        size = f.mul("%width", item)
        highest = f.sub("%columns", 1)
        group = min(32, form.target.vector_bytes) // item
        whole = "%depth" if form.masked else f.mul(f.div("%depth", lanes), lanes)
        with f.loop(0, "%width", group) as j:
            lines = [f.gep("%from", f.mul(f.min(f.add(j.index, i), highest), "%column")) for i in range(group)]
            with f.loop(0, whole, lanes, carried=[("ptr", f.gep("%to", f.mul(j.index, item)))]) as k:
                offset = f.mul(k.index, item)
                mask = form.mask(f, f.sub("%depth", k.index)) if form.masked else ""
                v = _transpose(f, form, [form.load(f, f.gep(p, offset), mask) for p in lines])
                to = k.carried[0]
                for i in range(lanes):
                    block = i // group * group
                    piece = f.shuffle(form.element, lanes, v[i % group], "poison", range(block, block + group))
                    f.store(f"<{group} x {form.element}>", piece, to, item)
                    to = f.gep(to, size)
                k.next = [to]
        if not form.masked:
            f.call("void", "pack_any", ("ptr", f.gep("%to", f.mul(whole, size))), ("ptr", f.gep("%from", f.mul(whole, "%row"))), ("i64", "%row"),
                   ("i64", "%column"), ("i64", f.sub("%depth", whole)), ("i64", "%columns"), ("i64", "%width"))

    _define_pack(module, "pack_rows", rows)
    _define_pack(module, "pack_any", anything)
    if item >= 4:
        _define_pack(module, "pack_columns", columns)


def _transpose(f: Function, form: Form, v: list[str]) -> list[str]:
    """Transposes g x g blocks along g vectors: at distance s = 1, 2, ... the two off-diagonal s x s blocks change places."""
    n = form.lanes
    s = 1
    while s < len(v):
        low = [n + i - s if i & s else i for i in range(n)]
        high = [n + i if i & s else i + s for i in range(n)]
        v = [f.shuffle(form.element, n, v[i & ~s], v[i | s], high if i & s else low) for i in range(len(v))]
        s *= 2
    return v
