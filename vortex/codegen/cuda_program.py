"""The GEMM that every tile strategy of a GPU schedules: three pad stages around one multiply-accumulate.

Extents and strides are run-time values. A and B are read through pad stages that are zero past the operands, the
accumulation runs over whole tiles without a predicate, and C is written inside its extents only: inlined, the
predicates end up on global accesses and nowhere else (local padding).

`chunk` elements of k belong to one split. Split 0 alone is an ordinary product; with several, `C` is the workspace of
partial sums, dense in [splits, m, n], in float32 or, of int8, in int32.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from tvm import s_tir, tirx
from tvm.script import tirx as T

from vortex.candidates import Tile
from vortex.dtypes import SUMS

STORAGE = {
    "float32": "float32",
    "tfloat32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
}
"""What an element type is stored as: TF32 is float32 in memory, rounded on its way into a fragment."""


def gemm(symbol: str, dtype: str, tile: Tile, transpose_a: bool, transpose_b: bool) -> tirx.PrimFunc:
    """C[s, i, j] = sum over k of split s of A[i, k] B[k, j], padded to whole tiles inside."""
    storage, sums = STORAGE[dtype], SUMS.get(dtype, "float32")
    rows, columns, depth = tile.m, tile.n, tile.k

    @T.prim_func(s_tir=True)
    def program(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        M: T.int32,
        N: T.int32,
        K: T.int32,
        lda: T.int32,
        ldb: T.int32,
        ldc: T.int32,
        chunk: T.int32,
        splits: T.int32,
    ):
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        A = T.match_buffer(a, (K if transpose_a else M, M if transpose_a else K), storage, strides=[lda, 1])
        B = T.match_buffer(b, (N if transpose_b else K, K if transpose_b else N), storage, strides=[ldb, 1])
        C = T.match_buffer(c, (splits, M, N), sums, strides=[M * ldc, ldc, 1])
        tall = T.meta_var((M + (rows - 1)) // rows * rows)
        wide = T.meta_var((N + (columns - 1)) // columns * columns)
        deep = T.meta_var((chunk + (depth - 1)) // depth * depth)
        with T.sblock("root"):
            if transpose_a:
                A_pad = T.sblock_alloc_buffer((splits, deep, tall), storage)
                for s, k, i in T.grid(splits, deep, tall):
                    with T.sblock("A_pad"):
                        vs, vk, vi = T.axis.remap("SSS", [s, k, i])
                        A_pad[vs, vk, vi] = T.if_then_else(
                            vi < M and vs * chunk + vk < K, A[vs * chunk + vk, vi], T.cast(0, storage)
                        )
            else:
                A_pad = T.sblock_alloc_buffer((splits, tall, deep), storage)
                for s, i, k in T.grid(splits, tall, deep):
                    with T.sblock("A_pad"):
                        vs, vi, vk = T.axis.remap("SSS", [s, i, k])
                        A_pad[vs, vi, vk] = T.if_then_else(
                            vi < M and vs * chunk + vk < K, A[vi, vs * chunk + vk], T.cast(0, storage)
                        )
            if transpose_b:
                B_pad = T.sblock_alloc_buffer((splits, wide, deep), storage)
                for s, j, k in T.grid(splits, wide, deep):
                    with T.sblock("B_pad"):
                        vs, vj, vk = T.axis.remap("SSS", [s, j, k])
                        B_pad[vs, vj, vk] = T.if_then_else(
                            vj < N and vs * chunk + vk < K, B[vj, vs * chunk + vk], T.cast(0, storage)
                        )
            else:
                B_pad = T.sblock_alloc_buffer((splits, deep, wide), storage)
                for s, k, j in T.grid(splits, deep, wide):
                    with T.sblock("B_pad"):
                        vs, vk, vj = T.axis.remap("SSS", [s, k, j])
                        B_pad[vs, vk, vj] = T.if_then_else(
                            vj < N and vs * chunk + vk < K, B[vs * chunk + vk, vj], T.cast(0, storage)
                        )
            product = T.sblock_alloc_buffer((splits, tall, wide), sums)
            for s, i, j, k in T.grid(splits, tall, wide, deep):
                with T.sblock("product"):
                    vs, vi, vj, vk = T.axis.remap("SSSR", [s, i, j, k])
                    with T.init():
                        product[vs, vi, vj] = T.cast(0, sums)
                    product[vs, vi, vj] = product[vs, vi, vj] + T.cast(
                        A_pad[vs, vk, vi] if transpose_a else A_pad[vs, vi, vk], sums
                    ) * T.cast(B_pad[vs, vj, vk] if transpose_b else B_pad[vs, vk, vj], sums)
            for s, i, j in T.grid(splits, M, N):
                with T.sblock("C"):
                    vs, vi, vj = T.axis.remap("SSS", [s, i, j])
                    C[vs, vi, vj] = product[vs, vi, vj]

    return program


def copy_stage(
    schedule: s_tir.Schedule, copy: Any, threads: tuple[int, int, int], vector: int, widest: int | None = None
) -> None:
    """The block's threads, of extents z, y and x, copy a stage together, `vector` elements each at a time; at most
    `widest` of them lie side by side.

    In one turn they take some columns of some rows, so that a thread's addresses differ by constants and whole rows: no
    division by an odd width, and few registers.
    """
    count = prod(threads)
    row, column = schedule.get_loops(copy)[-2:]
    rows, columns = (int(schedule.get(loop).extent) for loop in (row, column))
    side = gcd(columns // vector, count, widest or 0)
    if rows % (count // side):
        fused = schedule.fuse(row, column)
        turn, *axes, wide = schedule.split(fused, [None, *threads, vector])
    else:
        turn_row, row = schedule.split(row, [None, count // side])
        turn_column, column, wide = schedule.split(column, [None, side, vector])
        schedule.reorder(turn_row, turn_column, row, column, wide)
        turn = schedule.fuse(turn_row, turn_column)
        axes = schedule.split(schedule.fuse(row, column), list(threads))
    schedule.unroll(turn)
    for axis, extent, loop in zip("zyx", threads, axes, strict=True):
        if extent > 1 or axis == "x":
            schedule.bind(loop, f"threadIdx.{axis}")
    if vector > 1:
        schedule.vectorize(wide)
