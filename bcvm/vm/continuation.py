"""Entering native code in the middle of an activation: after a piece that only the interpreter runs, and at the header of a long loop."""
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.bytecode.program import BoundProgram
from bcvm.vm import entry, interpreter
from bcvm.vm.compile_thread import thread
from bcvm.vm.frame import Frame
from bcvm.vm.keys import call_key
from bcvm.vm.site import Site

if TYPE_CHECKING:
    from bcvm.vm.function import Function

AFTER_CALLBACKS = 2     # passes through a place after a callback before native code is asked for
LOOP_ITERATIONS = 500   # iterations of a loop, in one interpreted call, before its header becomes an entry
MAX_SITES = 64
_RANGE_ITERATOR = type(iter(range(0)))
_LOOP_START = 0x33
assert BY_OPCODE[_LOOP_START].name == "LOOP_START"


class Miss:
    """What the slow callable of a continuation returns: no native code took the frame."""


class Resume:
    """What a continuation returns that left again: the frames to go on with, outermost first."""

    def __init__(self, frames: list[Frame], always: bool) -> None:
        self.frames, self.always = frames, always


MISS = Miss()


class Continuations:
    """The sites inside the activations of one function, and the interpreter's hooks that enter them."""

    def __init__(self, owner: "Function") -> None:
        self.owner = owner
        self._sites: dict[Any, Site] = {}
        self._passes: Counter[Any] = Counter()
        self._rounds: Counter[Any] = Counter()  # of loops, since a call began

    def sites(self) -> list[Site]:
        return list(self._sites.values())

    def hooks(self) -> "Continuations | None":
        self._rounds.clear()
        return self if self.owner.settings().tier != "interpret" else None

    def run(self, frame: Frame, always: bool, first: bool) -> Any:
        """Go on in a frame. always: native code leaves here each time. first: the frame that it left, whose next instruction is the interpreter's in any
        case; otherwise what that frame was called from."""
        hooks = self.hooks()
        if first:
            step_over_header(frame)
        if hooks is None or not always:
            return interpreter.execute(frame, hooks)
        done = (interpreter.step(frame) if first else None) or self.after_call_py(frame)
        return done[1] if done is not None else interpreter.execute(frame, hooks)

    # -- the interpreter's hooks
    def at_loop(self, frame: Frame) -> tuple[bool, Any] | None:
        return self._enter(frame, LOOP_ITERATIONS, self._rounds)

    def after_call_py(self, frame: Frame) -> tuple[bool, Any] | None:
        return self._enter(frame, AFTER_CALLBACKS, self._passes)

    def _enter(self, frame: Frame, threshold: int, passes: Counter[Any]) -> tuple[bool, Any] | None:
        while True:
            pattern = tuple(i for i, v in enumerate(frame.stack) if type(v) is _RANGE_ITERATOR)
            symbols = symbols_of(frame)
            place = (frame.bound, frame.pc, pattern, symbols)
            site = self._sites.get(place)
            if site is None:
                passes[place] += 1
                if passes[place] < threshold or len(self._sites) >= MAX_SITES:
                    return None
                site = self._sites[place] = make_site(self.owner, frame.bound, frame.pc, pattern, symbols)
            result = site.target(*flat_values(frame, pattern), *(frame.resolver.table[name] for name, _ in symbols))
            if result is MISS:
                return None
            if type(result) is not Resume:
                return (True, result)
            outer, *inner = result.frames
            if inner:
                outer.stack.append(self.owner.run_frames(inner, result.always))
            frame.locals[:], frame.stack[:], frame.pc = outer.locals, outer.stack, outer.pc
            if not inner:
                step_over_header(frame)
            if not result.always:
                return None
            done = None if inner else interpreter.step(frame)
            if done is not None:
                return done
            threshold, passes = AFTER_CALLBACKS, self._passes


def step_over_header(frame: Frame) -> None:
    """LOOP_START does nothing but offer an entry: from a state that native code just left, go past it, so that each round makes progress."""
    code = frame.bound.program.code
    if frame.pc < len(code) and code[frame.pc].opcode == _LOOP_START:
        frame.pc += 1


def flat_values(frame: Frame, pattern: tuple[int, ...]) -> list[Any]:
    """Locals, then the stack; an iterator over a range as three numbers."""
    values = list(frame.locals)
    for i, v in enumerate(frame.stack):
        if i in pattern:
            _, (r,), *state = v.__reduce__()
            at = r.start + (state[0] or 0 if state else 0) * r.step
            values += (at, r.stop, r.step)
        else:
            values.append(v)
    return values


def symbols_of(frame: Frame) -> tuple[tuple[str, str], ...]:
    """The sizes that hints have named and that the hint on the result may read."""
    if frame.resolver is None or not frame.bound.program.return_hint:
        return ()
    return tuple((name, frame.resolver.table.definition(name).by) for name in frame.resolver.table)


def make_site(owner: "Function", bound: BoundProgram, pc: int, pattern: tuple[int, ...], symbols: tuple[tuple[str, str], ...]) -> Site:
    target = continuation_type()()
    site = Site(owner, bound, pc, target, pattern, symbols)

    def slow(*values: Any) -> Any:
        key = call_key(values)
        job = site.ask(key, values, ()) if site.wants(key) else None
        if job is not None:
            thread.submit(job)
        return MISS

    entry.initialise(target, slow)
    return site


def continuation_type() -> type:
    global _type
    if _type is None:
        _type = entry.make_function_type("Continuation", {})
    return _type


_type: type | None = None
