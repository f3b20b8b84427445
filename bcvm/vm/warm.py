"""What a process needs once before native code can be made: the compiler, LLVM, the run-time support. Paid where the first function is jitted, so
that neither import nor the first calls pay for it. It ends with a trial: a small function is compiled and called, and if that does
not give the right result there is no native code in this process, with the reason."""
from __future__ import annotations

from functools import cache

import numpy as np

from bcvm.bytecode.instructions import BY_NAME
from bcvm.bytecode.program import BoundProgram, Code, Param, Program
from bcvm.errors import BcvmError, CompileError
from bcvm.specialise import specialise_call
from bcvm.vm import entry

_TRIAL = Program("trial", "", (Code(BY_NAME["LOAD"].opcode, (0,)), Code(BY_NAME["LOAD"].opcode, (0,)), Code(BY_NAME["CALL_OP"].opcode, (0, 0, 2)),
                               Code(BY_NAME["RETURN"].opcode)), (Param("x"),), ("x",), names=("add",))


@cache
def warm() -> str:
    """Make it all; returns why there can be no native code here, '' if there can."""
    if entry.reason():
        return entry.reason()
    try:
        from bcvm.compiler import native
        from bcvm.compiler.driver import library  # noqa: F401
        from bcvm.compiler.kernels import column, conv, libm, math, matmul, movement, region, row, transpose  # noqa: F401  loading a module holds up callers
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
    except (BcvmError, ImportError, OSError) as e:
        return f"{type(e).__name__}: {e}"
    return ""


def _no_callees(function: object) -> BoundProgram:
    raise CompileError("the trial function calls nothing")


def _not_taken(x: object) -> object:
    raise CompileError("the trial function's guards failed")


def _left(reason: str, state: object, values: object) -> object:
    raise CompileError(f"the trial function left native code: {reason}")
