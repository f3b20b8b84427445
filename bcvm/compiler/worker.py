"""LLVM: IR text -> object code. Loaded by `llvm.py` in the user's process, and run alone, as a script, in the compile process: so it imports nothing of the
package, and llvmlite only when it is needed.

The compile process reads requests from its standard input and writes answers to its standard output, each a length (8 bytes) and a marshalled
value. It ends when its input ends, that is, with the process that started it.
"""
from __future__ import annotations

import marshal
import os
import sys
from _signal import ITIMER_PROF, SIG_IGN, SIGCONT, SIGINT, setitimer, signal
from contextlib import suppress
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

# How urgent a request is: it takes part as everyone does; gets a part of busy processors, and so ends, but others come first; takes only what is
# left over, and leaves a processor at once when someone else wakes up there.
AT_ONCE, BESIDE, LEFT_OVER = range(3)
NICE = 5
CPU_SECONDS = 20.0    # of one request, and so much more for each byte of its text; LLVM takes a thousandth of that
CPU_SECONDS_PER_BYTE = 2e-5

# Of LLVM, and process-wide: only for a process of our own. What they leave out takes a fifth of the time, and the code is as fast without it (bench/stalls.py, bench/matmul.py).
OPTIONS = ("-disable-lsr", "-enable-misched=0", "-enable-post-misched=0")


class Compiler:
    """LLVM with its target machines."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        import llvmlite.binding as llvm
        for option in options:
            llvm.set_option("bcvm", option)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.triple: str = llvm.get_process_triple()
        self._machines: dict[tuple[str, str, int], Any] = {}

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

    def emit(self, text: str, cpu: str, features: str, opt: int, verify: bool, assembly: bool = False) -> Any:
        """Object code (bytes), or assembly text. ValueError: invalid IR."""
        machine = self.machine(cpu, features, opt)
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
    for part in (len(message).to_bytes(8, "little"), message):  # apart: a message may have many megabytes
        data = memoryview(part)
        while data:
            data = data[os.write(fd, data):]


def _answer(compiler: Compiler, request: list[Any], path: str, name: str) -> bytes:
    setitimer(ITIMER_PROF, CPU_SECONDS + CPU_SECONDS_PER_BYTE * len(request[0]))  # then SIGPROF ends the process
    try:
        made = True, compiler.emit(*request)
    except ValueError as e:
        made = False, str(e)
    finally:
        setitimer(ITIMER_PROF, 0)
    if made[0] and path and "__file__" in globals():  # not from an archive
        _store().put(path, marshal.dumps((name, made[1])))
    return marshal.dumps(made)


@cache
def _store() -> Any:
    spec = spec_from_file_location("store", os.path.join(os.path.dirname(os.path.abspath(__file__)), "store.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _give_way(urgency: int) -> None:
    """A process that has lowered its priority cannot raise it again."""
    if urgency == LEFT_OVER:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif urgency == BESIDE:
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def _wake_with_parent() -> None:
    """Should the parent end while this process is stopped, let it go on, to see the end of its input."""
    import ctypes
    ctypes.CDLL(None).prctl(1, SIGCONT)  # PR_SET_PDEATHSIG


def serve(options: tuple[str, ...]) -> None:
    """Says what the processor is, then answers requests (urgency, path, name, what `emit` takes) in order. What is to be kept in the file `path`, with a
    name, is still compiled when the process that asked has ended, so that one that ends early leaves something for the next."""
    os.closerange(3, 1 << 20)  # what libraries of the parent left open
    signal(SIGINT, SIG_IGN)
    source, sink, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # what prints must not be taken for an answer
    compiler = Compiler(options)
    parent = os.getppid()
    _wake_with_parent()
    write(sink, marshal.dumps(compiler.host()))
    while (message := read(source)) is not None:
        urgency, path, name, *request = marshal.loads(message)
        _give_way(urgency)
        if os.getppid() == parent or path:
            answer = _answer(compiler, request, path, name)
            with suppress(BrokenPipeError):
                write(sink, answer)


if __name__ == "__main__":  # arguments: the folder that has llvmlite, how urgent it is, options of LLVM
    _give_way(int(sys.argv[2]))
    sys.path.append(sys.argv[1])
    try:
        serve(tuple(sys.argv[3:]))
    except OSError:
        pass  # the other end is gone
    os._exit(0)
