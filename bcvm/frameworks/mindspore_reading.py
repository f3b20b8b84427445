"""How entry stubs read and make MindSpore's tensors.

Calls of the C methods of `TensorPy` cost 0.01 to 0.1 us each. `_data_ptr` has to be called: it waits for pending ops, and the memory of a
Parameter may be another at every call. Dtype and sizes cost as much again through attributes; they are read in place instead, at
offsets that `fields_of` finds on live tensors and checks. Where they are not found, and for results of ops, which have no fields
of their own, the methods are called. All of it is one native function per process, which stubs call.
"""
from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.compiler import abi, loader, probe
from bcvm.compiler.emit import Emitter
from bcvm.compiler.modules import PendingModule, constant
from bcvm.compiler.runtime import python_api
from bcvm.compiler.worker import FULL
from bcvm.specialise.types import Tensor

if TYPE_CHECKING:
    from bcvm.frameworks.mindspore import MindSporeAdapter

_METH_VARARGS, _METH_NOARGS = 1, 4
_C_CONTIGUOUS = 1  # NPY_ARRAY_C_CONTIGUOUS
_NOTHING = ()


@dataclass(frozen=True)
class Fields:
    """Byte offsets: of the pointer to the C++ tensor in a Python tensor (0 there: it has none yet); in the C++ tensor, of the dtype's number
    (int32) and of the begin and end of its sizes (int64 each). numbers: of the dtypes."""

    tensor: int
    dtype: int
    sizes: int
    numbers: Mapping[str, int]


_SPAN = 256  # bytes of a C++ tensor that are searched


def fields_of(make: Callable[[tuple[int, ...], str], Any], names: Iterable[str], assign: Callable[[Any, Any], Any]) -> Fields | None:
    """Where tensors keep dtype and sizes; None unless a place fits all of many tensors, and follows changes.
    make: a tensor of such sizes and dtype. assign: makes the first tensor like the second one, in place."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as file:  # a wrong address is an error there, not a crash
            memory = file.fileno()
            tensors = [(make(shape, name), shape, name) for name in names for shape in ((), (0, 5), (4, 3, 2, 5))]
            found = next((f for at in range(16, type(tensors[0][0]).__basicsize__, 8) if (f := _fields_behind(memory, at, tensors)) is not None), None)
            if found is None:
                return None
            changed = make((6, 2), tensors[0][2])
            for other, shape, name in tensors:
                assign(changed, other)
                block = _block(memory, _block(memory, id(changed) + found.tensor, 8)[0], _SPAN)
                if tuple(changed.shape) != shape or changed.dtype != other.dtype or not _is_at(memory, block, found.sizes, shape) or _number(block, found.dtype) != found.numbers[name]:
                    return None
            return found
    except OSError:
        return None


def _block(memory: int, address: int, size: int) -> tuple[int, ...]:
    """Words of memory; OSError where there is none."""
    data = os.pread(memory, size, address) if 0 <= address < 1 << 47 else b""
    if len(data) != size:
        raise OSError(f"no memory at {address:#x}")
    return struct.unpack(f"<{size // 8}q", data)


def _number(block: tuple[int, ...], at: int) -> int:
    return block[at // 8] >> 8 * (at % 8) & 0xFFFFFFFF


def _is_at(memory: int, block: tuple[int, ...], at: int, shape: tuple[int, ...]) -> bool:
    """Whether two words are the begin and end of these sizes."""
    begin, end = block[at // 8], block[at // 8 + 1]
    return end - begin == 8 * len(shape) and (not shape or _block(memory, begin, 8 * len(shape)) == shape)


def _fields_behind(memory: int, pointer: int, tensors: Sequence[tuple[Any, tuple[int, ...], str]]) -> Fields | None:
    """The one pair of offsets behind this pointer where each tensor has its sizes, and a number that goes with its dtype."""
    try:
        blocks = [(_block(memory, _block(memory, id(t) + pointer, 8)[0], _SPAN), shape, name) for t, shape, name in tensors]
    except OSError:
        return None
    fitting = []
    for sizes in range(8, _SPAN - 8, 8):
        try:
            if all(_is_at(memory, block, sizes, shape) for block, shape, _ in reversed(blocks)):
                fitting.append(sizes)
        except OSError:
            continue
    numbers: dict[int, dict[str, int]] = {}
    for at in range(8, _SPAN, 4):
        of = {name: _number(block, at) for block, _, name in blocks}
        if len(set(of.values())) == len(of) and all(_number(block, at) == of[name] for block, _, name in blocks):
            numbers[at] = of
    if len(fitting) != 1 or len(numbers) != 1:
        return None
    (dtype, of), = numbers.items()
    return Fields(pointer, dtype, fitting[0], of)


class MindSporeReader:
    """The emitted form."""

    runs_python = True  # `_data_ptr` lets other threads run

    def __init__(self, adapter: "MindSporeAdapter") -> None:
        self.adapter = adapter
        self._keep: list[Any] = [_NOTHING]

    def enter(self, e: Emitter, miss: str) -> None:
        """While MindSpore records for a gradient, it must see the operations itself."""
        flag = self._executor_call(e, "requires_grad")
        e.call("void", "Py_DecRef", ("ptr", flag))
        e.same(flag, e.object(False), miss)

    def read(self, e: Emitter, obj: str, type: Tensor, writable: bool, miss: str, into: str) -> None:
        number = self.fields.numbers[type.dtype] if self.fields is not None else 0
        known = (("ptr", e.object(self.adapter.dtypes[type.dtype])), ("i32", str(number)), ("i64", str(dtypes.itemsize(type.dtype))), ("i64", str(type.rank)))
        done = e.call("i32", self._code.address("read"), ("ptr", obj), *known, ("ptr", into))
        e.require(e.let(f"icmp eq i32 {done}, 1"), miss)

    def box(self, e: Emitter, obj: str, type: Tensor) -> str:
        """A new ndarray becomes a tensor over its memory, or over a C-contiguous copy of it; the very tensor that came in stays itself."""
        made, copy, dense, done, start = e.label("box"), e.label("copy"), e.label("dense"), e.label("boxed"), e.label("result")
        e.jump(start)
        e.start(start)
        cls = e.load("ptr", obj, abi.OB_TYPE, "t")
        e.line(f"br i1 {e.let(f'icmp eq ptr {cls}, {e.object(np.ndarray)}')}, label %{made}, label %{done}")
        e.start(made)
        e.store("ptr", obj, "%numbers")
        flag = e.let(f"and i32 {e.load('i32', obj, abi.ARRAY_FLAGS)}, {_C_CONTIGUOUS}")
        e.line(f"br i1 {e.let(f'icmp eq i32 {flag}, 0')}, label %{copy}, label %{dense}")
        e.start(copy)
        copied = e.call("ptr", "PyObject_VectorcallDict", ("ptr", e.object(np.ascontiguousarray)), ("ptr", "%numbers"), ("i64", "1"), ("ptr", "null"))
        e.call("void", "Py_DecRef", ("ptr", obj))
        e.line(f"br i1 {e.let(f'icmp eq ptr {copied}, null')}, label %{done}, label %{dense}")
        e.start(dense)
        array = e.let(f"phi ptr [ {obj}, %{made} ], [ {copied}, %{copy} ]")
        e.store("ptr", array, "%numbers")
        tensor = e.call("ptr", "PyObject_VectorcallDict", ("ptr", e.object(self.adapter.tensor_py.from_numpy)), ("ptr", "%numbers"), ("i64", "1"), ("ptr", "null"))
        e.call("void", "Py_DecRef", ("ptr", array))
        e.jump(done)
        e.start(done)
        return e.let(f"phi ptr [ {obj}, %{start} ], [ null, %{copy} ], [ {tensor}, %{dense} ]")

    def before_write(self, e: Emitter, miss: str) -> None:
        none = self._executor_call(e, "sync")
        e.not_null(none, miss)
        e.call("void", "Py_DecRef", ("ptr", none))

    # ---- the native function

    @cached_property
    def fields(self) -> Fields | None:
        ms = self.adapter.module

        def make(shape: tuple[int, ...], name: str) -> Any:
            return ms.Tensor(np.zeros(shape, np.int8), self.adapter.dtypes[name])
        return fields_of(make, self.adapter.dtypes, lambda a, b: a.assign_value(b))

    @cached_property
    def _code(self) -> loader.LoadedCode:
        return PendingModule(self._ir(), FULL).load()

    def _ir(self) -> str:
        """read(object, dtype object, dtype number, itemsize, rank, words): 1, and data, object, sizes and byte strides in the words; or 0, and perhaps
        an exception, if the object is no such tensor."""
        def api(name: str) -> str:
            return constant(python_api(name))

        one, other = (constant(id(cls)) for cls in self.adapter.classes)
        here = self.fields
        fields = "\n  br label %methods" if here is None else f"""
  %ptensor = getelementptr i8, ptr %obj, i64 {here.tensor}
  %tensor = load ptr, ptr %ptensor
  %isresult = icmp eq ptr %tensor, null
  br i1 %isresult, label %methods, label %fields
fields:
  %pnumber = getelementptr i8, ptr %tensor, i64 {here.dtype}
  %have = load i32, ptr %pnumber
  %pbegin = getelementptr i8, ptr %tensor, i64 {here.sizes}
  %pend = getelementptr i8, ptr %tensor, i64 {here.sizes + 8}
  %begin = load ptr, ptr %pbegin
  %end = load ptr, ptr %pend
  %from = ptrtoint ptr %begin to i64
  %to = ptrtoint ptr %end to i64
  %bytes = sub i64 %to, %from
  %wanted = shl i64 %rank, 3
  %isdtype = icmp eq i32 %have, %number
  %isrank = icmp eq i64 %bytes, %wanted
  %fits = and i1 %isdtype, %isrank
  br i1 %fits, label %copy, label %no
copy:
  %c = phi i64 [ 0, %fields ], [ %c1, %copied ]
  %allcopied = icmp eq i64 %c, %rank
  br i1 %allcopied, label %sized, label %copied
copied:
  %pc = getelementptr i64, ptr %begin, i64 %c
  %psize = getelementptr i64, ptr %sizes, i64 %c
  %size = load i64, ptr %pc
  store i64 %size, ptr %psize
  %c1 = add i64 %c, 1
  br label %copy"""
        return f"""
define internal i1 @numbers(ptr %sequence, ptr %class, i64 %rank, i64 %factor, ptr %to) {{
entry:
  %none = icmp eq ptr %sequence, null
  br i1 %none, label %no, label %look
look:
  %pt = getelementptr i8, ptr %sequence, i64 {abi.OB_TYPE}
  %t = load ptr, ptr %pt
  %pn = getelementptr i8, ptr %sequence, i64 {probe.SIZE}
  %n = load i64, ptr %pn
  %isclass = icmp eq ptr %t, %class
  %isrank = icmp eq i64 %n, %rank
  %fits = and i1 %isclass, %isrank
  br i1 %fits, label %items, label %drop
items:
  %inside = getelementptr i8, ptr %sequence, i64 {probe.ITEMS}
  %outside = load ptr, ptr %inside
  %istuple = icmp eq ptr %t, {constant(id(tuple))}
  %list = select i1 %istuple, ptr %inside, ptr %outside
  br label %next
next:
  %i = phi i64 [ 0, %items ], [ %i1, %item ]
  %all = icmp eq i64 %i, %rank
  br i1 %all, label %drop, label %item
item:
  %pi = getelementptr ptr, ptr %list, i64 %i
  %o = load ptr, ptr %pi
  %v = call i64 {api("PyLong_AsLongLong")}(ptr %o)
  %w = mul i64 %v, %factor
  %po = getelementptr i64, ptr %to, i64 %i
  store i64 %w, ptr %po
  %i1 = add i64 %i, 1
  br label %next
drop:
  call void {api("Py_DecRef")}(ptr %sequence)
  ret i1 %fits
no:
  ret i1 false
}}

define i32 @read(ptr %obj, ptr %dtype, i32 %number, i64 %itemsize, i64 %rank, ptr %in) {{
entry:
  %pclass = getelementptr i8, ptr %obj, i64 {abi.OB_TYPE}
  %class = load ptr, ptr %pclass
  %isone = icmp eq ptr %class, {one}
  %isother = icmp eq ptr %class, {other}
  %istensor = or i1 %isone, %isother
  br i1 %istensor, label %wait, label %no
wait:
  %address = {self._method("_data_ptr")}
  %failed = icmp eq ptr %address, null
  br i1 %failed, label %no, label %waited
waited:
  %data = call ptr {api("PyLong_AsVoidPtr")}(ptr %address)
  call void {api("Py_DecRef")}(ptr %address)
  %nowhere = icmp eq ptr %data, null
  br i1 %nowhere, label %no, label %ready
ready:
  store ptr %data, ptr %in
  %pobj = getelementptr i64, ptr %in, i64 1
  store ptr %obj, ptr %pobj
  %sizes = getelementptr i64, ptr %in, i64 2
  %strides = getelementptr i64, ptr %sizes, i64 %rank{fields}
methods:
  %shape = {self._attribute("_shape")}
  %isshape = call i1 @numbers(ptr %shape, ptr {constant(id(tuple))}, i64 %rank, i64 1, ptr %sizes)
  br i1 %isshape, label %shaped, label %no
shaped:
  %type = {self._attribute("_dtype")}
  %untyped = icmp eq ptr %type, null
  br i1 %untyped, label %no, label %typed
typed:
  call void {api("Py_DecRef")}(ptr %type)
  %same = icmp eq ptr %type, %dtype
  br i1 %same, label %sized, label %no
sized:
  %flag = {self._method("is_contiguous")}
  %unknown = icmp eq ptr %flag, null
  br i1 %unknown, label %no, label %known
known:
  call void {api("Py_DecRef")}(ptr %flag)
  %dense = icmp eq ptr %flag, {constant(id(True))}
  br i1 %dense, label %inward, label %strided
inward:
  %d = phi i64 [ %rank, %known ], [ %d1, %axis ]
  %step = phi i64 [ %itemsize, %known ], [ %step1, %axis ]
  %outermost = icmp eq i64 %d, 0
  br i1 %outermost, label %yes, label %axis
axis:
  %d1 = sub i64 %d, 1
  %pstride = getelementptr i64, ptr %strides, i64 %d1
  store i64 %step, ptr %pstride
  %pn = getelementptr i64, ptr %sizes, i64 %d1
  %n = load i64, ptr %pn
  %step1 = mul i64 %step, %n
  br label %inward
strided:
  %asked = {self._method("stride")}
  %isasked = call i1 @numbers(ptr %asked, ptr {constant(id(list))}, i64 %rank, i64 %itemsize, ptr %strides)
  br i1 %isasked, label %yes, label %no
yes:
  ret i32 1
no:
  ret i32 0
}}
"""

    # ---- calls of C methods past the descriptor protocol, where the descriptor is what it should be

    def _attribute(self, name: str) -> str:
        """The call that gets an attribute of the tensor %obj."""
        getset = vars(self.adapter.tensor_py)[name]
        definition = probe.word(id(getset) + 40)  # PyGetSetDescr.d_getset: name, get, set, doc, closure
        assert type(getset).__name__ == "getset_descriptor" and ctypes.string_at(probe.word(definition)) == name.encode()
        return f"call ptr {constant(probe.word(definition + 8))}(ptr %obj, ptr {constant(probe.word(definition + 32))})"

    def _method(self, name: str) -> str:
        """The call of a method of the tensor %obj that takes nothing."""
        return self._c_call(getattr(self.adapter.tensor_py, name), "%obj")

    def _executor_call(self, e: Emitter, name: str) -> str:
        """A new reference to what a method of the executor gives."""
        executor = self.adapter.executor
        return e.let(self._c_call(getattr(type(executor), name), e.object(executor)))

    def _c_call(self, method: Any, obj: str) -> str:
        """The call of a method that takes nothing: of its C function, where it is one, else of the object."""
        self._keep.append(method)
        if type(method).__name__ == "method_descriptor":
            definition = probe.word(id(method) + 40)  # PyMethodDescr.d_method: name, function, flags
            flags = probe.word(definition + 16) & 0xFFFFFFFF
            if ctypes.string_at(probe.word(definition)) == method.__name__.encode() and flags in (_METH_VARARGS, _METH_NOARGS):
                return f"call ptr {constant(probe.word(definition + 8))}(ptr {obj}, ptr {constant(id(_NOTHING)) if flags == _METH_VARARGS else 'null'})"
        return f"call ptr (ptr, ...) {constant(python_api('PyObject_CallFunctionObjArgs'))}(ptr {constant(id(method))}, ptr {obj}, ptr null)"
