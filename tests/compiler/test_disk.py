"""Kernels kept on disk are used only if they are whole and from a folder of one's own."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from bcvm.compiler import disk, llvm
from bcvm.compiler.region import KernelSource
from bcvm.compiler.runtime import runtime
from bcvm.compiler.table import KernelTable

SOURCE = KernelSource("k", "define i32 @k(ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi) { ret i32 0 }", "test-disk")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime()  # has files of its own
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compiled(source: KernelSource = SOURCE) -> int:
    table = KernelTable()
    table.kernel("key", lambda: source)
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


def test_other_text_is_another_file(folder: Path) -> None:
    compiled()
    assert compiled(KernelSource("k", SOURCE.ir + "\n", SOURCE.key)) == 1


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
