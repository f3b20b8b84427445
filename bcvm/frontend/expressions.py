"""Expressions to bytecode. What has no instruction becomes a CALL_PY on the smallest expression."""
from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from bcvm.bytecode.build import Label, ProgramBuilder
from bcvm.frontend.comprehensions import EXHAUST, emit_list, emit_search, free_names, has_form
from bcvm.frontend.outline import Outline, Outliner, flag_of
from bcvm.frontend.scope import CONSUMERS, consumes_generator

BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
}
UNARY: dict[type, str] = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not"}
COMPARE: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.Is: "is", ast.IsNot: "is_not", ast.In: "in", ast.NotIn: "not_in",
}


class Emitter:
    """A ProgramBuilder that knows whether the current place can be reached, and drops what cannot."""

    def __init__(self, builder: ProgramBuilder, lines: Sequence[str]) -> None:
        self.b = builder
        self.lines = lines
        self.live = True
        self._targets: set[Label] = set()
        self._last_label = -1

    def emit(self, name: str, *operands: int | Label) -> None:
        if not self.live:
            return
        self.b.emit(name, *operands)
        if name != "LOOP_START":
            for operand in operands:
                if type(operand) is Label:
                    self._targets.add(operand)
        if name in ("JUMP", "RETURN", "LOOP_END"):
            self.live = False

    def place(self, label: Label) -> None:
        self.b.place(label)
        self._last_label = self.b.next_id
        self.live = self.live or label in self._targets

    def end_loop(self, start: Label, needed: bool) -> None:
        """The loop's last LOOP_END; a loop has one even if its body never comes to the end."""
        if self.live:
            self.emit("LOOP_END", start)
        elif needed:
            self.b.emit("LOOP_END", start)

    def end(self) -> None:
        """A label at the very end needs an instruction, and control must not fall off."""
        if self.live or self._last_label == self.b.next_id:
            self.live = True
            self.constant(None)
            self.emit("RETURN")

    def constant(self, value: Any) -> None:
        self.emit("LOAD_CONST", self.b.const(value))

    def op(self, name: str, count: int) -> None:
        self.emit("CALL_OP", self.b.name(name), 0, count)

    def at(self, node: Any) -> None:
        line, column = node.lineno, node.col_offset
        if column and line <= len(self.lines):
            text = self.lines[line - 1]
            if not text.isascii():
                column = len(text.encode()[:column].decode(errors="replace"))
        self.b.at(line, column)


class ExpressionGenerator(Emitter):
    """Pushes the value of an expression, in Python's order of evaluation."""

    outliner: Outliner

    def __init__(self, builder: ProgramBuilder, lines: Sequence[str], local_names: set[str], free: frozenset[str], declared_global: set[str],
                 flagged: frozenset[str], hidden: frozenset[str]) -> None:
        super().__init__(builder, lines)
        self.locals, self.free, self.declared_global, self.flagged = local_names, free, declared_global, flagged
        self.current: ast.stmt | None = None
        self.imports: list[int] = []
        self.hidden = hidden                # builtins that globals hide
        self.renamed: dict[str, str] = {}   # targets of the comprehensions around, with their locals
        self.comprehensions = 0
        self._import_names: set[str] = set()

    def expr(self, node: ast.expr) -> None:
        handler = EXPRESSIONS.get(type(node))
        if handler is None:
            self.outlined(node)
        else:
            handler(self, node)

    # -- names and constants
    def _constant(self, node: ast.Constant) -> None:
        self.at(node)
        self.constant(node.value)

    def _name(self, node: ast.Name) -> None:
        self.at(node)
        self.load(node.id)

    def load(self, name: str) -> None:
        if name in self.renamed:
            self.emit("LOAD", self.b.local(self.renamed[name]))
        elif name in self.locals:
            self.emit("LOAD", self.b.local(name))
        else:
            kind = "closure" if name in self.free and name not in self.declared_global else "global"
            self.emit("LOAD_CAPTURE", self.b.capture(kind, name))

    def store_local(self, name: str) -> None:
        self.emit("STORE", self.b.local(name))
        if name in self.flagged:
            self.set_flag(name, True)

    def set_flag(self, name: str, value: bool) -> None:
        self.constant(value)
        self.emit("STORE", self.b.local(flag_of(name)))

    # -- operators
    def _binary(self, node: ast.BinOp) -> None:
        self.expr(node.left)
        self.expr(node.right)
        self.at(node)
        self.op(BINARY[type(node.op)], 2)

    def _unary(self, node: ast.UnaryOp) -> None:
        folded = _folded(node)
        if folded is not None:
            self.at(node)
            self.constant(folded[0])
            return
        self.expr(node.operand)
        self.at(node)
        self.op(UNARY[type(node.op)], 1)

    def _bool(self, node: ast.BoolOp) -> None:
        end = self.b.label()
        for value in node.values[:-1]:
            self.expr(value)
            self.at(value)
            self.emit("COPY", 1)
            if isinstance(node.op, ast.And):
                self.emit("COND_JUMP", end)
            else:
                more = self.b.label()
                self.emit("COND_JUMP", more)
                self.emit("JUMP", end)
                self.place(more)
            self.emit("POP")
        self.expr(node.values[-1])
        self.place(end)

    def _compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            self.expr(node.left)
            self.expr(node.comparators[0])
            self.at(node)
            self.op(COMPARE[type(node.ops[0])], 2)
            return
        failed, end = self.b.label(), self.b.label()
        self._chain(node, failed, "COND_JUMP", keep=True)
        self.emit("JUMP", end)
        self.place(failed)  # the next operand and the false result
        self.emit("SWAP", 2)
        self.emit("POP")
        self.place(end)

    def _chain(self, node: ast.Compare, failed: Label, jump: str, keep: bool) -> None:
        """All comparisons of a chain; at `failed` the next operand is on the stack, with the false result above it if kept."""
        self.expr(node.left)
        for op, operand in zip(node.ops[:-1], node.comparators[:-1], strict=True):
            self.expr(operand)
            self.at(node)
            self.emit("COPY", 1)
            self.emit("SWAP", 3)
            self.emit("SWAP", 2)
            self.op(COMPARE[type(op)], 2)
            if keep:
                self.emit("COPY", 1)
            self.emit(jump, failed)
            if keep:
                self.emit("POP")
        self.expr(node.comparators[-1])
        self.at(node)
        self.op(COMPARE[type(node.ops[-1])], 2)

    def _conditional(self, node: ast.IfExp) -> None:
        orelse, end = self.b.label(), self.b.label()
        self.jump_if_false(node.test, orelse, "COND_JUMP")
        self.expr(node.body)
        self.emit("JUMP", end)
        self.place(orelse)
        self.expr(node.orelse)
        self.place(end)

    # -- conditions; each operand is asked for its truth once
    def jump_if_false(self, node: ast.expr, label: Label, jump: str) -> None:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            for value in node.values:
                self.jump_if_false(value, label, jump)
        elif isinstance(node, ast.BoolOp):
            true = self.b.label()
            for value in node.values[:-1]:
                self.jump_if_true(value, true, jump)
            self.jump_if_false(node.values[-1], label, jump)
            self.place(true)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.jump_if_true(node.operand, label, jump)
        elif isinstance(node, ast.Constant):
            if not node.value:
                self.emit("JUMP", label)
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            failed, end = self.b.label(), self.b.label()
            self._chain(node, failed, jump, keep=False)
            self.emit(jump, label)
            self.emit("JUMP", end)
            self.place(failed)
            self.emit("POP")
            self.emit("JUMP", label)
            self.place(end)
        else:
            self.expr(node)
            self.at(node)
            self.emit(jump, label)

    def jump_if_true(self, node: ast.expr, label: Label, jump: str) -> None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.jump_if_false(node.operand, label, jump)
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            for value in node.values:
                self.jump_if_true(value, label, jump)
        else:
            other = self.b.label()
            self.jump_if_false(node, other, jump)
            self.emit("JUMP", label)
            self.place(other)

    # -- attributes and items
    def _attribute(self, node: ast.Attribute) -> None:
        self.expr(node.value)
        self.at(node)
        self.emit("LOAD_ATTR", self.b.name(node.attr))

    def _subscript(self, node: ast.Subscript) -> None:
        self.expr(node.value)
        self.expr(node.slice)
        self.at(node)
        self.emit("LOAD_ITEM")

    def _slice(self, node: ast.Slice) -> None:
        parts = [node.lower, node.upper] + ([node.step] if node.step is not None else [])
        for part in parts:
            if part is None:
                self.at(node)
                self.constant(None)
            else:
                self.expr(part)
        self.at(node)
        self.emit("BUILD_SLICE", len(parts))

    # -- aggregates
    def _tuple(self, node: ast.Tuple) -> None:
        folded = _folded(node)
        if folded is not None:
            self.at(node)
            self.constant(folded[0])
        else:
            self._items(node, node.elts, "BUILD_TUPLE")

    def _list(self, node: ast.List) -> None:
        self._items(node, node.elts, "BUILD_LIST")

    def _items(self, node: ast.expr, items: Sequence[ast.expr], build: str) -> None:
        if not any(isinstance(i, ast.Starred) for i in items):
            for item in items:
                self.expr(item)
            self.at(node)
            self.emit(build, len(items))
            return
        plain = next(k for k, i in enumerate(items) if isinstance(i, ast.Starred))
        for item in items[:plain]:
            self.expr(item)
        self.at(node)
        self.emit("BUILD_LIST", plain)
        for item in items[plain:]:
            self.expr(item.value if isinstance(item, ast.Starred) else item)
            self.at(item)
            self.emit("LIST_EXTEND" if isinstance(item, ast.Starred) else "LIST_APPEND")
        if build == "BUILD_TUPLE":
            self.emit("LIST_TO_TUPLE")

    def _dict(self, node: ast.Dict) -> None:
        if None in node.keys:  # `**` in a display overwrites, DICT_MERGE refuses
            self.outlined(node)
            return
        for key, value in zip(node.keys, node.values, strict=True):
            assert key is not None
            self.expr(key)
            self.expr(value)
        self.at(node)
        self.emit("BUILD_DICT", len(node.keys))

    # -- calls
    def _list_comprehension(self, node: ast.ListComp) -> None:
        if self._in_place(node):
            emit_list(self, node)
        else:
            self.outlined(node)

    def _in_place(self, node: ast.ListComp | ast.GeneratorExp) -> bool:
        return has_form(node, EXPRESSIONS) and self.outliner.certainly_set(free_names(node) - self.renamed.keys(), self.current)

    def _exhausts(self, node: ast.Call) -> bool:
        """tuple(... for ...) and its like, of Python's own tuple."""
        func = node.func
        if not consumes_generator(node) or not isinstance(func, ast.Name) or not self._in_place(node.args[0]):  # type: ignore[arg-type]
            return False
        return func.id in EXHAUST and not any(func.id in names for names in (self.locals, self.free, self.hidden, self.renamed))

    def _call(self, node: ast.Call) -> None:
        if self._exhausts(node):
            assert isinstance(node.func, ast.Name) and isinstance(node.args[0], ast.GeneratorExp)
            if node.func.id in ("any", "all"):
                emit_search(self, node.args[0], node.func.id == "any")
                return
            self.expr(node.func)
            emit_list(self, node.args[0])
            self.at(node)
            self.emit("CALL", 1, self.b.const(()))
            return
        if self._needs_python_frame(node):
            self.outlined(node)
            return
        self.expr(node.func)
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self._call_unpacked(node)
            return
        for a in node.args:
            self.expr(a)
        for k in node.keywords:
            self.expr(k.value)
        self.at(node)
        names = tuple(k.arg for k in node.keywords)
        self.emit("CALL", len(node.args) + len(names), self.b.const(names))

    def _needs_python_frame(self, node: ast.Call) -> bool:
        """globals() looks at its caller; a generator stays inside the call that exhausts it."""
        func = node.func
        if isinstance(func, ast.Name) and func.id == "globals":
            return True
        if not consumes_generator(node):
            return False
        return isinstance(func, ast.Attribute) or isinstance(func, ast.Name) and func.id in CONSUMERS and func.id not in self.locals

    def _call_unpacked(self, node: ast.Call) -> None:
        self._items(node, node.args, "BUILD_TUPLE")
        pending = 0
        merged = False
        for k in node.keywords:
            if k.arg is None:
                if pending or not merged:
                    self._merge_pairs(node, pending, merged)
                    pending, merged = 0, True
                self.expr(k.value)
                self.at(node)
                self.emit("DICT_MERGE")
            else:
                self.at(k)
                self.constant(k.arg)
                self.expr(k.value)
                pending += 1
        if pending or not merged:
            self._merge_pairs(node, pending, merged)
        self.at(node)
        self.emit("CALL_UNPACKED")

    def _merge_pairs(self, node: ast.Call, pending: int, merged: bool) -> None:
        self.at(node)
        self.emit("BUILD_DICT", pending)
        if merged:
            self.emit("DICT_MERGE")

    # -- bindings inside expressions
    def _walrus(self, node: ast.NamedExpr) -> None:
        if node.target.id not in self.locals:
            self.outlined(node)
            return
        self.expr(node.value)
        self.at(node)
        self.emit("COPY", 1)
        self.store_local(node.target.id)

    # -- Python
    def outlined(self, node: ast.expr) -> None:
        """The expression as a CALL_PY; its value stays on the stack."""
        self.call_py(self.outliner.expression(node, self.current), node)

    def call_py(self, outline: Outline, node: Any) -> None:
        """Push the live-ins, call, store the live-outs. An outcome and a value stay on the stack, the outcome on top."""
        self.at(node)
        for name in outline.live_ins:
            if name in outline.maybe:
                self._load_if_set(name)
            else:
                self.emit("LOAD", self.b.local(name))
        for name in outline.maybe:
            self.emit("LOAD", self.b.local(flag_of(name)))
        self.call_import(node, len(outline.live_ins) + len(outline.maybe), outline.results)
        for name, flagged in outline.live_outs:
            if not flagged:
                self.store_local(name)
                continue
            unset, end = self.b.label(), self.b.label()
            self.emit("COND_JUMP", unset)
            self.store_local(name)
            self.emit("JUMP", end)
            self.place(unset)
            self.emit("POP")
            self.place(end)

    def _load_if_set(self, name: str) -> None:
        """The local, or None."""
        unset, end = self.b.label(), self.b.label()
        self.emit("LOAD", self.b.local(flag_of(name)))
        self.emit("COND_JUMP", unset)
        self.emit("LOAD", self.b.local(name))
        self.emit("JUMP", end)
        self.place(unset)
        self.constant(None)
        self.place(end)

    def call_import(self, node: Any, count: int, results: int) -> None:
        """CALL_PY of the piece that was outlined last."""
        name = base = f"{self.b.program_name}:{node.lineno}:{node.col_offset}"
        while name in self._import_names:
            name = f"{base}.{len(self._import_names)}"
        self._import_names.add(name)
        self.emit("CALL_PY", self.b.add_import(name, self.text(node)), count, results)

    def text(self, node: Any) -> str:
        """The source text of a piece, for people."""
        first, last = node.lineno, node.end_lineno or node.lineno
        if last > len(self.lines):
            return ""
        lines = [line.encode() for line in self.lines[first - 1:last]]
        lines[-1] = lines[-1][:node.end_col_offset]
        lines[0] = lines[0][node.col_offset:]
        return b"".join(lines).decode(errors="replace").strip()


def _folded(node: ast.expr) -> tuple[Any] | None:
    """(value,) of a constant, a negated number, a tuple of these; None for anything else."""
    if isinstance(node, ast.Constant):
        return (node.value,)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return (-value,) if isinstance(value, (int, float, complex)) and not isinstance(value, bool) else None
    if isinstance(node, ast.Tuple):
        items = [_folded(e) for e in node.elts]
        return None if None in items else (tuple(i[0] for i in items if i is not None),)
    return None


EXPRESSIONS: dict[type, Callable[[ExpressionGenerator, Any], None]] = {
    ast.Constant: ExpressionGenerator._constant, ast.Name: ExpressionGenerator._name, ast.BinOp: ExpressionGenerator._binary,
    ast.UnaryOp: ExpressionGenerator._unary, ast.BoolOp: ExpressionGenerator._bool, ast.Compare: ExpressionGenerator._compare,
    ast.IfExp: ExpressionGenerator._conditional, ast.Attribute: ExpressionGenerator._attribute, ast.Subscript: ExpressionGenerator._subscript,
    ast.Slice: ExpressionGenerator._slice, ast.Tuple: ExpressionGenerator._tuple, ast.List: ExpressionGenerator._list, ast.Dict: ExpressionGenerator._dict,
    ast.Call: lambda g, node: g._call(node), ast.ListComp: ExpressionGenerator._list_comprehension, ast.NamedExpr: ExpressionGenerator._walrus,
}
