"""Bindings of MindSpore's functions, primitives and tensor methods, after MindSpore 2.10's PyNative mode on CPU.

What PyNative refuses (mixed dtypes of a matrix product, integers where a kernel takes floating point, ...) is not bound: the
call runs in the interpreter, which raises MindSpore's own error. mindspore itself is not imported here. Importing this module
registers these and those of mindspore_data_bindings and mindspore_ordering.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bcvm.bytecode.dtypes import is_float
from bcvm.frameworks import mindspore_convolution_bindings, mindspore_data_bindings, mindspore_ordering  # noqa: F401  (register the rest)
from bcvm.frameworks.mindspore_naming import MS, bind_primitive, floating, named, of_tensor, primitive, same_dtype
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import axes, const, dtype_name, flag, none, present, sequence, sizes
from bcvm.ops.numpy_bindings import NOVALUE

# -- elementwise: (op, functions, methods, primitive, operands)

_UNARY: tuple[tuple[str, str, str], ...] = (
    ("exp", "exp", "Exp"), ("log", "log", "Log"), ("sqrt", "sqrt", "Sqrt"), ("rsqrt", "rsqrt", "Rsqrt"), ("square", "square", "Square"),
    ("abs", "abs absolute", "Abs"),
    ("neg", "neg negative", "Neg"), ("sin", "sin", "Sin"), ("cos", "cos", "Cos"), ("tan", "tan", "Tan"), ("sinh", "sinh", "Sinh"), ("cosh", "cosh", "Cosh"),
    ("tanh", "tanh", "Tanh"),
    ("arctan", "atan arctan", "Atan"), ("expm1", "expm1", "Expm1"), ("log1p", "log1p", "Log1p"), ("log2", "log2", ""), ("log10", "log10", ""),
    ("erf", "erf", "Erf"),
    ("reciprocal", "reciprocal inverse", "Reciprocal"), ("sigmoid", "sigmoid", "Sigmoid"), ("silu", "silu", "SiLU"), ("hswish", "hardswish", "HSwish"),
    ("hsigmoid", "hardsigmoid", "HSigmoid"), ("sign_ms", "sign", "Sign"), ("floor", "floor", "Floor"), ("ceil", "ceil", "Ceil"), ("trunc", "trunc", "Trunc"),
    ("logical_not", "logical_not", "LogicalNot"), ("isnan", "isnan", "IsNan"), ("isinf", "isinf", "IsInf"), ("isfinite", "isfinite", "IsFinite"))

_BINARY: tuple[tuple[str, str, str], ...] = (
    ("add", "add", "Add"), ("sub", "sub subtract", "Sub"), ("mul", "mul multiply", "Mul"), ("truediv", "div true_divide divide", "Div RealDiv"),
    ("floordiv_ms", "floor_divide floor_div", "FloorDiv"),
    ("mod_ms", "remainder floor_mod", "FloorMod"), ("pow_ms", "pow", "Pow"), ("maximum_ms", "maximum", "Maximum"), ("minimum_ms", "minimum", "Minimum"),
    ("eq", "equal eq", "Equal"), ("ne", "not_equal ne", "NotEqual"), ("lt", "less lt", "Less"), ("le", "less_equal le", "LessEqual"),
    ("gt", "greater gt", "Greater"),
    ("ge", "greater_equal ge", "GreaterEqual"), ("logical_and", "logical_and", "LogicalAnd"), ("logical_or", "logical_or", "LogicalOr"),
    ("logical_xor", "logical_xor", "LogicalXor"))


_NO_METHODS = ("silu", "hardswish", "hardsigmoid", "floor_div", "floor_mod")


def _reject_bool(b: Any, name: str, operands: tuple[Any, ...]) -> None:
    """Differences and quotients of bools have meanings of their own in MindSpore."""
    if name in ("sub", "truediv", "neg", "floordiv_ms", "mod_ms", "pow_ms") and all(b.dtype(o) == "bool" for o in operands):
        b.unsupported(f"MindSpore's {name} of bools")


def _elementwise(op: str, functions: str, primitives: str, count: int) -> None:
    def function(b: Any, *operands: Any, **options: Any) -> Any:
        if "other" in options:
            operands = (*operands, options.pop("other"))
        if len(operands) != count or options or not any(b.is_tensor(o) for o in operands):
            return b.unsupported(f"MindSpore's {op} with {len(operands)} operands" + "".join(f", {k}=" for k in options))
        if op.startswith("logical") and not all(map(b.is_tensor, operands)):
            return b.unsupported(f"MindSpore's {op} of a number")
        _reject_bool(b, op, operands)
        return b.op(op, *operands)

    def instance(b: Any, prim: Any, *operands: Any) -> Any:
        return function(b, *operands)
    names = functions.split()
    binds(*named(*names), method=[n for n in names if n not in _NO_METHODS], **MS)(function)
    for p in primitives.split():
        binds(*primitive(p), **MS)(instance)


for _op, _functions, _primitives in _UNARY:
    _elementwise(_op, _functions, _primitives, 1)
for _op, _functions, _primitives in _BINARY:
    _elementwise(_op, _functions, _primitives, 2)


def _operator(name: str, op: str) -> None:
    def binding(b: Any, *operands: Any) -> Any:
        _reject_bool(b, op, operands)
        if op == "matmul":
            same_dtype(b, "matmul", *operands)
        return b.op(op, *operands)
    binds(method=f"operator {name}", **MS)(binding)


for _name, _op in (("sub", "sub"), ("truediv", "truediv"), ("floordiv", "floordiv_ms"), ("mod", "mod_ms"), ("pow", "pow_ms"), ("neg", "neg"),
                   ("invert", "logical_not"), ("matmul", "matmul")):
    _operator(_name, _op)
for _name in ("lshift", "rshift"):
    binds(method=f"operator {_name}", **MS)(lambda b, *o: b.unsupported("shifts of MindSpore tensors"))


@binds(*named("round"), method="round", **MS)
def _round(b: Any, x: Any, *, decimals: Any = 0) -> Any:
    return b.op("rint", floating(b, x, "round")) if const(b, decimals) == 0 else b.unsupported("round with decimals")


@binds(*named("relu"), **MS)
def _relu(b: Any, x: Any, inplace: Any = False) -> Any:
    return b.unsupported("relu in place") if flag(b, inplace) else b.op("relu_ms", x)


@binds(*named("relu6"), **MS)
def _relu6(b: Any, x: Any, inplace: Any = False) -> Any:
    if flag(b, inplace):
        return b.unsupported("relu6 in place")
    return b.op("minimum_ms", b.op("maximum_ms", floating(b, x, "relu6"), 0.0), 6.0)


@binds(*named("gelu"), **MS)
def _gelu(b: Any, x: Any, approximate: Any = "none", **options: Any) -> Any:
    form = const(b, options.get("approximate", approximate))
    return b.op({"none": "gelu", "tanh": "gelu_tanh"}[form], floating(b, x, "gelu")) if form in ("none",
            "tanh") else b.unsupported(f"gelu approximate={form!r}")


@binds(*named("leaky_relu"), **MS)
def _leaky_relu(b: Any, x: Any, alpha: Any = 0.2) -> Any:
    return b.op("leaky_relu", floating(b, x, "leaky_relu"), alpha=float(const(b, alpha))) if const(b,
            alpha) <= 1 else b.unsupported("leaky_relu with alpha over 1")


@binds(*named("elu"), **MS)
def _elu(b: Any, x: Any, alpha: Any = 1.0) -> Any:
    return b.op("elu", floating(b, x, "elu"), alpha=float(const(b, alpha)))


@binds(*named("mish"), **MS)
def _mish(b: Any, x: Any) -> Any:
    return b.op("mul", x, b.op("tanh", b.op("softplus", floating(b, x, "mish"))))


@binds(*named("softplus"), **MS)
def _softplus(b: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    if const(b, beta) != 1 or const(b, threshold) < 20:
        return b.unsupported("softplus with beta or a low threshold")
    return b.op("softplus", floating(b, x, "softplus"))


bind_primitive("ReLU", _relu)
bind_primitive("ReLU6", _relu6)
bind_primitive("GeLU", lambda b, x: _gelu(b, x, "tanh"))
bind_primitive("Rint", lambda b, x: _round(b, x))
bind_primitive("Round", lambda b, x: _round(b, x))
bind_primitive("Mish", _mish)
binds(*primitive("Elu"), **MS)(lambda b, prim, x: _elu(b, x, prim.alpha))


@binds(*named("clamp", "clip", "clip_by_value"), method=("clamp", "clip"), **MS)
def _clamp(b: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    y = of_tensor(b, x, "clamp")
    if b.dtype(x) == "bool" or len({b.is_tensor(v) for v in (min, max) if not none(b, v)}) > 1:
        return b.unsupported("MindSpore's clamp of bools, or between a tensor and a number")
    if not none(b, min):
        y = b.op("maximum_ms", y, min)
    return y if none(b, max) else b.op("minimum_ms", y, max)


@binds(*named("where"), method="where", **MS)
def _where(b: Any, condition: Any, x: Any = NOVALUE, y: Any = NOVALUE) -> Any:
    if x is NOVALUE or y is NOVALUE or not b.is_tensor(condition) or b.dtype(condition) != "bool":
        return b.unsupported("where other than (bool tensor, x, y)")
    if not b.is_tensor(x) and not b.is_tensor(y) and "float" in (b.dtype(x), b.dtype(y)):
        x = b.cast(x, "float32")
    return b.op("where", condition, x, y)


def _select(b: Any, condition: Any, x: Any, y: Any) -> Any:
    return _where(b, condition, x, y)


binds(*named("select"), **MS)(_select)
bind_primitive("Select", _select)


@binds(*named("masked_fill"), method="masked_fill", **MS)
def _masked_fill(b: Any, x: Any, mask: Any, value: Any) -> Any:
    dtype = b.dtype(x)
    if b.is_tensor(value):
        fits = b.rank(value) == 0 and b.dtype(value) == dtype != "bfloat16"
    else:
        fits = dtype in {"float": ("float16", "float32", "float64"), "int": ("int32", "int64")}.get(b.dtype(value), ())
    if b.dtype(mask) != "bool" or not fits:
        return b.unsupported(f"masked_fill of {dtype} with this mask or value")
    return b.op("where", mask, b.cast(value, dtype), x)


bind_primitive("MaskedFill", _masked_fill)


@binds(*named("cast"), method=("astype", "to"), **MS)
def _cast(b: Any, x: Any, dtype: Any, copy: Any = True, **options: Any) -> Any:
    return cast(b, x, dtype_name(b, dtype)) if not options else b.unsupported("a cast with options")


def cast(b: Any, x: Any, name: str) -> Any:
    """Floating point becomes int32 or int64 first (the latter for uint32), the smallest one if it does not fit, and of that the low bits are taken: what
    MindSpore's CPU does, and what NumPy leaves open."""
    if not b.is_tensor(x) or name == "bool" or is_float(name) or not is_float(b.dtype(x)):
        return x if b.is_tensor(x) and name == b.dtype(x) else b.cast(x, name)
    if name == "uint64":
        return b.unsupported("floating point to uint64 in MindSpore's way")
    wide = "int64" if name in ("int64", "uint32") else "int32"
    x = b.cast(x, "float32") if b.dtype(x) != "float64" else x
    low = -2.0 ** (63 if wide == "int64" else 31)
    fits = b.op("logical_and", b.op("ge", x, low), b.op("lt", x, -low))
    return b.cast(b.op("where", fits, b.cast(x, wide), b.cast(int(low), wide)), name)


binds(method="type_as", **MS)(lambda b, x, other: cast(b, x, b.dtype(other)))
bind_primitive("Cast", _cast)
for _method, _dtype in (("float", "float32"), ("half", "float16"), ("int", "int32"), ("long", "int64"), ("bool", "bool"), ("double", "float64")):
    binds(method=_method, **MS)(lambda b, x, name=_dtype: _cast(b, x, name))

# -- reductions


def _all_axes(b: Any, axis: Any, rank: int) -> tuple[int, ...]:
    """None and () are all axes."""
    return tuple(range(rank)) if none(b, axis) or not isinstance(axis, int) and b.is_sequence(axis) and not b.items(axis) else axes(b, axis, rank)


def _options(b: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, bool, Any]:
    """axis, keepdims, dtype of a reduction, under any of the names MindSpore has for them."""
    values = {"axis": None, "keepdims": False, "dtype": None}
    alias = {"dim": "axis", "keepdim": "keepdims", "keep_dims": "keepdims"}
    for name, value in [*zip(("axis", "keepdims", "dtype"), args, strict=False), *options.items()]:
        name = alias.get(name, name)
        if name not in values:
            if not none(b, value):
                b.unsupported(f"a reduction with {name}=")
            continue
        values[name] = value
    if not isinstance(const(b, values["keepdims"]), bool):
        b.unsupported("a reduction with these positional arguments")
    return values["axis"], flag(b, values["keepdims"]), values["dtype"]


def _reduction(name: str, op: str, rule: Callable[..., Any] | None = None, method: bool = True) -> None:
    def function(b: Any, x: Any, *args: Any, **options: Any) -> Any:
        axis, keepdims, dtype = _options(b, args, options)
        x = of_tensor(b, x, name)
        if not none(b, dtype):
            x = _cast(b, x, dtype)
        if rule is not None:
            rule(b, x)
        made = b.op(op, x, axis=_all_axes(b, axis, b.rank(x)), keepdims=keepdims)
        return made if none(b, dtype) else b.cast(made, dtype_name(b, dtype))
    binds(*named(name), method=name if method else (), **MS)(function)


def _only_float(b: Any, x: Any) -> None:
    floating(b, x, "mean")


_reduction("sum", "sum")
_reduction("mean", "mean", _only_float)
_reduction("prod", "prod")
_reduction("any", "any")
_reduction("all", "all")
_reduction("amax", "max")
_reduction("amin", "min")
_reduction("logsumexp", "logsumexp", _only_float)


def _reduce_primitive(name: str, op: str, same: bool) -> None:
    def binding(b: Any, prim: Any, x: Any, axis: Any = ()) -> Any:
        if same and not is_float(b.dtype(x)):
            return b.cast(b.op(op, x, axis=_all_axes(b, axis, b.rank(x)), keepdims=bool(prim.keep_dims)),
                          b.dtype(x)) if op == "sum" else b.unsupported(f"{name} of integers")
        if getattr(prim, "skip_mode", False):
            return b.unsupported(f"{name} with skip_mode")
        return b.op(op, x, axis=_all_axes(b, axis, b.rank(x)), keepdims=bool(prim.keep_dims))
    binds(*primitive(name), **MS)(binding)


for _name, _op, _same in (("ReduceSum", "sum", True), ("ReduceMean", "mean", True), ("ReduceProd", "prod", True), ("ReduceMax", "max", False),
                          ("ReduceMin", "min", False),
                          ("ReduceAll", "all", False), ("ReduceAny", "any", False)):
    _reduce_primitive(_name, _op, _same)


def _with_index(name: str) -> None:
    """max and min: (values, indices)."""
    def function(b: Any, x: Any, axis: Any = None, keepdims: Any = False, **options: Any) -> Any:
        if "dim" in options or "keepdim" in options:
            axis, keepdims = options.pop("dim", axis), options.pop("keepdim", keepdims)
        if any(not none(b, v) for v in options.values()):
            return b.unsupported(f"{name} with initial or where")
        if none(b, axis):
            on = tuple(range(b.rank(x)))
            return b.tuple([b.op(name, x, axis=on, keepdims=False), b.cast(0, "int64")])
        return pair_of(b, x, (b.axis(axis, b.rank(x)),), flag(b, keepdims))

    def pair_of(b: Any, x: Any, on: tuple[int, ...], keep: bool) -> Any:
        return b.tuple([b.op(name, x, axis=on, keepdims=keep), b.op("arg" + name, x, axis=on, keepdims=keep)])

    def method(b: Any, x: Any, *args: Any, **options: Any) -> Any:
        """x.max(), x.max(axis=...) and x.max(axis, keepdims=...) give values; x.max(dim) gives both."""
        if (args or "dim" in options) and "keepdims" not in options:
            return function(b, x, *args, **options)
        axis, keepdims, _ = _options(b, args, options)
        return b.op(name, x, axis=_all_axes(b, axis, b.rank(x)), keepdims=keepdims)

    def mint(b: Any, x: Any, *args: Any, **options: Any) -> Any:
        return function(b, x, *args, **options) if args or options else b.op(name, x, axis=tuple(range(b.rank(x))), keepdims=False)
    binds(f"mindspore.ops.{name}", **MS)(function)
    binds(f"mindspore.mint.{name}", **MS)(mint)
    binds(method=name, **MS)(method)


_with_index("max")
_with_index("min")


def _arg(name: str, dtype: str) -> None:
    """ops.argmin and Tensor.argmin give int32, everything else of the kind int64."""
    def function(b: Any, x: Any, *args: Any, **options: Any) -> Any:
        axis, keepdims, _ = _options(b, args, options)
        return b.op(name, x, axis=_all_axes(b, axis, b.rank(x)), keepdims=keepdims)

    def narrow(b: Any, x: Any, *args: Any, **options: Any) -> Any:
        return b.cast(function(b, x, *args, **options), dtype)

    def instance(b: Any, prim: Any, x: Any) -> Any:
        return b.cast(b.op(name, x, axis=(b.axis(prim.axis, b.rank(x)),), keepdims=False), dtype_name(b, prim.init_attrs["output_type"]))
    binds(f"mindspore.ops.{name}", method=name, **MS)(function if dtype == "int64" else narrow)
    binds(f"mindspore.mint.{name}", **MS)(function)
    binds(*primitive(name.capitalize()), **MS)(instance)


_arg("argmax", "int64")
_arg("argmin", "int32")


def _spread(name: str) -> None:
    def function(b: Any, x: Any, axis: Any = None, ddof: Any = 0, keepdims: Any = False) -> Any:
        if const(b, ddof) is True or const(b, ddof) is False:
            return b.unsupported(f"{name} with a bool ddof")
        return b.op(name, floating(b, x, name), axis=_all_axes(b, axis, b.rank(x)), ddof=const(b, ddof), keepdims=flag(b, keepdims))

    def method(b: Any, x: Any, axis: Any = NOVALUE, *args: Any, **options: Any) -> Any:
        """Without an axis MindSpore 2.10 takes another overload, which divides by n - 1."""
        return b.unsupported(f"Tensor.{name} without an axis") if axis is NOVALUE else function(b, x, axis, *args, **options)
    binds(f"mindspore.ops.{name}", **MS)(function)
    binds(method=name, **MS)(method)


_spread("var")
_spread("std")


@binds(*named("cumsum"), method="cumsum", **MS)
def _cumsum(b: Any, x: Any, axis: Any = NOVALUE, dtype: Any = None, **options: Any) -> Any:
    on = options.get("dim", axis)
    if on is NOVALUE:
        return b.unsupported("cumsum without an axis")
    if not none(b, dtype):
        x = _cast(b, x, dtype)
    if b.dtype(x) not in ("int32", "int64"):  # narrower ones become int32 in the method, and stay in the function
        floating(b, x, "cumsum")
    return b.cast(b.op("cumsum", x, axis=b.axis(on, b.rank(x))), b.dtype(x))


@binds(*primitive("CumSum"), **MS)
def _cumsum_primitive(b: Any, prim: Any, x: Any, axis: Any) -> Any:
    return b.unsupported("CumSum reversed or exclusive") if prim.exclusive or prim.reverse else _cumsum(b, x, axis)


@binds("mindspore.ops.norm", method="norm", **MS)
def _norm(b: Any, x: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Any:
    if not none(b, ord) or not none(b, dtype):
        return b.unsupported("norm with ord or dtype")
    return b.op("sqrt", b.op("sum", b.op("square", floating(b, x, "norm")), axis=_all_axes(b, dim, b.rank(x)), keepdims=flag(b, keepdim)))


# -- softmax and norms

@binds(*named("softmax"), method="softmax", **MS)
def _softmax(b: Any, x: Any, axis: Any = -1, dtype: Any = None, **options: Any) -> Any:
    axis = options.get("dim", axis)
    if not none(b, dtype):
        x = _cast(b, x, dtype)
    return b.op("softmax", floating(b, x, "softmax"), axis=(b.axis(axis, b.rank(x)),))


@binds(*named("log_softmax"), **MS)
def _log_softmax(b: Any, x: Any, axis: Any = -1, dtype: Any = None, **options: Any) -> Any:
    axis = options.get("dim", axis)
    if not none(b, dtype):
        x = _cast(b, x, dtype)
    return b.op("log_softmax", floating(b, x, "log_softmax"), axis=(b.axis(axis, b.rank(x)),))


def _one_axis(b: Any, axis: Any) -> Any:
    return axis[0] if isinstance(axis, (tuple, list)) and len(axis) == 1 else axis if isinstance(axis, int) else b.unsupported("Softmax over several axes")


binds(*primitive("Softmax"), **MS)(lambda b, prim, x: _softmax(b, x, _one_axis(b, prim.axis)))
binds(*primitive("LogSoftmax"), **MS)(lambda b, prim, x: _log_softmax(b, x, prim.axis))


@binds(*primitive("LayerNorm"), **MS)
def _layer_norm(b: Any, prim: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """(y, mean, variance); gamma and beta have the sizes of x from begin_params_axis on."""
    rank = b.rank(floating(b, x, "LayerNorm"))
    start = prim.begin_norm_axis % rank
    if prim.begin_params_axis % rank != start:
        return b.unsupported("LayerNorm with different axes for the statistics and the parameters")
    same_dtype(b, "LayerNorm", x, gamma, beta)
    on = tuple(range(start, rank))
    mean, var = b.op("mean", x, axis=on, keepdims=True), b.op("var", x, axis=on, ddof=0, keepdims=True)
    return b.tuple([b.op("layer_norm", x, gamma, beta, axis=on, eps=float(prim.epsilon)), mean, var])


@binds(*named("layer_norm"), **MS)
def _layer_norm_function(b: Any, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """Has no CPU kernel in MindSpore 2.10; bcvm runs it."""
    wanted = sizes(b, sequence(b, normalized_shape))
    rank, n = b.rank(floating(b, x, "layer_norm")), len(wanted)
    for d, w in zip(b.dims(x)[rank - n:], wanted, strict=False):
        b.require("eq", d, w, "layer_norm: normalized_shape differs from the last axes")
    on = tuple(range(rank - n, rank))
    if none(b, weight) and not none(b, bias):
        return b.op("add", b.op("layer_norm", x, axis=on, eps=const(b, eps)), bias)
    return b.op("layer_norm", x, *present(b, weight, bias), axis=on, eps=const(b, eps))


@binds(*named("rms_norm"), **MS)
def _rms_norm(b: Any, x: Any, gamma: Any, epsilon: Any = 1e-6) -> Any:
    """(y, rstd), as the primitive gives them; no CPU kernel in MindSpore 2.10."""
    rank, n = b.rank(floating(b, x, "rms_norm")), b.rank(gamma)
    on = tuple(range(rank - n, rank))
    rstd = b.op("rsqrt", b.op("add", b.op("mean", b.op("square", x), axis=on, keepdims=True), const(b, epsilon)))
    return b.tuple([b.op("rms_norm", x, gamma, axis=on, eps=const(b, epsilon)), rstd])


def _normalised(b: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any, eps: float) -> Any:
    floating(b, x, "BatchNorm")
    return b.op("batch_norm", x, mean, var, scale, bias, eps=eps)


@binds(*primitive("BatchNorm"), **MS)
def _batch_norm(b: Any, prim: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """At inference (y, 0, 0, 0, 0): PyNative leaves the statistics empty."""
    if prim.is_training or prim.init_attrs["data_format"] != "NCHW":
        return b.unsupported("BatchNorm in training or of another format")
    nothing = b.full(list(b.dims(scale)), 0, b.dtype(scale))
    return b.tuple([_normalised(b, x, scale, bias, mean, var, float(prim.epsilon)), nothing, nothing, nothing, nothing])


@binds(*named("batch_norm"), **MS)
def _batch_norm_function(b: Any, x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: Any = False, momentum: Any = 0.1,
                         eps: Any = 1e-5) -> Any:
    if flag(b, training) or none(b, weight) or none(b, bias):
        return b.unsupported("batch_norm in training or without parameters")
    return _normalised(b, x, weight, bias, mean, var, float(const(b, eps)))


@binds(*named("group_norm"), **MS)
def _group_norm(b: Any, x: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    if none(b, weight) != none(b, bias):
        return b.unsupported("group_norm with one of weight and bias")
    return b.op("group_norm", floating(b, x, "group_norm"), *present(b, weight, bias), groups=const(b, num_groups), eps=const(b, eps))


@binds(*primitive("L2Normalize"), **MS)
def _l2_normalize(b: Any, prim: Any, x: Any) -> Any:
    """x / sqrt(max(sum(x^2), epsilon))."""
    total = b.op("sum", b.op("square", floating(b, x, "L2Normalize")), axis=axes(b, list(prim.axis), b.rank(x)), keepdims=True)
    return b.op("truediv", x, b.op("sqrt", b.op("maximum_ms", total, float(prim.epsilon))))


# -- matrix products

@binds(*named("matmul"), method="matmul", **MS)
def _matmul(b: Any, x: Any, y: Any) -> Any:
    same_dtype(b, "matmul", x, y)
    return b.op("matmul", x, y)


@binds(*named("bmm"), method="bmm", **MS)
def _bmm(b: Any, x: Any, y: Any) -> Any:
    return _matmul(b, x, y) if b.rank(x) >= 3 and b.rank(y) >= 3 else b.unsupported("bmm of rank under 3")


def _swapped(b: Any, x: Any, swap: Any) -> Any:
    n = b.rank(x)
    return b.transpose(x, (*range(n - 2), n - 1, n - 2)) if swap else x


for _name in ("MatMul", "BatchMatMul"):
    binds(*primitive(_name), **MS)(lambda b, prim, x, y: _matmul(b, _swapped(b, x, prim.transpose_a), _swapped(b, y, prim.transpose_b)))


@binds(*named("dense", "linear"), **MS)
def _dense(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    same_dtype(b, "dense", x, weight, *present(b, bias))
    return b.op("linear", x, weight, *present(b, bias)) if b.rank(weight) == 2 else b.unsupported("dense with a weight of another rank than 2")


bind_primitive("Dense", _dense)


@binds(*named("outer"), method="outer", **MS)
def _outer(b: Any, x: Any, y: Any) -> Any:
    if b.rank(of_tensor(b, x, "outer")) != 1 or b.rank(of_tensor(b, y, "outer")) != 1:
        return b.unsupported("MindSpore's outer of other than vectors")
    return b.op("mul", b.op("expand_dims", x, axis=(1,)), b.op("expand_dims", y, axis=(0,)))


@binds(*named("bias_add"), **MS)
def _bias_add(b: Any, x: Any, bias: Any) -> Any:
    same_dtype(b, "bias_add", x, bias)
    return b.op("bias_add", x, bias)


@binds(*primitive("BiasAdd"), **MS)
def _bias_add_primitive(b: Any, prim: Any, x: Any, bias: Any) -> Any:
    return _bias_add(b, x, bias) if prim.init_attrs["data_format"] == "NCHW" else b.unsupported("BiasAdd of another format")
