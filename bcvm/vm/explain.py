"""What happens to a call with given arguments, as an object that prints well."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.program import Program
from bcvm.compiler.target import host
from bcvm.errors import BcvmError
from bcvm.specialise import specialise_call
from bcvm.specialise.ssa import Graph
from bcvm.vm.costs import Cost, region_costs
from bcvm.vm.keys import call_key, describe_key

if TYPE_CHECKING:
    from bcvm.vm.function import Function


@dataclass
class Explanation:
    """signature: the call's types. tier: what such a call runs in now. guards, inputs: what entry checks and reads. regions: what became one
    kernel, by policy, with the decision. costs: of each region for these arguments, if there is native code. callbacks: where native code leaves for the interpreter, with file:line and reason."""

    name: str
    signature: str
    tier: str
    guards: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)
    specialisations: list[str] = field(default_factory=list)
    steps_ms: dict[str, float] = field(default_factory=dict)
    code_bytes: int = 0

    def __str__(self) -> str:
        lines = [f"{self.name}({self.signature})", f"  tier: {self.tier}"]
        regions = [f"{r}  # {c}" for r, c in zip(self.regions, self.costs, strict=True)] if self.costs else self.regions
        for title, items in (("guards", self.guards), ("inputs", self.inputs), ("regions", regions), ("kernels", self.kernels),
                             ("leaves native code", self.callbacks), ("specialisations", self.specialisations)):
            if items:
                lines.append(f"  {title}:")
                lines += [f"    {item}" for item in items]
        if not self.callbacks:
            lines.append("  leaves native code: nowhere")
        if self.steps_ms:
            lines.append("  compiled in " + ", ".join(f"{k} {v:.1f} ms" for k, v in self.steps_ms.items()) + f"; {self.code_bytes:,} bytes of code")
        return "\n".join(lines)

    __repr__ = __str__


def explain(function: "Function", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Explanation:
    """Explain a call; nothing is run. For arguments without native code the specialisation is made, not compiled."""
    names = tuple(kwargs)
    values = (*args, *kwargs.values())
    key = call_key(values, names)
    made = next((s for s in reversed(function.site.specialisations) if s.key == key), None)
    if made is None and not values and function.bound.program.params and function.site.specialisations:
        made = function.site.specialisations[-1]  # nothing was asked for: what was compiled last
        key = made.key
    name = function.bound.program.name
    if made is not None:
        graph, compiled = made.graph, made.code.compiled
        kernels = made.code.kernels
        count = sum(k.spliced for k in kernels)
        tier = f"full, {count} of {len(kernels)} kernels spliced" if count else "full"
        out = Explanation(name, describe_key(key), tier, steps_ms=made.ms, code_bytes=made.code.size)
        out.regions = [region_line(r) for r in compiled.regions]
        if values:
            slots = {k.key: k.slot for k in compiled.kernels}
            out.costs = region_costs(graph, compiled.regions, slots, host(), values)
        out.kernels = [k.spec.name for k in compiled.kernels if hasattr(k.spec, "name")]
    else:
        reason = function.site.reason(key)
        out = Explanation(name, describe_key(key), f"interpret ({reason})")
        try:
            graph = specialise_call(function.bound, values, names, function.program_of, receiver=function.receiver)
        except BcvmError as e:
            out.callbacks = [f"the whole call: {e}"]
            return out
    out.guards = [f"{g.how} {g.path}" for g in graph.guards]
    out.inputs = [f"{i.name}: {i.value.type}" + (" (written)" if i.writable else "") for i in graph.inputs]
    out.callbacks = callback_lines(graph)
    if len(function.site.specialisations) > 1:
        out.specialisations = [describe_key(s.key) for s in function.site.specialisations]
    return out


def region_line(region: Any) -> str:
    ops = " ".join(n.attrs["op"].name if n.op == "op" else n.op for n in region.nodes)
    return f"{region.policy} {region.decision} [{', '.join(map(str, region.space))}]: {ops}"


def callback_lines(graph: Graph) -> list[str]:
    """`file:line  reason`, once each."""
    return list(dict.fromkeys(f"{place(program, at)}  {reason}" for program, at, reason in graph.callbacks))


def place(program: Program, at: int) -> str:
    line = program.positions[at].line if at < len(program.positions) else program.first_line
    return f"{program.filename}:{line} ({program.name})"
