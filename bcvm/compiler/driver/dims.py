"""Dims at run time: each is computed once per dominating position, from the sizes and ints bound to its atoms."""
from __future__ import annotations

from collections.abc import Sequence

from bcvm.compiler.driver.emitter import Emitter, is_literal
from bcvm.errors import CompileError
from bcvm.shapes.dim import Atom, Dim


def single_atom(d: Dim) -> Atom | None:
    """The atom if the dim is that atom and nothing else."""
    if len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1 and d.terms[0][0][0][1] == 1:
        return d.terms[0][0][0][0]
    return None


def bind(e: Emitter, d: Dim, value: str) -> None:
    """This dim has this value from here on."""
    if d.is_const:
        return
    atom = single_atom(d)
    if atom is not None:
        e.know(("atom", atom), value)
    e.know(("dim", d), value)


def is_bound(e: Emitter, d: Dim) -> bool:
    """Whether the dim can be computed here."""
    if e.known(("dim", d)) is not None:
        return True
    return all(_atom_bound(e, a) for a in d.atoms())


def _atom_bound(e: Emitter, atom: Atom) -> bool:
    if e.known(("atom", atom)) is not None:
        return True
    return atom.kind not in ("symbol", "opaque") and all(is_bound(e, a) for a in atom.args)


def value(e: Emitter, d: Dim) -> str:
    """The operand that holds a dim."""
    if d.value is not None:
        return str(d.value)
    return str(e.memo(("dim", d), lambda: _polynomial(e, d)))


def values(e: Emitter, dims: Sequence[Dim]) -> list[str]:
    return [value(e, d) for d in dims]


def _polynomial(e: Emitter, d: Dim) -> str:
    total = "0"
    for monomial, c in d.terms:
        term = str(c) if not monomial else "1"
        for atom, power in monomial:
            for _ in range(power):
                term = e.mul(term, _atom(e, atom))
        if monomial and c == -1:
            total = e.sub(total, term)
            continue
        if monomial and c != 1:
            term = e.mul(term, str(c))
        total = e.add(total, term)
    return total


def _atom(e: Emitter, atom: Atom) -> str:
    return str(e.memo(("atom", atom), lambda: _compute(e, atom)))


def _compute(e: Emitter, atom: Atom) -> str:
    if atom.kind in ("symbol", "opaque"):
        raise CompileError(f"the size {atom} is used where nothing defines it")
    args = values(e, atom.args)
    if atom.kind == "floordiv":
        return floordiv(e, args[0], args[1], atom.args[0].interval()[0] >= 0, atom.args[1].interval()[0] > 0)
    if atom.kind == "mod":
        return e.sub(args[0], e.mul(floordiv(e, args[0], args[1], atom.args[0].interval()[0] >= 0, atom.args[1].interval()[0] > 0), args[1]))
    out = args[0]
    for a in args[1:]:
        if atom.kind == "bcast":
            out = e.select(e.compare("eq", out, "1"), a, out)
        else:
            out = e.select(e.compare("slt" if atom.kind == "min" else "sgt", a, out), a, out)
    return out


def floordiv(e: Emitter, a: str, b: str, a_natural: bool = False, b_positive: bool = False) -> str:
    """Floor division that never traps: a divisor of 0 gives whatever; callers check where that can be."""
    if is_literal(a) and is_literal(b) and b != "0":
        return str(int(a) // int(b))
    if not b_positive and not (is_literal(b) and int(b) > 0):
        # A divisor of 0, or -1 with the least int, would trap: negation is written as such.
        minus = e.compare("eq", b, "-1")
        safe = e.select(e.either(minus, e.compare("eq", b, "0")), "1", b)
        q = _floor(e, a, safe)
        return e.select(minus, e.sub("0", a), q)
    if a_natural:
        if is_literal(b) and int(b) & (int(b) - 1) == 0:
            return e.op(f"lshr i64 {a}, {int(b).bit_length() - 1}") if b != "1" else a
        return e.op(f"udiv i64 {a}, {b}")
    if is_literal(b) and int(b) & (int(b) - 1) == 0:
        return e.op(f"ashr i64 {a}, {int(b).bit_length() - 1}") if b != "1" else a
    return _floor(e, a, b)


def _floor(e: Emitter, a: str, b: str) -> str:
    q = e.op(f"sdiv i64 {a}, {b}")
    r = e.sub(a, e.mul(q, b))
    inexact = e.compare("ne", r, "0")
    signs = e.compare("slt", e.op(f"xor i64 {r}, {b}"), "0")
    return e.select(e.both(inexact, signs), e.sub(q, "1"), q)


def modulo(e: Emitter, a: str, b: str) -> str:
    """Python's remainder; the divisor is not 0."""
    return e.sub(a, e.mul(floordiv(e, a, b), b))
