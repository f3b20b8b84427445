"""The compile process: LLVM in a process of our own, started on demand, fed over pipes, replaced when it dies and sent away when it has nothing to do.

So LLVM takes no memory here, no turn of the interpreter lock and no caller's processor time, its process-wide options disturb nobody, and where it
fails altogether a request fails, not the user's process. `Unavailable` says that this process has to do it itself.
"""
from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib.util
import itertools
import marshal
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bcvm import turns
from bcvm.compiler import worker
from bcvm.errors import CompileError

VARIABLE = "BCVM_COMPILE_PROCESS"  # 'off': LLVM is loaded into this process
# Real time for one request, or for the start, in seconds and for each byte of text; `worker` limits the processor time.
SECONDS, PER_BYTE = 60.0, 1e-3
# A process that takes only what is left over of the processors starves if it has had less than that share of the time in which it was not stopped, after
# so much of it.
STARVED_SECONDS, STARVED_SHARE = 0.2, 0.1
# Requests that are made before one is answered, at most: while somebody waits, so many that the processors always have work, and otherwise few, since a
# request for somebody who waits stands behind them.
WAITING, AHEAD = 32, 4
ROOM = 4096      # bytes that a request takes in a pipe beyond its text, at most
PIPE = 1 << 20   # bytes that a pipe holds while nobody reads it, if the system gives so much
_SETPGROUP = 2   # POSIX_SPAWN_SETPGROUP


class Unavailable(Exception):
    """There is no compile process here, and why."""


class Died(Exception):
    """The process ended before it answered, or had to be; the last words. late: it took too long. starved: it got no processor."""

    def __init__(self, words: str, late: bool = False, starved: bool = False) -> None:
        super().__init__(words)
        self.late, self.starved = late, starved


class _Child:
    """One process, with its copies, from start to end."""

    def __init__(self, urgency: int, options: tuple[str, ...]) -> None:
        self._urgency = urgency  # the lowest so far
        self._left = False
        self._stopped_at, self._stopped = 0.0, 0.0  # since when, 0 if it is not; seconds before that
        llvmlite = importlib.util.find_spec("llvmlite")
        if llvmlite is None or not llvmlite.submodule_search_locations:
            raise ImportError("llvmlite is not installed")
        where = os.path.dirname(next(iter(llvmlite.submodule_search_locations)))
        script = [worker.__file__] if os.path.isfile(worker.__file__) else ["-c", _source()]
        theirs: list[int] = []
        self._fds: list[int] = []  # requests go into the first, answers come from the second; last words
        try:
            for _ in range(2):
                pair = os.pipe()
                self._fds.append(pair[1 - len(self._fds)])
                theirs.append(pair[len(theirs)])
            self.short = _widened(self._fds[0]) // 2
            _widened(self._fds[1])
            self._fds.append(os.memfd_create("bcvm-llvm", os.MFD_CLOEXEC))
            self.pid = spawn([sys.executable, "-I", "-S", *script, where, str(urgency), *options], (*theirs, self._fds[2]))
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.host: tuple[str, dict[str, bool]] | None = None

    def ready(self) -> tuple[str, dict[str, bool]]:
        """Waits for the start. Name and features of the processor."""
        if self.host is None:
            self.host = self._read(SECONDS)
        return self.host

    def send(self, number: int, urgency: int, keep: tuple[str, str], request: tuple[Any, ...]) -> None:
        self._urgency = max(self._urgency, urgency)
        try:
            worker.write(self._fds[0], marshal.dumps((number, urgency, *keep, *request)))
        except OSError:
            raise self._died() from None

    def receive(self, request: tuple[Any, ...]) -> tuple[int, bool, Any]:
        """The next answer: the number of its request, whether it is code. request: the first that waits for one."""
        answer: tuple[int, bool, Any] = self._read(SECONDS + PER_BYTE * len(request[0]))
        return answer

    def _read(self, seconds: float) -> Any:
        poll = select.poll()
        poll.register(self._fds[1], select.POLLIN)
        start, used, stopped = time.perf_counter(), self._used(), self._stopped_for()
        while not poll.poll(turns.LULL * 1e3):
            turns.be_patient()
            if self._left:
                raise Died("was left to itself")
            took = time.perf_counter() - start
            free = took - (self._stopped_for() - stopped)
            starved = self._urgency == worker.LEFT_OVER and free > STARVED_SECONDS and self._used() - used < STARVED_SHARE * free
            if took > seconds or starved:
                self.kill()
                self.end()
                raise Died(f"gave no answer in {took:.1f} s", late=True, starved=starved)
        message = worker.read(self._fds[1])
        if message is None:
            raise self._died()
        return marshal.loads(message)

    def _died(self) -> Died:
        """Collects it: how it ended, and what it said last."""
        size = os.lseek(self._fds[2], 0, os.SEEK_END)
        words = os.pread(self._fds[2], 500, max(size - 500, 0)).decode("utf-8", "replace").strip()
        code = self.end()
        how = f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"
        return Died(how + (f": {words}" if words else ""), late=code == -signal.SIGPROF)

    def _used(self) -> float:
        """Seconds of processor time."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)  # its CPU clock, see clock_getcpuclockid(3)
        except OSError:
            return 0.0

    def _stopped_for(self) -> float:
        """Seconds that it has been stopped, all in all."""
        since = self._stopped_at
        return self._stopped + (time.perf_counter() - since if since else 0.0)

    def let(self, go_on: bool, processor: int | None = None) -> None:
        """Stop its work, or let it go on, on that processor at first."""
        if go_on == bool(self._stopped_at):
            self._stopped, self._stopped_at = self._stopped_for(), 0.0 if go_on else time.perf_counter()
        with suppress(ProcessLookupError), _waking_on(self.pid, processor):
            os.killpg(self.pid, signal.SIGCONT if go_on else signal.SIGSTOP)

    def kill(self) -> None:
        """End it now; who waits for its answer sees it end."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let it do what it was asked for, without this process; who waits for its answer sees it end."""
        self._left = True
        self.let(True)

    def end(self) -> int:
        """Lets it end, and collects it; its exit code, or minus the signal."""
        self._close()
        try:
            for _ in range(200):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                time.sleep(0.005)
            self.kill()
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # someone else in this process collects all children
            return 0

    def forget(self) -> None:
        """In a child of a fork it belongs to the parent; one that was left belongs to nobody."""
        self._close()

    def _close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def spawn(arguments: list[str], fds: tuple[int, ...]) -> int:
    """Start a program with these as its standard input, output and error, in a process group of its own, so that Ctrl-C in the terminal is not
    for it. subprocess, and os.posix_spawn, would hold up every thread until the program is loaded: some milliseconds."""
    libc = ctypes.CDLL(None)
    actions, attributes, pid = ctypes.create_string_buffer(512), ctypes.create_string_buffer(1024), ctypes.c_int()  # larger than any libc's

    def call(name: str, *values: Any) -> None:
        error = getattr(libc, name)(*values)
        if error:
            raise OSError(error, f"{name}: {os.strerror(error)}")

    call("posix_spawn_file_actions_init", actions)
    call("posix_spawnattr_init", attributes)
    try:
        for target, fd in enumerate(fds):
            call("posix_spawn_file_actions_adddup2", actions, fd, target)
        call("posix_spawnattr_setflags", attributes, ctypes.c_short(_SETPGROUP))
        call("posix_spawnattr_setpgroup", attributes, 0)
        argv = (ctypes.c_char_p * (len(arguments) + 1))(*map(os.fsencode, arguments), None)
        environment = [os.fsencode(k) + b"=" + os.fsencode(v) for k, v in os.environ.items()]
        envp = (ctypes.c_char_p * (len(environment) + 1))(*environment, None)
        call("posix_spawn", ctypes.byref(pid), os.fsencode(arguments[0]), actions, attributes, argv, envp)
    finally:
        libc.posix_spawn_file_actions_destroy(actions)
        libc.posix_spawnattr_destroy(attributes)
    return pid.value


def _widened(fd: int) -> int:
    """Gives a pipe room. How many bytes it holds."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE)
    return int(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ))


class Answer:
    """What a request will bring: its code, or an error."""

    def __init__(self, number: int, patient: bool, keep: tuple[str, str], request: tuple[Any, ...]) -> None:
        self.number, self.patient, self.keep, self.request = number, patient, keep, request
        self.child: _Child | None = None  # that was asked
        self.code = b""
        self.error: CompileError | Unavailable | None = None


class CompileProcess:
    """The process that there is now, if any. Requests from several threads are served one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._asked: deque[Answer] = deque()  # whose answers have not been taken yet
        self._numbers = itertools.count()
        self._ending = False
        self._host: tuple[str, dict[str, bool]] | None = None
        self.reason = _unsuitable()  # why there is none
        self.started = 0
        self._background: int | None = None  # how urgent that is which nobody waits for; not known before there was a process
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.pid if child is not None else None

    def prepare(self) -> None:
        """Start it, if there is none, and go on: something will be asked soon."""
        with self._lock, suppress(Unavailable, CompileError):
            self._start(worker.AT_ONCE, worker.OPTIONS)

    def wait(self) -> None:
        """Until it can be asked."""
        with self._lock, suppress(Unavailable):
            self._ready(worker.AT_ONCE)

    def host(self) -> tuple[str, dict[str, bool]]:
        """Name and features of the processor."""
        with self._lock:
            if self._host is None:
                self._host = self._ready(worker.AT_ONCE).ready()
            return self._host

    def begin(self, patient: bool, keep: tuple[str, str], *request: Any) -> Answer:
        """Ask for object code, and go on; keep and request are what `worker.serve` takes. patient: nobody waits, so everything else comes first. A
        request waits in the pipe while those before are worked on, if it fits there; otherwise this waits first."""
        with self._lock:
            while self._asked and not self._fits(request[0], AHEAD if patient else WAITING):
                self._settle()
            answer = Answer(next(self._numbers), patient, keep, request)
            with suppress(Died):  # it is asked again when the answer is wanted
                self._send(answer)
            self._asked.append(answer)
            return answer

    def result(self, answer: Answer) -> bytes:
        """Wait for the code. CompileError: invalid IR, or LLVM failed."""
        with self._lock:
            while answer in self._asked:
                self._settle()
        if answer.error is not None:
            raise answer.error
        return answer.code

    def _fits(self, text: str, most: int) -> bool:
        """Whether one more request can wait in the pipe: writing it must not wait for a process that waits until its answer is read."""
        child, asked = self._child, self._asked
        return child is not None and len(asked) < most and len(text) + ROOM + sum(len(a.request[0]) + ROOM for a in asked) < child.short

    def _settle(self) -> None:
        """Take the next answer: perhaps not that of the first request, since several are worked on. After a death they are asked for one by one."""
        answered = first = self._asked[0]
        try:
            number, good, made = self._receive(first)
            answered = next(a for a in self._asked if a.number == number)
            if good:
                answered.code = made
            else:
                answered.error = CompileError(made)
        except (CompileError, Unavailable) as e:
            first.error = e
        except BaseException:  # an interrupt, perhaps in the middle of a message: what follows could not be told apart
            first.error = CompileError("the request was interrupted")
            child, self._child = self._child, None
            if child is not None:
                child.kill()
                child.end()
            raise
        finally:
            self._asked.remove(answered)
            turns.process_works(self.let_work if any(a.patient for a in self._asked) else None)

    def _send(self, answer: Answer) -> None:
        child = self._ready(worker.BESIDE if answer.patient else worker.AT_ONCE)
        urgency = self._background if answer.patient and self._background is not None else worker.AT_ONCE
        at_once = self._fits(answer.request[0], AHEAD)  # else writing it waits until the process reads
        if answer.patient and at_once:
            turns.process_works(self.let_work)  # before it has work: it may have to lie still
        try:
            child.send(answer.number, urgency, answer.keep, answer.request)
        except Died:
            self._child = None
            raise
        if answer.patient and not at_once:
            turns.process_works(self.let_work)
        answer.child = child

    def _receive(self, answer: Answer) -> tuple[int, bool, Any]:
        words = ""
        for _ in range(2):  # perhaps someone ended the first
            try:
                if answer.child is None or answer.child is not self._child:
                    self._send(answer)
                assert answer.child is not None
                with turns.elsewhere():
                    return answer.child.receive(answer.request)
            except Died as e:
                self._child = None
                words = f"the compile process {e}"
                if self._ending:
                    raise CompileError("the interpreter is ending") from None
                if e.starved:
                    self._background = worker.BESIDE
                elif e.late:
                    break
        raise CompileError(words)

    def _start(self, urgency: int, options: tuple[str, ...]) -> _Child:
        """The process; perhaps it is still starting."""
        if self._ending:
            raise CompileError("the interpreter is ending")
        if not self.reason and self._child is None:
            if self._background is None:
                self._background = worker.BESIDE if _others_run() else worker.LEFT_OVER
            try:
                self._child = _Child(urgency, options)
                self.started += 1
            except (OSError, RuntimeError) as e:  # processes cannot be started here, or not any more
                self.reason = f"no compile process: {e}"
        if self._child is None:
            raise Unavailable(self.reason)
        return self._child

    def _ready(self, urgency: int) -> _Child:
        """The process, ready for a request."""
        why = ""
        for options in (worker.OPTIONS, ()):  # an option that this LLVM does not know ends it
            child = self._start(urgency, options)
            try:
                child.ready()
                return child
            except Died as e:
                self._child, why = None, f"the compile process {e}"
        if self._ending:
            raise CompileError("the interpreter is ending")
        self.reason = why
        raise Unavailable(why)

    def let_work(self, go_on: bool, processor: int | None = None) -> None:
        """Stop what is being done, or let it go on, on that processor at first; from any thread."""
        child = self._child
        if child is not None:
            child.let(go_on, processor)

    def rest(self) -> None:
        """Nothing is to be done for some time: give the memory back."""
        with self._lock:
            while self._asked:
                self._settle()
            child, self._child = self._child, None
            if child is not None:
                child.end()

    def stop(self) -> None:
        """At exit of the interpreter: whoever waits for an answer gets a CompileError. The process still compiles what is to be kept, if it was asked for
        such a thing, and then ends."""
        self._ending = True
        child = self._child
        leaves = any(a.keep[0] for a in tuple(self._asked))
        if child is not None:
            (child.leave if leaves else child.kill)()
        if self._lock.acquire(timeout=2):
            with suppress(OSError):
                if self._child is not None:
                    (self._child.forget if leaves else self._child.end)()
            self._child = None
            self._lock.release()

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self) -> None:
        self._lock.release()

    def _in_child(self) -> None:
        if self._child is not None:
            self._child.forget()
        self._child = None
        self._lock = threading.Lock()


@contextmanager
def _waking_on(pid: int, processor: int | None) -> Iterator[None]:
    """What wakes up meanwhile begins to run on that processor."""
    usual = None
    if processor is not None:
        with suppress(OSError):
            usual = os.sched_getaffinity(pid)
            os.sched_setaffinity(pid, {processor})
    try:
        yield
    finally:
        if usual is not None:
            with suppress(OSError):
                os.sched_setaffinity(pid, usual)


def _others_run() -> bool:
    """Whether other processes keep all processors busy just now: nothing is left over of them then."""
    try:
        return sorted(_ready_elsewhere() for _ in range(3))[1] >= (os.cpu_count() or 1)  # a thread may start or end to run within one look
    except (OSError, ValueError, IndexError):
        return False


def _ready_elsewhere() -> int:
    """The threads of other processes that run or wait for a processor."""
    def ready(stat: str) -> bool:
        with suppress(OSError), open(stat, encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] == "R"
        return False

    with open("/proc/loadavg", encoding="ascii") as f:
        everywhere = int(f.read().split()[3].partition("/")[0])
    return everywhere - sum(ready(f"/proc/self/task/{t}/stat") for t in os.listdir("/proc/self/task"))


def _source() -> str:
    """The text of `worker` where it is no file: in an archive."""
    loader: Any = worker.__loader__
    return str(loader.get_data(worker.__file__).decode())


def _unsuitable() -> str:
    """Why this process cannot have a compile process."""
    if os.environ.get(VARIABLE, "").lower() in ("off", "0", "no", "false"):
        return f"{VARIABLE} is off"
    if getattr(sys, "frozen", False) or not os.path.basename(sys.executable or "").lower().startswith("python"):
        return f"{sys.executable or 'this program'} is no Python interpreter that could be started once more"
    return ""


process = CompileProcess()
atexit.register(process.stop)
