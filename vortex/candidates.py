"""The sieve (paper section 5.1, Algorithm 2): candidates of a level are multiples of candidates of the level below.

InitCands spans the range, FilterByISA (L0) and the capacity and utilization bounds cut it, FilterByMultiples links each
survivor to the tiles it can stand on. Each filter reports how many it admitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from vortex.blocks import block_bytes, step_bytes

if TYPE_CHECKING:  # A loaded library reads strategies back without Pydantic, which the hardware model needs.
    from vortex.dtypes import WordFormat
    from vortex.rkernel import RKernel

WHOLE = 1 << 40
"""A tile extent past every shape: the level does not cut that axis."""


@dataclass(frozen=True, order=True)
class Tile:
    """Extents of one level's tile, in elements."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, order=True)
class Stage:
    """What L1 does to the operands before it computes, in which order it walks the register tiles, and how it stores.

    With `swap` the product is turned over: C^T = B^T A^T is computed in the CacheBuffer and stored transposed, so that
    vectors run along m: what a C of few columns needs. Tiles and packing then speak of the turned product: its A is
    B^T, its B is A^T.
    """

    rows_first: bool = False
    pack_a: bool = False
    pack_b: bool = False
    swap: bool = False
    dot: bool = False
    """The dot family: no outer products, vectors run along k; its sums have another order than those of all others."""
    held: bool = False
    """The held family: a vector of all that B has of a step of k stays in registers while rows of A stream past."""
    streamed: bool = False
    """The streamed family: whole rows of B stream past a few rows of C, as many at a time as hardware follows."""

    @property
    def tiled(self) -> bool:
        """Whether L0 is a register tile, as it is of all but the dot, the held and the streamed family."""
        return not (self.dot or self.held or self.streamed)

    def __str__(self) -> str:
        if self.dot:
            return "dot products along k"
        if self.held:
            return "B held in registers, rows of A stream past"
        if self.streamed:
            return "rows of B stream past rows of C"
        packed = {(0, 0): "none", (1, 0): "A", (0, 1): "B", (1, 1): "A and B"}[self.pack_a, self.pack_b]
        turned = "turned over, " if self.swap else ""
        return f"{turned}pack {packed}, {'row tiles' if self.rows_first else 'column panels'} outermost"


@dataclass(frozen=True, order=True)
class Strategy:
    """A chain of candidates: the L0 tile, the L1 tile that is a multiple of it, and how L1 loads."""

    l0: Tile
    l1: Tile
    stage: Stage

    def vectors(self, lanes: int) -> int:
        return self.l0.n // lanes

    def __str__(self) -> str:
        l1 = "x".join("all" if extent >= WHOLE else str(extent) for extent in (self.l1.m, self.l1.n, self.l1.k))
        return f"L0 {self.l0.m}x{self.l0.n}, L1 {l1}, {self.stage}"


@dataclass(frozen=True)
class Admitted:
    """How many candidates one filter of one level let through."""

    level: str
    filter: str
    count: int


@dataclass(frozen=True)
class Sieve:
    """All candidates of the empirical and analytical levels below the outermost, and the count after each filter."""

    register_tiles: tuple[Tile, ...]
    strategies: tuple[Strategy, ...]
    admitted: tuple[Admitted, ...]


def registers_needed(rows: int, vectors: int, in_flight: int = 1) -> int:
    """Accumulators, the smaller operand held in registers, and registers to stream the other through."""
    return rows * vectors + min(rows, vectors) + in_flight


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


def cache_tiles(rkernel: RKernel, tiles: tuple[Tile, ...]) -> tuple[list[Strategy], list[Admitted]]:
    """L1: multiples of each main tile whose CacheBuffer stays inside the bounds of the level's memory."""
    level, hardware = rkernel.levels[1].level, rkernel.hardware
    words = rkernel.words
    item = 4 if words else rkernel.operator.item_bytes
    memory = hardware.memory(level.memory)
    capacity, line = memory.capacity_bytes // memory.shared_by, memory.line_bytes // item
    stages = [Stage(*flags) for flags in product((False, True), repeat=3 if words else 4)]
    low, high = level.min_utilization * capacity, level.max_utilization * capacity
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
                if low <= filled <= high:
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


WIDEST_PANEL = 6
"""Vectors of a panel row of a packed operand, at most."""
STREAMS = 8
"""Rows that hardware prefetchers follow at once."""
DOT_ROWS = STREAMS
"""Rows of a dot tile."""
NARROW_ROWS = 14
"""Most rows of a register tile that has grown in a narrow product: no more than two vectors leave to it."""


def dot_tiles(registers: int) -> dict[int, int]:
    """Tallest dot tile by its columns: accumulators and the operands of a step of k fit in the registers."""
    tallest = {columns: (registers - columns) // (columns + 1) for columns in range(1, registers // 3 + 1)}
    return {columns: min(rows, DOT_ROWS) for columns, rows in tallest.items() if rows >= 1}


def dot_strategy(registers: int, lanes: int) -> Strategy:
    """The one strategy of the dot family: its columns are the short side of C, its rows follow at run time."""
    return Strategy(Tile(DOT_ROWS, max(dot_tiles(registers)), lanes), Tile(WHOLE, WHOLE, WHOLE), Stage(dot=True))


STREAMED_ROWS, STREAMED_VECTORS = 4, 2
"""Of C, past which rows of B stream: with more rows multiply-adds take as long as B takes to come. Vectors at a time:
few, so that no row is far ahead of the others."""


def streamed_strategy(lanes: int) -> Strategy:
    l0 = Tile(STREAMED_ROWS, STREAMED_VECTORS * lanes, STREAMS)
    return Strategy(l0, Tile(WHOLE, WHOLE, STREAMS), Stage(streamed=True))


HELD_ROWS = 256
"""Rows that all panels of B pass before the next ones: what they have of A and C for a step of k stays in L1."""


def longest_run(depth: int) -> int:
    """Steps of k at a time in a held kernel of at most `depth`: a power of two, twice of which are not in `depth` + 1.

    A kernel for every k up to n - 1 has runs of so many, n a multiple of them, and of every smaller power of two.
    """
    return 1 << max((depth + 1).bit_length() - 2, 0)


HELD_WORDS = 8
"""Rows of the held family of words, at most: what is in flight beside them are the next ones."""


def held_strategies(registers: int, rows: int, lanes: int, words: WordFormat | None = None) -> tuple[Strategy, ...]:
    """The strategy of the held family: `rows` accumulators, one register to stream A through, all others hold B; none
    where no registers are left for B. Words stream through several, one more holds the last of the longest k or what is
    half a word, and B passes a load stage."""
    rows = min(rows, HELD_WORDS) if words else rows
    free = registers - rows - (words.in_flight + 1 if words else 1)
    if free < 1 or (words and not words.held):
        return ()
    depth = (free + 1) // longest_run(free) * longest_run(free) - 1 + (words is not None)
    rounds = max(HELD_ROWS // rows, 1) * rows
    stage = Stage(held=True, pack_b=words is not None)
    return (Strategy(Tile(rows, lanes, depth), Tile(rounds, WHOLE, depth), stage),)


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


def takes_packed(strategy: Strategy) -> bool:
    """Whether it reads a packed B as it lies."""
    stage = strategy.stage
    return not (stage.dot or stage.streamed or stage.swap or stage.pack_b)


def closure(strategies: tuple[Strategy, ...] | list[Strategy], lanes: int) -> set[tuple[int, int]]:
    """The (rows, vectors) micro-kernels that a set of strategies can call: each main tile and all its residues."""
    return {
        (rows, vectors)
        for strategy in strategies
        for vectors in range(1, strategy.vectors(lanes) + 1)
        for rows in range(1, tallest(strategy, vectors, lanes) + 1)
    }


def tallest(strategy: Strategy, vectors: int, lanes: int) -> int:
    """Rows of its register tiles for so many vectors of columns: fewer than a tile has leave registers to more rows."""
    registers = registers_needed(strategy.l0.m, strategy.vectors(lanes), 0)
    return max(strategy.l0.m, min(max(registers // vectors - 1, registers // (vectors + 1)), NARROW_ROWS))
