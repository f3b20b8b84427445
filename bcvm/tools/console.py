"""Prints the `[BCVM]` lines of compilations: a listener of the virtual machine."""
from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from bcvm.config import config
from bcvm.specialise.types import Tensor
from bcvm.tools import log
from bcvm.vm import listener
from bcvm.vm.quicken import signature_of
from bcvm.vm.signatures import signature_id

_STEP = {"Parse": 1, "Shape": 2, "IR": 3, "Fusion": 4, "Mapping": 5, "CodeGen": 6, "Cache": 7}


def hear(event: str, fields: dict[str, Any]) -> None:
    """What the virtual machine tells; a function's own `log_level` holds for what concerns it."""
    own = fields["function"].options.get("log_level")
    with config(log_level=own) if own is not None else nullcontext():
        _hear(event, fields)


def _hear(event: str, fields: dict[str, Any]) -> None:
    if event == "compiled":
        if log.enabled("info"):
            _compiled(fields["function"], fields["specialisation"])
    elif event == "failed":
        program = fields["function"].bound.program
        log.fallback_line(f"compiler: {fields['error']}", program.name, program.filename, program.first_line)


def _compiled(function: Any, made: Any) -> None:
    from bcvm.compiler.compile import fused_ops  # loaded by now; importing bcvm loads no compiler
    program = function.bound.program
    inputs = [i.value for i in made.graph.inputs]
    hints = " ".join(hint_of(v.type) for i, v in zip(made.graph.inputs, inputs) if isinstance(v.type, Tensor) and i.path.root[0] == "arg" and not i.path.steps)
    log.compile_line(signature_id(signature_of(inputs)), hints or "[]", program.name, program.filename, program.first_line)
    fused = fused_ops(made.code.compiled.regions)
    for name, ms in sorted(made.ms.items(), key=lambda item: _STEP.get(item[0], 0)):
        if name in _STEP:
            log.step_line(_STEP[name], name, ms, f"fused {fused} ops" if name == "Fusion" else "")
    log.done_line(sum(made.ms.values()), f"{signature_id(signature_of(inputs)):04x}")


def hint_of(t: Tensor) -> str:
    return "[" + ",".join(str(d.value) if d.value is not None else "*" for d in t.dims) + "]"


listener.add(hear, "compiled", "failed")
