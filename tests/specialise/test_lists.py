"""Lists that a program makes and lets grow: Python's semantics, native where their length is known."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def grown(x):
    parts = []
    for i in range(3):
        parts.append(x * i)
    parts.extend([x, x + 1])
    return np.concatenate(parts)


def two_names(x):
    a = [x]
    b = a
    held = (a, [a])
    b.append(x * 2)
    held[1][0].append(x * 3)
    return len(a), len(b), len(held[0]), a[2] + b[1]


def in_a_branch(x):
    out = [x]
    if x.sum() > 0:
        out.append(x * 2)
    else:
        out.append(x * 3)
        out.append(x * 4)
    return out[-1] + out[0]


def by_a_callee(x):
    out = [x]
    add(out, x * 2)
    add(out, x * 3)
    return np.stack(out)


def add(to, x):
    to.append(x)


def returned(x):
    out = [x + 1]
    both = (out, out)
    out.append(x + 2)
    return both


@pytest.mark.parametrize("exits", ["none", "all", "random"])
@pytest.mark.parametrize("fn", [grown, two_names, in_a_branch, by_a_callee, returned])
def test_lists_grow(fn: Callable[..., Any], exits: str) -> None:
    f = bcvm.jit(fn, tier="full", background=False, exits=exits)
    for x in (X, -X, X[:2]):
        for _ in range(4):
            want, got = fn(x), f(x)
            assert type(want) is type(got)
            flat_want, flat_got = ([a for part in v for a in (part if isinstance(part, list) else [part])] if isinstance(v, tuple) else [v] for v in (want, got))
            assert len(flat_want) == len(flat_got)
            for a, b in zip(flat_want, flat_got, strict=True):
                np.testing.assert_array_equal(a, b)
            if fn is returned:
                assert got[0] is got[1]
    if exits == "none":
        assert f.stats()["native"] == 12, f.stats()


KEPT: list[Any] = []


def test_a_list_from_outside_is_python_s_own() -> None:
    def f(x, given):
        KEPT.append(1)
        given.append(x)
        return x + 1
    g = bcvm.jit(f, tier="full", background=False)
    KEPT.clear()
    mine: list[Any] = []
    for _ in range(5):
        g(X, mine)
    assert KEPT == [1] * 5 and len(mine) == 5


def test_a_list_that_grows_while_it_is_iterated_over() -> None:
    def f(x):
        todo = [x, x * 2]
        total = x * 0
        for t in todo:
            if len(todo) < 5:
                todo.append(t + 1)
            total = total + t
        return total
    g = bcvm.jit(f, tier="full", background=False)
    for _ in range(4):
        np.testing.assert_array_equal(g(X), f(X))


def test_a_list_as_long_as_the_data() -> None:
    def f(x):
        rows = []
        for row in x:
            rows.append(row * 2)
        return np.stack(rows)
    g = bcvm.jit(f, tier="full", background=False)
    for n in (1, 2, 3, 4):
        np.testing.assert_array_equal(g(X[:n]), f(X[:n]))
