"""Tensors come and go: allocation, references, copies."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from bcvm.bytecode.dtypes import itemsize
from bcvm.compiler import abi
from bcvm.compiler.driver import states
from bcvm.compiler.driver.emitter import is_literal
from bcvm.compiler.driver.values import Driver, TensorRep, contiguous_strides
from bcvm.compiler.regions import dims_of, dtype_of
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Value
from bcvm.specialise.types import Tensor


def byte_count(d: Driver, sizes: Sequence[str], dims_known: Sequence[Dim], dtype: str) -> str:
    """Bytes of a tensor, or -1 (which no allocation satisfies) if a size is negative or the product does not fit."""
    e = d.e
    bad = "false"
    total = str(itemsize(dtype))
    for size, known in zip(sizes, dims_known, strict=True):
        if known.interval()[0] < 0:
            bad = e.either(bad, e.compare("slt", size, "0"))
        if is_literal(total) and is_literal(size):
            total = str(int(total) * int(size))
            continue
        if total == "1" or size == "1":
            total = e.mul(total, size)
            continue
        total, over = e.overflowing("umul", total, size)
        bad = e.either(bad, over)
    if is_literal(total) and not 0 <= int(total) < 1 << 47:
        return "-1"
    return e.select(bad, "-1", total)


def arena(d: Driver, sizes: list[str], dims_known: Sequence[Dim], dtype: str) -> TensorRep:
    """A tensor in the arena; the caller of this function owns the reference."""
    e = d.e
    count = e.memo(("bytes", tuple(sizes), itemsize(dtype)), lambda: byte_count(d, sizes, dims_known, dtype))
    data = e.call("alloc", "%ctx", count)
    e.leave_if(e.op(f"icmp eq ptr {data}, null"), states.memory_label(d))
    base = e.op(f"ptrtoint ptr {data} to i64")
    return TensorRep(data, "null", base, sizes, contiguous_strides(e, sizes, dtype), contiguous=True, fresh=True)


def array(d: Driver, sizes: list[str], dtype: str) -> TensorRep:
    """A new ndarray; NumPy checks the sizes."""
    e = d.e
    words = size_words(d, sizes)
    obj = e.call("new_array", "%ctx", str(abi.TYPE_NUMBER[dtype]), str(len(sizes)), words)
    e.leave_if(e.op(f"icmp eq ptr {obj}, null"), states.memory_label(d))
    data = e.op(f"load ptr, ptr {e.offset(obj, str(abi.ARRAY_DATA))}")
    base = e.op(f"or i64 {e.op(f'ptrtoint ptr {obj} to i64')}, 1")
    d.certain_objects.add(obj)
    return TensorRep(data, obj, base, sizes, contiguous_strides(e, sizes, dtype), contiguous=True, fresh=True)


def size_words(d: Driver, words: Sequence[str], start: int = 0) -> str:
    """Words in the scratch area, for a function that takes a pointer to them."""
    e = d.e
    d.need_scratch(start + len(words))
    place = e.word("%scratch", start)
    for i, w in enumerate(words):
        e.store(w, place, i)
    return place


def new(d: Driver, value: Value) -> TensorRep:
    """Memory for a result. From here on its owner holds it."""
    assert isinstance(value.type, Tensor)
    sizes = d.sizes(value)
    if value in d.escaping:
        rep = array(d, sizes, dtype_of(value))
        d.objects.add(value)
    else:
        rep = arena(d, sizes, dims_of(value), dtype_of(value))
    d.reps[value] = rep
    d.owned[value] = None
    return rep


def release(d: Driver, owners: Iterable[Value]) -> None:
    """Drop the references of these owners."""
    for v in owners:
        if v in d.owned:
            del d.owned[v]
            rep = d.tensor(v)
            if rep.base != "0":
                d.e.call("release", "%ctx", rep.base)


def view_base(d: Driver, rep: TensorRep) -> str:
    """The base of a view of this tensor: what owns its memory, the object if there is one."""
    e = d.e
    if rep.object == "null" or (rep.object in d.certain_objects and rep.base != "0"):
        return rep.base

    def make() -> str:
        owner = e.op(f"or i64 {e.op(f'ptrtoint ptr {rep.object} to i64')}, 1")
        return owner if rep.object in d.certain_objects else e.select(e.op(f"icmp eq ptr {rep.object}, null"), rep.base, owner)
    return str(e.memo(("view base", rep.object, rep.base), make))


def extent(d: Driver, rep: TensorRep, dtype: str) -> tuple[str, str]:
    """Addresses [low, high) of what a tensor of at least one element reaches."""
    e = d.e
    low = high = e.op(f"ptrtoint ptr {rep.data} to i64")
    for size, stride in zip(rep.sizes, rep.strides, strict=True):
        reach = e.mul(e.sub(size, "1"), stride)
        if is_literal(stride):
            if int(stride) >= 0:
                high = e.add(high, reach)
            else:
                low = e.add(low, reach)
            continue
        negative = e.compare("slt", reach, "0")
        low = e.add(low, e.select(negative, reach, "0"))
        high = e.add(high, e.select(negative, "0", reach))
    return low, e.add(high, str(itemsize(dtype)))


def may_overlap(d: Driver, a: TensorRep, a_dtype: str, b: TensorRep, b_dtype: str) -> str:
    """An i1: whether the address ranges of two tensors meet."""
    e = d.e
    (alow, ahigh), (blow, bhigh) = extent(d, a, a_dtype), extent(d, b, b_dtype)
    return e.both(e.compare("slt", alow, bhigh), e.compare("slt", blow, ahigh))


def is_contiguous(d: Driver, rep: TensorRep, dtype: str) -> str:
    """An i1: whether elements lie one after another in C order (axes of size 1 may have any stride)."""
    if rep.contiguous:
        return "true"
    e = d.e
    out, step = "true", str(itemsize(dtype))
    for size, stride in zip(reversed(rep.sizes), reversed(rep.strides), strict=True):
        out = e.both(out, e.either(e.compare("eq", size, "1"), e.compare("eq", stride, step)))
        step = e.mul(step, size)
    return out

