"""Files that later processes may use: a magic word, the SHA-256 of the rest, and the rest; the name is the hash of all that it depends on.

What does not check out counts as not there. The compile process loads this file alone: it imports nothing of the package. Files are only taken from a folder that belongs to this user and that nobody else may write to: code is run from it.

Folder: BCVM_KERNEL_CACHE, else $XDG_CACHE_HOME/bcvm, else ~/.cache/bcvm; `BCVM_KERNEL_CACHE=off` keeps nothing.
"""
from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

MAGIC = b"BCVMK1\0\0"
MAX_FILES = 4096   # beyond it the half goes that was not used for longest
MAX_BYTES = 1 << 24


def keeps() -> bool:
    """Whether there is a folder."""
    return _folder(os.environ.get("BCVM_KERNEL_CACHE", "")) is not None


def remembered(depends: str, make: Callable[[], bytes]) -> bytes:
    """What was kept for this, else what `make` gives, kept from now on."""
    found = read(depends)
    if found is None:
        found = make()
        write(depends, found)
    return found


def read(depends: str) -> bytes | None:
    folder = _folder(os.environ.get("BCVM_KERNEL_CACHE", ""))
    if folder is None:
        return None
    try:
        with open(folder / _name(depends), "rb") as f:
            data = f.read(MAX_BYTES)
            with suppress(OSError):
                os.utime(f.fileno())  # what is used stays
    except OSError:
        return None
    body = data[len(MAGIC) + 32:]
    intact = data.startswith(MAGIC) and hashlib.sha256(body).digest() == data[len(MAGIC):len(MAGIC) + 32]
    return body if intact else None


def write(depends: str, body: bytes) -> None:
    """A full or read-only disk is no error."""
    place = path(depends)
    if place is not None:
        put(place, body)


def path(depends: str) -> str | None:
    """The file for this; whoever is given its name may put it there."""
    folder = _folder(os.environ.get("BCVM_KERNEL_CACHE", ""))
    return os.path.join(folder, _name(depends)) if folder is not None else None


def put(path: str, body: bytes) -> None:
    """Make this file."""
    if len(body) > MAX_BYTES - 64:
        return
    folder, name = os.path.split(path)
    try:
        temporary = os.path.join(folder, f"new-{os.getpid()}-{threading.get_ident()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as f:
            f.write(MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
        if name.startswith("0"):  # names are hashes: every sixteenth looks how many there are
            _prune(folder)
    except OSError:
        return


def _name(depends: str) -> str:
    return hashlib.sha256(depends.encode()).hexdigest()[:40]


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


def _prune(folder: str) -> None:
    names = os.listdir(folder)
    if len(names) <= MAX_FILES:
        return
    aged = sorted((os.stat(os.path.join(folder, n)).st_mtime, n) for n in names)
    for _, n in aged[:len(aged) // 2]:
        os.unlink(os.path.join(folder, n))
