"""A trace of calls, compilations and fallbacks in Chrome's trace format, for chrome://tracing and ui.perfetto.dev.

    with bcvm.trace("run.json"):
        ...

Without a trace nothing is changed in any call. During one, the calls of each function come through Python (about 2 us each): the callable that users
hold passes them to one of our own, which has the native entry from then on.
"""
from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bcvm.tools.report import where
from bcvm.vm import entry, listener
from bcvm.vm.compile_thread import thread
from bcvm.vm.explain import region_line
from bcvm.vm.function import function_type, live_functions

LIMIT = 1_000_000  # events; a file of some 200 MB
PROFILES = "*_ascend_ms/ASCEND_PROFILER_OUTPUT"  # what ms.profiler makes in its folder
NAME = "bcvm_trace.json"


def place(path: str | os.PathLike[str]) -> Path:
    """The file that a trace is written to: the path itself or, where that is a folder, a file in it, beside the newest trace_view.json of
    ms.profiler if there is one."""
    given = Path(path)
    if not given.is_dir():
        return given
    folders = [given] if (given / "trace_view.json").exists() else sorted(given.glob(PROFILES), key=os.path.getmtime)
    return (folders[-1] if folders else given) / NAME


class trace:
    """The context manager; also start() and stop(). One at a time: RuntimeError for a second one. The file is written at the end, also after an
    exception; OSError if it cannot be."""

    _running: "trace | None" = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)  # TypeError for what is none
        self.file: Path | None = None  # what was written
        self.dropped = 0
        self._events: list[dict[str, Any]] = []
        self._through: list[tuple[Any, Any, Any]] = []  # callables that users hold, what has their native entry, their own slow callable
        self._epoch = time.time_ns() - time.perf_counter_ns()  # times are those of ms.profiler: us since 1970

    def __enter__(self) -> trace:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        if trace._running is not None:
            raise RuntimeError("a trace is running already; stop it before the next one begins")
        trace._running = self
        listener.add(self._hear)
        self._between_compilations(self._take_all)

    def stop(self) -> None:
        """Write the file. Without effect on a trace that does not run."""
        if trace._running is not self:
            return
        listener.remove(self._hear)
        self._between_compilations(self._give_back)
        trace._running = None
        self.file = place(self.path)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.content()), encoding="utf-8")

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        names = {t.ident: t.name for t in threading.enumerate()}
        pid = os.getpid()
        about = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "bcvm"}}]
        about += [{"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": names[tid]}} for tid in {e["tid"] for e in self._events} if tid in names]
        return {"traceEvents": about + self._events, "displayTimeUnit": "ms", "otherData": {"dropped": self.dropped}}

    # -- calls
    @staticmethod
    def _between_compilations(job: Callable[[], Any]) -> None:
        """Entries are replaced where they are published."""
        if thread.is_current() or not thread.call(job):
            job()

    def _take(self, target: Any) -> None:
        """From now on calls of `target` come to us, and native code is published in a callable of our own."""
        function = target._bcvm
        if function.site.target is not target:
            return
        inner, slow = function_type()(), target._slow
        entry.initialise(inner, slow)
        vars(inner).update(vars(target))
        self._through.append((target, inner, slow))
        entry.set_entry(inner, entry.get_entry(target))
        function.site.target = inner
        target._slow = self._timed(function, inner)
        entry.set_entry(target, 0)

    def _take_all(self) -> None:
        for target in live_functions():
            self._take(target)

    def _give_back(self) -> None:
        for target, inner, slow in self._through:
            target._bcvm.site.target = target
            target._slow = slow
            entry.set_entry(target, entry.get_entry(inner))
        self._through.clear()

    def _timed(self, function: Any, inner: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            interpreted, left = function.interpreted, sum(function.exits.values())
            start = time.perf_counter_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                how = "interpreted" if function.interpreted > interpreted else "left native code" if sum(function.exits.values()) > left else "native"
                self._span(function.bound.program.name, "call", start, time.perf_counter_ns(), how=how)
        return call

    # -- events
    def _add(self, ph: str, name: str, category: str, at: int, more: dict[str, Any], args: dict[str, Any]) -> None:
        if len(self._events) >= LIMIT:
            self.dropped += 1
            return
        self._events.append({"ph": ph, "name": name, "cat": category, "ts": (self._epoch + at) / 1e3, "pid": os.getpid(), "tid": threading.get_ident(), **more, "args": args})

    def _span(self, name: str, category: str, start: int, end: int, **args: Any) -> None:
        self._add("X", name, category, start, {"dur": (end - start) / 1e3}, args)

    def _hear(self, event: str, fields: dict[str, Any]) -> None:
        function, now = fields["function"], time.perf_counter_ns()
        program = function.bound.program
        if event in ("specialise", "compile", "interpret"):
            rest = {k: v for k, v in fields.items() if k == "bytes"}
            self._span(f"{event} {program.name}", "interpreter" if event == "interpret" else "compile", now - round(fields["ms"] * 1e6), now, function=where(program), **rest)
            if event == "specialise":
                for target in live_functions():  # one that was made meanwhile
                    if target._bcvm is function:
                        self._take(target)
        elif event == "compiled":
            made = fields["specialisation"]
            self._instant(f"code of {program.name}", "compile", now, ms=made.ms, kernels=[region_line(r) for r in made.code.compiled.regions])
        elif event in ("exit", "fallback", "failed"):
            reason = str(fields.get("reason", fields.get("error", "")))
            self._instant(f"{event}: {reason}", "fallback", now, function=where(program), **({"instruction": fields["where"]} if "where" in fields else {}))
        elif event == "evict":
            self._instant(f"evict {program.name}", "compile", now, function=where(program))

    def _instant(self, name: str, category: str, at: int, **args: Any) -> None:
        self._add("i", name, category, at, {"s": "t"}, args)
