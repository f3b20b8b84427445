"""The words of the text form, shared by disassembler and assembler: names, strings, constants, hints, and how to scan them.

Printing a value and scanning it gives the same value, bit for bit (NaN payloads and -0.0 too).
"""
from __future__ import annotations

import re
import struct
from typing import Any, NoReturn

from bcvm.bytecode import hint_text
from bcvm.bytecode.constants import MAX_DEPTH

PLAIN = re.compile(r"[^\W\d][\w.<>]*|[.<][\w.<>]*\w[\w.<>]*")
"""A name that needs no quotes."""
_QUOTED = re.compile(r"""(b?)('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""")
_ESCAPE = re.compile(r"\\(?:([\\'\"nrt])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|0b[01]+|inf|nan(?:\(0x[0-9a-fA-F]{16}\))?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_WORD = re.compile(r"None|True|False|\.\.\.")
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "...": ...}
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t"}
_DECIMAL_BITS = 128  # Python limits decimal conversion of long integers
_NAN = struct.unpack("<Q", struct.pack("<d", float("nan")))[0]


def name(text: str) -> str:
    return text if PLAIN.fullmatch(text) else repr(text)


def hint(text: str) -> str:
    try:
        return text if hint_text.canonical(text) == text else repr(text)
    except ValueError:
        return repr(text)


def literal(value: Any) -> str:
    """A constant."""
    kind = type(value)
    if kind is float:
        return _float(value)
    if kind is complex:
        return f"complex({_float(value.real)}, {_float(value.imag)})"
    if kind is int and value.bit_length() > _DECIMAL_BITS:
        return hex(value)
    if kind is tuple:
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return "..." if value is Ellipsis else repr(value)


def _float(value: float) -> str:
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    return repr(value) if value == value or bits == _NAN else f"nan(0x{bits:016x})"


def split_line(line: str) -> tuple[str, str]:
    """The statement and what follows its `;`; a `#` outside quotes starts a comment."""
    parts: list[str] = []
    start, quote, at = 0, "", 0
    while at < len(line):
        c = line[at]
        if quote:
            if c == "\\":
                at += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c == "#":
            break
        elif c == ";" and not parts:
            parts.append(line[:at])
            start = at + 1
        at += 1
    parts.append(line[start:at])
    return parts[0], parts[1] if len(parts) > 1 else ""


class Scanner:
    """Reads words from one line's statement. `fail` raises what the assembler turns into a BytecodeError."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.skip()

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def fail(self, expected: str) -> NoReturn:
        raise ValueError(f"expected {expected}, found {self.rest()[:60]!r}" if self.rest() else f"expected {expected} before the end of the line")

    def rest(self) -> str:
        return self.text[self.at:]

    def more(self) -> bool:
        return self.at < len(self.text)

    def end(self) -> None:
        if self.more():
            self.fail("the end of the line")

    def looking_at(self, *starts: str) -> bool:
        return self.text.startswith(starts, self.at)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        m = pattern.match(self.text, self.at)
        if m is not None:
            self.at = m.end()
            self.skip()
        return m

    def take(self, word: str) -> bool:
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        self.skip()
        return True

    def name(self, what: str) -> str:
        if self.looking_at("'", '"'):
            return self.string(what)
        m = self.match(PLAIN)
        return m.group() if m else self.fail(what)

    def string(self, what: str) -> str:
        m = self.match(_QUOTED)
        if m is None or m.group(1):
            self.fail(what)
        return _unescape(m.group(2)[1:-1])

    def hint(self) -> str:
        """Brackets are read for their meaning (spaces do not matter), quotes to the letter."""
        if self.looking_at("'", '"'):
            return self.string("a shape hint")
        if self.take("..."):
            return "..."
        close = self.text.find("]", self.at)
        if not self.looking_at("[") or close < 0:
            self.fail("a shape hint such as [B,*,768] or ...")
        text = self.text[self.at:close + 1]
        self.at = close + 1
        self.skip()
        return hint_text.canonical(text)

    def number(self, what: str) -> int:
        m = self.match(_NUMBER)
        value = _number(m.group()) if m else None
        return value if type(value) is int else self.fail(what)

    def literal(self, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} nested tuples")
        if m := self.match(_WORD):
            return _WORDS[m.group()]
        if m := self.match(_QUOTED):
            body = _unescape(m.group(2)[1:-1])
            try:
                return body.encode("latin-1") if m.group(1) else body
            except UnicodeEncodeError:
                raise ValueError("a bytes constant holds a character above \\xff") from None
        if self.take("complex("):
            parts = [self.literal(depth + 1)]
            if not self.take(","):
                self.fail("','")
            parts.append(self.literal(depth + 1))
            if not self.take(")") or not all(type(x) is float for x in parts):
                self.fail("complex(real, imaginary) of two floats")
            return complex(*parts)
        if self.take("("):
            items = []
            while not self.take(")"):
                items.append(self.literal(depth + 1))
                if not self.take(",") and not self.looking_at(")"):
                    self.fail("',' or ')'")
            return tuple(items)
        m = self.match(_NUMBER)
        return _number(m.group()) if m else self.fail("a constant")


def _number(word: str) -> int | float:
    body = word.lstrip("+-")
    if body.startswith(("0x", "0b")):
        return int(word, 0)
    if body.startswith("nan("):
        return float(struct.unpack("<d", struct.pack("<Q", int(body[4:-1], 16)))[0])
    if body.isdigit():
        if len(body) > 4000:
            raise ValueError("an integer of more than 4000 digits is written in hexadecimal")
        return int(word)
    return float(word)


def _unescape(body: str) -> str:
    def one(m: re.Match[str]) -> str:
        simple, x, u, long, other = m.groups()
        if simple:
            return _SIMPLE.get(simple, simple)
        if other is not None or (long and int(long, 16) > 0x10FFFF):
            raise ValueError(f"unknown escape {m.group()!r} in a string")
        return chr(int(x or u or long, 16))
    return _ESCAPE.sub(one, body)
