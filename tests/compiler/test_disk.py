"""Kernels kept on disk are used only if they are whole and from a folder of one's own."""
from __future__ import annotations

import hashlib
import marshal
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bcvm
from bcvm.compiler import disk, llvm, store
from bcvm.compiler.region import KernelSource, RegionOutput, RegionSpec, Step
from bcvm.compiler.runtime import runtime
from bcvm.compiler.table import KernelTable

SOURCE = KernelSource("k", "define i32 @k(ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi) { ret i32 0 }", "test-disk")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime()  # has files of its own
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compiled(key: object = "key") -> int:
    table = KernelTable()
    table.kernel(key, lambda: SOURCE)
    table.acquire([key])
    return table.compiled


def test_a_second_table_reads_what_the_first_one_compiled(folder: Path) -> None:
    assert compiled() == 1
    assert len(os.listdir(folder)) == 1
    assert compiled() == 0


def test_a_damaged_file_is_compiled_again(folder: Path) -> None:
    compiled()
    (file,) = folder.iterdir()
    for damage in (b"", b"junk", file.read_bytes()[:-1], file.read_bytes()[:-1] + b"\0\0"):
        file.write_bytes(damage)
        assert compiled() == 1
        assert compiled() == 0


def test_another_kernel_is_another_file(folder: Path) -> None:
    compiled()
    assert compiled("another key") == 1 and compiled("another key") == 0


def test_what_other_generators_made_is_not_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    monkeypatch.setattr(disk, "generators", lambda: "changed")
    assert compiled() == 1 and compiled() == 0


def test_keys_tell_zeros_of_either_sign_apart(folder: Path) -> None:
    def key(zero: float) -> RegionSpec:
        return RegionSpec(1, (), (Step("const", (), "float32", (("value", zero),)),), (RegionOutput(0, "float32"),))
    assert compiled(key(0.0)) == 1 and compiled(key(-0.0)) == 1


def test_other_text_is_another_file(folder: Path) -> None:
    disk.write(SOURCE, b"code")
    assert disk.read(SOURCE) == b"code"
    assert disk.read(KernelSource("k", SOURCE.ir + "\n", SOURCE.key)) is None


def test_a_kernel_on_disk_needs_no_text(folder: Path) -> None:
    compiled()

    def generate() -> KernelSource:
        raise AssertionError("generated")

    assert KernelTable().kernel("key", generate).size > 0


def test_off_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCVM_KERNEL_CACHE", "off")
    assert compiled() == 1 and compiled() == 1
    assert not folder.exists()


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    folder.mkdir()
    os.chmod(folder, 0o777)
    assert disk.read(SOURCE) is None
    assert compiled() == 1 and compiled() == 1


def test_a_folder_that_cannot_be_made_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCVM_KERNEL_CACHE", "/dev/null/kernels")
    disk.write(SOURCE, llvm.compile_ir(SOURCE.ir))
    assert compiled() == 1


def test_of_too_many_files_those_stay_that_were_used_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_FILES", 7)
    names = [f"text {n}" for n in range(8)]
    for at, name in enumerate(names):
        store.write(name, b"code")
        os.utime(store.path(name) or "", (at, at))
    assert store.read(names[0]) == b"code"
    store._prune(str(folder))
    assert [name for name in names if store.read(name)] == [names[0], *names[5:]]


def requests(folder: Path, program: str, argument: int) -> int:
    """How often a process of its own asks LLVM while it runs this program."""
    script = folder / "program.py"
    script.write_text(f"""
import sys, numpy as np, bcvm
from bcvm.compiler.process import process
asked, begin = [], process.begin
process.begin = lambda *request: (asked.append(1), begin(*request))[1]
{program}
print(len(asked))
""")
    done = subprocess.run([sys.executable, script, str(argument)], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    return int(done.stdout)


LATER = """
padding = [bytearray(n) for n in range(int(sys.argv[1]))]  # objects lie elsewhere
w = np.full(8, float(sys.argv[1]))

class Layer:
    scale = 2.0

layer = Layer()

@bcvm.jit(tier="full")
def f(x, *, shift):
    total = 0.0
    for row in x:
        total = total + (row * w * layer.scale).sum()
    return np.tanh(x @ w) + shift, total

x = np.arange(24.0).reshape(3, 8)
for n in (1, 3):
    y, total = f(x[:n], shift=1)
    assert np.allclose(y, np.tanh(x[:n] @ w) + 1) and np.isclose(total, (x[:n] * w * 2).sum())
layer.scale = 3.0
assert np.isclose(f(x, shift=1)[1], (x * w * 3).sum())
assert f.stats()["native"] == 3, f.stats()
"""
EITHER_ORDER = """
x = np.arange(6.0)
def first(x): return np.tanh(x) + 1
def second(x): return np.exp(x) * 2
for f in (first, second) if sys.argv[1] == "1" else (second, first):
    made = bcvm.jit(f, tier="full")
    assert np.allclose(made(x), f(x)) and made.stats()["native"] == 1
"""


def test_a_later_process_asks_llvm_for_nothing(folder: Path, tmp_path: Path) -> None:
    assert requests(tmp_path, LATER, 3) > 0
    assert requests(tmp_path, LATER, 5000) == 0


def test_a_function_is_found_whatever_was_compiled_before(folder: Path, tmp_path: Path) -> None:
    assert requests(tmp_path, EITHER_ORDER, 1) > 0
    assert requests(tmp_path, EITHER_ORDER, 2) == 0


def test_a_module_that_cannot_be_loaded_is_made_anew(folder: Path) -> None:
    def f(x: np.ndarray) -> np.ndarray:
        return x * 7 + 1
    x = np.arange(5.0)
    bcvm.jit(f, tier="full")(x)
    kept = list(folder.iterdir())
    for file in kept:
        body = marshal.dumps(("entry", b"no object"))
        file.write_bytes(store.MAGIC + hashlib.sha256(body).digest() + body)
    again = bcvm.jit(f, tier="full")
    assert again(x).tolist() == (x * 7 + 1).tolist() and again.stats()["native"] == 1
