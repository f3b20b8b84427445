"""Outlining: a piece of syntax becomes a Python function of its live-in locals returning its live-outs, for CALL_PY.

The function has the globals and the closure cells of the one it comes from, and the file name and lines of its source.
All pieces of a function are compiled at once, inside a function that has the same free variables.
"""
from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import CellType, CodeType, FunctionType
from typing import Any

from bcvm.frontend.rewrite import Leaves, Redirect, at
from bcvm.frontend.scope import Flow, Names, State, exposed_reads, names_of

OUTCOME, RESULT, UNSET = ".outcome", ".result", ".unset"
"""Names that no source can have."""

_UNSET = object()


class WholeFunction(Exception):
    """The function runs as one call back into Python; the text says why."""


class NeedsFlags(Exception):
    """Locals that may be unset where a piece reads them; a program with a flag for each can be generated."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def flag_of(name: str) -> str:
    """The local that says whether a local is set."""
    return f".set.{name}"


@dataclass(frozen=True)
class Outline:
    """How a piece is called: `live_ins` are pushed, then the flag of each of `maybe` that says whether it is set; results in order, first on top of the stack:
    each of `live_outs` (a flag before it where `flagged`), then the outcome (0 fell through, 1 return, 2 break,
    3 continue) if `leaves`, then the value (of an expression, or returned) if `value`."""

    live_ins: tuple[str, ...]
    live_outs: tuple[tuple[str, bool], ...]  # (name, flagged): a flagged one is stored only if its flag is true
    leaves: Leaves | None
    value: bool
    maybe: tuple[str, ...] = ()

    @property
    def results(self) -> int:
        return sum(1 + flagged for _, flagged in self.live_outs) + (self.leaves is not None) + self.value


class Outliner:
    """Collects the pieces of one function."""

    def __init__(self, name: str, code: CodeType, local_names: set[str], names: Names, body: list[ast.stmt], parameters: frozenset[str],
                 flagged: frozenset[str]) -> None:
        self.name, self.code, self.locals, self.names, self.body, self.parameters, self.flagged = name, code, local_names, names, body, parameters, flagged
        self._functions: list[ast.stmt] = []

    @cached_property
    def _flow(self) -> Flow:
        """Which locals are certainly set where. Only pieces ask for it; the first one before it changes the tree."""
        flow = Flow()
        flow.block(self.body, self.parameters)
        return flow

    def expression(self, node: ast.expr, statement: ast.stmt | None) -> Outline:
        """A piece that yields the expression's value."""
        names = names_of(node)
        reads = [n for n in names.loads if n in self.locals]
        if names.stores:
            exposed = exposed_reads(node)
            reads = [n for n in reads if n in exposed]
        known = self._before(statement)
        outs = [n for n in names.stores if n in self.locals]
        maybe = self._maybe_unset(reads, known)
        if not outs:
            return self._add(node, reads, [*self._blank(node, (), maybe, ()), at(node, ast.Return(node))], Outline(tuple(reads), (), None, True, maybe), names)
        ins = reads + [n for n in outs if n in known and n not in reads]
        live_outs = tuple((n, n not in known) for n in outs)
        first = at(node, ast.Assign([ast.Name(RESULT, ast.Store())], node))
        body = [*self._blank(node, live_outs, maybe, maybe), first, *self._return(node, live_outs, tuple(n for n in outs if n in maybe), [ast.Name(RESULT, ast.Load())])]
        return self._add(node, ins, body, Outline(tuple(ins), live_outs, None, True, maybe), names)

    def store(self, target: ast.expr) -> Outline:
        """A piece that takes a value (and, for an attribute, the object below it was pushed after it) and stores it."""
        names = names_of(target)
        if isinstance(target, ast.Attribute):
            params = [".value", ".object"]
            place: ast.expr = ast.Attribute(ast.Name(".object", ast.Load()), target.attr, ast.Store())
            names = Names()
        else:
            params, place = [".value"], target
        body = [at(target, ast.Assign([place], ast.Name(".value", ast.Load()))), at(target, ast.Return(ast.Tuple([], ast.Load())))]
        return self._add(target, params, body, Outline(tuple(params), (), None, False), names)

    def raising(self, node: ast.Raise | ast.Assert, statement: ast.stmt) -> Outline:
        """A piece that always raises."""
        names = names_of(node)
        reads = [n for n in names.loads if n in self.locals]
        maybe = self._maybe_unset(reads, self._before(statement))
        return self._add(node, reads, [*self._blank(node, (), maybe, ()), node], Outline(tuple(reads), (), None, True, maybe), names)

    def statement(self, node: ast.stmt, place: ast.stmt) -> Outline:
        """A piece that runs a statement, ways out included. `place`: the statement that it is, or is a part of."""
        names = names_of(node)
        known = self._before(place)
        flow = Flow()
        end = flow.block([node], frozenset())
        ins = [n for n in names.loads if n in flow.exposed and n in self.locals]
        maybe = self._maybe_unset(ins, known)
        outs = [n for n in names.stores if n in self.locals and (n in flow.exposed or self.names.loads[n] > names.loads[n])]
        definite = _meet([end, *flow.leaves])
        for n in sorted(names.deletes & self.locals):
            if n in self._flow.exposed:
                raise WholeFunction(f"'{n}' is unset inside {_describe(node)} and may be read afterwards")
        # Which of the outs may be unset at the end is found out there; those that are stay as they are, for nobody reads them.
        unsettable = tuple(n for n in outs if n not in definite and (n in maybe or n in names.deletes))
        ins += [n for n in outs if n not in definite and n in known and n not in ins and n not in unsettable]
        live_outs = tuple((n, n in unsettable or n not in definite and n not in ins) for n in outs)
        leaves = Leaves()
        leaves.visit(node)
        any_leave = leaves.returns or leaves.breaks or leaves.continues
        body = [*self._blank(node, live_outs, maybe, unsettable), *self._statement_body(node, names, leaves, live_outs, unsettable)]
        outline = Outline(tuple(ins), live_outs, leaves if any_leave else None, leaves.returns, maybe)
        return self._add(node, ins, body, outline, names)

    def _statement_body(self, node: ast.stmt, names: Names, leaves: Leaves, live_outs: tuple[tuple[str, bool], ...], unsettable: tuple[str, ...]) -> list[ast.stmt]:
        run: list[ast.stmt] = [node]
        if leaves.returns or leaves.breaks or leaves.continues or names.globals or names.nonlocals:
            blank: list[bool | None] = [False if k == 0 and flagged else None for _, flagged in live_outs for k in range(1 + flagged)]
            redirected = Redirect(OUTCOME, blank).visit(node)
            run = redirected if isinstance(redirected, list) else [redirected]
        tail: list[ast.expr] = []
        if leaves.breaks or leaves.continues:
            fell = [at(node, ast.Assign([ast.Name(OUTCOME, ast.Store())], ast.Constant(0))), at(node, ast.Break())]
            run = [at(node, ast.While(ast.Constant(True), run + fell, []))]
            tail.append(ast.Name(OUTCOME, ast.Load()))
        elif leaves.returns:
            tail.append(ast.Constant(0))
        if leaves.returns:
            tail.append(ast.Constant(None))
        return [*run, *self._return(node, live_outs, unsettable, tail)]

    def certainly_set(self, names: set[str], statement: ast.stmt | None) -> bool:
        """Whether all of these names that are locals are set before the statement, whichever way control came."""
        return names & self.locals <= self._before(statement)

    # -- parts
    def _before(self, statement: ast.stmt | None) -> frozenset[str]:
        if statement is None:  # of a lambda
            return self.parameters
        return self._flow.before.get(id(statement), frozenset())

    def _maybe_unset(self, reads: list[str], known: frozenset[str]) -> tuple[str, ...]:
        maybe = tuple(n for n in reads if n not in known)
        for n in maybe:
            if n in self.names.captured:
                raise WholeFunction(f"'{n}' may be captured by a nested function before it is set")
        if not self.flagged.issuperset(maybe):
            raise NeedsFlags(frozenset(maybe) | self._flow.exposed & self.locals)
        return maybe

    def _blank(self, place: ast.AST, live_outs: tuple[tuple[str, bool], ...], maybe: tuple[str, ...], unsettable: tuple[str, ...]) -> list[ast.stmt]:
        """The head: what is not set at the call is not set here; a live-out that may stay so gets a mark."""
        head: list[ast.stmt] = [
            at(place, ast.If(ast.UnaryOp(ast.Not(), ast.Name(flag_of(n), ast.Load())), [ast.Delete([ast.Name(n, ast.Del())])], [])) for n in maybe]
        return head + [at(place, ast.Assign([ast.Name(n, ast.Store())], ast.Name(UNSET, ast.Load()))) for n, flagged in live_outs if flagged and n not in unsettable]

    def _return(self, place: ast.AST, live_outs: tuple[tuple[str, bool], ...], unsettable: tuple[str, ...], tail: list[ast.expr]) -> list[ast.stmt]:
        items: list[ast.expr] = []
        marks: list[ast.stmt] = []
        for n, flagged in live_outs:
            if n in unsettable:
                mark = ast.Assign([ast.Name(n, ast.Store())], ast.Name(UNSET, ast.Load()))
                marks.append(at(place, ast.Try([ast.Expr(ast.Name(n, ast.Load()))], [ast.ExceptHandler(ast.Name("NameError", ast.Load()), None, [mark])], [], [])))
            if flagged:
                items.append(ast.Compare(ast.Name(n, ast.Load()), [ast.IsNot()], [ast.Name(UNSET, ast.Load())]))
            items.append(ast.Name(n, ast.Load()))
        items += tail
        return [*marks, at(place, ast.Return(items[0] if len(items) == 1 else ast.Tuple(items, ast.Load())))]

    def _add(self, place: Any, params: list[str], body: list[ast.stmt], outline: Outline, names: Names) -> Outline:
        bound = set(names.stores) | set(names.deletes)
        declared_global = sorted((bound & self.names.globals) | names.globals)
        declared_free = sorted((bound & self.names.nonlocals) | names.nonlocals)
        head: list[ast.stmt] = [at(place, kind(n)) for kind, n in ((ast.Global, declared_global), (ast.Nonlocal, declared_free)) if n]
        flagged = any(f for _, f in outline.live_outs)
        params = [*params, *map(flag_of, outline.maybe), *([UNSET] if flagged else [])]
        args = ast.arguments([], [ast.arg(p) for p in params], None, [], [], None, [])
        self._functions.append(at(place, _function(f".{len(self._functions)}", args, head + body)))
        return outline

    def compile(self, flags: int, imports: ast.Import | None) -> tuple[CodeType, ...]:
        """The code of each piece, in order. With the module's imports nested functions compile as they do in their file, so that
        their source can be believed."""
        if not self._functions:
            return ()
        args = ast.arguments([], [ast.arg(n) for n in self.code.co_freevars], None, [], [], None, [])
        outer = _function(".outer", args, self._functions)
        module = ast.Module([at(self._functions[0], outer), *([imports] if imports else [])], [])
        compiled = compile(module, self.code.co_filename, "exec", flags=flags, dont_inherit=True)
        (outer_code,) = (c for c in compiled.co_consts if isinstance(c, CodeType))
        pieces = [c for c in outer_code.co_consts if isinstance(c, CodeType)]
        return tuple(_rename(p, self.code.co_name, self.name) for p in pieces)


def _function(name: str, args: ast.arguments, body: list[ast.stmt]) -> ast.stmt:
    node = ast.FunctionDef(name, args, body, [])
    if sys.version_info >= (3, 12):
        node.type_params = []
    return node


def make(code: CodeType, globals: dict[str, Any], closure: Mapping[str, CellType]) -> FunctionType:
    """The function of a piece, for one function object."""
    defaults = (_UNSET,) if UNSET in code.co_varnames[:code.co_argcount] else None
    return FunctionType(code, globals, code.co_name, defaults, tuple(closure[n] for n in code.co_freevars))


def _rename(code: CodeType, name: str, qualname: str) -> CodeType:
    """Tracebacks and nested functions show the function that the piece comes from."""
    prefix = f".outer.<locals>.{code.co_name}"

    def proper(text: str) -> str:
        return qualname + text[len(prefix):] if text.startswith(prefix) else text

    def constant(value: Any) -> Any:
        if isinstance(value, CodeType):
            return renamed(value)
        return proper(value) if sys.version_info < (3, 11) and type(value) is str else value  # there qualified names are constants of the code around

    def renamed(c: CodeType) -> CodeType:
        if sys.version_info < (3, 11):
            return c.replace(co_consts=tuple(map(constant, c.co_consts)))
        return c.replace(co_consts=tuple(map(constant, c.co_consts)), co_qualname=proper(c.co_qualname))
    return renamed(code).replace(co_name=name)


def _meet(states: list[State]) -> frozenset[str]:
    reached = [s for s in states if s is not None]
    return frozenset.intersection(*reached) if reached else frozenset()


def _describe(node: Any) -> str:
    kind = "try" if type(node).__name__.startswith("Try") else type(node).__name__.lower()
    return f"the {kind} of line {node.lineno}"
