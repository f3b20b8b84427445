"""Events of the virtual machine. Listeners are called from Python code only; with none registered an event costs one test.

Events and their fields: specialise (function, key, ms), compile (function, ms, bytes), publish (function, key), exit (function, reason, where),
fuse (function, region), compiled (function, site, specialisation), failed (function, error), fallback (function, reason), evict (function, key),
interpret (function, ms).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

EVENTS = ("specialise", "compile", "publish", "exit", "fuse", "compiled", "failed", "fallback", "evict", "interpret")
Listener = Callable[[str, dict[str, Any]], None]
_listeners: tuple[Listener, ...] = ()


def add(listener: Listener) -> None:
    """Call listener(event, fields) at every event from now on. Exceptions it raises reach the code that caused the event."""
    global _listeners
    _listeners += (listener,)


def remove(listener: Listener) -> None:
    global _listeners
    _listeners = tuple(x for x in _listeners if x != listener)  # a bound method is another object each time


def listening() -> bool:
    return bool(_listeners)


def send(event: str, **fields: Any) -> None:
    for listener in _listeners:
        listener(event, fields)
