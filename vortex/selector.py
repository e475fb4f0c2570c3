"""(strategies, shape) -> LaunchPlan: the argmin of the cost over strategies and grids.

Pure Python and NumPy float32: the oracle of the native selector, which evaluates the same expressions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vortex.candidates import WHOLE, Strategy
from vortex.cost import NEVER, Cost, Problem, Strategies, predict
from vortex.rates import Rates

Array = npt.NDArray[np.float32]
F32 = np.float32


class OperandB(Enum):
    """How B reaches the call."""

    PLAIN = "plain"
    TRANSPOSED = "transposed"
    PACKED = "packed"


@dataclass(frozen=True)
class Shape:
    """All that the choice may depend on. Strides in elements, 0 for dense; `a_is_col` for a transposed A."""

    m: int
    n: int
    k: int
    b: OperandB = OperandB.PLAIN
    lda: int = 0
    a_is_col: bool = False
    ldb: int = 0
    batch: int = 1
    """Products of this shape in one call."""
    items_a: int = 0
    """How many A's they multiply, as many as there are products if 0; likewise `items_b`."""
    items_b: int = 0

    @property
    def stride_a(self) -> int:
        return self.lda or (self.m if self.a_is_col else self.k)

    @property
    def stride_b(self) -> int:
        return self.ldb or (self.k if self.b is OperandB.TRANSPOSED else self.n)


@dataclass(frozen=True)
class Grid:
    """How L2 cuts the output, of each product of a batch: grid.m x grid.n tasks."""

    m: int
    n: int


@dataclass(frozen=True)
class LaunchPlan:
    """What runs: a strategy of the library by its index, the grid, and how many threads share the tasks."""

    index: int
    strategy: Strategy
    grid: Grid
    seconds: float
    workers: int = 1


@dataclass(frozen=True)
class SlopeTable:
    """Seconds per step of k of every L0 micro-kernel: `seconds[vectors, rows]`, 0 for an empty tile."""

    seconds: Array


class NumpyArithmetic:
    """Float32 arrays over strategies."""

    def __init__(self, table: SlopeTable) -> None:
        self.table = table.seconds

    def least(self, x: Array, y: Array) -> Array:
        return np.minimum(F32(x), F32(y))

    def most(self, x: Array, y: Array) -> Array:
        return np.maximum(F32(x), F32(y))

    def floor(self, x: Array) -> Array:
        return np.floor(x)

    def ceil(self, x: Array) -> Array:
        return np.ceil(x)

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, F32(x), F32(y))

    def slope(self, vectors: Array, rows: Array) -> Array:
        limit_v, limit_r = self.table.shape
        return self.table[
            np.minimum(vectors.astype(np.int32), limit_v - 1), np.minimum(rows.astype(np.int32), limit_r - 1)
        ]

    def name(self, label: str, x: Array) -> Array:
        return x


def columns_of(strategies: Sequence[Strategy], lanes: int, panel: int) -> Strategies:
    """The strategies as float32 columns; `panel` is the declared width of a packed operand, in elements."""

    def column(values: list[float]) -> Array:
        return np.array(values, np.float32)

    l0, l1, stage = [s.l0 for s in strategies], [s.l1 for s in strategies], [s.stage for s in strategies]
    whole = [float(min(t.n, WHOLE)) for t in l1]
    return Strategies(
        rows=column([t.m for t in l0]),
        vectors=column([max(t.n // lanes, 1) for t in l0]),
        width=column([t.n for t in l0]),
        per_row=column([1.0 / t.m for t in l0]),
        per_width=column([1.0 / t.n for t in l0]),
        tile_m=column([t.m for t in l1]),
        tile_n=column(whole),
        tile_k=column([t.k for t in l1]),
        per_tile_n=column([1.0 / n for n in whole]),
        per_tile_k=column([1.0 / t.k for t in l1]),
        rows_first=column([g.rows_first for g in stage]),
        pack_a=column([g.pack_a for g in stage]),
        pack_b=column([g.pack_b for g in stage]),
        swap=column([g.swap for g in stage]),
        dot=column([g.dot for g in stage]),
        plain=column([float(not g.dot) for g in stage]),
        transposed=column([float(g.pack_b) for g in stage]),
        prepacked=column(
            [float(not (g.dot or g.swap or g.pack_b) and panel == t.n) for g, t in zip(stage, l0, strict=True)]
        ),
    )


def spacing(stride: int, span: float, item_bytes: int = 4) -> float:
    """Row starts `stride` elements apart fall on multiples of this many bytes within `span`."""
    return float(math.gcd(stride * item_bytes, int(span)))


def problem(shape: Shape, grid: Grid, threads: int, rates: Rates) -> Problem:
    return Problem(
        m=F32(shape.m),
        n=F32(shape.n),
        k=F32(shape.k),
        a_is_col=F32(shape.a_is_col),
        plain=F32(shape.b is OperandB.PLAIN),
        transposed=F32(shape.b is OperandB.TRANSPOSED),
        prepacked=F32(shape.b is OperandB.PACKED),
        spacing_a=F32(spacing(shape.stride_a, rates.l1_span)),
        spacing_b=F32(spacing(shape.stride_b, rates.l1_span)),
        spacing_b_l2=F32(spacing(shape.stride_b, rates.l2_span)),
        grid_m=F32(grid.m),
        grid_n=F32(grid.n),
        active=F32(min(threads, shape.batch * grid.m * grid.n)),
        batch=F32(shape.batch),
        items_a=F32(shape.items_a or shape.batch),
        items_b=F32(shape.items_b or shape.batch),
    )


def grids(threads: int) -> tuple[Grid, ...]:
    """One task, then the factorizations of the thread count, tall to wide, and of half of it while that is even."""
    chosen = [Grid(1, 1)]
    count = threads
    while count > 1:
        chosen += [Grid(count // n, n) for n in range(1, count + 1) if count % n == 0]
        count //= 2
    return tuple(chosen)


def ways(batch: int, threads: int) -> tuple[tuple[Grid, int], ...]:
    """Every grid with the threads that share its tasks, in the order they are tried: one thread alone comes first."""
    whole, *cut = grids(threads)
    spread = [(whole, min(threads, batch))] if batch > 1 and threads > 1 else []
    return (whole, 1), *spread, *((grid, min(threads, batch * grid.m * grid.n)) for grid in cut)


@dataclass(frozen=True)
class Selector:
    """The run-time choice over a fixed list of strategies."""

    strategies: tuple[Strategy, ...]
    rates: Rates
    table: SlopeTable
    lanes: int
    panel: int

    @cached_property
    def columns(self) -> Strategies:
        return columns_of(self.strategies, self.lanes, self.panel)

    @cached_property
    def float32_rates(self) -> Rates:
        return Rates(*(F32(value) for value in astuple(self.rates)))  # type: ignore[arg-type]  # float32, not float

    def costs(self, shape: Shape, grid: Grid, threads: int) -> Cost:
        """Predicted seconds of every strategy, term by term."""
        ops = NumpyArithmetic(self.table)
        return predict(ops, self.float32_rates, self.columns, problem(shape, grid, threads, self.rates))

    def select(self, shape: Shape, threads: int) -> LaunchPlan:
        """The plan of least predicted time; the earlier grid, then the earlier strategy, wins a tie.

        One thread decides the family, so that a result has the same bits on any number of threads.
        """
        best: LaunchPlan | None = None
        family = self.columns.dot
        for grid, workers in ways(shape.batch, threads):
            total = np.asarray(self.costs(shape, grid, workers).total)
            if best is not None:
                total = np.where(family == family[best.index], total, F32(NEVER))
            index = int(np.argmin(total))
            if best is None or total[index] < best.seconds:
                best = LaunchPlan(index, self.strategies[index], grid, float(total[index]), workers)
        assert best is not None
        return best
