"""The borders inside native code: what drivers, kernels, stubs and run-time support agree on. All words are 64 bit.

Kernel      int32 kernel(Context *ctx, const int64 *operands, const int64 *sizes, int64 lo, int64 hi)
            operands: for each operand, inputs first, then outputs: data pointer, then `rank` byte strides (rank is the
            kernel's, the same for all its operands). lo..hi: the range of independent units to do; hi = -1 is all of them.
            Returns 0, or an error code. Kernels take scratch from `alloc` and give it back.

Driver      int32 driver(Context *ctx, const int64 *in, int64 *out)
            in: the words of each Graph input in order:   Tensor: data, object, sizes[rank], byte strides[rank]
                                                          Scalar: one word (int, float bits, 0/1)      PyObject: object
            returns 0 and in `out` the words of each leaf of the returned tree: Tensor: object (a new reference to an ndarray, or to the
            very object that came in); Tensor with `scalar`: the element's bits, low bytes first; Scalar: one word; PyObject: object (new reference)
            returns k > 0: left at exit k - 1; `out` holds the words of each leaf of that exit's state:
            Tensor: data, object (0, or the very object that came in; borrowed), base (0, the object | 1 that owns the data, or an arena buffer), sizes, strides
            Scalar, PyObject: as above (borrowed).       The caller resets the arena after it has copied what it needs.
            Behind the leaves: a count, and that many objects that the driver owned; the caller drops them last (CompiledGraph.drop_held).
            returns -1: memory ran out; nothing is in `out`, nothing is owned, the caller raises MemoryError
            returns -k - 1 for k > 0: as 0, with the k-th of several types of results (return_code)

Epilogue    a kernel that finishes blocks of another kernel's result (see epilogues): kernel, count of its operands, rank, how many dims the other kernel
            has before these, then its operand words. The word of sizes that holds its address is 0 where there is none. `finish` runs it on one block.

Base        who owns a tensor's memory: 0 nobody to count (lives for the whole call), object | 1 a counted Python object, otherwise an arena
            buffer: the data pointer that `alloc` returned, 64-byte aligned, reference count in the word at -64, size class in that at -56.

Context     one per activation (a worker thread has its own); words below.
Kernels refer to no symbol outside themselves: everything is reached through the table of the Context. Drivers and stubs name addresses (see `modules`).
"""
from __future__ import annotations

# Words of the Context.
CTX_TABLE = 0        # pointer to the process-wide table of function addresses, indexed by TABLE
CTX_KERNELS = 1      # pointer to the kernel slots
CTX_BUMP = 2         # arena: next free byte, end of the chunk
CTX_END = 3
CTX_CHUNKS = 4       # arena: list of chunks
CTX_COUNTERS = 5     # pointer to this function's counters (words)
CTX_INTERRUPT = 6    # pointer to a word that is not 0 when a signal waits
CTX_LONG = 12        # the kernel that `run_long` runs
CTX_ROUNDS = 13      # rounds of loops until the next `breathe`
CTX_PLAN = 14        # how `run_long` may split its kernel, see `split_plan`
CTX_ROWS = 15        # the kernel that `by_rows` calls row by row
CTX_FREE = 16        # free-list heads, one per size class
SIZE_CLASSES = 48
ROUNDS = 512         # the shortest round takes a few ns: often enough for others, too seldom to be felt
CTX_WORDS = CTX_FREE + SIZE_CLASSES
EPILOGUE_WORDS = 4   # of an epilogue, before its operands

# Functions reached through CTX_TABLE. (name, LLVM type of the function)
TABLE: tuple[tuple[str, str], ...] = (
    ("alloc", "ptr (ptr, i64)"),               # (ctx, bytes) -> arena buffer with count 1, or null
    ("retain", "void (i64)"),                  # (base)
    ("release", "void (ptr, i64)"),            # (ctx, base)
    ("collapse", "void (ptr, ptr, i64, i64)"),  # (operands, sizes, count, rank): merges dims that lie contiguous in all operands, in place, right-aligned
    ("memcpy", "ptr (ptr, ptr, i64)"),
    ("memset", "ptr (ptr, i32, i64)"),
    ("new_array", "ptr (ptr, i64, i64, ptr)"),  # (ctx, NumPy type number, rank, sizes) -> new C-contiguous ndarray or null (error cleared)
    ("view_array", "ptr (ptr, i64, i64, ptr, ptr, ptr, ptr)"),  # (ctx, NumPy type number, rank, sizes, strides, data, owner object) -> ndarray view or null
    ("run_long", "i32 (ptr, ptr, ptr, i64, i64)"),  # (ctx, operands, sizes, units, ns): all of the kernel in CTX_LONG, by several threads where that pays
    ("finish", "i32 (ptr, ptr, ptr)"),         # (ctx, epilogue, place): the epilogue on one block; place: the block's first element in each dim, then its sizes
    ("breathe", "void (ptr)"),                 # (ctx): lets other Python threads run; a loop calls it every ROUNDS rounds
    *((f"move{size}", "void (ptr, i64, ptr, i64, i64, i1)") for size in (1, 2, 4, 8)),  # (to, stride, from, stride, n, skip): strided copies for kernels
    ("by_rows", "i32 (ptr, ptr, ptr, i64, i64, ptr)"),  # (ctx, operands, sizes, lo, hi, about): a region kernel's call whose rows are not contiguous, see kernels/by_rows
    ("restride", "i1 (ptr, i64, ptr, i64)"),   # (sizes and strides, rank, new sizes and room for strides, new rank): whether the memory can be read so; stores the strides
    ("malloc", "ptr (i64)"),
    ("free", "void (ptr)"),
    ("Py_IncRef", "void (ptr)"),
    ("Py_DecRef", "void (ptr)"),
    # libm, for what has no vector form
    *((f, "double (double)") for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "cbrt")),
    *((f, "double (double, double)") for f in ("pow", "fmod", "atan2", "hypot")),
)
INDEX: dict[str, int] = {name: i for i, (name, _) in enumerate(TABLE)}
TYPE: dict[str, str] = dict(TABLE)
SIGNATURE: dict[str, tuple[str, list[str]]] = {name: (result, types.rstrip(")").split(", ")) for name, type in TABLE for result, types in [type.split(" (")]}

RELEASE_NS = 50_000      # predicted work from which Python's interpreter lock is released meanwhile


def split_plan(threads: int | None, rank: int = 0, operands: int = 0, align: int = 1) -> int:
    """The word CTX_PLAN. threads: at most so many (None: as the process has). align: units that stay together, a power of two. rank, operands: of a region
    without reductions, whose units are counted from its sizes and whose rows may be cut."""
    return (threads or 0) << 32 | (align.bit_length() - 1) << 24 | operands << 8 | rank


# Offsets in CPython and NumPy objects; probed at import of the compiler and refused on a mismatch (see entry stubs).
OB_TYPE = 8
ARRAY_DATA, ARRAY_ND, ARRAY_DIMS, ARRAY_STRIDES, ARRAY_BASE, ARRAY_DESCR, ARRAY_FLAGS = 16, 24, 32, 40, 48, 56, 64

# NumPy type numbers of new_array.
TYPE_NUMBER = {"bool": 0, "int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "int64": 7, "uint64": 8,
               "float32": 11, "float64": 12, "complex64": 14, "complex128": 15, "float16": 23}


def return_code(n: int) -> int:
    """What a driver returns with the n-th of the trees it may return."""
    return -1 - n if n else 0


def llvm_type(dtype: str) -> str:
    """The LLVM type that holds an element in memory; bool is a byte of 0 or 1."""
    return _LLVM_TYPE[dtype]


_LLVM_TYPE = {"bool": "i8", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64",
              "float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}
