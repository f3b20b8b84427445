"""The one thread that owns all LLVM work. Started by the first request; quiet during a fork; started anew in a child."""
from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from bcvm import turns
from bcvm.compiler import loader as _loader  # noqa: F401  first: handlers registered last run first before a fork, and jobs take the loader's lock

HEAD_START = 0.0002  # seconds
NICE = 10
SLICE_MIN, SLICE_MAX = 0.0001, 0.002  # seconds that a call which must be interpreted gives the compile thread before it begins
TURN = 0.00005        # seconds that a thread keeps the interpreter lock, while something is to be compiled, if another waits for it


class Turns:
    """While there is work for the compile thread, threads change turns often: with Python's usual 5 ms a compilation, which gives up the
    lock for every step of LLVM, would take several times as long, and hold up a caller each time that one gives it up."""

    def __init__(self) -> None:
        self.usual: float | None = None

    def short(self) -> None:
        if self.usual is None and sys.getswitchinterval() > TURN:
            self.usual = sys.getswitchinterval()
            sys.setswitchinterval(TURN)

    def normal(self) -> None:
        if self.usual is not None:
            sys.setswitchinterval(self.usual)
            self.usual = None


class CompileThread:
    """Runs jobs in order, one at a time, on a daemon thread. Jobs handle their own errors."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._reset()
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        atexit.register(self.stop)

    def _reset(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._working = threading.Lock()  # held while a job runs
        self._busy = 0
        self._next: Callable[[], None] | None = None  # taken from the queue and not done
        self._garbage: deque[Callable[[], bool]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._wake:
            if self._stopping:
                return
            self._jobs.append(job)
            self._busy += 1
            self._turns.short()
            if self._thread is None:
                self._start()
            self._wake.notify_all()

    def call(self, job: Callable[[], None], timeout: float | None = None) -> bool:
        """Run a job and wait for it; False if it has not ended after `timeout` seconds (it goes on)."""
        if threading.current_thread() is self._thread:
            job()
            return True
        done = threading.Event()

        def run() -> None:
            try:
                job()
            finally:
                done.set()

        self.submit(run)
        return done.wait(timeout)

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def idle(self, timeout: float | None = None) -> bool:
        """Wait until every job submitted so far has run."""
        with self._wake:
            if self._jobs or self._garbage:
                if self._thread is None and not self._stopping:
                    self._start()
                self._wake.notify_all()
            return self._wake.wait_for(lambda: self._busy == 0 and not self._garbage, timeout)

    def discard(self, freers: list[Callable[[], bool]]) -> None:
        """Free code that nothing leads to any more. Called by the garbage collector, anywhere: it waits for no lock."""
        self._garbage.extend(freers)
        if freers and self._wake.acquire(blocking=False):
            self._wake.notify_all()
            self._wake.release()

    def _free(self) -> None:
        with self._working:
            for _ in range(len(self._garbage)):
                free = self._garbage.popleft()
                if not free():
                    self._garbage.append(free)

    def stop(self) -> None:
        """At exit of the interpreter: drop what waits and let the running job end, so that no thread is killed inside LLVM."""
        with self._wake:
            self._stopping = True
            self._busy -= len(self._jobs)
            self._jobs.clear()
            self._turns.normal()
            self._wake.notify_all()
        if self._working.acquire(timeout=10):
            self._working.release()

    def _run(self) -> None:
        turns.compile_here()
        with suppress(OSError):  # the caller's own threads, as those of a BLAS library, come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._garbage or self._stopping)
                if self._stopping:
                    return
                job = self._next = self._jobs.popleft() if self._jobs else None
            if self._garbage:
                self._free()
            if job is None:
                with self._wake:
                    self._wake.notify_all()
                continue
            time.sleep(HEAD_START)  # lets the caller go on: a new thread would else keep the interpreter lock for a whole switch interval
            with self._working:
                job()
                self._next = None
            del job
            with self._wake:
                self._busy -= 1
                if not self._busy:
                    self._turns.normal()
                self._wake.notify_all()

    def _before_fork(self) -> None:
        self._working.acquire()  # no job is inside LLVM at the moment of the fork
        self._wake.acquire()

    def _after_fork(self) -> None:
        self._wake.release()
        self._working.release()

    def _in_child(self) -> None:
        turns.reset()
        jobs = self._jobs
        if self._next is not None:
            jobs.appendleft(self._next)
        self._reset()
        if not jobs:
            self._turns.normal()
        self._jobs, self._busy = jobs, len(jobs)  # the child needs them as well; `ensure` or the next request starts its thread

    def give_way(self, usual: float) -> None:
        """Called by a caller that is about to interpret what is being compiled, which takes `usual` seconds: a slice for the compile thread, half of
        that within limits. The call then runs undisturbed."""
        time.sleep(min(max(usual / 2, SLICE_MIN), SLICE_MAX))

    def ensure(self) -> None:
        """Start the thread if jobs wait that a fork left without one."""
        if self._thread is None and self._jobs:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="bcvm-compile", daemon=True)
        self._thread.start()


thread = CompileThread()
