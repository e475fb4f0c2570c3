"""Figure 15: the selector's choice against the best strategy of each shape, and against choices that are fixed."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict

from matplotlib.figure import Figure

from eval import plots
from eval.compare import markdown
from eval.oracle import Trial, Tried, score_all, try_all
from eval.records import Line
from eval.reproduce.calls import product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.vendors import by_size
from eval.stats import geometric_estimate
from eval.suites import VORTEX_SUITES, Case, load_suite

ROUNDS, SMOKE_ROUNDS = 6, 2
STRATEGIES, SMOKE_STRATEGIES = 400, 40
"""An even sample of what the sieve admits: all of them would take minutes a shape."""
MOST_FLOPS = 4e9
KEPT = 12
"""Trials kept of strategies that the library does not have: the fastest."""
CHOICES = {"ours": "Vortex", "static1": "Static1", "static2": "Static2"}
PAPER = {"ours": 0.947, "static1": 0.607, "static2": 0.495}
"""Section 7.4 of the paper."""


def oracle_cases(options: Options) -> Sequence[Case]:
    """Table 3, but for the products whose hundreds of strategies would take hours."""
    cases = (case for suite in VORTEX_SUITES for case in load_suite(suite))
    return [c for c in by_size(cases, options) if isinstance(c, Case) and c.flops <= MOST_FLOPS]


def open_oracle(options: Options, stack: ExitStack) -> Measure:
    from eval.link_table import every_strategy, widened  # needs what compiling needs

    gemm = product(options)
    strategies = every_strategy(gemm, SMOKE_STRATEGIES if options.smoke else STRATEGIES)
    libraries = [gemm, widened(gemm, strategies)]

    def one(case: Case) -> list[Line]:
        def timed() -> list[Line]:
            tried = try_all(libraries, case, SMOKE_ROUNDS if options.smoke else ROUNDS)
            fastest = sorted(tried.trials, key=lambda trial: trial.even)
            others = [trial for trial in fastest if not trial.own]
            kept = [trial for trial in fastest if trial.own or trial in others[:KEPT]]
            row = asdict(case) | {"chosen": tried.chosen, "misled": tried.misled, "tried": len(tried.trials)}
            return [row | {"strategies": len(strategies), "trials": [asdict(trial) for trial in kept]}]

        return undisturbed(timed, options)

    return one


def scored(lines: Sequence[Line]) -> list[Line]:
    """Shares of the oracle at one number of threads, a line a shape; the static choices are made over all of them."""
    results = []
    for line in lines:
        for row in line["rows"]:
            fields = {name: row[name] for name in ("suite", "id", "m", "n", "k", "trans_a", "trans_b")}
            trials = [Trial(**trial) for trial in row["trials"]]
            results.append(Tried(Case(**fields), trials, row["chosen"], row["misled"]))
    return score_all(results)


def fig15(lines: Sequence[Line]) -> Page:
    blocks, losses, drawn = [], [], []
    for threads in sorted({line["threads"] for line in lines}):
        here = [line for line in lines if line["threads"] == threads]
        found = scored(here)
        tried = statistics.fmean(row["tried"] for line in here for row in line["rows"])
        rows = []
        for name, title in CHOICES.items():
            shares = [line[name] for line in found]
            low = sum(share < 0.85 for share in shares)
            figures = [f"{statistics.fmean(shares):.3f}", f"{geometric_estimate(shares)}", f"{min(shares):.3f}"]
            rows.append([title, f"{PAPER[name]:.3f}", *figures, str(low)])
        header = ("choice", "the paper", "mean", "geometric mean [95 %]", "worst", "shapes under 0.85")
        told = f"{len(found)} shapes; in the mean {tried:.0f} plans of a shape were run. The oracle is 1."
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", told, markdown(header, rows)]
        worst = sorted(found, key=lambda line: line["ours"])[:10]
        losses.append(f"The lowest shares of the oracle at {threads} thread(s):")
        losses.append(
            markdown(
                ("shape", "share", "chosen", "best", "term that misled"),
                [
                    [f"{w['m']}x{w['n']}x{w['k']}", f"{w['ours']:.3f}", w["chosen"], w["best"], w["misled"]]
                    for w in worst
                ],
            )
        )
        drawn = [line | {"threads": threads, "unpruned": True} for line in found]

    def draw(figure: Figure) -> None:
        plots.oracle(figure.subplots(), drawn)

    return Page(blocks, losses, draw)


FIG15 = Result(
    "fig15",
    "the choice against the oracle and against fixed choices",
    f"the oracle runs an even sample of about {STRATEGIES} of all strategies that the sieve admits (those of the "
    "library always among them) with every grid, and is chosen on one half of the timings and scored on the other, so "
    "that noise does not make it. Static1 fixes the register tile that was best most often and lets the cost choose "
    f"the rest, Static2 fixes the whole strategy. Products over {MOST_FLOPS / 1e9:g} GFLOP are left out.",
    oracle_cases,
    open_oracle,
    fig15,
    seconds=6.0,
    opening=40.0,
)
