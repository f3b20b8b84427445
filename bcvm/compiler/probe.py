"""Checks, on live objects, every struct offset that native entry code reads. A mismatch switches native entry off, with a reason."""
from __future__ import annotations

import ctypes
import platform
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bcvm.compiler import abi

SIZE = 16            # ob_size of tuple and list, ma_used of dict, value of float and NumPy scalars, contents of a cell
ITEMS = 24           # first item of a tuple; a list has the pointer to its items there
DICT_VERSION = 24    # ma_version_tag, up to Python 3.12
DESCR_KIND = 24      # kind, type, byteorder (chars), then one unused byte and the type number (int32 at 28)
DESCR_BYTEORDER = 26
DESCR_TYPE_NUMBER = 28
FLAG_ALIGNED, FLAG_WRITEABLE = 0x100, 0x400


@dataclass(frozen=True)
class Layout:
    """reason: why native entry is off, '' if it is on. dict_version: offset of a dict's version tag, 0 where Python has none.
    function_code: offset of the code in a function."""

    reason: str
    dict_version: int = 0
    function_code: int = 0


def word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _double(address: int) -> float:
    return ctypes.c_double.from_address(address).value


def _array_mismatch() -> str:
    for a in (np.zeros((3, 5, 7), np.float32)[:, ::2], np.array(2, np.int64), np.ones(4, np.complex64)[::-1]):
        at = id(a)
        checks = {
            "type": word(at + abi.OB_TYPE) == id(np.ndarray),
            "data": word(at + abi.ARRAY_DATA) == a.ctypes.data,
            "nd": _int32(at + abi.ARRAY_ND) == a.ndim,
            "dims": all(word(word(at + abi.ARRAY_DIMS) + 8 * i) == n for i, n in enumerate(a.shape)),
            "strides": all(ctypes.c_int64.from_address(word(at + abi.ARRAY_STRIDES) + 8 * i).value == n for i, n in enumerate(a.strides)),
            "base": word(at + abi.ARRAY_BASE) == (id(a.base) if a.base is not None else 0),
            "descr": word(at + abi.ARRAY_DESCR) == id(a.dtype),
            "flags": _int32(at + abi.ARRAY_FLAGS) & (FLAG_ALIGNED | FLAG_WRITEABLE) == FLAG_ALIGNED | FLAG_WRITEABLE,
        }
        a.flags.writeable = False
        checks["read-only flag"] = _int32(at + abi.ARRAY_FLAGS) & FLAG_WRITEABLE == 0
        bad = [name for name, ok in checks.items() if not ok]
        if bad:
            return f"ndarray has an unknown layout: {', '.join(bad)}"
    unaligned = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.int64)
    if _int32(id(unaligned) + abi.ARRAY_FLAGS) & FLAG_ALIGNED:
        return "ndarray has an unknown layout: aligned flag"
    for name, number in abi.TYPE_NUMBER.items():
        d = np.dtype(name)
        order = bytes((ctypes.c_char * 1).from_address(id(d) + DESCR_BYTEORDER)).decode()
        if _int32(id(d) + DESCR_TYPE_NUMBER) != number or d.num != number or order != d.byteorder:
            return f"dtype has an unknown layout: {name}"
        one = d.type(1)
        if ctypes.string_at(id(one) + SIZE, d.itemsize) != np.array(1, d).tobytes():
            return f"NumPy scalar has an unknown layout: {name}"
    return ""


def _python_mismatch() -> str:
    marker = object()
    cell = (lambda: marker).__closure__[0]  # type: ignore[index]
    real, both, pairs = 2.5, 2 + 3j, {1: 2, 3: 4}
    t: tuple[Any, ...] = (1, marker, "x")
    items = [marker, 2]
    checks = {
        "float": _double(id(real) + SIZE) == 2.5,
        "complex": (_double(id(both) + SIZE), _double(id(both) + SIZE + 8)) == (2.0, 3.0),
        "cell": word(id(cell) + SIZE) == id(marker),
        "tuple": word(id(t) + SIZE) == 3 and word(id(t) + ITEMS + 8) == id(marker),
        "list": word(id(items) + SIZE) == 2 and word(word(id(items) + ITEMS)) == id(marker),
        "dict": word(id(pairs) + SIZE) == 2,
        "type": word(id(marker) + abi.OB_TYPE) == id(object),
    }
    bad = [name for name, ok in checks.items() if not ok]
    return f"Python objects have an unknown layout: {', '.join(bad)}" if bad else ""


def _function_code() -> int:
    """The offset of a function's code object; 0 if it is not one word that follows an assignment."""
    def one() -> int:
        return 1

    def other() -> int:
        return 2

    at = id(one)
    fitting = [o for o in range(16, type(one).__basicsize__, 8) if word(at + o) == id(one.__code__)]
    one.__code__ = other.__code__
    return fitting[0] if len(fitting) == 1 and word(at + fitting[0]) == id(other.__code__) else 0


def _dict_version() -> int:
    """The offset of the version tag, if every kind of change moves it and reading does not."""
    if sys.version_info >= (3, 13):
        return 0
    d: dict[str, int] = {"a": 1}
    seen = [word(id(d) + DICT_VERSION)]

    def changed() -> bool:
        seen.append(word(id(d) + DICT_VERSION))
        return seen[-1] not in seen[:-1]

    d["b"] = 2
    ok = changed()
    d["a"] = 3
    ok &= changed()
    del d["b"]
    ok &= changed()
    d.update(c=4)
    ok &= changed()
    d.pop("c")
    ok &= changed()
    d.get("a")
    ok &= not changed()
    d.clear()
    return DICT_VERSION if ok and changed() else 0


@cache
def layout() -> Layout:
    """What this interpreter and this NumPy look like in memory; probed once."""
    if platform.python_implementation() != "CPython":
        return Layout(f"native entry needs CPython, this is {platform.python_implementation()}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Layout("native entry is off on a free-threaded build of Python")
    if hasattr(sys, "getobjects"):
        return Layout("native entry is off on a Python built with reference tracing")
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64") or sys.maxsize < 2**32:
        return Layout(f"native code is made for 64-bit x86 Linux only, this is {sys.platform} {platform.machine()}")
    code = _function_code()
    reason = _python_mismatch() or _array_mismatch() or ("" if code else "functions have an unknown layout")
    return Layout(reason, 0 if reason else _dict_version(), code)
