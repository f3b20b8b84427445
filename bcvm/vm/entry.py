"""The callable type: what `bcvm.jit` returns. Its C function pointer, one word of the instance, is replaced as native code comes and goes.

The type is a Python class over a small base made with PyType_FromSpec, whose instances have a vectorcall pointer at a fixed offset and bind as
methods do. Until native code exists the pointer leads to the slow callable of the instance, through five instructions of machine
code (not made by LLVM, so that decorating a function needs no compiler). Without native entry (see `reason`) the same face is plain Python.
"""
from __future__ import annotations

import ctypes
import struct
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from bcvm.compiler import loader, probe
from bcvm.compiler.runtime import python_api
from bcvm.errors import CompileError

VECTORCALL = 16              # offset of the vectorcall pointer in an instance
_BASE_SIZE = 24
_TP_VECTORCALL, _TP_FLAGS = 56, 168  # offsets of tp_vectorcall_offset and tp_flags in a type; verified
_DEFAULT, _BASETYPE, _METHOD_DESCRIPTOR, _HAVE_VECTORCALL = 1 << 18, 1 << 10, 1 << 17, 1 << 11
_SLOT_CALL, _SLOT_DESCR_GET, _SLOT_MEMBERS = 50, 54, 72
_T_PYSSIZET, _READONLY = 19, 1


class _Member(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
                ("slots", ctypes.POINTER(_Slot))]


def _uninitialised(*args: Any, **kwargs: Any) -> Any:
    raise TypeError("this function has no slow path; make it with bcvm.jit")


def _through_function(slow: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: slow(*args, **kwargs)


def _trampoline(slow_offset: int) -> bytes:
    """callable->slow(args, nargsf, kwnames): the other three arguments stay in their registers."""
    if sys.version_info >= (3, 11):
        call = b"\x48\xb8" + struct.pack("<Q", python_api("PyObject_Vectorcall")) + b"\xff\xe0"   # mov rax, PyObject_Vectorcall; jmp rax
    else:  # it is an inline function there: jump through the callable's own pointer
        call = b"\x48\x8b\x47\x08" + b"\x48\x8b\x40" + struct.pack("b", _TP_VECTORCALL) + b"\xff\x24\x07"
    return b"".join((
        b"\x48\x8b\x7f", struct.pack("b", slow_offset),                             # mov rdi, [rdi + slow]
        b"\x48\xb8", struct.pack("<Q", id(_uninitialised)),                         # mov rax, _uninitialised
        b"\x48\x85\xff", b"\x48\x0f\x44\xf8",                                       # test rdi, rdi; cmovz rdi, rax
        call))


class _Common:
    """What both forms of the type share."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<bcvm function {getattr(self, '__qualname__', '?')}>"

    def __reduce__(self) -> str:
        """By name, as functions are pickled."""
        return str(getattr(self, "__qualname__", "?"))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class _PlainBase:
    """The type without native entry."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._slow(*args, **kwargs)  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class _Native:
    """The native base type and the trampoline. Made once."""

    def __init__(self) -> None:
        get_slot = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
        from_spec = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyType_FromSpec", ctypes.pythonapi))
        members = (_Member * 2)(_Member(b"__vectorcalloffset__", _T_PYSSIZET, VECTORCALL, _READONLY, None), _Member())
        slots = (_Slot * 4)(
            _Slot(_SLOT_CALL, python_api("PyVectorcall_Call")),
            _Slot(_SLOT_DESCR_GET, get_slot(types.FunctionType, _SLOT_DESCR_GET)),  # binds anything: PyMethod_New(self, instance)
            _Slot(_SLOT_MEMBERS, ctypes.addressof(members)), _Slot(0, None))
        self._spec = _Spec(b"bcvm.vm.entry.FunctionBase", _BASE_SIZE, 0, _DEFAULT | _BASETYPE | _METHOD_DESCRIPTOR | _HAVE_VECTORCALL, slots)
        self._keep = (members, slots)
        self.base: type = from_spec(ctypes.addressof(self._spec))
        probe_type = self.make("probe", {})
        self.slow_offset = self._find_slow(probe_type)
        self._code = loader.place(_trampoline(self.slow_offset), "slow")
        self.slow_address = self._code.address("slow")
        self._check(probe_type)

    def make(self, name: str, methods: dict[str, Any], binds: bool = True) -> type:
        made = type(name, (_Common, self.base), {"__slots__": ("_slow", "__dict__", "__weakref__"), **methods})
        flags = ctypes.c_uint64.from_address(id(made) + _TP_FLAGS)
        if flags.value & 0xFFFFFFFF != made.__flags__ & 0xFFFFFFFF or probe.word(id(made) + _TP_VECTORCALL) != VECTORCALL:
            raise CompileError("type objects have an unknown layout")
        flags.value |= _HAVE_VECTORCALL | _METHOD_DESCRIPTOR  # subclasses written in Python get them by themselves from 3.12 on
        if not binds:
            flags.value &= ~_METHOD_DESCRIPTOR
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(made))
        return made

    def _find_slow(self, cls: type) -> int:
        instance, marker = cls(), object()
        instance._slow = marker
        for offset in range(_BASE_SIZE, cls.__basicsize__, 8):
            if probe.word(id(instance) + offset) == id(marker):
                return offset
        raise CompileError("instances of Python classes have an unknown layout")

    def _check(self, cls: type) -> None:
        instance: Any = cls()
        instance._slow = lambda *args, **kwargs: (args, kwargs)
        set_word(instance, self.slow_address)
        if instance(1, 2, k=3) != ((1, 2), {"k": 3}) or instance() != ((), {}):
            raise CompileError("the vectorcall protocol of this Python is unknown")


def set_word(instance: Any, address: int) -> None:
    ctypes.c_uint64.from_address(id(instance) + VECTORCALL).value = address


@cache
def _native() -> tuple[_Native | None, str]:
    why = probe.layout().reason
    if why:
        return None, why
    try:
        return _Native(), ""
    except CompileError as e:
        return None, str(e)


def reason() -> str:
    """Why calls enter through Python here; '' where they enter natively."""
    return _native()[1]


def make_function_type(name: str, methods: dict[str, Any], binds: bool = True) -> type:
    """A callable type with attributes, weak references, and `methods`. Give each instance its slow callable with `initialise`. binds: as functions
    of a class do, so that a call of a method may pass the instance by itself; a __get__ among `methods` must do the same."""
    native, _ = _native()
    if native is not None:
        return native.make(name, methods, binds)
    return type(name, (_Common, _PlainBase), {"__slots__": ("_slow", "__dict__", "__weakref__"), **methods})


def initialise(instance: Any, slow: Callable[..., Any]) -> None:
    """Calls of `instance` now go to slow(*args, **kwargs)."""
    if sys.version_info < (3, 11) and not isinstance(slow, (types.FunctionType, types.MethodType)):
        slow = _through_function(slow)  # the trampoline needs a callable with a vectorcall pointer
    instance._slow = slow
    set_entry(instance, 0)


def slow_entry() -> int:
    """Address of the vectorcall function that calls the slow callable: the last successor of every chain of stubs. 0 without native entry."""
    native, _ = _native()
    return native.slow_address if native is not None else 0


def set_entry(instance: Any, address: int) -> bool:
    """Publishes a vectorcall function as the entry, in one store; 0 is the slow callable. False: no native entry here, nothing changed."""
    native, _ = _native()
    if native is None:
        return False
    set_word(instance, address or native.slow_address)
    return True


def get_entry(instance: Any) -> int:
    """The address calls enter at now; 0 without native entry."""
    return probe.word(id(instance) + VECTORCALL) if _native()[0] is not None else 0
