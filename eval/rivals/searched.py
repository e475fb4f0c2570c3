"""A search of DietCode's kind with a budget that is enough: doubled until the doubling gains less than one per cent.

What the doubling gains is measured: the micro-kernels that either dispatcher gives some shapes are run by turns. They
are the samples, or those that the result is about, where those are others: beyond its samples a search may still gain
where it has nothing left to gain among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.rivals.budget import MOST_DOUBLINGS, MOST_SECONDS, until_enough
from eval.rivals.dietcode import Search, program_of
from eval.rivals.dispatch import Shape, Tree, train
from eval.rivals.meter import Call
from eval.rivals.setting import Bench
from eval.rivals.space import MicroKernel, read_kernel, written
from eval.suites import Case


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
    bounded: bool
    """Whether the bound ended the doubling of the budget."""

    def told(self) -> dict[str, Any]:
        """For a result line."""
        return {
            "trials": self.trials,
            "seconds": self.seconds,
            "samples": len(self.shapes),
            "space": self.space,
            "occupancy_slope": self.slope,
            "kernels": len(self.once.kernels),
            "bounded": self.bounded,
        }


def searched(bench: Bench, samples: Sequence[Case], trials: int, judged: Sequence[Case] = ()) -> Searched:
    """The search with at least `trials`, enough for the shapes `judged`, or for the samples where none are given; from
    what was kept where it ran before."""
    shapes, tried = shapes_of(samples), shapes_of(judged or samples)
    asked = f"search {trials}, doubled {MOST_DOUBLINGS} times in {MOST_SECONDS} s, {shapes} {samples[0].layout}"
    kept = bench.recall(f"{asked}, by {tried}", lambda: _found(bench, samples, trials, judged or samples))
    once, twice = (train(shapes, [read_kernel(vote) for vote in kept[name]]) for name in ("once", "twice"))
    about = {name: kept[name] for name in ("trials", "seconds", "slope", "space", "bounded")}
    return Searched(once, twice, shapes=tuple(shapes), **about)


def shapes_of(cases: Sequence[Case]) -> list[Shape]:
    return [(case.m, case.n, case.k) for case in cases]


@dataclass(frozen=True)
class _Outcome:
    votes: list[MicroKernel]
    seconds: float
    slope: float


def _found(bench: Bench, samples: Sequence[Case], trials: int, judged: Sequence[Case]) -> dict[str, Any]:
    setting, shapes = bench.setting, shapes_of(samples)
    search = Search(bench.space(samples[0]), samples, bench.meter(trials), setting.threads, setting.seed)

    def outcome(budget: int) -> _Outcome:
        search.meter.budget = budget
        search.run()
        return _Outcome([search.vote(case) for case in samples], search.meter.seconds, search.learned.slope)

    found = until_enough(
        outcome,
        lambda once, twice: confirmed(bench, judged, train(shapes, once.votes), train(shapes, twice.votes)),
        lambda one: one.seconds,
        trials,
    )
    votes = {name: [written(vote) for vote in of.votes] for name, of in (("once", found.once), ("twice", found.twice))}
    told = {"trials": found.trials, "seconds": found.once.seconds, "slope": found.once.slope, "bounded": found.bounded}
    return votes | told | {"space": len(search.space.kernels)}


def confirmed(bench: Bench, judged: Sequence[Case], once: Tree, twice: Tree) -> float:
    """What the second dispatcher gains over the first one."""

    def pair(case: Case) -> dict[str, Call]:
        first, second = (tree.choose(case.m, case.n, case.k) for tree in (once, twice))
        votes = {"once": first, "twice": second} if first != second else {}
        return {name: bench.runner.program(program_of(vote, case), case) for name, vote in votes.items()}

    return bench.gained(map(pair, judged))
