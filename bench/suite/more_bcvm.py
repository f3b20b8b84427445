"""The workloads of more.py in bcvm, on NumPy arrays (peers `bcvm` and `bcvm-frozen`) or on MindSpore tensors through the functions of more_ms (`bcvm-ms`)."""
import math

import numpy as np


def make(W, peer, threads):
    import bcvm
    if peer == "bcvm-ms":
        import more_ms
        f, to, back = more_ms.make(W, "ms", threads)
        return bcvm.jit(f), to, back
    ops = bcvm.ops
    w = list(W.w)
    n = W.name
    if n == "moe":
        def f(x):
            p = ops.softmax(x @ w[0])
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
            score = np.array([0, -1e9, -1e9, -1e9], np.float32)
            seq = np.zeros((4, 1), np.int64)
            for t in range(x.shape[0]):
                h = np.tanh(h @ w[0] + w[1][seq[:, -1]] + x[t])
                total = (score[:, None] + ops.log_softmax(h @ w[2])).reshape(-1)
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
            s = q @ k.transpose(0, 2, 1) / math.sqrt(128)
            a = ops.softmax(np.where(mask[:, None, :], s, np.float32(-1e9))) @ v
            return np.where(mask[:, :, None], a, 0).sum(1) / lengths.astype(np.float32)[:, None]
    elif n == "pyramid":
        def f(x):
            total = np.zeros((1, 16), np.float32)
            while min(x.shape[2], x.shape[3]) >= 8:
                h, v = x.shape[2] // 2, x.shape[3] // 2
                small = x[:, :, :2 * h, :2 * v].reshape(1, 3, h, 2, v, 2).mean((3, 5))
                detail = np.abs(x[:, :, :2 * h, :2 * v] - small.repeat(2, 2).repeat(2, 3)).mean((2, 3))
                total = total + np.maximum(ops.conv2d(x, w[0], w[1], padding=1), 0).mean((2, 3)) + detail @ w[2]
                x = small
            return total
    elif n == "gan":
        def f(z):
            h = z @ w[0] + w[1]
            h = ops.leaky_relu((h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * w[2] + w[3], 0.2)
            fake = np.tanh(h @ w[4] + w[5])
            score = ops.sigmoid(ops.leaky_relu(fake @ w[6] + w[7], 0.2) @ w[8])
            if score.mean() < 0.5: fake = np.tanh(fake + ops.leaky_relu(fake @ w[9], 0.2) @ w[10])
            return fake
    elif n == "recsys":
        def f(history, candidates, dense):
            user = np.maximum(np.concatenate([w[0][history].mean(0), dense]) @ w[2] + w[3], 0)
            items = w[0][candidates]
            hidden = np.maximum(np.concatenate([items, items * user], 1) @ w[4] + w[5], 0)
            return ops.sigmoid(hidden @ w[6] + w[1][candidates])
    elif n == "channels":
        def f(x):
            c = x.shape[1]
            x = np.maximum(ops.conv2d(x, w[0][:c, :c], w[1][:c], padding=1), 0)
            x = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * w[2][:c, None, None]
            return np.maximum(ops.conv2d(x, w[3][:, :c], w[4]), 0).mean((2, 3))
    elif n == "jitter":
        def f(a, b, c):
            x = np.concatenate([a, b, c])
            return ops.layer_norm(np.maximum(x @ w[0] + w[1], 0) @ w[2] + x, w[3], w[4], eps=1e-5)
    elif n == "lstm":
        def f(x):
            h = np.zeros((x.shape[1], 128), np.float32)
            c = np.zeros((x.shape[1], 128), np.float32)
            for t in range(x.shape[0]):
                g = x[t] @ w[0] + h @ w[1] + w[2]
                c = ops.sigmoid(g[:, 128:256]) * c + ops.sigmoid(g[:, :128]) * np.tanh(g[:, 256:384])
                h = ops.sigmoid(g[:, 384:]) * np.tanh(c)
            return h
    elif n == "gru":
        def cell(x, h, wx, wh, b):
            gx, gh = x @ wx + b, h @ wh
            z = ops.sigmoid(gx[:, :96] + gh[:, :96])
            r = ops.sigmoid(gx[:, 96:192] + gh[:, 96:192])
            return (1 - z) * np.tanh(gx[:, 192:] + r * gh[:, 192:]) + z * h
        def f(x):
            steps, batch, _ = x.shape
            a = np.zeros((batch, 96), np.float32)
            b = np.zeros((batch, 96), np.float32)
            y = np.empty((steps, batch, 192), np.float32)
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
    return bcvm.jit(f, frozen=(peer == "bcvm-frozen")), (lambda a: a), (lambda o: o)
