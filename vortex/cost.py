"""Predicted seconds (paper Eq. 2-4, plus what a CPU adds), written once.

Every function takes `ops`, the arithmetic it is evaluated with: NumPy float32 arrays over strategies offline and in the Python selector,
TVM expressions when the native selector is compiled. Both see the same operations in the same order, so they choose alike.

One task of L2 computes `rows` x `columns` of C over the whole depth k. Its register tiles form a grid of `tiles` x `panels`; cost(L0) of one
is linear in k and measured, all above is computed here:

    T = max(traffic, compute + sum of what the pipeline of Eq. 2 leaves exposed) + T_load(CacheBuffer)
    cost(L2) = F_parallel * T + thread start                                                    (Eq. 3, Eq. 4)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

Value = Any
"""A float32 scalar, an array of them over strategies, or a TVM expression."""


class Arithmetic(Protocol):
    """The few operations a cost needs beyond + - * /."""

    def least(self, x: Value, y: Value) -> Value: ...
    def most(self, x: Value, y: Value) -> Value: ...
    def floor(self, x: Value) -> Value: ...
    def ceil(self, x: Value) -> Value: ...
    def where(self, condition: Value, x: Value, y: Value) -> Value: ...
    def slope(self, vectors: Value, rows: Value) -> Value:
        """Seconds per step of k of the L0 micro-kernel of that many vectors and rows; 0 for an empty one."""
    def name(self, label: str, x: Value) -> Value:
        """Give a shared intermediate a name (TVM binds it once; NumPy passes it through)."""


@dataclass(frozen=True)
class Rates:
    """What the machine does, as the cost model sees it: seconds, seconds per byte, bytes, counts; all float32."""

    call: float
    """Seconds of a call that computes nothing."""
    thread_start: float
    """Seconds to hand tasks to waiting threads and to learn that they are done."""
    tile_start: float
    """Seconds to enter and leave one micro-kernel, whatever its size."""
    tile_vector: float
    """Seconds to clear and store one accumulator."""
    copy: float
    """Seconds to copy one element into the CacheBuffer."""
    transpose: float
    """Seconds to transpose one element into the CacheBuffer."""
    l1_bytes: float
    l2_bytes: float
    l3_bytes: float
    l1_ways: float
    line_bytes: float
    l2_byte: float
    """Seconds per byte that one core reads from L2."""
    l3_byte: float
    l3_byte_shared: float
    """Seconds per byte of the whole device: what each of n active cores sees is at least n times this."""
    dram_byte: float
    dram_byte_shared: float
    l1_span: float
    """Bytes after which addresses fall into the same set of L1 again (sets x line)."""
    l2_span: float
    hidden: float
    """Share of a load that arithmetic can hide; the rest adds to it, since fills and operand loads meet in the innermost cache."""
    collision: float
    """How much slower rows of B stream in when they all start in one set of L1: factor 1 + collision / lines of a row."""


@dataclass(frozen=True)
class Strategies:
    """One column per field, one row per strategy, float32."""

    rows: Value
    vectors: Value
    width: Value
    per_row: Value
    per_width: Value
    tile_m: Value
    tile_n: Value
    tile_k: Value
    per_tile_n: Value
    per_tile_k: Value
    rows_first: Value
    pack_a: Value
    pack_b: Value
    plain: Value
    """1 where an unpacked, untransposed B is accepted."""
    transposed: Value
    """1 where a transposed B is accepted."""
    prepacked: Value
    """1 where a packed operand is accepted."""


@dataclass(frozen=True)
class Problem:
    """One call: the shape, what kind of B it has, and how L2 cuts it."""

    m: Value
    n: Value
    k: Value
    plain: Value
    transposed: Value
    prepacked: Value
    spacing_a: Value
    """Row starts of A fall on multiples of this many bytes within the span of L1's sets; 0 when A is transposed."""
    spacing_b: Value
    """The same for an unpacked B."""
    spacing_b_l2: Value
    """The same for an unpacked B within the span of L2's sets."""
    grid_m: Value
    grid_n: Value
    active: Value
    """Cores that work at the same time."""


@dataclass(frozen=True)
class Cost:
    """Predicted seconds and the terms they are the sum or maximum of."""

    total: Value
    compute: Value
    exposed_a: Value
    exposed_b: Value
    reload: Value
    conflicts: Value
    packing: Value
    traffic: Value
    start: Value

    def terms(self) -> dict[str, Value]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


EPSILON = 1e-4
"""Keeps a quotient formed with a rounded reciprocal from crossing the next integer; extents up to 10^4 tiles stay exact."""
NEVER = 1e30
FLOAT = 4.0


def micro_kernel(ops: Arithmetic, rates: Rates, height: Value, vectors: Value, depth: Value, steps: Value) -> Value:
    """cost(L0): start-up per reduction step plus a measured slope, for a tile whose height may lie between two integers."""
    low = ops.name("low", ops.floor(height + EPSILON))
    below = ops.slope(vectors, low)
    above = ops.slope(vectors, low + 1.0)
    slope = below + ops.most(height - low, 0.0) * (above - below)
    return depth * slope + steps * ops.where(vectors > 0.5, rates.tile_start + height * vectors * rates.tile_vector, 0.0)


def exposed(ops: Arithmetic, rates: Rates, load: Value, compute: Value) -> Value:
    """What a load adds to the arithmetic it overlaps with: max(T_load, cost) - cost of Eq. 2, were all of it hidden."""
    return ops.most(load - rates.hidden * compute, (1.0 - rates.hidden) * load)


def source_byte(ops: Arithmetic, rates: Rates, footprint: Value, active: Value) -> Value:
    """Seconds per byte from where operands of that many bytes live when a call finds them warm."""
    shared = ops.most(rates.l3_byte, rates.l3_byte_shared * active)
    memory = ops.most(rates.dram_byte, rates.dram_byte_shared * active)
    beyond = ops.where(footprint <= rates.l3_bytes, shared, memory)
    return ops.where(footprint <= rates.l2_bytes, rates.l2_byte, beyond)


def resident_byte(
    ops: Arithmetic, rates: Rates, in_l1: Value, in_l2: Value, crowded: Value, outside: Value
) -> Value:
    """Seconds per byte to read a block again: nothing from L1, L2 if it stayed there, else from outside.

    `in_l1` and `in_l2` are the bytes it takes up there: rows that start in the same sets leave the others unused.
    """
    return ops.where(
        in_l1 <= rates.l1_bytes, 0.0, ops.where(in_l2 <= rates.l2_bytes, rates.l2_byte * crowded, outside)
    )


def predict(ops: Arithmetic, rates: Rates, s: Strategies, p: Problem) -> Cost:
    """cost(L2) of every strategy for one call; NEVER for a strategy that does not take this kind of B."""
    rows = ops.name("rows", ops.ceil(p.m / p.grid_m - EPSILON))
    units = ops.ceil(p.n * s.per_width - EPSILON)
    columns = ops.name("columns", ops.least(p.n, ops.ceil(units / p.grid_n - EPSILON) * s.width))
    tiles = ops.name("tiles", ops.most(ops.ceil(rows * s.per_row - EPSILON), 1.0))
    height = ops.name("height", rows / tiles)
    full = ops.name("full", ops.floor(columns * s.per_width + EPSILON))
    rest = ops.name("rest", ops.ceil((columns - full * s.width) * (s.vectors * s.per_width) - EPSILON))
    panels = full + ops.least(rest, 1.0)
    depth = ops.name("depth", ops.least(p.k, s.tile_k))
    steps = ops.name("steps", ops.most(ops.ceil(p.k * s.per_tile_k - EPSILON), 1.0))

    wide = ops.name("wide", micro_kernel(ops, rates, height, s.vectors, p.k, steps))
    narrow = ops.name("narrow", micro_kernel(ops, rates, height, rest, p.k, steps))
    across = ops.name("across", full * wide + narrow)
    one = ops.name("one", ops.where(full > 0.5, wide, narrow))
    compute = ops.name("compute", tiles * across)

    bytes_a, bytes_b, bytes_c = FLOAT * rows * p.k, FLOAT * p.k * columns, FLOAT * rows * columns
    footprint = FLOAT * (p.m * p.k + p.k * p.n + p.m * p.n)
    source = ops.name("source", source_byte(ops, rates, footprint / p.active, p.active))
    row_bytes = ops.name("row_bytes", FLOAT * s.width)
    loose = (1.0 - p.prepacked) * (1.0 - s.pack_b)
    crowded = 1.0 + loose * rates.collision * (p.spacing_b / rates.l1_span) * (rates.line_bytes / row_bytes)
    scattered = ops.name("scattered", source * crowded)
    swell_l1 = 1.0 + loose * ops.most(p.spacing_b / row_bytes - 1.0, 0.0)
    swell_l2 = 1.0 + loose * ops.most(p.spacing_b_l2 / row_bytes - 1.0, 0.0)
    copied = rates.copy + p.transposed * (rates.transpose - rates.copy)
    packing = s.pack_b * p.k * columns * ops.most(copied, FLOAT * source) + s.pack_a * rows * p.k * ops.ceil(
        columns * s.per_tile_n - EPSILON
    ) * ops.most(rates.copy, FLOAT * source)

    tile_a = FLOAT * height * p.k
    exposed_a = (1.0 - s.pack_a) * tiles * exposed(ops, rates, tile_a * source, one)
    exposed_b = (1.0 - s.pack_b) * exposed(ops, rates, bytes_b * scattered, across)

    block_a = FLOAT * depth * ops.least(rows, s.tile_m)
    block_b = FLOAT * depth * ops.least(columns, s.tile_n)
    panel_b = FLOAT * depth * ops.least(columns, s.width)
    again_a = s.rows_first * resident_byte(ops, rates, FLOAT * depth * height, FLOAT * depth * height, 1.0, source) + (
        1.0 - s.rows_first
    ) * resident_byte(ops, rates, block_a, block_a, 1.0, source)
    reused_b = ops.where(s.rows_first > 0.5, block_b, panel_b)
    again_b = resident_byte(ops, rates, reused_b * swell_l1, reused_b * swell_l2, crowded, scattered)
    reload = tiles * (panels - 1.0) * exposed(ops, rates, tile_a * again_a, one) + (tiles - 1.0) * exposed(
        ops, rates, bytes_b * again_b, across
    )

    lines = height * (p.spacing_a / rates.l1_span) * (1.0 - s.pack_a)
    missed = ops.where(lines > rates.l1_ways, height * p.k * rates.line_bytes * rates.l2_byte, 0.0)
    conflicts = tiles * panels * ops.most(missed - one, 0.0)

    traffic = (bytes_a + bytes_b + 2.0 * steps * bytes_c) * source
    task = ops.most(traffic, compute + exposed_a + exposed_b + reload + conflicts) + packing
    tasks = p.grid_m * p.grid_n
    waves = ops.ceil(tasks / p.active - EPSILON)
    start = rates.call + ops.where(tasks > 1.5, rates.thread_start, 0.0)
    accepted = p.plain * s.plain + p.transposed * s.transposed + p.prepacked * s.prepacked
    total = ops.where(accepted > 0.5, waves * task + start, NEVER)
    return Cost(total, compute, exposed_a, exposed_b, reload, conflicts, packing, traffic, start)
