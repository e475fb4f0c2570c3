"""Figure 16 on a CPU: a fixed way to run against the selector's, over few rows and over cubes.

The paper fixes the core type of a GPU. A CPU has two choices of that kind: whether a call packs the weight first or
reads it as it lies, and on how many threads it runs.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from eval import plans
from eval.compare import markdown
from eval.operands import check, make_operands
from eval.plots import ratios_up
from eval.records import Line
from eval.reproduce.calls import in_turn, product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.stats import geometric_mean
from eval.suites import Case, load_suite

ADAPTIVE = "adaptive"
WAYS: dict[str, Callable[[Any], bool]] = {
    "packs B": plans.packs_weight,
    "reads B as it lies": lambda plan: not plans.packs_weight(plan),
    "one thread": lambda plan: plan.workers == 1,
    "all threads": lambda plan: plan.workers > 1,
}
CHOICES = {"weight": ("packs B", "reads B as it lies"), "threads": ("one thread", "all threads")}
LARGEST_CUBE, SMOKE_COLUMNS = 1024, 1024


def few_rows(options: Options) -> list[Case]:
    """The paper's 48 products with 1 to 16 rows, and cubes up to 1024, where the choice of threads turns."""
    cubes = [case for case in load_suite("vortex_fig14_squares_7") if case.m <= LARGEST_CUBE]
    found = [*load_suite("vortex_fig16_small_m_48"), *cubes]
    return [case for case in found if not options.smoke or case.n <= SMOKE_COLUMNS]


def fixed_ways(gemm: Any, case: Case, threads: int) -> dict[str, Any]:
    """The plan of least predicted cost of each fixed way that has one, of one strategy, and the selector's choice."""
    layout = {"transpose_b": case.trans_b}
    every = [plan for plan in gemm.plans(case.m, case.n, case.k, threads=threads, **layout) if not plan.regions]
    found = {ADAPTIVE: gemm.plan(case.m, case.n, case.k, threads=threads, **layout)}
    for name, belongs in WAYS.items():
        if allowed := [plan for plan in every if belongs(plan)]:
            found[name] = min(allowed, key=lambda plan: plan.seconds)
    return found


def open_backends(options: Options, stack: ExitStack) -> Measure:
    gemm = product(options)

    def one(case: Case) -> list[Line]:
        operands = make_operands(case, options.seed)
        ways = fixed_ways(gemm, case, options.threads)
        # What does the same to this shape is timed once: a fixed way may be what the selector chose.
        same = {name: plans.deed(plan, case.m, case.n, case.k) for name, plan in ways.items()}
        calls = {
            same[name]: partial(gemm.run, plan, operands.a, operands.b, operands.out, transpose_b=case.trans_b)
            for name, plan in ways.items()
        }
        for call in calls.values():
            call()
            check(operands, operands.out)

        def timed() -> list[Line]:
            found = in_turn(calls, options)
            extents = {"m": case.m, "n": case.n, "k": case.k}
            return [
                extents | {"way": name, "plan": plans.label(ways[name])} | found[deed] for name, deed in same.items()
            ]

        return undisturbed(timed, options)

    return one


def gains(lines: Sequence[Line], way: str) -> list[tuple[str, float]]:
    """(shape, seconds of the fixed way over those of the adaptive one) where the fixed way exists."""
    found = []
    for line in lines:
        seconds = {row["way"]: row["seconds"] for row in line["rows"]}
        if way in seconds:
            row = line["rows"][0]
            found.append((f"{row['m']}x{row['n']}x{row['k']}", seconds[way] / seconds[ADAPTIVE]))
    return found


def fig16(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        here = [line for line in lines if line["threads"] == threads]
        for what, ways in CHOICES.items():
            rows, slower = [], []
            for way in ways:
                if not (found := gains(here, way)):
                    continue
                ratios = [gain for _, gain in found]
                most, least = max(found, key=lambda at: at[1]), min(found, key=lambda at: at[1])
                figures = [
                    f"{geometric_mean(ratios):.2f}",
                    f"{most[1]:.2f} ({most[0]})",
                    f"{least[1]:.2f} ({least[0]})",
                ]
                rows.append([way, str(len(found)), f"{sum(r < 1 / 1.02 for r in ratios)}", *figures])
                slower += [[shape, way, f"{gain:.2f}"] for shape, gain in found if gain < 0.95]
            if rows:
                header = ("fixed way", "shapes", "adaptive slower by over 2 %", "gain, geometric mean", "most", "least")
                blocks += [f"### {what}, {threads} thread{'s' * (threads > 1)}", markdown(header, rows)]
            if slower:
                losses.append(f"At {threads} thread(s) the adaptive choice is more than 5 % slower than a fixed way:")
                losses.append(
                    markdown(("shape", "fixed way", "its seconds over ours"), sorted(slower, key=lambda r: r[2]))
                )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for way in WAYS:
            found = [gain for _, gain in gains(lines, way)]
            if found:
                axes.plot(range(len(found)), sorted(found), label=f"{way}: {geometric_mean(found):.2f}")
        axes.axhline(1.0, color="gray", linewidth=1)
        ratios_up(axes)
        axes.set_xlabel("shapes, by gain")
        axes.set_ylabel("seconds of the fixed way over the adaptive one")
        axes.legend(fontsize=8, title="geometric mean of", title_fontsize=8)
        axes.grid(alpha=0.3)

    return Page(blocks, losses, draw)


FIG16 = Result(
    "fig16",
    "adaptive against fixed ways to run",
    "the paper fixes CUDA cores or Tensor Cores; a CPU has neither. Here a call either packs the weight or reads it as "
    "it lies, and runs on one thread or on all. Each fixed way runs its strategy of least predicted cost. To the "
    "paper's 48 shapes cubes up to 1024 are added.",
    few_rows,
    open_backends,
    fig16,
    seconds=2.0,
)
