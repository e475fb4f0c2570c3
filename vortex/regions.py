"""Regions of one output that tasks are shared from: what they cost, together and each on its own.

A region's tasks cost what the cost model says of that product on that grid while all cores are at work (MikPoly's
f_pipe, Eq. 4); tasks of all regions go to the least loaded core, long ones first (max-min allocation), and the fullest
core's load is what the call takes (f_wave, Eq. 3: with one region it is the number of waves).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vortex.arithmetic import F32
from vortex.candidates import dot_tiles
from vortex.plans import Grid, LaunchPlan, Region, Shape
from vortex.selector import Selector

PATTERNS = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
"""Of regions, by the numbers of MikPoly's Figure 5; `polymerize` says which each is."""


@dataclass(frozen=True)
class Polymer:
    """Regions that together are the output. `seconds` of the whole call."""

    pattern: int
    regions: tuple[Region, ...]
    seconds: np.float32


@dataclass(frozen=True)
class Request:
    """What a search asks: the best strategy for a region of this shape, while `cores` are at work on all regions; of
    the dot family, or of the `most` others that were quickest for the whole call, on one thread or on as many."""

    shape: Shape
    grid: Grid
    cores: int
    others: np.float32
    most: int
    dot: bool
    alone: bool


@dataclass(frozen=True)
class Answer:
    """The strategy of least predicted seconds, by its index."""

    index: int
    seconds: np.float32


@dataclass(frozen=True)
class Mosaic:
    """A polymer while it is searched for: what its fullest core is loaded with, and what all would be if none idled."""

    regions: tuple[Region, ...]
    load: np.float32
    share: np.float32


@dataclass(frozen=True)
class Machine:
    """What the search has to know of a library, float32 seconds."""

    started: np.float32
    """Of an empty call on several threads."""
    call: np.float32
    lanes: int
    panel: int
    swaps: tuple[bool, ...]
    tiles: tuple[tuple[int, int], ...]
    """Rows and columns of each strategy's register tile."""
    dots: dict[int, int]
    """Tallest dot tile by columns; empty where the library has no dot family."""

    @classmethod
    def of(cls, selector: Selector) -> Machine:
        rates, dot = selector.rates, any(s.stage.dot for s in selector.strategies)
        return cls(
            F32(rates.call + rates.thread_start),
            F32(rates.call),
            selector.lanes,
            selector.panel,
            tuple(s.stage.swap for s in selector.strategies),
            tuple((s.l0.m, s.l0.n) for s in selector.strategies),
            dot_tiles(round(rates.registers)) if dot else {},
        )


def maxmin(regions: Sequence[Region], cores: int) -> np.float32:
    """The load of the fullest core when every task, long ones first, goes to the least loaded one."""
    groups: list[tuple[int, np.float32]] = [(cores, F32(0))]
    for region in sorted(regions, key=lambda region: -region.task):
        left = region.grid.m * region.grid.n
        while left:
            at = min(range(len(groups)), key=lambda place: groups[place][1])
            alike, load = groups[at]
            taken = min(left, alike)
            if taken == alike:
                groups[at] = (alike, F32(load + region.task))
            else:
                groups[at] = (alike - taken, load)
                groups.append((taken, F32(load + region.task)))
            left -= taken
    return max(load for _, load in groups)


def largest(region: Region, machine: Machine) -> int:
    """Elements of the output that the largest task of a region has."""
    swap, width = machine.swaps[region.index], machine.tiles[region.index][1]
    m, n = (region.columns, region.rows) if swap else (region.rows, region.columns)
    panels = -(-n // width)
    return -(-m // region.grid.m) * min(n, -(-panels // region.grid.n) * width)


def work(region: Region, machine: Machine) -> np.float32:
    """Seconds of all tasks of a region one after the other; the smaller ones take their share of the largest."""
    return F32(region.task * F32(F32(region.rows * region.columns) / F32(largest(region, machine))))


def mosaic(regions: tuple[Region, ...], cores: int, machine: Machine) -> Mosaic:
    total = F32(0)
    for region in regions:
        total = F32(total + work(region, machine))
    return Mosaic(regions, maxmin(regions, cores), F32(total / F32(cores)))


def others(shape: Shape, rows: int, columns: int) -> np.float32:
    """Bytes of the operands that a region of a call does not touch."""
    whole = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
    return F32(4 * (whole - rows * shape.k - shape.k * columns - rows * columns))


def asked(
    shape: Shape, rows: int, columns: int, grid: Grid, cores: int, most: int = 0, dot: bool = False, alone: bool = False
) -> Request:
    part = replace(shape, m=rows, n=columns, lda=shape.stride_a, ldb=shape.stride_b)
    return Request(part, grid, cores, others(shape, rows, columns), most, dot, alone)


def as_plan(polymer: Polymer, selector: Selector, cores: int) -> LaunchPlan:
    """A polymer as a launch plan, whose strategy and grid are those of the first region."""
    first = polymer.regions[0]
    tasks = sum(region.grid.m * region.grid.n for region in polymer.regions)
    return LaunchPlan(
        first.index,
        selector.strategies[first.index],
        first.grid,
        float(polymer.seconds),
        min(cores, tasks),
        polymer.regions,
        PATTERNS[polymer.pattern],
    )


def priced(selector: Selector, shape: Shape, cores: int, pattern: int, fields: Sequence[Sequence[int]]) -> LaunchPlan:
    """The launch plan of regions that the native selector chose: what they are predicted to take."""
    machine, regions = Machine.of(selector), []
    started = machine.started if cores > 1 else machine.call
    for row, column, rows, columns, index, grid_m, grid_n in fields:
        request = asked(shape, rows, columns, Grid(grid_m, grid_n), cores)
        total = np.asarray(selector.costs(request.shape, request.grid, cores, request.others).total)
        task = F32(total[index] - started)
        regions.append(Region(row, column, rows, columns, request.grid, index, task))
    return as_plan(Polymer(pattern, tuple(regions), F32(maxmin(regions, cores) + started)), selector, cores)
