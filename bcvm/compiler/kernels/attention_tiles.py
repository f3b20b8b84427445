"""Attention by tiles: queries in the lanes of two vectors, the scores of a strip of keys as [key][query].

Meanwhile memory is asked for that is needed soon: where the unit's results go, and the next unit's queries, keys and values. They are listed as columns of lines of the
cache; each tile takes a column, and asks for a line in each of its turns. All at once they would keep the processor waiting.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from .attention_form import (
    ASK,
    ASK_FULL,
    ASK_ROWS,
    ASKED,
    DIMS,
    FACTOR,
    FIRST,
    KEYS,
    MASK,
    MASK_COLUMN,
    MASK_NUMBER,
    MASK_ROW,
    MASK_WORDS,
    MASKED,
    OUT,
    OUT_COLUMN,
    OUT_ROW,
    Q_COLUMN,
    Q_ROW,
    ROWS,
    SUMS,
    TURNED,
    WIDTH,
    Lanes,
    Q,
    has_operand,
    portions,
    skips,
    with_mask,
)
from .attention_form import STRIP as SCORES
from .builder import Function, Module, Value

STRIP = 512     # keys whose scores are kept at once
SUMMED = 32     # weights whose sum is one term of a longer one: fewer roundings
LINE = 64       # bytes of a line of the caches
ASKS = 96       # columns that can be listed
DEPTH = 128     # keys whose values are added at once: they stay in the nearer caches, and their sum is one term


def define_tiles(module: Module, lanes: Lanes, masks: Sequence[str], joined: bool) -> None:
    """Defines by_tiles(d): all rows of the state's unit. joined: keys and values come in two parts."""
    _define_ask(module)
    for vectors in (1, 2):
        for rows in _heights(lanes):
            _define_tile(module, lanes, rows, vectors)
        _define_block(module, lanes, vectors)
        _define_weigh(module, lanes, vectors, masks)
    _define_turn(module, lanes, "turn", False)
    for name, kinds in (("", {"add"}), ("_bool", {"keep", "drop"})):
        if kinds & set(masks):
            _define_repeat(module, lanes, "repeat" + name, bool(name))
            if name:
                _define_turn(module, lanes, "turn" + name, True)
    _define_by_tiles(module, lanes, masks, joined)


def _heights(lanes: Lanes) -> tuple[int, ...]:
    return (12, 4, 2, 1) if lanes.target.registers >= 32 else (6, 4, 2, 1)


def begin_asking(f: Function, d: str, dims: Value) -> None:
    """Sets the state's words, without columns yet."""
    table = f(f"alloca [{ASKS + 1} x [2 x i64]], align 64")  # one more than is used
    f.store("ptr", table, f.gep(d, 8 * ASKED))
    f.store("ptr", f.gep(table, 16 * ASKS), f.gep(d, 8 * ASK_FULL))
    f.set_word(d, ASK_ROWS, f.max(f.min(dims, DEPTH), 1))


def _define_ask(module: Module) -> None:
    """ask(d, from, row, rows, bytes): lists the columns of so many bytes of so many rows, which lie `row` bytes apart."""
    f = Function(module, "ask", [("ptr", "d"), ("ptr", "from"), ("i64", "row"), ("i64", "rows"), ("i64", "bytes")])
    full = f.load("ptr", f.gep("%d", 8 * ASK_FULL))
    with f.loop(0, "%rows", f.word("%d", ASK_ROWS), carried=[("ptr", f.load("ptr", f.gep("%d", 8 * ASKED)))]) as r:
        start = f.gep("%from", f.mul("%row", r.index))
        with f.loop(0, "%bytes", LINE, carried=[("ptr", r.carried[0])]) as b:
            place = b.carried[0]
            f.store("ptr", f.gep(start, b.index), place)
            f.store("i64", "%row", f.gep(place, 8))
            b.next = [f.select(f(f"icmp ult ptr {place}, {full}"), f.gep(place, 16), full, "ptr")]
        r.next = [b.carried[0]]
    f.store("ptr", r.carried[0], f.gep("%d", 8 * ASKED))
    f.ret()
    f.end()


def _define_tile(module: Module, lanes: Lanes, rows: int, vectors: int) -> None:
    """c[i] = first[i] + sum over k of a[i, k] * b[k] for `rows` rows of c; rows of b and c are `width` bytes apart."""
    names = [*(("ptr", n) for n in ("a", "b", "c", "first", "ask")), *(("i64", n) for n in ("first_row", "a_row", "a_column", "depth", "ask_row"))]
    f = Function(module, f"tile{rows}_{vectors}", names)
    size = lanes.target.vector_bytes
    steps: list[Value] = [f.mul("%a_row", i) for i in range(min(rows, 4))]
    starts = [f.gep("%a", f.mul("%a_row", i)) for i in range(0, rows, 4)]
    with f.loop(0, "%depth", carried=[("ptr", "%b"), ("ptr", "%ask"), *(("ptr", p) for p in starts), *((lanes.vector, "zeroinitializer"),) * (rows * vectors)]) as k:
        b, ask, pointers, sums = *k.carried[:2], k.carried[2:2 + len(starts)], k.carried[2 + len(starts):]
        f.prefetch(ask)
        columns = [lanes.load(f, f.gep(b, v * size)) for v in range(vectors)]
        out = []
        for i in range(rows):
            one = lanes.splat(f, lanes.one(f, f.gep(pointers[i // 4], steps[i % 4])))
            out += [lanes.multiply_add(f, one, columns[v], sums[i * vectors + v]) for v in range(vectors)]
        k.next = [f.gep(b, lanes.width), f.gep(ask, "%ask_row"), *(f.gep(p, "%a_column") for p in pointers), *out]
    for n, s in enumerate(k.carried[2 + len(starts):]):
        v = n % vectors * size
        before = lanes.load(f, f.gep(f.gep("%first", f.mul("%first_row", n // vectors)), v))
        lanes.store(f, lanes.op(f, "fadd", before, s), f.gep("%c", n // vectors * lanes.width + v))
    f.ret()
    f.end()


_BLOCK = (("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("ptr", "first"), ("i64", "first_row"), ("i64", "a_row"), ("i64", "a_column"), ("i64", "depth"), ("i64", "rows"), ("ptr", "d"))


def _define_block(module: Module, lanes: Lanes, vectors: int) -> None:
    """The tile for any number of rows."""
    f = Function(module, f"block{vectors}", _BLOCK)
    heights = _heights(lanes)
    with f.loop(0, "%rows") as i:
        left = f.sub("%rows", i.index)
        step: Value = 1
        for h in reversed(heights[:-1]):
            step = f.select(f.cmp("sge", left, h), h, step)
        i.step = step
        a, c, first = f.gep("%a", f.mul("%a_row", i.index)), f.gep("%c", f.mul(i.index, lanes.width)), f.gep("%first", f.mul("%first_row", i.index))
        listed = f.load("ptr", f.gep("%d", 8 * ASK))
        more = f(f"icmp ult ptr {listed}, {f.load('ptr', f.gep('%d', 8 * ASKED))}")
        ask = f.select(more, f.load("ptr", listed), c, "ptr"), f.select(more, f.word(listed, 1), 0)
        f.store("ptr", f.gep(listed, f.select(more, 16, 0)), f.gep("%d", 8 * ASK))
        done, none = f.fresh(), f.fresh()
        labels = {h: f.fresh() for h in heights}
        f.emit(f"switch i64 {step}, label %{none} [ {' '.join(f'i64 {h}, label %{label}' for h, label in labels.items())} ]")
        for h, label in labels.items():
            f.label(label)
            f.call("void", f"tile{h}_{vectors}", ("ptr", a), ("ptr", "%b"), ("ptr", c), ("ptr", first), ("ptr", ask[0]),
                   *(("i64", f"%{n}") for _, n in _BLOCK[4:8]), ("i64", ask[1]))
            f.br(done)
        f.label(none)
        f.br(done)
        f.label(done)
    f.ret()
    f.end()


_TURN = (("ptr", "to"), ("i64", "to_row"), ("i64", "to_column"), ("ptr", "from"), ("i64", "row"), ("i64", "column"), ("i64", "count"), ("i64", "rows"), ("i64", "filled"),
         ("ptr", "factors"), ("i64", "step"))


def _define_turn(module: Module, lanes: Lanes, name: str, truth: bool) -> None:
    """name(to, to_row, to_column, from, row, column, count, rows, filled, factors, step): `count` columns of `rows` rows become rows of `filled` elements.

    What would lie behind the last row is that row again. Column c is multiplied by the factor at c * step, for which a whole vector may be read. truth: bools become 0 or 1
    bits instead."""
    f = Function(module, name, _TURN)
    n, size = lanes.count, 1 if truth else lanes.item
    last, final = f.sub("%rows", 1), f.sub("%count", 1)
    masked = lanes.target.avx512
    unit = f.both(f.cmp("eq", "%column", size), f.cmp("eq", "%to_column", lanes.item))
    whole = "%count" if masked and not truth else f.mul(f.div("%count", n), n)
    with f.loop(0, "%filled", n) as group:
        left = f.sub("%filled", group.index)
        fits = unit if masked else f.both(unit, f.cmp("sge", left, n))
        dense = f.select(fits, whole, 0)
        lines = [f.gep("%from", f.mul(f.min(f.add(group.index, i), last), "%row")) for i in range(n)]
        to = f.gep("%to", f.mul(group.index, "%to_column"))
        with f.loop(0, dense, n) as c:
            at = f.mul(c.index, size)
            if truth:
                loaded = [f(f"zext <{n} x i8> {f.load(f'<{n} x i8>', f.gep(p, at), 1)} to {lanes.integers}") for p in lines]
                v = [f(f"bitcast {lanes.integers} {x} to {lanes.vector}") for x in loaded]
            else:
                inside = lanes.below(f, f.sub("%count", c.index)) if masked else ""
                factors = lanes.load(f, f.gep("%factors", f.mul(c.index, "%step")))
                v = [lanes.op(f, "fmul", lanes.load(f, f.gep(p, at), inside), factors) for p in lines]
            filled = lanes.below(f, left) if masked else ""
            for i, x in reversed(list(enumerate(lanes.transpose(f, v)))):  # rows behind the last one are overwritten by it
                number = f.min(f.add(c.index, i), final)
                lanes.store(f, x, f.gep(to, f.mul(number, "%to_row")), filled)
        with f.loop(dense, "%count") as c, f.loop(0, f.min(left, n)) as r:
            source = f.gep(f.gep("%from", f.mul(f.min(f.add(group.index, r.index), last), "%row")), f.mul(c.index, "%column"))
            if truth:
                value = lanes.truth(f, source)
            else:
                value = f(f"fmul {lanes.element} {lanes.one(f, source)}, {lanes.one(f, f.gep('%factors', f.mul(c.index, '%step')))}")
            lanes.put(f, value, f.gep(f.gep(to, f.mul(c.index, "%to_row")), f.mul(r.index, "%to_column")))
    f.ret()
    f.end()


def _define_repeat(module: Module, lanes: Lanes, name: str, truth: bool) -> None:
    """name(to, from, column, count): what `turn` makes of rows that are all the same one, for all queries."""
    f = Function(module, name, [("ptr", "to"), ("ptr", "from"), ("i64", "column"), ("i64", "count")])
    with f.loop(0, "%count", carried=[("ptr", "%to"), ("ptr", "%from")]) as c:
        to, source = c.carried
        value = lanes.splat(f, lanes.truth(f, source) if truth else lanes.one(f, source))
        for v in range(2):
            lanes.store(f, value, f.gep(to, v * lanes.target.vector_bytes))
        c.next = [f.gep(to, lanes.width), f.gep(source, "%column")]
    f.ret()
    f.end()


def _define_weigh(module: Module, lanes: Lanes, vectors: int, masks: Sequence[str]) -> None:
    """weigh(d, stats, first, count): the scores of keys first..first+count become weights. stats: the largest scores, the sums of weights, and the factor for what was
    added up so far, each two vectors."""
    f = Function(module, f"weigh{vectors}", [("ptr", "d"), ("ptr", "stats"), ("i64", "first"), ("i64", "count")])
    size = lanes.target.vector_bytes
    natural = bool(masks)
    strip = f.load("ptr", f.gep("%d", 8 * SCORES))
    masked = f.load("ptr", f.gep("%d", 8 * MASKED)) if masks else ""
    numbers = [lanes.splat(f, lanes.number_at(f, MASK + MASK_WORDS * i + MASK_NUMBER)) if m in ("keep", "drop") else "" for i, m in enumerate(masks)]
    last = f.add(f.word("%d", FIRST), f.sub(f.word("%d", ROWS), 1))
    # Lanes behind the last query do as the last one does: what they hold is written over it.
    rows = []
    if "causal" in masks:
        highest = lanes.splat_number(f, last)
        for v in range(vectors):
            own = lanes.numbers(f, f.add(f.word("%d", FIRST), v * lanes.count))
            rows.append(f(f"select <{lanes.count} x i1> {f(f'icmp slt {lanes.integers} {own}, {highest}')}, {lanes.integers} {own}, {lanes.integers} {highest}"))
    before = [lanes.load(f, f.gep("%stats", v * size)) for v in range(vectors)]
    with f.loop(0, "%count", carried=[(lanes.vector, b) for b in before]) as j:
        at = f.mul(j.index, lanes.width)
        out = []
        for v in range(vectors):
            place = f.gep(strip, f.add(at, v * size))
            x = lanes.load(f, place)
            for i, kind in enumerate(masks):
                if kind == "causal":
                    key = lanes.splat_number(f, f.add("%first", j.index))
                    x = lanes.select(f, f(f"icmp sle {lanes.integers} {key}, {rows[v]}"), x, lanes.constant(-math.inf))
                else:
                    mask = lanes.load(f, f.gep(masked, f.add(at, i * STRIP * lanes.width + v * size)))
                    x = with_mask(f, lanes, kind, x, mask, numbers[i])
            if masks:
                lanes.store(f, x, place)
            out.append(lanes.larger(f, x, j.carried[v]))
        j.next = list(out)
    largest = j.carried
    less = [lanes.safe(f, x) for x in largest]
    with f.loop(0, "%count", SUMMED, carried=[(lanes.vector, "zeroinitializer")] * vectors) as block:
        with f.loop(block.index, f.min(f.add(block.index, SUMMED), "%count"), carried=[(lanes.vector, "zeroinitializer")] * vectors) as j:
            at = f.mul(j.index, lanes.width)
            sums = []
            for v in range(vectors):
                place = f.gep(strip, f.add(at, v * size))
                p = lanes.power(f, lanes.op(f, "fsub", lanes.load(f, place), less[v]), natural)
                lanes.store(f, p, place)
                sums.append(lanes.op(f, "fadd", j.carried[v], p))
            j.next = list(sums)
        block.next = [lanes.op(f, "fadd", total, more) for total, more in zip(block.carried, j.carried, strict=True)]
    for v in range(vectors):
        place = f.gep("%stats", lanes.width + v * size)
        factor = lanes.power(f, lanes.op(f, "fsub", before[v], less[v]), natural)
        lanes.store(f, largest[v], f.gep("%stats", v * size))
        lanes.store(f, factor, f.gep("%stats", 2 * lanes.width + v * size))
        lanes.store(f, lanes.multiply_add(f, lanes.load(f, place), factor, block.carried[v]), place)
    f.ret()
    f.end()


def scratch(f: Function, lanes: Lanes, masks: Sequence[str], dims: Value, keys: Value, width: Value) -> dict[int, Value]:
    """Bytes of each part of the scratch, by its word of the state."""
    strip = f.mul(f.min(keys, STRIP), lanes.width)
    sizes = {TURNED: f.mul(f.round_up(dims, lanes.count), lanes.width), SCORES: strip}
    if any(map(has_operand, masks)):
        sizes[MASKED] = len(masks) * STRIP * lanes.width + lanes.count * lanes.width
    sizes[SUMS] = f.mul(f.round_up(width, lanes.count), lanes.width)
    return sizes


def _define_by_tiles(module: Module, lanes: Lanes, masks: Sequence[str], joined: bool) -> None:
    f = Function(module, "by_tiles", [("ptr", "d")])
    size = lanes.target.vector_bytes
    stats = f(f"alloca [{4 * lanes.width} x i8], align 64")
    start = f.gep(stats, 3 * lanes.width)
    scales = f(f"alloca [{lanes.width} x i8], align 64")  # a vector of the factor, one of ones
    ones = f.gep(scales, size)
    q, turned, strip, sums = (f.load("ptr", f.gep("%d", 8 * w)) for w in (Q, TURNED, SCORES, SUMS))
    rows, keys, dims, width = (f.word("%d", w) for w in (ROWS, KEYS, DIMS, WIDTH))
    factor = lanes.number_at(f, FACTOR)
    lanes.store(f, lanes.splat(f, factor), scales)
    lanes.store(f, lanes.constant(1), ones)
    wide = f.cmp("sgt", rows, lanes.count)

    def turn(name: str, *arguments: Value) -> None:
        f.call("void", name, *((t, v) for (t, _), v in zip(_TURN, arguments, strict=True)))

    filled = f.select(wide, lanes.queries, lanes.count)
    turn("turn", turned, lanes.width, lanes.item, q, f.word("%d", Q_ROW), f.word("%d", Q_COLUMN), dims, rows, filled, scales, 0)
    nothing = lanes.splat(f, f(f"fmul {lanes.element} {factor}, 0.0"))  # NaN where the scale is no number, or infinite
    for v in range(2):
        for number, value in ((0, lanes.constant(-math.inf)), (1, "zeroinitializer"), (3, nothing)):
            lanes.store(f, value, f.gep(stats, number * lanes.width + v * size))
    read = keys
    if skips(masks):
        read = f.min(keys, f.add(f.word("%d", FIRST), rows))
        with f.when(f.cmp("slt", read, keys)):
            f.call("void", "taint", ("ptr", "%d"), ("ptr", sums), ("i64", lanes.width), ("i64", read))
        clear = f.cmp("eq", read, keys)
    else:
        clear = "true"
    with f.loop(0, width) as d:
        place = f.gep(sums, f.mul(d.index, lanes.width))
        first = "zeroinitializer"
        if clear != "true":
            first = f(f"select i1 {clear}, {lanes.vector} zeroinitializer, {lanes.vector} {lanes.splat(f, lanes.one(f, place))}")
        for v in range(2):
            lanes.store(f, first, f.gep(place, v * size))

    def block(a: str, b: str, c: str, first: str, first_row: Value, a_row: str, a_column: str, depth: Value, count: Value) -> None:
        arguments = [(t, v) for (t, _), v in zip(_BLOCK, (a, b, c, first, first_row, a_row, a_column, depth, count, "%d"), strict=True)]
        f.choose(wide, lambda: f.call("void", "block2", *arguments), lambda: f.call("void", "block1", *arguments))

    with f.loop(0, read, STRIP) as s:
        count = f.min(STRIP, f.sub(read, s.index))
        for part in portions(f, True, s.index, count, joined):
            block(part.data, turned, f.gep(strip, f.mul(part.before, lanes.width)), start, 0, part.key, part.dim, dims, part.count)
        for i, kind in enumerate(masks):
            if has_operand(kind):
                word = MASK + MASK_WORDS * i
                row, column = f.word("%d", word + MASK_ROW), f.word("%d", word + MASK_COLUMN)
                source = f.gep(f.load("ptr", f.gep("%d", 8 * word)), f.mul(s.index, column))
                to = f.gep(f.load("ptr", f.gep("%d", 8 * MASKED)), i * STRIP * lanes.width)
                name = "" if kind == "add" else "_bool"
                f.choose(f.cmp("eq", row, 0),
                         partial(f.call, "void", "repeat" + name, ("ptr", to), ("ptr", source), ("i64", column), ("i64", count)),
                         partial(turn, "turn" + name, to, lanes.width, lanes.item, source, row, column, count, rows, filled, ones, 0))
        arguments: list[tuple[str, Value]] = [("ptr", "%d"), ("ptr", stats), ("i64", s.index), ("i64", count)]
        f.choose(wide, lambda: f.call("void", "weigh2", *arguments), lambda: f.call("void", "weigh1", *arguments))
        with f.when(f.cmp("sgt", s.index, 0)):
            factors = [lanes.load(f, f.gep(stats, 2 * lanes.width + v * size)) for v in range(2)]
            with f.loop(0, width) as d:
                for v in range(2):
                    place = f.gep(sums, f.add(f.mul(d.index, lanes.width), v * size))
                    lanes.store(f, lanes.op(f, "fmul", lanes.load(f, place), factors[v]), place)
        for part in portions(f, False, s.index, count, joined):
            with f.loop(0, part.count, DEPTH) as j:
                depth = f.min(DEPTH, f.sub(part.count, j.index))
                weights = f.gep(strip, f.mul(f.add(part.before, j.index), lanes.width))
                block(f.gep(part.data, f.mul(j.index, part.key)), weights, sums, sums, lanes.width, part.dim, part.key, depth, width)
    empty = f.cmp("eq", keys, 0)
    for v in range(2):
        total = lanes.load(f, f.gep(stats, lanes.width + v * size))
        inverse = lanes.op(f, "fdiv", lanes.constant(1), total)
        lanes.store(f, f(f"select i1 {empty}, {lanes.vector} zeroinitializer, {lanes.vector} {inverse}"), f.gep(stats, v * size))
    out, row, column = f.load("ptr", f.gep("%d", 8 * OUT)), f.word("%d", OUT_ROW), f.word("%d", OUT_COLUMN)
    turn("turn", out, row, column, sums, lanes.width, lanes.item, rows, width, width, stats, lanes.item)
    f.ret()
    f.end()
