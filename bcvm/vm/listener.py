"""Events of the virtual machine. Listeners are called from Python code only; with none registered for it an event costs one test.

Events and their fields: specialise (function, key, ms), compile (function, ms, bytes), publish (function, key), exit (function, reason, where),
fuse (function, region), compiled (function, site, specialisation), failed (function, error), fallback (function, reason), evict (function, key),
interpret (function, ms).
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

EVENTS = ("specialise", "compile", "publish", "exit", "fuse", "compiled", "failed", "fallback", "evict", "interpret")
Listener = Callable[[str, dict[str, Any]], None]
_listeners: dict[str, tuple[Listener, ...]] = dict.fromkeys(EVENTS, ())


def add(listener: Listener, *events: str) -> None:
    """Call listener(event, fields) at these events, or at every one if none is named, from now on. Exceptions it raises reach the code that caused the event."""
    for event in events or EVENTS:
        _listeners[event] += (listener,)


def remove(listener: Listener) -> None:
    for event, all_of_it in _listeners.items():
        _listeners[event] = tuple(x for x in all_of_it if x != listener)  # a bound method is another object each time


def listening(event: str) -> bool:
    return bool(_listeners[event])


def send(event: str, **fields: Any) -> None:
    for listener in _listeners[event]:
        listener(event, fields)
