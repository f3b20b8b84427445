"""Types of SSA values. Sizes never belong to a type's key; they are dims, filled in per specialisation."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from bcvm.shapes.dim import Dim


@dataclass(frozen=True)
class Tensor:
    """A tensor of a library ('numpy', 'mindspore'). `scalar`: rank 0 and, where it reaches Python, a NumPy scalar
    object rather than a 0-d array. `layout`: a hint for kernel choice, never a promise: strides are read at run time. `readonly`: a view that
    NumPy hands out unwritable (broadcast_to), whatever the array is."""

    library: str
    dtype: str
    dims: tuple[Dim, ...]
    scalar: bool = False
    layout: str = "strided"
    space: str = "host"
    readonly: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)

    def key(self) -> Any:
        return ("T", self.library, self.dtype, self.rank, self.scalar, self.space, self.readonly)

    def __str__(self) -> str:
        return f"Tensor<{self.dtype},[{','.join('?' if not d.is_const else str(d) for d in self.dims)}]>"


@dataclass(frozen=True)
class Scalar:
    """A Python number known at run time. kind: 'int' (64 bit in native code; overflow leaves it), 'float', 'bool'."""

    kind: str

    def key(self) -> Any:
        return ("S", self.kind)

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, eq=False)
class Const:
    """A value known at specialisation: literals, and objects guarded by identity (functions, modules, dtypes, None, str).
    `path`: where it was read from (see ssa.Path), else None. `handle`: for containers and instances, which are guarded by type only, the
    PyObject value that is the object of this call; `value` is then an example of it."""

    value: Any
    path: Any = None
    handle: Any = None

    def key(self) -> Any:
        v = self.value
        if isinstance(v, (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))):
            return ("C", type(v).__name__, repr(v))
        return ("O", id(v))

    def __str__(self) -> str:
        return f"Const<{getattr(self.value, '__name__', None) or repr(self.value)[:40]}>"


@dataclass(frozen=True)
class PyObject:
    """Any other object: held, passed on and returned, never looked into. cls: its exact type, where known."""

    cls: type | None = field(default=None)

    def key(self) -> Any:
        return ("P", self.cls)

    def __str__(self) -> str:
        return f"PyObject<{self.cls.__name__ if self.cls else '?'}>"


Type = Union[Tensor, Scalar, Const, PyObject]
