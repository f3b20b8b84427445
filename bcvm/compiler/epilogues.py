"""Elementwise regions that a library kernel does itself, block by block of its result, while the block lies in a cache: epilogues.

The region stays a kernel of its own, of any ops and dtypes. The library kernel calls it for each finished block, in place where the region's result has the
dtype for it, so that what lies between the two is never a tensor in memory; and it is compiled once, whatever follows it.
"""
from __future__ import annotations

from bcvm.compiler.regions import PlanStep, RegionCall, dims_of
from bcvm.ops.definition import Library
from bcvm.specialise.ssa import Block, Node, Value

MAKERS = frozenset({"conv2d", "matmul"})  # library forms whose kernels take an epilogue


def join(plan: dict[Block, list[PlanStep]], uses: dict[Value, int]) -> None:
    """Make regions epilogues of the kernels before them, where they can be. In place."""
    if not any(_maker(s) for steps in plan.values() for s in steps):
        return
    for steps in plan.values():
        _join(steps, uses)


def _maker(step: PlanStep) -> bool:
    return isinstance(step, Node) and step.op == "op" and isinstance(step.attrs["op"].form, Library) and step.attrs["op"].form.name in MAKERS


def _join(steps: list[PlanStep], uses: dict[Value, int]) -> None:
    makers: dict[Value, tuple[Node, list[Node]]] = {}   # by the value a region would read: the op, and the steps that go with it
    gone: set[int] = set()
    for step in steps:
        if isinstance(step, RegionCall):
            _finish(step, makers, uses, gone)
            if step.store is not None:
                makers.clear()
        elif _maker(step):
            makers[step.results[0]] = (step, [step])
        elif step.op == "view" and step.attrs["kind"] == "squeeze" and step.operands[0] in makers and uses.get(step.operands[0]) == 1:
            node, along = makers.pop(step.operands[0])
            makers[step.results[0]] = (node, [*along, step])
        elif step.effect:
            makers.clear()  # what reads memory does not cross a store
    steps[:] = [s for s in steps if id(s) not in gone]


def _finish(call: RegionCall, makers: dict[Value, tuple[Node, list[Node]]], uses: dict[Value, int], gone: set[int]) -> None:
    for value in call.inputs:
        if value not in makers:
            continue
        node, along = makers[value]
        reason = _refused(call, node, value, uses)
        if not reason:
            call.maker, call.made, call.policy = node, value, "policy_002"
            call.decision += f" [EPILOGUE of {node.attrs['op'].name}]"
            gone.update(map(id, along))
            return
        call.decision += f" [REJECTED] no epilogue of {node.attrs['op'].name}: {reason}"


def _refused(call: RegionCall, node: Node, value: Value, uses: dict[Value, int]) -> str:
    """Why a region cannot finish the blocks of this operand; '' if it can."""
    if call.store is not None:
        return "its result is stored"
    if call.reduce is not None:
        return "it reduces"
    if call.assume:
        return "it may be split"
    if any(len(dims_of(v)) < 2 for v in node.operands[:2]):
        return "the product is of a vector"
    if len(dims_of(value)) != len(call.space) or any(dims_of(o) != call.space for o in call.outputs):
        return "its space is another"
    if uses.get(value) != sum(n.operands.count(value) for n in call.nodes):
        return "the result is needed elsewhere"
    return ""


def squeezed_axis(call: RegionCall) -> int | None:
    """The axis of the maker's result that the region does not see."""
    assert call.made is not None and call.made.node is not None
    return int(call.made.node.attrs["axis"]) if call.made.node.op == "view" else None

