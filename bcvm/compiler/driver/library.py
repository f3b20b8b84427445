"""Ops that are no regions: joins, and kernels of the library."""
from __future__ import annotations

from bcvm.compiler.driver import kernels_call
from bcvm.compiler.driver.values import Driver
from bcvm.errors import Unsupported
from bcvm.ops.definition import Library
from bcvm.specialise.ssa import Node


def op(d: Driver, node: Node) -> None:
    """Emit one op with a Library form."""
    form = node.attrs["op"].form
    if not isinstance(form, Library):
        raise Unsupported(f"{node.attrs['op'].name} has no native form")
    if form.name == "concat":
        kernels_call.concat(d, node.results[0], node.operands, node.attrs["attrs"]["axis"])
        return
    raise Unsupported(f"no native kernel {form.name}")
