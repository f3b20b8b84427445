"""The stack effect of an instruction with its operands, from the expressions in the instruction table."""
from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from bcvm.bytecode.instructions import Instruction

Effect = Callable[..., tuple[int, int]]


def stack_effect(row: Instruction, operands: tuple[int, ...], jump: bool = False) -> tuple[int, int]:
    """(pops, pushes); `jump`: when the jump is taken."""
    return effects(row)[jump](*operands)


@cache
def effects(row: Instruction) -> tuple[Effect, Effect]:
    """Two functions of the operands: the effect when falling through, and when jumping."""
    falls = _compile(row, row.effect)
    return falls, falls if row.jump_effect is None else _compile(row, row.jump_effect)


def _compile(row: Instruction, effect: tuple[int | str, int | str]) -> Effect:
    names = {name: f"o{i}" for i, (name, _) in enumerate(row.operands)}  # an operand may be named as a keyword is (`import`)
    body = re.sub(r"[a-z]\w*", lambda m: names[m.group()], f"({effect[0]}, {effect[1]})")
    function: Effect = eval(f"lambda {', '.join(names.values())}: {body}", {"__builtins__": {}})  # text of our own table
    return function
