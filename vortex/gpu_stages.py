"""What a stage of a block asks of its SM, computed from the pipeline of an SM: L0 and L1 where nothing was measured.

A stage of one block keeps four units of its SM busy, each for so long: the FMA or MMA pipes, shared memory,
the warp schedulers; and it cannot be shorter than its chain, the time of its slowest warp with nobody else about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vortex.gpu_candidates import WARP, WARPGROUP, Backend, BlockStrategy, Variant
from vortex.gpu_sieve import instruction_of

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuSpec


@dataclass(frozen=True)
class Calibration:
    """What the model assumes of every GPU, since no spec says it.

    Fitted to the calibration points of docs/gpu-model.md, published figures of an A100; on any other GPU they are
    estimates. A measurement of the device replaces those down to `start_s`.
    """

    sustained_mma: float = 0.97
    """Share of the peak of Tensor Cores that back-to-back instructions reach; power takes the rest."""
    sustained_fma: float = 0.99
    shared_share: float = 0.95
    """Share of shared memory's bandwidth that conflict-free accesses reach."""
    barrier_cycles: float = 30.0
    """Of the wait for a stage, the barrier, and the addresses of the next one."""
    copy_slots: float = 3.0
    """Issue slots of one asynchronous copy: addresses, predicate, the copy."""
    staged_slots: float = 6.0
    """The same where an element passes through registers."""
    stage_slots: float = 16.0
    """Issue slots that a warp spends on a stage as such."""
    start_s: float = 0.4e-6
    """From one block's end, or the launch, to the first load of the next one."""
    staying: float = 0.5
    """Share of the start that comes back with every tile where blocks stay, on Hopper: the way of C to memory."""
    cluster_s: float = 0.5e-6
    """What a launch takes longer where blocks come in clusters."""
    blank_row_s: float = 7e-9
    """Of a row of a tile that TMA fills with zeros, since the operand has ended: what a measured stage, whose tiles are
    whole, has not. Computed ones leave it out."""
    reduction_s: float = 2.1e-6
    """From the last partial of a split reduction to a reduction kernel that runs."""
    part_s: float = 24e-9
    """Of each partial that the threads of that kernel add, eight of which are under way at a time."""
    l2_share: float = 0.65
    """Share of the L2's declared bandwidth that SMs draw at the same time."""
    dram_share: float = 0.88
    """Share of the DRAM's bandwidth that streams reach."""
    loaded: float = 1.5
    """Latency of L2 and DRAM while all SMs ask, over what it is when one does."""
    resident_share: float = 0.75
    """Share of L2 in which operands stay from one wave to the next."""
    leak: float = 0.162
    """Share of the shorter of arithmetic and loads that shows beside the longer."""


CALIBRATION = Calibration()
PORT_BYTES_PER_CYCLE = 64.0
"""Bytes that one SM takes from L2 in a cycle (NVIDIA A100 whitepaper; the same on every generation since)."""
SECTOR = 32
"""Bytes of the smallest piece of a line that L2 hands out."""
SHUFFLES = 10
"""Issue slots in which the 32 lanes of a warp add up one sum: five steps of a shuffle and an addition."""


@dataclass(frozen=True)
class StageCost:
    """Seconds of one stage of one block, unit by unit."""

    multiply: float
    shared: float
    issue: float
    chain: float

    @property
    def work(self) -> float:
        return max(self.multiply, self.shared, self.issue)


def converted(strategy: BlockStrategy, rows: int, columns: int) -> float:
    """Multiply-add slots of a thread per step of k on CUDA cores: half-precision operands are widened first."""
    return rows * columns + (rows + columns if strategy.item_bytes < 4 else 0)


def stage_cost(spec: GpuSpec, variant: Variant, calibration: Calibration = CALIBRATION) -> StageCost:
    """What a stage of one block asks of its SM, from the spec alone."""
    s, isa = variant.strategy, instruction_of(spec, variant.strategy.backend, variant.strategy.dtype)
    l0, l1, t = s.l0, s.l1, s.thread
    cycle = 1 / spec.clock_hz
    lanes = WARP * (WARPGROUP if s.backend is Backend.HOPPER else 1)
    groups = s.threads // lanes if s.backend is not Backend.HOPPER else s.computing_warps // WARPGROUP
    flops = 2.0 * l1.m * l1.n * l1.k
    pipes = isa.flops_per_cycle_per_sm * isa.clock_hz
    per_scheduler = math.ceil(s.computing_warps / spec.schedulers)
    sustained = calibration.sustained_fma if isa.kind == "fma" else calibration.sustained_mma
    wait = spec.memory("shared").latency_ns * 1e-9 + calibration.barrier_cycles * cycle

    if s.backend is Backend.TENSOR_CORE:
        multiply = flops / pipes
        reads = float(groups * (l0.m + l0.n) * l1.k * s.item_bytes)
        steps = l1.k // isa.k
        each = (l0.m // isa.m) * (l0.n // isa.n)
        slots = steps * each + reads / groups / (512 if s.item_bytes < 4 else 128)
        turn = per_scheduler * each * isa.flops * spec.schedulers / pipes
        chain = steps * max(turn, isa.latency_cycles / isa.clock_hz)
    elif s.backend is Backend.HOPPER:
        multiply = flops / pipes
        rows, columns = (l0.n, l0.m) if s.is_turned else (l0.m, l0.n)
        reads = float(groups * (rows + rows // isa.m * columns) * l1.k * s.item_bytes)
        slots = l1.k // isa.k * (rows // isa.m)
        latency = isa.latency_cycles * max(columns / isa.n, 0.25) / isa.clock_hz
        chain = max(l1.k // isa.k * (rows // isa.m) * latency, flops / pipes)
    elif s.backend is Backend.CUDA_CORE:
        widened = converted(s, t.m, t.n) / (t.m * t.n)
        multiply = flops * widened / pipes
        loads = math.ceil(t.m * s.item_bytes / 16) + math.ceil(t.n * s.item_bytes / 16)
        reads = float(s.warps * l1.k * loads * 2 * 128)
        slots = l1.k * (t.m * t.n * widened + loads)
        chain = per_scheduler * l1.k * t.m * t.n * widened * 2 * WARP * spec.schedulers / pipes
    else:
        widened = converted(s, t.m, t.n) / (t.m * t.n)
        multiply = flops * widened / pipes
        reads = float(s.warps * (l0.m + l0.n) * l0.k * s.item_bytes)
        loads = math.ceil((t.m + t.n) * t.k * s.item_bytes / variant.vector_bytes)
        slots = t.k * t.m * t.n * widened + loads * calibration.copy_slots
        chain = per_scheduler * t.k * t.m * t.n * widened * 2 * WARP * spec.schedulers / pipes
        wait = 0.0

    copied = s.stage_bytes / (variant.vector_bytes * s.threads) if s.backend is not Backend.HOPPER else 0.0
    each_copy = calibration.staged_slots if staged(spec, variant) else calibration.copy_slots
    slots += copied * each_copy + calibration.stage_slots
    bandwidth = spec.memory("shared").bytes_per_cycle * spec.clock_hz * calibration.shared_share
    return StageCost(
        multiply=multiply / sustained,
        shared=(reads + s.stage_bytes) / bandwidth,
        issue=s.warps * slots / spec.schedulers * cycle,
        chain=chain / sustained + wait,
    )


def staged(spec: GpuSpec, variant: Variant) -> bool:
    """Whether operands pass through registers on their way to shared memory, or stay there."""
    s = variant.strategy
    if s.backend in (Backend.SKINNY, Backend.HOPPER):
        return s.backend is Backend.SKINNY
    return s.stages == 1 or variant.vector_bytes < 4 or not spec.async_copy


def exposed(spec: GpuSpec, variant: Variant) -> bool:
    """Whether a warp waits for what it loads, so that no load runs ahead; without cp.async registers hold one stage."""
    return staged(spec, variant) and (
        spec.async_copy or variant.strategy.stages == 1 or variant.strategy.backend is Backend.SKINNY
    )


def finish(spec: GpuSpec, strategy: BlockStrategy) -> float:
    """Seconds in which the lanes of a block's warps add up their sums, where they lie along k (skinny family)."""
    t = strategy.thread
    if strategy.backend is not Backend.SKINNY or strategy.l0.k <= t.k:
        return 0.0
    return SHUFFLES * t.m * t.n * math.ceil(strategy.warps / spec.schedulers) / spec.clock_hz
