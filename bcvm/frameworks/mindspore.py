"""MindSpore on CPU: its adapter; how entry stubs read and make its tensors is in `mindspore_reading`. Importing this module does not import
MindSpore; `register` does.

Facts it stands on (MindSpore 2.10): `_data_ptr` waits for the pending op that makes the tensor; `TensorPy.from_numpy` shares the memory of a contiguous
ndarray and keeps it alive; a pending op may still read a buffer that is about to be overwritten, so stores wait for all of them.
"""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.compiler import abi, boxing, native, packed, stub
from bcvm.frameworks.adapter import ADAPTERS, Adapter, Description
from bcvm.frameworks.mindspore_reading import MindSporeReader
from bcvm.specialise import resolve
from bcvm.specialise.builtins import CLASSES
from bcvm.specialise.types import Tensor

_NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


class MindSporeAdapter(Adapter):
    """Tensor and Parameter, exact types, in CPU memory."""

    name = "mindspore"

    def __init__(self) -> None:
        import mindspore
        from mindspore._c_expression import TensorPy
        from mindspore.common import np_dtype
        from mindspore.graph.api import _pynative_executor
        self.module, self.tensor_py = mindspore, TensorPy
        self.executor = _pynative_executor._executor
        parameter = mindspore.Parameter(mindspore.Tensor(0.0), name="bcvm")  # its class is made by MindSpore at the first use, once
        self.classes: tuple[type, type] = (mindspore.Tensor, type(parameter))
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

    def box(self, array: np.ndarray[Any, Any], type: Tensor) -> Any:
        """Shares memory if the array is C-contiguous; copies otherwise."""
        return self.tensor_py.from_numpy(np.ascontiguousarray(array) if array.ndim else array)

    def array(self, obj: Any) -> np.ndarray[Any, Any] | None:
        """An ndarray on the tensor's memory, which it does not keep alive."""
        found = self.describe(obj)
        if found is None or not all(found.sizes):
            return None
        dtype = self.numpy[found.dtype]
        reach = sum((n - 1) * s for n, s in zip(found.sizes, found.strides, strict=True)) + dtype.itemsize
        memory: Any = (ctypes.c_char * reach).from_address(found.data)
        return np.ndarray(found.sizes, dtype, memory, 0, found.strides)

    def requires_grad(self) -> bool:
        return bool(self.executor.requires_grad())


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
    packed.ARRAYS["mindspore"] = adapter.array
    boxing.DTYPES["bfloat16"] = adapter.numpy["bfloat16"]
    abi.TYPE_NUMBER["bfloat16"] = adapter.numpy["bfloat16"].num
    for cls in adapter.classes:
        resolve.TENSOR_LEAVES[cls] = adapter.leaf
    CLASSES["mindspore"] = adapter.module.Tensor
    resolve.FIXED_SIZES.add(adapter.classes[1])
    resolve.IDENTITY.append(adapter.module.Type)  # the class of dtypes
    resolve.ATTRIBUTES.append(cell_attribute)
    return adapter
