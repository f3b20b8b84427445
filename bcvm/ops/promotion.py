"""Element types of operands and results, by a library's rules.

`result_dtype` answers, for an op and its operands, which dtype each operand is computed in and which dtype results. NumPy's
rules are those of the installed NumPy (NumPy 1 looks at the values of Python scalars, NumPy 2 does not); MindSpore's are like
torch's, measured on its PyNative mode. The library 'bcvm' (functions of bcvm.ops) follows NumPy.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bcvm.bytecode import dtypes
from bcvm.errors import Unsupported
from bcvm.ops.definition import Library, Op, Reduction

SCALARS = {"bool": bool, "int": int, "float": float}
_STRONG = {"int": "int64", "float": "float64"}
NUMPY_1 = int(np.__version__.split(".")[0]) < 2


class Operand(NamedTuple):
    """dtype: of a tensor, or 'int' | 'float' | 'pybool' for a Python scalar; value: of a scalar, where it is known."""

    dtype: str
    rank: int = 0
    value: Any = None

    @property
    def is_python(self) -> bool:
        return self.dtype in ("int", "float", "pybool")


class RangeCheck(NamedTuple):
    """The run-time Python scalar that is this operand must satisfy low <= value <= high (floats: or be infinite or NaN);
    otherwise the library would take another dtype, or raise."""

    operand: int
    low: float
    high: float


class Promotion(NamedTuple):
    """operands: the computation dtype of each. result: of the op. checks: what the dtypes depend on."""

    operands: tuple[str, ...]
    result: str
    checks: tuple[RangeCheck, ...] = ()


def result_dtype(library: str, op: Op, operands: Sequence[Operand | tuple[Any, ...]], attrs: dict[str, Any]) -> Promotion:
    """Computation dtypes, result dtype and checks; Unsupported where the library would refuse or depends on what is not known.

    An operand's dtype 'bool' is a bool tensor, 'pybool' a Python bool.
    """
    given = tuple([o if isinstance(o, Operand) else Operand(*o) for o in operands])
    if library == "mindspore":
        return _mindspore(op, given, attrs)
    return _numpy(op, given, attrs)


def _own(o: Operand, library: str = "numpy") -> str:
    """The dtype an operand has when nothing else decides."""
    if o.dtype == "pybool":
        return "bool"
    if library == "mindspore" and o.dtype == "float":
        return "float32"
    return _STRONG.get(o.dtype, o.dtype)


def _fixed(op: Op, given: tuple[Operand, ...], attrs: dict[str, Any], library: str) -> Promotion | None:
    """Rules that are the same everywhere."""
    own = tuple(_own(o, library) for o in given)
    if op.dtype == "explicit":
        result = str(attrs.get("dtype", "float16" if op.name == "cast_fp16" else own[0] if own else "float64"))
        return Promotion((result,) * len(own) if isinstance(op.form, Library) else own, result)
    if op.dtype == "same":
        return Promotion(own, own[0])
    if op.dtype == "index":
        return Promotion(own, "int64")
    if op.dtype == "bool" and isinstance(op.form, Reduction):
        return Promotion(("bool",) * len(own), "bool")
    return None


# -- NumPy

def _numpy(op: Op, given: tuple[Operand, ...], attrs: dict[str, Any]) -> Promotion:
    fixed = _fixed(op, given, attrs, "numpy")
    if fixed is not None:
        return fixed
    return _by_rule(op.name, op.dtype, op.eager if isinstance(op.eager, np.ufunc) else None, int(op.operands[:1] == ("condition",)), given)


@lru_cache(maxsize=1024)
def _by_rule(name: str, rule: str, ufunc: np.ufunc | None, skip: int, given: tuple[Operand, ...]) -> Promotion:
    """skip: operands in front that do not count."""
    if rule in ("sum", "mean"):
        own = _own(given[0])
        result = _reduced(rule, own)
        return Promotion((result if rule == "sum" else own,), result)
    values = given[skip:]
    checks = [check._replace(operand=check.operand + skip) for check in _range_checks(values)]
    names = _weak(values) if not NUMPY_1 else _by_value(values)
    if ufunc is None:
        common = _common(names)
        if rule == "float" and dtypes.kind(common) != "f":
            common = "float64"
        return Promotion(("bool",) * skip + (common,) * len(values), "bool" if rule == "bool" else common, tuple(checks))
    *inputs, result = _resolve(ufunc, names)
    if len(set(inputs)) > 1:
        raise Unsupported(f"{name} of {' and '.join(inputs)} has no common dtype")
    if NUMPY_1:
        _confirm(ufunc, values, result)
    return Promotion(tuple(inputs), result, tuple(checks))


def _confirm(ufunc: np.ufunc, given: tuple[Operand, ...], result: str) -> None:
    """NumPy 1 chooses the loop by what each operand can be cast to, which for large known scalars need not be the loop of their common dtype."""
    if not any(o.is_python and o.value is not None for o in given):
        return
    with np.errstate(all="ignore"):
        try:
            found = ufunc(*(o.value if o.is_python and o.value is not None else np.ones((1,) if o.rank else (), _own(o)) for o in given)).dtype.name
        except (TypeError, ValueError, OverflowError) as e:
            raise Unsupported(f"np.{ufunc.__name__}: {e}") from None
    if found != result:
        raise Unsupported(f"np.{ufunc.__name__} chooses {found} by the value of a Python scalar")


@lru_cache(None)
def _reduced(rule: str, dtype: str) -> str:
    x = np.ones(1, dtype)
    return str((np.sum(x) if rule == "sum" else np.mean(x)).dtype.name)


@lru_cache(None)
def _resolve(ufunc: np.ufunc, names: tuple[str, ...]) -> tuple[str, ...]:
    """Loop dtypes of a ufunc; 'int' and 'float' are Python scalars."""
    if all(n in SCALARS for n in names):
        names = tuple(_STRONG.get(n, n) for n in names)
    asked = tuple(SCALARS[n] if n in _STRONG else np.dtype(n) for n in names)
    try:
        if hasattr(ufunc, "resolve_dtypes"):
            found = ufunc.resolve_dtypes((*asked, None))
        else:
            found = _first_loop(ufunc, asked)
    except TypeError as e:
        raise Unsupported(f"np.{ufunc.__name__} of {', '.join(names)}: {e}") from None
    return tuple(np.dtype(d).name for d in found)


def _first_loop(ufunc: np.ufunc, asked: tuple[Any, ...]) -> tuple[Any, ...]:
    """NumPy before 1.25: the first loop that all operands cast to safely."""
    for loop in ufunc.types:
        inputs, output = loop.split("->")
        if "O" not in loop and all(np.can_cast(np.dtype(a), np.dtype(i)) for a, i in zip(asked, inputs, strict=False)):
            return tuple(np.dtype(c) for c in inputs + output)
    raise TypeError("no loop for these dtypes")


def _common(names: tuple[str, ...]) -> str:
    tensors = [n for n in names if n not in _STRONG]
    weak = [n for n in names if n in _STRONG]
    if not tensors:
        return "float64" if "float" in weak else "int64"
    common = np.result_type(*tensors)
    if "float" in weak and common.kind in "iub":
        return "float64"
    if "int" in weak and common.kind == "b":
        return "int64"
    return str(common.name)


def _weak(given: tuple[Operand, ...]) -> tuple[str, ...]:
    """NumPy 2: Python ints and floats adapt to tensors of any rank."""
    return tuple("bool" if o.dtype == "pybool" else o.dtype for o in given)


def _range_checks(given: tuple[Operand, ...]) -> list[RangeCheck]:
    """For each Python scalar: the range in which the dtype that a small value gives is right. A known value outside is handled by value
    in NumPy 1 and refused in NumPy 2, where NumPy raises or compares exactly."""
    tensors = [o.dtype for o in given if not o.is_python and (o.rank > 0 or not NUMPY_1)]
    if not tensors:
        return []
    target = np.result_type(*tensors)
    checks = []
    for i, o in enumerate(given):
        bounds = _bounds(target, o.dtype)
        if bounds is None:
            continue
        if o.value is None:
            checks.append(RangeCheck(i, *bounds))
        elif not NUMPY_1 and not bounds[0] <= o.value <= bounds[1]:
            raise Unsupported(f"the Python integer {o.value} is out of bounds for {target}")
    return checks


def _bounds(target: Any, scalar: str) -> tuple[float, float] | None:
    if scalar == "int" and target.kind in "iu":
        return None if target == np.int64 else (int(np.iinfo(target).min), int(np.iinfo(target).max))
    if not NUMPY_1 or target.kind != "f" or target.itemsize == 8:
        return None
    half = target.itemsize == 2
    if scalar == "int":
        return (-128, 255) if half else (-32768, 65535)
    if scalar == "float":
        return (-64999.0, 64999.0) if half else (-3.39e38, 3.39e38)
    return None


def _by_value(given: tuple[Operand, ...]) -> tuple[str, ...]:
    """NumPy 1: scalars and rank 0 give way to arrays of their kind, by value. Returns strong dtypes."""
    arrays = [o for o in given if o.rank > 0]
    if not arrays or len(arrays) == len(given):
        return tuple(_own(o) for o in given)
    common = np.result_type(*(o.dtype for o in arrays))
    out: list[Any] = [np.empty(1, common)]
    for o in given:
        if o.rank > 0:
            continue
        if o.is_python:
            out.append(o.value if o.value is not None else {"int": 1, "float": 1.5, "pybool": True}[o.dtype])
        elif np.can_cast(o.dtype, common) or "biuf".index(_category(np.dtype(o.dtype))) > "biuf".index(_category(common)):
            out.append(np.ones((), o.dtype) if not np.can_cast(o.dtype, common) else np.zeros((), "bool"))
        else:
            raise Unsupported(f"with NumPy {np.__version__} the dtype of {o.dtype} of rank 0 and {common} depends on the value")
    result = str(np.result_type(*out).name)
    return tuple(o.dtype if o.rank > 0 else result for o in given)


def _category(dtype: Any) -> str:
    return "i" if dtype.kind == "u" else str(dtype.kind)


# -- MindSpore

_SIGNED = ("int8", "int16", "int32", "int64")


def mindspore_promote(a: str, b: str) -> str:
    """The dtype of two tensors, of any rank."""
    if a == b:
        return a
    ka, kb = dtypes.kind(a), dtypes.kind(b)
    if "c" in (ka, kb):
        raise Unsupported("complex operands")
    if ka == "f" or kb == "f":
        if ka != kb:
            return a if ka == "f" else b
        return "float32" if dtypes.itemsize(a) == dtypes.itemsize(b) else max(a, b, key=dtypes.itemsize)
    if "b" in (ka, kb):
        return b if ka == "b" else a
    if ka == kb:
        return max(a, b, key=dtypes.itemsize)
    signed, unsigned = (a, b) if ka == "i" else (b, a)
    if dtypes.itemsize(unsigned) > 1:
        raise Unsupported(f"MindSpore has no common dtype of {a} and {b}")
    return signed if dtypes.itemsize(signed) > 1 else "int16"


def _mindspore_common(given: Sequence[Operand]) -> str:
    tensors = [o.dtype for o in given if not o.is_python]
    python = {o.dtype for o in given if o.is_python}
    if not tensors:
        return "float32" if "float" in python else "int64" if "int" in python else "bool"
    common = tensors[0]
    for t in tensors[1:]:
        common = mindspore_promote(common, t)
    if "float" in python and dtypes.kind(common) != "f":
        return "float32"
    if "int" in python and common == "bool":
        return "int64"
    return common


def _mindspore(op: Op, given: tuple[Operand, ...], attrs: dict[str, Any]) -> Promotion:
    fixed = _fixed(op, given, attrs, "mindspore")
    if fixed is not None:
        return fixed
    skip = 1 if op.operands[:1] == ("condition",) else 0
    common = _mindspore_common(given[skip:])
    kind = dtypes.kind(common)
    if op.name in ("and_", "or_", "xor", "invert", "lshift", "rshift") and kind == "f":
        raise Unsupported(f"MindSpore's {op.name} takes no {common}")
    if op.name in ("mul", "truediv") and len({o.dtype for o in given}) > 1 and len({bool(o.rank) for o in given if not o.is_python}) > 1:
        raise Unsupported(f"MindSpore's {op.name} of another dtype's tensor of rank 0 has rules of its own")
    if op.dtype == "sum":
        result = common if kind == "f" else "int64"
        return Promotion((result,), result)
    if op.dtype == "mean":
        if kind != "f":
            raise Unsupported(f"the mean of {common}")
        return Promotion((common,), common)
    if op.dtype == "float" and kind != "f":
        if op.name not in ("truediv", "sqrt", "reciprocal"):
            raise Unsupported(f"MindSpore's {op.name} takes no {common}")
        common = "float32"
    if op.dtype == "bool" and op.name.startswith("logical"):
        return Promotion(("bool",) * len(given), "bool")
    checks = []
    for i, o in enumerate(given):
        if o.dtype == "int" and dtypes.is_integer(common) and common != "int64":
            info = np.iinfo(common)
            if o.value is None:
                checks.append(RangeCheck(i, int(info.min), int(info.max)))
            elif not info.min <= o.value <= info.max:
                raise Unsupported(f"the Python integer {o.value} is out of bounds for {common}")
    return Promotion(("bool",) * skip + (common,) * (len(given) - skip), "bool" if op.dtype == "bool" else common, tuple(checks))


__all__ = ["Operand", "Promotion", "RangeCheck", "mindspore_promote", "result_dtype"]
