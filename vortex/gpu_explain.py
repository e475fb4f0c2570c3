"""A plan on a GPU and its rivals, term by term, the best of every core type among them: as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vortex.gpu_candidates import Backend
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import LAYOUTS, UNLIMITED, Extents, GpuPlan, GpuSelector, Layout

SUMMED = ("launch", "multiply", "exposed", "edges", "memory", "reduction")
"""The terms whose sum is the prediction."""
RIVALS = 5


@dataclass(frozen=True)
class Priced:
    """A plan and what its seconds are made of."""

    plan: GpuPlan
    terms: dict[str, float]

    @property
    def backend(self) -> Backend:
        return self.plan.variant.strategy.backend


def plans(
    selector: GpuSelector,
    extents: Extents,
    layout: Layout = LAYOUTS[0],
    alignment: int = 16,
    workspace: int = UNLIMITED,
) -> list[Priced]:
    """Every kernel that serves the call with its best cut of the reduction, cheapest first."""
    key = selector.group(layout, alignment)
    group = selector.groups[key]
    asked = selector.options(extents, key, workspace)
    costs = [{name: np.broadcast_to(value, len(group)) for name, value in cost.terms().items()} for _, cost in asked]
    best = np.stack([cost["total"] for cost in costs]).argmin(axis=0)
    found = []
    for row, index in enumerate(group):
        choice = int(best[row])
        terms = {name: float(value[row]) for name, value in costs[choice].items()}
        cuts, _ = asked[choice]
        found.append(Priced(selector.plan(extents, index, int(cuts[row]), terms["total"]), terms))
    return sorted(found, key=lambda priced: priced.plan.seconds)


@dataclass(frozen=True)
class GpuExplanation:
    """Why a plan was chosen."""

    extents: Extents
    layout: Layout
    alignment: int
    chosen: Priced
    cores: dict[Backend, Priced]
    """The best plan of every core type and kernel family."""
    rivals: tuple[Priced, ...]
    """The best plans of other kernels."""
    sieve: Mapping[str, int]
    basis: str
    hardware: str
    regions: tuple[GpuRegion, ...] = ()
    """What a call runs in place of the plan, where two kernels for a part of C each are predicted to take less."""
    prologue: str = ""
    """What is done to each element of A as it arrives in registers."""

    @property
    def plan(self) -> GpuPlan:
        return self.chosen.plan

    @property
    def tflops(self) -> float:
        m, n, k, batch = self.extents[:4]
        return 2e-12 * batch * m * n * k / self.plan.seconds

    def __str__(self) -> str:
        (m, n, k, batch), chosen = self.extents[:4], self.chosen
        operator = "gemm" if batch == 1 else f"{batch} products"
        given = f"{'A^T' if self.layout.transpose_a else 'A'} {'B^T' if self.layout.transpose_b else 'B'}"
        lines = [
            f"{operator} {m}x{n}x{k} ({given}, rows aligned to {self.alignment} bytes) on {self.hardware}; "
            f"L0 and L1 costs are {self.basis}",
            f"plan   {_plan(chosen.plan)}",
            f"cost   {_time(chosen.plan.seconds)}, {self.tflops:.1f} TFLOP/s predicted",
            *_table({"": chosen}),
            *self._cut(),
            *([f"load   {self.prologue} on A as it arrives in registers; not priced"] * bool(self.prologue)),
            "core types",
            *_table({backend.value: priced for backend, priced in self.cores.items()}),
            *(
                f"  {backend.value:<18} {priced.plan.seconds / chosen.plan.seconds:6.3f}x  {_plan(priced.plan)}"
                for backend, priced in self.cores.items()
            ),
            "runners-up",
            *(
                f"  {rival.plan.seconds / chosen.plan.seconds:6.3f}x  {_plan(rival.plan)}; "
                f"loses in {_loses_in(chosen.terms, rival.terms)}"
                for rival in self.rivals
            ),
            "candidates admitted",
            *(f"  {name:<32} {count}" for name, count in self.sieve.items()),
        ]
        return "\n".join(lines)

    def _cut(self) -> list[str]:
        if len(self.regions) < 2:
            return []
        seconds = sum(region.plan.seconds for region in self.regions)
        return [
            f"polymerized: {_time(seconds)}, {self.plan.seconds / seconds:.2f}x as fast as the one plan",
            *(
                f"  {region.extents.m}x{region.extents.n} from row {region.row}, column {region.column}: "
                f"{_time(region.plan.seconds)}, {_plan(region.plan)}"
                for region in self.regions
            ),
        ]


def _plan(plan: GpuPlan) -> str:
    cut = f"; K in {plan.splits} parts of {plan.chunk}" if plan.splits > 1 else ""
    return f"{plan.variant.strategy}, {plan.variant.vector_bytes}-byte loads{cut}"


def _table(columns: Mapping[str, Priced]) -> list[str]:
    """Terms down, plans across; terms that are nothing everywhere are left out."""
    names = [name for name in SUMMED if any(priced.terms[name] > 0 for priced in columns.values())]
    lines = [f"  {'':<10} " + " ".join(f"{label:>18}" for label in columns)] if any(columns) else []
    for name in (*names, "total"):
        lines.append(f"  {name:<10} " + " ".join(f"{_time(priced.terms[name]):>18}" for priced in columns.values()))
    for name, text in (("waves", "{:.2f}"), ("padding", "{:.0%}")):
        values = " ".join(f"{text.format(max(priced.terms[name], 0.0)):>18}" for priced in columns.values())
        lines.append(f"  {name:<10} {values}")
    return [line.rstrip() for line in lines]


def _loses_in(winner: Mapping[str, float], loser: Mapping[str, float]) -> str:
    name = max(SUMMED, key=lambda name: loser[name] - winner[name])
    excess = loser[name] - winner[name]
    return f"{name} (+{_time(excess)})" if excess > 0 else "nothing it can name: a tie"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def explain(
    selector: GpuSelector,
    extents: Extents,
    layout: Layout = LAYOUTS[0],
    alignment: int = 16,
    workspace: int = UNLIMITED,
    hardware: str = "",
    sieve: Mapping[str, int] | None = None,
    regions: tuple[GpuRegion, ...] = (),
    prologue: str = "",
) -> GpuExplanation:
    """Compare the chosen plan with the best one of every core type and with the nearest other kernels."""
    found = plans(selector, extents, layout, alignment, workspace)
    chosen = next(
        priced for priced in found if priced.plan.index == selector.select(extents, layout, alignment, workspace).index
    )
    cores: dict[Backend, Priced] = {}
    for priced in found:
        cores.setdefault(priced.backend, priced)
    rivals = tuple(priced for priced in found if priced.plan.index != chosen.plan.index)[:RIVALS]
    return GpuExplanation(
        extents=extents,
        layout=layout,
        alignment=alignment,
        chosen=chosen,
        cores=cores,
        rivals=rivals,
        sieve=sieve or {},
        basis=selector.basis,
        hardware=hardware,
        regions=regions if len(regions) > 1 else (),
        prologue=prologue,
    )
