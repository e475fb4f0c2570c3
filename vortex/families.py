"""What the families beside the outer products cost: dot products along k, and products with B held in registers."""

from __future__ import annotations

from vortex.effects import EPSILON, FLOAT, Arithmetic, Value, exposed, gathered, latency, reading
from vortex.problem import Problem, Strategies
from vortex.rates import FETCHED_AHEAD, Rates
from vortex.tasks import Oriented, Task, part, pieced

PAGE = 4096.0
"""Bytes past whose end no prefetcher follows a row."""
PAGED, PAGED_AGAIN = 7.0, 2.75
"""Rows of a tile, beyond the first, that halve the waits at the ends of their pages. A Zen 5, 160 MB and a k of 2050,
latencies a page: 8 rows 0.03 and 0.08, 6 0.14, 5 and 4 0.27, 3 0.2, 2 0.17 and 0.15. Where further tiles of
columns read the rows again a page costs as much as so many alone, shared out among the rows of a tile (16 x 4096 x 4096
by a transposed B 4.7 to 5.2 ms)."""
DOT_SHARE = 0.9
"""Of L1, what a tile of columns of the dot family takes of it: the rest is for the rows that pass."""
DOT_PASSES = 16.0
"""Rows for each column from which on columns that lie badly in L1 are laid anew."""
DOT_PIECED, DOT_PIECED_MOST = 3.0, 8.0
"""Columns of a single tile from which on, and up to which, k is taken a page at a time, so that L1 keeps what all rows
need of them;"""
DOT_SCATTERED_PIECED = 7.0
"""from so many on where pages are small: fewer come from L2 as quickly as the rows from anywhere, and each row is one
long stream (an Emerald Rapids, one core, GB/s of a B of 200 MB by 3, 4, 5, 6, 7 and 8 rows: 17.4, 17.2, 16.5, 16.1,
14.3 and 15.3 a page at a time, 21.6, 20.9, 19.7, 19.0, 15.2 and 12.9 else; of 9 to 16 MB by 3, 4 and 6 23.2, 22.9 and
22.3, 26.7, 24.8 and 21.2);"""
DOT_VERY_LONG, DOT_VERY_LONG_MOST, DOT_REGISTERS = 65536.0, 4.0, 32.0
"""Steps of k from which on, and columns up to which, that is so for more than two too where pages are large, registers
many and multiply-adds two a cycle: as many streams as there are registers for bring more than two with columns from L1
(Zen 5, 512 rows by a k of 500000, 3 and 4 columns on a core 36.6 to 34.2 and 36.2 to 35.0 ms, on two 19.0 to 17.5 and
18.7 to 17.3, in another minute 4 columns 36.7 to 33.9 and 26.6 to 23.7).
Shorter rows gain so from memory, on two cores, and lose from L3 (6567x4x3860 2.2 to 1.9 ms, 1000x4x5000 on one core
0.26 to 0.31, 40000x3x1100 4.3 to 5.8), and how k is cut may not depend on how many there are;"""
DOT_KEPT = 3.0
"""of fewer, one part of so many of L2 stays there (Emerald Rapids, a k of 500000: 512 rows by a column 72 and 60 ms, by
two 93 and 55, the second what memory gives)."""
TURNING = 0.75
"""Of transposing square blocks, what is left where only a few of their rows are stored."""
HELD_STEPS = 4.0
"""Steps of k that the held family takes at most: with each it goes over C again, and down B a line at a time."""
STREAMED_LOADS = 1.25
"""Multiply-adds in whose time the streamed family loads a vector of B,"""
STREAMED_SUMS = 3.0
"""and one of C and stores it."""
PANEL_LINE = 16
"""Columns of a packed panel whose rows are cache lines."""
PANELS = {1: 4, 2: 3, 3: 2}
"""Panels of a line of a packed B that stream past so many rows of C at once: chains of multiply-adds that keep a core
busy. More rows have enough of them with a single panel."""
DOT_AGAIN = 0.07
"""Share of its arithmetic that the dot family takes longer for each further pass over the long side."""
DOT_BESIDE = 0.03
"""Share of the latency that the dot family sees at each row of a C whose other columns another family makes: on a Zen 5
5 to 10 ns where C comes from memory, 2 from the outermost cache (200000 x 52 x 4 3.6 ms so, 1.2 by tiles alone)."""
DOT_FAR = 0.5
"""Of the time that memory takes over the outermost cache, what is seen of the long side where several tiles of columns
read it: no rows of it are streams then (Zen 5: 24 x 4096 x 4096 by a transposed B 6.1 ms, which was expected to take
4.9; by packed panels 5.1)."""
DOT_PAGED = 0.2
"""The same where k is taken a page at a time (Zen 5, 101 MB of 6567 rows and 1 GB of 512 by 3 to 6 columns: 0.05 to 0.3
of it on a core and on two);"""
DOT_TORN, DOT_MANY, DOT_LONG = 0.7, 6.0, 0.5 * PAGE
"""The same where rows of the long side begin within lines, are longer than so many bytes, and the short side has more
columns than that: arithmetic and memory do not overlap (Zen 5, 160 MB: 7, 8 and 10 columns by a k of 602 0.75 to 0.9,
of 608, whose rows are lines, 0.3 to 0.5, 6 columns 0.3; 200 MB: 7 and 10 columns by 74 to 350 come at 24 to 42 GB/s as
those by 96 and 128 do, by 602 and 1323 at 24 to 28)."""
HELD_STREWN = 1.2
"""Of what others wait for pieces of C's rows, the part that the held family does: it stores in no bursts."""
HELD_PAST = 0.5
"""What it takes to write whole lines past the caches, over what as many take to come; then no line of A is waited for
(a core of a Zen 5, 1888584 x 16 x 16 2.6 ns a row, all of it arithmetic)."""
HELD_SHORT = 3.0
"""Vectors of rows of C so short that all are one stream."""
HELD_CROWDED = 10.0
"""Steps of k up to which the held family waits in full for whole lines of a C whose rows are 2 or 4 KiB apart; with
more it stores less often. A Zen 5, ns a vector of sums over those of rows 64 bytes further apart: 4 KiB and 10 steps
2.1, 3.7, 5.4 and 6.1 for 32, 64, 128 and 512 rows, 20 steps 0.2 and for 512 rows 1.6; 2 KiB and 10 steps 0.2 for 128
rows and 3.0 for 512."""
HELD_NARROWEST = 4.0
"""Columns of its narrowest kernel."""
HELD_BEGIN = 30.0
"""Instructions of the held family around those of a row's multiply-adds."""


def straddled(ops: Arithmetic, rates: Rates, spacing: Value) -> Value:
    """Multiply-adds in whose time a vector is loaded once more: across two lines, where rows begin within one."""
    return ops.where(spacing > rates.line_bytes - 0.5, 0.0, rates.straddled)


def dot_pieced(rates: Rates) -> float:
    """Columns from which on k is taken a page at a time; elements in words have no kernels for streams."""
    return DOT_SCATTERED_PIECED if rates.reach and not rates.in_words else DOT_PIECED


def dot_very_long(rates: Rates) -> float:
    """Steps of k from which on it is not taken a page at a time, for as few columns; none where there are 0."""
    many = rates.registers >= DOT_REGISTERS and not rates.roomy
    return 0.0 if rates.reach or rates.in_words or not many else DOT_VERY_LONG


def dot_products(
    ops: Arithmetic, rates: Rates, p: Problem, footprint: Value, source: Value, waves: Value
) -> tuple[Value, Value]:
    """Seconds of all tasks of the dot family, and 1 where it can serve: k contiguous in A, and a short side."""
    turned, k = p.transposed > 0.5, ops.name("dot_part", part(ops, p))
    short = ops.name("dot_short", ops.where(turned, ops.least(p.m, p.n), p.n))
    long_side = ops.where(turned, ops.most(p.m, p.n), p.m)
    abreast = ops.name("abreast", ops.most(ops.ceil(short / rates.dot_columns - EPSILON), 1.0))
    columns = ops.name("dot_columns", ops.ceil(short / abreast - EPSILON))
    most_rows = ops.least(ops.floor((rates.registers - columns) / (columns + 1.0) + EPSILON), rates.dot_rows)
    longest = ops.where(turned, rates.registers, rates.dot_turned)
    possible = ops.where(short <= longest, (1.0 - p.a_is_col) * (1.0 - p.prepacked), 0.0)
    share = ops.name("share", ops.ceil(long_side / (p.grid_m * p.grid_n) - EPSILON))
    bands = ops.name("dot_bands", ops.most(ops.ceil(share / most_rows - EPSILON), 1.0))
    rows, tiles = ops.name("dot_rows", share / bands), bands * abreast
    over_b = ops.where(turned, ops.where(p.n > p.m, 1.0, 0.0), 0.0)
    kept = FLOAT * columns * k
    unpieced = ops.most(most_rows, dot_pieced(rates) - 0.5) if rates.reach else most_rows
    if rates.dot_columns < dot_pieced(rates):
        unpieced = ops.where(abreast > 1.5, most_rows, unpieced)
    pieced = ops.where(columns > unpieced, 1.0, 0.0)
    pieces = ops.most(pieced * ops.ceil(kept / (DOT_SHARE * rates.l1_bytes) - EPSILON), 1.0)
    rows_apart = ops.where(over_b > 0.5, p.spacing_b, p.spacing_a)
    own = ops.where(over_b > 0.5, p.spacing_a, ops.where(turned, p.spacing_b, rates.line_bytes))
    columns_apart = ops.where(pieced * long_side > DOT_PASSES * short - 0.5, rates.line_bytes, own)
    # Some tiles of columns are narrower by one.
    wide = ops.name("dot_wide", short / abreast)
    loads = wide * (rates.dot_load + straddled(ops, rates, columns_apart)) + rows * (
        rates.dot_stream + straddled(ops, rates, rows_apart)
    )
    issues = ops.most(rows * wide, ops.most(loads, rates.latency_issues * (wide / columns)))
    body = issues * rates.multiply_add
    fold = rows * wide * rates.fold
    steps = ops.ceil(k / rates.lanes - EPSILON) * body
    compute = ops.name("dot_compute", tiles * (steps + pieces * (fold + rates.dot_enter)))
    # What streams past few columns takes half of L1, and stays in L2 for the tiles of columns after the first.
    page = ops.where(columns > DOT_PIECED_MOST + 0.5, kept, PAGE * columns)
    paged = ops.where(columns > dot_pieced(rates) - 0.5, 1.0, 0.0)
    if very_long := dot_very_long(rates):
        paged = ops.where(columns <= DOT_VERY_LONG_MOST + 0.5, ops.where(p.k > very_long - 0.5, 0.0, paged), paged)
    piece = ops.where(paged > 0.5, page, (1.0 / DOT_KEPT) * rates.l2_bytes)
    staying = ops.name("dot_staying", ops.where(abreast > 1.5, kept, ops.least(kept, piece)))
    in_l1 = ops.where(pieced > 0.5, kept / pieces, ops.where(kept > staying, staying, 2.0 * kept))
    again = tiles * reading(ops, rates, in_l1, staying, kept * rates.l2_byte, kept * source)
    passing = FLOAT * share * k
    load = ops.name("dot_load", passing * (source + (abreast - 1.0) * rates.l2_byte) + rates.dot_reloaded * again)
    side = ops.where(short + short <= rates.lanes, 0.5 * rates.lanes, rates.lanes)
    turning = ops.where(turned, 0.0, k * (TURNING * rates.transpose * side + short * (FLOAT * source)))
    each = ops.where(abreast > 1.5, PAGED_AGAIN / ops.most(rows, 1.0), PAGED / (rows + (PAGED - 1.0)))
    pages = (FLOAT / PAGE) * share * ops.where(k * FLOAT <= PAGE, 0.0, k) * each
    late = ops.name("dot_late", latency(ops, rates, footprint, p.active))
    # Of a region the few columns beside others are lines of their own.
    beside_others = ops.where(p.others > 0.5, ops.where(p.n + 0.5 <= p.m, DOT_BESIDE * share, 0.0), 0.0)
    waits = (pages * rates.page + beside_others) * late
    beyond = ops.most(source - ops.most(rates.l3_byte, rates.l3_byte_shared * p.active), 0.0)
    far = passing * beyond
    torn = ops.where(rows_apart > rates.line_bytes - 0.5, 0.0, ops.where(FLOAT * k > DOT_LONG, columns - DOT_MANY, 0.0))
    late_rows = ops.most(waits, ops.where(torn > 0.5, DOT_TORN * far, 0.0))
    in_pages = ops.where(columns <= DOT_PIECED_MOST + 0.5, ops.where(kept > page, paged, 0.0), 0.0)
    late_rows = late_rows + in_pages * (DOT_PAGED * far)
    late_rows = ops.where(abreast > 1.5, waits + DOT_FAR * far, late_rows)
    seen = exposed(ops, load, compute)
    if rates.dot_seen:
        seen = ops.most(seen, ops.where(abreast > 1.5, rates.dot_seen, 0.0) * load)
    once = compute * (1.0 + DOT_AGAIN * (abreast - 1.0)) + late_rows + seen
    return waves * (once + ops.where(short > 1.5, turning, 0.0)), possible


def beside(ops: Arithmetic, rates: Rates, moved: Value, arithmetic: Value) -> Value:
    """What is seen of loads and stores beside multiply-adds: all of them, unless those leave room."""
    return exposed(ops, moved, arithmetic) if rates.roomy else moved


def recurring(ops: Arithmetic, rates: Rates, t: Task, o: Oriented) -> Value:
    """Seconds that the held family waits for lines of C where its rows begin in few sets of L1: for those it was at
    before, and where half of the rows or all do, for whole ones too, which drive each other out."""
    share = gathered(ops, rates, o.n)
    lines = t.columns * (FLOAT / rates.line_bytes)
    visits = t.rows * (t.panels * t.steps - lines)
    beyond = ops.most(1.0 - rates.l1_ways / ops.most(t.rows * share, 1.0), 0.0)
    apart = ops.least(HELD_CROWDED * HELD_CROWDED / (o.k * o.k), 1.0)
    crowded = ops.where(share > 0.4, (1.0 - rates.roomy) * beyond * apart * t.rows * lines, 0.0)
    return ops.where(
        t.rows * share <= rates.l1_ways, 0.0, share * rates.held_recurring * ops.most(ops.most(visits, 0.0), crowded)
    )


def torn(ops: Arithmetic, rates: Rates, t: Task, o: Oriented) -> Value:
    """Seconds that further steps of k wait for sums whose vectors reach into the next rows, just stored under a mask:
    of rows shorter than the vector that a kernel has for them, a whole one, a half or a quarter."""
    quarter = ops.most(0.25 * rates.lanes, HELD_NARROWEST)
    whole = o.n + o.n > rates.lanes
    width = ops.where(whole, rates.lanes, ops.where(o.n > quarter, 0.5 * rates.lanes, quarter))
    each = ops.where(whole, rates.held_torn, rates.held_torn_narrow)
    return ops.where(o.n < width, each, 0.0) * (t.steps - 1.0) * t.rows


def one_stream(ops: Arithmetic, rates: Rates, t: Task) -> Value:
    """1 where all rows of C are one stream."""
    return ops.where(t.columns <= HELD_SHORT * rates.lanes + 0.5, 1.0, 0.0)


def held_late(ops: Arithmetic, rates: Rates, t: Task, bytes_a: Value, scattered: Value) -> Value:
    """Bytes of A, and of a C whose vectors do not follow each other, whose whole latency the held family sees."""
    late = ops.where(one_stream(ops, rates, t) > 0.5, rates.held_ragged, rates.held_scattered)
    return rates.held_pieced * (t.steps - 1.0) * bytes_a + late * scattered


def held_rows(ops: Arithmetic, rates: Rates, s: Strategies, t: Task, o: Oriented, stream: Value, waits: Value) -> Value:
    """Seconds of one task of the held family, which streams what it touches in `stream`.

    `waits` are what is seen of the latencies of its lines. The rows that are left over go one by one, each multiply-add
    after the one before; what else is in flight are the next ones.
    """
    k = o.k
    left = t.rows - ops.floor(t.rows * s.per_row + EPSILON) * s.rows
    alone = (rates.latency_issues / rates.window) * (k + HELD_BEGIN)
    waiting = t.rows + left * ops.most(alone - 1.0, 0.0)
    # Of longer rows no set of L1 has room for C.
    strided = ops.where(t.columns <= FETCHED_AHEAD, 0.0, rates.line_bytes * rates.l2_byte)
    if rates.held_apart:
        apart = rates.held_apart - k * (rates.multiply_add * rates.held_step)
        strided = ops.most(strided, ops.where(one_stream(ops, rates, t) > 0.5, 0.0, apart))
    last = t.columns - (t.panels - 1.0) * rates.lanes
    narrow = ops.where(last + last <= rates.lanes + 0.5, rates.held_narrow, rates.held_step)
    multiplying = k * rates.multiply_add * ((t.panels - 1.0) * rates.held_step + narrow) * waiting
    body = t.steps * (ops.most(rates.held_row, strided) * t.rows)
    rounds = ops.ceil(t.rows / s.tile_m - EPSILON) * (t.steps * rates.held_enter + k * rates.held_load)
    # A passes again for each vector of columns, and C for each step of k: out of L2 if L1 has no room for a round.
    # Shorter ones, which a grid makes, were no faster.
    from_a = ops.where(FLOAT * k * s.tile_m <= rates.l1_bytes, 0.0, (t.panels - 1.0) * FLOAT * k * t.rows)
    in_l1 = (FLOAT * ops.least(k, s.tile_k) + rates.line_bytes) * s.tile_m
    from_c = ops.where(in_l1 <= rates.l1_bytes, 0.0, 2.0 * (t.steps - 1.0) * t.panels * rates.line_bytes * t.rows)
    moved = t.panels * body + (from_a + from_c) * rates.l2_byte
    compute = ops.name("held_compute", multiplying + t.panels * rounds + beside(ops, rates, moved, multiplying))
    if rates.held_parts:
        half = ops.most(last + last - rates.lanes, rates.lanes - (last + last)) <= 0.5
        parted = ops.where(half, 0.0, ops.where(last > rates.lanes - 0.5, 0.0, rates.held_parts))
        compute = compute + t.steps * (t.rows * parted + left * t.panels * rates.held_left)
    return compute + exposed(ops, stream, compute) + waits + recurring(ops, rates, t, o) + torn(ops, rates, t, o)


def held_past(ops: Arithmetic, rates: Rates, t: Task, past: Value) -> Value:
    """1 where lines of the held family gain by passing the caches by: whole vectors, each the only one of its row, that
    a single step of k makes."""
    lines = 1.0 if rates.lanes * FLOAT == rates.line_bytes else 0.0
    return ops.where(ops.most(t.steps - 1.5, t.columns - rates.lanes - 0.5) > 0.0, 0.0, lines * past)


def held_serves(ops: Arithmetic, s: Strategies, o: Oriented) -> Value:
    """0 for the held family where it does not serve: k not contiguous in A, or many steps of it; more than one by a
    transposed B of float32, which was tried with no more (Zen 4)."""
    steps = HELD_STEPS - (HELD_STEPS - 1.0) * (o.transposed * (1.0 - s.pack_b))
    return ops.where(s.held * o.k <= steps * s.tile_k, 1.0 - s.held * o.a_is_col, 0.0)


def streamed_rows(
    ops: Arithmetic, rates: Rates, s: Strategies, t: Task, o: Oriented, stream: Value, alone: Value, wait: Value
) -> Value:
    """Seconds of one task of the streamed family, which streams what it touches in `stream`: B once, whatever m is;
    in `alone`, if no other core does.

    What B takes to come and what is done with it add up, if arithmetic leaves no room: a core waits for the lines of
    the rows that it has begun, and others have what memory gives meanwhile. Panels of a packed B are few long streams,
    all of k at once, which hardware brings ahead.
    """
    k, prepacked, passes = o.k, o.prepacked, ops.ceil(t.rows * s.per_row - EPSILON)
    vectors = ops.name("streamed_vectors", ops.ceil(t.columns * (s.vectors * s.per_width) - EPSILON))
    issued = vectors * ops.most(t.rows, STREAMED_LOADS * passes)
    body = k * rates.multiply_add * ops.most(issued, rates.latency_issues)
    steps = ops.where(prepacked > 0.5, 1.0, t.steps)
    sums = vectors * steps * t.rows * (STREAMED_SUMS * rates.multiply_add)
    again = (passes - 1.0) * FLOAT * k * t.columns * rates.l2_byte
    added = ops.most(beside(ops, rates, sums + again + alone, body), stream - body)
    loose = added + vectors * k * rates.streamed_torn
    seen = ops.where(prepacked > 0.5, sums + again + exposed(ops, stream, body), loose)
    # Pieces of rows of a plain B are no stream, however long: each begins with a wait of its own.
    if rates.streamed_broken + rates.pieced_stream > 0.0:
        broken = rates.streamed_broken + rates.streamed_broken_row * (ops.least(t.rows, s.rows) - 1.0)
        seen = seen + pieced(ops, o, t) * (passes * k * (broken * wait) + rates.pieced_stream * stream)
    return body + steps * passes * rates.tile_enter + seen


def streamed_serves(ops: Arithmetic, s: Strategies, rows: Value, k: Value, a_is_col: Value, prepacked: Value) -> Value:
    """0 for the streamed family where it cannot serve: k not contiguous in A, or a single step of it, or more rows by
    a packed B than its kernels have."""
    unfit = ops.where(rows * prepacked > max(PANELS) + 0.5, 1.0, a_is_col)
    return 1.0 - s.streamed * ops.where(k > s.tile_k, unfit, 1.0)
