"""Rewrites of a function's syntax tree that keep its meaning: private names, super(), and ways out of a statement."""
from __future__ import annotations

import ast
import sys
from typing import Any


def prepare(node: Any, class_name: str, first_parameter: str, has_class_cell: bool) -> None:
    """Mangle private names as the class around does, and give super() the arguments that it finds by itself."""
    prefix = class_name.lstrip("_")
    if not prefix and not has_class_cell:
        return
    rewrite = _Prepare("_" + prefix if prefix else "", first_parameter if has_class_cell else "")
    for field in ("args", "body", "returns"):
        value = getattr(node, field, None)
        if isinstance(value, list):
            node.body = [rewrite.visit(s) for s in value]
        elif value is not None:
            setattr(node, field, rewrite.visit(value))


class _Prepare(ast.NodeTransformer):
    def __init__(self, prefix: str, first_parameter: str) -> None:
        self.prefix, self.first = prefix, first_parameter

    def mangle(self, name: str) -> str:
        return self.prefix + name if self.prefix and name.startswith("__") and not name.endswith("__") and "." not in name else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.mangle(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self.mangle(node.attr)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.mangle(node.arg)
        return self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> ast.AST:
        bound = node.asname or node.name
        if self.mangle(bound) != bound:
            node.asname = self.mangle(bound)
        return node

    def _names(self, node: Any) -> ast.AST:
        node.names = [self.mangle(n) for n in node.names]
        return node  # type: ignore[no-any-return]

    visit_Global = visit_Nonlocal = _names

    def _name(self, node: Any) -> ast.AST:
        if node.name:
            node.name = self.mangle(node.name)
        return self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _name

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        if node.rest:
            node.rest = self.mangle(node.rest)
        return self.generic_visit(node)

    def _function(self, node: Any) -> ast.AST:
        """In a nested function super() finds that function's own first argument."""
        if hasattr(node, "name"):
            node.name = self.mangle(node.name)
        first, self.first = self.first, ""
        self.generic_visit(node)
        self.first = first
        return node  # type: ignore[no-any-return]

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_GeneratorExp = _function
    if sys.version_info < (3, 12):  # later these are no functions of their own
        visit_ListComp = visit_SetComp = visit_DictComp = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """The body mangles by its own class."""
        node.name = self.mangle(node.name)
        node.bases = [self.visit(b) for b in node.bases]
        node.keywords = [self.visit(k) for k in node.keywords]
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self.first and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and not node.keywords:
            node.args = [ast.copy_location(ast.Name(name, ast.Load()), node) for name in ("__class__", self.first)]
        return node


class Leaves(ast.NodeVisitor):
    """Which ways out of statements there are: return, and break and continue of a loop around them."""

    def __init__(self) -> None:
        self.returns = self.breaks = self.continues = False
        self._depth = 0

    def visit_Return(self, node: ast.Return) -> None:
        self.returns = True

    def visit_Break(self, node: ast.Break) -> None:
        self.breaks |= not self._depth

    def visit_Continue(self, node: ast.Continue) -> None:
        self.continues |= not self._depth

    def _loop(self, node: Any) -> None:
        self._depth += 1
        for s in node.body:
            self.visit(s)
        self._depth -= 1
        for s in node.orelse:
            self.visit(s)

    visit_For = visit_AsyncFor = visit_While = _loop

    def _stop(self, node: ast.AST) -> None:
        """Nested scopes and expressions leave nothing."""

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Expr = visit_Assign = _stop


class Redirect(ast.NodeTransformer):
    """Make the ways out of a statement assignments and ends of a loop that runs once, or returns of a result tuple.

    break     ->  outcome = 2; break           continue  ->  outcome = 3; break
    return v  ->  return (*blank, 1, v)        global, nonlocal  ->  pass (declared at the head)
    """

    def __init__(self, outcome: str, blank: list[bool | None]) -> None:
        self.outcome, self.blank = outcome, blank
        self._depth = 0

    def visit_Return(self, node: ast.Return) -> Any:
        items: list[ast.expr] = [ast.Constant(v) for v in (*self.blank, 1)]
        return at(node, ast.Return(ast.Tuple([*items, node.value or ast.Constant(None)], ast.Load())))

    def _leave(self, node: ast.stmt) -> Any:
        if self._depth:
            return node
        code = 2 if isinstance(node, ast.Break) else 3
        return [at(node, ast.Assign([ast.Name(self.outcome, ast.Store())], ast.Constant(code))), at(node, ast.Break())]

    visit_Break = visit_Continue = _leave

    def _declaration(self, node: ast.stmt) -> Any:
        return at(node, ast.Pass())

    visit_Global = visit_Nonlocal = _declaration

    def _loop(self, node: Any) -> ast.AST:
        self._depth += 1
        node.body = self._block(node.body)
        self._depth -= 1
        node.orelse = self._block(node.orelse)
        return node  # type: ignore[no-any-return]

    visit_For = visit_AsyncFor = visit_While = _loop

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for s in statements:
            new = self.visit(s)
            out.extend(new if isinstance(new, list) else [new])
        return out

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Expr = visit_Assign = _keep


def at(place: Any, node: Any) -> Any:
    """The node and what it is made of, at the place's position."""
    for n in ast.walk(node):
        if "lineno" in n._attributes and not hasattr(n, "lineno"):
            ast.copy_location(n, place)
    return node
