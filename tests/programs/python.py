"""Pieces that call back into Python: comprehensions, exceptions, with, imports, nested functions, match."""
# ruff: noqa: B007, B015, B018, B023, E731, F821, F841, F842, UP028
from __future__ import annotations

import contextlib

import numpy as np

from tests.programs import ProgramCase

x3 = np.array([1.0, -2.0, 3.0], np.float32)
x23 = np.arange(6, dtype=np.float32).reshape(2, 3)


def comprehensions(x, n):
    k = n + 1
    a = [x * i * k for i in range(n)]
    b = {i: i * k for i in range(n) if i % 2}
    c = {i % 2 for i in range(n)}
    d = sum(i * k for i in range(n))
    return a, b, c, d, tuple(j for i in a for j in i.ravel().tolist()), [[k for _ in range(i)] for i in range(2)]


def f_strings(x, name="n"):
    total = x.sum()
    return f"{name}={total:.2f} {x.shape!r:>8} {{}} {'a' + name}"


def lambdas(items):
    scale = 3
    key = lambda v: -v * scale
    return sorted(items, key=key), list(map(lambda v: v + scale, items))


def nested_function(x, n):
    def power(v, k):
        return v if k <= 1 else v * power(v, k - 1)
    return power(x, n), power.__name__


def mutual_recursion(n):
    even = lambda v: v == 0 or odd(v - 1)
    odd = lambda v: v != 0 and even(v - 1)
    return even(n), odd(n)


def set_under_a_condition(x, flag):
    if flag:
        y = x + 1
    with contextlib.suppress(TypeError):
        if flag:
            y = y * 2
    return [y for _ in range(2)] if flag else f"{x}"


def two_handlers(items):
    log = []
    for item in items:
        try:
            log.append(int(item))
        except ValueError as e:
            log.append(str(e))
        try:
            log.append(1 / item)
        except (TypeError, ZeroDivisionError) as e:
            log.append(f"{e}")
            continue
        try:
            log.append(item["k"])
        except TypeError as e:
            if item == 4:
                break
            log.append(repr(e))
    return log


def walrus_in_lambda(items):
    return sorted(items, key=lambda v: [w := -v, f"{w}", w][2])


walrus_lambda = lambda x: [y := x + 1, f"{y}", [y for _ in range(2)]]


def rebound_capture(n):
    fs = []
    for i in range(n):
        fs.append(lambda: i)
    return [f() for f in fs]


def raises(x, limit):
    if x.max() > limit:
        raise ValueError(f"{x.max()} is above {limit}")
    return x


def raise_from(x):
    raise KeyError("outer") from TypeError("inner")


def asserts(x, n):
    assert n > 0
    assert n < 10, f"n is {n}"
    assert not (n == 5 or n == 6), (n, "five or six")
    return x[:n]


def try_value(items, i):
    try:
        v = items[i]
    except IndexError as e:
        v = str(e)
    except KeyError:
        raise
    else:
        v = v * 2
    finally:
        items.append("done")
    return v


def try_return(items, i):
    try:
        return items[i]
    except IndexError:
        return "none"
    finally:
        items.append("f")


def try_in_loop(items):
    total, skipped = 0, []
    for item in items:
        try:
            value = int(item)
            if value < 0:
                break
        except ValueError as e:
            skipped.append(str(e))
            continue
        finally:
            total += 1
        total += value
    else:
        return "all", total, skipped
    return "stopped", total, skipped


def last_good(items):
    good = None
    for item in items:
        try:
            good = int(item)
        except ValueError:
            pass
    return good


def maybe_unset_after_try(items):
    for item in items:
        try:
            good = int(item)
        except ValueError:
            pass
    return good


def swallowed_leave(items):
    seen = []
    for item in items:
        try:
            with contextlib.suppress(ZeroDivisionError):
                try:
                    break
                finally:
                    seen.append(1 // item)
        except TypeError:
            seen.append("type")
        seen.append(item)
    return seen


def with_statement(x):
    with np.errstate(divide="ignore") as state:
        y = x / 0
    return y, state is None or True


def with_suppress(items, i):
    with contextlib.suppress(IndexError):
        return items[i]
    return "suppressed"


def import_inside(x):
    import math as m
    from os import path
    return m.sqrt(x), path.join("a", "b")


def walrus(items):
    out = []
    while (n := len(items)) > 1:
        out.append(n)
        items = items[1:]
    if (last := items) and (k := len(last)):
        out.append((last, k))
    return out, n, [y := v + 1 for v in out[:1] if not isinstance(v, tuple)], y


def match_value(v):
    match v:
        case 0:
            return "zero"
        case [a, b]:
            out = a, b
        case {"k": w, **rest}:
            out = w, rest
        case str() as s if len(s) > 2:
            out = s.upper()
        case _:
            out = None
    return "got", out


def global_store(x):
    global _state
    _state = x
    _state += 1
    return _state


_state = 0


def annotated(x: int) -> int:
    y: int = x + 1
    z: "undefined"
    y += 1
    return y


def generator(n):
    for i in range(n):
        yield i


def uses_generator(n):
    total = 0
    for v in generator(n):
        total += v
    g = (i * n for i in range(3))
    return total, next(g), list(g), ", ".join(str(i) for i in range(n))


def uses_locals(x):
    y = 2
    return sorted(locals()), y


def read_maybe_unset(n):
    for i in range(n):
        last = i
    return f"last is {last}"


def nested_class(x):
    class Point:
        scale = 2

        def get(self):
            return x * self.scale
    return Point().get(), Point.__name__


def delete_items(d):
    del d["a"]
    k = [1, 2, 3]
    del k[0], k[-1]
    return d, k


CASES = [
    ProgramCase("comprehensions", comprehensions, [(x23, 3), (x3, 0)]),
    ProgramCase("f_strings", f_strings, [(x3,), (x23, "m")]),
    ProgramCase("lambdas", lambdas, [([1, 3, 2],)]),
    ProgramCase("nested_function", nested_function, [(x3, 3), (2, 1)]),
    ProgramCase("mutual_recursion", mutual_recursion, [(4,), (3,)]),
    ProgramCase("set_under_a_condition", set_under_a_condition, [(x3, True), (x3, False), ("a", True)]),
    ProgramCase("two_handlers", two_handlers, [([1, "x", 0, 2.5, 4, 5],)]),
    ProgramCase("walrus_in_lambda", walrus_in_lambda, [([1, 3, 2],)]),
    ProgramCase("walrus_lambda", walrus_lambda, [(1,), ("a",)]),
    ProgramCase("rebound_capture", rebound_capture, [(3,)]),
    ProgramCase("raises", raises, [(x3, 10), (x3, 1)]),
    ProgramCase("raise_from", raise_from, [(x3,)]),
    ProgramCase("asserts", asserts, [(x3, 1), (x3, 0), (x3, 12), (x3, 5)]),
    ProgramCase("try_value", try_value, [([1, 2], 0), ([1, 2], 5), ({"a": 1}, "b")]),
    ProgramCase("try_return", try_return, [([1], 0), ([1], 3)]),
    ProgramCase("try_in_loop", try_in_loop, [(["1", "x", "3"],), (["1", "-2", "3"],), ([],), (["x"],)]),
    ProgramCase("last_good", last_good, [(["1", "x"],), (["x"],), ([],)]),
    ProgramCase("maybe_unset_after_try", maybe_unset_after_try, [(["1", "x"],), (["x"],), ([],)]),
    ProgramCase("swallowed_leave", swallowed_leave, [([0, "a", 5, 1],), ([0],)]),
    ProgramCase("with_statement", with_statement, [(x3,), (1,)]),
    ProgramCase("with_suppress", with_suppress, [([1], 0), ([1], 1)]),
    ProgramCase("import_inside", import_inside, [(4.0,), ("a",)]),
    ProgramCase("walrus", walrus, [([1, 2, 3],), ([1],)]),
    ProgramCase("match_value", match_value, [(0,), ([1, 2],), ({"k": 1, "z": 2},), ("abc",), ("a",), (None,)]),
    ProgramCase("global_store", global_store, [(1,), (x3,)]),
    ProgramCase("annotated", annotated, [(1,)]),
    ProgramCase("uses_generator", uses_generator, [(4,)]),
    ProgramCase("uses_locals", uses_locals, [(1,)]),
    ProgramCase("read_maybe_unset", read_maybe_unset, [(3,), (0,)]),
    ProgramCase("nested_class", nested_class, [(x3,)]),
    ProgramCase("delete_items", delete_items, [({"a": 1, "b": 2},), ({},)]),
]
