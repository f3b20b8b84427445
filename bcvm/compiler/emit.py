"""A small writer of LLVM IR text for entry stubs: names, blocks, calls into the Python C API by address."""
from __future__ import annotations

from typing import Any

from bcvm.compiler.modules import constant
from bcvm.compiler.runtime import python_api
from bcvm.turns import checkpoint


class Emitter:
    """One function body, written block after block. `keep` holds every Python object whose address is in the text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.keep: list[Any] = []
        self.block = "entry"
        self._count = 0
        self._kept: set[int] = set()

    def name(self, stem: str = "v") -> str:
        self._count += 1
        return f"%{stem}{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, text: str, stem: str = "v") -> str:
        checkpoint()
        self._count += 1
        name = f"%{stem}{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, stem: str = "b") -> str:
        return self.name(stem)[1:]

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def require(self, condition: str, otherwise: str) -> None:
        """Goes on in a new block if the i1 holds, else to the label `otherwise`."""
        on = self.label("ok")
        self.line(f"br i1 {condition}, label %{on}, label %{otherwise}")
        self.start(on)

    def object(self, value: Any) -> str:
        """The address of a Python object, which is kept alive as long as the code."""
        if id(value) not in self._kept:
            self._kept.add(id(value))
            self.keep.append(value)
        return constant(id(value))

    def load(self, type: str, base: str, offset: int, stem: str = "v") -> str:
        """Loads from `offset` bytes after a pointer."""
        if offset == 0:
            return self.let(f"load {type}, ptr {base}", stem)
        checkpoint()
        self._count = n = self._count + 2
        self.lines.append(f"  %p{n - 1} = getelementptr i8, ptr {base}, i64 {offset}\n  %{stem}{n} = load {type}, ptr %p{n - 1}")
        return f"%{stem}{n}"

    def offset(self, base: str, offset: int) -> str:
        return base if offset == 0 else self.let(f"getelementptr i8, ptr {base}, i64 {offset}", "p")

    def store(self, type: str, value: str, base: str, offset: int = 0) -> None:
        if offset == 0:
            self.line(f"store {type} {value}, ptr {base}")
            return
        self._count += 1
        self.lines.append(f"  %p{self._count} = getelementptr i8, ptr {base}, i64 {offset}\n  store {type} {value}, ptr %p{self._count}")

    def call(self, result: str, function: str | int, *args: tuple[str, str]) -> str:
        """Calls a C function: the name of a Python C API function, or an address. Each argument is (type, value)."""
        address = python_api(function) if isinstance(function, str) else function
        text = f"call {result} {constant(address)}({', '.join([f'{t} {v}' for t, v in args])})"
        if result == "void":
            self.line(text)
            return ""
        return self.let(text)

    def same(self, a: str, b: str, otherwise: str) -> None:
        """Requires two pointers to be equal."""
        self.require(self.let(f"icmp eq ptr {a}, {b}"), otherwise)

    def not_null(self, value: str, otherwise: str) -> None:
        self.require(self.let(f"icmp ne ptr {value}, null"), otherwise)

    def type_is(self, value: str, cls: type, otherwise: str) -> None:
        self.same(self.load("ptr", value, 8, "t"), self.object(cls), otherwise)

    def add(self, address: int, n: int) -> None:
        """Adds to a word in memory."""
        p = constant(address)
        old = self.let(f"load i64, ptr {p}")
        self.line(f"store i64 {self.let(f'add i64 {old}, {n}')}, ptr {p}")

    def text(self) -> str:
        return "\n".join(self.lines)
