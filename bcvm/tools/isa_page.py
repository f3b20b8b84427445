"""The page on the instruction set, generated from the instruction table.

    python -m bcvm.tools.isa_page > docs/instructions.md
    python -m bcvm.tools.isa_page --check docs/instructions.md      exits with 1 if the page is not current
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bcvm.bytecode.instructions import ABI_MAJOR, ABI_MINOR, TABLE, Instruction, Kind

_INTRODUCTION = f"""# Instructions

Generated from `bcvm/bytecode/instructions.py` by `make docs`; do not edit. This is ABI {ABI_MAJOR}.{ABI_MINOR}.

A program is a list of instructions; an instruction's id is its index. The machine has one stack and numbered locals. *Stack* is what an
instruction pops, then what it pushes; for a branch, what a taken jump does stands after the slash. Opcodes are never reused. A reader accepts a
program whose ABI major equals its own and whose minor is not higher.
"""
_KINDS: dict[Kind, str] = {
    Kind.LOCAL: "index of a local; parameters come first", Kind.CONST: "index of a constant", Kind.NAME: "index of a name",
    Kind.OP: "index of a name: the op's", Kind.POLICY: "index of a name: the fusion policy's", Kind.HINT: "index of a shape hint; 0 is no constraint",
    Kind.CAPTURE: "index of a capture", Kind.IMPORT: "index of an import", Kind.SIGNATURE: "index of a signature; 0 is not resolved",
    Kind.LABEL: "an instruction id of this program", Kind.COUNT: "a plain number", Kind.DEVICE: "0 host, from 1 on devices",
    Kind.STREAM: "execution stream of a device", Kind.MASK: "bit i: dim i, from the right, is broadcast",
}


def page() -> str:
    """The page as Markdown text."""
    rows = [f"| `0x{row.opcode:02x}` | `{row.name}` | {_operands(row)} | {_effect(row)} | {row.flow} | {row.since[0]}.{row.since[1]} | {_doc(row)} |"
            for row in TABLE]
    return "\n".join([
        _INTRODUCTION, "| opcode | name | operands | stack | then | since | meaning |", "| --- | --- | --- | --- | --- | --- | --- |", *rows, "",
        "## Operand kinds", "", "| kind | an operand's integer is |", "| --- | --- |", *(f"| `{kind.value}` | {_KINDS[kind]} |" for kind in Kind), ""])


def _operands(row: Instruction) -> str:
    return ", ".join(name if name == kind.value else f"{name}: {kind.value}" for name, kind in row.operands)


def _effect(row: Instruction) -> str:
    effects = [row.effect] if row.jump_effect is None else [row.effect, row.jump_effect]
    return " / ".join(f"{pops} → {pushes}" for pops, pushes in effects)


def _doc(row: Instruction) -> str:
    expands = f" Expands to {', '.join(f'`{op}`' for op in row.expands.split(','))}." if row.expands else ""
    return (row.doc + expands).replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    args = argparse.ArgumentParser(prog="python -m bcvm.tools.isa_page", description="Print docs/instructions.md.")
    args.add_argument("--check", metavar="FILE", type=Path, help="exit with 1 if FILE is not what would be printed")
    path: Path | None = args.parse_args(argv).check
    if path is None:
        sys.stdout.buffer.write(page().encode())
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == page():
        return 0
    print(f"{path} is not current; run: python -m bcvm.tools.isa_page > {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
