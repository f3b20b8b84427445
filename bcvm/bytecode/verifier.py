"""The verifier. A verified program cannot crash the process; whether it is what you meant it cannot say.

What it proves of a program, before anything runs:

- sections: types of their items, parameters in Python's order and first among the locals, hints parse, one position per
  instruction, import names unique;
- every instruction, reachable or not: operand count, kinds and ranges, jump targets, no fall through off the end;
- loops: a LOOP_END jumps back to its LOOP_START, spans nest, `exit` is behind the loop, every other jump goes forward,
  none goes into a loop past its header. So every cycle passes a LOOP_START;
- every reachable instruction: the stack has one depth whichever way it is reached and never underflows; a slot that
  GET_ITER made is seen by FOR_NEXT, and only FOR_NEXT, POP and SWAP touch it; FUSE_START and FUSE_END match on every path.

How: an abstract run over (depth, iterator slots, open region), one visit per instruction.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from bcvm.bytecode import hint_text
from bcvm.bytecode.constants import const_key
from bcvm.bytecode.effects import effects
from bcvm.bytecode.instructions import BY_NAME, BY_OPCODE, Instruction, Kind
from bcvm.bytecode.program import Annotation, Capture, Code, Import, Param, Position, Program, expect_program
from bcvm.errors import VerifyError

MAX_STACK = 10_000
MAX_CODE = 1_000_000
MAX_ITERATORS = 32
"""Iterators on the stack at once (Python itself nests at most 20 blocks)."""
MAX_MASK_BITS = 64
MAX_DEVICE = 65_535
PARAM_KINDS = ("positional_only", "positional", "star", "keyword_only", "double_star")

SECTION_OF: dict[Kind, str] = {
    Kind.LOCAL: "locals", Kind.CONST: "consts", Kind.NAME: "names", Kind.OP: "names", Kind.POLICY: "names", Kind.HINT: "hints",
    Kind.CAPTURE: "captures", Kind.IMPORT: "imports", Kind.SIGNATURE: "signatures", Kind.LABEL: "code",
}
_PLAIN_LIMIT: dict[Kind, int] = {Kind.COUNT: MAX_CODE, Kind.MASK: (1 << MAX_MASK_BITS) - 1, Kind.DEVICE: MAX_DEVICE, Kind.STREAM: MAX_DEVICE}


@dataclass(frozen=True)
class VerifiedInfo:
    """depths: stack depth before each instruction, -1 where it is never reached. loops: (start, last end, exit) by start."""

    depths: tuple[int, ...]
    max_depth: int
    loops: tuple[tuple[int, int, int], ...]


def verify(program: Program) -> VerifiedInfo:
    """Prove the rules above; VerifyError says program, instruction and rule. TypeError for what is no Program."""
    expect_program(program, "bcvm.verify")
    return _Verifier(program).run()


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise _Broken(rule)


class _Broken(Exception):
    """A rule does not hold; the caller knows where."""


def _show(value: Any) -> str:
    """repr, in bounds; Python refuses to print very long integers in decimal."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__} with a very long integer"
    return text if len(text) <= 200 else text[:200] + "..."


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.rows: list[Instruction] = []
        self.limits: dict[Kind, int] = {}

    def fail(self, rule: str, at: int | None = None) -> NoReturn:
        where = f"program {str(self.program.name)[:200]}: "
        if at is not None:
            code = self.program.code[at]
            row = BY_OPCODE.get(code.opcode) if isinstance(code, Code) else None
            where += f"instruction 0x{at:04x}{' ' + row.name if row else ''}: "
        raise VerifyError(where + (rule if len(rule) <= 500 else rule[:500] + "..."))

    def run(self) -> VerifiedInfo:
        try:
            _check_sections(self.program)
        except _Broken as e:
            self.fail(str(e))
        self.limits = _PLAIN_LIMIT | {kind: len(getattr(self.program, section)) - 1 for kind, section in SECTION_OF.items()}
        for at, code in enumerate(self.program.code):
            try:
                self.rows.append(self._instruction(code))
            except _Broken as e:
                self.fail(str(e), at)
        if self.rows[-1].flow in ("next", "branch"):
            self.fail("execution can fall off the end of the code", len(self.rows) - 1)
        loops = self._loops()
        depths, deepest = self._flow()
        return VerifiedInfo(tuple(depths), deepest, tuple(loops))

    def _instruction(self, code: Any) -> Instruction:
        _require(type(code) is Code and type(code.operands) is tuple, "is a Code(opcode, operands)")
        row = BY_OPCODE.get(code.opcode) if type(code.opcode) is int else None
        if row is None:
            raise _Broken(f"there is no opcode {_show(code.opcode)}")
        if len(code.operands) != len(row.operands):
            raise _Broken(f"takes {len(row.operands)} operands, not {len(code.operands)}")
        for (name, kind), value in zip(row.operands, code.operands, strict=True):
            if type(value) is not int or not 0 <= value <= self.limits[kind]:
                section = SECTION_OF.get(kind)
                where = f"{section}, which has {self.limits[kind] + 1} entries" if section else f"0..{self.limits[kind]}"
                raise _Broken(f"operand {name}={_show(value)} is not in {where}")
        rule = _RULES.get(row.name)
        if rule is not None:
            rule(self.program, code.operands)
        return row

    # -- structure
    def _loops(self) -> list[tuple[int, int, int]]:
        code = self.program.code
        last_end: dict[int, int] = {}
        for at, row in enumerate(self.rows):
            if row is _LOOP_END:
                start = code[at].operands[0]
                if self.rows[start] is not _LOOP_START or start > at:
                    self.fail(f"its start 0x{start:04x} is no LOOP_START before it", at)
                last_end[start] = at
        loops: list[tuple[int, int, int]] = []
        spans: list[tuple[int, int]] = []  # the loops around the current instruction
        around: list[tuple[int, int] | None] = []
        for at, row in enumerate(self.rows):
            while spans and at > spans[-1][1]:
                spans.pop()
            if row is _LOOP_START:
                if at not in last_end:
                    self.fail("no LOOP_END belongs to it", at)
                if spans and last_end[at] >= spans[-1][1]:
                    self.fail(f"its loop ends behind the loop around it, which ends at 0x{spans[-1][1]:04x}", at)
                if code[at].operands[0] <= last_end[at]:
                    self.fail(f"its exit 0x{code[at].operands[0]:04x} is not behind its last LOOP_END at 0x{last_end[at]:04x}", at)
                around.append(spans[-1] if spans else None)  # the header is where others may come in
                spans.append((at, last_end[at]))
                loops.append((at, last_end[at], code[at].operands[0]))
            else:
                around.append(spans[-1] if spans else None)
        for at, row in enumerate(self.rows):
            if row is _LOOP_END or not (row.flow in ("jump", "branch") or row is _LOOP_START):
                continue
            target = code[at].operands[0]
            if target <= at:
                self.fail(f"jumps back to 0x{target:04x}; only LOOP_END may", at)
            span = around[target]
            if span is not None and not span[0] <= at <= span[1]:
                self.fail(f"leads to 0x{target:04x} inside the loop at 0x{span[0]:04x} without passing its LOOP_START", at)
        return loops

    # -- abstract run
    def _flow(self) -> tuple[list[int], int]:
        code, rows = self.program.code, self.rows
        state: list[tuple[int, tuple[int, ...], int] | None] = [None] * len(code)
        interned: dict[tuple[int, ...], tuple[int, ...]] = {(): ()}
        state[0] = (0, (), -1)
        work, deepest = [0], 0
        while work:
            at = work.pop()
            depth, iterators, region = state[at]  # type: ignore[misc]
            row, operands = rows[at], code[at].operands
            falls, jumps = effects(row)
            pops, pushes = falls(*operands)
            if pops > depth:
                self.fail(f"pops {pops} values, the stack holds {depth}", at)
            slots = iterators
            special = _FLOW_RULES.get(row.name)
            if special is not None:
                try:
                    slots, region = special(depth, iterators, region, at, operands)
                except _Broken as e:
                    self.fail(str(e), at)
            elif pops and iterators and iterators[-1] >= depth - pops:
                self.fail("uses the iterator of a for loop as a value", at)
            after = depth - pops + pushes
            if after > MAX_STACK:
                self.fail(f"the stack grows to {after} values; at most {MAX_STACK} are allowed", at)
            deepest = max(deepest, after)
            slots = interned.setdefault(slots, slots)
            targets: list[tuple[int, tuple[int, tuple[int, ...], int]]] = []
            if row.flow in ("next", "branch"):
                targets.append((at + 1, (after, slots, region)))
            if row.flow in ("jump", "branch"):
                jump_pops, jump_pushes = jumps(*operands)
                left = depth - jump_pops + jump_pushes  # FOR_NEXT's rule has seen that the iterator it pops is there
                targets.append((operands[0], (left, tuple(s for s in slots if s < left) if row is _FOR_NEXT else slots, region)))
            for target, new in reversed(targets):  # so that falling through is followed first
                known = state[target]
                if known is None:
                    state[target] = new
                    work.append(target)
                elif known != new:
                    self._disagree(at, target, known, new)
        return [-1 if s is None else s[0] for s in state], deepest

    def _disagree(self, at: int, target: int, known: tuple[int, tuple[int, ...], int], new: tuple[int, tuple[int, ...], int]) -> NoReturn:
        if known[0] != new[0]:
            self.fail(f"is reached with stack depth {new[0]} from 0x{at:04x} and with depth {known[0]} from elsewhere", target)
        if known[2] != new[2]:
            self.fail(f"is reached inside and outside of a fusion region, or in two different ones (from 0x{at:04x})", target)
        self.fail(f"is reached with other iterator slots from 0x{at:04x} than from elsewhere", target)


_LOOP_START, _LOOP_END, _FOR_NEXT = BY_NAME["LOOP_START"], BY_NAME["LOOP_END"], BY_NAME["FOR_NEXT"]


# -- what single instructions demand of their operands, beyond kind and range

def _names_of_call(program: Program, operands: tuple[int, ...]) -> None:
    names = program.consts[operands[1]]
    _require(type(names) is tuple and all(type(n) is str for n in names), f"keyword names are a tuple of strings, not {_show(names)}")
    _require(len(set(names)) == len(names), f"a keyword is given twice in {_show(names)}")
    _require(len(names) <= operands[0], f"{len(names)} keyword names for {operands[0]} arguments")


def _slice_parts(program: Program, operands: tuple[int, ...]) -> None:
    _require(operands[0] in (2, 3), "a slice has 2 or 3 parts")


def _integer_axis(program: Program, operands: tuple[int, ...]) -> None:
    _require(type(program.consts[operands[1]]) is int, f"the axis is an int, not {_show(program.consts[operands[1]])}")


def _number(program: Program, operands: tuple[int, ...]) -> None:
    value = program.consts[operands[0]]
    _require(type(value) in (bool, int, float, complex), f"the constant is a number, not {_show(value)}")


_RULES: dict[str, Callable[[Program, tuple[int, ...]], None]] = {
    "CALL": _names_of_call, "BUILD_SLICE": _slice_parts, "CONCAT": _integer_axis, "ADD_CONST": _number, "MUL_CONST": _number,
}


# -- what single instructions do with iterator slots and regions: (depth, iterators, region, id, operands) -> (iterators, region)

_FlowState = tuple[tuple[int, ...], int]


def _get_iter(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(not iterators or iterators[-1] != depth - 1, "uses the iterator of a for loop as a value")
    _require(len(iterators) < MAX_ITERATORS, f"more than {MAX_ITERATORS} for loops are nested")
    return (*iterators, depth - 1), region


def _for_next(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(bool(iterators) and iterators[-1] == depth - 1, "the top of the stack is no iterator made by GET_ITER")
    return iterators, region


def _pop(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    return (iterators[:-1] if iterators and iterators[-1] == depth - 1 else iterators), region


def _copy(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(1 <= operands[0] <= depth, f"copies the value {operands[0]} deep, the stack holds {depth}")
    _require(depth - operands[0] not in iterators, "copies the iterator of a for loop")
    return iterators, region


def _swap(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(2 <= operands[0] <= depth, f"exchanges the top with the value {operands[0]} deep, the stack holds {depth}")
    exchange = {depth - 1: depth - operands[0], depth - operands[0]: depth - 1}
    if not any(slot in iterators for slot in exchange):
        return iterators, region
    return tuple(sorted(exchange.get(slot, slot) for slot in iterators)), region


def _fuse_start(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(region < 0, f"the region of the FUSE_START at 0x{region:04x} is still open")
    return iterators, at


def _fuse_end(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(region >= 0, "no FUSE_START belongs to it")
    return iterators, -1


def _return(depth: int, iterators: tuple[int, ...], region: int, at: int, operands: tuple[int, ...]) -> _FlowState:
    _require(not iterators or iterators[-1] != depth - 1, "uses the iterator of a for loop as a value")
    _require(region < 0, f"the region of the FUSE_START at 0x{region:04x} is still open")
    return iterators, region


_FLOW_RULES: dict[str, Callable[[int, tuple[int, ...], int, int, tuple[int, ...]], _FlowState]] = {
    "GET_ITER": _get_iter, "FOR_NEXT": _for_next, "POP": _pop, "COPY": _copy, "SWAP": _swap,
    "FUSE_START": _fuse_start, "FUSE_END": _fuse_end, "RETURN": _return,
}
assert set(_RULES) | set(_FLOW_RULES) <= set(BY_NAME)


# -- sections

def _check_sections(p: Program) -> None:
    _require(type(p.name) is str and bool(p.name), "a program has a name")
    _require(type(p.filename) is str, "the file name is a string")
    _require(type(p.first_line) is int and 0 <= p.first_line < 1 << 31, f"first line {_show(p.first_line)} is not in 0..2**31-1")
    for section in ("code", "params", "locals", "consts", "names", "captures", "imports", "hints", "signatures", "positions", "annotations"):
        _require(type(getattr(p, section)) is tuple, f"section {section} is a tuple")
    _require(0 < len(p.code) <= MAX_CODE, f"code has {len(p.code)} instructions; 1 to {MAX_CODE} are allowed")
    for section in ("locals", "names", "hints"):
        for item in getattr(p, section):
            _require(type(item) is str, f"{section} are strings, not {_show(item)}")
    for value in p.consts:
        try:
            const_key(value)
        except TypeError as e:
            raise _Broken(str(e)) from None
    _check_params(p)
    for c in p.captures:
        _require(type(c) is Capture and c.kind in ("closure", "global") and type(c.name) is str, f"{_show(c)} is no capture")
    for i in p.imports:
        _require(type(i) is Import and type(i.name) is str and type(i.source) is str, f"{_show(i)} is no import")
    _require(len({i.name for i in p.imports}) == len(p.imports), "two imports have the same name")
    _require(p.hints[:1] == ("...",), "hint 0 is '...', no constraint")
    for text in p.hints:
        try:
            hint_text.parse(text)
        except ValueError as e:
            raise _Broken(str(e)) from None
    _require(type(p.return_hint) is int and 0 <= p.return_hint < len(p.hints), f"return_hint={_show(p.return_hint)} is not in hints, which has {len(p.hints)} entries")
    _check_signatures(p)
    _check_per_instruction(p)


def _check_params(p: Program) -> None:
    seen_default, last = False, 0
    for i, param in enumerate(p.params):
        _require(type(param) is Param and type(param.name) is str and param.kind in PARAM_KINDS and type(param.has_default) is bool, f"{_show(param)} is no parameter")
        rank = PARAM_KINDS.index(param.kind)
        _require(rank > last or (rank == last and param.kind not in ("star", "double_star")) or i == 0,
                 f"parameter {_show(param.name)} ({param.kind}) comes after a {PARAM_KINDS[last]} one")
        last = rank
        _require(not (param.has_default and param.kind in ("star", "double_star")), f"parameter {_show(param.name)} ({param.kind}) cannot have a default")
        if param.kind in ("positional_only", "positional"):
            _require(param.has_default or not seen_default, f"parameter {_show(param.name)} without a default follows one with a default")
            seen_default |= param.has_default
        _require(type(param.hint) is int and 0 <= param.hint < len(p.hints), f"parameter {_show(param.name)}: hint {_show(param.hint)} is not in hints, which has {len(p.hints)} entries")
    names = tuple(param.name for param in p.params)
    _require(len(set(names)) == len(names), "two parameters have the same name")
    _require(p.locals[:len(names)] == names, f"the first locals are the parameters {_show(names)}, not {_show(p.locals[:len(names)])}")


def _check_signatures(p: Program) -> None:
    _require(p.signatures[:1] == ((),), "signature 0 is (), not resolved")
    for signature in p.signatures:
        _require(type(signature) is tuple and all(
            type(o) is tuple and len(o) == 4 and type(o[0]) is str and type(o[1]) is int and 0 <= o[1] <= 64 and type(o[2]) is str and type(o[3]) is str
            for o in signature), f"a signature is (dtype, rank, layout, space) per operand, not {_show(signature)}")


def _check_per_instruction(p: Program) -> None:
    _require(len(p.positions) == len(p.code), f"{len(p.positions)} positions for {len(p.code)} instructions")
    for at, position in enumerate(p.positions):
        if not (type(position) is Position and type(position.line) is int and type(position.column) is int
                and 0 <= position.line < 1 << 31 and 0 <= position.column < 1 << 31):
            raise _Broken(f"the position of 0x{at:04x} is {_show(position)}")
    last = -1
    for item in p.annotations:
        _require(type(item) is tuple and len(item) == 2 and type(item[0]) is int and type(item[1]) is Annotation, f"{_show(item)} is no (instruction id, Annotation)")
        at, annotation = item
        _require(last < at < len(p.code), f"annotations are sorted by instruction, one each; 0x{at:04x} is out of order or range")
        last = at
        _require(type(annotation.type) is str and type(annotation.decision) is str and type(annotation.signature) is int
                 and 0 <= annotation.signature < len(p.signatures), f"the annotation of 0x{at:04x} is {_show(annotation)}")
