"""What one task of L2 computes, strategy by strategy: the call as it sees it, and its grid of register tiles."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.effects import EPSILON, FLOAT, Arithmetic, Value, latency, source_byte
from vortex.problem import Problem, Strategies
from vortex.rates import KEPT_ROWS, KEPT_TILES, Rates

FAR_SPANS, ONCE_SPANS = 4.0, 2.0
"""Spans of L1's sets from one to the next of rows that all start in the same of them, from which on L2 keeps half as
many: in sets of which they take all ways they do not stay for another tile, and what is asked for of a panel that a
single tile reads is the first to go even where half of the ways are left. A Granite Rapids, where huge pages lie in one
piece: 126 rows by 4096 columns 8.0 ms with 64 steps of k and 11.5 with 128, 40 rows 2.8 and 4.5; 8 rows by 2048 columns
0.33 with 64 and 0.39 with 128, by 4096 columns 0.70 with 32 and 0.95."""
KEPT_BESIDE = 2.0
"""Row tiles of A that L1 has room for beside a panel of B that it keeps: one that is read, and the next."""
SHORTEST_TURNED = 64.0
"""Rows of a band of a turned product, at least: as `runtime/execute.c` has it."""
LONG_LINE = 2048.0
"""Bytes of a row of B from which pieces of one column panel are lines apart that no prefetcher connects."""


@dataclass(frozen=True)
class Oriented:
    """The call as a strategy computes it: where the product is turned over, A and B have changed places."""

    m: Value
    n: Value
    k: Value
    """Of one part, where k is split."""
    a_is_col: Value
    plain: Value
    transposed: Value
    prepacked: Value
    spacing_a: Value
    spacing_b: Value
    drift_a: Value
    long_lines: Value
    """1 where rows of as many columns as C has are long."""


@dataclass(frozen=True)
class Task:
    """`rows` x `columns` of C over the whole depth in a grid of `tiles` x `panels` register tiles."""

    rows: Value
    columns: Value
    full: Value
    """Panels of all their vectors,"""
    rest: Value
    """and vectors of a last one that has fewer."""
    panels: Value
    tiles: Value
    height: Value
    """Rows of a tile, in the mean."""
    bands: Value
    """Cache tiles of rows, each of which has all of B come,"""
    blocks: Value
    """and of columns, each of which has all of A come."""
    band: Value
    """Rows of A that pass for a panel before they pass for the next."""
    depth: Value
    """Steps of k that L1 takes at a time,"""
    steps: Value
    """and how often it does."""
    loose: Value
    """1 where B is read as it lies, neither packed before nor by this task."""
    loose_a: Value
    """1 where a transposed A is."""
    keeps: Value
    """1 where the first row tile of a panel of B keeps it for all others."""
    kept: Value
    """1 where a block of C stays in L2 while k is cut, and A is packed for it over all of k,"""
    beforehand: Value
    """and 1 where all of B is packed before that, since several bands of rows read it."""
    away: Value
    """1 where B is packed into a block in the cache outside L2, which it leaves to and comes back from."""


@dataclass(frozen=True)
class Supply:
    """How operands come that a call finds warm."""

    footprint: Value
    """Bytes of all that the call touches."""
    byte: Value
    """Seconds for each of them, from where they live;"""
    own: Value
    """to a core that had it all to itself;"""
    outer: Value
    """from the outermost cache, if it has them."""
    wait: Value
    """Seconds until a line is there."""


def part(ops: Arithmetic, p: Problem) -> Value:
    """The share of k of one task."""
    return ops.ceil(p.k / p.splits - EPSILON)


def oriented(ops: Arithmetic, s: Strategies, p: Problem) -> Oriented:
    turned = s.swap > 0.5
    return Oriented(
        k=ops.name("k", part(ops, p)),
        m=ops.name("m", ops.where(turned, p.n, p.m)),
        n=ops.name("n", ops.where(turned, p.m, p.n)),
        transposed=ops.name("transposed", ops.where(turned, 1.0 - p.a_is_col, p.transposed)),
        plain=ops.where(turned, p.a_is_col - p.prepacked, p.plain),
        prepacked=ops.where(turned, 0.0, p.prepacked),
        a_is_col=ops.name("a_is_col", ops.where(turned, 1.0 - p.transposed, p.a_is_col)),
        spacing_a=ops.name("spacing_a", ops.where(turned, p.spacing_b, p.spacing_a)),
        spacing_b=ops.name("spacing_b", ops.where(turned, p.spacing_a, p.spacing_b)),
        drift_a=ops.where(turned, p.drift_b, p.drift_a),
        long_lines=ops.name("long_lines", ops.where(FLOAT * p.n > LONG_LINE - 0.5, 1.0, 0.0)),
    )


def task_of(ops: Arithmetic, rates: Rates, s: Strategies, p: Problem, o: Oriented) -> Task:
    """The first of the tasks of a grid, which has as much to do as any."""
    rows = ops.name("rows", ops.ceil(o.m / p.grid_m - EPSILON))
    units = ops.ceil(o.n * s.per_width - EPSILON)
    columns = ops.name("columns", ops.least(o.n, ops.ceil(units / p.grid_n - EPSILON) * s.width))
    full = ops.name("full", ops.floor(columns * s.per_width + EPSILON))
    rest = ops.name("rest", ops.ceil((columns - full * s.width) * (s.vectors * s.per_width) - EPSILON))
    tiles = ops.name("tiles", ops.most(ops.ceil(rows / tallest(ops, rates, s, full, rest) - EPSILON), 1.0))
    loose = ops.name("loose", (1.0 - o.prepacked - o.transposed) * (1.0 - s.pack_b))
    loose_a = ops.name("loose_a", o.a_is_col * (1.0 - s.pack_a))
    spacing = ops.name("loose_spacing", ops.most(loose * o.spacing_b, loose_a * o.spacing_a))
    crowds = ops.name("crowds", ops.where(spacing > rates.crowded_span - 0.5, 1.0, 0.0))
    wide = FLOAT * ops.most(loose * o.n, loose_a * o.m)
    kept_rows: Value = rates.crowded_rows
    per_kept: Value = rates.per_crowded_rows
    if rates.crammed_rows < rates.crowded_rows:
        crams = ops.name("crams", ops.where(spacing > rates.l1_span - 0.5, 1.0, 0.0))
        far = ops.where(wide > FAR_SPANS * rates.l1_span - 0.5, 2.0, 1.0)
        once = ops.where(tiles > 1.5, 1.0, ops.where(wide > ONCE_SPANS * rates.l1_span - 0.5, 2.0, 1.0))
        fewer = ops.name("fewer", far * once)
        kept_rows = ops.where(crams > 0.5, rates.crammed_rows / fewer, kept_rows)
        per_kept = ops.where(crams > 0.5, rates.per_crammed_rows * fewer, per_kept)
    tile_k = ops.where(crowds > 0.5, ops.least(s.tile_k, kept_rows), s.tile_k)
    per_tile_k = ops.most(s.per_tile_k, crowds * per_kept)
    if rates.reach:  # Rows of B, or of a transposed A, that pages are kept for.
        reached = ops.name("reached", ops.where(wide > 0.5, rates.reach / ops.most(wide, FLOAT), tile_k))
        tile_k, per_tile_k = ops.least(tile_k, reached), ops.most(per_tile_k, 1.0 / reached)
    keeps: Value = 0.0
    if rates.panel_room:
        many = ops.where(rows - (KEPT_TILES - 1.0) * s.rows > 0.5, ops.least(full, 1.0), 0.0)
        many = ops.where(s.rows > KEPT_ROWS - 0.5, many, 0.0)
        keeps = ops.name("keeps", many * loose * o.plain * (1.0 - s.rows_first) * (1.0 - s.swap) * (1.0 - o.a_is_col))
        step = s.width + KEPT_BESIDE * s.rows
        tile_k = ops.where(keeps > 0.5, ops.least(s.tile_k, rates.panel_room / step), tile_k)
        per_tile_k = ops.where(keeps > 0.5, ops.most(s.per_tile_k, step * (1.0 / rates.panel_room)), per_tile_k)
    steps = ops.name("steps", ops.most(ops.ceil(o.k * per_tile_k - EPSILON), 1.0))
    kept = ops.name("kept", ops.where(steps > 1.5, 1.0 if rates.room else 0.0, 0.0))
    height = s.tile_m
    if rates.room:  # rows of A that are packed over all of k
        height = ops.where(kept * s.pack_a > 0.5, ops.least(s.tile_m, ops.most(rates.room / o.k, s.rows)), s.tile_m)
    bands = ops.name("bands", ops.most(ops.ceil(rows / height - EPSILON), 1.0))
    depth = ops.name("depth", ops.least(o.k, tile_k))
    # What L2 keeps of a turned product's rows and sums beside what is packed for them; all, if k takes several steps.
    packed = ops.name("at_once", ops.least(columns, s.tile_n))
    most = ops.most((rates.l2_certain * (1.0 / FLOAT) - s.pack_b * depth * packed) / (depth + packed), SHORTEST_TURNED)
    turned = ops.where(steps > 1.5, 0.0, s.swap)
    away: Value = 0.0
    if rates.blocks_beyond:
        block = rates.bytes_b * depth * packed
        away = ops.name("away", s.pack_b * ops.where(block <= rates.l2_buffer, 0.0, 1.0))
    return Task(
        rows=rows,
        columns=columns,
        full=full,
        rest=rest,
        panels=full + ops.least(rest, 1.0),
        tiles=tiles,
        height=ops.name("height", rows / tiles),
        bands=bands,
        blocks=ops.name("blocks", ops.most(ops.ceil(columns * s.per_tile_n - EPSILON), 1.0)),
        band=ops.name("band", ops.least(rows, ops.where(turned > 0.5, most, s.tile_m))),
        depth=depth,
        steps=steps,
        loose=loose,
        loose_a=loose_a,
        keeps=keeps,
        kept=kept,
        beforehand=ops.name("beforehand", ops.where(kept * s.pack_b * bands * p.grid_m > 1.5, 1.0, 0.0)),
        away=away,
    )


def tallest(ops: Arithmetic, rates: Rates, s: Strategies, full: Value, rest: Value) -> Value:
    """Rows of a register tile: more than the strategy's own where all columns are fewer vectors than it has."""
    narrow = ops.most(s.registers / ops.most(rest, 1.0) - 1.0, s.registers / (rest + 1.0))
    tall = ops.least(ops.floor(narrow + EPSILON), rates.narrow_rows)
    return ops.where(full > 0.5, s.rows, ops.most(s.rows, tall))


def pieced(ops: Arithmetic, o: Oriented, t: Task) -> Value:
    """1 where a task has pieces of the rows of a B that is read as it lies, since it has a part of the columns."""
    return ops.where(t.columns + 0.5 <= o.n, t.loose, 0.0)


def supply_of(ops: Arithmetic, rates: Rates, p: Problem) -> Supply:
    a, c = FLOAT * (p.m * p.k * p.items_a), rates.out_bytes * (p.m * p.n * p.batch)
    operands = a + c + rates.bytes_b * (p.k * p.n * p.items_b)
    footprint = operands + p.others
    byte = ops.name("source", source_byte(ops, rates, footprint, p.active))
    wait = ops.name("wait", latency(ops, rates, footprint, p.active))
    outer = ops.name("outer", ops.least(byte, ops.most(rates.l3_byte, rates.l3_byte_shared * p.active)))
    own = ops.name("own", ops.least(byte, source_byte(ops, rates, footprint, 1.0)))
    return Supply(footprint, byte, own, outer, wait)
