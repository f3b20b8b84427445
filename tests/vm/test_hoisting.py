"""Work moved out of loops: the same results, the same errors, the same effects; and that it is moved."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm
from bcvm.compiler import compile as compiler
from bcvm.compiler.hoist import hoist

FULL = {"tier": "full", "background": False}
WAYS = [FULL, {**FULL, "exits": "all"}, {**FULL, "exits": "random", "seed": 3}, {**FULL, "fusion": False}]
RNG = np.random.default_rng(11)


def a(*sizes, dtype="float32"):
    return RNG.standard_normal(sizes).astype(dtype)


def recurrent(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w + b + h @ u)
    return h


def over_the_tensor(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for row in x:
        h = np.tanh(row @ w + b + h @ u)
    return h


def with_while(x, w, u, b):
    t, h = 0, np.zeros((x.shape[1], u.shape[0]), np.float32)
    while t < len(x):
        h = np.tanh((x[t] @ w) * 2 + b + h @ u)
        t += 1
    return h


def batch_first(x, w, u, b):
    h = np.zeros((x.shape[0], u.shape[0]), np.float32)
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w + b + h @ u)
    return h


def vectors(x, w, u, b):
    h = np.zeros(u.shape[0], np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t, 0] @ w + h @ u)
    return h


def transposed_weights(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w.T.T + b + h @ u.T)
    return h


def outputs_stored(x, w, u, b):
    out = np.empty((x.shape[0], x.shape[1], u.shape[0]), np.float32)
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w + b + h @ u)
        out[t] = h
    return out


def inputs_overwritten(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        h = np.tanh(x[t] @ w + b + h @ u)
        x[t] = 0.5
        w[0, 0] = t
    return h


def two_layers(x, w, u, b):
    total = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for k in range(3):
        h = np.zeros((x.shape[1], u.shape[0]), np.float32)
        for t in range(x.shape[0]):
            h = np.tanh(x[t] @ w + h @ u)
        total = total + h * k
    return total


def only_some_rounds(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        if t % 2:
            h = h + x[t] @ w
    return h


def until_found(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        h = h + x[t] @ w
        if h.sum() > 1:
            break
    return h


def part_of_the_rows(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0] - 1):
        h = h + x[t] @ w + x[t + 1] @ w
    return h


def wholly_fixed(x, w, u, b):
    h = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for _ in range(4):
        h = np.tanh(h @ u + x[0] @ w + np.exp(b).sum() + np.exp(b))
    return h


def loop_value_kept(x, w, u, b):
    g = np.zeros((x.shape[1], u.shape[0]), np.float32)
    for t in range(x.shape[0]):
        g = x[t] @ w
    return g


FUNCTIONS = [recurrent, over_the_tensor, with_while, batch_first, vectors, transposed_weights, outputs_stored, inputs_overwritten, two_layers, only_some_rounds,
             until_found, part_of_the_rows, wholly_fixed, loop_value_kept]


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_those_of_the_loop_as_written(f, options):
    g = bcvm.jit(f, **options)
    for steps, batch in [(5, 3), (1, 1), (9, 2), (2, 17)]:
        arguments = [a(steps, batch, 8) if f is not batch_first else a(batch, steps, 8), a(8, 6) * 0.3, a(6, 6) * 0.3, a(6)]
        ours, pythons = [v.copy() for v in arguments], [v.copy() for v in arguments]
        np.testing.assert_allclose(g(*ours), f(*pythons), rtol=2e-5, atol=2e-5)
        for got, want in zip(ours, pythons, strict=True):
            assert np.array_equal(got, want)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_loop_without_rounds_demands_nothing_of_its_operands(options):
    g = bcvm.jit(recurrent, **options)
    for x, w in [(a(0, 3, 8), a(8, 6)), (a(0, 3, 8), a(5, 6)), (a(2, 0, 8), a(8, 6))]:
        assert np.array_equal(g(x, w, a(6, 6), a(6)), recurrent(x, w, a(6, 6), a(6)))


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("w, b", [((5, 6), (6,)), ((8, 6), (4,)), ((8, 7), (6,))], ids=["inner size", "bias", "sum"])
def test_an_operand_that_does_not_fit_is_pythons_error(options, w, b):
    g, x, u = bcvm.jit(recurrent, **options), a(3, 2, 8), a(6, 6)
    with pytest.raises(ValueError) as expected:
        recurrent(x, a(*w), u, a(*b))
    for _ in range(2):
        with pytest.raises(ValueError, match=str(expected.value).split("(")[0].split(":")[0][:20]):
            g(x, a(*w), u, a(*b))


@pytest.mark.parametrize("f, moved", [(recurrent, 1), (over_the_tensor, 1), (with_while, 1), (batch_first, 1), (transposed_weights, 1), (outputs_stored, 1), (two_layers, 1),
                                      (loop_value_kept, 1), (inputs_overwritten, 0), (only_some_rounds, 0), (until_found, 0), (part_of_the_rows, 0)],
                         ids=lambda v: getattr(v, "__name__", v))
def test_products_of_one_item_a_round_become_one_product(f, moved, monkeypatch):
    seen = []
    monkeypatch.setattr(compiler, "hoist", lambda graph: (hoist(graph), seen.append(graph))[0])
    g = bcvm.jit(f, **FULL)
    g(a(4, 4, 8), a(8, 6), a(6, 6), a(6))
    graph = next(s for s in seen if s.name.startswith(f.__name__))
    before_loops = next(i for i, b in enumerate(graph.blocks) if b.loop)
    products = [n for b in graph.blocks[:before_loops] for n in b.nodes if n.op == "op" and n.attrs["op"].name == "matmul"]
    assert len(products) == moved, str(graph)


def test_what_has_a_size_that_a_round_finds_stays_in_the_loop():
    def positive(x, n):
        y, i = x, 0
        while i < n:
            i += 1
            y = x[x > 0]
        return y * 2

    def counted(x, n):
        total = 0
        for i in range(n):
            k = int(x.sum()) % 3 + i
            total = total + np.full((k, 2), x[0]).sum() + np.arange(k).sum()
        return total

    for fn in (positive, counted):
        for way in WAYS:
            jitted = bcvm.jit(fn, **way)
            for n in (0, 1, 3, 3):
                x = np.arange(9, dtype=np.int32) - 4
                np.testing.assert_array_equal(jitted(x, n), fn(x, n))
            assert not jitted.stats()["errors"]
