"""Text of one LLVM function: names, blocks, phis, folded integer arithmetic, and a memo that follows the dominator tree.

64-bit integers are operands as LLVM writes them: '7' or '%t12'; literals are folded, so constant sizes cost nothing.
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from bcvm.compiler import abi
from bcvm.turns import checkpoint


def is_literal(x: str) -> bool:
    return x[0] != "%" and x.lstrip("-").isdigit()


class Phi:
    """A phi whose edges are added while its predecessors are emitted."""

    def __init__(self, name: str, type: str) -> None:
        self.name, self.type = name, type
        self.edges: list[tuple[str, str]] = []

    def __str__(self) -> str:
        return f"  {self.name} = phi {self.type} " + ", ".join(f"[ {v}, %{label} ]" for v, label in self.edges)


class Emitter:
    """See the module. `entry` collects the entry block's allocas, `tail` the blocks that come last (exits)."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.entry: list[str] = []
        self.tail: list[Any] = []
        self.declarations: dict[str, str] = {}
        self.label = "entry"
        self._names = 0
        self._memo: dict[Hashable, Any] = {}
        self._undo: list[list[Hashable]] = [[]]

    # -- text
    def name(self) -> str:
        self._names += 1
        return f"%t{self._names}"

    def new_label(self, hint: str = "l") -> str:
        self._names += 1
        return f"{hint}.{self._names}"

    def op(self, text: str) -> str:
        checkpoint()
        self._names += 1
        name = f"%t{self._names}"
        self.lines.append(f"  {name} = {text}")
        return name

    def pure(self, text: str) -> str:
        """An op without memory or effect: written once in a dominating place."""
        name: str | None = self._memo.get(text)
        if name is None:
            name = self._memo[text] = self.op(text)
            self._undo[-1].append(text)
        return name

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, orelse: str) -> None:
        self.do(f"br i1 {condition}, label %{then}, label %{orelse}")

    def phi(self, type: str) -> Phi:
        p = Phi(self.name(), type)
        self.lines.append(p)
        return p

    def leave_if(self, condition: str, label: str) -> None:
        """Branch to an exit if the condition holds; go on in a new block."""
        if condition == "false":
            return
        rest = self.new_label()
        self.branch(condition, label, rest)
        self.start(rest)

    def alloca(self, words: int) -> str:
        name = self.name()
        self.entry.append(f"  {name} = alloca [{words} x i64], align 16")
        return name

    def declare(self, name: str, text: str) -> str:
        self.declarations[name] = text
        return name

    # -- memo: what is already computed in a dominating place
    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key in self._memo:
            return self._memo[key]
        value = self._memo[key] = make()
        self._undo[-1].append(key)
        return value

    def know(self, key: Hashable, value: Any) -> None:
        if key not in self._memo:
            self._memo[key] = value
            self._undo[-1].append(key)

    def known(self, key: Hashable) -> Any:
        return self._memo.get(key)

    def push(self) -> None:
        self._undo.append([])

    def pop(self) -> None:
        for key in self._undo.pop():
            del self._memo[key]

    # -- arithmetic on i64
    def add(self, a: str, b: str) -> str:
        if is_literal(a) and is_literal(b):
            return str(int(a) + int(b))
        if a == "0":
            return b
        return a if b == "0" else self.pure(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        if is_literal(a) and is_literal(b):
            return str(int(a) - int(b))
        return a if b == "0" else self.pure(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        if is_literal(a) and is_literal(b):
            return str(int(a) * int(b))
        if a == "1":
            return b
        if b == "1":
            return a
        if a == "0" or b == "0":
            return "0"
        return self.pure(f"mul i64 {a}, {b}")

    def compare(self, how: str, a: str, b: str) -> str:
        """how: eq ne slt sle sgt sge; an i1."""
        if is_literal(a) and is_literal(b):
            x, y = int(a), int(b)
            return str({"eq": x == y, "ne": x != y, "slt": x < y, "sle": x <= y, "sgt": x > y, "sge": x >= y}[how]).lower()
        if a == b:
            return "true" if how in ("eq", "sle", "sge") else "false"
        return self.pure(f"icmp {how} i64 {a}, {b}")

    def select(self, c: str, a: str, b: str, type: str = "i64") -> str:
        if a == b or c == "true":
            return a
        return b if c == "false" else self.pure(f"select i1 {c}, {type} {a}, {type} {b}")

    def join(self, type: str, before: tuple[str, str], after: tuple[str, str]) -> str:
        """A value where two edges meet, each given as (operand, label it comes from)."""
        if before[0] == after[0]:
            return before[0]
        phi = self.phi(type)
        phi.edges += [before, after]
        return phi.name

    def both(self, a: str, b: str) -> str:
        if "false" in (a, b):
            return "false"
        if a == "true":
            return b
        return a if b == "true" or a == b else self.pure(f"and i1 {a}, {b}")

    def either(self, a: str, b: str) -> str:
        if "true" in (a, b):
            return "true"
        if a == "false":
            return b
        return a if b == "false" or a == b else self.pure(f"or i1 {a}, {b}")

    def negate(self, a: str) -> str:
        return {"true": "false", "false": "true"}.get(a) or self.pure(f"xor i1 {a}, true")

    def all(self, conditions: Sequence[str]) -> str:
        out = "true"
        for c in conditions:
            out = self.both(out, c)
        return out

    def overflowing(self, what: str, a: str, b: str, type: str = "i64") -> tuple[str, str]:
        """what: sadd ssub smul umul. Result and overflow flag."""
        intrinsic = f"@llvm.{what}.with.overflow.{type}"
        self.declare(intrinsic, f"declare {{{type}, i1}} {intrinsic}({type}, {type})")
        pair = self.pure(f"call {{{type}, i1}} {intrinsic}({type} {a}, {type} {b})")
        return self.pure(f"extractvalue {{{type}, i1}} {pair}, 0"), self.pure(f"extractvalue {{{type}, i1}} {pair}, 1")

    # -- memory
    def word(self, base: str, index: int) -> str:
        return base if index == 0 else self.op(f"getelementptr i64, ptr {base}, i64 {index}")

    def load(self, base: str, index: int = 0, type: str = "i64") -> str:
        if index == 0:
            return self.op(f"load {type}, ptr {base}")
        checkpoint()
        self._names = n = self._names + 2
        self.lines.append(f"  %t{n - 1} = getelementptr i64, ptr {base}, i64 {index}\n  %t{n} = load {type}, ptr %t{n - 1}")
        return f"%t{n}"

    def store(self, value: str, base: str, index: int = 0, type: str = "i64") -> None:
        if index == 0:
            self.lines.append(f"  store {type} {value}, ptr {base}")
            return
        self._names += 1
        self.lines.append(f"  %t{self._names} = getelementptr i64, ptr {base}, i64 {index}\n  store {type} {value}, ptr %t{self._names}")

    def offset(self, pointer: str, count: str) -> str:
        """A pointer, bytes further on."""
        return pointer if count == "0" else self.pure(f"getelementptr i8, ptr {pointer}, i64 {count}")

    def table(self, name: str) -> str:
        """The address of a function of the Context's table."""
        return str(self.memo(("table", name), lambda: self.load("%table", abi.INDEX[name], "ptr")))

    def call(self, name: str, *args: str) -> str:
        """Call a function of the Context's table; its result, if it has one."""
        result, types = abi.SIGNATURE[name]
        text = f"call {result} {self.table(name)}({', '.join(f'{t} {a}' for t, a in zip(types, args, strict=True))})"
        if result == "void":
            self.do(text)
            return ""
        return self.op(text)

    def function(self, header: str) -> str:
        """The finished text; its lines are gone."""
        lines = [header + " {", "entry:", *self.entry, *map(str, self.lines), *map(str, self.tail), "}", ""]
        self.lines.clear()
        self.tail.clear()
        return "\n".join(lines)
