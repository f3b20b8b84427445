"""The workloads of more.py in MindSpore's PyNative mode, and in its graph mode (peer `ms-jit`)."""
import math

import mindspore as ms
from mindspore import Tensor, ops


def make(W, peer, threads):
    try: ms.runtime.set_cpu_affinity(False)
    except Exception: pass  # a peer's setting, which some versions and machines refuse: as in peers_ms, the measurement goes on without it
    ms.set_context(mode=ms.PYNATIVE_MODE)
    w = [Tensor(a) for a in W.w]
    n = W.name
    if n == "moe":
        w1, w2 = [Tensor(a) for a in W.w[1]], [Tensor(a) for a in W.w[2]]
        def f(x):
            p = ops.softmax(ops.matmul(x, w[0]), -1)
            e = p.argmax(-1)
            order = ops.argsort(e)
            counts = ops.one_hot(e, 8).sum(0)
            xs = x[order]
            ys = []
            start = 0
            for i in range(8):
                end = start + int(counts[i])
                ys.append(ops.matmul(ops.relu(ops.matmul(xs[start:end], w1[i])), w2[i]))
                start = end
            return ops.cat(ys)[ops.argsort(order)] * p.max(-1, keepdims=True)
    elif n == "beam":
        first = Tensor([0, -1e9, -1e9, -1e9], ms.float32)
        def f(x):
            h = ops.tanh(ops.tile(x.mean(0), (4, 1)))
            score = first
            seq = ops.zeros((4, 1), ms.int64)
            for t in range(x.shape[0]):
                h = ops.tanh(ops.matmul(h, w[0]) + w[1][seq[:, -1]] + x[t])
                total = (score.reshape((4, 1)) + ops.log_softmax(ops.matmul(h, w[2]), -1)).reshape(-1)
                score, best = ops.topk(total, 4)
                parent, token = best // 512, best % 512
                h = h[parent]
                seq = ops.cat((seq[parent], token.reshape((4, 1)).astype(ms.int64)), 1)
                if token[0] < 16: break
            return score, seq
    elif n == "ragged":
        def f(x, lengths):
            B, S, _ = x.shape
            mask = ops.arange(S).reshape((1, S)) < lengths.reshape((B, 1))
            qkv = ops.matmul(x, w[0])
            q, k, v = qkv[:, :, :128], qkv[:, :, 128:256], qkv[:, :, 256:]
            s = ops.matmul(q, k.transpose((0, 2, 1))) / math.sqrt(128)
            a = ops.matmul(ops.softmax(ops.where(mask.reshape((B, 1, S)), s, -1e9), -1), v)
            return ops.where(mask.reshape((B, S, 1)), a, 0.0).sum(1) / lengths.astype(ms.float32).reshape((B, 1))
    elif n == "pyramid":
        def f(x):
            total = ops.zeros((1, 16), ms.float32)
            while min(x.shape[2], x.shape[3]) >= 8:
                h, v = x.shape[2] // 2, x.shape[3] // 2
                even = x[:, :, :2 * h, :2 * v]
                small = even.reshape((1, 3, h, 2, v, 2)).mean((3, 5))
                detail = ops.abs(even - ops.repeat_interleave(ops.repeat_interleave(small, 2, 2), 2, 3)).mean((2, 3))
                total = total + ops.relu(ops.conv2d(x, w[0], w[1], pad_mode="pad", padding=1)).mean((2, 3)) + ops.matmul(detail, w[2])
                x = small
            return total
    elif n == "gan":
        def f(z):
            h = ops.matmul(z, w[0]) + w[1]
            m = h.mean(0)
            h = ops.leaky_relu((h - m) / ops.sqrt(((h - m) * (h - m)).mean(0) + 1e-5) * w[2] + w[3], 0.2)
            fake = ops.tanh(ops.matmul(h, w[4]) + w[5])
            score = ops.sigmoid(ops.matmul(ops.leaky_relu(ops.matmul(fake, w[6]) + w[7], 0.2), w[8]))
            if score.mean() < 0.5: fake = ops.tanh(fake + ops.matmul(ops.leaky_relu(ops.matmul(fake, w[9]), 0.2), w[10]))
            return fake
    elif n == "recsys":
        w6 = Tensor(W.w[6][:, None])
        def f(history, candidates, dense):
            user = ops.relu(ops.matmul(ops.cat((ops.gather(w[0], history, 0).mean(0), dense)), w[2]) + w[3])
            items = ops.gather(w[0], candidates, 0)
            hidden = ops.relu(ops.matmul(ops.cat((items, items * user), 1), w[4]) + w[5])
            return ops.sigmoid(ops.matmul(hidden, w6).reshape(-1) + ops.gather(w[1], candidates, 0))
    elif n == "channels":
        w2 = Tensor(W.w[2].reshape(1, -1, 1, 1))
        def f(x):
            c = x.shape[1]
            x = ops.relu(ops.conv2d(x, w[0][:c, :c], w[1][:c], pad_mode="pad", padding=1))
            m = x.mean((2, 3), keep_dims=True)
            x = (x - m) / ops.sqrt(((x - m) * (x - m)).mean((2, 3), keep_dims=True) + 1e-5) * w2[:, :c]
            return ops.relu(ops.conv2d(x, w[3][:, :c], w[4])).mean((2, 3))
    elif n == "jitter":
        norm = ops.LayerNorm(-1, -1, 1e-5)
        def f(a, b, c):
            x = ops.cat((a, b, c))
            return norm(ops.matmul(ops.relu(ops.matmul(x, w[0]) + w[1]), w[2]) + x, w[3], w[4])[0]
    elif n == "lstm":
        def f(x):
            h = ops.zeros((x.shape[1], 128), ms.float32)
            c = ops.zeros((x.shape[1], 128), ms.float32)
            for t in range(x.shape[0]):
                g = ops.matmul(x[t], w[0]) + ops.matmul(h, w[1]) + w[2]
                c = ops.sigmoid(g[:, 128:256]) * c + ops.sigmoid(g[:, :128]) * ops.tanh(g[:, 256:384])
                h = ops.sigmoid(g[:, 384:]) * ops.tanh(c)
            return h
    elif n == "gru":
        def cell(x, h, wx, wh, b):
            gx, gh = ops.matmul(x, wx) + b, ops.matmul(h, wh)
            z = ops.sigmoid(gx[:, :96] + gh[:, :96])
            r = ops.sigmoid(gx[:, 96:192] + gh[:, 96:192])
            return (1 - z) * ops.tanh(gx[:, 192:] + r * gh[:, 192:]) + z * h
        def f(x):
            steps, batch, _ = x.shape
            a = ops.zeros((batch, 96), ms.float32)
            b = ops.zeros((batch, 96), ms.float32)
            forward, backward = ops.zeros((0, batch, 96), ms.float32), ops.zeros((0, batch, 96), ms.float32)
            for t in range(steps):
                a = cell(x[t], a, w[0], w[1], w[2])
                b = cell(x[steps - 1 - t], b, w[3], w[4], w[5])
                forward = ops.cat((forward, a.reshape((1, batch, 96))))
                backward = ops.cat((b.reshape((1, batch, 96)), backward))
            return ops.cat((forward, backward), 2)
    elif n == "diffusion":
        def f(x):
            for t in range(50):
                noise = x - ops.tanh(ops.matmul(ops.relu(ops.matmul(x, w[0]) + w[1] * (t * 0.02)), w[2]))
                step = noise * (0.5 - 0.004 * t)
                x = x - step
                if ops.sqrt((step * step).mean()) < 0.01: break
            return x
    if peer == "ms-jit": f = ms.jit(f)
    return f, Tensor, (lambda o: tuple(a.asnumpy() for a in o) if isinstance(o, tuple) else o.asnumpy())
