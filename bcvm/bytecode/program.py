"""A program: the bytecode of one Python function. Immutable and context-free: no callee inlined, no name resolved.

`BoundProgram` is a program together with what its captures and imports stand for in this process.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType
from typing import Any, NamedTuple


class Code(NamedTuple):
    """One instruction: its opcode and operand integers, in the order of the instruction table. Its id is its index."""

    opcode: int
    operands: tuple[int, ...] = ()


class Param(NamedTuple):
    """kind: 'positional_only', 'positional', 'star' (*args), 'keyword_only', 'double_star' (**kwargs)."""

    name: str
    kind: str = "positional"
    has_default: bool = False
    hint: int = 0  # index into Program.hints


class Capture(NamedTuple):
    """A name the function reads from outside. kind: 'closure' (a cell), 'global' (module globals, then builtins)."""

    kind: str
    name: str


class Import(NamedTuple):
    """A Python callable that a CALL_PY targets. A loaded program needs one bound for each name. `source` is for people."""

    name: str
    source: str = ""


class Position(NamedTuple):
    """Where an instruction comes from: line (1-based) and column (0-based, in characters); line 0 is unknown."""

    line: int
    column: int


@dataclass(frozen=True)
class Annotation:
    """What quickening knows of an instruction: printed type, signature id, region decision. Never changes its meaning."""

    type: str = ""
    signature: int = 0
    decision: str = ""


@dataclass(frozen=True)
class Program:
    """Sections of one function's bytecode. Parameters are the first locals, in order (star parameters included)."""

    name: str                                  # qualified name, `DynamicMatmulCell.construct`
    filename: str
    code: tuple[Code, ...]
    params: tuple[Param, ...] = ()
    locals: tuple[str, ...] = ()               # names; the first len(params) are the parameters
    consts: tuple[Any, ...] = ()               # None, bool, int, float, complex, str, bytes, Ellipsis, tuples of these
    names: tuple[str, ...] = ()                # attribute, op and policy names
    captures: tuple[Capture, ...] = ()
    imports: tuple[Import, ...] = ()
    hints: tuple[str, ...] = ("...",)          # text of each shape hint; hint 0 is "no constraint"
    signatures: tuple[tuple[Any, ...], ...] = ((),)  # operand (dtype, rank, layout, space) tuples; 0 is "not resolved"
    return_hint: int = 0
    positions: tuple[Position, ...] = ()       # one per instruction
    annotations: tuple[tuple[int, Annotation], ...] = ()  # (instruction id, annotation): the quickened form
    first_line: int = 0

    def __str__(self) -> str:
        from bcvm.bytecode.disassembler import disassemble
        return disassemble(self)

    def save(self, path: str) -> None:
        """Write the binary form (`.bc`) to a file."""
        from bcvm.bytecode.binary import encode
        with open(path, "wb") as f:
            f.write(encode(self))


def expect_program(value: Any, where: str) -> None:
    """TypeError for what is no Program."""
    if not isinstance(value, Program):
        more = ": pass its .program" if hasattr(value, "program") else ""
        raise TypeError(f"{where} takes a Program, as f.program or bcvm.assemble(text) give, not {type(value).__name__}{more}")


@dataclass(eq=False)
class BoundProgram:
    """A program with its captures and imports bound. Identity matters: one per live Python function object."""

    program: Program
    globals: Mapping[str, Any] = field(default_factory=dict)
    builtins: Mapping[str, Any] = field(default_factory=dict)
    closure: Mapping[str, CellType] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # parameter name -> default value
    imports: tuple[Callable[..., Any], ...] = ()               # one per Program.imports
    function: Callable[..., Any] | None = None                 # the Python function, where there is one
    code: CodeType | None = None                               # the function's code that the program is of; it may have another one by now

    def read_capture(self, index: int) -> Any:
        """The value a capture has now; NameError (as Python words it) if unbound."""
        kind, name = self.program.captures[index]
        if kind == "closure":
            try:
                return self.closure[name].cell_contents
            except ValueError:
                raise NameError(f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope") from None
        try:
            return self.globals[name]
        except KeyError:
            try:
                return self.builtins[name]
            except KeyError:
                raise NameError(f"name '{name}' is not defined") from None
