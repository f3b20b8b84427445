"""BytecodeParser: a program as other tools want to read it, with operands by meaning, blocks, loops and expansions."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bcvm.bytecode.binary import decode
from bcvm.bytecode.effects import stack_effect
from bcvm.bytecode.instructions import BY_OPCODE, TABLE, Instruction, Kind
from bcvm.bytecode.program import Annotation, Position, Program
from bcvm.bytecode.verifier import SECTION_OF, VerifiedInfo, verify
from bcvm.errors import BytecodeError


@dataclass(frozen=True)
class ParsedInstruction:
    """One instruction. `values` are its operands by meaning: a local's name, a constant, a hint's text, a Capture, an Import, a
    signature; labels, counts, devices, streams and masks are the numbers themselves."""

    id: int
    row: Instruction
    operands: tuple[int, ...]
    values: tuple[Any, ...]
    position: Position
    depth: int                    # of the stack before it; -1 if it is never reached
    effect: tuple[int, int]       # pops, pushes, falling through (or jumping, if it always jumps)
    annotation: Annotation | None

    @property
    def name(self) -> str:
        return self.row.name

    def __getitem__(self, operand: str) -> Any:
        """An operand's value by the operand's name in the instruction table."""
        for (name, _), value in zip(self.row.operands, self.values, strict=True):
            if name == operand:
                return value
        raise KeyError(f"{self.row.name} has no operand {operand!r}")


@dataclass(frozen=True)
class BasicBlock:
    """Instructions start..end-1, entered at the start only. successors: starts of the blocks that may follow, fall through first."""

    start: int
    end: int
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """LOOP_START at `start`, its last LOOP_END at `end`, `exit` the first instruction behind it; parent: start of the loop around."""

    start: int
    end: int
    exit: int
    parent: int | None


@dataclass(frozen=True)
class Operand:
    """Where an expanded call takes an operand from: 'stack' (value: 0 is the first pushed), 'result' (of an earlier call of the
    expansion), 'const' (the value itself)."""

    source: str
    value: Any


@dataclass(frozen=True)
class OpCall:
    """One CALL_OP of an expansion. Constants that a short form carries (axis, the other summand) are its last operands."""

    op: str
    operands: tuple[Operand, ...]
    signature: int = 0


_ARITY = {"conv2d": 3, "batch_norm": 5, "matmul": 2, "add": 2}
"""Operands of the ops that FUSED_* forms start with or join; the others take one."""


class BytecodeParser:
    """Reads a program or the bytes of one; both are verified. Iterating gives a ParsedInstruction per instruction."""

    def __init__(self, source: Program | bytes | bytearray | memoryview) -> None:
        self.program: Program = source if isinstance(source, Program) else decode(bytes(source), check=False)
        self.info: VerifiedInfo = verify(self.program)
        self._annotations = dict(self.program.annotations)

    def __len__(self) -> int:
        return len(self.program.code)

    def __iter__(self) -> Iterator[ParsedInstruction]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, at: int) -> ParsedInstruction:
        p = self.program
        opcode, operands = p.code[at]
        row = BY_OPCODE[opcode]
        values = tuple(self._value(kind, value) for (_, kind), value in zip(row.operands, operands, strict=True))
        return ParsedInstruction(at, row, operands, values, p.positions[at], self.info.depths[at], stack_effect(row, operands), self._annotations.get(at))

    def _value(self, kind: Kind, value: int) -> Any:
        section = SECTION_OF.get(kind)
        return value if section is None or section == "code" else getattr(self.program, section)[value]

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """All basic blocks in order, also those that are never reached."""
        code = self.program.code
        starts = {0}
        for at, (opcode, operands) in enumerate(code):
            flow = BY_OPCODE[opcode].flow
            if flow in ("jump", "branch"):
                starts.add(operands[0])
            if flow != "next" and at + 1 < len(code):
                starts.add(at + 1)
        order = sorted(starts)
        blocks = []
        for start, end in zip(order, [*order[1:], len(code)], strict=True):
            opcode, operands = code[end - 1]
            flow = BY_OPCODE[opcode].flow
            after = ([end] if flow in ("next", "branch") else []) + ([operands[0]] if flow in ("jump", "branch") else [])
            blocks.append(BasicBlock(start, end, tuple(dict.fromkeys(after))))
        return tuple(blocks)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """All loops by start; one around another comes first."""
        loops: list[Loop] = []
        around: list[Loop] = []
        for start, end, leave in self.info.loops:
            while around and around[-1].end < start:
                around.pop()
            loops.append(Loop(start, end, leave, around[-1].start if around else None))
            around.append(loops[-1])
        return tuple(loops)

    def expand(self, at: int) -> tuple[OpCall, ...]:
        """The calls that a short or FUSED_* instruction stands for; CALL_OP stands for itself. Others are a BytecodeError."""
        i = self[at]
        signature = i.operands[[k for _, k in i.row.operands].index(Kind.SIGNATURE)] if Kind.SIGNATURE in dict(i.row.operands).values() else 0
        if i.name == "CALL_OP":
            return (OpCall(i["op"], _stack(0, i["count"]), signature),)
        if i.row.expands is None:
            raise BytecodeError(f"program {self.program.name}: instruction 0x{at:04x} {i.name} stands for no op")
        ops = i.row.expands.split(",")
        if len(ops) == 1:
            constants = tuple(Operand("const", v) for (_, kind), v in zip(i.row.operands, i.values, strict=True) if kind is Kind.CONST)
            return (OpCall(ops[0], _stack(0, i.effect[0]) + constants, signature),)
        calls: list[OpCall] = []
        used = 0
        for n, op in enumerate(ops):
            chained = (Operand("result", n - 1),) if n else ()
            fresh = _ARITY.get(op, 1) - len(chained)
            calls.append(OpCall(op, chained + _stack(used, fresh), 0))
            used += fresh
        return tuple(calls)


def _stack(first: int, count: int) -> tuple[Operand, ...]:
    return tuple(Operand("stack", i) for i in range(first, first + count))


def _check_arity() -> None:
    for row in TABLE:
        ops = (row.expands or "").split(",")
        if len(ops) > 1:
            assert sum(_ARITY.get(op, 1) for op in ops) - len(ops) + 1 == row.effect[0], f"_ARITY does not give the operands of {row.name}"


_check_arity()
