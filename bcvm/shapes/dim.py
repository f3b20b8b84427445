"""A dim: a symbolic size. Immutable, interned, canonical: an integer polynomial over atoms.

Equality is structural (`is`): two dims are equal when their polynomials over the same atoms are. Nothing is proved by
search; what is not decided here is computed at run time, by evaluating the polynomial over the atoms' values.

    Dim.symbol("B") * 4 // 2   ->  2*B          Dim.symbol("S") // 2   ->  S//2 (an atom)
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Union

DimLike = Union["Dim", int]
INF = 1 << 62
SMALL = 4096  # constants up to it are kept


class Atom:
    """A factor of a monomial. kind: 'symbol' (args: name), 'floordiv', 'mod' (a, b), 'min', 'max', 'bcast' (dims),
    'opaque' (a hashable key; the value is known at run time only). `lo`, `hi`: inclusive interval of its values. `weight`: atoms in its expression."""

    __slots__ = ("kind", "args", "lo", "hi", "order", "weight", "__weakref__")
    _interned: "weakref.WeakValueDictionary[Any, Atom]" = weakref.WeakValueDictionary()
    _count = 0

    kind: str
    args: tuple[Any, ...]
    lo: int
    hi: int
    order: int
    weight: int

    @classmethod
    def make(cls, kind: str, args: tuple[Any, ...], lo: int, hi: int) -> "Atom":
        key = (kind, args)
        atom = cls._interned.get(key)
        if atom is None:
            atom = object.__new__(cls)
            atom.kind, atom.args, atom.lo, atom.hi = kind, args, lo, hi
            Atom._count += 1
            atom.order = Atom._count
            atom.weight = 1 if kind in ("symbol", "opaque") else sum(d.weight for d in args)
            cls._interned[key] = atom
        return atom

    def __str__(self) -> str:
        if self.kind == "symbol":
            return str(self.args[0])
        if self.kind == "floordiv":
            return f"{_factor(self.args[0])}//{_factor(self.args[1])}"
        if self.kind == "mod":
            return f"({_factor(self.args[0])}%{_factor(self.args[1])})"
        if self.kind == "opaque":
            return "?"
        return f"{self.kind}({', '.join(sorted(map(str, self.args)))})"

    __repr__ = __str__


Monomial = tuple[tuple[Atom, int], ...]  # (atom, power >= 1), sorted by atom order; () is the constant term


class Dim:
    """A symbolic size; see the module. Arithmetic takes dims and ints and folds what it can. `value`: the integer if constant, else None.
    `weight`: atoms in its expression."""

    __slots__ = ("terms", "value", "weight", "_interval", "_atoms", "_leaves", "__weakref__")
    _interned: "weakref.WeakValueDictionary[Any, Dim]" = weakref.WeakValueDictionary()
    _small: "dict[int, Dim]" = {}  # numbers that come up again and again

    terms: tuple[tuple[Monomial, int], ...]  # sorted; coefficient never 0
    value: int | None
    weight: int
    _interval: tuple[int, int] | None
    _atoms: frozenset[Atom] | None
    _leaves: frozenset[Atom] | None

    @classmethod
    def _make(cls, terms: dict[Monomial, int]) -> "Dim":
        if len(terms) == 1:
            (term,) = terms.items()
            return cls._of_terms((term,) if term[1] else ())
        return cls._of_terms(tuple(sorted(((m, c) for m, c in terms.items() if c), key=_term_order)))

    @classmethod
    def _of_terms(cls, terms: tuple[tuple[Monomial, int], ...]) -> "Dim":
        """The dim of terms that are in order."""
        dim = cls._interned.get(terms)
        if dim is None:
            dim = object.__new__(cls)
            dim.terms = terms
            dim.value = 0 if not terms else terms[0][1] if terms[0][0] == () else None
            dim.weight = 0
            for monomial, _ in terms:
                for atom, power in monomial:
                    dim.weight += power * atom.weight
            dim._interval = dim._atoms = dim._leaves = None
            cls._interned[terms] = dim
        return dim

    @classmethod
    def const(cls, value: int) -> "Dim":
        dim = cls._small.get(value)
        if dim is None:
            value = int(value)
            dim = cls._of_terms((((), value),) if value else ())
            if abs(value) <= SMALL:
                cls._small[value] = dim
        return dim

    @classmethod
    def symbol(cls, name: str, lo: int = 0, hi: int = INF) -> "Dim":
        """The same name and interval give the same symbol. Sizes are >= 0 unless said."""
        return cls._make({((Atom.make("symbol", (name, lo, hi), lo, hi), 1),): 1})

    @classmethod
    def opaque(cls, key: Any, lo: int = -INF, hi: int = INF) -> "Dim":
        """A value known at run time only, identified by a hashable key (for instance an SSA value)."""
        return cls._make({((Atom.make("opaque", (key,), lo, hi), 1),): 1})

    # -- queries
    @property
    def is_const(self) -> bool:
        return self.value is not None

    def atoms(self) -> frozenset[Atom]:
        """The atoms of the polynomial itself (not those inside floordiv, mod, ... arguments)."""
        if self._atoms is None:
            self._atoms = frozenset(atom for monomial, _ in self.terms for atom, _ in monomial)
        return self._atoms

    def leaves(self) -> frozenset[Atom]:
        """The symbols and opaque values that it is computed from, at any depth."""
        if self._leaves is None:
            self._leaves = frozenset(leaf for atom in self.atoms()
                                     for leaf in ((atom,) if atom.kind in ("symbol", "opaque") else (x for d in atom.args for x in d.leaves())))
        return self._leaves

    def interval(self) -> tuple[int, int]:
        """Bounds from the atoms' intervals; not tight."""
        if self._interval is None:
            self._interval = self._bounds()
        return self._interval

    def _bounds(self) -> tuple[int, int]:
        lo = hi = 0
        for monomial, c in self.terms:
            a = b = c
            for atom, power in monomial:
                for _ in range(power):
                    ends = [x * y for x in (a, b) for y in (atom.lo, atom.hi)]
                    a, b = min(ends), max(ends)
            lo, hi = lo + a, hi + b
        return max(lo, -INF), min(hi, INF)

    def evaluate(self, value_of: Callable[[Atom], int]) -> int:
        """The integer, given the value of each symbol and opaque atom."""
        return sum(c * _product(_atom_value(atom, value_of) ** power for atom, power in monomial) for monomial, c in self.terms)

    # -- arithmetic
    def __add__(self, other: DimLike) -> "Dim":
        other = dim(other)
        if not self.terms:
            return other
        terms = dict(self.terms)
        for m, c in other.terms:
            terms[m] = terms.get(m, 0) + c
        return Dim._make(terms)

    __radd__ = __add__

    def __neg__(self) -> "Dim":
        return Dim._of_terms(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: DimLike) -> "Dim":
        other = dim(other)
        if not other.terms:
            return self
        terms = dict(self.terms)
        for m, c in other.terms:
            terms[m] = terms.get(m, 0) - c
        return Dim._make(terms)

    def __rsub__(self, other: DimLike) -> "Dim":
        return dim(other) - self

    def __mul__(self, other: DimLike) -> "Dim":
        other = dim(other)
        if self.value is not None:
            self, other = other, self
        if other.value is not None:
            k = other.value
            return self if k == 1 else Dim._of_terms(tuple((m, c * k) for m, c in self.terms) if k else ())
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                powers = dict(m1)
                for atom, p in m2:
                    powers[atom] = powers.get(atom, 0) + p
                m = tuple(sorted(powers.items(), key=_factor_order))
                terms[m] = terms.get(m, 0) + c1 * c2
        return Dim._make(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> "Dim":
        """Floor division. Exact where every coefficient is divisible by a constant, or by one common monomial of
        atoms that are at least 1; otherwise an atom. Division by the constant 0 is a ZeroDivisionError."""
        other = dim(other)
        if other.value == 0:
            raise ZeroDivisionError("a dim divided by 0")
        if other.value == 1:
            return self
        exact = _exact_quotient(self, other)
        if exact is not None:
            return exact
        if self.is_const and other.is_const:
            return Dim.const(self.terms[0][1] // other.terms[0][1]) if self.terms else self
        lo, hi = self.interval()
        if other.value is not None and other.value > 0:
            lo, hi = (lo // other.value if lo > -INF else lo), (hi // other.value if hi < INF else hi)
        else:
            lo, hi = min(lo, -hi, 0), max(hi, -lo)
        return _of(Atom.make("floordiv", (self, other), lo, hi))

    def __rfloordiv__(self, other: DimLike) -> "Dim":
        return dim(other) // self

    def __mod__(self, other: DimLike) -> "Dim":
        other = dim(other)
        if other.value == 0:
            raise ZeroDivisionError("a dim modulo 0")
        if _exact_quotient(self, other) is not None:
            return Dim.const(0)
        if self.value is not None and other.value is not None:
            return Dim.const(self.value % other.value)
        lo, hi = (0, other.interval()[1] - 1) if other.interval()[0] > 0 else (-INF, INF)
        return _of(Atom.make("mod", (self, other), lo, hi))

    def __rmod__(self, other: DimLike) -> "Dim":
        return dim(other) % self

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        out = ""
        for m, c in self.terms:
            factors = [f"{a}**{p}" if p > 1 else str(a) for a, p in m]
            body = "*".join(([str(abs(c))] if abs(c) != 1 or not m else []) + factors)
            out += (" - " if c < 0 else " + ") + body if out else ("-" if c < 0 else "") + body
        return out.replace(" ", "")

    __repr__ = __str__


def dim(value: DimLike) -> Dim:
    """A dim from a dim or an int."""
    return value if isinstance(value, Dim) else Dim.const(value)


def minimum(a: DimLike, b: DimLike) -> Dim:
    return _extreme("min", dim(a), dim(b))


def maximum(a: DimLike, b: DimLike) -> Dim:
    return _extreme("max", dim(a), dim(b))


def broadcast(a: DimLike, b: DimLike) -> Dim:
    """The size two dims broadcast to: the other one where one is 1. Whether they fit is checked at run time
    (`needs_broadcast_check`), so no size, 1 and 0 included, is special. Commutative, associative, idempotent."""
    a, b = dim(a), dim(b)
    if a is b or b.value == 1:
        return a
    if a.value == 1:
        return b
    if a.value is not None and b.value is not None:
        raise ValueError(f"sizes {a} and {b} do not broadcast")
    # A constant other than 1 wins: the other must be it or 1.
    if a.value is not None:
        return a
    if b.value is not None:
        return b
    parts: set[Dim] = set()
    for d in (a, b):
        atom = _single_atom(d)
        parts.update(atom.args if atom is not None and atom.kind == "bcast" else (d,))
    args = tuple(sorted(parts, key=_dim_order))
    return _of(Atom.make("bcast", args, min(d.interval()[0] for d in args), max(d.interval()[1] for d in args)))


def product(dims: Iterable[DimLike]) -> Dim:
    k, powers, sums = 1, dict[Atom, int](), []
    for d in map(dim, dims):
        if not d.terms:
            return d
        if len(d.terms) > 1:
            sums.append(d)
            continue
        (monomial, c), = d.terms
        k *= c
        for atom, power in monomial:
            powers[atom] = powers.get(atom, 0) + power
    out = Dim._of_terms(((tuple(sorted(powers.items(), key=_factor_order)), k),))
    for d in sums:
        out = out * d
    return out


# -- internals

def _of(atom: Atom) -> Dim:
    return Dim._make({((atom, 1),): 1})


def _single_atom(d: Dim) -> Atom | None:
    if len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1 and d.terms[0][0][0][1] == 1:
        return d.terms[0][0][0][0]
    return None


def _factor_order(factor: tuple[Atom, int]) -> int:
    return factor[0].order


def _term_order(term: tuple[Monomial, int]) -> Any:
    return (-sum([p for _, p in term[0]]), [(a.order, p) for a, p in term[0]])


def _dim_order(d: Dim) -> Any:
    return [(_term_order(t), t[1]) for t in d.terms]


def _extreme(kind: str, a: Dim, b: Dim) -> Dim:
    if a is b:
        return a
    (alo, ahi), (blo, bhi) = a.interval(), b.interval()
    first, second = (a, b) if kind == "min" else (b, a)
    if ahi <= blo:
        return first
    if bhi <= alo:
        return second
    args = tuple(sorted((a, b), key=_dim_order))
    pick = min if kind == "min" else max
    return _of(Atom.make(kind, args, pick(alo, blo), pick(ahi, bhi)))


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    if len(b.terms) != 1:
        return Dim.const(1) if a is b and b.interval()[0] > 0 else None
    (divisor, k), = b.terms
    if any(atom.lo < 1 for atom, _ in divisor):
        return None
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        powers = dict(m)
        if c % k or any(powers.get(atom, 0) < p for atom, p in divisor):
            return None
        for atom, p in divisor:
            powers[atom] -= p
        terms[tuple(sorted(((x, p) for x, p in powers.items() if p), key=_factor_order))] = c // k
    return Dim._make(terms)


def _product(values: Iterable[int]) -> int:
    out = 1
    for v in values:
        out *= v
    return out


def _atom_value(atom: Atom, value_of: Callable[[Atom], int]) -> int:
    if atom.kind in ("symbol", "opaque"):
        return value_of(atom)
    args: list[int] = [d.evaluate(value_of) for d in atom.args]
    if atom.kind == "floordiv":
        return args[0] // args[1]
    if atom.kind == "mod":
        return args[0] % args[1]
    if atom.kind == "min":
        return min(args)
    if atom.kind == "max":
        return max(args)
    return next((a for a in args if a != 1), 1)  # bcast


def _factor(d: Dim) -> str:
    s = str(d)
    return f"({s})" if len(d.terms) > 1 else s
