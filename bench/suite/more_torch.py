"""The workloads of more.py in torch, eager or compiled."""
import numpy as np
import torch
import torch.nn.functional as F


def make(W, peer, threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    w = [torch.from_numpy(a) for a in W.w]
    n = W.name
    if n == "moe":
        def f(x):
            p = torch.softmax(x @ w[0], -1)
            best, e = p.max(-1)
            y = torch.empty_like(x)
            for i in range(8):
                mine = (e == i).nonzero().squeeze(1)
                y[mine] = torch.relu(x[mine] @ w[1][i]) @ w[2][i]
            return y * best[:, None]
    elif n == "beam":
        first = torch.tensor([0, -1e9, -1e9, -1e9])
        def f(x):
            h = torch.tanh(x.mean(0).expand(4, -1))
            score = first
            seq = torch.zeros((4, 1), dtype=torch.int64)
            for t in range(x.shape[0]):
                h = torch.tanh(h @ w[0] + w[1][seq[:, -1]] + x[t])
                score, best = (score[:, None] + torch.log_softmax(h @ w[2], -1)).reshape(-1).topk(4)
                parent, token = best // 512, best % 512
                h = h[parent]
                seq = torch.cat([seq[parent], token[:, None]], 1)
                if token[0] < 16: break
            return score, seq
    elif n == "ragged":
        def f(x, lengths):
            mask = torch.arange(x.shape[1]) < lengths[:, None]
            q, k, v = (x @ w[0]).split(128, -1)
            a = F.scaled_dot_product_attention(q, k, v, mask[:, None, :])
            return torch.where(mask[:, :, None], a, 0).sum(1) / lengths.float()[:, None]
    elif n == "pyramid":
        def f(x):
            total = torch.zeros(1, 16)
            while min(x.shape[2], x.shape[3]) >= 8:
                h, v = x.shape[2] // 2, x.shape[3] // 2
                small = F.avg_pool2d(x, 2)
                detail = (x[:, :, :2 * h, :2 * v] - F.interpolate(small, scale_factor=2, mode="nearest")).abs().mean((2, 3))
                total = total + torch.relu(F.conv2d(x, w[0], w[1], padding=1)).mean((2, 3)) + detail @ w[2]
                x = small
            return total
    elif n == "gan":
        def f(z):
            h = F.leaky_relu(F.batch_norm(z @ w[0] + w[1], None, None, w[2], w[3], True), 0.2)
            fake = torch.tanh(h @ w[4] + w[5])
            score = torch.sigmoid(F.leaky_relu(fake @ w[6] + w[7], 0.2) @ w[8])
            if score.mean() < 0.5: fake = torch.tanh(fake + F.leaky_relu(fake @ w[9], 0.2) @ w[10])
            return fake
    elif n == "recsys":
        def f(history, candidates, dense):
            user = torch.relu(torch.cat([w[0][history].mean(0), dense]) @ w[2] + w[3])
            items = F.embedding(candidates, w[0])
            hidden = torch.relu(torch.cat([items, items * user], 1) @ w[4] + w[5])
            return torch.sigmoid(hidden @ w[6] + w[1][candidates])
    elif n == "channels":
        def f(x):
            c = x.shape[1]
            x = torch.relu(F.conv2d(x, w[0][:c, :c], w[1][:c], padding=1))
            x = F.instance_norm(x, weight=w[2][:c])
            return torch.relu(F.conv2d(x, w[3][:, :c], w[4])).mean((2, 3))
    elif n == "jitter":
        def f(a, b, c):
            x = torch.cat([a, b, c])
            return F.layer_norm(torch.relu(x @ w[0] + w[1]) @ w[2] + x, (256,), w[3], w[4], 1e-5)
    elif n == "lstm":
        net = torch.nn.LSTM(128, 128)
        net.load_state_dict(dict(weight_ih_l0=w[0].T, weight_hh_l0=w[1].T, bias_ih_l0=w[2], bias_hh_l0=torch.zeros(512)))
        def f(x): return net(x)[1][0][0]
    elif n == "gru":
        def cell(x, h, wx, wh, b):
            gx, gh = x @ wx + b, h @ wh
            z = torch.sigmoid(gx[:, :96] + gh[:, :96])
            r = torch.sigmoid(gx[:, 96:192] + gh[:, 96:192])
            return (1 - z) * torch.tanh(gx[:, 192:] + r * gh[:, 192:]) + z * h
        def f(x):
            steps, batch, _ = x.shape
            a = torch.zeros(batch, 96)
            b = torch.zeros(batch, 96)
            y = torch.empty(steps, batch, 192)
            for t in range(steps):
                a = cell(x[t], a, w[0], w[1], w[2])
                b = cell(x[steps - 1 - t], b, w[3], w[4], w[5])
                y[t, :, :96] = a
                y[steps - 1 - t, :, 96:] = b
            return y
        if peer == "torch":  # its own layer, whose gates come in the order r, z, n
            net = torch.nn.GRU(96, 96, bidirectional=True)
            order = np.r_[96:192, :96, 192:288]
            for end, (wx, wh, b) in (("", W.w[:3]), ("_reverse", W.w[3:])):
                for name, value in (("weight_ih", wx.T[order]), ("weight_hh", wh.T[order]), ("bias_ih", b[order]), ("bias_hh", 0 * b)):
                    getattr(net, f"{name}_l0{end}").copy_(torch.from_numpy(np.ascontiguousarray(value)))
            def f(x): return net(x)[0]
    elif n == "diffusion":
        def f(x):
            for t in range(50):
                noise = x - torch.tanh(torch.relu(x @ w[0] + w[1] * (t * 0.02)) @ w[2])
                step = noise * (0.5 - 0.004 * t)
                x = x - step
                if (step * step).mean().sqrt() < 0.01: break
            return x
    if peer == "torch-compile": f = torch.compile(f)
    elif peer == "torch-dynamic": f = torch.compile(f, dynamic=True)
    return f, torch.from_numpy, (lambda o: tuple(a.numpy() for a in o) if isinstance(o, tuple) else o.numpy())
