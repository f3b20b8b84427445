"""How the arguments of a call are passed, and where each parameter gets its value from."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcvm.errors import Unsupported


@dataclass(frozen=True)
class Call:
    """How arguments are passed: number of positional ones, and the keywords in order."""

    positional: int
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arg:
    """A parameter's value is the vectorcall argument `index` (keywords follow the positional ones)."""

    index: int


@dataclass(frozen=True)
class Star:
    """A *args parameter: the vectorcall arguments `indices`."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class DoubleStar:
    """A **kwargs parameter: keyword -> vectorcall argument."""

    items: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Default:
    """A parameter that was not passed: its default object."""

    value: Any


Source = Arg | Star | DoubleStar | Default


def bind(params: Sequence[Any], call: Call, defaults: Mapping[str, Any]) -> list[Source]:
    """Where each parameter (Program.params) gets its value in such a call. Unsupported: the arguments do not fit, so Python must raise."""
    out: list[Source] = []
    at = 0
    keywords = {name: call.positional + i for i, name in enumerate(call.keywords)}
    for p in params:
        if p.kind == "star":
            out.append(Star(tuple(range(at, call.positional))))
            at = call.positional
        elif p.kind == "double_star":
            out.append(DoubleStar(tuple(keywords.items())))
            keywords = {}
        elif p.kind in ("positional_only", "positional") and at < call.positional:
            out.append(Arg(at))
            at += 1
        elif p.kind != "positional_only" and p.name in keywords:
            out.append(Arg(keywords.pop(p.name)))
        elif p.name in defaults:
            out.append(Default(defaults[p.name]))
        else:
            raise Unsupported(f"argument {p.name} is missing")
    if at < call.positional or keywords:
        raise Unsupported("arguments do not fit the parameters")
    return out
