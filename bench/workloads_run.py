"""The nine workloads against the peers: the suite beside this file, or another measuring stick of the same form.

    python bench/workloads_run.py [--stick FOLDER] [options of its run.py: -w, -p, -r, -o, -t]

Sets PY_MS, PY_TORCH, PY_PEERS and PY_BCVM to this checkout's environments where they are not set, then runs FOLDER/run.py.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "suite"))
from run import interpreters  # noqa: E402


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stick", type=Path, default=HERE / "suite", help="folder with a run.py and a peer.py")
    args, rest = p.parse_known_args()
    script = args.stick.resolve() / "run.py"
    if not script.is_file():
        p.error(f"{script}: no such file")
    return subprocess.run([sys.executable, str(script), *rest], env={**os.environ, **interpreters()}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
