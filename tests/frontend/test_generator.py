"""Which constructs are bytecode, which call back into Python, and what a program looks like."""
from __future__ import annotations

import gc
import time
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.bytecode.verifier import verify
from bcvm.errors import ShapeError
from bcvm.frontend import check_hints, program_of
from bcvm.frontend.annotations import hints_of
from bcvm.vm.interpreter import run
from tests.programs import python


class Hint:
    def __init__(self, text: str) -> None:
        self.hint_text = text

    def __class_getitem__(cls, text: str) -> "Hint":
        return cls(text)


def names(function: Callable[..., Any]) -> list[str]:
    program = program_of(function).program
    verify(program)
    return [BY_OPCODE[c.opcode].name for c in program.code]


def native_control(x, n, items, d, *more, k=1, **rest):
    """A docstring."""
    a, (b, *c), e = x, [1, 2, 3], n
    for i in range(n):
        if i == 2 and not x.any() or n > 100:
            continue
        elif i > k:
            break
    else:
        n += 1
    while n > 0 and k:
        n -= 1
        if n == 3:
            break
    else:
        k = None
    d["key"] = x[1:, ::2, ..., None]
    d["key"][0] += 1
    y: float = x.sum(axis=-1, keepdims=True) if 0 < n <= 5 else -x
    z = [*items, (a, b), {"k": c, 1: e}]
    f(*items, n, key=1, **rest)
    f(x, key=k)
    (w := n) and w
    y @= x
    x.data[0] *= 2
    del e
    pass
    return a, b, w, y, z, more


def f(*args, **kwargs):
    return args, kwargs


def test_control_flow_calls_and_stores_are_bytecode() -> None:
    found = names(native_control)
    assert "CALL_PY" not in found
    assert "BRANCH_IF_SYMBOLIC" in found and "COND_JUMP" in found and "STORE_TENSOR" in found and "CALL_UNPACKED" in found


def test_only_the_raise_of_an_assert_is_called_back() -> None:
    found = names(python.asserts)
    assert found.count("CALL_PY") == sum(i.source.startswith("assert") for i in program_of(python.asserts).program.imports) == 3


def if_test(x, y):
    if x and not y:
        return 1
    return 2 if x else 3


def test_an_if_statement_branches_symbolically_and_an_expression_jumps() -> None:
    found = names(if_test)
    assert found.count("BRANCH_IF_SYMBOLIC") == 2 and found.count("COND_JUMP") == 1


def while_test(x):
    while x:
        x -= 1
    return x


def test_loops_have_headers_and_ends() -> None:
    found = names(while_test)
    assert [n for n in found if n.startswith("LOOP")] == ["LOOP_START", "LOOP_END"]
    assert "COND_JUMP" in found and "BRANCH_IF_SYMBOLIC" not in found


def pieces(self, x, n):
    s = [i for i in x]
    self.x = f"{n}"
    try:
        n += 1
    except TypeError:
        return s
    return lambda: n


def test_the_rest_is_called_back_on_the_smallest_piece() -> None:
    whole = [i.source for i in program_of(pieces).program.imports]
    assert whole == ["whole function: 'n' is captured by a nested function and bound more than once"]
    sources = [i.source for i in program_of(small_pieces).program.imports]
    assert sources == ["{i for i in x}", 'f"{n}"', "self.x", "try:\n        n += 1\n    except TypeError:\n        return s", "lambda: s"]
    assert names(small_pieces).count("CALL_PY") == 5


def small_pieces(self, x, n):
    s = {i for i in x}
    self.x = f"{n}"
    try:
        n += 1
    except TypeError:
        return s
    return n, lambda: s


def whole_generator(n):
    yield n


async def whole_coroutine(n):
    return n


def whole_locals(n):
    return locals()


def whole_nonlocal():
    n = 0

    def up():
        nonlocal n
        n += 1
    up()
    return n


@pytest.mark.parametrize("function", [whole_generator, whole_coroutine, whole_locals, whole_nonlocal])
def test_what_only_python_can_run_is_one_call(function: Callable[..., Any]) -> None:
    assert [n for n in names(function) if n not in ("LOAD",)] == ["CALL_PY", "RETURN"]


def test_a_generator_function_still_makes_a_generator() -> None:
    assert list(run(program_of(whole_generator), (3,))) == [3]


def constants(x):
    return x.sum(axis=(-1, 0)), -1.5, (1, (2, "a")), x[0:-1]


def test_constants_are_folded() -> None:
    consts = program_of(constants).program.consts
    assert (-1, 0) in consts and -1.5 in consts and (1, (2, "a")) in consts
    assert "neg" not in program_of(constants).program.names


def positions(x):
    y = (x +
         1)
    return y.sum(
    )


def test_every_instruction_has_its_line_and_column() -> None:
    program = program_of(positions).program
    first = positions.__code__.co_firstlineno
    where = {(BY_OPCODE[c.opcode].name, p.line - first, p.column) for c, p in zip(program.code, program.positions, strict=True)}
    assert {("LOAD_CONST", 2, 9), ("CALL_OP", 1, 9), ("STORE", 1, 4), ("LOAD_ATTR", 3, 11), ("CALL", 3, 11), ("RETURN", 3, 4)} <= where
    assert program.first_line == first and program.name == "positions" and program.filename == __file__


# -- sharing

def make_layer():
    def decorate(function):
        return function

    class Layer:
        def __init__(self, k):
            self.k = k

        @decorate
        def construct(self, x):
            return x * self.k
    return Layer


def make_closure(k):
    def inner(x):
        return x * k, [k for _ in range(2)]
    return inner


def test_instances_share_one_program_and_one_binding() -> None:
    layer = make_layer()
    bound = {id(program_of(layer(i).construct.__func__)) for i in range(200)}
    assert len(bound) == 1
    assert run(program_of(layer.construct), (layer(7), 2)) == 14


def test_closures_share_the_program_and_keep_their_cells() -> None:
    functions = [make_closure(k) for k in range(200)]
    bounds = [program_of(f) for f in functions]
    assert len({id(b.program) for b in bounds}) == 1 and len({id(b) for b in bounds}) == 200
    assert [run(b, (2,)) for b in bounds[:3]] == [(0, [0, 0]), (2, [1, 1]), (4, [2, 2])]
    assert program_of(functions[5]) is bounds[5]


def test_a_program_dies_with_its_code_and_a_binding_with_its_function() -> None:
    function = make_closure(1)
    gone = weakref.ref(program_of(function))
    run(program_of(function), (1,))
    del function
    gc.collect()
    assert gone() is None
    space: dict[str, Any] = {"__name__": "m"}
    exec("def g(x): return x", space)
    with pytest.warns(RuntimeWarning):
        gone_program = weakref.ref(program_of(space["g"]).program)
        run(program_of(space["g"]), (1,))
    space.clear()
    gc.collect()
    assert gone_program() is None


def test_attributes_copied_by_wraps_do_not_mislead() -> None:
    import functools

    def other(x):
        return x - 1
    program_of(small_pieces)
    functools.update_wrapper(other, small_pieces)
    assert run(program_of(other), (1,)) == 0


def test_replaced_defaults_and_code_are_seen() -> None:
    def function(x, y=1, *, k=2, array=np.ones(2)):  # noqa: B008
        return x, y, k

    def other(x, y=1, *, k=2):
        return "other"
    assert run(program_of(function), (0,)) == (0, 1, 2)
    function.__defaults__ = (5,)
    function.__kwdefaults__["k"] = 6
    assert run(program_of(function), (0,)) == (0, 5, 6)
    assert program_of(function) is program_of(function)
    function.__code__ = other.__code__
    assert run(program_of(function), (0,)) == "other"


def test_threads_get_the_same_binding() -> None:
    from concurrent.futures import ThreadPoolExecutor
    functions = [make_closure(k) for k in range(20)]
    with ThreadPoolExecutor(8) as pool:
        for f in functions:
            assert len({id(b) for b in pool.map(program_of, [f] * 16)}) == 1


def test_only_python_functions_have_programs() -> None:
    with pytest.raises(TypeError, match="not of builtin_function"):
        program_of(len)


# -- hints

def hinted(x: Hint["B, *, 3"], y: "bcvm.Tensor['B']" = None, k: int = 1) -> "Tensor['B, 3']":  # type: ignore[valid-type, name-defined]  # noqa: F821, F722
    return x[:, 0] * k


hinted.__annotations__.update(x=Hint("B, *, 3"))


def test_hints_are_checked_at_entry_and_on_the_result() -> None:
    bound = program_of(hinted)
    program = bound.program
    assert program.hints == ("...", "[B,*,3]", "[B]", "[B,3]") and [p.hint for p in program.params] == [1, 2, 0]
    assert names(hinted)[:4] == ["LOAD_TENSOR", "STORE", "LOAD_TENSOR", "STORE"] and program.hints[program.return_hint] == "[B,3]"
    assert run(bound, (np.ones((4, 2, 3)), np.ones(4))).shape == (4, 3)
    assert run(bound, (np.ones((4, 2, 3)),)).shape == (4, 3)
    with pytest.raises(ShapeError, match=r"hinted \(test_generator.py:\d+\): argument 'x' has shape \(4, 2, 5\).*expected 3"):
        run(bound, (np.ones((4, 2, 5)),))
    with pytest.raises(ShapeError, match="'y'.*B is 4"):
        run(bound, (np.ones((4, 2, 3)), np.ones(5)))
    with pytest.raises(ShapeError, match="'x' has the hint .* is no tensor: int"):
        run(bound, (1,))


def wrong_result(x: "Tensor['B']") -> "Tensor['2*B']":  # type: ignore[valid-type, name-defined]  # noqa: F821
    return x


def test_names_agree_between_arguments_and_result() -> None:
    with pytest.raises(ShapeError, match=r"wrong_result \(test_generator.py:\d+\): result 'return'"):
        run(program_of(wrong_result), (np.ones(3),))


def optional(x: "Optional[bcvm.Tensor['B, 2']]", y: "None | Tensor['B']", z: "typing.Union[Tensor['B'], None]" = None) -> "Tensor['B'] | None":  # type: ignore[name-defined]  # noqa: F821, F722
    return None if x is None else x.sum()


def test_a_hint_holds_where_a_tensor_is_given_and_none_is_allowed() -> None:
    bound = program_of(optional)
    assert bound.program.hints == ("...", "[B,2]", "[B]") and [p.hint for p in bound.program.params] == [1, 2, 2] and bound.program.return_hint == 0
    assert run(bound, (np.ones((3, 2)), None)) == 6.0 and run(bound, (None, np.ones(4))) is None and run(bound, (None, None, None)) is None
    with pytest.raises(ShapeError, match="argument 'y' has shape"):
        run(bound, (np.ones((3, 2)), np.ones(4)))
    with pytest.raises(ShapeError, match="'z' has the hint .* is no tensor: int"):
        run(bound, (None, None, 3))
    typed = lambda x: x  # noqa: E731
    typed.__annotations__["x"] = typing.Optional[Hinted]  # noqa: UP045
    assert hints_of(typed) == (("x", ("[B]", True)),)


@pytest.mark.parametrize("annotation", ["tuple[bcvm.Tensor['B'], int]", "list[Tensor['B, 2']]", "'dict[str, Tensor[\"B\"]]'", tuple[int, Hint["B"]], "Callable[[Tensor['B']], int]"])  # type: ignore[valid-type]  # noqa: F821
def test_hints_where_they_are_not_read_are_refused(annotation: Any) -> None:
    def inside(x):
        return x

    def result():
        return 1

    def many(*args, k=1, **more):
        return args
    inside.__annotations__["x"] = annotation
    result.__annotations__["return"] = annotation
    for f, what in ((inside, "argument x"), (result, "the result")):
        with pytest.raises(ShapeError, match=rf"{f.__qualname__} \(.*test_generator.py:\d+\): {what} has a shape hint inside another type"):
            check_hints(f)
        assert program_of(f).program.hints == ("...",)
    for name, star in (("args", r"\*args"), ("more", r"\*\*more")):
        many.__annotations__ = {name: "Tensor['B']"}
        with pytest.raises(ShapeError, match=f"argument {star} has a shape hint, which is read on single arguments only"):
            check_hints(many)
        assert run(program_of(many), (1, 2)) == (1, 2)
    for fine in (hinted, optional):
        check_hints(fine)
    many.__annotations__ = {"args": int, "k": "tuple[int, ...]", "more": "Tensor"}
    check_hints(many)


class Hinted:
    """An annotation that typing accepts."""

    hint_text = "[B]"


# -- nested functions, nesting

def outer(k):
    def inner(x):
        return np.sum(x) * k, [np.sum(x) for _ in range(1)]

    class Local:
        def method(self, x):
            return np.max(x), (lambda: np.min(x))()
    return inner, Local, lambda x: np.prod(x)


def test_functions_made_by_a_program_have_programs_themselves() -> None:
    inner, local, function = run(program_of(outer), (3,))
    x = np.arange(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f, args, expected in ((inner, (x,), (9, [3])), (local.method, (None, x), (2, 0)), (function, (x,), 0)):
            assert "whole" not in str(program_of(f).program.imports)
            assert run(program_of(f), args) == expected
    assert inner.__qualname__ == "outer.<locals>.inner" and local.method.__qualname__ == "outer.<locals>.Local.method"


def test_too_deep_nesting_is_one_call() -> None:
    import linecache
    text = "def f(a):\n    return " + " + ".join(["a"] * 700) + "\n"
    linecache.cache["<deep>"] = (len(text), None, text.splitlines(True), "<deep>")
    space: dict[str, Any] = {}
    exec(compile(text, "<deep>", "exec"), space)
    assert run(program_of(space["f"]), (1,)) == 700


# -- private names, super

class Base:
    def go(self, x):
        return x + 1


class _Child(Base):
    __k = 5

    def go(self, x):
        __local = self.__k
        self.__stored = [__local for _ in range(2)]
        return super().go(x) + __local, self.__stored, (lambda: self.__k)()

    def inner(self):
        def nested():
            return super(_Child, self).go(1)
        return nested()


def test_private_names_and_super_mean_what_they_mean_in_the_class() -> None:
    child = _Child()
    assert run(program_of(_Child.go), (child, 1)) == child.go(1) == (7, [5, 5], 5)
    assert vars(child) == {"_Child__stored": [5, 5]}
    assert run(program_of(_Child.inner), (child,)) == child.inner() == 2


# -- speed

def test_a_hundred_lines_take_milliseconds() -> None:
    """The budget is 10 ms; a loaded machine gets more."""
    import linecache
    lines = ["def f(x, w, n):"]
    for i in range(33):
        lines += [f"    y = np.maximum(x @ w[{i}] + 1, 0).reshape(x.shape[0], -1)", f"    if y.sum() > {i}:", "        x = x + y * 0.5"]
    text = "import numpy as np\n" + "\n".join([*lines, "    return x"]) + "\n"
    name = "<a hundred lines>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    best = 1.0
    for _ in range(15):
        space: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space)
        start = time.process_time()
        program_of(space["f"])
        best = min(best, time.process_time() - start)
    assert best < 0.03
