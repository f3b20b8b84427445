"""The units of a convolution: a block of outputs (or a group) of one line, which is up to ROWS rows and COLUMNS columns of one image of the result."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .builder import Function, Value
from .conv_tiles import COLUMNS, OUTPUTS, ROWS

LARGE = 1 << 20     # bytes of input that do not stay in L2


def units(batch: int, outputs: int, groups: int, output_rows: int, output_columns: int) -> int:
    """The number of units: (groups, or blocks of outputs where there is one group) * batch * blocks of rows * blocks of columns."""
    return (groups if groups > 1 else -(-outputs // OUTPUTS)) * batch * -(-output_rows // ROWS) * -(-output_columns // COLUMNS)


def ordered_by_lines(f: Function, input_bytes: Value, weight_bytes: Value) -> str:
    """Whether a line's blocks of outputs come one after the other: the input is too large to be read again for each block of outputs. Else a block's lines do."""
    return f.cmp("sgt", input_bytes, f.max(weight_bytes, LARGE))


@contextmanager
def rectangles(f: Function, columns: Value, all_lines: Value, by_lines: str) -> Iterator[tuple[str, str, str, str]]:
    """Runs the block on the kernel's units lo..hi-1 (hi = -1: all), as up to three rectangles of outputs x lines: what is left of the first row, whole rows, the
    start of the last one. A row is a block of outputs with all lines, or a line with all `columns` blocks. Gives first and last block, first and last line."""
    hi = f.select(f.cmp("slt", "%hi", 0), f.mul(columns, all_lines), "%hi")
    row = f.select(by_lines, columns, all_lines)
    o0, o1 = f.div("%lo", row), f.div(hi, row)
    l0, l1 = f.rem("%lo", row), f.rem(hi, row)
    ragged, short = f.cmp("sgt", l0, 0), f.cmp("eq", o0, o1)
    o2 = f.select(ragged, f.add(o0, 1), o0)
    rest = f.both(f.cmp("sgt", l1, 0), f.cmp("sge", o1, o2))
    bounds: tuple[tuple[Value, ...], ...] = ((o0, o2, l0, f.select(short, l1, row)), (o2, f.max(o1, o2), 0, row), (o1, f.select(rest, f.add(o1, 1), o1), 0, l1))
    with f.loop(0, 3) as part:
        first, second = f.cmp("eq", part.index, 0), f.cmp("eq", part.index, 1)
        outer = [f.select(first, a, f.select(second, b, c)) for a, b, c in zip(*bounds, strict=True)]
        low, high, start, stop = (f.select(by_lines, outer[i ^ 2], outer[i]) for i in range(4))
        with f.when(f.both(f.cmp("slt", low, high), f.cmp("slt", start, stop))):
            yield low, high, start, stop
