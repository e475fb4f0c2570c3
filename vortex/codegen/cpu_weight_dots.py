"""L0 of quantized weights with bfloat16 on CPUs: as `cpu_weights`, with the instruction that adds up two products.

A word of a packed line holds neighbours along k in its two halves by turns: one shift brings a pair into place. Weights
of at most 8 bits are bfloat16 exactly: they are multiplied as integers, and the sum of a group is multiplied by its
scale. A zero point is the same for a group: the sum of its elements of A, times minus zero point and scale, is added as
well. Groups are added up in C, in their order; those of a whole column are CHUNK weights long, so that the bits do
not depend on where L1 cuts k.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import fetch, masked_load, masked_store, placed, tile_stages, vector_intrinsics
from vortex.codegen.cpu_weights import AHEAD
from vortex.codegen.cpu_words import WordTile
from vortex.dtypes import WEIGHT_BITS, WordFormat

ONES = 0x3F803F80
"""Two ones."""
LOOKS_UP = 16
"""Lanes of the vectors whose halves one instruction permutes by any 5 bits (AVX-512)."""


def bfloat16_bits(value: int) -> int:
    """Of a small integer."""
    import numpy as np

    return int(np.float32(value).view(np.uint32)) >> 16


def pair_table() -> Any:
    """The bfloat16 that 4 bits stand for, twice over: the fifth bit of an index belongs to the next weight."""
    halves = [bfloat16_bits(x - 16 * (x >= 8)) for x in range(16)]
    words = [halves[x] | halves[x + 1] << 16 for x in range(0, 16, 2)] * 2
    signed = [word - (1 << 32) if word >> 31 else word for word in words]
    return T.Shuffle([tirx.const(word, "int32") for word in signed], list(range(len(signed))))


def weight_dot_kernel(tile: WordTile, lanes: int, words: WordFormat) -> tvm.tirx.PrimFunc:
    """The L0 rKernel of `tile` against quantized weights in words of two bfloat16, as a scheduled function

    `symbol(a, b, c, start, depth, lda, ldb, ldc, last, mode, flip)` as of `cpu_weights.weight_kernel`, with `depth` in
    words of A.
    """
    weights, per_word = words.weights, words.per_word
    assert weights is not None
    rows, vectors, columns = tile.rows, tile.vectors, tile.vectors * lanes
    bits, grouped = WEIGHT_BITS[weights.dtype], weights.group > 0
    head, zeros = weights.heads, weights.zeros
    per_line, length = weights.per_word // per_word, words.step
    tall, looks_up = rows >= vectors, bits == 4 and lanes == LOOKS_UP
    nothing = tirx.const(0, "float32")
    vector, integers, halves = f"float32x{lanes}", f"int32x{lanes}", f"int16x{2 * lanes}"

    def lane(value: Any) -> Any:
        return T.broadcast(value, lanes)

    def as_float(word: Any, left: Any) -> Any:
        """The bits of the float32 of the weight that lies `left` below the top of each word."""
        top = T.shift_right(T.shift_left(word, lane(left)), lane(T.int32(32 - bits)))
        return T.reinterpret(integers, T.Cast(vector, top))

    def widened(word: Any, place: Any) -> Any:
        """The pairs of weights at `place` of the words, as words of two bfloat16."""
        if looks_up:
            index = T.reinterpret(halves, T.shift_right(word, lane(place * bits)))
            table = T.reinterpret(halves, pair_table())
            found = T.call_llvm_pure_intrin(halves, "llvm.x86.avx512.permvar.hi.512", table, index)
            return T.reinterpret(integers, found)
        low, high = as_float(word, 32 - bits - place * bits), as_float(word, 16 - bits - place * bits)
        low = T.reinterpret(
            integers, T.shift_right(T.reinterpret(f"uint32x{lanes}", low), T.broadcast(T.uint32(16), lanes))
        )
        return T.bitwise_or(low, T.bitwise_and(high, lane(T.int32(-65536))))

    def at(j: Any) -> Any:
        return T.ramp(j * lanes, 1, lanes)

    def folded(sums: Any) -> Any:
        """The sum of a vector in every lane."""
        width = lanes
        while width > 1:
            width //= 2
            sums = T.Shuffle([sums], list(range(width))) + T.Shuffle([sums], list(range(width, 2 * width)))
        return lane(sums)

    def finished(sum_of_group: Any, scale: Any, before: Any, total: Any, offset: Any) -> Any:
        """What C becomes with a group."""
        scaled = T.fma(sum_of_group, T.reinterpret(vector, scale), before)
        return T.fma(total, T.reinterpret(vector, offset), scaled) if zeros else scaled

    @T.inline
    def add_up(A: Any, totals: Any, i: Any, first: Any, count: Any) -> None:
        """The sum of `count` words of a row of A, in every lane."""
        totals[i, at(0)] = T.broadcast(nothing, lanes)
        for w in T.serial(T.truncdiv(count + lanes - 1, T.int64(lanes))):
            # The mask in its place: LLVM loads nothing by one that TVM keeps in a variable.
            totals[i, at(0)] = T.call_pure_extern(
                vector,
                f"vortex_dpbf16_{lanes}",
                totals[i, at(0)],
                lane(T.int32(ONES)),
                masked_load(
                    T.address_of(A[i, (first + w * lanes) * per_word]),
                    T.ramp(T.int32(0), 1, lanes) < lane(T.Cast("int32", count - w * lanes)),
                    lanes,
                    "int32",
                ),
            )
        totals[i, at(0)] = folded(totals[i, at(0)])

    @T.inline
    def multiply(A: Any, row: Any, acc: Any, i: Any, j: Any, k: Any) -> None:
        """Adds the dot products of the word at `k` of a row of A and a vector of words."""
        acc[i, at(j)] = T.call_pure_extern(
            vector,
            f"vortex_dpbf16_{lanes}",
            acc[i, at(j)],
            row[at(j)],
            lane(T.reinterpret("int32", A[i, T.ramp(k * per_word, 1, per_word)])),
        )

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
        A = T.match_buffer(a, (rows, depth * per_word), "uint16", align=2, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (2 * depth + 1, columns), "int32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        Start = T.match_buffer(start, (head, columns), "int32", align=4, strides=[ldb, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            word = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            totals = T.sblock_alloc_buffer((rows, lanes), "float32", scope="local")
            tile_stages(rows, vectors, lanes).masks(mask, last)
            if mode == 0:
                for i, j in T.grid(rows, vectors):
                    for l in range(lanes):
                        with T.sblock("zero"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            acc[vi, vj] = nothing
                    for l in range(lanes):
                        with T.sblock("clear"):
                            vi = T.axis.spatial(rows, i)
                            vj = T.axis.spatial(columns, j * lanes + l)
                            C[vi, vj] = T.if_then_else(mask[vj] != 0, acc[vi, vj], nothing)
            with T.sblock("compute"):
                T.reads(
                    A[0:rows, 0 : depth * per_word],
                    B[0 : 2 * depth + 1, 0:columns],
                    Start[0:head, 0:columns],
                    mask[0:columns],
                )
                T.writes(
                    C[0:rows, 0:columns],
                    acc[0:rows, 0:columns],
                    word[0:columns],
                    row[0:columns],
                    totals[0:rows, 0:lanes],
                )
                for g in T.serial(T.truncdiv(depth + length - 1, length)):
                    line: T.let[T.int64] = (
                        g * (length // per_line + head) + head if grouped else g * (length // per_line)
                    )
                    count: T.let[T.int64] = T.min(T.int64(length), depth - g * length)
                    whole: T.let[T.int64] = T.truncdiv(count, per_line)
                    for i, j in T.grid(rows, vectors):
                        acc[i, at(j)] = T.broadcast(nothing, lanes)
                    for w in T.serial(whole):
                        for j in T.unroll(vectors):
                            T.evaluate(fetch(T.address_of(B[line + w, j * lanes + AHEAD])))
                        for e in T.unroll(per_line):
                            if tall:
                                for j in T.unroll(vectors):
                                    row[at(j)] = widened(B[line + w, at(j)], e)
                                for i in T.unroll(rows):
                                    for j in T.unroll(vectors):
                                        multiply(A, row, acc, i, j, g * length + w * per_line + e)
                            else:
                                for j in T.unroll(vectors):
                                    row[at(j)] = widened(B[line + w, at(j)], e)
                                    for i in T.unroll(rows):
                                        multiply(A, row, acc, i, j, g * length + w * per_line + e)
                    for j in T.unroll(vectors):
                        word[at(j)] = lane(T.int32(0))
                    if count > whole * per_line:
                        for j in T.unroll(vectors):
                            word[at(j)] = B[line + whole, at(j)]
                    for e in T.serial(count - whole * per_line):
                        for j in T.unroll(vectors):
                            row[at(j)] = widened(word[at(j)], T.int32(0))
                            word[at(j)] = T.shift_right(word[at(j)], lane(T.int32(bits)))
                            for i in T.unroll(rows):
                                multiply(A, row, acc, i, j, g * length + whole * per_line + e)
                    if zeros:
                        for i in T.unroll(rows):
                            add_up(A, totals, i, g * length, count)
                    for j in T.unroll(vectors):
                        for i in T.unroll(rows):
                            T.evaluate(
                                masked_store(
                                    finished(
                                        acc[i, at(j)],
                                        B[line - head, at(j)] if grouped else Start[0, at(j)],
                                        masked_load(T.address_of(C[i, j * lanes]), mask[at(j)] != lane(0), lanes),
                                        totals[i, at(0)],
                                        B[line - 1, at(j)] if grouped else Start[head - 1, at(j)],
                                    ),
                                    T.address_of(C[i, j * lanes]),
                                    mask[at(j)] != lane(0),
                                )
                            )

    names = vector_intrinsics(lanes)
    return placed(kernel, (("zero", names.zero, 2), ("clear", names.store, 0))).mod["main"]
