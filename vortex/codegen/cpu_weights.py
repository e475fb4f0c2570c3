"""L0 of quantized weights on CPUs: a register tile of float32 whose B is widened from 4 or 8 bits on its way in.

A line of a packed panel holds, for each of its columns, one 32-bit word of neighbours along k, the first in the lowest
bits. Before the words of a group is a line of their scales, or one before all of them where a whole column shares one.
Every weight becomes the float32 that it stands for, integer times scale rounded once, and is multiplied by the
ordinary multiply-add: the sums are those of a float32 B, bit by bit.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_kernels import vector_intrinsics
from vortex.codegen.cpu_nest import fetch
from vortex.codegen.cpu_words import WordTile
from vortex.dtypes import WEIGHT_BITS, WordFormat

AHEAD = 2048
"""Words, 8 KiB: a line of weights is many instructions, so that few lines ahead are in flight on their own."""
PERMUTES = 16
"""Lanes of the vectors that one instruction permutes by any 4 bits (AVX-512): it looks a weight of 4 bits up."""


def table_of(lanes: int) -> Any:
    """The float32 that 4 bits stand for, by their value as an unsigned number."""
    values = [float(x - 16 * (x >= 8)) for x in range(lanes)]
    folded = tirx.const(values[0], "float32")
    return T.Shuffle([folded, *(tirx.const(value, "float32") for value in values[1:])], list(range(lanes)))


def weight_kernel(tile: WordTile, lanes: int, words: WordFormat) -> tvm.tirx.PrimFunc:
    """The L0 rKernel of `tile` against quantized weights, as a scheduled function

    `symbol(a, b, c, start, depth, lda, ldb, ldc, last, mode, flip)` as of `cpu_words.word_kernel`: `depth` in elements,
    `b` the first line of a group, `start` the scales of whole columns. `flip` is of no use here.
    """
    weights = words.weights
    assert weights is not None
    rows, vectors, columns = tile.rows, tile.vectors, tile.vectors * lanes
    bits, per_line, group = WEIGHT_BITS[weights.dtype], weights.per_word, weights.group
    grouped, tall, looks_up = group > 0, rows >= vectors, bits == 4 and lanes == PERMUTES
    nothing = tirx.const(0, "float32")
    vector = f"float32x{lanes}"

    def widened(word: Any, place: Any) -> Any:
        """The weights at `place` of the words, as float32."""
        if looks_up:
            found = T.shift_right(word, T.broadcast(place * bits, lanes))
            return T.call_llvm_pure_intrin(vector, "llvm.x86.avx512.permvar.sf.512", table_of(lanes), found)
        top = T.shift_left(word, T.broadcast(32 - bits - place * bits, lanes))
        return T.Cast(vector, T.shift_right(top, T.broadcast(T.int32(32 - bits), lanes)))

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        start: T.handle,
        depth: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        mode: T.int32,
        flip: T.int32,
    ):
        T.func_attr({"global_symbol": tile.symbol, "tirx.noalias": True})
        A = T.match_buffer(a, (rows, depth), "float32", align=4, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (2 * depth + 1, columns), "int32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        Start = T.match_buffer(start, (columns,), "int32", align=4)
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            scale = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            word = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            for j in T.unroll(vectors):
                for l in T.vectorized(lanes):
                    with T.sblock("mask"):
                        vj = T.axis.spatial(columns, j * lanes + l)
                        mask[vj] = T.Select(
                            T.Or(vj < (vectors - 1) * lanes, vj - (vectors - 1) * lanes < last), T.int32(1), T.int32(0)
                        )
            if mode != 0:
                for i, j in T.grid(rows, vectors):
                    for l in range(lanes):
                        with T.sblock("load"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            acc[vi, vj] = T.if_then_else(mask[vj] != 0, C[vi, vj], nothing)
            else:
                for i, j in T.grid(rows, vectors):
                    for l in range(lanes):
                        with T.sblock("zero"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            acc[vi, vj] = nothing
            with T.sblock("compute"):
                T.reads(A[0:rows, 0:depth], B[0 : 2 * depth + 1, 0:columns], Start[0:columns])
                T.writes(acc[0:rows, 0:columns], scale[0:columns], word[0:columns], row[0:columns])
                length: T.let[T.int64] = T.int64(group) if grouped else depth
                groups: T.let[T.int64] = T.truncdiv(depth + group - 1, group) if grouped else T.min(depth, T.int64(1))
                for g in T.serial(groups):
                    line: T.let[T.int64] = g * (group // per_line + 1) + 1 if grouped else T.int64(0)
                    count: T.let[T.int64] = T.min(length, depth - g * length)
                    for j in T.unroll(vectors):
                        scale[T.ramp(j * lanes, 1, lanes)] = T.reinterpret(
                            vector,
                            B[line - 1, T.ramp(j * lanes, 1, lanes)] if grouped else Start[T.ramp(j * lanes, 1, lanes)],
                        )
                    for w in T.serial(T.truncdiv(count, per_line)):
                        for j in T.unroll(vectors):
                            T.evaluate(fetch(T.address_of(B[line + w, j * lanes + AHEAD]), 0))
                        for e in T.unroll(per_line):
                            if tall:
                                for j in T.unroll(vectors):
                                    row[T.ramp(j * lanes, 1, lanes)] = (
                                        widened(B[line + w, T.ramp(j * lanes, 1, lanes)], e)
                                        * scale[T.ramp(j * lanes, 1, lanes)]
                                    )
                                for i in T.unroll(rows):
                                    for j in T.unroll(vectors):
                                        acc[i, T.ramp(j * lanes, 1, lanes)] = T.fma(
                                            T.broadcast(A[i, g * length + w * per_line + e], lanes),
                                            row[T.ramp(j * lanes, 1, lanes)],
                                            acc[i, T.ramp(j * lanes, 1, lanes)],
                                        )
                            else:
                                for j in T.unroll(vectors):
                                    row[T.ramp(j * lanes, 1, lanes)] = (
                                        widened(B[line + w, T.ramp(j * lanes, 1, lanes)], e)
                                        * scale[T.ramp(j * lanes, 1, lanes)]
                                    )
                                    for i in T.unroll(rows):
                                        acc[i, T.ramp(j * lanes, 1, lanes)] = T.fma(
                                            T.broadcast(A[i, g * length + w * per_line + e], lanes),
                                            row[T.ramp(j * lanes, 1, lanes)],
                                            acc[i, T.ramp(j * lanes, 1, lanes)],
                                        )
                    for j in T.unroll(vectors):
                        word[T.ramp(j * lanes, 1, lanes)] = T.broadcast(T.int32(0), lanes)
                    if T.truncmod(count, per_line) > 0:
                        for j in T.unroll(vectors):
                            word[T.ramp(j * lanes, 1, lanes)] = B[
                                line + T.truncdiv(count, per_line), T.ramp(j * lanes, 1, lanes)
                            ]
                    for e in T.serial(T.truncmod(count, per_line)):
                        for j in T.unroll(vectors):
                            row[T.ramp(j * lanes, 1, lanes)] = (
                                widened(word[T.ramp(j * lanes, 1, lanes)], T.int32(0))
                                * scale[T.ramp(j * lanes, 1, lanes)]
                            )
                            word[T.ramp(j * lanes, 1, lanes)] = T.shift_right(
                                word[T.ramp(j * lanes, 1, lanes)], T.broadcast(T.int32(bits), lanes)
                            )
                            for i in T.unroll(rows):
                                acc[i, T.ramp(j * lanes, 1, lanes)] = T.fma(
                                    T.broadcast(A[i, g * length + T.truncdiv(count, per_line) * per_line + e], lanes),
                                    row[T.ramp(j * lanes, 1, lanes)],
                                    acc[i, T.ramp(j * lanes, 1, lanes)],
                                )
            for i, j in T.grid(rows, vectors):
                for l in range(lanes):
                    with T.sblock("store"):
                        vi = T.axis.spatial(rows, i)
                        vj = T.axis.spatial(columns, j * lanes + l)
                        C[vi, vj] = T.if_then_else(mask[vj] != 0, acc[vi, vj], nothing)

    schedule = s_tir.Schedule(kernel)
    names = vector_intrinsics(lanes)
    for block, intrinsic in (("load", names.load), ("zero", names.zero), ("store", names.store)):
        loops = schedule.get_loops(schedule.get_sblock(block))
        schedule.tensorize(loops[-1], intrinsic)
        for loop in loops[:-1]:
            schedule.unroll(loop)
    return schedule.mod["main"]
