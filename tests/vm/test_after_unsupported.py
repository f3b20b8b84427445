"""What follows a call without a native form runs native again: in the function itself, and in what an inlined callee returns to."""
from __future__ import annotations

import time

import numpy as np

import bcvm
from bcvm.vm.compile_thread import thread


def repeated(f, plain, *args, times=8):
    for _ in range(times):
        np.testing.assert_array_equal(f(*args), plain(*args))
        assert thread.idle(30)
        end = time.monotonic() + 30
        while any(site.pending for site in f._bcvm.sites()) and time.monotonic() < end:
            time.sleep(0.01)
    return f.stats()


def unknown(x):
    return np.linalg.matrix_power(x, 2)


def helper(x):
    y = x * 2.0
    y = unknown(y)
    return y + 1.0


def test_after_a_call_in_the_function_itself():
    def plain(x):
        y = np.linalg.matrix_power(x + 1.0, 2)
        return (y * 3.0).sum(axis=0) - 1.0
    stats = repeated(bcvm.jit(plain), plain, np.arange(9.0).reshape(3, 3))
    assert stats["continuations"] == 1 and stats["compiles"] == 2, stats


def test_after_an_inlined_callee_that_left():
    def plain(x):
        y = helper(x + 1.0)
        for _ in range(3):
            y = np.maximum(y - 1.0, 0.0)
        return y.sum(axis=1)
    stats = repeated(bcvm.jit(plain), plain, np.arange(9.0).reshape(3, 3))
    assert stats["continuations"] >= 1 and all(r.startswith("unsupported") for r in stats["exits"]), stats


def test_checks_that_fail_make_no_continuations():
    def plain(a, b):
        return (a + b) * 2.0 - a
    f = bcvm.jit(plain)
    repeated(f, plain, np.ones(3), np.ones(3), times=2)
    for _ in range(5):
        try:
            f(np.ones(3), np.ones(2))
        except ValueError as e:
            assert "broadcast" in str(e)
    assert f.stats()["continuations"] == 0


def test_methods_of_other_objects_of_the_class_are_inlined():
    class Node:
        def __init__(self, k, inner=None):
            self.k, self.inner = k, inner

        def run(self, x):
            if self.inner is not None:
                x = self.inner.run(x)
            return x * self.k
    node = Node(2.0, Node(3.0, Node(5.0)))
    f = bcvm.jit(node.run, tier="full", background=False)
    np.testing.assert_array_equal(f(np.arange(3.0)), np.arange(3.0) * 30)
    assert f.stats()["native"] == 1 and not f.explain(np.arange(3.0)).callbacks


def test_a_number_that_is_needed_as_a_constant_late_is_guarded():
    def plain(x, k):
        y = x * k
        return y.sum(axis=k)
    f = bcvm.jit(plain, tier="full", background=False)
    x = np.arange(6.0).reshape(2, 3)
    for k in (1, 0, 1):
        np.testing.assert_array_equal(f(x, k), plain(x, k))
    assert f.stats()["native"] == 3 and f.stats()["compiles"] == 2
