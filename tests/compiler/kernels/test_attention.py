"""The attention kernel against NumPy in float64, over sizes, strides, masks, dtypes and targets."""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import attention  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))
BOUND = {"float32": 2e-6, "float64": 1e-14}
Masks = tuple[str, ...]


def run(target: Target, q: Any, k: Any, v: Any, scale: float, masks: Masks = (), more: Sequence[Any] = (), out: Any = None, lo: int = 0, hi: int = -1,
        divide: bool = False, single: bool = False) -> np.ndarray:
    """The kernel on q [..., L, E], k [..., S, E], v [..., S, V]: leading dims broadcast. more: what the masks need."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    rank, (length, dims), (keys, width) = len(batch), q.shape[-2:], v.shape[-2:]
    if out is None:
        out = np.full((*batch, length, width), 7, q.dtype)
    none = (0,) * (rank + 2)

    def matrix(a: Any, shape: tuple[int, int]) -> tuple[Any, tuple[int, ...]]:
        return a, np.broadcast_to(a, (*batch, *shape)).strides

    operands = [matrix(q, (length, dims)), matrix(k.swapaxes(-1, -2), (dims, keys)), matrix(v, (keys, width)), (np.array(scale, q.dtype), none)]
    operands += [matrix(a, (length, keys)) if a.ndim else (a, none) for a in more]
    words = h.operand_words(*operands, (out, out.strides))
    function = h.compile_kernel(attention.generate(str(q.dtype), rank, masks, target, single=single), target)
    assert h.run(function, words, h.words(*batch, length, keys, dims, width, divide), lo, hi) == 0
    return out


def expected(q: Any, k: Any, v: Any, scale: float, masks: Masks = (), more: Sequence[Any] = ()) -> np.ndarray:
    scores = np.matmul(q.astype(np.float64), k.swapaxes(-1, -2).astype(np.float64)) * float(scale)
    left = iter(more)
    for kind in masks:
        if kind == "causal":
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        elif kind == "add":
            scores = scores + next(left).astype(np.float64)
        else:
            condition, number = next(left), float(next(left))
            scores = np.where(condition if kind == "keep" else ~condition, scores, number)
    if not scores.shape[-1]:
        return np.zeros((*np.broadcast_shapes(scores.shape[:-2], v.shape[:-2]), q.shape[-2], v.shape[-1]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.matmul(weights / weights.sum(-1, keepdims=True), v.astype(np.float64))


def check(target: Target, q: Any, k: Any, v: Any, scale: float, masks: Masks = (), more: Sequence[Any] = (), out: Any = None) -> None:
    want = expected(q, k, v, scale, masks, more)
    for single in (False, True)[:1 + (q.shape[-2] == 1)]:
        got = run(target, q, k, v, scale, masks, more, out, single=single)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        real = ~np.isnan(want)
        if real.any():
            size = np.abs(want[real]).max()
            assert np.abs(got[real] - want[real]).max() <= BOUND[str(q.dtype)] * size


def masked(rng: np.random.Generator, kinds: Masks, batch: tuple[int, ...], rows: int, keys: int, dtype: str) -> list[np.ndarray]:
    """Operands of these masks, some of whose dims are broadcast."""
    more: list[np.ndarray] = []
    for kind in kinds:
        if kind == "causal":
            continue
        shape = tuple(n if rng.random() < 0.6 else 1 for n in (*batch, rows, keys))
        pattern = str(rng.choice(("plain", "transposed", "slice", "steps", "reversed")))
        if kind == "add":
            more.append(h.layout(rng, shape, dtype, pattern))
        else:
            more += [h.layout(rng, shape, "bool", pattern), np.array(rng.choice([-np.inf, -1e9, np.finfo(dtype).min, 0.5]), dtype)]
    return more


KINDS: list[Masks] = [(), ("causal",), ("add",), ("keep",), ("drop",), ("causal", "add"), ("add", "keep")]


@targets
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("masks", KINDS, ids=lambda m: "+".join(m) or "plain")
def test_any_size_and_layout(target: Target, dtype: str, masks: Masks) -> None:
    rng = np.random.default_rng(1)
    for _ in range(25):
        rows, keys = (int(s) for s in rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 65], 2))
        dims, width = (int(s) for s in rng.choice([1, 3, 8, 16, 20, 32, 64, 72], 2))
        batch = (int(rng.choice([1, 2])), int(rng.choice([1, 3])))
        q, k, v = (h.layout(rng, (*(n if rng.random() < 0.7 else 1 for n in batch), *shape), dtype, str(rng.choice(h.PATTERNS)))
                   for shape in ((rows, dims), (keys, dims), (keys, width)))
        batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        out = h.layout(rng, (*batch, rows, width), dtype, str(rng.choice(("plain", "plain", "transposed", "steps", "slice"))))
        check(target, q, k, v, float(rng.choice([0.25, -0.3, 1.5])), masks, masked(rng, masks, batch, rows, keys, dtype), out)


@targets
@pytest.mark.parametrize("masks", KINDS, ids=lambda m: "+".join(m) or "plain")
def test_more_keys_than_one_strip(target: Target, masks: Masks) -> None:
    """Each strip may bring a larger score: what was added up before is rescaled."""
    rng = np.random.default_rng(2)
    for rows, keys in ((1, 700), (3, 257), (5, 1030), (40, 1100), (33, 513), (300, 600)):
        q, v = h.values(rng, (1, rows, 16), "float32"), h.values(rng, (1, keys, 16), "float32")
        k = h.values(rng, (1, keys, 16), "float32") * np.linspace(0.1, 3, keys, dtype=np.float32)[:, None]
        check(target, q, k, v, 0.5, masks, masked(rng, masks, (1,), rows, keys, "float32"))


def test_usual_sizes_are_accurate() -> None:
    rng = np.random.default_rng(3)
    for rows, keys in ((1, 256), (1, 2048), (16, 16), (128, 128), (512, 512)):
        q, k, v = (h.values(rng, (2, n, 64), "float32") for n in (rows, keys, keys))
        got, want = run(h.TARGETS[0], q, k, v, 0.125), expected(q, k, v, 0.125)
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@targets
@pytest.mark.parametrize("masks", [(), ("causal",), ("add",)])
def test_the_result_does_not_depend_on_the_partition(target: Target, masks: Masks) -> None:
    rng = np.random.default_rng(4)
    for rows, keys in ((1, 40), (7, 9), (37, 300), (100, 70)):
        q, k, v = (h.values(rng, (2, 3, n, 24), "float32") for n in (rows, keys, keys))
        more = [h.values(rng, (rows, keys), "float32")] if masks == ("add",) else []
        whole = run(target, q, k, v, 0.2, masks, more)
        units = attention.units(6, rows, "float32", target)
        parts = np.full_like(whole, np.nan)
        for unit in rng.permutation(units):
            run(target, q, k, v, 0.2, masks, more, parts, int(unit), int(unit) + 1)
        np.testing.assert_array_equal(whole, parts)


@targets
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_rows_that_are_no_numbers(target: Target, rows: int) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (h.values(rng, (1, n, 16), "float32") for n in (rows, 30, 30))
    lowest = np.array(-np.inf, np.float32)
    keep = rng.random((1, rows, 30)) < 0.5
    keep[0, 0] = False
    check(target, q, k, v, 0.25, ("keep",), [keep, lowest])
    check(target, q, k, v, 0.25, ("keep",), [keep, np.array(np.finfo(np.float32).min)])
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = q.copy()
        spoilt[0, -1, 3] = bad
        check(target, spoilt, k, v, 0.25)
        spoilt = k.copy()
        spoilt[0, 7] = bad
        check(target, q, spoilt, v, 0.25)
        spoilt = v.copy()
        spoilt[0, 29, 2] = bad
        got, want = run(target, q, k, spoilt, 0.25, ("causal",)), expected(q, k, spoilt, 0.25, ("causal",))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        check(target, q, k, v, bad)
    check(target, q * 1e4, k, v, 10.0)


@targets
def test_empty_sizes(target: Target) -> None:
    for rows, keys, dims, width in ((0, 4, 8, 8), (1, 0, 8, 8), (3, 0, 8, 8), (40, 0, 8, 8), (1, 5, 0, 8), (3, 5, 0, 8), (40, 5, 0, 8), (1, 5, 8, 0), (3, 5, 8, 0)):
        check(target, np.ones((2, rows, dims), np.float32), np.ones((2, keys, dims), np.float32), np.ones((2, keys, width), np.float32), 0.5)
    for rows in (2, 40):
        q, k = np.ones((1, rows, 0), np.float32), np.ones((1, 3, 0), np.float32)
        assert np.isnan(run(target, q, k, np.ones((1, 3, 4), np.float32), np.inf)).all(), "0 * inf"
    assert run(target, np.ones((0, 3, 4), np.float32), np.ones((0, 5, 4), np.float32), np.ones((0, 5, 4), np.float32), 1).size == 0


@targets
def test_the_scale_may_be_a_divisor(target: Target) -> None:
    rng = np.random.default_rng(6)
    q, k, v = (h.values(rng, (1, n, 16), "float32") for n in (20, 30, 30))
    np.testing.assert_array_equal(run(target, q, k, v, 4.0, divide=True), run(target, q, k, v, 0.25))


@targets
def test_keys_and_values_in_two_parts(target: Target) -> None:
    """As if they lay in one piece: a strip may take from both, and keys may be parted elsewhere than values."""
    rng = np.random.default_rng(8)
    functions = [h.compile_kernel(attention.generate("float32", 1, (), target, True, single), target) for single in (False, True)]
    for rows, keys in ((1, 1), (1, 40), (1, 256), (3, 300), (4, 262), (7, 600), (16, 30), (40, 530), (45, 33)):
        for split, v_split in ((keys - 1, keys - 1), (0, keys), (keys // 2, keys // 3), (min(255, keys), min(5, keys))):
            dims, width = (int(n) for n in rng.choice([8, 16, 20, 64], 2))
            q, k, v = (h.values(rng, (2, *s), "float32") for s in ((rows, dims), (keys, dims), (keys, width)))
            turned = rng.random() < 0.3     # a cache that holds keys as columns
            parts = [h.guarded(x.swapaxes(-1, -2).copy()) if turned else h.guarded(x.copy()).swapaxes(-1, -2) for x in (k[:, :split], k[:, split:])]
            values = [h.guarded(x.copy()) for x in (v[:, :v_split], v[:, v_split:])]
            out = np.full((2, rows, width), 7, np.float32)
            operands = [(a, a.strides) for a in (q, parts[0], values[0])] + [(np.array(0.5, np.float32), (0, 0, 0))] + [(a, a.strides) for a in (parts[1], values[1], out)]
            want = expected(q, k, v, 0.5)
            for function in functions[:1 + (rows == 1)]:
                assert h.run(function, h.operand_words(*operands), h.words(2, rows, v_split, dims, width, 0, split, keys - v_split)) == 0
                assert np.abs(out - want).max() <= 2e-6 * np.abs(want).max()


@targets
def test_nothing_outside_the_operands_is_read(target: Target) -> None:
    """All operands end where memory ends."""
    rng = np.random.default_rng(7)
    for rows, keys, dims, width in ((1, 5, 20, 12), (3, 33, 16, 16), (6, 17, 7, 9), (21, 35, 24, 40), (40, 9, 5, 3)):
        q, k, v = (h.guarded(h.values(rng, (1, *s), "float32")) for s in ((rows, dims), (keys, dims), (keys, width)))
        check(target, q, k, v, 0.3)
        check(target, q, h.guarded(k.swapaxes(-1, -2).copy()).swapaxes(-1, -2), v, 0.3, ("keep",), [h.guarded(rng.random((rows, keys)) < 0.7), np.array(-np.inf, np.float32)])
        check(target, q, k, v, 0.3, ("add",), [h.guarded(h.values(rng, (rows, keys), "float32"))], h.guarded(np.zeros((1, rows, width), np.float32)))


@targets
def test_without_memory_the_kernel_says_so(target: Target) -> None:
    q = np.ones((1, 3, 16), np.float32)
    words = h.operand_words(*((a, a.strides) for a in (q, q.swapaxes(-1, -2), q)), (np.ones(1, np.float32), (0, 0, 0)), (q.copy(), q.strides))
    function = h.compile_kernel(attention.generate("float32", 1, (), target), target)
    h.refuse[0] = True
    try:
        assert h.run(function, words, h.words(1, 3, 3, 16, 16, 0)) == attention.NO_MEMORY
    finally:
        h.refuse[0] = False


@targets
def test_the_object_code_stands_alone(target: Target) -> None:
    for masks in KINDS:
        assert not h.outside_symbols(attention.generate("float32", 2, masks, target), target)
    assert not h.outside_symbols(attention.generate("float64", 2, (), target, True), target)


def test_other_dtypes_have_no_kernel() -> None:
    with pytest.raises(Unsupported, match="int32"):
        attention.generate("int32", 2, (), h.TARGETS[0])
    with pytest.raises(Unsupported, match="masks"):
        attention.generate("float32", 2, ("add",), h.TARGETS[0], True)
