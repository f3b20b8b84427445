"""Settings: what `bcvm.jit(fn, **options)`, `with bcvm.config(...)` and the BCVM_* variables may say.

A setting is looked up in this order: the function's own option, the innermost `config` scope, the variable
`BCVM_<NAME>`, the default. Scopes are context variables: one thread or task does not see another's.
"""
from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

TIERS = ("auto", "interpret", "splice", "full")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
EXITS = ("none", "random", "all")
NO_CLAMP: Mapping[str, Clamp] = MappingProxyType({})


class Clamp(NamedTuple):
    """The sizes a symbol may take: min, min + step, ... up to max. None: no upper bound."""

    min: int = 0
    max: int | None = None
    step: int = 1

    def admits(self, size: int) -> bool:
        return size >= self.min and (self.max is None or size <= self.max) and (size - self.min) % self.step == 0


def clamp(min: int = 0, max: int | None = None, step: int = 1) -> Clamp:
    """Bounds for a symbolic size, for the option `clamp={"B": bcvm.clamp(min=1, max=32, step=4)}`. ValueError if no size fits."""
    for name, value in (("min", min), ("max", 0 if max is None else max), ("step", step)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"clamp: {name} is an int, not {value!r}")
    if min < 0 or step < 1 or (max is not None and max < min):
        raise ValueError(f"clamp: needs 0 <= min <= max and step >= 1, not min={min}, max={max}, step={step}")
    return Clamp(min, max, step)


@dataclass(frozen=True)
class Options:
    """All settings. Construct with checked values through `resolve`, `config` or `jit`; see `check` for what is allowed.

    tier                which tier runs calls: 'auto' (interpret first, native when ready), 'interpret', 'splice', 'full'
    background          compile in the compile thread; False: the call that needs code waits for it
    fusion              regions may become one kernel; False: one kernel per op
    compile_timeout_ms  how long a call waits for a compilation, where it waits at all
    deadline_ms         a call's time limit: calls over it are counted with their reason, never stopped
    cache_size          native code objects kept; the least recently used goes first
    cache_ttl_s         seconds after which unused native code may go
    clamp               bounds of symbolic sizes by name
    frozen              captured values never change: they may be packed or folded ahead
    threads             threads of one call; None: as many as the machine has
    device              where code runs: 'cpu'
    log_level           'debug' | 'info' | 'warning' | 'error' | 'off'; None: as BCVM_LOG_LEVEL says (see tools.log)
    exits, seed         test mode: native code leaves at 'random' (by seed) or 'all' safe points and the interpreter goes on
    """

    tier: str = "auto"
    background: bool = True
    fusion: bool = True
    compile_timeout_ms: float = 100.0
    deadline_ms: float | None = None
    cache_size: int = 200
    cache_ttl_s: float = 300.0
    clamp: Mapping[str, Clamp] = field(default_factory=lambda: NO_CLAMP)
    frozen: bool = False
    threads: int | None = None
    device: str = "cpu"
    log_level: str | None = None
    exits: str = "none"
    seed: int = 0


FIELDS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(Options))
NOT_IN_VARIABLES = ("clamp", "log_level")  # BCVM_LOG_LEVEL is read by tools.log, with MindSpore's variables


# -- checks: each returns the value in its one form, or raises with what is allowed

def _one_of(*allowed: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, str) and value.lower() in allowed:
            return value.lower()
        near = difflib.get_close_matches(str(value).lower(), allowed, 1) if len(allowed) > 1 else []
        raise ValueError("one of " + ", ".join(map(repr, allowed)) + (f"; did you mean {near[0]!r}?" if near else ""))
    return check


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError("True or False")


def _int(low: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"an int of at least {low}")
        if value < low:
            raise ValueError(f"an int of at least {low}")
        return value
    return check


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number above 0")
    if not value > 0:
        raise ValueError("a number above 0")
    return float(value)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _clamps(value: Any) -> Mapping[str, Clamp]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, Clamp) for k, v in value.items()):
        raise TypeError('a dict from symbol to bcvm.clamp(...), as {"B": bcvm.clamp(min=1, max=32)}')
    return MappingProxyType(dict(value))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "tier": _one_of(*TIERS), "background": _bool, "fusion": _bool, "compile_timeout_ms": _positive, "deadline_ms": _optional(_positive),
    "cache_size": _int(1), "cache_ttl_s": _positive, "clamp": _clamps, "frozen": _bool, "threads": _optional(_int(1)), "device": _one_of("cpu"),
    "log_level": _optional(_one_of(*LOG_LEVELS)), "exits": _one_of(*EXITS), "seed": _int(0),
}
assert set(_CHECKS) == set(FIELDS), "every option has its check"


def check(options: Mapping[str, Any], where: str = "bcvm.config") -> dict[str, Any]:
    """The same options, each checked and in its one form. TypeError for an unknown name (names the nearest) or a wrong type, ValueError for a wrong value."""
    checked = {}
    for name, value in options.items():
        if name not in _CHECKS:
            near = difflib.get_close_matches(name, FIELDS, 1, 0.5)
            raise TypeError(f"{where}: unknown option {name!r}; " + (f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(FIELDS)))
        try:
            checked[name] = _CHECKS[name](value)
        except (TypeError, ValueError) as e:
            raise type(e)(f"{where}: {name}={value!r}; expected {e}") from None
    return checked


# -- variables

def _parse(name: str, text: str) -> Any:
    """A variable's text as the value it stands for; text that stands for none is left to the check, which names what is allowed."""
    default = getattr(Options, name, None)
    low = text.strip().lower()
    if low in ("none", "") and name in ("deadline_ms", "threads"):
        return None
    if isinstance(default, bool):
        return {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}.get(low, text)
    if isinstance(default, str):
        return low
    for number in (int, float):
        try:
            return number(low)
        except ValueError:
            continue
    return text


@lru_cache(maxsize=8)
def _from_texts(texts: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in texts:
        found.update(check({name: _parse(name, text)}, f"variable BCVM_{name.upper()}"))
    return found


def from_environment() -> dict[str, Any]:
    """What the BCVM_* variables set now; an empty one sets nothing. TypeError or ValueError, naming the variable, for text that stands for no value."""
    texts = ((name, os.environ.get(f"BCVM_{name.upper()}")) for name in FIELDS if name not in NOT_IN_VARIABLES)
    return _from_texts(tuple((name, text) for name, text in texts if text is not None and text.strip()))


# -- scopes

_scope: ContextVar[Mapping[str, Any]] = ContextVar("bcvm_config", default=MappingProxyType({}))


class config(ContextDecorator):
    """Settings for a block, or for a function as decorator: `with bcvm.config(tier="full", background=False): ...`.

    Inner scopes override outer ones, name by name. TypeError or ValueError for what is no setting.
    """

    def __init__(self, **options: Any) -> None:
        self.options = check(options)
        self._tokens: list[Token[Mapping[str, Any]]] = []

    def _recreate_cm(self) -> config:
        return config(**self.options)

    def __enter__(self) -> Options:
        inside = {**_scope.get(), **self.options}
        entered = Options(**{**from_environment(), **inside})  # first: a wrong variable must not leave the scope half entered
        self._tokens.append(_scope.set(MappingProxyType(inside)))
        return entered

    def __exit__(self, *exc: object) -> None:
        _scope.reset(self._tokens.pop())


def scope() -> Mapping[str, Any]:
    """What the `config` scopes around this call set; the same object until a scope is entered or left."""
    return _scope.get()


def resolve(own: Mapping[str, Any] = MappingProxyType({})) -> Options:
    """The settings in force here, for a function whose own (checked) options are `own`."""
    return Options(**{**from_environment(), **_scope.get(), **own})
