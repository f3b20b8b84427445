"""The [BCVM] lines: word for word, and at the level that was asked for."""
from __future__ import annotations

import logging
import sys
import types

import pytest

from bcvm.config import config
from bcvm.tools import log


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for variable in ("BCVM_LOG_LEVEL", "GLOG_v", "MS_LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delitem(sys.modules, "mindspore", raising=False)
    monkeypatch.setattr(log, "_once", set())
    monkeypatch.setattr(log.logger, "handlers", [])
    monkeypatch.setattr(log.logger, "propagate", True)


def test_lines_of_a_compilation_are_those_users_expect(capsys):
    with config(log_level="info"):
        log.compile_line(0x1A2B, "[B, *, *, *]", "f", "/some/folder/model.py", 12)
        log.step_line(4, "Fusion", 0.84, "fused 2 ops")
        log.step_line(1, "Parse", 0.3)
        log.done_line(4.71, "abc123")
    assert capsys.readouterr().err.splitlines() == [
        "[BCVM] Compile for sig=0x1A2B, shape_hint=[B,*,*,*]  f (model.py:12)",
        "[BCVM] Step4 Fusion: 0.8ms, fused 2 ops",
        "[BCVM] Step1 Parse: 0.3ms",
        "[BCVM] JIT compiled in 4.7ms, cache key=abc123",
    ]


def test_by_default_warnings_are_printed_and_compilations_are_not(capsys):
    log.done_line(4.7, "abc123")
    log.warning("something")
    assert capsys.readouterr().err == "[BCVM] warning: something\n"


def test_a_fallback_is_told_once_per_function_and_reason(capsys):
    for line in (12, 12, 30):
        log.fallback_line("compile_timeout", "f", "model.py", line)
    assert capsys.readouterr().err.splitlines() == [f"[BCVM] warning: fallback_reason=compile_timeout  f (model.py:{n})" for n in (12, 30)]


@pytest.mark.parametrize(("variables", "with_mindspore", "expected"), [
    ({}, False, "warning"), ({"BCVM_LOG_LEVEL": "Info"}, False, "info"), ({"BCVM_LOG_LEVEL": "nonsense"}, False, "warning"),
    ({"GLOG_v": "1"}, False, "warning"), ({"GLOG_v": "1"}, True, "info"), ({"MS_LOG_LEVEL": "0"}, True, "debug"), ({"MS_LOG_LEVEL": "ERROR"}, True, "error"),
    ({"GLOG_v": "3", "MS_LOG_LEVEL": "0"}, True, "error"), ({"GLOG_v": "0", "BCVM_LOG_LEVEL": "off"}, True, "off"), ({"GLOG_v": "4"}, True, "off"),
])
def test_level_follows_the_variables(monkeypatch, variables, with_mindspore, expected):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    if with_mindspore:
        monkeypatch.setitem(sys.modules, "mindspore", types.ModuleType("mindspore"))
    assert log.level() == expected
    with config(log_level="debug"):
        assert log.level() == "debug"


def test_off_silences_errors_too(capsys):
    with config(log_level="off"):
        log.error("lost")
    log.error("seen")
    assert capsys.readouterr().err == "[BCVM] error: seen\n"


def test_lines_go_to_the_users_handler_where_there_is_one(capsys):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log.logger.addHandler(handler)
    log.warning("100% sure")
    assert [r.getMessage() for r in records] == ["[BCVM] warning: 100% sure"]
    assert capsys.readouterr().err == ""
