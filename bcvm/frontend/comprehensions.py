"""List comprehensions, and generators that tuple(), list(), any() or all() exhaust, as loops of the function around them.

A target gets a hidden local of its own, so the function's variable of that name stays what it was. any() and all() end the loop at the first item that
decides. What holds a construct without a form (a lambda, a walrus, another generator) stays one call into Python.
"""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from bcvm.frontend.scope import names_of

if TYPE_CHECKING:
    from bcvm.frontend.expressions import ExpressionGenerator

EXHAUST = frozenset({"tuple", "list", "any", "all"})
_TARGETS = (ast.Name, ast.Tuple, ast.List)


def has_form(node: ast.ListComp | ast.GeneratorExp, forms: Any) -> bool:
    """Whether all that is evaluated in the loop has a form of its own. forms: the classes of expressions that have one."""
    for g in node.generators:
        if g.is_async or not all(isinstance(n, (*_TARGETS, ast.expr_context)) for n in ast.walk(g.target)):
            return False
    inside = [node.elt, *(i for g in node.generators for i in g.ifs), *(g.iter for g in node.generators[1:])]
    return all(_plain(n, forms) for root in inside for n in ast.walk(root))


def free_names(node: ast.ListComp | ast.GeneratorExp) -> set[str]:
    """What the loops read from the function around, except by the first iterable. Where such a name is unset, Python's error is another than the function's."""
    targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    inside = names_of(node.elt, *(i for g in node.generators for i in g.ifs), *(g.iter for g in node.generators[1:]))
    return set(inside.loads) - targets


def _plain(n: ast.AST, forms: Any) -> bool:
    if not isinstance(n, ast.expr):
        return not isinstance(n, ast.comprehension)
    if isinstance(n, ast.Call):
        return not (isinstance(n.func, ast.Name) and n.func.id in ("globals", "super"))
    if isinstance(n, ast.Dict):
        return None not in n.keys
    return type(n) in forms and not isinstance(n, ast.NamedExpr) or isinstance(n, ast.Starred)


def emit_list(g: "ExpressionGenerator", node: ast.ListComp | ast.GeneratorExp) -> None:
    """Push the list of the items."""
    g.at(node)
    g.emit("BUILD_LIST", 0)
    _loops(g, node, 0, None, None)


def emit_search(g: "ExpressionGenerator", node: ast.GeneratorExp, until: bool) -> None:
    """Push `until` if the truth of an item is that, else the other."""
    done = g.b.label()
    _loops(g, node, 0, until, done)
    g.constant(not until)
    g.place(done)


def _loops(g: "ExpressionGenerator", node: ast.ListComp | ast.GeneratorExp, depth: int, until: bool | None, done: Any) -> None:
    """On the stack: the list, if one is made, and the iterators of the loops around."""
    loop = node.generators[depth]
    start, exit_, end, more = g.b.label(), g.b.label(), g.b.label(), g.b.label()
    g.expr(loop.iter)
    g.at(loop.iter)
    g.emit("GET_ITER")
    outside = dict(g.renamed)
    hidden = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
    for name in hidden:
        g.renamed[name] = f".in{g.comprehensions}.{name}"
    g.comprehensions += 1
    g.place(start)
    g.at(node)
    g.emit("LOOP_START", exit_)
    g.emit("FOR_NEXT", end)
    _store(g, loop.target)
    for condition in loop.ifs:
        g.jump_if_false(condition, more, "COND_JUMP")
    if depth + 1 < len(node.generators):
        _loops(g, node, depth + 1, until, done)
    elif until is None:
        g.emit("COPY", len(node.generators) + 1)
        g.expr(node.elt)
        g.at(node.elt)
        g.emit("LIST_APPEND")
        g.emit("SWAP", len(node.generators) + 2)
        g.emit("POP")
    else:
        decided = g.jump_if_false if until else g.jump_if_true
        decided(node.elt, more, "COND_JUMP")
        for _ in node.generators:
            g.emit("POP")
        g.constant(until)
        g.emit("JUMP", done)
    g.place(more)
    g.at(node)
    g.end_loop(start, True)
    g.place(end)
    for name in hidden:  # nothing is kept alive
        g.constant(None)
        g.emit("STORE", g.b.local(g.renamed[name]))
    g.renamed = outside
    g.place(exit_)


def _store(g: "ExpressionGenerator", target: ast.AST) -> None:
    g.at(target)
    if isinstance(target, ast.Name):
        g.emit("STORE", g.b.local(g.renamed[target.id]))
        return
    assert isinstance(target, (ast.Tuple, ast.List))
    g.emit("UNPACK", len(target.elts))
    for item in target.elts:
        _store(g, item)
