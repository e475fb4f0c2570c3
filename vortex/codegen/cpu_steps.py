"""All steps of k of a register tile: rows of B are loaded and multiplied, and rows of what comes next asked for."""

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_tile import LINE, Intrinsics, fetch

STEPS = 2
"""Of k in a turn of the loop, whose own instructions take slots of the multiply-add units on Intel's cores: with one,
6 x 64 went at 160 GFLOP/s on a Granite Rapids that does 170 to 175 with two or four."""
NARROW, NARROW_STEPS, NARROW_ROWS = 8, 4, 8
"""Lanes of AVX2; steps of k in a turn there, of tiles of at most so many rows: of the 28 instructions of 6 x 16 with
one, 20 are its multiply-adds and their loads, and a core that two threads share has slots for 18 while it multiplies.
Sums fill most of its 16 registers: no step may be loaded before it begins. Of taller tiles LLVM spills some then."""
STEP = 16
"""What a step of k counts where kernels are told how often to ask for a row. In whole steps, of 2.46 that 13 rows of A
need for a row of two lines, 2 were taken: all was asked for when a tile was four fifths done, and memory had nothing to
do in the last one. 580768 x 32 x 1323 took 198 ms on two threads of a Granite Rapids and takes 174."""
SETTLE_SYMBOL = "vortex_settle"


def settle_ir(lanes: int) -> str:
    """LLVM text that a module of kernels which settle sums needs beside `stream_ir`."""
    register = "x" if lanes <= NARROW else "v"
    return f"""define weak_odr hidden i32 @{SETTLE_SYMBOL}(ptr %place) #0 {{
  %sums = load <{lanes} x float>, ptr %place, align 4
  %same = call <{lanes} x float> asm sideeffect "", "={register},0,~{{memory}}"(<{lanes} x float> %sums)
  store <{lanes} x float> %same, ptr %place, align 4
  ret i32 0
}}
"""


@T.inline
def settled(acc: Any, rows: Any, vectors: Any, lanes: Any) -> None:
    """No instructions, but for LLVM some that take all sums and give them back: what is added before is added by then,
    and what is read afterwards is not loaded earlier."""
    for i, j in T.grid(rows, vectors):
        with T.sblock("settle"):
            vi = T.axis.spatial(rows, i)
            vj = T.axis.spatial(vectors, j)
            T.reads(acc[vi, vj * lanes : vj * lanes + lanes])
            T.writes(acc[vi, vj * lanes : vj * lanes + lanes])
            T.evaluate(T.call_extern("int32", SETTLE_SYMBOL, T.address_of(acc[vi, vj * lanes])))


def step_blocks(names: Intrinsics, keeps: bool = False) -> tuple[tuple[str, str, int], ...]:
    """Where the blocks of `reduction` are placed."""
    kept = (("keep", names.store, 1),) if keeps else ()
    return (
        ("fetch", names.read, 1),
        ("compute", names.multiply_add, 1),
        ("fetch_edge", names.load, 1),
        ("compute_edge", names.multiply_add, 1),
        *kept,
    )


def steps_of(rows: int, lanes: int) -> int:
    """Steps of k in a turn of the loop of a tile of `rows`."""
    if lanes > NARROW:
        return STEPS
    return NARROW_STEPS if rows <= NARROW_ROWS else 1


def reduction(rows: Any, vectors: Any, lanes: int, tall: bool, steps: int, keeps: bool = False) -> Callable[..., None]:
    """Statements in TVMScript, for one use in one kernel: all of k, for a tile that is `tall` or not.

    One that `keeps`, of whole vectors and a step of k in a turn, writes the rows of B that it reads to K, one after the
    other, right away: LLVM would load all elements of A before a store that comes after the arithmetic, and spill them.
    """
    columns, settles = vectors * lanes, keeps or steps == NARROW_STEPS
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
    def keep(K: Any, row: Any, mask: Any, k: Any, j: Any) -> None:
        for l in range(lanes):
            with T.sblock("keep"):
                vk = T.axis.spatial(K.shape[0], k)
                vj = T.axis.spatial(columns, j * lanes + l)
                K[vk, vj] = T.if_then_else(mask[vj] != 0, row[vj], T.float32(0))

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
        """`turn` counts what is left until the next rows, and the rows."""
        with T.sblock("ask"):
            T.reads(turn[0:2])
            T.writes(turn[0:2])
            turn[0] = turn[0] - STEP
            if turn[0] < 0:
                first: T.let[T.int64] = turn[1]
                # A row that starts within a line ends in one more: the next row's, where they follow each other. Behind
                # the others LLVM would make its address anew, from what it keeps on the stack.
                if apart > T.Cast("int64", columns):
                    for r in T.unroll(steps):
                        T.evaluate(fetch(T.address_of(F[first + r, columns - 1]), cache=2))
                if every == 0:
                    for r in T.unroll(steps):
                        for q in T.unroll(lines):
                            T.evaluate(fetch(T.address_of(F[first + r, q * LINE])))
                else:
                    for r in T.unroll(steps):
                        for q in T.unroll(lines):
                            T.evaluate(fetch(T.address_of(F[first + r, q * LINE]), cache=2))
                turn[0] = turn[0] + T.max(every, T.int64(STEP))
                turn[1] = turn[1] + steps

    @T.inline
    def reduce(
        A: Any,
        B: Any,
        F: Any,
        K: Any,
        mask: Any,
        row: Any,
        acc: Any,
        turn: Any,
        depth: Any,
        every: Any,
        apart: Any,
        beyond: Any,
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
                        if keeps:
                            keep(K, row, mask, k * steps + step, j)
                    for i, j in T.grid(rows, vectors):
                        compute(A, row, acc, k * steps + step, i, j)
                else:
                    for j in range(vectors):
                        fetch_row(B, row, k * steps + step, j)
                        if keeps:
                            keep(K, row, mask, k * steps + step, j)
                        for i in range(rows):
                            compute(A, row, acc, k * steps + step, i, j)
                if settles:
                    settled(acc, rows, vectors, lanes)
            # After the arithmetic: a branch before it makes LLVM spill accumulators (10x2 and 6x4: half the speed).
            ask(F, turn, every, beyond)
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
