"""BytecodeGenerator: one walk over a function's syntax tree, emitting a program."""
from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bcvm.bytecode.build import Label, ProgramBuilder
from bcvm.bytecode.program import Program
from bcvm.frontend.annotations import Hinted
from bcvm.frontend.expressions import BINARY, EXPRESSIONS, ExpressionGenerator
from bcvm.frontend.local_functions import Inlined, emit_call, emit_return, inlinable
from bcvm.frontend.outline import Outliner, WholeFunction
from bcvm.frontend.rewrite import prepare
from bcvm.frontend.scope import FRAME_READERS, Names
from bcvm.frontend.source import Source

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    has_default: bool


@dataclass
class _Loop:
    start: Label
    exit: Label
    iterates: bool           # an iterator is on the stack
    has_end: bool = False    # a LOOP_END was emitted


def parameters_of(code: CodeType, defaults: int, keyword_defaults: Iterable[str]) -> list[Parameter]:
    """In signature order. `defaults`: how many of the last positional parameters have one."""
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    out = [Parameter(n, "positional_only" if i < code.co_posonlyargcount else "positional", i >= positional - defaults)
           for i, n in enumerate(names[:positional])]
    at = positional + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        out.append(Parameter(names[at], "star", False))
        at += 1
    with_default = set(keyword_defaults)
    out += [Parameter(n, "keyword_only", n in with_default) for n in names[positional:positional + keyword_only]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        out.append(Parameter(names[at], "double_star", False))
    return out


def start_program(name: str, code: CodeType, parameters: Sequence[Parameter], hints: Mapping[str, Hinted]) -> ProgramBuilder:
    """A builder with the parameters, their hints checked at entry, and the return hint."""
    b = ProgramBuilder(name, code.co_filename, code.co_firstlineno)
    for p in parameters:
        b.param(p.name, p.kind, p.has_default, hints[p.name].text if p.name in hints else "")
    if "return" in hints:
        b.return_hint(hints["return"].text)
    b.at(code.co_firstlineno, 0)
    for i, p in enumerate(parameters):
        hint = b.hint(hints[p.name].text) if p.name in hints else 0
        if not hint:
            continue
        given = b.label()
        if hints[p.name].optional:
            b.emit("LOAD", i)
            b.emit("LOAD_CONST", b.const(None))
            b.emit("CALL_OP", b.name("is_not"), 0, 2)
            b.emit("COND_JUMP", given)
        b.emit("LOAD_TENSOR", i, hint)
        b.emit("STORE", i)
        if hints[p.name].optional:
            b.place(given)
    return b


def whole_function(name: str, code: CodeType, parameters: Sequence[Parameter], hints: Mapping[str, Hinted], reason: str) -> Program:
    """The program of one CALL_PY, to the function itself."""
    b = start_program(name, code, parameters, hints)
    for i in range(len(parameters)):
        b.emit("LOAD", i)
    b.emit("CALL_PY", b.add_import(name, f"whole function: {reason}"), len(parameters), 1)
    b.emit("RETURN")
    return b.finish()


class BytecodeGenerator(ExpressionGenerator):
    """Walks the statements of one function. WholeFunction is raised where only Python itself can run it."""

    def __init__(self, name: str, code: CodeType, source: Source, parameters: Sequence[Parameter], hints: Mapping[str, Hinted],
                 flagged: frozenset[str] = frozenset(), hidden: frozenset[str] = frozenset()) -> None:
        """`flagged`: locals that get a flag which says whether they are set (see NeedsFlags). `hidden`: builtins that the function's globals hide."""
        if code.co_flags & _GENERATORS:
            raise WholeFunction("it is a generator or a coroutine")
        node = source.node
        first = code.co_varnames[0] if code.co_argcount else ""
        prepare(node, source.class_name, first, "__class__" in code.co_freevars)
        body = node.body if isinstance(node.body, list) else []
        names = Names()
        for p in parameters:
            names.store(p.name)
        names.visit_all(body or [node.body])
        locals_ = (set(names.stores) | names.deletes) - names.globals - names.nonlocals
        _check(names, locals_, node)
        super().__init__(start_program(name, code, parameters, hints), source.lines, locals_, frozenset(code.co_freevars), names.globals, flagged, hidden)
        self.node, self.module_imports = node, source.imports
        given = frozenset(p.name for p in parameters)
        self.outliner = Outliner(name, code, locals_, names, body, given, flagged)
        for n in sorted(flagged):
            self.set_flag(n, n in given)
        self.loops: list[_Loop] = []
        self.functions = inlinable(body, names, EXPRESSIONS, locals_, given)
        self.inlined_in: Inlined | None = None

    def generate(self, flags: int) -> tuple[Program, tuple[CodeType, ...]]:
        """The program, and the code of each of its imports in order."""
        if isinstance(self.node, ast.Lambda):
            self.expr(self.node.body)
            self.at(self.node.body)
            self.emit("RETURN")
        else:
            self.block(self.node.body)
        self.end()
        return self.b.finish(), self.outliner.compile(flags, self.module_imports)

    def block(self, statements: Iterable[ast.stmt]) -> None:
        for s in statements:
            if not self.live:
                return
            handler = _STATEMENTS.get(type(s))
            self.current = s
            if handler is None:
                self._outlined_statement(s)
            else:
                handler(self, s)

    # -- simple statements
    def _expression(self, s: ast.Expr) -> None:
        if isinstance(s.value, ast.Constant):
            return
        self.expr(s.value)
        self.emit("POP")

    def _nothing(self, s: ast.stmt) -> None:
        pass

    def _return(self, s: ast.Return) -> None:
        if s.value is None:
            self.at(s)
            self.constant(None)
        else:
            self.expr(s.value)
        self.at(s)
        if self.inlined_in is not None:
            emit_return(self, self.inlined_in)
        else:
            self.emit("RETURN")

    def _assign(self, s: ast.Assign) -> None:
        self.expr(s.value)
        for target in s.targets[:-1]:
            self.emit("COPY", 1)
            self._store(target)
        self._store(s.targets[-1])

    def _call(self, node: ast.Call) -> None:
        local = self.functions.get(node.func.id) if isinstance(node.func, ast.Name) and node.func.id not in self.renamed else None
        if local is not None:
            emit_call(self, node, local, self.block)
        else:
            super()._call(node)

    def _local_function(self, s: ast.FunctionDef) -> None:
        if self.functions.get(s.name) is not s:
            self._outlined_statement(s)

    def _annotated(self, s: ast.AnnAssign) -> None:
        if s.value is not None:
            self.expr(s.value)
            self._store(s.target)
        elif not isinstance(s.target, ast.Name):
            self._outlined_statement(s)

    def _augmented(self, s: ast.AugAssign) -> None:
        target, op = s.target, "i" + BINARY[type(s.op)].rstrip("_")
        if isinstance(target, ast.Name):
            self.at(target)
            self.load(target.id)
            self.expr(s.value)
            self.at(s)
            self.op(op, 2)
            self._store(target)
        elif isinstance(target, ast.Subscript):
            self.expr(target.value)
            self.expr(target.slice)
            self.at(target)
            self.emit("COPY", 2)
            self.emit("COPY", 2)
            self.emit("LOAD_ITEM")
            self.expr(s.value)
            self.at(s)
            self.op(op, 2)       # object, index, value
            self.emit("SWAP", 3)
            self.emit("SWAP", 2)
            self.emit("STORE_TENSOR")
        else:
            self.expr(target.value)
            self.at(target)
            self.emit("COPY", 1)
            self.emit("LOAD_ATTR", self.b.name(target.attr))
            self.expr(s.value)
            self.at(s)
            self.op(op, 2)
            self.emit("SWAP", 2)
            self._store_outlined(target)

    def _store(self, target: ast.expr) -> None:
        """Pop the value on top into a target."""
        if isinstance(target, ast.Name):
            self.at(target)
            if target.id in self.renamed:
                self.emit("STORE", self.b.local(self.renamed[target.id]))
            elif target.id in self.locals:
                self.store_local(target.id)
            else:
                self._store_outlined(target)
        elif isinstance(target, ast.Subscript):
            self.expr(target.value)
            self.expr(target.slice)
            self.at(target)
            self.emit("STORE_TENSOR")
        elif isinstance(target, ast.Attribute):
            self.expr(target.value)
            self._store_outlined(target)
        else:
            assert isinstance(target, (ast.Tuple, ast.List))
            items = target.elts
            star = next((i for i, t in enumerate(items) if isinstance(t, ast.Starred)), None)
            self.at(target)
            if star is None:
                self.emit("UNPACK", len(items))
            else:
                self.emit("UNPACK_STAR", star, len(items) - star - 1)
            for item in items:
                self._store(item.value if isinstance(item, ast.Starred) else item)

    def _store_outlined(self, target: ast.expr) -> None:
        """The value (and the object of an attribute) are on the stack."""
        outline = self.outliner.store(target)
        self.at(target)
        self.call_import(target, len(outline.live_ins), 0)

    def _delete(self, s: ast.Delete) -> None:
        for target in s.targets:
            if isinstance(target, ast.Name) and target.id in self.locals:
                self.at(target)
                self.emit("DELETE", self.b.local(target.id))
                if target.id in self.flagged:
                    self.set_flag(target.id, False)
            else:
                single = ast.copy_location(ast.Delete([target]), s)
                self._outlined_statement(single, s)

    def _assert(self, s: ast.Assert) -> None:
        if not __debug__:
            return
        passed = self.b.label()
        self.jump_if_true(s.test, passed, "COND_JUMP")
        if self.live:
            failed = ast.copy_location(ast.Assert(ast.copy_location(ast.Constant(False), s.test), s.msg), s)
            self.call_py(self.outliner.raising(failed, s), s)
            self.emit("RETURN")
        self.place(passed)

    def _raise(self, s: ast.Raise) -> None:
        self.call_py(self.outliner.raising(s, s), s)
        self.emit("RETURN")

    # -- control flow
    def _if(self, s: ast.If) -> None:
        orelse = self.b.label()
        self.jump_if_false(s.test, orelse, "BRANCH_IF_SYMBOLIC")
        self.block(s.body)
        if not s.orelse:
            self.place(orelse)
            return
        end = self.b.label()
        self.emit("JUMP", end)
        self.place(orelse)
        self.block(s.orelse)
        self.place(end)

    def _while(self, s: ast.While) -> None:
        loop = _Loop(self.b.label(), self.b.label(), False)
        orelse = self.b.label()
        self.place(loop.start)
        self.at(s)
        self.emit("LOOP_START", loop.exit)
        self.jump_if_false(s.test, orelse, "COND_JUMP")
        self._loop_body(s, loop, orelse)

    def _for(self, s: ast.For) -> None:
        loop = _Loop(self.b.label(), self.b.label(), True)
        orelse = self.b.label()
        self.expr(s.iter)
        self.at(s.iter)
        self.emit("GET_ITER")
        self.place(loop.start)
        self.at(s)
        self.emit("LOOP_START", loop.exit)
        self.emit("FOR_NEXT", orelse)
        self._store(s.target)
        self._loop_body(s, loop, orelse)

    def _loop_body(self, s: ast.For | ast.While, loop: _Loop, orelse: Label) -> None:
        self.loops.append(loop)
        self.block(s.body)
        self.at(s)
        self.end_loop(loop.start, not loop.has_end)
        self.loops.pop()
        self.place(orelse)
        self.block(s.orelse)
        self.place(loop.exit)

    def _break(self, s: ast.Break) -> None:
        loop = self.loops[-1]
        self.at(s)
        if loop.iterates:
            self.emit("POP")
        self.emit("JUMP", loop.exit)

    def _continue(self, s: ast.Continue) -> None:
        loop = self.loops[-1]
        self.at(s)
        self.emit("LOOP_END", loop.start)
        loop.has_end = True

    # -- Python
    def _outlined_statement(self, s: ast.stmt, place: ast.stmt | None = None) -> None:
        """The statement (at the place of another one) as a CALL_PY; its ways out become branches on the outcome."""
        outline = self.outliner.statement(s, place or s)
        self.call_py(outline, s)
        leaves = outline.leaves
        if leaves is None:
            return
        ways: list[tuple[int, Callable[[], None]]] = []
        if leaves.returns:
            ways.append((1, lambda: self.emit("RETURN")))
        if leaves.breaks:
            ways.append((2, lambda: self._leave_loop(leaves.returns, self._break, s)))
        if leaves.continues:
            ways.append((3, lambda: self._leave_loop(leaves.returns, self._continue, s)))
        for code, leave in ways[:-1]:
            other = self.b.label()
            self.emit("COPY", 1)
            self.constant(code)
            self.op("eq", 2)
            self.emit("COND_JUMP", other)
            self.emit("POP")
            leave()
            self.place(other)
        fell = self.b.label()
        self.emit("COND_JUMP", fell)
        ways[-1][1]()
        self.place(fell)
        if leaves.returns:
            self.emit("POP")

    def _leave_loop(self, has_value: bool, leave: Callable[[Any], None], s: ast.stmt) -> None:
        if has_value:
            self.emit("POP")
        leave(s)


def _check(names: Names, local_names: set[str], node: Any) -> None:
    """What only Python itself can run."""
    for n in FRAME_READERS & set(names.loads) - local_names:
        raise WholeFunction(f"it uses {n}")
    if {"vars", "dir"} & set(names.loads) - local_names:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("vars", "dir") and not call.args:
                raise WholeFunction(f"it uses {call.func.id}() of its own variables")
    for n in sorted(names.captured & local_names):
        if names.stores[n] > 1 or n in names.loop_stores or n in names.deletes:
            raise WholeFunction(f"'{n}' is captured by a nested function and bound more than once")
    for n in sorted(names.rebound & local_names):
        raise WholeFunction(f"'{n}' is bound by a nested function")


_STATEMENTS: dict[type, Callable[[BytecodeGenerator, Any], None]] = {
    ast.Expr: BytecodeGenerator._expression, ast.Pass: BytecodeGenerator._nothing, ast.Global: BytecodeGenerator._nothing,
    ast.Nonlocal: BytecodeGenerator._nothing, ast.Return: BytecodeGenerator._return, ast.Assign: BytecodeGenerator._assign,
    ast.AnnAssign: BytecodeGenerator._annotated, ast.AugAssign: BytecodeGenerator._augmented, ast.Delete: BytecodeGenerator._delete,
    ast.Assert: BytecodeGenerator._assert, ast.Raise: BytecodeGenerator._raise, ast.If: BytecodeGenerator._if, ast.While: BytecodeGenerator._while,
    ast.For: BytecodeGenerator._for, ast.Break: BytecodeGenerator._break, ast.Continue: BytecodeGenerator._continue,
    ast.FunctionDef: BytecodeGenerator._local_function,
}
