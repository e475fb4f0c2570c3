"""All steps of k of a register tile: rows of B are loaded and multiplied, and rows of what comes next asked for."""

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_tile import LINE, Intrinsics, fetch

STEPS = 2
"""Of k in a turn of the loop, whose own instructions take slots of the multiply-add units on Intel's cores: with one,
6 x 64 went at 160 GFLOP/s on a Granite Rapids that does 170 to 175 with two or four."""
NARROW = 8
"""Lanes of AVX2, whose 16 registers the sums of a tall tile fill: LLVM would spill some for loads of a second step."""


def step_blocks(names: Intrinsics) -> tuple[tuple[str, str, int], ...]:
    """Where the blocks of `reduction` are placed."""
    return (
        ("fetch", names.read, 1),
        ("compute", names.multiply_add, 1),
        ("fetch_edge", names.load, 1),
        ("compute_edge", names.multiply_add, 1),
    )


def reduction(rows: Any, vectors: Any, lanes: int, tall: bool) -> Callable[..., None]:
    """Statements in TVMScript, for one use in one kernel: all of k, for a tile that is `tall` or not."""
    columns, steps = vectors * lanes, STEPS if lanes > NARROW else 1
    lines = T.ceildiv(columns, LINE)

    @T.inline
    def fetch_row(B: Any, row: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("fetch"):
                vk = T.axis.spatial(B.shape[0], k)
                vj = T.axis.spatial(columns, j * lanes + l)
                row[vj] = B[vk, vj]

    @T.inline
    def fetch_edge(B: Any, row: Any, mask: Any, done: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("fetch_edge"):
                vk = T.axis.spatial(B.shape[0], k)
                vj = T.axis.spatial(columns, j * lanes + l)
                row[vj] = T.if_then_else(mask[vj] != 0, B[done + vk, vj], T.float32(0))

    @T.inline
    def compute(A: Any, row: Any, acc: Any, k: Any, i: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("compute"):
                vk = T.axis.reduce(A.shape[1], k)
                vi = T.axis.spatial(rows, i)
                vj = T.axis.spatial(columns, j * lanes + l)
                acc[vi, vj] = acc[vi, vj] + A[vi, vk] * row[vj]

    # Steps after the `done` ones, which a block adds itself: TVM loses what is added to a loop variable outside of it.
    @T.inline
    def compute_edge(A: Any, row: Any, acc: Any, done: Any, k: Any, i: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("compute_edge"):
                vk = T.axis.reduce(A.shape[1], k)
                vi = T.axis.spatial(rows, i)
                vj = T.axis.spatial(columns, j * lanes + l)
                acc[vi, vj] = acc[vi, vj] + A[vi, done + vk] * row[vj]

    @T.inline
    def ask(F: Any, turn: Any, every: Any, apart: Any) -> None:
        """`turn` counts the steps until the next row, and the rows."""
        with T.sblock("ask"):
            T.reads(turn[0:2])
            T.writes(turn[0:2])
            if turn[0] == 0:
                if every == 0:
                    for r, q in T.grid(steps, lines):
                        T.evaluate(fetch(T.address_of(F[turn[1] + r, q * LINE])))
                else:
                    for r, q in T.grid(steps, lines):
                        T.evaluate(fetch(T.address_of(F[turn[1] + r, q * LINE]), cache=2))
                # A row that starts within a line ends in one more: the next row's, where they follow each other.
                if apart > T.Cast("int64", columns):
                    for r in range(steps):
                        T.evaluate(fetch(T.address_of(F[turn[1] + r, columns - 1]), cache=2))
                turn[0] = T.max(every, T.int64(1))
                turn[1] = turn[1] + steps
            turn[0] = turn[0] - 1

    @T.inline
    def reduce(
        A: Any,
        B: Any,
        F: Any,
        mask: Any,
        row: Any,
        acc: Any,
        turn: Any,
        depth: Any,
        every: Any,
        apart: Any,
        last: Any,
    ) -> None:
        with T.sblock("start"):
            T.reads()
            T.writes(turn[0:2])
            turn[0] = T.int64(0)
            turn[1] = T.int64(0)
        # A lane mask at each load takes such slots too: whole vectors are read also past an edge, as far as rows of B
        # follow. The last ones come after the loop, as an odd step does.
        overrun: T.let[T.int64] = 1 + T.truncdiv(T.int64(lanes - 1), T.max(apart, T.int64(1)))
        inside: T.let[T.int64] = T.Select(last == lanes, depth, T.max(depth - overrun, T.int64(0)))
        for k in T.serial(T.truncdiv(inside, T.int64(steps))):
            for step in T.serial(T.int64(steps)):
                if tall:
                    for j in range(vectors):
                        fetch_row(B, row, k * steps + step, j)
                    for i, j in T.grid(rows, vectors):
                        compute(A, row, acc, k * steps + step, i, j)
                else:
                    for j in range(vectors):
                        fetch_row(B, row, k * steps + step, j)
                        for i in range(rows):
                            compute(A, row, acc, k * steps + step, i, j)
            # After the arithmetic: a branch before it makes LLVM spill accumulators (10x2 and 6x4: half the speed).
            ask(F, turn, every, apart)
        done: T.let[T.int64] = T.truncdiv(inside, T.int64(steps)) * steps
        for k in T.serial(depth - done):
            if tall:
                for j in range(vectors):
                    fetch_edge(B, row, mask, done, k, j)
                for i, j in T.grid(rows, vectors):
                    compute_edge(A, row, acc, done, k, i, j)
            else:
                for j in range(vectors):
                    fetch_edge(B, row, mask, done, k, j)
                    for i in range(rows):
                        compute_edge(A, row, acc, done, k, i, j)

    return reduce
