"""Reads the machine code of a stencil: where each instruction names a vector or mask register, and where it reads a constant.

Only what stencils are made of is understood: EVEX instructions on registers (or with one rip-relative operand), and VEX instructions on mask
registers. Anything else is refused, so that a stencil is either understood whole or not used.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from bcvm.errors import Unsupported

# How a register number is written: in which bits of an instruction. The first three are vector registers of an EVEX instruction
# (shift: its first byte), the last two mask registers (shift: the byte that has the field).
REG, VVVV, RM, MASK_HIGH, MASK_LOW = range(5)
_PREFIX, _VVVV, _HIGH, _OPCODE, _MODRM = 1, 2, 3, 4, 5  # bytes of an EVEX instruction


def _pattern(kind: int, register: int) -> int:
    """What to flip in an instruction that names register 0, as a little-endian number."""
    low, bit3, bit4 = register & 7, register >> 3 & 1, register >> 4 & 1
    if kind == REG:
        return low << (8 * _MODRM + 3) | bit3 << (8 * _PREFIX + 7) | bit4 << (8 * _PREFIX + 4)
    if kind == VVVV:
        return (low | bit3 << 3) << (8 * _VVVV + 3) | bit4 << (8 * _HIGH + 3)
    if kind == RM:
        return low << (8 * _MODRM) | bit3 << (8 * _PREFIX + 5) | bit4 << (8 * _PREFIX + 6)
    return low << 3 if kind == MASK_HIGH else low


PATTERNS: tuple[tuple[int, ...], ...] = tuple(tuple(_pattern(kind, r) for r in range(32 if kind <= RM else 8)) for kind in range(5))

_IMMEDIATE = {1: frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6)), 2: frozenset(), 3: frozenset(range(256))}
# (map, opcode) whose modrm.reg is a mask register
_TO_MASK = frozenset([(1, 0xC2), (1, 0x64), (1, 0x65), (1, 0x66), (1, 0x74), (1, 0x75), (1, 0x76), (2, 0x29), (2, 0x37), (2, 0x26), (2, 0x27),
                      (3, 0x1E), (3, 0x1F), (3, 0x3E), (3, 0x3F), (3, 0x66), (3, 0x67)])
_SHIFT_GROUP = frozenset([(1, 0x71), (1, 0x72), (1, 0x73)])  # modrm.reg belongs to the opcode


@dataclass
class Instruction:
    """fields: (vector register?, number, kind, position of the byte that the kind counts from). constant: position of the 32-bit distance of a
    rip-relative operand, or -1."""

    at: int
    size: int
    fields: list[tuple[bool, int, int, int]] = field(default_factory=list)
    constant: int = -1


def decode(code: bytes, lowest: int) -> list[Instruction]:
    """The instructions before the return; what is behind it is padding. lowest: the code names no vector register below it, so a field that does is not in use
    (or an opcode's). Unsupported: an instruction that stencils cannot have."""
    out: list[Instruction] = []
    at = 0
    while code[at:at + 1] != b"\xc3":
        if at + 6 > len(code):
            raise Unsupported("code that does not end with a return")
        first = code[at]
        if first == 0x62:
            out.append(_evex(code, at, lowest))
        elif first in (0xC4, 0xC5):
            out.append(_vex(code, at))
        else:
            raise Unsupported(f"an instruction that starts with {first:#x}")
        at += out[-1].size
    return out


def _evex(code: bytes, at: int, lowest: int) -> Instruction:
    p0, p1, p2, opcode, modrm = code[at + 1:at + 6]
    table, mode = p0 & 7, modrm >> 6
    key = (table, opcode)
    if table not in _IMMEDIATE:
        raise Unsupported(f"an instruction of opcode map {table}")
    size = 6 + (opcode in _IMMEDIATE[table])
    one = Instruction(at, size)
    low_mask = p2 & 7
    if low_mask:
        one.fields.append((False, low_mask, MASK_LOW, at + _HIGH))
    reg = (modrm >> 3 & 7) | (~p0 >> 4 & 8) | (~p0 & 16)
    vvvv = (~p1 >> 3 & 15) | (~p2 << 1 & 16)
    rm = (modrm & 7) | (~p0 >> 2 & 8) | (~p0 >> 2 & 16)
    from_mask = table == 2 and opcode in (0x28, 0x38) and p1 & 3 == 2
    if key in _TO_MASK or key == (2, 0x39) and p1 & 3 == 2:
        one.fields.append((False, reg & 7, MASK_HIGH, at + _MODRM))
    elif reg >= lowest:
        one.fields.append((True, reg, REG, at))
    elif key not in _SHIFT_GROUP:
        raise Unsupported(f"opcode {opcode:#x} names register {reg}")
    if vvvv >= lowest:
        one.fields.append((True, vvvv, VVVV, at))
    elif vvvv:
        raise Unsupported(f"opcode {opcode:#x} names register {vvvv}")
    if mode == 3:
        if from_mask:
            one.fields.append((False, rm & 7, MASK_LOW, at + _MODRM))
        elif rm >= lowest:
            one.fields.append((True, rm, RM, at))
        else:
            raise Unsupported(f"opcode {opcode:#x} names register {rm}")
    elif mode == 0 and modrm & 7 == 5:
        one.constant, one.size = at + 6, size + 4
    else:
        raise Unsupported("a memory operand")
    return one


def _vex(code: bytes, at: int) -> Instruction:
    """Instructions on mask registers."""
    if code[at] == 0xC5:
        p, table, head = code[at + 1], 1, 2
    else:
        p, table, head = code[at + 2], code[at + 1] & 31, 3
    opcode, modrm = code[at + head], code[at + head + 1]
    if modrm >> 6 != 3:
        raise Unsupported("a mask in memory")
    one = Instruction(at, head + 2)
    place = at + head + 1
    if table == 1 and opcode in (0x41, 0x42, 0x45, 0x46, 0x47, 0x4A, 0x4B):
        one.fields.append((False, ~p >> 3 & 7, MASK_HIGH, at + head - 1))
    elif table == 3 and opcode in (0x30, 0x31, 0x32, 0x33):
        one.size += 1
    elif not (table == 1 and opcode in (0x44, 0x90)):
        raise Unsupported(f"a VEX instruction {opcode:#x}")
    one.fields += [(False, modrm >> 3 & 7, MASK_HIGH, place), (False, modrm & 7, MASK_LOW, place)]
    return one
