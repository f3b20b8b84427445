"""Attention of few queries: lines of scores by dot products with the keys, then values added up as vectors. All but the keys have unit stride, and these
along a key or, with masked vectors, from key to key. Queries go four at a time, a single one alone."""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from .attention_form import (
    DIMS,
    FACTOR,
    FIRST,
    K_DIM,
    KEYS,
    MASK,
    MASK_COLUMN,
    MASK_NUMBER,
    MASK_ROW,
    MASK_WORDS,
    MASKED,
    OUT,
    OUT_ROW,
    Q_ROW,
    ROWS,
    SUMS,
    TURNED,
    V_DIM,
    V_KEY,
    WIDTH,
    Lanes,
    Portion,
    Q,
    V,
    has_operand,
    portions,
    skips,
    with_mask,
)
from .attention_form import STRIP as SCORES
from .builder import Function, Module, Value

STRIP = 256             # keys whose scores are kept at once
LINE = STRIP + 16       # elements from one line of them to the next: the last portion may be rounded up
GROUP = 4               # queries together
TOGETHER = {1: 8, 4: 4}  # keys whose dot products go on together, by queries
CHUNK = 4               # vectors that are added up together


def define_rows(module: Module, lanes: Lanes, masks: Sequence[str], joined: bool, groups: Sequence[int]) -> None:
    """Defines rows<group>(d, row), and with both groups by_rows(d): all rows of the state's unit. joined: keys and values come in two parts."""
    for group in groups:
        _define_dots(module, lanes, group)
        if lanes.target.avx512:
            _define_spread(module, lanes, group)
        _define_add_up(module, lanes, group)
        _define_group(module, lanes, group, masks, joined)
    if len(groups) < 2:
        return
    f = Function(module, "by_rows", [("ptr", "d")])
    with f.loop(0, f.word("%d", ROWS)) as r:
        many = f.cmp("sge", f.sub(f.word("%d", ROWS), r.index), 2)
        r.step = f.select(many, GROUP, 1)
        f.choose(many, lambda: f.call("void", f"rows{GROUP}", ("ptr", "%d"), ("i64", r.index)), lambda: f.call("void", "rows1", ("ptr", "%d"), ("i64", r.index)))
    f.ret()
    f.end()


def fits(f: Function, lanes: Lanes, dims: Value, width: Value, keys: Sequence[tuple[Value, Value]], others: Sequence[tuple[Value, Value]]) -> str:
    """Whether rows may go this way. keys: strides by dim and by key of each part. others: (stride along a row, length of it) of q, values and out."""
    along_key = f.either(f.both(*(f.cmp("eq", dim, lanes.item) for dim, _ in keys)), f.cmp("sle", dims, 1))
    units = [f.either(f.cmp("eq", stride, lanes.item), f.cmp("sle", length, 1)) for stride, length in others]
    if lanes.target.avx512:
        across = f.both(*(f.both(f.cmp("eq", key, lanes.item), f.cmp("ne", dim, lanes.item)) for dim, key in keys))
        return f.both(f.either(along_key, across), *units)
    return f.both(along_key, *units, f.cmp("eq", f.rem(dims, lanes.count), 0), f.cmp("eq", f.rem(width, lanes.count), 0))


def define_taint(module: Module, lanes: Lanes) -> None:
    """taint(d, to, apart, from): for each dim, 0 times the values of keys from..KEYS, added up: 0, or NaN. `apart`: bytes between results."""
    f = Function(module, "taint", [("ptr", "d"), ("ptr", "to"), ("i64", "apart"), ("i64", "from")])
    values = f.load("ptr", f.gep("%d", 8 * V))
    keys, width, key, dim = (f.word("%d", w) for w in (KEYS, WIDTH, V_KEY, V_DIM))
    n = lanes.count
    whole = f.select(f.cmp("eq", dim, lanes.item), f.mul(f.div(width, n), n), 0)
    begin = f.gep(values, f.mul("%from", key))
    with f.loop(0, whole, n) as d:
        with f.loop("%from", keys, carried=[("ptr", f.gep(begin, f.mul(d.index, lanes.item))), (lanes.vector, "zeroinitializer")]) as j:
            j.next = [f.gep(j.carried[0], key), lanes.multiply_add(f, lanes.load(f, j.carried[0]), "zeroinitializer", j.carried[1])]
        for i in range(n):
            one = f(f"extractelement {lanes.vector} {j.carried[1]}, i64 {i}")
            lanes.put(f, one, f.gep("%to", f.mul(f.add(d.index, i), "%apart")))
    with f.loop(whole, width) as d:
        with f.loop("%from", keys, carried=[("ptr", f.gep(begin, f.mul(d.index, dim))), (lanes.element, "0.0")]) as j:
            product = f(f"fmul {lanes.element} {lanes.one(f, j.carried[0])}, 0.0")
            j.next = [f.gep(j.carried[0], key), f(f"fadd {lanes.element} {j.carried[1]}, {product}")]
        lanes.put(f, j.carried[1], f.gep("%to", f.mul(d.index, "%apart")))
    f.ret()
    f.end()


def _tail(f: Function, lanes: Lanes, count: Value, at: Value) -> str:
    """The mask of the vector at `at` of `count` elements; '' where vectors are whole."""
    return lanes.below(f, f.sub(count, at)) if lanes.target.avx512 else ""


def _totals(f: Function, lanes: Lanes, vectors: list[str]) -> list[str]:
    """The sum of the lanes of each vector: halves of two vectors are added to one, until a lane is left of each. Vectors whose first lanes are the sums, in order."""
    n, e = lanes.count, lanes.element
    if len(vectors) > n:
        return [t for at in range(0, len(vectors), n) for t in _totals(f, lanes, vectors[at:at + n])]
    segment, left = n, list(vectors)
    while segment > 1:
        half = segment // 2
        low = [start + i for start in range(0, 2 * n, segment) for i in range(half)]
        pairs = list(zip(left[::2], left[1::2], strict=True)) if len(left) > 1 else [(left[0], left[0])]
        left = [lanes.op(f, "fadd", f.shuffle(e, n, a, b, low), f.shuffle(e, n, a, b, [i + half for i in low])) for a, b in pairs]
        segment = half
    return left


_SCORES = (("ptr", "to"), ("ptr", "q"), ("i64", "q_row"), ("ptr", "k"), ("i64", "stride"), ("i64", "dims"), ("i64", "keys"))


def _define_dots(module: Module, lanes: Lanes, group: int) -> None:
    """dots(to, q, q_row, k, stride, dims, keys, first): to[r, j] = first + q[r] . k[j], lines LINE apart, keys rounded up. Keys have unit stride."""
    f = Function(module, f"dots{group}", [*_SCORES, (lanes.element, "first")])
    n, last, together = lanes.count, f.sub("%keys", 1), TOGETHER[group]
    first = lanes.splat(f, "%first")
    each = min(together, n)
    queries = [f.gep("%q", f.mul("%q_row", r)) for r in range(group)]
    whole = f.mul(f.div("%dims", n), n)
    with f.loop(0, "%keys", together) as j:
        lines = [f.gep("%k", f.mul(f.min(f.add(j.index, i), last), "%stride")) for i in range(together)]

        def step(at: Value, sums: list[str], mask: str, lines: list[str] = lines) -> list[Value]:
            offset = f.mul(at, lanes.item)
            q = [lanes.load(f, f.gep(p, offset)) for p in queries]
            k = [lanes.load(f, f.gep(p, offset), mask) for p in lines]
            return [lanes.multiply_add(f, k[i % together], q[i // together], s) for i, s in enumerate(sums)]

        with f.loop(0, whole, n, carried=[(lanes.vector, "zeroinitializer")] * (group * together)) as d:
            d.next = step(d.index, d.carried, "")
        sums = d.carried
        if lanes.target.avx512:
            with f.loop(whole, "%dims", n, carried=[(lanes.vector, s) for s in sums]) as d:
                d.next = step(d.index, d.carried, _tail(f, lanes, "%dims", d.index))
            sums = d.carried
        to = f.gep("%to", f.mul(j.index, lanes.item))
        totals = [lanes.op(f, "fadd", t, first) for t in _totals(f, lanes, sums)]
        for i in range(0, group * together, each):
            part = totals[i // n] if each == n else f.shuffle(lanes.element, n, totals[i // n], "poison", range(i % n, i % n + each))
            f.store(f"<{each} x {lanes.element}>", part, f.gep(to, (i // together * LINE + i % together) * lanes.item), lanes.item)
    f.ret()
    f.end()


def _define_spread(module: Module, lanes: Lanes, group: int) -> None:
    """The same for keys that are neighbours in each dim: a vector of them times an element of the query."""
    f = Function(module, f"spread{group}", [*_SCORES, (lanes.element, "first")])
    n = lanes.count
    first = lanes.splat(f, "%first")
    steps = [f.mul("%q_row", r) for r in range(group)]

    def chunk(at: Value, vectors: int, mask: str) -> None:
        offset = f.mul(at, lanes.item)
        with f.loop(0, "%dims", carried=[("ptr", "%q"), ("ptr", f.gep("%k", offset)), *((lanes.vector, first),) * (group * vectors)]) as d:
            q, line, *sums = d.carried
            k = [lanes.load(f, f.gep(line, i * n * lanes.item), mask) for i in range(vectors)]
            ones = [lanes.splat(f, lanes.one(f, f.gep(q, s))) for s in steps]
            d.next = [f.gep(q, lanes.item), f.gep(line, "%stride"), *(lanes.multiply_add(f, k[i % vectors], ones[i // vectors], s) for i, s in enumerate(sums))]
        for i, s in enumerate(d.carried[2:]):
            lanes.store(f, s, f.gep(f.gep("%to", offset), (i // vectors * LINE + i % vectors * n) * lanes.item))

    whole = f.mul(f.div("%keys", CHUNK * n), CHUNK * n)
    with f.loop(0, whole, CHUNK * n) as j:
        chunk(j.index, CHUNK, "")
    with f.loop(whole, "%keys", n) as j:
        chunk(j.index, 1, _tail(f, lanes, "%keys", j.index))
    f.ret()
    f.end()


def _define_add_up(module: Module, lanes: Lanes, group: int) -> None:
    """add_up(to, to_row, p, v, row, width, keys, factors): to[r] = to[r] * factors[r] + sum over j of p[r, j] * v[j]; lines of p are LINE apart."""
    f = Function(module, f"add_up{group}", [("ptr", "to"), ("i64", "to_row"), ("ptr", "p"), ("ptr", "v"), ("i64", "row"), ("i64", "width"), ("i64", "keys"), ("ptr", "factors")])
    n, size = lanes.count, lanes.target.vector_bytes
    turns = 2 if group == 1 else 1  # keys with sums of their own
    even = f.mul(f.div("%keys", turns), turns)

    def chunk(at: Value, vectors: int, mask: str = "") -> None:
        v = f.gep("%v", f.mul(at, lanes.item))
        each = group * vectors

        def turn(j: Value, pointer: str, sums: list[str]) -> list[str]:
            place = f.gep("%p", f.mul(j, lanes.item))
            p = [lanes.splat(f, lanes.one(f, f.gep(place, r * LINE * lanes.item))) for r in range(group)]
            loaded = [lanes.load(f, f.gep(pointer, i * size), mask) for i in range(vectors)]
            return [lanes.multiply_add(f, loaded[i % vectors], p[i // vectors], s) for i, s in enumerate(sums)]

        with f.loop(0, even, turns, carried=[("ptr", v), *((lanes.vector, "zeroinitializer"),) * (turns * each)]) as j:
            pointer, sums = j.carried[0], []
            for t in range(turns):
                sums += turn(f.add(j.index, t), pointer, j.carried[1 + t * each:1 + (t + 1) * each])
                pointer = f.gep(pointer, "%row")
            j.next = [pointer, *sums]
        sums = j.carried[1:]
        if turns > 1:
            with f.loop(even, "%keys", carried=[(lanes.vector, s) for s in sums[:each]]) as one:
                one.next = list(turn(one.index, j.carried[0], one.carried))
            sums = [lanes.op(f, "fadd", a, b) for a, b in zip(one.carried, sums[each:], strict=True)]
        for i, s in enumerate(sums):
            to = f.gep(f.gep("%to", f.mul("%to_row", i // vectors)), f.add(f.mul(at, lanes.item), i % vectors * size))
            factor = lanes.splat(f, lanes.one(f, f.gep("%factors", i // vectors * lanes.item)))
            lanes.store(f, lanes.multiply_add(f, lanes.load(f, to), factor, s), to)

    wide = f.mul(f.div("%width", CHUNK * n), CHUNK * n)
    with f.loop(0, wide, CHUNK * n) as d:
        chunk(d.index, CHUNK)
    with f.loop(wide, "%width", n) as d:
        chunk(d.index, 1, _tail(f, lanes, "%width", d.index))
    f.ret()
    f.end()


def scratch(f: Function, lanes: Lanes, masks: Sequence[str], dims: Value, keys: Value, width: Value) -> dict[int, Value]:
    """Bytes of each part of the scratch, by its word of the state."""
    lines = GROUP * LINE * lanes.item
    sizes: dict[int, Value] = {TURNED: f.mul(f.round_up(dims, lanes.count), GROUP * lanes.item), SCORES: lines}
    if any(map(has_operand, masks)):
        sizes[MASKED] = len(masks) * lines
    sizes[SUMS] = f.mul(f.round_up(width, lanes.count), GROUP * lanes.item)
    return sizes


def _define_group(module: Module, lanes: Lanes, group: int, masks: Sequence[str], joined: bool) -> None:
    """rows(d, row): the rows from `row` on; what would lie behind the unit's last row is that row again."""
    f = Function(module, f"rows{group}", [("ptr", "d"), ("i64", "row")])
    n, item, natural = lanes.count, lanes.item, bool(masks)
    factors = f(f"alloca [{lanes.target.vector_bytes} x i8], align 64")
    queries, out, line, strip, sums = (f.load("ptr", f.gep("%d", 8 * w)) for w in (Q, OUT, TURNED, SCORES, SUMS))
    keys, dims, width = (f.word("%d", w) for w in (KEYS, DIMS, WIDTH))
    q_row, k_dim, out_row = (f.word("%d", w) for w in (Q_ROW, K_DIM, OUT_ROW))
    last = f.sub(f.word("%d", ROWS), 1)
    numbers = ["%row", *(f.min(f.add("%row", i), last) for i in range(1, group))]
    factor = lanes.number_at(f, FACTOR)
    nothing = f(f"fmul {lanes.element} {factor}, 0.0")  # NaN where the scale is no number, or infinite
    line_size, sums_size = f.mul(f.round_up(dims, n), item), f.mul(f.round_up(width, n), item)
    lines = [f.gep(line, f.mul(line_size, i)) for i in range(group)]
    totals = [f.gep(sums, f.mul(sums_size, i)) for i in range(group)]
    scale = lanes.splat(f, factor)
    sources = [f.gep(queries, f.mul(r, q_row)) for r in numbers]
    with f.loop(0, dims, n) as d:
        at = f.mul(d.index, item)
        mask = _tail(f, lanes, dims, d.index)
        for source, to in zip(sources, lines, strict=True):
            lanes.store(f, lanes.op(f, "fmul", lanes.load(f, f.gep(source, at), mask), scale), f.gep(to, at))
    read: Value = keys
    clear = ""
    if skips(masks):
        read = f.min(keys, f.add(f.add(f.word("%d", FIRST), numbers[-1]), 1))
        clear = f.cmp("eq", read, keys)
        with f.when(f.invert(clear)):
            f.call("void", "taint", ("ptr", "%d"), ("ptr", sums), ("i64", item), ("i64", read))
    with f.loop(0, width, n) as d:
        at = f.mul(d.index, item)
        start = "zeroinitializer"
        if clear:
            start = f(f"select i1 {clear}, {lanes.vector} zeroinitializer, {lanes.vector} {lanes.load(f, f.gep(sums, at))}")
        for p in totals:
            lanes.store(f, start, f.gep(p, at))

    with f.loop(0, read, STRIP, carried=[*((lanes.vector, lanes.constant(-math.inf)),) * group, *((lanes.vector, "zeroinitializer"),) * group]) as s:
        before, weight = s.carried[:group], s.carried[group:]
        count = f.min(STRIP, f.sub(read, s.index))
        for part in portions(f, True, s.index, count, joined):
            def scores(name: str, stride: str, part: Portion = part) -> None:
                f.call("void", f"{name}{group}", ("ptr", f.gep(strip, f.mul(part.before, item))), ("ptr", line), ("i64", line_size), ("ptr", part.data), ("i64", stride),
                       ("i64", dims), ("i64", part.count), (lanes.element, nothing))

            if lanes.target.avx512:
                f.choose(f.either(f.cmp("eq", k_dim, item), f.cmp("sle", dims, 1)), partial(scores, "dots", part.key), partial(scores, "spread", part.dim))
            else:
                scores("dots", part.key)
        _gather(f, lanes, masks, numbers, s.index, count)
        outside = [lanes.splat(f, lanes.number_at(f, MASK + MASK_WORDS * i + MASK_NUMBER)) if kind in ("keep", "drop") else "" for i, kind in enumerate(masks)]
        masked = f.load("ptr", f.gep("%d", 8 * MASKED)) if any(map(has_operand, masks)) else ""
        with f.loop(0, count, n, carried=[(lanes.vector, b) for b in before]) as j:
            at = f.mul(j.index, item)
            inside = lanes.below(f, f.sub(count, j.index))
            largest: list[Value] = []
            for r in range(group):
                place = f.gep(f.gep(strip, at), r * LINE * item)
                x = lanes.load(f, place)
                for i, kind in enumerate(masks):
                    if kind == "causal":
                        keep = f(f"icmp sle {lanes.integers} {lanes.numbers(f, f.add(s.index, j.index))}, {lanes.splat_number(f, f.add(f.word('%d', FIRST), numbers[r]))}")
                        x = lanes.select(f, keep, x, lanes.constant(-math.inf))
                    else:
                        x = with_mask(f, lanes, kind, x, lanes.load(f, f.gep(f.gep(masked, at), (i * GROUP + r) * LINE * item)), outside[i])
                x = lanes.select(f, inside, x, lanes.constant(-math.inf))
                lanes.store(f, x, place)
                largest.append(lanes.larger(f, x, j.carried[r]))
            j.next = largest
        high = [lanes.fold(f, "larger", x) for x in j.carried]
        less = [lanes.safe(f, x) for x in high]
        with f.loop(0, count, n, carried=[(lanes.vector, "zeroinitializer")] * group) as j:
            at = f.mul(j.index, item)
            added: list[Value] = []
            for r in range(group):
                place = f.gep(f.gep(strip, at), r * LINE * item)
                p = lanes.power(f, lanes.op(f, "fsub", lanes.load(f, place), less[r]), natural)
                lanes.store(f, p, place)
                added.append(lanes.op(f, "fadd", j.carried[r], p))
            j.next = added
        rescale = [lanes.power(f, lanes.op(f, "fsub", before[r], less[r]), natural) for r in range(group)]
        for r in range(group):
            lanes.put(f, f(f"extractelement {lanes.vector} {rescale[r]}, i64 0"), f.gep(factors, r * item))
        for part in portions(f, False, s.index, count, joined):
            with f.when(f.either(f.cmp("ne", part.count, 0), f.cmp("eq", part.before, 0))):
                f.call("void", f"add_up{group}", ("ptr", sums), ("i64", sums_size), ("ptr", f.gep(strip, f.mul(part.before, item))), ("ptr", part.data),
                       ("i64", part.key), ("i64", width), ("i64", part.count), ("ptr", factors))
            if joined:  # what comes next is added to sums that are scaled already
                for r in range(group):
                    lanes.put(f, lanes.number(1), f.gep(factors, r * item))
        s.next = [*high, *(lanes.multiply_add(f, weight[r], rescale[r], j.carried[r]) for r in range(group))]

    empty = f.cmp("eq", keys, 0)
    inverse = []
    for r in range(group):
        x = lanes.op(f, "fdiv", lanes.constant(1), lanes.fold(f, "fadd", s.carried[group + r]))
        inverse.append(f(f"select i1 {empty}, {lanes.vector} zeroinitializer, {lanes.vector} {x}"))
    targets = [f.gep(out, f.mul(r, out_row)) for r in numbers]

    with f.loop(0, width, n) as d:
        at = f.mul(d.index, item)
        mask = _tail(f, lanes, width, d.index)
        for source, to, by in zip(totals, targets, inverse, strict=True):
            lanes.store(f, lanes.op(f, "fmul", lanes.load(f, f.gep(source, at)), by), f.gep(to, at), mask)
    f.ret()
    f.end()


def _gather(f: Function, lanes: Lanes, masks: Sequence[str], numbers: Sequence[Value], first: Value, count: Value) -> None:
    """The masks' lines for these rows and keys first..first+count, as elements."""
    for i, kind in enumerate(masks):
        if not has_operand(kind):
            continue
        word = MASK + MASK_WORDS * i
        row, column = f.word("%d", word + MASK_ROW), f.word("%d", word + MASK_COLUMN)
        start = f.gep(f.load("ptr", f.gep("%d", 8 * word)), f.mul(first, column))
        to = f.gep(f.load("ptr", f.gep("%d", 8 * MASKED)), i * GROUP * LINE * lanes.item)
        sources = [f.gep(start, f.mul(number, row)) for number in numbers]
        with f.loop(0, count, carried=[("ptr", p) for p in sources]) as j:
            for r, p in enumerate(j.carried):
                lanes.put(f, lanes.one(f, p) if kind == "add" else lanes.truth(f, p), f.gep(f.gep(to, f.mul(j.index, lanes.item)), r * LINE * lanes.item))
            j.next = [f.gep(p, column) for p in j.carried]
