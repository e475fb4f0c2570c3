"""The paper's results: order, resuming, budgets, pages. Measuring is done by stand-ins; nothing is timed."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("psutil")

from matplotlib.figure import Figure

from eval import machine, paper, plans, plots
from eval.compare import BEST, MKL_EITHER, tables
from eval.operands import WrongResultError
from eval.oracle import Trial
from eval.process import ROOT
from eval.races import LAYOUTS
from eval.reproduce import (
    accuracy,
    analyzers,
    backends,
    headline,
    methods,
    overheads,
    pages,
    regions,
    registry,
    run,
    sampled,
    selection,
    static,
    summary,
    vendors,
)
from eval.reproduce.result import Options, Page, Result
from eval.suites import Case
from eval.systems import AbsentError
from vortex.analyzer import losses, shortlisted
from vortex.candidates import WHOLE, Stage, Strategy, Tile
from vortex.plans import Grid, LaunchPlan, Shape

OPTIONS = Options(threads=1)


@dataclass(frozen=True)
class Fake:
    id: str


def fake(count: int = 4, disturbed: Sequence[str] = (), name: str = "fake", broken: str = "") -> Result:
    def open_fake(options: Options, stack: ExitStack):
        def one(case: Fake):
            if case.id in disturbed:
                raise machine.BusyError("somebody else")
            if case.id == broken:
                raise WrongResultError(f"{case.id} is wrong")
            return [{"seconds": float(case.id), "spread": 0.01, "versions": {"lib": "1"}}]

        return one

    def page(lines):
        told = f"sum {sum(row['seconds'] for line in lines for row in line['rows']):g}"
        return Page([told], ["### slow ones"], draw=lambda figure: figure.subplots().plot([1, 2]))

    cases = [Fake(str(at)) for at in range(count)]
    return Result(name, "a title", "nothing", lambda options: cases, open_fake, page, seconds=1.0, opening=0.0)


def quiet(text: str) -> None:
    pass


class TestSpread:
    @pytest.mark.parametrize("count", [1, 2, 7, 64, 1277])
    def test_it_is_a_permutation_and_every_beginning_is_even(self, count: int):
        order = run.spread(range(count))
        assert sorted(order) == list(range(count))
        for taken in (2, 4, 8, 32):
            if taken <= count:
                ends = sorted(order[:taken])
                gaps = [b - a for a, b in zip(ends, [*ends[1:], count], strict=True)]
                assert max(gaps) <= 2 * -(-count // taken)


class TestMeasure:
    def test_what_was_measured_is_not_measured_again(self, tmp_path: Path):
        assert run.measure(fake(3), OPTIONS, tmp_path, float("inf"), quiet).done == 3
        grown = run.measure(fake(5), OPTIONS, tmp_path, float("inf"), quiet)
        ids = [json.loads(line)["id"] for line in (tmp_path / "fake.jsonl").read_text().splitlines()]
        assert (grown.done, sorted(ids)) == (5, ["0", "1", "2", "3", "4"])
        assert grown.left_seconds == 0

    def test_another_number_of_threads_is_another_run(self, tmp_path: Path):
        run.measure(fake(2), OPTIONS, tmp_path, float("inf"), quiet)
        assert run.state(fake(2), replace(OPTIONS, threads=2), tmp_path).done == 0
        run.measure(fake(2), replace(OPTIONS, threads=2), tmp_path, float("inf"), quiet)
        assert [(count, at.done) for count, at in run.states_of(fake(2), OPTIONS, tmp_path)] == [(1, 2), (2, 2)]

    def test_it_stops_when_the_time_is_over_and_goes_on_after_a_broken_line(self, tmp_path: Path):
        assert run.measure(fake(4), OPTIONS, tmp_path, time.monotonic() - 1, quiet).done == 1
        run.measure(fake(2), OPTIONS, tmp_path, float("inf"), quiet)
        with (tmp_path / "fake.jsonl").open("a") as file:
            file.write('{"id": "2", "thre')
        assert run.measure(fake(4), OPTIONS, tmp_path, float("inf"), quiet).done == 4

    def test_cases_that_can_be_cut_short_share_what_is_left(self, tmp_path: Path):
        given: list[float] = []

        def within(case: Fake, seconds: float) -> Fake:
            given.append(seconds)
            return case

        limited = replace(fake(4), within=within)
        run.measure(limited, OPTIONS, tmp_path, time.monotonic() + 600, quiet)
        assert given == pytest.approx([150, 200, 300, 600], rel=0.05)  # those before took no time

    def test_a_disturbed_case_is_left_for_another_time(self, tmp_path: Path):
        assert run.measure(fake(4, disturbed="2"), OPTIONS, tmp_path, float("inf"), quiet).done == 3
        assert run.measure(fake(4), OPTIONS, tmp_path, float("inf"), quiet).done == 4

    def test_a_machine_that_never_rests_ends_the_run(self, tmp_path: Path):
        with pytest.raises(machine.BusyError, match="3 cases in a row"):
            run.measure(fake(8, disturbed="01234567"), OPTIONS, tmp_path, float("inf"), quiet)

    def test_the_time_is_shared_out_by_need(self, tmp_path: Path):
        run.measure(fake(2), OPTIONS, tmp_path, float("inf"), quiet)
        results = [fake(9, name="large"), fake(4), fake(2, name="small")]
        given = paper.shares(results, OPTIONS, tmp_path, 7.0)
        assert list(given) == ["fake", "small", "large"]
        assert given["fake"] < 0.1  # its cases took no time
        assert given["small"] == 2.0
        assert given["large"] == pytest.approx(5.0, rel=0.05)
        assert paper.shares(results[:1], OPTIONS, tmp_path, 100.0) == {"large": 9.0}

    def test_the_last_result_may_take_longer_than_was_guessed(self, tmp_path: Path):
        hasty = [replace(fake(4, name=name), seconds=0.0) for name in ("first", "last")]
        assert paper.run_all(hasty, OPTIONS, tmp_path, 600.0) == []
        assert [run.state(result, OPTIONS, tmp_path).done for result in hasty] == [1, 4]


class TestPages:
    def test_a_page_tells_how_it_was_made(self, tmp_path: Path):
        run.measure(fake(3), OPTIONS, tmp_path, time.monotonic() + 60, quiet)
        pages.write(fake(5), run.states_of(fake(5), OPTIONS, tmp_path), tmp_path)
        told = (tmp_path / "fake.md").read_text()
        for part in ("sum 3", "3 of 5 cases", "--threads 1", machine.device(), "lib 1", "median 1.0%", "fake.png"):
            assert part in told
        assert told.index("slow ones") < told.index("sum 3")
        assert (tmp_path / "fake.png").stat().st_size > 1000

    def test_what_was_not_measured_says_how_to(self, tmp_path: Path):
        pages.write(fake(), [], tmp_path)
        assert "python -m eval.paper fake" in (tmp_path / "fake.md").read_text()

    def test_every_result_has_what_the_papers_print(self):
        published = json.loads(pages.PUBLISHED.read_text())
        assert set(registry.RESULTS) <= set(published)
        assert "94.7 %" in pages.printed("fig15")

    @pytest.mark.parametrize("name", registry.RESULTS)
    def test_every_result_has_cases_of_different_ids(self, name: str):
        found = registry.result(name)
        for options in (OPTIONS, replace(OPTIONS, smoke=True)):
            ids = [case.id for case in found.cases(options)]
            assert 0 < len(ids) == len(set(ids))

    def test_an_unknown_result_names_the_known_ones(self):
        with pytest.raises(KeyError, match="table5"):
            registry.result("table99")


class TestSummary:
    @pytest.fixture
    def docs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(summary, "RESULTS", ("one", "two"))
        monkeypatch.setattr(summary, "result", lambda name: fake(3, name=name))
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "performance.md").write_text(f"before\n{summary.BEGIN}\nold\n{summary.END}\nafter\n")
        return tmp_path / "docs"

    def test_losses_come_first_and_what_is_missing_last(self, docs: Path, tmp_path: Path):
        run.measure(fake(3, name="two"), OPTIONS, tmp_path, float("inf"), quiet)
        summary.write(docs, tmp_path, OPTIONS)
        told = (docs / "performance.md").read_text()
        assert "old" not in told
        assert told.startswith("before\n")
        assert told.endswith("after\n")
        assert told.index("##### slow ones") < told.index("sum 3") < told.index("eval.paper one")
        assert (docs / "performance" / "paper-two.png").is_file()

    def test_what_was_measured_elsewhere_stays(self, docs: Path, tmp_path: Path):
        for name in ("two", "one"):
            (tmp_path / name).mkdir()
            run.measure(fake(len(name), name=name), OPTIONS, tmp_path / name, float("inf"), quiet)
            summary.write(docs, tmp_path / name, OPTIONS)
        again = (docs / "performance.md").read_text()
        summary.write(docs, tmp_path / "two", OPTIONS)
        told = (docs / "performance.md").read_text()
        assert told == again and "Not measured" not in told
        assert told.count("#### one") == told.count("#### two") == 1  # what each loses
        assert told.index("### one: a title") < told.index("### two: a title") and told.count("sum 3") == 2

    def test_a_page_without_markers_is_refused(self, docs: Path, tmp_path: Path):
        (docs / "performance.md").write_text("no markers")
        with pytest.raises(ValueError, match="paper:begin"):
            summary.write(docs, tmp_path, OPTIONS)

    def test_the_real_page_has_the_markers(self):
        text = (Path(__file__).resolve().parent.parent / "docs" / "performance.md").read_text()
        assert text.count(summary.BEGIN) == text.count(summary.END) == 1


class TestHeadline:
    def lines(self) -> list[dict]:
        def row(system: str, seconds: float, threads: int, error: str | None = None) -> dict:
            shape = {
                "suite": "s",
                "m": 256,
                "n": 256,
                "k": 256,
                "flops": 33_554_432,
                "mode": "warm",
                "threads": threads,
            }
            timed = {"spread": 0.04, "roofline_share": 1e-3 / seconds, "peak_flops_per_s": 1e11, "gflops": 1.0}
            return {"id": "s/0", "system": system, "seconds": seconds, "error": error, **shape, **timed}

        ours = {"vortex": 1e-3, "mkl": 2e-3, "onednn": 1.5e-3, "vortex_packed": 2e-3, "onnxruntime": 1e-3}
        return [
            measured(threads, "s/0", [row(system, seconds / threads, threads) for system, seconds in ours.items()])
            for threads in (1, 2)
        ]

    def test_it_compares_like_with_like(self):
        table = headline.headline(self.lines())
        assert (
            "| Vortex over | unpacked, 1 thread | unpacked, 2 threads | packed, 1 thread | packed, 2 threads |" in table
        )
        assert "| oneDNN, plain weights | 1.50 (worst 1.50) | 1.50 (worst 1.50) | 0.75 (worst 0.75) | 0.75" in table
        assert "| ONNX Runtime, packed weights | - | - | 0.50 (worst 0.50) | 0.50 (worst 0.50) |" in table
        assert "| not slower than MKL, within 2 % | 100% | 100% | 100% | 100% |" in table
        assert "| share of the roofline over 10 MFLOP | 1.00 | 2.00 | 0.50 | 1.00 |" in table
        assert "at commit c, 2026-01-01; 1 products on 1 thread, FMA peak 100 to 100 GFLOP/s" in table

    def test_mkl_counts_with_the_quicker_of_its_two_ways(self):
        lines = self.lines()
        for line in lines:
            mkl, product = line["rows"][1], {"id": "s/1"}
            others = [row | product for row in line["rows"]]  # without cblas_sgemm
            line["rows"] += [mkl | {"system": "mkl_cblas", "seconds": mkl["seconds"] / 4}, *others]
        table = headline.headline(lines)
        assert "| MKL (the quicker of `torch.mm` and `cblas_sgemm`) | 1.00 (worst 0.50) | 1.00 (worst 0.50) |" in table
        assert "| not slower than MKL, within 2 % | 50% | 50% |" in table
        assert "both ways of MKL were timed in 1 of them" in table and "`torch.mm`) |" not in table
        axes = Figure().subplots()
        plots.speedup_over_flops(axes, next(iter(tables(lines[0]["rows"]))), "vortex")
        drawn = [text.get_text() for text in axes.get_legend().get_texts()]
        assert drawn == [f"{MKL_EITHER}: 1.00", "onednn: 1.50", f"{BEST}: 0.87"]

    @pytest.mark.parametrize("failure", [None, "no libmkl_rt.so"])
    def test_lines_without_the_other_way_of_mkl_say_which_it_was(self, failure: str | None):
        lines = self.lines()
        if failure:
            for line in lines:
                line["rows"].append(line["rows"][1] | {"system": "mkl_cblas", "seconds": None, "error": failure})
        table = headline.headline(lines)
        assert "| MKL (`torch.mm`) | 2.00 (worst 2.00) |" in table and "cblas_sgemm" not in table

    @pytest.mark.parametrize(
        ("version", "told"),
        [("openblas 0.3 Haswell", "OpenBLAS ran its Haswell kernels."), ("openblas 0.3 (core type unknown)", None)],
    )
    def test_the_kernels_that_openblas_ran_are_named(self, version: str, told: str | None):
        lines = self.lines()
        for line in lines:
            line["rows"].append(line["rows"][1] | {"system": "openblas", "versions": {"openblas": version}})
        assert headline.headline(lines).count(told.strip(".") if told else "OpenBLAS ran") == (2 if told else 0)
        blocks = vendors.table5(lines).blocks
        assert blocks.count(told) == (2 if told else 0)

    def test_it_stands_between_its_markers(self, tmp_path: Path):
        page = tmp_path / "page.md"
        page.write_text(f"before\n{headline.BEGIN}\nold\n{headline.END}\nafter\n")
        headline.write([page], self.lines())
        told = page.read_text()
        assert told.startswith("before\n") and told.endswith("after\n") and "old" not in told and "1.50" in told
        page.write_text("no markers")
        with pytest.raises(ValueError, match="headline:begin"):
            headline.write([page], self.lines())

    @pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
    def test_the_real_pages_have_the_markers(self, name: str):
        text = (ROOT / name).read_text()
        assert headline.BEGIN in text and headline.END in text


class TestCommand:
    def test_what_it_refuses(self, capsys: pytest.CaptureFixture):
        for arguments, told in (
            (["table99"], "invalid choice"),
            (["table5", "--threads", "9999"], "expected 1 to"),
            (["table5", "--minutes", "-1"], "positive"),
            (["table5", "--library", "/nonexistent"], "no such file"),
        ):
            with pytest.raises(SystemExit) as refusal:
                paper.main(arguments)
            assert refusal.value.code == 2
            assert told in capsys.readouterr().err

    def test_it_measures_what_is_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ):
        monkeypatch.setattr(paper, "result", lambda name: fake(3, name=name))
        assert paper.main(["table5", "--smoke", "--threads", "1", "--out", str(tmp_path)]) == 0
        assert "table5.md: 3 of 3 cases at 1 thread(s)" in capsys.readouterr().out
        assert json.loads((tmp_path / "table5.jsonl").read_text().splitlines()[0])["smoke"] is True
        monkeypatch.setattr(paper, "result", lambda name: fake(5, name=name, broken="3"))
        assert paper.main(["table5", "--smoke", "--threads", "1", "--out", str(tmp_path)]) == 4
        assert "not finished: table5: WrongResultError: 3 is wrong" in capsys.readouterr().err
        assert paper.main(["table5", "--draw", "--fresh", "--threads", "1", "--out", str(tmp_path)]) == 0
        assert "not measured" in capsys.readouterr().out


def measured(threads: int, name: str, rows: list[dict]) -> dict:
    about = {"device": "d", "commit": "c", "time": "2026-01-01T00:00:00Z", "smoke": False, "took_s": 1.0}
    return {"id": name, "threads": threads, "rows": rows, **about}


class TestFigures:
    def test_selection_is_told_as_a_share_of_the_call(self):
        row = {"cube": 64, "seconds": 2e-6, "selection_s": 1e-7, "spread": 0.02}
        page = overheads.fig14([measured(1, "64", [row])])
        assert "| 64 | 1 | 2.0 | 0.100 | 5.000% | 2.0% |" in page.blocks[0]

    def test_offline_costs_stand_beside_the_papers(self):
        def rows(operator: str, seconds: float):
            about = {"id": operator, "operator": operator, "dtype": "float32", "hw": "native", "kind": "offline"}
            compiled = {"name": "compile from nothing", "value": seconds, "unit": "s"}
            return [about | compiled, about | {"name": "L0 FilterByISA", "value": 1234, "unit": "candidates"}]

        page = overheads.offline([measured(1, name, rows(name, at)) for name, at in (("reduce", 4.5), ("gemm", 20.0))])
        assert "| gemm | float32 | native | 20 |\n| reduce | float32 | native | 4.5 |" in page.blocks[0]
        assert "| L0 FilterByISA | 1,234 | 1,234 |" in page.blocks[1]
        assert "4,500 times" in page.blocks[2]

    def test_a_fixed_way_that_is_faster_is_a_loss(self):
        def rows(packed: float):
            extents = {"m": 1, "n": 2, "k": 3}
            return [extents | {"way": "adaptive", "seconds": 1.0}, extents | {"way": "packs B", "seconds": packed}]

        page = backends.fig16([measured(1, "a", rows(2.0)), measured(1, "b", rows(0.5))])
        assert "| packs B | 2 | 1 | 1.00 | 2.00 (1x2x3) | 0.50 (1x2x3) |" in page.blocks[1]
        assert "| 1x2x3 | packs B | 0.50 |" in page.losses[1]

    def test_shares_of_the_oracle(self):
        def trial(label: str, seconds: float, tile: str):
            return asdict(Trial(label, label, tile, predicted=seconds, even=seconds, odd=seconds))

        def row(best: float, chosen: str):
            case = asdict(Case("s", "s/0", 1, 2, 3))
            trials = [trial("x", best, "tile x"), trial("y", 1.0, "tile y")]
            return case | {"chosen": chosen, "misled": "-", "tried": 2, "trials": trials}

        lines = [measured(1, str(at), [row(0.5, "x" if at else "y")]) for at in range(4)]
        page = selection.fig15(lines)
        told = page.blocks[2]
        assert "| Vortex | 0.947 | 0.875 | 0.841 [" in told
        assert "| Static2 | 0.495 | 1.000 | 1.000 [1.000, 1.000] | 1.000 | 0 |" in told

    def test_the_paper_prints_what_fig15_compares_with(self):
        told = pages.printed("fig15")
        assert all(f"{100 * share:.1f} %" in told for share in selection.PAPER.values())

    def test_products_are_compared_with_those_that_saw_the_same(self):
        def row(system: str, seconds: float):
            case = asdict(Case("s", "s/0", 1, 2, 3)) | {"flops": 12, "threads": 1, "mode": "warm", "error": None}
            return case | {"system": system, "seconds": seconds, "roofline_share": 0.5, "spread": 0.01, "gflops": 3.0}

        rows = [row("vortex", 1.0), row("mkl", 2.0), row("vortex_packed", 1.0), row("onnxruntime", 0.5)]
        page = vendors.table5([measured(1, "s/0", rows)])
        assert "| best of all | 1 | 100.0% | 100.0% | 2.00 | 2.00 |" in page.blocks[1]
        packed = page.blocks[page.blocks.index("### Products, packed B, 1 thread, warm caches") + 1]
        assert "| onnxruntime | 1 | 0.0% | 0.0% | 0.50 | 0.50 |" in packed
        every = page.blocks[page.blocks.index("### Every system, 1 thread, warm caches") + 1]
        assert "| vortex | 1 | 3.0 | 0.500 | - (0) | 1.0% |" in every
        tenths = page.blocks[page.blocks.index("By tenths of the cases, geometric means:") + 1]
        assert "| 12 FLOP | 1 | 2.00 | 2.00 | 2.00 |" in tenths
        for drawn, titles in ((page, 4), (vendors.fig12([measured(1, "s/0", rows)]), 2)):
            figure = Figure()
            drawn.draw(figure)
            assert [bool(axes.collections) for axes in figure.axes] == [True] * titles


class TestBackends:
    @pytest.mark.parametrize(("flags", "packs"), [({}, False), ({"pack_b": True}, True), ({"pack_a": True}, False)])
    def test_a_turned_product_packs_b_where_it_says_a(self, flags: dict, packs: bool):
        plan = LaunchPlan(0, Strategy(Tile(8, 16, 1), Tile(8, 16, 1), Stage(**flags)), Grid(1, 1), 1.0)
        assert plans.packs_weight(plan) is packs
        turned = {"pack_a": flags.get("pack_b", False), "pack_b": flags.get("pack_a", False)}
        plan = LaunchPlan(0, Strategy(Tile(8, 16, 1), Tile(8, 16, 1), Stage(swap=True, **turned)), Grid(1, 1), 1.0)
        assert plans.packs_weight(plan) is packs

    def test_a_fixed_way_runs_its_least_predicted_plan(self, gemm):
        ways = backends.fixed_ways(gemm, Case("s", "s/0", 200, 300, 400), 2)
        assert ways["one thread"].workers == 1 < ways["all threads"].workers
        assert ways["adaptive"].seconds <= min(plan.seconds for plan in ways.values()) * (1 + 1e-5)
        assert not plans.packs_weight(ways["reads B as it lies"])
        # A library may have no strategy that packs a plain B, but one for a transposed B.
        packing = any(plans.packs_weight(plan) for plan in gemm.plans(200, 300, 400, threads=2) if not plan.regions)
        turned = backends.fixed_ways(gemm, Case("s", "s/1", 200, 300, 400, False, True), 2)
        assert ("packs B" in ways) == packing
        for found in (ways, turned) if packing else (turned,):
            assert plans.packs_weight(found["packs B"])


class TestAnalyzers:
    @staticmethod
    def corrected(gemm, ratios: dict[Strategy, float]) -> analyzers.Corrected:
        default = gemm.manifest.selector()
        names = ("strategies", "rates", "table", "lanes", "panel", "words")
        return analyzers.Corrected(**{name: getattr(default, name) for name in names}, ratios=ratios)

    def test_costs_follow_what_a_tile_of_l1_took(self, gemm):
        default = replace(gemm.manifest.selector(), shortlists=None)  # losses are over the best of all strategies
        chosen = default.select(Shape(200, 300, 400), 1)
        ratios = {strategy: 5.0 if strategy == chosen.strategy else 1.0 for strategy in default.strategies}
        corrected = self.corrected(gemm, ratios)
        assert corrected.select(Shape(200, 300, 400), 1).strategy != chosen.strategy
        plain, scaled = (losses(at, [Shape(200, 300, 400)], 1)[0][chosen.index] for at in (default, corrected))
        assert plain < scaled <= 5.0
        alone = replace(corrected, strategies=(chosen.strategy,), shortlists=None)
        assert alone.select(Shape(200, 300, 400), 1).seconds == pytest.approx(5 * chosen.seconds, rel=1e-5)

    def test_what_a_tile_took_decides_which_strategies_are_kept(self, gemm):
        """The analyzer asks for all, and for those that take each kind of B."""

        def kept(ratios: dict[Strategy, float]) -> set[Strategy]:
            return set(shortlisted(self.corrected(gemm, ratios), analyzers.KINDS, {}, 2, 4)[0])

        alike = dict.fromkeys(gemm.strategies, 1.0)
        first = kept(alike)
        dear = next(strategy for strategy in gemm.strategies if strategy in first and strategy.stage.tiled)
        assert dear not in kept(alike | {dear: 50.0})

    @pytest.mark.parametrize(
        ("stage", "tile", "shape"),
        [
            (Stage(), Tile(64, WHOLE, 32), (64, 2048, 32)),
            (Stage(swap=True), Tile(WHOLE, 512, 32), (512, 8, 32)),
            (Stage(dot=True), Tile(WHOLE, WHOLE, WHOLE), (2048, 16, 2048)),
        ],
    )
    def test_a_tile_of_l1_is_a_product_that_its_strategy_serves(self, stage: Stage, tile: Tile, shape: tuple):
        assert analyzers.l1_shape(Strategy(Tile(8, 16, 1), tile, stage)) == shape

    def test_tiles_are_run_by_the_strategies_they_are_of(self, gemm):
        ratios = analyzers.measured_ratios(gemm, replace(OPTIONS, smoke=True))
        assert len(ratios) == len(gemm.strategies)
        assert all(0.05 < ratio < 50 for ratio in ratios.values())

    def test_performance_is_relative_to_the_default(self):
        def rows(less: float, more: float):
            about = {"m": 1, "n": 2, "k": 3, "offline_s": 9.0, "measured": 0, "spread": 0.0}
            seconds = {"none": less, "E: L0": 1.0, "E: L0, L1": more}
            return [about | {"config": name, "plan": str(at), "seconds": at} for name, at in seconds.items()]

        page = analyzers.table7([measured(1, "a", rows(2.0, 0.5)), measured(1, "b", rows(1.0, 1.0))])
        assert "| none | 9.0 s | 0 | 1 of 2 | 0.707 | 0.50 | 1.00 |" in page.blocks[1]
        assert "| 1x2x3 | 2.00 | 1.0 | 0.5 |" in page.losses[1]


class TestSampled:
    def test_lengths_are_told_apart(self):
        cases = sampled.lengths(OPTIONS)
        kinds = [sampled.kind_of(case.m) for case in cases]
        assert [kinds.count(kind) for kind in ("sampled", "between samples", "outside")] == [7, 6, 10]
        assert {(case.n, case.k) for case in cases} == {(2304, 768)}

    def test_figure_3_compares_with_the_best_vendor(self):
        def row(system: str, seconds: float):
            return {"system": system, "seconds": seconds, "m": 16 * 5, "flops": 1e9}

        systems = {"vortex": 2.0, "dietcode": 4.0, "mkl": 1.0, "onednn": 3.0}
        page = sampled.fig3([measured(1, "a", [row(*at) for at in systems.items()])])
        assert "| sampled | 1 | 0.50 | 0.50 | 0.25 | 0.25 | 2.00 |" in page.blocks[1]
        assert "| 80x2304x768 | mkl | 0.50 |" in page.losses[1]

    def test_table_6_tells_where_the_rival_is_faster(self):
        tuning = {"samples": 1, "space": 1, "trials": 1, "seconds": 1.0, "vortex_offline_seconds": 1.0, "kernels": 1}
        tuning |= {"occupancy_slope": 1.0}
        row = {"m": 130, "range": "[128, 256)", "speedup": 0.9, "useful": 1.0, "valid": True, "kernel": "the kernel"}
        row |= {
            "dietcode": 1.0,
            "dietcode_twice": 1.0,
            "partitioned": 1.0,
            "vortex": 1.1,
            "best_plan": 1.0,
            "best_grid": 1.0,
            "spread": 0.0,
            "tuning": tuning,
        }
        page = sampled.table6([measured(1, "a", [row])])
        assert "[128, 256) (sampled) | 1 | 0.90x" in page.blocks[1]
        assert "| 130x768x2304 | 0.90 | [128, 256) | the kernel |" in page.losses[1]


class TestMethods:
    def test_where_a_rival_is_quicker_is_a_loss(self):
        def row(m: int, rival: float):
            kernels = {"rival": "its kernel", "other": ""}
            about = {"m": m, "n": 2, "k": 3, "kernels": kernels}
            return about | {"seconds": {"vortex": 1.0, "rival": rival, "other": 2.0}}

        lines = [measured(1, str(at), [row(at, rival)]) for at, rival in enumerate((0.5, 1.5, 0.25))]
        page = methods.page(lambda rows: [f"{len(rows)} rows"], ("rival", "other"))(lines)
        assert page.blocks == ["### 1 thread", "3 rows"]
        assert "quicker 2 of 6 times" in page.losses[0]
        told = page.losses[1]
        assert told.index("| 2x2x3 | rival | 0.25 | its kernel |") < told.index("| 0x2x3 | rival | 0.50 |")

    def test_without_scikit_learn_it_says_so(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(methods, "find_spec", lambda name: None)
        with pytest.raises(AbsentError, match="scikit-learn"):
            methods.opened(OPTIONS)


class TestStatic:
    def test_a_shape_that_tvm_cannot_do_is_told(self):
        def row(system: str, seconds: float | None):
            about = {"m": 1, "n": 2, "k": 3, "id": "s/0", "detail": "64 trials in 9 s", "system": system}
            return about | {"seconds": seconds, "error": None if seconds else "no rule", "error_kind": "AbsentError"}

        page = static.static(
            [measured(1, "s/0", [row("vortex", 2.0), row("tvm_metaschedule", 1.0), row("tvm_dlight", None)])]
        )
        assert "| s/0 | 1x2x3 | 2000000.0 | 0.50 | - | 64 trials in 9 s |" in page.blocks[1]
        assert "no rule" in page.blocks[-1]
        assert "| 1x2x3 | MetaSchedule | 0.50 |" in page.losses[1]


class TestAccuracy:
    def test_plans_are_compared_at_the_clock_of_their_run(self):
        """A prediction of 1 s by a library that was profiled at twice the peak of the run stands for 2 s."""

        def row(name: str, odd: float):
            terms = {"compute": 1.0}
            plans = [
                {"label": label, "predicted": 1.0, "even": seconds, "odd": seconds, "terms": terms}
                for label, seconds in (("chosen", 2.0), ("other", odd))
            ]
            case = asdict(Case("s", name, 100, 200, 300)) | {"flops": 12_000_000, "threads": 1, "layout": "plain"}
            return case | {"chosen": "chosen", "plans": plans, "outside": [0.0, 0.0], "peak": 1e9, "profiled": 2e9}

        page = accuracy.fit([measured(1, str(at), [row(str(at), odd)]) for at, odd in enumerate((1.5, 2.5))])
        assert "| all | 2 | 0.0% (2) |" in page.blocks[1]
        assert page.losses[0] == "At 1 thread(s) 1 of 2 choices are below 0.85 of the best plan:"
        assert "| 100x200x300 plain | 0.750 | chosen | other |" in page.losses[1]
        figure = Figure()
        page.draw(figure)
        assert len(figure.axes) == 2 and all(axes.collections for axes in figure.axes)

    def test_every_layout_is_raced(self):
        layouts = [case.id.split()[-1] for case in accuracy.raced(replace(OPTIONS, smoke=True))]
        assert set(layouts) == set(LAYOUTS) and len(layouts) >= accuracy.SMOKE_SAMPLES

    def test_regret_is_told_with_what_vendors_run_quicker(self):
        def row(name: str, theirs: float):
            plans = [{"label": label, "even": 1.0, "odd": 1.0} for label in ("chosen", "other")]
            case = asdict(Case("regret", name, 10, 20, 30)) | {"threads": 1, "packed": False, "part": "domain"}
            systems = {"vortex": 1.0, "mkl": theirs, "onednn": None}
            return case | {"outside": [0.0, 0.0], "weight": 1.0, "chosen": "chosen", "plans": plans, "systems": systems}

        page = accuracy.regrets([measured(1, str(at), [row(str(at), x)]) for at, x in enumerate((0.8, 0.6, 1.5))])
        assert page.blocks[0] == "### domain, plain B, 1 thread(s)"
        assert "| the quickest vendor | 3 |" in page.blocks[1]
        assert page.losses[0] == "At 1 thread(s) a vendor is quicker on 2 of 3; most where:"
        assert page.losses[1].index("| 10x20x30 | 0.600 | chosen | 1.000 |") < page.losses[1].index("| 0.800 |")

    def test_overheads_are_told_as_they_were_measured(self):
        values = {"torch.mm": 2.0, "torch.mm(out=)": 1.0, "vortex, arrays": 1.5, "vortex, arrays, out=": 1.25}
        rows = [{"name": f"1x64x64 {name}", "value": value, "unit": "us"} for name, value in values.items()]
        page = overheads.calls([measured(2, "calls", [row | {"note": f"at {row['value']}"} for row in rows])])
        assert "| 1x64x64 torch.mm | 2 | us | at 2.0 |" in page.blocks[0]
        assert page.losses == ["- 1x64x64 vortex, arrays, out=: at 1.25"]


class TestRegions:
    def row(self, cut: bool, off: float, masks: float = 2.0, suite: str = "s") -> dict:
        labels = {"on": "II", "off": "one", "masks": "masked"}
        case = asdict(Case(suite, "s/0", 1, 2, 3)) | {"loss": 0.5, "predicted": 1.2, **labels}
        return case | {"cut": cut, "on_s": 1.0, "off_s": off, "masks_s": masks}

    def test_what_masks_serve_quicker_is_a_loss_cut_or_not(self):
        given = ((True, 1.5, 0.97), (False, 1.0, 0.7), (True, 0.5, 0.99))
        page = regions.regions([measured(1, str(at), [self.row(*each)]) for at, each in enumerate(given)])
        assert page.losses[0] == "At 1 thread(s) 2 of 3 shapes are slower than one micro-kernel with masks:"
        rows = page.losses[1].splitlines()[2:]
        assert rows == [f"| 1x2x3 | {share} | 1.200 | II | masked |" for share in ("0.700", "0.970")]
        assert page.losses[2].startswith("At 1 thread(s) 1 of 3 shapes are slower when cut")

    def test_a_page_lists_those_that_lose_most(self):
        page = regions.regions([measured(1, str(i), [self.row(False, 1.0, 0.9 - i / 100)]) for i in range(12)])
        assert page.losses[0].startswith("At 1 thread(s) 12 of 12 shapes") and page.losses[0].endswith("; most where:")
        assert [row.split(" | ")[1] for row in page.losses[1].splitlines()[2:]] == [
            f"{0.79 + i / 100:.3f}" for i in range(10)
        ]

    def test_random_shapes_are_told_apart_from_products_that_somebody_runs(self):
        rows = [self.row(False, 1.0, masks, suite) for masks, suite in ((1.5, "random_1"), (3.0, "s"))]
        blocks = regions.regions([measured(1, "a", rows)]).blocks
        assert blocks[0::2] == ["### 1 thread, products of the suites", "### 1 thread, random shapes"]
        assert "| 3.000 | 3.000 |" in blocks[1] and "| 1.500 | 1.500 |" in blocks[3]

    def test_a_shape_that_is_slower_when_cut_is_a_loss(self):
        page = regions.regions([measured(1, "a", [self.row(True, 0.9)]), measured(1, "b", [self.row(False, 1.0)])])
        assert "| all | 2 | 1 | 50% | 0.949 | 0.900 | 2.000 | 2.000 |" in page.blocks[1]
        assert "| 1x2x3 | 0.900 | 1.200 | II | one |" in page.losses[1]
