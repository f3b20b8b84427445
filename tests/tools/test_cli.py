"""The command line in processes of its own: outputs, exit codes, errors that say what to do."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bcvm.bytecode.binary import encode
from bcvm.bytecode.program import Code, Param, Position, Program

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = Program("identity", "model.py", (Code(0x03, (0,)), Code(0x24)), params=(Param("x"),), locals=("x",),
                   positions=(Position(2, 11), Position(2, 4)), first_line=1)
SCRIPT = '''
import sys
import numpy as np
import bcvm

@bcvm.jit
def double(x):
    return x + x

def plain(x):
    return np.maximum(x, 0)

class Layer:
    def forward(self, x):
        return x * 2.0

NUMBER = 3

if __name__ == "__main__":
    print("arguments", sys.argv[1:], double(np.ones((2, 3), np.float32)).sum())
    if "fail" in sys.argv:
        raise KeyError("from the script")
    if "exit" in sys.argv:
        sys.exit(7)
'''


def bcvm(*args, cwd, **variables):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run([sys.executable, "-m", "bcvm", *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "identity.bc").write_bytes(encode(IDENTITY))
    return tmp_path


def test_no_command_and_unknown_options_are_wrong_usage(folder):
    for args in ([], ["walk"], ["dis"], ["run", "--tier", "fast", "script.py"]):
        done = bcvm(*args, cwd=folder)
        assert done.returncode == 2 and "usage: bcvm" in done.stderr


def test_dis_asm_and_verify_go_round(folder):
    text = bcvm("dis", "identity.bc", cwd=folder)
    assert text.returncode == 0 and "Bytecode dump for identity:" in text.stdout, text.stderr
    (folder / "again.txt").write_text(text.stdout)
    made = bcvm("asm", "again.txt", "-o", "again.bc", cwd=folder)
    assert made.returncode == 0 and made.stdout == f"again.bc: identity, 2 instructions, {(folder / 'again.bc').stat().st_size} bytes\n", made.stderr
    assert (folder / "again.bc").read_bytes() == (folder / "identity.bc").read_bytes()
    assert bcvm("verify", "again.bc", cwd=folder).stdout == "again.bc: verified, identity, 2 instructions\n"


def test_verify_names_every_bad_file_and_fails(folder):
    data = (folder / "identity.bc").read_bytes()
    (folder / "cut.bc").write_bytes(data[:-3])
    (folder / "other.bc").write_bytes(b"not bytecode at all")
    done = bcvm("verify", "cut.bc", "identity.bc", "other.bc", "gone.bc", cwd=folder)
    assert done.returncode == 1
    assert [line.split(":")[0].removeprefix("bcvm") for line in done.stderr.splitlines()] == ["cut.bc", "other.bc", "gone.bc"]
    assert done.stdout == "identity.bc: verified, identity, 2 instructions\n"


@pytest.mark.parametrize("args", [("asm", "bad.txt"), ("dis", "bad.bc"), ("dis", "gone.bc"), ("asm", "gone.txt"), ("asm", "binary.txt")])
def test_bad_files_are_refused_by_name_without_a_traceback(folder, args):
    (folder / "bad.txt").write_text("0x0000: WALK 3\n")
    (folder / "bad.bc").write_bytes(b"BCVM\x01\x00\x00\x00 and then nothing")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    done = bcvm(*args, cwd=folder)
    assert done.returncode == 1 and done.stderr.startswith(f"bcvm: {args[1]}: ") and "Traceback" not in done.stderr
    assert not (folder / "bad.bc.bc").exists()


def test_asm_does_not_overwrite_its_input(folder):
    source = bcvm("dis", "identity.bc", cwd=folder).stdout
    (folder / "text.bc").write_text(source)
    done = bcvm("asm", "text.bc", cwd=folder)
    assert done.returncode == 1 and "would be overwritten" in done.stderr and (folder / "text.bc").read_text() == source


@pytest.mark.parametrize(("target", "message"), [
    ("script.py", "names no function"), ("script.py:absent", "has no 'absent'; it defines: Layer, double, plain"), ("gone.py:f", "gone.py: No such file"),
    ("no_such_module:f", "importing no_such_module failed"), ("script.py:NUMBER", "script.py:NUMBER is an object of type int, not a function"),
])
def test_a_target_that_is_not_there_is_explained(folder, target, message):
    done = bcvm("dis", target, cwd=folder)
    assert done.returncode == 1 and message in done.stderr and done.stdout == ""


def test_dis_shows_functions_of_a_script_decorated_or_not(folder):
    for name, shown in (("double", "double"), ("plain", "plain"), ("Layer.forward", "Layer.forward")):
        done = bcvm("dis", f"script.py:{name}", cwd=folder)
        assert done.returncode == 0 and f"Bytecode dump for {shown}:" in done.stdout, done.stderr
        assert "arguments" not in done.stdout, "the script's main part must not run"
    assert bcvm("dis", "script:plain", cwd=folder).returncode == 0


def test_run_passes_arguments_and_reports(folder):
    done = bcvm("run", "script.py", "--dump", "a b", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("arguments ['--dump', 'a b'] 12.0\n")
    assert "double (script.py:6)" in done.stdout or "double (script.py:7)" in done.stdout
    assert "recompiles" in done.stdout and "JIT Cache: " in done.stdout and "Bytecode dump" not in done.stdout


def test_run_dumps_on_request_and_can_be_quiet(folder):
    done = bcvm("run", "--dump", "--quiet", "script.py", cwd=folder)
    assert done.returncode == 0 and "Bytecode dump for double:" in done.stdout and "JIT Cache" not in done.stdout


def test_run_ends_with_the_scripts_own_code_and_still_reports(folder):
    left, failed = bcvm("run", "script.py", "exit", cwd=folder), bcvm("run", "script.py", "fail", cwd=folder)
    assert (left.returncode, failed.returncode) == (7, 1)
    assert "JIT Cache" in left.stdout and "JIT Cache" in failed.stdout
    assert "KeyError: 'from the script'" in failed.stderr and "cli.py" not in failed.stderr
    assert bcvm("run", "gone.py", cwd=folder).stderr == "bcvm: gone.py: no such file\n"


def test_explain_takes_the_calls_arguments(folder):
    done = bcvm("explain", "script.py:plain", "--args", "np.ones((2, 3), np.float32)", cwd=folder)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    bad = bcvm("explain", "script.py:plain", "--args", "np.ones(", cwd=folder)
    assert bad.returncode == 1 and "SyntaxError" in bad.stderr and "Traceback" not in bad.stderr


def test_run_writes_a_trace(folder):
    done = bcvm("run", "--trace", "t.json", "--quiet", "script.py", cwd=folder)
    assert done.returncode == 0 and "trace: t.json" in done.stderr
    assert '"name": "interpret double"' in (folder / "t.json").read_text()


def test_run_reports_where_no_trace_can_be_written(folder):
    (folder / "file").write_text("")
    done = bcvm("run", "--trace", "file/t.json", "script.py", cwd=folder)
    assert done.returncode == 1 and "bcvm: file/t.json: " in done.stderr and "there is no trace" in done.stderr
    assert "JIT Cache" in done.stdout and "Traceback" not in done.stderr


def test_run_takes_a_file(folder):
    assert bcvm("run", ".", cwd=folder).stderr == "bcvm: .: is a folder\n"
