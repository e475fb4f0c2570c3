"""What a task of L2 waits for beside its arithmetic: operands that come, come again, are packed, or collide."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.effects import FLOAT, Arithmetic, Value, exposed, exposed_stream, reading
from vortex.problem import Problem, Strategies
from vortex.rates import FETCHED_AHEAD, Rates
from vortex.tasks import Oriented, Supply, Task, pieced

LONG_ROW = 512.0
"""Elements of a row of A from which its pieces are far enough apart for the whole wait."""
UNFORESEEN = 8.0
"""Lines at the beginning of a piece of a row of A that come from L2 before a prefetcher is ahead."""
ROW_AGAIN = 0.75
"""Of the time of a line from L2, what is seen where a further row tile begins such a row again: prefetchers follow no
pieces of rows (14 x 32 past all of B, 100 x 700 x 300 on a Granite Rapids: 1.17 times as long as by kept panels)."""
KEPT_ROW = 0.25
"""Of the time of a copy, what a micro-kernel takes to write what it has loaded anyway: a Granite Rapids 0.01 to 0.02 ns
for each element, the tiles 9 x 48, 14 x 32 and 6 x 64 on rows 3 and 4 KiB apart, where a copy takes 0.075."""
ROOM, MORE_ROOM = 0.42, 0.1
"""Shares of L2: up to the first a panel of B leaves room for the next one, so much above it for nothing of it."""
LONE_OVERTAKEN, NEARBY = 0.4, 0.5
"""Of what is gone so, how much a single row tile misses, by the part of B that is beyond this share of the outermost
cache. A Zen 5, 1 to 4 rows by 520 to 4000 columns, all of k at once over 64 to 1024 steps of it: 0.9 to 1.05 times as
long where B is of 1 to 12 MB, 1.1 to 1.4 times from 24 to 64 MB on."""
FORESEEN = 0.15
"""Of the time in which panels of a plain B come from memory, what is seen where a single row tile, which asks for all
of the next one, takes longer over the one before, on a core that starts one multiply-add a cycle (Zen 4: 8 x 9216 x
4096 6.1 ms by 9 x 48, memory alone 5.5, arithmetic 5.2; 8 x 4096 x 4096 3.1 by either and 3.8 by rows that stream).
Elsewhere it was not asked."""
SHORT_RUN = 120.0
"""Columns of a panel up to which its rows are as slow a stream as any; of wider ones less is lost. A Zen 5 reads 67 MB
at 25, 27, 30, 33, 36 and 40 GB/s in pieces of 64, 80, 96, 144, 288 and 448 columns, and row by row at 44."""
LOOSE_LINE = 0.0128
"""Latencies of the outermost cache in which a line of a plain B comes from beyond L2 at the soonest: every row of a
panel is a stream begun anew. A Zen 5, 1 and 2 rows by 1.4 to 16 MB: 10 to 13 ps a byte in pieces of 208 and 352
columns, 9 to 11 row by row, where the probe finds 6.4."""
FILLED = 0.7
"""Share of what a block of B may take of L2 from which on rows of A that pass push it out: 435 x 768 x 3072 takes a
tenth longer by blocks of all of that than by half of it (Zen 5)."""
LOOSE_FEED = 0.5
"""How much longer than a stream from L2 the rows of a plain B take that a further row tile reads, which are pages
apart: on a Zen 5 tiles of 4 and 3 rows of 80 columns (32 and 43 bytes a cycle) lose 11 and 18 %, those of 6 rows of 64
(21 bytes) nothing. By the races of a Granite Rapids, where pages are small, nothing."""
PASSAGES = 0.8
"""Times that a transposed block beyond L2, whose lines are written in two halves, passes between there and memory,
which the outermost cache may have no room for beside what other cores have there (Zen 2, a neighbour at work, B
transposed: 125 x 1024 x 4096 16.5 ms by such a block and 14.7 by what L2 keeps, 269 x 3072 x 768 17.4 and 15.6). Of one
that is copied nothing is seen (96 x 4096 x 4096 45.7 ms by 2 MB of it, by 256 KB 47.7 to 53.6)."""
AGAIN, STALLED_AGAIN = 0.5, 0.4
"""What is seen, of rows of A that come anew for every panel, of their stream and of their waits: 512 x 1500 x 2560
loses 1 to 3 % so by 14 x 32, 11 x 32 and 9 x 48 (Zen 5), and had been charged 10 to 20 %."""


@dataclass(frozen=True)
class LoadA:
    """The rows of A of a register tile."""

    exposed: Value
    """Seconds seen of all tiles' first loads,"""
    streamed: Value
    """of which so many are of their stream."""
    first: Value
    """Seconds of one tile's rows from where they live,"""
    stalls: Value
    """and of what waits for them behind no arithmetic,"""
    crammed: Value
    """part of which is lines that come one after the other, wherever from."""
    piece: Value
    """Bytes of one step of k,"""
    tile: Value
    """and of all."""


@dataclass(frozen=True)
class LoadB:
    """The panels of B."""

    exposed: Value
    """Seconds seen of their first loads, by each band of rows."""
    first: Value
    """Seconds of all panels from where they live,"""
    crammed: Value
    """and in which they come one line after the other, wherever from."""
    bytes: Value
    """Of all panels,"""
    panel: Value
    """and of one in a step of L1."""
    hidden: Value
    """Seconds of the stream of all bands beside which others wait: of what comes from memory, none that was seen."""


def block_b(ops: Arithmetic, rates: Rates, s: Strategies, t: Task) -> Value:
    """Bytes of B of a cache tile."""
    return rates.bytes_b * t.depth * ops.least(t.columns, s.tile_n)


def loads_b(ops: Arithmetic, s: Strategies, o: Oriented) -> Value:
    """1 where a B that is not packed passes a load stage: of the held family a transposed one does, if no other."""
    return ops.most(s.pack_b, s.held * o.transposed)


def packing(ops: Arithmetic, rates: Rates, s: Strategies, o: Oriented, t: Task, supply: Supply) -> Value:
    """T_load(CacheBuffer): seconds in which operands are copied or transposed into it."""
    copied = ops.where(o.transposed > 0.5, rates.transpose, rates.copy)
    far = 1.0 + (1.0 - o.transposed) * 2.0 * rates.ahead / (FLOAT * ops.least(t.columns, s.tile_n))
    filling = copied + FLOAT * (supply.byte * far + rates.l2_byte)
    if rates.refill:
        filling = filling * (1.0 + rates.refill * ops.least(block_b(ops, rates, s, t) * (1.0 / rates.l2_bytes), 1.0))
    if rates.blocks_beyond:
        filling = filling + t.away * o.transposed * (PASSAGES * FLOAT * rates.dram_byte)
    visits = (1.0 - o.transposed) * (o.spacing_b / rates.l1_span) * o.k * t.blocks * supply.wait * rates.visit
    staged = t.blocks * (t.steps * rates.stage_start + o.k * ops.where(o.transposed > 0.5, 0.0, rates.copy_row))
    # Blocks of C that stay while k is cut have A packed once, and all of B beforehand for several bands of rows.
    often_a = ops.where(t.kept > 0.5, 1.0, t.blocks)
    leaving = t.beforehand * (FLOAT * supply.byte)
    keeping = t.keeps * t.bands * o.k * (t.full * s.width) * (KEPT_ROW * rates.copy)
    return (
        keeping
        + loads_b(ops, s, o) * (o.k * t.columns * (filling + leaving) + visits + staged)
        + s.pack_a * t.rows * o.k * often_a * (rates.copy + FLOAT * (supply.byte + rates.l2_byte))
    )


def loading_a(
    ops: Arithmetic, rates: Rates, s: Strategies, p: Problem, o: Oriented, t: Task, supply: Supply, one: Value
) -> LoadA:
    """A as row tiles read it first, unless it is packed, behind the arithmetic of `one` tile."""
    torn = ops.name("torn", ops.where(ops.most(t.depth * o.spacing_a, block_a(t)) <= rates.l2_bytes, 0.0, t.loose_a))
    piece = ops.name("piece", FLOAT * t.height + torn * ops.most(rates.line_bytes - FLOAT * t.height, 0.0))
    tile = ops.name("tile_a", piece * o.k)
    waiting = ops.name("waiting", supply.wait / rates.window)
    used = ops.where(t.full > 0.5, s.vectors, t.rest)
    issued = ops.name("issued", ((t.height + 1.0) * (used + 1.0) + 5.0) * o.k * waiting)
    jumps = (1.0 - s.swap) * torn * (o.spacing_a / rates.l1_span)
    far_lines = rates.turned_leap * s.swap * t.loose_a * o.long_lines * ops.least(piece / rates.line_bytes, 1.0)
    leaps = ops.where(t.depth * o.m > rates.l2_bytes, t.loose_a * rates.leap, 0.0)
    first = ops.name("first_a", ops.most(tile * supply.byte, (ops.most(jumps, leaps) + far_lines) * issued))
    # With a step of k as much of A is asked for as a row of B is wide: of taller tiles, not all of the short rows. Of
    # longer rows the beginnings. What is near enough hardware brings in time.
    beginnings = ops.least(FETCHED_AHEAD / ops.most(p.k, 1.0), 1.0)
    late = ops.most(supply.wait - rates.in_time, 0.0) / ops.most(supply.wait, 1e-12)
    unasked = rates.unasked * (ops.most(1.0 - s.width / t.height, 0.0) * beginnings * late)
    stalls = ops.name("stalls", (1.0 - o.a_is_col) * unasked * issued)
    gap: Value = rates.piece * t.steps * supply.wait
    if rates.lone_pieces:
        gap = ops.where(t.panels > 1.5, gap, rates.lone_pieces * late * (FLOAT * supply.own) * o.k)
    pieced = ops.where(t.steps > 1.5, (1.0 - o.a_is_col) * ops.least(o.k * (1.0 / LONG_ROW), 1.0), 0.0)
    pieces = pieced * t.blocks * t.rows * gap
    lines = o.k * (FLOAT / rates.line_bytes * (t.height - 1.0) + 1.0)
    one_by_one = crammed(ops, rates, t.loose_a, o.spacing_a, lines)
    stalls = stalls + one_by_one
    if rates.page_line:  # Each step of k is on another page, which no prefetcher crosses into.
        stalls = stalls + rates.page_line * t.loose_a * o.long_lines * (piece / rates.line_bytes) * o.k * supply.wait
    behind = (1.0 - s.pack_a) * t.blocks * t.tiles
    streamed = ops.name("streamed_a", behind * exposed_stream(ops, rates, first, one))
    seen = streamed + behind * stalls + pieces
    return LoadA(seen, streamed, first, stalls, one_by_one, piece, tile)


def block_a(t: Task) -> Value:
    """Bytes of A that pass for each panel."""
    return FLOAT * t.depth * t.band


def crammed(ops: Arithmetic, rates: Rates, loose: Value, spacing: Value, lines: Value) -> Value:
    """Seconds in which lines of an operand that is read as it lies, a row a step of k, come into L1 where all rows
    start in one set of it: one after the other, so that little is multiplied meanwhile."""
    if not rates.crammed_line:
        return 0.0
    return ops.where(spacing > rates.l1_span - 0.5, loose * rates.crammed_line, 0.0) * lines


def loading_b(
    ops: Arithmetic, rates: Rates, s: Strategies, p: Problem, o: Oriented, t: Task, supply: Supply, across: Value
) -> LoadB:
    """B as each band of rows has it come, unless it is packed, behind the arithmetic of a tile in every panel."""
    size = rates.bytes_b * o.k * t.columns
    panel = rates.bytes_b * t.depth * ops.least(t.columns, s.width)
    torn = ops.name("torn_b", t.loose * (o.long_lines * ((1.0 - s.swap) * t.panels)) * o.k * supply.wait)
    # What was asked for ahead is gone where L2 has no room for it beside the panel that is read.
    far = ops.most(1.0 - NEARBY * rates.l3_bytes / ops.most(size * p.active, 1.0), 0.0)
    missed = ops.where(t.tiles > 1.5, rates.overtaken, rates.overtaken * LONE_OVERTAKEN * far)
    overtaken = ops.where(t.panels > 1.5, t.loose * missed, 0.0)
    filled = ops.most(panel * (1.0 / (MORE_ROOM * rates.l2_bytes)) - ROOM / MORE_ROOM, 0.0)
    gone = ops.name("gone", overtaken * ops.least(filled, 1.0))
    # The second band of rows of A finds B in the outermost cache, if there is room.
    known = ops.where(size * p.active <= rates.l3_bytes, supply.outer, supply.byte)
    per_panel = ops.name("per_panel", 1.0 / ops.least(t.columns, s.width))
    runs = rates.short_runs * ops.least(SHORT_RUN * per_panel, 1.0)
    stretch = size * (1.0 + runs * t.loose + gone)
    soonest = t.loose * (LOOSE_LINE / rates.line_bytes) * ops.least(supply.wait, rates.l3_latency)
    if rates.loose_line:  # A piece that begins within a line ends within one more.
        parted = ops.most(rates.line_bytes - o.spacing_b, 0.0) * (per_panel * (1.0 / FLOAT))
        pieces = ops.where(t.panels > 1.5, t.loose * (1.0 + parted), 0.0)
        from_l2 = ops.where(supply.footprint > rates.l1_bytes, rates.loose_line / rates.line_bytes, 0.0)
        soonest = ops.most(soonest, pieces * from_l2)
    alone = stretch * supply.own + rates.row_piece * torn
    remote = ops.name("remote", ops.most(1.0 - rates.l3_bytes / ops.most(size * p.active, 1.0), 0.0))
    first = ops.most(ops.most(alone, size * supply.byte), size * soonest)
    if rates.pieced_stream:
        first = first * (1.0 + rates.pieced_stream * pieced(ops, o, t) * remote)
    first = ops.name("first_b", first)
    second = stretch * known + rates.row_piece * torn
    # While the tiles of a panel are computed the next one arrives, if L2 has room for it.
    further = ops.where(
        rates.panels_kept * panel <= rates.l2_bytes, (1.0 - s.rows_first) * (t.tiles / t.bands - 1.0), 0.0
    )
    covered = ops.name("covered", across * (1.0 + rates.covered * further))
    arriving, foreseen = exposed(ops, first, covered), 0.0
    if rates.roomy:
        in_time = ops.least(covered / ops.most(first, 1e-12), 1.0)
        foreseen = ops.name("foreseen", ops.where(t.tiles > 1.5, 0.0, t.loose * remote * in_time))
        sharp = ops.least(arriving, ops.most(first - covered, FORESEEN * first))
        arriving = arriving + foreseen * (sharp - arriving)
    arriving = arriving + (t.bands - 1.0) * exposed(ops, second, covered)
    seen = (1.0 - s.pack_b * (1.0 - t.beforehand)) * (arriving + t.bands * rates.row_start * torn)
    if rates.blocks_beyond:
        seen = seen + t.away * t.bands * exposed(ops, size * supply.outer, covered)
    if rates.row_begin:
        beginnings = ops.where(ops.least(t.panels, t.tiles) > 1.5, t.loose * (1.0 - s.swap) * t.panels, 0.0) * o.k
        line = rates.line_bytes * rates.l2_byte
        again = ops.most(t.tiles - t.bands, 0.0) * (1.0 - t.keeps) * (ROW_AGAIN * line)
        seen = seen + beginnings * (t.bands * (rates.row_begin * supply.wait) + again)
    one_by_one = crammed(ops, rates, t.loose, o.spacing_b, size * (1.0 / rates.line_bytes))
    seen = seen + t.bands * one_by_one
    # What a roomy core foresees is told already.
    waited = 0.0 if rates.roomy else remote * seen
    hidden = ops.name("hidden_b", ops.most(size * (1.0 - foreseen) * t.bands * supply.byte - waited, 0.0))
    return LoadB(seen, first, one_by_one, size, panel, hidden)


def unforeseen(ops: Arithmetic, rates: Rates, s: Strategies, o: Oriented, t: Task) -> Value:
    """Seconds seen of the rows of A of a tile that come from L2 again, in each step of L1: all lines, or the first."""
    line, lines = rates.line_bytes * rates.l2_byte, t.depth * (FLOAT / rates.line_bytes)
    if rates.line_again:
        line = rates.line_again * line
    else:
        lines = ops.least(lines, UNFORESEEN)
    return (1.0 - o.a_is_col) * (1.0 - s.pack_a) * (lines * t.height * t.steps) * line


def reloading(
    ops: Arithmetic,
    rates: Rates,
    s: Strategies,
    p: Problem,
    o: Oriented,
    t: Task,
    supply: Supply,
    a: LoadA,
    b: LoadB,
    one: Value,
    across: Value,
    written: Value,
) -> Value:
    """A again for every panel after the first, B for every tile after a band's first; `written` bytes of C pass too."""
    run = ops.name("run_bytes", ops.where(s.rows_first > 0.5, FLOAT * ops.least(t.columns, s.tile_n), FLOAT * s.width))
    again = t.loose * (1.0 - t.keeps)
    swell_l1 = 1.0 + again * ops.most(o.spacing_b / run - 1.0, 0.0)
    reused_a = ops.where(s.rows_first > 0.5, t.depth * a.piece, block_a(t))
    between = s.rows_first * b.panel if rates.line_again else 0.0
    # What L2 dropped is still in the outermost cache, if there is room.
    in_outer = reused_a * p.active <= rates.l3_bytes
    dropped_a = ops.where(in_outer, ops.least(a.tile * supply.outer, a.first), a.first)
    again_a = reading(ops, rates, reused_a + between, reused_a, a.tile * rates.l2_byte, dropped_a)
    block = block_b(ops, rates, s, t)
    reused_b = ops.where(s.rows_first > 0.5, block, b.panel)
    dropped = ops.where(reused_b * p.active <= rates.l3_bytes, b.bytes * supply.outer, b.first)
    loose_feed = 1.0 if rates.reach else 1.0 + LOOSE_FEED * ops.where(t.panels > 1.5, t.loose, 0.0)
    again_b = reading(ops, rates, reused_b * swell_l1, reused_b, b.bytes * (loose_feed * rates.l2_byte), dropped)
    filled = ops.most(reused_b * (1.0 / ((1.0 - FILLED) * rates.l2_bytes)) - FILLED / (1.0 - FILLED), 0.0)
    outside = ops.where(s.rows_first > 0.5, ops.least(filled, 1.0), ops.where(reused_b <= rates.l2_bytes, 0.0, 1.0))
    seen_b = outside * (rates.shared_stream * dropped)
    anew = STALLED_AGAIN * a.stalls + (AGAIN * rates.shared_stream) * ops.least(a.tile * supply.byte, dropped_a)
    # A packed block of B stays in L2 all the while, unless it lies beyond.
    staying = s.pack_b * (1.0 - s.rows_first) * (1.0 - t.beforehand) * (1.0 - t.away)
    beside = reused_a + staying * block
    seen_a = ops.where(beside <= rates.l2_bytes, 0.0, anew)
    if rates.room:  # Tiles read both at a time, faster than L2 gives them.
        both = again_a + (again_b + written * supply.byte / t.tiles) / t.panels
        return t.tiles * (t.panels * exposed(ops, both, one) + (t.panels - 1.0) * seen_a + seen_b)
    # C passes through L2 beside what the next row tile reads of B again.
    passing = ops.most(exposed(ops, again_b + written * supply.byte / t.tiles, across), seen_b)
    seen_a = seen_a + ops.where(again_a > 0.0, unforeseen(ops, rates, s, o, t), 0.0)
    if rates.crammed_line:
        passing = passing + ops.where(again_b > 0.0, b.crammed * (1.0 - t.keeps), 0.0)
        seen_a = ops.where(again_a > 0.0, ops.most(seen_a, a.crammed), seen_a)
    further = t.tiles * (t.panels - t.blocks)  # the first panel of a block of columns is counted where A comes
    return further * (exposed(ops, again_a, one) + seen_a) + ops.most(t.tiles - t.bands, 0.0) * passing


REPLACED = 3.0
"""Lines that come anew for each that a set of L1 has no room for, which gives up others that are needed too. On a
Zen 4 a tile of one vector and 30, 24, 20, 16 or 12 rows that all fall into one set takes 150, 90, 60, 34 or 16 cycles
for a step of k, and one of 9 or fewer no more than elsewhere. On a Zen 5, of 12 ways, tiles of 14 and 13 rows lose 6
and 3 % where rows of A are 4 KiB apart, and those of 11 nothing."""


def conflicting(ops: Arithmetic, rates: Rates, s: Strategies, o: Oriented, t: Task, turns: Value, one: Value) -> Value:
    """Rows of A that start in few sets of L1 and push each other out, behind the arithmetic of `one` tile.

    They are those of a product that is made in so many `turns`: every so many-th.
    """
    spacing = ops.least(o.spacing_a * turns, rates.l1_span)
    nearby = ops.least(t.height, rates.line_bytes / ops.most(o.drift_a * turns, 1.0))
    without_room = ops.most(t.height - rates.l1_ways * (rates.l1_span / spacing), nearby - rates.l1_ways)
    lines = ops.most(without_room, 0.0) * (1.0 - o.a_is_col) * (1.0 - s.pack_a)
    missed = lines * o.k * (REPLACED * rates.line_bytes * rates.l2_byte)
    return t.tiles * t.panels * (exposed(ops, missed, one) + rates.collided * missed)
