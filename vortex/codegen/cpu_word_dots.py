"""L0 of the dot family on words: as `cpu_dot`, of operands in bfloat16, int8 or float16 that are read as they lie.

No load stage gathers words: neighbours along k are in memory as the instruction wants them, if k is contiguous in both
operands. `vpdpbusd` takes unsigned by signed bytes: the rows are made unsigned and the columns signed, whichever of A
and B they are, by flipping the highest bit where that is needed. What a flip, or a zero point, adds to a sum is told by
column, and by how often the sum of the row, which the kernel takes as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_dot import STEP_IR, STEP_SYMBOL, dot_symbol
from vortex.codegen.cpu_fold import fold, store_folded
from vortex.codegen.cpu_tile import fetch
from vortex.codegen.cpu_words import imported_ir
from vortex.codegen.cpu_words_load import Gather
from vortex.codegen.lower import compile_object, cpu_target
from vortex.dtypes import WordFormat


def word_dot_kernel(rows: int, columns: int, lanes: int, words: WordFormat) -> tirx.PrimFunc:
    """C[i, j] (+)= sum over k of X[i, k] Y[j, k].

    `symbol(x, y, c, depth, ldx, ldy, row_stride, column_stride, accumulate, ahead, flip_x, flip_y, times, offsets)`:
    depth and strides in elements, C in words; so far ahead of X is asked for. Bytes are flipped to x ^ flip_x, taken as
    unsigned ones, and y ^ flip_y, as signed ones; C[i, j] has offsets[j] and `times` the sum of the flipped row i more.
    """
    gather, sums, count = Gather(words, lanes), words.accumulator, rows * columns
    integer, item, stored = sums == "int32", words.item_bytes, words.stored
    span = lanes * words.per_word
    """Elements of a step of k."""
    part, vector, octets = f"int32x{lanes}", f"{sums}x{lanes}", f"int8x{4 * lanes}"

    def lane(row: Any) -> list[Any]:
        return [row, T.ramp(0, 1, lanes)]

    def fetched(source: Any, row: Any, at: Any, limit: Any, flip: Any) -> Any:
        """A step of a row as it is multiplied; from `limit` on, if there is one, it is 0."""
        flips = T.broadcast(T.Cast(stored, flip), span) if integer else None
        if limit is None:
            found = source[row, T.ramp(at, 1, span)]
        else:
            found = gather.elements(T.address_of(source[row, at]), limit, span, beyond=flips)
        if integer:
            found = T.bitwise_xor(found, flips)
        return gather.wide(found) if words.widened else T.reinterpret(part, found)

    def dot(total: Any, x: Any, y: Any) -> Any:
        if words.widened:
            return T.fma(T.reinterpret(vector, x), T.reinterpret(vector, y), total)
        if integer:
            unsigned, signed = T.reinterpret(octets, x), T.reinterpret(octets, y)
            return T.call_llvm_pure_intrin(vector, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total, unsigned, signed)
        return T.call_pure_extern(vector, f"vortex_dpbf16_{lanes}", total, x, y)

    def step(X: Any, Y: Any, acc: Any, row: Any, left: Any, right: Any, flips: Any, at: Any, limit: Any) -> None:
        for j in range(columns):
            T.buffer_store(right, fetched(Y, j, at, limit, flips[1]), lane(j))
        for i in range(rows):
            T.buffer_store(left, fetched(X, i, at, limit, flips[0]), lane(0))
            for j in range(columns):
                total = lane(i * columns + j)
                T.buffer_store(acc, dot(acc[*total], left[*lane(0)], right[*lane(j)]), total)
            if integer:
                ones = T.broadcast(T.int32(0x01010101), lanes)
                T.buffer_store(row, dot(row[*lane(i)], left[*lane(0)], ones), lane(i))

    def store(C: Any, acc: Any, told: Any, offsets: Any, times: Any, added: bool) -> None:
        def whole(found: Any, i: Any, j: Any) -> Any:
            if integer:
                found = found + times * told[i, 0] + offsets[j]
            return C[i, j] + found if added else found

        store_folded(C, acc, count, columns, lanes, whole)

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        y: T.handle,
        c: T.handle,
        depth: T.int64,
        ldx: T.int64,
        ldy: T.int64,
        row_stride: T.int64,
        column_stride: T.int64,
        accumulate: T.int32,
        ahead: T.int64,
        flip_x: T.int32,
        flip_y: T.int32,
        times: T.int32,
        offsets: T.handle,
    ):
        T.func_attr({"global_symbol": dot_symbol(rows, columns), "tirx.noalias": True})
        X = T.match_buffer(x, (rows, depth), stored, align=item, strides=[ldx, T.int64(1)])
        Y = T.match_buffer(y, (columns, depth), stored, align=item, strides=[ldy, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), sums, align=4, strides=[row_stride, column_stride])
        O = T.match_buffer(offsets, (columns,), "int32", align=4)
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((count, lanes), sums, scope="local")
            row = T.sblock_alloc_buffer((rows, lanes), sums, scope="local")
            told = T.sblock_alloc_buffer((rows, 1), "int32", scope="local")
            left = T.sblock_alloc_buffer((1, lanes), "int32", scope="local")
            right = T.sblock_alloc_buffer((columns, lanes), "int32", scope="local")
            for i in T.unroll(count):
                acc[i, T.ramp(0, 1, lanes)] = T.broadcast(tirx.const(0, sums), lanes)
            if integer:
                for i in T.unroll(rows):
                    row[i, T.ramp(0, 1, lanes)] = T.broadcast(tirx.const(0, sums), lanes)
            steps: T.let[T.int64] = T.truncdiv(depth, T.int64(span))
            for k in T.serial(steps):
                for i in T.unroll(rows):
                    T.evaluate(fetch(T.address_of(X[i, k * span + ahead]), cache=2))
                step(X, Y, acc, row, left, right, (flip_x, flip_y), k * span, None)
                T.evaluate(T.call_extern("int32", STEP_SYMBOL))
            if steps * span < depth:
                for i in T.unroll(rows):
                    T.evaluate(fetch(T.address_of(X[i, steps * span + ahead]), cache=2))
                step(X, Y, acc, row, left, right, (flip_x, flip_y), steps * span, depth - steps * span)
            fold(acc, count, lanes)
            if integer:
                fold(row, rows, lanes)
                store_folded(told, row, rows, 1, lanes)
            if accumulate != 0:
                store(C, acc, told, O, times, True)
            else:
                store(C, acc, told, O, times, False)

    return kernel


def emit_word_dots(words: WordFormat, shapes: Sequence[tuple[int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    """An object file of these (rows, columns)."""
    kernels = [word_dot_kernel(rows, columns, lanes, words) for rows, columns in shapes]
    compile_object(kernels, cpu_target(llvm_cpu), path, llvm_ir=STEP_IR + imported_ir(words, lanes))
