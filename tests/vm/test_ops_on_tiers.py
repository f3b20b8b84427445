"""Every op of the table gives its reference's result on every tier, in every memory layout, and runs native."""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.ops.definition import OPS, Composite, Op, Opaque, register
from tests.ops.comparing import check
from tests.vm.op_calls import PYTHON_NUMBERS, Attrs, call_of, contiguous, function, layouts, spelled

DTYPES = ("float32", "float64", "int32", "int64", "bool")
EVERYTHING = bool(os.environ.get("BCVM_TEST_EVERYTHING"))  # else dtypes after an op's first take turns over its kinds of calls
CASES = [(name, dtype) for name, op in OPS.items() for dtype in DTYPES if dtype in op.domain and op.samples and not name.startswith("test.")]

# Calls that native code leaves to the interpreter, and why. Their results are checked as well.
NOT_NATIVE: dict[str, tuple[Callable[[tuple[Any, ...], Attrs], bool], str]] = {
    "take": (lambda operands, attrs: 0 in operands[0].shape[attrs["axis"] + 1:], "NumPy checks indices of empty rows, native code only those it copies by"),
}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def signature(operands: tuple[Any, ...], attrs: Attrs) -> str:
    return repr((attrs, [(np.ndim(o), np.asarray(o).dtype.name) for o in operands]))


def calls(op: Op, dtype: str) -> Iterator[tuple[Attrs, list[tuple[Any, ...]]]]:
    """Attributes and operands of the op's samples, those together that share one piece of native code."""
    groups: dict[str, tuple[Attrs, list[tuple[Any, ...]]]] = {}
    for operands, attrs in op.samples(np.random.default_rng(11), dtype):  # type: ignore[misc]
        groups.setdefault(signature(operands, attrs), (attrs, []))[1].append(operands)
    turn = [d for d in DTYPES if d in op.domain].index(dtype)
    for i, group in enumerate(groups.values()):
        if EVERYTHING or not turn or i % 3 == turn % 3 or len(groups) <= 2:
            yield group


def expected(op: Op, operands: tuple[Any, ...], attrs: Attrs) -> Any:
    assert op.reference is not None
    return op.reference(*(contiguous(o) for o in operands), **attrs)


def arguments(op: Op, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    if op.name == "arange":
        return tuple(int(o) for o in operands)
    return tuple(o.item() for o in operands) if op.name in PYTHON_NUMBERS else operands


@pytest.mark.parametrize("name,dtype", CASES)
def test_op_gives_its_references_result_and_runs_native(name: str, dtype: str) -> None:
    op = OPS[name]
    ran = 0
    for attrs, group in calls(op, dtype):
        plain = call_of(op, len(group[0]), attrs)
        native, interpreted = bcvm.jit(plain, tier="full", background=False), bcvm.jit(plain, tier="interpret")
        for operands in group:
            for layout, arrays in layouts(operands):
                args = arguments(op, arrays)
                before = [contiguous(a) for a in arrays]
                want = expected(op, arrays, attrs)
                kind = type(plain(*args))
                for tier in (native, interpreted) if layout in ("contiguous", "mixed", "broadcast") else (native,):
                    got = tier(*args)
                    where = f"{layout} {[a.shape for a in arrays]} {attrs}"
                    try:
                        check(op, got, want)
                    except AssertionError as e:
                        raise AssertionError(f"{where}: {e}\n got {got}\nwant {want}") from None
                    assert type(got) is kind, f"{where}: {type(got)}, not {kind}"
                    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(arrays, before)), f"{where}: an operand changed"
                ran += 1
        stats = native.stats()
        if not isinstance(op.form, Opaque) and not any(NOT_NATIVE[name][0](operands, attrs) for operands in group if name in NOT_NATIVE):
            assert stats["native"] == stats["calls"] and not stats["exits"] and not stats["errors"], f"{[np.shape(o) for o in group[0]]} {attrs}: {stats}"
    assert ran


# -- ops beside ops

def both(fn: Any, *args: Any) -> Any:
    """What a function gives natively, after a check that it ran native and gives what it gives in the interpreter and in Python."""
    want = fn(*args)
    native, interpreted = bcvm.jit(fn, tier="full", background=False), bcvm.jit(fn, tier="interpret")
    got = native(*args)
    same(got, want)
    same(interpreted(*args), want)
    stats = native.stats()
    assert stats["native"] == stats["calls"] and not stats["exits"] and not stats["errors"], stats
    return got


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want), (type(got), type(want))
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
        return
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    close = got.dtype.itemsize > 4
    largest = float(np.max(np.abs(want), initial=0, where=np.isfinite(want))) if want.dtype.kind == "f" else 0.0  # what sums that cancel are rounded to
    np.testing.assert_allclose(got, want, rtol=1e-10 if close else 2e-5, atol=1e-10 if close else 1e-6 + 1e-7 * largest)


def first_call(op: Op) -> tuple[tuple[Any, ...], Attrs]:
    """A small sample in single precision, of some elements."""
    found = list(op.samples(np.random.default_rng(5), "float32" if "float32" in op.domain else "int32"))  # type: ignore[misc]
    return next(((o, a) for o, a in found if o and all(np.size(x) for x in o) and any(np.ndim(x) for x in o)), found[-1])


COMBINED = [n for n, op in OPS.items() if op.samples and n not in PYTHON_NUMBERS and n != "eye" and not n.startswith("test.")]


@pytest.mark.parametrize("name", COMBINED)
def test_op_inside_a_larger_expression(name: str) -> None:
    """Its operands are results of other ops, its result is an operand, and both it and what is made of it are returned."""
    op = OPS[name]
    operands, attrs = first_call(op)
    names = [f"x{i}" for i in range(len(operands))]
    made = [n if np.asarray(o).dtype.kind != "f" or name == "slice" else f"({n} * {n}.dtype.type(2))" for n, o in zip(names, operands)]
    text = f"def f({', '.join(names)}):\n    y = {spelled(op, made, attrs)}\n    z = ops.abs(y) + ops.abs(y)\n    return y, z, z == y\n"
    both(function(text), *operands)


@pytest.mark.parametrize("name", [n for n in COMBINED if len(OPS[n].operands) == 2 and "*" not in "".join(OPS[n].operands)])
def test_one_array_as_both_operands(name: str) -> None:
    op = OPS[name]
    for operands, attrs in op.samples(np.random.default_rng(5), "float32" if "float32" in op.domain else "int32"):  # type: ignore[misc]
        a, b = (np.asarray(o) for o in operands)
        if a.shape == b.shape and a.dtype == b.dtype and a.ndim and (name != "matmul" or a.shape[-1:] == a.shape[-2:-1]):
            x = np.abs(a)
            both(function(f"def f(x):\n    return {spelled(op, ['x', 'x'], attrs)}\n"), x)
            plain = call_of(op, 2, attrs)
            both(plain, x, np.flip(x))  # overlaps x
            return
    assert name in ("take", "embedding", "bias_add", "matmul", "sum_to", "linear"), "no sample of two equal shapes"


@pytest.mark.parametrize("name", COMBINED)
def test_results_are_new_memory_unless_they_are_views(name: str) -> None:
    op = OPS[name]
    operands, attrs = first_call(op)
    fn = call_of(op, len(operands), attrs)
    got, want = both(fn, *operands), fn(*operands)
    for o in operands:
        if isinstance(o, np.ndarray) and isinstance(got, np.ndarray):
            assert np.shares_memory(got, o) == np.shares_memory(want, o)
            assert got.flags.writeable == want.flags.writeable
            if np.shares_memory(got, o):
                assert [s for s, n in zip(got.strides, got.shape) if n > 1] == [s for s, n in zip(want.strides, want.shape) if n > 1]
    again = bcvm.jit(fn, tier="full", background=False)
    assert "aliases" in op.effects or not np.ndim(got) or not np.shares_memory(again(*operands), got)


def test_a_users_op_runs_natively_without_more_than_its_definition() -> None:
    op = Op("test_twice_plus", ("x", "y"), Composite(lambda b, x, y, times: b.op("add", b.op("mul", x, times), y)),
            reference=lambda x, y, times: x * x.dtype.type(times) + y, attrs=("times",), doc="x * times + y.")
    register(op)
    try:
        both(function("def f(x, y):\n    return ops.relu(ops.test_twice_plus(x, y, times=3.0))\n"), np.float32([[1, -2]]), np.float32([1, 5]))
    finally:
        del OPS["test_twice_plus"]
