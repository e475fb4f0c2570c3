"""`python -m eval.model`: the cost model against measurements, plan by plan.

Every plan of the library is run on shapes of the suites and random ones. Reported are the error of `predict` for the
chosen plan, in shares of the peak (a prediction is scaled by the peak of the run over that of the library's profile:
clocks drift), the rank correlation within a shape over plans more than 5 % apart, and the terms: the relative error of
each plan is charged to its terms by their share of the prediction, and a ridge regression tells by which factor each
term would fit best. Calls of fewer flops than 10 million are told apart.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, plans, races, records, replay
from eval.commands import command, ended, lines_file, opened, rounds
from eval.compare import markdown
from eval.records import Line
from eval.stats import bootstrap, rank_correlation, weighted_mean
from eval.suites import MAIN_SUITES, Case, load_suite, random_cases, sample

APART = 1.05
"""Plans count as different if they take this many times as long."""
LARGE = 1e7
"""Flops from which a call is large."""
RIDGE = 0.002
"""Pull of the fitted factors towards 1, as a share of the plans."""
SIZE = (13.0, 5.5)
"""Of the scatter plots, in inches."""
NEAR = 3.0
"""Plans this many times slower than the best were run once only: left out of errors, kept in ranks."""


def choose_cases(options: argparse.Namespace) -> list[Case]:
    """Half of the shapes from the suites, half random; the layout of B goes round."""
    count = options.samples // 2
    stored = [case for name in MAIN_SUITES for case in load_suite(name) if case.flops <= options.max_flops]
    chosen = sample(stored, count, options.seed)
    drawn = random_cases(options.samples - count, options.seed, max_flops=options.max_flops)
    cases = [*chosen, *(replace(case, trans_b=bool(place % 2)) for place, case in enumerate(drawn))]
    random.Random(options.seed).shuffle(cases)
    return cases


def relative_error(line: Line, entry: Line, profiled: float) -> float:
    """(predicted - measured) / measured seconds, the prediction at the clock of the run."""
    return float(entry["predicted"] * profiled / line["peak"] / races.seconds(entry) - 1)


def spread_out(line: Line) -> list[Line]:
    """Plans of a shape such that each is more than 5 % slower than the one before."""
    kept: list[Line] = []
    for entry in sorted(line["plans"], key=races.seconds):
        if not kept or races.seconds(entry) > APART * races.seconds(kept[-1]):
            kept.append(entry)
    return kept


def correlations(lines: Sequence[Line]) -> list[float]:
    """Of every shape with at least four plans that are apart."""
    found = []
    for line in lines:
        kept = spread_out(line)
        if len(kept) >= 4:
            found.append(rank_correlation([races.seconds(e) for e in kept], [e["predicted"] for e in kept]))
    return [value for value in found if not math.isnan(value)]


def raced(line: Line) -> list[Line]:
    """The plans that were near enough to the best to be timed in earnest."""
    best = min(races.seconds(entry) for entry in line["plans"])
    return [entry for entry in line["plans"] if races.seconds(entry) <= NEAR * best]


def term_rows(lines: Sequence[Line], profiled: float) -> list[list[str]]:
    """For each term: share of the predicted seconds, error charged to it, signed error, the factor that fits best."""
    pairs = [(line, entry) for line in lines for entry in raced(line)]
    names = sorted({name for _, entry in pairs for name in entry["terms"]})
    totals = np.array([sum(entry["terms"].values()) for _, entry in pairs])
    seconds = np.array([[entry["terms"].get(name, 0.0) for name in names] for _, entry in pairs])
    errors = np.array([relative_error(line, entry, profiled) for line, entry in pairs])
    measured = np.array([races.seconds(entry) * line["peak"] / profiled for line, entry in pairs])
    part = seconds / totals[:, None]
    scaled = seconds / measured[:, None]
    pull = RIDGE * len(pairs)
    factors = np.linalg.solve(scaled.T @ scaled + pull * np.eye(len(names)), scaled.T @ np.ones(len(pairs)) + pull)
    rows = []
    for place, name in enumerate(names):
        weight = part[:, place]
        held = max(float(weight.sum()), 1e-12)
        charged, signed = float((weight * np.abs(errors)).sum() / held), float((weight * errors).sum() / held)
        rows.append([name, f"{weight.mean():.1%}", f"{charged:.1%}", f"{signed:+.1%}", f"{factors[place]:.2f}"])
    return sorted(rows, key=lambda row: -float(row[1].rstrip("%")))


def summary(lines: Sequence[Line], profiled: float) -> str:
    """All tables."""
    groups = {"all": list(lines)}
    for layout in races.LAYOUTS:
        groups[f"{layout} B"] = [line for line in lines if line["layout"] == layout]
    rows = []
    for name, here in groups.items():
        if not here:
            continue
        errors = [(line["flops"], abs(relative_error(line, races.chosen_of(line), profiled))) for line in here]
        large, small = ([e for flops, e in errors if (flops > LARGE) == side] for side in (True, False))
        ranks, shares = correlations(here), [float(races.share(line)) for line in here]
        rows.append(
            [
                name,
                str(len(here)),
                f"{statistics.median(large):.1%} ({len(large)})" if large else "-",
                f"{statistics.median(small):.1%} ({len(small)})" if small else "-",
                f"{statistics.median(ranks):.2f} ({len(ranks)})" if ranks else "-",
                str(bootstrap(weighted_mean, shares, [1.0] * len(shares))),
                f"{min(shares):.3f}",
                str(sum(value < 0.85 for value in shares)),
            ]
        )
    head = (
        "shapes",
        "number",
        "error over 10 MFLOP",
        "error below",
        "rank correlation",
        "choice over best",
        "worst",
        "< 0.85",
    )
    texts = [
        "Median absolute errors of `predict`, medians of rank correlations; in brackets how many shapes.",
        markdown(head, rows),
        *races.unsteady(lines),
    ]
    terms = ("term", "share of the prediction", "error charged", "signed (+: too slow)", "factor that fits best")
    texts += ["Terms, over all plans within 3 times the best:", markdown(terms, term_rows(lines, profiled))]
    return "\n\n".join(
        [*texts, "Worst predictions of a chosen plan, and the term that speaks:", worst_errors(lines, profiled)]
    )


def with_total(entry: Line) -> dict[str, float]:
    return dict(entry["terms"]) | {"total": float(entry["predicted"])}


def worst_errors(lines: Sequence[Line], profiled: float, count: int = 12) -> str:
    """The shapes whose chosen plan is predicted worst, each with its largest term."""
    found = sorted(lines, key=lambda line: -abs(math.log1p(relative_error(line, races.chosen_of(line), profiled))))
    rows = []
    for line in found[:count]:
        entry = races.chosen_of(line)
        best = min(line["plans"], key=lambda other: other["even"])
        largest = max(entry["terms"], key=lambda name: entry["terms"][name])
        rows.append(
            [
                f"{line['m']}x{line['n']}x{line['k']} {line['layout']}",
                f"{1e6 * races.seconds(entry):.1f}",
                f"{1e6 * entry['predicted']:.1f}",
                f"{largest} {entry['terms'][largest] / sum(entry['terms'].values()):.0%}",
                entry["label"],
                plans.misleading_term(with_total(entry), with_total(best)) if best is not entry else "-",
            ]
        )
    return markdown(("shape", "measured us", "predicted us", "largest term", "plan", "against the best plan"), rows)


def scatter(lines: Sequence[Line], profiled: float, figure: Any) -> None:
    """Predicted over measured seconds of every plan, chosen ones on top, and the relative error over the flops."""
    left, right = figure.subplots(1, 2)
    for layout, colour in zip(races.LAYOUTS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
        here = [line for line in lines if line["layout"] == layout]
        points = [(races.seconds(e), e["predicted"] * profiled / line["peak"]) for line in here for e in raced(line)]
        chosen = [(line["flops"], relative_error(line, races.chosen_of(line), profiled)) for line in here]
        left.scatter([x for x, _ in points], [y for _, y in points], s=4, alpha=0.4, color=colour, label=f"{layout} B")
        right.scatter([x for x, _ in chosen], [1 + y for _, y in chosen], s=10, alpha=0.7, color=colour)
    ends = [min(left.get_xlim()[0], 1e-7), left.get_xlim()[1]]
    left.plot(ends, ends, color="gray", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="measured s", ylabel="predicted s", title="every plan")
    right.set(xscale="log", yscale="log", xlabel="flops", ylabel="predicted / measured", title="chosen plans")
    right.axhline(1.0, color="gray", linewidth=1)
    right.axvline(LARGE, color="gray", linewidth=1, linestyle=":")
    left.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--samples", type=int, default=300, help="shapes, half of them from the suites")
    top.add_argument("--threads", type=int, default=1, help="threads of a call")
    top.add_argument("--max-flops", type=float, default=1e9, help="leave out shapes above this")
    top.add_argument("--rounds", type=rounds, default=races.ROUNDS, help="of all plans of a shape, at least 2")
    top.add_argument("--seed", type=int, default=0, help="of the sample")
    top.add_argument("--minutes", type=float, default=10.0, help="begin no shape after this long; repeat to go on")
    top.add_argument("--library", help="a saved library instead of vortex.compile()")
    top.add_argument(
        "--out", type=lines_file, default=Path("results/model.jsonl"), help="lines are added; done ones are kept"
    )
    top.add_argument("--record", type=Path, metavar="FILE", help="write the races for `eval.replay`")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def measured(gemm: Any, options: argparse.Namespace) -> list[Line]:
    """Measures what the result file lacks, as far as the time goes; all lines of this library and these options."""
    known = records.reopened(options.out)
    about = {
        "library": gemm.library.identity,
        "commit": machine.commit(),
        "device": machine.device(),
        "seed": options.seed,
    }
    same = {"kind": "race", "threads": options.threads, "library": about["library"], "seed": options.seed}
    done = {(line["id"], line["layout"]): line for line in known if line.items() >= same.items()}
    end = time.monotonic() + 60 * options.minutes
    cases = choose_cases(options)
    asked = []
    for number, case in enumerate(cases, 1):
        packed = number % 3 == 0
        layout = races.layout_of(case, packed)
        asked.append((case.id, layout))
        if asked[-1] in done:
            continue
        if time.monotonic() > end:
            print(f"out of time after {number - 1} of {len(cases)}; the same command goes on", file=sys.stderr)
            break
        try:
            line = races.race(gemm, case, options.threads, packed, options.rounds, allow_busy=options.allow_busy)
        except machine.BusyError as error:
            print(f"left for another time: {error}", file=sys.stderr)
            continue
        line |= about | {"layout": layout}
        records.append(options.out, [line])
        done[asked[-1]] = line
        print(f"[{number}/{len(cases)}] {case} {layout}: {races.share(line):.3f}", file=sys.stderr)
    return [done[at] for at in asked if at in done]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    gemm = opened(options.library, options.threads, options.allow_busy)
    lines = measured(gemm, options)
    if not lines:
        parser().error("nothing was measured: --samples is 0, or --minutes is too short")
    profiled = replay.profiled_peak({"profile": gemm.manifest.profile, "lanes": gemm.manifest.lanes})
    if options.record:
        command = f"python -m eval.model --samples {options.samples} --max-flops {options.max_flops:g}"
        command += f" --threads {options.threads} --rounds {options.rounds} --seed {options.seed} --record FILE"
        about = {"device": machine.device(), "commit": lines[0]["commit"], "command": command}
        about |= {"date": gemm.manifest.profile["date"]}
        replay.record(gemm, lines, about, options.record)
    text = summary(lines, profiled)
    print(text)
    options.out.with_suffix(".md").write_text(f"# The cost model against measurements\n\n{text}\n")
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    scatter(lines, profiled, figure)
    figure.savefig(options.out.with_suffix(".png"), dpi=110)
    return 0


if __name__ == "__main__":
    ended(main)
