"""Leaving the driver: at an exit with the words of its state, or with an error.

An exit block is shared by all places that leave with the same state, reason and owned Python objects, and what it writes of the callers' levels by all
exits inside the same call. The state's values stand in the order of State.values(); behind them a count, and that many objects whose reference passes to the caller, who drops
them when it has taken what it needs from the state.
"""
from __future__ import annotations

from collections.abc import Iterable

from bcvm.compiler.driver.emitter import Emitter
from bcvm.compiler.driver.values import Driver, TensorRep, rep_words
from bcvm.specialise.ssa import State, Value
from bcvm.specialise.types import Scalar

Groups = tuple[tuple[Value, ...], ...]  # values of levels, outermost first
MANY = 1000         # tensors that all exits write from which a function writes their words: shorter text, but a function costs LLVM its own time
OUT_OF_MEMORY = -1  # the driver's result when memory ran out: nothing in `out`, the caller raises MemoryError


def exit_label(d: Driver, state: State, reason: str) -> str:
    """The label of the block that leaves at this state, as things are owned now."""
    number = d.exit_number.get((id(state), reason))
    if number is None:
        number = d.exit_number[id(state), reason] = len(d.exits)
        d.exits.append((state, reason))
    return _block(d, number, state)


def failure_label(d: Driver, state: State, code: str, refused: int) -> str:
    """A block that leaves at the state if a kernel's code says that it refuses the call, and reports lack of memory otherwise."""
    e = d.e
    label, leave, memory = e.new_label("failed"), exit_label(d, state, "kernel"), memory_label(d)
    is_refusal = e.name()
    e.tail += [f"{label}:", f"  {is_refusal} = icmp eq i32 {code}, {refused}", f"  br i1 {is_refusal}, label %{leave}, label %{memory}"]
    return label


def memory_label(d: Driver) -> str:
    """The label of the block that reports that memory ran out."""
    return _block(d, -1, None)


def _block(d: Driver, number: int, state: State | None) -> str:
    held = tuple(v for v in d.owned if v in d.objects)
    key = (number, held)
    label = d.exit_labels.get(key)
    if label is None:
        label = d.exit_labels[key] = f"leave.{len(d.exit_labels)}"
        d.pending.append((label, number, state, held))
    return label


def write_pending(d: Driver) -> None:
    """Emit the exit blocks asked for so far. The values they name dominate every place that leaves through them."""
    e = d.e
    outer: dict[Groups, str] = {}
    inner = (v for _, _, state, _ in d.pending if state is not None for v in state.by_level()[-1])
    by_call = sum(isinstance(d.reps.get(v), TensorRep) for v in inner) > MANY
    for label, number, state, held in d.pending:
        e.push()
        e.start(label)
        if state is None:
            _release(d, held)
            e.do(f"ret i32 {OUT_OF_MEMORY}")
        else:
            *outside, inside = state.by_level()
            rest = tuple(filter(None, outside))
            _write(d, inside, rest, held, by_call)
            if not rest:
                e.do(f"ret i32 {number + 1}")
            else:
                e.do(f"store i32 {number + 1}, ptr %leaving")
                e.jump(_outer_label(outer, rest))
        e.pop()
    d.pending.clear()
    if outer:
        e.entry.append("  %leaving = alloca i32")
    _write_outer(d, outer, by_call)


def _outer_label(outer: dict[Groups, str], groups: Groups) -> str:
    """The block that writes these levels; it goes on to one for all but the innermost of them."""
    for n in range(1, len(groups) + 1):
        outer.setdefault(groups[:n], f"outer.{len(outer)}")
    return outer[groups]


def _write_outer(d: Driver, outer: dict[Groups, str], by_call: bool) -> None:
    """Callers' levels are written by blocks that all exits of what they call share."""
    e = d.e
    for groups, label in outer.items():
        e.push()
        e.start(label)
        *rest, inside = groups
        _write_values(d, inside, _words(rest), by_call)
        if rest:
            e.jump(outer[tuple(rest)])
        else:
            e.do(f"ret i32 {e.op('load i32, ptr %leaving')}")
        e.pop()


def _words(groups: Iterable[tuple[Value, ...]]) -> int:
    return sum(rep_words(v) for group in groups for v in group)


def _release(d: Driver, held: tuple[Value, ...]) -> None:
    for v in held:
        d.e.call("release", "%ctx", d.tensor(v).base)


def _write(d: Driver, inside: tuple[Value, ...], outside: Groups, held: tuple[Value, ...], by_call: bool) -> None:
    """What an exit has for itself: the innermost level, which comes behind the others, and what passes to the caller."""
    e = d.e
    at = _write_values(d, inside, _words(outside), by_call)
    d.out_words = max(d.out_words, at + 1 + len(held))
    count = "0"
    for v in held:
        base = d.tensor(v).base
        odd = e.op(f"and i64 {base}, 1")
        place = e.op(f"getelementptr i64, ptr %out, i64 {e.add(count, str(at + 1))}")
        e.do(f"store i64 {e.op(f'and i64 {base}, -2')}, ptr {place}")
        count = e.add(count, odd)
    e.store(count, "%out", at)


def _write_values(d: Driver, values: tuple[Value, ...], at: int, by_call: bool) -> int:
    """Store values in `out` from this word on; by_call: the words of a tensor by a function. The word behind them."""
    e = d.e
    for v in values:
        rep = d.reps.get(v)
        if isinstance(rep, TensorRep):
            numbers = (rep.base, *rep.sizes, *rep.strides)
            if by_call:
                e.do(f"call void {_tensor_writer(e, len(rep.sizes))}(ptr {e.word('%out', at)}, ptr {rep.data}, ptr {rep.object}"
                     + "".join(f", i64 {n}" for n in numbers) + ")")
            else:
                for i, word in enumerate((rep.data, rep.object, *numbers)):
                    e.store(word, "%out", at + i, "ptr" if i < 2 else "i64")
        elif isinstance(v.type, Scalar):
            store_word(e, v.type.kind, d.scalar(v), at)
        else:
            assert isinstance(rep, str)
            e.store(rep, "%out", at, "ptr")
        at += rep_words(v)
    return at


def _tensor_writer(e: Emitter, rank: int) -> str:
    """A function that writes the words of one tensor: hundreds of exits, each with tens of tensors, would else be most of a driver's text."""
    name, words = f"@tensor.{rank}", [f"%w{i}" for i in range(1 + 2 * rank)]
    lines = [f"define internal void {name}(ptr %out, ptr %data, ptr %object{''.join(f', i64 {w}' for w in words)}) nounwind {{"]
    for at, value in enumerate(("ptr %data", "ptr %object", *(f"i64 {w}" for w in words))):
        lines += [f"  %at{at} = getelementptr i64, ptr %out, i64 {at}", f"  store {value}, ptr %at{at}"]
    return e.declare(name, "\n".join([*lines, "  ret void", "}"]))


def store_word(e: Emitter, kind: str, operand: str, at: int) -> None:
    """One scalar as one word of `out`."""
    if kind == "bool":
        operand = {"true": "1", "false": "0"}.get(operand) or e.op(f"zext i1 {operand} to i64")
    e.store(operand, "%out", at, "double" if kind == "float" else "i64")
