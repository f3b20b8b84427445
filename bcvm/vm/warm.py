"""What a process needs once before native code can be made: the compiler, LLVM, the run-time support. Made where the first function is jitted, so that neither
the import nor a call pays for it: LLVM starts in its process while the compiler's modules are loaded here, which would hold calls up later. Then a function is compiled
to text that nobody uses: what runs for the first time takes Python about twice as long. It ends with a trial: a small function is compiled and called, and if that does
not give the right result there is no native code in this process, with the reason. Last, garbage is collected: so much was imported that Python would do it soon, while a
function is compiled and calls go on, which then wait for 15 ms and more."""
from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from bcvm.bytecode.instructions import BY_NAME
from bcvm.bytecode.program import BoundProgram, Code, Param, Program
from bcvm.compiler.process import process
from bcvm.errors import BcvmError, CompileError
from bcvm.ops.lookup import binding_for
from bcvm.specialise import specialise_call
from bcvm.vm import entry
from bcvm.vm.compile_thread import thread


def _program(name: str, ops: tuple[tuple[str, int], ...]) -> Program:
    """A function of x: these ops of so many operands, one after the other, each of the result so far and x."""
    code = [Code(BY_NAME["LOAD"].opcode, (0,))]
    for n, (_, operands) in enumerate(ops):
        code += [Code(BY_NAME["LOAD"].opcode, (0,))] * (operands - 1)
        code.append(Code(BY_NAME["CALL_OP"].opcode, (n, 0, operands)))
    return Program(name, "", (*code, Code(BY_NAME["RETURN"].opcode)), (Param("x"),), ("x",), names=tuple(op for op, _ in ops))


_TRIAL = _program("trial", (("add", 2),))
_REHEARSAL = _program("rehearsal", (("matmul", 2), ("add", 2), ("tanh", 1), ("gelu", 1), ("softmax", 1)))
_begun = False
_reason = ""


def begin() -> None:
    """Make it all; the first call of this function does it."""
    global _begun, _reason
    if _begun:
        return
    _begun = True
    _reason = entry.reason()
    if not _reason:
        try:
            process.prepare()
            _load()
            from bcvm.compiler import single
            from bcvm.compiler.splice import library as stencils
            with suppress(BcvmError):  # it is the trial that decides
                _rehearse()
            process.wait()
            stencils.load()
            _try()
            single.offer(thread.when_idle)
            if gc.isenabled():
                gc.collect()
        except (BcvmError, ImportError, OSError) as e:
            _reason = f"{type(e).__name__}: {e}"


def warm() -> str:
    """The same; what `reason` says then."""
    begin()
    return _reason


def reason() -> str:
    """Why there can be no native code here; '' if there can, or if that is not known yet."""
    return _reason


def _load() -> None:
    from bcvm.compiler import disk, native  # noqa: F401
    from bcvm.compiler.driver import library  # noqa: F401
    from bcvm.compiler.kernels import column, conv, libm, math, matmul, movement, region, row, transpose  # noqa: F401
    from bcvm.compiler.runtime import runtime
    from bcvm.compiler.splice import passes, splicer, table  # noqa: F401
    runtime()
    disk.generators()
    binding_for(np.add)  # finds what is bound


class _NoTable:
    """Makes the texts of kernels, and keeps none."""

    def slot_for(self, key: Any, make: Callable[[], Any]) -> int:
        make()
        return 0


def _rehearse() -> None:
    from bcvm.compiler import stub
    from bcvm.compiler.compile import compile_graph
    from bcvm.compiler.target import host
    graph = specialise_call(BoundProgram(_REHEARSAL), (np.zeros((2, 2), np.float32),), (), _no_callees)
    compiled = compile_graph(graph, _NoTable(), host())
    stub.prepare(graph, stub.Call(1, ()), compiled.return_trees, driver="@driver", resume=_left, out_words=compiled.out_words)


def _try() -> None:
    from bcvm.compiler import native
    x = np.arange(3, dtype=np.float32)
    graph = specialise_call(BoundProgram(_TRIAL), (x,), (), _no_callees)
    target = entry.make_function_type("Trial", {})()
    entry.initialise(target, _not_taken)
    code = native.build(graph, 1, (), entry.get_entry(target), _left)
    entry.set_entry(target, code.entry)
    if target(x).tolist() != [0.0, 2.0, 4.0]:
        raise CompileError("the trial function gives a wrong result")
    entry.set_entry(target, 0)
    code.release()


def _no_callees(function: object) -> BoundProgram:
    raise CompileError("the trial function calls nothing")


def _not_taken(x: object) -> object:
    raise CompileError("the trial function's guards failed")


def _left(reason: str, state: object, values: object) -> Any:
    raise CompileError(f"the trial function left native code: {reason}")
