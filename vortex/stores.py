"""What a task of L2 does with its sums: where they go, what their lines wait for, and which pass the caches by."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.effects import (
    FLOAT,
    Arithmetic,
    Value,
    line_turns,
    past_caches,
    queued,
    source_byte,
    whole_lines,
)
from vortex.problem import Problem, Strategies
from vortex.rates import FETCHED_AHEAD, Rates
from vortex.tasks import Oriented, Supply, Task

NEW_RUN = 512.0
"""Elements of a row of C after which hardware is ahead of the stores to it."""
TO_AND_FRO = 2.5
"""How many times as long again lines that two cores write parts of take where rows of tiles go past several panels: one
core ends at them as the other begins there. Down panels they are met by one at its beginning, by the other at its end
(Zen 5, 60 to 250 ns a row, 14 to 27 ns in the median for 8 to 10)."""
TURN_ROWS, TURN_COLUMNS, TURN_DEPTH = 64.0, 256.0, 128.0
"""Rows in which lines begin anywhere are taken in turns where a task has as many, and as long ones, and sums are made
of no more steps of k: as `runtime/streams.h` has it. Not by a B in words, which would be packed for each turn (Zen 4,
bfloat16: 4001 x 4001 x 16 8.7 ms instead of 5.9)."""


@dataclass(frozen=True)
class Stored:
    """What C is to a task."""

    bytes: Value
    past: Value
    """1 where its lines go past the caches, else 0."""
    passed: Value
    """Bytes that it is read and written by, the first time it is stored to;"""
    again: Value
    """seconds from where it lives for each step of k after that,"""
    partials: Value
    """of which so many are seen."""
    strewn: Value
    """Seconds of waits for the first lines of pieces of its rows,"""
    burst: Value
    """for short rows that are asked for all at once,"""
    turning: Value
    """and in which a product is turned back."""
    turns: Value
    """Products that it is made as: one of the rows that begin at each place of a line, if these go past the caches;"""
    edges: Value
    """and seconds for what of them is before the first line and behind the last."""


SUMS_KEPT, SUMS_SEEN = 1.5, 1.0
"""Of what the CacheBuffer may take of L2, how much sums of a turned-over product are that k in several steps loses; and
latencies of the outermost cache that are seen then for each of their lines, in each step (Zen 2, 63 rows by a
transposed B, k of 1024 in two steps: by 2048 columns as expected, by 3000 to 4096 1.4 to 1.6 times as long)."""


def in_turns(ops: Arithmetic, rates: Rates, s: Strategies, p: Problem, o: Oriented, t: Task) -> Value:
    """1 where rows that are not whole lines go past the caches all the same, those together that begin at the same
    place of a line; else 0."""
    deepest = -1.0 if rates.in_words else TURN_DEPTH
    tiled = (1.0 - s.swap) * (1.0 - s.held) * (1.0 - s.streamed) * whole_lines(ops, rates, s.width)
    direct = tiled * (1.0 - o.a_is_col) * (1.0 - o.prepacked) * (1.0 - whole_lines(ops, rates, p.n))
    large = ops.where(FLOAT * p.m * p.n * p.batch <= rates.outer_bytes, 0.0, direct)
    long = ops.where(ops.least(t.rows - TURN_ROWS, t.columns - TURN_COLUMNS) > -0.5, large, 0.0)
    return ops.where(ops.most(o.k - deepest, t.steps - 1.0) <= 0.5, ops.where(p.splits > 1.5, 0.0, long), 0.0)


def edging(rates: Rates, o: Oriented, t: Task, supply: Supply) -> Value:
    """Seconds for the first and the last few columns of each row: tall tiles of a vector, each of whose lines is waited
    for, read and written."""
    tile = (rates.tile_start + rates.tile_enter) / rates.narrow_rows + rates.tile_vector + rates.tile_row
    lines = rates.strewn * supply.wait + 2.0 * rates.line_bytes * supply.byte
    return 2.0 * t.rows * (o.k * rates.multiply_add + tile + lines)


def contending(ops: Arithmetic, rates: Rates, s: Strategies, p: Problem, t: Task) -> Value:
    """Seconds for lines of C that two cores write: of each row one, where they share its columns and it is no whole
    lines. Whether a region of a call has the columns that others have not, or the rows, is not known."""
    turned, lines = s.swap > 0.5, whole_lines(ops, rates, p.n)
    others = ops.most(ops.where(turned, p.grid_m, p.grid_n) - 1.0, p.others)
    apart = lines * ops.where(turned, whole_lines(ops, rates, t.rows), 1.0)
    to_and_fro = 1.0 + TO_AND_FRO * s.rows_first * ops.where(t.panels > 1.5, 1.0, 0.0)
    seconds = (1.0 - apart) * ops.where(turned, t.columns, t.rows) * (rates.contended * to_and_fro)
    return ops.where(p.active > 1.5, ops.where(others > 0.5, seconds, 0.0), 0.0)


def storing(
    ops: Arithmetic,
    rates: Rates,
    s: Strategies,
    p: Problem,
    o: Oriented,
    t: Task,
    supply: Supply,
) -> Stored:
    """The store stage of L1."""
    size, back = rates.out_bytes * t.rows * t.columns, rates.written_back
    alternating = ops.name("alternating", in_turns(ops, rates, s, p, o, t))
    in_order = (1.0 - s.swap) * past_caches(ops, rates, p.m * p.n * p.batch, p.n)
    past = ops.name("past", ops.most(in_order, alternating))
    unfollowed = ops.name("unfollowed", ops.most(1.0 - rates.streams / t.height, 0.0))
    huddled = ops.where(t.columns <= FETCHED_AHEAD, (1.0 - s.swap) * rates.huddled, 0.0)
    passed = ops.name(
        "written",
        size * ((1.0 + back) - (1.0 + back - rates.written_past) * past + (1.0 - past) * huddled * unfollowed),
    )
    passing = source_byte(ops, rates, rates.out_bytes * p.m * p.n * ops.least(p.batch, p.active), p.active)
    kept = ops.name("kept_byte", passing + (rates.l2_byte - passing) * t.kept)
    # What stays in L2 is copied from there in the end.
    partials = (t.steps - 1.0 + t.kept) * size * kept * rates.partial
    # Of a product that is turned over, sums of all rows stay in the CacheBuffer from one step of k to the next.
    sums = FLOAT * t.rows * (ops.least(t.columns, s.tile_n) + rates.lanes)
    gone = ops.where(sums <= SUMS_KEPT * rates.l2_buffer, 0.0, ops.where(t.steps > 1.5, s.swap, 0.0))
    partials = partials + gone * t.steps * sums * (SUMS_SEEN / rates.line_bytes) * rates.l3_latency
    # Where its rows are written in pieces, hardware is not ahead of the stores to the first lines of each.
    whole = ops.where(s.rows_first > 0.5, s.tile_n, s.width)
    run = ops.least(ops.where(s.swap + s.held > 0.5, rates.lanes, whole), t.columns)
    late = ops.where(run + 0.5 <= o.n, ops.least(NEW_RUN / run, 1.0) * (rates.strewn / rates.line_bytes), 0.0)
    strewn = ops.name("strewn", (1.0 - past) * late * size * supply.wait)
    # The short rows of C of a tile are asked for ahead all at once, and waited for by tasks that have a part of them;
    # with AVX2 alone outermost row tiles ask for fewer lines than a core can wait for with each panel. With AVX-512
    # shares of a crowd are waited for all the same: without a burst tall tiles were chosen that took 1.1 times as long.
    at_once = 1.0 - s.rows_first if FLOAT * rates.lanes < rates.line_bytes else 1.0
    short = ops.where(o.n <= FETCHED_AHEAD, (1.0 - s.swap) * (1.0 - past) * at_once * o.n, 0.0)
    burst = t.tiles * queued(ops, rates, FLOAT * t.height * short, supply.byte)
    turning = s.swap * (
        rates.turn_start
        + t.rows * t.columns * ops.most(rates.turn * ops.most(rates.lanes / t.rows, 1.0), FLOAT * rates.l2_byte)
    )
    return Stored(
        size,
        past,
        passed,
        (1.0 + back) * (t.steps - 1.0) * size * kept,
        partials,
        strewn,
        burst,
        turning,
        1.0 + alternating * (line_turns(ops, rates, p.n) - 1.0),
        alternating * edging(rates, o, t, supply),
    )
