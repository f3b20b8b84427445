"""What the driver holds for each value of the graph."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bcvm.bytecode.dtypes import itemsize
from bcvm.compiler.driver import dims
from bcvm.compiler.driver.emitter import Emitter
from bcvm.compiler.liveness import Liveness
from bcvm.compiler.regions import dims_of
from bcvm.compiler.target import Target
from bcvm.errors import CompileError
from bcvm.specialise.ssa import Block, Graph, State, Tree, Value
from bcvm.specialise.types import Const, Tensor


@dataclass
class TensorRep:
    """data, object: ptr operands ('null': none); base: i64 operand (see abi: Base). sizes and strides (bytes): i64 operands.
    contiguous: known to be C-contiguous. fresh: known to share memory with no value that existed before it."""

    data: str
    object: str
    base: str
    sizes: list[str]
    strides: list[str]
    contiguous: bool = False
    fresh: bool = False


Rep = TensorRep | str  # str: a scalar's operand, or a Python object's pointer


@dataclass
class Driver:
    """All that is known while one driver is emitted."""

    graph: Graph
    target: Target
    table: Any
    live: Liveness
    escaping: set[Value]
    stack_boxes: set[Value]
    threads: int | None = None                                      # of one call; None: as many as the process has
    e: Emitter = field(default_factory=Emitter)
    reps: dict[Value, Rep] = field(default_factory=dict)
    owned: dict[Value, None] = field(default_factory=dict)          # owners that hold a reference here
    objects: set[Value] = field(default_factory=set)                # owners whose base may be a Python object
    certain_objects: set[str] = field(default_factory=set)          # object operands known not to be null
    returns: list[Tree] = field(default_factory=list)                # what is returned, one tree per type
    exits: list[tuple[State, str]] = field(default_factory=list)
    exit_number: dict[Any, int] = field(default_factory=dict)
    exit_labels: dict[Any, str] = field(default_factory=dict)
    pending: list[Any] = field(default_factory=list)                # exit blocks still to be written
    requests: dict[Any, Any] = field(default_factory=dict)
    stored: set[Value] = field(default_factory=set)                 # values that stores and items read
    block: Block | None = None
    waiting: dict[Block, list[Any]] = field(default_factory=dict)   # edges into blocks that are not written yet
    frozen: dict[Value, Any] = field(default_factory=dict)          # captured tensors that never change
    packed: list[Any] = field(default_factory=list)                 # their packed copies that the driver reads
    scratch_words: int = 0
    out_words: int = 1

    def tensor(self, value: Value) -> TensorRep:
        rep = self.reps[value]
        if not isinstance(rep, TensorRep):
            raise CompileError(f"{value!r} is no tensor")
        return rep

    def scalar(self, value: Value) -> str:
        """The operand of a number."""
        if isinstance(value.type, Const):
            return literal(value.type.value)
        rep = self.reps.get(value)
        if rep is None and value.dim is not None:
            return dims.value(self.e, value.dim)
        if not isinstance(rep, str):
            raise CompileError(f"{value!r} is no number")
        return rep

    def sizes(self, value: Value) -> list[str]:
        return dims.values(self.e, dims_of(value))

    def base_kind(self, value: Value) -> str:
        """'object' or 'arena' where it is known who owns a tensor's memory, else ''."""
        owner = self.live.owner.get(value)
        if owner is None or self.tensor(owner).object in self.certain_objects:
            return "object"
        return "" if owner in self.objects else "arena"

    def need_scratch(self, words: int) -> None:
        self.scratch_words = max(self.scratch_words, words)


def literal(value: Any) -> str:
    """A Python number as LLVM writes it."""
    import struct
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise CompileError(f"the int {value} has more than 64 bits")
        return str(value)
    return "0x{:016X}".format(struct.unpack("<Q", struct.pack("<d", float(value)))[0])


def contiguous_strides(e: Emitter, sizes: list[str], dtype: str) -> list[str]:
    """Byte strides of a C-contiguous tensor of these sizes."""
    key = ("strides", tuple(sizes), itemsize(dtype))

    def make() -> list[str]:
        out, step = [], str(itemsize(dtype))
        for size in reversed(sizes):
            out.append(step)
            step = e.mul(step, size)
        return out[::-1]
    return list(e.memo(key, make))


def element_count(e: Emitter, sizes: list[str]) -> str:
    """Product of sizes of a tensor that exists (so it does not overflow, unless some size is 0)."""
    def make() -> str:
        n = "1"
        for s in sizes:
            n = e.mul(n, s)
        return n
    return str(e.memo(("count", tuple(sizes)), make))


def rep_words(value: Value) -> int:
    """Words of a value in an exit state."""
    return 3 + 2 * value.type.rank if isinstance(value.type, Tensor) else 1
