"""Instructions of AVX-512 that LLVM's IR has no words for."""
from __future__ import annotations

from collections.abc import Sequence

from bcvm.compiler.kernels.vector import Value, Vector, held_type, literal

TABLE = 32  # numbers that two registers hold


def suffix(e: Vector, dtype: str) -> str | None:
    """The suffix of the float intrinsics for this many lanes, if there are any."""
    bits = e.lanes * (64 if dtype == "float64" else 32)
    return f"{'pd' if dtype == 'float64' else 'ps'}.{bits}" if e.target.avx512 and bits in (128, 256, 512) else None


def masked(e: Vector, name: str, form: str, x: Value, *extra: tuple[str, str]) -> Value:
    """An intrinsic of this suffix with all lanes on: (x, extra..., passthru, mask[, rounding])."""
    t, full = e.type_of(x.dtype), f"llvm.x86.avx512.mask.{name}.{form}"
    mask = f"i{max(8, e.lanes)}"
    operands = [(t, e.hoisted(x.ref, held_type(x.dtype))), *extra, (t, "zeroinitializer"), (mask, "-1")]
    if form.endswith("512"):
        operands.append(("i32", "4"))
    e.f.module.declare(t, full, ", ".join(a for a, _ in operands))
    return Value(x.dtype, e.f.op(f"call {t} @{full}({', '.join(f'{a} {b}' for a, b in operands)})"))


def has_tables(e: Vector, dtype: str) -> bool:
    """Whether there is `lookup`."""
    return dtype == "float32" and suffix(e, dtype) == "ps.512"


def lookup(e: Vector, table: Sequence[float], index: str) -> Value:
    """table[index % 32] of each lane; index: numbers of 32 bits. The two halves of the table lie in registers."""
    half, t, name = TABLE // 2, e.ty("float"), "llvm.x86.avx512.vpermi2var.ps.512"
    low, high = (e.f.hoisted("float", half, "<" + ", ".join(f"float {literal(v, 'float32')}" for v in table[i:i + half]) + ">") for i in (0, half))
    e.f.module.declare(t, name, f"{t}, {e.ty('i32')}, {t}")
    return Value("float32", e.f.op(f"call {t} @{name}({t} {low}, {e.ty('i32')} {index}, {t} {high})"))
