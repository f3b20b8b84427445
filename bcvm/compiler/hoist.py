"""Work moved out of loops: ops whose operands do not change in the loop, and products of one item of a tensor per round.

    for t in range(x.shape[0]):                  gx = x @ w + b
        g = x[t] @ w + b              ->         for t in range(x.shape[0]):
                                                     g = gx[t]

A loop is taken if it writes to new tensors of this call alone, if at all, and only its header leaves it; an op of it if it is run in every round. What an op demands of sizes is checked
again where it comes to stand; if it does not hold there, native code leaves at the loop's header with the values of its first round: the interpreter then does
what the program says, which may be to raise in some round, or never to come to that op.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bcvm.compiler.optimise import jumps, names_a_size
from bcvm.errors import Unsupported
from bcvm.ops.definition import Library, Reduction, ScalarExpr
from bcvm.shapes.dim import Atom, Dim
from bcvm.specialise.builder import ShapeRequests, result_dims
from bcvm.specialise.ssa import Aggregate, Block, Branch, Graph, Jump, Level, Node, State, Tree, Value
from bcvm.specialise.types import Scalar, Tensor
from bcvm.turns import checkpoint

MOVED_VIEWS = frozenset({"transpose", "expand", "squeeze"})  # which check nothing


def hoist(graph: Graph) -> None:
    """In place; inner loops first, so that what leaves them may leave the outer ones too."""
    preds: dict[Block, list[Block]] = {b: [] for b in graph.blocks}
    for block in graph.blocks:
        for j in jumps(block.end):
            preds[j.target].append(block)
    headers = [b for b in graph.blocks if b.loop and b.state is not None]
    if not headers:
        return
    dominators = _dominators(graph, preds)
    for header in reversed(headers):
        loop = _Loop.find(header, preds, dominators)
        if loop is not None:
            loop.run(graph)


def _dominators(graph: Graph, preds: dict[Block, list[Block]]) -> dict[Block, set[Block]]:
    everything = set(graph.blocks)
    out = {b: everything for b in graph.blocks}
    out[graph.blocks[0]] = {graph.blocks[0]}
    changed = True
    while changed:
        changed = False
        for b in graph.blocks[1:]:
            new = set.intersection(*(out[p] for p in preds[b])) | {b} if preds[b] else {b}
            if new != out[b]:
                out[b], changed = new, True
    return out


class _Loop:
    """header, blocks, the one block before it, the block that ends a round. always: blocks run in every round."""

    def __init__(self, header: Block, blocks: set[Block], before: Block, latch: Block, always: list[Block]) -> None:
        self.header, self.blocks, self.before, self.latch, self.always = header, blocks, before, latch, always

    @classmethod
    def find(cls, header: Block, preds: dict[Block, list[Block]], dominators: dict[Block, set[Block]]) -> _Loop | None:
        latches = [p for p in preds[header] if header in dominators[p]]
        before = [p for p in preds[header] if header not in dominators[p]]
        if len(latches) != 1 or len(before) != 1 or not isinstance(before[0].end, Jump):
            return None
        blocks, work = {header}, [latches[0]]
        while work:
            block = work.pop()
            if block not in blocks:
                blocks.add(block)
                work.extend(preds[block])
        for block in blocks:
            if not isinstance(block.end, (Jump, Branch)) or any(n.effect and not _is_new(n.operands[0].root) for n in block.nodes):
                return None
            if block is not header and any(j.target not in blocks for j in jumps(block.end)):
                return None
        always = sorted((b for b in blocks if b in dominators[latches[0]]), key=lambda b: len(dominators[b]))
        return cls(header, blocks, before[0], latches[0], always)

    def run(self, graph: Graph) -> None:
        self.graph = graph
        self.state = self._state_before()
        self.local = {r for b in self.blocks for n in b.nodes for r in n.results} | {p for b in self.blocks for p in b.params}
        self.sizes = _named_sizes(self.blocks) - _named_sizes(set(graph.blocks) - self.blocks) - _names(d for i in graph.inputs for d in _dims(i.value))
        self.made: set[Value] = set()
        self.stored = {n.operands[0].root for b in self.blocks for n in b.nodes if n.effect}
        self.inputs = {i.value for i in graph.inputs}
        self.whole: dict[Value, tuple[Value, int, Dim]] = {}  # value of a round -> that of all rounds, its axis of rounds, the index
        rounds = self._rounds()
        for block in self.always:
            kept: list[Node] = []
            for node in block.nodes:
                checkpoint()
                if self._move(node):
                    continue
                if rounds is not None:
                    self._item(node, rounds)
                kept.append(node)
            block.nodes = kept

    def _state_before(self) -> State:
        """The header's state with the values that the first round gets."""
        assert isinstance(self.before.end, Jump) and self.header.state is not None
        first = dict(zip(self.header.params, self.before.end.args, strict=True))

        copies: dict[int, Aggregate] = {}

        def tree(t: Tree) -> Tree:
            if isinstance(t, Value):
                return first.get(t, t)
            if isinstance(t, Aggregate):
                if id(t) not in copies:
                    copies[id(t)] = Aggregate(t.kind, tuple(map(tree, t.items)))
                return copies[id(t)]
            return t

        return State(tuple(Level(v.bound, v.pc, tuple(map(tree, v.locals)), tuple(map(tree, v.stack)), tuple((n, by, tree(t)) for n, by, t in v.symbols))
                           for v in self.header.state.levels))

    # -- what does not change

    def _fixed(self, v: Value) -> bool:
        """Whether a value, and what its memory holds, is the same in all rounds."""
        root = v.root
        return v not in self.local and (not self.stored or root in self.inputs or _is_new(root) and root not in self.stored)

    def _move(self, node: Node) -> bool:
        """Move a node whose operands do not change before the loop."""
        if node.op == "view" and node.attrs["kind"] in MOVED_VIEWS and self._fixed(node.operands[0]):
            self._place(node)
            return True
        if not _is_op(node) or not node.operands or not all(self._fixed(v) or _is_number(v) for v in node.operands):
            return False
        if all(_is_number(v) or not isinstance(v.type, Tensor) for v in node.operands) or self.sizes and not self.sizes.isdisjoint(_asked_sizes(node)):
            return False
        made = self._demands(node, [v.type.dims if isinstance(v.type, Tensor) else () for v in node.operands])
        if made != _dims(node.results[0]):
            return False
        node.operands = tuple(self._fixed_copy(v) for v in node.operands)
        self._place(node)
        return True

    def _place(self, node: Node) -> None:
        node.state = self.state
        self.before.nodes.append(node)
        self.local.difference_update(node.results)

    def _fixed_copy(self, v: Value) -> Value:
        """A number that the loop makes anew in each round, made before it."""
        if self._fixed(v):
            return v
        assert v.node is not None
        return self._new(Node("fill", (), dict(v.node.attrs), (), None, v.node.where), v.type)

    def _new(self, node: Node, type: Any) -> Value:
        self.graph.n_values += 1
        value = Value(self.graph.n_values, type, node)
        node.results = (value,)
        self.made.add(value)
        self.before.nodes.append(node)
        return value

    def _demands(self, node: Node, shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
        """Put the checks of an op on operands of these dims before the loop; the dims of its result. None: it cannot be."""
        found: list[dict[str, Any]] = []
        try:
            dims = result_dims(ShapeRequests(lambda _, **check: found.append(check)), node.attrs["op"], shapes, node.attrs.get("attrs", {}))
        except Unsupported:
            return None
        for check in found:
            self.before.nodes.append(Node("check", (), check, (), self.state, node.where))
        return tuple(dims)

    # -- one item a round

    def _rounds(self) -> tuple[set[Dim], Dim] | None:
        """The dims that count rounds 0, 1, ... and their number; None if this loop does not count."""
        end = self.header.end
        if not isinstance(end, Branch) or end.then.target not in self.blocks or end.orelse.target in self.blocks:
            return None
        test = end.condition.node
        if test is None or test.op != "scalar" or test.attrs["fn"] != "lt" or test not in self.header.nodes:
            return None
        counter, limit = test.operands
        if counter not in self.header.params or limit.dim is None or counter.dim is None or limit.node is not None and limit.node.op not in ("dim", "const"):
            return None
        at = self.header.params.index(counter)
        assert isinstance(self.before.end, Jump)
        first = self.before.end.args[at]
        after = next(j for j in jumps(self.latch.end) if j.target is self.header).args[at]
        if not _is_int(first, 0) or after.node is None or after.node.op != "scalar" or after.node.attrs["fn"] != "add":
            return None
        a, b = after.node.operands
        if not (a is counter and _is_int(b, 1) or b is counter and _is_int(a, 1)):
            return None
        counts = {counter.dim}
        for block in self.blocks:
            counts.update(n.results[0].dim for n in block.nodes if n.op == "scalar" and n.attrs["fn"] in ("wrap", "int") and n.operands[0] is counter
                          and n.results[0].dim is not None)
        return counts, limit.dim

    def _item(self, node: Node, rounds: tuple[set[Dim], Dim]) -> None:
        """A product of one item of a tensor becomes that item of the product of all; elementwise ops on such items follow it."""
        if node.op == "view" and node.attrs["kind"] == "slice" and self._fixed(node.operands[0]):
            source, items = _dims(node.operands[0]), node.attrs["items"]
            indices = [i for i, item in enumerate(items) if item[0] == "index"]
            whole = tuple(d for i, d in enumerate(source) if i not in indices)
            if len(indices) == 1 and whole == _dims(node.results[0]) and all(i[0] == "index" or i[2] == 1 and i[1].value == 0 for i in items):
                axis = indices[0]
                if items[axis][1] in rounds[0] and source[axis] is rounds[1]:
                    self.whole[node.results[0]] = (node.operands[0], axis, items[axis][1])
            return
        if not _is_op(node) or node.results[0] in self.whole:
            return
        op = node.attrs["op"]
        taken = [self.whole[v] for v in node.operands if v in self.whole]
        if not taken or any(t[1:] != taken[0][1:] for t in taken) or not all(v in self.whole or self._fixed(v) or _is_number(v) for v in node.operands):
            return
        _, axis, index = taken[0]
        rank = len(_dims(node.results[0]))
        if isinstance(op.form, Library) and op.name == "matmul":
            a, b = node.operands
            if a not in self.whole or b in self.whole or len(_dims(b)) != 2 or axis >= len(_dims(a)):  # the axis of rounds is not the one summed over
                return
        elif isinstance(op.form, ScalarExpr) and any(t[0] in self.made for t in taken):
            if any(len(_dims(v)) != rank if v in self.whole else isinstance(v.type, Tensor) and len(_dims(v)) > rank - axis for v in node.operands):
                return
        else:
            return
        operands = [self.whole[v][0] if v in self.whole else v for v in node.operands]
        result = node.results[0]
        dims = _dims(result)
        expected = (*dims[:axis], rounds[1], *dims[axis:])
        if self._demands(node, [_dims(v) if isinstance(v.type, Tensor) else () for v in operands]) != expected:
            return
        t = result.type
        assert isinstance(t, Tensor)
        moved = Node("op", tuple(self._fixed_copy(v) for v in operands), dict(node.attrs), (), self.state, node.where)
        every = self._new(moved, Tensor(t.library, t.dtype, expected))
        node.op, node.operands = "view", (every,)
        node.attrs = {"kind": "slice", "items": tuple(("index", index) if i == axis else ("slice", Dim.const(0), 1) for i in range(len(expected)))}
        result.root = every.root
        self.whole[result] = (every, axis, index)


def _dims(v: Value) -> tuple[Dim, ...]:
    return v.type.dims if isinstance(v.type, Tensor) else ()


def _named_sizes(blocks: set[Block]) -> set[Atom]:
    """Sizes that have a name because of what these blocks compute, or get on entry."""
    values = [p for b in blocks for p in b.params] + [r for b in blocks for n in b.nodes if n.op in ("scalar", "dim", "item") and names_a_size(n) for r in n.results]
    return _names(d for v in values for d in (*_dims(v), *((v.dim,) if v.dim is not None else ())))


def _asked_sizes(node: Node) -> set[Atom]:
    """What the sizes of an op's result are made of: they may be those of no operand."""
    asked = [d for given in node.attrs.get("attrs", {}).values() for d in (given if isinstance(given, tuple) else (given,)) if isinstance(d, Dim)]
    return _names([*_dims(node.results[0]), *asked])


def _names(dims: Iterable[Dim]) -> set[Atom]:
    """The symbols and run-time values in dims."""
    return {leaf for d in dims for leaf in d.leaves()}


def _is_op(node: Node) -> bool:
    return node.op == "op" and not node.attrs["op"].effects and len(node.results) == 1 and isinstance(node.attrs["op"].form, (ScalarExpr, Reduction, Library))


def _is_new(v: Value) -> bool:
    """Memory that this call has made for this value."""
    return v.node is not None and v.node.op in ("op", "fill", "copy")


def _is_number(v: Value) -> bool:
    """A constant as a tensor of rank 0."""
    return v.node is not None and v.node.op == "fill" and not v.node.operands and "written" not in v.node.attrs and isinstance(v.type, Tensor) and not v.type.dims


def _is_int(v: Value, value: int) -> bool:
    return v.node is not None and v.node.op == "const" and isinstance(v.type, Scalar) and v.type.kind == "int" and v.node.attrs["value"] == value
