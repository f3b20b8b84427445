"""LLVM: IR text -> object code. Loaded by `llvm.py` in the user's process, and run alone, as a script, in the compile process: so it imports nothing of the
package, and llvmlite only when it is needed.

The compile process reads requests from its standard input and writes answers to its standard output, each a length (8 bytes) and a marshalled
value. It ends when its input ends, that is, with the process that started it. While several requests that somebody waits for are there, it has copies of
itself, which share its input and output.
"""
from __future__ import annotations

import fcntl
import marshal
import os
import sys
from _signal import ITIMER_PROF, SIG_DFL, SIG_IGN, SIGCHLD, SIGCONT, SIGINT, SIGKILL, setitimer, signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from termios import FIONREAD
from typing import Any

# How urgent a request is: it takes part as everyone does; gets a part of busy processors, and so ends, but others come first; takes only what is
# left over, and leaves a processor at once when someone else wakes up there.
AT_ONCE, BESIDE, LEFT_OVER = range(3)
# How much LLVM does: registers within some lines each, for what runs through once; registers over the whole function, for loops that are written just as
# they are to run; all that it can do to machine code.
GLUE, PLAIN, FULL = range(3)
NICE = 5
CPU_SECONDS = 20.0    # of one request, and so much more for each byte of its text; LLVM takes a thousandth of that
CPU_SECONDS_PER_BYTE = 2e-5
PROCESSES = 3  # that answer requests, at most, and no more than there are processors: Python makes the text of some three kernels while LLVM reads one

# Of LLVM, and process-wide: only for a process of our own. What they leave out takes a fifth of the time, and the code is as fast without it (bench/stalls.py, bench/matmul.py).
OPTIONS = ("-disable-lsr", "-enable-misched=0", "-enable-post-misched=0")
_REGISTERS = "-optimize-regalloc="  # 0 or 1, whatever else is optimised


class Compiler:
    """LLVM with its target machines."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        import llvmlite.binding as llvm
        self.llvm = llvm
        for option in options:
            llvm.set_option("bcvm", option)
        self._own = bool(options)  # whether this LLVM is ours alone
        if self._own:
            for over_all in (False, True):  # an LLVM that takes an option once only ends here
                self._allocate(over_all)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.triple: str = llvm.get_process_triple()
        self._machines: dict[tuple[str, str, int], Any] = {}

    def _allocate(self, over_all: bool) -> None:
        """Whether registers are to be allocated over whole functions."""
        self._over_all = over_all
        self.llvm.set_option("bcvm", f"{_REGISTERS}{over_all:d}")

    def host(self) -> tuple[str, dict[str, bool]]:
        """Name and features of this processor."""
        return str(self.llvm.get_host_cpu_name()), dict(self.llvm.get_host_cpu_features())

    def machine(self, cpu: str, features: str, opt: int) -> Any:
        key = (cpu, features, opt)
        if key not in self._machines:
            if not self.triple.startswith("x86_64"):
                raise ValueError(f"native code is made for x86-64 only, this is {self.triple}")
            self._machines[key] = self.llvm.Target.from_triple(self.triple).create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")
        return self._machines[key]

    def emit(self, text: str, cpu: str, features: str, effort: int, verify: bool, assembly: bool = False) -> Any:
        """Object code (bytes), or assembly text. effort: GLUE, PLAIN or FULL; a process that is not ours has no PLAIN. ValueError: invalid IR."""
        if self._own and self._over_all != (effort != GLUE):
            self._allocate(effort != GLUE)
        machine = self.machine(cpu, features, 0 if effort == GLUE or self._own and effort == PLAIN else 1)
        try:
            module = self.llvm.parse_assembly(text)
        except RuntimeError as e:
            raise ValueError(f"invalid LLVM IR: {e}") from None
        with module:
            module.triple = self.triple
            module.data_layout = str(machine.target_data)
            if verify:
                try:
                    module.verify()
                except RuntimeError as e:
                    raise ValueError(f"invalid LLVM IR: {e}") from None
            return machine.emit_assembly(module) if assembly else machine.emit_object(module)


# -- the compile process

def read(fd: int) -> bytes | None:
    """The next message, None at the end of input."""
    head = _exactly(fd, 8)
    return None if head is None else _exactly(fd, int.from_bytes(head, "little"))


def _exactly(fd: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write(fd: int, message: bytes) -> None:
    parts = len(message).to_bytes(8, "little"), message
    sent = os.writev(fd, parts)  # at once: who waits wakes up once
    for part in parts:
        data = memoryview(part)[sent:]
        sent = max(sent - len(part), 0)
        while data:
            data = data[os.write(fd, data):]


def _answer(compiler: Compiler, request: list[Any], path: str, name: str) -> tuple[bool, Any]:
    """Whether it is code; the code, or what is wrong."""
    setitimer(ITIMER_PROF, CPU_SECONDS + CPU_SECONDS_PER_BYTE * len(request[0]))  # then SIGPROF ends the process
    try:
        good, made = True, compiler.emit(*request)
    except ValueError as e:
        good, made = False, str(e)
    finally:
        setitimer(ITIMER_PROF, 0)
    if good and path and "__file__" in globals():  # not from an archive
        _store().put(path, marshal.dumps((name, made)))
    return good, made


@cache
def _store() -> Any:
    spec = spec_from_file_location("store", os.path.join(os.path.dirname(os.path.abspath(__file__)), "store.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _give_way(urgency: int) -> None:
    """A process that has lowered its priority cannot raise it again."""
    with suppress(OSError):  # where that is not permitted it has a share as any other
        if urgency == LEFT_OVER:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        elif urgency == BESIDE:
            os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def _push_nobody() -> None:
    """A request wakes this process up; whoever made it is to go on."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _when_parent_ends(number: int) -> None:
    """The signal that this process then gets."""
    import ctypes
    ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


class Server:
    """This process, or a copy of it: answers requests (number, urgency, path, name, what `emit` takes) with (number, whether it is code, code or what is
    wrong). What is to be kept in the file `path`, with a name, is still compiled when the process that asked has ended, so that one that ends early
    leaves something for the next. A copy that fails ends all of them, and whoever asked starts anew."""

    def __init__(self, compiler: Compiler, source: int, sink: int, locks: int) -> None:
        """locks: a file of which the first two bytes are locked by who reads and who writes."""
        self._compiler, self._source, self._sink, self._locks = compiler, source, sink, locks
        self._parent = os.getppid()
        self._copies: set[int] = set()
        self._is_copy = False
        self._place = 0  # among the processors that there are
        self._most = min(PROCESSES, len(os.sched_getaffinity(0))) - 1
        _when_parent_ends(SIGCONT)  # should it be stopped then, it has to go on, to see the end of its input
        signal(SIGCONT, self._continue_copies)
        signal(SIGCHLD, self._copy_ended)

    def serve(self) -> None:
        """Until the end of the input; a copy only while somebody waits for what it does."""
        while (request := self._next()) is not None:
            number, urgency, path, name, *rest = request
            _give_way(urgency)
            if self._copies or self._is_copy:
                self._stay_apart()
            if os.getppid() == self._parent or path:
                answer = marshal.dumps((number, *_answer(self._compiler, rest, path, name)))
                with suppress(BrokenPipeError), self._alone(1):
                    write(self._sink, answer)
            if self._is_copy and urgency != AT_ONCE:
                break
        signal(SIGCHLD, SIG_DFL)
        self._continue_copies()
        for pid in self._copies:
            _end_like(os.waitpid(pid, 0)[1])

    def _next(self) -> tuple[Any, ...] | None:
        """The next request. Another one that waits behind it is for a copy."""
        while True:
            with self._alone(0):
                message = read(self._source)
                more = any(fcntl.ioctl(self._source, FIONREAD, bytes(4)))
            if message is None:
                return None
            request: tuple[Any, ...] = marshal.loads(message)
            if not more or request[1] != AT_ONCE or self._is_copy or len(self._copies) >= self._most or not self._copy():
                return request

    def _copy(self) -> bool:
        """Make a copy: the program, LLVM and its tables are there at once, in the same memory. Whether this is the copy."""
        first, place = os.getpid(), len(self._copies) + 1
        try:
            pid = os.fork()
        except OSError:
            return False
        if pid:
            self._copies.add(pid)
            return False
        self._is_copy = True
        signal(SIGCONT, SIG_DFL)
        signal(SIGCHLD, SIG_DFL)
        _when_parent_ends(SIGKILL)
        if os.getppid() != first:  # it has ended already
            os._exit(0)
        self._parent, self._place, self._copies = first, place, set()
        return True

    def _stay_apart(self) -> None:
        """Go where no other copy goes. It may be moved from there, but the scheduler alone leaves two of them for ticks of 4 ms on one processor, with the
        other one idle."""
        allowed = os.sched_getaffinity(0)
        if self._place < len(allowed):
            with suppress(OSError):  # not permitted, or changed by somebody else just now
                os.sched_setaffinity(0, {sorted(allowed)[self._place]})
                os.sched_setaffinity(0, allowed)

    def _continue_copies(self, *_: object) -> None:
        for pid in self._copies:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGCONT)

    def _copy_ended(self, *_: object) -> None:
        for pid in tuple(self._copies):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._copies.discard(pid)
                _end_like(status)

    @contextmanager
    def _alone(self, byte: int) -> Iterator[None]:
        fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, byte)


def _end_like(status: int) -> None:
    """End as a copy did, if it failed."""
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    elif status:
        os._exit(os.WEXITSTATUS(status))


def serve(options: tuple[str, ...]) -> None:
    """Says what the processor is, then answers requests."""
    os.closerange(3, 1 << 20)  # what libraries of the parent left open
    signal(SIGINT, SIG_IGN)
    source, sink, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # what prints must not be taken for an answer
    compiler = Compiler(options)
    server = Server(compiler, source, sink, 2)
    write(sink, marshal.dumps(compiler.host()))
    server.serve()


if __name__ == "__main__":  # arguments: the folder that has llvmlite, how urgent it is, options of LLVM
    _push_nobody()
    _give_way(int(sys.argv[2]))
    sys.path.append(sys.argv[1])
    try:
        serve(tuple(sys.argv[3:]))
    except OSError:
        pass  # the other end is gone
    os._exit(0)
