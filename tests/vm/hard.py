"""Helpers of the hard cases: both ways to get native code, and what counters must say."""
from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bcvm.vm.compile_thread import thread

TIERS = pytest.mark.parametrize("tier", ["interpret", "auto", "full"])
NATIVE_TIERS = pytest.mark.parametrize("tier", ["auto", "full"])


def settle() -> None:
    """Wait until everything that was asked for is compiled."""
    assert thread.idle(60)


def warm(f: Any, *args: Any, times: int = 3) -> None:
    """Call until calls like these run native, continuations included."""
    for _ in range(times):
        f(*args)
        settle()


def same(got: Any, want: Any) -> None:
    """Equal in types, dtypes, shapes and values; the same error bounds for floats as in the tests of tiers."""
    assert type(got) is type(want), (got, want)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for k in want:
            same(got[k], want[k])
    elif isinstance(want, (np.ndarray, np.generic)):
        assert got.dtype == want.dtype and got.shape == want.shape, (got, want)
        np.testing.assert_allclose(got, want, rtol=1e-5 if want.dtype.itemsize <= 4 else 1e-12, atol=1e-6)
    elif isinstance(want, float):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    else:
        assert got == want


def all_native(f: Any, compiles: int | None = None) -> None:
    """Every call ran native from start to end, after at most `compiles` compilations."""
    stats = f.stats()
    assert not stats["errors"] and not stats["exits"], stats
    assert stats["native"] == stats["calls"], stats
    if compiles is not None:
        assert stats["compiles"] <= compiles, stats


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """('value', result) or ('error', type, message)."""
    try:
        return "value", call(*args, **kwargs)
    except Exception as e:
        return "error", type(e), str(e)


def script(folder: Path, text: str, timeout: float = 90, **names: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own; `names` are set at its start."""
    path = folder / "program.py"
    path.write_text("".join(f"{k} = {v!r}\n" for k, v in names.items()) + textwrap.dedent(text))
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=timeout, check=False)
