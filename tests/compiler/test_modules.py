"""A module with names for its addresses is the same text wherever the addresses lie, and its code is right at all of them."""
from __future__ import annotations

import ctypes

import pytest

from bcvm.compiler import elf, llvm, loader
from bcvm.compiler.modules import constant, named
from bcvm.compiler.worker import FULL, GLUE, PLAIN
from bcvm.errors import CompileError

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def module(word: int, function: int, other: int) -> str:
    """f(x) = function(x) + word[0] + word[1] + (the callee's address is `other`), and it stores x into word[1]."""
    return f"""define i64 @f(i64 %x) {{
  %a = load i64, ptr {constant(word)}
  %p = getelementptr i8, ptr {constant(word)}, i64 8
  %b = load i64, ptr %p
  store i64 %x, ptr %p
  %c = call i64 {constant(function)}(i64 %x)
  %same = icmp eq ptr {constant(function)}, {constant(other)}
  %d = zext i1 %same to i64
  %ab = add i64 %a, %b
  %abc = add i64 %ab, %c
  %abcd = add i64 %abc, %d
  ret i64 %abcd
}}
define ptr @g() {{
  ret ptr {constant(other)}
}}"""


def test_the_text_is_the_same_for_other_addresses() -> None:
    first, addresses = named(module(1000, 2000, 3000))
    second, others = named(module(140042568524744, 5, 7))
    assert first == second and "inttoptr" not in first
    assert list(addresses.values()) == [1000, 2000, 3000] and list(others.values()) == [140042568524744, 5, 7]


def test_addresses_that_are_equal_by_chance_are_another_text() -> None:
    assert named(module(1000, 2000, 2000))[0] != named(module(1000, 2000, 3000))[0]
    assert named(module(1000, 2000, 1000))[0] != named(module(1000, 2000, 2000))[0]


def test_text_without_addresses_stays_as_it_is() -> None:
    text = "define ptr @f() { ret ptr null }"
    assert named(text)[0].strip() == text and named(text)[1] == {}


@pytest.mark.parametrize("effort", [GLUE, PLAIN, FULL])
def test_one_object_serves_all_addresses(effort: int) -> None:
    text, _ = named(module(1, 2, 2))
    made = llvm.Compilation(text, effort=effort).result()
    for factor in (3, 5):
        words = (ctypes.c_int64 * 2)(100 * factor, 1000)
        function = CALLBACK(lambda x, factor=factor: x * factor)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        addresses = named(module(ctypes.addressof(words), address, address))[1]
        code = loader.load(made, addresses)
        f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("f"))
        assert f(2) == 100 * factor + 1000 + 2 * factor + 1
        assert f(7) == 100 * factor + 2 + 7 * factor + 1
        assert ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address("g"))() == address
        code.release()


def test_a_name_without_an_address_is_named_in_the_error() -> None:
    text, addresses = named(module(1, 2, 3))
    made = llvm.Compilation(text, effort=GLUE).result()
    assert sorted(elf.read(made).external()) == sorted(addresses)
    missing = addresses.popitem()[0]
    before = loader.code_bytes()
    with pytest.raises(CompileError, match=missing):
        loader.load(made, addresses)
    assert loader.code_bytes() == before


def test_a_damaged_object_is_an_error_of_the_compiler() -> None:
    text, addresses = named(module(1, 2, 3))
    made = llvm.Compilation(text, effort=GLUE).result()
    damaged = bytearray(made)
    for section in elf.read(made).sections:
        if section.kind == elf.SHT_RELA:
            for at in range(section.offset, section.offset + section.size, elf.RELA_SIZE):
                damaged[at + 12:at + 16] = bytes(4)  # the symbol without a name
    before = loader.code_bytes()
    with pytest.raises(CompileError, match="not loaded"):
        loader.load(bytes(damaged), addresses)
    assert loader.code_bytes() == before
