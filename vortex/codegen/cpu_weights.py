"""L0 of quantized weights on CPUs: a register tile of float32 whose B is widened from 4 or 8 bits on its way in.

A line of a packed panel holds, for each of its columns, one 32-bit word of neighbours along k, the first in the lowest
bits. Before the words of a group is a line of their scales, or one before all of them where a whole column shares one;
after it one of zero points, if weights have them. Every weight becomes the float32 that it stands for, integer (less
its zero point, which is exact) times scale rounded once, and is multiplied by the ordinary multiply-add: the sums are
those of a float32 B, bit by bit.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import PERMUTE, fetch, placed, tile_stages, vector_intrinsics
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
    head, zeros = weights.heads, weights.zeros
    grouped, tall, looks_up = group > 0, rows >= vectors, bits == 4 and lanes == PERMUTES
    stages = tile_stages(rows, vectors, lanes)
    vector = f"float32x{lanes}"

    def widened(word: Any, place: Any) -> Any:
        """The weights at `place` of the words, as float32."""
        if looks_up:
            found = T.shift_right(word, T.broadcast(place * bits, lanes))
            return T.call_llvm_pure_intrin(vector, PERMUTE[lanes], table_of(lanes), found)
        top = T.shift_left(word, T.broadcast(32 - bits - place * bits, lanes))
        return T.Cast(vector, T.shift_right(top, T.broadcast(T.int32(32 - bits), lanes)))

    def at(j: Any) -> Any:
        return T.ramp(j * lanes, 1, lanes)

    def valued(integer: Any, zero: Any, scale: Any) -> Any:
        """What integers stand for."""
        return (integer - zero) * scale if zeros else integer * scale

    @T.inline
    def multiply(A: Any, row: Any, acc: Any, i: Any, j: Any, k: Any) -> None:
        acc[i, at(j)] = T.fma(T.broadcast(A[i, k], lanes), row[at(j)], acc[i, at(j)])

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
        Start = T.match_buffer(start, (head, columns), "int32", align=4, strides=[ldb, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            scale = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            zero = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            word = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            stages.masks(mask, last)
            stages.begin(acc, mask, C, mode != 0)
            with T.sblock("compute"):
                T.reads(A[0:rows, 0:depth], B[0 : 2 * depth + 1, 0:columns], Start[0:head, 0:columns])
                T.writes(acc[0:rows, 0:columns], scale[0:columns], zero[0:columns], word[0:columns], row[0:columns])
                length: T.let[T.int64] = T.int64(group) if grouped else depth
                groups: T.let[T.int64] = T.truncdiv(depth + group - 1, group) if grouped else T.min(depth, T.int64(1))
                for g in T.serial(groups):
                    line: T.let[T.int64] = g * (group // per_line + head) + head if grouped else T.int64(0)
                    count: T.let[T.int64] = T.min(length, depth - g * length)
                    for j in T.unroll(vectors):
                        scale[at(j)] = T.reinterpret(
                            vector,
                            B[line - head, at(j)] if grouped else Start[0, at(j)],
                        )
                        if zeros:
                            zero[at(j)] = T.reinterpret(
                                vector, B[line - 1, at(j)] if grouped else Start[head - 1, at(j)]
                            )
                    for w in T.serial(T.truncdiv(count, per_line)):
                        for j in T.unroll(vectors):
                            T.evaluate(fetch(T.address_of(B[line + w, j * lanes + AHEAD])))
                        for e in T.unroll(per_line):
                            if tall:
                                for j in T.unroll(vectors):
                                    row[at(j)] = valued(widened(B[line + w, at(j)], e), zero[at(j)], scale[at(j)])
                                for i in T.unroll(rows):
                                    for j in T.unroll(vectors):
                                        multiply(A, row, acc, i, j, g * length + w * per_line + e)
                            else:
                                for j in T.unroll(vectors):
                                    row[at(j)] = valued(widened(B[line + w, at(j)], e), zero[at(j)], scale[at(j)])
                                    for i in T.unroll(rows):
                                        multiply(A, row, acc, i, j, g * length + w * per_line + e)
                    for j in T.unroll(vectors):
                        word[at(j)] = T.broadcast(T.int32(0), lanes)
                    if T.truncmod(count, per_line) > 0:
                        for j in T.unroll(vectors):
                            word[at(j)] = B[line + T.truncdiv(count, per_line), at(j)]
                    for e in T.serial(T.truncmod(count, per_line)):
                        for j in T.unroll(vectors):
                            row[at(j)] = valued(widened(word[at(j)], T.int32(0)), zero[at(j)], scale[at(j)])
                            word[at(j)] = T.shift_right(word[at(j)], T.broadcast(T.int32(bits), lanes))
                            for i in T.unroll(rows):
                                multiply(A, row, acc, i, j, g * length + T.truncdiv(count, per_line) * per_line + e)
            stages.end(C, mask, acc)

    names = vector_intrinsics(lanes)
    return placed(kernel, (("load", names.load, 0), ("zero", names.zero, 0), ("store", names.store, 0))).mod["main"]
