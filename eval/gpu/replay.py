"""`python -m eval.gpu.replay`: recorded races of a GPU's kernels, predicted and chosen again by today's cost model.

No device is needed. A recording holds what a prediction needs that the repository does not (the kernels and their
registers) and what was measured: seconds of the plans that were predicted to be the soonest then. Costs of L1 are those
recorded of the device. Recordings are in `tests/recorded_gpu_races`.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.commands import command
from eval.compare import markdown
from eval.stats import geometric_mean
from vortex.candidates import Tile
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_hardware import GpuSpec
from vortex.gpu_profiler import block_costs, rates, recording
from vortex.gpu_selector import Extents, GpuSelector, Layout
from vortex.specs import load_spec

NEAR = 1.5
"""Errors are of plans that take at most so many times the soonest one's seconds: no others are ever chosen."""
PICOSECONDS = 1e12


@dataclass(frozen=True)
class Plan:
    """A kernel with its reduction in so many parts; seconds, and what the model says they are."""

    kernel: str
    parts: int
    seconds: float
    predicted: float


@dataclass(frozen=True)
class Race:
    """The plans of one product."""

    extents: tuple[int, int, int]
    plans: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        return min(self.plans, key=lambda plan: plan.seconds)

    @property
    def chosen(self) -> Plan:
        return min(self.plans, key=lambda plan: plan.predicted)

    @property
    def share(self) -> float:
        """Of the soonest plan's performance, what the choice has."""
        return self.best.seconds / self.chosen.seconds

    @property
    def errors(self) -> list[float]:
        """Logarithms of predicted over measured seconds."""
        near = (plan for plan in self.plans if plan.seconds <= NEAR * self.best.seconds)
        return [math.log(plan.predicted / plan.seconds) for plan in near]


def variant_of(row: Sequence[Any]) -> Variant:
    """backend, type, L0, L1, thread, stages, store, cluster, transposed A, transposed B, bytes of a load."""
    backend, dtype, l0, l1, thread, stages, store, cluster, a, b, size = row
    strategy = BlockStrategy(Backend(backend), dtype, Tile(*l0), Tile(*l1), Tile(*thread), stages, store, cluster)
    return Variant(strategy, a, b, size)


def replay(path: Path) -> list[Race]:
    """The recorded races with today's predictions."""
    data = json.loads(path.read_text())
    variants = [variant_of(row) for row, _ in data["kernels"]]
    registers = {variant.name: count for variant, (_, count) in zip(variants, data["kernels"], strict=True)}
    spec = load_spec(data["spec"])
    if not isinstance(spec, GpuSpec):
        raise ValueError(f"{path}: recorded on {data['spec']!r}, expected the spec of a GPU")
    profile = recording(spec)
    costs = block_costs(spec, variants, profile, registers)
    selector = GpuSelector(tuple(variants), rates(spec), costs, profile.basis)
    return [_again(selector, race, data["workspace"]) for race in data["races"]]


def _again(selector: GpuSelector, race: dict[str, Any], workspace: int) -> Race:
    m, n, k = race["extents"]
    key = selector.group(Layout(*race["layout"]), race["alignment"])
    rows = {index: row for row, index in enumerate(selector.groups[key])}
    predicted: dict[tuple[int, int], float] = {}
    for cuts, cost in selector.options(Extents(m, n, k), key, workspace):
        for index, row in rows.items():
            predicted.setdefault((index, int(cuts[row])), float(cost.total[row]))
    plans = [
        Plan(selector.variants[index].name, parts, picoseconds / PICOSECONDS, predicted[index, parts])
        for index, parts, picoseconds in race["plans"]
        if (index, parts) in predicted  # a cut that is no longer tried
    ]
    return Race((m, n, k), tuple(plans))


def table(races: Sequence[Race]) -> str:
    """What the choice has of the soonest plans, how far predictions are off, and where it loses most."""
    shares, errors = [race.share for race in races], [error for race in races for error in race.errors]
    told = (
        f"{len(races)} products, {sum(len(race.plans) for race in races)} plans: the choice has "
        f"{geometric_mean(shares):.3f} of the soonest plan (geometric mean), {min(shares):.2f} at worst, "
        f"{sum(share < 0.85 for share in shares)} below 0.85; predictions are off by "
        f"{statistics.median(map(abs, errors)):.1%} in the median, {statistics.median(errors):+.1%} signed."
    )
    lost = [race for race in sorted(races, key=lambda race: race.share)[:10] if race.share < 1]
    cells = [
        ["x".join(map(str, race.extents)), f"{race.share:.2f}", *row(race.chosen), *row(race.best)] for race in lost
    ]
    header = ("m x n x k", "share", "chosen", "us", "predicted", "soonest", "us", "predicted")
    return f"{told}\n\n{markdown(header, cells)}"


def row(plan: Plan) -> list[str]:
    kernel = plan.kernel + (f", {plan.parts} parts" if plan.parts > 1 else "")
    return [kernel, f"{plan.seconds * 1e6:.1f}", f"{plan.predicted * 1e6:.1f}"]


def main() -> None:
    parser = command(__doc__ or "")
    parser.add_argument("recordings", nargs="+", type=Path, metavar="FILE", help="recorded races")
    for path in parser.parse_args().recordings:
        print(f"{path.name}: {table(replay(path))}\n")


if __name__ == "__main__":
    main()
