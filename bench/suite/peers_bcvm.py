"""bcvm on NumPy arrays (peers `bcvm`, and `bcvm-frozen` with frozen=True) or on MindSpore tensors through the very functions of peers_ms (peer `bcvm-ms`)."""
import math

import numpy as np


def make(W, peer, threads):
    import bcvm
    if peer == "bcvm-ms":
        import peers_ms
        f, to, back = peers_ms.make(W, "ms", threads)
        return bcvm.jit(f), to, back
    ops = bcvm.ops
    w = list(W.w)
    n = W.name
    if n == "mlp":
        def f(x): return np.maximum(x @ w[0] + w[1], 0) @ w[2] + w[3]
    elif n == "chain":
        def f(x, y): return ops.layer_norm(ops.gelu(x + w[0]) + y, w[1], w[2], eps=1e-5)
    elif n == "branch":
        def f(x):
            if x.sum() > 0: return np.maximum(x, 0) + 1.0
            return ops.sigmoid(x) * 2.0
    elif n == "bert":
        H, D = W.H, W.D
        def f(x):
            B, S, _ = x.shape
            q, k, v = np.split(x @ w[0] + w[1], 3, -1)
            q = q.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
            k = k.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
            v = v.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
            a = ops.softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(D // H), -1) @ v
            x = ops.layer_norm(x + a.transpose(0, 2, 1, 3).reshape(B, S, D) @ w[2] + w[3], w[4], w[5], eps=1e-5)
            return ops.layer_norm(x + ops.gelu(x @ w[6] + w[7]) @ w[8] + w[9], w[10], w[11], eps=1e-5)
    elif n == "rnn":
        D = W.D
        def f(x):
            h = np.zeros((x.shape[1], D), np.float32)
            for t in range(x.shape[0]):
                gx = x[t] @ w[0] + w[2]
                gh = h @ w[1]
                z = ops.sigmoid(gx[:, :D] + gh[:, :D])
                q = ops.sigmoid(gx[:, D:2 * D] + gh[:, D:2 * D])
                c = np.tanh(gx[:, 2 * D:] + q * gh[:, 2 * D:])
                h = (1 - z) * c + z * h
            return h
    elif n == "decode":
        H, D = W.H, W.D
        def f(x, kc, vc):
            q, k, v = np.split(x @ w[0], 3, -1)
            q, k, v = q.reshape(H, 1, D // H), k.reshape(H, 1, D // H), v.reshape(H, 1, D // H)
            k = np.concatenate([kc, k], 1)
            v = np.concatenate([vc, v], 1)
            a = ops.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(D // H), -1) @ v
            return a.reshape(1, D) @ w[1] + x
    elif n == "conv":
        def f(x):
            x = np.maximum(ops.conv2d(x, w[0], w[1], padding=1), 0)
            x = np.maximum(ops.conv2d(x, w[2], w[3], padding=1), 0)
            x = np.maximum(ops.conv2d(x, w[4], w[5], padding=1), 0)
            return x.mean((2, 3))
    elif n == "tiny":
        def f(x, y): return np.maximum((x + y) * np.float32(2.0), 0)
    elif n == "while":
        def f(x):
            while (x * x).sum() > 1.0: x = np.tanh(x @ w[0])
            return x
    return bcvm.jit(f, frozen=(peer == "bcvm-frozen")), (lambda a: a), (lambda o: o)
