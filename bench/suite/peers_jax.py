import math
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def make(W, peer, threads):
    w = [jnp.array(a) for a in W.w]
    n = W.name
    def ln(x, g, b):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b
    def gelu(x):
        return jax.nn.gelu(x, approximate=False)
    if n == "mlp":
        def f(x): return jax.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]
    elif n == "chain":
        def f(x, y): return ln(gelu(x + w[0]) + y, w[1], w[2])
    elif n == "branch":
        def f(x): return lax.cond(x.sum() > 0, lambda x: jax.nn.relu(x) + 1.0, lambda x: jax.nn.sigmoid(x) * 2.0, x)
    elif n == "bert":
        H, D = W.H, W.D
        def f(x):
            B, S, _ = x.shape
            q, k, v = jnp.split(x @ w[0] + w[1], 3, -1)
            def sp(t):
                return t.reshape(B, S, H, D // H).transpose(0, 2, 1, 3)
            a = jax.nn.softmax(sp(q) @ sp(k).transpose(0, 1, 3, 2) / math.sqrt(D // H), -1) @ sp(v)
            x = ln(x + a.transpose(0, 2, 1, 3).reshape(B, S, D) @ w[2] + w[3], w[4], w[5])
            return ln(x + gelu(x @ w[6] + w[7]) @ w[8] + w[9], w[10], w[11])
    elif n == "rnn":
        D = W.D
        def f(x):
            def step(h, xt):
                gx = xt @ w[0] + w[2]
                gh = h @ w[1]
                z = jax.nn.sigmoid(gx[:, :D] + gh[:, :D])
                q = jax.nn.sigmoid(gx[:, D:2*D] + gh[:, D:2*D])
                c = jnp.tanh(gx[:, 2*D:] + q * gh[:, 2*D:])
                return (1 - z) * c + z * h, None
            return lax.scan(step, jnp.zeros((x.shape[1], D), jnp.float32), x)[0]
    elif n == "decode":
        H, D = W.H, W.D
        def f(x, kc, vc):
            q, k, v = [t.reshape(H, 1, D // H) for t in jnp.split(x @ w[0], 3, -1)]
            k = jnp.concatenate([kc, k], 1)
            v = jnp.concatenate([vc, v], 1)
            a = jax.nn.softmax(q @ k.transpose(0, 2, 1) / math.sqrt(D // H), -1) @ v
            return a.reshape(1, D) @ w[1] + x
    elif n == "conv":
        def f(x):
            for i in (0, 2, 4):
                x = jax.nn.relu(lax.conv_general_dilated(x, w[i], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")) + w[i + 1][None, :, None, None])
            return x.mean((2, 3))
    elif n == "tiny":
        def f(x, y): return jax.nn.relu((x + y) * 2.0)
    elif n == "while":
        def f(x): return lax.while_loop(lambda x: (x * x).sum() > 1.0, lambda x: jnp.tanh(x @ w[0]), x)
    return jax.jit(f), jnp.array, (lambda o: np.asarray(o))
