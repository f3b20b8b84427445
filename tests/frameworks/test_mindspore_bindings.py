"""MindSpore's bindings give what PyNative mode gives; what they do not cover is Unsupported."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Tensor, mint, ops  # noqa: E402

import bcvm.frameworks.mindspore_bindings  # noqa: E402, F401
from bcvm.errors import Unsupported  # noqa: E402
from bcvm.ops.lookup import attribute_for, binding_for, method_for, operator_for  # noqa: E402
from tests.ops.executing import Executor  # noqa: E402

RNG = np.random.default_rng(0)
F = RNG.normal(size=(3, 4)).astype(np.float32)
G = RNG.normal(size=(3, 4)).astype(np.float32)
P = np.abs(F) + np.float32(0.5)
T = RNG.normal(size=(2, 3, 4)).astype(np.float32)
V = RNG.normal(size=4).astype(np.float32)
M = RNG.normal(size=(4, 5)).astype(np.float32)
I = RNG.integers(-5, 5, (3, 4)).astype(np.int32)  # noqa: E741
J = RNG.integers(1, 5, (3, 4)).astype(np.int32)
B = F > 0
NAN = np.array([np.nan, 1, np.nan, -0.0, 2, np.inf], np.float32)
NAN2 = np.array([1, np.nan, np.nan, 0.0, -3, 1], np.float32)
IMAGE = RNG.normal(size=(2, 3, 6, 5)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
C = P[0, :3]


def tensor(v: Any) -> Any:
    if isinstance(v, (np.ndarray, np.generic)):
        return Tensor(np.ascontiguousarray(v))
    return type(v)(map(tensor, v)) if isinstance(v, (tuple, list)) else v


def same(got: Any, want: Any, where: str) -> None:
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want), where
        for g, w in zip(got, want, strict=True):
            same(g, w, where)
        return
    if not isinstance(want, Tensor):
        assert got == want and type(got) is type(want), where
        return
    w = want.asnumpy()
    assert np.asarray(got).dtype == w.dtype and np.shape(got) == w.shape, (where, np.asarray(got).dtype, np.shape(got), w.dtype, w.shape)
    np.testing.assert_allclose(np.asarray(got), w, rtol=3e-5, atol=3e-6, err_msg=where)


def both(fn: Any, *args: Any, **kwargs: Any) -> None:
    found = binding_for(fn)
    assert found is not None and found[0] == "mindspore", fn
    _, binding, instance = found
    got = binding(Executor("mindspore"), *([] if instance is None else [instance]), *args, **kwargs)
    same(got, fn(*map(tensor, args), **kwargs), str(fn))


UNARY = ("exp log sqrt rsqrt square abs neg sin cos tan sinh cosh tanh atan expm1 log1p erf reciprocal sigmoid silu hardswish hardsigmoid sign "
         "floor ceil trunc isnan isinf isfinite relu relu6 gelu round softplus elu leaky_relu mish").split()


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    both(getattr(ops, name), P)
    if name not in ("mish", "softplus"):  # PyNative's softplus makes NaN an infinity
        both(getattr(ops, name), NAN)


@pytest.mark.parametrize("name",
                         ("add sub mul div floor_div floor_mod pow maximum minimum equal not_equal less "
                                  "less_equal greater greater_equal eq ne lt le gt ge").split())
def test_binary(name: str) -> None:
    fn = getattr(ops, name)
    both(fn, P, G if name != "pow" else P)
    both(fn, P, V if name != "pow" else np.abs(V))
    both(fn, F if name != "pow" else P, 2.0)
    both(fn, I, J)
    if name in ("maximum", "minimum", "lt", "eq"):
        both(fn, NAN, NAN2)


@pytest.mark.parametrize("a,b", [(I, F), (I, J.astype(np.int64)), (F.astype(np.float16), I), (F, F.astype(np.float64)),
                                 (J.astype(np.uint8), I.astype(np.int8)), (I, 2), (I, 2.5), (F, 2), (B, 3)])
def test_operators_and_promotion(a: Any, b: Any) -> None:
    import operator
    for name, fn in (("add", operator.add), ("mul", operator.mul), ("truediv", operator.truediv), ("lt", operator.lt)):
        binding = operator_for("mindspore", name)
        assert binding is not None
        if name != "truediv" or a.dtype != bool:
            got, want = binding(Executor("mindspore"), a, b), fn(tensor(a), tensor(b)).asnumpy()
            assert got.dtype == want.dtype, (name, got.dtype, want.dtype)
            np.testing.assert_allclose(got, want, rtol=2e-3)


def test_integer_division_by_zero() -> None:
    import operator
    for dtype in (np.int32, np.int64, np.int8):
        a, b = np.array([7, -7, 7, -7, 0], dtype), np.array([0, 0, 2, 2, 0], dtype)
        for name, fn in (("floordiv", operator.floordiv), ("mod", operator.mod)):
            binding = operator_for("mindspore", name)
            assert binding is not None
            got, want = binding(Executor("mindspore"), a, b), fn(tensor(a), tensor(b)).asnumpy()
            keep = slice(None) if name == "floordiv" else slice(0, 4)
            np.testing.assert_array_equal(got[keep], want[keep], err_msg=f"{name} {dtype}")


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (ops.matmul, (F, M), {}), (ops.matmul, (T, M), {}), (ops.matmul, (V, V), {}), (ops.bmm, (T, T.transpose(0, 2, 1)), {}),
    (ops.dense, (F, M.T.copy(), M[0]), {}), (ops.dense, (F, M.T.copy()), {}),
    (ops.outer, (V, V), {}), (ops.bias_add, (IMAGE, C), {}), (ops.gelu, (F, "tanh"), {}), (ops.gelu, (F,), {"approximate": "none"}), (ops.softmax, (F,), {}),
    (ops.softmax, (T, 1), {}),
    (ops.log_softmax, (F,), {}), (ops.cat, ((F, G), 1), {}), (ops.concat, ([F, G],), {}), (ops.stack, ((F, G), -1), {}), (ops.split, (F, 2), {"axis": 1}),
    (ops.split, (F, [1, 3], 1), {}),
    (ops.split, (F, 3, 1), {}), (ops.chunk, (F, 2, 1), {}), (ops.chunk, (T, 2, 1), {}), (ops.unbind, (F,), {}), (ops.reshape, (T, (4, -1)), {}),
    (ops.transpose, (T, (0, 2, 1)), {}),
    (ops.permute, (T, (2, 0, 1)), {}), (ops.swapaxes, (T, 0, 2), {}), (ops.movedim, (T, 0, 2), {}), (ops.expand_dims, (F, 1), {}),
    (ops.squeeze, (F[None],), {}), (ops.squeeze, (F[None], 0), {}),
    (ops.flatten, (T,), {}), (ops.flatten, (T,), {"start_dim": 0}), (ops.broadcast_to, (V, (3, -1)), {}), (ops.tile, (F, (2, 1, 3)), {}),
    (ops.flip, (F, (1,)), {}),
    (ops.gather, (F, I % 3, 0), {}), (ops.gather, (F, np.array([-1, 0]), 1), {}), (ops.one_hot, (I, 3), {}),
    (ops.one_hot, (I, 3, np.float32(2.0), np.float32(-1.0)), {}), (ops.pad, (F, (1, 2)), {}),
    (ops.pad, (F, (1, 2, 0, 1)), {"value": 5.0}), (ops.tril, (F,), {}), (ops.triu, (F, 1), {}), (ops.where, (B, F, G), {}), (ops.where, (B, F, 0.0), {}),
    (ops.where, (B, 1, 0), {}),
    (ops.where, (B, I.astype(np.int64), 2.5), {}), (ops.select, (B, F, G), {}), (ops.masked_fill, (F, B, 0.5), {}), (ops.masked_fill, (I, B, 2), {}), (ops.clamp, (NAN, -1.0, 1.0), {}),
    (ops.clamp, (NAN, None, 1.0), {}),
    (ops.clamp, (I, 2.5, None), {}), (ops.sum, (F,), {}), (ops.sum, (I, 1, True), {}), (ops.mean, (T, (1, 2)), {}), (ops.mean, (F,), {"keep_dims": True}),
    (ops.prod, (F, 1), {}), (ops.amax, (F, (0, 1), True), {}),
    (ops.amin, (T, 1), {}), (ops.max, (F, 1), {}), (ops.min, (F,), {}), (ops.max, (F, 0, True), {}), (ops.argmax, (F, 1), {}), (ops.argmax, (F,), {}),
    (ops.argmin, (F, 0), {}), (ops.any, (B, 1), {}),
    (ops.all, (B,), {}), (ops.var, (F, 1), {}), (ops.std, (F, 1, 1, True), {}), (ops.cumsum, (F, 1), {}), (ops.logsumexp, (F, 1), {}), (ops.norm, (F,), {}),
    (ops.zeros, ((2, 3),), {}),
    (ops.zeros, ((2,), ms.int32), {}), (ops.ones, (3,), {}), (ops.zeros_like, (I,), {}), (ops.ones_like, (F,), {"dtype": ms.int64}), (ops.arange, (5,), {}),
    (ops.arange, (1, 8, 2), {}), (ops.eye, (2, 3), {}),
    (ops.cast, (F, ms.float16), {}), (ops.cast, (I, ms.float32), {}), (ops.shape, (T,), {}), (ops.rank, (T,), {}), (ops.size, (T,), {}),
    (ops.group_norm, (IMAGE, 3), {}),
    (ops.batch_norm, (IMAGE, C, C, C, C), {}), (ops.conv2d, (IMAGE, KERNEL), {}), (ops.conv2d, (IMAGE, KERNEL, V), {"pad_mode": "pad", "padding": 1}),
    (ops.conv2d, (IMAGE, KERNEL, V, 2, "same"), {}),
    (ops.conv2d, (IMAGE, KERNEL), {"pad_mode": "pad", "padding": (2, 1), "dilation": 2}), (ops.max_pool2d, (IMAGE, 2), {}),
    (ops.avg_pool2d, (IMAGE, 2, 2), {}), (ops.adaptive_avg_pool2d, (IMAGE, 1), {}),
    (mint.cat, ((F, G), 1), {}), (mint.softmax, (F, -1), {}), (mint.sum, (F, 1, True), {}), (mint.mean, (F, 1), {}), (mint.permute, (T, (0, 2, 1)), {}),
    (mint.transpose, (T, 1, 2), {}),
    (mint.split, (F, 2, 1), {}), (mint.narrow, (F, 1, 1, 2), {}), (mint.add, (F, G), {}), (mint.matmul, (F, M), {}), (mint.reshape, (F, (2, 6)), {}),
    (mint.max, (F,), {}),
    (ops.LayerNorm(-1, -1, 1e-5), (F, V, V), {}), (ops.LayerNorm(1, 1, 1e-3), (T, F, G), {}), (ops.MatMul(False, True), (F, G), {}),
    (ops.BatchMatMul(False, True), (T, T), {}), (ops.BiasAdd(), (F, V), {}),
    (ops.Softmax(-1), (F,), {}), (ops.LogSoftmax(0), (F,), {}), (ops.Concat(1), ((F, G),), {}), (ops.Stack(0), ((F, G),), {}), (ops.Split(1, 2), (F,), {}),
    (ops.ReduceSum(True), (F, 1), {}), (ops.ReduceSum(), (I, ()), {}),
    (ops.ReduceMean(True), (T, (0, 1)), {}), (ops.ReduceMax(), (F, 1), {}), (ops.Reshape(), (F, (2, -1)), {}), (ops.Transpose(), (T, (1, 0, 2)), {}),
    (ops.Shape(), (F,), {}), (ops.ReLU(), (NAN,), {}),
    (ops.GeLU(), (F,), {}), (ops.Tanh(), (F,), {}), (ops.Sigmoid(), (F,), {}), (ops.HSwish(), (F,), {}), (ops.Elu(1.0), (F,), {}),
    (ops.Squeeze(0), (F[None],), {}), (ops.Flatten(), (T,), {}),
    (ops.ExpandDims(), (F, -1), {}), (ops.Gather(), (F, I % 3, 0), {}), (ops.OneHot(), (I, 3, np.float32(1), np.float32(0)), {}), (ops.Argmax(1), (F,), {}),
    (ops.CumSum(), (F, 1), {}), (ops.Cast(), (F, ms.float16), {}),
    (ops.Pad(((0, 0), (1, 2))), (F,), {}), (ops.BatchNorm(), (IMAGE, C, C, C, C), {}), (ops.Conv2D(4, 3, pad_mode="same", stride=2), (IMAGE, KERNEL), {}),
    (ops.L2Normalize(-1), (F,), {}),
    (ops.Conv2D(4, 3, pad_mode="pad", pad=(1, 0, 2, 1)), (IMAGE, KERNEL), {}), (ops.Conv2D(3, 3, group=3), (IMAGE, KERNEL[:3, :1]), {}),
    (ops.MaxPool(3, 2, "same"), (IMAGE,), {}),
    (ops.MaxPool(2, 2), (IMAGE,), {}), (ops.AvgPool(2, 2), (IMAGE,), {}), (ops.AvgPool(3, 2, "same"), (IMAGE,), {}), (ops.AdaptiveAvgPool2D(1), (IMAGE,), {}),
    (ops.Add(), (F, G), {}), (ops.Mul(), (F, 2.0), {}),
    (ops.Sub(), (F, G), {}), (ops.Div(), (F, P), {}), (ops.Maximum(), (NAN, NAN2), {}), (ops.Square(), (F,), {}), (ops.Sqrt(), (P,), {}),
    (ops.Rsqrt(), (P,), {}), (ops.Exp(), (F,), {}), (ops.Neg(), (F,), {}),
    (ops.Select(), (B, F, G), {}), (ops.Tile(), (F, (2, 1)), {}), (ops.ZerosLike(), (F,), {}), (ops.StridedSlice(), (F, (0, 1), (3, 4), (2, 1)), {}),
    (ops.ReduceAll(), (B, 1), {}),
]


@pytest.mark.parametrize("index", range(len(CALLS)))
def test_calls(index: int) -> None:
    fn, args, kwargs = CALLS[index]
    both(fn, *args, **kwargs)


METHODS: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("reshape", T, ((4, 6),), {}), ("reshape", T, (6, -1), {}), ("view", T, (2, 12), {}), ("transpose", T, ((0, 2, 1),), {}), ("transpose", T, (0, 2, 1), {}),
    ("transpose", T, (0, 2), {}),
    ("transpose", F, (), {}), ("transpose", F, (0, 1), {}), ("permute", T, (2, 0, 1), {}), ("swapaxes", T, (0, 1), {}), ("sum", F, (), {}),
    ("sum", F, (1, True), {}), ("sum", F, (1,), {"keepdims": True}),
    ("sum", F, (), {"dim": 1, "keepdim": True}), ("sum", I, (), {}), ("mean", T, ((1, 2),), {}), ("mean", F, (-1,), {"keep_dims": True}), ("max", F, (), {}),
    ("max", F, (), {"axis": 1}), ("max", F, (1,), {}), ("max", F, (1,), {"keepdims": True}), ("min", F, (1, True), {}),
    ("min", F, (), {}), ("argmax", F, (1,), {}), ("any", B, (1,), {}), ("all", B, (), {}), ("prod", F, (1,), {}), ("var", F, (1,), {}),
    ("std", F, (1, 1), {}), ("astype", F, (ms.float16,), {}), ("to", I, (ms.float32,), {}),
    ("float", I, (), {}), ("long", I, (), {}), ("half", F, (), {}), ("expand_dims", F, (0,), {}), ("unsqueeze", F, (1,), {}), ("squeeze", F[None], (0,), {}),
    ("flatten", T, (), {}), ("flatten", T, (), {"start_dim": 1}), ("argmin", F, (1,), {}), ("split", F, (2,), {"axis": 1}),
    ("chunk", F, (2, 1), {}), ("exp", F, (), {}), ("sqrt", P, (), {}), ("pow", F, (2,), {}), ("abs", F, (), {}), ("tanh", F, (), {}), ("matmul", F, (M,), {}),
    ("masked_fill", F, (B, 0.5), {}), ("clamp", NAN, (-1.0, 1.0), {}),
    ("broadcast_to", V, ((3, 4),), {}), ("tile", F, ((2, 1),), {}), ("add", F, (G,), {}), ("item", F[:1, :1], (), {}), ("cumsum", F, (1,), {}),
    ("unbind", F, (), {}), ("numel", F, (), {}), ("norm", F, (), {}),
]


@pytest.mark.parametrize("index", range(len(METHODS)))
def test_methods(index: int) -> None:
    name, x, args, kwargs = METHODS[index]
    method = method_for("mindspore", name)
    assert method is not None
    same(method(Executor("mindspore"), x, *args, **kwargs), getattr(tensor(x), name)(*map(tensor, args), **kwargs), name)


@pytest.mark.parametrize("name", ["shape", "ndim", "size", "dtype", "T"])
def test_attributes(name: str) -> None:
    attribute = attribute_for("mindspore", name)
    assert attribute is not None
    got, want = attribute(Executor("mindspore"), F), getattr(tensor(F), name)
    assert got == want if not isinstance(want, Tensor) else np.array_equal(got, want.asnumpy())


@pytest.mark.parametrize("fn,args", [(ops.matmul, (F, M.astype(np.float64))), (ops.cat, ((F, I),)), (ops.exp, (I,)), (ops.cast, (F, ms.uint64)),
                                     (ops.mean, (I,)), (ops.full, ((2,), 3)),
                                     (ops.dropout, (F, 0.5, True)), (ops.relu, (F, True)), (ops.Softmax((0, 1)), (F,)), (ops.sub, (B, B))])
def test_refusals(fn: Any, args: tuple[Any, ...]) -> None:
    found = binding_for(fn)
    assert found is not None
    with pytest.raises(Unsupported):
        found[1](Executor("mindspore"), *([] if found[2] is None else [found[2]]), *args)


def test_bound_methods_exist() -> None:
    from bcvm.ops.definition import METHODS as BOUND
    names = [n.lstrip(".") for n in BOUND["mindspore"] if not n.startswith("operator ")]
    assert [n for n in names if not hasattr(Tensor, n)] == []


def test_public_functions_take_tensors() -> None:
    import bcvm.ops as public
    for got, want in ((public.softmax(tensor(F)), ops.softmax(tensor(F), -1)), (public.sum(tensor(F)), tensor(F).sum())):
        assert isinstance(got, Tensor)
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5)
