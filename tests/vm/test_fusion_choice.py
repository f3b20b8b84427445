"""What is fused where sizes may broadcast: results are right either way, and dear ops are not computed again for each element they spread over."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

import bcvm

FULL = {"tier": "full", "background": False}


def dear_then_broadcast(x, y):
    return np.tanh(x) * 2 + y


def dear_on_both_sides(x, y):
    return np.exp(x) * np.tanh(y) + x


def column_of_itself(x, y):
    return np.tanh(x[:, :1]) * x + y


def into_a_reduction(x, y):
    return (np.exp(x) + y).sum(-1)


def stored(x, y):
    z = np.empty((4, 6), "float32")
    z[...] = np.exp(x) + y
    return z


def softmax_stored(x, y):
    z = np.empty((4, 6), "float32")
    e = np.exp(x + y - (x + y).max(-1, keepdims=True))
    z[...] = e / e.sum(-1, keepdims=True)
    return z


FUNCTIONS = [dear_then_broadcast, dear_on_both_sides, column_of_itself, into_a_reduction, stored, softmax_stored]


@pytest.mark.parametrize("options", [FULL, {**FULL, "exits": "all"}, {**FULL, "fusion": False}], ids=str)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_specialisation_is_right_for_every_way_sizes_broadcast(f, options):
    g = bcvm.jit(f, **options)
    rng = np.random.default_rng(3)
    for a, b in itertools.product([(4, 6), (1, 6), (4, 1), (1, 1)], repeat=2):
        x, y = rng.standard_normal(a).astype("float32"), rng.standard_normal(b).astype("float32")
        np.testing.assert_allclose(g(x, y), f(x, y), rtol=3e-6, atol=3e-6)
    assert g.stats()["specialisations"] == 1


def test_a_dear_op_whose_size_may_be_smaller_has_a_split_form():
    g = bcvm.jit(dear_then_broadcast, **FULL)
    x, y = np.ones((1, 6), "float32"), np.ones((4, 6), "float32")
    g(x, y)
    (region,) = g.explain(x, y).regions
    assert "[FUSED 3 ops]" in region and "[SPLIT where" in region


def test_a_dear_op_known_to_be_smaller_is_a_region_of_its_own():
    g = bcvm.jit(lambda x: np.tanh(x[:, :1]) * x, **FULL)
    x = np.ones((3, 6), "float32")
    g(x)
    assert len(g.explain(x).regions) == 2


def test_cheap_ops_fuse_without_a_second_form():
    g = bcvm.jit(lambda x, y: np.maximum(x, 0) * 2 + y, **FULL)
    x, y = np.ones((1, 6), "float32"), np.ones((4, 6), "float32")
    g(x, y)
    (region,) = g.explain(x, y).regions
    assert "[FUSED 3 ops]" in region and "SPLIT" not in region
