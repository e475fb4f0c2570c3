"""(kernels, shape, layout, alignment) -> GpuPlan: the argmin of the cost over kernels and cuts of the reduction.

Pure Python and NumPy float32: the oracle of the native selector, which evaluates the same expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from vortex.arithmetic import F32, Array, ArrayArithmetic
from vortex.errors import VortexError
from vortex.gpu_candidates import Variant
from vortex.gpu_cost import GpuCost, options
from vortex.gpu_figures import BlockCosts, GpuProblem, GpuRates

ALIGNMENTS = (16, 8, 4, 2, 1)
"""Alignment classes in bytes: rows of all operands start on multiples of it."""
UNLIMITED = 2**40
"""Bytes of a workspace that never says no."""


class Extents(NamedTuple):
    m: int
    n: int
    k: int
    batch: int = 1
    seen: float = 1.0
    """See `gpu_figures.GpuProblem`."""


class Layout(NamedTuple):
    """How A and B are given: as [m, k] and [k, n], or turned over."""

    transpose_a: bool = False
    transpose_b: bool = False


LAYOUTS = tuple(Layout(a, b) for a in (False, True) for b in (False, True))


@dataclass(frozen=True)
class GpuPlan:
    """What runs: a kernel of the library by its index, and how the reduction is cut."""

    index: int
    variant: Variant
    splits: int
    chunk: int
    """Elements of k in one part, a multiple of the depth of a stage; all of k when not cut."""
    raster: int
    seconds: float


def columns_of(costs: Sequence[BlockCosts]) -> BlockCosts:
    """The kernels' figures as float32 columns."""
    return BlockCosts(*(np.array(column, np.float32) for column in zip(*map(astuple, costs), strict=True)))


def room(workspace: int, m: int, n: int, batch: int = 1) -> int:
    """Partial C that a workspace of so many bytes holds; one part needs none."""
    return max(1, min(workspace // (4 * m * n * batch), 2**20))


def problem(extents: Extents, workspace: int = UNLIMITED) -> GpuProblem:
    m, n, k, batch, seen = extents
    return GpuProblem(F32(m), F32(n), F32(k), F32(room(workspace, m, n, batch)), F32(batch), F32(seen))


def parts_of(splits: int, k: int, depth: int) -> tuple[int, int]:
    """Parts and elements of each when `k` is cut into about `splits`, none inside a stage of `depth`."""
    stages = -(-k // depth)
    chunk = -(-stages // splits) * depth
    parts = -(-k // chunk)
    return (parts, chunk) if parts > 1 else (1, k)


@dataclass(frozen=True)
class GpuSelector:
    """The run-time choice over a fixed list of kernels."""

    variants: tuple[Variant, ...]
    rates: GpuRates
    costs: tuple[BlockCosts, ...]
    """Of each kernel, floats."""
    basis: str
    """`measured`, `replayed` or `computed`: what cost(L1) rests on."""

    @cached_property
    def float32_rates(self) -> GpuRates:
        return GpuRates(*(F32(value) for value in astuple(self.rates)))  # type: ignore[arg-type]  # float32, not float

    @cached_property
    def groups(self) -> dict[tuple[Layout, int], tuple[int, ...]]:
        """Kernels by layout and alignment: of each strategy the one with the widest loads that are allowed."""
        found: dict[tuple[Layout, int], tuple[int, ...]] = {}
        for layout in LAYOUTS:
            for alignment in ALIGNMENTS:
                widest: dict[Any, int] = {}
                for index, variant in enumerate(self.variants):
                    if (variant.transpose_a, variant.transpose_b) != layout or variant.vector_bytes > alignment:
                        continue
                    best = widest.get(variant.strategy)
                    if best is None or self.variants[best].vector_bytes < variant.vector_bytes:
                        widest[variant.strategy] = index
                found[layout, alignment] = tuple(sorted(widest.values()))
        return found

    @cached_property
    def columns(self) -> dict[tuple[Layout, int], BlockCosts]:
        return {key: columns_of([self.costs[index] for index in group]) for key, group in self.groups.items() if group}

    def group(self, layout: Layout, alignment: int) -> tuple[Layout, int]:
        """The key of `groups` that serves operands aligned to so many bytes."""
        key = layout, next((size for size in ALIGNMENTS if alignment % size == 0), 0)
        if not self.groups.get(key):
            raise VortexError(f"no kernel of the library takes operands of {layout} aligned to {alignment} bytes")
        return key

    def options(
        self, extents: Extents, key: tuple[Layout, int], workspace: int = UNLIMITED, rows: slice = slice(None)
    ) -> list[tuple[Array, GpuCost]]:
        """`gpu_cost.options` of kernels of a group."""
        group, p = self.columns[key], problem(extents, workspace)
        s = BlockCosts(*(getattr(group, field.name)[rows] for field in fields(BlockCosts)))
        found = options(ArrayArithmetic(), self.float32_rates, s, p)
        return [(np.broadcast_to(F32(cut), s.work.shape), cost) for cut, cost in found]

    def evaluate(self, extents: Extents, key: tuple[Layout, int], workspace: int = UNLIMITED) -> list[GpuCost]:
        """Predicted seconds of every kernel of a group, term by term: with the reduction whole, then each cut."""
        return [cost for _, cost in self.options(extents, key, workspace)]

    def priced(
        self, extents: Extents, key: tuple[Layout, int], workspace: int = UNLIMITED, rows: slice = slice(None)
    ) -> tuple[Array, Array]:
        """Seconds of kernels of a group with their best cut of the reduction, and that cut: of equals the least."""
        asked = self.options(extents, key, workspace, rows)
        totals = np.stack([np.asarray(cost.total) for _, cost in asked])
        best = totals.argmin(axis=0)[None]
        return totals.min(axis=0), np.take_along_axis(np.stack([cut for cut, _ in asked]), best, 0)[0]

    def plan(self, extents: Extents, index: int, splits: int, seconds: float) -> GpuPlan:
        variant = self.variants[index]
        parts, chunk = parts_of(splits, extents.k, variant.strategy.l1.k)
        return GpuPlan(index, variant, parts, chunk, int(self.costs[index].raster), seconds)

    def select(
        self,
        extents: Extents,
        layout: Layout = LAYOUTS[0],
        alignment: int = 16,
        workspace: int = UNLIMITED,
    ) -> GpuPlan:
        """The plan of least predicted time; of equals the first kernel, and of its cuts the one with fewest parts."""
        key = self.group(layout, alignment)
        seconds, splits = self.priced(extents, key, workspace)
        row = int(seconds.argmin())
        return self.plan(extents, self.groups[key][row], int(splits[row]), float(seconds[row]))

    def to_json(self) -> dict[str, Any]:
        """Figures as plain data; the kernels are listed elsewhere."""
        return {
            "basis": self.basis,
            "rates": asdict(self.rates),
            "fields": [field.name for field in fields(BlockCosts)],
            "costs": [list(astuple(row)) for row in self.costs],
        }

    @classmethod
    def from_json(cls, variants: Sequence[Variant], data: dict[str, Any]) -> GpuSelector:
        names = [field.name for field in fields(BlockCosts)]
        if data["fields"] != names or len(data["costs"]) != len(variants):
            raise VortexError("the library's cost model has other figures than this vortex reads; compile it again")
        costs = tuple(BlockCosts(*row) for row in data["costs"])
        return cls(tuple(variants), GpuRates(**data["rates"]), costs, data["basis"])
