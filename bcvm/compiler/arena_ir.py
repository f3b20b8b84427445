"""LLVM IR of the arena and of the pool of contexts.

Small buffers (up to 1 MiB) are cut from chunks by a bump pointer and recycled through one free list per size class: 128, 192,
256, 384, ... bytes, header included. Larger ones are allocated singly, kept in a list of the context, and recycled through a short cache.
Header of a buffer, before its data: count -64, size class -56 (-1: single), next -48, previous -40, raw block -32, bytes -24.
"""
from __future__ import annotations

from collections.abc import Callable

from bcvm.compiler import abi

# Words of the Context that belong to the arena and the context pool alone.
CTX_CURRENT = 7      # chunk that the bump pointer is in
CTX_SINGLE = 8       # list of single buffers in use
CTX_CACHE = 9        # list of single buffers to reuse
CTX_CACHED = 10      # bytes in that cache
CTX_NEXT = 11        # next context in the pool

SMALL_CLASSES = 27           # the last class is 1 MiB
SINGLE = (1 << 20)           # totals over this are single buffers
CHUNK = 256 << 10
KEEP = 4 << 20               # bytes of chunks that a context in the pool keeps
KEEP_CACHED = 128 << 20      # bytes of single buffers kept during a call
KEEP_IDLE = 64 << 20         # and by all contexts in the pool: what fails to fit costs a call 0.25 us and more for each page
KEEP_LEAST = 16 << 20        # by each of them in any case
HUGE_PAGES = 4 << 20         # single buffers from this size on ask for huge pages

assert SMALL_CLASSES <= abi.SIZE_CLASSES


def _field(name: str, word: int, ctx: str = "%ctx") -> str:
    return f"%{name} = getelementptr i64, ptr {ctx}, i64 {word}"


def text(at: Callable[[str], str]) -> str:
    """alloc, retain, release, context_acquire, context_release. at: the pointer constant of a name of `runtime_ir.module`."""
    return f"""
; ---- arena

define ptr @alloc(ptr %ctx, i64 %bytes) {{
entry:
  %absurd = icmp ugt i64 %bytes, {1 << 47}
  br i1 %absurd, label %none, label %sized
sized:
  %total = add i64 %bytes, 64
  %single = icmp ugt i64 %total, {SINGLE}
  br i1 %single, label %large, label %small
large:
  %one = tail call ptr @alloc_single(ptr %ctx, i64 %total)
  ret ptr %one
small:
  %tiny = icmp ult i64 %total, 128
  %t = select i1 %tiny, i64 128, i64 %total
  %m = sub i64 %t, 1
  %z = call i64 @llvm.ctlz.i64(i64 %m, i1 true)
  %s = sub i64 64, %z
  %full = shl i64 1, %s
  %s2 = sub i64 %s, 2
  %part = shl i64 3, %s2
  %fits = icmp ule i64 %t, %part
  %s7 = sub i64 %s, 7
  %k2 = shl i64 %s7, 1
  %k1 = sub i64 %k2, 1
  %k3 = select i1 %fits, i64 %k1, i64 %k2
  %sz1 = select i1 %fits, i64 %part, i64 %full
  %is128 = icmp eq i64 %t, 128
  %k = select i1 %is128, i64 0, i64 %k3
  %size = select i1 %is128, i64 128, i64 %sz1
  %slot = add i64 %k, {abi.CTX_FREE}
  %head = getelementptr i64, ptr %ctx, i64 %slot
  %p = load ptr, ptr %head
  %empty = icmp eq ptr %p, null
  br i1 %empty, label %bump, label %reuse
reuse:
  %nx = getelementptr i8, ptr %p, i64 -48
  %next = load ptr, ptr %nx
  store ptr %next, ptr %head
  %c0 = getelementptr i8, ptr %p, i64 -64
  store i64 1, ptr %c0
  ret ptr %p
bump:
  {_field("pb", abi.CTX_BUMP)}
  {_field("pe", abi.CTX_END)}
  %b = load i64, ptr %pb
  %e = load i64, ptr %pe
  %nb = add i64 %b, %size
  %over = icmp ugt i64 %nb, %e
  br i1 %over, label %more, label %cut
more:
  %ok = call i1 @grow(ptr %ctx, i64 %size)
  br i1 %ok, label %bump, label %none
cut:
  store i64 %nb, ptr %pb
  %q = inttoptr i64 %b to ptr
  store i64 1, ptr %q
  %cq = getelementptr i8, ptr %q, i64 8
  store i64 %k, ptr %cq
  %data = getelementptr i8, ptr %q, i64 64
  ret ptr %data
none:
  ret ptr null
}}

; A chunk: word 0 the next chunk, word 1 its bytes. Moves on to a chunk with room for `size`, kept or new.
define internal i1 @grow(ptr %ctx, i64 %size) noinline {{
entry:
  {_field("pc", CTX_CURRENT)}
  {_field("ph", abi.CTX_CHUNKS)}
  %cur = load ptr, ptr %pc
  %first = icmp eq ptr %cur, null
  %link = select i1 %first, ptr %ph, ptr %cur
  %kept = load ptr, ptr %link
  %none = icmp eq ptr %kept, null
  br i1 %none, label %new, label %look
look:
  %pk = getelementptr i64, ptr %kept, i64 1
  %room = load i64, ptr %pk
  %need0 = add i64 %size, 128
  %enough = icmp uge i64 %room, %need0
  br i1 %enough, label %use, label %new
new:
  %want = add i64 %size, 128
  %least = icmp ult i64 %want, {CHUNK}
  %n = select i1 %least, i64 {CHUNK}, i64 %want
  %m = call ptr {at("malloc")}(i64 %n)
  %bad = icmp eq ptr %m, null
  br i1 %bad, label %fail, label %linkin
linkin:
  store ptr %kept, ptr %m
  %pm = getelementptr i64, ptr %m, i64 1
  store i64 %n, ptr %pm
  store ptr %m, ptr %link
  br label %use
use:
  %chunk = phi ptr [ %kept, %look ], [ %m, %linkin ]
  store ptr %chunk, ptr %pc
  call void @open_chunk(ptr %ctx, ptr %chunk)
  ret i1 true
fail:
  ret i1 false
}}

define internal void @open_chunk(ptr %ctx, ptr %chunk) {{
  %i = ptrtoint ptr %chunk to i64
  %p = getelementptr i64, ptr %chunk, i64 1
  %n = load i64, ptr %p
  %end = add i64 %i, %n
  %a = add i64 %i, 79
  %start = and i64 %a, -64
  {_field("pb", abi.CTX_BUMP)}
  {_field("pe", abi.CTX_END)}
  store i64 %start, ptr %pb
  store i64 %end, ptr %pe
  ret void
}}

define internal ptr @alloc_single(ptr %ctx, i64 %total) noinline {{
entry:
  {_field("cache", CTX_CACHE)}
  {_field("pcached", CTX_CACHED)}
  %half = lshr i64 %total, 1
  %most = add i64 %total, %half
  br label %scan
scan:
  %link = phi ptr [ %cache, %entry ], [ %pnext, %skip ]
  %p = load ptr, ptr %link
  %end = icmp eq ptr %p, null
  br i1 %end, label %fresh, label %try
try:
  %psz = getelementptr i8, ptr %p, i64 -24
  %sz = load i64, ptr %psz
  %ge = icmp uge i64 %sz, %total
  %le = icmp ule i64 %sz, %most
  %fit = and i1 %ge, %le
  %pnext = getelementptr i8, ptr %p, i64 -48
  br i1 %fit, label %take, label %skip
skip:
  br label %scan
take:
  %nx = load ptr, ptr %pnext
  store ptr %nx, ptr %link
  %cached = load i64, ptr %pcached
  %left = sub i64 %cached, %sz
  store i64 %left, ptr %pcached
  br label %enlist
fresh:
  %r0 = add i64 %total, 4159
  %rounded = and i64 %r0, -4096
  %raw = call ptr {at("malloc")}(i64 %rounded)
  %bad = icmp eq ptr %raw, null
  br i1 %bad, label %fail, label %made
fail:
  ret ptr null
made:
  %ri = ptrtoint ptr %raw to i64
  %a0 = add i64 %ri, 127
  %ai = and i64 %a0, -64
  %q = inttoptr i64 %ai to ptr
  %qraw = getelementptr i8, ptr %q, i64 -32
  store ptr %raw, ptr %qraw
  %qsz = getelementptr i8, ptr %q, i64 -24
  %usable = sub i64 %rounded, 64
  store i64 %usable, ptr %qsz
  %huge = icmp uge i64 %total, {HUGE_PAGES}
  br i1 %huge, label %advise, label %enlist
advise:
  %pg0 = add i64 %ri, 4095
  %pg = and i64 %pg0, -4096
  %last = add i64 %ri, %rounded
  %len = sub i64 %last, %pg
  %ignored = call i32 {at("madvise")}(i64 %pg, i64 %len, i32 14)
  br label %enlist
enlist:
  %d = phi ptr [ %p, %take ], [ %q, %made ], [ %q, %advise ]
  {_field("list", CTX_SINGLE)}
  %old = load ptr, ptr %list
  %dn = getelementptr i8, ptr %d, i64 -48
  store ptr %old, ptr %dn
  %dp = getelementptr i8, ptr %d, i64 -40
  store ptr null, ptr %dp
  %has = icmp ne ptr %old, null
  br i1 %has, label %back, label %done
back:
  %op = getelementptr i8, ptr %old, i64 -40
  store ptr %d, ptr %op
  br label %done
done:
  store ptr %d, ptr %list
  %dc = getelementptr i8, ptr %d, i64 -64
  store i64 1, ptr %dc
  %dk = getelementptr i8, ptr %d, i64 -56
  store i64 -1, ptr %dk
  ret ptr %d
}}

define internal void @free_single(ptr %ctx, ptr %d) noinline {{
entry:
  %dn = getelementptr i8, ptr %d, i64 -48
  %dp = getelementptr i8, ptr %d, i64 -40
  %next = load ptr, ptr %dn
  %prev = load ptr, ptr %dp
  {_field("list", CTX_SINGLE)}
  %isfirst = icmp eq ptr %prev, null
  %pn = getelementptr i8, ptr %prev, i64 -48
  %link = select i1 %isfirst, ptr %list, ptr %pn
  store ptr %next, ptr %link
  %has = icmp ne ptr %next, null
  br i1 %has, label %back, label %unlinked
back:
  %np = getelementptr i8, ptr %next, i64 -40
  store ptr %prev, ptr %np
  br label %unlinked
unlinked:
  %psz = getelementptr i8, ptr %d, i64 -24
  %sz = load i64, ptr %psz
  {_field("pcached", CTX_CACHED)}
  %cached = load i64, ptr %pcached
  %now = add i64 %cached, %sz
  %toomuch = icmp ugt i64 %now, {KEEP_CACHED}
  br i1 %toomuch, label %drop, label %keep
drop:
  %praw = getelementptr i8, ptr %d, i64 -32
  %raw = load ptr, ptr %praw
  call void {at("free")}(ptr %raw)
  ret void
keep:
  store i64 %now, ptr %pcached
  {_field("cache", CTX_CACHE)}
  %head = load ptr, ptr %cache
  store ptr %head, ptr %dn
  store ptr %d, ptr %cache
  ret void
}}

define void @retain(i64 %base) {{
entry:
  %zero = icmp eq i64 %base, 0
  br i1 %zero, label %out, label %some
some:
  %bit = and i64 %base, 1
  %object = icmp ne i64 %bit, 0
  br i1 %object, label %py, label %buffer
py:
  %oi = and i64 %base, -2
  %o = inttoptr i64 %oi to ptr
  tail call void {at("Py_IncRef")}(ptr %o)
  ret void
buffer:
  %ci = sub i64 %base, 64
  %c = inttoptr i64 %ci to ptr
  %n = load i64, ptr %c
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %c
  ret void
out:
  ret void
}}

define void @release(ptr %ctx, i64 %base) {{
entry:
  %zero = icmp eq i64 %base, 0
  br i1 %zero, label %out, label %some
some:
  %bit = and i64 %base, 1
  %object = icmp ne i64 %bit, 0
  br i1 %object, label %py, label %buffer
py:
  %oi = and i64 %base, -2
  %o = inttoptr i64 %oi to ptr
  tail call void {at("Py_DecRef")}(ptr %o)
  ret void
buffer:
  %p = inttoptr i64 %base to ptr
  %c = getelementptr i8, ptr %p, i64 -64
  %n = load i64, ptr %c
  %n1 = sub i64 %n, 1
  store i64 %n1, ptr %c
  %last = icmp eq i64 %n1, 0
  br i1 %last, label %free, label %out
free:
  %kp = getelementptr i8, ptr %p, i64 -56
  %k = load i64, ptr %kp
  %single = icmp slt i64 %k, 0
  br i1 %single, label %large, label %small
large:
  tail call void @free_single(ptr %ctx, ptr %p)
  ret void
small:
  %slot = add i64 %k, {abi.CTX_FREE}
  %head = getelementptr i64, ptr %ctx, i64 %slot
  %old = load ptr, ptr %head
  %nx = getelementptr i8, ptr %p, i64 -48
  store ptr %old, ptr %nx
  store ptr %p, ptr %head
  br label %out
out:
  ret void
}}

; ---- contexts (callers hold the GIL)

define ptr @context_acquire() {{
entry:
  %p = load ptr, ptr {at("pool")}
  %none = icmp eq ptr %p, null
  br i1 %none, label %make, label %take
take:
  %pn = getelementptr i64, ptr %p, i64 {CTX_NEXT}
  %next = load ptr, ptr %pn
  store ptr %next, ptr {at("pool")}
{_field("pk", CTX_CACHED, "%p")}
  %kept = load i64, ptr %pk
  %idle = load i64, ptr {at("idle")}
  %others = sub i64 %idle, %kept
  store i64 %others, ptr {at("idle")}
  ret ptr %p
make:
  %q = call ptr {at("malloc")}(i64 {8 * abi.CTX_WORDS})
  %bad = icmp eq ptr %q, null
  br i1 %bad, label %fail, label %fill
fill:
  call void @llvm.memset.inline.p0.i64(ptr align 8 %q, i8 0, i64 {8 * abi.CTX_WORDS}, i1 false)
  {_field("q0", abi.CTX_TABLE, "%q")}
  store ptr {at("table")}, ptr %q0
  {_field("q1", abi.CTX_KERNELS, "%q")}
  store ptr {at("kernels")}, ptr %q1
  {_field("q2", abi.CTX_INTERRUPT, "%q")}
  store ptr {at("interrupt")}, ptr %q2
  {_field("q3", abi.CTX_COUNTERS, "%q")}
  store ptr {at("counters")}, ptr %q3
  ret ptr %q
fail:
  ret ptr null
}}

define void @context_release(ptr %ctx) {{
entry:
  {_field("pc", CTX_CURRENT)}
  {_field("ps", CTX_SINGLE)}
  {_field("pk", CTX_CACHED)}
  %c = load i64, ptr %pc
  %s = load i64, ptr %ps
  %k = load i64, ptr %pk
  %cs = or i64 %c, %s
  %any = or i64 %cs, %k
  %clean = icmp eq i64 %any, 0
  br i1 %clean, label %pool, label %reset
reset:
  call void @context_reset(ptr %ctx)
  br label %pool
pool:
  {_field("pn", CTX_NEXT)}
  %kept = load i64, ptr %pk
  %others = load i64, ptr {at("idle")}
  %idle = add i64 %others, %kept
  store i64 %idle, ptr {at("idle")}
  %head = load ptr, ptr {at("pool")}
  store ptr %head, ptr %pn
  store ptr %ctx, ptr {at("pool")}
  ret void
}}

; Every buffer is dead now: free lists emptied, the first chunks kept, of single buffers the last ones freed are kept, which are warm and of sizes in use.
define void @context_reset(ptr %ctx) {{
entry:
  {_field("pf", abi.CTX_FREE)}
  call void @llvm.memset.inline.p0.i64(ptr align 8 %pf, i8 0, i64 {8 * SMALL_CLASSES}, i1 false)
  {_field("ph", abi.CTX_CHUNKS)}
  {_field("pc", CTX_CURRENT)}
  {_field("list", CTX_SINGLE)}
  {_field("cache", CTX_CACHE)}
  {_field("pcached", CTX_CACHED)}
  %first = load ptr, ptr %ph
  %nochunk = icmp eq ptr %first, null
  br i1 %nochunk, label %singles, label %rewind
rewind:
  store ptr %first, ptr %pc
  call void @open_chunk(ptr %ctx, ptr %first)
  %second = load ptr, ptr %first
  %alone = icmp eq ptr %second, null
  br i1 %alone, label %singles, label %trim
trim:
  %chunk = phi ptr [ %first, %rewind ], [ %nextchunk, %kept ]
  %sum = phi i64 [ 0, %rewind ], [ %total, %kept ]
  %pz = getelementptr i64, ptr %chunk, i64 1
  %z = load i64, ptr %pz
  %total = add i64 %sum, %z
  %nextchunk = load ptr, ptr %chunk
  %lastchunk = icmp eq ptr %nextchunk, null
  br i1 %lastchunk, label %singles, label %more
more:
  %pz2 = getelementptr i64, ptr %nextchunk, i64 1
  %z2 = load i64, ptr %pz2
  %with = add i64 %total, %z2
  %over = icmp ugt i64 %with, {KEEP}
  br i1 %over, label %cut, label %kept
kept:
  br label %trim
cut:
  %after = load ptr, ptr %nextchunk
  store ptr %after, ptr %chunk
  call void {at("free")}(ptr %nextchunk)
  %rest = icmp eq ptr %after, null
  br i1 %rest, label %singles, label %again
again:
  br label %cutmore
cutmore:
  %victim = phi ptr [ %after, %again ], [ %victim2, %cutmore ]
  %victim2 = load ptr, ptr %victim
  store ptr %victim2, ptr %chunk
  call void {at("free")}(ptr %victim)
  %finished = icmp eq ptr %victim2, null
  br i1 %finished, label %singles, label %cutmore
singles:
  %d = load ptr, ptr %list
  %nosingle = icmp eq ptr %d, null
  br i1 %nosingle, label %idle, label %freeone
freeone:
  call void @free_single(ptr %ctx, ptr %d)
  br label %singles
idle:
  %others = load i64, ptr {at("idle")}
  %room1 = sub i64 {KEEP_IDLE}, %others
  %little = icmp slt i64 %room1, {KEEP_LEAST}
  %most = select i1 %little, i64 {KEEP_LEAST}, i64 %room1
  br label %walk
walk:
  %link = phi ptr [ %cache, %idle ], [ %link, %shed ], [ %vn, %room ]
  %held = phi i64 [ 0, %idle ], [ %held, %shed ], [ %holding, %room ]
  %v = load ptr, ptr %link
  %nomore = icmp eq ptr %v, null
  br i1 %nomore, label %out, label %weigh
weigh:
  %vn = getelementptr i8, ptr %v, i64 -48
  %vz = getelementptr i8, ptr %v, i64 -24
  %vsize = load i64, ptr %vz
  %holding = add i64 %held, %vsize
  %heavy = icmp ugt i64 %holding, %most
  br i1 %heavy, label %shed, label %room
room:
  br label %walk
shed:
  %vnext = load ptr, ptr %vn
  store ptr %vnext, ptr %link
  %vr = getelementptr i8, ptr %v, i64 -32
  %vraw = load ptr, ptr %vr
  call void {at("free")}(ptr %vraw)
  br label %walk
out:
  store i64 %held, ptr %pcached
  ret void
}}
"""
