import math

import torch
import torch.nn.functional as F


def make(W, peer, threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    w = [torch.from_numpy(a) for a in W.w]
    n = W.name
    if n == "mlp":
        def f(x): return torch.relu(x @ w[0] + w[1]) @ w[2] + w[3]
    elif n == "chain":
        def f(x, y): return F.layer_norm(F.gelu(x + w[0]) + y, (768,), w[1], w[2], 1e-5)
    elif n == "branch":
        def f(x):
            if x.sum() > 0: return torch.relu(x) + 1.0
            return torch.sigmoid(x) * 2.0
    elif n == "bert":
        H, D = W.H, W.D
        def f(x):
            B, S, _ = x.shape
            q, k, v = (x @ w[0] + w[1]).split(D, -1)
            def sp(t):
                return t.reshape(B, S, H, D // H).transpose(1, 2)
            a = F.scaled_dot_product_attention(sp(q), sp(k), sp(v))
            x = F.layer_norm(x + (a.transpose(1, 2).reshape(B, S, D) @ w[2] + w[3]), (D,), w[4], w[5], 1e-5)
            return F.layer_norm(x + (F.gelu(x @ w[6] + w[7]) @ w[8] + w[9]), (D,), w[10], w[11], 1e-5)
    elif n == "rnn":
        D = W.D
        def f(x):
            h = torch.zeros(x.shape[1], D)
            for t in range(x.shape[0]):
                gx = x[t] @ w[0] + w[2]
                gh = h @ w[1]
                z = torch.sigmoid(gx[:, :D] + gh[:, :D])
                q = torch.sigmoid(gx[:, D:2 * D] + gh[:, D:2 * D])
                c = torch.tanh(gx[:, 2 * D:] + q * gh[:, 2 * D:])
                h = (1 - z) * c + z * h
            return h
    elif n == "decode":
        H, D = W.H, W.D
        def f(x, kc, vc):
            q, k, v = [t.reshape(H, 1, D // H) for t in (x @ w[0]).split(D, -1)]
            k = torch.cat([kc, k], 1)
            v = torch.cat([vc, v], 1)
            a = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(D // H), -1) @ v
            return a.reshape(1, D) @ w[1] + x
    elif n == "conv":
        def f(x):
            for i in (0, 2, 4): x = torch.relu(F.conv2d(x, w[i], w[i + 1], padding=1))
            return x.mean((2, 3))
    elif n == "tiny":
        def f(x, y): return torch.relu((x + y) * 2.0)
    elif n == "while":
        def f(x):
            while (x * x).sum() > 1.0: x = torch.tanh(x @ w[0])
            return x
    if peer == "torch-compile": f = torch.compile(f)
    elif peer == "torch-dynamic": f = torch.compile(f, dynamic=True)
    return f, torch.from_numpy, (lambda o: o.numpy())
