"""L0 of a direct convolution on CPUs: a register tile whose reduction walks the taps of a filter, then its channels.

Rows of the tile are output pixels whose inputs are equally far apart, so that A is the input as it lies in memory: the
address arithmetic of the implicit GEMM is one stride for each of the loops, and no pixel is copied. Accumulators stay
in registers over all taps; they are one chain of fused multiply-adds in the order of columns, rows and channels of the
filter, whatever the tile.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_steps import NARROW, NARROW_STEPS, settled, steps_of
from vortex.codegen.cpu_tile import (
    ADDS,
    STREAMS,
    filled,
    placed,
    tile_stages,
    vector_intrinsics,
    with_extents,
)


def conv_symbol(rows: int, vectors: int) -> str:
    return f"vortex_conv_{rows}x{vectors}"


def conv_kernel(rows: int, vectors: int, lanes: int) -> tirx.PrimFunc:
    """C[rows, columns] (+)= sum over s, r and k of A[s * a_s + r * a_r + row * lda + k] B[s * b_s + r * b_r + k].

    `symbol(a, b, c, depth, taps_s, taps_r, a_s, a_r, b_s, b_r, lda, ldb, ldc, last, how)`: strides in elements; B is a
    panel of at least `vectors * lanes` columns, and the last vector of C has `last`. `how` says whether C is added to,
    and whether whole lines of it are written past the caches.
    """
    # LLVM repeats the loop of AVX-512 by itself, without the addresses of further rows that spill sums of 6 x 4.
    wide = lanes > NARROW
    form = _form(wide or rows >= vectors, lanes, 1 if wide else steps_of(rows, lanes))
    kernel = filled(form, conv_symbol(rows, vectors), rows, vectors)
    names = vector_intrinsics(lanes)
    return placed(
        kernel,
        (
            ("load", names.load, 0),
            ("zero", names.zero, 0),
            ("fetch", names.read, 3),
            ("compute", names.multiply_add, 3),
            ("fetch_edge", names.read, 3),
            ("compute_edge", names.multiply_add, 3),
            ("store", names.store, 0),
        ),
    ).mod["main"]


@cache
def _form(tall: bool, lanes: int, steps: int) -> tirx.PrimFunc:
    """The kernel of every tile that is `tall`, or that is not, with `steps` of k in a turn; its last parameters are
    those that `conv_kernel` fills in."""
    rows, vectors = (tirx.Var(name, "int32") for name in ("rows", "vectors"))
    columns, settles = vectors * lanes, steps == NARROW_STEPS
    tile = tile_stages(rows, vectors, lanes)

    @T.inline
    def fetch(B: Any, row: Any, s: Any, r: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("fetch"):
                vs, vr = T.axis.remap("SS", [s, r])
                vk = T.axis.spatial(B.shape[2], k)
                vj = T.axis.spatial(columns, j * lanes + l)
                row[vj] = B[vs, vr, vk, vj]

    @T.inline
    def compute(A: Any, row: Any, acc: Any, s: Any, r: Any, k: Any, i: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("compute"):
                vs, vr = T.axis.remap("RR", [s, r])
                vk = T.axis.reduce(A.shape[3], k)
                vi = T.axis.spatial(rows, i)
                vj = T.axis.spatial(columns, j * lanes + l)
                acc[vi, vj] = acc[vi, vj] + A[vs, vr, vi, vk] * row[vj]

    @T.inline
    def fetch_edge(B: Any, row: Any, s: Any, r: Any, done: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("fetch_edge"):
                vs, vr, vk = T.axis.remap("SSS", [s, r, k])
                vj = T.axis.spatial(columns, j * lanes + l)
                row[vj] = B[vs, vr, done + vk, vj]

    @T.inline
    def compute_edge(A: Any, row: Any, acc: Any, s: Any, r: Any, done: Any, k: Any, i: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("compute_edge"):
                vs, vr, vk = T.axis.remap("RRR", [s, r, k])
                vi = T.axis.spatial(rows, i)
                vj = T.axis.spatial(columns, j * lanes + l)
                acc[vi, vj] = acc[vi, vj] + A[vs, vr, vi, done + vk] * row[vj]

    @T.prim_func(s_tir=True, check_well_formed=False)  # its extents are free until `with_extents`
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        depth: T.int64,
        taps_s: T.int64,
        taps_r: T.int64,
        a_s: T.int64,
        a_r: T.int64,
        b_s: T.int64,
        b_r: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        last: T.int32,
        how: T.int32,
    ):
        T.func_attr({"tirx.noalias": True})
        A = T.match_buffer(a, (taps_s, taps_r, rows, depth), "float32", align=4, strides=[a_s, a_r, lda, T.int64(1)])
        B = T.match_buffer(b, (taps_s, taps_r, depth, columns), "float32", align=4, strides=[b_s, b_r, ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((vectors * lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((rows, columns), "float32", scope="local")
            row = T.sblock_alloc_buffer((columns,), "float32", scope="local")
            tile.masks(mask, last)
            tile.begin(acc, mask, C, T.bitwise_and(how, ADDS) != 0)
            done: T.let[T.int64] = T.truncdiv(depth, T.int64(steps)) * steps
            for s, r in T.grid(taps_s, taps_r):
                for k in T.serial(T.truncdiv(depth, T.int64(steps))):
                    for step in T.serial(T.int64(steps)):
                        if tall:
                            for j in range(vectors):
                                fetch(B, row, s, r, k * steps + step, j)
                            for i, j in T.grid(rows, vectors):
                                compute(A, row, acc, s, r, k * steps + step, i, j)
                        else:
                            for j in range(vectors):
                                fetch(B, row, s, r, k * steps + step, j)
                                for i in range(rows):
                                    compute(A, row, acc, s, r, k * steps + step, i, j)
                        if settles:
                            settled(acc, rows, vectors, lanes)
                for k in T.serial(depth - done):
                    for j in range(vectors):
                        fetch_edge(B, row, s, r, done, k, j)
                        for i in range(rows):
                            compute_edge(A, row, acc, s, r, done, k, i, j)
            if T.bitwise_and(how, STREAMS) != 0:
                tile.stream(C, acc)
            else:
                tile.end(C, mask, acc)

    return with_extents(kernel, rows, vectors)
