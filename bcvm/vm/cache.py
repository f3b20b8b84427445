"""The native code of this process: what there is, and getting rid of it."""
from __future__ import annotations

import sys

from bcvm.vm.code_cache import cache
from bcvm.vm.compile_thread import thread


def info() -> dict[str, int]:
    """specialisations: how many are kept, with their `bytes` of code and the `calls` that ran in them; evicted: how many went;
    kernels, kernel_bytes: shared kernels now; kernels_spliced: of these; kernels_compiled: ever."""
    out = cache.info()
    native = sys.modules.get("bcvm.compiler.table")
    kernels = native.table.info() if native is not None else {"kernels": 0, "spliced": 0, "bytes": 0, "compiled": 0}
    return {**out, "kernels": kernels["kernels"], "kernels_spliced": kernels["spliced"], "kernel_bytes": kernels["bytes"], "kernels_compiled": kernels["compiled"]}


def clear() -> None:
    """Drop all native code; calls that are inside finish in it. The next calls are interpreted and compiled again."""
    thread.call(cache.clear)
