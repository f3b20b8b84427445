"""Eager forms for large NumPy arrays: native ones of single ops, where a compiler has come to offer them; NumPy's otherwise, and for all that is small.

NumPy lacks functions (erf, gelu) that take dozens of its passes, and after a product of many rows its BLAS keeps a processor busy for some 100 ms, waiting for another.
"""
from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

FORMS: dict[str, Callable[..., Any]] = {}
"""By op: a function of the operands, NumPy arrays, that gives the result, or None where it does not take them. The compiler fills it."""
POINTWISE: set[str] = set()
"""The ops of one operand that look for a form."""
ELEMENTS = 1 << 14       # of an operand from which on a function looks for one
MULTIPLICATIONS = 1 << 19  # of a product: of fewer, BLAS is done before a native kernel is called from here


class _Calling(threading.local):
    """threads: at most so many for what runs on this thread; None: as the process has."""

    threads: int | None = None


calling = _Calling()


def product(a: Any, b: Any, plain: Callable[[Any, Any], Any] = operator.matmul) -> Any:
    """a @ b. plain: the product of all that is small or not NumPy's."""
    if type(a) is type(b) is np.ndarray and a.ndim and b.ndim and a.size * (b.shape[-1] if b.ndim > 1 else 1) >= MULTIPLICATIONS and "matmul" in FORMS:
        out = FORMS["matmul"](a, b)
        if out is not None:
            return out
    return plain(a, b)


def pointwise(name: str, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The eager form of a function whose NumPy form is `plain`."""
    POINTWISE.add(name)

    @wraps(plain)
    def eager(x: Any) -> Any:
        if type(x) is np.ndarray and x.size >= ELEMENTS and name in FORMS:
            out = FORMS[name](x)
            if out is not None:
                return out
        return plain(x)
    return eager
