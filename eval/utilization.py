"""`python -m eval.utilization`: performance over utilization (the paper's Figure 5): what the sieve's bounds rest on.

L0: every register tile that fits the instruction set was timed when the library was compiled; what is drawn are those
measurements over the share of the vector registers that a tile uses. L1: strategies that copy operands into the
CacheBuffer run on a few shapes, one core, with the register tile that the cost model likes best. Those that the bounds
of the spec forbid run too, up to a CacheBuffer twice as large as the level's memory.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eval import machine, records
from eval.commands import command, ended, opened
from eval.link_table import hardware_of, widened
from eval.plans import deed
from eval.races import time_plans
from vortex import operators
from vortex.candidates import Strategy, Tile, registers_needed
from vortex.plans import Shape
from vortex.rkernel import decompose
from vortex.sieve import buffer_bytes, sieve
from vortex.specs import what_if

OVERFILLED = 2
"""How many times over the CacheBuffer may fill its memory here."""
SHAPES = ((1024, 1024, 1024), (384, 1536, 1536), (2048, 512, 512))
BINS = {"L0": (0.0, 0.25, 0.5, 0.75, 1.0), "L1": (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)}
MEMORIES = {"L0": "the vector registers", "L1": "one core's memory of L1"}


@dataclass(frozen=True)
class Point:
    """One tile: what share of its memory it uses, and what share of one core's peak it reaches."""

    level: str
    group: str
    """Tiles that are alike: for the legend."""
    utilization: float
    share: float


def core_peak(gemm: Any) -> float:
    """Flops per second of one core: by the spec, or as measured now if that is more."""
    hardware = hardware_of(gemm)
    return max(hardware.peak_flops_per_s / hardware.cores, machine.peak(1))


def register_tiles(gemm: Any, peak: float) -> list[Point]:
    """Every measured register tile."""
    manifest, isa = gemm.manifest, hardware_of(gemm).instruction(gemm.manifest.dtype)
    found = []
    for kernel in manifest.profile["kernels"]:
        rows, vectors = kernel["rows"], kernel["vectors"]
        share = 2 * rows * vectors * manifest.lanes / kernel["slope_s"] / peak
        width = f"{vectors} vector{'s' * (vectors > 1)} wide" if vectors <= 3 else "wider"
        found.append(Point("L0", width, registers_needed(rows, vectors) / isa.registers, share))
    return found


def copying_strategies(gemm: Any, shapes: Sequence[tuple[int, int, int]]) -> list[Strategy]:
    """All that copy, on the register tiles that the cost model picks for the shapes, in a memory `OVERFILLED` times."""
    hardware = hardware_of(gemm)
    memory = hardware.memory(hardware.level("L1").memory)
    figures = {f"{memory.name}.capacity_bytes": OVERFILLED * memory.capacity_bytes, "L1.max_utilization": 1.0}
    roomy = sieve(decompose(operators.named(gemm.manifest.operator), what_if(hardware, figures)))
    select = gemm.manifest.selector().select
    tiles = {select(Shape(*shape), 1).strategy.l0 for shape in shapes}
    return [s for s in roomy.strategies if s.l0 in tiles and not s.stage.swap and (s.stage.pack_a or s.stage.pack_b)]


def cache_tiles(
    gemm: Any, peak: float, shapes: Sequence[tuple[int, int, int]] = SHAPES, rounds: int = 2
) -> Iterable[Point]:
    """Copying strategies on every shape: the share of the L1 level's memory that their CacheBuffer fills there."""
    hardware, item = hardware_of(gemm), operators.named(gemm.manifest.operator).item_bytes
    memory = hardware.memory(hardware.level("L1").memory)
    capacity = memory.capacity_bytes / memory.shared_by
    wide = widened(gemm, copying_strategies(gemm, shapes))
    for m, n, k in shapes:
        best = gemm.manifest.selector().select(Shape(m, n, k), 1).strategy.l0
        plans = {deed(p, m, n, k): p for p in wide.plans(m, n, k, threads=1) if p.strategy.l0 == best}
        a, b, out = (machine.aligned(x * y).reshape(x, y) for x, y in ((m, k), (k, n), (m, n)))
        a.fill(1.0)
        b.fill(1.0)
        calls = {str(p.strategy): partial(wide.run, p, a, b, out) for p in plans.values()}
        for call in calls.values():
            out.fill(np.nan)
            call()
            assert (out == k).all(), "a strategy computes something else than the product"
        seconds = {name: min(both) for name, both in time_plans(calls, rounds).items()}
        for plan in plans.values():
            l0, l1, stage = plan.strategy.l0, plan.strategy.l1, plan.strategy.stage
            held = Tile(min(l1.m, m), min(l1.n, -(-n // l0.n) * l0.n), min(l1.k, k))
            share = 2 * m * n * k / seconds[str(plan.strategy)] / peak
            yield Point("L1", f"{m}x{n}x{k}", buffer_bytes(held, stage, item, l0.m) / capacity, share)


def summary(points: Sequence[Point]) -> str:
    """The best and the mean tile of each range of utilization."""
    lines = []
    for level, edges in BINS.items():
        for low, high in pairwise(edges):
            inside = [p.share for p in points if p.level == level and low < p.utilization <= high]
            if inside:
                what = f"{level}: {low:.0%} to {high:.0%} of {MEMORIES[level]}"
                best, mean = max(inside), sum(inside) / len(inside)
                lines.append(f"{what:<50} best {best:.2f}, mean {mean:.2f} of peak, {len(inside):4} tiles")
    return "\n".join(lines)


def draw(points: Sequence[Point], bounds: dict[str, tuple[float, float]], path: Path) -> None:
    """One panel a level, the range that the spec admits in green."""
    from matplotlib.figure import Figure

    levels = [level for level in BINS if any(p.level == level for p in points)]
    figure = Figure(figsize=(6.5 * len(levels), 4.5), layout="constrained")
    for axes, level in zip(np.atleast_1d(figure.subplots(1, len(levels), sharey=True)), levels, strict=True):
        here = [p for p in points if p.level == level]
        for group, mark in zip(dict.fromkeys(p.group for p in here), "os^xv+", strict=False):
            some = [p for p in here if p.group == group]
            axes.plot([p.utilization for p in some], [p.share for p in some], mark, label=group, ms=4, alpha=0.6)
        low, high = bounds[level]
        axes.axvspan(low, high, alpha=0.1, color="green", label="admitted by the spec")
        axes.set(xlabel=f"share of {MEMORIES[level]}", xlim=(0, BINS[level][-1] * 1.02), ylim=(0, 1.05))
        axes.set_title(f"{level} tiles")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=8)
    figure.supylabel("share of one core's peak")
    figure.savefig(path, dpi=120)


def parser() -> argparse.ArgumentParser:
    top = command(__doc__)
    top.add_argument("--library", help="a saved library of this machine instead of vortex.compile()")
    top.add_argument("--out", type=Path, default=Path("docs/performance"), help="folder of utilization.png")
    top.add_argument("--lines", type=Path, help="file that the points are added to, as JSON lines")
    top.add_argument("--levels", nargs="+", choices=("L0", "L1"), default=["L0", "L1"], help="what to draw")
    top.add_argument("--allow-busy", action="store_true", help="measure on a busy machine too")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    gemm = opened(options.library, 1, options.allow_busy)
    if gemm.manifest.basis != "measured":
        print("error: the library's L0 was not measured on this machine; there is nothing to draw", file=sys.stderr)
        return 1
    peak = core_peak(gemm)
    points = register_tiles(gemm, peak) if "L0" in options.levels else []
    if "L1" in options.levels:
        points += cache_tiles(gemm, peak)
    levels = hardware_of(gemm).levels
    bounds: dict[str, tuple[float, float]] = {
        level.name: (level.min_utilization, level.max_utilization) for level in levels
    }
    options.out.mkdir(parents=True, exist_ok=True)
    draw(points, bounds, options.out / "utilization.png")
    if options.lines:
        about = {"kind": "utilization", "commit": machine.commit(), "device": machine.device()}
        records.append(options.lines, [about | asdict(point) for point in points])
    print(summary(points))
    return 0


if __name__ == "__main__":
    ended(main)
