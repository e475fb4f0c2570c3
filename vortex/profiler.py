"""The empirical half of the hybrid analyzer: L0 measured, replayed, or computed where the device is absent."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from vortex.arithmetic import Array
from vortex.assumptions import EFFECTS
from vortex.blocks import room_words
from vortex.candidates import DOT_ROWS, NARROW_ROWS, dot_tiles
from vortex.dtypes import STORED_BYTES, WordFormat
from vortex.effects import FLOAT
from vortex.epilogue import Store
from vortex.hardware import HardwareSpec, Instruction
from vortex.passes import CALL_SECONDS, TRIES, Timer, Timing, enough, handed, one_pass, quads_pay, settled
from vortex.rates import Rates
from vortex.selector import SlopeTable

RECORDINGS = Path(__file__).resolve().parent / "measurements"


@dataclass(frozen=True)
class Measurement:
    """One L0 micro-kernel: seconds = start + slope * k, and by how much the median of the passes is above them."""

    rows: int
    vectors: int
    start_s: float
    slope_s: float
    spread: float


@dataclass(frozen=True)
class Profile:
    """All that the cost model takes from the low levels, and where it came from."""

    basis: Literal["measured", "replayed", "computed"]
    device: str
    date: str
    versions: tuple[str, ...]
    kernels: tuple[Measurement, ...]
    copy_s: float
    transpose_s: float
    thread_start_s: float
    quads: bool = False
    """Whether micro-kernels of a single vector were quicker, and timed, with four elements of A loaded at once."""
    peak_flops_per_s: float = 0.0
    """Of one core between the micro-kernels, by float32 multiply-adds on registers alone; 0: not measured."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        data = json.loads(text)
        data["kernels"] = tuple(Measurement(**row) for row in data["kernels"])
        data["versions"] = tuple(data["versions"])
        return cls(**data)

    def slopes(self) -> SlopeTable:
        rows = 2 + max(kernel.rows for kernel in self.kernels)
        vectors = 1 + max(kernel.vectors for kernel in self.kernels)
        table: Array = np.zeros((vectors, rows), np.float32)
        for kernel in self.kernels:
            table[kernel.vectors, kernel.rows] = kernel.slope_s
        # Past the tallest micro-kernel of a width nothing is ever looked up with weight; repeat it to stay finite.
        for v in range(1, vectors):
            filled = np.flatnonzero(table[v])
            if filled.size:
                table[v, filled[-1] + 1 :] = table[v, filled[-1]]
        return SlopeTable(table)


def measure(
    spec: HardwareSpec,
    shapes: Iterable[tuple[int, int]],
    lanes: int,
    timer: Timer,
    versions: tuple[str, ...],
    dtype: str = "float32",
) -> Profile:
    """Time every (rows, vectors) micro-kernel at two depths, operands in the innermost cache, and the load stages."""
    inner, isa = spec.memories[0].capacity_bytes // 2, spec.multiplier(dtype)
    short = max(8, isa.depth)
    depths = {
        at: max(4 * short, min(256, inner // (4 * (at[0] + at[1] * lanes))) // isa.depth * isa.depth)
        for at in sorted(shapes)
    }
    quads = quads_pay(timer, depths)

    def micro_kernel(rows: int, vectors: int, depth: int) -> Timing:
        ideal = isa.step_cycles(rows, vectors) * depth / spec.clock_hz
        calls, of_spec = max(4, int(CALL_SECONDS / ideal)), ideal if rows > 1 else 0.0  # a single row waits for loads
        return Timing(lambda: min(timer.micro_kernel(0, rows, vectors, depth, calls, TRIES)), of_spec)

    def load_stage(stage: int) -> Timing:
        return Timing(lambda: min(timer.load_stage(stage, 256, 4 * lanes, 1024 + lanes, TRIES)))

    timings = [micro_kernel(*at, depth) for at, deep in depths.items() for depth in (short, deep)]
    timings += [load_stage(0), load_stage(1)]
    passes = enough(lambda: one_pass(timings, lambda: timer.multiply_add(1)[0], lambda: handed(timer, spec.cores)))
    seconds, medians, multiply_add = settled(passes)
    low, high = seconds[:-2].reshape(-1, 2).T
    slopes = (high - low) / (np.array([*depths.values()]) - short)
    spreads = np.max((medians / seconds - 1)[:-2].reshape(-1, 2), axis=1).round(4)
    found = zip(depths, np.maximum(low - slopes * short, 0.0), slopes, spreads, strict=True)
    return Profile(
        basis="measured",
        device=spec.name,
        date=time.strftime("%Y-%m-%d"),
        versions=(*versions, f"python {platform.python_version()}"),
        kernels=tuple(Measurement(*at, *map(float, figures)) for at, *figures in found),
        copy_s=float(seconds[-2]),
        transpose_s=float(seconds[-1]),
        thread_start_s=max(spec.thread_start_ns * 1e-9, min(one.handed for one in passes)),
        quads=quads,
        peak_flops_per_s=2 * lanes / multiply_add,
    )


WIDENING = 4
"""Instructions that make a vector of quantized weights float32, on as many ports again as multiply-adds have."""


def compute(
    spec: HardwareSpec, shapes: Iterable[tuple[int, int]], dtype: str = "float32", words: WordFormat | None = None
) -> Profile:
    """The same figures from the spec alone, for a device that is not here: issue, latency, loads of one core."""
    isa, inner = spec.multiplier(dtype), spec.memories[0]
    loads_per_cycle = inner.bandwidth_bytes_per_s / (spec.clock_hz * isa.lanes * 4)
    kernels = []
    for rows, vectors in sorted(shapes):
        tall = isa.tall(rows)
        accumulators, latency = tall * vectors, isa.latency_cycles / isa.depth
        cycles = max(isa.step_cycles(rows, vectors), (tall + vectors) / loads_per_cycle, latency)
        if words and words.weights:
            cycles += WIDENING * vectors / (2 * isa.issue_per_cycle)
        start = (12 + 2 * accumulators) / spec.clock_hz
        kernels.append(Measurement(rows, vectors, start, cycles / spec.clock_hz, 0.0))
    return Profile(
        basis="computed",
        device=spec.name,
        date="",
        versions=(),
        kernels=tuple(kernels),
        copy_s=2 / (isa.lanes * loads_per_cycle * spec.clock_hz) * 2,
        transpose_s=1 / spec.clock_hz,
        thread_start_s=spec.thread_start_ns * 1e-9,
    )


def recording(spec: HardwareSpec, folder: Path = RECORDINGS, dtype: str = "float32") -> Profile | None:
    """The measurement of this device that ships with vortex, if there is one."""
    path = folder / f"{spec.name}{'' if dtype == 'float32' else f'-{dtype}'}.json"
    return replace(Profile.from_json(path.read_text()), basis="replayed") if path.is_file() else None


def acquire(
    spec: HardwareSpec,
    shapes: Sequence[tuple[int, int]],
    lanes: int,
    timer: Timer | None,
    versions: tuple[str, ...],
    dtype: str = "float32",
    words: WordFormat | None = None,
) -> Profile:
    """Measured where a timer runs on the device, else replayed, else computed; the profile says which."""
    if timer is not None:
        return measure(spec, shapes, lanes, timer, versions, dtype)
    recorded = None if words and words.weights else recording(spec, dtype=dtype)
    if recorded is not None and {(k.rows, k.vectors) for k in recorded.kernels} >= set(shapes):
        return recorded
    return compute(spec, shapes, dtype, words)


FASTEST = 0.1
"""Quantile of the micro-kernels, the fastest first, that tells the clock: not one lucky measurement."""


def pace(profile: Profile, isa: Instruction) -> float:
    """The clock at which the fastest micro-kernels do what their instructions can, in Hz: that of the measured hour."""
    seconds = [k.slope_s / isa.step_cycles(k.rows, k.vectors) for k in profile.kernels]
    return float(1 / np.quantile(seconds, FASTEST))


NEVER_CROWDED = 1e6
"""Ways of an L1 in which no line is pushed out before all of it was read: tiles of AMX take whole lines of A."""
AS_SUMMED = Store()


def rates(
    spec: HardwareSpec, profile: Profile, dtype: str = "float32", words: WordFormat | None = None,
    store: Store = AS_SUMMED,
) -> Rates:  # fmt: skip
    """What the cost model needs: the profile's low levels and the spec's high ones."""
    l1, l2, outer, dram = spec.memories[0], spec.memories[1], spec.memories[-2], spec.memories[-1]
    budget, isa = spec.level("L1").max_utilization, spec.multiplier(dtype)
    # What widens narrow elements or quantized weights is in the slopes too.
    widened = isa.dtype != dtype or (words is not None and words.weights is not None)
    tiles = bool(words and words.tiles)
    # What the dot family is made of; beside tiles, which alone were measured.
    clock, vectors = spec.clock_hz if widened or tiles else pace(profile, isa), spec.by_vectors(dtype) or isa
    held = min(outer.capacity_bytes * max(1, spec.cores // outer.shared_by), EFFECTS.outer_core_bytes * spec.cores)
    sizes = np.array([[1.0, kernel.rows * kernel.vectors] for kernel in profile.kernels])
    fixed, each = np.maximum(np.linalg.lstsq(sizes, [kernel.start_s for kernel in profile.kernels])[0], 0.0)
    small, roomy, whole_lines = spec.kept_pages > 0, float(isa.issue_per_cycle <= 1), isa.lanes >= l1.line_bytes // 4
    crowded_bytes = EFFECTS.scattered_row_bytes if small else EFFECTS.crowded_row_bytes
    resident = EFFECTS.tile_share if tiles else EFFECTS.scattered_share if small else EFFECTS.resident_share
    outer_fill = EFFECTS.scattered_outer_fill if small else EFFECTS.outer_fill
    crammed_bytes, private = EFFECTS.crammed_row_bytes if small else crowded_bytes, l2.capacity_bytes // l2.shared_by
    panels = EFFECTS.kept_share * l1.capacity_bytes / l1.shared_by / 4 if whole_lines and small and not words else 0.0
    crowded_rows, crammed_rows = (max(private // each, 1) for each in (crowded_bytes, crammed_bytes))
    return Rates(
        call=EFFECTS.call_s,
        thread_start=EFFECTS.handed_s + profile.thread_start_s,
        tile_start=float(fixed),
        tile_vector=float(each),
        copy=profile.copy_s,
        transpose=profile.transpose_s,
        lanes=float(isa.lanes),
        registers=float(vectors.registers),
        narrow_rows=float(min(NARROW_ROWS, spec.memories[0].ways - 1)),
        multiply_add=vectors.cycles / (vectors.issue_per_cycle * clock),
        cores=float(spec.cores),
        latency_issues=vectors.in_flight,
        dot_rows=float(DOT_ROWS),
        dot_columns=float(max(dot_tiles(vectors.registers))),
        dot_turned=0.0 if words else float(max(dot_tiles(vectors.registers))),
        l1_bytes=l1.capacity_bytes / l1.shared_by * budget,
        l2_bytes=l2.capacity_bytes / l2.shared_by * min(budget, resident),
        l3_bytes=held * EFFECTS.outer_share,
        outer_bytes=float(held),
        l1_ways=NEVER_CROWDED if tiles else float(l1.ways),
        line_bytes=float(l1.line_bytes),
        bytes_b=words.weights.bytes * words.per_word if words and words.weights else 4.0,
        l2_byte=(EFFECTS.tile_fill if tiles else EFFECTS.fill) / l2.bandwidth_bytes_per_s,
        l3_byte=outer_fill / outer.bandwidth_bytes_per_s,
        l3_byte_shared=outer_fill / outer.total_bandwidth_bytes_per_s,
        dram_byte=1 / dram.bandwidth_bytes_per_s,
        dram_byte_shared=1 / dram.total_bandwidth_bytes_per_s,
        l1_span=float(l1.sets * l1.line_bytes),
        split=EFFECTS.split_cycles / clock,
        ahead=EFFECTS.ahead_bytes,
        l3_latency=EFFECTS.l3_latency_s,
        dram_latency=EFFECTS.dram_latency_s,
        in_time=0.0 if roomy or small else EFFECTS.l3_latency_s,
        window=EFFECTS.window,
        partial=EFFECTS.kept_partial if tiles else EFFECTS.partial,
        room=room_words(l2.capacity_bytes / l2.shared_by) if tiles else 0.0,
        streams=EFFECTS.streams,
        unasked=1.0 if roomy or small else EFFECTS.unasked,
        panels_kept=EFFECTS.scattered_panels if small else EFFECTS.panels_kept,
        misses=EFFECTS.misses,
        burst=EFFECTS.burst,
        leap=EFFECTS.leap,
        piece=EFFECTS.piece,
        lone_pieces=0.0 if roomy or small else EFFECTS.lone_pieces,
        row_piece=EFFECTS.scattered_row_piece if small else EFFECTS.row_piece,
        row_start=EFFECTS.row_start,
        overtaken=EFFECTS.overtaken,
        short_runs=EFFECTS.short_runs,
        covered=0.0 if words and not tiles else EFFECTS.covered,
        shared_stream=EFFECTS.shared_stream,
        turned_leap=EFFECTS.turned_leap,
        alone=EFFECTS.alone / (isa.issue_per_cycle * clock),
        collided=EFFECTS.scattered_collided if small else 0.0,
        visit=EFFECTS.visit,
        strewn=EFFECTS.scattered_strewn if small else EFFECTS.roomy_strewn if roomy else EFFECTS.strewn,
        huddled=EFFECTS.huddled,
        dot_load=EFFECTS.dot_load,
        dot_stream=EFFECTS.dot_stream_cycles * vectors.issue_per_cycle / vectors.cycles,
        straddled=EFFECTS.straddled,
        page=EFFECTS.page,
        dot_enter=EFFECTS.dot_enter_cycles / clock,
        fold=(EFFECTS.fold_roomy_cycles if roomy else EFFECTS.fold_cycles) / clock,
        held_step=max(1.0, EFFECTS.held_step_cycles * isa.issue_per_cycle),
        held_narrow=max(0.5, EFFECTS.held_step_cycles * isa.issue_per_cycle),
        held_row=(EFFECTS.held_roomy_row_cycles if roomy else EFFECTS.held_row_cycles) / clock,
        held_enter=EFFECTS.held_enter_cycles / clock,
        held_load=EFFECTS.held_load_cycles / clock,
        held_pieced=EFFECTS.held_pieced if roomy or small else EFFECTS.held_asked_pieced,
        held_ragged=EFFECTS.held_roomy_ragged if roomy else 0.0,
        held_scattered=EFFECTS.held_scattered,
        held_apart=EFFECTS.held_apart_cycles / clock if small else 0.0,
        held_recurring=EFFECTS.held_recurring_cycles / clock,
        held_torn=roomy * EFFECTS.held_torn_cycles / clock,
        held_torn_narrow=roomy * EFFECTS.held_torn_narrow_cycles / clock,
        roomy=roomy,
        streamed_torn=roomy * EFFECTS.streamed_torn_cycles / clock,
        streamed_broken=EFFECTS.streamed_broken if small else roomy * EFFECTS.roomy_broken,
        streamed_broken_row=0.0 if small else roomy * EFFECTS.roomy_broken_row,
        pieced_stream=0.0 if small or roomy or words or not whole_lines else EFFECTS.pieced_stream,
        tile_enter=(EFFECTS.amx_enter_cycles if tiles else EFFECTS.tile_enter_cycles) / clock,
        panel_turn=EFFECTS.panel_turn_cycles / clock,
        tile_turn=EFFECTS.tile_turn_cycles / clock,
        tile_row=0.0 if tiles else EFFECTS.tile_row_cycles / clock,
        nest=EFFECTS.nest_s,
        row_nest=EFFECTS.row_nest_s,
        stage_start=EFFECTS.stage_start_s,
        copy_row=EFFECTS.copy_row_cycles / clock,
        turn_start=EFFECTS.turn_start_s,
        turn=profile.transpose_s * (EFFECTS.scattered_turned if small else EFFECTS.turned),
        crowded_span=float(l1.sets * l1.line_bytes // EFFECTS.crowded_places),
        row_begin=EFFECTS.row_begin if small else 0.0,
        refill=EFFECTS.refill if small and not words else 0.0,
        line_again=EFFECTS.line_again if small and not words else 0.0,
        panel_room=float(int(panels)),
        crowded_rows=float(crowded_rows),
        per_crowded_rows=1.0 / crowded_rows,
        crammed_rows=float(crammed_rows),
        per_crammed_rows=1.0 / crammed_rows,
        crammed_line=0.0 if whole_lines else EFFECTS.crammed_cycles / clock,
        reach=EFFECTS.reach_share * spec.kept_pages * spec.page_bytes,
        page_bytes=float(spec.page_bytes),
        page_line=EFFECTS.page_line if small else 0.0,
        written_back=EFFECTS.scattered_sent_back if small else EFFECTS.sent_back,
        written_past=EFFECTS.sent_past if small else 1.0,
        contended=EFFECTS.contended_s,
        # What outputs of tiles take was measured as if they were their sums.
        out_bytes=float(STORED_BYTES[store.out]) if words and not tiles else FLOAT,
        finish=EFFECTS.finish_cycles / clock if words and not tiles and store.needed else 0.0,
    )
