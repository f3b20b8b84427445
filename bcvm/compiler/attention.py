"""Attention in a Graph: matmul(softmax(matmul(q, kt) * scale, masked), v), spelled out as the ops it consists of, becomes one node.

What is found, from the last product back: w @ v with w = e / sum(e), e = exp(t - max(t)), both over the last axis; t is made from scores = q @ kt by at most one
multiplication or division with a number (a tensor of rank 0), then by masks: an addition, a `where` with a number, or `where(j <= i, t, -inf)` over counted rows and
columns. All of it lies in one block with no store between, and nobody else reads what lies between. Checks stay where they are. Keys and values that are joined of two
parts for this alone (a cache and what is new) are read where they lie.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bcvm.compiler.optimise import drop_dead
from bcvm.compiler.regions import count_uses
from bcvm.ops.definition import Library, Op
from bcvm.shapes.dim import Dim, product
from bcvm.specialise.ssa import Block, Graph, Node, Value
from bcvm.specialise.types import Tensor

DTYPES = ("float32", "float64")
POLICY = "policy_004"


def _cost(q: Any, kt: Any, v: Any, *_: Any, **__: Any) -> Any:
    """Flops and bytes: two products, and a softmax of about 12 flops a score."""
    scores = product(q[:-1]) * v[-2]
    return scores * (2 * q[-1] + 2 * v[-1] + 12), (product(q) + product(kt) + product(v)) * 8


ATTENTION = Op("attention", ("q", "kt", "v", "scale", "*masks"), Library("attention"), "same", attrs=("masks", "divide", "joined", "single"), cost=_cost,
               doc="softmax(q @ kt * scale, masked) @ v (see kernels/attention); divide: scale is a divisor; joined: kt and v have second parts; single: one row. The compiler's own.")


@dataclass(frozen=True, eq=False, repr=False)
class Fused:
    """What a node stands for, for those who ask (see regions.RegionCall)."""

    nodes: tuple[Node, ...]
    space: tuple[Dim, ...]
    decision: str
    policy: str = POLICY
    reduce: None = None
    kind: str = "attention"

    @property
    def spec(self) -> "Fused":
        return self

    def __repr__(self) -> str:
        return f"{self.policy} {self.decision}"


def fuse(graph: Graph) -> None:
    """Replace every attention of the graph, in place."""
    found = False
    uses = count_uses(graph) if any(_name(n) == "matmul" for b in graph.blocks for n in b.nodes) else {}
    for block in graph.blocks:
        order = list(block.nodes)
        places = {id(n): i for i, n in enumerate(order)}
        for node in order:
            if _name(node) == "matmul":
                found = _Match(graph, block, order, places, uses).replace(node) or found
    if found:
        drop_dead(graph)


def _name(node: Node | None) -> str:
    return "" if node is None else str(node.attrs["op"].name) if node.op == "op" else node.op


def _dims(value: Value) -> tuple[Dim, ...]:
    return value.type.dims if isinstance(value.type, Tensor) else ()


def _dtype(value: Value) -> str:
    return value.type.dtype if isinstance(value.type, Tensor) else ""


def _is_number(value: Value, dtype: str) -> bool:
    return isinstance(value.type, Tensor) and not value.type.dims and value.type.dtype == dtype


def _constant(value: Value) -> Any:
    """The number that a fill of rank 0 holds, if it is known now."""
    node = value.node
    return node.attrs["value"] if node is not None and node.op == "fill" and not node.operands and not _dims(value) and "written" not in node.attrs else None


class _Match:
    """One try. `taken`: the nodes that become part of the attention."""

    def __init__(self, graph: Graph, block: Block, order: list[Node], places: dict[int, int], uses: dict[Value, int]) -> None:
        self.graph, self.block, self.order, self.places, self.uses = graph, block, order, places, uses
        self.taken: list[Node] = []

    def replace(self, last: Node) -> bool:
        weights, v = last.operands
        dtype = _dtype(v)
        if dtype not in DTYPES or len(_dims(weights)) < 2 or len(_dims(v)) < 2:
            return False
        t = self._softmax(weights)
        if t is None:
            return False
        masks: list[str] = []
        operands: list[Value] = []
        scores = self._masks(t, masks, operands)
        scale, divide = None, False
        node = scores.node
        if _name(node) in ("mul", "truediv") and self._own(node, 2 if scores is t else 1):
            assert node is not None
            a, b = node.operands
            if _name(node) == "mul" and _is_number(a, dtype):
                a, b = b, a
            if _is_number(b, dtype) and _dims(a) == _dims(scores):
                self.taken.append(node)
                scores, scale, divide = a, b, _name(node) == "truediv"
        node = scores.node
        if _name(node) != "matmul" or not self._own(node, 2 if scores is t else 1):
            return False
        assert node is not None
        q, kt = node.operands
        if len(_dims(q)) < 2 or len(_dims(kt)) < 2:
            return False
        first, end = self.places[id(node)], self.places[id(last)]
        if any(n.effect for n in self.order[first:end]):
            return False
        self.taken.append(node)
        if scale is None:
            scale = self._one(dtype, last)
        parts = None if masks else self._parts(kt, v, last)
        if parts is not None:
            (kt, more), (v, more_v) = parts
            operands = [more, more_v]
        single = _dims(last.results[0])[-2].value == 1
        self._become(last, (q, kt, v, scale, *operands), {"masks": tuple(masks), "divide": divide, "joined": parts is not None, "single": single})
        return True

    def _own(self, node: Node | None, uses: int) -> bool:
        """Whether the node lies in this block and its result is read so many times."""
        return node is not None and id(node) in self.places and self.uses.get(node.results[0]) == uses

    def _take(self, value: Value, name: str, uses: int = 1) -> Node | None:
        node = value.node
        if _name(node) != name or not self._own(node, uses):
            return None
        assert node is not None
        self.taken.append(node)
        return node

    def _softmax(self, weights: Value) -> Value | None:
        """t of softmax(t) over the last axis."""
        rank = len(_dims(weights))
        divided = self._take(weights, "truediv") or self._take(weights, "mul")
        if divided is None:
            return None
        e, total = divided.operands
        if _name(divided) == "mul":
            inverse = self._take(total, "reciprocal")
            if inverse is None:
                return None
            total = inverse.operands[0]
        if self._reduced(total, "sum", e, rank) is None:
            return None
        power = self._take(e, "exp", 2)
        less = self._take(power.operands[0], "sub") if power is not None else None
        if less is None:
            return None
        t, largest = less.operands
        if self.uses.get(t) != 2 or self._reduced(largest, "max", t, rank) is None or _dims(t) != _dims(weights):
            return None
        return t

    def _reduced(self, value: Value, name: str, source: Value, rank: int) -> Node | None:
        """The reduction of `source` over its last axis, which is kept or put back by a view."""
        while value.node is not None and value.node.op == "view" and self._own(value.node, 1):
            view = value.node
            whole = view.attrs["kind"] == "slice" and _dims(value) == _dims(view.operands[0]) and all(i[0] == "slice" and i[2] == 1 for i in view.attrs["items"])
            if not whole and not (view.attrs["kind"] == "expand" and _axes(view.attrs["axis"]) == (rank - 1,)):
                return None
            self.taken.append(view)
            value = view.operands[0]
        node = self._take(value, name)
        if node is None or node.operands[0] is not source:
            return None
        attrs = node.attrs["attrs"]
        kept = bool(attrs.get("keepdims"))
        return node if _axes(attrs["axis"]) == (rank - 1,) and (kept or len(_dims(value)) == rank - 1) else None

    # -- masks

    def _masks(self, t: Value, masks: list[str], operands: list[Value]) -> Value:
        """Takes the masks off t, the last one first, as far as they are understood; they are listed in order. The scores below them."""
        first = True
        while True:
            node = t.node
            if node is None or id(node) not in self.places or self.uses.get(t) != (2 if first else 1):
                return t
            step = self._add(node) if _name(node) == "add" else self._where(node) if _name(node) == "where" else None
            if step is None:
                return t
            kind, inner, more = step
            self.taken.append(node)
            masks.insert(0, kind)
            operands[:0] = more
            t, first = inner, False

    def _add(self, node: Node) -> tuple[str, Value, tuple[Value, ...]] | None:
        a, b = node.operands
        for scores, mask in ((a, b), (b, a)):
            if self._leads_to_product(scores):
                return "add", scores, (mask,)
        return None

    def _where(self, node: Node) -> tuple[str, Value, tuple[Value, ...]] | None:
        condition, yes, no = node.operands
        dtype = _dtype(node.results[0])
        for scores, number, kind in ((yes, no, "keep"), (no, yes, "drop")):
            if _is_number(number, dtype) and self._leads_to_product(scores):
                if kind == "keep" and _constant(number) == -math.inf and self._is_causal(condition, scores):
                    return "causal", scores, ()
                return kind, scores, (condition, number)
        return None

    def _leads_to_product(self, value: Value) -> bool:
        """Whether a value is scores: a product, behind masks and at most one number."""
        node = value.node
        if not self._own(node, 1):
            return False
        assert node is not None
        name = _name(node)
        if name == "matmul":
            return True
        if name in ("mul", "truediv"):
            return any(_name(v.node) == "matmul" and self._own(v.node, 1) for v in node.operands[:1 if name == "truediv" else 2])
        if name == "add":
            return any(map(self._leads_to_product, node.operands))
        return name == "where" and any(map(self._leads_to_product, node.operands[1:]))

    def _is_causal(self, condition: Value, scores: Value) -> bool:
        """Whether it says j <= i for each row i and column j of the scores."""
        node = condition.node
        if node is None or node.op != "op" or node.attrs["op"].name not in ("le", "ge"):
            return False
        columns, rows = node.operands if node.attrs["op"].name == "le" else reversed(node.operands)
        dims = _dims(scores)
        return _counts(columns, dims[-1], column=True) and _counts(rows, dims[-2], column=False)

    # -- the result

    def _one(self, dtype: str, before: Node) -> Value:
        node = Node("fill", (), {"value": 1.0}, where=before.where)
        self.graph.n_values += 1
        library = before.results[0].type.library  # type: ignore[union-attr]
        value = Value(self.graph.n_values, Tensor(library, dtype, ()), node)
        node.results = (value,)
        self.block.nodes.insert(self.block.nodes.index(before), node)
        return value

    def _parts(self, kt: Value, v: Value, last: Node) -> tuple[tuple[Value, Value], tuple[Value, Value]] | None:
        """kt and v as two parts each, if they are joined of two for this alone: what a cache holds and what is new are read in place."""
        found = self._joined(kt, len(_dims(kt)) - 1), self._joined(v, len(_dims(v)) - 2)
        if found[0] is None or found[1] is None:
            return None
        first = min(self.places[id(chain[-1])] for chain in found if chain)
        if any(n.effect for n in self.order[first:self.places[id(last)]]):
            return None
        out = []
        for chain in found:
            assert chain is not None
            self.taken.extend(chain)
            a, b = (self._viewed(part, chain[:-1], last) for part in chain[-1].operands)
            out.append((a, b))
        return out[0], out[1]

    def _joined(self, value: Value, axis: int) -> list[Node] | None:
        """The transposition, if any, and the join of two along this axis that a value comes from."""
        chain: list[Node] = []
        node = value.node
        if node is not None and node.op == "view" and node.attrs["kind"] == "transpose" and self._own(node, 1):
            chain.append(node)
            axis = node.attrs["perm"][axis]
            node = node.operands[0].node
        if _name(node) != "concat" or not self._own(node, 1):
            return None
        assert node is not None
        return [*chain, node] if len(node.operands) == 2 and node.attrs["attrs"]["axis"] == axis else None

    def _viewed(self, part: Value, views: Sequence[Node], before: Node) -> Value:
        """The part seen through the same view."""
        for view in views:
            t = part.type
            assert isinstance(t, Tensor)
            node = Node("view", (part,), dict(view.attrs), where=view.where)
            self.graph.n_values += 1
            part = Value(self.graph.n_values, Tensor(t.library, t.dtype, tuple(t.dims[i] for i in view.attrs["perm"])), node, root=part)
            node.results = (part,)
            self.block.nodes.insert(self.block.nodes.index(before), node)
        return part

    def _become(self, last: Node, operands: Sequence[Value], attrs: dict[str, Any]) -> None:
        parts = (*sorted(self.taken, key=lambda n: self.places[id(n)]), Node(last.op, last.operands, last.attrs, last.results, None, last.where))
        gone = {id(n) for n in self.taken}
        last.operands, last.state = tuple(operands), None
        decision = f"[FUSED {len(parts)} ops]" + (" [IN PLACE]" if attrs["joined"] else "")
        last.attrs = {"op": ATTENTION, "attrs": attrs, "fused": Fused(parts, _dims(last.results[0]), decision)}
        self.block.nodes = [n for n in self.block.nodes if id(n) not in gone]


def _axes(axis: Any) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _counts(value: Value, size: Dim, column: bool) -> bool:
    """Whether a tensor counts 0, 1, ... along the last axis (column), or along the one before it."""
    node = value.node
    if node is not None and node.op == "view" and node.attrs["kind"] == "expand":
        axis = _axes(node.attrs["axis"])
        if axis != ((0,) if column else (1,)):
            return False
        value = node.operands[0]
        node = value.node
    elif not column:
        return False
    if _name(node) != "arange" or len(_dims(value)) != 1:
        return False
    assert node is not None
    start, step = (_constant(v) for v in node.operands)
    return start == 0 and step == 1 and _dims(value)[0] is size
