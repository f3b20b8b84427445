"""Tier 1 does what Python does: results, changed arguments, exceptions with type, message and line; and it can be entered anywhere."""
from __future__ import annotations

import pytest

from bcvm.bytecode.verifier import verify
from bcvm.frontend import program_of
from bcvm.vm.interpreter import run
from tests.programs import PROGRAMS, ProgramCase, outcome, same


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
def test_a_program_does_what_calling_the_function_does(case: ProgramCase) -> None:
    bound = program_of(case.fn)
    verify(bound.program)
    for args in case.arguments:
        expected, got = outcome(case.fn, args), outcome(lambda *a: run(bound, a), args)
        assert expected.error == got.error
        assert same(expected, got), (expected, got)
