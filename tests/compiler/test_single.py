"""Single ops on large arrays by native kernels: NumPy's results, or None for what is left to NumPy."""
from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import bcvm
from bcvm.compiler import single
from bcvm.compiler.runtime import runtime
from bcvm.compiler.table import table
from bcvm.ops import large
from bcvm.ops.definition import OPS
from tests.ops.comparing import check

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Forms as a process has them whose kernels were compiled before."""
    monkeypatch.setattr(large, "FORMS", {})
    single.offer(lambda job: job())
    for dtype in ("float32", "float64"):
        for ranks in ((2, 2, 2), (5, 5, 5)):
            call, key = single._product(dtype, *ranks)
            table.kernel(key, lambda call=call: call.kernel)
            table.acquire([key])


def values(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


LAYOUTS = {
    "plain": (values(130, 70), values(70, 90)),
    "a transposed, b reversed": (values(70, 130).T, values(70, 90)[::-1, ::-1]),
    "parts": (values(130, 200)[:, 3:73], values(140, 180)[::2, 1::2]),
    "rows repeated": (np.broadcast_to(values(70), (130, 70)), values(70, 90)),
    "a row": (values(70), values(70, 90)),
    "a column": (values(130, 70), values(70)),
    "numbers": (values(70), values(70)),
    "shared b": (values(4, 33, 70), values(70, 90)),
    "heads": (values(2, 37, 3, 16).transpose(0, 2, 1, 3), values(2, 37, 3, 16).transpose(0, 2, 3, 1)),
    "broadcast batches": (values(3, 1, 33, 70), values(5, 70, 20)),
    "three batch dims": (values(2, 1, 3, 33, 17), values(2, 2, 1, 17, 20)),
    "doubles": (values(130, 70, dtype="float64"), values(70, 90, dtype="float64")),
}


@pytest.mark.parametrize("a,b", LAYOUTS.values(), ids=LAYOUTS)
def test_a_product_is_numpys_whatever_the_layout(a, b):
    got = large.FORMS["matmul"](a, b)
    want = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert type(got) is type(a @ b) and got.dtype == a.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("a,b", [
    (np.ones((99, 99), np.int32), np.ones((99, 99), np.int32)), (np.ones((99, 99), np.float16),) * 2, (values(99, 99), values(99, 99, dtype="float64")),
    (values(99, 99).astype(">f4"),) * 2, (values(99, 0), values(0, 99)), (values(9, 98), values(99, 9)), (values(2, 9, 9), values(3, 9, 9))])
def test_what_it_does_not_take_is_left_to_numpy(a, b):
    assert large.FORMS["matmul"](a, b) is None


def test_errors_of_large_products_are_numpys():
    a, b = values(999, 998), values(999, 997)
    with pytest.raises(ValueError, match="matmul") as error:
        large.product(a, b)
    with pytest.raises(ValueError, match="matmul") as numpys:
        a @ b
    assert str(error.value) == str(numpys.value)
    with pytest.raises((TypeError, ValueError)):
        large.product(a, None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(large.POINTWISE))
def test_a_function_agrees_with_its_reference_within_its_bound(name, dtype):
    x = (values(40_003, dtype=dtype) * 8).reshape(-1)
    x[:6] = 0, -0.0, np.inf, -np.inf, np.nan, 1e-40
    large.FORMS[name](x)  # may be NumPy's turn, and has the kernel made
    got = large.FORMS[name](x)
    assert got is not None and got.dtype == dtype
    with np.errstate(all="ignore"):
        check(OPS[name], got, OPS[name].reference(x))
        check(OPS[name], OPS[name].eager(np.stack([x, x]).T), OPS[name].reference(np.stack([x, x]).T))  # not contiguous


def test_small_arrays_other_kinds_and_subclasses_do_not_get_there(monkeypatch):
    monkeypatch.setattr(large, "FORMS", dict.fromkeys(large.FORMS, lambda *a: pytest.fail("it was asked")))
    assert large.product(values(20, 20), values(20, 20)).shape == (20, 20)
    masked = np.ma.array(values(300, 300), mask=np.eye(300))
    for multiply in (large.product, OPS["matmul"].eager):
        assert type(multiply(masked, masked)) is type(np.matmul(masked, masked))
    assert OPS["gelu"].eager(values(50)).shape == (50,) and large.product(values(0, 500), values(500, 500)).shape == (0, 500)


def test_a_call_does_not_wait_for_the_compile_thread_at_the_table(monkeypatch):
    a = values(7, 7)
    monkeypatch.setattr(single, "_kernels", {})
    inside, leave = threading.Event(), threading.Event()

    def compiling():
        with table._lock:
            inside.set()
            leave.wait(20)
    worker = threading.Thread(target=compiling)
    worker.start()
    inside.wait(20)
    try:
        assert large.FORMS["matmul"](a, a) is None
    finally:
        leave.set()
        worker.join()
    assert large.FORMS["matmul"](a, a) is not None  # and is not given up for having been busy once


@pytest.mark.parametrize("threads", [1, 2])
def test_interpreted_calls_have_as_many_threads_as_their_function(threads):
    f = bcvm.jit(lambda a, b: a @ b, tier="interpret", threads=threads)
    a = values(700, 700)
    before = runtime().parallel_runs()
    for _ in range(20):
        np.testing.assert_allclose(f(a, a), a @ a, rtol=1e-3, atol=1e-3)
    assert (runtime().parallel_runs() > before) == (threads > 1)
    with pytest.raises(ValueError, match="matmul"):
        f(a, a[1:])
    assert large.calling.threads is None


def test_threads_and_a_forked_child_get_right_results():
    sizes = [(60 + 37 * i, 128, 200) for i in range(6)]
    wrong: list = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for m, k, n in sizes * 5:
            a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
            if not np.allclose(large.product(a, b), np.matmul(a.astype(np.float64), b), rtol=1e-3, atol=1e-3):
                wrong.append((seed, m))
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    child = os.fork()
    if child == 0:
        work(99)
        os._exit(len(wrong) > 0)
    assert os.waitpid(child, 0)[1] == 0 and not wrong
