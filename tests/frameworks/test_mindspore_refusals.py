"""What PyNative refuses is refused in native code as well, and what it makes has its dtype."""
from __future__ import annotations

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Tensor  # noqa: E402

import bcvm  # noqa: E402
from tests.vm.op_calls import function  # noqa: E402

BOOLS, SMALL, WIDE = np.arange(12).reshape(3, 4) % 3 == 0, np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(12).reshape(3, 4) - 6
FLOATS, HALVES, VECTOR = WIDE.astype(np.float32) / 4, WIDE.astype(np.float16) / 4, np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True, scope="module")
def synchronous():
    """Errors come from the call that makes them."""
    ms.runtime.launch_blocking()


def check(expression, *args):
    """bcvm gives what PyNative gives: the same dtype, sizes and values, or an exception of the same type."""
    plain = function(f"import mindspore as ms\nfrom mindspore import mint, ops\ndef f({', '.join('xyz'[:len(args)])}):\n    return {expression}\n")
    jitted = bcvm.jit(plain, tier="full", background=False)
    for _ in range(2):
        outcomes = []
        for call in (jitted, plain):
            given = [Tensor(a) if isinstance(a, (np.ndarray, np.generic)) else a for a in args]
            try:
                value = call(*given)
                outcomes.append((str(value.dtype), value.shape, np.round(value.asnumpy().astype(np.float64), 2).tolist()))
            except Exception as e:  # what PyNative raises, of whatever type
                outcomes.append(type(e))
        assert outcomes[0] == outcomes[1], (expression, outcomes)
    assert not jitted.stats()["errors"], (expression, jitted.stats()["errors"])


@pytest.mark.parametrize("expression", ["x & y", "x | y", "x ^ y"])
@pytest.mark.parametrize("other", [FLOATS, WIDE, BOOLS, 3, 1.5])
def test_bits_of_floating_point(expression, other):
    check(expression, FLOATS, other)
    check(expression, WIDE, other)


@pytest.mark.parametrize("expression", ["x * y", "y * x", "x / y", "y / x", "x + y", "ops.mul(x, y)", "x - y"])
@pytest.mark.parametrize("other", [np.int64(2), np.float32(2), np.float16(2)])
@pytest.mark.parametrize("x", [SMALL, WIDE, FLOATS, HALVES])
def test_tensors_of_rank_0_keep_the_rules_they_have(expression, x, other):
    check(expression, x, np.asarray(other))


@pytest.mark.parametrize("call", ["x.sum(dtype=ms.{})", "ops.sum(x, 0, dtype=ms.{})", "mint.sum(x, dtype=ms.{})", "x.prod(dtype=ms.{})", "mint.mean(x, dtype=ms.{})"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "float32"])
def test_reductions_have_the_dtype_that_is_asked_for(call, dtype):
    for x in (WIDE + 7, FLOATS):
        check(call.format(dtype), x)


@pytest.mark.parametrize("expression", [
    "ops.zeros_like(x)", "ops.ones_like(x)", "ops.full_like(x, 2)", "ops.gelu(x)", "ops.softmax(x, -1)", "ops.std(x)", "ops.norm(x)", "ops.mean(x)", "mint.sum(x)", "ops.stack(x)", "ops.cat(x)",
    "ops.amax(x)", "ops.outer(x, x)", "ops.logical_and(x, x)", "ops.clamp(x, 0, 1)",
])
@pytest.mark.parametrize("x", [3, 1.5, VECTOR, FLOATS])
def test_numbers_in_place_of_tensors(expression, x):
    check(expression, x)


@pytest.mark.parametrize(("expression", "args"), [
    ("ops.clamp(x, 0, y)", (FLOATS, VECTOR)), ("ops.clamp(x, y, z)", (FLOATS, VECTOR - 2, VECTOR)), ("ops.clamp(x, 0, 2)", (BOOLS,)), ("ops.logical_and(x, y)", (FLOATS, 1.5)),
    ("ops.arange(x)", (-2,)), ("ops.arange(0, x)", (-1,)), ("ops.arange(x, 0, -1)", (3,)), ("ops.arange(x, 0, -1)", (-3,)), ("ops.arange(x)", (3,)),
    ("ops.outer(x, y)", (FLOATS, VECTOR)), ("ops.outer(x, y)", (VECTOR, 2)), ("ops.outer(x, y)", (VECTOR, VECTOR)),
])
def test_arguments_that_do_not_go_together(expression, args):
    check(expression, *args)
