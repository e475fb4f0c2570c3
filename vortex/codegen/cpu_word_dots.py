"""L0 of the dot family on words: as `cpu_dot`, of operands in bfloat16, int8 or float16 that are read as they lie.

No load stage gathers words: neighbours along k are in memory as the instruction wants them, if k is contiguous in both
operands. Bytes are widened to 16 bits, and what stands for zero is taken off, which leaves both operands signed.
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

    `symbol(x, y, c, depth, ldx, ldy, row_stride, column_stride, accumulate, ahead, flip_x, zero_x, flip_y, zero_y)`:
    depth and strides in elements, C in words; so far ahead of X is asked for. Of bytes, x stands for (x ^ flip_x) -
    zero_x as an unsigned one, y likewise; what lies past the end of k is 0 in one of the operands at least.
    """
    gather, sums, count = Gather(words, lanes), words.accumulator, rows * columns
    integer, item, stored = sums == "int32", words.item_bytes, words.stored
    span = lanes if words.widened else 2 * lanes
    """Elements of a step of k."""
    part = f"int16x{span}" if integer else f"int32x{lanes}"
    kept, width = ("int16", span) if integer else ("int32", lanes)
    vector = f"{sums}x{lanes}"

    def formed(found: Any, flip: Any, zero: Any) -> Any:
        """Elements as they are multiplied."""
        if integer:
            unsigned = T.bitwise_xor(found, T.broadcast(T.Cast(stored, flip), span))
            return T.Cast(part, unsigned) - T.broadcast(T.Cast("int16", zero), span)
        return gather.wide(found) if words.widened else T.reinterpret(part, found)

    def dot(total: Any, x: Any, y: Any) -> Any:
        if words.widened:
            return T.fma(T.reinterpret(vector, x), T.reinterpret(vector, y), total)
        if integer:
            return T.call_llvm_pure_intrin(vector, f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", total, x, y)
        return T.call_pure_extern(vector, f"vortex_dpbf16_{lanes}", total, x, y)

    def all_lanes(row: int, size: int) -> list[Any]:
        return [row, T.ramp(0, 1, size)]

    def step(X: Any, Y: Any, acc: Any, left: Any, right: Any, x: Any, y: Any, found: Any) -> None:
        """The products of a step; `found` fetches its elements of a row, `x` and `y` are flip and zero of each side."""
        for j in range(columns):
            T.buffer_store(right, formed(found(Y, j), *y), all_lanes(j, width))
        for i in range(rows):
            T.buffer_store(left, formed(found(X, i), *x), all_lanes(0, width))
            for j in range(columns):
                at = all_lanes(i * columns + j, lanes)
                T.buffer_store(acc, dot(acc[*at], left[*all_lanes(0, width)], right[*all_lanes(j, width)]), at)

    def whole(at: Any) -> Any:
        return lambda source, row: source[row, T.ramp(at, 1, span)]

    def rest(at: Any, limit: Any) -> Any:
        return lambda source, row: gather.elements(T.address_of(source[row, at]), limit, span)

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
        zero_x: T.int32,
        flip_y: T.int32,
        zero_y: T.int32,
    ):
        T.func_attr({"global_symbol": dot_symbol(rows, columns), "tirx.noalias": True})
        X = T.match_buffer(x, (rows, depth), stored, align=item, strides=[ldx, T.int64(1)])
        Y = T.match_buffer(y, (columns, depth), stored, align=item, strides=[ldy, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), sums, align=4, strides=[row_stride, column_stride])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((count, lanes), sums, scope="local")
            left = T.sblock_alloc_buffer((1, width), kept, scope="local")
            right = T.sblock_alloc_buffer((columns, width), kept, scope="local")
            for i in T.unroll(count):
                acc[i, T.ramp(0, 1, lanes)] = T.broadcast(tirx.const(0, sums), lanes)
            steps: T.let[T.int64] = T.truncdiv(depth, T.int64(span))
            for k in T.serial(steps):
                for i in T.unroll(rows):
                    T.evaluate(fetch(T.address_of(X[i, k * span + ahead]), cache=2))
                step(X, Y, acc, left, right, (flip_x, zero_x), (flip_y, zero_y), whole(k * span))
                T.evaluate(T.call_extern("int32", STEP_SYMBOL))
            if steps * span < depth:
                for i in T.unroll(rows):
                    T.evaluate(fetch(T.address_of(X[i, steps * span + ahead]), cache=2))
                limit: T.let[T.int64] = depth - steps * span
                step(X, Y, acc, left, right, (flip_x, zero_x), (flip_y, zero_y), rest(steps * span, limit))
            fold(acc, count, lanes)
            if accumulate != 0:
                store_folded(C, acc, count, columns, lanes, True)
            else:
                store_folded(C, acc, count, columns, lanes, False)

    return kernel


def emit_word_dots(words: WordFormat, shapes: Sequence[tuple[int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    """An object file of these (rows, columns)."""
    kernels = [word_dot_kernel(rows, columns, lanes, words) for rows, columns in shapes]
    compile_object(kernels, cpu_target(llvm_cpu), path, llvm_ir=STEP_IR + imported_ir(words, lanes))
