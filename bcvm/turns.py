"""Who may run now, while something is compiled: calls that are interpreted come first.

Two threads that both run Python take the interpreter lock from each other at every release, and interpreted tensor code releases it at every
larger op, so a compilation beside it would slow a call down many times over; and where an op is split over all processors, as BLAS does, one that waits
for its turn holds up the rest, by a tick of the scheduler each time. So the two take turns: a call that is interpreted first gives the compilation a slice
of time, and then runs alone. It is the compile thread that ends the slice, at a checkpoint, and then lies still: whoever wakes up by a
clock may have to wait for a processor, but the one that the thread has left is free. The compile process, which gives way to everyone who
wakes up (see `worker`), is stopped, and does not go on before the next slice, or a lull: Linux lets even who is to take only what is left over have a
tick beside who is ready to run.

A slice is spent on the processor that the caller leaves. On another, the compilation would take turns with a thread of the caller's ops, which keep on
spinning between ops; Linux would move that to the processor left, and the caller, once awake, would share it with that thread for many ticks.
"""
from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE, MOST = 0.1, 0.25  # seconds that the compile thread waits for one call, at all checkpoints together, or twice what it usually takes; one longer than that shares
ENOUGH = 1.0      # seconds that one compilation lies still for calls, all in all; then it shares with them
LULL = 0.004      # seconds without a call after which none is expected
SETTLE = 0.002   # seconds that a call waits for a checkpoint beyond its slice
SLICE_MIN, SLICE_MAX, SLICE_MOST = 0.0002, 0.002, 0.004  # seconds that a call gives the compilation: twice what it takes, within the first two, or a tenth up to the third
LONG = 0.0001    # seconds beyond which a call may have use for all processors
SLOW = 0.06      # seconds beyond which half of what a call takes may be better spent waiting for native code

Let = Callable[[bool, int | None], object]  # whether the compile process may go on, and on which processor it begins; None: any

_processor = ctypes.PyDLL(None).sched_getcpu  # of the caller; keeps the interpreter lock

_calls = _long_calls = 0                  # calls being interpreted that a compilation would disturb
_begun = 0                                # times that a call began while none was inside
_patience = PATIENCE                      # with the calls inside
_patient = (0, 0.0)                       # the last of them that the compile thread waited for, and until when
_slice_end = 0.0                          # until when the compile thread may go on nevertheless
_last_end = 0.0                           # of a call
_changed = threading.Condition()
_compiling: int | None = None             # the thread that compiles
_compiling_id = 0                         # as the system calls it
_allowed: set[int] | None = None          # the processors that it may use, while it is held to one, until it wakes up there
_working = False                          # whether it has a job, and Python to run for it
_parked = False                           # and whether it waits at a checkpoint
_process: Let | None = None               # the compile process, while that has the job
_stopped: float | None = None             # since when it has been stopped
_held = 0.0                               # seconds that this compilation has lain still
_waiting = 0                              # callers that wait for native code
_waited_for = False


def worth_waiting(usual: float) -> float:
    """Seconds that a call may wait for native code, which is mostly there by then, before it is interpreted for about `usual` seconds."""
    return max(usual - SLOW, 0.0) / 2


def begin_call(usual: float) -> None:
    """A call is going to be interpreted, which takes about `usual` seconds."""
    global _calls, _long_calls, _begun, _slice_end, _patience
    time_given = min(max(usual * 2, SLICE_MIN), max(SLICE_MAX, min(usual / 10, SLICE_MOST)))
    with _changed:
        _begun += not _calls
        _patience = max(_patience if _calls else PATIENCE, min(usual * 2, MOST))
        _calls += 1
        _long_calls += usual >= LONG
        if threading.get_ident() != _compiling:
            end = time.perf_counter() + time_given
            if _working:
                _slice_end = end
                if _parked:  # still, since the last call
                    _wake_on(_left_by_caller(usual))
                    _changed.notify_all()
                _changed.wait_for(_is_still, time_given + SETTLE)
            elif _process is not None:
                _let(True, _left_by_caller(usual))
                _changed.wait_for(lambda: _process is None, max(end - time.perf_counter(), 0))  # it may have pushed the caller from its processor
        if _long_calls:
            _let(False)


def end_call(usual: float) -> None:
    """That call has ended."""
    global _calls, _long_calls, _last_end
    with _changed:
        _calls -= 1
        _last_end = time.perf_counter()
        _long_calls -= usual >= LONG


@contextmanager
def wait_for_code() -> Iterator[None]:
    """This caller waits for the compilation: no call holds that up meanwhile, not even one that the caller is inside."""
    global _waiting
    with _changed:
        _waiting += 1
        _let(True)
        _changed.notify_all()
    try:
        yield
    finally:
        with _changed:
            _waiting -= 1


def _left_by_caller(usual: float) -> int | None:
    """The processor that this caller leaves, if others have work: with one at rest the compilation is better off there, and so are the caller's caches."""
    if usual >= LONG:
        with suppress(OSError, ValueError, IndexError), open("/proc/loadavg", encoding="ascii") as f:
            if int(f.read().split()[3].partition("/")[0]) >= (os.cpu_count() or 1):
                return _processor()
    return None


def _wake_on(processor: int | None) -> None:
    """Have the compile thread wake up on that processor."""
    global _allowed
    if processor is not None and _allowed is None:
        with suppress(OSError):
            _allowed = os.sched_getaffinity(_compiling_id)
            os.sched_setaffinity(_compiling_id, {processor})


def _woken() -> None:
    """That thread is awake. Threads that others start from it must not be held to one processor."""
    global _allowed
    if _allowed is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, _allowed)
        _allowed = None


def _is_still() -> bool:
    return not _working or _parked and time.perf_counter() >= _slice_end


def compile_here() -> None:
    """This thread is the one that compiles."""
    global _compiling, _compiling_id
    _compiling, _compiling_id = threading.get_ident(), threading.get_native_id()


@contextmanager
def job(waited: bool) -> Iterator[None]:
    """A job of the compile thread; whether someone waits for it."""
    global _waited_for, _held
    _waited_for, _held = waited, 0.0
    _work(True)
    try:
        yield
    finally:
        _work(False)


def checkpoint() -> None:
    """A place in the work of the compile thread where it may wait."""
    if _calls and threading.get_ident() == _compiling and time.perf_counter() >= _slice_end and _held < ENOUGH and not _waiting:
        _wait()


def _wait() -> None:
    """Until there is a slice, or no call. Not until the call ends: the next one gives a slice, and the time between belongs to the caller."""
    global _parked, _patient, _held
    with _changed:
        start, _parked = time.perf_counter(), True
        _changed.notify_all()
        if _patient[0] != _begun:
            _patient = _begun, time.perf_counter() + _patience
        end = _patient[1]
        while (now := time.perf_counter()) >= _slice_end and now < (end if _calls else _last_end + LULL) and not _waiting:
            _changed.wait(LULL)
            _woken()
        _parked = False
        _held += now - start


def _work(working: bool) -> None:
    global _working
    with _changed:
        _working = working
        _changed.notify_all()


@contextmanager
def elsewhere() -> Iterator[None]:
    """The compile thread waits for the compile process: it needs no turn here."""
    if threading.get_ident() != _compiling:
        yield
        return
    _work(False)
    try:
        yield
    finally:
        _work(True)


def process_works(let: Let | None) -> None:
    """The compile process is going to work, and nobody waits for it. None: it has done its work."""
    global _process
    with _changed:
        if let is None:
            _let(True)
        _process = let
        if _long_calls:
            _let(False)
        _changed.notify_all()


def be_patient() -> None:
    """Every `LULL` or so, by who waits for that process: lets it go on after the calls, and beside one that takes too long."""
    with _changed:
        now = time.perf_counter()
        if _stopped is not None and (now - _stopped > _patience or not _long_calls and now - _last_end > LULL):
            _let(True)


def _let(go_on: bool, processor: int | None = None) -> None:
    global _stopped, _held
    if _process is None or go_on == (_stopped is None) or not go_on and (_held >= ENOUGH or _waiting):
        return
    now = time.perf_counter()
    if _stopped is not None:
        _held += now - _stopped
    _stopped = None if go_on else now
    _process(go_on, processor)


def nobody_waits() -> bool:
    """Whether this is the compile thread, and its job is in the background."""
    return threading.get_ident() == _compiling and not _waited_for


def reset() -> None:
    """In a child after a fork: no call is inside."""
    global _calls, _long_calls, _slice_end, _changed, _compiling, _allowed, _working, _parked, _process, _stopped, _waiting, _waited_for
    _calls, _long_calls, _slice_end, _changed, _compiling = 0, 0, 0.0, threading.Condition(), None
    _working = _parked = _waited_for = False
    _allowed = _process = _stopped = None
    _waiting = 0
