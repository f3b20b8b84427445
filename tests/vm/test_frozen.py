"""The option frozen: captured weights are packed once for the matrix product, and the packed copies go with the code."""
from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.compiler import packed
from bcvm.vm.compile_thread import thread

NOW = {"tier": "full", "background": False}
ROWS = (1, 2, 3, 5, 7, 18, 64)


def weights(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def inputs(m: int, k: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(m).standard_normal((m, k)).astype(dtype)


def held(settled: Callable[[int], bool]) -> int:
    """Bytes of the packed copies, after what nobody uses has gone."""
    for _ in range(200):
        gc.collect()
        thread.idle()
        if settled(packed.bytes_held()):
            break
        time.sleep(0.01)
    return packed.bytes_held()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_results_are_right_for_weights_as_they_are_and_transposed(dtype: str) -> None:
    w, v = weights(40, 72, dtype=dtype), weights(50, 72, dtype=dtype)

    def f(x: Any) -> Any:
        return np.maximum(x @ w, 0) @ v.T
    g = bcvm.jit(f, frozen=True, **NOW)
    before = held(lambda n: n == 0)
    tolerance = 2e-2 if dtype == "float16" else 1e-4
    for m in ROWS:
        x = inputs(m, 40, dtype)
        np.testing.assert_allclose(g(x), f(x), rtol=tolerance, atol=tolerance * 10)
    assert g.stats()["native"] == len(ROWS)
    assert packed.bytes_held() > before


def test_a_frozen_weight_is_read_packed_and_another_one_as_it_lies() -> None:
    w = weights(32, 48)

    def make(**options: Any) -> tuple[Any, Callable[[Any], None]]:
        weight = w.copy()

        def f(x: Any) -> Any:
            return x @ weight

        def change(new: Any) -> None:
            nonlocal weight
            if new is None:
                weight *= 2
            else:
                weight = new
        return bcvm.jit(f, **options, **NOW), change
    x = inputs(5, 32)
    frozen, change = make(frozen=True)
    once = frozen(x)
    change(None)
    np.testing.assert_array_equal(frozen(x), once)      # by its definition: captured values never change
    change(weights(32, 48) + 1)
    np.testing.assert_allclose(frozen(x), x @ (weights(32, 48) + 1), rtol=1e-4, atol=1e-4)
    change(weights(32, 20))
    np.testing.assert_allclose(frozen(x), x @ weights(32, 20), rtol=1e-4, atol=1e-4)
    free, change = make()
    once = free(x)
    change(None)
    np.testing.assert_allclose(free(x), 2 * once, rtol=1e-5)


def test_a_weight_that_the_function_writes_is_not_packed() -> None:
    w = weights(24, 32)
    before = held(lambda n: n == 0)

    def f(x: Any) -> Any:
        w[0, 0] = 3.0
        return x @ w
    g = bcvm.jit(f, frozen=True, **NOW)
    x = inputs(4, 24)
    for value in (1.0, 2.0):
        w[1, 1] = value
        np.testing.assert_allclose(g(x), x @ w, rtol=1e-4, atol=1e-4)
    assert packed.bytes_held() == before


def test_weights_of_an_object_are_packed_once_for_all_code_that_reads_them() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = weights(64, 96)

        def __call__(self, x: Any) -> Any:
            return x @ self.w
    layer = Layer()
    start = held(lambda n: n == 0)
    first, second = bcvm.jit(layer, frozen=True, **NOW), bcvm.jit(layer, frozen=True, **NOW)
    for m in (1, 4):
        for g in (first, second):
            np.testing.assert_allclose(g(inputs(m, 64)), inputs(m, 64) @ layer.w, rtol=1e-4, atol=1e-4)
    assert packed.bytes_held() - start == layer.w.nbytes
    del first, g
    assert held(lambda n: n == start + layer.w.nbytes) == start + layer.w.nbytes
    del second
    assert held(lambda n: n == start) == start


def test_an_argument_is_not_taken_for_a_weight() -> None:
    before = held(lambda n: n == 0)
    g = bcvm.jit(lambda x, w: x @ w, frozen=True, **NOW)
    w = weights(16, 32)
    for scale in (1, 2):
        w *= scale
        np.testing.assert_allclose(g(inputs(3, 16), w), inputs(3, 16) @ w, rtol=1e-4, atol=1e-4)
    assert packed.bytes_held() == before
