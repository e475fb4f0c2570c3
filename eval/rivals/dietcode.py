"""DietCode (MLSys 2022): one search for all sampled shapes, in one space of micro-kernels, with one learned cost.

Eq. 3: Cost(S, M) = f_MK(M) f_OCC f_pad, a throughput. f_MK is learned from what was measured, f_OCC = k x + 1 - k of
the share x of the cores' turns that have a task, with k fitted, and f_pad is the useful share of the padded output.
(The paper prints its reciprocal, which suits a time.) Shapes vote for micro-kernels by Eq. 3, and a decision tree holds
the votes.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eval.rivals.dispatch import Tree, train
from eval.rivals.meter import Meter
from eval.rivals.space import MicroKernel, Program, Space, features
from eval.suites import Case

BATCH = 64
"""Programs measured between two fits of the cost."""
POPULATION, GENERATIONS = 256, 4
ELITE, STRAY = 0.25, 0.1
"""Shares of a population that survive as they are, and of a batch that is drawn at random."""


@dataclass
class Learned:
    """f_MK as a regression on features of the micro-kernel, and the slope of f_OCC."""

    slope: float = 1.0
    model: Any = None

    def occupancy(self, share: float) -> float:
        return self.slope * share + 1.0 - self.slope

    def adaptation(self, program: Program, cores: int) -> float:
        """f_adapt of Eq. 2."""
        return self.occupancy(program.occupancy(cores)) * program.useful

    def fit(self, measured: dict[Program, float], cores: int) -> None:
        """Throughputs of micro-kernels, with the penalties of each program taken out; then the penalty again."""
        from sklearn.ensemble import GradientBoostingRegressor  # pages and lists of cases do without

        self.slope = fitted_slope(measured, cores)
        programs = list(measured)
        rates = [p.flops / measured[p] / self.adaptation(p, cores) for p in programs]
        self.model = GradientBoostingRegressor(n_estimators=100, max_depth=4, subsample=0.8, random_state=0)
        self.model.fit(np.array([features(p.kernel) for p in programs]), np.log(rates))

    def rates(self, kernels: Sequence[MicroKernel]) -> list[float]:
        """f_MK, in flop per second."""
        assert self.model is not None
        return [float(x) for x in np.exp(self.model.predict(np.array([features(k) for k in kernels])))]


def fitted_slope(measured: dict[Program, float], cores: int) -> float:
    """k of f_OCC = k x + 1 - k by least squares, over micro-kernels that were measured on several shapes.

    Rates of one micro-kernel are a line over x with the slope f_MK k, which is f_MK at x = 1. Micro-kernels count by
    how far apart their x are. Between 0 (occupancy is no matter) and 1 (a turn takes the same however few cores work),
    which is also the answer where nothing speaks for another one.
    """
    groups: dict[MicroKernel, list[tuple[float, float]]] = {}
    for program, seconds in measured.items():
        rate = program.flops / seconds / program.useful
        groups.setdefault(program.kernel, []).append((program.occupancy(cores), rate))
    total = weights = 0.0
    for points in groups.values():
        middle_x, middle_y = (statistics.fmean(values) for values in zip(*points, strict=True))
        apart = sum((x - middle_x) ** 2 for x, _ in points)
        if apart > 1e-9:
            incline = sum((x - middle_x) * (y - middle_y) for x, y in points) / apart
            full = middle_y + incline * (1.0 - middle_x)
            total += apart * min(1.0, max(0.0, incline / full)) if full > 0.0 else 0.0
            weights += apart
    return total / weights if weights else 1.0


@dataclass
class Search:
    """The evolutionary search, resumable: more trials go on where it stopped."""

    space: Space
    samples: Sequence[Case]
    meter: Meter
    cores: int
    seed: int
    learned: Learned = field(default_factory=Learned)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.population = [self.draw.choice(self.space.kernels) for _ in range(POPULATION)]

    @property
    def _unseen(self) -> int:
        return len(self.space.kernels) * len(self.samples) - len(self.meter.seen)

    def run(self) -> None:
        """Measures until budget or space is spent: the first batch at random, then what the cost hopes most of."""
        while self.meter.left > 0 and self._unseen > 0:
            if self.meter.seen:
                self.learned.fit(self.meter.seen, self.cores)
                self._evolve()
            for program, case in self._batch():
                if self.meter.left > 0:
                    self.meter.measure(program, case)
        self.learned.fit(self.meter.seen, self.cores)

    def _scores(self, kernels: Sequence[MicroKernel]) -> np.ndarray:
        """Cost by Eq. 3, [shape, kernel]."""
        rates = self.learned.rates(kernels)
        return np.array(
            [
                [
                    rate * self.learned.adaptation(program_of(kernel, case), self.cores)
                    for kernel, rate in zip(kernels, rates, strict=True)
                ]
                for case in self.samples
            ]
        )

    def _evolve(self) -> None:
        """Fitness: how near a micro-kernel comes to the best of the population, on the shape that it suits most."""
        for _ in range(GENERATIONS):
            scores = self._scores(self.population)
            fitness = (scores / scores.max(axis=1, keepdims=True)).max(axis=0) ** 4
            order = np.argsort(-fitness)
            survivors = [self.population[at] for at in order[: int(ELITE * POPULATION)]]
            weights = [float(x) for x in fitness]
            children: list[MicroKernel] = []
            while len(survivors) + len(children) < POPULATION:
                one, two = self.draw.choices(self.population, weights, k=2)
                child = self.space.crossed(one, two, self.draw)
                children.append(self.space.mutated(child, self.draw) if self.draw.random() < 0.5 else child)
            self.population = list(dict.fromkeys((*survivors, *children)))
            while len(self.population) < POPULATION:
                self.population.append(self.draw.choice(self.space.kernels))

    def _batch(self) -> list[tuple[Program, Case]]:
        """Programs not measured yet, each shape's favourites in turn; some at random."""
        count = min(BATCH, self.meter.left, self._unseen)
        chosen: dict[Program, Case] = {}
        if self.learned.model is not None:
            orders = np.argsort(-self._scores(self.population), axis=1)
            turns = ((shape, rank) for rank in range(len(self.population)) for shape in range(len(self.samples)))
            for shape, rank in turns:
                if len(chosen) >= count * (1.0 - STRAY):
                    break
                case = self.samples[shape]
                program = program_of(self.population[orders[shape][rank]], case)
                if program not in self.meter.seen:
                    chosen.setdefault(program, case)
        while len(chosen) < count:
            case = self.draw.choice(self.samples)
            program = program_of(self.draw.choice(self.space.kernels), case)
            if program not in self.meter.seen:
                chosen.setdefault(program, case)
        return list(chosen.items())

    def vote(self, case: Case) -> MicroKernel:
        """argmax of Eq. 3 over what was measured, f_MK the mean of its measurements; a measurement of the very shape
        takes the place of the formula."""
        rates: dict[MicroKernel, list[float]] = {}
        for program, seconds in self.meter.seen.items():
            rate = program.flops / seconds / self.learned.adaptation(program, self.cores)
            rates.setdefault(program.kernel, []).append(rate)

        def cost(kernel: MicroKernel) -> float:
            program = program_of(kernel, case)
            if program in self.meter.seen:
                return program.flops / self.meter.seen[program]
            return statistics.fmean(rates[kernel]) * self.learned.adaptation(program, self.cores)

        return max(rates, key=cost)

    def dispatcher(self) -> Tree:
        return train([(case.m, case.n, case.k) for case in self.samples], [self.vote(case) for case in self.samples])


def program_of(kernel: MicroKernel, case: Case) -> Program:
    return Program(kernel, case.m, case.n, case.k)


def valid(tree: Tree, samples: Sequence[Case], cases: Sequence[Case]) -> list[bool]:
    """Whether a program compiled for the sampled range can run a shape at all, as MikPoly's Table 6 counts it.

    Such a program has buffers and loops for the largest sample, in whole tiles of its micro-kernel: rows up to their
    end are computed, and beyond it memory is not there.
    """
    largest = max(samples, key=lambda sample: sample.m)
    chosen = tree.choose_all([(case.m, case.n, case.k) for case in cases])
    ends = [program_of(kernel, largest).padded_m for kernel in chosen]
    return [case.m <= end for case, end in zip(cases, ends, strict=True)]
