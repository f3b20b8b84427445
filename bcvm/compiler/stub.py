"""Entry stubs: native vectorcall functions that check a specialisation's guards, read its inputs, run its driver and build the result.

One stub serves one specialisation and one way to pass arguments (`Call`). Nothing is changed before all guards hold; whatever fails leads to
the successor: the next stub, or the slow trampoline. `prepare` writes the IR (and needs no LLVM), `Stub.load` makes it callable.

Reading. Every path is read once. Guards on names that come from module dictionaries (`np`, `np.tanh`, functions, constants) are looked up again only
if the version of one of these dictionaries has changed, where Python keeps versions (up to 3.12). Values taken from
anything that may change during the call are held by reference until its end.
"""
from __future__ import annotations

import ctypes
import math
import struct
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bcvm.compiler import abi, boxing, llvm, loader, probe
from bcvm.compiler.emit import Emitter
from bcvm.compiler.modules import constant
from bcvm.compiler.runtime import runtime
from bcvm.compiler.worker import GLUE
from bcvm.errors import Unsupported
from bcvm.specialise.ssa import Graph, Guard, Input, Path, Tree
from bcvm.specialise.types import PyObject, Scalar, Tensor

# Words of a stub's data block, readable at any time. CALLS: admitted calls; EXITS: those of them that left to the
# interpreter; MISSES: calls passed on to the successor; ACTIVE: activations that are inside.
CALLS, EXITS, MISSES, ACTIVE, SUCCESSOR = range(5)
DRIVER_COUNTERS = 8  # CTX_COUNTERS points here


@dataclass(frozen=True)
class Call:
    """How arguments are passed: number of positional ones, and the keywords in order. ('arg', i) is the i-th, keywords follow the positional ones."""

    positional: int
    keywords: tuple[str, ...] = ()


class Reader(Protocol):
    """The emitted form of a framework adapter. Registered in READERS by library name. runs_python: other Python code may run while a tensor is read."""

    runs_python: bool

    def enter(self, e: Emitter, miss: str) -> None:
        """Emitted once, before the first tensor of the library is read: goes to `miss` where the library must see the call itself."""

    def read(self, e: Emitter, obj: str, type: Tensor, writable: bool, miss: str, into: str) -> None:
        """Checks that the object is such a tensor (else goes to `miss`) and stores its words (see abi: Driver) at the pointer `into`."""

    def box(self, e: Emitter, obj: str, type: Tensor) -> str:
        """Owned ndarray or input object -> owned result object or null with an exception set."""

    def before_write(self, e: Emitter, miss: str) -> None:
        """Emitted once, after all guards, if the program stores into an input."""


READERS: dict[str, Reader] = {}


@dataclass(eq=False)
class Place:
    """A value that is read on entry. known: the object, where its identity is guarded. cls: its exact type, where guarded.
    steady: nothing can release it during the call."""

    pointer: str
    known: Any = None
    is_known: bool = False
    cls: type | None = None
    steady: bool = False


@dataclass(eq=False)
class Stub:
    """A stub, from IR text to code. `counters` are the words of its data block."""

    ir: str
    keep: list[Any]
    data: Any
    code: loader.LoadedCode | None = None
    address: int = 0

    def compile(self) -> int:
        """Compiles and loads a stub whose driver is an address; returns its address. Optimised code would save 1.5 ns a call
        and cost four times the compile time."""
        return self.load(loader.load(llvm.compile_ir(self.ir, effort=GLUE)))

    def load(self, code: loader.LoadedCode) -> int:
        """Takes the loaded object that has the function `entry`; returns its address."""
        self.code, self.address = code, code.address("entry")
        return self.address

    def set_successor(self, address: int) -> None:
        """Where calls go that this stub does not admit. Set it before the stub is published."""
        self.data[SUCCESSOR] = address

    def counter(self, word: int) -> int:
        return int(self.data[word])

    @property
    def active(self) -> int:
        """Activations inside this stub; its code may be released when it is unreachable and this is 0."""
        return int(self.data[ACTIVE])

    def release(self) -> None:
        if self.code is not None:
            self.code.release()
            self.code, self.address = None, 0


def input_words(inputs: Sequence[Input]) -> int:
    """Words of the driver's `in`."""
    return sum(2 + 2 * i.value.type.rank if isinstance(i.value.type, Tensor) else 1 for i in inputs)


def prepare(graph: Graph, call: Call, results: Sequence[Tree], *, driver: str | int, resume: Callable[..., Any],
            out_words: int, driver_counters: int = 8, hold: bool = False) -> Stub:
    """The entry stub of `graph` for one way to pass arguments.

    results: the trees the driver may return (Return.tree), in the order of abi.return_code.
    driver: '@name' of a function in the same module (the caller joins the texts), or an address.
    resume(exit_id, in_address, out_address): called when the driver left at exit_id; returns the call's result.
    hold: other threads may run during the call, as in kernels that release the interpreter lock: what was read from containers and cells
    is held by reference. out_words: words of `out`, enough for the result and every exit. Unsupported: a guard or result without a native form.
    """
    def writer(runs_python: bool) -> _Writer:
        return _Writer(graph, call, results, driver, resume, out_words, driver_counters, runs_python)

    hold |= any(READERS[i.value.type.library].runs_python for i in graph.inputs if isinstance(i.value.type, Tensor) and i.value.type.library in READERS)
    first = writer(hold)
    made = first.write()
    return writer(True).write() if first.ran_python and not hold else made


class _Writer:
    def __init__(self, graph: Graph, call: Call, results: Sequence[Tree], driver: str | int, resume: Callable[..., Any],
                 out_words: int, driver_counters: int, runs_python: bool) -> None:
        self.graph, self.call, self.results, self.driver, self.resume = graph, call, results, driver, resume
        self.e = Emitter()
        self.rt = runtime()
        self.out_words = max(1, out_words)
        self.data = (ctypes.c_uint64 * (DRIVER_COUNTERS + driver_counters))()
        self.data_at = ctypes.addressof(self.data)
        self.e.keep += [self.data, resume]
        self.places: dict[Any, Place] = {}
        self.guards: dict[Any, list[Guard]] = {}
        for g in graph.guards:
            self.guards.setdefault(_key(g.path), []).append(g)
        self.held = 0
        self.runs_python = runs_python  # some read may run Python code, which may change what was read before
        self.ran_python = False

    # ---- the whole

    def write(self) -> Stub:
        e = self.e
        e.add(self.data_at + 8 * ACTIVE, 1)
        count = e.let("and i64 %nargsf, 9223372036854775807")
        e.require(e.let(f"icmp eq i64 {count}, {self.call.positional}"), "miss")
        self._keywords()
        self._static_names()
        for g in self.graph.guards:
            self._place(g.path)
        for library in sorted({i.value.type.library for i in self.graph.inputs if isinstance(i.value.type, Tensor)}):
            if library not in READERS:
                raise Unsupported(f"tensors of {library!r} have no emitted form")
            READERS[library].enter(e, "miss")
        words = 0
        for i in self.graph.inputs:
            self._input(i, words)
            words += input_words([i])
        if any(i.writable for i in self.graph.inputs):
            for library in sorted({i.value.type.library for i in self.graph.inputs if isinstance(i.value.type, Tensor) and i.writable}):
                READERS[library].before_write(e, "miss")
        self._run()
        return self._finish(words)

    def _finish(self, words: int) -> Stub:
        e = self.e
        head = [f"%in = alloca [{max(1, words)} x i64], align 16", f"%out = alloca [{self.out_words} x i64], align 16",
                "%numbers = alloca [4 x ptr], align 16"]
        if self.held:
            head.append(f"%held = alloca [{self.held} x ptr], align 16")
            head += [f"%h{i} = getelementptr ptr, ptr %held, i64 {i}\n  store ptr null, ptr %h{i}" for i in range(self.held)]
        body = e.text()
        e.lines = []
        e.start("miss")
        self._let_go()
        e.call("void", "PyErr_Clear")
        e.add(self.data_at + 8 * MISSES, 1)
        e.add(self.data_at + 8 * ACTIVE, -1)
        next_one = e.let(f"load ptr, ptr {constant(self.data_at + 8 * SUCCESSOR)}")
        r = e.let(f"musttail call ptr {next_one}(ptr %self, ptr %args, i64 %nargsf, ptr %kwnames)")
        e.line(f"ret ptr {r}")
        e.start("done")
        e.line("%result = load ptr, ptr %numbers")
        self._let_go()
        e.add(self.data_at + 8 * ACTIVE, -1)
        e.line("ret ptr %result")
        ir = ("define ptr @entry(ptr %self, ptr %args, i64 %nargsf, ptr %kwnames) {\nentry:\n  " + "\n  ".join(head) + "\n" + body + "\n" + e.text() + "\n}\n")
        return Stub(ir, e.keep, self.data)

    def _let_go(self) -> None:
        for i in range(self.held):
            self.e.call("void", "Py_DecRef", ("ptr", self.e.let(f"load ptr, ptr %h{i}")))

    def _hold(self, pointer: str, new: bool) -> None:
        """Keeps a reference to the end of the call: takes over a new one, or makes one."""
        self.e.line(f"store ptr {pointer}, ptr %h{self.held}")
        self.held += 1
        if not new:
            self.e.call("void", "Py_IncRef", ("ptr", pointer))

    def _keywords(self) -> None:
        e = self.e
        if not self.call.keywords:
            nothing = e.let("icmp eq ptr %kwnames, null")
            ok, some = e.label("nokw"), e.label("kw")
            e.line(f"br i1 {nothing}, label %{ok}, label %{some}")
            e.start(some)  # an empty tuple is as good
            e.require(e.let(f"icmp eq i64 {e.load('i64', '%kwnames', probe.SIZE)}, 0"), "miss")
            e.jump(ok)
            e.start(ok)
            return
        e.not_null("%kwnames", "miss")
        e.require(e.let(f"icmp eq i64 {e.load('i64', '%kwnames', probe.SIZE)}, {len(self.call.keywords)}"), "miss")
        for i, name in enumerate(self.call.keywords):
            self._equal(e.load("ptr", "%kwnames", probe.ITEMS + 8 * i), name)

    # ---- names in module dictionaries

    def _static_names(self) -> None:
        """Emits the lookups of identity-guarded names in module dictionaries, behind a check of the dictionaries' versions."""
        chosen = [g for g in self.graph.guards if g.how in ("is", "equal") and self._is_static(g.path)]
        if not chosen:
            return
        dicts: dict[int, Any] = {}
        for g in chosen:
            for d in self._dicts(g.path):
                dicts[id(d)] = d
        e = self.e
        version = probe.layout().dict_version
        ready = e.label("names")
        if version:
            cells = (ctypes.c_uint64 * len(dicts))(*([(1 << 64) - 1] * len(dicts)))
            e.keep.append(cells)
            at = ctypes.addressof(cells)
            look = e.label("look")
            now = [e.load("i64", e.object(d), version) for d in dicts.values()]
            for i, v in enumerate(now):
                e.require(e.let(f"icmp eq i64 {v}, {e.let(f'load i64, ptr {constant(at + 8 * i)}')}"), look)
            e.jump(ready)
            e.start(look)
            now = [e.load("i64", e.object(d), version) for d in dicts.values()]
        for g in sorted(chosen, key=lambda g: len(g.path.steps)):
            self._check(g, self._static_lookup(g.path))
        if version:
            for i, v in enumerate(now):
                e.line(f"store i64 {v}, ptr {constant(at + 8 * i)}")
        e.jump(ready)
        e.start(ready)
        for g in chosen:  # an equal constant is as good as the one that is there
            self.places[_key(g.path)] = Place(e.object(g.value), g.value, True, type(g.value), True)
        for g in self.graph.guards:
            if g not in chosen and _key(g.path) in self.places:
                self._guard(g, self.places[_key(g.path)])

    def _module_at(self, path: Path) -> types.ModuleType | None:
        for g in self.guards.get(_key(path), ()):
            if g.how == "is" and type(g.value) is types.ModuleType:
                return g.value
        return None

    def _is_static(self, path: Path) -> bool:
        root = path.root
        if root[0] == "const":
            known: Any = root[1] if type(root[1]) is types.ModuleType else None
        elif root[0] == "global" and type(root[1]) is dict and type(root[2]) is dict:
            known = self._module_at(Path(root)) if path.steps else True
        else:
            return False
        for n, (kind, name) in enumerate(path.steps):
            if kind != "attr" or type(known) is not types.ModuleType or name not in vars(known):
                return False
            known = self._module_at(Path(root, path.steps[:n + 1])) if n + 1 < len(path.steps) else True
        return known is not None and (bool(path.steps) or root[0] == "global")

    def _dicts(self, path: Path) -> list[Any]:
        if path.steps:
            parent = Path(path.root, path.steps[:-1])
            module = path.root[1] if not parent.steps and path.root[0] == "const" else self._module_at(parent)
            return [vars(module)]
        _, names, builtins, name = path.root
        return [names] if name in names else [names, builtins]

    def _static_lookup(self, path: Path) -> str:
        *outer, last = self._dicts(path)
        name = path.steps[-1][1] if path.steps else path.root[3]
        for d in outer:
            found = self._dict_item(self.e.object(d), name)
            self.e.require(self.e.let(f"icmp eq ptr {found}, null"), "miss")
        value = self._dict_item(self.e.object(last), name)
        self.e.not_null(value, "miss")
        return value

    def _dict_item(self, d: str, key: Any) -> str:
        if type(key) is str:
            key = sys.intern(key)
        return self.e.call("ptr", "PyDict_GetItemWithError", ("ptr", d), ("ptr", self.e.object(key)))

    # ---- reading paths

    def _place(self, path: Path) -> Place:
        """Reads a path, once, with all its guards."""
        key = _key(path)
        place = self.places.get(key)
        if place is None:
            place = self._step(self._place(Path(path.root, path.steps[:-1])), *path.steps[-1]) if path.steps else self._root(path)
            self.places[key] = place
            for g in sorted(self.guards.get(key, ()), key=lambda g: g.how not in ("is", "type", "equal")):
                self._guard(g, place)
        return place

    def _root(self, path: Path) -> Place:
        e, root = self.e, path.root
        kind = root[0]
        if kind == "arg":
            return Place(e.load("ptr", "%args", 8 * root[1], "a"), steady=True)
        if kind == "const":
            return Place(e.object(root[1]), root[1], True, type(root[1]), True)
        if kind == "closure":
            value = e.load("ptr", e.object(root[1]), probe.SIZE, "c")
            e.not_null(value, "miss")
            return self._borrowed(value)
        if kind == "global":
            _, names, builtins, name = root
            if type(names) is not dict or type(builtins) is not dict:
                raise Unsupported(f"the globals that {name} is read from are no plain dict")
            value = self._dict_item(e.object(names), name)
            if name not in names:
                e.require(e.let(f"icmp eq ptr {value}, null"), "miss")
                value = self._dict_item(e.object(builtins), name)
            e.not_null(value, "miss")
            return self._borrowed(value)
        raise Unsupported(f"cannot read {path} natively")

    def _borrowed(self, value: str) -> Place:
        """A reference that something else owns, which Python code run by later reads, or another thread, could change."""
        place = Place(value)
        if self.runs_python:
            self._hold(value, new=False)
            place.steady = True
        return place

    def _step(self, place: Place, kind: str, key: Any) -> Place:
        e = self.e
        if kind == "attr":
            if place.is_known and type(place.known) is types.ModuleType and key in vars(place.known):
                value = self._dict_item(e.object(vars(place.known)), key)
                e.not_null(value, "miss")
                return self._borrowed(value)
            plain = _plain_attribute(place.cls, key)
            self.ran_python |= not plain
            get = "PyObject_GenericGetAttr" if plain else "PyObject_GetAttr"  # past a __getattr__ in Python
            value = e.call("ptr", get, ("ptr", place.pointer), ("ptr", e.object(sys.intern(key))))
            e.not_null(value, "miss")
            self._hold(value, new=True)
            return Place(value, steady=True)
        if kind != "item":
            raise Unsupported(f"a step of kind {kind!r} has no native form")
        cls = place.cls
        if cls is tuple or cls is list:
            if type(key) is not int:
                raise Unsupported(f"{cls.__name__} indexed by {key!r}")
            size = e.load("i64", place.pointer, probe.SIZE)
            e.require(e.let(f"icmp sgt i64 {size}, {key if key >= 0 else -key - 1}"), "miss")
            if cls is tuple:
                items = e.offset(place.pointer, probe.ITEMS)
            else:
                items = e.load("ptr", place.pointer, probe.ITEMS)
            index = str(key) if key >= 0 else e.let(f"add i64 {size}, {key}")
            value = e.let(f"load ptr, ptr {e.let(f'getelementptr ptr, ptr {items}, i64 {index}')}")
            return Place(value, steady=True) if cls is tuple and place.steady else self._borrowed(value)
        if cls is dict:
            value = self._dict_item(place.pointer, key)
            e.not_null(value, "miss")
            return self._borrowed(value)
        self.ran_python = True
        value = e.call("ptr", "PyObject_GetItem", ("ptr", place.pointer), ("ptr", e.object(key)))
        e.not_null(value, "miss")
        self._hold(value, new=True)
        return Place(value, steady=True)

    # ---- guards

    def _guard(self, g: Guard, place: Place) -> None:
        if place.is_known and _holds(g, place.known):
            return  # the very object is known and cannot change in this respect
        else:
            self._check(g, place.pointer, place.cls)
        if g.how == "is":
            place.known, place.is_known, place.cls = g.value, True, type(g.value)
        elif g.how == "type":
            place.cls = g.value

    def _check(self, g: Guard, value: str, cls: type | None = None) -> None:
        e = self.e
        if g.how == "is":
            e.same(value, e.object(g.value), "miss")
        elif g.how == "type":
            e.type_is(value, g.value, "miss")
        elif g.how == "equal":
            self._equal(value, g.value)
        elif g.how == "length":
            if cls in (tuple, list, dict):
                n = e.load("i64", value, probe.SIZE)
            else:
                n = e.call("i64", "PyObject_Size", ("ptr", value))
            e.require(e.let(f"icmp eq i64 {n}, {g.value}"), "miss")
        elif g.how == "keys":
            self._keys(value, g.value)
        elif g.how == "code":
            e.same(e.load("ptr", value, probe.layout().function_code), e.object(g.value), "miss")
        elif g.how == "falsy":
            e.require(e.let(f"icmp eq i32 {e.call('i32', 'PyObject_IsTrue', ('ptr', value))}, 0"), "miss")
        elif g.how == "absent":
            d = e.call("ptr", "PyObject_GenericGetDict", ("ptr", value), ("ptr", "null"))
            e.not_null(d, "miss")
            self._hold(d, new=True)
            e.require(e.let(f"icmp eq ptr {self._dict_item(d, g.value)}, null"), "miss")
        else:
            raise Unsupported(f"a guard of kind {g.how!r} has no native form")

    def _equal(self, value: str, wanted: Any) -> None:
        e = self.e
        if isinstance(wanted, (bool, type(None), type(Ellipsis))):
            e.same(value, e.object(wanted), "miss")
            return
        if type(wanted) is str:
            wanted = sys.intern(wanted)
        same = e.label("same")
        differs = e.label("differs")
        e.line(f"br i1 {e.let(f'icmp eq ptr {value}, {e.object(wanted)}')}, label %{same}, label %{differs}")
        e.start(differs)
        e.type_is(value, type(wanted), "miss")
        if isinstance(wanted, (float, complex)):  # by bits: -0.0 is not 0.0, and a NaN is itself
            parts = (wanted.real, wanted.imag) if isinstance(wanted, complex) else (wanted,)
            for n, part in enumerate(parts):
                bits = int.from_bytes(struct.pack("<d", part), "little", signed=True)
                e.require(e.let(f"icmp eq i64 {e.load('i64', value, probe.SIZE + 8 * n)}, {bits}"), "miss")
        else:
            r = e.call("i32", "PyObject_RichCompareBool", ("ptr", value), ("ptr", e.object(wanted)), ("i32", "2"))
            e.require(e.let(f"icmp eq i32 {r}, 1"), "miss")
        e.jump(same)
        e.start(same)

    def _keys(self, value: str, keys: tuple[Any, ...]) -> None:
        e = self.e
        e.require(e.let(f"icmp eq i64 {e.load('i64', value, probe.SIZE)}, {len(keys)}"), "miss")
        if not keys:
            return
        e.store("i64", "0", "%numbers")
        for key in keys:
            e.call("i32", "PyDict_Next", ("ptr", value), ("ptr", "%numbers"), ("ptr", e.offset("%numbers", 8)), ("ptr", e.offset("%numbers", 16)))
            self._equal(e.load("ptr", "%numbers", 8), key)

    # ---- inputs

    def _input(self, i: Input, word: int) -> None:
        """Checks and reads an input; its words start at this one."""
        e, t = self.e, i.value.type
        place = self._place(i.path)
        obj = place.pointer
        if isinstance(t, (Tensor, PyObject)) and not place.steady:
            self._hold(obj, new=False)
            place.steady = True
        if isinstance(t, Tensor):
            READERS[t.library].read(e, obj, t, i.writable, "miss", e.offset("%in", 8 * word))
            return
        if isinstance(t, PyObject):
            if t.cls is not None:
                e.type_is(obj, t.cls, "miss")
            e.store("ptr", obj, "%in", 8 * word)
            return
        assert isinstance(t, Scalar)
        e.store("i64", self._number(obj, t.kind), "%in", 8 * word)

    def _number(self, obj: str, kind: str) -> str:
        """The word of a Python number."""
        e = self.e
        if kind == "bool":
            true = e.let(f"icmp eq ptr {obj}, {e.object(True)}")
            e.require(e.let(f"or i1 {true}, {e.let(f'icmp eq ptr {obj}, {e.object(False)}')}"), "miss")
            return e.let(f"zext i1 {true} to i64")
        if kind == "float":
            e.type_is(obj, float, "miss")
            return e.load("i64", obj, probe.SIZE)
        if kind != "int":
            raise Unsupported(f"a {kind} argument has no native form")
        e.type_is(obj, int, "miss")
        n = e.call("i64", "PyLong_AsLongLongAndOverflow", ("ptr", obj), ("ptr", "%numbers"))
        e.require(e.let(f"icmp eq i32 {e.let('load i32, ptr %numbers')}, 0"), "miss")
        return n

    # ---- running

    def _run(self) -> None:
        e = self.e
        ctx = e.call("ptr", self.rt.acquire_address)
        got, failed = e.label("got"), e.label("nomemory")
        e.line(f"br i1 {e.let(f'icmp eq ptr {ctx}, null')}, label %{failed}, label %{got}")
        e.start(failed)
        e.store("ptr", e.call("ptr", "PyErr_NoMemory"), "%numbers")
        e.jump("done")
        e.start(got)
        e.store("ptr", constant(self.data_at + 8 * DRIVER_COUNTERS), ctx, 8 * abi.CTX_COUNTERS)
        function = self.driver if isinstance(self.driver, str) else constant(self.driver)
        e.add(self.data_at + 8 * CALLS, 1)
        code = e.let(f"call i32 {function}(ptr {ctx}, ptr %in, ptr %out)")
        for n, tree in enumerate(self.results):
            fine, other = e.label("fine"), e.label("other")
            e.line(f"br i1 {e.let(f'icmp eq i32 {code}, {abi.return_code(n)}')}, label %{fine}, label %{other}")
            e.start(fine)
            e.call("void", self.rt.release_address, ("ptr", ctx))
            e.store("ptr", boxing.emit(e, tree, READERS, self.rt), "%numbers")
            e.jump("done")
            e.start(other)
        e.add(self.data_at + 8 * EXITS, 1)
        exit_id = e.let(f"sext i32 {e.let(f'sub i32 {code}, 1')} to i64")
        result = self._resume(exit_id)
        e.call("void", self.rt.release_address, ("ptr", ctx))
        e.store("ptr", result, "%numbers")
        e.jump("done")

    def _resume(self, exit_id: str) -> str:
        """resume(exit_id, in, out), with Python integers."""
        e = self.e
        values = [exit_id, e.let("ptrtoint ptr %in to i64"), e.let("ptrtoint ptr %out to i64")]
        numbers = [e.call("ptr", "PyLong_FromLongLong", ("i64", v)) for v in values]
        for i, n in enumerate(numbers):
            e.store("ptr", n, "%numbers", 8 * i)
        ok = [e.let(f"icmp ne ptr {n}, null") for n in numbers]
        all_ok = e.let(f"and i1 {e.let(f'and i1 {ok[0]}, {ok[1]}')}, {ok[2]}")
        go, end, start = e.label("resume"), e.label("resumed"), e.label("ask")
        e.jump(start)
        e.start(start)
        e.line(f"br i1 {all_ok}, label %{go}, label %{end}")
        e.start(go)
        r = e.call("ptr", "PyObject_VectorcallDict", ("ptr", e.object(self.resume)), ("ptr", "%numbers"), ("i64", "3"), ("ptr", "null"))
        e.jump(end)
        e.start(end)
        result = e.let(f"phi ptr [ {r}, %{go} ], [ null, %{start} ]")
        for n in numbers:
            e.call("void", "Py_DecRef", ("ptr", n))
        return result


def _key(path: Path) -> Any:
    """Paths by what they read: live objects in a root by identity, keys with their type."""
    root = tuple(r if isinstance(r, (str, int)) else ("object", id(r)) for r in path.root)
    return root, tuple((kind, type(k), k) for kind, k in path.steps)


def _holds(g: Guard, known: Any) -> bool:
    """Whether a guard on this very object holds for good."""
    if g.how == "is":
        return known is g.value
    if g.how == "type":  # an instance's class can be assigned, a builtin's cannot
        return type(known) is g.value and not g.value.__flags__ & (1 << 9)
    if g.how == "equal":
        same_nan = isinstance(known, float) and math.isnan(known) and known is not g.value
        return type(known) is type(g.value) and repr(known) == repr(g.value) and not same_nan
    return g.how == "length" and type(known) is tuple and len(known) == g.value


def _plain_attribute(cls: type | None, name: str) -> bool:
    """Whether reading `name` of an exact `cls` is a plain lookup that runs no Python code."""
    if cls is None or cls.__getattribute__ is not object.__getattribute__:  # type: ignore[comparison-overlap]
        return False
    for base in cls.__mro__:
        if name in vars(base):
            held = type(vars(base)[name])
            return held in (types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType) or not hasattr(held, "__get__")
    return True
