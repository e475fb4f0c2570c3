"""Samples of the shape domain, dense where the selector's choice changes. Pure functions of a choice and a seed.

The domain is a box in the logarithms of the extents. It is cut like a decision tree grown on the choice itself: the
cell with the greatest volume x impurity (share of its probes that do not choose as most of them do) is halved along
the axis that leaves the purest halves. Half of the samples are drawn by volume, the other half by volume x impurity;
each carries the inverse of its density as its weight, so that weighted statistics are those of the log-uniform domain.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

PROBES = 24
"""Shapes of a cell that are asked for their choice before it is cut."""
PLAIN_SHARE = 0.5
"""Share of the samples that are drawn by volume alone."""
SIDE = 0.1
"""Cells are not cut below this extent of a logarithm: about 10 % of m, n or k."""

Shape = tuple[int, int, int]
Choice = Callable[[int, int, int], object]
"""m, n, k -> what is chosen; equal things are one choice."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Least and largest m, n and k, inclusive; equal ends fix an axis. Shapes above `most_flops` are no part of it."""

    least: tuple[int, int, int]
    most: tuple[int, int, int]
    most_flops: float

    def holds(self, shape: Sequence[int]) -> bool:
        return 2.0 * shape[0] * shape[1] * shape[2] <= self.most_flops


@dataclass(frozen=True, slots=True)
class Cell:
    """A box in the logarithms and what probes of it say."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    volume: float
    """As far as it belongs to the domain, over the axes that have an extent."""
    impurity: float
    """Share of the probes that do not choose as most of them do."""


@dataclass(frozen=True, slots=True)
class Sample:
    shape: Shape
    weight: float
    """Share of the domain that it stands for, over the mean."""
    impurity: float
    """Of the cell it was drawn from."""


def draw(rng: np.random.Generator, low: Sequence[float], high: Sequence[float], count: int) -> list[Shape]:
    """Log-uniform shapes of a box."""
    logs = rng.uniform(low, high, (count, 3))
    return [(max(1, m), max(1, n), max(1, k)) for m, n, k in np.rint(np.exp(logs)).astype(int).tolist()]


def probed(
    rng: np.random.Generator, domain: Domain, choice: Choice, low: Sequence[float], high: Sequence[float]
) -> Cell:
    """A cell with its impurity; one that touches no shape of the domain has no volume."""
    kept = [shape for shape in draw(rng, low, high, PROBES) if domain.holds(shape)]
    counts = Counter(choice(*shape) for shape in kept)
    impurity = 1.0 - max(counts.values()) / len(kept) if kept else 0.0
    sides = math.prod(end - start for start, end in zip(low, high, strict=True) if end > start)
    return Cell(tuple(low), tuple(high), sides * len(kept) / PROBES, impurity)


def halves(cell: Cell, axis: int) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]:
    """The bounds of both halves."""
    middle = (cell.low[axis] + cell.high[axis]) / 2
    upper = (*cell.low[:axis], middle, *cell.low[axis + 1 :])
    lower = (*cell.high[:axis], middle, *cell.high[axis + 1 :])
    return (cell.low, lower), (upper, cell.high)


def cells(domain: Domain, choice: Choice, count: int, seed: int) -> list[Cell]:
    """The domain in about `count` cells, small where the choice changes."""
    rng = np.random.default_rng(seed)
    low, high = (tuple(float(np.log(extent)) for extent in ends) for ends in (domain.least, domain.most))
    first = probed(rng, domain, choice, low, high)
    waiting, order, done = [(0.0, 0, first)], 1, list[Cell]()  # the impurest first, then in the order they were made
    while waiting and len(waiting) + len(done) < count:
        _, _, cell = heapq.heappop(waiting)
        axes = [axis for axis in range(3) if cell.high[axis] - cell.low[axis] > SIDE]
        if not axes or not cell.impurity:
            done.append(cell)
            continue
        pairs = [[probed(rng, domain, choice, *ends) for ends in halves(cell, axis)] for axis in axes]
        for half in min(pairs, key=lambda pair: sum(half.volume * half.impurity for half in pair)):
            heapq.heappush(waiting, (-half.volume * half.impurity, order, half))
            order += 1
    return [cell for cell in (*(cell for _, _, cell in waiting), *done) if cell.volume > 0]


def samples(domain: Domain, choice: Choice, count: int, seed: int) -> list[Sample]:
    """`count` shapes of the domain in a seeded order, so that the first ones are a sample of it too.

    Raises ValueError where the domain holds no shape.
    """
    found = cells(domain, choice, max(64, 4 * count), seed)
    if not found:
        raise ValueError(f"no shape between {domain.least} and {domain.most} has at most {domain.most_flops:g} flops")
    volumes = np.array([cell.volume for cell in found])
    mixed = volumes * np.array([cell.impurity for cell in found])
    even = volumes / volumes.sum()
    chance = PLAIN_SHARE * even + (1 - PLAIN_SHARE) * mixed / mixed.sum() if mixed.any() else even
    rng = np.random.default_rng([seed, 1])
    # One random number shifts an even comb over the cumulated chances: less noisy than independent draws.
    comb = (np.arange(count) + rng.random()) / count
    places = np.minimum(np.searchsorted(np.cumsum(chance), comb), len(found) - 1)
    chosen = []
    for place in rng.permutation(places):
        cell = found[int(place)]
        shape = draw(rng, cell.low, cell.high, 1)[0]
        while not domain.holds(shape):
            shape = draw(rng, cell.low, cell.high, 1)[0]
        chosen.append(Sample(shape, float(even[place] / chance[place]), cell.impurity))
    mean = float(np.mean([sample.weight for sample in chosen]))
    return [Sample(sample.shape, sample.weight / mean, sample.impurity) for sample in chosen]
