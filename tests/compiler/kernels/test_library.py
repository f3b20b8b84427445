"""What library_call says is enough to call every kernel: a caller that follows it blindly agrees with the op's reference on the op's own samples."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels.library import NAMES, LibraryCall, Size, Stride, kernel_for, library_call  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402
from bcvm.ops.definition import OPS  # noqa: E402


def run(call: LibraryCall, operands: list[np.ndarray], cuts: int) -> int:
    """Calls the kernel as the call says, in `cuts` parts."""
    def value(entry: Any) -> int:
        if isinstance(entry, Size):
            return operands[entry.operand].shape[entry.dim]
        if isinstance(entry, Stride):
            operand = operands[entry.operand]
            return 0 if entry.broadcast and operand.shape[entry.dim] == 1 else operand.strides[entry.dim]
        return entry or 0

    words = h.operand_words(*((operand, tuple(value(s) for s in strides)) for operand, strides in zip(operands, call.strides, strict=True)))
    sizes = h.words(*(value(s) for s in call.sizes))
    units = 1
    for size, block in call.units:
        units *= -(-value(size) // block)
    function = h.compile_kernel(call.kernel, h.TARGETS[0])
    for part in range(cuts):
        code = h.run(function, words, sizes, units * part // cuts, units * (part + 1) // cuts)
        if code:
            return code
    return 0


@pytest.mark.parametrize("name", sorted(NAMES))
def test_samples_of_the_op(name: str) -> None:
    op = OPS[name]
    rng = np.random.default_rng(0)
    tried = 0
    for dtype in ("float32", "float64", "int32", "int64", "bool"):
        if dtype not in op.domain:
            continue
        for operands, attrs in op.samples(rng, dtype):
            arrays = [np.asarray(a) for a in operands]
            if name == "cumsum" and not arrays[0].ndim:
                continue
            expected = np.asarray(op.reference(*arrays, **attrs))
            out = np.full(expected.shape, 77, expected.dtype)
            every = [*arrays, out]
            call = library_call(name, tuple(str(a.dtype) for a in every), tuple(a.ndim for a in every), attrs, h.TARGETS[0])
            assert kernel_for(name, tuple(str(a.dtype) for a in every), tuple(a.ndim for a in every), attrs, h.TARGETS[0]) == call.kernel
            for cuts in (1, 3):
                assert run(call, every, cuts) == 0
                np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6 * abs(expected).max(initial=1))
                out[...] = 77
            tried += 1
    assert tried >= 3


def test_what_has_no_kernel_is_refused() -> None:
    target = h.TARGETS[0]
    for name, dtypes, ranks, attrs in (
        ("sort", ("float32", "float32"), (1, 1), {}),
        ("matmul", ("float32", "float64", "float64"), (2, 2, 2), {}),
        ("matmul", ("complex64",) * 3, (2, 2, 2), {}),
        ("matmul_packed", ("float16",) * 3, (2, 1, 2), {}),
        ("matmul_packed", ("float32",) * 3, (2, 2, 2), {}),
        ("matmul", ("float32",) * 3, (0, 2, 2), {}),
        ("conv2d", ("float32",) * 3, (3, 4, 4), {}),
        ("conv2d", ("float32",) * 3, (4, 4, 4), {"stride": ("a", 1)}),
        ("take", ("float32", "int64", "float32"), (2, 1, 2), {"axis": 2}),
        ("cumsum", ("float32", "float32"), (2, 2), {"axis": None}),
        ("max_pool2d", ("float32", "float32"), (3, 3), {}),
    ):
        with pytest.raises(Unsupported):
            library_call(name, dtypes, ranks, attrs, target)


def test_an_index_out_of_range_is_left_to_the_interpreter() -> None:
    x, indices, out = np.zeros((3, 2), np.float32), np.array([0, 3]), np.zeros((2, 2), np.float32)
    call = library_call("take", ("float32", "int64", "float32"), (2, 1, 2), {"axis": 0}, h.TARGETS[0])
    assert run(call, [x, indices, out], 1) == 1
