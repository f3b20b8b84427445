"""Gathers, running sums and pooling.

Kernels over rows: operands of one rank, sizes begin with that many dims, the last dim is the row; units are rows, C order (see `rows_of`).
Pooling: x[B, C, H, W] -> out[B, C, OH, OW]; units are output rows, B * C * OH.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


# -- pooling

@dataclass(frozen=True)
class PoolAttrs:
    """kernel and stride (rows, columns), padding (top, bottom, left, right); padding counts in a mean if count_include_pad."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    count_include_pad: bool = True


@dataclass(frozen=True)
class _Pool:
    """How windows combine: NaN wins a maximum, as in np.maximum."""

    dtype: str
    mean: bool

    @property
    def element(self) -> str:
        return llvm_type(self.dtype)

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")

    def start(self) -> str:
        if self.mean:
            return "-0.0"
        if self.floating:
            return "0xFFF0000000000000"     # -inf
        return "0" if self.dtype.startswith("uint") else str(-(1 << (8 * ITEMSIZE[self.dtype] - 1)))

    def combine(self, f: Function, so_far: str, value: str, lanes: int) -> str:
        type, bits = (self.element, "i1") if lanes == 1 else (f"<{lanes} x {self.element}>", f"<{lanes} x i1>")
        if self.mean:
            return f(f"fadd {type} {so_far}, {value}")
        if self.floating:
            wins = f(f"or {bits} {f(f'fcmp ogt {type} {value}, {so_far}')}, {f(f'fcmp uno {type} {value}, {value}')}")
        else:
            wins = f(f"icmp {'ugt' if self.dtype.startswith('uint') else 'sgt'} {type} {value}, {so_far}")
        return f(f"select {bits} {wins}, {type} {value}, {type} {so_far}")


def max_pool2d(dtype: str, attrs: PoolAttrs, target: Target) -> KernelSource:
    """The largest of each window; sizes = [B, C, H, W, OH, OW]. dtype: float32, float64 or an integer."""
    if dtype not in ITEMSIZE or dtype == "bool":
        raise Unsupported(f"max_pool2d of {dtype}")
    return _pool("max_pool2d", _Pool(dtype, False), attrs, target)


def avg_pool2d(dtype: str, attrs: PoolAttrs, target: Target) -> KernelSource:
    """The mean of each window; sizes = [B, C, H, W, OH, OW]. dtype: float32 or float64."""
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"avg_pool2d of {dtype}")
    return _pool("avg_pool2d", _Pool(dtype, True), attrs, target)


def _pool(op: str, pool: _Pool, attrs: PoolAttrs, target: Target) -> KernelSource:
    (kh, kw), (sh, sw) = attrs.kernel, attrs.stride
    top, _, left, _ = attrs.padding
    if min(kh, kw, sh, sw) < 1 or min(attrs.padding) < 0:
        raise Unsupported(f"{op} with kernel {attrs.kernel}, stride {attrs.stride}, padding {attrs.padding}")
    item, e = ITEMSIZE[pool.dtype], pool.element
    lanes = min(target.vector_bytes, 32) // item
    vector = f"<{lanes} x {e}>"
    module = Module()
    numbers = "_".join(str(n) for n in (*attrs.kernel, *attrs.stride, *attrs.padding))
    name = f"{op}_{pool.dtype}_{numbers}{'' if attrs.count_include_pad else '_inside'}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    batch, channels, height, width, oh, ow = (f.word("%sizes", i) for i in range(6))
    x, out = f.load("ptr", "%operands"), f.load("ptr", f.gep("%operands", 40))
    xs, outs = ([f.word("%operands", 5 * o + 1 + i) for i in range(4)] for o in range(2))
    hi = f.select(f.cmp("slt", "%hi", 0), f.mul(f.mul(batch, channels), oh), "%hi")

    # Columns whose windows lie inside: first..last-1.
    first = f.min((left + sw - 1) // sw, ow)
    last = f.max(f.min(f.div(f.max(f.add(f.sub(width, kw), left + sw), 0), sw), ow), first)
    unit_steps = f.both(f.cmp("eq", xs[3], item), f.cmp("eq", outs[3], item), f.cmp("sge", f.sub(last, first), lanes)) if sw <= 2 else "false"

    with f.loop("%lo", hi) as u:
        row, plane = f.rem(u.index, oh), f.div(u.index, oh)
        image, channel = f.div(plane, channels), f.rem(plane, channels)
        source = f.gep(f.gep(x, f.mul(image, xs[0])), f.mul(channel, xs[1]))
        to = f.gep(f.gep(f.gep(out, f.mul(image, outs[0])), f.mul(channel, outs[1])), f.mul(row, outs[2]))
        start_row = f.sub(f.mul(row, sh), top)
        low, high = f.max(start_row, 0), f.min(f.add(start_row, kh), height)

        def finished(total: str, columns: Value, lanes: int, low: Value = low, high: Value = high) -> str:
            """The mean of a total over windows with `columns` columns inside."""
            if not pool.mean:
                return total
            if attrs.count_include_pad:
                count: str = f"{float(kh * kw)}"
            else:
                count = f(f"uitofp i64 {f.mul(f.sub(high, low), columns)} to {e}")
            if lanes == 1:
                return f(f"fdiv {e} {total}, {count}")
            return f(f"fdiv {vector} {total}, {f.splat(e, lanes, count)}")

        def one(column: Value, source: str = source, to: str = to, low: Value = low, high: Value = high) -> None:
            begin = f.sub(f.mul(column, sw), left)
            begin, end = f.max(begin, 0), f.min(f.add(begin, kw), width)
            with f.loop(low, high, carried=[(e, pool.start())]) as i:
                line = f.gep(source, f.mul(i.index, xs[2]))
                with f.loop(begin, end, carried=[(e, i.carried[0])]) as j:
                    value = f.load(e, f.gep(line, f.mul(j.index, xs[3])), item)
                    j.next = [pool.combine(f, j.carried[0], value, 1)]
                i.next = [j.carried[0]]
            # A window with nothing inside is empty, not negative.
            inside = f.max(f.sub(end, begin), 0)
            f.store(e, finished(i.carried[0], inside, 1), f.gep(to, f.mul(column, outs[3])), item)

        def many(column: Value, source: str = source, to: str = to, low: Value = low, high: Value = high) -> None:
            begin = f.gep(source, f.mul(f.sub(f.mul(column, sw), left), item))

            def window(at: str) -> str:
                near = f.load(vector, at, item)
                if sw == 1:
                    return near
                far = f.load(vector, f.gep(at, (lanes - 1) * item), item)
                return f.shuffle(e, lanes, near, far, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)])

            with f.loop(low, high, carried=[(vector, f.splat(e, lanes, pool.start()))]) as i:
                line = f.gep(begin, f.mul(i.index, xs[2]))
                with f.loop(0, kw, carried=[(vector, i.carried[0])]) as j:
                    j.next = [pool.combine(f, j.carried[0], window(f.gep(line, f.mul(j.index, item))), lanes)]
                i.next = [j.carried[0]]
            f.store(vector, finished(i.carried[0], kw, lanes), f.gep(to, f.mul(column, item)), item)

        def quickly() -> None:
            with f.loop(0, first) as c:
                one(c.index)
            # The last vector may overlap the one before it.
            with f.loop(first, last, lanes) as c:
                many(f.min(c.index, f.sub(last, lanes)))
            with f.loop(last, ow) as c:
                one(c.index)

        def slowly() -> None:
            with f.loop(0, ow) as c:
                one(c.index)

        if sw <= 2:
            f.choose(unit_steps, quickly, slowly)
        else:
            slowly()
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)
