"""L0 of the streamed family on CPUs: whole rows of B stream past a few rows of C, a few rows of B at a time.

It serves products of few rows by a B that comes from memory as it lies. Down a panel of B, which is what a register
tile walks, every row is another page, and hardware that follows streams is left behind. An element of C is the same
chain of fused multiply-adds in the order of k as in `cpu_kernels`: bitwise the same result.

Of a packed B whose panels are a line wide, some panels stream past at once: the two vectors that such a panel has of
each row of AVX2's are fewer chains of multiply-adds than keep a core busy with one or two rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.candidates import Strategy
from vortex.codegen.cpu_tile import LINE, fetch, masked_load, masked_store
from vortex.codegen.lower import compile_object, cpu_target
from vortex.families import PANELS

PLACES = (False, True)
"""B from memory, and from nearer."""
AHEAD = {False: 256, True: 64}
"""Elements ahead that each row is asked for: of a B from memory into L2, of a nearer one into L1."""
TOLD = 2
"""Kernels of so few rows of A are told how far ahead a nearer B is asked for: more need the registers."""
FARTHER, MANY = 512, 4
"""Elements ahead from memory by kernels of so many rows, which at the end of a row of B ask for the beginning of the
one `depth` rows on (Zen 5: 4 x 4096 x 4096 2.4 to 2.2 ms, 6 x 4096 x 4096 3.2 to 2.7, on two threads 1.9 to 1.7; with
three rows, two or one it took 1.06 to 1.12 times as long so)."""


def streamed_symbol(rows: int, near: bool) -> str:
    return f"vortex_streamed_{rows}_{'near' if near else 'far'}"


def panels_symbol(rows: int) -> str:
    return f"vortex_panels_{rows}"


def streamed_tile(strategies: Sequence[Strategy], lanes: int) -> tuple[int, int, int] | None:
    """Rows, vectors and depth of the kernels of the streamed family, if it is among the strategies."""
    return next(((s.l0.m, s.vectors(lanes), s.l0.k) for s in strategies if s.stage.streamed), None)


def emit_streamed(tile: tuple[int, int, int], lanes: int, llvm_cpu: str, path: Path) -> None:
    most, vectors, depth = tile
    kernels = [streamed_kernel(rows, vectors, depth, lanes, near) for rows, near in product(range(1, most + 1), PLACES)]
    panels = [panels_kernel(rows, at_once, lanes) for rows, at_once in PANELS.items()]
    compile_object([*kernels, *panels], cpu_target(llvm_cpu), path)


def streamed_table(tile: tuple[int, int, int] | None) -> list[str]:
    """C source that hands the kernels to `runtime/streamed.c`: of a B from memory, and of a near one, by rows."""
    symbols = [[streamed_symbol(rows, near) for rows in range(1, tile[0] + 1)] if tile else [] for near in PLACES]
    panels = [panels_symbol(rows) for rows in PANELS] if tile else []
    signature, of_panels = ("const float *, const float *, float *, " + "int64_t, " * n + "int32_t" for n in (6, 5))
    return [
        *(f"extern int32_t {symbol}({signature});" for row in symbols for symbol in row),
        *(f"extern int32_t {symbol}({of_panels});" for symbol in panels),
        f"const vx_panels vx_panels_tiles[VX_STREAMED_MOST] = {{{', '.join(['0', *panels])}}};",
        f"const int64_t vx_streamed_ahead = {AHEAD[True]};",
        "const vx_streamed vx_streamed_tiles[2][VX_STREAMED_MOST] = {",
        *(f"  {{{', '.join(['0', *row])}}}," for row in symbols),
        "};",
    ]


def passing(rows: int, vectors: int, lanes: int) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    """A vector of columns from one on; and statements in TVMScript that begin and store `rows` x `vectors` sums of C
    from the column `first` on, which lie row by row in `acc`."""

    def vector(first: Any) -> Any:
        return T.ramp(first, 1, lanes)

    @T.inline
    def begin(C: Any, acc: Any, first: Any, accumulate: Any) -> None:
        for i, v in T.grid(rows, vectors):
            if accumulate != 0:
                acc[vector((i * vectors + v) * lanes)] = C[i, vector(first + v * lanes)]
            else:
                acc[vector((i * vectors + v) * lanes)] = T.broadcast(T.float32(0), lanes)

    @T.inline
    def finish(C: Any, acc: Any, first: Any) -> None:
        for i, v in T.grid(rows, vectors):
            C[i, vector(first + v * lanes)] = acc[vector((i * vectors + v) * lanes)]

    return vector, begin, finish


def streamed_kernel(rows: int, vectors: int, depth: int, lanes: int, near: bool) -> tirx.PrimFunc:
    """C[0:rows, 0:columns] (+)= A[0:rows, 0:k] B[0:k, 0:columns], k of at most `depth`.

    `symbol(a, b, c, columns, k, lda, ldb, ldc, ahead, accumulate)`: strides in elements; C is read only if `accumulate`
    is not 0. Columns are taken `vectors` vectors at a time, the last of them under a mask. `ahead` is how many elements
    ahead a `near` B is asked for by kernels of TOLD rows, and not used by others.
    """
    width = vectors * lanes
    vector, begin, finish = passing(rows, vectors, lanes)

    def inside(count: Any) -> Any:
        return vector(0) < T.broadcast(count, lanes)

    def distance(first: Any, columns: Any, ldb: Any, ahead: Any) -> Any:
        if near and rows <= TOLD:
            return ahead
        if near or rows < MANY:
            return T.int64(AHEAD[near])
        return FARTHER + T.if_then_else(first + FARTHER < columns, T.int64(0), depth * ldb - columns)

    def step(A: Any, B: Any, acc: Any, line: Any, first: Any, k: Any, distance: Any) -> None:
        for v in range(vectors):
            if v * lanes % LINE == 0:
                T.evaluate(fetch(T.address_of(B[k, first + v * lanes + distance]), cache=1 if near else 2))
            T.buffer_store(line, B[k, vector(first + v * lanes)], [vector(v * lanes)])
        for i, v in product(range(rows), range(vectors)):
            at = vector((i * vectors + v) * lanes)
            T.buffer_store(acc, T.fma(T.broadcast(A[i, k], lanes), line[vector(v * lanes)], acc[at]), [at])

    def whole(A: Any, B: Any, acc: Any, line: Any, first: Any, distance: Any) -> None:
        for k in range(depth):
            step(A, B, acc, line, first, k, distance)

    @T.inline
    def rest(A: Any, B: Any, C: Any, acc: Any, i: Any, first: Any, k: Any, count: Any, accumulate: Any) -> None:
        """`count` elements of a row of C, fewer than a vector has or as many."""
        if accumulate != 0:
            acc[vector(0)] = masked_load(T.address_of(C[i, first]), inside(count), lanes)
        else:
            acc[vector(0)] = T.broadcast(T.float32(0), lanes)
        for p in T.serial(k):
            loaded = masked_load(T.address_of(B[p, first]), inside(count), lanes)
            acc[vector(0)] = T.fma(T.broadcast(A[i, p], lanes), loaded, acc[vector(0)])
        T.evaluate(masked_store(acc[vector(0)], T.address_of(C[i, first]), inside(count)))

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        columns: T.int64,
        k: T.int64,
        lda: T.int64,
        ldb: T.int64,
        ldc: T.int64,
        ahead: T.int64,
        accumulate: T.int32,
    ):
        T.func_attr({"global_symbol": streamed_symbol(rows, near), "tirx.noalias": True})
        A = T.match_buffer(a, (rows, k), "float32", align=4, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (k, columns), "float32", align=4, strides=[ldb, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((rows * width,), "float32", scope="local")
            line = T.sblock_alloc_buffer((width,), "float32", scope="local")
            blocks: T.let[T.int64] = T.truncdiv(columns, width)
            if k == depth:
                for block in T.serial(blocks):
                    begin(C, acc, block * width, accumulate)
                    far: T.let[T.int64] = distance(block * width, columns, ldb, ahead)
                    whole(A, B, acc, line, block * width, far)
                    finish(C, acc, block * width)
            else:
                for block in T.serial(blocks):
                    begin(C, acc, block * width, accumulate)
                    farther: T.let[T.int64] = distance(block * width, columns, ldb, ahead)
                    for p in T.serial(k):
                        step(A, B, acc, line, block * width, p, farther)
                    finish(C, acc, block * width)
            for v in T.serial(T.truncdiv(columns - blocks * width + lanes - 1, lanes)):
                first: T.let[T.int64] = blocks * width + v * lanes
                for i in T.serial(rows):
                    rest(A, B, C, acc, i, first, k, T.Cast("int32", columns - first), accumulate)

    return kernel


def panels_kernel(rows: int, at_once: int, lanes: int) -> tirx.PrimFunc:
    """C[0:rows, 0:columns] (+)= A[0:rows, 0:k] B[0:k, 0:columns] of a B in panels of a line, `at_once` of them together

    `symbol(a, b, c, columns, k, lda, apart, ldc, accumulate)`: strides in elements, panels `apart`. The last panel is
    read whole.
    """
    vectors = LINE // lanes
    vector, begin, finish = passing(rows, at_once * vectors, lanes)

    def inside(count: Any, v: int) -> Any:
        return vector(v * lanes) < T.broadcast(count, lanes)

    def at(i: int, g: int, v: int) -> Any:
        return vector(((i * at_once + g) * vectors + v) * lanes)

    def step(A: Any, B: Any, acc: Any, first: Any, count: int, k: Any) -> None:
        for g, v in product(range(count), range(vectors)):
            line = B[first + g, k, vector(v * lanes)]
            for i in range(rows):
                T.buffer_store(acc, T.fma(T.broadcast(A[i, k], lanes), line, acc[at(i, g, v)]), [at(i, g, v)])

    def begin_last(C: Any, acc: Any, first: Any, count: Any, accumulate: Any) -> None:
        for i, v in product(range(rows), range(vectors)):
            with T.If(accumulate != 0):
                with T.Then():
                    place = T.address_of(C[i, first * LINE + v * lanes])
                    T.buffer_store(acc, masked_load(place, inside(count, v), lanes), [at(i, 0, v)])
                with T.Else():
                    T.buffer_store(acc, T.broadcast(T.float32(0), lanes), [at(i, 0, v)])

    def finish_last(C: Any, acc: Any, first: Any, count: Any) -> None:
        for i, v in product(range(rows), range(vectors)):
            place = T.address_of(C[i, first * LINE + v * lanes])
            T.evaluate(masked_store(acc[at(i, 0, v)], place, inside(count, v)))

    @T.prim_func(s_tir=True)
    def kernel(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        columns: T.int64,
        k: T.int64,
        lda: T.int64,
        apart: T.int64,
        ldc: T.int64,
        accumulate: T.int32,
    ):
        T.func_attr({"global_symbol": panels_symbol(rows), "tirx.noalias": True})
        A = T.match_buffer(a, (rows, k), "float32", align=4, strides=[lda, T.int64(1)])
        B = T.match_buffer(b, (columns, k, LINE), "float32", align=4, strides=[apart, T.int64(LINE), T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[ldc, T.int64(1)])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((rows * at_once * LINE,), "float32", scope="local")
            blocks: T.let[T.int64] = T.truncdiv(columns, LINE * at_once)
            for block in T.serial(blocks):
                begin(C, acc, block * at_once * LINE, accumulate)
                for p in T.serial(k):
                    step(A, B, acc, block * at_once, at_once, p)
                finish(C, acc, block * at_once * LINE)
            for panel in T.serial(T.truncdiv(columns + LINE - 1, LINE) - blocks * at_once):
                first: T.let[T.int64] = blocks * at_once + panel
                count: T.let[T.int32] = T.Cast("int32", T.min(columns - first * LINE, T.int64(LINE)))
                begin_last(C, acc, first, count, accumulate)
                for p in T.serial(k):
                    step(A, B, acc, first, 1, p)
                finish_last(C, acc, first, count)

    return kernel
