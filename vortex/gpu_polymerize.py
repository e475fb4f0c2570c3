"""Two kernels in one call on GPUs (MikPoly's Patterns I and II): whole waves to one, what is left to another.

Blocks of one size fill the device wave by wave, and a last wave of few blocks takes nearly as long as a full one.
Pattern I is one kernel; Pattern II cuts C across its rows or its columns. The first region is as many rows (columns) of
tiles as fill whole waves, or all tiles that are full; the second is what remains, with a kernel and a cut of the
reduction of its own. The hardware hands out the blocks of a region as SMs become free. Regions are launches that follow
each other on the stream, and are priced so: the sum of both, each with its launch.

The mirror of `runtime/gpu_polymerize.c`, in the same float32 arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from vortex.arithmetic import F32, ArrayArithmetic
from vortex.gpu_cost import NEVER, ideal
from vortex.gpu_selector import (
    LAYOUTS,
    UNLIMITED,
    Extents,
    GpuPlan,
    GpuSelector,
    Layout,
    problem,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_KERNELS = 2
"""Kernels that a search tries in the first region: those that would be fastest without residues and partial waves."""
GAIN = F32(0.95)
"""Two regions must be predicted to take at most this share of one: a prediction is not surer than that."""
STEP = 16
"""A cut is at a multiple of so many elements: operands of both regions are then aligned as those of the call are."""


@dataclass(frozen=True)
class GpuRegion:
    """A part of C and the plan that computes it; with a single one the call is not cut."""

    row: int
    column: int
    extents: Extents
    plan: GpuPlan


class Cut(NamedTuple):
    """Where C is cut, and by which kernel of the group the first region is computed."""

    along: Literal["m", "n"]
    at: int
    kernel: int
    left: np.float32
    """Seconds of the second region, were it without residues and partial waves."""
    estimate: np.float32
    """Of both, by that and by the waves of the first one."""


def halves(extents: Extents, along: str, at: int) -> tuple[Extents, Extents]:
    """The extents of both regions."""
    length: int = getattr(extents, along)
    return extents._replace(**{along: at}), extents._replace(**{along: length - at})


def blocks_of(selector: GpuSelector, extents: Extents, index: int) -> tuple[int, int]:
    """Tiles of C under a kernel, and how many of them the device holds at a time."""
    tile = selector.variants[index].strategy.grid_tile
    return -(-extents.m // tile.m) * -(-extents.n // tile.n), selector.costs[index].tiles_at_once


def waves_of(selector: GpuSelector, extents: Extents, index: int) -> int:
    """Waves of a kernel, the last one whole or not."""
    tiles, slots = blocks_of(selector, extents, index)
    return -(-tiles // slots)


def places(selector: GpuSelector, extents: Extents, index: int) -> Iterator[tuple[Literal["m", "n"], int]]:
    """Where a kernel's region may end: after whole waves, or after all full tiles."""
    tile, (tiles, slots) = selector.variants[index].strategy.grid_tile, blocks_of(selector, extents, index)
    whole, wide = tiles // slots * slots, -(-extents.n // tile.n)
    yield "m", whole // wide * tile.m
    yield "m", extents.m // tile.m * tile.m
    yield "n", whole // (tiles // wide) * tile.n
    yield "n", extents.n // tile.n * tile.n


def best_cut(selector: GpuSelector, extents: Extents, key: tuple[Layout, int], workspace: int) -> Cut | None:
    """The cut of least bound, where one may gain enough."""
    totals, _ = selector.priced(extents, key, workspace)
    group = selector.columns[key]
    ideals = np.asarray(ideal(ArrayArithmetic(), group, problem(extents, workspace), totals))
    plain, least, found = totals.min(), ideals.min(), None
    if not least + F32(selector.rates.launch) < GAIN * plain:
        return None
    for row in np.argsort(ideals, kind="stable")[:FIRST_KERNELS]:
        if ideals[row] == F32(NEVER):
            break
        index = selector.groups[key][row]
        waves = waves_of(selector, extents, index)
        for along, at in places(selector, extents, index):
            length: int = getattr(extents, along)
            if not 0 < at < length or at % STEP:
                continue
            share = F32(waves_of(selector, halves(extents, along, at)[0], index)) / F32(waves)
            left = F32(selector.rates.launch) + least * (F32(length - at) / F32(length))
            estimate = totals[row] * share + left
            if estimate < (GAIN * plain if found is None else found.estimate):
                found = Cut(along, at, int(row), left, estimate)
    return found


def regions(
    selector: GpuSelector,
    extents: Extents,
    layout: Layout = LAYOUTS[0],
    alignment: int = 16,
    workspace: int = UNLIMITED,
) -> tuple[GpuRegion, ...]:
    """The one or two regions of a call; batches are not cut."""
    plain = selector.select(extents, layout, alignment, workspace)
    alone = (GpuRegion(0, 0, extents, plain),)
    key = selector.group(layout, alignment)
    cut = best_cut(selector, extents, key, workspace) if extents.batch == 1 else None
    if cut is None:
        return alone
    one, other = halves(extents, cut.along, cut.at)
    seconds, splits = selector.priced(one, key, workspace, slice(cut.kernel, cut.kernel + 1))
    if not seconds[0] + cut.left < GAIN * F32(plain.seconds):
        return alone
    rest = selector.select(other, layout, alignment, workspace)
    if not seconds[0] + F32(rest.seconds) < GAIN * F32(plain.seconds):
        return alone
    first = selector.plan(one, selector.groups[key][cut.kernel], int(splits[0]), float(seconds[0]))
    start = {"row": cut.at, "column": 0} if cut.along == "m" else {"row": 0, "column": cut.at}
    return GpuRegion(0, 0, one, first), replace(alone[0], extents=other, plan=rest, **start)
