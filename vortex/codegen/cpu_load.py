"""Load stages of L1 on CPUs: rows copied or transposed into the CacheBuffer."""

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import fetch, masked_load, masked_store, placed, vector_intrinsics

COPY_SYMBOL = "vortex_copy"
TRANSPOSE_SYMBOL = "vortex_transpose"


def copy_kernel(lanes: int) -> tirx.PrimFunc:
    """Load stage: `vortex_copy(source, target, rows, columns, source_stride, target_stride)`, strides in elements."""

    @T.prim_func(s_tir=True)
    def copy(
        source: T.handle,
        target: T.handle,
        rows: T.int64,
        columns: T.int64,
        source_stride: T.int64,
        target_stride: T.int64,
    ):
        T.func_attr({"global_symbol": COPY_SYMBOL, "tirx.noalias": True})
        S = T.match_buffer(source, (rows, columns), "float32", align=4, strides=[source_stride, T.int64(1)])
        D = T.match_buffer(target, (rows, columns), "float32", align=4, strides=[target_stride, T.int64(1)])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((lanes,), "int32", scope="local")
            vector = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            whole = T.meta_var(columns // lanes)
            for i in T.serial(rows):
                for j in T.serial(whole):
                    with T.sblock("vector"):
                        vi = T.axis.spatial(rows, i)
                        vj = T.axis.spatial(whole, j)
                        T.reads(S[vi, vj * lanes : vj * lanes + lanes])
                        T.writes(D[vi, vj * lanes : vj * lanes + lanes])
                        D[vi, T.ramp(vj * lanes, 1, lanes)] = S[vi, T.ramp(vj * lanes, 1, lanes)]
                for _ in T.serial((columns + lanes - 1) // lanes - whole):
                    for l in T.vectorized(lanes):
                        with T.sblock("mask"):
                            v = T.axis.spatial(lanes, l)
                            mask[v] = T.Select(T.Cast("int64", v) < columns - whole * lanes, T.int32(1), T.int32(0))
                    for l in range(lanes):
                        with T.sblock("load"):
                            vi = T.axis.spatial(rows, i)
                            v = T.axis.spatial(lanes, l)
                            vector[v] = T.if_then_else(mask[v] != 0, S[vi, whole * lanes + v], T.float32(0))
                    for l in range(lanes):
                        with T.sblock("store"):
                            vi = T.axis.spatial(rows, i)
                            v = T.axis.spatial(lanes, l)
                            D[vi, whole * lanes + v] = T.if_then_else(mask[v] != 0, vector[v], T.float32(0))

    names = vector_intrinsics(lanes)
    return placed(copy, (("load", names.load, 2), ("store", names.store, 2))).mod["main"]


def zipped(count: int) -> tuple[list[int], list[int]]:
    """The lanes of two vectors taken by turns: what makes the first vector of the result, and the second."""
    first, second = range(count // 2), range(count // 2, count)
    return [x for i in first for x in (i, count + i)], [x for i in second for x in (i, count + i)]


def shuffled(block: tirx.Buffer, row: Any, target: Any, lanes: int) -> None:
    """One step of a transposition: the rows `row` and lanes / 2 further become `target` and the one after it."""
    pair = [block[T.ramp(x * lanes, 1, lanes)] for x in (row, row + lanes // 2)]
    for half, order in enumerate(zipped(lanes)):
        T.buffer_store(block, T.Shuffle(pair, order), [T.ramp((target + half) * lanes, 1, lanes)])


def turning(lanes: int) -> tuple[int, Callable[[Any], None]]:
    """How a square block of registers is transposed: in so many rounds, each into the `lanes` rows behind its own, of
    which the last ones hold the result; and the statements of it in TVMScript, for one use in one kernel."""
    rounds = lanes.bit_length() - 1

    @T.inline
    def turn(block: Any) -> None:
        for r in T.unroll(rounds):
            for j in T.unroll(lanes // 2):
                shuffled(block, r * lanes + j, (r + 1) * lanes + 2 * j, lanes)

    return rounds, turn


def transpose_kernel(lanes: int) -> tirx.PrimFunc:
    """Load stage: target[i, j] = source[j, i] over `rows` x `columns` of the target, in square blocks of registers.

    Few rows take smaller ones: more vectors, but fewer shuffles, and of half a vector.
    """
    few = lanes // 2
    squares, narrow = transposition(lanes), transposition(few)

    @T.prim_func(s_tir=True)
    def transpose(
        source: T.handle,
        target: T.handle,
        rows: T.int64,
        columns: T.int64,
        source_stride: T.int64,
        target_stride: T.int64,
    ):
        T.func_attr({"global_symbol": TRANSPOSE_SYMBOL, "tirx.noalias": True})
        # Flat, so that a multiple of a stride is the same in every round of a loop; LLVM does not find that in rows.
        S = T.match_buffer(source, (columns * source_stride,), "float32", align=4)
        D = T.match_buffer(target, (rows * target_stride,), "float32", align=4)
        with T.sblock("root"):
            if rows > few:
                squares(S, D, rows, columns, source_stride, target_stride)
            else:
                narrow(S, D, rows, columns, source_stride, target_stride)

    return transpose


def transposition(side: int) -> Callable[..., None]:
    """Statements that transpose squares of this side: as many vector loads, rounds of shuffles, as many vector stores,
    masked at an edge."""
    rounds, turn = turning(side)

    def inside(count: Any) -> Any:
        return T.ramp(0, 1, side) < T.broadcast(count, side)

    @T.inline
    def square(
        S: Any, D: Any, block: Any, of: Any, to: Any, ss: Any, ds: Any, wide: Any, tall: Any, whole: bool
    ) -> None:
        """`wide` columns of `tall` rows from S[of] to D[to]; the rows are known to be all of a square, or not."""
        # The rows that are next: each is a stream of its own, too short for hardware to follow.
        for j in T.unroll(side):
            T.evaluate(fetch(T.address_of(S[of + side * ss + j * ss])))
        for j in T.unroll(side):
            if whole or j < tall:
                block[T.ramp(j * side, 1, side)] = masked_load(T.address_of(S[of + j * ss]), inside(wide), side)
            else:
                block[T.ramp(j * side, 1, side)] = T.broadcast(T.float32(0), side)
        turn(block)
        for i in T.unroll(side):
            if i < wide:
                if whole:
                    D[T.ramp(to + i * ds, 1, side)] = block[T.ramp((rounds * side + i) * side, 1, side)]
                else:
                    T.evaluate(
                        masked_store(
                            block[T.ramp((rounds * side + i) * side, 1, side)],
                            T.address_of(D[to + i * ds]),
                            inside(tall),
                        )
                    )

    @T.inline
    def band(S: Any, D: Any, block: Any, first: Any, rows: Any, tall: Any, ss: Any, ds: Any, whole: bool) -> None:
        for io in T.serial(T.truncdiv(rows + side - 1, side)):
            wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(side), rows - io * side))
            square(S, D, block, first * ss + io * side, io * side * ds + first, ss, ds, wide, tall, whole)

    @T.inline
    def squares(S: Any, D: Any, rows: Any, columns: Any, ss: Any, ds: Any) -> None:
        block = T.sblock_alloc_buffer(((rounds + 1) * side * side,), "float32", scope="local")
        bands: T.let[T.int64] = T.truncdiv(columns, side)
        for jo in T.serial(bands):
            band(S, D, block, jo * side, rows, side, ss, ds, True)
        for _ in T.serial(T.truncdiv(columns + side - 1, side) - bands):
            band(S, D, block, bands * side, rows, T.Cast("int32", columns - bands * side), ss, ds, False)

    return squares
