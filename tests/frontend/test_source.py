"""The source is believed only if it is this function's: whatever happened to the file, the right thing runs."""
from __future__ import annotations

import doctest
import importlib.util
import linecache
import sys
import types
import warnings
from pathlib import Path

import pytest

from bcvm.frontend import program_of, source
from bcvm.vm.interpreter import run


def load(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imports(function: object) -> list[str]:
    return [i.source for i in program_of(function).program.imports]  # type: ignore[arg-type]


def is_native(function: object) -> bool:
    return not any(s.startswith("whole function") for s in imports(function))


def untrusted(function: object) -> str:
    with pytest.warns(RuntimeWarning, match="runs as plain Python") as caught:
        program_of(function)  # type: ignore[arg-type]
    assert len(caught) == 1
    return str(caught[0].message)


def test_a_file_edited_after_import_is_not_believed(tmp_path: Path) -> None:
    module = load(tmp_path / "edited.py", "def f(x):\n    return x + 1\n")
    (tmp_path / "edited.py").write_text("def f(x):\n    return x + 2\n")
    linecache.clearcache()
    assert "edited since" in untrusted(module.f)
    assert run(program_of(module.f), (1,)) == 2


def test_an_edit_elsewhere_in_the_file_does_not_matter(tmp_path: Path) -> None:
    module = load(tmp_path / "elsewhere.py", "def f(x):\n    return x + 1\n\ndef g(x):\n    return x\n")
    (tmp_path / "elsewhere.py").write_text("def f(x):\n    return x + 1\n\ndef g(x):\n    return x * 100\n")
    linecache.clearcache()
    assert is_native(module.f)
    untrusted(module.g)


def test_a_moved_function_is_not_believed(tmp_path: Path) -> None:
    module = load(tmp_path / "moved.py", "def f(x):\n    return x + 1\n")
    (tmp_path / "moved.py").write_text("\n\ndef f(x):\n    return x + 1\n")
    linecache.clearcache()
    untrusted(module.f)


def test_a_deleted_file_is_not_believed(tmp_path: Path) -> None:
    module = load(tmp_path / "deleted.py", "def f(x):\n    return x + 1\n")
    (tmp_path / "deleted.py").unlink()
    linecache.clearcache()
    assert "not available" in untrusted(module.f)
    assert run(program_of(module.f), (1,)) == 2


def test_a_file_that_no_longer_parses_is_not_believed(tmp_path: Path) -> None:
    module = load(tmp_path / "broken.py", "def f(x):\n    return x + 1\n")
    (tmp_path / "broken.py").write_text("def f(x:\n")
    linecache.clearcache()
    assert "does not parse" in untrusted(module.f)


def test_a_stale_line_cache_is_refreshed(tmp_path: Path) -> None:
    path = tmp_path / "stale.py"
    path.write_text("def f(x):\n    return 'an older and longer text'\n")
    linecache.getlines(str(path))
    module = load(path, "def f(x):\n    return x + 1\n")
    assert is_native(module.f)


def test_an_exec_d_function_runs_as_python_and_warns_once() -> None:
    space: dict[str, object] = {}
    exec("def f(x, *, k=2):\n    return x * k\ng = lambda *a: a", space)
    f = space["f"]
    assert "not available" in untrusted(f)
    assert run(program_of(f), (3,), {"k": 5}) == 15  # type: ignore[arg-type]
    assert run(program_of(f), (3,)) == 6  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = types.FunctionType(f.__code__, space)  # type: ignore[attr-defined]
        again.__kwdefaults__ = {"k": 7}
        assert run(program_of(again), (3,)) == 21
    with pytest.warns(RuntimeWarning):
        assert run(program_of(space["g"]), (1, 2)) == (1, 2)  # type: ignore[arg-type]


def test_a_notebook_cell_in_the_line_cache_is_believed() -> None:
    text = "import math\ndef cell(x):\n    return math.floor(x) + 1\n"
    name = "<ipython-input-1-abc>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, object] = {}
    exec(compile(text, name, "exec"), space)
    assert is_native(space["cell"])
    assert run(program_of(space["cell"]), (2.5,)) == 3  # type: ignore[arg-type]


def test_functions_in_doctests_are_believed() -> None:
    seen: list[bool] = []
    test = doctest.DocTestParser().get_doctest(
        ">>> def f(x):\n...     return x + 1\n>>> check(f)\n", {"check": lambda f: seen.append(is_native(f))}, "example", "example.py", 0)
    assert doctest.DocTestRunner().run(test).failed == 0
    assert seen == [True]


LAMBDAS = '''
a, b = (lambda x: x + 1), (lambda x: x + 2)
c, d = (lambda x: x.real), (lambda y: y.real)
e = [(lambda: 1), (lambda: 2), (lambda x: (lambda: x) if x else (lambda: -x))]
same1, same2 = (lambda x: x + 1), (lambda x: x + 1)
nest = (lambda a: lambda b: a + b)
default = (lambda k, f=(lambda: 7): (lambda: k))
'''


def test_lambdas_on_one_line_are_told_apart(tmp_path: Path) -> None:
    m = load(tmp_path / "lambdas.py", LAMBDAS)
    inner = m.e[2](5)
    for function, args, result in ((m.a, (1,), 2), (m.b, (1,), 3), (m.c, (5,), 5), (m.d, (5,), 5), (m.e[0], (), 1), (m.e[1], (), 2), (inner, (), 5), (m.e[2](0), (), 0)):
        assert is_native(function)
        assert run(program_of(function), args) == result
    assert program_of(m.c).program.params[0].name == "x" and program_of(m.d).program.params[0].name == "y"


def test_without_columns_lambdas_are_told_apart_by_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_by_columns", None)
    m = load(tmp_path / "lambdas_old.py", LAMBDAS)
    monkeypatch.setattr(source.sys, "version_info", (3, 10))
    assert run(program_of(m.a), (1,)) == 2 and run(program_of(m.b), (1,)) == 3
    for function in (m.a, m.b, *m.e, m.e[2](5), m.e[2](0), m.nest, m.nest(1), m.default, m.default(1)):
        assert is_native(function)
    assert run(program_of(m.nest(1)), (2,)) == 3 and run(program_of(m.default(1)), ()) == 1
    assert run(program_of(m.e[2](5)), ()) == 5 and run(program_of(m.e[2](0)), ()) == 0


def test_decorators_and_methods_are_found(tmp_path: Path) -> None:
    m = load(tmp_path / "decorated.py", '''
import functools

def plain(f):
    return f

def wrapping(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) * 10
    return wrapper

class A:
    class B:
        @plain
        @functools.lru_cache(maxsize=None)
        def cached(self, x):
            return x + 1

        @staticmethod
        def helper(x): return x + 2

        @wrapping
        def wrapped(self, x):
            return x + 3

        @property
        def prop(self):
            return self.__private

        def __init__(self):
            self.__private = 4

if True:
    def conditional(x):
        return x + 5
x = 1; one_liner = lambda v: v + 6
''')
    b = m.A.B()
    assert run(program_of(m.A.B.cached.__wrapped__), (b, 1)) == 2 and is_native(m.A.B.cached.__wrapped__)
    assert run(program_of(m.A.B.helper), (1,)) == 3 and is_native(m.A.B.helper)
    assert run(program_of(m.A.B.wrapped), (b, 1)) == 40 and is_native(m.A.B.wrapped)
    assert run(program_of(m.A.B.wrapped.__wrapped__), (b, 1)) == 4 and is_native(m.A.B.wrapped.__wrapped__)
    assert run(program_of(m.A.B.prop.fget), (b,)) == 4
    assert run(program_of(m.conditional), (1,)) == 6 and is_native(m.conditional)
    assert run(program_of(m.one_liner), (1,)) == 7 and is_native(m.one_liner)
    run(program_of(m.A.B.__init__), (b,))


def test_imported_names_compile_as_in_their_module(tmp_path: Path) -> None:
    """Calls of a module's functions compile to other code than method calls."""
    m = load(tmp_path / "importing.py", '''
try:
    import numpy as np
    from os import path
except ImportError:
    np = None

def f(x):
    return np.sum(x), path.join("a", "b")

class C:
    def g(self, x):
        return np.sum(x)
''')
    assert is_native(m.f) and is_native(m.C.g)


def test_future_annotations_and_unicode(tmp_path: Path) -> None:
    m = load(tmp_path / "future.py", "from __future__ import annotations\n\ndef f(größe: undefined) -> missing:\n    ä = größe; return ä + größe * 2\n")
    assert is_native(m.f)
    assert run(program_of(m.f), (2,)) == 6
    columns = {p.column for p in program_of(m.f).program.positions if p.line == 4}
    assert max(columns) == 34, "columns count characters, not bytes"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="positions have no columns")
def test_only_the_same_columns_are_believed(tmp_path: Path) -> None:
    m = load(tmp_path / "columns.py", "def f(x):\n    return x + 1\n")
    (tmp_path / "columns.py").write_text("def f(x):\n    return  x + 1\n")
    linecache.clearcache()
    untrusted(m.f)
