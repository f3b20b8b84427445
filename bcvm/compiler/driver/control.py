"""Blocks and edges: dominators, phis for block parameters, references that pass along edges, returns."""
from __future__ import annotations

from bcvm.bytecode.dtypes import itemsize
from bcvm.compiler import abi
from bcvm.compiler.driver import dims, kernels_call, library, memory, scalars, states, views
from bcvm.compiler.driver.emitter import Phi
from bcvm.compiler.driver.values import Driver, TensorRep
from bcvm.compiler.liveness import read_by
from bcvm.compiler.optimise import end_values, entry_values, jumps
from bcvm.compiler.regions import PlanStep, RegionCall, dtype_of, is_box
from bcvm.errors import CompileError, Unsupported
from bcvm.specialise.ssa import Block, Branch, Exit, Graph, Jump, Node, Return, Value, leaves, tree_key
from bcvm.specialise.types import Const, Scalar, Tensor


class Flow:
    """Reachable blocks in reverse post order, the dominator tree, and which blocks lie in a loop."""

    def __init__(self, graph: Graph) -> None:
        self.order = _reverse_post_order(graph.blocks[0])
        self.index = {b: i for i, b in enumerate(self.order)}
        self.predecessors: dict[Block, list[Block]] = {b: [] for b in self.order}
        for b in self.order:
            for j in jumps(b.end):
                self.predecessors[j.target].append(b)
        self.parent = self._dominators()
        self.children: dict[Block, list[Block]] = {b: [] for b in self.order}
        for b in self.order[1:]:
            self.children[self.parent[b]].append(b)
        self.in_loop = self._loops()

    def _dominators(self) -> dict[Block, Block]:
        """Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm."""
        first = self.order[0]
        parent = {first: first}
        changed = True
        while changed:
            changed = False
            for b in self.order[1:]:
                known = [p for p in self.predecessors[b] if p in parent]
                new = known[0]
                for p in known[1:]:
                    x, y = p, new
                    while x is not y:
                        if self.index[x] > self.index[y]:
                            x = parent[x]
                        else:
                            y = parent[y]
                    new = x
                if parent.get(b) is not new:
                    parent[b] = new
                    changed = True
        return parent

    def _loops(self) -> set[Block]:
        """Blocks of any cycle: those from which a back edge's source is reached without passing the header."""
        out: set[Block] = set()
        for b in self.order:
            for j in jumps(b.end):
                if self.index[j.target] <= self.index[b]:
                    body, work = {j.target}, [b]
                    while work:
                        x = work.pop()
                        if x not in body:
                            body.add(x)
                            work.extend(self.predecessors[x])
                    out |= body
        return out

    def headers(self) -> set[Block]:
        """Targets of back edges."""
        return {j.target for b in self.order for j in jumps(b.end) if self.index[j.target] <= self.index[b]}


def _reverse_post_order(first: Block) -> list[Block]:
    seen, out = {first}, []
    stack = [(first, iter(jumps(first.end)))]
    while stack:
        block, edges = stack[-1]
        for j in edges:
            if j.target not in seen:
                seen.add(j.target)
                stack.append((j.target, iter(jumps(j.target.end))))
                break
        else:
            out.append(block)
            stack.pop()
    return out[::-1]


def find_escaping(flow: Flow, plan: dict[Block, list[PlanStep]], owner: dict[Value, Value]) -> set[Value]:
    """Fresh tensors that are returned, themselves or through a view: born as ndarrays, so that returning them costs nothing. Not inside
    loops, where each iteration would make an object; a single result is rather copied at the end. Several results may be one object or share
    memory, which only objects keep."""
    home: dict[Value, Block] = {}
    for b in flow.order:
        for p in b.params:
            home[p] = b
        for s in plan[b]:
            for r in (s.outputs if isinstance(s, RegionCall) else s.results):
                home[r] = b
    headers = flow.headers()
    out: set[Value] = set()
    work = [v for b in flow.order if isinstance(b.end, Return) for v in leaves(b.end.tree) if isinstance(v.type, Tensor) and not v.type.scalar]
    several = len(set(work)) > 1
    while work:
        v = owner.get(work.pop())
        if v is None or v in out or (home[v] in flow.in_loop and not several) or dtype_of(v) not in abi.TYPE_NUMBER:
            continue
        out.add(v)
        block = home[v]
        if v.node is not None and v.node.op == "view":  # a reshape
            work.append(v.node.operands[0])
        if v in block.params and (several or block not in headers):
            position = block.params.index(v)
            work.extend(j.args[position] for p in flow.predecessors[block] for j in jumps(p.end) if j.target is block)
    return out


def find_stack_boxes(flow: Flow, plan: dict[Block, list[PlanStep]]) -> set[Value]:
    """Numbers as tensors of rank 0 that only regions and stores read: a stack slot will do. Constants that regions alone read are
    written into their kernels and need nothing."""
    boxes: set[Value] = set()
    for b in flow.order:
        boxes.update(s.results[0] for s in plan[b] if not isinstance(s, RegionCall) and is_box(s))
    for b in flow.order:
        seen = end_values(b.end) + entry_values(b)
        for s in plan[b]:
            if isinstance(s, RegionCall):
                if s.store is not None:
                    seen.append(s.store.operands[0])
                if s.maker is not None:
                    seen.extend(read_by(s.maker)[len(s.maker.operands):])
                continue
            read = read_by(s)
            seen.extend(read if s.op not in ("store", "item", "op") else read[len(s.operands):] + list(s.operands[:1] if s.op == "store" else ()))
        boxes.difference_update(seen)
    return boxes


def emit(d: Driver, flow: Flow, plan: dict[Block, list[PlanStep]]) -> str:
    """The text of the driver."""
    e = d.e
    nodes = [s.maker if isinstance(s, RegionCall) else s for steps in plan.values() for s in steps]
    d.stored.update(v for n in nodes if n is not None and n.op in ("store", "item", "op") for v in n.operands)
    _inputs(d)
    labels = {b: "start" if b is flow.order[0] else f"b{b.id}.{i}" for i, b in enumerate(flow.order)}
    phis: dict[Block, list[list[tuple[str, Phi]]]] = {}
    after: dict[Block, dict[Value, None]] = {}
    e.jump("start")
    stack: list[tuple[Block, bool]] = [(flow.order[0], False)]
    while stack:  # the dominator tree, parents first
        block, left = stack.pop()
        if left:
            e.pop()
            continue
        stack.append((block, True))
        e.push()
        # What is owned on entry is the same on all edges: the parameters, and what dominates the block and is alive in it.
        alive = d.live.alive_in(block)
        d.owned = {v: None for v in after.get(flow.parent[block], {}) if v in alive}
        d.block = block
        e.start(labels[block])
        phis[block] = []
        _params(d, block, phis[block])
        for incoming, label in d.waiting.pop(block, ()):
            connect(phis[block], incoming, label)
        memory.release(d, d.live.dies.get((block, -1), ()))
        if block.loop and block.state is not None:
            _poll(d, block)
        for i, step in enumerate(plan[block]):
            _step(d, step)
            memory.release(d, d.live.dies.get((block, i), ()))
        after[block] = dict(d.owned)
        _end(d, block, labels, phis)
        stack.extend((c, False) for c in reversed(flow.children[block]))
    states.write_pending(d)
    e.entry.insert(0, f"  %scratch = alloca [{max(d.scratch_words, 1)} x i64], align 16")
    return e.function("define i32 @driver(ptr %ctx, ptr noalias %in, ptr noalias %out) nounwind")


def _inputs(d: Driver) -> None:
    e = d.e
    e.do(f"%table = load ptr, ptr {e.word('%ctx', abi.CTX_TABLE)}")
    at = 0
    for i in d.graph.inputs:
        v = i.value
        if isinstance(v.type, Tensor):
            rank = v.type.rank
            data, obj = e.load("%in", at, "ptr"), e.load("%in", at + 1, "ptr")
            sizes = []
            for axis, dim in enumerate(v.type.dims):
                size = str(dim.value) if dim.value is not None else e.load("%in", at + 2 + axis)
                dims.bind(e, dim, size)
                sizes.append(size)
            strides = [e.load("%in", at + 2 + rank + axis) for axis in range(rank)]
            d.reps[v] = TensorRep(data, obj, "0", sizes, strides)
            d.certain_objects.add(obj)
            at += 2 + 2 * rank
            continue
        if isinstance(v.type, Scalar):
            word = e.load("%in", at, "double" if v.type.kind == "float" else "i64")
            d.reps[v] = e.op(f"icmp ne i64 {word}, 0") if v.type.kind == "bool" else word
            if v.dim is not None and v.type.kind == "int":
                dims.bind(e, v.dim, word)
        else:
            d.reps[v] = e.load("%in", at, "ptr")
        at += 1


def _params(d: Driver, block: Block, out: list[list[tuple[str, Phi]]]) -> None:
    """Phis, a list per parameter of (which word, phi)."""
    e = d.e
    for p in block.params:
        if isinstance(p.type, Const):
            out.append([])
            continue
        if not isinstance(p.type, Tensor):
            phi = e.phi(scalars.LLVM[p.type.kind] if isinstance(p.type, Scalar) else "ptr")
            out.append([("value", phi)])
            d.reps[p] = phi.name
            continue
        words: list[tuple[str, Phi]] = [(w, e.phi(t)) for w, t in (("data", "ptr"), ("object", "ptr"), ("base", "i64"))]
        sizes: list[str] = []
        for axis, dim in enumerate(p.type.dims):
            if dims.is_bound(e, dim):
                sizes.append("")
                continue
            phi = e.phi("i64")
            words.append((f"size {axis}", phi))
            sizes.append(phi.name)
            dims.bind(e, dim, phi.name)
        strides = []
        for axis in range(p.type.rank):
            phi = e.phi("i64")
            words.append((f"stride {axis}", phi))
            strides.append(phi.name)
        data, obj, base = (w.name for _, w in words[:3])
        out.append(words)
        d.reps[p] = TensorRep(data, obj, base, sizes, strides)
        d.owned[p] = None
        d.objects.add(p)
    for p in block.params:  # known sizes may need code, which comes after all phis
        if isinstance(p.type, Scalar) and p.dim is not None and p.type.kind == "int":
            dims.bind(e, p.dim, d.scalar(p))
        if isinstance(p.type, Tensor):
            rep = d.tensor(p)
            rep.sizes = [s or dims.value(e, dim) for s, dim in zip(rep.sizes, p.type.dims, strict=True)]


def _poll(d: Driver, block: Block) -> None:
    e = d.e
    assert block.state is not None
    pointer = e.load("%ctx", abi.CTX_INTERRUPT, "ptr")
    look, go = e.new_label("poll"), e.new_label("go")
    e.branch(e.op(f"icmp eq ptr {pointer}, null"), go, look)
    e.start(look)
    label = states.exit_label(d, block.state, "interrupt")
    word = e.op(f"load atomic i64, ptr {pointer} monotonic, align 8")
    e.branch(e.op(f"icmp ne i64 {word}, 0"), label, go)
    e.start(go)
    rounds = e.sub(e.load("%ctx", abi.CTX_ROUNDS), "1")
    e.store(rounds, "%ctx", abi.CTX_ROUNDS)
    breathe, on = e.new_label("breathe"), e.new_label("on")
    e.branch(e.compare("sle", rounds, "0"), breathe, on)
    e.start(breathe)
    e.push()  # what is looked up in there is not known beyond
    e.call("breathe", "%ctx")
    e.pop()
    e.jump(on)
    e.start(on)


def _step(d: Driver, step: PlanStep) -> None:
    if isinstance(step, RegionCall):
        if step.store is not None:
            views.store_region(d, step, step.store)
        elif step.maker is not None:
            library.finished(d, step)
        else:
            kernels_call.region(d, step)
    elif is_box(step):
        _box(d, step)
    elif step.op == "op":
        library.op(d, step)
    else:
        _EMIT[step.op](d, step)


def _box(d: Driver, node: Node) -> None:
    """A number as a tensor of rank 0."""
    value = node.results[0]
    dtype = dtype_of(value)
    if not node.operands and value in d.stack_boxes and value not in d.stored:
        return
    if value in d.stack_boxes:
        pointer = d.e.alloca(1)
        d.reps[value] = TensorRep(pointer, "null", "0", [], [], True, True)
    else:
        pointer = memory.new(d, value).data
    if node.operands:
        source = node.operands[0]
        scalars.store_element(d.e, source.type, d.scalar(source), dtype, pointer)
    else:
        from bcvm.compiler.driver.values import literal
        number = node.attrs["value"]
        scalars.store_element(d.e, Const(number), literal(number), dtype, pointer)


_EMIT = {"const": scalars.constant, "view": views.view, "store": views.store, "dim": scalars.dim_value, "item": scalars.item, "scalar": scalars.scalar,
         "check": scalars.check, "guard": scalars.guard}


def _end(d: Driver, block: Block, labels: dict[Block, str], phis: dict[Block, list[list[tuple[str, Phi]]]]) -> None:
    e, end = d.e, block.end
    if isinstance(end, Return):
        _return(d, end)
    elif isinstance(end, Exit):
        e.jump(states.exit_label(d, end.state, end.reason))
    elif isinstance(end, Jump):
        _edge(d, block, 0, end, labels, phis)
    elif isinstance(end, Branch):
        condition = d.scalar(end.condition)
        then, orelse = e.new_label("then"), e.new_label("else")
        e.branch(condition, then, orelse)
        owned = dict(d.owned)
        for n, (label, jump) in enumerate(((then, end.then), (orelse, end.orelse))):
            d.owned = dict(owned)
            e.start(label)
            e.push()
            _edge(d, block, n, jump, labels, phis)
            e.pop()
    else:
        raise CompileError(f"block b{block.id} has no end")


def _edge(d: Driver, block: Block, number: int, jump: Jump, labels: dict[Block, str], phis: dict[Block, list[list[tuple[str, Phi]]]]) -> None:
    """Pass arguments: each tensor parameter gets a reference, taken over from an owner that dies here or a new one."""
    e = d.e
    dying = dict.fromkeys(d.live.edge.get((block, number), ()))
    incoming: list[list[str]] = []
    for arg, param in zip(jump.args, jump.target.params, strict=True):
        if isinstance(param.type, Const):
            incoming.append([])
            continue
        if not isinstance(param.type, Tensor):
            incoming.append([d.scalar(arg) if isinstance(param.type, Scalar) else str(d.reps[arg])])
            continue
        rep = d.tensor(arg)
        obj, base = rep.object, rep.base
        owner = d.live.owner.get(arg)
        if owner is not None and owner in dying and owner in d.owned and d.tensor(owner).base == base:
            del dying[owner], d.owned[owner]
        elif base != "0":
            e.call("retain", base)
        incoming.append([rep.data, obj, base, *rep.sizes, *rep.strides])
    memory.release(d, dying)
    here = e.label
    known = phis.get(jump.target)
    if known is None:  # not yet written: remember the edge until its phis exist
        d.waiting.setdefault(jump.target, []).append((incoming, here))
    else:
        connect(known, incoming, here)
    e.jump(labels[jump.target])


def connect(phis: list[list[tuple[str, Phi]]], incoming: list[list[str]], label: str) -> None:
    """Add one edge to a block's phis."""
    for words, values in zip(phis, incoming, strict=True):
        rank = (len(values) - 3) // 2
        for what, phi in words:
            kind, _, axis = what.partition(" ")
            at = {"value": 0, "data": 0, "object": 1, "base": 2, "size": 3, "stride": 3 + rank}[kind] + int(axis or 0)
            phi.edges.append((values[at], label))


def _return(d: Driver, end: Return) -> None:
    e = d.e
    objects: dict[Value, str] = {}
    moved: set[Value] = set()
    values = list(leaves(end.tree))
    for at, v in enumerate(values):
        if isinstance(v.type, Scalar):
            states.store_word(e, v.type.kind, d.scalar(v), at)
        elif not isinstance(v.type, Tensor):
            e.call("Py_IncRef", str(d.reps[v]))
            e.store(str(d.reps[v]), "%out", at, "ptr")
        elif v.type.scalar:
            _store_bits(d, v, at)
        elif v in objects:
            e.call("Py_IncRef", objects[v])
            e.store(objects[v], "%out", at, "ptr")
        else:
            objects[v] = _object(d, v, moved)
            e.store(objects[v], "%out", at, "ptr")
            if v not in moved and at + 1 < len(values):  # should memory run out for a later one
                _hold(d, v, objects[v], moved)
        d.out_words = max(d.out_words, at + 1)
    for v in list(d.owned):
        # Arena buffers go with the arena; a fresh array that is returned passes its reference on.
        if v in d.objects and v not in moved:
            e.call("release", "%ctx", d.tensor(v).base)
    e.do(f"ret i32 {_return_code(d, end)}")


def _return_code(d: Driver, end: Return) -> int:
    """Which of the function's types of results this is."""
    key = repr(tree_key(end.tree))
    keys = [repr(tree_key(t)) for t in d.returns]
    if key not in keys:
        d.returns.append(end.tree)
        keys.append(key)
    return abi.return_code(keys.index(key))


def _hold(d: Driver, v: Value, obj: str, moved: set[Value]) -> None:
    """Let exits from here on release this object; the return itself does not."""
    e = d.e
    held = Value(-1, v.type)
    base = e.op(f"or i64 {e.op(f'ptrtoint ptr {obj} to i64')}, 1")
    d.reps[held] = TensorRep("null", obj, base, [], [])
    d.owned[held] = None
    d.objects.add(held)
    moved.add(held)


def _store_bits(d: Driver, v: Value, at: int) -> None:
    e, dtype = d.e, dtype_of(v)
    width = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[itemsize(dtype)]
    bits = e.op(f"load {width}, ptr {d.tensor(v).data}")
    e.store(bits if width == "i64" else e.op(f"zext {width} {bits} to i64"), "%out", at)


def _object(d: Driver, v: Value, moved: set[Value]) -> str:
    """A new reference to an ndarray for a returned tensor. What was made before a failure is released there."""
    e, rep = d.e, d.tensor(v)
    if rep.object != "null" and rep.object in d.certain_objects:
        if d.live.owner.get(v) is v and v in d.owned and v not in moved:
            moved.add(v)
            return rep.object
        e.call("Py_IncRef", rep.object)
        return rep.object
    done = e.new_label("object")
    edges: list[tuple[str, str]] = []
    if rep.object != "null":
        have, none = e.new_label("have"), e.new_label("none")
        e.branch(e.op(f"icmp eq ptr {rep.object}, null"), none, have)
        e.start(have)
        e.push()
        e.call("Py_IncRef", rep.object)
        e.pop()
        edges.append((rep.object, have))
        e.jump(done)
        e.start(none)
    e.push()
    base = memory.view_base(d, rep)
    fixed = d.base_kind(v)
    view, copy = e.new_label("view"), e.new_label("copy")
    if fixed == "object":
        e.jump(view)
    elif fixed == "arena":
        e.jump(copy)
    else:
        e.branch(e.op(f"trunc i64 {base} to i1"), view, copy)
    if dtype_of(v) not in abi.TYPE_NUMBER:
        raise Unsupported(f"a result of {dtype_of(v)}, which no ndarray holds")
    number = str(abi.TYPE_NUMBER[dtype_of(v)])
    if fixed != "arena":
        e.start(view)
        e.push()
        rank = len(rep.sizes)
        sizes, strides = memory.size_words(d, rep.sizes), memory.size_words(d, rep.strides, rank)
        owner = e.op(f"inttoptr i64 {e.op(f'and i64 {base}, -2')} to ptr")
        seen = e.call("view_array", "%ctx", number, str(rank), sizes, strides, rep.data, owner)
        e.leave_if(e.op(f"icmp eq ptr {seen}, null"), states.memory_label(d))
        if isinstance(v.type, Tensor) and v.type.readonly:
            flags = e.offset(seen, str(abi.ARRAY_FLAGS))
            word = e.op(f"load i32, ptr {flags}")
            e.do(f"store i32 {e.op(f'and i32 {word}, -1025')}, ptr {flags}")
        edges.append((seen, e.label))
        e.jump(done)
        e.pop()
    if fixed != "object":
        e.start(copy)
        e.push()
        fresh = memory.array(d, rep.sizes, dtype_of(v))
        kernels_call.copy_elements(d, dtype_of(v), (rep.data, rep.strides), (fresh.data, fresh.strides), rep.sizes)
        edges.append((fresh.object, e.label))
        e.jump(done)
        e.pop()
    e.pop()
    e.start(done)
    phi = e.phi("ptr")
    phi.edges += edges
    return phi.name
