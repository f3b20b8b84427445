"""The kernel table with spliced kernels: there at once, replaced by LLVM's, or kept apart."""
from __future__ import annotations

import pytest
from harness import region

from bcvm.compiler.kernels.region import generate
from bcvm.compiler.runtime import runtime
from bcvm.compiler.splice import library as libraries
from bcvm.compiler.splice import table as spliced_table
from bcvm.compiler.splice.table import SplicedTable
from bcvm.compiler.table import table
from bcvm.compiler.target import host

F = "float32"


@pytest.fixture
def there(stencils):
    """The library, and no kernel left behind."""
    before = table.info()["kernels"]
    yield stencils
    assert table.info()["kernels"] == before


def key_of(number: float):
    """A region of its own, and how LLVM's kernel is made."""
    spec = region(1, [F], [("const", (), F, ("value", number)), ("add", (0, 1), F)], [-1])
    return (spec, host()), lambda: generate(spec, host())


def test_a_spliced_kernel_is_replaced_later(there):
    key, make = key_of(1.25)
    jobs: list = []
    first = SplicedTable(jobs.append)
    slot = first.slot_for(key, make)
    assert first.slot_for(key, make) == slot and len(jobs) == 1
    kernels = first.acquire([key])
    address, compiled = runtime().slots.get(slot), table.info()["compiled"]
    assert kernels[0].spliced and address and table.info()["compiled"] == compiled
    jobs.pop()()
    assert not kernels[0].spliced and runtime().slots.get(slot) not in (0, address)
    table.release(kernels)
    assert runtime().slots.get(slot) == 0


def test_who_wants_llvms_kernel_gets_it(there):
    key, make = key_of(2.25)
    slot = SplicedTable(lambda job: None).slot_for(key, make)
    kernel = table.kernel(key, make)
    assert kernel.slot == slot and not kernel.spliced
    table.release(table.acquire([key]))


def test_pinned_kernels_are_apart(there):
    key, make = key_of(3.25)
    pinned = SplicedTable()
    slot = pinned.slot_for(key, make)
    assert table.slot_for(key, make) != slot
    kernels = pinned.acquire([key]) + table.acquire([key])
    assert [k.spliced for k in kernels] == [True, False]
    table.release(kernels)


def test_a_job_for_a_kernel_that_is_gone_does_nothing(there):
    key, make = key_of(4.25)
    jobs: list = []
    first = SplicedTable(jobs.append)
    first.slot_for(key, make)
    table.release(first.acquire([key]))
    compiled = table.info()["compiled"]
    jobs.pop()()
    assert table.info()["compiled"] == compiled


def test_what_cannot_be_spliced_is_llvms(there):
    spec = region(2, [F], [("argmax", (0,), "int64")], [(-1, True)])
    key = (spec, host())
    for some in (SplicedTable(), SplicedTable(lambda job: pytest.fail("nothing to replace"))):
        some.slot_for(key, lambda: generate(spec, host()))
        kernels = some.acquire([key])
        assert not kernels[0].spliced
        table.release(kernels)


def test_kernels_of_libraries_are_llvms(there):
    key, make = key_of(5.25)
    other = ("not a region", key)
    pinned = SplicedTable()
    pinned.slot_for(other, make)
    kernels = pinned.acquire([other])
    assert not kernels[0].spliced
    table.release(kernels)


def test_pinned_kernels_are_spliced_when_there_are_stencils(there, monkeypatch):
    monkeypatch.setattr(libraries, "_state", libraries._State())
    key, make = key_of(6.25)
    pinned = SplicedTable()
    slot = pinned.slot_for(key, make)
    kernels = pinned.acquire([key])
    address = runtime().slots.get(slot)
    assert not kernels[0].spliced and address
    monkeypatch.setattr(libraries, "read", lambda: there)
    libraries.begin(lambda job: pytest.fail("it is on disk"))
    assert kernels[0].spliced and runtime().slots.get(slot) not in (0, address)
    table.release(kernels)


def test_a_spliced_kernel_stays_where_llvm_cannot_make_one(there, monkeypatch):
    from bcvm.errors import CompileError
    monkeypatch.setenv("BCVM_KERNEL_CACHE", "off")
    key, make = key_of(7.25)
    jobs: list = []
    first = SplicedTable(jobs.append)
    slot = first.slot_for(key, make)
    kernels = first.acquire([key])

    def fail(compilation: object) -> None:
        raise CompileError("no LLVM today")
    monkeypatch.setattr(spliced_table.table, "_made", fail)
    jobs.pop()()
    assert kernels[0].spliced and runtime().slots.get(slot)
    table.release(kernels)
