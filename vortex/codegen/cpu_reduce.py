"""L0 and L1 of reductions on CPUs: accumulators of a tile stay in registers while the reduced axis goes by in time.

`rows` tiles read along the reduced axis and fold the lanes of their accumulators at the end; `columns` tiles keep one
output a lane and need no fold. The temporal spatial loop over tiles is part of the emitted function.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu import c_float
from vortex.codegen.link import RUNTIME, link
from vortex.codegen.lower import compile_object, cpu_target
from vortex.errors import CodegenError
from vortex.reduction_tiles import Family, Measured, ReduceTile

LEAST = -float("inf")


def reduce_symbol(tile: ReduceTile) -> str:
    return f"vortex_reduce_{tile.family.value}_{tile.rows}x{tile.vectors}"


def combined(kind: str, lanes: int, total: Any, x: Any) -> Any:
    """One step of the reduction. A NaN wins every maximum, as in NumPy."""
    if kind != "max":
        return total + x
    larger = tirx.Select(x > total, x, total)  # one instruction, which keeps a total that is NaN
    return tirx.Select(x <= T.broadcast(T.float32(float("inf")), lanes), larger, x)  # false for NaN alone


def identity(kind: str) -> float:
    return LEAST if kind == "max" else 0.0


def rows_kernel(kind: str, tile: ReduceTile, lanes: int) -> tirx.PrimFunc:
    """out[i * step] = reduction of x[i, 0:depth] / divisor, for `groups` times `tile.rows` rows.

    `symbol(x, out, groups, depth, stride, step, divisor)`: rows `stride` apart, strides in elements; only a mean
    divides. A tile of several rows has `lanes` of them.
    """
    rows, vectors = tile.rows, tile.vectors
    wide, start = vectors * lanes, identity(kind)
    vector = f"float32x{lanes}"
    low = [x for i in range(lanes // 2) for x in (i, lanes + i)]
    high = [x + lanes // 2 for x in low]

    def scaled(total: Any, divisor: Any, width: int) -> Any:
        divisors = divisor if width == 1 else T.broadcast(divisor, width)
        return total / divisors if kind == "mean" else total

    def fold_lanes(acc: Any, slot: Any, at: int) -> None:
        """Lane 0 of accumulator `at` becomes the reduction of all its lanes."""
        for half in (lanes >> r for r in range(1, lanes.bit_length())):
            found = acc[at, T.ramp(0, 1, lanes)]
            turned = T.Shuffle([found], [(lane + half) % lanes for lane in range(lanes)])
            T.buffer_store(slot, turned, [T.ramp(0, 1, lanes)])
            T.buffer_store(
                acc,
                combined(kind, lanes, acc[at, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]),
                [at, T.ramp(0, 1, lanes)],
            )

    def fold_vectors(acc: Any) -> None:
        for half in (vectors >> r for r in range(1, vectors.bit_length())):
            for v in range(half):
                pair = (acc[at, T.ramp(0, 1, lanes)] for at in (v, v + half))
                T.buffer_store(acc, combined(kind, lanes, *pair), [v, T.ramp(0, 1, lanes)])

    def fold_rows(acc: Any, slot: Any) -> None:
        """Accumulator 0 gets one row's reduction a lane: halves of two rows side by side, log2(lanes) times."""
        for half in (rows >> r for r in range(1, rows.bit_length())):
            for row in range(half):
                pair = [acc[at, T.ramp(0, 1, lanes)] for at in (row, row + half)]
                T.buffer_store(slot, T.Shuffle(pair, high), [T.ramp(0, 1, lanes)])
                T.buffer_store(acc, T.Shuffle(pair, low), [row, T.ramp(0, 1, lanes)])
                T.buffer_store(
                    acc,
                    combined(kind, lanes, acc[row, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]),
                    [row, T.ramp(0, 1, lanes)],
                )

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        out: T.handle,
        groups: T.int64,
        depth: T.int64,
        stride: T.int64,
        step: T.int64,
        divisor: T.float32,
    ):
        T.func_attr({"global_symbol": reduce_symbol(tile), "tirx.noalias": True})
        X = T.match_buffer(x, (groups * rows, depth), "float32", align=4, strides=[stride, T.int64(1)])
        O = T.match_buffer(out, (groups * rows,), "float32", align=4, strides=[step])
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((rows * vectors, lanes), "float32", scope="local")
            slot = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for g in T.serial(groups):
                for a in T.unroll(rows * vectors):
                    acc[a, T.ramp(0, 1, lanes)] = T.broadcast(T.float32(start), lanes)
                for k in T.serial(T.truncdiv(depth, wide)):
                    for i in T.unroll(rows):
                        for v in T.unroll(vectors):
                            slot[T.ramp(0, 1, lanes)] = X[g * rows + i, T.ramp(k * wide + v * lanes, 1, lanes)]
                            acc[i * vectors + v, T.ramp(0, 1, lanes)] = combined(
                                kind, lanes, acc[i * vectors + v, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]
                            )
                if T.truncmod(depth, wide) != 0:
                    left: T.let[T.int32] = T.Cast("int32", T.truncmod(depth, wide))
                    for i in T.unroll(rows):
                        for v in T.unroll(vectors):
                            slot[T.ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                                vector,
                                "llvm.masked.load",
                                T.address_of(X[g * rows + i, depth - T.truncmod(depth, wide) + v * lanes]),
                                T.ramp(v * lanes, 1, lanes) < T.broadcast(left, lanes),
                                T.broadcast(T.float32(start), lanes),
                            )
                            acc[i * vectors + v, T.ramp(0, 1, lanes)] = combined(
                                kind, lanes, acc[i * vectors + v, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]
                            )
                if rows > 1:
                    fold_rows(acc, slot)
                    if step == T.int64(1):
                        T.evaluate(
                            T.call_llvm_intrin(
                                "void",
                                "llvm.masked.store",
                                scaled(acc[0, T.ramp(0, 1, lanes)], divisor, lanes),
                                T.address_of(O[g * rows]),
                                T.broadcast(T.bool(True), lanes),
                            )
                        )
                    else:
                        for i in T.unroll(rows):
                            O[g * rows + i] = scaled(acc[0, i], divisor, 1)
                else:
                    fold_vectors(acc)
                    fold_lanes(acc, slot, 0)
                    O[g] = scaled(acc[0, 0], divisor, 1)

    return kernel


def columns_kernel(kind: str, tile: ReduceTile, lanes: int) -> tirx.PrimFunc:
    """out[j] = reduction of x[0:depth, j] / divisor, and of out[j] as it was if `accumulate`, for `columns` columns.

    `symbol(x, out, columns, depth, stride, accumulate, divisor)`: what is reduced lies `stride` elements apart.
    """
    vectors = tile.vectors
    wide, start = vectors * lanes, identity(kind)
    vector = f"float32x{lanes}"

    def scaled(total: Any, divisor: Any) -> Any:
        return total / T.broadcast(divisor, lanes) if kind == "mean" else total

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.handle,
        out: T.handle,
        columns: T.int64,
        depth: T.int64,
        stride: T.int64,
        accumulate: T.int32,
        divisor: T.float32,
    ):
        T.func_attr({"global_symbol": reduce_symbol(tile), "tirx.noalias": True})
        X = T.match_buffer(x, (depth, columns), "float32", align=4, strides=[stride, T.int64(1)])
        O = T.match_buffer(out, (columns,), "float32", align=4)
        with T.sblock("root"):
            acc = T.sblock_alloc_buffer((vectors, lanes), "float32", scope="local")
            slot = T.sblock_alloc_buffer((lanes,), "float32", scope="local")
            for j in T.serial(T.truncdiv(columns, wide)):
                for v in T.unroll(vectors):
                    if accumulate != 0:
                        acc[v, T.ramp(0, 1, lanes)] = O[T.ramp(j * wide + v * lanes, 1, lanes)]
                    else:
                        acc[v, T.ramp(0, 1, lanes)] = T.broadcast(T.float32(start), lanes)
                for k in T.serial(depth):
                    for v in T.unroll(vectors):
                        slot[T.ramp(0, 1, lanes)] = X[k, T.ramp(j * wide + v * lanes, 1, lanes)]
                        acc[v, T.ramp(0, 1, lanes)] = combined(
                            kind, lanes, acc[v, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]
                        )
                for v in T.unroll(vectors):
                    O[T.ramp(j * wide + v * lanes, 1, lanes)] = scaled(acc[v, T.ramp(0, 1, lanes)], divisor)
            for r in T.serial(T.truncdiv(T.truncmod(columns, wide) + lanes - 1, lanes)):
                first: T.let[T.int64] = columns - T.truncmod(columns, wide) + r * lanes
                left: T.let[T.int32] = T.Cast("int32", T.min(columns - first, T.int64(lanes)))
                if accumulate != 0:
                    acc[0, T.ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                        vector,
                        "llvm.masked.load",
                        T.address_of(O[first]),
                        T.ramp(0, 1, lanes) < T.broadcast(left, lanes),
                        T.broadcast(T.float32(start), lanes),
                    )
                else:
                    acc[0, T.ramp(0, 1, lanes)] = T.broadcast(T.float32(start), lanes)
                for k in T.serial(depth):
                    slot[T.ramp(0, 1, lanes)] = T.call_llvm_pure_intrin(
                        vector,
                        "llvm.masked.load",
                        T.address_of(X[k, first]),
                        T.ramp(0, 1, lanes) < T.broadcast(left, lanes),
                        T.broadcast(T.float32(start), lanes),
                    )
                    acc[0, T.ramp(0, 1, lanes)] = combined(
                        kind, lanes, acc[0, T.ramp(0, 1, lanes)], slot[T.ramp(0, 1, lanes)]
                    )
                T.evaluate(
                    T.call_llvm_intrin(
                        "void",
                        "llvm.masked.store",
                        scaled(acc[0, T.ramp(0, 1, lanes)], divisor),
                        T.address_of(O[first]),
                        T.ramp(0, 1, lanes) < T.broadcast(left, lanes),
                    )
                )

    return kernel


def reduce_kernel(kind: str, tile: ReduceTile, lanes: int) -> tirx.PrimFunc:
    """The function of one tile."""
    return (rows_kernel if tile.family is Family.ROWS else columns_kernel)(kind, tile, lanes)


def emit_tiles(kind: str, tiles: Sequence[ReduceTile], lanes: int, llvm_cpu: str, folder: Path) -> Path:
    """One object with the function of every tile."""
    functions = []
    for tile in tiles:
        try:
            functions.append(reduce_kernel(kind, tile, lanes))
        except Exception as error:
            raise CodegenError(f"L0 {kind} of {tile} could not be built: {error}") from error
    path = folder / "reduce_tiles.o"
    compile_object(functions, cpu_target(llvm_cpu), path)
    return path


def reduce_table(kind: str, chosen: Sequence[Measured], lanes: int, grain: int) -> str:
    """C source of what `runtime/reduce.c` finds in its library by name."""
    rows = [m for m in chosen if m.tile.family is Family.ROWS]
    columns = next(m.tile for m in chosen if m.tile.family is Family.COLUMNS)
    arguments = "(const float *, float *, int64_t, int64_t, int64_t"
    entries = ", ".join(
        f"{{{m.tile.rows}, {m.tile.vectors}, {c_float(m.start_s)}, {c_float(m.slope_s)}, {reduce_symbol(m.tile)}}}"
        for m in rows
    )
    return "\n".join(
        [
            '#include "reduce.h"',
            *(f"extern int32_t {reduce_symbol(m.tile)}{arguments}, int64_t, float);" for m in rows),
            f"extern int32_t {reduce_symbol(columns)}{arguments}, int32_t, float);",
            f"const vx_reduce_tile vx_reduce_tiles[] = {{{entries}}};",
            f"const int64_t vx_reduce_tile_count = {len(rows)}, vx_reduce_lanes = {lanes};",
            f"const vx_reduce_columns vx_reduce_column_tile = {reduce_symbol(columns)};",
            f"const int64_t vx_reduce_width = {columns.vectors * lanes}, vx_reduce_grain = {grain};",
            f"const int32_t vx_reduce_is_mean = {int(kind == 'mean')}, vx_reduce_needs_one = {int(kind == 'max')};",
            "",
        ]
    )


def emit_reductions(
    kind: str, chosen: Sequence[Measured], lanes: int, grain: int, objects: Sequence[Path], folder: Path
) -> Path:
    """Link the tiles with their L1, L2 and door into one shared library; `grain` in bytes, see reduce.h."""
    table, library = folder / "reduce_table.c", folder / "reduce.so"
    table.write_text(reduce_table(kind, chosen, lanes, grain))
    sources = [RUNTIME / name for name in ("threads.c", "threads_door.c", "scratch.c", "reduce.c", "reduce_door.c")]
    link(library, objects, [table, *sources], [Path(tvm_ffi.libinfo.find_include_path())])
    return library
