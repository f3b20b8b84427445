"""Subscripts: basic indexing is a view, an integer tensor gathers, everything else is the interpreter's."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bcvm.bytecode.dtypes import is_float
from bcvm.errors import Unsupported
from bcvm.ops import shaperules
from bcvm.ops.function_bindings import taken
from bcvm.ops.ordering import true_places
from bcvm.shapes.dim import Dim, product
from bcvm.specialise.operators import library_of, store
from bcvm.specialise.ssa import Aggregate, Tree, Value
from bcvm.specialise.types import Const, Scalar, Tensor

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine


def load_item(m: "Machine", obj: Tree, index: Tree) -> Tree:
    """obj[index]"""
    if isinstance(obj, Value) and isinstance(obj.type, Tensor):
        with library_of(m, [obj]):
            return index_tensor(m, obj, index)
    if isinstance(obj, Const):
        if type(obj.value) in (tuple, list) and isinstance(index, Aggregate) and index.kind == "slice":
            return load_item(m, Aggregate(type(obj.value).__name__, tuple(m.resolver.items(obj))), index)
        if type(obj.value) in (tuple, list, dict):
            return m.resolver.item(obj, m.builder.constant(index))
        if type(obj.value) is str:
            return Const(item_of(obj.value, m.builder.constant(index)))
        held = m.resolver.container(obj)
        if held is not None:
            return load_item(m, held, index)
    if isinstance(obj, Aggregate):
        if obj.kind in ("tuple", "list"):
            if isinstance(index, Aggregate) and index.kind == "slice":
                return Aggregate(obj.kind, item_of(obj.items, slice(*(m.builder.constant(i) for i in index.items))))
            i = m.builder.constant(index)
            if type(i) is not int or not -len(obj.items) <= i < len(obj.items):
                raise Unsupported(f"index {i!r} of a {obj.kind} of {len(obj.items)}")
            return obj.items[i]
        if obj.kind == "dict":
            key = m.builder.constant(index)
            for k, v in zip(obj.items[::2], obj.items[1::2]):
                if isinstance(k, Const) and type(k.value) is type(key) and k.value == key:
                    return v
    from bcvm.specialise.instructions import describe
    raise Unsupported(f"a subscript of {describe(obj)}")


def item_of(obj: Any, index: Any) -> Any:
    """obj[index] of a plain sequence. Unsupported where Python raises."""
    try:
        return obj[index]
    except (TypeError, ValueError, IndexError) as e:
        raise Unsupported(f"{type(e).__name__}: {e}") from None


def store_item(m: "Machine", obj: Tree, index: Tree, value: Tree) -> None:
    """obj[index] = value, for a tensor and a basic index or a mask."""
    if isinstance(obj, Value) and isinstance(obj.type, Tensor) and obj.type.library == "mindspore":
        with library_of(m, [obj]):
            return store_into_new(m, obj, index, value)
    if not (isinstance(obj, Value) and isinstance(obj.type, Tensor)) or obj.type.library != "numpy" or obj.type.scalar:
        raise Unsupported("a subscript store into anything but a tensor")
    with library_of(m, [obj]):
        if is_mask(index, obj.type):
            view, value = slice_view(m, obj, index_items(m, obj, Const(Ellipsis)), array=True), where_masked(m, obj, index, value)  # type: ignore[arg-type]
        else:
            view = slice_view(m, obj, index_items(m, obj, index), array=True)
        if isinstance(value, (Aggregate, Const)) and not m.builder.is_scalar(value):
            raise Unsupported("storing a sequence into a tensor")
        store(m, view, value)


_KINDS = "buif"  # of dtypes, each of which holds those before it


def store_into_new(m: "Machine", obj: Value, index: Tree, value: Tree) -> None:
    """A store into a MindSpore tensor that this graph made. Under a basic index its memory is written, which its views share. Under a mask the tensor
    gets other memory, and views that were made before keep the old one."""
    b, t = m.builder, obj.type
    assert isinstance(t, Tensor)
    if not made_here(obj):
        raise Unsupported("a store into a MindSpore tensor that was passed, captured or broadcast")
    if not b.is_scalar(value) and not (b.is_tensor(value) and _KINDS.index(b.dtype(value).lstrip("b")[0] if b.dtype(value) != "bool" else "b") <= _KINDS.index("b" if t.dtype == "bool" else t.dtype.lstrip("b")[0])):
        raise Unsupported(f"storing {b.describe(value)} into {t.dtype}")
    if b.dtype(value) == "float" and not is_float(t.dtype):
        raise Unsupported("a float stored into integers")
    if is_mask(index, t):
        if not b.is_scalar(value) and b.rank(value):
            raise Unsupported("a store of many values under a mask")
        fits_mask(m, obj, index)  # type: ignore[arg-type]
        wide = b.op("expand_dims", index, axis=tuple(range(b.rank(index), t.rank))) if b.rank(index) < t.rank else index
        m.replace(obj, b.op("where", wide, b.cast(value, t.dtype), obj))
        return
    store(m, slice_view(m, obj, index_items(m, obj, index), array=True), value)


def made_here(v: Value) -> bool:
    """Whether the memory is of this graph's making, and no element of the tensor stands for several."""
    while v.node is not None and v.node.op == "view":
        if v.node.attrs["kind"] == "broadcast":
            return False
        v = v.node.operands[0]
    return v.node is not None and v.node.op in ("op", "fill", "copy")


def index_items(m: "Machine", obj: Value, index: Tree) -> list[tuple[Any, ...]]:
    """The index per axis: ('index', tree) | ('slice', start, stop, step) | ('new',); Ellipsis spread out."""
    t = obj.type
    assert isinstance(t, Tensor)
    parts = list(index.items) if isinstance(index, Aggregate) and index.kind == "tuple" else [index]
    items: list[tuple[Any, ...] | None] = []
    for p in parts:
        if isinstance(p, Aggregate) and p.kind == "slice":
            items.append(("slice", *(None if isinstance(i, Const) and i.value is None else i for i in p.items)))
        elif isinstance(p, Const) and p.value is None:
            items.append(("new",))
        elif isinstance(p, Const) and p.value is Ellipsis:
            if None in items:
                raise Unsupported("two ellipses in an index")
            items.append(None)
        elif isinstance(p, Const) and type(p.value) is int or isinstance(p, Value) and isinstance(p.type, Scalar) and p.type.kind == "int":
            items.append(("index", p))
        elif isinstance(p, Const) and type(p.value) is slice:
            items.append(("slice", *(None if i is None else Const(i) for i in (p.value.start, p.value.stop, p.value.step))))
        elif isinstance(p, Value) and isinstance(p.type, Tensor) and p.type.rank == 0 and p.type.dtype[0] in "iu" and p.type.scalar:
            items.append(("index", m.builder.item(p)))
        else:
            raise Unsupported(f"an index of {m.builder.describe(p)}")
    used = sum(i is not None and i[0] != "new" for i in items)
    if used > t.rank:
        raise Unsupported(f"{used} indices into rank {t.rank}")
    rest: list[tuple[Any, ...]] = [("slice", None, None, None)] * (t.rank - used)
    if None in items:
        at = items.index(None)
        return items[:at] + rest + items[at + 1:]  # type: ignore[operator,return-value]
    return items + rest  # type: ignore[return-value]


def index_tensor(m: "Machine", obj: Value, index: Tree) -> Tree:
    t = obj.type
    assert isinstance(t, Tensor)
    if isinstance(index, Value) and isinstance(index.type, Tensor) and not index.type.scalar and index.type.dtype in ("int32", "int64") and index.type.rank and t.rank:
        return taken(m.builder, obj, index, 0)
    if t.library == "numpy" and is_mask(index, t):
        return masked(m, obj, index)  # type: ignore[arg-type]
    parts = index.items if isinstance(index, Aggregate) and index.kind == "tuple" else (index,)
    if 2 <= len(parts) <= t.rank and all(isinstance(p, Value) and isinstance(p.type, Tensor) and p.type.dtype in ("int32", "int64") and p.type.rank for p in parts):
        return at_places(m, obj, parts)  # type: ignore[arg-type]
    return slice_view(m, obj, index_items(m, obj, index), array=any(isinstance(p, Const) and p.value is Ellipsis for p in parts))


def at_places(m: "Machine", obj: Value, indices: tuple[Value, ...]) -> Tree:
    """obj[i, j, ...] by arrays of places in the first axes, one for each: taken from the rows of these axes as one."""
    b, n = m.builder, len(indices)
    dims = b.dims(obj)
    place = within = None
    for index, size in zip(indices, map(b.int_of, dims), strict=False):
        at = b.cast(index, "int64")
        at = b.op("where", b.op("lt", at, 0), b.op("add", at, size), at)
        good = b.op("logical_and", b.op("ge", at, 0), b.op("lt", at, size))
        place = at if place is None else b.op("add", b.op("mul", place, size), at)
        within = good if within is None else b.op("logical_and", within, good)
    rows = product(dims[:n])
    beyond = b.as_tensor(b.int_of(rows), "int64")  # no place in one axis may pass for another row's
    return taken(b, b.reshape(obj, [rows, *dims[n:]]), b.op("where", within, place, beyond), 0)  # type: ignore[no-any-return]


def is_mask(index: Tree, t: Tensor) -> bool:
    """Whether an index is an array of bools over a tensor's first axes."""
    mask = index.type if isinstance(index, Value) else None
    return isinstance(mask, Tensor) and mask.dtype == "bool" and not mask.scalar and 1 <= mask.rank <= t.rank


def fits_mask(m: "Machine", obj: Value, mask: Value) -> None:
    for have, want in zip(obj.type.dims, mask.type.dims, strict=False):  # type: ignore[union-attr]
        m.builder.require("eq", want, have, "a mask of other sizes")


def masked(m: "Machine", obj: Value, mask: Value) -> Value:
    """obj[mask]: the items where it is true, in order."""
    b = m.builder
    fits_mask(m, obj, mask)
    if b.rank(mask) > 1:
        obj, mask = b.reshape(obj, [product(b.dims(mask)), *b.dims(obj)[b.rank(mask):]]), b.reshape(mask, [product(b.dims(mask))])
    return taken(b, obj, true_places(b, mask), 0)  # type: ignore[no-any-return]


def where_masked(m: "Machine", obj: Value, mask: Value, value: Tree) -> Value:
    """What obj[mask] = number makes of obj."""
    b = m.builder
    fits_mask(m, obj, mask)
    number = b.is_scalar(value) and b.dtype(value) in ("int", "float")
    same = isinstance(value, Value) and isinstance(value.type, Tensor) and not value.type.rank and value.type.dtype == b.dtype(obj)
    if not (is_float(b.dtype(obj)) and number or same):
        raise Unsupported("a store under a mask of other than one number into floating point")
    wide = b.op("expand_dims", mask, axis=tuple(range(b.rank(mask), b.rank(obj)))) if b.rank(mask) < b.rank(obj) else mask
    return b.op("where", wide, b.cast(value, b.dtype(obj)), obj)  # type: ignore[no-any-return]


def slice_view(m: "Machine", v: Value, items: list[tuple[Any, ...]], array: bool = False) -> Value:
    """The view of basic indexing, with Python's clamping of slices and bounds check of integers. array: an array if it is of rank 0 as well,
    as an index with an ellipsis gives, or a store needs."""
    t = v.type
    assert isinstance(t, Tensor)
    b = m.builder
    per_axis: list[tuple[Any, ...]] = []
    dims: list[Dim] = []
    new_at: list[int] = []
    axis = 0
    for item in items:
        if item[0] == "new":
            new_at.append(len(dims) + len(new_at))
            continue
        n = t.dims[axis]
        axis += 1
        if item[0] == "index":
            per_axis.append(("index", bounds_checked(m, item[1], n)))
            continue
        start, size, step = slice_bounds(m, n, *item[1:])
        per_axis.append(("slice", start, step))
        dims.append(size)
    whole = not dims and not new_at and not array
    out = b.view(v, dims, "slice", items=tuple(per_axis), whole=whole)
    for a in new_at:
        d = out.type.dims  # type: ignore[union-attr]
        out = b.view(out, (*d[:a], Dim.const(1), *d[a:]), "expand", axis=a)
    return out


def bounds_checked(m: "Machine", index: Tree, n: Dim) -> Dim:
    b = m.builder
    i = b.dim_of(index)
    lo, hi = i.interval()
    if i.value is not None and i.value < 0:
        m.emit("check", how="le", a=Dim.const(-i.value), b=n)
        return n + i
    if lo < 0:
        i = b.dim_of(wrapped(m, index, n))
        m.emit("check", how="le", a=Dim.const(0), b=i)
    if not (i.value is not None and n.value is not None and i.value < n.value):
        if i.value is not None and n.value is not None:
            raise Unsupported(f"index {i} of size {n}")
        m.emit("check", how="lt", a=i, b=n)
    return i


def wrapped(m: "Machine", index: Tree, n: Dim) -> Value:
    """A run-time index as Python counts it: negative ones from the end."""
    value = m.emit("scalar", (m.as_value(index), m.as_value(m.builder.int_of(n))), Scalar("int"), fn="wrap")
    value.dim = value.dim or Dim.opaque(value)
    return value


def slice_bounds(m: "Machine", n: Dim, start: Tree, stop: Tree, step: Tree) -> tuple[Dim, Dim, int]:
    """(first index, number of items, step) of a slice of a dim of size n."""
    s = 1 if step is None else m.builder.constant(step)
    if type(s) is not int or s == 0:
        raise Unsupported(f"slice step {s!r}")
    low, high = (None if tree is None else m.builder.dim_of(tree) for tree in (start, stop))
    first, size = shaperules.slice_bounds(n, low, high, s, lambda d: m.builder.dim_of(wrapped(m, m.builder.int_of(d), n)))
    return first, size, s
