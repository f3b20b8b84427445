"""Every op of the table gives its reference's result on every tier, in every memory layout, and runs native."""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.ops.definition import OPS, Op, Opaque
from tests.ops.comparing import check
from tests.vm.op_calls import PYTHON_NUMBERS, Attrs, call_of, contiguous, layouts

DTYPES = ("float32", "float64", "int32", "int64", "bool")
EVERYTHING = bool(os.environ.get("BCVM_TEST_EVERYTHING"))  # else dtypes after an op's first take turns over its kinds of calls
CASES = [(name, dtype) for name, op in OPS.items() for dtype in DTYPES if dtype in op.domain and op.samples and not name.startswith("test.")]

# Calls that the interpreter runs: (op, dtypes) -> why. Each stays checked for its result.
NOT_NATIVE: dict[str, tuple[tuple[str, ...], str]] = {}


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
        if not isinstance(op.form, Opaque) and dtype not in NOT_NATIVE.get(name, ((), ""))[0]:
            assert stats["native"] == stats["calls"] and not stats["exits"] and not stats["errors"], f"{[np.shape(o) for o in group[0]]} {attrs}: {stats}"
    assert ran
