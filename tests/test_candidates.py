"""Properties of the sieve, for every shipped spec and for specs near them."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from priced import found

from vortex.candidates import WHOLE, closure, registers_needed
from vortex.errors import SpecError
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.sieve import KEPT, LARGEST_BEYOND, beyond, buffer_bytes, multiples, sieve, stays_beyond
from vortex.specs import cpus, load_spec, what_if

ITEM = Gemm().item_bytes


def check(spec, result):
    """What holds for the candidates of any spec."""
    isa, l1 = spec.instruction("float32"), spec.level("L1")
    capacity = spec.memory(l1.memory).capacity_bytes
    assert result.register_tiles
    assert result.strategies
    for tile in result.register_tiles:
        assert tile.n % isa.lanes == 0
        assert registers_needed(tile.m, tile.n // isa.lanes) <= isa.registers * spec.level("L0").max_utilization
    outer_products = [s for s in result.strategies if s.stage.tiled]
    others = [s.stage for s in result.strategies if not s.stage.tiled]
    assert [(s.dot, s.held, s.streamed).index(True) for s in others] == [0, 1, 2], "one of each other family"
    assert {strategy.l0 for strategy in outer_products} <= set(result.register_tiles)
    for strategy in outer_products:
        for inner, outer in zip(
            (strategy.l0.m, strategy.l0.n, strategy.l0.k),
            (strategy.l1.m, strategy.l1.n, strategy.l1.k),
            strict=True,
        ):
            assert outer == WHOLE or (outer >= inner and outer % inner == 0), strategy
        accumulators = strategy.l0.m * strategy.vectors(isa.lanes)
        assert accumulators >= spec.level("L0").min_utilization * isa.registers
        buffered = buffer_bytes(strategy.l1, strategy.stage, ITEM, strategy.l0.m)
        farthest = beyond(spec, l1.memory) if stays_beyond(strategy.stage) else 0
        inside, away = l1.max_utilization * capacity, min(l1.max_utilization * farthest, LARGEST_BEYOND)
        assert l1.min_utilization * capacity <= buffered <= max(inside, away)
        if buffered > inside:
            assert ITEM * strategy.l1.k * (strategy.l0.m + strategy.l0.n) <= KEPT * capacity
        assert bool(buffered) == (strategy.stage.pack_a or strategy.stage.pack_b or strategy.stage.swap)


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
class TestShipped:
    def test_candidates_are_multiples_within_the_limits(self, name):
        check(load_spec(name), found(load_spec(name)))

    def test_no_filter_admits_more_than_the_one_before(self, name):
        rows = found(load_spec(name)).admitted
        for level in ("L0", "L1"):
            counts = [row.count for row in rows if row.level == level]
            assert counts == sorted(counts, reverse=True)
            assert len(counts) > 1
            assert counts[-1] > 0

    def test_the_last_count_is_what_is_handed_on(self, name):
        result = found(load_spec(name))
        last = {row.level: row.count for row in result.admitted}
        by_filter = {(row.level, row.filter): row.count for row in result.admitted}
        assert last["L1"] + last["dot"] + last["held"] + last["streamed"] == len(result.strategies)
        assert last["L0"] >= len({s.l0 for s in result.strategies if s.stage.tiled})
        assert by_filter["L0", "FilterByISA"] == len(result.register_tiles)

    def test_no_candidate_is_there_twice(self, name):
        result = found(load_spec(name))
        assert max(Counter(result.strategies).values()) == 1
        assert max(Counter(result.register_tiles).values()) == 1

    def test_every_residue_is_a_register_tile(self, name):
        spec = load_spec(name)
        lanes = spec.instruction("float32").lanes
        tiles = {(tile.m, tile.n // lanes) for tile in found(spec).register_tiles}
        assert closure(found(spec).strategies, lanes) <= tiles

    def test_every_way_to_load_is_there(self, name):
        packed = {(s.stage.pack_a, s.stage.pack_b) for s in found(load_spec(name)).strategies}
        assert packed == {(False, False), (False, True), (True, False), (True, True)}


def test_the_manual_counts_as_the_sieve_does():
    """Of the paper's CPU, beside the paper's count."""
    page = (Path(__file__).parent.parent / "docs" / "design.md").read_text()
    result = found(load_spec("xeon-8255c"))
    tiled = [strategy for strategy in result.strategies if strategy.stage.tiled]
    sentence = r"17,731.*?ours hands ([\d,]+) to the analyzer: ([\d,]+) on (\d+) register tiles.*?more ways, ([\d,]+)\."
    told = re.search(sentence, page, re.DOTALL)
    assert told is not None
    counts = [int(count.replace(",", "")) for count in told.groups()]
    zen4, zen5 = (len(found(load_spec(name)).strategies) for name in ("epyc-zen4", "epyc-zen5"))
    assert counts == [len(result.strategies), len(tiled), len({strategy.l0 for strategy in tiled}), zen5]
    assert zen4 == len(result.strategies)


def test_it_is_deterministic():
    spec = load_spec("xeon-e5-2680v3")
    assert sieve(decompose(Gemm(), spec)) == sieve(decompose(Gemm(), spec))


@given(
    registers=st.integers(8, 32),
    latency=st.integers(1, 8),
    most=st.sampled_from([0.3, 0.5, 0.75, 1.0]),
    kibibytes=st.sampled_from([64, 96, 128, 200]),
    line=st.sampled_from([32, 64, 128]),
)
@settings(max_examples=15, deadline=None)
def test_specs_near_a_shipped_one(registers, latency, most, kibibytes, line):
    changes = {
        "vfmadd231ps-ymm.registers": registers,
        "vfmadd231ps-ymm.latency_cycles": latency,
        "vfmadd231ps-ymm.issue_per_cycle": 1,
        "L0.min_utilization": 0.1,
        "L1.max_utilization": most,
        "l2.capacity_bytes": kibibytes * 1024,
        "l2.line_bytes": line,
    }
    try:
        spec = what_if(load_spec("xeon-e5-2680v3"), changes)
    except SpecError:
        reject()  # what is accepted has candidates; what has none is refused
    check(spec, sieve(decompose(Gemm(), spec)))


@pytest.mark.parametrize(
    ("name", "small"), [("epyc-zen2", True), ("epyc-zen3", True), ("epyc-zen4", False), ("xeon-8255c", False)]
)
def test_blocks_of_b_lie_outside_a_small_l2_alone(name, small):
    """While L2 keeps the panel that tiles of A pass."""
    spec = load_spec(name)
    room = spec.level("L1").max_utilization * spec.memory("l2").capacity_bytes
    tiled = [s for s in sieve(decompose(Gemm(), spec)).strategies if s.stage.tiled]
    away = [s for s in tiled if buffer_bytes(s.l1, s.stage, ITEM, s.l0.m) > room]
    assert bool(away) == small
    assert all(stays_beyond(s.stage) and s.stage.pack_b for s in away)
    assert not any(s.stage.rows_first or s.stage.pack_a or s.stage.swap for s in away)


@given(st.integers(1, 500), st.integers(1, 100_000))
def test_multiples_are_a_ladder_that_ends_uncut(step, limit):
    *rungs, last = multiples(step, limit)
    assert last == WHOLE
    assert all(rung % step == 0 and rung <= limit for rung in rungs)
    assert all(after > before for before, after in pairwise(rungs))


@pytest.mark.parametrize(("rows", "vectors"), [(14, 2), (6, 4), (1, 30), (30, 1), (9, 3)])
def test_register_count(rows, vectors):
    """Accumulators, the operand that stays, the one that streams."""
    assert registers_needed(rows, vectors) == rows * vectors + min(rows, vectors) + 1
