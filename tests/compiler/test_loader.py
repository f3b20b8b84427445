"""Object code in memory: relocations, protection, reuse of memory, refusal, fork."""
from __future__ import annotations

import ctypes
import gc
import os
import threading

import pytest

from bcvm.compiler import elf, llvm, loader
from bcvm.compiler.target import host
from bcvm.compiler.worker import FULL, GLUE, PLAIN
from bcvm.errors import CompileError
from bcvm.vm.compile_thread import thread

SWITCH = """
@table = private unnamed_addr constant [4 x double] [double 1.0, double 2.0, double 3.0, double 4.5]
@shared = constant [2 x i64] [i64 11, i64 22]
@pointers = internal constant [2 x ptr] [ptr @helper, ptr @lookup]
define i32 @choose(i64 %x) {
  switch i64 %x, label %d [i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %e  i64 4, label %g]
a: ret i32 7
b: ret i32 17
c: ret i32 123
e: %r = call i32 @helper(i64 3)
  ret i32 %r
g: ret i32 99
d: ret i32 1
}
define double @lookup(i64 %x) {
  %p = getelementptr double, ptr @table, i64 %x
  %v = load double, ptr %p
  %w = fadd double %v, 0.1
  ret double %w
}
define i64 @global(i64 %x) {
  %p = getelementptr i64, ptr @shared, i64 %x
  %v = load i64, ptr %p
  ret i64 %v
}
define i32 @indirect(i64 %x) {
  %p = getelementptr ptr, ptr @pointers, i64 %x
  %f = load ptr, ptr %p
  %r = call i32 %f(i64 41)
  ret i32 %r
}
define i32 @helper(i64 %x) noinline {
  %p = trunc i64 %x to i32
  %q = add i32 %p, 1
  ret i32 %q
}
"""


def constant(n):
    return llvm.compile_ir(f"define i64 @f() {{\nret i64 {n}\n}}")


def function(code, name="f", result=ctypes.c_int64, *args):
    return ctypes.CFUNCTYPE(result, *args)(code.address(name))


@pytest.mark.parametrize("effort", [GLUE, PLAIN, FULL])
@pytest.mark.parametrize("limit", ["", "avx2", "baseline"])
def test_relocations_between_code_and_constants(effort, limit):
    code = loader.load(llvm.compile_ir(SWITCH, host(limit), effort))
    choose = function(code, "choose", ctypes.c_int32, ctypes.c_int64)
    assert [choose(i) for i in range(6)] == [7, 17, 123, 4, 99, 1]
    lookup = function(code, "lookup", ctypes.c_double, ctypes.c_int64)
    assert [lookup(i) for i in range(4)] == [1.1, 2.1, 3.1, 4.6]
    assert [function(code, "global", ctypes.c_int64, ctypes.c_int64)(i) for i in range(2)] == [11, 22]
    assert function(code, "indirect", ctypes.c_int32, ctypes.c_int64)(0) == 42
    code.release()


def test_no_page_is_writable_and_executable():
    code = loader.load(constant(5))
    at = code.address("f")
    with open("/proc/self/maps") as f:
        maps = [line.split()[:2] for line in f if "bcvm-code" in line]
    assert maps and not any("w" in p and "x" in p for _, p in maps)
    spans = [(p, *(int(x, 16) for x in r.split("-"))) for r, p in maps]
    assert [p for p, low, high in spans if low <= at < high] == ["r-xs"]
    code.release()


def test_memory_is_reused_and_accounted():
    gc.collect()  # code of functions that earlier tests dropped is freed now, not meanwhile
    thread.idle(60)
    obj = constant(1)
    before = loader.code_bytes()
    first = loader.load(obj)
    address = first.address("f")
    assert loader.code_bytes() == before + first.size
    first.release()
    first.release()
    assert loader.code_bytes() == before
    again = loader.load(obj)
    assert again.address("f") == address
    many = [loader.load(constant(n)) for n in range(200)]
    assert len({c.address("f") for c in many}) == 200
    assert all(function(c)() == n for n, c in enumerate(many))
    for c in many[::2] + many[1::2] + [again]:
        c.release()
    assert loader.code_bytes() == before


def test_released_code_and_unknown_names_are_refused():
    code = loader.load(constant(1))
    with pytest.raises(CompileError, match="no function 'g'.*f"):
        code.address("g")
    code.release()
    with pytest.raises(CompileError, match="released"):
        code.address("f")


@pytest.mark.parametrize("ir, message", [
    ("declare double @sin(double)\ndefine double @f(double %x) {\n%y = call double @sin(double %x)\nret double %y\n}", "sin"),
    ("declare double @llvm.exp.f64(double)\ndefine double @f(double %x) {\n%y = call double @llvm.exp.f64(double %x)\nret double %y\n}", "exp"),
    ("define i32 @f() {\nret i64 0\n}", "invalid LLVM IR"),
    ("define i32 @f() {\n%x = add i32 %x, 1\nret i32 %x\n}", "invalid LLVM IR"),
    ("nonsense", "invalid LLVM IR"),
])
def test_bad_ir_is_refused(ir, message):
    with pytest.raises(CompileError, match=message):
        llvm.compile_ir(ir)


@pytest.mark.parametrize("definition", ["global i64 0", "global i64 7", "thread_local global i64 0"])
def test_writable_data_is_refused(definition):
    with pytest.raises(CompileError, match=r"writable data|outside itself|relocation"):
        loader.load(llvm.compile_ir(f"@x = internal {definition}\ndefine i64 @f(i64 %v) {{\n%o = load i64, ptr @x\nstore i64 %v, ptr @x\nret i64 %o\n}}"))


def test_damaged_objects_are_refused_or_load():
    good = llvm.compile_ir(SWITCH)
    for n in (0, 3, 16, 63, 64, 200, len(good) // 2, len(good) - 1):
        with pytest.raises(CompileError):
            loader.load(good[:n])
    before = loader.code_bytes()
    for at in range(0, len(good), 7):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        try:
            loader.load(bytes(damaged)).release()
        except CompileError:
            pass
        assert loader.code_bytes() == before


def test_external_symbols_are_listed():
    assert elf.read(llvm.compile_ir(SWITCH)).external() == []


def test_large_code_gets_a_segment_of_its_own():
    before = loader.code_bytes()
    big = loader.place(b"\xc3" * (3 << 20), "big")
    ctypes.CFUNCTYPE(None)(big.address("big") + (2 << 20))()
    assert loader.code_bytes() >= before + (3 << 20)
    big.release()
    assert loader.code_bytes() == before


def test_compiling_from_several_threads():
    results = {}

    def work(n):
        code = loader.load(constant(n))
        results[n] = function(code)()
        code.release()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: n for n in range(8)}


def test_after_a_fork_both_sides_allocate_apart():
    old, dead = loader.load(constant(1)), loader.load(constant(2))
    freed_at = dead.address("f")
    dead.release()
    new_object, other = constant(3), constant(4)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = loader.load(other)
            os.read(read, 1)  # the parent has loaded its code by now
            code = 0 if (function(old)(), function(mine)()) == (1, 4) and mine.address("f") != freed_at else 2
            old.release()
            mine.release()
        finally:
            os._exit(code)
    mine = loader.load(new_object)
    assert function(mine)() == 3 and mine.address("f") != freed_at
    os.write(write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert function(old)() == 1
    for end in (read, write):
        os.close(end)
    old.release()
    mine.release()
