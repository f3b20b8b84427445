"""Calls of region kernels: operands laid out in the region's space, broadcasting and merging decided at run time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bcvm.compiler import abi
from bcvm.compiler.driver import dims, memory, states
from bcvm.compiler.driver.emitter import Emitter
from bcvm.compiler.driver.values import Driver, TensorRep, contiguous_strides
from bcvm.compiler.kernels.cost import ns_per_element
from bcvm.compiler.modules import constant
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.compiler.regions import RegionCall, dims_of, dtype_of
from bcvm.compiler.runtime import runtime
from bcvm.ops.definition import OPS, Reduction
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Value
from bcvm.specialise.types import Tensor


@dataclass(frozen=True)
class KernelRequest:
    """A kernel that the driver calls. key: what it is, shared by all who need the same. spec: a RegionSpec, or a library call's description."""

    key: Any
    spec: Any
    slot: int


def request(d: Driver, spec: RegionSpec) -> int:
    """The slot of a region's kernel."""
    from bcvm.compiler.kernels.region import generate
    target = d.target  # alone: a kernel may be made later, and must not keep the driver's text until then
    return request_kernel(d, spec, lambda: generate(spec, target))


def request_kernel(d: Driver, spec: Any, make: Any) -> int:
    """The slot of a kernel; `make` gives its KernelSource when the table has none."""
    key = (spec, d.target)
    known = d.requests.get(key)
    if known is None:
        known = d.requests[key] = KernelRequest(key, spec, d.table.slot_for(key, make))
    return int(known.slot)


Operand = tuple[str, Sequence[str]]  # data pointer, strides in the kernel's space


@dataclass(frozen=True)
class LibraryKey:
    """A kernel of the library, by what was generated."""

    name: str
    content: str


def write_operands(d: Driver, operands: Sequence[Operand], sizes: Sequence[str], at: int = 0) -> tuple[str, str]:
    """The operand block and the sizes behind it, in the scratch area: pointers to both."""
    e = d.e
    place = e.word("%scratch", at)
    for data, strides in operands:
        d.need_scratch(at + 1 + len(strides))
        e.store(data, "%scratch", at, "ptr")
        for i, s in enumerate(strides):
            e.store(s, "%scratch", at + 1 + i)
        at += 1 + len(strides)
    return place, memory.size_words(d, sizes, at)


LONG_NS = 15_000            # predicted work beyond which several threads may share it
LIBRARY_LONG_NS = 5_000     # of the library's kernels: those that take long compute, and do not wait for what lies in the other processor's cache
LIBRARY_NS_PER_FLOP = 0.01  # or byte


def kernel_in(e: Emitter, slot: int) -> str:
    """The kernel that the slot holds at this moment."""
    return e.load(constant(runtime().slots.place(slot)), type="ptr")


def run(d: Driver, slot: int, operands: str, sizes: str, work: str, per_work: float, units: str, plan: int, long_ns: int = LONG_NS) -> str:
    """Run a kernel over all its work; its code, an i32. Each of `work` is predicted to take per_work ns: where it takes long, the kernel may be split
    as the plan says (see abi.split_plan) and Python's interpreter lock is released."""
    e = d.e
    kernel = kernel_in(e, slot)
    long = e.compare("sgt", work, str(int(long_ns / per_work)))
    first, last = "0", "-1"
    if long != "false":
        e.store(kernel, "%ctx", abi.CTX_LONG, "ptr")
        e.store(str(plan), "%ctx", abi.CTX_PLAN)
        kernel = e.select(long, e.table("run_long"), kernel, "ptr")
        ns = e.op(f"lshr i64 {e.mul(work, str(max(round(per_work * 1024), 1)))}, 10")
        first, last = e.select(long, units, "0"), e.select(long, ns, "-1")
    return e.op(f"call i32 {kernel}(ptr %ctx, ptr {operands}, ptr {sizes}, i64 {first}, i64 {last})")


def call(d: Driver, spec: RegionSpec, operands: Sequence[Operand], sizes: Sequence[str]) -> None:
    """Call a region's kernel, the dims of an elementwise space collapsed first."""
    e = d.e
    slot = request(d, spec)
    block, place = write_operands(d, operands, sizes)
    # An operand that is one element per row stays so only if the row stays as it is.
    one_per_row = any(i.splat and any(s != "0" for s in strides) for i, (_, strides) in zip(spec.inputs, operands, strict=False))
    free = spec.kind == "row" and not one_per_row and not _reduces(spec)  # any piece of the space can be done alone
    if free and spec.rank > 1:
        e.call("collapse", block, place, str(len(operands)), str(spec.rank))
    elements = "1"
    for size in sizes:
        elements = e.mul(elements, size)
    if free:
        units, plan = "0", abi.split_plan(d.threads, spec.rank, len(operands))
    else:
        column = spec.kind == "column"
        units, plan = "1", abi.split_plan(d.threads, align=64 if column else 1)
        for size in [*sizes[:-2], sizes[-1]] if column else sizes[:-1]:
            units = e.mul(units, size)
    code = run(d, slot, block, place, elements, max(ns_per_element(spec, d.target), 1e-3), units, plan)
    e.leave_if(e.op(f"icmp ne i32 {code}, 0"), states.memory_label(d))


def _reduces(spec: RegionSpec) -> bool:
    return any(s.op in OPS and isinstance(OPS[s.op].form, Reduction) for s in spec.steps)


def broadcast_strides(d: Driver, rep: TensorRep, operand: Sequence[Dim], space: Sequence[Dim]) -> list[str]:
    """Strides of an operand in a space it broadcasts into: right-aligned, 0 where its size is 1 and the space's may not be."""
    e = d.e
    shift = len(space) - len(operand)
    out = ["0"] * shift
    for i, own in enumerate(operand):
        if own is space[shift + i]:
            out.append(rep.strides[i])
        elif own.value is not None:
            out.append("0" if own.value == 1 else rep.strides[i])
        else:
            out.append(e.select(e.compare("eq", rep.sizes[i], "1"), "0", rep.strides[i]))
    return out


def boxed(d: Driver, value: Value, dtype: str) -> str:
    """A pointer to a number converted to an element of this dtype: a stack slot."""
    from bcvm.compiler.driver import scalars
    e = d.e
    slot = e.alloca(1)
    scalars.store_element(e, value.type, d.scalar(value), dtype, slot)
    return slot


def region(d: Driver, step: RegionCall) -> None:
    """Allocate the outputs of a region and run it."""
    for value in step.outputs:
        memory.new(d, value)
    run_fitting(d, step)


def run_fitting(d: Driver, step: RegionCall) -> None:
    """Run the region's kernel, or those of the split form if what the fused one assumes does not hold; its outputs have memory."""
    e = d.e
    holds = e.all([e.compare("eq", dims.value(e, a), dims.value(e, b)) for a, b in step.assume])
    if holds == "true":
        run_region(d, step)
        return
    fused, split, done = e.new_label("fused"), e.new_label("split"), e.new_label("done")
    e.branch(holds, fused, split)
    for label, emit in ((fused, run_region), (split, _split)):
        e.start(label)
        e.push()
        emit(d, step)
        e.pop()
        e.jump(done)
    e.start(done)


def _split(d: Driver, step: RegionCall) -> None:
    """The regions one by one; what passes between them lives in the arena until the last is done."""
    between = [v for part in step.split for v in part.outputs if v not in step.outputs]
    for part in step.split:
        for v in part.outputs:
            if v in between:
                d.reps[v] = memory.arena(d, d.sizes(v), dims_of(v), dtype_of(v))
        run_region(d, part)
    for v in between:
        d.e.call("release", "%ctx", d.tensor(v).base)
        del d.reps[v]


def run_region(d: Driver, step: RegionCall) -> None:
    """Run the region's kernel; its outputs have memory."""
    temporary: list[str] = []
    operands = region_operands(d, step, temporary)
    call(d, step.spec, operands, arrange_sizes(d, dims.values(d.e, step.space), step.reduce))
    for base in temporary:
        d.e.call("release", "%ctx", base)


def region_operands(d: Driver, step: RegionCall, temporary: list[str] | None = None) -> list[Operand]:
    """The operands of a region in its kernel's space. temporary: takes what is to be released after it; needed where it reduces."""
    e = d.e
    sizes = dims.values(e, step.space)
    operands: list[Operand] = []
    for value, spec in zip(step.inputs, step.spec.inputs, strict=True):
        if not isinstance(value.type, Tensor):
            operands.append((boxed(d, value, spec.dtype), ["0"] * step.spec.rank))
            continue
        rep = d.tensor(value)
        strides = broadcast_strides(d, rep, dims_of(value), step.space)
        if step.reduce is not None and temporary is not None:
            rep, strides = _mergeable(d, step, value, rep, strides, sizes, temporary)
        operands.append((rep.data, arrange(strides, step.reduce, len(step.space))))
    for value, level in zip(step.outputs, step.levels, strict=True):
        rep = d.tensor(value)
        operands.append((rep.data, arrange(_output_strides(step, rep, level), step.reduce, len(step.space))))
    return operands


def _output_strides(step: RegionCall, rep: TensorRep, level: str) -> list[str]:
    if level == "full":
        return rep.strides
    assert step.reduce is not None
    first, last = step.reduce
    rest = rep.strides[last:] if level == "keep" else rep.strides[first:]
    return rep.strides[:first] + ["0"] * (last - first) + rest


def arrange(strides: Sequence[str], run: tuple[int, int] | None, rank: int) -> list[str]:
    """Strides in the kernel's order: the run of reduced axes merged, last for a row, next to last for a column."""
    if run is None:
        return list(strides) or ["0"]
    first, last = run
    merged = [strides[last - 1] if last > first else "0"]
    if last == rank:
        return list(strides[:first]) + merged
    return list(strides[:first]) + list(strides[last:-1]) + merged + [strides[-1]]


def arrange_sizes(d: Driver, sizes: list[str], run: tuple[int, int] | None) -> list[str]:
    if run is None:
        return sizes or ["1"]
    total = "1"
    for s in sizes[run[0]:run[1]]:
        total = d.e.mul(total, s)
    if run[1] == len(sizes):
        return sizes[:run[0]] + [total]
    return sizes[:run[0]] + sizes[run[1]:-1] + [total, sizes[-1]]


def _mergeable(d: Driver, step: RegionCall, value: Value, rep: TensorRep, strides: list[str], sizes: list[str],
               temporary: list[str]) -> tuple[TensorRep, list[str]]:
    """The operand as it is if one stride goes through all its reduced axes, else a copy for which this holds."""
    assert step.reduce is not None
    first, last = step.reduce
    own, space = dims_of(value), step.space
    shift = len(space) - len(own)
    if last - first < 2 or all(s == "0" for s in strides[first:last]):
        return rep, strides
    if rep.contiguous and all(axis >= shift and own[axis - shift] is space[axis] for axis in range(first, last)):
        return rep, strides
    e = d.e
    # From the last axis outwards: `count` elements, `apart` bytes from one to the next; axes of size 1 have any stride.
    ok, count, apart = "true", sizes[last - 1], strides[last - 1]
    for axis in range(last - 2, first - 1, -1):
        single = e.compare("eq", count, "1")
        follows = e.compare("eq", strides[axis], e.mul(apart, count))
        ok = e.both(ok, e.either(e.either(single, follows), e.compare("eq", sizes[axis], "1")))
        apart, count = e.select(single, strides[axis], apart), e.mul(count, sizes[axis])
    given, strides = strides, [*strides[:last - 1], apart, *strides[last:]]
    if ok == "true":
        return rep, strides
    go, copy, done = e.label, e.new_label("copy"), e.new_label("merged")
    e.branch(ok, done, copy)
    e.start(copy)
    e.push()
    copy_sizes, copy_dims = [], []
    for axis, d_space in enumerate(space):
        inside = first <= axis < last
        size = sizes[axis] if inside else "1" if axis < shift else rep.sizes[axis - shift]
        copy_sizes.append(size)
        copy_dims.append(d_space if inside else own[axis - shift] if axis >= shift else Dim.const(1))
    fresh = memory.arena(d, copy_sizes, copy_dims, dtype_of(value))
    copy_strides = [fresh.strides[axis] if first <= axis < last else "0" if given[axis] == "0" else
                    e.select(e.compare("eq", copy_sizes[axis], "1"), "0", fresh.strides[axis]) for axis in range(len(space))]
    source = [given[axis] if given[axis] == "0" or first <= axis < last else rep.strides[axis - shift] for axis in range(len(space))]
    copy_elements(d, dtype_of(value), (rep.data, source), (fresh.data, fresh.strides), copy_sizes)
    e.pop()
    came = e.label
    e.jump(done)
    e.start(done)
    data = e.join("ptr", (rep.data, go), (fresh.data, came))
    temporary.append(e.join("i64", ("0", go), (fresh.base, came)))
    joined = [e.join("i64", (old, go), (new, came)) for old, new in zip(strides, copy_strides, strict=True)]
    return TensorRep(data, "null", "0", [], []), joined


def copy_spec(dtype: str, rank: int, splat: bool = False) -> RegionSpec:
    """A kernel that copies elements."""
    return RegionSpec(max(rank, 1), (RegionInput(dtype, splat),), (Step("cast", (0,), dtype, (("dtype", dtype),)),), (RegionOutput(1, dtype),))


def copy_elements(d: Driver, dtype: str, source: Operand, target: Operand, sizes: Sequence[str]) -> None:
    """target[...] = source[...]; both strided over these sizes."""
    rank = max(len(sizes), 1)
    operands = [(p, list(s) or ["0"]) for p, s in (source, target)]
    call(d, copy_spec(dtype, rank, not sizes), operands, list(sizes) or ["1"])


def concat(d: Driver, result: Value, parts: Sequence[Value], axis: int) -> None:
    """Each part is copied into its slice of a new tensor."""
    e = d.e
    rep = memory.new(d, result)
    data = rep.data
    for n, part in enumerate(parts):
        source = d.tensor(part)
        copy_elements(d, dtype_of(result), (source.data, source.strides), (data, rep.strides), source.sizes)
        if n + 1 < len(parts):
            data = e.offset(data, e.mul(source.sizes[axis], rep.strides[axis]))


def copied(d: Driver, rep: TensorRep, dims_known: Sequence[Dim], dtype: str, as_array: list[str] | None = None) -> TensorRep:
    """A contiguous copy, owned by the caller: in the arena, or as a new ndarray of other sizes."""
    fresh = memory.array(d, as_array, dtype) if as_array is not None else memory.arena(d, rep.sizes, dims_known, dtype)
    copy_elements(d, dtype, (rep.data, rep.strides), (fresh.data, contiguous_strides(d.e, rep.sizes, dtype)), rep.sizes)
    return fresh

