"""Load stages of L1 on CPUs: rows copied or transposed into the CacheBuffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import fetch, masked_load, masked_store, placed, vector_intrinsics

COPY_SYMBOL = "vortex_copy"
TRANSPOSE_SYMBOL = "vortex_transpose"
PAST_SYMBOL = "vortex_past"
PAST_IR = f"""define weak_odr hidden i32 @{PAST_SYMBOL}(ptr %place, i32 %bytes) #0 {{
  %address = ptrtoint ptr %place to i64
  %low = trunc i64 %address to i32
  %below = sub i32 %bytes, 1
  %past = and i32 %low, %below
  ret i32 %past
}}
attributes #0 = {{ alwaysinline nounwind }}
"""
"""LLVM text that a module of `transpose_kernel` needs: TVM has no number of an address."""
LONG = 4
"""Squares from which on a band begins with a narrower one, so that the others lie on whole vectors: 192 rows that are
4 KiB apart and begin in the middle of a line then take 0.56 of the time on a Zen 4."""


def copy_kernel(lanes: int) -> tirx.PrimFunc:
    """Load stage: `vortex_copy(source, target, rows, columns, source_stride, target_stride)`, strides in elements."""

    @T.inline
    def pair(S: Any, D: Any, i: Any, j: Any) -> None:
        with T.sblock("pair"):
            vi = T.axis.spatial(S.shape[0], i)
            vj = T.axis.spatial(S.shape[1], j * 2 * lanes)
            T.reads(S[vi, vj : vj + 2 * lanes])
            T.writes(D[vi, vj : vj + 2 * lanes])
            for half in T.unroll(2):
                D[vi, T.ramp(vj + half * lanes, 1, lanes)] = S[vi, T.ramp(vj + half * lanes, 1, lanes)]

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
            # Two vectors at a time: of a loop over single ones LLVM makes a call of memcpy, for each row of a panel.
            pairs = T.meta_var(whole // 2)
            if columns == 2 * lanes:
                for i in T.serial(rows):
                    pair(S, D, i, 0)
            else:
                for i in T.serial(rows):
                    for j in T.serial(pairs):
                        pair(S, D, i, j)
                    if whole % 2 != 0:
                        with T.sblock("odd"):
                            vi = T.axis.spatial(rows, i)
                            T.reads(S[vi, whole * lanes - lanes : whole * lanes])
                            T.writes(D[vi, whole * lanes - lanes : whole * lanes])
                            D[vi, T.ramp(whole * lanes - lanes, 1, lanes)] = S[
                                vi, T.ramp(whole * lanes - lanes, 1, lanes)
                            ]
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


LANE = 4
"""Elements in 128 bits: a shuffle within these is one instruction of three operands, which Zen 5 does twice a cycle."""


def zipped(lanes: int, within: int, count: int = 1) -> tuple[list[int], list[int]]:
    """Of two vectors by turns `count` elements, in each `within` of them: those of the first halves, of the second."""
    half = within // 2
    first, second = (
        [
            of + part + x + i
            for part in range(0, lanes, within)
            for x in range(start, start + half, count)
            for of in (0, lanes)
            for i in range(count)
        ]
        for start in (0, half)
    )
    return first, second


def dealt(lanes: int) -> tuple[list[int], list[int]]:
    """Every other 128 bits of two vectors: from the first on, from the second on."""
    first, second = (
        [of + corner + i for of in (0, lanes) for corner in range(start, lanes, 2 * LANE) for i in range(LANE)]
        for start in (0, LANE)
    )
    return first, second


@dataclass(frozen=True)
class Exchange:
    """Two registers become two others, in these orders of both's elements."""

    sources: tuple[int, int]
    targets: tuple[int, int]
    orders: tuple[list[int], list[int]]


def exchanges(lanes: int) -> list[list[Exchange]]:
    """Rounds that transpose a square of as many registers: first squares of LANE elements within 128 bits, then what
    these make up."""
    pairs, squares = zipped(lanes, min(LANE, lanes)), range(lanes // LANE)
    singles = [Exchange((2 * i, 2 * i + 1), (2 * i, 2 * i + 1), pairs) for i in range(lanes // 2)]
    doubles = [
        Exchange((q * LANE + h, q * LANE + 2 + h), (q * LANE + 2 * h, q * LANE + 2 * h + 1), zipped(lanes, LANE, 2))
        for q in squares
        for h in range(2)
    ]
    across = [
        Exchange((2 * q * LANE + c, (2 * q + 1) * LANE + c), (q * LANE + c, q * LANE + lanes // 2 + c), dealt(lanes))
        for q in squares[: len(squares) // 2]
        for c in range(LANE)
    ]
    return [singles, *([doubles] if squares else []), *([across] * (len(squares).bit_length() - 1))]


def turn(block: tirx.Buffer, lanes: int) -> None:
    """Statements that transpose the first `lanes` rows of a block of registers, each round into the rows behind its
    own: the last ones hold the result."""
    for r, pairs in enumerate(exchanges(lanes)):
        for exchange in pairs:
            found = [block[T.ramp((r * lanes + row) * lanes, 1, lanes)] for row in exchange.sources]
            for row, order in zip(exchange.targets, exchange.orders, strict=True):
                T.buffer_store(block, T.Shuffle(found, order), [T.ramp(((r + 1) * lanes + row) * lanes, 1, lanes)])


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
    rounds = len(exchanges(side))

    def inside(count: Any) -> Any:
        return T.ramp(0, 1, side) < T.broadcast(count, side)

    @T.inline
    def square(
        S: Any, D: Any, block: Any, of: Any, to: Any, ss: Any, ds: Any, wide: Any, tall: Any, whole: bool
    ) -> None:
        """`wide` columns of `tall` rows from S[of] to D[to]; the rows are known to be all of a square, or not."""
        # The rows that are next: each is a stream of its own, too short for hardware to follow. Into L2: they may all
        # be of one set of L1, which has half as many ways, and push out what is read (1.2 times as fast on a Zen 4).
        for j in T.unroll(side):
            T.evaluate(fetch(T.address_of(S[of + side * ss + j * ss]), cache=2))
        for j in T.unroll(side):
            if whole or j < tall:
                block[T.ramp(j * side, 1, side)] = masked_load(T.address_of(S[of + j * ss]), inside(wide), side)
            else:
                block[T.ramp(j * side, 1, side)] = T.broadcast(T.float32(0), side)
        turn(block, side)
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
    def band(
        S: Any, D: Any, block: Any, first: Any, rows: Any, past: Any, tall: Any, ss: Any, ds: Any, whole: bool
    ) -> None:
        for io in T.serial(T.truncdiv(rows + past + side - 1, side)):
            begin: T.let[T.int64] = T.max(io * side - past, T.int64(0))
            wide: T.let[T.int32] = T.Cast("int32", T.min(io * side + side - past, rows) - begin)
            square(S, D, block, first * ss + begin, begin * ds + first, ss, ds, wide, tall, whole)

    @T.inline
    def squares(S: Any, D: Any, rows: Any, columns: Any, ss: Any, ds: Any) -> None:
        block = T.sblock_alloc_buffer(((rounds + 1) * side * side,), "float32", scope="local")
        bands: T.let[T.int64] = T.truncdiv(columns, side)
        # Squares that lie across lines are read from L2 twice where rows start in one set of L1, which has fewer ways.
        shift: T.let[T.int32] = T.call_extern("int32", PAST_SYMBOL, T.address_of(S[0]), T.int32(4 * side))
        alike: T.let[T.bool] = T.And(rows >= LONG * side, T.truncmod(ss, T.int64(side)) == 0)
        past: T.let[T.int64] = T.Select(alike, T.Cast("int64", T.truncdiv(shift, 4)), T.int64(0))
        for jo in T.serial(bands):
            band(S, D, block, jo * side, rows, past, side, ss, ds, True)
        for _ in T.serial(T.truncdiv(columns + side - 1, side) - bands):
            band(S, D, block, bands * side, rows, past, T.Cast("int32", columns - bands * side), ss, ds, False)

    return squares
