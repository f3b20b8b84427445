"""The library kernels by the names that ops use, and how a driver calls each: `library_call` says it all as data.

A driver fills the kernel's operand words and sizes from the LibraryCall, mechanically:

    for each operand:  its data pointer, then for each entry of its strides: 0 for None, otherwise the byte stride of that dim of that operand
                       (0 if the entry is `broadcast` and the operand's size there is 1 and the size it broadcasts to is not)
    sizes:             a number, the size of an operand's dim, or the byte stride of an operand's dim
    units:             the product over `units` of ceil(size / block): what lo..hi counts; hi = -1 is all

Operands are numbered as in the op, inputs first; the result is the last and has been allocated with the shape the op's shape rule gives. All sizes have
passed the shape rule. Inputs have the dtypes the call was asked for; casts are the driver's. Inputs may overlap each other, the result overlaps none.

The kernel returns DONE, REFUSED (the call cannot be answered here, as an index out of range: leave to the interpreter, which raises; the result may be partly written) or NO_MEMORY.
What has no kernel raises Unsupported.

| name | inputs | attributes |
| --- | --- | --- |
| matmul | a, b; rank 1 or more, leading dims broadcast | |
| matmul_packed | a of rank 1 or more, the packed form (matmul.pack) of a b of rank 2 | |
| conv2d | x, weight, bias if any | stride, padding (4 numbers or "same"), dilation, groups |
| conv_transpose2d | x, weight, bias if any | stride, padding (4 numbers), dilation, groups |
| take | x, indices | axis (not negative) |
| cumsum, argsort | x | axis (not negative) |
| bincount, flatnonzero | x of rank 1 | |
| max_pool2d, avg_pool2d | x | kernel, stride, padding (4 numbers); count_include_pad |
| attention | q, kt, v, scale, what the masks need, or the second parts of kt and v | masks (see attention.py); divide: the scale is a divisor; joined: keys in two parts; single: one row |
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from . import attention, conv, conv_transpose, matmul, movement, pool, sorting
from .builder import DONE, NO_MEMORY, REFUSED

__all__ = ["DONE", "NO_MEMORY", "REFUSED", "LibraryCall", "Size", "Stride", "kernel_for", "library_call"]


@dataclass(frozen=True)
class Size:
    """The size of a dim of an operand."""

    operand: int
    dim: int


@dataclass(frozen=True)
class Stride:
    """The byte stride of a dim of an operand. broadcast: it is 0 where the size is 1. like: the size it broadcasts to; None: the result's, counted from the last."""

    operand: int
    dim: int
    broadcast: bool = False
    like: Size | None = None


@dataclass(frozen=True)
class LibraryCall:
    """generate: gives what to compile, which takes time. strides: for each operand, the result last, one entry per dim of the kernel (all have the same
    number of them). sizes: the words of the sizes array. units: (size, block) factors. finishes: which of the sizes may be the address of an epilogue (see abi),
    if one may."""

    generate: partial[KernelSource]
    strides: tuple[tuple[Stride | None, ...], ...]
    sizes: tuple[int | Size | Stride, ...]
    units: tuple[tuple[int | Size, int], ...]
    finishes: int | None = None

    @cached_property
    def kernel(self) -> KernelSource:
        """What to compile. Unsupported: there is no such kernel."""
        return self.generate()

    @property
    def content(self) -> str:
        """What the kernel is, in words: equal for equal kernels."""
        function = self.generate.func
        return f"{function.__module__}.{function.__qualname__}{(*self.generate.args, self.generate.keywords)}"


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
    return _product(_one_dtype("matmul", dtypes), ranks, target, False)


def _matmul_packed(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    """The second operand is the packed form (matmul.pack) of a `b` of rank 2. The kernel is that of matmul."""
    if dtypes[0] != dtypes[2] or dtypes[1] != matmul.packed_dtype(dtypes[0], target) or ranks[1] != 1:
        raise Unsupported(f"matmul_packed of dtypes {dtypes} and ranks {ranks}")
    return _product(dtypes[0], (ranks[0], 2, ranks[2]), target, True)


def _product(dtype: str, ranks: tuple[int, ...], target: Target, packed: bool) -> LibraryCall:
    a, b, out = ranks
    row, column = a > 1, b > 1
    batch = max(a, b, 2) - 2
    pad = max(2 - batch, 0)  # products of up to two batch dims share one kernel, which takes long to compile
    if a < 1 or b < 1 or out != batch + row + column:
        raise Unsupported(f"matmul of ranks {a} and {b} into {out}")

    def batches(operand: int, rank: int) -> tuple[Stride | None, ...]:
        missing = batch - max(rank - 2, 0)
        return (None,) * (pad + missing) + tuple(Stride(operand, i, True) for i in range(batch - missing))

    right = (None,) * (pad + batch + 2) if packed else (*batches(1, b), Stride(1, b - 2 if column else 0), Stride(1, b - 1) if column else None)
    strides = (
        (*batches(0, a), Stride(0, a - 2) if row else None, Stride(0, a - 1)),
        right,
        ((None,) * pad + _own(2, batch) + (Stride(2, batch) if row else None, Stride(2, out - 1) if column else None)),
    )
    sizes: tuple[int | Size, ...] = ((1,) * pad + tuple(Size(2, i) for i in range(batch)) + (Size(2, batch) if row else 1, Size(2, out - 1) if column else 1, Size(0, a - 1)))
    blocks = (1,) * (pad + batch) + (matmul.ROWS, matmul.panel_columns(dtype, target))
    return LibraryCall(partial(matmul.generate, dtype, pad + batch, target), strides, (*sizes, int(packed), 0), tuple(zip(sizes[:-1], blocks, strict=True)), len(sizes) + 1)


def _numbers(name: str, value: Any, count: int) -> tuple[int, ...]:
    """A constant attribute of `count` ints."""
    if not isinstance(value, (tuple, list)) or len(value) != count or not all(isinstance(v, int) for v in value):
        raise Unsupported(f"{name} is {value!r}, not {count} constant integers")
    return tuple(value)


def _conv_attrs(name: str, attrs: Attrs) -> conv.ConvAttrs:
    stride, dilation = (_numbers(f"{name}: {n}", attrs.get(n, (1, 1)), 2) for n in ("stride", "dilation"))
    padding = attrs.get("padding", (0, 0, 0, 0))
    pads: Any = padding if padding == "same" else _numbers(f"{name}: padding", padding, 4)
    return conv.ConvAttrs((stride[0], stride[1]), pads, (dilation[0], dilation[1]), attrs.get("groups", 1))


def _convolution(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> tuple[str, int, tuple[tuple[Stride | None, ...], ...]]:
    """The dtype, the number of the result, the strides of all operands."""
    dtype = _one_dtype(name, dtypes)
    if ranks not in ((4, 4, 4), (4, 4, 1, 4)):
        raise Unsupported(f"{name} of ranks {ranks}")
    out = len(ranks) - 1
    bias: tuple[tuple[Stride | None, ...], ...] = ((None, Stride(2, 0), None, None),) if out == 3 else ()
    return dtype, out, (_own(0, 4), _own(1, 4), *bias, _own(out, 4))


def _conv2d(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    dtype, out, strides = _convolution("conv2d", dtypes, ranks)
    found = _conv_attrs("conv2d", attrs)
    sizes: tuple[int | Size, ...] = (*(Size(0, i) for i in range(4)), Size(1, 0), Size(1, 2), Size(1, 3), Size(out, 2), Size(out, 3), 0)
    finishes = len(sizes) - 1
    if not isinstance(found.padding, str):  # one kernel for all
        top, bottom, left, right = found.padding
        if min(top, bottom, left, right) < 0:
            raise Unsupported(f"conv2d with padding {found.padding}")
        found, sizes = replace(found, padding="given"), (*sizes, top, left)
    blocks: tuple[int | Size, int] = (found.groups, 1) if found.groups > 1 else (Size(1, 0), conv.OUTPUTS)
    return LibraryCall(partial(conv.generate, dtype, found, out == 3, target), strides, sizes,
                       (blocks, (Size(0, 0), 1), (Size(out, 2), conv.ROWS), (Size(out, 3), conv.COLUMNS)), finishes)


def _conv_transpose2d(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    dtype, out, strides = _convolution("conv_transpose2d", dtypes, ranks)
    found = _conv_attrs("conv_transpose2d", attrs)
    sizes = (*(Size(0, i) for i in range(4)), Size(out, 1), Size(1, 2), Size(1, 3), Size(out, 2), Size(out, 3))
    (down, right), groups = found.stride, found.groups
    return LibraryCall(partial(conv_transpose.generate, dtype, found, out == 3, target), strides, sizes,
                       ((groups * down * right, 1), (Size(1, 1), conv.OUTPUTS), (Size(0, 0), 1), (Size(out, 2), down * conv.ROWS), (Size(out, 3), right * conv.COLUMNS)))


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
    kernel = partial(movement.take, dtypes[0], dtypes[1], len(dims), target)
    return LibraryCall(kernel, strides, (*dims, Size(0, axis), Stride(0, axis)), tuple((d, 1) for d in dims[:-1]))


def _along(name: str, generate: Callable[[tuple[str, ...], int, Target], KernelSource]) -> Maker:
    """A kernel over rows along one axis: the result has the sizes of x."""
    def make(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
        axis, rank = attrs["axis"], ranks[0]
        if not (isinstance(axis, int) and 0 <= axis < rank) or ranks[1] != rank:
            raise Unsupported(f"{name} of rank {rank} along axis {axis!r}")
        order = [*(i for i in range(rank) if i != axis), axis]
        dims = tuple(Size(1, i) for i in order)
        strides = tuple(tuple(Stride(operand, i) for i in order) for operand in (0, 1))
        return LibraryCall(partial(generate, dtypes, rank, target), strides, dims, tuple((d, 1) for d in dims[:-1]))

    return make


def _vector(name: str, generate: Callable[[str, Target], KernelSource]) -> Maker:
    """A kernel over a whole vector whose result's length depends on its values."""
    def make(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
        if ranks != (1, 1) or dtypes[1] != "int64":
            raise Unsupported(f"{name} of ranks {ranks} into {dtypes[1]}")
        return LibraryCall(partial(generate, dtypes[0], target), (_own(0, 1), _own(1, 1)), (Size(0, 0), Size(1, 0)), ())

    return make


def _cumsum(dtypes: tuple[str, ...], rank: int, target: Target) -> KernelSource:
    return movement.cumsum(dtypes[0], dtypes[1], rank, target)


def _argsort(dtypes: tuple[str, ...], rank: int, target: Target) -> KernelSource:
    if dtypes[1] != "int64":
        raise Unsupported(f"argsort into {dtypes[1]}")
    return sorting.argsort(dtypes[0], rank, target)


def _flatnonzero(dtype: str, target: Target) -> KernelSource:
    if dtype != "bool":
        raise Unsupported(f"flatnonzero of {dtype}")
    return sorting.flatnonzero(target)


def _pool2d(name: str) -> Maker:
    generate = {"max_pool2d": pool.max_pool2d, "avg_pool2d": pool.avg_pool2d}[name]

    def make(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
        if ranks != (4, 4):
            raise Unsupported(f"{name} of ranks {ranks}")
        kernel, stride = (_numbers(f"{name}: {n}", attrs[n], 2) for n in ("kernel", "stride"))
        top, bottom, left, right = _numbers(f"{name}: padding", attrs.get("padding", (0, 0, 0, 0)), 4)
        found = pool.PoolAttrs((kernel[0], kernel[1]), (stride[0], stride[1]), (top, bottom, left, right), bool(attrs.get("count_include_pad", True)))
        sizes = (*(Size(0, i) for i in range(4)), Size(1, 2), Size(1, 3))
        return LibraryCall(partial(generate, _one_dtype(name, dtypes), found, target), (_own(0, 4), _own(1, 4)), sizes, ((sizes[0], 1), (sizes[1], 1), (sizes[4], pool.ROWS)))

    return make


def _attention(dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Attrs, target: Target) -> LibraryCall:
    """Operands as attention.py lists them. Masks may have any rank and sizes that broadcast, to the rows of the result and the keys of v."""
    masks, joined = tuple(attrs["masks"]), bool(attrs.get("joined"))
    dtype = _one_dtype("attention", tuple(t for t in dtypes if t != "bool"))
    out, last = len(ranks) - 1, ranks[-1]
    batch = last - 2
    pad = max(2 - batch, 0)
    rows, keys = Size(out, last - 2), Size(2, ranks[2] - 2)

    def matrix(operand: int, row: Size | None = None, column: Size | None = None) -> tuple[Stride | None, ...]:
        rank = ranks[operand]
        missing = batch - max(rank - 2, 0)
        batches = (None,) * (pad + missing) + tuple(Stride(operand, i, True) for i in range(batch - missing))
        return (*batches, Stride(operand, rank - 2, row is not None, row) if rank > 1 else None, Stride(operand, rank - 1, column is not None, column) if rank else None)

    number: tuple[Stride | None, ...] = (None,) * (pad + last)
    strides = [matrix(0, row=rows), matrix(1, column=None if joined else keys), matrix(2), number, *(matrix(i) for i in ((4, 5) if joined else ()))]
    for kind in masks:
        if kind != "causal":
            strides.append(matrix(len(strides), rows, keys))
        if kind in ("keep", "drop"):
            strides.append(number)
    strides.append(matrix(out))
    batches = (1,) * pad + tuple(Size(out, i) for i in range(batch))
    sizes = (*batches, rows, keys, Size(0, ranks[0] - 1), Size(2, ranks[2] - 1), int(attrs["divide"]),
             *((Size(1, ranks[1] - 1), Size(5, ranks[5] - 2)) if joined else ()))
    kernel = partial(attention.generate, dtype, pad + batch, masks, target, joined, bool(attrs.get("single")))
    return LibraryCall(kernel, tuple(strides), sizes, (*((b, 1) for b in batches), (rows, attention.queries(dtype, target))))


_MAKERS: dict[str, Maker] = {"matmul": _matmul, "matmul_packed": _matmul_packed, "conv2d": _conv2d, "conv_transpose2d": _conv_transpose2d,
                             "take": _take, "cumsum": _along("cumsum", _cumsum), "argsort": _along("argsort", _argsort),
                             "bincount": _vector("bincount", sorting.bincount), "flatnonzero": _vector("flatnonzero", _flatnonzero), "max_pool2d": _pool2d("max_pool2d"),
                             "avg_pool2d": _pool2d("avg_pool2d"), "attention": _attention}
NAMES = frozenset(_MAKERS) - {"attention", "matmul_packed"}  # those are no ops of the table, the compiler makes them


def library_call(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Mapping[str, Any], target: Target) -> LibraryCall:
    """The kernel of the op `name` and how it is called. dtypes and ranks: of the op's inputs, then of its result. Raises Unsupported."""
    if name not in _MAKERS:
        raise Unsupported(f"no library kernel named {name!r}")
    return _MAKERS[name](dtypes, ranks, attrs, target)


def kernel_for(name: str, dtypes: tuple[str, ...], ranks: tuple[int, ...], attrs: Mapping[str, Any], target: Target) -> KernelSource:
    """The kernel alone."""
    return library_call(name, dtypes, ranks, attrs, target).kernel
