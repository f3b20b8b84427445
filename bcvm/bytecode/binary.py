"""The binary form, `.bc`.

    'BCVM'  major u16  minor u16                little endian
    number of sections, then per section: id, length       variable-length numbers (`wire`)
    the sections, in that order
    CRC-32 u32 of all bytes before

A reader takes files of its own major and of no higher minor. The writer stamps the lowest minor that the program's instructions
need. Sections are in ascending order of id, each exactly once. The writer has one encoding for a program.
"""
from __future__ import annotations

import struct
import zlib
from typing import Any

from bcvm.bytecode.instructions import ABI_MAJOR, ABI_MINOR, BY_OPCODE
from bcvm.bytecode.program import Annotation, Capture, Code, Import, Param, Position, Program
from bcvm.bytecode.verifier import MAX_CODE, PARAM_KINDS, verify
from bcvm.bytecode.wire import Reader, Writer
from bcvm.errors import BytecodeError

MAGIC = b"BCVM"
SECTIONS = ("general", "code", "params", "locals", "consts", "names", "captures", "imports", "hints", "signatures", "positions", "annotations")
"""By id, from 1."""
_HEADER = struct.Struct("<4sHH")
_CAPTURE_KINDS = ("closure", "global")


def encode(program: Program) -> bytes:
    """The bytes of a program. It is verified first: what could not be loaded is not written."""
    verify(program)
    out, bodies = Writer(), []
    for section in SECTIONS:
        w = Writer()
        _write(w, section, program)
        bodies.append(w.data)
    out.data += _HEADER.pack(MAGIC, ABI_MAJOR, max(BY_OPCODE[c.opcode].since[1] for c in program.code))
    out.number(len(bodies))
    for number, body in enumerate(bodies, 1):
        out.number(number)
        out.number(len(body))
    out.data += b"".join(bodies)
    return bytes(out.data) + struct.pack("<I", zlib.crc32(out.data))


def decode(data: bytes, check: bool = True) -> Program:
    """The program in these bytes, verified unless `check` is off. Any other bytes are a BytecodeError."""
    data = bytes(data)
    if data[:4] != MAGIC:
        raise BytecodeError(f"not a bytecode file: it starts with {data[:4]!r}, not {MAGIC!r}")
    if len(data) < _HEADER.size + 4:
        raise BytecodeError(f"invalid bytecode file: {len(data)} bytes are too few")
    end = len(data) - 4
    _, major, minor = _HEADER.unpack_from(data)
    if major != ABI_MAJOR:
        raise BytecodeError(f"program needs ABI {major}.{minor}, this is {ABI_MAJOR}.{ABI_MINOR}")
    crc, = struct.unpack_from("<I", data, end)
    if crc != zlib.crc32(data[:end]):
        raise BytecodeError(f"invalid bytecode file: checksum 0x{crc:08x} in the file, 0x{zlib.crc32(data[:end]):08x} of its bytes; it is damaged or cut")
    values: dict[str, Any] = {}
    for section, start, length in _section_table(data, end, minor):
        r = Reader(data, start, start + length, f"section {section}")
        values |= _READERS[section](r, minor)
        r.done()
    if minor > ABI_MINOR:
        raise BytecodeError(f"program needs ABI {major}.{minor}, this is {ABI_MAJOR}.{ABI_MINOR}")
    program = Program(**values)
    if check:
        verify(program)
    return program


def _section_table(data: bytes, end: int, minor: int) -> list[tuple[str, int, int]]:
    r = Reader(data, _HEADER.size, end, "section table")
    entries = [(r.number(), r.number()) for _ in range(r.count("sections"))]
    table, at = [], r.at
    for number, length in entries:
        if length > end - at:
            r.fail(f"section {number} of {length} bytes goes past the end")
        if 1 <= number <= len(SECTIONS):
            table.append((SECTIONS[number - 1], at, length))
        elif minor <= ABI_MINOR:
            r.fail(f"unknown section {number}")
        at += length
    if at != end:
        r.fail(f"{end - at} bytes behind the last section")
    if tuple(name for name, _, _ in table) != SECTIONS:
        r.fail("sections are missing, repeated or out of order")
    return table


# -- writing

def _write(w: Writer, section: str, p: Program) -> None:
    if section == "general":
        w.string(p.name)
        w.string(p.filename)
        w.number(p.first_line)
        w.number(p.return_hint)
        return
    items = getattr(p, section)
    w.number(len(items))
    line = column = last = 0
    for item in items:
        if section == "code":
            w.data.append(item.opcode)
            for operand in item.operands:
                w.number(operand)
        elif section == "params":
            w.string(item.name)
            w.number(PARAM_KINDS.index(item.kind))
            w.number(item.has_default)
            w.number(item.hint)
        elif section in ("consts", "signatures"):
            w.constant(item)
        elif section == "captures":
            w.number(_CAPTURE_KINDS.index(item.kind))
            w.string(item.name)
        elif section == "imports":
            w.string(item.name)
            w.string(item.source)
        elif section == "positions":
            w.signed(item.line - line)
            w.signed(item.column - column)
            line, column = item
        elif section == "annotations":
            at, annotation = item
            w.number(at - last)
            w.string(annotation.type)
            w.number(annotation.signature)
            w.string(annotation.decision)
            last = at
        else:
            w.string(item)


# -- reading; each mirrors a branch above

def _general(r: Reader, minor: int) -> dict[str, Any]:
    return {"name": r.string(), "filename": r.string(), "first_line": r.number(), "return_hint": r.number()}


def _code(r: Reader, minor: int) -> dict[str, Any]:
    count = r.count("instructions")
    if count > MAX_CODE:
        r.fail(f"{count} instructions; at most {MAX_CODE} are allowed")
    code = []
    for at in range(count):
        opcode = r.byte()
        row = BY_OPCODE.get(opcode)
        if row is None or row.since > (ABI_MAJOR, minor):
            reason = (f"program needs ABI {ABI_MAJOR}.{minor}, this is {ABI_MAJOR}.{ABI_MINOR}" if minor > ABI_MINOR
                      else f"ABI {ABI_MAJOR}.{minor} has no such instruction")
            raise BytecodeError(f"Invalid bytecode instruction: 0x{opcode:02x} at 0x{at:04x} ({reason})")
        code.append(Code(opcode, tuple([r.number() for _ in row.operands])))
    return {"code": tuple(code)}


def _params(r: Reader, minor: int) -> dict[str, Any]:
    return {"params": tuple(Param(r.string(), _choice(r, PARAM_KINDS), r.flag(), r.number()) for _ in range(r.count("parameters")))}


def _captures(r: Reader, minor: int) -> dict[str, Any]:
    return {"captures": tuple(Capture(_choice(r, _CAPTURE_KINDS), r.string()) for _ in range(r.count("captures")))}


def _imports(r: Reader, minor: int) -> dict[str, Any]:
    return {"imports": tuple(Import(r.string(), r.string()) for _ in range(r.count("imports")))}


def _positions(r: Reader, minor: int) -> dict[str, Any]:
    line = column = 0
    positions = []
    for _ in range(r.count("positions")):
        line += r.signed()
        column += r.signed()
        positions.append(Position(line, column))
    return {"positions": tuple(positions)}


def _annotations(r: Reader, minor: int) -> dict[str, Any]:
    at, annotations = 0, []
    for _ in range(r.count("annotations")):
        at += r.number()
        annotations.append((at, Annotation(r.string(), r.number(), r.string())))
    return {"annotations": tuple(annotations)}


def _choice(r: Reader, names: tuple[str, ...]) -> str:
    n = r.number()
    if n >= len(names):
        r.fail(f"{n} is none of {', '.join(names)}")
    return names[n]


def _strings(section: str) -> Any:
    return lambda r, minor: {section: tuple(r.string() for _ in range(r.count(section)))}


def _constants(section: str) -> Any:
    return lambda r, minor: {section: tuple(r.constant() for _ in range(r.count(section)))}


_READERS: dict[str, Any] = {
    "general": _general, "code": _code, "params": _params, "locals": _strings("locals"), "consts": _constants("consts"), "names": _strings("names"),
    "captures": _captures, "imports": _imports, "hints": _strings("hints"), "signatures": _constants("signatures"), "positions": _positions,
    "annotations": _annotations,
}
