"""A trace holds what happened, and leaves every function as it was."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.tools.trace import NAME, place


def events(path: Path, category: str) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["otherData"]["dropped"] == 0
    for event in content["traceEvents"]:
        assert event["ph"] in "MXi" and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] != "X" or event["dur"] >= 0
    return [e for e in content["traceEvents"] if e.get("cat") == category]


def scaled(x: Any) -> Any:
    return np.maximum(x * 2.0 + 1.0, 0.0)


def test_calls_compilations_and_kernels_are_there(tmp_path: Path) -> None:
    f = bcvm.jit(scaled, tier="full")
    x = np.linspace(-2, 2, 7)
    with bcvm.trace(tmp_path / "t.json"):
        for _ in range(3):
            np.testing.assert_array_equal(f(x), scaled(x))
    compiled = events(tmp_path / "t.json", "compile")
    assert any(e["name"] == "specialise scaled" for e in compiled) and any(e["name"] == "compile scaled" for e in compiled)
    assert any("maximum" in line for e in compiled for line in e["args"].get("kernels", ()))
    with bcvm.trace(tmp_path / "second.json"):
        f(x)
        f(x[:3])
    assert [(e["name"], e["args"]["how"]) for e in events(tmp_path / "second.json", "call")] == [("scaled", "native")] * 2
    assert not events(tmp_path / "second.json", "compile")


def test_interpreted_calls_have_their_reason(tmp_path: Path) -> None:
    f = bcvm.jit(scaled, tier="interpret")
    with bcvm.trace(tmp_path / "t.json"):
        f(np.ones(3))
    assert [e["args"]["how"] for e in events(tmp_path / "t.json", "call")] == ["interpreted"]
    assert [e["name"] for e in events(tmp_path / "t.json", "interpreter")] == ["interpret scaled"]


def test_functions_are_native_again_behind_a_trace(tmp_path: Path) -> None:
    f = bcvm.jit(scaled, tier="full")
    f(np.ones(3))
    slow = f._slow
    with bcvm.trace(tmp_path / "t.json"):
        assert f._slow is not slow
        f(np.ones((2, 3), np.float32))  # published during the trace
    assert f._slow is slow and f._bcvm.site.target is f
    before = f.stats()
    f(np.ones(5))
    f(np.ones((4, 3), np.float32))
    after = f.stats()
    assert after["native"] - before["native"] == 2 and after["compiles"] == before["compiles"] == 2


def test_an_exception_passes_and_the_file_is_written(tmp_path: Path) -> None:
    f = bcvm.jit(lambda a, b: a + b, tier="full")
    with pytest.raises(ValueError), bcvm.trace(tmp_path / "t.json"):
        f(np.ones(3), np.ones(4))
    assert len(events(tmp_path / "t.json", "interpreter")) + len(events(tmp_path / "t.json", "compile")) > 0


def test_methods_are_traced(tmp_path: Path) -> None:
    class Layer:
        scale = 3.0

        @bcvm.jit(tier="full")
        def forward(self, x: Any) -> Any:
            return x * self.scale

    layer = Layer()
    layer.forward(np.ones(3))
    with bcvm.trace(tmp_path / "t.json"):
        np.testing.assert_array_equal(layer.forward(np.ones(4)), np.full(4, 3.0))
    assert len(events(tmp_path / "t.json", "call")) == 1


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    with bcvm.trace(tmp_path / "t.json"), pytest.raises(RuntimeError, match="running already"), bcvm.trace(tmp_path / "u.json"):
        pass
    assert not (tmp_path / "u.json").exists()


def test_its_folder_is_made(tmp_path: Path) -> None:
    with bcvm.trace(tmp_path / "a" / "b" / "t.json"):
        pass
    assert (tmp_path / "a" / "b" / "t.json").is_file()
    with pytest.raises(TypeError, match="PathLike"):
        bcvm.trace(None)  # type: ignore[arg-type]


def test_in_a_profilers_folder_it_lies_beside_the_trace_view(tmp_path: Path) -> None:
    assert place(tmp_path / "x.json") == tmp_path / "x.json"
    assert place(tmp_path) == tmp_path / NAME
    profile = tmp_path / "host_1_ascend_ms" / "ASCEND_PROFILER_OUTPUT"
    profile.mkdir(parents=True)
    assert place(tmp_path) == profile / NAME
    (profile / "trace_view.json").write_text("[]")
    assert place(profile) == profile / NAME
