"""Hidet (ASPLOS 2023): a small space that follows from the hardware alone, run exhaustively for each shape.

At most 180 micro-kernels, as many as its schedules of a matrix product: register tiles near the highest measured rate,
the squarer ones, each with load stages and a few extents. The best for a shape is found by running all of them; what
the space is worth shows in how its members perform, and that no size is special in consecutive ones around the prime
2039.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from eval.compare import markdown
from eval.rivals.budget import verdict
from eval.rivals.setting import Bench, Row, median_spread
from eval.rivals.space import MicroKernel, Program, Space
from eval.stats import geometric_mean
from eval.suites import Case, load_suite, relayout
from vortex.candidates import WHOLE, Stage, Strategy, Tile

TILES = 6
"""Register tiles of the space; of twice of it, twice as many."""
NEAR = 0.9
"""Share of the highest rate that a register tile must reach."""
LOADS = (
    (Stage(), WHOLE),
    (Stage(), 256),
    (Stage(pack_b=True), 256),
    (Stage(pack_b=True), 512),
    (Stage(pack_a=True, pack_b=True), 256),
    (Stage(pack_a=True, pack_b=True), 128),
)
SIDES = (64, 128, 192, 256, 384)
"""Extents that a tile of C comes near to."""
CONSECUTIVE = tuple(range(2032, 2049))
PRIME = 2039
MOST_FLOPS, MOST_CASES = 2e9, 32
RIVALS = ("hidet",)


def rate(gemm: Any, tile: Tile) -> float:
    """Multiply-adds per second of a register tile, from the library's measured L0."""
    slope = gemm.manifest.slopes[tile.n // gemm.manifest.lanes][tile.m]
    return tile.m * tile.n / float(slope)


def register_tiles(gemm: Any, space: Space, count: int) -> list[Tile]:
    """Of those that come near the highest measured rate, the ones that load least for what they multiply."""
    rates = {tile: rate(gemm, tile) for tile in sorted({chain.l0 for chain in space.chains})}
    fast = [tile for tile in rates if rates[tile] >= NEAR * max(rates.values())]
    return sorted(fast, key=lambda tile: -(tile.m * tile.n) / (tile.m + tile.n))[:count]


def schedules(gemm: Any, space: Space, tiles: int) -> list[MicroKernel]:
    """The space: tiles of C near the sides, where the CacheBuffer holds what the stage loads."""
    mains = register_tiles(gemm, space, tiles)
    found = []
    for l0, (stage, depth), side in product(mains, LOADS, SIDES):
        tall, wide = (1 << max(0, round(side / extent) - 1).bit_length() for extent in (l0.m, l0.n))
        kernel = MicroKernel(Strategy(l0, Tile(WHOLE, WHOLE, depth), stage), l0.m * tall, l0.n * wide)
        if space.has(kernel):
            found.append(kernel)
    return list(dict.fromkeys(found))


def cases() -> list[Case]:
    """Consecutive squares, the prime first, and the products of transformers up to 2 GFLOP, B row-major.

    What comes first is measured first: a run that was cut short has the size that others are compared with.
    """
    sizes = sorted(CONSECUTIVE, key=lambda size: size != PRIME)
    squares = [Case("consecutive", f"consecutive/{size}", size, size, size) for size in sizes]
    transformer = [c for c in relayout(load_suite("vortex_transformer_gemm_192"), "nn") if c.flops <= MOST_FLOPS]
    step = -(-len(transformer) // MOST_CASES)
    return squares + transformer[::step]


@dataclass(frozen=True)
class Experiment:
    """The whole space on one shape."""

    bench: Bench

    def measure(self, case: Case) -> list[Row]:
        """The best of the space and of twice the space, raced with Vortex, and how the members perform."""
        runner, space, times = self.bench.runner, self.bench.space(case), {}
        meter = self.bench.meter(1 << 30)
        sets = [schedules(runner.vortex, space, tiles)[: self.bench.setting.trials] for tiles in (TILES, 2 * TILES)]
        for kernel in sets[0]:
            times[kernel] = meter.measure(Program(kernel, case.m, case.n, case.k), case)
        seconds, best = meter.seconds, min(times, key=lambda kernel: times[kernel])
        for kernel in sets[1]:
            times[kernel] = meter.measure(Program(kernel, case.m, case.n, case.k), case)
        again = min(times, key=lambda kernel: times[kernel])
        programs = {"hidet": best} | ({"twice": again} if again != best else {})
        calls = {"vortex": runner.ours(case)}
        for name, kernel in programs.items():
            program = Program(kernel, case.m, case.n, case.k)
            runner.verify_program(program, case)
            calls[name] = runner.program(program, case)
        raced = self.bench.race(calls)
        found = {name: one.seconds for name, one in raced.items()}
        found |= {"vortex": found["vortex"] + runner.selection(case), "twice": found.get("twice", found["hidet"])}
        about = {"id": case.id, "suite": case.suite, "m": case.m, "n": case.n, "k": case.k, "flops": case.flops}
        about |= {"seconds": found, "kernels": {"hidet": str(best)}, "space": len(sets[0]), "tuning": seconds}
        members = [times[best] / times[kernel] for kernel in sets[0]]
        return [about | {"members": members, "spread": max(one.spread for one in raced.values())}]


def tables(rows: Sequence[Row]) -> list[str]:
    """Against Vortex, the distribution in the space, the consecutive sizes, and what twice the space gains."""
    groups = {suite: [row for row in rows if row["suite"] == suite] for suite in {row["suite"]: 0 for row in rows}}
    lines, spreads = [], []
    for suite, of in groups.items():
        ratios = [row["seconds"]["hidet"] / row["seconds"]["vortex"] for row in of]
        tuning = statistics.fmean(row["tuning"] for row in of)
        lines.append([suite, str(len(of)), f"{geometric_mean(ratios):.2f}x", f"{min(ratios):.2f}x", f"{tuning:.2f} s"])
        near = [statistics.fmean(share_above(row["members"], edge) for row in of) for edge in (0.9, 0.75, 0.5)]
        spreads.append([suite, *(f"{share:.0%}" for share in near)])
    parts = [
        markdown(("shapes", "cases", "Vortex is faster by", "worst", "tuning of a shape"), lines),
        markdown(("shapes", "within 10 % of the best", "within 25 %", "within a half"), spreads),
    ]
    if squares := sorted(groups.get("consecutive", []), key=lambda row: row["m"]):
        parts.append(markdown(("size", "Hidet GFLOP/s", "Vortex GFLOP/s"), [sized(row) for row in squares]))
    once, twice = ([row["seconds"][name] for row in rows] for name in ("hidet", "twice"))
    space, spread = max(row["space"] for row in rows), median_spread(rows)
    judged = f"of twice the space, {verdict(once, twice, spread)}"
    told = f"Hidet: {space} micro-kernels, all run for every shape; {judged}. "
    return [*parts, told + f"Spread of a timing over its rounds: median {spread:.1%}."]


def share_above(members: Sequence[float], edge: float) -> float:
    """Of the space, what reaches this share of the best one's performance."""
    return sum(member >= edge for member in members) / len(members)


def sized(row: Row) -> list[str]:
    size = f"{row['m']} (prime)" if row["m"] == PRIME else str(row["m"])
    return [size, *(f"{row['flops'] / row['seconds'][name] / 1e9:.0f}" for name in ("hidet", "vortex"))]
