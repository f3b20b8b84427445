"""Program and argument types -> typed SSA: names resolved, callees inlined, shapes symbolic."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bcvm.bytecode.program import BoundProgram
from bcvm.specialise import builtins as _builtins  # noqa: F401  registers bindings
from bcvm.specialise import settle
from bcvm.specialise.calls import bind
from bcvm.specialise.machine import Frame, Machine
from bcvm.specialise.ssa import Aggregate, Graph, Path, Root, Tree
from bcvm.specialise.types import Const

AGAIN = 2000  # nodes of a graph up to which it is made again where that spares it reading numbers that are constants


def specialise_call(bound: BoundProgram, args: Sequence[Any], keywords: Sequence[str], program_of: Callable[[Any], BoundProgram],
                    leave_at: list[int] | None = None, receiver: tuple[Any, ...] = ()) -> Graph:
    """The graph of a call with arguments like these; the last ones are keywords of these names. Argument i is at ('arg', i).
    leave_at: test mode, native code leaves at the safe point whose number it holds. receiver: objects passed before the arguments at every call,
    the same each time (`self` of a bound method)."""
    def frame(m: Machine) -> Frame:
        if bound.code is not None:
            m.resolver.guard("code", Path(Root("const", bound.function)), bound.code)
        first = [m.resolver.wrap(o, Path(Root("const", o)), bound.program.params[i].name) for i, o in enumerate(receiver)]
        trees = [m.resolver.wrap(a, Path(Root("arg", i)), argument_name(bound, i + len(receiver), len(args) + len(receiver), keywords)) for i, a in enumerate(args)]
        split = len(args) - len(keywords)
        locals_ = bind(m, bound, bound.function, first + trees[:split], dict(zip(keywords, trees[split:])))
        return Frame(bound, 0, locals_, [], receiver=(first + trees)[0] if first or trees else None)
    return _specialise(bound, frame, program_of, leave_at)


def specialise_continuation(bound: BoundProgram, pc: int, locals_: Sequence[Any], stack: Sequence[Any], iterators: Sequence[int], unset: Any,
                            program_of: Callable[[Any], BoundProgram], leave_at: list[int] | None = None,
                            symbols: Sequence[tuple[str, str]] = (), sizes: Sequence[int] = ()) -> Graph:
    """The graph of the rest of an activation from instruction pc. Argument i is the i-th of the locals, then of the stack; `unset` marks unset
    locals. `iterators`: positions on the stack that hold an iterator over a range, given as three numbers: next item, stop, step.
    symbols: names that hints have given to sizes so far, each with what says so; the sizes follow as arguments."""
    def frame(m: Machine) -> Frame:
        trees: list[Tree] = []
        for i, value in enumerate([*locals_, *stack]):
            path = Path(Root("arg", i))
            if value is unset:
                m.resolver.guard("is", path, unset)
                trees.append(None)
            else:
                trees.append(m.resolver.wrap(value, path, bound.program.locals[i] if i < len(locals_) else f"stack{i - len(locals_)}"))
        flat = trees[len(locals_):]
        on_stack: list[Tree] = []
        while flat:
            if len(on_stack) in iterators:
                at, stop, step = flat[:3]
                on_stack.append(Aggregate("iterator", (Aggregate("range", (at, stop, Const(m.builder.constant(step)))), at)))
                del flat[:3]
            else:
                on_stack.append(flat.pop(0))
        named = {n: (by, m.resolver.wrap(size, Path(Root("arg", len(trees) + i)), n)) for i, ((n, by), size) in enumerate(zip(symbols, sizes, strict=True))}
        return Frame(bound, pc, trees[:len(locals_)], on_stack, symbols=named)
    return _specialise(bound, frame, program_of, leave_at)


def _specialise(bound: BoundProgram, make_frame: Callable[[Machine], Frame], program_of: Callable[[Any], BoundProgram], leave_at: list[int] | None) -> Graph:
    constants: dict[Any, Any] = {}
    while True:
        known = len(constants)
        m = Machine(bound.program.name, program_of, constants, leave_at)
        try:
            graph = m.run((make_frame(m),))
        except settle.Again:
            continue
        if m.resolver.rebound == 0 or m.n_nodes > AGAIN:
            return graph  # numbers that were found to be needed as constants are guarded, whether or not they are read as well
        assert len(constants) > known


def argument_name(bound: BoundProgram, index: int, count: int, keywords: Sequence[str]) -> str:
    """The name of argument `index` in messages."""
    if index >= count - len(keywords):
        return keywords[index - (count - len(keywords))]
    params = bound.program.params
    return params[index].name if index < len(params) and params[index].kind != "star" else f"argument {index}"
