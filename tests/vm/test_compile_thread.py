"""The compile thread: who waits for what."""
from __future__ import annotations

import threading
import time

import numpy as np

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
