"""What a process needs once before native code can be made: the compiler, LLVM, the run-time support. Made where the first function is jitted, so that neither
the import nor a call pays for it: LLVM starts in its process while the compiler's modules are loaded here, which would hold calls up later."""
from __future__ import annotations

from bcvm.compiler.process import process
from bcvm.errors import BcvmError
from bcvm.vm import entry

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
            process.wait()
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
    from bcvm.compiler import native  # noqa: F401
    from bcvm.compiler.driver import library  # noqa: F401
    from bcvm.compiler.kernels import column, conv, libm, math, matmul, movement, region, row, transpose  # noqa: F401
    from bcvm.compiler.runtime import runtime
    from bcvm.compiler.splice import library as stencils  # noqa: F401
    from bcvm.compiler.splice import passes, splicer, table  # noqa: F401
    runtime()
