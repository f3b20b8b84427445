"""Who may run Python now, while something is compiled: calls that are interpreted come first.

Two threads that both run Python take the interpreter lock from each other at every release, and interpreted tensor code releases it at every
larger op, so a compilation beside it would slow a call down many times over. The compile thread therefore waits at checkpoints
while a call is interpreted, and such a call gives it a slice of time before it begins (`vm.compile_thread`).
"""
from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 0.02  # seconds that the compile thread waits for one call, at all checkpoints together; a longer one has to share

_calls = 0                                # calls being interpreted that a compilation would disturb
_begun = 0                                # times that a call began while none was inside
_patient = (0, 0.0)                       # the last of them that the compile thread waited for, and until when
_changed = threading.Condition()
_compiling: int | None = None             # the thread that compiles
_waited_for = False
_elsewhere = False


def begin_call() -> None:
    global _calls, _begun
    with _changed:
        _begun += not _calls
        _calls += 1


def end_call() -> None:
    global _calls
    with _changed:
        _calls -= 1
        if not _calls:
            _changed.notify_all()


def compile_here() -> None:
    """This thread is the one that compiles."""
    global _compiling
    _compiling = threading.get_ident()


def checkpoint() -> None:
    """A place in the work of the compile thread where it may wait."""
    if _calls and threading.get_ident() == _compiling:
        _wait()


def _wait() -> None:
    global _patient
    now = time.perf_counter()
    with _changed:
        if _patient[0] != _begun:
            _patient = _begun, now + PATIENCE
        end = _patient[1]
        while _calls and now < end:
            _changed.wait(end - now)
            now = time.perf_counter()


@contextmanager
def elsewhere() -> Iterator[None]:
    """The work of the compile thread goes on in another process for a while: it needs no turn here."""
    global _elsewhere
    _elsewhere = threading.get_ident() == _compiling
    try:
        yield
    finally:
        _elsewhere = False


def wanted() -> bool:
    """Whether the compile thread wants to run Python."""
    return not _elsewhere


def someone_waits(waits: bool) -> None:
    """Whether the job that the compile thread begins now is waited for."""
    global _waited_for
    _waited_for = waits


def nobody_waits() -> bool:
    """Whether this is the compile thread, and its job is in the background."""
    return threading.get_ident() == _compiling and not _waited_for


def reset() -> None:
    """In a child after a fork: no call is inside."""
    global _calls, _changed, _compiling, _waited_for
    _calls, _changed, _compiling, _waited_for = 0, threading.Condition(), None, False
