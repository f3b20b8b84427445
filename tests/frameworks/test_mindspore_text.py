"""What text models do: generation with a growing cache, flags of configurations, comprehensions, tensors of numbers, casts, places by arrays."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import mindspore as ms  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

import bcvm  # noqa: E402
import bcvm.mindspore  # noqa: E402
from bcvm.vm.compile_thread import thread  # noqa: E402


@pytest.fixture(autouse=True)
def mode():
    bcvm.mindspore.enable()
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)
    bcvm.mindspore.disable()


def flat(result):
    return [a for r in result for a in flat(r)] if isinstance(result, (tuple, list)) else [result]


def same(a, b):
    for x, y in zip(flat(a), flat(b), strict=True):
        if isinstance(y, Tensor):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_allclose(x.asnumpy(), y.asnumpy(), rtol=1e-5, atol=1e-6)
        else:
            assert type(x) is type(y) and x == y


def check(cell, *calls):
    """The cell stays in native code from its first call on, gives what PyNative gives, and compiles once for all these calls."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    wanted = [cell(*args) for args in calls]
    fast = bcvm.jit(cell, background=False, compile_timeout_ms=60_000)
    for args, want in zip(calls, wanted, strict=True):
        same(fast(*args), want)
    stats = fast.stats()
    assert stats["native"] == len(calls), (stats["exits"], stats["fallbacks"])
    assert (stats["compiles"], stats["recompiles"]) == (1, 0) and not stats["exits"]
    return fast


def floats(*shape):
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def test_generation_with_a_growing_cache_stays_native_and_compiles_nothing_for_a_length() -> None:
    from mindspore_generation import generate, make
    sizes = {"words": 50, "width": 32, "heads": 4, "depth": 2, "longest": 64}
    prompt = Tensor(np.array([[3, 1, 4, 1, 5]], np.int32))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    _, wanted = generate(make(**sizes), prompt, 16)
    ms.set_context(mode=ms.BYTECODE_VM)
    net = make(**sizes)
    token, past = net(prompt, None)  # the two kinds of call: without a cache, and with one
    net(token, past)
    function, = bcvm.mindspore.functions()
    function.warmup((prompt, None), (token, past))
    thread.idle()
    before = bcvm.mindspore.counters()
    _, got = generate(net, prompt, 16)
    after = bcvm.mindspore.counters()
    assert [t.tolist() for t in got] == [t.tolist() for t in wanted]
    assert after["native"] - before["native"] == 16 and after["compiles"] == before["compiles"] and after["recompiles"] == 0


class Config:
    """Reads of attributes go through a function, as those of transformers' configurations do."""

    names = {"width": "size"}

    def __init__(self) -> None:
        self.size, self.states, self.cache = 8, False, True

    def __getattribute__(self, key):
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)


class Stack(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.layers = Config(), nn.CellList([nn.Dense(8, 8) for _ in range(3)])

    def construct(self, x, states=None, cache=None):
        states = states if states is not None else self.config.states
        cache = cache if cache is not None else self.config.cache
        seen = () if states else None
        caches = () if cache else None
        for layer in self.layers:
            if states:
                seen += (x,)
            x = layer(x) * self.config.width**-0.5
            if cache:
                caches = caches + ((x, x + 1),)
        return tuple(v for v in [x, caches, seen] if v is not None)


def test_flags_that_decide_the_types_of_variables_give_one_program() -> None:
    net = Stack()
    fast = check(net, (floats(2, 8),), (floats(5, 8),))
    assert not [line for line in fast.explain(floats(2, 8)).callbacks if "unsupported" in line]
    net.config.states = True  # another program, and the right one
    want = Stack.construct(net, floats(3, 8))
    same(fast(floats(3, 8)), want)
    same(fast(floats(4, 8), False), Stack.construct(net, floats(4, 8), False))


class Lists(nn.Cell):
    def construct(self, xs, k=2):
        v = k
        doubled = [x * v for x in xs]
        some = [x for x in doubled if x.shape[-1] > 1]
        pairs = [(i, j) for i, (j, _) in enumerate([(3, 1), (4, 2)]) if i < 1]
        return tuple(doubled), len(some), tuple(pairs), any(x is None for x in xs), all(x is not None for x in xs), v


def test_comprehensions_are_part_of_native_code() -> None:
    net = Lists()
    check(net, ([floats(2, 3), floats(4)],), ([floats(7, 5), floats(9)],))


class Numbers(nn.Cell):
    def construct(self, x, n):
        return (x * Tensor(2.0 / 3), Tensor([64504]), Tensor([[1, 2.5], [n, 4]]), Tensor(n, ms.float32) / x.shape[0], ms.tensor(7), Tensor(x.shape[0]),
                Tensor((True, False)), Tensor(2.7, ms.int32), x.type_as(Tensor([1], ms.float16)), ms.tensor(x, ms.float16))


def test_tensors_of_numbers() -> None:
    net = Numbers()
    check(net, (floats(2, 3), 5), (floats(4, 3), 9))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_floating_point_to_integers_as_mindspore_does_it(source: str, dtype: str) -> None:
    values = [1.5, -2.9, 300.0, 7e4, -7e4, 2.0**31, -(2.0**31), 3e9, 2.0**33, 2.0**63, -1e20, np.inf, -np.inf, np.nan, -1.0, 0.7]
    with np.errstate(over="ignore"):
        x = Tensor(np.array(values).astype(source))

    class Net(nn.Cell):
        def construct(self, x):
            return x.astype(getattr(ms, dtype))
    check(Net(), (x,), (x[:3],))


class Places(nn.Cell):
    def construct(self, x, i, j):
        return x[i, j], x[ops.arange(x.shape[0]), j[: x.shape[0]]]


def test_places_given_by_an_array_for_each_axis() -> None:
    net = Places()
    check(net, (floats(2, 5, 3), Tensor([0, 1, -1]), Tensor([4, -5, 0], ms.int32)), (floats(3, 6, 2), Tensor([2, 0, 1]), Tensor([5, -6, 1], ms.int32)))
    fast = bcvm.jit(net, background=False, compile_timeout_ms=60_000)
    for i in (Tensor([0, 2]), Tensor([-3, 0])):
        for _ in range(2):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                fast(floats(2, 5, 3), i, Tensor([1, 1]))[0].asnumpy()


class Typed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Dense(4, 4), nn.LayerNorm((4,))
        self.wanted = ms.float16

    def construct(self, x):
        dtype = next_dtype(self)
        mask = (1.0 - (x > 0).to(dtype)) * (-1e4 if dtype == ms.float32 else -1.0)
        return self.dense(x) + mask, x.astype(self.wanted), dtype != ms.float16


def next_dtype(cell):
    for p in cell.get_parameters():
        if p.is_floating_point():
            return p.dtype
    return None


def test_dtypes_of_parameters_and_their_comparison() -> None:
    net = Typed()
    fast = check(net, (floats(2, 4),), (floats(3, 4),))
    net.wanted = ms.float64
    same(fast(floats(2, 4)), net.construct(floats(2, 4)))  # a dtype is a constant: another one is another program
    net.extra = ms.Parameter(Tensor([1.0], ms.float64), name="extra")  # now the first parameter
    same(fast(floats(2, 4)), net.construct(floats(2, 4)))


class Counts(nn.Cell):
    def construct(self, x, keep=True):
        mask = (x != 1).int()
        y = ops.cumsum(mask, axis=1).type_as(mask) * mask
        if keep is True:
            y = y + 1
        return y.long(), x.cumsum(0), isinstance(x, Tensor), isinstance(x, (list, tuple))


def test_running_sums_of_integers_and_identity_of_flags() -> None:
    x = Tensor(np.array([[5, 1, 7], [1, 1, 2]], np.int32))
    check(Counts(), (x,), (x[:1],))
    check(Counts(), (x, False), (x[:1], True))


class Splits(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.width = nn.Dense(4, 6), 2

    def construct(self, x):
        return tuple(part + 1 for part in self.dense(x).split(self.width, axis=1))


def test_a_split_of_what_a_weight_gives_by_a_number_that_was_captured() -> None:
    check(Splits(), (floats(2, 4),), (floats(5, 4),))


class Stores(nn.Cell):
    def construct(self, x, n):
        y = x + 0
        old, same_memory = y.reshape(-1), y[0]
        alias = y
        y[0, 1:] = 7
        y[:, n] = x[:, 0] * 2
        y[-1] = Tensor(1.5)
        before = same_memory + old[:1]
        y[y > 6] = 0  # other memory: `old` and `same_memory` keep what there was, `alias` is the same object
        alias[0, 0] = 3
        z = ops.zeros((2, 2), ms.int32)
        z[1] = n
        return y, old, same_memory, before, alias is y, z, x


def test_stores_into_tensors_made_here_are_seen_by_their_views_and_those_under_a_mask_are_not() -> None:
    check(Stores(), (floats(3, 4), 2), (floats(5, 6), 3))


class StoresIntoArgument(nn.Cell):
    def construct(self, x):
        x[0] = 1
        return x * 2


def test_a_store_into_an_argument_is_seen_outside() -> None:
    fast = bcvm.jit(StoresIntoArgument(), background=False, compile_timeout_ms=60_000)
    for _ in range(3):
        x = floats(3, 2)
        y = fast(x)
        assert x[0].asnumpy().tolist() == [1, 1] and y[0].asnumpy().tolist() == [2, 2]
