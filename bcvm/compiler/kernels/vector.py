"""Lane-wise expressions over LLVM vectors: the compiler's `VectorBuilder`.

How a dtype is held in registers: bool as i1, float16 and bfloat16 as the float of the same value (each arithmetic result is rounded
to the narrow type, which equals arithmetic in it), all others as themselves. In memory bool is a byte, half types are 16-bit words.
Nothing here is poison or undefined, whatever the operands.
"""
from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.compiler.kernels.text import Function
from bcvm.errors import Unsupported

HALF = ("float16", "bfloat16")
_HELD = {"bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64",
         "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
_SHORT = {"float": "f32", "double": "f64", "half": "f16"}
_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_BY_CONSTANT = ("shl", "lshr", "ashr", "mul", "udiv", "sdiv", "urem", "srem")  # have better forms where an operand is known
_ZERO = ("0", "0x0000000000000000")
_BITS = {"float": 32, "double": 64, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def held_size(dtype: str) -> int:
    """Bytes of a lane in a register (a bool counts as the byte it is in memory)."""
    return 4 if dtype in HALF else dtypes.itemsize(dtype)


def held_type(dtype: str) -> str:
    """The scalar LLVM type that holds the dtype in a register."""
    if dtype not in _HELD:
        raise Unsupported(f"no kernels for {dtype}")
    return _HELD[dtype]


def element_type(dtype: str) -> str:
    """The scalar LLVM type of an element in memory."""
    return "i8" if dtype == "bool" else "i16" if dtype in HALF else held_type(dtype)


def literal(value: float | int | bool, dtype: str) -> str:
    """An LLVM constant: floats by their bits, rounded to the dtype; integers wrap."""
    ty = held_type(dtype)
    if ty in ("float", "double"):
        v = float(value)
        if dtype == "bfloat16":
            v = _round_bfloat16(v)
        elif ty == "float":
            short = "<e" if dtype == "float16" else "<f"
            try:
                (v,) = struct.unpack(short, struct.pack(short, v))
            except OverflowError:
                v = math.copysign(math.inf, v)
        if v != v:
            return "0x7FF8000000000000"
        return f"0x{struct.unpack('<Q', struct.pack('<d', v))[0]:016X}"
    if ty == "i1":
        return "true" if value else "false"
    bits = _BITS[ty]
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


@lru_cache(maxsize=4096, typed=True)
def _literal(value: float | int | bool, dtype: str) -> str:
    return literal(value, dtype)


def _round_bfloat16(v: float) -> float:
    with np.errstate(over="ignore"):
        bits = int(np.float32(v).view(np.uint32))
    if v != v or math.isinf(v):
        return v
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


def _age(v: Value) -> int:
    """Of values, later ones are younger; constants are the oldest."""
    return -int(v.ref[2:]) if v.ref.startswith("%v") else 1


class Value(NamedTuple):
    """A lane-wise value: an operand text of the LLVM type that its dtype and number of lanes have."""

    dtype: str
    ref: str


class Vector:
    """A VectorBuilder that writes into a function. lanes = 1 is scalar code."""

    def __init__(self, function: Function, lanes: int) -> None:
        self.f = function
        self.lanes = lanes
        self.target = function.module.target
        self._intrinsics: dict[tuple[str, str, int], tuple[str, str]] = {}

    # -- types and raw instructions

    def ty(self, scalar: str) -> str:
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

    def type_of(self, dtype: str) -> str:
        return self.ty(held_type(dtype))

    def splat(self, text: str, scalar: str) -> str:
        """A constant in all lanes."""
        return text if self.lanes == 1 else f"splat ({scalar} {text})"

    def integer(self, value: int, scalar: str) -> str:
        bits = _BITS[scalar]
        wrapped = value & ((1 << bits) - 1)
        return self.splat(str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped), scalar)

    def _i32(self, value: int) -> str:
        return self.integer(value, "i32")

    def raw(self, text: str, scalar: str, *operands: str) -> str:
        """`text type a, b`."""
        if self.f.hoists and text not in _BY_CONSTANT:
            operands = tuple([self.hoisted(o, scalar) for o in operands])
        return self.f.op(f"{text} {self.ty(scalar)} {', '.join(operands)}")

    def hoisted(self, ref: str, scalar: str) -> str:
        """An operand, in a register all along if it is a constant and no zero, which costs nothing."""
        if not ref.startswith("splat") or not self.f.hoists or scalar == "i1":
            return ref
        text = ref[ref.index(" ", len("splat (")) + 1:-1]
        return ref if text in _ZERO else self.f.hoisted(scalar, self.lanes, text)

    def convert(self, how: str, ref: str, a: str, b: str) -> str:
        return self.f.op(f"{how} {self.ty(a)} {ref} to {self.ty(b)}")

    def choose(self, c: str, a: str, b: str, scalar: str) -> str:
        t = self.ty(scalar)
        return self.f.op(f"select {self.ty('i1')} {c}, {t} {self.hoisted(a, scalar)}, {t} {self.hoisted(b, scalar)}")

    def suffix(self, scalar: str) -> str:
        short = _SHORT.get(scalar, scalar)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    def intrinsic(self, name: str, scalar: str, *operands: str) -> str:
        """A unary or n-ary intrinsic whose operands and result have one type."""
        key = (name, scalar, len(operands))
        known = self._intrinsics.get(key)
        if known is None:
            known = self._intrinsics[key] = self.ty(scalar), f"llvm.{name}.{self.suffix(scalar)}"
            self.f.module.declare(*known, ", ".join([known[0]] * len(operands)))
        t, full = known
        return self.f.op(f"call {t} @{full}({', '.join([f'{t} {self.hoisted(o, scalar)}' for o in operands])})")

    def any(self, mask: str) -> str:
        """Whether any lane of an i1 vector is set."""
        if self.lanes == 1:
            return mask
        bits = self.f.op(f"bitcast {self.ty('i1')} {mask} to i{self.lanes}")
        return self.f.op(f"icmp ne i{self.lanes} {bits}, 0")

    def broadcast(self, v: Value) -> Value:
        """A scalar of another builder of this function, in all lanes."""
        if self.lanes == 1:
            return v
        s, t = held_type(v.dtype), self.type_of(v.dtype)
        one = self.f.op(f"insertelement {t} zeroinitializer, {s} {v.ref}, i64 0")
        return Value(v.dtype, self.f.op(f"shufflevector {t} {one}, {t} zeroinitializer, <{self.lanes} x i32> zeroinitializer"))

    # -- memory

    def load(self, dtype: str, at: str, mask: str | None = None) -> Value:
        """Unit-stride elements; lanes that the mask clears are 0 and not touched."""
        memory, size = element_type(dtype), dtypes.itemsize(dtype)
        t = self.ty(memory)
        if mask is None:
            ref = self.f.op(f"load {t}, ptr {at}, align {size}")
        else:
            name = f"llvm.masked.load.{self.suffix(memory)}.p0"
            self.f.module.declare(t, name, f"ptr, i32, {self.ty('i1')}, {t}")
            ref = self.f.op(f"call {t} @{name}(ptr {at}, i32 {size}, {self.ty('i1')} {mask}, {t} zeroinitializer)")
        return self.from_memory(dtype, ref)

    def store(self, v: Value, at: str, mask: str | None = None) -> None:
        memory, size = element_type(v.dtype), dtypes.itemsize(v.dtype)
        t, ref = self.ty(memory), self.to_memory(v)
        if mask is None:
            self.f.do(f"store {t} {ref}, ptr {at}, align {size}")
            return
        name = f"llvm.masked.store.{self.suffix(memory)}.p0"
        self.f.module.declare("void", name, f"{t}, ptr, i32, {self.ty('i1')}")
        self.f.do(f"call void @{name}({t} {ref}, ptr {at}, i32 {size}, {self.ty('i1')} {mask})")

    def from_memory(self, dtype: str, ref: str) -> Value:
        if dtype == "bool":
            ref = self.raw("icmp ne", "i8", ref, self.integer(0, "i8"))
        elif dtype == "float16":
            ref = self._from_half(ref)
        elif dtype == "bfloat16":
            wide = self.raw("shl", "i32", self.convert("zext", ref, "i16", "i32"), self.integer(16, "i32"))
            ref = self.convert("bitcast", wide, "i32", "float")
        return Value(dtype, ref)

    def to_memory(self, v: Value) -> str:
        if v.dtype == "bool":
            return self.convert("zext", v.ref, "i1", "i8")
        if v.dtype == "float16":
            return self._to_half(v.ref)
        if v.dtype == "bfloat16":
            bits = self.convert("bitcast", v.ref, "float", "i32")
            return self.convert("trunc", self.raw("lshr", "i32", bits, self.integer(16, "i32")), "i32", "i16")
        return v.ref

    # -- half types

    def _from_half(self, ref: str) -> str:
        if self.target.vector_bytes >= 32:
            return self.convert("fpext", self.convert("bitcast", ref, "i16", "half"), "half", "float")
        wide = self.convert("zext", ref, "i16", "i32")  # a denormal is normalised by an exact multiplication
        k = self._i32
        magnitude = self.raw("shl", "i32", self.raw("and", "i32", wide, k(0x7FFF)), k(13))
        scaled = self.raw("fmul", "float", self.convert("bitcast", magnitude, "i32", "float"), self.splat(literal(2.0 ** 112, "float32"), "float"))
        special = self.raw("icmp uge", "i32", magnitude, k(0x7C00 << 13))
        bits = self.convert("bitcast", scaled, "float", "i32")
        bits = self.choose(special, self.raw("or", "i32", magnitude, k(0x7F800000)), bits, "i32")
        sign = self.raw("shl", "i32", self.raw("and", "i32", wide, k(0x8000)), k(16))
        return self.convert("bitcast", self.raw("or", "i32", bits, sign), "i32", "float")

    def _to_half(self, ref: str) -> str:
        """Round half to even. Without F16C by integer arithmetic, a denormal by an addition that rounds at its last bit."""
        if self.target.vector_bytes >= 32:
            return self.convert("bitcast", self.convert("fptrunc", ref, "float", "half"), "half", "i16")
        k = self._i32
        bits = self.convert("bitcast", ref, "float", "i32")
        sign = self.raw("and", "i32", bits, k(0x80000000))
        magnitude = self.raw("xor", "i32", bits, sign)
        odd = self.raw("and", "i32", self.raw("lshr", "i32", magnitude, k(13)), k(1))
        normal = self.raw("lshr", "i32", self.raw("add", "i32", self.raw("add", "i32", magnitude, k(((15 - 127) << 23) + 0xFFF)), odd), k(13))
        half = self.splat(literal(0.5, "float32"), "float")
        small = self.raw("fadd", "float", self.convert("bitcast", magnitude, "i32", "float"), half)
        small = self.raw("sub", "i32", self.convert("bitcast", small, "float", "i32"), k(0x3F000000))
        special = self.choose(self.raw("icmp ugt", "i32", magnitude, k(0x7F800000)), k(0x7E00), k(0x7C00), "i32")
        out = self.choose(self.raw("icmp ult", "i32", magnitude, k(113 << 23)), small, normal, "i32")
        out = self.choose(self.raw("icmp uge", "i32", magnitude, k(143 << 23)), special, out, "i32")
        return self.convert("trunc", self.raw("or", "i32", out, self.raw("lshr", "i32", sign, k(16))), "i32", "i16")

    def _narrow(self, dtype: str, ref: str) -> Value:
        """A float result rounded to the dtype."""
        if dtype == "float16":
            ref = self._from_half(self._to_half(ref))
        elif dtype == "bfloat16":
            k = self._i32
            bits = self.convert("bitcast", ref, "float", "i32")
            odd = self.raw("and", "i32", self.raw("lshr", "i32", bits, k(16)), k(1))
            rounded = self.raw("add", "i32", self.raw("add", "i32", bits, k(0x7FFF)), odd)
            rounded = self.choose(self.raw("fcmp uno", "float", ref, ref), k(0x7FC00000), rounded, "i32")
            ref = self.convert("bitcast", self.raw("and", "i32", rounded, k(-65536)), "i32", "float")
        return Value(dtype, ref)

    def _float(self, how: str, *values: Value) -> Value:
        dtype = values[0].dtype
        ref = self.raw(how, held_type(dtype), *[v.ref for v in values])
        return self._narrow(dtype, ref) if dtype in HALF else Value(dtype, ref)

    def _int(self, how: str, a: Value, b: Value) -> Value:
        return Value(a.dtype, self.raw(how, held_type(a.dtype), a.ref, b.ref))

    # -- VectorBuilder

    def const(self, value: float | int | bool, dtype: str) -> Value:
        text = _literal(value, dtype) if value else literal(value, dtype)  # 0.0 and -0.0 are one key
        return Value(dtype, self.splat(text, held_type(dtype)))

    def add(self, a: Value, b: Value) -> Value:
        if a.dtype == "bool":
            return self.bit("or", a, b)
        return self._float("fadd", a, b) if dtypes.is_float(a.dtype) else self._int("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self._float("fsub", a, b) if dtypes.is_float(a.dtype) else self._int("xor" if a.dtype == "bool" else "sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        if a.dtype == "bool":
            return self.bit("and", a, b)
        return self._float("fmul", a, b) if dtypes.is_float(a.dtype) else self._int("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self._float("fdiv", a, b)

    def neg(self, a: Value) -> Value:
        if dtypes.is_float(a.dtype):
            return Value(a.dtype, self.raw("fneg", held_type(a.dtype), a.ref))
        return self.sub(self.const(0, a.dtype), a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """One rounding where the machine has FMA, else a product and a sum."""
        if not dtypes.is_float(a.dtype):
            return self.add(self.mul(a, b), c)
        if _age(b) < _age(a):  # the instruction writes over its first operand, and what is newer is more likely not to be needed any more
            a, b = b, a
        name = "fma" if self.target.fma else "fmuladd"
        return self._narrow(a.dtype, self.intrinsic(name, held_type(a.dtype), a.ref, b.ref, c.ref))

    def floordiv(self, a: Value, b: Value) -> Value:
        from bcvm.compiler.kernels import division
        return division.floordiv(self, a, b)

    def mod(self, a: Value, b: Value) -> Value:
        from bcvm.compiler.kernels import division
        return division.mod(self, a, b)

    def _extreme(self, how: str, a: Value, b: Value) -> str:
        """a where it wins, else b; b where either is NaN, or both are 0. One instruction."""
        s = held_type(a.dtype)
        return self.choose(self.raw(f"fcmp o{how}", s, a.ref, b.ref), a.ref, b.ref, s)

    def is_number(self, v: Value) -> bool:
        """Whether a float is a constant and no NaN."""
        return v.ref.startswith(("splat", "0x")) and "0x7FF8" not in v.ref

    def _pick(self, how: str, a: Value, b: Value, nan: bool) -> Value:
        if a.dtype == "bool":
            return self.bit("or" if how == "gt" else "and", a, b)
        if not dtypes.is_float(a.dtype):
            return self.select(self.compare(how, a, b), a, b)
        s = held_type(a.dtype)
        if nan and self.is_number(b):
            if b.ref in (self.const(0.0, a.dtype).ref, self.const(-0.0, a.dtype).ref):  # of two zeros it is the second, as in NumPy
                return Value(a.dtype, self.choose(self.raw(f"fcmp u{how}", s, a.ref, b.ref), a.ref, b.ref, s))
            return Value(a.dtype, self._extreme(how, b, a))  # one instruction, operands swapped
        first = self._extreme(how, a, b)
        if nan:
            return Value(a.dtype, self.choose(self.raw("fcmp uno", s, a.ref, a.ref), a.ref, first, s))
        return Value(a.dtype, self.choose(self.raw("fcmp uno", s, b.ref, b.ref), a.ref, first, s))

    def minimum(self, a: Value, b: Value) -> Value:
        return self._pick("lt", a, b, True)

    def maximum(self, a: Value, b: Value) -> Value:
        return self._pick("gt", a, b, True)

    def fmin(self, a: Value, b: Value) -> Value:
        return self._pick("lt", a, b, False)

    def fmax(self, a: Value, b: Value) -> Value:
        return self._pick("gt", a, b, False)

    def abs(self, a: Value) -> Value:
        if dtypes.is_float(a.dtype):
            return Value(a.dtype, self.intrinsic("fabs", held_type(a.dtype), a.ref))
        if dtypes.kind(a.dtype) != "i":
            return a
        return self.select(self.compare("lt", a, self.const(0, a.dtype)), self.neg(a), a)

    def sqrt(self, a: Value) -> Value:
        return self._narrow(a.dtype, self.intrinsic("sqrt", held_type(a.dtype), a.ref))

    def copysign(self, a: Value, b: Value) -> Value:
        return Value(a.dtype, self.intrinsic("copysign", held_type(a.dtype), a.ref, b.ref))

    def rounding(self, mode: str, a: Value) -> Value:
        if not dtypes.is_float(a.dtype):
            return a
        s = held_type(a.dtype)
        if self.target.vector_bytes >= 32:
            return Value(a.dtype, self.intrinsic({"rint": "roundeven"}.get(mode, mode), s, a.ref))
        work = Value("float64" if s == "double" else "float32", a.ref)  # no rounding instruction before SSE4.1: add and subtract 2^(mantissa bits)
        magic = self.const(2.0 ** (52 if s == "double" else 23), work.dtype)
        size = self.abs(work)
        near = self.sub(self.add(size, magic), magic)
        one = self.const(1, work.dtype)
        if mode == "trunc":
            near = self.select(self.compare("gt", near, size), self.sub(near, one), near)
        signed = self.copysign(near, work)
        if mode == "floor":
            signed = self.copysign(self.select(self.compare("gt", signed, work), self.sub(signed, one), signed), work)
        elif mode == "ceil":
            signed = self.copysign(self.select(self.compare("lt", signed, work), self.add(signed, one), signed), work)
        small = self.compare("lt", size, magic)
        return Value(a.dtype, self.select(small, signed, work).ref)

    def compare(self, how: str, a: Value, b: Value) -> Value:
        s = held_type(a.dtype)
        if dtypes.is_float(a.dtype):
            return Value("bool", self.raw(f"fcmp {_COMPARE[how]}", s, a.ref, b.ref))
        sign = "" if how in ("eq", "ne") else "s" if dtypes.kind(a.dtype) == "i" else "u"
        return Value("bool", self.raw(f"icmp {sign}{how}", s, a.ref, b.ref))

    def select(self, c: Value, a: Value, b: Value) -> Value:
        return Value(a.dtype, self.choose(c.ref, a.ref, b.ref, held_type(a.dtype)))

    def bit(self, how: str, a: Value, b: Value) -> Value:
        if how in ("and", "or", "xor"):
            return self._int(how, a, b)
        s = held_type(a.dtype)
        last = self.integer(_BITS[s] - 1, s)
        inside = self.raw("icmp ule", s, b.ref, last)
        signed = how == "shr" and dtypes.kind(a.dtype) == "i"
        count = self.choose(inside, b.ref, last if signed else self.integer(0, s), s)
        shifted = self.raw({"shl": "shl", "shr": "ashr" if signed else "lshr"}[how], s, a.ref, count)
        return Value(a.dtype, shifted if signed else self.choose(inside, shifted, self.integer(0, s), s))

    def invert(self, a: Value) -> Value:
        return Value(a.dtype, self.raw("xor", held_type(a.dtype), a.ref, self.const(-1 if a.dtype != "bool" else True, a.dtype).ref))

    def math(self, name: str, *values: Value) -> Value:
        from bcvm.compiler.kernels import math as functions
        return functions.emit(self, name, *values)

    # -- casts

    def cast(self, a: Value, dtype: str) -> Value:
        """As NumPy's astype on x86: a float out of an integer's range gives what the processor's conversion gives."""
        if a.dtype == dtype:
            return a
        s, d = held_type(a.dtype), held_type(dtype)
        if dtype == "bool":
            return self.compare("ne", a, self.const(0, a.dtype))
        if dtypes.is_float(a.dtype):
            return self._float_to_float(a, dtype) if dtypes.is_float(dtype) else self._float_to_int(a, dtype)
        if dtypes.is_float(dtype):
            return self._narrow(dtype, self.convert("sitofp" if dtypes.kind(a.dtype) == "i" else "uitofp", a.ref, s, d))
        if _BITS[s] == _BITS[d]:
            return Value(dtype, a.ref)
        how = "trunc" if _BITS[s] > _BITS[d] else "sext" if dtypes.kind(a.dtype) == "i" else "zext"
        return Value(dtype, self.convert(how, a.ref, s, d))

    def _float_to_float(self, a: Value, dtype: str) -> Value:
        if a.dtype != "float64":
            wide = a.ref if dtype != "float64" else self.convert("fpext", a.ref, "float", "double")
            return self._narrow(dtype, wide)
        near = self.convert("fptrunc", a.ref, "double", "float")
        if dtype == "float32":
            return Value(dtype, near)
        # Rounded to odd first, so that the second rounding is the only one that counts.
        back = self.convert("fpext", near, "float", "double")
        k = self._i32
        bits = self.convert("bitcast", near, "float", "i32")
        too_far = self.raw("fcmp ogt", "double", self.intrinsic("fabs", "double", back), self.intrinsic("fabs", "double", a.ref))
        bits = self.choose(too_far, self.raw("sub", "i32", bits, k(1)), bits, "i32")
        inexact = self.raw("fcmp une", "double", back, a.ref)
        bits = self.choose(inexact, self.raw("or", "i32", bits, k(1)), bits, "i32")
        return self._narrow(dtype, self.convert("bitcast", bits, "i32", "float"))

    def _float_to_int(self, a: Value, dtype: str) -> Value:
        s, size = held_type(a.dtype), dtypes.itemsize(dtype)
        work = "float64" if s == "double" else "float32"
        if dtype == "uint64":
            half = self.splat(literal(2.0 ** 63, work), s)
            big = self.raw("fcmp oge", s, a.ref, half)
            low = self.choose(big, self.raw("fsub", s, a.ref, half), a.ref, s)
            bits = self._truncate(low, s, 63, "i64")
            return Value(dtype, self.choose(big, self.raw("xor", "i64", bits, self.integer(-1 << 63, "i64")), bits, "i64"))
        if dtype in ("int64", "uint32"):
            bits, wide = self._truncate(a.ref, s, 63, "i64"), 8
        else:
            bits, wide = self._truncate(a.ref, s, 31, "i32"), 4
        return Value(dtype, bits if size == wide else self.convert("trunc", bits, f"i{8 * wide}", f"i{8 * size}"))

    def _truncate(self, ref: str, s: str, power: int, integer: str) -> str:
        """Towards 0; the smallest integer where it does not fit."""
        work = "float64" if s == "double" else "float32"
        low = self.splat(literal(-(2.0 ** power), work), s)
        at_least = self.raw("fcmp ogt", s, ref, self.splat(literal(-(2.0 ** 31) - 1, work), s)) if s == "double" and power == 31 else self.raw("fcmp oge", s, ref, low)
        below = self.raw("fcmp olt", s, ref, self.splat(literal(2.0 ** power, work), s))
        fits = self.raw("and", "i1", at_least, below)
        return self.convert("fptosi", self.choose(fits, ref, low, s), s, integer)

    # -- parts

    def halves(self, fn: Callable[..., Value], *values: Value) -> Value:
        """fn(builder, *values) on the lower and the upper half of the lanes, joined."""
        n = self.lanes // 2
        part = Vector(self.f, n)
        results = [fn(part, *(self.part(v, i * n, n) for v in values)) for i in (0, 1)]
        t = part.type_of(results[0].dtype)
        indices = ", ".join(f"i32 {i}" for i in range(2 * n))
        if n == 1:
            full = self.type_of(results[0].dtype)
            one = self.f.op(f"insertelement {full} zeroinitializer, {t} {results[0].ref}, i64 0")
            return Value(results[0].dtype, self.f.op(f"insertelement {full} {one}, {t} {results[1].ref}, i64 1"))
        return Value(results[0].dtype, self.f.op(f"shufflevector {t} {results[0].ref}, {t} {results[1].ref}, <{2 * n} x i32> <{indices}>"))

    def part(self, v: Value, start: int, count: int) -> Value:
        t = self.type_of(v.dtype)
        if count == 1:
            return Value(v.dtype, self.f.op(f"extractelement {t} {v.ref}, i64 {start}"))
        indices = ", ".join(f"i32 {start + i}" for i in range(count))
        return Value(v.dtype, self.f.op(f"shufflevector {t} {v.ref}, {t} zeroinitializer, <{count} x i32> <{indices}>"))

    def fold(self, combine: Callable[[Any, Value, Value], Value], v: Value) -> Value:
        """All lanes combined, halves against each other: a scalar."""
        if self.lanes == 1:
            return v
        n = self.lanes // 2
        part = Vector(self.f, n)
        return part.fold(combine, combine(part, self.part(v, 0, n), self.part(v, n, n)))
