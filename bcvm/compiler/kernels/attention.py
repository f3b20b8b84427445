"""Attention, fused: out[..., L, V] = softmax(q[..., L, E] @ kt[..., E, S] * scale, masked) @ v[..., S, V] without the scores in memory.

Operands q, kt, v, scale (one element), those of the masks, out; each with batch_rank batch strides, then those of row and column, in bytes. Strides may be any, 0 too.
Sizes are the batch dims, L, S, E, V, and whether the scale is a divisor. Keys and values may come in two parts, one after the other (a cache and what is new): then kt
and v are the first, the operands behind scale the second ones, S counts v's, and two more sizes say how many keys kt has and how many values are in the second v. Units are blocks of `queries` rows of each batch. S = 0 gives zeros.

Masks, applied to the scaled scores in order:
  causal    no operand: key j counts for query i if j <= i
  add       an operand [..., L, S] of the dtype, added
  keep      an operand [..., L, S] of bool and a number, which is the score where it is false
  drop      the same, where it is true

Two ways. Tiles (attention_tiles) hold queries in the lanes of vectors: the scores lie as [key][query], so that a softmax needs nothing across lanes, and keys and
values are read where they lie, one element at a time. Up to FEW queries go one by one (attention_rows) if keys and values have unit stride: a line of scores by dot
products, values as vectors. Both take the keys in strips and rescale what they have when a strip brings a larger score (Milakov and Gimelshein 2018, Dao et al.
2022). The order of summation depends on sizes and strides only, never on lo..hi.

As in the plain form a row is NaN whose scores hold NaN or +inf, or are all -inf, and so is a column with a value that is not finite at a key that causality drops.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from . import attention_rows, attention_tiles
from .attention_form import (
    ASK,
    ASKED,
    DIMS,
    FACTOR,
    FIRST,
    K_DIM,
    K_KEY,
    K_MORE,
    K_MORE_DIM,
    K_MORE_KEY,
    K_SPLIT,
    KEYS,
    MASK,
    MASK_COLUMN,
    MASK_NUMBER,
    MASK_ROW,
    MASK_WORDS,
    OUT,
    OUT_COLUMN,
    OUT_ROW,
    Q_COLUMN,
    Q_ROW,
    ROWS,
    V_DIM,
    V_KEY,
    V_MORE,
    V_MORE_DIM,
    V_MORE_KEY,
    V_SPLIT,
    WIDTH,
    K,
    Lanes,
    Q,
    V,
    has_operand,
    skips,
    words_of,
)
from .builder import DONE, KERNEL_PARAMS, NO_MEMORY, Function, Module, Value

__all__ = ["KINDS", "NO_MEMORY", "generate", "queries", "units"]

KINDS = ("causal", "add", "keep", "drop")


def queries(dtype: str, target: Target) -> int:
    """Rows in a unit."""
    return Lanes(dtype, target).queries


def few(lanes: Lanes) -> int:
    """So many rows beyond whole vectors of them do not go by tiles."""
    return {16: 12, 8: 5}.get(lanes.count, lanes.count // 2)  # rows go in fours, and one alone


def units(batch: int, rows: int, dtype: str, target: Target) -> int:
    """The number of units, batch being the product of the batch sizes."""
    return batch * -(-rows // queries(dtype, target))


def generate(dtype: str, batch_rank: int, masks: Sequence[str], target: Target, joined: bool = False, single: bool = False) -> KernelSource:
    """dtype: float32 or float64, that of all operands but bools. masks: of KINDS. joined: keys and values come in two parts, without masks. single: L is 1, which makes
    a kernel of a quarter of the size. Raises Unsupported for others."""
    lanes = Lanes(dtype, target)
    module = Module()
    if joined and masks:
        raise Unsupported("attention with keys in two parts and masks")
    if skips(masks):
        attention_rows.define_taint(module, lanes)
    attention_rows.define_rows(module, lanes, masks, joined, (1,) if single else (1, attention_rows.GROUP))
    if single:
        _define_copy(module, lanes)
    else:
        attention_tiles.define_tiles(module, lanes, masks, joined)
    name = "_".join(["attention", dtype, str(batch_rank), *masks, *(["joined"] if joined else []), *(["single"] if single else [])])
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    (_single if single else _any_rows)(f, lanes, _Call(f, lanes, batch_rank, masks, joined))
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)


class _Operand:
    """Pointer and strides."""

    def __init__(self, f: Function, number: int, batch_rank: int) -> None:
        first = number * (batch_rank + 3)
        self.data: str = f.load("ptr", f.gep("%operands", 8 * first))
        words = [f.word("%operands", first + 1 + i) for i in range(batch_rank + 2)]
        self.batch: list[str] = words[:batch_rank]
        self.row: Value = words[-2]
        self.column: Value = words[-1]


class _Call:
    """The kernel's operands and sizes, and its loop over units. Returns at once from the kernel if there is nothing to do."""

    def __init__(self, f: Function, lanes: Lanes, batch_rank: int, masks: Sequence[str], joined: bool) -> None:
        self.f, self.lanes, self.masks = f, lanes, masks
        self.sizes = [f.word("%sizes", i) for i in range(batch_rank)]
        self.rows, self.keys, self.dims, self.width, self.divide = (f.word("%sizes", batch_rank + i) for i in range(5))
        self.q, self.k, self.v, self.scale = (_Operand(f, i, batch_rank) for i in range(4))
        self.more: list[_Operand] = []
        self.splits: tuple[str, ...] = ()
        if joined:
            self.more = [_Operand(f, i, batch_rank) for i in (4, 5)]
            self.splits = f.word("%sizes", batch_rank + 5), self.keys
            self.keys = str(f.add(self.keys, f.word("%sizes", batch_rank + 6)))
        self.matrices: dict[int, _Operand] = {}  # of masks, by number
        self.numbers: dict[int, _Operand] = {}
        at = 4 + len(self.more)
        for i, kind in enumerate(masks):
            if has_operand(kind):
                self.matrices[i], at = _Operand(f, at, batch_rank), at + 1
            if kind in ("keep", "drop"):
                self.numbers[i], at = _Operand(f, at, batch_rank), at + 1
        self.out = _Operand(f, at, batch_rank)
        self.blocks = f.ceil_div(self.rows, lanes.queries)
        total: Value = self.blocks
        for size in self.sizes:
            total = f.mul(total, size)
        self.hi = f.select(f.cmp("slt", "%hi", 0), total, "%hi")
        f.fail_if(f.either(f.cmp("eq", self.width, 0), f.cmp("sge", "%lo", self.hi)), DONE)
        self.state = f.words(words_of(masks))

    def fits(self) -> str:
        """Whether rows may go one by one."""
        others = [(self.q.column, self.dims), (self.out.column, self.width), *((x.column, self.width) for x in (self.v, *self.more[1:]))]
        return attention_rows.fits(self.f, self.lanes, self.dims, self.width, [(x.row, x.column) for x in (self.k, *self.more[:1])], others)

    def take_scratch(self, parts: dict[int, Value], extra: Value = 0) -> tuple[str, str]:
        """Scratch for these parts, by their words of the state, and `extra` bytes: where it begins, and where the extra bytes do."""
        f = self.f
        rounded = {word: f.round_up(size, 64) for word, size in parts.items()}
        needed = extra
        for count in rounded.values():
            needed = f.add(needed, count)
        place = scratch = f.alloc("%ctx", needed)
        for word, count in rounded.items():
            f.store("ptr", place, f.gep(self.state, 8 * word))
            place = f.gep(place, count)
        return scratch, place

    def set_state(self) -> None:
        """All words of the state but pointers and the unit's rows."""
        f, lanes, d = self.f, self.lanes, self.state
        q, k, v, out = self.q, self.k, self.v, self.out
        words: dict[int, Value] = {Q_ROW: q.row, Q_COLUMN: q.column, K_DIM: k.row, K_KEY: k.column, V_KEY: v.row, V_DIM: v.column, OUT_ROW: out.row,
                                   OUT_COLUMN: out.column, KEYS: self.keys, DIMS: self.dims, WIDTH: self.width}
        if self.more:
            k, v = self.more
            words |= {K_SPLIT: self.splits[0], K_MORE_DIM: k.row, K_MORE_KEY: k.column, V_SPLIT: self.splits[1], V_MORE_KEY: v.row, V_MORE_DIM: v.column}
        for i, m in self.matrices.items():
            words |= {MASK + MASK_WORDS * i + MASK_ROW: m.row, MASK + MASK_WORDS * i + MASK_COLUMN: m.column}
        for word, value in words.items():
            f.set_word(d, word, value)
        given = lanes.one(f, self.scale.data)
        factor = f.select(f.cmp("ne", self.divide, 0), f(f"fdiv {lanes.element} {lanes.number(1)}, {given}"), given, lanes.element)
        if not self.masks:  # weights are powers of 2: one multiplication less for each score
            factor = f(f"fmul {lanes.element} {factor}, {lanes.number(1 / math.log(2))}")
        lanes.put(f, factor, f.gep(d, 8 * FACTOR))
        for i, number in self.numbers.items():
            lanes.put(f, lanes.one(f, number.data), f.gep(d, 8 * (MASK + MASK_WORDS * i + MASK_NUMBER)))

    @contextmanager
    def units(self, ahead: bool) -> Iterator[dict[int, str]]:
        """For each unit the pointers to what it reads and writes, by their words of the state, where they have been stored, and the number of its first row in FIRST.
        ahead: the pointers are those of the next unit instead; the state has its own."""
        f = self.f
        moving = dict(zip((K, V, K_MORE, V_MORE), (self.k, self.v, *self.more), strict=False)) | self.by_row
        with f.loop(f.sub("%lo", int(ahead)), self.hi) as unit:
            number = f.min(f.add(unit.index, 1), f.sub(self.hi, 1)) if ahead else unit.index
            block, batch = f.rem(number, self.blocks), f.div(number, self.blocks)
            first = f.mul(block, self.lanes.queries)
            pointers = {word: f.gep(o.data, f.mul(first, o.row)) if word in self.by_row else o.data for word, o in moving.items()}
            for i in reversed(range(len(self.sizes))):
                index = f.rem(batch, self.sizes[i])
                batch = f.div(batch, self.sizes[i])
                pointers = {word: f.gep(p, f.mul(index, moving[word].batch[i])) for word, p in pointers.items()}
            if ahead:
                with f.when(f.cmp("sge", unit.index, "%lo")):
                    yield pointers
            for word, p in pointers.items():
                f.store("ptr", p, f.gep(self.state, 8 * word))
            f.set_word(self.state, FIRST, first)
            if not ahead:
                yield pointers

    @property
    def by_row(self) -> dict[int, _Operand]:
        """What has a row for each query."""
        return {Q: self.q, OUT: self.out} | {MASK + MASK_WORDS * i: m for i, m in self.matrices.items()}


def _any_rows(f: Function, lanes: Lanes, call: _Call) -> None:
    """Whole vectors of rows, and what is nearly one, by tiles; the rest by rows."""
    d = call.state
    narrow = call.fits()
    alone = f.both(narrow, f.cmp("sle", call.rows, few(lanes)))  # no tiles at all
    by_rows, by_tiles = (part.scratch(f, lanes, call.masks, call.dims, call.keys, call.width) for part in (attention_rows, attention_tiles))
    scratch, _ = call.take_scratch({word: f.select(alone, size, f.max(size, by_tiles[word])) for word, size in by_rows.items()})
    call.set_state()
    attention_tiles.begin_asking(f, d, call.dims)
    listed = f.load("ptr", f.gep(d, 8 * ASKED))
    with call.units(ahead=True) as following:
        f.store("ptr", listed, f.gep(d, 8 * ASK))
        f.store("ptr", listed, f.gep(d, 8 * ASKED))
        own_pointers = {word: f.load("ptr", f.gep(d, 8 * word)) for word in (*call.by_row, K)}
        first = f.word(d, FIRST)

        def ask(pointer: str, row: Value, column: Value, rows: Value, length: Value, condition: str = "") -> None:
            """For what lies in rows."""
            wanted = f.cmp("eq", column, lanes.item)
            rows = f.select(f.both(wanted, condition) if condition else wanted, rows, 0)
            f.call("void", "ask", ("ptr", d), ("ptr", pointer), ("i64", row), ("i64", rows), ("i64", f.mul(length, lanes.item)))

        own = f.min(lanes.queries, f.sub(call.rows, first))
        over = f.rem(own, lanes.count)
        rest = f.select(f.both(narrow, f.cmp("sle", over, few(lanes))), over, 0)
        tiled = f.sub(own, rest)
        f.set_word(d, ROWS, tiled)
        with f.when(f.cmp("ne", tiled, 0)):
            q, k, v, out = call.q, call.k, call.v, call.out
            other = f(f"icmp ne ptr {following[K]}, {own_pointers[K]}")
            ask(own_pointers[OUT], out.row, out.column, lanes.queries, call.width)
            ask(following[Q], q.row, q.column, lanes.queries, call.dims)
            many_k, many_v = call.splits or (call.keys, call.keys)
            ask(following[K], k.column, k.row, many_k, call.dims, other)
            ask(following[V], v.row, v.column, many_v, call.width, other)
            f.call("void", "by_tiles", ("ptr", d))
        with f.when(f.cmp("ne", rest, 0)):
            for word, o in call.by_row.items():
                f.store("ptr", f.gep(own_pointers[word], f.mul(tiled, o.row)), f.gep(d, 8 * word))
            f.set_word(d, FIRST, f.add(first, tiled))
            f.set_word(d, ROWS, rest)
            f.call("void", "by_rows", ("ptr", d))
    f.release("%ctx", scratch)


def _single(f: Function, lanes: Lanes, call: _Call) -> None:
    """One row; what has other strides than that way wants is copied first."""
    d, item = call.state, lanes.item
    narrow = call.fits()
    dims, width = f.round_up(call.dims, lanes.count), f.round_up(call.width, lanes.count)
    k_row, v_row = f.mul(dims, item), f.mul(width, item)
    k_size, v_size = f.mul(call.keys, k_row), f.mul(call.keys, v_row)
    extra = f.select(narrow, 0, f.add(f.add(k_size, v_size), f.add(k_row, v_row)))
    scratch, k_copy = call.take_scratch(attention_rows.scratch(f, lanes, call.masks, call.dims, call.keys, call.width), extra)
    v_copy = f.gep(k_copy, k_size)
    q_copy = f.gep(v_copy, v_size)
    out_copy = f.gep(q_copy, k_row)
    with f.loop(0, extra, lanes.target.vector_bytes) as at:  # zeros between rows
        lanes.store(f, "zeroinitializer", f.gep(k_copy, at.index))
    call.set_state()
    f.set_word(d, ROWS, 1)
    splits = call.splits or (call.keys, call.keys)
    with f.when(f.invert(narrow)):
        words: dict[int, Value] = {K_DIM: item, K_KEY: k_row, V_KEY: v_row, V_DIM: item, DIMS: dims, WIDTH: width}
        if call.more:
            words |= {K_MORE_DIM: item, K_MORE_KEY: k_row, V_MORE_KEY: v_row, V_MORE_DIM: item}
        for word, value in words.items():
            f.set_word(d, word, value)

    def copy(to: str, to_row: Value, to_column: Value, source: str, row: Value, column: Value, rows: Value, columns: Value) -> None:
        f.call("void", "copy", ("ptr", to), ("i64", to_row), ("i64", to_column), ("ptr", source), ("i64", row), ("i64", column), ("i64", rows), ("i64", columns))

    with call.units(ahead=False) as pointers:
        with f.when(f.invert(narrow)):
            copy(q_copy, 0, item, pointers[Q], 0, call.q.column, 1, call.dims)
            copies: list[tuple[int, str, Value, Value, Value, Value, Value]] = [
                (K, k_copy, k_row, call.k.column, call.k.row, splits[0], call.dims),
                (V, v_copy, v_row, call.v.row, call.v.column, splits[1], call.width)]
            if call.more:
                k, v = call.more
                copies += [(K_MORE, f.gep(k_copy, f.mul(splits[0], k_row)), k_row, k.column, k.row, f.sub(call.keys, splits[0]), call.dims),
                           (V_MORE, f.gep(v_copy, f.mul(splits[1], v_row)), v_row, v.row, v.column, f.sub(call.keys, splits[1]), call.width)]
            for word, to, to_row, row, column, rows, columns in copies:
                copy(to, to_row, item, pointers[word], row, column, rows, columns)
                f.store("ptr", to, f.gep(d, 8 * word))
            f.store("ptr", q_copy, f.gep(d, 8 * Q))
            f.store("ptr", out_copy, f.gep(d, 8 * OUT))
        f.call("void", "rows1", ("ptr", d), ("i64", 0))
        with f.when(f.invert(narrow)):
            copy(pointers[OUT], 0, call.out.column, out_copy, 0, item, 1, call.width)
    f.release("%ctx", scratch)


def _define_copy(module: Module, lanes: Lanes) -> None:
    """copy(to, to_row, to_column, from, row, column, rows, columns)."""
    names = (("ptr", "to"), ("i64", "to_row"), ("i64", "to_column"), ("ptr", "from"), ("i64", "row"), ("i64", "column"), ("i64", "rows"), ("i64", "columns"))
    f = Function(module, "copy", names)
    with f.loop(0, "%rows") as i, f.loop(0, "%columns") as j:
        source = f.gep(f.gep("%from", f.mul(i.index, "%row")), f.mul(j.index, "%column"))
        lanes.put(f, lanes.one(f, source), f.gep(f.gep("%to", f.mul(i.index, "%to_row")), f.mul(j.index, "%to_column")))
    f.ret()
    f.end()
