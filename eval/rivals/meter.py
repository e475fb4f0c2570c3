"""Running a rival's programs and Vortex's own plans on the same operands, and counting what a method measures."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eval.machine import aligned
from eval.operands import Operands, check
from eval.rivals.space import Program
from eval.suites import Case
from eval.worker import measure_warm, time_batch
from vortex.candidates import Strategy
from vortex.plans import Grid, LaunchPlan

Call = Callable[[], Any]
TRIAL_CALLS = 3
TRIAL_SECONDS = 2e-3
LONG_SECONDS = 0.05
"""Calls of this length are repeated once."""
GRIDS_M, GRIDS_N = (1, 2, 4, 8, 16), (1, 2, 4, 8)
"""Tasks along m and n of the grids that Vortex's own strategies are tried on beyond those that it considers."""
HOPELESS = 2.0
"""A first call this many times slower than the best program of the shape is measured no further."""


class Workspace:
    """Buffers that operands of any extents are views of, filled with numbers in [-1, 1).

    What stands for padding are numbers as well: no kernel is slower for them, and no element of the result that was
    asked for depends on them.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def _view(self, name: str, rows: int, columns: int) -> np.ndarray:
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            held = aligned(rows * columns)
            held[:] = np.random.default_rng(len(self._buffers)).random(held.size, np.float32) * 2 - 1
            self._buffers[name] = held
        return held[: rows * columns].reshape(rows, columns)

    def operands(self, case: Case, m: int, n: int) -> Operands:
        """Operands of the case with `m` rows and `n` columns of C in place of its own, laid out as it says."""
        a = self._view("a", case.k, m) if case.trans_a else self._view("a", m, case.k)
        b = self._view("b", n, case.k) if case.trans_b else self._view("b", case.k, n)
        return Operands(case, a, b, self._view("c", m, n))


@dataclass
class Runner:
    """Vortex's library, the library that runs any micro-kernel, and one workspace for both."""

    vortex: Any
    kernels: Any
    threads: int
    workspace: Workspace = field(default_factory=Workspace)

    def __post_init__(self) -> None:
        self._index: dict[Strategy, int] = {chain: at for at, chain in enumerate(self.kernels.strategies)}

    def on(self, program: Program, case: Case, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        """One call of a program on given operands, which hold its padding."""
        grid = Grid(program.grid_m, program.grid_n)
        plan = LaunchPlan(self._index[program.kernel.chain], program.kernel.chain, grid, 0.0, self.threads)
        return _bound(self.kernels, plan, case, a, b, out)

    def program(self, program: Program, case: Case) -> Call:
        """One call of a rival's program: every task a whole micro-kernel, on operands that hold the padding already.

        The rival does not pay for bringing them there: local padding hides it, says its paper.
        """
        operands = self.workspace.operands(case, program.padded_m, program.padded_n)
        return self.on(program, case, operands.a, operands.b, operands.out)

    def padded_globally(self, program: Program, case: Case) -> Call:
        """The program of a taller shape: A is copied into its operand, and the result sliced out, at every call."""
        given = self.workspace.operands(case, case.m, case.n)
        a, out = given.a.copy(), given.out.copy()
        padded = self.workspace.operands(case, program.padded_m, program.padded_n)
        into = padded.a[:, : case.m] if case.trans_a else padded.a[: case.m]
        slice_of, inner = padded.out[: case.m, : case.n], self.program(program, case)

        def call() -> None:
            np.copyto(into, a)
            inner()
            np.copyto(out, slice_of)

        return call

    def ours(self, case: Case) -> Call:
        """One call of the plan that Vortex selects. Selecting is timed apart: see `selection`."""
        flags = {"transpose_a": case.trans_a, "transpose_b": case.trans_b}
        given = {name: True for name, value in flags.items() if value}
        plan = self.vortex.plan(case.m, case.n, case.k, threads=self.threads, **given)
        operands = self.workspace.operands(case, case.m, case.n)
        return _bound(self.vortex, plan, case, operands.a, operands.b, operands.out)

    def plans(self, case: Case, any_grid: bool = False) -> dict[int, Call]:
        """One call of every plan of Vortex's library; with `any_grid` of its strategies on many more grids, too."""
        flags = {"transpose_a": case.trans_a, "transpose_b": case.trans_b}
        given: dict[str, Any] = {name: True for name, value in flags.items() if value}
        found = list(self.vortex.plans(case.m, case.n, case.k, threads=self.threads, **given))
        if any_grid:
            serving = {plan.index: plan for plan in found if not (plan.regions or plan.strategy.stage.dot)}
            found += [
                replace(plan, grid=Grid(tall, wide), workers=min(self.threads, tall * wide))
                for plan in serving.values()
                for tall in GRIDS_M
                for wide in GRIDS_N
            ]
        operands = self.workspace.operands(case, case.m, case.n)
        every = dict.fromkeys(found)
        return {
            at: _bound(self.vortex, plan, case, operands.a, operands.b, operands.out) for at, plan in enumerate(every)
        }

    def selection(self, case: Case) -> float:
        """Seconds of Vortex's choice in native code."""
        given: dict[str, Any] = {"transpose_a": True} if case.trans_a else {}
        given |= {"transpose_b": True} if case.trans_b else {}
        return float(self.vortex.time_selection(case.m, case.n, case.k, 1000, **given))

    def verify(self, call: Call, case: Case, m: int, n: int) -> None:
        """Runs a call once and checks what was asked for against float64; raises WrongResultError."""
        operands = self.workspace.operands(case, m, n)
        operands.out.fill(np.nan)
        call()
        a = operands.a[:, : case.m] if case.trans_a else operands.a[: case.m]
        b = operands.b[: case.n] if case.trans_b else operands.b[:, : case.n]
        check(Operands(case, a, b, operands.out), operands.out[: case.m, : case.n])

    def verify_program(self, program: Program, case: Case) -> None:
        self.verify(self.program(program, case), case, program.padded_m, program.padded_n)


def _bound(library: Any, plan: LaunchPlan, case: Case, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
    flags = {"transpose_a": case.trans_a, "transpose_b": case.trans_b}
    return lambda: library.run(plan, a, b, out, **flags)


def time_trial(call: Call, best: float | None) -> float:
    """The fastest of three calls after a first one, of more where calls are short; the first if it is hopeless."""
    found = time_batch(call, 1)
    if best is None or found < HOPELESS * best:
        calls = 1 if found > LONG_SECONDS else max(TRIAL_CALLS, min(20, round(TRIAL_SECONDS / found)))
        found = min(found, *(time_batch(call, 1) for _ in range(calls)))
    return found


@dataclass
class Meter:
    """What a method may measure: so many trials. A program that was measured before costs nothing."""

    runner: Runner
    budget: int
    trials: int = 0
    seconds: float = 0.0
    """Spent measuring."""
    seen: dict[Program, float] = field(default_factory=dict)
    best: dict[tuple[int, int, int], float] = field(default_factory=dict)
    """The least seconds of each shape so far."""

    @property
    def left(self) -> int:
        return self.budget - self.trials

    def measure(self, program: Program, case: Case) -> float:
        """Seconds of a call: see `time_trial`."""
        if program in self.seen:
            return self.seen[program]
        if self.left <= 0:
            raise RuntimeError(f"the budget of {self.budget} trials is spent")
        begun = time.perf_counter()
        shape = (program.m, program.n, program.k)
        found = time_trial(self.runner.program(program, case), self.best.get(shape))
        self.seen[program] = found
        self.best[shape] = min(found, self.best.get(shape, found))
        self.trials += 1
        self.seconds += time.perf_counter() - begun
        return found


@dataclass(frozen=True)
class Raced:
    """One call among others: the median of the rounds' fastest calls, and how far these are apart, over the least."""

    seconds: float
    spread: float


def race(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, Raced]:
    """Every call in turn, the order rotated, `rounds` times for about `seconds` each."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        at = number % len(names)
        for name in [*names[at:], *names[:at]]:
            times[name].append(measure_warm(calls[name], seconds).best)
    return {
        name: Raced(statistics.median(found), (max(found) - min(found)) / min(found)) for name, found in times.items()
    }
