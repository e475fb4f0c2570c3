"""Fewer candidates for an operator that knows extents: before anything is emitted, what it cannot want is dropped.

The choice of the analyzer is made once in advance, with L0 recorded or computed, and the register tiles and load stages
of the strategies it keeps are emitted, with all their residues. Which of their strategies the library keeps is then
chosen as always, with L0 measured. Nothing is lost in correctness: an unforeseen extent finds every residue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vortex.analyzer import Price, analyze
from vortex.axes import extents, fixed
from vortex.candidates import Admitted, Strategy, closure
from vortex.hardware import HardwareSpec
from vortex.operators import Operator
from vortex.profiler import acquire
from vortex.rates import Rates
from vortex.rating import rates
from vortex.selector import SlopeTable
from vortex.sieve import Sieve
from vortex.stores import TURN_COLUMNS

MEASURED = {(1, 2)}
"""(rows, vectors) of the micro-kernel that streams colliding rows of B when a device is measured."""
LINE_ELEMENTS = 16
"""Of a cache line."""


def specialised(
    operator: Operator,
    hardware: HardwareSpec,
    found: Sieve,
    lanes: int,
    most: int,
    priced: Callable[[Rates, SlopeTable], Price],
) -> Sieve:
    """The candidates that the known extents of `operator` leave; all of them where none is known.

    `priced` is what predicts seconds by such rates.
    """
    known = extents(operator)
    if all(extent is None for extent in known.values()):
        return found
    shapes = [(tile.m, tile.n // lanes) for tile in found.register_tiles]
    profile = acquire(hardware, shapes, lanes, None, ())
    machine, table = rates(hardware, profile), profile.slopes()
    chosen, *_ = analyze(
        found.strategies, machine, table, lanes, hardware.cores, most, known, price=priced(machine, table)
    )
    tiles, stages = {strategy.l0 for strategy in chosen}, {strategy.stage for strategy in chosen}
    strategies = tuple(s for s in found.strategies if s.stage.dot or (s.l0 in tiles and s.stage in stages))
    needed = MEASURED | micro_kernels([s for s in strategies if s.stage.tiled], lanes, fixed(operator))
    kept = tuple(tile for tile in found.register_tiles if (tile.m, tile.n // lanes) in needed)
    counts = Admitted("L0", "KnownExtents", len(kept)), Admitted("L1", "KnownExtents", len(strategies))
    return replace(found, register_tiles=kept, strategies=strategies, admitted=(*found.admitted, *counts))


def micro_kernels(strategies: Sequence[Strategy], lanes: int, known: Mapping[str, int]) -> set[tuple[int, int]]:
    """The (rows, vectors) that strategies can call: all residues, but along vectors only those of a fixed extent.

    L2 and L1 cut columns at multiples of the register tile, so its last vectors are those of the whole extent, and of
    what remains where rows that are not whole lines are cut at their lines (`runtime/streams.h`).
    """
    needed: set[tuple[int, int]] = set()
    for strategy in strategies:
        columns = known.get("m" if strategy.stage.swap else "n", 0)
        whole = strategy.vectors(lanes)
        ends = last_vectors(columns, strategy.l0.n, lanes) if columns else set(range(1, whole + 1))
        needed |= {(rows, vectors) for rows, vectors in closure([strategy], lanes) if vectors in ends}
    return needed


def last_vectors(columns: int, width: int, lanes: int) -> set[int]:
    """Vectors of the last register tile of a product's rows, and of what its lines cut it into: `vortex/stores.py`."""
    extents = {columns, width}
    if columns % LINE_ELEMENTS and columns >= TURN_COLUMNS:
        inside = {columns // LINE_ELEMENTS * LINE_ELEMENTS, width}
        extents |= {extent - less for extent in inside for less in (0, LINE_ELEMENTS)} | set(range(1, LINE_ELEMENTS))
    return {-(-(extent % width or width) // lanes) for extent in extents}
