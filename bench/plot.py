"""A picture of the suite: each workload's steady state in bcvm and its peers, against the best peer.

    python bench/plot.py RESULTS.json [-o docs/bench.png] [--row bcvm]      of what `suite/run.py -o RESULTS.json` wrote
    python bench/plot.py --run [-w all] [-p numpy,torch,ort,jax,bcvm] [-r 3]     runs it first

Needs matplotlib, and nothing else of the project does: pip install matplotlib.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "suite"))
from run import WORKLOADS  # noqa: E402

LEFT = 0.04     # where bars begin
NAMES = {"numpy": "NumPy", "torch": "torch", "torch-compile": "torch.compile", "torch-dynamic": "torch.compile, dynamic", "ort": "ONNX Runtime", "jax": "JAX",
         "ms": "MindSpore PyNative", "ms-jit": "MindSpore jit", "bcvm": "bcvm", "bcvm-ms": "bcvm on MindSpore", "bcvm-frozen": "bcvm, frozen"}
COLOURS = {"numpy": "#2f5fb3", "torch": "#ee4c2c", "ort": "#7a7a7a", "jax": "#a35cc5", "torch-compile": "#f08c76", "torch-dynamic": "#f5b5a6", "ms": "#b08f5c",
           "ms-jit": "#8c6d3f"}
OWN = {"bcvm": "#0b7a4b", "bcvm-frozen": "#46b98a", "bcvm-ms": "#9bd6bc"}


def ratios(rows: list[dict[str, Any]], best: bool = False) -> dict[str, dict[str, float]]:
    """Workload -> peer -> median (best: the least) of `again` against the best peer that is not bcvm. A peer that failed or was wrong is left out."""
    times: dict[str, dict[str, list[float]]] = {}
    for r in rows:
        if "fail" not in r and r["err"] <= r["tol"]:
            times.setdefault(r["workload"], {}).setdefault(r["peer"], []).append(r["again"]["total"])
    out = {}
    for workload, peers in times.items():
        middle = {p: min(t) if best else statistics.median(t) for p, t in peers.items()}
        others = [t for p, t in middle.items() if p not in OWN]
        if others:
            out[workload] = {p: t / min(others) for p, t in middle.items()}
    return out


def draw(found: dict[str, dict[str, float]], path: Path, own: list[str]) -> None:
    """One panel for the nine workloads, one for those beyond them; in each the workload with the best ratio is on top."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    panels = [(title, [w for w in found if (w in WORKLOADS) == nine]) for title, nine in (("the nine workloads", True), ("workloads beyond them", False))]
    panels = [(title, workloads) for title, workloads in panels if workloads]
    figure, all_axes = plt.subplots(len(panels), 1, sharex=True, squeeze=False, figsize=(9, 1.3 + 0.32 * len(found)), dpi=100,
                                    gridspec_kw={"height_ratios": [len(workloads) for _, workloads in panels]})
    peers = [p for p in COLOURS if any(p in times for times in found.values())]
    for axes, (title, workloads) in zip(all_axes[:, 0], panels, strict=True):
        order = sorted(workloads, key=lambda w: min((found[w][p] for p in own if p in found[w]), default=9.0), reverse=True)
        for y, workload in enumerate(order):
            here = [p for p in own if p in found[workload]]
            height = 0.7 / max(len(here), 1)
            for i, p in enumerate(here):
                value, at = found[workload][p], y + ((len(here) - 1) / 2 - i) * height
                axes.barh(at, value - LEFT, height=height * 0.94, left=LEFT, color=OWN[p], zorder=2)
                axes.text(LEFT * 1.06, at, f"{value:.2f}", va="center", fontsize=8 if len(here) == 1 else 6.5, color="white" if p == own[0] else "black", zorder=5)
        for p in peers:
            points = [(found[w][p], y) for y, w in enumerate(order) if p in found[w]]
            if points:
                axes.scatter(*zip(*points, strict=True), s=30, color=COLOURS[p], edgecolor="white", linewidth=0.6, zorder=4)
        axes.axvline(1, color="#222222", linewidth=1, zorder=3)
        axes.set_yticks(range(len(order)), order)
        axes.set_title(title, fontsize=9, loc="left")
        axes.tick_params(length=0, labelsize=9)
        axes.grid(axis="x", color="#e4e4e4", linewidth=0.8, zorder=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    axes.set_xscale("log")
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(LEFT, max(30.0, *(v * 1.3 for times in found.values() for v in times.values())))
    axes.set_xlabel("time of the whole stream in the steady state, times that of the best peer (log scale; less is better)", fontsize=9)
    marks = [plt.Line2D([], [], marker="o", linestyle="", color=COLOURS[p], label=NAMES[p]) for p in peers]
    figure.legend(handles=[*(plt.Rectangle((0, 0), 1, 1, color=OWN[p], label=NAMES[p]) for p in own), *marks], loc="upper right", ncols=len(own) + len(peers),
                  fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", nargs="*", type=Path, help="one or more files; rows of all are taken together")
    p.add_argument("-o", type=Path, default=HERE.parent / "docs" / "bench.png")
    p.add_argument("--row", default="bcvm", help="which of bcvm's own peers to draw: " + ", ".join(OWN))
    p.add_argument("--run", action="store_true")
    p.add_argument("--best", action="store_true", help="the fastest round of each instead of the median: where the machine did other work")
    p.add_argument("-w", default="all")
    p.add_argument("-p", default="numpy,torch,ort,jax,bcvm")
    p.add_argument("-r", default="3")
    args = p.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = list(args.results)
        if args.run:
            files.append(Path(folder) / "rows.json")
            subprocess.run([sys.executable, str(HERE / "workloads_run.py"), "-w", args.w, "-p", args.p, "-r", args.r, "-o", str(files[-1])], check=False)
        if not files:
            p.error("no results: name a file, or --run")
        for f in files:
            rows += json.loads(f.read_text())
    found = ratios(rows, args.best)
    if not found:
        p.error("no workload has both bcvm and a peer in these results")
    draw(found, args.o, [o for o in args.row.split(",") if any(o in peers for peers in found.values())])
    print(f"{args.o}: {len(found)} workloads")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
