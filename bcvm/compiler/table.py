"""The kernel table: (op or region, target) -> native kernel in a slot. Kernels are shared by content and counted by the drivers that call them."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bcvm.compiler import disk, llvm, loader
from bcvm.compiler.region import KernelSource
from bcvm.compiler.runtime import runtime
from bcvm.errors import CompileError


class Kernel:
    """A kernel in its slot. uses: drivers that call it."""

    def __init__(self, source: KernelSource, slot: int, code: loader.LoadedCode) -> None:
        self.key, self.slot, self.code, self.uses = source.key, slot, code, 0


class KernelTable:
    """Compiles a kernel when first asked for. Used on the compile thread only, but for `release` and the counts."""

    def __init__(self) -> None:
        self._by_key: dict[Any, Kernel] = {}
        self._by_content: dict[str, Kernel] = {}
        self._lock = threading.RLock()
        self.compiled = 0

    def slot_for(self, key: Any, make: Callable[[], KernelSource]) -> int:
        """The slot of the kernel for this key; `make` gives its source if there is none yet."""
        return self.kernel(key, make).slot

    def kernel(self, key: Any, make: Callable[[], KernelSource]) -> Kernel:
        with self._lock:
            found = self._by_key.get(key)
            if found is None:
                source = make()
                found = self._by_content.get(source.key)
                if found is None:
                    code = self._code(source)
                    slots = runtime().slots
                    slot = slots.take()
                    slots.set(slot, code.address(source.name))
                    found = self._by_content[source.key] = Kernel(source, slot, code)
                self._by_key[key] = found
            return found

    def _code(self, source: KernelSource) -> loader.LoadedCode:
        kept = disk.read(source)
        if kept is not None:
            try:
                return loader.load(kept)
            except CompileError:
                pass  # not an object this loader takes: compiled again below
        made = llvm.compile_ir(source.ir)
        self.compiled += 1
        disk.write(source, made)
        return loader.load(made)

    def acquire(self, keys: list[Any]) -> list[Kernel]:
        """Count a new user of the kernels of these keys."""
        with self._lock:
            kernels = [self._by_key[k] for k in keys]
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
                self._by_key = {key: v for key, v in self._by_key.items() if v is not k}
                del self._by_content[k.key]
                runtime().slots.give(k.slot)
                k.code.release()

    def info(self) -> dict[str, int]:
        """kernels: how many there are; bytes: their code; compiled: how many were ever compiled."""
        with self._lock:
            return {"kernels": len(self._by_content), "bytes": sum(k.code.size for k in self._by_content.values()), "compiled": self.compiled}


table = KernelTable()
