"""What the parts of the attention kernel share: the words of its state, vectors of a dtype, exp, masks."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import Unsupported
from ..abi import llvm_type
from ..target import Target
from .builder import Function, Value
from .vector import literal

# Words of the state that the parts get: pointers to and strides of what the unit reads and writes; a factor for q; the unit's rows, and the number of the first;
# keys, dims of a key and of a value; scratch; keys and values in two parts: how many are in the first, and the second part; then MASK_WORDS for each mask. A number is
# kept as its bits. ASK..: what memory is asked for ahead, see attention_tiles.
(Q, Q_ROW, Q_COLUMN, K, K_DIM, K_KEY, V, V_KEY, V_DIM, OUT, OUT_ROW, OUT_COLUMN, FACTOR, ROWS, FIRST, KEYS, DIMS, WIDTH, TURNED, STRIP, MASKED, SUMS,
 K_SPLIT, K_MORE, K_MORE_DIM, K_MORE_KEY, V_SPLIT, V_MORE, V_MORE_KEY, V_MORE_DIM, ASK, ASKED, ASK_FULL, ASK_ROWS, MASK) = range(35)
MASK_ROW, MASK_COLUMN, MASK_NUMBER, MASK_WORDS = 1, 2, 3, 4

# exp(x) on |x| <= ln(2) / 2, highest power first: a minimax fit; the series.
_EXP = {"float32": (0.0013814433477818966, 0.008368796668946743, 0.041668396443128586, 0.1666651964187622, 0.4999999403953552, 1.0, 1.0),
        "float64": tuple(1 / math.factorial(i) for i in range(12, -1, -1))}


class Lanes:
    """A dtype on a target. Tiles have `queries` queries: two vectors, `width` bytes."""

    def __init__(self, dtype: str, target: Target) -> None:
        if dtype not in _EXP:
            raise Unsupported(f"no native attention for {dtype}")
        self.dtype, self.target = dtype, target
        self.element = llvm_type(dtype)
        self.item = 4 if dtype == "float32" else 8
        self.count = target.lanes(self.item)
        self.vector = f"<{self.count} x {self.element}>"
        self.integer = f"i{8 * self.item}"
        self.integers = f"<{self.count} x {self.integer}>"
        self.suffix = f"v{self.count}f{8 * self.item}"
        self.queries = 2 * self.count
        self.width = 2 * target.vector_bytes

    def number(self, value: float) -> str:
        return literal(value, self.dtype)

    def constant(self, value: float) -> str:
        return f"splat ({self.element} {self.number(value)})"

    def whole(self, value: int) -> str:
        return f"splat ({self.integer} {value})"

    # Memory

    def load(self, f: Function, pointer: str, mask: str = "") -> str:
        if not mask:
            return f.load(self.vector, pointer, self.item)
        name = f.module.declare(f"llvm.masked.load.{self.suffix}.p0", self.vector, "ptr", "i32 immarg", f"<{self.count} x i1>", self.vector)
        return f(f"call {self.vector} {name}(ptr {pointer}, i32 {self.item}, <{self.count} x i1> {mask}, {self.vector} zeroinitializer)")

    def store(self, f: Function, value: str, pointer: str, mask: str = "") -> None:
        if not mask:
            f.store(self.vector, value, pointer, self.item)
            return
        name = f.module.declare(f"llvm.masked.store.{self.suffix}.p0", "void", self.vector, "ptr", "i32 immarg", f"<{self.count} x i1>")
        f.emit(f"call void {name}({self.vector} {value}, ptr {pointer}, i32 {self.item}, <{self.count} x i1> {mask})")

    def one(self, f: Function, pointer: str) -> str:
        return f.load(self.element, pointer, self.item)

    def put(self, f: Function, value: str, pointer: str) -> None:
        f.store(self.element, value, pointer, self.item)

    def truth(self, f: Function, pointer: str) -> str:
        """A bool as an element whose bits are 0 or 1."""
        bits = f(f"zext i8 {f.load('i8', pointer, 1)} to {self.integer}")
        return f(f"bitcast {self.integer} {bits} to {self.element}")

    def number_at(self, f: Function, word: int) -> str:
        """A number of the state."""
        return f.load(self.element, f.gep("%d", 8 * word))

    # Arithmetic

    def splat(self, f: Function, scalar: str) -> str:
        return f.splat(self.element, self.count, scalar)

    def op(self, f: Function, name: str, a: str, b: str) -> str:
        return f(f"{name} {self.vector} {a}, {b}")

    def multiply_add(self, f: Function, a: str, b: str, c: str) -> str:
        return f.intrinsic(f"llvm.fmuladd.{self.suffix}", self.vector, (self.vector, a), (self.vector, b), (self.vector, c))

    def select(self, f: Function, condition: str, a: str, b: str) -> str:
        return f(f"select <{self.count} x i1> {condition}, {self.vector} {a}, {self.vector} {b}")

    def compare(self, f: Function, how: str, a: str, b: str) -> str:
        return f(f"fcmp {how} {self.vector} {a}, {b}")

    def larger(self, f: Function, a: str, b: str) -> str:
        """The larger of a and b; b if a is NaN."""
        return self.select(f, self.compare(f, "ogt", a, b), a, b)

    def numbers(self, f: Function, first: Value) -> str:
        """first, first + 1, ... as integers of the width of an element."""
        if self.item == 4:
            first = f(f"trunc i64 {first} to i32")
        steps = ", ".join(f"{self.integer} {i}" for i in range(self.count))
        return f(f"add {self.integers} {f.splat(self.integer, self.count, first)}, <{steps}>")

    def below(self, f: Function, count: Value) -> str:
        """Lanes 0..count-1."""
        return f(f"icmp slt {self.integers} {self.numbers(f, 0)}, {self.splat_number(f, count)}")

    def splat_number(self, f: Function, number: Value) -> str:
        return f.splat(self.integer, self.count, f(f"trunc i64 {number} to i32") if self.item == 4 else number)

    def fold(self, f: Function, name: str, x: str) -> str:
        """All lanes combined by `fadd` or `larger`, in every lane."""
        step = self.count // 2
        while step:
            other = f.shuffle(self.element, self.count, x, "poison", [i ^ step for i in range(self.count)])
            x = self.larger(f, x, other) if name == "larger" else self.op(f, name, x, other)
            step //= 2
        return x

    def power(self, f: Function, x: str, natural: bool) -> str:
        """2^x, or e^x if natural, for x <= 0; what is no normal number becomes 0. NaN stays."""
        bits, bias = (23, 127) if self.item == 4 else (52, 1023)
        log2 = self.op(f, "fmul", x, self.constant(1 / math.log(2))) if natural else x
        magic = 1.5 * 2.0 ** bits   # the sum's low bits are the nearest integer
        near = self.op(f, "fadd", log2, self.constant(magic))
        whole = self.op(f, "fsub", near, self.constant(magic))
        r = self.op(f, "fsub", log2, whole)
        coefficients = [c * math.log(2) ** (len(_EXP[self.dtype]) - 1 - i) for i, c in enumerate(_EXP[self.dtype])]
        p = self.constant(coefficients[0])
        for c in coefficients[1:]:
            p = self.multiply_add(f, p, r, self.constant(c))
        shifted = f(f"shl {self.integers} {f(f'bitcast {self.vector} {near} to {self.integers}')}, {self.whole(bits)}")
        exponent = f(f"add {self.integers} {shifted}, {self.whole(bias << bits)}")
        scaled = self.op(f, "fmul", p, f(f"bitcast {self.integers} {exponent} to {self.vector}"))
        return self.select(f, self.compare(f, "olt", log2, self.constant(1 - bias)), "zeroinitializer", scaled)

    def safe(self, f: Function, largest: str) -> str:
        """What to subtract where `largest` is the largest score: 0 where all are -inf, so that exp of them is 0."""
        return self.select(f, self.compare(f, "oeq", largest, self.constant(-math.inf)), "zeroinitializer", largest)

    def transpose(self, f: Function, v: list[str]) -> list[str]:
        """As many vectors as a vector has lanes, by shuffles that are one instruction each: elements change places inside 16 bytes, then these blocks."""
        n, inside = self.count, 16 // self.item

        def pairs(v: list[str], apart: int, low: Sequence[int], high: Sequence[int]) -> list[str]:
            """Each vector and the one so far behind it become two: by `low`, and at its place by `high`."""
            return [f.shuffle(self.element, n, v[i & ~apart], v[i | apart], high if i & apart else low) for i in range(n)]

        size = 1
        while size < inside:
            low = [b + x + e for b in range(0, n, inside) for x in range(0, inside // 2, size) for second in (0, n) for e in range(second, second + size)]
            v = pairs(v, size, low, [x + inside // 2 for x in low])
            size *= 2
        # The unpacking instructions leave columns in bit-reversed order inside a block.
        order = [i & ~(inside - 1) | int(f"{i & (inside - 1):0{inside.bit_length() - 1}b}"[::-1] or "0", 2) for i in range(n)]
        v = [v[i] for i in order]
        while size < n:
            low = [second + b + e for second in (0, n) for b in range(0, n, 2 * inside) for e in range(inside)]
            v = pairs(v, size, low, [x + inside for x in low])
            size *= 2
        return v


def with_mask(f: Function, lanes: Lanes, kind: str, score: str, mask: str, number: str) -> str:
    """Scores after one mask. mask: its elements, those of a bool as 0 or 1 bits. number: what is not kept."""
    if kind == "add":
        return lanes.op(f, "fadd", score, mask)
    true = f(f"icmp ne {lanes.integers} {f(f'bitcast {lanes.vector} {mask} to {lanes.integers}')}, zeroinitializer")
    return lanes.select(f, true, score, number) if kind == "keep" else lanes.select(f, true, number, score)


@dataclass(frozen=True)
class Portion:
    """Keys, or values, of a strip that lie in one part: where, their strides by key and by dim, how many, and how many of the strip come before."""

    data: str
    key: str
    dim: str
    count: Value
    before: Value


def portions(f: Function, keys: bool, first: Value, count: Value, joined: bool) -> list[Portion]:
    """The portions of the strip first..first+count; only the last may be empty. keys: of the keys, else of the values."""
    words = ((K, K_KEY, K_DIM), (K_MORE, K_MORE_KEY, K_MORE_DIM)) if keys else ((V, V_KEY, V_DIM), (V_MORE, V_MORE_KEY, V_MORE_DIM))
    parts = [(f.load("ptr", f.gep("%d", 8 * data)), f.word("%d", key), f.word("%d", dim)) for data, key, dim in words[:2 if joined else 1]]
    data, key, dim = parts[0]
    if not joined:
        return [Portion(f.gep(data, f.mul(first, key)), key, dim, count, 0)]
    split = f.word("%d", K_SPLIT if keys else V_SPLIT)
    here = f.max(0, f.min(count, f.sub(split, first)))
    more, more_key, more_dim = parts[1]
    skipped = f.max(0, f.sub(first, split))
    return [Portion(f.gep(data, f.mul(first, key)), key, dim, here, 0), Portion(f.gep(more, f.mul(skipped, more_key)), more_key, more_dim, f.sub(count, here), here)]


def words_of(masks: Sequence[str]) -> int:
    """Words of the state."""
    return MASK + MASK_WORDS * len(masks)


def has_operand(kind: str) -> bool:
    return kind != "causal"


def skips(masks: Sequence[str]) -> bool:
    """Whether keys behind a query need not be read."""
    return tuple(masks) == ("causal",)
