"""All steps of k of a register tile: rows of B are loaded and multiplied, and rows of what comes next asked for."""

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from vortex.codegen.cpu_tile import LINE, PADDED, QUADS, Intrinsics, fetch

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
QUAD, QUAD_ROWS = 4, range(8, 21)
"""Steps of k whose elements of A are loaded at once where a kernel is told to (`QUADS`): half of them are broadcast
out of that register, the others from memory. With a single vector every multiply-add loads an element else, one more
than a Zen 5 has ports for: 14 rows go at 265 GFLOP/s so, of 272, and at 235 (10 out of L2 at 255 and 226). And for how
many rows: fewer wait for chains that are longer so, for more there are no registers."""
FOUR_SYMBOL, QUAD_SYMBOL = "vortex_four", "vortex_quad"
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


def quad_ir(lanes: int) -> str:
    """LLVM text that a module of kernels which load quads needs: four elements in every quarter of a vector, out of
    which LLVM shall take them; it would load each again."""
    quarters = ", ".join(f"i32 {lane % QUAD}" for lane in range(lanes))
    return f"""define weak_odr hidden <{lanes} x float> @{QUAD_SYMBOL}(<{QUAD} x float> %four) #0 {{
  %quarters = shufflevector <{QUAD} x float> %four, <{QUAD} x float> poison, <{lanes} x i32> <{quarters}>
  %same = call <{lanes} x float> asm "", "=v,0"(<{lanes} x float> %quarters)
  ret <{lanes} x float> %same
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


def loads_quads(rows: int, vectors: int, lanes: int) -> bool:
    """Whether a tile of A by rows has the statements for that: a single vector of AVX-512."""
    return lanes > NARROW and vectors == 1 and rows in QUAD_ROWS


def reduction(
    rows: Any, vectors: Any, lanes: int, tall: bool, steps: int, keeps: bool = False, quads: bool = False
) -> Callable[..., None]:
    """Statements in TVMScript, for one use in one kernel: all of k, for a tile that is `tall` or not.

    One that `keeps`, of whole vectors and a step of k in a turn, writes the rows of B that it reads to K, one after the
    other, right away: LLVM would load all elements of A before a store that comes after the arithmetic, and spill them.
    """
    columns, settles = vectors * lanes, keeps or steps == NARROW_STEPS
    quarters = [[lane // QUAD * QUAD + step for lane in range(lanes)] for step in range(QUAD)]
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
    def compute_quads(A: Any, B: Any, four: Any, quad: Any, acc: Any, k: Any) -> None:
        for s in T.unroll(QUAD):
            with T.sblock("load_quad"):
                vk = T.axis.spatial(B.shape[0], k * QUAD + s)
                vs = T.axis.spatial(QUAD, s)
                T.reads(B[vk, 0:lanes])
                T.writes(four[vs, 0:lanes])
                four[vs, T.ramp(0, 1, lanes)] = B[vk, T.ramp(0, 1, lanes)]
        for i in T.unroll(rows):
            with T.sblock("quad"):
                vi = T.axis.spatial(rows, i)
                vk = T.axis.spatial(A.shape[1], k * QUAD)
                T.reads(A[vi, vk : vk + QUAD], four[0:QUAD, 0:lanes], acc[vi, 0:lanes])
                T.writes(quad[0:lanes], acc[vi, 0:lanes])
                quad[T.ramp(0, 1, lanes)] = T.call_pure_extern(
                    f"float32x{lanes}", QUAD_SYMBOL, A[vi, T.ramp(vk, 1, QUAD)]
                )
                acc[vi, T.ramp(0, 1, lanes)] = T.fma(
                    T.Shuffle([quad[T.ramp(0, 1, lanes)]], quarters[0]),
                    four[0, T.ramp(0, 1, lanes)],
                    acc[vi, T.ramp(0, 1, lanes)],
                )
                acc[vi, T.ramp(0, 1, lanes)] = T.fma(
                    T.Shuffle([quad[T.ramp(0, 1, lanes)]], quarters[1]),
                    four[1, T.ramp(0, 1, lanes)],
                    acc[vi, T.ramp(0, 1, lanes)],
                )
                for s in T.unroll(2, QUAD):
                    acc[vi, T.ramp(0, 1, lanes)] = T.fma(
                        T.broadcast(A[vi, vk + s], lanes), four[s, T.ramp(0, 1, lanes)], acc[vi, T.ramp(0, 1, lanes)]
                    )

    @T.inline
    def ask(F: Any, turn: Any, every: Any, apart: Any, count: Any) -> None:
        """`turn` counts what is left until the next rows, `count` of them, and the rows."""
        with T.sblock("ask"):
            T.reads(turn[0:2])
            T.writes(turn[0:2])
            turn[0] = turn[0] - STEP
            if turn[0] < 0:
                first: T.let[T.int64] = turn[1]
                # A row that starts within a line ends in one more: the next row's, where they follow each other. Behind
                # the others LLVM would make its address anew, from what it keeps on the stack.
                if apart > T.Cast("int64", columns):
                    for r in T.unroll(count):
                        T.evaluate(fetch(T.address_of(F[first + r, columns - 1]), cache=2))
                if every == 0:
                    for r in T.unroll(count):
                        for q in T.unroll(lines):
                            T.evaluate(fetch(T.address_of(F[first + r, q * LINE])))
                else:
                    for r in T.unroll(count):
                        for q in T.unroll(lines):
                            T.evaluate(fetch(T.address_of(F[first + r, q * LINE]), cache=2))
                turn[0] = turn[0] + T.max(every, T.int64(STEP))
                turn[1] = turn[1] + count

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
        how: Any,
        four: Any,
        quad: Any,
    ) -> None:
        with T.sblock("start"):
            T.reads()
            T.writes(turn[0:2])
            turn[0] = T.int64(0)
            turn[1] = T.int64(0)
        # A lane mask at each load takes such slots too: whole vectors are read also past an edge, as far as rows of B
        # follow or are padded. The last ones come after the loop, as an odd step does.
        overrun: T.let[T.int64] = 1 + T.truncdiv(T.int64(lanes - 1), T.max(apart, T.int64(1)))
        unmasked: T.let[T.bool] = T.Or(last == lanes, T.bitwise_and(how, PADDED) != 0)
        inside: T.let[T.int64] = T.Select(unmasked, depth, T.max(depth - overrun, T.int64(0)))
        fours: T.let[T.bool] = T.bitwise_and(how, QUADS) != 0 if quads else T.bool(False)
        in_quads: T.let[T.int64] = T.Select(fours, T.truncdiv(inside, T.int64(QUAD)), T.int64(0))
        if quads:
            for k in T.serial(in_quads):
                compute_quads(A, B, four, quad, acc, k)
                ask(F, turn, every, beyond, QUAD)
        whole: T.let[T.int64] = T.Select(fours, T.int64(0), T.truncdiv(inside, T.int64(steps)))
        for k in T.serial(whole):
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
            ask(F, turn, every, beyond, steps)
        done: T.let[T.int64] = in_quads * QUAD + whole * steps
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
