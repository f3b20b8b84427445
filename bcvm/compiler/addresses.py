"""Names in the place of addresses, so that the text of a module, and its object, fit every process: each has its Python objects and functions elsewhere.

The loader gives the names their addresses. They stand in the order in which the text first mentions them, and equal addresses have one name: so
equal text means equal code.
"""
from __future__ import annotations

import re

_ADDRESS = re.compile(r"inttoptr \(i64 (\d+) to ptr\)(\(?)")  # as `emit.constant` writes it; called, if arguments follow
STEM = "address"


def named(text: str) -> tuple[str, dict[str, int]]:
    """The text of a module without addresses, and what its names stand for."""
    names: dict[str, str] = {}
    called: set[str] = set()

    def name(found: re.Match[str]) -> str:
        number, call = found.groups()
        known = names.setdefault(number, f"{STEM}.{len(names)}")
        if call:
            called.add(known)
        return f"@{known}{call}"

    body = _ADDRESS.sub(name, text)
    declared = "".join(f"declare void @{n}() nonlazybind\n" if n in called else f"@{n} = external global i8\n" for n in names.values())
    return body + "\n" + declared, {n: int(number) for number, n in names.items()}
