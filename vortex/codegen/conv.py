"""What a convolution brings into a CPU library beside the GEMM: its micro-kernels, its cost, and the tables of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vortex.candidates import WIDEST_PANEL
from vortex.codegen.cpu import Addition, c_floats
from vortex.codegen.cpu_block import VECTORS, Block, block_kernel, block_symbol, block_tiles
from vortex.codegen.cpu_conv import conv_kernel, conv_symbol
from vortex.codegen.cpu_depthwise import (
    GROUPED_SLIDING,
    PIXELS,
    SLIDING,
    depthwise_kernel,
    depthwise_symbol,
    sliding_kernel,
    sliding_symbol,
)
from vortex.codegen.cpu_falling import falling_kernel, falling_symbol, falling_tiles
from vortex.codegen.cpu_objects import batches
from vortex.codegen.cpu_rows import compile_tiles
from vortex.codegen.cpu_store import PROLOGUE_SYMBOL
from vortex.codegen.cpu_tile import stream_ir
from vortex.codegen.cpu_winograd import winograd_costs, winograd_kernels, winograd_table
from vortex.codegen.emission import Task
from vortex.codegen.lower import compile_object, cpu_target
from vortex.codegen.selector import Model, costs
from vortex.conv_cost import BLOCK, ConvProblem, ConvStrategies, predict_conv
from vortex.conv_selector import MOST_VECTORS, strategies, tallest
from vortex.hardware import HardwareSpec
from vortex.selector import Selector
from vortex.winograd_selector import TILES

CONV = Model("vortex_conv_costs", ConvStrategies, ConvProblem, predict_conv)
NEAR = 0.6
"""Share of the first cache that the rows under a depthwise filter may take."""
KEPT = 0.5
"""Share of what operands may take of the outermost cache from which on they are fetched as if from memory."""
MOST_ROWS = 33
SOURCES = (
    "conv.c", "conv_depthwise.c", "conv_block.c", "conv_falling.c", "conv_select.c", "conv_door.c", "winograd.c",
    "winograd_select.c",
)  # fmt: skip
"""Of `runtime/`."""


def served(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (rows, vectors) that panels of a packed operand can call."""
    return [(rows, vectors) for rows, vectors in shapes if vectors <= WIDEST_PANEL]


def _emit_tiles(tiles: Sequence[tuple[int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    kernels = [conv_kernel(rows, vectors, lanes) for rows, vectors in tiles]
    compile_tiles(kernels, max(rows for rows, _ in tiles), lanes, llvm_cpu, path)


def _emit_depthwise(pixels: Sequence[int], lanes: int, llvm_cpu: str, path: Path) -> None:
    kernels = [depthwise_kernel(count, lanes, grouped) for count in pixels for grouped in (False, True)]
    compile_object(kernels, cpu_target(llvm_cpu), path)


def _emit_sliding(tiles: Sequence[tuple[int, int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([sliding_kernel(*tile, lanes) for tile in tiles], cpu_target(llvm_cpu), path)


def _emit_blocks(tiles: Sequence[Block], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([block_kernel(*tile, lanes) for tile in tiles], cpu_target(llvm_cpu), path)


def _emit_falling(tiles: Sequence[int], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([falling_kernel(pixels, lanes) for pixels in tiles], cpu_target(llvm_cpu), path)


def _emit_grouped(tiles: Sequence[tuple[int, int, int]], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object([sliding_kernel(*tile, lanes, grouped=True) for tile in tiles], cpu_target(llvm_cpu), path)


def _emit_winograd(tiles: Sequence[int], lanes: int, llvm_cpu: str, path: Path) -> None:
    compile_object(winograd_kernels(tiles, lanes), cpu_target(llvm_cpu), path, llvm_ir=stream_ir(lanes))


def conv_tasks(shapes: Sequence[tuple[int, int]], registers: int) -> list[Task]:
    """The object files of the direct and the depthwise micro-kernels, and of the Winograd transforms."""
    tiles = served(shapes)
    slides = ([tile for tile in SLIDING if tile[0] == taps] for taps in dict.fromkeys(tile[0] for tile in SLIDING))
    others = (_emit_winograd, TILES), (_emit_depthwise, PIXELS), (_emit_grouped, GROUPED_SLIDING)
    own = ((_emit_sliding, tiles) for tiles in slides)
    blocks = [(_emit_blocks, tuple(dict.fromkeys(block_tiles(registers).values())))]
    walks = [(_emit_falling, found)] if (found := falling_tiles(registers)) else []
    return [*others, *blocks, *walks, *own, *((_emit_tiles, batch) for batch in batches(tiles))]


def entries(named: Sequence[tuple[str, str]]) -> str:
    """The C initializer of a table of (symbol, place)."""
    return ", ".join(f"{place} = {symbol}" for symbol, place in named)


def conv_addition(
    selector: Selector, shapes: Sequence[tuple[int, int]], hardware: HardwareSpec, begins: bool
) -> Addition:
    """Tables of the micro-kernels and the native cost; whether inputs pass the load stage of a prologue."""
    lanes, tiles = selector.lanes, set(served(shapes))
    rows = [
        "{" + ", ".join(conv_symbol(r, v) if (r, v) in tiles else "0" for r in range(MOST_ROWS)) + "}"
        for v in range(MOST_VECTORS)
    ]
    tile = "(" + ", ".join(["const float *", "const float *", "float *", *["int64_t"] * 10, "int32_t", "int32_t"]) + ")"
    depthwise = "(" + ", ".join(["const float *", "const float *", "float *", *["int64_t"] * 11]) + ")"
    walks = np.resize(strategies().walk_batch, lanes)
    first = hardware.memories[0]
    single = [
        (depthwise_symbol(count, grouped), f"[{grouped:d}][{count}]") for grouped in (False, True) for count in PIXELS
    ]
    slides = [
        (sliding_symbol(*tile, grouped), f"[{grouped:d}][{tile[0]}][{tile[1]}][{tile[2]}]")
        for grouped, tiles in ((False, SLIDING), (True, GROUPED_SLIDING))
        for tile in tiles
    ]
    blocks = block_tiles(round(selector.rates.registers))
    block = "(const float *, const int64_t *, const float *, float *, const int64_t *, int64_t, int64_t, int64_t)"
    places = ", ".join(
        f"[{stride}][{far:d}] = {{{block_symbol(*tile)}, {tile[1]}, {tile[2]}, {VECTORS * lanes}}}"
        for (stride, far), tile in blocks.items()
    )
    falls = [(falling_symbol(pixels), f"[{pixels}]") for pixels in falling_tiles(round(selector.rates.registers))]
    falling = "(" + ", ".join(["const float *", "const float *", "float *", *["int64_t"] * 12]) + ")"
    load = "(const float *, float *, int64_t, int64_t, int64_t, int64_t)"
    table = (
        *([f"extern int32_t {PROLOGUE_SYMBOL}{load};"] if begins else []),
        f"const vx_load vx_conv_begin = {PROLOGUE_SYMBOL if begins else 0};",
        *(f"extern int32_t {conv_symbol(r, v)}{tile};" for r, v in sorted(tiles)),
        *(f"extern int32_t {symbol}{depthwise};" for symbol, _ in (*single, *slides)),
        *(f"extern int32_t {symbol}{falling};" for symbol, _ in falls),
        *(f"extern int32_t {block_symbol(*tile)}{block};" for tile in dict.fromkeys(blocks.values())),
        f"const vx_conv_tile vx_conv_tiles[VX_CONV_VECTORS][VX_CONV_ROWS] = {{{', '.join(rows)}}};",
        f"const int64_t vx_conv_tallest[VX_CONV_VECTORS] = {{{', '.join(map(str, tallest(shapes)))}}};",
        f"const vx_depthwise_tile vx_depthwise_tiles[2][VX_DEPTHWISE + 1] = {{{entries(single)}}};",
        f"const vx_depthwise_tile vx_sliding_tiles[2][VX_SLIDING][3][VX_DEPTHWISE + 1] = {{{entries(slides)}}};",
        f"const vx_falling_tile vx_falling_tiles[VX_DEPTHWISE + 1] = {{{entries(falls)}}};",
        f"const vx_block vx_blocks[3][2] = {{{places}}};",
        f"const int64_t vx_conv_near = {round(first.capacity_bytes / first.shared_by * NEAR)};",
        f"const int64_t vx_conv_far = {round(selector.rates.l2_bytes * BLOCK)};",
        f"const int64_t vx_conv_kept = {round(selector.rates.l2_bytes)};",
        f"const int64_t vx_conv_memory = {round(selector.rates.l3_bytes * KEPT)};",
        f"const float vx_conv_columns[] __attribute__((aligned(64))) = {{{c_floats(walks)}}};",
        *winograd_table(lanes, round(selector.rates.registers)),
    )
    return Addition(
        sources=SOURCES,
        table=table,
        costs=(
            costs(selector.rates, selector.table, lanes, hardware.llvm_cpu, CONV),
            winograd_costs(selector.rates, selector.table, lanes, hardware.llvm_cpu),
        ),
        defines=(f"VX_CONV_PRICED={lanes}", f"VX_WINOGRAD_PRICED={lanes}"),
    )
