"""From a native exit back to interpreter frames: the trees of a State, with the values that native code wrote, become objects."""
from __future__ import annotations

import types
from typing import Any

from bcvm.specialise.ssa import Aggregate, State, Tree, Value
from bcvm.specialise.types import Const
from bcvm.vm.frame import UNSET, Frame


def frames_of(state: State, values: list[Any]) -> list[Frame]:
    """The activations of a state, outermost first. `values`: one object per State.values(), in order."""
    objects: dict[Value, Any] = dict(zip(state.values(), values))
    made: dict[Aggregate, Any] = {}

    def build(tree: Tree) -> Any:
        if tree is None:
            return UNSET
        if isinstance(tree, Value):
            return objects[tree]
        if isinstance(tree, Const):
            return tree.value if tree.handle is None else objects[tree.handle]
        if tree not in made:
            made[tree] = aggregate(tree)
        return made[tree]

    def aggregate(tree: Aggregate) -> Any:
        if tree.kind == "iterator":
            source, position = tree.items
            if isinstance(source, Aggregate) and source.kind == "range" and not (isinstance(position, Const) and position.path == "unroll"):
                return iter(range(build(position), build(source.items[1]), build(source.items[2])))
            iterator = iter(build(source))
            at = build(position)
            if at:
                if hasattr(iterator, "__setstate__"):
                    iterator.__setstate__(at)
                else:
                    for _ in range(at):
                        next(iterator)
            return iterator
        items = [build(i) for i in tree.items]
        if tree.kind == "method":
            target, function = items
            return getattr(target, function) if isinstance(function, str) else types.MethodType(function, target)
        if tree.kind == "dict":
            return dict(zip(items[::2], items[1::2]))
        return {"tuple": tuple, "list": list}[tree.kind](items) if tree.kind in ("tuple", "list") else {"slice": slice, "range": range}[tree.kind](*items)

    frames = []
    for level in state.levels:
        frame = Frame(level.bound, level.pc, [build(t) for t in level.locals], [build(t) for t in level.stack])
        for name, by, tree in level.symbols:
            frame.name_size(name, build(tree), by)
        frames.append(frame)
    return frames
