"""The suite's own workloads run native from start to end, once compiled, and are right."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench" / "suite"))
import more_bcvm  # noqa: E402
from more import MORE  # noqa: E402


@pytest.mark.parametrize("name", sorted(MORE))
def test_workload_runs_native_and_is_right(name: str) -> None:
    workload = MORE[name](5)
    f, _, _ = more_bcvm.make(workload, "bcvm", 2)
    f.warmup(workload.calls[0])
    for call in workload.calls:
        got, want = f(*call), workload.ref(*call)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            assert g.shape == w.shape
            assert np.abs(g - w).max(initial=0) <= workload.tol * (np.abs(w).max(initial=0) + 1e-9)
    stats = f.stats()
    assert (stats["native"], stats["compiles"], stats["recompiles"]) == (5, 1, 0), stats


def test_the_picture_shows_medians_against_the_best_right_peer() -> None:
    sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))
    from plot import ratios
    rows = [{"workload": "conv", "peer": p, "again": {"total": t}, "err": e, "tol": 1e-4}
            for p, t, e in (("bcvm", 3.0, 0), ("bcvm", 4.0, 0), ("bcvm", 9.0, 0), ("ort", 8.0, 0), ("torch", 16.0, 0), ("jax", 1.0, 1.0))]
    assert ratios([*rows, {"workload": "rnn", "peer": "ort", "fail": "no form"}]) == {"conv": {"bcvm": 0.5, "ort": 1.0, "torch": 2.0}}
    assert ratios(rows, best=True)["conv"]["bcvm"] == 3 / 8


@pytest.mark.parametrize(("row", "bad"), [
    ({"peer": "bcvm", "err": 0.0}, False), ({"peer": "bcvm", "err": 1.0}, True), ({"peer": "jax", "err": 1.0}, True), ({"peer": "bcvm", "fail": "over 150 s"}, True),
    ({"peer": "ms-jit", "fail": "over 150 s"}, False), ({"peer": "ms-jit", "fail": "RuntimeError"}, True), ({"peer": "ort", "fail": "no ort form"}, False)])
def test_a_run_fails_where_a_result_is_wrong_or_ours_is_missing(row: dict, bad: bool) -> None:
    from run import failed
    assert failed({"tol": 1e-4, **row}) is bad
