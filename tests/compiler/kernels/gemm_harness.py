"""Compiles a KernelSource with MCJIT and calls it on NumPy arrays, with scratch from malloc that is counted."""
from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
from harness import fenced

from bcvm.compiler.abi import CTX_WORDS, INDEX, TABLE
from bcvm.compiler.region import KernelSource
from bcvm.compiler.target import Target, host

TARGETS = [host(), host("avx2"), host("baseline")]

_keep: list[Any] = []
live: dict[int, Any] = {}
refuse = [False]    # makes alloc fail
GUARD = 64


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def _alloc(ctx: int, size: int) -> int | None:
    if refuse[0]:
        return None
    raw = np.full(size + 64 + 2 * GUARD, 0xA5, np.uint8)    # as a float a small number, as an int a large one
    start = -raw.ctypes.data % 64 + GUARD
    live[raw.ctypes.data + start] = (raw, start, size)
    return int(raw.ctypes.data + start)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
def _release(ctx: int, base: int) -> None:
    raw, start, size = live.pop(base)
    if not ((raw[:start] == 0xA5).all() and (raw[start + size:] == 0xA5).all()):
        overruns.append(base)


overruns: list[int] = []


def context() -> Any:
    table = (ctypes.c_uint64 * len(TABLE))()
    libc = ctypes.CDLL(None)
    table[INDEX["alloc"]] = ctypes.cast(_alloc, ctypes.c_void_p).value or 0
    table[INDEX["release"]] = ctypes.cast(_release, ctypes.c_void_p).value or 0
    for name in ("memcpy", "memset"):
        table[INDEX[name]] = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0
    ctx = (ctypes.c_uint64 * CTX_WORDS)()
    ctx[0] = ctypes.addressof(table)
    _keep.extend((table, ctx))
    return ctx


_context = context()
_compiled: dict[str, Any] = {}


def compile_kernel(source: KernelSource, target: Target) -> Any:
    """The kernel as a ctypes function."""
    import llvmlite.binding as llvm
    if source.key not in _compiled:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(source.ir)
        module.triple = llvm.get_process_triple()
        module.verify()
        machine = llvm.Target.from_triple(module.triple).create_target_machine(cpu=target.cpu, features=target.features, opt=1)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        _compiled[source.key] = kind(engine.get_function_address(source.name)), engine
    return _compiled[source.key][0]


def words(*values: int) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def operand_words(*arrays: tuple[np.ndarray, tuple[int, ...]]) -> Any:
    """Pointer and strides of each (array, strides)."""
    return words(*(w for array, strides in arrays for w in (array.ctypes.data, *strides)))


def run(function: Any, operands: Any, sizes: Any, lo: int = 0, hi: int = -1) -> int:
    """Calls the kernel; its scratch must have come back unharmed."""
    overruns.clear()
    code = int(function(ctypes.addressof(_context), operands, sizes, lo, hi))
    assert not live, "scratch was not given back"
    assert not overruns, "scratch was overrun"
    return code


def layout(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, pattern: str) -> np.ndarray:
    """Random values in memory of the named pattern; every element of the memory around it holds something else."""
    if pattern == "transposed" and len(shape) >= 2:
        return layout(rng, (*shape[:-2], shape[-1], shape[-2]), dtype, "plain").swapaxes(-1, -2)
    if pattern == "slice":      # rows lie far apart, as in a part of a fused projection
        return values(rng, (*shape[:-1], 2 * shape[-1] + 3), dtype)[..., 2:2 + shape[-1]]
    if pattern == "steps":
        return values(rng, (*shape[:-1], 3 * shape[-1]), dtype)[..., 1::3][..., :shape[-1]]
    if pattern == "reversed":
        return values(rng, shape, dtype)[(slice(None, None, -1),) * len(shape)]
    if pattern == "broadcast" and len(shape) > 2:
        return np.broadcast_to(values(rng, (*(1 for _ in shape[:-2]), *shape[-2:]), dtype), shape)
    return values(rng, shape, dtype)


PATTERNS = ("plain", "transposed", "slice", "steps", "reversed", "broadcast")


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.2
    return rng.integers(-50, 50, shape).astype(dtype)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy that ends where a page begins that may not be touched: a read or write behind it ends the process."""
    copy = fenced(str(array.dtype), array.size, -1)[0].reshape(array.shape)
    copy[...] = array
    return copy


def outside_symbols(source: KernelSource, target: Target) -> set[str]:
    """Names that the object code of a kernel refers to but does not define."""
    import llvmlite.binding as llvm
    module = llvm.parse_assembly(source.ir)
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(cpu=target.cpu, features=target.features, opt=1)
    text = machine.emit_assembly(module)
    called = set(re.findall(r"\b(?:call[a-z]*|jmp)\s+([A-Za-z_][\w.]*)(?:@PLT)?\s*(?:#.*)?$", text, re.M))
    defined = set(re.findall(r"^([A-Za-z_.][\w.$]*):", text, re.M))
    return called - defined
