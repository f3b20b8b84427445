"""Random regions, arrays of every layout, and what NumPy makes of a region."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import region

from bcvm.bytecode import dtypes
from bcvm.compiler.region import RegionSpec
from bcvm.ops.definition import OPS, Reduction

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "int8", "uint8", "int16", "uint32", "uint64")
_COMMON = ("add", "mul", "sub", "maximum", "minimum")
_UNARY = {"f": ("neg", "abs", "floor", "rint", "relu", "sign"), "i": ("neg", "abs", "invert", "sign"), "u": ("invert", "square"), "b": ("logical_not",)}
_BINARY = {"f": (*_COMMON, "truediv", "fmax"), "i": (*_COMMON, "floordiv", "mod", "and_", "xor", "lshift", "rshift"),
           "u": (*_COMMON, "floordiv", "mod", "or_", "lshift", "rshift"), "b": ("logical_and", "logical_or", "logical_xor", "add", "mul")}
LENGTHS = (0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100, 257, 300)


def expected(spec: RegionSpec, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs, reduced ones with a dim of 1."""
    axis = -1 if spec.kind == "row" else -2
    values: list[Any] = list(arrays)
    with np.errstate(all="ignore"):
        for s in spec.steps:
            args, attrs = [values[a] for a in s.args], dict(s.attrs)
            if s.op == "const":
                out = np.array(attrs["value"], s.dtype)
            elif s.op == "cast":
                out = args[0].astype(attrs["dtype"])
            elif isinstance(OPS[s.op].form, Reduction):
                x = args[0]
                full = np.broadcast_to(x, np.broadcast_shapes(x.shape, arrays[0].shape))
                how = OPS[s.op].form.combine
                out = getattr(np, how)(full, axis=axis, keepdims=True, **({"dtype": s.dtype} if how in ("sum", "prod") else {}))
            else:
                out = OPS[s.op].reference(*args, **attrs)
            values.append(np.asarray(out).astype(s.dtype))
    rank = spec.rank
    one = (..., slice(0, 1)) if spec.kind == "row" else (..., slice(0, 1), slice(None))
    full = [np.broadcast_to(v, np.broadcast_shapes(v.shape, (1,) * rank)) for v in values]
    return [full[o.value][one] if o.reduced else full[o.value] for o in spec.outputs]


def random_spec(rng: np.random.Generator, rank: int, reductions: bool) -> RegionSpec:
    """Exact ops only: a sum is of whole numbers."""
    some = [str(d) for d in rng.choice(FLOATS + INTEGERS + ("bool",), 2)] + ["float32"]
    inputs = [(str(rng.choice(some)), bool(rng.random() < 0.15)) for _ in range(rng.integers(1, 5))]
    inputs[0] = (inputs[0][0], False)
    steps: list[tuple[Any, ...]] = []
    kinds, lane = [d for d, _ in inputs], [not s for _, s in inputs]

    def add(op: str, args: Sequence[int], dtype: str, *attrs: Any, scalar: bool = False) -> int:
        steps.append((op, tuple(args), dtype, *attrs))
        kinds.append(dtype)
        lane.append(not scalar and any(lane[a] for a in args))
        return len(kinds) - 1

    def pick(dtype: str) -> int:
        same = [n for n, d in enumerate(kinds) if d == dtype]
        if same and rng.random() < 0.85:
            return int(rng.choice(same))
        wanted = [n for n, d in enumerate(kinds) if not (dtypes.is_float(d) and dtypes.is_integer(dtype))]
        if rng.random() < 0.3 or not wanted:
            return add("const", (), dtype, ("value", True if dtype == "bool" else int(rng.integers(1, 5))))
        return add("cast", (int(rng.choice(wanted)),), dtype, ("dtype", dtype))

    for _ in range(rng.integers(1, 8)):
        dtype = str(rng.choice(some))
        kind = dtypes.kind(dtype)
        roll = rng.random()
        if reductions and roll < 0.35:
            a = pick(dtype)
            how = str(rng.choice(["sum", "max", "min", "any", "all", "argmax", "argmin", "prod"]))
            if how in ("sum", "prod") and kind == "f":
                how = "sum"
                low, high = add("const", (), dtype, ("value", -3)), add("const", (), dtype, ("value", 3))
                a = add("rint", (add("clip", (a, low, high), dtype),), dtype)
            out = {"any": "bool", "all": "bool", "argmax": "int64", "argmin": "int64"}.get(how, dtype)
            if how in ("sum", "prod") and kind == "b":
                out = "int64"
            if how in ("sum", "prod") and kind in "iu":
                out = "int64" if kind == "i" else "uint64"
            add(how, (a,), out, scalar=True)
        elif roll < 0.6:
            add(str(rng.choice(_UNARY[kind])), (pick(dtype),), dtype)
        elif roll < 0.7:
            c = add(str(rng.choice(["lt", "ge", "eq", "ne"])), (pick(dtype), pick(dtype)), "bool")
            add("where", (c, pick(dtype), pick(dtype)), dtype)
        else:
            add(str(rng.choice(_BINARY[kind])), (pick(dtype), pick(dtype)), dtype)
    scalars = [n for n in range(len(inputs), len(kinds)) if not lane[n] and steps[n - len(inputs)][0] != "const"]
    outputs: list[Any] = [len(kinds) - 1]
    if scalars and rng.random() < 0.7:
        outputs.append((int(rng.choice(scalars)), True))
    if rng.random() < 0.3:
        outputs.append(int(rng.integers(0, len(kinds))))
    return region(rank, inputs, steps, outputs)


def laid_out(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """An uninitialised array: contiguous, permuted, every second element, or backwards."""
    rank, how = len(shape), rng.integers(0, 4)
    if how == 1:
        order = rng.permutation(rank)
        return np.zeros([shape[d] for d in order], dtype).transpose(np.argsort(order))
    if how == 2:
        return np.zeros([2 * s for s in shape], dtype)[tuple(slice(None, None, 2) for _ in shape)]
    if how == 3:
        return np.zeros(shape, dtype)[tuple(slice(None, None, -1) if rng.random() < 0.5 else slice(None) for _ in shape)]
    return np.zeros(shape, dtype)


def fill(rng: np.random.Generator, a: np.ndarray) -> None:
    kind = dtypes.kind(a.dtype.name)
    if kind == "b":
        a[...] = rng.random(a.shape) < 0.5
    elif kind == "f":
        a[...] = np.round(rng.standard_normal(a.shape) * 3, 1)
        if rng.random() < 0.2 and a.size:
            a[rng.random(a.shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
    else:
        info = np.iinfo(a.dtype)
        a[...] = rng.integers(max(info.min, -9), 9, a.shape, dtype=a.dtype) if rng.random() < 0.7 else rng.integers(info.min, info.max, a.shape, dtype=a.dtype)


def operands(rng: np.random.Generator, spec: RegionSpec, sizes: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Inputs and outputs as the kernel gets them (all of the space's shape), and the outputs' own arrays."""
    inputs = []
    for k, i in enumerate(spec.inputs):
        shape = [1 if k and s and rng.random() < 0.2 else s for s in sizes]
        if i.splat:
            shape[-1] = min(1, shape[-1]) if sizes[-1] == 0 else 1
        a = laid_out(rng, shape, i.dtype)
        fill(rng, a)
        inputs.append(np.broadcast_to(a, sizes))
    axis = len(sizes) - (1 if spec.kind == "row" else 2)
    outputs = [laid_out(rng, [1 if o.reduced and d == axis else s for d, s in enumerate(sizes)], o.dtype) for o in spec.outputs]
    wide = [np.lib.stride_tricks.as_strided(o, sizes, [0 if s.reduced and d == axis else st for d, st in enumerate(o.strides)])
            for o, s in zip(outputs, spec.outputs, strict=True)]
    return inputs, wide, outputs
