"""A convolution's extents -> how it runs: the mirror of runtime/conv_select.c, in NumPy float32."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from vortex.arithmetic import F32, Array
from vortex.candidates import WIDEST_PANEL
from vortex.conv_cost import ConvCost, ConvProblem, ConvStrategies, predict_conv
from vortex.convolution import ConvShape
from vortex.plans import Grid, OperandB, Shape, grids
from vortex.rates import Rates
from vortex.selector import NumpyArithmetic, SlopeTable
from vortex.winograd_cost import Blocking
from vortex.winograd_selector import PACKED, TILES, Situation, WinogradSelector, suits

Family = Literal["gemm", "direct", "depthwise", "winograd", "lines", "grouped"]
FAMILIES: tuple[Family, ...] = ("gemm", "direct", "depthwise", "winograd", "lines", "grouped")
"""In the order of the numbers of runtime/conv_select.c."""
BY_CHANNEL: tuple[Family, ...] = ("depthwise", "grouped")
"""Whose vectors run along all channels."""
DIRECT = 1
"""The form of packed weights that direct families read, as runtime/vortex_runtime.h has it."""
FEW_CHANNELS = 4
"""With so many channels at most a row of a filter's taps is one run, as runtime/vortex_runtime.h has it."""
STAGED_READS = 4
"""Taps that read a pixel of a group, at least, where its channels are brought side by side first."""
GROUPED = (2, 4, 8)
"""Channels of a group, and filters, of which several are in one vector, as runtime/vortex_runtime.h has it."""
WALKS = ("pixels of a row", "images, one pixel of each")


@dataclass(frozen=True)
class ConvPlan:
    """What runs: the family of micro-kernels, what a register tile of the direct one holds, and the grid."""

    family: Family
    walk_batch: bool
    rows: int
    grid: Grid
    seconds: float
    """Predicted; 0 where another selector, or none, has chosen."""
    blocking: Blocking | None = None
    """Of a Winograd algorithm."""
    alone: float = field(default=0.0, compare=False)
    """Predicted seconds of the best plan of this family on one thread."""

    def __str__(self) -> str:
        if self.family == "winograd":
            return f"{self.blocking}, grid {self.grid.m}x{self.grid.n}"
        if self.family == "depthwise":
            return f"depthwise, grid {self.grid.m}x{self.grid.n}"
        if self.family == "grouped":
            return f"groups in vectors, grid {self.grid.m}x{self.grid.n}"
        if self.family == "gemm":
            return self.family
        read = "direct" if self.family == "direct" else "direct along lines"
        return f"{read}, tiles of at most {self.rows} {WALKS[self.walk_batch]}, grid {self.grid.m}x{self.grid.n}"


def family_of(shape: ConvShape) -> Family:
    """1x1 with stride 1 on the whole input is a plain GEMM; groups of one or few channels have tiles of their own."""
    where = shape.window
    if shape.depthwise and shape.filters == shape.channels:
        return "depthwise"
    if in_vectors(where.groups, shape.channels, shape.filters):
        return "grouped"
    plain = shape.kernel_h == shape.kernel_w == 1 and where.stride == (1, 1) and not any(where.padding)
    if plain and where.groups == 1:
        return "gemm"
    return "lines" if in_lines(shape) and where.dilation[1] == 1 else "direct"


def in_vectors(groups: int, channels: int, filters: int) -> bool:
    """Whether groups have so few channels, and as many filters, that several are in one vector."""
    return groups > 1 and channels == filters and channels // groups in GROUPED


def in_lines(shape: ConvShape) -> bool:
    """Whether pixels have so few channels that a row of a filter's taps is packed as one run."""
    return shape.window.groups == 1 and 1 <= shape.channels <= FEW_CHANNELS and shape.kernel_w > 1


def staged(shape: ConvShape, lanes: int) -> bool:
    """Whether the channels of a group are brought side by side, as runtime/vortex_runtime.h has it."""
    where, taps = shape.window, shape.kernel_h * shape.kernel_w
    fits = shape.filters // where.groups <= lanes <= shape.channels // where.groups
    read = taps >= STAGED_READS * where.stride[0] * where.stride[1]
    return family_of(shape) == "direct" and where.groups > 1 and fits and read


def passes(shape: ConvShape, panel: int, kept: int) -> int:
    """Parts that the taps of a panel are applied in: `kept` bytes of it stay in the second cache, as
    runtime/conv_panel.h has it."""
    if family_of(shape) != "direct":
        return 1
    taps = max(1, kept // (4 * max(1, shape.channels // shape.window.groups) * panel))
    return -(-shape.kernel_w // max(1, min(shape.kernel_w, taps // shape.kernel_h))) * -(-shape.kernel_h // taps)


def taps_seen(outputs: int, taps: int, stride: int, dilation: int, before: int, extent: int) -> int:
    """Taps of all output positions of one side that lie inside of the input."""
    total = 0
    for tap in range(taps):
        offset = tap * dilation - before
        first = max(0, -(offset // stride)) if offset < 0 else 0
        end = min(outputs, -((offset - extent) // stride)) if offset < extent else 0
        total += max(0, end - first)
    return total


@dataclass(frozen=True)
class ConvSelector:
    """The run-time choice among the direct strategies; `tallest[vectors]` rows fit beside that many vectors."""

    rates: Rates
    table: SlopeTable
    lanes: int
    panel: int
    tallest: tuple[int, ...]
    begins: bool = False
    """Whether inputs pass a load stage, for a prologue: it brings rows, not one pixel of several images."""

    @cached_property
    def float32_rates(self) -> Rates:
        return Rates(*(F32(value) for value in astuple(self.rates)))  # type: ignore[arg-type]  # float32, not float

    def tile(self, shape: ConvShape) -> tuple[int, int]:
        """Vectors and most rows of the register tile."""
        groups = 1 if family_of(shape) in BY_CHANNEL else shape.window.groups
        share = shape.filters // groups
        vectors = max(1, min(self.panel // self.lanes, -(-share // self.lanes)))
        return vectors, self.tallest[vectors]

    def problem(self, shape: ConvShape, grid: Grid, threads: int) -> ConvProblem:
        where = shape.window
        top, _, left, _ = where.padding
        vectors, rows = self.tile(shape)
        family = family_of(shape)
        alone, lines = family in BY_CHANNEL, family == "lines"
        close = staged(shape, self.lanes)
        groups = 1 if alone else where.groups
        share, depth = shape.filters // groups, shape.channels // groups
        full, over = divmod(share, vectors * self.lanes)
        seen_h = taps_seen(shape.out_h, shape.kernel_h, where.stride[0], where.dilation[0], top, shape.height)
        seen_w = taps_seen(shape.out_w, shape.kernel_w, where.stride[1], where.dilation[1], left, shape.width)
        padded = seen_w < shape.out_w * shape.kernel_w and not lines and not close
        full, over = (full, over) if full else (1, 0)
        tall = F32(seen_h) / F32(shape.out_h)
        seen = tall * (F32(seen_w) / F32(shape.out_w))
        hops, moved = seen, F32(0.0)
        if lines:
            seen, hops = tall * F32(shape.kernel_w), tall
            at_edges = 0 if seen_w == shape.out_w * shape.kernel_w else min(2, -(-shape.out_w // rows))
            span = (rows - 1) * where.stride[1] + shape.kernel_w
            moved = F32(at_edges * shape.batch * shape.out_h) * F32(span * shape.channels) * tall
        if close:
            hops = seen = tall * F32(shape.kernel_w)
            span = (shape.out_w - 1) * where.stride[1] + (shape.kernel_w - 1) * where.dilation[1] + 1
            moved = F32(shape.batch * shape.height) * F32(span * depth)
        return ConvProblem(
            batch=F32(shape.batch),
            out_h=F32(shape.out_h),
            out_w=F32(shape.out_w),
            depth=F32(depth),
            filters=F32(share),
            groups=F32(groups),
            depthwise=F32(shape.channels // where.groups if alone else 0),
            input_bytes=F32(4.0) * F32(shape.batch) * F32(shape.height) * F32(shape.width) * F32(shape.channels),
            line_bytes=F32(4.0) * F32(where.stride[0] * shape.width) * F32(shape.channels),
            seen=seen,
            seen_h=tall,
            hops=hops,
            in_rows=F32(lines or close or self.begins),
            moved=moved,
            taps=F32(shape.kernel_h * shape.kernel_w),
            passes=F32(passes(shape, self.panel, round(self.rates.l2_bytes))),
            edges=F32(shape.kernel_w - 1 if padded else 0),
            stride_w=F32(where.stride[1]),
            rows=F32(rows),
            full=F32(full),
            vectors=F32(vectors),
            rest=F32(-(-over // self.lanes)),
            width=F32(self.panel),
            grid_m=F32(grid.m),
            grid_n=F32(grid.n),
            active=F32(min(threads, grid.m * grid.n)),
        )

    def costs(self, shape: ConvShape, grid: Grid, threads: int) -> ConvCost:
        """Predicted seconds of both walks, term by term."""
        return predict_conv(
            NumpyArithmetic(self.table), self.float32_rates, strategies(), self.problem(shape, grid, threads)
        )

    def select(self, shape: ConvShape, threads: int) -> ConvPlan:
        """The plan of least predicted time; the earlier grid, then the walk along rows, wins a tie."""
        family = family_of(shape)
        if family == "gemm":
            return ConvPlan(family, False, 0, Grid(1, 1), 0.0)
        rows = self.tile(shape)[1] if family in ("direct", "lines") else 0
        best: ConvPlan | None = None
        for grid in grids(threads):
            total = np.asarray(self.costs(shape, grid, threads).total)
            index = int(np.argmin(total))
            if best is None or total[index] < best.seconds:
                alone = best.alone if best else float(total[index])
                best = ConvPlan(family, bool(index), rows, grid, float(total[index]), alone=alone)
        assert best is not None
        return best

    def product(self, shape: ConvShape) -> Shape:
        """The product that a 1x1 filter on every pixel is, with packed weights: those of one panel are a plain B, for
        which there are tiles of any width."""
        m, n, k = (shape.gemm[axis] for axis in "mnk")
        return Shape(m, n, k, OperandB.PACKED) if n > self.panel else Shape(m, n, k, ldb=self.panel)

    @cached_property
    def winograd(self) -> WinogradSelector:
        return WinogradSelector(self.rates, self.table, self.lanes)

    def choose(self, shape: ConvShape, threads: int, forms: int, given: Situation = PACKED) -> ConvPlan:
        """The plan among the forms that weights were packed in: DIRECT, and above it a bit for each Winograd tile.

        One thread decides between the families, so that a result has the same bits on any number of threads.
        """
        plan = self.select(shape, threads)
        offered = [tile for bit, tile in enumerate(TILES) if forms & 2 * DIRECT << bit]
        if plan.family not in ("direct", "lines") or not offered or not suits(shape):
            return plan
        fast = self.winograd.select(shape, threads, given, offered)
        if forms & DIRECT and plan.alone <= fast.alone:
            return plan
        return ConvPlan("winograd", False, 0, fast.grid, fast.seconds, fast.blocking, fast.alone)


MOST_VECTORS = 8
"""One more than the vectors of the widest panel, as runtime/vortex_runtime.h has it, and one for none."""


def tallest(shapes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Most rows of the (rows, vectors) micro-kernels by vectors, 0 where there is none."""
    found = [0] * MOST_VECTORS
    for rows, vectors in shapes:
        if vectors <= WIDEST_PANEL:
            found[vectors] = max(found[vectors], rows)
    return tuple(found)


def strategies() -> ConvStrategies:
    walk: Array = np.array([0.0, 1.0], np.float32)
    return ConvStrategies(walk)
