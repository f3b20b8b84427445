"""The binary form: ABI versions, damage, bounds."""
from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from dataclasses import replace

import pytest

from bcvm.bytecode import binary
from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.binary import decode, encode
from bcvm.bytecode.instructions import ABI_MAJOR, ABI_MINOR, BY_OPCODE, Instruction
from bcvm.bytecode.program import Program
from bcvm.bytecode.wire import Writer
from bcvm.errors import BytecodeError, VerifyError

TEXT = ".program f\n.file ./m.py 3\n.param x [B,*]\nLOAD_TENSOR x [B,*] ; m.py:4:5\nLOAD_CONST (1, 2.5, 'a')\nCALL_OP add 2\nRETURN"
PROGRAM = assemble(TEXT)
DATA = encode(PROGRAM)
CODE = bytes([1, 0, 1, 2, 0, 0x20, 0, 0, 2, 0x24])


def sealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def stamped(data: bytes, minor: int) -> bytes:
    return sealed(data[:6] + struct.pack("<H", minor) + data[8:])


def test_file_starts_with_magic_and_version_and_is_small() -> None:
    assert DATA[:8] == b"BCVM" + struct.pack("<HH", ABI_MAJOR, 0)
    assert CODE in DATA
    assert len(DATA) < 120


def test_unknown_instruction_of_a_newer_abi(monkeypatch: pytest.MonkeyPatch) -> None:
    program = assemble(".program f\n" + "NOP\n" * 0x42 + "NOP\nLOAD_CONST 1\nRETURN")
    data = encode(program).replace(bytes(0x43) + b"\x02\x00", bytes(0x42) + b"\x1a\x02\x00")
    monkeypatch.setattr(binary, "ABI_MINOR", 2)
    with pytest.raises(BytecodeError) as error:
        decode(stamped(data, 3))
    assert str(error.value) == "Invalid bytecode instruction: 0x1a at 0x0042 (program needs ABI 1.3, this is 1.2)"
    with pytest.raises(BytecodeError) as error:
        decode(stamped(data, 1))
    assert str(error.value) == "Invalid bytecode instruction: 0x1a at 0x0042 (ABI 1.1 has no such instruction)"


def test_lower_minor_is_taken_and_higher_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BytecodeError, match=rf"^program needs ABI 1\.{ABI_MINOR + 1}, this is 1\.{ABI_MINOR}$"):
        decode(stamped(DATA, ABI_MINOR + 1))
    monkeypatch.setattr(binary, "ABI_MINOR", 5)
    assert decode(DATA) == PROGRAM


def test_other_major_is_not_taken() -> None:
    with pytest.raises(BytecodeError, match=r"program needs ABI 2\.0, this is 1\."):
        decode(sealed(DATA[:4] + struct.pack("<HH", 2, 0) + DATA[8:]))


def test_writer_stamps_the_lowest_minor_that_the_instructions_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "ABI_MINOR", 7)
    assert struct.unpack_from("<HH", encode(PROGRAM), 4) == (1, 0)
    ret = BY_OPCODE[0x24]
    monkeypatch.setitem(BY_OPCODE, 0x24, Instruction(ret.opcode, ret.name, ret.operands, ret.effect, ret.doc, ret.flow, since=(1, 6)))
    data = encode(PROGRAM)
    assert struct.unpack_from("<HH", data, 4) == (1, 6)
    assert decode(data) == PROGRAM
    with pytest.raises(BytecodeError, match=r"^Invalid bytecode instruction: 0x24 at 0x0003 \(ABI 1\.5 has no such instruction\)$"):
        decode(stamped(data, 5))


def test_every_damaged_byte_is_noticed() -> None:
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= 0x10
        with pytest.raises(BytecodeError):
            decode(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    for length in range(len(DATA)):
        with pytest.raises(BytecodeError):
            decode(DATA[:length])
        if length > 12:
            with pytest.raises(BytecodeError):
                decode(sealed(DATA[:length]))


def test_damage_is_told() -> None:
    with pytest.raises(BytecodeError, match=r"not a bytecode file: it starts with b'PK\\x03\\x04', not b'BCVM'"):
        decode(b"PK\x03\x04" + DATA[4:])
    with pytest.raises(BytecodeError, match=r"checksum 0x[0-9a-f]{8} in the file, 0x[0-9a-f]{8} of its bytes; it is damaged or cut"):
        decode(DATA[:30] + b"\xff" + DATA[31:])
    with pytest.raises(BytecodeError, match="section code at byte "):
        decode(section(2, bytes([200, 1])))


def section(number: int, body: bytes) -> bytes:
    """DATA with one section's bytes exchanged."""
    at, table = 9, []
    for _ in range(DATA[8]):
        table.append((DATA[at], DATA[at + 1]))  # all lengths are below 128
        at += 2
    bodies = []
    for n, length in table:
        bodies.append(body if n == number else DATA[at:at + length])
        at += length
    w = Writer()
    w.data += DATA[:8]
    w.number(len(bodies))
    for (n, _), b in zip(table, bodies, strict=True):
        w.number(n)
        w.number(len(b))
    return sealed(bytes(w.data) + b"".join(bodies) + bytes(4))


HUGE = b"\xff\xff\xff\xff\xff\xff\xff\x7f"


@pytest.mark.parametrize("number, body, message", [
    (2, HUGE, "instructions in 0 bytes"), (3, HUGE, "parameters in 0 bytes"), (4, HUGE, "locals in 0 bytes"), (5, HUGE, "consts in 0 bytes"),
    (5, b"\x01\x09" + HUGE, "items in 0 bytes"), (5, b"\x01\x07" + HUGE, "bytes in 0 bytes"), (5, b"\x01" + b"\x09\x01" * 100 + b"\x00", "nested more than 64"),
    (5, b"\x01\x0a", "unknown kind 10 of constant"), (5, b"\x01\x04\x02\x01\x00", "an integer with needless bytes"), (5, b"\x01\x07\x01\xff", "a string is not UTF-8"),
    (3, b"\x01\x01x\x09\x00\x00", "9 is none of positional_only"), (3, b"\x01\x01x\x01\x02\x00", "2 is no truth value"),
    (4, b"\x01\x01x\x00", "1 bytes too many"), (4, b"\x01", "locals in 0 bytes"), (4, b"\x81\x00x", "a number with needless bytes"),
    (2, b"\x01\x02" + b"\xff" * 9 + b"\x02", "a number of more than 64 bits"), (5, b"\x01\x05\x00", "ends too early"),
])
def test_bad_sections_are_told(number: int, body: bytes, message: str) -> None:
    with pytest.raises(BytecodeError) as error:
        decode(section(number, body))
    assert message in str(error.value)


def test_counts_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(2, 13):
            with pytest.raises(BytecodeError):
                decode(section(number, HUGE))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_repeated_or_missing_sections_are_told() -> None:
    for data in (DATA[:9] + b"\x02" + DATA[10:], DATA[:9] + b"\x1f" + DATA[10:]):
        with pytest.raises(BytecodeError, match="section table at byte"):
            decode(sealed(data))


def test_decoded_programs_are_verified_unless_asked() -> None:
    bad = section(2, bytes([2, 0, 0x24]))
    with pytest.raises(VerifyError):
        decode(bad)
    assert isinstance(decode(bad, check=False), Program)


def test_only_verified_programs_are_written() -> None:
    with pytest.raises(VerifyError, match="0 positions for 4 instructions"):
        encode(replace(PROGRAM, positions=()))


def test_saved_file_is_the_bytes(tmp_path: object) -> None:
    path = f"{tmp_path}/f.bc"
    PROGRAM.save(path)
    with open(path, "rb") as f:
        assert f.read() == DATA


def test_time_is_linear_in_size() -> None:
    def seconds(n: int) -> float:
        program = assemble(".program f\n.param x\n" + "LOAD x\nPOP\n" * n + "LOAD x\nRETURN")
        start = time.perf_counter()
        decode(encode(program))
        return time.perf_counter() - start
    seconds(100)
    assert min(seconds(8000) for _ in range(3)) < 8 * 4 * max(min(seconds(1000) for _ in range(3)), 1e-3)
