"""Epilogues: what may finish the blocks of a library kernel, and that results are those of the reference on every tier, for any sizes, layouts and threads."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm import ops

TIERS = ({"tier": "splice"}, {"tier": "full"}, {"tier": "full", "threads": 1}, {"tier": "full", "fusion": False})


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def regions(fn: Any, *args: Any, **options: Any) -> list[str]:
    f = bcvm.jit(fn, tier="full", background=False, **options)
    f.warmup(args)
    return list(f.explain(*args).regions)


def check(fn: Any, *calls: tuple[Any, ...], tolerance: float = 1e-4) -> None:
    """Every tier against NumPy, all calls by the code that the first one made."""
    for options in TIERS:
        f = bcvm.jit(fn, background=False, **options)
        f.warmup(calls[0])
        for args in calls:
            results, exact = ((r if isinstance(r, tuple) else (r,)) for r in (f(*args), fn(*args)))
            for a, b in zip(results, exact, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, atol=tolerance * max(abs(b).max(initial=0), 1), rtol=0)
        assert f.stats()["native"] == len(calls) and not f.stats()["fallbacks"]


def relu(x, w, b):
    return np.maximum(ops.conv2d(x, w, b, padding=1), 0)


def normed(x, w, mean, var, scale, shift):
    return ops.relu6(ops.batch_norm(ops.conv2d(x, w, padding=1), mean, var, scale, shift))


def residual(x, w, b, y):
    return np.maximum(ops.conv2d(x, w, b, padding=1) + y, 0)


@pytest.mark.parametrize("fn", (relu, residual))
def test_explain_says_what_became_an_epilogue(fn: Any) -> None:
    x = data(1, 3, 6, 6)
    (line,) = regions(fn, x, data(4, 3, 3, 3), data(4), *([data(1, 4, 6, 6)] if fn is residual else []))
    assert "policy_002" in line and "[EPILOGUE of conv2d]" in line
    assert not any("EPILOGUE" in line for line in regions(fn, x, data(4, 3, 3, 3), data(4), *([data(1, 4, 6, 6)] if fn is residual else []), fusion=False))


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_sizes(dtype: str) -> None:
    """Whole planes and parts of rows, both ways to convolve, nothing at all."""
    shapes = ((2, 5, 17, 19, 33), (1, 3, 9, 600, 8), (1, 32, 33, 48, 16), (3, 64, 7, 7, 70), (1, 1, 1, 1, 1), (0, 3, 5, 5, 4), (2, 0, 5, 5, 3), (2, 3, 5, 5, 0))
    check(relu, *((data(n, c, h, w, dtype=dtype), data(o, c, 3, 3, dtype=dtype), data(o, dtype=dtype)) for n, c, h, w, o in shapes))


def test_batch_norm() -> None:
    calls = [(data(n, c, h, w), data(o, c, 3, 3), data(o), abs(data(o, seed=1)) + 1, data(o, seed=2), data(o, seed=3)) for n, c, h, w, o in
             ((2, 4, 12, 13, 40), (16, 8, 28, 28, 8), (1, 4, 1, 1, 3))]
    assert "[EPILOGUE of conv2d]" in regions(normed, *calls[0])[-1]
    check(normed, *calls)


def test_a_residual_of_any_layout_and_one_that_is_broadcast() -> None:
    x, w, b, y = data(2, 5, 17, 19), data(33, 5, 3, 3), data(33), data(2, 33, 17, 19)
    check(residual, (x, w, b, y), (x, w, b, np.ascontiguousarray(y.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)), (x, w, b, data(2, 33, 34, 19)[:, :, ::2]),
          (x, w, b, y[:, :, ::-1, ::-1]), (x, w, b, data(1, 1, 1, 19)), (x, w, b, data(33, 1, 1)[None]))


def test_the_result_broadcasts_into_a_larger_space() -> None:
    """The block of the result is not a block of the region's space then."""
    x, w, b = data(1, 5, 7, 9), data(6, 5, 3, 3), data(6)
    check(residual, (x, w, b, data(1, 6, 7, 9)), (x, w, b, data(4, 6, 7, 9)), (x, data(1, 5, 3, 3), data(1), data(1, 6, 7, 9)))


@pytest.mark.parametrize("options", ({"padding": 0}, {"padding": 3, "stride": 2}, {"stride": (2, 3), "dilation": (1, 2), "padding": (1, 2)}, {"padding": "same"}),
                         ids=str)
def test_attributes(options: dict[str, Any]) -> None:
    def f(x, w, b):
        return ops.silu(ops.conv2d(x, w, b, **options))
    check(f, (data(2, 3, 24, 21), data(20, 3, 7, 7), data(20)), (data(1, 3, 8, 30), data(20, 3, 1, 1), data(20)))


def test_groups() -> None:
    def depthwise(x, w, b):
        return ops.relu(ops.conv2d(x, w, b, padding=1, groups=8))

    def grouped(x, w, b):
        return np.maximum(ops.conv2d(x, w, b, padding=1, groups=2), b[:, None, None])
    shapes = ((1, 7, 7), (3, 7, 7), (1, 40, 41), (2, 40, 300), (5, 14, 14), (2, 80, 90))
    check(depthwise, *((data(n, 8, h, w), data(8, 1, 3, 3), data(8)) for n, h, w in shapes))
    check(grouped, *((data(n, 6, h, w), data(8, 3, 3, 3), data(8)) for n, h, w in shapes))


def test_one_dimension() -> None:
    def f(x, w, b, y):
        return ops.relu(ops.conv1d(x, w, b, padding=1) + y)
    args = data(2, 5, 40), data(6, 5, 3), data(6), data(2, 6, 40)
    assert "[EPILOGUE of conv2d]" in regions(f, *args)[0]
    check(f, args, (data(1, 5, 1), data(6, 5, 3), data(6), data(1, 6, 1)), (data(1, 5, 500), data(6, 5, 3), data(6), data(1, 6, 1)))


def test_another_dtype_and_several_results() -> None:
    def wider(x, w, b):
        return np.maximum(ops.conv2d(x, w, b, padding=1), 0).astype(np.float64)

    def narrower(x, w, b):
        return ops.conv2d(x, w, b, padding=1).astype(np.float16)

    def several(x, w, b):
        y = ops.conv2d(x, w, b, padding=1)
        return y > 0, np.maximum(y, 0), np.tanh(y)
    args = data(2, 5, 17, 19), data(33, 5, 3, 3), data(33)
    assert "EPILOGUE" in regions(several, *args)[0]
    check(wider, args)
    check(narrower, args, tolerance=2e-3)
    check(several, args)


def test_a_result_that_is_needed_elsewhere_stays() -> None:
    def f(x, w, b):
        y = ops.conv2d(x, w, b, padding=1)
        return y, np.maximum(y, 0)

    def twice(x, w, v):
        y = ops.conv2d(x, w, padding=1)
        return ops.conv2d(y, v) + y.sum()
    args = data(2, 5, 17, 19), data(33, 5, 3, 3), data(33)
    assert "no epilogue of conv2d: the result is needed elsewhere" in regions(f, *args)[0]
    check(f, args)
    check(twice, (data(1, 3, 8, 8), data(4, 3, 3, 3), data(4, 4, 1, 1)))


def test_stores() -> None:
    """A result that is written over an operand, and an operand that changes between the two."""
    def into(x, w):
        x[...] = np.maximum(ops.conv2d(x, w, padding=1), 0)
        return x

    def between(x, w):
        y = ops.conv2d(x, w, padding=1)
        x[0] = 1
        return np.maximum(y, 0) + x

    for fn in (into, between):
        x, w = data(2, 4, 9, 11), data(4, 4, 3, 3)
        exact = fn(x.copy(), w)
        for options in TIERS:
            f = bcvm.jit(fn, background=False, **options)
            f.warmup((x.copy(), w))
            np.testing.assert_allclose(f(x.copy(), w), exact, atol=1e-4)


def test_chains_in_loops_and_branches() -> None:
    def f(x, w, b, n):
        for _ in range(n):
            y = ops.conv2d(x, w, b, padding=1)
            if n > 2:
                x = np.maximum(y, 0)
            else:
                x = np.tanh(y) + x
        return x
    args = data(1, 4, 9, 11), data(4, 4, 3, 3) / 4, data(4)
    check(f, (*args, 2), (*args, 3), (*args, 0))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    args = data(2, 32, 60, 61), data(48, 32, 3, 3), data(48), data(2, 48, 60, 61)
    results = []
    for threads in (1, 2, 3, 4):
        f = bcvm.jit(residual, tier="full", background=False, threads=threads)
        f.warmup(args)
        results += [f(*args) for _ in range(3)]
    assert all((r == results[0]).all() for r in results)


def test_one_kernel_serves_all_epilogues() -> None:
    def f(x, w, b):
        return np.tanh(ops.conv2d(np.maximum(ops.conv2d(x, w, b, padding=1), 0), w, b, padding=1))
    args = data(1, 4, 9, 11), data(4, 4, 3, 3), data(4)
    g = bcvm.jit(f, tier="full", background=False)
    g.warmup(args)
    assert g.explain(*args).kernels == ["conv2d"]
    check(f, args)


def dense(x, w, b):
    return np.maximum(x @ w + b, 0)


def test_products() -> None:
    """By tiles, by lines, by dot products, through scratch, with rows and columns swapped, in several units, without elements."""
    flat = [(data(m, k), data(k, n), data(n)) for m, k, n in
            ((7, 33, 70), (300, 20, 200), (1, 20, 200), (4, 300, 65), (300, 20, 2), (0, 20, 3), (5, 0, 3), (300, 65, 3000), (1000, 9, 64))]
    check(dense, *flat, (data(30, 20), data(200, 20).T, data(200)), (data(2, 400), data(50, 400).T, data(50)), (data(20, 30).T, data(20, 40)[:, ::2], data(20)))
    assert "[EPILOGUE of matmul]" in regions(dense, *flat[0])[0]


def test_batched_products() -> None:
    """Batches that are rows of one product, and others; a bias and a residual that broadcast along batches."""
    def gelu(x, w, y):
        return ops.gelu(x @ w + y) * 2
    x, w = data(3, 40, 33), data(33, 70)
    check(gelu, (x, w, data(3, 40, 70)), (data(50, 10, 20), data(20, 2), data(1, 10, 2)), (data(5, 1, 20), data(20, 200), data(5, 1, 200)),
          (x, w, data(40, 70)[None]), (x[:, ::2], w, data(3, 20, 70)))
    check(dense, (x, data(3, 33, 70), data(70)), (data(6, 100, 20), data(1, 20, 2), data(2)), (data(1, 4, 5), data(7, 5, 6), data(6)))
    check(dense, (data(2, 3, 40, 33), data(2, 3, 33, 20), data(20)))


@pytest.mark.parametrize("dtype", ("float16", "float64", "int32"))
def test_dtypes_of_products(dtype: str) -> None:
    x, w, b = (data(*s).astype(dtype) if dtype != "int32" else (data(*s) * 9).astype(dtype) for s in ((40, 33), (33, 70), (70,)))
    check(dense, (x, w, b), tolerance=4e-3 if dtype == "float16" else 1e-6)


def test_frozen_weights() -> None:
    w, b = data(33, 70), data(70)
    f = bcvm.jit(lambda x: np.maximum(x @ w + b, 0), tier="full", background=False, frozen=True)
    for m in (1, 5, 300):
        np.testing.assert_allclose(f(data(m, 33)), dense(data(m, 33), w, b), atol=1e-4)
    assert f.stats()["native"] == 3


def test_a_product_of_vectors_has_no_epilogue() -> None:
    def f(x, v):
        return np.maximum(x @ v, 0)
    args = data(40, 33), data(33)
    assert "no epilogue of matmul" in regions(f, *args)[0]
    check(f, args)


def test_products_for_any_number_of_threads_give_the_same_bits() -> None:
    args = data(3, 300, 64), data(64, 200), data(200)
    results = []
    for threads in (1, 2, 3, 4):
        f = bcvm.jit(dense, tier="full", background=False, threads=threads)
        f.warmup(args)
        results += [f(*args) for _ in range(3)]
    assert all((r == results[0]).all() for r in results)
