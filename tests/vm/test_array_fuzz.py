"""Random array programs give natively what they give in plain NumPy: values, dtypes, shapes, or the same exception.

BCVM_FUZZ_PROGRAMS sets how many, BCVM_FUZZ_FIRST the first seed. A failure prints the seed and the source."""
from __future__ import annotations

import linecache
import os
import warnings
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.programs import Outcome, outcome, same
from tests.vm.array_programs import generate
from tests.vm.op_calls import function

FIRST, COUNT = int(os.environ.get("BCVM_FUZZ_FIRST", "0")), int(os.environ.get("BCVM_FUZZ_PROGRAMS", "100"))
BATCH = 10


def difference(got: Any, want: Any) -> float:
    """How far results are from each other, relative to the largest value of each array; infinite where types, dtypes, shapes or exact values differ."""
    if type(got) is not type(want):
        return np.inf
    if isinstance(want, tuple):
        return max(map(difference, got, want), default=0.0) if len(got) == len(want) else np.inf
    if not isinstance(want, (np.ndarray, np.generic)):
        return 0.0 if got == want else np.inf
    if got.dtype != want.dtype or got.shape != want.shape:
        return np.inf
    if want.dtype.kind != "f" or not want.size:
        return 0.0 if np.array_equal(got, want) else np.inf
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    a, b = got[finite].astype(np.float64), want[finite].astype(np.float64)
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(a - b), initial=0.0) / max(1.0, float(np.max(np.abs(b), initial=0.0))))


def tolerance(text: str, args: tuple[Any, ...]) -> float:
    """For the narrowest floating-point type that a program may compute in."""
    narrow = {a.dtype.name for a in args if isinstance(a, (np.ndarray, np.generic))} | {name for name in ("float16", "float32") if name in text}
    if narrow & {"float16", "int8", "uint8"}:  # functions of 8-bit integers are float16
        return 4e-3
    return 1e-5 if narrow & {"float32", "int16"} else 1e-12


def agree(plain: Any, allowed: float, args: tuple[Any, ...], got: Outcome, want: Outcome) -> bool:
    """Equal within a tolerance; where results hang on rounding, within what a change of the arguments by a few units in the last place makes."""
    if got.error != want.error:
        return False
    if got.error:
        return True
    found = difference(got.result, want.result)
    if found <= allowed:
        return True
    rng = np.random.default_rng(1)
    for _ in range(6):
        moved = tuple(a + a * (rng.integers(-4, 5, a.shape) * np.finfo(a.dtype).eps).astype(a.dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
                      for a in args)
        allowed = max(allowed, difference(outcome(plain, moved).result, want.result))
    return found <= 20 * allowed and not mistyped(got.result, want.result)


def mistyped(got: Any, want: Any) -> bool:
    if isinstance(want, tuple):
        return not isinstance(got, tuple) or len(got) != len(want) or any(map(mistyped, got, want))
    return type(got) is not type(want) or getattr(got, "dtype", None) != getattr(want, "dtype", None) or np.shape(got) != np.shape(want)


def run(seed: int, tier: str = "full", **options: Any) -> bool:
    """Whether it ran native without an exit. AssertionError: a difference."""
    text, examples = generate(seed)
    plain = function(text)
    jitted = bcvm.jit(plain, tier=tier, background=False, **options)
    raised = False
    try:
        for args in examples:
            want = outcome(plain, args)
            got = outcome(jitted, args)
            raised = raised or want.error is not None
            shown = [(type(a).__name__, getattr(a, "dtype", ""), getattr(a, "shape", a)) for a in args]
            told = f"seed {seed}, tier {tier}, arguments {shown}\n{text}\n got {got.error or got.result!r}\nwant {want.error or want.result!r}\n{jitted.stats()}"
            assert agree(plain, tolerance(text, args), args, got, want), told
            assert all(map(same, got.arguments, want.arguments)), f"seed {seed}: an argument changed\n{text}"
        stats = jitted.stats()
        assert not stats["errors"], f"seed {seed}: {stats['errors']}\n{text}"
        return bool(raised or stats["native"])
    finally:
        linecache.cache.pop(plain.__code__.co_filename, None)


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_random_array_programs_give_what_numpy_gives(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        native = [run(seed) for seed in range(first, first + BATCH)]
    assert sum(native) > BATCH // 2
