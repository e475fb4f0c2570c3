"""Which strategies are kept (paper section 5.2, Eq. 1), with no shape given.

The cost model is evaluated over the domain of all shapes, sampled where it can bend: a logarithmic lattice of m, n and
k. First, under every L0 tile, only L1 tiles that are the best somewhere survive. Then strategies are added one by one,
each time the one that lowers the mean predicted loss against the best of all candidates the most, until nobody in the
domain would miss much: for a B as it lies, for a transposed and for a packed one apart, since a call is priced by those
of its kind alone. What the families beside the register tiles are there for has its place first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from vortex.arithmetic import Array
from vortex.axes import Extent, Hint, often
from vortex.candidates import WIDEST_PANEL, Strategy, takes_packed
from vortex.dtypes import WordFormat
from vortex.plans import Grid, OperandB, Shape, grids
from vortex.problem import Problem
from vortex.rates import Rates
from vortex.selector import Selector, Shortlists, SlopeTable, problem, reads_panels

COARSE = (1, 4, 12, 40, 100, 600, 4096)
FINE = (1, 2, 3, 5, 7, 10, 13, 24, 33, 48, 64, 100, 160, 256, 400, 768, 1152, 2048, 4096, 9000)
LAST = (1, 3, 7, 13, 33, 64, 160, 400, 1024, 2048, 4096)
"""Extents of the lattice: the first choice is made on the coarse one, the last on this one, on the fine one where an
extent is known. The small are no multiples of the tiles' heights, and 13 rows are one tall tile or two low ones
(12x1149x2480: 0.27 ms instead of 0.40 by two). The large are as wide as layers of networks, whose rows crowd few sets
of the caches: with 1152 in place of 1024 and 2048 no wide tile was kept that reads such a B as it lies, and of 72 plain
products the choice was 0.93 of the best plan and not 0.96 (Zen 5)."""
FILTERS = often(dict.fromkeys((16, 32, 64, 96, 128, 192, 256, 384, 512), 1.0))
"""Columns of a packed operand that is the weights of a convolution."""
MOST_ARRIVING, MOST_OF_FILTERS = 0.28, 0.36
"""Shares of a tile's arithmetic in which a row of a packed panel may come from L2, which the prices of single plans do
not see: a panel is read again by every tile, from lines that others want at the same time. With 2 x 48 by AVX2 it is
0.84: by such panels convolutions of a Zen 3 went at 18 to 75 GFLOP/s, and by those of 6 x 16 (0.27) at 47 to 88. Of
AVX-512 9 x 48 is 0.2, 6 x 64 0.3, 5 x 80 0.4 and 4 x 96 0.5 on a Zen 5: there 18 packed products of 1 to 4800 rows are
1.05 times as fast on two cores by 48 columns as by 80 (1.00 to 1.18), on one 1.02; of 36 convolutions by 1 x 1 filters
by 64 columns 1.03 times as fast as by 96, 112 filters 1.15 times. By 48 those lose 1 %, and with few channels 4."""
NARROW = 2
"""Vectors of a panel that may come in a larger part: of AVX2's only a vector alone comes in less than 6 x 16."""
CLOSE_FILTERS = 0.01
"""Widths of panels of filters that are priced so close are told apart by the noise of the measured kernels alone. The
widest of them is taken: pixels are read for fewer panels, and few channels along lines want many vectors."""
CLOSE_PANELS = 0.002
"""The same of other packed operands. The narrowest of them is taken, whose tiles are the tallest: on a Granite Rapids
12x600x600 took 66 us by 5 x 80, 61 by 6 x 64 and 50 by 14 x 32, 2048x1024x1024 26.9, 23.8 and 23.0 ms, and one row by
600 x 600 or less a tenth less by 5 x 80 than by 14 x 32."""
MEAN_GAIN = 5e-5
"""A strategy must lower the mean loss over the domain by this share of the run time to be worth its place. Sixteen for
a kind of B are one vector of the native cost: at 2e-4 two or three of a transposed B's were left out, among them 11 x
32, and 53x768x2304 took 0.91 ms instead of 0.78 (Zen 5)."""
MOST_PACKED = 5
"""Strategies for a packed B, at most: on the grids of two threads as many are one vector of the native cost. On a
Granite Rapids five lose 0.0003 of the logarithm of seconds over the domain, by prediction, nine nothing."""
FAMILY_GAIN = 1.1
"""A family that is predicted so much faster than every register tile, for any shape of the domain, has its place: the
shapes it is there for are few (a row by a large matrix), and the mean may not miss them."""
BLOCK = 1 << 18
"""Prices at once: few enough that they are in a cache when they are read again for the least of them."""
MOST_WORK = 1 << 37
"""Multiply-adds of the largest shapes of the domain."""


Price = Callable[[Selector, Sequence[Problem]], Array]
"""Predicted seconds, [call, strategy]: by NumPy, or by native code that says the same."""


def in_numpy(selector: Selector, asked: Sequence[Problem]) -> Array:
    return selector.totals(asked)


@dataclass(frozen=True)
class Domain:
    """The shapes that strategies are chosen for, and how much each matters."""

    shapes: tuple[Shape, ...]
    weights: tuple[float, ...]


def domain(lattice: Sequence[int], kinds: Sequence[OperandB], known: Mapping[str, Extent]) -> Domain:
    """Shapes of at most 2^37 multiply-adds on the lattice, or the smallest there are; known extents replace it."""
    axes = [_points(known.get(axis), lattice) for axis in "mnk"]
    products = [(m * n * k, (m, n, k), u * v * w) for (m, u), (n, v), (k, w) in product(*axes)]
    most = max(MOST_WORK, min(products)[0])
    found = [(Shape(*shape, b), weight) for work, shape, weight in products if work <= most for b in kinds]
    return Domain(tuple(shape for shape, _ in found), tuple(weight for _, weight in found))


def _points(extent: Extent, lattice: Sequence[int]) -> list[tuple[int, float]]:
    if isinstance(extent, Hint):
        return list(extent.points)
    return [(at, 1.0) for at in (lattice if extent is None else (extent,))]


def lattices(known: Mapping[str, Extent]) -> tuple[Sequence[int], Sequence[int]]:
    """Of the first and of the last choice: the fewer axes are open, the finer."""
    return (FINE[::2], FINE) if any(extent is not None for extent in known.values()) else (COARSE, LAST)


def in_blocks(
    selector: Selector, shapes: Sequence[Shape], grid: Grid, threads: int, price: Price = in_numpy
) -> Iterator[Array]:
    """Predicted seconds of every strategy on some shapes at a time, [shape, strategy]."""
    block = max(1, BLOCK // len(selector.strategies))
    for first in range(0, len(shapes), block):
        asked = (shape.in_words(selector.words) for shape in shapes[first : first + block])
        yield price(selector, [problem(shape, grid, threads, selector.rates) for shape in asked])


def losses(selector: Selector, shapes: Sequence[Shape], threads: int, price: Price = in_numpy) -> Array:
    """Predicted seconds over the least of any strategy, [shape, strategy]; the best grid for each."""
    plans = [Grid(1, 1)] if threads == 1 else grids(threads)
    priced = (np.concatenate(list(in_blocks(selector, shapes, grid, threads, price))) for grid in plans)
    least = np.minimum.reduce(list(priced))
    return np.minimum(least / least.min(axis=1, keepdims=True), np.float32(1e3))


def best_under_each(selector: Selector, shapes: Sequence[Shape], price: Price = in_numpy) -> list[Strategy]:
    """Eq. 1: under every L0 tile, the L1 tiles that are the best of that tile for some shape."""
    owners: dict[object, list[int]] = {}
    for index, strategy in enumerate(selector.strategies):
        owners.setdefault(strategy.l0, []).append(index)
    kept: set[int] = set()
    for totals in in_blocks(selector, shapes, Grid(1, 1), 1, price):
        for indices in owners.values():
            of_tile = totals[:, indices]
            winners = np.argmin(of_tile, axis=1)
            served = of_tile[np.arange(len(winners)), winners] < 1e20
            kept.update(np.array(indices)[winners[served]].tolist())
    return [selector.strategies[index] for index in sorted(kept)]


def families(strategies: Sequence[Strategy], loss: Array) -> list[int]:
    """The columns of `loss` that no register tile comes near somewhere."""
    tiled = np.array([strategy.stage.tiled for strategy in strategies])
    if tiled.all() or not tiled.any():
        return []
    rival = loss[:, tiled].min(axis=1)
    return [int(i) for i in np.flatnonzero(~tiled) if (rival >= FAMILY_GAIN * loss[:, i]).any()]


def cover(loss: Array, weights: Array, most: int, first: Sequence[int] = ()) -> list[int]:
    """Greedy choice of columns so that the weighted mean over rows of log(least chosen loss) falls fastest, after the
    `first` ones."""
    logs = np.log(loss)
    chosen = list(first)
    if not logs.shape[1]:
        return chosen
    current = np.min(logs[:, chosen], axis=1, initial=np.log(np.float32(1e3)))
    while len(chosen) < most:
        means = np.average(np.minimum(current[:, None], logs), axis=0, weights=weights)
        best = int(np.argmin(means))
        if chosen and np.average(current, weights=weights) - means[best] < MEAN_GAIN:
            break
        chosen.append(best)
        current = np.minimum(current, logs[:, best])
    return chosen


def everywhere(strategy: Strategy, b: OperandB, panel: int) -> bool:
    """Whether it serves such a B whatever A and the extents are: calls may have others than those that are expected."""
    stage = strategy.stage
    if b is OperandB.PACKED or not stage.tiled:
        return stage.tiled and reads_panels(strategy, panel)
    return stage.pack_b or (b is OperandB.PLAIN and not stage.swap)


def may_serve(strategy: Strategy, b: OperandB, panel: int, words: WordFormat | None) -> bool:
    """Whether it serves such a B at least where A and the extents are as it wants them."""
    stage = strategy.stage
    if b is OperandB.PACKED:
        return not stage.dot and reads_panels(strategy, panel)
    if stage.dot or stage.pack_b:
        return True
    return words is None and (b is OperandB.PLAIN or stage.swap or stage.held)


@dataclass(frozen=True)
class Candidates:
    """Those for one kind of B, and what they lose over the domain, [shape, strategy]."""

    b: OperandB
    strategies: tuple[Strategy, ...]
    loss: Array
    weights: Array

    @property
    def families(self) -> list[int]:
        return families(self.strategies, self.loss)

    def kept(self, panel: int, most: int, dot: bool) -> list[Strategy]:
        """The choice, in which one serves such a B `everywhere`; with the dot family if `dot` says so."""
        dots = [i for i, s in enumerate(self.strategies) if s.stage.dot and dot]
        first = list(dict.fromkeys([*self.families, *dots]))
        chosen = cover(self.loss, self.weights, most, first)
        able = [i for i, s in enumerate(self.strategies) if everywhere(s, self.b, panel)]
        if able and not set(able) & set(chosen):
            means = np.average(np.log(self.loss), axis=0, weights=self.weights)
            chosen = cover(self.loss, self.weights, most, [*first, min(able, key=lambda i: float(means[i]))])
        return [self.strategies[i] for i in chosen]


def candidates(
    every: Selector, b: OperandB, lattice: Sequence[int], known: Mapping[str, Extent], threads: int,
    price: Price = in_numpy,
) -> Candidates:  # fmt: skip
    """Of those that `every` has, priced on one thread and on `threads`."""
    able = tuple(s for s in every.strategies if may_serve(s, b, every.panel, every.words))
    over, narrow = domain(lattice, [b], known), replace(every, strategies=able)
    weights = np.array(over.weights, np.float32)
    if not able:
        return Candidates(b, able, np.empty((len(over.shapes), 0), np.float32), weights)
    loss = losses(narrow, over.shapes, 1, price)
    if threads > 1:
        loss = np.concatenate([loss, losses(narrow, over.shapes, threads, price)])
        weights = np.concatenate([weights, weights])
    return Candidates(b, able, loss, weights)


def shortlisted(
    every: Selector, kinds: Sequence[OperandB], known: Mapping[str, Extent], threads: int, most: int,
    price: Price = in_numpy,
) -> tuple[tuple[Strategy, ...], Shortlists]:  # fmt: skip
    """The strategies that are kept, in the order of `every`, and which of them for each kind of B.

    One thread decides between dot products and others, and regions of a call may be of both: if one list of an unpacked
    B has the dot family, the other has it too.
    """
    _, lattice = lattices(known)
    found = [candidates(every, b, lattice, known, threads, price) for b in kinds]
    dot = any(one.strategies[i].stage.dot for one in found for i in one.families)
    few = min(most, MOST_PACKED) if len(kinds) > 1 and not every.words else most
    kept = {one.b: one.kept(every.panel, few if one.b is OperandB.PACKED else most, dot) for one in found}
    union = set().union(*kept.values())
    strategies = tuple(s for s in every.strategies if s in union)
    place = {strategy: index for index, strategy in enumerate(strategies)}
    return strategies, tuple(tuple(sorted(place[s] for s in kept.get(b, ()))) for b in OperandB)


def packed_under_each(
    strategies: Sequence[Strategy], rates: Rates, table: SlopeTable, lanes: int, packed: Domain, words: WordFormat,
    price: Price,
) -> list[Strategy]:  # fmt: skip
    """The same where B always comes packed: the panels of each L0 tile are as wide as the tile."""
    widths = sorted({s.l0.n for s in strategies})
    of_width = {width: tuple(s for s in strategies if s.l0.n == width) for width in widths}
    return [
        strategy
        for width, those in of_width.items()
        for strategy in best_under_each(Selector(those, rates, table, lanes, width, words), packed.shapes, price)
    ]


def arrives(rates: Rates, table: SlopeTable, rows: int, columns: int, lanes: int) -> float:
    """Seconds in which a row of a panel comes from L2, over those of a tile's arithmetic on it."""
    return columns * rates.bytes_b * rates.l2_byte / float(table.seconds[columns // lanes, rows])


def choose_panel(
    rates: Rates,
    table: SlopeTable,
    lanes: int,
    strategies: Sequence[Strategy],
    packed: Domain,
    words: WordFormat | None,
    close: float = 0.0,
    price: Price = in_numpy,
) -> int:
    """The declared width of a packed operand, of those whose panels arrive in time: that of the main tile which serves
    the domain best, or the narrowest of those that are as good but for noise; the widest of those whose mean logarithm
    of seconds is at most `close` above the least, if that is given."""
    unpacked = [s for s in strategies if not s.stage.pack_b]
    main = ((s.l0.n, s.l0.m) for s in unpacked if s.l0.n <= WIDEST_PANEL * lanes and s.stage.tiled)
    tiles = dict(sorted(main))  # of a width the tallest
    most = MOST_OF_FILTERS if close else MOST_ARRIVING
    arriving = {n: arrives(rates, table, m, n, lanes) for n, m in tiles.items()}
    in_time = [n for n in tiles if rates.room or n <= NARROW * lanes or arriving[n] <= most]
    widths = in_time or list(tiles)
    scores = {}
    for panel in widths:
        selector = Selector(tuple(unpacked), rates, table, lanes, panel, words)
        seconds = np.concatenate([b.min(axis=1) for b in in_blocks(selector, packed.shapes, Grid(1, 1), 1, price)])
        scores[panel] = float(np.average(np.log(seconds, dtype=np.float64), weights=packed.weights))
    pick, above = (max, close) if close else (min, CLOSE_PANELS)
    return pick(width for width in widths if scores[width] <= min(scores.values()) + above)


def analyze(
    strategies: Sequence[Strategy],
    rates: Rates,
    table: SlopeTable,
    lanes: int,
    threads: int,
    most: int,
    known: Mapping[str, Extent],
    packed: Hint | None = None,
    words: WordFormat | None = None,
    price: Price = in_numpy,
) -> tuple[tuple[Strategy, ...], Shortlists, int]:
    """The strategies a library keeps, those for each kind of B, and the panel width of its packed operands.

    `known` extents narrow the domain; `packed` are the columns that packed operands have, if they are others.
    """
    first, _ = lattices(known)
    wide = Selector(tuple(strategies), rates, table, lanes, 1, words)
    if words and words.weights:
        packed_alone = domain(first, [OperandB.PACKED], known)
        finalists = packed_under_each(strategies, rates, table, lanes, packed_alone, words, price)
    else:
        finalists = best_under_each(wide, domain(first, [OperandB.PLAIN, OperandB.TRANSPOSED], known).shapes, price)
    if (words and not words.weights) or not any(s.stage.tiled and takes_packed(s) for s in finalists):
        # Those that pack nothing serve packed operands, whose width is not chosen yet: priced as if B were plain.
        loose = Selector(tuple(s for s in strategies if not s.stage.pack_b), rates, table, lanes, 1)
        finalists += best_under_each(loose, domain(first, [OperandB.PLAIN], known).shapes, price)
        finalists = list(dict.fromkeys(finalists))
    columns = {"n": packed} if packed else {}
    alone = domain(first, [OperandB.PACKED], {**known, **columns})
    panel = choose_panel(rates, table, lanes, finalists, alone, words, CLOSE_FILTERS if packed else 0.0, price)
    kinds = [OperandB.PACKED] if words and words.weights else list(OperandB)
    every = Selector(tuple(finalists), rates, table, lanes, panel, words)
    return *shortlisted(every, kinds, known, threads, most, price), panel
