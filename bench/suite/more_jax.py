"""The workloads of more.py in JAX, which compiles each for every new shape. Recurrences by scan, data-dependent ends by while_loop."""
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_enable_x64", False)


def make(W, peer, threads):
    w = [jnp.array(a) for a in W.w]
    n = W.name
    def conv(x, k, b):
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")) + b[None, :, None, None]
    if n == "moe":
        def f(x):
            p = jax.nn.softmax(x @ w[0])
            e = p.argmax(-1)
            order = jnp.argsort(e)
            counts = jnp.bincount(e, length=8)
            hidden = jax.nn.relu(lax.ragged_dot(x[order], w[1], counts))
            return lax.ragged_dot(hidden, w[2], counts)[jnp.argsort(order)] * p.max(-1, keepdims=True)
    elif n == "beam":
        def f(x):
            steps = x.shape[0]
            def more(state): return (state[0] < steps) & ~state[4]
            def step(state):
                t, h, score, seq, _ = state
                h = jnp.tanh(h @ w[0] + w[1][seq[:, t]] + x[t])
                score, best = lax.top_k((score[:, None] + jax.nn.log_softmax(h @ w[2])).reshape(-1), 4)
                parent, token = best // 512, best % 512
                return t + 1, h[parent], score, seq[parent].at[:, t + 1].set(token), token[0] < 16
            start = (0, jnp.tanh(jnp.tile(x.mean(0), (4, 1))), jnp.array([0, -1e9, -1e9, -1e9], jnp.float32), jnp.zeros((4, steps + 1), jnp.int32), jnp.array(False))
            t, _, score, seq, _ = lax.while_loop(more, step, start)
            return score, seq, t
        jitted = jax.jit(f)
        def whole(x):  # the array it fills is as long as the sequences may get
            score, seq, t = jitted(x)
            return score, seq[:, :int(t) + 1]
        return whole, jnp.array, (lambda o: tuple(map(np.asarray, o)))
    elif n == "ragged":
        def f(x, lengths):
            mask = jnp.arange(x.shape[1]) < lengths[:, None]
            q, k, v = jnp.split(x @ w[0], 3, -1)
            a = jax.nn.softmax(jnp.where(mask[:, None, :], q @ k.transpose(0, 2, 1) / np.float32(128 ** 0.5), -1e9)) @ v
            return jnp.where(mask[:, :, None], a, 0).sum(1) / lengths.astype(jnp.float32)[:, None]
    elif n == "pyramid":
        def f(x):
            total = jnp.zeros((1, 16), jnp.float32)
            while min(x.shape[2], x.shape[3]) >= 8:
                h, v = x.shape[2] // 2, x.shape[3] // 2
                small = x[:, :, :2 * h, :2 * v].reshape(1, 3, h, 2, v, 2).mean((3, 5))
                detail = jnp.abs(x[:, :, :2 * h, :2 * v] - small.repeat(2, 2).repeat(2, 3)).mean((2, 3))
                total = total + jax.nn.relu(conv(x, w[0], w[1])).mean((2, 3)) + detail @ w[2]
                x = small
            return total
    elif n == "gan":
        def leaky(x): return jax.nn.leaky_relu(x, 0.2)
        def f(z):
            h = z @ w[0] + w[1]
            h = leaky((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) * w[2] + w[3])
            fake = jnp.tanh(h @ w[4] + w[5])
            score = jax.nn.sigmoid(leaky(fake @ w[6] + w[7]) @ w[8])
            return lax.cond(score.mean() < 0.5, lambda fake: jnp.tanh(fake + leaky(fake @ w[9]) @ w[10]), lambda fake: fake, fake)
    elif n == "recsys":
        def f(history, candidates, dense):
            user = jax.nn.relu(jnp.concatenate([w[0][history].mean(0), dense]) @ w[2] + w[3])
            items = w[0][candidates]
            hidden = jax.nn.relu(jnp.concatenate([items, items * user], 1) @ w[4] + w[5])
            return jax.nn.sigmoid(hidden @ w[6] + w[1][candidates])
    elif n == "channels":
        def f(x):
            c = x.shape[1]
            x = jax.nn.relu(conv(x, w[0][:c, :c], w[1][:c]))
            x = (x - x.mean((2, 3), keepdims=True)) / jnp.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * w[2][:c, None, None]
            return jax.nn.relu(conv(x, w[3][:, :c], w[4])).mean((2, 3))
    elif n == "jitter":
        def f(a, b, c):
            x = jnp.concatenate([a, b, c])
            y = jax.nn.relu(x @ w[0] + w[1]) @ w[2] + x
            return (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5) * w[3] + w[4]
    elif n == "lstm":
        def f(x):
            def step(state, xt):
                h, c = state
                g = xt @ w[0] + h @ w[1] + w[2]
                c = jax.nn.sigmoid(g[:, 128:256]) * c + jax.nn.sigmoid(g[:, :128]) * jnp.tanh(g[:, 256:384])
                return (jax.nn.sigmoid(g[:, 384:]) * jnp.tanh(c), c), None
            zero = jnp.zeros((x.shape[1], 128), jnp.float32)
            return lax.scan(step, (zero, zero), x)[0][0]
    elif n == "gru":
        def cell(wx, wh, b):
            def step(h, xt):
                gx, gh = xt @ wx + b, h @ wh
                z = jax.nn.sigmoid(gx[:, :96] + gh[:, :96])
                r = jax.nn.sigmoid(gx[:, 96:192] + gh[:, 96:192])
                h = (1 - z) * jnp.tanh(gx[:, 192:] + r * gh[:, 192:]) + z * h
                return h, h
            return step
        def f(x):
            zero = jnp.zeros((x.shape[1], 96), jnp.float32)
            return jnp.concatenate([lax.scan(cell(*w[:3]), zero, x)[1], lax.scan(cell(*w[3:]), zero, x, reverse=True)[1]], 2)
    elif n == "diffusion":
        def f(x):
            def more(state): return (state[0] < 50) & (state[2] >= 0.01)
            def step(state):
                t, x, _ = state
                noise = x - jnp.tanh(jax.nn.relu(x @ w[0] + w[1] * (t * 0.02)) @ w[2])
                step = noise * (0.5 - 0.004 * t)
                return t + 1, x - step, jnp.sqrt((step * step).mean())
            return lax.while_loop(more, step, (0, x, jnp.float32(1)))[1]
    return jax.jit(f), jnp.array, np.asarray
