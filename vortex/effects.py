"""Physical effects that the costs of CPUs are made of, each one pure function; `ops` as in `vortex/cost.py`."""

from __future__ import annotations

from typing import Any, Protocol

from vortex.rates import Rates

Value = Any
"""A float32 scalar, an array of them over strategies, or a TVM expression."""


class Arithmetic(Protocol):
    """The few operations a cost needs beyond + - * /."""

    def least(self, x: Value, y: Value) -> Value: ...
    def most(self, x: Value, y: Value) -> Value: ...
    def floor(self, x: Value) -> Value: ...
    def ceil(self, x: Value) -> Value: ...
    def where(self, condition: Value, x: Value, y: Value) -> Value: ...
    def name(self, label: str, x: Value) -> Value:
        """Give a shared intermediate a name (TVM binds it once; NumPy passes it through)."""


class MeasuredArithmetic(Arithmetic, Protocol):
    """With the measured micro-kernels of a CPU."""

    def slope(self, vectors: Value, rows: Value) -> Value:
        """Seconds per step of k of the L0 micro-kernel of that many vectors and rows; 0 for an empty one."""


EPSILON = 1e-4
"""Keeps a quotient by a rounded reciprocal from crossing the next integer; extents up to 10^4 tiles stay exact."""
FLOAT = 4.0
"""Bytes of an element."""


def micro_kernel(
    ops: MeasuredArithmetic, rates: Rates, height: Value, vectors: Value, depth: Value, steps: Value
) -> Value:
    """cost(L0): start-up per reduction step and a measured slope; the height may lie between two integers."""
    low = ops.name("low", ops.floor(height + EPSILON))
    below = ops.slope(vectors, low)
    above = ops.slope(vectors, low + 1.0)
    slope = below + ops.most(height - low, 0.0) * (above - below)
    return depth * slope + steps * ops.where(
        vectors > 0.5, rates.tile_start + height * vectors * rates.tile_vector, 0.0
    )


SAME_PLACE = 0.5
"""How often a B whose rows all begin at the same place of a line does not begin on one."""
FEW_ROWS = 5.0
"""Rows of a register tile that hide nothing of loads across lines: 5x80 takes 1.1 times as long by such a B, 14x32 1.01
times (Zen 5)."""


def straddling(ops: Arithmetic, rates: Rates, rows: Value, spacing: Value) -> Value:
    """Share that a tile of so many rows sees of what a vector across two lines costs, where rows of B start on
    multiples of `spacing` bytes."""
    lines = spacing * (1.0 / rates.line_bytes)
    across = ops.where(lines > 1.0 - EPSILON, SAME_PLACE, 1.0 - lines)
    return across * ops.least(FEW_ROWS / rows, 1.0)


CRAMMED_ROW, CRAMMED_AGAIN = 3.3, 1.0
"""Until a row of B is there where all begin in one set of L1, and what it takes longer where many tiles come back to
rows two spans and more apart, in waits of `Rates.alone`. A Zen 5, ns seen of a row of a panel: by two tiles of 8 x 32
and 1024 columns 0.22, and 2048 columns 0.35, by two of 14 x 32 0.04 and 0.18, by nine of these 0.10 and 0.41, all much
as arithmetic that hides 1.3 to 2.1."""
FAR_ROWS = 2.0
"""Spans of L1's sets from one row to the next from which on tiles that come back wait longer."""


def page_waits(
    ops: Arithmetic,
    rates: Rates,
    width: Value,
    per_width: Value,
    spacing: Value,
    columns: Value,
    tiles: Value,
    step: Value,
) -> Value:
    """Seconds that a step of k waits for a line of another page in a panel of `width` columns that lies beside others
    in a B as it is, with rows of so many `columns` on multiples of `spacing` bytes: those of one line do. So do others
    whose rows evict each other before the next of `tiles` reads them, behind the arithmetic of a `step`."""
    thin = rates.lanes * per_width
    waits = ops.where(FLOAT * width <= rates.line_bytes + 0.5, rates.alone * (thin * thin), 0.0)
    if rates.roomy or rates.crammed_rows < rates.crowded_rows:
        return waits
    again = ops.where(FLOAT * columns > FAR_ROWS * rates.l1_span - 0.5, ops.most(1.0 - 2.0 / tiles, 0.0), 0.0)
    row = rates.alone * (CRAMMED_ROW + CRAMMED_AGAIN * again)
    return ops.where(spacing > rates.l1_span - 0.5, ops.most(waits, exposed(ops, row, step)), waits)


def exposed(ops: Arithmetic, load: Value, compute: Value) -> Value:
    """What a load adds to the arithmetic it overlaps with: max(load, compute) - compute of Eq. 2, rounded off.

    With r = load / compute, r^3 / (1 + r + r^2) of the arithmetic: it tends to r - 1 above 1 and is 0.07 at one half,
    0.33 at 1. Multiplied out it takes one division; those of the cost are a third of its time.
    """
    least, square = ops.name("least", ops.most(compute, 1e-12)), ops.name("square", load * load)
    return load * (square / (least * (least + load) + square))


def exposed_stream(ops: Arithmetic, rates: Rates, load: Value, compute: Value) -> Value:
    """The same of a stream that hardware is ahead of, which overlaps better: r^4 / (1 + r + r^2 + r^3) of the
    arithmetic, 0.03 at one half, 0.25 at 1. A Zen 5, two cores, 8448 x 1 x 2816 by tiles, whose lines take about as
    long as its arithmetic: 1.1 times as long as either."""
    if not rates.overlaps:
        return exposed(ops, load, compute)
    least, cube = ops.most(compute, 1e-12), load * load * load
    return load * (cube / (least * (least * (least + load) + load * load) + cube))


def held(ops: Arithmetic, capacity: Value, footprint: Value) -> Value:
    """Share of operands of so many bytes that a cache still holds from the call before: none is strictly LRU."""
    return ops.least(capacity / ops.most(footprint, 1.0), 1.0)


def source_byte(ops: Arithmetic, rates: Rates, footprint: Value, active: Value) -> Value:
    """Seconds per byte from where operands of that many bytes in all live when a call finds them warm."""
    shared = ops.most(rates.l3_byte, rates.l3_byte_shared * active)
    memory = ops.most(rates.dram_byte, rates.dram_byte_shared * active)
    beyond = memory + (shared - memory) * held(ops, rates.l3_bytes, footprint)
    return beyond + (rates.l2_byte - beyond) * held(ops, rates.l2_bytes * active, footprint)


def latency(ops: Arithmetic, rates: Rates, footprint: Value, active: Value) -> Value:
    """Seconds until a line arrives from where so many bytes live; nothing from L2, which the core hides."""
    beyond = rates.dram_latency + (rates.l3_latency - rates.dram_latency) * held(ops, rates.l3_bytes, footprint)
    return beyond - beyond * held(ops, rates.l2_bytes * active, footprint)


def queued(ops: Arithmetic, rates: Rates, asked: Value, byte: Value) -> Value:
    """Seconds seen of so many bytes asked for at once: of lines past those that a core can wait for at a time."""
    return rates.burst * ops.most(asked - rates.misses * rates.line_bytes, 0.0) * byte


def whole(ops: Arithmetic, bytes: float, columns: Value) -> Value:
    """1 where rows of so many elements are a multiple of so many bytes, else 0."""
    units = columns * (FLOAT / bytes)
    return ops.where(units - ops.floor(units + EPSILON) <= EPSILON, 1.0, 0.0)


def whole_lines(ops: Arithmetic, rates: Rates, columns: Value) -> Value:
    """1 where rows of so many elements are whole lines, else 0."""
    return whole(ops, rates.line_bytes, columns)


def gathered(ops: Arithmetic, rates: Rates, columns: Value) -> Value:
    """Share of the rows of so many elements, one after the other, that begin in the same set of L1; 0 if few do."""
    share: Value = 0.0
    for places in (4.0, 2.0, 1.0):
        share = ops.where(whole(ops, rates.l1_span / places, columns) > 0.5, 1.0 / places, share)
    return share


def past_caches(ops: Arithmetic, rates: Rates, outputs: Value, columns: Value) -> Value:
    """1 where outputs are more than all caches hold, and their rows whole lines, which are not read before they are
    written; else 0."""
    return ops.where(FLOAT * outputs <= rates.outer_bytes, 0.0, whole_lines(ops, rates, columns))


def line_turns(ops: Arithmetic, rates: Rates, columns: Value) -> Value:
    """Rows of so many elements, one after the other, until one begins at the same place of a line as the first."""
    count = turns = rates.line_bytes / FLOAT
    while count > 1.5:
        count /= 2.0
        turns = ops.where(whole_lines(ops, rates, columns * count) > 0.5, count, turns)
    return turns


def reading(ops: Arithmetic, rates: Rates, in_l1: Value, in_l2: Value, from_l2: Value, outside: Value) -> Value:
    """Seconds to read a block again: none from L1, `from_l2` for the share of it that stayed there, else `outside`.

    `in_l1` and `in_l2` are the bytes it takes up there: rows that start in the same sets leave the others unused.
    """
    share = held(ops, rates.l2_bytes, in_l2)
    return ops.where(in_l1 <= rates.l1_bytes, 0.0, outside + (from_l2 - outside) * share)
