"""Resident memory of one process that runs several cells over changing shapes for a while, under bcvm.mindspore.enable().

    python bench/soak.py                    one minute
    python bench/soak.py --minutes 5
    python bench/soak.py --minutes 5 --pynative   the same in PyNative, to compare with

Prints a line per interval. Fails if the last quarter's memory lies more than --allowed MiB above the second quarter's.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")
warnings.filterwarnings("ignore", category=SyntaxWarning)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))


def resident_mb() -> float:
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def jobs(rng: Any) -> list[Callable[[], Any]]:
    """Calls with sizes of their own each time: a transformer, a generator of images, a language model with its cache, a branch on values, new cells."""
    import mindspore_generation
    import mindspore_generator
    import mindspore_transformer
    import numpy as np
    from mindspore import Tensor, nn, ops

    def floats(*shape: int) -> Any:
        return Tensor(rng.standard_normal(shape).astype(np.float32))

    class Branch(nn.Cell):
        def construct(self, x: Any) -> Any:
            y = ops.relu(x) if x.mean() > 0 else x.abs()
            return [y[i] for i in range(2)]
    encoder, images, language, branch = mindspore_transformer.make(), mindspore_generator.make(), mindspore_generation.make(words=100, width=64, heads=4, depth=2), Branch()
    for net in (encoder, images, language, branch):
        net.set_train(False)

    def tokens() -> Iterator[Any]:
        while True:
            given, past = Tensor(rng.integers(0, 100, (1, int(rng.integers(1, 20)))).astype(np.int32)), None
            for _ in range(int(rng.integers(2, 40))):
                given, past = language(given, past)
                yield given
    stream = tokens()

    cells: list[Any] = []

    def fresh() -> Any:
        if rng.random() < 0.1 or not cells:  # cells come and go; MindSpore itself keeps 1 to 2 KB of each
            cells[:] = [nn.Dense(16, 16)]
        return cells[0](floats(int(rng.integers(1, 9)), 16))
    return [lambda: encoder(floats(int(rng.integers(1, 5)), int(rng.integers(1, 64)), 128)),
            lambda: images(floats(1, 32, int(rng.integers(8, 40)), int(rng.integers(8, 40)))),
            lambda: next(stream), lambda: next(stream), lambda: next(stream),
            lambda: branch(floats(int(rng.integers(2, 50)), int(rng.integers(1, 50)))), fresh]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--pynative", action="store_true")
    parser.add_argument("--allowed", type=float, default=8, help="MiB of growth")
    args = parser.parse_args()
    import mindspore as ms
    import numpy as np

    import bcvm.mindspore
    calls = jobs(np.random.default_rng(0))
    if args.pynative:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    else:
        bcvm.mindspore.enable()
    start, interval, done, memory = time.monotonic(), max(args.minutes * 60 / 20, 1), 0, []
    print("seconds  calls  resident MiB  compiled")
    while (now := time.monotonic() - start) < args.minutes * 60:
        while time.monotonic() - start < now + interval:
            result = calls[done % len(calls)]()
            for a in result if isinstance(result, (tuple, list)) else (result,):
                a.asnumpy()
            done += 1
        memory.append(resident_mb())
        compiled = 0 if args.pynative else int(bcvm.mindspore.counters()["compiles"])
        print(f"{time.monotonic() - start:7.0f} {done:6} {memory[-1]:13.1f} {compiled:9}", flush=True)
    quarter = max(len(memory) // 4, 1)
    growth = statistics.median(memory[-quarter:]) - statistics.median(memory[quarter:2 * quarter] or memory)
    print(f"the last quarter lies {growth:+.1f} MiB above the second")
    return int(growth > args.allowed)


if __name__ == "__main__":
    sys.exit(main())
