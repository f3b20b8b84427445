"""Small clean-ups of a Graph before regions are formed: constant casts, common subexpressions, dead nodes. In place, linear."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bcvm.ops.definition import Reduction, ScalarExpr
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Block, Branch, Exit, Graph, Jump, Node, Return, State, Terminator, Value, leaves
from bcvm.specialise.types import Scalar, Tensor
from bcvm.turns import checkpoint

# Scalar functions that raise in Python for some operands: they stay even where nobody reads the result.
RAISES = frozenset({"floordiv", "mod", "truediv", "pow", "int", "shl", "shr", "sqrt", "log", "exp"})


def jumps(end: Terminator | None) -> tuple[Jump, ...]:
    """The edges that leave a block."""
    if isinstance(end, Jump):
        return (end,)
    if isinstance(end, Branch):
        return (end.then, end.orelse)
    return ()


def end_values(end: Terminator | None) -> list[Value]:
    """Every value a terminator reads, those of its state included."""
    if isinstance(end, Return):
        return list(leaves(end.tree))
    if isinstance(end, Exit):
        return list(end.state.values())
    out = [end.condition] if isinstance(end, Branch) else []
    return out + [a for j in jumps(end) for a in j.args]


COPIES = frozenset({"concat", "pad", "full", "arange", "sum_to"})  # library forms that the driver makes itself: they refuse nothing


def entry_values(block: Block) -> list[Value]:
    """The values of the state at which a loop header may leave."""
    return list(block.state.values()) if block.loop and block.state is not None else []


def can_exit(node: Node) -> bool:
    """Whether the driver may leave at this node: only then do the values of its state matter."""
    if node.state is None:
        return False
    if node.op == "op":
        return not is_region_op(node) and getattr(node.attrs["op"].form, "name", "") not in COPIES
    return node.op in ("check", "guard", "item", "scalar")


def is_region_op(node: Node) -> bool:
    """An op that becomes a step of a region (see regions)."""
    return node.op == "op" and isinstance(node.attrs["op"].form, (ScalarExpr, Reduction))


def simplify(graph: Graph) -> Graph:
    """All passes. Returns the graph itself."""
    _mark_written(graph)
    _fold_casts(graph)
    _split_reductions(graph)
    _merge_equal(graph)
    drop_dead(graph)
    return graph


def _all_ends(graph: Graph) -> Iterator[Terminator]:
    for block in graph.blocks:
        if block.end is not None:
            yield block.end


def _mark_written(graph: Graph) -> None:
    """A number as a tensor of rank 0 is no constant if a store may reach its memory: attrs['written']."""
    if not any(n.effect for b in graph.blocks for n in b.nodes):
        return
    for block in graph.blocks:
        shared = [a for j in jumps(block.end) for a in j.args]
        for node in block.nodes:
            if node.op == "view" or node.effect:
                shared.append(node.operands[0])
        for v in shared:
            if v.node is not None and v.node.op == "fill":
                v.node.attrs["written"] = True


def _fold_casts(graph: Graph) -> None:
    """cast(fill of rank 0 with a constant) is a fill of the other dtype."""
    for block in graph.blocks:
        for node in block.nodes:
            if node.op != "op" or node.attrs["op"].name != "cast":
                continue
            source = node.operands[0].node
            if source is None or source.op != "fill" or source.operands or "written" in source.attrs or node.operands[0].type.dims:  # type: ignore[union-attr]
                continue
            if isinstance(node.results[0].type, Tensor) and node.results[0].type.dtype != "bfloat16" and source.results[0].type.dtype != "bfloat16":  # type: ignore[union-attr]
                with np.errstate(all="ignore"):
                    value = np.asarray(source.attrs["value"]).astype(source.results[0].type.dtype).astype(node.results[0].type.dtype).item()  # type: ignore[union-attr]
                node.op, node.operands, node.attrs = "fill", (), {"value": value}


def runs(axes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Adjacent runs [first, last) of sorted axes."""
    out: list[tuple[int, int]] = []
    for a in sorted(axes):
        if out and out[-1][1] == a:
            out[-1] = (out[-1][0], a + 1)
        else:
            out.append((a, a + 1))
    return out


def _split_reductions(graph: Graph) -> None:
    """A reduction over axes that are not neighbours becomes one reduction per run of neighbours, the last run first."""
    for block in graph.blocks:
        out: list[Node] = []
        for node in block.nodes:
            checkpoint()
            parts = runs(node.attrs["attrs"]["axis"]) if node.op == "op" and isinstance(node.attrs["op"].form, Reduction) else []
            if len(parts) < 2 or node.attrs["op"].form.combine.startswith("arg"):
                out.append(node)
                continue
            attrs, x, t = node.attrs["attrs"], node.operands[0], node.results[0].type
            assert isinstance(x.type, Tensor) and isinstance(t, Tensor)
            for first, last in reversed(parts[1:]):
                dims = tuple(Dim.const(1) if first <= i < last else d for i, d in enumerate(x.type.dims))
                if not attrs.get("keepdims"):
                    dims = dims[:first] + dims[last:]
                part = Node("op", (x,), {"op": node.attrs["op"], "attrs": {**attrs, "axis": tuple(range(first, last))}}, (), None, node.where)
                graph.n_values += 1
                x = Value(graph.n_values, Tensor(t.library, t.dtype, dims), part)
                part.results = (x,)
                out.append(part)
            node.operands = (x,)
            node.attrs = {"op": node.attrs["op"], "attrs": {**attrs, "axis": tuple(range(*parts[0]))}}
            out.append(node)
        block.nodes = out


def freeze(value: Any) -> Any:
    """Attributes as a hashable key that tells 1 from 1.0 and True."""
    if isinstance(value, dict):
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v) for v in value)
    if isinstance(value, (bool, int, float)):
        return (type(value).__name__, repr(value))
    return value


def _content(node: Node) -> Any:
    """All that a node is but its name and operands, hashable."""
    types = tuple((r.type.dtype, r.type.dims) if isinstance(r.type, Tensor) else r.type.key() for r in node.results)
    return types, freeze({k: v for k, v in node.attrs.items() if k != "op"})


def _merge_equal(graph: Graph) -> None:
    """Within a block. A tensor that may be seen from outside, or written, stays an object of its own."""
    writes = any(n.effect for b in graph.blocks for n in b.nodes)
    shown: set[Value] = {v for e in _all_ends(graph) for v in end_values(e)}
    for block in graph.blocks:
        shown.update(entry_values(block))
        for node in block.nodes:
            if node.op in ("view", "store"):
                shown.update(node.operands)
    for state in {node.state for block in graph.blocks for node in block.nodes}:
        if state is not None:
            shown.update(state.values())
    replaced: dict[Value, Value] = {}
    for block in graph.blocks:
        seen: dict[Any, Node] = {}
        alike: dict[Any, dict[Any, Node]] = {}
        kept: list[Node] = []
        for node in block.nodes:
            checkpoint()
            if replaced:
                node.operands = tuple(replaced.get(v, v) for v in node.operands)
            if node.effect or node.op in ("copy", "item") or names_a_size(node):
                kept.append(node)
                continue
            if node.op == "op" and node.attrs["op"].effects:
                kept.append(node)
                continue
            if any([isinstance(r.type, Tensor) and (node.op == "view" or writes or r in shown) for r in node.results]):
                kept.append(node)
                continue
            attrs = node.attrs
            short = (node.op, node.operands, id(attrs.get("op", attrs.get("a"))), id(attrs.get("b")), attrs.get("value"))
            first = seen.setdefault(short, node)
            if first is not node:  # perhaps equal: all that they are tells
                try:
                    if short not in alike:
                        alike[short] = {_content(first): first}
                    first = alike[short].setdefault(_content(node), node)
                except TypeError:  # an attribute that cannot be hashed
                    first = node
            if first is node:
                kept.append(node)
            else:
                replaced.update(zip(node.results, first.results, strict=True))
        block.nodes = kept
    if replaced:
        _replace_in_ends(graph, replaced)


def _replace_in_ends(graph: Graph, replaced: dict[Value, Value]) -> None:
    """Scalars may be named by terminators, states and later blocks; tensors that are were not merged."""
    from bcvm.specialise.ssa import Aggregate, Level

    def tree(t: Any) -> Any:
        if isinstance(t, Value):
            return replaced.get(t, t)
        if isinstance(t, Aggregate):
            t.items = tuple(tree(i) for i in t.items)
        return t

    done: set[int] = set()

    def state(s: State | None) -> None:
        if s is not None and id(s) not in done:
            done.add(id(s))
            s.levels = tuple(Level(v.bound, v.pc, tuple(map(tree, v.locals)), tuple(map(tree, v.stack)), tuple((n, by, tree(t)) for n, by, t in v.symbols)) for v in s.levels)

    for block in graph.blocks:
        state(block.state)
        for node in block.nodes:
            checkpoint()
            state(node.state)
            node.operands = tuple(replaced.get(v, v) for v in node.operands)
        end = block.end
        for j in jumps(end):
            j.args = tuple(replaced.get(v, v) for v in j.args)
        if isinstance(end, Branch):
            end.condition = replaced.get(end.condition, end.condition)
        elif isinstance(end, Return):
            end.tree = tree(end.tree)
        elif isinstance(end, Exit):
            state(end.state)


def drop_dead(graph: Graph) -> None:
    """Nodes whose results nobody needs. Dims do not name their producers, so ints that carry an atom of their own stay."""
    needed: set[Value] = set()
    work: list[Value] = [v for e in _all_ends(graph) for v in end_values(e)]
    live: set[int] = set()
    left_at: set[State] = set()

    def keep(node: Node) -> None:
        live.add(id(node))
        work.extend(node.operands)
        if node.state is not None and node.state not in left_at and can_exit(node):
            left_at.add(node.state)
            work.extend(node.state.values())

    for block in graph.blocks:
        work.extend(entry_values(block))
        for node in block.nodes:
            checkpoint()
            if node.effect or node.op in ("check", "guard") or _must_stay(node):
                keep(node)
    while work:
        checkpoint()
        v = work.pop()
        if v in needed:
            continue
        needed.add(v)
        if v.node is not None and id(v.node) not in live:
            keep(v.node)
    for block in graph.blocks:
        block.nodes = [n for n in block.nodes if id(n) in live]


def names_a_size(node: Node) -> bool:
    """Whether dims may refer to the node's int by an atom of its own."""
    if node.op not in ("scalar", "dim", "item") or not isinstance(node.results[0].type, Scalar):
        return False
    d = node.results[0].dim
    return d is not None and d is not node.attrs.get("dim") and any(a.kind in ("opaque", "symbol") for a in d.atoms())


def _must_stay(node: Node) -> bool:
    if node.op == "item":
        return True
    if node.op == "scalar" and node.attrs["fn"] in RAISES and node.state is not None:
        return True
    if names_a_size(node):
        return True
    return node.op == "op" and "raises" in node.attrs["op"].effects
