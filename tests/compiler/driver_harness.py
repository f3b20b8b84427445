"""Graphs by hand, and a way to run their drivers: what the compiler's tests build on."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import bcvm.ops.elementwise
import bcvm.ops.movement
import bcvm.ops.products
import bcvm.ops.reductions  # noqa: F401
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.compiler import abi, boxing, llvm, loader
from bcvm.compiler.compile import CompiledGraph, compile_graph
from bcvm.compiler.runtime import runtime
from bcvm.compiler.target import host
from bcvm.ops.definition import OPS, Reduction
from bcvm.shapes.dim import Dim, DimLike, broadcast, dim
from bcvm.specialise.ssa import Aggregate, Block, Branch, Exit, Graph, Input, Jump, Level, Node, Path, Return, State, Tree, Value, leaves
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor

BOUND = BoundProgram(Program("test", "test.py", ()))


class Build:
    """Appends nodes to `block`."""

    def __init__(self, name: str = "test") -> None:
        self.graph = Graph(name)
        self.block = self.new_block()

    def new_block(self, params: Sequence[Value] = (), loop: bool = False) -> Block:
        block = Block(len(self.graph.blocks), tuple(params), loop=loop)
        self.graph.blocks.append(block)
        return block

    def value(self, type: Any, dim: Dim | None = None, root: Value | None = None) -> Value:
        self.graph.n_values += 1
        return Value(self.graph.n_values, type, None, dim, root)

    def input(self, type: Any, name: str = "") -> Value:
        v = self.value(type)
        if isinstance(type, Scalar) and type.kind == "int":
            v.dim = Dim.symbol(f"{name or 'i'}{v.id}", -(1 << 63))
        self.graph.inputs.append(Input(Path(("arg", len(self.graph.inputs))), v, name=name))
        return v

    def array(self, dtype: str, rank: int, name: str = "x") -> Value:
        return self.input(Tensor("numpy", dtype, tuple(Dim.symbol(f"{name}{len(self.graph.inputs)}.{i}") for i in range(rank))), name)

    def param(self, dtype: str, rank: int, name: str = "p") -> Value:
        v = self.value(None)
        v.type = Tensor("numpy", dtype, tuple(Dim.symbol(f"{name}{v.id}.{i}") for i in range(rank)))
        return v

    def node(self, kind_: str, operands: Sequence[Value] = (), results: Sequence[Value] = (), state: State | None = None, **attrs: Any) -> Value:
        n = Node(kind_, tuple(operands), attrs, tuple(results), state)
        for r in results:
            r.node = n
        self.block.nodes.append(n)
        return results[0] if results else None  # type: ignore[return-value]

    def state(self, *stack: Tree, pc: int = 0) -> State:
        return State((Level(BOUND, pc, (), stack),))

    def op(self, name: str, *operands: Value, dtype: str | None = None, **attrs: Any) -> Value:
        op = OPS[name]
        first = operands[0].type if operands else None
        dims = first.dims if isinstance(first, Tensor) else ()
        if isinstance(op.form, Reduction):
            axis, keep = attrs["axis"], attrs.setdefault("keepdims", False)
            out = tuple(dim(1) if i in axis else d for i, d in enumerate(dims) if keep or i not in axis)
        elif name == "concat":
            axis = attrs["axis"]
            total = sum((o.type.dims[axis] for o in operands[1:]), operands[0].type.dims[axis])
            out = (*dims[:axis], total, *dims[axis + 1:])
        else:
            out = ()
            for o in operands:
                if isinstance(o.type, Tensor):
                    a, b = out, o.type.dims
                    n = max(len(a), len(b))
                    one = (dim(1),)
                    out = tuple(broadcast(x, y) for x, y in zip(one * (n - len(a)) + a, one * (n - len(b)) + b, strict=True))
        result = dtype or (attrs.get("dtype") if name == "cast" else None) or first.dtype
        return self.node("op", operands, [self.value(Tensor("numpy", result, out))], op=op, attrs=attrs)

    def full(self, value: Any, dtype: str, dims: Sequence[DimLike] = ()) -> Value:
        return self.node("fill", (), [self.value(Tensor("numpy", dtype, tuple(map(dim, dims))))], value=value)

    def view(self, x: Value, kind: str, dims: Sequence[DimLike], **attrs: Any) -> Value:
        return self.node("view", [x], [self.value(Tensor("numpy", x.type.dtype, tuple(map(dim, dims))), root=x)], kind=kind, **attrs)

    def scalar(self, fn: str, *operands: Value, kind: str = "int", state: State | None = None, dim: Dim | None = None, **attrs: Any) -> Value:
        v = self.value(Scalar(kind), dim)
        if dim is None and kind == "int":
            v.dim = Dim.opaque(("value", id(self.graph), v.id))
        return self.node("scalar", operands, [v], state, fn=fn, **attrs)

    def number(self, value: int | float) -> Value:
        kind = type(value).__name__
        return self.node("const", (), [self.value(Scalar(kind), dim(value) if kind == "int" else None)], value=value)

    def check(self, how: str, a: DimLike, b: DimLike, state: State) -> None:
        self.node("check", (), (), state, how=how, a=dim(a), b=dim(b))

    def check_broadcast(self, x: Value, y: Value, state: State) -> None:
        for a, b in zip(reversed(x.type.dims), reversed(y.type.dims), strict=False):
            self.check("bcast", a, b, state)

    def jump(self, block: Block, *args: Value) -> None:
        self.block.end = Jump(block, args)

    def branch(self, condition: Value, then: Jump, orelse: Jump) -> None:
        self.block.end = Branch(condition, then, orelse)

    def ret(self, *values: Tree) -> None:
        self.block.end = Return(values[0] if len(values) == 1 else Aggregate("tuple", values))


class Table:
    """A kernel table that compiles at once."""

    def __init__(self) -> None:
        self.slots: dict[Any, int] = {}
        self.code: list[Any] = []

    def slot_for(self, key: Any, make: Callable[[], Any]) -> int:
        if key not in self.slots:
            slots = runtime().slots
            slot = self.slots[key] = slots.take()
            source = make()
            code = loader.load(llvm.compile_ir(source.ir, host()))
            self.code.append(code)
            slots.set(slot, code.address(source.name))
        return self.slots[key]


TABLE = Table()


class Left(Exception):
    """The driver left at an exit. values: the state's leaves."""

    def __init__(self, reason: str, values: list[Any], state: State) -> None:
        super().__init__(reason)
        self.reason, self.values, self.state = reason, values, state


class Program_:
    """A compiled graph, callable with NumPy arrays and numbers."""

    def __init__(self, graph: Graph) -> None:
        self.compiled: CompiledGraph = compile_graph(graph, TABLE, host())
        self.graph = graph
        self.code = loader.load(llvm.compile_ir(self.compiled.module(), host()))
        self.driver = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(self.code.address("driver"))

    def words(self, args: Sequence[Any]) -> ctypes.Array[Any]:
        words: list[int] = []
        for arg, i in zip(args, self.graph.inputs, strict=True):
            t = i.value.type
            if isinstance(t, Tensor):
                assert arg.dtype == t.dtype and arg.ndim == t.rank, (arg.dtype, t)
                words += [arg.ctypes.data, id(arg), *arg.shape, *arg.strides]
            elif isinstance(t, Scalar):
                words.append(int(arg) if t.kind != "float" else np.float64(arg).view(np.int64).item())
            else:
                words.append(id(arg))
        return (ctypes.c_int64 * max(len(words), 1))(*words)

    def __call__(self, *args: Any) -> Any:
        with runtime().context() as ctx:
            return self.run(ctx, *args)

    def run(self, ctx: int, *args: Any) -> Any:
        out = (ctypes.c_int64 * self.compiled.out_words)()
        code = self.driver(ctx, self.words(args), out)
        if code == -1:
            raise MemoryError
        if code:
            state, reason = self.compiled.exits[code - 1]
            values = boxing.read_state(ctypes.addressof(out), [v.type for v in state.values()])
            self.compiled.drop_held(code - 1, ctypes.addressof(out))
            raise Left(reason, values, state)
        found = [self.leaf(v.type, out, n) for n, v in enumerate(leaves(self.compiled.return_trees[0]))]
        return found[0] if isinstance(self.compiled.return_trees[0], Value) else tuple(found)

    def leaf(self, t: Any, out: Any, n: int) -> Any:
        at = ctypes.addressof(out) + 8 * n
        if isinstance(t, Tensor) and t.scalar:
            return np.frombuffer((ctypes.c_char * 8).from_address(at), t.dtype, 1)[0]
        if isinstance(t, Scalar):
            return {"int": int, "bool": bool}[t.kind](out[n]) if t.kind != "float" else ctypes.c_double.from_address(at).value
        result = ctypes.cast(ctypes.c_void_p(out[n]), ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(result))
        return result


__all__ = ["OPS", "Aggregate", "BOUND", "Block", "Branch", "Build", "Const", "Dim", "Exit", "Graph", "Jump", "Left", "Level", "Program_", "PyObject", "Scalar",
           "State", "TABLE", "Tensor", "Value", "abi", "broadcast", "dim"]
