"""L0 and L1 of GPU kernels: measured or replayed where the device is known, else computed from the pipeline of an SM.

Computed: a stage of one block keeps four units of its SM busy, each for so long: the FMA or MMA pipes, shared memory,
the warp schedulers; and it cannot be shorter than its chain, the time of its slowest warp with nobody else about.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vortex.gpu_candidates import WARP, WARPGROUP, Backend, BlockStrategy, Variant
from vortex.gpu_cost import MOST_PARTS, BlockCosts, GpuRates
from vortex.gpu_sieve import instruction_of, resident_blocks

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuSpec

RECORDINGS = Path(__file__).resolve().parent / "measurements"
Basis = Literal["measured", "replayed", "computed"]


@dataclass(frozen=True)
class Calibration:
    """What the model assumes of every GPU, since no spec says it.

    Fitted to the calibration points of docs/gpu-model.md, published figures of an A100; on any other GPU they are
    estimates. A measurement of the device replaces all but the last four.
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
    reduction_s: float = 2.0e-6
    """From the last partial of a split reduction to a reduction kernel that runs."""
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


@dataclass(frozen=True)
class BlockMeasurement:
    """One kernel on one device: seconds of a stage with one block on the SM and with as many as it holds."""

    kernel: str
    alone_s: float
    full_s: float
    """Of a stage of all resident blocks."""
    start_s: float
    """What a launch takes beyond its stages."""
    spread: float


@dataclass(frozen=True)
class GpuProfile:
    """Observed L0 and L1 of kernels of one device."""

    basis: Basis
    device: str
    date: str
    versions: tuple[str, ...]
    kernels: tuple[BlockMeasurement, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> GpuProfile:
        data = json.loads(text)
        data["kernels"] = tuple(BlockMeasurement(**row) for row in data["kernels"])
        data["versions"] = tuple(data["versions"])
        return cls(**data)


COMPUTED = GpuProfile("computed", "", "", (), ())


def recording(spec: GpuSpec, folder: Path = RECORDINGS) -> GpuProfile:
    """The measurement of this device that ships with vortex, as a replay; what is computed where there is none."""
    path = folder / f"{spec.name}.json"
    if not path.is_file():
        return COMPUTED
    found = GpuProfile.from_json(path.read_text())
    return GpuProfile("replayed", found.device, found.date, found.versions, found.kernels)


def rates(spec: GpuSpec, calibration: Calibration = CALIBRATION) -> GpuRates:
    l2, dram = spec.memory("l2"), spec.memory("dram")
    return GpuRates(
        sms=float(spec.sms),
        per_sm=1 / spec.sms,
        launch=spec.launch_ns * 1e-9,
        l2_byte=1 / (l2.bandwidth_bytes_per_s * calibration.l2_share),
        port_byte=1 / (PORT_BYTES_PER_CYCLE * spec.clock_hz),
        dram_byte=1 / (dram.bandwidth_bytes_per_s * calibration.dram_share),
        l2_bytes=l2.capacity_bytes * calibration.resident_share,
        l2_latency=l2.latency_ns * 1e-9 * calibration.loaded,
        miss_latency=(dram.latency_ns - l2.latency_ns) * 1e-9 * calibration.loaded,
        reduction=calibration.reduction_s,
    )


def converted(strategy: BlockStrategy, rows: int, columns: int) -> float:
    """Multiply-add slots of a thread per step of k on CUDA cores: half-precision operands are widened first."""
    return rows * columns + (rows + columns if strategy.item_bytes == 2 else 0)


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
        slots = steps * each + reads / groups / (512 if s.item_bytes == 2 else 128)
        turn = per_scheduler * each * isa.flops * spec.schedulers / pipes
        chain = steps * max(turn, isa.latency_cycles / isa.clock_hz)
    elif s.backend is Backend.HOPPER:
        multiply = flops / pipes
        reads = float(groups * (l0.m + l0.m // isa.m * l0.n) * l1.k * s.item_bytes)
        slots = l1.k // isa.k * (l0.m // isa.m)
        latency = isa.latency_cycles * max(l0.n / isa.n, 0.25) / isa.clock_hz
        chain = max(l1.k // isa.k * (l0.m // isa.m) * latency, flops / pipes)
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


def raster(strategy: BlockStrategy, slots: int) -> int:
    """Rows of tiles that make the patch of one wave square, so that it shares most: a power of two."""
    ideal = math.sqrt(slots * strategy.l1.n / strategy.l1.m)
    return 1 << max(0, min(5, round(math.log2(ideal))))


def block_cost(
    spec: GpuSpec,
    variant: Variant,
    registers: int | None = None,
    measured: BlockMeasurement | None = None,
    can_split: bool = True,
    calibration: Calibration = CALIBRATION,
    scale: float = 1.0,
) -> BlockCosts:
    """One kernel as the cost model sees it; cost(L1) as measured, or computed and scaled where it was not."""
    s = variant.strategy
    computed = stage_cost(spec, variant, calibration)
    resident = resident_blocks(spec, s, registers)
    slots = resident * spec.sms
    waits = exposed(spec, variant)
    run = s.item_bytes * min(
        s.l1.m if variant.transpose_a else s.l1.k,
        s.l1.k if variant.transpose_b else s.l1.n,
    )
    scatter = (
        2.0 if s.store == "direct" and s.item_bytes == 2 and s.backend in (Backend.TENSOR_CORE, Backend.HOPPER) else 1.0
    )
    return BlockCosts(
        per_tile_m=1 / s.l1.m,
        per_tile_n=1 / s.l1.n,
        per_tile_k=1 / s.l1.k,
        item=float(s.item_bytes),
        out=float(s.item_bytes),
        resident=float(resident),
        per_resident=1 / resident,
        slots=float(slots),
        per_slots=1 / slots,
        work=computed.work * scale if measured is None else measured.full_s / resident,
        chain=computed.chain * scale if measured is None else measured.alone_s,
        serial=float(waits and measured is None),
        wait=0.0 if waits else 1 / (s.stages - 1),
        fetch=max(1.0, SECTOR / run) + (16 - min(variant.vector_bytes, 16)) / max(run, SECTOR),
        start=calibration.start_s + finish(spec, s) if measured is None else beyond_launch(spec, measured, calibration),
        scatter=scatter,
        raster=float(raster(s, slots)),
        leak=calibration.leak if measured is None else 0.0,
        most_parts=float(MOST_PARTS if can_split else 1),
    )


def beyond_launch(spec: GpuSpec, measured: BlockMeasurement, calibration: Calibration) -> float:
    """What is left of a measured start when launch and first load, which the cost adds by itself, are taken away."""
    known = spec.launch_ns + spec.memory("l2").latency_ns * calibration.loaded
    return max(measured.start_s - known * 1e-9, 0.0)


def measurements(profile: GpuProfile, variants: Sequence[Variant]) -> dict[str, BlockMeasurement]:
    """The measurement of each kernel: its own, else that of its strategy for another layout with loads as wide."""
    own = {row.kernel: row for row in profile.kernels}
    alike: dict[tuple[BlockStrategy, int], BlockMeasurement] = {}
    for variant in variants:
        if variant.name in own:
            alike.setdefault((variant.strategy, variant.vector_bytes), own[variant.name])
    rows = {v.name: own.get(v.name) or alike.get((v.strategy, v.vector_bytes)) for v in variants}
    return {name: row for name, row in rows.items() if row is not None}


def block_costs(
    spec: GpuSpec,
    variants: Sequence[Variant],
    profile: GpuProfile = COMPUTED,
    registers_of: Mapping[str, int] | None = None,
    whole: frozenset[str] = frozenset(),
    calibration: Calibration = CALIBRATION,
) -> tuple[BlockCosts, ...]:
    """Every kernel; `registers_of` has ptxas' counts by kernel name, `whole` the kernels without a split form.

    Kernels that a measurement leaves out are computed, and scaled as measured ones of their backend differ from theirs.
    """
    known = registers_of or {}
    measured = measurements(profile, variants)
    ratios: dict[Backend, list[float]] = {}
    for variant in variants:
        if (row := measured.get(variant.name)) is not None:
            plain = block_cost(spec, variant, known.get(variant.name), calibration=calibration)
            ratios.setdefault(variant.strategy.backend, []).append(row.full_s / (plain.work * plain.resident))
    scales = {backend: statistics.median(values) for backend, values in ratios.items()}
    return tuple(
        block_cost(
            spec,
            variant,
            known.get(variant.name),
            measured.get(variant.name),
            variant.name not in whole,
            calibration,
            scales.get(variant.strategy.backend, 1.0),
        )
        for variant in variants
    )
