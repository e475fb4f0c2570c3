"""What a GPU library tells without a device: its kernels, the plan of a shape, why, and how long it should take."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from vortex.errors import ShapeError
from vortex.gpu_door import Door, Plan, Regions, Shape, shape_of
from vortex.gpu_explain import GpuExplanation, explain
from vortex.gpu_library import GpuLibrary, Kernel
from vortex.gpu_polymerize import GpuRegion, halves
from vortex.gpu_selector import Extents, GpuPlan, GpuSelector, Layout
from vortex.operators import prologue_of, rebuilt


class GpuPlanner:
    """A library and the native selector that came with it."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library = library
        self.manifest = library.manifest
        self._door = Door(library.parts["door.so"])
        self.polymerizes = True
        """Whether calls may be served by two kernels, each for a region of the output: see `polymerize`."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel that the selector chooses from."""
        return self.manifest.kernels

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Every strategy that some kernel of the library follows."""
        return tuple(dict.fromkeys(kernel.variant.strategy for kernel in self.manifest.kernels))

    def plan(self, m: int, n: int, k: int, **operands: Any) -> GpuPlan:
        """The best plan of one kernel for a shape, chosen by the native selector. `operands`: see `shape_of`."""
        return self._plan(self._selected(self._shape(m, n, k, operands), cut=False).plans[0])

    def regions(self, m: int, n: int, k: int, **operands: Any) -> tuple[GpuRegion, ...]:
        """What a call of this shape runs, chosen by the native selector: one region of C, or two that follow."""
        shape = self._shape(m, n, k, operands)
        found, whole = self._selected(shape, cut=self.polymerizes), Extents(m, n, k, shape.batch)
        plans = [self._plan(plan) for plan in found.plans[: found.count]]
        if len(plans) == 1:
            return (GpuRegion(0, 0, whole, plans[0]),)
        one, other = halves(whole, "n" if found.along_n else "m", found.at)
        row, column = (0, found.at) if found.along_n else (found.at, 0)
        return GpuRegion(0, 0, one, plans[0]), GpuRegion(row, column, other, plans[1])

    def _shape(self, m: int, n: int, k: int, operands: dict[str, Any]) -> Shape:
        return shape_of(self.manifest.dtype, m, n, k, **operands)

    @property
    def _room(self) -> int:
        """Bytes that partial sums of a call may take."""
        return self.manifest.workspace_bytes

    def _selected(self, shape: Shape, *, cut: bool) -> Regions:
        found = self._door.select(shape, self._room, cut=cut)
        if found.plans[0].kernel < 0:
            given = {name: getattr(shape, name) for name, _ in shape._fields_}
            raise ShapeError(f"no kernel of the library serves {given}; make contiguous copies")
        return found

    def _plan(self, native: Plan) -> GpuPlan:
        variant = self.manifest.kernels[native.kernel].variant
        return GpuPlan(native.kernel, variant, native.splits, native.chunk, native.raster, native.seconds)

    def explain(self, m: int, n: int, k: int, **operands: Any) -> GpuExplanation:
        """The chosen plan with each cost term, the best of every core type, and what the sieve admitted."""
        return self._explained(self._shape(m, n, k, operands), self.regions(m, n, k, **operands))

    def _explained(self, shape: Shape, regions: tuple[GpuRegion, ...]) -> GpuExplanation:
        manifest = self.manifest
        layout = Layout(bool(shape.transpose_a), bool(shape.transpose_b))
        prologue = prologue_of(rebuilt(manifest.operator, manifest.settings))
        return explain(
            self.selector,
            Extents(shape.m, shape.n, shape.k, shape.batch, shape.seen),
            layout,
            shape.alignment,
            self._room,
            manifest.hardware["name"],
            {f"{row.level} {row.filter}": row.count for row in manifest.admitted},
            regions,
            str(prologue) if prologue else "",
        )

    @cached_property
    def selector(self) -> GpuSelector:
        """The native selector's mirror in Python."""
        return GpuSelector.from_json([kernel.variant for kernel in self.kernels], self.manifest.selector)

    def predict(self, m: int, n: int, k: int, **operands: Any) -> float:
        """Predicted seconds of a call."""
        return sum(region.plan.seconds for region in self.regions(m, n, k, **operands))

    def time_selection(self, m: int, n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds per selection in native code, the mean of `repeats`."""
        shape = self._shape(m, n, k, operands)
        return self._door.time_selection(shape, self._room, repeats)
