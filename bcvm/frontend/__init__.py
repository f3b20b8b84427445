"""Source to program: `program_of(function)`.

A function whose source cannot be trusted, or that only Python itself can run, gets a program of one CALL_PY.
"""
from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from bcvm.bytecode.program import BoundProgram, Program
from bcvm.frontend.annotations import Hinted, check_hints, hints_of
from bcvm.frontend.comprehensions import EXHAUST
from bcvm.frontend.generator import BytecodeGenerator, parameters_of, whole_function
from bcvm.frontend.outline import NeedsFlags, WholeFunction, make
from bcvm.frontend.source import FUTURE_FLAGS, Untrusted, find

__all__ = ["check_hints", "program_of"]

_ATTRIBUTE = "__bcvm_program__"
_lock = threading.RLock()


@dataclass(frozen=True)
class _Template:
    """A program with the code of its imports; None: the import is the function itself."""

    program: Program
    pieces: tuple[CodeType, ...] | None


_templates: dict[int, tuple["weakref.ref[CodeType]", dict[Any, _Template]]] = {}
"""By identity of the code object: equal code objects of different files are different functions."""


def program_of(function: Callable[..., Any]) -> BoundProgram:
    """The program of a Python function, bound to its globals, closure and defaults. The same object for the same function;
    the program itself is shared by all functions of one code object. TypeError for anything but a Python function."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"a program is made of a Python function, not of {type(function).__name__} {function!r}")
    bound = _known(function)
    if bound is None:
        with _lock:
            bound = _known(function)
            if bound is None:
                bound = function.__dict__[_ATTRIBUTE] = _bind(function, _template(function))  # lives and dies with the function
    return bound


@dataclass(eq=False)
class _Bound(BoundProgram):
    """With what of the function may be replaced, besides its code."""

    values: tuple[Any, ...] | None = None
    keyword_values: dict[str, Any] | None = None


def _known(function: FunctionType) -> _Bound | None:
    bound = function.__dict__.get(_ATTRIBUTE)
    if isinstance(bound, _Bound) and bound.function is function:  # functools.wraps copies attributes to other functions
        if bound.code is function.__code__ and bound.values is function.__defaults__ and _same_items(bound.keyword_values or {}, function.__kwdefaults__ or {}):
            return bound
    return None


def _same_items(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """The same objects: arrays do not compare as wholes."""
    return len(a) == len(b) and all(b.get(name, _lock) is value for name, value in a.items())


def _bind(function: FunctionType, template: _Template) -> _Bound:
    code = function.__code__
    closure: dict[str, CellType] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    defaults: dict[str, Any] = dict(function.__kwdefaults__ or {})
    values = function.__defaults__ or ()
    defaults.update(zip(code.co_varnames[code.co_argcount - len(values):code.co_argcount], values, strict=True))
    if template.pieces is None:
        imports: tuple[Callable[..., Any], ...] = (_spread(function, template.program),)
    else:
        imports = tuple(make(piece, function.__globals__, closure) for piece in template.pieces)
    builtins = function.__builtins__  # type: ignore[attr-defined, unused-ignore]
    return _Bound(template.program, function.__globals__, builtins, closure, defaults, imports, function, code,
                  function.__defaults__, function.__kwdefaults__ and dict(function.__kwdefaults__))


def _template(function: FunctionType) -> _Template:
    code = function.__code__
    hints = hints_of(function)
    key = (hints, len(function.__defaults__ or ()), frozenset(function.__kwdefaults__ or ()))
    known = _templates.get(id(code))
    if known is None or known[0]() is not code:
        address = id(code)
        known = _templates[address] = (weakref.ref(code, lambda _: _templates.pop(address, None)), {})
    template = known[1].get(key)
    if template is None:
        template = known[1][key] = _generate(function, dict(hints), first=not known[1])
    return template


def _generate(function: FunctionType, hints: dict[str, Hinted], first: bool) -> _Template:
    code, name = function.__code__, function.__qualname__
    parameters = parameters_of(code, len(function.__defaults__ or ()), function.__kwdefaults__ or ())
    try:
        with warnings.catch_warnings():  # of the source: they were given when it was compiled first
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            flagged: frozenset[str] = frozenset()
            while True:
                try:
                    return _Template(*BytecodeGenerator(name, code, find(function), parameters, hints, flagged, EXHAUST & function.__globals__.keys()).generate(code.co_flags & FUTURE_FLAGS))
                except NeedsFlags as e:  # names of locals that have none yet
                    flagged |= e.names
    except Untrusted as e:
        reason = str(e)
        if first:
            warnings.warn(f"{name} runs as plain Python: {reason}", RuntimeWarning, stacklevel=4)
    except WholeFunction as e:
        reason = str(e)
    except RecursionError:
        reason = "its expressions are nested too deeply"
    return _Template(whole_function(name, code, parameters, hints, reason), None)


def _spread(function: FunctionType, program: Program) -> Callable[..., Any]:
    """The function, called with the values of its parameters in order."""
    kinds = [(p.name, p.kind) for p in program.params]
    if all(kind in ("positional_only", "positional") for _, kind in kinds):
        return function

    def call(*values: Any) -> Any:
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        for (name, kind), value in zip(kinds, values, strict=True):
            if kind == "star":
                args.extend(value)
            elif kind == "keyword_only":
                keywords[name] = value
            elif kind == "double_star":
                keywords.update(value)
            else:
                args.append(value)
        return function(*args, **keywords)
    return call
