"""NumPy functions that are given other things than arrays, or dtypes that are not the array's own, do in native code what NumPy does."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import outcome
from tests.vm.hard import same as agree
from tests.vm.op_calls import function

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SMALL = np.arange(12, dtype=np.uint8).reshape(3, 4) * 23


def check(expression: str, *args: Any) -> None:
    names = "xyz"[:len(args)]
    body = expression if "return" in expression else f"return {expression}"
    plain = function(f"def f({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body.split("\n")))
    jitted = bcvm.jit(plain, tier="full", background=False)
    for _ in range(2):
        mine, theirs = ([np.array(a) if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, want = outcome(jitted, *mine), outcome(plain, *theirs)
        assert got[0] == want[0], (expression, got, want)
        if want[0] == "error":
            assert got == want
        else:
            agree(got[1], want[1])
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(a, np.ndarray):
                np.testing.assert_array_equal(a, b)
    assert not jitted.stats()["errors"], (expression, jitted.stats()["errors"])


@pytest.mark.parametrize("expression", [
    "np.concatenate(x)", "np.stack(x)", "np.hstack(x)", "np.vstack(x)", "np.concatenate([x, 1.5], axis=None)", "np.stack([x, x[0]], axis=-1)", "np.stack((x, 3), -1)",
    "sum(x)", "max(x[0])", "np.full_like(x, x[0])", "np.full_like(x[0], x)", "np.transpose(x[0], ())", "np.transpose(x[0, 0], ())", "np.arange(4, dtype=bool)",
    "x @ x[0, 0]", "np.asarray(x[0, 0])", "np.float64(x[0, 0])", "np.int8(x)",
])
def test_arrays(expression: str) -> None:
    check(expression, X)


@pytest.mark.parametrize("expression", [
    "np.copy(x)", "np.array(x)", "np.squeeze(x)", "np.transpose(x)", "np.flip(x)", "np.zeros_like(x)", "np.full_like(x, 7)", "np.linalg.norm(x)", "x @ x", "min(x)", "sum(x)", "np.hstack(x)",
    "np.stack(x)", "np.float32(x)", "np.int8(x)", "np.uint64(x)", "np.bool_(x)", "np.float16(x)",
])
@pytest.mark.parametrize("number", [3, -300, 2.5, True, 1 << 40, float("inf"), np.array(2.5), np.array(200, np.uint8), np.float32(1.5)])
def test_numbers_in_place_of_arrays(expression: str, number: Any) -> None:
    check(expression, number)


@pytest.mark.parametrize("dtype", ["bool", "np.int8", "np.uint8", "np.uint32", "int", "np.float16", "np.float32"])
@pytest.mark.parametrize("call", ["x.sum(dtype={})", "x.sum(0, dtype={})", "np.prod(x, axis=1, dtype={})", "np.mean(x, dtype={})", "x.sum(axis=0, keepdims=True, dtype={})"])
def test_reductions_have_the_dtype_that_is_asked_for(call: str, dtype: str) -> None:
    for x in (X, SMALL) if "prod" not in call else (SMALL // 40,):
        if not ("float16" in dtype and x is SMALL):  # sums of float16 are rounded in the order they are made
            check(call.format(dtype), np.abs(x))


@pytest.mark.parametrize("number", [3, -2, 300, 1 << 40, -(1 << 40), 2.75, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64", "uint64", "float32", "bool"])
def test_stored_numbers_fit_or_are_refused(dtype: str, number: Any) -> None:
    if isinstance(number, float) or number in range(-128, 128):
        number = abs(number) if dtype == "bool" else number
    x = np.ones((3, 4), dtype)
    for store in ("x[:, 1] = y\nreturn x", "x[...] = y\nreturn x", "np.full_like(x, y)", "np.full(3, y, x.dtype)"):
        if not (isinstance(number, float) and number < 0):
            check(store, x, number)


@pytest.mark.parametrize("kinds", [("b", 0, "i4"), ("?", 0, "f4"), ("i1", 1.5, "f4"), ("i2", 0, "i4"), ("f4", 0, "f8"), ("f4", 0.5, "i1")])
def test_both_bounds_of_clip_decide_the_dtype(kinds: tuple[str, Any, str]) -> None:
    x, low, high = np.arange(4).astype(kinds[0]), kinds[1], np.arange(4).astype(kinds[2])
    check("np.clip(x, y, z)", x, low, high)
    check("np.clip(x, z, y + 3)", x, low, high)


@pytest.mark.parametrize("bound", [np.int64(2), np.array(2), np.int8(-1), -2, 1 << 40])
@pytest.mark.parametrize("item", ["y:", ":y", "y::-1", ":y:-1", "-1:y", "y:y + 1", ":, y:"])
def test_bounds_of_slices(item: str, bound: Any) -> None:
    check(f"x[{item}]", X, bound)


@pytest.mark.parametrize("expression", ["x[1, 1]", "x[y]", "x[::y]", "(1, 2, 3)[y]", "'abc'[y:]", "(1, 2)[x]"])
@pytest.mark.parametrize("index", [(1, 2), 0.5, 0, 7, None])
def test_wrong_indices_of_sequences(expression: str, index: Any) -> None:
    check(expression, "abc", index)
    check(expression, (1, 2, 3), index)


def test_a_matrix_product_in_place_takes_matrices_only() -> None:
    check("x @= y\nreturn x", np.ones((3, 3)), np.ones((3, 3)))
    check("x @= y\nreturn x", np.ones(3), np.ones(3))
    check("x @= y\nreturn x", np.ones(3), np.ones((3, 3)))
