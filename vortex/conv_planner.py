"""What a library of convolutions would do for a shape, and what that is predicted to take."""

from __future__ import annotations

from typing import Any

import numpy as np

from vortex import operators
from vortex.conv_explain import ConvExplanation, explain, plans
from vortex.conv_selector import DIRECT, FAMILIES, ConvPlan, ConvSelector, Family, family_of, tallest
from vortex.convolution import Conv2d, ConvShape, Window
from vortex.explain import Explanation
from vortex.library import Library
from vortex.native import native_module
from vortex.plans import Grid
from vortex.shapes import thread_count
from vortex.threads import get_num_threads
from vortex.winograd_cost import BLOCKINGS, Blocking
from vortex.winograd_selector import TILES


def numbers(shape: ConvShape) -> tuple[int, ...]:
    """What the door is told, in the order of runtime/conv_door.c."""
    return numbers_of(shape.weights, (shape.out_h, shape.out_w), shape.window)


def numbers_of(weights: tuple[int, int, int, int], out: tuple[int, int], where: Window) -> tuple[int, ...]:
    """The same of weights OIHW and an output of this height and width."""
    filters, _, *taps = weights
    return (filters, *taps, *out, *where.stride, where.padding[0], where.padding[2], *where.dilation, where.groups)


class ConvPlanner:
    """The plans of one library's convolutions."""

    def __init__(self, library: Library) -> None:
        self.library, self.manifest = library, library.manifest
        operator = operators.rebuilt(library.manifest.operator, library.manifest.settings)
        assert isinstance(operator, Conv2d)
        self.operator = operator
        self.module = native_module(library)
        self._select, self._time = map(self.module.get_function, ("select_conv", "time_conv_selection"))
        plain = self.manifest.selector()
        rows = tallest((kernel["rows"], kernel["vectors"]) for kernel in self.manifest.profile["kernels"])
        begins = bool(operator.prologue)
        self.selector = ConvSelector(plain.rates, plain.table, plain.lanes, plain.panel, rows, begins)

    @property
    def strategies(self) -> tuple[Any, ...]:
        """Those of the GEMM that a 1x1 filter is; the direct and the depthwise family have a walk and a grid."""
        return self.manifest.strategies

    def forms(self, shape: tuple[int, int, int, int], groups: int) -> int:
        """Every form that weights of this shape may be used in."""
        fast = self.operator.accuracy == "fast" and shape[2:] == (3, 3) and groups == 1 and min(shape) > 0
        return (2 << len(TILES)) - 1 if fast else DIRECT

    def plan(
        self, x: tuple[int, ...], w: tuple[int, ...], *, stride: Any = None, padding: Any = None,
        dilation: Any = None, groups: Any = None, threads: int | None = None,
    ) -> ConvPlan:  # fmt: skip
        """The plan of a call with dense channels-last operands of these shapes, chosen by the native selector."""
        shape = self.operator.shape(x, w, self.operator.window(stride, padding, dilation, groups))
        return self.selected(shape, thread_count(threads))

    def plans(
        self, x: tuple[int, ...], w: tuple[int, ...], *, stride: Any = None, padding: Any = None,
        dilation: Any = None, groups: Any = None, threads: int | None = None,
    ) -> list[ConvPlan]:  # fmt: skip
        """Every plan that such a call with packed weights may run by, cheapest first; those of a product it has not."""
        shape = self.operator.shape(x, w, self.operator.window(stride, padding, dilation, groups))
        if family_of(shape) == "gemm":
            return [self.selected(shape, thread_count(threads))]
        forms = self.forms(shape.weights, shape.window.groups)
        return [plan for plan, _ in plans(self.selector, shape, thread_count(threads), forms)]

    def explain(
        self, x: tuple[int, ...], w: tuple[int, ...], *, stride: Any = None, padding: Any = None,
        dilation: Any = None, groups: Any = None, threads: int | None = None,
    ) -> ConvExplanation | Explanation:  # fmt: skip
        """Why such a call runs as it does: each cost term and the runners-up; that of a product where it is one."""
        shape = self.operator.shape(x, w, self.operator.window(stride, padding, dilation, groups))
        forms, count = self.forms(shape.weights, shape.window.groups), thread_count(threads)
        return explain(self.manifest, self.selector, shape, self.selected(shape, count), count, forms)

    def selected(self, shape: ConvShape, threads: int) -> ConvPlan:
        """What the native selector picks, priced by its mirror."""
        family, walk, grid, blocking = self.native_choice(
            shape, threads, self.forms(shape.weights, shape.window.groups)
        )
        if family == "gemm":
            return ConvPlan(family, False, 0, grid, 0.0)
        if blocking:
            seconds = np.asarray(self.selector.winograd.costs(shape, grid, threads).total)[BLOCKINGS.index(blocking)]
            return ConvPlan(family, False, 0, grid, float(seconds), blocking)
        seconds = np.asarray(self.selector.costs(shape, grid, threads).total)[int(walk)]
        rows = self.selector.tile(shape)[1] if family in ("direct", "lines") else 0
        return ConvPlan(family, walk, rows, grid, float(seconds))

    def native_choice(
        self, shape: ConvShape, threads: int, forms: int = DIRECT, packed: bool = True
    ) -> tuple[Family, bool, Grid, Blocking | None]:
        """What the native selector picks among these forms of the weights: the family, whether a tile walks along the
        batch, the grid, and what a Winograd algorithm adds."""
        extents = shape.batch, shape.height, shape.width, shape.channels
        choice = int(self._select(*extents, *numbers(shape), forms, int(not packed), threads))
        family, grid = FAMILIES[choice & 0xF], Grid((choice >> 20) & 0xFFFFF, choice >> 40)
        return family, bool(choice >> 4 & 1), grid, BLOCKINGS[choice >> 5 & 0xF] if family == "winograd" else None

    def time_selection(
        self, x: tuple[int, ...], w: tuple[int, ...], repeats: int, *, stride: Any = None, padding: Any = None,
        dilation: Any = None, groups: Any = None,
    ) -> float:  # fmt: skip
        """Seconds per selection in native code, the mean of `repeats`."""
        shape = self.operator.shape(x, w, self.operator.window(stride, padding, dilation, groups))
        forms = self.forms(shape.weights, shape.window.groups)
        extents = shape.batch, shape.height, shape.width, shape.channels
        taken = self._time(*extents, *numbers(shape), forms, 0, get_num_threads(), repeats)
        return int(taken) * 1e-9 / repeats
