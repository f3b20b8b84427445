"""Conditions that are settled when the graph is made: those that only sizes of weights and numbers that layers are configured with decide.

Where such a condition decides the types of variables (the parts of a tensor in a tuple or in a list, say), or how often a loop runs in which a list grows, both
ways cannot share what follows. Then one way is made: the numbers become guarded constants, and the condition is checked at every call. `Again` makes the
graph once more, with what was found to be needed among the resolver's constants: ("settle", program, instruction) of a condition, ("unroll", program,
instruction) of a loop, False for one that cannot be unrolled.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.specialise.resolve import FIXED_SIZES
from bcvm.specialise.ssa import Aggregate, Tree, Value
from bcvm.specialise.types import Const

if TYPE_CHECKING:
    from bcvm.shapes.dim import Atom, Dim
    from bcvm.specialise.machine import Frame, Machine

DEPTH = 64         # of the expressions that are looked into
UNROLL_TRIPS = 16  # a loop that is known to run at most this often may be unrolled
# Python's arithmetic by the names that `scalar` nodes have.
FOLD: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod, "truediv": operator.truediv,
    "pow": operator.pow, "neg": operator.neg, "pos": operator.pos, "abs": abs, "not": operator.not_, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "shl": operator.lshift,
    "shr": operator.rshift, "min": min, "max": max, "int": int, "float": float, "bool": bool, "invert": operator.invert,
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "floor": math.floor, "ceil": math.ceil,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "tanh": math.tanh, "sinh": math.sinh, "cosh": math.cosh, "log2": math.log2, "log10": math.log10,
}


class Again(Exception):
    """A number or a condition became a constant: the graph has to be made again."""


class _Known:
    """What numbers are, as far as sizes of tensors that are not passed, and that are `sized`, and configured numbers say.
    LookupError: something else decides."""

    def __init__(self, m: "Machine", sized: Callable[[Any], bool] = lambda example: type(example) in FIXED_SIZES) -> None:
        self.m, self.sized = m, sized
        self.numbers: dict[Value, Any] = {}
        self.depth = 0

    def bind(self) -> None:
        """The configured numbers that were used are constants from now on."""
        for v in self.numbers:
            if v in self.m.resolver.configured:
                self.m.resolver.bind_scalar(v)

    def of(self, tree: Tree) -> Any:
        if isinstance(tree, Const) and type(tree.value) in (bool, int, float):
            return tree.value
        if not isinstance(tree, Value) or self.depth > DEPTH:
            raise LookupError(tree)
        if tree not in self.numbers:
            self.depth += 1
            self.numbers[tree] = self._of(tree)
            self.depth -= 1
        return self.numbers[tree]

    def _of(self, value: Value) -> Any:
        if value in self.m.resolver.configured:
            return self.m.resolver.scalars[value][1]
        node = value.node
        if node is not None and node.op == "const":
            return node.attrs["value"]
        if node is not None and node.op == "scalar" and node.attrs["fn"] in FOLD:
            try:
                return FOLD[node.attrs["fn"]](*map(self.of, node.operands))
            except (ArithmeticError, ValueError) as e:
                raise LookupError(value) from e
        if node is not None and node.op == "dim":
            return self.size(node.attrs["dim"])
        raise LookupError(value)

    def size(self, d: "Dim") -> int:
        return d.evaluate(self._atom)

    def _atom(self, atom: "Atom") -> int:
        if atom.kind == "opaque":
            return int(self.of(atom.args[0]))
        n, _, axis = str(atom.args[0])[1:].partition("_")  # see Resolver
        inputs = self.m.graph.inputs
        read = inputs[int(n)] if n.isdigit() and axis.isdigit() and int(n) < len(inputs) else None
        if read is None or read.path.root[0] == "arg" or not self.sized(read.example):
            raise LookupError(atom)
        return int(read.example.shape[int(axis)])


def can_be(m: "Machine", condition: Value) -> bool:
    try:
        _Known(m).of(condition)
    except LookupError:
        return False
    return True


def size(m: "Machine", d: "Dim") -> int:
    """What a size of a layer is. LookupError: something that is passed to the call decides it."""
    known = _Known(m, lambda example: hasattr(example, "shape"))
    found = known.size(d)
    known.bind()
    return found


def number(m: "Machine", tree: Tree) -> Const:
    """A number as a constant, checked at every call. LookupError: it cannot be one."""
    if isinstance(tree, Const):
        return tree
    known = _Known(m)
    value = known.of(tree)
    check(m, m.builder.scalar("eq", tree, value), True)
    known.bind()
    return Const(value)


def check(m: "Machine", condition: Tree, side: bool) -> None:
    holds = condition if side else m.builder.scalar("not", condition)
    if isinstance(holds, Value):
        m.emit("guard", (holds,))


def side(m: "Machine", frame: "Frame", condition: Value, target: int) -> bool | None:
    """Which way a branch goes, if that was found to be needed: what the condition is, or None."""
    where = condition.node.where if condition.node is not None else None
    loops = [start for start, _ in frame.unroll if m.resolver.constants.get(_key("unroll", frame, start))]
    if not loops and (where is None or ("settle", id(where[0]), where[1]) not in m.resolver.constants):
        return None
    known = _Known(m)
    try:
        found = bool(known.of(condition))
    except LookupError:
        for start in loops:
            if not start <= target < frame.analysis.loop_exit[start]:
                give_up(m, frame, start)  # nobody knows when it ends
        return None
    check(m, condition, found)
    known.bind()
    return found


def ask(m: "Machine", conditions: "set[Value]") -> bool:
    """Have these settled in the next graph, as far as they can be; whether any is."""
    places = [c.node.where for c in conditions if c.node is not None and c.node.where is not None and can_be(m, c)]
    m.resolver.constants.update({("settle", id(program), pc): True for program, pc in places})
    return bool(places)


# -- loops in which a list grows

def _key(what: str, frame: "Frame", pc: int) -> tuple[str, int, int]:
    return what, id(frame.bound.program), pc


def iteration(m: "Machine", frame: "Frame") -> int | None:
    """The iteration, if the frame stands at the header of a loop that is unrolled."""
    if frame.pc not in frame.analysis.loop_exit:
        return None
    code = frame.bound.program.code
    if frame.pc + 1 < len(code) and BY_OPCODE[code[frame.pc + 1].opcode].name == "FOR_NEXT":
        it = frame.stack[-1]
        if isinstance(it, Aggregate) and it.kind == "iterator" and isinstance(it.items[1], Const) and it.items[1].path == "unroll":
            return int(it.items[1].value)
    elif m.resolver.constants.get(_key("unroll", frame, frame.pc)):
        before = dict(frame.unroll).get(frame.pc, -1)
        if before >= UNROLL_TRIPS:
            give_up(m, frame, frame.pc)
        return before + 1
    return None


def give_up(m: "Machine", frame: "Frame", start: int) -> None:
    m.resolver.constants[_key("unroll", frame, start)] = False
    raise Again


def unroll(m: "Machine", before: "Frame", now: "Frame") -> None:
    """A loop whose variables change type because a list or tuple gets longer is unrolled, if it can be."""
    key = _key("unroll", now, now.pc)
    if key not in m.resolver.constants and any(_grown(a, b) for a, b in zip(before.locals, now.locals)):
        m.resolver.constants[key] = True
        raise Again


def _grown(a: Tree, b: Tree) -> bool:
    return isinstance(a, Aggregate) and isinstance(b, Aggregate) and a.kind == b.kind and a.kind in ("list", "tuple") and len(a.items) < len(b.items)


def trips(m: "Machine", frame: "Frame", start: Tree, stop: Tree, step: int) -> range | None:
    """What a `for` loop goes over, if it is to be unrolled. The frame stands at its GET_ITER."""
    if not m.resolver.constants.get(_key("unroll", frame, frame.pc + 1)):
        return None
    try:
        over = range(number(m, start).value, number(m, stop).value, step)
    except LookupError:
        over = range(UNROLL_TRIPS + 1)
    if len(over) > UNROLL_TRIPS:
        give_up(m, frame, frame.pc + 1)
    return over
