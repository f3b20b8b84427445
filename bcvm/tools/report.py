"""Plain-text tables, and the report that `bcvm run` prints at the end: what ran native, what did not, and why."""
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Jitted(Protocol):
    """What a report needs of a jitted function."""

    @property
    def program(self) -> Any: ...
    def stats(self) -> Mapping[str, Any]: ...


def cell(value: Any) -> str:
    """A value as a table shows it: three significant digits for floats, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """Columns padded to their widest cell, the first `left` columns to the left, the others to the right; no trailing blanks."""
    texts = [list(headers), *([cell(v) for v in row] for row in rows)]
    if any(len(row) != len(headers) for row in texts):
        raise ValueError(f"table: every row needs {len(headers)} cells")
    widths = [max(len(row[i]) for row in texts) for i in range(len(headers))]
    lines = ["  ".join(t.ljust(w) if i < left else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in texts]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The same as a Markdown table."""
    lines = [list(headers), ["---"] * len(headers), *([cell(v).replace("|", "\\|") for v in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def hit_rate(stats: Mapping[str, Any]) -> str:
    """Share of calls that ran native without a compilation, `92%`; `N/A` before the first call. Never rounded up to 100%."""
    calls, native = stats["calls"], stats["native"]
    return f"{100 * native // calls}%" if calls else "N/A"


def where(program: Any) -> str:
    """`f (model.py:12)`."""
    return f"{program.name} ({os.path.basename(program.filename)}:{program.first_line})"


def fallback_lines(stats: Mapping[str, Any]) -> list[str]:
    """`fallback_reason=compile_timeout  3 calls`, the most frequent first."""
    worst_first = sorted(stats["fallbacks"].items(), key=lambda item: (-item[1], item[0]))
    return [f"fallback_reason={reason}  {count:,} call{'s' * (count != 1)}" for reason, count in worst_first]


def summary(functions: Iterable[Jitted]) -> str:
    """The report over jitted functions: a table, then per function why calls were interpreted, then the hit rate of all."""
    seen = [(where(f.program), f.stats()) for f in functions]
    if not seen:
        return "No function was jitted: decorate one with @bcvm.jit, or wrap it with bcvm.jit(function_or_cell)."
    seen.sort(key=lambda item: (-item[1]["calls"], item[0]))
    rows = [(name, s["calls"], s["native"], hit_rate(s), s["compiles"], s["recompiles"], s["specialisations"], s["code_bytes"]) for name, s in seen]
    lines = [table(("function", "calls", "native", "hit", "compiles", "recompiles", "specialisations", "code bytes"), rows)]
    for name, s in seen:
        if s["fallbacks"]:
            lines += ["", f"{name}:", *("  " + line for line in fallback_lines(s))]
    total = {key: sum(s[key] for _, s in seen) for key in ("calls", "native")}
    lines += ["", f"JIT Cache: {hit_rate(total)} hit"]
    return "\n".join(lines)
