"""The workloads of more.py in plain NumPy, as its users write it. On float64 weights it is their reference."""
import math

import numpy as np
from workloads import np_softmax


def make(W, peer, threads):
    w = list(W.w)
    n = W.name
    def sig(x):
        return 1 / (1 + np.exp(-x))
    def conv(x, k, b):
        O, C, kh, kw = k.shape
        if kh > 1: x = np.pad(x, ((0, 0), (0, 0), (kh // 2, kh // 2), (kw // 2, kw // 2)))
        cols = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (2, 3)).transpose(0, 1, 4, 5, 2, 3)
        B, H, V = x.shape[0], cols.shape[4], cols.shape[5]
        return (k.reshape(O, -1) @ cols.reshape(B, C * kh * kw, H * V)).reshape(B, O, H, V) + b[:, None, None]
    if n == "moe":
        def f(x):
            p = np_softmax(x @ w[0])
            e = p.argmax(-1)
            order = np.argsort(e, kind="stable")
            ends = np.cumsum(np.bincount(e, minlength=8))
            xs = x[order]
            ys = np.empty_like(xs)
            start = 0
            for i in range(8):
                end = int(ends[i])
                ys[start:end] = np.maximum(xs[start:end] @ w[1][i], 0) @ w[2][i]
                start = end
            return ys[np.argsort(order)] * p.max(-1, keepdims=True)
    elif n == "beam":
        def f(x):
            h = np.tanh(np.stack([x.mean(0)] * 4))
            score = np.array([0, -1e9, -1e9, -1e9], x.dtype)
            seq = np.zeros((4, 1), np.int64)
            for t in range(x.shape[0]):
                h = np.tanh(h @ w[0] + w[1][seq[:, -1]] + x[t])
                logits = h @ w[2]
                m = logits.max(-1, keepdims=True)
                logp = logits - m - np.log(np.exp(logits - m).sum(-1, keepdims=True))
                total = (score[:, None] + logp).reshape(-1)
                best = np.argsort(-total)[:4]
                parent, token = best // 512, best % 512
                score, h = total[best], h[parent]
                seq = np.concatenate([seq[parent], token[:, None]], 1)
                if token[0] < 16: break
            return score, seq
    elif n == "ragged":
        def f(x, lengths):
            mask = np.arange(x.shape[1]) < lengths[:, None]
            q, k, v = np.split(x @ w[0], 3, -1)
            s = q @ k.transpose(0, 2, 1) * x.dtype.type(1 / math.sqrt(128))
            a = np_softmax(np.where(mask[:, None, :], s, x.dtype.type(-1e9))) @ v
            return np.where(mask[:, :, None], a, 0).sum(1) / lengths.astype(x.dtype)[:, None]
    elif n == "pyramid":
        def f(x):
            total = np.zeros((1, 16), x.dtype)
            while min(x.shape[2], x.shape[3]) >= 8:
                h, v = x.shape[2] // 2, x.shape[3] // 2
                small = x[:, :, :2 * h, :2 * v].reshape(1, 3, h, 2, v, 2).mean((3, 5))
                detail = np.abs(x[:, :, :2 * h, :2 * v] - small.repeat(2, 2).repeat(2, 3)).mean((2, 3))
                total = total + np.maximum(conv(x, w[0], w[1]), 0).mean((2, 3)) + detail @ w[2]
                x = small
            return total
    elif n == "gan":
        def leaky(x): return np.where(x > 0, x, x * x.dtype.type(0.2))
        def f(z):
            h = z @ w[0] + w[1]
            h = leaky((h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * w[2] + w[3])
            fake = np.tanh(h @ w[4] + w[5])
            score = sig(leaky(fake @ w[6] + w[7]) @ w[8])
            if score.mean() < 0.5: fake = np.tanh(fake + leaky(fake @ w[9]) @ w[10])
            return fake
    elif n == "recsys":
        def f(history, candidates, dense):
            user = np.maximum(np.concatenate([w[0][history].mean(0), dense]) @ w[2] + w[3], 0)
            items = w[0][candidates]
            hidden = np.maximum(np.concatenate([items, items * user], 1) @ w[4] + w[5], 0)
            return sig(hidden @ w[6] + w[1][candidates])
    elif n == "channels":
        def f(x):
            c = x.shape[1]
            x = np.maximum(conv(x, w[0][:c, :c], w[1][:c]), 0)
            x = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * w[2][:c, None, None]
            return np.maximum(conv(x, w[3][:, :c], w[4]), 0).mean((2, 3))
    elif n == "jitter":
        def f(a, b, c):
            x = np.concatenate([a, b, c])
            y = np.maximum(x @ w[0] + w[1], 0) @ w[2] + x
            y = y - y.mean(-1, keepdims=True)
            return y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) * w[3] + w[4]
    elif n == "lstm":
        def f(x):
            h = np.zeros((x.shape[1], 128), x.dtype)
            c = np.zeros((x.shape[1], 128), x.dtype)
            for t in range(x.shape[0]):
                g = x[t] @ w[0] + h @ w[1] + w[2]
                c = sig(g[:, 128:256]) * c + sig(g[:, :128]) * np.tanh(g[:, 256:384])
                h = sig(g[:, 384:]) * np.tanh(c)
            return h
    elif n == "gru":
        def cell(x, h, wx, wh, b):
            gx, gh = x @ wx + b, h @ wh
            z = sig(gx[:, :96] + gh[:, :96])
            r = sig(gx[:, 96:192] + gh[:, 96:192])
            return (1 - z) * np.tanh(gx[:, 192:] + r * gh[:, 192:]) + z * h
        def f(x):
            steps, batch, _ = x.shape
            a = np.zeros((batch, 96), x.dtype)
            b = np.zeros((batch, 96), x.dtype)
            y = np.empty((steps, batch, 192), x.dtype)
            for t in range(steps):
                a = cell(x[t], a, w[0], w[1], w[2])
                b = cell(x[steps - 1 - t], b, w[3], w[4], w[5])
                y[t, :, :96] = a
                y[steps - 1 - t, :, 96:] = b
            return y
    elif n == "diffusion":
        def f(x):
            for t in range(50):
                noise = x - np.tanh(np.maximum(x @ w[0] + w[1] * (t * 0.02), 0) @ w[2])
                step = noise * (0.5 - 0.004 * t)
                x = x - step
                if np.sqrt((step * step).mean()) < 0.01: break
            return x
    return f, (lambda a: a), (lambda o: o)
