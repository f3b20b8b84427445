"""A region as a kernel generator sees it: hashable content, so that equal regions share one kernel.

The iteration space has `rank` dims, the last one being the row. Values are numbered: inputs first, then one per step.
Every value is *full* (one element per point of the space) or *reduced* (one element per row).

kind 'row'     steps in order; a step whose op is a Reduction turns full values into a reduced one (over the row) and any step may mix full and
               reduced values: elementwise regions, sums over the last dim, softmax, norms. A row stays in L1 between passes.
kind 'column'  steps are full, except reductions, which run over dim -2 (the space is [..., R, C], reduced values and outputs have sizes [..., C]);
               steps after a reduction work on reduced values only.

Operands: each input and output is {ptr, strides[rank]}; a broadcast dim has stride 0 (a reduced output too: 0 along the row for
'row', 0 along dim -2 for 'column'). Strides are any, also negative; outputs are often but not always contiguous. sizes has `rank` words.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bcvm.compiler.worker import FULL


class RegionInput(NamedTuple):
    """splat: known to be one element for the whole row (stride 0 there)."""

    dtype: str
    splat: bool = False


@dataclass(frozen=True)
class Step:
    """One op. args: value numbers. attrs: the op's constant attributes as sorted items (reductions: without axis, keepdims). Operands
    have the computation dtype already (there are explicit 'cast' steps, attrs (('dtype', name),)); a step named 'const' has no args and attrs (('value', v),)."""

    op: str
    args: tuple[int, ...]
    dtype: str
    attrs: tuple[tuple[str, Any], ...] = ()
    minus_zero: bool = field(init=False, repr=False)  # 0.0 and -0.0 are equal, regions with them are not

    def __post_init__(self) -> None:
        object.__setattr__(self, "minus_zero", any(isinstance(v, (float, np.floating)) and v == 0 and math.copysign(1, v) < 0 for _, v in self.attrs))


class RegionOutput(NamedTuple):
    value: int
    dtype: str
    reduced: bool = False


@dataclass(frozen=True, repr=False)
class RegionSpec:
    """Hash and text are asked for many times: as a key of kernels, of what they cost, of files."""

    rank: int
    inputs: tuple[RegionInput, ...]
    steps: tuple[Step, ...]
    outputs: tuple[RegionOutput, ...]
    kind: str = "row"

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self._text

    @cached_property
    def _hash(self) -> int:
        return hash((self.rank, self.inputs, self.steps, self.outputs, self.kind))

    @cached_property
    def _text(self) -> str:
        return f"RegionSpec(rank={self.rank}, inputs={self.inputs}, steps={self.steps}, outputs={self.outputs}, kind={self.kind!r})"


@dataclass(frozen=True)
class KernelSource:
    """LLVM IR text of a module with one public function `name` of the kernel type (see abi). key: content hash. effort: see `worker`."""

    name: str
    ir: str
    key: str
    effort: int = FULL
