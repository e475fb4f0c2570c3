"""What the sieve makes: tiles, load stages, the strategies that chain them, and those of the other families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # A loaded library reads strategies back without Pydantic, which the hardware model needs.
    from vortex.dtypes import WordFormat

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
    """The held family: a vector of all that B has of a step of k stays in registers while rows of A stream past. Of
    float32 it has a transposed B pass a load stage first, without `pack_b`."""
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


def registers_needed(rows: int, vectors: int, in_flight: int = 1) -> int:
    """Accumulators, the smaller operand held in registers, and registers to stream the other through."""
    return rows * vectors + min(rows, vectors) + in_flight


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
    return {columns: min(rows, DOT_ROWS) for columns, rows in tallest.items() if rows >= 2}


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
