"""Attention written out in plain code becomes one kernel: wherever it may, with the same results, and nothing else does."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.ops.definition import OPS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
rng = np.random.default_rng(0)
F = np.float32
ops = bcvm.ops


def rand(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(F)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def compiled(fn: Callable[..., Any], *args: Any) -> tuple[Any, list[str]]:
    """The function, called once native, and its policy_004 regions."""
    f = bcvm.jit(fn, tier="full", background=False)
    f(*args)
    f(*args)
    explanation = f.explain(*args)
    assert explanation.tier == "full", explanation
    return f, [r for r in explanation.regions if r.startswith("policy_004")]


def wide(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == F else a for a in args)


def check(fn: Callable[..., Any], *args: Any, fused: int = 1) -> Any:
    """The function fuses so many attentions, and agrees with itself in float64."""
    f, regions = compiled(fn, *args)
    assert len(regions) == fused, f.explain(*args)
    agree(fn, f, *args)
    return f


def agree(fn: Callable[..., Any], f: Any, *args: Any) -> None:
    got, want = f(*args), fn(*wide(args))
    assert got.dtype == args[0].dtype and got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    if np.isfinite(want).any():
        assert np.nanmax(np.abs(got - want)) <= 2e-6 * np.nanmax(np.abs(want))


def divided(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v


def scaled(q: Any, k: Any, v: Any) -> Any:
    return ops.softmax(0.125 * (q @ k.swapaxes(-1, -2)), -1) @ v


def bare(q: Any, k: Any, v: Any) -> Any:
    return ops.softmax(q @ k.swapaxes(-1, -2), -1) @ v


def by_steps(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) * 0.125
    scores = scores - scores.max(-1)[..., None]
    weights = np.exp(scores)
    weights = weights / np.expand_dims(weights.sum(axis=-1), -1)
    out = weights @ v
    return out


def of_the_op(q: Any, k: Any, v: Any) -> Any:
    return ops.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return ops.scaled_dot_product_attention(q, k, v, is_causal=True)


def counted(q: Any, k: Any, v: Any) -> Any:
    rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    return softmax(np.where(columns <= rows, q @ k.swapaxes(-1, -2) * 0.125, -np.inf)) @ v


@pytest.mark.parametrize("fn", [divided, scaled, bare, by_steps, of_the_op, causal, counted])
def test_spellings_without_an_operand_for_the_mask(fn: Callable[..., Any]) -> None:
    f = check(fn, rand(2, 3, 5, 8), rand(2, 3, 7, 8), rand(2, 3, 7, 6))
    for rows, keys, dims in ((1, 1, 8), (1, 300, 64), (33, 33, 16), (40, 12, 8)):
        agree(fn, f, rand(2, 1, rows, dims), rand(2, 1, keys, dims), rand(2, 1, keys, 4))
    assert f.stats()["compiles"] == 1


def test_masks() -> None:
    q, k, v = rand(2, 3, 5, 8), rand(2, 3, 7, 8), rand(2, 3, 7, 6)
    keep = rng.random((5, 7)) < 0.6
    keep[1] = False

    def where(q: Any, k: Any, v: Any, m: Any) -> Any:
        return softmax(np.where(m, q @ k.swapaxes(-1, -2) * 0.125, -np.inf)) @ v

    def unless(q: Any, k: Any, v: Any, m: Any) -> Any:
        return softmax(np.where(m, -1e9, q @ k.swapaxes(-1, -2) * 0.125)) @ v

    def penalty(q: Any, k: Any, v: Any, m: Any) -> Any:
        return softmax((1 - m) * -1e9 + q @ k.swapaxes(-1, -2) * 0.125) @ v

    def added(q: Any, k: Any, v: Any, m: Any) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) * 0.125 + m) @ v

    def of_op(q: Any, k: Any, v: Any, m: Any) -> Any:
        return ops.scaled_dot_product_attention(q, k, v, m, scale=0.3)

    def both(q: Any, k: Any, v: Any, m: Any) -> Any:
        return ops.scaled_dot_product_attention(q, k, v, m, is_causal=True)

    def two(q: Any, k: Any, v: Any, m: Any, bias: Any) -> Any:
        return softmax(np.where(m, q @ k.swapaxes(-1, -2) * 0.125 + bias, -np.inf)) @ v

    for fn in (where, unless, of_op):
        check(fn, q, k, v, keep)
    check(penalty, q, k, v, np.where(keep.any(1, keepdims=True), keep, True).astype(F))
    for shape in ((7,), (5, 1), (3, 1, 7), (2, 3, 5, 7)):
        check(added, q, k, v, rand(*shape))
        check(of_op, q, k, v, rand(*shape))
        check(both, q, k, v, rand(*shape))
    check(two, q, k, v, keep, rand(3, 5, 7))
    f = check(added, q[:, :, :1], k[:, :, :1], v, rand(3, 5, 7))  # the mask makes rows and keys of one
    agree(added, f, q, k, v, rand(1, 1, 1))


def test_an_additive_mask_of_the_lowest_number_leaves_even_weights() -> None:
    def fn(q: Any, k: Any, v: Any, m: Any) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) * 0.125 + m) @ v

    q, k, v = rand(1, 20, 8), rand(1, 9, 8), rand(1, 9, 8)
    f, regions = compiled(fn, q, k, v, np.zeros((20, 9), F))
    assert regions
    got = f(q, k, v, np.full((20, 9), np.finfo(F).min))
    np.testing.assert_allclose(got, np.broadcast_to(v.mean(1, keepdims=True), got.shape), rtol=1e-4, atol=1e-6)


def test_float64_and_matrices() -> None:
    args = tuple(a.astype(np.float64) for a in (rand(5, 8), rand(7, 8), rand(7, 6)))

    def fn(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ k.T * 0.125) @ v

    f, regions = compiled(fn, *args)
    assert len(regions) == 1
    np.testing.assert_allclose(f(*args), fn(*args), rtol=1e-12)


def test_heads_that_are_views_and_groups_of_heads() -> None:
    def split_heads(x: Any, w: Any) -> Any:
        b, s, d = x.shape
        q, k, v = np.split(x @ w, 3, -1)
        q, k, v = q.reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3), k.reshape(b, s, 4, d // 4).transpose(0, 2, 3, 1), v.reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3)
        return (softmax(q @ k / math.sqrt(d // 4)) @ v).transpose(0, 2, 1, 3).reshape(b, s, d)

    check(split_heads, rand(2, 9, 32), rand(32, 96) / 6)

    def groups(q: Any, k: Any, v: Any) -> Any:
        b, h, s, d = q.shape
        return (softmax(q.reshape(b, 2, h // 2, s, d) @ k[:, :, None].swapaxes(-1, -2) * 0.125) @ v[:, :, None]).reshape(b, h, s, v.shape[-1])

    check(groups, rand(2, 6, 5, 8), rand(2, 2, 7, 8), rand(2, 2, 7, 6))


def test_a_growing_cache() -> None:
    def step(q: Any, k: Any, v: Any, old_k: Any, old_v: Any) -> Any:
        k, v = np.concatenate([old_k, k], 1), np.concatenate([old_v, v], 1)
        return softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])) @ v

    one = rand(4, 1, 16), rand(4, 1, 16), rand(4, 1, 16)
    f = check(step, *one, rand(4, 1, 16), rand(4, 1, 16))
    assert "IN PLACE" in str(f.explain(*one, rand(4, 1, 16), rand(4, 1, 16)))
    for n in (0, 2, 15, 16, 300):
        agree(step, f, *one, rand(4, n, 16), rand(4, n, 16))
    with pytest.raises(ValueError):
        f(*one, rand(4, 3, 16), rand(4, 5, 16))
    with pytest.raises(ValueError):
        f(*one, rand(3, 3, 16), rand(3, 3, 16))


def test_caches_of_other_layouts_are_read_in_place() -> None:
    def columns(q: Any, k: Any, v: Any, old_k: Any, old_v: Any) -> Any:
        return ops.softmax(q @ np.concatenate([old_k, k], 2) * 0.25, -1) @ np.concatenate([old_v, v], 1)

    def places_first(q: Any, k: Any, v: Any, old_k: Any, old_v: Any) -> Any:
        k, v = np.concatenate([old_k, k], 0), np.concatenate([old_v, v], 0)
        return ops.softmax(q @ k.transpose(1, 2, 0) * 0.25, -1) @ v.transpose(1, 0, 2)

    for fn, k, v, shape in ((columns, rand(4, 16, 2), rand(4, 2, 8), lambda n: ((4, 16, n), (4, n, 8))), (places_first, rand(2, 4, 16), rand(2, 4, 8), lambda n: ((n, 4, 16), (n, 4, 8)))):
        old = tuple(rand(*s) for s in shape(3))
        f = check(fn, rand(4, 5, 16), k, v, *old)
        assert "IN PLACE" in str(f.explain(rand(4, 5, 16), k, v, *old))
        for n in (1, 17, 270):
            agree(fn, f, rand(4, 2, 16), k, v, *(rand(*s) for s in shape(n)))


def test_a_cache_that_is_read_elsewhere_is_joined() -> None:
    def kept(q: Any, k: Any, v: Any, old: Any) -> Any:
        k = np.concatenate([old, k], 1)
        return softmax(q @ k.transpose(0, 2, 1) * 0.25) @ k + k.sum()

    def changed(q: Any, k: Any, v: Any, old: Any) -> Any:
        k, v = np.concatenate([old, k], 1), np.concatenate([old, v], 1)
        old[...] = 0.0
        return softmax(q @ k.transpose(0, 2, 1) * 0.25) @ v

    for fn in (kept, changed):
        args = rand(2, 1, 8), rand(2, 1, 8), rand(2, 1, 8)
        f, regions = compiled(fn, *args, rand(2, 5, 8))
        assert len(regions) == 1 and "IN PLACE" not in regions[0]
        old = rand(2, 6, 8)
        np.testing.assert_allclose(f(*args, old.copy()), fn(*args, old.copy()), rtol=2e-5, atol=1e-5)


def weights_returned(q: Any, k: Any, v: Any) -> Any:
    w = softmax(q @ k.swapaxes(-1, -2) * 0.125)
    return w @ v + w.sum()


def scores_read(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) * 0.125
    return softmax(s) @ v + s.max()


def stored_between(q: Any, k: Any, v: Any) -> Any:
    k = k.copy()
    s = q @ k.swapaxes(-1, -2) * 0.125
    k[...] = 0.0
    return softmax(s) @ v + k.sum()


def over_rows(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) * 0.125
    e = np.exp(s - s.max(-2, keepdims=True))
    return e / e.sum(-2, keepdims=True) @ v


def without_the_largest(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(q @ k.swapaxes(-1, -2) * 0.125)
    return e / e.sum(-1, keepdims=True) @ v


def scaled_after(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.swapaxes(-1, -2) * np.arange(1, 8, dtype=F)) @ v


@pytest.mark.parametrize("fn", [weights_returned, scores_read, stored_between, over_rows, without_the_largest, scaled_after])
def test_what_is_no_attention_stays(fn: Callable[..., Any]) -> None:
    args = rand(2, 5, 8), rand(2, 7, 8), rand(2, 7, 6)
    f, regions = compiled(fn, *args)
    assert not regions, f.explain(*args)
    np.testing.assert_allclose(f(*args), fn(*args), rtol=2e-5, atol=1e-5)


def test_two_of_them_in_one_function() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        first = softmax(q @ k.swapaxes(-1, -2) * 0.125) @ v
        return softmax(first @ k.swapaxes(-1, -2)) @ v

    check(fn, rand(2, 5, 8), rand(2, 7, 8), rand(2, 7, 8), fused=2)


def test_no_keys_raises_as_the_plain_form_does() -> None:
    f = check(divided, rand(1, 5, 8), rand(1, 7, 8), rand(1, 7, 6))
    for fn in (divided, f):
        with pytest.raises(ValueError, match="zero-size array"):
            fn(rand(1, 5, 8), rand(1, 0, 8), rand(1, 0, 6))
    assert f(rand(1, 0, 8), rand(1, 7, 8), rand(1, 7, 6)).shape == (1, 0, 6)
    assert f(rand(0, 5, 8), rand(0, 7, 8), rand(0, 7, 6)).shape == (0, 5, 6)
    assert np.isnan(f(rand(1, 5, 0), rand(1, 7, 0), rand(1, 7, 6))).all(), "0 / sqrt(0)"


def test_sizes_that_do_not_fit_raise() -> None:
    f = check(divided, rand(2, 5, 8), rand(2, 7, 8), rand(2, 7, 6))
    for shapes in (((2, 5, 8), (2, 7, 9), (2, 7, 6)), ((2, 5, 8), (2, 7, 8), (2, 6, 6)), ((2, 5, 8), (3, 7, 8), (3, 7, 6))):
        with pytest.raises(ValueError):
            f(*(rand(*s) for s in shapes))


def test_the_samples_of_the_op() -> None:
    op = OPS["scaled_dot_product_attention"]
    for dtype in ("float32", "float64"):
        for operands, attrs in op.samples(np.random.default_rng(1), dtype):
            def fn(*arrays: Any, causal: bool = attrs["causal"], scale: Any = attrs["scale"]) -> Any:
                return ops.scaled_dot_product_attention(*arrays, is_causal=causal, scale=scale)

            exact = op.reference(*operands, **attrs)
            got = ops.scaled_dot_product_attention(*operands, is_causal=attrs["causal"], scale=attrs["scale"])
            np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-6)


def test_fusion_can_be_turned_off() -> None:
    args = rand(2, 5, 8), rand(2, 7, 8), rand(2, 7, 6)
    f = bcvm.jit(divided, tier="full", background=False, fusion=False)
    f(*args)
    np.testing.assert_allclose(f(*args), divided(*args), rtol=2e-5, atol=1e-6)
    assert not any("policy_004" in r for r in f.explain(*args).regions)


def test_the_decision_is_shown() -> None:
    _, regions = compiled(divided, rand(2, 5, 8), rand(2, 7, 8), rand(2, 7, 6))
    assert regions[0].startswith("policy_004 [FUSED 8 ops]") and regions[0].endswith("matmul truediv max sub exp sum truediv matmul")
