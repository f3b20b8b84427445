"""One closure per instruction for tier 1: `HANDLERS[name](program, id, *operands)`.

A handler gets (locals, stack, frame), does the work of its instruction and returns the id of the next one.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from bcvm.bytecode.instructions import TABLE
from bcvm.bytecode.parser import BytecodeParser
from bcvm.bytecode.program import Program
from bcvm.errors import BytecodeError
from bcvm.ops import large
from bcvm.vm.frame import UNSET, Frame, unset_local

Handler = Callable[[list[Any], list[Any], Frame], int]
RETURN = -1
"""What RETURN's handler returns; the value is on the stack. Numbers below it are events of the interpreter."""

_END: Any = object()
_MISSING: Any = object()

OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in (
        "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor neg pos invert eq ne lt le gt ge is_ is_not "
        "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor getitem").split()
}
OPERATORS["matmul"] = large.product
OPERATORS |= {"is": OPERATORS.pop("is_"), "not": operator.not_, "in": lambda a, b: a in b, "not_in": lambda a, b: a not in b}


def op_function(name: str, program: str) -> Callable[..., Any]:
    """What a CALL_OP calls. Constant attributes of an op follow its operands, in the order of its definition."""
    python = OPERATORS.get(name)
    if python is not None:
        return python
    import bcvm.ops  # noqa: F401  fills the table
    from bcvm.ops.definition import OPS
    op = OPS.get(name)
    function = None if op is None else op.eager or op.reference
    if op is None or function is None:
        raise BytecodeError(f"program {program}: there is no op named {name!r} that can run")
    if not op.attrs:
        return function
    run, attrs, operands, variadic = function, op.attrs, len(op.operands), any(o.startswith("*") for o in op.operands)

    def with_attributes(*values: Any) -> Any:
        split = len(values) - len(attrs) if variadic else operands
        return run(*values[:split], **dict(zip(attrs, values[split:], strict=False)))
    return with_attributes


# -- single instructions

def go(target: int) -> Handler:
    return lambda values, stack, frame: target


def _nop(program: Program, at: int, *operands: int) -> Handler:
    return go(at + 1)


def push(value: Any, after: int) -> Handler:
    def load_const(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack.append(value)
        return after
    return load_const


def _load_const(program: Program, at: int, const: int) -> Handler:
    return push(program.consts[const], at + 1)


def _load(program: Program, at: int, local: int) -> Handler:
    name, after = program.locals[local], at + 1

    def load(values: list[Any], stack: list[Any], frame: Frame) -> int:
        value = values[local]
        if value is UNSET:
            raise unset_local(name)
        stack.append(value)
        return after
    return load


def _load_tensor(program: Program, at: int, local: int, hint: int) -> Handler:
    load = _load(program, at, local)
    if hint == 0:
        return load
    name, text = program.locals[local], program.hints[hint]
    what = "argument" if local < len(program.params) else "variable"

    def load_tensor(values: list[Any], stack: list[Any], frame: Frame) -> int:
        after = load(values, stack, frame)
        frame.check(what, name, text, stack[-1])
        return after
    return load_tensor


def _store(program: Program, at: int, local: int) -> Handler:
    after = at + 1

    def store(values: list[Any], stack: list[Any], frame: Frame) -> int:
        values[local] = stack.pop()
        return after
    return store


def _delete(program: Program, at: int, local: int) -> Handler:
    name, after = program.locals[local], at + 1

    def delete(values: list[Any], stack: list[Any], frame: Frame) -> int:
        if values[local] is UNSET:
            raise unset_local(name)
        values[local] = UNSET
        return after
    return delete


def _load_capture(program: Program, at: int, capture: int) -> Handler:
    (kind, name), after = program.captures[capture], at + 1

    def load_cell(values: list[Any], stack: list[Any], frame: Frame) -> int:
        try:
            stack.append(frame.bound.closure[name].cell_contents)
        except (KeyError, ValueError):
            stack.append(_MISSING)
        if stack[-1] is _MISSING:
            frame.bound.read_capture(capture)  # NameError
        return after

    def load_global(values: list[Any], stack: list[Any], frame: Frame) -> int:
        value = frame.globals.get(name, _MISSING)
        stack.append(builtin(frame, name) if value is _MISSING else value)
        return after
    return load_cell if kind == "closure" else load_global


def builtin(frame: Frame, name: str) -> Any:
    """A name that is no global."""
    value = frame.bound.builtins.get(name, _MISSING)
    if value is _MISSING:
        raise NameError(f"name '{name}' is not defined", name=name)
    return value


def _load_attr(program: Program, at: int, name: int) -> Handler:
    text, after = program.names[name], at + 1

    def load_attr(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack[-1] = getattr(stack[-1], text)
        return after
    return load_attr


def _load_item(program: Program, at: int) -> Handler:
    after = at + 1

    def load_item(values: list[Any], stack: list[Any], frame: Frame) -> int:
        index = stack.pop()
        stack[-1] = stack[-1][index]
        return after
    return load_item


def _store_tensor(program: Program, at: int) -> Handler:
    after = at + 1

    def store_tensor(values: list[Any], stack: list[Any], frame: Frame) -> int:
        index = stack.pop()
        target = stack.pop()
        target[index] = stack.pop()
        return after
    return store_tensor


def _pop(program: Program, at: int, *operands: int) -> Handler:
    after = at + 1

    def pop(values: list[Any], stack: list[Any], frame: Frame) -> int:
        del stack[-1]
        return after
    return pop


def _copy(program: Program, at: int, count: int) -> Handler:
    depth, after = -count, at + 1

    def copy(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack.append(stack[depth])
        return after
    return copy


def _swap(program: Program, at: int, count: int) -> Handler:
    depth, after = -count, at + 1

    def swap(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack[-1], stack[depth] = stack[depth], stack[-1]
        return after
    return swap


def _build(make: Callable[[list[Any]], Any], size: int) -> Callable[..., Handler]:
    def factory(program: Program, at: int, count: int) -> Handler:
        width, after = size * count, at + 1

        def build(values: list[Any], stack: list[Any], frame: Frame) -> int:
            first = len(stack) - width
            stack[first:] = [make(stack[first:])]
            return after
        return build
    return factory


@cache
def _unpacker(before: int, behind: int, star: bool) -> Callable[[Any], tuple[Any, ...]]:
    """Unpacks as an assignment does, errors included; the items come back last first."""
    names = [*(f"a{i}" for i in range(before)), *(["*rest"] if star else []), *(f"b{i}" for i in range(behind))]
    results = [n.lstrip("*") for n in reversed(names)]
    space: dict[str, Any] = {}
    exec(f"def unpack(source):\n [{', '.join(names)}] = source\n return [{', '.join(results)}]", space)  # noqa: S102  only our own names
    return space["unpack"]  # type: ignore[no-any-return]


def _unpack(program: Program, at: int, count: int) -> Handler:
    return _unpacking(_unpacker(count, 0, False), at + 1)


def _unpack_star(program: Program, at: int, before: int, behind: int) -> Handler:
    return _unpacking(_unpacker(before, behind, True), at + 1)


def _unpacking(unpacker: Callable[[Any], tuple[Any, ...]], after: int) -> Handler:
    def unpack(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack += unpacker(stack.pop())
        return after
    return unpack


def _list_extend(program: Program, at: int) -> Handler:
    after = at + 1

    def list_extend(values: list[Any], stack: list[Any], frame: Frame) -> int:
        more = stack.pop()
        stack[-1].extend([*more])  # a display's TypeError, not extend's
        return after
    return list_extend


def _list_append(program: Program, at: int) -> Handler:
    after = at + 1

    def list_append(values: list[Any], stack: list[Any], frame: Frame) -> int:
        item = stack.pop()
        stack[-1].append(item)
        return after
    return list_append


def _list_to_tuple(program: Program, at: int) -> Handler:
    after = at + 1

    def list_to_tuple(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack[-1] = tuple(stack[-1])
        return after
    return list_to_tuple


def _dict_merge(program: Program, at: int) -> Handler:
    after = at + 1

    def dict_merge(values: list[Any], stack: list[Any], frame: Frame) -> int:
        more = stack.pop()
        target = stack[-1]
        if not hasattr(more, "keys"):
            raise TypeError(f"{_called(stack)} argument after ** must be a mapping, not {type(more).__name__}")
        for key in more.keys():
            if key in target:
                raise TypeError(f"{_called(stack)} got multiple values for keyword argument {key!r}")
            target[key] = more[key]
        return after
    return dict_merge


def _called(stack: list[Any]) -> str:
    """How Python names the callable (below the positional arguments and the keywords) in errors about its arguments."""
    callee = stack[-3] if len(stack) >= 3 else None
    name = getattr(callee, "__qualname__", None)
    if not isinstance(name, str):
        return f"{callee!r}"
    module = getattr(callee, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


# -- calls

def _call_op(program: Program, at: int, op: int, signature: int, count: int) -> Handler:
    name, after = program.names[op], at + 1
    if name not in OPERATORS:
        return _call_table(program, at, name, count)
    function = OPERATORS[name]
    if count == 2:
        def binary(values: list[Any], stack: list[Any], frame: Frame) -> int:
            right = stack.pop()
            stack[-1] = function(stack[-1], right)
            return after
        return binary

    def other(values: list[Any], stack: list[Any], frame: Frame) -> int:
        first = len(stack) - count
        stack[first:] = [function(*stack[first:])]
        return after
    return other


def _call_table(program: Program, at: int, name: str, count: int) -> Handler:
    """An op of the table, looked up when it first runs."""
    after, program_name = at + 1, program.name
    found: list[Callable[..., Any]] = []

    def call_table(values: list[Any], stack: list[Any], frame: Frame) -> int:
        function = found[0] if found else op_function(name, program_name)
        found[:] = [function]
        first = len(stack) - count
        stack[first:] = [function(*stack[first:])]
        return after
    return call_table


def _expanded(program: Program, at: int, *operands: int) -> Handler:
    """Short and FUSED_* forms."""
    calls = BytecodeParser(program).expand(at)
    functions: list[Callable[..., Any]] = []
    width = 1 + max((o.value for c in calls for o in c.operands if o.source == "stack"), default=-1)
    after, program_name = at + 1, program.name

    def expanded(values: list[Any], stack: list[Any], frame: Frame) -> int:
        if not functions:
            functions.extend(op_function(c.op, program_name) for c in calls)
        first = len(stack) - width
        taken = stack[first:]
        results: list[Any] = []
        for call, function in zip(calls, functions, strict=True):
            results.append(function(*(taken[o.value] if o.source == "stack" else results[o.value] if o.source == "result" else o.value
                                      for o in call.operands)))
        stack[first:] = results[-1:]
        return after
    return expanded


def _call(program: Program, at: int, count: int, names: int) -> Handler:
    keywords, after = program.consts[names], at + 1
    if keywords:
        split = count - len(keywords)

        def call_keywords(values: list[Any], stack: list[Any], frame: Frame) -> int:
            first = len(stack) - count
            args = stack[first:]
            del stack[first:]
            stack[-1] = stack[-1](*args[:split], **dict(zip(keywords, args[split:])))  # noqa: B905  equal by construction, and hot
            return after
        return call_keywords

    def call_0(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack[-1] = stack[-1]()
        return after

    def call_1(values: list[Any], stack: list[Any], frame: Frame) -> int:
        a = stack.pop()
        stack[-1] = stack[-1](a)
        return after

    def call_2(values: list[Any], stack: list[Any], frame: Frame) -> int:
        b = stack.pop()
        a = stack.pop()
        stack[-1] = stack[-1](a, b)
        return after

    def call_many(values: list[Any], stack: list[Any], frame: Frame) -> int:
        first = len(stack) - count
        args = stack[first:]
        del stack[first:]
        stack[-1] = stack[-1](*args)
        return after
    return (call_0, call_1, call_2)[count] if count < 3 else call_many


def _call_unpacked(program: Program, at: int) -> Handler:
    after = at + 1

    def call_unpacked(values: list[Any], stack: list[Any], frame: Frame) -> int:
        keywords = stack.pop()
        args = stack.pop()
        stack[-1] = stack[-1](*args, **keywords)
        return after
    return call_unpacked


def _call_py(program: Program, at: int, target: int, count: int, results: int) -> Handler:
    after = at + 1

    def call_py(values: list[Any], stack: list[Any], frame: Frame) -> int:
        first = len(stack) - count
        args = stack[first:]
        del stack[first:]
        value = frame.bound.imports[target](*args)
        if results == 1:
            stack.append(value)
        else:
            stack += value[::-1]
        return after
    return call_py


# -- control flow

def _return(program: Program, at: int) -> Handler:
    if program.return_hint == 0:
        return go(RETURN)
    text = program.hints[program.return_hint]

    def checked(values: list[Any], stack: list[Any], frame: Frame) -> int:
        frame.check("result", "return", text, stack[-1])
        return RETURN
    return checked


def _jump(program: Program, at: int, target: int) -> Handler:
    return go(target)


def _loop_end(program: Program, at: int, start: int) -> Handler:
    return go(start + 1)  # a LOOP_START does nothing where nobody listens


def _branch(program: Program, at: int, target: int) -> Handler:
    after = at + 1

    def branch(values: list[Any], stack: list[Any], frame: Frame) -> int:
        return after if stack.pop() else target
    return branch


def _get_iter(program: Program, at: int) -> Handler:
    after = at + 1

    def get_iter(values: list[Any], stack: list[Any], frame: Frame) -> int:
        stack[-1] = iter(stack[-1])
        return after
    return get_iter


def _for_next(program: Program, at: int, target: int) -> Handler:
    after = at + 1

    def for_next(values: list[Any], stack: list[Any], frame: Frame) -> int:
        item = next(stack[-1], _END)
        if item is _END:
            del stack[-1]
            return target
        stack.append(item)
        return after
    return for_next


def _alloc(program: Program, at: int, device: int, stream: int) -> Handler:
    if device:
        def no_device(values: list[Any], stack: list[Any], frame: Frame) -> int:
            raise BytecodeError(f"program {program_name}: instruction 0x{at:04x} places a tensor on device {device}; there is only the host here")
        program_name = program.name
        return no_device
    return go(at + 1)


HANDLERS: dict[str, Callable[..., Handler]] = {
    "NOP": _nop, "LOAD_TENSOR": _load_tensor, "LOAD_CONST": _load_const, "LOAD": _load, "STORE": _store, "DELETE": _delete,
    "LOAD_CAPTURE": _load_capture, "LOAD_ATTR": _load_attr, "LOAD_ITEM": _load_item, "STORE_TENSOR": _store_tensor,
    "POP": _pop, "COPY": _copy, "SWAP": _swap,
    "BUILD_TUPLE": _build(tuple, 1), "BUILD_LIST": _build(list, 1), "BUILD_DICT": _build(lambda v: dict(zip(v[::2], v[1::2], strict=True)), 2),
    "BUILD_SLICE": _build(lambda v: slice(*v), 1), "UNPACK": _unpack, "UNPACK_STAR": _unpack_star,
    "LIST_EXTEND": _list_extend, "LIST_APPEND": _list_append, "LIST_TO_TUPLE": _list_to_tuple, "DICT_MERGE": _dict_merge,
    "CALL_OP": _call_op, "CALL": _call, "CALL_UNPACKED": _call_unpacked, "CALL_PY": _call_py, "RETURN": _return,
    "JUMP": _jump, "COND_JUMP": _branch, "BRANCH_IF_SYMBOLIC": _branch, "LOOP_START": _nop, "LOOP_END": _loop_end,
    "GET_ITER": _get_iter, "FOR_NEXT": _for_next, "FUSE_START": _nop, "FUSE_END": _nop, "FUSE_ACROSS_DEVICE": _nop,
    "ALLOC_DEVICE_MEM": _alloc, "FREE_DEVICE_MEM": _pop, **{row.name: _expanded for row in TABLE if row.expands},
}
assert set(HANDLERS) == {row.name for row in TABLE}, "every instruction has a handler"
