"""Methods of every kind, and many instances that share one specialisation."""
from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import NATIVE_TIERS, TIERS, all_native, same, settle, warm


def make_class(tier: str) -> Any:
    class Layer:
        scale = 2.0

        def __init__(self, k: Any) -> None:
            self.k, self.w = k, np.full(3, float(k))

        @bcvm.jit(tier=tier)
        def method(self, x):
            return x * self.w + self.k * self.scale

        @classmethod
        @bcvm.jit(tier=tier)
        def of_class(cls, x):
            return x * cls.scale

        @staticmethod
        @bcvm.jit(tier=tier)
        def static(x, k=3):
            return x * k

        @property
        @bcvm.jit(tier=tier)
        def value(self):
            return self.w * self.k

        @bcvm.jit(tier=tier)
        def uses_all(self, x):
            return self.method(x) + self.of_class(x) + self.static(x, 2) + self.value

    return Layer


@TIERS
def test_every_kind_of_method(tier: str) -> None:
    cls = make_class(tier)
    x = np.arange(3.0)
    for _ in range(3):
        for k in (1, 4):
            a = cls(k)
            same(a.method(x), x * k + k * 2.0)
            same(cls.method(a, x), x * k + k * 2.0)
            same(a.of_class(x), x * 2.0)
            same(cls.of_class(x), x * 2.0)
            same(a.static(x), x * 3)
            same(cls.static(x, k=4), x * 4)
            same(a.value, np.full(3, float(k)) * k)
            same(a.uses_all(x), x * k + k * 2.0 + x * 2.0 + x * 2 + np.full(3, float(k)) * k)
            bound = a.method
            same(bound(x=x), x * k + k * 2.0)
            settle()


@NATIVE_TIERS
def test_200_instances_share_one_compilation(tier: str) -> None:
    cls = make_class(tier)
    instances, x = [cls(k) for k in range(200)], np.arange(3.0)
    warm(instances[0].method, x)
    for k, a in enumerate(instances):
        same(a.method(x), x * k + k * 2.0)
    for k, a in enumerate(instances):
        a.w = a.w + 1
        same(a.method(x), x * (k + 1) + k * 2.0)
    stats = cls.method.stats()
    assert stats["compiles"] == 1 and stats["specialisations"] <= 2, stats
    assert stats["interpreted"] <= 1 and not stats["exits"], stats
    floats = [cls(k + 0.5) for k in range(20)]
    for a in floats:
        same(a.method(x), x * a.k + a.k * 2.0)
        settle()
    assert cls.method.stats()["specialisations"] <= 2 and not cls.method.stats()["exits"]


@NATIVE_TIERS
def test_class_attribute_is_rebound_and_shadowed(tier: str) -> None:
    cls = make_class(tier)
    a, b, x = cls(2), cls(3), np.arange(3.0)
    warm(a.method, x)
    warm(cls.of_class, x)
    cls.scale = 5.0
    same(a.method(x), x * 2 + 10.0)
    same(cls.of_class(x), x * 5.0)
    a.scale = 7.0
    same(a.method(x), x * 2 + 14.0)
    same(b.method(x), x * 3 + 15.0)
    settle()
    same(a.method(x), x * 2 + 14.0)
    same(b.method(x), x * 3 + 15.0)
    del a.scale
    same(a.method(x), x * 2 + 10.0)
    cls.scale = np.ones(3)
    same(a.method(x), x * 2 + 2 * np.ones(3))


@NATIVE_TIERS
def test_an_attribute_that_comes_to_hide_its_class_s_default_needs_no_new_code(tier: str) -> None:
    class Model:
        training, factor, bias, limits = True, 2.0, np.ones(3), (1.0, 2.0)

        @bcvm.jit(tier=tier)
        def run(self, x):
            y = x * self.factor + self.bias * self.limits[1]
            if self.training:
                y = y + 100.0
            return y

    class Sub(Model):
        factor = 3.0

    def want(m: Any, x: Any) -> Any:
        return x * m.factor + m.bias * m.limits[1] + (100.0 if m.training else 0.0)

    a, b, x = Model(), Model(), np.arange(3.0)
    warm(Model.run, a, x)
    compiles = Model.run.stats()["compiles"]
    a.training = False
    same(a.run(x), want(a, x))
    a.factor, a.bias, a.limits = 5.0, np.full(3, 7.0), (3.0, 4.0)
    same(a.run(x), want(a, x))
    same(b.run(x), want(b, x))
    del a.factor, a.training
    same(a.run(x), want(a, x))
    Model.factor = 9.0
    same(a.run(x), want(a, x))
    same(b.run(x), want(b, x))
    settle()
    assert Model.run.stats()["compiles"] == compiles and Model.run.stats()["recompiles"] == 0
    c = Sub()
    warm(Model.run, c, x)
    Sub.factor = 4.0
    same(c.run(x), want(c, x))
    c.factor = 6.0
    same(c.run(x), want(c, x))


@NATIVE_TIERS
def test_instance_attribute_shadows_a_method_later(tier: str) -> None:
    class Model:
        def act(self, x):
            return x * 2

        @bcvm.jit(tier=tier)
        def run(self, x):
            return self.act(x) + 1

    a, b, x = Model(), Model(), np.arange(3.0)
    warm(a.run, x)
    warm(b.run, x)
    a.act = lambda x: x * 10
    for _ in range(2):
        same(a.run(x), x * 10 + 1)
        same(b.run(x), x * 2 + 1)
        settle()
    b.act = types.MethodType(lambda self, x: x * 20, b)
    for _ in range(2):
        same(a.run(x), x * 10 + 1)
        same(b.run(x), x * 20 + 1)
        settle()
    del a.act
    same(a.run(x), x * 2 + 1)


@NATIVE_TIERS
def test_method_of_the_class_is_replaced(tier: str) -> None:
    class Base:
        def act(self, x):
            return x * 2

    class Model(Base):
        @bcvm.jit(tier=tier)
        def run(self, x):
            return self.act(x) + 1

    a, x = Model(), np.arange(3.0)
    warm(a.run, x)
    Base.act = lambda self, x: x * 3
    same(a.run(x), x * 3 + 1)
    settle()
    Model.act = lambda self, x: x * 4
    same(a.run(x), x * 4 + 1)
    settle()
    same(a.run(x), x * 4 + 1)
    del Model.act
    same(a.run(x), x * 3 + 1)


@NATIVE_TIERS
def test_attribute_becomes_a_property_and_an_instance_changes_its_class(tier: str) -> None:
    class One:
        def __init__(self, k: float) -> None:
            self.k = k

        @bcvm.jit(tier=tier)
        def run(self, x):
            return x * self.k

    class Two(One):
        k = property(lambda self: self.__dict__["k"] * 100, lambda self, v: self.__dict__.__setitem__("k", v))

    a, x = One(2.0), np.arange(3.0)
    warm(a.run, x)
    same(a.run(x), x * 2.0)
    same(Two(3.0).run(x), x * 300.0)
    a.__class__ = Two
    for _ in range(3):
        same(a.run(x), x * 200.0)
        settle()
    One.k = property(lambda self: 9.0)
    same(One.run(a, x), x * 200.0)
    b = One.__new__(One)
    b.__dict__["k"] = 1.0
    for _ in range(2):
        same(b.run(x), x * 9.0)
        settle()


@NATIVE_TIERS
def test_property_defined_after_native_code_exists(tier: str) -> None:
    class One:
        def __init__(self) -> None:
            self.k = 2.0

        @bcvm.jit(tier=tier)
        def run(self, x):
            return x * self.k

    a, x = One(), np.arange(3.0)
    warm(a.run, x)
    One.k = property(lambda self: 9.0)
    for _ in range(3):
        same(a.run(x), x * 9.0)
        settle()
    del One.k
    same(a.run(x), x * 2.0)


@NATIVE_TIERS
def test_slots_getattr_and_getattribute(tier: str) -> None:
    class Slots:
        __slots__ = ("w", "k")

        def __init__(self, k: int) -> None:
            self.w, self.k = np.full(3, float(k)), k

    class Dynamic:
        def __getattr__(self, name: str) -> Any:
            counted.append(name)
            return {"w": np.ones(3), "k": 4}[name]

    class Whole:
        def __getattribute__(self, name: str) -> Any:
            counted.append(name)
            return {"w": np.ones(3), "k": 5}[name]

    counted: list[str] = []

    @bcvm.jit(tier=tier)
    def f(x, o):
        return x * o.w + o.k

    x = np.arange(3.0)
    for n in range(3):
        for k in (1, 2, 3):
            same(f(x, Slots(k)), x * k + k)
        counted.clear()
        same(f(x, Dynamic()), x + 4)
        same(f(x, Whole()), x + 5)
        assert counted == ["w", "k"] * 2, n  # read once each, as in Python
        settle()
    assert not f.stats()["errors"]


@TIERS
def test_callable_objects_partials_and_super(tier: str) -> None:
    import functools

    class Act:
        def __init__(self, k: int) -> None:
            self.k = k

        def __call__(self, x: Any) -> Any:
            return x * self.k

    class Base:
        def run(self, x):
            return x + 1

    class Child(Base):
        @bcvm.jit(tier=tier)
        def run(self, x):
            return super().run(x) * 2

    def plain(x, act, part, table):
        return act(x) + part(x) + table["act"](x)

    f = bcvm.jit(plain, tier=tier)
    g = bcvm.jit(Act(3), tier=tier)
    x = np.arange(3.0)
    for _ in range(3):
        for k in (2, 3):
            args = (x, Act(k), functools.partial(Act(k), x), {"act": Act(5)})
            args = (x, Act(k), functools.partial(lambda k, x: x * k, k), {"act": Act(5)})
            same(f(*args), plain(*args))
        same(g(x), x * 3)
        same(Child().run(x), (x + 1) * 2)
        settle()
    assert not f.stats()["errors"]


def test_decorated_method_is_inlined_into_a_caller() -> None:
    cls = make_class("full")

    @bcvm.jit(tier="full")
    def twice(a, b, x):
        return a.method(x) + b.method(x)

    x = np.arange(3.0)
    for k in range(20):
        same(twice(cls(k), cls(k + 1), x), x * k + k * 2.0 + x * (k + 1) + (k + 1) * 2.0)
    all_native(twice, 1)


@pytest.mark.parametrize("how", ["jit of bound", "types.MethodType", "partialmethod"])
def test_bound_methods_as_functions(how: str) -> None:
    import functools

    class A:
        def __init__(self, k: int) -> None:
            self.k = k

        def run(self, x: Any, s: float = 1.0) -> Any:
            return x * self.k + s

    a, x = A(3), np.arange(3.0)
    if how == "jit of bound":
        f = bcvm.jit(a.run, tier="full")
    elif how == "types.MethodType":
        f = types.MethodType(bcvm.jit(A.run, tier="full"), a)
    else:
        A.part = functools.partialmethod(bcvm.jit(A.run, tier="full"), s=1.0)
        f = a.part
    for k in range(5):
        a.k = k
        same(f(x), x * k + 1.0)


class Scale:
    """What calls scale by; its call is jitted in place."""

    def __init__(self, k: float) -> None:
        self.k = k

    @bcvm.jit(tier="full")
    def forward(self, x, y=1.0):
        """What forward says."""
        return x * self.k + y

    def __call__(self, x):
        return x * self.k

    @classmethod
    @bcvm.jit(tier="full")
    def of_class(cls, x):
        return x + 1


def test_explain_and_warmup_of_a_bound_method_pass_the_instance() -> None:
    a, x = Scale(2.0), np.arange(3.0)
    assert "self" in str(a.forward.explain(x)) and str(a.forward.explain(x)) == str(Scale.forward.explain(a, x))
    a.forward.warmup((x,), (x, 3))
    before = Scale.forward.stats()
    assert before["compiles"] == 2 and before["calls"] == 0
    bound = a.forward
    same(bound(x), x * 2.0 + 1.0)
    same(a.forward(x, y=5), x * 2.0 + 5)
    same(a.forward(x, 5), x * 2.0 + 5)
    assert Scale.forward.stats() == a.forward.stats() and a.forward.stats()["native"] >= 2
    assert a.forward == a.forward and hash(a.forward) == hash(a.forward) and a.forward != Scale(2.0).forward and a.forward != a.of_class
    assert isinstance(bound, types.MethodType) and bound.__self__ is a and bound.__func__ == Scale.forward
    assert (bound.__name__, bound.__doc__, bound.__wrapped__) == ("forward", "What forward says.", Scale.forward.__wrapped__)
    assert str(bound.program) == str(Scale.forward.program)
    again = bcvm.jit(a.forward, tier="full")
    same(again(x), x * 2.0 + 1.0)
    with pytest.raises(TypeError, match="missing"):
        a.forward.warmup(())


def test_a_jitted_object_has_the_object_s_attributes() -> None:
    a, x = Scale(2.0), np.arange(3.0)
    f = bcvm.jit(a, tier="full")
    same(f(x), x * 2.0)
    f.k = 5.0
    assert a.k == f.k == 5.0
    same(f(x), x * 5.0)
    same(f.forward(x), x * 5.0 + 1.0)
    assert f.stats()["compiles"] == 1 and f.stats()["native"] == 2 and f.__doc__ == Scale.__doc__
    other = copy.deepcopy(f)
    other.k = 3.0
    same(other(x), x * 3.0)
    assert a.k == 5.0
    same(pickle.loads(pickle.dumps(f))(x), x * 5.0)
    same(bcvm.jit(f, tier="full")(x), x * 5.0)

    class Holder:
        inside = f

        @bcvm.jit(tier="full")
        def run(self, x):
            return self.inside(x) + 1

    same(Holder().inside(x), x * 5.0)
    same(Holder().run(x), x * 5.0 + 1)
    del f.k
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'k'"):
        f(x)
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'k'"):
        f.k + 0
