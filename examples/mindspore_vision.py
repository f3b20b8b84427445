"""A model of mindcv over images of another resolution each: python examples/mindspore_vision.py [model]

Needs mindcv: pip install mindcv opencv-python-headless"""
from __future__ import annotations

import sys

import numpy as np
from compare import compare
from mindspore import Tensor

SIZES = [(96, 96), (64, 128), (160, 96), (128, 128)]


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "regnet_x_200mf"
    try:
        from mindcv.models import create_model
    except ImportError as e:
        print(f"this example needs mindcv: pip install mindcv opencv-python-headless ({e})", file=sys.stderr)
        return 1

    def make():
        net, rng = create_model(name, num_classes=10), np.random.default_rng(0)
        for p in net.get_parameters():
            if not p.name.endswith(("moving_mean", "moving_variance")):
                fan = max(int(np.prod(p.shape[1:])), 1)
                p.set_data(Tensor((rng.standard_normal(p.shape) * fan**-0.5 if len(p.shape) > 1 else rng.uniform(0.5, 1.0, p.shape)).astype(np.float32)))
        return net
    rng = np.random.default_rng(1)
    stream = [(Tensor(rng.standard_normal((1, 3, h, w)).astype(np.float32)),) for h, w in SIZES]
    compare(make, (Tensor(np.ones((2, 3, 64, 64), np.float32)),), stream, lambda x: str(tuple(x.shape)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
