"""What a region is predicted to take: enough to choose between one thread and several, and to say so.

Per element of the region's space, with operands in the second-level cache: the larger of moving its bytes and running its instructions. Both figures were
measured on Zen 4 with AVX-512 over 20 regions of one to 18 ops (0.04 to 2.6 ns an element), which the prediction meets within a third (square roots and sums over columns take
twice as long).
"""
from __future__ import annotations

from functools import lru_cache

from bcvm.bytecode.dtypes import itemsize
from bcvm.compiler.kernels.plan import plan_of
from bcvm.compiler.region import RegionSpec
from bcvm.compiler.target import Target
from bcvm.errors import Unsupported

NS_PER_BYTE = 0.0093
NS_PER_INSTRUCTION = 0.17   # of a whole vector


@lru_cache(maxsize=4096)
def ns_per_element(spec: RegionSpec, target: Target) -> float:
    """Predicted ns per element of the space, one thread."""
    moved = sum(itemsize(i.dtype) for i in spec.inputs if not i.splat) + sum(itemsize(o.dtype) for o in spec.outputs if not o.reduced)
    try:
        plan = plan_of(spec, target)
        instructions = sum(p.cost for p in plan.passes) / plan.lanes
    except Unsupported:  # the kernel will say so
        instructions = float(len(spec.steps))
    return max(NS_PER_BYTE * moved, NS_PER_INSTRUCTION * instructions)
