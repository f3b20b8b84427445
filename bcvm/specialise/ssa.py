"""Typed SSA: what the specialiser produces and the only input of the compiler.

A `Graph` has blocks with parameters. Pure nodes may be moved within their block, merged or dropped; nodes with an effect
stay in order. A native exit always leaves at a *safe point*: a `State` (one level per inlined call) from which the
interpreter goes on. A check that fails leaves at the last safe point before it; everything since then was pure, so
running it again is harmless, and it is the interpreter that raises the error, with Python's own type, message and line.

Aggregates exist at compile time only: a *tree* is a Value, a `Const`, or an `Aggregate` (tuple, list, dict, slice, range,
bound method, iterator) of trees.

Node ops and what the compiler must do for each (operands -> results):

    op        tensors and scalars -> tensors     node.attrs: op (the Op), attrs (constant attributes of the op)
                                                 elementwise operands broadcast against node.results[0].type.dims; scalar
                                                 operands and tensors of another dtype are preceded by `cast` ops, so every
                                                 operand already has the computation dtype
    view      tensor -> tensor                   attrs: kind, and per kind (every Dim may be computed at run time):
                                                 transpose: perm | expand: axis | squeeze: axis | broadcast: (dims are the result's)
                                                 slice: items, one per operand axis: ('index', Dim) | ('slice', start Dim, step int); sizes are the
                                                 result's dims, start is already normalised into range
                                                 reshape: dims are the result's; a view where strides allow (contiguous: where the operand is C-contiguous), else a copy;
                                 `size` of both is equal (checked)
    dim       -> int                             attrs: dim. The int value of a Dim
    const     -> Scalar                          attrs: value
    item      tensor (any rank, one element) -> Scalar   its only element; exits if the number of elements is not 1
    scalar    Scalars -> Scalar                  attrs: fn. add sub mul floordiv mod truediv pow neg abs not eq ne lt le gt ge and or xor shl shr
                                                 min max int float bool sqrt exp log floor ceil ..., wrap(i, n): i + n if i < 0 else i; int(i): i itself, as an atom of its own in later dims ; operands of one type unless fn converts. int add, sub, mul, neg,
                                                 pow, shl exit on overflow; a zero divisor exits; int(float) exits if not finite or too large
    check     -> nothing                         attrs: how ('eq' 'le' 'lt' 'bcast' 'bcast_into'), a, b: Dims. Exits unless it holds ('bcast': equal, or one of them 1;
                                                 'bcast_into': equal, or a is 1)
    guard     bool Scalar -> nothing             exits if false
    fill      -> tensor                          a new tensor of the result's dims and dtype, filled with attrs value (a number), or with its Scalar operand; a number
                                                 among the operands of an op is a fill of rank 0, which costs no memory
    store     target view, value tensor or scalar (dtype already the target's; broadcasts to the target's dims)   effect. writes memory.
                                                 target and value may overlap; value is read as it was before the store
    copy      tensor -> tensor                   a fresh C-contiguous tensor
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Union

from bcvm.bytecode.program import BoundProgram, Program
from bcvm.shapes.dim import Dim
from bcvm.specialise.types import Const, Scalar, Tensor, Type


class Value:
    """An SSA value. `dim`: for an int, the Dim it holds. `root`: for a view, the value whose memory it shares."""

    __slots__ = ("id", "type", "node", "dim", "root", "name")

    def __init__(self, id: int, type: Type, node: "Node | None" = None, dim: Dim | None = None, root: "Value | None" = None, name: str = "") -> None:
        self.id, self.type, self.node, self.dim, self.name = id, type, node, dim, name
        self.root: Value = root.root if root is not None else self

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass(eq=False)
class Aggregate:
    """kind: 'tuple', 'list', 'dict' (items alternate key, value), 'slice' (3 items), 'range' (3 items), 'method' (object, Const name),
    'iterator' (aggregate or tensor, position value). Two references to one mutable list share one Aggregate."""

    kind: str
    items: tuple["Tree", ...]

    def key(self) -> Any:
        return (self.kind, tuple(tree_key(i) for i in self.items))


Tree = Union[Value, Const, Aggregate, None]  # None: an unset local


def tree_key(tree: Tree) -> Any:
    """The type key of a tree: what block versions and specialisations are distinguished by. No sizes."""
    if tree is None:
        return None
    return tree.type.key() if isinstance(tree, Value) else tree.key()


def leaves(tree: Any) -> Iterator[Value]:
    """The values in a tree, in order."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, Aggregate):
        for item in tree.items:
            yield from leaves(item)
    elif isinstance(tree, Const) and tree.handle is not None:
        yield tree.handle


@dataclass(eq=False)
class Level:
    """One activation at a safe point: `pc` is the next instruction; stack and locals are trees. symbols: the sizes that hints have named
    so far and later hints may read: name -> (what says so, int)."""

    bound: BoundProgram
    pc: int
    locals: tuple[Tree, ...]
    stack: tuple[Tree, ...]
    symbols: tuple[tuple[str, str, Tree], ...] = ()

    def trees(self) -> tuple[Tree, ...]:
        return self.locals + self.stack + tuple(t for _, _, t in self.symbols)


@dataclass(eq=False)
class State:
    """A safe point, outermost level first. An outer level's pc is the instruction after its call, whose result is still to be pushed."""

    levels: tuple[Level, ...]
    _found: tuple[tuple[Level, ...], tuple[tuple[Value, ...], ...], tuple[Value, ...]] | None = field(default=None, init=False, repr=False)

    def values(self) -> tuple[Value, ...]:
        """Each value once, in order."""
        self.by_level()
        assert self._found is not None
        return self._found[2]

    def by_level(self) -> tuple[tuple[Value, ...], ...]:
        """The values of each level that no level outside it has."""
        if self._found is None or self._found[0] is not self.levels:
            known: dict[Value, None] = {}
            found = []
            for level in self.levels:
                outside = len(known)
                known.update(dict.fromkeys(v for tree in level.trees() for v in leaves(tree)))
                found.append(tuple(islice(known, outside, None)))
            self._found = self.levels, tuple(found), tuple(known)
        return self._found[1]


@dataclass(eq=False)
class Node:
    """One operation. `state`: where to leave if it exits. `where`: (program, instruction id) it comes from."""

    op: str
    operands: tuple[Value, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    results: tuple[Value, ...] = ()
    state: State | None = None
    where: tuple[Program, int] | None = None

    @property
    def effect(self) -> bool:
        return self.op == "store"


@dataclass(eq=False)
class Jump:
    target: "Block"
    args: tuple[Value, ...]


@dataclass(eq=False)
class Branch:
    """condition: a bool Scalar value."""

    condition: Value
    then: Jump
    orelse: Jump


@dataclass(eq=False)
class Return:
    tree: Tree


@dataclass(eq=False)
class Exit:
    """Leave to the interpreter. reason: 'call_py', 'unsupported: ...', 'versions', 'raises'."""

    state: State
    reason: str


Terminator = Union[Jump, Branch, Return, Exit]


@dataclass(eq=False)
class Block:
    """`params` get their values from the jumps. A tensor parameter's dims are symbols of its own, bound to the sizes that
    arrive. `loop`: some jump to it comes from a block that it dominates; such a header polls for interrupts."""

    id: int
    params: tuple[Value, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    end: Terminator | None = None
    loop: bool = False
    state: State | None = None


class Root(tuple):  # type: ignore[type-arg]
    """A path root. It may hold live objects of any kind: compared by identity."""

    def __new__(cls, *items: Any) -> "Root":
        return super().__new__(cls, items)

    def __hash__(self) -> int:
        return hash(tuple(i if isinstance(i, (str, int)) else id(i) for i in self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Root) and len(self) == len(other) and all(a is b or isinstance(a, (str, int)) and a == b for a, b in zip(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True)
class Path:
    """Where an entry value is read, again at every call. Roots: ('arg', i) the i-th argument of the call, ('closure', cell),
    ('global', globals dict, builtins dict, name), ('const', object). Then steps: ('attr', name) or ('item', key), of exact
    tuples, lists and dicts."""

    root: Root
    steps: tuple[tuple[Any, ...], ...] = ()

    def __str__(self) -> str:
        kind, last = self.root[0], self.root[-1]
        out = f"arg{last}" if kind == "arg" else last if isinstance(last, str) else getattr(last, "__qualname__", "captured")
        for kind, key in self.steps:
            out += f".{key}" if kind == "attr" else f"[{key!r}]"
        return out


@dataclass(frozen=True, eq=False)
class Guard:
    """What must hold on entry. how: 'is' (the object at path is `value`), 'type' (exact type of a container), 'equal' (a guarded constant of
    type and value), 'length' (of a tuple, list or dict), 'keys' (tuple of dict keys), 'absent' (the instance dict of the object at path has no
    such name), 'falsy' (the object at path is false), 'code' (the code object of the function at path). Leaves in `Graph.inputs` are guarded by their type."""

    how: str
    path: Path
    value: Any


@dataclass(eq=False)
class Input:
    """A run-time value read on entry."""

    path: Path
    value: Value
    writable: bool = False  # the program stores into it
    name: str = ""
    example: Any = None     # the tensor that was read at the path when the graph was made


@dataclass(eq=False)
class Graph:
    """A specialisation. `entry` is blocks[0]; it has no parameters: inputs are defined on entry."""

    name: str
    inputs: list[Input] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    n_values: int = 0
    callbacks: list[tuple[Program, int, str]] = field(default_factory=list)  # where native code leaves, and why
    options: dict[str, Any] = field(default_factory=dict)
    examples: list[Const] = field(default_factory=list)                      # whose value is an object of the call that was specialised for

    def forget_examples(self) -> None:
        """Let go of the arguments of that call; what is left of the graph reads handles."""
        for const in self.examples:
            object.__setattr__(const, "value", None)
        self.examples.clear()
        for i in self.inputs:
            i.example = None

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def show_tree(tree: Tree) -> str:
    if tree is None:
        return "unset"
    if isinstance(tree, Value):
        return f"%{tree.id}"
    if isinstance(tree, Const):
        return str(tree)
    return f"{tree.kind}({', '.join(show_tree(i) for i in tree.items)})"


def _show_dims(attrs: dict[str, Any]) -> str:
    parts = []
    for key, value in attrs.items():
        if key == "op":
            continue
        parts.append(f"{key}={value}")
    return " ".join(parts)


def _typed(value: Value) -> str:
    t = value.type
    if isinstance(t, Tensor):
        return f"%{value.id}: {t.dtype}[{', '.join(map(str, t.dims))}]"
    return f"%{value.id}: {t}" + (f" = {value.dim}" if isinstance(t, Scalar) and value.dim is not None else "")


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name}"
    for g in graph.guards:
        yield f"  guard {g.how} {g.path} {getattr(g.value, '__name__', None) or repr(g.value)[:60]}"
    for i in graph.inputs:
        yield f"  input {_typed(i.value)} <- {i.path}"
    for b in graph.blocks:
        yield f"b{b.id}({', '.join(map(_typed, b.params))}){' loop' if b.loop else ''}:"
        for n in b.nodes:
            name = n.attrs["op"].name if n.op == "op" else n.op
            left = ", ".join(map(_typed, n.results))
            yield f"  {left + ' = ' if left else ''}{name}({', '.join(map(repr, n.operands))}) {_show_dims(n.attrs)}".rstrip()
        e = b.end
        if isinstance(e, Jump):
            yield f"  jump b{e.target.id}({', '.join(map(repr, e.args))})"
        elif isinstance(e, Branch):
            yield (f"  if {e.condition} b{e.then.target.id}({', '.join(map(repr, e.then.args))}) "
                   f"else b{e.orelse.target.id}({', '.join(map(repr, e.orelse.args))})")
        elif isinstance(e, Return):
            yield f"  return {show_tree(e.tree)}"
        elif isinstance(e, Exit):
            yield f"  exit {e.reason}"
