"""Declared shape hints as checks. A violation leaves to the interpreter, which raises the ShapeError that names the hint."""
from __future__ import annotations

from typing import TYPE_CHECKING

from bcvm.errors import Unsupported
from bcvm.shapes.dim import Atom, Dim
from bcvm.shapes.hint import parse_hint
from bcvm.specialise.ssa import Tree, Value
from bcvm.specialise.types import Const, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Frame, Machine


def check_hint(m: "Machine", frame: "Frame", tree: Tree, text: str, what: str, of: str) -> None:
    """Check a tensor against a hint, binding the hint's symbols in this activation. what, of: `argument` and its name."""
    if isinstance(tree, Const) and tree.value is None and what == "argument" and frame.bound.defaults.get(of, m) is None:
        return  # an argument that is left out
    if not (isinstance(tree, Value) and isinstance(tree.type, Tensor)):
        raise Unsupported(f"hint {text} on something that is not a tensor")
    dims = tree.type.dims
    want = parse_hint(text).align(len(dims))
    if want is None:
        raise Unsupported(f"rank {len(dims)} against hint {text}")
    later = []
    for i, (have, expected) in enumerate(zip(dims, want, strict=True)):
        if expected is None:
            continue
        name = symbol_name(expected)
        if name is not None and name not in frame.symbols:
            frame.symbols = {**frame.symbols, name: (f"{what} {of!r}, dim {i}", m.builder.int_of(have))}
        else:
            later.append((have, expected))
    for have, expected in later:
        value = substitute(expected, {n: m.builder.dim_of(size) for n, (_, size) in frame.symbols.items()})
        if value is None:
            raise Unsupported(f"hint {text}: a symbol is not defined by itself")
        if value is have:
            continue
        if value.value is not None and have.value is not None:
            raise Unsupported(f"size {have} against hint {text}")
        m.emit("check", how="eq", a=have, b=value)


def symbol_name(d: Dim) -> str | None:
    if len(d.terms) == 1:
        (monomial, c), = d.terms
        if c == 1 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].kind == "symbol":
            return str(monomial[0][0].args[0])
    return None


def substitute(d: Dim, symbols: dict[str, Dim]) -> Dim | None:
    """d with its symbols replaced; None if one is unknown."""
    total = Dim.const(0)
    for monomial, c in d.terms:
        term = Dim.const(c)
        for atom, power in monomial:
            value = _atom(atom, symbols)
            if value is None:
                return None
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _atom(atom: Atom, symbols: dict[str, Dim]) -> Dim | None:
    if atom.kind == "symbol":
        return symbols.get(atom.args[0])
    args = [substitute(a, symbols) for a in atom.args]
    if any(a is None for a in args):
        return None
    if atom.kind == "floordiv":
        return args[0] // args[1]  # type: ignore[operator,return-value]
    if atom.kind == "mod":
        return args[0] % args[1]  # type: ignore[operator,return-value]
    return None
