"""Predicted seconds of a Winograd convolution, written once as `cost.predict` is and evaluated by the same arithmetics.

One task of L2 runs its share of the tiles, in blocks, against its share of the panels of filters. A block is
transformed (V), multiplied point by point (M = V U; cost(L0) is measured), and transformed back:

    T = blocks * (transforms + products + what is exposed of reading U and V) + what is exposed of the traffic
    cost(L2) = F_parallel * T + thread start + transforming unpacked weights                    (Eq. 3, Eq. 4)
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from vortex.arithmetic import Array
from vortex.effects import EPSILON, FLOAT, MeasuredArithmetic, Value, exposed, latency, micro_kernel, source_byte
from vortex.rates import Rates
from vortex.winograd import ALGORITHMS

INPUT_ISSUES = {2: 70.0, 4: 340.0}
"""Multiply-adds in whose time one vector of channels of one window is transformed: measured on one machine (Zen 5) with
V in L2. Stores and shuffled registers bound it, not arithmetic, so that it is no count of operations."""
OUTPUT_ISSUES = {2: 45.0, 4: 220.0}
"""The same for one vector of filters of one tile."""
FILTER_ISSUES = {2: 60.0, 4: 150.0}
"""The same for one vector of filters of one channel."""
PANELS = 8
"""Most panels of filters whose products are kept before they are transformed back."""
STACKS = (2, 8)
"""Most register tiles that a block is high. V and M of the low one stay in L2 or close to it: of blocks 1 to 16 high
that keep 2, 8 or all panels it was within 7 % of the best for each of 16 layers whose filters stay in L3, 3 % on
average. The high one reads filters that come from memory less often."""
FAR = 2.0
"""How many times their streaming time pixels cost from memory: windows jump from row to row."""
KEPT = 0.6
"""Share of what operands may take of the outermost cache that filters may when pixels stream past them."""
SPILL = 0.04
"""Share of the latency that is seen of each line of V or M that does not stay in L2."""


@dataclass(frozen=True)
class Blocking:
    """A strategy: the output tile of its algorithm, and the most register tiles that a block is high."""

    tile: int
    stacks: int

    def __str__(self) -> str:
        return f"Winograd F({self.tile}x{self.tile}, 3x3), blocks of {self.stacks} register tiles"


BLOCKINGS = tuple(Blocking(tile, stacks) for tile in sorted(ALGORITHMS) for stacks in STACKS)
"""In the order of runtime/winograd_select.c: a Winograd strategy is its place here."""


@dataclass(frozen=True)
class WinogradStrategies:
    """One column per field, one row per strategy, float32."""

    side: Value
    per_side: Value
    points: Value
    stacks: Value
    per_stacks: Value
    input_issues: Value
    output_issues: Value
    filter_issues: Value


@dataclass(frozen=True)
class WinogradProblem:
    """One call and how L2 cuts it."""

    batch: Value
    out_h: Value
    out_w: Value
    channels: Value
    filters: Value
    input_bytes: Value
    full: Value
    """Panels of `vectors`; one of `rest` follows unless that is 0."""
    rest: Value
    vectors: Value
    rows: Value
    """Of the register tile, at most."""
    turn_x: Value
    """1 where channels of the input are not side by side."""
    turn_y: Value
    unpacked: Value
    """1 where the weights come as they are."""
    grid_m: Value
    """Tasks along the tiles."""
    grid_n: Value
    """Tasks along the panels."""
    active: Value


@dataclass(frozen=True)
class WinogradCost:
    """Predicted seconds and the terms they are the sum of."""

    total: Value
    transforms: Value
    products: Value
    exposed: Value
    turning: Value
    traffic: Value
    packing: Value
    start: Value

    def terms(self) -> dict[str, Value]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def predict_winograd(ops: MeasuredArithmetic, rates: Rates, s: WinogradStrategies, p: WinogradProblem) -> WinogradCost:
    """cost(L2) of every strategy for one call."""
    down = ops.ceil(p.out_h * s.per_side - EPSILON)
    along = ops.ceil(p.out_w * s.per_side - EPSILON)
    mine = ops.name("mine", ops.ceil(p.batch * down * along / p.grid_m - EPSILON))
    blocks = ops.name("blocks", ops.ceil(mine / p.rows * s.per_stacks - EPSILON))
    each = ops.name("each", mine / blocks)
    stacks = ops.name("stacks", ops.ceil(each / p.rows - EPSILON))
    height = ops.name("height", each / stacks)
    panels = ops.name("panels", p.full + ops.least(p.rest, 1.0))
    taken = ops.name("taken", ops.ceil(panels / p.grid_n - EPSILON))
    # The task that takes longest has the wide panels.
    mine_wide = ops.name("mine_wide", ops.least(taken, p.full))
    mine_narrow = ops.name("mine_narrow", ops.where(taken > p.full + 0.5, 1.0, 0.0))

    entering = ops.name("entering", rates.tile_enter + height * rates.tile_row)
    wide = ops.name("wide", micro_kernel(ops, rates, height, p.vectors, p.channels, 1.0) + entering)
    narrow = micro_kernel(ops, rates, height, p.rest, p.channels, 1.0) + entering
    narrow = ops.name("narrow", ops.where(p.rest > 0.5, narrow, 0.0))
    block = ops.name("block", s.points * stacks * (mine_wide * wide + mine_narrow * narrow))
    inward = ops.ceil(p.channels / rates.lanes - EPSILON) * s.input_issues
    outward = (mine_wide * p.vectors + mine_narrow * p.rest) * s.output_issues
    transforms = ops.name("transforms", mine * (inward + outward) * rates.multiply_add)

    width = p.vectors * rates.lanes
    u_bytes = ops.name("u_bytes", FLOAT * s.points * p.channels * taken * width)
    v_bytes = ops.name("v_bytes", FLOAT * s.points * each * p.channels)
    m_bytes = ops.name("m_bytes", FLOAT * s.points * each * ops.least(taken, PANELS) * width)
    y_bytes = FLOAT * p.batch * p.out_h * p.out_w * p.filters
    footprint = ops.name("footprint", p.input_bytes + y_bytes + u_bytes * p.grid_n)
    fits = ops.name("fits", ops.where(footprint <= rates.l3_bytes, 1.0, 0.0))
    held = ops.name("held", u_bytes * p.grid_n * ops.where(fits > 0.5, 1.0, 1.0 / KEPT))
    reading = exposed(ops, u_bytes * source_byte(ops, rates, held, p.active), block / stacks)
    again = ops.ceil(taken / PANELS - EPSILON)
    beyond = ops.most(v_bytes + m_bytes - rates.l2_bytes, 0.0) * again
    spilled = beyond / rates.line_bytes * latency(ops, rates, (v_bytes + m_bytes) * p.active, p.active) * SPILL
    waiting = ops.name("waiting", blocks * (reading + spilled))

    source = ops.name("source", source_byte(ops, rates, footprint, p.active))
    pixels = mine * s.side * s.side
    moved = p.turn_x * mine * (s.side + 2.0) * s.side * p.channels + p.turn_y * pixels * (taken / panels) * p.filters
    turning = ops.name("turning", moved * rates.transpose + FLOAT * moved * rates.l2_byte)
    products = ops.name("products", blocks * block)
    busy = ops.name("busy", transforms + products + waiting + turning)
    late = ops.where(fits > 0.5, 1.0, FAR)
    traffic = ops.name("traffic", (p.input_bytes + 2.0 * y_bytes / p.grid_n) / p.grid_m * source * late)
    task = busy + exposed(ops, traffic, transforms + turning)
    taps = p.channels * panels * width
    made = taps / rates.lanes * s.filter_issues * rates.multiply_add + taps * 9.0 * (rates.transpose + FLOAT * source)
    packing = ops.name("packing", p.unpacked * made / p.active)
    waves = ops.ceil(p.grid_m * p.grid_n / p.active - EPSILON)
    start = rates.call + ops.where(p.grid_m * p.grid_n > 1.5, rates.thread_start * (1.0 + p.unpacked), 0.0)
    return WinogradCost(waves * task + packing + start, transforms, products, waiting, turning, traffic, packing, start)


def strategies() -> WinogradStrategies:
    """Every blocking as float32 columns."""

    def column(values: list[float]) -> Array:
        return np.array(values, np.float32)

    return WinogradStrategies(
        side=column([float(b.tile) for b in BLOCKINGS]),
        per_side=column([1.0 / b.tile for b in BLOCKINGS]),
        points=column([float(ALGORITHMS[b.tile].points) for b in BLOCKINGS]),
        stacks=column([float(b.stacks) for b in BLOCKINGS]),
        per_stacks=column([1.0 / b.stacks for b in BLOCKINGS]),
        input_issues=column([INPUT_ISSUES[b.tile] for b in BLOCKINGS]),
        output_issues=column([OUTPUT_ISSUES[b.tile] for b in BLOCKINGS]),
        filter_issues=column([FILTER_ISSUES[b.tile] for b in BLOCKINGS]),
    )
