"""Dims: one object for one polynomial."""
from __future__ import annotations

from bcvm.shapes.dim import Dim, product


def test_products_differences_and_leaves_without_dims_on_the_way() -> None:
    a, b = Dim.symbol("a"), Dim.symbol("b")
    assert product([a, 3, b, a, a + 1]) is a * 3 * b * a * (a + 1)
    assert product([]) is Dim.const(1)
    assert product([a + b, 0]) is Dim.const(0)
    assert (a + b) - (b + 2) is a + -2
    assert a - a is Dim.const(0)
    assert (a * b + a // (b + 2)).leaves() == (a + b).atoms()
    assert Dim.const(True) is Dim.const(1)
