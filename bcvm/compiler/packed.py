"""Weights that never change (option `frozen`), packed once for the matrix product.

A captured tensor that is the second operand of a matrix product, as it is or transposed, is packed when code for it is compiled. The driver compares address
and sizes at every call: another tensor under the same name is read as it lies, while a change of the tensor's elements is not seen. The packed
copy is shared by all code that reads the tensor and goes with the last of it; until then it keeps the tensor itself alive.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from bcvm.compiler.kernels import matmul
from bcvm.compiler.target import Target
from bcvm.errors import Unsupported
from bcvm.specialise.ssa import Graph, Value
from bcvm.specialise.types import Tensor

LEAST_COLUMNS = 16      # a narrower product swaps its operands instead
Array = np.ndarray[Any, Any]

# An ndarray on the memory of a library's tensor, or None. Frameworks add theirs.
ARRAYS: dict[str, Callable[[Any], Array | None]] = {"numpy": lambda a: a}


class Packed:
    """The packed copy of an array [K, N] on the memory of `source`."""

    def __init__(self, source: Any, array: Array, target: Target) -> None:
        self.source = source
        self.data, self.sizes, self.strides = array.ctypes.data, array.shape, array.strides
        self.panels: Array = matmul.pack(array, target)


_known: weakref.WeakValueDictionary[tuple[int, bool, Target], Packed] = weakref.WeakValueDictionary()


def captured(graph: Graph) -> dict[Value, Any]:
    """The tensors of a graph that are read from a capture, or from an attribute of an argument, and that the program does not store into."""
    return {i.value: i.example for i in graph.inputs if i.example is not None and not i.writable and (i.path.root[0] != "arg" or i.path.steps)}


def pack(value: Value, frozen: dict[Value, Any], target: Target) -> Packed | None:
    """The packed form of the second operand of a matrix product, if it is a captured tensor of two dims or one transposed."""
    turned = False
    while value.node is not None and value.node.op == "view" and value.node.attrs["kind"] == "transpose" and tuple(value.node.attrs["perm"]) == (1, 0):
        value, turned = value.node.operands[0], not turned
    source = frozen.get(value)
    if source is None or not isinstance(value.type, Tensor) or value.type.rank != 2:
        return None
    key = (id(source), turned, target)      # `source` is alive as long as its entry
    known = _known.get(key)
    if known is not None:
        return known
    array = ARRAYS.get(value.type.library, lambda _: None)(source)
    if array is None:
        return None
    array = array.T if turned else array
    if array.shape[1] < LEAST_COLUMNS or not array.shape[0]:
        return None
    try:
        made = _known[key] = Packed(source, array, target)
    except Unsupported:
        return None
    return made


def bytes_held() -> int:
    """Of all packed copies."""
    return sum(p.panels.nbytes for p in list(_known.values()))
