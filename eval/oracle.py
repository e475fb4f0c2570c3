"""`python -m eval.oracle`: how much of the best strategy's performance the selector's choice reaches.

Every strategy is run on every shape, in turn, over several rounds. The best is chosen on the even rounds and scored on
the odd ones: the minimum of many noisy timings would otherwise flatter the oracle. Static1 fixes the register tile that
was best most often and lets the cost choose the rest; Static2 fixes the whole strategy (section 7.4 of the paper).
"""

import argparse
import importlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, plans, records
from eval.operands import check, make_operands
from eval.suites import MAIN_SUITES, Case, fresh_seed, load_suite, random_cases, sample
from eval.worker import time_batch

# A strategy that was this much slower than the best in the first round is not the best: not run again.
HOPELESS = 1.5
SMALL_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Trial:
    """One plan on one shape: the fastest call on the even rounds and on the odd rounds."""

    label: str
    strategy: str
    level0: str
    predicted: float
    even: float
    odd: float


@dataclass(frozen=True, slots=True)
class Tried:
    """A shape, what was tried on it, and what the selector chose; `terms` are those of the predictions, by label."""

    case: Case
    trials: list[Trial]
    chosen: str
    terms: Callable[[str], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Scored:
    """Shares of the oracle's performance on the odd rounds."""

    ours: float
    static1: float
    static2: float
    chosen: str
    best: str


def time_plans(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """(even, odd) seconds of each call that stayed in the race; calls take turns, the order rotated."""
    times: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    alive = list(calls)
    for number in range(rounds):
        at = number % len(alive)
        for name in [*alive[at:], *alive[:at]]:
            call = calls[name]
            once = time_batch(call, 1)
            if once < SMALL_SECONDS:
                count = max(1, round(10e-6 / once))
                once = min(
                    time_batch(call, count) for _ in range(max(3, min(20, round(SMALL_SECONDS / (once * count)))))
                )
            times[name][number % 2].append(once)
        if number == 1:
            best = min(min(min(some) for some in times[name]) for name in alive)
            alive = [name for name in alive if min(min(some) for some in times[name]) < HOPELESS * best]
    return {name: (min(even), min(odd)) for name, (even, odd) in times.items()}


def most_often_best(trials: Sequence[Sequence[Trial]], attribute: str) -> str:
    """The most frequent value of `attribute` among each shape's best (even rounds); ties by name."""
    counts: Counter[str] = Counter(getattr(min(shape, key=lambda trial: trial.even), attribute) for shape in trials)
    return max(sorted(counts), key=lambda value: counts[value])


def score(trials: Sequence[Trial], chosen: str, fixed0: str, fixed: str) -> Scored:
    """All choices against the best of the even rounds, by their odd-round times."""
    best = min(trials, key=lambda trial: trial.even)
    slowest = max(trial.odd for trial in trials)

    def least_predicted(allowed: Sequence[Trial]) -> float:
        return min(allowed, key=lambda trial: trial.predicted).odd if allowed else slowest

    return Scored(
        ours=best.odd / next(trial.odd for trial in trials if trial.label == chosen),
        static1=best.odd / least_predicted([trial for trial in trials if trial.level0 == fixed0]),
        static2=best.odd / least_predicted([trial for trial in trials if trial.strategy == fixed]),
        chosen=chosen,
        best=best.label,
    )


def try_all(libraries: Sequence[Any], case: Case, rounds: int) -> Tried:
    """Every plan of every library on one shape; the first library's selector is the one under test."""
    operands = make_operands(case, seed=0)
    flags = {name: True for name, on in (("transpose_a", case.trans_a), ("transpose_b", case.trans_b)) if on}
    chosen = libraries[0].plan(case.m, case.n, case.k, **flags)
    found: dict[str, tuple[Any, Any]] = {plans.label(chosen): (libraries[0], chosen)}
    for library in libraries:
        for plan in library.plans(case.m, case.n, case.k, **flags):
            found.setdefault(plans.label(plan), (library, plan))
    calls = {}
    for label, (library, plan) in found.items():
        calls[label] = partial(library.run, plan, operands.a, operands.b, operands.out, **flags)
        operands.out.fill(np.nan)
        calls[label]()
        try:
            check(operands, operands.out)
        except ArithmeticError as error:
            raise ArithmeticError(f"{label}: {error}") from error
    times = time_plans(calls, rounds)
    trials = [
        Trial(label, plans.strategy(plan), plans.level0(plan), float(plan.seconds), *times[label])
        for label, (_, plan) in found.items()
    ]

    def terms(label: str) -> dict[str, float]:
        library, plan = found[label]
        given = getattr(library, "cost_terms", None)
        return dict(given(plan, case.m, case.n, case.k, **flags)) if given else {}

    return Tried(case, trials, plans.label(chosen), terms)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.oracle", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", nargs="+", default=[*MAIN_SUITES, "random"])
    parser.add_argument("--sample", type=int, default=100, help="shapes, every suite represented")
    parser.add_argument("--max-flops", type=float, default=2e9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--library", help="a saved library instead of vortex.compile()")
    parser.add_argument("--unpruned", help="a saved library with every strategy of the link table, to widen the oracle")
    parser.add_argument("--max-seconds", type=float, default=900.0)
    parser.add_argument("--out", type=Path, default=Path("results/oracle.jsonl"))
    parser.add_argument("--allow-busy", action="store_true")
    options = parser.parse_args(arguments)
    vortex: Any = importlib.import_module("vortex")
    seed = fresh_seed() if options.seed is None else options.seed
    vortex.set_num_threads(options.threads)
    libraries = [vortex.load(options.library) if options.library else vortex.compile("gemm", hw="native")]
    if options.unpruned:
        libraries.append(vortex.load(options.unpruned))
    cases: list[Case] = []
    for suite in options.suite:
        cases += random_cases(300, seed) if suite == "random" else load_suite(suite)
    cases = sample([case for case in cases if case.flops <= options.max_flops], options.sample, seed)
    print(f"{len(cases)} shapes, {options.threads} thread(s), seed {seed}", file=sys.stderr)
    if not options.allow_busy:
        machine.check_idle()
    before, end = machine.peak(options.threads), time.monotonic() + options.max_seconds
    results: list[Tried] = []
    for case in cases:
        if time.monotonic() > end:
            print(f"out of time after {len(results)} of {len(cases)} shapes", file=sys.stderr)
            break
        results.append(try_all(libraries, case, options.rounds))
    if not options.allow_busy:
        machine.check_peak(before, machine.peak(options.threads))
    lines = score_all(results)
    about = {
        "kind": "oracle",
        "threads": options.threads,
        "seed": seed,
        "commit": machine.commit(),
        "device": machine.device(),
    }
    about |= {
        "strategies": statistics.fmean(len(tried.trials) for tried in results),
        "unpruned": bool(options.unpruned),
    }
    records.append(options.out, [about | line for line in lines])
    from eval.report import oracle_section

    print("\n\n".join(oracle_section([about | line for line in lines])))
    return 0


def score_all(results: Sequence[Tried]) -> list[dict[str, Any]]:
    """One line a shape; the static choices need all shapes first."""
    every = [tried.trials for tried in results]
    fixed0, fixed = most_often_best(every, "level0"), most_often_best(every, "strategy")
    lines = []
    for tried in results:
        scored = score(tried.trials, tried.chosen, fixed0, fixed)
        misled = plans.misleading_term(tried.terms(scored.chosen), tried.terms(scored.best))
        trials = [asdict(trial) for trial in tried.trials]
        lines.append(asdict(tried.case) | asdict(scored) | {"misled": misled, "trials": trials})
    return lines


if __name__ == "__main__":
    try:
        sys.exit(main())
    except machine.BusyError as error:
        sys.exit(f"error: the machine is busy: {error}")
