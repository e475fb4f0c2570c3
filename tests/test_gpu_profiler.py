"""cost(L1) of GPU kernels: computed from the pipeline of an SM, or taken from a measurement of the device."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_priced import A100, SPECS, selector, spread

from vortex.candidates import Tile
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_profiler import (
    BlockMeasurement,
    GpuProfile,
    block_cost,
    block_costs,
    raster,
    rates,
    recording,
)
from vortex.gpu_selector import Extents
from vortex.gpu_sieve import instruction_of, resident_blocks
from vortex.gpu_stages import CALIBRATION, exposed, finish, stage_cost, staged
from vortex.specs import what_if

TENSOR = BlockStrategy(Backend.TENSOR_CORE, "float16", Tile(64, 64, 16), Tile(128, 128, 32), Tile(16, 8, 16), 4)
ALONG_K = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 4, 256), Tile(4, 16, 256), Tile(4, 4, 8), 1)
CUDA = BlockStrategy(Backend.CUDA_CORE, "float32", Tile(32, 64, 1), Tile(128, 128, 8), Tile(8, 8, 1), 4)


def variant(strategy: BlockStrategy, vector: int = 16) -> Variant:
    return Variant(strategy, False, False, vector)


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("dtype", ["float16", "float32", "tfloat32", "bfloat16"])
def test_no_stage_is_faster_than_its_instructions(name, dtype):
    spec = SPECS[name]
    if dtype in ("tfloat32", "bfloat16") and not spec.has("mma", dtype):
        pytest.skip(f"{name} has no mma for {dtype}")
    for strategy in spread(spec, dtype):
        isa = instruction_of(spec, strategy.backend, strategy.dtype)
        flops = 2 * strategy.l1.m * strategy.l1.n * strategy.l1.k
        cost = stage_cost(spec, variant(strategy))
        assert cost.multiply >= flops / (isa.flops_per_cycle_per_sm * isa.clock_hz), strategy
        assert 0 < cost.multiply <= cost.work < 1e-3 and 0 <= cost.shared < 1e-3 and 0 < cost.issue < 1e-3
        assert cost.chain > 0.2 * cost.multiply


def test_the_pipes_bound_large_warp_tiles_and_shared_memory_small_ones():
    large, small = (
        stage_cost(A100, variant(TENSOR)),
        stage_cost(A100, variant(replace(TENSOR, l0=Tile(16, 16, 16), l1=Tile(64, 64, 32)))),
    )
    assert large.work == large.multiply
    assert small.work == small.shared > 1.5 * small.multiply


def test_shared_memory_traffic_is_what_warps_read_and_copies_write():
    cost = stage_cost(A100, variant(TENSOR))
    read, written = 4 * (64 + 64) * 32 * 2, (128 + 128) * 32 * 2
    assert cost.shared == pytest.approx((read + written) / (128 * A100.clock_hz * CALIBRATION.shared_share))


def test_half_precision_on_cuda_cores_pays_for_widening():
    half, single = stage_cost(A100, variant(replace(CUDA, dtype="float16"))), stage_cost(A100, variant(CUDA))
    assert half.multiply / single.multiply == pytest.approx(1 + 16 / 64)


@pytest.mark.parametrize(("size", "slower"), [(16, 1.0), (8, 1.0), (4, 1.2), (2, 2.0)])
def test_narrow_copies_take_issue_slots(size, slower):
    assert stage_cost(A100, variant(TENSOR, size)).issue >= slower * stage_cost(A100, variant(TENSOR)).issue


def test_copies_are_staged_where_the_hardware_or_the_alignment_asks_for_it():
    assert not staged(A100, variant(TENSOR)) and not staged(A100, variant(TENSOR, 4))
    assert staged(A100, variant(TENSOR, 2)) and staged(A100, variant(replace(TENSOR, stages=1)))
    assert staged(SPECS["t4"], variant(CUDA)) and staged(A100, variant(ALONG_K))
    held, single = variant(replace(CUDA, stages=2)), variant(replace(CUDA, stages=1))
    assert exposed(SPECS["t4"], single) and not exposed(SPECS["t4"], held)  # registers hold the next stage
    assert block_cost(SPECS["t4"], held).wait == 1 and block_cost(SPECS["t4"], single).serial == 1
    assert block_cost(A100, variant(TENSOR, 2)).serial == 1 and block_cost(A100, variant(TENSOR)).serial == 0


def test_residency_is_what_the_sieve_says_with_the_registers_of_ptxas():
    for registers in (64, 128, 255):
        cost = block_cost(A100, variant(TENSOR), registers)
        assert cost.resident == resident_blocks(A100, TENSOR, registers)
        assert cost.slots == cost.resident * A100.sms and cost.per_slots == 1 / cost.slots
    named = block_costs(A100, [variant(TENSOR)], registers_of={variant(TENSOR).name: 255})
    assert named[0].resident == resident_blocks(A100, TENSOR, 255)


def test_a_kernel_without_a_split_form_is_never_cut():
    name = variant(TENSOR).name
    assert block_costs(A100, [variant(TENSOR)], whole=frozenset({name}))[0].most_parts == 1
    assert block_costs(A100, [variant(TENSOR)])[0].most_parts > 1


@pytest.mark.parametrize(
    ("tile", "slots", "expected"), [((128, 128), 108, 8), ((256, 64), 108, 4), ((64, 256), 108, 16), ((16, 16), 1, 1)]
)
def test_raster_makes_the_patch_of_a_wave_square(tile, slots, expected):
    strategy = replace(TENSOR, l1=Tile(*tile, 32))
    assert raster(strategy, slots) == expected
    rows, columns = expected * tile[0], math.ceil(slots / expected) * tile[1]
    assert 0.4 < rows / columns < 2.5


def test_sums_of_lanes_that_share_k_meet_at_the_end():
    across = BlockStrategy(Backend.SKINNY, "float16", Tile(4, 256, 4), Tile(4, 1024, 4), Tile(4, 8, 4), 1)
    assert finish(A100, ALONG_K) > 0 == finish(A100, across)


MEASURED = BlockMeasurement(variant(TENSOR).name, alone_s=1e-6, full_s=1.5e-6, start_s=5e-6, spread=0.01)


def test_a_measurement_replaces_what_is_computed():
    cost = block_cost(A100, variant(TENSOR), 200, MEASURED)
    known = A100.launch_ns * 1e-9 + rates(A100).l2_latency
    assert (cost.chain, cost.work * cost.resident) == (1e-6, pytest.approx(1.5e-6))
    assert cost.start == pytest.approx(MEASURED.start_s - known)
    assert (cost.leak, cost.serial) == (CALIBRATION.leak, 0)
    chooser = replace(selector(A100), variants=(variant(TENSOR),), costs=(cost,), basis="measured")
    seconds = chooser.evaluate(Extents(128, 128, 32 * 1000), (chooser.group((False, False), 16)))[0].total
    assert float(seconds[0]) == pytest.approx(1000 * 1e-6, rel=0.05)


def test_a_recording_is_replayed_for_its_device_alone(tmp_path: Path):
    profile = GpuProfile("measured", "an A100", "2026-01-01", ("driver 1",), (MEASURED,))
    (tmp_path / f"{A100.name}.json").write_text(profile.to_json())
    found = recording(A100, tmp_path)
    assert (found.basis, found.kernels, found.device) == ("replayed", (MEASURED,), "an A100")
    assert recording(SPECS["h200"], tmp_path).basis == "computed"
    assert block_costs(A100, [variant(TENSOR)], found)[0].chain == 1e-6


def test_kernels_that_were_not_measured_learn_from_those_that_were():
    """The same strategy for another layout takes its times; other strategies are off by as much as the median."""
    turned = Variant(TENSOR, True, True, 16)
    other, narrow = variant(replace(TENSOR, stages=3)), variant(TENSOR, 8)
    profile = GpuProfile("measured", "an A100", "2026-01-01", (), (MEASURED,))
    own, alike, scaled, wide = block_costs(A100, [variant(TENSOR), turned, other, narrow], profile)
    plain = block_costs(A100, [variant(TENSOR), turned, other, narrow])
    assert (alike.chain, alike.work) == (own.chain, own.work)
    assert scaled.work / plain[2].work == pytest.approx(own.work / plain[0].work)
    assert wide.work / plain[3].work == pytest.approx(own.work / plain[0].work)
    cores = block_costs(A100, [variant(TENSOR), variant(CUDA)], profile)
    assert cores[1] == block_costs(A100, [variant(CUDA)])[0]


def test_the_shipped_recording_is_of_the_one_gpu_that_was_measured():
    bases = {name: recording(spec).basis for name, spec in SPECS.items()}
    assert {name for name, basis in bases.items() if basis == "replayed"} == {"h200"}
    assert recording(SPECS["h200"]).device == "NVIDIA H200"


def test_a_kernel_learns_from_its_twin_of_the_other_type_of_two_bytes():
    profile = GpuProfile("measured", "an A100", "2026-01-01", (), (MEASURED,))
    other = variant(replace(TENSOR, dtype="bfloat16"))
    assert block_costs(A100, [other], profile)[0].chain == MEASURED.alone_s
    alone = [variant(replace(CUDA, dtype="float16"))]
    assert block_costs(A100, alone, profile) == block_costs(A100, alone)


def test_blocks_between_one_and_all_that_an_sm_holds_are_between_their_measured_times():
    cost = block_cost(A100, variant(TENSOR), 64, MEASURED)
    assert cost.resident > 1 and cost.chain + (cost.resident - 1) * cost.crowd == pytest.approx(MEASURED.full_s)
    assert block_cost(A100, variant(TENSOR), 64).crowd == 0
    one = variant(replace(TENSOR, stages=5, l1=Tile(256, 128, 32)))
    assert block_cost(A100, one, 255, MEASURED).crowd == 0  # an SM holds no second block


def test_rows_that_tma_fills_are_priced_beside_a_measurement_of_whole_tiles():
    tile, thread = Tile(64, 32, 64), Tile(64, 32, 16)
    few = Variant(BlockStrategy(Backend.HOPPER, "float16", thread, tile, thread, 4), False, True, 16)
    row = replace(MEASURED, kernel=few.name, alone_s=1e-7, full_s=1e-7)
    (cost,) = block_costs(SPECS["h200"], [few], GpuProfile("measured", "an H200", "", (), (row,)))
    assert cost.blank == CALIBRATION.blank_row_s and block_costs(SPECS["h200"], [few])[0].blank == 0
    chooser = replace(selector(SPECS["h200"]), variants=(few,), costs=(cost,), basis="measured")
    key = chooser.group((False, True), 16)
    whole, some = (float(chooser.evaluate(Extents(m, 4096, 4096), key)[0].total[0]) for m in (64, 10))
    assert some > max(whole, 64 * 54 * CALIBRATION.blank_row_s)  # 64 stages, 54 rows of each


def test_what_waits_for_its_loads_has_the_latency_of_l2_in_its_measurement():
    row = replace(MEASURED, kernel=variant(ALONG_K).name)
    measured, computed = block_cost(A100, variant(ALONG_K), 64, row), block_cost(A100, variant(ALONG_K), 64)
    assert (measured.serial, computed.serial) == (1, 1)
    assert (measured.waited, computed.waited) == (pytest.approx(rates(A100).l2_latency), 0)


def test_rates_follow_the_spec():
    before, after = rates(A100), rates(what_if(A100, {"dram.clock_hz": A100.memory("dram").clock_hz // 2}))
    assert after.dram_byte == pytest.approx(2 * before.dram_byte, rel=1e-3)
    assert before.sms == 108 and before.per_sm == 1 / 108
    assert before.launch == A100.launch_ns * 1e-9
