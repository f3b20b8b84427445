"""Threads, forks, and interpreters that end while something compiles."""
from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import NATIVE_TIERS, all_native, same, script, settle


def in_threads(count: int, work: Any) -> None:
    """Run work(i) in threads that start together; errors are raised here."""
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            gate.wait(30)
            work(i)
        except BaseException as e:  # noqa: BLE001  handed on
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]


def work_on(x, k, log):
    y = np.tanh(x) * k
    for i in range(3):
        y = y + x[:, None].sum() * i
    try:
        log.append(k)
    finally:
        pass
    return y, y.sum()


@NATIVE_TIERS
def test_8_threads_call_one_function_first_at_once(tier: str) -> None:
    for _ in range(3):
        f = bcvm.jit(work_on, tier=tier)
        logs: list[list[int]] = [[] for _ in range(8)]

        def work(i: int, f: Any = f, logs: Any = logs) -> None:
            for n in range(40):
                x = np.arange(1.0 + (i + n) % 5)
                same(f(x, i, logs[i]), work_on(x, i, []))

        in_threads(8, work)
        settle()
        assert [len(log) for log in logs] == [40] * 8
        stats = f.stats()
        assert stats["specialisations"] <= 2 and stats["calls"] == 320 and not stats["errors"], stats


@NATIVE_TIERS
def test_8_threads_with_different_types_at_once(tier: str) -> None:
    f = bcvm.jit(lambda x, k: (x * k + 1).sum() + k, tier=tier)
    dtypes = [np.float32, np.float64, np.int32, np.int64, np.bool_, np.uint8, np.int16, np.float16]

    def work(i: int) -> None:
        for n in range(30):
            x = np.ones(n % 7, dtypes[i])
            same(f(x, 2), (x * 2 + 1).sum() + 2)

    in_threads(8, work)
    settle()
    in_threads(8, work)
    stats = f.stats()
    assert stats["specialisations"] <= 8 and not stats["errors"], stats


def test_threads_make_call_and_drop_functions() -> None:
    def work(i: int) -> None:
        for n in range(6):
            @bcvm.jit(tier="full")
            def f(x, k=n):
                return x * k + i
            same(f(np.arange(3.0)), np.arange(3.0) * n + i)
            same(f(np.arange(3.0)), np.arange(3.0) * n + i)
            all_native(f, 1)

    in_threads(6, work)
    settle()


# -- forks

FORK = """
    import os, signal, sys
    import numpy as np
    import bcvm
    from bcvm.vm.compile_thread import thread

    @bcvm.jit(tier="auto")
    def f(x, k):
        return (np.tanh(x) * k + np.exp(x)).sum(), x * k

    @bcvm.jit(tier="full")
    def g(x):
        return x * 3 + 1

    x = np.arange(3.0)
    want = (np.tanh(x) * 2 + np.exp(x)).sum()
    children = []
    for i in range(ROUNDS):
        @bcvm.jit(tier="auto")
        def busy(x, k=i):
            y = x
            for j in range(k + 2):
                y = np.sin(y) * np.cos(y) + j
            return y
        busy(x)                       # asks for a compilation
        f(x.astype([np.float64, np.float32, np.int64, np.int32][i % 4]), 2)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            ok = abs(float(f(x, 2)[0]) - want) < 1e-9 and (g(x) == x * 3 + 1).all()
            thread.idle(30)
            @bcvm.jit(tier="full")
            def h(x):
                return np.log1p(x) - 1
            ok = ok and np.allclose(h(x), np.log1p(x) - 1) and h.stats()["native"] == 1
            ok = ok and (busy(x) == busy(x)).all() and thread.idle(30) and f.stats()["errors"] == []
            f(x, 2)
            ok = ok and f.stats()["native"] > 0
            grand = os.fork()
            if grand == 0:
                signal.alarm(20)
                os._exit(0 if np.allclose(h(x), np.log1p(x) - 1) else 1)
            ok = ok and os.waitpid(grand, 0)[1] == 0
            os._exit(0 if ok else 1)
        children.append(pid)
        assert (g(x) == x * 3 + 1).all()
    print([os.waitpid(p, 0)[1] for p in children])
    thread.idle()
    assert abs(float(f(x, 2)[0]) - want) < 1e-9
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_during_a_compilation(tmp_path: Any) -> None:
    done = script(tmp_path, FORK, ROUNDS=4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0, 0, 0, 0]", done.stdout + done.stderr


# -- the end

ENDING = """
    import sys, time
    import numpy as np
    import bcvm

    @bcvm.jit
    def f(x, n):
        y = x
        for i in range(12):
            y = np.tanh(y) * i + np.exp(-y * y) @ x
        return y + n

    @bcvm.jit(tier="full")
    def g(x):
        return x * 2

    x = np.ones((4, 4), np.float32)
    if DELAY > 0.1:
        g(x)
    for n in range(3):
        f(x, n)
        f(x.astype(float), n + 0.5)
    time.sleep(DELAY)
    if DELAY == 0.05:
        sys.exit(0)
"""


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05, 0.15, 0.4])
def test_interpreter_ends_while_something_compiles(delay: float, tmp_path: Any) -> None:
    done = script(tmp_path, ENDING, DELAY=delay)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_long_native_loop_lets_other_threads_run() -> None:
    import time

    @bcvm.jit(tier="full")
    def count(n: int) -> int:
        s = 0
        for i in range(n):
            s = (s + i) % 1_000_003
        return s

    count(3)
    done = threading.Event()
    turns = 0

    def other() -> None:
        nonlocal turns
        while not done.is_set():
            time.sleep(0.001)
            turns += 1

    thread = threading.Thread(target=other)
    thread.start()
    start = time.perf_counter()
    result = count(40_000_000)
    took = time.perf_counter() - start
    done.set()
    thread.join()
    s = 40_000_000 * 39_999_999 // 2
    assert result == s % 1_000_003
    assert turns > took / 0.1  # far less than what is given, far more than a turn at the end
