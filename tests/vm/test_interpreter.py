"""Tier 1 does what Python does: results, changed arguments, exceptions with type, message and line; and it can be entered anywhere."""
from __future__ import annotations

import random
import sys
import traceback
from typing import Any

import numpy as np
import pytest

import bcvm
from bcvm.bytecode.build import ProgramBuilder
from bcvm.bytecode.instructions import BY_OPCODE
from bcvm.bytecode.program import BoundProgram, Program
from bcvm.bytecode.verifier import verify
from bcvm.errors import BytecodeError
from bcvm.frontend import program_of
from bcvm.vm.handlers import HANDLERS
from bcvm.vm.interpreter import UNSET, Frame, execute, run
from tests.programs import PROGRAMS, ProgramCase, failing, outcome, same


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
def test_a_program_does_what_calling_the_function_does(case: ProgramCase) -> None:
    bound = program_of(case.fn)
    verify(bound.program)
    for args in case.arguments:
        expected, got = outcome(case.fn, args), outcome(lambda *a: run(bound, a), args)
        assert expected.error == got.error
        assert same(expected, got), (expected, got)


# -- entering anywhere

class Hop:
    """Goes on in a new frame at every loop header and after every call back into Python."""

    def __init__(self) -> None:
        self.hops = 0

    def at_loop(self, frame: Frame) -> Any:
        assert BY_OPCODE[frame.bound.program.code[frame.pc].opcode].name == "LOOP_START"
        self.hops += 1
        # its own hook must not be asked again at this same header
        return True, execute(Frame(frame.bound, frame.pc + 1, list(frame.locals), list(frame.stack)), self)

    def after_call_py(self, frame: Frame) -> Any:
        assert BY_OPCODE[frame.bound.program.code[frame.pc - 1].opcode].name == "CALL_PY"
        self.hops += 1
        return True, execute(Frame(frame.bound, frame.pc, list(frame.locals), list(frame.stack)), self)


class Watch:
    """Only counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def at_loop(self, frame: Frame) -> None:
        self.seen.append("loop")

    def after_call_py(self, frame: Frame) -> None:
        self.seen.append("py")


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
def test_a_frame_may_be_left_and_entered_at_every_safe_point(case: ProgramCase) -> None:
    bound = program_of(case.fn)
    for args in case.arguments:
        expected = outcome(case.fn, args)
        for hooks in (Hop(), Watch()):
            got = outcome(lambda *a, h=hooks: run(bound, a, None, h), args)  # type: ignore[misc]
            assert expected.error == got.error
            assert same(expected, got), (expected, got)


def step_then_enter(bound: BoundProgram, args: tuple[Any, ...], steps: int) -> Any:
    """Single instructions for a while, then a new frame from there."""
    code = bound.program.code
    table = [HANDLERS[BY_OPCODE[c.opcode].name](bound.program, at, *c.operands) for at, c in enumerate(code)]
    frame = Frame(bound, 0, [*args, *[UNSET] * (len(bound.program.locals) - len(args))], [])
    while steps and frame.pc >= 0:
        frame.pc = table[frame.pc](frame.locals, frame.stack, frame)
        steps -= 1
    if frame.pc < 0:
        return frame.stack.pop()
    return execute(Frame(bound, frame.pc, list(frame.locals), list(frame.stack)))


@pytest.mark.parametrize("case", [c for c in PROGRAMS if all(len(a) == len(program_of(c.fn).program.params) for a in c.arguments)], ids=lambda c: c.name)
def test_a_frame_may_be_entered_at_every_instruction(case: ProgramCase) -> None:
    bound = program_of(case.fn)
    rng = random.Random(case.name)
    for args in case.arguments:
        expected = outcome(case.fn, args)
        for steps in {*range(6), *(rng.randrange(60) for _ in range(6))}:
            got = outcome(lambda *a, n=steps: step_then_enter(bound, a, n), args)  # type: ignore[misc]
            assert expected.error == got.error
            assert same(expected, got), (steps, expected, got)


def test_hooks_hear_of_each_loop_round_and_each_call_back() -> None:
    watch = Watch()
    bound = program_of(failing.listens)
    assert run(bound, (3,), None, watch) == run(bound, (3,))
    assert watch.seen == ["loop", "py", "loop", "py", "loop", "py", "loop"]


def test_any_iterator_may_stand_on_the_stack_of_a_frame() -> None:
    bound = program_of(failing.total)
    header = next(at for at, c in enumerate(bound.program.code) if BY_OPCODE[c.opcode].name == "LOOP_START")
    values: list[Any] = [UNSET] * len(bound.program.locals)
    for name, value in (("items", None), ("n", 10)):
        values[bound.program.locals.index(name)] = value
    assert execute(Frame(bound, header, values, [iter(range(4))])) == 16


# -- exceptions

def last_frame(error: BaseException) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


def own_frames(error: BaseException, filename: str) -> list[tuple[str, str | None]]:
    return [(f.name, f.line) for f in traceback.extract_tb(error.__traceback__) if f.filename == filename]


@pytest.mark.parametrize("name", failing.NAMES)
def test_an_exception_names_the_line_that_raised_it(name: str) -> None:
    function, args = getattr(failing, name), failing.ARGUMENTS.get(name, (np.ones(3),))
    with pytest.raises(Exception) as expected:
        function(*args)
    for hooks in (None, Watch()):
        with pytest.raises(Exception) as got:
            run(program_of(function), args, None, hooks)
        assert type(got.value) is type(expected.value) and str(got.value) == str(expected.value)
        frames = [f for f in own_frames(expected.value, failing.__file__) if f[0] != "<listcomp>"]  # none since Python 3.12
        assert own_frames(got.value, failing.__file__) == frames
        assert type(got.value.__cause__) is type(expected.value.__cause__)
        assert (got.value.__context__ is None) == (expected.value.__context__ is None)


def test_a_printed_traceback_shows_the_users_source() -> None:
    with pytest.raises(ZeroDivisionError) as e:
        run(program_of(failing.operator_fails), (1,))
    text = "".join(traceback.format_exception(e.value))
    assert "in operator_fails" in text and "y = x // 0" in text


def test_exceptions_that_are_no_errors_pass_through() -> None:
    def stop(x):
        raise x
    for error in (KeyboardInterrupt(), SystemExit(3), StopIteration(4)):
        with pytest.raises(type(error)):
            run(program_of(stop), (error,))


def test_deep_recursion_is_a_recursion_error() -> None:
    def down(n):
        return run(program_of(down), (n + 1,))
    with pytest.raises(RecursionError):
        run(program_of(down), (0,))


def test_an_error_makes_no_reference_cycles() -> None:
    import gc
    import weakref

    class Mine:
        pass

    def attribute(x):
        return x.nothing + x
    gone = []
    gc.collect()
    gc.disable()
    try:
        for function in (attribute, failing.inner_raises, failing.item_fails):
            error: Any = Mine()
            gone.append(weakref.ref(error))
            try:
                run(program_of(function), (error,))
            except Exception as e:
                assert e.__traceback__ is not None
            del error
        assert [g() for g in gone] == [None] * 3
    finally:
        gc.enable()


# -- arguments

def signature(a, b=2, /, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, kwargs


def plain(a, b=2):
    return a, b


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {"d": 4}), ((1, 2, 3, 4, 5), {"d": 4, "z": 1}), ((), {}), ((1,), {}), ((1,), {"a": 1, "d": 2}), ((1,), {"c": 1, "d": 2}),
    ((1, 2), {}), ((1, 2, 3), {}), ((), {"a": 1}), ((1,), {"b": 3}), ((1,), {"a": 2}), ((1,), {"nothing": 2}), ((), {"b": 1}),
]


@pytest.mark.parametrize("function", [signature, plain, failing.Thing().method.__func__])
def test_arguments_bind_as_python_binds_them(function: Any) -> None:
    bound = program_of(function)
    for args, kwargs in CALLS:
        expected = outcome(lambda *a, k=kwargs: function(*a, **k), args)  # type: ignore[misc]
        got = outcome(lambda *a, k=kwargs: run(bound, a, k), args)  # type: ignore[misc]
        assert expected == got


# -- side effects

def test_call_backs_run_once_and_in_order() -> None:
    log: list[Any] = []
    expected: list[Any] = []
    failing.effects(expected.append, 3)
    for hooks in (None, Hop(), Watch()):
        log.clear()
        run(program_of(failing.effects), (log.append, 3), None, hooks)
        assert log == expected


def test_globals_and_cells_are_read_at_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = program_of(failing.reads_global)
    assert run(bound, (1,)) == 11 and run(bound, (6,)) == 66
    monkeypatch.setattr(failing, "FACTOR", 100)
    assert run(bound, (1,)) == 100 and run(bound, (6,)) == 600
    monkeypatch.delattr(failing, "FACTOR")
    with pytest.raises(NameError, match="name 'FACTOR' is not defined"):
        run(bound, (1,))


# -- programs written by hand

def assembled(*code: tuple[Any, ...], params: int = 2) -> BoundProgram:
    b = ProgramBuilder("hand", "hand.py", 1)
    for k in range(params):
        b.param(f"p{k}")
    for name, *operands in code:
        b.emit(name, *(o(b) if callable(o) else o for o in operands))
    program = b.finish()
    verify(program)
    return BoundProgram(program)


X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


@pytest.mark.parametrize("code, args, expected", [
    ([("LOAD", 0), ("RELU", 0), ("RETURN",)], (X,), np.maximum(X, 0)),
    ([("LOAD", 0), ("LOAD", 1), ("MATMUL", 0), ("RETURN",)], (X, X), X @ X),
    ([("LOAD", 0), ("LOAD", 1), ("BROADCAST_ADD", 1, 0), ("RETURN",)], (X, X[0]), X + X[0]),
    ([("LOAD", 0), ("LOAD", 1), ("RESHAPE", 0), ("RETURN",)], (X, (4, 1)), X.reshape(4, 1)),
    ([("LOAD", 0), ("LOAD", 1), ("CONCAT", 2, lambda b: b.const(1), 0), ("RETURN",)], (X, X), np.concatenate([X, X], 1)),
    ([("LOAD", 0), ("ADD_CONST", lambda b: b.const(2.0), 0), ("MUL_CONST", lambda b: b.const(3), 0), ("RETURN",)], (X,), (X + 2) * 3),
    ([("LOAD", 0), ("LOAD", 1), ("FUSED_MATMUL_RELU", 0), ("RETURN",)], (X, -X), np.maximum(X @ -X, 0)),
    ([("LOAD", 0), ("LOAD", 1), ("FUSED_ADD_RELU_CAST_FP16", 0), ("RETURN",)], (X, X), np.maximum(X + X, 0).astype(np.float16)),
    ([("LOAD", 0), ("CALL_OP", lambda b: b.name("relu"), 0, 1), ("RETURN",)], (X,), np.maximum(X, 0)),
    ([("NOP",), ("FUSE_ACROSS_DEVICE", 0, 0), ("FUSE_START", lambda b: b.name("policy_005")), ("LOAD", 0), ("ALLOC_DEVICE_MEM", 0, 0), ("FUSE_END",),
      ("COPY", 1), ("FREE_DEVICE_MEM", 0, 0), ("RETURN",)], (X,), X),
])
def test_short_and_fused_forms_run_as_what_they_stand_for(code: list[tuple[Any, ...]], args: tuple[Any, ...], expected: Any) -> None:
    got = run(assembled(*code, params=len(args)), args)
    assert got.dtype == expected.dtype and np.array_equal(got, expected)


def test_what_cannot_run_is_a_clear_error() -> None:
    with pytest.raises(BytecodeError, match="no op named 'no_such_op'"):
        run(assembled(("LOAD", 0), ("CALL_OP", lambda b: b.name("no_such_op"), 0, 1), ("RETURN",), params=1), (X,))
    with pytest.raises(BytecodeError, match="on device 3"):
        run(assembled(("LOAD", 0), ("ALLOC_DEVICE_MEM", 3, 0), ("RETURN",), params=1), (X,))


def test_reading_an_unset_local_is_python_s_error() -> None:
    bound = assembled(("LOAD", lambda b: b.local("y")), ("RETURN",), params=0)
    with pytest.raises(UnboundLocalError, match="'y'"):
        run(bound)


def test_a_decoded_program_does_not_keep_the_program() -> None:
    import gc
    import weakref
    bound = assembled(("LOAD", 0), ("RETURN",), params=1)
    gone = weakref.ref(bound.program)
    assert run(bound, (1,)) == 1
    del bound
    gc.collect()
    assert gone() is None


def test_one_decoding_serves_all_bindings_of_a_program() -> None:
    program: Program = assembled(("LOAD", 0), ("RETURN",), params=1).program
    a, b = BoundProgram(program), BoundProgram(program)
    run(a, (1,)), run(b, (1,))
    assert a.__dict__["_decoded"] is b.__dict__["_decoded"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs code positions")
def test_tracebacks_carry_no_foreign_columns() -> None:
    with pytest.raises(ZeroDivisionError) as e:
        run(program_of(failing.operator_fails), (1,))
    text = "".join(traceback.format_exception(e.value))
    line = text.splitlines()[next(i for i, t in enumerate(text.splitlines()) if "y = x // 0" in t) + 1]
    assert "^" not in line


def test_a_closure_that_is_not_bound_yet_is_a_name_error_in_its_line() -> None:
    def make():
        def f(x):
            y = x[:, 1:2] + 1
            return (y *
                    w[0])
        yield f
        w = np.full(3, 2.0)
        yield

    step = make()
    plain = next(step)
    f = bcvm.jit(plain, tier="interpret")
    x = np.arange(6.0).reshape(2, 3)
    with pytest.raises(NameError, match="free variable 'w'") as error:
        f(x)
    frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.value.__traceback__)]
    assert ("f", plain.__code__.co_firstlineno + 3) in frames
    next(step)
    np.testing.assert_array_equal(f(x), [[4.0], [10.0]])
