"""What the layout promises: imports run one way, no circle, the heavy libraries are loaded late, no file past its length."""
from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bcvm"

# folder -> the folders it may import; modules directly under bcvm/ are "base" (errors, config), importable from everywhere
ALLOWED: dict[str, set[str]] = {"base": set(), "bytecode": set(), "frontend": {"bytecode"}, "shapes": {"bytecode"}}
for folder, below in (("ops", "shapes"), ("specialise", "ops"), ("compiler", "specialise")):
    ALLOWED[folder] = ALLOWED[below] | {below}
ALLOWED["devices"] = ALLOWED["compiler"] | {"compiler"}
ALLOWED["vm"] = ALLOWED["devices"] | {"devices", "frontend"}
ALLOWED["frameworks"] = ALLOWED["vm"] | {"vm"}
ALLOWED["tools"] = ALLOWED["vm"] | {"vm"}
# what assembles the package: the public face and the command line
ASSEMBLY = {"bcvm", "bcvm.__main__", "bcvm.mindspore", "bcvm.startup"}
# heavy library -> where it may be imported at all; never while a module is loaded, save in these folders
LATE = {"llvmlite": "compiler", "mindspore": "frameworks"}
MAX_LINES = 600
LONG_FILES: dict[str, str] = {}  # path -> why it may be longer


def modules() -> dict[str, Path]:
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(PACKAGE.rglob("*.py"))}


def folder_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "base"


def type_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: str, path: Path) -> Iterator[tuple[str, int, bool]]:
    """(imported module, line, whether loading the module imports it) of every import that is not for types alone."""
    known = modules()

    def walk(node: ast.AST, loading: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if type_only(child):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, child.lineno, loading) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = module.split(".")[: len(module.split(".")) - child.level + (path.name == "__init__.py")]
                    base = ".".join(parents + ([base] if base else []))
                yield from ((f"{base}.{a.name}" if f"{base}.{a.name}" in known else base, child.lineno, loading) for a in child.names)
            yield from walk(child, loading and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def test_imports_run_one_way() -> None:
    wrong = []
    for module, path in modules().items():
        if module in ASSEMBLY:
            continue
        here = folder_of(module)
        for target, line, _ in imports(module, path):
            there = folder_of(target)
            if target == "bcvm" and here != "tools":
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports the public face; import the module that has it")
            elif target.startswith("bcvm.") and there not in {here, "base"} | ALLOWED[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} may not import {there} ({target})")
    assert not wrong, "\n".join(wrong)


def test_no_module_takes_part_in_an_import_circle() -> None:
    known = modules()
    graph = {m: {t for t, _, loading in imports(m, p) if loading and t in known and t != m} for m, p in known.items() if m not in ASSEMBLY}
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        assert module not in trail, "imports go round: " + " -> ".join([*trail[trail.index(module):], module])
        if module in done or module not in graph:
            return
        for target in sorted(graph[module]):
            visit(target, [*trail, module])
        done.add(module)

    for module in graph:
        visit(module, [])


def test_heavy_libraries_are_imported_in_their_folder_only() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{line}: {target}" for module, path in modules().items() for target, line, _ in imports(module, path)
             if folder_of(module) != LATE.get(target.split(".")[0], folder_of(module))]
    assert not wrong, "\n".join(wrong)


def test_importing_bcvm_loads_no_heavy_library_and_starts_no_thread() -> None:
    code = f"import sys, threading, bcvm; print([m for m in {sorted(LATE)} if m in sys.modules], threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[] 1", 0), done.stderr


@pytest.mark.parametrize("top", ["bcvm", "tests", "bench", "examples"])
def test_files_keep_to_their_length(top: str) -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / top).rglob("*.py")}
    too_long = {name: n for name, n in lengths.items() if n > MAX_LINES and name not in LONG_FILES}
    assert not too_long, f"past {MAX_LINES} lines without a reason in LONG_FILES: {too_long}"
    assert all((ROOT / name).is_file() for name in LONG_FILES), "LONG_FILES names a file that is gone"
