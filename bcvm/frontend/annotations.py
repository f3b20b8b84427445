"""Shape hints from annotations: `bcvm.Tensor["B, *, 768"]`, also as text (`from __future__ import annotations`)."""
from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def hint_of(annotation: Any) -> str:
    """The hint's text, '' where the annotation is none of ours. An annotation object has it as `hint_text`."""
    if isinstance(annotation, str):
        return _from_text(annotation)
    text = getattr(annotation, "hint_text", "")
    return text if isinstance(text, str) else ""


def hints_of(annotations: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(name, hint text) of each annotated parameter, and of 'return'."""
    return tuple((name, hint) for name, a in annotations.items() if (hint := hint_of(a)))


def _from_text(text: str) -> str:
    """The text is read, never evaluated."""
    if "Tensor" not in text:
        return ""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != text:
        return _from_text(node.value)  # a text annotation where all annotations are text
    if isinstance(node, ast.BinOp):  # Tensor["B"] | None
        return _from_text(ast.unparse(node.left)) or _from_text(ast.unparse(node.right))
    if not isinstance(node, ast.Subscript):
        return ""
    name = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id if isinstance(node.value, ast.Name) else ""
    index = node.slice
    return index.value if name == "Tensor" and isinstance(index, ast.Constant) and isinstance(index.value, str) else ""
