"""Tensor expressions: views, stores, in-place operators, shapes that follow the input."""
# ruff: noqa: B007, B015, B018, B023, E731, F821, F841, F842, UP028
from __future__ import annotations

import numpy as np

from tests.programs import ProgramCase

x3 = np.array([1.0, -2.0, 3.0], np.float32)
x23 = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
x234 = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
i6 = np.arange(6)
w34 = np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4)
w44 = np.linspace(-1, 1, 16).reshape(4, 4)


def relu_bias(x, b):
    return np.maximum(x + b, 0)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def linear(x, w):
    return np.maximum(x @ w, 0) + 1


def attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v


def rnn(x, w):
    h = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w + h)
    return h


def slices(x):
    return x[1:], x[:, ::2], x[..., -1], x[::-1], x[None, 0], x[:, 1:2, ...]


def prefix_sums(x):
    out = []
    for t in range(x.shape[1] + 1):
        out.append(x[:, :t].sum())
    return out


def store_item(x, i, v):
    x[i] = v
    return x


def store_slices(x):
    x[0] = 1
    x[:, 1] = x[:, 2] * 2
    x[1:, ...] = x[:1]
    return x


def store_overlap(x):
    x[1:] = x[:-1]
    return x


def store_mask(x):
    x[x < 0] = 0
    return x


def in_place(x, y):
    x += y
    x *= 2
    x -= 1
    return x


def in_place_alias(x):
    y = x
    y += 1
    return x, y


def out_of_place(x):
    y = x
    y = y + 1
    return x, y


def in_place_item(x):
    x[0] += 5
    x[1:] *= 3
    x[0, 0] -= x[1, 1]
    return x


def view_then_write(x):
    row = x[0]
    flat = x.reshape(-1)
    flat[0] = 99
    row *= 2
    return x, row


def reshape_transpose(x):
    a, b, c = x.shape
    return x.reshape(a * b, c).T, x.transpose(2, 0, 1), x.reshape(a, -1)


def integer_ops(x, k):
    return x // k, x % k, x << 1, x >> 1, x & 3, x | 8, x ^ 5, ~x, -x, +x


def python_scalars(a, b):
    return a + b, a - b, a * b, a / b, a // b, a % b, a ** 2, -a, abs(b)


def integer_in_place(n):
    a, b, c = 7, 7, 7
    a //= n
    b %= n
    c **= 2
    a <<= 2
    b |= 8
    c &= 0b1111
    c ^= 1
    b >>= 1
    return a, b, c


def dtype_mix(x):
    return x + 1, x + 1.5, x * np.float64(2), x.astype(np.float16) + x, (x > 0) + x


def broadcast(a, b):
    return a[:, None] + b[None, :]


def masked_where(x, limit):
    return np.where(np.abs(x) > limit, np.sign(x) * limit, x)


def wrong_shapes(a, b):
    return a @ b + a


def gather(x, index):
    return x[index], x[index, 1:], np.take(x, index, axis=0)


def matmul_in_place(x, w):
    x @= w
    return x


CASES = [
    ProgramCase("relu_bias", relu_bias, [(x23, x3), (x23[:0], x3), (x3, np.float32(1)), (x23, x23.T)]),
    ProgramCase("softmax", softmax, [(x23,), (x234,), (x3,)]),
    ProgramCase("layer_norm", layer_norm, [(x23,), (x234, 0.5)]),
    ProgramCase("linear", linear, [(x23, w34), (x23[:1], w34), (x23.T, w34)]),
    ProgramCase("attention", attention, [(x234, x234, x234), (x234[:, :1], x234, x234)]),
    ProgramCase("rnn", rnn, [(x234, w44), (x234[:, :0], w44)]),
    ProgramCase("slices", slices, [(x234,), (x23,), (x3,)]),
    ProgramCase("prefix_sums", prefix_sums, [(x23,), (x23[:, :0],)]),
    ProgramCase("store_item", store_item, [(x3, 1, 5), (x23, (0, 1), -1), (x3, slice(0, 2), x3[1:]), (x3, 7, 0), ((1, 2), 0, 3)]),
    ProgramCase("store_slices", store_slices, [(x23,), (x234,)]),
    ProgramCase("store_overlap", store_overlap, [(x3,), (x234,)]),
    ProgramCase("store_mask", store_mask, [(x23,), (i6 - 3,)]),
    ProgramCase("in_place", in_place, [(x23, x3), (x3, 2), (2, 3), (x3, x23), (i6, 0.5)]),
    ProgramCase("in_place_alias", in_place_alias, [(x3,), (1,)]),
    ProgramCase("out_of_place", out_of_place, [(x3,), (1,)]),
    ProgramCase("in_place_item", in_place_item, [(x23,)]),
    ProgramCase("view_then_write", view_then_write, [(x23,), (x234,)]),
    ProgramCase("reshape_transpose", reshape_transpose, [(x234,), (x234[:, :1],)]),
    ProgramCase("integer_ops", integer_ops, [(i6, 3), (7, 2), (x3, 2)]),
    ProgramCase("python_scalars", python_scalars, [(7, 2), (1.5, -2), (True, 3), (1, 0), (2 + 1j, 1)]),
    ProgramCase("integer_in_place", integer_in_place, [(2,), (3,), (0,)]),
    ProgramCase("dtype_mix", dtype_mix, [(x3,), (i6,)]),
    ProgramCase("broadcast", broadcast, [(x3, x3[:2]), (x3[:1], i6)]),
    ProgramCase("masked_where", masked_where, [(x23, 1.0), (x23, np.float32(0.5))]),
    ProgramCase("wrong_shapes", wrong_shapes, [(x23, x23), (x23, w34)]),
    ProgramCase("gather", gather, [(x23, np.array([1, 0, 1])), (x23, np.array([5]))]),
    ProgramCase("matmul_in_place", matmul_in_place, [(w44[:2], w44), (w44, w44[:, :2])]),
]
