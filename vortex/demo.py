"""`vortex demo`: the matrix products of a BERT-base layer over 24 sequence lengths, against NumPy, each result checked.

The three contenders take turns, shape by shape. NumPy's threads keep polling for a while after each product, which
would take a core from whoever comes next, so after its turn the demo waits until they sleep.
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from vortex.api import Progress
from vortex.api import compile as compile_operator
from vortex.launcher import GemmKernel
from vortex.threads import get_num_threads

LENGTHS = tuple(round(1 + place * 475 / 23) for place in range(24))
PRODUCTS = (  # what it computes, n, k; m is the sequence length
    ("query, key, value", 2304, 768),
    ("attention output", 768, 768),
    ("feed-forward, up", 3072, 768),
    ("feed-forward, down", 768, 3072),
)
ROUNDS = 4
ROUND_S = 2e-3
"""A contender's turn: at least one call, and as many as fit."""
POLLING_S = 0.15
"""OpenBLAS threads poll before they sleep: measured, they are still at it after 0.03 s and gone after 0.2 s."""
UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Row:
    """One product: what was computed, how fast by whom (seconds of the fastest turn), and whether it is right."""

    product: str
    m: int
    n: int
    k: int
    strategy: int
    """Its number in the library."""
    described: str
    grid: str
    numpy_s: float
    vortex_s: float
    packed_s: float
    error: float
    """Largest error over its bound, of both results; above 1 is wrong."""

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def right(self) -> bool:
        return self.error <= 1


def worst_error(result: Any, a: Any, b: Any) -> float:
    """The largest |result - exact| over the bound of float32 summation in any order.

    The bound is g (|a| |b|) with g = k u / (1 - k u) and u the unit roundoff (Higham, Accuracy and Stability, 3.5). NaN
    counts as infinitely wrong. Exact is float64, whose own error is 2^29 times smaller.
    """
    exact, magnitude = np.matmul(a, b, dtype=np.float64), np.matmul(np.abs(a), np.abs(b), dtype=np.float64)
    rounding = a.shape[1] * UNIT_ROUNDOFF
    ratio = np.abs(result - exact) / (rounding / (1 - rounding) * magnitude + np.finfo(np.float32).tiny)
    return math.inf if np.isnan(ratio).any() else float(ratio.max())


def take_turns(contenders: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds per call of each, the least over its turns. The last one leaves polling threads behind."""
    best = [math.inf] * len(contenders)
    for _ in range(rounds):
        for place, call in enumerate(contenders):
            call()  # operands and threads of the one before are still about
            calls, start = 0, time.perf_counter()
            while (spent := time.perf_counter() - start) < ROUND_S or not calls:
                call()
                calls += 1
            best[place] = min(best[place], spent / calls)
        time.sleep(POLLING_S)
    return best


def measure(gemm: GemmKernel, product: str, a: Any, b: Any, packed: Any, rounds: int = ROUNDS) -> Row:
    """Check and time one product."""
    (m, k), n = a.shape, b.shape[1]
    plain, prepacked, other = (np.full((m, n), np.nan, np.float32) for _ in range(3))
    gemm(a, b, out=plain)
    gemm(a, packed, out=prepacked)
    error = max(worst_error(plain, a, b), worst_error(prepacked, a, b))
    vortex_s, packed_s, numpy_s = take_turns(
        (
            lambda: gemm(a, b, out=plain),
            lambda: gemm(a, packed, out=prepacked),
            lambda: np.matmul(a, b, out=other),
        ),
        rounds,
    )
    plan = gemm.plan(m, n, k)
    grid = str(plan.grid)
    return Row(product, m, n, k, plan.index, str(plan.strategy), grid, numpy_s, vortex_s, packed_s, error)


@dataclass(frozen=True)
class Results:
    """All rows, and the arithmetic peak of the threads that were used."""

    hardware: str
    """Its name and the core it is, for headings."""
    threads: int
    peak_flops_per_s: float
    rows: tuple[Row, ...]

    @property
    def right(self) -> bool:
        return all(row.right for row in self.rows)

    def table(self) -> Table:
        peak = f"peak {self.peak_flops_per_s / 1e9:.0f} GFLOP/s"
        title = f"BERT-base layer on {self.hardware}, {_threads(self.threads)}, {peak}"
        table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
        for heading in ("m x n x k", "strategy,\ngrid"):
            table.add_column(heading, no_wrap=True)
        for heading in ("NumPy\nGFLOP/s", *2 * ("{}\nGFLOP/s", "of\npeak", "times\nNumPy")):
            table.add_column(
                heading.format("vortex" if len(table.columns) < 4 else "packed"), justify="right", no_wrap=True
            )
        table.add_column("")
        for place, row in enumerate(self.rows, 1):
            table.add_row(
                f"{row.m}x{row.n}x{row.k}",
                f"{row.strategy}, {row.grid}",
                f"{row.flops / row.numpy_s * 1e-9:.1f}",
                *self._cells(row, row.vortex_s),
                *self._cells(row, row.packed_s),
                "" if row.right else "WRONG",
                style=None if row.right else "bold red",
                end_section=place % len(PRODUCTS) == 0,
            )
        return table

    def _cells(self, row: Row, seconds: float) -> tuple[str, str, str]:
        rate, speedup = row.flops / seconds, row.numpy_s / seconds
        return f"{rate * 1e-9:.1f}", f"{rate / self.peak_flops_per_s:.0%}", f"{speedup:.{0 if speedup >= 100 else 2}f}"

    def legend(self) -> str:
        """The strategies that were chosen, by number."""
        chosen = sorted({(row.strategy, row.described) for row in self.rows})
        return "\n".join(("strategies", *(f"{number:4}  {described}" for number, described in chosen)))

    def summary(self) -> str:
        plain, packed = ([row.numpy_s / seconds(row) for row in self.rows] for seconds in (_vortex_s, _packed_s))
        layer = sum(row.numpy_s for row in self.rows)
        wrong = [f"{row.m} x {row.n} x {row.k}" for row in self.rows if not row.right]
        return "\n".join(
            (
                f"speedup over NumPy, geometric mean {statistics.geometric_mean(plain):.2f} (least {min(plain):.2f}, "
                f"most {max(plain):.2f}); packed {statistics.geometric_mean(packed):.2f} "
                f"(least {min(packed):.2f}, most {max(packed):.2f})",
                f"all lengths together {layer / sum(map(_vortex_s, self.rows)):.2f}; "
                f"packed {layer / sum(map(_packed_s, self.rows)):.2f}",
                f"{len(self.rows) - len(wrong)} of {len(self.rows)} results are right"
                + (f"; WRONG: {', '.join(wrong)}" if wrong else ""),
            )
        )

    def write_csv(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in self.rows)

    def plot(self, path: Path) -> None:
        """GFLOP/s over the sequence length, one panel a product, below a line at the arithmetic peak."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 7), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
        for axes, (product, n, k) in zip(panels, PRODUCTS, strict=True):
            rows = [row for row in self.rows if row.product == product]
            for label, style, seconds in (
                ("vortex, packed weights", "C0--", _packed_s),
                ("vortex", "C0-", _vortex_s),
                ("NumPy", "C1-", _numpy_s),
            ):
                rates = [row.flops / seconds(row) * 1e-9 for row in rows]
                axes.plot([row.m for row in rows], rates, style, marker=".", label=label)
            axes.set_title(f"{product}: m x {n} x {k}", fontsize="medium")
            axes.axhline(self.peak_flops_per_s * 1e-9, color="0.5", linewidth=0.8, linestyle=":", label="peak")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        title = f"BERT-base layer on {self.hardware}, {_threads(self.threads)}"
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside upper center", ncols=4, frameon=False, title=title)
        figure.supxlabel("sequence length (m)")
        figure.supylabel("GFLOP/s")
        figure.savefig(path, dpi=120)

    def show(self, console: Console, folder: Path) -> bool:
        """Print the table and the summary, write them and the plot into `folder`; whether every result was right."""
        folder.mkdir(parents=True, exist_ok=True)
        console.print(self.table())
        console.print(self.legend(), markup=False)
        console.print(self.summary(), markup=False)
        self.write_csv(folder / "bert.csv")
        written = [folder / "bert.csv"]
        try:
            self.plot(folder / "bert.png")
            written.append(folder / "bert.png")
        except ImportError as error:
            console.print(f"no plot: {error.name} is missing; install vortex with its `dev` extra", markup=False)
        console.print(f"written: {', '.join(map(str, written))}", markup=False)
        return self.right


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _numpy_s(row: Row) -> float:
    return row.numpy_s


def _vortex_s(row: Row) -> float:
    return row.vortex_s


def _packed_s(row: Row) -> float:
    return row.packed_s


def run_demo(progress: Progress, lengths: Iterable[int] = LENGTHS, rounds: int = ROUNDS) -> Results:
    """Compile for this machine, then measure every product at every length."""
    gemm = compile_operator("gemm", "native", progress=lambda what, share: progress(what, 0.5 * share))
    lengths = tuple(lengths)
    random = np.random.default_rng(0)
    weights = {(n, k): random.standard_normal((k, n), np.float32) for _, n, k in PRODUCTS}
    packed = {extents: gemm.pack(weight) for extents, weight in weights.items()}
    rows: list[Row] = []
    for m in lengths:
        progress(f"sequence length {m}", 0.5 + 0.5 * len(rows) / len(lengths) / len(PRODUCTS))
        for product, n, k in PRODUCTS:
            a = random.standard_normal((m, k), np.float32)
            rows.append(measure(gemm, product, a, weights[n, k], packed[n, k], rounds))
    hardware, threads = gemm.manifest.hardware, get_num_threads()
    peak = hardware["peak_flops_per_s"] * min(1.0, threads / hardware["cores"])
    return Results(f"{hardware['name']} ({hardware['llvm_cpu']})", threads, peak, tuple(rows))
