"""Ops that make tensors from sizes and numbers."""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.ops import shaperules
from bcvm.ops.definition import Composite, Library, Op, register
from bcvm.ops.elementwise import ALL, EXACT, NUMBERS
from bcvm.shapes.dim import Dim, dim, product


def _written(*_: Any, dims: Any = (), **__: Any) -> Any:
    return Dim.const(0), product(map(dim, dims)) * 4


def _full_samples(rng: Any, dtype: str) -> Any:
    for dims in ((), (3,), (2, 0), (2, 3, 4)):
        yield (np.array(1, dtype),), {"dims": dims, "dtype": dtype}


def _arange_samples(rng: Any, dtype: str) -> Any:
    for n, start, step in ((0, 0, 1), (1, 3, 1), (17, 2, 3), (40, 5, 1)):
        yield (np.array(start, dtype), np.array(step, dtype)), {"dims": (n,), "dtype": dtype}


def _eye_samples(rng: Any, dtype: str) -> Any:
    for n, m, k in ((3, 3, 0), (2, 4, 1), (4, 2, -1), (0, 3, 0)):
        yield (), {"dims": (n, m), "k": k, "dtype": dtype}


def _arange(start: Any, step: Any, dims: Any, dtype: str) -> Any:
    """start + i * step, each element computed on its own."""
    with np.errstate(all="ignore"):
        return (np.asarray(start, dtype) + np.arange(dims[0]).astype(dtype) * np.asarray(step, dtype)).astype(dtype)


def _eye(dims: Any, k: int = 0, dtype: Any = "float64") -> Any:
    return np.eye(dims[0], dims[1], k, dtype)


def _eye_build(b: Any, dims: Any, k: int = 0, dtype: str = "float64") -> Any:
    rows = b.op("expand_dims", b.op("arange", k, 1, dims=(dims[0],), dtype="int64"), axis=(1,))
    return b.cast(b.op("eq", rows, b.op("arange", 0, 1, dims=(dims[1],), dtype="int64")), dtype)


register(Op("full", ("value",), Library("full"), "explicit", shaperules.given, lambda value, dims, dtype: np.full(dims, value, dtype), None,
            ("dims", "dtype"), domain=ALL,
            bound=EXACT, samples=_full_samples, cost=_written, doc="A tensor of these sizes filled with one number."))
register(Op("arange", ("start", "step"), Library("arange"), "explicit", shaperules.given, _arange, None, ("dims", "dtype"), domain=NUMBERS,
            bound=EXACT, samples=_arange_samples, cost=_written, doc="start + i * step for i below the only size."))
register(Op("eye", (), Composite(_eye_build), "explicit", None, _eye, None,
            ("dims", "k", "dtype"), domain=ALL,
            bound=EXACT, samples=_eye_samples, cost=_written, doc="1 on the k-th diagonal, 0 elsewhere."))
