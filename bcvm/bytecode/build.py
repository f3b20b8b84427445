"""ProgramBuilder: how a program is made.

    b = ProgramBuilder("f", "./model.py", 10)
    b.param("x", hint_text="B, *, 768")
    b.at(11, 4)
    b.emit("LOAD_TENSOR", 0, b.hint("B, *, 768"))
    b.emit("LOAD_CONST", b.const(2.0))
    b.emit("CALL_OP", b.name("mul"), 0, 2)
    b.emit("RETURN")
    program = b.finish()

Everything that a section holds is interned: the same constant, name or hint gets the same index.
"""
from __future__ import annotations

from typing import Any, cast

from bcvm.bytecode import hint_text as hints
from bcvm.bytecode.constants import const_key
from bcvm.bytecode.instructions import BY_NAME, Kind
from bcvm.bytecode.program import Annotation, Capture, Code, Import, Param, Position, Program
from bcvm.errors import BytecodeError


class Label:
    """A place in the code, used before or after it is known."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id: int | None = None


Operand = int | Label


class ProgramBuilder:
    """Collects the sections and the code of one program; see the module. Wrong use is a BytecodeError at once."""

    def __init__(self, name: str, filename: str = "", first_line: int = 0) -> None:
        self.program_name, self.filename, self.first_line = name, filename, first_line
        self._code: list[Code] = []
        self._jumps: dict[int, tuple[Operand, ...]] = {}  # operands of instructions that have labels
        self._positions: list[Position] = []
        self._position = Position(0, 0)
        self._params: list[Param] = []
        self._locals: dict[str, int] = {}
        self._consts: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self._names: dict[str, int] = {}
        self._captures: dict[Capture, int] = {}
        self._imports: dict[str, tuple[int, Import]] = {}
        self._hints: dict[str, int] = {"...": 0}
        self._signatures: dict[tuple[Any, ...], int] = {(): 0}
        self._annotations: dict[int, Annotation] = {}
        self._return_hint = 0

    # -- sections
    def param(self, name: str, kind: str = "positional", has_default: bool = False, hint_text: str = "") -> int:
        """The next parameter; returns its local. All parameters come before any other local."""
        if len(self._params) != len(self._locals):
            raise self._error(f"parameter {name!r} comes after other locals")
        if name in self._locals:
            raise self._error(f"parameter {name!r} exists already")
        self._params.append(Param(name, kind, has_default, self.hint(hint_text) if hint_text else 0))
        return self.local(name)

    def local(self, name: str) -> int:
        """The local of this name, made if it is new."""
        return self._locals.setdefault(name, len(self._locals))

    add_local = local

    def const(self, value: Any) -> int:
        """The index of a constant: exact in type and sign, so 1, True, 1.0 and -0.0, 0.0 are different ones."""
        try:
            key = const_key(value)
        except TypeError as e:
            raise self._error(str(e)) from None
        return self._consts.setdefault(key, (len(self._consts), value))[0]

    def name(self, name: str) -> int:
        """The index of an attribute, op or policy name."""
        return self._names.setdefault(name, len(self._names))

    def capture(self, kind: str, name: str) -> int:
        """The index of a captured name; kind is 'closure' or 'global'."""
        if kind not in ("closure", "global"):
            raise self._error(f"capture {name!r} is 'closure' or 'global', not {kind!r}")
        return self._captures.setdefault(Capture(kind, name), len(self._captures))

    def add_import(self, name: str, source: str = "") -> int:
        """The index of a Python callable for CALL_PY. Names are what a loader binds by, so each has one source."""
        index, known = self._imports.setdefault(name, (len(self._imports), Import(name, source)))
        if known.source != source:
            raise self._error(f"import {name!r} exists already with other source text; give it a name of its own")
        return index

    def hint(self, text: str) -> int:
        """The index of a shape hint, in canonical spelling; 0 is "no constraint"."""
        try:
            spelled = hints.canonical(text)
        except ValueError as e:
            raise self._error(str(e)) from None
        return self._hints.setdefault(spelled, len(self._hints))

    def signature(self, operands: tuple[Any, ...]) -> int:
        """The index of a signature: (dtype, rank, layout, space) per operand."""
        return self._signatures.setdefault(operands, len(self._signatures))

    def return_hint(self, text: str) -> None:
        self._return_hint = self.hint(text)

    # -- code
    @property
    def next_id(self) -> int:
        """The id of the instruction that is emitted next."""
        return len(self._code)

    def label(self) -> Label:
        return Label()

    new_label = label

    def place(self, label: Label) -> None:
        """The label is the next instruction."""
        if label.id is not None:
            raise self._error(f"a label is placed twice: at 0x{label.id:04x} and at 0x{len(self._code):04x}")
        label.id = len(self._code)

    def at(self, line: int, column: int = 0) -> None:
        """The source position (line 1-based, column 0-based) of what is emitted from here on."""
        self._position = Position(line, column)

    def emit(self, name: str, *operands: Operand) -> int:
        """Append an instruction, return its id. Operands are indices and counts in the table's order, or Labels."""
        row = BY_NAME.get(name)
        if row is None:
            raise self._error(f"there is no instruction {name!r}")
        if len(operands) != len(row.operands):
            expected = ", ".join(f"{n} ({k.value})" for n, k in row.operands) or "nothing"
            raise self._error(f"{name} takes {expected}; given: {operands!r}")
        for i, value in enumerate(operands):
            if type(value) is int and value >= 0:
                continue
            operand, kind = row.operands[i]
            if not isinstance(value, Label):
                raise self._error(f"{name}: {operand} is a number >= 0, not {value!r}")
            if kind is not Kind.LABEL:
                raise self._error(f"{name}: {operand} is a {kind.value}, not a label")
            self._jumps[len(self._code)] = operands
        self._code.append(Code(row.opcode, cast("tuple[int, ...]", operands)))
        self._positions.append(self._position)
        return len(self._code) - 1

    def annotate(self, instruction: int, annotation: Annotation) -> None:
        self._annotations[instruction] = annotation

    def finish(self) -> Program:
        """The program, not verified yet (`bcvm.bytecode.verifier.verify`). A label that was never placed is a BytecodeError."""
        code = list(self._code)
        for at, operands in self._jumps.items():
            code[at] = Code(code[at].opcode, tuple(self._place(at, o) for o in operands))
        return Program(
            name=self.program_name, filename=self.filename, code=tuple(code),
            params=tuple(self._params), locals=tuple(self._locals), consts=tuple(v for _, v in self._consts.values()),
            names=tuple(self._names), captures=tuple(self._captures), imports=tuple(i for _, i in self._imports.values()),
            hints=tuple(self._hints), signatures=tuple(self._signatures), return_hint=self._return_hint,
            positions=tuple(self._positions), annotations=tuple(sorted(self._annotations.items())), first_line=self.first_line)

    def _place(self, at: int, operand: Operand) -> int:
        place = operand.id if isinstance(operand, Label) else operand
        if place is None:
            raise self._error(f"the label that instruction 0x{at:04x} jumps to was never placed")
        return place

    def _error(self, reason: str) -> BytecodeError:
        return BytecodeError(f"program {self.program_name}: {reason}")
