"""Pooling: x[B, C, H, W] -> out[B, C, OH, OW]; sizes = [B, C, H, W, OH, OW]. Units are blocks of up to ROWS output rows, B * C * ceil(OH / ROWS).

Vectors are neighbouring windows. Windows combine row by row, each row from left to right, so that rows of input serve all the output rows of a unit that meet
them. Masks hide what lies outside the image.
"""
from __future__ import annotations

from dataclasses import dataclass

from ...errors import Unsupported
from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, Function, Module, Value
from .conv_tiles import ITEMSIZE, ROWS, Columns, Form

MOST_STEP = 4       # widest stride of vectors
MOST_TAPS = 32      # largest window of them


@dataclass(frozen=True)
class PoolAttrs:
    """kernel and stride (rows, columns), padding (top, bottom, left, right); padding counts in a mean if count_include_pad."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    count_include_pad: bool = True


@dataclass(frozen=True)
class _Combine:
    """How windows combine: NaN wins a maximum, as in np.maximum."""

    form: Form
    mean: bool

    def start(self) -> str:
        if self.mean:
            return "-0.0"
        if self.form.floating:
            return "0xFFF0000000000000"     # -inf
        return "0" if self.form.dtype.startswith("uint") else str(-(1 << (8 * self.form.item - 1)))

    def two(self, f: Function, so_far: str, value: str, vector: bool) -> str:
        form = self.form
        type, bits = (form.vector, f"<{form.lanes} x i1>") if vector else (form.element, "i1")
        if self.mean:
            return f(f"fadd {type} {so_far}, {value}")
        if form.floating:
            larger = f(f"select {bits} {f(f'fcmp ogt {type} {value}, {so_far}')}, {type} {value}, {type} {so_far}")
            return f(f"select {bits} {f(f'fcmp uno {type} {value}, {value}')}, {type} {value}, {type} {larger}")
        wins = f(f"icmp {'ugt' if form.dtype.startswith('uint') else 'sgt'} {type} {value}, {so_far}")
        return f(f"select {bits} {wins}, {type} {value}, {type} {so_far}")


def max_pool2d(dtype: str, attrs: PoolAttrs, target: Target) -> KernelSource:
    """The largest of each window. dtype: float32, float64 or an integer."""
    if dtype not in ITEMSIZE or dtype == "bool":
        raise Unsupported(f"max_pool2d of {dtype}")
    return _Pool("max_pool2d", _Combine(Form(dtype, target), False), attrs).source()


def avg_pool2d(dtype: str, attrs: PoolAttrs, target: Target) -> KernelSource:
    """The mean of each window. dtype: float32 or float64."""
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"avg_pool2d of {dtype}")
    return _Pool("avg_pool2d", _Combine(Form(dtype, target), True), attrs).source()


class _Pool:
    def __init__(self, op: str, combine: _Combine, attrs: PoolAttrs) -> None:
        (kh, kw), (sh, sw) = attrs.kernel, attrs.stride
        if min(kh, kw, sh, sw) < 1 or min(attrs.padding) < 0:
            raise Unsupported(f"{op} with kernel {attrs.kernel}, stride {attrs.stride}, padding {attrs.padding}")
        self.combine, self.form, self.attrs, self.mean = combine, combine.form, attrs, combine.mean
        numbers = "_".join(str(n) for n in (*attrs.kernel, *attrs.stride, *attrs.padding))
        self.name = f"{op}_{self.form.dtype}_{numbers}{'' if attrs.count_include_pad else '_inside'}"
        self.module = Module()
        self.f = Function(self.module, self.name, KERNEL_PARAMS, "i32", public=True)

    def source(self) -> KernelSource:
        f, form, item = self.f, self.form, self.form.item
        (kh, kw), (sh, sw) = self.attrs.kernel, self.attrs.stride
        batch, channels, self.height, self.width, oh, self.ow = (f.word("%sizes", i) for i in range(6))
        x, out = f.load("ptr", "%operands"), f.load("ptr", f.gep("%operands", 40))
        self.xs, self.outs = ([f.word("%operands", 5 * o + 1 + i) for i in range(4)] for o in range(2))
        quads = f.ceil_div(oh, ROWS)
        hi = f.select(f.cmp("slt", "%hi", 0), f.mul(f.mul(batch, channels), quads), "%hi")
        dense = f.both(f.cmp("eq", self.xs[3], item), f.cmp("eq", self.outs[3], item), f.cmp("sgt", self.height, 0))
        with f.loop("%lo", hi) as u:
            quad, plane = f.rem(u.index, quads), f.div(u.index, quads)
            image, channel = f.div(plane, channels), f.rem(plane, channels)
            self.plane = f.gep(f.gep(x, f.mul(image, self.xs[0])), f.mul(channel, self.xs[1]))
            first = f.mul(quad, ROWS)
            self.to = f.gep(f.gep(f.gep(out, f.mul(image, self.outs[0])), f.mul(channel, self.outs[1])), f.mul(first, self.outs[2]))
            self.rows = f.min(f.sub(oh, first), ROWS)
            self.start_row = f.sub(f.mul(first, sh), self.attrs.padding[0])
            if sw <= MOST_STEP and kh * kw <= MOST_TAPS and item >= 4 and form.target.vector_bytes >= 32:
                f.choose(dense, self._vectors, self._elements)
            else:
                self._elements()
        f.ret(f"i32 {DONE}")
        f.end()
        return self.module.source(self.name, form.target)

    def _vectors(self) -> None:
        f, form, item = self.f, self.form, self.form.item
        (kh, kw), (sh, sw), left = self.attrs.kernel, self.attrs.stride, self.attrs.padding[2]
        together = ROWS if sh < kh else 1
        none = f.splat(form.element, form.lanes, self.combine.start())
        bottom = f.sub(self.height, 1)
        with f.loop(0, self.ow, form.lanes) as c:
            start = f.sub(f.mul(c.index, sw), left)
            columns = Columns(f, form, sw, self.width, start)
            # Elements of the window that lie whole strides apart share their masks' vectors only where they share them all: each has its own.
            masks = [columns.pair(j) for j in range(kw)]
            stored = form.mask(f, f.sub(self.ow, c.index))
            count = self._columns_inside(start) if self.mean and not self.attrs.count_include_pad else ""
            with f.loop(0, self.rows, together) as r:
                top = f.add(self.start_row, f.mul(r.index, sh))
                totals = [none] * together
                for i in range((together - 1) * sh + kh):
                    row = f.add(top, i)
                    inside = f.both(f.cmp("sge", row, 0), f.cmp("slt", row, self.height))
                    line = f.gep(f.gep(self.plane, f.mul(f.max(f.min(row, bottom), 0), self.xs[2])), f.mul(start, item))
                    across = ""
                    for j in range(kw):
                        value = columns.pick(columns.load(f.gep(line, j * item), masks[j], none))
                        across = self.combine.two(f, across, value, True) if across else value
                    across = f.select(inside, across, none, form.vector)
                    for t in range(together):
                        if 0 <= i - t * sh < kh:
                            totals[t] = self.combine.two(f, totals[t], across, True)
                for t in reversed(range(together)):     # rows past the last are written to its place, and then written over
                    row = f.min(f.add(r.index, t), f.sub(self.rows, 1)) if t else r.index
                    value = totals[t]
                    if self.mean:
                        value = f(f"fdiv {form.vector} {value}, {self._count(f.add(top, t * sh), count)}")
                    form.store(f, value, f.gep(f.gep(self.to, f.mul(row, self.outs[2])), f.mul(c.index, item)), stored)

    def _columns_inside(self, start: Value) -> str:
        """Columns of each lane's window that lie in the image."""
        f, form = self.f, self.form
        t = f"<{form.lanes} x i32>"
        steps = "<" + ", ".join(f"i32 {i * self.attrs.stride[1]}" for i in range(form.lanes)) + ">"
        begin = f(f"add {t} {f.splat('i32', form.lanes, f(f'trunc i64 {start} to i32'))}, {steps}")
        end = f(f"add {t} {begin}, {f.splat('i32', form.lanes, self.attrs.kernel[1])}")
        width = f.splat("i32", form.lanes, f(f"trunc i64 {self.width} to i32"))
        end = f.intrinsic(f"llvm.smin.v{form.lanes}i32", t, (t, end), (t, width))
        begin = f.intrinsic(f"llvm.smax.v{form.lanes}i32", t, (t, begin), (t, "zeroinitializer"))
        # A window with nothing inside is empty, not negative.
        inside = f.intrinsic(f"llvm.smax.v{form.lanes}i32", t, (t, f(f"sub {t} {end}, {begin}")), (t, "zeroinitializer"))
        return f(f"uitofp {t} {inside} to {form.vector}")

    def _count(self, top: Value, columns: str) -> str:
        """The elements of the windows that begin at this row, as a vector; columns: as of _columns_inside, or '' where padding counts."""
        f, form, (kh, kw) = self.f, self.form, self.attrs.kernel
        if not columns:
            return f.splat(form.element, form.lanes, f"{float(kh * kw)}")
        rows = f.max(f.sub(f.min(f.add(top, kh), self.height), f.max(top, 0)), 0)
        return f(f"fmul {form.vector} {columns}, {f.splat(form.element, form.lanes, f(f'uitofp i64 {rows} to {form.element}'))}")

    def _elements(self) -> None:
        f, item, e = self.f, self.form.item, self.form.element
        (kh, kw), (sh, sw), left = self.attrs.kernel, self.attrs.stride, self.attrs.padding[2]
        with f.loop(0, self.rows) as r:
            top = f.add(self.start_row, f.mul(r.index, sh))
            low, high = f.max(top, 0), f.min(f.add(top, kh), self.height)
            with f.loop(0, self.ow) as c:
                begin = f.sub(f.mul(c.index, sw), left)
                first, last = f.max(begin, 0), f.min(f.add(begin, kw), self.width)
                with f.loop(low, high, carried=[(e, self.combine.start())]) as i:
                    line = f.gep(self.plane, f.mul(i.index, self.xs[2]))
                    # As vectors do it: the row first, then the rows.
                    with f.loop(first, last, carried=[(e, self.combine.start())]) as j:
                        value = f.load(e, f.gep(line, f.mul(j.index, self.xs[3])), item)
                        j.next = [self.combine.two(f, j.carried[0], value, False)]
                    i.next = [self.combine.two(f, i.carried[0], j.carried[0], False)]
                total = i.carried[0]
                if self.mean:
                    rows, columns = f.max(f.sub(high, low), 0), f.max(f.sub(last, first), 0)
                    count: str = f"{float(kh * kw)}"
                    if not self.attrs.count_include_pad:
                        count = f(f"uitofp i64 {f.mul(rows, columns)} to {e}")
                    total = f(f"fdiv {e} {total}, {count}")
                f.store(e, total, f.gep(f.gep(self.to, f.mul(r.index, self.outs[2])), f.mul(c.index, self.outs[3])), item)
