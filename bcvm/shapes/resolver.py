"""Named sizes of a call: from the shapes of its arguments and the hints on them to the size of each name.

    r = SymbolicResolver()
    r.bind("x", "[B, S]", (2, 7))
    r.bind("mask", "[B, 2*T+1]", (2, 7))
    r.resolve()["T"]                        # 3
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bcvm.errors import ShapeError, SymbolicResolutionTimeout
from bcvm.shapes.dim import Atom, Dim
from bcvm.shapes.hint import Hint, parse_dim, parse_hint, spell, symbols


class Definition(NamedTuple):
    """The size of a name, and what says so (`argument 'x', dim 0`)."""

    size: int
    by: str


class SymbolTable(Mapping[str, int]):
    """Name -> size. `definition(name)` also says who defined it."""

    def __init__(self) -> None:
        self._known: dict[str, Definition] = {}

    def __getitem__(self, name: str) -> int:
        return self._known[name].size

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def definition(self, name: str) -> Definition:
        return self._known[name]

    def set(self, name: str, size: int, by: str) -> None:
        """Define a name that is not defined yet."""
        if name in self._known:
            raise ValueError(f"{name} is defined already, by {self._known[name].by}")
        self._known[name] = Definition(size, by)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}={d.size} ({d.by})" for name, d in self._known.items()) + "}"


@dataclass(frozen=True)
class _Equation:
    """size == dim: `prefix` starts the error (what was given), `by` names the place, `size` may itself be a name."""

    dim: Dim
    size: int | str
    prefix: str
    by: str


class SymbolicResolver:
    """Collects the arguments (`bind`) and the relations between names (`define`); `resolve` gives every size that follows.

    A contradiction is a ShapeError as soon as it shows: plain names and constants in `bind`, the rest in `resolve`. Order does
    not matter: `2*S+1` defines S only if nothing else does. A bind that fails leaves the resolver as it was."""

    def __init__(self, table: SymbolTable | None = None) -> None:
        self.table = table if table is not None else SymbolTable()
        self._open: list[_Equation] = []
        self._definitions: dict[str, Dim] = {}

    def bind(self, arg_name: str, hint: Hint | str, shape: Sequence[int], what: str = "argument") -> None:
        """An argument (or what `what` says) has this hint and this shape."""
        hint = parse_hint(hint) if isinstance(hint, str) else hint
        shape = tuple(int(s) for s in shape)
        prefix = f"{what} {arg_name!r} has shape {shape}, its hint is {hint}: "
        items = hint.align(len(shape))
        if items is None:
            least = "" if hint.rank is not None else "at least "
            raise ShapeError(f"{prefix}expected {least}{hint.min_rank} dims, given {len(shape)}")
        new: dict[str, Definition] = {}
        rest: list[_Equation] = []
        for i, (item, size) in enumerate(zip(items, shape, strict=True)):
            if item is None:
                continue
            name = _plain_symbol(item)
            by = f"{what} {arg_name!r}, dim {i}"
            if name is None:
                equation = _Equation(item, size, f"{prefix}dim {i} is {size}", by)
                if item.value is not None:
                    self._check(equation, item.value)
                else:
                    rest.append(equation)
                continue
            known = new.get(name) or (self.table.definition(name) if name in self.table else None)
            if known is not None and known.size != size:
                raise ShapeError(f"{prefix}dim {i} is {size}, but {name} is {known.size} ({known.by})")
            if known is None:
                new[name] = Definition(size, by)
        for name, definition in new.items():
            self.table.set(name, *definition)
        self._open += rest

    def define(self, name: str, expression: Dim | str) -> None:
        """A name is an expression of others. Definitions that lead back to themselves are a SymbolicResolutionTimeout now."""
        d = parse_dim(expression) if isinstance(expression, str) else expression
        if name in self._definitions and self._definitions[name] is not d:
            raise ShapeError(f"{name} is defined twice: as {spell(self._definitions[name])} and as {spell(d)}")
        cycle = self._path(symbols(d), name)
        if cycle:
            raise SymbolicResolutionTimeout(f"sizes are defined by each other: {' -> '.join([name, *cycle])} (with {name} = {spell(d)})")
        self._definitions[name] = d
        self._open.append(_Equation(d, name, "", f"definition {name} = {spell(d)}"))

    def resolve(self) -> SymbolTable:
        """The sizes that follow from all that is known. Relations that stay open (`S*T` with both unknown) are in `unresolved`."""
        while self._settle(solve=False) or self._settle(solve=True):
            pass
        return self.table

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Relations not checked yet, or not decidable from the shapes that were bound."""
        return tuple(f"{spell(e.dim)} = {e.size} ({e.by})" for e in self._open)

    def shape(self, hint: Hint | str) -> tuple[int | None, ...]:
        """The sizes a hint without `...` stands for; None where they are not known."""
        hint = parse_hint(hint) if isinstance(hint, str) else hint
        items = hint.align(hint.min_rank) if hint.rank is not None else None
        if items is None:
            raise ShapeError(f"hint {hint} has no fixed number of dims")
        return tuple(self._evaluate(d, "") if d is not None and symbols(d) <= set(self.table) else None for d in items)

    # -- internals
    def _path(self, names: frozenset[str], goal: str) -> list[str]:
        """From one of the names along definitions to the goal; empty if there is no way."""
        paths = {name: [name] for name in sorted(names)}
        work = list(paths)
        while work:
            name = work.pop()
            if name == goal:
                return paths[name]
            for other in sorted(symbols(self._definitions[name])) if name in self._definitions else ():
                if other not in paths:
                    paths[other] = [*paths[name], other]
                    work.append(other)
        return []

    def _settle(self, solve: bool) -> bool:
        """Check or use the open relations that are decided. `solve`: only the first linear one with one unknown, so that a size
        given plainly always comes first. True if something became known."""
        left: list[_Equation] = []
        progress = False
        for e in self._open:
            unknown = symbols(e.dim) - set(self.table)
            size = self.table.get(e.size) if isinstance(e.size, str) else e.size
            if not unknown and size is not None:
                self._check(e, self._evaluate(e.dim, e.prefix))
            elif not unknown and isinstance(e.size, str):
                self._set(e.size, self._evaluate(e.dim, e.prefix), e)
                progress = True
            elif solve and not progress and size is not None and len(unknown) == 1 and self._solve(e, next(iter(unknown)), size):
                progress = True
            else:
                left.append(e)
        self._open = left
        return progress

    def _solve(self, e: _Equation, name: str, size: int) -> bool:
        """Solve c*name + rest == size. False if the dim is not linear in the name."""
        coefficient = rest = 0
        for monomial, c in e.dim.terms:
            power = sum(p for atom, p in monomial if atom.kind == "symbol" and atom.args[0] == name)
            others = Dim._make({tuple((a, p) for a, p in monomial if not (a.kind == "symbol" and a.args[0] == name)): c})
            if power > 1 or name in symbols(others):
                return False
            value = self._evaluate(others, e.prefix)
            coefficient, rest = coefficient + value * power, rest + value * (1 - power)
        if coefficient == 0:
            return False
        solution, remainder = divmod(size - rest, coefficient)
        if remainder or solution < 0:
            start = e.prefix or f"{e.size} is {size} ({self.table.definition(str(e.size)).by})"
            raise ShapeError(f"{start}, but no size {name} makes {spell(e.dim)} that{self._sizes(e.dim)}")
        self._set(name, solution, e)
        return True

    def _set(self, name: str, size: int, e: _Equation) -> None:
        if size < 0:
            raise ShapeError(f"{e.by} gives {name} the size {size}{self._sizes(e.dim)}")
        self.table.set(name, size, e.by)

    def _check(self, e: _Equation, value: int) -> None:
        size = self.table[e.size] if isinstance(e.size, str) else e.size
        if value != size:
            start = e.prefix or f"{e.size} is {size} ({self.table.definition(str(e.size)).by})"
            raise ShapeError(f"{start}, expected {value}" if e.dim.value is not None else f"{start}, but {spell(e.dim)} is {value}{self._sizes(e.dim)}")

    def _sizes(self, d: Dim) -> str:
        known = [f"{n} is {self.table[n]} ({self.table.definition(n).by})" for n in sorted(symbols(d)) if n in self.table]
        return f"; {', '.join(known)}" if known else ""

    def _evaluate(self, d: Dim, prefix: str) -> int:
        def value_of(atom: Atom) -> int:
            return self.table[atom.args[0]]
        try:
            return d.evaluate(value_of)
        except ZeroDivisionError:
            raise ShapeError(f"{prefix or 'a size cannot be computed'}: {spell(d)} divides by 0{self._sizes(d)}") from None


def _plain_symbol(d: Dim) -> str | None:
    atoms = d.atoms()
    if len(atoms) != 1:
        return None
    atom = next(iter(atoms))
    return str(atom.args[0]) if atom.kind == "symbol" and d is Dim.symbol(*atom.args) else None
