"""Operations of the vector builder that the region tests do not reach: casts out of range, divisions, shifts, half precision."""
from __future__ import annotations

import harness
import numpy as np
import pytest
from harness import TARGETS, region

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")


def corners(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([False, True])
    if dtype in FLOATS:
        special = [0.0, -0.0, 0.4, 0.5, 1.5, 2.5, -0.5, -1.5, -7.9, 100.25, 1e-8, 6e-8, 6e-5, np.inf, -np.inf, np.nan]
        return np.array(special + ([65504.0, 65519.9, 65520.0, 2049, 2051, 1e10, -1e10, 3e38] if dtype != "float16" else [65504.0, 6.1e-5]), dtype)
    info = np.iinfo(dtype)
    return np.unique(np.array([info.min, info.min + 1, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100, info.max - 1, info.max] + ([-1, -2, -3, -7] if info.min else []), dtype))


def run(op: str, target, out: str, *x: np.ndarray, attrs=()) -> np.ndarray:
    spec = region(1, [a.dtype.name for a in x], [(op, tuple(range(len(x))), out, *attrs)], [-1])
    got = np.empty(x[0].shape, out)
    harness.call(spec, [*x, got], [x[0].size], target)
    return got


def casts(target, x: np.ndarray, names: tuple[str, ...]) -> None:
    """x to each of the dtypes, in one kernel."""
    spec = region(1, [x.dtype.name], [("cast", (0,), n, ("dtype", n)) for n in names], list(range(1, len(names) + 1)))
    got = [np.empty(x.shape, n) for n in names]
    harness.call(spec, [x, *got], [x.size], target)
    with np.errstate(all="ignore"):
        for g, n in zip(got, names, strict=True):
            np.testing.assert_array_equal(g, x.astype(n), err_msg=f"{x.dtype} to {n}")


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ("bool", *INTEGERS, *FLOATS))
def test_casts_are_numpys(dtype, limit):
    target, x = TARGETS[limit], corners(dtype)
    if dtype not in FLOATS:
        return casts(target, x, ("bool", *INTEGERS, *FLOATS))
    rng = np.random.default_rng(0)
    x = np.concatenate([x, (rng.standard_normal(300) * 10.0 ** rng.uniform(-6, 4, 300)).astype(dtype)])
    casts(target, x, ("bool", *FLOATS))
    casts(target, x[np.abs(x) < 127], ("int8", "int16", "int32", "int64"))  # C leaves the rest open
    casts(target, x[(x > -1) & (x < 255)], ("uint8", "uint16", "uint32", "uint64"))


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_float_out_of_range_becomes_the_smallest_integer(dtype, limit):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 5.0], dtype)
    for to in ("int32", "int64"):
        low = np.iinfo(to).min
        assert run("cast", TARGETS[limit], to, x, attrs=(("dtype", to),)).tolist() == [low] * 5 + [5]
    big = np.array([2.0**63, 1.5 * 2.0**63, 2.0**62], dtype)
    assert run("cast", TARGETS[limit], "uint64", big, attrs=(("dtype", "uint64"),)).tolist() == [int(v) for v in big]
    edge = np.array([-2.0**31, 2.0**31 - 128, -2.0**31 - 256], dtype)
    assert run("cast", TARGETS[limit], "int32", edge, attrs=(("dtype", "int32"),)).tolist() == [-2**31, 2**31 - 128, -2**31]


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_division_is_numpys(op, dtype, limit):
    a, b = (v.ravel() for v in np.meshgrid(corners(dtype), corners(dtype)))
    with np.errstate(all="ignore"):
        want = (np.floor_divide if op == "floordiv" else np.remainder)(a, b)
    got = run(op, TARGETS[limit], dtype, a, b)
    np.testing.assert_array_equal(got, want)
    if dtype in FLOATS:
        zero = want == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_any_count(dtype, limit):
    a, b = (v.ravel() for v in np.meshgrid(corners(dtype), corners(dtype)))
    for op, fn in (("lshift", np.left_shift), ("rshift", np.right_shift)):
        np.testing.assert_array_equal(run(op, TARGETS[limit], dtype, a, b), fn(a, b))


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_and_rounding_of_special_values(dtype, limit):
    a, b = (v.ravel() for v in np.meshgrid(corners(dtype), corners(dtype)))
    for op, fn in (("maximum", np.maximum), ("minimum", np.minimum), ("fmax", np.fmax), ("fmin", np.fmin)):
        np.testing.assert_array_equal(run(op, TARGETS[limit], dtype, a, b), fn(a, b))
    for op in ("floor", "ceil", "trunc", "rint"):
        got, want = run(op, TARGETS[limit], dtype, a), getattr(np, op)(a)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want) & ~np.isnan(want) | np.isnan(want) & np.signbit(got))


@pytest.mark.parametrize("limit", TARGETS)
def test_every_half_converts_exactly(limit):
    x = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    wide = run("cast", TARGETS[limit], "float32", x, attrs=(("dtype", "float32"),))
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    np.testing.assert_array_equal(run("cast", TARGETS[limit], "float16", wide, attrs=(("dtype", "float16"),)), x)
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        y = (rng.standard_normal(100000) * 10.0 ** rng.uniform(-9, 5, 100000)).astype(dtype)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run("cast", TARGETS[limit], "float16", y, attrs=(("dtype", "float16"),)), y.astype(np.float16))


@pytest.mark.parametrize("limit", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "float16"])
def test_copies_of_any_layout(dtype, limit):
    spec = region(2, [dtype], [], [0])
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 300), (70, 65), (130, 40), (0, 4), (4, 0)):
        x = rng.integers(0, 2, shape).astype(dtype)
        for source in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1, ::-1]):
            for out in (np.zeros(shape, dtype), np.zeros(shape[::-1], dtype).T):
                harness.call(spec, [source, out], shape, TARGETS[limit])
                np.testing.assert_array_equal(out, source)
