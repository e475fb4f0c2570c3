"""Table 6 and Figure 3: the sample-driven method of DietCode, on this project's kernels, outside its samples."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from matplotlib.figure import Figure

from eval.alternate import blank
from eval.compare import markdown
from eval.records import Line
from eval.reproduce.calls import undisturbed
from eval.reproduce.methods import measuring, opened
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.vendors import SAID_ONCE, open_systems
from eval.rivals import table6 as rival
from eval.rivals.dietcode import program_of
from eval.rivals.searched import searched
from eval.stats import geometric_mean
from eval.suites import Case, load_suite

SYSTEMS = ("vortex", "mkl", "onednn", "openblas")
BATCH = 16
SAMPLED = (5, 24, 43, 62, 81, 100, 119)
BETWEEN = (14, 33, 52, 71, 90, 109)
OUTSIDE = (1, 2, 3, 128, 144, 160, 192, 224, 256, 320)
"""Sequence lengths: DietCode's default samples, those half-way between, and shorter and longer ones."""


def shapes6(options: Options) -> Sequence[Case]:
    """The 96 shapes (M, 768, 2304); B in rows, which the micro-kernels of all methods can read in place."""
    return rival.cases()


def open_table6(options: Options, stack: ExitStack) -> Measure:
    return measuring(rival.opened(opened(options)), options)


def table6(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        rows = [row for line in lines if line["threads"] == threads for row in line["rows"]]
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", *rival.tables(rows)]
        slow = sorted((row for row in rows if row["speedup"] < 1), key=lambda row: row["speedup"])
        if slow:
            losses.append(f"At {threads} thread(s) {len(slow)} of {len(rows)} shapes are slower; the worst:")
            cells = [[f"{r['m']}x768x2304", f"{r['speedup']:.2f}", r["range"], r["kernel"]] for r in slow[:10]]
            losses.append(markdown(("shape", "speedup", "range of M", "its micro-kernel"), cells))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for threads in sorted({line["threads"] for line in lines}):
            rows = [row for line in lines if line["threads"] == threads for row in line["rows"]]
            axes.scatter([r["m"] for r in rows], [r["speedup"] for r in rows], s=10, label=f"{threads} thread(s)")
        axes.axvspan(*rival.SAMPLED, alpha=0.15, color="gray", label="sampled")
        finish(axes, "M", "speedup over the DietCode method")

    return Page(blocks, losses, draw)


def lengths(options: Options) -> list[Case]:
    """The first product of BERT with a batch of 16: (16 T, 2304, 768)."""
    n, k = next((case.n, case.k) for case in load_suite("dietcode_dense"))
    every = sorted((*SAMPLED, *BETWEEN, *OUTSIDE))
    return [Case("fig3", f"fig3/{length:04d}", BATCH * length, n, k) for length in every]


def open_lengths(options: Options, stack: ExitStack) -> Measure:
    """DietCode is tuned on its own default samples; vendors are measured by the bench's method beside it."""
    bench = opened(options)
    samples = [case for case in lengths(options) if case.m // BATCH in SAMPLED]
    tree = searched(bench, samples, bench.setting.trials).once
    vendors, run = open_systems(options, stack, SYSTEMS)

    def one(case: Case) -> list[Line]:
        program = program_of(tree.choose(case.m, case.n, case.k), case)
        bench.runner.verify_program(program, case)
        calls = {"dietcode": bench.runner.program(program, case)}

        def timed() -> list[Line]:
            raced = bench.race(calls)["dietcode"]
            line = {
                name: value for name, value in blank(case, "dietcode", "warm", run).items() if name not in SAID_ONCE
            }
            told = {"seconds": raced.seconds, "spread": raced.spread, "kernel": str(program.kernel)}
            return [line | told | {"useful": program.useful}]

        return vendors(case) + undisturbed(timed, options)

    return one


def kind_of(m: int) -> str:
    length = m // BATCH
    return "sampled" if length in SAMPLED else "between samples" if length in BETWEEN else "outside"


def fig3(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    by_threads = {count: [x for x in lines if x["threads"] == count] for count in {x["threads"] for x in lines}}
    for threads, here in sorted(by_threads.items()):
        seconds = {
            line["id"]: {row["system"]: row["seconds"] for row in line["rows"] if row["seconds"]} for line in here
        }
        m = {line["id"]: int(line["rows"][0]["m"]) for line in here}
        rows, slower = [], []
        for kind in ("sampled", "between samples", "outside"):
            at = [name for name in seconds if kind_of(m[name]) == kind]
            cells = []
            for system in ("vortex", "dietcode"):
                ratios = [
                    min(seconds[name].get(peer, float("inf")) for peer in SYSTEMS[1:]) / seconds[name][system]
                    for name in at
                    if system in seconds[name] and any(peer in seconds[name] for peer in SYSTEMS[1:])
                ]
                cells += [f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"] if ratios else ["-", "-"]
            ours = [seconds[name]["dietcode"] / seconds[name]["vortex"] for name in at if "vortex" in seconds[name]]
            rows.append([kind, str(len(at)), *cells, f"{geometric_mean(ours):.2f}" if ours else "-"])
        header = (
            "lengths",
            "shapes",
            "Vortex over the best vendor",
            "worst",
            "DietCode over it",
            "worst",
            "Vortex over DietCode",
        )
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", markdown(header, rows)]
        for name, found in seconds.items():
            best = min((s, system) for system, s in found.items() if system != "vortex")
            if "vortex" in found and best[0] < found["vortex"]:
                slower.append([f"{m[name]}x2304x768", best[1], f"{best[0] / found['vortex']:.2f}"])
        if slower:
            losses.append(f"At {threads} thread(s) slower than the best of vendors and DietCode:")
            losses.append(markdown(("shape", "quickest", "its seconds over ours"), sorted(slower, key=lambda r: r[2])))

    def draw(figure: Figure) -> None:
        here = by_threads[max(by_threads)]
        axes = figure.subplots()
        for system in ("vortex", "dietcode", "mkl", "onednn", "openblas"):
            found = [row for line in here for row in line["rows"] if row["system"] == system and row["seconds"]]
            found.sort(key=lambda row: row["m"])
            axes.plot(
                [r["m"] / BATCH for r in found], [r["flops"] / r["seconds"] / 1e9 for r in found], ".-", label=system
            )
        for length in SAMPLED:
            axes.axvline(length, color="gray", linewidth=0.5, alpha=0.5)
        finish(axes, "sequence length (lines: DietCode's samples)", "GFLOP/s")

    return Page(blocks, losses, draw)


def finish(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


DIFFERS = (
    "the method of DietCode on this project's kernels, so that what differs is the method: its search runs over the "
    "link table and compiles nothing. Its padding is found in place, its dispatch is not timed"
)
TABLE6 = Result(
    "table6",
    "Vortex over DietCode inside and outside its samples",
    f"{DIFFERS}; Vortex's selection is.",
    shapes6,
    open_table6,
    table6,
    seconds=0.6,
    opening=60.0,
)
FIG3 = Result(
    "fig3",
    "the first product of BERT over sequence lengths",
    f"{DIFFERS}. It is tuned on its seven default lengths at batch 16; the vendors here are oneDNN, MKL and OpenBLAS.",
    lengths,
    open_lengths,
    fig3,
    seconds=3.0,
    opening=60.0,
)
