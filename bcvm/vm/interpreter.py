"""Tier 1: runs a program on real objects with Python's own semantics.

A program is decoded once into one closure per instruction; each does its work and returns the id of the next one. Several
instructions that follow each other are also joined into the closure of the first; every id keeps a closure of its own, so
execution may enter anywhere.
"""
from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.vm.frame import UNSET, Frame, bind, traceback_at
from bcvm.vm.handlers import HANDLERS, RETURN, go
from bcvm.vm.joins import joins

__all__ = ["Frame", "Hooks", "UNSET", "execute", "run"]


class Hooks(Protocol):
    """What may take over. Each returns None to go on at frame.pc (it may have changed the frame), or (True, value): the rest of
    the frame was run elsewhere, value is its result."""

    def at_loop(self, frame: Frame) -> tuple[bool, Any] | None:
        """At a loop header; frame.pc is its LOOP_START."""

    def after_call_py(self, frame: Frame) -> tuple[bool, Any] | None:
        """After a call back into Python; frame.pc is the instruction after it, its results are on the stack."""


def run(bound: BoundProgram, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, hooks: Hooks | None = None) -> Any:
    """Call a program. Raises what the Python function would raise."""
    code = bound.__dict__.get("_decoded") or _decoded(bound)
    if kwargs or len(args) != code.simple_params:
        values = bind(bound, args, kwargs or {}) + code.pad
    else:
        values = [*args, *code.pad]
    return execute(Frame(bound, 0, values, []), hooks)


def prepare(bound: BoundProgram) -> None:
    """Decode a program ahead of its first call."""
    _decoded(bound)


def execute(frame: Frame, hooks: Hooks | None = None) -> Any:
    """Run a frame from its pc to its end and return the result."""
    code = frame.bound.__dict__.get("_decoded") or _decoded(frame.bound)
    values, stack, pc = frame.locals, frame.stack, frame.pc
    table = code.table if hooks is None else code.hooked
    try:
        while True:
            while pc >= 0:
                pc = table[pc](values, stack, frame)
            if pc == RETURN:
                return stack.pop()
            pc = -2 - pc
            assert hooks is not None
            at = frame.pc = pc
            if code.is_loop[pc]:
                done = hooks.at_loop(frame)
            else:
                code.table[pc](values, stack, frame)
                at = frame.pc = pc + 1
                done = hooks.after_call_py(frame)
            if done is not None:
                return done[1]
            pc = frame.pc if frame.pc != at or not code.is_loop[pc] else pc + 1
    except BaseException as e:
        raise e.with_traceback(traceback_at(e.__traceback__, frame.bound.program, code.blame[pc], frame.globals))  # noqa: B904  the same error


def step(frame: Frame) -> tuple[bool, Any] | None:
    """Run the instruction at frame.pc, or what is joined with it; (True, result) if that ended the frame."""
    code = frame.bound.__dict__.get("_decoded") or _decoded(frame.bound)
    at = frame.pc
    try:
        pc = code.table[at](frame.locals, frame.stack, frame)
    except BaseException as e:
        raise e.with_traceback(traceback_at(e.__traceback__, frame.bound.program, code.blame[at], frame.globals))  # noqa: B904  the same error
    if pc == RETURN:
        return (True, frame.stack.pop())
    frame.pc = pc
    return None


# -- decoding

class _Code:
    """A decoded program; it does not keep the program alive. simple_params: the number of arguments that need no binding, -1 if
    there is none such. blame: the instruction that an error in a closure is put down to."""

    def __init__(self, program: Program) -> None:
        plain = all(p.kind in ("positional_only", "positional") for p in program.params)
        self.simple_params = len(program.params) if plain else -1
        self.pad = [UNSET] * (len(program.locals) - len(program.params))
        names = [BY_OPCODE[c.opcode].name for c in program.code]
        self.is_loop = [n == "LOOP_START" for n in names]
        self.blame = list(range(len(names)))
        self.table = [HANDLERS[n](program, at, *c.operands) for at, (n, c) in enumerate(zip(names, program.code, strict=True))]
        self.hooked = list(self.table)
        for at, length, joined in joins(program, names):
            self.table[at] = self.hooked[at] = joined
            self.blame[at] = at + length - 1
        for at, (name, code) in enumerate(zip(names, program.code, strict=True)):
            if name in ("LOOP_START", "CALL_PY"):
                self.hooked[at] = go(-2 - at)
            elif name == "LOOP_END":
                self.hooked[at] = go(code.operands[0])


_codes: dict[int, tuple["weakref.ref[Program]", _Code]] = {}
"""By identity: hashing a program would read all of it."""


def _decoded(bound: BoundProgram) -> _Code:
    program = bound.program
    address = id(program)
    known = _codes.get(address)
    if known is None or known[0]() is not program:
        known = _codes[address] = (weakref.ref(program, lambda _: _codes.pop(address, None)), _Code(program))
    bound.__dict__["_decoded"] = known[1]
    return known[1]
