"""The thread pool: the same results for any number of threads, through forks, contention, errors and the end of the process."""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import bcvm
from bcvm.compiler import abi, probe
from bcvm.compiler.runtime import runtime
from bcvm.compiler.target import available_threads

pytestmark = pytest.mark.skipif(bool(probe.layout().reason), reason=probe.layout().reason or "native")
RNG = np.random.default_rng(5)


def gelu_norm(x, y):
    z = bcvm.ops.gelu(x) + y
    return (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)


def elementwise(x, y):
    return np.maximum(x * y + x, 0.5) - np.tanh(y)


def columns(x, y):
    return (x * y).sum(0)


def product(x, y):
    return x @ y.T


def joined(x, y):
    return np.concatenate([x, y + 1], 0)


FUNCTIONS = [gelu_norm, elementwise, columns, product, joined]
SIZES = [(1, 300_000), (3, 100_003), (700, 129), (40_000, 5), (257, 1024), (2, 2)]


def on_threads(f, threads, **options):
    return bcvm.jit(f, tier="full", background=False, threads=threads, **options)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_threads_gives_the_same_bits(f, dtype):
    one, others = on_threads(f, 1), [on_threads(f, n) for n in (2, 3, 7)]
    for m, n in SIZES:
        if f is product and m > 1000:
            continue
        x, y = (RNG.standard_normal((m, n)).astype(dtype) for _ in range(2))
        expected = one(x, y)
        np.testing.assert_allclose(expected, f(x, y), rtol=2e-4 if dtype == "float32" else 1e-9, atol=2e-4 if dtype == "float32" else 1e-9)
        for other in others:
            for _ in range(3):
                assert other(x, y).tobytes() == expected.tobytes(), (m, n)


def test_strided_and_broadcast_operands_may_be_cut():
    def f(x, y):
        return x * 2 + y
    one, four = on_threads(f, 1), on_threads(f, 4)
    wide = RNG.standard_normal((6, 400_000)).astype("float32")
    for x, y in [(wide[:3, ::2], wide[3:, ::2]), (wide[::2, ::-1], wide[:1]), (wide.T[::3], wide.T[::3]), (wide[0], np.float32(3)), (wide[:, :1], wide)]:
        expected = x * 2 + y
        assert np.array_equal(one(x, y), expected)
        assert np.array_equal(four(x, y), expected)


def test_long_work_runs_on_several_threads_and_short_work_does_not():
    f = on_threads(elementwise, 2)
    small, large = np.ones((4, 8), "float32"), np.ones((1000, 1000), "float32")
    f(small, small)
    before = runtime().parallel_runs()
    for _ in range(20):
        f(small, small)
    assert runtime().parallel_runs() == before
    f(large, large)
    assert runtime().parallel_runs() == before + 1
    assert runtime().workers() >= 1


def test_work_that_waits_for_memory_is_shared_by_its_bytes():
    """One query for each of 8 heads, or one row: few flops for what is read."""
    attention = bcvm.jit(lambda q, k, v: bcvm.ops.softmax(q @ k.transpose(0, 2, 1)) @ v, tier="full", background=False, threads=2)
    q, k, v = (RNG.standard_normal((8, n, 64)).astype(np.float32) for n in (1, 100, 100))
    product = bcvm.jit(lambda x, w: x @ w, tier="full", background=False, threads=2)
    x, w = RNG.standard_normal((1, 400)).astype(np.float32), RNG.standard_normal((400, 400)).astype(np.float32)
    for f, args in ((attention, (q, k, v)), (product, (x, w))):
        f(*args)
        before = runtime().parallel_runs()
        f(*args)
        assert runtime().parallel_runs() == before + 1


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("align", [1, 64])
def test_ranges_cover_all_units_once(threads, align):
    """Whoever claims them, the caller from the front and workers from the back; no range is empty, and only the last unit's may end between multiples."""
    ranges: list[tuple[int, int, int]] = []

    def kernel(ctx, operands, sizes, lo, hi):
        ranges.append((lo, hi, threading.get_ident()))
        time.sleep(0.0003)
        return 0

    made = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 2)(kernel)
    rt, own = runtime(), threading.get_ident()
    run = ctypes.PYFUNCTYPE(ctypes.c_int32, *(ctypes.c_uint64,) * 3, ctypes.c_int64, ctypes.c_int64)(rt.address("run_long"))
    for total in (2, 3, 5, 64, 65, 1000, 4097):
        for work in (60_000, 10_000_000):  # ns
            ranges.clear()
            with rt.context() as ctx:
                words = (ctypes.c_uint64 * abi.CTX_WORDS).from_address(ctx)
                words[abi.CTX_LONG], words[abi.CTX_PLAN] = ctypes.cast(made, ctypes.c_void_p).value, abi.split_plan(threads, align=align)
                assert run(ctx, 0, 0, total, work) == 0
            if ranges[0][:2] == (0, -1):  # alone
                assert len(ranges) == 1
                continue
            claimed = sorted(r[:2] for r in ranges)
            assert claimed[0][0] == 0 and claimed[-1][1] == total and all(a[1] == b[0] for a, b in zip(claimed, claimed[1:], strict=False))
            assert all(lo < hi and lo % align == 0 for lo, hi in claimed)
            front = [lo for lo, _, who in ranges if who == own]
            assert front == sorted(front) and (not front or front[0] == 0)
    assert len(ranges) > 1 or total <= align


def test_threads_of_the_machine_are_the_affinity_mask():
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))


def test_an_index_out_of_range_in_a_claimed_piece_is_an_error_of_the_call():
    f = on_threads(lambda x, i: np.take(x, i, 0), 2)
    x, i = np.ones((1000, 64), "float32"), np.zeros(60_000, "int64")
    f(x, i)
    for at in (0, 30_000, 59_999):
        bad = i.copy()
        bad[at] = 1000
        with pytest.raises(IndexError):
            f(x, bad)
    assert f(x, i).shape == (60_000, 64)


def test_callers_at_once_get_their_own_results():
    f = on_threads(gelu_norm, 2)
    work = [(RNG.standard_normal((300 + 10 * i, 512)).astype("float32"), RNG.standard_normal(512).astype("float32")) for i in range(6)]
    expected = [f(x, y).tobytes() for x, y in work]
    wrong: list[int] = []

    def caller(k):
        for r in range(60):
            i = (k + r) % len(work)
            if f(*work[i]).tobytes() != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=caller, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


def test_a_child_of_a_fork_has_a_pool_of_its_own():
    f = on_threads(elementwise, 2)
    x = RNG.standard_normal((400, 1000)).astype("float32")
    expected = f(x, x).tobytes()
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            f(x, x)

    t = threading.Thread(target=busy)
    t.start()
    try:
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    signal.alarm(20)
                    code = 0 if all(f(x, x).tobytes() == expected for _ in range(3)) and runtime().workers() >= 1 else 2
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        t.join()


def test_workers_sleep_when_nothing_is_to_do():
    f = on_threads(elementwise, 2)
    x = np.ones((1000, 1000), "float32")
    f(x, x)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("seed", range(6))
def test_the_process_ends_while_workers_run(seed):
    end = "sys.exit(7)" if seed % 2 else "import os; os._exit(7)"
    script = textwrap.dedent(f"""
        import sys, threading, time, numpy as np, bcvm
        f = bcvm.jit(lambda x, y: np.tanh(x * y), tier="full", background=False, threads=2)
        x = np.ones((700, 700), "float32")
        f(x, x)
        def work():
            while True:
                f(x, x)
        threading.Thread(target=work, daemon=True).start()
        time.sleep({0.002 * seed})
        {end}
    """)
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7


def test_signals_reach_python_not_the_workers():
    f = on_threads(elementwise, 2)
    x = np.ones((1000, 1000), "float32")
    f(x, x)
    seen: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.get_ident()))
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            f(x, x)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen and set(seen) == {threading.main_thread().ident}
