"""What each region of a specialisation is predicted to cost for given arguments, and what its kernel takes, measured on operands of those sizes."""
from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bcvm.compiler.driver.kernels_call import LONG_NS
from bcvm.compiler.kernels.cost import ns_per_element
from bcvm.compiler.regions import RegionCall, dims_of
from bcvm.compiler.runtime import runtime
from bcvm.errors import Unsupported
from bcvm.shapes.dim import Atom, Dim
from bcvm.specialise.ssa import Graph, Path
from bcvm.specialise.types import Scalar, Tensor

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
MEASURED_BYTES = 256 << 20  # regions that move more are not measured


@dataclass(frozen=True)
class Cost:
    """taken: 'fused' or 'split'; '' where nothing is predicted, as sizes that are known only inside the call. predicted, measured: microseconds on one thread; None: not known.
    threads: whether several may share it."""

    taken: str
    predicted: float | None = None
    measured: float | None = None
    threads: bool = False

    def __str__(self) -> str:
        if not self.taken:
            return "not predicted"
        out = f"{self.taken}, predicted {self.predicted:.3g} us"
        if self.measured is not None:
            out += f", measured {self.measured:.3g} us on one thread"
        return out + (", shared by threads" if self.threads else "")


def region_costs(graph: Graph, regions: Sequence[Any], slots: dict[Any, int], target: Any, values: Sequence[Any]) -> list[Cost]:
    """One for each region. slots: of kernels by (spec, target). values: the call's arguments, keywords last."""
    known: dict[Atom, int] = {}
    for i in graph.inputs:
        _bind(i.path, i.value.type, i.value.dim, values, known)

    def size(d: Dim) -> int:
        return d.evaluate(value_of)

    def value_of(atom: Atom) -> int:
        if atom in known:
            return known[atom]
        raise Unsupported(f"{atom} is not known before the call")

    return [_cost(r, size, slots, target) if isinstance(r, RegionCall) else Cost("") for r in regions]


def _bind(path: Path, type: Any, dim: Dim | None, values: Sequence[Any], known: dict[Atom, int]) -> None:
    """Sizes and ints that an input gives its dims."""
    try:
        obj = read(path, values)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return
    pairs = zip(type.dims, obj.shape, strict=True) if isinstance(type, Tensor) else [(dim, obj)] if isinstance(type, Scalar) and dim is not None else []
    for d, n in pairs:
        atoms = d.atoms()
        if len(atoms) == 1 and not isinstance(n, float):
            known.setdefault(next(iter(atoms)), int(n))


def read(path: Path, values: Sequence[Any]) -> Any:
    """The object at a path now; raises as Python does where there is none."""
    kind, *rest = path.root
    if kind == "arg":
        obj = values[rest[0]]
    elif kind == "closure":
        obj = rest[0].cell_contents
    elif kind == "global":
        names, builtins, name = rest
        obj = names[name] if name in names else builtins[name]
    else:
        obj = rest[0]
    for step, key in path.steps:
        obj = getattr(obj, key) if step == "attr" else obj[key]
    return obj


def _cost(region: RegionCall, size: Any, slots: dict[Any, int], target: Any) -> Cost:
    try:
        fused = all(size(a) == size(b) for a, b in region.assume)
        parts = (region,) if fused else region.split
        predicted = sum(_predict(p, size, target) for p in parts)
        times = [_measure(p, size, slots.get((p.spec, target))) for p in parts]
    except Unsupported:
        return Cost("")
    measured = None if None in times else sum(t for t in times if t is not None)
    return Cost("fused" if fused else "split", predicted, measured, any(_predict(p, size, target) * 1e3 > LONG_NS for p in parts))


def _predict(region: RegionCall, size: Any, target: Any) -> float:
    return math.prod(map(size, region.space)) * ns_per_element(region.spec, target) * 1e-3


def _measure(region: RegionCall, size: Any, slot: int | None) -> float | None:
    """Microseconds of the kernel, the best of several."""
    sizes = [size(d) for d in region.space]
    address = runtime().slots.get(slot) if slot is not None else 0
    try:
        dtypes = [np.dtype(i.dtype) for i in region.spec.inputs], [np.dtype(o.dtype) for o in region.spec.outputs]
    except TypeError:  # bfloat16
        return None
    if not address or 0 in sizes or math.prod(sizes) * sum(t.itemsize for ts in dtypes for t in ts) > MEASURED_BYTES:
        return None
    arrays = [_arranged(np.broadcast_to(_filled([size(d) for d in dims_of(v)] if isinstance(v.type, Tensor) else [], t), sizes), region)
              for v, t in zip(region.inputs, dtypes[0], strict=True)]
    outputs = []
    for level, t in zip(region.levels, dtypes[1], strict=True):
        own = [1 if level != "full" and region.reduce is not None and region.reduce[0] <= i < region.reduce[1] else n for i, n in enumerate(sizes)]
        outputs.append((np.empty(own, t), own))
    arrays += [_arranged(np.lib.stride_tricks.as_strided(o, sizes, [0 if n == 1 else s for n, s in zip(own, o.strides, strict=True)]), region, copy=False)
               for o, own in outputs]
    extents = list(arrays[0].shape)
    operands = np.array([w for a in arrays for w in (a.__array_interface__["data"][0], *a.strides)], np.int64)
    words = np.array(extents, np.int64)
    reduces = region.reduce is not None
    best = math.inf
    with runtime().context() as ctx:
        if not reduces and region.spec.rank > 1 and region.spec.kind == "row":
            collapse = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(runtime().address("collapse"))
            collapse(operands.ctypes.data, words.ctypes.data, len(arrays), region.spec.rank)
        kernel = _KERNEL(address)
        started = time.perf_counter()
        while best == math.inf or time.perf_counter() - started < 2e-3:
            begin = time.perf_counter()
            failed = kernel(ctx, operands.ctypes.data, words.ctypes.data, 0, -1)
            best = min(best, time.perf_counter() - begin)
            if failed:
                return None
    return best * 1e6


def _filled(sizes: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Small numbers above 0: nothing here is slow for its value."""
    count = math.prod(sizes)
    return (np.arange(count) % 7 * 0.25 + 0.5).astype(dtype).reshape(sizes)


def _arranged(a: np.ndarray[Any, Any], region: RegionCall, copy: bool = True) -> np.ndarray[Any, Any]:
    """An operand over the space as the kernel sees it: at least one dim, reduced axes merged, in the kernel's order."""
    if region.reduce is None:
        return a if a.ndim else a.reshape(1)
    first, last = region.reduce
    if last - first > 1 and copy and any(a.strides[first:last]):
        a = np.ascontiguousarray(a)
    shape = [*a.shape[:first], math.prod(a.shape[first:last]), *a.shape[last:]]
    strides = [*a.strides[:first], a.strides[last - 1] if last > first else 0, *a.strides[last:]]
    merged = np.lib.stride_tricks.as_strided(a, shape, strides)
    return merged if last == a.ndim else np.moveaxis(merged, first, -2)
