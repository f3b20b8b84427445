"""Calls back into Python, changes of type in the middle, names and objects that change between and during calls."""
from __future__ import annotations

import importlib.util
import linecache
import sys
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import NATIVE_TIERS, TIERS, all_native, same, settle, warm

KEPT: list[Any] = []


@NATIVE_TIERS
def test_arrays_that_a_callback_keeps_stay_as_they_were_and_are_distinct(tier: str) -> None:
    kept: list[Any] = []

    @bcvm.jit(tier=tier)
    def f(x):
        y = x * 2
        z = y + 1
        try:
            kept.append((y, z))
        finally:
            pass
        return (y + z).sum(), y

    returned = []
    for i in range(100):
        n = (32, 1, 32, 7)[i % 4]
        s, y = f(np.full(n, float(i)))
        assert s == n * (4 * i + 1)
        returned.append(y)
        if i in (1, 2, 5):
            settle()
    assert len(kept) == 100
    assert len({id(y) for y, _ in kept} | {id(z) for _, z in kept}) == 200
    assert len({y.ctypes.data for y, _ in kept} | {z.ctypes.data for _, z in kept}) == 200
    for i, ((y, z), r) in enumerate(zip(kept, returned)):
        assert y is r
        np.testing.assert_array_equal(y, np.full(len(y), 2.0 * i))
        np.testing.assert_array_equal(z, np.full(len(y), 2.0 * i + 1))
    assert f.stats()["native"] + f.stats()["left"] > 80


@NATIVE_TIERS
def test_type_that_changes_in_a_callback(tier: str) -> None:
    values: list[Any] = [1, 2.5, np.arange(3.0), np.arange(3, dtype=np.float32), np.ones((2, 3), np.int64), True, "a", None]
    turn = [0]

    def plain(x):
        try:
            v = values[turn[0]]
        finally:
            pass
        if v is None:
            return x
        if isinstance(v, str):
            return v + "b"
        return v * x + 1

    f = bcvm.jit(plain, tier=tier)
    for _ in range(4):
        for turn[0] in range(len(values)):
            same(f(np.arange(3.0)), plain(np.arange(3.0)))
            same(f(3), plain(3)) if turn[0] != 6 else None
        settle()
    assert not f.stats()["errors"]


@TIERS
def test_type_that_changes_inside_a_loop(tier: str) -> None:
    def plain(x, n):
        v = 1
        for i in range(n):
            if i == 2:
                v = v + 0.5
            elif i == 5:
                v = v * x
            elif i == 7:
                v = v.astype(np.float32)
            elif i == 9:
                v = v[None]
            elif i == 11:
                v = v[None] + np.ones((2, 1, 1), np.float32)
            else:
                v = v + 1
        return v

    f = bcvm.jit(plain, tier=tier)
    for _ in range(3):
        for n in range(0, 15):
            same(f(np.arange(3.0), n), plain(np.arange(3.0), n))
        settle()
    assert not f.stats()["errors"]


@TIERS
def test_rank_that_grows_with_the_iterations(tier: str) -> None:
    def plain(x, n):
        for _ in range(n):
            x = x[None] * 2
        return x

    f = bcvm.jit(plain, tier=tier)
    for _ in range(2):
        for n in (0, 1, 3, 12, 20):
            same(f(np.arange(3.0), n), plain(np.arange(3.0), n))
        settle()


@NATIVE_TIERS
def test_dtype_alternates_after_a_callback_in_a_loop(tier: str) -> None:
    dtypes = [np.float32, np.float64, np.int64]

    def plain(x, n):
        total = x
        for i in range(n):
            y = x + i
            try:
                y = y.astype(dtypes[i % 3])
            finally:
                pass
            total = total + y * 2
        return total

    f = bcvm.jit(plain, tier=tier)
    x = np.arange(4, dtype=np.float32)
    for _ in range(4):
        for n in (1, 2, 3, 9, 40):
            same(f(x, n), plain(x, n))
        settle()
    assert not f.stats()["errors"]


# -- re-entrance

@TIERS
def test_function_called_from_within_its_own_callback(tier: str) -> None:
    def plain(x, n):
        y = x + n
        try:
            inner = again[0](x * 2, n - 1) if n > 0 else x
        finally:
            pass
        return y + inner * 2

    again: list[Any] = [plain]
    want = [plain(np.arange(3.0), n) for n in range(6)]
    f = again[0] = bcvm.jit(plain, tier=tier)
    for _ in range(4):
        for n in range(6):
            same(f(np.arange(3.0), n), want[n])
        settle()


@TIERS
def test_recursion(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def power(x, n):
        if n == 0:
            return x * 0 + 1
        half = power(x, n // 2)
        if n % 2:
            return half * half * x
        return half * half

    for _ in range(3):
        for n in range(12):
            np.testing.assert_allclose(power(np.array([1.0, 2.0, 0.5]), n), np.array([1.0, 2.0, 0.5]) ** n)
        settle()


@TIERS
def test_mutual_recursion_and_the_recursion_limit(tier: str) -> None:
    @bcvm.jit(tier=tier)
    def forever(n):
        return forever(n + 1)

    @bcvm.jit(tier=tier)
    def even(n):
        return True if n == 0 else odd(n - 1)

    @bcvm.jit(tier=tier)
    def odd(n):
        return False if n == 0 else even(n - 1)

    for _ in range(3):
        assert even(10) is True and even(7) is False
        settle()
    with pytest.raises(RecursionError):
        forever(0)


# -- names that are bound anew

SCALE = np.array(3.0)
TABLE = {"w": 2.0, "list": [1.0, 2.0]}


def helper(x):
    return x * 2


def uses_globals(x):
    return helper(x) + SCALE


@NATIVE_TIERS
def test_helper_is_rebound_between_calls(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = bcvm.jit(uses_globals, tier=tier)
    x = np.arange(3.0)
    warm(f, x)
    for k in range(20):
        def other(x, k=k):
            return x * k - 1
        monkeypatch.setattr(sys.modules[__name__], "helper", other)
        for _ in range(2):
            same(f(x), x * k - 1 + 3.0)
        settle()
    assert f.stats()["specialisations"] <= 8
    monkeypatch.undo()
    same(f(x), x * 2 + 3.0)


@NATIVE_TIERS
def test_global_array_is_rebound_without_a_compilation(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = bcvm.jit(uses_globals, tier=tier)
    x = np.arange(3.0)
    warm(f, x)
    before = f.stats()["compiles"]
    for k in range(50):
        monkeypatch.setattr(sys.modules[__name__], "SCALE", np.array(float(k)))
        same(f(x), x * 2 + k)
    assert f.stats()["compiles"] == before
    monkeypatch.setattr(sys.modules[__name__], "SCALE", np.arange(3, dtype=np.float32))
    same(f(x), x * 2 + np.arange(3))
    settle()
    same(f(x), x * 2 + np.arange(3))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 7)
    same(f(x), x * 2 + 7)
    monkeypatch.delattr(sys.modules[__name__], "SCALE")
    with pytest.raises(NameError, match="name 'SCALE' is not defined"):
        f(x)
    monkeypatch.undo()
    same(f(x), x * 2 + 3.0)


@NATIVE_TIERS
def test_numpy_function_is_replaced_and_put_back(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @bcvm.jit(tier=tier)
    def f(x):
        return np.exp(x) + 1

    x = np.arange(3.0)
    want = np.exp(x) + 1
    warm(f, x)
    same(f(x), want)
    monkeypatch.setattr(np, "exp", lambda x: x * 100)
    for _ in range(3):
        same(f(x), x * 100 + 1)
        settle()
    monkeypatch.undo()
    same(f(x), want)
    assert f.stats()["specialisations"] <= 3


def test_builtin_is_shadowed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    @bcvm.jit(tier="full")
    def f(x):
        return max(x, 3)

    assert f(1) == 3 and f(5) == 5
    monkeypatch.setattr(sys.modules[__name__], "max", lambda a, b: (a, b), raising=False)
    assert f(1) == (1, 3)
    monkeypatch.undo()
    assert f(1) == 3


class Box:
    def __init__(self) -> None:
        self.w = np.arange(3.0)
        self.n = 2
        self.items = [np.ones(3), 5]
        self.table = {"a": np.ones(3), "b": 1.5}


def reads(x, box):
    return x * box.n + box.w + box.items[0] * box.items[1] + box.table["a"] * box.table["b"]


@NATIVE_TIERS
def test_attributes_and_items_that_change_between_calls(tier: str) -> None:
    f, box, x = bcvm.jit(reads, tier=tier), Box(), np.arange(3.0)
    warm(f, x, box)
    before = f.stats()["compiles"]

    def change(i: int) -> None:
        if i % 6 == 0:
            box.w[1] = i  # in place
        elif i % 6 == 1:
            box.w = np.full(3, float(i))
        elif i % 6 == 2:
            box.n = i
        elif i % 6 == 3:
            box.items[0] = np.full(3, i * 2.0)
        elif i % 6 == 4:
            box.items[1] = i
        else:
            box.table["a"] = np.full(3, -float(i))
            box.table["b"] = i / 2

    for i in range(30):
        change(i)
        same(f(x, box), reads(x, box))
    stats = f.stats()
    assert stats["compiles"] == before and stats["interpreted"] <= 2 and not stats["exits"], stats
    box.items.append(9)
    box.table["c"] = 1
    same(f(x, box), reads(x, box))
    box.table = {"b": 2.0, "a": np.ones(3)}
    same(f(x, box), reads(x, box))
    del box.w
    with pytest.raises(AttributeError, match="'Box' object has no attribute 'w'"):
        f(x, box)


@NATIVE_TIERS
@pytest.mark.parametrize("what", ["in place", "attribute", "item", "table", "global", "cell", "argument", "type"])
def test_changes_during_a_call(tier: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = np.ones(3)

    def plain(x, box):
        before = x * box.n + box.w + box.items[0] + box.table["a"] + SCALE + cell
        try:
            change()
        finally:
            pass
        return before, x * box.n + box.w + box.items[0] + box.table["a"] + SCALE + cell

    def change() -> None:
        nonlocal cell
        if what == "in place":
            box.w += 1
        elif what == "attribute":
            box.w = box.w + 1
        elif what == "item":
            box.items[0] = box.items[0] + 1
        elif what == "table":
            box.table["a"] = box.table["a"] * 2
        elif what == "global":
            monkeypatch.setattr(sys.modules[__name__], "SCALE", SCALE + 1)
        elif what == "cell":
            cell = cell + 1
        elif what == "argument":
            x[:] += 1
        else:
            box.n = box.n + 0.5 if type(box.n) is int else int(box.n) + 1

    def results(f: Any) -> list[Any]:
        nonlocal box, x, cell
        box, x, cell = Box(), np.arange(3.0), np.ones(3)
        monkeypatch.setattr(sys.modules[__name__], "SCALE", np.array(3.0))
        out = []
        for _ in range(8):
            out.append(f(x, box))
            settle()
        return out

    box, x = Box(), np.arange(3.0)
    want = results(plain)
    f = bcvm.jit(plain, tier=tier)
    for g, w in zip(results(f), want):
        same(g, w)
    assert not f.stats()["errors"]


@NATIVE_TIERS
def test_closure_cell_is_rebound(tier: str) -> None:
    def make():
        k, w = 2, np.ones(3)

        @bcvm.jit(tier=tier)
        def f(x):
            return x * k + w

        def change(new_k, new_w):
            nonlocal k, w
            k, w = new_k, new_w

        def forget():
            nonlocal k
            del k
        return f, change, forget

    f, change, forget = make()
    x = np.arange(3.0)
    warm(f, x)
    before = f.stats()["compiles"]
    for i in range(20):
        change(i, np.full(3, float(i)))
        same(f(x), x * i + i)
    assert f.stats()["compiles"] == before
    change(2.5, np.arange(6.0).reshape(2, 3))
    same(f(x), x * 2.5 + np.arange(6.0).reshape(2, 3))
    forget()
    with pytest.raises(NameError, match="k"):
        f(x)


@TIERS
def test_default_objects_are_replaced_and_changed(tier: str) -> None:
    def plain(x, w=np.ones(3), items=[1, 2], *, k=2):  # noqa: B006, B008
        return x * k + w + items[0]

    def inner(x):
        return plain(x)

    f, g, x = bcvm.jit(plain, tier=tier), bcvm.jit(inner, tier=tier), np.arange(3.0)
    warm(f, x)
    warm(g, x)
    assert plain.__defaults__ and plain.__kwdefaults__
    plain.__defaults__[0][:] = 5
    same(f(x), plain(x))
    same(g(x), plain(x))
    plain.__defaults__[1][0] = 10
    same(f(x), plain(x))
    same(g(x), plain(x))
    plain.__kwdefaults__["k"] = 7
    same(f(x), plain(x))
    same(g(x), plain(x))
    for defaults in ((np.full(3, 100.0), [3]), (np.ones(3, np.float32), [np.ones(3)]), (np.ones(3), [1, 2, 3])):
        plain.__defaults__ = defaults
        for _ in range(3):
            same(f(x), plain(x))
            same(g(x), plain(x))
            settle()
    plain.__defaults__ = (7, np.ones(3), [3])  # x has one now
    for _ in range(3):
        same(f(x), plain(x))
        same(f(), plain())
        settle()
    plain.__kwdefaults__ = None
    for call in (f, g):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'k'"):
            call(x)
    assert not f.stats()["errors"] and not g.stats()["errors"]


# -- where functions come from

def load_module(path: Any, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@TIERS
def test_source_edited_after_import(tier: str, tmp_path: Any) -> None:
    path = tmp_path / "edited.py"
    path.write_text("def f(x):\n    return x * 2 + 1\n")
    module = load_module(path, "edited")
    path.write_text("def f(x):\n    return x * 9 - 4\n")
    linecache.checkcache()
    f = bcvm.jit(module.f, tier=tier)
    for _ in range(3):
        same(f(np.arange(3.0)), np.arange(3.0) * 2 + 1)
        settle()


@TIERS
def test_function_made_by_exec(tier: str) -> None:
    space: dict[str, Any] = {"np": np}
    exec("def f(x, k=3):\n    if k > 2:\n        return np.tanh(x) * k\n    return x", space)
    f = bcvm.jit(space["f"], tier=tier)
    for _ in range(3):
        same(f(np.arange(3.0)), np.tanh(np.arange(3.0)) * 3)
        same(f(np.arange(3.0), 1), np.arange(3.0))
        settle()


@TIERS
def test_two_lambdas_on_one_line(tier: str) -> None:
    a, b = bcvm.jit(lambda x: x + 1, tier=tier), bcvm.jit(lambda x: x * 2, tier=tier)
    c, d = (bcvm.jit(f, tier=tier) for f in (lambda x, y=1: x + y, lambda x, y=2: x + y))
    x = np.arange(3.0)
    for _ in range(3):
        same([a(x), b(x), c(x), d(x)], [x + 1, x * 2, x + 1, x + 2])
        settle()


def test_lambda_in_a_loop_takes_the_value_of_its_time() -> None:
    fs = [bcvm.jit(lambda x, k=k: x * k, tier="full") for k in range(4)]
    for k, f in enumerate(fs):
        same(f(np.arange(3.0)), np.arange(3.0) * k)
        all_native(f, 1)
