"""Gathers and running sums against NumPy, over sizes, layouts, dtypes and targets."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import movement  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402

targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))


def run_take(target: Target, x: np.ndarray, indices: np.ndarray, axis: int, out: np.ndarray, lo: int = 0, hi: int = -1) -> int:
    """np.take by the kernel, into out."""
    before, after = x.strides[:axis], x.strides[axis + 1:]
    strides = ((*before, *(0,) * indices.ndim, *after), (*(0,) * len(before), *indices.strides, *(0,) * len(after)), out.strides)
    dims = out.shape
    if not dims:
        dims, strides = (1,), ((0,), (0,), (0,))
    function = h.compile_kernel(movement.take(str(x.dtype), str(indices.dtype), len(dims), target), target)
    return h.run(function, h.operand_words(*zip((x, indices, out), strides, strict=True)), h.words(*dims, x.shape[axis], x.strides[axis]), lo, hi)


def whole_of(view: np.ndarray) -> np.ndarray:
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


@targets
def test_take_of_any_shape_and_layout(target: Target) -> None:
    rng = np.random.default_rng(0)
    dtypes = ["float32", "float64", "int8", "int16", "bool"]
    for turn in range(80):
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 17, 40], int(rng.integers(1, 4))))
        axis = int(rng.integers(0, len(shape)))
        n = shape[axis]
        index_shape = tuple(int(k) for k in rng.choice([0, 1, 3, 4, 19], int(rng.integers(0, 3))))
        dtype = dtypes[turn % len(dtypes)]
        x = h.layout(rng, shape, dtype, str(rng.choice(h.PATTERNS)))
        indices = h.layout(rng, index_shape, "int64", str(rng.choice(("plain", "transposed", "steps")))) if index_shape else np.array(0)
        indices = np.asarray(indices)
        indices[...] = rng.integers(-n, n, index_shape)
        if turn % 2:
            indices = indices.astype(np.int32)
        expected = np.take(x, indices, axis)
        out = h.layout(rng, expected.shape, dtype, "steps" if expected.ndim and turn % 3 == 0 else "plain")
        out = np.asarray(out)
        assert run_take(target, x, indices, axis, out) == 0
        np.testing.assert_array_equal(out, expected)


@targets
def test_take_refuses_an_index_out_of_range(target: Target) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for bad in (4, -5, 2**31 - 1, -2**31):
        for dtype in (np.int32, np.int64):
            for axis, shape in ((0, (2, 3)), (1, (4, 2))):
                indices = np.array([0, bad], dtype)
                assert run_take(target, x, indices, axis, np.empty(shape, np.float32)) == 1
    assert run_take(target, np.zeros((0, 3), np.float32), np.array([0]), 0, np.empty((1, 3), np.float32)) == 1
    assert run_take(target, x, np.array([3, -4]), 0, np.empty((2, 3), np.float32)) == 0


@targets
def test_take_reads_nothing_behind_its_operands(target: Target) -> None:
    rng = np.random.default_rng(1)
    for width in (1, 7, 16, 33):
        x, indices = h.guarded(h.values(rng, (5, width), "float32")), h.guarded(np.array([4, 0, -1]))
        out = h.guarded(np.zeros((3, width), np.float32))
        assert run_take(target, x, indices, 0, out) == 0
        np.testing.assert_array_equal(out, x[[4, 0, -1]])


@targets
def test_take_in_parts(target: Target) -> None:
    rng = np.random.default_rng(2)
    x, indices = h.values(rng, (9, 5, 6), "float32"), rng.integers(-5, 5, (4, 2))
    expected = np.take(x, indices, 1).reshape(72, 6)
    for lo, hi in ((0, 10), (10, 11), (11, 72)):
        out = np.full((9, 4, 2, 6), np.nan, np.float32)
        assert run_take(target, x, indices, 1, out, lo, hi) == 0
        rows = out.reshape(72, 6)
        np.testing.assert_array_equal(rows[lo:hi], expected[lo:hi])
        assert np.isnan(rows[:lo]).all() and np.isnan(rows[hi:]).all()


@targets
def test_complex_elements_are_moved_whole(target: Target) -> None:
    x = (np.arange(6) + 1j).astype(np.complex128)
    out = np.zeros(3, np.complex128)
    assert run_take(target, x, np.array([5, 0, -2]), 0, out) == 0
    assert (out == x[[5, 0, -2]]).all()


@targets
@pytest.mark.parametrize(("dtype", "result"), [("float32", "float32"), ("float64", "float64"), ("int64", "int64"), ("int32", "int64"), ("uint8", "uint64"),
                                               ("bool", "int64"), ("int8", "int64")])
def test_cumsum(target: Target, dtype: str, result: str) -> None:
    rng = np.random.default_rng(3)
    for shape in ((7,), (0,), (3, 0), (3, 1), (4, 33), (2, 3, 17), (2, 1, 3, 5)):
        for pattern in h.PATTERNS:
            x = h.layout(rng, shape, dtype, pattern)
            out = h.layout(rng, shape, result, "steps")
            function = h.compile_kernel(movement.cumsum(dtype, result, len(shape), target), target)
            assert h.run(function, h.operand_words((x, x.strides), (out, out.strides)), h.words(*shape)) == 0
            np.testing.assert_array_equal(out, np.cumsum(x, -1, dtype=result))


def test_what_has_no_native_form_is_refused() -> None:
    target = h.TARGETS[0]
    for make in (lambda: movement.take("float32", "uint8", 1, target), lambda: movement.cumsum("float16", "float16", 1, target),
                 lambda: movement.cumsum("int64", "int32", 1, target)):
        with pytest.raises(Unsupported):
            make()


def test_no_symbol_outside_itself() -> None:
    for target in h.TARGETS:
        for source in (movement.take("complex128", "int64", 3, target), movement.cumsum("float32", "float32", 2, target)):
            assert h.outside_symbols(source, target) == set()
