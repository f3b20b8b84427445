"""Runs of instructions that get one closure together: operands from locals, constants or the stack, an operation, and where its
result goes. None spans a safe point, and each instruction keeps a closure of its own."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from bcvm.bytecode.program import Program
from bcvm.ops.large import product
from bcvm.vm.frame import UNSET, unset_local
from bcvm.vm.handlers import Handler, builtin, push

_END: Any = object()

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "lshift": "<<", "rshift": ">>",
    "and_": "&", "or_": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "is": "is", "is_not": "is not", "in": "in", "not_in": "not in",
}
_OPERATIONS = {
    **{name: f"x = x {sign} y" for name, sign in _BINARY.items()},
    **{"i" + name.rstrip("_"): f"x {_BINARY[name]}= y" for name in list(_BINARY)[:13]},
    "matmul": "x = product(x, y)",
    "getitem": "x = x[y]", "getattr": "x = getattr(x, y)", "call": "x = x(y)",
}
_FETCH = {
    "stack": ("{v} = stack.pop()",),
    "const": ("{v} = {o}",),
    "local": ("{v} = values[{o}]", "if {v} is UNSET:", "    raise unset_local({o}_name)"),
    "global": ("{v} = frame.globals.get({o}_name, UNSET)", "if {v} is UNSET:", "    {v} = builtin(frame, {o}_name)"),
    "closure": ("try:", "    {v} = frame.bound.closure[{o}_name].cell_contents", "except (KeyError, ValueError):", "    {v} = frame.bound.read_capture({o})"),
}
_CAPTURED = ("global", "closure")
_SINKS = {
    "push": ("stack.append(x)", "return after"),
    "replace": ("stack[-1] = x", "return after"),
    "store": ("values[into] = x", "return after"),
    "branch": ("return after if x else into",),
}


class _Operand(NamedTuple):
    kind: str
    value: Any = None  # a constant, or the index of a local or capture
    name: str = ""


_STACK = _Operand("stack")


@cache
def _template(left: str, right: str, operation: str, sink: str) -> Callable[..., Handler]:
    """Makes closures of one shape; the text consists of the tables above only."""
    lines = [t.format(v="y", o="b") for t in _FETCH[right]] if right == "stack" else []
    top = left == "stack" and sink == "push"
    lines += ["x = stack[-1]"] if top else [t.format(v="x", o="a") for t in _FETCH[left]]
    lines += [t.format(v="y", o="b") for t in _FETCH[right]] if right != "stack" else []
    lines += [_OPERATIONS[operation], *_SINKS["replace" if top else sink]]
    body = "\n".join("        " + line for line in lines)
    space: dict[str, Any] = {"UNSET": UNSET, "unset_local": unset_local, "builtin": builtin, "product": product}
    exec(f"def make(a, a_name, b, b_name, into, after):\n    def joined(values, stack, frame):\n{body}\n    return joined", space)  # noqa: S102
    return space["make"]  # type: ignore[no-any-return]


def joins(program: Program, names: list[str]) -> Iterator[tuple[int, int, Handler]]:
    """(first instruction, how many, closure) of each run."""
    code = program.code
    end = len(code)
    loaded = [_operand(program, names, at) for at in range(end)]
    for at in range(end - 1):
        if names[at] == "FOR_NEXT":
            if names[at + 1] == "STORE":
                yield at, 1, _next_into(code[at + 1].operands[0], code[at].operands[0], at + 2)
            continue
        if names[at:at + 3] == ["LOAD_CONST", "LOAD_CONST", "BUILD_SLICE"] and code[at + 2].operands[0] == 2:
            yield at, 3, push(slice(*[program.consts[c.operands[0]] for c in code[at:at + 2]]), at + 3)
            continue
        operands: list[_Operand] = []
        here = at
        while here < end and len(operands) < 2 and (operand := loaded[here]) is not None:
            operands.append(operand)
            here += 1
        if here == end:
            continue
        operation = _operation(program, names, here)
        if operation is None:
            continue
        if operation == "getattr":
            operands = operands[-1:] if len(operands) == 1 else []
            operands.append(_Operand("const", program.names[code[here].operands[0]]))
        if len(operands) == 2 and operands[0].kind in _CAPTURED and operation == "call":
            continue
        left, right = ([_STACK, _STACK] + operands)[-2:]
        if right.kind in _CAPTURED or left.kind in _CAPTURED and operation not in ("getattr", "getitem"):
            continue
        if operation == "getattr" and here != at + (left is not _STACK):
            continue
        here += 1
        sink, into = "push", 0
        if here < end and names[here] in ("STORE", "COND_JUMP", "BRANCH_IF_SYMBOLIC"):
            sink, into = "store" if names[here] == "STORE" else "branch", code[here].operands[0]
            here += 1
        if here - at < 2:
            continue
        make = _template(left.kind, right.kind, operation, sink)
        blame = here - at - (sink != "push")
        yield at, blame, make(left.value, left.name, right.value, right.name, into, here)


def _operand(program: Program, names: list[str], at: int) -> _Operand | None:
    name, operands = names[at], program.code[at].operands
    if name == "LOAD":
        return _Operand("local", operands[0], program.locals[operands[0]])
    if name == "LOAD_CONST":
        return _Operand("const", program.consts[operands[0]])
    if name == "LOAD_CAPTURE":
        return _Operand(program.captures[operands[0]].kind, operands[0], program.captures[operands[0]].name)
    return None


def _operation(program: Program, names: list[str], at: int) -> str | None:
    name, operands = names[at], program.code[at].operands
    if name == "CALL_OP" and operands[2] == 2 and program.names[operands[0]] in _OPERATIONS:
        return program.names[operands[0]]
    if name == "LOAD_ITEM":
        return "getitem"
    if name == "LOAD_ATTR":
        return "getattr"
    if name == "CALL" and operands[0] == 1 and not program.consts[operands[1]]:
        return "call"
    return None


def _next_into(local: int, exit: int, after: int) -> Handler:
    """FOR_NEXT and STORE."""
    def next_into(values: list[Any], stack: list[Any], frame: Any) -> int:
        item = next(stack[-1], _END)
        if item is _END:
            del stack[-1]
            return exit
        values[local] = item
        return after
    return next_into
