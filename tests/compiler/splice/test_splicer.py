"""Spliced kernels have the bits of LLVM's, whatever the region, the layout of its operands and the range of its units."""
from __future__ import annotations

import harness
import numpy as np
import pytest
import regions
from harness import TARGETS, fenced, region
from spliced import Spliced, same_bits

from bcvm.compiler.region import RegionSpec
from bcvm.compiler.splice import splicer
from bcvm.compiler.splice.splicer import splice
from bcvm.errors import Unsupported

F, D, I, B = "float32", "float64", "int32", "bool"


def check(spec: RegionSpec, sizes: list[int], rng: np.random.Generator, kernel: Spliced, *ranges: tuple[int, int]) -> None:
    """Against LLVM's kernel on the same arrays."""
    inputs, wide, outputs = regions.operands(rng, spec, sizes)
    kernel([*inputs, *wide], sizes, *ranges)
    got = [o.copy() for o in outputs]
    for o in outputs:
        o[...] = 0
    harness.call(spec, [*inputs, *wide], sizes, TARGETS[""])
    assert all(map(same_bits, got, outputs)), (spec, sizes)


def random_sizes(rng: np.random.Generator, rank: int) -> list[int]:
    return [int(rng.choice([1, 2, 3, 5])) for _ in range(rank - 1)] + [int(rng.choice(regions.LENGTHS))]


@pytest.mark.parametrize("seed", range(60))
def test_random_regions(seed, stencils, monkeypatch):
    monkeypatch.setattr(regions, "FLOATS", (F, D))
    monkeypatch.setattr(regions, "INTEGERS", ("int32", "int64"))
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    spec = regions.random_spec(rng, rank, False)
    try:
        kernel = Spliced(spec, stencils)
    except Unsupported as e:
        assert "int64" in e.reason
        return
    for _ in range(4):
        sizes = random_sizes(rng, rank)
        units = int(np.prod(sizes[:-1]))
        cut = int(rng.integers(0, units + 1))
        check(spec, sizes, rng, kernel, *(((0, -1),) if rng.random() < 0.5 else ((0, cut), (cut, units))))


def wide_region(rng: np.random.Generator, dtype: str, live: int) -> RegionSpec:
    """Many values that are alive at the same time."""
    inputs = [(dtype, bool(k and rng.random() < 0.2)) for k in range(int(rng.integers(2, 6)))]
    steps: list[tuple] = []
    values = list(range(len(inputs)))

    def add(op: str, *args: int, out: str = dtype) -> int:
        steps.append((op, args, out))
        return len(inputs) + len(steps) - 1

    unary = ("neg", "abs", "square", "relu", "sign") + (("tanh", "exp", "sqrt") if dtype == F else ())
    for _ in range(live):
        roll = rng.random()
        a, b = (int(rng.choice(values)) for _ in range(2))
        values.append(add(str(rng.choice(unary)), a) if roll < 0.4 else add(str(rng.choice(["add", "sub", "mul", "maximum"])), a, b))
    masks = [add("gt", *(int(v) for v in rng.choice(values, 2)), out=B) for _ in range(int(rng.integers(0, 10)))]
    total = values[0]
    for v in rng.permutation(values[1:]):
        total = add("where", masks.pop(), total, int(v)) if masks else add("add", total, int(v))
    return region(int(rng.integers(1, 3)), inputs, steps, [total, values[-1]])


@pytest.mark.parametrize("seed", range(30))
def test_regions_with_more_values_than_registers(seed, stencils):
    rng = np.random.default_rng(seed)
    spec = wide_region(rng, str(rng.choice([F, D, I, "int64"])), int(rng.integers(20, 50)))
    kernel = Spliced(spec, stencils)
    for _ in range(3):
        check(spec, random_sizes(rng, spec.rank), rng, kernel)


def test_values_do_go_to_the_stack(stencils, monkeypatch):
    spilled = []
    keep = splicer.Splicer.keep
    monkeypatch.setattr(splicer.Splicer, "keep", lambda self, value, register: (spilled.append(register), keep(self, value, register)))
    for seed in range(10):
        splice(wide_region(np.random.default_rng(seed), F, 45), stencils)
    assert any(r < 32 for r in spilled) and any(r >= 32 for r in spilled), "the tests above must reach both kinds of registers"


@pytest.mark.parametrize("inputs", [1, 9, 10, 13])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_more_operands_than_address_registers(inputs, rank, stencils):
    steps = [("add", (0, 0), F)]
    for k in range(1, inputs):
        steps.append(("add" if k % 3 else "maximum", (inputs + len(steps) - 1, k), F))
    spec = region(rank, [(F, k % 4 == 3) for k in range(inputs)], steps, [-1, -2] if inputs > 1 else [-1])
    rng, kernel = np.random.default_rng(inputs), Spliced(spec, stencils)
    for _ in range(4):
        check(spec, random_sizes(rng, rank), rng, kernel)


@pytest.mark.parametrize("dtype", [F, D, I, "int64", B])
@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 200, 257])
def test_nothing_outside_the_output_is_written_or_read(dtype, n, stencils):
    """Arrays end at the end of a page that may be accessed."""
    (x, _), (out, memory) = (fenced(dtype, n, -1) for _ in range(2))
    x[...] = np.arange(n) % 5 > 1
    op = "logical_not" if dtype == B else "neg"
    Spliced(region(1, [dtype], [(op, (0,), dtype)], [-1]), stencils)([x, out], [n])
    assert np.array_equal(out, ~x if dtype == B else -x)
    out[...] = 0
    assert not memory.any()


def test_an_operand_may_be_the_output(stencils):
    spec = region(2, [F, F], [("mul", (0, 1), F), ("add", (2, 0), F)], [-1])
    x, y = np.arange(300, dtype=F).reshape(3, 100), np.full((3, 100), 2, F)
    want = x * y + x
    Spliced(spec, stencils)([x, y, x], [3, 100])
    assert np.array_equal(x, want)


def test_an_input_is_read_before_it_is_overwritten(stencils):
    """The second output is the first input, whose memory the first output takes."""
    spec = region(1, [F], [("neg", (0,), F)], [-1, 0])
    x, copy = np.arange(50, dtype=F), np.zeros(50, F)
    want = x.copy()
    Spliced(spec, stencils)([x, x, copy], [50])
    assert np.array_equal(copy, want) and np.array_equal(x, -want)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e39, -1e39, float("nan"), float("inf"), 3, True])
@pytest.mark.parametrize("dtype", [F, D])
def test_constants_have_their_bits(value, dtype, stencils):
    spec = region(1, [dtype], [("const", (), dtype, ("value", value)), ("copysign", (0, 1), dtype), ("maximum", (0, 1), dtype)], [1, 2, 3])
    x = np.array([-0.0, 0.0, -1.0, 1.0, np.nan, np.inf], dtype)
    outs = [[np.zeros(6, dtype) for _ in range(3)] for _ in range(2)]
    Spliced(spec, stencils)([x, *outs[0]], [6])
    harness.call(spec, [x, *outs[1]], [6], TARGETS[""])
    assert all(map(same_bits, *outs))
    if value == 0:
        assert np.signbit(outs[0][0]).all() == np.signbit(value)


def test_scalars_of_another_width_serve_whole_rows(stencils):
    """A float64 number per row, compared and rounded, used by float32 rows; and bools of both."""
    steps = [("cast", (1,), F, ("dtype", F)), ("const", (), D, ("value", 0.5)), ("gt", (1, 4), B), ("where", (5, 0, 3), F), ("where", (2, 6, 3), F)]
    spec = region(2, [F, (D, True), (B, True)], steps, [-1])
    rng, kernel = np.random.default_rng(0), Spliced(spec, stencils)
    for n in (3, 40, 100):
        check(spec, [6, n], rng, kernel)


def test_a_region_without_inputs(stencils):
    spec = region(2, [], [("const", (), I, ("value", 7))], [-1])
    out = np.zeros((3, 21), I)
    Spliced(spec, stencils)([out], [3, 21])
    assert (out == 7).all()


def test_an_output_of_another_dtype_is_cast(stencils):
    from dataclasses import replace
    spec = region(1, [F], [("neg", (0,), F)], [-1])
    for dtype in (D, I, B):
        other = replace(spec, outputs=(spec.outputs[0]._replace(dtype=dtype),))
        x = np.array([0, 1, 2.5, -3] * 9, F)
        got, want = np.zeros(36, dtype), np.zeros(36, dtype)
        Spliced(other, stencils)([x, got], [36])
        harness.call(other, [x, want], [36], TARGETS[""])
        assert same_bits(got, want)


@pytest.mark.parametrize("spec,why", [
    (region(2, [F], [("any", (0,), B)], [(-1, True)]), "reduction any"),
    (region(2, [F], [("neg", (0,), F)], [-1], kind="column"), "kind"),
    (region(1, ["float16"], [("neg", (0,), "float16")], [-1]), "float16"),
    (region(1, [F, I], [("add", (0, 1), F)], [-1]), "add of float32 and int32"),
    (region(1, [F], [("no_such_op", (0,), F)], [-1]), "no_such_op"),
    (region(1, [F] * 15, [("add", (0, 14), F)], [-1]), "kind"),
])
def test_what_has_no_spliced_form_is_refused(spec, why, stencils):
    with pytest.raises(Unsupported, match=why):
        splice(spec, stencils)


def test_code_is_never_writable(stencils):
    kernel = Spliced(region(1, [F], [("neg", (0,), F)], [-1]), stencils)
    at = kernel.code.address("kernel")
    with open("/proc/self/maps", encoding="ascii") as f:
        line = next(line for line in f if int(line.split("-")[0], 16) <= at < int(line.split()[0].split("-")[1], 16))
    assert "x" in line.split()[1] and "w" not in line.split()[1]


def test_regions_of_any_dtype_are_spliced_or_refused(stencils):
    refused = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        try:
            splice(regions.random_spec(rng, int(rng.integers(1, 5)), bool(seed % 2)), stencils)
        except Unsupported:
            refused += 1
    assert 0 < refused < 150
