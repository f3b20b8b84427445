"""A graph to native code that can be entered: driver and entry stub in one module, kernels in the table."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bcvm.compiler import boxing, loader, stub
from bcvm.compiler.compile import CompiledGraph, compile_graph
from bcvm.compiler.modules import PendingModule
from bcvm.compiler.runtime import runtime
from bcvm.compiler.table import Kernel, table
from bcvm.compiler.target import host
from bcvm.compiler.worker import GLUE
from bcvm.specialise.ssa import Graph, State
from bcvm.specialise.types import Const, Tensor

# Frameworks add what makes their tensor of an ndarray, for tensors that native code made and the interpreter takes up.
BOXES: dict[str, Callable[[Any, Tensor], Any]] = {}


class NativeCode:
    """The code of one specialisation. entry: address of its vectorcall function. ms: milliseconds per step of the compilation."""

    def __init__(self, compiled: CompiledGraph, entry_stub: stub.Stub, code: loader.LoadedCode, kernels: list[Kernel], ms: dict[str, float]) -> None:
        self.compiled, self.stub, self.code, self.kernels, self.ms = compiled, entry_stub, code, kernels, ms
        self.entry = entry_stub.address
        self.size = code.size + sum(k.size for k in kernels)

    def calls(self) -> int:
        """Calls that entered here, those that left again included."""
        return self.stub.counter(stub.CALLS)

    def left(self) -> int:
        """Calls that left to the interpreter."""
        return self.stub.counter(stub.EXITS)

    @property
    def active(self) -> int:
        return self.stub.active

    def release(self) -> None:
        """Free the code. Only when no entry leads here and `active` is 0."""
        self.stub.release()
        table.release(self.kernels)
        self.kernels.clear()
        self.compiled.packed.clear()

    def freer(self) -> Callable[[], bool]:
        """A function that frees the code if nothing runs in it, and says whether it did. It holds nothing that leads to the callable."""
        code, kernels, data, packed = self.code, self.kernels, self.stub.data, self.compiled.packed

        def free() -> bool:
            if data[stub.ACTIVE]:
                return False
            code.release()
            table.release(kernels)
            kernels.clear()
            packed.clear()
            return True
        return free


def build(graph: Graph, count: int, names: Sequence[str], successor: int, resume: Callable[[str, State, list[Any]], Any],
          fusion: bool = True, threads: int | None = None, kernels: Any = table, frozen: bool = False) -> NativeCode:
    """Compile a graph whose ('arg', i) is the i-th of `count` call arguments, the last ones keywords of these names. Calls that its guards do
    not admit go to the vectorcall function at `successor`. Where the driver leaves, resume(reason, state, values) gives the call's
    result. kernels: the kernel table, or a SplicedTable. frozen: captured tensors never change. CompileError, Unsupported: no native code for this graph."""
    ms: dict[str, float] = {}
    compiled = compile_graph(graph, kernels, host(), lambda name, took, fused: ms.__setitem__(name, took), fusion, threads, frozen)

    def leave(exit_id: int, in_address: int, out_address: int) -> Any:
        if not 0 <= exit_id < len(compiled.exits):
            raise MemoryError(f"{graph.name}: no memory for a tensor")
        state, reason = compiled.exits[exit_id]
        try:
            values = boxing.read_state(out_address, [v.type for v in state.values()], box)
        finally:
            compiled.drop_held(exit_id, out_address)
        if reason == "interrupt":
            runtime().interrupted()
        return resume(reason, state, values)

    start = time.perf_counter()
    entry_stub = stub.prepare(graph, stub.Call(count - len(names), tuple(names)), compiled.return_trees or [Const(None)],
                              driver="@driver", resume=leave, out_words=compiled.out_words, hold=bool(compiled.kernels) or any(b.loop for b in graph.blocks))
    module = PendingModule(compiled.module(entry_stub.ir), GLUE)  # straight-line glue: six times quicker to compile, 2% slower to run
    compiled.driver_ir = entry_stub.ir = ""  # megabytes in a large model
    held = kernels.acquire([k.key for k in compiled.kernels])
    try:
        code = module.load()
    except BaseException:
        table.release(held)
        raise
    entry_stub.load(code)
    entry_stub.set_successor(successor)
    ms["CodeGen"] = (time.perf_counter() - start) * 1e3
    if any(b.loop for b in graph.blocks):
        runtime().watch_signals()
    return NativeCode(compiled, entry_stub, code, held, ms)


def box(array: Any, type: Tensor) -> Any:
    """A tensor of the type's library that native code made, from its ndarray."""
    make = BOXES.get(type.library)
    if make is not None:
        return make(array, type)
    return array[()] if type.scalar else array
