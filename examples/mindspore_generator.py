"""A GAN's generator that takes another way for small images and for labelled ones: python examples/mindspore_generator.py"""
from __future__ import annotations

import numpy as np
from compare import compare
from mindspore import Tensor, nn, ops


class Generator(nn.Cell):
    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.first, self.second = nn.Conv2d(width, width, 3), nn.Conv2d(width, width, 3)
        self.image = nn.Conv2d(width, 3, 3)

    def construct(self, noise, label=None, doubled=True):
        x = noise
        if label is not None:
            x = x + self.embed(label).reshape(x.shape[0], -1, 1, 1)
        x = ops.relu(self.first(x))
        if doubled and x.shape[2] < 24:      # both ways are in the same native code
            x = ops.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode="nearest")
        if x.abs().mean() > 1.0:             # a value that is known at run time only
            x = x * 0.5
        return ops.clamp(self.image(ops.relu(self.second(x))), -1.0, 1.0)


def make() -> Generator:
    net, rng = Generator(), np.random.default_rng(0)
    for p in net.get_parameters():
        p.set_data(Tensor((rng.standard_normal(p.shape) * 0.1).astype(np.float32)))
    return net


def main() -> None:
    rng = np.random.default_rng(1)

    def noise(b: int, size: int) -> Tensor:
        return Tensor(rng.standard_normal((b, 32, size, size)).astype(np.float32))
    label = Tensor(np.array([1], np.int32))
    stream = [(noise(1, 16), label, True), (noise(1, 40), label, True), (noise(1, 20), label, False), (noise(1, 8), label, True), (noise(1, 28), label, False)]
    compare(make, (noise(1, 12), label, True), stream, lambda x, label, doubled: f"{tuple(x.shape)} doubled={doubled}")


if __name__ == "__main__":
    main()
