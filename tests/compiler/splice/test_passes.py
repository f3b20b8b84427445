"""Spliced kernels with reductions have the bits of LLVM's: sums in the same order, whatever the row's length and layout."""
from __future__ import annotations

import harness
import numpy as np
import pytest
import regions
from harness import TARGETS, region
from spliced import Spliced
from test_splicer import check, random_sizes

from bcvm.compiler.kernels.row import CHUNK
from bcvm.compiler.splice.splicer import splice
from bcvm.errors import Unsupported

F, D, I, B = "float32", "float64", "int32", "bool"
SOFTMAX = [("max", (0,), F), ("sub", (0, 1), F), ("exp", (2,), F), ("sum", (3,), F), ("truediv", (3, 4), F)]


def norm(dtype: str, n: float = 64.0) -> list:
    """(x - mean) / sqrt(var + eps) * w + b"""
    return [("sum", (0,), dtype), ("const", (), dtype, ("value", 1 / n)), ("mul", (3, 4), dtype), ("sub", (0, 5), dtype), ("square", (6,), dtype),
            ("sum", (7,), dtype), ("mul", (8, 4), dtype), ("const", (), dtype, ("value", 1e-5)), ("add", (9, 10), dtype), ("sqrt", (11,), dtype),
            ("truediv", (6, 12), dtype), ("mul", (13, 1), dtype), ("add", (14, 2), dtype)]


CASES = {
    "softmax": region(2, [F], SOFTMAX, [-1]),
    "softmax with its parts": region(3, [F], SOFTMAX, [(1, True), (4, True), 5, 3]),
    "norm": region(2, [F, F, F], norm(F), [-1]),
    "norm of doubles": region(3, [D, D, D], norm(D), [-1, (3, True), (12, True)]),
    "sum": region(1, [F], [("sum", (0,), F)], [(-1, True)]),
    "sum of squares": region(2, [F], [("square", (0,), F), ("sum", (1,), F)], [(-1, True)]),
    "sum of heavy": region(2, [F], [("gelu", (0,), F), ("tanh", (1,), F), ("sum", (2,), F)], [(-1, True)]),
    "two sums and a maximum": region(2, [F, F], [("sum", (0,), F), ("mul", (0, 1), F), ("sum", (3,), F), ("max", (1,), F), ("add", (2, 4), F)],
                                     [(5, True), (6, True)]),
    "minimum and maximum": region(2, [D], [("min", (0,), D), ("max", (0,), D), ("sub", (0, 1), D), ("sub", (2, 1), D), ("truediv", (3, 4), D)], [-1]),
    "sum of int32 in int64": region(2, [I], [("cast", (0,), "int64", ("dtype", "int64")), ("sum", (1,), "int64")], [(-1, True)]),
    "extremes of int32": region(2, [I, I], [("max", (0,), I), ("min", (1,), I), ("add", (2, 3), I), ("sub", (0, 4), I)], [-1, (4, True)]),
    "product": region(2, ["int64"], [("prod", (0,), "int64")], [(-1, True)]),
    "comparison with a mean": region(2, [F], [("sum", (0,), F), ("gt", (0, 1), B), ("gt", (1, 1), B), ("where", (2, 0, 1), F)], [2, 4, (3, True)]),
    "one number of each row": region(2, [(F, True), F], [("add", (0, 0), F), ("tanh", (2,), F), ("mul", (1, 3), F), ("sum", (4,), F)], [(-1, True), (2, True)]),
    "values kept between sweeps": region(2, [F, F], [("exp", (0,), F), ("tanh", (1,), F), ("sum", (2,), F), ("sum", (3,), F), ("truediv", (2, 5), F),
                                                     ("truediv", (3, 4), F), ("add", (6, 7), F), ("max", (8,), F), ("sub", (8, 9), F)], [-1]),
}
LENGTHS = (0, 1, 2, 15, 16, 17, 31, 64, 65, 100, 127, 128, 129, 300, 511, 512, 513, 1000)


@pytest.mark.parametrize("name", CASES)
def test_reductions_of_any_layout(name, stencils):
    spec, rng = CASES[name], np.random.default_rng(0)
    kernel = Spliced(spec, stencils)
    for n in LENGTHS:
        for _ in range(2):
            sizes = [int(s) for s in rng.choice([1, 2, 3], spec.rank - 1)] + [n]
            units = int(np.prod(sizes[:-1]))
            cut = int(rng.integers(0, units + 1))
            check(spec, sizes, rng, kernel, *(((0, -1),) if rng.random() < 0.5 else ((0, cut), (cut, units))))


@pytest.mark.parametrize("name", ["softmax", "sum", "norm", "minimum and maximum"])
@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 70])
def test_rows_of_several_pieces(name, n, stencils):
    spec, rng = CASES[name], np.random.default_rng(n)
    kernel = Spliced(spec, stencils)
    for _ in range(3):
        check(spec, [2] * (spec.rank - 1) + [n], rng, kernel)


@pytest.mark.parametrize("seed", range(60))
def test_random_regions_with_reductions(seed, stencils, monkeypatch):
    monkeypatch.setattr(regions, "FLOATS", (F, D))
    monkeypatch.setattr(regions, "INTEGERS", ("int32", "int64"))
    rng = np.random.default_rng(1000 + seed)
    rank = int(rng.integers(1, 4))
    spec = regions.random_spec(rng, rank, True)
    try:
        kernel = Spliced(spec, stencils)
    except Unsupported as e:
        assert "reduction" in e.reason or "int64" in e.reason
        return
    for _ in range(4):
        check(spec, random_sizes(rng, rank), rng, kernel)


def test_many_random_regions_with_reductions_are_spliced(stencils, monkeypatch):
    monkeypatch.setattr(regions, "FLOATS", (F, D))
    monkeypatch.setattr(regions, "INTEGERS", ("int32", "int64"))
    count = 0
    for seed in range(60):
        try:
            splice(regions.random_spec(np.random.default_rng(1000 + seed), 2, True), stencils)
            count += 1
        except Unsupported:
            pass
    assert count >= 20, "the test above must have something to test"


def test_many_values_and_accumulators(stencils):
    """Registers run out between accumulators, constants and values."""
    steps: list = []
    for k in range(5):  # three reductions in the first sweep
        steps.append(("sum" if k % 2 else "max", (k,), F) if k < 3 else ("abs", (k,), F))
    values = list(range(5))
    for k in range(30):
        steps.append((("tanh", "square", "exp", "neg", "sqrt")[k % 5], (values[k % len(values)],), F))
        values.append(5 + len(steps) - 1)
    for k in range(5, 10):
        for v in (k, 40 - k):
            steps.append(("mul", (values[v - 5], 5 + k - 5), F))
            values.append(5 + len(steps) - 1)
    total = values[10]
    for v in values[11:]:
        steps.append(("add", (total, v), F))
        total = 5 + len(steps) - 1
    spec = region(2, [F] * 5, steps, [-1])
    rng, kernel = np.random.default_rng(0), Spliced(spec, stencils)
    for n in (1, 16, 100, 300):
        check(spec, [2, n], rng, kernel)


def test_no_memory_is_an_error_code(stencils):
    n = 5000
    arrays = [np.ones(n, F), np.ones(n, F)]
    kernel = Spliced(region(1, [F], SOFTMAX, [-1]), stencils)
    operands, sizes = harness.words(arrays, 1), np.array([n], np.int64)
    with harness.no_memory() as context:
        assert kernel.function(context, operands.ctypes.data, sizes.ctypes.data, 0, -1) == 1
    assert TARGETS


@pytest.mark.parametrize("how,dtype", [("any", B), ("all", B), ("argmax", F), ("argmin", I), ("max", B)])
def test_reductions_without_spliced_form_are_refused(how, dtype, stencils):
    out = {"any": B, "all": B, "argmax": "int64", "argmin": "int64"}.get(how, dtype)
    with pytest.raises(Unsupported, match=f"reduction {how} of {dtype}"):
        splice(region(2, [dtype], [(how, (0,), out)], [(-1, True)]), stencils)
