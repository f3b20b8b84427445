"""Text -> program; the form is described in the disassembler.

For text written by hand: the ids before instructions may be left out, `name:` on a line of its own places a label that jumps may
name, and names and constants need no directives. Only locals are declared (.param, .local), so a misspelt one is an error.
"""
from __future__ import annotations

import re
from typing import Any

from bcvm.bytecode import text as words
from bcvm.bytecode.constants import const_key
from bcvm.bytecode.disassembler import PLAIN_DECISION, PLAIN_TYPE
from bcvm.bytecode.instructions import BY_NAME, Instruction, Kind
from bcvm.bytecode.program import Annotation, Capture, Code, Import, Param, Position, Program
from bcvm.bytecode.text import Scanner
from bcvm.bytecode.verifier import PARAM_KINDS, SECTION_OF, verify
from bcvm.errors import BytecodeError

_DUMP = "Bytecode dump for "
_ID = re.compile(r"0x([0-9a-fA-F]+):\s*")
_LABEL = re.compile(r"([^\W\d]\w*):\s*$")
_MNEMONIC = re.compile(r"[A-Z_0-9]+")
_POSITION = re.compile(r":(\d{1,10}):(\d{1,10})\s*$")
_INDEX = re.compile(r"\$(\d{1,9})")
_SIG = re.compile(r"sig=")
_CAPTURE = re.compile(r"(closure|global)\s+")


def assemble(text: str, check: bool = True) -> Program:
    """The program that a text stands for, verified unless `check` is off. BytecodeError says the line and the reason."""
    if not isinstance(text, str):
        raise TypeError(f"bcvm.assemble takes a program's text, not {type(text).__name__}")
    program = _Assembler(text).program()
    if check:
        verify(program)
    return program


class _Assembler:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.name = self.filename = ""
        self.first_line = self.return_hint = 0
        self.params: list[Param] = []
        self.locals: list[str] = []
        self.sections: dict[str, list[Any]] = {"consts": [], "names": [], "captures": [], "imports": [], "hints": ["..."]}
        self.index: dict[str, dict[Any, int]] = {section: {} for section in (*self.sections, "locals")}
        self.index["hints"]["..."] = 0
        self.signatures: list[Any] = [()]
        self.code: list[tuple[int, list[int | str], int]] = []  # opcode, operands (label names unresolved), line
        self.positions: list[Position] = []
        self.annotations: list[tuple[int, Annotation]] = []
        self.labels: dict[str, int] = {}

    def program(self) -> Program:
        for number, line in enumerate(self.lines, 1):
            statement, trailer = words.split_line(line.rstrip("\r"))
            try:
                self.statement(statement.strip(), trailer, number)
            except ValueError as e:
                raise BytecodeError(f"assembly line {number}: {e}") from None
        if not self.name:
            raise BytecodeError("assembly: the program has no name; start with `.program NAME`")
        return Program(
            name=self.name, filename=self.filename, code=tuple(map(self.resolve, range(len(self.code)))), params=tuple(self.params),
            locals=tuple(self.locals), **{s: tuple(entries) for s, entries in self.sections.items()}, signatures=tuple(self.signatures),
            return_hint=self.return_hint, positions=tuple(self.positions), annotations=tuple(self.annotations), first_line=self.first_line)

    def resolve(self, at: int) -> Code:
        opcode, operands, line = self.code[at]
        for operand in operands:
            if isinstance(operand, str) and operand not in self.labels:
                raise BytecodeError(f"assembly line {line}: there is no label {operand!r}")
        return Code(opcode, tuple(self.labels[o] if isinstance(o, str) else o for o in operands))

    def statement(self, statement: str, trailer: str, number: int) -> None:
        if not statement:
            return
        if statement.startswith(_DUMP):
            s = Scanner(statement[len(_DUMP):])
            self.set_name(s.name("the program's name"))
            if not s.take(":"):
                s.fail("':'")
            s.end()
        elif statement.startswith("."):
            self.directive(statement)
        elif m := _LABEL.match(statement):
            if m.group(1) in self.labels:
                raise ValueError(f"label {m.group(1)!r} is placed twice")
            self.labels[m.group(1)] = len(self.code)
        else:
            self.instruction(Scanner(statement), trailer, number)

    def set_name(self, name: str) -> None:
        if self.name and name != self.name:
            raise ValueError(f"the program's name is {self.name!r} above and {name!r} here")
        self.name = name

    # -- directives
    def directive(self, statement: str) -> None:
        word, rest = (*statement.split(None, 1), "")[:2]
        s = Scanner(rest)
        if word == ".program":
            self.set_name(s.name("the program's name"))
        elif word == ".file":
            m = None if s.looking_at("'", '"') else s.match(PLAIN_TYPE)
            self.filename = m.group() if m else s.string("a file name")
            self.first_line = s.number("the first line") if s.more() else 0
        elif word == ".param":
            self.param(s)
        elif word == ".local":
            while s.more():
                self.add_local(s.name("a local's name"))
        elif word == ".return":
            self.return_hint = self.entry(s, Kind.HINT)
        elif word == ".signature":
            self.signatures.append(s.literal())
        elif word == ".const":
            self.add("consts", s.literal())
        elif word == ".name":
            self.add("names", s.name("a name"))
        elif word == ".hint":
            self.add("hints", s.hint())
        elif word == ".capture":
            self.add("captures", self.capture(s))
        elif word == ".import":
            self.add("imports", Import(s.name("an import's name"), s.string("source text") if s.more() else ""))
        else:
            raise ValueError(f"unknown directive {word!r}")
        s.end()

    def param(self, s: Scanner) -> None:
        if len(self.params) != len(self.locals):
            raise ValueError("parameters come before other locals")
        name, kind = s.name("a parameter's name"), "positional"
        for k in sorted(PARAM_KINDS, key=len, reverse=True):
            if s.take(k):
                kind = k
                break
        default = s.take("default")
        self.params.append(Param(name, kind, default, self.entry(s, Kind.HINT) if s.more() else 0))
        self.add_local(name)

    def add_local(self, name: str) -> None:
        self.index["locals"].setdefault(name, len(self.locals))
        self.locals.append(name)

    def capture(self, s: Scanner) -> Capture:
        m = s.match(_CAPTURE)
        return Capture(m.group(1), s.name("a captured name")) if m else s.fail("'closure' or 'global' and a name")

    def add(self, section: str, value: Any) -> int:
        entries = self.sections[section]
        entries.append(value)
        return self.index[section].setdefault(_key(section, value), len(entries) - 1)

    def find(self, section: str, value: Any) -> int:
        index = self.index[section].get(_key(section, value))
        return self.add(section, value) if index is None else index

    # -- body
    def instruction(self, s: Scanner, trailer: str, number: int) -> None:
        at = len(self.code)
        if (m := s.match(_ID)) and int(m.group(1), 16) != at:
            raise ValueError(f"this is instruction 0x{at:04x}, not 0x{m.group(1)}; ids may be left out")
        m = s.match(_MNEMONIC)
        row = BY_NAME.get(m.group()) if m else None
        if row is None:
            raise ValueError(f"there is no instruction {m.group()!r}") if m else ValueError(f"expected an instruction, found {s.rest()[:60]!r}")
        self.code.append((row.opcode, self.operands(s, row), number))
        if s.more():
            self.annotations.append((at, self.annotation(s)))
        position = _POSITION.search(trailer)
        self.positions.append(Position(int(position.group(1)), max(int(position.group(2)) - 1, 0)) if position else Position(0, 0))

    def operands(self, s: Scanner, row: Instruction) -> list[int | str]:
        out: list[int | str] = []
        for name, kind in row.operands:
            try:
                out.append(self.entry(s, kind))
            except ValueError as e:
                raise ValueError(f"{row.name}, operand {name} ({kind.value}): {e}") from None
        return out

    def entry(self, s: Scanner, kind: Kind) -> Any:
        """One operand: the index of an entry, a number, or a label's name."""
        if m := s.match(_INDEX):
            return int(m.group(1))
        section = SECTION_OF.get(kind)
        if kind is Kind.LABEL:
            return s.number("an instruction id") if s.looking_at(*"0123456789") else s.name("a label or an instruction id")
        if kind is Kind.SIGNATURE:
            return s.number("a signature") if s.looking_at("0x") else 0
        if section is None:
            return s.number("a number")
        if kind is Kind.LOCAL:
            name = s.name("a local's name")
            if name not in self.index["locals"]:
                raise ValueError(f"there is no local {name!r}; declare it with `.local {words.name(name)}`")
            return self.index["locals"][name]
        if kind is Kind.IMPORT:
            return self.find("imports", Import(s.name("an import's name")))
        if kind is Kind.CONST:
            return self.find(section, s.literal())
        if kind is Kind.HINT:
            return self.find(section, s.hint())
        return self.find(section, self.capture(s) if kind is Kind.CAPTURE else s.name("a name"))

    def annotation(self, s: Scanner) -> Annotation:
        kind, signature, decision = "", 0, ""
        if s.take("->"):
            m = None if s.looking_at("'", '"') else s.match(PLAIN_TYPE)
            kind = m.group() if m else s.string("a type")
        if s.match(_SIG):
            signature = s.number("a signature")
        if s.more():
            m = s.match(PLAIN_DECISION)
            decision = m.group() if m else s.string("the end of the line, `-> type`, `sig=` or a decision in brackets")
        s.end()
        return Annotation(kind, signature, decision)


def _key(section: str, value: Any) -> Any:
    if section == "consts":
        return const_key(value)
    return value.name if section == "imports" else value
