"""Frameworks that join when the program imports them: `when_imported("mindspore", register)`. Importing a framework takes seconds, so bcvm never
does it by itself; it looks, where a function is jitted and where a call goes the slow way, whether one has come."""
from __future__ import annotations

import sys
from collections.abc import Callable

_waiting: dict[str, Callable[[], object]] = {}


def when_imported(module: str, register: Callable[[], object]) -> None:
    """Call `register` once, as soon as the module is seen to be imported."""
    _waiting[module] = register


def refresh() -> None:
    """Register what has been imported since."""
    for module in tuple(_waiting):
        if getattr(sys.modules.get(module), "__version__", None) is not None:  # imported to the end
            register = _waiting.pop(module, None)
            if register is not None:
                register()
