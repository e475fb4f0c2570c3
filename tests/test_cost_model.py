"""The gate of the cost model: races recorded on a Zen 5, predicted and chosen again by today's model; no clock."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval import model, races, replay
from eval.stats import geometric_mean
from vortex import profiler

RECORDED = Path(__file__).with_name("recorded_races.json")


@pytest.fixture(scope="module")
def today() -> tuple[list[dict[str, Any]], float]:
    return replay.replay(RECORDED)


def errors(today: tuple[list[dict[str, Any]], float], large: bool) -> list[float]:
    lines, profiled = today
    here = [line for line in lines if (line["flops"] > model.LARGE) == large]
    return [abs(model.relative_error(line, races.chosen_of(line), profiled)) for line in here]


def test_the_choice_stays_near_the_best_plan(today: Any) -> None:
    shares = [races.share(line) for line in today[0]]
    assert len(shares) > 200
    assert geometric_mean(shares) >= 0.985
    assert sum(share < 0.85 for share in shares) <= 0.02 * len(shares)


@pytest.mark.parametrize("layout", races.LAYOUTS)
def test_no_layout_is_left_behind(today: Any, layout: str) -> None:
    shares = [races.share(line) for line in today[0] if line["layout"] == layout]
    assert len(shares) > 50 and geometric_mean(shares) >= 0.98


def test_predictions_are_near_what_was_measured(today: Any) -> None:
    assert statistics.median(errors(today, large=True)) <= 0.07
    assert statistics.median(errors(today, large=False)) <= 0.12


def test_plans_that_are_apart_are_ranked(today: Any) -> None:
    assert statistics.median(model.correlations(today[0])) >= 0.8


def test_a_worse_model_is_noticed(today: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the effects that take a call into its nest and tiles, the choice and the predictions are worse."""
    blind = replace(profiler.EFFECTS, nest_s=0.0, stage_start_s=0.0, tile_enter_cycles=0.0, tile_row_cycles=0.0)
    monkeypatch.setattr(profiler, "EFFECTS", blind)
    before = replay.replay(RECORDED)
    chosen, was = ([races.share(line) for line in lines] for lines, _ in (today, before))
    assert geometric_mean(was) < geometric_mean(chosen) - 0.005
    assert statistics.median(errors(before, large=False)) > statistics.median(errors(today, large=False)) + 0.05


def test_a_recording_reads_back_as_it_was(gemm: Any, tmp_path: Path) -> None:
    about = {"command": "a test"}
    case, kind = races.case_at("s", "s/0", (33, 65, 17), "plain"), {"layout": "plain"}
    line = races.race(gemm, case, 1, packed=False, rounds=2) | kind
    replay.record(gemm, [line], about, tmp_path / "races.json")
    ((again,), profiled) = replay.replay(tmp_path / "races.json")
    assert json.loads((tmp_path / "races.json").read_text())["about"] == about
    assert again["chosen"] == line["chosen"] and profiled > 1e9
    for new, old in zip(again["plans"], line["plans"], strict=True):
        assert new["label"] == old["label"]
        assert new["predicted"] == pytest.approx(old["predicted"], rel=1e-4)
        assert new["odd"] == pytest.approx(old["odd"], abs=1e-12)
