"""A convolution's plan and its rivals, term by term, as text and data: `explain` for what is no plain product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vortex.conv_cost import ConvCost
from vortex.conv_selector import DIRECT, ConvPlan, ConvSelector, family_of
from vortex.convolution import Conv2d, ConvShape
from vortex.errors import ShapeError
from vortex.explain import NEVER, Explanation, rival_line, term_lines, time_text
from vortex.explain import explain as explain_product
from vortex.operators import rebuilt
from vortex.plans import grids
from vortex.polymerize import select
from vortex.winograd_cost import BLOCKINGS, WinogradCost
from vortex.winograd_selector import TILES, suits

if TYPE_CHECKING:
    from vortex.library import Manifest

SHOWN = 5
"""Runners-up."""


def terms_of(cost: ConvCost | WinogradCost, place: int) -> dict[str, float]:
    """Predicted seconds of one strategy by term."""
    values = {name: np.asarray(value) for name, value in cost.terms().items()}
    return {name: float(value.flat[place if value.size > 1 else 0]) for name, value in values.items()}


def plans(
    selector: ConvSelector, shape: ConvShape, threads: int, forms: int
) -> list[tuple[ConvPlan, dict[str, float]]]:
    """Every plan that weights in these forms may run by, cheapest first, with the terms of its cost; those of a plain
    product are the product's own (`explain.plans`)."""
    found = []
    family = family_of(shape)
    rows = selector.tile(shape)[1] if family in ("direct", "lines") else 0
    fast = [bit for bit in range(len(TILES)) if forms & 2 * DIRECT << bit] if suits(shape) else []
    for grid in grids(threads):
        if forms & DIRECT:
            cost = selector.costs(shape, grid, threads)
            for walk, total in enumerate(np.broadcast_to(np.asarray(cost.total), 2)):
                if total < NEVER:
                    found.append((ConvPlan(family, bool(walk), rows, grid, float(total)), terms_of(cost, walk)))
        if not fast:
            continue
        other = selector.winograd.costs(shape, grid, threads)
        for place, blocking in enumerate(BLOCKINGS):
            if TILES.index(blocking.tile) in fast:
                seconds = float(np.asarray(other.total)[place])
                found.append((ConvPlan("winograd", False, 0, grid, seconds, blocking), terms_of(other, place)))
    return sorted(found, key=lambda each: each[0].seconds)


@dataclass(frozen=True)
class ConvExplanation:
    """Why a plan was chosen. `terms` belong to one task of L2."""

    shape: ConvShape
    threads: int
    plan: ConvPlan
    terms: Mapping[str, float]
    rivals: Sequence[tuple[ConvPlan, Mapping[str, float]]]
    basis: str
    hardware: str
    fixed: tuple[str, ...] = ()
    """What of the window every call of the library has."""
    store: str = ""
    """What the store stage does to each element, if anything."""
    prologue: str = ""
    """What is done to each element of x while it is brought into the CacheBuffer."""

    @property
    def gflops(self) -> float:
        return 1e-9 * self.shape.flops / self.plan.seconds

    def __str__(self) -> str:
        s, where = self.shape, self.shape.window
        groups = f", {where.groups} groups" if where.groups > 1 else ""
        fixed = f"; fixed: {', '.join(self.fixed)}" if self.fixed else ""
        lines = [
            f"conv2d of {s.batch}x{s.height}x{s.width}x{s.channels}, {s.filters} filters of {s.kernel_h}x{s.kernel_w}",
            f"stride {where.stride}, padding {where.padding}, dilation {where.dilation}{groups}{fixed}",
            f"on {self.hardware}, {self.threads} thread(s); L0 costs are {self.basis}",
            f"plan   {self.plan}",
            f"cost   {time_text(self.plan.seconds)}, {self.gflops:.1f} GFLOP/s of the definition predicted",
            *term_lines(self.terms),
            *([f"store  {self.store}, while a tile is in L1; not priced: every plan does it"] * bool(self.store)),
            *([f"load   {self.prologue} on x while its rows are brought; not priced"] * bool(self.prologue)),
            "runners-up",
            *(rival_line(rival.seconds / self.plan.seconds, rival, self.terms, terms) for rival, terms in self.rivals),
        ]
        return "\n".join(lines)


def explain(
    manifest: Manifest, selector: ConvSelector, shape: ConvShape, chosen: ConvPlan, threads: int, forms: int
) -> ConvExplanation | Explanation:
    """The chosen plan and its nearest rivals; that of the product where the convolution is one."""
    if chosen.family == "gemm":
        plain = manifest.selector()
        product = selector.product(shape)
        return explain_product(manifest, plain, product, select(plain, product, threads), threads)
    if min(shape.batch, shape.out_h, shape.out_w, shape.filters) == 0:
        raise ShapeError(f"{shape} has no output to compute; explain one that has")
    every = plans(selector, shape, threads, forms)
    plan, terms = next(each for each in every if replace(each[0], seconds=chosen.seconds) == chosen)
    rivals = tuple(each for each in every if each[0] is not plan)[:SHOWN]
    operator = rebuilt(manifest.operator, manifest.settings)
    assert isinstance(operator, Conv2d)
    told = tuple(operator.fixed), str(operator.store), str(operator.prologue) if operator.prologue else ""
    return ConvExplanation(shape, threads, plan, terms, rivals, manifest.basis, manifest.hardware["name"], *told)
