"""One-dimensional, three-dimensional and transposed convolutions: what they mean, their errors, and that compiled code agrees."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm import ops
from bcvm.errors import ShapeError
from bcvm.ops import products

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_conv1d_is_a_sum_over_windows() -> None:
    x, w, bias = array(2, 4, 11), array(6, 2, 3), array(6)
    y = ops.conv1d(x, w, bias, stride=2, padding=1, groups=2)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    for o in range(6):
        part = padded[:, 2 * (o // 3):2 * (o // 3) + 2]
        for place in range(y.shape[2]):
            np.testing.assert_allclose(y[:, o, place], (part[:, :, 2 * place:2 * place + 3] * w[o]).sum((1, 2)) + bias[o], rtol=1e-4, atol=1e-5)


def test_conv3d_is_a_sum_over_windows() -> None:
    x, w = array(1, 2, 5, 6, 4), array(3, 2, 2, 3, 2)
    y = ops.conv3d(x, w, stride=(2, 1, 1), padding=(1, 0, 0), dilation=(2, 1, 1))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))
    assert y.shape == (1, 3, 3, 4, 3)
    for d, i, j in np.ndindex(*y.shape[2:]):
        window = padded[0, :, 2 * d:2 * d + 3:2, i:i + 3, j:j + 2]
        np.testing.assert_allclose(y[0, :, d, i, j], (window * w).sum((1, 2, 3, 4)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attrs", [
    {}, {"padding": 1}, {"stride": 2, "padding": (1, 0, 0, 1)}, {"stride": (3, 2), "groups": 2}, {"dilation": (2, 1), "padding": (0, 1)}])
def test_transposed_is_the_adjoint_of_conv2d(attrs: dict[str, Any]) -> None:
    x, w = array(2, 4, 9, 8).astype(np.float64), array(6, 4 // attrs.get("groups", 1), 3, 3).astype(np.float64)
    y = ops.conv2d(x, w, **attrs)
    g = RNG.standard_normal(y.shape)
    back = ops.conv_transpose2d(g, w, **attrs)
    rows, columns = (min(a, b) for a, b in zip(x.shape[2:], back.shape[2:], strict=True))
    assert back.shape[2] <= 9 and back.shape[3] <= 8
    np.testing.assert_allclose((y * g).sum(), (x[:, :, :rows, :columns] * back[:, :, :rows, :columns]).sum(), rtol=1e-9)


def test_output_padding_makes_the_result_larger() -> None:
    x, w = array(1, 2, 4, 4), array(2, 3, 3, 3)
    small, large = ops.conv_transpose2d(x, w, stride=2, padding=1), ops.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    assert small.shape == (1, 3, 7, 7) and large.shape == (1, 3, 8, 8)
    np.testing.assert_array_equal(large[:, :, :7, :7], small)


def narrow(x: Any, w: Any) -> Any:
    return ops.conv1d(x, w, padding="same", dilation=2)


def deep(x: Any, w: Any) -> Any:
    return ops.conv3d(x, w, padding=1, stride=2, depth=3)


def wider(x: Any, w: Any) -> Any:
    return ops.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)


def longer(x: Any, w: Any) -> Any:
    return ops.conv_transpose1d(x, w, stride=3, groups=2)


@pytest.mark.parametrize(("function", "shapes"), [
    (narrow, [((2, 3, 20), (5, 3, 4)), ((1, 2, 300), (4, 2, 3))]), (deep, [((1, 2, 5, 6, 7), (3, 2, 3, 3, 3)), ((2, 2, 4, 4, 4), (1, 2, 3, 2, 3))]),
    (wider, [((2, 3, 5, 6), (3, 4, 4, 4)), ((1, 1, 1, 3), (1, 2, 2, 3))]), (longer, [((2, 4, 7), (4, 2, 4)), ((1, 2, 9), (2, 1, 2))])])
def test_compiled_code_agrees(function: Callable[..., Any], shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    compiled = bcvm.jit(function, tier="full", background=False)
    for shape, kernel in shapes:
        x, w = array(*shape), array(*kernel)
        np.testing.assert_allclose(compiled(x, w), function(x, w), rtol=1e-4, atol=1e-4)
    assert compiled.stats()["interpreted"] == 0, compiled.stats()


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="groups"):
        ops.conv1d(array(1, 3, 5), array(2, 3, 3), groups=2)
    with pytest.raises(ShapeError, match="ranks 2 and 3"):
        ops.conv1d(array(3, 5), array(2, 3, 3))
    with pytest.raises(ShapeError, match="depth"):
        ops.conv3d(array(1, 1, 2, 3, 3), array(1, 1, 3, 1, 1))
    with pytest.raises(ShapeError, match="do not fit"):
        ops.conv_transpose2d(array(1, 3, 4, 4), array(2, 1, 3, 3))
    with pytest.raises(ValueError, match="stride 1"):
        ops.conv1d(array(1, 1, 5), array(1, 1, 3), stride=2, padding="same")
    with pytest.raises(ValueError, match="padding"):
        ops.conv3d(array(1, 1, 2, 3, 3), array(1, 1, 1, 1, 1), padding=(1, 2))
    for transposed, x, w in ((ops.conv_transpose1d, array(1, 1, 5), array(1, 1, 3)), (ops.conv_transpose2d, array(1, 1, 5, 5), array(1, 1, 3, 3))):
        with pytest.raises(ValueError, match="same"):
            transposed(x, w, padding="same")


@pytest.mark.parametrize("held", (1, 3000))
@pytest.mark.parametrize("padding", ((0, 0, 0, 0), (9, 1, 0, 2), "same"))
@pytest.mark.parametrize(("kernel", "stride", "dilation"), (((3, 3), (1, 1), (1, 1)), ((2, 5), (2, 3), (2, 1)), ((1, 1), (1, 1), (1, 1))))
def test_unfolding_some_rows_at_a_time_changes_nothing(monkeypatch, held, padding, kernel, stride, dilation):
    rng = np.random.default_rng(0)
    for n, groups in ((1, 1), (3, 2), (0, 1)):
        x, w, b = rng.standard_normal((n, 4, 13, 11)), rng.standard_normal((6, 4 // groups, *kernel)), rng.standard_normal(6)
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        whole = products.conv2d_fast(x, w, b, **attrs)
        with monkeypatch.context() as m:
            m.setattr(products, "UNFOLDED", held)
            np.testing.assert_allclose(products.conv2d_fast(x, w, b, **attrs), whole, rtol=1e-12, atol=1e-12)
