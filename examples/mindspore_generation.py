"""A decoder-only language model that generates tokens with a growing key/value cache: python examples/mindspore_generation.py

Each token is one call, whose cache is one longer than the last one's. Random weights; greedy choice."""
from __future__ import annotations

import os
import statistics
import time
import warnings
from typing import Any

os.environ.setdefault("GLOG_v", "3")
warnings.filterwarnings("ignore", category=SyntaxWarning)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402

import bcvm.mindspore  # noqa: E402
from bcvm.tools.report import table  # noqa: E402

PROMPT, TOKENS = 12, 128


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)

    def construct(self, x, past, mask):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, self.each).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        if past is not None:
            k, v = ops.cat((past[0], k), 2), ops.cat((past[1], v), 2)
        scores = ops.matmul(q, k.swapaxes(2, 3)) * self.each**-0.5
        if mask is not None:
            scores = scores + mask
        y = ops.matmul(ops.softmax(scores, -1), v)
        return self.out(y.swapaxes(1, 2).reshape(b, n, c)), (k, v)


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.attention = Attention(width, heads)
        self.up, self.down, self.gelu = nn.Dense(width, 4 * width), nn.Dense(4 * width, width), nn.GELU()

    def construct(self, x, past, mask):
        y, cache = self.attention(self.norm1(x), past, mask)
        x = x + y
        return x + self.down(self.gelu(self.up(self.norm2(x)))), cache


class LanguageModel(nn.Cell):
    """tokens (batch, length), and what the calls before returned as their cache -> the next token (batch, 1), the cache."""

    def __init__(self, words: int = 1000, width: int = 256, heads: int = 8, depth: int = 4, longest: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.CellList([Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, words, has_bias=False)

    def construct(self, tokens, past=None):
        n = tokens.shape[1]
        start = past[0][0].shape[2] if past is not None else 0
        x = self.words(tokens) + self.places(ops.arange(start, start + n))
        mask = None
        if n > 1:
            mask = ops.triu(ops.full((n, start + n), -1e9, dtype=ms.float32), 1) if past is None else None
        caches = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, past[i] if past is not None else None, mask)
            caches.append(cache)
        logits = self.head(self.norm(x[:, -1:]))
        return logits.argmax(-1), tuple(caches)


def make(**sizes: int) -> LanguageModel:
    net, rng = LanguageModel(**sizes), np.random.default_rng(0)
    for p in net.get_parameters():
        p.set_data(Tensor((rng.standard_normal(p.shape) * 0.1).astype(np.float32)))
    net.set_train(False)
    return net


def generate(net: nn.Cell, prompt: Tensor, count: int = TOKENS) -> tuple[list[float], list[np.ndarray]]:
    """ms of each token, and the tokens."""
    times, tokens, past, given = [], [], None, prompt
    for _ in range(count):
        start = time.perf_counter()
        given, past = net(given, past)
        token = given.asnumpy()  # waits: PyNative is asynchronous
        times.append((time.perf_counter() - start) * 1e3)
        tokens.append(token.copy())
    return times, tokens


def main() -> None:
    prompt = Tensor(np.random.default_rng(1).integers(0, 1000, (1, PROMPT)).astype(np.int32))
    measured: dict[str, Any] = {}
    for name in ("PyNative", "bcvm"):
        net = make()
        if name == "bcvm":
            bcvm.mindspore.enable()
        ms.set_context(mode=ms.BYTECODE_VM if name == "bcvm" else ms.PYNATIVE_MODE)
        first, _ = generate(net, prompt)  # the first text of the process; native code is made meanwhile
        measured[name] = (first, *generate(net, prompt))
    expected = measured["PyNative"][2]
    assert all(np.array_equal(a, b) for a, b in zip(measured["bcvm"][2], expected, strict=True)), "bcvm generates other tokens than PyNative"
    print(f"{TOKENS} tokens after a prompt of {PROMPT}; ms")
    rows = [(name, first[0], statistics.median(first), max(first[1:]), then[0], statistics.median(then), max(then[1:])) for name, (first, then, _) in measured.items()]
    print(table(("", "first text: first token", "a token", "slowest", "later texts: first token", "a token", "slowest"), rows))
    print(f"\na token in bcvm / PyNative: {statistics.median(measured['bcvm'][1]) / statistics.median(measured['PyNative'][1]):.2f}")
    counts = bcvm.mindspore.counters()
    print(f"{counts['calls']:.0f} calls, {counts['native']:.0f} native, {counts['compiles']:.0f} compiled, {counts['recompiles']:.0f} recompilations")
    for f in bcvm.mindspore.functions():
        for reason, n in f.stats()["exits"].items():
            print(f"left native code {n} times: {reason}")
    bcvm.mindspore.disable()


if __name__ == "__main__":
    main()
