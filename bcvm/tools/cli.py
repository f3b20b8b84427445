"""The command line, `python -m bcvm` or `bcvm`: run, dis, asm, verify, explain.

Exit codes: 0 done; 1 the input was refused or the script raised; 2 wrong usage. `run` ends with the script's own code.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bcvm.bytecode.assembler import assemble
from bcvm.bytecode.binary import decode
from bcvm.bytecode.program import Program
from bcvm.config import LOG_LEVELS, TIERS
from bcvm.errors import BcvmError
from bcvm.tools import report

TARGET = "a file.bc, module:function or script.py:function; a method is Class.method"


class Refused(Exception):
    """A message for the user, without a traceback; exit code 1."""


# -- finding what the user names

def _execute(path: Path, name: str) -> types.ModuleType:
    """Run a script's text in a new module called `name`, with its folder first on the import path, as Python does."""
    try:
        source = path.read_bytes()
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from None
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules[name] = module  # also what keeps its functions alive for the report
    sys.path.insert(0, str(path.resolve().parent))
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _find(target: str) -> tuple[types.ModuleType, Any]:
    """The module and the object that `module:function` or `script.py:function` names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise Refused(f"{target!r} names no function: expected module:function or script.py:function")
    try:
        if place.endswith(".py"):
            module = _execute(Path(place), Path(place).stem)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
    except Refused:
        raise
    except SystemExit as e:
        raise Refused(f"{place} ended itself (SystemExit {e.code}) before {name} could be read; guard it by `if __name__ == '__main__':`") from None
    except Exception as e:
        raise Refused(f"importing {place} failed:\n{_traceback(e)}") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise Refused(f"{place} has no {name!r}; it defines: {', '.join(_callables(module)) or 'no function'}")
        found = getattr(found, part)
    return module, found


def _callables(module: types.ModuleType) -> list[str]:
    own = {k: v for k, v in vars(module).items() if callable(v) and not k.startswith("_")}
    return sorted(k for k, v in own.items() if hasattr(v, "program") or getattr(v, "__module__", None) == module.__name__)


def _jitted(found: Any, target: str) -> Any:
    import bcvm
    if hasattr(found, "program") and hasattr(found, "explain"):
        return found
    if not callable(found):
        raise Refused(f"{target} is an object of type {type(found).__name__}, not a function")
    try:
        return bcvm.jit(found)
    except TypeError as e:
        raise Refused(f"{target}: {e}") from None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from None


def _decoded(path: str) -> Program:
    """The verified program in a .bc file."""
    try:
        return decode(_read(path))
    except BcvmError as e:
        raise Refused(f"{path}: {e}") from None


def _program(target: str) -> Program:
    if target.endswith(".bc"):
        return _decoded(target)
    _, found = _find(target)
    program: Program = _jitted(found, target).program
    return program


def _traceback(error: BaseException) -> str:
    """As Python prints it, from the user's first line on: our own frames above it say nothing."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename in (__file__, importlib.__file__):
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(error), error, tb)).rstrip()


# -- commands

def run(args: argparse.Namespace) -> int:
    """Run a script as Python would, then report on every jitted function that is still alive. If the script imports MindSpore, BYTECODE_VM is its
    mode until it sets another one."""
    from bcvm import startup
    from bcvm.vm.function import live_functions
    for variable, value in (("BCVM_LOG_LEVEL", args.log), ("BCVM_TIER", args.tier)):
        if value is not None:
            os.environ[variable] = value
    script = Path(args.script)
    if not script.is_file():
        raise Refused(f"{script}: " + ("is a folder" if script.is_dir() else "no such file"))
    sys.argv = [args.script, *args.args]
    startup.wait(startup.wanted() or "" if os.environ.get(startup.VARIABLE, "1") not in startup.OFF else None)
    code = 0
    if args.trace is not None:
        import bcvm
        tracing = bcvm.trace(args.trace)
        tracing.start()
    try:
        _execute(script, "__main__")
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if e.code is not None and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except Exception as e:
        print(_traceback(e), file=sys.stderr)
        code = 1
    if args.trace is not None:
        try:
            tracing.stop()
            print(f"trace: {tracing.file}", file=sys.stderr)
        except OSError as e:
            print(f"bcvm: {args.trace}: {e.strerror}: there is no trace", file=sys.stderr)
            code = code or 1
    functions = live_functions()
    if args.dump:
        for f in functions:
            print(f"\n{f.program}")
    if not args.quiet:
        print(f"\n{report.summary(functions)}")
    return code


def dis(args: argparse.Namespace) -> int:
    """Print a program's disassembly."""
    print(_program(args.target))
    return 0


def asm(args: argparse.Namespace) -> int:
    """Assemble text, verify it, write the binary form."""
    try:
        program = assemble(_read(args.file).decode("utf-8"))
    except UnicodeDecodeError as e:
        raise Refused(f"{args.file}: not UTF-8 text, at byte {e.start}") from None
    except BcvmError as e:
        raise Refused(f"{args.file}: {e}") from None
    output = args.output or str(Path(args.file).with_suffix(".bc"))
    if os.path.exists(output) and os.path.samefile(output, args.file):
        raise Refused(f"{args.file}: would be overwritten; name another file with -o")
    try:
        program.save(output)
    except OSError as e:
        raise Refused(f"{output}: {e.strerror}") from None
    print(f"{output}: {program.name}, {len(program.code)} instructions, {os.path.getsize(output)} bytes")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Check that files hold programs that cannot crash the process; every bad file is named, not only the first."""
    bad = 0
    for path in args.files:
        try:
            program = _decoded(path)
        except Refused as e:
            print(e, file=sys.stderr)
            bad += 1
        else:
            print(f"{path}: verified, {program.name}, {len(program.code)} instructions")
    return 1 if bad else 0


def explain(args: argparse.Namespace) -> int:
    """Print guards, regions with decisions and reasons, and calls back into Python."""
    module, found = _find(args.target)
    function = _jitted(found, args.target)
    call: tuple[Any, ...] = ()
    if args.args is not None:
        import numpy as np
        try:
            call = eval(f"({args.args},)" if args.args.strip() else "()", {"np": np, "numpy": np, **vars(module)})
        except Exception as e:
            raise Refused(f"--args {args.args!r}: {type(e).__name__}: {e}; expected Python expressions, as in --args 'np.ones((2, 3)), True'") from None
    try:
        print(function.explain(*call))
    except Exception as e:
        raise Refused(f"{args.target} with these arguments: {type(e).__name__}: {e}") from None
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bcvm", description="Run, read and check bytecode programs of tensor functions.")
    commands = p.add_subparsers(metavar="command", required=True)

    def command(fn: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(fn.__name__, help=text, description=fn.__doc__)
        sub.set_defaults(command=fn)
        return sub

    sub = command(run, "run a script, report at the end what ran native")
    sub.add_argument("--dump", action="store_true", help="print the disassembly of every jitted function")
    sub.add_argument("--log", choices=LOG_LEVELS, help="level of the [BCVM] lines (as BCVM_LOG_LEVEL)")
    sub.add_argument("--tier", choices=TIERS, help="how calls run (as BCVM_TIER)")
    sub.add_argument("--trace", metavar="file", help="write a trace for chrome://tracing or ui.perfetto.dev; a folder of ms.profiler: beside its own")
    sub.add_argument("--quiet", action="store_true", help="no report")
    sub.add_argument("script", help="a Python file; options of bcvm come before it")
    sub.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")

    sub = command(dis, "disassemble")
    sub.add_argument("target", help=TARGET)

    sub = command(asm, "assemble text into a .bc file")
    sub.add_argument("file", help="assembly text, as `dis` prints it")
    sub.add_argument("-o", "--output", help="the file to write; default: the same name with .bc")

    sub = command(verify, "check .bc files")
    sub.add_argument("files", nargs="+", metavar="file")

    sub = command(explain, "say how a function runs, and why")
    sub.add_argument("target", help="module:function or script.py:function")
    sub.add_argument("--args", help="the call's arguments as Python expressions, e.g. 'np.ones((2, 3)), True'")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command line; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except Refused as e:
        print(f"bcvm: {e}", file=sys.stderr)
        return 1
    except BcvmError as e:
        print(f"bcvm: {type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `bcvm dis ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
