"""What the specialiser knows of a program before it runs it on types: merge points, loops, live locals. Cached per program."""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cache

from bcvm.bytecode.instructions import BY_OPCODE, Kind
from bcvm.bytecode.program import Program


@dataclass(frozen=True)
class Analysis:
    """merges: instructions with two or more predecessors, or that start a loop. loop_exit: LOOP_START -> first instruction
    after the loop. assigned: LOOP_START -> locals that the loop stores. live: per instruction, the locals that may be read
    before they are written."""

    merges: frozenset[int]
    loop_exit: dict[int, int]
    assigned: dict[int, frozenset[int]]
    live: tuple[frozenset[int], ...]


_cache: "weakref.WeakValueDictionary[int, Program]" = weakref.WeakValueDictionary()
_results: dict[int, Analysis] = {}


def analyse(program: Program) -> Analysis:
    key = id(program)
    if _cache.get(key) is not program:
        _results[key] = _analyse(program)
        _cache[key] = program
        weakref.finalize(program, _results.pop, key, None).atexit = False
    return _results[key]


@cache
def _places(opcode: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which operands of an instruction are labels, and which are locals."""
    kinds = [kind for _, kind in BY_OPCODE[opcode].operands]
    labels, locals_ = (tuple(n for n, kind in enumerate(kinds) if kind is wanted) for wanted in (Kind.LABEL, Kind.LOCAL))
    return labels, locals_


def _analyse(program: Program) -> Analysis:
    code = program.code
    successors: list[tuple[int, ...]] = []
    predecessors = [0] * (len(code) + 1)
    gen: list[int] = [0] * len(code)
    kill: list[int] = [0] * len(code)
    loop_exit: dict[int, int] = {}
    for i, (opcode, operands) in enumerate(code):
        row = BY_OPCODE[opcode]
        label_at, local_at = _places(opcode)
        labels = [operands[n] for n in label_at]
        if local_at:
            local = operands[local_at[0]]
            if row.name == "STORE":
                kill[i] = 1 << local
            else:  # a read, or DELETE, which fails if unset
                gen[i] = 1 << local
        nexts: tuple[int, ...] = () if row.flow in ("return", "jump") else (i + 1,)
        if row.name == "LOOP_START":
            loop_exit[i] = labels[0]
        elif row.flow in ("jump", "branch"):
            nexts += tuple(labels)
        successors.append(nexts)
        for s in nexts:
            predecessors[s] += 1
    live = [0] * (len(code) + 1)
    changed = True
    while changed:
        changed = False
        for i in range(len(code) - 1, -1, -1):
            out = 0
            for s in successors[i]:
                out |= live[s]
            new = gen[i] | (out & ~kill[i])
            if new != live[i]:
                live[i], changed = new, True
    assigned = {}
    for start, end in loop_exit.items():
        mask = 0
        for i in range(start, end):
            mask |= kill[i]
            if BY_OPCODE[code[i].opcode].name == "DELETE":
                mask |= gen[i]
        assigned[start] = _bits(mask)
    merges = frozenset(i for i, n in enumerate(predecessors) if n > 1) | frozenset(loop_exit)
    sets = {m: _bits(m) for m in set(live[:len(code)])}
    return Analysis(merges, loop_exit, assigned, tuple(sets[m] for m in live[:len(code)]))


def _bits(mask: int) -> frozenset[int]:
    return frozenset(i for i in range(mask.bit_length()) if mask >> i & 1)
