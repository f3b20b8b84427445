"""Calls on trees: bindings of library functions, tensor methods, and Python functions, which are inlined."""
from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.program import BoundProgram
from bcvm.errors import Unsupported
from bcvm.ops.definition import METHODS
from bcvm.ops.lookup import binding_for
from bcvm.specialise.machine import INLINE_DEPTH, INLINE_INSTRUCTIONS, Frame
from bcvm.specialise.operators import library_of
from bcvm.specialise.resolve import CALLEES, RESULTS, is_jitted
from bcvm.specialise.ssa import Aggregate, Path, Root, Tree, Value, leaves
from bcvm.specialise.types import Const, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine


CALLS_ITSELF = "calls itself"


def call(m: "Machine", frame: Frame, callee: Tree, args: list[Tree], keywords: dict[str, Tree]) -> None:
    """Call a tree; its arguments are off the stack. Pushes the result and advances, or enters an inlined activation."""
    if isinstance(callee, Aggregate) and callee.kind == "method":
        target, function = callee.items
        if isinstance(function, Const) and type(function.value) is str:
            return done(frame, method(m, target, function.value, args, keywords))
        return call(m, frame, function, [target, *args], keywords)
    if not isinstance(callee, Const):
        raise Unsupported(f"a call of {m.builder.describe(callee)}")
    fn = callee.value
    if is_jitted(fn):
        fn = fn.__wrapped__
    if fn is object.__getattribute__ and len(args) == 2 and isinstance(args[0], Const):
        read = m.resolver.attribute(args[0], m.builder.constant(args[1]), plain=True)
        if isinstance(read, Aggregate) and read.kind == "property":
            return call(m, frame, read.items[1], [read.items[0]], {})
        return done(frame, read)
    found = binding_for(fn)
    if found is not None:
        library, binding, instance = found
        return done(frame, bound_call(m, library, binding, ([instance] if instance is not None else []) + args, keywords))
    if isinstance(fn, types.MethodType):
        self_tree = m.resolver.wrap(fn.__self__, Path(Root("const", fn), (("attr", "__self__"),)))
        return call(m, frame, Const(fn.__func__), [self_tree, *args], keywords)
    for give in RESULTS:
        result = give(m, callee, args, keywords)
        if result is not None:
            return done(frame, result)
    for resolve in CALLEES:
        instead = resolve(m, callee)
        if instead is not None:
            return call(m, frame, instead, args, keywords)
    if type(fn) is types.FunctionType:
        return inline(m, frame, fn, args, keywords)
    if not isinstance(fn, type):
        of_class = type(fn).__dict__.get("__call__") or next((b.__dict__["__call__"] for b in type(fn).__mro__ if "__call__" in b.__dict__), None)
        if isinstance(of_class, types.FunctionType):
            return inline(m, frame, of_class, [callee, *args], keywords)
    raise Unsupported(f"a call of {getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}")


def done(frame: Frame, result: Tree) -> None:
    frame.stack.append(result)
    frame.pc += 1


def method(m: "Machine", target: Tree, name: str, args: list[Tree], keywords: dict[str, Tree]) -> Tree:
    if isinstance(target, Value) and isinstance(target.type, Tensor):
        with library_of(m, [target]):
            return run_binding(m, METHODS[target.type.library][name], [target, *args], keywords)
    assert isinstance(target, Aggregate)
    if target.kind == "dict" and not keywords:
        keys, values = target.items[::2], target.items[1::2]
        if name in ("keys", "values", "items") and not args:
            pairs: tuple[Tree, ...] = {"keys": keys, "values": values, "items": tuple(Aggregate("tuple", kv) for kv in zip(keys, values))}[name]
            return Aggregate("iterator", (Aggregate("tuple", pairs), Const(0, "unroll")))
        if name == "get" and 1 <= len(args) <= 2:
            key = m.builder.constant(args[0])
            for k, v in zip(keys, values):
                if isinstance(k, Const) and k.value == key:
                    return v
            return args[1] if len(args) == 2 else Const(None)
    if target.kind == "list" and name in ("append", "extend") and len(args) == 1 and not keywords:
        from bcvm.specialise.instructions import sequence
        more = args if name == "append" else sequence(m, args[0])
        grow(m, target, Aggregate("list", (*target.items, *more)))
        return Const(None)
    raise Unsupported(f"{target.kind}.{name}")


def grow(m: "Machine", old: Aggregate, new: Aggregate) -> None:
    """A list that the program made becomes another, wherever it is held. Only this graph knows of it: nothing outside has seen it."""
    memo: dict[int, Tree] = {id(old): new}

    def holds(tree: Tree) -> bool:
        return isinstance(tree, Aggregate) and (tree is old or any(holds(i) for i in tree.items))

    def changed(tree: Tree) -> Tree:
        if not isinstance(tree, Aggregate) or not holds(tree):
            return tree
        if id(tree) not in memo:
            memo[id(tree)] = Aggregate(tree.kind, tuple(changed(i) for i in tree.items))
        return memo[id(tree)]

    if holds(new):
        raise Unsupported("a list that holds itself")
    for frame in m.frames:
        frame.locals[:], frame.stack[:] = [changed(t) for t in frame.locals], [changed(t) for t in frame.stack]


def bound_call(m: "Machine", library: str, binding: Any, args: list[Any], keywords: dict[str, Tree]) -> Tree:
    tensors = [v for t in [*args, *keywords.values()] for v in leaves(t) if isinstance(v.type, Tensor)]
    with library_of(m, tensors, "numpy" if library in ("bcvm", "python", "builtins", "math") else library):
        return run_binding(m, binding, args, keywords)


def run_binding(m: "Machine", binding: Any, args: list[Any], keywords: dict[str, Tree]) -> Tree:
    try:
        return m.builder.tree(binding(m.builder, *args, **keywords))
    except (ValueError, IndexError) as e:  # bad arguments: the interpreter's call raises the library's own error
        raise Unsupported(str(e)) from None
    except (TypeError, AttributeError, KeyError, RuntimeError) as e:  # arguments of a number or of a kind that the binding does not take
        raise Unsupported(f"arguments of {binding.__name__}: {type(e).__name__}: {e}") from e


def inline(m: "Machine", frame: Frame, fn: types.FunctionType, args: list[Tree], keywords: dict[str, Tree]) -> None:
    """Enter an activation of a Python function."""
    if len(m.frames) >= INLINE_DEPTH:
        raise Unsupported(f"calls nest deeper than {INLINE_DEPTH}")
    if fn.__name__ != "__getattribute__" and any(f.bound.function is fn and not other_object(f, args) for f in m.frames):
        raise Unsupported(f"{fn.__qualname__} {CALLS_ITSELF}")
    bound = m.program_of(fn)
    m.inlined += len(bound.program.code)
    if m.inlined > INLINE_INSTRUCTIONS:
        raise Unsupported("too much code to inline")
    m.resolver.guard("code", Path(Root("const", fn)), bound.code)
    locals_ = bind(m, bound, fn, args, keywords)
    m.frames = m.frames + (Frame(bound, 0, locals_, [], receiver=args[0] if args else None),)


def other_object(frame: Frame, args: list[Tree]) -> bool:
    """Whether this call is one of another object's method than the activation's: objects that hold others of their class, not a recursion."""
    outer, inner = frame.receiver, args[0] if args else None
    return isinstance(outer, Const) and isinstance(inner, Const) and outer.value is not inner.value and not isinstance(inner.value, (type, int, float, str, tuple, type(None)))


def bind(m: "Machine", bound: BoundProgram, fn: Any, args: list[Tree], keywords: dict[str, Tree]) -> list[Tree]:
    """Python's binding of arguments to parameters; what Python would refuse is Unsupported (the interpreter raises)."""
    program = bound.program
    locals_: list[Tree] = [None] * len(program.locals)
    rest, keywords = list(args), dict(keywords)
    for i, p in enumerate(program.params):
        if p.kind in ("positional", "positional_only"):
            if rest:
                if p.name in keywords and p.kind == "positional":
                    raise Unsupported(f"{p.name} given twice")
                locals_[i] = rest.pop(0)
            elif p.kind == "positional" and p.name in keywords:
                locals_[i] = keywords.pop(p.name)
            else:
                locals_[i] = default(m, bound, fn, p.name)
        elif p.kind == "star":
            locals_[i], rest = Aggregate("tuple", tuple(rest)), []
        elif p.kind == "keyword_only":
            locals_[i] = keywords.pop(p.name) if p.name in keywords else default(m, bound, fn, p.name)
        else:
            locals_[i], keywords = Aggregate("dict", tuple(x for k, v in keywords.items() for x in (Const(k), v))), {}
    if rest or keywords:
        raise Unsupported(f"arguments do not fit {program.name}")
    return locals_


def default(m: "Machine", bound: BoundProgram, fn: Any, name: str) -> Tree:
    """The default of a parameter, read from the function at every call."""
    if fn is None:
        if name not in bound.defaults:
            raise Unsupported(f"argument {name} of {bound.program.name} is missing")
        return m.resolver.wrap(bound.defaults[name], Path(Root("const", bound), (("attr", "defaults"), ("item", name))))
    if name in (fn.__kwdefaults__ or ()):
        return m.resolver.item(m.resolver.held(fn.__kwdefaults__, Path(Root("const", fn), (("attr", "__kwdefaults__"),)), ""), name)
    positional = fn.__code__.co_varnames[:fn.__code__.co_argcount]
    from_end = positional.index(name) - len(positional) if name in positional else 0
    if not -len(fn.__defaults__ or ()) <= from_end < 0:
        raise Unsupported(f"argument {name} of {bound.program.name} is missing")
    return m.resolver.item(m.resolver.held(fn.__defaults__, Path(Root("const", fn), (("attr", "__defaults__"),)), ""), from_end)
