"""Calls: arguments of every kind, helpers, closures, methods, aggregates, unpacking."""
# ruff: noqa: B007, B015, B018, B023, E731, F821, F841, F842, UP028
from __future__ import annotations

import numpy as np

from tests.programs import ProgramCase

x3 = np.array([1.0, -2.0, 3.0], np.float32)
x23 = np.arange(6, dtype=np.float32).reshape(2, 3)
SCALE = 3


def helper(x, k=2, *, shift=0.0):
    return x * k + shift


def collect(*args, **kwargs):
    return args, kwargs


def defaults_and_keywords(x, k=2, *more, flag=False, **rest):
    return x * k, more, flag, rest


def nested_calls(x):
    return helper(helper(x), 3, shift=helper(1, k=4))


def star_calls(items, mapping):
    return collect(*items, 1, *items, a=0, **mapping), collect(*items), collect(**mapping), collect(1, **mapping, z=2)


def merge_conflict(mapping):
    return collect(a=1, **mapping)


def not_a_mapping(value):
    return collect(1, 2, **value)


def wrong_arguments(n):
    if n == 0:
        return helper()
    if n == 1:
        return helper(1, 2, 3)
    return helper(1, nothing=2)


def dicts(x):
    d = {"a": x, "b": x + 1, 3: [x, x]}
    d["c"] = d["a"] * 2
    d[3][0] = 7
    return d, d["b"], len(d), list(d)


def displays(items):
    return [*items, 0, *items], (*items,), (1, *items, 2), [1, items], {1: 2, **{1: 3, 4: 5}}, {1, 2, *items}


def unpacking(items):
    a, b, c = items
    (d, e), *f = [(a, b), c, a]
    first, *middle, last = [0, *items, 9]
    [g, [h, *i]] = a, (b, c, a)
    return a, b, c, d, e, f, first, middle, last, g, h, i


def unpack_fails(items):
    a, b = items
    return a, b


def unpack_star_fails(items):
    a, *b, c, d = items
    return a, b, c, d


def chain_assignment(x):
    a = b = c = x + 1
    a[0] = 7
    d = e, f = [1, 2]
    return a, b, c, d, e, f


def swap_items(x, i, j):
    x[i], x[j] = x[j], x[i]
    return x


def evaluation_order(log):
    def note(v):
        log.append(v)
        return v
    d = {}
    d[note("k")] = note("v")
    d[note("i")], d[note("j")] = note(1), note(2)
    note(1) + note(2) * note(3)
    collect(note("a"), *[note("b")], c=note("c"), **{"d": note("d")})
    note(5) < note(4) < note(3)
    return d


def make_adder(k):
    def add(x):
        return x + k
    return add


def make_counter():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * count
    return step


add5 = make_adder(5)


def uses_global_and_closure(x):
    return add5(x) * SCALE


def missing_name(x):
    return x + undefined_name


def recursion(n):
    return 1 if n <= 1 else n * recursion(n - 1)


class Layer:
    def __init__(self, w, training=True):
        self.w = w
        self.training = training
        self.__calls = 0

    @property
    def size(self):
        return self.w.shape[0]

    def construct(self, x):
        self.__calls += 1
        if self.training:
            x = x * 2
        return x @ self.w + self.size

    def __call__(self, x):
        return self.construct(x)

    @staticmethod
    def twice(x):
        return x + x

    @classmethod
    def make(cls, w):
        return cls(w, False)


class Child(Layer):
    def construct(self, x):
        y = super().construct(x)
        return y - 1


def methods(layer, x):
    first = layer(x)
    layer.training = not layer.training
    return first, layer.construct(x), layer.twice(x), layer.size, type(layer).make(layer.w)(x)


def attribute_stores(layer, x):
    layer.w = layer.w * 2
    layer.extra, layer.more = x, [x]
    layer.more[0] += 1
    layer.count = 1
    layer.count += 2
    return layer.w


def missing_attribute(layer):
    return layer.nothing


def shadowed_builtin(x):
    max = min
    return max(x)


def keyword_only_missing(x, *, k):
    return x * k


CASES = [
    ProgramCase("defaults_and_keywords", defaults_and_keywords, [(x3,), (x3, 4), (x3, 4, 5, 6), ()]),
    ProgramCase("nested_calls", nested_calls, [(x3,), (2,)]),
    ProgramCase("star_calls", star_calls, [([1, 2], {"k": x3}), ((), {}), ([1], {"a": 1}), ([1], {1: 2})]),
    ProgramCase("merge_conflict", merge_conflict, [({"b": 1},), ({"a": 1},)]),
    ProgramCase("not_a_mapping", not_a_mapping, [({"b": 1},), (3,)]),
    ProgramCase("wrong_arguments", wrong_arguments, [(0,), (1,), (2,)]),
    ProgramCase("dicts", dicts, [(x3,), (1,)]),
    ProgramCase("displays", displays, [([1, 2],), ((),), (x3,), (5,)]),
    ProgramCase("unpacking", unpacking, [([1, 2, 3],), (x3,), ("abc",), ([1, 2],)]),
    ProgramCase("unpack_fails", unpack_fails, [((1, 2),), ((1, 2, 3),), ((1,),), (3,), (x23,), (x3,), (iter,)]),
    ProgramCase("unpack_star_fails", unpack_star_fails, [((1, 2, 3),), ((1, 2),), (None,)]),
    ProgramCase("chain_assignment", chain_assignment, [(x3,)]),
    ProgramCase("swap_items", swap_items, [([1, 2, 3], 0, 2), (x23, 0, 1), ([1], 0, 4)]),
    ProgramCase("evaluation_order", evaluation_order, [([],)]),
    ProgramCase("closure", make_adder(3), [(x3,), ("a",)]),
    ProgramCase("uses_global_and_closure", uses_global_and_closure, [(x3,), (1,)]),
    ProgramCase("missing_name", missing_name, [(x3,)]),
    ProgramCase("recursion", recursion, [(1,), (12,)]),
    ProgramCase("methods", methods, [(Layer(x23.T @ x23), x3), (Child(x23.T @ x23, False), x3)]),
    ProgramCase("construct", Layer.construct, [(Layer(x23.T @ x23), x3), (Layer(x23.T @ x23, False), x23)]),
    ProgramCase("super_construct", Child.construct, [(Child(x23.T @ x23), x3), (Layer(x23.T @ x23), x3)]),
    ProgramCase("attribute_stores", attribute_stores, [(Layer(x3), x3)]),
    ProgramCase("missing_attribute", missing_attribute, [(Layer(x3),)]),
    ProgramCase("shadowed_builtin", shadowed_builtin, [([1, 2],)]),
    ProgramCase("keyword_only_missing", keyword_only_missing, [(x3,)]),
]
