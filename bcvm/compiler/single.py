"""Single ops on large arrays by native kernels: what tier 1 does before there is a program's own code (see `ops.large`).

Kernels are those that are here already, were left on disk or can be spliced. A function's that is missing is compiled when there is nothing else to do, for later calls and
processes; callers never wait for it. A product's comes with the first program that has one.
"""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np

from bcvm.compiler import abi
from bcvm.compiler.driver.kernels_call import LIBRARY_NS_PER_FLOP, LibraryKey
from bcvm.compiler.kernels import library
from bcvm.compiler.kernels.cost import ns_per_element
from bcvm.compiler.kernels.region import generate
from bcvm.compiler.loader import LoadedCode
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.compiler.runtime import runtime
from bcvm.compiler.splice.table import spliced
from bcvm.compiler.table import ENTRY, Kernel, table
from bcvm.compiler.target import host
from bcvm.errors import CompileError
from bcvm.ops import large

Array = np.ndarray[Any, Any]
DTYPES = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64"}  # in the machine's byte order
MAX_RANK = 8


def offer(when_idle: Callable[[Callable[[], None]], None]) -> None:
    """Offer native forms to tier 1 of this process. when_idle: has the compile thread do a job that has time."""
    global _when_idle
    _when_idle = when_idle
    large.FORMS["matmul"] = _matmul
    for name in large.POINTWISE:
        large.FORMS[name] = partial(_pointwise, name)


def _matmul(a: Array, b: Array) -> Any:
    """a @ b, of two vectors a number; None for what is left to NumPy, errors among it."""
    dtype = DTYPES.get(a.dtype)
    if dtype is None or b.dtype != a.dtype or max(a.ndim, b.ndim) > MAX_RANK or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0] or not (a.size and b.size):
        return None
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 and b.ndim > 2 else a.shape[:-2] or b.shape[:-2]
    except ValueError:
        return None
    shape = (*batch, *a.shape[-2:-1], *b.shape[-1:][:b.ndim - 1])
    call, key = _product(dtype, a.ndim, b.ndim, len(shape))
    kernel = _kernel(key)
    if kernel is None:
        return None
    out = np.empty(shape, a.dtype)
    arrays = (a, b, out)

    def stride(s: library.Stride | None) -> int:
        return 0 if s is None or s.broadcast and arrays[s.operand].shape[s.dim] == 1 else arrays[s.operand].strides[s.dim]

    sizes = [s if isinstance(s, int) else arrays[s.operand].shape[s.dim] if isinstance(s, library.Size) else stride(s) for s in call.sizes]
    words = [word for x, entries in zip(arrays, call.strides, strict=True) for word in (x.ctypes.data, *map(stride, entries))]
    units = math.prod([-(-n // block) for n, (_, block) in zip(sizes, call.units, strict=False)])
    ns = LIBRARY_NS_PER_FLOP * 2 * out.size * a.shape[-1]
    return out[()] if _run(kernel, words, sizes, units, ns, abi.split_plan(large.calling.threads)) else None


@lru_cache(maxsize=256)
def _product(dtype: str, *ranks: int) -> tuple[library.LibraryCall, Any]:
    call = library.library_call("matmul", (dtype,) * 3, ranks, {}, host())
    return call, (LibraryKey("matmul", call.content), host())


def _pointwise(name: str, x: Array) -> Array | None:
    """An elementwise op of one operand, on a contiguous array."""
    dtype = DTYPES.get(x.dtype)
    if dtype is None or not x.flags.c_contiguous:
        return None
    spec, ns = _region(name, dtype)
    kernel = _kernel((spec, host()), spec)
    if kernel is None:
        return None
    out = np.empty(x.shape, x.dtype)
    words = [x.ctypes.data, x.itemsize, out.ctypes.data, x.itemsize]
    return out if _run(kernel, words, [x.size], 0, ns * x.size, abi.split_plan(large.calling.threads, 1, 2)) else None


@lru_cache(maxsize=256)
def _region(name: str, dtype: str) -> tuple[RegionSpec, float]:
    """One op over a row, and ns that it takes an element."""
    spec = RegionSpec(1, (RegionInput(dtype, False),), (Step(name, (0,), dtype),), (RegionOutput(1, dtype),))
    return spec, ns_per_element(spec, host())


_when_idle: Callable[[Callable[[], None]], None] | None = None
_kernels: dict[Any, Kernel] = {}  # in use here, for good
_missing: dict[Any, None] = {}  # were not on disk: they come from this process, if at all
_spliced: dict[Any, LoadedCode] = {}


def _kernel(key: Any, spec: RegionSpec | None = None) -> int | None:
    """The address of a kernel that can be had at once. spec: of one that may be spliced."""
    kernel = _kernels.get(key)
    if kernel is None:
        with suppress(BlockingIOError):
            kernel = table.present(key, key not in _missing)
            if kernel is None and key not in _missing:
                _missing[key] = None
                if spec is not None and _when_idle is not None:
                    _when_idle(partial(_make, key, spec))
    if kernel is not None:
        _kernels[key] = kernel
        return runtime().slots.get(kernel.slot)
    code = _spliced.get(key)
    if code is None and spec is not None and (made := spliced(spec)) is not None:
        code = _spliced.setdefault(key, made)
        if code is not made:
            made.release()
    return code.address(ENTRY) if code is not None else None


def _make(key: Any, spec: RegionSpec) -> None:
    table.kernel(key, partial(generate, spec, host()))
    with suppress(CompileError):
        _kernels[key], = table.acquire([key])


@lru_cache(maxsize=1)
def _run_long() -> Any:
    return ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64)(runtime().address("run_long"))


def _run(kernel: int, words: Sequence[int], sizes: Sequence[int], units: int, ns: float, plan: int) -> bool:
    """Run a kernel, by several threads where that pays and with the interpreter lock given away. False: it refused, or there was no memory."""
    block = (ctypes.c_int64 * (len(words) + len(sizes)))(*words, *sizes)
    at = ctypes.addressof(block)
    with runtime().context() as ctx:
        own = (ctypes.c_uint64 * abi.CTX_WORDS).from_address(ctx)
        own[abi.CTX_LONG], own[abi.CTX_PLAN] = kernel, plan
        return bool(_run_long()(ctx, at, at + 8 * len(words), units, int(ns)) == library.DONE)
