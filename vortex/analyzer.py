"""Which strategies are kept (paper section 5.2, Eq. 1), with no shape given.

The cost model is evaluated over the domain of all shapes, sampled where it can bend: a logarithmic lattice of m, n and
k. First, under every L0 tile, only L1 tiles that are the best somewhere survive. Then strategies are added one by one,
each time the one that lowers the mean predicted loss against the best of all candidates the most, until nobody in the
domain would miss much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from vortex.candidates import WIDEST_PANEL, Strategy
from vortex.dtypes import WordFormat
from vortex.rates import Rates
from vortex.selector import Array, Grid, OperandB, Selector, Shape, SlopeTable, grids

COARSE = (1, 12, 100, 600, 4096)
FINE = (1, 2, 3, 5, 8, 13, 16, 24, 33, 48, 64, 100, 160, 256, 400, 768, 1152, 2048, 4096, 9000)
FILTERS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Columns of a packed operand that is the weights of a convolution."""
MEAN_GAIN = 2e-4
"""A strategy must lower the mean loss over the domain by this share of the run time to be worth its place."""


def domain(extents: Sequence[int], kinds: Sequence[OperandB], columns: Sequence[int] = ()) -> list[Shape]:
    """Shapes of at most 2^37 multiply-adds on the lattice, whose n is one of `columns` if there are any."""
    sides = extents, columns or extents, extents
    shapes = [Shape(m, n, k, b) for m, n, k in product(*sides) for b in kinds]
    return [shape for shape in shapes if shape.m * shape.n * shape.k <= 1 << 37]


def losses(selector: Selector, shapes: Sequence[Shape], threads: int) -> Array:
    """Predicted seconds over the least of any strategy, [shape, strategy]; the best grid for each."""
    rows = []
    plans = [Grid(1, 1)] if threads == 1 else grids(threads)
    for shape in shapes:
        totals = [np.asarray(selector.costs(shape, grid, threads).total) for grid in plans]
        least = np.minimum.reduce(totals)
        rows.append(least / least.min())
    return np.minimum(np.stack(rows), np.float32(1e3))


def best_under_each(selector: Selector, shapes: Sequence[Shape]) -> list[Strategy]:
    """Eq. 1: under every L0 tile, the L1 tiles that are the best of that tile for some shape."""
    owners: dict[object, list[int]] = {}
    for index, strategy in enumerate(selector.strategies):
        owners.setdefault(strategy.l0, []).append(index)
    kept: set[int] = set()
    for shape in shapes:
        totals = np.asarray(selector.costs(shape, Grid(1, 1), 1).total)
        for indices in owners.values():
            winner = indices[int(np.argmin(totals[indices]))]
            if totals[winner] < 1e20:
                kept.add(winner)
    return [selector.strategies[index] for index in sorted(kept)]


def cover(loss: Array, most: int) -> list[int]:
    """Greedy choice of columns so that the mean over rows of log(least chosen loss) falls fastest."""
    logs = np.log(loss)
    current = np.full(len(logs), np.log(np.float32(1e3)), np.float32)
    chosen: list[int] = []
    while len(chosen) < most:
        means = np.minimum(current[:, None], logs).mean(axis=0)
        best = int(np.argmin(means))
        if chosen and current.mean() - means[best] < MEAN_GAIN:
            break
        chosen.append(best)
        current = np.minimum(current, logs[:, best])
    return chosen


def choose_panel(
    rates: Rates,
    table: SlopeTable,
    lanes: int,
    strategies: Sequence[Strategy],
    columns: Sequence[int],
    words: WordFormat | None,
) -> int:
    """The declared width of an operand packed from so many columns: that of the main tile which serves them best."""
    shapes = domain(COARSE, [OperandB.PACKED], columns)
    unpacked = [s for s in strategies if not s.stage.pack_b]
    widths = sorted({s.l0.n for s in unpacked if s.l0.n <= WIDEST_PANEL * lanes})
    scores = {}
    for panel in widths:
        selector = Selector(tuple(unpacked), rates, table, lanes, panel, words)
        seconds = [float(np.min(np.asarray(selector.costs(shape, Grid(1, 1), 1).total))) for shape in shapes]
        scores[panel] = float(np.mean(np.log(seconds)))
    return min(widths, key=lambda width: (round(scores[width], 3), width))


def analyze(
    strategies: Sequence[Strategy],
    rates: Rates,
    table: SlopeTable,
    lanes: int,
    threads: int,
    most: int,
    packed: Sequence[int] = COARSE,
    words: WordFormat | None = None,
) -> tuple[tuple[Strategy, ...], int]:
    """The strategies a library keeps, and the panel width of its packed operands, of `packed` columns."""
    kinds = list(OperandB)
    wide = Selector(tuple(strategies), rates, table, lanes, 1, words)
    finalists = best_under_each(wide, domain(COARSE, [OperandB.PLAIN, OperandB.TRANSPOSED]))
    if words:
        # Those that pack nothing serve packed operands alone, whose width is not chosen yet: priced as if B were plain.
        loose = Selector(tuple(s for s in strategies if not s.stage.pack_b), rates, table, lanes, 1)
        finalists += best_under_each(loose, domain(COARSE, [OperandB.PLAIN]))
    panel = choose_panel(rates, table, lanes, finalists, packed, words)
    narrow = Selector(tuple(finalists), rates, table, lanes, panel, words)
    shapes = domain(FINE[::2], kinds)
    loss = losses(narrow, shapes, 1)
    if threads > 1:
        loss = np.concatenate([loss, losses(narrow, shapes, threads)])
    chosen = cover(loss, most)
    return tuple(finalists[index] for index in sorted(chosen)), panel
