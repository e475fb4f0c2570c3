"""The cost model against measurements, plan by plan: how far off predictions are, and what the choice loses by it."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from matplotlib.figure import Figure

from eval import model, races, replay
from eval.compare import markdown
from eval.records import Line
from eval.reproduce.calls import product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.suites import Case

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
    profiled = replay.kernel_peak({"profile": gemm.manifest.profile, "lanes": gemm.manifest.lanes})

    def one(at: Raced) -> list[Line]:
        line = races.race(gemm, at.case, options.threads, at.packed, rounds)
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
