"""Control flow: branches that depend on data, loops, early ways out."""
# ruff: noqa: B007, B015, B018, B023, E731, F821, F841, F842, UP028
from __future__ import annotations

import numpy as np

from tests.programs import ProgramCase

x3 = np.array([1.0, -2.0, 3.0], np.float32)
x23 = np.arange(6, dtype=np.float32).reshape(2, 3)
empty = np.zeros((0, 3), np.float32)


def if_else(x, flag):
    if flag:
        y = x + 1
    else:
        y = x * 2
    return y


def branch_on_data(x):
    if x.sum() > 0:
        return np.maximum(x, 0)
    elif x.sum() < -10:
        return x - 100
    return -x


def branch_on_size(x):
    n = x.shape[0]
    if n == 0:
        return x
    if n == 1:
        return x * 10
    return x / n


def branch_without_else(x, k):
    if k > 2:
        x = x * k
    return x + k


def ambiguous_truth(x):
    if x > 0:
        return x
    return -x


def conditional_expression(x, k):
    return x * 2 if k > 0 else (x * 3 if k == 0 else x * 4)


def and_or_values(a, b, c):
    return (a and b or c), (a or b and c), not (a and b), (a and (b or c))


def chained_comparison(a, b, c):
    return a < b < c, a <= b == c, 0 < a < 10 > b, (a if a < b < c else c)


def chained_in_if(a, b, c):
    if a < b <= c:
        return "rising"
    if not a < b < c and (a or b):
        return "other"
    return "flat"


def membership(a, items):
    return a in items, a not in items, a is None, a is not None


def while_sum(x, n):
    total = x
    i = 0
    while i < n:
        total = total + x * i
        i += 1
    return total


def while_data(x):
    steps = 0
    while float(np.abs(x).max()) > 1.0 and steps < 20:
        x = x / 2
        steps += 1
    return x, steps


def while_else(n):
    i = 0
    while i < n:
        if i == 5:
            break
        i += 1
    else:
        return "ran out", i
    return "broke", i


def while_true(x, limit):
    n = 0
    while True:
        n += 1
        x = x * 2
        if n >= limit:
            return x, n


def for_range(x, n):
    out = x
    for i in range(n):
        out = out + i * x
    return out


def for_rows(x):
    total = np.zeros(x.shape[1], x.dtype)
    for row in x:
        total = total + row
    return total


def for_else(items, wanted):
    for i, item in enumerate(items):
        if item == wanted:
            break
    else:
        i = -1
    return i


def for_continue_break(x, n):
    acc = x * 0
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 7:
            break
        acc = acc + i
    return acc


def nested_loops(n, m):
    out = []
    for i in range(n):
        for j in range(m):
            if j == i:
                continue
            if j > 3:
                break
            out.append((i, j))
        else:
            out.append((i, "all"))
    return out


def return_inside_loops(x, wanted):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] == wanted:
                return i, j
    return None


def break_in_inner_else(n):
    seen = []
    for i in range(n):
        for j in range(2):
            seen.append((i, j))
        else:
            if i == 2:
                break
            continue
    return seen


def loop_always_breaks(items):
    for item in items:
        return item
    return "nothing"


def growing_cache(x, n):
    cache = x
    for _ in range(n):
        cache = np.concatenate([cache, x.mean(axis=0, keepdims=True)], axis=0)
    return cache, cache.shape[0]


def shrinking(x):
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        x = x[:half] + x[-half:]
    return x


def fibonacci_unpack(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def dead_code(x):
    return x + 1
    x = x * 100
    while True:
        pass


def set_on_one_path(x, flag):
    if flag:
        y = x + 1
    return y


def deleted(x):
    y = x + 1
    del y
    return y


def loop_variable_after(n):
    for i in range(n):
        pass
    return i


CASES = [
    ProgramCase("if_else", if_else, [(x3, True), (x3, False), (x3, 0)]),
    ProgramCase("branch_on_data", branch_on_data, [(x3,), (-x3,), (x3 * -10,), (empty,)]),
    ProgramCase("branch_on_size", branch_on_size, [(x3,), (x3[:1],), (empty,)]),
    ProgramCase("branch_without_else", branch_without_else, [(x3, 1), (x3, 3)]),
    ProgramCase("ambiguous_truth", ambiguous_truth, [(x3,), (x3[:1],), (np.float32(2),), (-1,)]),
    ProgramCase("conditional_expression", conditional_expression, [(x3, 1), (x3, 0), (x3, -1)]),
    ProgramCase("and_or_values", and_or_values, [(1, 0, "c"), (0, "b", 3), ("", [], None), (1, 2, 3)]),
    ProgramCase("chained_comparison", chained_comparison, [(1, 2, 3), (3, 2, 1), (1, 1, 1), (1, "a", 3)]),
    ProgramCase("chained_in_if", chained_in_if, [(1, 2, 2), (3, 2, 1), (0, 0, 0), (1, 2, 1)]),
    ProgramCase("membership", membership, [(1, [1, 2]), (None, (1,)), (1, 5)]),
    ProgramCase("while_sum", while_sum, [(x3, 0), (x3, 1), (x3, 7)]),
    ProgramCase("while_data", while_data, [(x3 * 50,), (x3 * 0,)]),
    ProgramCase("while_else", while_else, [(3,), (9,), (0,)]),
    ProgramCase("while_true", while_true, [(x3, 1), (x3, 4)]),
    ProgramCase("for_range", for_range, [(x3, 0), (x3, 5), (x23, 2)]),
    ProgramCase("for_rows", for_rows, [(x23,), (empty,)]),
    ProgramCase("for_else", for_else, [([1, 2, 3], 2), ([1, 2, 3], 9), ([], 1)]),
    ProgramCase("for_continue_break", for_continue_break, [(x3, 5), (x3, 20), (x3, 0)]),
    ProgramCase("nested_loops", nested_loops, [(3, 3), (3, 9), (0, 2), (2, 0)]),
    ProgramCase("return_inside_loops", return_inside_loops, [(x23, 4), (x23, 99), (empty, 1)]),
    ProgramCase("break_in_inner_else", break_in_inner_else, [(2,), (5,)]),
    ProgramCase("loop_always_breaks", loop_always_breaks, [([1, 2],), ([],), (5,)]),
    ProgramCase("growing_cache", growing_cache, [(x23, 0), (x23, 6)]),
    ProgramCase("shrinking", shrinking, [(x23,), (np.arange(21.0),), (x3[:1],)]),
    ProgramCase("fibonacci_unpack", fibonacci_unpack, [(0,), (30,)]),
    ProgramCase("dead_code", dead_code, [(x3,)]),
    ProgramCase("set_on_one_path", set_on_one_path, [(x3, True), (x3, False)]),
    ProgramCase("deleted", deleted, [(x3,)]),
    ProgramCase("loop_variable_after", loop_variable_after, [(3,), (0,)]),
]
