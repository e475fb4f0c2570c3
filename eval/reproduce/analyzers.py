"""Table 7: what measuring more, or less, of the hierarchy buys (E: the levels whose cost is measured).

Every configuration ranks the same candidates by the same cost model, offline and at run time; what differs is where
costs come from. `none` computes the cost of L0 from the spec. `E: L0` is the default. `E: L0, L1` also runs each
candidate on one tile of L1 and scales all that is predicted of it by measured over predicted. Plans are run by one
library that has the strategies of all three.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from eval import plans
from eval.compare import markdown
from eval.link_table import hardware_of, widened
from eval.offline import stages
from eval.operands import check, make_operands
from eval.plots import ratios_up
from eval.records import Line
from eval.reproduce.calls import in_turn, product, undisturbed
from eval.reproduce.result import Measure, Options, Page, Result
from eval.reproduce.vendors import by_size
from eval.stats import geometric_mean
from eval.suites import VORTEX_SUITES, Case, load_suite
from eval.worker import time_batch
from vortex import analyzer, operators, profiler, rating
from vortex.arithmetic import Array
from vortex.candidates import Strategy
from vortex.compiler import MOST_STRATEGIES
from vortex.cost import Cost
from vortex.plans import Grid, LaunchPlan, OperandB, Shape
from vortex.problem import Problem
from vortex.rkernel import decompose
from vortex.selector import Selector
from vortex.shapes import shape_of
from vortex.sieve import Sieve, sieve

DEFAULT, MORE, LESS = "E: L0", "E: L0, L1", "none"
KINDS = OperandB.PLAIN, OperandB.TRANSPOSED
MOST_EXTENT = 2048
"""Stands for an extent of a tile that is not cut."""
REPEATS = 3
SMOKE_CANDIDATES = 24


@dataclass(frozen=True)
class Corrected(Selector):
    """A selector whose costs are scaled, strategy by strategy, by what one tile of L1 took over what it should."""

    ratios: Mapping[Strategy, float] = field(default_factory=dict)
    """Of these strategies and of others: the analyzer takes some away and asks again."""

    @cached_property
    def scale(self) -> Array:
        return np.array([self.ratios[strategy] for strategy in self.strategies], np.float32)

    def costs(self, shape: Shape, grid: Grid, threads: int, others: np.float32 | None = None) -> Cost:
        cost = super().costs(shape, grid, threads, others)
        return replace(cost, total=np.asarray(cost.total) * self.scale)

    def totals(self, asked: Sequence[Problem]) -> Array:
        return super().totals(asked) * self.scale


@dataclass(frozen=True)
class Configuration:
    """How strategies are chosen at run time, and what choosing them offline took."""

    selector: Selector
    offline_s: float
    measured: int
    """Candidates of L1 that were run."""


def l1_shape(strategy: Strategy) -> tuple[int, int, int]:
    """One tile of L1 as a product of its own.

    Turned over and as dot products run only products with as few columns as their register tile has rows, or columns;
    rows of B stream past a few rows of C for several steps of k.
    """
    m, n, k = (min(extent, MOST_EXTENT) for extent in (strategy.l1.m, strategy.l1.n, strategy.l1.k))
    if strategy.stage.streamed:
        return strategy.l0.m, n, MOST_EXTENT
    if strategy.stage.swap:
        return n, strategy.l0.m, k
    return (m, strategy.l0.n, k) if strategy.stage.dot else (m, n, k)


def measured_ratios(library: Any, options: Options) -> dict[Strategy, float]:
    """Measured over predicted seconds of one tile of L1 of every strategy of the library, on one thread."""
    ratios, selector = {}, replace(library.manifest.selector(), shortlists=None)
    for index, strategy in enumerate(library.strategies):
        m, n, k = l1_shape(strategy)
        operands = make_operands(Case("l1", f"l1/{m}x{n}x{k}", m, n, k), options.seed)
        predicted = float(np.asarray(selector.costs(shape_of(m, n, k), Grid(1, 1), 1).total)[index])
        plan = LaunchPlan(index, strategy, Grid(1, 1), predicted)
        call = partial(library.run, plan, operands.a, operands.b, operands.out)
        call()
        ratios[strategy] = min(time_batch(call, 1) for _ in range(REPEATS)) / predicted
    return ratios


def finalists(default: Selector, found: Sieve) -> list[Strategy]:
    """What is worth running at L1: the best L1 tiles of every L0 tile, as the analyzer finds them first."""
    lattice, _ = analyzer.lattices({})
    shapes = analyzer.domain(lattice, KINDS, {}).shapes
    return analyzer.best_under_each(replace(default, strategies=found.strategies, shortlists=None), shapes)


def configurations(gemm: Any, options: Options) -> dict[str, Configuration]:
    """All three, with the seconds of what each does offline: sieve, emission and linking are the same for all."""
    manifest, hardware = gemm.manifest, hardware_of(gemm)
    laps, default = stages(gemm), manifest.selector()
    found = sieve(decompose(operators.named(manifest.operator), hardware))
    rest = laps["sieve"] + laps["emit"] + laps["link"]

    begun = time.perf_counter()
    profile = profiler.compute(hardware, [(tile.m, tile.n // manifest.lanes) for tile in found.register_tiles])
    rates, table = rating.rates(hardware, profile), profile.slopes()
    chosen, shortlists, panel = analyzer.analyze(
        found.strategies, rates, table, manifest.lanes, hardware.cores, MOST_STRATEGIES, {}
    )
    computed = Selector(chosen, rates, table, manifest.lanes, panel, shortlists=shortlists)
    less = Configuration(computed, time.perf_counter() - begun + rest, 0)

    candidates = list(dict.fromkeys([*manifest.strategies, *finalists(default, found)]))
    candidates = candidates[:SMOKE_CANDIDATES] if options.smoke else candidates
    library = widened(gemm, candidates)  # not counted: a library of them is linked for the comparison's sake
    begun = time.perf_counter()
    fields = {name: getattr(default, name) for name in ("rates", "table", "lanes", "panel", "words")}
    wide = Corrected(tuple(candidates), **fields, ratios=measured_ratios(library, options))
    kept, shortlists = analyzer.shortlisted(wide, KINDS, {}, hardware.cores, MOST_STRATEGIES)
    more = replace(wide, strategies=tuple(kept), shortlists=shortlists)
    spent = time.perf_counter() - begun + laps["measure"] + laps["analyze"] + rest
    return {
        DEFAULT: Configuration(default, sum(laps.values()), 0),
        MORE: Configuration(more, spent, len(candidates)),
        LESS: less,
    }


def all_products(options: Options) -> Sequence[Case]:
    """Table 3."""
    found = by_size((case for suite in VORTEX_SUITES for case in load_suite(suite)), options)
    return [case for case in found if isinstance(case, Case)]


def open_analyzers(options: Options, stack: ExitStack) -> Measure:
    gemm = product(options)
    found = configurations(gemm, options)
    every = list(dict.fromkeys(s for at in found.values() for s in at.selector.strategies))
    library, place = widened(gemm, every), {strategy: index for index, strategy in enumerate(every)}

    def one(case: Case) -> list[Line]:
        operands = make_operands(case, options.seed)
        shape = shape_of(case.m, case.n, case.k, transpose_b=case.trans_b)
        chosen = {name: at.selector.select(shape, options.threads) for name, at in found.items()}
        calls: dict[str, Any] = {}
        labels: dict[str, str] = {}
        deeds: dict[Any, str] = {}
        for name, plan in chosen.items():  # what does the same to this shape is timed once, under its first name
            labels[name] = deeds.setdefault(plans.deed(plan, case.m, case.n, case.k), plans.label(plan))
            if labels[name] in calls:
                continue
            run = replace(plan, index=place[plan.strategy])
            calls[labels[name]] = partial(
                library.run, run, operands.a, operands.b, operands.out, transpose_b=case.trans_b
            )
        for call in calls.values():
            call()
            check(operands, operands.out)

        def timed() -> list[Line]:
            timings = in_turn(calls, options)
            about = {"m": case.m, "n": case.n, "k": case.k, "suite": case.suite}
            return [
                about
                | {"config": name, "plan": labels[name], "offline_s": at.offline_s, "measured": at.measured}
                | timings[labels[name]]
                for name, at in found.items()
            ]

        return undisturbed(timed, options)

    return one


def table7(lines: Sequence[Line]) -> Page:
    blocks, losses, drawn = [], [], {}
    for threads in sorted({line["threads"] for line in lines}):
        here = [{row["config"]: row for row in line["rows"]} for line in lines if line["threads"] == threads]
        rows = []
        for name in (LESS, DEFAULT, MORE):
            ratios = [line[DEFAULT]["seconds"] / line[name]["seconds"] for line in here]
            drawn[name] = sorted(ratios)
            other = sum(line[name]["plan"] != line[DEFAULT]["plan"] for line in here)
            offline, measured = here[-1][name]["offline_s"], here[-1][name]["measured"]
            figures = [f"{geometric_mean(ratios):.3f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
            rows.append([name, f"{offline:.1f} s", str(measured), f"{other} of {len(here)}", *figures])
        header = (
            "configuration",
            "offline",
            "tiles of L1 run",
            "other plans",
            "performance, geo. mean",
            "least",
            "most",
        )
        blocks += [f"### {threads} thread{'s' * (threads > 1)}", markdown(header, rows)]
        best = sorted(here, key=lambda line: line[MORE]["seconds"] / line[DEFAULT]["seconds"])[:5]
        cells = [
            [
                f"{line[DEFAULT]['m']}x{line[DEFAULT]['n']}x{line[DEFAULT]['k']}",
                f"{line[DEFAULT]['seconds'] / line[MORE]['seconds']:.2f}",
                line[DEFAULT]["plan"],
                line[MORE]["plan"],
            ]
            for line in best
            if line[MORE]["seconds"] < 0.95 * line[DEFAULT]["seconds"]
        ]
        if cells:
            losses.append(f"At {threads} thread(s), where measuring L1 as well would gain most:")
            losses.append(markdown(("shape", "gain", f"plan of {DEFAULT}", f"plan of {MORE}"), cells))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, ratios in drawn.items():
            axes.plot(range(len(ratios)), ratios, label=f"{name}: {geometric_mean(ratios):.3f}")
        axes.set_xlabel("shapes, by performance")
        axes.set_ylabel(f"performance relative to {DEFAULT}")
        ratios_up(axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, title="geometric mean of", title_fontsize=8)

    return Page(blocks, losses, draw)


TABLE7 = Result(
    "table7",
    "analyzer configurations: offline time against performance",
    "the paper's changed CPU configuration runs every candidate of L1 for 33 hours. Here the candidates that are the "
    "best of their L0 tile somewhere in the domain are run, each on one tile of L1, and what is predicted of it is "
    "scaled by measured over predicted; a third configuration measures nothing. Selection is the Python mirror's, "
    "of one strategy a call, and not timed.",
    all_products,
    open_analyzers,
    table7,
    seconds=1.5,
    opening=90.0,
)
