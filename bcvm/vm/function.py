"""What `bcvm.jit` returns: a callable that interprets at once and enters native code when there is some for its arguments."""
from __future__ import annotations

import functools
import inspect
import itertools
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bcvm import turns
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.config import Options, check, resolve, scope
from bcvm.errors import BcvmError
from bcvm.specialise.calls import CALLS_ITSELF
from bcvm.specialise.ssa import State
from bcvm.vm import entry, interpreter, libraries, listener
from bcvm.vm.compile_thread import thread
from bcvm.vm.continuation import Continuations, Resume
from bcvm.vm.frame import Frame, bind
from bcvm.vm.keys import call_key
from bcvm.vm.site import LEAVE_AT, Site, Specialisation
from bcvm.vm.states import frames_of
from bcvm.vm.warm import warm

_live: "weakref.WeakSet[Any]" = weakref.WeakSet()
_serials = itertools.count()
NO_SPLICE = "the spliced tier is not part of this version; use tier='auto' or tier='full'"
SAFE_POINTS = 24  # of a function, as far as the test mode looks


class Function:
    """The state of one jitted function. The callable that users hold has it as `_bcvm`."""

    def __init__(self, target: Any, bound: BoundProgram, program_of: Callable[[Any], BoundProgram], options: Mapping[str, Any],
                 receiver: tuple[Any, ...] = ()) -> None:
        self.receiver = receiver  # passed before the arguments of every call
        self.bound, self.program_of, self.options = bound, program_of, options
        self.serial = next(_serials)
        self.site = Site(self, bound, None, target)
        self.continuations = Continuations(self)
        self.interpreted = 0
        self.compiles = 0
        self.fallbacks: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.seconds: dict[str, float] = {"interpreted": 0.0}
        self.errors: dict[str, BaseException] = {}
        self._settings: tuple[Any, Options] | None = None
        self.random = random.Random(options.get("seed", 0))

    def settings(self) -> Options:
        outer = scope()
        if self._settings is None or self._settings[0] is not outer:
            settings = resolve(self.options)
            if settings.tier == "splice":
                raise BcvmError(NO_SPLICE)
            self._settings = (outer, settings)
        return self._settings[1]

    # -- the slow way of a call: no native entry took it
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settings = self.settings()
        libraries.refresh()
        if settings.tier == "interpret":
            self.fallbacks["tier"] += 1
            return self.interpret(args, kwargs)
        if warm():
            self.fallbacks[f"no native code here: {warm()}"] += 1
            return self.interpret(args, kwargs)
        names = tuple(kwargs)
        values = (*args, *kwargs.values())
        key = call_key(values, names)
        site = self.site
        job = site.ask(key, values, names) if site.wants(key) else None
        if job is None:
            thread.ensure()
            running = site.pending.get(key)
            if settings.tier == "full" and running is not None and not thread.is_current():
                running.wait()  # another thread asked first
                if key not in site.failed:
                    return site.target(*args, **kwargs)
            elif running is not None:
                return self.interpret_beside(args, kwargs)
            reason = site.reason(key)
            self.fallbacks[reason] += 1
            if reason.endswith(CALLS_ITSELF) and self.bound.function is not None and len(self.bound.program.hints) == 1:  # Python itself needs fewer frames a level
                self.interpreted += 1
                return self.bound.function(*self.receiver, *args, **kwargs)
            return self.interpret(args, kwargs)
        if settings.background and settings.tier == "auto":
            self.fallbacks["first call"] += 1
            try:
                return self.interpret(args, kwargs)
            finally:
                thread.submit(job)  # only now: a compilation beside it would slow this call down
        if not thread.call(job, settings.compile_timeout_ms / 1e3 if settings.tier == "auto" else None):
            self.fallbacks["compile_timeout"] += 1
        elif key not in site.failed:
            return site.target(*args, **kwargs)
        return self.interpret(args, kwargs)

    def interpret_beside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Interpret a call that is being compiled for."""
        self.fallbacks["compiling"] += 1
        thread.give_way(self.seconds["interpreted"] / max(self.interpreted, 1))
        turns.begin_call()
        try:
            return self.interpret(args, kwargs)
        finally:
            turns.end_call()

    def interpret(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.interpreted += 1
        start = time.perf_counter()
        try:
            return interpreter.run(self.bound, self.receiver + args, kwargs, self.continuations.hooks())
        finally:
            self.seconds["interpreted"] += time.perf_counter() - start

    # -- leaving native code
    def resume_for(self, site: Site, key: Any) -> Callable[..., Any]:
        """What native code of a site calls when it leaves: (reason, state, values) -> the call's result, or what a continuation takes up."""
        def resume(reason: str, state: State, values: list[Any]) -> Any:
            self.exits[reason] += 1
            mode = self.settings().exits
            if mode != "none":  # the next call leaves elsewhere
                LEAVE_AT[0] = (LEAVE_AT[0] + 1) % SAFE_POINTS if mode == "all" else self.random.randrange(SAFE_POINTS)
            if listener.listening():
                listener.send("exit", function=self, reason=reason, where=state.levels[-1].pc)
            frames = frames_of(state, values)
            return self.run_frames(frames) if site.pc is None else Resume(frames)
        return resume

    def run_frames(self, frames: list[Frame]) -> Any:
        """Go on in the interpreter from frames, outermost first."""
        result: Any = None
        for depth, frame in enumerate(reversed(frames)):
            if depth:
                frame.stack.append(result)
            result = self.continuations.run(frame)
        return result

    # -- what the sites report
    def compiled(self, site: Site, made: Specialisation) -> None:
        self.compiles += 1
        if listener.listening():
            for region in made.code.compiled.regions:
                listener.send("fuse", function=self, region=region)
            listener.send("compiled", function=self, site=site, specialisation=made)

    def fell_back(self, reason: str) -> None:
        listener.send("fallback", function=self, reason=reason)

    def compile_failed(self, key: Any, error: Exception) -> None:
        reason = f"compiler: {type(error).__name__}: {error}"
        first = reason not in self.errors
        self.errors.setdefault(reason, error)
        listener.send("fallback", function=self, reason=reason)
        if first:
            listener.send("failed", function=self, error=error)

    def program(self) -> Program:
        """The program, annotated by the newest specialisation if there is one."""
        from bcvm.vm.quicken import quicken
        if not self.site.specialisations:
            return self.bound.program
        newest = self.site.specialisations[-1]
        return quicken(self.bound.program, newest.graph, newest.code.compiled.regions)

    def sites(self) -> list[Site]:
        return [self.site, *self.continuations.sites()]

    def stats(self) -> dict[str, Any]:
        entered = self.site.past_calls + sum(s.code.calls() for s in self.site.specialisations)
        left = sum(s.code.left() for s in self.site.specialisations)
        sites = self.sites()
        return {
            "calls": entered + self.interpreted, "native": entered - left, "left": left, "interpreted": self.interpreted,
            "compiles": self.compiles, "recompiles": sum(n - 1 for n in self.site.published.values()),
            "specialisations": len(self.site.specialisations), "continuations": sum(len(s.specialisations) for s in sites[1:]),
            "code_bytes": sum(sp.code.size for s in sites for sp in s.specialisations),
            "fallbacks": {k: v for k, v in self.fallbacks.items() if v}, "exits": dict(self.exits), "errors": list(self.errors),
            "latency_ms": {"interpreted": 1e3 * self.seconds["interpreted"] / self.interpreted} if self.interpreted else {},
        }


# -- the callable

def _slow(function: Function) -> Callable[..., Any]:
    call = function.call

    def slow(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs)
    return slow


def _method(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self._bcvm, *args, **kwargs)
    return method


def _warmup(function: Function, *examples: tuple[Any, ...]) -> None:
    """Specialise and compile for example argument tuples ahead of the calls, and wait until that is done."""
    for example in examples:
        if not isinstance(example, tuple):
            raise TypeError(f"warmup takes tuples of arguments, not {type(example).__name__}")
        bind(function.bound, function.receiver + example, {})  # TypeError for arguments that do not fit
        key = call_key(example)
        job = function.site.ask(key, example, ())
        if job is not None:
            thread.call(job)
    thread.idle()


def _explain(function: Function, *args: Any, **kwargs: Any) -> Any:
    """What happens to a call with these arguments: guards, regions and their decisions, where it leaves native code and why."""
    from bcvm.vm.explain import explain
    return explain(function, args, kwargs)


def _stats(function: Function) -> dict[str, Any]:
    """Counters: calls (native, left and interpreted ones), native (from start to end), left (entered native code and finished in the interpreter), interpreted, compiles, recompiles, specialisations, code_bytes, fallbacks by reason, exits by reason."""
    return function.stats()


@functools.cache
def function_type() -> type:
    return entry.make_function_type("JitFunction", {
        "_bcvm_jitted": True,
        "__doc__": None, "__module__": "bcvm",
        "program": property(lambda self: self._bcvm.program(), doc="The bytecode, with types and fusion decisions once it is compiled; str() is its disassembly."),
        "warmup": _method(_warmup), "explain": _method(_explain), "stats": _method(_stats),
    })


def make(bound: BoundProgram, program_of: Callable[[Any], BoundProgram], options: Mapping[str, Any], wrapped: Callable[..., Any] | None = None,
         receiver: tuple[Any, ...] = ()) -> Any:
    """The callable for a bound program. receiver: what it passes before the arguments (`self` of a bound method)."""
    target = function_type()()
    function = Function(target, bound, program_of, options, receiver)
    target._bcvm = function
    if wrapped is not None:
        functools.update_wrapper(target, wrapped)
    else:
        target.__name__ = bound.program.name.rpartition(".")[2]
        target.__qualname__ = bound.program.name
    entry.initialise(target, _slow(function))
    _live.add(target)
    if function.settings().tier != "interpret":
        warm()
    interpreter.prepare(bound)
    return target


def jit(fn: Any = None, **options: Any) -> Any:
    """Compile a function, method or cell just in time: `@bcvm.jit`, `@bcvm.jit(tier="full")`, `bcvm.jit(fn)`. TypeError for an unknown
    option or something that is not callable."""
    checked = check(options, "bcvm.jit")
    if checked.get("tier") == "splice":
        raise BcvmError(NO_SPLICE)
    if fn is None:
        return lambda f: jit(f, **options)
    from bcvm.frontend import program_of
    libraries.refresh()
    if getattr(type(fn), "_bcvm_jitted", False):
        return make(fn._bcvm.bound, program_of, {**fn._bcvm.options, **checked}, getattr(fn, "__wrapped__", None))
    for adapt in ADAPTERS:
        made = adapt(fn, checked)
        if made is not None:
            return made
    if inspect.ismethod(fn):
        return bound_method(fn.__func__, fn.__self__, checked)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(jit(fn.__func__, **options))
    if not inspect.isfunction(fn):
        call = getattr(type(fn), "__call__", None)  # noqa: B004  the function itself
        if not callable(fn):
            raise TypeError(f"bcvm.jit takes a function, method or cell, not {type(fn).__name__}")
        if inspect.isfunction(call) and not isinstance(fn, type):
            return bound_method(call, fn, checked)
        raise TypeError(f"bcvm.jit takes a Python function, method or cell, not {type(fn).__name__} {fn!r}: wrap it in a def")
    return make(program_of(fn), program_of, checked, fn)


def bound_method(fn: Any, obj: Any, checked: dict[str, Any]) -> Any:
    """The callable for a function that gets `obj` as its first argument."""
    from bcvm.frontend import program_of
    if getattr(type(fn), "_bcvm_jitted", False):
        fn = fn.__wrapped__
    return make(program_of(fn), program_of, checked, fn.__get__(obj), (obj,))


ADAPTERS: list[Callable[[Any, dict[str, Any]], Any]] = []  # frameworks add what makes a callable of their objects (cells)


def load(source: Any, imports: Mapping[str, Any] | None = None, captures: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A callable from a `.bc` file, its bytes, or a Program. `imports` binds the names its CALL_PY instructions and captures need;
    a missing one is a BytecodeError that lists them."""
    import builtins
    import types

    from bcvm.bytecode.binary import decode
    from bcvm.bytecode.verifier import verify
    from bcvm.errors import BytecodeError
    from bcvm.frontend import program_of
    if isinstance(source, Program):
        program = source
    elif isinstance(source, (bytes, bytearray, memoryview)):
        program = decode(bytes(source))
    else:
        with open(source, "rb") as f:
            program = decode(f.read())
    verify(program)
    given = {**(imports or {}), **(captures or {})}
    needed = [i.name for i in program.imports] + [c.name for c in program.captures if not (c.kind == "global" and hasattr(builtins, c.name))]
    missing = sorted({n for n in needed if n not in given})
    if missing:
        raise BytecodeError(f"program {program.name} needs imports={{...}} for: {', '.join(missing)}")
    closure = {c.name: types.CellType(given[c.name]) for c in program.captures if c.kind == "closure"}
    globals_ = {c.name: given[c.name] for c in program.captures if c.kind == "global" and c.name in given}
    defaults = {p.name: given[p.name] for p in program.params if p.has_default and p.name in given}
    bound = BoundProgram(program, globals_, vars(builtins), closure, defaults, tuple(given[i.name] for i in program.imports))
    return make(bound, program_of, check(options, "bcvm.load"))


def live_functions() -> list[Any]:
    """Every jitted function that is alive, in the order of their making."""
    return sorted(_live, key=lambda f: f._bcvm.serial)
