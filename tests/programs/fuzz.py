"""Random small Python functions, for comparing a tier with Python. `generate(seed)` gives a function and its text."""
from __future__ import annotations

import contextlib
import linecache
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

NAMES = ["a", "b", "c", "y", "t", "u"]
BINARY = ["+", "-", "*", "//", "%", "/", "&", "|", "^"]
COMPARE = ["<", "<=", "==", "!=", ">", ">=", "in", "is", "is not"]
MAX_DEPTH = 3


class Writer:
    """Writes one function `f(note, a, b, x, *rest, k=3, **more)`."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.fresh = 0
        self.wild = rng.choice([0.0, 0.01, 0.04])

    def name(self) -> str:
        return self.rng.choice(NAMES)

    # -- expressions
    def expr(self, depth: int = 0) -> str:
        """Mostly integers, so that programs get far; sometimes anything."""
        r = self.rng
        if r.random() < self.wild:
            return self.anything(depth)
        if depth >= MAX_DEPTH or r.random() < 0.25:
            return r.choice([self.name(), self.name(), "k", "g", "z", str(r.randint(-3, 9)), "int(x.sum())", "len(rest)"])
        e = lambda: self.expr(depth + 1)  # noqa: E731
        return r.choice([
            lambda: f"({e()} {r.choice(['+', '-', '*', '&', '|', '^'])} {e()}) % 97", lambda: f"({e()} {r.choice(['+', '-'])} {e()}) % 97",
            lambda: f"({e()} {r.choice(COMPARE[:6])} {e()})", lambda: f"({e()} < {e()} <= {e()})", lambda: f"({e()} and {e()})",
            lambda: f"({e()} or {e()} or {e()})", lambda: f"(not {e()})", lambda: f"(-{e()})", lambda: f"({e()} if {e()} else {e()})",
            lambda: f"note({e()})", lambda: f"note({e()}, *({e()}, {e()}))", lambda: f"note({e()}, k={e()})", lambda: f"note(**{{'k': {e()}}})",
            lambda: f"[{e()}, *({e()}, 2)][{e()} % 3]", lambda: f"{{1: {e()}, 0: {e()}}}[{e()} % 2]", lambda: f"int(x[{e()} % 2])", lambda: f"len([1, 2, 3][{e()}:{e()}])",
            lambda: f"len([i + {self.name()} for i in range({r.randint(0, 3)})])", lambda: f"sum(i * {self.name()} for i in (1, 2)) % 50",
            lambda: f"len(f'{{{self.name()}}}')", lambda: f"(lambda v: v + z)({e()})", lambda: f"({self.name()} := {e()})", lambda: f"({self.name()} in [{e()}, {e()}])",
        ])()

    def anything(self, depth: int) -> str:
        r = self.rng
        if depth >= MAX_DEPTH or r.random() < 0.25:
            return r.choice(["x[0]", "1.5", "(1, 2)", "[3, 4]", "None", "'s'", "x", "missing"])
        e = lambda: self.expr(depth + 1)  # noqa: E731
        return r.choice([
            lambda: f"({e()} {r.choice(BINARY)} {e()})", lambda: f"({e()} {r.choice(COMPARE)} {e()})", lambda: f"note({e()}, *{e()})", lambda: f"({e()}, {e()})",
            lambda: f"[*{e()}, {e()}]", lambda: f"{{{e()}: {e()}}}", lambda: f"x[{e()}]", lambda: f"x[{e()}:{e()}]", lambda: f"(lambda v: v + {self.name()})({e()})",
            lambda: f"np.maximum({e()}, {e()})", lambda: f"x.sum() + {e()}", lambda: f"[{e()} for {self.name()} in (1, 2)]",
        ])()

    # -- statements
    def block(self, indent: int, depth: int, loop: bool, count: int) -> None:
        for _ in range(count):
            self.statement(indent, depth, loop)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int, depth: int, loop: bool) -> None:
        r = self.rng
        simple = [
            lambda: f"{self.name()} = {self.expr(1)}", lambda: f"{self.name()} = {self.expr()}", lambda: f"{self.name()} {r.choice(BINARY)}= {self.expr(1)}",
            lambda: f"{self.name()}, {self.name()} = {self.expr(2)}, {self.expr(2)}", lambda: f"{self.name()}, *{self.name()}, {self.name()} = {self.expr(1)}, 2, 3",
            lambda: f"x[{self.expr(2)} % 2] = {self.expr(1)} % 9", lambda: f"x[{self.expr(2)} % 2] += {self.expr(2)} % 9", lambda: f"{self.name()} += {self.expr(2)} % 5", lambda: f"{self.name()} = {self.name()} = {self.expr(1)}", lambda: f"note({self.expr(1)})",
            lambda: f"del {self.name()}" if r.random() < 0.3 else "pass", lambda: f"assert {self.expr(1)}, {self.expr(2)}" if r.random() < 0.3 else "note(0)",
            lambda: "global g; g = a", lambda: f"{self.name()}: int = {self.expr(2)}", lambda: f"note.last = {self.expr(1)}", lambda: "note.count += 1",
        ]
        if depth and r.random() < 0.12:
            self.put(indent, r.choice([f"return {self.expr(1)}", *(["break", "continue"] * 4 if loop else []), f"raise ValueError({self.expr(2)})"]))
        elif depth >= 3 or r.random() < 0.55:
            self.put(indent, r.choice(simple)())
        else:
            r.choice([self._if, self._if, self._for, self._while, self._try, self._with])(indent, depth + 1, loop)

    def _body(self, indent: int, depth: int, loop: bool) -> None:
        self.block(indent + 1, depth, loop, self.rng.randint(1, 3))

    def _if(self, indent: int, depth: int, loop: bool) -> None:
        self.put(indent, f"if {self.expr(1)}:")
        self._body(indent, depth, loop)
        if self.rng.random() < 0.4:
            self.put(indent, f"elif {self.expr(1)}:")
            self._body(indent, depth, loop)
        if self.rng.random() < 0.5:
            self.put(indent, "else:")
            self._body(indent, depth, loop)

    def _for(self, indent: int, depth: int, loop: bool) -> None:
        target = self.rng.choice([self.name(), self.name(), "x[0]"])
        source = self.rng.choice([f"range({self.rng.randint(0, 4)})", f"[i % 5 for i in ({self.expr(2)}, {self.expr(2)})]", "(1, 2, 3)", "list(rest)"])
        self.put(indent, f"for {target} in {source}:")
        self._body(indent, depth, True)
        if self.rng.random() < 0.3:
            self.put(indent, "else:")
            self._body(indent, depth, loop)

    def _while(self, indent: int, depth: int, loop: bool) -> None:
        self.fresh += 1
        n = f"n{self.fresh}"
        self.put(indent, f"{n} = 0")
        self.put(indent, f"while {n} < {self.rng.randint(1, 4)} and {self.expr(1)}:" if self.rng.random() < 0.7 else "while True:")
        self.put(indent + 1, f"{n} += 1")
        self.put(indent + 1, f"if {n} > 4: break")
        self._body(indent, depth, True)
        if self.rng.random() < 0.3:
            self.put(indent, "else:")
            self._body(indent, depth, loop)

    def _try(self, indent: int, depth: int, loop: bool) -> None:
        self.put(indent, "try:")
        self._body(indent, depth, loop)
        finish = self.rng.random()
        if finish < 0.8:
            self.put(indent, self.rng.choice(["except Exception:", "except (TypeError, ValueError) as e:", "except Exception as u:"]))
            self._body(indent, depth, loop)
            if self.rng.random() < 0.3:
                self.put(indent, "else:")
                self._body(indent, depth, loop)
        if finish > 0.6:
            self.put(indent, "finally:")
            self._body(indent, depth, loop)

    def _with(self, indent: int, depth: int, loop: bool) -> None:
        self.put(indent, self.rng.choice(["with suppress(Exception):", f"with suppress(TypeError) as {self.name()}:"]))
        self._body(indent, depth, loop)

    def text(self) -> str:
        self.put(0, "def f(note, a, b, x, *rest, k=3, **more):")
        self.put(1, "z = 4")
        for n in NAMES[2:]:
            if n != "u" or self.rng.random() < 0.7:
                self.put(1, f"{n} = {self.rng.randint(0, 9)}")
        self.block(1, 0, False, self.rng.randint(2, 6))
        self.put(1, f"return a, b, x, {self.expr(1)}")
        return "\n".join(self.lines) + "\n"


class Note:
    """Records what it is called with; raises on some values, so that programs fail in the middle."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.count = 0
        self.last: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(f"{args!r} {kwargs!r}")
        if len(self.calls) > 300:
            raise RuntimeError("enough")
        return args[0] if args else kwargs.get("k")


def generate(seed: int) -> tuple[Callable[..., Any], str]:
    """A function of (note, a, b, x, *rest) and its text. Its source is in the line cache."""
    rng = Random(seed)
    while True:
        text = Writer(rng).text()
        name = f"<fuzz {seed}>"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a literal
                code = compile(text, name, "exec")
            break
        except SyntaxError:  # such as a walrus on an iteration variable
            continue
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"np": np, "suppress": contextlib.suppress, "g": 5}
    exec(code, space)
    return space["f"], text


def arguments(seed: int) -> list[tuple[Any, ...]]:
    """Argument tuples; each begins with a Note."""
    rng = Random(seed)
    arrays: list[Any] = [np.arange(4.0), np.arange(5), np.ones(3, np.float32)]
    return [(Note(), rng.choice([0, 2, 5, True]), rng.choice([1, 3, 8]), rng.choice(arrays), *([7, 8] if rng.random() < 0.5 else [])) for _ in range(2)]
