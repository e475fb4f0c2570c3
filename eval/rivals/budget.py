"""A search's budget: doubled until that gains less than one per cent, and what a page may say of it. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from eval.stats import geometric_mean

ENOUGH = 0.01
"""A budget was enough if twice of it gains less than this share."""
MOST_DOUBLINGS, MOST_SECONDS = 4, 600.0
"""No budget is doubled more often, nor after a search that took longer."""

T = TypeVar("T")


@dataclass(frozen=True)
class Doubled(Generic[T]):
    """What a budget found, and what twice of it did."""

    once: T
    twice: T
    trials: int
    """Of `once`."""
    bounded: bool
    """Whether the bound ended the doubling; else it gained too little to go on."""


def until_enough(
    search: Callable[[int], T], gains: Callable[[T, T], float], seconds: Callable[[T], float], trials: int
) -> Doubled[T]:
    """Doubles a budget of so many trials while `gains`, the share that twice of it gains, is ENOUGH or more.

    `search` makes the outcome of a budget, `seconds` tells what one took. At the bound nothing is asked of `gains`.
    """
    once = search(trials)
    for doublings in range(MOST_DOUBLINGS + 1):
        twice = search(2 * trials)
        bounded = doublings == MOST_DOUBLINGS or seconds(twice) > MOST_SECONDS
        if bounded or gains(once, twice) < ENOUGH:
            break
        once, trials = twice, 2 * trials
    return Doubled(once, twice, trials, bounded)


def gain(once: Sequence[float], twice: Sequence[float]) -> float:
    """What the doubled budget gains: the geometric mean of seconds before over seconds after, less one."""
    return geometric_mean(a / b for a, b in zip(once, twice, strict=True)) - 1.0


def verdict(once: Sequence[float], twice: Sequence[float], spread: float, bounded: bool = False) -> str:
    """Whether a budget was enough, in words, from the seconds of every shape with it and with twice of it.

    `spread` is that of a timing. Shapes whose two seconds are equal ran the same program and were timed once: the mean
    is as uncertain as the others make it, spread sqrt(others) / shapes. What lies within that is undecided, and so is
    a loss of a per cent or more: trials are added to those that were there.
    """
    share = gain(once, twice)
    others = sum(a != b for a, b in zip(once, twice, strict=True))
    error = spread * math.sqrt(others) / len(once)
    told = f"twice the budget gains {share:+.2%}" + (f" (within {error:.1%})" if others else "")
    if share - error >= ENOUGH:
        bound = f"{MOST_DOUBLINGS} times, or a search of {MOST_SECONDS:.0f} s"
        end = f"; the bound on doubling was reached ({bound})" if bounded else ""
        return f"{told}: **the budget was too small**{end}"
    return f"{told}: enough" if share > -ENOUGH and share + error < ENOUGH else f"{told}: **undecided**"
