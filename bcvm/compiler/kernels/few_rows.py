"""Matrix products of a few rows, which wait for memory: B is read once, in the order in which it lies.

lines: for B with unit column stride, C += A[:, k] * B[k, :], several k at a time, so that memory is read as that many long lines.
dots: for B with unit row stride (a transposed view), dot products of rows of A and columns of B.
"""
from __future__ import annotations

from functools import partial

from .builder import Function, Loop, Module, Value
from .micro import Form, Run, stream

MOST_LINES = 3      # rows of A that `lines` has a form for


def define_lines(module: Module, form: Form) -> None:
    """Defines lines1 and lines3(a, b, c, a_row, a_column, b_row, c_row, K, columns, rows), for one row and for 2 or 3; K > 0. c has form.held elements."""
    _define_lines(module, form, 1)
    _define_lines(module, form, MOST_LINES)


def _define_lines(module: Module, form: Form, rows: int) -> None:
    many, vectors = (4, 2) if rows == 1 else (8, 1)     # lines of B that are read side by side, and how far at a time
    if not form.masked:
        many, vectors = 4, 1
    names = ("a_row", "a_column", "b_row", "c_row", "depth", "columns", "rows")
    f = Function(module, f"lines{rows}", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), *(("i64", n) for n in names)])
    offsets: list[Value] = [0]
    results = ["%c"]
    for i in range(1, rows):    # a row behind the last one is the last one again: the same value is written to the same place
        exists = f.cmp("slt", i, "%rows")
        offsets.append(f.add(offsets[-1], f.select(exists, "%a_row", 0)))
        results.append(f.gep(results[-1], f.select(exists, "%c_row", 0)))

    def group(start: Value, stop: Value, count: int, left: str, right: str) -> list[str]:
        with f.loop(start, stop, count, carried=[("ptr", left), ("ptr", right)]) as k:
            a, b = k.carried
            factors: list[list[str]] = []
            lines: list[str] = []
            for _ in range(count):
                factors.append([form.read_one(f, f.gep(a, at)) for at in offsets])
                lines.append(b)
                a, b = f.gep(a, "%a_column"), f.gep(b, "%b_row")
            splats = [[f.splat(form.element, form.lanes * vectors, x) for x in xs] for xs in factors]
            first = f.cmp("eq", k.index, 0)

            def body(at: Value, run: Run) -> None:
                targets = [f.gep(c, f.mul(at, form.item)) for c in results]
                sums = [run.zero_if(first, run.load(t)) for t in targets]
                for line, xs in zip(lines, factors if run.single else splats, strict=True):
                    columns = run.read(f.gep(line, f.mul(at, form.kept)))
                    sums = [run.multiply_add(x, columns, s) for x, s in zip(xs, sums, strict=True)]
                for s, t in zip(sums, targets, strict=True):
                    run.store(s, t)

            stream(f, form, "%columns", body, vectors)
            k.next = [a, b]
        return k.carried

    whole = f.mul(f.div("%depth", many), many)
    group(whole, "%depth", 1, *group(0, whole, many, "%a", "%b"))
    f.ret()
    f.end()


def _totals(f: Function, form: Form, vectors: list[str]) -> list[str]:
    """The sums of the lanes of each vector, as vectors of sums: halves of two vectors are added to one, until a lane is left of each."""
    n, e = form.lanes, form.element
    if len(vectors) > n:
        return [t for at in range(0, len(vectors), n) for t in _totals(f, form, vectors[at:at + n])]
    segment, left = n, list(vectors)
    while segment > 1:
        half = segment // 2
        low = [start + i for start in range(0, 2 * n, segment) for i in range(half)]
        pairs = list(zip(left[::2], left[1::2], strict=True)) if len(left) > 1 else [(left[0], left[0])]
        left = [form.add(f, f.shuffle(e, n, a, b, low), f.shuffle(e, n, a, b, [i + half for i in low])) for a, b in pairs]
        segment = half
    return left


def define_dots(module: Module, form: Form) -> None:
    """Defines dots(a, b, c, a_row, c_row, b_column, c_column, K, rows, columns).

    In tiles, of one row by many columns for a single row. What would lie behind the last row or column is the last one again."""
    names = ("a_row", "c_row", "b_column", "c_column", "depth", "rows", "columns")
    f = Function(module, "dots", [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), *(("i64", n) for n in names)])
    e, item = form.element, form.item
    alone, tile = ((1, 8), (4, 4)) if form.target.registers >= 32 else ((1, 4), (2, 4))
    whole = f.mul(f.div("%depth", form.lanes), form.lanes)

    def places(first: Value, limit: str, count: int) -> list[str]:
        return [f.min(f.add(first, i), f.sub(limit, 1)) for i in range(count)]

    def sum_up(row: Value, many: int, wide: int) -> None:
        at_rows = places(row, "%rows", many)
        left, to = [f.gep("%a", f.mul(r, "%a_row")) for r in at_rows], [f.gep("%c", f.mul(r, "%c_row")) for r in at_rows]
        with f.loop(0, "%columns", wide) as j:
            at_columns = places(j.index, "%columns", wide)
            right = [f.gep("%b", f.mul(c, "%b_column")) for c in at_columns]

            def step(k: Loop, mask: str = "", vectors: int = 1) -> None:
                run, at = Run(f, form, vectors, mask), f.mul(k.index, item)
                a, b = ([run.load(f.gep(p, at)) for p in pointers] for pointers in (left, right))
                k.next = [run.multiply_add(a[n // wide], b[n % wide], s) for n, s in enumerate(k.carried)]

            sums = ["zeroinitializer"] * (many * wide)
            if many > 1 or not form.masked:     # masks would cost; a single row waits for memory anyway
                with f.loop(0, whole, form.lanes, carried=[(form.vector, s) for s in sums]) as k:
                    step(k)
                sums = k.carried
            if form.masked:
                with f.loop(whole if many > 1 else 0, "%depth", form.lanes, carried=[(form.vector, s) for s in sums]) as k:
                    step(k, form.mask(f, f.sub("%depth", k.index)))
                sums = k.carried
            sums = [f(f"extractelement {form.vector} {t}, i64 {i}") for t in _totals(f, form, sums) for i in range(form.lanes)][:many * wide]
            if not form.masked:
                with f.loop(whole, "%depth", carried=[(e, s) for s in sums]) as k:
                    step(k, vectors=0)
                sums = k.carried
            offsets = [f.mul(c, "%c_column") for c in at_columns]
            for n, s in enumerate(sums):
                f.store(e, s, f.gep(to[n // wide], offsets[n % wide]), item)

    with f.loop(0, "%rows", tile[0]) as i:
        f.choose(f.cmp("eq", f.sub("%rows", i.index), 1), partial(sum_up, i.index, *alone), partial(sum_up, i.index, *tile))
    f.ret()
    f.end()
