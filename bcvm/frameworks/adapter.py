"""What bcvm needs to know of a tensor library. One adapter per library; the emitted form, for entry stubs, is `compiler.stub.Reader`.

Promotion and the meaning of ops are not here: they are rules of the ops, per library.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
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
    """The Python form of what a library's tensors are."""

    name: str

    @abstractmethod
    def recognise(self, obj: Any) -> bool:
        """Whether the object is a tensor of this library, by exact type."""

    @abstractmethod
    def describe(self, obj: Any) -> Description | None:
        """How native code reads it; None if it cannot (another device, an unknown dtype)."""

    @abstractmethod
    def box(self, array: np.ndarray[Any, Any], type: Tensor) -> Any:
        """A tensor of the library over the memory of `array`."""

    def requires_grad(self) -> bool:
        """Whether the library is recording operations now, so that native code must not hide them."""
        return False


ADAPTERS: dict[str, Adapter] = {}


def adapter_of(obj: Any) -> Adapter | None:
    """The adapter of the library that the tensor belongs to."""
    return next((a for a in ADAPTERS.values() if a.recognise(obj)), None)
