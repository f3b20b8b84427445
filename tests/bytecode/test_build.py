"""What the builder interns, refuses and resolves."""
from __future__ import annotations

import pytest

from bcvm.bytecode.build import ProgramBuilder
from bcvm.bytecode.program import Capture, Import, Param
from bcvm.bytecode.verifier import verify
from bcvm.errors import BytecodeError


def test_sections_are_interned() -> None:
    b = ProgramBuilder("f", "m.py", 3)
    assert [b.param("x"), b.param("y", "keyword_only", True, "B, *"), b.local("t"), b.local("x"), b.local("t")] == [0, 1, 2, 0, 2]
    assert [b.const(v) for v in (1, True, 1.0, -0.0, 0.0, 0, (1,), (True,), 1, -0.0)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 3]
    assert [b.const(float("nan")), b.const(float("nan"))] == [8, 8]
    assert [b.name("a"), b.name("b"), b.name("a")] == [0, 1, 0]
    assert [b.capture("global", "np"), b.capture("closure", "np"), b.capture("global", "np")] == [0, 1, 0]
    assert [b.add_import("f.0", "s"), b.add_import("f.0", "s"), b.add_import("f.1")] == [0, 0, 1]
    assert [b.hint("..."), b.hint("[B, *]"), b.hint("B,*"), b.hint("[...]"), b.hint("C")] == [0, 1, 1, 0, 2]
    b.return_hint("C")
    b.emit("LOAD", 0)
    b.emit("RETURN")
    p = b.finish()
    verify(p)
    assert p.params == (Param("x"), Param("y", "keyword_only", True, 1)) and p.locals == ("x", "y", "t") and p.return_hint == 2
    assert p.captures == (Capture("global", "np"), Capture("closure", "np")) and p.imports == (Import("f.0", "s"), Import("f.1"))
    assert p.hints == ("...", "[B,*]", "[C]") and (p.name, p.filename, p.first_line) == ("f", "m.py", 3)


def test_labels_and_positions() -> None:
    b = ProgramBuilder("f")
    b.param("x")
    end = b.label()
    b.at(4, 2)
    header = b.emit("LOOP_START", end)
    b.emit("LOAD", 0)
    b.at(5)
    b.emit("COND_JUMP", end)
    b.emit("LOOP_END", header)
    b.place(end)
    b.emit("LOAD", 0)
    b.emit("RETURN")
    p = b.finish()
    verify(p)
    assert [c.operands for c in p.code] == [(4,), (0,), (4,), (0,), (0,), ()]
    assert p.positions == ((4, 2), (4, 2), (5, 0), (5, 0), (5, 0), (5, 0))


def test_wrong_use_is_told() -> None:
    b = ProgramBuilder("f")
    label = b.label()
    b.param("x")
    for use, message in [
        (lambda: b.emit("FROB"), "there is no instruction 'FROB'"),
        (lambda: b.emit("LOAD"), r"LOAD takes local \(local\); given: \(\)"),
        (lambda: b.emit("LOAD", -1), "local is a number >= 0, not -1"),
        (lambda: b.emit("LOAD", True), "local is a number >= 0, not True"),
        (lambda: b.emit("LOAD", label), "local is a local, not a label"),
        (lambda: b.param("x"), "parameter 'x' exists already"),
        (lambda: b.const([1]), "a builtins.list cannot be a constant"),
        (lambda: b.hint("[B"), r"shape hint '\[B': expected '\]'"),
        (lambda: b.capture("local", "x"), "'closure' or 'global'"),
        (lambda: (b.add_import("i", "a"), b.add_import("i", "b")), "import 'i' exists already"),
        (lambda: (b.local("y"), b.param("z")), "parameter 'z' comes after other locals"),
        (lambda: (b.emit("JUMP", label), b.finish()), "the label that instruction 0x0000 jumps to was never placed"),
        (lambda: (b.place(label), b.place(label)), "a label is placed twice: at 0x0001 and at 0x0001"),
    ]:
        with pytest.raises(BytecodeError, match="^program f: .*" + message):
            use()
