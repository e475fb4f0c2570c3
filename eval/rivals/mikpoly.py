"""MikPoly (ASPLOS 2024): micro-kernels tuned one by one, ranked on powers of two, joined at run time by a cost.

Offline: micro-kernels of up to n_gen register tiles a side, each timed as one pipelined task on one core; the better
ones over several lengths of k, which makes g_predict; the best n_mik over synthetic shapes 2^i, i <= n_syn, are kept.
At run time Eq. 2, the sum over regions of f_wave f_pipe, chooses between one micro-kernel (Pattern I) and two, one
under the other (Pattern II); regions are padded to whole tiles and run one after the other, as Eq. 2 adds them up.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.rivals.meter import Call, Meter, Runner
from eval.rivals.space import MicroKernel, Program, Space, features
from eval.suites import Case

N_GEN, N_SYN, N_MIK = 32, 12, 40
"""Of the paper's section 3.3."""
LENGTHS = (32, 256, 1024, 2304, 5120)
"""Reductions that a pipelined task is timed with; the paper's longest is 5120."""
TUNED_AT = 1024
FINALISTS = 4
"""Times n_mik: how many of the tuned micro-kernels get a g_predict."""
Judge = Literal["both", "wave", "pipe"]
"""What is left of Eq. 2: all of it, MikPoly-Wave, MikPoly-Pipe."""


@dataclass(frozen=True)
class Tuned:
    """A micro-kernel and g_predict: seconds of a pipelined task at each of LENGTHS."""

    kernel: MicroKernel
    seconds: tuple[float, ...]

    def predict(self, k: float) -> float:
        """Piecewise linear in the reduction; beyond the longest the last piece goes on."""
        if k <= LENGTHS[-1]:
            return float(np.interp(k, LENGTHS, self.seconds))
        (x0, x1), (y0, y1) = LENGTHS[-2:], self.seconds[-2:]
        return y1 + (k - x1) * max(0.0, y1 - y0) / (x1 - x0)


@dataclass(frozen=True)
class Regions:
    """One micro-kernel for the first rows and, in Pattern II, another one for the rest."""

    programs: tuple[Program, ...]
    cost: float


def task_of(kernel: MicroKernel, k: int) -> tuple[Program, Case]:
    """One pipelined task: the output is a single tile."""
    program = Program(kernel, kernel.rows, kernel.columns, k)
    return program, Case("task", f"task/{kernel.rows}x{kernel.columns}x{k}", kernel.rows, kernel.columns, k)


def tune(space: Space, meter: Meter, seed: int) -> dict[MicroKernel, float]:
    """Flop per second of pipelined tasks: half of the trials at random, half where a learned rate promises most.

    The second half takes the most promising micro-kernel of each size in turn, lest all be of one size.
    """
    from sklearn.ensemble import GradientBoostingRegressor  # pages and lists of cases do without

    draw, rates = random.Random(seed), {}

    def measure(kernel: MicroKernel) -> None:
        program, case = task_of(kernel, TUNED_AT)
        rates[kernel] = program.flops / meter.measure(program, case)

    for kernel in draw.sample(space.kernels, min(meter.left // 2, len(space.kernels))):
        measure(kernel)
    model = GradientBoostingRegressor(n_estimators=100, max_depth=4, subsample=0.8, random_state=0)
    model.fit(np.array([features(kernel) for kernel in rates]), np.log(list(rates.values())))
    promise = model.predict(np.array([features(kernel) for kernel in space.kernels]))
    sizes: dict[tuple[int, int], list[MicroKernel]] = {}
    for at in np.argsort(-promise):
        kernel = space.kernels[int(at)]
        if kernel not in rates:
            sizes.setdefault((kernel.rows, kernel.columns), []).append(kernel)
    while meter.left > 0 and any(sizes.values()):
        for waiting in [waiting for waiting in sizes.values() if waiting][: meter.left]:
            measure(waiting.pop(0))
    return rates


def modelled(rates: dict[MicroKernel, float], meter: Meter, count: int) -> list[Tuned]:
    """g_predict of the `count` quickest, and of the quickest of each height: few rows want a low tile."""
    ordered = sorted(rates, key=lambda kernel: -rates[kernel])
    of_each_height = {kernel.rows: kernel for kernel in reversed(ordered)}
    chosen = list(dict.fromkeys((*ordered[:count], *of_each_height.values())))
    return [Tuned(kernel, tuple(meter.measure(*task_of(kernel, k)) for k in LENGTHS)) for kernel in chosen]


def ranked(tuned: Sequence[Tuned], cores: int, n_syn: int, n_mik: int) -> list[Tuned]:
    """The n_mik best by mean predicted performance over all shapes of powers of two, relative to the best on each."""
    extents = 2.0 ** np.arange(n_syn + 1)
    costs = []
    for each in tuned:
        tasks = np.ceil(extents / each.kernel.rows)[:, None] * np.ceil(extents / each.kernel.columns)[None, :]
        task = np.array([each.predict(k) for k in extents])
        costs.append((np.ceil(tasks / cores)[:, :, None] * task).ravel())
    table = np.array(costs)
    scores = (table.min(axis=0) / table).mean(axis=1)
    return [tuned[int(at)] for at in np.argsort(-scores, kind="stable")[:n_mik]]


def price(each: Tuned, program: Program, cores: int, judge: Judge) -> float:
    """f_wave f_pipe of one region (Eq. 3, Eq. 4), or what an ablation leaves of it."""
    waves = float(program.waves(cores))
    return waves if judge == "wave" else each.predict(program.k) * (1.0 if judge == "pipe" else waves)


def strategies(kept: Sequence[Tuned], case: Case, cores: int, judge: Judge = "both") -> list[Regions]:
    """Pattern I with every micro-kernel, and for each of them Pattern II with the best second one; cheapest first.

    The first region of Pattern II has as many whole tiles of rows as make whole waves, or all whole tiles.
    """

    def region(each: Tuned, m: int) -> tuple[Program, float]:
        program = Program(each.kernel, m, case.n, case.k)
        return program, price(each, program, cores, judge)

    found = []
    for each in kept:
        whole, cost = region(each, case.m)
        found.append(Regions((whole,), cost))
        tiles = case.m // each.kernel.rows
        in_waves = max((t for t in range(1, tiles + 1) if t * whole.grid_n % cores == 0), default=0)
        for count in {tiles, in_waves}:
            above = count * each.kernel.rows
            if 0 < above < case.m:
                first, begun = region(each, above)
                rest, left = min((region(other, case.m - above) for other in kept), key=lambda pair: pair[1])
                found.append(Regions((first, rest), begun + left))
    return sorted(found, key=lambda regions: regions.cost)


def rows_of(regions: Regions) -> int:
    """Rows of C that the regions compute together, the padding of the last one included."""
    return sum(p.m for p in regions.programs[:-1]) + regions.programs[-1].padded_m


def columns_of(regions: Regions) -> int:
    return max(p.padded_n for p in regions.programs)


def call_of(runner: Runner, regions: Regions, case: Case) -> Call:
    """All regions, one after the other, on the same operands."""
    if len(regions.programs) == 1:
        return runner.program(regions.programs[0], case)
    operands = runner.workspace.operands(case, rows_of(regions), columns_of(regions))
    calls, row = [], 0
    for program in regions.programs:
        end = row + program.padded_m
        a = operands.a[:, row:end] if case.trans_a else operands.a[row:end]
        b = operands.b[: program.padded_n] if case.trans_b else operands.b[:, : program.padded_n]
        calls.append(runner.on(program, case, a, b, operands.out[row:end, : program.padded_n]))
        row = end

    def both() -> None:
        for call in calls:
            call()

    return both
