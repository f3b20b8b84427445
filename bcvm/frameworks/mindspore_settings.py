"""What MindSpore's own settings may say to bcvm, and which of them disturb it.

Keys of `ms.jit(...)`, `ms.JitConfig(...)` and `ms.set_context(jit_config={...})`, all of them True or False:
dump_bytecode      print the program of what is called, when it is first called
enable_fusion      regions of ops may become one kernel (option `fusion` of bcvm.jit)
enable_source_map  source positions in the dump (default True; tracebacks have them always)
"""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from bcvm.bytecode.program import Program

KEYS = ("dump_bytecode", "enable_fusion", "enable_source_map")


def checked(where: str, key: str, value: Any) -> bool:
    """MindSpore's own way to refuse a value."""
    if type(value) is not bool:
        raise TypeError(f"For '{where}', the value of '{key}' must be True or False, but got {value!r}.")
    return value


class Settings:
    """The keys in force: those of ms.set_context below those of the function or cell."""

    def __init__(self) -> None:
        self.context: dict[str, bool] = {}

    def told(self, own: Mapping[str, Any]) -> dict[str, bool]:
        return {**self.context, **{k: v for k, v in own.items() if k in KEYS and type(v) is bool}}

    def options(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Options of bcvm.jit."""
        told = self.told(own)
        return {"fusion": told["enable_fusion"]} if "enable_fusion" in told else {}

    def dump(self, made: Any, own: Mapping[str, Any]) -> None:
        told = self.told(own)
        if told.get("dump_bytecode"):
            program: Program = made._bcvm.bound.program
            if not told.get("enable_source_map", True):
                program = dataclasses.replace(program, positions=())
            print(program, flush=True)

    # -- the replacements that let the keys through
    def option_check(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For ms.jit's check of one option."""
        def _check_option_value(option: str, value: Any) -> Any:
            if option in KEYS:
                return checked("jit(options)", option, value)
            return original(option, value)
        return _check_option_value

    def context_setter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For ms.set_context(jit_config=...). Keys of a later call replace all of an earlier one, as MindSpore's own do."""
        def set_jit_config(ctx: Any, jit_config: Any) -> Any:
            if isinstance(jit_config, dict):
                ours = {k: checked("set_context(jit_config)", k, v) for k, v in jit_config.items() if k in KEYS}
                result = original(ctx, {k: v for k, v in jit_config.items() if k not in KEYS})
                self.context = ours
                return result
            return original(ctx, jit_config)
        return set_jit_config


def diagnose(mindspore: Any, on: bool) -> list[str]:
    """What in this process keeps calls from running native: (what is set, what it does, what to do)."""
    import numpy as np
    get, said = mindspore.get_context, []
    target = get("device_target")
    if target != "CPU":
        said.append(f"device_target is {target!r}: bcvm makes code for 'CPU'; tensors of other devices run as PyNative. ms.set_device('CPU') to use it")
    if not on:
        said.append(f"the mode is {'GRAPH_MODE' if get('mode') == 0 else 'PYNATIVE_MODE'}: calls do not come to bcvm. ms.set_context(mode=ms.BYTECODE_VM) to use it")
    if os.environ.get("MS_JIT") == "0":
        said.append("MS_JIT=0: functions under @ms.jit run as plain Python; cells in them come to bcvm. Unset it to have whole functions compiled")
    if get("save_graphs"):
        said.append(f"save_graphs={get('save_graphs')}: no graphs are made in this mode, so none are saved; jit_config={{'dump_bytecode': True}} prints the programs")
    if get("jit_syntax_level") == 0 and os.environ.get("MS_DEV_JIT_SYNTAX_LEVEL") == "0":
        said.append("MS_DEV_JIT_SYNTAX_LEVEL=0: holds for graph compilation only; bcvm takes all of Python")
    for variable, what in (("MS_DEV_PRECOMPILE_ONLY", "compiles without running"), ("MINDSPORE_DUMP_CONFIG", "dumps operators, which native code hides"),
                           ("MS_DEV_RUNTIME_CONF", "configures MindSpore's executor, which native code does not use")):
        if os.environ.get(variable):
            said.append(f"{variable} is set: it {what}")
    if int(np.__version__.partition(".")[0]) >= 2 and mindspore.__version__.startswith(("2.7", "2.8", "2.9", "2.10")):
        said.append(f"NumPy {np.__version__}: MindSpore {mindspore.__version__} needs NumPy below 2 (its asnumpy fails). pip install 'numpy<2'")
    from bcvm.vm.warm import warm
    if warm():
        said.append(f"no native code in this process: {warm()}")
    return said
