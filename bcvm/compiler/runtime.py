"""Run-time support of generated code: the function table, kernel slots, contexts, interrupts. Built at first need, once per process."""
from __future__ import annotations

import ctypes
import mmap
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bcvm.compiler import abi, loader, pool_ir, probe, runtime_ir
from bcvm.compiler.kernels import by_rows, operands
from bcvm.compiler.kernels.text import Module
from bcvm.compiler.modules import PendingModule
from bcvm.compiler.target import available_threads, host
from bcvm.compiler.worker import FULL
from bcvm.errors import CompileError

KERNEL_SLOTS = 1 << 20
_LIBC = ("malloc", "free", "madvise", "memcpy", "memset", "syscall", "pthread_create", "pthread_detach", "pthread_sigmask")
_OWN = ("alloc", "retain", "release", "collapse", "restride", "new_array", "view_array", "run_long", "finish", "breathe", "move1", "move2", "move4", "move8", "by_rows")
# Indices into NumPy's C API table; the same in NumPy 1 and 2 (__multiarray_api.h).
_ARRAY_API = {"array_type": 2, "PyArray_DescrFromType": 45, "PyArray_Scalar": 60, "PyArray_New": 93, "PyArray_SetBaseObject": 282}


def address_of(function: Any) -> int:
    """The address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def python_api(name: str) -> int:
    """The address of a function or object of the Python C API."""
    try:
        return address_of(getattr(ctypes.pythonapi, name))
    except AttributeError:
        raise CompileError(f"this Python has no {name}") from None


def numpy_api() -> dict[str, int]:
    """Addresses in NumPy's C API table, by name."""
    try:
        from numpy._core.multiarray import _ARRAY_API as capsule
    except ImportError:  # NumPy 1
        from numpy.core.multiarray import _ARRAY_API as capsule
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
    table = get(capsule, None)
    found = {name: probe.word(table + 8 * index) for name, index in _ARRAY_API.items()}
    if found["array_type"] != id(np.ndarray):
        raise CompileError("NumPy's C API table has an unknown layout")
    return found


class Slots:
    """The kernel table that native code reads: slot i holds the address of a kernel. Written whole words at a time, at any moment."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * KERNEL_SLOTS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._words = (ctypes.c_uint64 * KERNEL_SLOTS).from_buffer(self._memory)
        self.address = ctypes.addressof(self._words)
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._used = 0

    def place(self, index: int) -> int:
        """The address of a slot."""
        return self.address + 8 * index

    def take(self) -> int:
        """A slot that nobody uses, holding 0."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._used == KERNEL_SLOTS:
                raise CompileError(f"all {KERNEL_SLOTS} kernel slots are in use")
            self._used += 1
            return self._used - 1

    def give(self, index: int) -> None:
        with self._lock:
            self._words[index] = 0
            self._free.append(index)

    def set(self, index: int, address: int) -> None:
        self._words[index] = address

    def get(self, index: int) -> int:
        return int(self._words[index])


def _support(addresses: dict[str, int]) -> loader.LoadedCode:
    """The code of `runtime_ir`, with these addresses."""
    rows = Module(host())
    by_rows.write(rows)
    return PendingModule("\n".join([runtime_ir.module(addresses), *(operands.move_ir(size) for size in (1, 2, 4, 8)), rows.text()]), FULL).load()


class Runtime:
    """Addresses that stubs and drivers need, and Python handles for tools and tests. Make it with `runtime()`."""

    def __init__(self) -> None:
        reason = probe.layout().reason
        if reason:
            raise CompileError(reason)
        self.numpy = numpy_api()
        self.slots = Slots()
        # interrupt word, idle contexts, handler that was there before, bytes that idle contexts keep; counters of contexts without a function
        self._words = (ctypes.c_uint64 * 4)()
        self._counters = (ctypes.c_uint64 * 16)()
        self._table = (ctypes.c_uint64 * len(abi.TABLE))()
        # Workers outlive the interpreter: their block and code are never unmapped.
        self._threads = loader.forever(pool_ir.BLOCK_BYTES)
        ctypes.c_int64.from_address(self._threads + pool_ir.WANTED).value = min(available_threads(), pool_ir.MOST_THREADS)
        at = ctypes.addressof(self._words)
        self.table_address, self.interrupt_address, self._pool_address = ctypes.addressof(self._table), at, at + 8
        libc, libm = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")
        addresses = {name: address_of(getattr(libc, name)) for name in _LIBC}
        addresses |= {name: python_api(name) for name in ("Py_IncRef", "Py_DecRef", "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread")}
        self._code = _support({
            **addresses, **self.numpy, "table": self.table_address, "kernels": self.slots.address, "interrupt": at, "pool": at + 8,
            "old_handler": at + 16, "idle": at + 24, "counters": ctypes.addressof(self._counters), "threads": self._threads})
        for i, (name, _) in enumerate(abi.TABLE):
            if name in _OWN:
                self._table[i] = self._code.address(name)
            else:
                self._table[i] = addresses[name] if name in addresses else address_of(getattr(libm, name))
        libc["__register_atfork"](None, None, ctypes.c_void_p(self._code.address("pool_forget")), None)
        self.acquire_address = self._code.address("context_acquire")
        self.release_address = self._code.address("context_release")
        self.acquire = ctypes.PYFUNCTYPE(ctypes.c_uint64)(self.acquire_address)
        self.release = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)(self.release_address)

    def address(self, name: str) -> int:
        """The address of a function of abi.TABLE."""
        return int(self._table[abi.INDEX[name]])

    @contextmanager
    def context(self) -> Iterator[int]:
        """A Context for the length of a `with` block: its address. For tier 1, tools and tests."""
        ctx = self.acquire()
        if not ctx:
            raise MemoryError("no memory for a context")
        try:
            yield ctx
        finally:
            self.release(ctx)

    # ---- threads

    def parallel_runs(self) -> int:
        """Kernels so far that ran on several threads."""
        return ctypes.c_int64.from_address(self._threads + pool_ir.JOBS).value

    def workers(self) -> int:
        """Threads of the pool that run; callers are not among them."""
        return ctypes.c_int64.from_address(self._threads + pool_ir.WORKERS).value

    # ---- interrupts

    def watch_signals(self) -> bool:
        """From now on a SIGINT that reaches Python also sets the word that loop headers poll. False: SIGINT is not Python's now.

        Our handler runs before Python's, which it calls. Call again whenever a loop is published: `signal.signal` undoes it.
        """
        if not callable(signal.getsignal(signal.SIGINT)):
            return False
        libc = ctypes.CDLL(None, use_errno=True)
        current, ours = (ctypes.c_uint64 * 20)(), self._code.address("on_signal")  # struct sigaction is 152 bytes; the handler comes first
        if libc.sigaction(int(signal.SIGINT), None, ctypes.byref(current)):
            return False
        if current[0] == ours:
            return True
        if current[0] in (0, 1):
            return False
        self._words[2], current[0] = current[0], ours
        return bool(libc.sigaction(int(signal.SIGINT), ctypes.byref(current), None) == 0)

    def interrupted(self) -> bool:
        """Whether a signal has set the word; clears it. The interpreter, where native code left because of it, lets Python handle the signal."""
        was = bool(self._words[0])
        self._words[0] = 0
        return was


_runtime: Runtime | None = None
_lock = threading.Lock()


def runtime() -> Runtime:
    """The process's run-time support. CompileError: no native code on this machine, with the reason."""
    global _runtime
    if _runtime is None:
        with _lock:
            if _runtime is None:
                _runtime = Runtime()
    return _runtime
