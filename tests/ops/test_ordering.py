"""Sorts, counts and masks: NumPy's results, native, for sizes that depend on values."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm

rng = np.random.default_rng(0)
FLOATS = [rng.standard_normal(n).astype(np.float32) for n in (0, 1, 2, 24, 25, 1000)]
CORNERS = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, -np.nan, 1e-45, -1e-45, 0.0, -0.0, 3, -3] * 3, np.float32)


def native(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> Any:
    """Each call gives the plain function's result, dtype and shape, from native code made once."""
    f = bcvm.jit(fn, tier="full", background=False)
    for args in calls:
        want, got = fn(*args), f(*args)
        for w, g in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,), strict=True):
            assert np.asarray(w).dtype == np.asarray(g).dtype and type(w) is type(g)
            np.testing.assert_array_equal(g, w)
    stats = f.stats()
    assert stats["native"] == len(calls) and stats["compiles"] == 1, stats
    return f


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"])
def test_argsort_of_every_dtype_keeps_equal_ones_in_their_order(dtype: str) -> None:
    def f(x):
        return np.argsort(x, kind="stable")

    def corners() -> np.ndarray:
        if dtype.startswith("float"):
            return CORNERS.astype(dtype)
        info = np.iinfo(dtype) if dtype != "bool" else None
        return np.array([0, 1, 1, 0, 1] if info is None else [info.max, 0, info.min, 1, info.max, info.max - 1, info.min, 0] * 5, dtype)
    random = [rng.integers(0, 100, n).astype(dtype) for n in (0, 1, 7, 24, 25, 999)]
    native(f, *((x,) for x in [corners(), *random]))


def test_argsort_along_any_axis_and_layout() -> None:
    x = rng.integers(0, 9, (5, 40, 3)).astype(np.float64)
    native(lambda x: (np.argsort(x, 0, kind="stable"), np.argsort(x, axis=1, kind="stable"), x.argsort(kind="stable"), np.argsort(x, None, kind="stable")),
           (x,), (x[::2, ::-1],), (x.T,), (x[:0],))


def test_sort_and_take_along_axis() -> None:
    native(lambda x: (np.sort(x), np.sort(x, 0), np.take_along_axis(x, np.argsort(x, 0, kind="stable"), 0)), (rng.standard_normal((30, 4)),), (rng.standard_normal((2, 50)),))
    f = bcvm.jit(lambda x, i: np.take_along_axis(x, i, 1), tier="full", background=False)
    x, i = rng.standard_normal((3, 4)), rng.integers(-4, 4, (3, 2))
    np.testing.assert_array_equal(f(x, i), np.take_along_axis(x, i, 1))
    with pytest.raises(IndexError):
        f(x, i + 10)
    np.testing.assert_array_equal(f(x, i[:1]), np.take_along_axis(x, i[:1], 1))  # broadcast, in the interpreter


def test_bincount_has_as_many_counts_as_the_numbers_need() -> None:
    f = native(lambda x: (np.bincount(x), np.bincount(x, minlength=7)), *((rng.integers(0, top, n),) for n, top in ((1, 1), (5, 3), (1000, 50))))
    with pytest.raises(ValueError):
        f(np.array([1, -1, 3]))
    np.testing.assert_array_equal(f(np.array([], np.int64))[1], np.zeros(7))


def test_places_where_a_vector_is_true() -> None:
    native(lambda x: (np.flatnonzero(x > 0), np.nonzero(x)[0], x.nonzero()[0]), *((x,) for x in FLOATS))
    native(lambda x: np.flatnonzero(x), (rng.integers(0, 2, (4, 5)),), (np.zeros((0, 3), np.int64),))


def test_a_mask_picks_rows() -> None:
    x = rng.standard_normal((40, 3)).astype(np.float32)
    f = native(lambda x, m: x[m] * 2, (x, x[:, 0] > 0), (x[:9], x[:9, 1] > 9), (x[:0], x[:0, 0] > 0), (x[::2], x[::2, 0] < 9))
    with pytest.raises(IndexError):
        f(x, np.ones(39, bool))
    native(lambda x: x[x > 0].sum(), (x[:, 0],), (-np.abs(x[:, 0]),))


def test_a_mask_picks_items_of_any_rank() -> None:
    x = rng.standard_normal((6, 5, 4))
    native(lambda x, m: (x[x > 0], x[m], x[m] + 1.0), (x, x[:, :, 0] > 0), (x[:2, ::-1], x[:2, :, 1] > 9), (x.T[:4, :5, :6], np.ones((4, 5), bool)))


def test_a_store_under_a_mask() -> None:
    def f(x, m, n):
        y = x.copy()
        y[y < 0] = 0
        y[m] = n
        y[m] = x[0, 0]
        y[:, 1][m] = 3
        return y
    x = rng.standard_normal((6, 5)).astype(np.float32)
    native(f, (x, x[:, 0] > 0, 2.5), (x[:3], x[:3, 0] > 9, -1e30), (x[:0:-2], x[:0:-2, 1] < 9, 0.1))

    def mine(x, m):
        x[m] = 7
        return x
    for tier in ("interpret", "full"):
        g = bcvm.jit(mine, tier=tier, background=False)
        a, b = np.zeros((3, 2)), np.zeros((3, 2), np.int32)
        for z in (a, b, a[::-1]):
            assert g(z, np.array([True, False, True])) is z
            np.testing.assert_array_equal(z[:, 0], [7, 0, 7])
        with pytest.raises(IndexError):
            g(a, np.ones(4, bool))


def test_a_vector_of_numbers() -> None:
    native(lambda n, y: (np.array([n, 2, 3]), np.array((1.5, n, True)), np.array([0, -1e9, y], np.float32), np.array([True, False])), (3, 0.1), (-4, 1e30))


def test_an_array_of_a_number() -> None:
    def stored(n):
        a = np.array(n)
        a[...] = a * 2
        return a
    native(lambda n, y: (np.array(n), np.array(y), np.array(n, np.float32), np.copy(y), np.array(2.5) + n, np.array(True), stored(y)), (3, 0.1), (-4, 1e30))


@pytest.mark.parametrize("call", [lambda x: np.einsum(3, x), lambda x: np.pad(x, None), lambda x: np.split(x, None)])
def test_arguments_of_another_kind_are_left_to_numpy(call: Any) -> None:
    f = bcvm.jit(lambda x: (x * 2, call(x)), tier="full", background=False)
    try:
        want = call(np.ones((2, 3)))
    except (TypeError, ValueError) as e:
        with pytest.raises(type(e)):
            f(np.ones((2, 3)))
    else:
        np.testing.assert_array_equal(f(np.ones((2, 3)))[1], want)
    assert not f.stats()["errors"] and f.explain(np.ones((2, 3))).callbacks


def test_random_programs_of_routing() -> None:
    """Groups by a key, worked on one after another and put back."""
    def f(x, keys):
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum(np.bincount(keys, minlength=5))
        picked = x[order]
        out = np.empty_like(picked)
        start = 0
        for i in range(5):
            end = int(ends[i])
            out[start:end] = picked[start:end] * (i + 1)
            start = end
        return out[np.argsort(order)]
    sizes = [int(n) for n in rng.integers(1, 300, 20)]
    native(f, *((rng.standard_normal((n, 3)), rng.integers(0, 5, n)) for n in sizes))
