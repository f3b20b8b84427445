"""The matrix product kernel against NumPy in float64, over sizes, strides, batches, dtypes and targets."""
from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import matmul  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:overflow")
targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))
SENTINEL = 77


def kernel(dtype: str, batch_rank: int, target: Target) -> object:
    return h.compile_kernel(matmul.generate(dtype, batch_rank, target), target)


def product(target: Target, a: np.ndarray, b: np.ndarray, c: np.ndarray, lo: int = 0, hi: int = -1) -> None:
    """c = a @ b by the kernel; a and b have c's batch dims (broadcast to them)."""
    sizes = (*c.shape, a.shape[-1], 0, 0)
    operands = h.operand_words(*((x, x.strides) for x in (a, b, c)))
    assert h.run(kernel(str(c.dtype), c.ndim - 2, target), operands, h.words(*sizes), lo, hi) == 0


def output(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """An output view of the pattern and the whole memory it lies in."""
    view = h.layout(rng, shape, dtype, pattern)
    whole = view
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    whole[...] = SENTINEL
    return view, whole


def check(target: Target, a: np.ndarray, b: np.ndarray, pattern: str = "plain") -> None:
    dtype = str(a.dtype)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    c, whole = output(np.random.default_rng(0), shape, dtype, pattern)
    inside = c.size
    a, b = np.broadcast_to(a, (*shape[:-2], *a.shape[-2:])), np.broadcast_to(b, (*shape[:-2], *b.shape[-2:]))
    product(target, a, b, c)
    if dtype.startswith("float"):
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        size = np.matmul(abs(a).astype(np.float64), abs(b).astype(np.float64))
        assert (abs(c - exact) <= np.finfo(dtype).eps * (np.sqrt(a.shape[-1]) + 4) * size + np.finfo(dtype).tiny).all()
    else:
        np.testing.assert_array_equal(c, np.matmul(a, b))
    c[...] = SENTINEL
    assert (whole == np.asarray(SENTINEL).astype(dtype)).all(), "wrote outside the output"
    assert c.size == inside


@targets
@pytest.mark.parametrize("seed", range(6))
def test_any_size_and_layout(target: Target, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 31, 37, 61, 64, 65, 97, 130, 170, 257, 300]
    for _ in range(60):
        m, n, k = (int(s) for s in rng.choice(sizes, 3))
        a, b = (h.layout(rng, shape, "float32", str(rng.choice(h.PATTERNS))) for shape in ((m, k), (k, n)))
        check(target, a, b, str(rng.choice(("plain", "plain", "transposed", "slice", "steps", "reversed"))))


@targets
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "bool", "uint8", "int16"])
def test_other_dtypes(target: Target, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        m, n, k = (int(s) for s in rng.choice([0, 1, 2, 3, 5, 7, 8, 17, 33, 66, 129], 3))
        a, b = (h.layout(rng, shape, dtype, str(rng.choice(h.PATTERNS))) for shape in ((m, k), (k, n)))
        check(target, a, b, str(rng.choice(("plain", "transposed", "steps"))))


@targets
def test_batches_and_broadcast_batches(target: Target) -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        batch = tuple(int(s) for s in rng.choice([1, 1, 2, 3, 5], 2))
        m, n, k = (int(s) for s in rng.choice([1, 2, 5, 7, 16, 33, 70], 3))
        a_batch = tuple(1 if rng.random() < 0.3 else s for s in batch)
        b_batch = tuple(1 if rng.random() < 0.6 else s for s in batch)
        a, b = (h.layout(rng, shape, "float32", str(rng.choice(h.PATTERNS))) for shape in ((*a_batch, m, k), (*b_batch, k, n)))
        check(target, a, b, str(rng.choice(("plain", "transposed", "steps"))))
    check(target, h.values(rng, (0, 4, 3, 5), "float32"), h.values(rng, (5, 6), "float32"))


@targets
def test_attention_views(target: Target) -> None:
    """Heads cut from one fused projection: q @ k^T, then weights @ v."""
    rng = np.random.default_rng(5)
    qkv = h.values(rng, (2, 37, 3, 4, 16), "float32")
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    check(target, q, k.transpose(0, 1, 3, 2))
    check(target, h.values(rng, (2, 4, 37, 37), "float32"), v)
    check(target, q[:, :, -1:], k.transpose(0, 1, 3, 2))


@targets
@pytest.mark.parametrize(("m", "n", "k"), [(7, 40, 2500), (1, 300, 1500), (70, 33, 1025), (64, 1024, 30), (2, 5, 1030)])
def test_long_sums_and_far_rows(target: Target, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(6)
    for pattern in h.PATTERNS:
        check(target, h.values(rng, (m, k), "float32"), h.layout(rng, (k, n), "float32", pattern))


@targets
def test_no_depth_gives_zeros(target: Target) -> None:
    for m, n in ((1, 1), (5, 70), (70, 5)):
        c = np.full((m, n), np.nan, np.float32)
        product(target, np.zeros((m, 0), np.float32), np.zeros((0, n), np.float32), c)
        assert (c == 0).all()


@targets
def test_nan_and_infinity_stay_in_their_rows_and_columns(target: Target) -> None:
    rng = np.random.default_rng(7)
    for a_pattern, b_pattern in (("plain", "plain"), ("plain", "transposed"), ("steps", "steps")):
        a, b = h.layout(rng, (9, 21), "float32", a_pattern), h.layout(rng, (21, 37), "float32", b_pattern)
        a[2, 3], b[4, 36] = np.nan, np.inf
        c = np.empty((9, 37), np.float32)
        product(target, a, b, c)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(c), np.isnan(exact))
        np.testing.assert_array_equal(np.isinf(c), np.isinf(exact))


@targets
def test_parts_are_disjoint_and_make_the_same_bits_as_the_whole(target: Target) -> None:
    rng = np.random.default_rng(8)
    for a_shape, b_shape in (((3, 400, 20), (3, 20, 300)), ((3, 40, 20), (1, 20, 600)), ((9, 1, 30), (1, 30, 520)), ((1, 500, 20), (1, 20, 2))):
        a, b = h.values(rng, a_shape, "float32"), h.values(rng, b_shape, "float32")
        batch = max(a_shape[0], b_shape[0])
        a, b = np.broadcast_to(a, (batch, *a_shape[1:])), np.broadcast_to(b, (batch, *b_shape[1:]))
        whole = np.empty((batch, a_shape[1], b_shape[2]), np.float32)
        product(target, a, b, whole)
        written = np.zeros(whole.shape, int)
        units = matmul.units(batch, a_shape[1], b_shape[2], "float32", target)
        cuts = sorted({0, units, *(int(x) for x in rng.integers(0, units + 1, 3))})
        for lo, hi in itertools.pairwise(cuts):
            part = np.full_like(whole, np.nan)
            product(target, a, b, part, lo, hi)
            done = ~np.isnan(part)
            np.testing.assert_array_equal(part[done], whole[done])
            written += done
        assert (written == 1).all()


@targets
def test_reads_and_writes_nothing_behind_its_operands(target: Target) -> None:
    rng = np.random.default_rng(9)
    for m, n, k in ((1, 1, 1), (1, 37, 5), (6, 64, 9), (7, 65, 33), (70, 300, 17), (4, 3, 21), (2, 50, 19),
                    (6, 63, 9), (13, 50, 2), (5, 40, 1), (100, 127, 3), (9, 100, 1030)):
        for turned in (False, True):
            a, c = h.guarded(h.values(rng, (m, k), "float32")), h.guarded(np.zeros((m, n), np.float32))
            b = h.guarded(h.values(rng, (n, k), "float32")).T if turned else h.guarded(h.values(rng, (k, n), "float32"))
            product(target, a, b, c)
            np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@targets
@pytest.mark.parametrize("apart", [0, 1, 3, 49, 64, 70, -70])
def test_rows_of_b_may_lie_anyhow_before_what_must_not_be_read(target: Target, apart: int) -> None:
    rng = np.random.default_rng(apart + 99)
    for m, n, k in ((6, 49, 9), (7, 50, 40), (13, 33, 2), (100, 47, 30), (5, 60, 70), (8, 113, 12)):
        length = abs(apart) * (k - 1) + n
        memory = h.guarded(h.values(rng, (length,), "float32"))
        first = memory[length - n:] if apart < 0 else memory
        b = np.lib.stride_tricks.as_strided(first, (k, n), (4 * apart, 4))
        a, c = h.values(rng, (m, k), "float32"), h.guarded(np.zeros((m, n), np.float32))
        product(target, a, b, c)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_without_memory_it_says_so() -> None:
    a, c = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)
    b = np.ones((8, 16), np.float32)[:, ::2]
    function = kernel("float32", 0, h.TARGETS[0])
    operands = h.operand_words((a, a.strides), (b, b.strides), (c, c.strides))
    h.refuse[0] = True
    try:
        assert h.run(function, operands, h.words(8, 8, 8, 0, 0)) == 2
    finally:
        h.refuse[0] = False


HALVES = [(t, d) for t in h.TARGETS for d in ("float16", "bfloat16") if d == "bfloat16" or t.vector_bytes >= 32]


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers that are bfloat16 numbers."""
    assert not (x.view(np.uint32) & 0xFFFF).any()
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(("target", "dtype"), HALVES)
def test_halves_are_summed_as_float32(target: Target, dtype: str) -> None:
    rng = np.random.default_rng(10)
    call = h.compile_kernel(matmul.generate(dtype, 0, target), target)
    for m, n, k in ((1, 70, 300), (2, 5, 17), (3, 130, 40), (4, 64, 64), (9, 33, 1100), (70, 50, 33), (300, 20, 5), (1, 1, 1), (5, 2, 40), (2, 3, 0)):
        for turned in (False, True):
            wide = [(rng.standard_normal(s).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32) for s in ((m, k), (n, k) if turned else (k, n))]
            a, b = (as_bfloat16(x) if dtype == "bfloat16" else x.astype(np.float16) for x in wide)
            x, y = (w if dtype == "bfloat16" else v.astype(np.float32) for w, v in zip(wide, (a, b), strict=True))
            if turned:
                b, y = b.T, y.T
            exact = x.astype(np.float64) @ y.astype(np.float64)
            c = np.zeros((m, n), a.dtype)
            operands = h.operand_words(*((z, z.strides) for z in (a, b, c)))
            assert h.run(call, operands, h.words(m, n, k, 0, 0)) == 0
            got = (c.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else c.astype(np.float32)
            half = 2.0 ** (-8 if dtype == "bfloat16" else -11)
            assert (abs(got - exact) <= half * abs(exact) * 1.01 + 1e-5 * np.sqrt(k + 1) * 4 + 1e-7).all()


@targets
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "float16"])
def test_a_packed_operand_gives_the_same_product(target: Target, dtype: str) -> None:
    if dtype == "float16" and target.vector_bytes < 32:
        pytest.skip("no F16C")
    rng = np.random.default_rng(11)
    call = h.compile_kernel(matmul.generate(dtype, 0, target), target)
    for m, n, k in ((1, 64, 9), (1, 100, 2100), (2, 17, 5), (3, 300, 40), (4, 1, 3), (7, 40, 1030), (250, 90, 20), (5, 2, 70), (3, 40, 0)):
        a = h.values(rng, (m, k), dtype)
        for pattern in ("plain", "transposed", "steps"):
            b = h.layout(rng, (k, n), dtype, pattern)
            panels = matmul.pack(b, target)
            c = np.zeros((m, n), dtype)
            operands = h.operand_words((a, a.strides), (panels, (0, 0)), (c, c.strides))
            for lo, hi in ((0, 1), (1, matmul.units(1, m, n, dtype, target))):
                assert h.run(call, operands, h.words(m, n, k, 1, 0), lo, hi) == 0
            if dtype.startswith("float"):
                exact = a.astype(np.float64) @ b.astype(np.float64)
                np.testing.assert_allclose(c, exact, rtol=2e-3 if dtype == "float16" else 1e-4, atol=1e-3 if dtype == "float16" else 1e-4)
            else:
                np.testing.assert_array_equal(c, a @ b)


def test_other_dtypes_are_refused() -> None:
    for dtype in ("complex64", "complex128"):
        with pytest.raises(Unsupported, match=dtype):
            matmul.generate(dtype, 0, h.TARGETS[0])


def test_no_symbol_outside_itself() -> None:
    for target in h.TARGETS:
        for dtype in ("float32", "int64", "bool"):
            assert h.outside_symbols(matmul.generate(dtype, 1, target), target) == set()
