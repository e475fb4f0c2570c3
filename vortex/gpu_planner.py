"""What a GPU library tells without a device: its kernels, the plan of a shape, why, and how long it should take."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from vortex.errors import ShapeError
from vortex.gpu_door import Door, shape_of
from vortex.gpu_explain import GpuExplanation, explain
from vortex.gpu_library import GpuLibrary, Kernel
from vortex.gpu_selector import Extents, GpuPlan, GpuSelector, Layout


class GpuPlanner:
    """A library and the native selector that came with it."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library = library
        self.manifest = library.manifest
        self._door = Door(library.parts["door.so"])

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel that the selector chooses from."""
        return self.manifest.kernels

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Every strategy that some kernel of the library follows."""
        return tuple(dict.fromkeys(kernel.variant.strategy for kernel in self.manifest.kernels))

    def plan(self, m: int, n: int, k: int, **operands: Any) -> GpuPlan:
        """The plan that a call of this shape runs, chosen by the native selector. `operands`: see `shape_of`."""
        native = self._door.select(shape_of(self.manifest.dtype, m, n, k, **operands), self.manifest.workspace_bytes)
        if native.kernel < 0:
            raise ShapeError(f"no kernel of the library serves {m}x{n}x{k} with {operands}; make contiguous copies")
        variant = self.manifest.kernels[native.kernel].variant
        return GpuPlan(native.kernel, variant, native.splits, native.chunk, native.raster, native.seconds)

    def explain(self, m: int, n: int, k: int, **operands: Any) -> GpuExplanation:
        """The chosen plan with each cost term, the best of every core type, and what the sieve admitted."""
        shape, manifest = shape_of(self.manifest.dtype, m, n, k, **operands), self.manifest
        layout = Layout(bool(shape.transpose_a), bool(shape.transpose_b))
        return explain(
            self.selector,
            Extents(m, n, k, shape.batch),
            layout,
            shape.alignment,
            manifest.workspace_bytes,
            manifest.hardware["name"],
            {f"{row.level} {row.filter}": row.count for row in manifest.admitted},
        )

    @cached_property
    def selector(self) -> GpuSelector:
        """The native selector's mirror in Python."""
        return GpuSelector.from_json([kernel.variant for kernel in self.kernels], self.manifest.selector)

    def predict(self, m: int, n: int, k: int, **operands: Any) -> float:
        """Predicted seconds of a call."""
        return self.plan(m, n, k, **operands).seconds

    def time_selection(self, m: int, n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds per selection in native code, the mean of `repeats`."""
        shape = shape_of(self.manifest.dtype, m, n, k, **operands)
        return self._door.time_selection(shape, self.manifest.workspace_bytes, repeats)
