"""How a kernel reaches its operands: their addresses unit by unit, and rows that are not contiguous as packed tiles.

The vector code reads and writes unit-stride memory only. A row with another stride goes through a tile on the stack, piece by
piece, so that one body of code serves every layout; so does, without AVX-512's masks, the ragged end of a row.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bcvm.bytecode import dtypes
from bcvm.compiler import abi
from bcvm.compiler.kernels.text import Function
from bcvm.compiler.region import RegionSpec

OUT_OF_MEMORY = 1     # error code of a kernel
TILE_BYTES = 1 << 14  # all tiles of a kernel together: they share the first-level cache with the rows


@dataclass
class Operand:
    """index: position among the kernel's operands. lane: one element per point of the row. base, stride: registers (stride of the row)."""

    index: int
    dtype: str
    lane: bool
    output: bool
    base: str = ""
    stride: str = ""

    @property
    def size(self) -> int:
        return dtypes.itemsize(self.dtype)


def operands_of(spec: RegionSpec) -> list[Operand]:
    inputs = [Operand(i, x.dtype, not x.splat, False) for i, x in enumerate(spec.inputs)]
    return inputs + [Operand(len(inputs) + i, o.dtype, not o.reduced, True) for i, o in enumerate(spec.outputs)]


def load_bases(f: Function, operands: list[Operand], rank: int, axis: int) -> None:
    """Data pointers, and the byte strides along an axis of those operands that move along it."""
    for o in operands:
        word = o.index * (1 + rank)
        o.base = f.pointer("%ops", word)
        if o.lane:
            o.stride = f.word("%ops", word + 1 + axis) if rank else str(o.size)


def all_unit(f: Function, operands: list[Operand], n: str) -> str:
    """Whether every lane operand is contiguous along the row (what a row of one element is)."""
    differ = ""
    for o in operands:
        if o.lane:
            d = f.op(f"xor i64 {o.stride}, {o.size}")
            differ = f.op(f"or i64 {differ}, {d}") if differ else d
    short = f.op(f"icmp sle i64 {n}, 1")
    return f.op(f"or i1 {short}, {f.op(f'icmp eq i64 {differ}, 0')}") if differ else "true"


def each_unit(f: Function, operands: list[Operand], rank: int, dims: int, body: Callable[[list[str]], None],
              block: Callable[[list[str], list[str], str], tuple[str, Callable[[], None]]] | None = None) -> None:
    """body(addresses) for every unit lo..hi of the leading `dims` dims, flattened; hi < 0 is all of them.

    Addresses move by addition along the innermost of these dims; the others are decomposed by division once a run.
    block(addresses, steps, count) gives a condition under which its function does a whole run instead."""
    if dims == 0:
        with f.when(f.op("icmp ne i64 %lo, %hi")):
            body([o.base for o in operands])
        return
    sizes = [f.word("%sizes", d) for d in range(dims)]
    total = sizes[0]
    for s in sizes[1:]:
        total = f.op(f"mul i64 {total}, {s}")
    end = f.op(f"select i1 {f.op('icmp slt i64 %hi, 0')}, i64 {total}, i64 %hi")

    def stride(o: Operand, d: int) -> str:
        return f.word("%ops", o.index * (1 + rank) + 1 + d)

    def run(start: str, count: str, bases: list[str]) -> None:
        steps = [stride(o, dims - 1) for o in operands]
        done = ""
        if block is not None:
            whole, rows, done = f.fresh("whole"), f.fresh("rows"), f.fresh("done")
            condition, do = block(bases, steps, f.op(f"sub i64 {count}, {start}"))
            f.branch(condition, whole, rows)
            f.label(whole)
            do()
            f.jump(done)
            f.label(rows)
        with f.loop(start, count, "1", [("ptr", b) for b in bases]) as loop:
            body(loop.carried)
            loop.next = [f.at(p, s) for p, s in zip(loop.carried, steps, strict=True)]
        if done:
            f.jump(done)
            f.label(done)

    if dims == 1:
        run("%lo", end, [f.at(o.base, f.op(f"mul i64 %lo, {stride(o, 0)}")) for o in operands])
        return
    with f.loop("%lo", end, "0") as outer:
        u, inner = outer.index, sizes[-1]
        before, divide, ready = f.block, f.fresh("divide"), f.fresh("ready")
        f.branch(f.op(f"icmp eq i64 {u}, 0"), ready, divide)
        f.label(divide)
        positions, rest = [], u
        for s in reversed(sizes[1:]):
            q = f.op(f"udiv i64 {rest}, {s}")
            positions.append(f.op(f"sub i64 {rest}, {f.op(f'mul i64 {q}, {s}')}"))
            rest = q
        positions = [rest, *reversed(positions)]
        moved = []
        for o in operands:
            at = o.base
            for d, position in enumerate(positions):
                at = f.at(at, f.op(f"mul i64 {position}, {stride(o, d)}"))
            moved.append(at)
        f.jump(ready)
        f.label(ready)
        column = f.op(f"phi i64 [ 0, %{before} ], [ {positions[-1]}, %{divide} ]")
        bases = [f.op(f"phi ptr [ {o.base}, %{before} ], [ {m}, %{divide} ]") for o, m in zip(operands, moved, strict=True)]
        left, ahead = f.op(f"sub i64 {inner}, {column}"), f.op(f"sub i64 {end}, {u}")
        count = f.op(f"select i1 {f.op(f'icmp slt i64 {left}, {ahead}')}, i64 {left}, i64 {ahead}")
        run("0", count, bases)
        outer.step = count


def tile_length(operands: list[Operand], lanes: int) -> int:
    """Elements of a tile: a power of two, at least two vectors."""
    width = sum(o.size for o in operands if o.lane) or 1
    length = 256
    while length > 2 * lanes and length * width > TILE_BYTES:
        length //= 2
    return max(length, lanes, 64)


def stack_or_arena(f: Function, larger: str, size: str, stack: str) -> tuple[str, str]:
    """Memory of this size: this stack memory, or, under the condition, from the Context, whose want of it ends the kernel. Where it is, and what to release (0 for the stack)."""
    before, ask, ready = f.block, f.fresh("ask"), f.fresh("ready")
    got, failed = f.fresh("got"), f.fresh("failed")
    f.branch(larger, ask, ready)
    f.label(ask)
    buffer = f.op(f"call ptr {f.table('alloc')}(ptr %ctx, i64 {size})")
    f.branch(f.op(f"icmp eq ptr {buffer}, null"), failed, got)
    f.label(failed)
    f.do(f"ret i32 {OUT_OF_MEMORY}")
    f.label(got)
    number = f.op(f"ptrtoint ptr {buffer} to i64")
    f.jump(ready)
    f.label(ready)
    return f.op(f"phi ptr [ {stack}, %{before} ], [ {buffer}, %{got} ]"), f.op(f"phi i64 [ 0, %{before} ], [ {number}, %{got} ]")


def move(f: Function, to: str, to_stride: str | int, source: str, source_stride: str | int, n: str, skip: str, size: int) -> None:
    """n elements from one stride to another, nothing if skip. With a source stride of 0, `to` is a tile, and whole vectors are written.

    A function of the Context's table where that has it (`move1` .. `move8`), else one of the module's own."""
    name = f"move{size}"
    function = f.table(name) if name in abi.INDEX else "@" + f.module.helper(name, move_ir(size, "internal"))
    f.do(f"call void {function}(ptr {to}, i64 {to_stride}, ptr {source}, i64 {source_stride}, i64 {n}, i1 {skip})")


def move_ir(size: int, linkage: str = "") -> str:
    """The function move<size>: void (ptr to, i64 to_stride, ptr from, i64 from_stride, i64 n, i1 skip)."""
    t, lanes = f"i{8 * size}", 64 // size
    v = f"<{lanes} x {t}>"
    return f"""define {linkage} void @move{size}(ptr %to, i64 %to_stride, ptr %from, i64 %from_stride, i64 %n, i1 %skip) noinline nounwind {{
entry:
  br i1 %skip, label %done, label %some
some:
  %still = icmp eq i64 %from_stride, 0
  br i1 %still, label %splat, label %copy
splat:
  %x = load {t}, ptr %from
  %v1 = insertelement {v} zeroinitializer, {t} %x, i64 0
  %v = shufflevector {v} %v1, {v} zeroinitializer, <{lanes} x i32> zeroinitializer
  br label %fill
fill:
  %i = phi i64 [ 0, %splat ], [ %i2, %fill ]
  %p = getelementptr {t}, ptr %to, i64 %i
  store {v} %v, ptr %p, align 64
  %i2 = add i64 %i, {lanes}
  %more = icmp slt i64 %i2, %n
  br i1 %more, label %fill, label %done
copy:
  %left = phi i64 [ %n, %some ], [ %left2, %copy ]
  %q = phi ptr [ %from, %some ], [ %q2, %copy ]
  %r = phi ptr [ %to, %some ], [ %r2, %copy ]
  %e = load {t}, ptr %q
  store {t} %e, ptr %r
  %q2 = getelementptr i8, ptr %q, i64 %from_stride
  %r2 = getelementptr i8, ptr %r, i64 %to_stride
  %left2 = add i64 %left, -1
  %again = icmp sgt i64 %left2, 0
  br i1 %again, label %copy, label %done
done:
  ret void
}}"""
