"""`python -m eval.gpu.selection`: what choosing a kernel costs the host, for GPU libraries, with no GPU.

Every shape of the suites, two regions included where the library would run two. A shape's time is the median over
rounds that take all shapes in turn; the table has the median and the slowest of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval import machine
from eval.commands import command, ended
from eval.gpu.budget import median
from eval.gpu.parts import FIGURE_16, SQUARES
from eval.suites import MAIN_SUITES, Case, load_suite
from vortex.errors import VortexError
from vortex.gpu_library import read
from vortex.gpu_planner import GpuPlanner

REPEATS = 200
HEAD = "| library | kernels | shapes | median, us | slowest, us | of two regions | their median, us |"


@dataclass(frozen=True)
class Selection:
    """One library: seconds of a selection by case, and the cases that two kernels would serve."""

    library: str
    kernels: int
    seconds: dict[Case, float]
    cut: frozenset[Case]

    @property
    def slowest(self) -> Case:
        return max(self.seconds, key=lambda case: self.seconds[case])

    def row(self) -> str:
        times, worst = list(self.seconds.values()), self.slowest
        cut = [self.seconds[case] for case in self.cut]
        cells = [self.library, self.kernels, len(times), f"{median(times) * 1e6:.2f}"]
        cells += [f"{self.seconds[worst] * 1e6:.2f} ({worst.m}x{worst.n}x{worst.k} {worst.layout})", len(cut)]
        cells.append(f"{median(cut) * 1e6:.2f}" if cut else "")
        return "| " + " | ".join(map(str, cells)) + " |"


def cases() -> list[Case]:
    """One of each shape and layout of the suites."""
    every = [*SQUARES, *(case for name in (*MAIN_SUITES, FIGURE_16) for case in load_suite(name))]
    return list({(case.m, case.n, case.k, case.layout): case for case in every}.values())


def measured(name: str, gemm: Any, shapes: Sequence[Case], rounds: int, repeats: int = REPEATS) -> Selection:
    """`gemm` plans for a GPU library, on any machine."""
    times: dict[Case, list[float]] = {case: [] for case in shapes}
    for _ in range(rounds):
        for case in shapes:
            layout = {"transpose_a": case.trans_a, "transpose_b": case.trans_b}
            times[case].append(gemm.time_selection(case.m, case.n, case.k, repeats, **layout))
    cut = [
        case
        for case in shapes
        if len(gemm.regions(case.m, case.n, case.k, transpose_a=case.trans_a, transpose_b=case.trans_b)) > 1
    ]
    return Selection(name, len(gemm.kernels), {case: median(found) for case, found in times.items()}, frozenset(cut))


def main(arguments: Sequence[str] | None = None) -> int:
    top = command(__doc__ or "")
    top.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY.vortex", help="of GPUs and plain products")
    top.add_argument("--rounds", type=int, default=15, help="over all shapes")
    top.add_argument("--allow-busy", action="store_true", help="measure although others use the machine")
    options = top.parse_args(arguments)
    try:
        found = [(path.stem, GpuPlanner(read(path))) for path in options.libraries]
    except VortexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not options.allow_busy:
        machine.check_idle()
    print(f"{machine.device()}, one thread, commit {machine.commit()}; medians of {options.rounds} rounds.\n")
    print(HEAD)
    print("|---" + "|---:" * (HEAD.count("|") - 2) + "|")
    for name, gemm in found:
        print(measured(name, gemm, cases(), options.rounds).row(), flush=True)
    return 0


if __name__ == "__main__":
    ended(main)
