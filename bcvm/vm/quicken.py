"""The quickened form of a program: the same instructions, annotated with what a specialisation knows of them."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from bcvm.bytecode.program import Annotation, Program
from bcvm.specialise.ssa import Graph, Node, Value
from bcvm.specialise.types import Tensor


def quicken(program: Program, graph: Graph, regions: Iterable[Any]) -> Program:
    """Types of results, signatures of operands, and the regions with their policies and decisions, at the instructions they come from.
    regions: the compiler's RegionCalls of this graph."""
    signatures: list[tuple[Any, ...]] = list(program.signatures)
    types: dict[int, str] = {}
    used: dict[int, int] = {}
    for node in (n for b in graph.blocks for n in b.nodes):
        at = _instruction(node, program)
        if at is None:
            continue
        if node.results and isinstance(node.results[0].type, Tensor):
            types[at] = str(node.results[0].type)
        signature = signature_of(node.operands)
        if signature and node.op == "op" and at not in used and len(signature) <= 8:
            if signature not in signatures:
                signatures.append(signature)
            used[at] = signatures.index(signature)
    decisions: dict[int, list[str]] = {}
    for region in regions:
        ids = sorted({at for n in region.nodes if (at := _instruction(n, program)) is not None})
        if not ids:
            continue
        decisions.setdefault(ids[0], []).append(f"[FUSE_START {region.policy} {region.decision.strip('[]')}]")
        if len(ids) > 1:
            decisions.setdefault(ids[-1], []).append("[FUSE_END]")
    annotations = tuple(
        (at, Annotation(types.get(at, ""), used.get(at, 0), " ".join(decisions.get(at, ()))))
        for at in sorted({*types, *used, *decisions}))
    return dataclasses.replace(program, signatures=tuple(signatures), annotations=annotations)


def signature_of(values: Iterable[Value]) -> tuple[Any, ...]:
    """The signature of tensor operands: (dtype, rank, layout class, space) each; never a size."""
    return tuple((v.type.dtype, v.type.rank, "scalar" if v.type.rank == 0 else v.type.layout, v.type.space) for v in values if isinstance(v.type, Tensor))


def _instruction(node: Node, program: Program) -> int | None:
    return node.where[1] if node.where is not None and node.where[0] is program else None
