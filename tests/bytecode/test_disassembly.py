"""What disassembly looks like, and what the assembler says of bad text.

BCVM_UPDATE_GOLDEN=1 python -m pytest tests/bytecode/test_disassembly.py      writes tests/bytecode/golden anew; read the difference
"""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.build import ProgramBuilder
from bcvm.bytecode.disassembler import disassemble
from bcvm.bytecode.program import Annotation, Code, Program
from bcvm.errors import BytecodeError

GOLDEN = Path(__file__).parent / "golden"


def dynamic_matmul() -> Program:
    b = ProgramBuilder("DynamicMatmulCell.construct", "./model.py", 10)
    b.param("self")
    b.param("x", hint_text="B, *, 768")
    b.param("training", "keyword_only", has_default=True)
    y = b.local("y")
    other, end = b.label(), b.label()
    b.return_hint("B, 768")
    b.at(11, 8)
    b.emit("LOAD_TENSOR", 1, b.hint("B, *, 768"))
    b.emit("LOAD", 0)
    b.emit("LOAD_ATTR", b.name("weight"))
    b.emit("CALL_OP", b.name("matmul"), 0, 2)
    b.emit("STORE", y)
    b.at(12, 11)
    b.emit("LOAD", 2)
    b.at(12, 4)
    b.emit("BRANCH_IF_SYMBOLIC", other)
    b.at(13, 8)
    b.emit("LOAD", y)
    b.emit("LOAD_CONST", b.const(2.0))
    b.emit("CALL_OP", b.name("mul"), 0, 2)
    b.emit("STORE", y)
    b.emit("JUMP", end)
    b.place(other)
    b.at(15, 8)
    b.emit("LOAD_CAPTURE", b.capture("global", "np"))
    b.emit("LOAD_ATTR", b.name("tanh"))
    b.emit("LOAD", y)
    b.emit("CALL", 1, b.const(()))
    b.emit("STORE", y)
    b.place(end)
    b.at(16, 4)
    b.emit("LOAD", y)
    b.emit("CALL_PY", b.add_import("construct.0", "print(y)\nreturn y"), 1, 1)
    b.emit("RETURN")
    return b.finish()


def loop() -> Program:
    b = ProgramBuilder("sum_rows", "./it's odd;#.py", 3)
    b.param("xs", "star")
    b.local("total")
    b.local("x")
    end = b.label()
    b.at(4, 4)
    b.emit("LOAD_CONST", b.const(-0.0))
    b.emit("STORE", 1)
    b.at(5, 4)
    b.emit("LOAD", 0)
    b.emit("GET_ITER")
    header = b.emit("LOOP_START", end)
    b.emit("FOR_NEXT", end)
    b.emit("STORE", 2)
    b.at(6, 8)
    b.emit("LOAD", 1)
    b.emit("LOAD", 2)
    b.emit("CALL_OP", b.name("iadd"), 0, 2)
    b.emit("STORE", 1)
    b.emit("LOOP_END", header)
    b.place(end)
    b.at(7, 4)
    b.emit("LOAD", 1)
    b.emit("RETURN")
    b.emit("LOAD_CONST", b.const(None))
    b.emit("RETURN")
    return b.finish()


def quickened() -> Program:
    b = ProgramBuilder("block", "./block.py", 1)
    b.param("x", hint_text="[B, S, 768]")
    b.param("bias", hint_text="[768]")
    pair = b.signature((("float32", 3, "C", "host"), ("float32", 1, "C", "host")))
    one = b.signature((("float16", 3, "channels-last", "host"),))
    b.at(2, 11)
    b.emit("FUSE_START", b.name("policy_002"))
    b.annotate(0, Annotation(decision="[FUSED 3 ops]"))
    b.emit("LOAD_TENSOR", 0, b.hint("[B, S, 768]"))
    b.annotate(1, Annotation("Tensor<float32,[?,?,768]>"))
    b.emit("LOAD_TENSOR", 1, b.hint("[768]"))
    b.annotate(2, Annotation("Tensor<float32,[768]>", one))
    add = b.emit("BROADCAST_ADD", 0b110, pair)
    b.annotate(add, Annotation("Tensor<float32,[?,?,768]>", pair, "[FUSED 3 ops]"))
    b.emit("RELU", one)
    b.emit("FUSE_END")
    b.emit("CALL_OP", b.name("bias_add"), 0, 1)
    b.annotate(6, Annotation(decision="[REJECTED] shape mismatch: [B,C,H,W] vs [C]"))
    b.emit("CONCAT", 1, b.const(-1), 0)
    b.emit("RETURN")
    return b.finish()


@pytest.mark.parametrize("make", [dynamic_matmul, loop, quickened], ids=lambda f: f.__name__)
def test_disassembly_is_the_golden_one(make: Callable[[], Program]) -> None:
    path = GOLDEN / f"{make.__name__}.txt"
    text = disassemble(make())
    if os.environ.get("BCVM_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert assemble(text) == make()
    assert str(make()) == text


def test_the_line_that_users_know() -> None:
    lines = disassemble(dynamic_matmul()).splitlines()
    assert "Bytecode dump for DynamicMatmulCell.construct:" in lines
    assert "0x0006: BRANCH_IF_SYMBOLIC 0x000c        ; depth 1  ./model.py:12:5" in lines


def test_annotations_can_be_left_out() -> None:
    text = disassemble(quickened(), annotations=False)
    assert "FUSED 3" not in text and "Tensor<" not in text
    assert assemble(text) == replace(quickened(), annotations=())


def test_a_program_that_does_not_verify_still_prints() -> None:
    text = disassemble(Program("f", "m.py", (Code(4, (7,)), Code(0xEE, ()))))
    assert "STORE $7" in text and "??? 0xee" in text and "depth" not in text


def test_by_hand_ids_labels_and_spaces_are_free() -> None:
    a = assemble(".program f\n.param x [B, *]\nLOAD_TENSOR x [ B , * ]   # a comment\n\n COND_JUMP end ; m.py:3:2\nend:\n  LOAD_CONST 'a;#'\nRETURN")
    assert a.hints == ("...", "[B,*]")
    assert a.positions[1] == (3, 1)
    assert a.consts == ("a;#",)
    assert assemble(disassemble(a)) == a


BAD: dict[str, tuple[str, str]] = {
    "no name": ("RETURN", "the program has no name; start with `.program NAME`"),
    "unknown instruction": ("FROB 1", "line 2: there is no instruction 'FROB'"),
    "no instruction": ("return", "line 2: expected an instruction, found 'return'"),
    "unknown directive": (".frob 1", "line 2: unknown directive '.frob'"),
    "undeclared local": ("LOAD y", "line 2: LOAD, operand local (local): there is no local 'y'; declare it with `.local y`"),
    "unknown label": ("JUMP there", "line 2: there is no label 'there'"),
    "label twice": ("l:\nl:", "line 3: label 'l' is placed twice"),
    "wrong id": ("0x0003: NOP", "line 2: this is instruction 0x0000, not 0x0003"),
    "operand missing": ("BUILD_TUPLE", "line 2: BUILD_TUPLE, operand count (count): expected a number before the end of the line"),
    "operand too many": ("NOP 1", "expected the end of the line"),
    "bad hint": (".local x\nLOAD_TENSOR x [B,,C]", "shape hint '[B,,C]': expected a size, a name, '*' or '...' at column 4"),
    "open hint": (".local x\nLOAD_TENSOR x [B", "expected a shape hint such as [B,*,768] or ..., found '[B'"),
    "open string": ("LOAD_CONST 'abc", "expected a constant, found \"'abc\""),
    "bad escape": (r"LOAD_CONST '\q'", r"unknown escape '\\q' in a string"),
    "bad code point": (r"LOAD_CONST '\Uffffffff'", "unknown escape"),
    "bad bytes": (r"LOAD_CONST b'\u0100'", r"a bytes constant holds a character above \xff"),
    "bad complex": ("LOAD_CONST complex(1, 2)", "complex(real, imaginary) of two floats"),
    "open tuple": ("LOAD_CONST (1, 2", "expected ',' or ')'"),
    "deep tuple": ("LOAD_CONST " + "(" * 100, "at most 64 nested tuples"),
    "long integer": ("LOAD_CONST " + "9" * 5000, "an integer of more than 4000 digits is written in hexadecimal"),
    "capture kind": ("LOAD_CAPTURE cell x", "expected 'closure' or 'global' and a name"),
    "late parameter": (".local y\n.param z", "parameters come before other locals"),
    "two names": ("Bytecode dump for g:", "the program's name is 'f' above and 'g' here"),
    "broken rule": (".local x\nLOAD x", "execution can fall off the end"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_text_is_told_with_line_and_reason(what: str) -> None:
    text, message = BAD[what]
    with pytest.raises(BytecodeError) as error:
        assemble(text if what == "no name" else ".program f\n" + text)
    assert message in str(error.value)
