"""LLVM IR of `restride`: the strides with which memory can be read in other sizes, if there are such (see abi: TABLE).

From the innermost dims outwards, old dims that lie one behind the other make a run; the new dims must split at the runs' ends.
The same sizes are views as in NumPy's _attempt_nocopy_reshape; the way is that of PyTorch's computeStride. A tensor without elements is
no case for it: false.
"""
from __future__ import annotations

TEXT = """
define i1 @restride(ptr %from, i64 %rank, ptr %to, i64 %newrank) {
entry:
  %strides = getelementptr i64, ptr %from, i64 %rank
  %newstrides = getelementptr i64, ptr %to, i64 %newrank
  br label %run
run:                                                  ; a run ends, inwards, before dim %d; new dims from %v on have their strides
  %d = phi i64 [ %rank, %entry ], [ %first, %split ]
  %v = phi i64 [ %newrank, %entry ], [ %w, %split ]
  %none = icmp eq i64 %d, 0
  br i1 %none, label %ones, label %begin
begin:
  %last = sub i64 %d, 1
  %pbase = getelementptr i64, ptr %strides, i64 %last
  %base = load i64, ptr %pbase
  br label %dim
dim:                                                  ; dims %first..%d are one run of %n elements
  %first = phi i64 [ %last, %begin ], [ %before, %joins ]
  %n0 = phi i64 [ 1, %begin ], [ %n, %joins ]
  %psize = getelementptr i64, ptr %from, i64 %first
  %size = load i64, ptr %psize
  %n = mul i64 %n0, %size
  %outermost = icmp eq i64 %first, 0
  br i1 %outermost, label %fill, label %look
look:
  %before = sub i64 %first, 1
  %pouter = getelementptr i64, ptr %from, i64 %before
  %outer = load i64, ptr %pouter
  %pstride = getelementptr i64, ptr %strides, i64 %before
  %stride = load i64, ptr %pstride
  %span = mul i64 %n, %base
  %follows = icmp eq i64 %stride, %span
  %single = icmp eq i64 %outer, 1
  %on = or i1 %follows, %single
  br i1 %on, label %joins, label %fill
joins:
  br label %dim
fill:                                                 ; new dims of the run
  %w = phi i64 [ %v, %dim ], [ %v, %look ], [ %next, %set ]
  %m = phi i64 [ 1, %dim ], [ 1, %look ], [ %more, %set ]
  %all = icmp eq i64 %w, 0
  br i1 %all, label %split, label %new
new:
  %next = sub i64 %w, 1
  %pnew = getelementptr i64, ptr %to, i64 %next
  %newsize = load i64, ptr %pnew
  %short = icmp slt i64 %m, %n
  %one = icmp eq i64 %newsize, 1
  %take = or i1 %short, %one
  br i1 %take, label %set, label %split
set:
  %pset = getelementptr i64, ptr %newstrides, i64 %next
  %step = mul i64 %m, %base
  store i64 %step, ptr %pset
  %more = mul i64 %m, %newsize
  br label %fill
split:
  %fits = icmp eq i64 %m, %n
  br i1 %fits, label %run, label %no
ones:                                                 ; of an operand of rank 0
  %left = phi i64 [ %v, %run ], [ %rest, %still ]
  %done = icmp eq i64 %left, 0
  br i1 %done, label %yes, label %still
still:
  %rest = sub i64 %left, 1
  %pone = getelementptr i64, ptr %newstrides, i64 %rest
  store i64 0, ptr %pone
  %ponesize = getelementptr i64, ptr %to, i64 %rest
  %onesize = load i64, ptr %ponesize
  %isone = icmp eq i64 %onesize, 1
  br i1 %isone, label %ones, label %no
yes:
  ret i1 true
no:
  ret i1 false
}
"""
