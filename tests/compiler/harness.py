"""Compiles kernels and calls them on NumPy arrays, with a Context of its own."""
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

import bcvm.ops  # noqa: F401  the op table
from bcvm.compiler import abi, llvm, loader
from bcvm.compiler.kernels.region import generate
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.compiler.runtime import runtime
from bcvm.compiler.target import Target, host

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_libc = ctypes.CDLL("libc.so.6")
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
allocations: list[int] = []  # sizes asked for and not given back


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def _alloc(_ctx: int, size: int) -> int:
    allocations.append(size)
    return int(_libc.aligned_alloc(64, -(-size // 64) * 64 or 64))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
def _release(_ctx: int, base: int) -> None:
    allocations.pop()
    _libc.free(base)


def _address(name: str) -> int:
    if name in ("alloc", "release"):
        return ctypes.cast(_alloc if name == "alloc" else _release, ctypes.c_void_p).value or 0
    return runtime().address(name)


table = (ctypes.c_void_p * (len(abi.TABLE) + 8))(*(_address(name) for name, _ in abi.TABLE))  # and room for more
_context = (ctypes.c_void_p * abi.CTX_WORDS)()
_context[abi.CTX_TABLE] = ctypes.addressof(table)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def _refuse(_ctx: int, _size: int) -> int:
    return 0


@contextmanager
def no_memory() -> Iterator[int]:
    """A Context whose allocations fail."""
    at = abi.INDEX["alloc"]
    before, table[at] = table[at], ctypes.cast(_refuse, ctypes.c_void_p).value
    try:
        yield ctypes.addressof(_context)
    finally:
        table[at] = before


TARGETS = {name: host(name) for name in ("", "avx2", "baseline")}


@cache
def compiled(spec: RegionSpec, target: Target, effort: int | None = None) -> Any:
    source = generate(spec, target)
    code = loader.load(llvm.compile_ir(source.ir, target, source.effort if effort is None else effort))
    function = _KERNEL(code.address(source.name))
    function.code = code
    return function


def words(arrays: Sequence[np.ndarray], rank: int) -> np.ndarray:
    return np.array([w for a in arrays for w in (a.ctypes.data, *a.strides)], np.int64)


def call(spec: RegionSpec, arrays: Sequence[np.ndarray], sizes: Sequence[int], target: Target, lo: int = 0, hi: int = -1, effort: int | None = None) -> None:
    """arrays: inputs and outputs, each a view with spec.rank dims (broadcast dims with stride 0). effort: None is the kernel's own."""
    operands, extents = words(arrays, spec.rank), np.array(list(sizes) or [0], np.int64)
    code = compiled(spec, target, effort)(ctypes.addressof(_context), operands.ctypes.data, extents.ctypes.data, lo, hi)
    assert code == 0
    assert not allocations


def region(rank: int, inputs: Sequence[Any], steps: Sequence[tuple[Any, ...]], outputs: Sequence[Any], kind: str = "row") -> RegionSpec:
    """inputs: dtypes or (dtype, splat). steps: (op, args, dtype, attrs...). outputs: value or (value, reduced); negative values count from the end."""
    ins = tuple(RegionInput(*((i,) if isinstance(i, str) else i)) for i in inputs)
    made = tuple(Step(s[0], tuple(s[1]), s[2], tuple(s[3:])) for s in steps)
    dtypes = [i.dtype for i in ins] + [s.dtype for s in made]
    outs = []
    for o in outputs:
        value, reduced = o if isinstance(o, tuple) else (o, False)
        value %= len(dtypes)
        outs.append(RegionOutput(value, dtypes[value], reduced))
    return RegionSpec(rank, ins, made, tuple(outs), kind)


def fenced(dtype: str, count: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """An array of zeros, so many bytes behind the start of memory that may be accessed, or before its end (start < 0); and all of that memory, in bytes: what lies
    beyond it ends the process."""
    page, size = mmap.PAGESIZE, count * np.dtype(dtype).itemsize
    inside = -(-(size + abs(start)) // page) * page
    memory = np.frombuffer(mmap.mmap(-1, inside + 2 * page), np.uint8)
    for fence in (0, page + inside):
        assert _libc.mprotect(ctypes.c_void_p(memory.ctypes.data + fence), ctypes.c_size_t(page), 0) == 0
    memory = memory[page:page + inside]
    at = start if start >= 0 else inside - size + start + 1
    return memory[at:at + size].view(dtype), memory
