"""What runs at the start of Python where bcvm is installed and MS_ENABLE_BYTECODE_VM is set: it waits for the program's own import of MindSpore.

bcvm.pth, in the folder that bcvm is installed in, calls `wait` if the variable is set and does nothing otherwise. This module imports neither NumPy
nor the rest of bcvm.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

VARIABLE = "MS_ENABLE_BYTECODE_VM"
_INSTEAD_OF = {"1": "pynative", "true": "pynative", "on": "pynative", "yes": "pynative", "all": "all"}
OFF = ("", "0", "false", "off", "no")


class _Mode(int):
    """MindSpore takes only its own modes. This one is an int that equals PYNATIVE_MODE, which is what it means to whatever does not know it, and
    keeps its identity in the context. It equals nothing before bcvm.mindspore.enable(), so that set_context refuses it instead of doing nothing."""

    known = False

    def __eq__(self, other: object) -> bool:
        return int(self) == other if type(self).known else self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return "BYTECODE_VM (1)" if type(self).known else "BYTECODE_VM, which is a mode after bcvm.mindspore.enable()"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce__(self) -> str:
        return "BYTECODE_VM"


BYTECODE_VM = _Mode(1)


def wanted() -> str | None:
    """What the variable asks for: the `instead_of` of bcvm.mindspore.enable(), or None for nothing."""
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text in OFF:
        return None
    if text not in _INSTEAD_OF:
        print(f"[BCVM] warning: {VARIABLE}={text!r} is not understood, bcvm stays off; known: 1, all, 0", file=sys.stderr)
        return None
    return _INSTEAD_OF[text]


def _enable(instead_of: str) -> None:
    """Never stops the import of MindSpore: what fails is said."""
    try:
        from bcvm import mindspore
        mindspore.enable(instead_of=instead_of)
    except Exception as e:
        print(f"[BCVM] warning: BYTECODE_VM could not be enabled, MindSpore runs without it: {type(e).__name__}: {e}", file=sys.stderr)


class _Waiting:
    """A finder that finds nothing; it sees the import of MindSpore and has `then` called at its end."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "mindspore":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        from importlib.util import find_spec
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load, then = spec.loader.exec_module, self.then

        def exec_module(module: Any) -> None:
            load(module)
            then()
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wait(instead_of: str | None = None) -> None:
    """Enable the mode as soon as MindSpore has been imported; at once if it is. None: as the variable says."""
    if instead_of is None:
        instead_of = wanted()
        if instead_of is None:
            return
    mode = instead_of
    if getattr(sys.modules.get("mindspore"), "__version__", None) is not None:
        _enable(mode)
    elif not any(isinstance(f, _Waiting) for f in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(lambda: _enable(mode)))  # type: ignore[arg-type]
