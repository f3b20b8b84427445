"""Run every peer on every workload, one process each, interleaved; print the table of medians.

    python bench/suite/run.py [-w mlp,chain] [-p bcvm,torch] [-r rounds] [-o results.json] [-t seconds]

Interpreters: the environments that `make` sets up in this checkout, or those that PY_MS, PY_TORCH, PY_PEERS, PY_BCVM name. Without -p, the peers
whose environment is there. Each process starts in an empty folder of its own, which also takes torch's compile cache, so that a first call is one.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORKLOADS = ("tiny", "chain", "mlp", "branch", "bert", "rnn", "decode", "conv", "while")
MORE = ("moe", "beam", "ragged", "pyramid", "gan", "recsys", "channels", "jitter", "lstm", "gru", "diffusion")
PEERS = {"numpy": "PY_MS", "bcvm": "PY_BCVM", "bcvm-frozen": "PY_BCVM", "bcvm-ms": "PY_BCVM", "ort": "PY_PEERS", "torch": "PY_TORCH", "torch-compile": "PY_TORCH",
         "torch-dynamic": "PY_TORCH", "jax": "PY_PEERS", "ms": "PY_MS", "ms-jit": "PY_MS", "ms-jitdyn": "PY_MS"}
DEFAULT = ("numpy", "bcvm", "bcvm-ms", "ort", "torch", "jax", "ms", "ms-jit")
FOLDERS = {"PY_MS": ".venv-mindspore", "PY_BCVM": ".venv-mindspore", "PY_PEERS": ".venv-peers", "PY_TORCH": ".venv-peers"}


def interpreters() -> dict[str, str]:
    """Variable -> path of the interpreter, for those that exist."""
    named = {variable: os.environ.get(variable) or str(ROOT / folder / "bin" / "python") for variable, folder in FOLDERS.items()}
    return {variable: path for variable, path in named.items() if Path(path).exists()}


def once(workload: str, peer: str, python: str, timeout: int) -> dict:
    """One process; a row of figures, or one with the reason under `fail`."""
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        env.pop(variable, None)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            done = subprocess.run([python, str(HERE / "peer.py"), workload, peer], cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return dict(workload=workload, peer=peer, fail=f"over {timeout} s")
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and printed:
        return json.loads(printed[-1])
    return dict(workload=workload, peer=peer, fail=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:120])


def table(rows: list[dict]) -> str:
    """Medians over the rounds; `x numpy` is the steady state against NumPy's of the same run."""
    lines = [f"{'workload':10}{'peer':14}{'first ms':>9}{'stream ms':>11}{'max':>9}{'again ms':>10}{'p50':>9}{'p99':>9}{'x numpy':>9}{'MB':>6}  err"]
    for workload, peer in dict.fromkeys((r["workload"], r["peer"]) for r in rows):
        mine = [r for r in rows if (r["workload"], r["peer"]) == (workload, peer)]
        good = [r for r in mine if "fail" not in r]
        if len(good) < len(mine):
            lines.append(f"{workload:10}{peer:14}{mine[0].get('fail') or next(r['fail'] for r in mine if 'fail' in r)}")
            continue
        base = [r["again"]["total"] for r in rows if r["workload"] == workload and r["peer"] == "numpy" and "fail" not in r]
        again, err = statistics.median(r["again"]["total"] for r in good), max(r["err"] for r in good)
        first, stream, worst = (statistics.median(f) for f in zip(*((r["first"], r["stream"]["total"], r["stream"]["max"]) for r in good), strict=True))
        p50, p99, mb = (statistics.median(f) for f in zip(*((r["again"]["p50"], r["again"]["p99"], r["mem_mb"]) for r in good), strict=True))
        ratio = f"{again / statistics.median(base):9.2f}" if base else f"{'-':>9}"
        lines.append(f"{workload:10}{peer:14}{first:9.1f}{stream:11.1f}{worst:9.1f}{again:10.2f}{p50:9.4f}{p99:9.3f}{ratio}{mb:6.0f}  {err:.1g}{' WRONG' if err > good[0]['tol'] else ''}")
    return "\n".join(lines)


def counters(rows: list[dict]) -> str:
    """What bcvm counted, one line per workload and peer."""
    lines = [f"{'workload':10}{'peer':14}{'compiled':>9}{'again':>7}{'types':>6}{'native':>8}{'CALL_PY':>8}  code bytes after the stream, at the end; fallbacks"]
    for r in {(r["workload"], r["peer"]): r for r in rows if "stats" in r}.values():
        s = r["stats"]
        lines.append(f"{r['workload']:10}{r['peer']:14}{s['compiles']:9}{s['recompiles']:7}{s['specialisations']:6}{s['native_again']:8.1%}{s['call_py']:8}  "
                     f"{s['code_bytes'][0]}, {s['code_bytes'][1]}  {s['fallbacks'] or ''}")
    return "\n".join(lines)


def failed(row: dict) -> bool:
    """A peer that cannot express a workload, or another's that is too slow for it, is no failure."""
    why = row.get("fail", "")
    if why.endswith(" form") or why.startswith("over ") and not row["peer"].startswith("bcvm"):
        return False
    return bool(why) or row["err"] > row["tol"]


def main() -> int:
    found = interpreters()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-w", default="nine", help="workloads: nine (" + ", ".join(WORKLOADS) + "), more (" + ", ".join(MORE) + "), all, or names")
    p.add_argument("-p", default=",".join(n for n in DEFAULT if PEERS[n] in found), help="peers: " + ", ".join(PEERS))
    p.add_argument("-r", type=int, default=1, help="rounds; figures are medians over them")
    p.add_argument("-o", help="write every row to this JSON file")
    p.add_argument("-t", type=int, default=150, help="seconds that one process may take")
    args = p.parse_args()
    groups = {"nine": WORKLOADS, "more": MORE, "all": WORKLOADS + MORE}
    workloads, peers = [w for name in args.w.split(",") for w in groups.get(name, (name,))], args.p.split(",")
    for what, given, known in (("workload", workloads, WORKLOADS + MORE), ("peer", peers, tuple(PEERS))):
        if unknown := [g for g in given if g not in known]:
            p.error(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    if absent := [n for n in peers if PEERS[n] not in found]:
        p.error(f"no interpreter for {', '.join(absent)}: run `make bench-peers` and `make test`, or set {', '.join(sorted({PEERS[n] for n in absent}))}")
    rows: list[dict] = []
    for _ in range(args.r):
        for workload in workloads:
            for peer in peers:
                rows.append(once(workload, peer, found[PEERS[peer]], args.t))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if args.o:
                    Path(args.o).write_text(json.dumps(rows, indent=0))
    print("\n" + table(rows))
    if any("stats" in r for r in rows):
        print("\n" + counters(rows))
    return 1 if any(failed(r) for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
