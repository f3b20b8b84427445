"""NumPy's scalars are copies: `a = x[0]` keeps its value when x is written, and an array made of it, `a[None]`, has memory of its own. The view that
reads such an element is followed by a copy wherever a store may come before a use of it, or a view is made of it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from bcvm.specialise.ssa import Block, Branch, Exit, Graph, Jump, Node, Return, State, Value, leaves
from bcvm.specialise.types import Tensor


def separate_scalars(graph: Graph) -> None:
    """Insert the copies. In place."""
    targets = [n.operands[0].type for b in graph.blocks for n in b.nodes if n.op == "store"]
    stored = {t.dtype for t in targets if isinstance(t, Tensor)}
    viewed = {n.operands[0] for b in graph.blocks for n in b.nodes if n.op == "view"}
    read = [(b, n) for b in graph.blocks for n in b.nodes if n.op == "view" and _element(n) and (_element(n) in stored or n.results[0] in viewed)]
    if not read:
        return
    uses: dict[Value, list[tuple[Block, int]]] = {n.results[0]: [] for _, n in read}
    for block in graph.blocks:
        for at, values in _uses(block):
            for v in values:
                if v in uses:
                    uses[v].append((block, at))
    copied: dict[int, Node] = {}
    for block, node in read:
        start = block.nodes.index(node)
        store = next((i for i, n in enumerate(block.nodes[start:], start) if n.op == "store"), len(block.nodes) + 1)
        old = node.results[0]
        if old not in viewed and all(b is block and start < at <= store for b, at in uses[old]):
            continue
        graph.n_values += 1
        node.results = (Value(graph.n_values, old.type, node, root=node.operands[0]),)
        copied[id(node)] = old.node = Node("copy", node.results, {}, (old,), node.state, node.where)
        old.root = old
    for block in graph.blocks:
        block.nodes = [made for n in block.nodes for made in ((n, copied[id(n)]) if id(n) in copied else (n,))]
        for node in block.nodes:
            if node.op == "view":
                node.results[0].root = _root(node.operands[0])


def _element(node: Node) -> str | None:
    """The dtype of an element that is read as a NumPy scalar."""
    t = node.results[0].type
    return t.dtype if isinstance(t, Tensor) and t.scalar and t.library == "numpy" else None


def _root(v: Value) -> Value:
    while v.node is not None and v.node.op == "view":
        v = v.node.operands[0]
    return v


def _uses(block: Block) -> Iterator[tuple[int, Sequence[Value]]]:
    """Where a block reads values: -1 on entry, the number of the node, that after the last at its end, and beyond."""
    known: set[int] = set()

    def state(s: State | None) -> Sequence[Value]:
        if s is None or id(s) in known:
            return ()
        known.add(id(s))
        return s.values()
    yield -1, state(block.state)
    for at, node in enumerate(block.nodes):
        yield at, [*node.operands, *state(node.state)]
        if node.op == "store":
            known.clear()
    end, last = block.end, len(block.nodes)
    if isinstance(end, Exit):
        yield last, end.state.values()
    elif isinstance(end, Return):
        yield last, list(leaves(end.tree))
    else:
        for jump in (end,) if isinstance(end, Jump) else (end.then, end.orelse) if isinstance(end, Branch) else ():
            yield last + 2, list(jump.args)  # which other blocks read, behind their stores
