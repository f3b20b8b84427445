"""Bindings of MindSpore's resizing (nearest and bilinear, rank 4), after its CPU kernels: places are computed in float32, as there, and rows and columns
are taken at them. Sizes may be run-time values. Also flips and unstacking."""
from __future__ import annotations

from typing import Any

from bcvm.frameworks.mindspore_naming import MS, bind_primitive, floating, primitive
from bcvm.ops.definition import binds
from bcvm.ops.function_bindings import axes, const, none, sequence, sizes, taken
from bcvm.shapes.dim import Dim


def _places(b: Any, size: Dim) -> Any:
    """0, 1, ... as float32."""
    return b.cast(b.op("arange", 0, 1, dims=(size,), dtype="int64"), "float32")


def _index(b: Any, places: Any, have: Dim) -> Any:
    """int64 places within 0 .. have - 1."""
    return b.op("minimum", b.op("maximum", b.cast(places, "int64"), b.cast(0, "int64")), b.as_tensor(b.int_of(have - 1), "int64"))


def _ratio(b: Any, have: Dim, want: Dim) -> Any:
    """have / want as a float32 tensor of rank 0."""
    return b.op("truediv", b.cast(b.as_tensor(b.int_of(have), "int64"), "float32"), b.cast(b.as_tensor(b.int_of(want), "int64"), "float32"))


def _nearest(b: Any, x: Any, axis: int, want: Dim) -> Any:
    have = b.dims(x)[axis]
    if have is want:
        return x
    b.require("lt", Dim.const(0), want, "a resize to nothing")
    return taken(b, x, _index(b, b.op("floor", b.op("mul", _places(b, want), _ratio(b, have, want))), have), axis)


def _linear(b: Any, x: Any, axis: int, want: Dim, align_corners: bool) -> Any:
    have = b.dims(x)[axis]
    if have is want:
        return x
    b.require("lt", Dim.const(1 if align_corners else 0), want, "a resize to one place or none")
    if align_corners:
        at = b.op("mul", _places(b, want), _ratio(b, have - 1, want - 1))
    else:
        at = b.op("sub", b.op("mul", b.op("add", _places(b, want), 0.5), _ratio(b, have, want)), 0.5)
    floor = b.op("floor", at)
    share = b.op("sub", at, floor)
    low, high = (taken(b, x, _index(b, places, have), axis) for places in (floor, b.op("ceil", at)))
    if axis != b.rank(x) - 1:
        share = b.reshape(share, (want, *(Dim.const(1) for _ in range(b.rank(x) - 1 - axis))))
    return b.op("add", low, b.op("mul", b.op("sub", high, low), share))


def _resize(b: Any, x: Any, size: Any, mode: str, align_corners: bool) -> Any:
    if b.rank(floating(b, x, "resize")) != 4 or b.dtype(x) != "float32":
        return b.unsupported(f"a resize of rank {b.rank(x)} and dtype {b.dtype(x)}")
    wanted = sizes(b, sequence(b, size))
    if len(wanted) != 2:
        return b.unsupported("a resize to other than two sizes")
    for axis, want in zip((2, 3), wanted):
        x = _nearest(b, x, axis, want) if mode == "nearest" else _linear(b, x, axis, want, align_corners)
    return x


@binds("mindspore.ops.interpolate", "mindspore.ops.function.nn_func.interpolate", **MS)
def _interpolate(b: Any, x: Any, size: Any = None, scale_factor: Any = None, mode: Any = "nearest", align_corners: Any = None, recompute_scale_factor: Any = None) -> Any:
    how = const(b, mode)
    if how not in ("nearest", "bilinear") or not none(b, size) and not none(b, scale_factor) or none(b, size) and none(b, scale_factor):
        return b.unsupported(f"interpolate by mode {how!r} or with both sizes and scales")
    corners = False if none(b, align_corners) else bool(const(b, align_corners))
    if how == "nearest" and not none(b, align_corners) or b.rank(x) != 4:
        return b.unsupported("interpolate of this rank or with align_corners")
    if not none(b, size):
        size = sequence(b, size) if b.is_sequence(size) else [size, size]
    else:
        if none(b, recompute_scale_factor) or not const(b, recompute_scale_factor):
            return b.unsupported("interpolate by scales that are not made sizes")
        given = sequence(b, scale_factor) if b.is_sequence(scale_factor) else [scale_factor, scale_factor]
        scales = [const(b, s) for s in given]
        if any(s != int(s) for s in scales):
            return b.unsupported("interpolate by a scale that is no whole number")
        size = [d * int(s) for d, s in zip(b.dims(x)[2:], scales)]
    return _resize(b, x, size, how, corners)


@binds(*primitive("ResizeBilinearV2"), **MS)
def _resize_bilinear(b: Any, prim: Any, x: Any, size: Any) -> Any:
    if bool(prim.align_corners) == bool(prim.half_pixel_centers):
        return b.unsupported("ResizeBilinearV2 without half-pixel centers")
    return _resize(b, x, size, "bilinear", bool(prim.align_corners))


@binds(*primitive("ResizeNearestNeighborV2"), **MS)
def _resize_nearest(b: Any, prim: Any, x: Any, size: Any) -> Any:
    if prim.align_corners or prim.half_pixel_centers:
        return b.unsupported("ResizeNearestNeighborV2 with align_corners or half-pixel centers")
    return _resize(b, x, size, "nearest", False)


def _flip(b: Any, x: Any, on: Any) -> Any:
    """Rows in the other order: indices n-1 .. 0 along each axis."""
    for axis in sorted(on):
        n = b.dims(x)[axis]
        backwards = b.op("sub", b.as_tensor(b.int_of(n - 1), "int64"), b.op("arange", 0, 1, dims=(n,), dtype="int64"))
        x = taken(b, x, backwards, axis)
    return x


@binds("mindspore.ops.flip", "mindspore.mint.flip", method="flip", **MS)
def _flip_function(b: Any, x: Any, dims: Any = None, **options: Any) -> Any:
    return _flip(b, x, axes(b, options.pop("axis", dims), b.rank(x))) if not options else b.unsupported("flip with options")


binds(*primitive("ReverseV2"), **MS)(lambda b, prim, x: _flip(b, x, axes(b, prim.axis, b.rank(x))))


@binds(*primitive("Unstack"), **MS)
def _unstack(b: Any, prim: Any, x: Any) -> Any:
    axis = b.axis(prim.axis, b.rank(x))
    n = b.dims(x)[axis].value
    if n is None:
        return b.unsupported("Unstack of a number of parts that is not constant")
    return b.tuple([b.slice(x, [("slice", None, None, None)] * axis + [("index", i)]) for i in range(n)])


@binds("mindspore.numpy.roll", "mindspore.ops.roll", "mindspore.mint.roll", method="roll", **MS)
def _roll(b: Any, x: Any, shifts: Any = None, dims: Any = None, **options: Any) -> Any:
    """Both parts of each axis change places."""
    shifts, dims = options.pop("shift", shifts), options.pop("axis", dims)
    if options or none(b, dims) or none(b, shifts):
        return b.unsupported("a roll of all axes as one, or with options")
    on = list(axes(b, dims, b.rank(x)))
    by = [const(b, s) for s in (sequence(b, shifts) if b.is_sequence(shifts) else [shifts] * len(on))]
    if len(by) != len(on):
        return b.unsupported("a roll by other than one number for each axis")
    for axis, shift in zip(on, by):
        n = b.dims(x)[axis]
        b.require("lt", Dim.const(0), n, "a roll of nothing")
        first = b.int_of((n * abs(shift) - shift) % n)  # a non-negative number that is -shift modulo n
        whole = [("slice", None, None, None)] * axis
        x = b.op("concat", b.slice(x, [*whole, ("slice", first, None, None)]), b.slice(x, [*whole, ("slice", None, first, None)]), axis=axis)
    return x


bind_primitive("Identity", lambda b, x: x)


@binds("mindspore.ops.expand_as", "mindspore.ops.function.array_func.expand_as", method="expand_as", **MS)
def _expand_as(b: Any, x: Any, other: Any = None, **options: Any) -> Any:
    other = options.pop("input", other)
    return b.op("broadcast_to", x, dims=b.dims(other)) if b.is_tensor(other) and not options else b.unsupported("expand_as with options")
