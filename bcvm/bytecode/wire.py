"""Bytes of the binary form: variable-length integers, strings, constants. Writer and Reader mirror each other.

Numbers have one encoding only, so a program has one. The reader never takes a count on trust: a count of items is at most the
number of bytes left, so memory is bounded by the input's size.
"""
from __future__ import annotations

import struct
from typing import Any, NoReturn

from bcvm.bytecode.constants import MAX_DEPTH
from bcvm.errors import BytecodeError

MAX_NUMBER = (1 << 64) - 1
NONE, FALSE, TRUE, ELLIPSIS, INT, FLOAT, COMPLEX, STR, BYTES, TUPLE = range(10)
_SINGLE: dict[int, Any] = {NONE: None, FALSE: False, TRUE: True, ELLIPSIS: ...}


class Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """An unsigned integer below 2**64, seven bits a byte, low bits first."""
        if not 0 <= value <= MAX_NUMBER:
            raise BytecodeError(f"{value} has no place in the binary form: numbers are 0..2**64-1")
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def signed(self, value: int) -> None:
        self.number(value * 2 if value >= 0 else -value * 2 - 1)

    def raw(self, data: bytes) -> None:
        self.number(len(data))
        self.data += data

    def string(self, value: str) -> None:
        self.raw(value.encode("utf-8", "surrogatepass"))

    def constant(self, value: Any) -> None:
        kind = type(value)
        if value is None or value is Ellipsis or kind is bool:
            self.data.append(next(tag for tag, v in _SINGLE.items() if v is value))
        elif kind is int:
            self.data.append(INT)
            self.raw(value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True))
        elif kind is float:
            self.data += struct.pack("<Bd", FLOAT, value)
        elif kind is complex:
            self.data += struct.pack("<Bdd", COMPLEX, value.real, value.imag)
        elif kind is str:
            self.data.append(STR)
            self.string(value)
        elif kind is bytes:
            self.data.append(BYTES)
            self.raw(value)
        else:
            self.data.append(TUPLE)
            self.number(len(value))
            for item in value:
                self.constant(item)


class Reader:
    """Reads data[at:end]; every error is a BytecodeError with section and offset."""

    def __init__(self, data: bytes, at: int, end: int, section: str) -> None:
        self.data, self.at, self.end, self.section = data, at, end, section

    def fail(self, reason: str) -> NoReturn:
        raise BytecodeError(f"invalid bytecode file, {self.section} at byte {self.at}: {reason}")

    def byte(self) -> int:
        if self.at >= self.end:
            self.fail("ends too early")
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            b = self.byte()
            value |= (b & 127) << shift
            if b < 128:
                break
            shift += 7
            if shift > 63:
                self.fail("a number of more than 64 bits")
        if value > MAX_NUMBER or (b == 0 and shift):
            self.fail("a number of more than 64 bits" if b else "a number with needless bytes")
        return value

    def signed(self) -> int:
        value = self.number()
        return -(value + 1) // 2 if value & 1 else value // 2

    def count(self, what: str) -> int:
        """Of items that take at least a byte each."""
        n = self.number()
        if n > self.end - self.at:
            self.fail(f"{n} {what} in {self.end - self.at} bytes")
        return n

    def raw(self) -> bytes:
        n = self.count("bytes")
        self.at += n
        return self.data[self.at - n:self.at]

    def string(self) -> str:
        try:
            return self.raw().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as e:
            self.fail(f"a string is not UTF-8: {e.reason}")

    def flag(self) -> bool:
        b = self.byte()
        if b > 1:
            self.fail(f"{b} is no truth value")
        return b == 1

    def doubles(self, n: int) -> tuple[float, ...]:
        if self.end - self.at < 8 * n:
            self.fail("ends too early")
        self.at += 8 * n
        return struct.unpack_from(f"<{n}d", self.data, self.at - 8 * n)

    def constant(self, depth: int = 0) -> Any:
        tag = self.byte()
        if tag in _SINGLE:
            return _SINGLE[tag]
        if tag == INT:
            raw = self.raw()
            value = int.from_bytes(raw, "little", signed=True)
            if len(raw) != (value.bit_length() + 8) // 8:
                self.fail("an integer with needless bytes")
            return value
        if tag == FLOAT:
            return self.doubles(1)[0]
        if tag == COMPLEX:
            return complex(*self.doubles(2))
        if tag == STR:
            return self.string()
        if tag == BYTES:
            return self.raw()
        if tag != TUPLE:
            self.fail(f"unknown kind {tag} of constant")
        if depth >= MAX_DEPTH:
            self.fail(f"a constant nested more than {MAX_DEPTH} tuples deep")
        return tuple(self.constant(depth + 1) for _ in range(self.count("items")))

    def done(self) -> None:
        if self.at != self.end:
            self.fail(f"{self.end - self.at} bytes too many")
