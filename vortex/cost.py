"""Predicted seconds (paper Eq. 2-4, plus what a CPU adds), written once.

`ops` is the arithmetic: NumPy float32 arrays over strategies, or TVM expressions for the native selector; both see the
same operations in the same order. One task of L2 computes `rows` x `columns` of C over the whole depth k in a grid of
`tiles` x `panels` register tiles; cost(L0) of one is linear in k and measured, all above is computed here:

    T = compute + what Eq. 2 leaves exposed of each load, and of the traffic as a whole + T_load(CacheBuffer)
    cost(L2) = F_parallel * T + thread start + adding the parts of k up                         (Eq. 3, Eq. 4)

F_parallel counts the tasks of every product of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vortex.effects import (
    EPSILON,
    FLOAT,
    Arithmetic,
    MeasuredArithmetic,
    Value,
    exposed,
    latency,
    micro_kernel,
    past_caches,
    queued,
    reading,
    source_byte,
)
from vortex.families import HELD_STREWN, dot_products, held_rows, held_serves, part, streamed_rows, streamed_serves
from vortex.problem import Problem, Strategies
from vortex.rates import FETCHED_AHEAD, Rates


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
LONG_ROW = 512.0
"""Elements of a row of A from which its pieces are far enough apart for the whole wait."""
ROOM, MORE_ROOM = 0.42, 0.1
"""Shares of L2: up to the first a panel of B leaves room for the next one, so much above it for nothing of it."""
NEW_RUN = 512.0
"""Elements of a row of C after which hardware is ahead of the stores to it."""
LONG_LINE = 2048.0
"""Bytes of a row of B from which pieces of one column panel are lines apart that no prefetcher connects."""


def adding(ops: Arithmetic, rates: Rates, p: Problem) -> Value:
    """Seconds in which one thread adds the parts of a split reduction to C: each is read, and C is read and written."""
    further = (p.splits - 1.0) * (FLOAT * p.m * p.n)
    return further * (3.0 * source_byte(ops, rates, further, p.active))


def predict(ops: MeasuredArithmetic, rates: Rates, s: Strategies, p: Problem) -> Cost:
    """cost(L2) of every strategy for one call; NEVER for a strategy that does not take this kind of B."""
    turned = s.swap > 0.5
    k = ops.name("k", part(ops, p))
    m = ops.name("m", ops.where(turned, p.n, p.m))
    n = ops.name("n", ops.where(turned, p.m, p.n))
    transposed = ops.name("transposed", ops.where(turned, 1.0 - p.a_is_col, p.transposed))
    plain = ops.where(turned, p.a_is_col - p.prepacked, p.plain)
    prepacked = ops.where(turned, 0.0, p.prepacked)
    a_is_col = ops.name("a_is_col", ops.where(turned, 1.0 - p.transposed, p.a_is_col))
    spacing_a = ops.name("spacing_a", ops.where(turned, p.spacing_b, p.spacing_a))
    spacing_b = ops.name("spacing_b", ops.where(turned, p.spacing_a, p.spacing_b))
    rows = ops.name("rows", ops.ceil(m / p.grid_m - EPSILON))
    units = ops.ceil(n * s.per_width - EPSILON)
    columns = ops.name("columns", ops.least(n, ops.ceil(units / p.grid_n - EPSILON) * s.width))
    full = ops.name("full", ops.floor(columns * s.per_width + EPSILON))
    rest = ops.name("rest", ops.ceil((columns - full * s.width) * (s.vectors * s.per_width) - EPSILON))
    panels = full + ops.least(rest, 1.0)
    narrow = ops.most(s.registers / ops.most(rest, 1.0) - 1.0, s.registers / (rest + 1.0))
    tall = ops.least(ops.floor(narrow + EPSILON), rates.narrow_rows)
    tall = ops.where(full > 0.5, s.rows, ops.most(s.rows, tall))
    tiles = ops.name("tiles", ops.most(ops.ceil(rows / tall - EPSILON), 1.0))
    height = ops.name("height", rows / tiles)
    loose = ops.name("loose", (1.0 - prepacked) * (1.0 - s.pack_b))
    loose_a = ops.name("loose_a", a_is_col * (1.0 - s.pack_a))
    crowding = ops.where(spacing_b > rates.crowded_span - 0.5, loose, 0.0)
    crowds = ops.name("crowds", ops.most(crowding, ops.where(spacing_a > rates.crowded_span - 0.5, loose_a, 0.0)))
    tile_k = ops.where(crowds > 0.5, ops.least(s.tile_k, rates.crowded_rows), s.tile_k)
    depth = ops.name("depth", ops.least(k, tile_k))
    per_tile_k = ops.most(s.per_tile_k, crowds * rates.per_crowded_rows)
    steps = ops.name("steps", ops.most(ops.ceil(k * per_tile_k - EPSILON), 1.0))

    entered = ops.name("entered", steps * (rates.tile_enter + height * rates.tile_row))
    wide = ops.name("wide", micro_kernel(ops, rates, height, s.vectors, k, steps) + entered)
    narrow = ops.name("narrow", micro_kernel(ops, rates, height, rest, k, steps) + ops.where(rest > 0.5, entered, 0.0))
    # Rows of the only panel follow each other; beside others each is a page of its own.
    thin = ops.where(panels > 1.5, rates.lanes * s.per_width, 0.0)
    split = loose * k * ((full * s.vectors + rest) * rates.split + full * (thin * thin * rates.alone))
    across = ops.name("across", full * wide + narrow + split)
    compute = ops.name("compute", tiles * across)
    one = ops.name("one", ops.where(full > 0.5, wide, narrow))

    bytes_a, bytes_b, bytes_c = FLOAT * rows * k, rates.bytes_b * k * columns, FLOAT * rows * columns
    operands = FLOAT * (p.m * p.k * p.items_a + p.m * p.n * p.batch) + rates.bytes_b * (p.k * p.n * p.items_b)
    footprint = operands + p.others
    source = ops.name("source", source_byte(ops, rates, footprint, p.active))
    row_bytes = ops.name("row_bytes", FLOAT * s.width)
    run_bytes = ops.name("run_bytes", ops.where(s.rows_first > 0.5, FLOAT * ops.least(columns, s.tile_n), row_bytes))
    swell_l1 = 1.0 + loose * ops.most(spacing_b / run_bytes - 1.0, 0.0)
    copied = ops.where(transposed > 0.5, rates.transpose, rates.copy)
    far = 1.0 + (1.0 - transposed) * 2.0 * rates.ahead / (FLOAT * ops.least(columns, s.tile_n))
    blocks = ops.name("blocks", ops.most(ops.ceil(columns * s.per_tile_n - EPSILON), 1.0))
    filling = copied + FLOAT * (source * far + rates.l2_byte)
    wait = ops.name("wait", latency(ops, rates, footprint, p.active))
    visits = (1.0 - transposed) * (spacing_b / rates.l1_span) * k * blocks * wait * rates.visit
    staged = blocks * (steps * rates.stage_start + k * ops.where(transposed > 0.5, 0.0, rates.copy_row))
    packing = s.pack_b * (k * columns * filling + visits + staged) + s.pack_a * rows * k * blocks * (
        rates.copy + FLOAT * (source + rates.l2_byte)
    )

    block_a = FLOAT * depth * ops.least(rows, s.tile_m)
    torn = ops.name("torn", ops.where(ops.most(depth * spacing_a, block_a) <= rates.l2_bytes, 0.0, loose_a))
    piece = ops.name("piece", FLOAT * height + torn * ops.most(rates.line_bytes - FLOAT * height, 0.0))
    tile_a = ops.name("tile_a", piece * k)
    waiting = ops.name("waiting", wait / rates.window)
    used = ops.where(full > 0.5, s.vectors, rest)
    issued = ops.name("issued", ((height + 1.0) * (used + 1.0) + 5.0) * k * waiting)
    extra = ops.name("extra", ops.most(1.0 - rates.streams / height, 0.0))
    jumps_a = (1.0 - s.swap) * torn * (spacing_a / rates.l1_span)
    long_lines = ops.name("long_lines", ops.where(FLOAT * p.n > LONG_LINE - 0.5, 1.0, 0.0))
    far_lines = rates.turned_leap * s.swap * loose_a * long_lines * ops.least(piece / rates.line_bytes, 1.0)
    leaps = ops.where(depth * m > rates.l2_bytes, loose_a * rates.leap, 0.0)
    first_a = ops.name("first_a", ops.most(tile_a * source, (ops.most(jumps_a, leaps) + far_lines) * issued))
    # With a step of k as much of A is asked for as a row of B is wide: of taller tiles, not all of the short rows. Of
    # longer rows the beginnings.
    beginnings = ops.least(FETCHED_AHEAD / ops.most(p.k, 1.0), 1.0)
    unasked = ops.most(1.0 - s.width / height, 0.0) * beginnings
    unfollowed = ops.where(p.k <= FETCHED_AHEAD, 0.0, rates.unfollowed * extra)
    far_rows = (1.0 - a_is_col) * ops.most(unasked, unfollowed)
    stalls = ops.name("stalls", far_rows * issued)
    gaps = ops.where(steps > 1.5, rates.piece * ops.least(k * (1.0 / LONG_ROW), 1.0), 0.0)
    pieces = (1.0 - a_is_col) * blocks * rows * steps * wait * gaps
    # The short rows of C of a tile are asked for ahead all at once, and waited for by tasks that have a part of them.
    past = ops.name("past", (1.0 - s.swap) * past_caches(ops, rates, p.m * p.n * p.batch, p.n))
    short_c = ops.where(n <= FETCHED_AHEAD, (1.0 - s.swap) * (1.0 - past) * n, 0.0)
    burst = tiles * queued(ops, rates, FLOAT * height * short_c, source)
    exposed_a = (1.0 - s.pack_a) * blocks * tiles * (exposed(ops, first_a, one) + stalls) + pieces + burst
    bands = ops.name("bands", ops.most(ops.ceil(rows / s.tile_m - EPSILON), 1.0))
    panel_b = rates.bytes_b * depth * ops.least(columns, s.width)
    torn_b = ops.name("torn_b", loose * (long_lines * ((1.0 - s.swap) * panels)) * k * wait)
    # What was asked for ahead is gone where L2 has no room for it beside the panel that is read.
    overtaken = ops.where(panels > 1.5, loose * rates.overtaken, 0.0)
    filled = ops.most(panel_b * (1.0 / (MORE_ROOM * rates.l2_bytes)) - ROOM / MORE_ROOM, 0.0)
    gone = ops.name("gone", overtaken * ops.least(filled, 1.0))
    # The second band of rows of A finds B in the outermost cache, if there is room.
    outer = ops.name("outer", ops.least(source, ops.most(rates.l3_byte, rates.l3_byte_shared * p.active)))
    known = ops.where(bytes_b * p.active <= rates.l3_bytes, outer, source)
    stretch = bytes_b * (1.0 + rates.short_runs * loose + gone)
    first_b = ops.name("first_b", stretch * source + rates.row_piece * torn_b)
    next_b = stretch * known + rates.row_piece * torn_b
    # While the tiles of a panel are computed the next one arrives, if L2 has room for both.
    further = ops.where(2.0 * panel_b <= rates.l2_bytes, (1.0 - s.rows_first) * (tiles / bands - 1.0), 0.0)
    covered = ops.name("covered", across * (1.0 + rates.covered * further))
    arriving = exposed(ops, first_b, covered) + (bands - 1.0) * exposed(ops, next_b, covered)
    exposed_b = (1.0 - s.pack_b) * (arriving + bands * rates.row_start * torn_b)

    block_b = rates.bytes_b * depth * ops.least(columns, s.tile_n)
    reused_a = ops.where(s.rows_first > 0.5, depth * piece, block_a)
    again_a = reading(ops, rates, reused_a, reused_a, tile_a * rates.l2_byte, first_a)
    reused_b = ops.where(s.rows_first > 0.5, block_b, panel_b)
    # What L2 dropped is still in the outermost cache, if there is room.
    dropped_b = ops.where(reused_b * p.active <= rates.l3_bytes, bytes_b * outer, first_b)
    again_b = reading(ops, rates, reused_b * swell_l1, reused_b, bytes_b * rates.l2_byte, dropped_b)
    seen_b = ops.where(reused_b <= rates.l2_bytes, 0.0, rates.shared_stream * dropped_b)
    seen_a = ops.where(reused_a <= rates.l2_bytes, 0.0, stalls + rates.shared_stream * (tile_a * source))
    again = exposed(ops, again_a, one) + seen_a
    huddled = ops.where(columns <= FETCHED_AHEAD, (1.0 - s.swap) * rates.huddled, 0.0)
    written = ops.name("written", bytes_c * (2.0 - past + (1.0 - past) * huddled * extra))
    # C passes through L2 beside what the next row tile reads of B again.
    band_b = ops.most(exposed(ops, again_b + written * source / tiles, across), seen_b)
    reload = tiles * (panels - 1.0) * again + ops.most(tiles - bands, 0.0) * band_b

    drift_a = ops.where(turned, p.drift_b, p.drift_a)
    nearby = ops.least(height, rates.line_bytes / ops.most(drift_a, 1.0))
    lines = ops.most(height * (spacing_a / rates.l1_span), nearby) * (1.0 - a_is_col) * (1.0 - s.pack_a)
    missed = ops.where(lines > rates.l1_ways, height * k * rates.line_bytes * rates.l2_byte, 0.0)
    conflicts = tiles * panels * exposed(ops, missed, one)

    kept = source_byte(ops, rates, FLOAT * p.m * p.n * ops.least(p.batch, p.active), p.active)
    # Where its rows are written in pieces, hardware is not ahead of the stores to the first lines of each.
    whole_c = ops.where(s.rows_first > 0.5, s.tile_n, s.width)
    run_c = ops.least(ops.where(s.swap + s.held > 0.5, rates.lanes, whole_c), columns)
    late = ops.where(run_c + 0.5 <= n, ops.least(NEW_RUN / run_c, 1.0) * (rates.strewn / rates.line_bytes), 0.0)
    strewn = ops.name("strewn", (1.0 - past) * late * bytes_c * wait)
    traffic = (bytes_a * blocks + bytes_b * bands + written) * source + 2.0 * (steps - 1.0) * bytes_c * kept
    turning = s.swap * (
        rates.turn_start
        + rows * columns * ops.most(rates.transpose * ops.most(rates.lanes / rows, 1.0), FLOAT * rates.l2_byte)
    )
    partials = (steps - 1.0) * bytes_c * kept * rates.partial
    busy = ops.name("busy", compute + exposed_a + exposed_b + reload + conflicts + partials + strewn)
    task = busy + exposed(ops, traffic, busy) + packing + turning
    waves = ops.name("waves", ops.ceil(p.batch * p.grid_m * p.grid_n * p.splits / p.active - EPSILON))
    start = rates.call + ops.where(p.active > 1.5, rates.thread_start, 0.0)
    parts = ops.name("parts", adding(ops, rates, p))
    accepted = plain * s.plain + transposed * s.transposed * (1.0 - s.swap * p.prepacked) + prepacked * s.prepacked
    dot, possible = dot_products(ops, rates, p, footprint, source, waves)
    start = start + ops.where(s.dot > 0.5, 0.0, waves * rates.nest)
    stream = (bytes_a + bytes_b + 2.0 * bytes_c) * source
    # Rows of C that are one whole vector follow each other line by line.
    scattered = ops.where(ops.most(columns - rates.lanes, rates.lanes - columns) <= 0.5, 0.0, bytes_c)
    waits = rates.held_late * ((bytes_a + scattered) / rates.line_bytes * wait) + HELD_STREWN * strewn
    task = ops.where(s.held > 0.5, held_rows(ops, rates, s, rows, columns, panels, k, steps, stream, waits), task)
    task = ops.where(s.streamed > 0.5, streamed_rows(ops, rates, s, rows, columns, k, steps, stream), task)
    accepted = accepted * held_serves(ops, s, k, a_is_col) * streamed_serves(ops, s, k, a_is_col)
    outer = ops.where(accepted > 0.5, waves * task + start + parts, NEVER)
    total = ops.where(s.dot > 0.5, ops.where(possible > 0.5, dot + start + parts, NEVER), outer)
    packing = packing + turning
    return Cost(
        total, compute, exposed_a, exposed_b, reload, conflicts, partials, strewn, packing, traffic, start, parts
    )
