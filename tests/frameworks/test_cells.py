"""`bcvm.jit(cell)` in the place of the cell: calls are native, everything else is the cell's."""
from __future__ import annotations

import copy

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

import bcvm  # noqa: E402


class Net(nn.Cell):
    factor = 2.0

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 4)
        self.bias = ms.Parameter(ms.Tensor(np.zeros(4, np.float32)), name="bias")

    def construct(self, x):
        y = self.dense(x) * self.factor + self.bias
        if self.training:
            y = y + 100.0
        return y


@pytest.fixture
def net():
    cell = Net()
    made = bcvm.jit(cell, tier="full")
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_allclose(made(x).asnumpy(), cell(x).asnumpy(), rtol=1e-5)
    return cell, made, x


def test_attributes_and_methods_are_the_cell_s(net):
    cell, made, x = net
    assert made.bias is cell.bias and made.dense is cell.dense and made.factor == 2.0
    assert list(made.parameters_dict()) == list(cell.parameters_dict()) and len(made.trainable_params()) == 3
    assert "parameters_dict" in dir(made) and "explain" in dir(made)
    with pytest.raises(AttributeError, match="nothing"):
        getattr(made, "nothing")  # noqa: B009
    assert isinstance(made.stats(), dict) and "construct" in str(made.program) and made.explain(x).tier == "full"


def test_what_is_set_through_it_is_set_on_the_cell_and_seen_without_a_compilation(net):
    cell, made, x = net
    plain = made(x).asnumpy()
    made.set_train()
    assert cell.training
    np.testing.assert_allclose(made(x).asnumpy(), plain + 100.0, rtol=1e-5)
    made.set_train(False)
    np.testing.assert_allclose(made(x).asnumpy(), plain, rtol=1e-5)
    compiles = made.stats()["compiles"]
    made.factor = 4.0
    assert cell.factor == 4.0 and Net.factor == 2.0
    np.testing.assert_allclose(made(x).asnumpy(), cell(x).asnumpy(), rtol=1e-5)
    made.bias = ms.Parameter(ms.Tensor(np.ones(4, np.float32)), name="bias")
    np.testing.assert_allclose(made(x).asnumpy(), cell(x).asnumpy(), rtol=1e-5)
    ms.load_param_into_net(cell, {"bias": ms.Parameter(ms.Tensor(np.full(4, 7.0, np.float32)), name="bias")})
    np.testing.assert_allclose(made(x).asnumpy(), cell(x).asnumpy(), rtol=1e-5)
    assert made.stats()["compiles"] == compiles
    del made.factor
    assert cell.factor == 2.0


def test_gradients_and_copies(net):
    cell, made, x = net

    def loss_of(net):
        return ms.value_and_grad(lambda x: net(x).sum(), None, made.trainable_params())(x)
    (want, wanted), (got, grads) = loss_of(cell), loss_of(made)
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5)
    for g, w in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(g.asnumpy(), w.asnumpy(), rtol=1e-5)
    other = copy.deepcopy(made)
    other.bias.set_data(ms.Tensor(np.full(4, 50.0, np.float32)))
    np.testing.assert_allclose(other(x).asnumpy() - 50.0, made(x).asnumpy(), rtol=1e-4, atol=1e-4)


def test_a_cell_whose_construct_is_native_stays_a_cell(net):
    cell, _, x = net
    plain = cell(x).asnumpy()
    cell.construct = bcvm.jit(cell.construct, tier="full")
    seen = []
    cell.register_forward_hook(lambda cell, inputs, output: seen.append(1))
    np.testing.assert_allclose(cell(x).asnumpy(), plain, rtol=1e-5)
    assert seen == [1] and cell.construct.stats()["native"] == 1
    again = bcvm.jit(cell, tier="full")
    np.testing.assert_allclose(again(x).asnumpy(), plain, rtol=1e-5)
    assert again.bias is cell.bias and isinstance(cell, nn.Cell)
