"""The mode itself: what is replaced in MindSpore while it is enabled, and put back exactly.

Facts of MindSpore 2.10 that this stands on. `_Context.set_mode` takes an int that equals PYNATIVE_MODE and keeps the object, so the mode is read
with one look-up and every way to set a mode is followed. Every cell is called through nn.Cell.__call__; every @ms.jit function, those decorated earlier
too, through `_JitExecutor.__call__`. What is not as expected is left alone, with a warning; then cells are called through
their own `__call__` with `construct` replaced for the call, which holds for any version.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bcvm.frameworks import mindspore_routes as routes
from bcvm.frameworks import mindspore_settings as settings
from bcvm.startup import BYTECODE_VM

TESTED = ("2.10",)

say: Callable[[str], None] = print  # how warnings are given; bcvm.mindspore gives the log's


class Patches:
    """Attributes and items that were replaced, to be put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def attribute(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """owner.name = make(what it is); False if there is no such attribute of its own."""
        return self._replace(lambda: vars(owner)[name], lambda v: setattr(owner, name, v), lambda: name in vars(owner), make)

    def item(self, mapping: Any, key: str, make: Callable[[Any], Any]) -> bool:
        return self._replace(lambda: mapping[key], lambda v: mapping.__setitem__(key, v), lambda: key in mapping, make)

    def publish(self, owner: Any, name: str, value: Any) -> None:
        """A new attribute."""
        if not hasattr(owner, name):
            setattr(owner, name, value)
            self._undo.append(lambda: delattr(owner, name) if vars(owner).get(name) is value else None)

    def _replace(self, get: Callable[[], Any], put: Callable[[Any], None], there: Callable[[], bool], make: Callable[[Any], Any]) -> bool:
        if not there():
            return False
        original = get()
        made = functools.wraps(original)(make(original))
        put(made)

        def undo() -> None:
            if get() is made:  # what others have put around it meanwhile stays, and ours passes everything on
                put(original)
        self._undo.append(undo)
        return True

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


class Mode:
    """BYTECODE_VM in one process."""

    def __init__(self, mindspore: Any, bcvm: Any) -> None:
        from mindspore import context
        from mindspore.nn import Cell

        from bcvm.frameworks.mindspore import register
        from bcvm.vm import libraries
        libraries.refresh()
        adapter = register()
        self.module, self.patches, self.settings = mindspore, Patches(), settings.Settings()
        self.instead_of = ""
        version = str(mindspore.__version__)
        known = any(version == v or version.startswith(v + ".") for v in TESTED)
        missing = [] if known else [f"MindSpore {version} was not tested with this version of bcvm (tested: {', '.join(TESTED)})"]
        self.set_mode = mindspore.set_context
        self.context = vars(context._context()) if hasattr(context, "_context") else {}
        kept = self._keeps_identity()
        if not kept:
            missing.append("set_context does not keep the mode; it is followed through mindspore.set_context alone")
            self.context = {"_mode": mindspore.get_context("mode")}
        self.router = routes.Router(self.context, known and kept, adapter.requires_grad, self.settings.options, self.settings.dump)
        self.patches.attribute(Cell, "__call__", self.router.cell_call)
        missing += self._functions()
        missing += self._modes(context, kept)
        self._asides()
        self.patches.publish(mindspore, "bcvm", bcvm)
        self.patches.publish(mindspore, "BYTECODE_VM", BYTECODE_VM)
        if missing:
            say(f"{'; '.join(missing)}. Results are MindSpore's; some calls may not come to bcvm. A newer version of bcvm may know more")

    def _keeps_identity(self) -> bool:
        """Whether the context keeps the very object that set_context was given."""
        if "_mode" not in self.context:
            return False
        before = self.context["_mode"]
        try:
            self.module.set_context(mode=BYTECODE_VM)
        except (TypeError, ValueError):
            return False
        kept = self.context["_mode"] is BYTECODE_VM
        self.module.set_context(mode=before)
        return kept

    def _functions(self) -> Iterable[str]:
        """@ms.jit: functions come here whole; of those that are traced or captured by bytecode, the cells inside do."""
        api, trace, capture = (sys.modules.get(f"mindspore.graph.{name}") for name in ("api", "jit_trace", "_utils.pijit_context"))
        executor = getattr(api, "_JitExecutor", None)
        if executor is None or not self.patches.attribute(executor, "__call__", self.router.executor_call):
            yield "functions under @ms.jit stay with MindSpore"
        if api is not None:
            self.patches.attribute(api, "_check_option_value", self.settings.option_check)
        if trace is not None:
            self.patches.attribute(trace, "jit_context", lambda original: lambda: original() or self.router.on())
        whole = getattr(capture, "PIJitCaptureContext", None)
        if whole is not None:
            self.patches.attribute(whole, "__enter__", self._capture_begins)
            self.patches.attribute(whole, "__exit__", self._capture_ends)

    def _capture_begins(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(ctx: Any) -> Any:
            routes.here.captures.append(not self.router.on())
            return original(ctx) if routes.here.captures[-1] else None
        return __enter__

    def _capture_ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A bytecode capture that began in another mode also ends in it."""
        return lambda ctx, *exc: original(ctx, *exc) if not routes.here.captures or routes.here.captures.pop() else None

    def _modes(self, context: Any, kept: bool) -> Iterable[str]:
        setters = getattr(type(context._context()), "setters", None) if hasattr(context, "_context") else None
        if kept and isinstance(setters, dict) and self.patches.item(setters, "mode", self._set_mode):
            if not self.patches.item(setters, "jit_config", self.settings.context_setter):
                yield "jit_config takes none of bcvm's keys"
            return
        for owner in (self.module, context):
            self.patches.attribute(owner, "set_context", self._set_context)

    def _set_mode(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ctx, mode: original(ctx, self.meant(mode))

    def _set_context(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Where the context does not keep the mode: MindSpore hears of PYNATIVE_MODE."""
        def set_context(**kwargs: Any) -> Any:
            if "mode" not in kwargs:
                return original(**kwargs)
            mode = self.meant(kwargs["mode"])
            result = original(**{**kwargs, "mode": self.module.PYNATIVE_MODE if mode is BYTECODE_VM else mode})
            self.context["_mode"] = mode
            return result
        return set_context

    def meant(self, mode: Any) -> Any:
        """The mode that is set for a script that asks for `mode`."""
        if mode is BYTECODE_VM or not self.instead_of:
            return mode
        if mode == self.module.PYNATIVE_MODE or self.instead_of == "all" and mode == self.module.GRAPH_MODE:
            return BYTECODE_VM
        if mode == self.module.GRAPH_MODE:
            say("MS_ENABLE_BYTECODE_VM=1, but the script sets GRAPH_MODE: its calls are compiled by MindSpore. MS_ENABLE_BYTECODE_VM=all takes them too")
        return mode

    def _asides(self) -> None:
        """Blocks in which MindSpore must see every operation: automatic mixed precision, and the dispatch modes that programs define."""
        amp = getattr(sys.modules.get("mindspore.train.amp"), "AmpDecorator", None)
        dispatch = getattr(sys.modules.get("mindspore.utils.ms_dispatch"), "MsDispatchMode", None)
        for cls in (amp, dispatch):
            if cls is not None:
                self.patches.attribute(cls, "__enter__", _entering)
                self.patches.attribute(cls, "__exit__", _leaving)

    def switch_on(self, instead_of: str) -> None:
        self.instead_of = instead_of
        mode = self.context["_mode"]
        if mode != self.module.GRAPH_MODE or instead_of == "all":
            self.module.set_context(mode=BYTECODE_VM)

    def close(self) -> None:
        self.instead_of = ""
        if self.router.on():
            self.module.set_context(mode=self.module.PYNATIVE_MODE)
        self.patches.undo()
        self.context = self.router.context = {"_mode": self.module.PYNATIVE_MODE}  # whoever still holds our wrappers passes everything on
        routes.forget()


def _entering(original: Callable[..., Any]) -> Callable[..., Any]:
    def __enter__(self: Any) -> Any:
        result = original(self)
        routes.here.depth += 1
        return result
    return __enter__


def _leaving(original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, *exc: Any) -> Any:
        routes.here.depth -= 1
        return original(self, *exc)
    return __exit__


_mode: Mode | None = None


def enable(bcvm: Any, instead_of: str) -> None:
    """See bcvm.mindspore.enable. bcvm: the package, as it is published."""
    global _mode
    import mindspore
    if _mode is None:
        BYTECODE_VM.__class__.known = True
        try:
            _mode = Mode(mindspore, bcvm)
        except BaseException:
            BYTECODE_VM.__class__.known = False
            raise
    _mode.switch_on(instead_of)
    for line in diagnose():
        say(line)


def disable() -> None:
    global _mode
    if _mode is not None:
        _mode.close()
        _mode = None
        BYTECODE_VM.__class__.known = False


def functions() -> list[Any]:
    return routes.functions()


def counters() -> dict[str, float]:
    total: dict[str, float] = dict.fromkeys(("calls", "native", "left", "interpreted", "compiles", "recompiles"), 0)
    total.update(bcvm_kernel_select_time=0.0, bcvm_fusion_compile_time=0.0)
    for made in functions():
        stats = made.stats()
        for name in ("calls", "native", "left", "interpreted", "compiles", "recompiles"):
            total[name] += stats[name]
        for site in made._bcvm.sites():
            for s in site.specialisations:
                total["bcvm_kernel_select_time"] += s.ms.get("Shape", 0.0)
                total["bcvm_fusion_compile_time"] += sum(v for k, v in s.ms.items() if k != "Shape")
    return total


COMPILE_MS, SELECT_MS = 60_000, 20_000  # sums from which there is advice


def diagnose() -> list[str]:
    import mindspore
    said = settings.diagnose(mindspore, _mode is None or _mode.router.on())
    if _mode is not None:
        sums = counters()
        if sums["bcvm_fusion_compile_time"] > COMPILE_MS:
            said.append(f"bcvm_fusion_compile_time is {sums['bcvm_fusion_compile_time'] / 1e3:.0f} s: native code is made beside the calls; start with "
                        "`for f in bcvm.mindspore.functions(): f.warmup(...)` or keep the folder of BCVM_KERNEL_CACHE, where later processes find it")
        if sums["bcvm_kernel_select_time"] > SELECT_MS:
            said.append(f"bcvm_kernel_select_time is {sums['bcvm_kernel_select_time'] / 1e3:.0f} s in {sums['compiles']:.0f} compilations: functions are specialised again "
                        "and again; `f.explain()` shows what varies (str, None, dtypes, ranks, other cells)")
    return said
