"""The Python selector for many shapes at once: what tens of thousands of native choices are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vortex.cost import NEVER
from vortex.plans import Family, Grid, LaunchPlan, Shape, split_grids, ways
from vortex.polymerize import Plain, polymerize
from vortex.problem import Problem
from vortex.regions import Answer, Machine, as_plan
from vortex.selector import (
    SPLIT_GAIN,
    SPLIT_LOSS,
    WORTH,
    Selector,
    most_near,
    nearest,
    problem,
)


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
            found.append(self.selector.predicted(calls).total)
        return np.concatenate(found)

    def near(self, threads: np.ndarray) -> np.ndarray:
        """`Selector.near` of every shape, each on so many threads."""
        total, dot = self.totals(np.arange(len(self.shapes)), Grid(1, 1), 1), self.selector.columns.dot
        alike = dot[None] == dot[total.argmin(axis=1)][:, None]
        total = np.where(alike, total, np.float32(NEVER))
        found = np.zeros(total.shape, bool)
        for count in set(threads.tolist()):
            found[threads == count] = nearest(total[threads == count], most_near(count, self.selector.lanes))
        return found

    def seconds(self, places: np.ndarray, among: np.ndarray, choice: Sequence[tuple[Grid, int]]) -> np.ndarray:
        """`Selector.seconds` of some shapes, [shape, grid, strategy]."""
        if not places.size:
            return np.empty((0, len(choice), len(self.selector.strategies)), np.float32)
        totals = np.stack([self.totals(places, grid, workers) for grid, workers in choice], axis=1)
        return np.where(among[:, None], totals, np.float32(NEVER))

    def least(self, places: np.ndarray, among: np.ndarray, choice: Sequence[tuple[Grid, int]]) -> list[LaunchPlan]:
        return [self.selector.quickest(each, choice) for each in self.seconds(places, among, choice)]

    def families(self) -> tuple[list[LaunchPlan], list[Family]]:
        """The best plans on one thread, and the families that they and the cores of the machine decide."""
        rates, every = self.selector.rates, np.arange(len(self.shapes))
        near = self.near(np.full(len(every), int(rates.cores)))
        alone = self.least(every, near, ways(1, 1))
        dot = self.selector.columns.dot[[plan.index for plan in alone]] > 0
        splits, cores = np.ones(len(every), int), int(rates.cores)
        worth = np.float32(WORTH) * np.float32(rates.call + rates.thread_start)
        deep = np.array([
            plan.seconds >= worth and self.selector.deep(s)
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


def mirror(selector: Selector, shapes: list[tuple[Shape, int]]) -> list[Plain]:
    """`polymerize.plain` of many shapes at once."""
    many = Many(selector, [shape for shape, _ in shapes])
    near = many.near(np.array([threads for _, threads in shapes]))
    alone, families = many.families()
    on_one = many.seconds(np.arange(len(shapes)), near, ways(1, 1))[:, 0]
    found: dict[int, Plain] = {}
    asked = np.array([(count, family.splits) for (_, count), family in zip(shapes, families, strict=True)])
    for threads, splits in sorted(set(map(tuple, asked.tolist()))):
        places, choice = np.flatnonzero((asked == (threads, splits)).all(axis=1)), ways(1, threads, splits)
        seconds = many.seconds(places, near[places], choice)
        for at, place in enumerate(places.tolist()):
            plan = selector.quickest(seconds[at], choice)
            found[place] = Plain(plan, alone[place], families[place], seconds[at].min(axis=0), on_one[place])
    return [found[place] for place in range(len(shapes))]


def regions_of(selector: Selector, shapes: list[tuple[Shape, int]], plans: list[Plain]) -> dict[int, LaunchPlan]:
    """`polymerize.select` of many shapes at once, where it finds regions: all searches are answered together."""
    machine = Machine.of(selector)
    running = {
        place: polymerize(shape, threads, machine, plan.alone, plan.plan, plan.family)
        for place, ((shape, threads), plan) in enumerate(zip(shapes, plans, strict=True))
    }
    found: dict[int, LaunchPlan] = {}
    dots = selector.columns.dot > 0
    answers: dict[int, list[Answer] | None] = dict.fromkeys(running)
    while answers:
        asked = {}
        for place, answer in answers.items():
            try:
                asked[place] = running[place].send(answer)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration as done:
                if done.value:
                    found[place] = as_plan(done.value, selector, shapes[place][1])
        requests = [(place, request) for place, several in asked.items() for request in several]
        if not requests:
            break
        total = selector.totals([problem(r.shape, r.grid, r.cores, selector.rates, r.others) for _, r in requests])
        among = np.stack([plans[place].among(dots, request) for place, request in requests])
        total = np.where(among, total, np.float32(NEVER))
        index = total.argmin(axis=1)
        answers = {place: [] for place in asked}
        for row, (place, _) in enumerate(requests):
            answers[place] += [Answer(int(index[row]), total[row, index[row]])]  # type: ignore[operator]  # never None
    return found
