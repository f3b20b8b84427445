"""Comprehensions and local functions that become part of the function around them mean what they mean in Python."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm
from bcvm.frontend import program_of


def comprehensions(xs, n=3):
    i, seen = 10, []
    a = [i * x for i, x in enumerate(xs)]
    b = [(x, y) for x in xs if x > 1 for y in range(x) if y != 1]
    c = tuple(x for x in xs if x is not None)
    d = list(x + i for x in xs)
    e = any(x > 2 for x in xs), all(x > 0 for x in xs), any(x for x in ()), all(x for x in ()), any(x == y for x in xs for y in a)
    f = [[x, [x] * 2] for (x, _) in zip(xs, xs)]
    stops = any(seen.append(x) or x > 1 for x in xs)
    return a, b, c, d, e, f, stops, seen, i, [[y for y in range(x)] for x in xs]


def test_comprehensions_are_pythons() -> None:
    program = program_of(comprehensions).program
    assert [i.source for i in program.imports] == ["[[y for y in range(x)] for x in xs]"]
    for xs in ([1, 2, 3], [], [5], [-1, 4]):
        assert bcvm.jit(comprehensions, tier="interpret")(xs) == comprehensions(xs)


def raises_in_comprehension(xs):
    return [10 // x for x in xs]


def test_an_error_in_a_comprehension_is_pythons() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        bcvm.jit(raises_in_comprehension)([1, 0])
    assert caught.traceback[-1].lineno + 1 == raises_in_comprehension.__code__.co_firstlineno + 1


def shadowed(xs):
    return tuple(x for x in xs)


def test_a_global_that_hides_a_builtin_is_called_with_the_generator() -> None:
    import types
    other = types.FunctionType(shadowed.__code__, {"tuple": lambda g: type(g).__name__})
    assert bcvm.jit(other)([1, 2]) == "generator"


def local_functions(x, n, *, twice=True):
    def scale(v, by):
        """by is a number"""
        return v * by + n

    def pick(v):
        for k in range(4):
            for m in (1, 2):
                if k * m > n:
                    return v, k
            if k == 3:
                break
        return None

    def choose(v, w):
        if w is None:
            out = scale(v, 2)
        elif twice:
            a, (b, *_) = v, (w, 0)
            out = scale(by=3, v=scale(a, 1)) + b
        else:
            return v
        return out

    def nothing(v):
        v = v + 1
    v = choose(x, None)
    return v, choose(v, x), pick(x), nothing(x), scale(scale(x, 1), 2)


def test_local_functions_are_part_of_the_function() -> None:
    assert not program_of(local_functions).program.imports
    x = np.arange(3.0)
    for n in (0, 1, 2, 7):
        for twice in (True, False):
            want = local_functions(x, n, twice=twice)
            for options in ({"tier": "interpret"}, {"background": False, "compile_timeout_ms": 60_000}):
                got = bcvm.jit(local_functions, **options)(x, n, twice=twice)
                assert repr(got) == repr(want)


def kept(x):
    def f(v):
        return v + 1
    return f(x), f


def before_its_definition(x):
    if x > 0:
        y = f(x)  # noqa: F821
    else:
        y = 0

    def f(v):
        return v
    return y + f(x)


def recursive(x):
    def f(v):
        return 1 if v == 0 else v * f(v - 1)
    return f(x)


def wrong_arguments(x):
    def f(v):
        return v
    return f(x, x)


def guarded(x):
    def f(v):
        return 1 // v
    try:
        return f(x)
    except ZeroDivisionError:
        return -1


def unset(x):
    def f(v):
        if v:
            y = 1
        return y
    return f(x)


@pytest.mark.parametrize("function", [kept, before_its_definition, recursive, wrong_arguments, guarded, unset])
def test_local_functions_that_are_not_only_called_stay_closures(function) -> None:
    assert program_of(function).program.imports
    fast = bcvm.jit(function, tier="interpret")
    for x in (0, 2):
        try:
            want = function(x)
        except Exception as e:
            with pytest.raises(type(e)):
                fast(x)
        else:
            got = fast(x)
            assert got == want or got[0] == want[0] and got[1](5) == 6
