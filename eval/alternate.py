"""One case measured by all systems in turn: several rounds, the order rotated, idle workers stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from eval import machine
from eval.operator_cases import OperatorCase
from eval.process import WorkerError, WorkerProcess
from eval.records import Line
from eval.roofline import Limits, RooflineError, better, roofline_seconds, roofline_share
from eval.stats import Timing, summarize
from eval.suites import Case

T = TypeVar("T")
ATTEMPTS = 3
PAUSE_SECONDS = 5.0
# A neighbour's burst takes the cores for a second or two.
STOLEN_ATTEMPTS, STOLEN_PAUSE_SECONDS = 8, 0.5
# Rounds of one system further apart than this: all systems get further ones, up to as many again, unless operands would
# have to be made again for each.
RESTLESS = 0.3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: `rounds` turns of about `seconds` each, per system and mode."""

    rounds: int
    seconds: float
    modes: tuple[str, ...]
    timeout: float = 300.0


@dataclass(slots=True)
class Outcome:
    """What one system made of one case."""

    rounds: dict[str, list[Timing]] = field(default_factory=dict)
    error_share: float | None = None
    detail: str = ""
    error: WorkerError | None = None


@dataclass(slots=True)
class Run:
    """What stays the same over a run with one number of threads."""

    threads: int
    seed: int
    limits: Limits
    about: dict[str, Any]
    allow_busy: bool = False

    def refine_limits(self) -> None:
        """A system passed the roofline: the limits may have been measured in a bad moment."""
        self.limits = better(self.limits, machine.limits(self.threads))


def rotated(names: Sequence[T], turn: int) -> list[T]:
    at = turn % len(names) if names else 0
    return [*names[at:], *names[:at]]


def undisturbed(worker: WorkerProcess, mode: str, effort: Effort) -> Timing:
    """One round of one system; taken again, whoever's it is, while the host gives too much of the cores to others."""
    for number in range(STOLEN_ATTEMPTS):
        if number:
            time.sleep(STOLEN_PAUSE_SECONDS)
        timing = Timing(**worker.ask({"do": "measure", "mode": mode, "seconds": effort.seconds}, effort.timeout))
        if timing.stolen <= machine.LOAD_TOLERANCE:
            break
    return timing


def restless(outcomes: dict[str, Outcome]) -> bool:
    """Whether the rounds of some system lie so far apart that a burst of the host may have been among them."""
    of_systems = (rounds for outcome in outcomes.values() for rounds in outcome.rounds.items() if not outcome.error)
    return any(summarize(timings, mode).spread > RESTLESS for mode, timings in of_systems)


def measure(
    case: Case | OperatorCase, workers: dict[str, WorkerProcess], effort: Effort, run: Run, resident: bool
) -> dict[str, Outcome]:
    """All systems on one case. `resident`: every worker holds its operands at once; otherwise one worker at a time."""
    outcomes = {name: Outcome({mode: [] for mode in effort.modes}) for name in workers}

    def attempt(name: str, action: Callable[[WorkerProcess, Outcome], None]) -> None:
        outcome = outcomes[name]
        if outcome.error is None:
            try:
                action(workers[name], outcome)
            except WorkerError as error:
                outcome.error = error

    def prepare(worker: WorkerProcess, outcome: Outcome) -> None:
        answer = worker.ask({"do": "prepare", "case": asdict(case), "seed": run.seed}, effort.timeout)
        outcome.error_share, outcome.detail = answer["error_share"], answer["detail"]

    def drop(worker: WorkerProcess, outcome: Outcome) -> None:
        worker.ask({"do": "drop"}, effort.timeout)

    def turn(mode: str) -> Callable[[WorkerProcess, Outcome], None]:
        def action(worker: WorkerProcess, outcome: Outcome) -> None:
            outcome.rounds[mode].append(undisturbed(worker, mode, effort))

        return action

    names = list(workers)
    if resident:
        for name in names:
            attempt(name, prepare)
    for number in range(2 * effort.rounds):
        if number >= effort.rounds and not (resident and restless(outcomes)):
            break
        for name in rotated(names, number):
            if not resident:
                attempt(name, prepare)
            for mode in effort.modes:
                attempt(name, turn(mode))
            if not resident:
                attempt(name, drop)
    if resident:
        for name in names:
            attempt(name, drop)
    return outcomes


def measure_quiet(
    case: Case | OperatorCase, workers: dict[str, WorkerProcess], effort: Effort, run: Run, resident: bool
) -> tuple[dict[str, Outcome], str | None]:
    """Measures again while the machine is disturbed; gives up with BusyError, or says why where busy is allowed."""
    for number in range(ATTEMPTS):
        meter = machine.LoadMeter()
        before = machine.peak(run.threads)
        outcomes = measure(case, workers, effort, run, resident)
        after = machine.peak(run.threads)
        try:
            machine.check_peak(run.limits.peak_flops_per_s, before)
            machine.check_peak(run.limits.peak_flops_per_s, after)
            if (share := meter.foreign_share()) > machine.LOAD_TOLERANCE:
                raise machine.BusyError(f"other processes used {share:.0%} of the cores")
            return outcomes, None
        except machine.BusyError as error:
            if run.allow_busy:
                return outcomes, str(error)
            if number + 1 == ATTEMPTS:
                raise machine.BusyError(f"{case}: {error}, {ATTEMPTS} times in a row") from error
            time.sleep(PAUSE_SECONDS)
    raise AssertionError("unreachable")


def lines_of(
    case: Case | OperatorCase,
    outcomes: dict[str, Outcome],
    versions: dict[str, dict[str, str]],
    run: Run,
    busy: str | None,
) -> list[Line]:
    """One result line per system and mode, errors included."""
    lines = []
    for name, outcome in outcomes.items():
        for mode, rounds in outcome.rounds.items():
            line = blank(case, name, mode, run) | {"versions": versions.get(name, {}), "busy": busy}
            line |= {"error_share": outcome.error_share, "detail": outcome.detail}
            if outcome.error is not None:
                line |= {"error": str(outcome.error), "error_kind": outcome.error.kind}
            else:
                line |= _figures(case, mode, rounds, run)
            lines.append(line)
    return lines


def blank(case: Case | OperatorCase, system: str, mode: str, run: Run) -> Line:
    """What every line says, whatever came of the case."""
    about = {"kind": "bench", "system": system, "threads": run.threads, "mode": mode, "seed": run.seed, **run.about}
    now = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "limits": run.limits.to_json()}
    return asdict(case) | {"flops": case.flops, **about, **now, "seconds": None, "error": None, "error_kind": None}


def _figures(case: Case | OperatorCase, mode: str, rounds: list[Timing], run: Run) -> Line:
    summary = summarize(rounds, mode)
    figures: Line = asdict(summary) | {"gflops": case.flops / summary.seconds / 1e9}
    figures["rounds"] = [[timing.calls, timing.best, timing.median, round(timing.stolen, 3)] for timing in rounds]
    try:
        try:
            share = roofline_share(case, run.limits, mode, summary.best)
        except RooflineError:
            run.refine_limits()
            share = roofline_share(case, run.limits, mode, summary.best)
    except RooflineError as error:
        return {"error": str(error), "error_kind": "RooflineError", "rejected_seconds": summary.best}
    bound = roofline_seconds(case, run.limits, mode)
    # The share that is reported is that of the figure ratios are made of; the check above took the fastest call.
    return figures | {"roofline_seconds": bound, "roofline_share": min(share, bound / summary.seconds)}
