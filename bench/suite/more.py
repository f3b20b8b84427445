"""Workloads beyond the nine: sizes, counts and trip numbers that depend on the data. The form is that of workloads.py; peers are in more_*.py.

The reference is the NumPy peer's code on float64 weights and inputs.
"""
from __future__ import annotations

import math

import numpy as np

F = np.float32


class Workload:
    """`w`: float32 weights. `calls`: argument tuples, arrays of float32 and int64, a fresh shape on nearly each."""

    name = ""
    tol = 1e-4

    def __init__(self, n: int = 60) -> None:
        self.rng = np.random.default_rng(sum(map(ord, self.name)))
        self.w: list[np.ndarray] = []
        self.calls = self.build(n)

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        """The n calls, and the weights on the way; each workload has its own."""
        raise NotImplementedError

    def ref(self, *args: np.ndarray) -> object:
        from more_numpy import make

        def wide(a: np.ndarray) -> np.ndarray:
            return a.astype(np.float64) if a.dtype == F else a
        exact = type("Exact", (), {"name": self.name, "w": [wide(a) for a in self.w]})
        return make(exact, "numpy", 1)[0](*map(wide, args))

    def weights(self, *shapes: tuple[int, ...]) -> None:
        """Normal, scaled by the number of inputs: the first size of a matrix, all but the first of a convolution, 1 of a vector."""
        for s in shapes:
            fan = s[0] if len(s) == 2 else s[1] if len(s) == 3 else math.prod(s[1:]) if len(s) == 4 else 1
            self.w.append((self.rng.standard_normal(s) / math.sqrt(fan)).astype(F))

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(F)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def ids(self, below: int, *shape: int) -> np.ndarray:
        return self.rng.integers(0, below, shape)


class Moe(Workload):
    """Mixture of experts: each token to its best of 8 experts, ragged counts per expert, some of them 0."""

    name = "moe"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((128, 8), (8, 128, 256), (8, 256, 128))
        return [(self.floats(self.size(1, 256), 128),) for _ in range(n)]


class Beam(Workload):
    """Beam search: 4 beams over 512 tokens, sequences that grow, ended by the best beam's token or the input's length."""

    name = "beam"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((128, 128), (512, 128), (128, 512))
        self.w[1] *= F(8)
        self.w[2] *= F(3)
        return [(self.floats(self.size(1, 24), 128),) for _ in range(n)]


class Ragged(Workload):
    """Attention over padded batches of sequences of different lengths: softmax under a mask, then the mean over each sequence."""

    name = "ragged"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((128, 384))
        calls = []
        for _ in range(n):
            x = self.floats(self.size(1, 16), self.size(1, 96), 128)
            calls.append((x, self.rng.integers(1, x.shape[1] + 1, x.shape[0])))
        return calls


class Pyramid(Workload):
    """A multi-scale image pyramid: features and detail on each level, halved while both sides have 8 pixels."""

    name = "pyramid"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((16, 3, 3, 3), (16,), (3, 16))
        return [(self.floats(1, 3, self.size(16, 160), self.size(16, 160)),) for _ in range(n)]


class Gan(Workload):
    """A generator's step: batch statistics, the discriminator's score, and a refinement only where it is not fooled."""

    name = "gan"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((64, 256), (256,), (256,), (256,), (256, 784), (784,), (784, 128), (128,), (128, 1), (784, 64), (64, 784))
        return [(self.floats(self.size(2, 64), 64),) for _ in range(n)]


class Recsys(Workload):
    """Recommendation: embeddings of a history and of 1 to 2000 candidates, crossed and scored."""

    name = "recsys"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((20000, 64), (20000,), (80, 64), (64,), (128, 64), (64,), (64,))
        self.w[0] *= F(100)
        return [(self.ids(20000, self.size(1, 100)), self.ids(20000, self.size(1, 2000)), self.floats(16)) for _ in range(n)]


class Channels(Workload):
    """A slimmable network: 4 to 64 channels, whose weights are slices of the widest network's."""

    name = "channels"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((64, 64, 3, 3), (64,), (64,), (32, 64, 1, 1), (32,))
        return [(self.floats(1, self.size(4, 64), self.size(8, 40), self.size(8, 40)),) for _ in range(n)]


class Jitter(Workload):
    """Three joined batches whose row counts jitter from call to call, as requests of different ages do."""

    name = "jitter"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((256, 512), (512,), (512, 256), (256,), (256,))
        return [(self.floats(self.size(28, 36), 256), self.floats(self.size(0, 8), 256), self.floats(self.size(60, 68), 256)) for _ in range(n)]


class Lstm(Workload):
    """An LSTM in a loop of 1 to 64 steps; the last state."""

    name = "lstm"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((128, 512), (128, 512), (512,))
        return [(self.floats(self.size(1, 64), self.size(1, 8), 128),) for _ in range(n)]


class Gru(Workload):
    """A GRU in both directions in one loop of 1 to 64 steps; all states."""

    name = "gru"

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights(*((96, 288), (96, 288), (288,)) * 2)
        return [(self.floats(self.size(1, 64), self.size(1, 8), 96),) for _ in range(n)]


class Diffusion(Workload):
    """Denoise in at most 50 steps, until a step changes little."""

    name = "diffusion"
    tol = 1e-3

    def build(self, n: int) -> list[tuple[np.ndarray, ...]]:
        self.weights((128, 256), (256,), (256, 128))
        self.w[2] *= F(0.5)
        return [(self.floats(self.size(1, 32), 128) * F(10 ** self.rng.uniform(-1, 2)),) for _ in range(n)]


MORE = {c.name: c for c in (Moe, Beam, Ragged, Pyramid, Gan, Recsys, Channels, Jitter, Lstm, Gru, Diffusion)}
