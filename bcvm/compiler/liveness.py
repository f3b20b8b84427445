"""Which owned tensors are alive where. An *owner* is a value that holds one reference to memory: a block parameter, a fresh
tensor, a reshape that may have copied. Views belong to the owner of their root; inputs are borrowed and belong to nobody.

Sets are bit masks over owner numbers (Python ints): one pass per block, repeated only where loops change the result.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bcvm.compiler.optimise import can_exit, end_values, entry_values, jumps
from bcvm.compiler.regions import PlanStep, RegionCall, is_box
from bcvm.specialise.ssa import Block, Graph, Value
from bcvm.specialise.types import Tensor
from bcvm.turns import checkpoint


def read_by(step: PlanStep) -> list[Value]:
    """The values a step needs alive."""
    if isinstance(step, RegionCall):
        before = read_by(step.maker) if step.maker is not None else []
        return before + [v for v in step.inputs if v is not step.made] + ([step.store.operands[0]] if step.store is not None else [])
    values = list(step.operands)
    if can_exit(step) and step.state is not None:
        values += step.state.values()
    return values


def made_by(step: PlanStep) -> tuple[Value, ...]:
    if isinstance(step, RegionCall):
        return step.outputs if step.store is None else ()
    return step.results


@dataclass(eq=False)
class Liveness:
    """owner: value -> the value that owns its memory (absent for borrowed memory and for what is no tensor).
    dies: (block, step number) -> owners to release after that step; -1 is the start of the block.
    edge: (block, successor number) -> owners to release on the edge. at_end: owners alive at the terminator."""

    owner: dict[Value, Value] = field(default_factory=dict)
    number: dict[Value, int] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    dies: dict[tuple[Block, int], list[Value]] = field(default_factory=dict)
    edge: dict[tuple[Block, int], list[Value]] = field(default_factory=dict)
    at_end: dict[Block, list[Value]] = field(default_factory=dict)

    entry: dict[Block, int] = field(default_factory=dict)

    def alive_in(self, block: Block) -> set[Value]:
        """Owners alive on entry of a block, its parameters aside."""
        return set(self.members(self.entry[block]))

    def members(self, mask: int) -> list[Value]:
        out = []
        while mask:
            low = mask & -mask
            out.append(self.values[low.bit_length() - 1])
            mask ^= low
        return out

    def mask(self, values: Iterable[Value]) -> int:
        out = 0
        for v in values:
            owner = self.owner.get(v)
            if owner is not None:
                out |= 1 << self.number[owner]
        return out


def find_owners(graph: Graph, plan: dict[Block, list[PlanStep]], order: list[Block], stack_boxes: set[Value]) -> dict[Value, Value]:
    """Owner of every tensor. `order`: definitions come before uses in it, but for the back edges of loops."""
    owner: dict[Value, Value] = {}
    for block in order:
        for p in block.params:
            if isinstance(p.type, Tensor):
                owner[p] = p
        for step in plan[block]:
            checkpoint()
            for r in made_by(step):
                if not isinstance(r.type, Tensor) or r in stack_boxes:
                    continue
                if not isinstance(step, RegionCall) and step.op == "view" and step.attrs["kind"] != "reshape":
                    if step.operands[0] in owner:
                        owner[r] = owner[step.operands[0]]
                elif isinstance(step, RegionCall) or not (is_box(step) and r in stack_boxes):
                    owner[r] = r
    return owner


def analyse(graph: Graph, plan: dict[Block, list[PlanStep]], order: list[Block], stack_boxes: set[Value]) -> Liveness:
    """Backward over the blocks until nothing changes."""
    out = Liveness(find_owners(graph, plan, order, stack_boxes))
    out.values = list(dict.fromkeys(out.owner.values()))
    out.number = {v: i for i, v in enumerate(out.values)}
    uses: dict[Block, list[int]] = {b: [out.mask(read_by(s)) for s in plan[b]] for b in order}
    made: dict[Block, list[int]] = {b: [out.mask(r for r in made_by(s) if out.owner.get(r) is r) for s in plan[b]] for b in order}
    params = {b: out.mask(b.params) for b in order}
    at_start = {b: out.mask(entry_values(b)) for b in order}
    ends = {b: out.mask(end_values(b.end)) for b in order}
    # Per block: what is read before it is made, and what is made.
    reads: dict[Block, int] = {}
    makes: dict[Block, int] = {}
    for b in order:
        need = ends[b]
        everything = params[b]
        for u, m in zip(reversed(uses[b]), reversed(made[b]), strict=True):
            need = (need & ~m) | u
            everything |= m
        reads[b], makes[b] = (need | at_start[b]) & ~params[b], everything
    live_in = dict(reads)
    changed = True
    while changed:
        changed = False
        for b in reversed(order):
            after = 0
            for j in jumps(b.end):
                after |= live_in[j.target]
            now = reads[b] | (after & ~makes[b])
            if now != live_in[b]:
                live_in[b] = now
                changed = True
    out.entry = live_in
    for b in order:
        after = 0
        for j in jumps(b.end):
            after |= live_in[j.target]
        live = after | ends[b]
        out.at_end[b] = out.members(live)
        for n, j in enumerate(jumps(b.end)):
            out.edge[b, n] = out.members(live & ~live_in[j.target])
        for i in range(len(uses[b]) - 1, -1, -1):
            checkpoint()
            dead = (uses[b][i] | made[b][i]) & ~live
            if dead:
                out.dies[b, i] = out.members(dead)
            live = (live | uses[b][i]) & ~made[b][i]
        dead = (params[b] | at_start[b]) & ~live
        if dead:
            out.dies[b, -1] = out.members(dead)
    return out
