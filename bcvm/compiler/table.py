"""The kernel table: (op or region, target) -> native kernel in a slot. Kernels are shared by key and counted by the drivers that call them."""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from bcvm.compiler import disk, llvm, loader
from bcvm.compiler.region import KernelSource
from bcvm.compiler.runtime import runtime
from bcvm.errors import CompileError

ENTRY = "kernel"  # the name of the function in code that was spliced


class Kernel:
    """A kernel in its slot. uses: drivers that call it. spliced: its code is not LLVM's; asked: LLVM's is to replace it."""

    def __init__(self, key: Any, slot: int, spliced: bool = False) -> None:
        self.key, self.slot, self.uses = key, slot, 0
        self.spliced, self.asked = spliced, False
        self.code: loader.LoadedCode | None = None    # None while LLVM is at it
        self.last_gone = False  # its last user so far
        self.before: loader.LoadedCode | None = None  # what was replaced: somebody may be inside

    @property
    def size(self) -> int:
        """Bytes of code."""
        return self.code.size if self.code is not None else 0


class KernelTable:
    """Compiles a kernel when first asked for. Used on the compile thread only, but for `release` and the counts.

    LLVM compiles kernels while the text of others is generated; `acquire` waits for the last."""

    def __init__(self) -> None:
        self._kernels: dict[Any, Kernel] = {}
        self._lock = threading.RLock()
        self._under_way: deque[tuple[Kernel, KernelSource, llvm.Compilation]] = deque()
        self._errors: dict[Any, CompileError] = {}
        self._promised: dict[Kernel, None] = {}  # their slots are in the text of a driver that has not acquired them yet
        self.compiled = 0

    def slot_for(self, key: Any, make: Callable[[], KernelSource]) -> int:
        """The slot of the kernel for this key; `make` gives its source if there is none yet. The key says all that the source depends on."""
        return self.kernel(key, make).slot

    def kernel(self, key: Any, make: Callable[[], KernelSource], splice: Callable[[], loader.LoadedCode | None] | None = None) -> Kernel:
        """splice: gives the code at once, or None; without it the kernel is LLVM's. It may have no code before it is acquired."""
        with self._lock:
            found = self._kernels.get(key)
            if found is not None and found.spliced and splice is None:
                self.replace(found, make)
            if found is None:
                spliced = splice() if splice is not None else None
                kept = (spliced, ENTRY) if spliced is not None else self._kept(key)
                source = make() if kept is None else None
                found = self._kernels[key] = Kernel(key, runtime().slots.take(), spliced is not None)
                if kept is not None:
                    self._fill(found, *kept)
                elif source is not None:
                    self._under_way.append((found, source, _asked(key, source)))
            self._promised[found] = None
            return found

    def present(self, key: Any, on_disk: bool = True) -> Kernel | None:
        """The kernel for this key if its code is here, or was left on disk, with a user more. On any thread; BlockingIOError while another is at the table."""
        if not self._lock.acquire(blocking=False):
            raise BlockingIOError
        try:
            found = self._kernels.get(key)
            if found is None and on_disk and (kept := self._kept(key)) is not None:
                found = self._kernels[key] = Kernel(key, runtime().slots.take())
                self._fill(found, *kept)
            if found is None or found.code is None:
                return None
            found.uses += 1
            return found
        finally:
            self._lock.release()

    def replace(self, kernel: Kernel, make: Callable[[], KernelSource]) -> None:
        """Put LLVM's code into the slot of a spliced kernel."""
        with self._lock:
            if kernel.spliced and self._kernels.get(kernel.key) is kernel:
                kept = self._kept(kernel.key)
                if kept is None:
                    source = make()
                    kept = self._made(_asked(kernel.key, source)), source.name
                self.put(kernel, *kept, False)

    def put(self, kernel: Kernel, code: loader.LoadedCode, name: str, spliced: bool) -> None:
        """Other code for a kernel that has had one kind so far; released at once if the kernel is gone."""
        with self._lock:
            self._settle()  # it may be this one that LLVM is at, and fails
            if self._kernels.get(kernel.key) is not kernel or kernel.before is not None:
                code.release()
                return
            kernel.before, kernel.spliced = kernel.code, spliced
            self._fill(kernel, code, name)

    def _fill(self, kernel: Kernel, code: loader.LoadedCode, name: str) -> None:
        runtime().slots.set(kernel.slot, code.address(name))
        kernel.code = code

    def _kept(self, key: Any) -> tuple[loader.LoadedCode, str] | None:
        """The code that an earlier process left, and the kernel's name in it."""
        kept = disk.read_kernel(key)
        try:
            return (loader.load(kept[1]), kept[0]) if kept is not None else None
        except CompileError:
            return None  # not an object that this loader takes

    def _made(self, compilation: llvm.Compilation) -> loader.LoadedCode:
        made = compilation.result()
        self.compiled += 1
        return loader.load(made)

    def _settle(self) -> None:
        """Take over the kernels that LLVM is at. Where that fails, whoever acquires the kernel hears of it."""
        while self._under_way:
            kernel, source, compilation = self._under_way.popleft()
            try:
                self._fill(kernel, self._made(compilation), source.name)
            except CompileError as e:
                self._errors[kernel.key] = e
                self._drop(kernel)

    def _drop(self, kernel: Kernel) -> None:
        del self._kernels[kernel.key]
        runtime().slots.give(kernel.slot)
        for code in (kernel.code, kernel.before):
            if code is not None:
                code.release()

    def acquire(self, keys: list[Any]) -> list[Kernel]:
        """Count a new user of the kernels of these keys. CompileError: one of them could not be compiled."""
        with self._lock:
            self._settle()
            errors, self._errors = self._errors, {}
            for key in keys:
                if key not in self._kernels:
                    raise errors[key]
            kernels = [self._kernels[k] for k in keys]
            for k in kernels:
                k.uses += 1
            promised, self._promised = self._promised, {}
            for k in promised:
                if k.last_gone and k.uses == 0 and self._kernels.get(k.key) is k:
                    self._drop(k)
            return kernels

    def release(self, kernels: list[Kernel]) -> None:
        """A user is gone; a kernel without users is freed, once no driver in the making has its slot. Called at any time, by garbage collection too."""
        with self._lock:
            for k in kernels:
                k.uses -= 1
            for k in dict.fromkeys(kernels):
                k.last_gone = k.uses == 0
                if k.last_gone and k not in self._promised:
                    self._drop(k)

    def info(self) -> dict[str, int]:
        """kernels: how many there are, spliced: of these; bytes: their code; compiled: how many were ever compiled."""
        with self._lock:
            kernels = self._kernels.values()
            return {"kernels": len(kernels), "spliced": sum(k.spliced for k in kernels), "bytes": sum(k.size for k in kernels), "compiled": self.compiled}


def _asked(key: Any, source: KernelSource) -> llvm.Compilation:
    return llvm.Compilation(source.ir, effort=source.effort, keep=(disk.place(key), source.name))


table = KernelTable()
