"""Each instruction on trees: EXECUTE[name](machine, frame, *operands). Simple ones advance; control flow ends blocks."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bcvm.bytecode.instructions import TABLE
from bcvm.errors import Unsupported
from bcvm.shapes.dim import Dim
from bcvm.specialise import operators, settle
from bcvm.specialise.calls import call
from bcvm.specialise.hints import check_hint
from bcvm.specialise.indexing import load_item, store_item
from bcvm.specialise.machine import Edge, Frame, Machine
from bcvm.specialise.settle import UNROLL_TRIPS
from bcvm.specialise.ssa import Aggregate, Branch, Jump, Path, Root, Tree, Value
from bcvm.specialise.types import Const, Tensor

EXECUTE: dict[str, Callable[..., None]] = {}


def simple(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An instruction that goes on at the next one."""
    def add(fn: Callable[..., None]) -> Callable[..., None]:
        def run(m: Machine, f: Frame, *operands: int) -> None:
            fn(m, f, *operands)
            f.pc += 1
        for name in names:
            EXECUTE[name] = run
        return fn
    return add


def control(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(fn: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            EXECUTE[name] = fn
        return fn
    return add


def pop(f: Frame, n: int) -> list[Tree]:
    out = f.stack[len(f.stack) - n:]
    del f.stack[len(f.stack) - n:]
    return out


@simple("NOP", "FUSE_START", "FUSE_END")
def nop(m: Machine, f: Frame, *_: int) -> None:
    pass


@simple("LOAD_TENSOR")
def load_tensor(m: Machine, f: Frame, local: int, hint: int) -> None:
    tree = f.locals[local]
    if tree is None:
        raise Unsupported("unset local")
    if hint:
        check_hint(m, f, tree, f.bound.program.hints[hint], "argument" if local < len(f.bound.program.params) else "variable", f.bound.program.locals[local])
    f.stack.append(tree)


@simple("LOAD_CONST")
def load_const(m: Machine, f: Frame, const: int) -> None:
    f.stack.append(m.resolver.literal(f.bound.program.consts[const]))


@simple("LOAD")
def load(m: Machine, f: Frame, local: int) -> None:
    if f.locals[local] is None:
        raise Unsupported(f"local variable {f.bound.program.locals[local]} may be unset")
    f.stack.append(f.locals[local])


@simple("STORE")
def store(m: Machine, f: Frame, local: int) -> None:
    f.locals[local] = f.stack.pop()


@simple("DELETE")
def delete(m: Machine, f: Frame, local: int) -> None:
    if f.locals[local] is None:
        raise Unsupported("unset local")
    f.locals[local] = None


@simple("LOAD_CAPTURE")
def load_capture(m: Machine, f: Frame, capture: int) -> None:
    kind, name = f.bound.program.captures[capture]
    try:
        value = f.bound.read_capture(capture)
    except NameError as e:
        raise Unsupported(str(e)) from None
    root = Root("closure", f.bound.closure[name]) if kind == "closure" else Root("global", f.bound.globals, f.bound.builtins, name)
    f.stack.append(m.resolver.wrap(value, Path(root), name))


@simple("LOAD_ATTR")
def load_attr(m: Machine, f: Frame, name: int) -> None:
    tree = f.stack.pop()
    result = operators.attribute(m, tree, f.bound.program.names[name])
    if isinstance(result, Aggregate) and result.kind == "property":
        function = result.items[1]
        call(m, f, function, [result.items[0], *result.items[2:]], {})
        f.pc -= 1
        return
    f.stack.append(result)


@simple("LOAD_ITEM")
def load_item_(m: Machine, f: Frame) -> None:
    obj, index = pop(f, 2)
    f.stack.append(load_item(m, obj, index))


@simple("STORE_TENSOR")
def store_tensor(m: Machine, f: Frame) -> None:
    value, target, index = pop(f, 3)
    store_item(m, target, index, value)


@simple("POP")
def pop_(m: Machine, f: Frame) -> None:
    f.stack.pop()


@simple("COPY")
def copy(m: Machine, f: Frame, count: int) -> None:
    f.stack.append(f.stack[-count])


@simple("SWAP")
def swap(m: Machine, f: Frame, count: int) -> None:
    f.stack[-1], f.stack[-count] = f.stack[-count], f.stack[-1]


@simple("BUILD_TUPLE")
def build_tuple(m: Machine, f: Frame, count: int) -> None:
    f.stack.append(Aggregate("tuple", tuple(pop(f, count))))


@simple("BUILD_LIST")
def build_list(m: Machine, f: Frame, count: int) -> None:
    f.stack.append(Aggregate("list", tuple(pop(f, count))))


@simple("BUILD_DICT")
def build_dict(m: Machine, f: Frame, count: int) -> None:
    items = pop(f, 2 * count)
    keys = [k.value if isinstance(k, Const) and type(k.value) in (str, int) else None for k in items[::2]]
    if None in keys or len(set(keys)) != len(keys):
        raise Unsupported("a dict whose keys are not distinct constants")
    f.stack.append(Aggregate("dict", tuple(items)))


@simple("BUILD_SLICE")
def build_slice(m: Machine, f: Frame, count: int) -> None:
    items = pop(f, count)
    f.stack.append(Aggregate("slice", tuple(items + [Const(None)] * (3 - count))))


def sequence(m: Machine, tree: Tree) -> list[Tree]:
    """The items of a tuple, list, dict (its keys) or of a tensor's first axis, where their number is known."""
    if isinstance(tree, Aggregate):
        if tree.kind in ("tuple", "list"):
            return list(tree.items)
        if tree.kind == "dict":
            return list(tree.items[::2])
        if tree.kind == "iterator" and isinstance(tree.items[1], Const):
            return sequence(m, tree.items[0])[tree.items[1].value:]
        if tree.kind == "range":
            if all(isinstance(i, Const) for i in tree.items):
                return [Const(i) for i in range(*(i.value for i in tree.items))]  # type: ignore[union-attr]
    if isinstance(tree, Const) and type(tree.value) in (tuple, list, dict):
        return m.resolver.items(tree)
    if isinstance(tree, Const) and (held := m.resolver.container(tree)) is not None:
        return sequence(m, held)
    if isinstance(tree, Value) and isinstance(tree.type, Tensor) and tree.type.rank and tree.type.dims[0].value is not None and tree.type.dims[0].value <= 64:
        return [load_item(m, tree, Const(i)) for i in range(tree.type.dims[0].value)]
    raise Unsupported(f"items of {describe(tree)}, whose number is not known")


def describe(tree: Tree) -> str:
    if isinstance(tree, Aggregate):
        return f"a {tree.kind}"
    return str(tree.type if isinstance(tree, Value) else tree)


@simple("UNPACK")
def unpack(m: Machine, f: Frame, count: int) -> None:
    tree = f.stack.pop()
    if isinstance(tree, Value) and isinstance(tree.type, Tensor) and tree.type.rank:
        m.emit("check", how="eq", a=tree.type.dims[0], b=Dim.const(count))
        items: list[Tree] = [load_item(m, tree, Const(i)) for i in range(count)]
    else:
        items = sequence(m, tree)
    if len(items) != count:
        raise Unsupported(f"{len(items)} values to unpack into {count}")
    f.stack.extend(reversed(items))


@simple("UNPACK_STAR")
def unpack_star(m: Machine, f: Frame, before: int, after: int) -> None:
    items = sequence(m, f.stack.pop())
    if len(items) < before + after:
        raise Unsupported("not enough values to unpack")
    split = len(items) - after
    f.stack.extend(reversed([*items[:before], Aggregate("list", tuple(items[before:split])), *items[split:]]))


@simple("LIST_EXTEND")
def list_extend(m: Machine, f: Frame) -> None:
    target, more = pop(f, 2)
    f.stack.append(Aggregate("list", tuple(sequence(m, target) + sequence(m, more))))


@simple("LIST_APPEND")
def list_append(m: Machine, f: Frame) -> None:
    target, item = pop(f, 2)
    f.stack.append(Aggregate("list", tuple(sequence(m, target) + [item])))


@simple("LIST_TO_TUPLE")
def list_to_tuple(m: Machine, f: Frame) -> None:
    f.stack.append(Aggregate("tuple", tuple(sequence(m, f.stack.pop()))))


@simple("DICT_MERGE")
def dict_merge(m: Machine, f: Frame) -> None:
    target, more = pop(f, 2)
    have, add = (dict_items(m, t) for t in (target, more))
    if set(have) & set(add):
        raise Unsupported("a keyword argument given twice")
    f.stack.append(Aggregate("dict", tuple(x for k, v in {**have, **add}.items() for x in (Const(k), v))))


def dict_items(m: Machine, tree: Tree) -> dict[Any, Tree]:
    if isinstance(tree, Aggregate) and tree.kind == "dict":
        return {k.value: v for k, v in zip(tree.items[::2], tree.items[1::2])}  # type: ignore[union-attr]
    if isinstance(tree, Const) and type(tree.value) is dict:
        keys = m.resolver.items(tree)
        return {k.value: m.resolver.item(tree, k.value) for k in keys}  # type: ignore[union-attr]
    raise Unsupported(f"keywords from {describe(tree)}")


@simple("CALL_OP")
def call_op(m: Machine, f: Frame, op: int, signature: int, count: int) -> None:
    f.stack.append(operators.apply(m, f.bound.program.names[op], pop(f, count)))


def expansion(name: str, ops: str) -> Callable[..., None]:
    """A short or FUSED_ form: its ops in turn, each taking the value before it first and then what was pushed for it."""
    def run(m: Machine, f: Frame, *operands: int) -> None:
        consts = f.bound.program.consts
        if name == "CONCAT":
            tensors = Aggregate("tuple", tuple(pop(f, operands[0])))
            f.stack.append(m.builder.op("concat", *tensors.items, axis=m.builder.axis(Const(consts[operands[1]]), m.builder.rank(tensors.items[0]))))
            return
        if name in ("ADD_CONST", "MUL_CONST"):
            f.stack.append(m.resolver.literal(consts[operands[0]]))
        args = pop(f, EFFECTS[name])
        for op in ops.split(","):
            n = {"matmul": 2, "add": 2, "mul": 2, "reshape": 2, "conv2d": 3, "batch_norm": 5}.get(op, 1)
            taken, args = args[:n], args[n:]
            args = [operators.apply(m, op, taken), *args]
        f.stack.append(args[0])
    return run


EFFECTS: dict[str, int] = {row.name: 2 if row.name in ("ADD_CONST", "MUL_CONST") else row.effect[0] for row in TABLE if row.expands}  # type: ignore[misc]
for _row in TABLE:
    if _row.expands:
        simple(_row.name)(expansion(_row.name, _row.expands))


@control("CALL")
def call_(m: Machine, f: Frame, count: int, names: int) -> None:
    args = pop(f, count)
    callee = f.stack.pop()
    keywords = f.bound.program.consts[names] or ()
    split = count - len(keywords)
    call(m, f, callee, args[:split], dict(zip(keywords, args[split:])))


@control("CALL_UNPACKED")
def call_unpacked(m: Machine, f: Frame) -> None:
    callee, args, keywords = pop(f, 3)
    named = dict_items(m, keywords)
    if not all(type(k) is str for k in named):
        raise Unsupported("keywords that are no strings")
    call(m, f, callee, sequence(m, args), named)


def joined(f: Frame, target: int, parts: list[Tree]) -> str | None:
    """The text of an f-string, of constants alone."""
    function = f.bound.imports[target]
    code = function.__code__
    values = [t.value for t in parts if isinstance(t, Const) and type(t.value) in (bool, int, float, str, type(None))]
    if code.co_names or code.co_freevars or len(values) < len(parts):
        return None
    text = function(*values)
    return text if type(text) is str else None


@control("CALL_PY")
def call_py(m: Machine, f: Frame, target: int, count: int, results: int) -> None:
    source = f.bound.program.imports[target].source.strip().splitlines()
    text = joined(f, target, f.stack[len(f.stack) - count:]) if results == 1 and source and source[0].startswith(("f'", 'f"')) else None
    if text is not None:
        f.stack[len(f.stack) - count:] = [Const(text)]
        f.pc += 1
        return
    m.leave(f, "call_py: " + (source[0] if source else f.bound.program.imports[target].name))


@control("RETURN")
def return_(m: Machine, f: Frame) -> None:
    value = f.stack[-1]
    program = f.bound.program
    if program.return_hint:
        check_hint(m, f, value, program.hints[program.return_hint], "result", "return")
    if len(m.frames) == 1:
        f.locals = [None] * len(f.locals)
        f.stack = [value]
        jump = Jump(None, ())  # type: ignore[arg-type]
        m.end(jump)
        m.returns.append(Edge(jump, m.block, (f.copy(),)))
        return
    caller = m.frames[-2].copy()
    m.frames = m.frames[:-2] + (caller,)
    caller.stack.append(value)
    caller.pc += 1
    if sum(1 for c in program.code if c.opcode == 0x24) == 1:
        if caller.pc in caller.analysis.merges:
            jump = Jump(None, ())  # type: ignore[arg-type]
            m.end(jump)
            m.goto(jump, m.frames)
        return
    jump = Jump(None, ())  # type: ignore[arg-type]
    m.end(jump)
    m.goto(jump, m.frames)


@control("JUMP", "LOOP_END")
def jump_(m: Machine, f: Frame, target: int) -> None:
    m.jump(target)


@control("COND_JUMP", "BRANCH_IF_SYMBOLIC")
def cond_jump(m: Machine, f: Frame, target: int) -> None:
    condition = operators.truth(m, f.stack.pop())
    if isinstance(condition, Const):
        m.jump(f.pc + 1 if condition.value else target)
        return
    side = settle.side(m, f, condition, target)
    if side is not None:
        m.jump(f.pc + 1 if side else target)
    else:
        m.branch(condition, f.pc + 1, target)


@control("LOOP_START")
def loop_start(m: Machine, f: Frame, exit: int) -> None:
    f.pc += 1


@simple("GET_ITER")
def get_iter(m: Machine, f: Frame) -> None:
    tree = f.stack.pop()
    if isinstance(tree, Aggregate) and tree.kind == "iterator":
        f.stack.append(tree)
        return
    if isinstance(tree, Aggregate) and tree.kind == "range":
        start, stop, step = tree.items
        if not isinstance(step, Const) or step.value == 0:
            raise Unsupported("a range whose step is not constant")
        if all(isinstance(i, Const) for i in tree.items) and len(range(start.value, stop.value, step.value)) <= UNROLL_TRIPS:  # type: ignore[union-attr]
            f.stack.append(Aggregate("iterator", (tree, Const(0, "unroll"))))
            return
        over = settle.trips(m, f, start, stop, step.value)
        f.stack.append(Aggregate("iterator", (Aggregate("range", tuple(map(Const, (over.start, over.stop, over.step)))), Const(0, "unroll")) if over is not None else (tree, start)))
        return
    if isinstance(tree, Value) and isinstance(tree.type, Tensor):
        if not tree.type.rank:
            raise Unsupported("iteration over a 0-d tensor")
        f.stack.append(Aggregate("iterator", (tree, Const(0))))
        return
    grows = isinstance(tree, Aggregate) and tree.kind == "list"  # what is appended meanwhile is iterated over as well
    f.stack.append(Aggregate("iterator", (tree if grows else Aggregate("tuple", tuple(sequence(m, tree))), Const(0, "unroll"))))


@control("FOR_NEXT")
def for_next(m: Machine, f: Frame, exit: int) -> None:
    it = f.stack[-1]
    if not isinstance(it, Aggregate) or it.kind != "iterator":
        raise Unsupported(f"iteration over {describe(it)}")
    source, position = it.items
    if isinstance(position, Const) and position.path == "unroll":
        items = sequence(m, source)
        if position.value < len(items):
            f.stack[-1] = Aggregate("iterator", (source, Const(position.value + 1, "unroll")))
            f.stack.append(items[position.value])
            f.pc += 1
        else:
            f.stack.pop()
            m.jump(exit)
        return
    b = m.builder
    if isinstance(source, Aggregate):
        start, stop, step = source.items
        bounded(position, start)
        more = b.scalar("lt" if step.value > 0 else "gt", position, stop)  # type: ignore[union-attr]
    else:
        assert isinstance(source, Value) and isinstance(source.type, Tensor)
        bounded(position, Const(0))
        step = Const(1)
        more = b.scalar("lt", position, b.int_of(source.type.dims[0]))
    # A body that is entered only from here needs no parameters; leaving from it, the interpreter repeats FOR_NEXT.
    body, leave = m.new_block(), Jump(None, ())  # type: ignore[arg-type]
    m.end(Branch(more, Jump(body, ()), leave))
    after = f.copy()
    after.stack.pop()
    after.pc = exit
    m.goto(leave, m.frames[:-1] + (after,))
    m.block = body
    m.safe = body.state = m.state_of(tuple(x.copy() for x in m.frames[:-1]) + (f.copy(),))
    item = position if isinstance(source, Aggregate) else load_item(m, source, position)
    f.stack[-1] = Aggregate("iterator", (source, b.scalar("add", position, step)))
    f.stack.append(item)
    f.pc += 1


def bounded(position: Tree, start: Tree) -> None:
    """A loop that counts from a small non-negative number never reaches sizes that overflow: index arithmetic may rely on it."""
    if isinstance(position, Value) and isinstance(start, Const) and 0 <= start.value < 1 << 39:
        position.dim = Dim.opaque(position, start.value, 1 << 40)


__all__ = ["EXECUTE"]
