"""Methods of other papers on this project's kernels: DietCode's layers and ablation, MikPoly, Hidet."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Protocol

from matplotlib.figure import Figure

from eval.compare import markdown
from eval.records import Line
from eval.reproduce.calls import undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.rivals import ablation, dense, hidet, mikpoly_study, ranges
from eval.rivals.setting import Bench, Row, Setting
from eval.rivals.setting import opened as opened_setting
from eval.suites import Case
from eval.systems import AbsentError

SMOKE_TRIALS, SMOKE_CASES = 64, 2
SHOWN = 12
"""Losing shapes that a page lists."""


class Experiment(Protocol):
    """One shape, measured with every variant of a method."""

    def measure(self, case: Case) -> list[Row]: ...


Tables = Callable[[Sequence[Row]], list[str]]


def opened(options: Options) -> Bench:
    """The libraries that the rival methods run on; what they search for is kept beside the results.

    AbsentError without scikit-learn, which their learned costs and dispatchers come from.
    """
    if find_spec("sklearn") is None:
        raise AbsentError("scikit-learn is not installed")
    more: dict[str, Any] = {"trials": SMOKE_TRIALS, "rounds": 2, "seconds": 0.01} if options.smoke else {}
    kept = options.folder / "searches.jsonl" if options.folder else None
    asked = Setting(options.threads, seed=options.seed, library=options.library, kept=kept)
    return opened_setting(replace(asked, allow_busy=options.allow_busy, **more))


def measuring(experiment: Experiment, options: Options) -> Measure:
    return lambda case: undisturbed(lambda: experiment.measure(case), options)


def some(cases: Callable[[], list[Case]]) -> Callable[[Options], Sequence[Case]]:
    """All cases, for a smoke run the smallest ones."""
    return lambda options: sorted(cases(), key=lambda case: case.flops)[:SMOKE_CASES] if options.smoke else cases()


def opener(experiment: Callable[[Bench], Experiment]) -> Callable[[Options, ExitStack], Measure]:
    return lambda options, stack: measuring(experiment(opened(options)), options)


def page(tables: Tables, names: Sequence[str] = ()) -> Callable[[Sequence[Line]], Page]:
    """The tables of each number of threads; shapes on which one of the rivals `names` is quicker."""
    return lambda lines: _page(lines, tables, names)


def _page(lines: Sequence[Line], tables: Tables, names: Sequence[str]) -> Page:
    blocks, losses, by_threads = [], [], {}
    for threads in sorted({line["threads"] for line in lines}):
        rows = by_threads[threads] = [row for line in lines if line["threads"] == threads for row in line["rows"]]
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", *tables(rows)]
        slower = [
            (row["seconds"][name] / row["seconds"]["vortex"], f"{row['m']}x{row['n']}x{row['k']}", name, row)
            for row in rows
            for name in names
            if row["seconds"][name] < row["seconds"]["vortex"]
        ]
        slower.sort(key=lambda loss: loss[:3])
        if slower:
            many = f"{len(slower)} of {len(rows) * len(names)} times"
            losses.append(f"At {threads} thread(s) a rival is quicker {many}; most where:")
            cells = [[at, rival, f"{share:.2f}", row["kernels"].get(rival, "")] for share, at, rival, row in slower]
            losses.append(markdown(("shape", "rival", "its seconds over ours", "its micro-kernel"), cells[:SHOWN]))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for threads, rows in by_threads.items():
            for name in names:
                flops = [2e-6 * row["m"] * row["n"] * row["k"] for row in rows]
                ratios = [row["seconds"][name] / row["seconds"]["vortex"] for row in rows]
                axes.scatter(flops, ratios, s=12, label=f"{name}, {threads} thread(s)")
        axes.set_xscale("log")
        axes.axhline(1.0, color="gray", linewidth=1)
        axes.set_xlabel("MFLOP")
        axes.set_ylabel("speedup over the rival method")
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)

    return Page(blocks, losses, draw if names else None)


DENSE = Result(
    "dense",
    "DietCode's dense layers: DietCode, Nimble, buckets, a search per shape",
    "the methods on this project's kernels; a search for each shape stands for Ansor. Nothing is compiled in a trial; "
    "the padding of DietCode and of the searches per shape is found in place, buckets copy theirs.",
    some(dense.cases),
    opener(dense.Experiment),
    page(dense.tables, dense.RIVALS),
    seconds=30.0,
    opening=20.0,
)
RANGES = Result(
    "ranges",
    "Vortex over DietCode, the wider the range it was given",
    "(M, 3072, 768), M in [1, 128]; DietCode on this project's kernels, with eight samples spread over each range; the "
    "paper's figures are MikPoly's over DietCode.",
    some(ranges.cases),
    opener(ranges.Experiment),
    page(ranges.tables, ranges.RIVALS),
    seconds=5.0,
    opening=20.0,
)
MIKPOLY = Result(
    "mikpoly",
    "MikPoly: its oracle, MikPoly-Wave and -Pipe, its parameters",
    "MikPoly on this project's kernels, Patterns I and II, padded to whole tiles in place, its polymerization not "
    "timed; products of Table 3 up to 2 GFLOP. Its Figure 13 shows speedups over cuBLAS; here, shares of its oracle.",
    some(mikpoly_study.cases),
    opener(mikpoly_study.opened),
    page(mikpoly_study.tables, mikpoly_study.RIVALS),
    seconds=6.0,
    opening=120.0,
)
HIDET = Result(
    "hidet",
    "Hidet: a hardware-centric space, run exhaustively for each shape",
    "the space is made by Hidet's rule from this project's kernels; nothing is compiled; products in place of its "
    "convolution.",
    some(hidet.cases),
    opener(hidet.Experiment),
    page(hidet.tables, hidet.RIVALS),
    seconds=15.0,
    opening=20.0,
)
ABLATION = Result(
    "ablation",
    "rows beyond the end: checks, global padding, loop partitioning, local padding",
    "one C program in the four ways, one thread, and the last three with this project's micro-kernels. On a GPU checks "
    "cost branches in every thread; here a vectorized loop has them once a row.",
    some(ablation.cases),
    opener(ablation.Experiment),
    page(ablation.tables),
    seconds=5.0,
    opening=20.0,
)
