"""What a program may hold as a constant, and when two constants are the same.

Python says 1 == True == 1.0 and 0.0 == -0.0, and a NaN equals nothing; in a program these are different constants, and
the same NaN is one. `const_key` is the identity to use.
"""
from __future__ import annotations

import struct
from typing import Any

MAX_DEPTH = 64
"""Tuples of tuples at most this deep."""


def const_key(value: Any, depth: int = 0) -> tuple[Any, ...]:
    """A hashable key, equal for constants of the same type and the same bits. TypeError for what cannot be a constant."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return kind, value
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        if depth >= MAX_DEPTH:
            raise TypeError(f"a constant is nested more than {MAX_DEPTH} tuples deep")
        return kind, *(const_key(item, depth + 1) for item in value)
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be a constant of a program; "
                    "allowed are None, bool, int, float, complex, str, bytes, Ellipsis and tuples of these")
