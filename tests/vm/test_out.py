"""Results written into arrays that the caller gives: `out=`, and regions stored straight into their target."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm

WAYS = [{"tier": "interpret"}, {"tier": "full", "background": False}, {"tier": "full", "background": False, "exits": "all"},
        {"tier": "full", "background": False, "fusion": False}]


def array(*sizes, dtype="float32"):
    return (np.arange(1, 1 + int(np.prod(sizes)), dtype=dtype) % 17 - 5).reshape(sizes)


def keyword(x, y, z):
    return np.multiply(x, y, out=z)


def positional(x, y, z):
    return np.add(x * 2, y, z)


def tuple_of_one(x, y, z):
    np.subtract(x, y, out=(z,))
    return z


def chain(x, y, z):
    np.multiply(x, y, out=z)
    z += x
    np.maximum(z, 0, out=z)
    return z


def clipped(x, y, z):
    return np.clip(x + y, -2, 3, out=z)


def normalised(x, y, z):
    z[...] = (x - x.max(-1, keepdims=True)) * y
    return z


def softmax_in_place(x, y, z):
    e = np.exp(x - x.max(-1, keepdims=True))
    x[...] = e / e.sum(-1, keepdims=True)
    return x


def rows_reversed_onto_themselves(x, y, z):
    x[::-1] = x - x.sum(-1, keepdims=True)
    return x


FUNCTIONS = [keyword, positional, tuple_of_one, chain, clipped, normalised, softmax_in_place, rows_reversed_onto_themselves]


def compare(f, arguments, **options):
    g = bcvm.jit(f, **options)
    for _ in range(2):
        for args in arguments:
            expected_args, given = [a.copy() for a in args], [a.copy() for a in args]
            expected = f(*expected_args)
            result = g(*given)
            places = [i for i, a in enumerate(given) if a is result]
            assert places == [i for i, a in enumerate(expected_args) if a is expected]
            np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-6)
            for got, want in zip(given, expected_args, strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    return g


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_given_array_is_written_and_returned(f, options):
    compare(f, [(array(3, 5), array(3, 5)[::-1].copy(), np.empty((3, 5), "float32")), (array(1, 1), array(1, 1), np.empty((1, 1), "float32")),
                (array(0, 4), array(0, 4), np.empty((0, 4), "float32"))], **options)


@pytest.mark.parametrize("f", [keyword, positional, chain, clipped], ids=lambda f: f.__name__)
def test_what_is_written_natively_needs_no_interpreter(f):
    g = compare(f, [(array(4, 6), array(4, 6), np.empty((4, 6), "float32"))], tier="full", background=False)
    assert g.stats()["native"] == 2, g.stats()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_larger_array_gets_the_result_broadcast_as_numpy_does(options):
    compare(keyword, [(array(5), array(5), np.empty((5,), "float32"))], **options)
    compare(keyword, [(array(1, 5), array(1, 5), np.empty((4, 5), "float32"))], **options)
    compare(keyword, [(array(3, 1), array(1, 5), np.empty((3, 5), "float32"))], **options)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_results_are_cast_and_strided_targets_filled(options):
    g = bcvm.jit(keyword, **options)
    z = np.zeros((6, 10), "float64")
    for _ in range(2):
        assert g(array(3, 5), array(3, 5), z[::2, 1::2]).base is z
    expected = np.zeros_like(z)
    expected[::2, 1::2] = array(3, 5) ** 2
    assert np.array_equal(z, expected)


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("case", ["shift", "reverse", "transpose", "broadcast operand"])
def test_operands_that_overlap_the_target_are_read_before_they_change(options, case):
    g = bcvm.jit(keyword, **options)
    for _ in range(2):
        ours, numpys = (array(6, 6) for _ in range(2))
        for f, a in ((g, ours), (keyword, numpys)):
            other = array(6, 6) % 3
            if case == "shift":
                f(a[:-1], other[1:], a[1:])
            elif case == "reverse":
                f(a[::-1], other, a)
            elif case == "transpose":
                f(a.T, other, a)
            else:
                f(a[2:3], other, a)
        assert np.array_equal(ours, numpys)


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("z", [np.empty((3, 4), "float32"), np.empty((2, 3, 6), "float32"), np.empty(5, "float32"), np.empty((1, 5), "float32"), np.empty((3, 5), "int32")],
                         ids=["columns", "rank 3", "rank 1", "one row", "int32"])
def test_an_array_that_does_not_fit_is_numpys_error(options, z):
    g, x = bcvm.jit(keyword, **options), array(3, 5)
    with pytest.raises(Exception) as expected:
        keyword(x, x, z)
    for _ in range(2):
        with pytest.raises(type(expected.value)):
            g(x, x, z)
    read_only = np.empty((3, 5), "float32")
    read_only.flags.writeable = False
    for _ in range(2):
        with pytest.raises(ValueError):
            g(x, x, read_only)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_reductions_products_and_joins_take_an_array_of_their_own_sizes(options):
    def f(x, rows, columns, product, joined, taken):
        np.sum(x, axis=1, out=rows)
        x.max(axis=0, out=columns)
        np.matmul(x, x.T, out=product)
        np.concatenate([x, x], 0, out=joined)
        np.take(x, [1, 0], 1, out=taken)
        return rows, columns
    compare_all = [(array(3, 5), np.empty(3, "float32"), np.empty(5, "float32"), np.empty((3, 3), "float32"), np.empty((6, 5), "float32"), np.empty((3, 2), "float32"))]
    g = bcvm.jit(f, **options)
    for _ in range(2):
        for args in compare_all:
            want, got = [a.copy() for a in args], [a.copy() for a in args]
            f(*want)
            result = g(*got)
            assert result[0] is got[1] and result[1] is got[2]
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
        with pytest.raises(ValueError):
            g(array(3, 5), np.empty(4, "float32"), *compare_all[0][2:])
