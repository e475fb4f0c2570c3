"""Sanity of predicted seconds, whatever the terms are: over shapes, strategies and threads, for shipped specs."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from priced import found, selector

from vortex import families, loads, stores
from vortex.assumptions import EFFECTS
from vortex.candidates import NARROW_ROWS, WHOLE, Stage, Strategy, Tile, dot_tiles, registers_needed, tallest
from vortex.cost import NEVER, predict_dot
from vortex.effects import latency, line_turns
from vortex.families import DOT_BESIDE
from vortex.hardware import HardwareSpec
from vortex.plans import Grid, OperandB, Shape
from vortex.profiler import compute
from vortex.rates import MISSES
from vortex.rating import rates
from vortex.selector import NumpyArithmetic, Selector, most_near, problem
from vortex.specs import cpus, load_spec, what_if
from vortex.stores import TO_AND_FRO

SPECS = st.sampled_from([spec.name for spec in cpus()])
EXTENTS = st.integers(1, 6000)
STRIDE = 100_003
"""Elements between rows, prime: growing an extent then moves no row start into or out of a cache conflict."""
FEW_ROWS = 9
"""Of which no register tile keeps a panel of B."""
ONE_TASK = Grid(1, 1)
ROUNDING = 1e-5
EFFECT = 0.1
"""Tolerance where a larger extent splits into smaller tiles that start to fit a cache: a real gain, and a small one."""
HEIGHT = 0.05
"""And where it makes register tiles less tall, whose rows of A then arrive under more arithmetic."""
few = settings(max_examples=60, deadline=None)


@cache
def priced(name: str):
    """A hundred strategies of every kind, evenly taken."""
    spec = load_spec(name)
    strategies = found(spec).strategies
    return selector(spec, strategies[:: max(1, len(strategies) // 100)])


def shape(m: int, n: int, k: int, b: OperandB = OperandB.PLAIN) -> Shape:
    return Shape(m, n, k, b, lda=STRIDE, ldb=STRIDE)


def total(name: str, at: Shape, grid: Grid = ONE_TASK, threads: int = 1):
    return np.asarray(priced(name).costs(at, grid, threads).total)


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from(OperandB), st.integers(1, 8))
def test_terms_are_finite_and_none_is_negative(name, m, n, k, b, threads):
    cost = priced(name).costs(shape(m, n, k, b), Grid(threads, 1), threads)
    assert (np.asarray(cost.total) > 0).all()
    for term, value in cost.terms().items():
        assert np.isfinite(value).all(), term
        assert (np.asarray(value) >= 0).all(), term


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from("mnk"), st.integers(1, 400))
def test_a_larger_shape_is_not_cheaper(name, m, n, k, axis, more):
    small = shape(m, n, k)
    large = replace(small, **{axis: getattr(small, axis) + more})
    past = [4 * one.m * one.n > priced(name).rates.outer_bytes for one in (small, large)]
    assume(past[0] or not past[1])  # lines of C that go past the caches do not come before, which is a gain
    ops = NumpyArithmetic(priced(name).table)
    places = [float(line_turns(ops, priced(name).rates, np.float32(one.n))) for one in (small, large)]
    assume(not past[0] or places[0] <= places[1])  # rows that begin at fewer places of a line are fewer products
    before, after = total(name, small), total(name, large)
    assert (after >= before * (1 - EFFECT)).all()
    assert after.min() >= before.min() * (1 - EFFECT)


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from("mnk"))
def test_twice_the_work_costs_more(name, m, n, k, axis):
    small = shape(m, n, k)
    twice = total(name, replace(small, **{axis: 2 * getattr(small, axis)}))
    assert (twice >= total(name, small) * (1 - HEIGHT)).all()


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS)
def test_nothing_is_faster_than_the_peak_of_one_core(name, m, n, k):
    spec = load_spec(name)
    least = 2 * m * n * k / (spec.peak_flops_per_s / spec.cores)
    assert (total(name, shape(m, n, k)) >= least * (1 - ROUNDING)).all()


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from(OperandB))
def test_a_strategy_that_refuses_an_operand_costs_never(name, m, n, k, b):
    chosen = priced(name)
    totals = total(name, shape(m, n, k, b))
    for strategy, seconds in zip(chosen.strategies, totals, strict=True):
        stage, few = strategy.stage, min(m, n) if b is OperandB.TRANSPOSED else n
        registers = load_spec(name).instruction("float32").registers
        accepts = {
            OperandB.PLAIN: stage.pack_b or not stage.swap,  # a row-major A is a transposed B of the turned product
            OperandB.TRANSPOSED: stage.pack_b,
            OperandB.PACKED: not (stage.pack_b or stage.swap) and chosen.panel == strategy.l0.n,
        }[b]
        if stage.dot:
            longest = registers if b is OperandB.TRANSPOSED else max(dot_tiles(registers))
            accepts = b is not OperandB.PACKED and few <= longest
        assert (seconds < NEVER / 1e6) == accepts, (strategy, b)


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from(OperandB), st.integers(0, 3))
def test_more_threads_never_make_the_plan_slower(name, m, n, k, b, doublings):
    """Grids of t threads are among those of 2t, and one task always is."""
    at, threads = shape(m, n, k, b), 2**doublings
    seconds = priced(name).select(at, threads).seconds
    assert priced(name).select(at, 2 * threads).seconds <= seconds * (1 + ROUNDING)
    assert seconds <= priced(name).select(at, 1).seconds * (1 + ROUNDING)


@few
@given(SPECS, EXTENTS, EXTENTS, EXTENTS, st.sampled_from(OperandB), st.integers(1, 6))
def test_the_plan_is_the_least_of_what_it_chose_from(name, m, n, k, b, threads):
    at = shape(m, n, k, b)
    plan = priced(name).select(at, threads)
    totals = total(name, at, plan.grid, threads)
    assert plan.seconds == totals[priced(name).near(at, threads)].min() == totals[plan.index] < NEVER
    assert plan.strategy == priced(name).strategies[plan.index]


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_ties_go_to_the_earlier_strategy(name):
    spec, strategies = load_spec(name), priced(name).strategies
    twice = selector(spec, strategies * 2)
    for at in (shape(1, 1, 1), shape(33, 100, 7), shape(512, 512, 512), shape(1, 4096, 4096)):
        assert twice.select(at, 1) == priced(name).select(at, 1)
        once = priced(name).select(at, 2)
        assert selector(spec, strategies).select(at, 2) == once


@pytest.mark.parametrize("m, n, k", [(400_000, 16, 16), (50_000, 121, 8)])
def test_what_is_asked_for_at_once_is_seen_beyond_what_a_core_can_wait_for(m, n, k):
    """A core with room for every line of a tile sees none of them; with less room, tall tiles see the more."""
    one = priced("epyc-zen5")
    roomy, narrow, none = (
        np.asarray(
            replace(one, rates=replace(one.rates, misses=lines)).costs(Shape(m, n, k), ONE_TASK, 1).terms()["exposed_a"]
        )
        for lines in (1e6, 24.0, 0.0)
    )
    seen = narrow - roomy
    assert (seen >= 0).all() and (none >= narrow).all()
    per_row = {s.l0.m: seen[i] for i, s in enumerate(one.strategies) if not (s.stage.swap or s.stage.dot)}
    assert per_row[max(per_row)] > per_row[min(per_row)] == 0.0


@pytest.mark.parametrize("drift", [-1, 0, 1])
def test_rows_of_a_that_start_beside_each_other_conflict(drift):
    """In L1, a stride of 4096 bytes and one of 4092 come to the same: sixteen rows begin within one line's place."""
    one = priced("epyc-zen4")
    span = round(one.rates.l1_span) // 4

    def conflicts(stride: int) -> np.ndarray:
        at = Shape(120, 80, 1020, OperandB.PLAIN, lda=stride, ldb=STRIDE)
        return np.asarray(one.costs(at, ONE_TASK, 1).terms()["conflicts"])

    near = conflicts(span + drift)
    rows_as_they_lie = [s.stage.tiled and not (s.stage.pack_a or s.stage.swap) for s in one.strategies]
    height = np.array([120 / -(-120 // s.l0.m) for s in one.strategies])
    tall = rows_as_they_lie & (height > one.rates.l1_ways)
    assert tall.any() and (near[tall] > 0).all()
    assert not conflicts(span + 16).any()


def test_rows_of_a_conflict_as_far_apart_as_turns_make_them():
    """Of a C past the caches with odd rows every sixteenth is made in a turn: of an A of 512 bytes they crowd L1."""
    one = priced("epyc-zen4")
    rows, columns = 6000, 1 + round(one.rates.outer_bytes) // 4 // 6000 // 2 * 2
    at_once = [s.stage.tiled and s.l1.k >= 100 and not (s.stage.pack_a or s.stage.swap) for s in one.strategies]
    tall = np.array(at_once) & np.array([s.l0.m > one.rates.l1_ways for s in one.strategies])

    def conflicts(n: int, lda: int) -> np.ndarray:
        at = Shape(rows, n, 100, OperandB.PLAIN, lda=lda, ldb=STRIDE)
        return np.asarray(one.costs(at, ONE_TASK, 1).terms()["conflicts"])

    in_turns = conflicts(columns + 2, 128)
    assert tall.any() and (in_turns[tall] > 0).all() and not in_turns[~tall].any()
    assert not conflicts(columns + 2, 132).any(), "sixteen rows of 528 bytes begin at 256 bytes from each other"
    assert not conflicts(columns // 2, 128).any(), "a C that the caches keep is made row after row"


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_a_wide_tile_grows_in_a_narrow_product(name):
    """By the rows that its registers and a set of L1 hold, and it computes as a tile of so many rows and columns."""
    one, grows = priced(name), 0
    plain = [s for s in one.strategies if s.stage.tiled and not s.stage.swap]
    for wide in (s for s in plain if s.vectors(one.lanes) > 2):
        room = registers_needed(wide.l0.m, wide.vectors(one.lanes), 0)
        rows = max(r for r in range(1, NARROW_ROWS + 1) if r == wide.l0.m or registers_needed(r, 2, 0) <= room)
        assert tallest(wide, 2, one.lanes) == rows and tallest(wide, wide.vectors(one.lanes), one.lanes) == wide.l0.m
        rows = max(wide.l0.m, min(rows, load_spec(name).memories[0].ways - 1))
        made = replace(wide, l0=replace(wide.l0, m=rows, n=2 * one.lanes))
        pair = replace(one, strategies=(wide, made))
        grown, native = pair.costs(shape(5000, 2 * one.lanes, 100), ONE_TASK, 1).terms()["compute"]
        assert grown == pytest.approx(native, rel=1e-5)
        grows += rows > wide.l0.m
    assert grows


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_only_a_large_c_in_pieces_waits_for_its_lines(name):
    """Whole rows or lines of C, and pieces of a C that L2 keeps, do not; shorter pieces wait more than longer ones.

    Of rows that are taken in turns, the ends alone: the first large one has too long a k for that.
    """
    one = priced(name)

    def strewn(m: int, n: int, k: int = 8) -> np.ndarray:
        return np.asarray(one.costs(Shape(m, n, k, OperandB.PLAIN), ONE_TASK, 1).terms()["strewn"])

    large, small, narrow = strewn(8000, 8001, 200), strewn(64, 500), strewn(500_000, one.lanes)
    tiled = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not s.stage.swap]
    runs = {i: s.l1.n if s.stage.rows_first else s.l0.n for i in tiled for s in [one.strategies[i]]}
    assert not small.any() and not narrow[tiled].any() and not strewn(20_000, 8000)[tiled].any()
    halves = np.asarray(
        one.costs(Shape(500_000, one.lanes * 2 - 1, 8, OperandB.PLAIN), Grid(1, 2), 2).terms()["strewn"]
    )
    narrowest = [i for i in tiled if one.strategies[i].l0.n == one.lanes]  # others are not cut within a tile
    assert narrowest and (halves[narrowest] > 0).all()
    assert all(large[i] == 0 for i in tiled if runs[i] >= 8001) and min(runs.values()) < 512
    by_run = sorted((run, float(large[i])) for i, run in runs.items())
    assert by_run[0][1] > 0 and all(a[1] >= b[1] for a, b in pairwise(by_run))
    tall = int(one.rates.outer_bytes) // (4 * 8001) + 1000
    ends, pieces = strewn(tall, 8001), strewn(tall, 8001, 200)
    whole = [i for i in tiled if one.strategies[i].l0.n % 16 == 0]
    assert len({float(ends[i]) for i in whole}) == 1
    assert all(0 < ends[i] < pieces[i] for i in whole if runs[i] < 512)


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_rows_that_crowd_l2_are_taken_in_steps_that_it_keeps(name):
    """Of operands that are read as they lie, a step of k each; C is then read back between the steps."""
    one = priced(name)
    rows, apart = int(one.rates.crowded_rows), int(one.rates.crowded_span) // 4
    deep = [i for i, s in enumerate(one.strategies) if s.stage.tiled and s.l1.k > 2 * rows]
    assert deep

    def steps(lda: int, ldb: int, a_is_col: bool = False) -> dict[int, float]:
        at = Shape(64, 80, 2 * rows, OperandB.PLAIN, a_is_col=a_is_col, lda=lda, ldb=ldb)
        partials = np.asarray(one.costs(at, ONE_TASK, 1).terms()["partials"])
        return {i: float(partials[i]) for i in deep}

    stages = {i: one.strategies[i].stage for i in deep}
    assert not any(steps(STRIDE, STRIDE).values()) and not any(steps(STRIDE, apart // 2 * 3).values())
    for i, partial in steps(STRIDE, 3 * apart).items():  # turned over, it is A that lies so, by columns
        assert (partial > 0) == (not (stages[i].pack_a if stages[i].swap else stages[i].pack_b)), stages[i]
    for i, partial in steps(5 * apart, STRIDE, a_is_col=True).items():
        assert (partial > 0) == (not (stages[i].pack_b if stages[i].swap else stages[i].pack_a)), stages[i]


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_lines_of_one_set_of_l1_come_one_after_the_other(name):
    """Of a B that is read as it lies, turned over or not, and where a vector is half a line."""
    one = priced(name)
    patient = replace(one, rates=replace(one.rates, crammed_line=0.0))
    span, narrow = int(one.rates.l1_span) // 4, one.rates.lanes * 4 < one.rates.line_bytes

    def late(kind: OperandB, ldb: int) -> np.ndarray:
        at = Shape(64, 2048, 1024, kind, lda=STRIDE, ldb=ldb)
        waits, hurries = (np.asarray(each.costs(at, ONE_TASK, 1).total) for each in (one, patient))
        return (waits > hurries)[served]

    served = np.asarray(one.costs(Shape(64, 2048, 1024), ONE_TASK, 1).total) < NEVER
    stages = [strategy.stage for strategy in one.strategies]
    loose = np.array([s.tiled and not (s.pack_a if s.swap else s.pack_b) for s in stages])[served]
    assert loose.any() and (late(OperandB.PLAIN, 2 * span) == (loose & narrow)).all()
    assert not late(OperandB.PLAIN, 2 * span + 16).any() and not late(OperandB.PACKED, 2 * span).any()


def test_each_piece_of_a_row_of_a_begins_anew_for_every_panel(monkeypatch):
    """Where it comes from L2 again: its first lines are there before a prefetcher is ahead."""
    one, at = priced("epyc-zen3"), Shape(504, 1504, 2048, OperandB.PACKED, lda=STRIDE)
    seen = np.asarray(one.costs(at, ONE_TASK, 1).total)
    monkeypatch.setattr(loads, "UNFORESEEN", 0.0)
    longer = seen > np.asarray(one.costs(at, ONE_TASK, 1).total)
    panels = {i: s for i, s in enumerate(one.strategies) if s.stage.tiled and not (s.stage.swap or s.stage.rows_first)}
    far = [i for i, s in panels.items() if 4 * min(s.l1.m, 504) * min(s.l1.k, 2048) > one.rates.l1_bytes]
    loose = [i for i in far if not panels[i].stage.pack_a and seen[i] < NEVER]
    assert loose and longer[loose].all()
    assert not longer[[i for i in panels if panels[i].stage.pack_a or i not in far]].any()


def test_a_block_of_b_beyond_l2_pays_where_it_is_copied():
    """Rows that are pages apart are read in longer pieces then, and A and sums pass less often; a transposed block
    leaves the caches half a line at a time, which takes longer than few rows save."""
    l0, spec = Tile(6, 16, 1), load_spec("epyc-zen2")
    away = Strategy(l0, Tile(126, 1024, 512), Stage(pack_b=True))
    kept = Strategy(l0, Tile(WHOLE, 128, 512), Stage(pack_b=True, rows_first=True))
    assert {away, kept} < set(found(spec).strategies)
    pair = selector(spec, [away, kept])

    def gained(m: int, n: int, k: int, b: OperandB) -> float:
        beyond, inside = np.asarray(pair.costs(Shape(m, n, k, b), ONE_TASK, 1).total)
        return float(inside / beyond)

    assert gained(48, 4096, 4096, OperandB.PLAIN) > 1.05 and gained(96, 4096, 4096, OperandB.PLAIN) > 1.02
    assert gained(60, 1024, 4096, OperandB.TRANSPOSED) < 0.95 and gained(269, 3072, 768, OperandB.TRANSPOSED) < 1


def test_rows_of_a_that_l2_dropped_come_from_the_cache_outside_it():
    """Wherever B and C are: by panels of a packed B that far more of memory holds, 126 rows pass again from there."""
    spec, at = load_spec("epyc-zen2"), Shape(504, 60000, 2048, OperandB.PACKED)
    one = selector(spec, [Strategy(Tile(6, 16, 1), Tile(126, WHOLE, 2048), Stage())])
    one = replace(one, panel=16)
    assert one.rates.outer_bytes < 4 * 60000 * 2048
    assert one.rates.l2_bytes < 4 * 126 * 2048
    slow = replace(one, rates=replace(one.rates, dram_byte=2 * one.rates.dram_byte))
    (reload,), (again,) = (np.asarray(by.costs(at, ONE_TASK, 1).reload) for by in (one, slow))
    assert 0 < again < 1.05 * reload


def test_sums_of_a_turned_product_that_l2_loses_between_steps_of_k_are_waited_for():
    """Not those of a single step, which are made for as many rows at a time as L2 keeps."""
    spec = load_spec("epyc-zen2")
    turned = Strategy(Tile(6, 16, 1), Tile(WHOLE, 128, 512), Stage(pack_b=True, swap=True))
    one = selector(spec, [turned])

    def partials(n: int, k: int) -> float:
        """A row."""
        return float(one.costs(Shape(63, n, k, OperandB.TRANSPOSED), ONE_TASK, 1).partials[0]) / n

    assert partials(2048, 512) == partials(4096, 512) == 0
    assert partials(4096, 1024) > 2 * partials(2000, 1024) > 0
    assert partials(4096, 1536) > 1.3 * partials(4096, 1024)


def test_where_pages_are_small_each_line_of_a_from_l2_is_seen():
    """Also of a tile that L1 would hold, had no panel of B passed since: the more, the more rows a multiply-add has."""
    one, at = small_pages("epyc-zen5"), Shape(504, 1536, 768, OperandB.TRANSPOSED)
    without = replace(one, rates=replace(one.rates, line_again=0.0))
    seen, free = (np.asarray(by.costs(at, ONE_TASK, 1).total) for by in (one, without))
    tiled = [(i, s) for i, s in enumerate(one.strategies) if s.stage.tiled and not s.stage.swap and seen[i] < NEVER]
    held = {i: s for i, s in tiled if s.stage.rows_first and 4 * s.l0.m * min(s.l1.k, 768) <= one.rates.l1_bytes}
    passed = [
        i for i, s in held.items() if 4 * (s.l0.m + s.l0.n) * min(s.l1.k, 768) > one.rates.l1_bytes and s.l1.n > s.l0.n
    ]
    assert passed and all(seen[i] > free[i] for i in passed if not one.strategies[i].stage.pack_a)
    assert all(seen[i] < 1.001 * free[i] for i, s in tiled if s.stage.pack_a)

    def share(vectors: int) -> float:
        """Of the seconds of outermost row tiles of so many vectors, the most."""
        of = [i for i in passed if one.strategies[i].vectors(16) == vectors and not one.strategies[i].stage.pack_a]
        return max(float(seen[i] / free[i]) for i in of) - 1.0

    assert share(2) > 1.5 * share(5) > 0.0


def test_lines_of_c_that_push_each_other_out_are_waited_for_again():
    """By the held family, whose vectors are half a line: where many rows begin in few sets of L1."""

    def longer(name: str, m: int, n: int, k: int) -> float:
        """Seconds."""
        spec = load_spec(name)
        one = selector(spec, [strategy for strategy in found(spec).strategies if strategy.stage.held])
        patient = replace(one, rates=replace(one.rates, held_recurring=0.0))
        (seen,), (without,) = (np.asarray(by.costs(Shape(m, n, k), ONE_TASK, 1).total) for by in (one, patient))
        assert seen < NEVER
        return float(seen - without)

    two = longer("epyc-zen3", 512, 512, 5)  # places in which all rows begin; of twice the lines all in one
    assert two > 0 and longer("epyc-zen3", 512, 1024, 5) == pytest.approx(4 * two, rel=0.01)
    assert longer("epyc-zen3", 512, 512, 10) > 2 * two  # a second turn over them
    for m, n in ((512, 1040), (512, 264), (8, 1024)):
        assert longer("epyc-zen3", m, n, 5) == 0
    assert longer("epyc-zen4", 512, 1024, 5) == 0  # a vector is a line


def test_vectors_of_sums_that_reach_into_the_next_row_are_waited_for():
    """By the held family, for each step of k after the first, on a core that starts one multiply-add in a cycle."""

    def longer(name: str, n: int, k: int) -> float:
        """Cycles a row."""
        spec = load_spec(name)
        one = selector(spec, [strategy for strategy in found(spec).strategies if strategy.stage.held][:1])
        whole = replace(one, rates=replace(one.rates, held_torn=0.0, held_torn_narrow=0.0))
        (seen,), (without,) = (np.asarray(by.costs(Shape(1024, n, k), ONE_TASK, 1).total) for by in (one, whole))
        assert seen < NEVER
        return float(seen - without) * spec.clock_hz / 1024

    (held,) = {strategy.l1.k for strategy in found(load_spec("epyc-zen4")).strategies if strategy.stage.held}
    for columns in (9, 12, 15):
        assert longer("epyc-zen4", columns, 3 * held) == pytest.approx(2 * EFFECTS.held_torn_cycles, rel=0.01)
    for columns in (1, 3, 5, 7):
        assert longer("epyc-zen4", columns, 3 * held) == pytest.approx(2 * EFFECTS.held_torn_narrow_cycles, rel=0.01)
    for columns in (4, 8, 16, 28):
        assert longer("epyc-zen4", columns, 3 * held) == 0, "rows fill the vectors of their kernel, or are longer"
    assert longer("epyc-zen4", 12, held) == 0
    assert longer("xeon-8255c", 12, 3 * held) == 0


def held_alone(name: str) -> Selector:
    spec = load_spec(name)
    return selector(spec, [strategy for strategy in found(spec).strategies if strategy.stage.held][:1])


def test_whole_lines_of_the_held_family_that_pass_the_caches_cost_half_of_what_comes():
    """Of the only vector of a row, and a single step of k; all other results come before they are written."""
    one = held_alone("epyc-zen5")
    (depth,), rows = {strategy.l1.k for strategy in one.strategies}, int(one.rates.outer_bytes) // 32
    kept = replace(one, rates=replace(one.rates, outer_bytes=1e30))

    def saved(n: int, k: int) -> float:
        (past,), (through,) = (np.asarray(by.costs(Shape(rows, n, k), ONE_TASK, 1).total) for by in (one, kept))
        assert past < NEVER
        return float(through - past) / float(through)

    assert 0.2 < saved(16, 2) < 0.7 and saved(16, depth) > 0.1
    assert not any((saved(16, depth + 1), saved(12, 2)))


def test_short_rows_of_a_from_near_are_in_time_for_a_tall_tile_where_pages_are_large():
    """On a core that starts two multiply-adds a cycle; out of memory little is waited for there."""
    for name, waits_near in (("epyc-zen5", False), ("epyc-zen4", True)):
        spec = load_spec(name)
        plain = (s for s in found(spec).strategies if s.stage.tiled and not (s.stage.swap or s.stage.pack_a))
        one = selector(spec, [s for s in plain if s.l0.m >= 20 and s.l0.n == 16][:1])

        def waited(share: float, one: Selector = one) -> float:
            """Seconds for each row, where A takes up so much of what is counted on of the outermost cache."""
            rows = int(share * one.rates.l3_bytes) // (4 * 29)
            return float(np.asarray(one.costs(Shape(rows, 16, 29), ONE_TASK, 1).exposed_a)[0]) / rows

        assert (waited(20.0) > 2e-9) == waits_near and waited(20.0) > 2e-10
        assert (waited(0.4) > 0.1 * waited(20.0)) == waits_near


def test_rows_that_the_held_family_takes_in_pieces_are_waited_for():
    """For each step of k after the first, out of memory more than out of L3, and out of L2 not at all."""
    one = held_alone("epyc-zen4")
    (depth,) = {strategy.l1.k for strategy in one.strategies}
    whole = replace(one, rates=replace(one.rates, held_pieced=0.0))

    def longer(rows: int, k: int) -> float:
        """Latencies of a line of memory, for each row."""
        (seen,), (without,) = (np.asarray(by.costs(Shape(rows, 16, k), ONE_TASK, 1).total) for by in (one, whole))
        assert seen < NEVER
        return float(seen - without) / (rows * EFFECTS.dram_latency_s)

    far, lines = 1 << 28, depth / 16
    assert longer(far, 2 * depth) == pytest.approx(2 * lines * EFFECTS.held_pieced, rel=0.01)
    assert longer(far, 3 * depth) == pytest.approx(2 * 3 * lines * EFFECTS.held_pieced, rel=0.01)
    assert longer(far, depth) == 0
    assert 0 < longer(20000, 2 * depth) < 0.5 * longer(far, 2 * depth)
    assert longer(500, 2 * depth) == 0


@pytest.mark.parametrize("family", ["held", "streamed"])
def test_loads_and_stores_hide_beside_multiply_adds_that_leave_room(family):
    """Where a core starts one multiply-add in a cycle: then sums cost next to nothing if k is long."""
    spec = load_spec("epyc-zen4")
    one = selector(spec, [strategy for strategy in found(spec).strategies if getattr(strategy.stage, family)][:1])
    assert one.rates.roomy
    crowded = replace(one, rates=replace(one.rates, roomy=0.0, streamed_torn=0.0))
    (hidden,), (seen,) = (np.asarray(by.costs(Shape(16, 512, 20), ONE_TASK, 1).total) for by in (one, crowded))
    assert 0.6 * seen < hidden < 0.95 * seen
    assert not selector(load_spec("xeon-8255c"), one.strategies).rates.roomy


def paged(name: str, kept: int) -> HardwareSpec:
    """A shipped spec whose core finds the translations of so many pages of 4 KiB again."""
    return what_if(load_spec(name), {"page_bytes": 4096, "kept_pages": kept})


def test_rows_on_more_pages_than_are_found_again_are_taken_in_steps():
    """Of operands that are read as they lie, and of no other."""
    spec = load_spec("epyc-zen4")
    roomy, few = (selector(one, found(spec).strategies) for one in (spec, paged("epyc-zen4", 1024)))
    deep = [i for i, s in enumerate(roomy.strategies) if s.stage.tiled and s.l1.k >= 2048]
    assert deep and few.rates.reach == 512 * 4096

    def partials(one: Selector, kind: OperandB, k: int) -> dict[int, float]:
        cost = one.costs(Shape(FEW_ROWS, 1024, k, kind, lda=STRIDE, ldb=STRIDE), ONE_TASK, 1)
        total, seconds = np.asarray(cost.total), np.asarray(cost.terms()["partials"])
        return {i: float(seconds[i]) for i in deep if total[i] < NEVER}

    for kind, k in ((OperandB.PLAIN, 512), (OperandB.PLAIN, 2048), (OperandB.PACKED, 2048)):
        assert not any(partials(roomy, kind, k).values())
        for i, partial in partials(few, kind, k).items():
            stage = roomy.strategies[i].stage
            loose = not (stage.pack_a if stage.swap else stage.pack_b)
            assert (partial > 0) == (kind is OperandB.PLAIN and k > 512 and loose), (kind, k, stage)


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_a_panel_that_many_row_tiles_read_is_kept_in_l1(name: str) -> None:
    """Of a plain B, by tiles that are whole lines wide, where pages are small: in shorter steps of k, wherever rows of
    B start."""
    one = small_pages(name)
    assert not priced(name).rates.panel_room
    more = replace(one, rates=replace(one.rates, panel_room=1e6))
    tiles = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not s.stage.swap and s.l1.k >= 512]

    @cache  # many tiles are as wide and as high as each other
    def partials(whose: str, rows: int, columns: int, kind: OperandB, ldb: int) -> np.ndarray:
        given = Shape(rows, columns, 512, kind, lda=STRIDE, ldb=ldb)
        return np.asarray({"one": one, "more": more}[whose].costs(given, ONE_TASK, 1).terms()["partials"])

    def kept(whose: str, i: int, rows: int, kind: OperandB = OperandB.PLAIN, ldb: int = STRIDE) -> bool:
        return float(partials(whose, rows, one.strategies[i].l0.n, kind, ldb)[i]) > 0

    by_panels = {i: not (s.stage.rows_first or s.stage.pack_b) for i, s in enumerate(one.strategies) if i in tiles}
    assert any(by_panels.values()) and not all(by_panels.values())
    for i in tiles[:: max(len(tiles) // 300, 1)]:
        height = one.strategies[i].l0.m
        keeps = by_panels[i] and height >= 3 and one.lanes == 16
        assert kept("one", i, 3 * height + 1) == keeps and (not keeps or kept("one", i, 3 * height + 1, ldb=4096))
        assert not kept("one", i, 3 * height) and not kept("more", i, 3 * height + 1)
        assert not kept("one", i, 3 * height + 1, OperandB.PACKED)


def small_pages(name: str) -> Selector:
    spec = paged(name, 2048)
    return selector(spec, found(spec).strategies)


def test_parts_of_rows_of_a_plain_b_are_no_streams_where_pages_are_small():
    """The streamed family waits at each of them, in its only pass over B of four rows."""
    one = small_pages("epyc-zen5")
    without = replace(one, rates=replace(one.rates, streamed_broken=0.0))
    streamed = [i for i, s in enumerate(one.strategies) if s.stage.streamed]

    def waits(grid: Grid) -> list[float]:
        seconds, unbroken = (np.asarray(x.costs(Shape(4, 4096, 4096), grid, 2).total) for x in (one, without))
        return [float(seconds[i] - unbroken[i]) for i in streamed]

    assert streamed and not any(waits(ONE_TASK)) and not any(waits(Grid(2, 1)))
    assert min(waits(Grid(1, 2))) > 4096 * one.rates.l3_latency
    two = replace(one, rates=replace(one.rates, cores=2.0))
    assert two.family(Shape(1, 4096, 4096)).splits == 2


def test_halves_of_rows_of_a_plain_b_cost_a_roomy_core_more_with_each_row_of_a():
    spec = load_spec("epyc-zen4")
    one = selector(spec, [s for s in found(spec).strategies if s.stage.streamed])
    without = replace(one, rates=replace(one.rates, streamed_broken=0.0, streamed_broken_row=0.0))

    def waits(m: int) -> float:
        seconds, unbroken = (float(x.costs(shape(m, 1024, 1024), Grid(1, 2), 2).total[0]) for x in (one, without))
        return (seconds - unbroken) / 1024

    assert 0.05 * one.rates.l3_latency < waits(1) < 0.2 * one.rates.l3_latency
    assert [waits(m) / waits(1) for m in (2, 4)] == pytest.approx([0.31 / 0.12, 0.69 / 0.12], rel=0.2)


def test_halves_of_rows_of_a_plain_b_are_a_slower_stream_than_whole_ones():
    """To two cores that read them beside each other, in every family out of memory; not to one that has all rows."""
    one = selector(load_spec("epyc-zen5"), found(load_spec("epyc-zen5")).strategies)
    without = replace(one, rates=replace(one.rates, pieced_stream=0.0))
    single = [
        i for i, s in enumerate(one.strategies)
        if s.stage.streamed or (s.stage.tiled and s.l0.m == 1 and not (s.stage.pack_b or s.stage.swap))
    ]  # fmt: skip
    assert {one.strategies[i].stage.streamed for i in single} == {False, True}

    def longer(grid: Grid) -> np.ndarray:
        seconds, unbroken = (np.asarray(x.costs(Shape(1, 8192, 16384), grid, 2).total)[single] for x in (one, without))
        return seconds / unbroken

    assert (longer(ONE_TASK) == 1).all() and (longer(Grid(1, 1, 2)) == 1).all()
    assert (longer(Grid(1, 2)) > 1.03).all() and (longer(Grid(1, 2)) < 1.2).all()


def test_a_single_row_tile_of_a_roomy_core_hides_memory_behind_its_arithmetic(monkeypatch):
    """It asks for all of the next panel of a plain B. Of several tiles, of a packed B, from L3: as everywhere."""
    spec = load_spec("epyc-zen4")
    one = selector(spec, [s for s in found(spec).strategies if s.stage.tiled and not (s.stage.pack_b or s.stage.swap)])
    one = replace(one, rates=replace(one.rates, l3_bytes=16e6, dram_byte=1 / 30e9))
    loose = [i for i, s in enumerate(one.strategies) if s.l0.m >= 9]

    def exposed(m: int, extent: int, b: OperandB = OperandB.PLAIN) -> np.ndarray:
        return np.asarray(one.costs(Shape(m, extent, extent, b), ONE_TASK, 1).terms()["exposed_b"])[loose]

    others = [(40, 8192, OperandB.PLAIN), (9, 8192, OperandB.PACKED), (9, 1024, OperandB.PLAIN)]
    single, rest = exposed(9, 8192), [exposed(*other) for other in others]
    monkeypatch.setattr(loads, "FORESEEN", 1.0)  # all of it is seen, as far as arithmetic does not hide it anyway
    assert (single < 0.8 * exposed(9, 8192)).all()
    assert all(np.array_equal(now, exposed(*other)) for now, other in zip(rest, others, strict=True))


def of_memory(slower_for_two: float) -> Selector:
    """A Zen 5 whose cores take so many times as long over a byte from memory while both read as one alone."""
    spec = load_spec("epyc-zen5")
    chosen = [s for s in found(spec).strategies if not s.stage.swap and not s.stage.pack_b and not s.stage.held]
    one = selector(spec, chosen[:: len(chosen) // 100])
    shared = 0.5 * slower_for_two * 22e-12
    return replace(one, rates=replace(one.rates, l3_bytes=16e6, dram_byte=22e-12, dram_byte_shared=shared))


@pytest.mark.parametrize("kind", [OperandB.PLAIN, OperandB.PACKED])
def test_a_b_from_memory_is_waited_for_once(kind: OperandB) -> None:
    """Beside one row of A there is no arithmetic to speak of: two cores take as long as memory gives both, whether each
    reads pieces of rows or streams; and not that again with what else passes."""
    one, at = of_memory(2.5), Shape(1, 8192, 8192, kind, lda=STRIDE, ldb=8192 + 16)
    seconds = np.asarray(one.costs(at, Grid(1, 2), 2).total)
    stream = 0.5 * 4 * 8192 * 8192 * 2 * one.rates.dram_byte_shared
    tiled = [i for i, s in enumerate(one.strategies) if s.stage.tiled and s.l0.n >= 48 and s.l1.k >= 64]
    taken = [float(seconds[i]) / stream for i in tiled if seconds[i] < NEVER]
    assert len(taken) >= 3 and min(taken) > 0.93 and max(taken) < 1.2


def test_a_core_that_reads_pieces_of_rows_is_no_quicker_where_memory_has_more_to_give():
    """Its own stream bounds it then: wide panels less than narrow ones."""
    at, few = Shape(1, 8192, 8192, lda=STRIDE, ldb=8192 + 16), []
    for slower in (1.0, 1.2):
        one = of_memory(slower)
        seconds = np.asarray(one.costs(at, Grid(1, 2), 2).total)
        tiled = [i for i, s in enumerate(one.strategies) if s.stage.tiled and s.l0.n <= 48 and s.l1.k >= 1024]
        few.append(seconds[tiled])
        assert tiled and (seconds[tiled] > 1.3 * 0.5 * 4 * 8192 * 8192 * one.rates.dram_byte).all()
    assert few[0] == pytest.approx(few[1], rel=0.02)


def test_rows_of_a_from_memory_that_are_cut_are_no_stream_beside_a_single_panel():
    """However short the pieces are; out of the outermost cache nothing of it is seen. Several panels wait for each."""
    spec = load_spec("epyc-zen5")
    plain = [s for s in found(spec).strategies if s.stage.tiled and not (s.stage.swap or s.stage.pack_a)]
    one = selector(spec, [s for s in plain if s.l0.n >= 64 and s.l0.m > 1 and 64 <= s.l1.k <= 1024][::40])
    one = replace(one, rates=replace(one.rates, l3_bytes=16e6))
    assert len({s.l1.k for s in one.strategies}) > 2

    def seen(columns: int, megabytes: int) -> np.ndarray:
        """Of the stream of A, what pieces take beyond rows that are whole."""
        rows = int(megabytes * 1e6) // (4 * 2050)
        whole = replace(one, rates=replace(one.rates, lone_pieces=1e-9, piece=0.0))
        by = [np.asarray(x.costs(Shape(rows, columns, 2050), ONE_TASK, 1).exposed_a) for x in (one, whole)]
        return (by[0] - by[1]) / (rows * 4 * 2050 * one.rates.dram_byte)

    assert seen(16, 320) == pytest.approx(0.8 * EFFECTS.lone_pieces, rel=0.1)
    assert not seen(16, 8).any()
    steps = np.array([s.l1.k for s in one.strategies])
    several = seen(2000, 320)
    assert several.min() > 5 and several[steps == steps.min()].max() > 2 * several[steps == steps.max()].max()


def test_a_plain_b_of_one_panel_feeds_tiles_as_a_stream_does(monkeypatch):
    """Its rows follow each other in L2; those of several panels are pages apart."""
    spec = load_spec("epyc-zen5")
    loose = [s for s in found(spec).strategies if s.stage.tiled and not (s.stage.swap or s.stage.pack_b)]
    one = selector(spec, [s for s in loose if 64 <= s.l0.n <= 96][::50])

    def seconds(columns: int) -> np.ndarray:
        return np.asarray(one.costs(Shape(4096, columns, 2000, lda=STRIDE, ldb=1040), ONE_TASK, 1).total)

    single, several = seconds(64), seconds(1024)
    monkeypatch.setattr(loads, "LOOSE_FEED", 5.0)
    assert (seconds(64) == single).all() and (seconds(1024) > several).any()


def test_dot_products_by_many_columns_do_not_hide_memory_where_rows_begin_within_lines():
    one = selector(load_spec("epyc-zen5"), [s for s in found(load_spec("epyc-zen5")).strategies if s.stage.dot])
    one = replace(one, rates=replace(one.rates, l3_bytes=16e6))

    def each(columns: int, k: int) -> float:
        """Seconds for a byte of A."""
        return float(np.asarray(one.costs(Shape(1 << 17, columns, k), ONE_TASK, 1).total)[0]) / (k * 4 * (1 << 17))

    torn, lines = ([each(columns, k) for columns in (6, 7)] for k in (602, 608))
    assert torn[1] > torn[0] + 0.5 * (one.rates.dram_byte - one.rates.l3_byte) > lines[1]
    assert lines[1] < 1.1 * lines[0]


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
def test_columns_that_no_cache_holds_stay_in_pieces_while_rows_pass(columns):
    spec = load_spec("epyc-zen5")
    one = selector(spec, [s for s in found(spec).strategies if s.stage.dot])
    one = replace(one, rates=replace(one.rates, l3_bytes=1e3))

    def each(k: int) -> float:
        """Seconds for an element of A, from memory."""
        return float(np.asarray(one.costs(Shape(512, columns, k), ONE_TASK, 1).total)[0]) / (512 * k)

    assert each(4_000_000) < 1.02 * each(40_000)


@pytest.mark.parametrize(("name", "columns", "waits"), [
    ("epyc-zen5", 2, (False, False)),
    ("epyc-zen5", 4, (True, False)),
    ("epyc-zen5", 5, (True, True)),
    ("epyc-zen4", 4, (True, True)),
])  # fmt: skip
def test_rows_that_pass_a_page_at_a_time_wait_for_memory(monkeypatch, name, columns, waits):
    """Where k is very long and columns are few, they do not pass so."""
    spec = load_spec(name)
    one = selector(spec, [s for s in found(spec).strategies if s.stage.dot])

    def seconds() -> list[float]:
        shapes = (Shape(100_000, columns, 4000), Shape(1000, columns, 400_000))
        return [float(np.asarray(one.costs(shape, ONE_TASK, 1).total)[0]) for shape in shapes]

    priced = seconds()
    monkeypatch.setattr(families, "DOT_PAGED", 0.0)
    assert tuple(a > b for a, b in zip(priced, seconds(), strict=True)) == waits


def test_small_pages_take_rows_that_start_in_one_set_of_l1_in_shorter_steps():
    one = small_pages("epyc-zen5")
    depth, line = int(one.rates.crowded_rows), int(one.rates.l1_span) // 4
    assert depth > one.rates.crammed_rows and priced("epyc-zen5").rates.crammed_rows > depth
    by_rows = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not s.stage.swap and s.stage.rows_first]
    loose = [i for i in by_rows if not one.strategies[i].stage.pack_b]

    def partials(ldb: int, m: int = 64, n: int = 80, k: int = depth) -> list[float]:
        seconds = np.asarray(one.costs(Shape(m, n, k, lda=STRIDE, ldb=ldb), ONE_TASK, 1).terms()["partials"])
        return [float(seconds[i]) for i in loose if one.strategies[i].l1.k >= k]

    assert partials(line) and all(partials(line)) and not any(partials(line // 4))
    kept = int(one.rates.crammed_rows)
    for spans, several, single in ((1, kept, kept), (2, kept, kept // 2), (4, kept // 2, kept // 4)):
        n = spans * line
        for m, most in ((64, several), (1, single)):
            assert not any(partials(n, m, n, most)) and all(partials(n, m, n, 2 * most))


@pytest.mark.parametrize("rows, columns", [(4463, 671), (2000, 100)])
def test_where_pages_are_small_the_held_family_leaves_rows_of_many_vectors_to_tiles(rows, columns):
    """What it stores is scattered, while what tiles write goes back unwaited for; of one vector it is as ever."""

    def ahead(one: Selector, n: int) -> float:
        """By how much the held family is quicker than the best tiles."""
        total = np.asarray(one.costs(Shape(rows, n, 3), ONE_TASK, 1).total)
        held = min(float(total[i]) for i, s in enumerate(one.strategies) if s.stage.held)
        return min(float(total[i]) for i, s in enumerate(one.strategies) if s.stage.tiled) / held

    spec = load_spec("epyc-zen5")
    large, small = selector(spec, found(spec).strategies), small_pages("epyc-zen5")
    assert ahead(small, columns) < 0.8 * ahead(large, columns)
    assert ahead(small, 16) > 0.8 * ahead(large, 16)


def test_where_pages_are_small_a_vector_of_longer_rows_takes_its_time():
    """Of the held family, however few steps of k there are; not of rows that are one stream, nor under arithmetic."""
    one = small_pages("epyc-zen5")
    sooner = replace(one, rates=replace(one.rates, held_apart=0.0))
    held = [i for i, s in enumerate(one.strategies) if s.stage.held]

    def longest(by: Selector, n: int, k: int) -> float:
        total = np.asarray(by.costs(Shape(300, n, k), ONE_TASK, 1).total)  # L2 keeps C, as where it was measured
        return max(float(total[i]) for i in held if total[i] < NEVER)

    assert longest(one, 671, 1) > 1.2 * longest(sooner, 671, 1)
    assert longest(one, 671, 1) - longest(sooner, 671, 1) > 1.2 * (longest(one, 671, 3) - longest(sooner, 671, 3))
    for n, k in ((48, 1), (671, 12)):
        assert longest(one, n, k) == longest(sooner, n, k)


def test_rows_of_a_turned_product_pass_for_every_panel_out_of_l2():
    """In bands that L2 keeps, if k is a single step."""
    one = selector(load_spec("epyc-zen5"), found(load_spec("epyc-zen5")).strategies)
    turned = [i for i, s in enumerate(one.strategies) if s.stage.swap and s.stage.pack_b]

    def again(n: int) -> np.ndarray:
        """Seconds for each row of B."""
        return np.asarray(one.costs(Shape(100, n, 700, OperandB.TRANSPOSED), ONE_TASK, 1).terms()["reload"]) / n

    few, many = again(400), again(8000)
    deep = [i for i in turned if one.strategies[i].l1.k >= 700 and one.strategies[i].l0.n <= 48]
    shallow = [i for i in turned if one.strategies[i].l1.k < 350 and one.strategies[i].l0.n <= 48]
    assert deep and (many[deep] < 1.2 * few[deep] + 1e-12).all()
    assert shallow and (many[shallow] > 1.2 * few[shallow]).any()


@pytest.mark.parametrize("small, times", [(False, EFFECTS.turned), (True, EFFECTS.scattered_turned)])
def test_a_product_is_turned_back_slowly(small, times):
    """More slowly than B is transposed, and the more so where pages are small."""
    one = small_pages("epyc-zen5") if small else priced("epyc-zen5")
    sooner = replace(one, rates=replace(one.rates, turn=one.rates.transpose))
    at = Shape(128, 3072, 768, OperandB.TRANSPOSED)
    longer = np.subtract(*(np.asarray(by.costs(at, ONE_TASK, 1).total) for by in (one, sooner)))
    turned = [i for i, s in enumerate(one.strategies) if s.stage.swap and s.stage.pack_b]
    assert turned and times > 2
    assert longer[turned] == pytest.approx(128 * 3072 * one.rates.transpose * (times - 1), rel=1e-3)


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_where_panels_are_outermost_each_takes_a_moment_to_begin(name):
    """Whatever it holds; where rows of tiles are outermost none does."""
    one = priced(name)
    at_once = replace(one, rates=replace(one.rates, panel_turn=0.0))
    down = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not (s.stage.rows_first or s.stage.swap)]
    for wide in (960, 1920):
        at = Shape(1, wide, 4, OperandB.PACKED)
        longer = np.subtract(*(np.asarray(by.costs(at, ONE_TASK, 1).compute) for by in (one, at_once)))
        panels = np.array([-(-wide // s.l0.n) for s in one.strategies])
        assert down and longer[down] == pytest.approx(panels[down] * one.rates.panel_turn, rel=1e-2)
        assert not longer[[i for i, s in enumerate(one.strategies) if s.stage.rows_first]].any()


def test_pieces_of_a_plain_b_from_beyond_l2_come_at_most_so_fast(monkeypatch):
    """As they lie, however fast the outermost cache is; not those of a B that L2 holds, nor of a packed one."""
    one = priced("epyc-zen5")
    fast = replace(one, rates=replace(one.rates, l3_byte=1e-13, l3_byte_shared=1e-13, loose_line=0.0))
    tiles = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not (s.stage.swap or s.stage.pack_b)]
    far, near = shape(1, 1000, 1000), shape(1, 100, 500)
    packed = replace(far, b=OperandB.PACKED)

    def seen() -> list[np.ndarray]:
        return [np.asarray(fast.costs(at, ONE_TASK, 1).exposed_b)[tiles] for at in (far, near, packed)]

    (pieces, held, whole) = seen()
    monkeypatch.setattr(loads, "LOOSE_LINE", 0.0)
    (unbound, *others) = seen()
    assert tiles and (pieces > 1.2 * unbound).sum() > 0.9 * len(tiles) and (pieces >= unbound).all()
    assert held == pytest.approx(others[0], rel=0.02) and (whole == others[1]).all()


def test_pieces_of_a_plain_b_come_from_l2_at_most_so_fast():
    """Three rows of A do not hide it, fourteen nearly do; more of pieces that begin within lines, nothing where a
    panel is all of a row, L1 holds everything, or B is packed. A Zen 4 was not asked."""
    one = priced("epyc-zen5")
    one = replace(one, rates=replace(one.rates, split=0.0))  # vectors across lines are arithmetic that hides it
    without = replace(one, rates=replace(one.rates, loose_line=0.0))
    tiles = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not (s.stage.swap or s.stage.pack_b)]
    thin = [i for i in tiles if one.strategies[i].l0.n == 32]

    def added(at: Shape) -> np.ndarray:
        return np.subtract(*(np.asarray(by.costs(at, ONE_TASK, 1).exposed_b) for by in (one, without)))

    few, torn = added(Shape(3, 448, 300)), added(Shape(3, 442, 300))
    compute = np.asarray(one.costs(Shape(3, 448, 300), ONE_TASK, 1).compute)
    assert thin and (few[thin] > 0.08 * compute[thin]).all() and (torn[thin] > 1.2 * few[thin]).all()
    tall = np.asarray(one.costs(Shape(14, 448, 300), ONE_TASK, 1).compute)
    assert (added(Shape(14, 448, 300))[thin] < 0.07 * tall[thin]).all()
    for at in (Shape(3, 32, 900), Shape(3, 64, 64), Shape(3, 448, 300, OperandB.PACKED)):
        assert not added(at)[thin].any()
    assert priced("epyc-zen4").rates.loose_line == 0.0


def test_a_job_is_priced_by_where_the_cores_are():
    """Hosts move virtual cores about: small products take 0.15 to 0.35 us beyond half their time where an empty job
    takes 0.22, and 1.0 where it takes 0.76."""
    spec = load_spec("epyc-zen5")
    near, far = (rates(spec, replace(compute(spec, [(1, 1)]), thread_start_s=t)).thread_start for t in (2.2e-7, 7.6e-7))
    assert 2.2e-7 < near < 5e-7 and 7.6e-7 < far < 1.1e-6


def test_where_pages_are_small_several_tiles_of_columns_wait_for_the_long_side():
    """Of the dot family: no rows of it are streams then."""
    small, large = (
        selector(spec, [s for s in found(spec).strategies if s.stage.dot])
        for spec in (paged("epyc-zen5", 2048), load_spec("epyc-zen5"))
    )

    def takes(one: Selector, m: int) -> float:
        (seconds,) = np.asarray(one.costs(Shape(m, 4096, 1000, OperandB.TRANSPOSED), ONE_TASK, 1).total)
        return float(seconds)

    assert takes(small, 20) / takes(large, 20) > 1.1 * takes(small, 8) / takes(large, 8)


def test_rows_that_push_each_other_out_are_seen_under_arithmetic_where_pages_are_small():
    """Of fourteen rows in a set of twelve ways, in a part of the time that two lines of them take from L2."""
    one = small_pages("epyc-zen5")
    hidden = replace(one, rates=replace(one.rates, collided=0.0))
    span = round(one.rates.l1_span) // 4
    as_they_lie = [s.stage.tiled and not (s.stage.pack_a or s.stage.swap) for s in one.strategies]
    tall = [i for i, s in enumerate(one.strategies) if s.l0.m == 14 and as_they_lie[i]]

    def conflicts(by: Selector, lda: int) -> np.ndarray:
        return np.asarray(by.costs(Shape(140, 512, 512, lda=lda, ldb=STRIDE), ONE_TASK, 1).terms()["conflicts"])[tall]

    assert len(tall) and (conflicts(one, span) > 2.0 * conflicts(hidden, span)).all()
    assert (conflicts(hidden, span) > 0).all() and not conflicts(one, span + 16).any()


def test_a_panel_that_l2_has_no_room_for_beside_the_next_one_comes_twice_as_late():
    """Of few rows by a plain B; one that is one panel wide has no next one, and a lone row tile none that is late while
    the outermost cache has twice the room for B."""
    one = priced("epyc-zen4")
    roomy = replace(one, rates=replace(one.rates, overtaken=0.0))

    def late(columns: int, k: int) -> np.ndarray:
        at = Shape(3, columns, k, OperandB.PLAIN)
        return np.asarray(one.costs(at, ONE_TASK, 1).total) / np.asarray(roomy.costs(at, ONE_TASK, 1).total)

    loose = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not (s.stage.pack_b or s.stage.swap)]
    size = np.array([4.0 * min(one.strategies[i].l1.k, 6000) * one.strategies[i].l0.n for i in loose])
    lone = np.array([one.strategies[i].l0.m >= 3 for i in loose])
    near, far, fits = late(2000, 6000)[loose], late(12000, 6000)[loose], size <= 0.42 * one.rates.l2_bytes
    assert fits.any() and (~fits & lone).any() and (~fits & ~lone).any()
    assert (near[fits | lone] == 1.0).all() and (near[~fits & ~lone] > 1.0).all()
    assert (far[fits] == 1.0).all() and (far[~fits] > 1.0).all()
    assert (late(16, 6000)[loose] == 1.0).all()


def test_a_line_of_each_row_is_contended_where_two_cores_share_columns_that_are_no_whole_lines():
    chosen = priced("epyc-zen5")
    straight = (chosen.columns.swap + chosen.columns.dot) < 0.5

    def strewn(columns: int, grid: Grid, threads: int):
        return np.asarray(chosen.costs(Shape(500, columns, 16), grid, threads).strewn)[straight]

    ragged = strewn(232, Grid(1, 2), 2)
    to_and_fro = ((chosen.columns.rows_first > 0.5) & (chosen.columns.width < 116))[straight]
    assert to_and_fro.any() and not to_and_fro.all()
    expected = 500 * chosen.rates.contended * (1 + TO_AND_FRO * to_and_fro)
    assert ragged == pytest.approx(expected) and (strewn(240, Grid(1, 2), 2) == 0).all()
    assert (strewn(232, Grid(2, 1), 2) == 0).all() and (strewn(232, Grid(1, 2), 1) == 0).all()


def test_few_columns_beside_those_of_another_family_are_lines_of_their_own():
    """Of a region the dot family waits for each row of C, where it has columns of it: not where it has whole rows."""
    chosen = priced("epyc-zen5")

    def seconds(m: int, n: int, others: float) -> float:
        asked = problem(Shape(m, n, 40, OperandB.TRANSPOSED), ONE_TASK, 1, chosen.rates, np.float32(others))
        return float(predict_dot(NumpyArithmetic(chosen.table), chosen.rates, asked))

    touched = 4 * (200_004 * 40 + 4 * 200_000) + 2e8
    late = float(latency(NumpyArithmetic(chosen.table), chosen.rates, np.float32(touched), 1))
    waits = seconds(200_000, 4, 2e8) - seconds(4, 200_000, 2e8)
    assert late > 0.9 * chosen.rates.l3_latency and waits == pytest.approx(DOT_BESIDE * late * 200_000, rel=0.1)
    assert seconds(200_000, 4, 0) == pytest.approx(seconds(4, 200_000, 0), rel=0.1)


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_several_threads_take_strategies_that_are_near_the_best_on_one(name):
    chosen = priced(name)
    for at in (shape(64, 4096, 1024), shape(5, 900, 3000), shape(3000, 40, 8), shape(7, 300, 900, OperandB.TRANSPOSED)):
        alone = np.asarray(chosen.costs(at, ONE_TASK, 1).total)
        alike = chosen.columns.dot == chosen.columns.dot[alone.argmin()]
        for threads in (2, 16):
            near = chosen.near(at, threads)
            assert near.sum() <= most_near(threads, chosen.lanes) and near[alone.argmin()] and alike[near].all()
            assert not (alike & ~near).any() or alone[near].max() <= alone[alike & ~near].min()
            assert near[chosen.select(at, threads).index]


@pytest.mark.parametrize("name", [spec.name for spec in cpus()])
def test_short_rows_of_c_come_in_bursts_where_a_tile_asks_for_all_of_the_next_one(name, monkeypatch):
    """Not where outermost row tiles of AVX2 ask for a share of them with each panel."""
    one = priced(name)
    at = shape(1_000_000, 121, 64)

    def exposed() -> np.ndarray:
        return np.asarray(one.costs(at, ONE_TASK, 1).terms()["exposed_a"])

    seen = exposed()
    monkeypatch.setattr(stores, "queued", lambda *_: 0.0)
    bursts = seen > exposed()
    tiled = [i for i, s in enumerate(one.strategies) if s.stage.tiled and not s.stage.swap]
    tall = [i for i in tiled if one.strategies[i].l0.m * 121 > MISSES * 16 * 1.1]
    apart = [i for i in tall if one.strategies[i].stage.rows_first and one.lanes < 16]
    assert tall and bursts[[i for i in tall if i not in apart]].all() and not bursts[apart].any()
