"""Find a function's source, and believe it only if compiling it yields the function's own code object.

`inspect` returns whatever the file says now; a file that was edited after import, or a notebook cell that was replaced,
would give the program of another function. Here the text is compiled again and its code object compared.
"""
from __future__ import annotations
import __future__

import ast
import copy
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import CodeType, FunctionType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

FUTURE_FLAGS = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
"""Flags of a code object that say which `from __future__` imports it was compiled under."""


class Untrusted(Exception):
    """The source cannot be had or is not this function's; the text says why."""


@dataclass(frozen=True)
class Source:
    """A function's syntax tree (a private copy, free to change), the lines of its file, and the class around it."""

    node: FunctionNode
    lines: list[str]
    class_name: str  # of the innermost class around it, for private names; '' where there is none
    imports: ast.Import | None  # of the names that its module imports: they matter to how code compiles


def find(function: FunctionType) -> Source:
    """The trusted source of a function; Untrusted if there is none."""
    code = function.__code__
    filename = code.co_filename
    lines = linecache.getlines(filename, function.__globals__)
    try:
        return _find(code, lines)
    except Untrusted:
        # The line cache may hold an older text than the one that was imported.
        linecache.checkcache(filename)
        fresh = linecache.getlines(filename, function.__globals__)
        if fresh == lines:
            raise
        return _find(code, fresh)


def _find(code: CodeType, lines: list[str]) -> Source:
    if not lines:
        raise Untrusted(f"the source of {code.co_filename} is not available")
    tree = _holding_statement(code, lines)
    matches = [c for c in _codes(_compiled(tree, code)) if same_code(c, code)]
    if not matches:
        raise Untrusted(f"{code.co_filename}, line {code.co_firstlineno}, is not the source it was compiled from (edited since, or generated)")
    candidates = [(node, name) for node, name in _function_nodes(tree, code.co_name == "<lambda>") if _first_line(node) == code.co_firstlineno and _name(node) == code.co_name]
    node, class_name = _choose(candidates, tree, code)
    return Source(node, lines, class_name, next((s for s in reversed(tree.body) if isinstance(s, ast.Import)), None))


# -- the text: the one top-level statement that holds the function, so that a large file is parsed once

@dataclass(frozen=True)
class _File:
    lines: list[str]
    spans: list[tuple[int, int]]  # first and last line of each top-level statement
    imported: list[str]           # names that imports bind in the module: calls of their attributes compile to other code


_files: dict[str, _File] = {}
_FILES_KEPT = 16


def _holding_statement(code: CodeType, lines: list[str]) -> ast.Module:
    """A module of the statement only, and of imports that matter to how it compiles."""
    file, module = _files.get(code.co_filename), None
    if file is None or file.lines != lines:
        module = _parse("".join(lines), code)
        file = _File(lines, [(_top_line(s), s.end_lineno or s.lineno) for s in module.body], list(_imported(module)))
        while len(_files) >= _FILES_KEPT:
            _files.pop(next(iter(_files)))
        _files[code.co_filename] = file
    line = code.co_firstlineno
    holding = [i for i, (a, b) in enumerate(file.spans) if a <= line <= b]
    if not holding:
        raise Untrusted(f"{code.co_filename} has no statement at line {line}")
    if module is None:
        first, last = file.spans[holding[0]][0], file.spans[holding[-1]][1]
        if any(a < first <= b or a <= last < b for a, b in file.spans):  # several statements share a line
            module = _parse("".join(lines), code)
        else:
            tree = _parse("\n" * (first - 1) + "".join(lines[first - 1:last]), code)
    if module is not None:
        tree = ast.Module([module.body[i] for i in holding], [])
    if file.imported:
        tree.body.append(ast.fix_missing_locations(ast.Import([ast.alias("_", n) for n in file.imported])))
    return tree


def _imported(module: ast.Module) -> Iterator[str]:
    pending: list[ast.AST] = list(module.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (n for n in (a.asname or a.name.partition(".")[0] for a in node.names) if n != "*")
        elif isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or isinstance(node, ast.ExceptHandler):
            pending.extend(ast.iter_child_nodes(node))


def _parse(text: str, code: CodeType) -> ast.Module:
    try:
        return ast.parse(text, code.co_filename)
    except (SyntaxError, ValueError, RecursionError) as e:
        raise Untrusted(f"the source of {code.co_filename} does not parse: {e}") from None


def _top_line(s: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(s, "decorator_list", [])
    return min([s.lineno, *(d.lineno for d in decorators)])


def _compiled(tree: ast.Module, code: CodeType) -> CodeType:
    try:
        compiled: CodeType = compile(tree, code.co_filename, "exec", flags=code.co_flags & FUTURE_FLAGS, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as e:
        raise Untrusted(f"the source of {code.co_filename} does not compile: {e}") from None
    return compiled


# -- code objects

_PLAIN = ("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_firstlineno", "co_code",
          "co_names", "co_varnames", "co_freevars", "co_cellvars")
_TABLES = ("co_qualname", "co_linetable", "co_exceptiontable") if sys.version_info >= (3, 11) else ("co_linetable",)


def same_code(a: CodeType, b: CodeType) -> bool:
    """Same instructions, constants, names and positions, nested code included."""
    return (all(getattr(a, f) == getattr(b, f) for f in _PLAIN) and all(getattr(a, f) == getattr(b, f) for f in _TABLES)
            and len(a.co_consts) == len(b.co_consts) and all(map(_same_const, a.co_consts, b.co_consts)))


def _same_const(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return same_code(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_const, a, b))
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else a == b  # 0.0 and -0.0 differ, a NaN is itself


def _codes(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


# -- syntax nodes

_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def _function_nodes(tree: ast.AST, lambdas: bool, class_name: str = "") -> Iterator[tuple[FunctionNode, str]]:
    """Functions in the tree with the class around each; of expressions only if lambdas are asked for."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child, class_name
        if lambdas or isinstance(child, _HOLDERS):
            yield from _function_nodes(child, lambdas, child.name if isinstance(child, ast.ClassDef) else class_name)


def _first_line(node: FunctionNode) -> int:
    decorators = getattr(node, "decorator_list", ())
    return decorators[0].lineno if decorators else node.lineno


def _name(node: FunctionNode) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _choose(candidates: list[tuple[FunctionNode, str]], tree: ast.Module, code: CodeType) -> tuple[FunctionNode, str]:
    if len(candidates) > 1:  # lambdas on one line
        by_columns = _by_columns(candidates, code) if sys.version_info >= (3, 11) else []
        candidates = by_columns or _by_code(candidates, tree, code)
    if len(candidates) != 1:
        raise Untrusted(f"{code.co_filename}, line {code.co_firstlineno}: which of several functions on this line it is cannot be told")
    return candidates[0]


def _by_columns(candidates: list[tuple[FunctionNode, str]], code: CodeType) -> list[tuple[FunctionNode, str]]:
    """The innermost whose body holds the positions of all instructions."""
    positions = getattr(code, "co_positions")()  # noqa: B009  since 3.11
    spans = [(p[0], p[2], p[1], p[3]) for p in positions if None not in p and p[3] != 0]

    def holds(node: FunctionNode) -> bool:
        body = node.body
        return isinstance(body, ast.expr) and all(
            (body.lineno, body.col_offset) <= s[:2] and s[2:] <= (body.end_lineno, body.end_col_offset) for s in spans)
    fitting = [c for c in candidates if spans and holds(c[0])]
    return sorted(fitting, key=lambda c: (c[0].lineno, c[0].col_offset))[-1:]


def _by_code(candidates: list[tuple[FunctionNode, str]], tree: ast.Module, code: CodeType) -> list[tuple[FunctionNode, str]]:
    """Those that give the code when the others beside them on the line are None; for code objects without columns: before 3.11, and of constants in 3.12."""
    nodes = [node for node, _ in _function_nodes(tree, True)]
    places = [nodes.index(node) for node, _ in candidates]
    fitting = []
    for candidate, place in zip(candidates, places, strict=True):
        around = [p for p in places if p != place and _is_inside(nodes[place], nodes[p])]
        beside = [p for p in places if p != place and p not in around and not _is_inside(nodes[p], nodes[place])]
        alone = copy.deepcopy(tree)
        copies = [node for node, _ in _function_nodes(alone, True)]
        _Blank({id(copies[p]) for p in beside}).visit(alone)
        left = [c for c in _codes(_compiled(alone, code)) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]  # outermost first
        if len(left) > len(around) and same_code(left[len(around)], code):
            fitting.append(candidate)
    return fitting


def _is_inside(inner: FunctionNode, outer: FunctionNode) -> bool:
    """Whether a function is in the body of another one; in its defaults it is beside it."""
    body = outer.body if isinstance(outer.body, list) else [outer.body]
    return any(node is inner for part in body for node in ast.walk(part))


class _Blank(ast.NodeTransformer):
    def __init__(self, ids: set[int]) -> None:
        self.ids = ids

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        if id(node) in self.ids:
            return ast.copy_location(ast.Constant(None), node)
        return self.generic_visit(node)
