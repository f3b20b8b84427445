"""Shape hints: `[B, *, 768]`, `[1, D]`, `[..., C]`, `[2*S+1, S//2]`, and the annotation that carries one, `Tensor["B, *, 768"]`.

The grammar stands in `bcvm.bytecode.hint_text`; here a hint gets its meaning, dims over named symbols.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import EllipsisType
from typing import Any

from bcvm.bytecode import hint_text
from bcvm.errors import ShapeError
from bcvm.shapes.dim import Atom, Dim, maximum, minimum

Item = Dim | None | EllipsisType
"""A dim, None for `*` (any one size), `...` for any number of dims."""

_MAX_TERMS = 200


@dataclass(frozen=True)
class Hint:
    """A constraint template for one tensor's shape. str() is the canonical text, which parses to an equal hint."""

    items: tuple[Item, ...]

    @property
    def rank(self) -> int | None:
        """Number of dims; None if there is a `...`."""
        return None if ... in self.items else len(self.items)

    @property
    def min_rank(self) -> int:
        return sum(item is not ... for item in self.items)

    @property
    def is_unconstrained(self) -> bool:
        """It admits every shape: `...`."""
        return self.items == (...,)

    def symbols(self) -> frozenset[str]:
        """Names of the sizes it speaks of."""
        return frozenset().union(*(symbols(item) for item in self.items if isinstance(item, Dim)))

    def align(self, rank: int) -> tuple[Dim | None, ...] | None:
        """One item per dim of a tensor of this rank (`...` stands for `*`s); None if the rank does not fit."""
        spare = rank - self.min_rank
        if spare < 0 or (spare > 0 and self.rank is not None):
            return None
        return tuple(x for item in self.items for x in ((None,) * spare if isinstance(item, EllipsisType) else (item,)))

    def __str__(self) -> str:
        if self.is_unconstrained:
            return "..."
        return "[" + ",".join("*" if i is None else spell(i) if isinstance(i, Dim) else "..." for i in self.items) + "]"


@lru_cache(maxsize=4096)
def parse_hint(text: str) -> Hint:
    """The hint that a text stands for. ShapeError says what is wrong with the text and where."""
    try:
        return Hint(tuple(None if t == ("*",) else ... if t == ("...",) else _size(t) for t in hint_text.parse(text)))
    except (ValueError, ZeroDivisionError) as e:
        message = str(e)
        raise ShapeError(message if message.startswith("shape hint") else f"shape hint {text!r}: {message}") from None


def parse_dim(text: str) -> Dim:
    """One size, such as `2*S+1`."""
    hint = parse_hint(text)
    if len(hint.items) != 1 or not isinstance(hint.items[0], Dim):
        raise ShapeError(f"{text!r} is not one size, such as 2*S+1")
    return hint.items[0]


def symbols(d: Dim) -> frozenset[str]:
    """The symbols of a dim, those inside divisions, minima and so on included."""
    return frozenset(name for atom in d.atoms() for name in _names(atom))


def _names(atom: Atom) -> Iterator[str]:
    if atom.kind == "symbol":
        yield atom.args[0]
    for arg in atom.args:
        if isinstance(arg, Dim):
            yield from symbols(arg)


def _size(tree: hint_text.Tree) -> Dim:
    d = _dim(tree)
    if d.value is not None and d.value < 0:
        raise ValueError(f"{d.value} is no size; `*` stands for any size")
    return d


def _dim(tree: hint_text.Tree) -> Dim:
    head, *args = tree
    if head == "int":
        return Dim.const(args[0])
    if head == "name":
        return Dim.symbol(args[0])
    a, *others = map(_dim, args)
    if head == "neg":
        return -a
    if head in ("min", "max"):
        for other in others:
            a = minimum(a, other) if head == "min" else maximum(a, other)
        return a
    b = others[0]
    if head == "*":
        if len(a.terms) * len(b.terms) > _MAX_TERMS:
            raise ValueError(f"a product of more than {_MAX_TERMS} terms")
        return a * b
    return a + b if head == "+" else a - b if head == "-" else a // b if head == "//" else a % b


# -- text: the same dim has the same text in every process, and the text parses to the dim

def spell(d: Dim) -> str:
    """Terms sorted: positive ones first, then by degree and text, the constant last."""
    terms = []
    for monomial, c in d.terms:
        alone = c == 1 and len(monomial) == 1 and monomial[0][1] == 1  # a leading minus would bind to the dividend
        factors = sorted(_spell_atom(atom, alone) for atom, power in monomial for _ in range(power))
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        terms.append((c < 0, -len(monomial), "*".join(factors)))
    text = "".join(("-" if negative else "+") + body for negative, _, body in sorted(terms))
    return text.removeprefix("+") or "0"


def _spell_atom(atom: Atom, alone: bool) -> str:
    """`alone`: no product around it, so a division needs no brackets."""
    if atom.kind == "symbol":
        return str(atom.args[0])
    if atom.kind == "opaque":
        return "?"
    if atom.kind not in ("floordiv", "mod"):
        return f"{atom.kind}({','.join(sorted(map(spell, atom.args)))})"
    text = ("//" if atom.kind == "floordiv" else "%").join(t if _is_unit(d) else f"({t})" for d, t in ((d, spell(d)) for d in atom.args))
    return text if alone else f"({text})"


def _is_unit(d: Dim) -> bool:
    """It prints as a number, a name or min(...), max(...)."""
    if d.value is not None:
        return d.value >= 0
    (monomial, c), *others = d.terms
    return not others and c == 1 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].kind not in ("floordiv", "mod")


# -- annotation

@dataclass(frozen=True)
class HintAnnotation:
    """What `Tensor["B, *, 768"]` is. `text` is the hint's canonical text. `| None` and other alternatives are allowed; the hint
    holds where a tensor is given."""

    text: str
    optional: bool = False

    @property
    def hint(self) -> Hint:
        return parse_hint(self.text)

    @property
    def hint_text(self) -> str:
        """What the frontend looks for on an annotation."""
        return self.text

    def __or__(self, other: Any) -> HintAnnotation:
        return HintAnnotation(self.text, self.optional or other is None or other is type(None))

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"bcvm.Tensor[{self.text!r}]" + " | None" * self.optional


class Tensor:
    """Annotates a tensor with its shape: `Tensor["B, *, 768"]` or `Tensor["B", ..., 768]`; `Tensor` alone says nothing of it."""

    def __new__(cls) -> Tensor:
        raise TypeError("bcvm.Tensor is for annotations, as in x: bcvm.Tensor['B, *, 768']; the arrays themselves are your library's")

    def __class_getitem__(cls, text: Any) -> HintAnnotation:
        parts = text if isinstance(text, tuple) else (text,)
        for part in parts:
            if not (isinstance(part, (str, EllipsisType)) or type(part) is int):
                raise ShapeError(f"a shape hint is text such as 'B, *, 768', not {part!r}")
        return HintAnnotation(str(parse_hint(", ".join("..." if part is ... else str(part) for part in parts))))
