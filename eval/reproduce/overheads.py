"""Figure 14 and the offline costs of section 7.4: what choosing costs at a call, and what compiling costs once."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain

from matplotlib.figure import Figure

from eval import overhead, plots
from eval.commands import shown
from eval.compare import markdown
from eval.offline import figures, table
from eval.operands import check, make_operands
from eval.operator_libraries import NAMES, names_for
from eval.records import Line
from eval.report import figures_section
from eval.reproduce.calls import in_turn, product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.suites import Case, load_suite
from eval.vortex_systems import hardware, load_gemm

REPEATS = 20_000
CALLS, SMOKE_CALLS = 1_000_000, 20_000
"""Over which memory may not grow."""
SMALL, SLOWER = "1x64x64", 1.02
"""The smallest call, and from which share of torch.mm's time it is slower beyond noise."""
SMOKE_FLOPS = 3e8
DIETCODE_S = 25 * 3600.0
"""Section 7.4 of the paper: DietCode's tuning with Table 3 as its samples."""


def squares(options: Options) -> list[Case]:
    return [c for c in load_suite("vortex_fig14_squares_7") if not options.smoke or c.flops <= SMOKE_FLOPS]


def open_squares(options: Options, stack: ExitStack) -> Measure:
    gemm = product(options)

    def one(case: Case) -> list[Line]:
        operands = make_operands(case, options.seed)
        call = partial(gemm, operands.a, operands.b, out=operands.out)
        call()
        check(operands, operands.out)

        def timed() -> list[Line]:
            selection = gemm.time_selection(case.m, case.n, case.k, REPEATS)
            return [in_turn({"call": call}, options)["call"] | {"cube": case.m, "selection_s": selection}]

        return undisturbed(timed, options)

    return one


def fig14(lines: Sequence[Line]) -> Page:
    rows = sorted(
        ((line["threads"], row) for line in lines for row in line["rows"]), key=lambda at: (at[0], at[1]["cube"])
    )
    table = markdown(
        ("m = n = k", "threads", "call, us", "selection, us", "share of selection", "spread"),
        [
            [
                str(row["cube"]),
                str(threads),
                f"{row['seconds'] * 1e6:.1f}",
                f"{row['selection_s'] * 1e6:.3f}",
                f"{row['selection_s'] / row['seconds']:.3%}",
                f"{row['spread']:.1%}",
            ]
            for threads, row in rows
        ],
    )
    last = max(threads for threads, _ in rows)
    bars = [
        {
            "kind": "overhead",
            "cube": row["cube"],
            "value": row["seconds"] * 1e6,
            "selection_us": row["selection_s"] * 1e6,
        }
        for threads, row in rows
        if threads == last
    ]

    def draw(figure: Figure) -> None:
        plots.overhead(figure.subplots(), bars)

    return Page([table], draw=draw)


@dataclass(frozen=True, slots=True)
class Calls:
    """What a call costs besides the arithmetic: all figures in one go."""

    id: str = "calls"


def open_calls(options: Options, stack: ExitStack) -> Measure:
    product(options)  # compiled, or found, before anything is timed; then one thread, since no pool may be awake
    calls, operators = (SMOKE_CALLS, NAMES[:1]) if options.smoke else (CALLS, names_for(hardware()))

    def measured() -> list[Line]:
        gemm = load_gemm(threads=1)
        figures = chain(
            overhead.selections(gemm, operators, options.seed),
            overhead.figures(gemm, options.seed, calls, largest=0),
        )
        return list(figures)

    return lambda case: undisturbed(measured, options)


def calls(lines: Sequence[Line]) -> Page:
    rows = lines[-1]["rows"]
    figures = {row["name"]: row for row in rows}
    slower = [
        f"- {name}: {row['note']}"
        for name, row in figures.items()
        if name.startswith(f"{SMALL} vortex")
        and row["value"] > SLOWER * figures[f"{SMALL} torch.mm{'(out=)' * ('out=' in name)}"]["value"]
    ]
    return Page(figures_section("One thread", rows)[1:], ["\n".join(slower)] if slower else [])


@dataclass(frozen=True, slots=True)
class Compiled:
    """A library to compile."""

    id: str


def compiled(options: Options) -> list[Compiled]:
    return [Compiled(name) for name in (NAMES[:1] if options.smoke else names_for("native"))]


def open_offline(options: Options, stack: ExitStack) -> Measure:
    return lambda case: undisturbed(lambda: figures("native", case.id), options)


def offline(lines: Sequence[Line]) -> Page:
    rows = [row for line in lines for row in line["rows"]]
    filters = {row["name"]: row["name"] for row in rows if row["unit"] == "candidates"}
    found = {line["id"]: {row["name"]: row for row in line["rows"]} for line in lines}
    present = [name for name in NAMES if name in found]

    def told(operator: str, name: str) -> str:
        return shown(found[operator][name]["value"]) if name in found[operator] else "-"

    blocks = [table([row for name in present for row in found[name].values()])]
    if filters:
        counts = [[name, *(told(operator, name) for operator in present)] for name in filters]
        blocks.append(markdown(("candidates after", *present), counts))
    if gemm := found.get("gemm"):
        seconds = gemm["compile from nothing"]["value"]
        blocks.append(
            f"Compiling the library of products takes {seconds:.1f} s here. The 25 hours that the paper gives for the "
            f"tuning of DietCode on a GPU are {DIETCODE_S / seconds:,.0f} times that; the paper's own ratio is 176, "
            "with 529.6 s for its libraries on CUDA cores."
        )

    def draw(figure: Figure) -> None:
        plots.offline(figure.subplots(), [row for rows in lines for row in rows["rows"] if rows["id"] == "gemm"])

    return Page(blocks, draw=draw if "gemm" in found else None)


FIG14 = Result(
    "fig14",
    "selection beside execution",
    "a call from Python on the CPU. Selection is the native selector's, the mean of 20,000 of the same shape; the call "
    "contains it. The paper's plot is of a GPU.",
    squares,
    open_squares,
    fig14,
    seconds=3.0,
)
OVERHEAD = Result(
    "overhead",
    "what a call costs besides the arithmetic",
    "the native selector of every operator that the device has an instruction for, on one thread and two; from Python, "
    "on one thread whatever --threads is, the first call of a new shape against the second, the smallest calls against "
    "torch.mm, and memory over many calls. The paper has selection alone, in its Figure 14.",
    lambda options: [Calls()],
    open_calls,
    calls,
    seconds=120.0,
)
OFFLINE = Result(
    "offline",
    "offline time, candidates, size",
    "every operator that the device has an instruction for; an empty cache folder, a fresh process each; memory is the "
    "sum over all processes when it was largest. Candidates are counted after each filter of the sieve; the paper's "
    "17731 are of a sieve whose bounds it does not print.",
    compiled,
    open_offline,
    offline,
    seconds=60.0,
)
