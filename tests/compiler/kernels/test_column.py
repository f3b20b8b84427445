"""Column kernels against NumPy."""
from __future__ import annotations

import harness
import numpy as np
import pytest
import regions
from harness import TARGETS, region

from bcvm.errors import Unsupported

F = "float32"
SIZES = [(5, 3), (1, 1), (100, 64), (7, 200), (5, 0), (5, 1), (2, 9, 33), (2, 3, 4, 70), (3, 0, 70), (300, 16)]
SPECS = {
    "sums": lambda r: region(r, [F, F], [("mul", (0, 1), F), ("rint", (2,), F), ("sum", (3,), F), ("max", (0,), F), ("mul", (4, 5), F)], [(4, True), (6, True)], "column"),
    "positions": lambda r: region(r, [F], [("argmax", (0,), "int64"), ("argmin", (0,), "int64"), ("min", (0,), F)], [(1, True), (2, True), (3, True)], "column"),
    "logic": lambda r: region(r, ["bool", "int8"], [("any", (0,), "bool"), ("all", (0,), "bool"), ("cast", (1,), "int64", ("dtype", "int64")), ("sum", (4,), "int64"),
                                                    ("sum", (0,), "int64")], [(2, True), (3, True), (5, True), (6, True)], "column"),
    "mean": lambda r: region(r, ["float64"], [("rint", (0,), "float64"), ("sum", (1,), "float64"), ("const", (), "float64", ("value", 0.25)),
                                              ("mul", (2, 3), "float64")], [(4, True)], "column"),
}


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("name", SPECS)
def test_column_reductions_are_numpys(name, limit):
    rng = np.random.default_rng(len(name))
    for sizes in SIZES:
        spec = SPECS[name](len(sizes))
        if sizes[-2] == 0 and name != "logic":
            continue
        for _ in range(4):
            inputs, wide, outputs = regions.operands(rng, spec, sizes)
            harness.call(spec, [*inputs, *wide], sizes, TARGETS[limit])
            for got, want in zip(outputs, regions.expected(spec, inputs), strict=True):
                np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape), err_msg=str(sizes))


def test_a_range_of_columns_is_done_and_nothing_else():
    spec = region(3, [F], [("sum", (0,), F)], [(-1, True)], "column")
    x = np.arange(2 * 3 * 40, dtype=F).reshape(2, 3, 40)
    for lo, hi in ((0, 80), (0, 1), (7, 50), (39, 41), (79, 80), (5, 5)):
        out = np.zeros((2, 1, 40), F)
        harness.call(spec, [x, np.broadcast_to(out, x.shape)], x.shape, TARGETS[""], lo, hi)
        want = np.zeros(80, F)
        want[lo:hi] = x.sum(1).reshape(-1)[lo:hi]
        np.testing.assert_array_equal(out.reshape(-1), want)


def test_a_second_pass_is_refused():
    spec = region(2, [F], [("max", (0,), F), ("sub", (0, 1), F), ("sum", (2,), F)], [(3, True)], "column")
    with pytest.raises(Unsupported):
        harness.generate(spec, TARGETS[""])
