"""MindSpore's one-dimensional and transposed convolutions give the same through bcvm, natively."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
from mindspore import nn, ops  # noqa: E402

import bcvm  # noqa: E402

RNG = np.random.default_rng(0)


def tensor(*shape: int) -> Any:
    return ms.Tensor(RNG.standard_normal(shape).astype(np.float32))


X1, W1, B1 = tensor(2, 4, 21), tensor(6, 2, 3), tensor(6)


def narrow(x: Any, w: Any, b: Any) -> Any:
    return ops.conv1d(x, w, b, stride=2, pad_mode="pad", padding=1, groups=2)


def same(x: Any, w: Any, b: Any) -> Any:
    return ops.conv1d(x, w, pad_mode="same", groups=2)


@pytest.mark.parametrize("function", [narrow, same])
def test_conv1d(function: Any) -> None:
    check(bcvm.jit(function, tier="full", background=False), function, X1, W1, B1)


CELLS = [
    lambda: nn.Conv2dTranspose(3, 5, 4, stride=2),
    lambda: nn.Conv2dTranspose(3, 5, 3, stride=2),
    lambda: nn.Conv2dTranspose(3, 5, (3, 2), stride=(2, 3), pad_mode="valid", has_bias=True),
    lambda: nn.Conv2dTranspose(3, 5, 4, stride=2, pad_mode="pad", padding=1, output_padding=1),
    lambda: nn.Conv2dTranspose(3, 6, 3, pad_mode="pad", padding=(0, 1, 2, 1), dilation=2, group=3),
]


@pytest.mark.parametrize("index", range(len(CELLS)))
def test_transposed(index: int) -> None:
    cell = CELLS[index]()
    for size in ((8, 9), (5, 12)):
        check(bcvm.jit(cell, tier="full", background=False), cell, tensor(2, 3, *size))


def test_conv3d() -> None:
    for cell in (nn.Conv3d(2, 5, 3, has_bias=True, pad_mode="pad", padding=1), nn.Conv3d(2, 4, (2, 3, 1), stride=(2, 1, 2), pad_mode="valid")):
        check(bcvm.jit(cell, tier="full", background=False), cell, tensor(2, 2, 5, 6, 7))


def test_transposed_in_one_dimension() -> None:
    cell = nn.Conv1dTranspose(3, 5, 4, stride=2, has_bias=True)
    check(bcvm.jit(cell, tier="full", background=False), cell, tensor(2, 3, 9))


def check(compiled: Any, plain: Any, *args: Any) -> None:
    expected = plain(*args).asnumpy()
    for _ in range(2):
        np.testing.assert_allclose(compiled(*args).asnumpy(), expected, rtol=1e-4, atol=1e-4)
    assert compiled.stats()["interpreted"] == 0, compiled.stats()
