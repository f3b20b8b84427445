"""IR text -> object code. LLVM does it in the compile process (`process.py`) or, where there can be none, in this one.

IR is emitted already vectorised, so no IR pass runs: the code generator alone gives the code of O3 in an eighth of the time, and
in half of that where it need not improve loops (see `worker.PLAIN`). In this process LLVM's options stay as they are: they are
process-wide and other users of LLVM live here too.
"""
from __future__ import annotations

import marshal
import threading
from functools import cache

from bcvm import turns
from bcvm.compiler import elf, store
from bcvm.compiler.process import Answer, Unavailable, process
from bcvm.compiler.target import Target, host
from bcvm.compiler.worker import FULL, Compiler
from bcvm.errors import CompileError

_lock = threading.Lock()


@cache
def _here() -> Compiler:
    return Compiler()


class Compilation:
    """A module that LLVM was asked to compile, in the compile process while this one goes on. Arguments as of `compile_ir`; keep: a file for the
    object, or '', and a name that goes with it, see `worker.serve`."""

    def __init__(self, ir_text: str, target: Target | None = None, effort: int = FULL, verify: bool = True, keep: tuple[str, str] = ("", "")) -> None:
        turns.checkpoint()  # much text has been put together, and will be sent
        to = target or host()
        self._keep, self._request = keep, (ir_text, to.cpu, to.features, effort, verify)
        try:
            self._answer: Answer | None = process.begin(turns.nobody_waits(), keep, *self._request)
        except Unavailable:
            self._answer = None

    def result(self) -> bytes:
        """The object; whether it needs symbols from elsewhere is the loader's business. CompileError: invalid IR, or a fault of LLVM."""
        try:
            if self._answer is not None:
                return process.result(self._answer)
        except Unavailable:
            pass
        try:
            with _lock:
                code = bytes(_here().emit(*self._request))
        except ValueError as e:
            raise CompileError(str(e)) from None
        path, name = self._keep
        if path:
            store.put(path, marshal.dumps((name, code)))
        return code


def compile_ir(ir_text: str, target: Target | None = None, effort: int = FULL, verify: bool = True) -> bytes:
    """Compiles a module to an ELF object for `loader.load`.

    Globals of a module should be `private` or `internal` constants; functions that others look up are ordinary `define`s.
    effort: see `worker`. verify: run LLVM's IR verifier first (invalid IR can crash LLVM otherwise).
    CompileError: invalid IR, code that needs a symbol outside itself, which it names, or a fault of LLVM.
    """
    data = Compilation(ir_text, target, effort, verify).result()
    elf.read(data).expect_complete()
    return data


def assembly(ir_text: str, target: Target | None = None, effort: int = FULL) -> str:
    """The assembly text of a module, for people and tests."""
    to = target or host()
    try:
        with _lock:
            return str(_here().emit(ir_text, to.cpu, to.features, effort, True, assembly=True))
    except ValueError as e:
        raise CompileError(str(e)) from None
