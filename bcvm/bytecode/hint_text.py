"""The grammar of shape hints, as text; `bcvm.shapes.hint` gives it its meaning.

    hint = '...' | '[' [item {',' item}] ']' | item {',' item}
    item = '...' (at most one) | '*' | sum
    sum  = term {('+' | '-') term}      term = unit {('*' | '//' | '%') unit}
    unit = integer | name | '-' unit | '(' sum ')' | ('min' | 'max') '(' sum {',' sum} ')'
"""
from __future__ import annotations

import re
from typing import Any, NoReturn

MAX_ITEMS = 64
MAX_NESTING = 32
MAX_TOKENS = 300
_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d]\w*)|(\.\.\.|//|[-+*%(),\[\]]))")

Tree = tuple[Any, ...]
"""('int', n) | ('name', s) | (operator, a, b) for + - * // % | ('neg', a) | ('min' | 'max', a, b, ...) | ('*',) | ('...',)"""


def parse(text: str) -> tuple[Tree, ...]:
    """The items of a hint. ValueError says the column and what was expected."""
    if not isinstance(text, str):
        raise ValueError(f"a shape hint is a string such as '[B, *, 768]', not {text!r}")
    return _Parser(text).hint()


def canonical(text: str) -> str:
    """The compact spelling: `[B,*,768]`; `...` alone for "no constraint"."""
    return spell(parse(text))


def spell(items: tuple[Tree, ...]) -> str:
    if items == (("...",),):
        return "..."
    return "[" + ",".join(_spell(item, 0) for item in items) + "]"


_LEVEL = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


def _spell(tree: Tree, level: int) -> str:
    head = tree[0]
    if head in ("int", "name"):
        return str(tree[1])
    if len(tree) == 1:
        return str(head)
    if head == "neg":
        return "-" + _spell(tree[1], 3)
    if head in ("min", "max"):
        return f"{head}({','.join(_spell(t, 0) for t in tree[1:])})"
    own = _LEVEL[head]
    body = _spell(tree[1], own) + head + _spell(tree[2], own + 1)
    return f"({body})" if own < level else body


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []  # (kind, text, column)
        self.depth = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            m = _TOKEN.match(text, at)
            if m is None:
                self.fail(at + len(text[at:]) - len(text[at:].lstrip()), "a size, a name, '*' or '...'")
            group = m.lastindex or 0
            self.tokens.append((("int", "name", "sign")[group - 1], m.group(group), m.start(group)))
            at = m.end()
            if len(self.tokens) > MAX_TOKENS:
                self.fail(at, "a shorter hint")
        self.next = 0

    def fail(self, column: int, expected: str) -> NoReturn:
        raise ValueError(f"shape hint {self.text[:200]!r}: expected {expected} at column {column + 1}")

    def peek(self) -> str:
        return self.tokens[self.next][1] if self.next < len(self.tokens) else ""

    def column(self) -> int:
        return self.tokens[self.next][2] if self.next < len(self.tokens) else len(self.text)

    def take(self, sign: str) -> bool:
        if self.peek() == sign:
            self.next += 1
            return True
        return False

    def need(self, sign: str) -> None:
        if not self.take(sign):
            self.fail(self.column(), f"{sign!r}")

    def hint(self) -> tuple[Tree, ...]:
        if not self.tokens:
            self.fail(0, "a hint such as [B, *, 768]")
        bracket = self.take("[")
        items: list[Tree] = []
        if not (bracket and self.peek() == "]"):
            items.append(self.item(items))
            while self.take(","):
                items.append(self.item(items))
        if bracket:
            self.need("]")
        if self.next < len(self.tokens):
            self.fail(self.column(), "',' or the end")
        return tuple(items)

    def item(self, before: list[Tree]) -> Tree:
        if len(before) >= MAX_ITEMS:
            self.fail(self.column(), f"at most {MAX_ITEMS} dims")
        if self.peek() == "...":
            if ("...",) in before:
                self.fail(self.column(), "only one '...'")
            self.next += 1
            return ("...",)
        if self.take("*"):
            return ("*",)
        return self.sum()

    def sum(self) -> Tree:
        left = self.term()
        while self.peek() in ("+", "-"):
            sign = self.peek()
            self.next += 1
            left = (sign, left, self.term())
        return left

    def term(self) -> Tree:
        left = self.unit()
        while self.peek() in ("*", "//", "%"):
            sign = self.peek()
            self.next += 1
            left = (sign, left, self.unit())
        return left

    def unit(self) -> Tree:
        if self.next >= len(self.tokens):
            self.fail(self.column(), "a size or a name")
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail(self.column(), f"at most {MAX_NESTING} nested expressions")
        kind, word, column = self.tokens[self.next]
        self.next += 1
        tree: Tree
        if kind == "int":
            if len(word) > 19 or int(word) >= 1 << 62:
                self.fail(column, "a size below 2**62")
            tree = ("int", int(word))
        elif kind == "name" and word in ("min", "max") and self.peek() == "(":
            self.next += 1
            args = [self.sum()]
            while self.take(","):
                args.append(self.sum())
            self.need(")")
            tree = (word, *args)
        elif kind == "name":
            tree = ("name", word)
        elif word == "-":
            tree = ("neg", self.unit())
        elif word == "(":
            tree = self.sum()
            self.need(")")
        else:
            self.fail(column, "a size, a name, '*' or '...'")
        self.depth -= 1
        return tree
