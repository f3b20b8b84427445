"""A transformer's encoder over batches of another length each: python examples/mindspore_transformer.py"""
from __future__ import annotations

import numpy as np
from compare import compare
from mindspore import Tensor, nn, ops

LENGTHS = [5, 17, 64, 33, 128, 9]


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.down, self.gelu = nn.Dense(width, 4 * width), nn.Dense(4 * width, width), nn.GELU()

    def construct(self, x):
        b, s, c = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, s, 3, self.heads, c // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * self.scale
        x = x + self.out(ops.matmul(ops.softmax(scores, -1), v).transpose(0, 2, 1, 3).reshape(b, s, c))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Encoder(nn.Cell):
    def __init__(self, width: int = 128, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(width, heads) for _ in range(depth)])

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make() -> Encoder:
    net, rng = Encoder(), np.random.default_rng(0)
    for p in net.get_parameters():
        p.set_data(Tensor((rng.standard_normal(p.shape) * 0.1).astype(np.float32)))
    return net


def main() -> None:
    rng = np.random.default_rng(1)
    stream = [(Tensor(rng.standard_normal((1 + i % 3, s, 128)).astype(np.float32)),) for i, s in enumerate(LENGTHS)]
    compare(make, (Tensor(np.ones((2, 12, 128), np.float32)),), stream, lambda x: str(tuple(x.shape)))


if __name__ == "__main__":
    main()
