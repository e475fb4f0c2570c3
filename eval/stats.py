"""Statistics of timings and speedups, and what a result line is compared by. Pure functions."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One round of one system: seconds per call, and the share of its cores' time that the host gave to others."""

    calls: int
    best: float
    median: float
    stolen: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of one system on one case. `seconds` is the figure that ratios are made of."""

    seconds: float
    best: float
    median: float
    spread: float
    calls: int
    stolen: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """Speedups over one baseline, in the aggregate."""

    cases: int
    wins: float
    arithmetic: float
    geometric: float
    worst: float
    worst_id: str


def summarize(rounds: Sequence[Timing], mode: str) -> Summary:
    """Warm: the median over rounds of each round's fastest call. Cold: the median over rounds of each round's median.

    A cold call has no repeatable fastest case: one that happened to find a line in a cache would be the minimum.
    """
    per_round = [timing.best if mode == "warm" else timing.median for timing in rounds]
    return Summary(
        seconds=statistics.median(per_round),
        best=min(timing.best for timing in rounds),
        median=statistics.median(timing.median for timing in rounds),
        spread=(max(per_round) - min(per_round)) / min(per_round),
        calls=sum(timing.calls for timing in rounds),
        stolen=max(timing.stolen for timing in rounds),
    )


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def speedup(pairs: Sequence[tuple[str, float, float]], tolerance: float = 0.0) -> Speedup | None:
    """The aggregate of (case id, baseline seconds, our seconds), None without cases; a win is >= 1 - tolerance."""
    if not pairs:
        return None
    ratios = {case: baseline / ours for case, baseline, ours in pairs}
    worst_id = min(ratios, key=lambda case: ratios[case])
    return Speedup(
        cases=len(ratios),
        wins=sum(ratio >= 1 - tolerance for ratio in ratios.values()) / len(ratios),
        arithmetic=statistics.fmean(ratios.values()),
        geometric=geometric_mean(ratios.values()),
        worst=ratios[worst_id],
        worst_id=worst_id,
    )


def deciles(flops: dict[str, int], parts: int = 10) -> list[list[str]]:
    """Case ids in `parts` groups of nearly equal size, by rising number of floating-point operations."""
    ordered = sorted(flops, key=lambda case: (flops[case], case))
    edges = [round(index * len(ordered) / parts) for index in range(parts + 1)]
    return [ordered[low:high] for low, high in itertools.pairwise(edges) if high > low]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic and the bounds between which 95 % of bootstrap resamples put it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def weighted_quantile(values: Sequence[float], weights: Sequence[float], at: float) -> float:
    """The least value that at least the share `at` of the weight does not exceed."""
    ordered = sorted(zip(values, weights, strict=True))
    wanted, passed = at * math.fsum(weights), 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= wanted * (1 - 1e-12):
            return value
    return ordered[-1][0]


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The geometric mean, each value with its weight."""
    total = math.fsum(w * math.log(v) for v, w in zip(values, weights, strict=True))
    return math.exp(total / math.fsum(weights))


def bootstrap(
    statistic: Callable[[Sequence[float], Sequence[float]], float],
    values: Sequence[float],
    weights: Sequence[float],
    seed: int = 0,
    resamples: int = 1000,
) -> Estimate:
    """A statistic of weighted values; the cases are drawn again, each with its weight (percentile bootstrap)."""
    draw, places = random.Random(seed), range(len(values))
    found = []
    for _ in range(resamples):
        again = draw.choices(places, k=len(values))
        found.append(statistic([values[at] for at in again], [weights[at] for at in again]))
    found.sort()
    low, high = found[int(0.025 * (resamples - 1))], found[math.ceil(0.975 * (resamples - 1))]
    return Estimate(statistic(values, weights), low, high)


def geometric_estimate(values: Sequence[float]) -> Estimate:
    """The geometric mean of a sample, with what another sample might have given."""
    return bootstrap(lambda drawn, _: geometric_mean(drawn), values, [1.0] * len(values))


def ranks(values: Sequence[float]) -> list[float]:
    """Place of each value in rising order; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    places = [0.0] * len(values)
    for _, group in itertools.groupby(enumerate(order), key=lambda pair: values[pair[1]]):
        members = list(group)
        for _, at in members:
            places[at] = statistics.fmean(place for place, _ in members)
    return places


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: 1 where both order alike, -1 where they order against each other; NaN where one does not order."""
    first, second = ranks(x), ranks(y)
    constant = len(set(first)) < 2 or len(set(second)) < 2
    return math.nan if constant else statistics.correlation(first, second)
