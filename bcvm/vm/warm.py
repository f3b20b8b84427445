"""What a process needs once before native code can be made: the compiler, LLVM, the run-time support. Begun where the first function is jitted. Modules
are loaded there, since loading holds Python's lock; LLVM starts in its process and the rest is made on the compile thread, so that neither the import nor a
call pays for it."""
from __future__ import annotations

from bcvm import turns
from bcvm.compiler.process import process
from bcvm.errors import BcvmError
from bcvm.vm import entry
from bcvm.vm.compile_thread import thread

_begun = False
_reason = ""


def begin() -> None:
    """Make it all, in the background; the first call of this function does it."""
    global _begun, _reason
    if not _begun:
        _begun = True
        _reason = entry.reason()
        if not _reason:
            try:
                process.prepare(True)
                _load()
            except (ImportError, OSError) as e:
                _reason = f"{type(e).__name__}: {e}"
                return
            thread.submit(_make)


def warm() -> str:
    """The same, and wait for it; what `reason` says then."""
    begin()
    if not _reason:
        thread.call(lambda: None)
    return _reason


def reason() -> str:
    """Why there can be no native code here; '' if there can, or if that is not known yet."""
    return _reason


def _load() -> None:
    from bcvm.compiler import native  # noqa: F401
    from bcvm.compiler.driver import library  # noqa: F401
    from bcvm.compiler.kernels import column, conv, libm, math, matmul, movement, region, row, transpose  # noqa: F401


def _make() -> None:
    global _reason
    from bcvm.compiler.runtime import runtime
    from bcvm.compiler.target import host
    try:
        turns.checkpoint()
        host()
        runtime()
    except (BcvmError, ImportError, OSError) as e:
        _reason = f"{type(e).__name__}: {e}"
