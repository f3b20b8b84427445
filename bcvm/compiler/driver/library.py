"""Ops that are no regions: kernels of the library, and joins, paddings and sequences, made of copies."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from bcvm.bytecode.dtypes import kind
from bcvm.compiler import abi, epilogues, packed
from bcvm.compiler.driver import dims, kernels_call, memory, states
from bcvm.compiler.driver.values import Driver, TensorRep, contiguous_strides
from bcvm.compiler.kernels import library
from bcvm.compiler.optimise import freeze
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.compiler.regions import RegionCall, dims_of, dtype_of
from bcvm.compiler.target import Target
from bcvm.errors import Unsupported
from bcvm.ops.definition import Library
from bcvm.shapes.dim import Dim, dim
from bcvm.specialise.ssa import Node, Value


def op(d: Driver, node: Node) -> None:
    """Emit one op with a Library form."""
    form = node.attrs["op"].form
    if not isinstance(form, Library):
        raise Unsupported(f"{node.attrs['op'].name} has no native form")
    emit = _OWN.get(form.name)
    if emit is not None:
        emit(d, node, node.attrs.get("attrs", {}))
    else:
        _kernel(d, node, form.name)


@lru_cache(maxsize=256)
def _library_call(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: "_Attrs", target: Target) -> library.LibraryCall:
    return library.library_call(name, dtypes, ranks, attrs.values, target)


class _Attrs:
    """Attributes as a key."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self.key = values, freeze(values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attrs) and self.key == other.key


def _kernel(d: Driver, node: Node, name: str) -> None:
    memory.new(d, node.results[0])
    _launch(d, node, name)


def finished(d: Driver, step: RegionCall) -> None:
    """A kernel of the library with a region as its epilogue (see epilogues); where the region's space turns out to be larger, one after the other."""
    e, node, made = d.e, step.maker, step.made
    assert node is not None and made is not None
    for v in step.outputs:
        memory.new(d, v)
    result, axis = node.results[0], epilogues.squeezed_axis(step)
    holds = e.all([e.compare("eq", dims.value(e, a), dims.value(e, b)) for a, b in zip(dims_of(made), step.space, strict=True) if a is not b])
    place = next((v for v in step.outputs if dtype_of(v) == dtype_of(result)), None)
    sizes = d.sizes(result)
    strides = contiguous_strides(e, sizes, dtype_of(result))
    if place is None:
        fresh = memory.arena(d, sizes, dims_of(result), dtype_of(result))
        data, base = fresh.data, fresh.base
    else:
        data, base = _apart(d, holds, d.tensor(place).data, result)
    d.reps[result] = TensorRep(data, "null", "0", sizes, strides)
    if made is not result:
        assert axis is not None
        d.reps[made] = TensorRep(data, "null", "0", [*sizes[:axis], *sizes[axis + 1:]], [*strides[:axis], *strides[axis + 1:]])
    _launch(d, node, node.attrs["op"].form.name, lambda start, dims: e.select(holds, _epilogue(d, step, axis, start, dims), "0"))
    if holds != "true":
        then, done = e.new_label("apart"), e.new_label("done")
        e.branch(holds, done, then)
        e.start(then)
        e.push()
        kernels_call.run_region(d, step)
        e.pop()
        e.jump(done)
        e.start(done)
    if base != "0":
        e.call("release", "%ctx", base)
    for v in {result, made}:
        del d.reps[v]


def _apart(d: Driver, holds: str, data: str, result: Value) -> tuple[str, str]:
    """Where the maker's result goes: to this memory, or, if the condition fails, to a tensor of its own; and what is to be released, 0 for nothing."""
    e = d.e
    if holds == "true":
        return data, "0"
    came, then, done = e.label, e.new_label("own"), e.new_label("made")
    e.branch(holds, done, then)
    e.start(then)
    e.push()
    fresh = memory.arena(d, d.sizes(result), dims_of(result), dtype_of(result))
    e.pop()
    own = e.label
    e.jump(done)
    e.start(done)
    return e.join("ptr", (data, came), (fresh.data, own)), e.join("i64", ("0", came), (fresh.base, own))


def _epilogue(d: Driver, step: RegionCall, axis: int | None, start: int, dims: Sequence[library.Stride | None]) -> str:
    """The words of an epilogue (see abi) in the scratch area from `start` on; their address. dims: of the maker's kernel, by those of its result."""
    e = d.e
    hidden = next(i for i, s in enumerate(dims) if s is not None)  # leading dims of size 1 that the maker's kernel has beyond its op
    rank = len(dims) - hidden
    spec = step.spec if step.spec.rank == rank else replace(step.spec, rank=rank)
    operands: list[kernels_call.Operand] = []
    for data, strides in kernels_call.region_operands(d, step):
        own = iter(strides)
        operands.append((data, ["0" if s is None or s.dim == axis else next(own) for s in dims[hidden:]]))
    kernel = kernels_call.kernel_in(e, kernels_call.request(d, spec))
    d.need_scratch(start + abi.EPILOGUE_WORDS)
    e.store(kernel, "%scratch", start, "ptr")
    e.store(str(len(operands)), "%scratch", start + 1)
    e.store(str(spec.rank), "%scratch", start + 2)
    e.store(str(hidden), "%scratch", start + 3)
    kernels_call.write_operands(d, operands, (), start + abi.EPILOGUE_WORDS)
    return e.op(f"ptrtoint ptr {e.word('%scratch', start)} to i64")


def _launch(d: Driver, node: Node, name: str, epilogue: Callable[[int, Sequence[library.Stride | None]], str] | None = None) -> None:
    """A kernel of the library: operand words and sizes as its LibraryCall says. epilogue: writes its words from a place in the scratch area on."""
    e = d.e
    values = [*node.operands, node.results[0]]
    attrs = {k: v for k, v in node.attrs.get("attrs", {}).items() if k != "dims"}  # those are the shape rule's
    if any(_has_dim(a) for a in attrs.values()):
        raise Unsupported(f"{name} with attributes known only at run time")
    call = _library_call(name, tuple(map(dtype_of, values)), tuple(len(dims_of(v)) for v in values), _Attrs(attrs), d.target)
    reps = [d.tensor(v) for v in values]

    def stride(s: library.Stride | None) -> str:
        if s is None:
            return "0"
        rep = reps[s.operand]
        like = s.like or library.Size(len(reps) - 1, s.dim + len(reps[-1].sizes) - len(rep.sizes))
        if s.broadcast and dims_of(values[s.operand])[s.dim] is not dims_of(values[like.operand])[like.dim]:
            return e.select(e.compare("eq", rep.sizes[s.dim], "1"), "0", rep.strides[s.dim])
        return rep.strides[s.dim]

    operands: list[kernels_call.Operand] = [(rep.data, [stride(s) for s in entries]) for rep, entries in zip(reps, call.strides, strict=True)]
    sizes = [str(s) if isinstance(s, int) else reps[s.operand].sizes[s.dim] if isinstance(s, library.Size) else stride(s) for s in call.sizes]
    if name == "matmul" and len(reps[1].sizes) == 2:
        operands[1], sizes[-2] = _prepacked(d, values[1], operands[1])
    slot = kernels_call.request_kernel(d, kernels_call.LibraryKey(name, call.content), lambda: call.kernel)
    if epilogue is not None:
        assert call.finishes is not None
        sizes[call.finishes] = epilogue(sum(1 + len(strides) for _, strides in operands) + len(sizes), call.strides[-1])
    place, words = kernels_call.write_operands(d, operands, sizes)
    cost = node.attrs["op"].cost
    flops, moved = (dims.value(e, dim(n)) for n in (cost(*(dims_of(v) for v in node.operands), **attrs) if cost is not None else (1, 1)))
    work = e.select(e.compare("sgt", flops, moved), flops, moved)  # a byte takes as long as a flop: a product of one row waits for memory
    units = "1"
    for size, block in call.units:
        count = str(size) if isinstance(size, int) else reps[size.operand].sizes[size.dim]
        units = e.mul(units, count if block == 1 else e.op(f"udiv i64 {e.add(count, str(block - 1))}, {block}"))
    code = kernels_call.run(d, slot, place, words, work, kernels_call.LIBRARY_NS_PER_FLOP, units, abi.split_plan(d.threads), kernels_call.LIBRARY_LONG_NS)
    failed = states.memory_label(d) if node.state is None else states.failure_label(d, node.state, code, library.REFUSED)
    e.leave_if(e.op(f"icmp ne i32 {code}, 0"), failed)


def _prepacked(d: Driver, value: Value, operand: kernels_call.Operand) -> tuple[kernels_call.Operand, str]:
    """The second operand of a matrix product, and the word that says whether it is packed: as it is if it is the frozen tensor that was packed."""
    found = packed.pack(value, d.frozen, d.target) if d.frozen else None
    if found is None:
        return operand, "0"
    if found not in d.packed:
        d.packed.append(found)
    e, rep = d.e, d.tensor(value)
    same = e.all([e.op(f"icmp eq ptr {rep.data}, inttoptr (i64 {found.data} to ptr)"),
                  *(e.compare("eq", own, str(n)) for own, n in zip((*rep.sizes, *rep.strides), (*found.sizes, *found.strides), strict=True))])
    data = e.select(same, f"inttoptr (i64 {found.panels.ctypes.data} to ptr)", operand[0], "ptr")
    return (data, operand[1]), e.op(f"zext i1 {same} to i64")


def _has_dim(a: Any) -> bool:
    return isinstance(a, Dim) or isinstance(a, (tuple, list)) and any(map(_has_dim, a))


def _concat(d: Driver, node: Node, attrs: dict[str, Any]) -> None:
    kernels_call.concat(d, node.results[0], node.operands, attrs["axis"])


def _pad(d: Driver, node: Node, attrs: dict[str, Any]) -> None:
    """A tensor of the value, then the operand copied into its middle."""
    e, source, result = d.e, node.operands[0], node.results[0]
    dtype = dtype_of(result)
    before = [dim(p[0]) for p in attrs["pads"]]
    if any(dim(p).interval()[0] < 0 for pair in attrs["pads"] for p in pair):
        raise Unsupported("pad by sizes that may be negative")
    rep, inner = memory.new(d, result), d.tensor(source)
    fill(d, rep, attrs.get("value", 0), dtype)
    data = rep.data
    for start, stride in zip(before, rep.strides, strict=True):
        data = e.offset(data, e.mul(dims.value(e, start), stride))
    kernels_call.copy_elements(d, dtype, (inner.data, inner.strides), (data, rep.strides), inner.sizes)


def fill(d: Driver, rep: TensorRep, value: Any, dtype: str) -> None:
    """Every element is a constant."""
    value = bool(value) if kind(dtype) == "b" else int(value) if kind(dtype) in "iu" else float(value)
    rank = max(len(rep.sizes), 1)
    spec = RegionSpec(rank, (), (Step("const", (), dtype, (("value", value),)),), (RegionOutput(0, dtype),))
    kernels_call.call(d, spec, [(rep.data, rep.strides or ["0"])], rep.sizes or ["1"])


def _full(d: Driver, node: Node, attrs: dict[str, Any]) -> None:
    source, result = node.operands[0], node.results[0]
    if dtype_of(source) != dtype_of(result):
        raise Unsupported(f"full of {dtype_of(result)} from {dtype_of(source)}")
    rep, value = memory.new(d, result), d.tensor(source)
    strides = kernels_call.broadcast_strides(d, value, dims_of(source), dims_of(result))
    kernels_call.copy_elements(d, dtype_of(result), (value.data, strides), (rep.data, rep.strides), rep.sizes)


def _arange(d: Driver, node: Node, attrs: dict[str, Any]) -> None:
    """start + i * step, in the dtype of the result."""
    e, result = d.e, node.results[0]
    dtype = dtype_of(result)
    if any(dtype_of(v) != dtype for v in node.operands) or dtype not in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        raise Unsupported(f"arange of {dtype} from {', '.join(dtype_of(v) for v in node.operands)}")
    rep, width = memory.new(d, result), abi.llvm_type(dtype)
    start, step = (e.op(f"load {width}, ptr {d.tensor(v).data}") for v in node.operands)
    before, loop, body, done = e.label, e.new_label("arange"), e.new_label("body"), e.new_label("done")
    e.jump(loop)
    e.start(loop)
    i = e.phi("i64")
    e.branch(e.op(f"icmp slt i64 {i.name}, {rep.sizes[0]}"), body, done)
    e.start(body)
    floating = kind(dtype) == "f"
    number = e.op(f"sitofp i64 {i.name} to {width}") if floating else i.name if width == "i64" else e.op(f"trunc i64 {i.name} to {width}")
    prefix = "f" if floating else ""
    value = e.op(f"{prefix}add {width} {start}, {e.op(f'{prefix}mul {width} {number}, {step}')}")
    e.do(f"store {width} {value}, ptr {e.op(f'getelementptr {width}, ptr {rep.data}, i64 {i.name}')}")
    i.edges += [("0", before), (e.op(f"add i64 {i.name}, 1"), body)]
    e.jump(loop)
    e.start(done)


def _sum_to(d: Driver, node: Node, attrs: dict[str, Any]) -> None:
    """Sum over the axes that were broadcast: those in front always, others where the target has size 1 and the operand more, known only now."""
    e, (grad, like), result = d.e, node.operands, node.results[0]
    dtype, source, target = dtype_of(result), dims_of(grad), dims_of(like)
    lead = len(source) - len(target)
    now = d.tensor(grad)
    sizes, strides, data, base = list(now.sizes), list(now.strides), now.data, "0"
    wanted = ["1"] * lead + d.tensor(like).sizes
    for axis in range(len(source)):
        if axis >= lead and source[axis] is target[axis - lead]:
            continue
        here, reduce, done = e.label, e.new_label("sum"), e.new_label("summed")
        e.branch(e.compare("eq", sizes[axis], wanted[axis]), done, reduce)
        e.start(reduce)
        e.push()
        smaller = [*sizes[:axis], "1", *sizes[axis + 1:]]
        known = [Dim.symbol(f"sum_to.{i}") for i in range(len(sizes))]
        fresh = memory.arena(d, smaller, known, dtype)
        _sum_axis(d, dtype, axis, (data, strides), fresh, sizes)
        if base != "0":
            e.call("release", "%ctx", base)
        e.pop()
        came = e.label
        e.jump(done)
        e.start(done)
        words = []
        joins = [("ptr", data, fresh.data), ("i64", base, fresh.base), ("i64", sizes[axis], "1")]
        for type_, old, new in joins + [("i64", o, n) for o, n in zip(strides, fresh.strides, strict=True)]:
            phi = e.phi(type_)
            phi.edges += [(old, here), (new, came)]
            words.append(phi.name)
        data, base, sizes[axis] = words[:3]
        strides = words[3:]
    rep = memory.new(d, result)
    kernels_call.copy_elements(d, dtype, (data, strides[lead:]), (rep.data, rep.strides), rep.sizes)
    if base != "0":
        e.call("release", "%ctx", base)


def _sum_axis(d: Driver, dtype: str, axis: int, source: kernels_call.Operand, target: TensorRep, sizes: list[str]) -> None:
    """target = source summed over one axis, which stays with size 1."""
    rank = len(sizes)
    last = axis == rank - 1
    run = (axis, axis + 1)
    spec = RegionSpec(rank, (RegionInput(dtype),), (Step("sum", (0,), dtype),), (RegionOutput(1, dtype, True),), "row" if last else "column")
    out = [*target.strides[:axis], "0", *target.strides[axis + 1:]]
    operands = [(source[0], kernels_call.arrange(source[1], run, rank)), (target.data, kernels_call.arrange(out, run, rank))]
    kernels_call.call(d, spec, operands, kernels_call.arrange_sizes(d, sizes, run))


_OWN = {"concat": _concat, "pad": _pad, "full": _full, "arange": _arange, "sum_to": _sum_to}

