"""Statistics of timings and speedups, and what a result line is compared by. Pure functions."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """One round of one system: seconds per call."""

    calls: int
    best: float
    median: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of one system on one case. `seconds` is the figure that ratios are made of."""

    seconds: float
    best: float
    median: float
    spread: float
    calls: int


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
