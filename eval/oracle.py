"""`python -m eval.oracle`: how much of the best strategy's performance the selector's choice reaches.

Every strategy is run on every shape, in turn, over several rounds: those of the library, or with --unpruned every one
that the sieve admits. The best is chosen on the even rounds and scored on the odd ones: the minimum of many noisy
timings would otherwise flatter the oracle. A strategy that does to a shape what another one does is not run again, and
each result must have the same bits as the first of its family, which is checked against float64. Of the library's own
strategies, Static1 fixes the register tile that was best most often, of those that serve every shape, and lets the cost
choose the rest; Static2 fixes the whole strategy (section 7.4 of the paper).
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
from eval.commands import command
from eval.operands import Operands, WrongResultError, check, make_operands
from eval.suites import MAIN_SUITES, Case, fresh_seed, load_suite, random_cases, sample
from eval.worker import time_batch

# Who was this much slower than the best when checked is not the best: not timed.
HOPELESS = 3.0
# The same after one, two, three ... even rounds: not run again.
SLOWER = (1.5, 1.25, 1.1)
SMALL_SECONDS = 1e-3
FIRST_SECONDS = 1e-4  # in the first round, which only sorts out
KEPT_TRIALS = 50


@dataclass(frozen=True, slots=True)
class Trial:
    """One plan on one shape: the fastest call on the even rounds and on the odd rounds."""

    label: str
    strategy: str
    level0: str
    predicted: float
    even: float
    odd: float
    own: bool = True
    """Whether the library under test has it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A shape, what was tried on it, what the selector chose, and the cost term that spoke most against the best."""

    case: Case
    trials: list[Trial]
    chosen: str
    misled: str


@dataclass(frozen=True, slots=True)
class Scored:
    """Shares of the oracle's performance on the odd rounds."""

    ours: float
    static1: float
    static2: float
    chosen: str
    best: str


def best_of(trials: Sequence[Trial]) -> Trial:
    """By the even rounds alone; the first of equals."""
    return min(trials, key=lambda trial: trial.even)


def time_plans(
    calls: Mapping[str, Callable[[], Any]], rounds: int, kept: str | None = None
) -> dict[str, tuple[float, float]]:
    """(even, odd) seconds of each call that stayed in the race; calls take turns, the order rotated.

    `kept` runs in every round. The odd rounds have no say in who stays: they are what is scored. Who left before the
    first of them has its even time twice.
    """
    times: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    alive = list(calls)
    for number in range(rounds):
        at = number * len(alive) // rounds
        for name in [*alive[at:], *alive[:at]]:
            call = calls[name]
            once = time_batch(call, 1)
            most = SMALL_SECONDS if number else FIRST_SECONDS
            if once < most:
                count = max(1, round(10e-6 / once))
                once = min(time_batch(call, count) for _ in range(max(3, min(20, round(most / (once * count))))))
            times[name][number % 2].append(once)
        if number % 2 == 0:
            even = {name: min(times[name][0]) for name in alive}
            limit = SLOWER[min(number // 2, len(SLOWER) - 1)] * min(even.values())
            alive = [name for name in alive if name == kept or even[name] <= limit]
    return {name: (min(even), min(odd or even)) for name, (even, odd) in times.items()}


def most_often_best(trials: Sequence[Sequence[Trial]], attribute: str) -> str:
    """The value of `attribute` that serves most shapes; of such, the most frequent among the library's best."""
    own = [[trial for trial in shape if trial.own] for shape in trials]
    served = Counter(value for shape in own for value in {str(getattr(trial, attribute)) for trial in shape})
    best = Counter(str(getattr(best_of(shape), attribute)) for shape in own)
    return max(sorted(served), key=lambda value: (served[value], best[value]))


def score(trials: Sequence[Trial], chosen: str, fixed0: str, fixed: str) -> Scored:
    """All choices against the best of the even rounds, by their odd-round times."""
    best, own = best_of(trials), [trial for trial in trials if trial.own]
    slowest = max(trial.odd for trial in own)

    def least_predicted(allowed: Sequence[Trial]) -> float:
        return min(allowed, key=lambda trial: trial.predicted).odd if allowed else slowest

    return Scored(
        ours=best.odd / next(trial.odd for trial in trials if trial.label == chosen),
        static1=best.odd / least_predicted([trial for trial in own if trial.level0 == fixed0]),
        static2=best.odd / least_predicted([trial for trial in own if trial.strategy == fixed]),
        chosen=chosen,
        best=best.label,
    )


def check_all(
    calls: Mapping[str, Callable[[], Any]], families: Mapping[str, bool | str], operands: Operands
) -> dict[str, float]:
    """Checks the first of a family against float64 and all others against the first, bit by bit; seconds of each."""
    firsts: dict[bool | str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for label, call in calls.items():
        operands.out.fill(np.nan)
        seconds[label] = time_batch(call, 1)
        if seconds[label] < FIRST_SECONDS:
            seconds[label] = min(time_batch(call, 1) for _ in range(3))
        first = firsts.get(families[label])
        if first is None:
            check(operands, operands.out)
            firsts[families[label]] = operands.out.copy()
        elif not np.array_equal(first, operands.out):
            raise WrongResultError(f"{operands.case}: {label} gives other bits than the first strategy of its family")
    return seconds


def try_all(libraries: Sequence[Any], case: Case, rounds: int, packed: bool = False) -> Tried:
    """Every plan of every library on one shape; the first library's selector is the one under test."""
    (first, *wider), operands = libraries, make_operands(case, seed=0)
    shape, b = (case.m, case.n, case.k), operands.b
    flags = {"transpose_a": True} if case.trans_a else {}
    kind: dict[str, Any] = {"transpose_b": True} if case.trans_b else {}
    given = flags | kind
    if packed:
        b, given = first.pack(b, transpose=case.trans_b), flags
        # Few columns are packed as a matrix: as the transpose, or with rows that begin on cache lines.
        kind = {"transpose_b": True} if b.transposed else {"ldb": b.data.strides[0] // b.data.itemsize}
        if b.data.ndim == 1:
            kind = {"packed": True}
    own = {plans.label(plan): (first, plan) for plan in first.plans(*shape, **flags, **kind)}
    others = {
        plans.deed(plan, *shape): (library, plan)
        for library in wider
        for plan in library.plans(*shape, **flags, **kind)
    }
    for _, plan in own.values():
        others.pop(plans.deed(plan, *shape), None)
    by_label = own | {plans.label(plan): (library, plan) for library, plan in others.values()}
    calls = {
        label: partial(library.run, plan, operands.a, b, operands.out, **given)
        for label, (library, plan) in by_label.items()
    }
    ours = plans.label(first.plan(*shape, **flags, **kind))
    seconds = check_all(calls, {label: plans.family(plan) for label, (_, plan) in by_label.items()}, operands)
    limit = HOPELESS * min(seconds.values())
    racing = {label: call for label, call in calls.items() if seconds[label] <= limit or label == ours}
    times = {label: (once, once) for label, once in seconds.items()} | time_plans(racing, rounds, ours)
    trials = [
        Trial(label, plans.strategy(plan), plans.level0(plan), float(plan.seconds), *times[label], label in own)
        for label, (_, plan) in by_label.items()
    ]
    best = best_of(trials).label

    def terms(label: str) -> dict[str, float]:
        library, plan = by_label[label]
        return plans.terms(library, plan, case.m, case.n, case.k, **flags, **kind)

    return Tried(case, trials, ours, plans.misleading_term(terms(ours), terms(best)) if best != ours else "-")


def choose_cases(options: argparse.Namespace, seed: int) -> list[Case]:
    cases: list[Case] = []
    for suite in options.suite:
        cases += random_cases(300, seed) if suite == "random" else load_suite(suite)
    return sample([case for case in cases if case.flops <= options.max_flops], options.sample, seed)


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--suite", nargs="+", default=[*MAIN_SUITES, "random"], help="stored suites, or `random`")
    top.add_argument("--sample", type=int, default=100, help="shapes, every suite represented")
    top.add_argument("--max-flops", type=float, default=2e9, help="leave out shapes above this")
    top.add_argument("--packed", action="store_true", help="B packed before the calls")
    top.add_argument("--threads", type=int, default=1, help="threads of a call")
    top.add_argument("--rounds", type=int, default=6, help="at least 2; half of them choose, half of them score")
    top.add_argument("--seed", type=int, help="of the sample and the random shapes (default: fresh)")
    top.add_argument("--library", help="a saved library instead of vortex.compile()")
    top.add_argument(
        "--unpruned",
        action="store_true",
        help="run every strategy that the sieve admits (compiles for some 20 seconds)",
    )
    top.add_argument(
        "--strategies", type=int, metavar="N", help="with --unpruned: only an even sample of about so many of them"
    )
    top.add_argument("--max-seconds", type=float, default=900.0, help="begin no shape after this long")
    top.add_argument("--out", type=Path, default=Path("results/oracle.jsonl"), help="lines are added to it")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.rounds < 2:
        parser().error("--rounds: at least 2, one to choose the best and one to score it")
    vortex: Any = importlib.import_module("vortex")
    seed = fresh_seed() if options.seed is None else options.seed
    vortex.set_num_threads(options.threads)
    libraries = [vortex.load(options.library) if options.library else vortex.compile("gemm", hw="native")]
    if options.unpruned:
        from eval.link_table import every_strategy, widened  # needs what compiling needs

        strategies = every_strategy(libraries[0], options.strategies)
        print(f"compiling a library of {len(strategies)} strategies", file=sys.stderr)
        libraries.append(widened(libraries[0], strategies))
    cases = choose_cases(options, seed)
    print(f"{len(cases)} shapes, {options.threads} thread(s), seed {seed}", file=sys.stderr)
    if not options.allow_busy:
        machine.check_idle()
    before, end = machine.peak(options.threads), time.monotonic() + options.max_seconds
    results: list[Tried] = []
    for case in cases:
        if time.monotonic() > end:
            print(f"out of time after {len(results)} of {len(cases)} shapes", file=sys.stderr)
            break
        tried = try_all(libraries, case, options.rounds, options.packed)
        print(f"[{len(results) + 1}/{len(cases)}] {case}: {len(tried.trials)} plans", file=sys.stderr)
        results.append(tried)
    if not results:
        parser().error("no shape was measured: none is below --max-flops, or --max-seconds is too short")
    if not options.allow_busy:
        machine.check_peak(before, machine.peak(options.threads))
    about = {"kind": "oracle", "threads": options.threads, "seed": seed, "packed": options.packed}
    about |= {"commit": machine.commit(), "device": machine.device()}
    about |= {
        "strategies": len(libraries[-1].strategies),
        "plans": statistics.fmean(len(tried.trials) for tried in results),
        "unpruned": options.unpruned,
        "sampled": options.strategies is not None,
    }
    lines = [about | line for line in score_all(results)]
    records.append(options.out, lines)
    from eval.report import oracle_section

    print("\n\n".join(oracle_section(lines)))
    return 0


def score_all(results: Sequence[Tried]) -> list[dict[str, Any]]:
    """One line a shape; the static choices need all shapes first."""
    every = [tried.trials for tried in results]
    fixed0, fixed = most_often_best(every, "level0"), most_often_best(every, "strategy")
    lines = []
    for tried in results:
        scored = score(tried.trials, tried.chosen, fixed0, fixed)
        fastest = sorted(tried.trials, key=lambda trial: trial.even)
        kept = fastest[:KEPT_TRIALS] + [trial for trial in fastest[KEPT_TRIALS:] if trial.label == tried.chosen]
        lines.append(
            asdict(tried.case)
            | asdict(scored)
            | {"misled": tried.misled, "tried": len(tried.trials), "trials": [asdict(trial) for trial in kept]}
        )
    return lines


if __name__ == "__main__":
    try:
        sys.exit(main())
    except machine.BusyError as error:
        sys.exit(f"error: the machine is busy: {error}")
