"""bcvm: plain Python tensor code whose shapes and control flow change from call to call, at compiled speed.

    @bcvm.jit
    def f(x): return np.maximum(x @ w + b, 0)

See the README for the guide. Importing this package starts no thread and imports no compiler.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bcvm.config import Options, clamp, config
from bcvm.errors import BcvmError, BytecodeError, CompileError, ShapeError, SymbolicResolutionTimeout, VerifyError

if TYPE_CHECKING:
    from bcvm import mindspore as mindspore
    from bcvm import ops as ops
    from bcvm.bytecode.assembler import assemble as assemble
    from bcvm.bytecode.disassembler import disassemble as disassemble
    from bcvm.bytecode.verifier import verify as verify
    from bcvm.shapes.hint import Tensor as Tensor
    from bcvm.tools.trace import trace as trace
    from bcvm.vm import cache as cache
    from bcvm.vm.function import jit as jit
    from bcvm.vm.function import load as load

__version__ = "0.1.0"

# Loaded at first use, so that `import bcvm` stays light.
_LAZY = {
    "jit": "bcvm.vm.function", "load": "bcvm.vm.function", "assemble": "bcvm.bytecode.assembler", "disassemble": "bcvm.bytecode.disassembler",
    "verify": "bcvm.bytecode.verifier", "Tensor": "bcvm.shapes.hint", "trace": "bcvm.tools.trace",
}
_MODULES = {"ops": "bcvm.ops", "cache": "bcvm.vm.cache", "mindspore": "bcvm.mindspore"}

__all__ = ["BcvmError", "BytecodeError", "CompileError", "Options", "ShapeError", "SymbolicResolutionTimeout", "Tensor", "VerifyError", "assemble",
           "cache", "clamp", "config", "disassemble", "jit", "load", "ops", "trace", "verify"]


def __getattr__(name: str) -> Any:
    from importlib import import_module
    if name in ("jit", "load"):
        import_module("bcvm.frameworks")  # what the compiler and the specialiser know of each library
        import_module("bcvm.tools.console")  # the [BCVM] lines
    if name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'bcvm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
