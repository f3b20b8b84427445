"""Element types, by their NumPy-style names. The name is the identity; everything else follows from this table."""
from __future__ import annotations

# name: (bytes per element, kind, short name used in signatures)
_TABLE: dict[str, tuple[int, str, str]] = {
    "bool": (1, "b", "b1"),
    "int8": (1, "i", "i8"), "int16": (2, "i", "i16"), "int32": (4, "i", "i32"), "int64": (8, "i", "i64"),
    "uint8": (1, "u", "u8"), "uint16": (2, "u", "u16"), "uint32": (4, "u", "u32"), "uint64": (8, "u", "u64"),
    "float16": (2, "f", "fp16"), "bfloat16": (2, "f", "bf16"), "float32": (4, "f", "fp32"), "float64": (8, "f", "fp64"),
    "complex64": (8, "c", "c64"), "complex128": (16, "c", "c128"),
}
NAMES: tuple[str, ...] = tuple(_TABLE)


def itemsize(dtype: str) -> int:
    """Bytes per element."""
    return _TABLE[dtype][0]


def kind(dtype: str) -> str:
    """'b' bool, 'i' signed, 'u' unsigned, 'f' floating point, 'c' complex."""
    return _TABLE[dtype][1]


def short(dtype: str) -> str:
    """The name used when a signature is printed (`fp32`)."""
    return _TABLE[dtype][2]


def is_float(dtype: str) -> bool:
    return _TABLE[dtype][1] == "f"


def is_integer(dtype: str) -> bool:
    return kind(dtype) in "iu"
