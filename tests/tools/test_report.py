"""Tables and the report at the end of a run."""
from __future__ import annotations

import pytest

from bcvm.bytecode.program import Code, Program
from bcvm.tools.report import cell, hit_rate, markdown, summary, table


class Counted:
    def __init__(self, name, **stats):
        self.program = Program(name, "/x/model.py", (Code(0x24),), first_line=12)
        self._stats = dict(calls=0, native=0, interpreted=0, compiles=0, recompiles=0, specialisations=0, code_bytes=0, fallbacks={}) | stats

    def stats(self):
        return self._stats


def test_columns_are_as_wide_as_their_widest_cell():
    assert table(("name", "n"), [("a", 1), ("long name", 12345)]).splitlines() == ["name            n", "---------  ------", "a               1", "long name  12,345"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        table(("a", "b"), [(1,)])


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.00123, "0.00123"), (1234.5, "1,234"), (7, "7"), (True, "True"), (0.0, "0")])
def test_cells_are_short(value, text):
    assert cell(value) == text


def test_markdown_keeps_bars_inside_cells():
    assert markdown(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"


@pytest.mark.parametrize(("calls", "native", "text"), [(0, 0, "N/A"), (100, 92, "92%"), (1000, 999, "99%"), (3, 3, "100%")])
def test_hit_rate_is_never_rounded_up(calls, native, text):
    assert hit_rate({"calls": calls, "native": native}) == text


def test_summary_names_functions_reasons_and_the_hit_rate_of_all():
    text = summary([Counted("f", calls=50, native=42, fallbacks={"compile_timeout": 1, "call_py": 7}), Counted("g", calls=50, native=50)])
    lines = text.splitlines()
    assert lines[2].split()[:5] == ["f", "(model.py:12)", "50", "42", "84%"]
    reasons = [line.strip() for line in lines if "fallback_reason" in line]
    assert reasons == ["fallback_reason=call_py  7 calls", "fallback_reason=compile_timeout  1 call"]
    assert lines[-1] == "JIT Cache: 92% hit"


def test_summary_of_nothing_says_what_to_do():
    assert "@bcvm.jit" in summary([])
