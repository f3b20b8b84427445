"""Writes LLVM IR text: one module, functions with blocks, rotated loops, stack slots. No IR pass runs afterwards, so what is
written here is what the code generator selects instructions from."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bcvm.compiler import abi
from bcvm.compiler.target import Target
from bcvm.turns import checkpoint

FIXED = ("%ops", "%sizes")  # what a kernel only reads
KERNEL_PARAMETERS = "ptr %ctx, ptr %ops, ptr %sizes, i64 %lo, i64 %hi"


class Module:
    """Declarations, helper functions and the functions of one module. A helper is written once, whoever asks for it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._declarations: dict[str, None] = {}
        self._helpers: dict[str, str] = {}
        self._constants: dict[tuple[str, str], str] = {}
        self._functions: list[str] = []

    def declare(self, result: str, name: str, parameters: str) -> None:
        """Only LLVM intrinsics that become instructions: generated code has no external symbol."""
        self._declarations[f"declare {result} @{name}({parameters})"] = None

    def helper(self, name: str, text: str) -> str:
        self._helpers.setdefault(name, text)
        return name

    def has_helper(self, name: str) -> bool:
        return name in self._helpers

    def has_helpers(self) -> bool:
        return bool(self._helpers)

    def constant(self, type: str, text: str) -> str:
        """The address of a constant in memory."""
        return self._constants.setdefault((type, text), f"@c{len(self._constants)}")

    def add(self, function: Function) -> None:
        self._functions.append(function.text())

    def text(self) -> str:
        constants = [f"{name} = private unnamed_addr constant {type} {text}" for (type, text), name in self._constants.items()]
        return "\n".join([*self._declarations, *constants, *self._helpers.values(), *self._functions, ""])


class Loop:
    """A loop while it is written: `index` and the carried values at the top, `next` (and perhaps `step`) set before its end, `results` after it."""

    def __init__(self, index: str, carried: list[str], step: str) -> None:
        self.index = index
        self.step = step
        self.carried = carried
        self.next: Sequence[str] = ()
        self.results: list[str] = []


class Function:
    """One function being written. Values are named %0, %1, ... by `op`; blocks by `label`."""

    def __init__(self, module: Module, head: str) -> None:
        self.module = module
        self._head = head
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._loops = 0  # that are open
        self.hoists = False  # constants out of loops, into registers: LLVM does that, unless it is to take the text as it is
        self._hoisted: dict[tuple[str, int, str], str] = {}
        self._loaded: dict[tuple[str, str, str, int], str] = {}  # words that never change, by block and address
        self.block = "entry"

    def op(self, text: str) -> str:
        checkpoint()
        self._count = n = self._count + 1
        self._lines.append(f"  %v{n} = {text}")
        return f"%v{n}"

    def do(self, text: str) -> None:
        self._lines.append("  " + text)

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self.block = name

    def jump(self, name: str) -> None:
        self.do(f"br label %{name}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    @property
    def size(self) -> int:
        """Lines so far: how large an expression is."""
        return len(self._lines)

    def slot(self, size: int, cleared: int = 0) -> str:
        """Stack memory, aligned to a cache line, alive for the whole call; its first `cleared` bytes are 0."""
        self._count += 1
        name = f"%v{self._count}"
        self._entry.append(f"  {name} = alloca [{size} x i8], align 64")
        if cleared:
            self._entry.append(f"  store <{cleared} x i8> zeroinitializer, ptr {name}, align 64")
        return name

    def hoisted(self, type: str, lanes: int, text: str) -> str:
        """A constant vector for use in a loop, as an operand. text: one lane, for all, or '<' and all of them."""
        one = not text.startswith("<")
        if not self._loops or not self.hoists:
            return f"splat ({type} {text})" if one else text
        name = self._hoisted.get((type, lanes, text))
        if name is None:
            self._count += 1
            name = self._hoisted[type, lanes, text] = f"%v{self._count}"
            memory = f"<{1 if one else lanes} x {type}>"
            place = self.module.constant(memory, f"<{type} {text}>" if one else text)
            # invariant: where registers are short, it is loaded again, not kept on the stack
            self._entry.append(f"  {name}{'.1' if one else ''} = load {memory}, ptr {place}, !invariant.load !{{}}")
            if one:
                self._entry.append(f"  {name} = shufflevector {memory} {name}.1, {memory} poison, <{lanes} x i32> zeroinitializer")
        return name

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """A block that runs only under the condition."""
        yes, done = self.fresh("if"), self.fresh("fi")
        self.branch(condition, yes, done)
        self.label(yes)
        yield
        self.jump(done)
        self.label(done)

    @contextmanager
    def loop(self, start: str, stop: str, step: str, carried: Sequence[tuple[str, str]] = (), first: bool = False) -> Iterator[Loop]:
        """for (i64 i = start; i < stop; i += step), tested at the bottom. carried: (type, initial value). first: known to run at least once."""
        before, body, done = self.block, self.fresh("loop"), self.fresh("end")
        if first:
            self.jump(body)
        else:
            self.branch(self.op(f"icmp slt i64 {start}, {stop}"), body, done)
        self.label(body)
        loop = Loop(self.fresh("%i"), [self.fresh("%c") for _ in carried], step)
        at = len(self._lines)
        self._loops += 1
        yield loop
        self._loops -= 1
        # llvm.expect generates no code; it hides the counter from loop strength reduction, which takes a quarter of the compile time
        # to undo addressing modes that are already right.
        self.module.declare("i64", "llvm.expect.i64", "i64, i64")
        after = self.op(f"call i64 @llvm.expect.i64(i64 {self.op(f'add i64 {loop.index}, {loop.step}')}, i64 0)")
        again = self.op(f"icmp slt i64 {after}, {stop}")
        latch = self.block
        self.branch(again, body, done)
        phis = [f"  {loop.index} = phi i64 [ {start}, %{before} ], [ {after}, %{latch} ]"]
        phis += [f"  {name} = phi {ty} [ {init}, %{before} ], [ {value}, %{latch} ]"
                 for name, (ty, init), value in zip(loop.carried, carried, loop.next, strict=True)]
        self._lines[at:at] = phis
        self.label(done)
        if first:
            loop.results = list(loop.next)
        else:
            loop.results = [self.op(f"phi {ty} [ {init}, %{before} ], [ {value}, %{latch} ]")
                            for (ty, init), value in zip(carried, loop.next, strict=True)]

    def word(self, base: str, index: int) -> str:
        """The 64-bit word of a table at a constant index."""
        return self._once("i64", base, index) if base in FIXED else self._load("i64", base, index)

    def _load(self, what: str, base: str, index: int) -> str:
        at = self.op(f"getelementptr {what}, ptr {base}, i64 {index}") if index else base
        return self.op(f"load {what}, ptr {at}")

    def _once(self, what: str, base: str, index: int) -> str:
        """A load that an earlier one in this block, or in the first, may stand for."""
        known = self._known(what, base, index)
        if known is None:
            known = self._loaded[self.block, what, base, index] = self._load(what, base, index)
        return known

    def _known(self, what: str, base: str, index: int) -> str | None:
        return self._loaded.get((self.block, what, base, index)) or self._loaded.get(("entry", what, base, index))

    def pointer(self, base: str, index: int) -> str:
        return self._once("ptr", base, index) if base in FIXED else self._load("ptr", base, index)

    def at(self, base: str, offset: str, scale: str = "i8") -> str:
        return self.op(f"getelementptr {scale}, ptr {base}, i64 {offset}")

    def table(self, name: str) -> str:
        """The address of a run-time function, from the Context."""
        known = self._known("ptr", "table", abi.INDEX[name])
        if known is None:
            known = self._loaded[self.block, "ptr", "table", abi.INDEX[name]] = self._load("ptr", self._load("ptr", "%ctx", abi.CTX_TABLE), abi.INDEX[name])
        return known

    def text(self) -> str:
        return "\n".join([f"{self._head} {{", "entry:", *self._entry, *self._lines, "}"])
