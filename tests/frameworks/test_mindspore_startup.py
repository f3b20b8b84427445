"""Before MindSpore is there: what bcvm.mindspore says without it, and what bcvm.pth does at the start of Python."""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

import bcvm
import bcvm.mindspore

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PTH = os.path.join(ROOT, "bcvm.pth")


def start(value, code):
    """What Python prints that executed bcvm.pth, as `site` does, under the variable."""
    env = {k: v for k, v in os.environ.items() if k != "MS_ENABLE_BYTECODE_VM"} | {"PYTHONPATH": ROOT} | ({} if value is None else {"MS_ENABLE_BYTECODE_VM": value})
    line = open(PTH, encoding="utf-8").read().strip()
    assert line.startswith("import ") and "\n" not in line
    done = subprocess.run([sys.executable, "-c", f"{line}\nimport sys\n{code}"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize("value, loaded", [(None, []), ("", []), ("1", ["bcvm", "bcvm.config", "bcvm.errors", "bcvm.startup"])])
def test_the_pth_file_does_nothing_unless_the_variable_is_set(value, loaded):
    printed, said = start(value, "print(sorted(m for m in sys.modules if m.startswith('bcvm') or m in ('numpy', 'mindspore', 'llvmlite')))")
    assert printed == str(loaded) and not said


@pytest.mark.parametrize("value", ["0", "off", "nonsense"])
def test_other_values_switch_nothing_on(value):
    printed, said = start(value, "print([f for f in sys.meta_path if type(f).__name__ == '_Waiting'])")
    assert printed == "[]" and ("nonsense" in said) == (value == "nonsense")


def test_a_program_that_imports_no_mindspore_is_left_alone():
    printed, said = start("1", "import json, numpy\nprint('mindspore' in sys.modules)")
    assert printed == "False" and not said


def test_modes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="instead_of='graph'"):
        bcvm.mindspore.enable(instead_of="graph")


@pytest.mark.skipif(importlib.util.find_spec("mindspore") is not None, reason="MindSpore is installed here")
def test_without_mindspore_it_is_said_what_is_missing():
    for use in (bcvm.mindspore.enable, bcvm.mindspore.diagnose):
        with pytest.raises(ModuleNotFoundError, match="pip install"):
            use()
    bcvm.mindspore.disable()
    assert not bcvm.mindspore.enabled() and bcvm.mindspore.functions() == [] and bcvm.mindspore.counters() == {}
    assert bcvm.mindspore.BYTECODE_VM is not None and "mindspore" not in bcvm.__all__
