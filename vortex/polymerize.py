"""Several micro-kernels in one call: regions of the output, each with a strategy and a grid of its own.

MikPoly (section 3.4) cuts the output along a skeleton of seven blocks and keeps nine patterns of regions. Its Figure 5
is a picture; ours is read from what the text says of it: a top band of three blocks and a bottom band of two by two.

    1 1 | 2 | 3        every pattern but the first refines an earlier one: one of its regions is cut once more
    ----+---+--        by rows or by columns, and each region is a rectangle of whole blocks
    4 4 | 5   5
    6 6 | 7   7

There are two reasons to polymerize. A *residue* of few columns (of a product with a transposed B that is turned over:
rows) leaves lanes empty: it goes to the dot family, the rest to outer products. That decides the order of sums, so one
thread decides it, like the family. A *bad last wave* leaves cores idle: then the output is cut into regions of outer
products until the bound says that nothing is left to win; bits are those of the plain plan. A library with fixed rows
or columns is not cut: it lacks the micro-kernels of other last vectors. `runtime/polymerize.c` is the native twin.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from vortex.arithmetic import F32
from vortex.cost import NEVER
from vortex.plans import Family, Grid, LaunchPlan, OperandB, Region, Shape, ways
from vortex.regions import Answer, Machine, Mosaic, Polymer, Request, as_plan, asked, mosaic
from vortex.selector import Selector

DERIVATIONS = (
    (0, 0, True), (0, 0, False), (1, 1, False), (1, 0, False), (4, 2, False), (1, 1, True), (4, 1, False), (2, 1, True)
)  # fmt: skip
"""How patterns II to IX refine an earlier one: (which, its region that is cut, whether by rows)."""
MOST_REGIONS = 4
LEAST = 16.0
"""A call is worth the search if it takes this many times the seconds of an empty one on several threads,"""
WASTE = 1.08
"""and the cores together this many times what its blocks would on their own."""
GAIN = 0.95
"""Regions must take less than this share of the plain plan."""
MOST_PRICED = 8
"""How often strategies are priced for one call at most. With 24, none of every second product of the paper's suites on
2 cores of a Zen 4, and of every fifth on 8 and 32, is predicted to take a hundredth less time."""
MOST_CORES = 64
BY_ROWS, BY_COLUMNS, WHOLE, ALL = 0, 1, 2, -1
"""The grids that a region is priced on."""
LESS_LANES = 7
"""One in this many lanes must be empty for a residue to be looked at."""


Search = Generator[Request, Answer, Polymer | None]


def residue(shape: Shape, alone: LaunchPlan, machine: Machine) -> Generator[Request, Answer, tuple[bool, int] | None]:
    """Where one thread cuts lanes off for the dot family: whether along the rows of C, and how many stay; or None."""
    along_m = machine.swaps[alone.index] and shape.b is OperandB.TRANSPOSED
    extent = shape.m if along_m else shape.n
    rest = extent % machine.lanes
    whole = extent - rest
    if not rest or not whole or not machine.dots.get(rest) or shape.b is OperandB.PACKED or shape.a_is_col:
        return None
    if (machine.lanes - rest) * LESS_LANES < whole + machine.lanes or F32(alone.seconds) < F32(LEAST) * machine.started:
        return None
    parts = ((whole, shape.n), (rest, shape.n)) if along_m else ((shape.m, whole), (shape.m, rest))
    outer = yield asked(shape, *parts[0], Grid(1, 1), 1, False)
    dots = yield asked(shape, *parts[1], Grid(1, 1), 1, True)
    together = F32(outer.seconds + dots.seconds) - machine.call
    return (along_m, whole) if together < F32(GAIN) * F32(alone.seconds) else None


class _Search:
    """The state of one search: what is asked for is counted."""

    def __init__(self, shape: Shape, cores: int, machine: Machine) -> None:
        self.shape, self.cores, self.machine, self.left = shape, cores, machine, MOST_PRICED

    def region(
        self, row: int, column: int, rows: int, columns: int, grid: Grid, dot: bool
    ) -> Generator[Request, Answer, Region]:
        """A region on a grid, by its best strategy while all cores are at work."""
        self.left -= 1
        found = yield asked(self.shape, rows, columns, grid, self.cores, dot)
        task = F32(found.seconds - (self.machine.started if self.cores > 1 else self.machine.call))
        return Region(row, column, rows, columns, grid, found.index, task)

    def offers(
        self, row: int, column: int, rows: int, columns: int, dot: bool, only: int = ALL
    ) -> Generator[Request, Answer, list[Region]]:
        """The region cut for all cores by rows, by columns, or left whole; or each of the three."""
        grids = (Grid(self.cores, 1), Grid(1, self.cores), Grid(1, 1))
        found = []
        for at in range(BY_ROWS if self.cores > 1 else WHOLE, len(grids)):
            grid = grids[at]
            if only in (ALL, at) and rows >= grid.m and (grid.n == 1 or columns >= grid.n * self.machine.lanes):
                found.append((yield from self.region(row, column, rows, columns, grid, dot)))
        return found

    def best(self, kept: tuple[Region, ...], first: list[Region], second: list[Region], at: int) -> Mosaic:
        """The pair of offers that fills the cores best beside the regions that stay; they take the place `at`."""
        found: Mosaic | None = None
        for one in first:
            for other in second:
                tried = mosaic((*kept[:at], one, other, *kept[at:]), self.cores, self.machine)
                if found is None or tried.load < found.load:
                    found = tried
        assert found is not None
        return found

    def cuts(self, region: Region, by_rows: bool) -> list[tuple[int, bool]]:
        """Where a region may be cut, and whether in halves.

        After whole waves of register tiles, of rows or vectors; of two cores also in halves.
        """
        packed, swap = self.shape.b is OperandB.PACKED, self.machine.swaps[region.index]
        tile = self.machine.tiles[region.index]
        coarse = tile[0] if by_rows != swap else tile[1]
        fine = 1 if by_rows != swap else self.machine.lanes
        if packed and not by_rows:
            coarse = fine = self.machine.panel
        extent = region.rows if by_rows else region.columns
        wave = self.cores * coarse, self.cores * fine
        half = -(-extent // (2 * fine)) * fine if self.cores == 2 else 0
        places = [extent // wave[0] * wave[0], extent // wave[1] * wave[1], half]
        return [(x, at == 2) for at, x in enumerate(places) if 0 < x < extent and x not in places[:at]]


def cut(region: Region, by_rows: bool, at: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """The two rectangles (row, column, rows, columns) of a region cut before its row or column `at`."""
    row, column, rows, columns = region.row, region.column, region.rows, region.columns
    if by_rows:
        return (row, column, at, columns), (row + at, column, rows - at, columns)
    return (row, column, rows, at), (row, column + at, rows, columns - at)


def mixed(shape: Shape, cores: int, machine: Machine, along_m: bool, whole: int) -> Search:
    """The residue's regions on as many cores as there are: each on the grid that serves it best."""
    search = _Search(shape, cores, machine)
    start = Region(0, 0, shape.m, shape.n, Grid(1, 1), 0, F32(0))
    body, rest = cut(start, along_m, whole)
    outer = yield from search.offers(*body, False)
    dots = yield from search.offers(*rest, True)
    found = search.best((), outer, dots, 0)
    seconds = F32(found.load + (machine.started if cores > 1 else machine.call))
    return Polymer(1 if along_m else 2, found.regions, seconds)


def balance(shape: Shape, cores: int, machine: Machine, plain: LaunchPlan) -> Search:
    """Branch and bound over patterns, cuts and strategies; None where the plain plan is as good."""
    grid = plain.grid
    task = F32(F32(plain.seconds) - (machine.started if plain.workers > 1 else machine.call))
    root = mosaic((Region(0, 0, shape.m, shape.n, grid, plain.index, task),), cores, machine)
    known: list[Mosaic | None] = [root] + [None] * len(DERIVATIONS)
    search, best, pattern = _Search(shape, cores, machine), root, 0
    limit = F32(GAIN) * F32(F32(plain.seconds) - machine.started)
    for derived, (parent, at, by_rows) in enumerate(DERIVATIONS, 1):
        from_ = known[parent]
        if from_ is None or F32(from_.share * F32(WASTE)) >= best.load:
            continue
        for place, halves in search.cuts(from_.regions[at], by_rows):
            one, other = cut(from_.regions[at], by_rows, place)
            kept = (*from_.regions[:at], *from_.regions[at + 1 :])
            if search.left < 4:
                continue
            first = yield from search.offers(*one, False, WHOLE if halves else BY_ROWS if by_rows else BY_COLUMNS)
            if not first:
                continue
            least = mosaic((*kept[:at], *first, *kept[at:]), cores, machine)
            if least.share >= best.load:
                continue
            second = yield from search.offers(*other, False, WHOLE if halves else ALL)
            tried = search.best(kept, first, second, at)
            before = known[derived]
            if before is None or tried.load < before.load:
                known[derived] = tried
            if tried.load < best.load:
                best, pattern = tried, derived
    if pattern == 0 or not best.load < limit:
        return None
    return Polymer(pattern, best.regions, F32(best.load + machine.started))


def polymerize(
    shape: Shape, cores: int, machine: Machine, alone: LaunchPlan, plain: LaunchPlan, family: Family
) -> Search:
    """The regions that serve a call better than its `plain` plan, or None. `alone` is the best plan on one thread."""
    if family.splits > 1 or family.dot or cores > MOST_CORES:
        return None
    where = yield from residue(shape, alone, machine)
    if where is not None:
        return (yield from mixed(shape, cores, machine, *where))
    if cores < 2 or F32(plain.seconds) < F32(LEAST) * machine.started:
        return None
    return (yield from balance(shape, cores, machine, plain))


def answered(selector: Selector, request: Request) -> Answer:
    """The best strategy of a family for one region."""
    total = np.asarray(selector.costs(request.shape, request.grid, request.cores, request.others).total)
    total = np.where(selector.columns.dot == request.dot, total, F32(NEVER))
    index = int(np.argmin(total))
    return Answer(index, total[index])


def plain(selector: Selector, shape: Shape, threads: int) -> tuple[LaunchPlan, LaunchPlan, Family]:
    """The best plan of one micro-kernel, the best on one thread, and the family of both."""
    near = selector.near(shape)
    family = selector.family(shape, near)
    alone = selector.least(shape, near, ways(1, 1))
    return selector.least(shape, near, ways(shape.batch, threads, family.splits)), alone, family


def select(selector: Selector, shape: Shape, threads: int) -> LaunchPlan:
    """The plan of least predicted time with regions among what is chosen from: the mirror of the native choice."""
    one, alone, family = plain(selector, shape, threads)
    if selector.words:
        return one
    search = polymerize(shape, threads, Machine.of(selector), alone, one, family)
    try:
        request = next(search)
        while True:
            request = search.send(answered(selector, request))
    except StopIteration as done:
        return as_plan(done.value, selector, threads) if done.value else one
