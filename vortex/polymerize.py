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
from dataclasses import dataclass

import numpy as np

from vortex.arithmetic import F32, Array, Mask
from vortex.cost import NEVER
from vortex.plans import Family, Grid, LaunchPlan, OperandB, Region, Shape, ways
from vortex.regions import Answer, Machine, Mosaic, Polymer, Request, as_plan, asked, mosaic
from vortex.selector import FEW_THREADS, Selector, most_near, nearest

DERIVATIONS = (
    (0, 0, True), (0, 0, False), (1, 1, False), (1, 0, False), (4, 2, False), (1, 1, True), (4, 1, False), (2, 1, True)
)  # fmt: skip
"""How patterns II to IX refine an earlier one: (which, its region that is cut, whether by rows)."""
SOUGHT = ((2, 1), (3,), (4,), (5,), (6,), (7,), (8,))
"""The order in which they are tried, those of the whole at once: of 59 products cut on two, four and eight threads, 58
are cut by columns."""
LEAST = 16.0
"""A call is worth the search if it takes this many times the seconds of an empty one on several threads,"""
WASTE = 1.08
"""and the cores together this many times what its blocks would on their own."""
GAIN = 0.95
"""Regions must take less than this share of the plain plan."""
MOST_CUTS = 2
"""How many cuts are priced for one call at most. With 9, one of 179 products on two, four and eight threads is
predicted to take less time, by half a percent."""
MOST_TRIED, FEW_TRIED = 4, 2
"""Strategies that a region may have: those that were quickest for the whole call on any of its grids; fewer where a
call is balanced on few threads. With all of them one of 140 products is predicted to be balanced in less time on two
threads, by half a percent, but 3 of 22 on four with two, by up to 7 %; and with two where a residue is cut off, 22 of
160 on two threads by up to a fifth: what is left has whole vectors, of which other strategies are the best. Beside a
residue few threads have all that are near on one, so that grids of the whole call need no prices; by the four nearest
on one of 35 products 5 are predicted to take longer on four threads, by up to an eighth, on sixteen 3 by up to 1.4."""
MOST_CORES = 64
BY_ROWS, BY_COLUMNS, WHOLE, ALL = 0, 1, 2, -1
"""The grids that a region may be priced on. On few threads what is left beside a cut is cut across it alone, so that
both regions of two cuts are one vector of eight lanes: of 183 products two are predicted to take more than by the best
of the three, 0.4 and 6.5 %; and with a residue off nothing is left whole that may be cut, by which none loses 0.5 %."""
LESS_LANES = 7
"""One in this many lanes must be empty for a residue to be looked at."""


Search = Generator[list[Request], list[Answer], Polymer | None]
Rectangle = tuple[int, int, int, int]
"""Row, column, rows, columns."""


def residue(shape: Shape, alone: LaunchPlan, machine: Machine) -> tuple[bool, int] | None:
    """Where lanes may be cut off for the dot family: whether along the rows of C, and how many stay; or None."""
    along_m = machine.swaps[alone.index] and shape.b is OperandB.TRANSPOSED
    extent = shape.m if along_m else shape.n
    rest = extent % machine.lanes
    whole = extent - rest
    if not rest or not whole or not machine.dots.get(rest) or shape.b is OperandB.PACKED or shape.a_is_col:
        return None
    if (machine.lanes - rest) * LESS_LANES < whole + machine.lanes or F32(alone.seconds) < F32(LEAST) * machine.started:
        return None
    return along_m, whole


@dataclass(frozen=True)
class Offer:
    """A rectangle on a grid, while so many cores are at work."""

    where: Rectangle
    grid: Grid
    cores: int


@dataclass(frozen=True)
class _Search:
    shape: Shape
    cores: int
    machine: Machine

    @property
    def few(self) -> bool:
        return self.cores <= FEW_THREADS

    def offers(self, where: Rectangle, only: int = ALL) -> list[Offer]:
        """The rectangle cut for all cores by rows, by columns, or left whole; or each of them, whole on few cores only
        if it cannot be cut."""
        found: list[Offer] = []
        grids = Grid(self.cores, 1), Grid(1, self.cores), Grid(1, 1)
        for at in range(BY_ROWS if self.cores > 1 else WHOLE, len(grids)):
            grid, (_, _, rows, columns) = grids[at], where
            needless = at == WHOLE and found and self.few
            wanted = not needless if only == ALL else only == at
            if wanted and rows >= grid.m and (grid.n == 1 or columns >= grid.n * self.machine.lanes):
                found.append(Offer(where, grid, self.cores))
        return found

    def regions(
        self, offers: list[Offer], most: int, dot: bool = False, alone: bool = False
    ) -> Generator[list[Request], list[Answer], list[Region]]:
        """Each by its best strategy; all are priced at once."""
        answers = yield [asked(self.shape, *each.where[2:], each.grid, each.cores, most, dot, alone) for each in offers]
        found = []
        for offer, answer in zip(offers, answers, strict=True):
            start = self.machine.started if offer.cores > 1 else self.machine.call
            found.append(Region(*offer.where, offer.grid, answer.index, F32(answer.seconds - start)))
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


def cut(region: Region, by_rows: bool, at: int) -> tuple[Rectangle, Rectangle]:
    """The two rectangles of a region cut before its row or column `at`."""
    row, column, rows, columns = region.row, region.column, region.rows, region.columns
    if by_rows:
        return (row, column, at, columns), (row + at, column, rows - at, columns)
    return (row, column, rows, at), (row, column + at, rows, columns - at)


def mixed(
    shape: Shape, cores: int, machine: Machine, alone: LaunchPlan, splits: int, along_m: bool, whole: int
) -> Search:
    """The residue by dot products, if that gains on one thread; then each part on the grid that serves it best."""
    search = _Search(shape, cores, machine)
    body, rest = cut(Region(0, 0, shape.m, shape.n, Grid(1, 1), 0, F32(0)), along_m, whole)
    outer = yield from search.regions([Offer(body, Grid(1, 1), 1)], MOST_TRIED, alone=True)
    dots = yield from search.regions([Offer(rest, Grid(1, 1), 1)], 1, dot=True)
    if not F32(F32(outer[0].task + dots[0].task) + machine.call) < F32(GAIN) * F32(alone.seconds):
        return None
    if cores > 1:
        most = most_near(cores, machine.lanes) if search.few else MOST_TRIED
        outer = yield from search.regions(search.offers(body), most, alone=search.few or splits > 1)
        dots = yield from search.regions(search.offers(rest), 1, dot=True)
    found = search.best((), outer, dots, 0)
    start = machine.started if cores > 1 else machine.call
    return Polymer(1 if along_m else 2, found.regions, F32(found.load + start))


def balance(shape: Shape, cores: int, machine: Machine, plain: LaunchPlan) -> Search:
    """Branch and bound over patterns, cuts and strategies; None where the plain plan is as good."""
    grid = plain.grid
    task = F32(F32(plain.seconds) - (machine.started if plain.workers > 1 else machine.call))
    root = mosaic((Region(0, 0, shape.m, shape.n, grid, plain.index, task),), cores, machine)
    known: list[Mosaic | None] = [root] + [None] * len(DERIVATIONS)
    search, best, pattern, left = _Search(shape, cores, machine), root, 0, MOST_CUTS
    most = FEW_TRIED if search.few else MOST_TRIED
    limit = F32(GAIN) * F32(F32(plain.seconds) - machine.started)
    for together in SOUGHT:
        trials = []
        for derived in together:
            parent, at, by_rows = DERIVATIONS[derived - 1]
            from_ = known[parent]
            if from_ is None or F32(from_.share * F32(WASTE)) >= best.load:
                continue
            along, across = (BY_ROWS, BY_COLUMNS) if by_rows else (BY_COLUMNS, BY_ROWS)
            kept = (*from_.regions[:at], *from_.regions[at + 1 :])
            for place, halves in search.cuts(from_.regions[at], by_rows):
                one, other = cut(from_.regions[at], by_rows, place)
                first = search.offers(one, WHOLE if halves else along)
                if first and left:
                    left -= 1
                    second = [] if halves else search.offers(other, across if search.few else ALL)
                    trials.append((derived, kept, at, [*first, *(second or search.offers(other, WHOLE))]))
        if not trials:
            continue
        parts = yield from search.regions([offer for *_, offers in trials for offer in offers], most)
        for derived, kept, at, offers in trials:
            one_by, other_by, parts = parts[:1], parts[1 : len(offers)], parts[len(offers) :]
            tried = search.best(kept, one_by, other_by, at)
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
    if family.dot or cores > MOST_CORES:
        return None
    where = residue(shape, alone, machine)
    if where is not None:
        found = yield from mixed(shape, cores, machine, alone, family.splits, *where)
        if found is not None:
            return found
    if cores < 2 or family.splits > 1 or F32(plain.seconds) < F32(LEAST) * machine.started:
        return None
    return (yield from balance(shape, cores, machine, plain))


@dataclass(frozen=True)
class Plain:
    """The best plan of one micro-kernel, the best on one thread, and the family of both."""

    plan: LaunchPlan
    alone: LaunchPlan
    family: Family
    least: Array
    """Seconds of each strategy on the best of the grids,"""
    on_one: Array
    """and on one thread, which decides whether a residue gains, whatever the number of threads."""

    def among(self, dots: Mask, request: Request) -> Mask:
        """Of which strategies a request asks for the best; `dots` are those of the dot family."""
        return dots if request.dot else nearest(self.on_one if request.alone else self.least, request.most)


def plain(selector: Selector, shape: Shape, threads: int) -> Plain:
    near = selector.near(shape, threads)
    family = selector.family(shape)
    choice, first = ways(shape.batch, threads, family.splits), ways(1, 1)
    seconds, on_one = selector.seconds(shape, near, choice), selector.seconds(shape, near, first)
    return Plain(
        selector.quickest(seconds, choice),
        selector.quickest(on_one, first),
        family,
        seconds.min(axis=0),
        on_one[0],
    )


def answered(selector: Selector, found: Plain, requests: list[Request]) -> list[Answer]:
    """The best strategy for each of some regions."""
    answers = []
    for request in requests:
        total = np.asarray(selector.costs(request.shape, request.grid, request.cores, request.others).total)
        total = np.where(found.among(selector.columns.dot > 0, request), total, F32(NEVER))
        index = int(np.argmin(total))
        answers.append(Answer(index, total[index]))
    return answers


def select(selector: Selector, shape: Shape, threads: int) -> LaunchPlan:
    """The plan of least predicted time with regions among what is chosen from: the mirror of the native choice."""
    found = plain(selector, shape, threads)
    if selector.words:
        return found.plan
    search = polymerize(shape, threads, Machine.of(selector), found.alone, found.plan, found.family)
    try:
        requests = next(search)
        while True:
            requests = search.send(answered(selector, found, requests))
    except StopIteration as done:
        return as_plan(done.value, selector, threads) if done.value else found.plan
