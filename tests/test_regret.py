"""The regret map and the cost-model report: their arithmetic on made-up lines, and both commands end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval import machine, model, races, records, regret, sampling, stats

BOX = sampling.Domain((1, 1, 1), (1000, 1000, 1000), 1e12)


def entry(predicted: float, even: float, odd: float | None = None, **terms: float) -> dict[str, Any]:
    label = f"plan of {predicted}"
    times = {"predicted": predicted, "even": even, "odd": even if odd is None else odd}
    return {"label": label, "terms": terms or {"compute": predicted}, **times}


def line(entries: list[dict[str, Any]], chosen: int = 0, flops: float = 1e8, **more: Any) -> dict[str, Any]:
    about = {"kind": "race", "m": 8, "n": 8, "k": 8, "layout": "plain", "packed": False, "trans_b": False, "threads": 1}
    about |= {"outside": [1e-6, 1e-6]}
    return about | {"flops": flops, "peak": 1e9, "chosen": entries[chosen]["label"], "plans": entries} | more


class TestSampling:
    def test_samples_gather_where_the_choice_changes(self) -> None:
        """Tall products choose one thing, all others another: the boundary is m = 30 n."""
        found = sampling.samples(BOX, lambda m, n, k: m > 30 * n, 400, seed=3)
        distance = np.array([abs(math.log(s.shape[0] / (30 * s.shape[1]))) for s in found])
        rng = np.random.default_rng(0)
        even = np.exp(rng.uniform(0, math.log(1000), (4000, 2)))
        assert (distance < 0.5).mean() > 2 * (np.abs(np.log(even[:, 0] / (30 * even[:, 1]))) < 0.5).mean()

    def test_weights_undo_that(self) -> None:
        found = sampling.samples(BOX, lambda m, n, k: m > 30 * n, 2000, seed=4)
        weights = np.array([s.weight for s in found])
        tall = np.array([s.shape[0] > 30 * s.shape[1] for s in found])
        side = math.log(1000)
        assert weights.mean() == pytest.approx(1.0)
        assert (weights * tall).mean() == pytest.approx((side - math.log(30)) ** 2 / 2 / side**2, abs=0.03)

    def test_a_fixed_axis_and_the_limit_of_flops_are_kept(self) -> None:
        domain = sampling.Domain((1, 1, 64), (4096, 4096, 64), 1e6)
        found = sampling.samples(domain, lambda m, n, k: m > n, 100, seed=0)
        assert {s.shape[2] for s in found} == {64}
        assert all(domain.holds(s.shape) for s in found)

    def test_a_seed_repeats_itself_and_an_empty_domain_is_refused(self) -> None:
        assert sampling.samples(BOX, max, 20, 5) == sampling.samples(BOX, max, 20, 5)
        assert sampling.samples(BOX, max, 20, 5) != sampling.samples(BOX, max, 20, 6)
        with pytest.raises(ValueError, match="no shape between"):
            sampling.samples(sampling.Domain((64, 64, 64), (64, 64, 64), 10), max, 5, 0)


class TestStatistics:
    def test_quantiles_by_weight(self) -> None:
        assert stats.weighted_quantile([3.0, 1.0, 2.0], [1.0, 1.0, 1.0], 0.5) == 2.0
        assert stats.weighted_quantile([3.0, 1.0, 2.0], [8.0, 1.0, 1.0], 0.5) == 3.0
        assert stats.weighted_quantile([3.0, 1.0], [1.0, 9.0], 1.0) == 3.0

    def test_the_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        rng, hits = np.random.default_rng(1), 0
        for trial in range(60):
            values = list(np.exp(rng.normal(0, 0.3, 40)))
            found = stats.bootstrap(stats.weighted_mean, values, [1.0] * 40, seed=trial, resamples=200)
            assert found.low <= found.value <= found.high
            hits += found.low <= 1.0 <= found.high
        assert hits >= 48

    def test_rank_correlation(self) -> None:
        assert stats.rank_correlation([1, 2, 3, 4], [1, 20, 30, 400]) == pytest.approx(1.0)
        assert stats.rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
        assert stats.rank_correlation([1, 2, 3, 4], [1, 1, 2, 2]) == pytest.approx(0.894, abs=1e-3)
        assert math.isnan(stats.rank_correlation([1, 2], [5, 5]))


class TestRaces:
    def test_the_best_is_chosen_by_the_even_and_scored_by_the_odd_rounds(self) -> None:
        lucky = line([entry(1.0, 2.0, 2.0), entry(2.0, 1.0, 3.0)])
        assert races.share(lucky) == 1.5

    def test_a_race_in_which_python_moved_is_run_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By a tenth of the best plan's seconds and more: up to three times, of which the steadiest is told of."""
        tried: list[tuple[float, float]] = []
        quiet, near, loud = (1.0, 1.09), (1.0, 1.2), (1.0, 2.0)

        def once(*_: Any) -> dict[str, Any]:
            return line([entry(1.0, 3.0), entry(1.0, 1.0)], outside=tried.pop(0))

        def race(*outside: tuple[float, float], allow_busy: bool = True) -> Any:
            tried[:] = outside
            return races.race(None, races.case_at("s", "s", (1, 1, 1), "plain"), 1, False, allow_busy=allow_busy)

        monkeypatch.setattr(races, "race_once", once)
        assert race(quiet, loud)["outside"] == quiet and tried == [loud]
        assert race(loud, quiet, near)["outside"] == quiet and tried == [near]
        noisy = race(loud, near, loud, quiet)
        assert noisy["outside"] == near and tried == [quiet]
        with pytest.raises(machine.BusyError, match=r"moved by 20% of its best plan \(tolerated: 10%\)"):
            race(loud, near, loud, allow_busy=False)
        (told,) = races.unsteady([noisy, line([entry(1.0, 1.0)])])
        assert told.startswith("In 1 of 2 races")
        assert races.unsteady([line([entry(1.0, 1.0)])]) == []

    def test_parts_add_up_to_the_prediction(self, gemm: Any) -> None:
        for shape in ((100, 300, 200), (3000, 2, 500), (900, 700, 64), (3, 7, 40000)):
            for threads in (1, 2):
                for plan in gemm.plans(*shape, threads=threads):
                    terms = races.parts(plan, gemm.cost_terms(plan, *shape))
                    assert sum(terms.values()) == pytest.approx(plan.seconds, rel=1e-3)


class TestModel:
    def test_errors_are_in_shares_of_the_peak(self) -> None:
        """The run's clock is half of the profile's, so twice the predicted seconds are no error."""
        slow = line([entry(1.0, 2.0)], peak=1e9)
        assert model.relative_error(slow, slow["plans"][0], 2e9) == 0.0
        assert model.relative_error(slow, slow["plans"][0], 1e9) == -0.5

    def test_ranks_count_only_plans_that_are_apart(self) -> None:
        close = line([entry(5.0 - at, 1.0 + 0.01 * at) for at in range(5)])
        assert model.correlations([close]) == []
        apart = line([entry(1.0 + at, 1.0 + 0.1 * at) for at in range(5)])
        assert model.correlations([apart]) == pytest.approx([1.0])
        against = line([entry(9.0 - at, 1.0 + 0.1 * at) for at in range(5)])
        assert model.correlations([against]) == pytest.approx([-1.0])

    def test_a_term_that_is_half_of_what_it_should_be_is_found(self) -> None:
        rng, lines = np.random.default_rng(2), []
        for _ in range(50):
            compute, packing = rng.uniform(0.1, 2, 2)
            lines.append(line([entry(compute + packing, compute + 2 * packing, compute=compute, packing=packing)]))
        rows = {row[0]: row for row in model.term_rows(lines, 1e9)}
        assert float(rows["packing"][4]) == pytest.approx(2.0, abs=0.15)
        assert float(rows["compute"][4]) == pytest.approx(1.0, abs=0.15)
        assert rows["packing"][3].startswith("-")

    def test_the_summary_tells_large_from_small_and_layouts_apart(self) -> None:
        lines = [line([entry(1.0, 1.1)]), line([entry(1.0, 2.0)], flops=1e5, layout="packed")]
        text = model.summary(lines, 1e9)
        assert "| all | 2 | 9.1% (1) | 50.0% (1) |" in text
        assert "| packed B | 1 | - | 50.0% (1) |" in text and "transposed" not in text


class TestCommands:
    def test_regret_end_to_end_and_again(self, library_path: Path, tmp_path: Path, capsys: Any) -> None:
        pytest.importorskip("matplotlib")
        out = tmp_path / "regret.jsonl"
        options = f"--samples 8 --map 32 --map-samples 5 --max-flops 1e6 --rounds 2 --library {library_path}"
        given = [*options.split(), "--vendors", "--allow-busy", "--out", str(out)]
        assert regret.main(given) == 0
        lines = records.read([out])
        assert len(lines) == 13 and {line["part"] for line in lines} == {"domain", "map at K=32"}
        assert all(0 < races.share(line) < 20 for line in lines)
        assert (tmp_path / "regret-plain-1t-k32.png").stat().st_size > 10_000
        capsys.readouterr()
        assert regret.main(given) == 0
        assert records.read([out]) == lines, "what is measured is not measured again"
        assert "the library's best plan | 8 |" in capsys.readouterr().out

    def test_a_vendor_takes_part(self, library_path: Path, tmp_path: Path) -> None:
        pytest.importorskip("threadpoolctl")
        out = tmp_path / "regret.jsonl"
        options = f"--samples 1 --map --max-flops 1e5 --rounds 2 --library {library_path} --vendors openblas"
        assert regret.main([*options.split(), "--allow-busy", "--out", str(out)]) == 0
        (only,) = records.read([out])
        assert only["systems"].keys() == {"vortex", "openblas"} and regret.vendor_share(only)

    @pytest.mark.parametrize("command", [model, regret])
    def test_lines_that_the_report_would_overwrite_are_refused(self, command: Any, capsys: Any) -> None:
        with pytest.raises(SystemExit):
            command.main(["--out", "report.md"])
        assert "report.md: expected FILE.jsonl" in capsys.readouterr().err

    def test_model_end_to_end(self, library_path: Path, tmp_path: Path, capsys: Any) -> None:
        pytest.importorskip("matplotlib")
        out = tmp_path / "model.jsonl"
        options = f"--samples 12 --max-flops 1e6 --rounds 2 --library {library_path} --allow-busy"
        assert model.main([*options.split(), "--out", str(out)]) == 0
        assert "rank correlation" in capsys.readouterr().out
        assert out.with_suffix(".md").is_file() and out.with_suffix(".png").stat().st_size > 10_000
        layouts = {line["layout"] for line in records.read([out])}
        assert "packed" in layouts and len(layouts) > 1
