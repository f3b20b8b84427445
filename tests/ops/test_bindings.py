"""A binding, run on arrays, gives what the library's own function gives; what it does not cover is Unsupported, never another result."""
from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from bcvm import ops
from bcvm.errors import ShapeError, Unsupported
from bcvm.ops.definition import BINDINGS, METHODS, OPS
from bcvm.ops.lookup import attribute_for, binding_for, method_for, operator_for
from tests.ops.executing import Executor

RNG = np.random.default_rng(0)
F = RNG.normal(size=(3, 4)).astype(np.float32)
G = RNG.normal(size=(3, 4)).astype(np.float32)
P = np.abs(F) + np.float32(0.5)
T = RNG.normal(size=(2, 3, 4)).astype(np.float32)
V = RNG.normal(size=4).astype(np.float32)
M = RNG.normal(size=(4, 5)).astype(np.float32)
I = RNG.integers(-5, 5, (3, 4))  # noqa: E741
J = RNG.integers(1, 5, (3, 4))
B = F > 0
IMAGE = RNG.normal(size=(2, 3, 6, 6)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)


def same(got: Any, want: Any, where: str) -> None:
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want), where
        for g, w in zip(got, want, strict=False):
            same(g, w, where)
        return
    assert np.asarray(got).dtype == np.asarray(want).dtype and np.shape(got) == np.shape(want), (where, np.asarray(got).dtype, np.shape(got), np.shape(want))
    np.testing.assert_allclose(np.asarray(got, dtype=None), np.asarray(want), rtol=2e-5, atol=2e-6, err_msg=where)


def both(fn: Any, *args: Any, **kwargs: Any) -> None:
    found = binding_for(fn)
    assert found is not None, fn
    library, binding, instance = found
    assert instance is None
    with np.errstate(all="ignore"):
        same(binding(Executor("numpy" if library != "bcvm" else "bcvm"), *args, **kwargs), fn(*args, **kwargs), f"{fn} {kwargs}")


UNARY = [n for n in ("negative positive absolute abs sqrt square exp expm1 exp2 log log1p log2 log10 sin cos tan sinh cosh tanh arctan floor "
                     "ceil trunc rint sign isnan isinf isfinite reciprocal logical_not").split()]
BINARY = ("add subtract multiply true_divide divide floor_divide remainder mod power maximum minimum fmax fmin equal not_equal less "
          "less_equal greater greater_equal logical_and logical_or logical_xor copysign").split()


@pytest.mark.parametrize("name", UNARY)
def test_numpy_unary(name: str) -> None:
    both(getattr(np, name), P)
    both(getattr(np, name), P[0, 0])
    if name not in ("sign", "negative", "positive"):
        both(getattr(np, name), 1.5)


@pytest.mark.parametrize("name", BINARY)
def test_numpy_binary(name: str) -> None:
    fn = getattr(np, name)
    both(fn, P, P)
    both(fn, P, V * V)
    both(fn, P, 2.0)
    both(fn, 2.0, P)
    if name not in ("copysign", "power"):
        both(fn, J, J)
        both(fn, I, 3)
    both(fn, P.astype(np.float64), P)


@pytest.mark.parametrize("name", "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split())
def test_numpy_bits(name: str) -> None:
    both(getattr(np, name), J, J)
    both(np.invert, I)
    both(np.invert, B)


@pytest.mark.parametrize("name", "sum prod mean max min amax amin any all argmax argmin var std".split())
def test_numpy_reductions(name: str) -> None:
    fn = getattr(np, name)
    for x in (T, I):
        for kwargs in ({}, {"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}):
            both(fn, x, **kwargs)
        if "arg" not in name:
            both(fn, x, axis=(0, 1))
    for x in (T, I, B):
        if not (x is B and name in ("var", "std")) and hasattr(x, name):
            method = method_for("numpy", name)
            assert method is not None
            same(method(Executor(), x, 0), getattr(x, name)(0), name)
    if name in ("var", "std"):
        both(fn, T, axis=1, ddof=1)
    if name in ("sum", "mean"):
        both(fn, I, dtype=np.float32)


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (np.matmul, (F, M), {}), (np.matmul, (T, M), {}), (np.dot, (F, M), {}), (np.dot, (V, V), {}), (np.outer, (V, V), {}),
    (np.concatenate, ((F, G),), {}), (np.concatenate, ([F, G, I],), {"axis": 1}), (np.concatenate, ((F, G),), {"axis": None}),
    (np.stack, ((F, G),), {"axis": -1}),
    (np.vstack, ((F, V),), {}), (np.hstack, ((F, G),), {}), (np.hstack, ((V, V),), {}),
    (np.split, (F, 2, 1), {}), (np.split, (F, [1, 3]), {"axis": -1}), (np.split, (T, 3), {"axis": 1}),
    (np.transpose, (T,), {}), (np.transpose, (T, (0, 2, 1)), {}), (np.transpose, (T,), {"axes": (2, 0, 1)}), (np.swapaxes, (T, 0, -1), {}),
    (np.moveaxis, (T, 0, -1), {}),
    (np.moveaxis, (T, (0, 1), (1, 2)), {}), (np.reshape, (T, (4, -1)), {}), (np.reshape, (T, 24), {}), (np.reshape, (T, (-1,)), {}), (np.ravel, (T,), {}),
    (np.expand_dims, (F, 1), {}), (np.expand_dims, (F, (0, -1)), {}), (np.squeeze, (F[None],), {}), (np.squeeze, (F[None], 0), {}),
    (np.broadcast_to, (V, (3, 4)), {}),
    (np.flip, (F,), {}), (np.flip, (F, 1), {}), (np.repeat, (F, 2), {}), (np.repeat, (F, 3, 1), {}), (np.tile, (F, 2), {}), (np.tile, (F, (2, 1, 3)), {}),
    (np.where, (B, F, G), {}), (np.where, (B, F, 0.0), {}), (np.where, (I, 1, 0), {}), (np.where, (B, 1, 2.5), {}), (np.clip, (F, -1, 1), {}),
    (np.clip, (F, None, 0.5), {}),
    (np.clip, (I, 0, V[None]), {}), (np.take, (F, I[0] % 3, 0), {}), (np.take, (F, I % 4), {"axis": 1}), (np.take, (F, 2), {}),
    (np.pad, (F, ((1, 0), (2, 1))), {}),
    (np.pad, (F, 1), {"constant_values": 2.0}), (np.pad, (F, (1, 2)), {"mode": "constant"}), (np.tril, (F,), {}), (np.triu, (F, 1), {}),
    (np.zeros, ((2, 3),), {}), (np.zeros, (3, np.float32), {}), (np.ones, ((2,),), {"dtype": "int32"}), (np.full, ((2, 2), 7), {}),
    (np.full, (3, 1.5, np.float32), {}),
    (np.zeros_like, (F,), {}), (np.ones_like, (I,), {}), (np.full_like, (F, 2), {}), (np.zeros_like, (F,), {"dtype": np.int32}), (np.arange, (5,), {}),
    (np.arange, (1, 9, 3), {}),
    (np.arange, (4,), {"dtype": np.float32}), (np.arange, (5, 0, -2), {}), (np.eye, (3,), {}), (np.eye, (2, 3, 1), {"dtype": np.float32}),
    (np.identity, (2,), {}),
    (np.float32, (2.5,), {}), (np.int32, (7,), {}), (np.float64, (F[0, 0],), {}), (np.int64, (3,), {}), (np.bool_, (1,), {}), (np.asarray, (F,), {}),
    (np.asarray, (I, np.float32), {}),
    (np.copy, (F,), {}), (np.shape, (F,), {}), (np.ndim, (F,), {}), (np.size, (F,), {}), (np.size, (F, 1), {}), (np.cumsum, (F, 1), {}), (np.cumsum, (I,), {}),
    (np.linalg.norm, (F,), {}), (np.linalg.norm, (F,), {"axis": 1}), (np.linalg.norm, (F, 2, 1, True), {}),
    (np.einsum, ("ij,jk->ik", F, M), {}), (np.einsum, ("bij,jk->kbi".replace("b", ""), F, M), {}), (np.einsum, ("bid,bjd->bij", T, T), {}),
    (np.einsum, ("bid,bd->bi", T, T[:, 0]), {}),
    (np.power, (F, 2), {}), (np.power, (I, 2), {}), (np.power, (P, 0.5), {}),
]


@pytest.mark.parametrize("index", builtins.range(len(CALLS)))
def test_numpy_calls(index: int) -> None:
    fn, args, kwargs = CALLS[index]
    both(fn, *args, **kwargs)


REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (np.add, (F, G), {"where": B}), (np.sum, (F,), {"initial": 3}), (np.max, (F,), {"where": B, "initial": 0}),
    (np.where, (B,), {}), (np.reshape, (F, (4, 3)), {"order": "F"}), (np.pad, (F, 1), {"mode": "edge"}), (np.power, (I, I), {}), (np.power, (I, -1), {}),
    (np.asarray, ([1, 2],), {}), (np.repeat, (F, [1, 2, 3], 0), {}), (np.linalg.norm, (F, 1), {}), (np.arange, (0.0, 1.0, 0.1), {}), (np.subtract, (B, B), {}),
    (np.zeros, ((2,), np.complex64), {}), (np.einsum, ("ii->i", F), {}), (np.take, (F, I), {"mode": "clip"}), (np.dot, (F, 2.0), {}),
    (float, (F[:1, 0],), {}), (np.reciprocal, (J,), {}),
]


@pytest.mark.parametrize("index", builtins.range(len(REFUSED)))
def test_numpy_refusals(index: int) -> None:
    fn, args, kwargs = REFUSED[index]
    found = binding_for(fn)
    assert found is not None
    with pytest.raises(Unsupported):
        found[1](Executor(), *args, **kwargs)


@pytest.mark.parametrize("name,args", [("reshape", (4, 3)), ("reshape", ((2, -1),)), ("transpose", (1, 0)), ("transpose", ()), ("astype", (np.float64,)),
                                       ("astype", ("int32",)),
                                       ("flatten", ()), ("ravel", ()), ("copy", ()), ("squeeze", ()), ("swapaxes", (0, 1)), ("clip", (-1, 1)), ("dot", (M,)),
                                       ("cumsum", (0,)),
                                       ("take", (np.array([0, 1]), 1)), ("repeat", (2, 0)), ("mean", ((0, 1),)), ("sum", (None, np.float64))])
def test_numpy_methods(name: str, args: tuple[Any, ...]) -> None:
    method = method_for("numpy", name)
    assert method is not None
    same(method(Executor(), F, *args), getattr(F, name)(*args), name)


@pytest.mark.parametrize("name", ["shape", "ndim", "size", "dtype", "T", "itemsize"])
def test_numpy_attributes(name: str) -> None:
    attribute = attribute_for("numpy", name)
    assert attribute is not None
    got, want = attribute(Executor(), F), getattr(F, name)
    assert got == want if not isinstance(want, np.ndarray) else np.array_equal(got, want)


def test_item() -> None:
    method = method_for("numpy", "item")
    assert method is not None and method(Executor(), F[:1, :1]) == F[0, 0].item()


@pytest.mark.parametrize("fn,args", [
    (len, (F,)), (len, ((1, 2),)), (abs, (-3,)), (abs, (F,)), (min, (2, 1)), (max, ((1, 5, 3),)), (sum, ([1, 2, 3],)), (float, (3,)), (float, (F[0, 0],)),
    (int, (2.7,)), (int, (I[0, 0],)),
    (bool, (0,)), (bool, ((),)), (tuple, ([1, 2],)), (list, ((1, 2),)), (divmod, (7, 2)), (pow, (2, 3)), (math.sqrt, (2,)), (math.exp, (1.0,)),
    (math.log, (8, 2)), (math.floor, (2.5,)),
    (math.ceil, (2.5,)), (math.tanh, (0.5,)), (math.pow, (2, 0.5)), (math.prod, ((2, 3),)), (math.isnan, (1.0,)), (math.sqrt, (P[0, 0],))])
def test_python(fn: Any, args: tuple[Any, ...]) -> None:
    found = binding_for(fn)
    assert found is not None and found[0] == "python"
    with np.errstate(all="ignore"):
        got, want = found[1](Executor(), *args), fn(*args)
    assert type(got) is type(want) or isinstance(want, np.ndarray), (fn, got)
    np.testing.assert_allclose(got, want, rtol=1e-15)


def test_python_sequences() -> None:
    b = Executor()

    def run(fn: Any, *args: Any) -> Any:
        found = binding_for(fn)
        assert found is not None
        return found[1](b, *args)
    assert run(zip, (1, 2), (3, 4)) == ((1, 3), (2, 4))
    assert run(enumerate, [5, 6], 1) == ((1, 5), (2, 6))
    assert run(reversed, [5, 6]) == (6, 5)
    np.testing.assert_array_equal(run(sum, [F, G]), F + G)
    for refused in ((min, 1, 2.0), (print, 1), (max, F, G)):
        with pytest.raises(Unsupported):
            run(*refused)


PUBLIC: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (F,), {}), ("gelu", (F,), {}), ("gelu", (F,), {"approximate": "tanh"}), ("sigmoid", (F,), {}), ("silu", (F,), {}), ("erf", (F,), {}),
    ("tanh", (F,), {}), ("add", (F, 1.0), {}),
    ("softmax", (F,), {}), ("softmax", (F, 0), {}), ("log_softmax", (F,), {"axis": -1}), ("logsumexp", (F, 1), {}), ("layer_norm", (F, V, V), {}),
    ("layer_norm", (F, V, V), {"eps": 1e-3}),
    ("layer_norm", (F, None, V), {}), ("layer_norm", (T, F), {}), ("rms_norm", (F, V), {}), ("batch_norm", (IMAGE, P[:, 0], P[:, 1], P[:, 2], P[:, 3]), {}),
    ("group_norm", (IMAGE, 3), {}),
    ("normalize", (F,), {}), ("linear", (F, M.T, M[0]), {}), ("bias_add", (IMAGE, P[:, 0]), {}), ("conv2d", (IMAGE, KERNEL), {"padding": 1}),
    ("conv2d", (IMAGE, KERNEL, V), {"stride": 2}),
    ("conv2d", (IMAGE, KERNEL, V), {"padding": "same", "dilation": 2}), ("max_pool2d", (IMAGE, 2), {}), ("max_pool2d", (IMAGE, 3, 2), {"padding": 1}),
    ("avg_pool2d", (IMAGE, (2, 3)), {}),
    ("scaled_dot_product_attention", (T, T, T), {}), ("scaled_dot_product_attention", (T, T, T), {"is_causal": True, "scale": 0.3}),
    ("embedding", (I % 3, F), {}),
    ("scaled_dot_product_attention", (T, T, T, np.tri(3, dtype=bool)), {}), ("one_hot", (I % 3, 3), {}), ("where", (B, F, G), {}),
    ("concat", ((F, G), 1), {}), ("stack", ((F, G),), {}),
    ("take", (F, I % 3), {}), ("pad", (F, ((1, 1), (0, 2))), {}), ("reshape", (F, (2, -1)), {}), ("reshape", (F, 6, 2), {}),
    ("transpose", (T, (0, 2, 1)), {}), ("expand_dims", (F, 0), {}),
    ("squeeze", (F[None],), {}), ("broadcast_to", (V, (2, 4)), {}), ("tril", (F,), {}), ("triu", (F, 1), {}), ("full", ((2,), 3), {}),
    ("zeros", ((2, 2),), {}), ("ones", (3,), {}),
    ("arange", (5,), {}), ("arange", (1, 8, 2), {}), ("eye", (3,), {}), ("sum", (F,), {}), ("sum", (F, 1, True), {}), ("mean", (F, (0, 1)), {}),
    ("max", (F, 0), {}), ("argmax", (F, 1), {}),
    ("var", (F, 1), {"ddof": 1}), ("std", (F,), {}), ("cumsum", (F,), {}), ("cast", (F, "float64"), {}), ("leaky_relu", (F,), {}), ("elu", (F, 0.5), {}),
    ("matmul", (F, M), {}),
]


@pytest.mark.parametrize("index", builtins.range(len(PUBLIC)))
def test_public_functions(index: int) -> None:
    name, args, kwargs = PUBLIC[index]
    both(getattr(ops, name), *args, **kwargs)


def test_every_op_has_a_public_function() -> None:
    for name in OPS:
        fn = getattr(ops, name)
        assert callable(fn) and fn.__doc__ and fn is getattr(ops, name)
    with pytest.raises(AttributeError):
        ops.no_such_op  # noqa: B018
    with pytest.raises(TypeError):
        ops.relu(F, F)


def test_public_errors() -> None:
    with pytest.raises(ShapeError, match="weight"):
        ops.layer_norm(F, F[0, :3])
    with pytest.raises(ShapeError, match="groups"):
        ops.conv2d(IMAGE, KERNEL, groups=2)
    with pytest.raises(ShapeError, match="larger than the padded input"):
        ops.conv2d(IMAGE[:, :, :2], KERNEL)
    with pytest.raises(IndexError):
        ops.softmax(F, 5)
    with pytest.raises(IndexError):
        ops.embedding(np.array([9]), F)
    with pytest.raises(ValueError, match="approximate"):
        ops.gelu(F, "exactly")


def test_every_bound_name_exists_here() -> None:
    from bcvm.ops.lookup import _resolve
    new_in_numpy_2 = {"numpy.concat", "numpy.pow", "numpy.atan", "numpy.bitwise_left_shift", "numpy.bitwise_right_shift", "numpy.bitwise_invert",
                      "numpy.astype"}
    gone = {"numpy.row_stack"}
    for library in ("numpy", "python", "bcvm"):
        for name in BINDINGS[library]:
            if not name.startswith("bcvm.ops.test."):  # ops that other tests register
                assert _resolve(name) is not None or name in new_in_numpy_2 | gone, name


def test_lookup() -> None:
    assert binding_for(object()) is None and binding_for(3) is None
    assert method_for("numpy", "no_such_method") is None and attribute_for("numpy", "sum") is None
    add, power = operator_for("numpy", "add"), operator_for("numpy", "pow")
    assert add is not None and power is not None and operator_for("numpy", "no_such_operator") is None
    np.testing.assert_array_equal(add(Executor(), F, G), F + G)
    np.testing.assert_array_equal(power(Executor(), F, 2), F ** 2)
    assert "operator floordiv" not in METHODS["numpy"]


def test_python_operators_are_ops() -> None:
    for name in "add sub mul truediv floordiv mod pow matmul neg pos invert eq ne lt le gt ge and_ or_ xor lshift rshift".split():
        assert name in OPS and operator_for("numpy", name) is not None
