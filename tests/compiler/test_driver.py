"""Straight-line graphs: regions, broadcasting, reductions, views, stores, exits, identities of results."""
from __future__ import annotations

import gc
import itertools
import sys

import numpy as np
import pytest
from driver_harness import Build, Left, Program_, dim

from bcvm.compiler.compile import show_plan
from bcvm.shapes.dim import Dim
from bcvm.specialise.types import Scalar, Tensor


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return rng().standard_normal(shape).astype("float32")


def small() -> tuple[Build, Program_]:
    b = Build()
    x, y = b.array("float32", 2, "x"), b.array("float32", 2, "y")
    b.check_broadcast(x, y, b.state(x, y))
    b.ret(b.op("relu", b.op("mul", b.op("add", x, y), b.full(2.0, "float32"))))
    return b, Program_(b.graph)


def test_elementwise_is_one_region() -> None:
    _, p = small()
    assert len(p.compiled.regions) == 1
    assert "[FUSED 3 ops]" in show_plan(p.compiled) and "policy_005" in show_plan(p.compiled)
    for xs, ys in (((3, 5), (3, 5)), ((3, 5), (1, 5)), ((1, 5), (3, 1)), ((0, 5), (1, 5)), ((1, 1), (4, 7)), ((1, 0), (3, 1))):
        x, y = floats(*xs), floats(*ys)
        np.testing.assert_array_equal(p(x, y), np.maximum((x + y) * 2, 0))
    x, y = floats(8, 10)[::2, ::-2], np.asfortranarray(floats(4, 5))
    np.testing.assert_array_equal(p(x, y), np.maximum((x + y) * 2, 0))


def test_shape_mismatch_leaves_with_the_state() -> None:
    _, p = small()
    x, y = floats(3, 5), floats(2, 5)
    with pytest.raises(Left) as left:
        p(x, y)
    assert left.value.reason == "check" and left.value.values[0] is x and left.value.values[1] is y


def test_results_are_not_leaked() -> None:
    _, p = small()
    r = p(floats(3, 5), floats(3, 5))
    assert sys.getrefcount(r) == 2 and r.flags.owndata and r.flags.c_contiguous


def test_number_operands() -> None:
    b = Build()
    x, k = b.array("float32", 1), b.input(Scalar("float"))
    i, t = b.input(Scalar("int")), b.input(Scalar("bool"))
    boxes = [b.op("cast", v, dtype="float32") for v in (k, i, t)]
    y = x
    for v in boxes:
        y = b.op("add", y, v)
    b.ret(y)
    p = Program_(b.graph)
    x_ = floats(9)
    np.testing.assert_array_equal(p(x_, 0.5, 3, True), ((x_ + np.float32(0.5)) + np.float32(3)) + np.float32(1))


@pytest.mark.parametrize("form", ["softmax", "layer_norm"])
def test_row_programs_are_one_region(form: str) -> None:
    b = Build()
    x = b.array("float32", 3)
    if form == "softmax":
        e = b.op("exp", b.op("sub", x, b.op("max", x, axis=(2,), keepdims=True)))
        out = b.op("truediv", e, b.op("sum", e, axis=(2,), keepdims=True))
    else:
        n = b.op("cast", b.node("dim", (), [b.value(Scalar("int"), x.type.dims[2])], dim=x.type.dims[2]), dtype="float32")
        mean = b.op("truediv", b.op("sum", x, axis=(2,), keepdims=True), n)
        c = b.op("sub", x, mean)
        var = b.op("truediv", b.op("sum", b.op("square", c), axis=(2,), keepdims=True), n)
        out = b.op("truediv", c, b.op("sqrt", b.op("add", var, b.full(1e-5, "float32"))))
    b.ret(out)
    p = Program_(b.graph)
    assert len(p.compiled.regions) == 1, show_plan(p.compiled)
    assert p.compiled.regions[0].policy == "policy_003"
    for shape in ((2, 3, 40), (1, 1, 1), (3, 2, 17), (0, 2, 3)):
        v = floats(*shape)
        for data in (v, np.ascontiguousarray(v.transpose(2, 0, 1)).transpose(1, 2, 0)):
            if form == "softmax":
                e64 = np.exp(data - data.max(-1, keepdims=True)) if data.size else data
                want = e64 / e64.sum(-1, keepdims=True)
            else:
                want = (data - data.mean(-1, keepdims=True)) / np.sqrt(data.var(-1, keepdims=True) + 1e-5) if data.size else data
            np.testing.assert_allclose(p(data), want, rtol=2e-5, atol=2e-6)


def test_a_norm_with_weights_is_one_region_where_sizes_allow() -> None:
    """Whether a weight has the row's size is known at run time: fused where it has, split where it broadcasts the row."""
    b = Build()
    x, g, c = b.array("float32", 2, "x"), b.array("float32", 1, "g"), b.array("float32", 1, "c")
    st = b.state(x, g, c)
    d = b.op("sub", x, b.op("max", x, axis=(1,), keepdims=True))
    b.check_broadcast(d, g, st)
    y = b.op("mul", d, g)
    b.check_broadcast(y, c, st)
    z = b.op("add", y, c)
    b.ret(d, z, b.op("sum", z, axis=(1,)))
    p = Program_(b.graph)
    assert len(p.compiled.regions) == 1 and "[SPLIT where" in show_plan(p.compiled)
    for n, gs, cs in ((5, 5, 5), (5, 1, 5), (5, 1, 1), (1, 5, 1), (1, 1, 5), (1, 5, 5)):
        x_, g_, c_ = floats(3, n), floats(gs), floats(cs)
        got = p(x_, g_, c_)
        d_ = x_ - x_.max(1, keepdims=True)
        np.testing.assert_array_equal(got[0], d_)
        np.testing.assert_allclose(got[1], d_ * g_ + c_, rtol=1e-6)
        np.testing.assert_allclose(got[2], (d_ * g_ + c_).sum(1), rtol=1e-5, atol=1e-6)
    with pytest.raises(Left):
        p(floats(3, 5), floats(4), floats(5))


ALL_AXES = [axes for n in (1, 2, 3) for k in range(1, n + 1) for axes in ((n, a) for a in itertools.combinations(range(n), k))]


@pytest.mark.parametrize(("rank", "axes"), ALL_AXES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_over_every_choice_of_axes(rank: int, axes: tuple[int, ...], keepdims: bool) -> None:
    b = Build()
    x = b.array("float32", rank)
    s = b.op("sum", b.op("mul", x, x), axis=axes, keepdims=keepdims)
    b.ret(b.op("mul", s, b.full(0.5, "float32")), b.op("max", x, axis=axes, keepdims=keepdims))
    p = Program_(b.graph)
    shape = (3, 4, 5)[:rank]
    v = floats(*shape)
    for data in (v, v.T.copy().T, floats(6, 8, 10)[tuple(slice(None, None, 2) for _ in range(rank)) + (0,) * (3 - rank)] if rank < 3 else floats(6, 8, 10)[::2, ::2, ::-2]):
        got = p(data)
        np.testing.assert_allclose(got[0], (data * data).sum(axes, keepdims=keepdims) * 0.5, rtol=1e-5)
        np.testing.assert_array_equal(got[1], data.max(axes, keepdims=keepdims))


def test_reduced_axes_that_do_not_merge_are_copied() -> None:
    b = Build()
    x, w = b.array("float32", 3, "x"), b.array("float32", 2, "w")
    st = b.state(x, w)
    b.check("eq", x.type.dims[1], w.type.dims[0], st)
    b.check("bcast", x.type.dims[2], w.type.dims[1], st)
    x2 = b.op("mul", x, w)
    d = b.op("sub", x2, b.op("max", x2, axis=(1, 2), keepdims=True))
    b.ret(d)
    p = Program_(b.graph)
    for ws in ((4, 5), (4, 1)):
        x_, w_ = floats(3, 4, 10)[:, :, ::2], floats(*ws)
        y = x_ * w_
        np.testing.assert_array_equal(p(x_, w_), y - y.max((1, 2), keepdims=True))
        x_ = floats(4, 5, 3).transpose(2, 0, 1)
        y = x_ * w_
        np.testing.assert_array_equal(p(x_, w_), y - y.max((1, 2), keepdims=True))


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 1, 5), (3, 4, 1), (1, 4, 5), (1, 1, 5), (4, 1, 1), (1, 1, 1)])
def test_axes_of_size_one_merge_with_any_stride(shape: tuple[int, ...]) -> None:
    b = Build()
    x = b.array("float32", 3)
    wide = b.view(x, "expand", (*x.type.dims, 1), axis=3)
    b.ret(b.op("sum", x, axis=(0, 1, 2)), b.op("sum", x, axis=(0, 1)), b.op("max", wide, axis=(1, 2, 3)), b.op("max", wide, axis=(2, 3)))
    p = Program_(b.graph)
    big = floats(*(4 * n for n in shape))
    for step in itertools.product((1, 2, -3), repeat=3):
        v = big[tuple(slice(None, None, s) for s in step)][:shape[0], :shape[1], :shape[2]]
        for got, want in zip(p(v), (v.sum(), v.sum((0, 1)), v.max((1, 2)), v.max(2)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_one_element_per_row_stays_so_where_rows_are_short() -> None:
    b = Build()
    x, y = b.array("float32", 2, "x"), b.array("float32", 2, "y")
    st = b.state(x, y)
    b.check_broadcast(x, y, st)
    total = b.op("sum", b.op("concat", y, y, axis=1), axis=(1,), keepdims=True)
    b.ret(total, b.op("add", x, total))
    p = Program_(b.graph)
    for n in (1, 4):
        x_, y_ = floats(9, n), floats(9, n)
        np.testing.assert_allclose(p(x_, y_)[1], x_ + 2 * y_.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_reduction_of_everything_is_fused_with_what_uses_it(rank: int) -> None:
    b = Build()
    x = b.array("float32", rank)
    axes = tuple(range(rank))
    e = b.op("exp", b.op("sub", x, b.op("max", x, axis=axes)))
    s = b.op("sum", e, axis=axes)
    b.ret(b.op("truediv", e, s), s)
    p = Program_(b.graph)
    assert len(p.compiled.regions) == 1
    for shape in ((7, 3), (1, 1), (40, 2)):
        v = floats(*(2 * n for n in shape[:rank]))
        for data in (v, v[::2], v.T):
            e_ = np.exp(data - data.max())
            got = p(data)
            np.testing.assert_allclose(got[0], e_ / e_.sum(), rtol=1e-5)
            np.testing.assert_allclose(got[1], e_.sum(), rtol=1e-5)


def test_column_reduction_feeds_full_values() -> None:
    b = Build()
    x = b.array("float64", 2)
    m = b.op("max", x, axis=(0,), keepdims=True)
    e = b.op("exp", b.op("sub", x, m))
    b.ret(b.op("truediv", e, b.op("sum", e, axis=(0,), keepdims=True)))
    p = Program_(b.graph)
    v = rng().standard_normal((7, 33))
    e_ = np.exp(v - v.max(0))
    np.testing.assert_allclose(p(v), e_ / e_.sum(0), rtol=1e-13)


def test_branches_of_a_diamond_meet_in_one_region() -> None:
    b = Build()
    x, y = b.array("float32", 1, "x"), b.array("float32", 1, "y")
    b.check_broadcast(x, y, b.state(x, y))
    b.ret(b.op("mul", b.op("exp", x), b.op("exp", y)))
    p = Program_(b.graph)
    assert len(p.compiled.regions) == 1
    x_, y_ = floats(5), floats(1)
    np.testing.assert_allclose(p(x_, y_), np.exp(x_) * np.exp(y_), rtol=1e-6)


def test_a_small_result_that_is_returned_is_a_region_of_its_own() -> None:
    b = Build()
    x, y = b.array("float32", 1, "x"), b.array("float32", 2, "y")
    b.check_broadcast(x, y, b.state(x, y))
    a = b.op("mul", x, x)
    b.ret(a, b.op("add", a, y))
    p = Program_(b.graph)
    x_, y_ = floats(5), floats(3, 5)
    got = p(x_, y_)
    np.testing.assert_array_equal(got[0], x_ * x_)
    np.testing.assert_array_equal(got[1], x_ * x_ + y_)
    assert len(p.compiled.regions) == 2 and "[REJECTED]" in show_plan(p.compiled)


def test_a_check_on_data_stays_before_what_relies_on_it() -> None:
    """A size read from a tensor is checked; the kernel that needs the check does not run before it."""
    b = Build()
    x, n = b.array("float32", 1, "x"), b.array("int64", 0, "n")
    st = b.state(x, n)
    twice = b.op("mul", x, b.full(2.0, "float32"))
    size = Dim.opaque("size")
    count = b.node("item", [n], [b.value(Scalar("int"), size)], st)
    assert count.dim is size
    b.check("le", 0, size, st)
    ones = b.full(1.0, "float32", (size,))
    b.check("bcast", x.type.dims[0], size, st)
    b.ret(b.op("add", twice, ones))
    p = Program_(b.graph)
    np.testing.assert_array_equal(p(floats(4), np.array(4)), floats(4) * 2 + 1)
    np.testing.assert_array_equal(p(floats(1), np.array(3)), (floats(1) * 2 + 1).repeat(3))
    for bad in (3, -1):
        with pytest.raises(Left):
            p(floats(4), np.array(bad))


# -- views

def test_views_returned_share_memory() -> None:
    b = Build()
    x = b.array("float32", 2)
    m, n = x.type.dims
    y = b.op("add", x, x)
    b.ret(b.view(x, "transpose", (n, m), perm=(1, 0)), b.view(y, "slice", (n,), items=[("index", dim(1)), ("slice", dim(0), 1)]), y,
          b.view(y, "expand", (m, 1, n), axis=1), y, x)
    p = Program_(b.graph)
    v = floats(3, 4)
    count = sys.getrefcount(v)
    t, row, y_, wide, again, same = p(v)
    np.testing.assert_array_equal(t, v.T)
    np.testing.assert_array_equal(row, 2 * v[1])
    np.testing.assert_array_equal(wide, 2 * v[:, None])
    assert same is v and again is y_ and np.shares_memory(t, v) and np.shares_memory(row, y_) and np.shares_memory(wide, y_)
    assert t.base is v and row.base is y_
    del t, row, y_, wide, again, same
    assert sys.getrefcount(v) == count


def test_slices_with_negative_steps_and_broadcast_views() -> None:
    b = Build()
    x, k = b.array("float32", 2), b.input(Scalar("int"))
    m, n = x.type.dims
    r = b.view(x, "slice", (m, n - k.dim), items=[("slice", m - 1, -1), ("slice", k.dim, 1)])
    w = b.view(r, "broadcast", (2, m, n - k.dim))
    b.ret(b.op("add", w, r), w)
    p = Program_(b.graph)
    v = floats(3, 6)
    got = p(v, 2)
    want = np.broadcast_to(v[::-1, 2:], (2, 3, 4))
    np.testing.assert_array_equal(got[0], want + want)
    np.testing.assert_array_equal(got[1], want)
    assert got[1].base is v


def test_reshape_is_a_view_where_strides_allow() -> None:
    b = Build()
    x = b.array("float32", 2)
    m, n = x.type.dims
    b.ret(b.view(x, "reshape", (m * n,)))
    p = Program_(b.graph)
    v = floats(3, 4)
    count = sys.getrefcount(v)
    got = p(v)
    np.testing.assert_array_equal(got, v.reshape(-1))
    assert got.base is v
    got = p(v.T)
    np.testing.assert_array_equal(got, v.T.reshape(-1))
    assert not np.shares_memory(got, v)
    one = floats(5, 1)[::2]
    np.testing.assert_array_equal(p(one), one.reshape(-1))
    del got
    assert sys.getrefcount(v) == count


def test_concat() -> None:
    b = Build()
    x, y = b.array("float32", 2, "x"), b.array("float32", 2, "y")
    b.check("eq", x.type.dims[0], y.type.dims[0], b.state(x, y))
    z = b.op("relu", x)
    b.ret(b.op("concat", z, y, x, axis=1))
    p = Program_(b.graph)
    x_, y_ = floats(3, 2), floats(3, 8)[:, ::2]
    np.testing.assert_array_equal(p(x_, y_), np.concatenate([np.maximum(x_, 0), y_, x_], 1))
    np.testing.assert_array_equal(p(x_[:, :0], y_), np.concatenate([x_[:, :0], y_, x_[:, :0]], 1))


# -- stores

def test_store_with_overlap_reads_the_old_values() -> None:
    b = Build()
    x = b.array("float32", 1)
    n, = x.type.dims
    st = b.state(x)
    b.check("le", 1, n, st)
    b.node("store", [b.view(x, "slice", (n - 1,), items=[("slice", dim(1), 1)]), b.view(x, "slice", (n - 1,), items=[("slice", dim(0), 1)])])
    b.ret(x)
    p = Program_(b.graph)
    v = floats(50)
    want = v.copy()
    want[1:] = v[:-1].copy()
    assert p(v) is v
    np.testing.assert_array_equal(v, want)


def test_stores_stay_in_order_with_what_reads() -> None:
    b = Build()
    x = b.array("float32", 1)
    before = b.op("mul", x, b.full(1.0, "float32"))
    b.node("store", [x, b.full(3.0, "float32")])
    after = b.op("mul", x, b.full(1.0, "float32"))
    k = b.number(4.0)
    b.node("store", [b.view(x, "slice", (1,), items=[("slice", dim(0), 1)]), k])
    last = b.op("add", after, x)
    b.ret(before, after, last)
    p = Program_(b.graph)
    v = floats(6)
    old = v.copy()
    got = p(v)
    np.testing.assert_array_equal(got[0], old)
    np.testing.assert_array_equal(got[1], np.full(6, 3))
    np.testing.assert_array_equal(v, [4, 3, 3, 3, 3, 3])
    np.testing.assert_array_equal(got[2], 3 + v)


def test_a_region_is_stored_without_a_temporary_where_that_is_safe() -> None:
    b = Build()
    x, y = b.array("float32", 2, "x"), b.array("float32", 2, "y")
    m, n = x.type.dims
    b.check("eq", m, y.type.dims[0], b.state(x, y))
    b.check("eq", n, y.type.dims[1], b.state(x, y))
    b.node("store", [x, b.op("add", x, b.view(y, "broadcast", (m, n)))])
    b.ret(x)
    p = Program_(b.graph)
    assert "[IN PLACE]" in show_plan(p.compiled) and len(p.compiled.regions) == 1
    for same in range(4):
        x_ = floats(6, 6)
        y_ = [floats(6, 6) * 2, x_, x_.T, x_[::-1]][same]
        want = x_ + y_
        assert p(x_, y_) is x_
        np.testing.assert_array_equal(x_, want)
    base = floats(7, 6)
    want = base.copy()
    want[1:] = base[1:] + base[:-1]
    p(base[1:], base[:-1])
    np.testing.assert_array_equal(base, want)


def test_store_of_an_element_of_the_target_itself() -> None:
    b = Build()
    x = b.array("float64", 1)
    n, = x.type.dims
    b.check("lt", 2, n, b.state(x))
    b.node("store", [x, b.view(x, "slice", (), items=[("index", dim(2))])])
    b.ret(x)
    p = Program_(b.graph)
    v = np.arange(8.0)
    p(v)
    np.testing.assert_array_equal(v, np.full(8, 2.0))


def test_store_into_a_fresh_tensor_and_return_it() -> None:
    b = Build()
    x = b.array("float32", 1)
    n, = x.type.dims
    z = b.full(0.0, "float32", (2, n))
    c = b.node("copy", [x], [b.value(Tensor("numpy", "float32", (n,)))])
    b.node("store", [b.view(z, "slice", (n,), items=[("index", dim(1)), ("slice", dim(0), 1)]), c])
    b.ret(z, c)
    p = Program_(b.graph)
    v = floats(5)
    z_, c_ = p(v)
    np.testing.assert_array_equal(z_, np.stack([np.zeros(5, "f4"), v]))
    assert c_ is not v and not np.shares_memory(c_, v)


# -- exits, results

def test_exit_state_holds_computed_tensors() -> None:
    from driver_harness import Exit
    b = Build()
    x, k = b.array("float32", 2), b.input(Scalar("float"))
    m, n = x.type.dims
    y = b.op("add", x, x)
    row = b.view(y, "slice", (n,), items=[("index", dim(0)), ("slice", dim(0), 1)])
    i = b.scalar("int", k, state=b.state(x, k))
    b.block.end = Exit(b.state(x, y, k, row, i, b.view(x, "transpose", (n, m), perm=(1, 0))), "call_py")
    p = Program_(b.graph)
    v = floats(3, 4)
    count = sys.getrefcount(v)
    with pytest.raises(Left) as left:
        p(v, 2.5)
    x_, y_, k_, row_, i_, t_ = left.value.values
    assert left.value.reason == "call_py" and x_ is v and k_ == 2.5 and i_ == 2
    np.testing.assert_array_equal(y_, v + v)
    np.testing.assert_array_equal(row_, 2 * v[0])
    np.testing.assert_array_equal(t_, v.T)
    assert np.shares_memory(row_, y_) and np.shares_memory(t_, v)
    with pytest.raises(Left) as left:
        p(v, float("nan"))
    assert left.value.reason == "overflow"
    del left, x_, t_, y_, row_
    gc.collect()
    assert sys.getrefcount(v) == count


def test_objects_held_at_an_exit_are_given_back() -> None:
    """A result born as an ndarray is dropped when a later check leaves."""
    b = Build()
    x = b.array("float32", 1)
    n, = x.type.dims
    y = b.op("add", x, x)
    s = b.op("sum", y, axis=(0,))
    k = b.node("item", [s], [b.value(Scalar("float"))], b.state(x))
    b.node("guard", [b.scalar("gt", k, b.number(0.0), kind="bool")], (), b.state(x, y))
    b.ret(y)
    p = Program_(b.graph)
    np.testing.assert_array_equal(p(np.ones(3, "f4")), [2, 2, 2])
    before = sys.getallocatedblocks()
    for _ in range(200):
        with pytest.raises(Left) as left:
            p(-np.ones(3, "f4"))
        np.testing.assert_array_equal(left.value.values[1], [-2, -2, -2])
        assert sys.getrefcount(left.value.values[1]) <= 3
    del left
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


def test_scalar_results_and_rank_zero() -> None:
    b = Build()
    x = b.array("float32", 1)
    s = b.op("sum", x, axis=(0,))
    s.type = Tensor("numpy", "float32", (), scalar=True)
    m = b.op("max", x, axis=(0,))
    k = b.node("item", [m], [b.value(Scalar("float"))], b.state(x))
    b.ret(s, m, k, b.scalar("gt", k, b.number(0.0), kind="bool"), b.number(7))
    p = Program_(b.graph)
    v = floats(11)
    s_, m_, k_, t_, n_ = p(v)
    assert abs(s_ - v.sum()) < 1e-5 and m_.shape == () and m_ == v.max() and k_ == v.max() and t_ is True and n_ == 7


def test_out_of_memory_is_reported() -> None:
    b = Build()
    n = b.input(Scalar("int"))
    size = n.dim
    b.check("le", 0, size, b.state(n))
    z = b.full(1.0, "float64", (size, 1 << 20))
    b.ret(b.op("sum", b.view(z, "reshape", (size * (1 << 20),)), axis=(0,)))
    p = Program_(b.graph)
    assert p(2) == 2 << 20
    for n_ in (1 << 40, 1 << 62):
        with pytest.raises(MemoryError):
            p(n_)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64"])
def test_item_and_box_of_every_dtype(dtype: str) -> None:
    b = Build()
    x = b.array(dtype, 1)
    kind = "bool" if dtype == "bool" else "float" if dtype.startswith("f") else "int"
    k = b.node("item", [x], [b.value(Scalar(kind))], b.state(x))
    t = b.node("item", [x], [b.value(Scalar("bool"))], b.state(x))
    if kind == "int":
        k.dim = Dim.opaque(dtype)
    box = b.op("cast", k, dtype=dtype)
    y = b.node("copy", [box], [b.value(Tensor("numpy", dtype, ()))])
    b.ret(k, t, y)
    p = Program_(b.graph)
    for number in (0, 1, 3):
        v = np.array([number], dtype)
        k_, t_, y_ = p(v)
        assert k_ == v[0].item() and t_ == bool(number) and y_ == v[0] and y_.dtype == dtype
    with pytest.raises(Left):
        p(np.zeros(2, dtype))


def test_equal_expressions_are_computed_once_but_results_stay_apart() -> None:
    b = Build()
    x = b.array("float32", 1)
    b.ret(b.op("exp", x), b.op("exp", x), b.op("add", b.op("exp", x), b.op("exp", x)))
    p = Program_(b.graph)
    v = floats(4)
    a, c, e = p(v)
    assert a is not c and not np.shares_memory(a, c)
    np.testing.assert_allclose(e, 2 * np.exp(v), rtol=1e-6)
