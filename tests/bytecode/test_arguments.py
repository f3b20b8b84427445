"""What is given to the functions of the bytecode, and is no program, is refused by name."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bcvm


def add_one(x: Any) -> Any:
    return x + 1


@pytest.mark.parametrize("call", [bcvm.verify, bcvm.disassemble])
def test_programs_only(call: Any) -> None:
    for wrong in (None, 3, b"BCVM", "text"):
        with pytest.raises(TypeError, match=f"bcvm.{call.__name__} takes a Program, .* not {type(wrong).__name__}"):
            call(wrong)
    with pytest.raises(TypeError, match="pass its .program"):
        call(bcvm.jit(add_one, tier="interpret"))


def test_text_only() -> None:
    with pytest.raises(TypeError, match="bcvm.assemble takes a program's text, not bytes"):
        bcvm.assemble(b".program f")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 3, True, 1.5, ["f.bc"]])
def test_load_takes_a_path_bytes_or_a_program(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"bcvm.load takes the path of a .bc file, .* not {type(wrong).__name__}"):
        bcvm.load(wrong)


def test_imports_are_a_dict(tmp_path: Path) -> None:
    program = bcvm.jit(add_one, tier="interpret").program
    program.save(str(tmp_path / "f.bc"))
    assert bcvm.load(tmp_path / "f.bc", tier="interpret")(2) == 3
    with pytest.raises(TypeError, match="bcvm.load: imports is a dict from name to object, not list"):
        bcvm.load(program, imports=["x"])  # type: ignore[arg-type]
