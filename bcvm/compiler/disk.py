"""Kernels on disk: their object code refers to nothing outside itself, so one process can use what another compiled.

A file is a magic word, the SHA-256 of the rest, and the ELF object; its name is the hash of all that the code depends on. What does not check out is
compiled again. Files are only taken from a folder that belongs to this user and that nobody else may write to: code is run from it.

Folder: BCVM_KERNEL_CACHE, else $XDG_CACHE_HOME/bcvm, else ~/.cache/bcvm; `BCVM_KERNEL_CACHE=off` keeps nothing.
"""
from __future__ import annotations

import hashlib
import os
import stat
import threading
from functools import lru_cache
from pathlib import Path

from bcvm.compiler import abi
from bcvm.compiler.region import KernelSource
from bcvm.compiler.target import Target, host

MAGIC = b"BCVMK1\0\0"
MAX_FILES = 4096   # beyond it the oldest half goes
MAX_BYTES = 1 << 24


def read(source: KernelSource) -> bytes | None:
    """The object of a kernel, or None."""
    folder = _folder(os.environ.get("BCVM_KERNEL_CACHE", ""))
    if folder is None:
        return None
    try:
        with open(folder / _name(source), "rb") as f:
            data = f.read(MAX_BYTES)
    except OSError:
        return None
    body = data[len(MAGIC) + 32:]
    intact = data.startswith(MAGIC) and hashlib.sha256(body).digest() == data[len(MAGIC):len(MAGIC) + 32]
    return body if intact else None


def write(source: KernelSource, code: bytes) -> None:
    """Keep the object of a kernel for later processes; a full or read-only disk is no error."""
    folder = _folder(os.environ.get("BCVM_KERNEL_CACHE", ""))
    if folder is None or len(code) > MAX_BYTES - 64:
        return
    try:
        temporary = folder / f"new-{os.getpid()}-{threading.get_ident()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as f:
            f.write(MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(temporary, folder / _name(source))
        _prune(folder)
    except OSError:
        return


def keeps() -> bool:
    """Whether there is a folder for what is compiled."""
    return _folder(os.environ.get("BCVM_KERNEL_CACHE", "")) is not None


def _name(source: KernelSource) -> str:
    return hashlib.sha256(f"{source.ir} {_versions(host())}".encode()).hexdigest()[:40]


@lru_cache(maxsize=4)
def _versions(target: Target) -> str:
    """All that the code of a kernel depends on besides its text."""
    import llvmlite
    table = [name for name, _ in abi.TABLE]
    return f"{llvmlite.__version__} {target} {table} {abi.CTX_WORDS}"


@lru_cache(maxsize=8)
def _folder(said: str) -> Path | None:
    if said.lower() in ("off", "0", "no", "false"):
        return None
    try:
        folder = Path(said) if said else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bcvm"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except (OSError, RuntimeError):
        return None
    mine = info.st_uid == os.getuid() and not stat.S_IMODE(info.st_mode) & 0o022
    return folder if mine else None


def _prune(folder: Path) -> None:
    names = os.listdir(folder)
    if len(names) <= MAX_FILES:
        return
    aged = sorted((os.stat(folder / n).st_mtime, n) for n in names)
    for _, n in aged[:len(aged) // 2]:
        os.unlink(folder / n)
