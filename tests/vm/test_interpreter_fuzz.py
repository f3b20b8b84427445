"""Random functions do in tier 1 what they do in Python: result, changed arguments, order of effects, exception type and message."""
from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

from bcvm.bytecode.verifier import verify
from bcvm.frontend import program_of
from bcvm.vm.interpreter import execute, run
from tests.programs import outcome, same
from tests.programs.fuzz import arguments, generate

FIRST, COUNT = int(os.environ.get("BCVM_FUZZ_SEED", "0")), int(os.environ.get("BCVM_FUZZ_COUNT", "600"))
BATCH = 50


class Hop:
    """Goes on in a new frame at every safe point."""

    def at_loop(self, frame: Any) -> Any:
        return True, execute(type(frame)(frame.bound, frame.pc + 1, list(frame.locals), list(frame.stack)), self)

    def after_call_py(self, frame: Any) -> Any:
        return True, execute(type(frame)(frame.bound, frame.pc, list(frame.locals), list(frame.stack)), self)


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_random_functions_do_what_python_does(first: int) -> None:
    for seed in range(first, first + BATCH):
        function, text = generate(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bound = program_of(function)  # its source must be believed
            warnings.simplefilter("ignore")
            verify(bound.program)
            for args in arguments(seed):
                function.__globals__["g"] = 5
                expected = outcome(function, args)
                for hooks in (None, Hop()):
                    function.__globals__["g"] = 5
                    got = outcome(lambda *a, h=hooks, b=bound: run(b, a, None, h), args)  # type: ignore[misc]
                    assert expected.error == got.error and same(expected, got), f"seed {seed}, arguments {args[1:]}\n{text}\n{expected}\n{got}"
