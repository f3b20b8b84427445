"""Bindings of Python's builtins and of the math module on Python numbers, tensors and aggregates."""
from __future__ import annotations

from typing import Any

from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import const, listed, sequence

_PYTHON = {"library": "python"}


def number(b: Any, v: Any) -> Any:
    """A Python number; of a tensor its only element."""
    if not b.is_tensor(v):
        return v
    if b.library != "mindspore" and b.rank(v):
        return b.unsupported("a Python number of a NumPy array that has a rank")  # NumPy deprecates, then refuses it
    return b.item(v)


@binds("builtins.len", **_PYTHON)
def _len(b: Any, v: Any) -> Any:
    if b.is_tensor(v):
        return b.size(v, 0) if b.rank(v) else b.unsupported("len() of a tensor of rank 0")
    return len(b.items(v)) if b.is_sequence(v) else b.unsupported("len() of another object")


@binds("builtins.abs", **_PYTHON)
def _abs(b: Any, v: Any) -> Any:
    return b.op("abs", v) if b.is_tensor(v) else b.scalar("abs", v)


def _extreme(name: str) -> None:
    def binding(b: Any, *values: Any, **options: Any) -> Any:
        items = listed(b, values[0], f"{name}()") if len(values) == 1 else list(values)
        if options or not items or any(b.is_tensor(v) or not b.is_scalar(v) for v in items):
            return b.unsupported(f"{name}() of other than Python numbers")
        if len({b.dtype(v) for v in items}) > 1:
            return b.unsupported(f"{name}() of int and float: the result's type depends on the values")
        out = items[0]
        for v in items[1:]:
            out = b.scalar(name, out, v)
        return out
    binds(f"builtins.{name}", **_PYTHON)(binding)


_extreme("min")
_extreme("max")


@binds("builtins.sum", **_PYTHON)
def _sum(b: Any, values: Any, start: Any = 0) -> Any:
    out = start
    for v in listed(b, values, "sum()"):
        out = b.op("add", out, v) if b.is_tensor(v) or b.is_tensor(out) else b.scalar("add", out, v)
    return out


def _conversion(name: str) -> None:
    def binding(b: Any, v: Any = 0) -> Any:
        value = number(b, v)
        if not b.is_scalar(value):
            return b.unsupported(f"{name}() of another object")
        return b.scalar(name, value)
    binds(f"builtins.{name}", **_PYTHON)(binding)


for _name in ("int", "float"):
    _conversion(_name)


@binds("builtins.bool", **_PYTHON)
def _bool(b: Any, v: Any = False) -> Any:
    if b.is_sequence(v):
        return bool(b.items(v))
    value = number(b, v)
    return b.scalar("bool", value) if b.is_scalar(value) else b.unsupported("bool() of another object")


@binds("builtins.tuple", **_PYTHON)
def _tuple(b: Any, v: Any = ()) -> Any:
    return b.tuple(sequence(b, v)) if isinstance(v, tuple) or b.is_sequence(v) else b.unsupported("tuple() of another iterable")


@binds("builtins.list", **_PYTHON)
def _list(b: Any, v: Any = ()) -> Any:
    return b.list(sequence(b, v)) if isinstance(v, tuple) or b.is_sequence(v) else b.unsupported("list() of another iterable")


@binds("builtins.zip", **_PYTHON)
def _zip(b: Any, *values: Any, **options: Any) -> Any:
    if options or not values or not all(b.is_sequence(v) for v in values):
        return b.unsupported("zip() of other than tuples and lists")
    return b.tuple([b.tuple(row) for row in zip(*(b.items(v) for v in values), strict=False)])


@binds("builtins.enumerate", **_PYTHON)
def _enumerate(b: Any, values: Any, start: Any = 0) -> Any:
    if not b.is_sequence(values):
        return b.unsupported("enumerate() of other than a tuple or list")
    return b.tuple([b.tuple([i, v]) for i, v in enumerate(b.items(values), const(b, start))])


@binds("builtins.reversed", **_PYTHON)
def _reversed(b: Any, values: Any) -> Any:
    return b.tuple(list(b.items(values))[::-1]) if b.is_sequence(values) else b.unsupported("reversed() of other than a tuple or list")


@binds("builtins.divmod", **_PYTHON)
def _divmod(b: Any, x: Any, y: Any) -> Any:
    if b.is_tensor(x) or b.is_tensor(y):
        return b.unsupported("divmod() of tensors")
    return b.tuple([b.scalar("floordiv", x, y), b.scalar("mod", x, y)])


@binds("builtins.pow", **_PYTHON)
def _pow(b: Any, x: Any, y: Any, mod: Any = None) -> Any:
    if mod is not None or b.is_tensor(x) or b.is_tensor(y):
        return b.unsupported("pow() of tensors or with a modulus")
    return b.scalar("pow", x, y)


@binds("builtins.round", **_PYTHON)
def _round(b: Any, v: Any, digits: Any = None) -> Any:
    return b.unsupported("round()")


@binds("builtins.print", **_PYTHON)
def _print(b: Any, *values: Any, **options: Any) -> Any:
    return b.unsupported("print()")


# -- math: on floats; an argument that is no Python number first becomes one

def _math(name: str, fn: str) -> None:
    def binding(b: Any, *values: Any) -> Any:
        numbers = [number(b, v) for v in values]
        if not all(b.is_scalar(v) for v in numbers):
            return b.unsupported(f"math.{name} of another object")
        return b.scalar(fn, *(b.scalar("float", v) for v in numbers))
    binds(f"math.{name}", **_PYTHON)(binding)


for _name in ("sqrt", "exp", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "isnan", "isinf", "isfinite"):
    _math(_name, _name)
_math("fabs", "abs")
_math("pow", "pow")


@binds("math.log", **_PYTHON)
def _log(b: Any, x: Any, base: Any = None) -> Any:
    top = b.scalar("log", b.scalar("float", number(b, x)))
    return top if base is None else b.scalar("truediv", top, b.scalar("log", b.scalar("float", number(b, base))))


def _rounding(name: str) -> None:
    def binding(b: Any, v: Any) -> Any:
        value = number(b, v)
        if not b.is_scalar(value):
            return b.unsupported(f"math.{name} of another object")
        if b.dtype(value) != "float":
            return b.scalar("int", value)
        return b.scalar("int", b.scalar(name, value))
    binds(f"math.{name}", **_PYTHON)(binding)


for _name in ("floor", "ceil", "trunc"):
    _rounding(_name)


@binds("math.prod", **_PYTHON)
def _prod(b: Any, values: Any, *, start: Any = 1) -> Any:
    out = start
    for v in listed(b, values, "math.prod"):
        out = b.scalar("mul", out, v)
    return out
