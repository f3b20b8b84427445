"""Program -> text. The text holds everything, so `assemble(disassemble(p)) == p`.

    .program f
    .file ./model.py 10                                the file and the function's first line
    .param x [B,*,768]                                 name, kind unless positional, `default`, hint
    .local y t                                         further locals
    .return [B,768]
    Bytecode dump for f:
    0x0000: LOAD_TENSOR x [B,*,768]                    ; depth 0  ./model.py:11:5
    0x0001: LOAD_CONST 2.0                             ; depth 1  ./model.py:11:9
    0x0002: CALL_OP mul 0x0001 2  -> Tensor<float32,[?,512,768]> [FUSED 3 ops]   ; depth 2  ./model.py:11:5  # fp32, rank 3, C, host

Operands print by meaning: names, constants, hints; a target and a signature in hexadecimal (signature 0, not resolved, is
left out); counts in decimal, masks in binary. `$3` is entry 3 of the operand's section, where its meaning does not say
which. Behind the operands of quickened code stand the result's type (`->`), `sig=` and the decision. Behind `;` stand depth and
source position (line and column counted from 1; the assembler reads the position, not the depth or file). `#` is a comment.

A section gets directives (.const .name .capture .import .hint .signature) only where its order does not follow from its first
uses in the text.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from bcvm.bytecode import text
from bcvm.bytecode.constants import const_key
from bcvm.bytecode.dtypes import NAMES as DTYPES
from bcvm.bytecode.dtypes import short
from bcvm.bytecode.instructions import BY_OPCODE, Kind
from bcvm.bytecode.program import Annotation, Program, expect_program
from bcvm.bytecode.verifier import SECTION_OF, verify
from bcvm.errors import VerifyError

_COMMENT_COLUMN = 40
_WIDEST_COLUMN = 100  # of quickened code, whose statements are longer
_LOCALS_PER_LINE = 10
PLAIN_TYPE = re.compile(r"[^\s'\"#;]+")
PLAIN_DECISION = re.compile(r"\[[^'\"#;\n\r]*[^'\"#;\s]")


def disassemble(program: Program, annotations: bool = True) -> str:
    """The text form. `annotations=False` leaves out what quickening added. A program that the verifier rejects prints too,
    without depths. TypeError for what is no Program."""
    expect_program(program, "bcvm.disassemble")
    return _Disassembler(program, annotations).text()


def signature_text(signature: tuple[Any, ...]) -> str:
    """`fp32, rank 3, C, host | fp32, rank 1, C, host`"""
    return " | ".join(f"{short(d) if d in DTYPES else d}, rank {rank}, {layout}, {space}" for d, rank, layout, space in signature)


class _Disassembler:
    def __init__(self, program: Program, annotations: bool) -> None:
        self.program = program
        self.annotations = dict(program.annotations) if annotations else {}
        try:
            self.depths = verify(program).depths
        except VerifyError:
            self.depths = ()
        self.first: dict[str, dict[Any, int]] = {}  # section -> key of an entry -> the first index that has it
        for section in set(SECTION_OF.values()) - {"code", "signatures"}:
            index = self.first[section] = {}
            for i, entry in enumerate(getattr(program, section)):
                index.setdefault(_key(section, entry), i)

    def text(self) -> str:
        p = self.program
        lines = [self.line(at) for at in range(len(p.code))]
        widest = max((len(statement) for statement, _ in lines), default=0) if self.annotations else 0
        column = min(max(widest, _COMMENT_COLUMN), _WIDEST_COLUMN)
        body = [f"{statement:<{column}} ; {trailer}" if trailer else statement for statement, trailer in lines]
        return "\n".join([*self.header(), f"Bytecode dump for {text.name(p.name)}:", *body]) + "\n"

    # -- header
    def header(self) -> Iterable[str]:
        p = self.program
        yield f".program {text.name(p.name)}"
        if p.filename or p.first_line:
            yield f".file {self.filename()}{f' {p.first_line}' if p.first_line else ''}"
        uses = self.uses()
        for section, directive, show in _DIRECTIVES:
            entries: tuple[Any, ...] = getattr(p, section)
            preset = entries[:1] == ("...",) if section == "hints" else 0
            if list(dict.fromkeys([0] * preset + uses[section])) != list(range(len(entries))) or len(self.first[section]) != len(entries):
                yield from (f"{directive} {show(entry)}" for entry in entries[preset:])
            elif section == "imports":  # a source is only in the directive
                yield from (f"{directive} {show(entry)}" for entry in entries if any(e.source for e in entries))
        yield from (f".signature {text.literal(s)}" for s in p.signatures[1:])
        for param in p.params:
            words = [text.name(param.name)] + [param.kind] * (param.kind != "positional") + ["default"] * param.has_default
            yield f".param {' '.join(words + [self.entry('hints', param.hint)] * (param.hint != 0))}"
        rest = p.locals[len(p.params):]
        for i in range(0, len(rest), _LOCALS_PER_LINE):
            yield f".local {' '.join(map(text.name, rest[i:i + _LOCALS_PER_LINE]))}"
        if p.return_hint:
            yield f".return {self.entry('hints', p.return_hint)}"

    def uses(self) -> dict[str, list[int]]:
        """Per section the entries in the order in which the text names them."""
        uses: dict[str, list[int]] = {section: [] for section in self.first}
        uses["hints"] = [param.hint for param in self.program.params if param.hint] + [self.program.return_hint] * (self.program.return_hint != 0)
        for code in self.program.code:
            row = BY_OPCODE.get(code.opcode)
            for (_, kind), value in zip(row.operands if row else (), code.operands, strict=False):
                if SECTION_OF.get(kind) in uses:
                    uses[SECTION_OF[kind]].append(value)
        return uses

    def filename(self) -> str:
        name = self.program.filename
        return name if PLAIN_TYPE.fullmatch(name) and name.isprintable() else repr(name)

    # -- body
    def line(self, at: int) -> tuple[str, str]:
        """The statement and what stands behind its `;`."""
        p = self.program
        code = p.code[at]
        row = BY_OPCODE.get(code.opcode)
        words = [row.name] if row else ["???", f"0x{code.opcode:02x}"]
        comment = ""
        for (_, kind), value in zip(row.operands if row else (), code.operands, strict=False):
            if kind is Kind.SIGNATURE:
                if value == 0:
                    continue
                comment = signature_text(p.signatures[value]) if value < len(p.signatures) else ""
            words.append(self.operand(kind, value))
        statement = f"0x{at:04x}: {' '.join(words)}"
        annotation = self.annotations.get(at)
        if annotation is not None:
            statement += "  " + _annotation(annotation)
            comment = comment or (signature_text(p.signatures[annotation.signature]) if 0 < annotation.signature < len(p.signatures) else "")
        trailer = [f"depth {self.depths[at]}"] if self.depths and self.depths[at] >= 0 else ["unreachable"] if self.depths else []
        position = p.positions[at] if at < len(p.positions) else (0, 0)
        if position != (0, 0):
            trailer.append(f"{self.filename()}:{position[0]}:{position[1] + 1}")
        if comment and comment.isprintable():
            trailer.append(f"# {comment}")
        return statement, "  ".join(trailer)

    def operand(self, kind: Kind, value: int) -> str:
        if kind is Kind.SIGNATURE or kind is Kind.LABEL:
            return f"0x{value:04x}"
        if kind is Kind.MASK:
            return bin(value)
        section = SECTION_OF.get(kind)
        return self.entry(section, value) if section else str(value)

    def entry(self, section: str, index: int) -> str:
        entries = getattr(self.program, section)
        if not 0 <= index < len(entries) or self.first[section][_key(section, entries[index])] != index:
            return f"${index}"
        return _SHOW[section](entries[index])


def _key(section: str, entry: Any) -> Any:
    if section == "consts":
        return const_key(entry)
    return entry.name if section == "imports" else entry


def _annotation(a: Annotation) -> str:
    words = []
    if a.type or not (a.signature or a.decision):
        words.append(f"-> {a.type if PLAIN_TYPE.fullmatch(a.type) and a.type.isprintable() else repr(a.type)}")
    if a.signature:
        words.append(f"sig=0x{a.signature:04x}")
    if a.decision:
        words.append(a.decision if PLAIN_DECISION.fullmatch(a.decision) and a.decision.isprintable() else repr(a.decision))
    return " ".join(words)


_SHOW: dict[str, Callable[[Any], str]] = {
    "locals": text.name, "consts": text.literal, "names": text.name, "hints": text.hint,
    "captures": lambda c: f"{c.kind} {text.name(c.name)}",
    "imports": lambda i: text.name(i.name),
}
_DIRECTIVES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("hints", ".hint", text.hint), ("consts", ".const", text.literal), ("names", ".name", text.name), ("captures", ".capture", _SHOW["captures"]),
    ("imports", ".import", lambda i: f"{text.name(i.name)}{f' {i.source!r}' if i.source else ''}"),
)
