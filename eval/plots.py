"""The plots of the report. Each is drawn if its data is there; `report` names what is missing."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from eval import records
from eval.compare import BEST, MKL_EITHER, MKL_WAYS, Table, baselines, pairs, tables
from eval.records import Line
from eval.registry import RIVALS
from eval.report import oracle_groups, oracle_title
from eval.stats import geometric_mean

SIZE = (9.0, 4.5)


def draw_all(lines: Sequence[Line], folder: Path) -> list[str]:
    """Every plot the lines have data for; the file names."""
    names: list[str] = []

    def save(name: str, draw: Callable[[Any], bool]) -> None:
        figure = Figure(figsize=SIZE, layout="constrained")
        if draw(figure.subplots()):
            figure.savefig(folder / name, dpi=120)
            names.append(name)

    for table in tables(records.settled(lines).values()):
        where = f"{table.threads}t-{table.mode}"
        for ours in RIVALS:
            save(f"speedup-{ours}-{where}.png", partial(speedup_over_flops, table=table, ours=ours))
            save(f"roofline-{ours}-{where}.png", partial(share_over_flops, table=table, ours=ours))
    for group in oracle_groups([line for line in lines if line.get("kind") == "oracle"]):
        first = group[0]
        packed, unpruned = ("-packed" * bool(first.get("packed")), "-unpruned" * bool(first["unpruned"]))
        save(f"oracle-{first['threads']}t{packed}{unpruned}.png", partial(oracle, lines=group))
    save("overhead.png", partial(overhead, lines=lines))
    save("offline.png", partial(offline, lines=lines))
    return names


def ratios_up(axes: Any) -> None:
    """A logarithmic axis of ratios, which says 0.8 and 1.5 and no powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 6, 8)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def speedup_over_flops(axes: Any, table: Table, ours: str) -> bool:
    """The paper's Figure 12: one point per case and peer."""
    drawn = False
    names = baselines(ours, table)
    for baseline in (name for name in names if MKL_EITHER not in names or name not in MKL_WAYS):
        found = pairs(table, ours, baseline)
        flops = table.flops(case for case, _, _ in found)
        if found:
            style = {"color": "black", "marker": "x", "s": 14} if baseline == BEST else {"s": 8, "alpha": 0.6}
            mean = geometric_mean(theirs / mine for _, theirs, mine in found)
            label = f"{baseline}: {mean:.2f}"
            axes.scatter([flops[case] for case, _, _ in found], [t / m for _, t, m in found], label=label, **style)
            drawn = True
    axes.axhline(1.0, color="gray", linewidth=1)
    ratios_up(axes)
    _decorate(axes, f"{ours}, {table.title}", "floating-point operations", "speedup")
    _legend_beside(axes, "geometric mean over")
    return drawn


def share_over_flops(axes: Any, table: Table, ours: str) -> bool:
    """Share of the roofline of ours and of its rivals; the axis ends at the limit."""
    drawn = False
    for system in (*RIVALS[ours], ours):
        lines = [row[system] for row in table.lines.values() if system in row and row[system]["error"] is None]
        if lines:
            style = {"color": "black", "s": 12, "zorder": 3} if system == ours else {"s": 6, "alpha": 0.5}
            points = [line["flops"] for line in lines], [line["roofline_share"] for line in lines]
            axes.scatter(*points, label=system, **style)
            drawn = drawn or system == ours
    axes.set_ylim(0, 1)
    _decorate(axes, f"{ours}, {table.title}", "floating-point operations", "share of the roofline")
    _legend_beside(axes)
    return drawn


def oracle(axes: Any, lines: Sequence[Line]) -> bool:
    """The paper's Figure 15: performance relative to the best strategy of each shape."""
    for name, style in (("ours", "-"), ("static1", "--"), ("static2", ":")):
        values = sorted(line[name] for line in lines)
        shares = [index / max(1, len(values) - 1) for index in range(len(values))]
        axes.plot(shares, values, style, label=f"{name}: {geometric_mean(values):.3f}")
    axes.axhline(1.0, color="gray", linewidth=1, label="oracle")
    axes.set_ylim(0, 1.05 * max(1.0, *(line[name] for line in lines for name in ("ours", "static1", "static2"))))
    _decorate(axes, f"selection, {oracle_title(lines)}", "share of shapes", "share of the oracle", log_x=False)
    _legend_beside(axes, "geometric mean of")
    return True


def overhead(axes: Any, lines: Sequence[Line]) -> bool:
    """The paper's Figure 14: selection beside execution, for the cubes."""
    cubes = [line for line in lines if line.get("kind") == "overhead" and line.get("cube")]
    labels = [str(line["cube"]) for line in cubes]
    axes.set_yscale("log")
    bars = axes.bar(labels, [line["value"] for line in cubes], label="call", color="lightgray")
    axes.bar_label(bars, [f"{100 * line['selection_us'] / line['value']:.2g} %" for line in cubes])
    axes.bar(labels, [line["selection_us"] for line in cubes], label="selection", color="black")
    _decorate(axes, "selection and execution; above the bars: the share of selection", "m = n = k", "us", log_x=False)
    axes.legend(fontsize=8)
    return bool(cubes)


def offline(axes: Any, lines: Sequence[Line]) -> bool:
    """Section 7.4 of the paper: candidates of plain products after each filter, and the offline time in the title."""
    every = [line for line in lines if line.get("kind") == "offline" and line["operator"] == "gemm"]
    found = list({line["name"]: line for line in every}.values())
    counts = [line for line in found if line["unit"] == "candidates"]
    times = ", ".join(f"{line['name']} {line['value']:.2f} s" for line in found if line["unit"] == "s")
    axes.set_xscale("log")
    bars = axes.barh([line["name"] for line in counts][::-1], [line["value"] for line in counts][::-1], color="gray")
    axes.bar_label(bars, [f" {line['value']:,}" for line in counts][::-1])
    axes.set_xlim(0.5, 10 * max((line["value"] for line in counts), default=1))
    _decorate(axes, times or "offline", "candidates", "", log_x=False)
    return bool(counts)


def _decorate(axes: Any, title: str, x: str, y: str, log_x: bool = True) -> None:
    if log_x:
        axes.set_xscale("log")
    axes.set_axisbelow(True)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)


def _legend_beside(axes: Any, title: str = "") -> None:
    """Where it covers no point; none where nothing is named."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, title=title, title_fontsize=8, frameon=False)
