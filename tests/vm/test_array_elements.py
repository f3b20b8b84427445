"""An element read from an array is a number of its own: it keeps its value when the array is written afterwards."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import same
from tests.vm.op_calls import function

PROGRAMS = [
    "a = x[0]\nx[0] = 5\nreturn a",
    "x[0], x[1] = x[1], x[0]\nreturn x",
    "x[1], x[0] = x[0], x[1] + 0\nreturn x",
    "a = x[0]\nx += 1\nreturn a, a + 1, x",
    "a, b, c, d = x\nx += 1\nreturn a, b + 1, c, d",
    "s = 0\nfor a in x:\n    x += 1\n    s = s + a\nreturn s",
    "s = x[0]\nfor i in range(3):\n    x[0] = x[1]\n    x[1] = s\n    s = x[0]\nreturn s, x",
    "a = x[1]\nx[1:] = x[:-1]\nreturn a",
    "a = (x[0], x[1])\nx[0] = 9\nreturn a[0] + 1, a",
    "a = x[0]\nif x[1] > -5:\n    x[0] = 7\nreturn a",
    "a = x[0]\nb = a[None]\nx[0] = 7\nreturn b",
    "a = x[0]\nx[0] = 7\nprint(end='')\nreturn a, x[0]",   # leaves native code with both
    "a = x[0]\nx[0] = 7\nx[1] = a\nx[2] = x[0]\nreturn x, a",
    "a = x[:1]\nx[0] = 7\nreturn a",                        # an array of one element is a view
    "a = x[0, ...]\nx[0] = 7\nreturn a",                    # so is one of rank 0
    "a = x[0].item()\nx[0] = 7\nreturn a",
    "y = x * 2\na = y[0]\nx[0] = 7\ny[0] = a + x[0]\nreturn a, y",
]


@pytest.mark.parametrize("tier", ["full", "splice", "auto"])
@pytest.mark.parametrize("body", PROGRAMS)
def test_elements_keep_their_value(body: str, tier: str) -> None:
    plain = function("def f(x):\n" + "".join(f"    {line}\n" for line in body.split("\n")))
    jitted = bcvm.jit(plain, tier=tier, background=False, compile_timeout_ms=60_000)
    for dtype in (np.float64, np.int32):
        for _ in range(2):
            mine, theirs = np.arange(4).astype(dtype) - 1, np.arange(4).astype(dtype) - 1
            same(jitted(mine), plain(theirs))
            np.testing.assert_array_equal(mine, theirs)
    assert not jitted.stats()["errors"] and (jitted.stats()["native"] or "print" in body)


@pytest.mark.parametrize("made", ["x[0][...]", "x[0][None]", "x[0].reshape(1)", "np.asarray(x[0])", "np.expand_dims(x[0], 0)", "x[0].reshape(-1)[...]"])
def test_arrays_made_of_an_element_have_memory_of_their_own(made: str) -> None:
    jitted = bcvm.jit(function(f"def f(x):\n    return {made}\n"), tier="full", background=False)
    for _ in range(2):
        x = np.arange(4.0)
        result = jitted(x)
        assert not np.shares_memory(result, x) and result.flags.writeable
        result[...] = 9
        assert x[0] == 0


@pytest.mark.parametrize("exits", ["all", "random"])
def test_elements_keep_their_value_wherever_native_code_leaves(exits: str) -> None:
    def mixed(x: Any, n: int) -> Any:
        a = x[0]
        for i in range(n):
            x[i], x[i + 1] = x[i + 1], x[i]
            if x[0] > a:
                x[0] = a
            a = x[1]
        return a, x

    jitted = bcvm.jit(mixed, tier="full", background=False, exits=exits)
    for _ in range(12):
        same(jitted(np.arange(6.0) - 2, 4), mixed(np.arange(6.0) - 2, 4))
