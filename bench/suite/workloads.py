"""Dynamic-shape workloads, one definition of weights, inputs and expected results for every peer.

Each workload yields a stream of calls: fresh shapes on (nearly) every call, the same for all peers (seeded).
`ref` is plain NumPy in float64
peers are held to it on the first calls.
"""
import math

import numpy as np

F = np.float32


def _w(rng, *s):
    return (rng.standard_normal(s) / math.sqrt(s[0] if len(s) > 1 else 1.0)).astype(F)


def erf(x):
    from scipy.special import erf as e
    return e(x)


def np_gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def np_softmax(x):
    m = x.max(-1, keepdims=True)
    e = np.exp(x - m)
    return e / e.sum(-1, keepdims=True)


def np_ln(x, g, b):
    mu = x.mean(-1, keepdims=True)
    v = ((x - mu) ** 2).mean(-1, keepdims=True)
    return (x - mu) / np.sqrt(v + 1e-5) * g + b


class Mlp:
    name = "mlp"
    def __init__(s, n=200):
        r = np.random.default_rng(0)
        s.w = [_w(r, 256, 1024), _w(r, 1024), _w(r, 1024, 256), _w(r, 256)]
        s.calls = [(r.standard_normal((int(r.integers(1, 129)), 256)).astype(F),) for _ in range(n)]
    def ref(s, x):
        w1, b1, w2, b2 = [a.astype(np.float64) for a in s.w]
        return np.maximum(x @ w1 + b1, 0) @ w2 + b2


class Chain:
    """residual + bias + gelu + layernorm: memory bound."""
    name = "chain"
    def __init__(s, n=200):
        r = np.random.default_rng(1)
        s.w = [_w(r, 768), 1 + _w(r, 768), _w(r, 768)]
        s.calls = []
        for _ in range(n):
            m = int(r.integers(1, 1025))
            s.calls.append((r.standard_normal((m, 768)).astype(F), r.standard_normal((m, 768)).astype(F)))
    def ref(s, x, y):
        b, g, be = s.w
        return np_ln(np_gelu(x.astype(np.float64) + b) + y, g, be)


class Branch:
    """data-dependent branch on a tensor value."""
    name = "branch"
    def __init__(s, n=200):
        r = np.random.default_rng(2)
        s.w = []
        s.calls = [(r.standard_normal((int(r.integers(1, 17)), int(r.integers(1, 513)))).astype(F),) for _ in range(n)]
    def ref(s, x):
        x = x.astype(np.float64)
        return np.maximum(x, 0) + 1 if x.sum() > 0 else 1 / (1 + np.exp(-x)) * 2


class Bert:
    name = "bert"
    H, D, FF = 4, 256, 1024
    def __init__(s, n=120):
        r = np.random.default_rng(3)
        D, FF = s.D, s.FF
        s.w = [_w(r, D, 3 * D), _w(r, 3 * D), _w(r, D, D), _w(r, D), 1 + 0.1 * _w(r, D), _w(r, D),
               _w(r, D, FF), _w(r, FF), _w(r, FF, D), _w(r, D), 1 + 0.1 * _w(r, D), _w(r, D)]
        s.calls = [(r.standard_normal((int(r.integers(1, 9)), int(r.integers(1, 129)), D)).astype(F),) for _ in range(n)]
    def ref(s, x):
        wqkv, bqkv, wo, bo, g1, e1, w1, b1, w2, b2, g2, e2 = [a.astype(np.float64) for a in s.w]
        x = x.astype(np.float64)
        B, S, D = x.shape
        q, k, v = np.split(x @ wqkv + bqkv, 3, -1)
        def sp(t):
            return t.reshape(B, S, s.H, D // s.H).transpose(0, 2, 1, 3)
        q, k, v = sp(q), sp(k), sp(v)
        a = np_softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(D // s.H)) @ v
        x = np_ln(x + a.transpose(0, 2, 1, 3).reshape(B, S, D) @ wo + bo, g1, e1)
        return np_ln(x + np_gelu(x @ w1 + b1) @ w2 + b2, g2, e2)


class Rnn:
    """GRU-like cell in a Python loop over a varying number of steps."""
    name = "rnn"
    D = 128
    def __init__(s, n=60):
        r = np.random.default_rng(4)
        D = s.D
        s.w = [_w(r, D, 3 * D), _w(r, D, 3 * D), _w(r, 3 * D)]
        s.calls = [(r.standard_normal((int(r.integers(1, 65)), int(r.integers(1, 9)), D)).astype(F),) for _ in range(n)]
    def ref(s, x):
        wx, wh, b = [a.astype(np.float64) for a in s.w]
        x = x.astype(np.float64)
        h = np.zeros((x.shape[1], s.D))
        def sg(t):
            return 1 / (1 + np.exp(-t))
        for t in range(x.shape[0]):
            gx = x[t] @ wx + b
            gh = h @ wh
            D = s.D
            z = sg(gx[:, :D] + gh[:, :D])
            q = sg(gx[:, D:2 * D] + gh[:, D:2 * D])
            c = np.tanh(gx[:, 2 * D:] + q * gh[:, 2 * D:])
            h = (1 - z) * c + z * h
        return h


class Decode:
    """one decoding step with a growing key/value cache (the cache is part of the call's inputs)."""
    name = "decode"
    H, D = 8, 512
    def __init__(s, n=200):
        r = np.random.default_rng(5)
        D = s.D
        s.w = [_w(r, D, 3 * D), _w(r, D, D)]
        s.calls = []
        for i in range(n):
            k = r.standard_normal((s.H, i + 1, D // s.H)).astype(F)
            v = r.standard_normal((s.H, i + 1, D // s.H)).astype(F)
            s.calls.append((r.standard_normal((1, D)).astype(F), k, v))
    def ref(s, x, kc, vc):
        wqkv, wo = [a.astype(np.float64) for a in s.w]
        x, kc, vc = [a.astype(np.float64) for a in (x, kc, vc)]
        D = s.D
        q, k, v = [t.reshape(s.H, 1, D // s.H) for t in np.split(x @ wqkv, 3, -1)]
        k = np.concatenate([kc, k], 1)
        v = np.concatenate([vc, v], 1)
        a = np_softmax(q @ k.transpose(0, 2, 1) / math.sqrt(D // s.H)) @ v
        return a.reshape(1, D) @ wo + x


class Conv:
    name = "conv"
    def __init__(s, n=60):
        r = np.random.default_rng(6)
        def k(o, i):
            return (r.standard_normal((o, i, 3, 3)) / math.sqrt(i * 9)).astype(F)
        s.w = [k(32, 3), _w(r, 32), k(32, 32), _w(r, 32), k(16, 32), _w(r, 16)]
        s.calls = [(r.standard_normal((1, 3, int(r.integers(24, 129)), int(r.integers(24, 129)))).astype(F),) for _ in range(n)]
    def ref(s, x):
        def conv(x, w, b):
            B, C, Hh, W = x.shape
            xp = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            out = np.zeros((B, w.shape[0], Hh, W))
            for i in range(3):
                for j in range(3):
                    out += np.einsum("bchw,oc->bohw", xp[:, :, i:i + Hh, j:j + W], w[:, :, i, j].astype(np.float64))
            return out + b[None, :, None, None]
        w1, b1, w2, b2, w3, b3 = s.w
        x = np.maximum(conv(x.astype(np.float64), w1, b1), 0)
        return np.maximum(conv(np.maximum(conv(x, w2, b2), 0), w3, b3), 0).mean((2, 3))


class Tiny:
    """call overhead: three ops on a handful of elements, shape new on every call."""
    name = "tiny"
    def __init__(s, n=400):
        r = np.random.default_rng(7)
        s.w = []
        s.calls = []
        for _ in range(n):
            m = (int(r.integers(1, 9)), int(r.integers(1, 9)))
            s.calls.append((r.standard_normal(m).astype(F), r.standard_normal(m).astype(F)))
    def ref(s, x, y):
        return np.maximum((x.astype(np.float64) + y) * 2.0, 0)


class While:
    """iterate until a data-dependent condition holds."""
    name = "while"
    def __init__(s, n=60):
        r = np.random.default_rng(8)
        s.w = [(0.9 * np.linalg.qr(r.standard_normal((64, 64)))[0]).astype(F)]
        s.calls = [(10 * r.standard_normal((int(r.integers(1, 33)), 64)).astype(F),) for _ in range(n)]
    def ref(s, x):
        w = s.w[0].astype(np.float64)
        x = x.astype(np.float64)
        while (x * x).sum() > 1.0:
            x = np.tanh(x @ w)
        return x


ALL = {c.name: c for c in (Mlp, Chain, Branch, Bert, Rnn, Decode, Conv, Tiny, While)}
