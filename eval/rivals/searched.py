"""A search of DietCode's kind with a budget that is enough: doubled until the doubling gains less than one per cent.

What the doubling gains is measured: the micro-kernels that either dispatcher gives the samples are run by turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.rivals.dietcode import Search, program_of
from eval.rivals.dispatch import Tree, train
from eval.rivals.setting import ENOUGH, Bench, gain
from eval.rivals.space import MicroKernel, read_kernel, written
from eval.suites import Case

DOUBLINGS = 2
"""How often a budget is doubled at most while that gains anything."""
CONFIRMED, CONFIRM_ROUNDS, CONFIRM_SECONDS = 8, 3, 0.01
"""Samples that two dispatchers are compared on, evenly over all, and how each of their programs is timed."""


@dataclass(frozen=True)
class Searched:
    """A dispatcher, and the one that twice the trials gave; what the first one took."""

    once: Tree
    twice: Tree
    trials: int
    seconds: float
    slope: float
    """k of f_OCC."""
    space: int
    """Micro-kernels that could be chosen."""
    shapes: tuple[tuple[int, int, int], ...]
    """(m, n, k) that it was made for."""

    def told(self) -> dict[str, Any]:
        """For a result line."""
        return {
            "trials": self.trials,
            "seconds": self.seconds,
            "samples": len(self.shapes),
            "space": self.space,
            "occupancy_slope": self.slope,
            "kernels": len(self.once.kernels),
        }


def searched(bench: Bench, samples: Sequence[Case], trials: int) -> Searched:
    """The search with at least `trials`; from what was kept where it ran before."""
    shapes = [(case.m, case.n, case.k) for case in samples]
    kept = bench.recall(f"search {trials} {shapes} {samples[0].layout}", lambda: _found(bench, samples, trials))
    once, twice = (train(shapes, [read_kernel(vote) for vote in kept[name]]) for name in ("once", "twice"))
    about = {name: kept[name] for name in ("trials", "seconds", "slope", "space")}
    return Searched(once, twice, shapes=tuple(shapes), **about)


def _found(bench: Bench, samples: Sequence[Case], trials: int) -> dict[str, Any]:
    setting = bench.setting
    search = Search(bench.space(samples[0]), samples, bench.meter(trials), setting.threads, setting.seed)
    search.run()
    votes, doubled = [search.vote(case) for case in samples], 0
    while True:
        told: dict[str, Any] = {
            "trials": search.meter.budget,
            "seconds": search.meter.seconds,
            "slope": search.learned.slope,
        }
        search.meter.budget *= 2
        search.run()
        again, doubled = [search.vote(case) for case in samples], doubled + 1
        if doubled > DOUBLINGS or confirmed(bench, samples, votes, again) < ENOUGH:
            break
        votes = again
    found = {"once": [written(vote) for vote in votes], "twice": [written(vote) for vote in again]}
    return told | found | {"space": len(search.space.kernels)}


def confirmed(
    bench: Bench, samples: Sequence[Case], once: Sequence[MicroKernel], twice: Sequence[MicroKernel]
) -> float:
    """What the second votes gain over the first ones on some of the samples."""
    count = min(CONFIRMED, len(samples))
    places = [(2 * at + 1) * len(samples) // (2 * count) for at in range(count)]
    before, after = [], []
    for at in places:
        pair = {"once": program_of(once[at], samples[at]), "twice": program_of(twice[at], samples[at])}
        if pair["once"] == pair["twice"]:
            before.append(1.0)
            after.append(1.0)
            continue
        calls = {name: bench.runner.program(program, samples[at]) for name, program in pair.items()}
        raced = bench.race(calls, CONFIRM_ROUNDS, CONFIRM_SECONDS)
        before.append(raced["once"].seconds)
        after.append(raced["twice"].seconds)
    return gain(before, after)
