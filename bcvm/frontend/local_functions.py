"""Functions defined in a function and only called there, as part of it: their bodies stand where they are called.

    def construct(self, x):
        def split(y):
            return y.view(n, -1).swapaxes(0, 1)
        return split(self.q(x)) @ split(self.k(x))

Such a function object is never seen by anybody, so nothing tells whether it was made. Its variables are hidden locals of the function around, its free
names are those of the function around. What is used in any other way than by plain calls, calls itself, or holds what has no form of its own, stays a closure.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bcvm.frontend.scope import Flow, Names

if TYPE_CHECKING:
    from bcvm.frontend.generator import BytecodeGenerator

MOST_CALLS, MOST_NODES = 16, 500
_COMPOUND = (ast.If, ast.For, ast.While)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass)
_UNSEEN = frozenset({"globals", "super", "__class__", "locals", "vars", "dir", "eval", "exec"})


def inlinable(body: Sequence[ast.stmt], names: Names, forms: Collection[type], local_names: set[str], parameters: Collection[str]) -> dict[str, ast.FunctionDef]:
    """The local functions that are inlined, by name. forms: the classes of expressions that have a form. local_names, parameters: of the function around."""
    found = {s.name: s for s in body if isinstance(s, ast.FunctionDef) and names.stores[s.name] == 1 and s.name not in names.deletes
             and s.name not in names.rebound and _fits(s, forms)}
    flow = Flow()
    if found:
        flow.block(body, frozenset(parameters))
    while found:
        bad = _misused(body, found, forms) | _unset(found, flow.before, local_names)
        if not bad:
            break
        for name in bad:
            del found[name]
    return found


def _unset(found: dict[str, ast.FunctionDef], before: dict[int, frozenset[str]], local_names: set[str]) -> set[str]:
    """Functions that read variables which are not certainly set where the function is defined: unset ones are another error in a closure."""
    bad = set()
    for name, f in found.items():
        inside = Names()
        inside.visit_all(f.body)
        free = (set(inside.loads) - set(inside.stores) - set(parameters_of(f))) & local_names - found.keys()
        if not free <= before.get(id(f), frozenset()):
            bad.add(name)
    return bad


def _fits(f: ast.FunctionDef, forms: Collection[type]) -> bool:
    a = f.args
    if f.decorator_list or f.returns or a.defaults or a.kw_defaults or a.kwonlyargs or a.vararg or a.kwarg or any(p.annotation for p in [*a.posonlyargs, *a.args]):
        return False
    nodes = list(ast.walk(f))
    if len(nodes) > MOST_NODES or not all(_has_form(n, forms) for s in f.body for n in ast.walk(s)):
        return False
    inside = Names()
    inside.visit_all(f.body)
    if set(inside.loads) & _UNSEEN or inside.deletes or inside.captured:
        return False
    flow = Flow()
    parameters = frozenset(parameters_of(f))
    flow.block(f.body, parameters)
    return not flow.exposed & (set(inside.stores) | parameters)  # none may be unset where it is read


def _has_form(n: ast.AST, forms: Collection[type]) -> bool:
    if isinstance(n, ast.stmt):
        targets = n.targets if isinstance(n, ast.Assign) else [n.target] if isinstance(n, (ast.AugAssign, ast.AnnAssign, ast.For)) else []
        plain = all(isinstance(t, (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)) for target in targets for t in ast.walk(target))
        return plain and isinstance(n, (*_SIMPLE, *_COMPOUND, ast.Break, ast.Continue))
    if isinstance(n, ast.expr):
        return (type(n) in forms or isinstance(n, ast.Starred)) and not isinstance(n, (ast.NamedExpr, ast.ListComp)) and not (isinstance(n, ast.Dict) and None in n.keys)
    return not isinstance(n, (ast.comprehension, ast.ExceptHandler))


def parameters_of(f: ast.FunctionDef) -> list[str]:
    return [p.arg for p in [*f.args.posonlyargs, *f.args.args]]


def _misused(body: Sequence[ast.stmt], found: dict[str, ast.FunctionDef], forms: Collection[type]) -> set[str]:
    """Of these functions those that are not only called, in a place that has a form, after their definition."""
    bad: set[str] = set()
    calls = dict.fromkeys(found, 0)
    uses: dict[str, set[str]] = {}
    for name, f in found.items():
        uses[name] = {n.id for s in f.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in found}
    for name in found:  # those it calls, and those that these call
        while more := {u for inner in uses[name] for u in uses.get(inner, ())} - uses[name]:
            uses[name] |= more
    bad |= {name for name in found if name in uses[name]}
    defined: set[str] = set()
    for s in body:
        if isinstance(s, ast.FunctionDef) and found.get(s.name) is s:
            defined.add(s.name)
            _count(s.body, found, calls, bad, forms)
            continue
        used = {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in found}
        bad |= {u for u in used if not ({u} | uses[u]) <= defined}
        _count([s], found, calls, bad, forms)
    return bad | {name for name, n in calls.items() if n > MOST_CALLS}


def _count(statements: Sequence[ast.stmt], found: dict[str, ast.FunctionDef], calls: dict[str, int], bad: set[str], forms: Collection[type]) -> None:
    for s in statements:
        used = {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in found}
        if not used:
            continue
        if isinstance(s, _COMPOUND):
            _count([*s.body, *s.orelse], found, calls, bad, forms)
            roots: list[ast.AST] = [s.iter, s.target] if isinstance(s, ast.For) else [s.test]
        elif isinstance(s, _SIMPLE):
            roots = [s]
        else:
            bad |= used
            continue
        for root in roots:
            for call in _calls(root, found):
                calls[call.func.id] += 1  # type: ignore[attr-defined]
                if arguments(call, found[call.func.id]) is None:  # type: ignore[attr-defined]
                    bad.add(call.func.id)  # type: ignore[attr-defined]
            plain = {id(c.func) for c in _calls(root, found)}
            bad |= {n.id for n in ast.walk(root) if isinstance(n, ast.Name) and n.id in found and id(n) not in plain}
            if any(isinstance(n, ast.expr) and not _has_form(n, forms) for n in ast.walk(root)):
                bad |= {n.id for n in ast.walk(root) if isinstance(n, ast.Name) and n.id in found}


def _calls(root: ast.AST, found: dict[str, ast.FunctionDef]) -> Iterator[ast.Call]:
    for n in ast.walk(root):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in found:
            yield n


def arguments(call: ast.Call, f: ast.FunctionDef) -> list[str] | None:
    """The parameters that the arguments of a call go to, in the order of evaluation; None if they do not fit."""
    parameters = parameters_of(f)
    given = [*parameters[:len(call.args)], *(k.arg or "" for k in call.keywords)]
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(parameters) or sorted(given) != sorted(parameters):
        return None
    return given if not {p.arg for p in f.args.posonlyargs} & {k.arg for k in call.keywords} else None


class Inlined:
    """A body being emitted: where its returns go, and how many loops were around the call."""

    def __init__(self, end: Any, loops: int) -> None:
        self.end, self.loops = end, loops


def emit_call(g: "BytecodeGenerator", call: ast.Call, f: ast.FunctionDef, block: Callable[[Sequence[ast.stmt]], None]) -> None:
    """Push what the call of a local function gives."""
    given = arguments(call, f)
    assert given is not None
    for value in [*call.args, *(k.value for k in call.keywords)]:
        g.expr(value)
    inside = Names()
    inside.visit_all(f.body)
    number = g.comprehensions
    g.comprehensions += 1
    hidden = {name: f".in{number}.{name}" for name in sorted({*given, *inside.stores})}
    g.at(call)
    for name in reversed(given):
        g.emit("STORE", g.b.local(hidden[name]))
    outside, around, current = g.renamed, g.inlined_in, g.current
    g.renamed, g.inlined_in = hidden, Inlined(g.b.label(), len(g.loops))
    block(f.body)
    if g.live:
        g.constant(None)
    g.place(g.inlined_in.end)
    g.renamed, g.inlined_in, g.current = outside, around, current
    g.at(call)
    for name in hidden.values():  # nothing is kept alive
        g.constant(None)
        g.emit("STORE", g.b.local(name))


def emit_return(g: "BytecodeGenerator", inlined: Inlined) -> None:
    """The value is on the stack, above the iterators of the loops that are left."""
    for loop in g.loops[inlined.loops:]:
        if loop.iterates:
            g.emit("SWAP", 2)
            g.emit("POP")
    g.emit("JUMP", inlined.end)
