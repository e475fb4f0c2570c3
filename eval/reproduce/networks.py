"""Figure 13: whole networks, their products by Vortex's backend of torch.compile, beside other ways to run them."""

import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from eval import machine
from eval.alternate import rotated
from eval.compare import markdown
from eval.networks.models import NETWORKS, SYSTEMS, WARM_CALLS
from eval.process import WorkerError, WorkerProcess
from eval.records import Line
from eval.reproduce.calls import undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.run import spread
from eval.stats import Timing, geometric_mean, summarize

OURS, MODULES = "vortex", "vortex_modules"
RIVALS = tuple(name for name in SYSTEMS if not name.startswith(OURS))
ROUNDS, SECONDS = 3, 0.3
SMOKE_ROUNDS, SMOKE_SECONDS, SMOKE_INPUTS = 1, 0.05, 3
SMOKE_NETWORKS = ("distilbert",)
OPEN_TIMEOUT = 1800.0
"""A first run compiles libraries."""


@dataclass(frozen=True)
class Whole:
    """A case: a network with all its inputs, since what takes longest is to compile it."""

    id: str
    seconds: float = math.inf
    """About what it may take: inputs that would take longer are left out, all but the first."""

    def __str__(self) -> str:
        return self.id


def networks(options: Options) -> list[Whole]:
    return [Whole(name) for name in NETWORKS if not options.smoke or name in SMOKE_NETWORKS]


def inputs_of(name: str, options: Options) -> list[tuple[int, ...]]:
    """Those of a network that this run measures; any beginning of them is spread evenly over all."""
    every = NETWORKS[name].inputs
    return spread(every)[: options.inputs or (SMOKE_INPUTS if options.smoke else len(every))]


def within(case: Whole, seconds: float) -> Whole:
    return replace(case, seconds=seconds)


def lasting(longer: float, calls: Sequence[float], rounds: int, seconds: float) -> float:
    """About how long an input takes to measure, from seconds of a call, a system each, on one as many times shorter."""
    return sum((1 + WARM_CALLS) * call * longer + rounds * max(seconds, call * longer) for call in calls)


def _label(extents: Sequence[int]) -> str:
    """The length of a text; batch and size of images."""
    return f"{extents[1]}" if len(extents) == 2 else f"{extents[0]}x{extents[-1]}"


def open_networks(options: Options, stack: ExitStack) -> Measure:
    workers = {
        name: stack.enter_context(WorkerProcess(name, options.threads, module="eval.networks.worker"))
        for name in SYSTEMS
    }
    rounds, seconds = (SMOKE_ROUNDS, SMOKE_SECONDS) if options.smoke else (ROUNDS, SECONDS)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def one_input(ready: dict[str, WorkerProcess], network: str, extents: tuple[int, ...]) -> list[Line]:
        prepared: dict[str, Line] = {}
        failed: dict[str, str] = {}
        expected = folder / f"{network}-{_label(extents)}.pt"
        request = {"do": "prepare", "input": extents, "seed": options.seed, "expected": str(expected)}
        for name, worker in ready.items():
            try:
                prepared[name] = worker.ask(request)
            except WorkerError as error:
                failed[name] = str(error)
        expected.unlink(missing_ok=True)

        def timed() -> list[Line]:
            found: dict[str, list[Timing]] = {name: [] for name in prepared}
            for turn in range(rounds):
                for name in rotated(list(prepared), turn):
                    answer = ready[name].ask({"do": "measure", "seconds": seconds})
                    found[name].append(Timing(answer["calls"], answer["best"], answer["median"]))
            return [
                prepared[name] | {"system": name} | asdict(summarize(timings, "warm"))
                for name, timings in found.items()
            ]

        rows = undisturbed(timed, options) + [{"system": name, "error": text} for name, text in failed.items()]
        return [{"input": _label(extents), **row} for row in rows]

    def one(case: Whole) -> list[Line]:
        begin, ready, rows, calls = time.monotonic(), {}, list[Line](), list[float]()
        request = {"do": "open", "network": case.id, "small": options.smoke}
        for name, worker in workers.items():
            try:
                opened = worker.ask(request, OPEN_TIMEOUT)
                ready[name] = worker
                calls.append(opened["call_s"])
                rows.append({"system": name, "opened_s": opened["seconds"], "versions": worker.versions})
            except WorkerError as error:
                rows.append({"system": name, "error": str(error)})
        found: dict[tuple[int, ...], list[Line]] = {}
        known = math.prod(NETWORKS[case.id].first[-1])
        for extents in inputs_of(case.id, options):
            elements = math.prod(extents)
            if found and time.monotonic() - begin + lasting(elements / known, calls, rounds, seconds) > case.seconds:
                continue
            try:
                found[extents] = one_input(ready, case.id, extents)
            except machine.BusyError as error:  # the network is open: the others are measured, and the page tells
                found[extents] = [{"input": _label(extents), "system": "all", "error": str(error)}]
            timed = [row["seconds"] for row in found[extents] if "seconds" in row]
            if timed and elements > known:
                known, calls = elements, timed
        return rows + [
            row
            for extents in NETWORKS[case.id].inputs
            for row in found.get(extents) or counted(ready, case.id, extents)
        ]

    def counted(ready: dict[str, WorkerProcess], network: str, extents: tuple[int, ...]) -> list[Line]:
        """An input that there was no time to measure, run once: what is compiled anew is counted over all."""
        if OURS not in ready:
            return []
        try:
            answer = ready[OURS].ask({"do": "count", "input": extents, "seed": options.seed})
        except WorkerError as error:
            answer = {"error": str(error)}
        return [{"input": _label(extents), "system": OURS, **answer}]

    return one


def speedups(lines: Sequence[Line], network: str, rival: str, ours: str = OURS) -> dict[str, float]:
    """The rival's seconds over ours for each input; `rival` may be "best": the fastest of all but eager."""
    seconds: dict[str, dict[str, float]] = {}
    for row in (row for line in lines if line["id"] == network for row in line["rows"]):
        if "seconds" in row:
            seconds.setdefault(row["input"], {})[row["system"]] = row["seconds"]
    found = {}
    for label, at in seconds.items():
        others = [at[name] for name in RIVALS if name != "eager" and name in at] if rival == "best" else [at.get(rival)]
        if ours in at and others and None not in others:
            found[label] = min(others) / at[ours]  # type: ignore[type-var, operator]
    return found


def fig13(lines: Sequence[Line]) -> Page:
    blocks, losses = [], []
    for threads in sorted({line["threads"] for line in lines}):
        here = [line for line in lines if line["threads"] == threads]
        names = [name for name in NETWORKS if any(line["id"] == name for line in here)]
        columns = [(OURS, rival) for rival in (*RIVALS, "best")] + [(MODULES, "eager"), (MODULES, "best")]
        rows, everything = [], {column: list[float]() for column in columns}
        for name in names:
            cells = [name]
            for ours, rival in columns:
                found = speedups(here, name, rival, ours)
                everything[ours, rival] += found.values()
                cells.append(f"{geometric_mean(found.values()):.2f}" if found else "-")
                if (ours, rival) == (OURS, "best"):
                    losses += [f"- {name}, {at}: {x:.2f} of the best rival" for at, x in found.items() if x < 0.95]
            every = len(NETWORKS[name].inputs)
            again = [row["compilations"] for line in here for row in line["rows"] if _counts(line, row, name)]
            rows.append([*cells, f"{sum(again)} in {len(again)} of {every} inputs"])
        means = [f"{geometric_mean(found):.2f}" if found else "-" for found in everything.values()]
        rows.append(["**all inputs**", *means, ""])
        told = (f"{'swapped modules ' * (ours == MODULES)}over {rival}" for ours, rival in columns)
        header = ("network", *told, "compiled again")
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", markdown(header, rows)]
        blocks += [
            f"- {line['id']}, {row['system']}, {row.get('input', 'at the start')}: {row['error']}"
            for line in here
            for row in line["rows"]
            if "error" in row
        ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = [name for name in NETWORKS if any(line["id"] == name for line in lines)]
        for place, rival in enumerate(RIVALS):
            points = [(at, x) for at, name in enumerate(names) for x in speedups(lines, name, rival).values()]
            beside = 0.2 * (place - (len(RIVALS) - 1) / 2)
            places, ratios = [at + beside for at, _ in points], [x for _, x in points]
            axes.scatter(places, ratios, s=24, alpha=0.8, label=f"over {rival}")
        axes.axhline(1.0, color="gray", linewidth=1)
        axes.set(ylabel="speedup, a point for each input", ylim=(0.0, None))
        axes.set_xticks(range(len(names)), names, rotation=20)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3, axis="y")

    return Page(blocks, losses, draw)


def _counts(line: Line, row: Line, name: str) -> bool:
    return line["id"] == name and row["system"] == OURS and "compilations" in row


FIG13 = Result(
    "fig13",
    "whole networks",
    "random weights, float32. The paper's clients are its own; here language models are those of `transformers` and "
    "Vortex is a backend of torch.compile, which leaves to Inductor what lies between products. Inductor runs with "
    "frozen weights. What is compiled again is counted from the first input on: images of all batches and sizes, one "
    "alone too, are one program of the backend; language models ask themselves whether a length is 1, and both answers "
    "are compiled before anything is counted; inputs that there is no time to measure are run once, to count. Where "
    "modules are swapped instead, nothing is compiled. ONNX Runtime has AlexNet and VGG-16 exported anew for each size "
    "of images, since the exporter knows no pooling to a given size. With a limit of time, inputs that would take "
    "longer than what is left for their network are not measured.",
    networks,
    open_networks,
    fig13,
    seconds=400.0,
    opening=30.0,
    within=within,
)
