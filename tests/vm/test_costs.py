"""Costs in explain: which form is taken for given arguments, what it is predicted to take and takes."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm

FULL = {"tier": "full", "background": False}


def ones(*sizes, dtype="float32"):
    return np.ones(sizes, dtype)


def costs(f, *args):
    g = bcvm.jit(f, **FULL)
    g(*args)
    return g.explain(*args).costs


def test_the_form_that_sizes_choose_is_named():
    def f(x, y):
        return np.tanh(x) + y
    (fused,), (split,) = costs(f, ones(30, 40), ones(30, 40)), costs(f, ones(30, 1), ones(30, 40))
    assert fused.taken == "fused" and split.taken == "split"
    assert fused.measured is not None and fused.measured > 0


def test_predictions_grow_with_sizes_and_say_when_threads_share():
    def f(x):
        return np.exp(x) * 2
    (small,), (large,) = costs(f, ones(8, 8)), costs(f, ones(1000, 1000))
    assert large.predicted == pytest.approx(small.predicted * 1_000_000 / 64)
    assert large.threads and not small.threads


@pytest.mark.parametrize("f", [lambda x: x.sum(0), lambda x: x.sum((0, 1)), lambda x: x.sum(), lambda x: (x - x.mean(-1, keepdims=True)) * 2, lambda x: x[:, :1] * x,
                               lambda x: x.T + 1, lambda x: (x > 0) & (x < 1), lambda x: (x * 2).max((1, 2))], ids=range(8))
def test_every_kind_of_region_is_measured(f):
    for cost in costs(f, ones(6, 5, 4)):
        assert cost.taken == "fused" and cost.measured is not None and cost.predicted > 0


def test_sizes_of_loops_and_empty_arrays_are_not_measured():
    def f(x, n):
        for _ in range(n):
            x = np.concatenate([x, x * 2])
        return x
    assert any(c.taken == "" for c in costs(f, ones(4), 3))
    (empty,) = costs(lambda x: x * 2, ones(0, 3))
    assert empty.predicted == 0 and empty.measured is None


def test_explain_prints_them_beside_the_regions():
    g = bcvm.jit(lambda x: np.exp(x) * 2, **FULL)
    x = ones(16, 16)
    g(x)
    assert "# fused, predicted" in str(g.explain(x))
    assert g.explain().costs == []


def test_captured_arrays_and_attributes_give_sizes():
    class Net:
        w = ones(3, 40)
    net = Net()

    def f(x):
        return np.tanh(net.w) * x
    (cost,) = costs(f, ones(3, 40))
    assert cost.taken == "fused" and cost.measured is not None
