"""What every method is run with, and the libraries and operands that it runs on."""

import importlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from eval import machine
from eval.offline import stages
from eval.rivals.budget import gain
from eval.rivals.kept import Kept
from eval.rivals.meter import Call, Meter, Raced, Runner, race, time_trial
from eval.rivals.space import Space, kernels_library, space_of
from eval.suites import Case

Row = dict[str, Any]
T = TypeVar("T")
CONFIRMED, CONFIRM_ROUNDS, CONFIRM_SECONDS = 8, 3, 0.01
"""Shapes of an even sample, and how each program is timed where the outcomes of two budgets are compared."""


@dataclass(frozen=True)
class Setting:
    """How much a method may do, and how its outcome is measured."""

    threads: int = 2
    trials: int = 1024
    """Programs that a search may run at first; see `budget`."""
    rounds: int = 5
    seconds: float = 0.03
    """Of each turn of a call."""
    seed: int = 0
    library: str | None = None
    """A saved library of the plain product instead of vortex.compile()."""
    kept: Path | None = None
    """Where the outcome of offline stages is kept; None: in this process."""
    allow_busy: bool = False


@dataclass(frozen=True, eq=False)
class Bench:
    """One opened setting: Vortex's library and that of all micro-kernels."""

    setting: Setting
    runner: Runner
    kept: Kept = field(default_factory=Kept)

    def meter(self, trials: int) -> Meter:
        return Meter(self.runner, trials)

    def space(self, case: Case) -> Space:
        """Every micro-kernel that can read the case's B."""
        return _space(self, case.trans_b)

    def race(
        self, calls: Mapping[str, Call], rounds: int | None = None, seconds: float | None = None
    ) -> dict[str, Raced]:
        """By turns, as often and as long as the setting says where nothing else is asked for."""
        return race(calls, rounds or self.setting.rounds, seconds or self.setting.seconds)

    def gained(self, pairs: Iterable[Mapping[str, Call]]) -> float:
        """What the calls "twice" gain over those "once"; nothing where a pair is empty, being the same program."""
        seconds = []
        for calls in pairs:
            raced = self.race(calls, CONFIRM_ROUNDS, CONFIRM_SECONDS) if calls else {}
            seconds.append((raced["once"].seconds, raced["twice"].seconds) if raced else (1.0, 1.0))
        once, twice = zip(*seconds, strict=True)
        return gain(once, twice)

    def fastest(self, calls: Mapping[int, Call]) -> int:
        """Which of the calls takes least, each run as a trial is."""
        found: dict[int, float] = {}
        for at, call in calls.items():
            found[at] = time_trial(call, min(found.values(), default=None))
        return min(found, key=lambda at: found[at])

    def recall(self, name: str, make: Callable[[], Any]) -> Any:
        """The outcome of an offline stage in JSON: made once for this library, device, threads and seed.

        BusyError where other processes worked meanwhile: then it is made another time.
        """

        def watched() -> Any:
            meter = machine.LoadMeter()
            value = make()
            if (busy := machine.foreign_load(meter)) and not self.setting.allow_busy:
                raise machine.BusyError(busy)
            return value

        about = (machine.device(), self.runner.vortex.library.identity, self.setting.threads, self.setting.seed)
        return self.kept.recall(f"{name} on {about}", watched)

    def offline_seconds(self) -> float:
        """What compiling Vortex's library from nothing takes, all stages."""
        return sum(stages(self.runner.vortex).values())


@cache
def _space(bench: Bench, trans_b: bool) -> Space:
    return space_of(bench.runner.vortex, trans_b)


def opened(setting: Setting) -> Bench:
    """Loads or compiles both libraries; the second takes some twenty seconds the first time."""
    vortex: Any = importlib.import_module("vortex")
    vortex.set_num_threads(setting.threads)
    gemm = vortex.load(setting.library) if setting.library else vortex.compile("gemm", hw="native")
    kernels = kernels_library(gemm)
    return Bench(setting, Runner(gemm, kernels, setting.threads), Kept(setting.kept))


def even_sample(items: Sequence[T]) -> list[T]:
    """CONFIRMED of the items, evenly over all."""
    count = min(CONFIRMED, len(items))
    return [items[(2 * at + 1) * len(items) // (2 * count)] for at in range(count)]


def median_spread(rows: Sequence[Row]) -> float:
    return statistics.median(row["spread"] for row in rows)
