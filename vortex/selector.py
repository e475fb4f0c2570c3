"""(strategies, shape) -> LaunchPlan: the argmin of the cost over strategies and grids.

Pure Python and NumPy float32: the oracle of the native selector, which evaluates the same expressions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

import numpy as np

from vortex.arithmetic import F32, Array, ArrayArithmetic, Mask
from vortex.candidates import WHOLE, Strategy, registers_needed, takes_packed
from vortex.cost import NEVER, Cost, predict
from vortex.dtypes import WordFormat
from vortex.families import PANEL_LINE
from vortex.plans import Family, Grid, LaunchPlan, OperandB, Shape, split_grids, ways
from vortex.problem import Problem, Strategies
from vortex.rates import Rates


@dataclass(frozen=True)
class SlopeTable:
    """Seconds per step of k of every L0 micro-kernel: `seconds[vectors, rows]`, 0 for an empty tile."""

    seconds: Array


class NumpyArithmetic(ArrayArithmetic):
    """With the measured micro-kernels of a CPU."""

    def __init__(self, table: SlopeTable) -> None:
        self.table = table.seconds

    def slope(self, vectors: Array, rows: Array) -> Array:
        limit_v, limit_r = self.table.shape
        return self.table[
            np.minimum(vectors.astype(np.int32), limit_v - 1), np.minimum(rows.astype(np.int32), limit_r - 1)
        ]


def columns_of(strategies: Sequence[Strategy], lanes: int, panel: int, words: WordFormat | None = None) -> Strategies:
    """The strategies as float32 columns; `panel` is the declared width of a packed operand, in elements.

    Of `words`, a B that is not packed passes a load stage; of the held family, a transposed one.
    """

    def column(values: list[float]) -> Array:
        return np.array(values, np.float32)

    l0, l1, stage = [s.l0 for s in strategies], [s.l1 for s in strategies], [s.stage for s in strategies]
    whole = [float(min(t.n, WHOLE)) for t in l1]
    return Strategies(
        rows=column([t.m for t in l0]),
        vectors=column([max(t.n // lanes, 1) for t in l0]),
        width=column([t.n for t in l0]),
        registers=column([registers_needed(t.m, max(t.n // lanes, 1), 0) for t in l0]),
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
        held=column([g.held for g in stage]),
        streamed=column([g.streamed for g in stage]),
        plain=column([float(not g.dot and (words is None or g.pack_b)) for g in stage]),
        transposed=column([float(g.pack_b or g.held) for g in stage]),
        prepacked=column([float(reads_panels(s, panel)) for s in strategies]),
    )


def reads_panels(strategy: Strategy, panel: int) -> bool:
    """Whether it serves a packed operand of panels so wide."""
    if strategy.stage.streamed:
        return panel == PANEL_LINE
    return strategy.stage.held or (takes_packed(strategy) and panel == strategy.l0.n)


def spacing(stride: int, span: float) -> float:
    """Row starts `stride` words apart fall on multiples of this many bytes within `span`."""
    return float(math.gcd(4 * stride, int(span)))


def drift(stride: int, span: float) -> float:
    """Rows `stride` words apart start so many bytes apart within `span`, before or after."""
    return float(min(4 * stride % int(span), -4 * stride % int(span)))


def problem(shape: Shape, grid: Grid, threads: int, rates: Rates, others: np.float32 | None = None) -> Problem:
    """A call, or a region of one: while `threads` are at work on all regions, which touch `others` bytes elsewhere."""
    tasks = shape.batch * grid.m * grid.n * grid.k
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
        drift_a=F32(drift(shape.stride_a, rates.l1_span)),
        drift_b=F32(drift(shape.stride_b, rates.l1_span)),
        grid_m=F32(grid.m),
        grid_n=F32(grid.n),
        splits=F32(grid.k),
        active=F32(min(threads, tasks) if others is None else threads),
        batch=F32(shape.batch),
        items_a=F32(shape.items_a or shape.batch),
        items_b=F32(shape.items_b or shape.batch),
        others=F32(0) if others is None else others,
    )


DEEP = 16
"""A reduction is split only if it is this many times as long as each side of the output,"""
MOST_PARTS = 1 << 22
"""and if the parts of all cores together have no more elements;"""
FEW_ROWS, SHALLOW, FEW_CORES = 4, 16, 8
"""or if so few rows meet a plain B at most so many times as wide as k, on up to so many cores that lose by pieces of
its rows: more have more ways to cut k than are priced in a microsecond."""
MOST_NEAR, FEW_NEAR, FEW_THREADS = 8, 5, 2
"""On several threads as many strategies are tried as are quickest on one, fewer of them on few threads. Of 917 random
products the best plan on two threads was by one of five for all but two, whose plan takes 1.015 of it at most; by one
of eight on four threads for all but one, on eight for all but three, on sixteen for all but twelve (0.9993 in the
mean). Three grids of five, or two of eight, are one vector of the native cost; of a vector of eight lanes two grids of
four (of 1247 on a Zen 2 twelve by none of them, and seven by none of five: 1.00016 and 1.00009 of the best's time)."""
WORTH = 4.0
"""A split is looked for in calls of this many times the seconds of an empty one on several threads;"""
SPLIT_GAIN = 0.95
"""it must take less than this share of the best unsplit plan on all cores,"""
SPLIT_LOSS = 1.1
"""and on one thread no more than this many times what the call takes there unsplit."""


def nearest(seconds: Array, most: int) -> Mask:
    """True for so many strategies that take least, of those that take as long the earlier ones; strategies are last."""
    found = np.zeros(seconds.shape, bool)
    np.put_along_axis(found, np.argsort(seconds, axis=-1, kind="stable")[..., :most], True, axis=-1)
    return found & (seconds < NEVER)


def most_near(threads: int, lanes: int) -> int:
    return min(FEW_NEAR, lanes // 2) if threads <= FEW_THREADS else MOST_NEAR


Shortlists = tuple[tuple[int, ...], ...]
"""For each way in which B comes, in the order of `OperandB`, the strategies that are chosen from, ascending."""


@dataclass(frozen=True)
class Selector:
    """The run-time choice over a fixed list of strategies, or over a shortlist of it for each kind of B."""

    strategies: tuple[Strategy, ...]
    rates: Rates
    table: SlopeTable
    lanes: int
    panel: int
    words: WordFormat | None = None
    shortlists: Shortlists | None = None

    @cached_property
    def columns(self) -> Strategies:
        return columns_of(self.strategies, self.lanes, self.panel, self.words)

    @cached_property
    def listed(self) -> Shortlists:
        """The shortlists; all strategies where there are none."""
        return self.shortlists or (tuple(range(len(self.strategies))),) * len(OperandB)

    @cached_property
    def on_list(self) -> tuple[Mask, ...]:
        """Of each list which strategies are on it."""
        return tuple(np.isin(np.arange(len(self.strategies)), those) for those in self.listed)

    @cached_property
    def float32_rates(self) -> Rates:
        return Rates(*(F32(value) for value in astuple(self.rates)))  # type: ignore[arg-type]  # float32, not float

    def costs(self, shape: Shape, grid: Grid, threads: int, others: np.float32 | None = None) -> Cost:
        """Predicted seconds of every strategy, term by term; of a region of a call with `others`, see `problem`."""
        return self.predicted(problem(shape.in_words(self.words), grid, threads, self.rates, others))

    def predicted(self, asked: Problem) -> Cost:
        """The same of one problem, or of a column of many, [call, strategy]; NEVER what is on no list of such a B."""
        cost = predict(NumpyArithmetic(self.table), self.float32_rates, self.columns, asked)
        if self.shortlists is None:
            return cost
        ways = zip((asked.plain, asked.transposed, asked.prepacked), self.on_list, strict=True)
        listed = sum((way > 0.5) & those for way, those in ways) > 0
        return replace(cost, total=np.where(listed, cost.total, F32(NEVER)))

    def totals(self, asked: Sequence[Problem]) -> Array:
        """Predicted seconds of every strategy for many calls at once, [call, strategy]."""
        fields = zip(*(vars(one).values() for one in asked), strict=True)
        columns = Problem(*(np.array(values, np.float32)[:, None] for values in fields))
        return np.asarray(self.predicted(columns).total, np.float32)

    def select(self, shape: Shape, threads: int) -> LaunchPlan:
        """The plan of least predicted time; the earlier grid, then the earlier strategy, wins a tie."""
        return self.least(shape, self.near(shape, threads), ways(shape.batch, threads, self.family(shape).splits))

    def deep(self, shape: Shape) -> bool:
        """Whether it is looked at if k should be split."""
        cores = int(self.rates.cores)
        if shape.batch > 1 or cores < 2 or shape.m * shape.n * cores > MOST_PARTS:
            return False
        pieced = self.rates.pieced and cores <= FEW_CORES and shape.m <= FEW_ROWS and shape.b is OperandB.PLAIN
        return shape.k >= DEEP * max(shape.m, shape.n) or bool(pieced and SHALLOW * shape.k >= shape.n)

    def near(self, shape: Shape, threads: int) -> Mask:
        """True for the strategies that are worth a look on several threads: those of the family that one thread decides
        for, dot products or outer ones, and of them the quickest on it."""
        total = np.asarray(self.costs(shape, Grid(1, 1), 1).total)
        alike = self.columns.dot == self.columns.dot[int(np.argmin(total))]
        return nearest(np.where(alike, total, F32(NEVER)), most_near(threads, self.lanes))

    def family(self, shape: Shape) -> Family:
        """Decided without the number of threads, so that a result has the same bits on any.

        One thread decides between dot products and outer ones; whether k is split, all cores of the machine that the
        library was built for.
        """
        cores = int(self.rates.cores)
        near = self.near(shape, cores)
        one = self.least(shape, near, ways(1, 1))
        dot, alone = bool(self.columns.dot[one.index]), F32(one.seconds)
        started = F32(self.rates.call + self.rates.thread_start)
        if not self.deep(shape) or alone < F32(WORTH) * started:
            return Family(dot, 1)
        whole = self.least(shape, near, ways(1, cores))
        split = self.least(shape, near, [(grid, cores) for grid in split_grids(cores)])
        in_turn = self.least(shape, near, [(Grid(1, 1, split.grid.k), 1)])
        gains = F32(split.seconds) < F32(SPLIT_GAIN) * F32(whole.seconds)
        return Family(dot, split.grid.k if gains and F32(in_turn.seconds) <= F32(SPLIT_LOSS) * alone else 1)

    def seconds(self, shape: Shape, among: Mask, choice: Sequence[tuple[Grid, int]]) -> Array:
        """What some strategies take on some grids, each with the threads that share its tasks, [grid, strategy]; NEVER
        of all others."""
        totals = [np.asarray(self.costs(shape, grid, workers).total) for grid, workers in choice]
        return np.where(among, np.stack(totals), F32(NEVER))

    def least(self, shape: Shape, among: Mask, choice: Sequence[tuple[Grid, int]]) -> LaunchPlan:
        """The plan that takes least of them."""
        return self.quickest(self.seconds(shape, among, choice), choice)

    def quickest(self, seconds: Array, choice: Sequence[tuple[Grid, int]]) -> LaunchPlan:
        """The same of what they take."""
        way, index = divmod(int(np.argmin(seconds)), len(self.strategies))
        grid, workers = choice[way]
        return LaunchPlan(index, self.strategies[index], grid, float(seconds[way, index]), workers)
