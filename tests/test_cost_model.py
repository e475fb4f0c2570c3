"""The gate of the cost model: recorded races of six kinds of core, predicted and chosen again by the model; no clock.

On Zen 5 most of its constants were fitted, and one of its recordings is of two threads; Zen 4, a busier machine with
half the arithmetic, Zen 3 and Zen 2, still busier ones with AVX2 alone, and Granite Rapids and Emerald Rapids, which
have small pages as that Zen 2 does, show what they are worth elsewhere.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from eval import model, races, replay
from eval.stats import geometric_mean
from vortex import rating

RECORDED = Path(__file__).with_name("recorded_races")


@dataclass(frozen=True)
class Bounds:
    """Of a machine's races: the choice over the best plan, with B in one layout, and how many are far from it."""

    choice: float
    layout: float
    far: float
    error_large: float
    error_small: float
    ranked: float


MACHINES = {
    "zen5": Bounds(0.985, 0.98, 0.03, 0.07, 0.12, 0.8),
    "zen5_shortlists": Bounds(0.985, 0.97, 0.03, 0.05, 0.1, 0.85),
    "zen5_two_threads": Bounds(0.97, 0.96, 0.05, 0.06, 0.15, 0.8),
    "zen5_both_cores": Bounds(0.97, 0.96, 0.06, 0.05, 0.14, 0.9),
    "zen4": Bounds(0.985, 0.98, 0.04, 0.13, 0.2, 0.8),
    "zen3": Bounds(0.96, 0.95, 0.1, 0.1, 0.18, 0.8),
    "zen2": Bounds(0.98, 0.975, 0.03, 0.06, 0.18, 0.85),
    "granite_rapids": Bounds(0.975, 0.97, 0.04, 0.12, 0.22, 0.8),
    "emerald_rapids": Bounds(0.975, 0.96, 0.04, 0.12, 0.25, 0.8),
}


@dataclass(frozen=True)
class Today:
    """Recorded races with today's predictions and choices; the peak they were recorded under."""

    bounds: Bounds
    lines: list[dict[str, Any]]
    peak: float

    def errors(self, large: bool) -> list[float]:
        here = [line for line in self.lines if (line["flops"] > model.LARGE) == large]
        return [abs(model.relative_error(line, races.chosen_of(line), self.peak)) for line in here]


def replayed(machine: str) -> Today:
    return Today(MACHINES[machine], *replay.replay(RECORDED / f"{machine}.json"))


@pytest.fixture(scope="module", params=MACHINES)
def today(request: pytest.FixtureRequest) -> Today:
    return replayed(request.param)


def test_the_choice_stays_near_the_best_plan(today: Today) -> None:
    shares = [races.share(line) for line in today.lines]
    assert len(shares) > 200
    assert geometric_mean(shares) >= today.bounds.choice
    assert sum(share < 0.85 for share in shares) <= today.bounds.far * len(shares)


@pytest.mark.parametrize("layout", races.LAYOUTS)
def test_no_layout_is_left_behind(today: Today, layout: str) -> None:
    shares = [races.share(line) for line in today.lines if line["layout"] == layout]
    assert len(shares) > 50 and geometric_mean(shares) >= today.bounds.layout


def test_predictions_are_near_what_was_measured(today: Today) -> None:
    assert statistics.median(today.errors(large=True)) <= today.bounds.error_large
    assert statistics.median(today.errors(large=False)) <= today.bounds.error_small


def test_plans_that_are_apart_are_ranked(today: Today) -> None:
    assert statistics.median(model.correlations(today.lines)) >= today.bounds.ranked


def test_a_worse_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the effects that take a call into its nest and tiles, the choice and the predictions are worse."""
    today = replayed("zen5")
    blind = replace(rating.EFFECTS, nest_s=0.0, stage_start_s=0.0, tile_enter_cycles=0.0, tile_row_cycles=0.0)
    monkeypatch.setattr(rating, "EFFECTS", blind)
    before = replayed("zen5")
    chosen, was = ([races.share(line) for line in then.lines] for then in (today, before))
    assert geometric_mean(was) < geometric_mean(chosen) - 0.005
    assert statistics.median(before.errors(large=False)) > statistics.median(today.errors(large=False)) + 0.04


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
