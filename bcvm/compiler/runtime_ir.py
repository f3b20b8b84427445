"""LLVM IR of the run-time support: arena and contexts, dimension collapse, thread pool, array creation, signals. Compiled once per process."""
from __future__ import annotations

from bcvm.compiler import abi, arena_ir, pool_ir, restride_ir
from bcvm.compiler.modules import constant


def module(addresses: dict[str, int]) -> str:
    """addresses: malloc, free, madvise, Py_IncRef, Py_DecRef, PyErr_Clear, PyEval_SaveThread, PyEval_RestoreThread, PyArray_New, PyArray_SetBaseObject, array_type,
    memcpy, memset, syscall, pthread_create, pthread_detach, pthread_sigmask, table, kernels, interrupt, counters, pool (a word: head of the list of idle
    contexts), idle (a word: bytes of single buffers that they keep), threads (the thread pool's block, see pool_ir)."""

    def at(name: str) -> str:
        return constant(addresses[name])

    return f"""
declare i64 @llvm.ctlz.i64(i64, i1)
declare void @llvm.memset.inline.p0.i64(ptr, i8, i64, i1)

{arena_ir.text(at)}
{restride_ir.TEXT}
; ---- collapse: from the innermost dim outwards, a dim joins the one inside it if that holds for all operands

define void @collapse(ptr %ops, ptr %sizes, i64 %count, i64 %rank) {{
entry:
  %words = add i64 %rank, 1
  br label %dims
dims:
  %d1 = phi i64 [ %rank, %entry ], [ %d, %step ]
  %w = phi i64 [ %rank, %entry ], [ %wn, %step ]
  %end = icmp eq i64 %d1, 0
  br i1 %end, label %lead, label %dim
dim:
  %d = sub i64 %d1, 1
  %ps = getelementptr i64, ptr %sizes, i64 %d
  %s = load i64, ptr %ps
  %one = icmp eq i64 %s, 1
  br i1 %one, label %step, label %real
real:
  %nothing = icmp eq i64 %w, %rank
  br i1 %nothing, label %place, label %compare
compare:
  %pw = getelementptr i64, ptr %sizes, i64 %w
  %sw = load i64, ptr %pw
  br label %each
each:
  %o = phi i64 [ 0, %compare ], [ %o1, %same ]
  %all = icmp eq i64 %o, %count
  br i1 %all, label %join, label %test
test:
  %row = mul i64 %o, %words
  %cd0 = add i64 %row, 1
  %cd = add i64 %cd0, %d
  %cw = add i64 %cd0, %w
  %pd = getelementptr i64, ptr %ops, i64 %cd
  %po = getelementptr i64, ptr %ops, i64 %cw
  %sd = load i64, ptr %pd
  %so = load i64, ptr %po
  %span = mul i64 %so, %sw
  %contiguous = icmp eq i64 %sd, %span
  br i1 %contiguous, label %same, label %place
same:
  %o1 = add i64 %o, 1
  br label %each
join:
  %joined = mul i64 %sw, %s
  store i64 %joined, ptr %pw
  br label %step
place:
  %w1 = sub i64 %w, 1
  %pt = getelementptr i64, ptr %sizes, i64 %w1
  store i64 %s, ptr %pt
  br label %move
move:
  %m = phi i64 [ 0, %place ], [ %m1, %moved ]
  %done = icmp eq i64 %m, %count
  br i1 %done, label %step, label %moved
moved:
  %mrow = mul i64 %m, %words
  %mr = add i64 %mrow, 1
  %from = add i64 %mr, %d
  %to = add i64 %mr, %w1
  %pfrom = getelementptr i64, ptr %ops, i64 %from
  %pto = getelementptr i64, ptr %ops, i64 %to
  %sv = load i64, ptr %pfrom
  store i64 %sv, ptr %pto
  %m1 = add i64 %m, 1
  br label %move
step:
  %wn = phi i64 [ %w, %dim ], [ %w, %join ], [ %w1, %move ]
  br label %dims
lead:
  %l = phi i64 [ %w, %dims ], [ %l1, %cleared ]
  %stop = icmp eq i64 %l, 0
  br i1 %stop, label %out, label %clear
clear:
  %l1 = sub i64 %l, 1
  %pl = getelementptr i64, ptr %sizes, i64 %l1
  store i64 1, ptr %pl
  br label %zero
zero:
  %q = phi i64 [ 0, %clear ], [ %q1, %zeroed ]
  %qend = icmp eq i64 %q, %count
  br i1 %qend, label %cleared, label %zeroed
zeroed:
  %qrow = mul i64 %q, %words
  %qr = add i64 %qrow, 1
  %qi = add i64 %qr, %l1
  %pq = getelementptr i64, ptr %ops, i64 %qi
  store i64 0, ptr %pq
  %q1 = add i64 %q, 1
  br label %zero
cleared:
  br label %lead
out:
  ret void
}}

; ---- an epilogue on one block: its operands moved to the block, and the last two dims joined where that holds for all

define i32 @finish(ptr %ctx, ptr %epilogue, ptr %place) {{
entry:
  %kernel = load ptr, ptr %epilogue
  %pc = getelementptr i64, ptr %epilogue, i64 1
  %count = load i64, ptr %pc
  %pr = getelementptr i64, ptr %epilogue, i64 2
  %rank = load i64, ptr %pr
  %ph = getelementptr i64, ptr %epilogue, i64 3
  %hidden = load i64, ptr %ph
  %starts = getelementptr i64, ptr %place, i64 %hidden
  %dims = add i64 %rank, %hidden
  %given = getelementptr i64, ptr %epilogue, i64 {abi.EPILOGUE_WORDS}
  %each = add i64 %rank, 1
  %words = mul i64 %each, %count
  %all = add i64 %words, %rank
  %own = alloca i64, i64 %all
  %sizes = getelementptr i64, ptr %own, i64 %words
  %counts = getelementptr i64, ptr %starts, i64 %dims
  %bytes = mul i64 %rank, 8
  call void {at("memcpy")}(ptr %sizes, ptr %counts, i64 %bytes)
  %last = sub i64 %rank, 1
  %plast = getelementptr i64, ptr %sizes, i64 %last
  %n = load i64, ptr %plast
  %before = sub i64 %rank, 2
  %pbefore = getelementptr i64, ptr %sizes, i64 %before
  %m = load i64, ptr %pbefore
  br label %operand
operand:
  %o = phi i64 [ 0, %entry ], [ %o1, %moved ]
  %joins = phi i1 [ true, %entry ], [ %joins1, %moved ]
  %first = mul i64 %o, %each
  %from = getelementptr i64, ptr %given, i64 %first
  %to = getelementptr i64, ptr %own, i64 %first
  %data = load i64, ptr %from
  br label %dim
dim:
  %d = phi i64 [ 0, %operand ], [ %d1, %dim ]
  %at = phi i64 [ %data, %operand ], [ %at1, %dim ]
  %outer = phi i64 [ 0, %operand ], [ %stride, %dim ]
  %d1 = add i64 %d, 1
  %ps = getelementptr i64, ptr %from, i64 %d1
  %stride = load i64, ptr %ps
  %pt = getelementptr i64, ptr %to, i64 %d1
  store i64 %stride, ptr %pt
  %pstart = getelementptr i64, ptr %starts, i64 %d
  %start = load i64, ptr %pstart
  %gone = mul i64 %stride, %start
  %at1 = add i64 %at, %gone
  %more = icmp slt i64 %d1, %rank
  br i1 %more, label %dim, label %moved
moved:
  store i64 %at1, ptr %to
  %span = mul i64 %stride, %n
  %follows = icmp eq i64 %outer, %span
  %joins1 = and i1 %joins, %follows
  %o1 = add i64 %o, 1
  %next = icmp slt i64 %o1, %count
  br i1 %next, label %operand, label %run
run:
  br i1 %joins1, label %join, label %go
join:
  %nm = mul i64 %n, %m
  store i64 %nm, ptr %plast
  store i64 1, ptr %pbefore
  br label %go
go:
  %code = call i32 %kernel(ptr %ctx, ptr %own, ptr %sizes, i64 0, i64 -1)
  ret i32 %code
}}

; ---- kernels that run for long
{pool_ir.text(at, addresses["threads"])}

define void @breathe(ptr %ctx) {{
  %at = getelementptr i64, ptr %ctx, i64 {abi.CTX_ROUNDS}
  store i64 {abi.ROUNDS}, ptr %at
  %thread = call ptr {at("PyEval_SaveThread")}()
  call void {at("PyEval_RestoreThread")}(ptr %thread)
  ret void
}}

; ---- arrays

define ptr @new_array(ptr %ctx, i64 %number, i64 %rank, ptr %sizes) {{
  %nd = trunc i64 %rank to i32
  %tn = trunc i64 %number to i32
  %a = call ptr {at("PyArray_New")}(ptr {at("array_type")}, i32 %nd, ptr %sizes, i32 %tn, ptr null, ptr null, i32 0, i32 0, ptr null)
  %bad = icmp eq ptr %a, null
  br i1 %bad, label %clear, label %out
clear:
  call void {at("PyErr_Clear")}()
  ret ptr null
out:
  ret ptr %a
}}

define ptr @view_array(ptr %ctx, i64 %number, i64 %rank, ptr %sizes, ptr %strides, ptr %data, ptr %owner) {{
entry:
  %pt = getelementptr i8, ptr %owner, i64 {abi.OB_TYPE}
  %type = load ptr, ptr %pt
  %array = icmp eq ptr %type, {at("array_type")}
  br i1 %array, label %ask, label %make
ask:
  %pf = getelementptr i8, ptr %owner, i64 {abi.ARRAY_FLAGS}
  %f = load i32, ptr %pf
  %wf = and i32 %f, 1024
  br label %make
make:
  %flags = phi i32 [ 1024, %entry ], [ %wf, %ask ]
  %nd = trunc i64 %rank to i32
  %tn = trunc i64 %number to i32
  %a = call ptr {at("PyArray_New")}(ptr {at("array_type")}, i32 %nd, ptr %sizes, i32 %tn, ptr %strides, ptr %data, i32 0, i32 %flags, ptr null)
  %bad = icmp eq ptr %a, null
  br i1 %bad, label %clear, label %own
own:
  call void {at("Py_IncRef")}(ptr %owner)
  %r = call i32 {at("PyArray_SetBaseObject")}(ptr %a, ptr %owner)
  %failed = icmp ne i32 %r, 0
  br i1 %failed, label %drop, label %out
drop:
  call void {at("Py_DecRef")}(ptr %a)
  br label %clear
clear:
  call void {at("PyErr_Clear")}()
  ret ptr null
out:
  ret ptr %a
}}

; ---- signals: the handler that was there before runs too

define void @on_signal(i32 %number, ptr %info, ptr %frame) {{
  store i64 1, ptr {at("interrupt")}
  %old = load ptr, ptr {at("old_handler")}
  call void %old(i32 %number, ptr %info, ptr %frame)
  ret void
}}
"""
