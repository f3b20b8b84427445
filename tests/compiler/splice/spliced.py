"""Calls spliced kernels on NumPy arrays, beside LLVM's."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import harness
import numpy as np

from bcvm.compiler import loader
from bcvm.compiler.region import RegionSpec
from bcvm.compiler.splice.splicer import splice


class Spliced:
    """A spliced kernel, loaded until the object is dropped."""

    def __init__(self, spec: RegionSpec, stencils: Any) -> None:
        self.spec, self.code = spec, loader.place(splice(spec, stencils), "kernel")
        self.function = harness._KERNEL(self.code.address("kernel"))

    def __call__(self, arrays: Sequence[np.ndarray], sizes: Sequence[int], *ranges: tuple[int, int]) -> None:
        operands, extents = harness.words(arrays, self.spec.rank), np.array(sizes, np.int64)
        for lo, hi in ranges or ((0, -1),):
            assert self.function(ctypes.addressof(harness._context), operands.ctypes.data, extents.ctypes.data, lo, hi) == 0
        assert not harness.allocations

    def __del__(self) -> None:
        if hasattr(self, "code"):
            self.code.release()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit; one NaN is as good as another."""
    if a.dtype.kind == "f":
        bits = f"u{a.itemsize}"
        return bool(np.all((np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | (np.isnan(a) & np.isnan(b))))
    return np.array_equal(a, b)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference: in ulp for floats, 0 or infinity for others and for NaN and infinities."""
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else np.inf
    special = ~np.isfinite(want) | ~np.isfinite(got)
    if not np.array_equal(got[special], want[special], equal_nan=True):
        return np.inf
    a, b = got[~special].astype(np.longdouble), want[~special]
    with np.errstate(over="ignore"):
        return float((np.abs(a - b) / np.spacing(np.abs(b)).astype(np.longdouble)).max(initial=0))
