"""What a library would do for a shape, and what it is predicted to take: asked of its native selector."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vortex import explain as explaining
from vortex.axes import fixed
from vortex.errors import ShapeError
from vortex.library import Library
from vortex.native import native_module
from vortex.operands import FIXED_EXTENT
from vortex.operators import rebuilt
from vortex.plans import Grid, LaunchPlan, Shape, chosen
from vortex.shapes import select_arguments, shape_of, thread_count
from vortex.threads import get_num_threads

if TYPE_CHECKING:
    from vortex.selector import Selector


class Planner:
    """The plans of one library's products."""

    def __init__(self, library: Library) -> None:
        self.library, self.manifest = library, library.manifest
        self.module = native_module(library)
        self._select, self._time = (self.module.get_function(name) for name in ("select", "time_selection"))
        self._fixed = fixed(rebuilt(self.manifest.operator, self.manifest.settings))

    @cached_property
    def _selector(self) -> Selector:
        """The native one's mirror, which says what a plan is predicted to take; a call asks nothing of it."""
        return self.manifest.selector()

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Every strategy that the selector chooses from."""
        return self.manifest.strategies

    def plan(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> LaunchPlan:
        """The plan that a call of this shape runs, chosen by the native selector. `operands`: see `shape_of`."""
        shape, count = self._shape(m, n, k, **operands), thread_count(threads)
        pattern, regions = self.native_regions(shape, count)
        if regions:
            from vortex.regions import priced  # with the mirror, as `_selector`

            return priced(self._selector, shape, count, pattern, regions)
        return self._priced(shape, *self.native_choice(shape, count), count)

    def polymerize(self, on: bool) -> None:
        """Whether calls may be served by several micro-kernels, each for a region of the output; at first they may.

        For all callers of the library. The last bits of a result whose residue is a region may be others without.
        """
        self.module.get_function("polymerizing")(int(on))

    def native_regions(self, shape: Shape, threads: int) -> tuple[int, list[list[int]]]:
        """The regions that the native selector cuts a call into, as `regions.priced` takes them; none for most."""
        ask, arguments = self.module.get_function("regions"), (*select_arguments(shape), threads)
        return chosen(lambda place: int(ask(*arguments, place)))

    def native_choice(self, shape: Shape, threads: int) -> tuple[int, Grid]:
        """What the native selector picks without regions: the index of a strategy, and the grid."""
        choice = int(self._select(*select_arguments(shape), threads))
        return choice & 0xFFFF, Grid((choice >> 16) & 0xFFFF, (choice >> 32) & 0xFFFF, choice >> 48)

    def plans(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> list[LaunchPlan]:
        """Every plan the selector chooses from for this shape, and the polymerized one if that is its choice."""
        chosen = self.plan(m, n, k, threads=threads, **operands)
        found = explaining.plans(self._selector, self._shape(m, n, k, **operands), thread_count(threads))
        return [chosen, *found] if chosen.regions else found

    def predict(self, m: Any, n: Any, k: Any, *, threads: int | None = None, **operands: Any) -> Any:
        """Predicted seconds of a call; arrays of extents are broadcast and give an array."""
        if np.ndim(m) == np.ndim(n) == np.ndim(k) == 0:
            return self.plan(m, n, k, threads=threads, **operands).seconds
        try:
            shapes = np.broadcast_arrays(m, n, k)
        except ValueError as error:
            raise ShapeError(f"m, n, k: {error}; expected arrays that broadcast") from error
        flat = [
            self.plan(x, y, z, threads=threads, **operands).seconds
            for x, y, z in zip(*(e.ravel() for e in shapes), strict=True)
        ]
        return np.array(flat).reshape(shapes[0].shape)

    def explain(self, m: int, n: int, k: int, *, threads: int | None = None, **operands: Any) -> explaining.Explanation:
        """The chosen strategy with each cost term, the runners-up, and what the sieve admitted."""
        plan = self.plan(m, n, k, threads=threads, **operands)
        shape = self._shape(m, n, k, **operands)
        return explaining.explain(self.manifest, self._selector, shape, plan, thread_count(threads))

    def cost_terms(self, plan: LaunchPlan, m: int, n: int, k: int, **operands: Any) -> dict[str, float]:
        """Predicted seconds of one plan, term by term."""
        return explaining.terms(self._selector, self._shape(m, n, k, **operands), plan)

    def time_selection(self, m: int, n: int, k: int, repeats: int, **operands: Any) -> float:
        """Seconds per selection in native code, the mean of `repeats`."""
        arguments = select_arguments(self._shape(m, n, k, **operands))
        return int(self._time(*arguments, get_num_threads(), repeats)) * 1e-9 / repeats

    def _shape(self, m: int, n: int, k: int, **operands: Any) -> Shape:
        self._check_fixed(m=m, n=n, k=k)
        return shape_of(m, n, k, **operands)

    def _check_fixed(self, **extents: int) -> None:
        """Refuse an extent that no call of this library has."""
        for axis, extent in extents.items():
            if self._fixed.get(axis, extent) != extent:
                raise ShapeError(f"{axis}={extent}: this library is for {self._told_fixed()} alone; {FIXED_EXTENT[2]}")

    def _told_fixed(self) -> str:
        return ", ".join(f"{axis}={extent}" for axis, extent in self._fixed.items())

    def _priced(self, shape: Shape, index: int, grid: Grid, threads: int) -> LaunchPlan:
        total = np.asarray(self._selector.costs(shape, grid, threads).total)
        return LaunchPlan(
            index, self.strategies[index], grid, float(total[index]), min(threads, grid.m * grid.n * grid.k)
        )
