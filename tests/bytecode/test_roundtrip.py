"""Text and bytes hold everything of a program."""
from __future__ import annotations

import math
import struct
from dataclasses import replace
from random import Random

import pytest
from bytecode_programs import CONSTANTS, constants, make, programs
from hypothesis import given, settings

from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.binary import decode, encode
from bcvm.bytecode.constants import const_key
from bcvm.bytecode.disassembler import disassemble
from bcvm.bytecode.instructions import TABLE
from bcvm.bytecode.program import Program
from bcvm.bytecode.text import Scanner, literal
from bcvm.bytecode.verifier import verify


def same(a: Program, b: Program) -> bool:
    """Equal, and with constants the same to the bit."""
    return (replace(a, consts=()) == replace(b, consts=()) and const_key(a.consts) == const_key(b.consts))


@settings(max_examples=150, deadline=None)
@given(programs())
def test_text_gives_the_same_program_and_prints_the_same_again(program: Program) -> None:
    text = disassemble(program)
    again = assemble(text)
    assert same(again, program)
    assert disassemble(again) == text


@settings(max_examples=100, deadline=None)
@given(programs())
def test_text_without_annotations_gives_the_program_without_them(program: Program) -> None:
    assert same(assemble(disassemble(program, annotations=False)), replace(program, annotations=()))


@settings(max_examples=150, deadline=None)
@given(programs())
def test_bytes_give_the_same_program_and_the_same_bytes_again(program: Program) -> None:
    data = encode(program)
    again = decode(data)
    assert same(again, program)
    assert encode(again) == data


@settings(max_examples=300, deadline=None)
@given(constants())
def test_constants_print_and_scan_to_the_bit(value: object) -> None:
    scanner = Scanner(literal(value))
    assert const_key(scanner.literal()) == const_key(value)
    scanner.end()


@pytest.mark.parametrize("bits", [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000])
def test_float_bits_survive_text_and_bytes(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    program = assemble("\n".join([".program f", f"LOAD_CONST {literal(value)}", "RETURN"]))
    for again in (assemble(disassemble(program)), decode(encode(program))):
        assert struct.unpack("<Q", struct.pack("<d", again.consts[0]))[0] == bits


def test_generated_programs_are_valid_and_use_every_kind_of_instruction() -> None:
    used = set()
    for seed in range(400):
        program = make(Random(seed))
        verify(program)
        used |= {code.opcode for code in program.code}
    rare = {"BUILD_DICT", "LIST_EXTEND", "LIST_APPEND", "LIST_TO_TUPLE", "DICT_MERGE", "CALL_UNPACKED", "UNPACK", "FREE_DEVICE_MEM", "RELU", "FUSED_CONV_BN_RELU"}
    assert {row.name for row in TABLE if row.opcode not in used} <= rare


def test_sections_that_text_cannot_name_by_meaning_survive() -> None:
    program = assemble("\n".join([".program f", ".local a a", "LOAD_CONST 1", "STORE $1", "LOAD a", "RETURN"]))
    odd = replace(program, consts=(1, True, 1, 1.0), names=("n", "n"), hints=("...", "[B]", "[ B ]", "[B]", "[...]"), return_hint=3,
                  code=(program.code[0]._replace(operands=(2,)), *program.code[1:]))
    text = disassemble(odd)
    assert "LOAD_CONST $2" in text and ".return $3" in text
    assert same(assemble(text), odd)
    assert same(decode(encode(odd)), odd)


def test_equal_constants_of_different_types_stay_apart() -> None:
    values = [1, True, 1.0, complex(1), 0, False, 0.0, -0.0, math.nan, "a", b"a", (1,), (True,)]
    program = assemble("\n".join([".program f", *(f"LOAD_CONST {literal(v)}\nPOP" for v in values), "LOAD_CONST None", "RETURN"]))
    assert [const_key(c) for c in program.consts] == [const_key(v) for v in [*values, None]]


def test_every_odd_constant_survives() -> None:
    program = assemble("\n".join([".program f", *(f"LOAD_CONST {literal(v)}\nPOP" for v in CONSTANTS), "LOAD_CONST 1", "RETURN"]))
    assert same(decode(encode(program)), program)
    assert same(assemble(disassemble(program)), program)
