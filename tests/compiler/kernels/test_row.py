"""Row kernels against NumPy: any region, any layout, every form of code."""
from __future__ import annotations

import re

import harness
import numpy as np
import pytest
import regions
from harness import TARGETS, region

from bcvm.compiler import abi, llvm, loader
from bcvm.compiler.kernels.operands import move_ir
from bcvm.compiler.kernels.plan import Plan
from bcvm.compiler.worker import FULL, PLAIN
from bcvm.errors import Unsupported

F = "float32"


def check(spec, sizes, rng, target, exact=True):
    inputs, wide, outputs = regions.operands(rng, spec, sizes)
    harness.call(spec, [*inputs, *wide], sizes, target)
    for got, want in zip(outputs, regions.expected(spec, inputs), strict=True):
        if exact:
            np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape), err_msg=f"{spec} {sizes}")
        else:
            np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=1e-5, atol=1e-5)


def sizes_of(rng, rank, empty=True):
    row = int(rng.choice(regions.LENGTHS if empty else regions.LENGTHS[1:]))
    return [*(int(rng.choice([1, 2, 3, 4] + ([0] if empty and rng.random() < 0.1 else []))) for _ in range(rank - 1)), row]


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("seed", range(24))
def test_random_elementwise_region_is_numpys_bit_for_bit(seed, limit):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    spec = regions.random_spec(rng, rank, reductions=False)
    for _ in range(6):
        check(spec, sizes_of(rng, rank), rng, TARGETS[limit])


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("seed", range(100, 130))
def test_random_region_with_reductions_is_numpys_bit_for_bit(seed, limit):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    spec = regions.random_spec(rng, rank, reductions=True)
    for _ in range(6):
        check(spec, sizes_of(rng, rank, empty=False), rng, TARGETS[limit])


SOFTMAX = [("max", (0,), F), ("sub", (0, 1), F), ("exp", (2,), F), ("sum", (3,), F), ("truediv", (3, 4), F)]
CHAIN = [("add", (0, 1), F), ("gelu", (5,), F), ("add", (6, 2), F), ("sum", (7,), F), ("const", (), F, ("value", 1 / 768)), ("mul", (8, 9), F), ("sub", (7, 10), F),
         ("square", (11,), F), ("sum", (12,), F), ("mul", (13, 9), F), ("const", (), F, ("value", 1e-5)), ("add", (14, 15), F), ("rsqrt", (16,), F),
         ("mul", (11, 17), F), ("mul", (18, 3), F), ("add", (19, 4), F)]


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("length", [1, 5, 16, 768, 5000])
def test_softmax_and_layer_norm_chain(limit, length):
    rng = np.random.default_rng(length)
    check(region(2, [F], SOFTMAX, [-1]), [3, length], rng, TARGETS[limit], exact=False)
    if length > 100:
        check(region(2, [F] * 5, CHAIN, [-1]), [3, length], rng, TARGETS[limit], exact=False)


def test_an_expensive_value_is_kept_and_a_cheap_one_computed_again():
    plan = Plan(region(2, [F], SOFTMAX, [-1]), TARGETS[""])
    assert set(plan.kept) == {3}
    assert [p.kept for p in plan.passes] == [[], [3], []]
    plan = Plan(region(2, [F] * 5, CHAIN, [-1]), TARGETS[""])
    assert set(plan.kept) == {7}


@pytest.mark.parametrize("limit", TARGETS)
def test_empty_rows_give_the_identity(limit):
    spec = region(2, [F], [("sum", (0,), F), ("prod", (0,), F), ("any", (0,), "bool"), ("all", (0,), "bool")], [(1, True), (2, True), (3, True), (4, True)])
    check(spec, [3, 0], np.random.default_rng(0), TARGETS[limit])


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "uint8", "bool"])
def test_argmax_is_the_first_and_nan_wins(limit, dtype):
    spec = region(1, [dtype], [("argmax", (0,), "int64"), ("argmin", (0,), "int64")], [(1, True), (2, True)])
    rng = np.random.default_rng(5)
    for n in (1, 2, 16, 50, 333):
        for variant in range(4):
            x = rng.integers(0, 2 if dtype == "bool" else 5, n).astype(dtype)
            if variant == 1:
                x[:] = -np.inf if dtype.startswith("f") else 0
            if variant == 2 and dtype.startswith("f"):
                x[n // 2:] = np.nan
            if variant == 3 and dtype.startswith("f"):
                x[:] = np.inf
            got = np.zeros(2, np.int64)
            harness.call(spec, [x, got[:1], got[1:]], [n], TARGETS[limit])
            assert got.tolist() == [x.argmax(), x.argmin()], (n, variant)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_range_of_rows_is_done_and_nothing_else(rank):
    spec = region(rank, [F], [("neg", (0,), F)], [-1])
    sizes = [3, 2, 4][:rank - 1] + [5]
    rng = np.random.default_rng(1)
    x = rng.standard_normal(sizes).astype(F)
    rows = int(np.prod(sizes[:-1]))
    for lo in range(rows + 1):
        for hi in range(lo, rows + 1):
            out = np.zeros(sizes, F)
            harness.call(spec, [x, out], sizes, TARGETS[""], lo, hi)
            want = np.zeros((rows, 5), F)
            want[lo:hi] = -x.reshape(rows, 5)[lo:hi]
            np.testing.assert_array_equal(out.reshape(rows, 5), want)


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize(("dtype", "out"), [(F, F), (F, "bool"), ("float64", F), ("int8", "int8"), (F, "float64")])
@pytest.mark.parametrize("steps", ["one", "normed"])
def test_rows_may_begin_and_end_anywhere(steps, dtype, out, limit):
    """Stores of long rows are aligned: what lies before and behind a row is neither read nor written, and values do not depend on where it begins."""
    size, row = np.dtype(out).itemsize, 2 * 1024 // np.dtype(out).itemsize
    body = [("neg", (0,), dtype)] if steps == "one" else [("max", (0,), dtype), ("sub", (0, 1), dtype), ("square", (2,), dtype)]
    spec = region(1, [dtype], [*body, ("cast", (len(body),), out, ("dtype", out))], [-1])
    values = np.random.default_rng(2).integers(-5, 5, row + 40).astype(dtype)
    for n in (row // 2 - 1, row // 2, row // 2 + 1, row, row + 37):
        for start in (*range(0, 64, size), -1, -1 - size, -1 - 37 * size):
            x, _ = harness.fenced(dtype, n, start // size * np.dtype(dtype).itemsize if start >= 0 else -1)
            y, around = harness.fenced(out, n, start)
            x[...] = values[:n]
            harness.call(spec, [x, y], [n], TARGETS[limit])
            want = -x if steps == "one" else (x - x.max()) ** 2
            np.testing.assert_array_equal(y, want.astype(out))
            y[...] = 0
            assert not around.any(), "wrote outside the output"


PLAIN_REGIONS = {
    "numbers": [("mul", (0, 1), F), ("const", (), F, ("value", 2.5)), ("maximum", (2, 3), F), ("const", (), F, ("value", -7.25)), ("sub", (4, 5), F)],
    "gelu": [("gelu", (0,), F), ("add", (2, 1), F)],
    "tanh": [("tanh", (0,), F), ("mul", (2, 1), F)],
    "sin": [("sin", (0,), F), ("exp", (1,), F), ("mul", (2, 3), F)],  # with a call in its loop
}


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("steps", PLAIN_REGIONS.values(), ids=PLAIN_REGIONS)
def test_loops_of_a_plain_kernel_are_right_as_they_are_written(steps, limit):
    target = TARGETS[limit]
    spec = region(2, [F, F], steps, [-1])
    source = harness.generate(spec, target)
    assert source.effort == (PLAIN if target.avx512 else FULL)  # it takes masked ends of rows
    loops = source.ir[source.ir.index("\nloop"):]
    numbers = [n for line in loops.split("\n") if not re.search("sh[lr] |ashr ", line) for n in re.findall(r"splat \((?!i1)\w+ ([^)]+)\)", line)]
    assert source.effort == FULL or {n for n in numbers if n.strip("0x")} == set()  # no constant is loaded in them
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((5, 259)).astype(F) * 4 for _ in range(2))
    results = []
    for effort in (PLAIN, FULL):
        results.append(np.empty_like(x))
        harness.call(spec, [x, y, results[-1]], x.shape, target, effort=effort)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_of_two_zeros_an_extreme_is_the_second_and_nan_stays(op, dtype, limit):
    x = np.tile(np.array([0.0, -0.0, np.nan, 1.5, -1.5], dtype), 20)
    for other in (0.0, -0.0, 2.0):
        for constant in (True, False):
            steps = [("const", (), dtype, ("value", other)), (op, (0, 2), dtype)] if constant else [(op, (0, 1), dtype)]
            out, second = np.empty_like(x), np.full_like(x, other)
            harness.call(region(1, [dtype, dtype], steps, [-1]), [x, second, out], [x.size], TARGETS[limit])
            want = np.where(np.isnan(x) | ((x > second) if op == "maximum" else (x < second)), x, second)
            np.testing.assert_array_equal(out, want)
            np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


def test_reductions_are_left_to_llvm():
    assert harness.generate(region(1, [F], SOFTMAX, [-1]), TARGETS[""]).effort == FULL


@pytest.mark.parametrize("limit", TARGETS)
def test_nothing_outside_the_output_is_written(limit):
    for dtype in ("int8", "float16", "float32", "float64"):
        spec = region(2, [dtype], [("neg", (0,), dtype)], [-1])
        for n in (1, 7, 16, 63, 65, 130):
            room = np.full((4, n + 2), 3, dtype)
            x = np.ones((4, n), dtype)
            harness.call(spec, [x, room[:, 1:-1]], [4, n], TARGETS[limit])
            assert (room[:, 0] == 3).all() and (room[:, -1] == 3).all() and (room[:, 1:-1] == -1).all()


def test_a_long_float_sum_stays_accurate():
    x = np.full(1 << 20, 0.1, F)
    out = np.zeros(1, F)
    harness.call(region(1, [F], [("sum", (0,), F)], [(-1, True)]), [x, out], [x.size], TARGETS[""])
    assert abs(out[0] - x.astype(np.float64).sum()) < 5e-6 * out[0]


def test_a_failed_allocation_is_an_error_code():
    spec = region(1, [F], SOFTMAX, [-1])
    n = 5000
    x, out = np.ones(n, F), np.ones(n, F)
    operands, extents = harness.words([x, out], 1), np.array([n], np.int64)
    with harness.no_memory() as context:
        assert harness.compiled(spec, TARGETS[""])(context, operands.ctypes.data, extents.ctypes.data, 0, -1) == 1


def test_strided_moves_can_be_shared_through_the_context(monkeypatch):
    at = len(abi.TABLE)
    code = loader.load(llvm.compile_ir(move_ir(4)))
    monkeypatch.setitem(abi.INDEX, "move4", at)
    harness.table[at] = code.address("move4")
    spec = region(2, [F, F], [("neg", (0,), F), ("sub", (2, 1), F)], [-1])
    assert "@move4" not in harness.generate(spec, TARGETS[""]).ir
    rng = np.random.default_rng(0)
    for sizes in ([3, 40], [2, 600], [5, 1]):
        for _ in range(4):
            check(spec, sizes, rng, TARGETS[""])
    harness.compiled.cache_clear()


def test_what_has_no_native_form_is_refused():
    with pytest.raises(Unsupported):
        harness.generate(region(1, [F], [("no_such_op", (0,), F)], [-1]), TARGETS[""])
    with pytest.raises(Unsupported):
        harness.generate(region(1, ["complex64"], [], [0]), TARGETS[""])
