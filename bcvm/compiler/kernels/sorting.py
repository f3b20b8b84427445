"""Kernels whose work depends on values: the order of a row, how often numbers occur, where a mask is true."""
from __future__ import annotations

from ...errors import Unsupported
from ..abi import llvm_type
from ..region import KernelSource
from ..target import Target
from .builder import DONE, KERNEL_PARAMS, NO_MEMORY, REFUSED, Function, Module, Value
from .conv_tiles import ITEMSIZE
from .movement import rows_of

SHORT = 24  # rows up to this length are sorted by insertion
BUCKETS = 256


def _ordered(f: Function, dtype: str, value: str) -> tuple[str, str]:
    """(type, unsigned number that orders as the value does): NaN last, the zeros equal."""
    if dtype == "float16":
        value, dtype = f(f"fpext half {value} to float"), "float32"
    if dtype.startswith("float"):
        element, bits = llvm_type(dtype), 8 * ITEMSIZE[dtype]
        word = f"i{bits}"
        nan = f(f"fcmp uno {element} {value}, {value}")
        raw = f(f"bitcast {element} {f(f'fadd {element} {value}, 0.0')} to {word}")
        mask = f(f"or {word} {f(f'ashr {word} {raw}, {bits - 1}')}, {-(1 << (bits - 1))}")  # negative ones turn round
        return word, f.select(nan, "-1", f(f"xor {word} {raw}, {mask}"), word)
    source = llvm_type(dtype)
    word = "i64" if ITEMSIZE[dtype] == 8 else "i32"
    signed = dtype.startswith("int")
    if source != word:
        value = f(f"{'sext' if signed else 'zext'} {source} {value} to {word}")
    return word, f(f"xor {word} {value}, {-(1 << (63 if word == 'i64' else 31))}") if signed else value


def argsort(dtype: str, rank: int, target: Target) -> KernelSource:
    """The indices (int64) that sort x along the last of `rank` dims, equal ones in their order; sizes are the dims.

    A radix sort by bytes, the least first, of records that hold key and index; bytes that all have in common are passed over.
    Short rows by insertion."""
    if dtype not in (*ITEMSIZE, "float16"):
        raise Unsupported(f"argsort of {dtype}")
    item = {**ITEMSIZE, "float16": 2}[dtype]
    digits = 8 if item == 8 else 4
    record = 16 if item == 8 else 8  # a key of 8 bytes with its index, or both in one word
    module = Module()
    name = f"argsort_{dtype}_{rank}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    n = f.word("%sizes", rank - 1)
    f.fail_if(f.cmp("ugt", n, (1 << 31) - 1), NO_MEMORY)
    table = f.alloc("%ctx", 4 * digits * BUCKETS)
    first = f.through_table("%ctx", "alloc", "%ctx", f.add(f.mul(n, 2 * record), 64))
    with f.when(f(f"icmp eq ptr {first}, null")):
        f.release("%ctx", table)
        f.ret(f"i32 {NO_MEMORY}")
        f.label(f.fresh())  # what `when` ends with is never reached
    second = f.gep(first, f.mul(n, record))

    def at(records: str, i: Value) -> str:
        return f.gep(records, f.mul(i, record))

    def key_of(pointer: str) -> str:
        return f.load("i64", pointer)

    def count(digit: Value, row: Value) -> str:
        return f.gep(table, f.mul(f.add(f.mul(row, BUCKETS), digit), 4))

    def digit_of(key: str, shift: Value) -> str:
        return f(f"and i64 {f(f'lshr i64 {key}, {shift}')}, {BUCKETS - 1}")

    low = 0 if record == 16 else 32  # where a key begins in its word

    def copy(source: str, to: str) -> None:
        f.store("i64", f.load("i64", source), to)
        if record == 16:
            f.set_word(to, 1, f.word(source, 1))

    with rows_of(f, rank, 2) as ((x, out), (x_step, out_step)):
        short = f.cmp("sle", n, SHORT)
        with f.when(f.invert(short)), f.loop(0, 4 * digits * BUCKETS, 64) as z:
            f.store("<16 x i32>", "zeroinitializer", f.gep(table, z.index), 4)
        with f.loop(0, n, carried=[("ptr", x)]) as i:
            word, key = _ordered(f, dtype, f.load("half" if dtype == "float16" else llvm_type(dtype), i.carried[0], item))
            if record == 8:
                wide = f(f"zext i32 {key} to i64")
                key = f(f"or i64 {f(f'shl i64 {wide}, 32')}, {i.index}")
            here = at(first, i.index)
            f.store("i64", key, here)
            if record == 16:
                f.set_word(here, 1, i.index)

            def counted(key: str = key) -> None:
                for d in range(digits):
                    slot = count(digit_of(key, low + 8 * d), d)
                    f.store("i32", f(f"add i32 {f.load('i32', slot, 4)}, 1"), slot, 4)

            def inserted(key: str = key, here: str = here, index: str = i.index) -> None:
                again, shift, done = f.fresh(), f.fresh(), f.fresh()
                before = f.block
                f.br(again)
                f.label(again)
                line = len(f.lines)
                place = f("phi ptr")
                previous = f.gep(place, -record)
                f.branch(f.cmp("ne", f(f"ptrtoint ptr {place} to i64"), f(f"ptrtoint ptr {first} to i64")), shift, done)
                f.label(shift)
                moved, stop = f.fresh(), done
                f.branch(f.cmp("ugt", key_of(previous), key), moved, stop)
                f.label(moved)
                copy(previous, place)
                f.br(again)
                f.lines[line] += f" [ {here}, %{before} ], [ {previous}, %{moved} ]"
                f.label(done)
                f.store("i64", key, place)
                if record == 16:
                    f.set_word(place, 1, index)

            f.choose(short, inserted, counted)
            i.next = [f.gep(i.carried[0], x_step)]
        with f.loop(0, f.select(short, 0, digits), carried=[("ptr", first), ("ptr", second)]) as p:
            source, to = p.carried
            shift = f.add(f.mul(p.index, 8), low)
            common = f.cmp("eq", f(f"sext i32 {f.load('i32', count(digit_of(key_of(source), shift), p.index), 4)} to i64"), n)

            def scattered(source: str = source, to: str = to, shift: Value = shift, row: str = p.index) -> None:
                with f.loop(0, BUCKETS, carried=[("i32", "0")]) as b:
                    slot = count(b.index, row)
                    many = f.load("i32", slot, 4)
                    f.store("i32", b.carried[0], slot, 4)
                    b.next = [f(f"add i32 {b.carried[0]}, {many}")]
                with f.loop(0, n) as i:
                    here = at(source, i.index)
                    slot = count(digit_of(key_of(here), shift), row)
                    place = f.load("i32", slot, 4)
                    f.store("i32", f(f"add i32 {place}, 1"), slot, 4)
                    copy(here, at(to, f(f"zext i32 {place} to i64")))

            f.choose(common, lambda: None, scattered)
            p.next = [f.select(common, source, to, "ptr"), f.select(common, to, source, "ptr")]
        with f.loop(0, n, carried=[("ptr", out)]) as i:
            here = at(p.carried[0], i.index)
            index = f.word(here, 1) if record == 16 else f(f"and i64 {f.load('i64', here)}, {(1 << 32) - 1}")
            f.store("i64", index, i.carried[0])
            i.next = [f.gep(i.carried[0], out_step)]
    f.release("%ctx", first)
    f.release("%ctx", table)
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)


def bincount(dtype: str, target: Target) -> KernelSource:
    """How often each of 0..size-1 occurs in x (signed integers), into out (int64); sizes = [length of x, length of out]. One unit.

    A number that is not among them makes the kernel return REFUSED."""
    if dtype not in ("int8", "int16", "int32", "int64"):
        raise Unsupported(f"bincount of {dtype}")
    module = Module()
    name = f"bincount_{dtype}"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    n, size = f.word("%sizes", 0), f.word("%sizes", 1)
    x, step, out, out_step = f.load("ptr", "%operands"), f.word("%operands", 1), f.load("ptr", f.gep("%operands", 16)), f.word("%operands", 3)
    with f.loop("%lo", f.select(f.cmp("slt", "%hi", 0), 1, "%hi")):
        with f.loop(0, size) as i:
            f.store("i64", 0, f.gep(out, f.mul(i.index, out_step)))
        with f.loop(0, n, carried=[("ptr", x)]) as i:
            value = f.load(llvm_type(dtype), i.carried[0], ITEMSIZE[dtype])
            if dtype != "int64":
                value = f(f"sext {llvm_type(dtype)} {value} to i64")
            f.fail_if(f.cmp("uge", value, size), REFUSED)
            slot = f.gep(out, f.mul(value, out_step))
            f.store("i64", f.add(f.load("i64", slot), 1), slot)
            i.next = [f.gep(i.carried[0], step)]
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)


def flatnonzero(target: Target) -> KernelSource:
    """The first places where x (bool) is true, as many as out (int64) has room for, and 0 behind them; sizes = [length of x, length of out]. One unit."""
    module = Module()
    name = "flatnonzero"
    f = Function(module, name, KERNEL_PARAMS, "i32", public=True)
    n, size = f.word("%sizes", 0), f.word("%sizes", 1)
    x, step, out, out_step = f.load("ptr", "%operands"), f.word("%operands", 1), f.load("ptr", f.gep("%operands", 16)), f.word("%operands", 3)
    with f.loop("%lo", f.select(f.cmp("slt", "%hi", 0), 1, "%hi")):
        with f.loop(0, n, carried=[("ptr", x), ("i64", "0")]) as i:
            with f.when(f.cmp("slt", i.carried[1], size)):
                f.store("i64", i.index, f.gep(out, f.mul(i.carried[1], out_step)))
            true = f.load("i8", i.carried[0], 1)
            hit = f(f"zext i1 {f(f'icmp ne i8 {true}, 0')} to i64")
            i.next = [f.gep(i.carried[0], step), f.add(i.carried[1], hit)]
        with f.loop(f.min(i.carried[1], size), size) as j:
            f.store("i64", 0, f.gep(out, f.mul(j.index, out_step)))
    f.ret(f"i32 {DONE}")
    f.end()
    return module.source(name, target)
