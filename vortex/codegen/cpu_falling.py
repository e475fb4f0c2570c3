"""L0 of a depthwise convolution by 3x3 with stride 1 or 2 on CPUs with 32 vector registers: a tile walks down the rows.

A vector of input is loaded once and multiplied by all taps that see it, for the outputs of three rows, or of two with
stride 2, whose sums are all in registers: a row's are stored when the third row of its filter has gone by. A tile that
makes one row of outputs after the other loads every input three times, which shows where pixels lie in few sets of the
first cache.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import fetch, masked_load, masked_store

TAPS = 3
FALLING = tuple((stride, pixels) for stride in (1, 2) for pixels in (1, 2, 4, 7))
"""Strides, and pixels of a row that a tile holds: with seven, sums, taps and one input take up 31 registers."""
REGISTERS = 32
AHEAD = 3
"""Rows of input that a tile asks for before it reads them: as long as a line takes from the outermost cache."""


def falling_tiles(registers: int) -> tuple[tuple[int, int], ...]:
    """Those of a core with so many vector registers."""
    return FALLING if registers >= REGISTERS else ()


def falling_symbol(stride: int, pixels: int) -> str:
    return f"vortex_falling_s{stride}_{pixels}"


def falling_kernel(stride: int, pixels: int, lanes: int) -> tirx.PrimFunc:
    """Y[o, i, c] = sum over r and s of X[o * stride + r, i * stride + s, c] W[r, s, c], o of `rows`, c of `channels`.

    `symbol(x, w, y, channels, rows, top, bottom, first, end, x_r, w_r, w_s, ldx, y_r, ldy, late, waits)`, strides in
    elements; input rows before `top` and from `bottom` on, and columns before `first` and from `end` on, are zeros that
    are not read. A sum is added up row by row of its filter, and along each, as by `cpu_depthwise.sliding_kernel`.
    With stride 1 and `waits`, sums wait in `late`, which has room for a vector of each output, until the next channels
    are made: a load waits for a store before it that may have written what it reads, as far as the last twelve bits of
    both addresses tell.
    """
    columns, kept = (pixels - 1) * stride + TAPS, -(-TAPS // stride)
    turns = kept * stride

    def sums(turn: Any, r: int) -> Any:
        """Where the sums begin that row r of the filter adds to: rows of them take turns."""
        return T.truncmod(T.truncdiv(turn + turns - r, stride), kept) * pixels

    def sees(turn: Any, r: int) -> Any:
        return T.truncmod(turn + turns - r, stride) == 0

    @T.inline
    def multiply(X: Any, acc: Any, tap: Any, seen: Any, h: Any, turn: Any, j: Any, wide: Any, first: Any, end: Any,
                 inside: bool) -> None:  # fmt: skip
        for q in T.unroll(columns):
            if T.Or(inside, T.And(T.Cast("int64", q) >= first, T.Cast("int64", q) < end)):
                seen[T.ramp(0, 1, lanes)] = masked_load(
                    T.address_of(X[h, q, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                )
                for r, i in T.grid(TAPS, pixels):
                    if T.And(sees(turn, r), T.And(q - i * stride >= 0, q - i * stride < TAPS)):
                        acc[T.ramp((sums(turn, r) + i) * lanes, 1, lanes)] = T.fma(
                            seen[T.ramp(0, 1, lanes)],
                            tap[T.ramp((r * TAPS + q - i * stride) * lanes, 1, lanes)],
                            acc[T.ramp((sums(turn, r) + i) * lanes, 1, lanes)],
                        )

    def direct(waits: Any) -> Any:
        return waits == 0 if stride == 1 else T.bool(True)

    def done(turn: Any, i: Any) -> Any:
        """Of the sums that the last row of the filter was added to."""
        return T.ramp((sums(turn, TAPS - 1) + i) * lanes, 1, lanes)

    def place(o: Any, i: Any) -> Any:
        """Of the sums of an output that wait."""
        return T.ramp((o * pixels + i) * lanes, 1, lanes)

    @T.inline
    def store(value: Any, Y: Any, o: Any, i: Any, channel: Any, wide: Any) -> None:
        T.evaluate(masked_store(value, T.address_of(Y[o, i, channel]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes)))

    @T.inline
    def give(Y: Any, L: Any, acc: Any, turn: Any, o: Any, j: Any, wide: Any, at_once: Any) -> None:
        if at_once:
            for i in T.unroll(pixels):
                store(acc[done(turn, i)], Y, o, i, j * lanes, wide)
        else:
            if j > 0:
                for i in T.unroll(pixels):
                    Y[o, i, T.ramp((j - 1) * lanes, 1, lanes)] = L[place(o, i)]
            for i in T.unroll(pixels):
                L[place(o, i)] = acc[done(turn, i)]

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        w: T.handle,
        y: T.handle,
        channels: T.int64,
        rows: T.int64,
        top: T.int64,
        bottom: T.int64,
        first: T.int64,
        end: T.int64,
        x_r: T.int64,
        w_r: T.int64,
        w_s: T.int64,
        ldx: T.int64,
        y_r: T.int64,
        ldy: T.int64,
        late: T.handle,
        waits: T.int32,
    ):
        T.func_attr({"global_symbol": falling_symbol(stride, pixels), "tirx.noalias": True})
        X = T.match_buffer(
            x, ((rows - 1) * stride + TAPS, columns, channels), "float32", align=4, strides=[x_r, ldx, T.int64(1)]
        )
        W = T.match_buffer(w, (TAPS, TAPS, channels), "float32", align=4, strides=[w_r, w_s, T.int64(1)])
        Y = T.match_buffer(y, (rows, pixels, channels), "float32", align=4, strides=[y_r, ldy, T.int64(1)])
        L = T.match_buffer(late, (rows * pixels * lanes,), "float32", align=64)
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((kept * pixels * lanes,), "float32", scope="local")
            tap = T.sblock_alloc_buffer((TAPS * TAPS * lanes,), "float32", scope="local")
            seen = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for j in T.serial(T.truncdiv(channels + lanes - 1, lanes)):
                wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(lanes), channels - j * lanes))
                for r, s in T.grid(TAPS, TAPS):
                    tap[T.ramp((r * TAPS + s) * lanes, 1, lanes)] = masked_load(
                        T.address_of(W[r, s, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                    )
                for i in T.unroll(kept * pixels):
                    acc[T.ramp(i * lanes, 1, lanes)] = T.broadcast(T.float32(0), lanes)
                for block in T.serial(T.truncdiv((rows - 1) * stride + TAPS + turns - 1, T.int64(turns))):
                    for turn in T.unroll(turns):
                        h: T.let[T.int64] = block * turns + turn
                        if h < (rows - 1) * stride + TAPS:
                            if T.And(h >= top, h < bottom):
                                for q in T.unroll(columns):
                                    T.evaluate(fetch(T.address_of(X[h + AHEAD, q, j * lanes]), cache=2))
                                if T.And(first <= 0, end >= columns):
                                    multiply(X, acc, tap, seen, h, turn, j, wide, first, end, T.bool(True))
                                else:
                                    multiply(X, acc, tap, seen, h, turn, j, wide, first, end, T.bool(False))
                            if sees(turn, TAPS - 1):
                                if h >= TAPS - 1:
                                    give(Y, L, acc, turn, T.truncdiv(h - (TAPS - 1), stride), j, wide, direct(waits))
                                for i in T.unroll(pixels):
                                    acc[done(turn, i)] = T.broadcast(T.float32(0), lanes)
            if T.Not(direct(waits)):
                last: T.let[T.int64] = T.truncdiv(channels - 1, T.int64(lanes)) * lanes
                for o in T.serial(rows):
                    for i in T.unroll(pixels):
                        store(L[place(o, i)], Y, o, i, last, T.Cast("int32", channels - last))

    return kernel
