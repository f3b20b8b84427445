"""NumPy's rules on copies, views, read-only memory and kinds of results hold in native code; most of these were found by random programs."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.programs import same
from tests.vm.op_calls import function


def described(value: Any, x: Any) -> Any:
    """What can be told of a result: type, dtype, shape, values, writable or not, and whether it is the argument's memory."""
    if isinstance(value, (tuple, list)):
        return type(value), [described(v, x) for v in value]
    array = np.asarray(value)
    writable = value.flags.writeable if isinstance(value, np.ndarray) else None
    values = (np.round(array, 4) if array.dtype.kind == "f" else array).tolist()
    return type(value), array.dtype, array.shape, values, writable, isinstance(value, np.ndarray) and np.shares_memory(value, x)


def outcome(f: Any, x: Any) -> Any:
    try:
        return described(f(x), x)
    except Exception as e:
        return type(e), str(e)


def argument(readonly: bool = False) -> Any:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = not readonly
    return x


def check(text: str, native: bool = True, readonly: bool = False) -> None:
    plain = function(f"def f(x):\n{text}\n")
    jitted = bcvm.jit(plain, tier="full", background=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b = argument(readonly), argument(readonly)
        want, got = outcome(plain, a), outcome(jitted, b)
    assert repr(got) == repr(want), text
    assert same(a, b)
    stats = jitted.stats()
    assert not stats["errors"] and (stats["native"] == 1 or not native), (text, stats)


COPIES = ["np.array(x)", "np.array(x, dtype=np.float64)", "np.array(x[0, 0])", "x.copy()", "x.T.copy()", "x[0, 0].copy()", "np.copy(x)", "np.copy(x[0, 0])",
          "np.asarray(x.sum())",
          "np.tile(x, (1, 1))", "np.tile(x, 2)", "np.repeat(x, 1, axis=0)", "np.repeat(x, 2, axis=1)", "x.flatten()", "np.concatenate([x])", "np.stack([x])",
          "x.astype('float32')", "x.astype('float32', copy=False)", "x.astype('int64')", "np.ascontiguousarray(x.T)", "np.positive(x)", "np.abs(x > 0)",
          "np.pad(x, 0)",
          "np.where(True, x, x)", "np.sum(x, axis=())", "np.triu(x)", "x.clip(0)", "x + 0"]
VIEWS = ["np.asarray(x)", "x", "x.T", "x[1:]", "x[...]", "x[:, ::-1]", "x[1]", "x[0, 0]", "x[None]", "x.ravel()", "x.reshape(4, 3)", "x.reshape(-1)",
         "np.flip(x)", "np.expand_dims(x, (0, 2))",
         "np.squeeze(x[None], 0)", "np.swapaxes(x, 0, 1)", "np.split(x, 1)[0]", "np.split(x, [1])", "np.ascontiguousarray(x)", "np.broadcast_to(x, (3, 4))",
         "np.broadcast_to(x, (2, 3, 4))",
         "np.broadcast_to(x, (2, 3, 4))[0]", "np.broadcast_to(x + 1, (2, 3, 4))", "np.broadcast_to(x, (1, 3, 4)).reshape(-1)",
         "np.broadcast_to(x, (2, 3, 4)).T[0]", "x[:1].T[:, 0]"]


@pytest.mark.parametrize("expression", COPIES + VIEWS)
def test_memory_of_a_result(expression: str) -> None:
    check(f"    return {expression}")
    if expression in VIEWS:
        check(f"    return {expression}", readonly=True)


@pytest.mark.parametrize("text", [
    "    np.broadcast_to(x, (3, 4))[0] = 1",
    "    y = np.broadcast_to(x, (2, 3, 4))\n    y[0, 0] = 1\n    return y",
    "    y = np.broadcast_to(x, (2, 3, 4))[1]\n    y += 1\n    return y",
    "    return np.concatenate([x, x[0]])",
    "    return np.concatenate([x, x[:, :1]])",
    "    return x + x[:2]",
    "    return x.reshape(5, -1)",
    "    return x.reshape(5, 2)",
    "    return x @ x",
    "    return x[3]",
    "    return x.sum(axis=2)",
    "    return np.split(x, 2)",
    "    return np.stack([x, x.T])",
    "    return x[:0].max()",
    "    return x[:0].max(axis=0)",
    "    return np.take(x, [4], axis=0)",
    "    return np.take(x[:, :0], [3], axis=0)",
    "    return np.take(x[:, :0], np.arange(2), axis=0)",
    "    return x[:, :0][np.arange(5)]",
    "    return np.take(x[:0], np.arange(1), axis=0)",
    "    return np.broadcast_to(x, (3, 5))",
    "    return np.squeeze(x, 0)",
    "    return ops.conv2d(x, x)",
    "    return ops.linear(x, x[None])",
    "    return np.transpose(x, (0, 1, 2))",
    "    return np.transpose(x[None], (1, 0))",
    "    return np.transpose(x, (0, 0))",
])
def test_error_is_numpys(text: str) -> None:
    check(text, native=False)


@pytest.mark.parametrize("text", [
    "    x[0] = 1\n    return x", "    x += 1\n    return x", "    y = x.T\n    y[0] = 1\n    return y", "    y = x.reshape(-1)\n    y[0] = 1\n    return y"])
def test_read_only_argument_is_not_written(text: str) -> None:
    check(text, native=False, readonly=True)


@pytest.mark.parametrize("text", [
    "    y = np.where(x[0, 0] > 0, x[0, 1], x[0, 2])\n    return y, y + 1",               # an array of rank 0, where a ufunc gives a number
    "    y = np.where(x.sum() > 0, 1.0, 2.0)\n    y *= 3\n    return y",
    "    y = x.sum()\n    z = y.copy()\n    z += 1\n    return y, z",
    "    y = x.copy()\n    z = np.array(y)\n    z[0] = 7\n    return y, z",
    "    y = x.copy()\n    z = np.tile(y, (1, 1))\n    z[0] = 7\n    return y, z",
    "    y = np.split(x, 1)[0]\n    return np.concatenate([y, x], axis=0)",                # a split along one axis keeps the others
    "    y = np.max(x, axis=0)\n    return np.log(np.sum(np.exp(x - y), axis=0)) + y",     # a second pass over rows in one expression
    "    y = np.broadcast_to(x[0], (3, 4))\n    return y + x, y.sum(axis=0), y.max()",
    "    return ops.logsumexp(x), ops.logsumexp(x, axis=0), ops.logsumexp(x[0], axis=0)",
    "    return x[:, :0].sum(axis=1), x[:0].sum(axis=0), x[:0].mean(axis=1), x[:, :0] @ x.T[:0]",
])
def test_program(text: str) -> None:
    check(text)


@pytest.mark.parametrize("text", [
    "    y = x.sum()\n    return y.T, y.transpose(), y[...], y[()], y.reshape(1), y.reshape(()), np.array(y).reshape(()), x[0, 0], x[0, 0, ...], x[0][1, ...]",  # an ellipsis makes arrays
    "    y = x[0, 0] * 1\n    y[...] = 2\n    return y",
    "    y = x.astype(np.float64).max().T\n    return y",
    "    y = x[0, 1] * 2\n    z = y[None]\n    print(end='')\n    return y, z",  # leaves native code with a number and a view of it
    "    return np.pad(x.sum(), 1)",
])
def test_numbers_and_arrays_of_rank_0(text: str) -> None:
    check(text, native="[...] =" not in text and "pad" not in text and "print" not in text)


def test_a_store_through_a_view_that_a_loop_carries_never_writes_to_a_read_only_argument() -> None:
    def mark(x: Any, n: int) -> Any:
        v = x[1:]
        for _ in range(n):
            v[0] = 5.0
            v = v[1:]
        return x

    jitted = bcvm.jit(mark, tier="full")
    writable = np.zeros(30)
    np.testing.assert_array_equal(jitted(writable.copy(), 20), mark(writable.copy(), 20))
    fixed = np.zeros(30)
    fixed.flags.writeable = False
    for _ in range(3):
        with pytest.raises(ValueError, match="read-only"):
            jitted(fixed, 20)
    assert fixed.max() == 0
