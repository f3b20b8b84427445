"""Random straight-line array programs as Python source, with argument values of random shapes and layouts. `generate(seed)`."""
from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from bcvm.ops.samples import special as corners
from tests.vm.op_calls import LAYOUTS, space

SIZES = (0, 1, 1, 2, 3, 3, 4, 5, 7, 16, 33)
FLOAT, INTEGER = ("float32", "float64"), ("int32", "int64")
SMALL = ("float16", "int8", "uint8", "int16", "uint32")  # arguments of some programs


class Var:
    """A variable of the program, as far as the generator knows it: kind 'f', 'i' or 'b', and the shape of the first arguments."""

    def __init__(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        self.name, self.kind, self.shape = name, kind, shape


class Writer:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.vars: list[Var] = []
        self.arguments: list[tuple[str, str, tuple[int, ...]]] = []  # (name, dtype, shape)
        self.wild = rng.choice([0.0, 0.0, 0.05])  # how often shapes and axes are not looked at: errors
        base = [rng.choice(SIZES) for _ in range(3)]
        if rng.random() < 0.1:
            base[rng.randrange(3)] = 1000
        self.base = base
        self.dtypes = FLOAT + FLOAT + INTEGER + ("bool",) + (SMALL if rng.random() < 0.2 else ())
        self.special = rng.random() < 0.15  # NaN, infinities, signed zeros, largest integers among the values

    # -- choices
    def number(self, kind: str) -> str:
        r = self.rng
        return {"f": r.choice(["0.5", "2.0", "-1.5", "1", "3", "1e-3", "n", "s"]), "i": r.choice(["1", "2", "3", "-2", "7", "n"]), "b": r.choice(["True",
                               "False"])}[kind]

    def shape(self) -> tuple[int, ...]:
        r = self.rng
        dims = self.base[: r.choice([0, 1, 1, 2, 2, 2, 3, 3])]
        return tuple(1 if r.random() < 0.15 else d for d in dims)

    def pick(self, kinds: str = "fib", rank: int = 0) -> Var:
        fit = [v for v in self.vars if v.kind in kinds and len(v.shape) >= rank]
        if not fit or self.rng.random() < self.wild:
            return self.rng.choice(self.vars)
        return self.rng.choice(fit[-4:] if self.rng.random() < 0.6 else fit)

    def fitting(self, v: Var, kinds: str) -> str:
        """An operand that broadcasts with v, or a number."""
        r = self.rng
        if r.random() < 0.25:
            return self.number(r.choice([k for k in kinds if k != "b"] or ["b"]))
        fit = []
        for w in self.vars:
            try:
                np.broadcast_shapes(v.shape, w.shape)
            except ValueError:
                continue
            if w.kind in kinds:
                fit.append(w)
        if r.random() < self.wild:
            fit = self.vars
        return r.choice(fit).name if fit else self.number(kinds[0])

    def axis(self, v: Var) -> str:
        rank = len(v.shape)
        if not rank or self.rng.random() < self.wild:
            return self.rng.choice(["0", "-1", "2"])
        return str(self.rng.randrange(-rank, rank))

    # -- one expression
    def expression(self) -> str:
        r = self.rng
        often = [self.binary] * 6 + [self.unary] * 4 + [self.compare] * 2 + [self.reduce] * 4 + [self.view] * 5 + [self.where, self.change, self.function, self.more] * 2
        return r.choice([*often, self.product, self.join, self.create, self.scalar])()

    def binary(self) -> str:
        r = self.rng
        v = self.pick("fi")
        op = r.choice(["+", "-", "*", "+", "-", "*", "/", "//", "%", "np.maximum", "np.minimum", "np.fmax", "**"])
        if op == "**":
            return f"{v.name} ** {r.choice(['2', '2', '3', '0.5', '1'])}"
        if v.kind == "i" and r.random() < 0.2:
            op = r.choice(["&", "|", "^", "<<", ">>"])
            other = self.fitting(v, "i") if op in "&|^" else r.choice(["1", "3"])
        else:
            other = self.fitting(v, "fi")
        a, b = (v.name, other) if r.random() < 0.6 else (other, v.name)
        if op in ("<<", ">>"):
            a, b = v.name, other
        return f"{op}({a}, {b})" if op.startswith("np") else f"{a} {op} {b}"

    def unary(self) -> str:
        r = self.rng
        v = self.pick("fi")
        if v.kind == "b":
            return f"~{v.name}"
        return r.choice([f"-{v.name}", f"np.abs({v.name})", f"np.exp(-np.abs({v.name}))", f"np.tanh({v.name})", f"np.sin({v.name})",
                         f"np.sqrt(np.abs({v.name}))",
                         f"np.log1p(np.abs({v.name}))", f"ops.relu({v.name})", f"ops.sigmoid({v.name})", f"np.square({v.name})", f"np.floor({v.name} * 0.3)",
                         f"np.sign({v.name})", f"ops.gelu({v.name} * 1.0)", f"np.clip({v.name}, -2, 2)", f"+{v.name}", f"ops.silu({v.name} * 1.0)"])

    def compare(self) -> str:
        r = self.rng
        if r.random() < 0.4:
            v = self.pick("b")
            if v.kind == "b":
                other = self.fitting(v, "b")
                return r.choice([f"{v.name} & {other}", f"{v.name} | {other}", f"~{v.name}", f"np.logical_not({v.name})", f"{v.name} ^ {other}"])
        v = self.pick("fi")
        return f"{v.name} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {self.fitting(v, 'fi')}"

    def reduce(self) -> str:
        r = self.rng
        v = self.pick("fib" if r.random() < 0.3 else "fi", 1)
        name = r.choice(["sum", "sum", "mean", "max", "min", "prod", "argmax", "argmin", "any", "all", "std", "var", "softmax", "cumsum", "logsumexp",
                         "layer_norm"])
        if name in ("softmax", "logsumexp"):
            return f"ops.{name}({v.name} * 1.0, axis={self.axis(v)})"
        if name == "layer_norm":
            return f"ops.layer_norm({v.name} * 1.0)"
        if name == "cumsum":
            return f"np.cumsum({v.name}, axis={self.axis(v)})"
        x = f"({v.name} * 0.1)" if name == "prod" and v.kind == "f" else v.name  # large factors overflow or not by their order
        keep = r.choice(["", "", ", keepdims=True"])
        axis = r.choice([self.axis(v), self.axis(v), "None", *([f"({self.axis(v)}, {self.axis(v)})"] if len(v.shape) > 1 and "arg" not in name else [])])
        return f"np.{name}({x}, axis={axis}{keep})" if r.random() < 0.6 else f"{x}.{name}(axis={axis}{keep})"

    def view(self) -> str:
        r = self.rng
        v = self.pick("fib", 1)
        rank, x = len(v.shape), v.name
        perm = list(range(rank))
        r.shuffle(perm)
        size = int(np.prod(v.shape, dtype=int))
        forms = [f"{x}.T", f"np.transpose({x}, {tuple(perm)})", f"np.expand_dims({x}, {r.randrange(-rank - 1, rank + 1)})", f"{x}[..., None]",
                 f"{x}.reshape(-1)", f"np.ravel({x})",
                 f"np.flip({x}, {self.axis(v)})", f"np.broadcast_to({x}, {(r.choice((1, 2, 3)), *v.shape)})",
                 f"np.squeeze({x}, {self.axis(v)})" if 1 in v.shape else f"{x}[None]"]
        if size and rank > 1:
            forms += [f"{x}.reshape({v.shape[0]}, -1)", f"{x}.reshape({v.shape[::-1]})", f"np.swapaxes({x}, {self.axis(v)}, {self.axis(v)})"]
        if rank:
            cut = lambda: r.choice([":", "::2", "::-1", "1:", ":-1", "-3:", ":n", "n:", "2:0:-1", "1:n + 2", "..., 0:2" if rank == 1 else ":2"])  # noqa: E731
            forms += [f"{x}[{', '.join(cut() for _ in range(r.randint(1, rank)))}]" for _ in range(3)] if rank > 1 else [f"{x}[{cut()}]"] * 2
            if v.shape[0]:
                forms += [f"{x}[{r.choice(['0', '-1', str(v.shape[0] - 1)])}]"]
        return r.choice(forms)

    def product(self) -> str:
        r = self.rng
        v = self.pick("f", 1)
        fit = [w for w in self.vars if w.kind in "fi" and len(w.shape) >= 1 and v.shape and w.shape[-2 if len(w.shape) > 1 else -1] == v.shape[-1]]
        if fit and len(v.shape) >= 1:
            return f"{v.name} @ {r.choice(fit).name}"
        return f"{v.name} @ {v.name}.T" if len(v.shape) == 2 else f"np.matmul({v.name}, {v.name})"

    def join(self) -> str:
        r = self.rng
        v = self.pick("fib", 1)
        fit = [w.name for w in self.vars if w.shape == v.shape]
        names = ", ".join([v.name] + [r.choice(fit) for _ in range(r.choice([0, 1, 1, 2]))])
        return f"np.{r.choice(['concatenate', 'stack'])}([{names}], axis={self.axis(v)})"

    def where(self) -> str:
        v = self.pick("b")
        if v.kind != "b":
            return f"np.where({v.name} > 0, {v.name}, {self.fitting(v, 'fi')})"
        return f"np.where({v.name}, {self.fitting(v, 'fi')}, {self.fitting(v, 'fi')})"

    def change(self) -> str:
        """Other dtypes, and copies."""
        r = self.rng
        v = self.pick()
        return r.choice([f"{v.name}.astype(np.float32)", f"{v.name}.astype('float64')",
                         f"np.clip({v.name}, -100, 100).astype(np.int32)" if v.kind == "i" else f"{v.name} + 0",
                         f"{v.name}.copy()", f"np.array({v.name})", f"np.ascontiguousarray({v.name})"])

    def function(self) -> str:
        r = self.rng
        v = self.pick("fi", 1)
        n = max(v.shape[0], 1) if v.shape else 1
        return r.choice([f"np.take({v.name}, i % {n}, axis=0)", f"np.pad({v.name}, 1)", f"np.tile({v.name}, 2)",
                         f"np.repeat({v.name}, 2, axis={self.axis(v)})", f"{v.name}[i % {n}]",
                         f"np.tril({v.name})" if len(v.shape) > 1 else f"np.diff({v.name})", f"np.roll({v.name}, 1)", f"np.linalg.norm({v.name})",
                         f"np.outer({v.name}.ravel()[:9], {v.name}.ravel()[:7])",
                         f"np.dot({v.name}, {v.name}.T)", f"ops.rms_norm({v.name} * 1.0)", f"np.split({v.name}, 1)[0]"])

    def more(self) -> str:
        """Rarer functions and options."""
        r = self.rng
        v, w = self.pick("fi", 1), self.pick("fib")
        x, axis, rank = v.name, self.axis(v), len(v.shape)
        letters = "abcd"[:rank]
        return r.choice([
            f"np.einsum('{letters}->{letters[::-1]}', {x})", f"np.einsum('{letters}->{letters[:1]}', {x})", f"np.moveaxis({x}, 0, -1)",
            f"np.vstack([{x}, {x}])", f"np.hstack([{x}, {x}])",
            f"np.copysign({x}, {self.fitting(v, 'fi')})", f"np.expm1({x} * 0.1)", f"np.isnan({x})", f"np.isfinite({x})", f"np.rint({x})", f"np.trunc({x})",
            f"np.ceil({x} * 0.5)",
            f"np.sum({x}, axis={axis}, dtype=np.float64)", f"np.mean({x}, dtype=np.float64)", f"np.std({x}, axis={axis}, ddof=1)", f"np.full_like({x}, 3)",
            f"np.ones_like({w.name})",
            "np.arange(n, n + 7, 2)", "np.arange(s)", f"np.add({x}, {self.fitting(v, 'fi')}, dtype=np.float64)", f"np.outer({x}.ravel()[:2], {x})",
            f"{x}.clip(0)", f"{x}.clip(min=-1, max=s)",
            f"np.concatenate([{x}, {x}.astype(np.float64)], axis={axis})", f"np.stack([{x}, {x} * 2], axis=-1)", f"np.where({w.name}, 1, 0)",
            f"np.where({x} > s, {x}, s)", f"np.pad({x}, ((1, 2),) * {rank})",
            f"np.pad({x}, 1, constant_values=n)", f"np.cumsum({x})", f"np.argmax({x})", f"{x}.any()", f"np.prod({x}.shape)", f"np.tile({x}, (2, 1))",
            f"np.repeat({x}, n)", f"np.take({x}, n % 2)",
            f"np.logical_xor({x}, {self.fitting(v, 'fib')})", f"np.power({x}, 2)", f"np.log2(np.abs({x}) + 1)", f"np.exp2({x} * 0.25)", f"np.triu({x}, 1)",
            f"np.maximum({x}, 0) ** 0.5", f"2 ** ({x} * 0.5)",
            f"np.float32(0.1) + {x}", f"np.int64(3) * {x}", f"True + {x}", f"~({x} > 0)", f"-{w.name}", f"{x}.mean(axis=tuple(range({rank})))",
            f"{x}[::-1][n:]", f"{x}[-n:]", f"{x}[:, None] if {x}.ndim else {x}",
            f"ops.softmax({x} * 0.5)", f"ops.log_softmax({x} * 1.0, axis={axis})", f"ops.normalize({x} * 1.0)", f"ops.elu({x} * 1.0)",
            f"ops.softplus({x} * 0.5)", "ops.one_hot(i % 3, 3)", f"ops.linear({x} * 1.0, {x} * 0.5)"])

    def scalar(self) -> str:
        """Through Python numbers."""
        r = self.rng
        v, w = self.pick("fi"), self.pick("fi")
        return r.choice([f"{v.name} * float({w.name}.sum())", f"{v.name} + len({w.name})", f"{v.name} * {w.name}.size",
                         f"{v.name}[:{w.name}.shape[0] // 2]", f"{v.name} + int(np.max(i))", f"{v.name} * (n / (s + 1))",
                         f"{v.name} + n // 2 - n % 3", f"{v.name} * (1 if n > 1 else 0.5)", f"{v.name} + min(n, 2)", f"{v.name} * abs(-s)",
                         f"{v.name} + i[n % 4]", f"{v.name} + i.sum()", f"{v.name} * {w.name}.ndim",
                         f"({v.name} if s > 1 else {w.name})", f"{v.name} + i[:n].mean()", f"{v.name}.reshape({v.name}.shape)", "np.ones(n) * s",
                         f"np.zeros((n, {w.name}.size)) + n"])

    def statement(self, target: str) -> str:
        """Stores, branches and loops that make one variable."""
        r = self.rng
        v, w = self.pick("f"), self.pick("fi")
        fit = self.fitting(v, "fi")
        start = f"{target} = {v.name} * 1"
        index = r.choice(["0", "-1", "1:", "::2", "...", "::-1", ":n", "..., 0", "1:, :1"])
        return "\n    ".join(r.choice([
            [start, f"{target} {r.choice(['+=', '*=', '-='])} {fit}"],
            [start, f"{target}[{index}] = {self.number('f')}"],
            [start, f"{target}[{index}] += {self.number('f')}"],
            [start, f"{target}[{index}] = {target}[{index}][::-1]"],
            [start, f"{target}[1:] = {target}[:-1]"],
            [start, "for k in range(n):", f"    {target} = {target} * 0.5 + k"],
            [start, "for k in range(n):", f"    {target}[k:] += 1"],
            [start, f"for k in range({v.name}.shape[0]):", f"    {target} = {target} + {v.name}[k]"] if v.shape and v.shape[0] < 9 else [start],
            [start, f"if {w.name}.sum() > 0:", f"    {target} = {target} + 1", "else:", f"    {target} = -{target}"],
            [start, "if n > 1:", f"    {target} = {target}.T"],
            [start, "while n < 3:", f"    {target} = {target} + n", "    n = n + 1"],
            [f"{target} = {v.name}", "for k in range(n):", f"    {target} = np.concatenate([{target}, {target}[:1]], axis=0)"],
            [f"{target} = np.zeros({v.name}.shape, {v.name}.dtype)", f"{target}[...] = {fit}"],
            [f"{target}, u = {v.name}.T, {v.name} + 1", f"{target} = {target} + u.T"],
        ]))

    def create(self) -> str:
        r = self.rng
        v = self.pick("fib", 1)
        n = f"{v.name}.shape[{self.axis(v)}]" if v.shape else "n"
        return r.choice([f"np.zeros({v.name}.shape)", f"np.ones(({n}, 2), np.float32)", f"np.arange({n})", f"np.zeros_like({v.name})",
                         f"np.full({v.name}.shape, {self.number('f')})",
                         f"np.eye({n})", f"np.float32(2) * {v.name}", f"({n} + 1) * {v.name}"])

    # -- the program
    def write(self, count: int, run: Any) -> str:
        """run(text, arguments) -> the program's variables; generation goes on from what really happens."""
        r = self.rng
        for n in range(r.randint(1, 4)):
            dtype = r.choice(self.dtypes) if n else r.choice(FLOAT)
            shape = self.shape()
            self.arguments.append((f"x{n}", dtype, shape))
            self.vars.append(Var(f"x{n}", {"f": "f", "b": "b"}.get(dtype[0], "i"), shape))
        for n in range(count):
            for _ in range(8):
                line = f"v{n} = {self.expression()}"
                if r.random() < 0.1:
                    line = self.statement(f"v{n}")
                made = run(self.text([*self.lines, line], f"v{n}"))
                if isinstance(made, Exception):
                    if r.random() < 0.95:
                        continue
                    self.lines.append(line)
                    return self.text(self.lines, f"v{n}")
                if isinstance(made, (np.ndarray, np.generic)) and made.size <= 200_000 and made.dtype.name in FLOAT + INTEGER + SMALL + ("bool",):
                    self.lines.append(line)
                    self.vars.append(Var(f"v{n}", made.dtype.kind.replace("u", "i"), made.shape))
                    break
        results = [v.name for v in self.vars if v.name[0] == "v"] or ["x0"]
        shown = list(dict.fromkeys([results[-1], *r.sample(results, min(len(results), r.choice([0, 0, 1, 3])))]))
        return self.text(self.lines, ", ".join(shown))

    def text(self, lines: list[str], result: str) -> str:
        body = "".join(f"    {line}\n" for line in lines)
        return f"def f({', '.join(a[0] for a in self.arguments)}, i, n, s):\n{body}    return {result}\n"


def values(spec: list[tuple[str, str, tuple[int, ...]]], seed: int, special: bool) -> tuple[Any, ...]:
    """Arguments of a program. Powers of 1/8 up to 4: sums and products of few are exact, so that comparisons do not depend on rounding."""
    rng, layouts = np.random.default_rng(seed), Random(seed)
    out: list[Any] = []
    for _, dtype, shape in spec:
        if dtype == "bool":
            a = rng.integers(0, 2, shape).astype(bool)
        elif dtype[0] in "iu":
            a = rng.integers(0 if dtype[0] == "u" else -5, 6, shape).astype(dtype)
        else:
            a = (rng.integers(-32, 33, shape) / 8).astype(dtype)
        if special and a.size and dtype != "bool":
            odd = corners(dtype)
            if odd.dtype.kind == "f":  # the largest overflow or not by the order of a sum
                odd = odd[~(np.isfinite(odd) & (np.abs(odd) > 1000))]
            elif odd.dtype.itemsize == 8:  # no float64 holds them
                odd = odd[(odd < 1 << 40) & (odd > -1 << 40)]
            where = rng.random(shape) < 0.3
            a = np.where(where, odd[rng.integers(0, len(odd), shape)], a)
        out.append(layouts.choice(list(LAYOUTS.values()))(a) if layouts.random() < 0.7 else a)
    return (*out, rng.integers(0, 50, 4), int(rng.integers(0, 4)), float(rng.integers(1, 9)) / 4)


def generate(seed: int) -> tuple[str, list[tuple[Any, ...]]]:
    """The source of a function f, and argument tuples: twice the same shapes in other layouts, twice other sizes (which it may refuse)."""
    rng = Random(seed)
    writer = Writer(rng)
    arguments: tuple[Any, ...] | None = None

    def run(text: str) -> Any:
        nonlocal arguments
        if arguments is None:
            arguments = values(writer.arguments, seed, writer.special)
        names = space()
        try:
            exec(compile(text, "<generated>", "exec"), names)
            return names["f"](*arguments)
        except Exception as e:  # what it raises is part of what is compared
            return e
    text = writer.write(rng.randint(4, 20), run)
    examples = [values(writer.arguments, seed + k, writer.special) for k in (0, 1_000_000)]
    for k in (2_000_000, 3_000_000):
        other = {d: d if rng.random() < 0.4 else rng.choice(SIZES) for d in (*SIZES, 1000)}
        resized = [(name, dtype, tuple(other[d] for d in shape)) for name, dtype, shape in writer.arguments]
        examples.append(values(resized, seed + k, writer.special))
    return text, examples
