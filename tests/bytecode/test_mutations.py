"""Any bytes are a program or a BytecodeError: never a crash, a hang, a memory bomb.

BCVM_FUZZ=50000 python -m pytest tests/bytecode/test_mutations.py -s      more mutations; BCVM_FUZZ_SEED=n repeats a run
"""
from __future__ import annotations

import os
import struct
import zlib
from random import Random

from bytecode_programs import make

from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.binary import decode, encode
from bcvm.bytecode.disassembler import disassemble
from bcvm.bytecode.program import Program
from bcvm.bytecode.verifier import verify
from bcvm.errors import BytecodeError

COUNT = int(os.environ.get("BCVM_FUZZ", "2000"))
SEED = int(os.environ.get("BCVM_FUZZ_SEED", "20240607"))


def sealed(data: bytes) -> bytes:
    """With a checksum that fits, so that the mutation reaches what lies behind it."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def mutate(data: bytes, r: Random) -> bytes:
    out = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        at = r.randrange(len(out) or 1)
        what = r.randrange(7)
        if what == 0:
            out[at:at + 1] = bytes([r.randrange(256)])
        elif what == 1 and out:
            out[at % len(out)] ^= 1 << r.randrange(8)
        elif what == 2:
            del out[at:at + r.randrange(1, 9)]
        elif what == 3:
            out[at:at] = r.randbytes(r.randrange(1, 9))
        elif what == 4:
            del out[at:]
        elif what == 5:
            out[at:at + 1] = r.choice([b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x00", b"\x7f", b"\x80\x80\x80\x01"])
        else:
            out[at:at] = out[(start := r.randrange(len(out) or 1)):start + r.randrange(1, 40)]
    return bytes(out)


def test_mutated_bytes_are_a_program_or_a_bytecode_error() -> None:
    print(f"seed {SEED}, {COUNT} mutations")
    r = Random(SEED)
    originals = [encode(make(Random(r.random()))) for _ in range(100)]
    programs = 0
    for n in range(COUNT):
        data = mutate(r.choice(originals), r)
        if r.random() < 0.9 and len(data) > 12:
            data = sealed(data)
        try:
            program = decode(data)
        except BytecodeError as e:
            assert str(e)
            continue
        except BaseException:
            print(f"mutation {n} of seed {SEED}: {data.hex()}")
            raise
        assert type(program) is Program
        programs += 1
        verify(program)
        assert encode(program) and encode(assemble(disassemble(program))) == encode(program), f"mutation {n} of seed {SEED}: {data.hex()}"
    assert programs > COUNT // 100, "hardly a mutation went through: the test looks at nothing behind the checksum"


def test_mutated_text_is_a_program_or_a_bytecode_error() -> None:
    print(f"seed {SEED}")
    r = Random(SEED + 1)
    originals = [disassemble(make(Random(r.random()))) for _ in range(30)]
    for n in range(COUNT // 10):
        text = r.choice(originals)
        at = r.randrange(len(text))
        text = text[:at] + r.choice(["", "'", "(", "[", ";", "#", "\\", "$9", "0x", "-", "9" * 5000, "\n", "(" * 200, "é", " "]) + text[at + r.randrange(4):]
        try:
            assemble(text)
        except BytecodeError:
            continue
        except BaseException:
            print(f"text mutation {n} of seed {SEED}:\n{text}")
            raise
