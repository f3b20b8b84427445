"""The instruction table: the only place where an instruction is defined.

Assembler, disassembler, binary form, verifier, interpreter dispatch and the documentation page are driven by it. To add
an instruction, append a row with a new opcode (opcodes are never reused) and the ABI minor that brings it.

The stack effect is (pops, pushes); a string is an expression over the operand names, e.g. "count".
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ABI_MAJOR = 1
ABI_MINOR = 0
"""A reader accepts a program when the major is equal and the program's minor is not higher than this one."""


class Kind(Enum):
    """What an operand's integer means. `section` operands index the program's section of that name."""

    LOCAL = "local"            # index into Program.locals
    CONST = "const"            # index into Program.consts
    NAME = "name"              # index into Program.names
    OP = "op"                  # index into Program.names: the op's name
    POLICY = "policy"          # index into Program.names: the fusion policy's name
    HINT = "hint"              # index into Program.hints; hint 0 is always "no constraint" (`...`)
    CAPTURE = "capture"        # index into Program.captures
    IMPORT = "import"          # index into Program.imports
    SIGNATURE = "signature"    # index into Program.signatures; 0 is "not resolved"
    LABEL = "label"            # an instruction id of this program
    COUNT = "count"            # a plain number
    DEVICE = "device"          # 0 host, 1.. devices (DeviceHint)
    STREAM = "stream"          # execution stream of a device
    MASK = "mask"              # bit i: dim i (from the right) is broadcast


@dataclass(frozen=True)
class Instruction:
    """One row. `effect` is (pops, pushes). `flow`: 'next', 'jump' (never falls through), 'branch' (may jump), 'return'."""

    opcode: int
    name: str
    operands: tuple[tuple[str, Kind], ...]
    effect: tuple[int | str, int | str]
    doc: str
    flow: str = "next"
    since: tuple[int, int] = (1, 0)
    expands: str | None = None  # short and FUSED_* forms: the op (or ops, comma separated) of the CALL_OP they stand for
    jump_effect: tuple[int | str, int | str] | None = None  # stack effect when the jump is taken, where it differs


K = Kind
TABLE: tuple[Instruction, ...] = (
    # -- nothing, constants, locals, captures
    Instruction(0x00, "NOP", (), (0, 0), "Do nothing."),
    Instruction(0x01, "LOAD_TENSOR", (("local", K.LOCAL), ("hint", K.HINT)), (0, 1),
                "Push a local and check it against a shape hint; a violation is a ShapeError that names the hint."),
    Instruction(0x02, "LOAD_CONST", (("const", K.CONST),), (0, 1), "Push a constant."),
    Instruction(0x03, "LOAD", (("local", K.LOCAL),), (0, 1), "Push a local; UnboundLocalError if it is not set."),
    Instruction(0x04, "STORE", (("local", K.LOCAL),), (1, 0), "Pop into a local."),
    Instruction(0x05, "DELETE", (("local", K.LOCAL),), (0, 0), "Unset a local."),
    Instruction(0x06, "LOAD_CAPTURE", (("capture", K.CAPTURE),), (0, 1),
                "Push a free variable, global or builtin, read now; NameError if there is none."),
    Instruction(0x07, "LOAD_ATTR", (("name", K.NAME),), (1, 1), "Pop an object, push its attribute."),
    Instruction(0x08, "LOAD_ITEM", (), (2, 1), "Pop index and object, push object[index]."),
    Instruction(0x09, "STORE_TENSOR", (), (3, 0), "Pop index, target and value (pushed in the order value, target, index): target[index] = value."),
    # -- stack
    Instruction(0x0A, "POP", (), (1, 0), "Drop the top of the stack."),
    Instruction(0x0B, "COPY", (("count", K.COUNT),), (0, 1), "Push the value that is `count` deep; 1 is the top."),
    Instruction(0x0C, "SWAP", (("count", K.COUNT),), (0, 0), "Exchange the top with the value that is `count` deep; 2 is the one below the top."),
    # -- aggregates
    Instruction(0x10, "BUILD_TUPLE", (("count", K.COUNT),), ("count", 1), "Pop `count` values into a tuple, first pushed first."),
    Instruction(0x11, "BUILD_LIST", (("count", K.COUNT),), ("count", 1), "Pop `count` values into a new list."),
    Instruction(0x12, "BUILD_DICT", (("count", K.COUNT),), ("2*count", 1), "Pop `count` key, value pairs into a new dict."),
    Instruction(0x13, "BUILD_SLICE", (("count", K.COUNT),), ("count", 1), "Pop start, stop and, if count is 3, step; push a slice."),
    Instruction(0x14, "UNPACK", (("count", K.COUNT),), (1, "count"), "Pop an iterable of exactly `count` items, push them so that the first is on top."),
    Instruction(0x15, "UNPACK_STAR", (("before", K.COUNT), ("after", K.COUNT)), (1, "before+1+after"),
                "As UNPACK, with the items between the first `before` and the last `after` as one list."),
    Instruction(0x16, "LIST_EXTEND", (), (2, 1), "Pop an iterable and a list, push the list extended by it."),
    Instruction(0x17, "LIST_APPEND", (), (2, 1), "Pop a value and a list, push the list with the value appended."),
    Instruction(0x18, "LIST_TO_TUPLE", (), (1, 1), "Pop a list, push a tuple of its items."),
    Instruction(0x19, "DICT_MERGE", (), (2, 1), "Pop a mapping and a dict, push the dict updated by it; a repeated key is a TypeError."),
    # -- calls
    Instruction(0x20, "CALL_OP", (("op", K.OP), ("signature", K.SIGNATURE), ("count", K.COUNT)), ("count", 1),
                "Pop `count` operands, first pushed first, push the op's result. Python's operators are ops (`add`, `iadd`, `lt`, `not`, `is`)."),
    Instruction(0x21, "CALL", (("count", K.COUNT), ("names", K.CONST)), ("count+1", 1),
                "Pop `count` arguments and below them a callable; call it. The last arguments are keywords, named by the tuple constant."),
    Instruction(0x22, "CALL_UNPACKED", (), (3, 1), "Pop a keyword dict, a positional tuple and a callable; call it."),
    Instruction(0x23, "CALL_PY", (("import", K.IMPORT), ("count", K.COUNT), ("results", K.COUNT)), ("count", "results"),
                "Call back into Python: pop `count` live-ins, call the import, push its results (a tuple unless results is 1; first on top)."),
    Instruction(0x24, "RETURN", (), (1, 0), "Return the top of the stack.", flow="return"),
    # -- control flow
    Instruction(0x30, "JUMP", (("target", K.LABEL),), (0, 0), "Go on at target.", flow="jump"),
    Instruction(0x31, "COND_JUMP", (("target", K.LABEL),), (1, 0), "Pop a value; go on at target if it is false. For conditions inside an expression or of a loop.", flow="branch"),
    Instruction(0x32, "BRANCH_IF_SYMBOLIC", (("target", K.LABEL),), (1, 0),
                "Pop the condition of an if statement; go on at target if it is false. Both sides live in one driver.", flow="branch"),
    Instruction(0x33, "LOOP_START", (("exit", K.LABEL),), (0, 0), "Header of a loop, a safe point; `exit` is the first instruction after the loop."),
    Instruction(0x34, "LOOP_END", (("start", K.LABEL),), (0, 0), "Go on at the loop's LOOP_START.", flow="jump"),
    Instruction(0x35, "GET_ITER", (), (1, 1), "Pop an iterable, push an iterator over it."),
    Instruction(0x36, "FOR_NEXT", (("exit", K.LABEL),), (0, 1),
                "Push the next item of the iterator on top of the stack, or pop the iterator and go on at exit.", flow="branch", jump_effect=(1, 0)),
    # -- fusion, placement
    Instruction(0x40, "FUSE_START", (("policy", K.POLICY),), (0, 0), "Start of a region: what follows, up to FUSE_END, may become one kernel under this policy."),
    Instruction(0x41, "FUSE_END", (), (0, 0), "End of a region."),
    Instruction(0x42, "FUSE_ACROSS_DEVICE", (("device", K.DEVICE), ("stream", K.STREAM)), (0, 0), "The region that follows may span the host and this device."),
    Instruction(0x43, "ALLOC_DEVICE_MEM", (("device", K.DEVICE), ("stream", K.STREAM)), (1, 1), "Pop a tensor, push it placed on the device; on device 0 the tensor itself."),
    Instruction(0x44, "FREE_DEVICE_MEM", (("device", K.DEVICE), ("stream", K.STREAM)), (1, 0), "Pop a tensor and give its device memory back."),
    # -- short forms: CALL_OP of one op; no meaning of their own
    Instruction(0x60, "RESHAPE", (("signature", K.SIGNATURE),), (2, 1), "CALL_OP reshape: pop a tuple of sizes and a tensor.", expands="reshape"),
    Instruction(0x61, "BROADCAST_ADD", (("mask", K.MASK), ("signature", K.SIGNATURE)), (2, 1), "CALL_OP add whose operands are known to broadcast by this mask.", expands="add"),
    Instruction(0x62, "MATMUL", (("signature", K.SIGNATURE),), (2, 1), "CALL_OP matmul.", expands="matmul"),
    Instruction(0x63, "RELU", (("signature", K.SIGNATURE),), (1, 1), "CALL_OP relu.", expands="relu"),
    Instruction(0x64, "CONCAT", (("count", K.COUNT), ("axis", K.CONST), ("signature", K.SIGNATURE)), ("count", 1), "CALL_OP concat of `count` tensors along a constant axis.", expands="concat"),
    Instruction(0x65, "ADD_CONST", (("const", K.CONST), ("signature", K.SIGNATURE)), (1, 1), "CALL_OP add with a constant on the right.", expands="add"),
    Instruction(0x66, "MUL_CONST", (("const", K.CONST), ("signature", K.SIGNATURE)), (1, 1), "CALL_OP mul with a constant on the right.", expands="mul"),
    # -- fused forms: a region of these ops
    Instruction(0x70, "FUSED_MATMUL_RELU", (("signature", K.SIGNATURE),), (2, 1), "A policy_002 region of matmul, relu.", expands="matmul,relu"),
    Instruction(0x71, "FUSED_CONV_BN_RELU", (("signature", K.SIGNATURE),), (7, 1),
                "A policy_002 region of conv2d (x, weight, bias), batch_norm (mean, variance, scale, shift pushed after it), relu.", expands="conv2d,batch_norm,relu"),
    Instruction(0x72, "FUSED_ADD_RELU_CAST_FP16", (("signature", K.SIGNATURE),), (2, 1), "A policy_001 region of add, relu, cast to float16.", expands="add,relu,cast_fp16"),
)

BY_OPCODE: dict[int, Instruction] = {row.opcode: row for row in TABLE}
BY_NAME: dict[str, Instruction] = {row.name: row for row in TABLE}
assert len(BY_OPCODE) == len(BY_NAME) == len(TABLE), "opcodes and names are unique"
