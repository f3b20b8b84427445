"""Conditions that only sizes of weights and numbers of layers decide: where they decide types of variables, or how long a list gets, one way is made, and checked."""
from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

import bcvm  # noqa: E402


def tensor(*shape, seed=0):
    return ms.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Scaled(nn.Cell):
    """A tensor as wide as a weight is cut into parts: a tuple where they are of one size, else a list."""

    def __init__(self, channels, width):
        super().__init__()
        self.width = width
        self.weight = ms.Parameter(tensor(channels, 3), name="weight")
        self.options = dict(split_size_or_sections=width, axis=0)

    def parts(self, x, width):
        size = x.shape[0]
        if size % width == 0:
            return ops.split(x, **self.options)
        begin = 0
        parts = []
        while begin + width < size:
            parts.append(x[begin: begin + width])
            begin += width
        parts.append(x[begin:])
        return parts

    def construct(self, x):
        total = None
        for part in self.parts(ops.matmul(self.weight, x), self.width):
            total = ops.reduce_sum(part) if total is None else total * 0.5 + ops.reduce_sum(part)
        return total


class Counted(Scaled):
    def parts(self, x, width):
        parts = []
        for i in range(-(-x.shape[0] // width)):
            if i * width == 4:
                continue
            parts.append(x[i * width: (i + 1) * width])
        return parts


class Stopped(Scaled):
    """When the loop ends, only the values say."""

    def parts(self, x, width):
        begin = 0
        parts = []
        while begin < x.shape[0]:
            parts.append(x[begin: begin + width])
            begin += width
            if ops.reduce_sum(parts[-1]) > 0:
                break
        return parts


def agree(cell, *inputs, native=True):
    """The same results as without bcvm; native says whether calls stay in native code."""
    made = bcvm.jit(cell, tier="full", background=False)
    for x in inputs:
        np.testing.assert_allclose(made(x).asnumpy(), cell(x).asnumpy(), rtol=1e-4, atol=1e-5)
    stats = made.stats()
    assert stats["left"] == 0 if native else stats["left"] > 0, stats
    assert stats["recompiles"] == 0
    return made


@pytest.mark.parametrize("make", [Scaled, Counted])
@pytest.mark.parametrize("channels, width", [(4, 4), (8, 4), (10, 4), (11, 3), (3, 5)])
def test_parts_of_what_is_as_wide_as_a_weight_stay_native(make, channels, width):
    agree(make(channels, width), tensor(3, 3), tensor(3, 7), tensor(3, 1))


def test_layers_of_one_class_are_settled_each():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = Scaled(8, 4), Scaled(10, 4), Counted(10, 3)

        def construct(self, x):
            return self.first(x) + self.second(x) * 3 + self.third(x)
    agree(Net(), tensor(3, 3), tensor(3, 4))


def test_more_rounds_than_are_unrolled():
    agree(Scaled(15, 1), tensor(3, 3))
    agree(Scaled(41, 2), tensor(3, 3), native=False)


def test_what_values_decide_is_not_settled():
    cell = Stopped(12, 2)
    made = bcvm.jit(cell, tier="full", background=False)
    for seed in range(8):
        np.testing.assert_allclose(made(tensor(3, 3, seed=seed)).asnumpy(), cell(tensor(3, 3, seed=seed)).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [Scaled, Counted])
def test_another_width_and_a_weight_of_another_size_are_seen(make):
    cell = make(10, 4)
    made = agree(cell, tensor(3, 3))
    for width in (5, 3, 4):
        cell.width = cell.options["split_size_or_sections"] = width
        np.testing.assert_allclose(made(tensor(3, 3)).asnumpy(), cell(tensor(3, 3)).asnumpy(), rtol=1e-4, atol=1e-5)
    cell.weight.set_data(tensor(12, 3, seed=1), slice_shape=True)
    for _ in range(3):
        np.testing.assert_allclose(made(tensor(3, 3)).asnumpy(), cell(tensor(3, 3)).asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exits", ["all", "random"])
@pytest.mark.parametrize("make", [Scaled, Counted, Stopped])
def test_leaving_within_a_settled_loop_changes_nothing(make, exits):
    cell = make(11, 3)
    made = bcvm.jit(cell, tier="full", background=False, exits=exits)
    for seed in range(26):
        np.testing.assert_allclose(made(tensor(3, 3, seed=seed)).asnumpy(), cell(tensor(3, 3, seed=seed)).asnumpy(), rtol=1e-4, atol=1e-5)
