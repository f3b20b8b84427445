"""What names a piece of syntax reads and binds, and which locals are certainly set where."""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

FRAME_READERS = frozenset({"locals", "exec", "eval", "breakpoint"})
"""Builtins that look at the variables of the frame which calls them; `vars` and `dir` do if called with nothing."""

CONSUMERS = frozenset({"sum", "any", "all", "max", "min", "list", "tuple", "set", "frozenset", "sorted", "dict"})
"""Builtins that exhaust a generator before they return, so that nobody sees its variables change later."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Names:
    """Names of one scope: nested functions count as reads of their free variables."""

    def __init__(self) -> None:
        self.loads: Counter[str] = Counter()
        self.stores: Counter[str] = Counter()
        self.loop_stores: set[str] = set()  # bound inside a loop
        self.deletes: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.captured: set[str] = set()     # free in a function or generator that may outlive the expression
        self.rebound: set[str] = set()      # bound by a nested function's `nonlocal`
        self._loop = 0

    def visit(self, node: ast.AST) -> None:
        special = _VISIT.get(type(node))
        if special is not None:
            special(self, node)
        else:
            self._children(node)

    def visit_all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def store(self, name: str) -> None:
        self.stores[name] += 1
        if self._loop:
            self.loop_stores.add(name)

    def _children(self, node: ast.AST) -> None:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                self.visit(value)
            elif type(value) is list:
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)

    # -- names
    def _name(self, node: ast.Name) -> None:
        if type(node.ctx) is ast.Store:
            self.store(node.id)
        else:
            self.loads[node.id] += 1
            if type(node.ctx) is ast.Del:
                self.deletes.add(node.id)

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.loads[node.target.id] += 1
        self._children(node)

    def _annotated(self, node: ast.AnnAssign) -> None:
        """Annotations of locals are not evaluated."""
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)

    def _named(self, node: Any) -> None:
        """Statements and patterns that bind `name` (or `rest`)."""
        self._children(node)
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.store(name)
        if isinstance(node, ast.ExceptHandler) and name:
            self.deletes.add(name)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.store(alias.asname or alias.name.partition(".")[0])

    def _global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocals.update(node.names)

    def _loop_statement(self, node: Any) -> None:
        if isinstance(node, ast.While):
            self._loop += 1
            self.visit(node.test)
        else:
            self.visit(node.iter)
            self._loop += 1
            self.visit(node.target)
        self.visit_all(node.body)
        self._loop -= 1
        self.visit_all(node.orelse)

    # -- nested scopes
    def _function(self, node: Any) -> None:
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        self.visit_all(args.defaults)
        self.visit_all(args.kw_defaults)
        inner = Names()
        for p in parameters:
            inner.store(p.arg)
        if isinstance(node, _FUNCTIONS):
            self.visit_all(node.decorator_list)
            self.visit_all(p.annotation for p in parameters)
            self.visit_all([node.returns])
            inner.visit_all(node.body)
            self.store(node.name)
        else:
            inner.visit(node.body)
        bound = (set(inner.stores) | inner.deletes) - inner.nonlocals | inner.globals
        self._escape((set(inner.loads) | inner.captured | inner.nonlocals) - bound)
        self.rebound |= (inner.nonlocals | inner.rebound) - bound

    def _class(self, node: ast.ClassDef) -> None:
        self.visit_all([*node.decorator_list, *node.bases, *node.keywords])
        inner = Names()
        inner.visit_all(node.body)
        self._escape(set(inner.loads) | inner.captured | inner.nonlocals)
        self.rebound |= inner.nonlocals | inner.rebound
        self.store(node.name)

    def _escape(self, free: set[str]) -> None:
        self.loads.update(free)
        self.captured |= free

    def _comprehension(self, node: Any, escapes: bool = False) -> None:
        self.visit(node.generators[0].iter)
        targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        inner = Names()
        inner.visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        for i, g in enumerate(node.generators):
            inner.visit_all(g.ifs)
            if i:
                inner.visit(g.iter)
        free = set(inner.loads) - targets
        self.loads.update(free)
        self.captured |= (free if escapes else set()) | inner.captured - targets
        self.rebound |= inner.rebound
        for name in set(inner.stores) - targets:  # a walrus binds in the function
            self.stores[name] += 1
            self.loop_stores.add(name)

    def _generator(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node, escapes=True)

    def _call(self, node: ast.Call) -> None:
        if consumes_generator(node):
            self.visit(node.func)
            self._comprehension(node.args[0])
        else:
            self._children(node)


def consumes_generator(node: ast.Call) -> bool:
    """`sum(... for ...)`, `", ".join(... for ...)`: the generator does not outlive the call."""
    if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.GeneratorExp):
        return False
    return isinstance(node.func, ast.Name) and node.func.id in CONSUMERS or isinstance(node.func, ast.Attribute) and node.func.attr == "join"


_VISIT: dict[type, Callable[[Names, Any], None]] = {
    ast.Name: Names._name, ast.AugAssign: Names._augmented, ast.AnnAssign: Names._annotated, ast.ExceptHandler: Names._named,
    ast.MatchAs: Names._named, ast.MatchStar: Names._named, ast.MatchMapping: Names._named,
    ast.Import: Names._import, ast.ImportFrom: Names._import, ast.Global: Names._global, ast.Nonlocal: Names._nonlocal,
    ast.FunctionDef: Names._function, ast.AsyncFunctionDef: Names._function, ast.Lambda: Names._function, ast.ClassDef: Names._class,
    ast.ListComp: Names._comprehension, ast.SetComp: Names._comprehension, ast.DictComp: Names._comprehension,
    ast.GeneratorExp: Names._generator, ast.Call: Names._call, **dict.fromkeys(_LOOPS, Names._loop_statement),
    ast.Constant: lambda names, node: None,
}


def names_of(*nodes: ast.AST) -> Names:
    """The names of these pieces of one scope."""
    names = Names()
    names.visit_all(nodes)
    return names


# -- definite assignment

State = frozenset[str] | None
"""Names that are certainly set; None where control never comes."""


def _join(states: Iterable[State]) -> State:
    out: State = None
    for s in states:
        out = s if out is None else out if s is None else out & s
    return out


class Flow:
    """A walk over statements. `before`: id of statement -> names certainly set there. `exposed`: names read where they
    may not be set. `leaves`: states at a break or continue of a loop around the walked statements."""

    def __init__(self) -> None:
        self.before: dict[int, frozenset[str]] = {}
        self.exposed: set[str] = set()
        self.leaves: list[State] = []
        self._breaks: list[list[State]] = []
        self._handled: list[str] = []  # names of the handlers around, which are unset on the way out

    def block(self, statements: Iterable[ast.stmt], state: State) -> State:
        for s in statements:
            if state is None:
                return None
            self.before[id(s)] = state
            state = self._statement(s, state)
        return state

    def _read(self, state: frozenset[str], *nodes: ast.AST | None) -> frozenset[str]:
        """Reads of these expressions, in order; returns the state after them."""
        for node in nodes:
            if node is not None:
                names = names_of(node)
                if names.stores:
                    state = self._in_order(node, state)
                else:
                    self.exposed.update(n for n in names.loads if n not in state)
        return state

    def _in_order(self, node: ast.AST, state: frozenset[str]) -> frozenset[str]:
        """An expression with a walrus in it, in the order of evaluation; what may be skipped sets nothing."""
        if isinstance(node, ast.NamedExpr):
            return self._in_order(node.value, state) | {node.target.id}
        if isinstance(node, ast.IfExp):
            state = self._in_order(node.test, state)
            return self._in_order(node.body, state) & self._in_order(node.orelse, state)
        if isinstance(node, (ast.BoolOp, ast.Compare)):
            always, *skipped = node.values if isinstance(node, ast.BoolOp) else [node.left, *node.comparators]
            state = inside = self._in_order(always, state)
            for k, operand in enumerate(skipped):
                inside = self._in_order(operand, inside)
                if k == 0 and isinstance(node, ast.Compare):
                    state = inside
            return state
        if isinstance(node, (ast.Name, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            self.exposed.update(n for n in names_of(node).loads if n not in state)
            return state
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else None
        for child in [c for pair in pairs for c in pair if c is not None] if pairs is not None else ast.iter_child_nodes(node):
            state = self._in_order(child, state)
        return state

    def _bind(self, state: frozenset[str], *targets: ast.AST) -> frozenset[str]:
        """Assignment to targets, left to right."""
        for target in targets:
            if isinstance(target, ast.Name):
                state = state | {target.id}
            elif isinstance(target, (ast.Tuple, ast.List)):
                state = self._bind(state, *target.elts)
            elif isinstance(target, ast.Starred):
                state = self._bind(state, target.value)
            else:  # the object and the index of an item
                state = self._read(state, target)
        return state

    def _statement(self, s: ast.stmt, state: frozenset[str]) -> State:
        special = _FLOW.get(type(s))
        if special is not None:
            return special(self, s, state)
        names = names_of(s)  # definitions, imports, del: no walrus in these is relied upon
        self.exposed.update(n for n in names.loads if n not in state and n != getattr(s, "name", None))
        bound = {s.name} if isinstance(s, (*_FUNCTIONS, ast.ClassDef)) else set(names.stores)
        return (state | bound) - names.deletes

    def _assign(self, s: ast.Assign, state: frozenset[str]) -> State:
        return self._bind(self._read(state, s.value), *s.targets)

    def _augmented(self, s: ast.AugAssign, state: frozenset[str]) -> State:
        if isinstance(s.target, ast.Name):  # read before the value
            self.exposed |= {s.target.id} - state
            return self._read(state, s.value) | {s.target.id}
        return self._read(state, s.target, s.value)

    def _annotated(self, s: ast.AnnAssign, state: frozenset[str]) -> State:
        return state if s.value is None and isinstance(s.target, ast.Name) else self._bind(self._read(state, s.value), s.target)

    def _expression(self, s: ast.Expr, state: frozenset[str]) -> State:
        return self._read(state, s.value)

    def _assert(self, s: ast.Assert, state: frozenset[str]) -> State:
        state = self._read(state, s.test)
        self._read(state, s.msg)
        return state

    def _if(self, s: ast.If, state: frozenset[str]) -> State:
        state = self._read(state, s.test)
        return _join((self.block(s.body, state), self.block(s.orelse, state)))

    def _loop(self, s: Any, state: frozenset[str]) -> State:
        if not isinstance(s, ast.While):
            state = self._read(state, s.iter)
        head = state - names_of(s).deletes
        self.before[id(s)] = head
        if isinstance(s, ast.While):
            head = inside = self._read(head, s.test)
        else:
            inside = self._bind(head, s.target)
        self._breaks.append([])
        self.block(s.body, inside)
        breaks = self._breaks.pop()
        forever = isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and bool(s.test.value)
        return _join((None if forever else self.block(s.orelse, head), *breaks))

    def _try(self, s: Any, state: frozenset[str]) -> State:
        end = self.block(s.body, state)
        failed = state - names_of(*s.body).deletes
        ends = [self.block(s.orelse, end)]
        for handler in s.handlers:
            named = [handler.name] if handler.name else []
            self._handled += named
            handled = self.block(handler.body, self._read(failed, handler.type) | set(named))
            del self._handled[len(self._handled) - len(named):]
            ends.append(None if handled is None else handled - set(named))
        joined = _join(ends)
        entry = failed - names_of(*s.handlers, *s.orelse).deletes
        final = self.block(s.finalbody, entry)
        return None if joined is None or final is None else joined - names_of(*s.finalbody).deletes | final

    def _with(self, s: Any, state: frozenset[str]) -> State:
        for item in s.items:
            state = self._read(state, item.context_expr)
            if item.optional_vars is not None:
                state = self._bind(state, item.optional_vars)
        # __exit__ may swallow an exception, so the body may have stopped anywhere.
        return _join((self.block(s.body, state), state - names_of(*s.body).deletes))

    def _match(self, s: ast.Match, state: frozenset[str]) -> State:
        state = self._read(state, s.subject)
        ends: list[State] = []
        for case in s.cases:
            pattern = names_of(case.pattern)
            self.exposed.update(n for n in pattern.loads if n not in state)
            inside = self._read(state | set(pattern.stores), case.guard)
            ends.append(self.block(case.body, inside))
        last = s.cases[-1]
        total = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        return _join(ends if total else [*ends, state])

    def _leave(self, s: ast.stmt, state: frozenset[str]) -> State:
        self._read(state, *(v for v in (getattr(s, "value", None), getattr(s, "exc", None), getattr(s, "cause", None))))
        if isinstance(s, (ast.Break, ast.Continue)):
            state = state - set(self._handled)
            if not self._breaks:
                self.leaves.append(state)
            elif isinstance(s, ast.Break):
                self._breaks[-1].append(state)
        return None


_FLOW: dict[type, Callable[[Flow, Any, frozenset[str]], State]] = {
    ast.Assign: Flow._assign, ast.AugAssign: Flow._augmented, ast.AnnAssign: Flow._annotated, ast.Expr: Flow._expression, ast.Assert: Flow._assert,
    ast.If: Flow._if, **dict.fromkeys(_LOOPS, Flow._loop), ast.Try: Flow._try, ast.With: Flow._with, ast.AsyncWith: Flow._with,
    ast.Match: Flow._match, **dict.fromkeys((ast.Return, ast.Raise, ast.Break, ast.Continue), Flow._leave),
}
if hasattr(ast, "TryStar"):
    _FLOW[ast.TryStar] = Flow._try


def exposed_reads(node: ast.expr) -> set[str]:
    """Names that an expression reads and does not certainly bind before."""
    flow = Flow()
    flow._read(frozenset(), node)
    return flow.exposed
