"""Gathers and running sums.

Operands have one rank, sizes begin with that many dims, the last dim is the row; units are rows, C order (see `rows_of`).
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import Unsupported
from ..abi import llvm_type
from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, REFUSED, Function, Module, Value
from .conv_tiles import ITEMSIZE

# What take moves, by bytes.
MOVED = {**ITEMSIZE, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}


@contextmanager
def rows_of(f: Function, rank: int, operands: int) -> Iterator[tuple[list[str], list[str]]]:
    """Loops over rows lo..hi; yields each operand's pointer to the row and its byte stride along the row."""
    sizes = [f.word("%sizes", i) for i in range(rank)]
    data = [f.load("ptr", f.gep("%operands", 8 * o * (rank + 1))) for o in range(operands)]
    strides = [[f.word("%operands", o * (rank + 1) + 1 + i) for i in range(rank)] for o in range(operands)]
    rows: Value = 1
    for size in sizes[:-1]:
        rows = f.mul(rows, size)
    with f.loop("%lo", f.select(f.cmp("slt", "%hi", 0), rows, "%hi")) as u:
        pointers, left = list(data), u.index
        for dim in reversed(range(rank - 1)):
            at = left if dim == 0 else f.rem(left, sizes[dim])
            left = left if dim == 0 else str(f.div(left, sizes[dim]))
            pointers = [f.gep(p, f.mul(at, s[dim])) for p, s in zip(pointers, strides, strict=True)]
        yield pointers, [s[-1] for s in strides]


# -- take

def take(dtype: str, index: str, rank: int, target: Target) -> KernelSource:
    """out[..., indices, ...] of x: all operands (x, indices, out) have the dims of out, of which there are `rank` (at least 1).

    x has stride 0 along the dims of indices, indices has stride 0 along the dims of x; sizes = [dims of out, length of the axis, byte stride of x along it].
    index: int32 or int64. Negative indices count from the end; one out of range makes the kernel return REFUSED."""
    if dtype not in MOVED or index not in ("int32", "int64"):
        raise Unsupported(f"take of {dtype} by indices of {index}")
    item = MOVED[dtype]
    element, align = f"i{8 * item}", min(item, 8)
    lanes = max(target.vector_bytes // item, 1)
    vector = f"<{lanes} x {element}>"
    module = Module()
    name = f"take_{item}_{index}_{rank}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    length, step, row = f.word("%sizes", rank), f.word("%sizes", rank + 1), f.word("%sizes", rank - 1)

    def chosen(x: str, pointer: str) -> str:
        """The place in x that an index names."""
        i = f.load(llvm_type(index), pointer, ITEMSIZE[index])
        if index == "int32":
            i = f(f"sext i32 {i} to i64")
        i = f.select(f.cmp("slt", i, 0), f.add(i, length), i)
        f.fail_if(f.cmp("uge", i, length), REFUSED)
        return f.gep(x, f.mul(i, step))

    with rows_of(f, rank, 3) as ((x, indices, out), (x_step, index_step, out_step)):
        def by_row() -> None:
            source = chosen(x, indices)

            def dense() -> None:
                whole = f.mul(f.div(row, lanes), lanes)
                with f.loop(0, whole, lanes) as j:
                    at = f.mul(j.index, item)
                    f.store(vector, f.load(vector, f.gep(source, at), align), f.gep(out, at), align)
                with f.loop(whole, row) as j:
                    at = f.mul(j.index, item)
                    f.store(element, f.load(element, f.gep(source, at), align), f.gep(out, at), align)

            def spread() -> None:
                with f.loop(0, row, carried=[("ptr", source), ("ptr", out)]) as j:
                    f.store(element, f.load(element, j.carried[0], align), j.carried[1], align)
                    j.next = [f.gep(j.carried[0], x_step), f.gep(j.carried[1], out_step)]

            f.choose(f.both(f.cmp("eq", x_step, item), f.cmp("eq", out_step, item)), dense, spread)

        def by_element() -> None:
            with f.loop(0, row, carried=[("ptr", x), ("ptr", indices), ("ptr", out)]) as j:
                f.store(element, f.load(element, chosen(j.carried[0], j.carried[1]), align), j.carried[2], align)
                j.next = [f.gep(p, s) for p, s in zip(j.carried, (x_step, index_step, out_step), strict=True)]

        # An empty row has no index to check.
        with f.when(f.cmp("sgt", row, 0)):
            f.choose(f.cmp("eq", index_step, 0), by_row, by_element)
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)


# -- running sums

def cumsum(dtype: str, result: str, rank: int, target: Target) -> KernelSource:
    """Running sums of x (dtype) along the last of `rank` dims, in order, into out (result: dtype itself, or a wider integer); sizes are the dims."""
    floating = result in ("float32", "float64")
    if dtype not in ITEMSIZE or result not in ITEMSIZE or (dtype != result if floating else dtype.startswith("float") or ITEMSIZE[dtype] > ITEMSIZE[result]):
        raise Unsupported(f"cumsum of {dtype} as {result}")
    source, sum_type = llvm_type(dtype), llvm_type(result)
    module = Module()
    name = f"cumsum_{dtype}_{result}_{rank}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    with rows_of(f, rank, 2) as ((x, out), (x_step, out_step)):
        with f.loop(0, f.word("%sizes", rank - 1), carried=[("ptr", x), ("ptr", out), (sum_type, "-0.0" if floating else "0")]) as j:
            value = f.load(source, j.carried[0], ITEMSIZE[dtype])
            if source != sum_type:
                value = f(f"{'sext' if dtype.startswith('int') else 'zext'} {source} {value} to {sum_type}")
            total = f(f"{'fadd' if floating else 'add'} {sum_type} {j.carried[2]}, {value}")
            f.store(sum_type, total, j.carried[1], ITEMSIZE[result])
            j.next = [f.gep(j.carried[0], x_step), f.gep(j.carried[1], out_step), total]
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)
