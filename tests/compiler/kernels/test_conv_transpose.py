"""The transposed convolution kernel against the op's reference, over sizes, strides, padding, dilation, groups, parts and targets."""
from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import conv_transpose  # noqa: E402
from bcvm.compiler.kernels.conv import COLUMNS, OUTPUTS, ROWS, ConvAttrs  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402
from bcvm.ops.definition import OPS  # noqa: E402

targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))


def run(target: Target, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attrs: ConvAttrs, out: np.ndarray, lo: int = 0, hi: int = -1) -> None:
    source = conv_transpose.generate(str(x.dtype), attrs, bias is not None, target)
    operands = [(x, x.strides), (w, w.strides), *([] if bias is None else [(bias, (0, bias.strides[0], 0, 0))]), (out, out.strides)]
    sizes = (*x.shape, out.shape[1], *w.shape[2:], *out.shape[2:])
    assert h.run(h.compile_kernel(source, target), h.operand_words(*operands), h.words(*sizes), lo, hi) == 0


def exact(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attrs: ConvAttrs, more: tuple[int, int]) -> np.ndarray:
    pads = attrs.padding
    assert not isinstance(pads, str)
    dims = tuple((n - 1) * s - sum(p) + (k - 1) * d + 1 + extra for n, s, p, k, d, extra in zip(
        x.shape[2:], attrs.stride, (pads[:2], pads[2:]), w.shape[2:], attrs.dilation, more, strict=True))
    reference = OPS["conv_transpose2d"].reference
    assert reference is not None
    return np.asarray(reference(x, w, *([] if bias is None else [bias]), stride=attrs.stride, padding=pads, dilation=attrs.dilation, groups=attrs.groups,
                                dims=dims))


ATTRS = [
    ConvAttrs(),
    ConvAttrs(padding=(1, 1, 1, 1)),
    ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvAttrs(stride=(2, 3), padding=(2, 0, 1, 3), groups=2),
    ConvAttrs(stride=(1, 4), padding=(0, 1, 0, 0), dilation=(3, 1)),
    ConvAttrs(stride=(3, 3), groups=4),
]


@targets
@pytest.mark.parametrize("attrs", ATTRS, ids=str)
def test_any_size(target: Target, attrs: ConvAttrs) -> None:
    rng = np.random.default_rng(1)
    for kernel, size, more in (((3, 3), (5, 7), (0, 0)), ((4, 4), (8, 3), (0, 0)), ((2, 5), (6, 40), (1, 1)), ((1, 2), (4, 9), (0, 2)),
                               ((7, 6), (3, 4), (0, 0))):
        for dtype in ("float32", "int32"):
            x, w = h.values(rng, (2, 4, *size), dtype), h.values(rng, (4, 6, *kernel), dtype)
            bias = h.values(rng, (6 * attrs.groups,), dtype)
            try:
                expected = exact(x, w, bias, attrs, more)
            except ValueError:      # the padding takes all
                continue
            if 0 in expected.shape:
                continue
            out = h.guarded(np.full(expected.shape, 77, dtype))
            run(target, h.guarded(x), h.guarded(w), h.guarded(bias), attrs, out)
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@targets
def test_parts_make_the_whole(target: Target) -> None:
    rng = np.random.default_rng(2)
    for attrs in (ATTRS[1], ATTRS[2], ATTRS[3]):
        x, w = h.values(rng, (2, 4, 13, 17), "float32"), h.values(rng, (4, 5, 3, 3), "float32")
        whole = np.empty(exact(x, w, None, attrs, (0, 0)).shape, np.float32)
        run(target, x, w, None, attrs, whole)
        (sh, sw), (_, _, oh, ow) = attrs.stride, whole.shape
        units = attrs.groups * sh * sw * -(-5 // OUTPUTS) * 2 * -(-oh // (sh * ROWS)) * -(-ow // (sw * COLUMNS))
        written = np.zeros(whole.shape, int)
        for lo, hi in itertools.pairwise(sorted({0, units, *(int(n) for n in rng.integers(0, units + 1, 5))})):
            part = np.full_like(whole, np.nan)
            run(target, x, w, None, attrs, part, lo, hi)
            done = ~np.isnan(part)
            np.testing.assert_array_equal(part[done], whole[done])
            written += done
        assert (written == 1).all()


def test_what_it_does_not_do_is_refused() -> None:
    for attrs in (ConvAttrs(stride=(2, 1), dilation=(2, 1)), ConvAttrs(stride=(0, 1)), ConvAttrs(padding="same"), ConvAttrs(groups=0)):
        with pytest.raises(Unsupported):
            conv_transpose.generate("float32", attrs, False, h.TARGETS[0])
