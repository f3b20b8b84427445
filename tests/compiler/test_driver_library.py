"""Ops with library kernels, and those the driver makes of copies."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest
from driver_harness import OPS, Build, Dim, Left, Program_, Scalar, Tensor, Value, dim

from bcvm.compiler import abi
from bcvm.errors import Unsupported


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype("float32")


def library(b: Build, name: str, operands: list[Value], dims: list[object], dtype: str = "float32", **attrs: object) -> Value:
    st = b.state(*(i.value for i in b.graph.inputs))
    return b.node("op", operands, [b.value(Tensor("numpy", dtype, tuple(map(dim, dims))))], st, op=OPS[name], attrs=attrs)


@pytest.mark.parametrize(("ra", "rb"), [(2, 2), (1, 2), (2, 1), (1, 1), (3, 2), (3, 3), (2, 4)])
def test_matmul_of_every_rank(ra: int, rb: int) -> None:
    b = Build()
    x, y = b.array("float32", ra, "x"), b.array("float32", rb, "y")
    st = b.state(x, y)
    b.check("eq", x.type.dims[-1], y.type.dims[-2 if rb > 1 else 0], st)
    batch = max(ra, rb, 2) - 2
    out: list[object] = [Dim.symbol("none")] * 0
    xs, ys = x.type.dims[:-2], y.type.dims[:-2]
    for i in range(batch, 0, -1):
        a = xs[-i] if i <= len(xs) else dim(1)
        c = ys[-i] if i <= len(ys) else dim(1)
        b.check("bcast", a, c, st)
        from driver_harness import broadcast
        out.append(broadcast(a, c))
    out += [*x.type.dims[-2:-1], *(y.type.dims[-1:] if rb > 1 else ())]
    b.ret(b.op("relu", library(b, "matmul", [x, y], out)))
    p = Program_(b.graph)
    for batches in ((2, 3), (1, 3)):
        x_ = floats(*(batches * 2)[:ra - 2], 4, 5) if ra > 1 else floats(5)
        y_ = floats(*((7,) * rb)[:max(rb - 3, 0)], *(x_.shape[:1] if ra == 3 else (2,))[:max(rb - 2, 0)], 5, 6) if rb > 1 else floats(5)
        np.testing.assert_allclose(p(x_, y_), np.maximum(x_ @ y_, 0), rtol=1e-4, atol=1e-5)


def test_take_leaves_where_an_index_is_out_of_range() -> None:
    b = Build()
    x, i = b.array("float32", 2, "x"), b.array("int64", 1, "i")
    b.ret(library(b, "take", [x, i], [i.type.dims[0], x.type.dims[1]], axis=0))
    p = Program_(b.graph)
    v = floats(4, 3)
    np.testing.assert_array_equal(p(v, np.array([0, -1, 2])), v[[0, -1, 2]])
    with pytest.raises(Left) as left:
        p(v, np.array([0, 4]))
    assert left.value.reason == "kernel" and left.value.values[0] is v


def test_pad_full_and_arange() -> None:
    b = Build()
    x, n = b.array("float32", 2, "x"), b.input(Scalar("int"))
    m, k = x.type.dims
    b.check("le", 0, n.dim, b.state(x, n))
    start, step = b.node("fill", [n], [b.value(Tensor("numpy", "int64", ()))]), b.full(3, "int64")
    b.ret(library(b, "pad", [x], [m + 3, k + 1], pads=((1, 2), (0, 1)), value=1.5), library(b, "arange", [start, step], [n.dim], "int64"),
          library(b, "full", [b.full(2.5, "float32")], [2, n.dim]))
    p = Program_(b.graph)
    v = floats(3, 4).T
    for n_ in (0, 1, 6):
        padded, numbers, full = p(v, n_)
        np.testing.assert_array_equal(padded, np.pad(v, ((1, 2), (0, 1)), constant_values=1.5))
        np.testing.assert_array_equal(numbers, n_ + 3 * np.arange(n_))
        np.testing.assert_array_equal(full, np.full((2, n_), 2.5, "f4"))


@pytest.mark.parametrize("shapes", [((3, 4, 5), (4, 5)), ((3, 4, 5), (1, 5)), ((3, 4, 5), (4, 1)), ((3, 4, 5), (1, 1)), ((3, 1, 5), (1, 5)), ((0, 4, 5), (4, 1))])
def test_sum_to_is_the_gradient_of_broadcasting(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    b = Build()
    g, like = b.array("float32", 3, "g"), b.array("float32", 2, "like")
    b.ret(library(b, "sum_to", [g, like], list(like.type.dims)))
    p = Program_(b.graph)
    for data in (floats(*shapes[0]), floats(*(2 * s for s in shapes[0]))[::2, ::2, ::2]):
        want = OPS["sum_to"].reference(data, np.zeros(shapes[1]))
        np.testing.assert_allclose(p(data, floats(*shapes[1])), want, rtol=1e-5, atol=1e-6)


def test_what_has_no_kernel_is_unsupported() -> None:
    b = Build()
    x = b.array("float32", 2, "x")
    m, k = x.type.dims
    b.ret(library(b, "conv2d", [x, x], [m, k], stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1))
    with pytest.raises(Unsupported):
        Program_(b.graph)


def test_matmul_memory_is_released_in_a_loop() -> None:
    """A product per iteration: buffers are used again."""
    from driver_harness import Jump

    from bcvm.compiler.runtime import runtime
    b = Build()
    x, n = b.array("float32", 2, "x"), b.input(Scalar("int"))
    m, k = x.type.dims
    b.check("eq", m, k, b.state(x, n))
    i, h = b.value(Scalar("int")), b.value(Tensor("numpy", "float32", (m, k)))
    i.dim = Dim.symbol(f"i{i.id}")
    head, body, after = b.new_block([i, h], loop=True), b.new_block(), b.new_block()
    head.state = b.state(x, n, i, h)
    b.jump(head, b.number(0), x)
    b.block = head
    b.branch(b.scalar("lt", i, n, kind="bool"), Jump(body, ()), Jump(after, ()))
    b.block = body
    y = library(b, "matmul", [h, x], [m, k])
    b.jump(head, b.scalar("add", i, b.number(1), state=head.state), b.op("tanh", y))
    b.block = after
    b.ret(h)
    p = Program_(b.graph)
    v = floats(6, 6)
    with runtime().context() as ctx:
        got = p.run(ctx, v, 500)
        held = ctypes.c_uint64.from_address(ctx + 8 * abi.CTX_BUMP).value
        p.run(ctx, v, 5000)
        assert ctypes.c_uint64.from_address(ctx + 8 * abi.CTX_BUMP).value == held
    assert np.isfinite(got).all()
    np.testing.assert_allclose(p(v, 2), np.tanh(np.tanh(v @ v) @ v), rtol=1e-4, atol=1e-5)
    assert p(v, 0) is v
