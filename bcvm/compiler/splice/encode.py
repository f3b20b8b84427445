"""The few x86-64 instructions that a spliced kernel has around its stencils. Registers are numbers; most functions are cached, for the same few are asked for
again and again."""
from __future__ import annotations

import struct
from functools import cache, lru_cache

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
VZEROUPPER, RET, ZERO_RESULT = b"\xc5\xf8\x77", b"\xc3", b"\x31\xc0"
TAIL_MASK = 1  # the mask register of a row's ragged end

_NOPS = (b"", b"\x90", b"\x66\x90", b"\x0f\x1f\x00", b"\x0f\x1f\x40\x00", b"\x0f\x1f\x44\x00\x00", b"\x66\x0f\x1f\x44\x00\x00", b"\x0f\x1f\x80\x00\x00\x00\x00",
         b"\x0f\x1f\x84\x00\x00\x00\x00\x00")


@cache
def padding(size: int) -> bytes:
    return _NOPS[8] * (size // 8) + _NOPS[size % 8]


# -- general registers


def _rex(reg: int, base: int) -> int:
    return 0x48 | reg >> 3 << 2 | base >> 3


def _memory(reg: int, base: int, offset: int) -> bytes:
    """modrm and what follows of [base + offset]."""
    sib = b"\x24" if base & 7 == RSP else b""
    if -128 <= offset < 128:
        return bytes((0x40 | (reg & 7) << 3 | base & 7,)) + sib + struct.pack("<b", offset)
    return bytes((0x80 | (reg & 7) << 3 | base & 7,)) + sib + struct.pack("<i", offset)


@cache
def load(reg: int, base: int, offset: int) -> bytes:
    return bytes((_rex(reg, base), 0x8B)) + _memory(reg, base, offset)


@cache
def store(reg: int, base: int, offset: int) -> bytes:
    return bytes((_rex(reg, base), 0x89)) + _memory(reg, base, offset)


@cache
def add_from(reg: int, base: int, offset: int) -> bytes:
    """reg += [base + offset]"""
    return bytes((_rex(reg, base), 0x03)) + _memory(reg, base, offset)


@cache
def add_to(reg: int, base: int, offset: int) -> bytes:
    """[base + offset] += reg"""
    return bytes((_rex(reg, base), 0x01)) + _memory(reg, base, offset)


@cache
def compare_with(reg: int, base: int, offset: int) -> bytes:
    """cmp reg, [base + offset]"""
    return bytes((_rex(reg, base), 0x3B)) + _memory(reg, base, offset)


@cache
def decrement(base: int, offset: int) -> bytes:
    return bytes((_rex(0, base), 0xFF)) + _memory(1, base, offset)


@cache
def compare_memory(base: int, offset: int, value: int) -> bytes:
    """cmp qword [base + offset], value"""
    short = -128 <= value < 128
    return bytes((_rex(0, base), 0x83 if short else 0x81)) + _memory(7, base, offset) + struct.pack("<b" if short else "<i", value)


@cache
def move(to: int, source: int) -> bytes:
    return bytes((_rex(source, to), 0x89, 0xC0 | (source & 7) << 3 | to & 7))


@cache
def add(to: int, other: int) -> bytes:
    return bytes((_rex(other, to), 0x01, 0xC0 | (other & 7) << 3 | to & 7))


@cache
def at_most(reg: int, other: int) -> bytes:
    """reg = min(reg, other), signed"""
    return compare(reg, other) + bytes((_rex(reg, other), 0x0F, 0x4F, 0xC0 | (reg & 7) << 3 | other & 7))


def small_number(reg: int, value: int) -> bytes:
    """A number below 2^32; 5 bytes; reg below 8."""
    return struct.pack("<BI", 0xB8 | reg, value)


@cache
def subtract(to: int, other: int) -> bytes:
    return bytes((_rex(other, to), 0x29, 0xC0 | (other & 7) << 3 | to & 7))


def _number(reg: int, operation: int, value: int) -> bytes:
    short = -128 <= value < 128
    return bytes((_rex(0, reg), 0x83 if short else 0x81, 0xC0 | operation << 3 | reg & 7)) + struct.pack("<b" if short else "<i", value)


@cache
def and_number(reg: int, value: int) -> bytes:
    return _number(reg, 4, value)


@cache
def add_number(reg: int, value: int) -> bytes:
    return _number(reg, 0, value)


@cache
def compare(a: int, b: int) -> bytes:
    return bytes((_rex(b, a), 0x39, 0xC0 | (b & 7) << 3 | a & 7))


@cache
def test(reg: int) -> bytes:
    return bytes((_rex(reg, reg), 0x85, 0xC0 | (reg & 7) << 3 | reg & 7))


@cache
def test_rcx(bit: int) -> bytes:
    return bytes((0xF6, 0xC1, bit))


@cache
def frame_address(reg: int, offset: int) -> bytes:
    """reg = rsp + offset"""
    return bytes((_rex(reg, RSP), 0x8D)) + _memory(reg, RSP, offset)


def number(reg: int, value: int) -> bytes:
    """A 64-bit number in a register."""
    return bytes((0x48 | reg >> 3, 0xB8 | reg & 7)) + struct.pack("<Q", value & (1 << 64) - 1)


@cache
def push(reg: int) -> bytes:
    return (b"\x41" if reg >> 3 else b"") + bytes((0x50 | reg & 7,))


@cache
def pop(reg: int) -> bytes:
    return (b"\x41" if reg >> 3 else b"") + bytes((0x58 | reg & 7,))


JB, JAE, JE, JNE, JNS, JLE, JG = 0x82, 0x83, 0x84, 0x85, 0x89, 0x8E, 0x8F


def jump_if(condition: int, distance: int) -> bytes:
    """distance: from the end of the jump, which has 6 bytes."""
    return b"\x0f" + struct.pack("<Bi", condition, distance)


def jump(distance: int) -> bytes:
    """5 bytes."""
    return struct.pack("<Bi", 0xE9, distance)


# -- vectors and masks


def _evex(table: int, prefix: int, wide: int, length: int, reg: int, base: int, mask: int = 0, index: int = 0) -> bytes:
    p0 = (~reg >> 3 & 1) << 7 | (~index >> 3 & 1) << 6 | (~base >> 3 & 1) << 5 | (~reg >> 4 & 1) << 4 | table
    return bytes((0x62, p0, wide << 7 | 0x7C | prefix, (mask > 0) << 7 | length << 5 | 8 | mask))


# (opcode map, prefix, W, opcode of a load, opcode of a store) by element size
_MOVES = {4: (1, 0, 0, 0x10, 0x11), 8: (1, 1, 1, 0x10, 0x11), 1: (1, 3, 0, 0x6F, 0x7F)}
_LENGTH = {64: 2, 32: 1, 16: 0, 8: 0}


@cache
def element(reg: int, base: int, size: int, lanes: int, masked: bool, storing: bool) -> bytes:
    """Load or store lanes at [base + rax * size]; masked: those of TAIL_MASK, the others are 0 and not touched."""
    width = size * lanes
    table, prefix, wide, *opcodes = _MOVES[size]
    opcode = opcodes[storing]
    if width == 8 and not masked:
        prefix, wide, opcode = (1, 1, 0xD6) if storing else (2, 1, 0x7E)
    mask = TAIL_MASK if masked else 0
    head = _evex(table, prefix, wide, _LENGTH[width], reg, base, mask)
    if storing:
        head = head[:3] + bytes((head[3] & 0x7F,))  # a masked store merges
    scale = {1: 0, 4: 2, 8: 3}[size]
    fixed = base & 7 == RBP  # needs a displacement
    return head + bytes((opcode, (0x44 if fixed else 0x04) | (reg & 7) << 3, scale << 6 | RAX << 3 | base & 7)) + (b"\0" if fixed else b"")


@cache
def slot(reg: int, offset: int, storing: bool) -> bytes:
    """A whole vector register to or from [rsp + offset]."""
    return _evex(1, 0, 0, 2, reg, RSP) + bytes((0x11 if storing else 0x10, 0x84 | (reg & 7) << 3, 0x24)) + struct.pack("<i", offset)


@cache
def mask_slot(reg: int, offset: int, storing: bool) -> bytes:
    return bytes((0xC4, 0xE1, 0xF8, 0x91 if storing else 0x90, 0x84 | reg << 3, 0x24)) + struct.pack("<i", offset)


@cache
def broadcast_from(reg: int, base: int, size: int) -> bytes:
    """The element at [base] in all lanes."""
    return _evex(2, 1, size == 8, 2, reg, base) + bytes((0x19 if size == 8 else 0x18, (reg & 7) << 3 | base & 7))


@cache
def broadcast_low(reg: int, size: int) -> bytes:
    """A register's first element in all its lanes."""
    index = reg >> 1 & 8  # the fifth bit of a register in modrm.rm
    return _evex(2, 1, size == 8, 2, reg, reg, 0, index) + bytes((0x19 if size == 8 else 0x18, 0xC0 | (reg & 7) << 3 | reg & 7))


@cache
def pooled(reg: int, base: int, offset: int, size: int) -> bytes:
    """A constant of the pool at [base + offset] in all lanes; one of 64 bytes as it is."""
    table, prefix, wide, opcode = {4: (2, 1, 0, 0x18), 8: (2, 1, 1, 0x19), 64: (1, 0, 0, 0x10)}[size]
    return _evex(table, prefix, wide, 2, reg, base) + bytes((opcode, 0x80 | (reg & 7) << 3 | base & 7)) + struct.pack("<i", offset)


@lru_cache(maxsize=4096)
def constant(reg: int, bits: int, size: int) -> bytes:
    """A constant in all lanes, by its bits; through rax."""
    if bits == 0:
        return zero(reg)
    head = _evex(2, 1, size == 8, 2, reg, RAX) + bytes((0x7C, 0xC0 | (reg & 7) << 3))
    return (b"\x48\xb8" + struct.pack("<Q", bits) if size == 8 else b"\xb8" + struct.pack("<I", bits)) + head


@cache
def vector(to: int, source: int, size: int = 4, masked: bool = False) -> bytes:
    """A whole vector; masked: the lanes of TAIL_MASK only, the others stay."""
    head = _evex(1, size == 8, size == 8, 2, to, source, TAIL_MASK * masked, source >> 1 & 8)
    return head[:3] + bytes((head[3] & 0x7F, 0x28, 0xC0 | (to & 7) << 3 | source & 7))


@cache
def upper(to: int, source: int, size: int) -> bytes:
    """The upper half of the first 2 * size bytes of a vector, to the start of another."""
    if size == 32:
        return _evex(3, 1, 1, 2, source, to, 0, to >> 1 & 8) + bytes((0x1B, 0xC0 | (source & 7) << 3 | to & 7, 1))  # vextractf64x4
    if size == 16:
        return _evex(3, 1, 0, 1, source, to, 0, to >> 1 & 8) + bytes((0x19, 0xC0 | (source & 7) << 3 | to & 7, 1))  # vextractf32x4
    return _evex(1, 1, 0, 0, to, source, 0, source >> 1 & 8) + bytes((0x70, 0xC0 | (to & 7) << 3 | source & 7, 0x4E if size == 8 else 0x01))  # vpshufd


@cache
def store_first(reg: int, base: int, size: int) -> bytes:
    """The first element of a vector to [base]."""
    return _evex(1, 3 if size == 8 else 2, size == 8, 0, reg, base) + bytes((0x11, (reg & 7) << 3 | base & 7))


@cache
def store_mask(reg: int, base: int) -> bytes:
    """The first lane of a mask as a bool to [base]; changes eax. base: r8 to r15, not r12 or r13."""
    return bytes((0xC5, 0xF8, 0x93, 0xC0 | reg)) + b"\x83\xe0\x01" + bytes((0x41, 0x88, base & 7))


@cache
def zero(reg: int) -> bytes:
    """vpxord reg, reg, reg"""
    head = _evex(1, 1, 0, 2, reg, reg, 0, reg >> 1 & 8)
    p1, p2 = head[2] & 0x87 | (~reg & 15) << 3, head[3] & 0xF7 | (~reg >> 4 & 1) << 3
    return head[:2] + bytes((p1, p2, 0xEF, 0xC0 | (reg & 7) << 3 | reg & 7))


@cache
def mask_constant(reg: int, value: bool) -> bytes:
    return bytes((0xC4, 0xE1, 0x84 | (~reg & 15) << 3, 0x46 if value else 0x47, 0xC0 | reg << 3 | reg))


@cache
def mask_from(reg: int, general: int) -> bytes:
    """kmovq reg, general"""
    return bytes((0xC4, 0xE1 if general < 8 else 0xC1, 0xFB, 0x92, 0xC0 | reg << 3 | general & 7))


@cache
def mask_splat(reg: int, base: int) -> bytes:
    """The bool at [base] in all lanes of a mask; changes rax."""
    low = bytes((0x0F, 0xB6, base & 7))
    byte = (b"\x41" if base >> 3 else b"") + low            # movzx eax, byte [base]
    return byte + b"\xf7\xd8\x48\x19\xc0" + mask_from(reg, RAX)  # neg eax; sbb rax, rax


@cache
def mask_widen(reg: int) -> bytes:
    """A mask's first lane in all lanes; changes rax."""
    to_general = bytes((0xC5, 0xF8, 0x93, 0xC0 | reg))       # kmovw eax, reg
    return to_general + b"\x83\xe0\x01\x48\xf7\xd8" + mask_from(reg, RAX)  # and eax, 1; neg rax


@cache
def tail_mask() -> bytes:
    """TAIL_MASK = the lanes before the end r9 of a row, at index rax; changes r8 and r10."""
    return (move(R10, R9) + subtract(R10, RAX) + b"\x49\xc7\xc0\xff\xff\xff\xff"  # mov r8, -1
            + b"\xc4\x42\xa8\xf5\xc0"                                             # bzhi r8, r8, r10
            + mask_from(TAIL_MASK, R8))
