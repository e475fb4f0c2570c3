"""A plan and its rivals, term by term, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vortex.operators import prologue_of, rebuilt, store_of
from vortex.plans import LaunchPlan, OperandB, Shape, ways

if TYPE_CHECKING:
    from vortex.library import Manifest
    from vortex.selector import Selector

NEVER = 1e20
SHOWN_S = 5e-11
"""Shorter times would print as 0.0 ns."""
NOTES = {"traffic": "  (runs beside the others: only what they cannot hide is added)"}


def plans(selector: Selector, shape: Shape, threads: int) -> list[LaunchPlan]:
    """Every (strategy, grid) that can serve the shape, cheapest first."""
    found = []
    for grid, workers in ways(shape.batch, threads, selector.family(shape).splits):
        totals = np.asarray(selector.costs(shape, grid, workers).total)
        found += [
            LaunchPlan(index, strategy, grid, float(totals[index]), workers)
            for index, strategy in enumerate(selector.strategies)
            if totals[index] < NEVER
        ]
    return sorted(found, key=lambda plan: plan.seconds)


def terms(selector: Selector, shape: Shape, plan: LaunchPlan) -> dict[str, float]:
    """Predicted seconds of one plan, by term; in `total` are the last wave and start-up too.

    Families without a register tile have formulas of their own, whose parts have no names: one term. So is the fullest
    core of regions.
    """
    if plan.regions:
        start = selector.rates.call + (selector.rates.thread_start if plan.workers > 1 else 0.0)
        return {"regions": plan.seconds - start, "start": start, "total": plan.seconds}
    costs = selector.costs(shape, plan.grid, plan.workers).terms()
    found = {name: float(np.broadcast_to(value, len(selector.strategies))[plan.index]) for name, value in costs.items()}
    if not plan.strategy.stage.tiled:
        start, parts, total = found["start"], found["parts"], found["total"]
        stage = plan.strategy.stage
        name = "dot_products" if stage.dot else "held_products" if stage.held else "streamed_products"
        return {name: total - start - parts, "start": start, "parts": parts, "total": total}
    return found


@dataclass(frozen=True)
class Explanation:
    """Why a plan was chosen. `terms` belong to one task of L2; `sieve` counts candidates after each filter."""

    shape: Shape
    threads: int
    plan: LaunchPlan
    terms: dict[str, float]
    rivals: tuple[tuple[LaunchPlan, dict[str, float]], ...]
    sieve: dict[str, int]
    basis: str
    hardware: str
    store: str = ""
    """What the store stage does to each element, if anything."""
    prologue: str = ""
    """What is done to each element of A while it is packed."""
    regions: tuple[str, ...] = ()
    """Where several micro-kernels serve the call: what each does."""
    free: LaunchPlan | None = None
    """Where the library is invariant: the best plan if it were not."""

    @property
    def gflops(self) -> float:
        return 2e-9 * self.shape.batch * self.shape.m * self.shape.n * self.shape.k / self.plan.seconds

    def _demanded(self) -> list[str]:
        """What it costs that a row has the same bits whatever m is."""
        if self.free is None:
            return []
        ratio = self.plan.seconds / self.free.seconds
        free = f"{self.free.strategy}; grid {self.free.grid}" if ratio > 1 else "which takes the same plan"
        return [f"invariant in m: {ratio:.3f}x the seconds of a library that is not ({free})"]

    def __str__(self) -> str:
        s, plan = self.shape, self.plan
        what = f"batch of {s.batch} gemm" if s.batch > 1 else "gemm"
        shared = f" on {plan.workers} thread(s)" if s.batch > 1 else ""
        lines = [
            f"{what} {s.m}x{s.n}x{s.k} ({s.b.value} B) on {self.hardware}, {self.threads} thread(s); "
            f"L0 costs are {self.basis}",
            f"plan   pattern {plan.pattern}, {len(self.regions)} regions that share one pool of tasks"
            if self.regions
            else f"plan   {plan.strategy}; L2 grid {plan.grid}{shared}",
            *(f"  {region}" for region in self.regions),
            f"cost   {time_text(plan.seconds)}, {self.gflops:.1f} GFLOP/s predicted",
            *term_lines(self.terms),
            *self._demanded(),
            *([f"store  {self.store}, while a tile is in L1; not priced: every plan does it"] * bool(self.store)),
            *([f"load   {self.prologue} on A while it is packed: every plan packs A"] * bool(self.prologue)),
            "runners-up",
            *(
                rival_line(rival.seconds / plan.seconds, f"{rival.strategy}; grid {rival.grid}", self.terms, costs)
                for rival, costs in self.rivals
            ),
            *sieve_lines(self.sieve),
        ]
        return "\n".join(lines)


def term_lines(terms: Mapping[str, float]) -> list[str]:
    """A line for each part of a cost."""
    parts = ((name, value) for name, value in terms.items() if value >= SHOWN_S and name != "total")
    return [f"  {name:<12} {time_text(value)}{NOTES.get(name, '')}" for name, value in parts]


def rival_line(ratio: float, what: object, winner: Mapping[str, float], loser: Mapping[str, float]) -> str:
    """A runner-up: how many times the time of the winner it would take, and the part of the cost to blame."""
    return f"  {ratio:6.3f}x  {what}; loses in {loses_in(winner, loser)}"


def sieve_lines(sieve: Mapping[str, int]) -> list[str]:
    """How many candidates each filter admitted."""
    return ["candidates admitted", *(f"  {name:<28} {count}" for name, count in sieve.items())]


def regions_in_words(plan: LaunchPlan, selector: Selector) -> tuple[str, ...]:
    """What each region of a polymerized plan does."""
    return tuple(
        f"rows {r.row} to {r.row + r.rows}, columns {r.column} to {r.column + r.columns}: "
        f"{selector.strategies[r.index]}; grid {r.grid}, {time_text(float(r.task)).strip()} a task"
        for r in plan.regions
    )


def loses_in(winner: Mapping[str, float], loser: Mapping[str, float]) -> str:
    """The term that costs the loser most more; the families have no terms in common, only a total."""
    alike = winner.keys() == loser.keys()
    excess = {name: loser[name] - winner[name] for name in winner if (name != "total") == alike and name in loser}
    name = max(excess, key=lambda name: excess[name])
    return f"{name} (+{time_text(excess[name]).strip()})" if excess[name] >= SHOWN_S else "no term: a tie"


def time_text(seconds: float) -> str:
    for unit, scale in (("s ", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:8.2f} {unit}"
    return f"{seconds * 1e9:8.1f} ns"


def explain(manifest: Manifest, selector: Selector, shape: Shape, plan: LaunchPlan, threads: int) -> Explanation:
    """Compare the chosen plan with the best plan of each other strategy."""
    operator = rebuilt(manifest.operator, manifest.settings)
    rivals: dict[int, LaunchPlan] = {}
    for rival in plans(selector, shape, threads):
        if rival.index != plan.index or plan.regions:
            rivals.setdefault(rival.index, rival)
    nearest = list(rivals.values())[:5]
    return Explanation(
        shape=shape,
        threads=threads,
        plan=plan,
        terms=terms(selector, shape, plan),
        rivals=tuple((rival, terms(selector, shape, rival)) for rival in nearest),
        sieve={f"{a.level} {a.filter}": a.count for a in manifest.admitted}
        | {"kept by the analyzer": len(manifest.strategies)}
        | {f"of these for a {shape.b.value} B": len(selector.listed[list(OperandB).index(shape.b)])},
        basis=manifest.basis,
        hardware=manifest.hardware["name"],
        store=str(store_of(operator)),
        regions=regions_in_words(plan, selector),
        prologue=str(prologue) if (prologue := prologue_of(operator)) else "",
        free=manifest.free_selector().select(shape, threads) if manifest.invariant else None,
    )
