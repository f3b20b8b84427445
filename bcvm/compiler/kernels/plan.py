"""What a region kernel computes in which pass.

A value is *lane* (one element per point of the row) or *scalar* (one per row). Pass k is one sweep over the row that computes the
reductions of level k; their results, and scalar values made of them, exist from level k + 1. A lane value of a lower level that a later
pass needs is recomputed where that is cheap, else kept in a scratch row.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bcvm.compiler.kernels.text import Function, Module
from bcvm.compiler.kernels.vector import Value, Vector, held_size
from bcvm.compiler.region import RegionSpec, Step
from bcvm.compiler.target import Target
from bcvm.errors import Unsupported
from bcvm.ops.definition import OPS, Reduction, ScalarExpr

RECOMPUTE = 10  # instructions: what a store and a load of a scratch row are worth
COMBINES = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


@dataclass
class Pass:
    """One sweep. order: lane values computed here, by number; kept: those stored to scratch; loaded: those read from it."""

    reductions: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # positions in spec.outputs
    order: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)   # lane inputs that are read
    cost: int = 0


@lru_cache(maxsize=64)
def plan_of(spec: RegionSpec, target: Target) -> Plan:
    """The plan of a region, whose cost is asked for when its kernel is called, and again when that is written."""
    return Plan(spec, target)


class Plan:
    """The passes of a region. A step's value number is len(inputs) + its position. Nothing of it changes once it is made."""

    def __init__(self, spec: RegionSpec, target: Target) -> None:
        self.spec, self.target = spec, target
        self.first = len(spec.inputs)
        count = self.first + len(spec.steps)
        self.lane = [not i.splat for i in spec.inputs] + [False] * len(spec.steps)
        self.level = [0] * count
        self.dtype = [i.dtype for i in spec.inputs] + [s.dtype for s in spec.steps]
        self.combine: dict[int, str] = {}
        for n, step in enumerate(spec.steps, self.first):
            if any(a >= n for a in step.args):
                raise Unsupported(f"step {n} of a region uses a value that comes later")
            level = max((self.level[a] for a in step.args), default=0)
            combine = reduction_of(step)
            if combine:
                self.combine[n] = combine
                level += 1
            else:
                self.lane[n] = any(self.lane[a] for a in step.args)
            self.level[n] = level
        for o in spec.outputs:
            if o.reduced and self.lane[o.value]:
                raise Unsupported("a reduced output of a region is one element per point")
        self.lanes = self._lanes()
        self.kept: dict[int, int] = {}  # value -> its scratch row
        self.passes = self._passes()

    def step(self, n: int) -> Step:
        return self.spec.steps[n - self.first]

    def _lanes(self) -> int:
        """As many as the widest element in a sweep leaves room for."""
        sizes = [held_size(self.dtype[n]) for n in range(len(self.dtype)) if self.lane[n]]
        sizes += [held_size(self.dtype[n]) for n, how in self.combine.items() if not how.startswith("arg")]
        sizes += [held_size(self.dtype[a]) for n in self.combine for a in self.step(n).args]
        sizes += [held_size(o.dtype) for o in self.spec.outputs if not o.reduced]
        return self.target.vector_bytes // max(sizes, default=8)

    def _passes(self) -> list[Pass]:
        outputs = [(i, self.level[o.value]) for i, o in enumerate(self.spec.outputs) if not o.reduced]
        last = max([level for _, level in outputs] + [self.level[n] - 1 for n in self.combine], default=-1)
        passes = [Pass() for _ in range(last + 1)]
        for n in self.combine:
            passes[self.level[n] - 1].reductions.append(n)
        for i, level in outputs:
            passes[level].outputs.append(i)
        for k, p in enumerate(passes):
            wanted: dict[int, None] = {}
            for n in [self.step(r).args[0] for r in p.reductions] + [self.spec.outputs[i].value for i in p.outputs]:
                self._want(n, k, p, wanted)
            p.order = sorted(wanted)
        for n in self.kept:  # known only now: the pass of its level computes it and keeps it
            p = passes[self.level[n]]
            wanted = dict.fromkeys(p.order)
            self._want(n, self.level[n], p, wanted)
            p.order = sorted(wanted)
            p.kept.append(n)
        for p in passes:
            p.inputs = [n for n in p.order if n < self.first]
            p.order = [n for n in p.order if n >= self.first]
            p.cost = sum(self.cost(n) for n in p.order) + len(p.inputs) + len(p.loaded) + 2 * len(p.outputs) + 3 * len(p.reductions)
        return [p for p in passes if p.order or p.inputs or p.outputs or p.reductions]

    def _want(self, n: int, k: int, p: Pass, wanted: dict[int, None]) -> None:
        if not self.lane[n] or n in wanted or n in p.loaded:
            return
        if self.level[n] < k and n >= self.first and (n in self.kept or self._again(n, {}) > RECOMPUTE):
            self.kept.setdefault(n, len(self.kept))
            p.loaded.append(n)
            return
        wanted[n] = None
        if n >= self.first:
            for a in self.step(n).args:
                self._want(a, k, p, wanted)

    def _again(self, n: int, seen: dict[int, None]) -> int:
        """Instructions to compute a lane value from the inputs and the kept values."""
        if not self.lane[n] or n in seen:
            return 0
        seen[n] = None
        if n < self.first or n in self.kept:
            return 1
        return self.cost(n) + sum(self._again(a, seen) for a in self.step(n).args)

    def cost(self, n: int) -> int:
        step = self.step(n)
        return step_cost(step.op, step.attrs, step.dtype, tuple(self.dtype[a] for a in step.args), self.lanes, self.target)


@lru_cache(maxsize=4096)
def step_cost(op: str, attrs: tuple[tuple[str, Any], ...], dtype: str, args: tuple[str, ...], lanes: int, target: Target) -> int:
    """Instructions of a step, by writing it once."""
    f = Function(Module(target), "")
    emit_step(Vector(f, lanes), Step(op, tuple(range(len(args))), dtype, attrs), [Value(d, f"%a{i}") for i, d in enumerate(args)])
    return f.size + 20 * len(f.module._helpers)


def reduction_of(step: Step) -> str:
    """The combining function of a reduction step, '' for others."""
    op = OPS.get(step.op)
    if op is None:
        if step.op in ("cast", "const"):
            return ""
        raise Unsupported(f"no op {step.op}")
    if isinstance(op.form, Reduction):
        if op.form.combine not in COMBINES:
            raise Unsupported(f"no native reduction {op.form.combine}")
        return op.form.combine
    if not isinstance(op.form, ScalarExpr) and step.op not in ("cast", "const"):
        raise Unsupported(f"{step.op} is not elementwise")
    return ""


def emit_step(e: Vector, step: Step, values: list[Value]) -> Value:
    """An elementwise step over a builder."""
    attrs = dict(step.attrs)
    if step.op == "const":
        return e.const(attrs["value"], step.dtype)
    if step.op == "cast":
        return e.cast(values[0], attrs.get("dtype", step.dtype))
    form = OPS[step.op].form
    assert isinstance(form, ScalarExpr)
    out: Value = form.expr(e, *values, **attrs)
    return out if out.dtype == step.dtype else e.cast(out, step.dtype)


