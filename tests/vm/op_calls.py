"""How a program calls an op, and arrays of the same values in every memory layout."""
from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bcvm import ops
from bcvm.ops.definition import Op

Attrs = dict[str, Any]


def _subscript(items: Any) -> str:
    """slice items as a subscript is written"""
    def text(item: Any) -> str:
        if item[0] == "new":
            return "None"
        return str(item[1]) if item[0] == "index" else ":".join("" if i is None else str(i) for i in item[1:])
    return ", ".join(map(text, items))


def _items(names: list[str]) -> str:
    return "[" + ", ".join(names) + "]"


def _transposed(name: str) -> Callable[[list[str], Attrs], str]:
    """The function says by how much the result is larger than it must be; of the op's samples one is, by a row."""
    def spell(x: list[str], a: Attrs) -> str:
        attrs = {k: v for k, v in a.items() if k != "dims"}
        more = {"output_padding": (1, 0)} if a["dims"] == (12, 4) else {}
        return f"ops.{name}({', '.join([*x, *(f'{k}={v!r}' for k, v in {**attrs, **more}.items())])})"
    return spell


# Where the public function is not `ops.NAME(*operands, **attrs)`.
SPELLINGS: dict[str, Callable[[list[str], Attrs], str]] = {
    "concat": lambda x, a: f"ops.concat({_items(x)}, axis={a['axis']})",
    "stack": lambda x, a: f"ops.stack({_items(x)}, axis={a['axis']})",
    "slice": lambda x, a: f"{x[0]}[{_subscript(a['items'])}]",
    "reshape": lambda x, a: f"ops.reshape({x[0]}, {a['dims']!r})",
    "full": lambda x, a: f"ops.full({a['dims']!r}, {x[0]}, dtype={a['dtype']!r})",
    "arange": lambda x, a: f"ops.arange({x[0]}, {x[0]} + {a['dims'][0]} * {x[1]}, {x[1]}, dtype={a['dtype']!r})",
    "eye": lambda x, a: f"ops.eye({a['dims'][0]}, {a['dims'][1]}, k={a['k']}, dtype={a['dtype']!r})",
    "scaled_dot_product_attention": lambda x, a: f"ops.scaled_dot_product_attention({', '.join(x)}, is_causal={a['causal']}, scale={a['scale']})",
    "conv_transpose1d": _transposed("conv_transpose1d"),
    "conv_transpose2d": _transposed("conv_transpose2d"),
    "group_norm": lambda x, a: f"ops.group_norm({x[0]}, {a['groups']}, {', '.join([*x[1:], 'eps=' + str(a['eps'])])})",
}
# Ops whose operands are Python numbers in the public function.
PYTHON_NUMBERS = {"full", "arange"}


def spelled(op: Op, names: list[str], attrs: Attrs) -> str:
    """The Python expression that applies an op to variables."""
    if op.name in SPELLINGS:
        return SPELLINGS[op.name](names, attrs)
    return f"ops.{op.name}({', '.join([*names, *(f'{k}={v!r}' for k, v in attrs.items())])})"


_written = itertools.count()


def space() -> dict[str, Any]:
    return {"np": np, "ops": ops}


def function(text: str) -> Callable[..., Any]:
    """The function `f` of a source text, whose source is found again."""
    name = f"<program {next(_written)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names = space()
    exec(compile(text, name, "exec"), names)
    made: Callable[..., Any] = names["f"]
    return made


def call_of(op: Op, count: int, attrs: Attrs) -> Callable[..., Any]:
    names = [f"x{i}" for i in range(count)]
    return function(f"def f({', '.join(names)}):\n    return {spelled(op, names, attrs)}\n")


# -- layouts

def contiguous(a: Any) -> Any:
    return np.array(a, order="C")


def transposed(a: Any) -> Any:
    return contiguous(a.T).T


def sliced(a: Any) -> Any:
    big = np.zeros([2 * n for n in a.shape], a.dtype)
    other = (..., *[slice(None, None, 2)] * a.ndim)
    view = big[other]
    view[...] = a
    return view


def reversed_(a: Any) -> Any:
    every = (..., *[slice(None, None, -1)] * a.ndim)
    return contiguous(a[every])[every]


def padded(a: Any) -> Any:
    big = np.ones([n + 3 for n in a.shape], a.dtype)
    inside = (..., *[slice(1, 1 + n) for n in a.shape])
    view = big[inside]
    view[...] = a
    return view


def offset(a: Any) -> Any:
    """Contiguous, aligned to the element and to nothing more."""
    flat = np.zeros(a.size + 1, a.dtype)
    view = flat[1:].reshape(a.shape)
    view[...] = a
    return view


LAYOUTS: dict[str, Callable[[Any], Any]] = {"contiguous": contiguous, "transposed": transposed, "sliced": sliced, "reversed": reversed_, "padded": padded,
                                            "offset": offset}


def layouts(operands: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The operands in every layout; then with the values of a first row repeated by stride 0, and mixed layouts."""
    arrays = tuple(np.asarray(o) for o in operands)
    for name, make in LAYOUTS.items():
        yield name, tuple(map(make, arrays))
    kinds = list(LAYOUTS.values())
    yield "mixed", tuple(kinds[(i + 1) % len(kinds)](a) for i, a in enumerate(arrays))
    if any(a.ndim for a in arrays):
        yield "broadcast", tuple(np.broadcast_to(a[:1] if a.ndim else a, a.shape) for a in arrays)
        yield "broadcast along the last axis", tuple(np.broadcast_to(a[..., :1] if a.ndim else a, a.shape) for a in arrays)
