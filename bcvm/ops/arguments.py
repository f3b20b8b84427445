"""Forms in which calls give the same thing, brought to the one that op attributes have."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pair = int | Sequence[int]


def pair(value: Pair, what: str) -> tuple[int, int]:
    """An int for both, or two ints."""
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{what}: one int or two, not {value!r}")
    return int(value[0]), int(value[1])


def padding4(value: Any, what: str = "padding") -> Any:
    """'same' as it is; 'valid', an int, (height, width) or (top, bottom, left, right) as the latter."""
    if value == "same":
        return "same"
    if value == "valid":
        return 0, 0, 0, 0
    if isinstance(value, str):
        raise ValueError(f"{what}: 'same', 'valid' or numbers, not {value!r}")
    if isinstance(value, int):
        return (value,) * 4
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    if len(value) == 4:
        return tuple(map(int, value))
    raise ValueError(f"{what}: an int, (height, width) or (top, bottom, left, right), not {value!r}")


def pad_pairs(width: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """np.pad's widths: an int, a pair for all axes, or a pair per axis."""
    if isinstance(width, int):
        return ((width, width),) * rank
    rows = [(w, w) if isinstance(w, int) else tuple(w) for w in width]
    if len(rows) == 2 and all(isinstance(w, int) for w in width):
        return ((int(width[0]), int(width[1])),) * rank
    if len(rows) == 1:
        rows = rows * rank
    if len(rows) != rank or any(len(r) != 2 for r in rows):
        raise ValueError(f"pad widths {width!r} do not fit rank {rank}")
    return tuple((int(a), int(b)) for a, b in rows)


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis; IndexError if out of range."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of bounds for a tensor of rank {rank}")
    return axis % rank


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """None is all axes; an int or several."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, int):
        return (axis_of(axis, rank),)
    out = tuple(sorted(axis_of(a, rank) for a in axis))
    if len(set(out)) != len(out):
        raise ValueError(f"axes {tuple(axis)} name one twice")
    return out


def same_pad_mode(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Padding (before, after) that gives ceil(size / stride) places."""
    places = -(-size // stride)
    total = max((places - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2
