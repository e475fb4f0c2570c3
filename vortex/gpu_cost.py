"""Predicted seconds of a GPU kernel (paper Eq. 2-4, plus what a GPU adds), written once.

`ops` is the arithmetic, as in `cost`: NumPy float32 arrays over kernels, or TVM expressions for the native selector.
A block computes `rows` x `columns` of C in `depth` stages; `gpu_profiler` measures or computes cost(L1) of a stage,
and all above is computed here. A wave is as many blocks as the SMs hold; the last one may be any part of that:

    stage    = max(compute, load) + leak * min(compute, load)                                           (Eq. 2)
    cost(L2) = launch + waves * (depth * stage + edge) + reduction, and never less than DRAM takes      (Eq. 3, Eq. 4)

Which core type computes is one kernel against another: nothing below asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from vortex.effects import Arithmetic, Value
from vortex.gpu_figures import BlockCosts, GpuProblem, GpuRates


@dataclass(frozen=True)
class GpuCost:
    """Predicted seconds; `launch` to `reduction` add up to `total`, what follows explains them."""

    total: Value
    launch: Value
    multiply: Value
    """What all waves take if no load is ever waited for; padding of the tile included."""
    exposed: Value
    """What loads add to that."""
    edges: Value
    """First load and store of C of the waves, where no other block hides them."""
    memory: Value
    """What DRAM adds because operands and C cannot cross faster."""
    reduction: Value
    parts: Value
    """Pieces of the reduction."""
    waves: Value
    padding: Value
    """Share of `multiply` that computes elements outside C."""

    def terms(self) -> dict[str, Value]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


FILLS = (0.25, 0.5, 1.0, 2.0)
"""Shares of the device's slots that a split of the reduction may fill, rising; not to split at all is tried first."""
NEVER = 1e30
"""Seconds that nothing takes."""
MOST_PARTS = 512
"""Beyond, reading the partial sums again takes longer than any reduction that is so long."""
EPSILON = 1e-4
"""Keeps a quotient by a rounded reciprocal from crossing the next integer; counts up to 10^4 stay exact."""
PARTIAL = 4.0
"""Bytes of a partial sum."""


@dataclass(frozen=True)
class Tiling:
    """What a shape is for each kernel, however the reduction is split."""

    tiles_n: Value
    per_tiles_n: Value
    tiles: Value
    per_tiles: Value
    rows: Value
    """Rows of C in a block, on average: fewer than the tile has where the last tile is not full."""
    columns: Value
    stages: Value
    row_bytes: Value
    """Bytes of one row of a stage."""
    load: Value
    """Bytes that one block loads in a stage,"""
    drawn: Value
    """and what it draws from L2 for that: of what a cluster shares, its part."""
    group: Value
    """Rows of tiles that are walked down before the next column."""
    per_group: Value
    footprint: Value
    """Bytes of A and B."""
    seen: Value
    """See `GpuProblem`."""
    filling: Value
    """Seconds in which TMA fills what a stage of one block has outside of the operands."""
    unique: Value
    """Bytes that all blocks of a full wave load in a stage, what they share counted once."""


def tiling(ops: Arithmetic, s: BlockCosts, p: GpuProblem) -> Tiling:
    whole = ops.ceil(p.m * s.per_tile_m * s.per_cluster - EPSILON)
    tiles_m = ops.name("tiles_m", ops.most(whole, 1.0) * s.cluster)
    tiles_n = ops.name("tiles_n", ops.most(ops.ceil(p.n * s.per_tile_n - EPSILON), 1.0))
    per_tiles_m, per_tiles_n = ops.name("per_tiles_m", 1.0 / tiles_m), ops.name("per_tiles_n", 1.0 / tiles_n)
    stages = ops.name("stages", ops.most(ops.ceil(p.k * s.per_tile_k - EPSILON), 1.0))
    tiles = ops.name("tiles", tiles_m * tiles_n)
    group = ops.name("group", ops.least(s.raster, tiles_m))
    rows, columns = ops.name("rows", p.m * per_tiles_m), ops.name("columns", p.n * per_tiles_n)
    row_bytes = ops.name("row_bytes", p.k / stages * (s.item * s.fetch))
    partial = Tiling(
        tiles_n=tiles_n,
        per_tiles_n=per_tiles_n,
        tiles=tiles,
        per_tiles=ops.name("per_tiles", per_tiles_m * per_tiles_n),
        rows=rows,
        columns=columns,
        stages=stages,
        row_bytes=row_bytes,
        load=ops.name("load", (rows + columns) * row_bytes),
        drawn=ops.name("drawn", (rows + columns * s.per_cluster) * row_bytes),
        group=group,
        per_group=ops.name("per_group", 1.0 / group),
        footprint=ops.name("footprint", (p.m * p.k * p.seen + p.k * p.n) * s.item * p.batch),
        seen=p.seen,
        filling=ops.name("filling", s.blank * (s.tile_m - rows + s.tile_n - columns)),
        unique=0.0,
    )
    return replace(partial, unique=ops.name("unique", patch(ops, partial, s.slots)))


def patch(ops: Arithmetic, t: Tiling, blocks: Value) -> Value:
    """Bytes of a stage under so many consecutive blocks: rows of A beside them and columns of B above, each once.

    They lie `group` tiles high as far as C is wide, and start over with the next part of the reduction when C is full.
    """
    tiles = ops.name("patch", ops.least(blocks, t.tiles))
    high = ops.most(ops.least(tiles, t.group), tiles * t.per_tiles_n)
    wide = ops.most(ops.least(tiles * t.per_group, t.tiles_n), 1.0)
    return ops.most(blocks * t.per_tiles, 1.0) * ((high * t.rows * t.seen + wide * t.columns) * t.row_bytes)


def cuts(ops: Arithmetic, s: BlockCosts, p: GpuProblem, t: Tiling) -> list[Value]:
    """Into how many parts each kernel may cut the reduction, so that its blocks fill a share of the slots, rising.

    Where so few tiles leave even the least share to the bounds on parts, half of what they allow stands for it:
    else all would be one, the dearest to sum.
    """
    spare = ops.name("spare", s.slots * t.per_tiles * (1.0 / p.batch))
    most = ops.name("most", ops.least(ops.least(t.stages, p.room), s.most_parts))
    filled = [ops.floor(spare * fill + EPSILON) for fill in FILLS]
    filled[0] = ops.where(filled[0] < most, filled[0], ops.floor(most * 0.5))
    return [ops.name("cut", ops.most(ops.least(parts, most), 1.0)) for parts in filled]


@dataclass(frozen=True)
class Wave:
    """Blocks that run at the same time."""

    blocks: Value
    resident: Value
    """Of them on one SM."""
    missing: Value
    """Bytes of a stage that come from DRAM."""
    lag: Value
    """Latency of a load."""


def loading(ops: Arithmetic, rates: GpuRates, s: BlockCosts, t: Tiling, wave: Wave) -> Value:
    """Seconds until all blocks of a wave have the operands of a stage: by L2, an SM's port, DRAM, latency, filling."""
    shared = ops.most(wave.blocks * rates.l2_byte * t.drawn, wave.resident * rates.port_byte * t.load)
    alone = ops.most(s.wait * wave.lag, wave.resident * t.filling)
    return ops.most(ops.most(shared, wave.missing * rates.dram_byte), alone)


def computing(ops: Arithmetic, s: BlockCosts, resident: Value, lag: Value) -> Value:
    """Seconds of a stage of so many blocks on an SM, of the arithmetic alone."""
    chain = s.chain + (resident - 1.0) * s.crowd + s.serial * (lag - s.waited)
    return ops.most(resident * s.work, chain)


def stage(ops: Arithmetic, rates: GpuRates, s: BlockCosts, t: Tiling, wave: Wave) -> tuple[Value, Value]:
    """Seconds of a stage of every block of a wave: of the arithmetic alone, and with what loads add (Eq. 2)."""
    compute = ops.name("compute", computing(ops, s, wave.resident, wave.lag))
    load = ops.name("loading", loading(ops, rates, s, t, wave))
    return compute, ops.name("exposed", ops.most(compute, load) + s.leak * ops.least(compute, load) - compute)


def waves(ops: Arithmetic, s: BlockCosts, blocks: Value) -> tuple[Value, Value]:
    """Full waves, and blocks of the last one, which may be full as well."""
    full = ops.name("full", ops.most(ops.ceil(blocks * s.per_slots - EPSILON) - 1.0, 0.0))
    return full, ops.name("rest", blocks - full * s.slots)


@dataclass(frozen=True)
class Steady:
    """What holds for every wave, and of full ones, however the reduction is cut."""

    share: Value
    """Of what a wave asks for, how much comes from DRAM."""
    lag: Value
    """Latency of a load."""
    entry: Value
    """Seconds until a block has its first operands."""
    compute: Value
    """Seconds of a stage of a full wave, of the arithmetic alone."""
    exposed: Value
    """What loads add to that."""
    chain: Value
    """Seconds of a stage of a block that nobody holds up."""


def steady(ops: Arithmetic, rates: GpuRates, s: BlockCosts, p: GpuProblem, t: Tiling) -> Steady:
    """Operands that L2 keeps are there, from the call before or the kernel that wrote them."""
    share = ops.name("share", ops.where(t.footprint <= rates.l2_bytes, 0.0, 1.0))
    lag = ops.name("lag", rates.l2_latency + share * rates.miss_latency)
    compute, exposed = stage(ops, rates, s, t, Wave(s.slots, s.resident, t.unique * share, lag))
    chain = ops.name("chain", computing(ops, s, 1.0, lag))
    return Steady(share, lag, ops.name("entry", s.start + lag), compute, exposed, chain)


def predict(
    ops: Arithmetic, rates: GpuRates, s: BlockCosts, p: GpuProblem, t: Tiling, w: Steady, cut: Value | None = None
) -> GpuCost:
    """cost(L2) of every kernel for one call, the reduction whole or cut into so many parts."""
    depth, parts, blocks = t.stages, 1.0, ops.name("all", t.tiles * p.batch)
    if cut is not None:
        depth = ops.name("depth", ops.ceil(t.stages / cut - EPSILON))
        parts = ops.name("parts", ops.ceil(t.stages / depth - EPSILON))
        blocks = ops.name("blocks", t.tiles * p.batch * parts)
    full, rest = waves(ops, s, blocks)
    resident = ops.name("resident", ops.ceil(rest * rates.per_sm - EPSILON))
    unique = ops.name("unique_last", patch(ops, t, rest))
    compute_last, exposed_last = stage(ops, rates, s, t, Wave(rest, resident, unique * w.share, w.lag))

    bytes_c = s.out if cut is None else ops.where(parts > 1.5, PARTIAL, s.out)
    stored = ops.name("stored", t.rows * t.columns * bytes_c * (s.scatter * rates.l2_byte))
    multiply = depth * (full * w.compute + compute_last)
    exposed = depth * (full * w.exposed + exposed_last)
    # A wave takes as long as what all of its blocks share, and as one block alone: start, stages, end.
    shared = (w.entry * s.again + s.slots * stored) * s.per_resident
    alone = w.entry * s.again + depth * (w.chain - w.compute - w.exposed)
    edges = full * ops.most(shared, alone) + (w.entry + rest * stored)
    busy = ops.name("busy", multiply + exposed + edges)
    elements = p.m * p.n * p.batch
    floor = (t.footprint + elements * s.out) * rates.dram_byte
    memory = ops.most(floor - busy, 0.0)
    total, reduction = rates.launch + (busy + memory), 0.0
    if cut is not None:
        partials = ops.name("partials", elements * (PARTIAL * parts))
        byte = ops.where(partials <= rates.l2_bytes, rates.l2_byte, rates.dram_byte)
        adding = rates.reduction + parts * rates.part + (partials + elements * s.out) * byte
        reduction = ops.where(parts > 1.5, adding, 0.0)
        total = total + reduction
    padded = t.rows * s.per_tile_m * (t.columns * s.per_tile_n) * (p.k / t.stages * s.per_tile_k)
    return GpuCost(
        total=total,
        launch=rates.launch,
        multiply=multiply,
        exposed=exposed,
        edges=edges,
        memory=memory,
        reduction=reduction,
        parts=parts,
        waves=full + rest * s.per_slots,
        padding=1.0 - padded,
    )


def options(ops: Arithmetic, rates: GpuRates, s: BlockCosts, p: GpuProblem) -> list[tuple[Value, GpuCost]]:
    """Into how many parts each kernel may be asked to cut the reduction, one first, and what it then costs."""
    t = tiling(ops, s, p)
    w = steady(ops, rates, s, p, t)
    whole: tuple[Value, GpuCost] = (1.0, predict(ops, rates, s, p, t, w))
    return [whole, *((cut, predict(ops, rates, s, p, t, w, cut)) for cut in cuts(ops, s, p, t))]


def ideal(ops: Arithmetic, s: BlockCosts, p: GpuProblem, total: Value) -> Value:
    """What each kernel would take if neither its residues nor its last wave cost more than their share of C.

    Never for a kernel whose blocks all run at once: nothing of it can be left over.
    """
    high, wide = p.m * s.per_tile_m, p.n * s.per_tile_n
    tall = ops.ceil(high * s.per_cluster - EPSILON) * s.cluster
    tiles = ops.name("tiles", tall * ops.ceil(wide - EPSILON))
    computed = ops.name("computed", ops.ceil(tiles * s.per_slots - EPSILON) * s.slots)
    return ops.where(tiles > s.slots, total * (high * wide / computed), NEVER)
