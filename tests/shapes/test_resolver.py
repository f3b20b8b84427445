"""From shapes and hints to the size of each name."""
from __future__ import annotations

import time
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcvm.errors import ShapeError, SymbolicResolutionTimeout
from bcvm.shapes.resolver import SymbolicResolver, SymbolTable


def resolve(*bindings: tuple[str, str, tuple[int, ...]], **definitions: str) -> dict[str, int]:
    r = SymbolicResolver()
    for name, expression in definitions.items():
        r.define(name, expression)
    for binding in bindings:
        r.bind(*binding)
    return dict(r.resolve())


def test_names_get_the_sizes_of_their_dims() -> None:
    assert resolve(("x", "[B,*,768]", (2, 5, 768)), ("y", "[..., B, C]", (9, 9, 2, 0))) == {"B": 2, "C": 0}


def test_linear_dims_define_a_name_only_where_nothing_else_does() -> None:
    assert resolve(("x", "[2*S+1]", (7,))) == {"S": 3}
    for order in permutations([("x", "[2*S+1]", (7,)), ("y", "[S]", (3,)), ("z", "[S+T, T*S]", (8, 15))]):
        assert resolve(*order) == {"S": 3, "T": 5}
    for order in permutations([("x", "[2*S+1]", (7,)), ("y", "[S]", (4,))]):
        with pytest.raises(ShapeError, match=r"argument 'x' has shape \(7,\), its hint is \[2\*S\+1\]: dim 0 is 7, but 2\*S\+1 is 9; S is 4 \(argument 'y', dim 0\)"):
            resolve(*order)


@given(st.integers(-3, 3), st.integers(-5, 5), st.integers(0, 20))
def test_a_linear_dim_gives_back_the_size_it_was_made_from(c: int, k: int, size: int) -> None:
    value = c * size + k
    if c and value >= 0:
        assert resolve(("x", f"[{c}*S+{k}]", (value,))) == {"S": size}


@pytest.mark.parametrize("bindings, message", [
    ([("x", "[B,*,768]", (2, 768))], r"argument 'x' has shape \(2, 768\), its hint is \[B,\*,768\]: expected 3 dims, given 2"),
    ([("x", "[B,...,768]", (2,))], r"expected at least 2 dims, given 1"),
    ([("x", "[B,768]", (2, 767))], r"argument 'x' has shape \(2, 767\), its hint is \[B,768\]: dim 1 is 767, expected 768"),
    ([("x", "[B]", (2,)), ("y", "[C,B]", (5, 3))], r"argument 'y' has shape \(5, 3\), its hint is \[C,B\]: dim 1 is 3, but B is 2 \(argument 'x', dim 0\)"),
    ([("x", "[B,B]", (2, 3))], r"dim 1 is 3, but B is 2 \(argument 'x', dim 0\)"),
    ([("x", "[2*S+1]", (8,))], r"dim 0 is 8, but no size S makes 2\*S\+1 that"),
    ([("x", "[S+5]", (2,))], r"dim 0 is 2, but no size S makes S\+5 that"),
    ([("x", "[S,S//T]", (8, 2)), ("y", "[T]", (0,))], r"S//T divides by 0; S is 8 \(argument 'x', dim 0\), T is 0 \(argument 'y', dim 0\)"),
    ([("x", "[B,S//B]", (2, 4)), ("y", "[S]", (6,))], r"dim 1 is 4, but S//B is 3; B is 2 .*, S is 6 "),
])
def test_contradictions_name_argument_hint_shape_and_earlier_definition(bindings: list[tuple[str, str, tuple[int, ...]]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        resolve(*bindings)


def test_a_failed_bind_changes_nothing() -> None:
    r = SymbolicResolver()
    r.bind("x", "[B]", (2,))
    with pytest.raises(ShapeError):
        r.bind("y", "[C,2*D,B]", (5, 4, 3))
    assert dict(r.resolve()) == {"B": 2} and r.unresolved == ()


def test_what_is_not_linear_stays_open() -> None:
    r = SymbolicResolver()
    r.bind("x", "[S*T, S//2]", (12, 2))
    assert dict(r.resolve()) == {} and r.unresolved == ("S*T = 12 (argument 'x', dim 0)", "S//2 = 2 (argument 'x', dim 1)")
    r.bind("y", "[S]", (4,))
    assert dict(r.resolve()) == {"S": 4, "T": 3} and r.unresolved == ()


def test_definitions() -> None:
    assert resolve(("x", "[B]", (2,)), A="B+1") == {"B": 2, "A": 3}
    assert resolve(("x", "[A]", (3,)), A="B+1") == {"A": 3, "B": 2}
    with pytest.raises(ShapeError, match=r"A is 4 \(argument 'y', dim 0\), but B\+1 is 3; B is 2 \(argument 'x', dim 0\)"):
        resolve(("x", "[B]", (2,)), ("y", "[A]", (4,)), A="B+1")
    with pytest.raises(ShapeError, match=r"definition A = B-5 gives A the size -3; B is 2"):
        resolve(("x", "[B]", (2,)), A="B-5")
    with pytest.raises(ShapeError, match="A is defined twice: as B and as C"):
        r = SymbolicResolver()
        r.define("A", "B")
        r.define("A", "C")


@pytest.mark.parametrize("definitions, cycle", [
    ([("A", "A+1")], "A -> A"), ([("A", "B+1"), ("B", "A-1")], "B -> A -> B"), ([("A", "B+1"), ("B", "C//2"), ("C", "max(A, 3)")], "C -> A -> B -> C"),
])
def test_cyclic_definitions_are_told_at_once(definitions: list[tuple[str, str]], cycle: str) -> None:
    r = SymbolicResolver()
    for name, expression in definitions[:-1]:
        r.define(name, expression)
    with pytest.raises(SymbolicResolutionTimeout, match=f"sizes are defined by each other: {cycle} "):
        r.define(*definitions[-1])


def test_long_chains_are_no_cycle_and_take_no_time() -> None:
    start = time.perf_counter()
    r = SymbolicResolver()
    for i in range(200):
        r.define(f"N{i}", f"N{i + 1}+1")
    r.bind("x", "[N200]", (0,))
    assert r.resolve()["N0"] == 200
    with pytest.raises(SymbolicResolutionTimeout):
        r.define("N200", "N0")
    assert time.perf_counter() - start < 5


def test_table_says_who_defined_a_name() -> None:
    table = SymbolTable()
    SymbolicResolver(table).bind("x", "[B]", (2,))
    assert table.definition("B") == (2, "argument 'x', dim 0") and repr(table) == "{B=2 (argument 'x', dim 0)}"
    with pytest.raises(ValueError, match="B is defined already, by argument 'x', dim 0"):
        table.set("B", 2, "me")


def test_shape_of_a_hint() -> None:
    r = SymbolicResolver()
    r.bind("x", "[B]", (2,))
    assert r.shape("[B, 2*B+1, *, C, 3]") == (2, 5, None, None, 3)
    with pytest.raises(ShapeError, match="no fixed number of dims"):
        r.shape("[B, ...]")


def test_results_are_checked_by_the_same_rules() -> None:
    r = SymbolicResolver()
    r.bind("x", "[B]", (2,))
    with pytest.raises(ShapeError, match=r"result 'f' has shape \(3,\), its hint is \[B\]: dim 0 is 3, but B is 2"):
        r.bind("f", "[B]", (3,), what="result")
