"""Every error that bcvm raises by itself. All of them are BcvmError."""
from __future__ import annotations


class BcvmError(Exception):
    """Base of all errors of this package."""


class BytecodeError(BcvmError):
    """Bytes or assembly text that are no program: says the offset or line, the instruction and the reason."""


class VerifyError(BytecodeError):
    """A well-formed program that could misbehave: says the program, the instruction and the broken rule."""


class ShapeError(BcvmError, ValueError):
    """Sizes, rank or dtype do not fit: names the argument, what was expected, what was given, and the source line."""


class SymbolicResolutionTimeout(BcvmError):
    """Dims are defined by each other: the message names the cycle."""


class CompileError(BcvmError):
    """The compiler failed. Users never see it: the call is interpreted and the reason counted."""


class Unsupported(BcvmError):
    """A construct has no native form; the instruction runs in the interpreter instead. `reason` is shown by explain."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
