"""NumPy: its adapter, and how entry stubs read arrays and NumPy scalars."""
from __future__ import annotations

from typing import Any

import numpy as np

from bcvm.compiler import abi, probe, stub
from bcvm.compiler.emit import Emitter
from bcvm.frameworks.adapter import ADAPTERS, Adapter, Description
from bcvm.specialise.types import Tensor

# Type numbers that mean the same element on 64-bit Linux: `long long` is `long`.
_ALSO = {"int64": 9, "uint64": 10}


class NumPyReader:
    """Exact ndarrays, aligned, of native byte order; exact NumPy scalars where the type says `scalar`."""

    runs_python = False

    def enter(self, e: Emitter, miss: str) -> None:
        return None

    def read(self, e: Emitter, obj: str, type: Tensor, writable: bool, miss: str, into: str) -> None:
        dtype = np.dtype(type.dtype)
        e.store("ptr", obj, into, 8)
        if type.scalar:
            e.type_is(obj, dtype.type, miss)
            e.store("ptr", e.offset(obj, probe.SIZE), into)
            return
        e.type_is(obj, np.ndarray, miss)
        e.require(e.let(f"icmp eq i32 {e.load('i32', obj, abi.ARRAY_ND)}, {type.rank}"), miss)
        self._dtype(e, e.load("ptr", obj, abi.ARRAY_DESCR), dtype, miss)
        flags = probe.FLAG_ALIGNED | (probe.FLAG_WRITEABLE if writable else 0)
        have = e.let(f"and i32 {e.load('i32', obj, abi.ARRAY_FLAGS)}, {flags}")
        e.require(e.let(f"icmp eq i32 {have}, {flags}"), miss)
        e.store("ptr", e.load("ptr", obj, abi.ARRAY_DATA), into)
        if type.rank:
            dims, strides = e.load("ptr", obj, abi.ARRAY_DIMS), e.load("ptr", obj, abi.ARRAY_STRIDES)
            for at, words in ((16, dims), (16 + 8 * type.rank, strides)):
                for i in range(type.rank):
                    e.store("i64", e.load("i64", words, 8 * i), into, at + 8 * i)

    def _dtype(self, e: Emitter, descr: str, dtype: np.dtype[np.generic], miss: str) -> None:
        """The builtin dtype object, or another of the same type number and native byte order (unpickled arrays have one of their own)."""
        same, other = e.label("dtype"), e.label("other")
        e.line(f"br i1 {e.let(f'icmp eq ptr {descr}, {e.object(dtype)}')}, label %{same}, label %{other}")
        e.start(other)
        number = e.load("i32", descr, probe.DESCR_TYPE_NUMBER)
        fits = e.let(f"icmp eq i32 {number}, {dtype.num}")
        if dtype.name in _ALSO:
            fits = e.let(f"or i1 {fits}, {e.let(f'icmp eq i32 {number}, {_ALSO[dtype.name]}')}")
        e.require(fits, miss)
        order = e.load("i8", descr, probe.DESCR_BYTEORDER)
        e.require(e.let(f"icmp eq i8 {order}, {ord(dtype.byteorder)}"), miss)
        e.jump(same)
        e.start(same)

    def box(self, e: Emitter, obj: str, type: Tensor) -> str:
        return obj

    def before_write(self, e: Emitter, miss: str) -> None:
        return None


class NumPyAdapter(Adapter):
    """ndarrays and NumPy scalars."""

    name = "numpy"

    def recognise(self, obj: Any) -> bool:
        return type(obj) is np.ndarray or isinstance(obj, np.generic)

    def describe(self, obj: Any) -> Description | None:
        a = np.asarray(obj)
        if a.dtype.name not in abi.TYPE_NUMBER or not a.dtype.isnative or not a.flags.aligned or type(obj) is not np.ndarray and not isinstance(obj, np.generic):
            return None
        return Description(a.ctypes.data, a.dtype.name, a.shape, a.strides, writable=a.flags.writeable and a is obj)

    def box(self, array: np.ndarray[Any, Any], type: Tensor) -> Any:
        return array[()] if type.scalar else array


stub.READERS["numpy"] = NumPyReader()
ADAPTERS["numpy"] = NumPyAdapter()
