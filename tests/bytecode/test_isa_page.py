"""The generated page on instructions."""
from __future__ import annotations

from pathlib import Path

import pytest

from bcvm.bytecode.instructions import TABLE, Kind
from bcvm.tools.isa_page import main, page


def test_page_has_every_instruction_and_kind() -> None:
    lines = page().splitlines()
    for row in TABLE:
        assert any(line.startswith(f"| `0x{row.opcode:02x}` | `{row.name}` |") and row.doc in line for line in lines)
    for kind in Kind:
        assert any(line.startswith(f"| `{kind.value}` |") for line in lines)


def test_check_tells_a_page_that_is_not_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "instructions.md"
    assert main(["--check", str(path)]) == 1
    path.write_text(page(), encoding="utf-8")
    assert main(["--check", str(path)]) == 0
    path.write_text(page() + "x", encoding="utf-8")
    assert main(["--check", str(path)]) == 1
    assert f"{path} is not current; run: python -m bcvm.tools.isa_page > {path}" in capsys.readouterr().err


def test_printing_is_the_page(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([]) == 0
    assert capfdbinary.readouterr().out == page().encode()
