"""A convolution's extents -> the best Winograd plan: the mirror of runtime/winograd_select.c, in NumPy float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from vortex.arithmetic import F32
from vortex.candidates import registers_needed
from vortex.convolution import ConvShape
from vortex.plans import Grid, grids
from vortex.rates import Rates
from vortex.selector import NumpyArithmetic, SlopeTable
from vortex.winograd import ALGORITHMS
from vortex.winograd_cost import BLOCKINGS, Blocking, WinogradCost, WinogradProblem, predict_winograd, strategies

VECTORS = 2
"""Of the register tile: filter counts are multiples of two vectors nearly everywhere."""
TILES = tuple(sorted(ALGORITHMS))


def tallest(registers: int) -> int:
    """Rows of the register tile."""
    return max(rows for rows in range(1, registers) if registers_needed(rows, VECTORS) <= registers)


def tiles_called(registers: int) -> set[tuple[int, int]]:
    """The (rows, vectors) that the products call, whatever the sieve admits for others."""
    return {(rows, vectors) for rows in range(1, tallest(registers) + 1) for vectors in range(1, VECTORS + 1)}


def suits(shape: ConvShape) -> bool:
    """Whether the algorithm computes this convolution: 3x3, every stride and dilation 1, one group, not empty."""
    where = shape.window
    plain = where.stride == where.dilation == (1, 1) and where.groups == 1
    extents = shape.batch, shape.out_h, shape.out_w, shape.channels, shape.filters
    return plain and shape.kernel_h == shape.kernel_w == 3 and min(extents) > 0


@dataclass(frozen=True)
class Situation:
    """What the choice depends on beside the extents."""

    turn_x: bool = False
    """Channels of the input are not side by side."""
    turn_y: bool = False
    packed: bool = True


PACKED = Situation()


@dataclass(frozen=True)
class WinogradPlan:
    """What runs: algorithm and height of blocks, and how L2 cuts tiles (m) and panels of filters (n)."""

    blocking: Blocking
    grid: Grid
    seconds: float
    alone: float
    """Seconds on one thread."""


@dataclass(frozen=True)
class WinogradSelector:
    """The run-time choice among the algorithms and grids."""

    rates: Rates
    table: SlopeTable
    lanes: int

    @cached_property
    def float32_rates(self) -> Rates:
        return Rates(*(F32(value) for value in astuple(self.rates)))  # type: ignore[arg-type]  # float32, not float

    def problem(self, shape: ConvShape, grid: Grid, threads: int, given: Situation) -> WinogradProblem:
        full, over = divmod(shape.filters, VECTORS * self.lanes)
        return WinogradProblem(
            batch=F32(shape.batch),
            out_h=F32(shape.out_h),
            out_w=F32(shape.out_w),
            channels=F32(shape.channels),
            filters=F32(shape.filters),
            input_bytes=F32(4.0) * F32(shape.batch) * F32(shape.height) * F32(shape.width) * F32(shape.channels),
            full=F32(full),
            rest=F32(-(-over // self.lanes)),
            vectors=F32(VECTORS),
            rows=F32(tallest(round(self.rates.registers))),
            turn_x=F32(given.turn_x and shape.channels > 1),
            turn_y=F32(given.turn_y and shape.filters > 1),
            unpacked=F32(not given.packed),
            grid_m=F32(grid.m),
            grid_n=F32(grid.n),
            active=F32(min(threads, grid.m * grid.n)),
        )

    def costs(self, shape: ConvShape, grid: Grid, threads: int, given: Situation = PACKED) -> WinogradCost:
        """Predicted seconds of every algorithm, term by term."""
        problem = self.problem(shape, grid, threads, given)
        return predict_winograd(NumpyArithmetic(self.table), self.float32_rates, strategies(), problem)

    def select(
        self, shape: ConvShape, threads: int, given: Situation = PACKED, offered: Sequence[int] = TILES
    ) -> WinogradPlan:
        """The plan of least predicted time among the offered tiles; the earlier grid, then the smaller tile, wins.

        One thread decides the algorithm, so that a result has the same bits on any number of threads.
        """
        best: WinogradPlan | None = None
        for grid in grids(threads):
            totals = np.asarray(self.costs(shape, grid, threads, given).total)
            tiles = (best.blocking.tile,) if best else offered
            places = [place for place, blocking in enumerate(BLOCKINGS) if blocking.tile in tiles]
            place = min(places, key=lambda found: float(totals[found]))
            seconds = float(totals[place])
            if best is None or seconds < best.seconds:
                best = WinogradPlan(BLOCKINGS[place], grid, seconds, best.alone if best else seconds)
        assert best is not None
        return best
