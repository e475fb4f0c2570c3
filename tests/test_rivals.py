"""The rival methods: their spaces, costs, searches and dispatchers, on made-up devices; one run of real kernels."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is one of the evaluation's own requirements")

from eval.operands import check, make_operands
from eval.reproduce.run import spread
from eval.rivals import ablation, dense, hidet, mikpoly_study, ranges, table6
from eval.rivals import searched as searching
from eval.rivals.budget import MOST_DOUBLINGS, MOST_SECONDS, Doubled, gain, until_enough, verdict
from eval.rivals.dietcode import Search, fitted_slope, program_of, valid
from eval.rivals.dispatch import compiled as compiled_tree
from eval.rivals.dispatch import train
from eval.rivals.kept import Kept
from eval.rivals.meter import Meter, Runner, race
from eval.rivals.mikpoly import (
    LENGTHS,
    TUNED_AT,
    Regions,
    Tuned,
    call_of,
    columns_of,
    modelled,
    ranked,
    rows_of,
    strategies,
    task_of,
    tune,
)
from eval.rivals.setting import Bench, Setting
from eval.rivals.space import MicroKernel, Program, Space, chains_of, features, read_kernel, space_of, written
from eval.suites import Case
from vortex.candidates import WHOLE, Stage, Strategy, Tile
from vortex.launcher import GemmKernel

CORES = 2


def chain(m: int, n: int, depth: int = WHOLE, **stage: bool) -> Strategy:
    return Strategy(Tile(m, n, 1), Tile(WHOLE, WHOLE, depth), Stage(**stage))


CHAINS = (chain(6, 64), chain(14, 32), chain(14, 32, 256), chain(6, 64, 256, pack_b=True))
SPACE = Space(CHAINS, 0.0, 600_000.0)


def case(m: int, n: int = 768, k: int = 2304) -> Case:
    return Case("made_up", f"made_up/{m}x{n}x{k}", m, n, k)


class FakeMeter(Meter):
    """Seconds from a formula in place of a device."""

    def __init__(self, budget: int, seconds: Callable[[Program], float]) -> None:
        super().__init__(None, budget)  # type: ignore[arg-type]
        self.formula = seconds

    def measure(self, program: Program, case: Case) -> float:
        if program not in self.seen:
            assert self.left > 0
            self.trials += 1
            self.seen[program] = self.formula(program)
        return self.seen[program]


def made_up_seconds(program: Program) -> float:
    """A device on which tall register tiles and long extents are fast, occupancy counts in full, padding costs."""
    kernel = program.kernel
    tall, long = kernel.chain.l0.m / 14, kernel.columns / (kernel.columns + 64)
    return program.flops / (1e11 * tall * long * program.occupancy(CORES) * program.useful)


class TestSpace:
    def test_a_program_rounds_up_to_whole_tiles(self) -> None:
        program = Program(MicroKernel(chain(14, 32), 28, 256), 60, 768, 2304)
        assert (program.grid_m, program.grid_n, program.tasks) == (3, 3, 9)
        assert (program.padded_m, program.padded_n) == (84, 768)
        assert program.useful == pytest.approx(60 / 84)
        assert program.waves(CORES) == 5
        assert program.occupancy(CORES) == pytest.approx(0.9)

    def test_the_cache_buffer_bounds_what_is_packed(self) -> None:
        for kernel in SPACE.kernels:
            if kernel.chain.stage.pack_b:
                assert 4 * kernel.columns * 256 <= 600_000
        assert max(k.columns for k in SPACE.kernels if not k.chain.stage.pack_b) == 2048

    def test_mutants_and_children_stay_inside(self) -> None:
        draw = random.Random(1)
        for _ in range(200):
            one, two = draw.choice(SPACE.kernels), draw.choice(SPACE.kernels)
            assert SPACE.has(SPACE.mutated(one, draw))
            assert SPACE.has(SPACE.crossed(one, two, draw))
        assert not SPACE.has(MicroKernel(CHAINS[0], 7, 64))

    def test_turned_over_and_dot_strategies_are_no_micro_kernels(self) -> None:
        strategies = [*CHAINS, chain(14, 32, swap=True), chain(8, 10, dot=True)]
        assert chains_of(strategies, transpose_b=False) == CHAINS
        assert chains_of(strategies, transpose_b=True) == CHAINS[3:]

    def test_features_tell_kernels_apart(self) -> None:
        assert len({tuple(features(kernel)) for kernel in SPACE.kernels}) == len(SPACE.kernels)


class TestDietCode:
    @pytest.mark.parametrize("slope", [0.3, 0.8])
    def test_the_slope_of_occupancy_is_found(self, slope: float) -> None:
        measured = {}
        for kernel, rate in ((MicroKernel(CHAINS[0], 24, 256), 1e11), (MicroKernel(CHAINS[1], 28, 256), 4e10)):
            for m in range(1, 200, 7):
                program = program_of(kernel, case(m))
                factor = slope * program.occupancy(CORES) + 1.0 - slope
                measured[program] = program.flops / (rate * factor * program.useful)
        assert fitted_slope(measured, CORES) == pytest.approx(slope, abs=1e-6)

    def test_the_search_finds_what_is_nearly_best(self) -> None:
        given = [case(m) for m in (129, 173, 201, 253)]
        search = Search(SPACE, given, FakeMeter(128, made_up_seconds), CORES, seed=3)
        search.run()
        tree = search.dispatcher()
        for shape in given:
            best = min(made_up_seconds(program_of(kernel, shape)) for kernel in SPACE.kernels)
            found = made_up_seconds(program_of(tree.choose(shape.m, shape.n, shape.k), shape))
            assert found <= 1.05 * best

    def test_a_spent_budget_stays_spent(self) -> None:
        meter = Meter(None, 0)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="budget of 0 trials"):
            meter.measure(program_of(SPACE.kernels[0], case(1)), case(1))

    def test_runs_are_valid_up_to_the_end_of_the_last_tile(self) -> None:
        kernel = MicroKernel(chain(14, 32), 56, 256)
        given = [case(m) for m in (20, 100)]
        tree = train([(c.m, c.n, c.k) for c in given], [kernel, kernel])
        assert valid(tree, given, [case(m) for m in (1, 100, 112, 113, 500)]) == [True, True, True, False, False]


class TestDispatch:
    def test_the_exported_tree_chooses_the_same(self) -> None:
        draw = random.Random(5)
        shapes = [(draw.randint(1, 4000), draw.randint(1, 4000), draw.randint(1, 4000)) for _ in range(60)]
        tree = train(shapes, [draw.choice(SPACE.kernels[:9]) for _ in shapes])
        dispatch = compiled_tree(tree.source)
        for _ in range(500):
            shape = (draw.randint(1, 5000), draw.randint(1, 5000), draw.randint(1, 5000))
            assert tree.kernels[dispatch(*shape)] == tree.choose(*shape)

    def test_a_sample_gets_its_vote(self) -> None:
        shapes = [(m, 768, 2304) for m in range(1, 200, 11)]
        votes = [SPACE.kernels[m % 7] for m, _, _ in shapes]
        tree = train(shapes, votes)
        assert [tree.choose(*shape) for shape in shapes] == votes

    def test_an_export_that_differs_is_an_error(self) -> None:
        shapes = [case(m) for m in (10, 20)]
        tree = train([(c.m, c.n, c.k) for c in shapes], [SPACE.kernels[0], SPACE.kernels[1]])
        source = "int dispatch(long m, long n, long k) { return 0; }\n"
        table6.check_export(tree, shapes)
        with pytest.raises(AssertionError, match="exported dispatcher"):
            table6.check_export(type(tree)(tree.kernels, source, tree.model), shapes)


class TestTable6:
    def test_the_cases_are_the_papers(self) -> None:
        shapes = table6.cases()
        assert len(shapes) == 96
        assert {table6.range_of(shape.m) for shape in shapes} == set(table6.PUBLISHED)
        assert len(table6.samples(shapes)) == 32

    def test_the_table_says_what_was_measured(self) -> None:
        tuning = {"samples": 2, "space": 9, "trials": 7, "seconds": 1.0, "kernels": 1, "occupancy_slope": 1.0}
        tuning |= {"vortex_offline_seconds": 20.0, "bounded": True}
        base = {"useful": 0.5, "valid": True, "spread": 0.01, "tuning": tuning, "vortex": 1.0, "partitioned": 1.5}
        base |= {"best_plan": 0.95, "best_grid": 0.8}
        rows = [
            base | {"m": 5, "range": "[0, 128)", "speedup": 2.0, "dietcode": 2.0, "dietcode_twice": 2.0},
            base | {"m": 133, "range": "[128, 256)", "speedup": 1.1, "dietcode": 1.1, "dietcode_twice": 1.0},
        ]
        assert table6.over([{"vortex": 1.0}], "best_plan") == "-"
        table, _, budget = table6.tables(rows)
        assert "| [0, 128) | 1 | 2.00x | 2.00x | 2.00x | 2.8x | 1.50x | 0.95 | 0.80 | 50% | 1 of 1 |" in table
        assert "+10.00% (within 1.0%): **the budget was too small**; the bound on doubling was reached" in budget

    def test_budgets(self) -> None:
        assert gain([2.0, 2.0], [1.0, 1.0]) == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("once", "twice", "spread", "told"),
        [
            ([1.0, 1.0], [1.0, 1.0], 0.2, "+0.00%: enough"),
            ([1.0] * 100, [*[1.0] * 99, 0.9], 0.05, "+0.11% (within 0.1%): enough"),
            ([1.1], [1.0], 0.02, "+10.00% (within 2.0%): **the budget was too small**"),
            ([1.1], [1.0], 0.2, "+10.00% (within 20.0%): **undecided**"),
            ([1.005], [1.0], 0.18, "+0.50% (within 18.0%): **undecided**"),
            ([0.8, 0.8], [1.0, 1.0], 0.18, "-20.00% (within 12.7%): **undecided**"),
        ],
    )
    def test_a_verdict_says_no_more_than_the_spread_lets_it(
        self, once: list[float], twice: list[float], spread: float, told: str
    ) -> None:
        assert verdict(once, twice, spread) == f"twice the budget gains {told}"

    @pytest.mark.parametrize(
        ("gains", "seconds", "trials", "bounded"),
        [
            ([0.009], 1.0, 10, False),
            ([0.5, 0.01, -0.2], 1.0, 40, False),
            ([0.5] * MOST_DOUBLINGS, 1.0, 10 << MOST_DOUBLINGS, True),
            ([0.5], MOST_SECONDS / 30, 20, True),
        ],
    )
    def test_a_budget_is_doubled_until_it_is_enough_or_at_its_bound(
        self, gains: list[float], seconds: float, trials: int, bounded: bool
    ) -> None:
        left = list(gains)
        found = until_enough(float, lambda once, twice: left.pop(0), lambda budget: budget * seconds, 10)
        assert found == Doubled(trials, 2 * trials, trials, bounded) and not left


class TestDense:
    def test_cases_and_buckets(self) -> None:
        shapes = dense.cases()
        assert len({(shape.n, shape.k) for shape in shapes}) == 4
        assert max(shape.m for shape in shapes) == 2048
        assert sum(dense.sampled(shape) for shape in shapes) == 8 * 4
        assert [dense.bucket(m) for m in (1, 16, 17, 80, 2048)] == [1, 16, 32, 128, 2048]

    def test_the_table_says_who_wins(self) -> None:
        used = {name: ["a", 64, 2.0] for name in dense.RIVALS}
        seconds = {"vortex": 1.0, "static": 0.9, "nimble": 2.0, "buckets": 1.5, "dietcode": 1.0, "nimble_twice": 1.0}
        row = {"m": 80, "n": 2304, "k": 768, "sampled": True, "seconds": seconds, "used": used, "spread": 0.01}
        table, layers, budgets, _ = dense.tables([row, row | {"used": used | {"static": ["b", 16, 1.0]}}])
        assert "| nimble | 2 sampled | 2.00x | 2.00x | 50.0% | 23.9 % |" in table
        assert "| static | 2 sampled | 0.90x | 0.90x | -11.1% | 30.5 % |" in table
        assert "| m x 2304 x 768 | 2 | 0.90x | 2.00x | 1.50x | 1.00x |" in layers
        assert "nimble: 1 search(es), 64 trials, 2 s; twice the budget gains +100.00%" in budgets
        assert "static: 2 search(es), 80 trials, 3 s" in budgets
        assert "dietcode: 1 search(es), 64 trials, 2 s; twice the budget gains +0.00%: enough" in budgets


class TestKept:
    def test_what_was_made_is_not_made_again(self, tmp_path: Path) -> None:
        made: list[int] = []

        def make() -> list[int]:
            made.append(1)
            return [len(made)]

        first = Kept(tmp_path / "kept.jsonl")
        assert (first.recall("a", make), first.recall("a", make), first.recall("b", make)) == ([1], [1], [2])
        with (tmp_path / "kept.jsonl").open("a") as file:
            file.write('{"key": "c", "val')
        again = Kept(tmp_path / "kept.jsonl")
        assert (again.recall("b", make), again.recall("c", make)) == ([2], [3])
        assert Kept(tmp_path / "kept.jsonl").recall("c", make) == [3]

    def test_micro_kernels_are_read_as_written(self) -> None:
        for kernel in SPACE.kernels[:50]:
            assert read_kernel(json.loads(json.dumps(written(kernel)))) == kernel


class FakeBench(Bench):
    """Made-up seconds in place of libraries."""

    def __init__(self, seconds: Callable[[Program], float]) -> None:
        super().__init__(Setting(threads=CORES), None)  # type: ignore[arg-type]
        object.__setattr__(self, "formula", seconds)

    def space(self, case: Case) -> Space:
        return SPACE

    def meter(self, trials: int) -> Meter:
        return FakeMeter(trials, self.formula)  # type: ignore[attr-defined]

    def recall(self, name: str, make: Callable[[], Any]) -> Any:
        return self.kept.recall(name, make)


class TestSearched:
    @pytest.mark.parametrize(("gains", "trials"), [([0.0], 64), ([0.5, 0.0], 128)])
    def test_the_budget_is_doubled_while_that_gains(
        self, gains: list[float], trials: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = list(gains)
        monkeypatch.setattr(searching, "confirmed", lambda *asked: left.pop(0))
        bench, given = FakeBench(made_up_seconds), [case(m) for m in (129, 253)]
        found = searching.searched(bench, given, 64)
        assert (found.trials, found.space, len(found.shapes)) == (trials, len(SPACE.kernels), 2)
        again = searching.searched(bench, given, 64)  # kept: no gain is left to be asked for
        assert [again.once.choose(*s) for s in found.shapes] == [found.once.choose(*s) for s in found.shapes]
        assert again.told() == found.told()

    def test_a_budget_is_enough_for_the_shapes_that_are_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[list[Case]] = []
        monkeypatch.setattr(searching, "confirmed", lambda bench, judged, *trees: asked.append(list(judged)) or 0.0)
        bench, given, outside = FakeBench(made_up_seconds), [case(m) for m in (129, 253)], [case(m) for m in (4, 8)]
        searching.searched(bench, given, 64)
        searching.searched(bench, given, 64, outside)  # not what was kept of the samples
        assert asked == [given, outside]

    def test_equal_votes_gain_nothing(self) -> None:
        given = [case(m) for m in (1, 2, 3)]
        tree = train([(each.m, each.n, each.k) for each in given], [SPACE.kernels[0]] * 3)
        assert searching.confirmed(FakeBench(made_up_seconds), given, tree, tree) == 0.0


def tuned(kernel: MicroKernel, rate: float) -> Tuned:
    flops = [2 * kernel.rows * kernel.columns * k for k in LENGTHS]
    return Tuned(kernel, tuple(1e-6 + work / rate for work in flops))


LOW, TALL = MicroKernel(chain(6, 64), 6, 64), MicroKernel(chain(14, 32), 56, 256)


class TestMikPoly:
    def test_g_predict_is_piecewise_linear(self) -> None:
        each = Tuned(LOW, (1.0, 3.0, 6.0, 12.0, 20.0))
        assert each.predict(32) == 1.0
        assert each.predict(144) == pytest.approx(2.0)
        assert each.predict(5120 + 2816) == pytest.approx(28.0)

    def test_tuning_finds_the_quick_ones(self) -> None:
        rates = tune(SPACE, FakeMeter(80, made_up_seconds), seed=1)
        assert len(rates) == 80
        best = max(p.flops / made_up_seconds(p) for p in (task_of(k, TUNED_AT)[0] for k in SPACE.kernels))
        assert max(rates.values()) >= 0.95 * best
        models = modelled(rates, FakeMeter(10_000, made_up_seconds), 4)
        assert {each.kernel.rows for each in models} == {kernel.rows for kernel in rates}

    def test_ranking_knows_small_shapes(self) -> None:
        pool = [tuned(LOW, 5e10), tuned(TALL, 1e11)]
        assert [each.kernel for each in ranked(pool, CORES, 4, 1)] == [LOW]
        pool = [tuned(LOW, 5e10), tuned(TALL, 5e11)]
        assert [each.kernel for each in ranked(pool, CORES, 12, 2)] == [TALL, LOW]

    def test_a_second_micro_kernel_takes_the_rest(self) -> None:
        pool = [tuned(LOW, 5e10), tuned(TALL, 1e11)]
        best = strategies(pool, case(56 + 5, 512, 1024), CORES)[0]
        assert [(program.kernel, program.m) for program in best.programs] == [(TALL, 56), (LOW, 5)]
        assert rows_of(best) == 62
        whole = strategies(pool, case(56, 512, 1024), CORES)[0]
        assert [program.kernel for program in whole.programs] == [TALL]

    def test_the_ablations_see_half_of_the_cost(self) -> None:
        pool, shape = [tuned(LOW, 5e10), tuned(TALL, 1e11)], case(300, 512, 1024)
        assert strategies(pool, shape, CORES, "wave")[0].programs[0].kernel == TALL
        assert strategies(pool, shape, CORES, "pipe")[0].programs[0].kernel == LOW

    def test_the_table(self) -> None:
        names = ("vortex", "twice", *mikpoly_study.JUDGES, "oracle", "one micro-kernel")
        names += tuple(f"{name}={value}" for name, values in mikpoly_study.VARIED.items() for value in values)
        used = {"space": 9, "trials": 7, "modelled": 4, "timings": 27, "searched": 1.0}
        row = {"seconds": dict.fromkeys(names, 1.0) | {"wave": 2.0}, "used": used, "regions": ["a", "b"], "spread": 0.1}
        variants, _, told = mikpoly_study.tables([row])
        assert "| wave | 0.50 | 0.81 | 2.00x | 2.00x |" in variants
        assert "Two micro-kernels on 1 of 1 shapes" in told


class TestHidet:
    def test_the_prime_and_sizes_beside_it_are_measured_first(self) -> None:
        first = [case.m for case in spread(hidet.cases())[:6] if case.suite == "consecutive"]
        assert first[0] == hidet.PRIME and len(first) > 1
        assert {case.m for case in hidet.cases() if case.suite == "consecutive"} == set(hidet.CONSECUTIVE)

    def test_the_space_is_small_and_inside(self, runner: Runner) -> None:
        space = space_of(runner.vortex, False)
        once, twice = (hidet.schedules(runner.vortex, space, tiles) for tiles in (hidet.TILES, 2 * hidet.TILES))
        assert all(space.has(kernel) for kernel in once)
        assert set(hidet.schedules(runner.vortex, space, 1)) < set(once) <= set(twice)
        more = len(hidet.register_tiles(runner.vortex, space, 2 * hidet.TILES)) > hidet.TILES
        assert (len(once) < len(twice)) == more, "a core of few registers has no more tiles near its highest rate"
        assert 20 < len(once) <= 180

    def test_the_table(self) -> None:
        row = {"suite": "consecutive", "m": 2039, "flops": 2e9}
        row |= {"seconds": {"vortex": 0.01, "hidet": 0.02, "twice": 0.02}}
        row |= {"members": [1.0, 0.8, 0.4, 0.95], "space": 4, "tuning": 1.5, "spread": 0.0}
        shapes, members, sizes, _ = hidet.tables([row])
        assert "| consecutive | 1 | 2.00x | 2.00x | 1.50 s |" in shapes
        assert "| consecutive | 50% | 75% | 75% |" in members
        assert "| 2039 (prime) | 100 | 200 |" in sizes


class TestAblation:
    @pytest.mark.parametrize("shape", [None, (9, 64, 33)])
    def test_every_way_computes_the_product(self, shape: tuple[int, int, int] | None) -> None:
        given = make_operands(Case("made_up", "made_up/9", 9, 64, 33), seed=0)
        programs = ablation.Programs(4, 8, shape)
        local = np.zeros(programs.room(given.case), np.float32)
        for way in ablation.WAYS:
            given.out.fill(np.nan)
            programs.call(way, given, local)()
            check(given, given.out)

    def test_the_table(self) -> None:
        names = [name for way in ablation.WAYS for name in (way, f"{way} static")]
        seconds = dict.fromkeys([*names, *(f"kernels {way}" for way in ablation.KERNEL_WAYS)], 1.0)
        seconds |= {"checks_everywhere": 3.0, "kernels loop_partitioning": 0.5}
        row = {"n": 64, "k": 128, "tile": "14x32", "kernel": "some", "seconds": seconds, "spread": 0.0}
        table, _ = ablation.tables([row])
        assert "| m x 64 x 128 | compiled | checks everywhere | 1 | 3.00 | 3.00 | 3.000 |" in table
        assert "| m x 64 x 128 | kernels | loop partitioning | 1 | 0.50 | 0.50 |  |" in table


class TestRanges:
    def test_samples_are_even_and_end_with_the_range(self) -> None:
        assert [sample.m for sample in ranges.samples(128)] == [16, 32, 48, 64, 80, 96, 112, 128]
        assert {ranges.end_of(each) for each in ranges.cases()} == set(ranges.ENDS)

    def test_the_table(self) -> None:
        rows = [
            {"end": end, "seconds": {"vortex": 1.0, "dietcode": 1.5}, "valid": 200, "spread": 0.0}
            | {"tuning": {"trials": 64, "seconds": 3.0}}
            for end in ranges.ENDS[:3]
        ]
        table, budgets, _ = ranges.tables(rows)
        assert "| [1, 128] | 1 | 200 | 254 | 1.50x | 1.50x | 1.50x | 1.68x |" in table
        assert budgets.count("enough") == 3


@pytest.fixture(scope="module")
def runner(gemm: GemmKernel) -> Runner:
    """The library's own strategies stand in for the chains of a link table, which would take long to compile."""
    return Runner(gemm, gemm, CORES)


def outer_products(runner: Runner, trans_b: bool) -> list[Strategy]:
    strategies: list[Strategy] = [s for s in runner.kernels.strategies if s.stage.tiled and not s.stage.swap]
    return [s for s in strategies if s.stage.pack_b or not trans_b]


class SmallSpace(Space):
    """Given micro-kernels alone."""

    def __init__(self, kernels: tuple[MicroKernel, ...]) -> None:
        super().__init__(tuple(kernel.chain for kernel in kernels), 0.0, float("inf"), rungs=(1, 2))
        self.__dict__["kernels"] = kernels


class TestRunner:
    @pytest.mark.parametrize("trans_b", [False, True])
    def test_programs_compute_the_product(self, runner: Runner, trans_b: bool) -> None:
        shape = Case("made_up", "made_up/odd", 37, 101, 65, trans_b=trans_b)
        chains = outer_products(runner, trans_b)
        assert chains
        for each in chains:
            runner.verify_program(program_of(MicroKernel(each, 2 * each.l0.m, each.l0.n), shape), shape)

    def test_partitioned_and_globally_padded_programs_do_too(self, runner: Runner) -> None:
        shape = case(37, 101, 65)
        kernel = MicroKernel(outer_products(runner, False)[0], 28, 384)
        partitioned = Program(kernel, 37, 101, 65, partitioned=True)
        assert (partitioned.padded_m, partitioned.padded_n) == (37, 101)
        runner.verify_program(partitioned, shape)
        taller = Program(kernel, 64, 101, 65)
        runner.verify(runner.padded_globally(taller, shape), shape, taller.padded_m, taller.padded_n)

    def test_two_regions_do_too(self, runner: Runner) -> None:
        shape, (one, *_, two) = case(37, 101, 65), outer_products(runner, False)
        first = Program(MicroKernel(one, one.l0.m, 4 * one.l0.n), one.l0.m, 101, 65)
        rest = Program(MicroKernel(two, two.l0.m, two.l0.n), 37 - one.l0.m, 101, 65)
        regions = Regions((first, rest), 0.0)
        runner.verify(call_of(runner, regions, shape), shape, rows_of(regions), columns_of(regions))

    def test_ours_and_a_program_race(self, runner: Runner) -> None:
        shape = case(20, 64, 64)
        program = program_of(MicroKernel(outer_products(runner, False)[0], 24, 384), shape)
        raced = race({"ours": runner.ours(shape), "rival": runner.program(program, shape)}, 2, 1e-3)
        assert all(0.0 < found.seconds < 1.0 for found in raced.values())
        assert runner.selection(shape) < 1e-3

    def test_own_plans_compute_the_product_on_any_grid(self, runner: Runner) -> None:
        shape = case(37, 101, 65)
        considered, every = runner.plans(shape), runner.plans(shape, any_grid=True)
        assert len(every) > len(considered) > 1
        for call in [*every.values()][:: len(every) // 40]:
            runner.verify(call, shape, 37, 101)

    @pytest.mark.parametrize("method", [table6, dense, ranges, hidet, ablation])
    def test_a_method_measures_a_shape(
        self, method: Any, gemm: GemmKernel, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench(Setting(CORES, trials=16, rounds=1, seconds=1e-3, allow_busy=True), runner)
        found = tuple(MicroKernel(each, each.l0.m, 2 * each.l0.n) for each in outer_products(runner, False))
        monkeypatch.setattr(Bench, "space", lambda self, case: SmallSpace(found))
        for module in (hidet, ablation):
            monkeypatch.setattr(module, "schedules", lambda gemm, space, tiles: list(found[: tiles // 2]))
        monkeypatch.setattr(dense, "SAMPLED", (1, 2))
        monkeypatch.setattr(table6, "samples", lambda shapes: shapes[:2])
        monkeypatch.setattr(ranges, "samples", lambda end: [ranges.case_of(8, end)])
        experiment = method.opened(bench) if hasattr(method, "opened") else method.Experiment(bench)
        shape = min(method.cases(), key=lambda each: each.flops)
        (row,) = experiment.measure(shape)
        assert row["id"] == shape.id
        assert row["spread"] >= 0.0
        assert all(isinstance(block, str) for block in method.tables([row]))

    def test_a_wrong_result_is_noticed(self, runner: Runner) -> None:
        shape = case(20, 64, 64)
        operands = runner.workspace.operands(shape, 20, 64)
        with pytest.raises(ArithmeticError):
            runner.verify(lambda: operands.out.fill(0.0), shape, 20, 64)
        with pytest.raises(ArithmeticError):
            runner.verify(lambda: None, shape, 20, 64)
        assert np.isnan(operands.out).all()
