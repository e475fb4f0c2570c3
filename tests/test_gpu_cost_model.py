"""The gate of the cost model of GPUs: recorded races of an H200, predicted and chosen again by the model; no device."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from eval.gpu.replay import Plan, Race, replay, table
from eval.stats import geometric_mean

RECORDED = Path(__file__).with_name("recorded_gpu_races")


@dataclass(frozen=True)
class Bounds:
    """Of the races of a library: the choice over the soonest plan, how many are far from it, the median error."""

    choice: float
    far: int
    error: float


LIBRARIES = {"h200_float16": Bounds(0.96, 6, 0.12), "h200_float32": Bounds(0.93, 6, 0.11)}


@cache
def replayed(library: str) -> list[Race]:
    return replay(RECORDED / f"{library}.json")


@pytest.mark.parametrize(("library", "bounds"), LIBRARIES.items())
class TestRaces:
    def test_the_choice_is_near_the_soonest_plan(self, library: str, bounds: Bounds):
        shares = [race.share for race in replayed(library)]
        assert geometric_mean(shares) >= bounds.choice
        assert sum(share < 0.85 for share in shares) <= bounds.far

    def test_plans_near_the_soonest_are_predicted(self, library: str, bounds: Bounds):
        errors = [abs(error) for race in replayed(library) for error in race.errors]
        assert statistics.median(errors) <= bounds.error

    def test_every_race_has_a_choice(self, library: str, bounds: Bounds):
        """Plans whose cut is still tried: nearly all."""
        races = replayed(library)
        assert min(len(race.plans) for race in races) >= 2
        assert sum(len(race.plans) for race in races) >= 900


def test_over_all_races():
    assert geometric_mean([race.share for name in LIBRARIES for race in replayed(name)]) >= 0.95


def test_a_race_and_its_table():
    slow, quick = Plan("one", 1, 2e-6, 1e-6), Plan("other", 4, 1e-6, 1.1e-6)
    race = Race((3, 5, 7), (slow, quick))
    assert (race.best, race.chosen, race.share) == (quick, slow, 0.5)
    assert race.errors == pytest.approx([0.0953], abs=1e-4)  # the slow one is never near
    assert "| 3x5x7 | 0.50 | one | 2.0 | 1.0 | other, 4 parts | 1.0 | 1.1 |" in table([race])
