"""Program + types -> typed SSA: what graphs look like."""
from __future__ import annotations

from typing import Any

import numpy as np

import bcvm.frameworks  # noqa: F401  registers NumPy
from bcvm.frontend import program_of
from bcvm.shapes.hint import Tensor
from bcvm.specialise import specialise_call
from bcvm.specialise.ssa import Exit, Graph, Return

A = np.ones((3, 4), np.float32)
WEIGHTS = [np.ones((4, 4), np.float32), np.ones(4, np.float32)]


def graph(fn: Any, *args: Any, **kwargs: Any) -> Graph:
    return specialise_call(program_of(fn), (*args, *kwargs.values()), tuple(kwargs), program_of)


def ops(g: Graph) -> list[str]:
    return [n.attrs["op"].name if n.op == "op" else n.op for b in g.blocks for n in b.nodes]


def returns(g: Graph) -> list[Any]:
    return [b.end.tree for b in g.blocks if isinstance(b.end, Return)]


def exits(g: Graph) -> list[str]:
    return [b.end.reason for b in g.blocks if isinstance(b.end, Exit)]


def test_names_of_libraries_are_resolved_and_guarded_by_identity() -> None:
    g = graph(lambda x: np.maximum(x @ WEIGHTS[0] + WEIGHTS[1], 0), A)
    assert [o for o in ops(g) if o not in ("fill", "check")] == ["matmul", "add", "maximum"]
    assert {(x.how, str(x.path)) for x in g.guards} >= {("is", "np"), ("is", "np.maximum"), ("type", "WEIGHTS")}
    assert [str(i.path) for i in g.inputs] == ["arg0", "WEIGHTS[0]", "WEIGHTS[1]"]
    assert not exits(g)


def test_a_run_time_flag_keeps_both_branches_in_one_graph() -> None:
    def f(x: Any, training: bool = True) -> Any:
        if training:
            return x * 2.0
        return x + 1.0
    g = graph(f, A, True)
    assert "mul" in ops(g) and "add" in ops(g) and len(returns(g)) == 1 and not exits(g)


def test_a_default_is_a_run_time_value_too() -> None:
    def f(x: Any, scale: float = 2.0) -> Any:
        return x * scale
    g = graph(f, A)
    assert [i.value.type.key() for i in g.inputs][1] == ("S", "float")


def test_an_axis_given_at_run_time_becomes_a_guarded_constant() -> None:
    def f(x: Any, axis: int) -> Any:
        return x.sum(axis)
    g = graph(f, A, 1)
    assert ("equal", "arg1", 1) in {(x.how, str(x.path), x.value) for x in g.guards}
    assert len(g.inputs) == 1


def test_a_loop_is_one_header_whatever_its_trip_count() -> None:
    def f(x: Any, n: int) -> Any:
        for _ in range(n):
            x = x * 2.0
        return x
    small, large = graph(f, A, 1), graph(f, A, 10_000)
    assert sum(b.loop for b in small.blocks) == 1
    assert str(small) == str(large)


def test_temporaries_of_a_loop_body_do_not_make_versions() -> None:
    def f(x: Any, n: int) -> Any:
        for _ in range(n):
            t = x * 2.0
            u = t + 1.0
            x = u - t
        return x
    assert sum(b.loop for b in graph(f, A, 3).blocks) == 1


def test_a_variable_that_changes_type_in_a_loop_gets_a_version_of_the_header() -> None:
    def f(x: Any, n: int) -> Any:
        h = 0
        for t in range(n):
            h = h + x[t]
        return h
    g = graph(f, A, 3)
    assert sum(b.loop for b in g.blocks) == 2


def test_types_that_never_settle_end_in_a_side_exit() -> None:
    def f(x: Any, n: int) -> Any:
        for _ in range(n):
            x = x[None]
        return x
    g = graph(f, A, 3)
    assert any(r.startswith("versions") for r in exits(g)) and sum(b.loop for b in g.blocks) <= 8


def test_a_loop_over_a_constant_tuple_is_unrolled() -> None:
    def f(x: Any) -> Any:
        for i in (0, 1):
            x = x + WEIGHTS[i][0]
        return x
    g = graph(f, A)
    assert not any(b.loop for b in g.blocks) and ops(g).count("add") == 2


def test_a_callee_is_inlined_once_per_call() -> None:
    def double(y: Any) -> Any:
        return y * 2.0

    def f(x: Any) -> Any:
        return double(x) + double(x)
    g = graph(f, A)
    assert ops(g).count("mul") == 2 and not exits(g)


def test_an_instance_is_guarded_by_its_class_and_its_attributes_are_read_at_entry() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w, self.alpha = WEIGHTS[1], 0.5

        def run(self, x: Any) -> Any:
            return x * self.w * self.alpha
    g = graph(Layer.run, Layer(), A)
    assert {str(i.path) for i in g.inputs} == {"arg0", "arg0.w", "arg0.alpha", "arg1"}
    assert ("type", "arg0") in {(x.how, str(x.path)) for x in g.guards}


def test_what_has_no_native_form_leaves_at_its_instruction() -> None:
    def f(x: Any) -> Any:
        y = x * 2.0
        np.savetxt("/dev/null", y)
        return y
    g = graph(f, A)
    (reason,) = exits(g)
    assert "savetxt" in reason and "mul" in ops(g)


def test_equal_sizes_stay_one_dim_through_arithmetic() -> None:
    def f(x: Any) -> Any:
        b, s = x.shape
        return x.reshape(b * s).reshape(b, s) + x
    g = graph(f, A)
    assert not exits(g)
    (tree,) = returns(g)
    assert tree.type.dims == g.inputs[0].value.type.dims


def test_a_hint_binds_its_symbols_and_checks_the_rest() -> None:
    def f(x: Tensor["B, D"], y: Tensor["D, 4"]) -> Tensor["B, 4"]:  # noqa: F821
        return x @ y
    g = graph(f, A, np.ones((4, 4), np.float32))
    checks = [n.attrs for b in g.blocks for n in b.nodes if n.op == "check" and n.attrs["how"] == "eq"]
    assert len(checks) >= 2


def test_a_store_is_an_effect_and_marks_its_input() -> None:
    def f(x: Any) -> Any:
        x[0] = 1.0
        return x
    g = graph(f, A)
    assert g.inputs[0].writable and "store" in ops(g)


def test_the_dims_of_long_chains_stay_small() -> None:
    def f(x: Any, a: int, b: int) -> Any:
        for _ in range(8):
            x = x[:, a:b] + x[:, :a]
        return x
    assert max(len(line) for line in str(graph(f, A, 1, 2)).splitlines()) < 600
