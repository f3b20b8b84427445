"""Kernels kept on disk are used only if they are whole and from a folder of one's own."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from bcvm.compiler import disk, llvm
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
