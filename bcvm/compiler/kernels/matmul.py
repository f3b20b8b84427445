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
from .micro import (
    A_COLUMN,
    A_ROW,
    ACCUMULATE,
    B_ROW,
    C_ROW,
    DEPTH,
    DESC_WORDS,
    REST,
    Form,
    define_packs,
    define_tiles,
    panel_width,
    set_rows,
    wide_for,
)
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value

ROWS, COLUMNS = 168, 256    # of C, in a unit
DEPTH_BLOCK = 1024          # of K, in a panel
PACK_ROWS = 64              # so many rows of A make packing pay
PACK_STRIDE = 1024          # bytes between rows of B from which packing pays
DOT_ROWS = 3                # up to so many rows of A use dot products with a transposed B

DIRECT, PACK_ROWS_OF_B, PACK_COLUMNS_OF_B, PACK_ANY = range(4)


def generate(dtype: str, batch_rank: int, target: Target) -> KernelSource:
    """dtype: float32, float64, bool or an integer (wrapping); all three operands have it. Raises Unsupported for others."""
    form = Form(dtype, target)
    module = Module()
    define_tiles(module, form)
    define_packs(module, form)
    _define_dot(module, form)
    _define_copy_out(module, form)
    name = f"matmul_{dtype}_{batch_rank}"
    _define_kernel(module, form, name, batch_rank)
    return module.source(name, target)


def _define_dot(module: Module, form: Form) -> None:
    """dot(a, b, c, b_column, c_column, K, columns): one row of C; A and the columns of B have unit stride along K."""
    f = Function(module, "dot", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "b_column"), ("i64", "c_column"), ("i64", "depth"), ("i64", "columns")])
    whole = f.mul(f.div("%depth", form.lanes), form.lanes)
    mask = form.mask(f, f.sub("%depth", whole))
    ragged = f.cmp("slt", whole, "%depth")

    def group(count: int, column: Value) -> None:
        b = f.gep("%b", f.mul(column, "%b_column"))
        lines = [f.gep(b, f.mul("%b_column", i)) for i in range(count)]

        def step(k: Value, sums: list[str], mask: str = "") -> list[str]:
            offset = f.mul(k, form.item)
            a = form.load(f, f.gep("%a", offset), mask)
            return [form.multiply_add(f, a, form.load(f, f.gep(line, offset), mask), s) for line, s in zip(lines, sums, strict=True)]

        with f.loop(0, whole, form.lanes, carried=[(form.vector, "zeroinitializer")] * count) as k:
            k.next = list(step(k.index, k.carried))
        before, tail, done = f.block, f.fresh(), f.fresh()
        f.branch(ragged, tail, done)
        f.label(tail)
        last = step(whole, k.carried, mask)
        end = f.block
        f.br(done)
        f.label(done)
        sums = [f(f"phi {form.vector} [ {x}, %{before} ], [ {y}, %{end} ]") for x, y in zip(k.carried, last, strict=True)]
        c = f.gep("%c", f.mul(column, "%c_column"))
        for i, s in enumerate(sums):
            f.store(form.element, form.total(f, s), f.gep(c, f.mul("%c_column", i)), form.item)

    many = 8 if form.target.registers >= 32 else 4
    grouped = f.mul(f.div("%columns", many), many)
    with f.loop(0, grouped, many) as j:
        group(many, j.index)
    with f.loop(grouped, "%columns") as j:
        group(1, j.index)
    f.ret()
    f.end()


def _define_copy_out(module: Module, form: Form) -> None:
    """copy_out(to, row, column, from, rows, columns): a dense block into any strides."""
    f = Function(module, "copy_out", [("ptr", "to"), ("i64", "row"), ("i64", "column"), ("ptr", "from"), ("i64", "rows"), ("i64", "columns")])
    with f.loop(0, "%rows", carried=[("ptr", "%from"), ("ptr", "%to")]) as i:
        with f.loop(0, "%columns", carried=[("ptr", i.carried[0]), ("ptr", i.carried[1])]) as j:
            f.store(form.element, f.load(form.element, j.carried[0], form.item), j.carried[1], form.item)
            j.next = [f.gep(j.carried[0], form.item), f.gep(j.carried[1], "%column")]
        i.next = [j.carried[0], f.gep(i.carried[1], "%row")]
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
    m, n, depth = (f.word("%sizes", batch_rank + i) for i in range(3))
    batches: Value = 1
    for size in batch_sizes:
        batches = f.mul(batches, size)
    empty = f.cmp("eq", f.mul(f.mul(batches, m), n), 0)
    f.fail_if(empty, DONE)
    asked = _units(f, batches, m, n)

    m, batches = _merge_batches(f, a, b, c, batch_sizes, batches, m)
    swap = f.both(f.cmp("sle", n, DOT_ROWS), f.cmp("sgt", m, n), f.either(f.cmp("eq", a.column, item), f.cmp("eq", a.row, item)))
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
    dot = f.both(f.cmp("sle", m, DOT_ROWS), b_transposed, f.cmp("eq", a.column, item), f.invert(f.both(b_unit, f.cmp("ne", n, 1))))
    far = f.both(f.cmp("sge", m, PACK_ROWS), f.cmp("sge", f.intrinsic("llvm.abs.i64", "i64", ("i64", b.row), ("i1", "false")), PACK_STRIDE))
    transposing = PACK_COLUMNS_OF_B if item >= 4 else PACK_ANY
    mode = f.select(b_unit, f.select(far, PACK_ROWS_OF_B, DIRECT), f.select(b_transposed, transposing, PACK_ANY))
    wide = wide_for(f, form, m)

    # Scratch: a panel of packed B, a block of C.
    panels = f.both(f.cmp("ne", mode, DIRECT), f.invert(dot))
    b_size = f.mul(f.min(depth, DEPTH_BLOCK), f.mul(f.select(f.cmp("sgt", wide, 1 << 20), form.vectors, wide), form.lanes * item))
    b_size = f.add(b_size, form.lanes * form.lanes * max(form.wide[1], form.vectors) * item)
    blocked = f.both(f.invert(c_unit), f.invert(dot))
    c_size = f.mul(f.min(m, ROWS), f.mul(f.min(n, COLUMNS), item))
    sizes = f.add(f.select(panels, f.round_up(b_size, 64), 0), f.select(blocked, c_size, 0))
    start, get, go = f.block, f.fresh(), f.fresh()
    f.branch(f.cmp("ne", sizes, 0), get, go)
    f.label(get)
    buffer = f.alloc("%ctx", sizes)
    got = f.block
    f.br(go)
    f.label(go)
    scratch = f(f"phi ptr [ null, %{start} ], [ {buffer}, %{got} ]")
    c_scratch = f.gep(scratch, f.select(panels, f.round_up(b_size, 64), 0))

    d = f.words(DESC_WORDS)
    f.set_word(d, A_ROW, a.row)
    f.set_word(d, A_COLUMN, a.column)
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

        def by_dots(pa: str = pa, pb: str = pb, pc: str = pc, rows: str = rows, columns: str = columns) -> None:
            with f.loop(0, rows, carried=[("ptr", pa), ("ptr", pc)]) as i:
                f.call("void", "dot", ("ptr", i.carried[0]), ("ptr", pb), ("ptr", i.carried[1]), ("i64", b.column), ("i64", c.column),
                       ("i64", depth), ("i64", columns))
                i.next = [f.gep(i.carried[0], a.row), f.gep(i.carried[1], c.row)]

        def by_tiles(pa: str = pa, pb: str = pb, pc: str = pc, rows: str = rows, columns: str = columns) -> None:
            set_rows(f, form, d, rows)
            to = f.select(c_unit, pc, c_scratch, "ptr")
            f.set_word(d, C_ROW, f.select(c_unit, c.row, f.mul(columns, item)))
            vectors = f.ceil_div(columns, form.lanes)
            with f.loop(0, f.max(depth, 1), DEPTH_BLOCK, carried=[("ptr", pa), ("ptr", pb)]) as k:
                part = f.min(DEPTH_BLOCK, f.sub(depth, k.index))
                f.set_word(d, DEPTH, part)
                f.set_word(d, ACCUMULATE, k.index)
                ka, kb = k.carried
                with f.loop(0, vectors) as j:
                    j.step = panel_width(f, form, f.sub(vectors, j.index), wide)
                    first, width = f.mul(j.index, form.lanes), f.mul(j.step, form.lanes)
                    used = f.min(width, f.sub(columns, first))
                    f.set_word(d, REST, f.sub(used, f.sub(width, form.lanes)))
                    panel = f.gep(kb, f.mul(first, b.column))
                    direct, packed, ready = f.fresh(), f.fresh(), f.fresh()
                    makers = {PACK_ROWS_OF_B: "pack_rows", PACK_COLUMNS_OF_B: "pack_columns", PACK_ANY: "pack_any"}
                    if item < 4:
                        del makers[PACK_COLUMNS_OF_B]
                    labels = {number: f.fresh() for number in makers}
                    f.emit(f"switch i64 {mode}, label %{direct} [ {' '.join(f'i64 {number}, label %{to_}' for number, to_ in labels.items())} ]")
                    f.label(direct)
                    f.br(ready)
                    for number, label in labels.items():
                        f.label(label)
                        f.call("void", makers[number], ("ptr", scratch), ("ptr", panel), ("i64", b.row), ("i64", b.column), ("i64", part), ("i64", used),
                               ("i64", width))
                        f.br(packed)
                    f.label(packed)
                    f.br(ready)
                    f.label(ready)
                    lines = f(f"phi ptr [ {panel}, %{direct} ], [ {scratch}, %{packed} ]")
                    f.set_word(d, B_ROW, f.select(f.cmp("eq", mode, DIRECT), b.row, f.mul(width, item)))
                    f.call("void", "block", ("ptr", ka), ("ptr", lines), ("ptr", f.gep(to, f.mul(first, item))), ("ptr", d), ("i64", j.step))
                k.next = [f.gep(ka, f.mul(a.column, DEPTH_BLOCK)), f.gep(kb, f.mul(b.row, DEPTH_BLOCK))]
            with f.when(f.invert(c_unit)):
                f.call("void", "copy_out", ("ptr", pc), ("i64", c.row), ("i64", c.column), ("ptr", c_scratch), ("i64", rows), ("i64", columns))

        f.choose(dot, by_dots, by_tiles)
    with f.when(f.cmp("ne", sizes, 0)):
        f.release("%ctx", scratch)
    f.ret(f"i32 {DONE}")
    f.end()


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
