"""Settings: order of precedence, scopes per thread, clear errors."""
from __future__ import annotations

import threading

import pytest

from bcvm.config import FIELDS, Options, clamp, config, resolve, scope


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in FIELDS:
        monkeypatch.delenv(f"BCVM_{name.upper()}", raising=False)


def test_defaults_are_those_of_the_design():
    o = resolve()
    assert (o.tier, o.background, o.fusion, o.compile_timeout_ms, o.deadline_ms) == ("auto", True, True, 100, None)
    assert (o.cache_size, o.cache_ttl_s, dict(o.clamp), o.frozen, o.threads, o.device) == (200, 300, {}, False, None, "cpu")
    assert o == Options()


def test_own_option_then_scope_then_variable_then_default(monkeypatch):
    monkeypatch.setenv("BCVM_TIER", "splice")
    assert resolve().tier == "splice"
    with config(tier="full") as inside:
        assert inside.tier == resolve().tier == "full"
        assert resolve({"tier": "interpret"}).tier == "interpret"
    assert resolve().tier == "splice"


def test_inner_scopes_override_name_by_name_and_end_with_their_block():
    with config(tier="full", threads=2):
        with pytest.raises(RuntimeError), config(threads=1):
            assert (resolve().tier, resolve().threads) == ("full", 1)
            raise RuntimeError
        assert resolve().threads == 2
    assert dict(scope()) == {}


def test_one_scope_can_be_entered_again_inside_itself_and_serve_as_decorator():
    settings = config(tier="full")
    with settings, settings:
        assert resolve().tier == "full"
    assert resolve().tier == "auto"

    @settings
    def inner():
        return resolve().tier

    assert (inner(), resolve().tier) == ("full", "auto")


def test_a_wrong_variable_leaves_no_scope_half_entered(monkeypatch):
    monkeypatch.setenv("BCVM_TIER", "fast")
    with pytest.raises(ValueError, match="BCVM_TIER"), config(threads=2):
        pass
    assert dict(scope()) == {}


def test_another_thread_does_not_see_the_scope():
    seen = []
    with config(tier="full"):
        t = threading.Thread(target=lambda: seen.append(resolve().tier))
        t.start()
        t.join()
    assert seen == ["auto"]


@pytest.mark.parametrize(("name", "text", "value"), [
    ("background", "0", False), ("background", "True", True), ("deadline_ms", "2.5", 2.5), ("deadline_ms", "none", None), ("threads", "3", 3),
    ("tier", "FULL", "full"), ("cache_size", "10", 10), ("exits", "random", "random"), ("cache_ttl_s", "60", 60.0),
])
def test_variables_are_read_as_their_type(monkeypatch, name, text, value):
    monkeypatch.setenv(f"BCVM_{name.upper()}", text)
    assert getattr(resolve(), name) == value


@pytest.mark.parametrize("name", ["tier", "threads", "background", "seed"])
def test_an_empty_variable_sets_nothing(monkeypatch, name):
    monkeypatch.setenv(f"BCVM_{name.upper()}", " ")
    assert resolve() == Options()


@pytest.mark.parametrize(("name", "text"), [("background", "perhaps"), ("threads", "many"), ("threads", "0"), ("tier", "fast"), ("cache_size", "1.5"), ("seed", "-1")])
def test_a_variable_that_stands_for_nothing_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"BCVM_{name.upper()}", text)
    with pytest.raises((TypeError, ValueError), match=f"variable BCVM_{name.upper()}: {name}='?{text}'?; expected"):
        resolve()


@pytest.mark.parametrize(("options", "message"), [
    ({"teir": "full"}, r"unknown option 'teir'; did you mean 'tier'\?"),
    ({"zzz": 1}, "unknown option 'zzz'; known: tier, background"),
    ({"tier": "ful"}, r"tier='ful'; expected one of .*; did you mean 'full'\?"),
    ({"background": 1}, "background=1; expected True or False"),
    ({"threads": True}, "threads=True; expected an int"),
    ({"threads": 0}, "threads=0; expected an int of at least 1"),
    ({"deadline_ms": -1}, "deadline_ms=-1; expected a number above 0"),
    ({"deadline_ms": float("nan")}, "deadline_ms=nan; expected a number above 0"),
    ({"clamp": {"B": 3}}, "clamp=.*; expected a dict from symbol to bcvm.clamp"),
    ({"device": "cuda"}, "device='cuda'; expected one of 'cpu'"),
])
def test_what_is_no_setting_is_refused_with_what_would_be(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        config(**options)


def test_clamp_admits_its_sizes_only():
    c = clamp(min=1, max=32, step=4)
    assert [n for n in range(40) if c.admits(n)] == [1, 5, 9, 13, 17, 21, 25, 29]
    assert resolve({"clamp": {"B": c}}).clamp["B"].max == 32
    for bad in ({"min": 5, "max": 4}, {"step": 0}, {"min": -1}):
        with pytest.raises(ValueError, match="clamp: needs"):
            clamp(**bad)
    with pytest.raises(TypeError, match="clamp: step is an int"):
        clamp(step=1.5)
