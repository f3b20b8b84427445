"""Who owns which memory: overlapping arguments, results that are kept, identity, code and memory that go back."""
from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.compiler import loader
from bcvm.compiler.table import table
from tests.vm.hard import NATIVE_TIERS, TIERS, all_native, same, settle


def shift_right(x):
    x[1:] = x[:-1]
    return x


def shift_left(x):
    x[:-1] = x[1:]
    return x


def reverse(x):
    x[:] = x[::-1]
    return x


def smear(x):
    x[1:] += x[:-1]
    return x


def add_reversed(x):
    x += x[::-1]
    return x


def transpose(x):
    x[:] = x.T
    return x


def add_transposed(x):
    x += x.T
    return x


def row_to_all(x):
    x[:] = x[0] * 2
    return x


def swap_halves(x):
    n = x.shape[0] // 2
    t = x[:n] + 0
    x[:n] = x[n:2 * n]
    x[n:2 * n] = t
    return x


def scaled_shift(x):
    x[1:] = x[:-1] * 2 + x[1:]
    return x


def view_then_store(x):
    y = x[1:]
    z = y * 2
    x[0] = 100.0
    x[1:] = z + x[0]
    return y


PATTERNS = [shift_right, shift_left, reverse, smear, add_reversed, swap_halves, scaled_shift, view_then_store]
SQUARE = [transpose, add_transposed, row_to_all]


@TIERS
@pytest.mark.parametrize("fn", PATTERNS, ids=lambda f: f.__name__)
def test_stores_that_overlap_what_is_read(fn: Any, tier: str) -> None:
    f = bcvm.jit(fn, tier=tier)
    for _ in range(3):
        for n in (0, 1, 2, 5, 32, 33, 200, 1000):
            if n == 0 and fn in (view_then_store,):
                continue
            mine, theirs = np.arange(float(n)), np.arange(float(n))
            got, want = f(mine), fn(theirs)
            same(got, want)
            same(mine, theirs)
            assert got is mine or np.shares_memory(got, mine) or n < 2
        settle()


@TIERS
@pytest.mark.parametrize("fn", SQUARE, ids=lambda f: f.__name__)
def test_stores_of_transposed_views(fn: Any, tier: str) -> None:
    f = bcvm.jit(fn, tier=tier)
    for _ in range(3):
        for n in (1, 2, 5, 17, 40):
            mine, theirs = np.arange(float(n * n)).reshape(n, n), np.arange(float(n * n)).reshape(n, n)
            same(f(mine), fn(theirs))
            same(mine, theirs)
        settle()


@TIERS
def test_two_arguments_that_share_memory(tier: str) -> None:
    def plain(a, b):
        a += b
        b[0] = 7
        c = a * 2
        a *= b
        return c + b, a

    f = bcvm.jit(plain, tier=tier)
    pairs = [lambda x: (x, x), lambda x: (x[1:], x[:-1]), lambda x: (x[:-1], x[1:]), lambda x: (x, x[::-1]), lambda x: (x[::2], x[1::2]), lambda x: (x[:20], x[30:50]),
             lambda x: (x.reshape(4, 20), x[:20]), lambda x: (x.reshape(4, 20)[1:], x.reshape(4, 20)[:-1])]
    for _ in range(3):
        for pair in pairs:
            mine, theirs = np.arange(80.0), np.arange(80.0)
            same(f(*pair(mine)), plain(*pair(theirs)))
            same(mine, theirs)
        settle()


@TIERS
def test_strided_negative_broadcast_and_readonly_arguments(tier: str) -> None:
    def plain(x):
        return (x * 2 + 1).sum(axis=0), x[::-1]

    def store(x):
        x[0] = 5
        return x

    f, g = bcvm.jit(plain, tier=tier), bcvm.jit(store, tier=tier)
    base = np.arange(60.0)
    arrays = [base, base[::3], base[::-1], base[5:50:7], np.broadcast_to(np.array(3.0), (7,)), base[:0], base[40:2:-5]]
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    for _ in range(3):
        for x in [*arrays, frozen]:
            same(f(x), plain(x))
        same(g(np.arange(3.0)), np.array([5.0, 1, 2]))
        for bad in (frozen, arrays[4]):
            with pytest.raises(ValueError, match="read-only"):
                g(bad)
        settle()


# -- results

@NATIVE_TIERS
def test_results_that_are_kept_do_not_change(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def f(x, k):
        y = x * k
        return y, y + 1, (y * 2).sum(), np.tanh(y)[1:]

    kept, copies = [], []
    for i in range(60):
        n = (32, 1, 32, 4000, 1)[i % 5]
        x = np.full(n, 1.0)
        out = f(x, float(i))
        assert not any(isinstance(o, np.ndarray) and np.shares_memory(o, x) for o in out)
        kept.append(out)
        copies.append([np.copy(o) for o in out])
        if i < 3:
            settle()
    for out, copy in zip(kept, copies):
        for o, c in zip(out, copy):
            np.testing.assert_array_equal(o, c)
    arrays = [o for out in kept for o in out if isinstance(o, np.ndarray) and o.size]
    addresses = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays)
    assert all(end <= start for (_, end), (start, _) in zip(addresses, addresses[1:]))


@TIERS
def test_identity_of_what_is_returned(tier: str) -> None:
    def plain(x, items, o):
        y = x + 1
        return x, x, y, y, x[1:], items, o, [x, y], {"x": x}

    f = bcvm.jit(plain, tier=tier)
    for _ in range(4):
        x, items, o = np.arange(4.0), [1, np.ones(2)], object()
        a, b, c, d, view, it, oo, pair, table_ = f(x, items, o)
        assert a is x and b is x and c is d and c is not x
        assert view.base is x and np.shares_memory(view, x)
        assert it is items and oo is o and pair[0] is x and pair[1] is c and table_["x"] is x
        settle()
    view[0] = 99
    assert x[1] == 99


@TIERS
def test_the_same_list_twice_is_one_list(tier: str) -> None:
    def plain(x):
        made = [x, x * 2]
        pair = (made, made)
        return pair, made, {"a": made}

    f = bcvm.jit(plain, tier=tier)
    for _ in range(3):
        pair, made, d = f(np.arange(3.0))
        assert pair[0] is pair[1] is made is d["a"]
        assert f(np.arange(3.0))[1] is not made
        settle()


@TIERS
def test_methods_that_may_return_a_view_or_the_array_itself(tier: str) -> None:
    def plain(x, n):
        return x.reshape(n, -1), x.ravel(), x.astype(np.float64), x.astype(np.float64, copy=False), x.copy(), x.T, np.asarray(x), x[...], x[:, None], +x, x.transpose(), x.squeeze()

    f = bcvm.jit(plain, tier=tier)
    for _ in range(3):
        for x in (np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(4, 3).T, np.arange(24.0).reshape(3, 8)[:, 1:6:3], np.ones((1, 4))):
            got, want = f(x, 2), plain(x, 2)
            same(got, want)
            for i, (g, w) in enumerate(zip(got, want)):
                assert np.shares_memory(g, x) == np.shares_memory(w, x), i
                assert (g is x) == (w is x), i
        settle()


RESHAPES = [((3, 8), (slice(None), slice(None, None, 2)), (2, 6)), ((3, 8), (slice(None), slice(None, None, 2)), (3, 2, 2)), ((3, 8), (slice(None), slice(None, None, 2)), (3, 1, 4, 1)),
            ((6, 4), (slice(None, None, 2),), (3, 2, 2)), ((6, 4), (slice(None, None, 2),), (12,)), ((2, 3, 4), (slice(None), slice(1, 3)), (2, 8)), ((2, 3, 4), (slice(None), slice(1, 3)), (4, 4)),
            ((24,), (slice(None, None, -3),), (2, 2, 2)), ((24,), (slice(1, None, 2),), (3, 4)), ((4, 1, 6), (slice(None), slice(None), slice(None, None, -1)), (2, 2, 6)),
            ((4, 0, 6), (slice(None, None, 2),), (0, 3)), ((5, 4), (slice(2, 3), slice(None, None, 2)), (2,)), ((5, 4), (slice(2, 3), slice(None, None, 2)), (1, 1, 2, 1)),
            ((2, 3, 4), "T", (4, 3, 2)), ((2, 3, 4), "T", (2, 2, 3, 2)), ((2, 3, 4), "T", (12, 2)), ((2, 6), "T", (2, 3, 2)), ((1, 6), "T", (2, 3)), ((3, 1, 2), "T", (2, 3))]


@TIERS
def test_a_reshape_is_a_view_where_strides_allow(tier: str) -> None:
    f = bcvm.jit(lambda x, n: (x.reshape(n), x.ravel(), x.reshape(n) + 1), tier=tier)
    for n, (shape, index, sizes) in enumerate(RESHAPES * 2):
        whole = np.arange(float(np.prod(shape))).reshape(shape)
        x = whole.T if index == "T" else whole[index]
        (got, flat, more), want = f(x, sizes), x.reshape(sizes)
        same(got, want)
        same(flat, x.ravel())
        same(more, want + 1)
        assert np.shares_memory(got, whole) == np.shares_memory(want, whole), (shape, index, sizes)
        assert np.shares_memory(flat, whole) == np.shares_memory(x.ravel(), whole), (shape, index)
        if np.shares_memory(got, whole):
            assert [s for s, k in zip(got.strides, sizes) if k > 1] == [s for s, k in zip(want.strides, sizes) if k > 1]
        if n % len(RESHAPES) == len(RESHAPES) - 1:
            settle()


@TIERS
def test_what_is_stored_through_a_reshape_is_seen_where_it_is_a_view(tier: str) -> None:
    def run(x, k, m):
        y = x.reshape(k, m)
        y[0] = 5.0
        y[1:] += x.sum()
        z = np.tanh(y)
        x[...] *= 2.0
        return y, z

    f = bcvm.jit(run, tier=tier)
    for _ in range(3):
        for make in (lambda: np.arange(24.0).reshape(3, 8)[:, ::2], lambda: np.arange(24.0).reshape(6, 4)[::2], lambda: np.arange(12.0).reshape(3, 4), lambda: np.arange(12.0).reshape(4, 3).T):
            for k, m in ((3, 4), (2, 6), (6, 2), (12, 1)):
                a, b = make(), make()
                same(f(a, k, m), run(b, k, m))
                same(a, b)
        settle()


# -- what goes back

def code() -> tuple[int, int]:
    return loader.code_bytes(), table.info()["kernels"]


def many(make: Any, times: int) -> None:
    for i in range(times):
        f = make(i)
        f(np.arange(3.0))
        f(np.arange(3.0))
        settle()


def test_a_function_that_is_dropped_frees_its_code() -> None:
    def make(i: int) -> Any:
        @bcvm.jit(tier="full")
        def f(x, k=i):
            return np.tanh(x) * k + 0.25
        return f

    many(make, 1)
    gc.collect()
    settle()
    before = code()
    kept = make(3)
    kept(np.arange(3.0))
    assert code() > before
    ref = weakref.ref(kept._bcvm)
    del kept
    gc.collect()
    settle()
    assert ref() is None
    assert code() == before
    many(make, 10)
    gc.collect()
    settle()
    assert code() == before


def test_dropped_while_it_runs_and_while_it_is_compiled() -> None:
    box: list[Any] = []

    def drop() -> None:
        box.clear()
        gc.collect()
        settle()

    def make() -> Any:
        @bcvm.jit(tier="full")
        def f(x):
            y = x * 2
            try:
                drop()
            finally:
                pass
            return y + 1
        return f

    for _ in range(3):
        box.append(make())
        same(box[0](np.arange(3.0)), np.arange(3.0) * 2 + 1)

    @bcvm.jit(tier="auto")
    def g(x):
        return np.tanh(x) * 3

    g(np.arange(3.0))
    del g
    gc.collect()
    settle()


def test_continuations_go_with_their_function() -> None:
    def make(i: int) -> Any:
        kept: list[Any] = []

        @bcvm.jit(tier="full")
        def f(x):
            y = x * i
            try:
                kept.append(y)
            finally:
                pass
            return np.sin(y) + 0.125
        return f

    def use(i: int) -> None:
        f = make(i)
        for _ in range(5):
            f(np.arange(3.0))
            settle()
        assert f.stats()["continuations"] == 1

    use(0)
    gc.collect()
    settle()
    before = code()
    for i in range(5):
        use(i)
        gc.collect()
        settle()
    assert code() == before


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def growth(run: Callable[[], None]) -> int:
    """The least by which resident memory grows over three runs: what leaks does so each time, what other threads allocate meanwhile does not."""
    grown = []
    for _ in range(3):
        gc.collect()
        before = resident()
        run()
        gc.collect()
        grown.append(resident() - before)
    return min(grown)


def test_memory_is_flat_over_5000_shapes() -> None:
    @bcvm.jit(tier="full")
    def f(x, y):
        a = x @ y
        b = np.tanh(a) + a.sum(axis=0)
        c = b[:, None] * x[:1]
        return c.sum(), b

    def run(shapes: Any) -> None:
        for m, n in shapes:
            s, b = f(np.ones((m, n), np.float32), np.ones(n, np.float32))
            assert b.shape == (m,)

    run([(m, n) for m in range(1, 101) for n in range(1, 11)])
    assert growth(lambda: run([(m, n) for m in range(1, 101) for n in range(1, 51)])) < 1 << 20
    all_native(f, 1)


def test_exits_leak_nothing() -> None:
    @bcvm.jit(tier="full")
    def f(x, n):
        y = x * 2
        z = y[n]
        return z + y

    x = np.arange(100.0)
    f(x, 3)

    def run(times: int) -> None:
        for _ in range(times):
            with pytest.raises(IndexError):
                f(x, 100)

    run(500)
    assert growth(lambda: run(3000)) < 1 << 20


def test_arguments_are_released_after_the_call() -> None:
    @bcvm.jit(tier="full")
    def f(x, items, fail):
        if fail:
            raise ValueError("no")
        return (x + items[0]).sum()

    class Array(np.ndarray):
        pass

    for _ in range(3):
        x, item = np.arange(3.0), np.ones(3)
        refs = weakref.ref(x), weakref.ref(item)
        f(x, [item], False)
        with pytest.raises(ValueError, match="no"):
            f(x, [item], True)
        del x, item
        settle()
        gc.collect()
        assert all(r() is None for r in refs)
