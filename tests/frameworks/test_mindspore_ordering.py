"""Sorts of MindSpore, native, and tensors that native code has made when it leaves."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm

ms = pytest.importorskip("mindspore")
ops, Tensor = ms.ops, ms.Tensor
rng = np.random.default_rng(0)


def flat(o):
    return [a for v in o for a in flat(v)] if isinstance(o, tuple) else [o]


@pytest.mark.parametrize("f", [
    lambda x: ops.argsort(x), lambda x: ops.argsort(x, 0, True), lambda x: x.argsort(descending=True), lambda x: ops.sort(x), lambda x: ops.sort(x, 0, True),
    lambda x: ops.topk(x, 3), lambda x: ops.topk(x, 2, largest=False), lambda x: x.topk(3, dim=0), lambda x: ops.repeat_interleave(x, 3, 1),
    lambda x: ops.repeat_interleave(x, 2, 0), lambda x: x.repeat_interleave(2, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_sorts_give_pynatives_results_and_run_native(f, dtype):
    g = bcvm.jit(f, tier="full", background=False)
    for shape in ((4, 5), (30, 40)):
        x = Tensor(rng.permutation(shape[0] * shape[1]).reshape(shape).astype(dtype))  # no two are equal
        for want, got in zip(flat(f(x)), flat(g(x)), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.asnumpy(), want.asnumpy())
    assert g.stats()["native"] == 2


def test_topk_of_more_than_there_are_is_mindspores_error():
    f = bcvm.jit(lambda x: ops.topk(x, 9)[0], tier="full", background=False)
    with pytest.raises(Exception) as plain:
        ops.topk(Tensor(np.zeros(4, np.float32)), 9)[0].asnumpy()
    with pytest.raises(type(plain.value)):
        f(Tensor(np.zeros(4, np.float32))).asnumpy()


def test_a_result_in_the_making_is_a_tensor_where_native_code_leaves():
    seen = []

    def leave(out):
        try:
            seen.append((type(out), out.shape))
        except KeyError:
            raise
        return out.shape

    def f(x):
        out = ops.zeros((2, 1), ms.float32)
        for t in range(x.shape[0]):
            leave(x)
            out = ops.cat((out, out + x[t, 0]), 1)
        return out

    g = bcvm.jit(f, tier="full", background=False)
    x = Tensor(rng.standard_normal((3, 2)).astype(np.float32))
    want = f(x).asnumpy()
    for _ in range(4):
        np.testing.assert_array_equal(g(x).asnumpy(), want)
    assert g.stats()["left"] > 0 and len(seen) == 15
