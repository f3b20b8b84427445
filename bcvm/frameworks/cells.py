"""MindSpore's cells: how the specialiser calls them, and what `bcvm.jit(cell)` makes."""
from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from bcvm.errors import Unsupported
from bcvm.frontend import program_of
from bcvm.specialise import resolve
from bcvm.specialise.ssa import Path, Tree
from bcvm.specialise.types import Const
from bcvm.vm import function

if TYPE_CHECKING:
    from bcvm.specialise.machine import Machine

# Attributes of a cell that make its call more than its construct, unless they are false (nn.Cell.__call__ in MindSpore 2.10).
_SPECIAL = ("_lazy_forward_pre_hook", "_lazy_forward_hook", "_lazy_backward_pre_hook", "_lazy_backward_hook", "_shard_fn", "_recompute_cell",
            "_saved_tensors_pack_hook", "mixed_precision_type", "_dynamic_shape_inputs", "requires_grad")


def cell_call(m: "Machine", callee: Const) -> Tree | None:
    """A call of a cell without hooks, mixed precision and the like is a call of its construct; guarded."""
    from mindspore.nn import Cell
    cell = callee.value
    if not issubclass(type(cell), Cell):
        return None
    if type(cell).__call__ is not Cell.__call__:
        raise Unsupported(f"{type(cell).__name__} overrides __call__")
    path = callee.path
    for name in _SPECIAL:
        if vars(cell).get(name):
            raise Unsupported(f"{type(cell).__name__} has {name.removeprefix('_lazy_').lstrip('_')}")
        if name in vars(cell) and path is not None:
            m.resolver.guard("falsy", Path(path.root, path.steps + (("attr", name),)), None)
    return m.resolver.attribute(callee, "construct")


def jit_cell(obj: Any, options: dict[str, Any]) -> Any:
    """A cell whose calls are native calls of its construct; its attributes stay the cell's."""
    from mindspore.nn import Cell
    if not issubclass(type(obj), Cell):
        return None
    construct = vars(obj).get("construct", type(obj).construct.__get__(obj))
    while resolve.is_jitted(construct):
        construct = construct.__wrapped__
    if type(construct) is types.MethodType:
        return function.bound_method(construct.__func__, construct.__self__, options, stands_for=obj)
    return function.make(program_of(construct), program_of, options, construct, stands_for=obj)


def register() -> None:
    resolve.CALLEES.append(cell_call)
    function.ADAPTERS.append(jit_cell)
