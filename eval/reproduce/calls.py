"""Calls of one library timed in turn in this process, and whether the machine was quiet meanwhile."""

import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from eval import machine
from eval.alternate import ATTEMPTS, PAUSE_SECONDS, rotated
from eval.records import Line
from eval.reproduce.result import Options
from eval.stats import Timing, summarize
from eval.vortex_systems import load_gemm
from eval.worker import measure_warm

K = TypeVar("K", bound=Hashable)
ROUNDS, SMOKE_ROUNDS = 3, 2
SECONDS, SMOKE_SECONDS = 0.05, 0.01


def product(options: Options) -> Any:
    """The library of plain products, with the threads of the run."""
    if options.library:
        os.environ["VORTEX_EVAL_LIBRARY"] = options.library
    return load_gemm(options.threads)


def in_turn(calls: Mapping[K, Callable[[], Any]], options: Options) -> dict[K, Line]:
    """Figures of each call: seconds (median over rounds of each round's fastest), spread, and so on.

    The calls take turns, the order rotated; each was called before.
    """
    rounds, seconds = (SMOKE_ROUNDS, SMOKE_SECONDS) if options.smoke else (ROUNDS, SECONDS)
    found: dict[K, list[Timing]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in rotated(list(calls), number):
            found[name].append(measure_warm(calls[name], seconds))
    return {name: asdict(summarize(timings, "warm")) for name, timings in found.items()}


def undisturbed(action: Callable[[], list[Line]], options: Options) -> list[Line]:
    """The rows of `action`, repeated while the machine is busy, then BusyError, or rows that say so where it may be."""
    for number in range(ATTEMPTS):
        meter, before = machine.LoadMeter(), machine.peak(options.threads)
        rows = action()
        busy = machine.disturbance(before, options.threads, meter)
        if busy is None or options.allow_busy:
            return [row | {"busy": busy} for row in rows]
        if number + 1 == ATTEMPTS:
            raise machine.BusyError(busy)
        time.sleep(PAUSE_SECONDS)
    raise AssertionError("unreachable")
