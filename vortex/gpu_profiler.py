"""L0 and L1 of GPU kernels: measured or replayed where the device is known, else computed (`gpu_stages`)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vortex.dtypes import SUMS
from vortex.epilogue import Store
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_cost import MOST_PARTS
from vortex.gpu_figures import BlockCosts, GpuRates
from vortex.gpu_sieve import resident_blocks
from vortex.gpu_stages import CALIBRATION, PORT_BYTES_PER_CYCLE, SECTOR, Calibration, exposed, finish, stage_cost

if TYPE_CHECKING:
    from vortex.gpu_hardware import GpuSpec

RECORDINGS = Path(__file__).resolve().parent / "measurements"
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4}
"""Of C, and of what an epilogue reads."""
TWINS = {"float16": "bfloat16", "bfloat16": "float16"}
Basis = Literal["measured", "replayed", "computed"]


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
        part=calibration.part_s,
    )


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
    finished: float | None = None,
) -> BlockCosts:
    """One kernel as the cost model sees it; cost(L1) as measured, or computed and scaled where it was not."""
    s = variant.strategy
    computed = stage_cost(spec, variant, calibration)
    resident = resident_blocks(spec, s, registers)
    slots = resident * spec.sms // s.cluster * s.cluster
    waits = exposed(spec, variant)
    start = calibration.start_s + finish(spec, s) if measured is None else beyond_launch(spec, measured, calibration)
    run = s.item_bytes * min(
        s.l1.m if variant.transpose_a else s.l1.k,
        s.l1.k if variant.transpose_b else s.l1.n,
    )
    scatter = (
        2.0 if s.store == "direct" and s.item_bytes == 2 and s.backend in (Backend.TENSOR_CORE, Backend.HOPPER) else 1.0
    )
    return BlockCosts(
        tile_m=float(s.l1.m),
        tile_n=float(s.l1.n),
        per_tile_m=1 / s.l1.m,
        per_tile_n=1 / s.l1.n,
        per_tile_k=1 / s.l1.k,
        item=float(s.item_bytes),
        out=float(ELEMENT_BYTES.get(SUMS.get(s.dtype, ""), s.item_bytes)) if finished is None else finished,
        resident=float(resident),
        per_resident=1 / resident,
        slots=float(slots),
        per_slots=1 / slots,
        work=computed.work * scale if measured is None else measured.full_s / resident,
        chain=computed.chain * scale if measured is None else measured.alone_s,
        crowd=crowding(measured, resident),
        serial=float(waits),
        waited=0.0 if measured is None else spec.memory("l2").latency_ns * 1e-9 * calibration.loaded,
        wait=0.0 if waits else 1 / (s.stages - 1),
        blank=calibration.blank_row_s if s.backend is Backend.HOPPER and measured is not None else 0.0,
        fetch=max(1.0, SECTOR / run) + (16 - min(variant.vector_bytes, 16)) / max(run, SECTOR),
        start=start + (calibration.cluster_s if s.cluster > 1 else 0.0),
        again=calibration.staying if s.backend is Backend.HOPPER else 1.0,
        scatter=scatter,
        raster=float(raster(s, slots)),
        leak=calibration.leak,
        most_parts=float(MOST_PARTS if can_split else 1),
        cluster=float(s.cluster),
        per_cluster=1 / s.cluster,
    )


def crowding(measured: BlockMeasurement | None, resident: int) -> float:
    """What each further block adds to a stage, all alike. Blocks of a warp or two share schedulers long before an SM is
    full, so a stage takes more than the longer one of its unit's work and its chain."""
    if measured is None or resident == 1:
        return 0.0
    return max(measured.full_s - measured.alone_s, 0.0) / (resident - 1)


def beyond_launch(spec: GpuSpec, measured: BlockMeasurement, calibration: Calibration) -> float:
    """What is left of a measured start when launch and first load, which the cost adds by itself, are taken away."""
    known = spec.launch_ns + spec.memory("l2").latency_ns * calibration.loaded
    return max(measured.start_s - known * 1e-9, 0.0)


def twin(variant: Variant) -> Variant:
    """The kernel of the other type of two bytes: instructions of both take as long."""
    strategy = variant.strategy
    return replace(variant, strategy=replace(strategy, dtype=TWINS.get(strategy.dtype, strategy.dtype)))


def measurements(profile: GpuProfile, variants: Sequence[Variant]) -> dict[str, BlockMeasurement]:
    """The measurement of each kernel: its own or its twin's, else that of its strategy for another layout with loads as
    wide."""
    own = {row.kernel: row for row in profile.kernels}
    found = {v.name: own.get(v.name) or own.get(twin(v).name) for v in variants}
    alike: dict[tuple[BlockStrategy, int], BlockMeasurement] = {}
    for variant in variants:
        if (row := found[variant.name]) is not None:
            alike.setdefault((variant.strategy, variant.vector_bytes), row)
    rows = {v.name: found[v.name] or alike.get((v.strategy, v.vector_bytes)) for v in variants}
    return {name: row for name, row in rows.items() if row is not None}


def finished_bytes(store: Store | None) -> float | None:
    """Bytes that an element of C moves with an epilogue: its own, and those that are read element by element."""
    if store is None:
        return None
    read = sum(ELEMENT_BYTES[operand.dtype] for operand in store.chain.operands if operand.per == "element")
    return float(ELEMENT_BYTES[store.out] + read)


def block_costs(
    spec: GpuSpec,
    variants: Sequence[Variant],
    profile: GpuProfile = COMPUTED,
    registers_of: Mapping[str, int] | None = None,
    whole: frozenset[str] = frozenset(),
    calibration: Calibration = CALIBRATION,
    finished: float | None = None,
) -> tuple[BlockCosts, ...]:
    """Every kernel; `registers_of` has ptxas' counts by kernel name, `whole` the kernels without a split form.

    `finished` are the bytes that an element of C moves, if not its own alone (`finished_bytes`).

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
            finished,
        )
        for variant in variants
    )
