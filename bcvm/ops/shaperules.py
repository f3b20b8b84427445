"""Shape rules shared by the ops: what the dims of a result are, and which relations of the operands' dims must hold.

A rule takes a ShapeContext and the operands' dims. What is not decided now the context turns into a run-time check.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bcvm.errors import ShapeError
from bcvm.ops.definition import ShapeContext
from bcvm.shapes.dim import Dim, DimLike, dim, maximum, minimum, product

Dims = Sequence[Dim]


def same(ctx: ShapeContext, x: Dims, *_: Dims, **__: Any) -> tuple[Dim, ...]:
    """The dims of the first operand."""
    return tuple(x)


def reduced(ctx: ShapeContext, x: Dims, axis: Sequence[int] = (), keepdims: bool = False, **_: Any) -> tuple[Dim, ...]:
    """Reduced axes leave, or become 1."""
    if keepdims:
        return tuple(Dim.const(1) if i in axis else d for i, d in enumerate(x))
    return tuple(d for i, d in enumerate(x) if i not in axis)


def nonempty_reduced(ctx: ShapeContext, x: Dims, axis: Sequence[int] = (), keepdims: bool = False, **_: Any) -> tuple[Dim, ...]:
    """As `reduced`, for reductions without a neutral element: no reduced axis may be empty, unless there is no result either."""
    out = reduced(ctx, x, axis, keepdims)
    if all(d.value != 0 for d in out):
        for i in axis:
            ctx.require("lt", Dim.const(0), x[i], f"axis {i} of a reduction without identity is empty")
    return out


def transposed(ctx: ShapeContext, x: Dims, perm: Sequence[int]) -> tuple[Dim, ...]:
    if sorted(perm) != list(range(len(x))):
        raise ShapeError(f"axes {tuple(perm)} are no permutation of the {len(x)} axes")
    return tuple(x[i] for i in perm)


def reshaped(ctx: ShapeContext, x: Dims, dims: Sequence[DimLike]) -> tuple[Dim, ...]:
    out = tuple(dim(d) for d in dims)
    ctx.require("eq", product(x), product(out), "reshape keeps the number of elements")
    return out


def broadcasted(ctx: ShapeContext, x: Dims, dims: Sequence[DimLike]) -> tuple[Dim, ...]:
    """Each dim of x is 1 or that of the target."""
    out = tuple(dim(d) for d in dims)
    if len(x) > len(out):
        raise ShapeError(f"a tensor of rank {len(x)} does not broadcast to rank {len(out)}")
    for target, result in zip(out, ctx.broadcast(x, out), strict=False):
        ctx.require_equal(result, target, "broadcast_to does not shrink an axis")
    return out


def expanded(ctx: ShapeContext, x: Dims, axis: Sequence[int]) -> tuple[Dim, ...]:
    """New axes of size 1 at these places of the result."""
    if any(i >= len(x) + len(axis) for i in axis):
        raise ShapeError(f"axes {tuple(axis)} of a result of rank {len(x) + len(axis)}")
    rest = iter(x)
    return tuple(Dim.const(1) if i in axis else next(rest) for i in range(len(x) + len(axis)))


def squeezed(ctx: ShapeContext, x: Dims, axis: Sequence[int]) -> tuple[Dim, ...]:
    for i in axis:
        ctx.require_equal(x[i], Dim.const(1), f"squeeze removes axes of size 1 only (axis {i})")
    return tuple(d for i, d in enumerate(x) if i not in axis)


def slice_bounds(size: DimLike, start: DimLike | None, stop: DimLike | None, step: int = 1, wrap: Callable[[Dim], Dim] | None = None) -> tuple[Dim, Dim]:
    """First index and length of `range(size)[start:stop:step]`, as Python clamps them. `step` is a non-zero constant.
    wrap: counts an index that may be negative from the end, where there is a shorter way than by the index's dim."""
    n = dim(size)
    if start is None and stop is None and step == 1 and n.interval()[0] >= 0:
        return Dim.const(0), n
    low, high = (Dim.const(0), n) if step > 0 else (Dim.const(-1), n - 1)
    first = _clamped(n, start, low, high, wrap) if start is not None else (low if step > 0 else high)
    last = _clamped(n, stop, low, high, wrap) if stop is not None else (high if step > 0 else low)
    span = last - first if step > 0 else first - last
    return first, maximum(0, (span + (abs(step) - 1)) // abs(step))


def _clamped(n: Dim, index: DimLike, low: Dim, high: Dim, wrap: Callable[[Dim], Dim] | None) -> Dim:
    i = dim(index)
    if i.value is not None and i.value < 0:
        return maximum(low, i + n)
    if i.interval()[0] >= 0:
        return minimum(i, high)
    if wrap is not None:
        return minimum(maximum(low, wrap(i)), high)
    is_negative = minimum(1, maximum(0, -i))  # 1 or 0
    return minimum(maximum(low, i + n * is_negative), high)


def sliced(ctx: ShapeContext, x: Dims, items: Sequence[Any]) -> tuple[Dim, ...]:
    """Dims of x[items]; see `OpBuilder.slice`. Axes without an item stay whole."""
    out: list[Dim] = []
    axis = 0
    for item in items:
        if item[0] == "new":
            out.append(Dim.const(1))
            continue
        if axis >= len(x):
            raise ShapeError(f"too many indices for a tensor of rank {len(x)}")
        if item[0] == "index":
            if isinstance(item[1], (int, Dim)):
                ctx.require("lt", dim(item[1]), x[axis], f"index out of bounds for axis {axis}")
                ctx.require("le", -x[axis], dim(item[1]), f"index out of bounds for axis {axis}")
        else:
            step = dim(1 if item[3] is None else item[3]).value
            if not step:
                raise ShapeError("the step of a slice must be a non-zero constant")
            out.append(slice_bounds(x[axis], item[1], item[2], step)[1])
        axis += 1
    return tuple(out) + tuple(x[axis:])


def matmul(ctx: ShapeContext, a: Dims, b: Dims) -> tuple[Dim, ...]:
    """NumPy's: 1-D operands are a row and a column whose axis leaves again, leading axes broadcast."""
    if not a or not b:
        raise ShapeError("matmul: an operand has rank 0; use multiplication")
    inner_b = b[0] if len(b) == 1 else b[-2]
    ctx.require_equal(a[-1], inner_b, "matmul: the last axis of the first operand and the rows of the second differ")
    batch = ctx.broadcast(a[:-2], b[:-2])
    return tuple(batch) + tuple(a[-2:-1]) + (tuple(b[-1:]) if len(b) > 1 else ())


def concatenated(ctx: ShapeContext, *tensors: Dims, axis: int) -> tuple[Dim, ...]:
    if not tensors:
        raise ShapeError("concat needs at least one tensor")
    first = tensors[0]
    total = Dim.const(0)
    for number, t in enumerate(tensors):
        if len(t) != len(first):
            raise ShapeError(f"concat: tensor {number} has rank {len(t)}, the first has rank {len(first)}")
        for i, d in enumerate(t):
            if i != axis:
                ctx.require_equal(d, first[i], f"concat: sizes of axis {i} differ")
        total = total + t[axis]
    return tuple(first[:axis]) + (total,) + tuple(first[axis + 1:])


def taken(ctx: ShapeContext, x: Dims, indices: Dims, axis: int) -> tuple[Dim, ...]:
    return tuple(x[:axis]) + tuple(indices) + tuple(x[axis + 1:])


def window(size: DimLike, kernel: DimLike, stride: int, before: DimLike, after: DimLike, dilation: int = 1) -> Dim:
    """Places of a sliding window along one axis."""
    return (dim(size) + before + after - (dim(kernel) - 1) * dilation - 1) // stride + 1


def same_padding(kernel: DimLike, dilation: int) -> tuple[Dim, Dim]:
    """Padding that keeps the size at stride 1; the odd one goes behind."""
    total = (dim(kernel) - 1) * dilation
    return total // 2, total - total // 2


def conv2d(ctx: ShapeContext, x: Dims, w: Dims, *bias: Dims, stride: tuple[int, int], padding: Any, dilation: tuple[int, int], groups: int) -> tuple[Dim, ...]:
    """x [N, C, H, W], w [O, C/groups, KH, KW], bias [O] -> [N, O, H', W']."""
    if len(x) != 4 or len(w) != 4:
        raise ShapeError(f"conv2d takes x [N, C, H, W] and weight [O, C/groups, KH, KW], not ranks {len(x)} and {len(w)}")
    ctx.require_equal(x[1], w[1] * groups, "conv2d: channels of x and of the weight differ")
    if groups != 1:
        ctx.require_equal(w[0] % groups, Dim.const(0), "conv2d: groups must divide the output channels")
    for b in bias:
        if len(b) != 1:
            raise ShapeError(f"conv2d takes a bias of rank 1, not {len(b)}")
        ctx.require_equal(b[0], w[0], "conv2d: bias and output channels differ")
    pads = [p for i in (0, 1) for p in same_padding(w[2 + i], dilation[i])] if padding == "same" else [dim(p) for p in padding]
    places = [window(x[2 + i], w[2 + i], stride[i], pads[2 * i], pads[2 * i + 1], dilation[i]) for i in (0, 1)]
    for i, p in enumerate(places):
        ctx.require("le", Dim.const(1), p, f"conv2d: the kernel is larger than the padded input (axis {2 + i})")
    return x[0], w[0], places[0], places[1]


def pool2d(ctx: ShapeContext, x: Dims, kernel: tuple[int, int], stride: tuple[int, int], padding: Sequence[int], **_: Any) -> tuple[Dim, ...]:
    if len(x) != 4:
        raise ShapeError(f"2-d pooling takes x [N, C, H, W], not rank {len(x)}")
    places = [window(x[2 + i], kernel[i], stride[i], padding[2 * i], padding[2 * i + 1]) for i in (0, 1)]
    for i, p in enumerate(places):
        ctx.require("le", Dim.const(1), p, f"pooling: the window is larger than the padded input (axis {2 + i})")
    return x[0], x[1], places[0], places[1]


def padded(ctx: ShapeContext, x: Dims, pads: Sequence[tuple[DimLike, DimLike]], **_: Any) -> tuple[Dim, ...]:
    if len(pads) != len(x):
        raise ShapeError(f"pad takes one (before, after) pair per axis: {len(x)}, not {len(pads)}")
    return tuple(d + before + after for d, (before, after) in zip(x, pads, strict=False))


def given(ctx: ShapeContext, *_: Dims, dims: Sequence[DimLike], **__: Any) -> tuple[Dim, ...]:
    """The dims that the call names."""
    out = tuple(dim(d) for d in dims)
    for d in out:
        ctx.require("le", Dim.const(0), d, "a size is negative")
    return out


# -- costs: (flops, bytes) as dims; bytes in units of the element size of 4

def elementwise_cost(*operands: Dims, flops: int = 1, **_: Any) -> tuple[Dim, Dim]:
    """Flops and bytes where every operand is read once and the largest rank is written."""
    largest = max(operands, key=len, default=())
    count = product(largest)
    read = sum((product(o) for o in operands), Dim.const(0))
    return count * flops, (read + count) * 4


def matmul_cost(a: Dims, b: Dims, **_: Any) -> tuple[Dim, Dim]:
    columns = b[-1] if len(b) > 1 else Dim.const(1)
    out = product(a[:-1]) * columns
    if len(b) > 2 and len(a) <= 2:
        out = out * product(b[:-2])
    return out * a[-1] * 2, (product(a) + product(b) + out) * 4


def conv2d_cost(x: Dims, w: Dims, *bias: Dims, stride: tuple[int, int] = (1, 1), **_: Any) -> tuple[Dim, Dim]:
    out = x[0] * w[0] * (x[2] // stride[0]) * (x[3] // stride[1])
    return out * w[1] * w[2] * w[3] * 2, (product(x) + product(w) + out) * 4
