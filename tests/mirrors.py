"""The Python selector for many shapes at once: what tens of thousands of native choices are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vortex.cost import NEVER, predict
from vortex.plans import Family, Grid, LaunchPlan, Shape, split_grids, ways
from vortex.polymerize import polymerize
from vortex.problem import Problem
from vortex.regions import Answer, Machine, as_plan
from vortex.selector import DEEP, MOST_PARTS, NEAR, SPLIT_GAIN, SPLIT_LOSS, WORTH, NumpyArithmetic, Selector, problem


@dataclass(frozen=True)
class Mirrored:
    """What the Python selector picks: without regions, on one thread, and the family of both."""

    plain: LaunchPlan
    alone: LaunchPlan
    family: Family


class Many:
    """`Selector.least` and `family` of many shapes at once: the same expressions, shapes down and strategies across."""

    def __init__(self, selector: Selector, shapes: list[Shape]) -> None:
        counted = (shape.in_words(selector.words) for shape in shapes)
        asked = [vars(problem(shape, Grid(1, 1), 1, selector.rates)).values() for shape in counted]
        self.selector, self.shapes = selector, shapes
        self.fields = np.array(list(map(tuple, asked)), np.float32)

    def totals(self, places: np.ndarray, grid: Grid, workers: int) -> np.ndarray:
        """Predicted seconds of every strategy for some of the shapes, as many at a time as caches hold."""
        found = [np.empty((0, len(self.selector.strategies)), np.float32)]
        for part in np.array_split(places, -(-len(places) // 2048)) if places.size else ():
            calls = replace(
                Problem(*self.fields[part].T[:, :, None]),
                grid_m=np.float32(grid.m),
                grid_n=np.float32(grid.n),
                splits=np.float32(grid.k),
                active=np.float32(workers),
            )
            ops = NumpyArithmetic(self.selector.table)
            found.append(predict(ops, self.selector.float32_rates, self.selector.columns, calls).total)
        return np.concatenate(found)

    def near(self) -> np.ndarray:
        """`Selector.near` of every shape."""
        total, dot = self.totals(np.arange(len(self.shapes)), Grid(1, 1), 1), self.selector.columns.dot
        best = total.min(axis=1, keepdims=True)
        return (dot[None] == dot[total.argmin(axis=1)][:, None]) & (total <= np.float32(NEAR) * best)

    def least(self, places: np.ndarray, among: np.ndarray, choice: Sequence[tuple[Grid, int]]) -> list[LaunchPlan]:
        strategies = self.selector.strategies
        index, way = np.zeros(len(places), int), np.zeros(len(places), int)
        seconds = np.full(len(places), np.inf, np.float32)
        for at, (grid, workers) in enumerate(choice):
            total = np.where(among, self.totals(places, grid, workers), np.float32(NEVER))
            value, best = total.min(axis=1), total.argmin(axis=1)
            better = value < seconds
            index[better], way[better], seconds[better] = best[better], at, value[better]
        return [
            LaunchPlan(i, strategies[i], choice[at][0], float(value), choice[at][1])
            for i, at, value in zip(index.tolist(), way.tolist(), seconds, strict=True)
        ]

    def families(self, near: np.ndarray) -> tuple[list[LaunchPlan], list[Family]]:
        """The best plans on one thread, and the families that they and the cores of the machine decide."""
        rates, every = self.selector.rates, np.arange(len(self.shapes))
        alone = self.least(every, near, ways(1, 1))
        dot = self.selector.columns.dot[[plan.index for plan in alone]] > 0
        splits, cores = np.ones(len(every), int), int(rates.cores)
        worth = np.float32(WORTH) * np.float32(rates.call + rates.thread_start)
        deep = np.array([
            cores > 1 and plan.seconds >= worth and s.k >= DEEP * max(s.m, s.n) and s.m * s.n * cores <= MOST_PARTS
            for s, plan in zip(self.shapes, alone, strict=True)
        ])  # fmt: skip
        places = every[deep]
        whole = self.least(places, near[deep], ways(1, cores))
        split = self.least(places, near[deep], [(grid, cores) for grid in split_grids(cores)])
        parts = np.array([plan.grid.k for plan in split], int)
        for count in set(parts.tolist()):
            alike = np.flatnonzero(parts == count)
            in_turn = self.least(places[alike], near[places[alike]], [(Grid(1, 1, count), 1)])
            for at, turned in zip(alike, in_turn, strict=True):
                gains = np.float32(split[at].seconds) < np.float32(SPLIT_GAIN) * np.float32(whole[at].seconds)
                most = np.float32(SPLIT_LOSS) * np.float32(alone[places[at]].seconds)
                if gains and np.float32(turned.seconds) <= most:
                    splits[places[at]] = count
        return alone, [Family(bool(d), int(s)) for d, s in zip(dot, splits, strict=True)]


def mirror(selector: Selector, shapes: list[tuple[Shape, int]]) -> list[Mirrored]:
    """`polymerize.plain` of many shapes at once."""
    many = Many(selector, [shape for shape, _ in shapes])
    near = many.near()
    alone, families = many.families(near)
    plain = list(alone)
    asked = np.array([(count, family.splits) for (_, count), family in zip(shapes, families, strict=True)])
    for threads, splits in sorted(set(map(tuple, asked.tolist()))):
        places = np.flatnonzero((asked == (threads, splits)).all(axis=1))
        for place, plan in zip(places, many.least(places, near[places], ways(1, threads, splits)), strict=True):
            plain[place] = plan
    return [Mirrored(*found) for found in zip(plain, alone, families, strict=True)]


def regions_of(selector: Selector, shapes: list[tuple[Shape, int]], plans: list[Mirrored]) -> dict[int, LaunchPlan]:
    """`polymerize.select` of many shapes at once, where it finds regions: all searches are answered together."""
    machine = Machine.of(selector)
    running = {
        place: polymerize(shape, threads, machine, plan.alone, plan.plain, plan.family)
        for place, ((shape, threads), plan) in enumerate(zip(shapes, plans, strict=True))
    }
    found: dict[int, LaunchPlan] = {}
    dots = selector.columns.dot
    answers: dict[int, Answer | None] = dict.fromkeys(running)
    while answers:
        asked = {}
        for place, answer in answers.items():
            try:
                asked[place] = running[place].send(answer)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as done:
                if done.value:
                    found[place] = as_plan(done.value, selector, shapes[place][1])
        if not asked:
            break
        total = selector.totals([problem(r.shape, r.grid, r.cores, selector.rates, r.others) for r in asked.values()])
        family = np.array([r.dot for r in asked.values()])[:, None]
        total = np.where(dots[None] == family, total, np.float32(NEVER))
        index = total.argmin(axis=1)
        answers = {place: Answer(int(index[row]), total[row, index[row]]) for row, place in enumerate(asked)}
    return found
