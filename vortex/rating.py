"""What the cost model needs of a device: the low levels as its profile has them, the high ones as its spec does."""

from __future__ import annotations

import numpy as np

from vortex.assumptions import EFFECTS
from vortex.blocks import room_words
from vortex.candidates import DOT_ROWS, NARROW_ROWS, dot_tiles
from vortex.dtypes import STORED_BYTES, WordFormat
from vortex.effects import FLOAT
from vortex.epilogue import Store
from vortex.hardware import HardwareSpec, Instruction
from vortex.profiler import Profile
from vortex.rates import Rates
from vortex.sieve import beyond

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
    roomy, whole_lines = float(isa.issue_per_cycle <= 1), isa.lanes >= l1.line_bytes // 4
    # A Zen 2 has of what other cores lose by small pages that translations run out, and that L2 has room by chance.
    small = spec.kept_pages > 0 and whole_lines
    crowded_bytes = EFFECTS.scattered_row_bytes if small else EFFECTS.crowded_row_bytes
    resident = EFFECTS.tile_share if tiles else EFFECTS.scattered_share if small else EFFECTS.resident_share
    fold = EFFECTS.fold_cycles if whole_lines else EFFECTS.narrow_fold_cycles
    outer_fill = EFFECTS.outer_fill if whole_lines else EFFECTS.narrow_outer_fill
    outer_fill = EFFECTS.scattered_outer_fill if small else outer_fill
    crammed_bytes, private = EFFECTS.crammed_row_bytes if small else crowded_bytes, l2.capacity_bytes // l2.shared_by
    panels = EFFECTS.kept_share * l1.capacity_bytes / l1.shared_by / 4 if small and not words else 0.0
    crowded_rows, crammed_rows = (max(private // each, 1) for each in (crowded_bytes, crammed_bytes))
    followed = whole_lines and not (small or roomy or words)
    return Rates(
        call=EFFECTS.call_s if whole_lines else EFFECTS.narrow_call_s,
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
        l2_certain=private * min(budget, resident, EFFECTS.scattered_share if spec.kept_pages else 1.0),
        l2_buffer=private * budget,
        blocks_beyond=float(words is None and beyond(spec, spec.level("L1").memory) > 0),
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
        piece=EFFECTS.piece if whole_lines else EFFECTS.narrow_piece,
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
        visit=EFFECTS.visit if whole_lines else EFFECTS.narrow_visit,
        strewn=EFFECTS.scattered_strewn
        if small or not whole_lines
        else EFFECTS.roomy_strewn
        if roomy
        else EFFECTS.strewn,
        huddled=EFFECTS.huddled,
        dot_load=EFFECTS.dot_load,
        dot_stream=EFFECTS.dot_line_cycles
        * (4 * vectors.lanes / l1.line_bytes)
        * vectors.issue_per_cycle
        / vectors.cycles,
        straddled=EFFECTS.straddled,
        page=EFFECTS.page if whole_lines else 0.0,
        dot_seen=EFFECTS.dot_seen if small else 0.0,
        dot_reloaded=1.0 if whole_lines else EFFECTS.narrow_dot_reloaded,
        dot_enter=EFFECTS.dot_enter_cycles / clock,
        fold=(EFFECTS.fold_roomy_cycles if roomy else fold) / clock,
        held_step=max(1.0, EFFECTS.held_step_cycles * isa.issue_per_cycle),
        held_narrow=max(0.5, EFFECTS.held_step_cycles * isa.issue_per_cycle),
        held_row=(EFFECTS.held_roomy_row_cycles if roomy else EFFECTS.held_row_cycles) / clock,
        held_enter=EFFECTS.held_enter_cycles / clock,
        held_load=EFFECTS.held_load_cycles / clock,
        held_parts=0.0 if whole_lines else EFFECTS.held_parts_cycles / clock,
        held_left=0.0 if whole_lines else EFFECTS.held_left_cycles / clock,
        held_pieced=EFFECTS.held_pieced if roomy or small else EFFECTS.held_asked_pieced,
        held_ragged=EFFECTS.held_roomy_ragged if roomy else 0.0,
        held_scattered=0.0 if roomy and whole_lines and not words else EFFECTS.held_scattered,
        held_apart=EFFECTS.held_apart_cycles / clock if small else 0.0,
        held_recurring=EFFECTS.held_recurring_cycles / clock,
        held_torn=roomy * EFFECTS.held_torn_cycles / clock,
        held_torn_narrow=roomy * EFFECTS.held_torn_narrow_cycles / clock,
        roomy=roomy,
        streamed_torn=roomy * EFFECTS.streamed_torn_cycles / clock,
        streamed_broken=EFFECTS.streamed_broken if small else roomy * EFFECTS.roomy_broken,
        streamed_broken_row=0.0 if small else roomy * EFFECTS.roomy_broken_row,
        pieced_stream=EFFECTS.pieced_stream if followed else 0.0,
        loose_line=EFFECTS.loose_line_cycles / clock if followed else 0.0,
        tile_enter=(EFFECTS.amx_enter_cycles if tiles else EFFECTS.tile_enter_cycles) / clock,
        panel_turn=EFFECTS.panel_turn_cycles / clock,
        tile_turn=EFFECTS.tile_turn_cycles / clock,
        tile_row=0.0 if tiles else EFFECTS.tile_row_cycles / clock,
        tile_run=1.0 if whole_lines or profile.basis == "computed" else EFFECTS.narrow_tile_run,
        nest=EFFECTS.nest_s,
        row_nest=EFFECTS.row_nest_s,
        stage_start=EFFECTS.stage_start_s,
        copy_row=EFFECTS.copy_row_cycles / clock,
        turn_start=EFFECTS.turn_start_s,
        turn=profile.transpose_s * (EFFECTS.turned if whole_lines and not small else EFFECTS.scattered_turned),
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
