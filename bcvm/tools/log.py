"""The `[BCVM]` lines. One line per event on stderr, through the logger named `bcvm` (give it a handler to have them elsewhere).

Level: `log_level` of a `bcvm.config` scope, else BCVM_LOG_LEVEL, else under MindSpore GLOG_v or MS_LOG_LEVEL, else warning.
"""
from __future__ import annotations

import logging
import os
import sys
import threading

from bcvm.config import LOG_LEVELS, scope

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "off": logging.CRITICAL + 1}
STEPS = {1: "Parse", 2: "Shape", 3: "IR", 4: "Fusion", 5: "Mapping", 6: "CodeGen", 7: "Cache"}
_MINDSPORE = {"0": "debug", "1": "info", "2": "warning", "3": "error", "4": "off"}  # MindSpore's numbers; 4 is CRITICAL, which bcvm never uses
assert tuple(LEVELS) == LOG_LEVELS

logger = logging.getLogger("bcvm")
_once: set[str] = set()
_lock = threading.Lock()


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what sys.stderr is now, not to what it was at import."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stderr


def level() -> str:
    """The level in force here. Text that is no level counts as not set, so that a mistyped variable never stops a program."""
    said = scope().get("log_level") or os.environ.get("BCVM_LOG_LEVEL", "").strip().lower()
    if said in LEVELS:
        return str(said)
    if "mindspore" in sys.modules:
        for variable in ("GLOG_v", "MS_LOG_LEVEL"):
            text = os.environ.get(variable, "").strip().lower()
            named = _MINDSPORE.get(text, text)
            if named in LEVELS:
                return named
    return "warning"


def enabled(name: str) -> bool:
    """Whether lines of this level are printed now: ask before building a costly one."""
    return LEVELS[name] >= LEVELS[level()]


def _emit(name: str, text: str) -> None:
    if not enabled(name):
        return
    if not logger.handlers:
        with _lock:
            if not logger.handlers:
                logger.addHandler(_Stderr())
                logger.propagate = False
    logger.setLevel(logging.DEBUG)  # the decision was made above, per call: the logger itself must not make another
    logger.log(LEVELS[name], "%s", text)


def debug(text: str) -> None:
    _emit("debug", f"[BCVM] {text}")


def info(text: str) -> None:
    _emit("info", f"[BCVM] {text}")


def warning(text: str) -> None:
    _emit("warning", f"[BCVM] warning: {text}")


def error(text: str) -> None:
    _emit("error", f"[BCVM] error: {text}")


def warn_once(key: str, text: str) -> None:
    """A warning for the first event of its key in this process."""
    with _lock:
        if key in _once:
            return
        _once.add(key)
    warning(text)


# -- the lines of a compilation, level info

def compile_line(sig: int, hint: str, name: str, file: str, line: int) -> None:
    """`[BCVM] Compile for sig=0x1A2B, shape_hint=[B,*,*,*]  f (model.py:12)`; hint is `[B, *]` or several, joined by spaces."""
    if enabled("info"):
        info(f"Compile for sig=0x{sig:04X}, shape_hint={hint.replace(' ', '')}  {name} ({os.path.basename(file)}:{line})")


def step_line(n: int, name: str, ms: float, detail: str = "") -> None:
    """`[BCVM] Step4 Fusion: 0.8ms, fused 2 ops`; n and name are an item of STEPS."""
    if enabled("info"):
        info(f"Step{n} {name}: {ms:.1f}ms" + (f", {detail}" if detail else ""))


def done_line(ms: float, key: str) -> None:
    """`[BCVM] JIT compiled in 4.7ms, cache key=abc123`."""
    if enabled("info"):
        info(f"JIT compiled in {ms:.1f}ms, cache key={key}")


def fallback_line(reason: str, name: str, file: str, line: int) -> None:
    """A function left to the interpreter: once per function and reason, `[BCVM] warning: fallback_reason=compile_timeout  f (model.py:12)`."""
    warn_once(f"fallback {reason} {name} {file}:{line}", f"fallback_reason={reason}  {name} ({os.path.basename(file)}:{line})")
