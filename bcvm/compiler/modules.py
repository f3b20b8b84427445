"""Text that refers to addresses, on its way to code. It gets names in their place, so that the text, and its object, fit every process: each has its
Python objects and functions elsewhere. The loader gives the names their addresses.

Names are numbered in the order in which the text first mentions them, and equal addresses have one name: so equal text means equal code.
"""
from __future__ import annotations

import re
from contextlib import suppress

from bcvm.compiler import disk, llvm, loader
from bcvm.errors import CompileError

_ADDRESS = re.compile(r"inttoptr \(i64 (\d+) to ptr\)(\(?)")  # called, if arguments follow


def constant(address: int) -> str:
    """A pointer constant."""
    return f"inttoptr (i64 {address} to ptr)" if address else "null"


def named(text: str) -> tuple[str, dict[str, int]]:
    """The text of a module without addresses, and what its names stand for."""
    names: dict[str, str] = {}
    called: set[str] = set()

    def name(found: re.Match[str]) -> str:
        number, call = found.groups()
        known = names.setdefault(number, f"address.{len(names)}")
        if call:
            called.add(known)
        return f"@{known}{call}"

    body = _ADDRESS.sub(name, text)
    declared = "".join(f"declare void @{n}() nonlazybind\n" if n in called else f"@{n} = external global i8\n" for n in names.values())
    return body + "\n" + declared, {n: int(number) for number, n in names.items()}


class PendingModule:
    """What an earlier process left of this text, or what LLVM makes of it while this process goes on. effort: see `worker`."""

    def __init__(self, text: str, effort: int) -> None:
        self._text, self._addresses = named(text)
        self._effort, self._key = effort, disk.module_key(self._text, effort)
        self._kept = disk.read_module(self._key)
        self._made = self._ask() if self._kept is None else None

    def _ask(self) -> llvm.Compilation:
        return llvm.Compilation(self._text, effort=self._effort, keep=(disk.place_module(self._key), ""))

    def load(self) -> loader.LoadedCode:
        """Waits for the code. CompileError: as of `llvm.compile_ir`."""
        if self._kept is not None:
            with suppress(CompileError):  # not an object that this loader takes
                return loader.load(self._kept, self._addresses)
        return loader.load((self._made or self._ask()).result(), self._addresses)
