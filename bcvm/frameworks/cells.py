"""MindSpore's cells: how the specialiser calls them, and what `bcvm.jit(cell)` makes."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bcvm.errors import Unsupported
from bcvm.specialise import resolve
from bcvm.specialise.ssa import Path, Tree
from bcvm.specialise.types import Const
from bcvm.vm import function

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

# Attributes of a cell that make its call more than its construct, and what they are when it is not (nn.Cell.__call__ in MindSpore 2.10).
_PLAIN = {"_lazy_forward_pre_hook": None, "_lazy_forward_hook": None, "_lazy_backward_pre_hook": None, "_lazy_backward_hook": None, "_shard_fn": None,
          "_recompute_cell": None, "_saved_tensors_pack_hook": None, "mixed_precision_type": None, "_dynamic_shape_inputs": None, "requires_grad": False}


def cell_call(m: "Machine", callee: Const) -> Tree | None:
    """A call of a cell without hooks, mixed precision and the like is a call of its construct; guarded."""
    from mindspore.nn import Cell
    cell = callee.value
    if not isinstance(cell, Cell):
        return None
    if type(cell).__call__ is not Cell.__call__:
        raise Unsupported(f"{type(cell).__name__} overrides __call__")
    path = callee.path
    for name, plain in _PLAIN.items():
        if vars(cell).get(name, plain) is not plain:
            raise Unsupported(f"{type(cell).__name__} has {name.removeprefix('_lazy_').lstrip('_')}")
        if name in vars(cell) and path is not None:
            m.resolver.guard("is", Path(path.root, path.steps + (("attr", name),)), plain)
    return m.resolver.attribute(callee, "construct")


def jit_cell(obj: Any, options: dict[str, Any]) -> Any:
    """The construct of a cell, jitted and bound to it."""
    from mindspore.nn import Cell
    if not isinstance(obj, Cell):
        return None
    construct = vars(obj).get("construct") or type(obj).construct
    return function.jit(construct, **options) if "construct" in vars(obj) else function.jit(construct, **options).__get__(obj)


def register() -> None:
    resolve.CALLEES.append(cell_call)
    function.ADAPTERS.append(jit_cell)
