"""MindSpore on CPU: its adapter, and how entry stubs read and make its tensors. Importing this module does not import MindSpore; `register` does.

Facts it stands on (MindSpore 2.10): tensors have no struct layout to rely on, so stubs call the C methods of `TensorPy` directly, which cost
0.03 to 0.14 us each; `_data_ptr` waits for the pending op that makes the tensor; `TensorPy.from_numpy` shares the memory of a contiguous
ndarray and keeps it alive; a pending op may still read a buffer that is about to be overwritten, so stores wait for all of them.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.compiler import abi, boxing, native, probe, stub
from bcvm.compiler.emit import Emitter, constant
from bcvm.errors import BcvmError
from bcvm.frameworks.adapter import ADAPTERS, Adapter, Description
from bcvm.specialise import resolve
from bcvm.specialise.types import Tensor

_METH_VARARGS, _METH_NOARGS = 1, 4
_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


class MindSporeAdapter(Adapter):
    """Tensor and Parameter, exact types, in CPU memory. Promotion is torch-like, rank 0 stays a tensor, `y += 1` rebinds."""

    name = "mindspore"
    scalar_result = False
    inplace = "rebind"

    def __init__(self) -> None:
        import mindspore
        from mindspore._c_expression import TensorPy
        from mindspore.common import np_dtype
        from mindspore.graph.api import _pynative_executor
        self.module, self.tensor_py = mindspore, TensorPy
        self.executor = _pynative_executor._executor
        parameter = mindspore.Parameter(mindspore.Tensor(0.0), name="bcvm")  # its class is made by MindSpore at the first use, once
        self.classes: tuple[type, ...] = (mindspore.Tensor, type(parameter))
        self.dtypes = {name: getattr(mindspore, "bool_" if name == "bool" else name) for name in _NAMES}
        self.names = {str(value): name for name, value in self.dtypes.items()}
        self.numpy = {name: np.dtype(np_dtype.bfloat16 if name == "bfloat16" else name) for name in _NAMES}

    def recognise(self, obj: Any) -> bool:
        return type(obj) in self.classes

    def on_cpu(self) -> bool:
        return bool(self.module.get_context("device_target") == "CPU")

    def leaf(self, obj: Any) -> tuple[str, str, int, bool] | None:
        """(library, dtype, rank, scalar), as the specialiser wants it; None for what native code cannot read."""
        name = self.names.get(str(obj._dtype))
        if name is None or not self.on_cpu() or obj.init is not None:
            return None
        return ("mindspore", name, len(obj._shape), False)

    def describe(self, obj: Any) -> Description | None:
        leaf = self.leaf(obj) if self.recognise(obj) else None
        if leaf is None:
            return None
        data = obj._data_ptr()
        strides = tuple(s * dtypes.itemsize(leaf[1]) for s in obj.stride())
        return Description(data, leaf[1], tuple(obj._shape), strides)

    def alloc(self, dtype: str, sizes: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.empty(sizes, self.numpy[dtype])

    def box(self, array: np.ndarray[Any, Any], type: Tensor) -> Any:
        """Shares memory if the array is C-contiguous; copies otherwise."""
        return self.tensor_py.from_numpy(np.ascontiguousarray(array) if array.ndim else array)

    def as_view(self, obj: Any) -> np.ndarray[Any, Any]:
        d = self.describe(obj)
        if d is None:
            raise BcvmError(f"cannot read this tensor in place: dtype {obj.dtype}, device {self.module.get_context('device_target')}")
        dtype = self.numpy[d.dtype]
        if 0 in d.sizes:
            return np.empty(d.sizes, dtype)
        reach = sum((n - 1) * s for n, s in zip(d.sizes, d.strides, strict=True)) + dtype.itemsize
        memory = _Memory(obj, d.data, reach)
        view: np.ndarray[Any, Any] = np.ndarray(d.sizes, dtype, np.asarray(memory), 0, d.strides)
        return view

    def synchronise(self, write: bool = False) -> None:
        if write:  # reading waits by itself
            self.executor.sync()

    def requires_grad(self) -> bool:
        return bool(self.executor.requires_grad())


class _Memory:
    """Bytes of a tensor, which it keeps alive."""

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class MindSporeReader:
    """The emitted form."""

    def __init__(self, adapter: MindSporeAdapter) -> None:
        self.adapter = adapter

    def enter(self, e: Emitter, miss: str) -> None:
        """While MindSpore records for a gradient, it must see the operations itself."""
        flag = self._method(e, e.object(self.adapter.executor), type(self.adapter.executor), "requires_grad")
        e.call("void", "Py_DecRef", ("ptr", flag))
        e.same(flag, e.object(False), miss)

    def read(self, e: Emitter, obj: str, type: Tensor, writable: bool, miss: str, hold: Callable[[str], None]) -> tuple[str, list[str], list[str]]:
        cls = e.load("ptr", obj, abi.OB_TYPE, "t")
        known = [e.let(f"icmp eq ptr {cls}, {e.object(c)}") for c in self.adapter.classes]
        e.require(e.let(f"or i1 {known[0]}, {known[1]}"), miss)
        dtype = self._attribute(e, obj, "_dtype")
        e.not_null(dtype, miss)
        hold(dtype)
        e.same(dtype, e.object(self.adapter.dtypes[type.dtype]), miss)
        sizes = self._numbers(e, self._attribute(e, obj, "_shape"), type.rank, miss, hold)
        strides = self._strides(e, obj, sizes, dtypes.itemsize(type.dtype), miss, hold)
        pointer = self._method(e, obj, self.adapter.tensor_py, "_data_ptr")
        e.not_null(pointer, miss)
        hold(pointer)
        data = e.call("ptr", "PyLong_AsVoidPtr", ("ptr", pointer))
        e.not_null(data, miss)
        return data, sizes, strides

    def _strides(self, e: Emitter, obj: str, sizes: list[str], itemsize: int, miss: str, hold: Callable[[str], None]) -> list[str]:
        """Byte strides: computed for a contiguous tensor, asked for otherwise."""
        if not sizes:
            return []
        computed = [str(itemsize)]
        for n in reversed(sizes[1:]):
            computed.insert(0, e.let(f"mul i64 {computed[0]}, {n}"))
        flag = self._method(e, obj, self.adapter.tensor_py, "is_contiguous")
        e.not_null(flag, miss)
        hold(flag)
        ask, known = e.label("strided"), e.label("strides")
        before = e.label("contiguous")
        e.jump(before)
        e.start(before)
        e.line(f"br i1 {e.let(f'icmp eq ptr {flag}, {e.object(True)}')}, label %{known}, label %{ask}")
        e.start(ask)
        # in elements; `_strides` is that of a contiguous tensor, whatever the tensor is
        elements = self._numbers(e, self._method(e, obj, self.adapter.tensor_py, "stride"), len(sizes), miss, hold, list)
        asked = [e.let(f"mul i64 {n}, {itemsize}") for n in elements]
        after = e.block
        e.jump(known)
        e.start(known)
        return [e.let(f"phi i64 [ {c}, %{before} ], [ {a}, %{after} ]") for c, a in zip(computed, asked, strict=True)]

    def _numbers(self, e: Emitter, sequence: str, n: int, miss: str, hold: Callable[[str], None], cls: type = tuple) -> list[str]:
        """The integers of an exact tuple or list of length n."""
        e.not_null(sequence, miss)
        hold(sequence)
        e.type_is(sequence, cls, miss)
        e.require(e.let(f"icmp eq i64 {e.load('i64', sequence, probe.SIZE)}, {n}"), miss)
        items = e.offset(sequence, probe.ITEMS) if cls is tuple else e.load("ptr", sequence, probe.ITEMS)
        return [e.call("i64", "PyLong_AsLongLong", ("ptr", e.load("ptr", items, 8 * i))) for i in range(n)]

    def box(self, e: Emitter, obj: str, type: Tensor) -> str:
        """A new ndarray becomes a tensor over its memory; the very tensor that came in stays itself."""
        made, done, start = e.label("box"), e.label("boxed"), e.label("result")
        e.jump(start)
        e.start(start)
        cls = e.load("ptr", obj, abi.OB_TYPE, "t")
        e.line(f"br i1 {e.let(f'icmp eq ptr {cls}, {e.object(np.ndarray)}')}, label %{made}, label %{done}")
        e.start(made)
        e.store("ptr", obj, "%numbers")
        tensor = e.call("ptr", "PyObject_VectorcallDict", ("ptr", e.object(self.adapter.tensor_py.from_numpy)), ("ptr", "%numbers"), ("i64", "1"), ("ptr", "null"))
        e.call("void", "Py_DecRef", ("ptr", obj))
        e.jump(done)
        e.start(done)
        return e.let(f"phi ptr [ {obj}, %{start} ], [ {tensor}, %{made} ]")

    def before_write(self, e: Emitter, miss: str) -> None:
        none = self._method(e, e.object(self.adapter.executor), type(self.adapter.executor), "sync")
        e.not_null(none, miss)
        e.call("void", "Py_DecRef", ("ptr", none))

    # ---- calls of C methods past the descriptor protocol, where the descriptor is what it should be

    def _attribute(self, e: Emitter, obj: str, name: str) -> str:
        getset = vars(self.adapter.tensor_py)[name]
        definition = probe.word(id(getset) + 40)  # PyGetSetDescr.d_getset: name, get, set, doc, closure
        assert type(getset).__name__ == "getset_descriptor" and ctypes.string_at(probe.word(definition)) == name.encode()
        e.object(getset)
        return e.call("ptr", probe.word(definition + 8), ("ptr", obj), ("ptr", constant(probe.word(definition + 32))))

    def _method(self, e: Emitter, obj: str, cls: type, name: str) -> str:
        method = getattr(cls, name)
        if type(method).__name__ == "method_descriptor":
            definition = probe.word(id(method) + 40)  # PyMethodDescr.d_method: name, function, flags
            flags = probe.word(definition + 16) & 0xFFFFFFFF
            if ctypes.string_at(probe.word(definition)) == name.encode() and flags in (_METH_VARARGS, _METH_NOARGS):
                e.object(method)
                return e.call("ptr", probe.word(definition + 8), ("ptr", obj), ("ptr", "null" if flags == _METH_NOARGS else e.object(())))
        e.store("ptr", obj, "%numbers")
        return e.call("ptr", "PyObject_VectorcallDict", ("ptr", e.object(method)), ("ptr", "%numbers"), ("i64", "1"), ("ptr", "null"))


def cell_attribute(obj: Any, name: str) -> tuple[tuple[Any, ...], ...] | None:
    """How to read an attribute of a cell without its __getattr__: parameters, buffers and cells live in dictionaries of their own."""
    from mindspore.nn import Cell
    if not issubclass(type(obj), Cell) or type(obj).__getattr__ is not Cell.__getattr__ or name in vars(obj) or any(name in vars(c) for c in type(obj).__mro__):
        return None
    for place in ("_params", "_buffers", "_cells", "_params_list"):
        inside = vars(obj).get(place)
        if inside is not None and name in inside:
            return (("attr", place), ("item", name))
    return None


def register() -> MindSporeAdapter:
    """Makes bcvm know MindSpore's tensors. Importing MindSpore takes seconds, so this happens at the first use of it, not before."""
    known = ADAPTERS.get("mindspore")
    if known is not None:
        assert isinstance(known, MindSporeAdapter)
        return known
    adapter = MindSporeAdapter()
    ADAPTERS["mindspore"] = adapter
    stub.READERS["mindspore"] = MindSporeReader(adapter)
    native.BOXES["mindspore"] = adapter.box
    boxing.DTYPES["bfloat16"] = adapter.numpy["bfloat16"]
    abi.TYPE_NUMBER["bfloat16"] = adapter.numpy["bfloat16"].num
    for cls in adapter.classes:
        resolve.TENSOR_LEAVES[cls] = adapter.leaf
    resolve.ATTRIBUTES.append(cell_attribute)
    return adapter
