"""Run-time support: arena, references, collapse, arrays, slots, signals."""
from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcvm.compiler import abi, arena_ir, llvm, loader, probe
from bcvm.compiler.runtime import runtime

pytestmark = pytest.mark.skipif(bool(probe.layout().reason), reason=probe.layout().reason or "native")
U, I = ctypes.c_uint64, ctypes.c_int64


def fn(name, result, *args):
    return ctypes.PYFUNCTYPE(result, *args)(runtime().address(name))


@pytest.fixture
def ctx():
    with runtime().context() as address:
        yield address


def count(buffer):
    return probe.word(buffer - 64)


@pytest.mark.parametrize("seed", range(4))
def test_arena_buffers_never_overlap(ctx, seed):
    alloc, release, retain = fn("alloc", U, U, U), fn("release", None, U, U), fn("retain", None, U)
    rng = random.Random(seed)
    live: dict[int, tuple[int, int]] = {}
    for step in range(3000):
        if rng.random() < 0.55 or not live:
            n = rng.choice([0, 1, 63, 64, 65, 128, 1000, 5000, 70_000, (1 << 20) - 64, (1 << 20) - 63, 3 << 20])
            n = rng.randrange(n + 1) if rng.random() < 0.5 else n
            p = alloc(ctx, n)
            assert p and p % 64 == 0 and count(p) == 1
            mark = step & 0xFF
            ctypes.memset(p, mark, n)
            live[p] = (n, mark)
            if rng.random() < 0.2:
                retain(p)
                release(ctx, p)
        else:
            p = rng.choice(list(live))
            n, mark = live.pop(p)
            assert n < 1 or ctypes.string_at(p, 1)[0] == ctypes.string_at(p + n - 1, 1)[0] == mark
            release(ctx, p)
    for p, (n, mark) in live.items():
        assert ctypes.string_at(p, n) == bytes([mark]) * n


def test_contexts_are_recycled_and_memory_is_given_back():
    alloc = fn("alloc", U, U, U)
    rt = runtime()
    with rt.context() as first:
        one = alloc(first, 100)
        with rt.context() as second:
            assert second != first
    with rt.context() as again:
        assert again == first and alloc(again, 100) == one
        words = [probe.word(again + 8 * w) for w in (abi.CTX_TABLE, abi.CTX_KERNELS, abi.CTX_INTERRUPT)]
        assert words == [rt.table_address, rt.slots.address, rt.interrupt_address]

    def burst():
        with rt.context() as c:
            for n in (10 << 20, 20 << 20, 500_000, 500_000, 900_000) * 4:
                ctypes.memset(alloc(c, n), 1, n)
    burst()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        burst()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


def test_a_loop_reuses_its_buffers(ctx):
    alloc, release = fn("alloc", U, U, U), fn("release", None, U, U)
    for n in (100, 100_000, 5 << 20):
        seen = set()
        for _ in range(50):
            p = alloc(ctx, n)
            seen.add(p)
            release(ctx, p)
        assert len(seen) == 1


def test_an_idle_context_keeps_the_large_buffers_that_were_freed_last():
    alloc, release = fn("alloc", U, U, U), fn("release", None, U, U)

    def idle():
        return probe.word(runtime().interrupt_address + 24)

    def cached():
        out, p = [], probe.word(c + 8 * arena_ir.CTX_CACHE)
        while p:
            out.append((p, probe.word(p - 24)))
            p = probe.word(p - 48)
        return out
    for sizes in (30, 30), (20, 11, 2, 17, 5):
        with runtime().context() as c:
            limit = max(arena_ir.KEEP_LEAST, arena_ir.KEEP_IDLE - idle())
            freed = [alloc(c, n << 20) for n in sizes]
            for p in freed:
                release(c, p)
            before = cached()
    expected, total = [], 0
    for p, size in before:  # contexts that earlier tests left may keep some
        if total + size <= limit:
            expected.append((p, size))
            total += size
    assert cached() == expected and probe.word(c + 8 * arena_ir.CTX_CACHED) == total
    assert len(expected) < len(before) and (limit < 60 << 20 or [p for p, _ in expected[:2]] == freed[:2:-1])


def test_many_idle_contexts_keep_little_each():
    alloc, release = fn("alloc", U, U, U), fn("release", None, U, U)
    with ExitStack() as held:
        contexts = [held.enter_context(runtime().context()) for _ in range(6)]
        for c in contexts:
            for p in [alloc(c, n << 20) for n in (7, 30, 7, 7)]:
                release(c, p)
    kept = [probe.word(c + 8 * arena_ir.CTX_CACHED) for c in contexts]
    assert sum(kept) <= arena_ir.KEEP_IDLE + 6 * arena_ir.KEEP_LEAST and sum(k <= arena_ir.KEEP_LEAST for k in kept) >= 4
    total = probe.word(runtime().interrupt_address + 24)
    with runtime().context() as c:
        assert probe.word(runtime().interrupt_address + 24) == total - probe.word(c + 8 * arena_ir.CTX_CACHED)
    assert probe.word(runtime().interrupt_address + 24) == total >= sum(kept)


def test_absurd_sizes_give_null(ctx):
    alloc = fn("alloc", U, U, U)
    for n in (1 << 62, (1 << 64) - 1, 1 << 46):
        assert alloc(ctx, n) == 0


def test_references_to_objects_and_nothing(ctx):
    retain, release = fn("retain", None, U), fn("release", None, U, U)
    marker = object()
    before = sys.getrefcount(marker)
    retain(id(marker) | 1)
    assert sys.getrefcount(marker) == before + 1
    release(ctx, id(marker) | 1)
    assert sys.getrefcount(marker) == before
    retain(0)
    release(ctx, 0)


def strided(draw_sizes, layout):
    """An index space (strides in elements) for a layout: C order of a permutation, some dims broadcast or widened."""
    strides, step = [0] * len(draw_sizes), 1
    for d in layout[0]:
        strides[d] = 0 if layout[1][d] == 0 else step * (-1 if layout[1][d] == 2 else 1)
        step *= draw_sizes[d] + (1 if layout[1][d] == 3 else 0)
    return strides


@st.composite
def operand_sets(draw):
    rank = draw(st.integers(0, 5))
    sizes = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    n = draw(st.integers(1, 4))
    orders = [list(reversed(range(rank))), draw(st.permutations(range(rank)))]
    rows = [strided(sizes, (draw(st.sampled_from(orders)), draw(st.lists(st.sampled_from([0, 1, 1, 1, 2, 3]), min_size=rank, max_size=rank)))) for _ in range(n)]
    return sizes, rows


def offsets(sizes, rows):
    """The tuple of operand offsets at each point, in C order."""
    return [tuple(sum(i * s for i, s in zip(index, row, strict=True)) for row in rows) for index in np.ndindex(*sizes)]


@settings(max_examples=400, deadline=None)
@given(operand_sets())
def test_collapse_visits_the_same_elements_in_the_same_order(case):
    sizes, rows = case
    rank, n = len(sizes), len(rows)
    words = (I * (n * (rank + 1)))(*[w for i, row in enumerate(rows) for w in (1000 + i, *row)])
    extents = (I * rank)(*sizes)
    fn("collapse", None, U, U, I, I)(ctypes.addressof(words), ctypes.addressof(extents), n, rank)
    got = [list(words[i * (rank + 1) + 1:(i + 1) * (rank + 1)]) for i in range(n)]
    assert [words[i * (rank + 1)] for i in range(n)] == [1000 + i for i in range(n)]
    assert offsets(list(extents), got) == offsets(sizes, rows)
    real = [d for d in range(rank) if extents[d] != 1]
    lead = rank - len(real) if 0 not in sizes else 0
    assert all(extents[d] == 1 and all(r[d] == 0 for r in got) for d in range(lead))
    for d in range(lead, rank - 1):  # nothing more can be merged
        assert 0 in sizes or any(r[d] != r[d + 1] * extents[d + 1] for r in got)


def test_collapse_of_contiguous_operands_leaves_one_dim():
    words, extents = (I * 8)(1, 60, 20, 4, 2, 60, 20, 4), (I * 3)(2, 3, 5)
    fn("collapse", None, U, U, I, I)(ctypes.addressof(words), ctypes.addressof(extents), 2, 3)
    assert list(extents) == [1, 1, 30] and list(words) == [1, 0, 0, 4, 2, 0, 0, 4]


@pytest.mark.parametrize("name", sorted(abi.TYPE_NUMBER))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_new_arrays(ctx, name, shape):
    make = fn("new_array", ctypes.py_object, U, I, I, U)
    sizes = (I * len(shape))(*shape)
    a = make(ctx, abi.TYPE_NUMBER[name], len(shape), ctypes.addressof(sizes))
    assert type(a) is np.ndarray and a.shape == shape and a.dtype == np.dtype(name) and a.dtype is np.dtype(name)
    assert a.flags.owndata and a.flags.c_contiguous and a.flags.writeable
    fresh = np.empty(shape, name)
    assert sys.getrefcount(a) == sys.getrefcount(fresh)


def test_arrays_that_cannot_be_made_give_null(ctx):
    make = fn("new_array", U, U, I, I, U)
    for shape in ((-1,), (1 << 40, 1 << 40), (1 << 45,)):
        sizes = (I * len(shape))(*shape)
        assert make(ctx, 11, len(shape), ctypes.addressof(sizes)) == 0


def test_views_keep_their_owner(ctx):
    view = fn("view_array", ctypes.py_object, U, I, I, U, U, U, ctypes.py_object)
    owner = np.arange(12, dtype=np.float32).reshape(3, 4)
    before = sys.getrefcount(owner)
    sizes, strides = (I * 2)(2, 2), (I * 2)(-16, 8)
    v = view(ctx, 11, 2, ctypes.addressof(sizes), ctypes.addressof(strides), owner.ctypes.data + 32, owner)
    assert v.tolist() == [[8, 10], [4, 6]] and np.shares_memory(v, owner) and v.flags.writeable and not v.flags.c_contiguous
    base = v.base
    assert base is owner.base or base is owner
    del v, base
    assert sys.getrefcount(owner) == before
    alone = np.zeros(4, np.float32)
    alone.flags.writeable = False
    four = (I * 1)(4)
    v = view(ctx, 11, 1, ctypes.addressof(four), ctypes.addressof(four), alone.ctypes.data, alone)
    assert not v.flags.writeable and v.base is alone
    with pytest.raises(ValueError):
        v[0] = 1


def test_every_entry_of_the_table_is_filled():
    rt = runtime()
    assert all(rt.address(name) for name, _ in abi.TABLE)
    for name, type_ in abi.TABLE:
        if type_ == "double (double)":
            f = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(rt.address(name))
            assert abs(f(0.5)) < 10
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(rt.address("pow"))(2.0, 10.0) == 1024


def test_kernel_slots():
    slots = runtime().slots
    a, b = slots.take(), slots.take()
    assert a != b and slots.get(a) == 0
    code = loader.load(llvm.compile_ir("define i64 @f() {\nret i64 5\n}"))
    slots.set(a, code.address("f"))
    with runtime().context() as c:
        table = probe.word(c + 8 * abi.CTX_KERNELS)
        assert ctypes.CFUNCTYPE(I)(probe.word(table + 8 * a))() == 5
    slots.give(a)
    assert slots.get(a) == 0 and slots.take() == a
    slots.give(a)
    slots.give(b)
    code.release()


def test_a_signal_sets_the_interrupt_word_and_still_reaches_python():
    rt = runtime()
    rt.interrupted()
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert rt.watch_signals() and rt.watch_signals()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        assert rt.interrupted() and not rt.interrupted()
        seen = []
        signal.signal(signal.SIGINT, lambda *a: seen.append(a))
        assert rt.watch_signals()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert len(seen) == 1 and rt.interrupted()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert not rt.watch_signals()
    finally:
        signal.signal(signal.SIGINT, old)


def test_layout_was_probed():
    assert probe.layout().reason == "" and probe.layout() is probe.layout()
    assert (probe.layout().dict_version != 0) == (sys.version_info < (3, 13))
