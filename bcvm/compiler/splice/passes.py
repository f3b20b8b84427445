"""Spliced kernels with reductions over the row: several sweeps over it, as `kernels.row` has them, with sums in the same order.

A sweep goes over the row in pieces; within one, whole vectors are taken several at a time, each with accumulators of its own, then the rest one by one under
a mask. The accumulators are combined pairwise, piece by piece, and at last lane by lane, halves against each other.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bcvm.compiler.kernels import by_rows
from bcvm.compiler.kernels import operands as access
from bcvm.compiler.kernels.plan import Pass, Plan
from bcvm.compiler.kernels.reduce import _limit
from bcvm.compiler.kernels.row import CHUNK
from bcvm.compiler.kernels.row import LIGHT as LIGHT_COST
from bcvm.compiler.kernels.row import MEDIUM as MEDIUM_COST
from bcvm.compiler.region import RegionSpec
from bcvm.compiler.runtime import runtime
from bcvm.compiler.splice import encode as x
from bcvm.compiler.splice.library import MASKS, Form, Library, Stencil
from bcvm.compiler.splice.splicer import END, NEVER, SCALAR_LANES, SIZES, Found, Splicer, shell_of
from bcvm.compiler.splice.stencils import HOLE
from bcvm.compiler.target import host
from bcvm.errors import Unsupported

METHOD = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
ENDLESS = 1 << 30  # elements: a row is one piece
MOST_KEPT = 3      # scratch rows: their addresses have registers
RED_ZONE = 128     # bytes below the stack pointer that are a leaf function's own


@dataclass
class Reduction:
    """of: the value that is reduced; cast: to the dtype it is accumulated in; start: the value that starts it; combine: of two states; after: cast of
    the result."""

    value: int
    of: int
    dtype: str
    start: int
    combine: Stencil
    cast: Stencil | None
    after: Stencil | None


@dataclass
class Sweep:
    """last: per value the last step here that reads it. pieces: elements of a piece, of contiguous rows and of packed ones."""

    plan: Pass
    steps: list[Found]
    last: list[int]
    copies: int
    pieces: tuple[int, int]
    reductions: list[Reduction] = field(default_factory=list)


class _Layout(Plan):
    """The same passes as LLVM's kernel has: costs are known with the stencils. KeyError: there is none for a step."""

    def __init__(self, spec: RegionSpec, library: Library) -> None:
        self.library = library
        super().__init__(spec, host())

    def cost(self, n: int) -> int:
        step = self.step(n)
        if step.op == "const":
            return 0
        variant = HOLE if step.attrs and step.op != "cast" else ()
        return self.library[step.op, self.dtype[step.args[-1]], step.dtype, self.lanes, variant].cost


class Passes(Splicer):
    def plan(self) -> None:
        """The passes of `kernels.plan`, with their stencils."""
        spec, first = self.spec, self.first
        try:
            self.layout = layout = _Layout(spec, self.library)
        except KeyError as e:
            raise Unsupported(f"no stencil for {e.args[0]}") from None
        self.lanes, self.dtype, self.lane = layout.lanes, list(layout.dtype), list(layout.lane)
        self.last = [END] * len(self.dtype)
        needed = {o.value for o in spec.outputs}
        for p in layout.passes:
            needed.update(p.order, p.inputs, p.reductions)
        self.levels: dict[int, list[Found]] = {}
        self.sweeps: list[Sweep] = []
        try:
            self.casts = [self.cast(self.dtype[o.value], o.dtype, SCALAR_LANES if o.reduced else self.lanes) for o in spec.outputs]
            for n in range(len(self.dtype) - 1, first - 1, -1):
                if n in needed:
                    needed.update(layout.step(n).args)
            for n in range(first, first + len(spec.steps)):
                step = layout.step(n)
                if n not in needed or layout.lane[n] or n in layout.combine:
                    continue
                if step.op == "const":
                    self.constants[n] = step.attrs[0][1], step.dtype
                else:
                    self.levels.setdefault(layout.level[n], []).append(self.find(n, step, SCALAR_LANES))
            tile = access.tile_length(access.operands_of(spec), self.lanes)
            for p in layout.passes:
                self.sweeps.append(self.sweep_of(p, tile))
            for s in self.sweeps:  # constants came after the values
                s.last += [END] * (len(self.dtype) - len(s.last))
        except KeyError as e:
            raise Unsupported(f"no stencil for {e.args[0]}") from None
        self.scalars = [s for level in self.levels.values() for s in level]
        self.steps = [s for sweep in self.sweeps for s in sweep.steps]

    def cast(self, a: str, b: str, lanes: int) -> Stencil | None:
        return None if a == b else self.library["cast", a, b, lanes, ()]

    def sweep_of(self, p: Pass, tile: int) -> Sweep:
        layout, lane = self.layout, self.layout.lane
        steps = [self.find(n, layout.step(n), self.lanes) for n in p.order]
        last = [NEVER if n < len(lane) and lane[n] else END for n in range(len(self.dtype))]
        for n, _, args in steps:
            for a in args:
                if last[a] != END:
                    last[a] = n
        for n in [*p.kept, *(self.spec.outputs[i].value for i in p.outputs), *(layout.step(r).args[0] for r in p.reductions)]:
            last[n] = END
        copies = 4 if p.cost <= LIGHT_COST else 2 if p.cost <= MEDIUM_COST else 1
        if not p.reductions and len(layout.passes) > 1:
            copies = 1
        hows = [layout.combine[r] for r in p.reductions]
        longest = CHUNK if any(how in ("sum", "prod") for how in hows) else ENDLESS
        sweep = Sweep(p, steps, last, copies, (longest, tile if p.inputs or p.outputs else longest))
        for r, how in zip(p.reductions, hows, strict=True):
            of = layout.step(r).args[0]
            operand, result = self.dtype[of], self.dtype[r]
            if how not in METHOD or "bool" in (operand, result):
                raise Unsupported(f"no spliced form of the reduction {how} of {operand}")
            dtype = operand if how in ("max", "min") else result
            start = _limit(dtype, how) if how in ("max", "min") else how == "prod"
            sweep.reductions.append(Reduction(r, of, dtype, self.constant(float(start) if dtype[0] == "f" else int(start), dtype),
                                              self.library[METHOD[how], dtype, dtype, self.lanes, ()], self.cast(operand, dtype, self.lanes),
                                              self.cast(dtype, result, SCALAR_LANES)))
        return sweep

    # -- the code

    def others(self) -> list[Stencil]:
        reductions = [r for s in self.sweeps for r in s.reductions]
        return [s for r in reductions for s in (r.combine, r.cast, r.after) if s is not None]

    def code(self) -> bytes:
        spec, rank, kept = self.spec, self.spec.rank, self.layout.kept
        kinds = [SIZES[i.dtype] if i.splat else SIZES[i.dtype] | by_rows.LANE for i in spec.inputs]
        kinds += [SIZES[o.dtype] | by_rows.OUTPUT | (0 if o.reduced else by_rows.LANE) for o in spec.outputs]
        kinds += [SIZES[self.dtype[n]] | by_rows.LANE for n in kept]
        self.kept_at = {n: len(spec.inputs) + len(spec.outputs) + i for n, i in kept.items()}
        if len(kinds) > by_rows.MAX_OPERANDS or len(kept) > MOST_KEPT:
            raise Unsupported("more operands than a spliced kernel has")
        shell = shell_of(rank, tuple(kinds), runtime().address("by_rows"), True, len(kept))
        self.address = shell.address
        words = shell.words + 8
        self.end_word = -words
        self.piece_words: dict[tuple[int, int], int] = {}
        head = []
        for direct, packed in dict.fromkeys(s.pieces for s in self.sweeps if s.reductions):
            words += 8
            self.piece_words[direct, packed] = -words
            other = x.small_number(x.RAX, packed)
            head += [x.small_number(x.RAX, direct), x.test_rcx(by_rows.PACKED), x.jump_if(x.JE, len(other)), other, x.store(x.RAX, x.RSP, -words)]
        if words > RED_ZONE:
            raise Unsupported("more operands than a spliced kernel has")
        for n, k in self.kept_at.items():  # scratch rows: in this frame if they are short and no others are given
            given = x.load(self.address[k], x.RSI, 8 * (1 + rank) * k)
            head += [x.frame_address(self.address[k], 64 * self.slots), x.test_rcx(by_rows.SCRATCH), x.jump_if(x.JE, len(given)), given]
            self.slots += by_rows.SHORT * SIZES[self.dtype[n]] // 64
        head += [shell.addresses, x.store(x.R9, x.RSP, self.end_word)]
        self.held = max([(1 + s.copies) * len(s.reductions) for s in self.sweeps], default=0)
        self.reserve()
        pinned = self.same_for_all_rows()
        head += self.out
        if self.pool:
            head.insert(0, x.number(x.R11, self.library.pool))
        row: list[bytes] = []
        self.out = row
        self.scalars = self.levels.get(0, [])
        self.same_for_a_row()
        base = most = self.slots
        for level, sweep in enumerate(self.sweeps, 1):
            self.slots = base
            most = max(most, self.sweep(sweep, pinned, row))
            self.out = row
            self.scalars = self.levels.get(level, [])
            self.last = sweep.last
            self.scalar_steps()
            base = self.slots
            most = max(most, base)
        for k, o in enumerate(spec.outputs):
            if o.reduced:
                self.put_first(len(spec.inputs) + k, o.value, o.dtype, self.casts[k])
        self.slots = most
        body = b"".join(row) + shell.moves
        if shell.moves:
            body += x.jump_if(x.JNE, -len(body) - 6)
        saves, restores = self.frame(shell)
        return b"".join([shell.entry, saves, *head, body, restores])

    def sweep(self, s: Sweep, pinned: dict[Form, int], row: list[bytes]) -> int:
        """One pass over a row; returns how many slots there are then. The results of its reductions are in registers, or in slots."""
        p, spec, free, lanes = s.plan, self.spec, self.free, self.lanes
        self.steps, self.last, self.uses = s.steps, s.last, None
        self.source = {n: self.kept_at[n] for n in p.loaded}
        slots = self.slots
        totals = [self.take(False, ()) for _ in s.reductions]
        states = [[self.take(False, ()) for _ in s.reductions] for _ in range(s.copies)]

        def emitted(action: Callable[..., object], *args: Any) -> bytes:
            self.out = []
            action(*args)
            return b"".join(self.out)

        for n, wide in enumerate(self.lane):
            if wide:
                self.slot[n] = NEVER
        common: list[bytes] = []
        self.out, self.masked = common, []
        self.run(s.steps, pinned)
        self.now = END
        for n in p.kept:
            self.put(self.kept_at[n], n, self.dtype[n], None)
        for k in p.outputs:
            o = spec.outputs[k]
            self.put(self.first + k, o.value, o.dtype, self.casts[k])
        for r in s.reductions:
            if self.register[r.of] < 0:
                self.bring(r.of, tuple([other.of for other in s.reductions]))
        plain = b"".join(common)
        for i, other in self.masked:
            common[i] = other
        advance = x.add_number(x.RAX, lanes)
        main = b"".join([plain + emitted(self.accumulate, s.reductions, state, False) + advance for state in states]) + x.compare(x.RAX, x.R10)
        main += x.jump_if(x.JB, -len(main) - 6)
        rest = x.tail_mask() + b"".join(common) + emitted(self.accumulate, s.reductions, states[0], True) + advance + x.compare(x.RAX, x.R9)
        rest += x.jump_if(x.JB, -len(rest) - 6)
        most = self.slots
        self.release()
        start = b"".join([emitted(self.begin, s.reductions, state) for state in states])
        merge = emitted(self.merge, s.reductions, states)
        whole = x.move(x.R10, x.R9) + x.subtract(x.R10, x.RAX) + x.and_number(x.R10, -s.copies * lanes) + x.add(x.R10, x.RAX)
        piece = start + whole + x.compare(x.RAX, x.R10) + x.jump_if(x.JAE, len(main)) + main + merge
        piece += x.compare(x.RAX, x.R9) + x.jump_if(x.JAE, len(rest)) + rest
        bound = x.load(x.R9, x.RSP, self.end_word)
        if s.reductions:
            bound += x.load(x.R10, x.RSP, self.piece_words[s.pieces]) + x.add(x.R10, x.RAX) + x.at_most(x.R9, x.R10)
            piece += x.move(x.RAX, x.R9)
            piece += emitted(self.combine_all, s.reductions, totals, states[0])
        piece = bound + piece
        at_end = x.compare_with(x.RAX, x.RSP, self.end_word)
        if s.reductions:
            piece += at_end
            piece += x.jump_if(x.JB, -len(piece) - 6)
        row.append(emitted(self.begin, s.reductions, totals))
        row += [x.ZERO_RESULT, at_end, x.jump_if(x.JAE, len(piece)), piece]
        for state in states:
            free[0].extend(state)
        self.out, self.slots = row, slots
        for r, total in zip(s.reductions, totals, strict=True):
            self.fold(r, total)
            self.register[r.value] = total
            self.pin(r.value, total)
        return max(most, self.slots)

    # -- reductions

    def begin(self, reductions: list[Reduction], state: list[int]) -> None:
        for r, register in zip(reductions, state, strict=True):
            start = self.register[r.start]
            self.out.append(x.vector(register, start) if start >= 0 else x.slot(register, self.slot[r.start], False))

    def combine_all(self, reductions: list[Reduction], to: list[int], others: list[int]) -> None:
        for r, a, b in zip(reductions, to, others, strict=True):
            self.combine(r, a, b, a)

    def combine(self, r: Reduction, a: int, b: int, result: int, masked: bool = False) -> None:
        """result = a with b; result is a. masked: only in the lanes of the row's end."""
        form = r.combine.plain
        direct = 0 in form.shares and not masked
        register = result if direct else self.spare()
        self.out.append((form.code ^ form.arguments[0][a] ^ form.arguments[1][b] ^ form.result[register]).to_bytes(form.size, "little"))
        if not direct:
            self.out.append(x.vector(result, register, SIZES[r.dtype], masked))
            self.free[0].append(register)

    def accumulate(self, reductions: list[Reduction], state: list[int], masked: bool) -> None:
        for r, to in zip(reductions, state, strict=True):
            register = self.register[r.of]
            if r.cast is None:
                self.combine(r, to, register, to, masked)
            else:
                other = self.spare()
                self.convert(r.cast, register, other)
                self.combine(r, to, other, to, masked)
                self.free[0].append(other)

    def spare(self) -> int:
        """A register in code that is written several times: nothing can be put elsewhere there."""
        if not self.free[0]:
            raise Unsupported("more registers than there are")
        return self.free[0].pop()

    def merge(self, reductions: list[Reduction], states: list[list[int]]) -> None:
        """The copies' states pairwise, into the first."""
        while len(states) > 1:
            for a, b in zip(states[::2], states[1::2], strict=True):
                self.combine_all(reductions, a, b)
            states = states[::2]

    def fold(self, r: Reduction, register: int) -> None:
        """The lanes of a state together, and the result in all lanes."""
        other = self.take(False, ())
        size = SIZES[r.dtype]
        half = self.lanes * size // 2
        while half >= size:
            self.out.append(x.upper(other, register, half))
            self.combine(r, register, other, register)
            half //= 2
        if r.after is not None:
            self.convert(r.after, register, other)
            self.out.append(x.vector(register, other))
        self.free[0].append(other)
        self.out.append(x.broadcast_low(register, SIZES[self.dtype[r.value]]))

    def put_first(self, operand: int, value: int, dtype: str, cast: Stencil | None) -> None:
        """A value of the row to its one element."""
        register = self.register[value]
        taken = []
        if register < 0:
            register = self.take(self.dtype[value] == "bool", ())
            taken.append(register)
            self.out.append(self.at_slot(value, register, False))
        if cast is not None:
            register, source = self.take(dtype == "bool", ()), register
            taken.append(register)
            self.convert(cast, source, register)
        self.out.append(x.load(x.R10, x.RSP, self.address[operand]))
        self.out.append(x.store_mask(register - MASKS, x.R10) if dtype == "bool" else x.store_first(register, x.R10, SIZES[dtype]))
        for r in taken:
            self.free[r >= MASKS].append(r)
