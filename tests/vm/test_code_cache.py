"""Native code is bounded by the cache's size, and evicting it never changes a result."""
from __future__ import annotations

from typing import Any

import numpy as np

import bcvm
from bcvm.vm.compile_thread import thread

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def make(i: int, **options: Any) -> Any:
    def f(x: Any) -> Any:
        return x * 2.0 + float(i)
    return bcvm.jit(f, tier="full", **options)


def test_the_least_recently_used_code_goes_first() -> None:
    bcvm.cache.clear()
    functions = [make(i) for i in range(4)]
    for f in functions:
        f(X)
    functions[0](X)
    late = make(9, cache_size=3)
    late(X)
    assert bcvm.cache.info()["specialisations"] <= 3
    assert len(late._bcvm.site.specialisations) == 1
    assert len(functions[1]._bcvm.site.specialisations) == 0


def test_an_evicted_function_still_gives_the_right_result_and_compiles_again() -> None:
    f = make(3)
    before = f(X)
    evicted = bcvm.cache.info()["evicted"]
    bcvm.cache.clear()
    assert bcvm.cache.info()["evicted"] > evicted and not f._bcvm.site.specialisations
    for _ in range(3):
        np.testing.assert_array_equal(f(X), before)
    assert f.stats()["specialisations"] == 1


def test_evicting_from_the_middle_of_a_chain_keeps_the_others() -> None:
    f = make(1)
    inputs = [X, X.astype(np.float64), X[0], X.astype(np.int64)]
    expected = [f(x) for x in inputs]
    site = f._bcvm.site
    middle = site.specialisations[1]
    thread.call(lambda: site.evict(middle))
    native = [s.code.calls() for s in site.specialisations]
    for x, want in zip(inputs, expected):
        got = f(x)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert [s.code.calls() for s in site.specialisations[:3]] == [n + 1 for n in native] and len(site.specialisations) == 4


def test_evicted_code_is_freed() -> None:
    from bcvm.compiler import loader
    bcvm.cache.clear()
    thread.idle()
    f = make(5)
    f(X)
    held = loader.code_bytes()
    bcvm.cache.clear()
    f2 = make(6)  # gives the compile thread something to do, after which it frees
    f2(X)
    thread.idle()
    assert loader.code_bytes() <= held + 200
