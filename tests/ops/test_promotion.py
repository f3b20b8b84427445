"""Computation and result dtypes are those of the installed NumPy."""
from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import bcvm.ops  # noqa: F401
from bcvm.errors import Unsupported
from bcvm.ops.definition import OPS
from bcvm.ops.promotion import Operand, mindspore_promote, result_dtype

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "float16", "float32", "float64")
UFUNCS = [name for name, op in OPS.items() if isinstance(op.eager, np.ufunc)]
NUMPY_1 = int(np.__version__.split(".")[0]) < 2


def actual(name: str, *values: object) -> str | None:
    with np.errstate(all="ignore"):
        try:
            return str(np.asarray(OPS[name].eager(*values)).dtype.name)
        except (TypeError, OverflowError, ValueError):
            return None


@pytest.mark.parametrize("name", UFUNCS)
def test_ufunc_of_arrays(name: str) -> None:
    n = len(OPS[name].operands)
    for combination in product(DTYPES, repeat=n):
        want = actual(name, *(np.ones(1, d) for d in combination))
        try:
            got = result_dtype("numpy", OPS[name], [Operand(d, 1) for d in combination], {})
        except Unsupported:
            assert want is None or len({np.dtype(d) for d in combination}) > 1, combination
            continue
        assert got.result == want and len(set(got.operands)) == 1 and not got.checks, combination


@pytest.mark.parametrize("name", ["add", "truediv", "lt", "maximum", "pow", "where", "copysign"])
@pytest.mark.parametrize("value", [True, 1, 100, 200, 70000, -3, 2 ** 40, 1.5, 70000.0, 1e39])
def test_python_scalars(name: str, value: object) -> None:
    kind = {bool: "pybool", int: "int", float: "float"}[type(value)]
    for dtype in DTYPES:
        before = (np.ones(1, bool),) if name == "where" else ()
        operands = [*(Operand("bool", 1) for _ in before), Operand(dtype, 1)]
        fn = np.where if name == "where" else OPS[name].eager
        with np.errstate(all="ignore"):
            try:
                want = fn(*before, np.ones(1, dtype), value).dtype.name
            except (TypeError, OverflowError):
                want = None
            except ValueError:  # a negative power of an integer
                continue
        try:
            known = result_dtype("numpy", OPS[name], [*operands, Operand(kind, 0, value)], {}).result
        except Unsupported:
            known = None
        assert known == want or known is None, (dtype, value, known, want)
        try:
            unknown = result_dtype("numpy", OPS[name], [*operands, Operand(kind, 0)], {})
        except Unsupported:
            continue
        if all(c.low <= value <= c.high for c in unknown.checks) and want is not None:
            assert unknown.result == want, (dtype, value)


@pytest.mark.parametrize("name", ["add", "truediv", "lt", "minimum"])
def test_rank_0(name: str) -> None:
    for a, b in product(DTYPES, repeat=2):
        for value in (1, 0):
            want = actual(name, np.ones(1, a), np.array(value, b))
            try:
                got = result_dtype("numpy", OPS[name], [Operand(a, 1), Operand(b, 0)], {})
            except Unsupported:
                continue
            assert got.result == want, (a, b)


def test_numpy_scalars_alone() -> None:
    for a, b in (("float32", "float64"), ("float32", "float32"), ("int32", "int64")):
        assert result_dtype("numpy", OPS["add"], [Operand(a), Operand(b)], {}).result == actual("add", np.ones((), a)[()], np.ones((), b)[()])
    assert result_dtype("numpy", OPS["mul"], [Operand("float32"), Operand("float")], {}).result == actual("mul", np.float32(1), 1.5)
    assert result_dtype("numpy", OPS["mul"], [Operand("float32"), Operand("int")], {}).result == actual("mul", np.float32(1), 2)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "mean", "var", "cumsum"])
def test_reductions(name: str) -> None:
    for dtype in DTYPES:
        got = result_dtype("numpy", OPS[name], [Operand(dtype, 1)], {})
        assert got.result == getattr(np, name)(np.ones(2, dtype)).dtype.name or (name == "var" and dtype == "bool")


def test_mixed_loops_are_not_guessed() -> None:
    with pytest.raises(Unsupported):
        result_dtype("numpy", OPS["lt"], [Operand("int64", 1), Operand("uint64", 1)], {})


def test_explicit_and_same() -> None:
    assert result_dtype("numpy", OPS["cast"], [Operand("float32", 1)], {"dtype": "int32"}) == (("float32",), "int32", ())
    assert result_dtype("numpy", OPS["full"], [Operand("int", 0)], {"dims": (), "dtype": "float32"}) == (("float32",), "float32", ())
    assert result_dtype("numpy", OPS["relu"], [Operand("int8", 1)], {}).result == "int8"


MINDSPORE = [("int64", "float16", "float16"), ("float16", "bfloat16", "float32"), ("uint8", "int8", "int16"), ("bool", "int8", "int8"),
             ("float32", "float64", "float64"),
             ("int32", "int64", "int64"), ("uint8", "int32", "int32")]


@pytest.mark.parametrize("a,b,want", MINDSPORE)
def test_mindspore_tensors(a: str, b: str, want: str) -> None:
    assert mindspore_promote(a, b) == mindspore_promote(b, a) == want
    assert result_dtype("mindspore", OPS["add"], [Operand(a, 1), Operand(b, 0)], {}).result == want


def test_mindspore_scalars() -> None:
    add = OPS["add"]
    assert result_dtype("mindspore", add, [Operand("int32", 1), Operand("float")], {}).result == "float32"
    assert result_dtype("mindspore", add, [Operand("float16", 1), Operand("float")], {}).result == "float16"
    assert result_dtype("mindspore", add, [Operand("bool", 1), Operand("int")], {}).result == "int64"
    assert result_dtype("mindspore", add, [Operand("int8", 1), Operand("pybool")], {}).result == "int8"
    assert result_dtype("mindspore", OPS["truediv"], [Operand("int64", 1), Operand("int")], {}).result == "float32"
    assert result_dtype("mindspore", OPS["sum"], [Operand("int32", 1)], {}).result == "int64"
    with pytest.raises(Unsupported):
        result_dtype("mindspore", OPS["exp"], [Operand("int32", 1)], {})
