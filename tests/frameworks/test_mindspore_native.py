"""MindSpore tensors through entry stubs: reading, strides, boxing, gradients, writes. Hand-written drivers."""
from __future__ import annotations

import os
import sys
import timeit

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "compiler"))

from stubs import FLOAT, INT, Made, arg, tensor, value  # noqa: E402
from test_stub import call_table, copies, ints  # noqa: E402

from bcvm.compiler import abi, stub  # noqa: E402
from bcvm.frameworks import mindspore as adapter_module  # noqa: E402
from bcvm.frameworks.adapter import adapter_of  # noqa: E402
from bcvm.frameworks.mindspore_reading import MindSporeReader  # noqa: E402
from bcvm.specialise.ssa import Path  # noqa: E402


@pytest.fixture(scope="module")
def adapter():
    return adapter_module.register()


@pytest.fixture(params=["in place", "by methods"])
def reader(request, adapter, monkeypatch):
    """Both ways to read sizes and dtypes."""
    made = MindSporeReader(adapter)
    if request.param == "by methods":
        made.fields = None
    assert (made.fields is None) == (request.param == "by methods")
    monkeypatch.setitem(stub.READERS, "mindspore", made)
    return made


def t(rank, dtype="float32"):
    return tensor(rank, dtype, library="mindspore")


ONE = [stub.Call(1)]
SUM_NEW = f"""define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{
%sizes = getelementptr i64, ptr %in, i64 2
{call_table("new_array", "ptr %ctx, i64 11, i64 2, ptr %sizes")}
%pd = getelementptr i8, ptr %Rnew_array, i64 {abi.ARRAY_DATA}
%d = load ptr, ptr %pd
%a = load ptr, ptr %in
%bp = getelementptr i64, ptr %in, i64 6
%b = load ptr, ptr %bp
%x = load float, ptr %a
%y = load float, ptr %b
%s = fadd float %x, %y
store float %s, ptr %d
store ptr %Rnew_array, ptr %out
ret i32 0
}}"""
IDENTITY = f"""define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{
%p = getelementptr i64, ptr %in, i64 1
%obj = load ptr, ptr %p
%o = ptrtoint ptr %obj to i64
%b = or i64 %o, 1
{call_table("retain", "i64 %b", "void")}
store ptr %obj, ptr %out
ret i32 0
}}"""


def words(x, rank, dtype="float32"):
    n = 2 + 2 * rank
    driver = copies(n).replace("store i64 %v1,", "store i64 0,")
    made = Made([(arg(0), t(rank, dtype))], driver, ints(*[value(INT)] * n), calls=ONE)
    return made.f(x)


def test_reads_pointer_sizes_and_strides(adapter, reader):
    a = ms.Tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    assert words(a, 3) == (a.data_ptr(), 0, 2, 3, 4, 48, 16, 4)
    p = ms.Parameter(a, name="p")
    assert words(p, 3) == (p.data_ptr(), 0, 2, 3, 4, 48, 16, 4)
    v = a[:, 1:]
    assert words(v, 3) == (v.data_ptr(), 0, 2, 2, 4, *(4 * n for n in v.stride()))
    two = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))[:, 1:]
    assert words(two, 2) == (two.data_ptr(), 0, 2, 2, 12, 4) and not two.is_contiguous()
    tr = ms.ops.transpose(a, (2, 0, 1))
    assert words(tr, 3) == (tr.data_ptr(), 0, 4, 2, 3, 4, 48, 16)
    s = ms.Tensor(1.5, ms.float32)
    assert words(s, 0) == (s.data_ptr(), 0)
    e = ms.Tensor(np.zeros((0, 3), np.float32))
    assert words(e, 2)[2:4] == (0, 3)


def test_pending_results_are_waited_for(adapter, reader):
    load = "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\n%a = load ptr, ptr %in\n%x = load float, ptr %a\n%d = fpext float %x to double\nstore double %d, ptr %out\nret i32 0\n}"
    made = Made([(arg(0), t(2))], load, value(FLOAT), calls=ONE)
    x = ms.Tensor(np.full((300, 300), 1.0, np.float32))
    for _ in range(20):
        assert made.f(ms.ops.matmul(x, x)) == 300.0


def test_other_objects_go_to_the_successor(adapter, reader):
    made = Made([(arg(0), t(1))], IDENTITY, value(t(1)), calls=ONE)
    good = ms.Tensor(np.ones(3, np.float32))
    assert made.f(good) is good

    class Sub(ms.Tensor):
        pass
    for bad in (np.ones(3, np.float32), 3, None, ms.Tensor(np.ones(3)), ms.Tensor(np.ones((1, 3), np.float32)), Sub(np.ones(3, np.float32)), ms.Tensor(np.ones(3), ms.bfloat16)):
        assert isinstance(made.f(bad), str)
    assert made.stubs[0].active == 0


@pytest.mark.parametrize("name", adapter_module._NAMES)
def test_every_dtype_is_read_and_described(adapter, reader, name):
    x = ms.Tensor(np.ones(3), adapter.dtypes[name])
    assert words(x, 1, name)[:3] == (x.data_ptr(), 0, 3)
    d = adapter.describe(x)
    assert (d.data, d.dtype, d.sizes, d.strides) == (x.data_ptr(), name, (3,), (adapter.numpy[name].itemsize,))
    assert adapter.leaf(x) == ("mindspore", name, 1, False)
    array = np.ones(3, adapter.numpy[name])
    boxed = adapter.box(array, None)
    assert type(boxed) is ms.Tensor and boxed.dtype == x.dtype and boxed.data_ptr() == array.ctypes.data


def test_results_are_tensors_over_the_native_memory(adapter):
    made = Made([(arg(0), t(2)), (arg(1), t(2))], SUM_NEW, value(t(2)))
    a, b = (ms.Tensor(np.full((2, 3), v, np.float32)) for v in (2, 5))
    r = made.f(a, b)
    assert type(r) is ms.Tensor and r.shape == (2, 3) and r.dtype == ms.float32 and r.asnumpy()[0, 0] == 7
    before = sys.getrefcount(a), sys.getrefcount(b), sys.getrefcount(r), sys.getrefcount(ms.float32)
    for _ in range(20_000):
        made.f(a, b)
    assert (sys.getrefcount(a), sys.getrefcount(b), sys.getrefcount(r)) == before[:3] and abs(sys.getrefcount(ms.float32) - before[3]) < 100


def test_references_balance_on_every_way_out(adapter, reader):
    made = Made([(arg(0), t(2)), (arg(1), t(1))], SUM_NEW, value(t(2)))
    a, b = ms.Tensor(np.ones((2, 3), np.float32)), ms.Tensor(np.ones((2, 3), np.float32))
    views = ms.ops.transpose(a, (1, 0))
    before = [sys.getrefcount(o) for o in (a, b, views, ms.float32)]
    for _ in range(1000):
        assert made.f(a, b) == made.f(views, b) == "slow"
    made.slow_calls.clear()
    after = [sys.getrefcount(o) for o in (a, b, views, ms.float32)]
    assert after[:3] == before[:3] and abs(after[3] - before[3]) < 100


def test_recording_gradients_goes_to_the_successor(adapter):
    made = Made([(arg(0), t(1))], IDENTITY, value(t(1)), calls=ONE)
    x = ms.Tensor(np.ones(3, np.float32))
    seen = []

    def f(v):
        seen.append(made.f(v))
        return (v * v).sum()
    assert made.f(x) is x
    ms.grad(f)(x)
    assert seen == ["slow"]
    assert made.f(x) is x


def test_stores_wait_for_pending_readers(adapter):
    write = "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\n%a = load ptr, ptr %in\nstore float 9.0, ptr %a\nstore i64 1, ptr %out\nret i32 0\n}"
    made = Made([(arg(0), t(2), True)], write, value(INT), calls=ONE)
    for _ in range(10):
        x = ms.Tensor(np.ones((400, 400), np.float32))
        pending = ms.ops.matmul(x, x)
        assert made.f(x) == 1
        assert pending.asnumpy()[0, 0] == 400
        assert x.asnumpy()[0, 0] == 9


def test_captured_parameters_are_read_again(adapter):
    net = ms.nn.Dense(3, 4)
    assert adapter_module.cell_attribute(net, "weight") == (("attr", "_params"), ("item", "weight"))
    assert adapter_module.cell_attribute(net, "in_channels") is None and adapter_module.cell_attribute(net, "construct") is None
    path = Path(("const", net), (("attr", "_params"), ("item", "weight")))
    made = Made([(path, t(2))], copies(6).replace("store i64 %v1,", "store i64 0,"), ints(*[value(INT)] * 6), calls=[stub.Call(0)])
    assert made.f()[0] == net.weight.data_ptr()
    net.weight.set_data(ms.Tensor(np.ones((4, 3), np.float32)))
    assert made.f()[0] == net.weight.data_ptr()
    net.weight = ms.Parameter(np.zeros((5, 3), np.float32), name="weight")
    assert made.f() == (net.weight.data_ptr(), 0, 5, 3, 12, 4)
    del net._params["weight"]
    assert made.f() == "slow"


def test_every_way_to_change_a_parameter_in_place_is_seen(adapter, reader):
    p = ms.Parameter(ms.Tensor(np.arange(16, dtype=np.float32).reshape(4, 4)), name="p")
    path = Path(("const", p), ())
    four = Made([(path, t(2))], copies(6).replace("store i64 %v1,", "store i64 0,"), ints(*[value(INT)] * 6), calls=[stub.Call(0)])
    one = Made([(path, t(1, "int32"))], copies(4).replace("store i64 %v1,", "store i64 0,"), ints(*[value(INT)] * 4), calls=[stub.Call(0)])
    assert four.f() == (p.data_ptr(), 0, 4, 4, 16, 4) and one.f() == "slow"
    p.set_data(ms.Tensor(np.zeros((2, 8), np.float32)), slice_shape=True)
    assert four.f() == (p.data_ptr(), 0, 2, 8, 32, 4)
    p.set_data(ms.Tensor(p.value()).reshape(8, 2), slice_shape=True)  # perhaps the same memory, other sizes
    assert four.f() == (p.data_ptr(), 0, 8, 2, 8, 4)
    p.assign_value(ms.Tensor(np.zeros((3, 5, 7), np.float32)))
    assert four.f() == "slow" == one.f()
    p.assign_value(ms.Tensor(np.zeros(6, np.int32)))
    assert four.f() == "slow" and one.f() == (p.data_ptr(), 0, 6, 4)
    p.set_dtype(ms.float32)
    assert one.f() == "slow"
    p.assign_value(ms.Tensor(np.zeros((4, 6), np.float32))[:, ::2])
    assert four.f() == (p.data_ptr(), 0, 4, 3, *(4 * n for n in p.stride()))


def test_updates_in_place_are_seen_and_waited_for(adapter, reader):
    load = "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\n%a = load ptr, ptr %in\n%x = load float, ptr %a\n%d = fpext float %x to double\nstore double %d, ptr %out\nret i32 0\n}"
    p = ms.Parameter(ms.Tensor(np.zeros((300, 300), np.float32)), name="p")
    made = Made([(Path(("const", p), ()), t(2))], load, value(FLOAT), calls=[stub.Call(0)])
    one = ms.Tensor(np.ones((300, 300), np.float32))
    for i in range(1, 20):
        ms.ops.assign_add(p, ms.ops.matmul(one, one))
        assert made.f() == 300.0 * i
    p[0, 0] = 5.0
    assert made.f() == 5.0


def test_sizes_and_dtypes_are_found_in_place_only_where_all_fits(adapter):
    from bcvm.frameworks.mindspore_reading import fields_of
    names = ("float32", "int32", "int8")

    def make(shape, name):
        return ms.Tensor(np.zeros(shape), adapter.dtypes[name])
    assert fields_of(make, names, lambda a, b: a.assign_value(b)) is not None
    assert fields_of(make, names, lambda a, b: None) is None                                  # does not follow changes
    assert fields_of(lambda shape, name: make((), name), names, lambda a, b: None) is None    # other sizes
    assert fields_of(lambda shape, name: make(shape, "int8"), names, lambda a, b: a.assign_value(b)) is None
    assert fields_of(lambda shape, name: [shape, name], names, lambda a, b: None) is None     # no tensors at all


def test_adapters_are_found(adapter):
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert adapter_of(x) is adapter and adapter_of(np.ones(2)).name == "numpy" and adapter_of(3) is None
    assert adapter.requires_grad() is False


def test_entry_is_quick(adapter):
    made = Made([(arg(0), t(2)), (arg(1), t(2))], SUM_NEW, value(t(2)))
    a, b = (ms.Tensor(np.full((2, 3), v, np.float32)) for v in (2, 5))
    us = min(timeit.repeat(lambda: made.f(a, b), number=2000, repeat=7)) / 2000 * 1e6
    native = min(timeit.repeat(lambda: ms.ops.add(a, b).data_ptr(), number=200, repeat=5)) / 200 * 1e6
    print(f"\ntwo tensors in, one out: {us:.2f} us; MindSpore's own add, waited for: {native:.2f} us")
    assert us < native
