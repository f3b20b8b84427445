"""Every op that has a stencil keeps the bound of its definition, and gives the bits of LLVM's kernel."""
from __future__ import annotations

import harness
import numpy as np
import pytest
from harness import TARGETS, region
from spliced import Spliced, error, same_bits

from bcvm.compiler.splice.stencils import DTYPES
from bcvm.errors import Unsupported
from bcvm.ops.definition import OPS, ScalarExpr

CASES = [(name, dtype) for name, op in OPS.items() if isinstance(op.form, ScalarExpr) and op.samples and not name.startswith("test.")
         for dtype in op.domain if dtype in DTYPES]
# What has no straight-line form in vector registers: it calls libm, or divides 64-bit integers.
WITHOUT = {("floordiv", "float32"), ("floordiv", "float64"), ("floordiv", "int64"), ("mod", "float32"), ("mod", "float64"), ("mod", "int64"),
           ("floordiv_ms", "float32"), ("floordiv_ms", "float64"), ("floordiv_ms", "int64"), ("mod_ms", "float32"), ("mod_ms", "float64"), ("mod_ms", "int64"),
           ("pow", "float64"), ("pow_ms", "float64"), ("pow", "float32"), ("pow_ms", "float32"), ("softplus", "float32"),
           *((name, "float64") for name in ("exp2", "log1p", "log2", "log10", "sinh", "cosh", "arctan", "erf", "softplus")),
           *((name, dtype) for name in ("sin", "cos", "tan") for dtype in ("float32", "float64"))}


@pytest.mark.parametrize("name,dtype", CASES)
def test_spliced_op_keeps_its_bound_and_has_the_bits_of_the_compiled_one(name, dtype, stencils):
    op = OPS[name]
    for operands, attrs in op.samples(np.random.default_rng(0), dtype):
        arrays = [np.asarray(a) for a in operands]
        want = np.asarray(op.reference(*arrays, **attrs))
        if want.dtype.name not in DTYPES:
            continue
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        rank, sizes = max(len(shape), 1), shape or (1,)
        spec = region(rank, [a.dtype.name for a in arrays], [(name, tuple(range(len(arrays))), want.dtype.name, *sorted(attrs.items()))], [-1])
        inputs = [np.broadcast_to(a, sizes) for a in arrays]
        got, compiled = np.zeros(sizes, want.dtype), np.zeros(sizes, want.dtype)
        try:
            Spliced(spec, stencils)([*inputs, got], sizes)
        except Unsupported:
            assert (name, dtype) in WITHOUT, f"{name} of {dtype} has no stencil"
            return
        assert (name, dtype) not in WITHOUT
        worst = error(got, np.broadcast_to(want.reshape(want.shape or (1,)), sizes))
        assert worst <= op.bound.get(dtype, 0), (spec, worst)
        harness.call(spec, [*inputs, compiled], sizes, TARGETS[""])
        assert same_bits(got, compiled), spec


@pytest.mark.parametrize("wide", ["float64", "int64"])
def test_narrow_ops_beside_wide_ones_have_their_own_stencils(wide, stencils):
    """In a region with 64-bit elements there are 8 lanes, of 32-bit elements too."""
    rng = np.random.default_rng(1)
    missing = []
    for name, op in OPS.items():
        for dtype in ("float32", "int32", "bool"):
            if not isinstance(op.form, ScalarExpr) or dtype not in op.domain or not op.samples or op.attrs or (name, dtype) in WITHOUT:
                continue
            operands = next(iter(op.samples(rng, dtype)))[0]
            result = np.asarray(op.reference(*operands)).dtype.name
            kinds = [np.asarray(a).dtype.name for a in operands]
            n = 29
            arrays = [(rng.random(n) * 4).astype(k) for k in kinds]
            spec = region(1, [*kinds, wide], [(name, tuple(range(len(kinds))), result), ("add", (len(kinds), len(kinds)), wide)], [-2, -1])
            outs = [[np.zeros(n, result), np.zeros(n, wide)] for _ in range(2)]
            other = (rng.random(n) * 100).astype(wide)
            try:
                Spliced(spec, stencils)([*arrays, other, *outs[0]], [n])
            except Unsupported as e:
                missing.append((name, dtype, e.reason))
                continue
            harness.call(spec, [*arrays, other, *outs[1]], [n], TARGETS[""])
            assert all(map(same_bits, *outs)), spec
    assert not missing
