"""Expressions and composites give what the references give; shape rules give the sizes of the results."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm.ops  # noqa: F401
from bcvm.errors import ShapeError, Unsupported
from bcvm.ops.definition import OPS, Composite, ScalarExpr, View
from bcvm.ops.shaperules import slice_bounds
from tests.ops.comparing import check
from tests.ops.executing import Executor, Shapes, run_expr

EXPRESSIONS = [(n, d) for n, op in OPS.items() if isinstance(op.form, ScalarExpr) for d in op.domain]
OTHERS = [(n, d) for n, op in OPS.items() if not isinstance(op.form, ScalarExpr) for d in op.domain]


@pytest.mark.parametrize("name,dtype", EXPRESSIONS)
def test_expression(name: str, dtype: str) -> None:
    op = OPS[name]
    for operands, attrs in op.samples(np.random.default_rng(3), dtype):
        try:
            got = run_expr(op, *operands, **attrs)
        except Unsupported:
            assert dtype == "bool" or np.asarray(operands[0]).ndim == 0, (name, dtype)
            continue
        check(op, got, op.reference(*operands, **attrs))


@pytest.mark.parametrize("name,dtype", OTHERS)
def test_other_form(name: str, dtype: str) -> None:
    op, b = OPS[name], Executor("numpy")
    for operands, attrs in op.samples(np.random.default_rng(3), dtype):
        if not operands and isinstance(op.form, View):
            continue
        check(op, b.op(name, *operands, **attrs), op.reference(*operands, **attrs))


def test_slice_bounds_are_pythons() -> None:
    for n in (0, 1, 5):
        for start in (None, -7, -2, 0, 2, 9):
            for stop in (None, -7, -2, 0, 2, 9):
                for step in (1, 2, -1, -3):
                    first, length = slice_bounds(n, start, stop, step)
                    want = range(n)[start:stop:step]
                    assert length.value == len(want) and (not len(want) or first.value == want[0]), (n, start, stop, step)


def test_slice_bounds_of_run_time_values() -> None:
    from bcvm.shapes.dim import Dim
    n, start, stop = Dim.symbol("N"), Dim.opaque("start"), Dim.opaque("stop")
    for step in (1, 2, -1, -2):
        first, length = slice_bounds(n, start, stop, step)
        for size in (0, 1, 4):
            for i in range(-6, 7):
                for j in range(-6, 7):
                    values = {"N": size, "start": i, "stop": j}
                    want = range(size)[i:j:step]
                    value_of = lambda a, values=values: values[a.args[0]]  # noqa: E731
                    assert length.evaluate(value_of) == len(want)
                    assert not len(want) or first.evaluate(value_of) == want[0]


@pytest.mark.parametrize("name,shapes,attrs", [
    ("matmul", ((2, 3), (4, 5)), {}), ("concat", ((2, 3), (2, 4)), {"axis": 0}), ("reshape", ((2, 3),), {"dims": (4,)}),
    ("broadcast_to", ((3,), ), {"dims": (2, 4)}),
    ("squeeze", ((2, 3),), {"axis": (0,)}), ("max", ((2, 0),), {"axis": (1,), "keepdims": False}),
    ("conv2d", ((1, 3, 5, 5), (2, 4, 3, 3)), {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}),
    ("conv2d", ((1, 3, 2, 2), (2, 3, 3, 3)), {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1})])
def test_shape_errors(name: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, object]) -> None:
    from bcvm.shapes.dim import Dim
    with pytest.raises((ShapeError, ValueError)):
        OPS[name].shape(Shapes(), *(tuple(map(Dim.const, s)) for s in shapes), **attrs)


def test_every_composite_is_built_of_known_ops() -> None:
    assert sum(isinstance(op.form, Composite) for op in OPS.values()) > 15
