"""LLVM in a process of its own: whatever becomes of it, requests are answered or fail, and nothing is left behind."""
from __future__ import annotations

import ctypes
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bcvm import turns
from bcvm.compiler import loader, store, worker
from bcvm.compiler import process as process_module
from bcvm.compiler.kernels.operands import move_ir
from bcvm.compiler.process import CompileProcess, process
from bcvm.compiler.target import host
from bcvm.compiler.worker import FULL, GLUE, PLAIN
from bcvm.errors import CompileError
from bcvm.vm.compile_thread import thread

ROOT = Path(__file__).resolve().parents[2]
# An instruction of another machine: LLVM ends the process that it is in.
FATAL = "declare void @llvm.aarch64.hint(i32 immarg)\ndefine void @f() {\ncall void @llvm.aarch64.hint(i32 0)\nret void\n}"


def returns(n: int) -> str:
    return f"define i64 @f() {{\nret i64 {n}\n}}"


def value(code: bytes) -> int:
    loaded = loader.load(code)
    try:
        return int(ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("f"))())
    finally:
        loaded.release()


def script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and is not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


@pytest.fixture
def own() -> Iterator[CompileProcess]:
    made = CompileProcess()
    if made.reason:
        pytest.skip(made.reason)
    yield made
    made.stop()


def code(at: CompileProcess, patient: bool, *request: object) -> bytes:
    return at.result(at.begin(patient, ("", ""), *request))


def emit(at: CompileProcess, n: int, patient: bool = False) -> int:
    to = host()
    return value(code(at, patient, returns(n), to.cpu, to.features, FULL, True))


def test_one_process_answers_all_requests(own: CompileProcess) -> None:
    assert [emit(own, n, patient=n > 2) for n in range(5)] == [0, 1, 2, 3, 4]
    assert own.started == 1


def test_text_larger_than_a_pipe(own: CompileProcess) -> None:
    to = host()
    text = "\n".join(f"define i64 @g{i}() {{\nret i64 {i}\n}}" for i in range(5000)) + "\n" + returns(7)
    assert value(code(own, False, text, to.cpu, to.features, GLUE, True)) == 7


def test_what_one_request_wants_of_llvm_is_not_left_to_the_next(own: CompileProcess) -> None:
    to = host()
    text = move_ir(4)  # a loop, in which registers matter
    made = [code(own, False, text, to.cpu, to.features, effort, True) for effort in (GLUE, PLAIN, FULL, GLUE, FULL, PLAIN, GLUE)]
    glue, plain, full = made[:3]
    assert made[3:] == [glue, full, plain, glue] and len({glue, plain, full}) == 3


def test_invalid_text_is_an_error_and_the_process_goes_on(own: CompileProcess) -> None:
    to = host()
    with pytest.raises(CompileError, match="invalid LLVM IR"):
        code(own, False, "define i64 @f() { ret i32 0 }", to.cpu, to.features, FULL, True)
    assert emit(own, 3) == 3 and own.started == 1


def test_a_process_that_was_killed_is_replaced(own: CompileProcess) -> None:
    emit(own, 1)
    assert own.pid
    os.kill(own.pid, signal.SIGKILL)
    assert emit(own, 2) == 2 and own.started == 2


def test_a_fatal_error_of_llvm_fails_one_request(own: CompileProcess) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="(?s)compile process .*LLVM ERROR"):
            code(own, False, FATAL, host().cpu, host().features, 1, True)
        assert emit(own, 5) == 5


def test_after_a_fatal_error_the_call_stays_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    import bcvm
    from bcvm.compiler.region import KernelSource
    from bcvm.compiler.table import KernelTable
    from bcvm.vm import warm
    jit = bcvm.jit  # loads what the compiler needs
    if warm.warm() or process.reason:
        pytest.skip(warm.warm() or process.reason)

    @jit(tier="full")
    def f(x):
        return np.arctan(x * 1.7182) - 3.25

    kernel = KernelTable.kernel
    monkeypatch.setattr(KernelTable, "kernel", lambda self, key, make, *more: kernel(self, key, lambda: KernelSource("f", FATAL, "fatal"), *more))
    x = np.arange(4.0)
    for _ in range(2):
        assert np.allclose(f(x), np.arctan(x * 1.7182) - 3.25)
    stats = f.stats()
    assert stats["native"] == 0 and stats["interpreted"] == 2 and len(stats["errors"]) == 1, stats
    assert "LLVM ERROR" in stats["errors"][0]


def test_others_come_before_what_nobody_waits_for(own: CompileProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "STARVED_SECONDS", 60.0)
    own._background = worker.LEFT_OVER  # whatever else runs here
    assert emit(own, 1) == 1 and own.pid is not None and os.sched_getscheduler(own.pid) == os.SCHED_BATCH  # a share as any other
    assert emit(own, 2, patient=True) == 2 and own.started == 1
    assert os.sched_getscheduler(own.pid) == os.SCHED_IDLE


def test_a_process_that_gets_no_processor_is_started_anew_with_a_share(own: CompileProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    own._background = worker.LEFT_OVER  # whatever else runs here
    assert emit(own, 1, patient=True) == 1
    monkeypatch.setattr(process_module, "STARVED_SECONDS", 0.0)
    monkeypatch.setattr(process_module, "STARVED_SHARE", 1e9)
    long = "\n".join(f"define i64 @g{n}(i64 %x) {{\n%y = mul i64 %x, {n}\nret i64 %y\n}}" for n in range(3000)) + returns(7)
    assert value(code(own, True, long, host().cpu, host().features, FULL, True)) == 7
    assert own.started >= 2 and own.pid is not None
    assert os.sched_getscheduler(own.pid) == os.SCHED_BATCH and os.getpriority(os.PRIO_PROCESS, own.pid) == max(usual, worker.NICE)


def test_work_that_is_stopped_goes_on_where_it_was(own: CompileProcess) -> None:
    assert emit(own, 1) == 1
    own.let_work(False)
    answer: list[int] = []
    asking = threading.Thread(target=lambda: answer.append(emit(own, 2)))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive() and not answer
    own.let_work(True)
    asking.join(20)
    assert answer == [2] and own.started == 1


def test_a_process_that_goes_on_begins_on_a_given_processor_and_may_use_all(own: CompileProcess) -> None:
    assert emit(own, 1) == 1
    pid = own.pid
    assert pid is not None
    allowed = os.sched_getaffinity(pid)
    for processor in sorted(allowed):
        own.let_work(False)
        own.let_work(True, processor)
        assert emit(own, 2) == 2
        assert os.sched_getaffinity(pid) == allowed
    own.let_work(False)
    own.let_work(True, 1 << 19)  # there is none such
    assert emit(own, 3) == 3 and os.sched_getaffinity(pid) == allowed


def test_a_request_larger_than_the_pipe_is_read_while_calls_are_interpreted_one_after_the_other(own: CompileProcess) -> None:
    assert emit(own, 1) == 1
    assert own._child is not None
    long = returns(7) + "\n;" + "-" * 8 * own._child.short
    made: list[bytes] = []
    turns.begin_call(0.01)  # one is inside when it is sent
    thread.submit(lambda: made.append(code(own, True, long, host().cpu, host().features, FULL, True)))
    end = time.monotonic() + 20
    while not made and time.monotonic() < end:
        turns.end_call(0.01)
        turns.begin_call(0.01)
        time.sleep(0.01)
    turns.end_call(0.01)
    own.let_work(True)
    assert made and value(made[0]) == 7


def test_a_process_that_is_stopped_ends_with_its_parent() -> None:
    done = script("""
import os
from bcvm.compiler.process import CompileProcess
own = CompileProcess()
own.prepare()
own.wait()
own.let_work(False)
print(own.pid, flush=True)
os._exit(0)
""")
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip() or gone(int(done.stdout))


def slow(n: int, length: int = 600) -> str:
    """A text that LLVM takes some time for; its function returns n."""
    return "\n".join(f"define i64 @g{i}(i64 %x) {{\n%y = mul i64 %x, {i}\nret i64 %y\n}}" for i in range(length)) + "\n" + returns(n)


def copies(pid: int | None) -> list[int]:
    """The processes that process `pid` has made."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def begin(at: CompileProcess, text: str, patient: bool = False) -> process_module.Answer:
    return at.begin(patient, ("", ""), text, host().cpu, host().features, GLUE, True)


def with_copies(at: CompileProcess) -> list[process_module.Answer]:
    """Requests whose numbers are 0 to 4, worked on by several processes."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    emit(at, 1)
    asked = [begin(at, slow(n)) for n in range(5)]
    end = time.monotonic() + 20
    while not copies(at.pid) and time.monotonic() < end:
        time.sleep(0.001)
    assert copies(at.pid)
    return asked


def test_requests_that_somebody_waits_for_are_worked_on_at_a_time_and_each_gets_its_answer(own: CompileProcess) -> None:
    asked = with_copies(own)
    assert [value(own.result(asked[n])) for n in (3, 0, 4, 2, 1)] == [3, 0, 4, 2, 1] and own.started == 1


def test_any_number_of_requests_waits_with_answers_that_no_pipe_holds(own: CompileProcess) -> None:
    emit(own, 1)
    asked = [begin(own, slow(n, 1500 if n % 7 == 0 else 20)) for n in range(70)]
    assert [value(own.result(a)) for a in reversed(asked)] == list(reversed(range(70))) and own.started == 1


def test_what_nobody_waits_for_goes_there_a_few_at_a_time(own: CompileProcess) -> None:
    emit(own, 1)
    asked = [begin(own, slow(n, 20), patient=True) for n in range(20)]
    assert sum(a in own._asked for a in asked) <= process_module.AHEAD
    assert [value(own.result(a)) for a in asked] == list(range(20))


@contextmanager
def busy() -> Iterator[None]:
    """Other processes keep all processors busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.5)
        yield
    finally:
        for p in started:
            p.kill()
            p.wait()


def test_where_others_keep_all_processors_busy_more_than_what_is_left_over_is_taken() -> None:
    own = CompileProcess()
    try:
        with busy():
            assert value(own.result(begin(own, returns(3), patient=True))) == 3
            assert own._background == worker.BESIDE and own.started == 1
    finally:
        own.stop()


def test_a_process_that_starves_is_replaced_by_one_that_does_not(own: CompileProcess) -> None:
    own._background = worker.LEFT_OVER
    emit(own, 1)
    with busy():
        assert value(own.result(begin(own, slow(3, 1000), patient=True))) == 3
    assert (own._background, own.started) in ((worker.BESIDE, 2), (worker.LEFT_OVER, 1))  # it may have got enough


def test_time_in_which_a_process_is_stopped_is_not_held_against_it(own: CompileProcess) -> None:
    own._background = worker.LEFT_OVER
    emit(own, 1)
    answer = begin(own, slow(3, 50), patient=True)
    own.let_work(False)
    threading.Timer(4 * process_module.STARVED_SECONDS, own.let_work, (True,)).start()
    assert value(own.result(answer)) == 3 and own.started == 1


def test_a_copy_goes_to_its_processor_and_may_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    server = object.__new__(worker.Server)
    for place in range(len(allowed) + 1):
        server._place = place
        server._stay_apart()
        assert os.sched_getaffinity(0) == allowed

    def refuse(pid: int, mask: object) -> None:
        raise PermissionError("not here")
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    server._place = 0
    server._stay_apart()


def test_what_nobody_waits_for_is_done_by_one_process(own: CompileProcess) -> None:
    emit(own, 1)
    asked = [begin(own, slow(n, 100), patient=True) for n in range(5)]
    while any(a in own._asked for a in asked):
        assert not copies(own.pid)
        own.result(own._asked[0])
    assert [value(a.code) for a in asked] == list(range(5))


def test_copies_end_when_nobody_waits_any_more(own: CompileProcess) -> None:
    for a in with_copies(own):
        own.result(a)
    made = copies(own.pid)
    assert [value(own.result(begin(own, slow(n, 100), patient=True))) for n in range(6)] == list(range(6))
    assert all(gone(pid) for pid in made[1:])  # one may have had no turn


@pytest.mark.parametrize("which", ["first", "copy"])
def test_if_one_of_several_processes_ends_so_do_the_others_and_all_requests_are_answered(own: CompileProcess, which: str) -> None:
    asked = with_copies(own)
    pids = [own.pid or 0, *copies(own.pid)]
    os.kill(pids[0] if which == "first" else pids[-1], signal.SIGKILL)
    assert [value(own.result(a)) for a in asked] == list(range(5)) and own.started <= 2  # the answers may have been there
    assert all(gone(pid) for pid in pids)
    assert emit(own, 7) == 7 and own.started == 2


def test_a_fatal_error_of_llvm_fails_that_one_of_several_requests(own: CompileProcess) -> None:
    emit(own, 1)
    asked = [begin(own, FATAL if n == 2 else slow(n, 200)) for n in range(5)]
    with pytest.raises(CompileError, match="(?s)compile process .*LLVM ERROR"):
        own.result(asked[2])
    assert [value(own.result(asked[n])) for n in (0, 1, 3, 4)] == [0, 1, 3, 4]


@pytest.mark.parametrize("message", [0, 1])
def test_an_interrupt_while_an_answer_is_read_fails_that_request_alone(own: CompileProcess, message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    emit(own, 1)
    asked = [begin(own, slow(n, 100)) for n in range(3)]
    exactly, reads = worker._exactly, []

    def interrupted(fd: int, count: int) -> bytes | None:
        data = exactly(fd, count)
        reads.append(fd)
        if len(reads) == message + 1:  # after the length, or after the whole
            raise KeyboardInterrupt
        return data

    monkeypatch.setattr(worker, "_exactly", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own.result(asked[0])
    with pytest.raises(CompileError, match="interrupted"):
        own.result(asked[0])
    later = begin(own, slow(3, 100))
    assert [value(own.result(a)) for a in (later, *asked[1:])] == [3, 1, 2]


def test_answers_stay_with_their_requests_when_the_process_ended_with_several_of_them(own: CompileProcess) -> None:
    emit(own, 1)
    asked = [begin(own, slow(n, 100)) for n in range(2)]
    assert own.pid
    os.killpg(own.pid, signal.SIGKILL)
    assert value(own.result(asked[0])) == 0
    asked.append(begin(own, slow(2, 100)))  # before the second, which nobody has asked for again, is
    assert [value(own.result(a)) for a in asked] == [0, 1, 2]


def test_copies_are_stopped_and_go_on_too(own: CompileProcess) -> None:
    asked = with_copies(own)
    own.let_work(False)
    pids = [own.pid, *copies(own.pid)]

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}

    end = time.monotonic() + 10
    while states() != {"T"} and time.monotonic() < end:
        time.sleep(0.001)
    assert states() == {"T"}
    own.let_work(True)
    assert [value(own.result(a)) for a in asked] == list(range(5)) and own.started == 1


def test_copies_leave_nothing_behind(own: CompileProcess) -> None:
    asked = with_copies(own)
    pids = [own.pid or 0, *copies(own.pid)]
    own.rest()
    assert all(value(a.code) == n for n, a in enumerate(asked)) and not any(Path(f"/proc/{pid}").exists() and alive(pid) for pid in pids)


COPIES = """
import os, signal, sys, time
from bcvm.compiler.process import CompileProcess
from bcvm.compiler.target import host
from bcvm.compiler.worker import GLUE
own = CompileProcess()
text = "\\n".join(f"define i64 @g{i}(i64 %x) {{\\nret i64 %x\\n}}" for i in range(600))
asked = [own.begin(False, ("", ""), text, host().cpu, host().features, GLUE, True) for _ in range(5)]
path = f"/proc/{own.pid}/task/{own.pid}/children"
end = time.monotonic() + 20
while not open(path).read() and time.monotonic() < end:
    time.sleep(0.001)
print(own.pid, open(path).read(), flush=True)
"""


@pytest.mark.parametrize("end", ["", "own.stop()", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "own.let_work(False); os.kill(os.getpid(), signal.SIGKILL)"])
def test_copies_end_with_the_process_that_needs_them(end: str) -> None:
    done = script(COPIES + end)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) > 1 or len(os.sched_getaffinity(0)) < 2, done.stderr
    assert all(gone(pid) for pid in pids)


def test_requests_of_many_threads(own: CompileProcess) -> None:
    got: dict[int, int] = {}

    def work(n: int) -> None:
        got[n] = emit(own, n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {n: n for n in range(8)} and own.started == 1


def test_rest_leaves_nothing_behind(own: CompileProcess) -> None:
    before = os.listdir("/proc/self/fd")
    emit(own, 1)
    pid = own.pid
    assert pid and alive(pid)
    own.rest()
    assert not Path(f"/proc/{pid}").exists(), "collected"
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert emit(own, 2) == 2 and own.started == 2


def test_after_stop_requests_fail(own: CompileProcess) -> None:
    emit(own, 1)
    own.stop()
    with pytest.raises(CompileError, match="ending"):
        emit(own, 2)
    assert own.pid is None


def test_its_descriptors_are_not_inherited(own: CompileProcess) -> None:
    emit(own, 1)
    child = own._child
    assert child is not None and not any(os.get_inheritable(fd) for fd in child._fds)
    links = {os.readlink(f"/proc/{own.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{own.pid}/fd")}
    assert len([link for link in links if link.startswith("pipe:")]) == 2, links


def test_a_fork_has_a_process_of_its_own(own: CompileProcess) -> None:
    emit(own, 1)
    mine = own.pid
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = own.pid is None and emit(own, 2) == 2 and own.pid != mine
            own.stop()
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert emit(own, 3) == 3 and own.pid == mine


SAY = "from bcvm.compiler import llvm\nfrom bcvm.compiler.process import process\nllvm.compile_ir('define i32 @f() { ret i32 0 }')\nprint(process.pid or 0, process.reason, flush=True)\n"


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    done = script(SAY + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    pid = int(done.stdout.split()[0])
    assert done.returncode == -signal.SIGKILL and pid and gone(pid)


def test_it_ends_with_the_interpreter() -> None:
    done = script("import bcvm.vm.compile_thread\n" + SAY)
    assert (done.returncode, done.stderr) == (0, "") and gone(int(done.stdout.split()[0]), 2)


KEEP = """
import os, sys, time
import bcvm.vm.compile_thread
from bcvm.compiler import disk, llvm
from bcvm.compiler.process import process
from bcvm.errors import CompileError
llvm.compile_ir('define i32 @f() { ret i32 0 }')
long = ["define i64 @k(i64 %x0) {"] + [f"%x{i + 1} = add i64 %x{i}, {i}" for i in range(4000)] + ["ret i64 %x4000", "}"]
asked = [llvm.Compilation("\\n".join(long), keep=(disk.place(n) if n else "", "k")) for n in (1, 2, 0)]
def quietly():
    try:
        asked[1].result()
    except CompileError:
        pass
print(process.pid, *(disk.place(n) for n in (1, 2)), flush=True)
"""


@pytest.mark.parametrize("end", ["", "asked[0].result()", "import signal; os.kill(os.getpid(), signal.SIGKILL)",
                                 "import threading; threading.Thread(target=quietly, daemon=True).start(); time.sleep(0.01)"])
def test_what_later_processes_may_use_is_compiled_although_this_one_ends(end: str, tmp_path: Path) -> None:
    done = script(KEEP + end, BCVM_KERNEL_CACHE=str(tmp_path / "kernels"))
    pid, *files = done.stdout.split()
    assert done.stderr == "" and gone(int(pid), 10)
    for file in files:
        name, code = marshal.loads(Path(file).read_bytes()[len(store.MAGIC) + 32:])
        assert name == "k" and loader.load(code).address("k")


def test_an_interrupt_from_the_terminal_is_not_for_it() -> None:
    text = SAY + "import os, signal, time\ntry:\n    os.killpg(0, signal.SIGINT)\n    time.sleep(5)\nexcept KeyboardInterrupt:\n    pass\n" + SAY
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=120, start_new_session=True)
    pids = [line.split()[0] for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "") and len(pids) == 2 and pids[0] == pids[1] != "0"


def test_the_variable_keeps_llvm_in_this_process() -> None:
    done = script(SAY, BCVM_COMPILE_PROCESS="off")
    assert (done.returncode, done.stdout.strip()) == (0, "0 BCVM_COMPILE_PROCESS is off"), done.stderr


@pytest.mark.parametrize("executable", ["", "/usr/bin/env", "{folder}/python", "{folder}/python-that-is-not-there"])
def test_where_there_can_be_no_process_llvm_runs_in_this_one(executable: str, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    name = executable.format(folder=tmp_path)
    done = script(f"import sys\nsys.executable = {name!r}\n" + SAY)
    assert done.returncode == 0 and done.stdout.startswith("0 ") and len(done.stdout) > 10, done.stderr


AWAY = """
import time, numpy as np, bcvm
from bcvm.compiler.process import process
from bcvm.vm import compile_thread
compile_thread.REST = 0.05
def f(x): return x + 1.0
def g(x): return x * 3.0
bcvm.jit(f).warmup((np.ones(3),))
end = time.monotonic() + 20
while process.pid and time.monotonic() < end:
    time.sleep(0.01)
print(process.pid, process.started)
bcvm.jit(g).warmup((np.ones(3),))
print(process.started)
"""


def test_it_is_sent_away_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(AWAY)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "BCVM_KERNEL_CACHE": "off"})
    assert done.stdout.split() == ["None", "1", "2"] or process.reason, done.stderr
