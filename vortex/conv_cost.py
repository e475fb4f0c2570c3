"""Predicted seconds of a direct convolution, written once as `cost.predict` is and evaluated by the same arithmetics.

One task of L2 runs its share of the panels of filters over its share of the units: rows of output pixels, or single
pixels of several images at once. A unit is cut into register tiles; cost(L0) of one is linear in the channels and taps
that its pixels see. Taps in the padding cost nothing; at an edge, tiles take more than one call.

    T = tiles * (cost(L0) + what is exposed of the panel and of the pixels), and what is exposed of the traffic
    cost(L2) = F_parallel * T + thread start                                                    (Eq. 3, Eq. 4)
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vortex.cost import NEVER
from vortex.effects import EPSILON, FLOAT, MeasuredArithmetic, Value, exposed, micro_kernel, past_caches, source_byte
from vortex.rates import Rates

TAP_ISSUES = 20.0
"""Multiply-adds in whose time L0 goes from one tap to the next; counted in its machine code."""

BLOCK = 0.53
"""Share of what the second cache keeps that the input of a block of units may take, which all panels pass over: beside
it are a pass of a panel, outputs, and what streams."""

DEPTHWISE_TAP = 1.6
"""Multiply-adds in whose time a depthwise tile takes one vector through one tap."""
DEPTHWISE_ISSUES = 6.0
"""Multiply-adds in whose time a depthwise tile clears and stores one vector."""


@dataclass(frozen=True)
class ConvStrategies:
    """One column per field, one row per strategy, float32."""

    walk_batch: Value
    """1 where a register tile holds one pixel of several images, 0 where it holds neighbours in a row."""


@dataclass(frozen=True)
class ConvProblem:
    """One call and how L2 cuts it; extents of one group where groups differ from one."""

    batch: Value
    out_h: Value
    out_w: Value
    depth: Value
    """Channels of a group."""
    filters: Value
    groups: Value
    depthwise: Value
    """Channels of a group where vectors run along the channels of all groups, whose `depth` and `filters` are then; 0
    elsewhere."""
    input_bytes: Value
    line_bytes: Value
    """Of the input that one row of output pixels adds to what those before it see."""
    seen: Value
    """Taps that lie inside of the input, the mean over all output pixels; `seen_h` of one filter column."""
    seen_h: Value
    hops: Value
    """Runs of the input that a pixel's taps are in: each is a start of L0's innermost loop."""
    in_rows: Value
    """1 where a tile may only hold neighbours in a row."""
    moved: Value
    """Elements that are copied for each panel of filters."""
    taps: Value
    """Of the whole filter."""
    passes: Value
    """Parts that they are applied in: the second cache keeps a panel's."""
    edges: Value
    """Calls of L0 that padding adds to each row of pixels."""
    stride_w: Value
    rows: Value
    """Pixels of a register tile, at most."""
    full: Value
    """Panels of `vectors`; one of `rest` follows unless that is 0."""
    vectors: Value
    rest: Value
    width: Value
    """Elements between the lines of a packed panel."""
    grid_m: Value
    grid_n: Value
    active: Value


@dataclass(frozen=True)
class ConvCost:
    """Predicted seconds and the terms of one task."""

    total: Value
    compute: Value
    exposed: Value
    copying: Value
    traffic: Value
    start: Value

    def terms(self) -> dict[str, Value]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def predict_conv(ops: MeasuredArithmetic, rates: Rates, s: ConvStrategies, p: ConvProblem) -> ConvCost:
    """cost(L2) of every strategy for one call."""
    walks = s.walk_batch > 0.5
    line = ops.name("line", ops.where(walks, p.batch, p.out_w))
    tiles = ops.name("tiles", ops.most(ops.ceil(line / p.rows - EPSILON), 1.0))
    height = ops.name("height", line / tiles)
    units = ops.where(walks, tiles * p.out_h * p.out_w, p.batch * p.out_h)
    per_unit = ops.where(walks, 1.0, tiles)
    calls = ops.name("calls", p.passes + ops.where(walks, 0.0, p.edges / tiles))
    depth = ops.name("depth", p.depth * p.seen)
    hops = p.hops * TAP_ISSUES * rates.multiply_add
    wide = ops.name("wide", micro_kernel(ops, rates, height, p.vectors, depth, calls) + hops)
    narrow = ops.where(p.rest > 0.5, micro_kernel(ops, rates, height, p.rest, depth, calls) + hops, 0.0)
    narrow = ops.name("narrow", narrow)

    panel_bytes = FLOAT * p.depth * p.taps * p.width / p.passes
    footprint = p.input_bytes + FLOAT * p.groups * (
        p.filters * p.depth * p.taps + p.batch * p.out_h * p.out_w * p.filters
    )
    source = ops.name("source", source_byte(ops, rates, footprint, p.active))
    panel_byte = ops.where(
        panel_bytes <= rates.l1_bytes, 0.0, ops.where(panel_bytes <= rates.l2_bytes, rates.l2_byte, source)
    )
    piece = ops.most(FLOAT * p.depth, rates.line_bytes)
    far = height * p.seen * piece * source_byte(ops, rates, p.input_bytes, p.active)
    near = height * p.stride_w * FLOAT * p.depth * p.seen_h * rates.l2_byte
    pixels = ops.name("pixels", ops.where(walks, far, near))
    late = ops.name("late", exposed(ops, FLOAT * depth * p.vectors * rates.lanes * panel_byte + pixels, wide))
    late_rest = exposed(ops, FLOAT * depth * p.rest * rates.lanes * panel_byte + pixels, narrow)
    late_rest = ops.name("late_rest", ops.where(p.rest > 0.5, late_rest, 0.0))

    panels = ops.name("panels", p.groups * (p.full + ops.least(p.rest, 1.0)))
    taken = ops.name("taken", ops.ceil(panels / p.grid_n - EPSILON))
    share = ops.name("share", taken / panels)
    # The task that takes longest has the wide panels; of several groups, some of both.
    several = p.groups > 1.5
    mine_wide = ops.name("mine_wide", ops.where(several, share * p.groups * p.full, ops.least(taken, p.full)))
    mine_narrow = ops.where(several, share * p.groups, ops.where(taken > p.full + 0.5, 1.0, 0.0))
    mine_narrow = ops.name("mine_narrow", mine_narrow)
    mine = ops.name("mine", ops.ceil(units / p.grid_m - EPSILON) * per_unit)
    compute = ops.name("compute", mine * (mine_wide * wide + mine_narrow * narrow))
    waiting = ops.name("waiting", mine * (mine_wide * late + mine_narrow * late_rest))
    outputs = p.groups * (p.batch * p.out_h * p.out_w) * p.filters
    past = past_caches(ops, rates, outputs, p.groups * p.filters)
    written = (2.0 - past) * FLOAT * mine * height * (share * p.groups * p.filters)
    weights = share * FLOAT * p.groups * p.filters * p.depth * p.taps
    busy = ops.name("busy", compute + waiting)
    unit_bytes = ops.where(walks, FLOAT * p.depth * p.groups * p.rows, p.line_bytes)
    block = ops.most(rates.l2_bytes * BLOCK / ops.most(unit_bytes, 1.0), 1.0)
    blocks = ops.name("blocks", ops.most(units / p.grid_m / block, 1.0))
    traffic = (p.input_bytes / p.grid_m + blocks * weights + written) * source
    waves = ops.ceil(p.grid_m * p.grid_n / p.active - EPSILON)
    start = rates.call + ops.where(p.active > 1.5, rates.thread_start, 0.0)
    copying = ops.name("copying", p.moved / p.grid_m * share * panels * rates.copy)
    direct = waves * (busy + exposed(ops, traffic, busy) + copying) + start
    direct = ops.where(walks, ops.where(p.in_rows > 0.5, NEVER, direct), direct)

    outputs = units * per_unit * height / p.grid_m * ops.ceil(p.filters / rates.lanes - EPSILON) / p.grid_n
    each = ops.name("each", outputs * (p.seen * p.depthwise * DEPTHWISE_TAP + DEPTHWISE_ISSUES) * rates.multiply_add)
    moved = (p.input_bytes + 2.0 * FLOAT * p.batch * p.out_h * p.out_w * p.filters) / p.active * source
    depthwise = ops.where(walks, NEVER, waves * (each + exposed(ops, moved, each)) + start)
    alone = p.depthwise > 0.5
    compute, traffic = ops.where(alone, each, compute), ops.where(alone, moved, traffic)
    total, waiting = ops.where(alone, depthwise, direct), ops.where(alone, 0.0, waiting)
    return ConvCost(total, compute, waiting, copying, traffic, start)
