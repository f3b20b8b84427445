"""Where calls of cells and of `@ms.jit` functions go while BYTECODE_VM is the mode.

The outermost call is jitted, with what it calls inlined. What is called from interpreted code runs as PyNative, because the caller is about to be
compiled with it; it is jitted by itself where the caller has no native code, or keeps leaving it there. MindSpore runs as it is, all the
way down, where it must see the operations: recording gradients, casting for mixed precision, a dispatch mode.
"""
from __future__ import annotations

import json
import os
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from bcvm.startup import BYTECODE_VM
from bcvm.vm import function

KEY = "_bcvm_mode"      # in the __dict__ of a cell or function: what was made of it
_WRAPPERS = os.path.join("mindspore", "graph", "")  # the folder of their code
OFTEN = 8               # calls from interpreted code after which a cell gets native code of its own

# Attributes of a cell that make its call more than its construct, unless they are false (nn.Cell.__call__ in MindSpore 2.10).
OBSERVED = ("requires_grad", "mixed_precision_type", "_saved_tensors_pack_hook")  # MindSpore must see the operations themselves
AROUND = ("_lazy_forward_pre_hook", "_lazy_forward_hook", "_lazy_backward_pre_hook", "_lazy_backward_hook", "_shard_fn", "_recompute_cell", "_dynamic_shape_inputs")


class _Here(threading.local):
    """depth: over 0 while calls of this thread run as PyNative. nested: over 0 in what the interpreter runs behind native code.
    captures: of functions under ms.jit(capture_mode="bytecode") that run, whether MindSpore captures them."""

    depth = 0
    nested = 0

    def __init__(self) -> None:
        self.captures: list[bool] = []


here = _Here()
_made: "weakref.WeakSet[Held]" = weakref.WeakSet()


class Held:
    """What was made of an object, kept in the object and gone with it. A copy of the object starts anew."""

    __slots__ = ("owner", "construct", "of", "others", "seen", "__weakref__")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.construct: Any = None            # of a cell: its jitted construct
        self.of: Any = None                   # and the function it was made of
        self.others: dict[Any, Any] = {}      # jitted functions by what they were made of
        self.seen = 0
        _made.add(self)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def held(obj: Any) -> Held:
    mine = vars(obj).get(KEY)
    if type(mine) is not Held or mine.owner is not obj:
        mine = vars(obj)[KEY] = Held(obj)
    return mine


def functions() -> list[Any]:
    """The callables that were made, in the order of their making."""
    found = {id(f): f for h in _made for f in (h.construct, *h.others.values()) if f is not None}
    return sorted(found.values(), key=lambda f: f._bcvm.serial)


def forget() -> None:
    """Drop everything that was made."""
    for mine in list(_made):
        if vars(mine.owner).get(KEY) is mine:
            del vars(mine.owner)[KEY]
        _made.discard(mine)


class aside:
    """MindSpore runs as it is in this block."""

    def __enter__(self) -> None:
        here.depth += 1

    def __exit__(self, *exc: object) -> None:
        here.depth -= 1


# -- making callables

def is_wrapper(fn: Any) -> bool:
    """Whether ms.jit made this function around another one. The flag that it sets is not enough: decorators above it copy that."""
    return type(fn) is types.FunctionType and getattr(fn, "__wrapped_by_jit__", False) and _WRAPPERS in fn.__code__.co_filename and hasattr(fn, "__wrapped__")


def unwrapped(fn: Any) -> Any:
    """The function below ms.jit's wrappers, bound as it was."""
    while True:
        if type(fn) is types.MethodType and is_wrapper(fn.__func__):
            fn = vars(fn.__func__)["__wrapped__"].__get__(fn.__self__)
        elif is_wrapper(fn):
            fn = vars(fn)["__wrapped__"]
        else:
            return fn


def options_of(executor: Any) -> dict[str, Any]:
    """What ms.jit was told for bcvm; see mindspore_settings."""
    told = json.loads((executor.jit_config_dict or {}).get("options") or "{}")
    return told if type(told) is dict else {}


class Router:
    """The replacements of nn.Cell.__call__ and of the call of @ms.jit functions.

    context: the dictionary whose "_mode" is the mode. known: this version of MindSpore is one whose nn.Cell.__call__ we know.
    settings: (jit options) -> (options of bcvm.jit, whether to dump); told: what is to be done with a new callable."""

    def __init__(self, context: dict[str, Any], known: bool, requires_grad: Callable[[], bool], settings: Callable[[dict[str, Any]], dict[str, Any]],
                 told: Callable[[Any, dict[str, Any]], None]) -> None:
        self.context, self.known, self.requires_grad, self.settings, self.told = context, known, requires_grad, settings, told

    def on(self) -> bool:
        return self.context["_mode"] is BYTECODE_VM

    # -- cells
    def cell_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        context, route, known = self.context, self._route, self.known

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if context["_mode"] is BYTECODE_VM and not here.depth:
                mine = vars(self)
                kept = mine.get(KEY)
                if known and kept is not None and kept.owner is self and kept.of is mine.get("construct", type(self).construct) and not any(map(mine.get, OBSERVED)) \
                        and not any(map(mine.get, AROUND)):
                    return kept.construct(*args, **kwargs)
                return route(original, self, args, kwargs)
            return original(self, *args, **kwargs)
        return __call__

    def _route(self, original: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A first call, a call of a cell that is more than its construct, or one behind native code."""
        inside = vars(cell)
        if any(map(inside.get, OBSERVED)) or self.requires_grad():
            with aside():
                return original(cell, *args, **kwargs)
        mine = held(cell)
        if here.nested:
            mine.seen += 1
            if mine.seen < OFTEN:
                with aside():
                    return original(cell, *args, **kwargs)
        construct = inside.get("construct", type(cell).construct)
        if construct is mine.construct and construct is not None:  # another call of the cell, in another thread, is at the same place
            return original(cell, *args, **kwargs)
        if mine.of is not construct:
            mine.construct = self._make_construct(cell, construct)
            mine.of = construct
        own = "construct" in inside
        inside["construct"] = mine.construct  # nn.Cell.__call__ does what belongs to a call, and then this
        try:
            return original(cell, *args, **kwargs)
        finally:
            if own:
                inside["construct"] = construct
            else:
                inside.pop("construct", None)

    def _make_construct(self, cell: Any, construct: Any) -> Any:
        told = vars(cell).get("_jit_config_dict") or {}
        plain = unwrapped(construct if "construct" in vars(cell) else construct.__get__(cell))
        made = self._make(plain, told)
        self.told(made, told)
        return made

    def _make(self, plain: Any, told: dict[str, Any]) -> Any:
        """The callable for a function or a bound method."""
        options = self.settings(told)
        made = function.bound_method(plain.__func__, plain.__self__, options) if type(plain) is types.MethodType else function.jit(plain, **options)
        self._guard(made, plain)
        return made

    # -- functions
    def executor_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        router = self

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not router.on():
                return original(self, *args, **kwargs)
            return router.call_function(self.fn, options_of(self), args, kwargs)
        return __call__

    def call_function(self, fn: Any, told: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that was given to ms.jit."""
        receiver = getattr(fn, "__self__", None)
        if receiver is not None:
            fn, args = fn.__func__, (receiver, *args)
        if here.depth or self.requires_grad():
            with aside():
                return fn(*args, **kwargs)
        bound = bool(args) and hasattr(type(args[0]), "construct") and unwrapped(getattr(type(args[0]), fn.__name__, None)) is fn
        mine = held(args[0] if bound else fn)
        made = mine.others.get(fn)
        if made is None:
            mine.seen += 1
            if here.nested and mine.seen < OFTEN or "<locals>" in fn.__qualname__ and mine.seen < 2:  # perhaps made anew for each call
                with aside():
                    return fn(*args, **kwargs)
            made = mine.others[fn] = self._make(fn.__get__(args[0]) if bound else fn, told)
            self.told(made, told)
        return made(*(args[1:] if bound else args), **kwargs)

    def _guard(self, made: Any, plain: Callable[..., Any]) -> None:
        """What holds where no native code takes a call: gradients are recorded as in PyNative, and what is called runs as PyNative, unless there
        will be no native code for the caller."""
        state, slow, requires_grad = made._bcvm, made._slow, self.requires_grad
        run_frames = state.run_frames

        def outside(*args: Any, **kwargs: Any) -> Any:
            if requires_grad():
                with aside():
                    return plain(*args, **kwargs)
            if state.site.failed and not state.site.specialisations:
                return slow(*args, **kwargs)
            with aside():
                return slow(*args, **kwargs)

        def behind(frames: Any, always: bool = False) -> Any:
            here.nested += 1
            try:
                return run_frames(frames, always)
            finally:
                here.nested -= 1
        made._slow, state.run_frames = outside, behind
