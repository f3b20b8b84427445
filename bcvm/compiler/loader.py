"""Puts object code into memory that can be executed: an ELF loader of our own over a code arena.

Code memory is one memfd per segment, mapped twice, readable-writable and readable-executable: no page is both. After a fork
both processes share the segments that existed; each leaves them as they are and allocates from new ones, so neither can
change code under the other. A segment from before a fork is unmapped as a whole when its last code is released.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from bcvm.compiler import elf
from bcvm.errors import CompileError
from bcvm.turns import checkpoint

SEGMENT_BYTES = 1 << 20
_ALIGN = 64

# Relocation types (System V ABI, AMD64 supplement, table 4.9).
_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_32, _R_32S, _R_PC64, _R_GOTPCRELX, _R_REX_GOTPCRELX = 1, 2, 4, 9, 10, 11, 24, 41, 42
_GOT_KINDS = frozenset((_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map(size: int, protection: int, fd: int) -> int:
    address = _libc().mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise CompileError(f"cannot map code memory: {os.strerror(ctypes.get_errno())}")
    return int(address)


@dataclass(eq=False)
class _Segment:
    """`free`: (offset, size) of the gaps, sorted, never adjacent. `rw` is where code is written, `rx` where it runs."""

    rw: int
    rx: int
    size: int
    free: list[tuple[int, int]]
    used: int = 0
    frozen: bool = False

    @classmethod
    def make(cls, size: int) -> _Segment:
        try:
            fd = os.memfd_create("bcvm-code", os.MFD_CLOEXEC)
        except OSError as e:
            raise CompileError(f"cannot make code memory: {e}") from None
        try:
            os.ftruncate(fd, size)
            rw = _map(size, mmap.PROT_READ | mmap.PROT_WRITE, fd)
            try:
                rx = _map(size, mmap.PROT_READ | mmap.PROT_EXEC, fd)
            except CompileError:
                _libc().munmap(rw, size)
                raise
        finally:
            os.close(fd)
        return cls(rw, rx, size, [(0, size)])

    def take(self, size: int) -> int | None:
        for i, (at, gap) in enumerate(self.free):
            if gap >= size:
                self.free[i:i + 1] = [(at + size, gap - size)] if gap > size else []
                self.used += size
                return at
        return None

    def give(self, at: int, size: int) -> None:
        self.used -= size
        if self.frozen:
            return
        gaps = sorted([*self.free, (at, size)])
        merged = [gaps[0]]
        for start, length in gaps[1:]:
            last, last_length = merged[-1]
            if last + last_length == start:
                merged[-1] = (last, last_length + length)
            else:
                merged.append((start, length))
        self.free = merged

    def unmap(self) -> None:
        _libc().munmap(self.rw, self.size)
        _libc().munmap(self.rx, self.size)


@dataclass(eq=False)
class _Arena:
    segments: list[_Segment] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, size: int) -> tuple[_Segment, int]:
        with self.lock:
            for segment in self.segments:
                if not segment.frozen and (at := segment.take(size)) is not None:
                    return segment, at
            segment = _Segment.make(max(SEGMENT_BYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE))
            self.segments.append(segment)
            at = segment.take(size)
            assert at is not None
            return segment, at

    def free(self, segment: _Segment, at: int, size: int) -> None:
        with self.lock:
            segment.give(at, size)
            if not segment.used and (segment.frozen or segment.size > SEGMENT_BYTES):
                self.segments.remove(segment)
                segment.unmap()

    def freeze(self) -> None:
        for segment in self.segments:
            segment.frozen = True
        for segment in [s for s in self.segments if not s.used]:
            self.segments.remove(segment)
            segment.unmap()

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork(self) -> None:
        self.freeze()
        self.lock.release()


_arena = _Arena()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_arena.before_fork, after_in_parent=_arena.after_fork, after_in_child=_arena.after_fork)


class LoadedCode:
    """Code in memory. It stays until `release`; who may still run it is the caller's business. Dropping the object does not free it."""

    __slots__ = ("_segment", "_at", "size", "_symbols", "_released")

    def __init__(self, segment: _Segment, at: int, size: int, symbols: dict[str, int]) -> None:
        self._segment, self._at, self.size, self._symbols, self._released = segment, at, size, symbols, False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._symbols)

    def address(self, name: str) -> int:
        """Where the function `name` starts. CompileError: no such function, or the code was released."""
        if self._released:
            raise CompileError(f"{name!r} belongs to code that was released")
        try:
            return self._symbols[name]
        except KeyError:
            raise CompileError(f"no function {name!r} in this code; it has {', '.join(self._symbols)}") from None

    def release(self) -> None:
        """Gives the memory back. Nothing may run it any more."""
        if not self._released:
            self._released = True
            _arena.free(self._segment, self._at, self.size)


def forever(size: int) -> int:
    """The address of zeroed pages that stay until the process ends."""
    address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise CompileError(f"no memory: {os.strerror(ctypes.get_errno())}")
    return int(address)


def code_bytes() -> int:
    """Bytes of code memory in use in this process."""
    return sum(s.used for s in _arena.segments)


def _place(object_file: elf.Elf) -> tuple[dict[int, int], int]:
    """Offset of each section that is loaded, and the size of all."""
    offsets: dict[int, int] = {}
    end = 0
    for i, s in enumerate(object_file.sections):
        if not s.flags & elf.SHF_ALLOC or s.size == 0 or s.name.startswith((".eh_frame", ".note")):
            continue
        if s.kind == elf.SHT_NOBITS or (s.flags & elf.SHF_WRITE and not s.name.startswith(".data.rel.ro")):
            raise CompileError(f"generated code has writable data in section {s.name}; put it into memory of your own and pass the address")
        if s.align > mmap.PAGESIZE or s.align & (s.align - 1):
            raise CompileError(f"malformed object file: section {s.name} is aligned to {s.align}")
        align = max(s.align, _ALIGN if s.flags & elf.SHF_EXECINSTR else 1)
        end = -(-end // align) * align
        offsets[i] = end
        end += s.size
    return offsets, end


def load(obj: bytes, addresses: Mapping[str, int] | None = None) -> LoadedCode:
    """Loads an object that LLVM made. addresses: of the symbols that it expects from elsewhere. CompileError: other such symbols, writable data, or
    an unknown relocation."""
    try:
        return _load(obj, addresses or {})
    except (struct.error, IndexError) as e:
        raise CompileError(f"malformed object file: {e}") from None


def _load(obj: bytes, addresses: Mapping[str, int]) -> LoadedCode:
    checkpoint()
    parsed = elf.read(obj)
    parsed.expect_complete(addresses)
    offsets, end = _place(parsed)
    if not offsets:
        raise CompileError("the object has no code")
    tables = [(s, parsed.relocations(s)) for s in parsed.sections if s.kind == elf.SHT_RELA and s.info in offsets]
    wanted = sorted({symbol for _, rows in tables for _, kind, symbol, _ in rows if kind in _GOT_KINDS})
    got_at = -(-end // 8) * 8
    got = {symbol: got_at + 8 * i for i, symbol in enumerate(wanted)}
    size = -(-(got_at + 8 * len(wanted)) // _ALIGN) * _ALIGN
    segment, at = _arena.allocate(size)
    try:
        base = segment.rx + at
        image = bytearray(size)
        for i, offset in offsets.items():
            s = parsed.sections[i]
            image[offset:offset + s.size] = obj[s.offset:s.offset + s.size]
        for index, slot in got.items():
            struct.pack_into("<Q", image, slot, _value(parsed, index, offsets, base, addresses))
        for table, rows in tables:
            for offset, kind, symbol, addend in rows:
                _relocate(parsed, image, offsets[table.info] + offset, kind, symbol, addend, offsets, got, base, addresses)
        ctypes.memmove(segment.rw + at, bytes(image), size)
    except BaseException:
        _arena.free(segment, at, size)
        raise
    symbols = {s.name: base + offsets[s.section] + s.value for s in parsed.symbols if s.name and s.section in offsets and not s.is_section}
    code = LoadedCode(segment, at, size, symbols)
    return code


def place(code: bytes, name: str) -> LoadedCode:
    """Loads position independent machine code as it is; its first byte is `name`."""
    size = -(-len(code) // _ALIGN) * _ALIGN
    segment, at = _arena.allocate(size)
    ctypes.memmove(segment.rw + at, code, len(code))
    loaded = LoadedCode(segment, at, size, {name: segment.rx + at})
    return loaded


def _value(parsed: elf.Elf, index: int, offsets: dict[int, int], base: int, addresses: Mapping[str, int]) -> int:
    symbol = parsed.symbols[index]
    if symbol.section == 0 and symbol.name in addresses:
        return addresses[symbol.name]
    if symbol.section not in offsets:
        raise CompileError(f"relocation against {symbol.name or 'an unnamed symbol'}, which is not loaded")
    return base + offsets[symbol.section] + symbol.value


def _relocate(parsed: elf.Elf, image: bytearray, place: int, kind: int, symbol: int, addend: int, offsets: dict[int, int], got: dict[int, int],
              base: int, addresses: Mapping[str, int]) -> None:
    if place < 0:
        raise CompileError("malformed object file: relocation outside its section")
    if kind in _GOT_KINDS:
        struct.pack_into("<i", image, place, got[symbol] + addend - place)
        return
    value = _value(parsed, symbol, offsets, base, addresses) + addend
    if kind in (_R_PC32, _R_PLT32):
        struct.pack_into("<i", image, place, value - base - place)
    elif kind == _R_64:
        struct.pack_into("<Q", image, place, value)
    elif kind == _R_PC64:
        struct.pack_into("<q", image, place, value - base - place)
    else:
        raise CompileError(f"relocation type {kind} is not supported; compile position independent code")
