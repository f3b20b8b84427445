"""Branches and loops: parameters, references along edges, memory that does not grow, exits inside loops; numbers with Python's meaning."""
from __future__ import annotations

import ctypes
import itertools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driver_harness import Aggregate, Block, Build, Exit, Jump, Left, Program_, Value, dim

from bcvm.compiler import abi
from bcvm.compiler.runtime import runtime
from bcvm.shapes.dim import Dim
from bcvm.specialise.types import Scalar, Tensor


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype("float32")


def arena_bytes(ctx: int) -> int:
    """Bytes of the chunks of a context: small buffers are cut from them."""
    total, chunk = 0, ctypes.c_uint64.from_address(ctx + 8 * abi.CTX_CHUNKS).value
    while chunk:
        chunk, size = (ctypes.c_uint64 * 2).from_address(chunk)
        total += size
    return total


def test_branch_results_meet_in_a_parameter() -> None:
    b = Build()
    x, c = b.array("float32", 2), b.input(Scalar("bool"))
    p = b.param("float32", 2)
    then, orelse, last = b.new_block(), b.new_block(), b.new_block([p])
    b.branch(c, Jump(then, ()), Jump(orelse, ()))
    b.block = then
    b.jump(last, b.op("add", x, x))
    b.block = orelse
    b.jump(last, x)
    b.block = last
    b.ret(p)
    f = Program_(b.graph)
    v = floats(3, 4)
    count = sys.getrefcount(v)
    np.testing.assert_array_equal(f(v, True), v + v)
    assert f(v, False) is v
    r = f(v, True)
    assert sys.getrefcount(r) == 2 and sys.getrefcount(v) == count


def test_views_pass_through_parameters() -> None:
    b = Build()
    x, c = b.array("float32", 2), b.input(Scalar("bool"))
    m, n = x.type.dims
    y = b.op("add", x, x)
    p = b.param("float32", 2)
    last = b.new_block([p])
    xt = b.view(x, "transpose", (n, m), perm=(1, 0))
    yt = b.view(y, "transpose", (n, m), perm=(1, 0))
    b.branch(c, Jump(last, (xt,)), Jump(last, (yt,)))
    b.block = last
    b.ret(b.op("mul", p, p), b.view(p, "slice", (p.type.dims[1],), items=[("index", dim(0)), ("slice", dim(0), 1)]), p)
    f = Program_(b.graph)
    v = floats(3, 4)
    count = sys.getrefcount(v)
    for flag, want in ((True, v.T), (False, (v + v).T)):
        square, row, whole = f(v, flag)
        np.testing.assert_array_equal(square, want * want)
        np.testing.assert_array_equal(row, want[0])
        np.testing.assert_array_equal(whole, want)
        assert np.shares_memory(row, whole) and np.shares_memory(whole, v) == flag
        del square, row, whole
    assert sys.getrefcount(v) == count


def counting_loop(b: Build, n: Value, start: list[Value], params: list[Value], body: Callable[[Value, list[Value]], list[Value]]) -> list[Value]:
    """for i in range(n): params = body(i, params). Leaves b.block behind the loop."""
    i = b.value(Scalar("int"))
    i.dim = Dim.symbol(f"i{i.id}")
    head, inside, after = b.new_block([i, *params], loop=True), b.new_block(), b.new_block()
    head.state = b.state(n, i, *params)
    b.jump(head, b.number(0), *start)
    b.block = head
    b.branch(b.scalar("lt", i, n, kind="bool"), Jump(inside, ()), Jump(after, ()))
    b.block = inside
    values = body(i, params)
    b.jump(head, b.scalar("add", i, b.number(1), state=head.state), *values)
    b.block = after
    return params


def growing(exit_at: int | None = None) -> Build:
    """cache = x; for i in range(n): cache = concat(cache, tanh(x) * i)."""
    b = Build()
    x, n = b.array("float32", 2), b.input(Scalar("int"))
    m, k = x.type.dims
    p = b.value(None)
    p.type = Tensor("numpy", "float32", (Dim.symbol(f"p{p.id}"), k))

    def body(i: Value, params: list[Value]) -> list[Value]:
        if exit_at is not None:
            b.node("guard", [b.scalar("ne", i, b.number(exit_at), kind="bool")], (), b.block_state)
        step = b.op("mul", b.op("tanh", x), b.op("cast", i, dtype="float32"))
        return [b.op("concat", params[0], step, axis=0)]
    start = b.op("add", x, x)
    b.block_state = b.state(n, p, x, x)
    counting_loop(b, n, [start], [p], body)
    b.ret(p)
    return b


def grown(v: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([v + v] + [np.tanh(v) * np.float32(i) for i in range(n)])


def test_a_loop_grows_a_tensor() -> None:
    f = Program_(growing().graph)
    v = floats(2, 5)
    for n in (0, 1, 2, 40):
        np.testing.assert_allclose(f(v, n), grown(v, n), rtol=1e-5, atol=1e-6)
    assert f(v, -3).shape == (2, 5)


def test_exits_inside_loops() -> None:
    f = Program_(growing(exit_at=7).graph)
    v = floats(2, 5)
    np.testing.assert_allclose(f(v, 7), grown(v, 7), rtol=1e-5, atol=1e-6)
    with pytest.raises(Left) as left:
        f(v, 9)
    n, cache, x = left.value.values
    assert left.value.reason == "guard" and n == 9 and x is v
    np.testing.assert_allclose(cache, grown(v, 7), rtol=1e-5, atol=1e-6)


def test_interrupts_leave_at_the_header() -> None:
    f = Program_(growing().graph)
    words = runtime()._words
    words[0] = 1
    try:
        with pytest.raises(Left) as left:
            f(floats(2, 5), 3)
        assert left.value.reason == "interrupt" and left.value.values[1] == 0
    finally:
        words[0] = 0


def test_memory_does_not_grow_over_iterations() -> None:
    b = Build()
    x, n = b.array("float32", 2), b.input(Scalar("int"))
    p, q = (b.value(None) for _ in range(2))
    for v in (p, q):
        v.type = Tensor("numpy", "float32", x.type.dims)

    def body(i: Value, params: list[Value]) -> list[Value]:
        a, c = params
        t = b.op("mul", b.op("add", a, c), b.full(0.5, "float32"))
        flat = b.view(b.view(t, "transpose", (x.type.dims[1], x.type.dims[0]), perm=(1, 0)), "reshape", (x.type.dims[0] * x.type.dims[1],))
        s = b.op("sum", flat, axis=(0,))
        return [c, b.op("add", t, s)]  # swaps the two
    counting_loop(b, n, [x, x], [p, q], body)
    b.ret(p, q)
    f = Program_(b.graph)
    v = floats(7, 11) * 0
    count = sys.getrefcount(v)
    with runtime().context() as ctx:
        f.run(ctx, v, 10)
        few = arena_bytes(ctx)
        a, c = f.run(ctx, v, 100_000)
        assert arena_bytes(ctx) == few
    np.testing.assert_array_equal(a, v)
    del a, c
    same, other = f(v, 0)
    assert same is v and other is v
    del same, other
    assert sys.getrefcount(v) == count


def test_objects_are_balanced_in_loops() -> None:
    """Arrays born outside a loop, views of inputs and of arrays as loop state: every reference is given back."""
    b = Build()
    x, n = b.array("float32", 1), b.input(Scalar("int"))
    size, = x.type.dims
    p = b.value(None)
    p.type = Tensor("numpy", "float32", (size,))
    y = b.op("add", x, x)
    rx = b.view(x, "slice", (size,), items=[("slice", size - 1, -1)])

    def body(i: Value, params: list[Value]) -> list[Value]:
        then, orelse, q = b.new_block(), b.new_block(), b.value(Tensor("numpy", "float32", (size,)))
        join = b.new_block([q])
        b.branch(b.scalar("eq", b.scalar("mod", i, b.number(2), state=b.state(n, i, x)), b.number(0), kind="bool"), Jump(then, ()), Jump(orelse, ()))
        b.block = then
        b.jump(join, b.view(y, "slice", (size,), items=[("slice", size - 1, -1)]))
        b.block = orelse
        b.jump(join, rx)
        b.block = join
        return [q]
    counting_loop(b, n, [x], [p], body)
    b.ret(y, p)
    f = Program_(b.graph)
    v = floats(5)
    count = sys.getrefcount(v)
    for k, want in ((0, v.copy()), (1, (v + v)[::-1]), (2, v[::-1].copy()), (101, (v + v)[::-1])):
        y_, p_ = f(v, k)
        np.testing.assert_array_equal(p_, want)
        np.testing.assert_array_equal(y_, v + v)
        refs = sys.getrefcount(y_) - (1 if k % 2 else 0)
        assert refs == 2, k
        del y_, p_
        assert sys.getrefcount(v) == count, k


def test_objects_held_inside_a_loop_are_released_at_exits() -> None:
    b = Build()
    x, n = b.array("float32", 1), b.input(Scalar("int"))
    size, = x.type.dims
    y = b.op("add", x, x)
    p = b.value(Tensor("numpy", "float32", (size,)))

    def body(i: Value, params: list[Value]) -> list[Value]:
        b.node("guard", [b.scalar("lt", i, b.number(3), kind="bool")], (), b.state(i, params[0]))
        return [y]
    counting_loop(b, n, [b.view(x, "slice", (size,), items=[("slice", size - 1, -1)])], [p], body)
    b.ret(y, p)
    f = Program_(b.graph)
    v = floats(1000)
    count = sys.getrefcount(v)
    y_, p_ = f(v, 3)
    assert p_ is y_
    for k in (4, 9):
        with pytest.raises(Left) as left:
            f(v, k)
        i, kept = left.value.values
        assert i == 3
        np.testing.assert_array_equal(kept, v + v)
        assert sys.getrefcount(kept) <= 3
        del left, kept
    assert sys.getrefcount(v) == count


def test_exit_terminators_and_dead_parameters() -> None:
    b = Build()
    x, c = b.array("float32", 1), b.input(Scalar("bool"))
    p = b.param("float32", 1)
    last, out = b.new_block([p]), b.new_block()
    b.branch(c, Jump(last, (b.op("exp", x),)), Jump(out, ()))
    b.block = last
    b.ret(x)
    out.end = Exit(b.state(c, Aggregate("tuple", (x, None))), "unsupported: thing")
    f = Program_(b.graph)
    v = floats(3)
    assert f(v, True) is v
    with pytest.raises(Left, match="thing"):
        f(v, False)


# -- numbers

INTS = (0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 1 << 31, -(1 << 31), (1 << 53) + 1, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.7, 1e300, -1e300, 1e18, 5e-324, math.inf, -math.inf, math.nan, float(1 << 53))
BINARY: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod, "truediv": operator.truediv,
    "pow": operator.pow, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "min": min, "max": max}
INT_ONLY: dict[str, Callable[..., Any]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "abs": abs, "int": int, "float": float, "bool": bool, "not": operator.not_, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round}


def number_program(fn: str, kinds: tuple[str, ...], result: str) -> Program_:
    b = Build()
    args = [b.input(Scalar(k)) for k in kinds]
    b.ret(b.scalar(fn, *args, kind=result, state=b.state(*args)))
    return Program_(b.graph)


def agree(f: Program_, python: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether native code gave Python's result; False if it left."""
    try:
        want = python(*args)
    except (ArithmeticError, ValueError):
        want = None
    try:
        got = f(*args)
    except Left as left:
        assert all(type(a) is type(v) and repr(a) == repr(v) for a, v in zip(args, left.values, strict=True))
        return False
    assert type(got) is type(want), (args, got, want)
    assert got == want or (got != got and want != want) or abs(got - want) <= 2e-16 * abs(want), (args, got, want)
    assert got != 0 or math.copysign(1, got) == math.copysign(1, want), (args, got, want)
    return True


@pytest.mark.parametrize("fn", [*BINARY, *INT_ONLY])
def test_binary_functions_have_pythons_meaning(fn: str) -> None:
    python = {**BINARY, **INT_ONLY}[fn]
    comparing = fn in ("eq", "ne", "lt", "le", "gt", "ge")
    for kinds in (("int", "int"), ("float", "float"), ("int", "float"), ("bool", "bool")):
        if fn in INT_ONLY and kinds[0] != kinds[1] or (fn in INT_ONLY and kinds[0] == "float") or (fn in ("min", "max") and kinds[0] != kinds[1]):
            continue
        if kinds[0] == "bool" and fn in ("min", "max", "pow"):
            continue
        result = "bool" if comparing or (kinds[0] == "bool" and fn in ("and", "or", "xor")) else "float" if "float" in kinds or fn == "truediv" else "int"
        f = number_program(fn, kinds, result)
        sets = {"int": INTS, "float": FLOATS, "bool": (False, True)}
        done = 0
        for args in itertools.product(*(sets[k] for k in kinds)):
            if fn == "pow" and kinds == ("int", "int") and args[1] > 64 or (fn == "shl" and args[1] > 64):
                continue
            done += agree(f, python, args)
        assert done > 1, kinds


@pytest.mark.parametrize("fn", list(UNARY))
def test_unary_functions_have_pythons_meaning(fn: str) -> None:
    for kind, values in (("int", INTS), ("float", FLOATS)):
        result = {"int": "int", "float": "float", "bool": "bool", "not": "bool"}.get(fn) or ("float" if fn in ("sqrt", "exp", "log") else "int" if fn not in ("neg", "abs") else kind)
        if kind == "int" and fn in ("floor", "ceil", "trunc", "round"):
            continue
        f = number_program(fn, (kind,), result)
        assert sum(agree(f, UNARY[fn], (v,)) for v in values) > 3


def test_exact_ints_stay_native() -> None:
    f = number_program("mod", ("int", "int"), "int")
    assert [f(a, b) for a, b in ((7, 3), (-7, 3), (7, -3), (-7, -3), (-(1 << 63), -1))] == [1, 2, -2, -1, 0]


@pytest.mark.parametrize("n", [100, 400])
def test_long_graphs_compile_in_linear_time(n: int) -> None:
    import time

    from bcvm.compiler.compile import compile_graph
    from bcvm.compiler.target import host

    class Slots:
        def slot_for(self, key: Any, make: Any) -> int:
            return 0

    def compile_time(n: int) -> float:
        b = Build()
        x, y = b.array("float32", 2, "x"), b.array("float32", 2, "y")
        st = b.state(x, y)
        for _ in range(n):
            b.check_broadcast(x, y, st)
            z = b.op("softplus", b.op("add", x, y))
            z = b.op("sub", z, b.op("max", z, axis=(1,), keepdims=True))
            x = b.view(b.op("sum", z, axis=(0,), keepdims=True), "broadcast", x.type.dims)
        b.ret(x)
        begun = time.perf_counter()
        compiled = compile_graph(b.graph, Slots(), host())
        assert len(compiled.regions) >= n
        return time.perf_counter() - begun
    compile_time(5)
    per_step = min(compile_time(n) for _ in range(2)) / n
    assert per_step < 5e-3


def test_many_blocks() -> None:
    b = Build()
    x, k = b.array("float32", 1), b.input(Scalar("int"))
    y: Value = x
    for i in range(60):
        p = b.value(Tensor("numpy", "float32", x.type.dims))
        then, orelse, join = b.new_block(), b.new_block(), b.new_block([p])
        b.branch(b.scalar("gt", k, b.number(i), kind="bool"), Jump(then, ()), Jump(orelse, ()))
        b.block = then
        b.jump(join, b.op("add", y, x))
        b.block = orelse
        b.jump(join, y)
        b.block = join
        y = p
    b.ret(y)
    f = Program_(b.graph)
    v = np.ones(4, "f4")
    for n in (0, 1, 17, 60):
        np.testing.assert_array_equal(f(v, n), v * (n + 1))
    assert f(v, 0) is v
    assert isinstance(b.block, Block)


def test_steps_are_reported() -> None:
    from driver_harness import TABLE

    from bcvm.compiler.compile import compile_graph
    from bcvm.compiler.target import host
    b = Build()
    x = b.array("float32", 1)
    b.ret(b.op("exp", b.op("neg", x)))
    seen: list[tuple[str, int]] = []
    compile_graph(b.graph, TABLE, host(), lambda name, took, fused: seen.append((name, fused)))
    assert seen == [("IR", 0), ("Fusion", 2), ("Mapping", 0)]


@pytest.mark.parametrize("many", [0, 1000])
def test_exits_write_the_same_words_by_a_function_and_in_place(many, monkeypatch) -> None:
    import bcvm
    from bcvm.compiler.driver import states
    monkeypatch.setattr(states, "MANY", many)

    def f(x, y, n):
        z = x * 2.0
        total = (z + y[0]).sum(-1)
        return total, z[:n], np.linalg.norm(z), y * float(len(str(n)))  # what is called is no op: the rest is interpreted, from the tensors of the moment

    fast = bcvm.jit(f, tier="full", background=False)
    for rows in (2, 5):
        x, y = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.ones((2, 4, rows, 3), np.float32)[:, ::2][:, 0]
        for got, want in zip(fast(x, y, 1), f(x, y, 1), strict=True):
            np.testing.assert_allclose(got, want)
    assert fast.stats()["left"] == 2, fast.stats()
