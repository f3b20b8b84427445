"""The stencils: every elementwise op, by dtype and number of lanes, compiled with its operands in fixed registers.

Their IR is that of the kernels (`kernels.vector`, `kernels.math`), so results have the same bits. Arguments are in zmm16, zmm17, zmm18 or k2, k3, k4
and stay as they are, the result goes to zmm19 or k5; zmm0 to zmm15 are occupied (fewer where that leaves too few), so that every vector instruction has
the EVEX form, which can name all 32 registers. What needs other registers, memory, a branch or a call has no stencil.
"""
from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bcvm.bytecode import dtypes
from bcvm.compiler import elf, llvm
from bcvm.compiler.kernels.plan import emit_step, step_cost
from bcvm.compiler.kernels.text import Function, Module
from bcvm.compiler.kernels.vector import Value, Vector, held_type
from bcvm.compiler.region import Step
from bcvm.compiler.splice.decode import PATTERNS, RM, Instruction, decode
from bcvm.compiler.target import Target
from bcvm.errors import BcvmError, CompileError, Unsupported
from bcvm.ops.definition import OPS, ScalarExpr

DTYPES = ("float32", "float64", "int32", "int64", "bool")
LANES = {"float32": (16, 8), "int32": (16, 8), "float64": (8,), "int64": (8,), "bool": (16, 8, 64)}
ARGUMENTS = (16, 17, 18), (2, 3, 4)  # vector registers, mask registers
RESULT = 19, 5
# Operands that a kernel's code treats otherwise where they are constants that are no NaN.
NUMBERS = {"maximum": ((1,),), "minimum": ((1,),), "clip": ((1,), (2,), (1, 2))}

Key = tuple[str, str, str, int, tuple[int, ...]]
"""op, dtype of the last operand, dtype of the result, lanes, which operands are constants that are no NaN (or `HOLE`). The ops 'load' and 'store'
turn the bytes of bools in memory to a mask and back."""
HOLE = (-1,)  # the constant attribute is the last operand


class Code(NamedTuple):
    """bytes with register 0 in every field; fields: (role, kind, position) triples of 16 bit. constants: for each role behind those of the record,
    the place and size in the pool of the constant that is in its register."""

    text: bytes
    fields: bytes
    constants: tuple[tuple[int, int], ...]


class Record(NamedTuple):
    """roles: per role 'v' or 'k': the arguments, the result, then what is used in between. cost: as `kernels.plan` counts it. shares: arguments whose
    register the result may take over.
    plain: reads constants from the pool, at POOL_REGISTER, if `pool`; pinned: has them in registers (None: has none)."""

    roles: str
    arguments: int
    instructions: int
    cost: int
    shares: tuple[int, ...]
    pool: bool
    plain: Code
    pinned: Code | None


@dataclass(frozen=True)
class Request:
    key: Key
    step: Step
    arguments: tuple[str, ...]


class _Alpha(float):
    """Stands for the value of a constant attribute."""


class _Vector(Vector):
    """numbers: operands that are constants, no NaN. hole: the operand that stands for the constant attribute."""

    numbers: frozenset[str] = frozenset()
    hole: Value | None = None

    def is_number(self, v: Value) -> bool:
        return v.ref in self.numbers or super().is_number(v)

    def const(self, value: float | int | bool, dtype: str) -> Value:
        if isinstance(value, _Alpha):
            if self.hole is None or self.hole.dtype != dtype:
                raise Unsupported("a constant attribute of another dtype")
            return self.hole
        return super().const(value, dtype)


def requests() -> Iterator[Request]:
    """All stencils there may be."""
    for lanes in LANES["bool"]:
        for how in ("load", "store"):
            yield Request((how, "bool", "bool", lanes, ()), Step(how, (0,), "bool"), ("bool",))
    for a in DTYPES:
        for b in DTYPES:
            for lanes in sorted(set(LANES[a]) & set(LANES[b])):
                yield Request(("cast", a, b, lanes, ()), Step("cast", (0,), b, (("dtype", b),)), (a,))
    for name, op in OPS.items():
        if not isinstance(op.form, ScalarExpr) or name == "cast":
            continue
        count = len(op.operands)
        for dtype in (d for d in DTYPES if d in op.domain):
            arguments = ("bool", dtype, dtype) if name == "where" else (dtype,) * count
            result = result_dtype(name, arguments)
            if result not in DTYPES:
                continue
            for lanes in LANES[dtype]:
                if lanes not in LANES[result]:
                    continue
                step = Step(name, tuple(range(count)), result)
                yield Request((name, dtype, result, lanes, ()), step, arguments)
                if dtypes.is_float(dtype):
                    for numbers in NUMBERS.get(name, ()):
                        yield Request((name, dtype, result, lanes, numbers), step, arguments)
                    if len(op.attrs) == 1:
                        yield Request((name, dtype, result, lanes, HOLE), replace(step, attrs=((op.attrs[0], _Alpha()),)), (*arguments, dtype))


def result_dtype(name: str, arguments: Sequence[str]) -> str:
    """The dtype that an op's expression gives; '' if it has no native form."""
    form = OPS[name].form
    assert isinstance(form, ScalarExpr)
    try:
        out: Value = form.expr(Vector(Function(Module(Target("", "", 64, 32, True)), ""), 8), *(Value(d, f"%a{i}") for i, d in enumerate(arguments)))
    except BcvmError:
        return ""
    return out.dtype


def cost_of(request: Request, target: Target) -> int:
    step, lanes = request.step, request.key[3]
    if step.op not in OPS:
        return 0
    if request.key[4] != HOLE:
        return step_cost(step.op, step.attrs, step.dtype, request.arguments, lanes, target)
    return step_cost(step.op, ((step.attrs[0][0], 0.5),), step.dtype, request.arguments[:-1], lanes, target)


# -- text


def _register(dtype: str, lanes: int, number: int) -> tuple[str, str]:
    """Type and constraint of an operand."""
    if dtype == "bool":
        return f"i{max(lanes, 16)}", f"{{k{number}}}"
    size = lanes * dtypes.itemsize(dtype)
    return f"<{lanes} x {held_type(dtype)}>", f"{{{'zmm' if size == 64 else 'ymm'}{number}}}"


def _bytes(lanes: int, number: int) -> tuple[str, str]:
    """The same for bools as bytes."""
    return f"<{max(lanes, 16)} x i8>", f"{{{'zmm' if lanes == 64 else 'xmm'}{number}}}"


def _place(dtype: str, number: int) -> int:
    return ARGUMENTS[dtype == "bool"][number]


OCCUPIED = 16, 8  # low vector registers; the second where the first leaves too few


def _write(request: Request, name: str, module: Module, occupied: int) -> None:
    """One function: arguments appear in their registers, the result is wanted in its own, and the arguments are wanted once more."""
    how, lanes = request.step.op, request.key[3]
    f = Function(module, f"define void @{name}() nounwind")
    low = "{ " + ", ".join(["<16 x float>"] * occupied) + " }"
    held = f.op(f'call {low} asm sideeffect "", "{",".join(f"={{zmm{i}}}" for i in range(occupied))}"()')
    wanted = [("<16 x float>", f"{{zmm{i}}}", f.op(f"extractvalue {low} {held}, {i}")) for i in range(occupied)]
    values = []
    for i, dtype in enumerate(request.arguments):
        t, constraint = _bytes(lanes, 16) if how == "load" else _register(dtype, lanes, _place(dtype, i))
        ref = f.op(f'call {t} asm sideeffect "", "={constraint}"()')
        wanted.append((t, constraint, ref))
        values.append(Value(dtype, _narrowed(f, f.op(f"bitcast {t} {ref} to <{max(lanes, 16)} x i1>"), lanes) if dtype == "bool" and how != "load" else ref))
    e = _Vector(f, lanes)
    if request.key[4] == HOLE:
        e.hole = values.pop()
    else:
        e.numbers = frozenset(values[i].ref for i in request.key[4])
    t, constraint, ref = _result(e, request, values)
    wanted.append((t, constraint, ref))
    f.do(f'call void asm sideeffect "", "{",".join(c for _, c, _ in wanted)}"({", ".join(f"{t} {ref}" for t, _, ref in wanted)})')
    f.do("ret void")
    module.add(f)


def _result(e: _Vector, request: Request, values: list[Value]) -> tuple[str, str, str]:
    f, how, lanes = e.f, request.step.op, request.key[3]
    if how == "load":
        t, _ = _bytes(lanes, 0)
        ref = f.op(f"icmp ne {t} {values[0].ref}, zeroinitializer")
        ref = _narrowed(f, ref, lanes)
    elif how == "store":
        t, constraint = _bytes(lanes, RESULT[0])
        ref = _widened(f, values[0].ref, lanes)
        return t, constraint, f.op(f"zext <{max(lanes, 16)} x i1> {ref} to {t}")
    else:
        ref = emit_step(e, request.step, values).ref
    dtype = request.step.dtype
    t, constraint = _register(dtype, lanes, RESULT[dtype == "bool"])
    return t, constraint, f.op(f"bitcast <{max(lanes, 16)} x i1> {_widened(f, ref, lanes)} to {t}") if dtype == "bool" else ref


def _narrowed(f: Function, mask: str, lanes: int) -> str:
    """The low lanes of a mask of 16."""
    order = ", ".join(f"i32 {i}" for i in range(lanes))
    return mask if lanes >= 16 else f.op(f"shufflevector <16 x i1> {mask}, <16 x i1> poison, <{lanes} x i32> <{order}>")


def _widened(f: Function, mask: str, lanes: int) -> str:
    """A mask of 16 whose other lanes are anything."""
    order = ", ".join(f"i32 {i if i < lanes else 'poison'}" for i in range(16))
    return mask if lanes >= 16 else f.op(f"shufflevector <{lanes} x i1> {mask}, <{lanes} x i1> poison, <16 x i32> <{order}>")


# -- machine code


class Pool:
    """The constants that stencils read, each once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._at: dict[bytes, int] = {}

    def place(self, constant: bytes) -> int:
        at = self._at.get(constant)
        if at is None:
            self.data += bytes(-len(self.data) % len(constant))
            at = self._at[constant] = len(self.data)
            self.data += constant
        return at


POOL_REGISTER = 11  # the general register that holds the pool's address


def build(wanted: Sequence[Request], target: Target, pool: Pool) -> dict[Key, Record]:
    """Compile some stencils; those that cannot be one are left out."""
    out: dict[Key, Record] = {}
    for occupied in OCCUPIED:
        out |= _build([r for r in wanted if r.key not in out], target, pool, occupied)
    return out


def _build(wanted: Sequence[Request], target: Target, pool: Pool, occupied: int) -> dict[Key, Record]:
    module, named = Module(target), {}
    for n, request in enumerate(wanted):
        part = Module(target)
        try:
            _write(request, f"s{n}", part, occupied)
        except BcvmError:
            continue
        if not part.has_helpers():  # they are for calls
            _write(request, f"s{n}", module, occupied)
            named[f"s{n}"] = request
    if not named:
        return {}
    code = elf.read(llvm.compile_ir(module.text(), replace(target, features=target.features + ",-vzeroupper")))
    relocations: dict[int, dict[int, tuple[int, int]]] = {}
    for s in code.sections:
        if s.kind == elf.SHT_RELA:
            relocations.setdefault(s.info, {}).update({at: (symbol, addend) for at, _, symbol, addend in code.relocations(s)})
    symbols = sorted((s.section, s.value, s.name) for s in code.symbols if s.name in named)
    out = {}
    for n, (section, start, name) in enumerate(symbols):
        s = code.sections[section]
        end = symbols[n + 1][1] if n + 1 < len(symbols) and symbols[n + 1][0] == section else s.size
        text = code.data[s.offset + start:s.offset + end]
        request = named[name]
        try:
            out[request.key] = _extract(text, request, code, start, relocations.get(section, {}), pool, occupied, cost_of(request, target))
        except Unsupported:
            continue
    return out


def _extract(text: bytes, request: Request, code: elf.Elf, start: int, relocations: dict[int, tuple[int, int]], pool: Pool, lowest: int,
             cost: int) -> Record:
    instructions = decode(text + bytes(6), lowest)
    arguments = len(request.arguments)
    roles: dict[tuple[bool, int], int] = {}  # (vector?, register) -> role
    for i, dtype in enumerate(request.arguments):
        mask = dtype == "bool" and request.step.op != "load"
        roles[not mask, ARGUMENTS[mask][i]] = i
    mask = request.step.dtype == "bool" and request.step.op != "store"
    roles[not mask, RESULT[mask]] = arguments
    last, first = [-1] * arguments, len(instructions)
    for n, one in enumerate(instructions):
        for vector, number, _, _ in one.fields:
            role = roles.setdefault((vector, number), len(roles))
            if role < arguments:
                last[role] = n
            elif role == arguments:
                first = min(first, n)
    if first == len(instructions):
        raise Unsupported("a result that nothing writes")
    kinds = "".join("v" if vector else "k" for vector, _ in roles)
    shares = tuple(i for i, at in enumerate(last) if at <= first and kinds[i] == kinds[arguments])
    constants: dict[int, tuple[int, int]] = {}  # instruction -> place and size of its constant
    for n, one in enumerate(instructions):
        if one.constant >= 0:
            symbol, addend = relocations[start + one.constant]
            constant = _constant(code, symbol, addend + one.at + one.size - one.constant)
            constants[n] = pool.place(constant), len(constant)
    plain, pinned = _Writer(roles), _Writer(roles)
    possible = bool(constants)
    for n, one in enumerate(instructions):
        plain.add(text[one.at:one.at + one.size], one, constants.get(n))
        possible = possible and pinned.add_pinned(text[one.at:one.at + one.size], one, constants.get(n))
    return Record(kinds, arguments, len(instructions), cost, shares, bool(constants), plain.code(), pinned.code() if possible else None)


class _Writer:
    """Instructions with register 0 in all fields, and where the fields are."""

    def __init__(self, roles: dict[tuple[bool, int], int]) -> None:
        self.roles, self.out, self.fields = roles, bytearray(), array("H")
        self.constants: dict[tuple[int, int], int] = {}

    def add(self, text: bytes, one: Instruction, constant: tuple[int, int] | None) -> None:
        at, new = len(self.out), bytearray(text)
        for vector, number, kind, place in one.fields:
            self._clear(new, place - one.at, kind, number)
            self.fields.extend((self.roles[vector, number], kind, place - one.at + at))
        if constant is not None:
            new[1] &= ~0x20  # the base register's fourth bit
            new[5] = new[5] & 0x38 | 0x80 | POOL_REGISTER & 7
            struct.pack_into("<i", new, one.constant - one.at, constant[0])
        self.out += new

    def add_pinned(self, text: bytes, one: Instruction, constant: tuple[int, int] | None) -> bool:
        """With the constant in a register; False where the instruction has no such form."""
        if constant is None:
            self.add(text, one, None)
            return True
        new = bytearray(text)
        table, opcode, broadcast = new[1] & 7, new[4], new[3] & 0x10
        if table == 2 and opcode in (0x18, 0x19, 0x58, 0x59):  # a broadcast: now a move, of what is in all lanes already
            new[1], new[2], new[4] = new[1] & ~7 | 1, new[2] & 0x7C | (0x81 if constant[1] == 8 else 0), 0x28
        elif not broadcast and not (table == 1 and opcode in (0x10, 0x28, 0x6F)):
            return False
        new[3] &= ~0x10
        new[5] |= 0xC0
        new[5] &= ~7
        del new[one.constant - one.at:one.constant - one.at + 4]
        at = len(self.out)
        for vector, number, kind, place in one.fields:
            self._clear(new, place - one.at, kind, number)
            self.fields.extend((self.roles[vector, number], kind, place - one.at + at))
        role = len(self.roles) + self.constants.setdefault(constant, len(self.constants))
        self.fields.extend((role, RM, at))
        self.out += new
        return True

    @staticmethod
    def _clear(new: bytearray, at: int, kind: int, number: int) -> None:
        for i, b in enumerate(PATTERNS[kind][number].to_bytes(6, "little")):
            if b:
                new[at + i] ^= b

    def code(self) -> Code:
        return Code(bytes(self.out), self.fields.tobytes(), tuple(self.constants))


def _constant(code: elf.Elf, symbol: int, offset: int) -> bytes:
    s = code.sections[code.symbols[symbol].section]
    at = s.offset + code.symbols[symbol].value + offset
    size = next((n for n in (4, 8, 16, 32) if s.name.startswith(f".rodata.cst{n}")), 64)
    if at + size > s.offset + s.size:
        raise CompileError("a constant that ends beyond its section")
    return code.data[at:at + size]
