import math

import mindspore as ms
from mindspore import Tensor, ops


def make(W, peer, threads):
    try: ms.runtime.set_cpu_affinity(False)
    except Exception: pass
    ms.set_context(mode=ms.PYNATIVE_MODE)
    w = [Tensor(a) for a in W.w]
    n = W.name
    if n == "mlp":
        def f(x): return ops.matmul(ops.relu(ops.matmul(x, w[0]) + w[1]), w[2]) + w[3]
    elif n == "chain":
        lnop = ops.LayerNorm(-1, -1, 1e-5)
        def f(x, y): return lnop(ops.gelu(x + w[0], approximate="none") + y, w[1], w[2])[0]
    elif n == "branch":
        def f(x):
            if x.sum() > 0: return ops.relu(x) + 1.0
            return ops.sigmoid(x) * 2.0
    elif n == "bert":
        H, D = W.H, W.D
        ln1 = ops.LayerNorm(-1, -1, 1e-5)
        def f(x):
            B, S, _ = x.shape
            qkv = ops.matmul(x, w[0]) + w[1]
            q = qkv[:, :, :D].reshape((B, S, H, D // H)).transpose((0, 2, 1, 3))
            k = qkv[:, :, D:2 * D].reshape((B, S, H, D // H)).transpose((0, 2, 3, 1))
            v = qkv[:, :, 2 * D:].reshape((B, S, H, D // H)).transpose((0, 2, 1, 3))
            a = ops.matmul(ops.softmax(ops.matmul(q, k) / math.sqrt(D // H), -1), v)
            x = ln1(x + ops.matmul(a.transpose((0, 2, 1, 3)).reshape((B, S, D)), w[2]) + w[3], w[4], w[5])[0]
            return ln1(x + ops.matmul(ops.gelu(ops.matmul(x, w[6]) + w[7], approximate="none"), w[8]) + w[9], w[10], w[11])[0]
    elif n == "rnn":
        D = W.D
        def f(x):
            h = ops.zeros((x.shape[1], D), ms.float32)
            for t in range(x.shape[0]):
                gx = ops.matmul(x[t], w[0]) + w[2]
                gh = ops.matmul(h, w[1])
                z = ops.sigmoid(gx[:, :D] + gh[:, :D])
                q = ops.sigmoid(gx[:, D:2 * D] + gh[:, D:2 * D])
                c = ops.tanh(gx[:, 2 * D:] + q * gh[:, 2 * D:])
                h = (1 - z) * c + z * h
            return h
    elif n == "decode":
        H, D = W.H, W.D
        def f(x, kc, vc):
            qkv = ops.matmul(x, w[0])
            q = qkv[:, :D].reshape((H, 1, D // H))
            k = qkv[:, D:2 * D].reshape((H, 1, D // H))
            v = qkv[:, 2 * D:].reshape((H, 1, D // H))
            k = ops.cat((kc, k), 1)
            v = ops.cat((vc, v), 1)
            a = ops.matmul(ops.softmax(ops.matmul(q, k.transpose((0, 2, 1))) / math.sqrt(D // H), -1), v)
            return ops.matmul(a.reshape((1, D)), w[1]) + x
    elif n == "conv":
        def f(x):
            for i in (0, 2, 4): x = ops.relu(ops.conv2d(x, w[i], w[i + 1], pad_mode="pad", padding=1))
            return x.mean((2, 3))
    elif n == "tiny":
        def f(x, y): return ops.relu((x + y) * 2.0)
    elif n == "while":
        def f(x):
            while (x * x).sum() > 1.0: x = ops.tanh(ops.matmul(x, w[0]))
            return x
    if peer == "ms-jit": f = ms.jit(f)
    elif peer == "ms-jitdyn": f = ms.jit(f, dynamic=1)
    return f, Tensor, (lambda o: o.asnumpy())
