"""The library kernels by the names that ops use, and how a driver calls each: `library_call` says it all as data.

A driver fills the kernel's operand words and sizes from the LibraryCall, mechanically:

    for each operand:  its data pointer, then for each entry of its strides: 0 for None, otherwise the byte stride of that dim of that operand
                       (0 if the entry is `broadcast` and the operand's size there is 1)
    sizes:             a number, the size of an operand's dim, or the byte stride of an operand's dim
    units:             the product over `units` of ceil(size / block): what lo..hi counts; hi = -1 is all

Operands are numbered as in the op, inputs first; the result is the last and has been allocated with the shape the op's shape rule gives. All sizes have
passed the shape rule. Inputs have the dtypes the call was asked for; casts are the driver's. Inputs may overlap each other, the result overlaps none.

The kernel returns DONE, REFUSED (the call cannot be answered here, as an index out of range: leave to the interpreter, which raises; the result may be partly written) or NO_MEMORY.
What has no kernel raises Unsupported.

| name | inputs | attributes |
| --- | --- | --- |
| matmul | a, b; rank 1 or more, leading dims broadcast | |
| conv2d | x, weight, bias if any | stride, padding (4 numbers or "same"), dilation, groups |
| take | x, indices | axis (not negative) |
| cumsum | x | axis (not negative) |
| max_pool2d, avg_pool2d | x | kernel, stride, padding (4 numbers); count_include_pad |
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from . import conv, matmul, movement
from .builder import DONE, NO_MEMORY, REFUSED

__all__ = ["DONE", "NO_MEMORY", "REFUSED", "LibraryCall", "Size", "Stride", "kernel_for", "library_call"]


@dataclass(frozen=True)
class Size:
    """The size of a dim of an operand."""

    operand: int
    dim: int


@dataclass(frozen=True)
class Stride:
    """The byte stride of a dim of an operand. broadcast: it is 0 where the size is 1."""

    operand: int
    dim: int
    broadcast: bool = False


@dataclass(frozen=True)
class LibraryCall:
    """kernel: what to compile. strides: for each operand, the result last, one entry per dim of the kernel (all have the same number of them).
    sizes: the words of the sizes array. units: (size, block) factors."""

    kernel: KernelSource
    strides: tuple[tuple[Stride | None, ...], ...]
    sizes: tuple[int | Size | Stride, ...]
    units: tuple[tuple[int | Size, int], ...]


Attrs = Mapping[str, Any]
Maker = Callable[[tuple[str, ...], tuple[int, ...], Attrs, Target], LibraryCall]


def _own(operand: int, rank: int) -> tuple[Stride, ...]:
    return tuple(Stride(operand, i) for i in range(rank))


def _one_dtype(name: str, dtypes: tuple[str, ...]) -> str:
    if len(set(dtypes)) != 1:
        raise Unsupported(f"{name} of mixed dtypes {dtypes}: cast them first")
    return dtypes[0]


def _matmul(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    """A rank 1 `a` is a row and a rank 1 `b` a column, and the result lacks that dim."""
    dtype = _one_dtype("matmul", dtypes)
    a, b, out = ranks
    row, column = a > 1, b > 1
    batch = max(a, b, 2) - 2
    pad = max(2 - batch, 0)  # products of up to two batch dims share one kernel, which takes long to compile
    if a < 1 or b < 1 or out != batch + row + column:
        raise Unsupported(f"matmul of ranks {a} and {b} into {out}")

    def batches(operand: int, rank: int) -> tuple[Stride | None, ...]:
        missing = batch - max(rank - 2, 0)
        return (None,) * (pad + missing) + tuple(Stride(operand, i, True) for i in range(batch - missing))

    strides = (
        (*batches(0, a), Stride(0, a - 2) if row else None, Stride(0, a - 1)),
        (*batches(1, b), Stride(1, b - 2 if column else 0), Stride(1, b - 1) if column else None),
        ((None,) * pad + _own(2, batch) + (Stride(2, batch) if row else None, Stride(2, out - 1) if column else None)),
    )
    sizes: tuple[int | Size, ...] = ((1,) * pad + tuple(Size(2, i) for i in range(batch)) + (Size(2, batch) if row else 1, Size(2, out - 1) if column else 1, Size(0, a - 1)))
    blocks = (1,) * (pad + batch) + (matmul.ROWS, matmul.COLUMNS)
    return LibraryCall(matmul.generate(dtype, pad + batch, target), strides, sizes, tuple(zip(sizes[:-1], blocks, strict=True)))


def _numbers(name: str, value: Any, count: int) -> tuple[int, ...]:
    """A constant attribute of `count` ints."""
    if not isinstance(value, (tuple, list)) or len(value) != count or not all(isinstance(v, int) for v in value):
        raise Unsupported(f"{name} is {value!r}, not {count} constant integers")
    return tuple(value)


def _conv2d(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    dtype = _one_dtype("conv2d", dtypes)
    if ranks not in ((4, 4, 4), (4, 4, 1, 4)):
        raise Unsupported(f"conv2d of ranks {ranks}")
    stride, dilation = (_numbers(f"conv2d: {n}", attrs.get(n, (1, 1)), 2) for n in ("stride", "dilation"))
    padding = attrs.get("padding", (0, 0, 0, 0))
    pads: Any = padding if padding == "same" else _numbers("conv2d: padding", padding, 4)
    groups = attrs.get("groups", 1)
    conv_attrs = conv.ConvAttrs((stride[0], stride[1]), pads, (dilation[0], dilation[1]), groups)
    out = len(ranks) - 1
    bias: tuple[tuple[Stride | None, ...], ...] = ((None, Stride(2, 0), None, None),) if out == 3 else ()
    sizes = (*(Size(0, i) for i in range(4)), Size(1, 0), Size(1, 2), Size(1, 3), Size(out, 2), Size(out, 3))
    return LibraryCall(conv.generate(dtype, conv_attrs, out == 3, target), (_own(0, 4), _own(1, 4), *bias, _own(out, 4)), sizes,
                       ((Size(0, 0), 1), (groups, 1), (Size(out, 2), 1)))


def _take(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    axis = attrs["axis"]
    x, indices, out = ranks
    if not (isinstance(axis, int) and 0 <= axis < x) or out != x - 1 + indices or dtypes[0] != dtypes[2]:
        raise Unsupported(f"take of ranks {ranks}, dtypes {dtypes} along axis {axis!r}")
    after = x - 1 - axis
    strides: tuple[tuple[Stride | None, ...], ...] = (
        (*_own(0, axis), *(None,) * indices, *(Stride(0, axis + 1 + i) for i in range(after))),
        (*(None,) * axis, *_own(1, indices), *(None,) * after),
        _own(2, out),
    )
    dims: tuple[int | Size, ...] = tuple(Size(2, i) for i in range(out))
    if not out:
        strides, dims = ((None,),) * 3, (1,)
    kernel = movement.take(dtypes[0], dtypes[1], len(dims), target)
    return LibraryCall(kernel, strides, (*dims, Size(0, axis), Stride(0, axis)), tuple((d, 1) for d in dims[:-1]))


def _cumsum(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    axis, rank = attrs["axis"], ranks[0]
    if not (isinstance(axis, int) and 0 <= axis < rank) or ranks[1] != rank:
        raise Unsupported(f"cumsum of rank {rank} along axis {axis!r}")
    order = [*(i for i in range(rank) if i != axis), axis]
    dims = tuple(Size(1, i) for i in order)
    strides = tuple(tuple(Stride(operand, i) for i in order) for operand in (0, 1))
    return LibraryCall(movement.cumsum(dtypes[0], dtypes[1], rank, target), strides, dims, tuple((d, 1) for d in dims[:-1]))


def _pool2d(name: str) -> Maker:
    generate = {"max_pool2d": movement.max_pool2d, "avg_pool2d": movement.avg_pool2d}[name]

    def make(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
        if ranks != (4, 4):
            raise Unsupported(f"{name} of ranks {ranks}")
        kernel, stride = (_numbers(f"{name}: {n}", attrs[n], 2) for n in ("kernel", "stride"))
        top, bottom, left, right = _numbers(f"{name}: padding", attrs.get("padding", (0, 0, 0, 0)), 4)
        pool = movement.PoolAttrs((kernel[0], kernel[1]), (stride[0], stride[1]), (top, bottom, left, right), bool(attrs.get("count_include_pad", True)))
        sizes = (*(Size(0, i) for i in range(4)), Size(1, 2), Size(1, 3))
        return LibraryCall(generate(_one_dtype(name, dtypes), pool, target), (_own(0, 4), _own(1, 4)), sizes, tuple((sizes[i], 1) for i in (0, 1, 4)))

    return make


_MAKERS: dict[str, Maker] = {"matmul": _matmul, "conv2d": _conv2d, "take": _take, "cumsum": _cumsum, "max_pool2d": _pool2d("max_pool2d"),
                             "avg_pool2d": _pool2d("avg_pool2d")}
NAMES = frozenset(_MAKERS)


def library_call(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Mapping[str, Any], target: Target) -> LibraryCall:
    """The kernel of the op `name` and how it is called. dtypes and ranks: of the op's inputs, then of its result. Raises Unsupported."""
    if name not in _MAKERS:
        raise Unsupported(f"no library kernel named {name!r}")
    return _MAKERS[name](dtypes, ranks, attrs, target)


def kernel_for(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Mapping[str, Any], target: Target) -> KernelSource:
    """The kernel alone."""
    return library_call(name, dtypes, ranks, attrs, target).kernel
