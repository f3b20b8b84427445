"""Python numbers in native code: int as i64, float as double, bool as i1. What native code cannot do exactly leaves to the interpreter."""
from __future__ import annotations

import operator
from collections.abc import Callable

from bcvm.bytecode.dtypes import kind as dtype_kind
from bcvm.compiler import abi
from bcvm.compiler.driver import dims, states
from bcvm.compiler.driver.emitter import Emitter, is_literal
from bcvm.compiler.driver.values import Driver, TensorRep, element_count, literal
from bcvm.errors import CompileError
from bcvm.shapes.dim import dim
from bcvm.specialise.ssa import Node
from bcvm.specialise.types import Const, Scalar, Type

LLVM = {"int": "i64", "float": "double", "bool": "i1"}
_ORDER = {"eq": ("eq", "oeq"), "ne": ("ne", "une"), "lt": ("slt", "olt"), "le": ("sle", "ole"), "gt": ("sgt", "ogt"), "ge": ("sge", "oge")}
_EXACT = 1 << 53
_ONE = literal(1.0)
_ZERO = literal(0.0)
_HALF = literal(0.5)
_BIG = literal(float(1 << 63))


def kind_of(type: Type) -> str:
    """'int', 'float' or 'bool'."""
    if isinstance(type, Scalar):
        return type.kind
    if isinstance(type, Const):
        return {bool: "bool", int: "int"}.get(type.value.__class__, "float")
    raise CompileError(f"{type} is no number")


def leave_if(d: Driver, node: Node, condition: str, reason: str) -> None:
    """Exit to the node's state if the condition holds."""
    if condition == "false":
        return
    if node.state is None:
        raise CompileError(f"{node.op} {node.attrs.get('fn', '')} may have to leave but has no state to leave at")
    d.e.leave_if(condition, states.exit_label(d, node.state, reason))


def check(d: Driver, node: Node) -> None:
    """A relation of dims that must hold."""
    e = d.e
    how, a, b = node.attrs["how"], dims.value(e, dim(node.attrs["a"])), dims.value(e, dim(node.attrs["b"]))
    bad = {"eq": "ne", "le": "sgt", "lt": "sge", "bcast": "ne", "bcast_into": "ne"}[how]
    wrong = e.compare(bad, a, b)
    if how == "bcast_into":
        wrong = e.both(wrong, e.compare("ne", a, "1"))
    elif how == "bcast":
        wrong = e.both(wrong, e.both(e.compare("ne", a, "1"), e.compare("ne", b, "1")))
    leave_if(d, node, wrong, "check")


def guard(d: Driver, node: Node) -> None:
    leave_if(d, node, d.e.negate(d.scalar(node.operands[0])), "guard")


def item(d: Driver, node: Node) -> None:
    """The only element of a tensor, as a number."""
    e = d.e
    source, result = node.operands[0], node.results[0]
    rep = d.tensor(source)
    leave_if(d, node, e.compare("ne", element_count(e, rep.sizes), "1"), "item")
    dtype = source.type.dtype  # type: ignore[union-attr]
    d.reps[result] = load_element(d, node, rep, dtype, kind_of(result.type))
    _bind(d, node)


def load_element(d: Driver, node: Node, rep: TensorRep, dtype: str, kind: str) -> str:
    e = d.e
    raw = e.op(f"load {abi.llvm_type(dtype) if dtype != 'bfloat16' else 'i16'}, ptr {rep.data}")
    family = dtype_kind(dtype)
    if family == "f":
        number = _to_double(d, raw, dtype)
        return to_kind(d, node, number, "float", kind)
    if family == "b":
        truth = e.op(f"icmp ne i8 {raw}, 0")
        return to_kind(d, node, truth, "bool", kind)
    width = abi.llvm_type(dtype)
    wide = raw if width == "i64" else e.op(f"{'zext' if family == 'u' else 'sext'} {width} {raw} to i64")
    if dtype == "uint64" and kind != "bool":
        leave_if(d, node, e.compare("slt", wide, "0"), "overflow")
    return to_kind(d, node, wide, "int", kind)


def _to_double(d: Driver, raw: str, dtype: str) -> str:
    e = d.e
    if dtype == "float64":
        return raw
    if dtype == "bfloat16":
        wide = e.op(f"zext i16 {raw} to i32")
        raw = e.op(f"bitcast i32 {e.op(f'shl i32 {wide}, 16')} to float")
    elif dtype == "float16":
        _need_half(d)
        raw = e.op(f"fpext half {raw} to float")
    return e.op(f"fpext float {raw} to double")


def _need_half(d: Driver) -> None:
    if d.target.vector_bytes < 32:
        raise CompileError("float16 numbers need a CPU with F16C")


def to_kind(d: Driver, node: Node, operand: str, source: str, kind: str) -> str:
    """Python's int(), float(), bool() of a number."""
    e = d.e
    if source == kind:
        return operand
    if kind == "bool":
        return e.compare("ne", operand, "0") if source == "int" else e.op(f"fcmp une double {operand}, {_ZERO}")
    if kind == "int":
        if source == "bool":
            return {"true": "1", "false": "0"}.get(operand) or e.op(f"zext i1 {operand} to i64")
        size = _absolute(e, operand)
        leave_if(d, node, e.negate(e.op(f"fcmp olt double {size}, {_BIG}")), "overflow")
        return e.op(f"fptosi double {operand} to i64")
    if source == "bool":
        return e.op(f"uitofp i1 {operand} to double")
    return literal(float(int(operand))) if is_literal(operand) and abs(int(operand)) < _EXACT else e.op(f"sitofp i64 {operand} to double")


def _absolute(e: Emitter, operand: str) -> str:
    return e.op(f"call double {e.declare('@llvm.fabs.f64', 'declare double @llvm.fabs.f64(double)')}(double {operand})")


def store_element(e: Emitter, type: Type, operand: str, dtype: str, pointer: str) -> None:
    """Write a number as an element. NumPy's astype of the Python number; bits above the element are cut."""
    kind, family = kind_of(type), dtype_kind(dtype)
    width = "i16" if dtype == "bfloat16" else abi.llvm_type(dtype)
    if family == "b":
        truth = operand if kind == "bool" else e.compare("ne", operand, "0") if kind == "int" else e.op(f"fcmp une double {operand}, {_ZERO}")
        out = e.op(f"zext i1 {truth} to i8")
    elif family in "iu":
        if kind == "bool":
            out = e.op(f"zext i1 {operand} to {width}")
        else:
            if kind == "float":
                name = e.declare("@llvm.fptosi.sat.i64.f64", "declare i64 @llvm.fptosi.sat.i64.f64(double)")
                operand = e.op(f"call i64 {name}(double {operand})")
            out = operand if width == "i64" else e.op(f"trunc i64 {operand} to {width}")
    elif family == "f":
        if kind != "float":
            operand = e.op(f"uitofp i1 {operand} to double" if kind == "bool" else f"sitofp i64 {operand} to double")
        out = operand if dtype == "float64" else _narrow(e, operand, dtype)
    else:
        raise CompileError(f"numbers of {dtype} have no native form")
    e.do(f"store {width} {out}, ptr {pointer}")


def _narrow(e: Emitter, operand: str, dtype: str) -> str:
    single = e.op(f"fptrunc double {operand} to float")
    if dtype == "float32":
        return single
    if dtype == "float16":
        return e.op(f"fptrunc float {single} to half")
    bits = e.op(f"bitcast float {single} to i32")  # bfloat16: round half to even, NaN stays NaN
    odd = e.op(f"and i32 {e.op(f'lshr i32 {bits}, 16')}, 1")
    rounded = e.op(f"add i32 {e.op(f'add i32 {bits}, 32767')}, {odd}")
    nan = e.op(f"fcmp uno float {single}, {single}")
    chosen = e.op(f"select i1 {nan}, i32 {e.op(f'or i32 {bits}, 4194304')}, i32 {rounded}")
    return e.op(f"trunc i32 {e.op(f'lshr i32 {chosen}, 16')} to i16")


def dim_value(d: Driver, node: Node) -> None:
    """The int value of a Dim."""
    d.reps[node.results[0]] = dims.value(d.e, dim(node.attrs["dim"]))
    _bind(d, node)


def constant(d: Driver, node: Node) -> None:
    d.reps[node.results[0]] = literal(node.attrs["value"])


def scalar(d: Driver, node: Node) -> None:
    """Arithmetic on Python numbers."""
    e, fn = d.e, node.attrs["fn"]
    result = node.results[0]
    if result.dim is not None and result.dim.is_const:
        d.reps[result] = str(result.dim.value)
        return
    kinds = [kind_of(v.type) for v in node.operands]
    args = [d.scalar(v) for v in node.operands]
    want = kind_of(result.type)
    if fn in ("int", "float", "bool"):
        out, have = to_kind(d, node, args[0], kinds[0], fn), fn
    elif fn == "not":
        out, have = e.negate(to_kind(d, node, args[0], kinds[0], "bool")), "bool"
    elif fn in ("and", "or", "xor") and set(kinds) == {"bool"}:
        out, have = {"and": e.both, "or": e.either}[fn](*args) if fn != "xor" else e.op(f"xor i1 {args[0]}, {args[1]}"), "bool"
    else:
        out, have = _arithmetic(d, node, fn, args, kinds)
    d.reps[result] = to_kind(d, node, out, have, want)
    _bind(d, node)


def _bind(d: Driver, node: Node) -> None:
    result = node.results[0]
    rep = d.reps[result]
    if result.dim is not None and isinstance(rep, str) and kind_of(result.type) == "int":
        dims.bind(d.e, result.dim, rep)


def _arithmetic(d: Driver, node: Node, fn: str, args: list[str], kinds: list[str]) -> tuple[str, str]:
    e = d.e
    if all(k != "float" for k in kinds):
        ints = [to_kind(d, node, a, k, "int") for a, k in zip(args, kinds, strict=True)]
        if fn in _ORDER:
            return e.compare(_ORDER[fn][0], *ints), "bool"
        if fn in _INT:
            return _INT[fn](d, node, *ints), "int"
        if fn == "truediv":
            leave_if(d, node, e.compare("eq", ints[1], "0"), "division by zero")
            a, b = (_exact_double(d, node, i) for i in ints)
            return e.op(f"fdiv double {a}, {b}"), "float"
    elif fn in _ORDER or fn in ("min", "max"):
        args = [_exact_double(d, node, to_kind(d, node, a, k, "int")) if k != "float" else a for a, k in zip(args, kinds, strict=True)]
        kinds = ["float"] * len(args)
    floats = [to_kind(d, node, a, k, "float") for a, k in zip(args, kinds, strict=True)]
    if fn in _ORDER:
        return e.op(f"fcmp {_ORDER[fn][1]} double {floats[0]}, {floats[1]}"), "bool"
    if fn in ("floor", "ceil", "trunc", "round"):
        return _to_int(d, node, fn, floats[0]), "int"
    if fn in _FLOAT:
        return _FLOAT[fn](d, node, *floats), "float"
    if fn in abi.INDEX and abi.TYPE[fn].startswith("double"):
        return _libm(d, node, fn, floats), "float"
    raise CompileError(f"no native form of the number function {fn!r}")


def _exact_double(d: Driver, node: Node, operand: str) -> str:
    """An int as a double of the same value; leaves where the double may differ."""
    e = d.e
    if is_literal(operand) and abs(int(operand)) <= _EXACT:
        return literal(float(int(operand)))
    outside = e.op(f"icmp ugt i64 {e.add(operand, str(_EXACT))}, {2 * _EXACT}")
    leave_if(d, node, outside, "overflow")
    return e.op(f"sitofp i64 {operand} to double")


# -- ints

def _wrapping(what: str) -> Callable[[Driver, Node, str, str], str]:
    fold: Callable[[int, int], int] = {"sadd": operator.add, "ssub": operator.sub, "smul": operator.mul}[what]

    def emit(d: Driver, node: Node, a: str, b: str) -> str:
        if is_literal(a) and is_literal(b) and abs(fold(int(a), int(b))) < 1 << 63:
            return str(fold(int(a), int(b)))
        out, over = d.e.overflowing(what, a, b)
        leave_if(d, node, over, "overflow")
        return out
    return emit


def _int_floordiv(d: Driver, node: Node, a: str, b: str) -> str:
    e = d.e
    leave_if(d, node, e.compare("eq", b, "0"), "division by zero")
    leave_if(d, node, e.both(e.compare("eq", b, "-1"), e.compare("eq", a, str(-(1 << 63)))), "overflow")
    return dims.floordiv(e, a, b)


def _int_mod(d: Driver, node: Node, a: str, b: str) -> str:
    leave_if(d, node, d.e.compare("eq", b, "0"), "division by zero")
    return dims.modulo(d.e, a, b)


def _int_pow(d: Driver, node: Node, a: str, b: str) -> str:
    """Square and multiply; leaves on overflow and for negative exponents, whose result is a float."""
    e = d.e
    leave_if(d, node, e.compare("slt", b, "0"), "negative exponent")
    before, loop, multiply, after, square, done = e.label, *(e.new_label("pow") for _ in range(5))
    e.jump(loop)
    e.start(loop)
    result, factor, left = e.phi("i64"), e.phi("i64"), e.phi("i64")
    e.branch(e.op(f"trunc i64 {left.name} to i1"), multiply, after)
    e.start(multiply)
    product, over = e.overflowing("smul", result.name, factor.name)
    leave_if(d, node, over, "overflow")
    came = e.label
    e.jump(after)
    e.start(after)
    now = e.phi("i64")
    now.edges += [(result.name, loop), (product, came)]
    rest = e.op(f"lshr i64 {left.name}, 1")
    e.branch(e.op(f"icmp eq i64 {rest}, 0"), done, square)
    e.start(square)
    squared, over = e.overflowing("smul", factor.name, factor.name)
    leave_if(d, node, over, "overflow")
    for phi, first, again in ((result, "1", now.name), (factor, a, squared), (left, b, rest)):
        phi.edges += [(first, before), (again, e.label)]
    e.jump(loop)
    e.start(done)
    return now.name


def _int_shl(d: Driver, node: Node, a: str, b: str) -> str:
    e = d.e
    leave_if(d, node, e.op(f"icmp ugt i64 {b}, 62"), "shift")
    out = e.op(f"shl i64 {a}, {b}")
    leave_if(d, node, e.compare("ne", e.op(f"ashr i64 {out}, {b}"), a), "overflow")
    return out


def _int_shr(d: Driver, node: Node, a: str, b: str) -> str:
    e = d.e
    leave_if(d, node, e.compare("slt", b, "0"), "shift")
    return e.op(f"ashr i64 {a}, {e.select(e.compare('sgt', b, '63'), '63', b)}")


def _int_abs(d: Driver, node: Node, a: str) -> str:
    negative = _INT["sub"](d, node, "0", a)
    return d.e.select(d.e.compare("slt", a, "0"), negative, a)


def _int_bits(what: str) -> Callable[[Driver, Node, str, str], str]:
    return lambda d, node, a, b: d.e.op(f"{what} i64 {a}, {b}")


_INT: dict[str, Callable[..., str]] = {
    "add": _wrapping("sadd"), "sub": _wrapping("ssub"), "mul": _wrapping("smul"), "floordiv": _int_floordiv, "mod": _int_mod, "pow": _int_pow,
    "neg": lambda d, node, a: _INT["sub"](d, node, "0", a), "pos": lambda d, node, a: a, "abs": _int_abs, "shl": _int_shl, "shr": _int_shr,
    "and": _int_bits("and"), "or": _int_bits("or"), "xor": _int_bits("xor"), "invert": lambda d, node, a: d.e.op(f"xor i64 {a}, -1"),
    "min": lambda d, node, a, b: d.e.select(d.e.compare("slt", b, a), b, a),
    "max": lambda d, node, a, b: d.e.select(d.e.compare("sgt", b, a), b, a),
    "wrap": lambda d, node, i, n: d.e.select(d.e.compare("slt", i, "0"), d.e.add(i, n), i),  # i may be any int64, n a size: the sum fits
}


# -- floats

def _binary(what: str) -> Callable[[Driver, Node, str, str], str]:
    return lambda d, node, a, b: d.e.op(f"{what} double {a}, {b}")


def _nonzero(d: Driver, node: Node, b: str) -> None:
    leave_if(d, node, d.e.op(f"fcmp oeq double {b}, {_ZERO}"), "division by zero")


def _truediv(d: Driver, node: Node, a: str, b: str) -> str:
    _nonzero(d, node, b)
    return d.e.op(f"fdiv double {a}, {b}")


def _copysign(e: Emitter, a: str, b: str) -> str:
    return e.op(f"call double {e.declare('@llvm.copysign.f64', 'declare double @llvm.copysign.f64(double, double)')}(double {a}, double {b})")


def _divmod(d: Driver, node: Node, a: str, b: str) -> tuple[str, str]:
    """CPython's float_divmod."""
    e = d.e
    _nonzero(d, node, b)
    rest = e.call("fmod", a, b)
    div = e.op(f"fdiv double {e.op(f'fsub double {a}, {rest}')}, {b}")
    zero = e.op(f"fcmp oeq double {rest}, {_ZERO}")
    other = e.op(f"xor i1 {e.op(f'fcmp olt double {b}, {_ZERO}')}, {e.op(f'fcmp olt double {rest}, {_ZERO}')}")
    shift = e.both(other, e.op(f"xor i1 {zero}, true"))
    mod = e.select(shift, e.op(f"fadd double {rest}, {b}"), e.select(zero, _copysign(e, _ZERO, b), rest, "double"), "double")
    div = e.select(shift, e.op(f"fsub double {div}, {_ONE}"), div, "double")
    floor = _floor(e, div)
    more = e.op(f"fcmp ogt double {e.op(f'fsub double {div}, {floor}')}, {_HALF}")
    floor = e.select(more, e.op(f"fadd double {floor}, {_ONE}"), floor, "double")
    return e.select(e.op(f"fcmp oeq double {div}, {_ZERO}"), _copysign(e, _ZERO, e.op(f"fdiv double {a}, {b}")), floor, "double"), mod


def _floor(e: Emitter, x: str) -> str:
    """Through an int: the floor instruction is not in the baseline."""
    small = e.op(f"fcmp olt double {_absolute(e, x)}, {literal(float(1 << 52))}")
    safe = e.select(small, x, _ZERO, "double")
    near = e.op(f"sitofp i64 {e.op(f'fptosi double {safe} to i64')} to double")
    floor = e.select(e.op(f"fcmp ogt double {near}, {safe}"), e.op(f"fsub double {near}, {_ONE}"), near, "double")
    return e.select(small, floor, x, "double")


def _to_int(d: Driver, node: Node, fn: str, x: str) -> str:
    e = d.e
    near = to_kind(d, node, x, "float", "int")
    if fn == "trunc":
        return near
    back = e.op(f"sitofp i64 {near} to double")
    if fn == "floor":
        return e.sub(near, e.op(f"zext i1 {e.op(f'fcmp ogt double {back}, {x}')} to i64"))
    if fn == "ceil":
        return e.add(near, e.op(f"zext i1 {e.op(f'fcmp olt double {back}, {x}')} to i64"))
    away = _absolute(e, e.op(f"fsub double {x}, {back}"))  # round: half to even
    odd = e.op(f"trunc i64 {near} to i1")
    up = e.either(e.op(f"fcmp ogt double {away}, {_HALF}"), e.both(e.op(f"fcmp oeq double {away}, {_HALF}"), odd))
    step = e.select(e.op(f"fcmp olt double {x}, {_ZERO}"), "-1", "1")
    return e.add(near, e.select(up, step, "0"))


def _finite(d: Driver, node: Node, x: str) -> str:
    """Python raises for most results that are not finite: the interpreter decides."""
    e = d.e
    leave_if(d, node, e.negate(e.op(f"fcmp olt double {_absolute(e, x)}, {literal(float('inf'))}")), "not finite")
    return x


def _libm(d: Driver, node: Node, fn: str, args: list[str]) -> str:
    return _finite(d, node, d.e.call(fn, *args))


def _sqrt(d: Driver, node: Node, a: str) -> str:
    e = d.e
    return _finite(d, node, e.op(f"call double {e.declare('@llvm.sqrt.f64', 'declare double @llvm.sqrt.f64(double)')}(double {a})"))


_FLOAT: dict[str, Callable[..., str]] = {
    "add": _binary("fadd"), "sub": _binary("fsub"), "mul": _binary("fmul"), "truediv": _truediv,
    "floordiv": lambda d, node, a, b: _divmod(d, node, a, b)[0], "mod": lambda d, node, a, b: _divmod(d, node, a, b)[1],
    "pow": lambda d, node, a, b: _libm(d, node, "pow", [a, b]), "neg": lambda d, node, a: d.e.op(f"fneg double {a}"), "pos": lambda d, node, a: a,
    "abs": lambda d, node, a: _absolute(d.e, a), "sqrt": _sqrt,
    "min": lambda d, node, a, b: d.e.select(d.e.op(f"fcmp olt double {b}, {a}"), b, a, "double"),
    "max": lambda d, node, a, b: d.e.select(d.e.op(f"fcmp ogt double {b}, {a}"), b, a, "double"),
}
