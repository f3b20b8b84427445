"""Shape hints from annotations: `bcvm.Tensor["B, *, 768"]`, also as text (`from __future__ import annotations`), with `| None` or in `Optional[...]`."""
from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from bcvm.errors import ShapeError


class Hinted(NamedTuple):
    """A hint's text, and whether None may stand there instead of a tensor."""

    text: str
    optional: bool = False


def hint_of(annotation: Any) -> Hinted | None:
    """What an annotation says; None where it is none of ours. An annotation object has the hint as `hint_text`, and `optional`."""
    if isinstance(annotation, str):
        return _of_tree(_parsed(annotation))
    text = getattr(annotation, "hint_text", "")
    if text and isinstance(text, str):
        return Hinted(text, getattr(annotation, "optional", False) is True)
    args = _arguments(annotation)
    if len(args) == 2 and type(None) in args:
        inner = hint_of(args[0] if args[1] is type(None) else args[1])
        return inner and Hinted(inner.text, True)
    return None


def hints_of(function: FunctionType) -> tuple[tuple[str, Hinted], ...]:
    """(name, hint) of each annotated parameter that is one value, and of 'return', where that is a tensor in any case."""
    stars = _stars(function)
    return tuple((name, hint) for name, a in function.__annotations__.items()
                 if name not in stars and (hint := hint_of(a)) is not None and not (name == "return" and hint.optional))


def check_hints(function: FunctionType) -> None:
    """ShapeError for hints where they are not read: inside other types, on *args and **kwargs."""
    stars = _stars(function)
    for name, a in function.__annotations__.items():
        what = "the result" if name == "return" else f"argument {stars.get(name, '')}{name}"
        code = function.__code__
        where = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno}): {what}"
        if name in stars:
            if next(_hints_inside(a), None):
                raise ShapeError(f"{where} has a shape hint, which is read on single arguments only; name the tensors as arguments, or annotate without a hint")
        elif hint_of(a) is None and next(_hints_inside(a), None):
            raise ShapeError(f"{where} has a shape hint inside another type, where it is not read; hints are bcvm.Tensor[...] itself, with | None or in Optional[...]")


def _stars(function: FunctionType) -> dict[str, str]:
    code = function.__code__
    at = code.co_argcount + code.co_kwonlyargcount
    kinds = [star for flag, star in ((inspect.CO_VARARGS, "*"), (inspect.CO_VARKEYWORDS, "**")) if code.co_flags & flag]
    return dict(zip(code.co_varnames[at:], kinds))


def _arguments(annotation: Any) -> tuple[Any, ...]:
    args = getattr(annotation, "__args__", ())
    return args if isinstance(args, tuple) else ()


def _hints_inside(annotation: Any) -> Iterator[Hinted]:
    """Hints anywhere in an annotation."""
    if isinstance(annotation, str):
        for node in ast.walk(_parsed(annotation) or ast.Module([], [])):
            hint = _of_tree(node)
            if hint is not None:
                yield hint
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from _hints_inside(node.value)
        return
    hint = hint_of(annotation)
    if hint is not None:
        yield hint
    for arg in _arguments(annotation):
        yield from _hints_inside(arg)


def _parsed(text: str) -> ast.expr | None:
    """The text is read, never evaluated."""
    if "Tensor" not in text:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _of_tree(node: ast.AST | None) -> Hinted | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _of_tree(_parsed(node.value))  # a text annotation where all annotations are text
    sides: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # Tensor["B"] | None
        sides = [node.left, node.right]
    elif isinstance(node, ast.Subscript):
        name = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id if isinstance(node.value, ast.Name) else ""
        index = node.slice
        if name == "Tensor":
            return Hinted(index.value) if isinstance(index, ast.Constant) and isinstance(index.value, str) else None
        if name == "Optional":
            sides = [index, ast.Constant(None)]
        elif name == "Union" and isinstance(index, ast.Tuple):
            sides = index.elts
    inner = next((hint for side in sides if (hint := _of_tree(side)) is not None), None)
    return inner and Hinted(inner.text, inner.optional or any(isinstance(s, ast.Constant) and s.value is None for s in sides))
