"""A reduction's plan and the tiles it was preferred to, term by term, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.explain import rival_line, sieve_lines, term_lines, time_text
from vortex.reduction_plan import ReducePlan, Sweep, terms
from vortex.reduction_tiles import Family, Measured

if TYPE_CHECKING:
    from vortex.library import ReduceManifest


@dataclass(frozen=True)
class ReduceExplanation:
    """Why a plan was chosen. `terms` and `rivals` are of its longest sweep; `sieve` counts candidates by filter."""

    kind: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    threads: int
    plan: ReducePlan
    terms: Mapping[str, float]
    rivals: tuple[tuple[Measured, Mapping[str, float]], ...]
    sieve: Mapping[str, int]
    basis: str
    hardware: str

    @property
    def gbytes(self) -> float:
        """Predicted gigabytes per second: what all sweeps read and write."""
        return 1e-9 * sum(sweep.bytes for sweep in self.plan.sweeps) / self.plan.seconds

    def __str__(self) -> str:
        what, over = "x".join(map(str, self.shape)), ", ".join(map(str, self.axes))
        lines = [
            f"{self.kind} of {what} over axes {over} on {self.hardware}, {self.threads} thread(s); "
            f"L0 costs are {self.basis}",
            f"plan   {self.plan}",
            f"cost   {time_text(self.plan.seconds)}, {self.gbytes:.1f} GB/s predicted",
            *term_lines(self.terms),
            "runners-up",
            *(
                rival_line(costs["total"] / self.terms["total"], rival.tile, self.terms, costs)
                for rival, costs in self.rivals
            ),
            *sieve_lines(self.sieve),
        ]
        return "\n".join(lines)


def serves(tile: Measured, sweep: Sweep, chosen: Measured) -> bool:
    """Whether another tile could do a sweep: of the same family, no taller than there are rows, alone on a chunk."""
    rows = tile.tile.rows
    return (
        tile.tile.family is chosen.tile.family is Family.ROWS
        and tile != chosen
        and rows <= sweep.inner
        and (sweep.chunks == 1 or rows == 1)
    )


def explain(
    manifest: ReduceManifest, shape: tuple[int, ...], axes: tuple[int, ...], plan: ReducePlan, threads: int
) -> ReduceExplanation:
    """Compare the tile of the longest sweep with every other one that could do it, cheapest first."""
    costs = [terms(manifest, sweep, tile, threads) for sweep, tile in zip(plan.sweeps, plan.tiles, strict=True)]
    at = max(range(len(costs)), key=lambda place: costs[place]["total"])
    sweep, chosen = plan.sweeps[at], plan.tiles[at]
    others = [tile for tile in manifest.strategies if serves(tile, sweep, chosen)]
    rivals = [(tile, terms(manifest, sweep, tile, threads)) for tile in others]
    return ReduceExplanation(
        kind=manifest.settings["kind"],
        shape=shape,
        axes=axes,
        threads=threads,
        plan=plan,
        terms=costs[at],
        rivals=tuple(sorted(rivals, key=lambda rival: (rival[1]["total"], rival[1]["combine"]))),
        sieve={f"{a.level} {a.filter}": a.count for a in manifest.admitted}
        | {"kept by the analyzer": len(manifest.strategies)},
        basis=manifest.basis,
        hardware=manifest.hardware["name"],
    )
