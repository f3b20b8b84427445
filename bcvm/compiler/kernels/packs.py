"""Copies for the matrix product: a panel of B as rows that lie one after the other, and scratch into C. Halves are converted on the way."""
from __future__ import annotations

from collections.abc import Callable

from .builder import Function, Module, Value
from .micro import AHEAD_ROWS, LINE, Form, Run, stream


def define_packs(module: Module, form: Form) -> None:
    """Defines pack_rows (unit column stride), pack_columns (unit row stride: a transposed B) and pack_any:

        name(to, from, row stride, column stride, K, columns, width)

    K rows of `columns` elements become rows of `width`. From `columns` to `width` they hold anything: those sums are not stored.
    pack_columns writes K rounded up to whole vectors, and whole vectors of columns."""
    _define(module, "pack_rows", form, _rows)
    _define(module, "pack_any", form, _anything)
    if form.kept >= 4 or form.half:
        _define(module, "pack_columns", form, _columns)


def _define(module: Module, name: str, form: Form, write: Callable[[Function, Form, Value], None]) -> None:
    f = Function(module, name, [("ptr", "to"), ("ptr", "from"), ("i64", "row"), ("i64", "column"), ("i64", "depth"), ("i64", "columns"), ("i64", "width")])
    write(f, form, f.mul("%width", form.item))
    f.ret()
    f.end()


def _rows(f: Function, form: Form, size: Value) -> None:
    ahead = f.mul("%row", AHEAD_ROWS)
    with f.loop(0, "%depth", carried=[("ptr", "%to"), ("ptr", "%from")]) as k:
        to, source = k.carried
        for at in range(0, form.panel * form.kept, LINE):
            f.prefetch(f.gep(f.gep(source, ahead), at))
        stream(f, form, "%columns", lambda at, run: run.store(run.read(f.gep(source, f.mul(at, form.kept))), f.gep(to, f.mul(at, form.item))), form.vectors)
        k.next = [f.gep(to, size), f.gep(source, "%row")]


def _anything(f: Function, form: Form, size: Value) -> None:
    with f.loop(0, "%columns", carried=[("ptr", "%to"), ("ptr", "%from")]) as j:
        with f.loop(0, "%depth", carried=[("ptr", j.carried[0]), ("ptr", j.carried[1])]) as k:
            f.store(form.element, form.read_one(f, k.carried[1]), k.carried[0], form.item)
            k.next = [f.gep(k.carried[0], size), f.gep(k.carried[1], "%row")]
        j.next = [f.gep(j.carried[0], form.item), f.gep(j.carried[1], "%column")]


def _columns(f: Function, form: Form, size: Value) -> None:
    item, lanes = form.item, form.lanes
    highest = f.sub("%columns", 1)
    group = min(32, form.target.vector_bytes) // item
    whole = "%depth" if form.masked else f.mul(f.div("%depth", lanes), lanes)
    with f.loop(0, "%columns", group) as j:
        lines = [f.gep("%from", f.mul(f.min(f.add(j.index, i), highest), "%column")) for i in range(group)]
        with f.loop(0, whole, lanes, carried=[("ptr", f.gep("%to", f.mul(j.index, item)))]) as k:
            offset = f.mul(k.index, form.kept)
            mask = form.mask(f, f.sub("%depth", k.index)) if form.masked else ""
            v = _transpose(f, form, [form.read(f, f.gep(p, offset), mask) for p in lines])
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


def define_copy_out(module: Module, form: Form) -> None:
    """copy_out(to, row, column, from, from_row, rows, columns): scratch into C of any strides."""
    f = Function(module, "copy_out", [("ptr", "to"), ("i64", "row"), ("i64", "column"), ("ptr", "from"), ("i64", "from_row"), ("i64", "rows"), ("i64", "columns")])
    with f.loop(0, "%rows", carried=[("ptr", "%to"), ("ptr", "%from")]) as i:
        to, source = i.carried

        def spread() -> None:
            with f.loop(0, "%columns", carried=[("ptr", source), ("ptr", to)]) as j:
                run = Run(f, form)
                run.write(run.load(j.carried[0]), j.carried[1])
                j.next = [f.gep(j.carried[0], form.item), f.gep(j.carried[1], "%column")]

        def dense() -> None:
            stream(f, form, "%columns", lambda at, run: run.write(run.load(f.gep(source, f.mul(at, form.item))), f.gep(to, f.mul(at, form.kept))))

        f.choose(f.cmp("eq", "%column", form.kept), dense, spread)
        i.next = [f.gep(to, "%row"), f.gep(source, "%from_row")]
    f.ret()
    f.end()
