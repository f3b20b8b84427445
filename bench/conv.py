"""Convolutions: the kernel alone against onnxruntime and torch, on the same shapes.

    python bench/conv.py [--engine bcvm|ort|torch] [--threads N ...] [--only WORD] [--json]      one engine, in this process
    python bench/conv.py --compare [--threads N ...] [--only WORD]                               all engines, one process after the other

GF/s and, with bcvm, the share of the machine's FMA peak, which is measured first. bcvm: the kernel is called through ctypes, with several threads
through the pool. --compare finds the peers' interpreters in PY_PEERS (onnxruntime) and PY_TORCH, and this one in PY_BCVM.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 15


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    bias: bool = False

    @property
    def out(self) -> tuple[int, int]:
        return tuple((n + 2 * self.pad - self.kernel) // self.stride + 1 for n in (self.height, self.width))  # type: ignore[return-value]

    @property
    def flops(self) -> int:
        oh, ow = self.out
        return 2 * self.batch * self.outputs * oh * ow * self.channels // self.groups * self.kernel ** 2

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.batch, self.channels, self.height, self.width)).astype(np.float32)
        w = rng.standard_normal((self.outputs, self.channels // self.groups, self.kernel, self.kernel)).astype(np.float32)
        return x, w, rng.standard_normal(self.outputs).astype(np.float32) if self.bias else None


def cases() -> list[Case]:
    rng = np.random.default_rng(1)
    sizes = [(24, 24), (128, 128), *((int(a), int(b)) for a, b in rng.integers(24, 129, (3, 2)))]
    found = [Case(f"suite {c}->{o} {h}x{w}", 1, c, h, w, o, 3, pad=1, bias=True) for c, o in ((3, 32), (32, 32), (32, 16)) for h, w in sizes]
    for n in (1, 8):
        found += [Case(f"n{n} 3x3 {c}->{c} {s}", n, c, s, s, c, 3, pad=1) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))]
        found += [Case(f"n{n} 1x1 {c}->{o} {s}", n, c, s, s, o, 1) for c, o, s in ((64, 256, 56), (256, 64, 56), (1024, 256, 14))]
        found += [Case(f"n{n} 1x1s2 256->512 56", n, 256, 56, 56, 512, 1, 2), Case(f"n{n} 7x7s2 3->64 224", n, 3, 224, 224, 64, 7, 2, 3),
                  Case(f"n{n} 3x3s2 128->128 56", n, 128, 56, 56, 128, 3, 2, 1), Case(f"n{n} 3x3s2 3->32 224", n, 3, 224, 224, 32, 3, 2, 1)]
        found += [Case(f"n{n} dw s{s} {c} {size}", n, c, size, size, c, 3, s, 1, c) for c, size, s in
                  ((32, 112, 1), (96, 112, 2), (144, 56, 1), (192, 28, 1), (512, 14, 1), (512, 14, 2), (512, 7, 1))]
    return found


def ours(case: Case, threads: int) -> Callable[[], None]:
    sys.path.insert(0, str(ROOT))
    import ctypes

    from bcvm.compiler import abi
    from bcvm.compiler.kernels.library import Size, Stride, library_call
    from bcvm.compiler.runtime import runtime
    from bcvm.compiler.table import table
    from bcvm.compiler.target import host

    x, w, bias = case.arrays()
    out = np.empty((case.batch, case.outputs, *case.out), np.float32)
    operands = [x, w, *([] if bias is None else [bias]), out]
    attrs = {"stride": (case.stride,) * 2, "padding": (case.pad,) * 4, "dilation": (1, 1), "groups": case.groups}
    call = library_call("conv2d", ("float32",) * len(operands), tuple(a.ndim for a in operands), attrs, host())

    def value(entry: Any) -> int:
        if isinstance(entry, Size):
            return int(operands[entry.operand].shape[entry.dim])
        return int(operands[entry.operand].strides[entry.dim]) if isinstance(entry, Stride) else entry or 0

    start = time.perf_counter()
    slot = table.slot_for(call.kernel.key, lambda: call.kernel)
    table.acquire([call.kernel.key])
    compiled.setdefault(call.kernel.name, (time.perf_counter() - start) * 1e3)
    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 2)(runtime().slots.get(slot))
    words = [n for a, strides in zip(operands, call.strides) for n in (a.ctypes.data, *(value(s) for s in strides))]
    words_array, sizes = (ctypes.c_int64 * len(words))(*words), (ctypes.c_int64 * len(call.sizes))(*(value(s) for s in call.sizes))
    units = 1
    for size, block in call.units:
        units *= -(-value(size) // block)
    context = runtime().acquire()
    if threads > 1:
        slots = (ctypes.c_int64 * abi.CTX_WORDS).from_address(context)
        slots[abi.CTX_LONG], slots[abi.CTX_PLAN] = runtime().slots.get(slot), threads << 32
        shared = ctypes.PYFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 2)(runtime().address("run_long"))

    def run() -> None:
        code = shared(context, words_array, sizes, units, case.flops // 100) if threads > 1 else kernel(context, words_array, sizes, 0, -1)
        if code:
            raise MemoryError(f"no memory for {len(operands)} operands")  # and keeps them alive
    return run


compiled: dict[str, float] = {}


def torchs(case: Case, threads: int) -> Callable[[], None]:
    import torch
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    x, w, bias = (None if a is None else torch.from_numpy(a) for a in case.arrays())
    return lambda: torch.nn.functional.conv2d(x, w, bias, case.stride, case.pad, 1, case.groups)


def orts(case: Case, threads: int) -> Callable[[], None]:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper
    x, w, bias = case.arrays()
    inits = [numpy_helper.from_array(w, "w"), *([] if bias is None else [numpy_helper.from_array(bias, "b")])]
    node = helper.make_node("Conv", ["x", *(i.name for i in inits)], ["y"], pads=[case.pad] * 4, strides=[case.stride] * 2, group=case.groups)
    infos = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}{i}" for i in range(4)])] for n in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", *infos, inits), opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.empty((case.batch, case.outputs, *case.out), np.float32)))
    return lambda: session.run_with_iobinding(binding)


ENGINES = {"bcvm": ours, "ort": orts, "torch": torchs}


def seconds(run: Callable[[], None]) -> float:
    """The shortest of several stretches of at least 3 ms: what the machine's other work does not touch."""
    run()
    start = time.perf_counter()
    run()
    count = max(int(3e-3 / (time.perf_counter() - start)), 1)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
    return min(times)


def measure(engine: str, threads: Sequence[int], only: str) -> dict[str, list[float]]:
    return {c.name: [c.flops / seconds(ENGINES[engine](c, n)) / 1e9 for n in threads] for c in cases() if only in c.name}


def peak() -> float:
    """GF/s of a loop of nothing but multiply-adds on one thread."""
    sys.path.insert(0, str(ROOT))
    import ctypes

    from bcvm.compiler import llvm, loader
    from bcvm.compiler.target import host
    lanes, sums, rounds = host().vector_bytes // 4, 12, 2_000_000
    v = f"<{lanes} x float>"
    lines = [f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})", f"define float @peak({v} %a, {v} %b) {{", "entry:", "  br label %go", "go:",
             "  %i = phi i64 [ 0, %entry ], [ %i1, %go ]"]
    lines += [f"  %s{k} = phi {v} [ zeroinitializer, %entry ], [ %t{k}, %go ]" for k in range(sums)]
    lines += [f"  %t{k} = call {v} @llvm.fma.v{lanes}f32({v} %a, {v} %b, {v} %s{k})" for k in range(sums)]
    lines += ["  %i1 = add i64 %i, 1", f"  %c = icmp slt i64 %i1, {rounds}", "  br i1 %c, label %go, label %out", "out:"]
    lines += [f"  %u{k} = fadd {v} %t{k}, {f'%u{k - 1}' if k else 'zeroinitializer'}" for k in range(sums)]
    lines += [f"  %r = extractelement {v} %u{sums - 1}, i64 0", "  ret float %r", "}"]
    code = loader.load(llvm.compile_ir("\n".join(lines)))
    run = ctypes.CFUNCTYPE(ctypes.c_float)(code.address("peak"))
    return 2 * lanes * sums * rounds / seconds(lambda: run()) / 1e9


def compare(threads: Sequence[int], only: str) -> int:
    python = {"bcvm": os.environ.get("PY_BCVM", sys.executable), "ort": os.environ.get("PY_PEERS"), "torch": os.environ.get("PY_TORCH")}
    found: dict[str, dict[str, list[float]]] = {}
    for engine, path in python.items():
        if path:
            command = [path, __file__, "--engine", engine, "--json", "--only", only, "--threads", *map(str, threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                return done.returncode
            found[engine] = json.loads(done.stdout)
    peers = [e for e in found if e != "bcvm"]
    titles = [f"{e}/{n}" for n in threads for e in found] + [f"/{p}@{n}" for n in threads for p in peers]
    print(f"{'':24s}" + "".join(f"  {t:>8s}" for t in titles))
    ratios: dict[tuple[str, int], list[float]] = {}
    for name, own in found["bcvm"].items():
        line = f"{name:24s}" + "".join(f"  {found[e][name][i]:8.1f}" for i in range(len(threads)) for e in found)
        for i in range(len(threads)):
            for p in peers:
                ratio = own[i] / found[p][name][i]
                ratios.setdefault((p, i), []).append(ratio)
                line += f"  {ratio:8.2f}"
        print(line)
    for (p, i), values in ratios.items():
        print(f"geometric mean against {p}, {threads[i]} thread(s): {np.exp(np.mean(np.log(values))):.2f}, worst {min(values):.2f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="bcvm")
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    if args.compare:
        return compare(args.threads, args.only)
    found = measure(args.engine, args.threads, args.only)
    if args.json:
        print(json.dumps(found))
        return 0
    top = peak() if args.engine == "bcvm" else 0.0
    for name, values in found.items():
        print(f"{name:24s}" + "".join(f"  {v:7.1f}" + (f" {v / top / n:4.0%}" if top else "") for v, n in zip(values, args.threads)))
    if top:
        print(f"peak {top:.1f} GF/s a thread; kernels compiled in ms: " + ", ".join(f"{n} {ms:.0f}" for n, ms in compiled.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
