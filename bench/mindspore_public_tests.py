"""MindSpore's own public tests with bcvm in place of ms.jit, against the same tests with jit switched off.

    git clone https://github.com/mindspore-ai/mindspore_test    (or any folder with its tests/)
    python bench/mindspore_public_tests.py FOLDER                the folders of PARTS
    python bench/mindspore_public_tests.py FOLDER tests/st/nn/test_dense.py --tier auto

Each file runs in a process of its own (`--together N`: N files share one), twice: with jit switched off, and with every ms.jit function and every cell under
GRAPH_MODE given to bcvm. Under PYNATIVE_MODE cells stay PyNative in both, because the tests compare with that. Calls wait for their native code (`--tier full`, the
default), so that a function called once is tested natively. What does not pass with jit off says nothing about bcvm and is only counted. Off means
MS_JIT=0, ms.jit that returns its function, and PyNative where GRAPH_MODE is asked for: the variable alone leaves calls without end in gradients. `--quick` runs
with jit off only what does not pass with bcvm. What is left of a file after `--file-limit` seconds is left out, and named at the end.

The second face of this file is the pytest plugin of those processes.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PARTS = ("pi_jit/control_flow", "compiler/control", "compiler/dynamic_shape", "dynamic_shape/test_dynamic_shape_with_control_flow.py", "dynamic_shape/test_set_inputs.py",
         "dynamic_shape/test_index.py", "dynamic_shape/test_reshape.py", "compiler/graph_syntax", "pynative/dynamic_shape", "nn")
HERE = Path(__file__).resolve()
RUN, LIMIT = "MINDSPORE_PUBLIC_TESTS", "MINDSPORE_PUBLIC_TESTS_LIMIT"  # of the plugin: `off` or `bcvm`, and the seconds of one test and of one file
TOO_LONG = "the file took too long"


# -- in the process of the tests

class Plugin:
    """Writes one JSON line when a test begins and one when it ends; stops a test that takes too long."""

    def __init__(self, run: str, out: str, limits: str) -> None:
        self.run, self.out, self.file, self.began = run, open(out, "a", encoding="utf-8"), "", 0.0
        self.limit, self.file_limit = map(int, limits.split())
        self.functions: list[Any] = []  # that bcvm made in this test, kept until it ends
        if run == "bcvm":
            self.count_calls()

    def count_calls(self) -> None:
        from bcvm.vm.function import Function
        begin, functions = Function.__init__, self.functions

        def begins(function: Any, *args: Any, **kwargs: Any) -> None:
            begin(function, *args, **kwargs)
            functions.append(function)
        Function.__init__ = begins  # type: ignore[method-assign]

    def say(self, **line: Any) -> None:
        print(json.dumps(line), file=self.out, flush=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import mindspore
        self.say(test=nodeid, outcome="began")
        if nodeid.split("::")[0] != self.file:  # as a process of its own would begin, with the mode that these tests take for granted
            self.file, self.began = nodeid.split("::")[0], time.monotonic()
            mindspore.set_context(mode=mindspore.GRAPH_MODE)
        signal.setitimer(signal.ITIMER_PROF, self.limit)

    def pytest_runtest_setup(self, item: Any) -> None:
        if time.monotonic() - self.began > self.file_limit:
            import pytest
            pytest.skip(TOO_LONG)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.say(test=report.nodeid, outcome="not collected", why=str(report.longrepr).strip()[-400:])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or str(report.longrepr or "")
            self.say(test=report.nodeid, outcome=report.outcome, why=text.strip()[:600])
        if report.when == "teardown":
            signal.setitimer(signal.ITIMER_PROF, 0)
            stats = [f.stats() for f in self.functions]
            self.say(test=report.nodeid, outcome="counted", native=sum(s["native"] for s in stats), left=sum(s["left"] for s in stats), calls=sum(s["calls"] for s in stats),
                     errors=sorted({e for s in stats for e in s["errors"]}), reasons=sorted({r for s in stats for r in (*s["fallbacks"], *s["exits"])}))
            self.functions.clear()


def _too_long(*_: object) -> None:
    raise TimeoutError("the test took too long")


def replace_jit(instead: Callable[[Any], Any]) -> None:
    """ms.jit, whatever its options, is `instead`, and so is the capture by bytecode that tests take without ms.jit."""
    import mindspore
    from mindspore.graph._utils.pijit_context import PIJitCaptureContext
    jit = mindspore.jit

    def capture(self: Any, function: Any) -> Any:
        if isinstance(function, type):
            setattr(function, "construct", instead(getattr(function, "construct")))  # noqa: B009, B010  a class of any kind
            return function
        return instead(function)
    PIJitCaptureContext.__call__ = capture
    PIJitCaptureContext.__enter__ = lambda self: None
    PIJitCaptureContext.__exit__ = lambda self, *exc: None

    def without_options(function: Any = None, **options: Any) -> Any:
        return instead if function is None else instead(function)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("mindspore") and vars(module).get("jit") is jit:
            module.jit = without_options  # type: ignore[attr-defined]


def switch_jit_off() -> None:
    import mindspore
    from mindspore import context
    replace_jit(lambda function: function)
    setters = type(context._context()).setters
    set_mode = setters["mode"]
    setters["mode"] = lambda ctx, mode: set_mode(ctx, mindspore.PYNATIVE_MODE if mode == mindspore.GRAPH_MODE else mode)


def bcvm_in_place_of_jit() -> None:
    """Every function under ms.jit, however MindSpore would capture it, and every cell under GRAPH_MODE go to bcvm, from the first call.

    Users have no switch for that: bcvm leaves GRAPH_MODE to MindSpore, and looks at a cell a few times first. So methods are replaced, in this process alone."""
    import mindspore

    import bcvm
    from bcvm.frameworks import mindspore_mode, mindspore_routes
    replace_jit(mindspore.jit)
    begin = mindspore_routes.Held.__init__

    def seen_often(self: Any, owner: Any) -> None:
        begin(self, owner)
        self.seen = mindspore_routes.OFTEN
    mindspore_routes.Held.__init__ = seen_often  # type: ignore[method-assign]
    mindspore_routes.Router.on = lambda self: True  # type: ignore[method-assign]
    mindspore_mode.Mode.meant = lambda self, mode: bcvm.mindspore.BYTECODE_VM if mode == mindspore.GRAPH_MODE else mode  # type: ignore[method-assign]
    bcvm.mindspore.enable()


def pytest_configure(config: Any) -> None:
    run = os.environ.get(RUN)
    if run:
        signal.signal(signal.SIGPROF, _too_long)
        config.pluginmanager.register(Plugin(run, os.environ[RUN + "_OUT"], os.environ[LIMIT]))
        if run == "bcvm":
            bcvm_in_place_of_jit()
        else:
            switch_jit_off()


# -- in the process of the comparison

def run_files(root: Path, files: list[str], run: str, args: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Outcome and reason by test. After a crash the tests behind it run in a new process."""
    results: dict[str, tuple[str, str]] = {}
    while True:
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
            env = {k: v for k, v in os.environ.items() if not k.startswith(("BCVM_", "MS_"))}
            env.update({RUN: run, RUN + "_OUT": out.name, LIMIT: f"{args.limit} {args.file_limit}", "PYTHONPATH": os.pathsep.join([str(root), str(HERE.parent), str(HERE.parents[1])])})
            env.update({"MS_JIT": "0"} if run == "off" else {"BCVM_TIER": args.tier, "BCVM_BACKGROUND": str(int(args.tier == "auto")), "BCVM_COMPILE_TIMEOUT_MS": "60000", "BCVM_EXITS": args.exits})
            command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--noconftest", "-p", HERE.stem, "-p", "no:cacheprovider", "-W", "ignore", "--continue-on-collection-errors", *files]
            for test in results:
                command += ["--deselect", test]
            try:
                done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 + len(files) * (args.file_limit + 60), check=False)
                status, said = done.returncode, done.stdout
            except subprocess.TimeoutExpired as stuck:
                status, said = -signal.SIGKILL, stuck.stdout or b""
            began = ""
            for line in map(json.loads, out):
                if line["outcome"] == "began":
                    began = line["test"]
                elif line["outcome"] == "counted":
                    args.counted[line["test"]] = line
                else:
                    results[line["test"]] = line["outcome"], line["why"]
                    began = began if line["test"] != began else ""
        if began and status not in (0, 1, 2, 3, 4, 5):
            results[began] = "crashed", f"exit status {status}"
        elif status in (0, 1, 5):
            return results
        else:
            tail = said.decode(errors="replace").strip().splitlines()[-8:]
            for file in files:
                results.setdefault(file, ("not collected", " / ".join(tail)[:400]))
            return results


def files_of(root: Path, parts: list[str]) -> Iterator[str]:
    for part in parts:
        path = root / part if (root / part).exists() else root / "tests" / "st" / part
        if not path.exists():
            sys.exit(f"{path} does not exist: the first argument is the folder that holds tests/st of mindspore_test")
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            yield str(file.relative_to(root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of mindspore_test")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help="files or folders, from tests/st")
    parser.add_argument("--tier", default="full", choices=("auto", "interpret", "splice", "full"))
    parser.add_argument("--exits", default="none", choices=("none", "random", "all"), help="native code leaves in mid call, and the interpreter goes on: a test of bcvm")
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time for one test")
    parser.add_argument("--file-limit", type=int, default=180, help="seconds for one file; what is left then is skipped")
    parser.add_argument("--together", type=int, default=1, help="files in one process")
    parser.add_argument("--reasons", action="store_true", help="print why calls were interpreted, and why tests fail both ways")
    parser.add_argument("--quick", action="store_true", help="with jit off only what does not pass with bcvm; the rest counts as passing")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--off", type=Path, help="a JSON file that keeps the outcomes with jit off, so that they need not run again")
    args = parser.parse_args()
    args.counted = {}
    root = args.folder.resolve()
    files = list(files_of(root, args.parts))
    off = json.loads(args.off.read_text()) if args.off and args.off.exists() else {}
    batches = [files[i:i + args.together] for i in range(0, len(files), args.together)]

    def both(batch: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        without: dict[str, Any] = {test: found for test, found in off.items() if test.split("::")[0] in batch}
        if args.quick:
            ours = run_files(root, batch, "bcvm", args)
            without = {test: ("passed", "not run") for test, found in ours.items() if found[0] == "passed"}
            failing = [test for test in ours if test not in without]
            return without | (run_files(root, failing, "off", args) if failing else {}), ours
        new = [file for file in batch if not any(test.split("::")[0] == file for test in off)]
        if new:
            without |= run_files(root, new, "off", args)
        return without, run_files(root, batch, "bcvm", args) if any(o[0] == "passed" for o in without.values()) else {}

    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    faults: list[str] = []
    both_ways: list[str] = []
    too_long: Counter[str] = Counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        for without, ours in pool.map(both, batches):
            off.update(without)
            late = {test for found in (without, ours) for test, (_, why) in found.items() if TOO_LONG in why}
            too_long += Counter(test.split("::")[0] for test in late)
            if args.off and not args.quick:
                args.off.write_text(json.dumps(off))
            for test, (outcome, off_why) in without.items():
                if test in late:
                    continue
                row = table[test.split("::")[0]]
                row[0] += outcome == "passed"
                row[2] += outcome != "passed"
                found, why = ours.get(test, ("not run", ""))
                row[1] += outcome == "passed" and found == "passed"
                if outcome != "passed" and test in ours:
                    both_ways.append(f"{test}\n    bcvm: {found} {why[:200]!r}\n    off:  {outcome} {off_why[:200]!r}")
                if outcome == "passed" and found != "passed":
                    faults.append(f"{found}  {test}\n    {why}")
                    print(faults[-1], file=sys.stderr, flush=True)
    print("passing with jit off | of these with bcvm | left out (do not pass with jit off) | file")
    for file, row in table.items():
        print("{:5} {:5} {:5}  {}".format(*row, file))
    print("{:5} {:5} {:5}  all".format(*(sum(row[i] for row in table.values()) for i in range(3))))
    counted = {test: line for test, line in args.counted.items() if line["calls"]}
    whole = sum(line["native"] == line["calls"] for line in counted.values())
    print(f"\n{len(counted)} tests call bcvm: in {whole} every call ran native from start to end, in {sum(not x['native'] and not x['left'] for x in counted.values())} none began native")
    if args.reasons:
        reasons = Counter(r for line in counted.values() if line["native"] < line["calls"] for r in line["reasons"])
        print(*["", "Reasons why calls were interpreted, and tests where they were:", *(f"{n:5}  {r}" for r, n in reasons.most_common())], sep="\n")
    errors = [f"{test}: {error}" for test, line in args.counted.items() for error in line["errors"]]
    print(*["", "Errors inside bcvm, after which calls were interpreted:", *errors] if errors else [], sep="\n")
    print(*["", "Fail both ways:", *both_ways] if args.reasons else [], sep="\n")
    print(*["", "Files that took too long, and tests left out of them:", *(f"{n:5}  {file}" for file, n in too_long.items())] if too_long else [], sep="\n")
    print(*["", "Pass with jit off and not with bcvm:", *faults] if faults else ["", "No test passes with jit off and fails with bcvm."], sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
