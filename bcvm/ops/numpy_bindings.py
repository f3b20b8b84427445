"""Bindings of NumPy's functions. What a binding does not cover (`where=`, `casting=`, ...) raises Unsupported: the call runs in the interpreter."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bcvm.bytecode.dtypes import is_float, kind
from bcvm.ops.arguments import pad_pairs
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import axes, const, dtype_name, flag, listed, none, resolved, sequence, sizes, squeeze, taken
from bcvm.ops.promotion import NUMPY_1
from bcvm.shapes.dim import Dim

NOVALUE = object()  # an argument that was not given


def unused(b: Any, **given: Any) -> None:
    """Options without a native form must have their defaults (None or not given)."""
    for name, value in given.items():
        if value is not NOVALUE and not none(b, value):
            b.unsupported(f"NumPy's argument {name}=")


def given(b: Any, out: Any) -> bool:
    """Whether there is an array to write into."""
    return out is not NOVALUE and not none(b, out)


def into(b: Any, out: Any, value: Any, exact: bool = True) -> Any:
    """The result, or the array `out` after the result was written into it. exact: it has the result's dtype and sizes; otherwise the result is broadcast
    and cast as a ufunc does."""
    if not given(b, out):
        return value
    if b.is_sequence(out):  # a ufunc takes a tuple of one
        items = sequence(b, out)
        if len(items) != 1:
            return b.unsupported(f"out= of {len(items)} arrays")
        return into(b, items[0], value, exact)
    return b.write(out, value, exact)


def as_tensor(b: Any, v: Any) -> Any:
    """A tensor argument; a Python scalar becomes one of rank 0 with the library's dtype for it."""
    if b.is_tensor(v):
        return v
    if not isinstance(v, (bool, int, float)) and b.is_sequence(v):
        return b.unsupported("a list or tuple in place of an array")
    return b.cast(v, {"int": "int64", "float": "float64"}.get(b.dtype(v), "bool"))


def arrays(b: Any, v: Any) -> list[Any]:
    """The arrays of a list or tuple argument. Of one array NumPy takes the rows."""
    return [as_tensor(b, i) for i in listed(b, v, "a join")]


# -- ufuncs

def _operator_on_scalars(b: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """np.add(1, 2) gives a NumPy scalar, not a Python number."""
    if not any(b.is_tensor(o) for o in operands):
        operands = (as_tensor(b, operands[0]), *operands[1:])
    return b.op(name, *operands)


def _ufunc(np_names: tuple[str, ...], op: str, n: int) -> None:
    def binding(b: Any, *operands: Any, out: Any = None, where: Any = True, dtype: Any = None, **more: Any) -> Any:
        if len(operands) == n + 1 and not given(b, out):
            *operands, out = operands  # type: ignore[assignment]
        if len(operands) != n or more:
            return b.unsupported(f"np.{np_names[0]} with {len(operands)} positional arguments" + "".join(f", {k}=" for k in more))
        unused(b, dtype=dtype)
        if const(b, where) is not True:
            b.unsupported("a ufunc with where=")
        rule: Callable[..., Any] = UFUNC_RULES.get(op, _operator_on_scalars)
        return into(b, out, rule(b, op, tuple(operands)), exact=op == "matmul")
    binds(*(f"numpy.{name}" for name in np_names))(binding)


def _pow(b: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """Negative powers of integers are an error of NumPy: the exponent must be a known constant or floating point."""
    x, y = operands
    integers = [v for v in operands if b.is_tensor(v) and not is_float(b.dtype(v)) or not b.is_tensor(v) and b.dtype(v) in ("int", "bool")]
    if len(integers) == 2 and (b.is_tensor(y) and kind(b.dtype(y)) != "u" or not b.is_tensor(y) and const(b, y) < 0):
        return b.unsupported("an integer power whose exponent may be negative")
    if NUMPY_1 and b.is_tensor(x) and not b.rank(x) and not b.is_tensor(y):
        return b.unsupported("a power of rank 0: before NumPy 2 an array keeps its dtype and a number does not")
    if b.is_tensor(x) and is_float(b.dtype(x)) and not b.is_tensor(y) and b.is_scalar(y):
        simple = _simple_power(b, x, y)
        if simple is not None:
            return simple
    return _operator_on_scalars(b, name, operands)


def _simple_power(b: Any, x: Any, y: Any) -> Any:
    """Powers that NumPy's operator and ufunc compute by one multiplication, square root or division."""
    value = y if isinstance(y, (int, float)) else getattr(y, "value", None)
    if value == 2:
        return b.op("square", x)
    if value == 0.5:
        return b.op("sqrt", x)
    return None


def _float_in_numpy(b: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """Rounding keeps integers as they are since NumPy 2.1; before, they became floating point: only floating point is taken."""
    (x,) = operands
    if b.is_tensor(x) and not is_float(b.dtype(x)):
        return b.unsupported(f"np.{name} of integers")
    return _operator_on_scalars(b, name, operands)


def _no_bool(b: Any, name: str, operands: tuple[Any, ...]) -> Any:
    if all((b.dtype(o) == "bool") for o in operands):
        return b.unsupported(f"np.{name} of bools is an error")
    return _operator_on_scalars(b, name, operands)


def _real(b: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """The reciprocal of an integer is cut to an integer in NumPy."""
    if not (is_float(b.dtype(operands[0])) if b.is_tensor(operands[0]) else b.dtype(operands[0]) == "float"):
        return b.unsupported("np.reciprocal of integers")
    return _operator_on_scalars(b, name, operands)


UFUNC_RULES: dict[str, Callable[..., Any]] = {"pow": _pow, "floor": _float_in_numpy, "ceil": _float_in_numpy, "trunc": _float_in_numpy, "rint": _float_in_numpy,
                                              "sub": _no_bool, "neg": _no_bool}

_names: tuple[str, ...]
for _names, _op in (
        (("add",), "add"), (("subtract",), "sub"), (("multiply",), "mul"), (("true_divide", "divide"), "truediv"), (("floor_divide",), "floordiv"),
        (("remainder", "mod"), "mod"), (("power", "pow"), "pow"), (("maximum",), "maximum"), (("minimum",), "minimum"), (("fmax",), "fmax"),
        (("fmin",), "fmin"),
        (("equal",), "eq"), (("not_equal",), "ne"), (("less",), "lt"), (("less_equal",), "le"), (("greater",), "gt"), (("greater_equal",), "ge"),
        (("logical_and",), "logical_and"), (("logical_or",), "logical_or"), (("logical_xor",), "logical_xor"), (("bitwise_and",), "and_"),
        (("bitwise_or",), "or_"),
        (("bitwise_xor",), "xor"), (("left_shift", "bitwise_left_shift"), "lshift"), (("right_shift", "bitwise_right_shift"), "rshift"),
        (("copysign",), "copysign"),
        (("matmul",), "matmul")):
    _ufunc(_names, _op, 2)
for _names, _op in (
        (("negative",), "neg"), (("positive",), "pos"), (("absolute", "abs"), "abs"), (("sqrt",), "sqrt"), (("square",), "square"),
        (("reciprocal",), "reciprocal"),
        (("exp",), "exp"), (("expm1",), "expm1"), (("exp2",), "exp2"), (("log",), "log"), (("log1p",), "log1p"), (("log2",), "log2"), (("log10",), "log10"),
        (("sin",), "sin"), (("cos",), "cos"), (("tan",), "tan"), (("sinh",), "sinh"), (("cosh",), "cosh"), (("tanh",), "tanh"), (("arctan", "atan"), "arctan"),
        (("floor",), "floor"), (("ceil",), "ceil"), (("trunc",), "trunc"), (("rint",), "rint"), (("sign",), "sign"), (("logical_not",), "logical_not"),
        (("invert", "bitwise_not", "bitwise_invert"), "invert"), (("isnan",), "isnan"), (("isinf",), "isinf"), (("isfinite",), "isfinite")):
    _ufunc(_names, _op, 1)
UFUNC_RULES["reciprocal"] = _real


def _operator(name: str) -> None:
    rule = UFUNC_RULES.get(name)
    if rule is not None:
        binds(method=f"operator {name}", library="numpy")(lambda b, *operands: rule(b, name, operands))


for _name in ("pow", "sub", "neg"):
    _operator(_name)

# -- reductions, as functions and as methods


def _reduction(name: str, *aliases: str) -> None:
    def binding(b: Any, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = NOVALUE,
                where: Any = NOVALUE) -> Any:
        unused(b, initial=initial, where=where)
        x = as_tensor(b, a)
        named = None if none(b, dtype) else dtype_name(b, dtype)
        if named is not None:
            x = b.cast(x, named)
        if name == "mean" and named is not None and not is_float(named):
            return b.unsupported(f"np.mean in {named}")
        made = b.op(name, x, axis=axes(b, axis, b.rank(x)), keepdims=_keep(b, keepdims))
        return into(b, out, made if named is None else b.cast(made, named))  # sums of small integers wrap: as if they had been made in them

    def plain(b: Any, a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = NOVALUE, where: Any = NOVALUE) -> Any:
        return binding(b, a, axis, None, out, keepdims, initial, where)
    binds(*(f"numpy.{n}" for n in (name, *aliases)), method=name)(binding if name in ("sum", "prod", "mean") else plain)


def _keep(b: Any, keepdims: Any) -> bool:
    return keepdims is not NOVALUE and flag(b, keepdims)


_reduction("sum")
_reduction("prod")
_reduction("mean")
_reduction("max", "amax")
_reduction("min", "amin")
_reduction("any")
_reduction("all")


def _spread(name: str) -> None:
    def binding(b: Any, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, **more: Any) -> Any:
        unused(b, dtype=dtype, **more)
        x = as_tensor(b, a)
        return into(b, out, b.op(name, x, axis=axes(b, axis, b.rank(x)), ddof=const(b, ddof), keepdims=_keep(b, keepdims)))
    binds(f"numpy.{name}", method=name)(binding)


_spread("var")
_spread("std")


def _index(name: str) -> None:
    def binding(b: Any, a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        x = as_tensor(b, a)
        return into(b, out, b.op(name, x, axis=axes(b, axis, b.rank(x)), keepdims=_keep(b, keepdims)))
    binds(f"numpy.{name}", method=name)(binding)


_index("argmax")
_index("argmin")


@binds("numpy.linalg.norm")
def _norm(b: Any, x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """The Euclidean norm: without `ord`, or ord=2 along one axis."""
    x = as_tensor(b, x)
    on = axes(b, axis, b.rank(x))
    if not is_float(b.dtype(x)) or not none(b, ord) and (const(b, ord) != 2 or len(on) != 1):
        return b.unsupported("np.linalg.norm other than the Euclidean norm of floating point")
    if len(on) > 2 and not none(b, axis):
        return b.unsupported("np.linalg.norm over more than two axes")
    return b.op("sqrt", b.op("sum", b.op("mul", x, x), axis=on, keepdims=flag(b, keepdims)))


# -- linear algebra

@binds("numpy.dot", method="dot")
def _dot(b: Any, a: Any, other: Any, out: Any = None) -> Any:
    unused(b, out=out)
    a, other = as_tensor(b, a), as_tensor(b, other)
    if b.rank(a) == 0 or not 0 < b.rank(other) <= 2:
        return b.unsupported("np.dot with an operand of rank 0 or a second one of rank 3 or more")
    return b.op("matmul", a, other)


@binds("numpy.outer")
def _outer(b: Any, a: Any, other: Any, out: Any = None) -> Any:
    unused(b, out=out)
    return b.op("mul", b.op("expand_dims", flat(b, a), axis=(1,)), b.op("expand_dims", flat(b, other), axis=(0,)))


@binds("numpy.einsum")
def _einsum(b: Any, subscripts: Any, *operands: Any, **options: Any) -> Any:
    """Two operands whose shared index is summed, batch indices first: what matmul is."""
    text = const(b, subscripts).replace(" ", "")
    if options or len(operands) != 2 or "->" not in text or "." in text:
        return b.unsupported("np.einsum other than a product of two operands")
    terms, out = text.split("->")
    left, right = terms.split(",")
    batch = "".join(i for i in left if i in right and i in out)
    summed = "".join(i for i in left if i in right and i not in out)
    rows, columns = "".join(i for i in left if i not in right), "".join(i for i in right if i not in left)
    if any(len(set(t)) != len(t) for t in (left, right,
                                           out)) or len(summed) != 1 or len(rows) > 1 or len(columns) > 1 or set(out) != set(batch + rows + columns):
        return b.unsupported(f"np.einsum {text}")
    x = b.transpose(operands[0], tuple(left.index(i) for i in batch + rows + summed))
    y = b.transpose(operands[1], tuple(right.index(i) for i in batch + summed + columns))
    if batch and not rows:
        x = b.op("expand_dims", x, axis=(len(batch),))
    if batch and not columns:
        y = b.op("expand_dims", y, axis=(len(batch) + 1,))
    z = b.op("matmul", x, y)
    if batch and not rows:
        z = b.op("squeeze", z, axis=(len(batch),))
    if batch and not columns:
        z = b.op("squeeze", z, axis=(b.rank(z) - 1,))
    have = batch + rows + columns
    return z if have == out else b.transpose(z, tuple(have.index(i) for i in out))


# -- joins and splits

@binds("numpy.concatenate", "numpy.concat")
def _concatenate(b: Any, tensors: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    unused(b, dtype=dtype)
    items = arrays(b, tensors)
    if none(b, axis):
        if not all(map(b.is_tensor, sequence(b, tensors))):
            return b.unsupported("np.concatenate of numbers")  # which do not decide the dtype
        items, axis = [flat(b, v) for v in items], 0
    return into(b, out, b.op("concat", *items, axis=b.axis(axis, b.rank(items[0]))))


@binds("numpy.stack")
def _stack(b: Any, tensors: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = "same_kind") -> Any:
    unused(b, dtype=dtype)
    items = arrays(b, tensors)
    return into(b, out, b.op("stack", *items, axis=b.axis(axis, b.rank(items[0]) + 1)))


def _raised(b: Any, x: Any, rank: int) -> Any:
    return b.op("expand_dims", x, axis=(0,)) if b.rank(x) < rank else x


@binds("numpy.vstack", "numpy.row_stack")
def _vstack(b: Any, tup: Any) -> Any:
    items = [_raised(b, _raised(b, v, 1), 2) for v in arrays(b, tup)]
    return b.op("concat", *items, axis=0)


@binds("numpy.hstack")
def _hstack(b: Any, tup: Any) -> Any:
    items = [_raised(b, v, 1) for v in arrays(b, tup)]
    return b.op("concat", *items, axis=0 if b.rank(items[0]) == 1 else 1)


def parts(b: Any, x: Any, bounds: list[Any], axis: int) -> list[Any]:
    """Slices of x along an axis between these bounds (dims); the first starts at 0, None is the end."""
    out, start = [], Dim.const(0)
    whole = ("slice", None, None, None)
    for stop in bounds:
        out.append(b.slice(x, [whole] * axis + [("slice", b.int_of(start), None if stop is None else b.int_of(stop), None)]))
        start = stop if stop is not None else start
    return out


def equal_parts(b: Any, x: Any, n: int, axis: int) -> list[Any]:
    """n slices of equal size; the size must be divisible."""
    size = b.dims(x)[axis]
    b.require("eq", size % n, Dim.const(0), "split does not result in an equal division")
    each = size // n
    return parts(b, x, [each * (i + 1) for i in range(n)], axis)


@binds("numpy.split")
def _split(b: Any, ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    on = b.axis(axis, b.rank(ary))
    if isinstance(indices_or_sections, int) or not b.is_sequence(indices_or_sections):
        return b.list(equal_parts(b, ary, const(b, indices_or_sections), on))
    return b.list(parts(b, ary, [*sizes(b, sequence(b, indices_or_sections)), None], on))


# -- shapes

def flat(b: Any, a: Any, contiguous: bool = False) -> Any:
    x = as_tensor(b, a)
    total = Dim.const(1)
    for d in b.dims(x):
        total = total * d
    return x if b.rank(x) == 1 and not contiguous else b.reshape(x, [total], contiguous)


@binds("numpy.transpose", method="transpose")
def _transpose(b: Any, a: Any, *axes_given: Any, axes: Any = None) -> Any:
    a = as_tensor(b, a)
    rank = b.rank(a)
    given = list(axes_given) or [axes]
    if len(given) == 1:
        given = list(range(rank))[::-1] if none(b, given[0]) else sequence(b, given[0])
    return b.transpose(a, tuple(b.axis(p, rank) for p in given))


@binds("numpy.swapaxes", method="swapaxes")
def _swapaxes(b: Any, a: Any, axis1: Any, axis2: Any) -> Any:
    rank = b.rank(a)
    i, j = b.axis(axis1, rank), b.axis(axis2, rank)
    perm = list(range(rank))
    perm[i], perm[j] = j, i
    return b.transpose(a, tuple(perm))


@binds("numpy.moveaxis")
def _moveaxis(b: Any, a: Any, source: Any, destination: Any) -> Any:
    rank = b.rank(a)
    src, dst = [b.axis(v, rank) for v in sequence(b, source)], [b.axis(v, rank) for v in sequence(b, destination)]
    if len(src) != len(dst):
        return b.unsupported("np.moveaxis with unequal source and destination")
    order = [i for i in range(rank) if i not in src]
    for d, s in sorted(zip(dst, src, strict=False)):
        order.insert(d, s)
    return b.transpose(a, tuple(order))


@binds("numpy.reshape")
def _reshape(b: Any, a: Any, shape: Any = None, order: Any = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    unused(b, copy=copy)
    if const(b, order) != "C":
        return b.unsupported("reshape with order other than C")
    x = as_tensor(b, a)
    return reshaped(b, x, sequence(b, newshape if none(b, shape) else shape))


def reshaped(b: Any, x: Any, items: list[Any]) -> Any:
    """A NumPy scalar that keeps its rank stays one, as with transpose."""
    return b.reshape(x, resolved(b, x, items)) if items or b.rank(x) else b.transpose(x, ())


@binds("numpy.ravel", method="ravel")
def _ravel(b: Any, a: Any, order: Any = "C") -> Any:
    return flat(b, a, contiguous=True) if const(b, order) == "C" else b.unsupported("ravel with order other than C")


@binds("numpy.expand_dims")
def _expand_dims(b: Any, a: Any, axis: Any) -> Any:
    items = sequence(b, axis)
    x = as_tensor(b, a)
    return b.op("expand_dims", x, axis=tuple(sorted(b.axis(v, b.rank(x) + len(items)) for v in items)))


binds("numpy.squeeze", method="squeeze")(lambda b, a, axis=None: squeeze(b, as_tensor(b, a), axis))


@binds("numpy.broadcast_to")
def _broadcast_to(b: Any, array: Any, shape: Any, subok: Any = False) -> Any:
    return b.op("broadcast_to", as_tensor(b, array), dims=tuple(sizes(b, sequence(b, shape))))


@binds("numpy.flip")
def _flip(b: Any, m: Any, axis: Any = None) -> Any:
    on = axes(b, axis, b.rank(m))
    return b.slice(m, [("slice", None, None, -1 if i in on else None) for i in range(b.rank(m))])


@binds("numpy.repeat", method="repeat")
def _repeat(b: Any, a: Any, repeats: Any, axis: Any = None) -> Any:
    """The same number for every element: a broadcast and a reshape."""
    x, on = (flat(b, a), 0) if none(b, axis) else (a, b.axis(axis, b.rank(a)))
    if b.is_tensor(repeats) or b.is_sequence(repeats):
        return b.unsupported("np.repeat with a number for each element")
    n = sizes(b, [repeats])[0]
    b.require("le", Dim.const(0), n, "repeats may not be negative")
    dims = list(b.dims(x))
    wide = b.op("broadcast_to", b.op("expand_dims", x, axis=(on + 1,)), dims=tuple(dims[:on + 1] + [n] + dims[on + 1:]))
    return b.reshape(b.copy(wide), dims[:on] + [dims[on] * n] + dims[on + 1:])


@binds("numpy.tile")
def _tile(b: Any, A: Any, reps: Any) -> Any:
    return tiled(b, as_tensor(b, A), sizes(b, sequence(b, reps)))


def tiled(b: Any, x: Any, reps: list[Any]) -> Any:
    """x repeated as a whole along each axis."""
    rank = max(b.rank(x), len(reps))
    dims = [Dim.const(1)] * (rank - b.rank(x)) + list(b.dims(x))
    reps = [Dim.const(1)] * (rank - len(reps)) + reps
    x = b.reshape(x, [v for d in dims for v in (Dim.const(1), d)])
    wide = b.op("broadcast_to", x, dims=tuple(v for r, d in zip(reps, dims, strict=False) for v in (r, d)))
    return b.reshape(b.copy(wide), [r * d for r, d in zip(reps, dims, strict=False)])


# -- selection

@binds("numpy.where")
def _where(b: Any, condition: Any, x: Any = NOVALUE, y: Any = NOVALUE) -> Any:
    if x is NOVALUE or y is NOVALUE:
        return b.unsupported("np.where with one argument: the result's sizes depend on values")
    c = as_tensor(b, condition)
    if b.dtype(c) != "bool":
        c = b.op("ne", c, 0)
    if not b.is_tensor(x) and not b.is_tensor(y):
        x = as_tensor(b, x)
    out = b.op("where", c, x, y)
    return out if b.rank(out) else b.reshape(out, ())  # an array where a ufunc gives a number


@binds("numpy.clip", method="clip")
def clip(b: Any, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None, **more: Any) -> Any:
    """Bounds may be None; NaN passes. All three decide the dtype."""
    unused(b, **more)
    low, high = min if none(b, a_min) else a_min, max if none(b, a_max) else a_max
    y = as_tensor(b, a)
    if none(b, low) and none(b, high):
        return b.unsupported("np.clip without bounds")
    if b.is_tensor(high) and not none(b, low) and not b.is_tensor(low):
        y = b.cast(y, b.dtype(b.op("minimum", y, high)))
    if not none(b, low):
        y = b.op("maximum", y, low)
    return into(b, out, y if none(b, high) else b.op("minimum", y, high), exact=False)


@binds("numpy.take", method="take")
def _take(b: Any, a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
    if const(b, mode) != "raise":
        return b.unsupported("np.take with a mode")
    x, on = (flat(b, a), 0) if none(b, axis) else (a, b.axis(axis, b.rank(a)))
    if not b.is_tensor(indices):
        indices = as_tensor(b, indices)
    return into(b, out, taken(b, x, indices, on))


@binds("numpy.pad")
def _pad(b: Any, array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    value = options.pop("constant_values", 0)
    if const(b, mode) != "constant" or options or b.is_sequence(value):
        return b.unsupported("np.pad other than by one constant")
    if not b.rank(array):
        return b.unsupported("np.pad of rank 0")
    return b.op("pad", array, pads=pad_pairs(const(b, pad_width), b.rank(array)), value=const(b, value))


for _name in ("tril", "triu"):
    binds(f"numpy.{_name}")(lambda b, m, k=0, name=_name: b.op(name, m, k=const(b, k)) if b.rank(m) >= 2 else b.unsupported(f"np.{name} of rank 1"))
