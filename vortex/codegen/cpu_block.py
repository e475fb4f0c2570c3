"""L0 of a depthwise convolution by 3x3 on CPUs, in blocks: rows of a few pixels, and two vectors of channels at a time.

A tile that takes one vector across pixels of two rows and comes back for the next reads 35 GB/s from the second cache
or the third; two vectors at a time, with AVX-512 a pair of lines, 65 (measured on a Zen 5). Rows of a block share what
they see: four with a filter of three rows load six rows of inputs instead of twelve.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

VECTORS, TAPS, MANY_REGISTERS = 2, 3, 32
NEAR, FAR, SMALL = (4, 2), (7, 1), (2, 2)
"""Rows and pixels of a block: with stride 1; with operands from memory, which then reads few rows again; and with
stride 2, whose outputs share less, or 16 registers."""

Block = tuple[int, int, int]
"""Stride, rows and pixels."""


def block_tiles(registers: int) -> dict[tuple[int, bool], Block]:
    """The blocks of a core with so many vector registers, by stride and whether operands come from memory."""
    near, far = (NEAR, FAR) if registers >= MANY_REGISTERS else (SMALL, SMALL)
    return {(1, False): (1, *near), (1, True): (1, *far), (2, False): (2, *SMALL), (2, True): (2, *SMALL)}


def block_symbol(stride: int, rows: int, pixels: int) -> str:
    return f"vortex_block_s{stride}_{rows}x{pixels}"


def block_kernel(stride: int, rows: int, pixels: int, lanes: int) -> tirx.PrimFunc:
    """Y[results[o, i] + c] = sum over r and s of X[seen[o * stride + r, i * stride + s] + c] W[r, s, c], any channel c.

    `symbol(x, seen, w, y, results, channels, w_r, w_s)`: `seen` and `results` are elements from x and y on, so that
    inputs in the padding may be read from zeros and outputs past the edges written to room for them, wherever these
    are. There are at least two vectors of channels; the last two overlap those before them. A sum is added up row by
    row of its filter, and along each.
    """
    down, along = (rows - 1) * stride + TAPS, (pixels - 1) * stride + TAPS
    width = VECTORS * lanes

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle, seen: T.handle, w: T.handle, y: T.handle, results: T.handle, channels: T.int64, w_r: T.int64,
        w_s: T.int64,
    ):  # fmt: skip
        T.func_attr({"global_symbol": block_symbol(stride, rows, pixels), "tirx.noalias": True})
        X = T.match_buffer(x, (T.int64(1) << 40,), "float32", align=4)
        S = T.match_buffer(seen, (down, along), "int64", align=8)
        W = T.match_buffer(w, (TAPS, TAPS, channels), "float32", align=4, strides=[w_r, w_s, T.int64(1)])
        Y = T.match_buffer(y, (T.int64(1) << 40,), "float32", align=4)
        R = T.match_buffer(results, (rows, pixels), "int64", align=8)
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((rows * pixels * width,), "float32", scope="local")
            value = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for block in T.serial(T.truncdiv(channels + width - 1, width)):
                j: T.let[T.int64] = T.min(block * width, channels - width)
                for i in T.unroll(rows * pixels * VECTORS):
                    acc[T.ramp(i * lanes, 1, lanes)] = T.broadcast(T.float32(0), lanes)
                for h in T.unroll(down):
                    for q in T.unroll(along):
                        for v in T.unroll(VECTORS):
                            value[T.ramp(0, 1, lanes)] = X[T.ramp(S[h, q] + j + v * lanes, 1, lanes)]
                            for o in T.unroll(rows):
                                for i in T.unroll(pixels):
                                    if T.And(
                                        T.And(h - o * stride >= 0, h - o * stride < TAPS),
                                        T.And(q - i * stride >= 0, q - i * stride < TAPS),
                                    ):
                                        acc[T.ramp(((o * pixels + i) * VECTORS + v) * lanes, 1, lanes)] = T.fma(
                                            value[T.ramp(0, 1, lanes)],
                                            W[h - o * stride, q - i * stride, T.ramp(j + v * lanes, 1, lanes)],
                                            acc[T.ramp(((o * pixels + i) * VECTORS + v) * lanes, 1, lanes)],
                                        )
                for o in T.unroll(rows):
                    for i in T.unroll(pixels):
                        for v in T.unroll(VECTORS):
                            Y[T.ramp(R[o, i] + j + v * lanes, 1, lanes)] = acc[
                                T.ramp(((o * pixels + i) * VECTORS + v) * lanes, 1, lanes)
                            ]

    return kernel
