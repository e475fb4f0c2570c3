"""Predicted seconds (paper Eq. 2-4, plus what a CPU adds), written once.

`ops` is the arithmetic: NumPy float32 arrays over strategies, or TVM expressions for the native selector; both see the
same operations in the same order. One task of L2 is a grid of register tiles (`vortex/tasks.py`); cost(L0) of one is
linear in k and measured, all above is computed here, what operands cost to come in `vortex/loads.py` and what sums cost
to go in `vortex/stores.py`:

    T = compute + what Eq. 2 leaves exposed of each load, and of the traffic as a whole + T_load(CacheBuffer)
    cost(L2) = F_parallel * T + thread start + adding the parts of k up                         (Eq. 3, Eq. 4)

F_parallel counts the tasks of every product of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vortex.effects import (
    EPSILON,
    FLOAT,
    Arithmetic,
    MeasuredArithmetic,
    Value,
    exposed_stream,
    micro_kernel,
    page_waits,
    source_byte,
    straddling,
)
from vortex.families import (
    HELD_PAST,
    HELD_STREWN,
    dot_products,
    held_late,
    held_past,
    held_rows,
    held_serves,
    streamed_rows,
    streamed_serves,
)
from vortex.loads import conflicting, loading_a, loading_b, loads_b, packing, reloading
from vortex.problem import Problem, Strategies
from vortex.rates import LEAST_RUN, Rates
from vortex.stores import contending, storing
from vortex.tasks import Oriented, Task, oriented, supply_of, task_of


@dataclass(frozen=True)
class Cost:
    """Predicted seconds and the terms they are the sum or maximum of."""

    total: Value
    compute: Value
    exposed_a: Value
    exposed_b: Value
    reload: Value
    conflicts: Value
    partials: Value
    strewn: Value
    packing: Value
    traffic: Value
    start: Value
    parts: Value

    def terms(self) -> dict[str, Value]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


NEVER = 1e30


@dataclass(frozen=True)
class Computed:
    """Seconds of arithmetic, behind which loads hide."""

    one: Value
    """Of a register tile,"""
    across: Value
    """of one of as many rows in every panel,"""
    all: Value
    """and of all."""


def adding(ops: Arithmetic, rates: Rates, p: Problem) -> Value:
    """Seconds in which one thread adds the parts of a split reduction to C: each is read, and C is read and written."""
    further = (p.splits - 1.0) * (FLOAT * p.m * p.n)
    return further * (3.0 * source_byte(ops, rates, further, p.active))


def computing(ops: MeasuredArithmetic, rates: Rates, s: Strategies, o: Oriented, t: Task) -> Computed:
    """The micro-kernels of a task, and the loops around them."""
    between = rates.tile_enter + t.height * rates.tile_row
    if rates.tile_run < 1.0:
        alike = s.rows_first * t.full + (1.0 - s.rows_first) * t.tiles
        between = between * ops.where(alike > LEAST_RUN - 0.5, rates.tile_run, 1.0)
    entered = ops.name("entered", t.steps * between)
    wide = ops.name("wide", micro_kernel(ops, rates, t.height, s.vectors, o.k, t.steps) + entered)
    last = micro_kernel(ops, rates, t.height, t.rest, o.k, t.steps) + ops.where(t.rest > 0.5, entered, 0.0)
    narrow = ops.name("narrow", last)
    across_lines = rates.split * straddling(ops, rates, t.height, o.spacing_b)
    # Rows of the only panel follow each other; beside others each is a page of its own.
    step = ops.name("step", t.height * s.vectors * rates.multiply_add)
    waits = page_waits(ops, rates, s.width, s.per_width, o.spacing_b, o.n, t.tiles, step)
    apart = ops.where(t.panels > 1.5, waits, 0.0)
    split = t.loose * o.k * ((t.full * s.vectors + t.rest) * across_lines + t.full * apart)
    turn = s.rows_first * t.steps * rates.tile_turn
    across = ops.name("across", t.full * wide + narrow + split + turn)
    down = (1.0 - s.rows_first) * t.steps * t.bands * t.panels * rates.panel_turn
    compute = t.tiles * across + down
    if rates.panel_room:
        compute = compute - t.keeps * (t.tiles - t.bands) * split
    return Computed(ops.name("one", ops.where(t.full > 0.5, wide, narrow)), across, ops.name("compute", compute))


def accepted(ops: Arithmetic, s: Strategies, p: Problem, o: Oriented) -> Value:
    """1 where a strategy takes this kind of operands, else 0."""
    packed = o.transposed * s.transposed * (1.0 - s.swap * p.prepacked) + o.prepacked * s.prepacked
    kind = o.plain * s.plain + packed
    return kind * held_serves(ops, s, o) * streamed_serves(ops, s, o.m, o.k, o.a_is_col, o.prepacked)


def waves_of(ops: Arithmetic, p: Problem) -> Value:
    """F_parallel: tasks that a core has one after the other."""
    return ops.name("waves", ops.ceil(p.batch * p.grid_m * p.grid_n * p.splits / p.active - EPSILON))


def starting(ops: Arithmetic, rates: Rates, p: Problem) -> Value:
    """Seconds of an empty call."""
    return rates.call + ops.where(p.active > 1.5, rates.thread_start, 0.0)


def predict(ops: MeasuredArithmetic, rates: Rates, s: Strategies, p: Problem) -> Cost:
    """cost(L2) of every strategy for one call; NEVER for a strategy that does not take this kind of operands."""
    outer = predict_outer(ops, rates, s, p)
    return replace(
        outer,
        total=ops.where(s.dot > 0.5, predict_dot(ops, rates, p), outer.total),
        start=ops.where(s.dot > 0.5, starting(ops, rates, p), outer.start),
    )


def predict_dot(ops: Arithmetic, rates: Rates, p: Problem) -> Value:
    """cost(L2) of the dot family."""
    supply = supply_of(ops, rates, p)
    seconds, possible = dot_products(ops, rates, p, supply.footprint, supply.byte, waves_of(ops, p))
    total = seconds + starting(ops, rates, p) + ops.name("parts", adding(ops, rates, p))
    return ops.where(possible > 0.5, total, NEVER)


def predict_outer(ops: MeasuredArithmetic, rates: Rates, s: Strategies, p: Problem) -> Cost:
    """cost(L2) of strategies of all other families."""
    o = oriented(ops, s, p)
    t = task_of(ops, rates, s, p, o)
    supply = supply_of(ops, rates, p)
    computed = computing(ops, rates, s, o, t)
    a = loading_a(ops, rates, s, p, o, t, supply, computed.one)
    b = loading_b(ops, rates, s, p, o, t, supply, computed.across)
    c = storing(ops, rates, s, p, o, t, supply)
    copying = c.turns * packing(ops, rates, s, o, t, supply)
    exposed_a = a.exposed + c.burst
    reload = reloading(ops, rates, s, p, o, t, supply, a, b, computed.one, computed.across, c.passed)
    conflicts = conflicting(ops, rates, s, o, t, c.turns, computed.one)
    bytes_a = FLOAT * t.rows * o.k
    traffic = (bytes_a * t.blocks + c.passed) * supply.byte + b.hidden + c.again
    busy = ops.name("busy", computed.all + exposed_a + b.exposed + reload + conflicts + c.partials + c.strewn + c.edges)
    further = ops.most(traffic - a.streamed, 0.0) if rates.overlaps else traffic
    task, partials = busy + exposed_stream(ops, rates, further, busy) + copying + c.turning, c.partials
    if rates.finish:
        finishing = rates.finish * (t.rows * (t.full * s.vectors + t.rest))
        task, partials = task + finishing, partials + finishing

    waves = waves_of(ops, p)
    entered = rates.nest + (rates.row_nest - rates.nest) * (s.held + s.streamed)
    start = starting(ops, rates, p) + waves * entered
    parts = ops.name("parts", adding(ops, rates, p))
    past = ops.name("held_past", held_past(ops, rates, t, c.past))
    written = (1.0 + rates.written_back) - (1.0 + rates.written_back - HELD_PAST) * past
    moved = bytes_a + b.bytes + written * c.bytes
    stream = moved * supply.byte
    # Rows of C that are one whole vector follow each other line by line.
    scattered = ops.where(ops.most(t.columns - rates.lanes, rates.lanes - t.columns) <= 0.5, 0.0, c.bytes)
    held_copying = loads_b(ops, s, o) * (1.0 - o.prepacked) * copying
    late = (1.0 - past) * (held_late(ops, rates, t, bytes_a, scattered) / rates.line_bytes)
    waits = late * supply.wait + HELD_STREWN * c.strewn
    task = ops.where(s.held > 0.5, held_rows(ops, rates, s, t, o, stream, waits) + held_copying, task)
    streamed = streamed_rows(ops, rates, s, t, o, stream, moved * supply.own, supply.wait)
    task = ops.where(s.streamed > 0.5, streamed, task)
    contended = ops.name("contended", contending(ops, rates, s, p, t))
    return Cost(
        ops.where(accepted(ops, s, p, o) > 0.5, waves * (task + contended) + start + parts, NEVER),
        computed.all,
        exposed_a,
        b.exposed,
        reload,
        conflicts,
        partials,
        c.strewn + c.edges + contended,
        copying + c.turning,
        traffic,
        start,
        parts,
    )
