"""The paper's results: order, resuming, budgets, pages. Measuring is done by stand-ins; nothing is timed."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("psutil")

from eval import machine, paper
from eval.reproduce import pages, registry, run, summary
from eval.reproduce.result import Options, Page, Result

OPTIONS = Options(threads=1)


@dataclass(frozen=True)
class Fake:
    id: str


def fake(count: int = 4, disturbed: Sequence[str] = (), name: str = "fake") -> Result:
    def open_fake(options: Options, stack: ExitStack):
        def one(case: Fake):
            if case.id in disturbed:
                raise machine.BusyError("somebody else")
            return [{"seconds": float(case.id), "spread": 0.01, "versions": {"lib": "1"}}]

        return one

    def page(lines):
        told = f"sum {sum(row['seconds'] for line in lines for row in line['rows']):g}"
        return Page([told], ["### slow ones"], draw=lambda figure: figure.subplots().plot([1, 2]))

    return Result(name, "a title", "nothing", lambda o: [Fake(str(i)) for i in range(count)], open_fake, page, 1.0)


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
        assert run.measure(fake(4), OPTIONS, tmp_path, time.monotonic() - 1, quiet).done == 0
        run.measure(fake(2), OPTIONS, tmp_path, float("inf"), quiet)
        with (tmp_path / "fake.jsonl").open("a") as file:
            file.write('{"id": "2", "thre')
        assert run.measure(fake(4), OPTIONS, tmp_path, float("inf"), quiet).done == 4

    def test_a_disturbed_case_is_left_for_another_time(self, tmp_path: Path):
        assert run.measure(fake(4, disturbed="2"), OPTIONS, tmp_path, float("inf"), quiet).done == 3
        assert run.measure(fake(4), OPTIONS, tmp_path, float("inf"), quiet).done == 4

    def test_a_machine_that_never_rests_ends_the_run(self, tmp_path: Path):
        with pytest.raises(machine.BusyError, match="3 cases in a row"):
            run.measure(fake(8, disturbed="01234567"), OPTIONS, tmp_path, float("inf"), quiet)

    def test_the_time_is_shared_out_by_need(self, tmp_path: Path):
        run.measure(fake(2), OPTIONS, tmp_path, float("inf"), quiet)
        shares = paper.shares([fake(4), fake(6, name="other")], OPTIONS, tmp_path, 4.0)
        assert shares["other"] == pytest.approx(4.0, rel=0.05)  # the first's measured cases took no time
        assert paper.shares([fake(6, name="other")], OPTIONS, tmp_path, 100.0) == {"other": 6.0}


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

    def test_a_page_without_markers_is_refused(self, docs: Path, tmp_path: Path):
        (docs / "performance.md").write_text("no markers")
        with pytest.raises(ValueError, match="paper:begin"):
            summary.write(docs, tmp_path, OPTIONS)

    def test_the_real_page_has_the_markers(self):
        text = (Path(__file__).resolve().parent.parent / "docs" / "performance.md").read_text()
        assert text.count(summary.BEGIN) == text.count(summary.END) == 1


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
        assert paper.main(["table5", "--draw", "--fresh", "--threads", "1", "--out", str(tmp_path)]) == 0
        assert "not measured" in capsys.readouterr().out
