"""The eager form of every op agrees with its reference on its samples, within its bound."""
from __future__ import annotations

import numpy as np
import pytest

import bcvm.ops  # noqa: F401  (fills the table)
from bcvm.ops.definition import OPS
from bcvm.ops.large import POINTWISE
from tests.ops.comparing import check

CASES = [(name, dtype) for name, op in OPS.items() for dtype in op.domain]


@pytest.mark.parametrize("name,dtype", CASES)
def test_eager_agrees_with_reference(name: str, dtype: str) -> None:
    op = OPS[name]
    assert op.samples is not None and op.reference is not None
    ran = 0
    for operands, attrs in op.samples(np.random.default_rng(7), dtype):
        with np.errstate(all="ignore"):
            got = (op.eager or op.reference)(*operands, **attrs)
        check(op, got, op.reference(*operands, **attrs))
        ran += 1
    assert ran


@pytest.mark.parametrize("name", list(OPS))
def test_definition_is_complete(name: str) -> None:
    op = OPS[name]
    assert op.name == name and op.doc.endswith(".") and op.cost is not None
    assert set(op.saves) <= {"operands", "results"} and set(op.effects) <= {"writes", "aliases", "random", "raises"}
    assert not op.gradient or op.saves or len(op.operands) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", ">f8"])
@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_zeros_infinities_and_bytes_the_other_way_round(name: str, dtype: str) -> None:
    op = OPS[name]
    few = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -1.5, -200.0], dtype)
    for x in (few, np.tile(few, 9), np.tile(few, 3000)):
        with np.errstate(all="ignore"):
            got, want = op.eager(x), op.reference(x.astype(x.dtype.newbyteorder("=")))
        check(op, got.astype(want.dtype), want)
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))
