"""Sanity of predicted seconds on GPUs: limits, growth, and that every term does what it says; for shipped specs."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from gpu_priced import A100, SPECS, only, selector
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vortex.candidates import Tile
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_cost import GpuCost
from vortex.gpu_explain import SUMMED
from vortex.gpu_profiler import rates
from vortex.gpu_selector import LAYOUTS, Extents, GpuSelector, room
from vortex.gpu_sieve import instruction_of
from vortex.gpu_stages import CALIBRATION
from vortex.specs import load_spec, what_if

NAMES = st.sampled_from(sorted(SPECS))
EXTENTS = st.integers(1, 20_000)
KEY = LAYOUTS[0], 16
ROUNDING = 1e-4
EFFECT = 0.12
"""Tolerance where a larger extent fills tiles, parts or waves better: a real gain, and a small one."""
CUT = 0.03
"""A small product has few cuts to choose from, and each part costs the kernel that adds them up."""
WAVE = 0.2
"""And of one kernel where a later wave finds in L2 what an earlier one has read."""
few = settings(max_examples=60, deadline=None)


def block(m: int, n: int, k: int, rows: int, columns: int, stages: int = 4, vector: int = 16) -> Variant:
    l0 = Tile(rows, columns, 16)
    return Variant(
        BlockStrategy(Backend.TENSOR_CORE, "float16", l0, Tile(m, n, k), Tile(16, 8, 16), stages, "shared"),
        False,
        False,
        vector,
    )


LARGE = block(256, 128, 32, 64, 64, 3)
MIDDLE = block(128, 128, 32, 64, 64, 4)
SMALL = block(64, 64, 64, 32, 32, 5)


def least(chooser: GpuSelector, extents: Extents) -> np.ndarray:
    """Seconds of every kernel with its best cut."""
    return np.min([np.asarray(cost.total) for cost in chooser.evaluate(extents, KEY)], axis=0)


def whole(extents: Extents, *kernels: Variant, spec=A100) -> GpuCost:
    """The cost with the reduction in one part."""
    return only(selector(A100), *kernels, spec=spec).evaluate(extents, KEY)[0]


def one(value) -> float:
    return float(np.asarray(value).ravel()[0])


@few
@given(NAMES, EXTENTS, EXTENTS, EXTENTS)
def test_terms_are_finite_none_is_negative_and_they_add_up(name, m, n, k):
    for cost in selector(SPECS[name]).evaluate(Extents(m, n, k), KEY):
        terms = {key: np.asarray(value) for key, value in cost.terms().items()}
        for key, value in terms.items():
            assert np.isfinite(value).all(), key
            assert (value >= -ROUNDING).all(), key
        np.testing.assert_allclose(sum(terms[key] for key in SUMMED), terms["total"], rtol=1e-4)


@few
@given(NAMES, EXTENTS, EXTENTS, EXTENTS)
def test_nothing_is_faster_than_the_roofline(name, m, n, k):
    spec = SPECS[name]
    chooser = selector(spec)
    seconds = least(chooser, Extents(m, n, k))
    memory = 2 * (m * k + k * n + m * n) / spec.memory("dram").bandwidth_bytes_per_s
    for index, predicted in zip(chooser.groups[KEY], seconds, strict=True):
        strategy = chooser.variants[index].strategy
        isa = instruction_of(spec, strategy.backend, strategy.dtype)
        arithmetic = 2 * m * n * k / (spec.sms * isa.flops_per_cycle_per_sm * isa.clock_hz)
        assert predicted >= max(memory, arithmetic) * (1 - ROUNDING), strategy


@few
@example("rtx3090", 1, 1, 3425, "n", 8)
@given(NAMES, EXTENTS, EXTENTS, EXTENTS, st.sampled_from("mnk"), st.integers(1, 4000))
def test_a_larger_shape_is_not_cheaper(name, m, n, k, axis, more):
    small = Extents(m, n, k)
    large = small._replace(**{axis: getattr(small, axis) + more})
    before, after = least(selector(SPECS[name]), small), least(selector(SPECS[name]), large)
    assert (after >= before * (1 - EFFECT)).all()
    assert after.min() >= before.min() * (1 - EFFECT)


@few
@given(NAMES, EXTENTS, EXTENTS, EXTENTS, st.sampled_from("mnk"))
def test_twice_the_work_costs_more(name, m, n, k, axis):
    small = Extents(m, n, k)
    large = small._replace(**{axis: 2 * getattr(small, axis)})
    before, after = least(selector(SPECS[name]), small), least(selector(SPECS[name]), large)
    assert after.min() >= before.min() * (1 - CUT)
    # Of one kernel that waits for nearly each load, the last wave of twice the rows may find its columns in L2.
    assert (after >= before * (1 - WAVE)).all()


def wgmma(cluster: int) -> Variant:
    tile = Tile(128, 256, 64)
    strategy = BlockStrategy(
        Backend.HOPPER, "float16", Tile(64, 256, 16), tile, Tile(64, 256, 16), 4, "shared", cluster
    )
    return Variant(strategy, False, False, 16)


def test_a_cluster_draws_the_columns_of_b_once():
    """Where L2 binds, by two thirds of the bytes; on one SM, whose port sees all of them, by none."""
    h200, big = load_spec("h200"), Extents(8192, 8192, 8192)
    alone, both = (whole(big, wgmma(cluster), spec=h200) for cluster in (1, 2))
    assert one(both.exposed) < 0.7 * one(alone.exposed) and one(both.multiply) == pytest.approx(one(alone.multiply))
    pair = Extents(256, 256, 8192)
    alone, both = (whole(pair, wgmma(cluster), spec=h200) for cluster in (1, 2))
    assert one(both.exposed) == pytest.approx(one(alone.exposed))


def test_a_launch_of_clusters_takes_longer():
    h200, small = load_spec("h200"), Extents(256, 256, 64)
    alone, both = (whole(small, wgmma(cluster), spec=h200) for cluster in (1, 2))
    assert one(both.edges) - one(alone.edges) == pytest.approx(CALIBRATION.cluster_s, rel=0.01)


def test_a_wave_takes_no_less_than_a_block_alone():
    """Of a short reduction: other blocks of an SM hide nothing of one whose start is most of its time."""
    chooser, tiles = only(selector(A100), SMALL), 108 * 16
    (block,) = chooser.costs
    cost = chooser.evaluate(Extents(tiles * 64, 64, 64), KEY)[0]
    full = -(-tiles // block.slots) - 1
    alone = block.start + chooser.rates.l2_latency + max(block.work, block.chain)
    assert block.resident > 1 and full > 4
    assert one(cost.total) > chooser.rates.launch + full * alone * (1 - ROUNDING)


def test_a_cluster_is_never_half():
    """Three tiles of rows are two clusters: a block more that computes nothing of C."""
    h200 = load_spec("h200")
    alone, both = (whole(Extents(384, 256, 512), wgmma(cluster), spec=h200) for cluster in (1, 2))
    assert one(both.waves) == pytest.approx(one(alone.waves) * 4 / 3)


def test_a_tile_that_is_not_full_costs_as_much_as_a_full_one():
    full, over = whole(Extents(128, 128, 4096), MIDDLE), whole(Extents(129, 128, 4096), MIDDLE)
    assert one(full.padding) == pytest.approx(0)
    assert one(over.padding) == pytest.approx(1 - 129 / 256)
    assert one(over.multiply) == pytest.approx(one(full.multiply))  # side by side on two SMs
    many, more = whole(Extents(108 * 128, 128, 4096), LARGE), whole(Extents(108 * 256 + 1, 128, 4096), LARGE)
    assert one(more.multiply) == pytest.approx(2 * one(many.multiply), rel=0.01)


def test_blocks_run_in_waves():
    """256x128 tiles, one to an SM: 104 tiles are one wave, 112 are two (MikPoly, Figure 15)."""
    one_wave, two_waves = whole(Extents(3328, 1024, 4096), LARGE), whole(Extents(3584, 1024, 4096), LARGE)
    assert (one(one_wave.waves), one(two_waves.waves)) == (pytest.approx(104 / 108), pytest.approx(112 / 108))
    assert 1.8 < one(two_waves.total) / one(one_wave.total) < 2.0


def test_small_tiles_win_where_large_ones_leave_sms_idle_and_large_ones_where_they_do_not():
    chooser = only(selector(A100), LARGE, MIDDLE, SMALL)
    assert chooser.select(Extents(512, 512, 512)).variant == SMALL
    assert chooser.select(Extents(8192, 8192, 8192)).variant in (LARGE, MIDDLE)


def test_a_lone_block_reads_no_faster_than_the_port_of_its_sm():
    """Stages as deep as memory: nothing else binds."""
    cost = whole(Extents(16, 16, 1 << 20), block(16, 16, 64, 16, 16, 5))
    moved = 2 * 32 * (1 << 20)
    assert one(cost.total) > moved / (64 * A100.clock_hz)


def test_more_stages_hide_latency():
    long = Extents(64, 64, 16384)
    seconds = [one(whole(long, block(64, 64, 64, 32, 32, stages)).total) for stages in (2, 3, 4, 5)]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]


def test_without_stages_every_load_is_waited_for():
    single, double = (whole(Extents(64, 64, 16384), block(64, 64, 64, 32, 32, stages)) for stages in (1, 2))
    assert one(single.multiply) > 1.5 * one(double.multiply)


def test_narrow_loads_cost_issue_slots():
    wide, narrow, narrowest = (
        one(whole(Extents(4096, 4096, 4096), block(128, 128, 32, 64, 64, 4, size)).total) for size in (16, 4, 2)
    )
    assert wide < narrow < narrowest


@pytest.mark.parametrize(
    ("figure", "factor", "extents", "term"),
    [
        ("dram.bandwidth_bytes_per_s", 0.5, Extents(16, 8192, 8192), "total"),
        ("l2.bytes_per_cycle", 0.4, Extents(8192, 8192, 8192), "exposed"),
        ("shared.bytes_per_cycle", 0.5, Extents(4096, 4096, 4096), "multiply"),
        ("launch_ns", 3.0, Extents(1, 1, 1), "launch"),
        ("l2.latency_ns", 1.5, Extents(64, 64, 64), "edges"),
        ("dram.latency_ns", 3.0, Extents(16, 32768, 2048), "edges"),
    ],
)
def test_a_worse_figure_shows_in_its_term(figure, factor, extents, term):
    owner, _, field = figure.rpartition(".")
    given_ = getattr(A100.memory(owner) if owner else A100, field)
    worse = what_if(A100, {figure: int(given_ * factor)})
    kernels = (MIDDLE, SMALL)
    before, after = (getattr(replaced(spec, kernels).evaluate(extents, KEY)[0], term) for spec in (A100, worse))
    assert (np.asarray(after) > np.asarray(before) * 1.05).all()


def replaced(spec, kernels) -> GpuSelector:
    return replace(only(selector(A100), *kernels, spec=spec), rates=rates(spec))


def test_a_long_reduction_is_cut_where_tiles_are_few():
    chooser = only(selector(A100), SMALL)
    plan = chooser.select(Extents(64, 64, 65536))
    assert (
        plan.splits > 16 and plan.chunk % 64 == 0 and plan.chunk * plan.splits >= 65536 > plan.chunk * (plan.splits - 1)
    )
    uncut = chooser.select(Extents(64, 64, 65536), workspace=0)
    assert (uncut.splits, uncut.chunk) == (1, 65536)
    assert uncut.seconds > 3 * plan.seconds
    assert chooser.select(Extents(8192, 8192, 65536)).splits == 1


def test_only_a_cut_reduction_pays_for_partial_sums():
    costs = only(selector(A100), SMALL).evaluate(Extents(64, 64, 65536), KEY)
    for cost in costs:
        assert (one(cost.reduction) > 0) == (one(cost.parts) > 1)
    kept = replace(only(selector(A100), SMALL), costs=(replace(only(selector(A100), SMALL).costs[0], most_parts=1.0),))
    assert all(one(cost.parts) == 1 for cost in kept.evaluate(Extents(64, 64, 65536), KEY))


@pytest.mark.parametrize(
    ("workspace", "m", "n", "copies"),
    [(0, 64, 64, 1), (4 * 64 * 64 * 7 + 5, 64, 64, 7), (2**40, 1, 1, 2**20), (2**30, 2**31, 2**31, 1)],
)
def test_room_of_a_workspace(workspace, m, n, copies):
    assert room(workspace, m, n) == copies


def test_operands_that_fit_in_l2_are_there():
    """The same tiles, but waves of the second shape find their operands gone."""
    inside, outside = Extents(4096, 4096, 512), Extents(16384, 16384, 2048)
    chooser = only(selector(A100), MIDDLE)
    share = [
        one(chooser.evaluate(extents, KEY)[0].exposed) / one(chooser.evaluate(extents, KEY)[0].multiply)
        for extents in (inside, outside)
    ]
    assert share[0] < share[1]


def test_costs_of_a_kernel_are_plain_floats():
    assert all(type(value) is float for row in selector(A100).costs for value in astuple(row))
