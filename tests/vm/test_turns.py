"""Calls that are interpreted come before the compilation that they wait for, and neither starves."""
from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import bcvm
from bcvm import turns
from bcvm.vm.compile_thread import thread


@pytest.mark.parametrize(("usual", "before", "looks_after"), [(1.0, 0.0, turns.PATIENCE / 4), (0.001, 0.01, turns.PATIENCE / 2)],
                         ids=["a call that usually takes long", "one that takes longer than usual, beyond its slice"])
def test_the_compile_thread_waits_at_checkpoints_while_a_call_is_interpreted(usual: float, before: float, looks_after: float) -> None:
    passed: list[float] = []

    def work() -> None:
        time.sleep(before)
        turns.checkpoint()
        passed.append(time.perf_counter())

    thread.call(lambda: None)  # the thread is there
    turns.begin_call(usual)
    try:
        thread.submit(work)
        time.sleep(looks_after)
        waited = not passed
    finally:
        turns.end_call(usual)
    thread.idle()
    assert waited and passed


def test_the_compile_thread_comes_to_the_processor_of_a_busy_machines_caller_and_may_use_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, set[int]]] = []
    allowed, arrive = os.sched_getaffinity(0), turns._woken
    here = max(allowed)

    def arriving() -> None:
        if turns._allowed is not None:
            seen.append((turns._processor(), os.sched_getaffinity(0)))
        arrive()

    def work() -> None:
        turns.checkpoint()
        seen.append((here, os.sched_getaffinity(0)))

    monkeypatch.setattr(turns, "_woken", arriving)
    monkeypatch.setattr(turns, "_left_by_caller", lambda usual: here)
    thread.call(lambda: os.sched_setaffinity(0, {min(allowed)}))
    thread.call(lambda: os.sched_setaffinity(0, allowed))  # it is elsewhere
    turns.begin_call(1.0)
    thread.submit(work)
    while not turns._parked:
        time.sleep(0.001)
    turns.begin_call(1.0)
    turns.end_call(1.0)
    turns.end_call(1.0)
    thread.idle()
    assert seen == [(here, {here}), (here, allowed)]


def test_only_a_long_call_on_a_busy_machine_draws_the_compilation_to_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # this thread is work enough
    assert turns._left_by_caller(turns.LONG) in os.sched_getaffinity(0)
    assert turns._left_by_caller(turns.LONG / 2) is None
    monkeypatch.setattr(os, "cpu_count", lambda: 1 << 20)
    assert turns._left_by_caller(turns.LONG) is None


def test_the_compile_process_goes_on_in_slices_and_lulls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LULL", 0.1)
    thread.idle()
    let: list[bool] = []
    try:
        turns.begin_call(0.01)
        turns.process_works(lambda go_on, processor: let.append(go_on))
        assert let == [False]  # before it has begun
        turns.be_patient()
        assert let == [False]
        turns.end_call(0.01)
        turns.be_patient()
        assert let == [False]  # the next call may follow at once
        turns.begin_call(0.01)
        assert let == [False, True, False]  # its slice
        turns.end_call(0.01)
        time.sleep(2 * turns.LULL)
        turns.be_patient()
        assert let == [False, True, False, True]
        turns.begin_call(turns.LONG / 10)  # has no use for all processors
        turns.end_call(turns.LONG / 10)
        assert let == [False, True, False, True]
    finally:
        turns.process_works(None)
    assert let == [False, True, False, True]


def test_a_stopped_compile_process_goes_on_beside_a_call_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.01)
    thread.idle()
    let: list[bool] = []
    turns.begin_call(0.001)
    try:
        turns.process_works(lambda go_on, processor: let.append(go_on))
        time.sleep(0.02)
        turns.be_patient()
        assert let == [False, True]
    finally:
        turns.end_call(0.001)
        turns.process_works(None)


def test_a_long_call_does_not_hold_up_a_compilation_for_ever() -> None:
    turns.begin_call(1.0)
    try:
        start = time.perf_counter()
        thread.call(turns.checkpoint)
        assert time.perf_counter() - start < 50 * turns.PATIENCE
    finally:
        turns.end_call(1.0)


def test_a_compilation_waits_once_for_a_long_call_not_at_each_checkpoint() -> None:
    turns.begin_call(1.0)
    try:
        start = time.perf_counter()
        thread.call(lambda: [turns.checkpoint() for _ in range(1000)])
        assert time.perf_counter() - start < 50 * turns.PATIENCE
    finally:
        turns.end_call(1.0)


def test_calls_one_after_the_other_do_not_hold_up_a_compilation_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ENOUGH", 0.05)
    let, done = [], threading.Event()

    def work() -> None:
        for _ in range(200):  # as many slices would take far longer
            turns.checkpoint()
            time.sleep(0.0005)
        with turns.elsewhere():
            turns.process_works(lambda go_on, processor: let.append(go_on))
            time.sleep(0.05)
            turns.process_works(None)
        done.set()

    thread.idle()
    thread.submit(work)
    calls = 0
    while not done.is_set() and calls < 1000:
        turns.begin_call(0.01)
        time.sleep(0.01)
        turns.end_call(0.01)
        calls += 1
    assert done.is_set() and let == []


def test_other_threads_never_wait_at_checkpoints() -> None:
    turns.begin_call(1.0)
    try:
        other = threading.Thread(target=turns.checkpoint)
        other.start()
        other.join(5)
        assert not other.is_alive()
    finally:
        turns.end_call(1.0)


def test_the_switch_interval_is_what_it_was_once_nothing_is_compiled() -> None:
    before = sys.getswitchinterval()

    @bcvm.jit
    def f(x):
        return x * 3.0 - 1.0

    f(np.ones(3))
    thread.idle()
    assert sys.getswitchinterval() == before
    assert f.stats()["compiles"] == 1


def test_quick_calls_do_not_keep_a_compilation_from_ending() -> None:
    @bcvm.jit
    def f(x):
        return np.maximum(x * 5.0, 0) + x

    x = np.ones((2, 3), np.float32)
    end = time.monotonic() + 20
    while time.monotonic() < end and not f.stats()["native"]:
        f(x)
    assert f.stats()["native"] and f.stats()["recompiles"] == 0


def test_a_call_that_is_slow_when_interpreted_waits_for_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "worth_waiting", lambda usual: 20.0 if usual else 0.0)

    @bcvm.jit
    def f(x):
        return np.minimum(x * 11.0, 3) + x

    x, y = np.ones((2, 3), np.float32), np.ones(5)
    assert f(x).tolist() == [[4, 4, 4]] * 2
    assert f(x).tolist() == [[4, 4, 4]] * 2 and f.stats()["interpreted"] == 1 and f.stats()["native"] == 1
    assert f(y).tolist() == [4] * 5 and f.stats()["interpreted"] == 1 and f.stats()["native"] == 2  # other code, from its first call on


def test_a_slow_call_inside_an_interpreted_one_waits_for_code_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "worth_waiting", lambda usual: 20.0 if usual else 0.0)
    monkeypatch.setattr(turns, "ENOUGH", 1e9)
    monkeypatch.setattr(turns, "PATIENCE", 1e3)
    monkeypatch.setattr(turns, "MOST", 1e3)

    @bcvm.jit
    def f(x):
        return np.minimum(x * 17.0, 3) + x

    x = np.ones((2, 3), np.float32)
    turns.begin_call(1.0)
    try:
        f(x)
        start = time.perf_counter()
        assert f(x).tolist() == [[4, 4, 4]] * 2
        assert f.stats()["native"] == 1 and time.perf_counter() - start < 15
    finally:
        turns.end_call(1.0)


def test_a_slow_call_is_interpreted_when_native_code_is_late_or_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "worth_waiting", lambda usual: 0.02 if usual else 0.0)

    @bcvm.jit
    def f(x):
        return np.maximum(x * 11.0, 3) + x

    hold, x = threading.Event(), np.ones((2, 3), np.float32)
    thread.submit(hold.wait)
    try:
        for _ in range(3):
            assert f(x).tolist() == [[12, 12, 12]] * 2
        assert f.stats()["interpreted"] == 3 and f.stats()["fallbacks"] == {"first call": 1, "compiling": 2}
    finally:
        hold.set()
    thread.idle()
    assert f(x).tolist() == [[12, 12, 12]] * 2 and f.stats()["native"] == 1
    monkeypatch.setattr(turns, "worth_waiting", lambda usual: 20.0 if usual else 0.0)

    @bcvm.jit
    def fails(x):
        return np.maximum(x * 13.0, 3)

    monkeypatch.setattr(fails._bcvm.site, "_make", raises)
    for _ in range(3):
        assert fails(x).tolist() == [[13, 13, 13]] * 2
    assert fails.stats()["interpreted"] == 3


def raises(*args: object, **kwargs: object) -> None:
    raise ValueError("no code today")


def test_recursion_gives_pythons_results_and_pythons_error() -> None:
    def down(x, n):
        return x if n == 0 else jitted(x + 1, n - 1)

    jitted = bcvm.jit(down)
    x = np.zeros(2)
    for depth in (3, 3, 40, 100):
        assert jitted(x, depth).tolist() == [depth, depth]
        thread.idle()
    with pytest.raises(RecursionError):
        jitted(x, 100_000)
    assert jitted(x, 5).tolist() == [5, 5]


def test_what_is_gone_before_its_turn_is_not_compiled() -> None:
    @bcvm.jit
    def f(x):
        return x * 7.0 + 2.0

    hold, gone = threading.Event(), weakref.ref(f._bcvm)
    thread.submit(hold.wait)
    try:
        f(np.ones(3))
        del f
        gc.collect()
        assert gone() is None  # the request does not keep it
    finally:
        hold.set()
    thread.idle()
