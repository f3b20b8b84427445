"""Graph -> driver: clean-up, regions, liveness, emission. The result is text and requests; the caller compiles and publishes.

    compiled = compile_graph(graph, table, target)     table.slot_for(key, make_source) -> slot of a kernel
    module = compiled.module(stub_ir)                  one LLVM module: @driver, and what is put beside it
"""
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bcvm.compiler import attention, epilogues, optimise, packed, regions
from bcvm.compiler.driver import control
from bcvm.compiler.driver.kernels_call import KernelRequest
from bcvm.compiler.driver.values import Driver, rep_words
from bcvm.compiler.hoist import hoist
from bcvm.compiler.liveness import analyse, find_owners
from bcvm.compiler.region import KernelSource
from bcvm.compiler.target import Target
from bcvm.specialise.ssa import Block, Graph, Node, State, Tree


class KernelTable(Protocol):
    """Where kernels live. The same key always gives the same slot; `make` is called, now or later, if there is no kernel for it yet."""

    def slot_for(self, key: Any, make: Callable[[], KernelSource]) -> int: ...


@dataclass(eq=False)
class CompiledGraph:
    """driver_ir: the function @driver alone; declarations: the intrinsics and small functions it needs. exits: k -> (state, reason); the driver returns k + 1
    there, and -1 when memory ran out. return_trees: what the graph may return, see abi.return_code. out_words: the words that `out` must have."""

    graph: Graph
    driver_ir: str
    declarations: tuple[str, ...]
    kernels: list[KernelRequest]
    exits: list[tuple[State, str]]
    return_trees: list[Tree]
    out_words: int
    regions: list[regions.RegionCall | attention.Fused]
    steps: dict[str, float] = field(default_factory=dict)  # milliseconds per step
    packed: list[Any] = field(default_factory=list)        # copies of captured tensors that the driver reads: they must live as long as its code

    def module(self, *others: str, declarations: tuple[str, ...] = ()) -> str:
        """The text of one module that also has these functions."""
        return "\n".join([*dict.fromkeys(self.declarations + declarations), self.driver_ir, *others])

    def drop_held(self, exit_id: int, out_address: int) -> None:
        """After an exit: give back the objects that the driver owned when it left. Call it once what is needed was read from the state."""
        words = sum(rep_words(v) for v in self.exits[exit_id][0].values())
        count = ctypes.c_int64.from_address(out_address + 8 * words)
        for i in range(count.value):
            ctypes.pythonapi.Py_DecRef(ctypes.c_void_p(ctypes.c_uint64.from_address(out_address + 8 * (words + 1 + i)).value))
        count.value = 0


def compile_graph(graph: Graph, table: KernelTable, target: Target, on_step: Callable[[str, float, int], None] | None = None,
                  fusion: bool = True, threads: int | None = None, frozen: bool = False) -> CompiledGraph:
    """Compile a specialisation. The graph is simplified in place. on_step(step name, milliseconds, ops that were fused). frozen: captured tensors never change.
    CompileError or Unsupported: no native form; the call is interpreted."""
    steps: dict[str, float] = {}
    begun = time.perf_counter()

    def step(name: str, fused: int = 0) -> None:
        nonlocal begun
        now = time.perf_counter()
        steps[name] = (now - begun) * 1e3
        begun = now
        if on_step is not None:
            on_step(name, steps[name], fused)

    hoist(graph)
    optimise.simplify(graph)
    step("IR")
    if fusion:
        attention.fuse(graph)
    uses = regions.count_uses(graph)
    plan = regions.plan(graph, uses, fusion)
    if fusion:
        epilogues.join(plan, uses)
    calls = _fused(plan, graph.blocks)
    step("Fusion", fused_ops(calls))
    flow = control.Flow(graph)
    boxes = control.find_stack_boxes(flow, plan)
    live = analyse(graph, plan, flow.order, boxes)
    escaping = control.find_escaping(flow, plan, find_owners(graph, plan, flow.order, boxes))
    driver = Driver(graph, target, table, live, escaping, boxes, threads)
    if frozen:
        driver.frozen = packed.captured(graph)
    text = control.emit(driver, flow, plan)
    step("Mapping")
    reachable = set(flow.order)
    calls = _fused(plan, [block for block in graph.blocks if block in reachable])
    return CompiledGraph(graph, text, tuple(driver.e.declarations.values()), list(driver.requests.values()), driver.exits, driver.returns,
                         driver.out_words, calls, steps, driver.packed)


def _fused(plan: dict[Block, list[regions.PlanStep]], blocks: Sequence[Block]) -> list[regions.RegionCall | attention.Fused]:
    """The regions, and the attentions, of these blocks."""
    return [s if isinstance(s, regions.RegionCall) else s.attrs["fused"] for block in blocks for s in plan[block]
            if isinstance(s, regions.RegionCall) or "fused" in s.attrs]


def fused_ops(calls: Sequence[regions.RegionCall | attention.Fused]) -> int:
    """How many ops are not done alone: in regions of several, or one the other's epilogue."""
    counts = [len(c.nodes) + (isinstance(c, regions.RegionCall) and c.maker is not None) for c in calls]
    return sum(n for n in counts if n > 1)


def show_plan(compiled: CompiledGraph) -> str:
    """The regions of a compiled graph, one a line, for people."""
    out = [f"{compiled.graph.name}: {len(compiled.regions)} regions, {len(compiled.kernels)} kernels, {len(compiled.exits)} exits"]
    for call in compiled.regions:
        names = " ".join(_name(n) for n in call.nodes)
        space = ",".join(map(str, call.space))
        run = "" if call.reduce is None else f" reduce {call.reduce[0]}..{call.reduce[1] - 1}"
        out.append(f"FUSE_START {call.policy}  {call.decision}  [{space}]{run} {call.spec.kind}: {names}")
    return "\n".join(out)


def _name(node: Node) -> str:
    return str(node.attrs["op"].name) if node.op == "op" else node.op
