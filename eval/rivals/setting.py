"""What every method is run with, and the libraries and operands that it runs on."""

import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from eval import machine
from eval.rivals.kept import Kept
from eval.rivals.meter import Call, Meter, Raced, Runner, race, time_trial
from eval.rivals.space import Space, kernels_library, space_of
from eval.stats import geometric_mean
from eval.suites import Case

Row = dict[str, Any]
ENOUGH = 0.01
"""A budget was enough if twice of it gains less than this share."""


@dataclass(frozen=True)
class Setting:
    """How much a method may do, and how its outcome is measured."""

    threads: int = 2
    trials: int = 1024
    """Programs that a search may run at first; see `searched`."""
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
        """What compiling Vortex's library took, all stages."""
        return float(sum(self.runner.vortex.manifest.offline_seconds.values()))


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


def gain(once: Sequence[float], twice: Sequence[float]) -> float:
    """What the doubled budget gains: the geometric mean of seconds before over seconds after, less one."""
    return geometric_mean(a / b for a, b in zip(once, twice, strict=True)) - 1.0


def verdict(share: float) -> str:
    """Whether a budget was enough, in words."""
    told = f"twice the budget gains {share:+.2%}"
    return f"{told}: enough" if share < ENOUGH else f"{told}: **the budget was too small**"


def median_spread(rows: Sequence[Row]) -> float:
    return statistics.median(row["spread"] for row in rows)
