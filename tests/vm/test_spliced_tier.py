"""tier="splice" pins spliced kernels; tier="auto" begins with them and goes over to LLVM's."""
from __future__ import annotations

import time

import numpy as np
import pytest

import bcvm
from bcvm.compiler.splice import library
from bcvm.compiler.target import host
from bcvm.vm.compile_thread import thread


@pytest.fixture(scope="module", autouse=True)
def stencils():
    if not host().avx512:
        pytest.skip("stencils are made for AVX-512 only")
    library.library()


def chain(x, y):
    return np.maximum(np.tanh(x * y + 1.0), 0.25) - x


def want(x, y):
    return np.maximum(np.tanh(x * y + x.dtype.type(1)), x.dtype.type(0.25)) - x


def arrays(*shape, dtype=np.float32):
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape).astype(dtype)


def test_a_pinned_kernel_is_spliced_and_stays():
    f = bcvm.jit(chain, tier="splice")
    before = bcvm.cache.info()["kernels_spliced"]
    for shape in ((4, 100), (7,), (3, 5, 70), (0, 3), (1,)):
        x, y = arrays(*shape)
        assert np.allclose(f(x, y), want(x, y), rtol=1e-5, atol=1e-6)
    thread.idle()
    assert bcvm.cache.info()["kernels_spliced"] > before
    assert f.stats()["interpreted"] == 0 and not f.stats()["errors"]
    assert "kernels spliced" in str(f.explain(*arrays(7)))


def test_both_tiers_give_the_same_bits():
    spliced, full = bcvm.jit(chain, tier="splice"), bcvm.jit(chain, tier="full")
    for dtype in (np.float32, np.float64):
        for shape in ((5, 64), (3, 333), (1000,)):
            x, y = arrays(*shape, dtype=dtype)
            assert np.array_equal(spliced(x, y), full(x, y))
            assert np.array_equal(spliced(x.T, y.T), full(x.T, y.T))
            assert np.array_equal(spliced(x[::2], y[..., ::1][::2]), full(x[::2], y[::2]))
            assert np.array_equal(spliced(x, y[..., :1]), full(x, y[..., :1]))


def test_auto_goes_over_to_llvm(monkeypatch, tmp_path):
    monkeypatch.setenv("BCVM_KERNEL_CACHE", str(tmp_path))  # no kernel is there yet

    def one_more(x, y):
        return np.minimum(x * y - 1.0, 0.5) / (y * y + 2.0)
    f = bcvm.jit(one_more)
    compiled = bcvm.cache.info()["kernels_compiled"]
    x, y = arrays(6, 50)
    results = []
    end = time.monotonic() + 30
    while not f.stats()["native"] and time.monotonic() < end:
        results.append(f(x, y))
        time.sleep(0.001)
    results.append(f(x, y))
    thread.idle()
    results.append(f(x, y))
    assert all(np.array_equal(r, results[0]) for r in results[1:]) or np.allclose(results[0], results[-1], rtol=1e-6)
    assert np.array_equal(results[-1], results[-2])
    assert bcvm.cache.info()["kernels_compiled"] > compiled, "LLVM's kernel has replaced it"
    assert "spliced" not in str(f.explain(x, y))


def test_memory_goes_with_the_function():
    import gc

    from bcvm.compiler import loader

    def temporary(x):
        return np.abs(x * 3.5 - 2.0) + x
    f = bcvm.jit(temporary, tier="splice")
    f(arrays(9)[0])
    thread.idle()
    there = loader.code_bytes()
    del f
    gc.collect()
    thread.idle()
    assert loader.code_bytes() < there


def test_a_dozen_threads_share_spliced_kernels():
    import threading
    f = bcvm.jit(chain, tier="splice", threads=2)
    x, y = arrays(64, 500)
    good = f(x, y)
    wrong = []

    def work():
        for _ in range(30):
            if not np.array_equal(f(x, y), good):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_long_work_is_shared_by_the_pool():
    f, full = bcvm.jit(chain, tier="splice", threads=2), bcvm.jit(chain, tier="full", threads=1)
    x, y = arrays(500, 4000)
    assert np.array_equal(f(x, y), full(x, y))
    assert np.array_equal(f(x, y[:, :1]), full(x, y[:, :1]))
    assert np.array_equal(f(x, y[0]), full(x, y[0]))
