"""The one thread that compiles: it asks LLVM, which is in a process of its own. Started by the first request; quiet during a fork; started anew in a child."""
from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from bcvm import turns
from bcvm.compiler import loader as _loader  # noqa: F401  first: handlers registered last run first before a fork, and jobs take the loader's lock
from bcvm.compiler.process import process

HEAD_START = 0.0002  # seconds
LEISURE = 0.05        # seconds after which it is looked again whether there is no other work
REST = 10.0           # seconds without a job after which the compile process is sent away
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
        self._jobs: deque[tuple[Callable[[], None], bool]] = deque()  # and whether someone waits for it
        self._wake = threading.Condition()
        self._working = threading.Lock()  # held while a job runs
        self._busy = 0
        self._asked = self._ended = 0  # jobs, ever; they end in order
        self._waiting: list[list[int]] = []  # for each that waits, the number of the last job it waits for
        self._next: tuple[Callable[[], None], bool] | None = None  # taken from the queue and not done
        self._garbage: deque[Callable[[], bool]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, job: Callable[[], None], waited: bool = False) -> bool:
        """Have a job run; False if it never will: the interpreter is ending."""
        with self._wake:
            if self._stopping:
                return False
            self._jobs.append((job, waited))
            self._busy += 1
            self._asked += 1
            if self.is_current():  # what a job asks for belongs to it
                for last in self._waiting:
                    if last[0] > self._ended:
                        last[0] = self._asked
            self._turns.short()
            if self._thread is None:
                self._start()
            self._wake.notify_all()
            return True

    def when_idle(self, job: Callable[[], None]) -> None:
        """Run a job that has time, when there is no other."""
        def look() -> None:
            if self.busy:
                self.when_idle(job)
            else:
                self.submit(job)
        timer = threading.Timer(LEISURE, look)
        timer.daemon = True
        if not self._stopping:
            timer.start()

    def call(self, job: Callable[[], None], timeout: float | None = None) -> bool:
        """Run a job and wait for it; False if it has not ended after `timeout` seconds (it goes on), or never will."""
        if threading.current_thread() is self._thread:
            job()
            return True
        done = threading.Event()

        def run() -> None:
            try:
                job()
            finally:
                done.set()

        return self.submit(run, waited=True) and done.wait(timeout)

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits to run."""
        return self._busy > 0

    @property
    def stopping(self) -> bool:
        return self._stopping

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def idle(self, timeout: float | None = None) -> bool:
        """Wait until every job submitted so far has run, and what these have submitted."""
        with self._wake:
            if self._jobs or self._garbage:
                if self._thread is None and not self._stopping:
                    self._start()
                self._wake.notify_all()
            last = [self._asked]
            self._waiting.append(last)
            try:
                return self._wake.wait_for(lambda: self._ended >= last[0] and not self._garbage, timeout)
            finally:
                self._waiting.remove(last)

    def discard(self, freers: list[Callable[[], bool]]) -> None:
        """Free code that nothing leads to any more. Called by the garbage collector, anywhere: it waits for no lock."""
        self._garbage.extend(freers)
        if freers and self._wake.acquire(blocking=False):
            try:
                self._wake.notify_all()
            except RecursionError:
                pass  # too deep in the caller's stack; the next job frees it
            finally:
                self._wake.release()

    def _free(self) -> None:
        with self._working:
            for _ in range(len(self._garbage)):
                free = self._garbage.popleft()
                if not free():
                    self._garbage.append(free)

    def stop(self) -> None:
        """At exit of the interpreter: drop what waits and let the running job end, without its answer, so that no thread is
        killed in the middle of one."""
        with self._wake:
            self._stopping = True
            self._busy -= len(self._jobs)
            self._ended += len(self._jobs)
            self._jobs.clear()
            self._turns.normal()
            self._wake.notify_all()
        process.stop()
        if self._working.acquire(timeout=10):
            self._working.release()

    def _run(self) -> None:
        turns.compile_here()
        while True:
            with self._wake:
                rested = not self._wake.wait_for(lambda: self._jobs or self._garbage or self._stopping, REST if process.pid else None)
                if self._stopping:
                    return
                job = self._next = self._jobs.popleft() if self._jobs else None
            if rested:
                with self._working:  # as a job: no fork meanwhile
                    process.rest()
                continue
            if self._garbage:
                self._free()
            if job is None:
                with self._wake:
                    self._wake.notify_all()
                continue
            time.sleep(HEAD_START)  # lets the caller go on: a new thread would else keep the interpreter lock for a whole switch interval
            with self._working:
                with turns.job(job[1]):
                    job[0]()
                self._next = None
            del job
            with self._wake:
                self._busy -= 1
                self._ended += 1
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
        self._jobs, self._busy, self._asked = jobs, len(jobs), len(jobs)  # the child needs them as well; `ensure` or the next request starts its thread

    def ensure(self) -> None:
        """Start the thread if jobs wait that a fork left without one."""
        if self._thread is None and self._jobs:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="bcvm-compile", daemon=True)
        self._thread.start()


thread = CompileThread()
