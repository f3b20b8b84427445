"""Partition of each block into regions, each of which becomes one kernel, and single steps, in an order that keeps
dependences, effects and checks.

Positions: every region and every step that writes memory has a position, increasing in the order of creation. Light nodes
(scalars, checks, views) run directly after the position of the last thing they need: checks thus move up as far as they can. A
node may join a region if all it needs lies before that region's position. `base` is the position of the last store: nothing crosses it.
A check is a barrier: it may be what makes a later node's sizes valid, so no later node joins a region placed before it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bcvm.compiler.optimise import can_exit, end_values, entry_values, is_region_op
from bcvm.compiler.region import RegionInput, RegionOutput, RegionSpec, Step
from bcvm.ops.definition import Library, Reduction
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Block, Graph, Node, State, Value
from bcvm.specialise.types import Scalar, Tensor
from bcvm.turns import checkpoint

MAX_STEPS = 64     # of one region: beyond it registers spill
MAX_OPERANDS = 16  # inputs and outputs of one region
# Ops so cheap that computing them again for each row of a broadcast costs less than writing the result to memory.
CHEAP = frozenset({"add", "sub", "mul", "neg", "pos", "abs", "square", "sign", "maximum", "minimum", "fmax", "fmin", "clip", "where", "copysign", "eq", "ne", "lt", "le",
                   "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "and_", "or_", "xor", "invert", "lshift", "rshift", "isnan", "isinf",
                   "isfinite", "cast", "relu", "relu6", "leaky_relu", "floor", "ceil", "trunc", "rint", "maximum_ms", "minimum_ms", "relu_ms", "sign_ms", "fill", "copy"})
NEVER = 1 << 60

Dims = tuple[Dim, ...]


@dataclass(eq=False)
class RegionCall:
    """A region of a block. space: the dims iterated over; reduce: the run [first, last) of axes that are reduced, or None.
    levels: per output 'full', 'keep' (reduced axes are 1) or 'flat' (reduced axes are gone).
    assume: pairs of dims that must be equal, which is known at run time only (a weight's size and a row's); where they are not, the
    regions `split` do the same work.
    store: the store that is all the only output is for; the kernel writes there where that is safe.
    maker: the library op whose result, read as `made`, is for this region alone: its kernel finishes each block of its result with the region (see epilogues)."""

    spec: RegionSpec
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    levels: tuple[str, ...]
    space: Dims
    reduce: tuple[int, int] | None
    nodes: tuple[Node, ...]
    policy: str
    decision: str
    assume: tuple[tuple[Dim, Dim], ...] = ()
    split: tuple["RegionCall", ...] = ()
    store: Node | None = None
    maker: Node | None = None
    made: Value | None = None


PlanStep = RegionCall | Node


def plan(graph: Graph, uses: dict[Value, int], fusion: bool = True) -> dict[Block, list[PlanStep]]:
    """The steps of every block, in the order in which the driver runs them. uses: as counted. fusion: False makes every op a kernel of its own."""
    most = MAX_STEPS if fusion else 1
    return {block: _join_stores(_Partition(block.nodes, uses, fusion, most, block.state).run(), uses) for block in graph.blocks}


def _join_stores(steps: list[PlanStep], uses: dict[Value, int]) -> list[PlanStep]:
    """A region whose only output is only stored becomes one step with the store, at the store's place."""
    makers: dict[Value, RegionCall] = {}
    gone: set[int] = set()
    out = list(steps)
    for n, step in enumerate(steps):
        if isinstance(step, RegionCall):
            if len(step.outputs) == 1 and uses[step.outputs[0]] == 1:
                makers[step.outputs[0]] = step
        elif step.op == "store":
            target, value = step.operands
            call = makers.get(value)
            if call is not None and len(dims_of(value)) == len(dims_of(target)):
                call.store = step
                call.decision += " [IN PLACE]"
                out[n] = call
                gone.add(id(call))
            makers.clear()  # what reads memory does not cross a store
    return [s for n, s in enumerate(out) if s is not steps[n] or id(s) not in gone]


def dims_of(value: Value) -> Dims:
    assert isinstance(value.type, Tensor)
    return value.type.dims


def dtype_of(value: Value) -> str:
    assert isinstance(value.type, Tensor)
    return value.type.dtype


def is_box(node: Node | None) -> bool:
    """A tensor of rank 0 made of a number: kept in a stack slot, or written into the regions that use it."""
    if node is None or node.op not in ("fill", "op") or not isinstance(node.results[0].type, Tensor) or node.results[0].type.dims:
        return False
    if node.op == "fill":
        return "written" not in node.attrs
    return node.attrs["op"].name == "cast" and isinstance(node.operands[0].type, Scalar)


def is_constant(value: Value) -> bool:
    node = value.node
    return node is not None and not node.operands and is_box(node)


def is_region_node(node: Node) -> bool:
    if is_box(node):
        return False
    return is_region_op(node) or node.op in ("copy", "fill")


def count_uses(graph: Graph) -> dict[Value, int]:
    """How often each value is read."""
    uses: dict[Value, int] = {}
    left_at: dict[State, int] = {}
    for block in graph.blocks:
        read = end_values(block.end) + entry_values(block)
        for node in block.nodes:
            checkpoint()
            read.extend(node.operands)
            if node.state is not None and can_exit(node):
                left_at[node.state] = left_at.get(node.state, 0) + 1
        for v in read:
            uses[v] = uses.get(v, 0) + 1
    for state, times in left_at.items():
        for v in state.values():
            uses[v] = uses.get(v, 0) + times
    return uses


def reduced_dims(space: Dims, run: tuple[int, int], keep: bool) -> Dims:
    one = (Dim.const(1),) * (run[1] - run[0]) if keep else ()
    return space[:run[0]] + one + space[run[1]:]


def constant_over(dims: Dims, rank: int, run: tuple[int, int]) -> bool:
    """Whether a right-aligned operand is known to be one element over these axes of a space of this rank."""
    shift = rank - len(dims)
    return all(axis < shift or dims[axis - shift].value == 1 for axis in range(*run))


def one_element(space: Dims, run: tuple[int, int]) -> bool:
    """Whether a row is known to have one element; nothing is told apart from the row's elements then."""
    return all(space[i].value == 1 for i in range(*run))


class _Region:
    def __init__(self, position: int, space: Dims) -> None:
        self.position, self.space = position, space
        self.reduce: tuple[int, int] | None = None
        self.nodes: list[Node] = []
        self.level: dict[Value, str] = {}
        self.uniform: set[Value] = set()          # the same for all elements of a row, by construction
        self.inputs: dict[Value, int] = {}        # number of uses in this region
        self.open: dict[Value, int] = {}          # uses outside
        self.first_use = NEVER                    # position of the first step outside that reads a value of this region
        self.note = ""
        self.assume: dict[tuple[Dim, Dim], None] = {}

    @property
    def column(self) -> bool:
        return self.reduce is not None and self.reduce[1] < len(self.space)


class _Partition:
    """speculate: elementwise ops beside a reduction, and ops that are dear to repeat, join on the assumption that sizes that may be broadcast are not.
    start: the state on entry of the block, which names nothing that is made in it."""

    def __init__(self, nodes: Sequence[Node], uses: dict[Value, int], speculate: bool = True, most: int = MAX_STEPS, start: State | None = None) -> None:
        self.nodes, self.uses, self.speculate, self.most, self.start = nodes, uses, speculate, most, start
        self.count = 0
        self.base = 0
        self.barrier = 0
        self.heavy: dict[int, _Region | Node] = {}
        self.light: dict[int, list[Node]] = {0: []}
        self.home: dict[Value, _Region] = {}
        self.position: dict[Value, int] = {}
        self.reader: dict[Value, _Region] = {}
        self.order: dict[int, int] = {}
        self.atoms: dict[Any, int] = {}  # run-time ints that this block defines

    def run(self) -> list[PlanStep]:
        for number, node in enumerate(self.nodes):
            checkpoint()
            self.order[id(node)] = number
            if is_region_node(node):
                self._region_node(node)
            elif node.effect or (node.op == "op" and not is_box(node)):
                self._single(node)
            else:
                self._light(node)
        out: list[PlanStep] = list(self.light[0])
        for position in sorted(self.heavy):
            checkpoint()
            step = self.heavy[position]
            out.append(self._finish(step) if isinstance(step, _Region) else step)
            out.extend(self.light.get(position, ()))
        return out

    def _place(self, value: Value) -> int:
        region = self.home.get(value)
        return region.position if region is not None else self.position.get(value, 0)

    def _needs(self, node: Node) -> tuple[Value, ...]:
        if node.state is None or node.state is self.start or not can_exit(node):
            return node.operands
        return node.operands + node.state.values()

    def _read(self, values: Sequence[Value], position: int) -> None:
        for v in values:
            region = self.home.get(v)
            if region is not None:
                region.first_use = min(region.first_use, position)

    def _light(self, node: Node) -> None:
        needs = self._needs(node)
        place = max([self.base, *map(self._place, needs), *(self._dim_place(node))])
        if node.op in ("check", "guard"):
            self.barrier = max(self.barrier, place)
        elif node.op not in ("scalar", "const", "dim") and not is_box(node):
            place = max(place, self.barrier)
        self._read(needs, place)
        self.light.setdefault(place, []).append(node)
        for r in node.results:
            self.position[r] = place
            self._bind(r, place)

    def _bind(self, value: Value, place: int) -> None:
        atoms = value.dim.atoms() if value.dim is not None else ()
        if len(atoms) == 1:
            self.atoms.setdefault(next(iter(atoms)), place)

    def _dim_place(self, node: Node) -> list[int]:
        """Where the run-time ints are defined that the dims of a node stand for."""
        if not self.atoms:
            return []
        dims: list[Dim] = [a for a in node.attrs.values() if isinstance(a, Dim)]
        for item in node.attrs.get("items", ()):
            dims.extend(d for d in item[1:] if isinstance(d, Dim))
        for r in node.results:
            if isinstance(r.type, Tensor):
                dims.extend(r.type.dims)
        return [self.atoms[leaf] for d in dims if d.value is None for leaf in d.leaves() if leaf in self.atoms]

    def _single(self, node: Node) -> None:
        self.count += 1
        self.heavy[self.count] = node
        self._read(self._needs(node), self.count)
        for r in node.results:
            self.position[r] = self.count
        if node.effect:
            self.base = self.barrier = self.count

    # -- regions

    def _region_node(self, node: Node) -> None:
        floor = max([self.base, self.barrier, *self._dim_place(node),
                     *(self.position.get(v, 0) for v in node.operands if v not in self.home and not is_constant(v))])
        homes = {self.home[v] for v in node.operands if v in self.home}
        if not homes:  # a sibling that reads the same tensor
            homes = {r for v in node.operands if (r := self.reader.get(v)) is not None and r.space == self._space(node)}
            homes = set(sorted(homes, key=lambda r: -r.position)[:1])
        ordered = sorted(homes, key=lambda r: -r.position)
        note = ""
        if ordered and ordered[0].position > floor:
            target = ordered[0]
            reason = self._fits(node, [target])
            if not reason:
                others = [r for r in ordered[1:] if r.first_use >= target.position and r.position > self.base]
                for r in others:
                    if not self._fits(node, [target, r]):
                        self._merge(r, target)
                self._join(node, target)
                return
            # The node does not fit the last producer alone: perhaps all of them together.
            others = [r for r in ordered[1:] if r.first_use >= target.position and r.position > self.base]
            if others and not self._fits(node, [target, *others]):
                for r in others:
                    self._merge(r, target)
                self._join(node, target)
                return
            note = reason
        self.count += 1
        region = _Region(self.count, self._space(node))
        region.note = note
        self.heavy[self.count] = region
        self._join(node, region)

    def _space(self, node: Node) -> Dims:
        if node.op == "op" and isinstance(node.attrs["op"].form, Reduction):
            return dims_of(node.operands[0])
        return dims_of(node.results[0])

    def _axes(self, node: Node) -> tuple[int, int] | None:
        if node.op == "op" and isinstance(node.attrs["op"].form, Reduction):
            axis = node.attrs["attrs"]["axis"]
            axes = (axis,) if isinstance(axis, int) else tuple(sorted(axis))
            return (axes[0], axes[-1] + 1) if axes else (len(self._space(node)), len(self._space(node)))
        return None

    def _fits(self, node: Node, regions: list[_Region]) -> str:
        """Why the node cannot become part of these regions taken as one; '' if it can."""
        if sum(len(r.nodes) for r in regions) >= self.most:
            return f"a region has at most {self.most} steps"
        inside = {v: r for r in regions for v in r.level}
        operands = {v for r in regions for v in r.inputs if v not in inside} | {v for v in node.operands if v not in inside and not is_constant(v)}
        taken: dict[Value, int] = {}
        for v in node.operands:
            taken[v] = taken.get(v, 0) + 1
        for r in regions:
            for v, n in r.inputs.items():
                if v in inside:
                    taken[v] = taken.get(v, 0) + n
        still_open = [v for r in regions for v, n in r.open.items() if n > taken.get(v, 0)]
        if len(operands) + len(still_open) + 1 > MAX_OPERANDS:
            return f"a region has at most {MAX_OPERANDS} inputs and outputs"
        run = self._axes(node)
        space = self._space(node)
        reducing = [r for r in regions if r.reduce is not None]
        if reducing:
            first = reducing[0]
            if any(r.space != first.space or r.reduce != first.reduce for r in reducing):
                return "reductions over different axes or sizes"
            assert first.reduce is not None
            if run is not None and (run != first.reduce or self._pairs(space, first.space, regions) is None):
                return f"another reduction: {_show(space)} axes {run} vs {_show(first.space)} axes {first.reduce}"
            if run is None:
                level = self._level(node, first, inside, regions)
                if level not in ("full", "keep", "flat"):
                    return level
            space, run = first.space, first.reduce
        if run is not None and run[1] < len(space) and any(inside[v].level[v] == "full" for v in still_open):
            return "a region that reduces over rows has reduced results only"
        if run is not None and run[1] < len(space) and any(
                r.level[n.results[0]] == "full" and any(v in inside and inside[v].level[v] != "full" for v in n.operands) for r in regions for n in r.nodes):
            return "after a reduction over rows only its results are read"
        if self._axes(node) is not None:
            v = node.operands[0]
            home = inside.get(v)
            if home is not None and (home.level[v] != "full" or v in home.uniform or self._pairs(dims_of(v), space, regions) is None):
                return "a reduction of a value that is no element per point of the region"
        for r in regions:
            if r.space == space:
                continue
            if not _broadcasts(r.space, space):
                return f"shape mismatch: {_show(r.space)} vs {_show(space)}"
            if any(dims_of(v) != space for v in still_open if inside[v] is r):
                return f"a result of {_show(r.space)} is needed outside, the region has {_show(space)}"
            if r.space and any(_name(n) not in CHEAP for n in r.nodes) and (_smaller(r.space, space) or not self.speculate):
                return f"broadcast: {_show(r.space)} would be computed again for {_show(space)}"
        return ""

    def _pairs(self, dims: Dims, space: Dims, regions: Sequence[_Region]) -> list[tuple[Dim, Dim]] | None:
        """What must be assumed for these dims to be those; None if that cannot be, or nothing may be assumed."""
        if len(dims) != len(space):
            return None
        pairs = [(d, s) for d, s in zip(dims, space, strict=True) if d is not s]
        if not pairs:
            return pairs
        known = any(r.reduce is not None for r in regions) and self.speculate
        return pairs if known and not any(d.value == 1 or s.value == 1 or (d.is_const and s.is_const) for d, s in pairs) else None

    def _level(self, node: Node, region: _Region, inside: dict[Value, _Region], regions: Sequence[_Region]) -> str:
        """'full', 'keep' or 'flat' for an elementwise node beside the reduction of a region; else the reason why not."""
        space, run = region.space, region.reduce
        assert run is not None
        dims = dims_of(node.results[0])
        kinds: set[str] = set()
        for v in node.operands:
            if not isinstance(v.type, Tensor) or is_constant(v):
                continue
            if v in inside:
                kinds.add("uniform" if v in inside[v].uniform and not dims_of(v) else inside[v].level[v])
            elif not v.type.dims:
                kinds.add("uniform")
            else:
                kinds.add("splat" if not one_element(space, run) and constant_over(v.type.dims, len(space), run) else "full")
        if region.column and kinds & {"uniform", "splat"} and kinds & {"keep", "flat"}:
            return "after a reduction over rows only its results are read"
        if "flat" in kinds and dims and run == (0, len(space)):  # one element: it broadcasts as a value that kept its axes does
            kinds = (kinds - {"flat"}) | {"keep"}
        if "flat" in kinds:
            if kinds <= {"flat", "uniform"} and self._pairs(dims, reduced_dims(space, run, keep=False), regions) is not None:
                return "flat"
            return "a reduced value without its axes is used at another alignment"
        if kinds <= {"keep", "splat", "uniform"} and "keep" in kinds and self._pairs(dims, reduced_dims(space, run, keep=True), regions) is not None:
            return "keep"
        if self._pairs(dims, space, regions) is None:
            return f"shape mismatch: {_show(dims)} vs {_show(space)}"
        if region.column:
            return "a region that reduces over rows has reduced results only"
        return "full"

    def _merge(self, source: _Region, target: _Region) -> None:
        """Move a region to the position of a later one. Nothing between reads it."""
        del self.heavy[source.position]
        if source.reduce is not None or len(source.space) > len(target.space):
            target.space, target.reduce = source.space, source.reduce or target.reduce
        for v in source.level:
            self.home[v] = target
        target.level.update(source.level)
        target.uniform |= source.uniform
        target.assume.update(source.assume)
        target.open.update(source.open)
        target.nodes = source.nodes + target.nodes
        target.first_use = min(target.first_use, source.first_use if source.first_use > target.position else NEVER)
        for v in list(target.inputs):
            if v in source.level:
                target.open[v] -= target.inputs.pop(v)
                if not target.open[v]:
                    del target.open[v]
        for v, n in source.inputs.items():
            target.inputs[v] = target.inputs.get(v, 0) + n
            self.reader[v] = target

    def _join(self, node: Node, region: _Region) -> None:
        run = self._axes(node)
        result = node.results[0]
        if run is not None:
            if region.reduce is None:
                region.reduce, region.space = run, self._space(node)
            self._assume(region, self._space(node), region.space)
            level = "keep" if node.attrs["attrs"].get("keepdims") else "flat"
        elif region.reduce is not None:
            level = self._level(node, region, dict.fromkeys(region.level, region), [region])
            self._assume(region, dims_of(result), {"full": region.space, "keep": reduced_dims(region.space, region.reduce, True),
                                                   "flat": reduced_dims(region.space, region.reduce, False)}[level])
        else:
            level = "full"
            region.space = dims_of(result)
        uniform = run is None
        for v in node.operands:
            if is_constant(v):
                continue
            if v in region.level:
                region.open[v] -= 1
                if not region.open[v]:
                    del region.open[v]
                uniform = uniform and v in region.uniform
            else:
                region.inputs[v] = region.inputs.get(v, 0) + 1
                self._read([v], region.position)
                self.reader[v] = region
                uniform = uniform and (not isinstance(v.type, Tensor) or not v.type.dims)
        region.nodes.append(node)
        region.level[result] = level
        if uniform:
            region.uniform.add(result)
        if self.uses.get(result):
            region.open[result] = self.uses[result]
        self.home[result] = region

    def _assume(self, region: _Region, dims: Dims, space: Dims) -> None:
        region.assume.update(dict.fromkeys((d, s) for d, s in zip(dims, space, strict=True) if d is not s))

    def _finish(self, region: _Region) -> RegionCall:
        nodes = sorted(region.nodes, key=lambda n: self.order[id(n)])
        outputs = [v for n in nodes for v in n.results if v in region.open]
        call = make_call(nodes, region.space, region.reduce, region.level, outputs, region.note)
        for n in nodes:
            made = n.results[0]
            if _name(n) not in CHEAP and region.level[made] == "full" and made not in region.uniform and len(dims_of(made)) == len(region.space):
                self._assume(region, dims_of(made), region.space)
        if region.assume:
            call.assume = tuple(region.assume)
            uses = dict.fromkeys(outputs, 1)
            for n in nodes:
                for v in n.operands:
                    uses[v] = uses.get(v, 0) + 1
            call.split = tuple(s for s in _Partition(nodes, uses, speculate=False).run() if isinstance(s, RegionCall))
            call.decision += f" [SPLIT where {' or '.join(f'{d} != {s}' for d, s in call.assume)}]"
        return call


def make_call(nodes: list[Node], space: Dims, run: tuple[int, int] | None, level: dict[Value, str], outputs: list[Value], note: str = "") -> RegionCall:
    """The kernel specification of these nodes."""
    inside = {n.results[0] for n in nodes}
    inputs = list(dict.fromkeys(v for n in nodes for v in n.operands if v not in inside and not is_constant(v)))
    number: dict[Any, int] = {v: i for i, v in enumerate(inputs)}
    steps: list[Step] = []

    def add(key: Any, step: Step) -> int:
        number[key] = len(inputs) + len(steps)
        steps.append(step)
        return number[key]

    def constant(value: Any, dtype: str) -> int:
        key = ("const", dtype, type(value).__name__, repr(value))
        return number[key] if key in number else add(key, Step("const", (), dtype, (("value", value),)))

    for n in nodes:
        dtype = dtype_of(n.results[0])
        if n.op == "fill" and not n.operands:
            number[n.results[0]] = constant(n.attrs["value"], dtype)
            continue
        args = tuple(constant(v.node.attrs["value"], dtype_of(v)) if v.node is not None and is_constant(v) else number[v] for v in n.operands)
        if n.op in ("copy", "fill"):
            add(n.results[0], Step("cast", args, dtype, (("dtype", dtype),)))
            continue
        op = n.attrs["op"]
        attrs = {k: v for k, v in n.attrs.get("attrs", {}).items() if not (isinstance(op.form, Reduction) and k in ("axis", "keepdims"))}
        add(n.results[0], Step(op.name, args, dtype, tuple(sorted(attrs.items()))))
    rank = max(kernel_rank(len(space), run), 1)
    row = run if run is not None and run[1] == len(space) else (len(space) - 1, len(space))
    one_row = not space or one_element(space, (max(row[0], 0), row[1]))
    ins = tuple(RegionInput(_input_dtype(v, nodes), not isinstance(v.type, Tensor) or not v.type.dims
                            or (not one_row and constant_over(v.type.dims, len(space), (max(row[0], 0), row[1])))) for v in inputs)
    outs = tuple(RegionOutput(number[v], dtype_of(v), level[v] != "full") for v in outputs)
    column = run is not None and run[1] < len(space)
    spec = RegionSpec(rank, ins, tuple(steps), outs, "column" if column else "row")
    return RegionCall(spec, tuple(inputs), tuple(outputs), tuple(level[v] for v in outputs), space, run, tuple(nodes), _policy(nodes, inputs, run), _decision(nodes, note))


def kernel_rank(rank: int, run: tuple[int, int] | None) -> int:
    """Rank of the space a kernel sees: the reduced axes are merged into one."""
    return rank if run is None else rank - (run[1] - run[0]) + 1


def _input_dtype(value: Value, nodes: list[Node]) -> str:
    if isinstance(value.type, Tensor):
        return value.type.dtype
    reader = next(n for n in nodes if value in n.operands)  # a number fills a tensor: it is boxed in the result's dtype
    return dtype_of(reader.results[0])


def _name(node: Node) -> str:
    return str(node.attrs["op"].name) if node.op == "op" else node.op


def _broadcasts(narrow: Dims, wide: Dims) -> bool:
    return len(narrow) <= len(wide)


def _smaller(narrow: Dims, wide: Dims) -> bool:
    """Known to have fewer elements: another rank, or at most 1 where the other may have more."""
    shift = len(wide) - len(narrow)
    return shift > 0 or any(n is not w and _at_most_one(n) and not _at_most_one(w) for n, w in zip(narrow, wide[shift:], strict=True))


def _at_most_one(d: Dim) -> bool:
    return d.interval()[1] <= 1


def _show(dims: Dims) -> str:
    return f"[{','.join(map(str, dims))}]"


def _policy(nodes: list[Node], inputs: list[Value], run: tuple[int, int] | None) -> str:
    if run is not None:
        return "policy_003"
    makers = [v.node for v in inputs if v.node is not None and v.node.op == "op" and isinstance(v.node.attrs["op"].form, Library)]
    if any(m.attrs["op"].form.name in ("matmul", "conv2d") for m in makers):
        return "policy_002"
    if any(m.attrs["op"].form.name == "concat" for m in makers):
        return "policy_006"
    if all(dtype_of(n.results[0]) in ("float16", "bfloat16") for n in nodes):
        return "policy_001"
    return "policy_005"


def _decision(nodes: list[Node], note: str) -> str:
    text = f"[FUSED {len(nodes)} ops]" if len(nodes) > 1 else "[SINGLE op]"
    return text + (f" [REJECTED] {note}" if note else "")
