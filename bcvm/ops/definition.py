"""What an op is. One `Op` per tensor operation; interpreter, specialiser, compiler, docs and tests all follow from it.

An op's `reference` is its meaning: exact, slow, NumPy. Its `form` says how native code is made:

    ScalarExpr   one value per element of the broadcast operands, from an expression over a `VectorBuilder`
    Reduction    over axes, by a combining function (`sum`, `prod`, `max`, `min`, `any`, `all`, `argmax`, `argmin`)
    View         a new way to look at the same memory (transpose, slice, reshape, ...); the compiler knows each `kind`
    Library      a kernel generator of the compiler, by name (`matmul`, `conv2d`, `concat`, `take`, ...)
    Composite    a function over an `OpBuilder` that makes it of other ops (softmax, layer_norm, ...)
    Opaque       no native form: the interpreter runs it

Bindings turn a library's spelling of a call into ops: `@binds("numpy.sum", method="sum")` on a function that takes an
OpBuilder and the call's arguments. It runs at specialisation time on SSA values, and raises Unsupported for what it does
not cover; the call then runs in the interpreter.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from bcvm.shapes.dim import Dim

# A library's rule for the element type of a result; adapters implement each for their library (DESIGN: dtype rule per library).
#   same      the first tensor operand's               promote    the library's promotion of all operands
#   float     promote, integers become floating point  bool       bool, operands promoted for the computation
#   sum       promote, small integers widen            mean       the library's mean of such a tensor
#   index     the library's index type                 explicit   attrs["dtype"]
DTYPE_RULES = ("same", "promote", "float", "bool", "sum", "mean", "index", "explicit")


class VectorBuilder(Protocol):
    """Emits one lane-wise expression. Values carry their dtype (`v.dtype`); lanes, masks and CPU features are the builder's.
    Both operands of a method have the same dtype. Integer arithmetic wraps. Float semantics are IEEE, no fast-math."""

    def const(self, value: float | int | bool, dtype: str) -> Any: ...
    def cast(self, a: Any, dtype: str) -> Any: ...  # as NumPy's astype; bool casts are `!= 0`
    def add(self, a: Any, b: Any) -> Any: ...
    def sub(self, a: Any, b: Any) -> Any: ...
    def mul(self, a: Any, b: Any) -> Any: ...
    def div(self, a: Any, b: Any) -> Any: ...       # floats only
    def floordiv(self, a: Any, b: Any) -> Any: ...  # NumPy's: floor; integer x//0 is 0
    def mod(self, a: Any, b: Any) -> Any: ...       # NumPy's: sign of the divisor; integer x%0 is 0
    def neg(self, a: Any) -> Any: ...
    def fma(self, a: Any, b: Any, c: Any) -> Any: ...
    def minimum(self, a: Any, b: Any) -> Any: ...   # NaN if either is, as np.minimum
    def maximum(self, a: Any, b: Any) -> Any: ...
    def fmin(self, a: Any, b: Any) -> Any: ...      # NaN only if both are
    def fmax(self, a: Any, b: Any) -> Any: ...
    def abs(self, a: Any) -> Any: ...
    def sqrt(self, a: Any) -> Any: ...
    def rounding(self, mode: str, a: Any) -> Any: ...  # "floor" | "ceil" | "trunc" | "rint" (half to even)
    def compare(self, how: str, a: Any, b: Any) -> Any: ...  # "eq" "ne" "lt" "le" "gt" "ge" -> bool, NaN compares false (ne true)
    def select(self, c: Any, a: Any, b: Any) -> Any: ...     # c is bool
    def bit(self, how: str, a: Any, b: Any) -> Any: ...      # "and" "or" "xor" "shl" "shr" on integers and bool
    def invert(self, a: Any) -> Any: ...                     # ~ on integers, not on bool
    def copysign(self, a: Any, b: Any) -> Any: ...
    def math(self, name: str, *a: Any) -> Any: ...  # "exp" "expm1" "log" "log1p" "log2" "log10" "sin" "cos" "tan" "tanh" "sigmoid" "erf" "gelu" "pow" "exp2" "atan" "sinh" "cosh" ... float32/float64


@dataclass(frozen=True)
class ScalarExpr:
    """expr(e, *operands, **attrs) -> value, over a VectorBuilder. Operands arrive in the computation dtype."""

    expr: Callable[..., Any]


@dataclass(frozen=True)
class Reduction:
    """combine: 'sum' 'prod' 'max' 'min' 'any' 'all' 'argmax' 'argmin'. Attrs: axis (tuple of non-negative ints), keepdims."""

    combine: str


@dataclass(frozen=True)
class View:
    """kind and attrs, which may hold run-time integers (Dim): 'transpose' perm; 'slice' items (see `OpBuilder.slice`);
    'reshape' dims; 'broadcast_to' dims; 'expand_dims' axis; 'squeeze' axes; 'diagonal'."""

    kind: str


@dataclass(frozen=True)
class Library:
    """A generator in compiler/kernels of this name."""

    name: str


@dataclass(frozen=True)
class Composite:
    """build(b, *operands, **attrs) -> value(s), over an OpBuilder."""

    build: Callable[..., Any]


@dataclass(frozen=True)
class Opaque:
    """Runs in the interpreter only."""


Form = Union[ScalarExpr, Reduction, View, Library, Composite, Opaque]


class ShapeContext(Protocol):
    """What a shape rule may ask for. Each request that is not decided now becomes a run-time check."""

    def broadcast(self, *shapes: Sequence[Dim]) -> tuple[Dim, ...]: ...
    def require_equal(self, a: Dim, b: Dim, message: str) -> None: ...
    def require(self, how: str, a: Dim, b: Dim, message: str) -> None: ...  # how: "eq" "le" "lt"


Sample = Callable[[Any, str], Iterable[tuple[tuple[Any, ...], dict[str, Any]]]]  # (random generator, dtype) -> (operands, attrs) pairs


@dataclass(frozen=True)
class Op:
    """One tensor operation.

    name        unique; what CALL_OP names
    operands    names of the tensor operands, in order; a last name starting with '*' takes any number
    form        how native code is made
    dtype       a rule of DTYPE_RULES
    shape       shape(ctx, *operand_dims, **attrs) -> result dims (a tuple of tuples for several results); default: broadcast
    reference   reference(*arrays, **attrs) -> array(s): the exact meaning
    eager       the same, fast; default the reference
    attrs       names of the constant attributes
    results     number of results
    effects     subset of {'writes', 'aliases', 'random', 'raises'}
    domain      dtypes it is defined for
    bound       per dtype the allowed error against the reference: ulp for elementwise, relative for others
    samples     samples(rng, dtype) yields (operands, attrs) for the differential tests
    gradient    gradient(b, grads, operands, results, attrs) -> operand gradients, over an OpBuilder
    saves       which of ("operands", "results") the gradient needs
    cost        cost(dims..., attrs) -> (flops, bytes) as Dims
    doc         one line
    """

    name: str
    operands: tuple[str, ...]
    form: Form
    dtype: str = "promote"
    shape: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    eager: Callable[..., Any] | None = None
    attrs: tuple[str, ...] = ()
    results: int = 1
    effects: frozenset[str] = frozenset()
    domain: tuple[str, ...] = ("float32", "float64", "int32", "int64", "bool")
    bound: dict[str, float] = field(default_factory=dict, hash=False, compare=False)
    samples: Sample | None = None
    gradient: Callable[..., Any] | None = None
    saves: tuple[str, ...] = ()
    cost: Callable[..., Any] | None = None
    doc: str = ""


class OpBuilder(Protocol):
    """What composites and bindings build with; the specialiser implements it. Arguments are SSA values (typed, symbolic);
    every method also takes Python constants."""

    library: str  # "numpy", "mindspore", "bcvm": whose rules hold

    # -- asking
    def is_tensor(self, v: Any) -> bool: ...
    def is_element(self, v: Any) -> bool: ...           # a tensor that Python sees as a NumPy scalar, not as an array
    def is_none(self, v: Any) -> bool: ...
    def is_scalar(self, v: Any) -> bool: ...            # a Python bool, int or float, run-time or constant
    def is_sequence(self, v: Any) -> bool: ...          # a tuple or list value
    def dtype(self, v: Any) -> str: ...                 # of a tensor, or 'int' | 'float' | 'bool' for a Python scalar
    def rank(self, v: Any) -> int: ...
    def dims(self, v: Any) -> tuple[Dim, ...]: ...
    def items(self, v: Any) -> list[Any]: ...           # of a tuple or list value
    def constant(self, v: Any) -> Any: ...              # the Python value; binds a run-time scalar as a guarded constant
    def axis(self, v: Any, rank: int) -> int: ...       # constant, normalised; out of range runs in the interpreter (which raises)
    def axes(self, v: Any, rank: int) -> tuple[int, ...]: ...  # None is all axes; an int or a tuple
    def describe(self, v: Any) -> str: ...              # what a value is, in words
    def unsupported(self, reason: str) -> "Any": ...    # raises errors.Unsupported
    def require(self, how: str, a: Dim, b: Dim, message: str) -> None: ...  # as ShapeContext.require: where it fails at run time the interpreter takes over

    # -- building; each returns a value
    def op(self, name: str, *operands: Any, **attrs: Any) -> Any: ...  # any op of the table, dtype rule and shape rule applied
    def cast(self, v: Any, dtype: str) -> Any: ...                     # a Python scalar becomes a tensor of rank 0
    def number(self, v: Any, dtype: str) -> Any: ...                   # a Python scalar as a NumPy scalar
    def scalar(self, name: str, *operands: Any) -> Any: ...            # arithmetic on Python scalars, Python's semantics
    def item(self, v: Any) -> Any: ...                                 # the Python scalar that a tensor of one element holds (other sizes: the error of the library)
    def size(self, v: Any, axis: int) -> Any: ...                      # an int value
    def int_of(self, d: Dim) -> Any: ...                               # an int value that holds a dim
    def dim_of(self, v: Any) -> Dim: ...                               # the dim that an int value holds
    def full(self, dims: Sequence[Dim], value: Any, dtype: str) -> Any: ...
    def reshape(self, v: Any, dims: Sequence[Dim], contiguous: bool = False) -> Any: ...  # sizes resolved: no -1; contiguous: as ravel, a copy of what is strided
    def transpose(self, v: Any, perm: Sequence[int]) -> Any: ...
    def copy(self, v: Any) -> Any: ...                                 # memory of its own
    def write(self, target: Any, value: Any, exact: bool) -> Any: ...  # stores a value into an array, of its own dtype and sizes if `exact`; gives the array
    def slice(self, v: Any, items: Sequence[Any]) -> Any: ...          # per axis ('index', int value) | ('slice', start, stop, step) | ('new',); None bounds allowed
    def tuple(self, items: Sequence[Any]) -> Any: ...
    def list(self, items: Sequence[Any]) -> Any: ...


# -- registries

OPS: dict[str, Op] = {}
BINDINGS: dict[str, dict[str, Callable[..., Any]]] = {}  # library -> qualified name -> binding
METHODS: dict[str, dict[str, Callable[..., Any]]] = {}   # library -> tensor method or attribute name -> binding (first argument the tensor)


def register(op: Op) -> Op:
    """Add an op to the table; the name must be new. Users' ops are added the same way."""
    if op.name in OPS:
        raise ValueError(f"an op named {op.name!r} exists already")
    OPS[op.name] = op
    return op


def binds(*names: str, method: str | Sequence[str] = (), attribute: str | Sequence[str] = (), library: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a binding under qualified names (`numpy.sum`, `mindspore.ops.LayerNorm`: a class stands for the call of an
    instance, which arrives as the second argument) and as a tensor method or attribute of the library."""
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            BINDINGS.setdefault(library or name.split(".")[0], {})[name] = fn
        lib = library or (names[0].split(".")[0] if names else "numpy")
        for m in (method,) if isinstance(method, str) else method:
            METHODS.setdefault(lib, {})[m] = fn
        for a in (attribute,) if isinstance(attribute, str) else attribute:
            METHODS.setdefault(lib, {})["." + a] = fn
        return fn
    return add
