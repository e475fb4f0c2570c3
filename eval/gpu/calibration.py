"""`python -m eval.gpu.calibration`: the computed cost model of an A100 against published figures.

Every figure is predicted for kernels like those that were timed: the tiles that cuBLAS or Triton choose from, not ours.
Some figures fit the constants of `gpu_stages.Calibration`; the others only test them. The data says which.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eval.commands import command
from vortex.candidates import Tile
from vortex.gpu_candidates import CLUSTERS, Backend, BlockStrategy, Variant
from vortex.gpu_hardware import GpuSpec
from vortex.gpu_profiler import block_costs, rates
from vortex.gpu_selector import LAYOUTS, Extents, GpuPlan, GpuSelector
from vortex.gpu_stages import CALIBRATION, Calibration
from vortex.specs import load_spec, what_if

DATA, ELSEWHERE = (Path(__file__).with_name(f"published_{device}.json") for device in ("a100", "h100"))
ALIGNED = 16

# Block tile, a warp's rows and columns, stages: tiles of cublasLtMatmulTile_t that kernel names on sm_80 speak of.
CUBLAS = (
    ((256, 128, 32), (64, 64), 3),
    ((128, 256, 32), (64, 64), 3),
    ((256, 64, 32), (64, 32), 4),
    ((64, 256, 32), (32, 64), 4),
    ((192, 128, 32), (48, 64), 3),
    ((128, 192, 32), (64, 48), 3),
    ((160, 128, 32), (80, 64), 3),
    ((128, 160, 32), (64, 80), 3),
    ((128, 128, 32), (64, 64), 4),
    ((128, 96, 32), (64, 48), 4),
    ((96, 128, 32), (48, 64), 4),
    ((128, 64, 64), (64, 32), 3),
    ((64, 128, 64), (32, 64), 3),
    ((64, 64, 64), (32, 32), 5),
    ((32, 128, 64), (32, 32), 4),
    ((128, 32, 64), (32, 32), 4),
)
# The tuning space of triton.ops.matmul: what its source calls compute bound, then what it calls I/O bound.
TRITON = (
    ((128, 256, 32), (64, 64), 3),
    ((256, 128, 32), (64, 64), 3),
    ((256, 64, 32), (64, 64), 4),
    ((64, 256, 32), (64, 64), 4),
    ((128, 128, 32), (64, 64), 4),
    ((128, 64, 32), (64, 32), 4),
    ((64, 128, 32), (32, 64), 4),
    ((128, 32, 32), (32, 32), 4),
    ((64, 32, 32), (32, 32), 5),
    ((16, 32, 64), (16, 16), 5),
    ((16, 64, 64), (16, 32), 5),
    ((16, 128, 64), (16, 32), 5),
    ((32, 32, 64), (32, 16), 5),
    ((32, 64, 64), (32, 32), 5),
    ((32, 128, 64), (32, 32), 5),
)
# Hopper: block tile, the rows of a warpgroup, stages that fit; cuBLAS names such tiles for sm_90, and clusters of them.
HOPPER = (
    ((128, 256, 64), 64, 4),
    ((256, 128, 64), 128, 4),
    ((128, 192, 64), 64, 4),
    ((128, 128, 64), 64, 6),
    ((128, 64, 64), 64, 8),
    ((64, 256, 64), 64, 4),
    ((64, 128, 64), 64, 8),
    ((64, 64, 64), 64, 8),
)
# CUDA cores: block tile, thread tile, stages.
SIMT = (((256, 128, 8), (8, 16), 4), ((128, 128, 8), (8, 8), 4), ((128, 64, 8), (8, 8), 5), ((64, 64, 8), (8, 4), 5))


@dataclass(frozen=True)
class Point:
    """One published figure and what is predicted for it."""

    source: str
    dtype: str
    extents: Extents
    role: str
    published_s: float
    predicted_s: float
    plan: GpuPlan

    @property
    def error(self) -> float:
        return self.predicted_s / self.published_s - 1


def strategies(library: str, dtype: str, tile: Sequence[int] | None = None) -> Iterator[BlockStrategy]:
    """The kernels that a published figure may have run."""
    if dtype == "float32":
        for (m, n, k), (rows, columns), stages in SIMT:
            warp = Tile(rows * 4, columns * 8, 1)
            yield BlockStrategy(Backend.CUDA_CORE, dtype, warp, Tile(m, n, k), Tile(rows, columns, 1), stages)
        return
    if library == "hopper":
        for (m, n, k), rows, stages in HOPPER:
            l0, l1, thread = Tile(rows, n, 16), Tile(m, n, k), Tile(64, n, 16)
            for cluster in CLUSTERS:
                yield BlockStrategy(Backend.HOPPER, dtype, l0, l1, thread, stages, cluster=cluster)
        return
    half = dtype != "tfloat32"
    for (m, n, k), (rows, columns), stages in CUBLAS if library == "cublas" else TRITON:
        if tile is not None and (m, n, k) != tuple(tile):
            continue
        depth, step = (k, 16) if half else (k // 2, 8)  # the same bytes of a stage
        l0 = Tile(rows, columns, step)
        yield BlockStrategy(Backend.TENSOR_CORE, dtype, l0, Tile(m, n, depth), Tile(16, 8, step), stages, "shared")


@cache
def device(name: str, clock_hz: int) -> GpuSpec:
    spec = load_spec(name)
    assert isinstance(spec, GpuSpec)
    if clock_hz == spec.clock_hz:
        return spec
    changed = what_if(spec, {"clock_hz": clock_hz, "l2.clock_hz": clock_hz})
    assert isinstance(changed, GpuSpec)
    return changed


@cache
def selector(
    library: str, dtype: str, tile: tuple[int, ...] | None, spec: GpuSpec, calibration: Calibration
) -> GpuSelector:
    variants = tuple(Variant(strategy, False, False, ALIGNED) for strategy in strategies(library, dtype, tile))
    costs = block_costs(spec, variants, calibration=calibration)
    return GpuSelector(variants, rates(spec, calibration), costs, "computed")


def published(path: Path = DATA) -> dict[str, Any]:
    return json.loads(path.read_text())


def points(calibration: Calibration = CALIBRATION, role: str | None = None, path: Path = DATA) -> list[Point]:
    """Every figure of a role with its prediction, as the source's way of timing would show it."""
    data = published(path)
    found = []
    for row in data["points"]:
        if role is not None and row["role"] != role:
            continue
        source = data["sources"][row["source"]]
        spec = device(source["spec"], source["clock_hz"])
        tile = tuple(row["tile"]) if "tile" in row else None
        chooser = selector(source["library"], row["dtype"], tile, spec, calibration)
        extents = Extents(row["m"], row["n"], row["k"])
        plan = chooser.select(extents, LAYOUTS[0], ALIGNED, workspace=0 if tile else 2**40)
        shown = plan.seconds
        if source["empty_s"]:
            empty = chooser.rates.launch + calibration.start_s + chooser.rates.l2_latency
            shown += source["empty_s"] - empty
        found.append(Point(row["source"], row["dtype"], extents, row["role"], row["seconds"], shown, plan))
    return found


def median_error(found: Sequence[Point]) -> float:
    return statistics.median(abs(point.error) for point in found)


def misfit(calibration: Calibration) -> float:
    """Mean of the squared logarithms over the calibration points."""
    found = points(calibration, "calibrate")
    return float(np.mean([np.log(point.predicted_s / point.published_s) ** 2 for point in found]))


FITTED = {
    "sustained_mma": (0.85, 0.97),
    "sustained_fma": (0.90, 0.99),
    "barrier_cycles": (30.0, 200.0),
    "start_s": (0.4e-6, 2e-6),
    "leak": (0.02, 0.25),
}
"""What is fitted, and where it may lie: nothing outside what these constants mean."""


def fit(rounds: int = 4, steps: int = 7) -> Calibration:
    """Coordinate descent on the calibration points; `dram_share` follows from the streams alone."""
    best = CALIBRATION
    least = misfit(best)
    for turn in range(rounds):
        for name, (low, high) in FITTED.items():
            here = getattr(best, name)
            width = (high - low) / 2**turn
            for value in np.clip(np.linspace(here - width / 2, here + width / 2, steps), low, high):
                tried = replace(best, **{name: float(f"{value:.3g}")})
                if (score := misfit(tried)) < least:
                    best, least = tried, score
    return best


def stream_share(spec: GpuSpec) -> float:
    """Share of DRAM's bandwidth that the longest published stream adds over the next one."""
    long, short = published()["streams"]["points"][-1], published()["streams"]["points"][-2]
    rate = (long["bytes"] - short["bytes"]) / (long["seconds"] - short["seconds"])
    return float(rate / spec.memory("dram").bandwidth_bytes_per_s)


def table(found: Sequence[Point]) -> str:
    lines = [
        "| source | dtype | M x N x K | role | published | predicted | error | predicted kernel |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in found:
        e, s = point.extents, point.plan.variant.strategy
        kernel = f"{s.l1.m}x{s.l1.n}x{s.l1.k}" + (f", {point.plan.splits} parts" if point.plan.splits > 1 else "")
        kernel += f", clusters of {s.cluster}" if s.cluster > 1 else ""
        lines.append(
            f"| {point.source} | {point.dtype} | {e.m} x {e.n} x {e.k} | {point.role} "
            f"| {point.published_s * 1e6:.1f} us | {point.predicted_s * 1e6:.1f} us | {point.error:+.0%} | {kernel} |"
        )
    return "\n".join(lines)


def summary(found: Sequence[Point]) -> str:
    lines = []
    for role in dict.fromkeys(point.role for point in found):
        these = [point for point in found if point.role == role]
        lines.append(f"{role}: {len(these)} points, median |error| {median_error(these):.1%}")
        for source in dict.fromkeys(point.source for point in these):
            part = [point for point in these if point.source == source]
            worst = max(part, key=lambda point: abs(point.error))
            lines.append(
                f"  {source}: {len(part)} points, median {median_error(part):.1%}, worst {worst.error:+.0%} "
                f"at {worst.extents.m}x{worst.extents.n}x{worst.extents.k} {worst.dtype}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = command(__doc__ or "")
    parser.add_argument("--fit", action="store_true", help="fit the constants again and print them")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/gpu-model.md")
    arguments = parser.parse_args()
    calibration = CALIBRATION
    if arguments.fit:
        calibration = fit()
        for field in fields(Calibration):
            print(f"{field.name:16} {getattr(calibration, field.name):.4g}")
        print(f"streams reach {stream_share(device('a100-sxm4-40gb', 1_410_000_000)):.3f} of DRAM's bandwidth")
    found = sorted(points(calibration), key=lambda point: point.role) + points(calibration, path=ELSEWHERE)
    if arguments.markdown:
        print(table(found) + "\n")
    print(summary(found))


if __name__ == "__main__":
    main()
