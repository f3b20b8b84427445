"""Region -> kernel source. `generate` is what the compiler calls."""
from __future__ import annotations

import hashlib

from bcvm.compiler.kernels.row import RowKernel
from bcvm.compiler.kernels.text import Module
from bcvm.compiler.region import KernelSource, RegionSpec
from bcvm.compiler.target import Target
from bcvm.compiler.worker import FULL, PLAIN
from bcvm.errors import Unsupported


def generate(spec: RegionSpec, target: Target) -> KernelSource:
    """LLVM IR of the kernel of a region, already vectorised for the target. Unsupported: a dtype, op or function without native form.

    Units lo..hi: rows for kind 'row' (the dims before the last, flattened), columns for kind 'column' (all dims but -2, flattened)."""
    key = hashlib.sha256(repr((spec, target)).encode()).hexdigest()[:20]
    name = f"k_{key}"
    module, effort = Module(target), FULL
    if spec.kind == "row":
        kernel = RowKernel(spec, target, module, name)
        kernel.write()
        effort = PLAIN if kernel.plain else FULL
    elif spec.kind == "column":
        from bcvm.compiler.kernels.column import ColumnKernel
        ColumnKernel(spec, target, module, name).write()
    else:
        raise Unsupported(f"no kernels of kind {spec.kind}")
    return KernelSource(name, module.text(), key, effort)
