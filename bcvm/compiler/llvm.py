"""IR text -> object code, through llvmlite, which is imported at the first compilation.

IR is emitted already vectorised, so no IR pass runs: the code generator alone (opt=1) gives the code of O3 in an eighth of
the time. LLVM options stay as they are: they are process-wide and other users of LLVM live in the same process.
"""
from __future__ import annotations

import threading
from typing import Any

from bcvm.compiler import elf
from bcvm.compiler.target import Target, host
from bcvm.errors import CompileError

_lock = threading.Lock()
_machines: dict[tuple[Target, int], Any] = {}
_triple = ""


def available() -> bool:
    """Whether llvmlite can be imported and generates code for this machine."""
    try:
        host()
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def _machine(target: Target, opt: int) -> Any:
    global _triple
    machine = _machines.get((target, opt))
    if machine is None:
        import llvmlite.binding as llvm
        if not _triple:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _triple = llvm.get_process_triple()
        if not _triple.startswith("x86_64"):
            raise CompileError(f"native code is made for x86-64 only, this is {_triple}")
        machine = llvm.Target.from_triple(_triple).create_target_machine(
            cpu=target.cpu, features=target.features, opt=opt, reloc="pic", codemodel="small")
        _machines[target, opt] = machine
    return machine


def _module(ir_text: str, machine: Any, verify: bool) -> Any:
    import llvmlite.binding as llvm
    try:
        module = llvm.parse_assembly(ir_text)
        module.triple = _triple
        module.data_layout = str(machine.target_data)
        if verify:
            module.verify()
    except RuntimeError as e:
        raise CompileError(f"invalid LLVM IR: {e}") from None
    return module


def compile_ir(ir_text: str, target: Target | None = None, opt: int = 1, verify: bool = True) -> bytes:
    """Compiles a module to an ELF object for `loader.load`.

    Globals of a module should be `private` or `internal` constants; functions that others look up are ordinary `define`s.
    opt: 0 or 1. verify: run LLVM's IR verifier first (invalid IR can crash the process otherwise).
    CompileError: invalid IR, or code that needs a symbol outside itself, which it names.
    """
    machine_target = target or host()
    with _lock:
        machine = _machine(machine_target, opt)
        with _module(ir_text, machine, verify) as module:
            data: bytes = machine.emit_object(module)
    missing = elf.read(data).external()
    if missing:
        raise CompileError(f"generated code refers to symbols outside itself: {', '.join(sorted(missing))}; reach them through the Context's table")
    return data


def assembly(ir_text: str, target: Target | None = None, opt: int = 1) -> str:
    """The assembly text of a module, for people and tests."""
    machine_target = target or host()
    with _lock:
        machine = _machine(machine_target, opt)
        with _module(ir_text, machine, True) as module:
            return str(machine.emit_assembly(module))
