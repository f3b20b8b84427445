"""Random valid programs for the tests of this folder: `make(random, words, constants)`, and `programs()` for hypothesis."""
from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from bcvm.bytecode.build import Label, ProgramBuilder
from bcvm.bytecode.program import Annotation, Program

WORDS = ["x", "y", "weight", "training", "a b", "", "#;'\"", "\n", "é", "😀", "\ud800", "0x1", "None", "f.<locals>.g", ".t0", "...", "->", "$1", "[FUSED]", "a:b"]
CONSTANTS: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, -(2**200), 10**5000, 0.0, -0.0, 1.0, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"), -float("nan"),
    complex(-0.0, float("nan")), 1j, "", "it's; # \"q\" \\ \n\x00", "\ud83d\ude00", "😀", b"", b"\x00'\"\xff\\", ..., (), (1,), (1, (True, (1.0, ("a", b"b")))),
]
HINTS = ["...", "B,*,768", "[]", "[1, D]", "..., C", "2*S+1, S//2", "max(A,B)-1, (S-1)%3"]
TYPES = ["", "Tensor<float32,[?,512,768]>", "Tuple<a, b>", "it's", ";"]
DECISIONS = ["", "[FUSED 3 ops]", "[REJECTED] shape mismatch: [B,C,H,W] vs [C]", "[a] ", "no bracket", "['q']", "[x;y]"]
DTYPES = ["float16", "float32", "int64", "custom"]


class Maker:
    """Writes statements and expressions as a frontend would. Every choice comes from `random`."""

    def __init__(self, random: Random, words: list[str], constants: list[Any]) -> None:
        self.r, self.words, self.constants = random, words, constants
        self.b = ProgramBuilder(self.word() or "f", self.word(), random.randrange(100))
        self.budget = random.randrange(1, 40)
        self.loops: list[tuple[int, Label, bool]] = []  # header, what follows the loop, whether an iterator is on the stack
        self.fused = False

    def word(self) -> str:
        return self.r.choice(self.words)

    def program(self) -> Program:
        r, b = self.r, self.b
        names = list(dict.fromkeys(self.word() for _ in range(r.randrange(4))))
        defaults = False
        for name, kind in zip(names, sorted((r.choice(["positional_only", "positional", "keyword_only"]) for _ in names), reverse=True), strict=True):
            defaults |= r.random() < 0.3
            b.param(name, "positional" if kind == "positional_only" and b._params and b._params[-1].kind == "positional" else kind,
                    defaults, r.choice([*HINTS, ""]))
        if r.random() < 0.3:
            for section in (lambda: b.const(r.choice(self.constants)), lambda: b.name(self.word()), lambda: b.capture("closure", self.word()),
                            lambda: b.hint(r.choice(HINTS)), lambda: b.local(self.word())):
                for _ in range(r.randrange(3)):
                    section()
        b.local("result")
        if r.random() < 0.3:
            b.return_hint(r.choice(HINTS))
        self.block()
        self.expression()
        b.emit("RETURN")
        for at in range(b.next_id):
            if r.random() < 0.1:
                b.annotate(at, Annotation(r.choice(TYPES), self.signature(), r.choice(DECISIONS)))
        return b.finish()

    def signature(self) -> int:
        r = self.r
        if r.random() < 0.5:
            return 0
        return self.b.signature(tuple((r.choice(DTYPES), r.randrange(5), r.choice(["C", "strided", "it's"]), "host") for _ in range(r.randrange(1, 3))))

    def local(self) -> int:
        return self.r.randrange(len(self.b._locals))

    def block(self) -> None:
        for _ in range(self.r.randrange(1, 4)):
            if self.budget <= 0:
                return
            self.budget -= 1
            self.b.at(self.r.randrange(200), self.r.randrange(80))
            self.r.choice([self.assign, self.assign, self.discard, self.branch, self.for_loop, self.while_loop, self.leave, self.region, self.store_item, self.other])()

    def assign(self) -> None:
        self.expression()
        self.b.emit("STORE", self.b.local(self.word()) if self.r.random() < 0.3 else self.local())

    def discard(self) -> None:
        self.expression()
        self.b.emit("POP")

    def branch(self) -> None:
        other, end = self.b.label(), self.b.label()
        self.expression()
        self.b.emit(self.r.choice(["BRANCH_IF_SYMBOLIC", "COND_JUMP"]), other)
        self.block()
        self.b.emit("JUMP", end)
        self.b.place(other)
        self.block()
        self.b.place(end)
        self.b.emit("NOP")

    def for_loop(self) -> None:
        if len(self.loops) >= 4 or self.fused:
            return
        b, end, last = self.b, self.b.label(), self.b.label()
        self.expression()
        b.emit("GET_ITER")
        header = b.emit("LOOP_START", end)
        b.emit("FOR_NEXT", last)
        b.emit("STORE", self.local())
        self.loops.append((header, end, True))
        self.block()
        self.loops.pop()
        b.emit("LOOP_END", header)
        b.place(last)
        b.emit("NOP")
        b.place(end)
        b.emit("NOP")

    def while_loop(self) -> None:
        if len(self.loops) >= 4 or self.fused:
            return
        b, end = self.b, self.b.label()
        header = b.emit("LOOP_START", end)
        self.expression()
        b.emit("COND_JUMP", end)
        self.loops.append((header, end, False))
        self.block()
        self.loops.pop()
        b.emit("LOOP_END", header)
        b.place(end)
        b.emit("NOP")

    def leave(self) -> None:
        """break, continue or return, under a condition."""
        stay = self.b.label()
        self.expression()
        self.b.emit("COND_JUMP", stay)
        if self.loops and self.r.random() < 0.7:
            header, end, iterates = self.loops[-1]
            if self.r.random() < 0.5:
                self.b.emit("LOOP_END", header)
            else:
                if iterates:
                    self.b.emit("POP")
                self.b.emit("JUMP", end)
        elif not self.fused:
            self.expression()
            self.b.emit("RETURN")
        self.b.place(stay)
        self.b.emit("NOP")

    def region(self) -> None:
        if self.fused:
            return
        self.b.emit("FUSE_START", self.b.name("policy_005"))
        self.fused, loops, self.loops = True, self.loops, []
        self.assign()
        self.branch()
        self.fused, self.loops = False, loops
        self.b.emit("FUSE_END")

    def store_item(self) -> None:
        for _ in range(3):
            self.expression()
        self.b.emit("STORE_TENSOR")

    def other(self) -> None:
        b, r = self.b, self.r
        count = r.randrange(3)
        for _ in range(count):
            self.expression()
        b.emit("CALL_PY", b.add_import(f"{self.word()}.{r.randrange(3)}", "x = 1\n# it's"), count, count)
        for _ in range(count):
            b.emit("STORE", self.local())
        b.emit("FUSE_ACROSS_DEVICE", r.randrange(3), r.randrange(3))
        b.emit("DELETE", self.local())
        self.expression()
        before, after = r.randrange(3), r.randrange(3)
        b.emit("UNPACK_STAR", before, after)
        for _ in range(before + 1 + after):
            b.emit("POP")

    def expression(self, depth: int = 0) -> None:
        b, r = self.b, self.r
        what = r.randrange(5 if depth > 2 else 16)
        more = depth + 1
        if what == 0:
            b.emit("LOAD", self.local())
        elif what == 1:
            b.emit("LOAD_TENSOR", self.local(), b.hint(r.choice(HINTS)))
        elif what == 2:
            b.emit("LOAD_CAPTURE", b.capture(r.choice(["closure", "global"]), self.word()))
        elif what in (3, 4):
            b.emit("LOAD_CONST", b.const(r.choice(self.constants)))
        elif what == 5:
            self.expression(more)
            b.emit("LOAD_ATTR", b.name(self.word()))
        elif what == 6:
            self.conditional(more)
        elif what == 7:
            self.expression(more)
            self.expression(more)
            b.emit("SWAP", 2)
            b.emit("COPY", 2)
            b.emit("CALL_OP", b.name("add"), self.signature(), 3)
        elif what == 8:
            self.expression(more)
            self.expression(more)
            self.expression(more)
            b.emit("CALL", 2, b.const(r.choice([(), ("a",), ("a", "b")])))
        elif what == 9:
            self.expression(more)
            b.emit(r.choice(["ADD_CONST", "MUL_CONST"]), b.const(r.choice([1, 2.5, True, 1j])), self.signature())
        elif what == 10:
            self.expression(more)
            self.expression(more)
            b.emit("BROADCAST_ADD", r.getrandbits(r.randrange(1, 64)), self.signature())
        elif what == 11:
            self.expression(more)
            self.expression(more)
            b.emit(r.choice(["RESHAPE", "MATMUL", "FUSED_MATMUL_RELU", "FUSED_ADD_RELU_CAST_FP16"]), self.signature())
        elif what == 12:
            self.expression(more)
            b.emit("CONCAT", 1, b.const(-1), self.signature())
        elif what == 13:
            self.expression(more)
            self.expression(more)
            b.emit(r.choice(["BUILD_SLICE", "BUILD_TUPLE", "BUILD_LIST"]), 2)
        elif what == 14:
            self.expression(more)
            self.expression(more)
            b.emit("LOAD_ITEM")
        else:
            self.expression(more)
            b.emit("ALLOC_DEVICE_MEM", 0, r.randrange(2))

    def conditional(self, depth: int) -> None:
        other, end = self.b.label(), self.b.label()
        self.expression(depth)
        self.b.emit("COND_JUMP", other)
        self.expression(depth)
        self.b.emit("JUMP", end)
        self.b.place(other)
        self.expression(depth)
        self.b.place(end)
        self.b.emit("CALL_OP", self.b.name("neg"), 0, 1)


def make(random: Random, words: list[str] = WORDS, constants: list[Any] = CONSTANTS) -> Program:
    return Maker(random, words, constants).program()


def constants() -> st.SearchStrategy[Any]:
    single = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(st.characters()) | st.binary() | st.just(...)
    return st.recursive(single, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    text = st.text(st.characters(), max_size=8)
    words = draw(st.lists(text, min_size=1, max_size=4)) + draw(st.lists(st.sampled_from(WORDS), max_size=4))
    return make(Random(draw(st.integers(0, 2**32))), words, draw(st.lists(constants(), min_size=1, max_size=4)))
