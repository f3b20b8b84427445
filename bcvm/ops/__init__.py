"""The ops: definitions, bindings of libraries' calls to them, and public functions that run at once.

    from bcvm import ops
    ops.softmax(x, axis=-1)          on NumPy arrays or MindSpore tensors; in a compiled program, the op
    ops.definition.OPS               the table; `register` adds to it, and every op gets a function here
"""
from __future__ import annotations

from typing import Any

# Importing a family fills the table; functions come after it.
from bcvm.ops import activations, composite, creation, elementwise, functions_math, movement, products, reductions  # noqa: F401, I001
from bcvm.ops.convolutions import conv1d, conv3d, conv_transpose1d, conv_transpose2d  # noqa: F401
from bcvm.ops.definition import BINDINGS, METHODS, OPS, Op, binds, register  # noqa: F401
from bcvm.ops.functions import (  # noqa: F401
    all,
    any,
    arange,
    argmax,
    argmin,
    avg_pool2d,
    batch_norm,
    broadcast_to,
    cast,
    concat,
    conv2d,
    cumsum,
    elu,
    embedding,
    expand_dims,
    eye,
    full,
    gelu,
    group_norm,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    logsumexp,
    max,
    max_pool2d,
    mean,
    min,
    normalize,
    one_hot,
    ones,
    pad,
    prod,
    public,
    reshape,
    rms_norm,
    scaled_dot_product_attention,
    softmax,
    squeeze,
    stack,
    std,
    sum,
    take,
    transpose,
    tril,
    triu,
    var,
    zeros,
)


def __getattr__(name: str) -> Any:
    """A function for any op of the table, users' own included; made once."""
    if name in OPS:
        function_bindings.by_position(name)
        return globals().setdefault(name, public(OPS[name]))
    raise AttributeError(f"module 'bcvm.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *OPS})


from bcvm.ops import function_bindings, numpy_bindings, numpy_creation, numpy_methods, ordering, python_bindings  # noqa: E402, F401
