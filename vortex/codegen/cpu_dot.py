"""L0 of the dot family on CPUs: vectors run along k, and both operands are read as they lie if k is contiguous in both.

It serves products with few columns (or few rows against a transposed B), where an outer product would fill a vector
with one or two numbers. Partial sums of `lanes` residue classes of k are added pairwise at the end: another order than
the outer product's single chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from vortex.candidates import DOT_ROWS, Strategy, dot_tiles
from vortex.codegen.cpu_fold import fold, store_folded
from vortex.codegen.cpu_tile import LINE, fetch, filled, placed, vector_intrinsics, with_extents
from vortex.codegen.lower import compile_object, cpu_target
from vortex.families import (
    DOT_KEPT,
    DOT_PASSES,
    DOT_PIECED,
    DOT_PIECED_MOST,
    DOT_SCATTERED_PIECED,
    DOT_SHARE,
    DOT_VERY_LONG_MOST,
    dot_pieced,
    dot_very_long,
)
from vortex.rates import Rates

STEP_SYMBOL = "vortex_dot_step"
STEP_IR = f"""define weak_odr hidden i32 @{STEP_SYMBOL}() #0 {{
  call void asm sideeffect "", ""()
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
"""
"""LLVM text that a module of these kernels needs: the end of a step of k, an empty statement that LLVM does not double.

It would else do two steps at a time and begin the loads of both: more vectors than there are registers.
"""
AHEAD, FEW_ROWS = 128, 3
"""Elements ahead that a row is asked for into the first cache, in tiles of so few rows: a vector that straddles two
lines waits for both, and from L2 prefetchers are late for the second (20000 x 8 x 500 on Zen 5: 22 GB/s, 34 so). Tiles
of more rows wait for other things, and pay for the asking (334925 x 2 x 64: a tenth).
"""
NEAR_ROWS, NEAR_COLUMNS = 6, 2
"""Of tiles whose rows come from within the outermost cache: prefetchers are in time there, and asking takes slots that
the loads need (Zen 4, a column: 768 x 2304 86 GB/s, asked for 76; 128 x 1024 out of L2 106 and 82; 7261 x 432 72, two
rows at a time and asked for 62). More columns wait for their multiply-adds. Eight rows a page apart crowd a set of L1.
"""
PAIR, PAIRED = 2, int(DOT_PIECED_MOST)
"""Of tiles whose rows are long streams, each asked for into the first cache: memory gives a core of a Zen 5 40 to 50
GB/s so, and 25 to 35 where taller tiles have rows that follow each other. Beside few columns there are the tallest
tiles as well, whose rows are so many streams.
"""
MOST = 16
"""More than the columns of any tile: `VX_DOT_MOST`."""


def dot_shapes(registers: int, strategies: Sequence[Strategy]) -> tuple[tuple[int, int], ...]:
    """Every (rows, columns) that the dot family can call, if it is among the strategies."""
    tallest = dot_tiles(registers) if any(strategy.stage.dot for strategy in strategies) else {}
    return tuple((rows, columns) for columns, most in tallest.items() for rows in range(1, most + 1))


class Rows(Enum):
    """What the rows of a tile are to the caches, and the beginning of its kernel's name."""

    ONCE = "dot"
    """They follow each other, and a tile to come is asked for into L2."""
    NEAR = "near_dot"
    """They come from within the outermost cache, and nothing is asked for."""
    STREAMS = "stream_dot"
    """Each is the next one of a long stream, which is asked for into L1."""


def shapes_of(kind: Rows, dots: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Those (rows, columns) that have a kernel of this kind."""
    most = {Rows.ONCE: (DOT_ROWS, MOST), Rows.NEAR: (NEAR_ROWS, NEAR_COLUMNS), Rows.STREAMS: (PAIR, PAIRED)}
    tallest = {c: r for r, c in sorted(dots) if kind is Rows.STREAMS and c < DOT_SCATTERED_PIECED}
    return tuple((r, c) for r, c in dots if (r <= most[kind][0] and c <= most[kind][1]) or r == tallest.get(c))


def dot_symbol(rows: int, columns: int, kind: Rows = Rows.ONCE) -> str:
    return f"vortex_{kind.value}_{rows}x{columns}"


def dot_kernel(rows: int, columns: int, lanes: int, kind: Rows = Rows.ONCE) -> tirx.PrimFunc:
    """C[i, j] (+)= sum over k of X[i, k] Y[j, k].

    `symbol(x, y, c, depth, ldx, ldy, row_stride, column_stride, accumulate, ahead)`, strides in elements; so far ahead
    of X is asked for, unless it is near.
    """
    asks = {Rows.NEAR: 0, Rows.ONCE: 2, Rows.STREAMS: 1}[kind]
    kernel = filled(_form(lanes), dot_symbol(rows, columns, kind), rows, columns, asks)
    names = vector_intrinsics(lanes)
    stages = (("zero", names.zero, 0), ("fetch_y", names.load, 1), ("fetch_x", names.load, 1))
    return placed(kernel, stages).mod["main"]


@cache
def _form(lanes: int) -> tirx.PrimFunc:
    """The kernel of every tile; its last parameters are what `dot_kernel` fills in, of them the cache that is asked."""
    rows, columns, asks = (tirx.Var(name, "int32") for name in ("rows", "columns", "asks"))
    count, vectors = rows * columns, LINE // lanes

    @T.inline
    def multiply(row: Any, column: Any, acc: Any, left: Any, right: Any) -> None:
        T.reads(acc[row * columns + column, 0:lanes], left[0:lanes], right[column, 0:lanes])
        T.writes(acc[row * columns + column, 0:lanes])
        acc[row * columns + column, T.ramp(0, 1, lanes)] = T.fma(
            left[T.ramp(0, 1, lanes)],
            right[column, T.ramp(0, 1, lanes)],
            acc[row * columns + column, T.ramp(0, 1, lanes)],
        )

    @T.inline
    def step(X: Any, Y: Any, acc: Any, left: Any, right: Any, k: Any) -> None:
        """A vector of every row and column."""
        for j in T.unroll(columns):
            with T.sblock("load_y"):
                vk = T.axis.spatial(T.truncdiv(X.shape[1], lanes), k)
                vj = T.axis.spatial(columns, j)
                T.reads(Y[vj, vk * lanes : vk * lanes + lanes])
                T.writes(right[vj, 0:lanes])
                right[vj, T.ramp(0, 1, lanes)] = Y[vj, T.ramp(vk * lanes, 1, lanes)]
        for i in T.unroll(rows):
            with T.sblock("load_x"):
                vk = T.axis.spatial(T.truncdiv(X.shape[1], lanes), k)
                vi = T.axis.spatial(rows, i)
                T.reads(X[vi, vk * lanes : vk * lanes + lanes])
                T.writes(left[0:lanes])
                left[T.ramp(0, 1, lanes)] = X[vi, T.ramp(vk * lanes, 1, lanes)]
            for j in T.unroll(columns):
                with T.sblock("multiply"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    multiply(vi, vj, acc, left, right)
        T.evaluate(T.call_extern("int32", STEP_SYMBOL))

    @T.prim_func(s_tir=True, check_well_formed=False)  # its extents are free until `with_extents`
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
    ):
        T.func_attr({"tirx.noalias": True})
        X = T.match_buffer(x, (rows, depth), "float32", align=4, strides=[ldx, T.int64(1)])
        Y = T.match_buffer(y, (columns, depth), "float32", align=4, strides=[ldy, T.int64(1)])
        C = T.match_buffer(c, (rows, columns), "float32", align=4, strides=[row_stride, column_stride])
        with T.sblock("root"):
            mask = T.sblock_alloc_buffer((lanes,), "int32", scope="local")
            acc = T.sblock_alloc_buffer((count, lanes), "float32", scope="local")
            left = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            right = T.sblock_alloc_buffer((columns, lanes), "float32", scope="local")
            for i in range(count):
                for l in range(lanes):
                    with T.sblock("zero"):
                        vi, vl = T.axis.remap("SS", [i, l])
                        acc[vi, vl] = T.float32(0)
            whole = T.meta_var(T.truncdiv(depth, lanes))
            lines = T.meta_var(T.truncdiv(depth, LINE))
            for line in T.serial(lines):
                if asks != 0:
                    for i in T.unroll(rows):
                        T.evaluate(fetch(T.address_of(X[i, line * LINE + ahead]), cache=asks))
                        if asks == 2 and rows <= FEW_ROWS:
                            T.evaluate(fetch(T.address_of(X[i, line * LINE + AHEAD])))
                for v in T.unroll(vectors):
                    step(X, Y, acc, left, right, line * vectors + v)
            if vectors > 1:
                for v in T.serial(whole - lines * vectors):
                    step(X, Y, acc, left, right, lines * vectors + v)
            # What is left of a vector, under a mask.
            for _k in T.serial(T.truncdiv(depth + lanes - 1, lanes) - whole):
                if asks != 0:
                    for i in T.unroll(rows):
                        T.evaluate(fetch(T.address_of(X[i, whole * lanes + ahead]), cache=asks))
                for l in T.vectorized(lanes):
                    with T.sblock("mask"):
                        vl = T.axis.spatial(lanes, l)
                        mask[vl] = T.Select(vl < T.Cast("int32", depth - whole * lanes), T.int32(1), T.int32(0))
                for j in range(columns):
                    for l in range(lanes):
                        with T.sblock("fetch_y"):
                            vj, vl = T.axis.remap("SS", [j, l])
                            right[vj, vl] = T.if_then_else(mask[vl] != 0, Y[vj, whole * lanes + vl], T.float32(0))
                for i in range(rows):
                    for l in range(lanes):
                        with T.sblock("fetch_x"):
                            vi, vl = T.axis.remap("SS", [i, l])
                            left[vl] = T.if_then_else(mask[vl] != 0, X[vi, whole * lanes + vl], T.float32(0))
                    for j in T.unroll(columns):
                        with T.sblock("multiply_rest"):
                            vi, vj = T.axis.remap("SS", [i, j])
                            multiply(vi, vj, acc, left, right)
            with T.sblock("fold"):
                T.reads(acc[0:count, 0:lanes])
                T.writes(acc[0:count, 0:lanes])
                fold(acc, count, lanes)
            with T.sblock("store"):
                T.reads(acc[0:count, 0:lanes], C[0:rows, 0:columns])
                T.writes(C[0:rows, 0:columns])
                if accumulate != 0:
                    store_folded(C, acc, count, columns, lanes, lambda found, i, j: C[i, j] + found)
                else:
                    store_folded(C, acc, count, columns, lanes)

    return with_extents(kernel, rows, columns, asks)


def emit_dots(shapes: Sequence[tuple[int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    """An object file of these (rows, columns)."""
    kernels = [dot_kernel(r, c, lanes, kind) for kind in Rows for r, c in shapes_of(kind, shapes)]
    compile_object(kernels, cpu_target(llvm_cpu), path, llvm_ir=STEP_IR)


def dot_table(dots: Sequence[tuple[int, int]], rates: Rates, words: bool, stored: bool) -> list[str]:
    """C source of the dot family's micro-kernels by columns and rows, and of how many columns and how much of k.

    Rows whose sums are `stored` by a stage follow each other, and are no streams.
    """
    pieced, very_long = DOT_PIECED if stored else dot_pieced(rates), 0.0 if stored else dot_very_long(rates)
    of = {kind: () if words and kind is not Rows.ONCE else shapes_of(kind, dots) for kind in Rows}
    widest, longest = max((columns for _, columns in dots), default=0), round(rates.registers) if dots else 0
    item, forms = ("void", ", int32_t, int32_t, int32_t, const int32_t *") if words else ("float", "")
    signature = f"(const {item} *, const {item} *, {item} *, {'int64_t, ' * 5}int32_t, int64_t{forms})"
    return [
        *(f"extern int32_t {dot_symbol(r, c, kind)}{signature};" for kind in Rows for r, c in of[kind]),
        *(line for kind in Rows for line in _by_columns(kind, of[kind])),
        f'_Static_assert({widest} < VX_DOT_MOST && {longest} <= VX_DOT_SHORT, "more registers than dot tiles know");',
        f"const int64_t vx_dot_widest = {widest}, vx_dot_short = {longest};",
        f"const int64_t vx_dot_bytes = {rates.l1_bytes * DOT_SHARE:.0f};",
        f"const int64_t vx_dot_cached = {rates.l2_certain:.0f}, vx_dot_kept = {rates.l2_bytes / DOT_KEPT:.0f};",
        f"const int64_t vx_dot_passes = {DOT_PASSES:.0f}, vx_dot_pieced = {pieced:.0f};",
        f"const int64_t vx_dot_very_long = {very_long:.0f}, vx_dot_very_long_most = {DOT_VERY_LONG_MOST:.0f};",
    ]


def _by_columns(kind: Rows, shapes: Sequence[tuple[int, int]]) -> list[str]:
    """The kernels by columns and rows, and the most rows by columns; 0 where there is none."""
    kernels = [[dot_symbol(r, c, kind) if (r, c) in shapes else "0" for r in range(DOT_ROWS + 1)] for c in range(MOST)]
    most = [max((rows for rows, columns in shapes if columns == c), default=0) for c in range(MOST)]
    name = kind.value.split("_")[0]
    return [
        f"const vx_dot vx_{name}_tiles[VX_DOT_MOST][VX_DOT_TALLEST + 1] = {{",
        *(f"  {{{', '.join(row)}}}," for row in kernels),
        "};",
        f"const int64_t vx_{name}_rows[VX_DOT_MOST] = {{{', '.join(map(str, most))}}};",
    ]
