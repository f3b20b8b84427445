"""Writing LLVM IR text for the library kernels: a function under construction, with counted loops and branches as `with` blocks.

Values are strings (`%v7`) or Python ints; a pointer plus bytes is `gep`. Loop-carried values are phis, because no IR pass runs afterwards.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from ...turns import checkpoint
from ..abi import CTX_TABLE, INDEX, SIGNATURE
from ..region import KernelSource
from ..target import Target

Value = str | int

# What library kernels return.
DONE, REFUSED, NO_MEMORY = 0, 1, 2

KERNEL_PARAMS = (("ptr", "ctx"), ("ptr", "operands"), ("ptr", "sizes"), ("i64", "lo"), ("i64", "hi"))


@lru_cache(maxsize=1024)
def _i32s(numbers: tuple[int, ...]) -> str:
    return ", ".join([f"i32 {n}" for n in numbers])


@dataclass
class Loop:
    """index and carried: this turn's values. Set `next` to the carried values of the next turn before the block ends; step may be set there too."""

    index: str
    carried: list[str]
    step: Value
    next: list[Value] = field(default_factory=list)


class Module:
    """Functions and the declarations of the intrinsics they call."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.declared: dict[str, str] = {}  # by name: an intrinsic has one type

    def declare(self, name: str, result: str, *args: str) -> str:
        if name not in self.declared:
            self.declared[name] = f"declare {result} @{name}({', '.join(args)})"
        return f"@{name}"

    def copy(self) -> Module:
        made = Module()
        made.functions, made.declared = list(self.functions), dict(self.declared)
        return made

    def source(self, name: str, target: Target) -> KernelSource:
        """The module's text, with `name` its public function, and a key of all that the machine code depends on."""
        ir = "\n".join([*self.functions, *self.declared.values(), ""])
        return KernelSource(name, ir, hashlib.sha256(f"{target.cpu}\n{target.features}\n{ir}".encode()).hexdigest()[:24])


class Function:
    """A function being written. params: (type, name) pairs; values are then `%name`. glue: straight-line code that calls others, compiled in a hurry."""

    def __init__(self, module: Module, name: str, params: Sequence[tuple[str, str]], result: str = "void", public: bool = False, glue: bool = False) -> None:
        self.module = module
        args = ", ".join(f"{t} %{n}" for t, n in params)
        linkage = "" if public else "internal "
        attributes = "noinline optnone nounwind" if glue else "nounwind" if public else "noinline nounwind"
        self.head = f"define {linkage}{result} @{name}({args}) {attributes} {{"
        self.lines: list[str] = ["entry:"]
        self.block = "entry"
        self.count = 0

    # Lines and labels

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def __call__(self, expression: str) -> str:
        checkpoint()
        self.count = n = self.count + 1
        self.lines.append(f"  %v{n} = {expression}")
        return f"%v{n}"

    def fresh(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def label(self, name: str) -> None:
        self.lines.append(name + ":")
        self.block = name

    def end(self) -> None:
        self.module.functions.append("\n".join([self.head, *self.lines, "}"]))

    def _pair(self, first: str, then: str) -> str:
        """Two lines at once: in `then` {} stands for what the first gives."""
        checkpoint()
        self.count = n = self.count + 2
        self.lines.append(f"  %v{n - 1} = {first}\n  %v{n} = {then.replace('{}', f'%v{n - 1}')}")
        return f"%v{n}"

    # Integers, pointers, memory

    def arith(self, op: str, a: Value, b: Value) -> str:
        return self(f"{op} i64 {a}, {b}")

    def add(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self.arith("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.arith("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return 0 if a == 0 or b == 0 else b if a == 1 else a if b == 1 else self.arith("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Of numbers that are not negative; b > 0."""
        if isinstance(b, int) and b & (b - 1) == 0:
            return a if b == 1 else self.arith("lshr", a, b.bit_length() - 1)
        return self.arith("udiv", a, b)

    def ceil_div(self, a: Value, b: Value) -> Value:
        return self.div(self.add(self.add(a, b), -1), b)

    def round_up(self, a: Value, b: int) -> Value:
        return self.mul(self.ceil_div(a, b), b)

    def rem(self, a: Value, b: Value) -> str:
        return self.arith("urem", a, b)

    def cmp(self, predicate: str, a: Value, b: Value) -> str:
        return self(f"icmp {predicate} i64 {a}, {b}")

    def both(self, *conditions: str) -> str:
        result = conditions[0]
        for c in conditions[1:]:
            result = self(f"and i1 {result}, {c}")
        return result

    def either(self, a: str, b: str) -> str:
        return self(f"or i1 {a}, {b}")

    def invert(self, a: str) -> str:
        return self(f"xor i1 {a}, true")

    def select(self, condition: str, a: Value, b: Value, type: str = "i64") -> str:
        return self(f"select i1 {condition}, {type} {a}, {type} {b}")

    def min(self, a: Value, b: Value) -> str:
        return self._pair(f"icmp slt i64 {a}, {b}", f"select i1 {{}}, i64 {a}, i64 {b}")

    def max(self, a: Value, b: Value) -> str:
        return self._pair(f"icmp sgt i64 {a}, {b}", f"select i1 {{}}, i64 {a}, i64 {b}")

    def gep(self, pointer: str, offset: Value) -> str:
        return pointer if offset == 0 else self(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, type: str, pointer: str, align: int = 8) -> str:
        return self(f"load {type}, ptr {pointer}, align {align}")

    def store(self, type: str, value: Value, pointer: str, align: int = 8) -> None:
        self.emit(f"store {type} {value}, ptr {pointer}, align {align}")

    def word(self, pointer: str, index: int) -> str:
        return self._pair(f"getelementptr i8, ptr {pointer}, i64 {8 * index}", "load i64, ptr {}, align 8") if index else self.load("i64", pointer)

    def set_word(self, pointer: str, index: int, value: Value) -> None:
        self.store("i64", value, self.gep(pointer, 8 * index))

    def words(self, count: int) -> str:
        return self(f"alloca [{count} x i64], align 64")

    # Vectors

    def splat(self, type: str, lanes: int, scalar: Value) -> str:
        return self._pair(f"insertelement <{lanes} x {type}> poison, {type} {scalar}, i64 0",
                          f"shufflevector <{lanes} x {type}> {{}}, <{lanes} x {type}> poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, type: str, lanes: int, a: str, b: str, order: Sequence[int]) -> str:
        return self(f"shufflevector <{lanes} x {type}> {a}, <{lanes} x {type}> {b}, <{len(order)} x i32> <{_i32s(tuple(order))}>")

    # Calls

    def _call(self, result: str, callee: str, args: Sequence[tuple[str, Value]]) -> str:
        text = f"call {result} {callee}({', '.join([f'{t} {v}' for t, v in args])})"
        if result == "void":
            self.emit(text)
            return ""
        return self(text)

    def call(self, result: str, name: str, *args: tuple[str, Value]) -> str:
        return self._call(result, f"@{name}", args)

    def intrinsic(self, name: str, result: str, *args: tuple[str, Value]) -> str:
        if name not in self.module.declared:
            self.module.declare(name, result, *(t for t, _ in args))
        return self._call(result, f"@{name}", args)

    def prefetch(self, pointer: str, level: int = 1) -> None:
        """Ask for a line of memory that will be read, into the first cache or the second. It may lie anywhere."""
        self.intrinsic("llvm.prefetch.p0", "void", ("ptr", pointer), ("i32", 0), ("i32", 4 - level), ("i32", 1))

    def through_table(self, ctx: str, name: str, *args: Value) -> str:
        """Calls a function of the Context's table (see abi.TABLE)."""
        result, types = SIGNATURE[name]
        table = self.load("ptr", self.gep(ctx, 8 * CTX_TABLE))
        function = self.load("ptr", self.gep(table, 8 * INDEX[name]))
        return self._call(result, function, list(zip(types, args, strict=True)))

    def alloc(self, ctx: str, size: Value) -> str:
        """A scratch buffer. Without memory the function (of type int32) returns NO_MEMORY: nothing may be held then."""
        buffer = self.through_table(ctx, "alloc", ctx, self.max(size, 64))
        self.fail_if(self(f"icmp eq ptr {buffer}, null"), NO_MEMORY)
        return buffer

    def release(self, ctx: str, buffer: str) -> None:
        """Gives a buffer of `alloc` back."""
        self.through_table(ctx, "release", ctx, self(f"ptrtoint ptr {buffer} to i64"))

    # Control

    def br(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")

    def ret(self, value: str = "void") -> None:
        self.emit(f"ret {value}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Runs the block if condition holds."""
        yes, after = self.fresh(), self.fresh()
        self.branch(condition, yes, after)
        self.label(yes)
        yield
        self.br(after)
        self.label(after)

    def choose(self, condition: str, yes: Callable[[], object], no: Callable[[], object]) -> None:
        a, b, after = self.fresh(), self.fresh(), self.fresh()
        self.branch(condition, a, b)
        for label, body in ((a, yes), (b, no)):
            self.label(label)
            body()
            self.br(after)
        self.label(after)

    def fail_if(self, condition: str, code: int) -> None:
        """Returns a code from an int32 function."""
        bad, good = self.fresh(), self.fresh()
        self.branch(condition, bad, good)
        self.label(bad)
        self.ret(f"i32 {code}")
        self.label(good)

    @contextmanager
    def loop(self, start: Value, stop: Value, step: Value = 1, carried: Sequence[tuple[str, Value]] = ()) -> Iterator[Loop]:
        """for index in range(start, stop, step) with step > 0. After it, `carried` holds the final values."""
        head, body, after = self.fresh(), self.fresh(), self.fresh()
        before = self.block
        self.br(head)
        self.label(head)
        at = len(self.lines)
        names = [self(f"phi {t}") for t in ("i64", *(t for t, _ in carried))]
        loop = Loop(names[0], names[1:], step)
        self.branch(self.cmp("slt", names[0], stop), body, after)
        self.label(body)
        yield loop
        following = self.arith("add", names[0], loop.step)
        latch = self.block
        self.br(head)
        for k, (first, later) in enumerate(zip((start, *(v for _, v in carried)), (following, *loop.next), strict=True)):
            self.lines[at + k] += f" [ {first}, %{before} ], [ {later}, %{latch} ]"
        self.label(after)
