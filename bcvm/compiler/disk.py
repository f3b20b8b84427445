"""Kernels on disk: their object code refers to nothing outside itself, so one process can use what another compiled. See `store` for the files."""
from __future__ import annotations

from functools import lru_cache

from bcvm.compiler import abi, store
from bcvm.compiler.region import KernelSource
from bcvm.compiler.target import Target, host


def read(source: KernelSource) -> bytes | None:
    """The object of a kernel, or None."""
    return store.read(_depends(source))


def write(source: KernelSource, code: bytes) -> None:
    """Keep the object of a kernel for later processes."""
    store.write(_depends(source), code)


def _depends(source: KernelSource) -> str:
    return f"{source.ir} {_versions(host())}"


@lru_cache(maxsize=4)
def _versions(target: Target) -> str:
    """All that the code of a kernel depends on besides its text."""
    import llvmlite
    table = [name for name, _ in abi.TABLE]
    return f"{llvmlite.__version__} {target} {table} {abi.CTX_WORDS}"
