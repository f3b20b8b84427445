"""bcvm as an execution mode of MindSpore, beside GRAPH_MODE and PYNATIVE_MODE.

    import mindspore as ms, bcvm.mindspore
    bcvm.mindspore.enable()                        # on, unless GRAPH_MODE is set
    ms.set_context(mode=ms.GRAPH_MODE)             # switch as between MindSpore's own modes
    ms.set_context(mode=ms.BYTECODE_VM)

MS_ENABLE_BYTECODE_VM=1 does it for a script that is not edited. Importing this module does not import MindSpore.
"""
from __future__ import annotations

import importlib.util
import sys
from typing import Any

from bcvm.startup import BYTECODE_VM

__all__ = ["BYTECODE_VM", "counters", "diagnose", "disable", "enable", "enabled", "functions"]

_HOW = "needs MindSpore, which is not installed here; `pip install 'bcvm[mindspore]'` brings it and the NumPy that it needs"


def _mode(what: str) -> Any:
    if "mindspore" not in sys.modules and importlib.util.find_spec("mindspore") is None:
        raise ModuleNotFoundError(f"bcvm.mindspore.{what} {_HOW}", name="mindspore")
    from bcvm.frameworks import mindspore_mode
    from bcvm.tools import console, log  # noqa: F401  the [BCVM] lines
    mindspore_mode.say = log.warning
    return mindspore_mode


def enable(*, instead_of: str = "") -> None:
    """Make BYTECODE_VM a mode of MindSpore and, unless GRAPH_MODE is set, switch to it. Publishes `ms.bcvm` and `ms.BYTECODE_VM`; nn.Cell calls and
    `@ms.jit` functions run in bcvm while the mode is on. A second call only switches. instead_of: modes that later calls of `ms.set_context` may
    name, for which BYTECODE_VM is then set: "pynative", or "all" (GRAPH_MODE too); what MS_ENABLE_BYTECODE_VM=1 and =all say.
    ModuleNotFoundError without MindSpore."""
    if instead_of not in ("", "pynative", "all"):
        raise ValueError(f"bcvm.mindspore.enable: instead_of={instead_of!r}; expected '', 'pynative' or 'all'")
    import bcvm
    _mode("enable()").enable(bcvm, instead_of)


def disable() -> None:
    """Make MindSpore what it was: BYTECODE_VM becomes PYNATIVE_MODE, hooks and names go. Without effect if not enabled."""
    if enabled():
        _mode("disable()").disable()


def enabled() -> bool:
    """Whether BYTECODE_VM is a mode of MindSpore now."""
    return BYTECODE_VM.known


def functions() -> list[Any]:
    """What the mode has made of cells and functions: callables with `program`, `explain`, `stats`."""
    found: list[Any] = _mode("functions()").functions() if enabled() else []
    return found


def counters() -> dict[str, float]:
    """Sums over `functions()`: calls, native, left, interpreted, compiles, recompiles, and in ms bcvm_fusion_compile_time (making native code, in the
    background) and bcvm_kernel_select_time (finding out what is to be run: specialising)."""
    return dict(_mode("counters()").counters()) if enabled() else {}


def diagnose() -> list[str]:
    """What in this process keeps calls from running native, a line each: devices, variables, settings. Empty: nothing known."""
    return list(_mode("diagnose()").diagnose())
