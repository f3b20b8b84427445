"""The library of stencils of this machine: read from the disk cache, or built piece by piece in the background and kept there."""
from __future__ import annotations

import hashlib
import marshal
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from bcvm.compiler import disk, loader, store
from bcvm.compiler.region import KernelSource
from bcvm.compiler.splice import encode, stencils
from bcvm.compiler.splice.decode import PATTERNS
from bcvm.compiler.splice.stencils import POOL_REGISTER, Code, Key, Record
from bcvm.compiler.target import host
from bcvm.errors import CompileError
from bcvm.ops.definition import OPS, ScalarExpr

PIECE = 8  # stencils compiled at a time: other compilations wait no longer than for one piece


MASKS = 32       # mask registers are numbered from here
FIRST_MASK = 2   # of those that are given out: k0 means no mask, k1 is the mask of a row's end


class Role(dict[int, int]):
    """What to flip in a stencil's code so that this operand is in a register; made when first asked for."""

    def __init__(self, fields: list[tuple[int, int]]) -> None:
        self.fields = fields

    def __missing__(self, register: int) -> int:
        bits, number = 0, register % MASKS
        for kind, shift in self.fields:
            bits ^= PATTERNS[kind][number] << shift
        self[register] = bits
        return bits


class Pinned(dict[int, tuple[int, bytes]]):
    """A stencil that has its constants in registers: first of these registers -> code, instructions that load them."""

    def __init__(self, code: int, constants: list[tuple[tuple[int, int], Role]]) -> None:
        self.code, self.constants = code, constants

    def __missing__(self, base: int) -> tuple[int, bytes]:
        code, loads = self.code, b""
        for n, ((place, size), role) in enumerate(self.constants):
            code ^= role[base + n]
            loads += encode.pooled(base + n, POOL_REGISTER, place, size)
        self[base] = code, loads
        return code, loads


class Form:
    """One way to write a stencil. code: a little-endian number of `size` bytes, what it uses in between in the registers from 0 and from k2 on.
    arguments, result: where their registers are named. constants: those in registers, and what their code is then."""

    __slots__ = ("code", "size", "arguments", "result", "constants", "pinned", "shares", "all_share")

    def __init__(self, record: Record, code: Code) -> None:
        self.code, self.size = int.from_bytes(code.text, "little"), len(code.text)
        fields: list[list[tuple[int, int]]] = [[] for _ in range(len(record.roles) + len(code.constants))]
        words = memoryview(code.fields).cast("H")
        for role, kind, at in zip(words[::3], words[1::3], words[2::3], strict=True):
            fields[role].append((kind, 8 * at))
        n, end = record.arguments, len(record.roles)
        self.arguments, self.result = [Role(f) for f in fields[:n]], Role(fields[n])
        between = [0, MASKS + FIRST_MASK]
        for one, places in zip(record.roles[n + 1:], fields[n + 1:end], strict=True):
            self.code ^= Role(places)[between[one == "k"]]
            between[one == "k"] += 1
        self.constants = len(code.constants)
        self.pinned = Pinned(self.code, list(zip(code.constants, map(Role, fields[end:]), strict=True)))
        self.shares = record.shares
        self.all_share = len(record.shares) == n


class Stencil:
    """plain: constants in memory, if `pool`; pinned: in registers, or None. vectors, masks: registers that it uses in between."""

    __slots__ = ("plain", "pinned", "pool", "vectors", "masks", "instructions", "cost")

    def __init__(self, record: Record) -> None:
        self.plain = Form(record, Code(*record.plain))
        self.pinned = None if record.pinned is None else Form(record, Code(*record.pinned))
        self.pool, self.instructions, self.cost = record.pool, record.instructions, record.cost
        between = record.roles[record.arguments + 1:]
        self.vectors, self.masks = between.count("v"), between.count("k")


class Library(dict[Key, Stencil]):
    """Key -> stencil; KeyError where there is none. records: not unpacked before they are asked for. pool: the address of the constants."""

    def __init__(self, records: dict[Key, bytes], pool: bytes) -> None:
        self.records = records
        self._pool = loader.place(pool or bytes(8), "constants")
        self.pool = self._pool.address("constants")

    def __missing__(self, key: Key) -> Stencil:
        made = self[key] = Stencil(Record(*marshal.loads(self.records[key])))
        return made


def source() -> KernelSource:
    """What the library is made of, for the disk cache: the text of the files that say what its stencils do."""
    here = os.path.dirname(__file__)
    files = {os.path.join(here, name) for name in ("library.py", "stencils.py", "decode.py")}
    files |= {os.path.join(os.path.dirname(here), "kernels", name) for name in ("vector.py", "math.py", "division.py", "plan.py", "text.py")}
    files |= {op.form.expr.__code__.co_filename for op in OPS.values() if isinstance(op.form, ScalarExpr) and hasattr(op.form.expr, "__code__")}
    text = hashlib.sha256(f"{sys.version} {sorted(OPS)}".encode())
    for name in sorted(files):
        try:
            with open(name, "rb", buffering=0) as f:
                text.update(f.read())
        except OSError:
            text.update(name.encode())  # an op that was typed in
    return KernelSource("stencils", text.hexdigest(), "stencils")


def read() -> Library | None:
    """The library that is kept on disk, if any."""
    kept = disk.read(source())
    if kept is None:
        return None
    try:
        return Library(*marshal.loads(kept))
    except (ValueError, EOFError, TypeError, CompileError):
        return None  # of another Python: built again


def pieces() -> Iterator[Library | None]:
    """Build the library, a piece a turn; the last turn gives it."""
    target, pool = host(), stencils.Pool()
    wanted = list(stencils.requests())
    records: dict[Key, Record] = {}
    for i in range(0, len(wanted), PIECE):
        records |= stencils.build(wanted[i:i + PIECE], target, pool)
        yield None
    data: Any = ({key: marshal.dumps(_plain(record)) for key, record in records.items()}, bytes(pool.data))
    disk.write(source(), marshal.dumps(data))
    yield Library(*data)


def _plain(value: Any) -> Any:
    """Named tuples as tuples: what marshal takes."""
    return tuple(_plain(v) for v in value) if isinstance(value, tuple) else value


class _State:
    """made: the library. turns: what builds it, once it was not found on disk. failed: why there can be none."""

    made: Library | None = None
    turns: Iterator[Library | None] | None = None
    failed = ""
    prepared = False
    waiting: ClassVar[list[Callable[[], None]]] = []


_state = _State()
_lock = threading.Lock()


def _advance() -> bool:
    """A step towards the library; whether it was the last."""
    with _lock:
        if _state.made is not None or _state.failed:
            return True
        try:
            if _state.turns is None:
                if not host().avx512:
                    raise CompileError("stencils are made for AVX-512 only")
                _state.made, _state.turns = read(), pieces()
            else:
                _state.made = next(_state.turns)
        except CompileError as e:
            _state.failed = str(e)
        return _state.made is not None or bool(_state.failed)


def load() -> None:
    """The first step alone: take the library that is kept on disk, if there is one. Some milliseconds, for a time when no call is under way."""
    if _state.turns is None:
        _advance()


def current() -> Library | None:
    """The library if it is there. Never waits."""
    return _state.made


def begin(later: Callable[[Callable[[], None]], object]) -> None:
    """On the compile thread: read the library from disk, or have it built by further jobs, each of which is a short step."""
    if not _advance():
        later(lambda: begin(later))
        return
    while _state.waiting:
        _state.waiting.pop()()


def prepare(later: Callable[[Callable[[], None]], object]) -> None:
    """Have that done later, once in a process, and only where the library is then kept for others: what is compiled now does not wait for a piece of it."""
    if not _state.prepared and store.keeps():
        _state.prepared = True
        later(lambda: begin(later))


def when_there(then: Callable[[], None]) -> None:
    """Run a function on the compile thread when the library has been built; never, if it is there or there can be none."""
    if _state.made is None and not _state.failed:
        _state.waiting.append(then)


def library() -> Library:
    """The library; waits until it is there. CompileError: there can be none on this machine."""
    while not _advance():
        pass
    if _state.made is None:
        raise CompileError(_state.failed)
    return _state.made
