"""The kernel table as compilations see it that want spliced kernels: a region's kernel is there at once, where it can be spliced."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bcvm.compiler import loader
from bcvm.compiler.region import KernelSource, RegionSpec
from bcvm.compiler.splice.library import current, when_there
from bcvm.compiler.splice.splicer import splice
from bcvm.compiler.table import ENTRY, Kernel, table
from bcvm.errors import CompileError, Unsupported

Later = Callable[[Callable[[], None]], object]


class SplicedTable:
    """later: how a job is handed to the compile thread, by which LLVM's kernels replace spliced ones. None: spliced kernels stay (and are kept apart
    from others); one that is needed before there are stencils is LLVM's until then."""

    def __init__(self, later: Later | None = None) -> None:
        self.later = later

    def slot_for(self, key: Any, make: Callable[[], KernelSource]) -> int:
        spec = _region(key)
        if spec is None:
            return table.slot_for(key, make)
        splice_now = partial(spliced, spec)
        if self.later is None:
            kernel = table.kernel(("spliced", key), make, splice_now)
            if not kernel.spliced:
                when_there(partial(_splice, kernel, spec))
            return kernel.slot
        kernel = table.kernel(key, make, splice_now)
        if kernel.spliced and not kernel.asked:
            kernel.asked = True
            self.later(partial(_replace, kernel, make))
        return kernel.slot

    def acquire(self, keys: list[Any]) -> list[Kernel]:
        return table.acquire([k if self.later is not None or _region(k) is None else ("spliced", k) for k in keys])


def _region(key: Any) -> RegionSpec | None:
    """The region that a kernel's key is for."""
    return key[0] if isinstance(key, tuple) and key and isinstance(key[0], RegionSpec) else None


def _splice(kernel: Kernel, spec: RegionSpec) -> None:
    code = spliced(spec)
    if code is not None:
        table.put(kernel, code, ENTRY, True)


def _replace(kernel: Kernel, make: Callable[[], KernelSource]) -> None:
    try:
        table.replace(kernel, make)
    except (CompileError, Unsupported):
        return  # the spliced kernel stays


def spliced(spec: RegionSpec) -> loader.LoadedCode | None:
    """The code of a region's kernel, its function called ENTRY; None if it cannot be spliced, or not yet."""
    stencils = current()
    try:
        return loader.place(splice(spec, stencils), ENTRY) if stencils is not None else None
    except (Unsupported, CompileError):
        return None
