"""The library of stencils: found on disk by what it is made of, built in steps in the background otherwise."""
from __future__ import annotations

import marshal
import time

import numpy as np
import pytest
from harness import region
from spliced import Spliced

from bcvm.compiler import disk
from bcvm.compiler.splice import library as libraries
from bcvm.compiler.splice import stencils as building
from bcvm.compiler.splice.decode import PATTERNS, REG, decode
from bcvm.compiler.target import host
from bcvm.errors import CompileError, Unsupported

F = "float32"


@pytest.fixture
def alone(stencils, monkeypatch):
    """Nothing known yet in this process, and few stencils to build."""
    monkeypatch.setattr(libraries, "_state", libraries._State())
    few = [r for r in building.requests() if r.key[0] in ("add", "load", "store") and r.key[1] in (F, "bool")]
    monkeypatch.setattr(building, "requests", lambda: iter(few))
    return few


def run_all(jobs: list) -> int:
    count = 0
    while jobs:
        jobs.pop(0)()
        count += 1
    return count


def test_it_is_built_in_steps_and_kept(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))
    jobs: list = []
    told = []
    libraries.when_there(lambda: told.append(libraries.current()))
    libraries.begin(jobs.append)
    assert libraries.current() is None and not told
    assert run_all(jobs) >= len(alone) // libraries.PIECE
    made = libraries.current()
    assert made is not None and set(made.records) == {r.key for r in alone} and told == [made]
    libraries._state = libraries._State()
    libraries.begin(jobs.append)
    assert not jobs and libraries.current() is not None, "now it is on disk"


def test_a_file_of_other_content_is_not_taken(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))
    libraries.library()
    assert libraries.read() is not None
    monkeypatch.setattr(libraries, "OPS", {**libraries.OPS, "one_more": libraries.OPS["add"]})
    assert libraries.read() is None


@pytest.mark.parametrize("content", [b"", b"\xff", marshal.dumps(()), marshal.dumps(({}, b"", b"no object"))])
def test_a_damaged_file_is_built_again(content, alone, monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))
    disk.write(libraries.source(), content)
    assert libraries.read() is None
    assert libraries.library().records


def test_nothing_is_built_unasked_where_it_cannot_be_kept(alone, monkeypatch):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", "off")
    jobs: list = []
    libraries.prepare(jobs.append)
    assert not jobs and libraries.current() is None
    monkeypatch.delenv("BCVM_KERNEL_CACHE")
    libraries.prepare(jobs.append)
    libraries.prepare(jobs.append)
    assert len(jobs) + (libraries.current() is not None) == 1


def test_without_avx512_there_is_none(alone, monkeypatch):
    monkeypatch.setattr(libraries, "host", lambda: host("avx2"))
    libraries.begin(lambda job: pytest.fail("there is nothing to do later"))
    assert libraries.current() is None
    with pytest.raises(CompileError, match="AVX-512"):
        libraries.library()


def test_reading_it_is_quick(stencils, monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))
    data = ({key: bytes(record) for key, record in stencils.records.items()}, bytes(2048))
    disk.write(libraries.source(), marshal.dumps(data))
    took = []
    for _ in range(20):
        start = time.perf_counter()
        read = libraries.read()
        took.append(time.perf_counter() - start)
        assert read is not None and len(read.records) == len(stencils.records)
    assert min(took) < 0.002


def test_every_stencil_names_registers_that_can_be_renamed(stencils):
    """In all registers that may be given to its operands a stencil still is code that is understood, and names those registers."""
    rng = np.random.default_rng(0)
    for key in list(stencils.records)[::5]:
        stencil = stencils[key]
        for form in filter(None, (stencil.plain, stencil.pinned)):
            if form.constants:
                code = form.pinned[16][0]
            elif stencil.pool:
                continue  # reads memory by a register: what `decode` does not know
            else:
                code = form.code
            roles = [(role, kind) for role, kind in zip([*form.arguments, form.result], stencils_kinds(stencils, key), strict=True) if role.fields]
            numbers = rng.permutation(np.arange(8, 16))
            for (role, kind), number in zip(roles, numbers, strict=False):
                code ^= role[int(number) if kind == "v" else 32 + int(number) % 8]
            decoded = decode(code.to_bytes(form.size, "little") + b"\xc3" + bytes(6), 0)
            named = {(vector, n) for one in decoded for vector, n, _, _ in one.fields}
            assert {("v" == kind, int(n) if kind == "v" else int(n) % 8) for (_, kind), n in zip(roles, numbers, strict=False)} <= named, key


def stencils_kinds(stencils, key) -> str:
    record = building.Record(*marshal.loads(stencils.records[key]))
    return record.roles[:record.arguments + 1]


@pytest.mark.parametrize("code,why", [
    (b"\x48\x01\xc8\xc3", "starts with 0x48"),                                  # add rax, rcx
    (b"\xc5\xf4\x58\xc1\xc3", "VEX instruction 0x58"),                          # vaddps ymm0, ymm1, ymm1
    (b"\x62\xf1\x74\x48\x58\xc2\xc3", "register"),                              # vaddps zmm0, zmm1, zmm2: below the lowest
    (b"\x62\xa1\x7c\x48\x10\x00\xc3", "memory operand"),                        # vmovups zmm16, [rax]
    (b"\x62\xe2\x7d\x48\x7c\xc0\xc3", "register 0"),                            # vpbroadcastd zmm16, eax
    (b"\xeb\x00\xc3", "starts with 0xeb"),                                      # a jump
    (b"\x62\xa1\x7c", "does not end"),
])
def test_code_that_is_not_understood_is_refused(code, why):
    with pytest.raises(Unsupported, match=why):
        decode(code + bytes(6) * (code[-1] == 0xC3), 16)


def test_patterns_flip_what_differs_from_register_0():
    vaddps = 0x62F17C4858C0  # zmm0, zmm0, zmm0
    flipped = int.from_bytes(vaddps.to_bytes(6, "big"), "little") ^ PATTERNS[REG][25]
    one = decode(flipped.to_bytes(6, "little") + b"\xc3" + bytes(6), 0).pop()
    assert (True, 25, REG, 0) in one.fields


def test_a_new_library_splices(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))
    x, out = np.arange(100, dtype=F), np.zeros(100, F)
    Spliced(region(1, [F], [("add", (0, 0), F)], [-1]), libraries.library())([x, out], [100])
    assert np.array_equal(out, x + x)
