"""What a call of a reduction does, and what it is predicted to take: sweeps over the operand, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from vortex.axes import MOST_EXTENT
from vortex.errors import ShapeError
from vortex.reduction import neighbours, normalized_axes
from vortex.reduction_tiles import Family, Measured

if TYPE_CHECKING:
    from vortex.library import ReduceManifest

FIELDS = 9
"""Numbers of a sweep that the native door tells, `vx_reduce_sweep` in runtime/reduce.h."""
TILE_DEPTH = 8
"""Rows that a tile of columns takes at a time where they are longer than it is wide, runtime/reduce.c."""


@dataclass(frozen=True)
class Sweep:
    """One sweep over x[outer, depth, inner]: whole results, or one for each of `chunks` of the depth.

    Of contiguous rows without an inner axis, `inner` is how many there are. `items` are groups of rows (single ones of
    a chunk) or blocks of `block` columns, and `tasks` of about as many items each are shared among the threads.
    """

    outer: int
    depth: int
    inner: int
    index: int
    chunk: int
    chunks: int
    block: int
    items: int
    tasks: int

    @property
    def bytes(self) -> int:
        """Read, and written once for each chunk."""
        return 4 * self.outer * self.inner * (self.depth + self.chunks)


@dataclass(frozen=True)
class ReducePlan:
    """The sweeps of a call with the tile of each, and the predicted seconds."""

    sweeps: tuple[Sweep, ...]
    tiles: tuple[Measured, ...]
    seconds: float
    workers: int

    def __str__(self) -> str:
        told = []
        for sweep, measured in zip(self.sweeps, self.tiles, strict=True):
            chunks = f" in {sweep.chunks} chunks of {sweep.chunk}" if sweep.chunks > 1 else ""
            over = f"{sweep.outer}x{sweep.depth}x{sweep.inner}"
            told.append(f"{over}{chunks} by {measured.tile}, {sweep.tasks} task(s)")
        return "; then ".join(told)


def whole_extents(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents of a shape as they are given, checked; ShapeError where one is no extent."""
    try:
        found = tuple(index(extent) for extent in shape)
    except TypeError:
        found = (-1,)
    if any(extent < 0 for extent in found) or _product(found) >= MOST_EXTENT:
        raise ShapeError(f"shape={shape!r}: expected whole numbers of at least 0, below {MOST_EXTENT} elements in all")
    return found


def views(shape: Sequence[int], axis: Any) -> list[tuple[int, int, int]]:
    """The (outer, depth, inner) of each run of neighbours among the reduced axes, in the order of a call.

    An empty extent, for which nothing runs, is taken as one. Raises ShapeError.
    """
    extents = [max(1, extent) for extent in shape]
    runs = neighbours(normalized_axes(axis, len(extents))) or [(len(extents), len(extents))]
    found = []
    for first, end in (*reversed(runs[1:]), runs[0]):
        found.append((_product(extents[:first]), _product(extents[first:end]), _product(extents[end:])))
        extents[first:end] = [1] * (end - first)
    return found


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def sweeps(ask: Callable[..., int], view: tuple[int, int, int], threads: int) -> list[Sweep]:
    """What the native door says of a contiguous operand."""
    count = int(ask(*view, threads, 0))
    numbers = [int(ask(*view, threads, place)) for place in range(1, count * FIELDS + 1)]
    return [Sweep(*numbers[at : at + FIELDS]) for at in range(0, len(numbers), FIELDS)]


def combining(sweep: Sweep, measured: Measured, lanes: int) -> float:
    """Seconds of all tiles of a sweep on one thread: groups x (start + steps x slope), as tiles are measured."""
    tile, wide = measured.tile, measured.tile.vectors * lanes
    parts = sweep.outer * sweep.chunks
    if tile.family is Family.ROWS:
        steps = -(-sweep.chunk // wide)
        return parts * -(-sweep.inner // tile.rows) * (measured.start_s + steps * measured.slope_s)
    passes = 1 if sweep.block <= wide else -(-sweep.chunk // TILE_DEPTH)
    return parts * -(-sweep.inner // wide) * (passes * measured.start_s + sweep.chunk * measured.slope_s)


def bandwidth(hardware: Mapping[str, Any], held_bytes: int, workers: int) -> float:
    """Bytes per second at which `workers` cores read what lies in the innermost memory that holds it.

    Nothing is read faster than from the second cache, where tiles are measured.
    """
    outer = hardware["memories"][1:]
    memory = next((m for m in outer[:-1] if m["capacity_bytes"] >= held_bytes), outer[-1])
    one = float(memory["bandwidth_bytes_per_s"])
    total = memory.get("total_bandwidth_bytes_per_s")
    return min(workers * one, float(total)) if total else workers * one


def terms(manifest: ReduceManifest, sweep: Sweep, measured: Measured, threads: int) -> dict[str, float]:
    """Predicted seconds of one sweep, by term; of `combine` and `traffic`, which run side by side, the longer counts.

    total = start + max(combine, traffic), combine = ceil(tasks / threads) x seconds of a task.
    """
    workers = max(1, min(threads, sweep.tasks))
    combine = combining(sweep, measured, manifest.lanes) / sweep.tasks * -(-sweep.tasks // workers)
    traffic = sweep.bytes / bandwidth(manifest.hardware, sweep.bytes, workers)
    start = manifest.hardware["thread_start_ns"] * 1e-9 if workers > 1 else 0.0
    return {"combine": combine, "traffic": traffic, "start": start, "total": start + max(combine, traffic)}


def planned(manifest: ReduceManifest, found: Sequence[Sweep], threads: int) -> ReducePlan:
    """The plan of these sweeps, priced; the tile of columns is the library's last."""
    tiles = tuple(manifest.strategies[sweep.index] for sweep in found)
    seconds = [terms(manifest, sweep, tile, threads)["total"] for sweep, tile in zip(found, tiles, strict=True)]
    return ReducePlan(tuple(found), tiles, sum(seconds), max(min(threads, sweep.tasks) for sweep in found))
