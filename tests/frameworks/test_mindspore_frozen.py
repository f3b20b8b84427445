"""The option frozen on MindSpore: the weights of cells are packed for the matrix product."""
from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import bcvm  # noqa: E402
from bcvm.compiler import packed  # noqa: E402

NOW = {"tier": "full", "background": False}


def test_the_weights_of_dense_cells_are_packed_and_a_new_value_is_seen() -> None:
    net = ms.nn.SequentialCell(ms.nn.Dense(24, 40), ms.nn.ReLU(), ms.nn.Dense(40, 32))
    before = packed.bytes_held()
    g = bcvm.jit(net, frozen=True, **NOW)
    for rows in (1, 4, 9):
        x = ms.Tensor(np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32))
        np.testing.assert_allclose(g(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    assert g.stats()["native"] == 3
    assert packed.bytes_held() - before >= 4 * (24 * 40 + 40 * 32)
    net[2].weight.set_data(ms.Tensor(np.ones((32, 40), np.float32)))
    np.testing.assert_allclose(g(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_halves_are_multiplied_natively(dtype: object, frozen: bool) -> None:
    rng = np.random.default_rng(3)
    w = ms.Tensor(rng.standard_normal((48, 33)).astype(np.float32)).astype(dtype)

    def f(x: object) -> object:
        return ms.ops.matmul(x, w)
    g = bcvm.jit(f, frozen=frozen, **NOW)
    for rows in (1, 2, 7):
        x = ms.Tensor(rng.standard_normal((rows, 48)).astype(np.float32)).astype(dtype)
        exact = x.astype(ms.float32).asnumpy().astype(np.float64) @ w.astype(ms.float32).asnumpy()
        got = g(x)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(ms.float32).asnumpy(), exact, rtol=2.0 ** (-8 if dtype == ms.bfloat16 else -10), atol=1e-4)
    assert g.stats()["native"] == 3
