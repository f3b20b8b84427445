"""A site: a place where native code may be entered. The start of a jitted function is one; so is an instruction after a piece
that only the interpreter runs, where the rest of an activation may go on natively.

A site has at most LIMIT specialisations. Their entry stubs form a chain, newest first; the last successor is the slow callable. An entry
is published by one store of its address, and what it refers to never changes afterwards.
"""
from __future__ import annotations

import contextvars
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.program import BoundProgram
from bcvm.errors import Unsupported
from bcvm.specialise import specialise_call, specialise_continuation
from bcvm.specialise.calls import CALLS_ITSELF
from bcvm.specialise.ssa import Exit, Graph, Return
from bcvm.vm import entry, listener, warm
from bcvm.vm.code_cache import cache
from bcvm.vm.compile_thread import thread
from bcvm.vm.frame import UNSET

if TYPE_CHECKING:
    from bcvm.compiler.native import NativeCode
    from bcvm.vm.function import Function

LIMIT = 8       # specialisations of a site
FAILURES = 32   # keys without native code; calls of further keys stay interpreted
ATTEMPTS = 3    # of one key, where guards on captured values keep failing

LEAVE_AT = [0]  # test mode (option `exits`): the number of the safe point where native code leaves


class Specialisation:
    """Native code for one type key, with what tools want to know about it."""

    def __init__(self, key: Any, graph: Graph, code: "NativeCode", ms: dict[str, float], admits: Any) -> None:
        self.key, self.graph, self.code, self.ms, self.admits = key, graph, code, ms, admits
        self.freer = code.freer()
        self.exits: Counter[str] = Counter()


class Site:
    """Specialisations of one place. `target`: the callable whose entry they are. pc None: the start of a call. iterators: which values of
    the stack are iterators over ranges, passed as three numbers. symbols: names of sizes that are passed behind the stack, with what says so."""

    def __init__(self, owner: "Function", bound: BoundProgram, pc: int | None, target: Any, iterators: tuple[int, ...] = (),
                 symbols: tuple[tuple[str, str], ...] = ()) -> None:
        self.owner, self.bound, self.pc, self.target, self.iterators, self.symbols = owner, bound, pc, target, iterators, symbols
        self.specialisations: list[Specialisation] = []
        self.asked: Counter[Any] = Counter()  # compilations asked for, by key
        self.pending: dict[Any, threading.Event] = {}  # set when the compilation has ended
        self.failed: dict[Any, str] = {}
        self._lock = threading.Lock()
        self.published: Counter[Any] = Counter()  # specialisations ever, by key
        self.past_calls = 0                       # native calls in code that was evicted
        self._freers: list[Callable[[], bool]] = []
        weakref.finalize(target, thread.discard, self._freers).atexit = False  # whoever is inside holds the callable

    def renew(self, bound: BoundProgram) -> None:
        """The site is another program's from here on. Native code of the old one guards against the change by itself."""
        self.bound = bound
        self.failed.clear()
        self.asked.clear()

    def wants(self, key: Any) -> bool:
        """Whether a call of this key, which no native entry took, should be compiled for."""
        if key in self.pending or key in self.failed:
            return False
        return len(self.specialisations) + len(self.pending) < LIMIT and len(self.failed) < FAILURES and self.asked[key] < ATTEMPTS

    def reason(self, key: Any) -> str:
        """Why a call of this key is not native, for counters."""
        if key in self.pending:
            return "compiling"
        if key in self.failed:
            return self.failed[key]
        if len(self.specialisations) >= LIMIT or len(self.failed) >= FAILURES:
            return "too many specialisations"
        return "guards" if self.asked[key] else "first call"

    def ask(self, key: Any, args: Sequence[Any], names: tuple[str, ...]) -> Callable[[], None] | None:
        """Note that a compilation for these arguments was asked for; returns the job. None: it is not wanted."""
        with self._lock:
            if not self.wants(key):
                return None
            self.asked[key] += 1
            self.pending[key] = threading.Event()
        context = contextvars.copy_context()  # the settings in force where the call was made
        alive = weakref.ref(self)

        def job() -> None:
            site = alive()
            if site is not None:  # else its function is gone, and nobody wants the code
                context.run(site._compile, key, args, names)
        return job

    def _compile(self, key: Any, args: Sequence[Any], names: tuple[str, ...]) -> None:
        """On the compile thread. Whatever fails here is counted and the calls stay interpreted."""
        start = time.perf_counter()
        try:
            try:
                made: Specialisation | str | None = self._make(key, args, names, start)
            except Unsupported as e:
                made = f"unsupported: {e.reason}"
            if made is None:
                return  # there is such code already: it was published after the call had missed it
            if isinstance(made, str):
                self.failed[key] = made
                self.owner.fell_back(made)
            else:
                self._publish(made)
        except Exception as e:  # a compiler fault must never reach a caller: the reason is kept and logged
            self.failed[key] = f"{type(e).__name__}: {e}"
            if not thread.stopping:  # else nobody wants it any more
                self.owner.compile_failed(key, e)
        finally:
            self.pending.pop(key).set()

    def _make(self, key: Any, args: Sequence[Any], names: tuple[str, ...], start: float) -> Specialisation | str | None:
        if warm.reason():
            return f"no native code here: {warm.reason()}"
        from bcvm.compiler import native
        program_of = self.owner.program_of
        leave_at = LEAVE_AT if self.owner.settings().exits != "none" else None
        if self.pc is None:
            graph = specialise_call(self.bound, args, names, program_of, leave_at, self.owner.receiver)
        else:
            n = len(self.bound.program.locals)
            end = len(args) - len(self.symbols)
            graph = specialise_continuation(self.bound, self.pc, args[:n], args[n:end], self.iterators, UNSET, program_of, leave_at, self.symbols, args[end:])
        specialised = time.perf_counter()
        listener.send("specialise", function=self.owner, key=key, ms=(specialised - start) * 1e3)
        again = next((reason for _, _, reason in graph.callbacks if reason.endswith(CALLS_ITSELF)), None)
        if again is not None:
            return again  # leaving native code at each level of a recursion costs more than it saves
        if not worthwhile(graph):
            why = next((b.end.reason for b in graph.blocks if isinstance(b.end, Exit)), "nothing to run natively")
            return why
        admits = (len(args), names, admission(graph))
        if any(s.admits == admits for s in self.specialisations):
            return None  # the call came while this was being published, or misses for a reason that new code would not mend
        successor = entry.get_entry(self.target)
        settings = self.owner.settings()
        code = native.build(graph, len(args), names, successor, self.owner.resume_for(self, key), settings.fusion, settings.threads, kernel_table(settings.tier),
                            settings.frozen)
        graph.forget_examples()
        ms = {"Shape": (specialised - start) * 1e3, **code.ms}
        listener.send("compile", function=self.owner, ms=(time.perf_counter() - start) * 1e3, bytes=code.size)
        return Specialisation(key, graph, code, ms, admits)

    def _publish(self, made: Specialisation) -> None:
        self.published[made.key] += 1
        self.specialisations.append(made)
        self._freers.append(made.freer)
        self.owner.compiled(self, made)
        entry.set_entry(self.target, made.code.entry)
        listener.send("publish", function=self.owner, key=made.key)
        cache.add(self, made)

    def evict(self, made: Specialisation) -> bool:
        """Take a specialisation out of the chain and free its code when nobody is inside; False if it is not there. On the compile thread."""
        if made not in self.specialisations:
            return False
        at = self.specialisations.index(made)
        after = self.specialisations[at - 1].code.entry if at else entry.slow_entry()
        if at == len(self.specialisations) - 1:
            entry.set_entry(self.target, after)
        else:
            self.specialisations[at + 1].code.stub.set_successor(after)
        self.past_calls += made.code.calls()
        self.specialisations.remove(made)
        self.asked.pop(made.key, None)
        self._freers.remove(made.freer)
        thread.discard([made.freer])
        return True


def kernel_table(tier: str) -> Any:
    """Where a compilation gets its kernels from. On the compile thread."""
    from bcvm.compiler.splice import library
    from bcvm.compiler.splice.table import SplicedTable
    from bcvm.compiler.table import table
    if tier == "splice":
        return SplicedTable()
    if tier != "auto":
        return table
    if library.current() is None:
        library.prepare(thread.when_idle)
    return SplicedTable(thread.submit) if library.current() is not None else table


def admission(graph: Graph) -> Any:
    """What decides whether a call is admitted: guards and the types of inputs. Of the same program with the same ones, the same graph is made."""
    guards = frozenset((g.how, str(g.path), g.value if g.how in ("length", "keys", "absent") else id(g.value)) for g in graph.guards)
    return guards, frozenset((str(i.path), i.value.type.key()) for i in graph.inputs)


def worthwhile(graph: Graph) -> bool:
    """Whether native code would do anything before it leaves."""
    for block in graph.blocks:
        if isinstance(block.end, Return):
            return True
        if any(n.op in ("op", "copy", "store", "fill") for n in block.nodes):
            return True
    return False
