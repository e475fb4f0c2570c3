"""The sieve on GPUs (paper section 5.1, Algorithm 2): warp tiles from instructions, block tiles as their multiples.

Whatever the spec says an SM, a block or a thread can hold bounds a level; each filter reports how many it admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from vortex.axes import Role
from vortex.candidates import Admitted, Tile
from vortex.dtypes import ITEM_BYTES
from vortex.errors import SpecError
from vortex.gpu_candidates import CLUSTERS, WARP, Backend, BlockStrategy
from vortex.operators import Conv2d, finishing, prologue_of

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuInstruction, GpuSpec
    from vortex.rkernel import RKernel

REGISTER_BYTES = 4
COPY_BYTES = 16
"""What one thread copies into shared memory at a time, at most."""
STEP_BYTES = 32
"""What one ldmatrix reads of every row of a fragment: the k of a step on Tensor Cores."""
SWIZZLED_BYTES = 128
"""One row of a stage on Hopper: what the widest swizzle of TMA spans."""
EXTENTS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Rows and columns of block tiles: powers of two and what lies half way, so that padding is a third at the most."""
HOPPER_WIDTHS = (16, 32, 64, 96, 128, 192, 256)
TURNED_ROWS = (16, 32)
"""Rows of A that a product on Hopper computes as columns of its transpose."""
STORES = ("direct", "shared")
SKINNY_LINES = (1, 2, 4, 8, 16)
"""Rows (or columns) of C that the skinny family computes."""


@dataclass(frozen=True)
class GpuSieve:
    """All candidates of one backend below the grid, and the count after each filter."""

    backend: Backend
    strategies: tuple[BlockStrategy, ...]
    admitted: tuple[Admitted, ...]


@dataclass(frozen=True)
class WarpTile:
    """A candidate of L0: the tile of a warp, on Hopper of a warpgroup, and what computes it."""

    l0: Tile
    thread: Tile


def instruction_of(spec: GpuSpec, backend: Backend, dtype: str) -> GpuInstruction:
    """What a backend multiplies with; CUDA cores convert half precision to float32."""
    kind = {Backend.TENSOR_CORE: "mma", Backend.HOPPER: "wgmma"}.get(backend, "fma")
    return spec.instruction(kind, "float32" if kind == "fma" else dtype)


def backends(rkernel: RKernel[GpuSpec]) -> tuple[Backend, ...]:
    """What the device can compute the operator with. CUDA cores know no tfloat32: they would do more than was asked.

    Nor int8: a product of few rows runs in the skinny family, any other on Tensor Cores.
    """
    spec, dtype = rkernel.hardware, rkernel.operator.dtype
    if not any(row.dtype == dtype for row in spec.instructions):
        known = ", ".join(dict.fromkeys(row.dtype for row in spec.instructions))
        raise SpecError(f"{spec.name} ({spec.arch}) has no instruction for {dtype}, such as an mma; it has {known}")
    is_batched = any(axis.role is Role.BATCH for axis in rkernel.operator.axes)
    # A descriptor of TMA has two axes here: products of a batch and images are read by other copies. And what wgmma
    # multiplies passes no register, where a prologue could be computed.
    by_tma = not (is_batched or isinstance(rkernel.operator, Conv2d) or prologue_of(rkernel.operator))
    found = [Backend.HOPPER] if spec.has("wgmma", dtype) and by_tma else []
    found += [Backend.TENSOR_CORE] if spec.has("mma", dtype) else []
    found += [Backend.CUDA_CORE] if dtype not in ("tfloat32", "int8") else []
    return (*found, Backend.SKINNY)


def registers_needed(spec: GpuSpec, strategy: BlockStrategy) -> int:
    """Registers of one thread: accumulators, two sets of fragments, addresses. An estimate: ptxas has the last word.

    The two sets let the next step be read while one multiplies. On Hopper fragments stay in shared memory. Without
    cp.async the next of two stages waits in registers.
    """
    held = strategy.stage_bytes // (REGISTER_BYTES * strategy.threads)
    return own_registers(strategy) + (held if strategy.stages > 1 and not spec.async_copy else 0)


def own_registers(strategy: BlockStrategy) -> int:
    """What a thread needs to multiply."""
    l0, thread, accumulators = strategy.l0, strategy.thread, strategy.accumulators
    if strategy.backend is Backend.HOPPER:
        return accumulators + 40
    if strategy.backend is Backend.TENSOR_CORE:
        fragments = (l0.m + l0.n) * l0.k * strategy.item_bytes // (REGISTER_BYTES * WARP)
        return accumulators + 2 * fragments + 28 + accumulators // 8
    operands = (thread.m + thread.n) * thread.k
    in_flight = operands * strategy.item_bytes // REGISTER_BYTES if strategy.backend is Backend.SKINNY else 2 * operands
    return accumulators + accumulators // 4 + in_flight + 24


def resident_blocks(spec: GpuSpec, strategy: BlockStrategy, registers: int | None = None) -> int:
    """Blocks that an SM holds at a time: whatever runs out first. `registers` as ptxas tells, else as needed here."""
    if registers is None:
        registers = registers_needed(spec, strategy)
    return held_blocks(spec, strategy.threads, strategy.shared_bytes, registers)


def held_blocks(spec: GpuSpec, threads: int, shared_bytes: int, registers: int) -> int:
    """The same of any blocks of whole warps, by what each takes; `registers` of a thread."""
    granted = -(-registers // 8) * 8  # a warp is given registers in units of 256
    shared = shared_bytes + spec.shared_reserved_bytes
    return min(
        spec.registers_per_sm // (granted * threads),
        spec.memory("shared").capacity_bytes // max(shared, 1),
        spec.threads_per_sm // threads,
        spec.blocks_per_sm,
    )


def runs(spec: GpuSpec, strategy: BlockStrategy) -> bool:
    """Whether a thread has the registers, and an SM room for a block."""
    return registers_needed(spec, strategy) <= spec.registers_per_thread and resident_blocks(spec, strategy) >= 1


def hides_latency(spec: GpuSpec, strategy: BlockStrategy) -> bool:
    """Whether the warps of an SM have enough independent multiply-adds to keep the units of a scheduler busy."""
    if strategy.backend is Backend.HOPPER:
        return True  # one wgmma is as long as its latency
    isa = instruction_of(spec, strategy.backend, strategy.dtype)
    cycles = isa.flops * spec.schedulers / isa.flops_per_cycle_per_sm
    independent = 2 * strategy.l0.m * strategy.l0.n * isa.k / isa.flops
    warps = strategy.computing_warps * resident_blocks(spec, strategy)
    return independent * warps / spec.schedulers >= isa.latency_cycles / cycles


def copies_divide(strategy: BlockStrategy) -> bool:
    """Whether the threads of a block copy a stage in whole turns, each the widest piece: no thread then asks for less.

    TMA copies for all; the skinny family copies nothing.
    """
    if strategy.backend in (Backend.HOPPER, Backend.SKINNY):
        return True
    turn = strategy.threads * (COPY_BYTES // strategy.item_bytes)
    return strategy.l1.m * strategy.l1.k % turn == 0 and strategy.l1.n * strategy.l1.k % turn == 0


def warp_tiles(rkernel: RKernel[GpuSpec], backend: Backend) -> tuple[list[WarpTile], list[Admitted]]:
    """L0: multiples of the instruction that a thread can hold in registers, within the level's utilization bounds."""
    spec, dtype, level = rkernel.hardware, rkernel.operator.dtype, rkernel.levels[0].level
    isa = instruction_of(spec, backend, dtype)
    initial, shaped = {
        Backend.TENSOR_CORE: tensor_core_tiles,
        Backend.HOPPER: hopper_tiles,
        Backend.CUDA_CORE: cuda_core_tiles,
    }[backend](isa)
    room = level.max_utilization * spec.registers_per_thread
    least = level.min_utilization * spec.registers_per_thread

    def alone(tile: WarpTile) -> BlockStrategy:
        return BlockStrategy(backend, dtype, tile.l0, tile.l0, tile.thread, 1)

    held = [tile for tile in shaped if registers_needed(spec, alone(tile)) <= room]
    useful = [tile for tile in held if alone(tile).accumulators >= least]
    counts = {"InitCands": initial, "FilterByISA": len(shaped), "FilterByRegisters": len(held)}
    counts["FilterByUtilization"] = len(useful)
    return useful, [Admitted("L0", name, count) for name, count in counts.items()]


def tensor_core_tiles(isa: GpuInstruction) -> tuple[int, list[WarpTile]]:
    """Rows and columns in multiples of the instruction; pairs of them in n, of short ones in k, for one ldmatrix."""
    initial = [(m, n) for m in range(8, 129, 8) for n in range(8, 129, 8)]
    side, depth = max(isa.m, 2 * isa.n), max(isa.k, STEP_BYTES // ITEM_BYTES[isa.dtype])
    thread = Tile(isa.m, isa.n, isa.k)
    return len(initial), [WarpTile(Tile(m, n, depth), thread) for m, n in initial if m % side == 0 == n % side]


def hopper_tiles(isa: GpuInstruction) -> tuple[int, list[WarpTile]]:
    """One or two instructions of 64 rows; columns in multiples of 8 up to the widest instruction. Few rows the other
    way round: columns of C are the 64 rows of one instruction."""
    initial = [(m, n) for m in range(8, 129, 8) for n in range(8, 257, 8)]
    fits = [(m, n) for m, n in initial if m % isa.m == 0 and n <= isa.n]
    upright = [WarpTile(Tile(m, n, isa.k), Tile(isa.m, n, isa.k)) for m, n in fits]
    turned = [WarpTile(Tile(m, isa.m, isa.k), Tile(m, isa.m, isa.k)) for m in TURNED_ROWS]
    return len(initial), [*upright, *turned]


def cuda_core_tiles(isa: GpuInstruction) -> tuple[int, list[WarpTile]]:
    """Thread tiles times 32 lanes. Fragments are read in vectors of 1, 2 or 4; lanes of 4 x 8 share most of them."""
    sides, lanes = range(1, 17), [(rows, WARP // rows) for rows in (1, 2, 4, 8, 16, 32)]
    initial = [(m, n, grid) for m, n, grid in product(sides, sides, lanes)]
    fits = [(m, n, g) for m, n, g in initial if m in (1, 2, 4, 8, 16) and n in (2, 4, 8, 16) and min(g) >= 4]
    return len(initial), [
        WarpTile(Tile(m * rows, n * columns, isa.k), Tile(m, n, isa.k)) for m, n, (rows, columns) in fits
    ]


def depths(backend: Backend, item: int, step: int) -> list[int]:
    """Depths of a stage: rows of 16 to 128 bytes that whole steps divide; on Hopper the swizzle's row alone."""
    if backend is Backend.HOPPER:
        return [SWIZZLED_BYTES // item]
    rows = (16, 32, 64, 128) if backend is Backend.CUDA_CORE else (64, 128)
    return [row // item for row in rows if row // item % step == 0]


def stage_counts(spec: GpuSpec, backend: Backend) -> tuple[int, ...]:
    """How many stages may hide the way to memory; without cp.async 1, or 2 with the next one in registers."""
    if backend is Backend.HOPPER:
        return 2, 3, 4, 5, 6, 7, 8, 10, 12, 16
    return (2, 3, 4, 5) if spec.async_copy else (1, 2)


def stores_of(rkernel: RKernel[GpuSpec], strategy: BlockStrategy) -> tuple[str, ...]:
    """How C may leave. On Hopper halves go through shared memory, so that whole sectors are written; not with an
    epilogue, which finds its operands by the place of a sum, nor turned, where few rows are few bytes."""
    if strategy.backend is Backend.HOPPER and not strategy.is_turned:
        as_halves = rkernel.operator.item_bytes == 2 and finishing(rkernel.operator) is None
        return STORES[1:] if as_halves else STORES[:1]
    return STORES if strategy.backend is Backend.TENSOR_CORE else STORES[:1]


def beside(strategy: BlockStrategy) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """How many warp tiles a block may have below one another and side by side, and blocks a cluster."""
    one = (1,)
    if strategy.backend is not Backend.HOPPER:
        return (sides := (1, 2, 4, 8, 16)), sides, one
    return (one, (1, 2), one) if strategy.is_turned else ((1, 2), one, CLUSTERS)


def block_tiles(
    rkernel: RKernel[GpuSpec], backend: Backend, tiles: list[WarpTile]
) -> tuple[list[BlockStrategy], list[Admitted]]:
    """L1: multiples of each warp tile that a block can hold; the depth of a stage, how many, and how C leaves."""
    spec, dtype, level = rkernel.hardware, rkernel.operator.dtype, rkernel.levels[1].level
    item = rkernel.operator.item_bytes
    stages = stage_counts(spec, backend)
    initial, linked = 0, []
    for tile in tiles:
        alone = BlockStrategy(backend, dtype, tile.l0, tile.l0, tile.thread, 1)
        stores, (sides, across, clusters) = stores_of(rkernel, alone), beside(alone)
        for rows, columns, k in product(sides, across, depths(backend, item, tile.l0.k)):
            m, n = tile.l0.m * rows, tile.l0.n * columns
            for count, store, cluster in product(stages, stores, clusters):
                initial += 1
                if m in EXTENTS and n in (HOPPER_WIDTHS if backend is Backend.HOPPER else EXTENTS):
                    made = replace(alone, l1=Tile(m, n, k), stages=count, store=store, cluster=cluster)
                    linked.append(made)
    high, low = level.max_utilization * spec.shared_per_block_bytes, level.min_utilization * spec.shared_per_block_bytes
    filters: tuple[tuple[str, Callable[[BlockStrategy], bool]], ...] = (
        ("FilterByThreads", lambda s: s.threads <= spec.threads_per_block),
        ("FilterBySharedMemory", lambda s: low <= s.shared_bytes <= high),
        ("FilterByCopies", copies_divide),
        ("FilterByOccupancy", lambda s: runs(spec, s)),
        ("FilterByLatency", lambda s: hides_latency(spec, s)),
    )
    admitted = [Admitted("L1", "InitCands", initial), Admitted("L1", "FilterByMultiples", len(linked))]
    for name, passes in filters:
        linked = [strategy for strategy in linked if passes(strategy)]
        admitted.append(Admitted("L1", name, len(linked)))
    return linked, admitted


def turned(tile: Tile) -> Tile:
    return Tile(tile.n, tile.m, tile.k)


def skinny_tiles(rkernel: RKernel[GpuSpec]) -> tuple[list[BlockStrategy], list[Admitted]]:
    """Few rows against a long B, and the same turned over: lanes along the contiguous axis of the long operand.

    A thread reads `wide` elements at once from each of `apart` lines of it. Where they lie along k, the sums of the
    lanes meet by shuffles; else each lane keeps sums of its own.
    """
    spec, item = rkernel.hardware, rkernel.operator.item_bytes
    dtype = rkernel.operator.storage
    widest = COPY_BYTES // item
    found, initial = [], 0
    for few, wide, apart, along_k in product(SKINNY_LINES, (widest // 2, widest), (1, 2, 4, 8), (True, False)):
        thread = Tile(few, apart, wide) if along_k else Tile(few, wide, apart)
        l0 = Tile(few, apart, WARP * wide) if along_k else Tile(few, WARP * wide, apart)
        for side, deep in product((1, 2, 4, 8), (1, 2, 4, 8)):
            initial += 2
            l1 = Tile(few, l0.n * side, l0.k * deep)
            found.append(BlockStrategy(Backend.SKINNY, dtype, l0, l1, thread, 1))
            found.append(BlockStrategy(Backend.SKINNY, dtype, turned(l0), turned(l1), turned(thread), 1))
    room = rkernel.levels[0].level.max_utilization * spec.registers_per_thread
    filters: tuple[tuple[str, Callable[[BlockStrategy], bool]], ...] = (
        ("FilterByRegisters", lambda s: registers_needed(spec, s) <= room),
        ("FilterByThreads", lambda s: s.warps == spec.schedulers),
        ("FilterBySharedMemory", lambda s: s.shared_bytes <= spec.shared_per_block_bytes),
        ("FilterByOccupancy", lambda s: resident_blocks(spec, s) >= 1),
    )
    found = list(dict.fromkeys(found))  # products along k are the same turned over
    admitted = [Admitted("L1", "InitCands", initial), Admitted("L1", "FilterBySymmetry", len(found))]
    for name, passes in filters:
        found = [strategy for strategy in found if passes(strategy)]
        admitted.append(Admitted("L1", name, len(found)))
    return found, admitted


def sieve(rkernel: RKernel[GpuSpec], backend: Backend) -> GpuSieve:
    """Algorithm 2 for one backend, L0 first; levels are told with the backend before them."""
    if backend is Backend.SKINNY:
        strategies, admitted = skinny_tiles(rkernel)
    else:
        tiles, below = warp_tiles(rkernel, backend)
        strategies, admitted = block_tiles(rkernel, backend, tiles)
        admitted = below + admitted
    told = tuple(Admitted(f"{backend} {row.level}", row.filter, row.count) for row in admitted)
    return GpuSieve(backend, tuple(strategies), told)
