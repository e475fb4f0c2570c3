"""Table 5 and Figure 12: single products and convolutions against vendor libraries, by the bench's method."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from eval import machine, plots
from eval.alternate import Effort, Run, blank, lines_of, measure_quiet
from eval.bench import resident, start_workers
from eval.compare import BEST, Table, decile_groups, grouped, losing, overall, pairs, roofline, tables
from eval.operator_cases import OperatorCase, load_any_suite
from eval.operator_systems import COMPARED
from eval.process import WorkerError, WorkerProcess
from eval.records import Line
from eval.report import failures
from eval.reproduce.headline import openblas_cores
from eval.reproduce.result import Measure, Options, Page, Result
from eval.stats import geometric_estimate
from eval.suites import CONV_SUITES, MAIN_SUITES, Case

GEMM_SYSTEMS = ("vortex", "mkl", "mkl_cblas", "onednn", "openblas", "vortex_packed", "onednn_packed", "onnxruntime")
SMOKE_FLOPS = 2e8
EFFORT = Effort(rounds=3, seconds=0.05, modes=("warm",))
SMOKE_EFFORT = Effort(rounds=2, seconds=0.01, modes=("warm",))
OURS = {"vortex": "Products, plain B", "vortex_packed": "Products, packed B", "vortex_op": "Convolutions"}
SAID_ONCE = ("kind", "limits", "device", "commit", "seed")
"""What the line of a case, or the page, says of all its rows."""


def by_size(cases: Iterable[Case | OperatorCase], options: Options) -> list[Case | OperatorCase]:
    """Suite by suite, the small before the large: a case stands for its neighbours. A smoke run has the small ones."""
    found = sorted(cases, key=lambda case: (case.suite, case.flops, case.id))
    return [case for case in found if not options.smoke or case.flops <= SMOKE_FLOPS]


def vendor_cases(options: Options) -> Sequence[Case | OperatorCase]:
    """The 506 products of Table 3, the classifier layers once more as inference runs them, the 691 of Table 4."""
    suites = options.suites or (*MAIN_SUITES, *CONV_SUITES)
    return by_size((case for suite in suites for case in load_any_suite(suite)), options)


def open_vendors(options: Options, stack: ExitStack) -> Measure:
    """All systems of each case's operator."""
    return open_systems(options, stack, GEMM_SYSTEMS)[0]


def open_systems(
    options: Options, stack: ExitStack, products: Sequence[str], timeout: float = EFFORT.timeout
) -> tuple[Measure, Run]:
    """Workers of the systems, `products` for single products; started when a case first needs them.

    A system has `timeout` seconds for a request.
    """
    if options.library:
        os.environ["VORTEX_EVAL_LIBRARY"] = options.library
    effort = replace(SMOKE_EFFORT if options.smoke else EFFORT, timeout=timeout)
    run = Run(options.threads, options.seed, machine.limits(options.threads), {}, options.allow_busy)
    started: dict[tuple[str, ...], tuple[dict[str, WorkerProcess], dict[str, WorkerError]]] = {}

    def one(case: Case | OperatorCase) -> list[Line]:
        systems = COMPARED[case.op] if isinstance(case, OperatorCase) else tuple(products)
        if systems not in started:
            started[systems] = start_workers(systems, options.threads, stack)
        workers, absent = started[systems]
        try:
            outcomes, busy = measure_quiet(case, workers, effort, run, resident(case, workers))
        except machine.BusyError:
            run.limits = machine.limits(options.threads)  # where the clock moved, the next case has the new peak
            raise
        versions = {name: worker.versions for name, worker in workers.items()}
        lines = lines_of(case, outcomes, versions, run, busy)
        for name, failure in absent.items():
            lines.append(blank(case, name, "warm", run) | {"error": str(failure), "error_kind": failure.kind})
        peak = {"peak_flops_per_s": run.limits.peak_flops_per_s}
        return [{name: value for name, value in line.items() if name not in SAID_ONCE} | peak for line in lines]

    return one, run


def compared(lines: Sequence[Line]) -> list[tuple[str, Table]]:
    """(which of ours, the table it is in) wherever ours was measured with a peer."""
    rows = [row for line in lines for row in line["rows"]]
    return [(ours, table) for table in tables(rows) for ours in OURS if pairs(table, ours, BEST)]


def table5(lines: Sequence[Line]) -> Page:
    """As the paper's table has it: percentage of cases with a speedup, and the average; and by the work of a case."""
    blocks, losses, panels = [], [], compared(lines)
    for ours, table in panels:
        title = f"{OURS[ours]}, {table.title}"
        suites = {suite: cases for suite, cases in table.by_suite().items() if pairs(table, ours, BEST, cases)}
        ratios = [theirs / mine for _, theirs, mine in pairs(table, ours, BEST)]
        told = f"Over the best by case, geometric mean with 95 % bootstrap interval: {geometric_estimate(ratios)}."
        blocks += [f"### {title}", overall(table, ours), told, "By suite, geometric means:"]
        blocks += [grouped(table, ours, suites, "suite"), "By tenths of the cases, geometric means:"]
        alone = replace(table, lines={case: table.lines[case] for case, _, _ in pairs(table, ours, BEST)})
        blocks.append(grouped(alone, ours, decile_groups(alone), "floating-point operations"))
        losses += [f"{title}: the lowest speedups over the best peer", losing(table, ours, 10)]
    for table in tables([row for line in lines for row in line["rows"]]):
        blocks += [f"### Every system, {table.title}", roofline(table)]
        blocks += [f"{told}." for told in openblas_cores(table)]
    drawn = drawing(panels, [plots.speedup_over_flops, plots.share_over_flops])
    return Page([*blocks, *failures([row for line in lines for row in line["rows"]])], losses, drawn)


def drawing(
    panels: Sequence[tuple[str, Table]], plotted: Sequence[Callable[[Any, Table, str], bool]]
) -> Callable[[Figure], None] | None:
    """A row for each of ours, a column for each plot; None where nothing was compared."""

    def draw(figure: Figure) -> None:
        figure.set_size_inches(9.0 * len(plotted), 4.0 * len(panels))
        for row, (ours, table) in zip(figure.subplots(len(panels), len(plotted), squeeze=False), panels, strict=True):
            for axes, plot in zip(row, plotted, strict=True):
                plot(axes, table, ours)

    return draw if panels else None


def fig12(lines: Sequence[Line]) -> Page:
    """Speedups over floating-point operations, one panel for each of ours."""
    panels = compared(lines)
    told = ", ".join(
        f"{OURS[ours].lower()} at {table.title}: {len(pairs(table, ours, BEST))}" for ours, table in panels
    )
    return Page(
        [f"A point is a case. {told}. The tables are those of table5."],
        draw=drawing(panels, [plots.speedup_over_flops]),
    )


DIFFERS = (
    "the CPU half alone, with MKL and OpenBLAS beside the paper's oneDNN and ONNX Runtime. Products are measured "
    "twice: with B as it lies, against libraries that see the same, and with B packed beforehand, against everybody. "
    "MKL is called in two ways where its wheel is installed, and counts with the quicker one of each case. "
    "Convolutions have packed weights on all sides. Means are of the measured cases alone. The lists of cases have the "
    "paper's counts and ranges, not certainly its cases (eval/suites/README.md)."
)
TABLE5 = Result(
    "table5", "speedups over vendor libraries", DIFFERS, vendor_cases, open_vendors, table5, seconds=2.5, opening=30.0
)
FIG12 = Result(
    "fig12", "speedups over the work of a case", DIFFERS, vendor_cases, open_vendors, fig12, 3.0, same_lines_as="table5"
)
