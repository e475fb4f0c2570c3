"""The plan of a reduction on a GPU and the tiles it was preferred to, term by term, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vortex.explain import rival_line, sieve_lines, term_lines, time_text
from vortex.gpu_library import GpuManifest
from vortex.gpu_reduction import GpuReducePlan, ReduceSelector, View


@dataclass(frozen=True)
class GpuReduceExplanation:
    """Why a plan was chosen. `terms` and `rivals` are of its longest run of axes; `sieve` counts by filter."""

    kind: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    plan: GpuReducePlan
    terms: Mapping[str, float]
    rivals: tuple[tuple[GpuReducePlan, Mapping[str, float]], ...]
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
            f"{self.kind} of {what} over axes {over} on {self.hardware}; costs are {self.basis}",
            f"plan   {self.plan}",
            f"cost   {time_text(self.plan.seconds)}, {self.gbytes:.1f} GB/s predicted",
            *term_lines(self.terms),
            "runners-up",
            *(
                rival_line(costs["total"] / self.terms["total"], rival.sweeps[0].block, self.terms, costs)
                for rival, costs in self.rivals
            ),
            *sieve_lines(self.sieve),
        ]
        return "\n".join(lines)


def summed(selector: ReduceSelector, plan: GpuReducePlan) -> dict[str, float]:
    """The terms of a plan, those of its sweeps added up."""
    every = [selector.terms(sweep) for sweep in plan.sweeps]
    return {name: sum(terms[name] for terms in every) for name in every[0]}


def explain(
    manifest: GpuManifest,
    selector: ReduceSelector,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    runs: Sequence[tuple[View, GpuReducePlan]],
) -> GpuReduceExplanation:
    """Compare the plan of the longest run of axes with the best of every other tile that serves it, cheapest first."""
    view, longest = max(runs, key=lambda run: run[1].seconds)
    chosen = longest.sweeps[0]
    others = selector.plans(view, manifest.workspace_bytes, chosen.is_warm)
    rivals = [(plan, summed(selector, plan)) for plan in others if plan.sweeps[0].index != chosen.index]
    return GpuReduceExplanation(
        kind=manifest.settings["kind"],
        shape=shape,
        axes=axes,
        plan=GpuReducePlan.of([plan for _, plan in runs]),
        terms=summed(selector, longest),
        rivals=tuple(sorted(rivals, key=lambda rival: rival[1]["total"])),
        sieve={f"{row.level} {row.filter}": row.count for row in manifest.admitted},
        basis=manifest.basis,
        hardware=manifest.hardware["name"],
    )
