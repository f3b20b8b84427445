"""The callable type: calls, binding, attributes, life."""
from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import sys
import weakref

import pytest

from bcvm.compiler import probe
from bcvm.vm import entry


def _wrap(cls, function):
    made = cls()
    entry.initialise(made, function)
    functools.update_wrapper(made, function)
    return made


@pytest.fixture(params=["native", "plain"])
def cls(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(entry, "_native", lambda: (None, "switched off"))
    elif entry.reason():
        pytest.skip(entry.reason())
    return entry.make_function_type("Function", {"explain": lambda self: ("explained", self)})


def sample(a, b=2, *rest, k=0, **more):
    """Doc of sample."""
    return a, b, rest, k, more


Pickled = sample
Pickled_type = entry.make_function_type("Function", {})
jitted = _wrap(Pickled_type, sample)
jitted.__qualname__ = "jitted"


def test_native_entry_is_on_here():
    assert entry.reason() == probe.layout().reason


def test_call_passes_every_kind_of_argument(cls):
    f = _wrap(cls, sample)
    assert f(1) == (1, 2, (), 0, {})
    assert f(1, 3, 4, 5, k=6, z=7) == (1, 3, (4, 5), 6, {"z": 7})
    assert f(*(1, 2), **{"k": 9}) == (1, 2, (), 9, {})
    assert list(map(f, [1, 2])) == [sample(1), sample(2)]
    with pytest.raises(TypeError, match="missing"):
        f()


def test_binds_as_a_method(cls):
    class A:
        f = _wrap(cls, sample)
        s = staticmethod(f)
        c = classmethod(f)

    a = A()
    assert a.f(1) == (a, 1, (), 0, {})
    assert a.f(1, k=2) == (a, 1, (), 2, {})
    bound = a.f
    assert bound.__self__ is a and bound(5)[0] is a
    assert A.f is a.f.__func__
    assert A.s(1) == sample(1) and a.s(1) == sample(1)
    assert A.c(1)[0] is A
    assert list(inspect.signature(a.f).parameters) == ["b", "rest", "k", "more"]


def test_looks_like_the_function(cls):
    f = _wrap(cls, sample)
    f.extra = 3
    assert f.extra == 3 and f.__name__ == "sample" and f.__doc__ == "Doc of sample." and f.__wrapped__ is sample and f.__module__ == __name__
    assert callable(f) and isinstance(f, cls)
    assert inspect.signature(f) == inspect.signature(sample)
    assert f.explain() == ("explained", f)
    assert "sample" in repr(f)
    assert {f: 1}[f] == 1
    assert copy.copy(f) is f and copy.deepcopy([f])[0] is f


def test_pickles_by_name():
    assert pickle.loads(pickle.dumps(jitted)) is jitted


def test_without_a_slow_callable_it_raises(cls):
    with pytest.raises((TypeError, AttributeError)):
        cls()(1)
    f = _wrap(cls, sample)
    del f._slow
    with pytest.raises((TypeError, AttributeError)):
        f(1)


def test_exceptions_pass_through(cls):
    def fails():
        raise KeyError("x")
    with pytest.raises(KeyError):
        _wrap(cls, fails)()


def test_cycles_are_collected(cls):
    def make():
        def slow():
            return f
        f = _wrap(cls, slow)
        f.me = f
        assert f() is f
        return weakref.ref(f)
    ref = make()
    gc.collect()
    assert ref() is None


def test_reference_counts_balance(cls):
    marker = object()
    f = _wrap(cls, lambda x, k=None: x)
    f(marker), f(marker, k=f)
    before = sys.getrefcount(marker), sys.getrefcount(f), sys.getrefcount(f._slow)
    for _ in range(100_000):
        f(marker, k=f)
    assert (sys.getrefcount(marker), sys.getrefcount(f), sys.getrefcount(f._slow)) == before


def test_set_entry_falls_back_to_slow(cls):
    f = _wrap(cls, sample)
    assert entry.set_entry(f, 0) in (True, False)
    assert f(1) == sample(1)
    assert entry.get_entry(f) == entry.slow_entry()
