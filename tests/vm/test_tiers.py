"""Every small program gives what Python gives, on every tier and when native code leaves at any safe point."""
from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.vm.compile_thread import thread
from tests.programs import PROGRAMS, Outcome, ProgramCase, outcome

ROUNDS = 3  # native code of what follows a callback is there from the third pass on


def close(a: Any, b: Any) -> bool:
    """Equal in types, dtypes and shapes; floating-point values to a few units in the last place of their array's largest value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.kind not in "fc":
            return bool(np.array_equal(a, b))
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max(initial=0)) if finite.size else 0.0
        return bool(np.allclose(a, b, rtol=64 * np.finfo(a.dtype).eps, atol=64 * float(np.finfo(a.dtype).eps) * scale, equal_nan=True))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(close(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return bool(np.isclose(a, b, rtol=1e-12, equal_nan=True))
    if hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__ and not callable(a):
        return close(vars(a), vars(b))
    return bool(a == b) or callable(a)


def check(case: ProgramCase, jitted: Any) -> None:
    expected = [outcome(case.fn, args) for args in case.arguments]
    for round_ in range(ROUNDS):
        for args, want in zip(case.arguments, expected):
            got = outcome(jitted, args)
            assert matches(got, want), f"{case.name}{copy.deepcopy(args)} round {round_}\n got {got}\nwant {want}\n{jitted.stats()}"
        thread.idle()
    errors = jitted.stats()["errors"]
    assert not errors, errors


def matches(got: Outcome, want: Outcome) -> bool:
    return close(got.result, want.result) and got.error == want.error and close(got.arguments, want.arguments)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
@pytest.mark.parametrize("tier", ["interpret", "auto", "splice", "full"])
def test_program_gives_what_python_gives(case: ProgramCase, tier: str) -> None:
    check(case, bcvm.jit(case.fn, tier=tier))


@pytest.mark.parametrize("exits", ["all", "random"])
def test_every_call_leaves_native_code_in_the_test_mode(exits: str) -> None:
    @bcvm.jit(tier="full", background=False, exits=exits)
    def shifted(x: Any, n: int) -> Any:
        if n > 2:
            x = x + n
        return x * 2

    for n in range(60):
        np.testing.assert_array_equal(shifted(np.arange(3.0), n % 5), 2 * (np.arange(3.0) + (n % 5) * (n % 5 > 2)))
    stats = shifted.stats()
    assert stats["left"] == stats["calls"] == 60, stats


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
@pytest.mark.parametrize("exits", ["all", "random"])
def test_program_gives_the_same_when_native_code_leaves_at_any_safe_point(case: ProgramCase, exits: str) -> None:
    jitted = bcvm.jit(case.fn, tier="full", exits=exits)
    for _ in range(4):
        check(case, jitted)
