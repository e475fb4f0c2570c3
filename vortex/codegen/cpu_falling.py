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
FALLING = (1, 2, 4, 7)
"""Pixels of a row that a tile holds: with seven, sums, taps and one input take up 31 registers."""
REGISTERS = 32
AHEAD = 3
"""Rows of input that a tile asks for before it reads them: as long as a line takes from the outermost cache."""


def falling_tiles(registers: int) -> tuple[int, ...]:
    """Those of a core with so many vector registers."""
    return FALLING if registers >= REGISTERS else ()


def falling_symbol(pixels: int) -> str:
    return f"vortex_falling_{pixels}"


def falling_kernel(pixels: int, lanes: int) -> tirx.PrimFunc:
    """Y[o, i, c] = sum over r and s of X[o + r, i + s, c] W[r, s, c], o of `rows`, c of `channels`.

    `symbol(x, w, y, channels, rows, top, bottom, first, end, x_r, w_r, w_s, ldx, y_r, ldy)`, strides in elements;
    input rows before `top` and from `bottom` on, and columns before `first` and from `end` on, are zeros that are not
    read. A sum is added up row by row of its filter, and along each, as by `cpu_depthwise.sliding_kernel`.
    """
    columns = pixels - 1 + TAPS

    def sums(turn: Any, r: int) -> Any:
        """Where the sums begin that row r of the filter adds to: rows of them take turns."""
        return T.truncmod(turn + TAPS - r, TAPS) * pixels

    @T.inline
    def multiply(X: Any, acc: Any, tap: Any, seen: Any, h: Any, turn: Any, j: Any, wide: Any, first: Any, end: Any,
                 inside: bool) -> None:  # fmt: skip
        for q in T.unroll(columns):
            if T.Or(inside, T.And(T.Cast("int64", q) >= first, T.Cast("int64", q) < end)):
                seen[T.ramp(0, 1, lanes)] = masked_load(
                    T.address_of(X[h, q, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                )
                for r, i in T.grid(TAPS, pixels):
                    if T.And(q - i >= 0, q - i < TAPS):
                        acc[T.ramp((sums(turn, r) + i) * lanes, 1, lanes)] = T.fma(
                            seen[T.ramp(0, 1, lanes)],
                            tap[T.ramp((r * TAPS + q - i) * lanes, 1, lanes)],
                            acc[T.ramp((sums(turn, r) + i) * lanes, 1, lanes)],
                        )

    def done(turn: Any, i: Any) -> Any:
        """Of the sums that the last row of the filter was added to."""
        return T.ramp((sums(turn, TAPS - 1) + i) * lanes, 1, lanes)

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
    ):
        T.func_attr({"global_symbol": falling_symbol(pixels), "tirx.noalias": True})
        X = T.match_buffer(x, (rows - 1 + TAPS, columns, channels), "float32", align=4, strides=[x_r, ldx, T.int64(1)])
        W = T.match_buffer(w, (TAPS, TAPS, channels), "float32", align=4, strides=[w_r, w_s, T.int64(1)])
        Y = T.match_buffer(y, (rows, pixels, channels), "float32", align=4, strides=[y_r, ldy, T.int64(1)])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((TAPS * pixels * lanes,), "float32", scope="local")
            tap = T.sblock_alloc_buffer((TAPS * TAPS * lanes,), "float32", scope="local")
            seen = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for j in T.serial(T.truncdiv(channels + lanes - 1, lanes)):
                wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(lanes), channels - j * lanes))
                for r, s in T.grid(TAPS, TAPS):
                    tap[T.ramp((r * TAPS + s) * lanes, 1, lanes)] = masked_load(
                        T.address_of(W[r, s, j * lanes]), T.ramp(0, 1, lanes) < T.broadcast(wide, lanes), lanes
                    )
                for i in T.unroll(TAPS * pixels):
                    acc[T.ramp(i * lanes, 1, lanes)] = T.broadcast(T.float32(0), lanes)
                for block in T.serial(T.truncdiv(rows - 1 + TAPS + TAPS - 1, T.int64(TAPS))):
                    for turn in T.unroll(TAPS):
                        h: T.let[T.int64] = block * TAPS + turn
                        if h < rows - 1 + TAPS:
                            if T.And(h >= top, h < bottom):
                                for q in T.unroll(columns):
                                    T.evaluate(fetch(T.address_of(X[h + AHEAD, q, j * lanes]), cache=2))
                                if T.And(first <= 0, end >= columns):
                                    multiply(X, acc, tap, seen, h, turn, j, wide, first, end, T.bool(True))
                                else:
                                    multiply(X, acc, tap, seen, h, turn, j, wide, first, end, T.bool(False))
                            if h >= TAPS - 1:
                                for i in T.unroll(pixels):
                                    T.evaluate(
                                        masked_store(
                                            acc[done(turn, i)],
                                            T.address_of(Y[h - (TAPS - 1), i, j * lanes]),
                                            T.ramp(0, 1, lanes) < T.broadcast(wide, lanes),
                                        )
                                    )
                            for i in T.unroll(pixels):
                                acc[done(turn, i)] = T.broadcast(T.float32(0), lanes)

    return kernel
