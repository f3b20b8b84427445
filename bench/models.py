"""Real models from mindcv, unmodified, with random weights: PyNative, GRAPH_MODE and bcvm on the same stream of shapes.

    python bench/models.py                          the models below
    python bench/models.py resnet18 swin_tiny       some of them; any name that mindcv.create_model takes
    python bench/models.py --no-graph               GRAPH_MODE compiles for seconds a shape

Needs MindSpore, mindcv and opencv-python-headless. Every mode runs in a process of its own. Columns: ms of the first call of the process; of the first call with
a new shape (the median of three); of a call after that (median). Memory is the peak over what the process had with the model loaded. `native`: share of
bcvm's calls that ran native from start to end, after the first shape. `error`: largest difference from PyNative, relative to the largest result.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODELS = ("resnet18 squeezenet1_0 googlenet densenet121 vgg11 mobilenet_v1_100 mobilenet_v2_100 mobilenet_v3_small_100 ghostnet_050 shufflenet_v2_x0_5 mnasnet_050 "
          "efficientnet_b0 regnet_x_200mf repvgg_a0 res2net50 convnext_tiny poolformer_s12 mobilevit_xx_small pvt_v2_b0 swin_tiny edgenext_xx_small cmt_small "
          "visformer_tiny crossvit_9 coat_tiny vit_b_32_224").split()
FIXED = {"vit_b_32_224": 224, "swin_tiny": 224, "coat_tiny": 224, "crossvit_9": 240, "visformer_tiny": 224, "cmt_small": 224}  # these take one resolution only
MODES = ("pynative", "graph", "bcvm")
REPEATS = 5
COMPILE_SECONDS = 600


def shapes(name: str) -> list[tuple[int, int, int, int]]:
    size = FIXED.get(name)
    return [(b, 3, size, size) for b in (1, 2, 3, 4)] if size else [(1, 3, 96, 96), (2, 3, 96, 96), (3, 3, 128, 128), (2, 3, 160, 128)]


def peak_mb() -> float:
    """Resident memory of this process, at its highest since it was reset."""
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def make(name: str, rng: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """The model and the arguments of one call for each of four shapes."""
    import mindspore as ms
    import numpy as np
    from mindcv.models import create_model
    return create_model(name, num_classes=10), [(ms.Tensor(rng.standard_normal(s).astype(np.float32)),) for s in shapes(name)]


def flat(result: Any) -> list[Any]:
    """The tensors in a model's result."""
    if isinstance(result, dict):
        result = tuple(result.values())
    return [a for r in result for a in flat(r)] if isinstance(result, (tuple, list)) else [] if result is None else [result]


def child(make: Callable[..., Any], name: str, mode: str, out: str) -> None:
    """One model in one mode; prints a line of JSON."""
    warnings.filterwarnings("ignore")
    import mindspore as ms
    import numpy as np
    net, stream = make(name, np.random.default_rng(1))
    net.set_train(False)
    rng = np.random.default_rng(0)
    for p in sorted(net.get_parameters(), key=lambda p: p.name):  # the same weights in every process
        if p.name.endswith(("moving_mean", "moving_variance")) or p.dtype != ms.float32:
            continue
        p.set_data(ms.Tensor((rng.standard_normal(p.shape) * 0.5 / max(np.prod(p.shape[1:]), 1) ** 0.5 if len(p.shape) > 1 else rng.uniform(0.5, 1.0, p.shape)).astype(np.float32)))
    bcvm: Any = None
    if mode == "bcvm":
        import bcvm.mindspore as bcvm
        bcvm.enable()
    else:
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    results: list[Any] = []

    def call(x: Any) -> float:
        start = time.perf_counter()
        arrays = [a.asnumpy() for a in flat(net(*x))]
        taken = (time.perf_counter() - start) * 1e3
        results[:] = arrays
        return taken

    before = peak_mb()
    Path("/proc/self/clear_refs").write_text("5")
    first_ever = call(stream[0])
    if bcvm is not None:
        settle(bcvm, call, stream[0])
        start_counts = bcvm.counters()
    first, steady, kept = [], [], []
    for x in stream:
        taken = [call(x) for _ in range(1 + REPEATS)]
        first.append(taken[0])
        steady.append(statistics.median(taken[1:]))
        kept.append([a.copy() for a in results])
    np.savez(out, *(a for arrays in kept for a in arrays))
    report: dict[str, Any] = {"first_ever": first_ever, "first": statistics.median(first[1:]), "steady": statistics.median(steady), "memory": peak_mb() - before}
    if bcvm is not None:
        counts = bcvm.counters()
        report["native"] = (counts["native"] - start_counts["native"]) / max(counts["calls"] - start_counts["calls"], 1)
        report["recompiles"] = counts["compiles"] - start_counts["compiles"]
        report["compile"] = counts["bcvm_fusion_compile_time"] + counts["bcvm_kernel_select_time"]
        why: dict[str, int] = {}
        for f in bcvm.functions():
            for reason, n in f.stats()["exits"].items():
                why[reason] = why.get(reason, 0) + n
        report["exits"] = sorted(why, key=lambda r: -why[r])[:3]
    print("RESULT " + json.dumps(report))


def settle(bcvm: Any, call: Any, x: Any) -> None:
    """Calls until nothing more is compiled."""
    end = time.monotonic() + COMPILE_SECONDS
    quiet = 0
    while quiet < 4 and time.monotonic() < end:
        compiles = bcvm.counters()["compiles"]
        call(x)
        while any(site.pending for f in bcvm.functions() for site in f._bcvm.sites()) and time.monotonic() < end:
            time.sleep(0.05)
        quiet = quiet + 1 if bcvm.counters()["compiles"] == compiles else 0


def run(script: str, name: str, mode: str, folder: str, timeout: float) -> tuple[dict[str, Any] | None, str]:
    env = {"GLOG_v": "3", **os.environ}
    try:
        done = subprocess.run([sys.executable, script, "--child", name, mode, f"{folder}/{name}-{mode}.npz"], capture_output=True, text=True, env=env, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"more than {timeout:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:]), ""
    return None, (done.stderr.strip().splitlines() or ["no output"])[-1][:150]


def error(folder: str, name: str, mode: str) -> float:
    import numpy as np
    got, want = (np.load(f"{folder}/{name}-{m}.npz") for m in (mode, "pynative"))
    return max(float(np.abs(got[k] - want[k]).max() / max(np.abs(want[k]).max(), 1e-30)) for k in want.files)


def main(script: str, doc: str, models: Sequence[str], make: Callable[..., Any], module: str, needs: str) -> int:
    """`make(name, rng)` gives a model and its stream of arguments; `module` must import, `needs` is what to install for it."""
    if len(sys.argv) == 5 and sys.argv[1] == "--child":
        child(make, *sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("models", nargs="*", default=models)
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one model in one mode")
    args = parser.parse_args()
    try:
        importlib.import_module(module)
    except ImportError as e:
        print(f"{Path(script).name} needs {module}: {needs} ({e})", file=sys.stderr)
        return 2
    from bcvm.tools.report import markdown
    head = ("model", "PyNative new", "then", "GRAPH new", "then", "bcvm first ever", "new", "then", "/ PyNative", "/ GRAPH", "memory PyNative MB", "bcvm MB", "native", "compiled for shapes", "error")
    rows, ratios, failures = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            made: dict[str, dict[str, Any] | None] = {}
            for mode in MODES:
                if mode == "graph" and args.no_graph:
                    continue
                made[mode], why = run(script, name, mode, folder, args.timeout)
                if made[mode] is None:
                    failures.append(f"{name} in {mode}: {why}")
            p, g, b = made.get("pynative"), made.get("graph"), made.get("bcvm")
            if p is None or b is None:
                continue
            different = error(folder, name, "bcvm")
            ratios.append(b["steady"] / p["steady"])
            rows.append((name, p["first"], p["steady"], g and g["first"], g and g["steady"], b["first_ever"], b["first"], b["steady"], b["steady"] / p["steady"],
                         g and b["steady"] / g["steady"], p["memory"], b["memory"], f"{100 * b['native']:.0f}%", int(b["recompiles"]), f"{different:.1e}"))
            if different > 1e-4:
                failures.append(f"{name}: differs from PyNative by {different:.1e}")
            failures += [f"{name} leaves native code: {reason}" for reason in b["exits"] if b["native"] < 1]
            print(markdown(head, rows[-1:]).splitlines()[2], flush=True)
    print("\n" + markdown(head, rows))
    if ratios:
        print(f"\nmedian of bcvm / PyNative over {len(ratios)} models: {statistics.median(ratios):.2f}")
    print("\n".join(["", *failures]))
    return 1 if any("differs" in f or " in bcvm" in f for f in failures) else 0


if __name__ == "__main__":
    sys.exit(main(__file__, __doc__ or "", MODELS, make, "mindcv", "pip install mindcv opencv-python-headless"))
