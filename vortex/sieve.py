"""The sieve (paper section 5.1, Algorithm 2): candidates of a level are multiples of candidates of the level below.

InitCands spans the range, FilterByISA (L0) and the capacity and utilization bounds cut it, FilterByMultiples links each
survivor to the tiles it can stand on. Each filter reports how many it admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from vortex.blocks import block_bytes, step_bytes
from vortex.candidates import (
    WHOLE,
    WIDEST_PANEL,
    Admitted,
    Stage,
    Strategy,
    Tile,
    dot_strategy,
    held_strategies,
    registers_needed,
    streamed_strategy,
    takes_packed,
)
from vortex.hardware import HardwareSpec
from vortex.rkernel import RKernel


@dataclass(frozen=True)
class Sieve:
    """All candidates of the empirical and analytical levels below the outermost, and the count after each filter."""

    register_tiles: tuple[Tile, ...]
    strategies: tuple[Strategy, ...]
    admitted: tuple[Admitted, ...]


def register_tiles(rkernel: RKernel) -> tuple[tuple[Tile, ...], list[Admitted]]:
    """L0: every rows x vectors that the instruction set can hold in registers, with the level's utilization bounds."""
    level = rkernel.levels[0].level
    isa, words = rkernel.hardware.multiplier(rkernel.operator.dtype), rkernel.words
    in_flight = (words.in_flight if words else 1) + isa.mask_registers
    tallest = isa.rows * (isa.registers - 1)
    initial = [(rows, vectors) for rows in range(1, tallest + 1) for vectors in range(1, isa.registers)]
    room = isa.registers * level.max_utilization
    fits = [(r, v) for r, v in initial if registers_needed(isa.tall(r), v, in_flight) <= room]
    admitted = [Admitted("L0", "InitCands", len(initial)), Admitted("L0", "FilterByISA", len(fits))]
    return tuple(Tile(r, v * isa.lanes, 1) for r, v in fits), admitted


def main_tiles(rkernel: RKernel, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """The register tiles a strategy may be built on; all others serve residues.

    A main tile uses enough of the register file, has issue x latency accumulators at least (fewer cannot keep the
    multiply-add units busy), and for its width is the tallest there is, or the tallest whose rows of A all stay in one
    set of the innermost cache when the leading dimension is a power of two. A lower tile is never better: rows are
    balanced, so a tall tile also runs as a low one.
    """
    isa = rkernel.hardware.multiplier(rkernel.operator.dtype)
    least = max(rkernel.levels[0].level.min_utilization * isa.registers, isa.least_accumulators)
    ways = rkernel.hardware.memories[0].ways
    tallest: dict[int, int] = {}
    for tile in tiles:
        tallest[tile.n] = max(tallest.get(tile.n, 0), tile.m)
    return tuple(
        tile
        for tile in tiles
        if isa.tall(tile.m) * (tile.n // isa.lanes) >= least
        and tile.m in (tallest[tile.n], tallest[tile.n] if isa.tiles else min(tallest[tile.n], ways - 1))
    )


def multiples(step: int, limit: int) -> Iterator[int]:
    """step, 2 step, 4 step, ... up to `limit`, then the uncut axis: cost is smooth between the rungs."""
    extent = step
    while extent <= limit:
        yield extent
        extent *= 2
    yield WHOLE


def buffer_bytes(tile: Tile, stage: Stage, item_bytes: int, least_rows: int) -> int:
    """Bytes of the CacheBuffer that L1 loads and stores fill, with `least_rows` rows of a turned product."""
    packed = tile.k * (tile.m * stage.pack_a + tile.n * stage.pack_b)
    return item_bytes * (packed + least_rows * tile.n * stage.swap)


SMALL_CACHE = 1 << 20
"""Bytes of the memory of L1 under which blocks of B may lie in the cache outside it,"""
LARGEST_BEYOND = 2 << 20
"""and of these the most: a guest is told of more of that cache than it has of it (Zen 2, two cores of 16 MB: 32 x 9216
x 4096 goes at 54 GFLOP/s by blocks of 2 MB and at 28 by blocks of 4)."""


def beyond(hardware: HardwareSpec, memory: str) -> int:
    """A core's bytes of the cache outside `memory`, 0 unless that one is small.

    Blocks that it keeps have few columns, for each of which A passes anew, or few steps of k, between which sums
    go and come: on one core of a Zen 2 with 512 KiB of L2 3072 x 3000 x 1024 goes at 93 GFLOP/s by blocks of 512
    columns and 1024 steps, and at 87 by the best that L2 keeps (8448 x 3000 x 2816 at 90 and 85). Larger L2s were not
    asked.
    """
    place = [each.name for each in hardware.memories].index(memory)
    inner, outer = hardware.memories[place], hardware.memories[place + 1]
    small = inner.capacity_bytes // inner.shared_by < SMALL_CACHE and place + 2 < len(hardware.memories)
    return outer.capacity_bytes // outer.shared_by if small else 0


KEPT = 0.5
"""Of L2, that a panel of such a block and a tile of A take up at most (Zen 2, 4096 steps of k take up 0.7: 256 x 1000 x
4096 goes at 73 GFLOP/s by them, at 79 by 1024)."""


def stays_beyond(stage: Stage) -> bool:
    """Whether its block of B can lie outside the memory of L1, which keeps a panel of it while tiles of A pass."""
    return stage.pack_b and not (stage.pack_a or stage.rows_first or stage.swap)


def cache_tiles(rkernel: RKernel, tiles: tuple[Tile, ...]) -> tuple[list[Strategy], list[Admitted]]:
    """L1: multiples of each main tile whose CacheBuffer stays inside the bounds of the level's memory, or blocks of B
    in those of the cache outside a small one."""
    level, hardware = rkernel.levels[1].level, rkernel.hardware
    words = rkernel.words
    item = 4 if words else rkernel.operator.item_bytes
    memory = hardware.memory(level.memory)
    capacity, line = memory.capacity_bytes // memory.shared_by, memory.line_bytes // item
    stages = [Stage(*flags) for flags in product((False, True), repeat=3 if words else 4)]
    low, high = level.min_utilization * capacity, level.max_utilization * capacity
    farthest = min(level.max_utilization * beyond(hardware, level.memory), LARGEST_BEYOND) if not words else 0.0
    in_blocks, inner = bool(words and words.tiles), hardware.memories[0].capacity_bytes * level.max_utilization
    initial = linked = bounded = 0
    useful = []
    for l0 in tiles:
        rows = list(multiples(l0.m * max(8 * line // l0.m, 1), capacity // (item * line)))
        columns = list(multiples(l0.n * max(8 * line // l0.n, 1), capacity // (item * line)))
        depths = list(multiples(2 * line, capacity // (item * line)))
        for m, n, k in product(rows, columns, depths):
            l1 = Tile(m, n, k)
            initial += len(stages)
            for stage in stages:
                if k == WHOLE and (stage.pack_a or stage.pack_b):
                    continue
                if (m == WHOLE and stage.pack_a) or (n == WHOLE and (stage.pack_b or stage.swap)):
                    continue
                linked += 1
                filled: float = buffer_bytes(l1, stage, item, l0.m)
                if in_blocks and k < WHOLE:
                    filled = block_bytes(m, n, k, capacity) if step_bytes(l0.m, l0.n, k) <= inner else WHOLE
                away = farthest if stays_beyond(stage) and item * k * (l0.m + l0.n) <= KEPT * capacity else 0.0
                if low <= filled <= away or low <= filled <= high:
                    bounded += 1
                    if (in_blocks and k < WHOLE) or _cuts_something(l1, stage):
                        useful.append(Strategy(l0, l1, stage))
    counts = {"InitCands": initial, "FilterByMultiples": linked}
    counts |= {"FilterByCapacity": bounded, "FilterByEffect": len(useful)}
    return useful, [Admitted("L1", name, count) for name, count in counts.items()]


def _cuts_something(l1: Tile, stage: Stage) -> bool:
    """Drop tiles that differ from another one in a cut that changes neither what is packed nor what is reused."""
    if stage.swap:
        # Few columns of C are rows of the turned product: one row tile, so that only the panels are worth cutting.
        return l1.m == WHOLE and not stage.rows_first and not stage.pack_a
    if not stage.pack_b and not stage.rows_first and l1.n < WHOLE:
        return False
    return stage.pack_a or l1.m == WHOLE or not stage.rows_first


def sieve(rkernel: RKernel) -> Sieve:
    """Algorithm 2 for every level below the outermost one, innermost first."""
    tiles, admitted0 = register_tiles(rkernel)
    mains = main_tiles(rkernel, tiles)
    strategies, admitted1 = cache_tiles(rkernel, mains)
    admitted = (*admitted0, Admitted("L0", "FilterByUtilization", len(mains)), *admitted1)
    if getattr(rkernel.operator, "prologue", None):
        # What is done to A is done while it is packed; of a turned product A is the other operand.
        strategies = [s for s in strategies if s.stage.pack_a and not s.stage.swap]
        return Sieve(tiles, tuple(strategies), (*admitted, Admitted("L1", "FilterByPrologue", len(strategies))))
    words = rkernel.words
    if words and words.weights:
        # They are packed beforehand, in panels of a few vectors, and a step of k at L1 begins with a group.
        widest = WIDEST_PANEL * rkernel.hardware.multiplier(rkernel.operator.dtype).lanes
        narrow = tuple(tile for tile in tiles if tile.n <= widest)
        packed = tuple(
            s
            for s in strategies
            if takes_packed(s) and s.l0.n <= widest and (s.l1.k >= WHOLE or s.l1.k % words.step == 0)
        )
        return Sieve(narrow, packed, (*admitted, Admitted("L1", "FilterByWeights", len(packed))))
    isa = rkernel.hardware.multiplier(rkernel.operator.dtype)
    # Words are gathered for outer products, which are not turned over; dot products of them are by vectors.
    vectors = rkernel.hardware.by_vectors(isa.dtype) if words else isa
    dots = (dot_strategy(vectors.registers, vectors.lanes),) if vectors else ()
    held = held_strategies(isa.registers, max(round(isa.in_flight), 1), isa.lanes, words)
    streamed = () if words else (streamed_strategy(isa.lanes),)
    counts = ("dot", "DotTiles", dots), ("held", "HeldTiles", held), ("streamed", "StreamedRows", streamed)
    families = tuple(Admitted(level, name, len(found)) for level, name, found in counts)
    return Sieve(tiles, (*strategies, *dots, *held, *streamed), (*admitted, *families))


def invariant_in_m(found: Sieve) -> Sieve:
    """The candidates whose rows have the same bits whatever m is: outer products, one chain in the order of k each.

    Dot products add up in another order, and which of the two is faster depends on m. (A split of k would too: the
    selector of such a library is told of one core.)
    """
    strategies = tuple(strategy for strategy in found.strategies if not strategy.stage.dot)
    return replace(
        found, strategies=strategies, admitted=(*found.admitted, Admitted("L1", "Invariant", len(strategies)))
    )
