"""A slot that a driver in the making has in its text keeps its kernel, whatever is released meanwhile."""
from __future__ import annotations

from bcvm.compiler.region import KernelSource
from bcvm.compiler.table import KernelTable

IR = "define i32 @{0}(ptr %c, ptr %o, ptr %s, i64 %lo, i64 %hi) {{\n  ret i32 0\n}}\n"


def source() -> KernelSource:
    return KernelSource("nothing", IR.format("nothing"), "nothing")


def test_a_kernel_released_while_another_driver_is_made_keeps_its_slot() -> None:
    table = KernelTable()
    first = table.kernel("k", source)
    users = table.acquire(["k"])
    again = table.kernel("k", source)  # of the driver in the making
    assert again is first
    table.release(users)               # the only driver so far is collected now
    assert table.kernel("k", source) is first
    (kept,) = table.acquire(["k"])
    assert kept is first and kept.code is not None
    table.release([kept])
    assert table.info()["kernels"] == 0


def test_what_no_driver_took_after_all_is_freed_with_the_next() -> None:
    table = KernelTable()
    table.kernel("k", source)
    users = table.acquire(["k"])
    table.kernel("k", source)  # of a driver that fails before it is made
    table.release(users)
    assert table.info()["kernels"] == 1
    table.kernel("other", source)
    others = table.acquire(["other"])
    assert table.info()["kernels"] == 1
    table.release(others)
    assert table.info()["kernels"] == 0
