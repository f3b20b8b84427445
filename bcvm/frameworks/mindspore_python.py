"""MindSpore's Python objects as the specialiser sees them: containers of cells, functions under ms.jit and constexpr, primitives and layers that are
made where they are called, and functions that only check. `register` adds it to what the resolver asks."""
from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from bcvm.bytecode.dtypes import is_float
from bcvm.errors import Unsupported
from bcvm.frameworks.mindspore_bindings import cast
from bcvm.frameworks.mindspore_naming import ms_dtype
from bcvm.frameworks.mindspore_routes import is_wrapper
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import dtype_name, none
from bcvm.ops.lookup import binding_for
from bcvm.specialise import resolve
from bcvm.specialise.operators import library_of
from bcvm.specialise.settle import UNROLL_TRIPS
from bcvm.specialise.ssa import Aggregate, Path, Root, Tree, Value
from bcvm.specialise.types import Const, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

MOST_NUMBERS = 64  # in a sequence that a tensor is made of
_CONSTANT_FUNCTIONS = ("constexpr.", "_primexpr.")  # how the classes are called that these decorators make


def cell_list(m: "Machine", const: Const) -> Tree | None:
    """A CellList is the sequence of its cells, a SequentialCell as well, a ParameterTuple of its parameters."""
    from mindspore import ParameterTuple
    from mindspore.nn import CellList, SequentialCell
    cls, obj = type(const.value), const.value
    if cls is ParameterTuple and const.path is not None:
        m.resolver.guard("length", const.path, len(obj))
        return Aggregate("tuple", tuple(m.resolver.wrap(p, Path(const.path.root, const.path.steps + (("item", i),))) for i, p in enumerate(obj)))
    for base in (CellList, SequentialCell):
        if issubclass(cls, base) and all(getattr(cls, n, None) is getattr(base, n, None) for n in ("__getitem__", "__iter__", "__len__")):
            break
    else:
        return None
    path, names = const.path or Path(Root("const", obj)), tuple(obj._cells)
    cells = Path(path.root, path.steps + (("attr", "_cells"),))
    m.resolver.held(obj._cells, cells, "")
    m.resolver.guard("keys", cells, names)
    return Aggregate("tuple", tuple(m.resolver.wrap(obj._cells[n], Path(cells.root, cells.steps + (("item", n),))) for n in names))


def configured(obj: Any, name: str) -> str:
    """The flags of MindSpore's own layers (has_bias, use_pad, ...) are what they were made with, and `training` has two values that make two programs of
    a network: one graph for both would be twice as large, and would leave native code where only PyNative can train. Ints of cells that bound a
    loop are numbers of layers, and numbers of cells that decide types are sizes of layers."""
    from mindspore.nn import Cell
    cls, value = type(obj), vars(obj).get(name)
    if not issubclass(cls, Cell):
        return ""
    if type(value) is bool and (name == "training" or cls.__module__.startswith("mindspore.")):
        return "flag"
    if type(value) is int and 0 <= value <= UNROLL_TRIPS:
        return "count"
    return "number" if type(value) in (int, float) else ""


def below_wrappers(m: "Machine", callee: Const) -> Tree | None:
    """The function that ms.jit, constexpr or _primexpr was given: their call is its call, in PyNative mode."""
    fn = callee.value
    if is_wrapper(fn):
        return Const(fn.__wrapped__)
    if _is_constexpr(fn):
        return Const(vars(fn)["fn"])
    return None


def evaluated(m: "Machine", callee: Const, args: list[Tree], keywords: dict[str, Tree]) -> Tree | None:
    """What MindSpore's functions for checking inputs, and those under constexpr, give for constants: they are made to run when a graph is made."""
    fn = callee.value
    inner = vars(fn)["fn"] if _is_constexpr(fn) else fn
    if not isinstance(inner, FunctionType) or not (inner.__module__ or "").startswith("mindspore.") or inner is fn and inner.__module__ != "mindspore._checkparam":
        return None
    try:
        read: set[Value] = set()
        values, options = [known(m, a, read) for a in args], {k: known(m, v, read) for k, v in keywords.items()}
    except LookupError:
        return None
    for number in read:
        m.resolver.bind_scalar(number)
    try:
        result = inner(*values, **options)
    except Exception as e:  # whatever it raises, the interpreter will
        raise Unsupported(f"{inner.__name__}: {e}") from None
    return m.resolver.literal(result) if _is_plain(result) else None


def known(m: "Machine", tree: Tree, read: set[Value]) -> Any:
    """The Python object of a tree of constants, and of numbers of cells, which are added to `read`. LookupError: it is made of something else."""
    if isinstance(tree, Value) and tree in m.resolver.configured:
        read.add(tree)
        return m.resolver.scalars[tree][1]
    if isinstance(tree, Const) and (isinstance(tree.value, type) or _is_plain(tree.value) and not (tree.path is not None and type(tree.value) is tuple)):
        return tree.value
    if isinstance(tree, Const) and type(tree.value) in (tuple, list):
        return type(tree.value)(known(m, i, read) for i in m.resolver.items(tree))
    if isinstance(tree, Aggregate) and tree.kind in ("tuple", "list"):
        return (tuple if tree.kind == "tuple" else list)(known(m, i, read) for i in tree.items)
    if isinstance(tree, Aggregate) and tree.kind == "dict":
        return {known(m, k, read): known(m, v, read) for k, v in zip(tree.items[::2], tree.items[1::2])}
    raise LookupError(tree)


def _is_plain(value: Any) -> bool:
    """Whether a value never changes and is what it equals."""
    import mindspore
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, mindspore.Type) or type(value) is tuple and all(map(_is_plain, value))


def _is_constexpr(fn: Any) -> bool:
    return type(fn).__qualname__.startswith(_CONSTANT_FUNCTIONS) and type(fn).__module__ == "mindspore.ops.primitive"


def made_instance(m: "Machine", callee: Const, args: list[Tree], keywords: dict[str, Tree]) -> Tree | None:
    """ops.Reshape(), nn.Softmax(): an instance of a primitive class or of a layer without parameters, of constant arguments, is as good as one made before."""
    from mindspore.nn import Cell
    from mindspore.ops import Primitive
    cls = callee.value
    if not isinstance(cls, type) or not (issubclass(cls, Primitive) or issubclass(cls, Cell) and cls.__module__.startswith("mindspore.nn.layer.")):
        return None
    values = [m.builder.constant(a) for a in args]
    options = {k: m.builder.constant(v) for k, v in keywords.items()}
    try:
        made = cls(*values, **options)
    except Exception as e:  # whatever it raises, the interpreter will
        raise Unsupported(f"{cls.__name__}: {e}") from None
    if issubclass(cls, Primitive) and binding_for(made) is None or issubclass(cls, Cell) and made.parameters_dict():
        raise Unsupported(f"a call of {cls.__name__}")
    return Const(made)


def made_tensor(m: "Machine", callee: Const, args: list[Tree], keywords: dict[str, Tree]) -> Tree | None:
    """Tensor(np.ones(...), dtype), Tensor([n, 2.5]), Tensor(x, dtype): of an array that is made in native code, of numbers, of another tensor."""
    import mindspore
    if callee.value is not mindspore.Tensor:
        return None
    b = m.builder
    options = dict(zip(("input_data", "dtype", "shape", "init", "const_arg", "device"), args, strict=False)) | keywords
    if "input_data" not in options or not all(k in ("input_data", "dtype") or b.constant(v) in (None, False) for k, v in options.items()):
        raise Unsupported("a call of mindspore.Tensor with these arguments")
    data = options["input_data"]
    wanted = None if none(b, options.get("dtype")) else dtype_name(b, options["dtype"])
    with library_of(m, [], "mindspore"):
        if b.is_scalar(data) or b.is_sequence(data):
            return tensor_of_numbers(b, data, wanted)
        t = data.type if isinstance(data, Value) else None
        if isinstance(data, Value) and isinstance(t, Tensor) and t.library == "mindspore" and wanted not in (None, t.dtype):
            return cast(b, data, wanted)
        if not isinstance(data, Value) or not isinstance(t, Tensor) or t.library != "numpy" or data.node is None or t.scalar:
            raise Unsupported(f"a tensor of {b.describe(data)}")
        return m.emit("copy", (b.cast(data, wanted or t.dtype),), Tensor("mindspore", wanted or t.dtype, t.dims))


def tensor_of_numbers(b: Any, data: Tree, wanted: str | None) -> Tree:
    """A tensor of a number or of nested sequences of numbers: float32 if one of them is a float, else int64, or bool if all are."""
    def shape(tree: Tree) -> tuple[int, ...]:
        if not b.is_sequence(tree):
            return ()
        inner = {shape(i) for i in b.items(tree)}
        if len(inner) != 1:
            raise Unsupported("a tensor of sequences of different lengths")
        return (len(b.items(tree)), *inner.pop())

    def flat(tree: Tree) -> list[Tree]:
        return [n for i in b.items(tree) for n in flat(i)] if b.is_sequence(tree) else [tree]
    sizes, numbers = shape(data), flat(data)
    if not all(b.is_scalar(n) for n in numbers) or len(numbers) > MOST_NUMBERS:
        raise Unsupported("a tensor of other than a few numbers")
    kinds = {b.dtype(n) for n in numbers}
    natural = "float32" if "float" in kinds else "int64" if "int" in kinds else "bool"
    if kinds == {"float"} and wanted is not None and not is_float(wanted):
        natural = "float64"  # the number itself is truncated, not what is left of it in float32
    made = [cast(b, b.as_tensor(n, natural), wanted or natural) for n in numbers]
    return b.reshape(b.op("stack", *made, axis=0), sizes) if sizes else made[0]


@binds("mindspore.nn.Cell.parameters_and_names", library="mindspore")
def parameters_and_names(b: Any, cell: Any, name_prefix: Any = "", expand: Any = True) -> Aggregate:
    """The parameters of a cell and of all below it. Which cells and parameters there are is guarded."""
    from mindspore.nn import Cell
    resolver, prefix = b.m.resolver, b.constant(name_prefix)
    seen: set[int] = set()
    found: list[Tree] = []

    def visit(const: Const, at: str) -> None:
        obj = const.value
        if not isinstance(obj, Cell) or any(getattr(type(obj), n) is not getattr(Cell, n) for n in ("cells_and_names", "parameters_and_names", "__hash__", "__eq__")):
            raise Unsupported(f"the parameters of {b.describe(const)}")
        seen.add(id(obj))
        for name, par in members(const, "_params"):
            if isinstance(par, Const) and par.value is None or id(vars(obj)["_params"][name]) in seen:
                continue
            if getattr(vars(obj)["_params"][name], "inited_param", None) is not None:
                raise Unsupported("a parameter that another one replaces")
            seen.add(id(vars(obj)["_params"][name]))
            found.append(b.tuple([f"{at}.{name}" if at else name, par]))
        for name, below in members(const, "_cells") if b.constant(expand) else ():
            if below.value is not None and vars(below.value).get("_cells") is not None and id(below.value) not in seen and bool(below.value):
                visit(below, f"{at}.{name}" if at else name)

    def members(const: Const, place: str) -> list[tuple[str, Any]]:
        path = const.path or Path(Root("const", const.value))
        inside, at = vars(const.value)[place], Path(path.root, path.steps + (("attr", place),))
        resolver.held(inside, at, "")
        resolver.guard("keys", at, tuple(inside))
        return [(n, resolver.wrap(inside[n], Path(at.root, at.steps + (("item", n),)))) for n in inside]
    if not isinstance(cell, Const):
        raise Unsupported(f"the parameters of {b.describe(cell)}")
    visit(cell, prefix)
    return Aggregate("iterator", (Aggregate("tuple", tuple(found)), Const(0, "unroll")))


@binds("mindspore.nn.Cell.get_parameters", library="mindspore")
def _get_parameters(b: Any, cell: Any, expand: Any = True) -> Aggregate:
    pairs = b.items(parameters_and_names(b, cell, "", expand))
    return Aggregate("iterator", (Aggregate("tuple", tuple(p.items[1] for p in pairs)), Const(0, "unroll")))


def _ranks(name: str, *ranks: int) -> None:
    """A check of the number of dims, which MindSpore writes as a function in a function."""
    def check(b: Any, shape: Any, *_: Any) -> None:
        if len(b.items(shape)) not in ranks:
            b.unsupported(f"an input of rank {len(b.items(shape))}")
    binds(name, library="mindspore")(check)


@binds("mindspore.ops.typeof", library="mindspore")
def _typeof(b: Any, value: Any) -> Const:
    """MindSpore's type of a value, by which its layers check their inputs."""
    from mindspore.common import dtype as types

    def of(v: Any) -> Any:
        if b.is_tensor(v) and v.type.library == "mindspore":
            return types.TensorType(ms_dtype(b, v.type.dtype))
        if b.is_none(v):
            return types.NoneType()
        if b.is_scalar(v):
            return {"int": types.int64, "float": types.float32, "bool": types.bool_}[b.dtype(v)]
        if b.is_sequence(v):
            tree = b.tree(v)
            kind = tree.kind if isinstance(tree, Aggregate) else type(tree.value).__name__
            if kind in ("tuple", "list"):
                return (types.Tuple if kind == "tuple" else types.List)([of(i) for i in b.items(v)])
        return b.unsupported(f"the type of {b.describe(v)}")
    return Const(of(b.tree(value)))


@binds("mindspore.ops.tuple_len", "mindspore.ops.list_len", library="mindspore")
def _length(b: Any, sequence: Any) -> int:
    return len(b.items(sequence))


@binds("mindspore.ops.make_range", library="mindspore")
def _make_range(b: Any, *bounds: Any) -> Any:
    return b.tuple(range(*map(b.constant, bounds)))


@binds("mindspore.ops.functional.is_sequence_value_unknown", "mindspore.ops.functional.is_sequence_shape_unknown", library="mindspore")
def _is_unknown(b: Any, sequence: Any) -> bool:
    return False


@binds("mindspore.ops._primitive_cache._get_cache_prim", library="mindspore")
def _cached_primitive(b: Any, cls: Any) -> Any:
    """Instances of a primitive that are kept: as good as new ones."""
    return cls


@binds("mindspore.ops.primitive._run_op", library="mindspore")
def _run_primitive(b: Any, primitive: Any, name: Any, arguments: Any) -> Any:
    """Where the call of a primitive without a binding ends."""
    return b.unsupported(f"the primitive {b.constant(name)}")


@binds("mindspore.nn.layer.normalization._check_dim", library="mindspore")
def _check_dim(b: Any, value: Any, target: Any, *_: Any) -> None:
    if b.constant(value) != b.constant(target):
        b.unsupported("an input of another rank")


_ranks("mindspore.nn.layer.normalization.BatchNorm1d._check_input_dim", 2, 3)


def register() -> None:
    resolve.CONTAINERS.append(cell_list)
    resolve.CONSTANTS.append(configured)
    resolve.CALLEES.append(below_wrappers)
    resolve.RESULTS += [evaluated, made_tensor, made_instance]
