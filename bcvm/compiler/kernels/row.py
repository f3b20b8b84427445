"""Kernels of kind 'row': elementwise work, reductions over the last dim, and any mix of both (softmax, norms), row by row."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from bcvm.bytecode import dtypes
from bcvm.compiler import abi
from bcvm.compiler.kernels import by_rows
from bcvm.compiler.kernels import operands as access
from bcvm.compiler.kernels.operands import Operand
from bcvm.compiler.kernels.plan import Pass, emit_step, plan_of
from bcvm.compiler.kernels.reduce import Accumulator, held, lane_numbers
from bcvm.compiler.kernels.text import Function, Module
from bcvm.compiler.kernels.transpose import transpose
from bcvm.compiler.kernels.vector import Value, Vector, element_type
from bcvm.compiler.region import RegionSpec
from bcvm.compiler.target import Target

STACK_ROW = 1024     # elements of a scratch row that lives on the stack
CHUNK = 8192         # elements that one accumulator sums before it is added to the row's total
LIGHT, MEDIUM = 14, 40  # instructions of a sweep's body that are unrolled 4 and 2 times where it has reductions, whose sums wait for each other,
# else 2 times and not at all: the processor overlaps the rounds by itself (bench/RESULTS.md)
AHEAD = 2048  # bytes behind those at work on for which memory is asked: a body of many instructions leaves the processor none to look so far ahead
ALIGN_FROM = 1024  # bytes of a row from which its stores are aligned: one that crosses a line of the cache takes two, and costs a third of the copy bandwidth


class RowKernel:
    """Writes one kernel."""

    def __init__(self, spec: RegionSpec, target: Target, module: Module, name: str) -> None:
        self.spec, self.target, self.module, self.name = spec, target, module, name
        self.plan = plan_of(spec, target)
        self.f = Function(module, f"define i32 @{name}(ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi) nounwind")
        self.e, self.one = Vector(self.f, self.plan.lanes), Vector(self.f, 1)
        self.operands = access.operands_of(spec)
        self.first = len(spec.inputs)
        self.tile = access.tile_length(self.operands, self.plan.lanes)
        self.tiles: dict[int, str] = {}
        self.scratch: list[str] = []
        self.scalars: dict[int, Value] = {}

    def write(self) -> None:
        f, rank = self.f, self.spec.rank
        self.n = f.word("%sizes", rank - 1) if rank else "1"
        access.load_bases(f, self.operands, rank, rank - 1)
        self.direct = access.all_unit(f, self.operands, self.n)
        copy = rank > 1 and not self.spec.steps and len(self.spec.inputs) == len(self.spec.outputs) == 1 and all(o.lane for o in self.operands)
        if not copy:
            self._leave_others()
        f.hoists = self.plain
        release = self._scratch_rows()
        access.each_unit(f, self.operands, rank, max(rank - 1, 0), self._row, self._transposed if copy else None)
        if release:
            with f.when(f.op(f"icmp ne i64 {release}, 0")):
                f.do(f"call void {f.table('release')}(ptr %ctx, i64 {release})")
        f.do("ret i32 0")
        self.module.add(f)

    @property
    def plain(self) -> bool:
        """Whether all there is to it are loops over contiguous rows that are right as they are written."""
        return self.direct == "true" and self.target.avx512 and not self.plan.combine and not self.plan.kept

    def _leave_others(self) -> None:
        """Without reductions, and with masked ends of rows, only contiguous rows are done here; `by_rows` does others. Half of a small kernel's code is saved."""
        f, spec = self.f, self.spec
        fits = 0 < spec.rank <= by_rows.MAX_RANK and len(self.operands) <= by_rows.MAX_OPERANDS
        if self.direct == "true" or not fits or not self.target.avx512 or self.plan.lanes == 1 or self.plan.combine or self.plan.kept:
            return
        kinds = [o.size | (by_rows.LANE if o.lane else 0) | (by_rows.OUTPUT if o.output else 0) for o in self.operands]
        words = by_rows.about(spec.rank, kinds)
        self.module.helper("about", f"@about = private constant [{len(words)} x i64] [{', '.join(f'i64 {w}' for w in words)}]")
        here, others = f.fresh("here"), f.fresh("others")
        f.branch(self.direct, here, others)
        f.label(others)
        f.do(f"store ptr @{self.name}, ptr {f.at('%ctx', str(8 * abi.CTX_ROWS))}")
        code = f.op(f"call i32 {f.table('by_rows')}(ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi, ptr @about)")
        f.do(f"ret i32 {code}")
        f.label(here)
        self.direct = "true"

    def _transposed(self, at: list[str], steps: list[str], count: str) -> tuple[str, Callable[[], None]]:
        """A copy whose source is contiguous along the dim before the last goes block by block."""
        f, (source, out) = self.f, self.operands
        condition = f.op(f"icmp sgt i64 {count}, 1")
        for a, b in ((steps[0], source.size), (out.stride, out.size)):
            condition = f.op(f"and i1 {condition}, {f.op(f'icmp eq i64 {a}, {b}')}")
        condition = f.op(f"and i1 {condition}, {f.op(f'icmp ne i64 {source.stride}, {source.size}')}")

        def write() -> None:
            name = transpose(self.module, out.size)
            f.do(f"call void @{name}(ptr {at[1]}, i64 {steps[1]}, ptr {at[0]}, i64 {source.stride}, i64 {count}, i64 {self.n})")
        return condition, write

    def _scratch_rows(self) -> str:
        """Scratch rows for kept values: on the stack if short, else from the Context. Returns what to release (a register, 0 for the stack)."""
        f, kept = self.f, list(self.plan.kept)
        if not kept:
            return ""
        sizes = [dtypes.itemsize(self.plan.dtype[n]) for n in kept]
        stack = f.slot((STACK_ROW + 64) * sum(sizes))
        padded = f.op(f"and i64 {f.op(f'add i64 {self.n}, 127')}, -64")
        at, owner = access.stack_or_arena(f, f.op(f"icmp sgt i64 {self.n}, {STACK_ROW}"), f.op(f"mul i64 {padded}, {sum(sizes)}"), stack)
        for size in sizes:
            self.scratch.append(at)
            at = f.at(at, f.op(f"mul i64 {padded}, {size}"))
        return owner

    # -- one row

    def _row(self, at: list[str]) -> None:
        f, plan = self.f, self.plan
        self.scalars = {o.index: self.one.load(o.dtype, at[o.index]) for o in self.operands if not o.lane and not o.output}
        self._scalar_steps(0)
        for k, p in enumerate(plan.passes):
            self._sweep(p, at)
            self._scalar_steps(k + 1)
        for i, o in enumerate(self.spec.outputs):
            if o.reduced:
                self.one.store(self.one.cast(self.scalars[o.value], o.dtype), at[self.first + i])
        assert f.block

    def _scalar_steps(self, level: int) -> None:
        plan = self.plan
        for n in range(self.first, len(plan.dtype)):
            if not plan.lane[n] and n not in plan.combine and plan.level[n] == level:
                step = plan.step(n)
                self.scalars[n] = emit_step(self.one, step, [self.scalars[a] for a in step.args])

    def _wide(self, p: Pass) -> dict[int, Value]:
        """The scalars that a sweep uses, in all lanes."""
        plan = self.plan
        used = [a for n in p.order for a in plan.step(n).args] + [plan.step(r).args[0] for r in p.reductions]
        used += [self.spec.outputs[i].value for i in p.outputs]
        out = {}
        for n in dict.fromkeys(used):
            if not plan.lane[n]:
                constant = n >= self.first and plan.step(n).op == "const"
                out[n] = emit_step(self.e, plan.step(n), []) if constant else self.e.broadcast(self.scalars[n])
        return out

    def _sweep(self, p: Pass, rows: list[str]) -> None:
        """One pass over the row, in pieces: all of it (or a chunk) where it is contiguous, a tile where it is not."""
        f, e, lanes = self.f, self.e, self.plan.lanes
        masks = self.target.avx512 and lanes > 1
        wide = self._wide(p)
        used = [self.operands[n] for n in p.inputs] + [self.operands[self.first + i] for i in p.outputs]
        accumulators = [Accumulator(self.plan.combine[r], self.plan.dtype[self.plan.step(r).args[0]], self.plan.dtype[r]) for r in p.reductions]
        start = [v for a in accumulators for v in a.total(e, a.identity(e), "0")]
        totals = [(held(e, v.dtype), v.ref) for v in start]
        longest = str(CHUNK) if any(a.how in ("sum", "prod") for a in accumulators) else str(1 << 30) if any(a.arg for a in accumulators) else self.n
        if self.direct == "true" and not accumulators:
            self._loops(p, [], wide, {o.index: rows[o.index] for o in used}, "0", self.n, masks)
            return
        if used:
            longest = f.op(f"select i1 {self.direct}, i64 {longest}, i64 {self.tile}")
        with f.loop("0", self.n, "0", totals) as pieces:
            i0 = pieces.index
            left = f.op(f"sub i64 {self.n}, {i0}")
            m = f.op(f"call i64 @llvm.smin.i64(i64 {left}, i64 {longest})")
            self.module.declare("i64", "llvm.smin.i64", "i64, i64")
            ragged = "false"
            if not masks and lanes > 1:
                ragged = f.op(f"icmp slt i64 {m}, {lanes}")
                m = f.op(f"select i1 {ragged}, i64 {m}, i64 {f.op(f'and i64 {m}, {-lanes}')}")
            pieces.step = m
            there, here = self._places(used, rows, i0, m, ragged)
            state = self._loops(p, accumulators, wide, here, i0, m, masks)
            packed = [o for o in used if o.output]
            if packed:
                with f.when(f.op(f"xor i1 {self._plain(ragged)}, true")):
                    for o in packed:
                        same = f.op(f"icmp eq ptr {there[o.index]}, {here[o.index]}")
                        access.move(f, there[o.index], o.stride, here[o.index], o.size, m, same, o.size)
            merged: list[Value] = []
            position = 0
            for a in accumulators:
                count = len(a.state)
                old = [Value(v.dtype, c) for v, c in zip(start[position:position + count], pieces.carried[position:position + count], strict=True)]
                merged += a.merge(e, old, a.total(e, state[position:position + count], i0))
                position += count
            pieces.next = [v.ref for v in merged]
        position = 0
        for r, a in zip(p.reductions, accumulators, strict=True):
            end = position + len(a.state)
            results = [Value(v.dtype, x) for v, x in zip(start[position:end], pieces.results[position:end], strict=True)]
            position = end
            self.scalars[r] = a.fold(e, results)

    def _plain(self, ragged: str) -> str:
        return self.direct if ragged == "false" else self.f.op(f"and i1 {self.direct}, {self.f.op(f'xor i1 {ragged}, true')}")

    def _places(self, used: list[Operand], rows: list[str], i0: str, m: str, ragged: str) -> tuple[dict[int, str], dict[int, str]]:
        """For each operand of a sweep where its piece is, and where the vector code reads or writes it: there, or in its tile."""
        f = self.f
        if not used:
            return {}, {}
        there = {o.index: f.at(rows[o.index], f.op(f"mul i64 {i0}, {o.stride}")) for o in used}
        before, pack, ready = f.block, f.fresh("pack"), f.fresh("ready")
        f.branch(self._plain(ragged), ready, pack)
        before = f.block
        f.label(pack)
        later = f.op(f"icmp ne i64 {i0}, 0")
        packed = {}
        for o in used:
            if o.index not in self.tiles:
                self.tiles[o.index] = f.slot(max(self.tile * o.size, 64), 0 if ragged == "false" else self.target.vector_bytes)
            tile = self.tiles[o.index]
            in_place = f.op(f"icmp eq i64 {o.stride}, {o.size}")
            if ragged != "false":
                in_place = f.op(f"and i1 {in_place}, {f.op(f'xor i1 {ragged}, true')}")
            packed[o.index] = f.op(f"select i1 {in_place}, ptr {there[o.index]}, ptr {tile}")
            if not o.output:
                filled = f.op(f"and i1 {later}, {f.op(f'icmp eq i64 {o.stride}, 0')}")
                skip = f.op(f"or i1 {in_place}, {filled}")
                access.move(f, tile, o.size, there[o.index], o.stride, m, skip, o.size)
        f.jump(ready)
        f.label(ready)
        here = {o.index: f.op(f"phi ptr [ {there[o.index]}, %{before} ], [ {packed[o.index]}, %{pack} ]") for o in used}
        return there, here

    def _loops(self, p: Pass, accumulators: list[Accumulator], wide: dict[int, Value], here: dict[int, str], i0: str, m: str, masks: bool) -> list[Value]:
        """The vector loops over one piece: unrolled, whole vectors, if the body is small; then vector by vector, masked. Returns the state."""
        f, e, lanes = self.f, self.e, self.plan.lanes
        unroll = 4 if p.cost <= LIGHT else 2 if p.cost <= MEDIUM else 0
        if not accumulators:
            unroll //= 2
        if not accumulators and len(self.plan.passes) > 1:  # what a row kernel writes last comes from the first-level cache
            unroll = 0
        scratch = {n: f.at(self.scratch[self.plan.kept[n]], i0, element_type(self.plan.dtype[n])) for n in [*p.loaded, *p.kept]}
        if masks and not accumulators:
            self._aligned_loops(p, wide, here, scratch, m, unroll)
            return []
        identity = [v for a in accumulators for v in a.identity(e)]
        state, begin = identity, "0"
        if unroll:
            whole = f.op(f"and i64 {m}, {-unroll * lanes}")
            with f.loop("0", whole, str(unroll * lanes), [(held(e, v.dtype), v.ref) for v in identity * unroll]) as main:
                new: list[str] = []
                for u in range(unroll):
                    at = main.index if u == 0 else f.op(f"add i64 {main.index}, {u * lanes}")
                    old = [Value(v.dtype, c) for v, c in zip(identity, main.carried[u * len(identity):], strict=False)]
                    new += [v.ref for v in self._body(p, accumulators, wide, here, scratch, at, None, old)]
                main.next = new
            begin = whole
            copies = [[Value(v.dtype, r) for v, r in zip(identity, main.results[u * len(identity):], strict=False)] for u in range(unroll)]
            while len(copies) > 1:
                copies = [self._merge(accumulators, copies[i], copies[i + 1]) for i in range(0, len(copies), 2)]
            state = copies[0]
        with f.loop(begin, m, str(lanes), [(held(e, v.dtype), v.ref) for v in state]) as rest:
            mask = self._mask(m, rest.index) if lanes > 1 and (masks or accumulators) else None
            old = [Value(v.dtype, c) for v, c in zip(state, rest.carried, strict=True)]
            rest.next = [v.ref for v in self._body(p, accumulators, wide, here, scratch, rest.index, mask, old)]
        return [Value(v.dtype, r) for v, r in zip(state, rest.results, strict=True)]

    def _aligned_loops(self, p: Pass, wide: dict[int, Value], here: dict[int, str], scratch: dict[int, str], m: str, unroll: int) -> None:
        """Without reductions it does not matter where vectors begin: they do so that stores are aligned, the first one before the row, masked. Round by round: whole
        vectors from an aligned place on, unrolled, as many as there are; then a masked one."""
        f, lanes = self.f, self.plan.lanes
        o = max((self.operands[self.first + i] for i in p.outputs), key=lambda o: o.size)
        address = f.op(f"ptrtoint ptr {here[o.index]} to i64")
        behind = f.op(f"lshr i64 {f.op(f'and i64 {address}, {lanes * o.size - 1}')}, {o.size.bit_length() - 1}")
        begin = f.op(f"select i1 {f.op(f'icmp sge i64 {m}, {ALIGN_FROM // o.size}')}, i64 {f.op(f'sub i64 0, {behind}')}, i64 0")
        with f.loop(begin, m, str(lanes)) as turn:
            at = turn.index
            if unroll:
                left = f.op(f"and i64 {f.op(f'sub i64 {m}, {at}')}, {-unroll * lanes}")
                before = f.op(f"icmp slt i64 {at}, 0")
                whole = f.op(f"add i64 {at}, {f.op(f'select i1 {before}, i64 0, i64 {left}')}")
                with f.loop(at, whole, str(unroll * lanes)) as main:
                    for u in range(unroll):
                        self._body(p, [], wide, here, scratch, main.index if u == 0 else f.op(f"add i64 {main.index}, {u * lanes}"), None, [])
                turn.step = f.op(f"add i64 {f.op(f'sub i64 {whole}, {at}')}, {lanes}")
                at = whole
            with f.when(f.op(f"icmp slt i64 {at}, {m}")) if unroll else nullcontext():
                mask = lanes_between(self.e, f.op(f"sub i64 0, {at}"), f.op(f"sub i64 {m}, {at}"))
                self._body(p, [], wide, here, scratch, at, mask, [])

    def _merge(self, accumulators: list[Accumulator], a: list[Value], b: list[Value]) -> list[Value]:
        out: list[Value] = []
        for accumulator in accumulators:
            at, end = len(out), len(out) + len(accumulator.state)
            out += accumulator.merge(self.e, a[at:end], b[at:end])
        return out

    def _mask(self, m: str, i: str) -> str:
        """Lanes before the end."""
        return lanes_below(self.e, self.f.op(f"sub i64 {m}, {i}"))

    def _body(self, p: Pass, accumulators: list[Accumulator], wide: dict[int, Value], here: dict[int, str], scratch: dict[int, str], i: str,
              mask: str | None, state: list[Value]) -> list[Value]:
        """One vector of the sweep; returns the new state of the reductions."""
        f, e, plan = self.f, self.e, self.plan
        memory_mask = mask if self.target.avx512 else None
        values = dict(wide)
        for n in p.inputs:
            place = f.at(here[n], i, element_type(plan.dtype[n]))
            values[n] = e.load(plan.dtype[n], place, memory_mask)
            if accumulators or p.cost > LIGHT:
                f.module.declare("void", "llvm.prefetch.p0", "ptr, i32, i32, i32")
                f.do(f"call void @llvm.prefetch.p0(ptr {f.at(place, str(AHEAD))}, i32 0, i32 3, i32 1)")
        for n in p.loaded:
            values[n] = e.load(plan.dtype[n], f.at(scratch[n], i, element_type(plan.dtype[n])), memory_mask)
        for n in p.order:
            step = plan.step(n)
            values[n] = emit_step(e, step, [values[a] for a in step.args])
        for n in p.kept:
            e.store(values[n], f.at(scratch[n], i, element_type(plan.dtype[n])))
        for k in p.outputs:
            o = self.spec.outputs[k]
            e.store(e.cast(values[o.value], o.dtype), f.at(here[self.first + k], i, element_type(o.dtype)), memory_mask)
        new: list[Value] = []
        for r, a in zip(p.reductions, accumulators, strict=True):
            index = lane_numbers(f, plan.lanes, i) if a.arg else None
            old = state[len(new):len(new) + len(a.state)]
            new += a.step(e, old, values[plan.step(r).args[0]], mask, index)
        return new


def lanes_below(e: Vector, count: str) -> str:
    """An i1 vector: the first `count` lanes; count >= 0."""
    return _lanes(e, "ult", "smin", count, e.lanes)


def lanes_between(e: Vector, start: str, stop: str) -> str:
    """An i1 vector: lanes from `start`, less than a vector, to before `stop`, at least 0."""
    return e.f.op(f"and <{e.lanes} x i1> {_lanes(e, 'uge', 'smax', start, 0)}, {lanes_below(e, stop)}")


def _lanes(e: Vector, how: str, bounded: str, bound: str, by: int) -> str:
    """Lanes whose number compares so to a bound."""
    f, lanes = e.f, e.lanes
    t = "i32" if lanes <= 16 else "i16" if lanes <= 32 else "i8"
    f.module.declare("i64", f"llvm.{bounded}.i64", "i64, i64")
    few = f.op(f"trunc i64 {f.op(f'call i64 @llvm.{bounded}.i64(i64 {bound}, i64 {by})')} to {t}")
    one = f.op(f"insertelement <{lanes} x {t}> zeroinitializer, {t} {few}, i64 0")
    all_lanes = f.op(f"shufflevector <{lanes} x {t}> {one}, <{lanes} x {t}> zeroinitializer, <{lanes} x i32> zeroinitializer")
    iota = "<" + ", ".join(f"{t} {i}" for i in range(lanes)) + ">"
    return f.op(f"icmp {how} <{lanes} x {t}> {iota}, {all_lanes}")
