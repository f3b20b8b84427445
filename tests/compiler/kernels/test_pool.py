"""Pooling against NumPy, over sizes, layouts, dtypes and targets."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import pool  # noqa: E402
from bcvm.compiler.kernels.conv_tiles import ROWS  # noqa: E402
from bcvm.compiler.kernels.pool import PoolAttrs  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402

targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))


def whole_of(view: np.ndarray) -> np.ndarray:
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


def run_pool(target: Target, op: str, x: np.ndarray, attrs: PoolAttrs, out: np.ndarray, lo: int = 0, hi: int = -1) -> None:
    function = h.compile_kernel(getattr(pool, op)(str(x.dtype), attrs, target), target)
    assert h.run(function, h.operand_words((x, x.strides), (out, out.strides)), h.words(*x.shape, *out.shape[2:]), lo, hi) == 0


def pooled(op: str, x: np.ndarray, attrs: PoolAttrs) -> np.ndarray:
    """One window at a time."""
    (kh, kw), (sh, sw), (top, bottom, left, right) = attrs.kernel, attrs.stride, attrs.padding
    oh, ow = (x.shape[2] + top + bottom - kh) // sh + 1, (x.shape[3] + left + right - kw) // sw + 1
    out = np.empty((*x.shape[:2], oh, ow), np.float64 if op == "avg_pool2d" else x.dtype)
    for i in range(oh):
        for j in range(ow):
            r, c = i * sh - top, j * sw - left
            window = x[:, :, max(r, 0):max(r + kh, 0), max(c, 0):max(c + kw, 0)]
            if op == "max_pool2d":
                lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
                out[:, :, i, j] = window.max(axis=(2, 3), initial=lowest)
            else:
                count = kh * kw if attrs.count_include_pad else window.shape[2] * window.shape[3]
                out[:, :, i, j] = window.sum(axis=(2, 3), dtype=np.float64) / count
    return out


POOLS = [
    PoolAttrs((2, 2), (2, 2)),
    PoolAttrs((3, 3), (1, 1), (1, 1, 1, 1)),
    PoolAttrs((3, 2), (2, 2), (1, 0, 0, 1), count_include_pad=False),
    PoolAttrs((5, 4), (3, 3), (2, 2, 1, 3), count_include_pad=False),
    PoolAttrs((1, 1), (1, 2)),
    PoolAttrs((3, 3), (2, 4), (1, 1, 1, 1)),
    PoolAttrs((3, 3), (3, 3), (1, 0, 2, 0), count_include_pad=False),
    PoolAttrs((7, 7), (7, 7)),
    PoolAttrs((2, 3), (2, 5)),
]


@targets
@pytest.mark.parametrize("attrs", POOLS, ids=str)
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_pooling(target: Target, op: str, attrs: PoolAttrs) -> None:
    rng = np.random.default_rng(4)
    for dtype in ("float32", "float64", *(("int32", "uint8") if op == "max_pool2d" else ())):
        for height, width in ((5, 5), (7, 9), (12, 24), (9, 41), (7, 70)):
            x = h.layout(rng, (2, 3, height, width), dtype, str(rng.choice(h.PATTERNS)))
            expected = pooled(op, x, attrs)
            out = h.layout(rng, expected.shape, dtype, str(rng.choice(("plain", "plain", "steps"))))
            whole = whole_of(out)
            whole[...] = 77
            run_pool(target, op, x, attrs, out)
            if op == "max_pool2d":
                np.testing.assert_array_equal(out, expected)
            else:
                np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-6 if dtype == "float32" else 1e-14)
            out[...] = 77
            assert (whole == 77).all(), "wrote outside the output"


@targets
def test_a_nan_wins_the_maximum_and_stays_in_its_windows(target: Target) -> None:
    x = np.zeros((1, 1, 4, 40), np.float32)
    x[0, 0, 1, 3] = x[0, 0, 0, 30] = np.nan
    out = np.empty((1, 1, 2, 20), np.float32)
    run_pool(target, "max_pool2d", x, POOLS[0], out)
    assert np.argwhere(np.isnan(out[0, 0])).tolist() == [[0, 1], [0, 15]]


@targets
def test_pooling_in_parts_and_to_the_edge_of_memory(target: Target) -> None:
    rng = np.random.default_rng(5)
    for op in ("max_pool2d", "avg_pool2d"):
        for attrs in POOLS:
            x = h.guarded(h.values(rng, (2, 2, 9, 35), "float32"))
            expected = pooled(op, x, attrs)
            out = h.guarded(np.full(expected.shape, np.nan, np.float32))
            rows = 4 * -(-expected.shape[2] // ROWS)
            for lo, hi in ((0, 1), (1, 3), (3, rows)):
                run_pool(target, op, x, attrs, out, lo, hi)
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_what_has_no_native_form_is_refused() -> None:
    target = h.TARGETS[0]
    for make in (lambda: pool.max_pool2d("bool", POOLS[0], target), lambda: pool.avg_pool2d("int32", POOLS[0], target),
                 lambda: pool.max_pool2d("float32", PoolAttrs((0, 2), (1, 1)), target)):
        with pytest.raises(Unsupported):
            make()


def test_no_symbol_outside_itself() -> None:
    for target in h.TARGETS:
        for source in (pool.max_pool2d("float32", POOLS[0], target), pool.avg_pool2d("float64", POOLS[3], target)):
            assert h.outside_symbols(source, target) == set()
