"""`python -m eval.oracle`: how much of the best strategy's performance the selector's choice reaches.

Every strategy is run on every shape, in turn, over several rounds: those of the library, or with --unpruned every one
that the sieve admits. The best is chosen on the even rounds and scored on the odd ones: the minimum of many noisy
timings would otherwise flatter the oracle. A strategy that does to a shape what another one does is not run again, and
each result must have the same bits as the first of its family, which is checked against float64. Of the library's own
strategies, Static1 fixes the register tile that was best most often, of those that serve every shape, and lets the cost
choose the rest; Static2 fixes the whole strategy (section 7.4 of the paper).
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eval import machine, plans, records
from eval.commands import command, ended, opened, rounds
from eval.operands import make_operands
from eval.races import race_all, runner
from eval.suites import MAIN_SUITES, Case, fresh_seed, load_suite, random_cases, sample

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


def try_all(libraries: Sequence[Any], case: Case, rounds: int, packed: bool = False) -> Tried:
    """Every plan of every library on one shape; the first library's selector is the one under test."""
    operands, shape = make_operands(case, seed=0), (case.m, case.n, case.k)
    runners = [runner(library, operands, packed) for library in libraries]
    first, *wider = runners
    own = {plans.label(plan): (first, plan) for plan in first.gemm.plans(*shape, **first.kind)}
    others = {plans.deed(plan, *shape): (how, plan) for how in wider for plan in how.gemm.plans(*shape, **how.kind)}
    for _, plan in own.values():
        others.pop(plans.deed(plan, *shape), None)
    by_label = own | {plans.label(plan): (how, plan) for how, plan in others.values()}
    ours = plans.label(first.gemm.plan(*shape, **first.kind))
    times = race_all(by_label, operands, rounds, ours)
    trials = [
        Trial(label, plans.strategy(plan), plans.level0(plan), float(plan.seconds), *times[label], label in own)
        for label, (_, plan) in by_label.items()
    ]
    best = best_of(trials).label

    def terms(label: str) -> dict[str, float]:
        how, plan = by_label[label]
        return plans.terms(how.gemm, plan, *shape, **how.kind)

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
    top.add_argument("--rounds", type=rounds, default=6, help="at least 2; half of them choose, half of them score")
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
    seed = fresh_seed() if options.seed is None else options.seed
    libraries = [opened(options.library, options.threads, options.allow_busy)]
    if options.unpruned:
        from eval.link_table import every_strategy, widened  # needs what compiling needs

        strategies = every_strategy(libraries[0], options.strategies)
        print(f"compiling a library of {len(strategies)} strategies", file=sys.stderr)
        libraries.append(widened(libraries[0], strategies))
    cases = choose_cases(options, seed)
    print(f"{len(cases)} shapes, {options.threads} thread(s), seed {seed}", file=sys.stderr)
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
    ended(main)
