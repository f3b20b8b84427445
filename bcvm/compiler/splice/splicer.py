"""Region -> machine code of a kernel, by copying stencils.

A kernel is: a short entry, which takes the common call (from unit 0 on, contiguous rows, leading dims merged) and passes others to `by_rows`; and inner
code, which does some rows of contiguous elements. A row is a loop of whole vectors, unrolled by copying its body, and a loop with masked loads and
stores for the rest. Registers are given out in one walk over the steps; where there are too few, the value that is needed last goes to the stack.

General registers of the inner code: rsi operands, r9 elements of a row, rax index, r8 and r10 scratch, r11 the stencils' constants, others the
addresses of operands. The number of rows left, and addresses that have no register, lie below the stack pointer. Vector registers are numbered
from 0, mask registers from 32.
"""
from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from bcvm.compiler.kernels import by_rows
from bcvm.compiler.region import RegionSpec, Step
from bcvm.compiler.runtime import runtime
from bcvm.compiler.splice import encode as x
from bcvm.compiler.splice.library import FIRST_MASK, MASKS, Form, Library, Stencil
from bcvm.compiler.splice.stencils import HOLE, NUMBERS
from bcvm.errors import Unsupported

COMBINES = frozenset(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"))
SIZES = {"float32": 4, "int32": 4, "float64": 8, "int64": 8, "bool": 1}
ADDRESSES = (x.RDX, x.RDI, x.RCX, x.RBX, x.RBP, x.R12, x.R13, x.R14, x.R15)
SAVED = frozenset((x.RBX, x.RBP, x.R12, x.R13, x.R14, x.R15))
KEPT_FREE = 8            # vector registers that are never given to what is the same for a whole row, besides what a stencil uses
MASKS_FREE = 4
LIGHT, MEDIUM = 14, 40   # instructions of a body that is copied 4 and 2 times
NEVER, END = -1, 1 << 30
Found = tuple[int, Stencil, tuple[int, ...]]  # a step: its value, stencil and arguments
SCALAR_LANES = 8         # what is the same for a whole row is computed in this many lanes


def splice(spec: RegionSpec, library: Library) -> bytes:
    """Position independent code of the region's kernel, its first byte the entry. Unsupported: a step without stencil, another kind than 'row'."""
    if any([s.op in COMBINES for s in spec.steps]) or any([o.reduced for o in spec.outputs]):
        from bcvm.compiler.splice.passes import Passes
        return Passes(spec, library).code()
    return Splicer(spec, library).code()


def _bits(value: Any, dtype: str) -> int:
    """A constant as its bits."""
    if dtype[0] == "f":
        try:
            return int.from_bytes(struct.pack("<f" if dtype == "float32" else "<d", value), "little")
        except OverflowError:
            return _bits(math.copysign(math.inf, value), dtype)
    return int(value) & (1 << 8 * SIZES[dtype]) - 1


class Shell(NamedTuple):
    """What depends on the operands alone. address: of each operand, a register for what moves along the row, or, below 0, a word below the stack
    pointer (words: bytes of these). entry: everything before the inner code; saves, restores; addresses: instructions that read them; moves: to the
    next row."""

    address: tuple[int, ...]
    entry: bytes
    saves: bytes
    addresses: bytes
    moves: bytes
    restores: bytes
    words: int


@lru_cache(maxsize=1024)
def shell_of(rank: int, kinds: tuple[int, ...], generic: int, whole: bool = False, scratch: int = 0) -> Shell:
    """kinds, whole, scratch: as in `by_rows`; the last kinds are the scratch rows', whose addresses the inner code sets itself. generic: where that
    function is."""
    width, words, registers = 8 * (1 + rank), 8, list(ADDRESSES)
    address, first, moves = [], [], []
    of_scratch = [registers.pop() for _ in range(scratch)]
    for k, kind in enumerate(kinds[:len(kinds) - scratch]):
        stride = width * k + 8 * (rank - 1)
        at = registers.pop(0) if registers and kind & by_rows.LANE else NEVER
        if at == NEVER:
            words += 8
            at = -words
            first += [x.load(x.R10, x.RSI, width * k), x.store(x.R10, x.RSP, at)]
            moves += [x.load(x.R10, x.RSI, stride), x.add_to(x.R10, x.RSP, at)]
        else:
            first.append(x.load(at, x.RSI, width * k))
            moves.append(x.add_from(at, x.RSI, stride))
        address.append(at)
    address += of_scratch
    if rank > 1:
        first.append(x.store(x.R8, x.RSP, -8))
        moves.append(x.decrement(x.RSP, -8))
    saved = [r for r in address if r in SAVED]
    restores = b"".join([x.pop(r) for r in reversed(saved)]) + x.VZEROUPPER + x.ZERO_RESULT + x.RET
    entry = _entry(rank, kinds, generic, whole, scratch)
    return Shell(tuple(address), entry, b"".join(map(x.push, saved)), b"".join(first), b"".join(moves) if rank > 1 else b"", restores, words)


def _entry(rank: int, kinds: tuple[int, ...], generic: int, whole: bool, scratch: int) -> bytes:
    checks = [x.compare_memory(x.RSI, 8 * (k * (1 + rank) + rank), kind & 255) for k, kind in enumerate(kinds[:len(kinds) - scratch]) if kind & by_rows.LANE]
    checks.append(x.test(x.RCX))
    at_most = len(checks)
    if scratch:  # in the inner code's own frame
        checks.append(x.compare_memory(x.RDX, 8 * (rank - 1), by_rows.SHORT))
    checks += [x.compare_memory(x.RDX, 8 * d, 1) for d in range(rank - 2)]
    sizes = x.load(x.R9, x.RDX, 8 * (rank - 1))
    if rank > 1:
        own = x.load(x.R8, x.RDX, 8 * (rank - 2))
        sizes = x.test(x.R8) + x.jump_if(x.JNS, len(own)) + own + sizes
    finished = x.ZERO_RESULT + x.RET
    about = struct.pack(f"<{by_rows.HEADER + len(kinds)}q", *by_rows.about(rank, kinds, 8 * (by_rows.HEADER + len(kinds)), whole, scratch))
    others = b"\x4c\x8d\x0d" + struct.pack("<i", 12 + len(finished)) + x.number(x.RAX, generic) + b"\xff\xe0"  # lea r9, about; jump to generic
    behind = others + finished + about
    tail = sizes + x.test(x.R8) + x.jump_if(x.JE if rank == 1 else x.JLE, 5 + len(others)) + x.jump(len(behind))  # without rows it is finished
    parts, left = [], sum(map(len, checks)) + 6 * len(checks)
    for check in checks:
        left -= len(check) + 6
        parts.append(check + x.jump_if(x.JG if scratch and check is checks[at_most] else x.JNE, left + len(tail)))
    return b"".join(parts) + tail + behind


@lru_cache(maxsize=64)
def _around(lanes: int, copies: int) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The unchanging parts of a row: its start, a vector's end, the ends of both loops, the mask of the second."""
    start = x.ZERO_RESULT + x.move(x.R10, x.R9) + x.and_number(x.R10, -copies * lanes)
    return start, x.add_number(x.RAX, lanes), x.compare(x.RAX, x.R10), x.compare(x.RAX, x.R9), x.tail_mask()


class Splicer:
    """The work on one region. Values are numbered as in the region; constant attributes come after them."""

    def __init__(self, spec: RegionSpec, library: Library) -> None:
        if spec.kind != "row" or not 1 <= spec.rank <= by_rows.MAX_RANK or len(spec.inputs) + len(spec.outputs) > by_rows.MAX_OPERANDS:
            raise Unsupported("a region of this kind has no spliced form")
        for operand in spec.inputs + spec.outputs:
            if operand.dtype not in SIZES:
                raise Unsupported(f"no stencils for {operand.dtype}")
        self.spec, self.library, self.first = spec, library, len(spec.inputs)
        self.dtype = [i.dtype for i in spec.inputs]
        self.lane = [not i.splat for i in spec.inputs]
        self.last: list[int] = []  # the last step that reads a value; END: it stays
        self.constants: dict[int, tuple[Any, str]] = {}
        self.scalars: list[Found] = []  # steps that are done once a row
        self.steps: list[Found] = []
        self.casts: list[Stencil | None] = []
        self.plan()
        count = len(self.dtype)
        self.register = [NEVER] * count
        self.slot = [NEVER] * count
        self.owner = [NEVER] * 40  # of a register: the value that may be put elsewhere
        self.free: tuple[list[int], list[int]]  # vector registers, mask registers; what stencils use in between is not among them
        self.slots = 0
        self.out: list[bytes] = []
        self.masked: list[tuple[int, bytes]] = []  # what differs in the masked body
        self.now = NEVER
        self.uses: list[list[int]] | None = None
        self.pool = False
        self.held = 0  # vector registers that hold something else for some time
        self.source: dict[int, int] = {}  # values that are read from other operands than those of their number

    # -- what is to be done

    def plan(self) -> None:
        """Which steps are needed, by what, and their stencils."""
        spec, first, lane, dtype, library = self.spec, self.first, self.lane, self.dtype, self.library
        steps = spec.steps
        try:
            for step in steps:
                dtype.append(step.dtype)
                for a in step.args:
                    if lane[a]:
                        lane.append(True)
                        break
                else:
                    lane.append(False)
            widest = max([SIZES[d] for d, wide in zip(dtype, lane) if wide] + [SIZES[o.dtype] for o in spec.outputs])  # noqa: B905
            lanes = self.lanes = 64 // widest
            last = self.last = [NEVER] * len(dtype)
            for o in spec.outputs:
                last[o.value] = END
                self.casts.append(None if dtype[o.value] == o.dtype else library["cast", dtype[o.value], o.dtype, lanes, ()])
            n = first + len(steps)
            for step in reversed(steps):
                n -= 1
                if last[n] == NEVER:
                    continue
                if step.op == "const":
                    self.constants[n] = step.attrs[0][1], step.dtype
                    continue
                for a in step.args:
                    if last[a] == NEVER:
                        last[a] = n
                if lane[n]:
                    self.steps.append(self.find(n, step, lanes))
                else:
                    self.scalars.append(self.find(n, step, SCALAR_LANES))
        except KeyError as e:
            raise Unsupported(f"no stencil for {e.args[0]}") from None
        self.steps.reverse()
        self.scalars.reverse()

    def find(self, n: int, step: Step, lanes: int) -> Found:
        """A step with its stencil. KeyError: there is none."""
        op, args, dtype = step.op, step.args, self.dtype
        kind = dtype[args[-1]]
        for a in args:
            if dtype[a] != kind and (op != "where" or a != args[0]):
                raise Unsupported(f"{op} of {dtype[a]} and {kind}")
        variant: tuple[int, ...] = ()
        if step.attrs and op != "cast":
            variant, args = HOLE, (*args, self.constant(step.attrs[0][1], kind))
        elif op in NUMBERS and kind[0] == "f":
            variant = tuple([k for k in range(1, len(args)) if self.number(args[k])])
        return n, self.library[op, kind, step.dtype, lanes, variant], args

    def constant(self, value: Any, dtype: str) -> int:
        """A value beside those of the region."""
        self.constants[len(self.dtype)] = value, dtype
        self.dtype.append(dtype)
        self.lane.append(False)
        self.last.append(END)
        return len(self.dtype) - 1

    def number(self, value: int) -> bool:
        """Whether a value is a constant, no NaN and no zero, of which there are two."""
        if value < self.first:
            return False
        step = self.spec.steps[value - self.first]
        return step.op == "const" and bool(step.attrs[0][1] == step.attrs[0][1] != 0)

    # -- registers

    def take(self, mask: bool, busy: tuple[int, ...]) -> int:
        return self.free[mask].pop() if self.free[mask] else self.spill(mask, busy)

    def spill(self, mask: bool, busy: tuple[int, ...]) -> int:
        """Empty the register of the value that is needed last, but of none that is busy."""
        if self.uses is None:
            self.uses = [[] for _ in self.dtype]
            for n, _, args in self.steps:
                for a in args:
                    self.uses[a].append(n)
        best, furthest = NEVER, NEVER
        for register in range(MASKS, MASKS + 8) if mask else range(MASKS):
            value = self.owner[register]
            if value != NEVER and value not in busy:
                following = min([u for u in self.uses[value] if u >= self.now], default=END)
                if following > furthest:
                    best, furthest = register, following
        if best == NEVER:
            raise Unsupported("more registers than there are")
        value, self.owner[best] = self.owner[best], NEVER
        self.register[value] = NEVER
        if self.slot[value] == NEVER and (value >= self.first or self.last[value] == END or mask):  # an input can be read again
            self.keep(value, best)
        return best

    def keep(self, value: int, register: int) -> None:
        self.slot[value] = 64 * self.slots
        self.slots += 1
        self.out.append(self.at_slot(value, register, True))

    def at_slot(self, value: int, register: int, storing: bool) -> bytes:
        return x.slot(register, self.slot[value], storing) if register < MASKS else x.mask_slot(register - MASKS, self.slot[value], storing)

    def bring(self, value: int, busy: tuple[int, ...]) -> int:
        """A value that is in no register into one."""
        dtype = self.dtype[value]
        mask = dtype == "bool"
        if self.slot[value] != NEVER:
            register = self.take(mask, busy)
            self.out.append(self.at_slot(value, register, False))
        elif mask:
            raw = self.take(False, busy)
            self.move(self.source.get(value, value), raw, 1, False)
            register = self.take(True, busy)
            self.convert(self.load, raw, register)
            self.free[0].append(raw)
        else:
            register = self.free[0].pop() if self.free[0] else self.spill(False, busy)
            self.move(self.source.get(value, value), register, SIZES[dtype], False)
        self.register[value] = register
        self.owner[register] = value
        return register

    def move(self, operand: int, register: int, size: int, storing: bool) -> None:
        """Lanes of an operand, from or to memory."""
        base, out = self.address[operand], self.out
        if base < 0:
            out.append(x.load(x.R8, x.RSP, base))
            base = x.R8
        self.masked.append((len(out), x.element(register, base, size, self.lanes, True, storing)))
        out.append(x.element(register, base, size, self.lanes, False, storing))

    def convert(self, stencil: Stencil, register: int, result: int) -> None:
        """A stencil of one argument, outside of the steps."""
        form = stencil.plain
        self.out.append((form.code ^ form.arguments[0][register] ^ form.result[result]).to_bytes(form.size, "little"))

    def run(self, steps: Iterable[Found], pinned: dict[Form, int]) -> None:
        """Write steps. pinned: the registers of the constants of those that have theirs in registers."""
        register, last, free, owner, dtype, out = self.register, self.last, self.free, self.owner, self.dtype, self.out
        for n, stencil, args in steps:
            self.now = n
            for a in args:
                if register[a] < 0:
                    self.bring(a, args)
            form = stencil.pinned
            if form in pinned:
                assert form is not None
                code = form.pinned[pinned[form]][0]
            else:
                form = stencil.plain
                code = form.code
            for a, role in zip(args, form.arguments):  # noqa: B905
                code ^= role[register[a]]
            shared = NEVER
            for i in form.shares:
                a = args[i]
                if last[a] == n and (form.all_share or args.count(a) == 1):
                    result, shared = register[a], a
                    break
            else:
                mask = dtype[n] == "bool"
                result = free[mask].pop() if free[mask] else self.spill(mask, args)
            out.append((code ^ form.result[result]).to_bytes(form.size, "little"))
            for a in args:
                if last[a] == n:
                    r = register[a]
                    if r >= 0:
                        register[a] = owner[r] = NEVER
                        if a != shared:
                            free[r >= MASKS].append(r)
            register[n] = result
            owner[result] = n

    # -- parts of the code

    def code(self) -> bytes:
        spec = self.spec
        kinds = [SIZES[i.dtype] if i.splat else SIZES[i.dtype] | by_rows.LANE for i in spec.inputs]
        kinds += [SIZES[o.dtype] | by_rows.LANE | by_rows.OUTPUT for o in spec.outputs]
        shell = shell_of(spec.rank, tuple(kinds), runtime().address("by_rows"))
        self.address = shell.address
        self.reserve()
        pinned = self.same_for_all_rows()
        head = (x.number(x.R11, self.library.pool) if self.pool else b"") + shell.addresses + b"".join(self.out)
        row: list[bytes] = []
        self.out = row
        if len(self.constants) + sum(self.lane) < len(self.dtype):
            self.same_for_a_row()
        body: list[bytes] = []
        self.out = body
        self.masked = []
        instructions = self.body(pinned)
        plain = b"".join(body)
        for i, other in self.masked:
            body[i] = other
        return self.assemble(shell, head, b"".join(row), plain, b"".join(body), 4 if instructions <= LIGHT else 2 if instructions <= MEDIUM else 1)

    def pin(self, value: int, register: int) -> None:
        """A value that is the same in all lanes stays in its register, or goes to the stack."""
        mask = register >= MASKS
        if self.room[mask] > 0:
            self.room[mask] -= 1
            self.last[value] = END
        else:
            self.keep(value, register)
            self.register[value] = NEVER
            self.free[mask].append(register)

    def reserve(self) -> None:
        """What the stencils need besides arguments and results."""
        vectors = masks = 0
        library, lanes = self.library, self.lanes
        self.load = library["load", "bool", "bool", lanes, ()]
        self.store = library["store", "bool", "bool", lanes, ()]
        others = self.others() + [s for s in self.casts if s is not None]
        if "bool" in self.dtype:
            others += (self.load, self.store)
        for stencil in [step[1] for step in self.steps + self.scalars] + others:
            if stencil.pool:
                self.pool = True
            if stencil.vectors > vectors:
                vectors = stencil.vectors
            if stencil.masks > masks:
                masks = stencil.masks
        self.free = [*range(vectors, 32)], [*range(MASKS + FIRST_MASK + masks, MASKS + 8)]
        self.room = [32 - KEPT_FREE - vectors - self.held, 8 - FIRST_MASK - MASKS_FREE - masks]

    def others(self) -> list[Stencil]:
        """Stencils that are neither of steps nor casts of outputs."""
        return []

    def same_for_all_rows(self) -> dict[Form, int]:
        """Constants into registers: those of the region, then those of its stencils, whose first registers are returned."""
        out, free, room = self.out, self.free, self.room
        for value, (constant, dtype) in self.constants.items():
            register = free[dtype == "bool"].pop()
            out.append(x.mask_constant(register - MASKS, bool(constant)) if dtype == "bool" else x.constant(register, _bits(constant, dtype), SIZES[dtype]))
            self.register[value] = register
            self.pin(value, register)
        pinned: dict[Form, int] = {}
        left = room[0] - (len(self.scalars) + len(self.spec.inputs) - sum(self.lane[:self.first]))
        for _, stencil, _ in self.steps:
            form = stencil.pinned
            if form is not None and form.constants <= left and form not in pinned:
                base = pinned[form] = free[0][0]
                out.append(form.pinned[base][1])
                del free[0][:form.constants]
                left -= form.constants
                room[0] -= form.constants
        return pinned

    def same_for_a_row(self) -> None:
        """Inputs of one element a row, and the steps that depend on nothing else."""
        out = self.out
        for k, i in enumerate(self.spec.inputs):
            if not i.splat:
                continue
            at, mask = self.address[k], i.dtype == "bool"
            out.append(x.load(x.R10, x.RSP, at))
            register = self.take(mask, ())
            out.append(x.mask_splat(register - MASKS, x.R10) if mask else x.broadcast_from(register, x.R10, SIZES[i.dtype]))
            self.register[k] = register
            self.pin(k, register)
        self.scalar_steps()

    def scalar_steps(self) -> None:
        out = self.out
        for step in self.scalars:
            self.run([step], {})
            n = step[0]
            register = self.register[n]
            self.owner[register] = NEVER
            if self.lanes != SCALAR_LANES:
                out.append(x.mask_widen(register - MASKS) if register >= MASKS else x.broadcast_low(register, SIZES[self.dtype[n]]))
            self.pin(n, register)
        self.release()

    def release(self) -> None:
        """What may be put elsewhere is in no register any more."""
        for register, value in enumerate(self.owner):
            if value != NEVER:
                self.register[value] = self.owner[register] = NEVER
                self.free[register >= MASKS].append(register)

    def body(self, pinned: dict[Form, int]) -> int:
        """One vector of the row; returns its number of instructions."""
        self.run(self.steps, pinned)
        self.now = END
        count = len(self.spec.inputs) + 2 * len(self.spec.outputs)
        for _, stencil, _ in self.steps:
            count += stencil.instructions
        for k, o in enumerate(self.spec.outputs):
            self.put(self.first + k, o.value, o.dtype, self.casts[k])
        return count

    def put(self, operand: int, value: int, dtype: str, cast: Stencil | None) -> None:
        """Lanes of a value into memory."""
        busy = (value,)
        register = self.register[value]
        if register < 0:
            register = self.bring(value, busy)
        taken = []
        for stencil in (cast, self.store if dtype == "bool" else None):
            if stencil is not None:
                register, source = self.take(dtype == "bool" and stencil is cast, busy), register
                taken.append(register)
                self.convert(stencil, source, register)
        self.move(operand, register, SIZES[dtype], True)
        for r in taken:
            self.free[r >= MASKS].append(r)

    def assemble(self, shell: Shell, head: bytes, row: bytes, plain: bytes, masked: bytes, copies: int) -> bytes:
        saves, restores = self.frame(shell)
        start, advance, at_whole, at_end, mask = _around(self.lanes, copies)
        start = row + start
        pad = -(len(shell.entry) + len(saves) + len(head) + len(start) + 6) & 31
        loop = (plain + advance) * copies + at_whole
        again = x.jump_if(x.JB, -len(loop) - 6)
        rest = mask + masked + advance + at_end
        rest += x.jump_if(x.JB, -len(rest) - 6)
        rows_ = b"".join([start, x.jump_if(x.JE, pad + len(loop) + 6), x.padding(pad), loop, again, at_end, x.jump_if(x.JAE, len(rest)), rest, shell.moves])
        if shell.moves:
            rows_ += x.jump_if(x.JNE, -len(rows_) - 6)
        return b"".join([shell.entry, saves, head, rows_, restores])

    def frame(self, shell: Shell) -> tuple[bytes, bytes]:
        """The start and the end of the inner code. Slots are aligned, behind them is the old stack pointer."""
        if not self.slots:
            return shell.saves, shell.restores
        size = 64 * self.slots
        saves = x.move(x.RAX, x.RSP) + x.add_number(x.RSP, -size - 128) + x.and_number(x.RSP, -64) + x.store(x.RAX, x.RSP, size)
        return shell.saves + saves, x.load(x.RSP, x.RSP, size) + shell.restores
