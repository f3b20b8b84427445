"""LLVM IR of the thread pool: workers made with pthread_create, work claimed by an atomic counter, waiting by spinning and then by a futex.

One caller owns the pool at a time; whoever finds it taken runs alone. An epoch counts openings and closings of jobs and is odd while one is open. It shares a
word with the number of workers inside, so that joining is one compare-and-swap: a worker that comes late finds the job closed and is not waited for.
What is claimed is a range of a kernel's units, or, for regions without reductions that have few rows, a range of the row. Ranges get shorter towards the end of a job
(guided self-scheduling, Polychronopoulos and Kuck 1987): few claims, and nobody waits long for the last one. The caller claims from the front, workers from the back, so that
with one worker a thread mostly finds in its own cache what it wrote in the kernel before.
"""
from __future__ import annotations

from collections.abc import Callable

from bcvm.compiler import abi
from bcvm.compiler.modules import constant

# Bytes of the pool's block. What different threads write lies on lines of its own (128 bytes: neighbouring lines are fetched in pairs).
BLOCK_BYTES = 4096
STATE, NEXT, CODE, OWNER, SLEEPERS = 0, 128, 256, 384, 512
WORKERS, WANTED, JOBS, LAST = 640, 648, 656, 664            # threads that run; threads of a call, its own included; jobs so far; when the last long kernel ended
# NEXT has the pieces that were claimed from the front in its low half, from the back in its high one. PIECE: units of a piece; SHARE: the part of the pieces left that is
# claimed, as a power of 1/2. RANK: 0, or ranges of a row are claimed; LIMIT: most workers
KERNEL, OPERANDS, SIZES, TOTAL, PIECE, PIECES, SHARE, RANK, COUNT, LIMIT = range(768, 768 + 80, 8)

TILE_NS = 5_000     # predicted work that a piece is worth
CLAIMS = 32         # pieces per thread
SHARES = 2          # a claim is this power of 1/2 of a thread's part of what is left
FEW_ROWS = 8        # rows per thread: with fewer, rows are cut
LINE = 64           # elements: a cut row's pieces share no cache line
SPINS = 8000        # pauses before a worker sleeps: about 100 us
WAKE_NS = 150_000   # predicted work that is worth waking sleepers for at once; shorter work wakes them if it comes
SOON_CYCLES = 200_000  # so soon after other long work
MOST_THREADS = 256
NAP_NS = 20_000     # what the caller sleeps, again and again, when it has waited for a worker as long as SPINS: a worker without a processor can have this one
_FUTEX, _WAIT, _WAKE = 202, 128, 129  # system calls of x86-64; futex operations with the private flag


def text(at: Callable[[str], str], block: int) -> str:
    """run_long, pool_forget. at: the pointer constant of a name of `runtime_ir.module`; block: address of BLOCK_BYTES zero bytes that are never freed."""

    def field(offset: int) -> str:
        return constant(block + offset)

    def fields(*names: tuple[str, int]) -> str:
        return "\n".join(f"  %{name} = load {'ptr' if offset in (KERNEL, OPERANDS, SIZES) else 'i64'}, ptr {field(offset)}" for name, offset in names)

    return f"""
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; Does what is left of the open job, range by range.
define internal void @pool_take(ptr %ctx, i1 %back) {{
entry:
{fields(("kernel", KERNEL), ("operands", OPERANDS), ("sizes", SIZES), ("total", TOTAL), ("piece", PIECE), ("pieces", PIECES), ("share", SHARE), ("rank", RANK), ("count", COUNT))}
  %row = icmp ne i64 %rank, 0
  %each = add i64 %rank, 1
  %words = mul i64 %each, %count
  %place = add i64 %words, %rank
  %bytes = mul i64 %words, 8
  %own = alloca i64, i64 %place
  %own_sizes = getelementptr i64, ptr %own, i64 %words
  %size_bytes = mul i64 %rank, 8
  br label %claim
claim:
  %now = load atomic i64, ptr {field(NEXT)} monotonic, align 8
  br label %range
range:
  %s = phi i64 [ %now, %claim ], [ %seen, %offer ]
  %front = and i64 %s, 4294967295
  %behind = lshr i64 %s, 32
  %rest = sub i64 %pieces, %front
  %left = sub i64 %rest, %behind
  %end = icmp sle i64 %left, 0
  br i1 %end, label %out, label %offer
offer:
  %part = lshr i64 %left, %share
  %n = call i64 @llvm.smax.i64(i64 %part, i64 1)
  %high = shl i64 %n, 32
  %step = select i1 %back, i64 %high, i64 %n
  %s1 = add i64 %s, %step
  %pair = cmpxchg ptr {field(NEXT)}, i64 %s, i64 %s1 monotonic monotonic
  %seen = extractvalue {{ i64, i1 }} %pair, 0
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %got, label %range
got:
  %begun = sub i64 %pieces, %behind
  %low = sub i64 %begun, %n
  %first = select i1 %back, i64 %low, i64 %front
  %last1 = add i64 %first, %n
  %lo = mul i64 %first, %piece
  %hi0 = mul i64 %last1, %piece
  %hi = call i64 @llvm.smin.i64(i64 %hi0, i64 %total)
  br i1 %row, label %cut, label %whole
whole:
  %c1 = call i32 %kernel(ptr %ctx, ptr %operands, ptr %sizes, i64 %lo, i64 %hi)
  br label %check
cut:
  call void {at("memcpy")}(ptr %own, ptr %operands, i64 %bytes)
  call void {at("memcpy")}(ptr %own_sizes, ptr %sizes, i64 %size_bytes)
  %last = sub i64 %rank, 1
  %pl = getelementptr i64, ptr %own_sizes, i64 %last
  %length = sub i64 %hi, %lo
  store i64 %length, ptr %pl
  br label %shift
shift:
  %o = phi i64 [ 0, %cut ], [ %o1, %shift ]
  %words1 = mul i64 %o, %each
  %po = getelementptr i64, ptr %own, i64 %words1
  %ps = getelementptr i64, ptr %po, i64 %rank
  %data = load i64, ptr %po
  %stride = load i64, ptr %ps
  %gone = mul i64 %stride, %lo
  %moved = add i64 %data, %gone
  store i64 %moved, ptr %po
  %o1 = add i64 %o, 1
  %shifted = icmp eq i64 %o1, %count
  br i1 %shifted, label %run, label %shift
run:
  %c2 = call i32 %kernel(ptr %ctx, ptr %own, ptr %own_sizes, i64 0, i64 -1)
  br label %check
check:
  %c = phi i32 [ %c1, %whole ], [ %c2, %run ]
  %good = icmp eq i32 %c, 0
  br i1 %good, label %claim, label %failed
failed:
  store atomic i32 %c, ptr {field(CODE)} monotonic, align 4
  br label %claim
out:
  ret void
}}

; A worker's life; it never ends. %ctx is its own.
define internal ptr @pool_worker(ptr %ctx) {{
entry:
  br label %look
look:
  %seen = phi i32 [ 0, %entry ], [ %seen, %spin ], [ %seen, %join ], [ %epoch, %leave ], [ %epoch, %full ], [ %seen, %woken ]
  %spins = phi i64 [ 0, %entry ], [ %spins1, %spin ], [ %spins, %join ], [ 0, %leave ], [ %spins, %full ], [ 0, %woken ]
  %s = load atomic i64, ptr {field(STATE)} seq_cst, align 8
  %high = lshr i64 %s, 32
  %epoch = trunc i64 %high to i32
  %odd = and i32 %epoch, 1
  %open = icmp ne i32 %odd, 0
  %new = icmp ne i32 %epoch, %seen
  %go = and i1 %open, %new
  br i1 %go, label %room, label %wait
room:
  %inside = and i64 %s, 4294967295
  %limit = load atomic i64, ptr {field(LIMIT)} monotonic, align 8
  %some = icmp slt i64 %inside, %limit
  br i1 %some, label %join, label %full
full:
  br label %look
join:
  %s1 = add i64 %s, 1
  %pair = cmpxchg ptr {field(STATE)}, i64 %s, i64 %s1 seq_cst seq_cst
  %joined = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %joined, label %work, label %look
work:
  call void @pool_take(ptr %ctx, i1 true)
  br label %leave
leave:
  %was = atomicrmw sub ptr {field(STATE)}, i64 1 seq_cst
  br label %look
wait:
  %tired = icmp sge i64 %spins, {SPINS}
  br i1 %tired, label %sleep, label %spin
spin:
  call void @llvm.x86.sse2.pause()
  %spins1 = add i64 %spins, 1
  br label %look
sleep:
  %n0 = atomicrmw add ptr {field(SLEEPERS)}, i64 1 seq_cst
  %r = call i64 (i64, ...) {at("syscall")}(i64 {_FUTEX}, ptr {field(STATE + 4)}, i64 {_WAIT}, i32 %epoch, ptr null)
  %n1 = atomicrmw sub ptr {field(SLEEPERS)}, i64 1 seq_cst
  br label %woken
woken:
  br label %look
}}

; Workers until `wanted` run, or until the system gives no more. Signals stay with other threads.
define internal void @pool_grow(i64 %wanted) noinline {{
entry:
  %all = alloca [16 x i64]
  %old = alloca [16 x i64]
  %thread = alloca i64
  call void {at("memset")}(ptr %all, i32 255, i64 128)
  %m0 = call i32 {at("pthread_sigmask")}(i32 0, ptr %all, ptr %old)
  br label %next
next:
  %n = load i64, ptr {field(WORKERS)}
  %enough = icmp sge i64 %n, %wanted
  br i1 %enough, label %done, label %make
make:
  %ctx = call ptr @context_acquire()
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %fewer, label %start
start:
  %bad = call i32 {at("pthread_create")}(ptr %thread, ptr null, ptr @pool_worker, ptr %ctx)
  %ok = icmp eq i32 %bad, 0
  br i1 %ok, label %started, label %refused
started:
  %id = load i64, ptr %thread
  %d = call i32 {at("pthread_detach")}(i64 %id)
  %n1 = add i64 %n, 1
  store i64 %n1, ptr {field(WORKERS)}
  br label %next
refused:
  call void @context_release(ptr %ctx)
  br label %fewer
fewer:
  %most = add i64 %n, 1
  store i64 %most, ptr {field(WANTED)}
  br label %done
done:
  %m1 = call i32 {at("pthread_sigmask")}(i32 2, ptr %old, ptr null)
  ret void
}}

; A kernel over all its work, by several threads if that pays.
define internal i32 @pool_run(ptr %ctx, ptr %kernel, ptr %operands, ptr %sizes, i64 %units, i64 %work, i64 %plan, i64 %threads) {{
entry:
  %time = alloca [2 x i64]
  store i64 0, ptr %time
  %nanoseconds = getelementptr i64, ptr %time, i64 1
  store i64 {NAP_NS}, ptr %nanoseconds
  %rank = and i64 %plan, 255
  %c0 = lshr i64 %plan, 8
  %count = and i64 %c0, 65535
  %a0 = lshr i64 %plan, 24
  %align = and i64 %a0, 255
  %row = icmp ne i64 %rank, 0
  br i1 %row, label %shape, label %split
shape:
  %last = sub i64 %rank, 1
  %pl = getelementptr i64, ptr %sizes, i64 %last
  %length = load i64, ptr %pl
  br label %rows
rows:
  %i = phi i64 [ 0, %shape ], [ %i1, %more ]
  %n = phi i64 [ 1, %shape ], [ %n1, %more ]
  %all = icmp eq i64 %i, %last
  br i1 %all, label %choose, label %more
more:
  %pi = getelementptr i64, ptr %sizes, i64 %i
  %si = load i64, ptr %pi
  %n1 = mul i64 %n, %si
  %i1 = add i64 %i, 1
  br label %rows
choose:
  %plenty = mul i64 %threads, {FEW_ROWS}
  %many = icmp sge i64 %n, %plenty
  br i1 %many, label %split, label %cut
cut:
  br label %split
split:
  %total = phi i64 [ %units, %entry ], [ %n, %choose ], [ %length, %cut ]
  %mode = phi i64 [ 0, %entry ], [ 0, %choose ], [ %rank, %cut ]
  %shift = phi i64 [ %align, %entry ], [ 0, %choose ], [ {LINE.bit_length() - 1}, %cut ]
  %claims = mul i64 %threads, {CLAIMS}
  %t1 = add i64 %total, %claims
  %t2 = sub i64 %t1, 1
  %fair = sdiv i64 %t2, %claims
  %w1 = mul i64 %total, {TILE_NS}
  %w2 = add i64 %w1, %work
  %w3 = sub i64 %w2, 1
  %worth = udiv i64 %w3, %work
  %p0 = call i64 @llvm.smax.i64(i64 %fair, i64 %worth)
  %unit = shl i64 1, %shift
  %mask = sub i64 %unit, 1
  %p1 = add i64 %p0, %mask
  %p2 = lshr i64 %p1, %shift
  %piece0 = shl i64 %p2, %shift
  %single = icmp sge i64 %piece0, %total
  br i1 %single, label %alone, label %awake
awake:
  %lying = load atomic i64, ptr {field(SLEEPERS)} monotonic, align 8
  %workers = load i64, ptr {field(WORKERS)}
  %up = icmp slt i64 %lying, %workers
  %much = icmp sge i64 %work, {WAKE_NS}
  %ready = or i1 %up, %much
  br i1 %ready, label %own, label %recent
recent:
  %now = call i64 @llvm.readcyclecounter()
  %before = load atomic i64, ptr {field(LAST)} monotonic, align 8
  %since = sub i64 %now, %before
  %soon = icmp ult i64 %since, {SOON_CYCLES}
  br i1 %soon, label %own, label %alone
alone:
  %r0 = call i32 %kernel(ptr %ctx, ptr %operands, ptr %sizes, i64 0, i64 -1)
  %end0 = call i64 @llvm.readcyclecounter()
  store atomic i64 %end0, ptr {field(LAST)} monotonic, align 8
  ret i32 %r0
own:
  %pair = cmpxchg ptr {field(OWNER)}, i64 0, i64 1 acquire monotonic
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %open, label %alone
open:
  %q0 = add i64 %total, %piece0
  %q1 = sub i64 %q0, 1
  %about = udiv i64 %q1, %piece0
  %odd = urem i64 %about, %threads
  %even = sub i64 %about, %odd
  %none = icmp eq i64 %even, 0
  %parts = select i1 %none, i64 %about, i64 %even  ; as many for each thread, and even ones
  %e0 = add i64 %total, %parts
  %e1 = sub i64 %e0, 1
  %e2 = udiv i64 %e1, %parts
  %e3 = add i64 %e2, %mask
  %e4 = lshr i64 %e3, %shift
  %piece = shl i64 %e4, %shift
  %e5 = add i64 %total, %piece
  %e6 = sub i64 %e5, 1
  %pieces = udiv i64 %e6, %piece
  %most = sub i64 %pieces, 1
  %others = sub i64 %threads, 1
  %limit = call i64 @llvm.smin.i64(i64 %others, i64 %most)
  store ptr %kernel, ptr {field(KERNEL)}
  store ptr %operands, ptr {field(OPERANDS)}
  store ptr %sizes, ptr {field(SIZES)}
  store i64 %total, ptr {field(TOTAL)}
  store i64 %piece, ptr {field(PIECE)}
  store i64 %pieces, ptr {field(PIECES)}
  %zeros = call i64 @llvm.ctlz.i64(i64 %others, i1 false)
  %share = sub i64 {64 + SHARES}, %zeros
  store i64 %share, ptr {field(SHARE)}
  store i64 %mode, ptr {field(RANK)}
  store i64 %count, ptr {field(COUNT)}
  store atomic i64 %limit, ptr {field(LIMIT)} monotonic, align 8
  store atomic i64 0, ptr {field(NEXT)} monotonic, align 8
  store atomic i32 0, ptr {field(CODE)} monotonic, align 4
  %jobs = load i64, ptr {field(JOBS)}
  %jobs1 = add i64 %jobs, 1
  store i64 %jobs1, ptr {field(JOBS)}
  %opened = atomicrmw add ptr {field(STATE)}, i64 4294967296 seq_cst
  %asleep = load atomic i64, ptr {field(SLEEPERS)} seq_cst, align 8
  %nobody = icmp eq i64 %asleep, 0
  br i1 %nobody, label %take, label %wake
wake:
  %w = call i64 (i64, ...) {at("syscall")}(i64 {_FUTEX}, ptr {field(STATE + 4)}, i64 {_WAKE}, i64 %limit)
  br label %take
take:
  call void @pool_take(ptr %ctx, i1 false)
  %closed = atomicrmw add ptr {field(STATE)}, i64 4294967296 seq_cst
  br label %wait
wait:
  %spins = phi i64 [ 0, %take ], [ %spins1, %pause ], [ %spins, %nap ]
  %s = load atomic i64, ptr {field(STATE)} seq_cst, align 8
  %inside = and i64 %s, 4294967295
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %close, label %busy
busy:
  %tired = icmp sge i64 %spins, {SPINS}
  br i1 %tired, label %nap, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  %spins1 = add i64 %spins, 1
  br label %wait
nap:
  %inside32 = trunc i64 %inside to i32
  %y = call i64 (i64, ...) {at("syscall")}(i64 {_FUTEX}, ptr {field(STATE)}, i64 {_WAIT}, i32 %inside32, ptr %time)
  br label %wait
close:
  %code = load atomic i32, ptr {field(CODE)} monotonic, align 4
  %end1 = call i64 @llvm.readcyclecounter()
  store atomic i64 %end1, ptr {field(LAST)} monotonic, align 8
  store atomic i64 0, ptr {field(OWNER)} release, align 8
  ret i32 %code
}}

; A kernel over all its work, where that is long: {abi.CTX_LONG} and {abi.CTX_PLAN} of the context hold the kernel and its plan. The caller holds the GIL.
define i32 @run_long(ptr %ctx, ptr %operands, ptr %sizes, i64 %units, i64 %work) {{
entry:
  %pk = getelementptr i64, ptr %ctx, i64 {abi.CTX_LONG}
  %kernel = load ptr, ptr %pk
  %pp = getelementptr i64, ptr %ctx, i64 {abi.CTX_PLAN}
  %plan = load i64, ptr %pp
  %cap = lshr i64 %plan, 32
  %any = icmp eq i64 %cap, 0
  %usual = load i64, ptr {field(WANTED)}
  %threads = select i1 %any, i64 %usual, i64 %cap
  %one = icmp sle i64 %threads, 1
  br i1 %one, label %begin, label %pool
pool:
  %wanted = sub i64 %threads, 1
  %running = load i64, ptr {field(WORKERS)}
  %few = icmp slt i64 %running, %wanted
  br i1 %few, label %grow, label %begin
grow:
  call void @pool_grow(i64 %wanted)
  br label %begin
begin:
  %long = icmp sgt i64 %work, {abi.RELEASE_NS}
  br i1 %long, label %release, label %hold
hold:
  %c1 = call i32 @pool_or_alone(ptr %ctx, ptr %kernel, ptr %operands, ptr %sizes, i64 %units, i64 %work, i64 %plan, i64 %threads)
  ret i32 %c1
release:
  %thread = call ptr {at("PyEval_SaveThread")}()
  %c2 = call i32 @pool_or_alone(ptr %ctx, ptr %kernel, ptr %operands, ptr %sizes, i64 %units, i64 %work, i64 %plan, i64 %threads)
  call void {at("PyEval_RestoreThread")}(ptr %thread)
  ret i32 %c2
}}

define internal i32 @pool_or_alone(ptr %ctx, ptr %kernel, ptr %operands, ptr %sizes, i64 %units, i64 %work, i64 %plan, i64 %threads) {{
entry:
  %workers = load i64, ptr {field(WORKERS)}
  %most = add i64 %workers, 1
  %now = call i64 @llvm.smin.i64(i64 %threads, i64 %most)
  %one = icmp sle i64 %now, 1
  br i1 %one, label %alone, label %pool
alone:
  %c1 = call i32 %kernel(ptr %ctx, ptr %operands, ptr %sizes, i64 0, i64 -1)
  ret i32 %c1
pool:
  %c2 = call i32 @pool_run(ptr %ctx, ptr %kernel, ptr %operands, ptr %sizes, i64 %units, i64 %work, i64 %plan, i64 %now)
  ret i32 %c2
}}

; In the child of a fork no worker lives: forgets them, and a job that was open.
define void @pool_forget() {{
  store i64 0, ptr {field(STATE)}
  store i64 0, ptr {field(OWNER)}
  store i64 0, ptr {field(SLEEPERS)}
  store i64 0, ptr {field(WORKERS)}
  ret void
}}
"""
