"""Kernels of kind 'column': reductions over the dim before the last, accumulated in registers for a block of columns at a time."""
from __future__ import annotations

from bcvm.compiler.kernels import operands as access
from bcvm.compiler.kernels.plan import emit_step, plan_of
from bcvm.compiler.kernels.reduce import Accumulator, held
from bcvm.compiler.kernels.row import lanes_below
from bcvm.compiler.kernels.text import Function, Module
from bcvm.compiler.kernels.vector import Value, Vector, element_type
from bcvm.compiler.region import RegionSpec
from bcvm.compiler.target import Target
from bcvm.errors import Unsupported

BLOCK = 4  # vectors of columns that are reduced together: whole cache lines of every row


class ColumnKernel:
    """Writes one kernel. A unit is one column: the result's elements, flattened."""

    def __init__(self, spec: RegionSpec, target: Target, module: Module, name: str) -> None:
        if spec.rank < 2:
            raise Unsupported("a column region has two dims at least")
        self.spec, self.target, self.module = spec, target, module
        self.plan = plan_of(spec, target)
        if len(self.plan.passes) > 1 or any(not o.reduced for o in spec.outputs):
            raise Unsupported("a column region is one pass with reduced results")
        self.f = Function(module, f"define i32 @{name}(ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi) nounwind")
        self.e, self.one = Vector(self.f, self.plan.lanes), Vector(self.f, 1)
        self.operands = access.operands_of(spec)
        self.first = len(spec.inputs)
        self.tiles: dict[int, str] = {}

    def write(self) -> None:
        """for each lead: for each block of its columns in lo..hi: for each row."""
        f, rank = self.f, self.spec.rank
        self.rows, columns = f.word("%sizes", rank - 2), f.word("%sizes", rank - 1)
        for o in self.operands:
            o.lane = True
        access.load_bases(f, self.operands, rank, rank - 1)
        self.direct = access.all_unit(f, self.operands, columns)
        self.down = [f.word("%ops", o.index * (1 + rank) + rank - 1) for o in self.operands]
        leads = [f.word("%sizes", d) for d in range(rank - 2)]
        total = columns
        for s in leads:
            total = f.op(f"mul i64 {total}, {s}")
        end = f.op(f"select i1 {f.op('icmp slt i64 %hi, 0')}, i64 {total}, i64 %hi")
        with f.loop("%lo", end, "0") as runs:
            lead = f.op(f"udiv i64 {runs.index}, {columns}")
            column = f.op(f"sub i64 {runs.index}, {f.op(f'mul i64 {lead}, {columns}')}")
            left, ahead = f.op(f"sub i64 {columns}, {column}"), f.op(f"sub i64 {end}, {runs.index}")
            count = f.op(f"select i1 {f.op(f'icmp slt i64 {left}, {ahead}')}, i64 {left}, i64 {ahead}")
            positions, rest = [], lead
            for s in reversed(leads[1:]):
                q = f.op(f"udiv i64 {rest}, {s}")
                positions.append(f.op(f"sub i64 {rest}, {f.op(f'mul i64 {q}, {s}')}"))
                rest = q
            positions = [rest, *reversed(positions)] if leads else []
            bases = []
            for o in self.operands:
                at = f.at(o.base, f.op(f"mul i64 {column}, {o.stride}"))
                for d, position in enumerate(positions):
                    at = f.at(at, f.op(f"mul i64 {position}, {f.word('%ops', o.index * (1 + rank) + 1 + d)}"))
                bases.append(at)
            self._run(bases, count)
            runs.step = count
        f.do("ret i32 0")
        self.module.add(f)

    def _run(self, bases: list[str], count: str) -> None:
        """Columns 0..count of one lead: wide blocks where everything is contiguous, then vector by vector."""
        f, lanes = self.f, self.plan.lanes
        wide = f.op(f"select i1 {self.direct}, i64 {f.op(f'and i64 {count}, {-BLOCK * lanes}')}, i64 0")
        with f.loop("0", wide, str(BLOCK * lanes)) as blocks:
            self._block(bases, blocks.index, BLOCK, None, "")
            blocks.next = []
        with f.loop(wide, count, str(lanes)) as rest:
            left = f.op(f"sub i64 {count}, {rest.index}")
            m = f.op(f"call i64 @llvm.smin.i64(i64 {left}, i64 {lanes})")
            self.module.declare("i64", "llvm.smin.i64", "i64, i64")
            self._block(bases, rest.index, 1, lanes_below(self.e, m) if lanes > 1 else None, m)
            rest.next = []

    def _block(self, bases: list[str], column: str, width: int, mask: str | None, m: str) -> None:
        """`width` vectors of columns, all rows. m: columns that are real, '' for whole contiguous vectors."""
        f, e, plan, lanes = self.f, self.e, self.plan, self.plan.lanes
        accumulators = [Accumulator(plan.combine[r], plan.dtype[plan.step(r).args[0]], plan.dtype[r]) for r in plan.combine]
        identity = [v for a in accumulators for v in a.identity(e)]
        start = [f.at(b, f.op(f"mul i64 {column}, {o.stride}")) for b, o in zip(bases, self.operands, strict=True)]
        constants = {n: emit_step(e, plan.step(n), []) for n in range(self.first, len(plan.dtype)) if plan.step(n).op == "const"}
        carried = [(held(e, v.dtype), v.ref) for v in identity * width] + [("ptr", start[n]) for n in range(self.first)]
        with f.loop("0", self.rows, "1", carried) as rows:
            at = rows.carried[len(identity) * width:]
            new: list[str] = []
            # positions of argmax and argmin are rows, below 2^31
            index = e.broadcast(Value("int32", f.op(f"trunc i64 {rows.index} to i32"))) if any(a.arg for a in accumulators) else None
            here = [self._place(n, at[n], m) if m else (at[n], None) for n in range(self.first)]
            for u in range(width):
                values = dict(constants)
                for n in range(self.first):
                    dtype = plan.dtype[n]
                    p, lanes_on = here[n]
                    values[n] = e.load(dtype, f.at(p, str(u * lanes), element_type(dtype)) if u else p, lanes_on)
                self._steps(values, 0)
                old = [Value(v.dtype, c) for v, c in zip(identity, rows.carried[u * len(identity):(u + 1) * len(identity)], strict=True)]
                done = 0
                for r, a in zip(plan.combine, accumulators, strict=True):
                    state = a.step(e, old[done:done + len(a.state)], values[plan.step(r).args[0]], None, index)
                    new += [v.ref for v in state]
                    done += len(a.state)
            rows.next = new + [f.at(p, d) for p, d in zip(at, self.down, strict=False)]
        for u in range(width):
            values = dict(constants)
            done = u * len(identity)
            for r, a in zip(plan.combine, accumulators, strict=True):
                state = [Value(v.dtype, x) for v, x in zip(a.identity(e), rows.results[done:done + len(a.state)], strict=True)]
                done += len(a.state)
                values[r] = e.cast(state[-1], a.result)
            self._steps(values, 1)
            for i, o in enumerate(self.spec.outputs):
                self._write(self.first + i, e.cast(values[o.value], o.dtype), start[self.first + i], u, mask, m)

    def _steps(self, values: dict[int, Value], level: int) -> None:
        plan = self.plan
        for n in range(self.first, len(plan.dtype)):
            step = plan.step(n)
            if n not in plan.combine and n not in values and plan.level[n] == level and all(a in values for a in step.args):
                values[n] = emit_step(self.e, step, [values[a] for a in step.args])

    def _tile(self, n: int) -> str:
        if n not in self.tiles:
            width = max(64, self.plan.lanes * self.operands[n].size)
            self.tiles[n] = self.f.slot(width, min(width, self.target.vector_bytes))
        return self.tiles[n]

    def _in_place(self, n: int, m: str) -> str:
        """Whether a vector of the operand can be accessed where it is: contiguous, and whole unless there are masks."""
        f, o = self.f, self.operands[n]
        unit = f.op(f"icmp eq i64 {o.stride}, {o.size}")
        whole = "true" if self.target.avx512 else f.op(f"icmp eq i64 {m}, {self.plan.lanes}")
        return f.op(f"and i1 {unit}, {whole}")

    def _place(self, n: int, at: str, m: str) -> tuple[str, str | None]:
        """Where to load the m columns at an address from, and with which mask."""
        f, o = self.f, self.operands[n]
        tile, in_place = self._tile(n), self._in_place(n, m)
        access.move(f, tile, o.size, at, o.stride, m, in_place, o.size)
        p = f.op(f"select i1 {in_place}, ptr {at}, ptr {tile}")
        return p, lanes_below(self.e, m) if self.target.avx512 and self.plan.lanes > 1 else None

    def _write(self, n: int, v: Value, at: str, u: int, mask: str | None, m: str) -> None:
        f, e, o = self.f, self.e, self.operands[n]
        if not m:
            e.store(v, f.at(at, str(u * self.plan.lanes), element_type(v.dtype)) if u else at)
            return
        tile, in_place = self._tile(n), self._in_place(n, m)
        p = f.op(f"select i1 {in_place}, ptr {at}, ptr {tile}")
        e.store(v, p, mask if self.target.avx512 else None)
        access.move(f, at, o.stride, tile, o.size, m, in_place, o.size)


