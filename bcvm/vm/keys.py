"""The type key of a call: what specialisations are distinguished by. Kinds, libraries, dtypes, ranks; never sizes."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bcvm.specialise.resolve import IDENTITY, TENSOR_LEAVES

_NUMBERS = (bool, int, float)
_BY_VALUE = (type(None), str, bytes, complex)


def leaf_key(obj: Any) -> Any:
    """The key of one argument."""
    cls = type(obj)
    describe = TENSOR_LEAVES.get(cls)
    if describe is not None:
        return describe(obj) or cls
    if cls in _NUMBERS:
        return cls
    if cls in _BY_VALUE:
        return (cls, obj)
    if cls is tuple or cls is list:
        return (cls, tuple(map(leaf_key, obj)))
    if cls is dict:
        return (cls, tuple((k if type(k) in (str, int) else id(k), leaf_key(v)) for k, v in obj.items()))
    if issubclass(cls, tuple(IDENTITY)):  # not isinstance, which may run code of the object's
        return (cls, id(obj))
    return cls


def call_key(args: Sequence[Any], names: tuple[str, ...] = ()) -> Any:
    return (tuple(map(leaf_key, args)), names)


def describe_key(key: Any) -> str:
    """For people: `float32[2], int, training=bool`."""
    leaves, names = key
    words = [_word(k) for k in leaves]
    split = len(words) - len(names)
    return ", ".join(words[:split] + [f"{n}={w}" for n, w in zip(names, words[split:])])


def _word(k: Any) -> str:
    if isinstance(k, type):
        return k.__name__
    if isinstance(k, tuple) and len(k) == 4 and isinstance(k[0], str):
        library, dtype, rank, scalar = k
        return f"{'' if library == 'numpy' else library + ' '}{dtype}" + ("" if scalar else f"[{', '.join('?' * rank)}]")
    if isinstance(k, tuple) and isinstance(k[0], type):
        if k[0] in (tuple, list):
            inner = ", ".join(map(_word, k[1]))
            return f"({inner})" if k[0] is tuple else f"[{inner}]"
        if k[0] is dict:
            return "{" + ", ".join(f"{n}: {_word(v)}" for n, v in k[1]) + "}"
        return repr(k[1]) if k[0] in _BY_VALUE else k[0].__name__
    return str(k)
