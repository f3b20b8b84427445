"""From Python objects to trees: what is read at a path becomes a run-time input, a guarded constant, or a container that is
read item by item. Nothing here calls code of the user's: only plain attributes, items of exact containers and modules."""
from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bcvm.errors import Unsupported
from bcvm.ops.lookup import binding_for
from bcvm.shapes.dim import Dim
from bcvm.specialise.ssa import Aggregate, Guard, Input, Path, Root, Tree, Value
from bcvm.specialise.types import Const, PyObject, Scalar, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

SIZE_LIMIT = 1 << 40
IDENTITY: list[type] = [types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, enum.Enum, np.dtype, np.ufunc, type(None), type(Ellipsis), type(NotImplemented)]
_NUMPY_DTYPES = {np.dtype(n).type: n for n in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")}

# Frameworks add what they know: TENSOR_LEAVES by exact class: (library, dtype, rank, scalar) of an object or None; attribute(object, name) -> steps or None;
# callee(machine, const) -> what a call calls instead, or None; result(machine, const, arguments, keywords) -> what a call gives, or None;
# constant(object, name) -> "flag": the attribute is set when the object is made, its value is bound; "count": an int that is bound where it bounds a
# loop, or decides types; "number": one that is bound where it decides types; or "". FIXED_SIZES: classes of tensors that keep their sizes. IDENTITY: classes whose objects never change, which are bound and guarded by identity. container(machine, const) -> the tuple or list that subscripts and loops of an object mean, or None.
TENSOR_LEAVES: dict[type, Callable[[Any], "tuple[str, str, int, bool] | None"]] = {}
ATTRIBUTES: list[Callable[[Any, str], "tuple[tuple[Any, ...], ...] | None"]] = []
CALLEES: list[Callable[["Machine", Const], "Tree"]] = []
RESULTS: list[Callable[["Machine", Const, list["Tree"], dict[str, "Tree"]], "Tree"]] = []
CONTAINERS: list[Callable[["Machine", Const], "Tree"]] = []
FIXED_SIZES: set[type] = set()
CONSTANTS: list[Callable[[Any, str], str]] = []


def _numpy_leaf(a: np.ndarray) -> tuple[str, str, int, bool] | None:
    name = _NUMPY_DTYPES.get(a.dtype.type)
    if name is None or not a.dtype.isnative or not a.flags.aligned:
        return None
    return ("numpy", name, a.ndim, False)


TENSOR_LEAVES[np.ndarray] = _numpy_leaf
for _type, _name in _NUMPY_DTYPES.items():
    TENSOR_LEAVES[_type] = lambda a, _name=_name: ("numpy", _name, 0, True)  # type: ignore[misc]


def tensor_leaf(obj: Any) -> tuple[str, str, int, bool] | None:
    """(library, dtype, rank, scalar) of an object that native code can read as a tensor, else None."""
    describe = TENSOR_LEAVES.get(type(obj))
    return describe(obj) if describe is not None else None


class Resolver:
    """Wraps objects read at paths; one per graph, so that a path is read once."""

    def __init__(self, machine: "Machine", constants: dict[Any, Any]) -> None:
        self.machine = machine
        self.constants = constants  # paths of run-time scalars that are bound as constants; (class, attribute) of flags that are, whatever object has them
        self.owners: dict[Path, type] = {}  # of flags, the class of the object that has them
        self.known: dict[Path, Tree] = {}
        self.guarded: set[tuple[str, Path, Any]] = set()
        self.rebound = 0  # of them that were found to be needed as constants
        self.scalars: dict[Value, tuple[Path, Any]] = {}  # run-time inputs, with what they were when the graph was made
        self.counts: set[Any] = set()  # values that are bound where they bound a loop
        self.configured: set[Value] = set()  # numbers that layers are configured with: bound where they decide types

    def guard(self, how: str, path: Path, value: Any) -> None:
        key = (how, path, value if how in ("length", "keys", "absent") else id(value))
        if key not in self.guarded:
            self.guarded.add(key)
            self.machine.graph.guards.append(Guard(how, path, value))

    def wrap(self, obj: Any, path: Path, name: str = "") -> Tree:
        """The tree for an object that is read at `path` on entry."""
        tree = self.known.get(path)
        if tree is None:
            tree = self.known[path] = self._wrap(obj, path, name)
        return tree

    def _wrap(self, obj: Any, path: Path, name: str) -> Tree:
        leaf = tensor_leaf(obj)
        if leaf is not None:
            library, dtype, rank, scalar = leaf
            n = len(self.machine.graph.inputs)
            dims = tuple(Dim.symbol(f"s{n}_{i}", 0, SIZE_LIMIT) for i in range(rank))
            value = self.input(Tensor(library, dtype, dims, scalar), path, name)
            self.machine.graph.inputs[-1].example = obj
            return value
        cls = type(obj)
        if cls in (bool, int, float):
            if path in self.constants:
                self.guard("equal", path, obj)
                return Const(obj, path)
            if cls is int and not -(1 << 63) <= obj < 1 << 63:
                raise Unsupported(f"the integer {path} needs more than 64 bits")
            value = self.input(Scalar(cls.__name__), path, name)
            if cls is int:
                value.dim = Dim.opaque(value)
            self.scalars[value] = (path, obj)
            return value
        if cls is str or cls is bytes or cls is complex:
            self.guard("equal", path, obj)
            return Const(obj, path)
        if issubclass(cls, tuple(IDENTITY)):  # not isinstance, which may run code of the object's
            self.guard("is", path, obj)
            return Const(obj, path)
        if cls in (tuple, list, dict, set, frozenset):
            return self.held(obj, path, name)
        if is_jitted(obj) or callable(obj) and not cls.__flags__ & (1 << 9) or binding_for(obj) is not None and cls.__module__.partition(".")[0] in ("numpy", "builtins"):
            self.guard("is", path, obj)  # a function of some library
            return Const(obj, path)
        if cls.__flags__ & (1 << 9):  # a heap type: an instance of a Python class; looked into by attribute
            return self.held(obj, path, name)
        return self.input(PyObject(cls), path, name)  # held, passed on, never looked into

    def bind_scalar(self, value: Value) -> Any:
        """The value of a run-time input that is needed as a constant: guarded from now on, and a constant wherever it is read again."""
        path, obj = self.scalars[value]
        self.guard("equal", path, obj)
        if path not in self.constants:
            self.rebound += 1
            self.constants[path] = True
            self.known[path] = Const(obj, path)
        return obj

    def bind_flag(self, value: Value) -> None:
        """Bind a run-time flag, and where it is an attribute, that of all objects of the class: layers of one kind are configured alike."""
        path, _ = self.scalars[value]
        self.bind_scalar(value)
        if path in self.owners:
            self.constants[self.owners[path], path.steps[-1][1]] = True

    def held(self, obj: Any, path: Path, name: str) -> Const:
        """An object guarded by its type, to be looked into."""
        self.guard("type", path, type(obj))
        const = Const(obj, path, self.input(PyObject(type(obj)), path, name))
        self.machine.graph.examples.append(const)
        return const

    def input(self, type: Tensor | Scalar | PyObject, path: Path, name: str) -> Value:
        value = self.machine.new_value(type, name=name or str(path))
        self.machine.graph.inputs.append(Input(path, value, name=name or str(path)))
        return value

    # -- reading further
    def item(self, const: Const, key: Any) -> Tree:
        """const[key] of an exact tuple, list or dict, by a constant key."""
        container, path = const.value, const.path
        try:
            value = container[key]
        except (LookupError, TypeError) as e:
            raise Unsupported(f"{path or type(container).__name__}[{key!r}]: {type(e).__name__}") from None
        if path is None:
            return self.literal(value)
        if type(container) is not dict:
            if type(key) is not int:
                raise Unsupported(f"{path} indexed by {type(key).__name__}")
            if key < 0:
                self.guard("length", path, len(container))
                key += len(container)
        elif type(key) not in (str, int):
            raise Unsupported(f"a key of type {type(key).__name__} in {path}")
        return self.wrap(value, Path(path.root, path.steps + (("item", key),)))

    def items(self, const: Const) -> list[Tree]:
        """All items of a container constant; its length becomes guarded."""
        container, path = const.value, const.path
        if path is not None:
            if type(container) is dict:
                keys = tuple(container)
                self.guard("keys", path, keys)
                return [Const(k) for k in keys]
            self.guard("length", path, len(container))
            return [self.item(const, i) for i in range(len(container))]
        return [self.literal(v) for v in container]

    def container(self, const: Const) -> Tree | None:
        """What subscripts and loops of an object mean, if a framework knows that."""
        return next((held for read in CONTAINERS if (held := read(self.machine, const)) is not None), None)

    def length(self, const: Const) -> int:
        if const.path is not None:
            self.guard("length", const.path, len(const.value))
        return len(const.value)

    def literal(self, value: Any) -> Tree:
        """A tree for a constant of the program."""
        if type(value) is tuple:
            return Aggregate("tuple", tuple(self.literal(v) for v in value))
        return Const(value)

    def attribute(self, const: Const, name: str, plain: bool = False) -> Tree:
        """const.name by plain lookup: modules, classes, instance dictionaries, functions of the class. plain: as object.__getattribute__ looks it up, whatever
        the class has of its own. A 'property' is a function still to be called, and its arguments."""
        obj, path = const.value, const.path
        if path is None:
            path = Path(Root("const", obj))
        deeper = Path(path.root, path.steps + (("attr", name),))
        if issubclass(type(obj), types.ModuleType):
            if name not in obj.__dict__:
                try:
                    value = getattr(obj, name)
                except AttributeError:
                    raise Unsupported(f"module {obj.__name__} has no attribute {name}") from None
                return self.wrap(value, deeper)
            return self.wrap(obj.__dict__[name], deeper)
        if issubclass(type(obj), type):
            found = _in_mro(obj, name)
            if type(obj).__getattribute__ is not type.__getattribute__ or found is _ABSENT or hasattr(type(found), "__get__") and not isinstance(found, (types.FunctionType, staticmethod)):
                value = getattr(obj, name, _ABSENT)
                if isinstance(value, tuple(IDENTITY)) or name in ("__name__", "__qualname__") and type(obj) is type:
                    return self.wrap(value, deeper)
                raise Unsupported(f"attribute {name} of class {obj.__name__}")
            return self.wrap(found.__func__ if isinstance(found, staticmethod) else found, deeper)
        for reader in ATTRIBUTES:
            steps = reader(obj, name)
            if steps is not None:
                return self.follow(obj, path, steps)
        cls = type(obj)
        if type(cls.__getattribute__) is types.FunctionType and not plain:
            return Aggregate("property", (const, self.wrap(cls.__getattribute__, Path(Root("const", cls), (("attr", "__getattribute__"),))), Const(name)))
        if cls.__getattribute__ is not object.__getattribute__ and not plain:
            if issubclass(cls, tuple(IDENTITY)) or not cls.__flags__ & (1 << 9):
                value = getattr(obj, name, _ABSENT)
                if value is not _ABSENT and (isinstance(value, tuple(IDENTITY)) or type(value) in (bool, int, float, str, tuple)):
                    return self.wrap(value, deeper)
            raise Unsupported(f"attribute {name} of {cls.__name__}, which overrides __getattribute__")
        found = _in_mro(cls, name)
        if name == "__class__" and found is object.__dict__[name]:  # of what a path leads to, the type is guarded
            return self.wrap(cls, Path(Root("const", cls)))
        instance = getattr(obj, "__dict__", None)
        if isinstance(found, property):
            if type(found.fget) is types.FunctionType:
                return Aggregate("property", (const, Const(found.fget)))
            raise Unsupported(f"property {name} of {cls.__name__}")
        if instance is not None and name in instance and not hasattr(type(found), "__set__"):
            kind = next((k for ask in CONSTANTS if (k := ask(obj, name))), "")
            if type(instance[name]) is bool:
                self.owners[deeper] = cls
            if kind == "flag" or (cls, name) in self.constants:
                self.constants[deeper] = True
            tree = self.wrap(instance[name], deeper)
            if kind == "count" and isinstance(tree, Value):
                self.counts.add(tree)
            if kind in ("count", "number") and isinstance(tree, Value):
                self.configured.add(tree)
            return tree
        if found is _ABSENT:
            raise Unsupported(f"{cls.__name__} has no attribute {name}" if not hasattr(cls, "__getattr__") else f"attribute {name} through {cls.__name__}.__getattr__")
        if isinstance(found, types.MemberDescriptorType):  # __slots__
            value = getattr(obj, name, _ABSENT)
            if value is _ABSENT:
                raise Unsupported(f"slot {name} of {cls.__name__} is not set")
            return self.wrap(value, deeper)
        if not hasattr(type(found), "__get__"):
            return self.wrap(found, deeper)  # read through the instance, whose own value may come to hide it
        if instance is not None and const.path is not None:
            self.guard("absent", path, name)
        of_class = Path(Root("const", cls), (("attr", name),))
        if isinstance(found, types.FunctionType) or is_jitted(found):
            return Aggregate("method", (const, self.wrap(found, of_class)))
        if isinstance(found, staticmethod):
            return self.wrap(found.__func__, of_class)
        if isinstance(found, classmethod):
            return Aggregate("method", (self.wrap(cls, Path(Root("const", cls))), Const(found.__func__)))
        value = getattr(obj, name, _ABSENT)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
            raise Unsupported(f"method {name} of {cls.__name__}")
        raise Unsupported(f"descriptor {name} of {cls.__name__}")

    def of_super(self, cls: Const, const: Const, name: str) -> Tree:
        """super(cls, obj).name, of a function or of object's __getattribute__."""
        mro = type(const.value).__mro__
        for base in mro[mro.index(cls.value) + 1:]:
            if name in base.__dict__:
                found = base.__dict__[name]
                if type(found) is types.FunctionType or found is object.__getattribute__:
                    return Aggregate("method", (const, self.wrap(found, Path(Root("const", base), (("attr", name),)))))
                break
        raise Unsupported(f"super().{name} of {type(const.value).__name__}")

    def follow(self, obj: Any, path: Path, steps: tuple[tuple[Any, ...], ...]) -> Tree:
        """Read adapter steps from an object."""
        for kind, key in steps:
            obj = obj[key] if kind == "item" else getattr(obj, key)
        return self.wrap(obj, Path(path.root, path.steps + steps))


def is_jitted(obj: Any) -> bool:
    """A function that bcvm.jit made: calls of it are inlined like calls of the function it wraps."""
    return getattr(type(obj), "_bcvm_jitted", False)


_ABSENT = type("_Absent", (), {})()


def _in_mro(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return _ABSENT
