"""What bcvm needs to know of a tensor library. One adapter per library; the emitted form, for entry stubs, is `compiler.stub.Reader`.

Promotion and the meaning of ops are not here: they are rules of the ops, per library.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bcvm.specialise.types import Tensor


@dataclass(frozen=True)
class Description:
    """Where a tensor's elements are: address of the first one, dtype name, sizes, byte strides, memory space."""

    data: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    space: str = "host"
    writable: bool = True


class Adapter(ABC):
    """scalar_result: whether results of rank 0 are scalar objects. inplace: what `y += 1` does to the caller's tensor, 'mutate' or 'rebind'.
    errors: the exception a kind of failure raises in this library ('index', 'truth', 'shape')."""

    name: str
    scalar_result: bool = False
    inplace: str = "rebind"
    errors: dict[str, type[Exception]] = {"index": IndexError, "truth": ValueError, "shape": ValueError}

    @abstractmethod
    def recognise(self, obj: Any) -> bool:
        """Whether the object is a tensor of this library, by exact type."""

    @abstractmethod
    def describe(self, obj: Any) -> Description | None:
        """How native code reads it; None if it cannot (another device, an unknown dtype)."""

    @abstractmethod
    def alloc(self, dtype: str, sizes: Sequence[int]) -> np.ndarray[Any, Any]:
        """Memory for a result, as an ndarray; `box` makes the library's tensor of it."""

    @abstractmethod
    def box(self, array: np.ndarray[Any, Any], type: Tensor) -> Any:
        """A tensor of the library over the memory of `array`."""

    @abstractmethod
    def as_view(self, obj: Any) -> np.ndarray[Any, Any]:
        """An ndarray over the tensor's memory."""

    def synchronise(self, write: bool = False) -> None:
        """Waits until pending work of the library can no longer touch memory that is now read (or written)."""
        return None

    def requires_grad(self) -> bool:
        """Whether the library is recording operations now, so that native code must not hide them."""
        return False


ADAPTERS: dict[str, Adapter] = {}


def adapter_of(obj: Any) -> Adapter | None:
    """The adapter of the library that the tensor belongs to."""
    return next((a for a in ADAPTERS.values() if a.recognise(obj)), None)
