"""BYTECODE_VM as a mode of MindSpore: what is routed, what keeps its meaning, what is put back. PyNative is the oracle."""
from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

import bcvm.mindspore  # noqa: E402
from bcvm.frameworks import mindspore_mode as mode_module  # noqa: E402
from bcvm.vm.compile_thread import thread  # noqa: E402

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(8, 16), nn.Dense(16, 4)
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.second(self.relu(self.first(x)))


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.arange(12, dtype=np.float32).reshape(4, 3) - 5), name="w")

    def construct(self, x):
        return ops.relu(ops.matmul(x, self.w)) + 1.0


@ms.jit
def jitted_before(x, y):
    return ops.relu(x) * y + 1.0


class WithJitMethod(nn.Cell):
    @ms.jit
    def construct(self, x):
        return ops.exp(x) - 1.0


@pytest.fixture(autouse=True)
def mode():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    bcvm.mindspore.enable()
    yield
    bcvm.mindspore.disable()
    ms.set_context(mode=ms.PYNATIVE_MODE)


def tensor(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def native(fn, *args, calls=3):
    """Results of calls of fn; the last one ran native, from start to end."""
    results = []
    for _ in range(calls - 1):
        results.append(fn(*args).asnumpy().copy())
        assert thread.idle(30)
    before = bcvm.mindspore.counters()
    results.append(fn(*args).asnumpy().copy())
    after = bcvm.mindspore.counters()
    assert after["native"] > before["native"] and after["left"] == before["left"] and after["interpreted"] == before["interpreted"], after
    return results


def untouched(fn, *args, calls=2):
    """Results of calls that do not come to bcvm."""
    before = bcvm.mindspore.counters()
    results = [fn(*args).asnumpy().copy() for _ in range(calls)]
    assert bcvm.mindspore.counters() == before
    return results


def pynative(fn, *args):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    result = fn(*args)
    ms.set_context(mode=bcvm.mindspore.BYTECODE_VM)
    return result


def same(results, expected, tolerance=1e-6):
    expected = expected.asnumpy()
    for r in results:
        assert r.dtype == expected.dtype and r.shape == expected.shape
        np.testing.assert_allclose(r, expected, rtol=tolerance, atol=tolerance)


# -- what is routed

def test_cells_run_native_for_every_shape_and_one_compilation():
    net = Net()
    native(net, tensor(2, 8))
    for b in (1, 5, 64, 3):
        same(native(net, tensor(b, 8), calls=1), pynative(net, tensor(b, 8)))
    assert [f.stats()["compiles"] for f in bcvm.mindspore.functions()] == [1]


def test_functions_that_were_decorated_earlier_are_routed():
    x, y = tensor(3, 4), tensor(3, 4, seed=1)
    same(native(jitted_before, x, y), pynative(jitted_before, x, y))
    same(native(jitted_before, tensor(5, 2), tensor(2)), pynative(jitted_before, tensor(5, 2), tensor(2)))


def test_methods_under_jit_are_routed():
    net = WithJitMethod()
    same(native(net, tensor(3)), pynative(net, tensor(3)))


def test_constructs_that_were_replaced_by_jit_are_routed():
    net, other = Net(), Plain()
    expected = pynative(net, tensor(2, 8)), pynative(other, tensor(2, 4))
    net.construct = ms.jit(net.construct)
    same(native(net, tensor(2, 8)), expected[0])
    same(native(ms.jit(other), tensor(2, 4)), expected[1])


def test_a_construct_that_is_assigned_later_is_called():
    net = Plain()
    native(net, tensor(2, 4))
    net.construct = lambda x: x * 2.0
    same([net(tensor(3)).asnumpy()], tensor(3) * 2.0)
    del net.construct
    same([net(tensor(2, 4)).asnumpy()], pynative(net, tensor(2, 4)))


def test_functions_made_anew_for_each_call_are_right():
    def outer(k):
        @ms.jit
        def inner(x):
            return x * k
        return inner(tensor(3))
    for k in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(outer(k).asnumpy(), (tensor(3) * k).asnumpy())


def test_keyword_arguments_and_several_results():
    class Two(nn.Cell):
        def construct(self, x, scale=1.0, flag=False):
            return (x * scale, -x) if flag else (x, x)
    net = Two()
    for _ in range(3):
        a, b = net(tensor(3), scale=2.0, flag=True)
        np.testing.assert_array_equal(a.asnumpy(), (tensor(3) * 2.0).asnumpy())
        np.testing.assert_array_equal(b.asnumpy(), (-tensor(3)).asnumpy())
        thread.idle(30)


@pytest.mark.parametrize("capture", ["trace", "bytecode"])
def test_functions_captured_otherwise_run_as_plain_python_with_native_cells(capture):
    net = Net()
    native(net, tensor(2, 8))

    @ms.jit(capture_mode=capture)
    def captured(x):
        return net(x) + 1.0
    before = bcvm.mindspore.counters()["native"]
    same([captured(tensor(2, 8)).asnumpy()], pynative(net, tensor(2, 8)) + 1.0)
    assert bcvm.mindspore.counters()["native"] == before + 1


def test_what_a_caller_without_native_code_calls_is_native_by_itself():
    class Odd(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def construct(self, x):
            with open(os.devnull) as f:  # no native form for the whole of it
                f.read()
                return self.inner(x)
    net = Odd()
    for _ in range(12):
        y = net(tensor(2, 8))
        assert thread.idle(30)
    inner = next(f for f in bcvm.mindspore.functions() if f._bcvm.receiver == (net.inner,))
    assert inner.stats()["native"]
    same([y.asnumpy()], pynative(net, tensor(2, 8)))


# -- switching

def test_modes_are_switched_within_a_program():
    net, x = Net(), tensor(2, 8)
    expected = pynative(net, x)
    native(net, x)
    for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_context(mode=mode)
        same(untouched(net, x), expected)
        same(untouched(jitted_before, x, x), ops.relu(x) * x + 1.0)
    ms.set_context(mode=ms.BYTECODE_VM)
    same(native(net, x, calls=2), expected)
    assert ms.get_context("mode") == ms.PYNATIVE_MODE == ms.BYTECODE_VM


def test_enable_leaves_graph_mode_until_it_is_switched():
    bcvm.mindspore.disable()
    ms.set_context(mode=ms.GRAPH_MODE)
    bcvm.mindspore.enable()
    net = Plain()
    same(untouched(net, tensor(2, 4)), ops.relu(ops.matmul(tensor(2, 4), net.w)) + 1.0)


def replaced_places():
    api, capture, trace = (sys.modules[f"mindspore.graph.{n}"] for n in ("api", "_utils.pijit_context", "jit_trace"))
    setters = type(ms.context._context()).setters
    amp, dispatch = sys.modules["mindspore.train.amp"].AmpDecorator, sys.modules["mindspore.utils.ms_dispatch"].MsDispatchMode
    return [nn.Cell.__call__, api._JitExecutor.__call__, api._check_option_value, trace.jit_context, setters["mode"], setters["jit_config"], ms.set_context,
            *(getattr(c, n) for c in (capture.PIJitCaptureContext, amp, dispatch) for n in ("__enter__", "__exit__"))]


def test_disable_puts_everything_back():
    enabled = replaced_places()
    net, copied = Net(), None
    native(net, tensor(2, 8))
    bcvm.mindspore.disable()
    before, names = replaced_places(), set(vars(ms))
    assert all(a is not b for a, b in zip(enabled, before) if a is not ms.set_context)
    assert not hasattr(ms, "bcvm") and not hasattr(ms, "BYTECODE_VM") and not any("bcvm" in k for k in vars(net))
    assert all("bcvm" not in getattr(f, "__module__", "") and not hasattr(f, "__wrapped__") or f is ms.set_context or "mindspore" in f.__module__ for f in before)
    assert type(ms.context._context()._mode) is int
    net(tensor(2, 8))
    bcvm.mindspore.enable()
    assert ms.bcvm is bcvm and ms.BYTECODE_VM is bcvm.mindspore.BYTECODE_VM
    bcvm.mindspore.disable()
    assert replaced_places() == before and set(vars(ms)) == names and copied is None
    bcvm.mindspore.disable()


def test_the_mode_is_refused_before_it_is_enabled():
    bcvm.mindspore.disable()
    with pytest.raises(ValueError, match="bcvm.mindspore.enable"):
        ms.set_context(mode=bcvm.mindspore.BYTECODE_VM)
    assert bcvm.mindspore.BYTECODE_VM != 1 and bcvm.mindspore.counters() == {} and bcvm.mindspore.functions() == []


def test_what_others_put_around_the_hooks_stays():
    ours = nn.Cell.__call__
    seen = []

    def theirs(self, *args, **kwargs):
        seen.append(self)
        return ours(self, *args, **kwargs)
    nn.Cell.__call__ = theirs
    try:
        bcvm.mindspore.disable()
        net = Plain()
        net(tensor(2, 4))
        assert seen == [net] and nn.Cell.__call__ is theirs
    finally:
        nn.Cell.__call__ = ours.__wrapped__


# -- what keeps its meaning

def test_hooks_run_around_native_code():
    net, x = Net(), tensor(2, 8)
    expected = pynative(net, x)
    native(net, x)
    seen = []
    before = net.register_forward_pre_hook(lambda cell, inputs: seen.append("before") or (inputs[0] * 2.0,))
    after = net.register_forward_hook(lambda cell, inputs, output: seen.append("after") or output + 1.0)
    same(native(net, x), pynative(net, x))
    assert seen == ["before", "after"] * 4
    before.remove()
    after.remove()
    same(native(net, x), expected)


def test_hooks_of_inner_cells_run():
    net, x = Net(), tensor(2, 8)
    native(net, x)
    handle = net.relu.register_forward_hook(lambda cell, inputs, output: output * 3.0)
    expected = pynative(net, x)
    for _ in range(4):
        same([net(x).asnumpy()], expected)
        thread.idle(30)
    handle.remove()
    for _ in range(3):
        same([net(x).asnumpy()], pynative(net, x))
        thread.idle(30)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_mixed_precision_is_pynatives(level, tmp_path, monkeypatch):
    net, x = Net(), tensor(2, 8)
    plain = pynative(net, x).asnumpy().copy()
    monkeypatch.chdir(tmp_path)  # MindSpore writes the network it rewrites into the working folder
    mixed = ms.amp.auto_mixed_precision(net, level)
    expected = pynative(mixed, x)
    assert not np.array_equal(expected.asnumpy(), plain)
    for _ in range(4):
        np.testing.assert_array_equal(mixed(x).asnumpy(), expected.asnumpy())
        thread.idle(30)


def test_to_float_is_pynatives():
    net, x = Net(), tensor(2, 8)
    net.to_float(ms.float16)
    expected = pynative(net, x)
    for _ in range(4):
        np.testing.assert_array_equal(net(x).asnumpy(), expected.asnumpy())
        thread.idle(30)


def test_set_train_is_seen():
    class Norm(nn.Cell):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def construct(self, x):
            return self.norm(x) if self.training else self.norm(x) * 2.0
    net, other, x = Norm(), Norm(), tensor(6, 3)
    for training in (False, False, False, True, True, True, False, False):
        net.set_train(training), other.set_train(training)
        same([net(x).asnumpy()], pynative(other, x), 1e-5)
        np.testing.assert_allclose(net.norm.moving_mean.asnumpy(), other.norm.moving_mean.asnumpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(net.norm.moving_variance.asnumpy(), other.norm.moving_variance.asnumpy(), rtol=1e-5, atol=1e-6)
        thread.idle(30)


def test_recompute_keeps_results_and_gradients():
    net, x = Net(), tensor(2, 8)
    expected = pynative(net, x)
    net.first.recompute()
    for _ in range(3):
        same([net(x).asnumpy()], expected)
        thread.idle(30)
    grad = ms.grad(lambda v: net(v).sum())
    same([grad(x).asnumpy()], pynative(grad, x))


def test_shared_parameters_stay_shared():
    net = Net()
    twin = Net()
    twin.first.weight = net.first.weight
    x = tensor(2, 8)
    native(net, x), native(twin, x)
    net.first.weight.set_data(tensor(16, 8, seed=5))
    same(native(net, x, calls=1), pynative(net, x))
    same(native(twin, x, calls=1), pynative(twin, x))


def test_loaded_parameters_are_used():
    net, other, x = Net(), Net(), tensor(2, 8)
    native(net, x)
    ms.load_param_into_net(net, {k: Parameter(v.value(), name=k) for k, v in other.parameters_dict().items()})
    same(native(net, x, calls=1), pynative(other, x))


def test_gradients_are_pynatives_and_inference_goes_on():
    net, x = Net(), tensor(2, 8)
    native(net, x)
    step = ms.value_and_grad(lambda v: net(v).sum(), None, net.trainable_params())
    value, grads = step(x)
    expected_value, expected = pynative(step, x)
    same([value.asnumpy()], expected_value)
    for g, e in zip(grads, expected):
        same([g.asnumpy()], e)
    assert all(np.abs(g.asnumpy()).sum() > 0 for g in grads[:1])
    same(native(net, x, calls=1), pynative(net, x))


def test_training_steps_are_pynatives():
    def train():
        net = Net()
        for k, p in enumerate(net.trainable_params()):
            p.set_data(tensor(*p.shape, seed=k) * 0.3)
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
        step.set_train()
        losses = [float(step(tensor(4, 8, seed=k), tensor(4, 4, seed=k + 9)).asnumpy()) for k in range(4)]
        return losses, net
    losses, net = train()
    expected, reference = pynative(train)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    net.set_train(False), reference.set_train(False)
    same([net(tensor(2, 8)).asnumpy()], pynative(reference, tensor(2, 8)), 1e-5)


def test_a_dispatch_mode_sees_every_operation():
    seen = []

    class Watch(ms.utils.MsDispatchMode):
        def __ms_dispatch__(self, func, args, kwargs=None):
            seen.append(func.name)
            return func(*args)
    net, x = Plain(), tensor(2, 4)
    native(net, x)
    with Watch():
        untouched(net, x, calls=1)
    assert seen
    native(net, x, calls=1)


def test_copies_and_pickles_of_cells_are_their_own():
    net, x = Plain(), tensor(2, 4)
    native(net, x)
    twin = copy.deepcopy(net)
    twin.w.set_data(tensor(4, 3, seed=3))
    same(native(twin, x), pynative(twin, x))
    same(native(net, x, calls=1), pynative(net, x))
    loaded = pickle.loads(pickle.dumps(net))
    same([loaded(x).asnumpy()], pynative(net, x))
    assert b"bcvm.frameworks" not in pickle.dumps(net)


def test_dropped_cells_are_freed():
    import gc
    import weakref
    net = Plain()
    native(net, tensor(2, 4))
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_errors_are_mindspores():
    net = Plain()
    native(net, tensor(2, 4))
    with pytest.raises(RuntimeError, match="5 and 4"):
        net(tensor(2, 5)).asnumpy()
    with pytest.raises(TypeError):
        net()


def test_calls_from_several_threads():  # native ones: PyNative's operations are now and then wrong when threads make them at the same time
    import threading
    nets = [Net() for _ in range(2)]
    x = tensor(2, 8)
    expected = [pynative(n, x).asnumpy() for n in nets]
    for n in nets:
        native(n, x)
    wrong = []

    def work(k):
        for _ in range(30):
            for n, e in zip(nets, expected):
                if not np.allclose(n(x).asnumpy(), e, rtol=1e-5, atol=1e-6):
                    wrong.append(k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and all("construct" not in vars(n) for n in nets)


# -- settings

def test_jit_takes_the_keys_of_bcvm(capsys):
    @ms.jit(dump_bytecode=True, enable_fusion=False)
    def f(x):
        return ops.exp(x) + 1.0
    native(f, tensor(3), calls=4)
    out = capsys.readouterr().out
    assert "Bytecode dump for" in out and out.count("Bytecode dump") == 1 and "test_mindspore_mode.py:" in out
    assert bcvm.mindspore.functions()[0]._bcvm.settings().fusion is False
    with pytest.raises(TypeError, match="dump_bytecode"):
        ms.jit(dump_bytecode="yes")


def test_set_context_takes_the_keys_and_passes_the_rest_on(capsys):
    ms.set_context(jit_config={"jit_level": "O0", "dump_bytecode": True, "enable_source_map": False})
    assert ms.context._context().jit_config == {"jit_level": "O0"}
    native(Plain(), tensor(2, 4))
    out = capsys.readouterr().out
    assert "Bytecode dump for Plain.construct" in out and "test_mindspore_mode.py:" not in out
    ms.set_context(jit_config={"jit_level": "O0"})
    native(Plain(), tensor(2, 4))
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="no_such_key"):
        ms.set_context(jit_config={"no_such_key": 1})
    with pytest.raises(TypeError, match="enable_fusion"):
        ms.set_context(jit_config={"enable_fusion": 1})
    bcvm.mindspore.disable()
    with pytest.raises(ValueError, match="dump_bytecode"):
        ms.set_context(jit_config={"dump_bytecode": True})


def test_what_disturbs_is_named(monkeypatch):
    assert bcvm.mindspore.diagnose() == []
    monkeypatch.setenv("MS_JIT", "0")
    assert any("MS_JIT=0" in line for line in bcvm.mindspore.diagnose())
    ms.set_context(mode=ms.GRAPH_MODE)
    assert any("GRAPH_MODE" in line for line in bcvm.mindspore.diagnose())


def test_high_counters_come_with_advice(monkeypatch):
    native(Net(), tensor(2, 8))
    assert bcvm.mindspore.diagnose() == []
    monkeypatch.setattr(mode_module, "COMPILE_MS", 0.0)
    monkeypatch.setattr(mode_module, "SELECT_MS", 0.0)
    compiling, selecting = bcvm.mindspore.diagnose()
    assert compiling.startswith("bcvm_fusion_compile_time is ") and selecting.startswith("bcvm_kernel_select_time is ")


def test_an_unknown_version_is_warned_of_and_works(monkeypatch):
    bcvm.mindspore.disable()
    said = []
    monkeypatch.setattr(ms, "__version__", "9.1.0")
    monkeypatch.setattr(bcvm.mindspore, "_mode", lambda what: (setattr(mode_module, "say", said.append), mode_module)[1])
    bcvm.mindspore.enable()
    assert any("9.1.0" in line and "not tested" in line for line in said)
    net = Net()
    same(native(net, tensor(2, 8)), pynative(net, tensor(2, 8)))


def test_a_context_that_does_not_keep_the_mode_is_followed_through_set_context(monkeypatch):
    bcvm.mindspore.disable()
    monkeypatch.setattr(mode_module.Mode, "_keeps_identity", lambda self: False)
    bcvm.mindspore.enable()
    net = Net()
    native(net, tensor(2, 8))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    untouched(net, tensor(2, 8))
    ms.set_context(mode=ms.BYTECODE_VM)
    native(net, tensor(2, 8), calls=1)


# -- scripts that are not edited

SCRIPT = """
import sys
assert "mindspore" not in sys.modules
import mindspore as ms, numpy as np
from mindspore import nn, Tensor
for mode in sys.argv[1:]:
    ms.set_context(mode=int(mode))
net = nn.Dense(8, 4)
for b in (1, 2, 3):
    net(Tensor(np.ones((b, 8), np.float32))).asnumpy()
print("calls", int(ms.bcvm.mindspore.counters()["calls"]) if hasattr(ms, "bcvm") else "off")
"""


def script(tmp_path, value, *modes, command=("-c", "from bcvm import startup; startup.wait(); import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')")):
    """What an unedited script prints under the variable; the command does what bcvm.pth does."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    env = {k: v for k, v in os.environ.items() if k not in ("MS_ENABLE_BYTECODE_VM", "GLOG_v", "MS_LOG_LEVEL", "BCVM_LOG_LEVEL")} | {"PYTHONPATH": ROOT} | ({"MS_ENABLE_BYTECODE_VM": value} if value else {})
    done = subprocess.run([sys.executable, *command, str(path), *modes], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("[BCVM]")]
    return next(line for line in done.stdout.splitlines() if line.startswith("calls")), said


@pytest.mark.parametrize("value, modes, expected, warned", [
    ("1", (), "calls 3", ""), ("1", ("1",), "calls 3", ""), ("1", ("0",), "calls 0", "GRAPH_MODE"), ("all", ("0",), "calls 3", ""), ("0", (), "calls off", ""),
    ("maybe", (), "calls off", "maybe")])
def test_the_variable_switches_a_script_on(tmp_path, value, modes, expected, warned):
    printed, said = script(tmp_path, value, *modes)
    assert printed == expected and (warned in said[0] if warned else not said)


def test_bcvm_run_switches_a_script_on_until_it_sets_a_mode(tmp_path):
    run = ("-m", "bcvm", "run")
    assert script(tmp_path, "", command=run)[0] == "calls 3"
    assert script(tmp_path, "", "1", command=run)[0] == "calls 0"
    assert script(tmp_path, "0", command=run)[0] == "calls off"
