"""Reads the relocatable ELF objects (x86-64, little endian) that LLVM emits: as much as the loader and the symbol check need."""
from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from bcvm.errors import CompileError

SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 1, 2, 4, 8
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
RELA_SIZE = _RELA.size


class Section(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class Symbol(NamedTuple):
    """section: index of the section that defines it, 0 for none (external), 0xFFF1 for an absolute value."""

    name: str
    section: int
    value: int
    is_section: bool


@dataclass(frozen=True)
class Elf:
    data: bytes
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    def relocations(self, section: Section) -> list[tuple[int, int, int, int]]:
        """Of a SHT_RELA section: (offset, type, symbol index, addend)."""
        rows = _RELA.iter_unpack(self.data[section.offset:section.offset + section.size])
        return [(offset, info & 0xFFFFFFFF, info >> 32, addend) for offset, info, addend in rows]

    def external(self) -> list[str]:
        """Names of the symbols that the code expects from elsewhere."""
        return [s.name for s in self.symbols if s.section == 0 and s.name and s.name != "_GLOBAL_OFFSET_TABLE_"]

    def expect_complete(self, known: Container[str] = ()) -> None:
        """CompileError if the code expects other symbols from elsewhere, which it names."""
        missing = [name for name in self.external() if name not in known]
        if missing:
            raise CompileError(f"code refers to symbols outside itself: {', '.join(sorted(missing))}; reach them through the Context's table")


def _text(table: bytes, at: int) -> str:
    return table[at:table.index(b"\0", at)].decode("utf-8", "replace")


def read(data: bytes) -> Elf:
    """Parses an object file. CompileError: not a relocatable ELF object for x86-64, or a truncated one."""
    if data[:6] != b"\x7fELF\x02\x01" or data[16:20] != b"\x01\x00\x3e\x00":
        raise CompileError("not a relocatable x86-64 ELF object")
    try:
        (table_at,) = struct.unpack_from("<Q", data, 40)
        count, names_index = struct.unpack_from("<HH", data, 60)
        raw = [_SECTION.unpack_from(data, table_at + 64 * i) for i in range(count)]
        names = data[raw[names_index][4]:raw[names_index][4] + raw[names_index][5]]
        sections = tuple(Section(_text(names, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8]) for r in raw)
        for s in sections:
            if s.kind != SHT_NOBITS and s.offset + s.size > len(data):
                raise CompileError(f"truncated object: section {s.name} ends beyond the file")
        symbols: tuple[Symbol, ...] = ()
        for s in sections:
            if s.kind == SHT_SYMTAB:
                strings = data[sections[s.link].offset:sections[s.link].offset + sections[s.link].size]
                rows = _SYMBOL.iter_unpack(data[s.offset:s.offset + s.size])
                symbols = tuple(Symbol(_text(strings, name), index, value, info & 15 == 3) for name, info, _, index, value, _ in rows)
        return Elf(data, sections, symbols)
    except (struct.error, IndexError, ValueError) as e:
        raise CompileError(f"malformed object file: {e}") from None
