"""From native results to Python objects: the emitted form for what a driver returns, and `read_state` for where it leaves."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bcvm.compiler.emit import Emitter
from bcvm.compiler.runtime import Runtime
from bcvm.errors import Unsupported
from bcvm.specialise.ssa import Aggregate, Tree, Value, leaves
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor, Type

# dtypes that NumPy knows only through a framework (bfloat16), by name.
DTYPES: dict[str, np.dtype[Any]] = {}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name. Unsupported: there is none in this process."""
    try:
        return DTYPES[name] if name in DTYPES else np.dtype(name)
    except TypeError:
        raise Unsupported(f"NumPy has no {name}") from None


def state_words(types: Sequence[Type]) -> int:
    """Words of `out` that an exit's leaves take."""
    return sum(3 + 2 * t.rank if isinstance(t, Tensor) else 1 for t in types)


# ---- emitted


def emit(e: Emitter, tree: Tree, readers: Any, rt: Runtime) -> str:
    """Reads `%out` and returns a new reference to the result object, or null with an exception set."""
    values = list(leaves(tree))
    slots = [_leaf(e, v.type, n, readers, rt) for n, v in enumerate(values)]
    if isinstance(tree, Value):
        return slots[0]
    if isinstance(tree, Const):
        e.call("void", "Py_IncRef", ("ptr", e.object(tree.value)))
        return e.object(tree.value)
    return _Builder(e, slots).build(tree)


def _leaf(e: Emitter, t: Type, n: int, readers: Any, rt: Runtime) -> str:
    at = e.offset("%out", 8 * n)
    if isinstance(t, Tensor) and t.scalar:
        if numpy_dtype(t.dtype).itemsize > 8:
            raise Unsupported(f"a {t.dtype} scalar takes more than one word")
        descr = e.object(numpy_dtype(t.dtype))
        return e.call("ptr", rt.numpy["PyArray_Scalar"], ("ptr", at), ("ptr", descr), ("ptr", "null"))
    if isinstance(t, Tensor):
        return str(readers[t.library].box(e, e.let(f"load ptr, ptr {at}"), t))
    if isinstance(t, PyObject):
        return e.let(f"load ptr, ptr {at}")
    if not isinstance(t, Scalar):
        raise Unsupported(f"a result of type {t} has no native form")
    if t.kind == "float":
        return e.call("ptr", "PyFloat_FromDouble", ("double", e.let(f"load double, ptr {at}")))
    word = e.let(f"load i64, ptr {at}")
    if t.kind == "int":
        return e.call("ptr", "PyLong_FromLongLong", ("i64", word))
    truth = e.let(f"icmp ne i64 {word}, 0")
    obj = e.let(f"select i1 {truth}, ptr {e.object(True)}, ptr {e.object(False)}")
    e.call("void", "Py_IncRef", ("ptr", obj))
    return obj


class _Builder:
    """Builds containers. Every object made stays owned by a slot; containers take references of their own, so that there is one way out."""

    def __init__(self, e: Emitter, slots: list[str]) -> None:
        self.e, self.owned, self.next = e, list(slots), 0
        self.made: dict[int, str] = {}
        self.failed = e.label("unbuilt")
        self.incoming: list[tuple[str, int]] = []  # (block, objects owned there) of each jump to `failed`

    def build(self, tree: Tree) -> str:
        e = self.e
        n_leaves = len(self.owned)
        for slot in self.owned[:n_leaves]:
            self._require(e.let(f"icmp ne ptr {slot}, null"), n_leaves)
        top = self._make(tree)
        e.call("void", "Py_IncRef", ("ptr", top))
        joined, ended = e.label("built"), e.label("freed")
        e.jump(joined)
        e.start(self.failed)
        phis = []
        for i, owned in enumerate(self.owned):
            name = e.name("o")
            rows = ", ".join(f"[ {owned if i < have else 'null'}, %{block} ]" for block, have in self.incoming)
            phis.append(name)
            e.line(f"{name} = phi ptr {rows}")
        e.jump(ended)
        e.start(joined)
        e.jump(ended)
        e.start(ended)
        finals = []
        for owned, name in zip(self.owned, phis, strict=True):
            final = e.name("f")
            finals.append(final)
            e.line(f"{final} = phi ptr [ {name}, %{self.failed} ], [ {owned}, %{joined} ]")
        result = e.name("r")
        e.line(f"{result} = phi ptr [ null, %{self.failed} ], [ {top}, %{joined} ]")
        for final in finals:
            e.call("void", "Py_DecRef", ("ptr", final))
        return result

    def _require(self, condition: str, have: int) -> None:
        self.incoming.append((self.e.block, have))
        self.e.require(condition, self.failed)

    def _own(self, obj: str) -> str:
        have = len(self.owned)
        self._require(self.e.let(f"icmp ne ptr {obj}, null"), have)
        self.owned.append(obj)
        return obj

    def _make(self, tree: Tree) -> str:
        """A borrowed reference to the object for `tree`."""
        e = self.e
        if isinstance(tree, Value):
            self.next += 1
            return self.owned[self.next - 1]
        if isinstance(tree, Const):
            return e.object(tree.value)
        if tree is None:
            raise Unsupported("an unset value is returned")
        known = self.made.get(id(tree))
        if known is not None:
            self.next += sum(1 for _ in leaves(tree))
            return known
        items = [self._make(item) for item in tree.items]
        made = self.made[id(tree)] = self._container(tree, items)
        return made

    def _container(self, tree: Aggregate, items: list[str]) -> str:
        e, kind, n = self.e, tree.kind, len(tree.items)
        if kind in ("tuple", "list"):
            word = kind.capitalize()
            made = self._own(e.call("ptr", f"Py{word}_New", ("i64", str(n))))
            for i, item in enumerate(items):  # cannot fail: the container is new and large enough
                e.call("void", "Py_IncRef", ("ptr", item))
                e.call("i32", f"Py{word}_SetItem", ("ptr", made), ("i64", str(i)), ("ptr", item))
            return made
        if kind == "dict":
            made = self._own(e.call("ptr", "PyDict_New"))
            for i in range(0, n, 2):
                r = e.call("i32", "PyDict_SetItem", ("ptr", made), ("ptr", items[i]), ("ptr", items[i + 1]))
                self._require(e.let(f"icmp eq i32 {r}, 0"), len(self.owned))
            return made
        if kind == "slice":
            return self._own(e.call("ptr", "PySlice_New", *(("ptr", i) for i in items)))
        if kind == "range":
            packed = self._own(e.call("ptr", "PyTuple_New", ("i64", str(n))))
            for i, item in enumerate(items):
                e.call("void", "Py_IncRef", ("ptr", item))
                e.call("i32", "PyTuple_SetItem", ("ptr", packed), ("i64", str(i)), ("ptr", item))
            return self._own(e.call("ptr", "PyObject_Call", ("ptr", e.object(range)), ("ptr", packed), ("ptr", "null")))
        raise Unsupported(f"a {kind} is returned")


# ---- exits


def read_state(out_address: int, types: Sequence[Type], box: Callable[[np.ndarray[Any, Any], Tensor], Any] | None = None) -> list[Any]:
    """The leaves of an exit's state as Python objects.

    An arena buffer is copied once, so that views of one buffer stay views of one array; the very object that came in stays
    itself; other tensors become views of the array they point into. box: makes a framework's tensor of an ndarray (not called for inputs).
    """
    words = (ctypes.c_int64 * state_words(types)).from_address(out_address)
    tensors: list[tuple[Tensor, int, int, int, tuple[int, ...], tuple[int, ...]]] = []
    at = 0
    out: list[Any] = []
    for t in types:
        if isinstance(t, Tensor):
            sizes, strides = tuple(words[at + 3:at + 3 + t.rank]), tuple(words[at + 3 + t.rank:at + 3 + 2 * t.rank])
            tensors.append((t, words[at], words[at + 1], words[at + 2], sizes, strides))
            out.append(len(tensors) - 1)
            at += 3 + 2 * t.rank
            continue
        if isinstance(t, Scalar):
            word = words[at]
            out.append(word if t.kind == "int" else bool(word) if t.kind == "bool" else ctypes.c_double.from_buffer_copy(ctypes.c_int64(word)).value)
        elif isinstance(t, PyObject):
            out.append(_object(words[at]))
        else:
            raise Unsupported(f"a state of type {t}")
        at += 1
    arrays = _Arrays(tensors)
    return [arrays.get(n, box) if isinstance(t, Tensor) else n for t, n in zip(types, out, strict=True)]


def _object(address: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(address), ctypes.py_object).value


class _Arrays:
    """Tensors of one state: arena buffers are copied to one byte array per buffer, as far as any of the tensors reaches."""

    def __init__(self, tensors: list[tuple[Tensor, int, int, int, tuple[int, ...], tuple[int, ...]]]) -> None:
        self.tensors = tensors
        self.spans: dict[int, tuple[int, int]] = {}
        self.buffers: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}
        self.objects: dict[tuple[Any, ...], Any] = {}
        for t, data, obj, base, sizes, strides in tensors:
            if obj == 0 and base & 1 == 0:
                low, high = _extent(data, sizes, strides, numpy_dtype(t.dtype).itemsize)
                old = self.spans.get(base if base else data, (low, high))
                self.spans[base if base else data] = (min(low, old[0]), max(high, old[1]))

    def get(self, index: int, box: Callable[[np.ndarray[Any, Any], Tensor], Any] | None) -> Any:
        t, data, obj, base, sizes, strides = self.tensors[index]
        if obj:
            found = _object(obj)
            if box is not None and type(found) is np.ndarray and t.library != "numpy":  # a result in the making: not yet a tensor of its library
                made = self.objects.get((obj,))
                if made is None:
                    made = self.objects[(obj,)] = box(found, t)
                return made
            return found[()] if t.scalar and type(found) is np.ndarray else found  # the array is there because a view of it is
        key = (data, base, sizes, strides, t.dtype, t.library, t.scalar, t.readonly)
        found = self.objects.get(key)
        if found is None:
            array = self._array(t, data, base, sizes, strides)
            if t.readonly:
                array.flags.writeable = False
            found = array[()] if t.scalar else array if box is None else box(array, t)
            self.objects[key] = found
        return found

    def _array(self, t: Tensor, data: int, base: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
        dtype = numpy_dtype(t.dtype)
        if base & 1:
            return _view(_object(base & ~1), data, dtype, sizes, strides)
        low, buffer = self._buffer(base if base else data)
        array: np.ndarray[Any, Any] = np.ndarray(sizes, dtype, buffer, data - low, strides)
        return array

    def _buffer(self, base: int) -> tuple[int, np.ndarray[Any, Any]]:
        found = self.buffers.get(base)
        if found is None:
            low, high = self.spans[base]
            copy = np.frombuffer(bytearray(ctypes.string_at(low, high - low) if high > low else b"\0" * 16), np.uint8)
            found = self.buffers[base] = (low, copy)
        return found


def _extent(data: int, sizes: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    if 0 in sizes:
        return data, data
    low = data + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if s < 0)
    return low, data + itemsize + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if s > 0)


def _view(owner: Any, data: int, dtype: np.dtype[Any], sizes: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A view into memory that `owner` keeps alive."""
    from bcvm.compiler.runtime import runtime
    rt = runtime()
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                             ctypes.py_object)(rt.address("view_array"))
    n = len(sizes)
    made: np.ndarray[Any, Any] = make(None, dtype.num, n, (ctypes.c_int64 * n)(*sizes), (ctypes.c_int64 * n)(*strides), data, owner)
    return made
