"""MindSpore's Python objects as the specialiser sees them: containers of cells, functions under ms.jit and constexpr, primitives and layers that are
made where they are called, and functions that only check. `register` adds it to what the resolver asks."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bcvm.errors import Unsupported
from bcvm.frameworks.mindspore_routes import is_wrapper
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import dtype_name, none
from bcvm.ops.lookup import binding_for
from bcvm.specialise import resolve
from bcvm.specialise.instructions import UNROLL_TRIPS
from bcvm.specialise.operators import library_of
from bcvm.specialise.ssa import Aggregate, Path, Root, Tree, Value
from bcvm.specialise.types import Const, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

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
    loop are numbers of layers."""
    from mindspore.nn import Cell
    cls, value = type(obj), vars(obj).get(name)
    if not issubclass(cls, Cell):
        return ""
    if type(value) is bool and (name == "training" or cls.__module__.startswith("mindspore.")):
        return "flag"
    return "count" if type(value) is int and 0 <= value <= UNROLL_TRIPS else ""


def below_wrappers(m: "Machine", callee: Const) -> Tree | None:
    """The function that ms.jit, constexpr or _primexpr was given: their call is its call, in PyNative mode."""
    fn = callee.value
    if is_wrapper(fn):
        return Const(fn.__wrapped__)
    if type(fn).__qualname__.startswith(_CONSTANT_FUNCTIONS) and type(fn).__module__ == "mindspore.ops.primitive":
        return Const(vars(fn)["fn"])
    return None


def made_instance(m: "Machine", callee: Const, args: list[Tree], keywords: dict[str, Tree]) -> Tree | None:
    """ops.Reshape(), nn.Softmax(): an instance of a primitive class or of a layer without parameters, of constant arguments, is as good as one made before."""
    from mindspore.nn import Cell
    from mindspore.ops import Primitive
    cls = callee.value
    if not isinstance(cls, type) or not (issubclass(cls, Primitive) or issubclass(cls, Cell) and cls.__module__.startswith("mindspore.nn.layer.")):
        return None
    values = [m.builder.constant(a) for a in args]
    options = {k: m.builder.constant(v) for k, v in keywords.items()}
    made = cls(*values, **options)
    if issubclass(cls, Primitive) and binding_for(made) is None or issubclass(cls, Cell) and made.parameters_dict():
        raise Unsupported(f"a call of {cls.__name__}")
    return Const(made)


def tensor_of_array(m: "Machine", callee: Const, args: list[Tree], keywords: dict[str, Tree]) -> Tree | None:
    """Tensor(np.ones(...), dtype): an array that is made in native code becomes a tensor there."""
    import mindspore
    array, b = args[0] if args else None, m.builder
    t = array.type if isinstance(array, Value) else None
    if callee.value is not mindspore.Tensor or not isinstance(array, Value) or not isinstance(t, Tensor) or t.library != "numpy":
        return None
    options = dict(zip(("dtype",), args[1:], strict=False)) | keywords
    if set(options) - {"dtype"} or len(args) > 2 or array.node is None or t.scalar:
        raise Unsupported("a call of mindspore.Tensor with these arguments")
    dtype = t.dtype if none(b, options.get("dtype")) else dtype_name(b, options["dtype"])
    with library_of(m, [], "mindspore"):
        return m.emit("copy", (b.cast(array, dtype),), Tensor("mindspore", dtype, t.dims))


def _ranks(name: str, *ranks: int) -> None:
    """A check of the number of dims, which MindSpore writes as a function in a function."""
    def check(b: Any, shape: Any, *_: Any) -> None:
        if len(b.items(shape)) not in ranks:
            b.unsupported(f"an input of rank {len(b.items(shape))}")
    binds(name, library="mindspore")(check)


@binds("mindspore.nn.layer.normalization._check_dim", library="mindspore")
def _check_dim(b: Any, value: Any, target: Any, *_: Any) -> None:
    if b.constant(value) != b.constant(target):
        b.unsupported("an input of another rank")


_ranks("mindspore.nn.layer.normalization.BatchNorm1d._check_input_dim", 2, 3)


def register() -> None:
    resolve.CONTAINERS.append(cell_list)
    resolve.CONSTANTS.append(configured)
    resolve.CALLEES.append(below_wrappers)
    resolve.RESULTS += [tensor_of_array, made_instance]
