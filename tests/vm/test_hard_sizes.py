"""Sizes, numbers and flags that change from call to call never compile anew; calls of every form stay native."""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.errors import ShapeError
from tests.vm.hard import NATIVE_TIERS, TIERS, all_native, outcome, same, settle, warm


def test_rnn_over_40_lengths_compiles_once() -> None:
    def plain(x, w, u, b):
        h = np.zeros((x.shape[1], w.shape[0]), np.float32)
        out = h
        for t in range(x.shape[0]):
            h = np.tanh(x[t] @ u + h @ w + b)
            out = out + h
        return h, out

    rng = np.random.default_rng(0)
    w, u, b = (rng.standard_normal(s).astype(np.float32) * 0.3 for s in ((8, 8), (4, 8), (8,)))
    f = bcvm.jit(plain, tier="full")
    for n in np.linspace(1, 200, 40).astype(int):
        x = rng.standard_normal((n, 3, 4)).astype(np.float32)
        got, want = f(x, w, u, b), plain(x, w, u, b)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-3, atol=1e-3)
    all_native(f, 1)


@NATIVE_TIERS
def test_every_combination_of_sizes_0_1_5(tier: str) -> None:
    def plain(a, b, c, d):
        return (a + b) * 2 - c, (a * d).sum() + d.sum()

    f = bcvm.jit(plain, tier=tier)
    warm(f, *(np.ones(2),) * 4)
    for sizes in itertools.product((0, 1, 5), repeat=4):
        args = [np.arange(n, dtype=np.float64) + i for i, n in enumerate(sizes)]
        got, want = outcome(f, *args), outcome(plain, *args)
        assert got[0] == want[0], (sizes, got, want)
        if want[0] == "value":
            same(got[1], want[1])
        else:
            assert got[1:] == want[1:], sizes
    settle()
    stats = f.stats()
    assert stats["specialisations"] == 1 and stats["compiles"] == 1, stats


def test_growing_prefix_compiles_once() -> None:
    def plain(x, t):
        return x[:, :t].sum() + x[0, t]

    f = bcvm.jit(plain, tier="full")
    x = np.arange(3 * 201, dtype=np.float64).reshape(3, 201)
    for t in range(201):
        same(f(x, t), plain(x, t))
    all_native(f, 1)
    with pytest.raises(IndexError, match="index 201 is out of bounds for axis 1 with size 201"):
        f(x, 201)
    same(f(x, -1), plain(x, -1))
    assert f.stats()["compiles"] == 1


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))), ids=str)
def test_broadcast_decides_at_run_time(order: tuple[int, ...]) -> None:
    f = bcvm.jit(lambda a, b: a + b, tier="full")
    b = np.arange(6.0).reshape(3, 2)
    for n in order * 2:
        a = np.arange(float(n))
        if n == 3:
            with pytest.raises(ValueError, match=r"operands could not be broadcast together with shapes \(3,\) \(3,2\)"):
                f(a, b)
        else:
            same(f(a, b), a + b)
    stats = f.stats()
    assert stats["compiles"] == 1 and stats["specialisations"] == 1, stats


def test_64_shapes_stay_native() -> None:
    def plain(x, y):
        return np.maximum(x @ y, 0) + x.mean(axis=1)[:, None]

    f = bcvm.jit(plain, tier="full")
    rng = np.random.default_rng(0)
    for i in range(64):
        x, y = rng.standard_normal((1 + i % 8, 3 + i)), rng.standard_normal((3 + i, 1 + i // 8))
        np.testing.assert_allclose(f(x, y), plain(x, y), rtol=1e-10, atol=1e-12)
    all_native(f, 1)


@pytest.mark.parametrize("values", [range(-500, 500), [i / 7 for i in range(-500, 500)], [True, False] * 500], ids=["int", "float", "bool"])
def test_1000_numbers_compile_once(values: Any) -> None:
    def plain(x, v):
        y = x * v + (1 if v > 2 else 0)
        if v:
            y = y - v
        return y, v * 2, v + 1.5, -v

    f = bcvm.jit(plain, tier="full")
    x = np.arange(3.0)
    for v in values:
        same(f(x, v), plain(x, v))
    all_native(f, 1)


def test_numbers_as_axis_and_count() -> None:
    def plain(x, axis, n):
        total = x.sum(axis=axis)
        for _ in range(n):
            total = total + 1
        return total

    f = bcvm.jit(plain, tier="full")
    x = np.arange(24.0).reshape(2, 3, 4)
    for _ in range(2):
        for axis in (0, 1, 2, -1, -2, -3):
            for n in (0, 1, 7, 100):
                same(f(x, axis, n), plain(x, axis, n))
    stats = f.stats()
    assert stats["specialisations"] <= 8 and not stats["errors"], stats


def test_two_values_of_a_flag_share_one_compilation() -> None:
    def plain(x, training=True, scale=2.0):
        if training:
            y = x * scale
        else:
            y = x + scale
        return y.sum() if not training else y.mean()

    f = bcvm.jit(plain, tier="full")
    x = np.arange(5.0)
    for flag in (True, False, True, False):
        same(f(x, flag), plain(x, flag))
    all_native(f, 1)
    for flag in (True, False):
        same(f(x, training=flag), plain(x, training=flag))
    same(f(x), plain(x))
    all_native(f, 3)


def test_select_with_number_and_array_conditions() -> None:
    def plain(c, a, b):
        return np.where(c, a, b), np.where(a > b, a, 0.0)

    f = bcvm.jit(plain, tier="full")
    a, b = np.arange(6.0), np.full(6, 2.5)
    for c in (True, False, a > 3, np.array([True]), np.bool_(True), 0, 2, 1.5, np.zeros((2, 1), bool), a, np.array(True)):
        same(f(c, a, b), plain(c, a, b))
    assert not f.stats()["errors"]


def choose(x, mode=None, w=None, s="a"):
    if mode is None:
        y = x
    elif mode == "twice":
        y = x * 2
    else:
        y = x * mode
    if w is not None:
        y = y + w
    return y if s == "a" else -y


@NATIVE_TIERS
def test_none_defaults_and_strings(tier: str) -> None:
    f = bcvm.jit(choose, tier=tier)
    x = np.arange(3.0)
    calls: list[tuple[Any, ...]] = [(x,), (x, None), (x, "twice"), (x, 3), (x, 3, x), (x, None, x), (x, "twice", None, "b")]
    for _ in range(3):
        for args in calls:
            same(f(*args), choose(*args))
        settle()
    stats = f.stats()
    assert stats["specialisations"] == len(calls) and not stats["exits"], stats
    native = stats["native"]
    for args in calls:
        same(f(*args), choose(*args))
    assert f.stats()["native"] == native + len(calls)


def gather(x, /, y=2, *rest, k=3, flag: bool = False, **more):
    total = x * y + k
    for r in rest:
        total = total + r
    for name in more:
        total = total * more[name]
    return -total if flag else total


@NATIVE_TIERS
def test_calls_of_every_form_are_native(tier: str) -> None:
    f = bcvm.jit(gather, tier=tier)
    x = np.arange(3.0)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}), ((x, 3), {}), ((x,), {"y": 4}), ((x, 3, x, 1), {}), ((x,), {"k": x}), ((x, 1), {"flag": True, "a": 2, "b": x}), ((x, 1, 2), {"a": 2.5})]
    for args, kwargs in calls:
        for _ in range(2):
            same(f(*args, **kwargs), gather(*args, **kwargs))
            settle()
    before = f.stats()
    for _ in range(3):
        for args, kwargs in calls:
            same(f(*args, **kwargs), gather(*args, **kwargs))
            same(f(*args, **dict(reversed(kwargs.items()))), gather(*args, **dict(reversed(kwargs.items())))) if "b" not in kwargs else None
    after = f.stats()
    assert after["native"] - before["native"] >= 3 * len(calls) and not after["exits"] and not after["errors"], after
    for bad, kwargs in (((), {}), ((x, 1), {"y": 2}), ((), {"x": x})):
        got, want = outcome(f, *bad, **kwargs), outcome(gather, *bad, **kwargs)
        assert got == want


@NATIVE_TIERS
def test_nested_containers_as_arguments(tier: str) -> None:
    def plain(pair, items, table):
        a, (b, c) = pair
        total = a * b + c
        for i in items:
            total = total + i[0] * i[1]
        for name in table:
            total = total * table[name]["w"]
        return total, len(items), [total, a]

    f = bcvm.jit(plain, tier=tier)
    x = np.arange(3.0)

    def args(n: int, m: int) -> tuple[Any, ...]:
        return (x, (2, x + n)), [(x + i, i) for i in range(n)], {f"k{j}": {"w": x + j} for j in range(m)}

    warm(f, *args(2, 1))
    before = f.stats()
    for _ in range(5):
        same(f(*args(2, 1)), plain(*args(2, 1)))
    assert f.stats()["native"] == before["native"] + 5
    for n in range(12):
        same(f(*args(n, n % 3)), plain(*args(n, n % 3)))
        settle()
        same(f(*args(n, n % 3)), plain(*args(n, n % 3)))
    stats = f.stats()
    assert stats["specialisations"] <= 8 and not stats["errors"], stats


@NATIVE_TIERS
def test_list_that_grows_while_it_is_kept_in_an_object(tier: str) -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys: list[Any] = []

    def plain(cache, x):
        cache.keys.append(x)
        total = x * 0
        for k in cache.keys:
            total = total + k
        return total

    f = bcvm.jit(plain, tier=tier)
    mine, theirs = Cache(), Cache()
    for i in range(30):
        x = np.arange(3.0) + i
        same(f(mine, x), plain(theirs, x))
        settle()
    assert len(mine.keys) == 30


def test_growing_key_value_cache_compiles_once() -> None:
    def plain(q, cache, k):
        cache = np.concatenate([cache, k[None]])
        s = cache @ q
        p = np.exp(s - s.max())
        return cache, (p / p.sum()) @ cache

    f = bcvm.jit(plain, tier="full")
    rng = np.random.default_rng(1)
    mine = theirs = np.zeros((0, 4))
    for _ in range(60):
        q, k = rng.standard_normal(4), rng.standard_normal(4)
        mine, a = f(q, mine, k)
        theirs, b = plain(q, theirs, k)
        np.testing.assert_allclose(mine, theirs)
        np.testing.assert_allclose(a, b, rtol=1e-10)
    all_native(f, 1)


# -- shape hints

def hinted(x: bcvm.Tensor["B, *, 4"], y: bcvm.Tensor["B, 4"], n: int = 0) -> bcvm.Tensor["B, 4"]:  # noqa: F722, F821
    z = x.sum(axis=1) + y
    if n:
        z = z[:n]
    return z


@TIERS
def test_hints_hold_on_every_tier_also_after_native_code_exists(tier: str) -> None:
    f = bcvm.jit(hinted, tier=tier)
    x, y = np.ones((2, 3, 4)), np.ones((2, 4))

    def refused(*args: Any, words: tuple[str, ...]) -> None:
        with pytest.raises(ShapeError) as e:
            f(*args)
        assert isinstance(e.value, ValueError)
        for word in words:
            assert word in str(e.value), str(e.value)

    for _ in range(3):
        for b, s in ((2, 3), (0, 3), (5, 0), (1, 1)):
            same(f(np.ones((b, s, 4)), np.ones((b, 4))), np.full((b, 4), 1.0 + s))
        refused(np.ones((2, 3, 5)), y, words=("x", "4", "(2, 3, 5)"))
        refused(np.ones((2, 4)), y, words=("x", "(2, 4)"))
        refused(x, np.ones((3, 4)), words=("y", "(3, 4)"))
        refused(x, np.ones(4), words=("y", "(4,)"))
        refused(3.0, y, words=("x", "float"))
        refused(x, y, 1, words=("return", "(1, 4)"))
        settle()
    assert not f.stats()["errors"]


@TIERS
def test_hints_on_an_inlined_function(tier: str) -> None:
    def inner(x: bcvm.Tensor["N, N"]) -> bcvm.Tensor["N"]:  # noqa: F821
        return x.sum(axis=0)

    def plain(x, y):
        return inner(x) + inner(y).sum()

    f = bcvm.jit(plain, tier=tier)
    for _ in range(3):
        same(f(np.ones((3, 3)), np.ones((2, 2))), np.full(3, 7.0))
        settle()
    assert not f.stats()["errors"]


@TIERS
def test_hint_on_the_result_holds_after_a_callback(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def f(x: bcvm.Tensor["B, 4"], n, mask: bcvm.Tensor["B"] | None = None) -> bcvm.Tensor["B, 4"]:  # noqa: F821
        y = x * 2
        try:
            m = n + 0
        finally:
            pass
        return y[:m] + 1

    for _ in range(4):
        for b in (3, 1, 5):
            same(f(np.ones((b, 4)), b), np.full((b, 4), 3.0))
            same(f(np.ones((b, 4)), b, np.ones(b)), np.full((b, 4), 3.0))
        with pytest.raises(ShapeError, match=r"result 'return' has shape \(2, 4\).*B is 3 \(argument 'x', dim 0\)"):
            f(np.ones((3, 4)), 2)
        with pytest.raises(ShapeError, match="mask"):
            f(np.ones((3, 4)), 3, np.ones(2))
        settle()
    assert not f.stats()["errors"]
