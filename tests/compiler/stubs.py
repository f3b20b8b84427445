"""Makes callables out of hand-written drivers, for the tests of stubs."""
from __future__ import annotations

import functools

from bcvm.compiler import boxing, llvm, loader, stub
from bcvm.frameworks import numpy_  # noqa: F401
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Graph, Guard, Input, Path, Value
from bcvm.specialise.types import PyObject, Scalar, Tensor
from bcvm.vm import entry

Function = entry.make_function_type("StubFunction", {})


def tensor(rank, dtype="float32", scalar=False, library="numpy"):
    return Tensor(library, dtype, tuple(Dim.symbol(f"t{rank}_{i}", 0, 1 << 40) for i in range(rank)), scalar)


def value(type_, n=0):
    return Value(n, type_)


def arg(i, *steps):
    return Path(("arg", i), steps)


TWO = (stub.Call(2),)


class Made:
    """f: the callable. stubs: of each way to pass arguments. slow_calls: what reached the slow callable. exits: (exit id, leaves)."""

    def __init__(self, inputs, driver, result, guards=(), calls=TWO, exit_types=(), out_words=64, box=None):
        self.slow_calls, self.exits, self.stubs = [], [], []
        graph = Graph("test", [Input(p, value(t, i), writable=bool(w)) for i, (p, t, *w) in enumerate(inputs)],
                      [Guard(how, p, v) for how, p, v in guards])

        def slow(*args, **kwargs):
            self.slow_calls.append((args, kwargs))
            return "slow"

        def resume(exit_id, in_at, out_at):
            self.exits.append((exit_id, boxing.read_state(out_at, exit_types, box)))
            return ("resumed", exit_id)

        self.f = Function()
        entry.initialise(self.f, slow)
        functools.update_wrapper(self.f, slow)
        after = entry.slow_entry()
        for call in reversed(calls):
            s = stub.prepare(graph, call, [result], driver="@driver", resume=resume, out_words=out_words)
            s.load(loader.load(llvm.compile_ir(s.ir + driver)))
            s.set_successor(after)
            after = s.address
            self.stubs.insert(0, s)
        entry.set_entry(self.f, after)


PY = PyObject()
INT, FLOAT, BOOL = Scalar("int"), Scalar("float"), Scalar("bool")
