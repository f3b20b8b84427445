"""Test inputs for ops: pairs of (operands, attrs) that reach the corners of a dtype and of shapes (no elements, rank 0, broadcasting)."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Case = tuple[tuple[Any, ...], dict[str, Any]]

_LENGTHS = (0, 1, 15, 16, 33, 100)


def special(dtype: str) -> Any:
    """Values where implementations go wrong."""
    t = np.dtype(dtype)
    if t.kind == "f":
        info = np.finfo(t)
        values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, -info.tiny,
                  info.tiny / 2, -info.tiny / 2, float(info.eps), 1 + float(info.eps)]
        with np.errstate(all="ignore"):
            return np.array(values).astype(t)
    if t.kind == "b":
        return np.array([True, False])
    i = np.iinfo(t)
    return np.array([0, 1, 2, 3, 7, i.max, i.max - 1, i.min, i.min + 1] + ([-1, -2, -7] if t.kind == "i" else []), t)


def values(rng: Any, dtype: str, shape: tuple[int, ...], low: float = -8.0, high: float = 8.0) -> Any:
    """Random values of moderate size."""
    t = np.dtype(dtype)
    if t.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if t.kind in "iu":
        return rng.integers(0 if t.kind == "u" else int(low), int(high) + 1, shape).astype(t)
    return rng.uniform(low, high, shape).astype(t)


def unary(low: float = -8.0, high: float = 8.0, corners: bool = True, **attrs: Any) -> Callable[[Any, str], Iterable[Case]]:
    """One operand; corner values unless they are outside of the function's domain of interest."""
    def samples(rng: Any, dtype: str) -> Iterable[Case]:
        for n in _LENGTHS:
            yield (values(rng, dtype, (n,), low, high),), attrs
        yield (values(rng, dtype, (), low, high),), attrs
        yield (values(rng, dtype, (3, 5), low, high).T,), attrs
        yield (values(rng, dtype, (20, 3), low, high)[::2],), attrs
        if corners:
            yield (special(dtype),), attrs
            if np.dtype(dtype).kind == "f":
                yield (rng.uniform(-100, 100, 200).astype(dtype),), attrs
    return samples


def binary(low: float = -8.0, high: float = 8.0, low2: float | None = None, high2: float | None = None, corners: bool = True,
           **attrs: Any) -> Callable[[Any, str], Iterable[Case]]:
    """Two operands that broadcast."""
    def samples(rng: Any, dtype: str) -> Iterable[Case]:
        low_b, high_b = low if low2 is None else low2, high if high2 is None else high2
        for a, b in (((7,), (7,)), ((0, 3), (3,)), ((4, 1, 5), (3, 1)), ((), (33,)), ((), ()), ((2, 17), (2, 17)), ((1, 0), (5, 1))):
            yield (values(rng, dtype, a, low, high), values(rng, dtype, b, low_b, high_b)), attrs
        yield (values(rng, dtype, (6, 4), low, high).T, values(rng, dtype, (4, 12), low_b, high_b)[:, ::2]), attrs
        if corners:
            s = special(dtype)
            yield (s[:, None], s[None, :]), attrs
    return samples


def ternary(rng: Any, dtype: str) -> Iterable[Case]:
    """For where: a bool and two values."""
    for c, a, b in (((5,), (5,), (5,)), ((4, 1), (3,), ()), ((), (2, 3), (3,)), ((0,), (1,), (1,)), ((2, 2, 2), (2, 1, 2), (2,))):
        yield (values(rng, "bool", c), values(rng, dtype, a), values(rng, dtype, b)), {}


def reduction(corners: bool = True, empty: bool = True, single_axis: bool = False, low: float = -2.0, high: float = 2.0) -> Callable[[Any, str],
        Iterable[Case]]:
    """One operand with axis and keepdims. `single_axis`: argmax and argmin take one axis or all."""
    def samples(rng: Any, dtype: str) -> Iterable[Case]:
        for shape, axes in (((17,), (0,)), ((3, 40), (1,)), ((3, 40), (0,)), ((2, 3, 4), (0, 1, 2)), ((2, 3, 4), (1,)), ((5, 1), (0,))):
            for keepdims in (False, True):
                yield (values(rng, dtype, shape, low, high),), {"axis": axes, "keepdims": keepdims}
        yield (values(rng, dtype, (6, 5), low, high).T,), {"axis": (1,), "keepdims": False}
        if not single_axis:
            yield (values(rng, dtype, (2, 3, 4), low, high),), {"axis": (0, 2), "keepdims": False}
            yield (values(rng, dtype, (), low, high),), {"axis": (), "keepdims": False}
        if empty:
            yield (values(rng, dtype, (3, 0), low, high),), {"axis": (1,), "keepdims": False}
        yield (values(rng, dtype, (0, 3), low, high),), {"axis": (1,), "keepdims": False}
        if corners:
            for special_value in ([np.nan, 1, 2], [1, np.nan, 0], [np.inf, 1, 2], [-np.inf, np.inf, 1],
                                  [-0.0, 0.0, -0.0]) if np.dtype(dtype).kind == "f" else ():
                yield (np.array(special_value, dtype),), {"axis": (0,), "keepdims": False}
    return samples


def fixed(*cases: tuple[tuple[Any, ...], dict[str, Any]]) -> Callable[[Any, str], Iterable[Case]]:
    """Cases whose operands are shapes: tuples become random values, arrays are taken as they are."""
    def samples(rng: Any, dtype: str) -> Iterable[Case]:
        for operands, attrs in cases:
            yield tuple(values(rng, dtype, o) if isinstance(o, tuple) else o for o in operands), attrs
    return samples
