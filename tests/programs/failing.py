"""Functions that fail, and functions whose effects can be watched."""
# ruff: noqa: B007, B015, B018, B023, E731, F821, F841, F842, UP028
from __future__ import annotations

import numpy as np

FACTOR = 11


def operator_fails(x):
    a = 1
    y = x // 0
    return y + a


def multiline(x):
    y = (x +
         x *
         np.ones(7))
    return y


def call_fails(x):
    return np.concatenate(
        [x, np.ones((2, 2))])


def inner_raises(x):
    return operator_fails(1) + x


def attribute_fails(x):
    y = x
    return y.nothing


def item_fails(x):
    return x[
        17]


def store_fails(x):
    x[0] = 1
    x[9] = 1


def name_fails(x):
    return x + no_such_name


def unset_fails(x):
    if x is None:
        y = 1
    return y


def unpack_fails(x):
    a, b = x
    return a, b


def in_a_loop(x):
    for i in range(10):
        if i == 4:
            x = x + np.ones(5)
    return x


def iterator_fails(x):
    for i in 5:
        x += i


def raised(x):
    if x is not None:
        raise ValueError(
            f"bad {x.shape}")
    return x


def raised_from(x):
    try:
        x.nothing
    except AttributeError as e:
        raise KeyError("k") from e


def in_comprehension(x):
    return [1 / i for i in range(3)]


def in_lambda(x):
    f = lambda v: v.nothing
    return f(x)


def attribute_store_fails(x):
    x.nothing = 1


def assertion(x):
    y = x
    assert y is None, "message"


def wrong_call(x):
    return operator_fails(x, x)


def generator_fails(x):
    return sum(1 // i for i in range(3))


NAMES = [n for n, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == __name__]
ARGUMENTS = {"operator_fails": (1,)}


def listens(n):
    total = 0
    for i in range(n):
        total += sum({j for j in range(i)})
    return total


def total(items, n):
    for i in items:
        n += i
    return n


class Thing:
    def method(self, a, b=2):
        return a, b


def effects(note, n):
    for i in range(n):
        note(("head", i))
        try:
            note(("try", i))
            if i == 1:
                continue
            [note(("list", i, j)) for j in range(2)]
        finally:
            note(("finally", i))
        with np.errstate():
            note("with")
        note(f"{note('inner')} outer") if note("cond") else note("else")


def reads_global(x):
    return x * FACTOR if x > 5 else x - 1 + FACTOR
