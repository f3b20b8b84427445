"""The page on what of MindSpore's API runs native, generated from the bindings and from MindSpore's own code.

    python -m bcvm.frameworks.mindspore_page > docs/mindspore-ops.md
    python -m bcvm.frameworks.mindspore_page --check docs/mindspore-ops.md      exits with 1 if the page is not current

It needs the MindSpore that the bindings were written after.
"""
from __future__ import annotations

import argparse
import dis
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bcvm.ops.definition import METHODS, OPS, Library
from bcvm.ops.lookup import binding_for

FUSED, NATIVE, INLINED, PART, PYNATIVE = "fused", "native", "inlined", "in part", "PyNative"
_INTRODUCTION = """# MindSpore's API in bcvm

Generated from the bindings by `make docs`; do not edit. It holds for MindSpore {version} on CPU.

| word | meaning |
| --- | --- |
| fused | native, and may become one kernel with its neighbours |
| native | a kernel of its own |
| inlined | Python code of MindSpore's, compiled with its caller; all that it calls is native |
| in part | the same, but it names something that runs as PyNative; whether a call comes there depends on its arguments |
| PyNative | called back into MindSpore; what follows runs native again |

For arguments that a binding does not cover, a call runs as PyNative as well; `explain` gives the reason. Whether a layer is inlined is read from the primitives and
functions that its class names.
"""


class Reader:
    """Statuses of MindSpore's objects, each found once."""

    def __init__(self) -> None:
        import mindspore
        self.mindspore = mindspore
        self.known: dict[int, tuple[Any, str, tuple[str, ...]]] = {}

    def status(self, obj: Any) -> tuple[str, tuple[str, ...]]:
        """(word, ops or what is missing)"""
        known = self.known.get(id(obj))
        if known is None:
            self.known[id(obj)] = (obj, INLINED, ())  # of a recursion: decided by the rest
            known = self.known[id(obj)] = (obj, *self._status(obj))
        return known[1:]

    def _status(self, obj: Any) -> tuple[str, tuple[str, ...]]:
        binding = self.binding(obj)
        if binding is not None:
            return of_ops(ops_of(binding))
        if isinstance(obj, types.FunctionType):
            return self.of_code([obj])
        if isinstance(obj, type) and issubclass(obj, self.mindspore.nn.Cell):
            functions = [below_decorators(f) for c in obj.__mro__ if c.__module__ != "mindspore.nn.cell"
                         for n in ("__init__", "construct") if isinstance(f := vars(c).get(n), types.FunctionType)]
            own = vars(obj).get("construct") or next((vars(c)["construct"] for c in obj.__mro__ if "construct" in vars(c)), None)
            if own is None or own.__module__ == "mindspore.nn.cell" or "construct" not in {f.__name__ for f in functions}:
                return PYNATIVE, ()
            return self.of_code(functions)
        return PYNATIVE, ()

    def binding(self, obj: Any) -> Any:
        if isinstance(obj, type):
            from bcvm.ops.lookup import _by_class
            binding_for(len)
            of_class = _by_class.get(obj)
            return of_class[1] if of_class is not None else None
        found = binding_for(obj)
        return found[1] if found is not None and found[0] == "mindspore" else None

    def of_code(self, functions: list[types.FunctionType]) -> tuple[str, tuple[str, ...]]:
        missing: dict[str, None] = {}
        counted = 0
        for fn in functions:
            for name, obj in named_in(fn):
                if not self.counts(obj):
                    continue
                counted += 1
                word, _ = self.status(obj)
                if word in (PYNATIVE, PART):
                    missing[name] = None
        if missing:
            return PART, tuple(missing)
        return (INLINED, ()) if counted else (PYNATIVE, ())

    def counts(self, obj: Any) -> bool:
        """Whether an object that code names does work on tensors."""
        ms = self.mindspore
        if isinstance(obj, type):
            return issubclass(obj, (ms.ops.Primitive, ms.nn.Cell)) and obj not in (ms.ops.Primitive, ms.nn.Cell)
        module = getattr(obj, "__module__", None) or type(obj).__module__
        if isinstance(obj, types.FunctionType):
            return module.startswith(("mindspore.ops", "mindspore.mint", "mindspore.nn.layer")) and not obj.__name__.lstrip("_").startswith(("check", "raise", "get_"))
        return isinstance(obj, ms.ops.Primitive) and not type(obj).__qualname__.startswith(("constexpr.", "_primexpr.")) or type(obj).__name__ == "FunctionalInstance"


def below_decorators(fn: types.FunctionType) -> types.FunctionType:
    """The method itself: a decorator's wrapper closes over it."""
    for cell in fn.__closure__ or ():
        inner = cell.cell_contents
        if isinstance(inner, types.FunctionType) and inner.__name__ in ("__init__", "construct") and inner is not fn:
            return below_decorators(inner)
    return fn


def named_in(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Globals, and attributes of modules that are globals, which a function's code loads."""
    at: Any = None
    name = ""
    for i in dis.get_instructions(fn.__code__):
        if i.opname == "LOAD_GLOBAL" and i.argval in fn.__globals__:
            if at is not None:
                yield name, at
            at, name = fn.__globals__[i.argval], i.argval
        elif i.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(at, types.ModuleType):
            at, name = getattr(at, i.argval, None), f"{name}.{i.argval}"
        elif at is not None and i.opname not in ("PUSH_NULL", "PRECALL", "CACHE"):
            yield name, at
            at = None
    if at is not None:
        yield name, at


def ops_of(binding: Any, depth: int = 3) -> list[str]:
    """The ops that a binding's code names, in order: in itself, in what it closes over, and in its module's functions that it calls."""
    found: dict[str, None] = {}

    def text(value: Any, depth: int) -> None:
        if isinstance(value, str) and value in OPS:
            found[value] = None
        elif isinstance(value, types.FunctionType) and depth:
            of_function(value, depth - 1)
        elif isinstance(value, (tuple, frozenset)):
            for v in value:
                text(v, depth)
        elif isinstance(value, dict):
            for v in value.values():
                text(v, depth)

    def code(c: types.CodeType, depth: int) -> None:
        for const in c.co_consts[1:] if c.co_consts and isinstance(c.co_consts[0], str) and "\n" in c.co_consts[0] else c.co_consts:
            if isinstance(const, types.CodeType):
                code(const, depth)
            else:
                text(const, depth)

    def of_function(fn: types.FunctionType, depth: int) -> None:
        for cell in fn.__closure__ or ():
            text(cell.cell_contents, depth)
        for default in fn.__defaults__ or ():
            text(default, depth)
        code(fn.__code__, depth)
        for name in fn.__code__.co_names:
            value = fn.__globals__.get(name)
            if isinstance(value, types.FunctionType) and value.__module__ == fn.__module__ and name.startswith("_"):
                text(value, depth)
    of_function(binding, depth)
    return list(found)


def of_ops(names: list[str]) -> tuple[str, tuple[str, ...]]:
    return (NATIVE if any(isinstance(OPS[n].form, Library) for n in names) else FUSED), tuple(names)


def section(title: str, rows: list[tuple[str, str, tuple[str, ...]]]) -> list[str]:
    counts = Counter(word for _, word, _ in rows)
    order = (FUSED, NATIVE, INLINED, PART, PYNATIVE)
    lines = ["", f"## {title}", "", ", ".join(f"{counts[w]} {w}" for w in order if counts[w]) + ".", "", "| name | runs | by |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {word} | {', '.join(('`' + m + '`') if word in (FUSED, NATIVE) else m for m in more[:6])} |"
              for name, word, more in sorted(rows, key=lambda r: (order.index(r[1]), r[0])) if word != PYNATIVE]
    rest = sorted(name for name, word, _ in rows if word == PYNATIVE)
    if rest:
        lines += ["", "PyNative: " + ", ".join(f"`{n}`" for n in rest) + "."]
    return lines


def public(module: Any) -> dict[str, Any]:
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = {n: getattr(module, n, None) for n in names}
    return {n: o for n, o in found.items() if callable(o) and not n.startswith("_")}


def page() -> str:
    """The page as Markdown text."""
    import mindspore
    from mindspore import mint, nn, ops

    from bcvm.vm import libraries
    libraries.refresh()
    reader = Reader()

    def rows(objects: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(n, *reader.status(o)) for n, o in objects.items()]

    every = public(ops)
    primitives = {n: o for n, o in every.items() if isinstance(o, type) and issubclass(o, ops.Primitive)}
    functions = {n: o for n, o in every.items() if not isinstance(o, type)}
    methods = METHODS["mindspore"]
    own = [n for n in dir(mindspore.Tensor) if not n.startswith("_") and callable(getattr(mindspore.Tensor, n, None))]
    tensor = [(n, *(of_ops(ops_of(methods[n])) if n in methods else (PYNATIVE, ()))) for n in own]
    attributes = [(n[1:], *of_ops(ops_of(f))) for n, f in methods.items() if n.startswith(".")]
    lines = [_INTRODUCTION.format(version=mindspore.__version__)]
    lines += section("mindspore.nn", rows({n: o for n, o in public(nn).items() if isinstance(o, type) and issubclass(o, nn.Cell)}))
    lines += section("mindspore.ops, functions", rows(functions))
    lines += section("mindspore.ops, primitives", rows(primitives))
    lines += section("mindspore.mint", rows({n: o for n, o in public(mint).items() if not isinstance(o, type)}))
    lines += section("mindspore.mint.nn.functional", rows(public(mint.nn.functional)))
    lines += section("Methods of Tensor", tensor)
    lines += section("Attributes of Tensor", attributes)
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    args = argparse.ArgumentParser(prog="python -m bcvm.frameworks.mindspore_page", description="Print docs/mindspore-ops.md.")
    args.add_argument("--check", metavar="FILE", type=Path, help="exit with 1 if FILE is not what would be printed")
    path: Path | None = args.parse_args(argv).check
    if path is None:
        sys.stdout.buffer.write(page().encode())
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == page():
        return 0
    print(f"{path} is not current; run: python -m bcvm.frameworks.mindspore_page > {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
