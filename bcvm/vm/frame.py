"""An activation of tier 1: its locals and stack, how arguments become locals, and tracebacks that show the user's line."""
from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, TracebackType
from typing import Any

from bcvm.bytecode.instructions import BY_NAME
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.errors import BytecodeError, ShapeError


class _Unset:
    """The value of a local that is not set."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class Frame:
    """One activation. `pc`: the next instruction. Any component may make one at any instruction and go on from there:
    `locals` has one entry per Program.locals (UNSET where there is none), `stack` the values below the next instruction;
    where a for loop keeps its iterator, any Python iterator will do."""

    __slots__ = ("bound", "pc", "locals", "stack", "globals", "resolver")

    def __init__(self, bound: BoundProgram, pc: int, locals: list[Any], stack: list[Any]) -> None:
        self.bound, self.pc, self.locals, self.stack = bound, pc, locals, stack
        self.globals = bound.globals
        self.resolver: Any = None  # sizes named by hints, once there is one

    def name_size(self, name: str, size: int, by: str) -> None:
        """A hint has named a size, as `by` says."""
        from bcvm.shapes.resolver import SymbolicResolver
        if self.resolver is None:
            self.resolver = SymbolicResolver()
        self.resolver.table.set(name, size, by)

    def check(self, what: str, name: str, hint: str, value: Any) -> None:
        """A hint on an argument or on the result; ShapeError if the value is no tensor or its shape does not fit."""
        from bcvm.shapes.resolver import SymbolicResolver
        shape = getattr(value, "shape", None)
        if not isinstance(shape, tuple):
            if value is None and what == "argument" and self.bound.defaults.get(name, self) is None:
                return  # an argument that is left out
            raise ShapeError(f"{self._where()}: {what} {name!r} has the hint {hint}, but is no tensor: {type(value).__name__}")
        if self.resolver is None:
            self.resolver = SymbolicResolver()
        try:
            self.resolver.bind(name, hint, shape, what)
            self.resolver.resolve()
        except ShapeError as e:
            raise ShapeError(f"{self._where()}: {e}") from None

    def _where(self) -> str:
        """`f (model.py:12)`"""
        program = self.bound.program
        return f"{program.name} ({os.path.basename(program.filename)}:{program.first_line})"


# -- arguments

def binder(bound: BoundProgram) -> Callable[..., list[Any]]:
    """A function with the parameters of the program that returns their values in order; its TypeErrors are Python's own."""
    program = bound.program
    args = ast.arguments([], [], None, [], [], None, [])
    defaults: list[Any] = []
    keyword_defaults: dict[str, Any] = {}
    for p in program.params:
        arg = ast.arg(p.name)
        if p.kind == "star":
            args.vararg = arg
        elif p.kind == "double_star":
            args.kwarg = arg
        elif p.kind == "keyword_only":
            args.kwonlyargs.append(arg)
            args.kw_defaults.append(None)
            if p.has_default and p.name in bound.defaults:
                keyword_defaults[p.name] = bound.defaults[p.name]
        else:
            (args.posonlyargs if p.kind == "positional_only" else args.args).append(arg)
            if p.has_default and p.name in bound.defaults:
                defaults.append(bound.defaults[p.name])
    body: ast.expr = ast.List([ast.Name(p.name, ast.Load()) for p in program.params], ast.Load())
    try:
        outer = compile(ast.fix_missing_locations(ast.Expression(ast.Lambda(args, body))), program.filename or "<program>", "eval")
    except (ValueError, TypeError) as e:
        raise BytecodeError(f"program {program.name}: these are no parameters: {e}") from None
    (code,) = (c for c in outer.co_consts if isinstance(c, CodeType))
    function = FunctionType(code, {}, program.name, tuple(defaults))
    function.__kwdefaults__ = keyword_defaults
    function.__qualname__ = program.name
    return function


def bind(bound: BoundProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The values of the parameters, as Python binds them; TypeError in Python's words."""
    function = bound.__dict__.get("_binder")
    if function is None:
        function = bound.__dict__["_binder"] = binder(bound)
    of = bound.function
    if isinstance(of, FunctionType):  # defaults can be assigned
        function.__defaults__, function.__kwdefaults__ = of.__defaults__, of.__kwdefaults__
    try:
        values: list[Any] = function(*args, **kwargs)
    except TypeError as e:
        raise e.with_traceback(None)  # noqa: B904  the same error
    return values


# -- tracebacks

_CALL_PY = BY_NAME["CALL_PY"].opcode
_TEMPLATE = (lambda: 1 // 0).__code__


def _raising_code(program: Program, line: int) -> CodeType:
    """Code that raises, named and placed as the user's function."""
    code = _TEMPLATE.replace(co_filename=program.filename or "<program>", co_name=program.name.rpartition(".")[2] or program.name, co_firstlineno=line)
    if sys.version_info >= (3, 11):
        units = len(code.co_code) // 2
        entries = [0x80 | 13 << 3 | min(8, units - i) - 1 for i in range(0, units, 8)]  # "no columns", same line
        code = code.replace(co_linetable=bytes(b for e in entries for b in (e, 0)), co_qualname=program.name)
    return code


def traceback_at(caught: TracebackType | None, program: Program, at: int, globals: Mapping[str, Any]) -> TracebackType | None:
    """The traceback of an error in an instruction: the user's line, then what it called. The frames of `execute` and of its
    handler, which `caught` starts with, are left out. No name here may hold the result: its frame leads back to this one."""
    handler = caught.tb_next if caught else None
    below = handler.tb_next if handler else None
    if below is not None and program.code[at].opcode == _CALL_PY:
        return below  # the piece has the user's file, name and lines itself
    line = max(program.positions[at].line if at < len(program.positions) else program.first_line, 1)
    try:
        FunctionType(_raising_code(program, line), globals if type(globals) is dict else dict(globals))()
    except ZeroDivisionError as e:
        if e.__traceback__ is not None and e.__traceback__.tb_next is not None:
            return TracebackType(below, e.__traceback__.tb_next.tb_frame, e.__traceback__.tb_next.tb_lasti, line)
    return below


def unset_local(name: str) -> UnboundLocalError:
    """As the running Python words it."""
    if sys.version_info >= (3, 11):
        return UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value", name=name)
    return UnboundLocalError(f"local variable '{name}' referenced before assignment", name=name)
