"""Entry stubs: what they admit, what they read, what they build, and that nothing leaks."""
from __future__ import annotations

import gc
import math
import pickle
import resource
import struct
import sys
import types

import numpy as np
import pytest
from stubs import BOOL, FLOAT, INT, PY, Made, arg, tensor, value

from bcvm.compiler import abi, probe, stub
from bcvm.errors import Unsupported
from bcvm.specialise.ssa import Aggregate, Path
from bcvm.specialise.types import Const, PyObject, Tensor

pytestmark = pytest.mark.skipif(bool(probe.layout().reason), reason=probe.layout().reason or "native")


def copies(n):
    """A driver that returns its first n input words."""
    lines = [f"%p{i} = getelementptr i64, ptr %in, i64 {i}\n%v{i} = load i64, ptr %p{i}\n%q{i} = getelementptr i64, ptr %out, i64 {i}\nstore i64 %v{i}, ptr %q{i}"
             for i in range(n)]
    return "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\n" + "\n".join(lines) + "\nret i32 0\n}"


def call_table(name, args, result="ptr"):
    """Text of a call through the Context's table."""
    return (f"%T{name} = load ptr, ptr %ctx\n%F{name} = getelementptr ptr, ptr %T{name}, i64 {abi.INDEX[name]}\n%A{name} = load ptr, ptr %F{name}\n"
            f"{'' if result == 'void' else f'%R{name} = '}call {result} %A{name}({args})")


def ints(*values):
    return Aggregate("tuple", tuple(values))


# A tensor of rank r takes 2 + 2r words: data, object, sizes, strides.
RETAIN = "%o = ptrtoint ptr %obj to i64\n%b = or i64 %o, 1\n" + call_table("retain", "i64 %b", "void")
IDENTITY = f"""define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{
%p = getelementptr i64, ptr %in, i64 1
%obj = load ptr, ptr %p
{RETAIN}
store ptr %obj, ptr %out
ret i32 0
}}"""
NEW = f"""define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{
%sizes = getelementptr i64, ptr %in, i64 2
{call_table("new_array", "ptr %ctx, i64 11, i64 2, ptr %sizes")}
%pd = getelementptr i8, ptr %Rnew_array, i64 {abi.ARRAY_DATA}
%d = load ptr, ptr %pd
store float 7.0, ptr %d
store ptr %Rnew_array, ptr %out
ret i32 0
}}"""


def test_reads_sizes_and_strides():
    driver = copies(8).replace("store i64 %v1,", "store i64 0,")
    m = Made([(arg(0), tensor(3))], driver, ints(*[value(INT)] * 8), calls=[stub.Call(1)])
    a = np.zeros((4, 5, 6), np.float32)[::2, ::-1, 1:]
    assert m.f(a) == (a.ctypes.data, 0, *a.shape, *a.strides)


def test_returns_the_same_object():
    m = Made([(arg(0), tensor(1))], IDENTITY, value(tensor(1)), calls=[stub.Call(1)])
    a = np.ones(3, np.float32)
    before = sys.getrefcount(a)
    for _ in range(100_000):
        assert m.f(a) is a
    assert sys.getrefcount(a) == before
    assert m.stubs[0].counter(stub.CALLS) == 100_000 and m.stubs[0].active == 0


def test_new_arrays_are_made_and_memory_stays_flat():
    m = Made([(arg(0), tensor(2))], NEW, value(tensor(2)), calls=[stub.Call(1)])
    a = np.ones((30, 40), np.float32)
    r = m.f(a)
    assert type(r) is np.ndarray and r.shape == (30, 40) and r.dtype == np.float32 and r[0, 0] == 7 and r.flags.owndata and r.flags.c_contiguous
    fresh = np.ones(3)
    assert sys.getrefcount(r) == sys.getrefcount(fresh)
    for _ in range(1000):
        m.f(a)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        m.f(a)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


@pytest.mark.parametrize("bad", [
    3, None, [1.0], "x", np.float32(1), np.ones((2, 2), np.float32), np.array(1, np.float32), np.ones(2), np.ones(2, np.int32), np.ones(2, ">f4"),
    np.ma.ones(2, np.float32), np.ones(2, object), np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32)], ids=repr)
def test_other_objects_go_to_the_successor(bad):
    m = Made([(arg(0), tensor(1))], IDENTITY, value(tensor(1)), calls=[stub.Call(1)])
    before = sys.getrefcount(bad)
    for _ in range(1000):
        assert m.f(bad) == "slow"
    assert m.slow_calls[0][0][0] is bad
    m.slow_calls.clear()
    assert abs(sys.getrefcount(bad) - before) < 100  # None is used elsewhere too
    assert m.stubs[0].counter(stub.MISSES) == 1000 and m.stubs[0].active == 0


def test_unpickled_arrays_and_longlong_are_admitted():
    m = Made([(arg(0), tensor(1, "int64"))], IDENTITY, value(tensor(1, "int64")), calls=[stub.Call(1)])
    for a in (pickle.loads(pickle.dumps(np.arange(3))), np.arange(3).astype("q"), np.zeros(0, np.int64)):
        assert m.f(a) is a


def test_read_only_arrays_are_not_stored_into():
    m = Made([(arg(0), tensor(1), True)], IDENTITY, value(tensor(1)), calls=[stub.Call(1)])
    a = np.ones(3, np.float32)
    assert m.f(a) is a
    a.flags.writeable = False
    assert m.f(a) == "slow"
    reads = Made([(arg(0), tensor(1))], IDENTITY, value(tensor(1)), calls=[stub.Call(1)])
    assert reads.f(a) is a


def test_python_numbers():
    m = Made([(arg(0), INT), (arg(1), FLOAT), (arg(2), BOOL)], copies(3), ints(value(INT), value(FLOAT), value(BOOL)), calls=[stub.Call(3)])
    for n in (0, 1, -1, 2**62, -2**63, 2**63 - 1, 255, 256, 10**15):
        for b in (True, False):
            got = m.f(n, n / 3, b)
            assert got == (n, n / 3, b) and [type(x) for x in got] == [int, float, bool]
    assert math.isnan(m.f(1, math.nan, True)[1]) and math.copysign(1, m.f(1, -0.0, True)[1]) == -1

    class Sub(int):
        pass
    for bad in ((2**63, 1.0, True), (-2**63 - 1, 1.0, True), (True, 1.0, True), (1, 1, True), (1, 1.0, 1), (Sub(1), 1.0, True), (np.int64(1), 1.0, True), (1, np.float64(1), True)):
        assert m.f(*bad) == "slow"


@pytest.mark.parametrize("name", sorted(set(abi.TYPE_NUMBER) - {"complex128"}))
def test_numpy_scalars_of_every_dtype(name):
    n = np.dtype(name).itemsize
    bits = f"i{8 * n}"
    driver = f"define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{\n%d = load ptr, ptr %in\n%v = load {bits}, ptr %d, align 1\nstore {bits} %v, ptr %out, align 1\nret i32 0\n}}"
    t = tensor(0, name, scalar=True)
    x = np.dtype(name).type(1)
    m = Made([(arg(0), t)], driver, value(t), calls=[stub.Call(1)])
    got = m.f(x)
    assert type(got) is type(x) and got == x
    assert m.f(np.array(1, name)) == "slow"
    m0 = Made([(arg(0), tensor(0, name))], IDENTITY, value(tensor(0, name)), calls=[stub.Call(1)])
    zero_d = np.array(1, name)
    assert m0.f(zero_d) is zero_d and m0.f(x) == "slow"


def test_keywords():
    calls = [stub.Call(2), stub.Call(1, ("p1",)), stub.Call(0, ("p1", "p0"))]
    m = Made([(arg(0), INT), (arg(1), INT)], copies(2), ints(value(INT), value(INT)), calls=calls)
    assert m.f(1, 2) == (1, 2)
    assert m.f(1, p1=3) == (1, 3)
    assert m.f(p1=3, p0=4) == (3, 4)
    assert m.f(*(1, 2), **{}) == (1, 2)
    assert m.f(1, **{"".join(["p", "1"]): 5}) == (1, 5)
    assert m.f(p0=4, p1=3) == "slow"
    assert m.f(1, p2=3) == "slow"
    assert m.f() == m.f(1) == "slow" and m.f(1, 2, 3) == "slow"
    assert [s.counter(stub.CALLS) for s in m.stubs] == [2, 2, 1]
    assert all(s.active == 0 for s in m.stubs)


def test_containers_are_read_item_by_item():
    inputs = [(arg(0, ("item", 1), ("item", -1)), FLOAT), (arg(0, ("item", 0), ("item", "w")), INT)]
    guards = [("type", arg(0), tuple), ("length", arg(0), 2), ("type", arg(0, ("item", 1)), list), ("type", arg(0, ("item", 0)), dict),
              ("keys", arg(0, ("item", 0)), ("w", "v"))]
    m = Made(inputs, copies(2), ints(value(FLOAT), value(INT)), guards=guards, calls=[stub.Call(1)])
    assert m.f(({"w": 3, "v": 4}, [1.0, 2.5])) == (2.5, 3)
    for bad in (({"v": 4, "w": 3}, [1.0, 2.5]), ({"w": 3}, [1.0]), ({"w": 3, "v": 4}, []), ({"w": 3, "v": 4}, (1.0,)), [{"w": 3, "v": 4}, [1.0]],
                ({"w": 3, "v": 4}, [1.0], 1), ({"w": 3.0, "v": 4}, [1.0]), ()):
        assert m.f(bad) == "slow"


def test_equal_guards():
    big = 10**30
    for constant, good, bad in (("abc", "".join(["a", "bc"]), "abd"), (7, 7, 7.0), (1, 1, True), (True, True, 1), (0.0, 0.0, -0.0), (None, None, 0), (b"x", bytes([120]), b"y"),
                                (big, 10**30, big + 1), (2 + 3j, complex(2, 3), 2 - 3j), (math.nan, struct.unpack("d", struct.pack("d", math.nan))[0], 1.0)):
        m = Made([], copies(0), Const("yes"), guards=[("equal", arg(0), constant)], calls=[stub.Call(1)])
        assert m.f(constant) == "yes" and m.f(good) == "yes" and m.f(bad) == "slow", constant


def test_identity_type_and_length_guards():
    marker = object()
    m = Made([], copies(0), Const(5), guards=[("is", arg(0), marker), ("type", arg(1), PyProbe), ("length", arg(2), 2), ("type", arg(2), list)], calls=[stub.Call(3)])
    assert m.f(marker, PyProbe(), [1, 2]) == 5
    for bad in ((object(), PyProbe(), [1, 2]), (marker, 1, [1, 2]), (marker, PyProbe(), [1]), (marker, PyProbe(), (1, 2))):
        assert m.f(*bad) == "slow"


class PyProbe:
    scale = 3.0

    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


def test_attributes_are_read_again_at_every_call():
    guards = [("type", arg(0), PyProbe), ("absent", arg(0), "missing")]
    m = Made([(arg(0, ("attr", "n")), INT), (arg(0, ("attr", "inner"), ("attr", "x")), FLOAT)], copies(2), ints(value(INT), value(FLOAT)), guards=guards, calls=[stub.Call(1)])
    obj = PyProbe(n=1, inner=PyProbe(x=2.0))
    assert m.f(obj) == (1, 2.0)
    obj.n, obj.inner.x = 5, 6.0
    assert m.f(obj) == (5, 6.0)
    before = sys.getrefcount(obj), sys.getrefcount(obj.inner), sys.getrefcount(obj.__dict__)
    for _ in range(10_000):
        m.f(obj)
    obj.missing = 1
    for _ in range(10):
        assert m.f(obj) == "slow"
    m.slow_calls.clear()
    assert (sys.getrefcount(obj), sys.getrefcount(obj.inner), sys.getrefcount(obj.__dict__)) == before
    del obj.missing, obj.n
    assert m.f(obj) == "slow"
    assert m.f(PyProbe(n="x", inner=obj)) == "slow"


def test_properties_and_failing_getattr_are_safe():
    class Odd:
        def __getattr__(self, name):
            if name == "n":
                return 3
            raise RuntimeError("no")

        @property
        def p(self):
            gc.collect()
            return 4
    m = Made([(arg(0, ("attr", "n")), INT), (arg(0, ("attr", "p")), INT)], copies(2), ints(value(INT), value(INT)), calls=[stub.Call(1)])
    assert m.f(Odd()) == (3, 4)
    bad = Made([(arg(0, ("attr", "z")), INT)], copies(1), value(INT), calls=[stub.Call(1)])
    assert bad.f(Odd()) == "slow"


def test_closure_cells():
    x = 1

    def f():
        return x
    cell = f.__closure__[0]
    m = Made([(Path(("closure", cell)), INT)], copies(1), value(INT), calls=[stub.Call(0)])
    assert m.f() == 1
    cell.cell_contents = 7
    assert m.f() == 7
    del cell.cell_contents
    assert m.f() == "slow"


def test_globals_and_module_attributes():
    import builtins
    names = {"np": types.ModuleType("fake"), "helper": len, "text": "abc", "n": 3}
    names["np"].tanh = math.tanh
    builtin = vars(builtins)

    def path(name, *steps):
        return Path(("global", names, builtin, name), steps)

    guards = [("is", path("np"), names["np"]), ("is", path("np", ("attr", "tanh")), math.tanh), ("is", path("helper"), len), ("equal", path("text"), "abc"), ("is", path("max"), max)]
    m = Made([(path("n"), INT)], copies(1), value(INT), guards=guards, calls=[stub.Call(0)])
    assert m.f() == 3 and m.f() == 3
    names["n"] = 4
    assert m.f() == 4
    names["np"].tanh = math.sin
    assert m.f() == "slow"
    names["np"].tanh = math.tanh
    assert m.f() == 4
    names["max"] = min
    assert m.f() == "slow"
    del names["max"]
    assert m.f() == 4
    names["text"] = "".join(["a", "bc"])
    assert m.f() == 4
    names["text"] = "abd"
    assert m.f() == "slow"
    names["text"] = "abc"
    names["np"] = types.ModuleType("other")
    assert m.f() == "slow"
    names.clear()
    assert m.f() == "slow"


def test_result_trees():
    shared = Aggregate("list", (value(INT), Const("c")))
    tree = Aggregate("tuple", (shared, Aggregate("dict", (Const("k"), value(FLOAT), Const(1), Aggregate("tuple", ()))), shared, Const(None),
                               Aggregate("slice", (Const(None), value(INT), Const(2))), Aggregate("range", (Const(0), value(INT), Const(3)))))
    # leaves, in order: the shared list's int twice, so that order is: int, float, int, slice int, range int
    m = Made([(arg(0), INT), (arg(1), FLOAT), (arg(2), INT), (arg(3), INT), (arg(4), INT)], copies(5), tree, calls=[stub.Call(5)])
    got = m.f(1, 2.0, 1, 5, 9)
    assert got == ([1, "c"], {"k": 2.0, 1: ()}, [1, "c"], None, slice(None, 5, 2), range(0, 9, 3)) and got[0] is got[2]
    before = sys.getrefcount(None), sys.getrefcount("c")
    for _ in range(10_000):
        m.f(1000, 2.0, 1, 5000, 9000)
    assert abs(sys.getrefcount(None) - before[0]) < 50 and abs(sys.getrefcount("c") - before[1]) < 50


def test_a_range_that_cannot_be_built_raises():
    m = Made([(arg(0), INT)], copies(1), Aggregate("tuple", (Aggregate("range", (Const(0), Const(9), value(INT))),)), calls=[stub.Call(1)])
    assert m.f(2) == (range(0, 9, 2),)
    with pytest.raises(ValueError, match="must not be zero"):
        m.f(0)
    assert m.stubs[0].active == 0


def test_results_without_a_native_form_are_refused():
    with pytest.raises(Unsupported):
        Made([], copies(0), Aggregate("method", (Const(1), Const("x"))), calls=[stub.Call(0)])
    with pytest.raises(Unsupported, match="more than one word"):
        Made([], copies(1), value(tensor(0, "complex128", scalar=True)), calls=[stub.Call(0)])
    with pytest.raises(Unsupported, match="no emitted form"):
        Made([(arg(0), Tensor("nolib", "float32", ()))], copies(0), Const(1), calls=[stub.Call(1)])


EXIT = f"""define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{
{call_table("alloc", "ptr %ctx, i64 64")}
store float 1.5, ptr %Ralloc
%second = getelementptr i8, ptr %Ralloc, i64 4
store float 2.5, ptr %second
; the whole buffer: data, object, base, size, stride
store ptr %Ralloc, ptr %out
%o1 = getelementptr i64, ptr %out, i64 1
store i64 0, ptr %o1
%o2 = getelementptr i64, ptr %out, i64 2
store ptr %Ralloc, ptr %o2
%o3 = getelementptr i64, ptr %out, i64 3
store i64 2, ptr %o3
%o4 = getelementptr i64, ptr %out, i64 4
store i64 4, ptr %o4
; its reverse
%o5 = getelementptr i64, ptr %out, i64 5
store ptr %second, ptr %o5
%o6 = getelementptr i64, ptr %out, i64 6
store i64 0, ptr %o6
%o7 = getelementptr i64, ptr %out, i64 7
store ptr %Ralloc, ptr %o7
%o8 = getelementptr i64, ptr %out, i64 8
store i64 2, ptr %o8
%o9 = getelementptr i64, ptr %out, i64 9
store i64 -4, ptr %o9
; the argument itself
%id = load ptr, ptr %in
%ip = getelementptr i64, ptr %in, i64 1
%io = load i64, ptr %ip
%o10 = getelementptr i64, ptr %out, i64 10
store ptr %id, ptr %o10
%o11 = getelementptr i64, ptr %out, i64 11
store i64 %io, ptr %o11
%ib = or i64 %io, 1
%o12 = getelementptr i64, ptr %out, i64 12
store i64 %ib, ptr %o12
%is = getelementptr i64, ptr %in, i64 2
%n = load i64, ptr %is
%o13 = getelementptr i64, ptr %out, i64 13
store i64 %n, ptr %o13
%o14 = getelementptr i64, ptr %out, i64 14
store i64 4, ptr %o14
; a view of the argument: its first element, as rank 0
%o15 = getelementptr i64, ptr %out, i64 15
store ptr %id, ptr %o15
%o16 = getelementptr i64, ptr %out, i64 16
store i64 0, ptr %o16
%o17 = getelementptr i64, ptr %out, i64 17
store i64 %ib, ptr %o17
; scalars and an object
%o18 = getelementptr i64, ptr %out, i64 18
store i64 -5, ptr %o18
%o19 = getelementptr i64, ptr %out, i64 19
store double 0.25, ptr %o19
%o20 = getelementptr i64, ptr %out, i64 20
store i64 1, ptr %o20
%o21 = getelementptr i64, ptr %out, i64 21
store i64 %io, ptr %o21
; an element of the buffer as a NumPy scalar
%o22 = getelementptr i64, ptr %out, i64 22
store ptr %second, ptr %o22
%o23 = getelementptr i64, ptr %out, i64 23
store i64 0, ptr %o23
%o24 = getelementptr i64, ptr %out, i64 24
store ptr %Ralloc, ptr %o24
ret i32 4
}}"""


def test_exits_decode_the_state_and_resume():
    one = tensor(1)
    types_ = [one, one, one, tensor(0), INT, FLOAT, BOOL, PY, tensor(0, scalar=True)]
    m = Made([(arg(0), one)], EXIT, value(one), calls=[stub.Call(1)], exit_types=types_)
    a = np.array([9, 8, 7], np.float32)
    before = sys.getrefcount(a)
    assert m.f(a) == ("resumed", 3)
    (exit_id, (whole, reverse, same, view, i, f, b, obj, scalar)), = m.exits
    assert exit_id == 3 and whole.tolist() == [1.5, 2.5] and reverse.tolist() == [2.5, 1.5]
    whole[0] = 4
    assert reverse[1] == 4 and np.shares_memory(whole, reverse)
    assert same is a and view.shape == () and view == 9 and np.shares_memory(view, a)
    view[...] = 1
    assert a[0] == 1
    assert (i, f, b, obj) == (-5, 0.25, True, a) and obj is a
    assert type(scalar) is np.float32 and scalar == 2.5
    del same, view, obj, whole, reverse
    m.exits.clear()
    for _ in range(1000):
        m.f(a)
        m.exits.clear()
    assert sys.getrefcount(a) == before
    assert m.stubs[0].counter(stub.EXITS) == 1001 and m.stubs[0].active == 0


def test_exceptions_of_the_resumed_interpreter_pass_through():
    m = Made([(arg(0), INT)], "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\nret i32 1\n}", value(INT), calls=[stub.Call(1)])
    # leaves of an unknown kind make read_state raise inside resume
    bad = Made([(arg(0), INT)], "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\nret i32 1\n}", value(INT), calls=[stub.Call(1)], exit_types=[Const(1)])
    assert m.f(3) == ("resumed", 0)
    with pytest.raises(Unsupported):
        bad.f(3)
    assert bad.stubs[0].active == 0


def test_the_stub_calls_a_driver_by_address():
    import ctypes

    from bcvm.compiler import llvm, loader
    from bcvm.specialise.ssa import Graph, Input
    code = loader.load(llvm.compile_ir(copies(1)))
    graph = Graph("g", [Input(arg(0), value(INT))])
    s = stub.prepare(graph, stub.Call(1), [value(INT)], driver=code.address("driver"), resume=print, out_words=1)
    assert s.compile() == s.address
    call = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(s.address)
    args = (ctypes.py_object * 1)(41)
    assert call(None, ctypes.addressof(args), 1, None) == 41
    s.release()
    code.release()


def test_objects_are_checked_by_exact_class_and_held():
    driver = f"define i32 @driver(ptr %ctx, ptr %in, ptr %out) {{\n%obj = load ptr, ptr %in\n{RETAIN}\nstore ptr %obj, ptr %out\nret i32 0\n}}"
    m = Made([(arg(0, ("item", 0)), PyObject(PyProbe))], driver, value(PY), guards=[("type", arg(0), list)], calls=[stub.Call(1)])
    obj = PyProbe()
    before = sys.getrefcount(obj)
    for _ in range(1000):
        assert m.f([obj]) is obj
    assert m.f([3]) == "slow"
    assert sys.getrefcount(obj) == before


def test_methods_enter_natively():
    m = Made([(arg(0, ("attr", "n")), INT), (arg(1), INT)], copies(2), ints(value(INT), value(INT)), guards=[("type", arg(0), Model)])
    Model.f = m.f
    model = Model()
    model.n = 3
    assert model.f(4) == (3, 4) and Model.f(model, 5) == (3, 5)
    bound = model.f
    assert bound(6) == (3, 6) and [bound(i)[1] for i in range(3)] == [0, 1, 2]
    assert m.stubs[0].counter(stub.CALLS) == 6 and not m.slow_calls
    assert model.f("x") == "slow" and m.slow_calls == [((model, "x"), {})]


class Model:
    pass


def test_threads_use_contexts_of_their_own():
    import threading
    m = Made([(arg(0), tensor(2))], NEW, value(tensor(2)), calls=[stub.Call(1)])
    wrong = []

    def work(n):
        a = np.ones((n, 3), np.float32)
        wrong.extend(r.shape for r in (m.f(a) for _ in range(20_000)) if r.shape != (n, 3))
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(old)
    assert not wrong and m.stubs[0].counter(stub.CALLS) == 80_000 and m.stubs[0].active == 0


def test_a_small_call_costs_less_than_one_numpy_call():
    import timeit
    m = Made([(arg(0), tensor(1)), (arg(1), tensor(1))], "define i32 @driver(ptr %ctx, ptr %in, ptr %out) {\nstore i64 1, ptr %out\nret i32 0\n}", value(INT))
    a, b, f, add = np.ones(3, np.float32), np.ones(3, np.float32), m.f, np.add
    names = {"f": f, "add": add, "a": a, "b": b}
    ours = min(timeit.repeat("f(a, b)", globals=names, number=20_000, repeat=7))
    numpy_s = min(timeit.repeat("add(a, b)", globals=names, number=20_000, repeat=7))
    assert ours < numpy_s


def test_a_resumed_call_may_enter_again():
    driver = """define i32 @driver(ptr %ctx, ptr %in, ptr %out) {
%n = load i64, ptr %in
store i64 %n, ptr %out
%z = icmp eq i64 %n, 0
%c = select i1 %z, i32 0, i32 1
ret i32 %c
}"""
    from bcvm.compiler import boxing, llvm, loader
    from bcvm.specialise.ssa import Graph, Input
    from bcvm.vm import entry

    def resume(exit_id, in_at, out_at):
        n, = boxing.read_state(out_at, [INT])
        return n + f(n - 1)
    s = stub.prepare(Graph("g", [Input(arg(0), value(INT))]), stub.Call(1), [value(INT)], driver="@driver", resume=resume, out_words=1)
    s.load(loader.load(llvm.compile_ir(s.ir + driver)))
    f = entry.make_function_type("F", {})()
    entry.initialise(f, resume)
    s.set_successor(entry.slow_entry())
    entry.set_entry(f, s.address)
    assert f(100) == 5050 and s.active == 0
    with pytest.raises(RecursionError):
        f(10**6)
    assert s.active == 0 and f(10) == 55
