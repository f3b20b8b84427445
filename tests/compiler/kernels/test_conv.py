"""The convolution kernel against a float64 reference, over sizes, strides, padding, dilation, groups, layouts and targets."""
from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gemm_harness as h  # noqa: E402

from bcvm.compiler.kernels import conv  # noqa: E402
from bcvm.compiler.kernels.conv import ConvAttrs  # noqa: E402
from bcvm.compiler.target import Target  # noqa: E402
from bcvm.errors import Unsupported  # noqa: E402

targets = pytest.mark.parametrize("target", h.TARGETS, ids=("host", "avx2", "baseline"))


def reference(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attrs: ConvAttrs) -> np.ndarray:
    """Sums over windows, in the operands' own dtype."""
    (sh, sw), (dh, dw), groups = attrs.stride, attrs.dilation, attrs.groups
    top, left = (w.shape[2] - 1) * dh // 2, (w.shape[3] - 1) * dw // 2
    bottom, right = (w.shape[2] - 1) * dh - top, (w.shape[3] - 1) * dw - left
    if attrs.padding != "same":
        top, bottom, left, right = attrs.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, per_group, kh, kw = w.shape
    oh, ow = out_size(x.shape[2], kh, sh, dh), out_size(x.shape[3], kw, sw, dw)
    out = np.zeros((x.shape[0], outputs, oh, ow), x.dtype)
    per_output = outputs // groups
    for g in range(groups):
        part, weights = x[:, g * per_group:(g + 1) * per_group], w[g * per_output:(g + 1) * per_output]
        for i in range(kh):
            for j in range(kw):
                window = part[:, :, i * dh:i * dh + (oh - 1) * sh + 1:sh, j * dw:j * dw + (ow - 1) * sw + 1:sw]
                out[:, g * per_output:(g + 1) * per_output] += np.einsum("bchw,oc->bohw", window, weights[:, :, i, j])
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def out_size(padded: int, kernel: int, stride: int, dilation: int) -> int:
    return max((padded - (kernel - 1) * dilation - 1) // stride + 1, 0)


def convolve(target: Target, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attrs: ConvAttrs, out: np.ndarray, lo: int = 0, hi: int = -1) -> None:
    source = conv.generate(str(x.dtype), attrs, bias is not None, target)
    operands = [(x, x.strides), (w, w.strides), *([] if bias is None else [(bias, (0, bias.strides[0], 0, 0))]), (out, out.strides)]
    sizes = (*x.shape, w.shape[0], *w.shape[2:], *out.shape[2:], 0)
    assert h.run(h.compile_kernel(source, target), h.operand_words(*operands), h.words(*sizes), lo, hi) == 0


def check(target: Target, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attrs: ConvAttrs, pattern: str = "plain", mixed: bool = False) -> None:
    """mixed: the weights of a channel are added before they are used, so that each of them counts as much as all."""
    wide = np.float64 if x.dtype.kind == "f" else x.dtype
    exact = reference(x.astype(wide), w.astype(wide), None if bias is None else bias.astype(wide), attrs)
    out = h.layout(np.random.default_rng(0), exact.shape, str(x.dtype), pattern)
    whole = out
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    whole[...] = 77
    convolve(target, x, w, bias, attrs, out)
    if x.dtype.kind == "f":
        weights = np.broadcast_to(abs(w).sum((2, 3), keepdims=True), w.shape) if mixed else abs(w)
        size = reference(abs(x).astype(wide), weights.astype(wide), None if bias is None else abs(bias).astype(wide), attrs)
        assert (abs(out - exact) <= np.finfo(x.dtype).eps * (np.sqrt(w[0].size) + 4) * size + np.finfo(x.dtype).tiny).all()
    else:
        np.testing.assert_array_equal(out, exact)
    out[...] = 77
    assert (whole == 77).all(), "wrote outside the output"


ATTRS = [
    ConvAttrs(),
    ConvAttrs(padding=(1, 1, 1, 1)),
    ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1)),
    ConvAttrs(stride=(3, 2), padding=(0, 2, 3, 1), dilation=(2, 3)),
    ConvAttrs(padding=(2, 2, 2, 2), dilation=(2, 2), groups=2),
    ConvAttrs(stride=(1, 2), padding=(3, 0, 0, 3), groups=3),
]


@targets
@pytest.mark.parametrize("attrs", ATTRS, ids=str)
def test_any_size_and_layout(target: Target, attrs: ConvAttrs) -> None:
    rng = np.random.default_rng(1)
    done = 0
    while done < 25:
        batch, per_group, per_output = (int(n) for n in rng.choice([1, 2, 3, 5, 8], 3))
        kh, kw = (int(n) for n in rng.choice([1, 2, 3, 5], 2))
        height, width = (int(n) for n in rng.choice([1, 3, 5, 8, 13, 24, 31, 70], 2))
        padded = height + sum(attrs.padding[:2]), width + sum(attrs.padding[2:])
        if out_size(padded[0], kh, attrs.stride[0], attrs.dilation[0]) == 0 or out_size(padded[1], kw, attrs.stride[1], attrs.dilation[1]) == 0:
            continue
        x = h.layout(rng, (batch, per_group * attrs.groups, height, width), "float32", str(rng.choice(h.PATTERNS)))
        w = h.layout(rng, (per_output * attrs.groups, per_group, kh, kw), "float32", str(rng.choice(("plain", *h.PATTERNS))))
        bias = h.layout(rng, (len(w),), "float32", str(rng.choice(("plain", "steps", "reversed")))) if rng.random() < 0.5 else None
        check(target, x, w, bias, attrs, str(rng.choice(("plain", "plain", "transposed", "slice", "steps", "reversed"))))
        done += 1


@targets
def test_same_padding_keeps_the_size(target: Target) -> None:
    rng = np.random.default_rng(8)
    for kernel in ((3, 3), (4, 2), (1, 5)):
        x, w = h.values(rng, (2, 3, 11, 14), "float32"), h.values(rng, (4, 3, *kernel), "float32")
        for dilation in ((1, 1), (2, 3)):
            attrs = ConvAttrs(padding="same", dilation=dilation)
            assert reference(x, w, None, attrs).shape == (2, 4, 11, 14)
            check(target, x, w, None, attrs)


@targets
def test_a_kernel_without_elements_gives_zeros(target: Target) -> None:
    out = np.full((1, 2, 6, 6), np.nan, np.float32)
    convolve(target, np.ones((1, 3, 5, 5), np.float32), np.ones((2, 3, 0, 0), np.float32), None, ATTRS[0], out)
    assert (out == 0).all()


@targets
def test_depthwise(target: Target) -> None:
    rng = np.random.default_rng(2)
    for size in (7, 30):
        check(target, h.values(rng, (2, 6, size, size + 1), "float32"), h.values(rng, (6, 1, 3, 3), "float32"), h.values(rng, (6,), "float32"),
              ConvAttrs(padding=(1, 1, 1, 1), groups=6))
        check(target, h.values(rng, (2, 6, size, size + 1), "float32"), h.values(rng, (12, 1, 3, 3), "float32"), None,
              ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1), groups=6))


@targets
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_depthwise_of_any_kernel(target: Target, dtype: str) -> None:
    rng = np.random.default_rng(9)
    kinds = (
        ((3, 3), ConvAttrs(padding=(1, 1, 1, 1), groups=3)),
        ((3, 3), ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1), groups=3)),
        ((3, 3), ConvAttrs(stride=(1, 2), padding=(0, 2, 3, 0), groups=3)),
        ((3, 3), ConvAttrs(padding=(2, 2, 2, 2), dilation=(2, 2), groups=3)),
        ((5, 5), ConvAttrs(padding="same", groups=3)),
        ((4, 2), ConvAttrs(padding="same", groups=3)),
        ((5, 2), ConvAttrs(stride=(2, 2), padding=(2, 1, 0, 1), dilation=(1, 3), groups=3)),
        ((2, 2), ConvAttrs(stride=(3, 3), groups=3)),
    )
    for kernel, attrs in kinds if dtype == "float32" else kinds[:2]:
        for size in ((7, 7), (6, 12), (14, 9), (11, 37), (6, 300)):
            x, w = h.values(rng, (2, 3, *size), dtype), h.values(rng, (3, 1, *kernel), dtype)
            check(target, x, w, h.values(rng, (3,), dtype), attrs)
            check(target, h.layout(rng, x.shape, dtype, "slice"), w.transpose(0, 1, 3, 2) if kernel == (3, 3) else w, None, attrs, "slice")


@targets
def test_depthwise_in_parts_and_within_its_operands(target: Target) -> None:
    rng = np.random.default_rng(10)
    for attrs in (ConvAttrs(padding=(1, 1, 1, 1), groups=3), ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1), groups=3)):
        for size in ((7, 7), (18, 33), (5, 300)):
            x, w, bias = h.guarded(h.values(rng, (2, 3, *size), "float32")), h.guarded(h.values(rng, (3, 1, 3, 3), "float32")), h.values(rng, (3,), "float32")
            whole = h.guarded(np.empty(reference(x, w, bias, attrs).shape, np.float32))
            convolve(target, x, w, bias, attrs, whole)
            units = conv.units(2, 3, 3, *whole.shape[2:])
            part = np.full_like(whole, np.nan)
            for lo, hi in itertools.pairwise(sorted({0, units, *(int(n) for n in rng.integers(0, units + 1, 4))})):
                convolve(target, x, w, bias, attrs, part, lo, hi)
            np.testing.assert_array_equal(part, whole)


@targets
def test_wide_rows_are_cut(target: Target) -> None:
    rng = np.random.default_rng(11)
    for attrs in (ConvAttrs(), ConvAttrs(padding=(0, 0, 2, 1)), ConvAttrs(stride=(1, 2), padding=(0, 0, 1, 1), dilation=(1, 3))):
        for outputs, channels in ((2, 3), (40, 5)):
            x, w = h.values(rng, (2, channels, 1, 1001), "float32"), h.values(rng, (outputs, channels, 1, 3), "float32")
            check(target, x, w, h.values(rng, (outputs,), "float32"), attrs)


@targets
def test_channels_last_both_ways(target: Target) -> None:
    rng = np.random.default_rng(12)
    for attrs in (ConvAttrs(), ConvAttrs(padding=(1, 1, 1, 1)), ConvAttrs(stride=(2, 2), padding=(1, 1, 1, 1))):
        x = h.values(rng, (2, 19, 21, 20), "float32").transpose(0, 3, 1, 2)
        w = h.values(rng, (35, 20, 3, 3), "float32")
        exact = reference(x.astype(float), w.astype(float), None, attrs)
        out = np.empty((2, *exact.shape[2:], 35), np.float32).transpose(0, 3, 1, 2)
        convolve(target, x, w, None, attrs, out)
        np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-4)


@targets
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_dtypes(target: Target, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for attrs in ATTRS[1:3]:
        check(target, h.values(rng, (2, 3, 9, 21), dtype), h.values(rng, (7, 3, 3, 3), dtype), h.values(rng, (7,), dtype), attrs)


@targets
def test_channels_last_view(target: Target) -> None:
    rng = np.random.default_rng(4)
    x, w = h.values(rng, (2, 20, 22, 5), "float32").transpose(0, 3, 1, 2), h.values(rng, (3, 3, 5, 7), "float32").transpose(3, 2, 0, 1)
    for attrs in ATTRS[:3]:
        check(target, x, w, None, attrs)


def test_parts_of_a_large_input_make_the_whole() -> None:
    target, rng = h.TARGETS[0], np.random.default_rng(14)
    for kernel, attrs in ((1, ConvAttrs(stride=(2, 2))), (3, ConvAttrs(padding=(1, 1, 1, 1)))):
        x, w = h.values(rng, (2, 32, 70, 69), "float32"), h.values(rng, (70, 32, kernel, kernel), "float32")
        assert x.nbytes > max(conv.LARGE, w.nbytes)
        whole = np.empty(reference(x, w, None, attrs).shape, np.float32)
        convolve(target, x, w, None, attrs, whole)
        np.testing.assert_allclose(whole, reference(x, w, None, attrs), rtol=1e-3, atol=1e-3)
        units, part = conv.units(2, 70, 1, *whole.shape[2:]), np.full_like(whole, np.nan)
        for lo, hi in itertools.pairwise(sorted({0, 1, 2, units, *(int(n) for n in rng.integers(0, units + 1, 6))})):
            convolve(target, x, w, None, attrs, part, lo, hi)
        np.testing.assert_array_equal(part, whole)


@targets
def test_images_that_share_a_block(target: Target) -> None:
    rng = np.random.default_rng(13)
    for height, width in itertools.product((4, 7, 8), range(3, 14)):
        attrs = ConvAttrs(padding=(0, 1, 0, 1))
        check(target, h.values(rng, (3, 4, height, width), "float32"), h.values(rng, (20, 4, 2, 2), "float32"), None, attrs)


@targets
def test_many_channels(target: Target) -> None:
    rng = np.random.default_rng(5)
    check(target, h.values(rng, (1, 130, 9, 9), "float32"), h.values(rng, (70, 130, 3, 3), "float32"), None, ATTRS[1])
    check(target, h.values(rng, (2, 64, 28, 28), "float32"), h.values(rng, (65, 64, 1, 1), "float32"), h.values(rng, (65,), "float32"), ATTRS[0])


@targets
def test_no_channels_leave_the_bias(target: Target) -> None:
    out = np.full((1, 4, 5, 5), np.nan, np.float32)
    bias = np.arange(4, dtype=np.float32)
    convolve(target, np.zeros((1, 0, 5, 5), np.float32), np.zeros((4, 0, 3, 3), np.float32), bias, ATTRS[1], out)
    assert (out == bias.reshape(1, 4, 1, 1)).all()


@targets
def test_empty_output_is_no_work(target: Target) -> None:
    for batch, outputs, rows in ((0, 4, 5), (2, 0, 5), (2, 4, 0)):
        convolve(target, np.zeros((batch, 3, 5, 5), np.float32), np.zeros((outputs, 3, 3, 3), np.float32), None, ATTRS[1],
                 np.zeros((batch, outputs, rows, 5), np.float32))


@targets
def test_parts_are_disjoint_and_make_the_same_bits_as_the_whole(target: Target) -> None:
    rng = np.random.default_rng(6)
    for attrs in (ATTRS[1], ATTRS[2], ATTRS[4]):
        x, w = h.values(rng, (2, 4, 40, 41), "float32"), h.values(rng, (6, 4 // attrs.groups, 3, 3), "float32")
        bias = h.values(rng, (6,), "float32")
        whole = np.empty(reference(x, w, bias, attrs).shape, np.float32)
        convolve(target, x, w, bias, attrs, whole)
        written = np.zeros(whole.shape, int)
        units = conv.units(2, 6, attrs.groups, *whole.shape[2:])
        cuts = sorted({0, units, *(int(n) for n in rng.integers(0, units + 1, 5))})
        for lo, hi in itertools.pairwise(cuts):
            part = np.full_like(whole, np.nan)
            convolve(target, x, w, bias, attrs, part, lo, hi)
            done = ~np.isnan(part)
            np.testing.assert_array_equal(part[done], whole[done])
            written += done
        assert (written == 1).all()


@targets
def test_reads_and_writes_nothing_behind_its_operands(target: Target) -> None:
    rng = np.random.default_rng(7)
    for attrs in ATTRS[:4]:
        x, w = h.values(rng, (1, 3, 17, 23), "float32"), h.values(rng, (5, 3, 3, 3), "float32")
        bias = h.values(rng, (5,), "float32")
        exact = reference(x.astype(float), w.astype(float), bias.astype(float), attrs)
        out = h.guarded(np.zeros(exact.shape, np.float32))
        convolve(target, h.guarded(x), h.guarded(w), h.guarded(bias), attrs, out)
        np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-4)


def test_bad_attributes_and_dtypes_are_refused() -> None:
    for attrs in (ConvAttrs(stride=(0, 1)), ConvAttrs(padding=(-1, 0, 0, 0)), ConvAttrs(groups=0)):
        with pytest.raises(Unsupported, match="conv2d"):
            conv.generate("float32", attrs, False, h.TARGETS[0])
    with pytest.raises(Unsupported, match="float16"):
        conv.generate("float16", ConvAttrs(), False, h.TARGETS[0])


def test_no_symbol_outside_itself() -> None:
    for target in h.TARGETS:
        assert h.outside_symbols(conv.generate("float32", ATTRS[3], True, target), target) == set()


# -- Winograd's way, whether it pays or not

@pytest.fixture(params=["host", "avx2"])
def winograd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(conv.winograd, "pays", lambda f, *sizes: f.cmp("slt", 0, 1))
    return h.TARGETS[request.param == "avx2"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_winograd_of_any_size_and_layout(winograd: Target, dtype: str) -> None:
    rng = np.random.default_rng(20)
    sizes = [(1, 1), (2, 3), (3, 7), (5, 34), (13, 68), (40, 41), (9, 300), (70, 20)]
    for k, size in enumerate(sizes if dtype == "float32" else sizes[1::3]):
        for outputs, channels in ((1, 1), (16, 5), (33, 3), (40, 35))[k % 2::2]:
            for pad in ((1, 1, 1, 1), (2, 0, 0, 3), (0, 3, 2, 0)):
                if size[0] + sum(pad[:2]) >= 3 and size[1] + sum(pad[2:]) >= 3:
                    pattern = str(rng.choice(("plain", "slice")))
                    x, w = h.layout(rng, (2, channels, *size), dtype, pattern), h.values(rng, (outputs, channels, 3, 3), dtype)
                    check(winograd, x, w, h.values(rng, (outputs,), dtype) if k % 3 else None, ConvAttrs(padding=pad), str(rng.choice(("plain", "slice"))), True)


def test_winograd_without_padding_in_parts_and_within_its_operands(winograd: Target) -> None:
    rng = np.random.default_rng(21)
    for size, attrs in (((19, 23), ConvAttrs()), ((38, 70), ConvAttrs(padding=(1, 1, 1, 1))), ((7, 300), ConvAttrs(padding=(0, 0, 1, 1))), ((90, 91), ConvAttrs())):
        x, w, bias = (h.guarded(h.values(rng, s, "float32")) for s in ((2, 35, *size), (70, 35, 3, 3), (70,)))
        whole = h.guarded(np.full(reference(x, w, bias, attrs).shape, np.nan, np.float32))
        convolve(winograd, x, w, bias, attrs, whole)
        np.testing.assert_allclose(whole, reference(x.astype(float), w.astype(float), bias.astype(float), attrs), rtol=1e-3, atol=1e-3)
        units, part = conv.units(2, 70, 1, *whole.shape[2:]), np.full_like(whole, np.nan)
        for lo, hi in itertools.pairwise(sorted({0, 1, units, *(int(n) for n in rng.integers(0, units + 1, 6))})):
            convolve(winograd, x, w, bias, attrs, part, lo, hi)
        np.testing.assert_array_equal(part, whole)


def test_winograd_leaves_what_is_not_finite_to_the_direct_way(winograd: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(22)
    attrs = ConvAttrs(padding=(1, 1, 1, 1))
    x, w = h.values(rng, (2, 20, 30, 33), "float32"), h.values(rng, (40, 20, 3, 3), "float32")
    w[3], w[:, 0], w[:, 4] = 0, abs(w[:, 0]), abs(w[:, 4])
    x[0, 0, 5, 6], x[0, 4, 17, 0], x[1, 0, 29, 32] = np.inf, -np.inf, np.nan
    x[1, 1, 2:4, 2:6] = 3e38 * np.array([1, -1, 1, -1])     # their differences overflow
    w[:, 1] = 0
    found, direct = (np.empty((2, 40, 30, 33), np.float32) for _ in range(2))
    convolve(winograd, x, w, None, attrs, found)
    monkeypatch.setattr(conv.winograd, "pays", lambda f, *sizes: f.cmp("slt", 1, 0))
    convolve(winograd, x, w, None, attrs, direct)
    assert np.isinf(direct).any() and np.isnan(direct).any() and np.isfinite(direct[1, 5, 1:4, 1:6]).all()
    for same in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(same(found), same(direct))
    finite = np.isfinite(direct)
    np.testing.assert_allclose(found[finite], direct[finite], rtol=1e-3, atol=1e-3)


def test_winograd_hides_small_numbers_beside_large_ones_no_more_than_the_direct_way(winograd: Target) -> None:
    """Pixels outside a window do not touch its result, in a transform that overflows neither."""
    rng = np.random.default_rng(23)
    x, w = h.values(rng, (1, 20, 24, 37), "float32"), h.values(rng, (33, 20, 3, 3), "float32")
    x[0, :, 11, 16] = 1e12
    x[0, 7, 3, 20] = 1e30
    check(winograd, x, w, None, ConvAttrs(padding=(1, 1, 1, 1)), mixed=True)


@pytest.mark.skipif(not h.TARGETS[0].avx512, reason="Winograd's way needs parts of vectors")
def test_winograd_is_taken_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums are others in the last bits; for few channels they are not."""
    rng = np.random.default_rng(24)
    for channels, other in ((32, True), (3, False)):
        x, w = h.values(rng, (1, channels, 40, 40), "float32"), h.values(rng, (32, channels, 3, 3), "float32")
        results = []
        for pays in (conv.winograd.pays, lambda f, *sizes: f.cmp("slt", 1, 0)):
            monkeypatch.setattr(conv.winograd, "pays", pays)
            results.append(np.empty((1, 32, 40, 40), np.float32))
            convolve(h.TARGETS[0], x, w, None, ATTRS[1], results[-1])
            monkeypatch.undo()
        assert (results[0] != results[1]).any() == other
