"""L0 of CPU dot instructions: a register tile over 32-bit words of two bfloat16 or four int8 neighbours along k.

The tile is that of `cpu_kernels`, with the multiply-add exchanged for the dot instruction: a word of A is broadcast, a
vector of B holds the words of `lanes` columns. A lies in memory as it is; a load stage has interleaved B. Elements that
no instruction takes come as words that load stages widened to float32, A as well, and are multiplied as such.

`vpdpbusd` multiplies unsigned by signed bytes. A signed A is flipped to unsigned, x + 128, on its way into the
register: then 128 stands for 0, or whatever zero point the caller gives. The accumulators begin at the zero point times
the negative column sums of B, which the load stage of B keeps as the first line of a panel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import filled, placed, tile_stages, vector_intrinsics, with_extents
from vortex.dtypes import WordFormat

BFLOAT16_DOT = """
declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(<{lanes} x float>, <{twice} x bfloat>, <{twice} x bfloat>)
define weak_odr hidden <{lanes} x float> @{symbol}(<{lanes} x float> %sum, <{lanes} x i32> %x, <{lanes} x i32> %y) #0 {{
  %left = bitcast <{lanes} x i32> %x to <{twice} x bfloat>
  %right = bitcast <{lanes} x i32> %y to <{twice} x bfloat>
  %result = call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(<{lanes} x float> %sum, <{twice} x bfloat> %left, <{twice} x bfloat> %right)
  ret <{lanes} x float> %result
}}
attributes #0 = {{ alwaysinline nounwind willreturn memory(none) }}
"""  # noqa: E501
"""TVM cannot name LLVM's bfloat: the instruction is wrapped in a function of words, which LLVM inlines."""


def imported_ir(words: WordFormat, lanes: int) -> str:
    """LLVM text that a module of these kernels needs, empty where TVM can say it all."""
    if words.element != "bfloat16" or words.widened:
        return ""
    return BFLOAT16_DOT.format(lanes=lanes, twice=2 * lanes, bits=32 * lanes, symbol=f"vortex_dpbf16_{lanes}")


def dot(words: WordFormat, lanes: int, total: Any, word: Any, row: Any) -> Any:
    """`total` plus the dot products of vectors of words, of A and of B."""
    if words.widened:
        vector = f"{words.accumulator}x{lanes}"
        return T.fma(T.reinterpret(vector, word), T.reinterpret(vector, row), total)
    if words.accumulator != "int32":
        return T.call_pure_extern(f"float32x{lanes}", f"vortex_dpbf16_{lanes}", total, row, word)
    unsigned, signed = T.reinterpret(f"int8x{4 * lanes}", word), T.reinterpret(f"int8x{4 * lanes}", row)
    return T.call_llvm_pure_intrin(f"int32x{lanes}", f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total, unsigned, signed)


@dataclass(frozen=True, order=True)
class WordTile:
    """One L0 micro-kernel: `rows` broadcast words of A against `vectors` vectors of words of B."""

    rows: int
    vectors: int

    @property
    def symbol(self) -> str:
        return f"vortex_l0_words_{self.rows}x{self.vectors}"


def word_kernel(tile: WordTile, lanes: int, words: WordFormat) -> tirx.PrimFunc:
    """The L0 rKernel of `tile` on words of `words.per_word` elements, as a scheduled function

    `symbol(a, b, c, start, depth, lda, ldb, ldc, last, mode, flip)`: C[rows, columns] (+)= A[rows, depth] B[depth,
    columns] with `depth` in words and columns = (vectors - 1) * lanes + last; `lda` in elements, `ldb` and `ldc` in
    words. Bit 0 of `mode` adds to C, bit 1 begins at the row `start` of integers times what the bits above say. `flip`
    is added to every word of A, bit by bit.
    """
    kernel = filled(_form(tile.rows >= tile.vectors, lanes, words), tile.symbol, tile.rows, tile.vectors)
    sums, word_names = vector_intrinsics(lanes, words.accumulator), vector_intrinsics(lanes, "int32")
    placing = [("load", sums.load, 0), ("zero", sums.zero, 0), ("fetch", word_names.load, 1), ("store", sums.store, 0)]
    begins = [("begin", sums.load, 0)] if words.accumulator == "int32" else []
    return placed(kernel, placing + begins).mod["main"]


@cache
def _form(tall: bool, lanes: int, words: WordFormat) -> tirx.PrimFunc:
    """The kernel of every tile that is `tall`, or that is not; its last parameters are what `word_kernel` fills in."""
    rows, vectors = (tirx.Var(name, "int32") for name in ("rows", "vectors"))
    columns = vectors * lanes
    per_word, sum_type, widened = words.per_word, words.accumulator, words.widened
    element, item = ("int32", 4) if widened else (words.stored, words.item_bytes)
    integer = sum_type == "int32"
    nothing = tirx.const(0, sum_type)
    stages = tile_stages(rows, vectors, lanes, sum_type)

    def word_of(source: tirx.Buffer, row: Any, at: Any) -> Any:
        if per_word == 1:
            return source[row, at]
        return T.reinterpret("int32", source[row, T.ramp(at * per_word, 1, per_word)])

    def flipped(word: Any, flip: Any) -> Any:
        return T.bitwise_xor(word, T.broadcast(flip, lanes)) if integer else word

    @T.inline
    def fetch(B: Any, row: Any, mask: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("fetch"):
                vk = T.axis.spatial(B.shape[0], k)
                vj = T.axis.spatial(columns, j * lanes + l)
                row[vj] = T.if_then_else(mask[vj] != 0, B[vk, vj], T.int32(0))

    @T.inline
    def compute(A: Any, row: Any, acc: Any, flip: Any, depth: Any, k: Any, i: Any, j: Any) -> None:
        with T.sblock("compute"):
            vk = T.axis.reduce(depth, k)
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(
                A[vi, vk * per_word : vk * per_word + per_word],
                row[vj * lanes : vj * lanes + lanes],
                acc[vi, vj * lanes : vj * lanes + lanes],
            )
            T.writes(acc[vi, vj * lanes : vj * lanes + lanes])
            acc[vi, T.ramp(vj * lanes, 1, lanes)] = dot(
                words,
                lanes,
                acc[vi, T.ramp(vj * lanes, 1, lanes)],
                flipped(T.broadcast(word_of(A, vi, vk), lanes), flip),
                row[T.ramp(vj * lanes, 1, lanes)],
            )

    @T.prim_func(s_tir=True, check_well_formed=False)  # its extents are free until `with_extents`
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
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (rows, depth * per_word), element, align=item, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (depth, columns), "int32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), sum_type, align=4, strides=[ldc, T.int64(1)])
        Start = T.match_buffer(start, (columns,), sum_type, align=4)
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((vectors * lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), sum_type, scope="local")
            row = T.sblock_alloc_buffer((columns,), "int32", scope="local")
            begin = T.sblock_alloc_buffer((columns,), sum_type, scope="local")
            stages.masks(mask, last)
            stages.begin(acc, mask, C, T.bitwise_and(mode, 1) != 0)
            if integer:  # noqa: SIM102
                if T.bitwise_and(mode, 2) != 0:
                    for j in T.unroll(vectors):
                        for l in range(lanes):
                            with T.sblock("begin"):
                                vj = T.axis.spatial(columns, j * lanes + l)
                                begin[vj] = T.if_then_else(mask[vj] != 0, Start[vj], nothing)
                        for i in T.unroll(rows):
                            with T.sblock("start"):
                                vi, vj = T.axis.remap("SS", [i, j])
                                T.reads(
                                    acc[vi, vj * lanes : vj * lanes + lanes], begin[vj * lanes : vj * lanes + lanes]
                                )
                                T.writes(acc[vi, vj * lanes : vj * lanes + lanes])
                                acc[vi, T.ramp(vj * lanes, 1, lanes)] = acc[vi, T.ramp(vj * lanes, 1, lanes)] + begin[
                                    T.ramp(vj * lanes, 1, lanes)
                                ] * T.broadcast(T.shift_right(mode, T.int32(2)), lanes)
            for k in T.serial(depth):
                if tall:
                    for j in range(vectors):
                        fetch(B, row, mask, k, j)
                    for i in T.unroll(rows):
                        for j in T.unroll(vectors):
                            compute(A, row, acc, flip, depth, k, i, j)
                else:
                    for j in T.unroll(vectors):
                        fetch(B, row, mask, k, j)
                        for i in T.unroll(rows):
                            compute(A, row, acc, flip, depth, k, i, j)
            stages.end(C, mask, acc)

    return with_extents(kernel, rows, vectors)
