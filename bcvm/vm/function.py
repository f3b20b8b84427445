"""What `bcvm.jit` returns: a callable that interprets at once and enters native code when there is some for its arguments."""
from __future__ import annotations

import copy
import functools
import inspect
import itertools
import os
import random
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bcvm import turns
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.config import Options, check, resolve, scope
from bcvm.ops import large
from bcvm.specialise.calls import CALLS_ITSELF
from bcvm.specialise.ssa import State
from bcvm.vm import entry, interpreter, libraries, listener, warm
from bcvm.vm.compile_thread import thread
from bcvm.vm.continuation import Continuations, Resume
from bcvm.vm.frame import Frame, bind
from bcvm.vm.keys import call_key
from bcvm.vm.site import LEAVE_AT, Site, Specialisation
from bcvm.vm.states import frames_of

_live: "weakref.WeakSet[Any]" = weakref.WeakSet()
_serials = itertools.count()
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
            self._settings = (outer, resolve(self.options))
        return self._settings[1]

    # -- the slow way of a call: no native entry took it
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settings = self.settings()
        libraries.refresh()
        if self.bound.code is not None and self.bound.function.__code__ is not self.bound.code:  # type: ignore[union-attr]
            self.renew()
        if settings.tier == "interpret":
            self.fallbacks["tier"] += 1
            return self.interpret(args, kwargs)
        if warm.reason() or thread.stopping:
            self.fallbacks[f"no native code here: {warm.reason() or 'the interpreter is ending'}"] += 1
            return self.interpret(args, kwargs)
        names = tuple(kwargs)
        values = (*args, *kwargs.values())
        key = call_key(values, names)
        site = self.site
        job = site.ask(key, values, names) if site.wants(key) else None
        if job is None:
            thread.ensure()
            running = site.pending.get(key)
            if settings.tier in ("full", "splice") and running is not None and not thread.is_current():
                running.wait()  # another thread asked first
                if key not in site.failed:
                    return site.target(*args, **kwargs)
            elif running is not None:
                return self.call_beside(running, key, args, kwargs)
            reason = site.reason(key)
            self.fallbacks[reason] += 1
            if reason.endswith(CALLS_ITSELF) and self.bound.function is not None and len(self.bound.program.hints) == 1:  # Python itself needs fewer frames a level
                self.interpreted += 1
                return self.bound.function(*self.receiver, *args, **kwargs)
            return self.interpret(args, kwargs)
        if settings.background and settings.tier == "auto":
            if turns.worth_waiting(self.usual()):
                running = site.pending[key]
                thread.submit(job)
                return self.call_beside(running, key, args, kwargs)
            self.fallbacks["first call"] += 1
            turns.begin_call(turns.LONG)
            try:
                return self.interpret(args, kwargs)
            finally:
                turns.end_call(turns.LONG)
                thread.submit(job)  # only now: a compilation beside it would slow this call down
        if not thread.call(job, settings.compile_timeout_ms / 1e3 if settings.tier == "auto" else None):
            self.fallbacks["compile_timeout"] += 1
        elif key not in site.failed:
            return site.target(*args, **kwargs)
        else:
            self.fallbacks[site.reason(key)] += 1
        return self.interpret(args, kwargs)

    def renew(self) -> None:
        """The function has been given other code."""
        assert self.bound.function is not None
        self.bound = self.program_of(self.bound.function)
        self.site.renew(self.bound)
        interpreter.prepare(self.bound)

    def usual(self) -> float:
        """Seconds that an interpreted call takes; 0 if there was none."""
        return self.seconds["interpreted"] / max(self.interpreted, 1)

    def call_beside(self, running: threading.Event, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is being compiled for: interpreted, unless that takes so long that native code is there before."""
        usual = self.usual()
        patience = turns.worth_waiting(usual)
        if patience and not thread.is_current():
            with turns.wait_for_code():
                running.wait(patience)
            if running.is_set() and key not in self.site.failed:
                return self.site.target(*args, **kwargs)
        self.fallbacks["compiling"] += 1
        turns.begin_call(usual)
        try:
            return self.interpret(args, kwargs)
        finally:
            turns.end_call(usual)

    def interpret(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.interpreted += 1
        start = time.perf_counter()
        outer, large.calling.threads = large.calling.threads, self.settings().threads
        try:
            return interpreter.run(self.bound, self.receiver + args, kwargs, self.continuations.hooks())
        finally:
            large.calling.threads = outer
            seconds = time.perf_counter() - start
            self.seconds["interpreted"] += seconds
            if listener.listening("interpret"):
                listener.send("interpret", function=self, ms=seconds * 1e3)

    # -- leaving native code
    def resume_for(self, site: Site, key: Any) -> Callable[..., Any]:
        """What native code of a site calls when it leaves: (reason, state, values) -> the call's result, or what a continuation takes up."""
        def resume(reason: str, state: State, values: list[Any]) -> Any:
            self.exits[reason] += 1
            mode = self.settings().exits
            if mode != "none":  # the next call leaves elsewhere
                LEAVE_AT[0] = (LEAVE_AT[0] + 1) % SAFE_POINTS if mode == "all" else self.random.randrange(SAFE_POINTS)
            if listener.listening("exit"):
                listener.send("exit", function=self, reason=reason, where=state.levels[-1].pc)
            frames = frames_of(state, values)
            always = reason.startswith(("unsupported", "call_py"))
            return self.run_frames(frames, always) if site.pc is None else Resume(frames, always)
        return resume

    def run_frames(self, frames: list[Frame], always: bool = False) -> Any:
        """Go on in the interpreter from frames, outermost first. always: native code leaves here each time, so that what follows is worth
        entering."""
        result: Any = None
        for depth, frame in enumerate(reversed(frames)):
            if depth:
                frame.stack.append(result)
            result = self.continuations.run(frame, always, depth == 0)
        return result

    # -- what the sites report
    def compiled(self, site: Site, made: Specialisation) -> None:
        self.compiles += 1
        if listener.listening("fuse"):
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
    """A method of jitted functions. On a bound method it is for calls with that instance."""
    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self._bcvm, self._instance, *args, **kwargs)
    return method


def _warmup(function: Function, first: tuple[Any, ...], *examples: tuple[Any, ...]) -> None:
    """Specialise and compile for example argument tuples ahead of the calls, and wait until that is done."""
    for example in examples:
        if not isinstance(example, tuple):
            raise TypeError(f"warmup takes tuples of arguments, not {type(example).__name__}")
        example = first + example
        bind(function.bound, function.receiver + example, {})  # TypeError for arguments that do not fit
        key = call_key(example)
        job = function.site.ask(key, example, ())
        if job is not None:
            thread.call(job)
    thread.idle()


def _explain(function: Function, first: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    """What happens to a call with these arguments: guards, regions and their decisions, where it leaves native code and why."""
    from bcvm.vm.explain import explain
    return explain(function, first + args, kwargs)


def _stats(function: Function, first: tuple[Any, ...]) -> dict[str, Any]:
    """Counters: calls (native, left and interpreted ones), native (from start to end), left (entered native code and finished in the interpreter), interpreted, compiles, recompiles, specialisations, code_bytes, fallbacks by reason, exits by reason."""
    return function.stats()


_FACE: dict[str, Any] = {
    "_bcvm_jitted": True, "_instance": (), "__doc__": None, "__module__": "bcvm",
    "program": property(lambda self: self._bcvm.program(), doc="The bytecode, with types and fusion decisions once it is compiled; str() is its disassembly."),
    "warmup": _method(_warmup), "explain": _method(_explain), "stats": _method(_stats),
}


def _bind(function: Any, instance: Any, owner: Any = None) -> Any:
    """Binding as functions do it, with a face of the function that knows the instance: a bound method's attributes are its function's."""
    if instance is None:
        return function
    face = face_type()()
    face._function, face._instance = function, (instance,)
    entry.initialise(face, function)
    return types.MethodType(face, instance)


def _read_through(place: str) -> Callable[[Any, str], Any]:
    def read(self: Any, name: str) -> Any:
        if place not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)[place], name)
    return read


@functools.cache
def function_type() -> type:
    return entry.make_function_type("JitFunction", {**_FACE, "__get__": _bind})


@functools.cache
def face_type() -> type:
    """What a bound method has as its function: the function, with an instance for its warmup and explain."""
    return entry.make_function_type("JitMethod", {
        **_FACE, "__doc__": property(lambda self: self._function.__doc__),
        "__getattr__": _read_through("_function"),
        "__eq__": lambda self, other: self._function is getattr(other, "_function", other), "__hash__": lambda self: hash(self._function),
    })


@functools.cache
def object_type() -> type:
    """The type of a jitted object: calls are native, its attributes are the object's own, read and written. It binds no more than the object does."""
    def write(self: Any, name: str, value: Any) -> None:
        if name == "_slow":
            object.__setattr__(self, name, value)
        else:
            setattr(self._object, name, value)

    def delete(self: Any, name: str) -> None:
        delattr(self._object, name)

    return entry.make_function_type("JitObject", {
        **_FACE, "__doc__": property(lambda self: self._object.__doc__), "__get__": lambda self, instance, owner=None: self,
        "__getattr__": _read_through("_object"), "__setattr__": write, "__delattr__": delete,
        "__dir__": lambda self: sorted({*object.__dir__(self), *dir(self._object)}), "__repr__": lambda self: f"<bcvm.jit of {self._object!r}>",
        "__reduce__": lambda self: (_jit_again, (self._object, self._bcvm.options)),
        "__copy__": lambda self: _jit_again(copy.copy(self._object), self._bcvm.options),
        "__deepcopy__": lambda self, memo: _jit_again(copy.deepcopy(self._object, memo), self._bcvm.options),
    }, binds=False)


def _jit_again(obj: Any, options: dict[str, Any]) -> Any:
    return jit(obj, **options)


def make(bound: BoundProgram, program_of: Callable[[Any], BoundProgram], options: Mapping[str, Any], wrapped: Callable[..., Any] | None = None,
         receiver: tuple[Any, ...] = (), stands_for: Any = None) -> Any:
    """The callable for a bound program. receiver: what it passes before the arguments (`self` of a bound method). stands_for: the object whose
    attributes it has."""
    if stands_for is not None:
        target = object_type()()
        vars(target)["_object"] = stands_for
    else:
        target = function_type()()
    function = Function(target, bound, program_of, options, receiver)
    vars(target)["_bcvm"] = function
    if stands_for is not None:
        vars(target).update(__wrapped__=wrapped, __name__=bound.program.name.rpartition(".")[2], __qualname__=bound.program.name)
    elif wrapped is not None:
        functools.update_wrapper(target, wrapped)
    else:
        target.__name__ = bound.program.name.rpartition(".")[2]
        target.__qualname__ = bound.program.name
    entry.initialise(target, _slow(function))
    _live.add(target)
    tier = function.settings().tier
    if tier != "interpret":
        warm.begin()
    if tier == "splice":
        thread.submit(_find_stencils)
    interpreter.prepare(bound)
    return target


def _find_stencils() -> None:
    if not warm.reason():
        from bcvm.compiler.splice import library
        if library.current() is None:
            library.begin(thread.submit)


def jit(fn: Any = None, **options: Any) -> Any:
    """Compile a function, method or cell just in time: `@bcvm.jit`, `@bcvm.jit(tier="full")`, `bcvm.jit(fn)`. TypeError for an unknown
    option or something that is not callable."""
    checked = check(options, "bcvm.jit")
    if fn is None:
        return lambda f: jit(f, **options)
    from bcvm.frontend import check_hints, program_of
    libraries.refresh()
    if getattr(type(fn), "_bcvm_jitted", False):
        return make(fn._bcvm.bound, program_of, {**fn._bcvm.options, **checked}, getattr(fn, "__wrapped__", None), fn._bcvm.receiver, vars(fn).get("_object"))
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
            return bound_method(call, fn, checked, stands_for=fn)
        raise TypeError(f"bcvm.jit takes a Python function, method or cell, not {type(fn).__name__} {fn!r}: wrap it in a def")
    check_hints(fn)
    return make(program_of(fn), program_of, checked, fn)


def bound_method(fn: Any, obj: Any, checked: dict[str, Any], stands_for: Any = None) -> Any:
    """The callable for a function that gets `obj` as its first argument. stands_for: the object that it is called as, whose attributes it has."""
    from bcvm.frontend import check_hints, program_of
    if getattr(type(fn), "_bcvm_jitted", False):
        fn = fn.__wrapped__
    check_hints(fn)
    return make(program_of(fn), program_of, checked, fn.__get__(obj), (obj,), stands_for)


ADAPTERS: list[Callable[[Any, dict[str, Any]], Any]] = []  # frameworks add what makes a callable of their objects (cells)


def load(source: Any, imports: Mapping[str, Any] | None = None, captures: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """A callable from a `.bc` file, its bytes, or a Program. `imports` binds the names its CALL_PY instructions and captures need;
    a missing one is a BytecodeError that lists them. TypeError for another source."""
    import builtins

    from bcvm.bytecode.binary import decode
    from bcvm.bytecode.verifier import verify
    from bcvm.errors import BytecodeError
    from bcvm.frontend import program_of
    if isinstance(source, Program):
        program = source
    elif isinstance(source, (bytes, bytearray, memoryview)):
        program = decode(bytes(source))
    elif isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as f:
            program = decode(f.read())
    else:
        raise TypeError(f"bcvm.load takes the path of a .bc file, its bytes, or a Program, not {type(source).__name__}")
    verify(program)
    for name, values in (("imports", imports), ("captures", captures)):
        if values is not None and not isinstance(values, Mapping):
            raise TypeError(f"bcvm.load: {name} is a dict from name to object, not {type(values).__name__}")
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
