"""The sieve of reductions on a GPU: block tiles that the spec can hold, and the few of them that are worth a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vortex.candidates import Admitted
from vortex.gpu_profiler import rates
from vortex.gpu_reduction import PIECE, STEPS, ReduceBlock, ReduceRates, ReduceSelector
from vortex.gpu_sieve import held_blocks
from vortex.gpu_stages import CALIBRATION
from vortex.gpu_variety import cover
from vortex.reduction_tiles import Family

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuSpec
    from vortex.rkernel import RKernel

THREADS = (128, 256)
"""Of a block: fewer leave an SM short of warps when its slots for blocks are full, more wait for each other longer."""
OVERHEAD_REGISTERS = 28
"""Estimate: extents, addresses and predicates; ptxas's count goes into the cost."""
PORT_SHARE = 0.4
"""Estimate: share of its port to L2 that an SM draws of what comes from DRAM."""
TOLERANCE = 0.08
"""What a shape may lose to the best of all candidates."""
ROOM = 64 << 20
"""Bytes that chunks may take while candidates are compared."""
SAMPLED = (1, 3, 8, 24, 100, 768, 5000, 40_000, 300_000, 2_400_000, 20_000_000)
"""Extents of the samples: a step of about a factor of seven, some of them odd."""


@dataclass(frozen=True)
class ReduceBlockSieve:
    """The tiles of both families that are worth a kernel, and the count after each filter."""

    blocks: tuple[ReduceBlock, ...]
    admitted: tuple[Admitted, ...]


def initial_blocks(family: Family) -> Iterator[ReduceBlock]:
    """Every way to lay a block's threads along the axes, in powers of two.

    Those come first whose neighbouring threads read the longest runs: of equals the first is chosen.
    """
    for threads in reversed(THREADS):
        powers = [1 << place for place in reversed(range(threads.bit_length()))]
        for across in powers if family is Family.COLUMNS else (1,):
            for along in powers if family is Family.ROWS else reversed(powers):
                if along * across <= threads:
                    yield ReduceBlock(family, threads // (along * across), along, across)


def registers_needed() -> int:
    """Pieces under way, accumulators, and everything else."""
    return PIECE * (STEPS + 1) + OVERHEAD_REGISTERS


def resident_blocks(spec: GpuSpec, block: ReduceBlock, registers: int) -> int:
    """Blocks that an SM holds at a time."""
    return held_blocks(spec, block.threads, block.shared_bytes, registers)


def hides_latency(spec: GpuSpec, block: ReduceBlock) -> bool:
    """Whether the threads of an SM ask for as many bytes at a time as DRAM delivers in its latency."""
    dram = spec.memory("dram")
    wanted = dram.bandwidth_bytes_per_s / spec.sms * dram.latency_ns * 1e-9 * CALIBRATION.loaded
    return resident_blocks(spec, block, registers_needed()) * block.threads * STEPS * 4 * PIECE >= wanted


def reduce_rates(spec: GpuSpec) -> ReduceRates:
    """What the cost model needs of a device; what no spec says is that of products."""
    known, cycle = rates(spec), 1 / spec.clock_hz
    return ReduceRates(
        sms=spec.sms,
        launch=known.launch,
        dram_byte=known.dram_byte,
        l2_byte=known.l2_byte,
        port_byte=known.port_byte / PORT_SHARE,
        l2_bytes=known.l2_bytes,
        dram_latency=known.l2_latency + known.miss_latency,
        l2_latency=known.l2_latency,
        cycle=cycle,
        start=CALIBRATION.start_s,
        slot=cycle / spec.schedulers,
        leak=CALIBRATION.leak,
        fold=CALIBRATION.barrier_cycles * cycle,
    )


def selector_of(spec: GpuSpec, blocks: Sequence[ReduceBlock], registers: Sequence[int]) -> ReduceSelector:
    """The selector of some tiles, whose kernels take so many registers each."""
    resident = tuple(resident_blocks(spec, block, count) for block, count in zip(blocks, registers, strict=True))
    return ReduceSelector(tuple(blocks), resident, reduce_rates(spec))


def samples(spec: GpuSpec, family: Family) -> list[tuple[int, int, int]]:
    """Views of every proportion that the device's memory holds."""
    most = spec.memory("dram").capacity_bytes // 8
    inner = (1,) if family is Family.ROWS else tuple(extent + 1 for extent in SAMPLED[:9:2])
    outer = SAMPLED if family is Family.ROWS else SAMPLED[::3]
    return [(o, d, i) for o in outer for d in SAMPLED for i in inner if o * d * i <= most]


def sieve(rkernel: RKernel[GpuSpec]) -> ReduceBlockSieve:
    """Algorithm 2 at L1; L0 has one form, a piece a thread, and needs no sieve."""
    spec, kept, admitted = rkernel.hardware, [], []
    for family in Family:
        initial = list(initial_blocks(family))
        fits = [block for block in initial if block.threads <= spec.threads_per_block]
        held = [block for block in fits if resident_blocks(spec, block, registers_needed()) >= 1]
        busy = [block for block in held if hides_latency(spec, block)]
        chosen, near = worth_keeping(spec, family, busy)
        counts = {"InitCands": len(initial), "FilterByThreads": len(fits), "FilterByOccupancy": len(held)}
        counts |= {"FilterByLatency": len(busy), "FilterByDominance": near, "FilterByVariety": len(chosen)}
        kept += chosen
        admitted += [Admitted(f"{family.value} L1", name, count) for name, count in counts.items()]
    return ReduceBlockSieve(tuple(kept), tuple(admitted))


def worth_keeping(spec: GpuSpec, family: Family, blocks: Sequence[ReduceBlock]) -> tuple[list[ReduceBlock], int]:
    """Tiles such that each sample has one within the tolerance of its best; and how many are that near anywhere."""
    selector = selector_of(spec, blocks, [registers_needed()] * len(blocks))
    views = samples(spec, family)
    priced = np.full((len(views), len(blocks)), np.inf)  # of a tile that would need too many blocks
    for row, view in zip(priced, views, strict=True):
        for plan in selector.plans(view, ROOM):
            row[plan.sweeps[0].index] = plan.seconds
    columns, near = cover(priced, TOLERANCE)
    return [blocks[column] for column in columns], near
