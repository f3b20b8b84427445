"""Shape hints: what parses, how it prints, what is refused."""
from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcvm.errors import ShapeError
from bcvm.shapes.dim import Dim, maximum, minimum
from bcvm.shapes.hint import HintAnnotation, Tensor, parse_dim, parse_hint, symbols

B, S, D = (Dim.symbol(n) for n in "BSD")


@pytest.mark.parametrize("text, items, canonical", [
    ("[B, *, 768]", (B, None, Dim.const(768)), "[B,*,768]"), ("B,*,768", (B, None, Dim.const(768)), "[B,*,768]"), ("[1, D]", (Dim.const(1), D), "[1,D]"),
    ("[..., D]", (..., D), "[...,D]"), ("...", (...,), "..."), ("[...]", (...,), "..."), ("[]", (), "[]"), ("[2*S+1, S//2]", (2 * S + 1, S // 2), "[2*S+1,S//2]"),
    ("2*(S//2)", (2 * (S // 2),), "[2*(S//2)]"), ("S//(2*B)", (S // (2 * B),), "[S//(2*B)]"), ("(S-1)%3*2", ((S - 1) % 3 * 2,), "[2*((S-1)%3)]"),
    ("5-S", (5 - S,), "[5-S]"), ("S*S*B", (S * S * B,), "[B*S*S]"), ("max(B, 2)", (maximum(B, 2),), "[max(2,B)]"), ("min(B,S)", (minimum(B, S),), "[min(B,S)]"),
    ("4*S//2", (2 * S,), "[2*S]"), ("-S+7", (7 - S,), "[7-S]"), ("2*3", (Dim.const(6),), "[6]"),
])
def test_hints_parse_and_print(text: str, items: tuple[object, ...], canonical: str) -> None:
    hint = parse_hint(text)
    assert hint.items == items and str(hint) == canonical and parse_hint(canonical) == hint


def dims() -> st.SearchStrategy[Dim]:
    leaf = st.sampled_from([B, S, D]) | st.integers(0, 9).map(Dim.const)
    return st.recursive(leaf, lambda d: st.one_of(
        st.builds(lambda a, b: a + b, d, d), st.builds(lambda a, b: a - b, d, d), st.builds(lambda a, b: a * b, d, d), st.builds(minimum, d, d),
        st.builds(maximum, d, d), st.builds(lambda a, b: a // b if b.value != 0 else a, d, d), st.builds(lambda a, b: a % b if b.value != 0 else b, d, d)), max_leaves=5)


@given(dims())
def test_printed_dim_parses_to_the_same_dim(d: Dim) -> None:
    from bcvm.shapes.hint import spell
    if d.value is None or d.value >= 0:
        assert parse_dim(spell(d)) is d


def test_a_negative_quotient_prints_with_brackets() -> None:
    from bcvm.shapes.hint import spell
    b = Dim.symbol("B")
    assert spell(-(b // 2)) == "-(B//2)" and parse_dim("-(B//2)") is -(b // 2)
    assert parse_dim("-B//2") is (-b) // 2


def test_text_does_not_depend_on_what_was_made_before() -> None:
    code = "from bcvm.shapes.hint import parse_hint\nparse_hint('{}')\nprint(parse_hint('[S*B+A, max(T,A)//B]'))"
    outputs = {subprocess.run([sys.executable, "-c", code.format(first)], capture_output=True, text=True, check=True).stdout for first in ("A,B,S,T", "T,S,B,A")}
    assert outputs == {"[B*S+A,max(A,T)//B]\n"}


@pytest.mark.parametrize("text, message", [
    ("", "expected a hint such as [B, *, 768] at column 1"), ("[B,,3]", "expected a size, a name, '*' or '...' at column 4"), ("B 3", "expected ',' or the end at column 3"),
    ("[B", "expected ']' at column 3"), ("B]", "expected ',' or the end at column 2"), ("..., ...", "expected only one '...' at column 6"), ("[B,]", "at column 4"),
    ("S**2", "at column 3"), ("-1", "-1 is no size; `*` stands for any size"), ("2-3", "-1 is no size"), ("S//0", "a dim divided by 0"), ("S%0", "a dim modulo 0"),
    ("S/2", "at column 2"), ("9" * 30, "expected a size below 2**62"), ("(" * 50, "at most 32 nested expressions"), ("-" * 50, "at most 32 nested"),
    (",".join("A" * 65), "expected at most 64 dims"), ("+".join("A" * 400), "expected a shorter hint"),
    ("*".join(["(A+B+C+D+E+F+G+H)"] * 8), "a product of more than 200 terms"), ("max()", "expected a size, a name"),
])
def test_bad_hints_are_told(text: str, message: str) -> None:
    with pytest.raises(ShapeError) as error:
        parse_hint(text)
    assert message in str(error.value) and "shape hint" in str(error.value)


@given(st.text(st.sampled_from("[]AB,*.+-/%()0129 minax"), max_size=30))
def test_any_text_is_a_hint_or_a_shape_error(text: str) -> None:
    try:
        hint = parse_hint(text)
    except ShapeError:
        return
    assert parse_hint(str(hint)) == hint


def test_rank_symbols_and_alignment() -> None:
    hint = parse_hint("[B, ..., 2*S+1, (D+S)//2]")
    assert (hint.rank, hint.min_rank, hint.symbols()) == (None, 3, {"B", "S", "D"})
    assert hint.align(5) == (B, None, None, 2 * S + 1, (D + S) // 2) and hint.align(3) == (B, 2 * S + 1, (D + S) // 2) and hint.align(2) is None
    assert parse_hint("[B,*]").align(2) == (B, None) and parse_hint("[B,*]").align(3) is None and parse_hint("[B,*]").rank == 2
    assert parse_hint("...").is_unconstrained and not parse_hint("[]").is_unconstrained
    assert symbols(maximum(S // B, D)) == {"S", "B", "D"}


def test_annotations() -> None:
    assert Tensor["B, *, 768"] == Tensor["[B,*,768]"] == Tensor["B", "*", 768] == HintAnnotation("[B,*,768]")
    assert Tensor[...].text == "..." and Tensor["B", ...].hint == parse_hint("[B,...]")
    assert (Tensor["B"] | None).optional and (None | Tensor["B"]).optional and not (Tensor["B"] | int).optional
    assert repr(Tensor["B", 2] | None) == "bcvm.Tensor['[B,2]'] | None"
    with pytest.raises(ShapeError, match="expected"):
        Tensor["B,,"]
    with pytest.raises(ShapeError, match="not 1.5"):
        Tensor[1.5]
    with pytest.raises(TypeError, match="for annotations"):
        Tensor()
