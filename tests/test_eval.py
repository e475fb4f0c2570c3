"""The evaluation harness: suites add up, statistics, resuming, roofline, report. No benchmark runs here."""

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest

pytest.importorskip("psutil")

from eval import (
    bench,
    commands,
    link_table,
    machine,
    operands,
    operator_operands,
    oracle,
    plans,
    races,
    records,
    stats,
    suites,
    utilization,
    worker,
)
from eval.alternate import STOLEN_ATTEMPTS, Effort, Outcome, Run, lines_of, measure, rotated, undisturbed
from eval.offline import stages
from eval.operator_cases import OperatorCase
from eval.process import WorkerError, WorkerProcess, worker_environment
from eval.registry import PACKED, PLAIN, RIVALS, SYSTEMS
from eval.report import main as report_main
from eval.report import report
from eval.roofline import Limits, MemoryLevel, RooflineError, better, memory_seconds, roofline_seconds, roofline_share
from eval.stats import Timing
from eval.suites import Case
from vortex.candidates import Stage, Strategy, Tile
from vortex.hardware import HardwareSpec
from vortex.launcher import GemmKernel
from vortex.operators import Gemm
from vortex.plans import Grid, LaunchPlan
from vortex.sieve import buffer_bytes

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
LIMITS = Limits(
    100e9,
    (
        MemoryLevel("L1", 32_000, 400e9, 400e9),
        MemoryLevel("L2", 1_000_000, 200e9, 200e9),
        MemoryLevel("memory", 1 << 62, 20e9, 30e9),
    ),
)


def fake_line(case: Case, system: str, seconds: float | None, **more: Any) -> records.Line:
    run = Run(1, 7, LIMITS, {"device": "test", "commit": "abc", "busy": None})
    if seconds is None:
        outcome = Outcome({"warm": []}, error=WorkerError("Crash", "the worker ended"))
    else:
        outcome = Outcome({"warm": [Timing(10, seconds, seconds * 1.01)] * 3}, 0.01)
    return lines_of(case, {system: outcome}, {system: {"lib": "1"}}, run, None)[0] | more


class FakeWorker(WorkerProcess):
    """Answers at once; the host took `shares` of its rounds, one after the other."""

    def __init__(self, shares: list[float]) -> None:
        super().__init__("none", 1)
        self.shares = shares

    def ask(self, request: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
        return {"calls": 1, "best": 1.0, "median": 1.0, "stolen": self.shares.pop(0)}


class TestSuites:
    @pytest.mark.parametrize(
        ("name", "count"),
        [
            ("vortex_deepbench_gemm_84", 84),
            ("vortex_transformer_gemm_192", 192),
            ("vortex_cnn_fc_80", 80),
            ("vortex_gnn_gemm_150", 150),
            ("cnn_fc_forward_80", 80),
            ("vortex_fig14_squares_7", 7),
            ("vortex_fig16_small_m_48", 48),
            ("vortex_table6_96", 96),
            ("dietcode_dense", 8),
            ("dietcode_bert_dense", 24),
            ("large_outputs_12", 12),
            ("odd_outputs_12", 12),
        ],
    )
    def test_counts(self, name: str, count: int) -> None:
        cases = suites.load_suite(name)
        assert len(cases) == len({case.id for case in cases}) == count
        assert all(case.suite == name and min(case.m, case.n, case.k) > 0 for case in cases)

    def test_the_four_vortex_suites_are_506_cases(self) -> None:
        assert sum(len(suites.load_suite(name)) for name in suites.VORTEX_SUITES) == 506

    def test_ranges_are_the_papers(self) -> None:
        cases = suites.load_suite("vortex_deepbench_gemm_84")
        assert (min(c.m for c in cases), max(c.m for c in cases)) == (35, 8448)
        assert (min(c.k for c in cases), max(c.k for c in cases)) == (128, 500_000)

    def test_forward_layers_store_the_weight_transposed(self) -> None:
        assert all(case.layout == "nt" for case in suites.load_suite("cnn_fc_forward_80"))
        assert all(case.layout == "nn" for case in suites.load_suite("vortex_cnn_fc_80"))

    def test_unknown_suite_names_the_known_ones(self) -> None:
        with pytest.raises(LookupError, match="dietcode_dense"):
            suites.load_suite("nonsense")

    def test_random_shapes_repeat_with_their_seed(self) -> None:
        first, again, other = (suites.random_cases(50, seed) for seed in (3, 3, 4))
        assert first == again != other
        logs = [math.log(case.m) for case in suites.random_cases(2000, 1, max_flops=1e30)]
        assert abs(np.mean(logs) - math.log(8192) / 2) < 0.3

    def test_what_does_not_fit_is_named_with_the_reason(self) -> None:
        small, large = Case("s", "s/0", 10, 10, 10), Case("s", "s/1", 10_000, 10_000, 10_000)
        kept, left_out = suites.fitting([small, large], 1e6)
        assert kept == [small]
        assert left_out[0][0] == large
        assert "memory" in left_out[0][1]

    def test_a_sample_represents_every_suite(self) -> None:
        cases = [case for name in suites.MAIN_SUITES for case in suites.load_suite(name)]
        chosen = suites.sample(cases, 30, seed=5)
        assert {case.suite for case in chosen} == set(suites.MAIN_SUITES)
        assert 25 <= len(chosen) <= 35
        assert chosen == suites.sample(cases, 30, seed=5) != suites.sample(cases, 30, seed=6)


class TestStatistics:
    def test_speedup(self) -> None:
        result = stats.speedup([("a", 2.0, 1.0), ("b", 1.0, 2.0), ("c", 8.0, 1.0)])
        assert result is not None
        assert result.geometric == pytest.approx(2.0)
        assert result.arithmetic == pytest.approx(3.5)
        assert result.wins == pytest.approx(2 / 3)
        assert (result.worst, result.worst_id) == (0.5, "b")
        assert stats.speedup([]) is None

    def test_within_tolerance_is_not_slower(self) -> None:
        result = stats.speedup([("a", 0.99, 1.0)], tolerance=0.02)
        assert result is not None
        assert result.wins == 1.0

    def test_summary_takes_the_fastest_when_warm_and_the_median_when_cold(self) -> None:
        rounds = [Timing(5, 1.0, 2.0), Timing(5, 1.2, 4.0), Timing(5, 3.0, 3.0)]
        assert stats.summarize(rounds, "warm").seconds == 1.2
        assert stats.summarize(rounds, "cold").seconds == 3.0
        assert stats.summarize(rounds, "warm").spread == pytest.approx(2.0)

    def test_deciles_hold_every_case_once(self) -> None:
        flops = {f"c{number}": number * number for number in range(23)}
        groups = stats.deciles(flops)
        assert len(groups) == 10
        assert [case for group in groups for case in group] == list(flops)


class TestRoofline:
    def test_compute_bound(self) -> None:
        case = Case("s", "s/0", 80, 80, 80)
        assert roofline_seconds(case, LIMITS, "warm") == pytest.approx(case.flops / 100e9)

    def test_memory_bound_far_past_a_cache_is_its_bandwidth(self) -> None:
        case = Case("s", "s/0", 1, 100_000, 1000)
        seconds = memory_seconds(case, LIMITS.levels, "warm")
        assert case.footprint_bytes / 20e9 * 0.99 < seconds < case.footprint_bytes / 20e9
        assert memory_seconds(case, LIMITS.levels, "cold") == pytest.approx(case.read_bytes / 20e9)

    def test_a_share_above_one_is_an_error(self) -> None:
        case = Case("s", "s/0", 80, 80, 80)
        bound = roofline_seconds(case, LIMITS, "warm")
        assert roofline_share(case, LIMITS, "warm", bound * 2) == pytest.approx(0.5)
        with pytest.raises(RooflineError, match="above 1"):
            roofline_share(case, LIMITS, "warm", bound / 1.5)

    def test_a_result_past_the_roofline_becomes_an_error_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "limits", lambda threads: LIMITS)
        case = Case("s", "s/0", 80, 80, 80)
        line = fake_line(case, "vortex", roofline_seconds(case, LIMITS, "warm") / 2)
        assert line["error_kind"] == "RooflineError"
        assert line["seconds"] is None

    def test_better_limits_survive_json(self) -> None:
        slower = Limits(90e9, tuple(MemoryLevel(x.name, x.capacity_bytes, 1e9, 500e9) for x in LIMITS.levels))
        both = better(LIMITS, slower)
        assert both.peak_flops_per_s == 100e9
        assert both.levels[0].copy_bytes_per_s == 500e9
        assert Limits.from_json(json.loads(json.dumps(both.to_json()))) == both


class TestRecords:
    def test_resuming(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        case, other = Case("s", "s/0", 8, 8, 8), Case("s", "s/1", 8, 8, 8)
        records.append(path, [fake_line(case, "mkl", 1e-3), fake_line(case, "vortex", None)])
        with path.open("a") as file:
            file.write('{"kind": "bench", "id": "s/1", "sys')  # a run that was killed
        assert records.reopened(path) == records.read([path])
        assert records.reopened(tmp_path / "none.jsonl") == []
        records.append(path, [fake_line(other, "mkl", 1e-3)])
        done = records.settled(records.read([path]))
        assert records.complete("s/0", ["mkl", "vortex"], 1, "warm", done)
        assert not records.complete("s/1", ["mkl", "vortex"], 1, "warm", done)
        assert not records.complete("s/0", ["mkl"], 2, "warm", done)
        assert not records.complete("s/0", ["mkl"], 1, "cold", done)

    def test_passing_errors_are_tried_again(self) -> None:
        case = Case("s", "s/0", 8, 8, 8)
        lines = [fake_line(case, "mkl", None, error_kind="Timeout"), fake_line(case, "vortex", None)]
        assert {key[1] for key in records.settled(lines)} == {"vortex"}

    def test_a_broken_line_inside_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        path.write_text('{"kind": "bench"}\nnonsense\n{"kind": "bench"}\n')
        with pytest.raises(ValueError, match=r"x\.jsonl:2"):
            records.read([path])

    def test_every_line_says_where_it_was_made(self) -> None:
        line = fake_line(Case("s", "s/0", 8, 8, 8), "mkl", 1e-3)
        assert {"device", "threads", "commit", "versions", "seed", "limits", "busy", "time"} <= line.keys()


class TestReport:
    def lines(self) -> list[records.Line]:
        found = []
        for number in range(12):
            case = Case("suite_a" if number % 2 else "suite_b", f"s/{number:02d}", 8 + number, 64, 640)
            for system, factor in zip((*PLAIN, *PACKED), (1.0, 2.0, 3.0, 1.5, 1.2, 1.4, 0.9, 1.1, 1.3), strict=True):
                found.append(fake_line(case, system, factor * case.flops / 80e9))
        found.append(fake_line(Case("suite_a", "s/99", 8, 8, 8), "onednn", None))
        return found

    def test_bench_tables(self) -> None:
        text = report(self.lines())
        assert "| mkl | 12 | 100.0% | 100.0% | 2.00 | 2.00 |" in text
        assert "| best of all | 12 | 100.0% | 100.0% | 1.20 | 1.20 |" in text
        assert "MFLOP" in text
        assert "suite_b" in text
        assert "the worker ended" in text
        assert "no oracle results" in text

    def test_nothing_but_peers(self) -> None:
        text = report([line for line in self.lines() if not line["system"].startswith("vortex")])
        assert "No results of `vortex`" in text

    def test_no_lines_at_all(self) -> None:
        assert "no bench results" in report([])

    def test_command_draws_plots(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        more = [
            {"kind": "overhead", "name": "64^3 call", "value": 9.0, "unit": "us", "cube": 64, "selection_us": 0.1},
            {"kind": "offline", "operator": "gemm", "name": "compile from nothing", "value": 9.0, "unit": "s"},
            {"kind": "offline", "operator": "gemm", "name": "admitted", "value": 900, "unit": "candidates"},
        ]
        records.append(tmp_path / "x.jsonl", [*self.lines(), *more])
        assert report_main([str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "docs")]) == 0
        names = {path.name for path in (tmp_path / "docs").iterdir()}
        assert {"report.md", "speedup-vortex-1t-warm.png", "overhead.png", "offline.png"} <= names


class TestOracle:
    def test_scores_on_the_other_half(self) -> None:
        trials = [
            oracle.Trial("a, grid 1x1", "a", "small", 1.0, even=1.0, odd=1.1),
            oracle.Trial("b, grid 1x1", "b", "large", 2.0, even=1.2, odd=1.0),
        ]
        result = oracle.score(trials, chosen="b, grid 1x1", fixed0="small", fixed="gone")
        assert result.best == "a, grid 1x1"
        assert result.ours == pytest.approx(1.1)
        assert result.static1 == 1.0
        assert result.static2 == 1.0

    def test_one_round_cannot_choose_and_score(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            oracle.main(["--rounds", "1"])
        assert "--rounds: 1: at least 2, one to choose the best and one to score it" in capsys.readouterr().err

    def test_help_tells_what_an_option_takes(self) -> None:
        top = commands.command("`python -m eval.something`: what it does.\n\nShares of 5 % are small.")
        top.add_argument("--shape", nargs="+", default=[], metavar="M,N,K", help="products")
        top.add_argument("--seed", type=int, default=0, help="of the sample")
        top.add_argument("--all", action="store_true", help="of them")
        told = " ".join(top.format_help().split())
        assert "--shape M,N,K [M,N,K ...] products --seed N" in told
        assert "--seed N of the sample (default: 0) --all of them Shares of 5 % are small." in told

    def test_a_busy_machine_ends_a_command_in_one_line(self) -> None:
        def disturbed() -> int:
            raise machine.BusyError("somebody else")

        with pytest.raises(SystemExit, match=r"^error: the machine is busy: somebody else$"):
            commands.ended(disturbed)
        with pytest.raises(SystemExit) as left:
            commands.ended(lambda: 4)
        assert left.value.code == 4

    def test_every_plan_is_timed_on_both_halves(self) -> None:
        times = races.time_plans({"a": lambda: None, "b": lambda: sum(range(1000))}, rounds=4)
        assert times.keys() == {"a", "b"}
        assert all(min(pair) > 0 for pair in times.values())

    def test_the_odd_rounds_do_not_say_who_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`late` is slow in the first odd round: it must not lose its place by that, nor `stalled` by its first call.
        `slow` loses it, looked at twice, unless kept."""
        counts = {"quick": 0, "late": 0, "slow": 0, "stalled": 0}

        def call(name: str, *seconds: float) -> Callable[[], float]:
            def run() -> float:
                counts[name] += 1
                return seconds[(counts[name] - 1) % len(seconds)]

            return run

        monkeypatch.setattr(races, "time_batch", lambda call, count: call())
        calls = {"quick": call("quick", 2e-3), "late": call("late", 2e-3, 9e-3), "slow": call("slow", 6e-3)}
        assert races.time_plans(calls, rounds=4) == {"quick": (2e-3, 2e-3), "late": (2e-3, 9e-3), "slow": (6e-3, 6e-3)}
        assert counts == {"quick": 4, "late": 4, "slow": 2, "stalled": 0}
        calls["stalled"] = call("stalled", 5e-3, 2e-3, 2e-3, 2e-3, 2e-3)
        assert races.time_plans(calls, rounds=4, kept="slow")["stalled"] == (2e-3, 2e-3)
        assert counts["slow"] == 6 and counts["stalled"] == 5

    def test_static_choices_are_of_the_library_and_serve_every_shape(self) -> None:
        def trial(strategy: str, even: float, own: bool = True) -> oracle.Trial:
            return oracle.Trial(f"{strategy}, grid 1x1", strategy, strategy[0], 1.0, even, even, own)

        shapes = [
            [trial("a1", 1.0), trial("b1", 2.0), trial("b2", 3.0), trial("c1", 0.1, own=False)],
            [trial("a1", 1.0), trial("b1", 3.0), trial("b2", 2.0), trial("c1", 0.1, own=False)],
            [trial("b1", 1.0), trial("b2", 2.0), trial("c1", 0.1, own=False)],
        ]
        assert oracle.most_often_best(shapes, "strategy") == "b1"
        assert oracle.most_often_best(shapes, "level0") == "b"

    def test_the_term_that_misled(self) -> None:
        told = plans.misleading_term({"compute": 1e-6, "packing": 0.0}, {"compute": 1e-6, "packing": 3e-6})
        assert told == "packing (+3.00 us)"
        assert plans.misleading_term({"compute": 2e-6}, {"compute": 2e-6}).startswith("none")
        outer, dot = {"compute": 2e-6, "traffic": 9e-6, "total": 2e-6}, {"dot_products": 5e-6, "total": 5e-6}
        assert plans.misleading_term(outer, dot) == "total (+3.00 us)"

    def test_groups_are_not_mixed(self, tmp_path: Path) -> None:
        lines = []
        for threads, unpruned, packed in ((1, False, False), (1, True, False), (2, False, False), (2, False, True)):
            line = asdict(Case("s", "s/0", 8, 8, 8)) | {"kind": "oracle", "threads": threads, "unpruned": unpruned}
            line |= {"packed": packed, "strategies": 15 + unpruned, "tried": 20, "misled": "-", "trials": []}
            lines.append(line | {"ours": 0.9, "static1": 0.8, "static2": 0.7, "chosen": "x", "best": "y"})
        text = report(lines)
        titles = [line for line in text.splitlines() if line.startswith("### ")]
        assert titles == [
            "### 1 thread, strategies of the library",
            "### 1 thread, strategies of the link table",
            "### 2 threads, strategies of the library",
            "### 2 threads, packed B, strategies of the library",
        ]
        assert "16 strategies" in text
        pytest.importorskip("matplotlib")
        records.append(tmp_path / "x.jsonl", lines)
        assert report_main([str(tmp_path / "x.jsonl"), "--out", str(tmp_path)]) == 0
        assert len(list(tmp_path.glob("oracle-*.png"))) == 4


@needs.a_compiler
class TestStages:
    def test_of_a_library_that_was_made_from_nothing(self):
        library = SimpleNamespace(manifest=SimpleNamespace(reused=0, offline_seconds={"emit": 9.0}))
        assert stages(library) == {"emit": 9.0}

    def test_objects_that_were_there_are_emitted_for_the_figure(self, gemm: Any, monkeypatch: pytest.MonkeyPatch):
        asked = []

        def compiled(operator: object, hardware: HardwareSpec, cache: bool) -> Any:
            asked.append((operator, hardware.name, cache))
            return SimpleNamespace(manifest=SimpleNamespace(offline_seconds={"emit": 9.0}))

        monkeypatch.setattr("vortex.api.compile", compiled)
        manifest = replace(gemm.manifest, reused=7, offline_seconds={"emit": 0.1})
        assert stages(SimpleNamespace(manifest=manifest)) == {"emit": 9.0}
        assert asked == [(Gemm(), gemm.manifest.hardware["name"], False)]


class TestLinkTable:
    """What the compiler left out can be built and run."""

    def test_a_sample_is_even_and_holds_the_library(self, gemm: GemmKernel) -> None:
        every, some = link_table.every_strategy(gemm), link_table.every_strategy(gemm, 200)
        assert len(set(every)) == len(every) > 1000
        assert set(gemm.strategies) <= set(some) <= set(every)
        assert 150 <= len(some) <= 200 + len(gemm.strategies)
        assert len({strategy.l0 for strategy in some}) > len({strategy.l0 for strategy in every}) / 2

    def test_every_strategy_of_a_sample_runs(self, library_path: Path, tmp_path: Path) -> None:
        """End to end: more strategies than a library ever keeps; each result is checked on the way."""
        out = tmp_path / "oracle.jsonl"
        options = f"--library {library_path} --unpruned --strategies 120 --sample 4 --max-flops 1e6 --rounds 2 --seed 1"
        assert oracle.main([*options.split(), "--allow-busy", "--out", str(out)]) == 0
        lines = records.read([out])
        assert {line["suite"] for line in lines} >= {"random_1", "vortex_gnn_gemm_150"}
        assert all(line["unpruned"] and line["tried"] > 20 and 0 < line["ours"] < 20 for line in lines)

    def test_plans_that_do_the_same(self, gemm: GemmKernel) -> None:
        l0 = next(strategy.l0 for strategy in gemm.strategies if not strategy.stage.dot)

        def deed(m: int, n: int, k: int, **stage: bool) -> object:
            strategy = Strategy(l0, Tile(m * l0.m, n * l0.n, k), Stage(**stage))
            return plans.deed(LaunchPlan(0, strategy, Grid(1, 1), 1.0), 3 * l0.m, 5 * l0.n - 1, 100)

        assert deed(3, 5, 100) == deed(4, 6, 200) != deed(2, 5, 100)
        assert deed(3, 5, 100) != deed(3, 4, 100) and deed(3, 5, 100) != deed(3, 5, 99)
        assert deed(3, 5, 100) != deed(3, 5, 100, pack_b=True)


class TestUtilization:
    def test_strategies_past_the_bounds_of_the_spec(self, gemm: GemmKernel) -> None:
        """The evidence for a bound needs what it forbids."""
        level = link_table.hardware_of(gemm).level("L1")
        capacity = link_table.hardware_of(gemm).memory(level.memory).capacity_bytes
        found = utilization.copying_strategies(gemm, [(1024, 1024, 1024)])
        filled = [buffer_bytes(s.l1, s.stage, 4, s.l0.m) / capacity for s in found]
        assert min(filled) < 0.1 and level.max_utilization < 1.5 < max(filled) <= utilization.OVERFILLED
        assert len({s.l0 for s in found}) == 1

    def test_register_tiles_are_those_that_were_measured(self, gemm: GemmKernel) -> None:
        points = utilization.register_tiles(gemm, 1e12)
        assert len(points) == len(gemm.manifest.profile["kernels"])
        assert all(0 < point.utilization <= 1 and 0 < point.share < 1 for point in points)

    def test_summary_and_plot(self, tmp_path: Path) -> None:
        points = [utilization.Point("L0", "wide", 0.3, 0.9), utilization.Point("L0", "wide", 0.4, 0.7)]
        points += [utilization.Point("L1", "8x8x8", 1.2, 0.5)]
        first, second = utilization.summary(points).splitlines()
        assert first.startswith("L0: 25% to 50% of the vector registers") and "best 0.90, mean 0.80" in first
        assert second.startswith("L1: 100% to 150%") and "best 0.50" in second
        pytest.importorskip("matplotlib")
        utilization.draw(points, {"L0": (0.25, 1.0), "L1": (0.0, 0.75)}, tmp_path / "u.png")
        assert (tmp_path / "u.png").read_bytes().startswith(b"\x89PNG")


class TestMeasuring:
    @pytest.mark.parametrize("offset", [0, 4, 16, 60])
    def test_operands_begin_where_a_run_says(self, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
        monkeypatch.setenv("VORTEX_EVAL_OFFSET", str(offset))
        made = operands.make_operands(Case("s", "s/0", 5, 6, 7), seed=1)
        batch = OperatorCase("s", "s/1", "batch_gemm", {"batch": 2, "m": 5, "n": 6, "k": 7})
        several = operator_operands.make_operator_operands(batch, seed=1)
        for array in (made.a, made.b, made.out, *several.arrays.values(), several.out):
            assert array.ctypes.data % 64 == offset

    def test_a_wrong_result_is_refused(self) -> None:
        made = operands.make_operands(Case("s", "s/0", 5, 6, 7, trans_b=True), seed=1)
        right = made.a_mk @ made.b_kn
        assert operands.check(made, right) < 1
        right[2, 3] += 0.01
        with pytest.raises(operands.WrongResultError):
            operands.check(made, right)
        with pytest.raises(operands.WrongResultError):
            operands.check(made, np.full_like(right, np.nan))

    def test_short_calls_are_timed_in_batches(self) -> None:
        timing = worker.measure_warm(lambda: None, 0.01)
        assert timing.calls > 1000
        assert 0 < timing.best <= timing.median

    def test_a_check_leaves_no_thread_at_work(self) -> None:
        program = (
            "import time\n"
            "from eval.operands import check, make_operands\n"
            "from eval.suites import Case\n"
            "time.sleep(0.5)\n"  # threads that a BLAS begins with poll too
            "made = make_operands(Case('s', 's/0', 200, 200, 200), 0)\n"
            "made.out[:] = sum(made.a_mk[:, [k]] * made.b_kn[k] for k in range(200))\n"
            "check(made, made.out)\n"
            "before = time.process_time()\n"
            "time.sleep(0.05)\n"
            "print(time.process_time() - before)\n"
        )

        run = [sys.executable, "-c", program]
        environment = worker_environment("vortex", 2)
        computed = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
        assert float(computed) < 0.01, "of 50 ms"

    def test_order_rotates(self) -> None:
        assert rotated(["a", "b", "c"], 4) == ["b", "c", "a"]

    def test_a_round_that_the_host_stole_is_taken_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        effort, worker = Effort(1, 0.01, ("warm",)), FakeWorker([0.5, 0.3, 0.05, 0.0])
        assert undisturbed(worker, "warm", effort).stolen == 0.05
        worker = FakeWorker([0.5] * 100)
        assert undisturbed(worker, "warm", effort).stolen == 0.5
        assert len(worker.shares) == 100 - STOLEN_ATTEMPTS, "a host that never stops must not hold up the run"

    def test_what_the_host_steals_is_a_share_of_the_threads_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, stolen = iter([10.0, 12.0]), iter([1.0, 2.0])
        monkeypatch.setattr("time.monotonic", lambda: next(now))
        monkeypatch.setattr("psutil.cpu_times", lambda: SimpleNamespace(steal=next(stolen)))
        assert machine.StealMeter(2).share() == 0.25

    def test_registry_is_consistent(self) -> None:
        assert set(PLAIN) | set(PACKED) <= set(SYSTEMS)
        assert all(SYSTEMS[name].packed for name in PACKED)
        assert all(peer in SYSTEMS for peers in RIVALS.values() for peer in peers)

    def test_bench_refuses_wrong_usage(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        wrong = ["--suite", "nonsense"], ["--systems", "nonsense"], ["--threads", "9999"], ["--offset", "6"]
        for arguments in (*wrong, ["--offset", "64"]):
            with pytest.raises(SystemExit) as refused:
                bench.main([*arguments, "--out", str(tmp_path / "x.jsonl")])
            assert refused.value.code == 2
        assert "known:" in capsys.readouterr().err

    def test_bench_refuses_to_overwrite(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text("")
        with pytest.raises(SystemExit):
            bench.main(["--out", str(tmp_path / "x.jsonl")])

    def test_a_busy_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(machine, "load", lambda seconds=0.5: 0.9)
        assert bench.main(["--suite", "dietcode_dense", "--out", str(tmp_path / "x.jsonl")]) == 3
        with pytest.raises(machine.BusyError):
            machine.check_peak(100e9, 90e9)


@needs_cc
class TestCold:
    """The cold mode: operands come from memory, whatever the caches protect."""

    @pytest.mark.parametrize("place", [0, 1, -1], ids=["innermost", "second", "outermost"])
    def test_the_flush_empties_every_cache(self, place: int) -> None:
        """Reading one word of each line: what a cache still held would be read as quickly as before. In turns: what
        else runs on the host takes caches away for longer than a few readings."""
        _, capacity, _ = machine.cache_sizes()[place]
        lines = machine.aligned(min(capacity // 2, 1 << 23) // 64 * 16).reshape(-1, 16)
        lines.fill(1.0)
        words, total = lines[:, 0], np.empty((), np.float32)

        def seconds(prepare: Callable[[], object]) -> int:
            words.sum(out=total)
            prepare()
            start = time.perf_counter_ns()
            words.sum(out=total)
            return time.perf_counter_ns() - start

        times = [(seconds(machine.flush_caches), seconds(lambda: None)) for _ in range(15)]
        flushed, warm = (min(taken) for taken in zip(*times, strict=True))
        assert flushed > 1.3 * warm

    def test_every_call_is_flushed_before_and_a_tiny_one_comes_between(self, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[str] = []
        monkeypatch.setattr(worker, "flush_caches", lambda: done.append("flush"))
        timing = worker.measure_cold(lambda: done.append("call"), lambda: done.append("tiny"), seconds=0.0)
        assert done == ["flush", "tiny", "call"] * (len(done) // 3)
        assert timing.calls == len(done) // 3 and 0 < timing.best <= timing.median

    def test_a_long_call_is_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "flush_caches", lambda: None)
        monkeypatch.setattr(worker, "time_batch", lambda call, count: 2.0)
        assert worker.measure_cold(lambda: None, lambda: None, seconds=1.0).calls == 1

    def test_a_system_is_slower_cold_than_warm(self) -> None:
        """16 MB of operands that a core's caches or the shared one hold when warm, for hardly any arithmetic."""
        case = Case("s", "s/0", 1, 1024, 4096)
        with WorkerProcess("openblas", 1) as process:
            try:
                process.start()
            except WorkerError as error:
                pytest.skip(str(error))
            effort = Effort(2, 0.05, ("warm", "cold"))
            outcome = measure(case, {"openblas": process}, effort, Run(1, 0, LIMITS, {}), True)["openblas"]
        assert outcome.error is None
        warm, cold = (stats.summarize(outcome.rounds[mode], mode).seconds for mode in ("warm", "cold"))
        assert cold > warm


class Answering:
    """A worker that takes these seconds, round by round."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.left = list(seconds)

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        if request["do"] != "measure":
            return {"error_share": 0.0, "detail": ""}
        best = self.left.pop(0)
        return {"calls": 1, "best": best, "median": best}


def test_rounds_far_apart_give_all_systems_further_ones() -> None:
    """Whoever's they are; the figure is the median of all."""
    case, effort = Case("s", "s/0", 1, 1, 1), Effort(3, 0.01, ("warm",))

    def rounds(**seconds: Sequence[float]) -> dict[str, int]:
        workers: Any = {name: Answering(of) for name, of in seconds.items()}
        outcomes = measure(case, workers, effort, Run(1, 0, LIMITS, {}), True)
        assert not any(outcome.error for outcome in outcomes.values())
        return {name: len(outcome.rounds["warm"]) for name, outcome in outcomes.items()}

    assert rounds(ours=[1.0, 1.1, 1.2], theirs=[2.0] * 3) == {"ours": 3, "theirs": 3}
    assert rounds(ours=[1.0] * 6, theirs=[2.0, 3.0, 2.0, 2.0, 2.0, 2.0]) == {"ours": 6, "theirs": 6}
    assert rounds(ours=[1.0, 2.0, 1.0, 1.0, 1.0, 1.0], theirs=[2.0] * 6) == {"ours": 6, "theirs": 6}


@needs_cc
class TestWorker:
    def test_one_system_in_its_own_process(self) -> None:
        with WorkerProcess("openblas", 1) as process:
            try:
                process.start()
            except WorkerError as error:
                pytest.skip(str(error))
            run = Run(1, 0, LIMITS, {})
            case = Case("s", "s/0", 16, 24, 32, trans_a=True)
            outcome = measure(case, {"openblas": process}, Effort(2, 0.005, ("warm",)), run, True)["openblas"]
            assert outcome.error is None
            assert 2 <= len(outcome.rounds["warm"]) <= 4
            with pytest.raises(WorkerError, match="no case is prepared"):
                process.ask({"do": "measure", "mode": "warm", "seconds": 0.01})

    @pytest.mark.parametrize(
        ("system", "case"),
        [
            ("tvm_dlight", Case("s", "s/0", 1, 64, 128, trans_b=True)),
            ("tvm_metaschedule", Case("s", "s/1", 32, 32, 32)),
        ],
    )
    def test_tvm_schedules_a_static_shape(self, monkeypatch: pytest.MonkeyPatch, system: str, case: Case) -> None:
        if system == "tvm_metaschedule":
            pytest.importorskip("cloudpickle")
        monkeypatch.setenv("EVAL_TVM_TRIALS", "2")
        with WorkerProcess(system, 1) as process:
            process.start()
            effort = Effort(1, 0.005, ("warm",), timeout=120.0)
            outcome = measure(case, {system: process}, effort, Run(1, 0, LIMITS, {}), True)[system]
        assert outcome.error is None and outcome.error_share is not None and outcome.error_share < 1
        assert outcome.rounds["warm"][0].best > 0 and outcome.detail

    def test_an_unknown_system_is_reported(self) -> None:
        with WorkerProcess("nonsense", 1) as process, pytest.raises(WorkerError, match="AbsentError"):
            process.start()
