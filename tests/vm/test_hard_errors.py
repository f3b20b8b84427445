"""Errors are Python's and NumPy's own, with the user's line, wherever the call runs."""
from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

import bcvm
from tests.vm.hard import NATIVE_TIERS, TIERS, outcome, same, script, settle, warm


def mismatch(x, y):
    a = x * 2
    return a + y


def matmul_mismatch(x, y):
    a = x + 1
    b = a @ y
    return b


def index_out_of_range(x, y):
    n = y.shape[0]
    return x + x[n]


def store_out_of_range(x, y):
    z = x + 0
    z[y.shape[0]] = 1.0
    return z


def divide(x, y):
    n = x.shape[0] - y.shape[0]
    m = 7 // n
    return x * m


def modulo(x, y):
    n = x.shape[0] - y.shape[0]
    return x * (7 % n)


def divide_floats(x, y):
    n = 1.0 * x.shape[0] - y.shape[0]
    return x * (7 / n)


def truth(x, y):
    if x > 0:
        return y
    return x


def while_truth(x, y):
    while x:
        x = x - y
    return x


def unbound(x, y):
    if x.shape[0] > 100:
        z = y
    return x + z


def raises(x, y):
    s = x.sum()
    if s > 1:
        raise ValueError(f"sum is {s:.1f}, shape {x.shape}")
    return y


def asserts(x, y):
    assert x.shape[0] < 2, f"got {x.shape[0]}"
    return y


def missing_attribute(x, y):
    return x.nothing + y


def reshape_error(x, y):
    z = x * 2
    return z.reshape(7, x.shape[0])


def unpack_error(x, y):
    a, b = x
    return a + b


def concat_error(x, y):
    return np.concatenate([x[None], y[None]])


def axis_error(x, y):
    return x.sum(axis=x.ndim)


def bad_cast(x, y):
    return int(x.sum() / 0.0)


def item_error(x, y):
    return float(x) + 1


def in_place_mismatch(x, y):
    x += y
    return x


def in_helper(x, y):
    return helper(x, y) * 2


def helper(x, y):
    z = x + 1
    return z + y


def name_error(x, y):
    return x + not_defined_anywhere  # noqa: F821


FAILING = [mismatch, matmul_mismatch, index_out_of_range, store_out_of_range, divide, modulo, divide_floats, truth, while_truth, unbound, raises, asserts, missing_attribute,
           reshape_error, unpack_error, concat_error, axis_error, bad_cast, item_error, in_place_mismatch, in_helper, name_error]
ARGUMENTS = {divide: (3, 3), modulo: (3, 3), divide_floats: (3, 3)}


def error_of(f: Any, args: Any) -> tuple[Any, str, list[tuple[str, int]]]:
    try:
        f(*args)
    except Exception as e:
        own = [(s.name, s.lineno) for s in traceback.extract_tb(e.__traceback__) if s.filename == __file__ and s.name != "error_of"]
        return type(e), str(e), own  # type: ignore[return-value]
    raise AssertionError("nothing was raised")


@TIERS
@pytest.mark.parametrize("fn", FAILING, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_is_the_same_as_in_python(fn: Any, tier: str) -> None:
    n, m = ARGUMENTS.get(fn, (3, 4))
    f = bcvm.jit(fn, tier=tier)
    fine = (np.ones(3), np.ones(3))
    outcome(f, *fine)
    settle()
    for _ in range(3):
        args = (np.arange(float(n)), np.arange(float(m)))
        got, want = error_of(f, args), error_of(fn, args)
        assert got[:2] == want[:2]
        assert got[2][-1] == want[2][-1], (got[2], want[2])
        settle()
    assert not f.stats()["errors"]


@NATIVE_TIERS
def test_errors_from_native_code_do_its_work_once(tier: str) -> None:
    def plain(x, log, n):
        x += 1
        y = x * 2
        x[0] = 50
        z = y[n]
        x[1] = 60
        return z

    f = bcvm.jit(plain, tier=tier)
    warm(f, np.arange(3.0), [], 1)
    for n in (0, 2, 3, -3, -4):
        mine, theirs = np.arange(3.0), np.arange(3.0)
        assert outcome(f, mine, [], n) == outcome(plain, theirs, [], n)
        same(mine, theirs)


# -- integers

def arithmetic(a, b):
    return a + b, a - b, a * b, -a, a * a * b, abs(a)


def powers(a, n):
    r = 1
    for _ in range(n):
        r = r * a
    return r


def shifts(a, n):
    return a << n, a >> n, a // (n + 1), a % (n + 1)


@TIERS
def test_integers_grow_beyond_64_bits(tier: str) -> None:
    big = (1 << 63) - 1
    numbers = [0, 1, -1, 7, big, -big, -big - 1, 1 << 62, -(1 << 62), 1 << 63, -(1 << 63) - 1, 10 ** 30, 3037000500]
    f, g, h = (bcvm.jit(fn, tier=tier) for fn in (arithmetic, powers, shifts))
    for _ in range(3):
        for a in numbers:
            for b in numbers:
                same(f(a, b), arithmetic(a, b))
            for n in (0, 1, 2, 3, 5, 40, 63, 64, 70):
                same(g(a, n), powers(a, n))
                same(h(a, n), shifts(a, n))
        settle()
    assert not f.stats()["errors"] and not g.stats()["errors"] and not h.stats()["errors"]


@TIERS
def test_sum_that_overflows_in_a_loop_goes_on_as_a_big_integer(tier: str) -> None:
    def plain(n, x):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a, x * (b % 1000)

    f = bcvm.jit(plain, tier=tier)
    for _ in range(3):
        for n in (1, 50, 90, 91, 92, 93, 94, 200, 2000):
            same(f(n, np.ones(2)), plain(n, np.ones(2)))
        settle()


@TIERS
def test_bool_int_and_float_stay_apart(tier: str) -> None:
    def plain(a, b):
        return a + b, a and b, a or b, not a, a == b, a < b, a is True, min(a, b), max(a, b), a if b else b, int(a), bool(b), round(a) if type(a) is int else 0

    f = bcvm.jit(plain, tier=tier)
    values = [True, False, 0, 1, 2, 0.0, 1.0, -0.0, 2.5, float("inf")]
    for _ in range(2):
        for a in values:
            if a == float("inf"):
                continue
            for b in values:
                got, want = f(a, b), plain(a, b)
                assert list(map(repr, got)) == list(map(repr, want)), (a, b)
        settle()
    assert not f.stats()["errors"]


# -- Ctrl-C

INTERRUPTED = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
    import numpy as np
    import bcvm
    from bcvm.vm.compile_thread import thread

    @bcvm.jit(tier=TIER)
    def loop(n, x):
        s = 0
        i = 0
        while i < n:
            s = (s * 7 + i) % 1000003
            i = i + 1
        return s, x

    @bcvm.jit(tier=TIER)
    def tensors(n, x):
        for i in range(n):
            x = x * 0.5 + i
        return 0, x

    SENDER = "import os, signal, sys, time; time.sleep(0.3); print(time.time(), flush=True); os.kill(int(sys.argv[1]), signal.SIGINT)"
    for f in (loop, tensors):
        for _ in range(2):
            f(1000, np.ones(3)); thread.idle()
        for _ in range(2):
            sender = subprocess.Popen([sys.executable, "-S", "-c", SENDER, str(os.getpid())], stdout=subprocess.PIPE, text=True)
            try:
                f(10**9, np.ones(3))
                print("no interrupt")
            except KeyboardInterrupt:
                took = time.time() - float(sender.stdout.readline())
                print("interrupted" if took < 1 else f"late: {took}")
            sender.wait()
        assert f(1000, np.ones(3))[0] is not None
"""


@NATIVE_TIERS
def test_interrupt_ends_a_native_loop(tier: str, tmp_path: Any) -> None:
    done = script(tmp_path, INTERRUPTED, TIER=tier)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted"] * 4, done.stdout
