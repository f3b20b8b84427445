"""The matrix product C[..., M, N] = A[..., M, K] @ B[..., K, N]: one kernel for all sizes and strides.

Operands A, B, C have rank batch_rank + 2; sizes are the batch dims, then M, N, K, then 1 if B is packed, else 0, then the epilogue (see abi), or 0; a broadcast
batch dim has stride 0 in its operand. Units (see `units`) are blocks of C: for each batch, rows in blocks of ROWS by panels of columns. K = 0 gives zeros. Halves are summed as float32.

A packed B (`pack`) lies in panels of `panel_columns` columns; the last has what is left, rounded up to whole vectors. A panel is K rows, one after the
other. Halves are packed as float32. A packed B has no batch dims, and its strides are not looked at.

What is done, by sizes and strides:
- up to MOST_LINES rows of A read B line by line (few_rows);
- B with unit column stride is read where it lies, by fewer rows at a time if they share the sets of a cache, so that the next tile still finds them there;
  if many rows of A read such a B, it is copied into panels;
- B with unit row stride (a transposed view) is transposed into panels in registers, or, for few rows of A and many of B, read by dot products (few_rows);
- any other B is copied into panels. A may have any strides. C with another column stride than 1 is computed in scratch and copied.
- batches that share B and lie one after the other in A and C are the rows of one product; N of 1 to 3 swaps the roles of A and B.
The order of summation depends on sizes and strides only, never on lo..hi.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .few_rows import MOST_LINES, define_dots, define_lines
from .micro import A_COLUMN, A_ROW, AHEAD, AHEAD_ROWS, B_ROW, C_ROW, DEPTH, INIT, INIT_ROW, LINE, MASK, Form, define_tiles, set_mask, whole_rows
from .packs import define_copy_out, define_packs

ROWS = 240                  # of C, in a unit
DEPTH_BLOCK = 1024          # of K, in a panel
SHARING_BYTES = 1 << 22     # rows of B whose distance is a multiple of a power of two share sets of the caches: only so many bytes, seen at that power, stay there
LEAST_DEPTH = 64
FEW_TO_READ_AHEAD = 8       # up to so many rows of A, lines of such rows asked for early would push each other out
PACK_ROWS_FROM, PACK_STRIDE = 48, 4096   # so many rows of A make packing pay where B's rows lie a multiple of so many bytes apart
PACK_ASKEW_FROM = 96        # and so many where they do not begin where a line of the cache does
FEW_ROWS, DOT_DEPTH = 4, 12 # so many rows of A, or so much of K per row, make dot products with a transposed B pay
SWAP_COLUMNS = 3            # up to so many columns of C become its rows
SETTLED = 8192              # elements of C that are worth a call of the epilogue

DIRECT, PACKED, PACK_COLUMNS, PACK_ROWS, PACK_ANY = range(5)

# Words that by_tiles gets behind the descriptor of the micro-kernels and its mask: K in all and K at a time, how many rows of B ahead memory is asked for, strides of B and C,
# how B is read, scratch for a panel and for a block of C, whether C is computed there, a row of zeros. For the epilogue: what settle gets, and the kernel's code.
STATE = MASK + 4
ALL_DEPTH, SOURCE_ROW, SOURCE_COLUMN, RESULT_ROW, RESULT_COLUMN, MODE, BLOCK, VIA_SCRATCH, ZEROS, DEPTH_STEP, PANEL, READ_AHEAD = range(STATE, STATE + 12)
CONTEXT, SIZES, EPILOGUE, SWAPPED, BATCH, FIRST_ROW, FIRST_COLUMN, CODE = range(STATE + 12, STATE + 20)
STATE_WORDS = STATE + 20


def generate(dtype: str, batch_rank: int, target: Target) -> KernelSource:
    """dtype: a float, bool or an integer (wrapping); all three operands have it. Raises Unsupported for others."""
    form = Form(dtype, target)
    module = _parts(form).copy()
    _define_settle(module, batch_rank)
    _define_by_tiles(module, form)
    name = f"matmul_{dtype}_{batch_rank}"
    _define_kernel(module, form, name, batch_rank)
    return module.source(name, target)


@lru_cache(maxsize=8)
def _parts(form: Form) -> Module:
    """What products of a dtype share, whatever the ranks."""
    module = Module()
    define_tiles(module, form)
    define_packs(module, form)
    define_lines(module, form)
    if not form.half:
        define_dots(module, form)
    define_copy_out(module, form)
    return module


def panel_columns(dtype: str, target: Target) -> int:
    """Columns of a panel, which are those of a unit."""
    return Form(dtype, target).panel


def packed_dtype(dtype: str, target: Target) -> str:
    """The dtype of packed panels."""
    return Form(dtype, target).held


def units(batch: int, m: int, n: int, dtype: str, target: Target) -> int:
    """The number of units of a product, batch being the product of the batch sizes."""
    return batch * -(-m // ROWS) * -(-n // panel_columns(dtype, target))


def pack(b: Any, target: Target) -> Any:
    """A packed copy of the array b [K, N], of any strides: one dimension, padded with zeros, at the beginning of a line of the cache."""
    form = Form(str(b.dtype), target)
    k, n = b.shape
    whole = n // form.panel * form.panel
    rest = -(-(n - whole) // form.lanes) * form.lanes
    count = k * (whole + rest)
    room = np.zeros(count + LINE // form.item, form.held)
    out = room[-room.ctypes.data % LINE // form.item:][:count]
    out[:k * whole].reshape(whole // form.panel, k, form.panel)[...] = b[:, :whole].reshape(k, whole // form.panel, form.panel).transpose(1, 0, 2)
    out[k * whole:].reshape(k, rest)[:, :n - whole] = b[:, whole:]
    return out


def _define_settle(module: Module, batch_rank: int) -> None:
    """settle(state, column, rows, columns): the epilogue, if there is one, on a block of the strip at hand, batch by batch."""
    f = Function(module, "settle", [("ptr", "d"), ("i64", "column"), ("i64", "rows"), ("i64", "columns")], glue=True)
    epilogue, sizes, context = (f.load("ptr", f.gep("%d", 8 * w)) for w in (EPILOGUE, SIZES, CONTEXT))
    have = f(f"icmp ne ptr {epilogue}, null")
    with f.when(have):
        place = f.words(2 * (batch_rank + 2))
        swapped = f.cmp("ne", f.word("%d", SWAPPED), 0)
        row, column = f.word("%d", FIRST_ROW), f.add(f.word("%d", FIRST_COLUMN), "%column")
        row, column, rows, columns = (f.select(swapped, b, a) for a, b in ((row, column), (column, row), ("%rows", "%columns"), ("%columns", "%rows")))
        m = f.word(sizes, batch_rank)
        f.set_word(place, batch_rank + 1, column)
        f.set_word(place, 2 * batch_rank + 3, columns)
        with f.loop(0, rows) as i:
            at = f.add(row, i.index)
            inside = f.rem(at, m)
            batch: Value = f.add(f.word("%d", BATCH), f.div(at, m))
            i.step = f.min(f.sub(m, inside), f.sub(rows, i.index))
            f.set_word(place, batch_rank, inside)
            f.set_word(place, 2 * batch_rank + 2, i.step)
            for k in reversed(range(batch_rank)):
                size = f.word(sizes, k)
                f.set_word(place, k, f.rem(batch, size))
                f.set_word(place, batch_rank + 2 + k, 1)
                batch = f.div(batch, size)
            code = f.through_table(context, "finish", context, epilogue, place)
            f.set_word("%d", CODE, f.arith("or", f.word("%d", CODE), f(f"zext i32 {code} to i64")))
    f.ret()
    f.end()


def _define_by_tiles(module: Module, form: Form) -> None:
    """by_tiles(state, a, b, c, rows, columns): a strip of C, panel by panel."""
    f = Function(module, "by_tiles", [("ptr", "d"), ("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "rows"), ("i64", "columns")], glue=True)
    item, lanes = form.item, form.lanes
    depth, depth_block, ahead, a_column, b_row, b_column, c_row, c_column, mode = (
        f.word("%d", w) for w in (ALL_DEPTH, DEPTH_STEP, READ_AHEAD, A_COLUMN, SOURCE_ROW, SOURCE_COLUMN, RESULT_ROW, RESULT_COLUMN, MODE))
    scratch, block = (f.load("ptr", f.gep("%d", 8 * w)) for w in (PANEL, BLOCK))
    zeros = f.word("%d", ZEROS)
    via_scratch = f.cmp("ne", f.word("%d", VIA_SCRATCH), 0)
    packed = f.cmp("eq", mode, PACKED)
    to_row = f.select(via_scratch, form.panel * item, c_row)
    f.set_word("%d", C_ROW, to_row)
    with f.loop(0, "%columns", carried=[("i64", "0")]) as j:
        rest = f.sub("%columns", j.index)
        full = f.cmp("sgt", f.mul(f.ceil_div(f.min(rest, form.panel), lanes), 2), form.vectors)
        width = f.select(full, form.panel, lanes)
        j.step = width
        used = f.min(width, rest)
        set_mask(f, form, "%d", used)
        inside = f.rem(j.index, form.panel)
        start = f.sub(j.index, inside)
        own = f.min(f.round_up(f.sub("%columns", start), lanes), form.panel)    # width of the packed panel that this one is a part of
        offset = f.select(packed, f.add(f.mul(f.mul(start, depth), item), f.mul(inside, item)), f.mul(j.index, b_column))
        source_row = f.select(packed, f.mul(own, item), b_row)
        how = mode
        if not form.masked:
            how = f.select(f.both(f.cmp("slt", used, width), f.cmp("eq", mode, DIRECT)), PACK_ANY, mode)
        target = f.gep("%c", f.mul(j.index, c_column))
        to = f.select(via_scratch, block, target, "ptr")
        with f.loop(0, f.max(depth, 1), depth_block, carried=[("ptr", "%a"), ("ptr", f.gep("%b", offset))]) as k:
            a, panel = k.carried
            begun = f.cmp("sgt", k.index, 0)
            part = f.min(depth_block, f.sub(depth, k.index))
            f.set_word("%d", INIT, f.select(begun, 0, zeros))
            f.set_word("%d", INIT_ROW, f.select(begun, to_row, 0))
            lines = _packed(f, form, how, [("ptr", scratch), ("ptr", panel), ("i64", b_row), ("i64", b_column), ("i64", part), ("i64", used), ("i64", width)])
            copied = f.cmp("sgt", how, PACKED)
            row = f.select(copied, f.mul(width, item), source_row)
            f.set_word("%d", B_ROW, row)
            f.set_word("%d", AHEAD, f.mul(row, ahead))
            there = f.select(copied, width, f.select(packed, f.min(width, f.sub(own, inside)), used))
            whole = whole_rows(f, form, part, f.sub(depth, k.index), row, there, width)
            f.set_word("%d", DEPTH, whole)
            arguments: list[tuple[str, Value]] = [("ptr", to), ("ptr", "%d"), ("i64", "%rows"), ("i64", f(f"zext i1 {full} to i64"))]
            f.call("void", "block", ("ptr", a), ("ptr", lines), *arguments)
            if form.masked:
                with f.when(f.cmp("slt", whole, part)):
                    f.set_word("%d", DEPTH, f.sub(part, whole))
                    f.set_word("%d", INIT, 0)
                    f.call("void", "edge", ("ptr", f.gep(a, f.mul(a_column, whole))), ("ptr", f.gep(lines, f.mul(row, whole))), *arguments)
            k.next = [f.gep(a, f.mul(a_column, depth_block)), f.gep(panel, f.mul(source_row, depth_block))]
        with f.when(via_scratch):
            f.call("void", "copy_out", ("ptr", target), ("i64", c_row), ("i64", c_column), ("ptr", block), ("i64", to_row), ("i64", "%rows"), ("i64", used))
        done = f.add(j.index, used)
        waiting = f.sub(done, j.carried[0])
        due = f.either(f.cmp("sge", f.mul(waiting, "%rows"), SETTLED), f.cmp("eq", done, "%columns"))
        with f.when(due):
            f.call("void", "settle", ("ptr", "%d"), ("i64", j.carried[0]), ("i64", "%rows"), ("i64", waiting))
        j.next = [f.select(due, done, j.carried[0])]
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
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True, glue=True)
    item, kept = form.item, form.kept
    a, b, c = (_Matrix(f, i, batch_rank) for i in range(3))
    batch_sizes: list[Value] = [f.word("%sizes", i) for i in range(batch_rank)]
    m: Value
    n: Value
    m, n, depth, is_packed, epilogue = (f.word("%sizes", batch_rank + i) for i in range(5))
    batches: Value = 1
    for size in batch_sizes:
        batches = f.mul(batches, size)
    empty = f.cmp("eq", f.mul(f.mul(batches, m), n), 0)
    f.fail_if(empty, DONE)
    asked = f.mul(f.mul(batches, f.ceil_div(m, ROWS)), f.ceil_div(n, form.panel))
    packed = f.cmp("ne", is_packed, 0)

    m, batches = _merge_batches(f, a, b, c, batch_sizes, batches, m)
    swap = f.both(f.cmp("sle", n, SWAP_COLUMNS), f.cmp("sgt", m, n), f.either(f.cmp("eq", a.column, kept), f.cmp("eq", a.row, kept)), f.invert(packed))
    m, n = f.select(swap, n, m), f.select(swap, m, n)
    a_row, a_column = f.select(swap, b.column, a.row), f.select(swap, b.row, a.column)
    b.row, b.column = f.select(swap, a.column, b.row), f.select(swap, a.row, b.column)
    a.row, a.column = a_row, a_column
    a_data, b_data = f.select(swap, b.data, a.data, "ptr"), f.select(swap, a.data, b.data, "ptr")
    a_batch = [f.select(swap, y, x) for x, y in zip(a.batch, b.batch, strict=True)]
    b_batch = [f.select(swap, x, y) for x, y in zip(a.batch, b.batch, strict=True)]
    c.row, c.column = f.select(swap, c.column, c.row), f.select(swap, c.row, c.column)

    # The caller counts units before merging and swapping: its range is scaled to ours.
    blocks, panels = f.ceil_div(m, ROWS), f.ceil_div(n, form.panel)
    total = f.mul(f.mul(batches, blocks), panels)
    everything = f.cmp("slt", "%hi", 0)
    same = f.either(everything, f.cmp("eq", total, asked))
    divisor = f.select(same, 1, asked)
    factor = f.select(same, 1, total)
    lo = f.arith("udiv", f.mul("%lo", factor), divisor)
    hi = f.select(everything, total, f.arith("udiv", f.mul("%hi", factor), divisor))

    # How B is read.
    one_column = f.cmp("eq", n, 1)
    b_unit = f.either(one_column, f.cmp("eq", b.column, kept))
    c_unit = f.either(one_column, f.cmp("eq", c.column, kept))
    b_transposed = f.either(f.cmp("eq", b.row, kept), f.cmp("eq", depth, 1))
    if form.half:
        dot = "false"
    else:
        few = f.either(f.cmp("sle", m, FEW_ROWS), f.cmp("sle", f.mul(m, DOT_DEPTH), depth))
        dot = f.both(few, b_transposed, f.cmp("eq", a.column, item), f.invert(f.either(packed, f.both(b_unit, f.invert(one_column)))))
    by_lines = f.both(f.cmp("sle", m, MOST_LINES), b_unit, f.cmp("sgt", depth, 0), f.invert(f.either(packed, dot)))
    power = f.arith("and", b.row, f.sub(0, b.row))  # of two, that the distance of B's rows is a multiple of
    address = f(f"ptrtoint ptr {b_data} to i64")
    askew = f.cmp("ne", f.arith("and", f.arith("or", address, b.row), LINE - 1), 0)
    pays = f.either(f.both(f.cmp("sge", m, PACK_ROWS_FROM), f.cmp("sge", power, PACK_STRIDE)), f.both(askew, f.cmp("sge", m, PACK_ASKEW_FROM)))
    direct: Value = PACK_ROWS if form.half else f.select(pays, PACK_ROWS, DIRECT)
    transposing = PACK_COLUMNS if form.half or item >= 4 else PACK_ANY
    mode = f.select(packed, PACKED, f.select(b_unit, direct, f.select(b_transposed, transposing, PACK_ANY)))

    # Scratch: a panel of packed B, a block of C where C cannot be written straight away, A as float32.
    ragged = "false" if form.masked else f.cmp("ne", f.rem(n, form.lanes), 0)
    via_scratch = "true" if form.half else f.either(f.invert(c_unit), f.both(ragged, f.invert(by_lines)))
    tiled = f.invert(f.either(dot, by_lines))
    needs_panel = f.both(tiled, f.either(f.cmp("sgt", mode, PACKED), ragged))
    panel_size = f.select(needs_panel, f.mul(f.add(f.min(depth, DEPTH_BLOCK), form.lanes), form.panel * item), 0)
    c_row = f.select(by_lines, f.mul(f.round_up(n, form.lanes), item), form.panel * item)
    block_size = f.select(f.both(via_scratch, f.invert(dot)), f.mul(f.min(m, ROWS), c_row), 0)
    sizes = f.add(panel_size, block_size)
    wide_row = f.mul(f.round_up(depth, form.lanes), item)
    if form.half:
        sizes = f.add(sizes, f.mul(f.min(m, ROWS), wide_row))
    start, get, go = f.block, f.fresh(), f.fresh()
    f.branch(f.cmp("ne", sizes, 0), get, go)
    f.label(get)
    buffer = f.alloc("%ctx", sizes)
    got = f.block
    f.br(go)
    f.label(go)
    scratch = f(f"phi ptr [ null, %{start} ], [ {buffer}, %{got} ]")
    block = f.gep(scratch, panel_size)
    wide_a = f.gep(block, block_size)

    lasting = f.max(f.min(f.arith("udiv", SHARING_BYTES, f.max(power, 1)), DEPTH_BLOCK), LEAST_DEPTH)
    depth_step = f.select(f.cmp("eq", mode, DIRECT), lasting, DEPTH_BLOCK)
    crowded = f.both(f.cmp("sge", power, PACK_STRIDE), f.cmp("sle", m, FEW_TO_READ_AHEAD))
    ahead = f.select(f.both(f.cmp("eq", mode, DIRECT), crowded), 0, AHEAD_ROWS)
    d, zeros = f.words(STATE_WORDS), f(f"alloca {form.wide(form.vectors)}, align 64")
    f.store(form.wide(form.vectors), "zeroinitializer", zeros, 64)
    state: dict[int, Value] = {
        A_ROW: a.row, A_COLUMN: a.column, ALL_DEPTH: depth, DEPTH_STEP: depth_step, READ_AHEAD: ahead, SOURCE_ROW: b.row, SOURCE_COLUMN: b.column,
        RESULT_ROW: c.row, RESULT_COLUMN: c.column, MODE: mode, VIA_SCRATCH: f(f"zext i1 {via_scratch} to i64"), ZEROS: f(f"ptrtoint ptr {zeros} to i64"),
        EPILOGUE: epilogue, SWAPPED: f(f"zext i1 {swap} to i64"), CODE: DONE}
    if form.half:
        state |= {A_ROW: wide_row, A_COLUMN: item}
    for word, value in state.items():
        f.set_word(d, word, value)
    f.store("ptr", "%ctx", f.gep(d, 8 * CONTEXT))
    f.store("ptr", "%sizes", f.gep(d, 8 * SIZES))
    f.store("ptr", scratch, f.gep(d, 8 * PANEL))
    f.store("ptr", block, f.gep(d, 8 * BLOCK))
    merged = f.cmp("eq", batches, 1)
    with f.loop(lo, hi) as unit:
        # A strip: the neighbouring panels of one block of rows.
        panel = f.rem(unit.index, panels)
        other = f.div(unit.index, panels)
        unit.step = f.min(f.sub(panels, panel), f.sub(hi, unit.index))
        batch = f.div(other, blocks)
        step_m = f.ceil_div(m, blocks)
        m0, n0 = f.mul(f.rem(other, blocks), step_m), f.mul(panel, form.panel)
        rows, columns = f.min(step_m, f.sub(m, m0)), f.min(f.mul(unit.step, form.panel), f.sub(n, n0))
        for word, value in {BATCH: batch, FIRST_ROW: m0, FIRST_COLUMN: n0}.items():
            f.set_word(d, word, value)
        pa = f.gep(a_data, f.mul(m0, a.row))
        pb = f.gep(b_data, f.select(packed, f.mul(f.mul(n0, depth), item), f.mul(n0, b.column)))
        pc = f.gep(f.gep(c.data, f.mul(m0, c.row)), f.mul(n0, c.column))
        for i in reversed(range(batch_rank)):
            size = f.select(merged, 1, batch_sizes[i])
            at = f.rem(batch, size)
            batch = f.div(batch, size)
            pa, pb, pc = f.gep(pa, f.mul(at, a_batch[i])), f.gep(pb, f.mul(at, b_batch[i])), f.gep(pc, f.mul(at, c.batch[i]))

        def lines(pa: str = pa, pb: str = pb, pc: str = pc, columns: str = columns) -> None:
            to, to_row = f.select(via_scratch, block, pc, "ptr"), f.select(via_scratch, c_row, c.row)
            arguments: list[tuple[str, Value]] = [("ptr", pa), ("ptr", pb), ("ptr", to), *(("i64", v) for v in (a.row, a.column, b.row, to_row, depth, columns, m))]
            f.choose(f.cmp("eq", m, 1), lambda: f.call("void", "lines1", *arguments), lambda: f.call("void", f"lines{MOST_LINES}", *arguments))
            with f.when(via_scratch):
                f.call("void", "copy_out", ("ptr", pc), ("i64", c.row), ("i64", c.column), ("ptr", block), ("i64", c_row), ("i64", m), ("i64", columns))
            f.call("void", "settle", ("ptr", d), ("i64", 0), ("i64", m), ("i64", columns))

        def dots(pa: str = pa, pb: str = pb, pc: str = pc, rows: str = rows, columns: str = columns) -> None:
            arguments: list[tuple[str, Value]] = [("ptr", pa), ("ptr", pb), ("ptr", pc),
                                                  *(("i64", v) for v in (a.row, c.row, b.column, c.column, depth, rows, columns))]
            f.call("void", "dots", *arguments)
            f.call("void", "settle", ("ptr", d), ("i64", 0), ("i64", rows), ("i64", columns))

        def tiles(pa: str = pa, pb: str = pb, pc: str = pc, rows: str = rows, columns: str = columns) -> None:
            if form.half:
                _packed(f, form, f.select(f.cmp("eq", a.column, kept), PACK_ROWS, PACK_ANY), [
                    ("ptr", wide_a), ("ptr", pa), ("i64", a.row), ("i64", a.column), ("i64", rows), ("i64", depth), ("i64", f.round_up(depth, form.lanes))])
                pa = wide_a
            f.call("void", "by_tiles", ("ptr", d), ("ptr", pa), ("ptr", pb), ("ptr", pc), ("i64", rows), ("i64", columns))

        f.choose(by_lines, lines, tiles if form.half else lambda: f.choose(dot, dots, tiles))
    with f.when(f.cmp("ne", sizes, 0)):
        f.release("%ctx", scratch)
    f.ret(f"i32 {f.load('i32', f.gep(d, 8 * CODE))}")
    f.end()


def _switch(f: Function, value: Value, cases: dict[int, Any]) -> None:
    """Runs the case of a value; any other value runs none."""
    after = f.fresh()
    labels = {number: f.fresh() for number in cases}
    f.emit(f"switch i64 {value}, label %{after} [ {' '.join(f'i64 {number}, label %{label}' for number, label in labels.items())} ]")
    for number, label in labels.items():
        f.label(label)
        cases[number]()
        f.br(after)
    f.label(after)


def _packed(f: Function, form: Form, how: Value, arguments: list[tuple[str, Value]]) -> str:
    """Copies in the way `how` (arguments: see packs.define_packs) and returns where the lines begin: in the copy, or where they were."""
    makers = {PACK_ANY: "pack_any", PACK_ROWS: "pack_rows"}
    if form.half or form.item >= 4:
        makers[PACK_COLUMNS] = "pack_columns"
    _switch(f, how, {number: lambda name=name: f.call("void", name, *arguments) for number, name in makers.items()})
    return f.select(f.cmp("sgt", how, PACKED), arguments[0][1], arguments[1][1], "ptr")


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
