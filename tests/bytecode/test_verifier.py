"""A test per rule of the verifier, in assembly text: what fails, and the rule that it names."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bcvm.bytecode import verifier
from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.instructions import BY_NAME
from bcvm.bytecode.program import Annotation, Capture, Code, Import, Param, Position, Program
from bcvm.bytecode.verifier import VerifiedInfo, verify
from bcvm.errors import BytecodeError, VerifyError


def program(body: str, *header: str) -> Program:
    return assemble("\n".join([".program f", ".param x", *header, *(line.strip() for line in body.split(";"))]), check=False)


def check(body: str, *header: str) -> VerifiedInfo:
    return verify(program(body, *header))


FAILS: dict[str, tuple[str, str]] = {
    # rule: (code, what the error says)
    "underflow": ("LOAD x; CALL_OP add 2; RETURN", "0x0001 CALL_OP: pops 2 values, the stack holds 1"),
    "underflow of a branch": ("COND_JUMP l; l:; LOAD x; RETURN", "0x0000 COND_JUMP: pops 1 values, the stack holds 0"),
    "underflow by a short form": ("LOAD x; MATMUL; RETURN", "MATMUL: pops 2 values, the stack holds 1"),
    "underflow by a count expression": ("LOAD x; BUILD_DICT 1; RETURN", "BUILD_DICT: pops 2 values"),
    "underflow by keyword call": ("LOAD x; CALL 1 ('a',); RETURN", "CALL: pops 2 values"),
    "depth differs at a join": ("LOAD x; COND_JUMP l; LOAD x; l:; LOAD x; RETURN", "0x0003 LOAD: is reached with stack depth 1 from 0x0002 and with depth 0"),
    "depth differs around a loop": ("LOOP_START e; LOAD x; COND_JUMP e; LOAD x; LOOP_END 0x0; e:; LOAD x; RETURN", "0x0000 LOOP_START: is reached with stack depth 1"),
    "stack too deep": ("LOAD x; UNPACK 10001; RETURN", "at most 10000"),
    "fall through off the end": ("LOAD x; POP", "0x0001 POP: execution can fall off the end"),
    "branch off the end": ("LOAD x; COND_JUMP 0x0", "0x0001 COND_JUMP: execution can fall off the end"),
    "unreachable fall through off the end": ("LOAD x; RETURN; NOP", "0x0002 NOP: execution can fall off the end"),
    "jump target out of range": ("JUMP 0x0009; LOAD x; RETURN", "operand target=9 is not in code, which has 3 entries"),
    "backward jump": ("l:; NOP; JUMP l", "0x0001 JUMP: jumps back to 0x0000; only LOOP_END may"),
    "backward branch": ("l:; NOP; LOAD x; COND_JUMP l; LOAD x; RETURN", "COND_JUMP: jumps back to 0x0000"),
    "local out of range": ("LOAD $1; RETURN", "operand local=1 is not in locals, which has 1 entries"),
    "constant out of range": ("LOAD_CONST $0; RETURN", "operand const=0 is not in consts, which has 0 entries"),
    "name out of range": ("LOAD x; LOAD_ATTR $0; RETURN", "operand name=0 is not in names"),
    "op out of range": ("LOAD x; CALL_OP $3 1; RETURN", "operand op=3 is not in names"),
    "policy out of range": ("FUSE_START $0; FUSE_END; LOAD x; RETURN", "operand policy=0 is not in names"),
    "hint out of range": ("LOAD_TENSOR x $1; RETURN", "operand hint=1 is not in hints"),
    "capture out of range": ("LOAD_CAPTURE $0; RETURN", "operand capture=0 is not in captures"),
    "import out of range": ("CALL_PY $0 0 1; RETURN", "operand import=0 is not in imports"),
    "signature out of range": ("LOAD x; RELU 0x0001; RETURN", "operand signature=1 is not in signatures, which has 1 entries"),
    "count out of range": ("LOAD x; BUILD_TUPLE 1000001; RETURN", "operand count=1000001 is not in 0..1000000"),
    "device out of range": ("LOAD x; ALLOC_DEVICE_MEM 65536 0; RETURN", "operand device=65536"),
    "stream out of range": ("LOAD x; ALLOC_DEVICE_MEM 0 65536; RETURN", "operand stream=65536"),
    "mask out of range": (f"LOAD x; LOAD x; BROADCAST_ADD {bin(1 << 64)}; RETURN", "operand mask="),
    "unreachable code with a bad operand": ("LOAD x; RETURN; LOAD $7; RETURN", "0x0002 LOAD: operand local=7"),
    "copy too deep": ("LOAD x; COPY 2; RETURN", "COPY: copies the value 2 deep, the stack holds 1"),
    "copy of nothing": ("LOAD x; COPY 0; RETURN", "COPY: copies the value 0 deep"),
    "swap too deep": ("LOAD x; SWAP 2; RETURN", "SWAP: exchanges the top with the value 2 deep, the stack holds 1"),
    "swap with itself": ("LOAD x; SWAP 1; RETURN", "SWAP: exchanges the top with the value 1 deep"),
    "slice of one part": ("LOAD x; BUILD_SLICE 1; RETURN", "a slice has 2 or 3 parts"),
    "keyword names are no tuple": ("LOAD x; LOAD x; CALL 1 'a'; RETURN", "keyword names are a tuple of strings, not 'a'"),
    "keyword names are no strings": ("LOAD x; LOAD x; CALL 1 (1,); RETURN", "keyword names are a tuple of strings"),
    "keyword twice": ("LOAD x; LOAD x; LOAD x; CALL 2 ('a', 'a'); RETURN", "a keyword is given twice"),
    "more keywords than arguments": ("LOAD x; CALL 0 ('a',); RETURN", "1 keyword names for 0 arguments"),
    "axis is no integer": ("LOAD x; CONCAT 1 True; RETURN", "the axis is an int, not True"),
    "constant summand is no number": ("LOAD x; ADD_CONST 'a'; RETURN", "the constant is a number, not 'a'"),
    "constant factor is no number": ("LOAD x; MUL_CONST None; RETURN", "the constant is a number, not None"),
    # loops
    "LOOP_END of no loop": ("NOP; LOOP_END 0x0; LOAD x; RETURN", "0x0001 LOOP_END: its start 0x0000 is no LOOP_START before it"),
    "LOOP_END before its loop": ("LOAD x; RETURN; LOOP_END 0x3; LOOP_START e; LOOP_END 0x3; e:; LOAD x; RETURN", "0x0002 LOOP_END: its start 0x0003 is no LOOP_START before it"),
    "LOOP_START without end": ("LOOP_START e; e:; LOAD x; RETURN", "0x0000 LOOP_START: no LOOP_END belongs to it"),
    "loops overlap": ("LOOP_START e; LOOP_START e; LOOP_END 0x0; LOOP_END 0x1; e:; LOAD x; RETURN", "0x0001 LOOP_START: its loop ends behind the loop around it"),
    "exit inside the loop": ("LOOP_START 0x1; LOAD x; COND_JUMP e; LOOP_END 0x0; e:; LOAD x; RETURN", "its exit 0x0001 is not behind its last LOOP_END at 0x0003"),
    "jump into a loop": ("LOAD x; COND_JUMP m; LOOP_START e; m:; LOAD x; COND_JUMP e; LOOP_END 0x2; e:; LOAD x; RETURN",
                         "0x0001 COND_JUMP: leads to 0x0003 inside the loop at 0x0002"),
    # iterators
    "FOR_NEXT without iterator": ("LOAD x; LOOP_START e; FOR_NEXT e; POP; LOOP_END 0x1; e:; LOAD x; RETURN", "FOR_NEXT: the top of the stack is no iterator"),
    "FOR_NEXT with a value on the iterator": ("LOAD x; GET_ITER; LOAD x; LOOP_START e; FOR_NEXT e; POP; LOOP_END 0x3; e:; POP; LOAD x; RETURN", "FOR_NEXT: the top of the stack"),
    "FOR_NEXT on an empty stack": ("LOOP_START e; FOR_NEXT e; POP; LOOP_END 0x0; e:; LOAD x; RETURN", "FOR_NEXT: the top of the stack is no iterator"),
    "iterator stored": ("LOAD x; GET_ITER; STORE x; LOAD x; RETURN", "STORE: uses the iterator of a for loop as a value"),
    "iterator returned": ("LOAD x; GET_ITER; RETURN", "RETURN: uses the iterator of a for loop as a value"),
    "iterator of an iterator": ("LOAD x; GET_ITER; GET_ITER; RETURN", "GET_ITER: uses the iterator of a for loop as a value"),
    "iterator in a call": ("LOAD x; GET_ITER; LOAD x; CALL_OP add 2; RETURN", "CALL_OP: uses the iterator of a for loop as a value"),
    "iterator copied": ("LOAD x; GET_ITER; COPY 1; RETURN", "COPY: copies the iterator of a for loop"),
    "iterator on one path only": ("LOAD x; LOAD x; COND_JUMP l; GET_ITER; l:; POP; LOAD x; RETURN", "is reached with other iterator slots"),
    "too many for loops": ("; ".join(["LOAD x; GET_ITER"] * 33) + "; LOAD x; RETURN", "more than 32 for loops are nested"),
    # regions
    "region not closed": ("FUSE_START p; LOAD x; RETURN", "RETURN: the region of the FUSE_START at 0x0000 is still open"),
    "region not open": ("FUSE_END; LOAD x; RETURN", "FUSE_END: no FUSE_START belongs to it"),
    "region in a region": ("FUSE_START p; FUSE_START p; FUSE_END; FUSE_END; LOAD x; RETURN", "0x0001 FUSE_START: the region of the FUSE_START at 0x0000 is still open"),
    "region open on one path": ("LOAD x; COND_JUMP l; FUSE_START p; l:; NOP; LOAD x; RETURN", "is reached inside and outside of a fusion region"),
    "region closed on one path": ("FUSE_START p; LOAD x; COND_JUMP l; FUSE_END; l:; NOP; LOAD x; RETURN", "is reached inside and outside of a fusion region"),
    "two regions meet": ("LOAD x; COND_JUMP l; FUSE_START p; JUMP m; l:; FUSE_START p; m:; FUSE_END; LOAD x; RETURN", "or in two different ones"),
}


@pytest.mark.parametrize("rule", FAILS)
def test_broken_rule_is_named(rule: str) -> None:
    body, message = FAILS[rule]
    with pytest.raises(VerifyError) as error:
        check(body)
    assert message in str(error.value) and str(error.value).startswith("program f: instruction 0x"), str(error.value)


HOLDS: dict[str, str] = {
    "unreachable code at any depth": "LOAD x; RETURN; POP; POP; LOAD x; RETURN",
    "values under the returned one": "LOAD x; LOAD x; RETURN",
    "return out of for loops": "LOAD x; GET_ITER; LOOP_START e; FOR_NEXT e; RETURN; LOOP_END 0x2; e:; LOAD x; RETURN",
    "break out of a for loop": "LOAD x; GET_ITER; LOOP_START e; FOR_NEXT e; POP; POP; JUMP e; LOOP_END 0x2; e:; LOAD x; RETURN",
    "iterator swapped away before return": "LOAD x; GET_ITER; LOAD x; SWAP 2; POP; RETURN",
    "continue by a LOOP_END of its own": "LOOP_START e; LOAD x; COND_JUMP e; LOAD x; COND_JUMP l; LOOP_END 0x0; l:; NOP; LOOP_END 0x0; e:; LOAD x; RETURN",
    "loop without a way out": "LOOP_START e; LOOP_END 0x0; e:; LOAD x; RETURN",
    "jump to a loop's header": "LOAD x; COND_JUMP l; NOP; l:; LOOP_START e; LOAD x; COND_JUMP e; LOOP_END 0x3; e:; LOAD x; RETURN",
    "region on both paths": "FUSE_START p; LOAD x; COND_JUMP l; NOP; l:; FUSE_END; LOAD x; RETURN",
    "region in a loop": "LOOP_START e; FUSE_START p; LOAD x; FUSE_END; COND_JUMP e; LOOP_END 0x0; e:; LOAD x; RETURN",
    "deepest stack": "LOAD x; UNPACK 10000; RETURN",
    "nested loops": "LOOP_START a; LOOP_START b; LOAD x; COND_JUMP b; LOOP_END 0x1; b:; LOAD x; COND_JUMP a; LOOP_END 0x0; a:; LOAD x; RETURN",
}


@pytest.mark.parametrize("what", HOLDS)
def test_allowed(what: str) -> None:
    check(HOLDS[what])


def test_depths_and_loops_are_reported() -> None:
    info = check("LOAD x; GET_ITER; LOOP_START e; FOR_NEXT e; STORE x; LOOP_END 0x2; e:; LOAD x; RETURN; NOP; LOAD x; RETURN")
    assert info == VerifiedInfo((0, 1, 1, 1, 2, 1, 0, 1, -1, -1, -1), 2, ((2, 5, 6),))


def test_code_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MAX_CODE", 3)
    check("NOP; LOAD x; RETURN")
    with pytest.raises(VerifyError, match="code has 4 instructions; 1 to 3 are allowed"):
        check("NOP; NOP; LOAD x; RETURN")


GOOD = program("LOAD x; RETURN")
SECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "a program has a name"),
    "file name": ({"filename": 1}, "the file name is a string"),
    "first line": ({"first_line": -1}, "first line -1"),
    "section type": ({"names": ["a"]}, "section names is a tuple"),
    "no code": ({"code": (), "positions": ()}, "code has 0 instructions"),
    "code items": ({"code": ((3, (0,)), GOOD.code[1])}, "is a Code(opcode, operands)"),
    "unknown opcode": ({"code": (Code(0xEE), GOOD.code[1])}, "there is no opcode 238"),
    "operand count": ({"code": (Code(3, (0, 0)), GOOD.code[1])}, "LOAD: takes 1 operands, not 2"),
    "operand type": ({"code": (Code(3, (True,)), GOOD.code[1])}, "operand local=True"),
    "negative operand": ({"code": (Code(3, (-1,)), GOOD.code[1])}, "operand local=-1"),
    "names are strings": ({"names": (1,)}, "names are strings, not 1"),
    "constant type": ({"consts": ([],)}, "a builtins.list cannot be a constant"),
    "constant subclass": ({"consts": (type("I", (int,), {})(3),)}, "cannot be a constant"),
    "params are params": ({"params": (("x", "positional", False, 0),)}, "is no parameter"),
    "params first": ({"locals": ("y", "x")}, "the first locals are the parameters"),
    "param kinds": ({"params": (Param("x", "odd"),)}, "is no parameter"),
    "param order": ({"params": (Param("x", "keyword_only"), Param("y")), "locals": ("x", "y")}, "'y' (positional) comes after a keyword_only one"),
    "two star params": ({"params": (Param("x", "star"), Param("y", "star")), "locals": ("x", "y")}, "'y' (star) comes after a star one"),
    "default order": ({"params": (Param("x", has_default=True), Param("y")), "locals": ("x", "y")}, "'y' without a default follows one with a default"),
    "default of star": ({"params": (Param("x", "star", True),)}, "'x' (star) cannot have a default"),
    "param names": ({"params": (Param("x"), Param("x")), "locals": ("x", "x")}, "two parameters have the same name"),
    "param hint": ({"params": (Param("x", hint=1),)}, "hint 1 is not in hints"),
    "captures": ({"captures": (Capture("local", "a"),)}, "is no capture"),
    "imports": ({"imports": (("a", ""),)}, "is no import"),
    "import names": ({"imports": (Import("a", "1"), Import("a", "2"))}, "two imports have the same name"),
    "hint 0": ({"hints": ("[B]",)}, "hint 0 is '...'"),
    "hints parse": ({"hints": ("...", "[B,,C]")}, "shape hint '[B,,C]': expected"),
    "return hint": ({"return_hint": 1}, "return_hint=1 is not in hints"),
    "signature 0": ({"signatures": (1,)}, "signature 0 is ()"),
    "signatures": ({"signatures": ((), (("float32", -1, "C", "host"),))}, "a signature is (dtype, rank, layout, space) per operand"),
    "positions": ({"positions": ()}, "0 positions for 2 instructions"),
    "position": ({"positions": (Position(-1, 0), Position(0, 0))}, "the position of 0x0000"),
    "annotation order": ({"annotations": ((1, Annotation()), (0, Annotation()))}, "annotations are sorted"),
    "annotation twice": ({"annotations": ((1, Annotation()), (1, Annotation()))}, "annotations are sorted"),
    "annotation id": ({"annotations": ((2, Annotation()),)}, "annotations are sorted"),
    "annotation signature": ({"annotations": ((0, Annotation("", 1)),)}, "the annotation of 0x0000"),
}


@pytest.mark.parametrize("rule", SECTIONS)
def test_broken_section_is_named(rule: str) -> None:
    verify(GOOD)
    changes, message = SECTIONS[rule]
    with pytest.raises(VerifyError) as error:
        verify(replace(GOOD, **changes))
    assert message in str(error.value)


def test_every_instruction_checks_its_operand_count() -> None:
    for row in BY_NAME.values():
        with pytest.raises(BytecodeError, match=f"{row.name}: takes"):
            verify(replace(GOOD, code=(Code(row.opcode, (0,) * (len(row.operands) + 1)), *GOOD.code), positions=(Position(0, 0),) * 3))


@pytest.mark.parametrize("body, header", [
    ("LOAD x; COPY 0x1" + "0" * 5000 + "; RETURN", ()), ("LOAD x; LOAD x; CALL 1 0x1" + "0" * 5000 + "; RETURN", ()), ("LOAD x; RETURN", (".file a 0x1" + "0" * 5000,)),
    ("LOAD x sig=0x1" + "0" * 5000 + "; RETURN", ()),
])
def test_numbers_too_long_to_print_are_told(body: str, header: tuple[str, ...]) -> None:
    with pytest.raises(VerifyError, match="very long integer"):
        check(body, *header)
