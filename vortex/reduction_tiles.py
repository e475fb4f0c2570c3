"""The sieve of reductions, and the choice among its tiles: what a register tile keeps, and which tile a shape gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from vortex.candidates import Admitted

if TYPE_CHECKING:  # A loaded library reads tiles back without Pydantic, which the hardware model needs.
    from vortex.rkernel import RKernel


class Family(Enum):
    """Which axis the lanes of a vector run along."""

    ROWS = "rows"
    """The reduced one, which is contiguous: lanes are folded at the end."""
    COLUMNS = "columns"
    """A kept one, which is contiguous: each lane is an output of its own."""


@dataclass(frozen=True, order=True)
class ReduceTile:
    """L0: the accumulators in registers, `vectors` of them for each of `rows` outputs (of columns: side by side)."""

    family: Family
    rows: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.family.value} {self.rows}x{self.vectors} vectors"


@dataclass(frozen=True)
class Measured:
    """Seconds of one tile over one group: `start_s` whatever its depth, `slope_s` for each step along the depth."""

    tile: ReduceTile
    start_s: float
    slope_s: float


@dataclass(frozen=True)
class ReduceSieve:
    """The tiles that the registers can hold and that keep the units busy, and the count after each filter."""

    tiles: tuple[ReduceTile, ...]
    admitted: tuple[Admitted, ...]


SPARE_REGISTERS = 3
"""For what is being read, and for the bounds of a comparison."""


def initial_tiles(lanes: int, registers: int) -> Iterator[ReduceTile]:
    """One row or one for each lane (what a fold by halves fills a vector with), vectors in powers of two."""
    vectors = 1
    while vectors < registers:
        yield ReduceTile(Family.ROWS, 1, vectors)
        yield ReduceTile(Family.ROWS, lanes, vectors)
        yield ReduceTile(Family.COLUMNS, 1, vectors)
        vectors *= 2


def sieve(rkernel: RKernel) -> ReduceSieve:
    """Algorithm 2 at L0; above it nothing is loaded into a buffer, so every tile of L1 is a multiple that fits."""
    isa = rkernel.hardware.instruction(rkernel.operator.dtype)
    initial = list(initial_tiles(isa.lanes, isa.registers))
    fits = [tile for tile in initial if tile.rows * tile.vectors + SPARE_REGISTERS <= isa.registers]
    # As many chains as keep the units busy, or as many as there can be.
    most = max(tile.rows * tile.vectors for tile in fits)
    busy = min(isa.issue_per_cycle * isa.latency_cycles, most)
    kept = [tile for tile in fits if tile.rows * tile.vectors >= busy]
    counts = (("InitCands", initial), ("FilterByISA", fits), ("FilterByUtilization", kept))
    return ReduceSieve(tuple(kept), tuple(Admitted("L0", name, len(found)) for name, found in counts))


def best_chain(measured: Sequence[Measured]) -> tuple[Measured, ...]:
    """Eq. 1 at L0: every tile of rows, for each suits some depth, and the tile of columns that streams fastest."""
    columns = min(
        (m for m in measured if m.tile.family is Family.COLUMNS), key=lambda m: (m.slope_s / m.tile.vectors, m.tile)
    )
    return (*sorted((m for m in measured if m.tile.family is Family.ROWS), key=lambda m: m.tile), columns)


def row_cost(measured: Measured, rows: int, depth: int, lanes: int) -> np.float32:
    """Seconds for `rows` rows, in the order of operations of `runtime/reduce.c`."""
    tile, single = measured.tile, np.float32
    groups = single(-(-rows // tile.rows))
    steps = single(-(-depth // (tile.vectors * lanes)))
    return groups * (single(measured.start_s) + steps * single(measured.slope_s))


def choose_rows(tiles: Sequence[Measured], rows: int, depth: int, chunks: int, lanes: int) -> int:
    """The tile of rows for a shape: of those with no more rows than there are, the cheapest; the first of equals.

    Threads do not enter, so that a result has the same bits on any number of them. A depth that is cut into chunks
    takes one row at a time.
    """
    best, least = -1, np.float32(np.inf)
    for place, measured in enumerate(tiles):
        tile = measured.tile
        if tile.family is Family.ROWS and tile.rows <= rows and (chunks == 1 or tile.rows == 1):
            cost = row_cost(measured, rows, depth, lanes)
            if cost < least:
                best, least = place, cost
    return best
