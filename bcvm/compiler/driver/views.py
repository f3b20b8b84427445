"""Views: other sizes and strides of the same memory. A reshape is one where strides allow it, else a copy; a store writes through one."""
from __future__ import annotations

from collections.abc import Iterable

from bcvm.compiler.driver import dims, kernels_call, memory
from bcvm.compiler.driver.values import Driver, TensorRep, contiguous_strides
from bcvm.compiler.regions import RegionCall, dims_of, dtype_of
from bcvm.errors import CompileError
from bcvm.shapes.dim import dim
from bcvm.specialise.ssa import Node, Value
from bcvm.specialise.types import Tensor


def view(d: Driver, node: Node) -> None:
    """Emit one view node."""
    e, attrs = d.e, node.attrs
    source, result = node.operands[0], node.results[0]
    rep, kind = d.tensor(source), attrs["kind"]
    if kind == "reshape":
        _reshape(d, source, result, attrs.get("contiguous", False) or source.type.library != "numpy")  # type: ignore[union-attr]
        return
    data, contiguous = rep.data, False
    if kind == "transpose":
        sizes, strides = [rep.sizes[i] for i in attrs["perm"]], [rep.strides[i] for i in attrs["perm"]]
    elif kind == "expand":
        axes = set(_axes(attrs["axis"]))
        pairs = iter(zip(rep.sizes, rep.strides, strict=True))
        sizes, strides = [], []
        for i in range(len(rep.sizes) + len(axes)):
            size, stride = ("1", "0") if i in axes else next(pairs)
            sizes.append(size)
            strides.append(stride)
        contiguous = rep.contiguous
    elif kind == "squeeze":
        axes = set(_axes(attrs["axis"]))
        keep = [i for i in range(len(rep.sizes)) if i not in axes]
        sizes, strides, contiguous = [rep.sizes[i] for i in keep], [rep.strides[i] for i in keep], rep.contiguous
    elif kind == "broadcast":
        sizes = d.sizes(result)
        strides = kernels_call.broadcast_strides(d, rep, dims_of(source), dims_of(result))
    elif kind == "slice":
        data, sizes, strides = _slice(d, rep, attrs["items"], d.sizes(result))
    else:
        raise CompileError(f"unknown view {kind!r}")
    if contiguous:  # strides of axes of size 1 as a contiguous tensor has them
        strides = contiguous_strides(e, sizes, dtype_of(result))
    d.reps[result] = TensorRep(data, "null", memory.view_base(d, rep), sizes, strides, contiguous, rep.fresh)


def _axes(axis: int | Iterable[int]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _slice(d: Driver, rep: TensorRep, items: Iterable[tuple[object, ...]], result: list[str]) -> tuple[str, list[str], list[str]]:
    e, data = d.e, rep.data
    sizes, strides, rest = [], [], iter(result)
    for (kind, start, *more), stride in zip(items, rep.strides, strict=True):
        data = e.offset(data, e.mul(dims.value(e, dim(start)), stride))  # type: ignore[arg-type]
        if kind == "index":
            continue
        step = more[0] if more else 1
        if not isinstance(step, int):
            raise CompileError("the step of a slice is no constant")
        sizes.append(next(rest))
        strides.append(e.mul(stride, str(step)))
    return data, sizes, strides


def _reshape(d: Driver, source: Value, result: Value, contiguous: bool) -> None:
    """The view if strides allow it (contiguous: if the operand is C-contiguous), else a copy. Either way the result holds a reference of its own."""
    e, rep = d.e, d.tensor(source)
    dtype, sizes = dtype_of(result), d.sizes(result)
    dense = contiguous_strides(e, sizes, dtype)
    base = memory.view_base(d, rep)
    whole = rep.contiguous or not rep.sizes
    if whole or (len(rep.sizes) == 1 and not contiguous):
        e.call("retain", base)
        d.reps[result] = TensorRep(rep.data, "null", base, sizes, dense if whole else _steps(d, sizes, rep.strides[0]), whole)
    else:
        d.reps[result] = _reshaped(d, source, result, dense, base, contiguous)
    d.owned[result] = None
    d.objects.add(result)


def _reshaped(d: Driver, source: Value, result: Value, dense: list[str], base: str, contiguous: bool) -> TensorRep:
    """A reshape that is a view or a copy, as is found at run time."""
    e, rep, dtype, sizes = d.e, d.tensor(source), dtype_of(result), d.sizes(result)
    if contiguous:
        ok, place = memory.is_contiguous(d, rep, dtype), ""
    else:
        start = 2 * len(rep.sizes)
        old, place = memory.size_words(d, [*rep.sizes, *rep.strides]), memory.size_words(d, sizes, start)
        d.need_scratch(start + 2 * len(sizes))
        ok = e.call("restride", old, str(len(rep.sizes)), place, str(len(sizes)))
    same, copy, done = e.new_label("view"), e.new_label("copy"), e.new_label("reshaped")
    e.branch(ok, same, copy)
    e.start(same)
    e.push()
    e.call("retain", base)
    found = dense if contiguous else [e.load(place, len(sizes) + i) for i in range(len(sizes))]
    e.pop()
    e.jump(done)
    e.start(copy)
    e.push()
    fresh = kernels_call.copied(d, rep, dims_of(source), dtype, as_array=(sizes if result in d.escaping else None))
    e.pop()
    came = e.label
    e.jump(done)
    e.start(done)
    data = e.join("ptr", (rep.data, same), (fresh.data, came))
    owner = e.join("i64", (base, same), (fresh.base, came))
    obj = e.join("ptr", ("null", same), (fresh.object, came))
    strides = [e.join("i64", (a, same), (b, came)) for a, b in zip(found, dense, strict=True)]
    return TensorRep(data, obj, owner, sizes, strides, contiguous)


def _steps(d: Driver, sizes: list[str], step: str) -> list[str]:
    """Strides of elements that lie one step apart."""
    out = []
    for size in reversed(sizes):
        out.append(step)
        step = d.e.mul(step, size)
    return out[::-1]


def store(d: Driver, node: Node) -> None:
    """target[...] = value. A value that may lie in the target's memory is copied first."""
    e = d.e
    target, value = node.operands
    to, dtype = d.tensor(target), dtype_of(target)
    if not isinstance(value.type, Tensor):
        slot = kernels_call.boxed(d, value, dtype)
        _write(d, to, (slot, ["0"] * len(to.sizes)), dtype, splat=True)
        return
    rep = d.tensor(value)
    strides = kernels_call.broadcast_strides(d, rep, dims_of(value), dims_of(target))
    owner, other = d.live.owner.get(value), d.live.owner.get(target)
    if value in d.stack_boxes or (rep.fresh and owner is not other and (to.fresh or other is None)):
        _write(d, to, (rep.data, strides), dtype, splat=not dims_of(value))
        return
    overlap = memory.may_overlap(d, to, dtype, rep, dtype)
    if not dims_of(value) or all(s == "0" for s in strides):
        overlap = "true"  # one element: cheaper to copy than to ask
    go, copy, done = e.label, e.new_label("copy"), e.new_label("store")
    e.branch(overlap, copy, done)
    e.start(copy)
    e.push()
    fresh = kernels_call.copied(d, rep, dims_of(value), dtype)
    fresh_strides = kernels_call.broadcast_strides(d, fresh, dims_of(value), dims_of(target))
    e.pop()
    came = e.label
    e.jump(done)
    e.start(done)
    data = e.join("ptr", (rep.data, go), (fresh.data, came))
    temporary = e.join("i64", ("0", go), (fresh.base, came))
    joined = [e.join("i64", (old, go), (new, came)) for old, new in zip(strides, fresh_strides, strict=True)]
    _write(d, to, (data, joined), dtype, splat=not dims_of(value))
    e.call("release", "%ctx", temporary)


def store_region(d: Driver, step: RegionCall, node: Node) -> None:
    """target[...] = region: straight into the target, unless the region has to be broadcast or the target overlaps an operand otherwise than element by
    element (where rows are reduced: at all)."""
    e = d.e
    target, value = node.operands
    to, dtype = d.tensor(target), dtype_of(target)
    sizes = dims.values(e, dims_of(value))
    whole = [e.compare("eq", a, b) for a, b, have, want in zip(sizes, to.sizes, dims_of(value), dims_of(target), strict=True) if have is not want]
    safe = e.all([*whole, *(_apart(d, v, target, step.reduce is None) for v in step.inputs if isinstance(v.type, Tensor))])
    straight, aside, done = e.new_label("straight"), e.new_label("aside"), e.new_label("store")
    if safe != "true":
        e.branch(safe, straight, aside)
        e.start(straight)
    e.push()
    d.reps[value] = to
    kernels_call.run_fitting(d, step)
    e.pop()
    if safe != "true":
        e.jump(done)
        e.start(aside)
        e.push()
        d.reps[value] = fresh = memory.arena(d, sizes, dims_of(value), dtype)
        kernels_call.run_fitting(d, step)
        _write(d, to, (fresh.data, kernels_call.broadcast_strides(d, fresh, dims_of(value), dims_of(target))), dtype, splat=False)
        e.call("release", "%ctx", fresh.base)
        e.pop()
        e.jump(done)
        e.start(done)
    del d.reps[value]


def _apart(d: Driver, value: Value, target: Value, elementwise: bool) -> str:
    """An i1: writing the target, element by element or row by row, does not change what is still to be read of an operand."""
    e, rep, to = d.e, d.tensor(value), d.tensor(target)
    owner, other = d.live.owner.get(value), d.live.owner.get(target)
    if value in d.stack_boxes or (rep.fresh and owner is not other and (to.fresh or other is None)) or (to.fresh and owner is None):
        return "true"
    apart = e.negate(memory.may_overlap(d, to, dtype_of(target), rep, dtype_of(value)))
    if not elementwise or dtype_of(value) != dtype_of(target) or len(rep.sizes) != len(to.sizes):
        return apart
    if dims_of(value) != dims_of(target):  # a broadcast operand is read again
        same = e.all([e.op(f"icmp eq ptr {rep.data}, {to.data}"), *(e.compare("eq", a, b) for a, b in zip(rep.sizes, to.sizes, strict=True)),
                      *(e.compare("eq", a, b) for a, b in zip(rep.strides, to.strides, strict=True))])
        return e.either(apart, same)
    same = e.op(f"icmp eq ptr {rep.data}, {to.data}")
    return e.either(apart, e.all([same, *(e.compare("eq", a, b) for a, b in zip(rep.strides, to.strides, strict=True))]))


def _write(d: Driver, to: TensorRep, source: kernels_call.Operand, dtype: str, splat: bool) -> None:
    rank = max(len(to.sizes), 1)
    operands = [(source[0], list(source[1]) or ["0"]), (to.data, list(to.strides) or ["0"])]
    kernels_call.call(d, kernels_call.copy_spec(dtype, rank, splat), operands, to.sizes or ["1"])
