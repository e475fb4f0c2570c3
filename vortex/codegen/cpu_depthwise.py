"""L0 of a depthwise convolution on CPUs: vectors run along channels, each with a filter of its own.

A register tile holds `pixels` outputs of one vector of channels. Usual filters have tiles of their own: a row of input
is loaded once, and each vector of it multiplied by all taps that see it, which are kept in registers; columns in the
padding are left out. Others take their taps from memory one after the other.

Groups of a few channels and as many filters fill vectors in the same way: several groups are in one, and each channel
of a group is spread over its lanes by a permutation before it is multiplied.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import PERMUTE, masked_load, masked_store, placed, vector_intrinsics

PIXELS = (1, 2, 3, 4, 5, 6, 7, 8)


SLIDING = tuple(
    (taps, stride, pixels) for taps, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1)) for pixels in (1, 2, 4, 7, 8)
)
"""Width of a filter without dilation, stride, and pixels of the tiles of their own."""
GROUPED_SLIDING = tuple(tile for tile in SLIDING if tile[0] == 3)
"""The same where groups have several channels."""
WHOLE = 7
"""Tiles of so many pixels have a second body, for those that lie wholly inside of the input: most of a row. What a
tile sees is then loaded without a branch for each column, a tenth faster at 112 x 112 x 32 (measured on Zen 5)."""


def depthwise_symbol(pixels: int, grouped: bool = False) -> str:
    return f"vortex_{'grouped' if grouped else 'depthwise'}_{pixels}"


def sliding_symbol(taps: int, stride: int, pixels: int, grouped: bool = False) -> str:
    return f"vortex_{'grouped_' if grouped else ''}sliding_{taps}s{stride}_{pixels}"


def spread(vector: Any, group: Any, channel: Any, lanes: int) -> Any:
    """`channel` of every group of `group` lanes, a power of two, in all lanes of that group."""
    group, channel = (T.broadcast(T.Cast("int32", number), lanes) for number in (group, channel))
    first = T.bitwise_and(T.ramp(0, 1, lanes), T.broadcast(0, lanes) - group)
    return T.call_llvm_pure_intrin(f"float32x{lanes}", PERMUTE[lanes], vector, first + channel)


def sliding_kernel(taps: int, stride: int, pixels: int, lanes: int, grouped: bool = False) -> tirx.PrimFunc:
    """Y[i, c] = sum over r and s of X[r * x_r + (i * stride + s) * ldx + c] W[r * w_r + s * w_s + c], c of `channels`.

    `symbol(x, w, y, channels, taps_r, first, end, x_r, w_r, w_s, ldx, ldy, group, w_c)`, strides in elements; input
    columns before `first` and from `end` on are zeros that are not read. If `grouped`, also the sum over every channel
    g of c's `group`: of X that of its first channel + g, of W that of g * w_c.
    """
    columns, whole = (pixels - 1) * stride + taps, pixels >= WHOLE and not grouped

    @T.inline
    def multiply(
        X: Any, W: Any, acc: Any, tap: Any, seen: Any, taps_r: Any, group: Any, j: Any, wide: Any, first: Any, end: Any,
        inside: bool,
    ) -> None:  # fmt: skip
        for r, g in T.grid(taps_r, group if grouped else T.int64(1)):
            for s in T.unroll(taps):
                tap[T.ramp(s * lanes, 1, lanes)] = masked_load(
                    T.address_of(W[r, g, s, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                )
            for q in T.unroll(columns):
                if T.Or(inside, T.And(T.Cast("int64", q) >= first, T.Cast("int64", q) < end)):
                    seen[T.ramp(0, 1, lanes)] = masked_load(
                        T.address_of(X[r, q, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                    )
                    if grouped:
                        seen[T.ramp(0, 1, lanes)] = spread(seen[T.ramp(0, 1, lanes)], group, g, lanes)
                    for i in T.unroll(pixels):
                        if T.And(q - i * stride >= 0, q - i * stride < taps):
                            acc[T.ramp(i * lanes, 1, lanes)] = T.fma(
                                seen[T.ramp(0, 1, lanes)],
                                tap[T.ramp((q - i * stride) * lanes, 1, lanes)],
                                acc[T.ramp(i * lanes, 1, lanes)],
                            )

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        w: T.handle,
        y: T.handle,
        channels: T.int64,
        taps_r: T.int64,
        first: T.int64,
        end: T.int64,
        x_r: T.int64,
        w_r: T.int64,
        w_s: T.int64,
        ldx: T.int64,
        ldy: T.int64,
        group: T.int64,
        w_c: T.int64,
    ):
        T.func_attr({"global_symbol": sliding_symbol(taps, stride, pixels, grouped), "tirx.noalias": True})
        X = T.match_buffer(x, (taps_r, columns, channels), "float32", align=4, strides=[x_r, ldx, T.int64(1)])
        W = T.match_buffer(w, (taps_r, group, taps, channels), "float32", align=4, strides=[w_r, w_c, w_s, T.int64(1)])
        Y = T.match_buffer(y, (pixels, channels), "float32", align=4, strides=[ldy, T.int64(1)])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((pixels * lanes,), "float32", scope="local")
            tap = T.sblock_alloc_buffer((taps * lanes,), "float32", scope="local")
            seen = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for j in T.serial(T.truncdiv(channels + lanes - 1, lanes)):
                wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(lanes), channels - j * lanes))
                for i in T.unroll(pixels):
                    acc[T.ramp(i * lanes, 1, lanes)] = T.broadcast(T.float32(0), lanes)
                if T.And(whole, T.And(first <= 0, end >= columns)):
                    multiply(X, W, acc, tap, seen, taps_r, group, j, wide, first, end, T.bool(True))
                else:
                    multiply(X, W, acc, tap, seen, taps_r, group, j, wide, first, end, T.bool(False))
                for i in T.unroll(pixels):
                    T.evaluate(
                        masked_store(
                            acc[T.ramp(i * lanes, 1, lanes)],
                            T.address_of(Y[i, j * lanes]),
                            T.ramp(0, 1, lanes) < T.broadcast(wide, lanes),
                        )
                    )

    return kernel


def depthwise_kernel(pixels: int, lanes: int, grouped: bool = False) -> tirx.PrimFunc:
    """Y[i, c] = sum over r and s of X[r * x_r + s * x_s + i * ldx + c] W[r * w_r + s * w_s + c] for c of `channels`.

    `symbol(x, w, y, channels, taps_r, taps_s, x_r, x_s, w_r, w_s, ldx, ldy, group, w_c)`, strides in elements; if
    `grouped`, also the sum over the channels of a group, as `sliding_kernel` has it.
    """

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        w: T.handle,
        y: T.handle,
        channels: T.int64,
        taps_r: T.int64,
        taps_s: T.int64,
        x_r: T.int64,
        x_s: T.int64,
        w_r: T.int64,
        w_s: T.int64,
        ldx: T.int64,
        ldy: T.int64,
        group: T.int64,
        w_c: T.int64,
    ):
        T.func_attr({"global_symbol": depthwise_symbol(pixels, grouped), "tirx.noalias": True})
        X = T.match_buffer(
            x, (taps_r, taps_s, pixels, channels), "float32", align=4, strides=[x_r, x_s, ldx, T.int64(1)]
        )
        W = T.match_buffer(
            w, (taps_r, group, taps_s, channels), "float32", align=4, strides=[w_r, w_c, w_s, T.int64(1)]
        )
        Y = T.match_buffer(y, (pixels, channels), "float32", align=4, strides=[ldy, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((pixels, lanes), "float32", scope="local")
            tap = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            seen = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for j in T.serial(T.truncdiv(channels + lanes - 1, lanes)):
                for l in T.vectorized(lanes):
                    with T.sblock("mask"):
                        vj = T.axis.spatial(T.truncdiv(channels + lanes - 1, lanes), j)
                        v = T.axis.spatial(lanes, l)
                        mask[v] = T.Select(T.Cast("int64", v) < channels - vj * lanes, T.int32(1), T.int32(0))
                for i in range(pixels):
                    for l in range(lanes):
                        with T.sblock("zero"):
                            vi, v = T.axis.remap("SS", [i, l])
                            acc[vi, v] = T.float32(0)
                for r, g, s in T.grid(taps_r, group if grouped else T.int64(1), taps_s):
                    for l in range(lanes):
                        with T.sblock("fetch"):
                            vj = T.axis.spatial(T.truncdiv(channels + lanes - 1, lanes), j)
                            vr, vg, vs, v = T.axis.remap("SSSS", [r, g, s, l])
                            tap[v] = T.if_then_else(mask[v] != 0, W[vr, vg, vs, vj * lanes + v], T.float32(0))
                    for i in range(pixels):
                        for l in range(lanes):
                            with T.sblock("see"):
                                vj = T.axis.spatial(T.truncdiv(channels + lanes - 1, lanes), j)
                                vr, vs, vi, v = T.axis.remap("SSSS", [r, s, i, l])
                                seen[v] = T.if_then_else(mask[v] != 0, X[vr, vs, vi, vj * lanes + v], T.float32(0))
                        with T.sblock("compute"):
                            vi, vg = T.axis.remap("SS", [i, g])
                            T.reads(acc[vi, 0:lanes], seen[0:lanes], tap[0:lanes])
                            T.writes(acc[vi, 0:lanes])
                            if grouped:
                                seen[T.ramp(0, 1, lanes)] = spread(seen[T.ramp(0, 1, lanes)], group, vg, lanes)
                            acc[vi, T.ramp(0, 1, lanes)] = T.fma(
                                seen[T.ramp(0, 1, lanes)], tap[T.ramp(0, 1, lanes)], acc[vi, T.ramp(0, 1, lanes)]
                            )
                for i in range(pixels):
                    for l in range(lanes):
                        with T.sblock("store"):
                            vj = T.axis.spatial(T.truncdiv(channels + lanes - 1, lanes), j)
                            vi, v = T.axis.remap("SS", [i, l])
                            Y[vi, vj * lanes + v] = T.if_then_else(mask[v] != 0, acc[vi, v], T.float32(0))

    names = vector_intrinsics(lanes)
    stages = (("zero", names.zero, 1), ("fetch", names.load, 4), ("see", names.load, 4), ("store", names.store, 1))
    return placed(kernel, stages).mod["main"]
