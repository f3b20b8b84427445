"""What tools read of a program."""
from __future__ import annotations

import pytest

from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.binary import encode
from bcvm.bytecode.instructions import TABLE
from bcvm.bytecode.parser import BasicBlock, BytecodeParser, Loop, OpCall, Operand
from bcvm.bytecode.program import Annotation, Capture, Import
from bcvm.errors import BytecodeError, VerifyError

TEXT = """
.program f
.import i 'x'
.signature (('float32', 2, 'C', 'host'),)
.param x [B,*]
LOAD_TENSOR x [B,*]  -> Tensor<float32,[?,?]> ; m.py:3:5
LOAD_CAPTURE global n
GET_ITER
outer:
LOOP_START end
FOR_NEXT end
STORE x
LOOP_START inner_end
LOAD x
COND_JUMP inner_end
LOOP_END 0x6
inner_end:
LOOP_END 0x3
end:
CALL_PY i 1 1
RELU 0x0001
ADD_CONST 2.5
RETURN
"""


def test_operands_are_read_by_meaning() -> None:
    program = assemble(TEXT)
    for parser in (BytecodeParser(program), BytecodeParser(encode(program))):
        assert len(parser) == len(list(parser)) == 15
        first = parser[0]
        assert (first.id, first.name, first.values, first.position, first.depth, first.effect) == (0, "LOAD_TENSOR", ("x", "[B,*]"), (3, 4), 0, (0, 1))
        assert first.annotation == Annotation("Tensor<float32,[?,?]>") and parser[1].annotation is None
        assert parser[1]["capture"] == Capture("global", "n") and parser[3]["exit"] == 11
        assert parser[11].values == (Import("i", "x"), 1, 1) and parser[11].effect == (1, 1)
        assert parser[12]["signature"] == (("float32", 2, "C", "host"),)
        assert [i.depth for i in parser] == [0, 1, 2, 2, 2, 3, 2, 2, 3, 2, 2, 1, 1, 1, 1]
        with pytest.raises(KeyError, match="RELU has no operand 'count'"):
            parser[12]["count"]


def test_blocks_and_loops() -> None:
    parser = BytecodeParser(assemble(TEXT))
    assert parser.blocks == (
        BasicBlock(0, 3, (3,)), BasicBlock(3, 5, (5, 11)), BasicBlock(5, 6, (6,)), BasicBlock(6, 9, (9, 10)), BasicBlock(9, 10, (6,)),
        BasicBlock(10, 11, (3,)), BasicBlock(11, 15, ()))
    assert parser.loops == (Loop(3, 10, 11, None), Loop(6, 9, 10, 3))


def stack(*indices: int) -> tuple[Operand, ...]:
    return tuple(Operand("stack", i) for i in indices)


@pytest.mark.parametrize("line, calls", [
    ("CALL_OP sub 0x0001 2", [OpCall("sub", stack(0, 1), 1)]),
    ("RESHAPE", [OpCall("reshape", stack(0, 1))]),
    ("BROADCAST_ADD 0b1 0x0001", [OpCall("add", stack(0, 1), 1)]),
    ("ADD_CONST 2.5", [OpCall("add", (*stack(0), Operand("const", 2.5)))]),
    ("CONCAT 3 -1", [OpCall("concat", (*stack(0, 1, 2), Operand("const", -1)))]),
    ("FUSED_MATMUL_RELU", [OpCall("matmul", stack(0, 1)), OpCall("relu", (Operand("result", 0),))]),
    ("FUSED_CONV_BN_RELU", [OpCall("conv2d", stack(0, 1, 2)), OpCall("batch_norm", (Operand("result", 0), *stack(3, 4, 5, 6))), OpCall("relu", (Operand("result", 1),))]),
    ("FUSED_ADD_RELU_CAST_FP16", [OpCall("add", stack(0, 1)), OpCall("relu", (Operand("result", 0),)), OpCall("cast_fp16", (Operand("result", 1),))]),
])
def test_expansion(line: str, calls: list[OpCall]) -> None:
    parser = BytecodeParser(assemble(".program f\n.param x\n.signature (('float32', 2, 'C', 'host'),)\n" + "LOAD x\n" * 7 + line + "\nRETURN"))
    assert parser.expand(7) == tuple(calls)
    used = [o.value for call in calls for o in call.operands if o.source == "stack"]
    assert used == list(range(parser[7].effect[0]))


def test_every_row_that_expands_has_an_expansion() -> None:
    for row in TABLE:
        operands = " ".join({"count": "1", "const": "1", "mask": "0b1", "op": "neg"}.get(kind.value, "") for _, kind in row.operands)
        if row.expands:
            parser = BytecodeParser(assemble(".program f\n.param x\n" + "LOAD x\n" * 7 + f"{row.name} {operands}\nRETURN"))
            assert [c.op for c in parser.expand(7)] == row.expands.split(",")


def test_others_have_no_expansion() -> None:
    with pytest.raises(BytecodeError, match="instruction 0x0000 LOAD stands for no op"):
        BytecodeParser(assemble(".program f\n.param x\nLOAD x\nRETURN")).expand(0)


def test_only_verified_programs_are_parsed() -> None:
    with pytest.raises(VerifyError):
        BytecodeParser(assemble(".program f\nRETURN", check=False))
