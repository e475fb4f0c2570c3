"""Several micro-kernels in one call, on against off: MikPoly's idea, which the paper does not have."""

from collections.abc import Sequence
from contextlib import ExitStack

from matplotlib.figure import Figure

from eval import polymerize
from eval.compare import markdown
from eval.records import Line
from eval.reproduce.calls import product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.vendors import by_size
from eval.suites import MAIN_SUITES, Case, load_suite, random_cases

LEAST_FLOPS, MOST_FLOPS = 1e6, 2e9
RANDOM, SEED = 300, 2026
"""Shapes whose extents are drawn at random beside those of the suites, and of which seed."""
ROUNDS, SMOKE_ROUNDS = 8, 2
SLOWER, LISTED = 0.98, 10
"""A rival is quicker below that share of our seconds; as many cases as a page lists, at most."""


def middle_products(options: Options) -> Sequence[Case]:
    """The products of Table 3, the forward layers and random shapes that are neither over before they begin nor seconds
    long."""
    known = [case for suite in MAIN_SUITES for case in load_suite(suite)]
    found = by_size([*known, *random_cases(RANDOM, SEED)], options)
    return [case for case in found if isinstance(case, Case) and LEAST_FLOPS <= case.flops <= MOST_FLOPS]


def open_regions(options: Options, stack: ExitStack) -> Measure:
    gemm, rounds = product(options), SMOKE_ROUNDS if options.smoke else ROUNDS
    return lambda case: undisturbed(
        lambda: [polymerize.measured(gemm, case, options.threads, packed=False, rounds=rounds)], options
    )


def over(row: Line, rival: str) -> float:
    """The rival's seconds over ours: "off" or "masks"."""
    return float(row[f"{rival}_s"] / row["on_s"])


def slower(rows: Sequence[Line], rival: str) -> list[Line]:
    """Rows where the rival is quicker beyond noise, those that lose most first."""
    return sorted((row for row in rows if over(row, rival) < SLOWER), key=lambda row: over(row, rival))


def by_origin(rows: Sequence[Line]) -> dict[str, list[Line]]:
    """What rows are of, and which are: products that somebody runs, and random ones; only what there is."""
    found: dict[str, list[Line]] = {"products of the suites": [], "random shapes": []}
    for row in rows:
        found["random shapes" if row["suite"].startswith("random") else "products of the suites"].append(row)
    return {told: some for told, some in found.items() if some}


def regions(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        rows = [row for line in lines if line["threads"] == threads for row in line["rows"]]
        for told, some in by_origin(rows).items():
            table = [line for line in polymerize.report(some).splitlines() if line.startswith("|")]
            blocks += [f"### {threads} thread{'s' * (threads > 1)}, {told}", "\n".join(table)]
        found = (
            (slower(rows, "masks"), "slower than one micro-kernel with masks", "masks"),
            (slower([row for row in rows if row["cut"]], "off"), "slower when cut", "off"),
        )
        for slow, told, rival in found:
            if not slow:
                continue
            cells = [
                [f"{r['m']}x{r['n']}x{r['k']}", f"{over(r, rival):.3f}", f"{r['predicted']:.3f}", r["on"], r[rival]]
                for r in slow[:LISTED]
            ]
            end = "; most where:" if len(slow) > LISTED else ":"
            losses.append(f"At {threads} thread(s) {len(slow)} of {len(rows)} shapes are {told}{end}")
            losses.append(markdown(("shape", f"{rival} / on", "predicted off / on", "on", rival), cells))

    def draw(figure: Figure) -> None:
        axes, rows = figure.subplots(), [row for line in lines for row in line["rows"]]
        for cut, label in ((False, "not cut"), (True, "cut into regions")):
            some = [row for row in rows if row["cut"] is cut]
            axes.scatter([r["loss"] for r in some], [over(r, "masks") for r in some], s=10, label=label)
        axes.axhline(1.0, color="gray", linewidth=1)
        axes.set_xlabel("share of the cores' time lost to padding and the last wave by one register tile and masks")
        axes.set_ylabel("its seconds over ours")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)

    return Page(blocks, losses, draw)


POLYMERIZE = Result(
    "polymerize",
    "several micro-kernels in one call, on against off",
    "the paper has one micro-kernel a call. Off: the best plan of one strategy, whose residues have micro-kernels of "
    "their own. Masks: one register tile a call, whole tiles on rows as far apart as those of the product or, if it is "
    "quicker, on rows of C as long as the tiles. Products from "
    f"{LEAST_FLOPS / 1e6:g} MFLOP to {MOST_FLOPS / 1e9:g} GFLOP; a shape that is not cut has the same plan on and off. "
    "Extents of random shapes are log-uniform from 1 to 8192.",
    middle_products,
    open_regions,
    regions,
    seconds=1.5,
)
