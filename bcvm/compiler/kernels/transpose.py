"""Transposed copies, 8 x 8 elements at a time in registers: a source that is contiguous along the dim before the last."""
from __future__ import annotations

from bcvm.compiler.kernels.text import Function, Module

SIDE = 8


def transpose(module: Module, size: int) -> str:
    """void @transpose(to, to_step, from, from_stride, rows, columns): element (i, j) from `from + i*size + j*from_stride` to `to + i*to_step + j*size`."""
    name = f"transpose{size}"
    if not module.has_helper(name):
        _edge(module, size)
        f = Function(module, f"define internal void @{name}(ptr %to, i64 %to_step, ptr %from, i64 %from_stride, i64 %rows, i64 %columns) noinline nounwind")
        rows, columns = (f.op(f"and i64 {n}, {-SIDE}") for n in ("%rows", "%columns"))
        with f.loop("0", rows, str(SIDE)) as down:
            to_rows, from_rows = f.at("%to", f.op(f"mul i64 {down.index}, %to_step")), f.at("%from", down.index, f"i{8 * size}")
            with f.loop("0", columns, str(SIDE)) as across:
                _block(f, f.at(to_rows, across.index, f"i{8 * size}"), f.at(from_rows, f.op(f"mul i64 {across.index}, %from_stride")), size)
        for first_row, last_row, first_column in (("0", rows, columns), (rows, "%rows", "0")):
            f.do(f"call void @edge{size}(ptr %to, i64 %to_step, ptr %from, i64 %from_stride, i64 {first_row}, i64 {last_row}, i64 {first_column}, i64 %columns)")
        f.do("ret void")
        module.helper(name, f.text())
    return name


def _block(f: Function, to: str, source: str, size: int) -> None:
    t = f"<{SIDE} x i{8 * size}>"
    rows = []
    for _ in range(SIDE):
        rows.append(f.op(f"load {t}, ptr {source}, align {size}"))
        source = f.at(source, "%from_stride")
    for s in (1, 2, 4):  # swaps one bit of the row number with the same bit of the lane number
        for i in range(SIDE):
            if not i & s:
                low, high = rows[i], rows[i + s]
                for into, picks in ((i, [SIDE + j - s if j & s else j for j in range(SIDE)]), (i + s, [SIDE + j if j & s else j + s for j in range(SIDE)])):
                    lanes = ", ".join(f"i32 {p}" for p in picks)
                    rows[into] = f.op(f"shufflevector {t} {low}, {t} {high}, <{SIDE} x i32> <{lanes}>")
    for r in rows:
        f.do(f"store {t} {r}, ptr {to}, align {size}")
        to = f.at(to, "%to_step")


def _edge(module: Module, size: int) -> None:
    """What whole blocks leave over, element by element."""
    t = f"i{8 * size}"
    f = Function(module, f"define internal void @edge{size}(ptr %to, i64 %to_step, ptr %from, i64 %from_stride, i64 %i0, i64 %i1, i64 %j0, i64 %j1) noinline nounwind")
    with f.loop("%i0", "%i1", "1") as down:
        to_row, from_row = f.at("%to", f.op(f"mul i64 {down.index}, %to_step")), f.at("%from", down.index, t)
        with f.loop("%j0", "%j1", "1") as across:
            x = f.op(f"load {t}, ptr {f.at(from_row, f.op(f'mul i64 {across.index}, %from_stride'))}")
            f.do(f"store {t} {x}, ptr {f.at(to_row, across.index, t)}")
    f.do("ret void")
    module.helper(f"edge{size}", f.text())
