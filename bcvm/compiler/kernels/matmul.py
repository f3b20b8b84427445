"""The matrix product C[..., M, N] = A[..., M, K] @ B[..., K, N]: one kernel for all sizes and strides.

Operands A, B, C have rank batch_rank + 2; sizes are the batch dims, then M, N, K; a broadcast batch dim has stride 0 in its operand.
Units (see `units`) are blocks of C: for each batch, rows in blocks of ROWS by columns in blocks of COLUMNS. K = 0 gives zeros.

What is done, by sizes and strides:
- B with unit column stride is read where it lies, or packed panel by panel when enough rows share it and its rows lie far apart;
- B with unit row stride (a transposed view) is transposed into panels in registers, or, for few rows of A, read by dot products;
- any other B is copied into panels. A may have any strides. C with another column stride than 1 is computed in scratch and copied.
- batches that share B and lie one after the other in A and C are the rows of one product; N of 1 to 3 swaps the roles of A and B.
The order of summation depends on sizes and strides only, never on lo..hi.
"""
from __future__ import annotations

from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .micro import (
    A_COLUMN,
    A_ROW,
    B_ROW,
    C_ROW,
    DEPTH,
    DESC_WORDS,
    REST,
    Form,
    Run,
    define_packs,
    define_tiles,
    panel_width,
    set_rows,
    stream,
    wide_for,
)

ROWS, COLUMNS = 168, 256    # of C, in a unit
DEPTH_BLOCK = 1024          # of K, in a panel
PACK_ROWS = 128             # so many rows of A make packing pay, or, where panels are a cache line wide,
PACK_ROWS_NARROW = 32       # so many,
PACK_STRIDE = 1024          # if rows of B lie so many bytes apart
FEW_ROWS = 4                # up to so many rows of A use dot products with a transposed B,
DOT_ROWS, DOT_DEPTH = 16, 128   # and up to so many if K is at least so long
SWAP_COLUMNS = 3            # up to so many columns of C become its rows

DIRECT, PACK_ROWS_OF_B, PACK_COLUMNS_OF_B, PACK_ANY = range(4)

# Words that by_tiles gets behind the descriptor of the micro-kernels: K in all, strides of B and C, how B is read, the width of panels for few rows
# (see micro.wide_for), scratch for a panel and for a block of C, and whether C is computed there.
ALL_DEPTH, SOURCE_ROW, SOURCE_COLUMN, RESULT_ROW, RESULT_COLUMN, MODE, WIDE, PANEL, BLOCK, VIA_SCRATCH = range(DESC_WORDS, DESC_WORDS + 10)
STATE_WORDS = DESC_WORDS + 10


def generate(dtype: str, batch_rank: int, target: Target) -> KernelSource:
    """dtype: float32, float64, bool or an integer (wrapping); all three operands have it. Raises Unsupported for others."""
    form = Form(dtype, target)
    module = Module()
    define_tiles(module, form)
    define_packs(module, form)
    _define_dot(module, form, 1, 8)
    _define_dot(module, form, _dot_tile(form), 4)
    _define_copy_out(module, form)
    _define_by_tiles(module, form)
    name = f"matmul_{dtype}_{batch_rank}"
    _define_kernel(module, form, name, batch_rank)
    return module.source(name, target)


def _dot_tile(form: Form) -> int:
    """Rows of the tiles of dot products."""
    return 4 if form.target.registers >= 32 else 2


def _totals(f: Function, form: Form, vectors: list[str]) -> list[str]:
    """The sum of the lanes of each vector, several at once: halves of two vectors are added to one, until a lane is left of each."""
    n, e = form.lanes, form.element
    if len(vectors) > n:
        return [t for at in range(0, len(vectors), n) for t in _totals(f, form, vectors[at:at + n])]
    count, segment, left = len(vectors), n, list(vectors)
    while segment > 1:
        half = segment // 2
        low = [start + i for start in range(0, 2 * n, segment) for i in range(half)]
        pairs = list(zip(left[::2], left[1::2], strict=True)) if len(left) > 1 else [(left[0], left[0])]
        left = [form.add(f, f.shuffle(e, n, a, b, low), f.shuffle(e, n, a, b, [i + half for i in low])) for a, b in pairs]
        segment = half
    return [f(f"extractelement {form.vector} {left[0]}, i64 {i}") for i in range(count)]


def _define_dot(module: Module, form: Form, many: int, wide: int) -> None:
    """dot<many>(a, b, c, a_row, c_row, b_column, c_column, K, rows, columns): A and the columns of B have unit stride along K.

    Tiles of `many` rows by `wide` columns. What would lie behind the last row or column is the last one again."""
    names = ("a_row", "c_row", "b_column", "c_column", "depth", "rows", "columns")
    f = Function(module, f"dot{many}", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), *(("i64", n) for n in names)])
    e, item = form.element, form.item
    whole = f.mul(f.div("%depth", form.lanes), form.lanes)
    last_row, last_column = f.sub("%rows", 1), f.sub("%columns", 1)
    with f.loop(0, "%rows", many) as i, f.loop(0, "%columns", wide) as j:
        rows = [f.min(f.add(i.index, r), last_row) for r in range(many)]
        columns = [f.min(f.add(j.index, c), last_column) for c in range(wide)]
        left, right = [f.gep("%a", f.mul(r, "%a_row")) for r in rows], [f.gep("%b", f.mul(c, "%b_column")) for c in columns]

        def step(k: Value, sums: list[str], vector: bool, left: list[str] = left, right: list[str] = right) -> list[Value]:
            at = f.mul(k, item)
            a, b = ([form.load(f, f.gep(p, at)) if vector else f.load(e, f.gep(p, at), item) for p in lines] for lines in (left, right))
            return [form.multiply_add(f, a[n // wide], b[n % wide], s, vector) for n, s in enumerate(sums)]

        with f.loop(0, whole, form.lanes, carried=[(form.vector, "zeroinitializer")] * (many * wide)) as k:
            k.next = step(k.index, k.carried, True)
        with f.loop(whole, "%depth", carried=[(e, s) for s in _totals(f, form, k.carried)]) as k:
            k.next = step(k.index, k.carried, False)
        for n, s in enumerate(k.carried):
            f.store(e, s, f.gep(f.gep("%c", f.mul(rows[n // wide], "%c_row")), f.mul(columns[n % wide], "%c_column")), item)
    f.ret()
    f.end()


def _define_copy_out(module: Module, form: Form) -> None:
    """copy_out(to, row, column, from, from_row, rows, columns, more): scratch into C of any strides, added to it if `more` is not 0."""
    f = Function(module, "copy_out", [("ptr", "to"), ("i64", "row"), ("i64", "column"), ("ptr", "from"), ("i64", "from_row"), ("i64", "rows"),
                                      ("i64", "columns"), ("i64", "more")])
    more = f.cmp("ne", "%more", 0)

    def move(run: Run, source: str, to: str) -> None:
        value = run.load(source)
        f.choose(more, lambda: run.store(run.add(run.load(to), value), to), lambda: run.store(value, to))

    with f.loop(0, "%rows", carried=[("ptr", "%to"), ("ptr", "%from")]) as i:
        to, source = i.carried

        def spread() -> None:
            with f.loop(0, "%columns", carried=[("ptr", source), ("ptr", to)]) as j:
                move(Run(f, form, single=True), *j.carried)
                j.next = [f.gep(j.carried[0], form.item), f.gep(j.carried[1], "%column")]

        def dense() -> None:
            stream(f, form, "%columns", lambda at, run: move(run, f.gep(source, at), f.gep(to, at)))

        f.choose(f.cmp("eq", "%column", form.item), dense, spread)
        i.next = [f.gep(to, "%row"), f.gep(source, "%from_row")]
    f.ret()
    f.end()


def _define_by_tiles(module: Module, form: Form) -> None:
    """by_tiles(state, a, b, c, rows, columns): a block of C."""
    f = Function(module, "by_tiles", [("ptr", "d"), ("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "rows"), ("i64", "columns")])
    item = form.item
    depth, a_column, b_row, b_column, c_row, c_column, mode, wide = (
        f.word("%d", w) for w in (ALL_DEPTH, A_COLUMN, SOURCE_ROW, SOURCE_COLUMN, RESULT_ROW, RESULT_COLUMN, MODE, WIDE))
    scratch, block = (f.load("ptr", f.gep("%d", 8 * w)) for w in (PANEL, BLOCK))
    via_scratch = f.cmp("ne", f.word("%d", VIA_SCRATCH), 0)
    set_rows(f, form, "%d", "%rows")
    vectors = f.ceil_div("%columns", form.lanes)
    block_row = f.mul(vectors, form.lanes * item)
    with f.loop(0, f.max(depth, 1), DEPTH_BLOCK, carried=[("ptr", "%a"), ("ptr", "%b")]) as k:
        a, b = k.carried
        indirect = f.either(via_scratch, f.cmp("sgt", k.index, 0))
        to = f.select(indirect, block, "%c", "ptr")
        f.set_word("%d", C_ROW, f.select(indirect, block_row, c_row))
        part = f.min(DEPTH_BLOCK, f.sub(depth, k.index))
        f.set_word("%d", DEPTH, part)
        with f.loop(0, vectors) as j:
            j.step = panel_width(f, form, f.sub(vectors, j.index), wide)
            first, width = f.mul(j.index, form.lanes), f.mul(j.step, form.lanes)
            used = f.min(width, f.sub("%columns", first))
            f.set_word("%d", REST, f.sub(used, f.sub(width, form.lanes)))
            panel = f.gep(b, f.mul(first, b_column))
            how = mode
            if not form.masked:
                how = f.select(f.both(f.cmp("slt", used, width), f.cmp("eq", mode, DIRECT)), PACK_ROWS_OF_B, mode)
            lines = _packed(f, form, how, [("ptr", scratch), ("ptr", panel), ("i64", b_row), ("i64", b_column), ("i64", part), ("i64", used), ("i64", width)])
            f.set_word("%d", B_ROW, f.select(f.cmp("eq", how, DIRECT), b_row, f.mul(width, item)))
            f.call("void", "block", ("ptr", a), ("ptr", lines), ("ptr", f.gep(to, f.mul(first, item))), ("ptr", "%d"), ("i64", j.step))
        with f.when(indirect):
            f.call("void", "copy_out", ("ptr", "%c"), ("i64", c_row), ("i64", c_column), ("ptr", block), ("i64", block_row), ("i64", "%rows"),
                   ("i64", "%columns"), ("i64", k.index))
        k.next = [f.gep(a, f.mul(a_column, DEPTH_BLOCK)), f.gep(b, f.mul(b_row, DEPTH_BLOCK))]
    f.ret()
    f.end()


class _Matrix:
    """Pointer and strides of an operand."""

    def __init__(self, f: Function, number: int, batch_rank: int) -> None:
        first = number * (batch_rank + 3)
        self.data: str = f.load("ptr", f.gep("%operands", 8 * first))
        words = [f.word("%operands", first + 1 + i) for i in range(batch_rank + 2)]
        self.batch: list[Value] = list(words[:batch_rank])
        self.row: Value = words[-2]
        self.column: Value = words[-1]


def _define_kernel(module: Module, form: Form, name: str, batch_rank: int) -> None:
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    item = form.item
    a, b, c = (_Matrix(f, i, batch_rank) for i in range(3))
    batch_sizes: list[Value] = [f.word("%sizes", i) for i in range(batch_rank)]
    m: Value
    n: Value
    m, n, depth = (f.word("%sizes", batch_rank + i) for i in range(3))
    batches: Value = 1
    for size in batch_sizes:
        batches = f.mul(batches, size)
    empty = f.cmp("eq", f.mul(f.mul(batches, m), n), 0)
    f.fail_if(empty, DONE)
    asked = _units(f, batches, m, n)

    m, batches = _merge_batches(f, a, b, c, batch_sizes, batches, m)
    swap = f.both(f.cmp("sle", n, SWAP_COLUMNS), f.cmp("sgt", m, n), f.either(f.cmp("eq", a.column, item), f.cmp("eq", a.row, item)))
    m, n = f.select(swap, n, m), f.select(swap, m, n)
    a_row, a_column = f.select(swap, b.column, a.row), f.select(swap, b.row, a.column)
    b.row, b.column = f.select(swap, a.column, b.row), f.select(swap, a.row, b.column)
    a.row, a.column = a_row, a_column
    a_data, b_data = f.select(swap, b.data, a.data, "ptr"), f.select(swap, a.data, b.data, "ptr")
    a_batch = [f.select(swap, y, x) for x, y in zip(a.batch, b.batch, strict=True)]
    b_batch = [f.select(swap, x, y) for x, y in zip(a.batch, b.batch, strict=True)]
    c.row, c.column = f.select(swap, c.column, c.row), f.select(swap, c.row, c.column)

    # The caller counts units before merging and swapping: its range is scaled to ours.
    blocks_m, blocks_n = f.ceil_div(m, ROWS), f.ceil_div(n, COLUMNS)
    units = f.mul(f.mul(batches, blocks_m), blocks_n)
    everything = f.cmp("slt", "%hi", 0)
    same = f.either(everything, f.cmp("eq", units, asked))
    divisor = f.select(same, 1, asked)
    factor = f.select(same, 1, units)
    lo = f.arith("udiv", f.mul("%lo", factor), divisor)
    hi = f.select(everything, units, f.arith("udiv", f.mul("%hi", factor), divisor))

    one_column = f.cmp("eq", n, 1)
    b_unit = f.either(one_column, f.cmp("eq", b.column, item))
    c_unit = f.either(one_column, f.cmp("eq", c.column, item))
    b_transposed = f.either(f.cmp("eq", b.row, item), f.cmp("eq", depth, 1))
    few = f.either(f.cmp("sle", m, FEW_ROWS), f.both(f.cmp("sle", m, DOT_ROWS), f.cmp("sge", depth, DOT_DEPTH)))
    dot = f.both(few, b_transposed, f.cmp("eq", a.column, item), f.invert(f.both(b_unit, f.cmp("ne", n, 1))))
    enough = PACK_ROWS if form.masked else PACK_ROWS_NARROW
    far = f.both(f.cmp("sge", m, enough), f.cmp("sge", f.intrinsic("llvm.abs.i64", "i64", ("i64", b.row), ("i1", "false")), PACK_STRIDE))
    transposing = PACK_COLUMNS_OF_B if item >= 4 else PACK_ANY
    mode = f.select(b_unit, f.select(far, PACK_ROWS_OF_B, DIRECT), f.select(b_transposed, transposing, PACK_ANY))
    wide = wide_for(f, form, m)

    # Scratch: a panel of packed B, a block of C where C cannot be written straight away.
    ragged = "false" if form.masked else f.cmp("ne", f.rem(n, form.lanes), 0)
    via_scratch = f.either(f.invert(c_unit), ragged)
    panels = f.both(f.invert(dot), f.either(f.cmp("ne", mode, DIRECT), ragged))
    blocked = f.both(f.invert(dot), f.either(via_scratch, f.cmp("sgt", depth, DEPTH_BLOCK)))
    widest = f.select(f.cmp("sgt", wide, 1 << 20), form.vectors, wide)
    b_size = f.mul(f.add(f.min(depth, DEPTH_BLOCK), form.lanes), f.mul(widest, form.lanes * item))
    b_size = f.select(panels, f.round_up(b_size, 64), 0)
    c_size = f.mul(f.min(m, ROWS), f.mul(f.round_up(f.min(n, COLUMNS), form.lanes), item))
    sizes = f.add(b_size, f.select(blocked, c_size, 0))
    start, get, go = f.block, f.fresh(), f.fresh()
    f.branch(f.cmp("ne", sizes, 0), get, go)
    f.label(get)
    buffer = f.alloc("%ctx", sizes)
    got = f.block
    f.br(go)
    f.label(go)
    scratch = f(f"phi ptr [ null, %{start} ], [ {buffer}, %{got} ]")
    c_scratch = f.gep(scratch, b_size)

    d = f.words(STATE_WORDS)
    state = {A_ROW: a.row, A_COLUMN: a.column, ALL_DEPTH: depth, SOURCE_ROW: b.row, SOURCE_COLUMN: b.column, RESULT_ROW: c.row, RESULT_COLUMN: c.column,
             MODE: mode, WIDE: wide, VIA_SCRATCH: f(f"zext i1 {via_scratch} to i64")}
    for word, value in state.items():
        f.set_word(d, word, value)
    f.store("ptr", scratch, f.gep(d, 8 * PANEL))
    f.store("ptr", c_scratch, f.gep(d, 8 * BLOCK))
    with f.loop(lo, hi) as unit:
        block_n = f.rem(unit.index, blocks_n)
        other = f.div(unit.index, blocks_n)
        batch = f.div(other, blocks_m)
        step_m = f.ceil_div(m, blocks_m)
        m0, n0 = f.mul(f.rem(other, blocks_m), step_m), f.mul(block_n, COLUMNS)
        rows, columns = f.min(step_m, f.sub(m, m0)), f.min(COLUMNS, f.sub(n, n0))
        pa = f.gep(a_data, f.mul(m0, a.row))
        pb = f.gep(b_data, f.mul(n0, b.column))
        pc = f.gep(f.gep(c.data, f.mul(m0, c.row)), f.mul(n0, c.column))
        merged = f.cmp("eq", batches, 1)
        for i in reversed(range(batch_rank)):
            size = f.select(merged, 1, batch_sizes[i])
            at = f.rem(batch, size)
            batch = f.div(batch, size)
            pa, pb, pc = f.gep(pa, f.mul(at, a_batch[i])), f.gep(pb, f.mul(at, b_batch[i])), f.gep(pc, f.mul(at, c.batch[i]))

        arguments: list[tuple[str, Value]] = [("ptr", pa), ("ptr", pb), ("ptr", pc), *(("i64", v) for v in (a.row, c.row, b.column, c.column, depth, rows, columns))]

        def by_dots(arguments: list[tuple[str, Value]] = arguments) -> None:
            f.choose(f.cmp("eq", m, 1), lambda: f.call("void", "dot1", *arguments), lambda: f.call("void", f"dot{_dot_tile(form)}", *arguments))

        def by_tiles(pa: str = pa, pb: str = pb, pc: str = pc, rows: str = rows, columns: str = columns) -> None:
            f.call("void", "by_tiles", ("ptr", d), ("ptr", pa), ("ptr", pb), ("ptr", pc), ("i64", rows), ("i64", columns))

        f.choose(dot, by_dots, by_tiles)
    with f.when(f.cmp("ne", sizes, 0)):
        f.release("%ctx", scratch)
    f.ret(f"i32 {DONE}")
    f.end()


def _packed(f: Function, form: Form, how: str, arguments: list[tuple[str, Value]]) -> str:
    """Packs a panel in the way `how` (arguments: see micro.define_packs) and returns where its lines begin."""
    ready, direct = f.fresh(), f.fresh()
    makers = {PACK_ROWS_OF_B: "pack_rows", PACK_COLUMNS_OF_B: "pack_columns", PACK_ANY: "pack_any"}
    if form.item < 4:
        del makers[PACK_COLUMNS_OF_B]
    labels = {number: f.fresh() for number in makers}
    f.emit(f"switch i64 {how}, label %{direct} [ {' '.join(f'i64 {number}, label %{label}' for number, label in labels.items())} ]")
    for number, label in labels.items():
        f.label(label)
        f.call("void", makers[number], *arguments)
        f.br(ready)
    f.label(direct)
    f.br(ready)
    f.label(ready)
    scratch, panel = arguments[0][1], arguments[1][1]
    return f(f"phi ptr [ {panel}, %{direct} ], {', '.join(f'[ {scratch}, %{label} ]' for label in labels.values())}")


def _units(f: Function, batches: Value, m: Value, n: Value) -> Value:
    return f.mul(f.mul(batches, f.ceil_div(m, ROWS)), f.ceil_div(n, COLUMNS))


def _merge_batches(f: Function, a: _Matrix, b: _Matrix, c: _Matrix, sizes: list[Value], batches: Value, m: Value) -> tuple[Value, Value]:
    """Rows and batches after all batches became rows, if B is shared by them and the rows of A and C stay evenly spaced."""
    fits = ""
    rows, a_row, c_row = m, a.row, c.row
    for size, a_step, b_step, c_step in reversed(list(zip(sizes, a.batch, b.batch, c.batch, strict=True))):
        one, single = f.cmp("eq", size, 1), f.cmp("eq", rows, 1)
        even = f.both(f.cmp("eq", a_step, f.mul(a_row, rows)), f.cmp("eq", c_step, f.mul(c_row, rows)))
        good = f.either(one, f.both(f.cmp("eq", b_step, 0), f.either(single, even)))
        fits = f.both(fits, good) if fits else good
        first = f.both(single, f.invert(one))
        a_row, c_row = f.select(first, a_step, a_row), f.select(first, c_step, c_row)
        rows = f.mul(rows, size)
    if not sizes:
        return m, batches
    a.row, c.row = f.select(fits, a_row, a.row), f.select(fits, c_row, c.row)
    return f.select(fits, rows, m), f.select(fits, 1, batches)


def units(batch: int, m: int, n: int) -> int:
    """The number of units of a product, batch being the product of the batch sizes."""
    return batch * -(-m // ROWS) * -(-n // COLUMNS)
