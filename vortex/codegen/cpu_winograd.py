"""Load and store stages of Winograd convolution on CPUs: the transforms of filter, input and output.

All are vectorized over channels (filters, for the output), which are contiguous; an edge of the image is a window that
is partly outside, read as zeros and never touched in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from vortex.codegen.cpu_tile import STREAMS, masked_load, masked_store, stream
from vortex.codegen.selector import Model, costs
from vortex.rates import Rates
from vortex.selector import SlopeTable
from vortex.winograd import ALGORITHMS, Winograd
from vortex.winograd_cost import WinogradProblem, WinogradStrategies, predict_winograd, strategies
from vortex.winograd_selector import VECTORS, tallest

MODEL = Model("vortex_winograd_costs", WinogradStrategies, WinogradProblem, predict_winograd)
OPERANDS = ("const float *", "float *")
SIGNATURES = {
    "filter": (*OPERANDS, *["int64_t"] * 2),
    "input": (*OPERANDS, *["int64_t"] * 10),
    "output": (*OPERANDS, *["int64_t"] * 8, "int32_t"),
}
Vector = Any
"""A TVM expression of one vector."""


def symbol(stage: str, algorithm: Winograd) -> str:
    """`vortex_winograd_<stage>_<tile>`, for the stages filter, input and output."""
    return f"vortex_winograd_{stage}_{algorithm.tile}"


def linear(terms: Sequence[tuple[float, Vector]], lanes: int) -> Vector:
    """The sum of factor * vector, innermost first; the first factor must be 1 or the sum has one product more."""
    total: Vector = None
    for factor, vector in terms:
        if factor == 0:
            continue
        if total is None:
            total = vector if factor == 1 else vector * T.broadcast(T.float32(factor), lanes)
        elif factor == 1:
            total = total + vector
        elif factor == -1:
            total = total - vector
        else:
            total = T.fma(T.broadcast(T.float32(factor), lanes), vector, total)
    return total


Line = Callable[[Winograd, Sequence[Vector], int], list[Vector]]
"""One of the three transforms along one line of a window."""


def input_line(algorithm: Winograd, d: Sequence[Vector], lanes: int) -> list[Vector]:
    """B^T d: the rows of +-p share their even and odd halves."""
    squares = [float(p * p) for p in algorithm.pairs]
    if algorithm.tile == 2:
        (s,), (p,) = squares, [float(p) for p in algorithm.pairs]
        return [
            linear([(1, d[2]), (-s, d[0])], lanes),
            linear([(1, d[2]), (p, d[1])], lanes),
            linear([(1, d[2]), (-p, d[1])], lanes),
            linear([(1, d[3]), (-s, d[1])], lanes),
        ]
    total, product = squares[0] + squares[1], squares[0] * squares[1]
    found = [linear([(1, d[4]), (-total, d[2]), (product, d[0])], lanes)]
    for pair, other in zip(algorithm.pairs, reversed(squares), strict=True):
        even = linear([(1, d[4]), (-other, d[2])], lanes)
        odd = linear([(1, d[3]), (-other, d[1])], lanes)
        found += [linear([(1, even), (sign * float(pair), odd)], lanes) for sign in (1, -1)]
    return [*found, linear([(1, d[5]), (-total, d[3]), (product, d[1])], lanes)]


def filter_line(algorithm: Winograd, g: Sequence[Vector], lanes: int) -> list[Vector]:
    """G g."""
    rows = algorithm.matrices[1]
    return [linear([(float(factor), g[e]) for e, factor in enumerate(row)], lanes) for row in rows]


def output_line(algorithm: Winograd, m: Sequence[Vector], lanes: int) -> list[Vector]:
    """A^T m, from the sums and differences of the products at +-p."""
    sums = [linear([(1, m[2 * i + 1]), (1, m[2 * i + 2])], lanes) for i in range(len(algorithm.pairs))]
    differences = [linear([(1, m[2 * i + 1]), (-1, m[2 * i + 2])], lanes) for i in range(len(algorithm.pairs))]
    found = []
    for e in range(algorithm.tile):
        ends = [(1.0, m[0])] if e == 0 else [(1.0, m[-1])] if e == algorithm.tile - 1 else []
        halves = differences if e % 2 else sums
        powers = [(float(p**e), half) for p, half in zip(algorithm.pairs, halves, strict=True)]
        found.append(linear([*ends, *powers], lanes))
    return found


def keep(buffer: tirx.Buffer, slots: Sequence[Any], vectors: Sequence[Vector]) -> None:
    """Store vectors into a local buffer of whole vectors: one of float32 would start anywhere and straddle lines."""
    for slot, vector in zip(slots, vectors, strict=True):
        T.buffer_store(buffer, vector, [slot])


def kept(buffer: tirx.Buffer, slots: Sequence[Any]) -> list[Vector]:
    return [buffer[slot] for slot in slots]


def filter_kernel(algorithm: Winograd, lanes: int) -> tirx.PrimFunc:
    """U = G g G^T of one panel: `symbol(source, target, channels, width)`.

    `source` is [channels, 3, 3, width], `target` [points, channels, width]; `width` is a multiple of `lanes`.
    """
    window, vector = algorithm.window, f"float32x{lanes}"

    def transform(S: tirx.Buffer, D: tirx.Buffer, half: tirx.Buffer, at: Any, to: Any, width: Any, step: Any) -> None:
        for j in range(3):
            taps = [S[T.ramp(at + (3 * i + j) * width, 1, lanes)] for i in range(3)]
            keep(half, [3 * i + j for i in range(window)], filter_line(algorithm, taps, lanes))
        for i in range(window):
            line = filter_line(algorithm, kept(half, range(3 * i, 3 * i + 3)), lanes)
            for j, value in enumerate(line):
                T.buffer_store(D, value, [T.ramp(to + (i * window + j) * step, 1, lanes)])

    @T.prim_func(s_tir=True)
    def kernel(source: T.handle, target: T.handle, channels: T.int64, width: T.int64):
        T.func_attr({"global_symbol": symbol("filter", algorithm), "tirx.noalias": True})
        S = T.match_buffer(source, (channels * 9 * width,), "float32", align=4)
        D = T.match_buffer(target, (algorithm.points * channels * width,), "float32", align=4)
        with T.sblock("root"):
            half = T.sblock_alloc_buffer((3 * window,), vector, scope="local")
            for c in T.serial(channels):
                for v in T.serial(T.truncdiv(width, lanes)):
                    transform(S, D, half, c * 9 * width + v * lanes, c * width + v * lanes, width, channels * width)

    return kernel


def input_kernel(algorithm: Winograd, lanes: int) -> tirx.PrimFunc:
    """V = B^T d B of `tiles` windows that follow each other along a row of the image.

    `symbol(source, target, tiles, channels, row, column, height, width, row_stride, pixel_stride, tile_stride,
    point_stride)`: windows start at (row, column), which may lie outside, of an image of height x width; V of point p
    and tile t is at p * point_stride + t * tile_stride, as many whole vectors as hold the channels. In elements.
    """
    window, vector = algorithm.window, f"float32x{lanes}"
    every = range(window)

    def down(half: tirx.Buffer, seen: tirx.Buffer, j: Any) -> None:
        line = input_line(algorithm, kept(seen, every), lanes)
        keep(half, [i * window + j for i in every], line)

    def across(D: tirx.Buffer, half: tirx.Buffer, i: Any, to: Any, step: Any) -> None:
        line = input_line(algorithm, kept(half, [i * window + j for j in every]), lanes)
        for j, value in enumerate(line):
            T.buffer_store(D, value, [T.ramp(to + (i * window + j) * step, 1, lanes)])

    @T.prim_func(s_tir=True)
    def kernel(
        source: T.handle,
        target: T.handle,
        tiles: T.int64,
        channels: T.int64,
        row: T.int64,
        column: T.int64,
        height: T.int64,
        width: T.int64,
        row_stride: T.int64,
        pixel_stride: T.int64,
        tile_stride: T.int64,
        point_stride: T.int64,
    ):
        T.func_attr({"global_symbol": symbol("input", algorithm), "tirx.noalias": True})
        S = T.match_buffer(source, (height * row_stride,), "float32", align=4)
        D = T.match_buffer(target, (algorithm.points * point_stride,), "float32", align=4)
        with T.sblock("root"):
            half = T.sblock_alloc_buffer((algorithm.points,), vector, scope="local")
            seen = T.sblock_alloc_buffer((window,), vector, scope="local")
            for t in T.serial(tiles):
                left: T.let[T.int64] = column + t * algorithm.tile
                corner: T.let[T.int64] = row * row_stride + left * pixel_stride
                for v in T.serial(T.truncdiv(channels + lanes - 1, lanes)):
                    wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(lanes), channels - v * lanes))
                    if row >= 0 and row + window <= height and left >= 0 and left + window <= width:
                        for j in T.serial(T.int64(window)):
                            for i in T.unroll(T.int64(window)):
                                seen[i] = masked_load(
                                    T.address_of(S[corner + i * row_stride + j * pixel_stride + v * lanes]),
                                    T.ramp(0, 1, lanes) < T.broadcast(wide, lanes),
                                    lanes,
                                )
                            down(half, seen, j)
                    else:
                        for j in T.serial(T.int64(window)):
                            for i in T.unroll(T.int64(window)):
                                if row + i >= 0 and row + i < height and left + j >= 0 and left + j < width:
                                    seen[i] = masked_load(
                                        T.address_of(S[corner + i * row_stride + j * pixel_stride + v * lanes]),
                                        T.ramp(0, 1, lanes) < T.broadcast(wide, lanes),
                                        lanes,
                                    )
                                else:
                                    seen[i] = T.broadcast(T.float32(0), lanes)
                            down(half, seen, j)
                    for i in T.serial(T.int64(window)):
                        across(D, half, i, t * tile_stride + v * lanes, point_stride)

    return kernel


def output_kernel(algorithm: Winograd, lanes: int) -> tirx.PrimFunc:
    """Y = A^T M A of `tiles` tiles that follow each other along a row of the output.

    `symbol(source, target, tiles, filters, rows, columns, row_stride, pixel_stride, tile_stride, point_stride, how)`:
    `target` is the first pixel of the first tile, `rows` x `columns` what is left of the output from there. M of point
    p and tile t is at p * point_stride + t * tile_stride. In elements. `how` says whether pixels are whole lines that
    are written past the caches.
    """
    window, tile, vector = algorithm.window, algorithm.tile, f"float32x{lanes}"

    def down(S: tirx.Buffer, half: tirx.Buffer, j: Any, at: Any, step: Any) -> None:
        column = [S[T.ramp(at + (i * window + j) * step, 1, lanes)] for i in range(window)]
        keep(half, [i * window + j for i in range(tile)], output_line(algorithm, column, lanes))

    def across(half: tirx.Buffer, made: tirx.Buffer, i: Any) -> None:
        line = output_line(algorithm, kept(half, [i * window + j for j in range(window)]), lanes)
        keep(made, range(tile), line)

    @T.prim_func(s_tir=True)
    def kernel(
        source: T.handle,
        target: T.handle,
        tiles: T.int64,
        filters: T.int64,
        rows: T.int64,
        columns: T.int64,
        row_stride: T.int64,
        pixel_stride: T.int64,
        tile_stride: T.int64,
        point_stride: T.int64,
        how: T.int32,
    ):
        T.func_attr({"global_symbol": symbol("output", algorithm), "tirx.noalias": True})
        S = T.match_buffer(source, (algorithm.points * point_stride,), "float32", align=4)
        D = T.match_buffer(target, (rows * row_stride,), "float32", align=4)
        with T.sblock("root"):
            half = T.sblock_alloc_buffer((tile * window,), vector, scope="local")
            made = T.sblock_alloc_buffer((tile,), vector, scope="local")
            for t in T.serial(tiles):
                for v in T.serial(T.truncdiv(filters + lanes - 1, lanes)):
                    wide: T.let[T.int32] = T.Cast("int32", T.min(T.int64(lanes), filters - v * lanes))
                    for j in T.serial(T.int64(window)):
                        down(S, half, j, t * tile_stride + v * lanes, point_stride)
                    for i in T.serial(T.min(T.int64(tile), rows)):
                        across(half, made, i)
                        for j in T.unroll(T.int64(tile)):
                            to: T.let[T.int64] = i * row_stride + (t * tile + j) * pixel_stride + v * lanes
                            if t * tile + j < columns:
                                if T.bitwise_and(how, STREAMS) != 0:
                                    T.evaluate(stream(T.address_of(D[to]), made[j]))
                                else:
                                    T.evaluate(
                                        masked_store(
                                            made[j],
                                            T.address_of(D[to]),
                                            T.ramp(0, 1, lanes) < T.broadcast(wide, lanes),
                                        )
                                    )

    return kernel


def winograd_kernels(tiles: Sequence[int], lanes: int) -> list[tirx.PrimFunc]:
    """Every transform of the algorithms of those tiles."""
    kernels = (filter_kernel, input_kernel, output_kernel)
    return [kernel(ALGORITHMS[tile], lanes) for tile in tiles for kernel in kernels]


def winograd_costs(rates: Rates, table: SlopeTable, lanes: int, llvm_cpu: str) -> tirx.PrimFunc:
    """The cost of every algorithm, and of those that fill the vector."""
    return costs(rates, table, lanes, llvm_cpu, MODEL)


def winograd_table(lanes: int, registers: int) -> list[str]:
    """C source of what `runtime/winograd.c` and its selection find by name: transforms, register tile, cost columns."""
    columns = np.concatenate([np.resize(column, lanes) for column in astuple(strategies())])
    values = ", ".join(f"{float(value).hex()}f" for value in columns)
    entries = [
        f"{{{a.tile}, {a.points}, {', '.join(symbol(stage, a) for stage in SIGNATURES)}}}" for a in ALGORITHMS.values()
    ]
    return [
        '#include "winograd.h"',
        *(
            f"extern int32_t {symbol(stage, algorithm)}({', '.join(types)});"
            for algorithm in ALGORITHMS.values()
            for stage, types in SIGNATURES.items()
        ),
        f"const vx_winograd vx_winograds[] = {{{', '.join(entries)}}};",
        f"const int64_t vx_winograd_width = {VECTORS * lanes}, vx_winograd_rows = {tallest(registers)};",
        f"const float vx_winograd_columns[] __attribute__((aligned(64))) = {{{values}}};",
    ]
