"""The driver's text: each number is computed once, where the place that needs it is dominated by the one that has it."""
from __future__ import annotations

from bcvm.compiler.driver.emitter import Emitter


def test_a_number_is_computed_once() -> None:
    e = Emitter()
    first = e.add("%x", "%y")
    e.push()
    assert e.add("%x", "%y") == first
    assert e.overflowing("umul", "%x", "%y") == e.overflowing("umul", "%x", "%y")
    e.pop()
    assert sum("add i64 %x, %y" in line for line in e.lines) == 1


def test_what_a_branch_computes_is_not_known_beyond_it() -> None:
    e = Emitter()
    e.push()
    inside = e.mul("%x", "%y"), e.select(e.compare("eq", "%x", "1"), "%x", "%y")
    e.pop()
    beyond = e.mul("%x", "%y"), e.select(e.compare("eq", "%x", "1"), "%x", "%y")
    assert not set(inside) & set(beyond)


def test_memory_is_read_again() -> None:
    e = Emitter()
    assert e.load("%p", 3) != e.load("%p", 3)
