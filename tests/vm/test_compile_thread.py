"""The compile thread: who waits for what."""
from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import bcvm
from bcvm.vm.compile_thread import thread


def test_waiting_is_for_what_was_asked_before_not_for_what_others_ask_meanwhile() -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            thread.submit(lambda: time.sleep(0.002))
            time.sleep(0.001)
    other = threading.Thread(target=ask)
    other.start()
    try:
        ran: list[int] = []
        thread.submit(lambda: ran.append(1))
        assert thread.idle(timeout=30) and ran == [1]
        f = bcvm.jit(lambda x: np.tanh(x) + 3.0)
        f.warmup((np.ones(3),))
        assert f.stats()["compiles"] == 1
    finally:
        stop.set()
        other.join()
    assert thread.idle(timeout=60)


def test_what_is_freed_at_the_recursion_limit_keeps_no_lock() -> None:
    def down() -> None:
        thread.discard([lambda: True])  # as garbage collection may, at any depth
        down()

    with pytest.raises(RecursionError):
        down()
    assert thread.call(lambda: None, timeout=30)
    assert thread.idle(timeout=30)
