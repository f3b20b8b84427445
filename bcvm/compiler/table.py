"""The kernel table: (op or region, target) -> native kernel in a slot. Kernels are shared by key and counted by the drivers that call them."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bcvm.compiler import disk, llvm, loader
from bcvm.compiler.region import KernelSource
from bcvm.compiler.runtime import runtime
from bcvm.errors import CompileError

ENTRY = "kernel"  # the name of the function in code that was spliced


class Kernel:
    """A kernel in its slot. uses: drivers that call it. spliced: its code is not LLVM's; asked: LLVM's is to replace it."""

    def __init__(self, key: Any, slot: int, code: loader.LoadedCode, spliced: bool = False) -> None:
        self.key, self.slot, self.code, self.uses = key, slot, code, 0
        self.spliced, self.asked = spliced, False
        self.before: loader.LoadedCode | None = None  # what was replaced: somebody may be inside


class KernelTable:
    """Compiles a kernel when first asked for. Used on the compile thread only, but for `release` and the counts."""

    def __init__(self) -> None:
        self._kernels: dict[Any, Kernel] = {}
        self._lock = threading.RLock()
        self.compiled = 0

    def slot_for(self, key: Any, make: Callable[[], KernelSource]) -> int:
        """The slot of the kernel for this key; `make` gives its source if there is none yet. The key says all that the source depends on."""
        return self.kernel(key, make).slot

    def kernel(self, key: Any, make: Callable[[], KernelSource], splice: Callable[[], loader.LoadedCode | None] | None = None) -> Kernel:
        """splice: gives the code at once, or None; without it the kernel is LLVM's."""
        with self._lock:
            found = self._kernels.get(key)
            if found is not None and found.spliced and splice is None:
                self.replace(found, make)
            if found is None:
                spliced = splice() if splice is not None else None
                code, name = (spliced, ENTRY) if spliced is not None else self._code(key, make)
                slots = runtime().slots
                slot = slots.take()
                slots.set(slot, code.address(name))
                found = self._kernels[key] = Kernel(key, slot, code, spliced is not None)
            return found

    def replace(self, kernel: Kernel, make: Callable[[], KernelSource]) -> None:
        """Put LLVM's code into the slot of a spliced kernel."""
        with self._lock:
            if kernel.spliced and self._kernels.get(kernel.key) is kernel:
                self.put(kernel, *self._code(kernel.key, make), False)

    def put(self, kernel: Kernel, code: loader.LoadedCode, name: str, spliced: bool) -> None:
        """Other code for a kernel that has had one kind so far; released at once if the kernel is gone."""
        with self._lock:
            if self._kernels.get(kernel.key) is not kernel or kernel.before is not None:
                code.release()
                return
            runtime().slots.set(kernel.slot, code.address(name))
            kernel.before, kernel.code, kernel.spliced = kernel.code, code, spliced

    def _code(self, key: Any, make: Callable[[], KernelSource]) -> tuple[loader.LoadedCode, str]:
        """The code and the name of the kernel in it."""
        kept = disk.read_kernel(key)
        if kept is not None:
            try:
                return loader.load(kept[1]), kept[0]
            except CompileError:
                pass  # not an object this loader takes: compiled again below
        source = make()
        made = llvm.compile_ir(source.ir)
        self.compiled += 1
        disk.write_kernel(key, source.name, made)
        return loader.load(made), source.name

    def acquire(self, keys: list[Any]) -> list[Kernel]:
        """Count a new user of the kernels of these keys."""
        with self._lock:
            kernels = [self._kernels[k] for k in keys]
            for k in kernels:
                k.uses += 1
            return kernels

    def release(self, kernels: list[Kernel]) -> None:
        """A user is gone; a kernel without users is freed."""
        with self._lock:
            for k in kernels:
                k.uses -= 1
            gone = [k for k in dict.fromkeys(kernels) if k.uses == 0]
            for k in gone:
                del self._kernels[k.key]
                runtime().slots.give(k.slot)
                k.code.release()
                if k.before is not None:
                    k.before.release()

    def info(self) -> dict[str, int]:
        """kernels: how many there are, spliced: of these; bytes: their code; compiled: how many were ever compiled."""
        with self._lock:
            kernels = self._kernels.values()
            return {"kernels": len(kernels), "spliced": sum(k.spliced for k in kernels), "bytes": sum(k.code.size for k in kernels), "compiled": self.compiled}


table = KernelTable()
