"""What of a function varies or is replaced: its code, hints that allow None, the types of its results."""
from __future__ import annotations

import sys

import numpy as np
import pytest

import bcvm
from tests.vm.hard import NATIVE_TIERS, TIERS, same, settle, warm


@TIERS
def test_code_of_a_function_is_replaced(tier: str) -> None:
    def double(x):
        return x * 2

    def triple(x):
        return x * 3

    def run(x):
        return helper(x) + 1

    def other(x):
        return helper(x) - 1

    helper = double
    f, x = bcvm.jit(run, tier=tier), np.arange(3.0)
    warm(f, x)
    plain = double.__code__
    double.__code__ = triple.__code__
    for _ in range(2):
        same(f(x), x * 3 + 1)
        settle()
    run.__code__ = other.__code__
    for _ in range(3):
        same(f(x), x * 3 - 1)
        settle()
    double.__code__ = plain
    for _ in range(2):
        same(f(x), x * 2 - 1)
        settle()
    if tier != "interpret":
        before = f.stats()["native"]
        same(f(x), x * 2 - 1)
        assert f.stats()["native"] == before + 1
    run.__code__ = (lambda x: helper and x * 100).__code__
    same(f(x), x * 100)


@TIERS
def test_optional_hints_are_checked_where_a_tensor_is_given(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def f(x: bcvm.Tensor["B, 2"], mask: bcvm.Tensor["B"] | None):  # noqa: F821
        return x * 2 if mask is None else x * mask[:, None]

    x, mask = np.ones((3, 2)), np.arange(3.0)
    for _ in range(2):
        same(f(x, None), x * 2)
        same(f(x, mask), x * mask[:, None])
        with pytest.raises(bcvm.ShapeError, match="argument 'mask' has shape"):
            f(x, np.ones(4))
        settle()
    if tier != "interpret":
        before = f.stats()["native"]
        f(x, None)
        f(x, mask)
        assert f.stats()["native"] == before + 2

    def inside(y: "list[bcvm.Tensor['B']]"):  # noqa: F821
        return y
    with pytest.raises(bcvm.ShapeError, match="argument y has a shape hint inside another type"):
        bcvm.jit(inside)


@NATIVE_TIERS
def test_results_of_different_types_are_returned_natively(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def f(x, how):
        if how == 0:
            return x + 1
        if how == 1:
            return None
        if how == 2:
            return x, x.sum()
        y = np.tanh(x)
        for i in range(how):
            y = y + x
            if i == 5:
                return {"y": y, "i": i}
        return y * 2

    x = np.arange(3.0)
    warm(f, x, 0)
    for how in (0, 1, 2, 3, 9, 2, 1, 0):
        same(f(x, how), f.__wrapped__(x, how))
    stats = f.stats()
    assert not stats["exits"] and stats["specialisations"] == 1 and stats["native"] >= 8, stats
    assert f(x, 2)[0] is x and sys.getrefcount(x) < 10


@NATIVE_TIERS
def test_many_types_of_results_leave_native_code(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def f(x, how):
        if how == 0:
            return x
        if how == 1:
            return None
        if how == 2:
            return x, 1
        if how == 3:
            return [x, 2.0]
        if how == 4:
            return {"x": x}
        return x.sum()

    x = np.arange(3.0)
    warm(f, x, 0)
    for how in range(6):
        same(f(x, how), f.__wrapped__(x, how))
