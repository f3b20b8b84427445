"""The specialiser: runs a program's instructions on types instead of values and writes down SSA.

Blocks are made where control flow joins. Work is taken in program order (inlined calls and unrolled iterations included),
so at a forward join all its predecessors are known and only what differs between them becomes a parameter. At a loop header,
what the loop assigns becomes parameters; the same header with other types is another version of the block.
"""
from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.bytecode.program import BoundProgram
from bcvm.errors import Unsupported
from bcvm.shapes.dim import Dim
from bcvm.specialise import settle
from bcvm.specialise.analysis import Analysis, analyse
from bcvm.specialise.copies import separate_scalars
from bcvm.specialise.resolve import SIZE_LIMIT, Resolver
from bcvm.specialise.ssa import (
    Aggregate,
    Block,
    Branch,
    Exit,
    Graph,
    Jump,
    Level,
    Node,
    Path,
    Return,
    Root,
    State,
    Terminator,
    Tree,
    Value,
    leaves,
    tree_key,
)
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor, Type
from bcvm.turns import checkpoint

VERSIONS = 8            # of one block, by the types of its parameters; then a side exit
RETURNS = 4             # types of results of a graph
NODE_BUDGET = 60_000    # nodes of a graph; then a side exit
INLINE_INSTRUCTIONS = 100_000
INLINE_DEPTH = 32
NAMED_WEIGHT = 5        # atoms of a dim beyond which it gets a name of its own


@dataclass(eq=False)
class Frame:
    """An abstract activation. unroll: (loop start, iteration) of the loops that are being unrolled around pc. symbols: sizes that hints have
    named, with what says so. receiver: the first argument."""

    bound: BoundProgram
    pc: int
    locals: list[Tree]
    stack: list[Tree]
    unroll: tuple[tuple[int, int], ...] = ()
    symbols: dict[str, tuple[str, Tree]] = field(default_factory=dict)
    receiver: Tree = None  # kept where the local is dead
    known: Analysis | None = None

    @property
    def analysis(self) -> Analysis:
        if self.known is None:
            self.known = analyse(self.bound.program)
        return self.known

    def copy(self) -> "Frame":
        return Frame(self.bound, self.pc, list(self.locals), list(self.stack), self.unroll, self.symbols, self.receiver, self.known)


Frames = tuple[Frame, ...]
Given = frozenset[tuple[Value, bool]]  # what flags are, where control has come
PositionKey = tuple[Any, ...]


@dataclass(eq=False)
class Edge:
    """A jump whose target is not made yet."""

    jump: Jump
    source: Block
    frames: Frames
    given: Given = frozenset()


@dataclass(eq=False)
class LoopVersion:
    block: Block
    frames: Frames  # the header's frames, parameters in place


class Machine:
    """Makes one Graph. `program_of` turns a Python function into a BoundProgram (the frontend's)."""

    def __init__(self, name: str, program_of: Callable[[Any], BoundProgram], constants: dict[Any, Any], leave_at: list[int] | None = None) -> None:
        from bcvm.specialise.builder import Builder
        from bcvm.specialise.instructions import EXECUTE
        self.execute = EXECUTE
        self.graph = Graph(name)
        self.program_of = program_of
        self.resolver = Resolver(self, constants)
        self.block: Block = None  # type: ignore[assignment]
        self.frames: Frames = ()
        self.pending: dict[PositionKey, list[Edge]] = {}
        self.heap: list[tuple[tuple[int, ...], int, PositionKey]] = []
        self.loops: dict[PositionKey, list[LoopVersion]] = {}
        self.returns: list[Edge] = []
        self.safe: State | None = None
        self.stored = False
        self.names: dict[tuple[int, Dim], Dim] = {}
        self.numbers: dict[Any, Value] = {}  # scalar nodes of a block by what they compute: one value has one dim
        self.stored_through: set[str] = set()  # dtypes of stores into what may be an input
        self.inlined = 0
        self.n_nodes = 0
        self.tick = 0
        self.leave_at, self.safe_points = leave_at, 0
        self.given: Given = frozenset()
        self.decided: dict[Value, set[Value]] = {}  # bools that are one thing or another by flags
        self.builder = Builder(self)

    # -- making SSA
    def new_value(self, type: Type, node: Node | None = None, dim: Dim | None = None, root: Value | None = None, name: str = "") -> Value:
        self.graph.n_values += 1
        return Value(self.graph.n_values, type, node, dim, root, name)

    def emit(self, op: str, operands: tuple[Value, ...] = (), type: Type | None = None, /, *, root: Value | None = None, **attrs: Any) -> Value:
        """Append a node with one result (or none, when type is None; then the result must not be used). root: what a view is a view of."""
        if isinstance(type, Tensor) and any([d.weight > NAMED_WEIGHT for d in type.dims]):
            type = replace(type, dims=tuple(map(self.named, type.dims)))
        key = (self.block.id, op, operands, tuple(attrs.items())) if op in ("scalar", "dim") else None
        if key in self.numbers:
            return self.numbers[key]
        node = Node(op, operands, attrs, state=self.safe, where=(self.frames[-1].bound.program, self.frames[-1].pc) if self.frames else None)
        value = self.new_value(type, node, attrs["dim"] if op == "dim" else None, root) if type is not None else None
        node.results = (value,) if value is not None else ()
        if key is not None and value is not None:
            self.numbers[key] = value
        self.block.nodes.append(node)
        self.n_nodes += 1
        if op == "store":
            self.stored = True
        return value  # type: ignore[return-value]

    def named(self, d: Dim) -> Dim:
        """A dim that takes long to write, as one symbol: computed once, so that expressions of it do not grow without end."""
        if d.weight <= NAMED_WEIGHT:
            return d
        key = (self.block.id, d)
        if key not in self.names:
            value = self.emit("scalar", (self.emit("dim", (), Scalar("int"), dim=d),), Scalar("int"), fn="int")
            value.dim = self.names[key] = Dim.opaque(value, *d.interval())
        return self.names[key]

    def const_value(self, value: Any, block: Block | None = None) -> Value:
        """A number constant as a Scalar value."""
        kind = type(value).__name__
        node = Node("const", attrs={"value": value}, state=self.safe)
        result = self.new_value(Scalar(kind), node, Dim.const(value) if kind == "int" else None)
        node.results = (result,)
        (block or self.block).nodes.append(node)
        return result

    def new_block(self) -> Block:
        block = Block(len(self.graph.blocks))
        self.graph.blocks.append(block)
        return block

    def state_of(self, frames: Frames) -> State:
        return State(tuple(Level(f.bound, f.pc + (0 if f is frames[-1] else 1), tuple(f.locals), tuple(f.stack),
                                 tuple((name, *size) for name, size in f.symbols.items()) if f.bound.program.return_hint else ()) for f in frames))

    # -- the walk
    def run(self, frames: Frames) -> Graph:
        block = self.new_block()
        if frames[-1].pc in frames[-1].analysis.loop_exit:  # the entry block has no parameters: a loop needs a header of its own
            self.block, self.frames = block, frames
            block.state = self.safe = self.state_of(frames)
            block.end = Jump(None, ())  # type: ignore[arg-type]
            self.goto(block.end, frames)
        else:
            self.start(block, frames)
        while self.heap:
            _, _, key = heapq.heappop(self.heap)
            edges = self.pending.pop(key, None)
            if edges:
                self.enter(key, edges)
        self.finish_returns()
        self.drop_unused_objects()
        separate_scalars(self.graph)
        for i in self.graph.inputs:
            if isinstance(i.value.type, Tensor) and not i.value.type.scalar and i.value.type.dtype in self.stored_through:
                i.writable = True
        return self.graph

    def start(self, block: Block, frames: Frames) -> None:
        """Run instructions into `block` from these frames up to its terminator."""
        self.block, self.frames = block, frames
        self.safe = block.state = self.state_of(frames)
        self.stored = False
        self.offer_exit()
        first = True
        while self.block.end is None:
            frame = self.frames[-1]
            if not first and frame.pc in frame.analysis.merges:
                jump = Jump(None, ())  # type: ignore[arg-type]
                self.end(jump)
                self.goto(jump, self.frames)
                return
            if self.stored:
                self.safe, self.stored = self.state_of(self.frames), False
                self.offer_exit()
            first = False
            self.step(frame)

    def offer_exit(self) -> None:
        """Test mode: leave here if the number in `leave_at` is this safe point's."""
        if self.leave_at is not None:
            self.emit("guard", (self.as_value(self.builder.scalar("ne", self.leave_number(), self.safe_points)),))
            self.safe_points += 1

    def leave_at_last(self, block: Block, frames: Frames) -> None:
        """Test mode: leave here in any case, so that the next call leaves elsewhere."""
        if self.leave_at is not None:
            self.block, self.frames, self.safe = block, frames, block.state
            self.emit("guard", (self.as_value(self.builder.scalar("lt", self.leave_number(), 0)),))

    def leave_number(self) -> Tree:
        assert self.leave_at is not None
        return self.resolver.wrap(self.leave_at[0], Path(Root("const", self.leave_at), (("item", 0),)))

    def step(self, frame: Frame) -> None:
        self.tick += 1
        checkpoint()
        if self.n_nodes > NODE_BUDGET:
            return self.leave(frame, "the graph is too large")
        opcode, operands = frame.bound.program.code[frame.pc]
        stack, depth = list(frame.stack), len(self.frames)
        frames, pc = self.frames, frame.pc
        try:
            self.execute[BY_OPCODE[opcode].name](self, frame, *operands)
        except Unsupported as e:
            self.frames = frames[:depth]
            frame.stack, frame.pc = stack, pc
            self.leave(frame, "unsupported: " + e.reason)

    def leave(self, frame: Frame, reason: str) -> None:
        """End the block here: the interpreter goes on at this instruction."""
        self.graph.callbacks.append((frame.bound.program, frame.pc, reason))
        self.end(Exit(self.state_of(self.frames), reason))

    def end(self, terminator: Terminator) -> None:
        self.block.end = terminator

    def replace(self, old: Value, new: Value) -> None:
        """Another value for the object that `old` is, wherever it is held."""
        memo: dict[int, Tree] = {}

        def changed(tree: Tree) -> Tree:
            if tree is old:
                return new
            if not isinstance(tree, Aggregate) or all(v is not old for v in leaves(tree)):
                return tree
            if id(tree) not in memo:
                memo[id(tree)] = Aggregate(tree.kind, tuple(changed(i) for i in tree.items))
            return memo[id(tree)]
        for frame in self.frames:
            frame.locals[:], frame.stack[:] = [changed(t) for t in frame.locals], [changed(t) for t in frame.stack]

    # -- control flow
    def branch(self, condition: Value, then_pc: int, else_pc: int, then_stack: Callable[[Frame], None] | None = None, else_stack: Callable[[Frame], None] | None = None) -> None:
        """End with a branch; the stack functions edit the new top frames."""
        sides = []
        flag, given = bool(self.flags_of(condition)) or settle.can_be(self, condition), self.given
        for pc, edit in ((then_pc, then_stack), (else_pc, else_stack)):
            frames = self.frames[:-1] + (self.frames[-1].copy(),)
            if edit:
                edit(frames[-1])
            frames[-1].pc = pc
            sides.append((Jump(None, ()), frames))  # type: ignore[arg-type]
        self.end(Branch(condition, sides[0][0], sides[1][0]))
        for (jump, frames), side in zip(sides, (True, False), strict=True):
            frames[-1].stack[:] = [Const(side) if t is condition else t for t in frames[-1].stack]  # what `and` and `or` keep
            self.given = given | {(condition, side)} if flag else given
            self.goto(jump, frames)

    def jump(self, pc: int) -> None:
        """Go on at pc: in this block if nothing joins there, else over an edge."""
        frame = self.frames[-1]
        frame.pc = pc
        self.trim_unroll(frame)
        if pc in frame.analysis.merges:
            jump = Jump(None, ())  # type: ignore[arg-type]
            self.end(jump)
            self.goto(jump, self.frames)

    def trim_unroll(self, frame: Frame) -> None:
        if frame.unroll:
            frame.unroll = tuple(u for u in frame.unroll if u[0] <= frame.pc < frame.analysis.loop_exit[u[0]])

    def goto(self, jump: Jump, frames: Frames) -> None:
        """Queue an edge to where the top frame stands."""
        top = frames[-1].copy()
        frames = frames[:-1] + (top,)
        self.trim_unroll(top)
        k = settle.iteration(self, top)
        if k is not None:
            top.unroll = tuple(u for u in top.unroll if u[0] != top.pc) + ((top.pc, k),)
        if top.pc < len(top.analysis.live):
            live = top.analysis.live[top.pc]
            top.locals = [t if i in live else None for i, t in enumerate(top.locals)]
        key = tuple((id(f.bound), f.unroll, f.pc) for f in frames)
        edges = self.pending.get(key)
        if edges is None:
            edges = self.pending[key] = []
            order = tuple(n for f in frames for n in (*(x for u in f.unroll for x in u), f.pc))
            heapq.heappush(self.heap, (order, len(self.heap) + self.tick, key))
        edges.append(Edge(jump, self.block, frames, self.given))

    def enter(self, key: PositionKey, edges: list[Edge]) -> None:
        top = edges[0].frames[-1]
        if top.pc in top.analysis.loop_exit and not any(start == top.pc for start, _ in top.unroll):
            return self.enter_loop(key, edges)
        groups: dict[Any, list[Edge]] = {}
        for edge in edges:
            groups.setdefault(frames_key(edge.frames), []).append(edge)
        if len(groups) > 1:
            self.bind_flag([frozenset.intersection(*(e.given for e in group)) for group in groups.values()])
        for group in groups.values():
            block = self.new_block()
            self.given = frozenset.intersection(*(e.given for e in group))
            frames = self.join(block, group, lambda frame_index, place: False)
            for edge in group:
                edge.jump.target = block
            self.start(block, frames)

    def bind_flag(self, groups: list[Given]) -> None:
        """Where variables have other types after the two sides of an `if` on a flag, or on sizes of weights, all that follows would be made once per side, and
        again at each later `if` on it. The flag is bound instead, so a graph has one side."""
        decided = {flag for flag, side in groups[0] if any((flag, not side) in other for other in groups[1:])}
        bound = [f for flag in decided for f in self.flags_of(flag)]
        for flag in bound:
            self.resolver.bind_flag(flag)
        if settle.ask(self, decided) or bound:
            raise settle.Again

    def flags_of(self, condition: Value) -> set[Value]:
        """The flags (bools that are passed or captured) that a bool is, or that say which of two it is."""
        read = self.resolver.scalars.get(condition)
        if read is not None:
            return {condition} if type(read[1]) is bool else set()
        return self.decided.get(condition, set())

    def enter_loop(self, key: PositionKey, edges: list[Edge]) -> None:
        versions = self.loops.setdefault(key, [])
        fresh: dict[Any, list[Edge]] = {}
        for edge in edges:
            if not any(self.match(version, edge) for version in versions):
                fresh.setdefault(frames_key(edge.frames), []).append(edge)
        for group in fresh.values():
            if versions:
                settle.unroll(self, versions[0].frames[-1], group[0].frames[-1])
            if len(versions) >= VERSIONS:
                self.exit_edges(group, "versions: the types of a loop's variables change too often")
                continue
            block = self.new_block()
            block.loop = True
            self.given = frozenset.intersection(*(e.given for e in group))
            frames = self.join(block, group, loop_changes(group[0].frames))
            for edge in group:
                edge.jump.target = block
            versions.append(LoopVersion(block, tuple(f.copy() for f in frames)))
            self.start(block, frames)

    def exit_edges(self, edges: list[Edge], reason: str) -> None:
        for edge in edges:
            block = self.new_block()
            edge.jump.target, edge.jump.args = block, ()
            block.state = self.state_of(edge.frames)
            block.end = Exit(block.state, reason)
            top = edge.frames[-1]
            self.graph.callbacks.append((top.bound.program, top.pc, reason))

    # -- joining
    def join(self, block: Block, edges: list[Edge], changes: Callable[[int, tuple[str, int]], bool]) -> Frames:
        """The frames at a join of edges of one type key. What differs, or `changes`, becomes a parameter of the block."""
        params: list[Value] = []
        arguments: list[list[Value]] = [[] for _ in edges]
        memo: dict[tuple[int, ...], Tree] = {}

        def merge(trees: list[Tree], force: bool) -> Tree:
            first = trees[0]
            if first is None:
                return None
            ids = tuple(map(id, trees)) + (force,)
            if ids in memo:
                return memo[ids]
            if isinstance(first, Aggregate):
                if not force and all(t is first for t in trees):
                    result: Tree = first
                else:
                    result = Aggregate(first.kind, tuple(merge([t.items[i] for t in trees], force and not _fixed(first, i)) for i in range(len(first.items))))  # type: ignore[union-attr]
            elif not force and all(t is first for t in trees):
                result = first
            elif all(isinstance(t, Const) for t in trees) and all(same_const(t, first) for t in trees) and not (force and is_number(first)):  # type: ignore[arg-type]
                result = first
            else:
                result = param([self.as_value(t, e.source) for t, e in zip(trees, edges)], force)
            memo[ids] = result
            return result

        def param(values: list[Value], force: bool) -> Value:
            t, dim = values[0].type, None
            if isinstance(t, Tensor):
                n = self.graph.n_values
                dims = tuple(
                    ds[0] if not force and all(d is ds[0] for d in ds) else Dim.symbol(f"p{n}_{i}", 0, SIZE_LIMIT)
                    for i, ds in enumerate(zip(*(v.type.dims for v in values)))  # type: ignore[union-attr]
                )
                t = replace(t, dims=dims)
            value = self.new_value(t)
            if isinstance(t, Scalar) and t.kind == "int":
                bounds = [v.dim.interval() if v.dim is not None else (-(1 << 62), 1 << 62) for v in values]
                dim = Dim.opaque(value) if force else Dim.opaque(value, min(b[0] for b in bounds), max(b[1] for b in bounds))
            value.dim = dim
            if isinstance(t, Scalar) and t.kind == "bool" and not force:
                given = [e.given for e in edges]
                self.decided[value] = {f for flag, side in frozenset.union(*given) if any((flag, not side) in g for g in given) for f in self.flags_of(flag)}
            params.append(value)
            for args, v in zip(arguments, values):
                args.append(v)
            return value

        frames = []
        for n, frame in enumerate(edges[0].frames):
            new = Frame(frame.bound, frame.pc, [], [], frame.unroll, frame.symbols, frame.receiver)
            new.locals = [merge([e.frames[n].locals[i] for e in edges], changes(n, ("local", i))) for i in range(len(frame.locals))]
            new.stack = [merge([e.frames[n].stack[i] for e in edges], changes(n, ("stack", i))) for i in range(len(frame.stack))]
            frames.append(new)
        block.params = tuple(params)
        for edge, args in zip(edges, arguments):
            edge.jump.args = tuple(args)
        return tuple(frames)

    def match(self, version: LoopVersion, edge: Edge) -> bool:
        """Connect an edge to an existing loop header if it passes the parameters' types and the same invariants."""
        params = set(version.block.params)
        given: dict[Value, Value] = {}

        def fits(have: Tree, want: Tree) -> bool:
            if want is None or have is None:
                return want is have
            if isinstance(want, Aggregate):
                return isinstance(have, Aggregate) and (have is want or have.kind == want.kind and len(have.items) == len(want.items)
                                                        and all(fits(h, w) for h, w in zip(have.items, want.items)))
            if isinstance(want, Const):
                return isinstance(have, Const) and same_const(have, want)
            if want in params:
                if isinstance(have, Aggregate) or isinstance(have, Const) and not is_number(have):
                    return False
                if number_key(have) != want.type.key():
                    return False
                value = self.as_value(have, edge.source)
                return given.setdefault(want, value) is value
            return have is want

        for have, want in zip(edge.frames, version.frames):
            if len(have.stack) != len(want.stack) or not all(fits(h, w) for h, w in zip(have.locals + have.stack, want.locals + want.stack)):
                return False
        if len(given) != len(params):
            return False
        edge.jump.target, edge.jump.args = version.block, tuple(given[p] for p in version.block.params)
        return True

    def as_value(self, tree: Tree, block: Block | None = None) -> Value:
        if isinstance(tree, Value):
            return tree
        assert isinstance(tree, Const) and is_number(tree)
        return self.const_value(tree.value, block)

    # -- returning
    def finish_returns(self) -> None:
        """All returns of one type share a block; beyond RETURNS types they leave through the interpreter's RETURN."""
        groups: dict[Any, list[Edge]] = {}
        for edge in self.returns:
            groups.setdefault(number_key(edge.frames[-1].stack[-1]), []).append(edge)
        ordered = sorted(groups.values(), key=len, reverse=True)
        for n, group in enumerate(ordered):
            if n >= RETURNS:
                self.exit_edges(group, "returns values of too many types")
                continue
            block = self.new_block()
            frames = self.join(block, group, lambda i, place: False)
            for edge in group:
                edge.jump.target = block
            block.state = self.state_of(frames)
            self.leave_at_last(block, frames)
            block.end = Return(as_returned(frames[-1].stack[-1], {}))

    def drop_unused_objects(self) -> None:
        """Objects that were only looked into need not be read for themselves."""
        used: set[Value] = set()
        for block in self.graph.blocks:
            for state in {block.state, *(n.state for n in block.nodes), block.end.state if isinstance(block.end, Exit) else None}:
                if state is not None:
                    used.update(state.values())
            for node in block.nodes:
                used.update(node.operands)
            if isinstance(block.end, Return):
                used.update(leaves(block.end.tree))
            for jump in (block.end,) if isinstance(block.end, Jump) else (block.end.then, block.end.orelse) if isinstance(block.end, Branch) else ():
                used.update(jump.args)
        self.graph.inputs = [i for i in self.graph.inputs if i.value in used or not isinstance(i.value.type, PyObject)]


def loop_changes(frames: Frames) -> Callable[[int, tuple[str, int]], bool]:
    """What a loop may change of the frames at its header: the locals it assigns, and the iterator of a for loop."""
    top, last = frames[-1], len(frames) - 1
    assigned = top.analysis.assigned[top.pc]
    iterator = len(top.stack) - 1 if BY_OPCODE[top.bound.program.code[top.pc + 1].opcode].name == "FOR_NEXT" else -1
    return lambda frame, place: frame == last and (place[1] in assigned if place[0] == "local" else place[1] == iterator)


def as_returned(tree: Tree, made: dict[Aggregate, Tree]) -> Tree:
    """A tree as the caller gets it: objects of this call in place of examples. What is one object stays one."""
    if isinstance(tree, Const) and tree.handle is not None:
        return tree.handle  # type: ignore[no-any-return]
    if isinstance(tree, Aggregate):
        if tree not in made:
            made[tree] = Aggregate(tree.kind, tuple(as_returned(i, made) for i in tree.items))
        return made[tree]
    return tree


def _fixed(aggregate: Aggregate, index: int) -> bool:
    """Items of an iterator that a loop never changes: what is iterated over."""
    return aggregate.kind == "iterator" and index == 0


def is_number(tree: Tree) -> bool:
    return isinstance(tree, Const) and type(tree.value) in (bool, int, float) and tree.path != "unroll"


def number_key(tree: Tree) -> Any:
    """The type key, where a number constant counts as a run-time number."""
    if isinstance(tree, Const) and is_number(tree):
        return Scalar(type(tree.value).__name__).key()
    if isinstance(tree, Aggregate):
        return (tree.kind, tuple(number_key(i) for i in tree.items))
    return tree_key(tree)


def same_const(a: Const, b: Const) -> bool:
    if a.value is b.value and a.path == b.path:
        return True
    return a.key() == b.key() and (a.path == b.path or type(a.value) in (bool, int, float, str, bytes, type(None)))


def frames_key(frames: Frames) -> Any:
    return tuple((id(f.bound), f.pc, f.unroll, tuple(map(number_key, f.locals)), tuple(map(number_key, f.stack))) for f in frames)


__all__ = ["Frame", "Machine", "is_number", "leaves"]
