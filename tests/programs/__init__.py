"""Small Python functions with example arguments, run on every tier. The meaning of a program is what calling it does.

    for case in PROGRAMS:
        for args in case.arguments:
            assert same(outcome(case.fn, args), outcome(other_way_of_running(case.fn), args))
"""
from __future__ import annotations

import copy
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np


class ProgramCase(NamedTuple):
    name: str
    fn: Callable[..., Any]
    arguments: list[tuple[Any, ...]]


class Outcome(NamedTuple):
    """What a call did: its result or its exception (type, message), and its arguments afterwards."""

    result: Any
    error: tuple[str, str] | None
    arguments: Any


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Call on a copy of the arguments."""
    mine = copy.deepcopy(args)
    try:
        with np.errstate(all="ignore"):
            return Outcome(call(*mine), None, mine)
    except Exception as e:
        return Outcome(None, (type(e).__name__, str(e)), mine)


def same(a: Any, b: Any) -> bool:
    """Equal in types, values, dtypes and shapes, deep inside as well; objects of other classes by their attributes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return repr(a) == repr(b)
    if hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__ and not isinstance(a, (FunctionType, type)):
        return same(vars(a), vars(b))
    return bool(a == b)


def _cases() -> list[ProgramCase]:
    from tests.programs import calls, control, python, tensors
    return [case for module in (control, tensors, calls, python) for case in module.CASES]


PROGRAMS: list[ProgramCase] = _cases()
