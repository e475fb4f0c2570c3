"""The cost model against measurements, plan by plan: how far off predictions are, and what the choice loses by it."""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from matplotlib.figure import Figure

from eval import machine, model, races, regret, replay
from eval.alternate import Run
from eval.bench import start_workers
from eval.compare import markdown
from eval.records import Line
from eval.reproduce.calls import product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.roofline import Limits
from eval.suites import Case

SLOWER, SHOWN = 0.95, 12
"""Performance relative to the quickest vendor from which a shape is no loss, and how many losses a page lists."""
SMOKE_SAMPLES, SMOKE_FLOPS, SMOKE_ROUNDS = 6, 2e7, 2
LOW = 0.85
"""Performance of a choice, relative to the best plan, below which no case is to be."""


@dataclass(frozen=True, slots=True)
class Raced:
    """All plans of a product, with B as it lies or packed."""

    id: str
    case: Case
    packed: bool

    def __str__(self) -> str:
        return self.id


def raced(options: Options) -> list[Raced]:
    """The shapes of `eval.model`, the layout of B going round; a smoke run has a few small ones."""
    few = ["--samples", str(SMOKE_SAMPLES), "--max-flops", str(SMOKE_FLOPS)] if options.smoke else []
    cases = model.choose_cases(model.parser().parse_args([*few, "--seed", str(options.seed)]))
    found = []
    for number, case in enumerate(cases, 1):
        packed = number % 3 == 0
        found.append(Raced(f"{case.id} {races.layout_of(case, packed)}", case, packed))
    return found


def open_races(options: Options, stack: ExitStack) -> Measure:
    gemm, rounds = product(options), SMOKE_ROUNDS if options.smoke else races.ROUNDS
    profiled = replay.profiled_peak({"profile": gemm.manifest.profile, "lanes": gemm.manifest.lanes})

    def one(at: Raced) -> list[Line]:
        line = races.race(gemm, at.case, options.threads, at.packed, rounds, allow_busy=options.allow_busy)
        return [line | {"layout": races.layout_of(at.case, at.packed), "profiled": profiled}]

    return lambda case: undisturbed(lambda: one(case), options)


def fit(lines: Sequence[Line]) -> Page:
    """The tables and the scatter plot of `eval.model`; peaks are relative to that of each library's profile."""
    blocks, losses = [], []
    rows = [row | {"peak": row["peak"] / row["profiled"]} for line in lines for row in line["rows"]]
    for threads in sorted({row["threads"] for row in rows}):
        here = [row for row in rows if row["threads"] == threads]
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", model.summary(here, 1.0)]
        low = sorted((row for row in here if races.share(row) < LOW), key=races.share)
        if low:
            cells = [
                [
                    f"{row['m']}x{row['n']}x{row['k']} {row['layout']}",
                    f"{races.share(row):.3f}",
                    row["chosen"],
                    min(row["plans"], key=lambda entry: float(entry["even"]))["label"],
                ]
                for row in low
            ]
            losses.append(f"At {threads} thread(s) {len(low)} of {len(here)} choices are below {LOW} of the best plan:")
            losses.append(markdown(("shape", "choice over best", "chosen", "best"), cells))

    def draw(figure: Figure) -> None:
        figure.set_size_inches(model.SIZE)
        model.scatter(rows, 1.0, figure)

    return Page(blocks, losses, draw)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the domain of shapes; which shape it is depends on where the library's choice changes."""

    id: str

    def __str__(self) -> str:
        return self.id


def asked(options: Options) -> argparse.Namespace:
    """The options of `eval.regret`; a smoke run has a few small shapes and no map."""
    small = ["--samples", str(SMOKE_SAMPLES), "--max-flops", str(SMOKE_FLOPS), "--rounds", str(SMOKE_ROUNDS), "--map"]
    given = ["--threads", str(options.threads), "--seed", str(options.seed)]
    return regret.parser().parse_args([*given, *(small if options.smoke else [])])


def places(options: Options) -> list[Place]:
    parts = regret.parts_of(asked(options))
    return [Place(regret.identity(name, options.seed, at)) for name, _, count in parts for at in range(count)]


def open_places(options: Options, stack: ExitStack) -> Measure:
    gemm, given = product(options), asked(options)
    shapes = {case.id: (case, sample) for case, sample in regret.todo(gemm, given)}
    workers = start_workers(("vortex", *regret.VENDORS["plain"]), options.threads, stack)[0]
    limits = Limits(machine.peak(options.threads), ())
    run = Run(options.threads, options.seed, limits, {}, options.allow_busy)

    def one(case: Case, sample: Line) -> list[Line]:
        line = races.race(gemm, case, options.threads, False, given.rounds, allow_busy=options.allow_busy)
        best = min(line["plans"], key=lambda entry: float(entry["even"]))
        line["plans"] = [races.chosen_of(line), *([] if best["label"] == line["chosen"] else [best])]
        return [line | sample | {"systems": regret.against(case, workers, regret.EFFORT, run)}]

    return lambda place: undisturbed(lambda: one(*shapes[place.id]), options)


def regrets(lines: Sequence[Line]) -> Page:
    """The tables of `eval.regret`, and the shapes on which a vendor is quicker."""
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        rows = [row for line in lines if line["threads"] == threads for row in line["rows"]]
        blocks += regret.summary(rows).split("\n\n")
        shares = [(share, row) for row in rows if (share := regret.vendor_share(row)) is not None]
        slow = sorted(((share, row) for share, row in shares if share < SLOWER), key=lambda pair: pair[0])
        if slow:
            cells = [
                [f"{row['m']}x{row['n']}x{row['k']}", f"{share:.3f}", row["chosen"], f"{races.share(row):.3f}"]
                for share, row in slow[:SHOWN]
            ]
            losses.append(f"At {threads} thread(s) a vendor is quicker on {len(slow)} of {len(shares)}; most where:")
            losses.append(markdown(("shape", "of the quickest vendor", "chosen", "of the library's best plan"), cells))
    return Page(blocks, losses)


REGRET = Result(
    "regret",
    "where in the domain of shapes the choice is how far from the best",
    "the paper has no such table. Shapes are drawn where the choice changes, over the whole domain and at one K, B as "
    "it lies; medians and means are weighted back to the log-uniform domain. `python -m eval.regret` draws the map.",
    places,
    open_places,
    regrets,
    seconds=3.0,
    opening=30.0,
)
MODEL = Result(
    "model",
    "predicted against measured seconds of every plan",
    "the paper has no such table. All plans of the library on 300 shapes, half of them of the suites, B as it lies, "
    "transposed and packed; a prediction is scaled by the peak of the run over that of the library's profile.",
    raced,
    open_races,
    fit,
    seconds=1.5,
    opening=20.0,
)
