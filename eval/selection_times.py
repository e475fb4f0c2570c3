"""How long the native selector of each operator chooses for a shape, over a seeded sample of shapes.

The time of a shape is the least of several means: what disturbs a mean makes it longer. Of plain products the shapes
for which regions are priced are told apart, since that is most of what choosing can take.
"""

import importlib
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from eval.operator_cases import OperatorCase, load_any_suite
from eval.operator_operands import shapes
from eval.operator_oracle import CONV_SUITES, window_of
from eval.suites import random_cases, sample

SHAPES, REPEATS, MEANS = 60, 2000, 3
POOL = 3000
"""Of products, among which those are sought whose regions are priced: about one in fifty."""
GROUPS = 8
"""Of a grouped product."""
THREADS = (1, 2)


@dataclass(frozen=True, slots=True)
class Selection:
    """One shape in words, and its selection: repeats -> seconds of one."""

    shape: str
    timed: Callable[[int], float]

    def microseconds(self) -> float:
        return min(self.timed(REPEATS) for _ in range(MEANS)) * 1e6


def log_uniform(draw: random.Random, most: int) -> int:
    return round(math.exp(draw.uniform(0.0, math.log(most))))


def pricings(gemm: Any, shape: Any, threads: int) -> int:
    """How often regions are priced for a product: its mirror asks as often as the native selector does."""
    polymerize: Any = importlib.import_module("vortex.polymerize")
    regions: Any = importlib.import_module("vortex.regions")
    selector = gemm.manifest.selector()
    found = polymerize.plain(selector, shape, threads)
    machine = regions.Machine.of(selector)
    search = polymerize.polymerize(shape, threads, machine, found.alone, found.plan, found.family)
    count, answers = 0, None
    while True:
        try:
            requests = search.send(answers)
        except StopIteration:
            return count
        count, answers = count + 1, polymerize.answered(selector, found, requests)


def products(run: Any, name: str, count: int, seed: int) -> Iterator[Selection]:
    """B goes round: as it lies, transposed, packed; quantized weights are always packed."""
    for extents, given in drawn(count, seed):
        yield product(run, extents, {"packed": True} if name == "weights" else given)


def drawn(count: int, seed: int) -> Iterator[tuple[tuple[int, int, int], dict[str, bool]]]:
    """Extents of products, and how their B lies."""
    for place, case in enumerate(random_cases(count, seed)):
        way = ("", "transpose_b", "packed")[place % 3]
        yield (case.m, case.n, case.k), {way: True} if way else {}


def product(run: Any, extents: tuple[int, int, int], given: dict[str, bool], note: str = "") -> Selection:
    told = " ".join(["x".join(map(str, extents)), *given])
    return Selection(told + note, lambda repeats: float(run.time_selection(*extents, repeats, **given)))


def priced(gemm: Any, threads: int, seed: int, count: int) -> list[Selection]:
    """Up to `count` products of a pool for which regions are priced; the note tells how often."""
    shape_of: Any = importlib.import_module("vortex.shapes").shape_of
    counted = (
        (pricings(gemm, shape_of(*extents, **given), threads), extents, given)
        for extents, given in drawn(POOL, seed + 1)
    )
    some = islice((each for each in counted if each[0]), count)
    return [product(gemm, extents, given, f", {number} pricings") for number, extents, given in some]


def batches(run: Any, name: str, count: int, seed: int) -> Iterator[Selection]:
    """Of a batched product batch, m, n, k; of a grouped one as many rows for each of GROUPS."""
    draw = random.Random(seed)
    for _ in range(count):
        m, n, k = (log_uniform(draw, 1024) for _ in range(3))
        first: Any = log_uniform(draw, 256), m
        if name == "grouped":
            first = ([log_uniform(draw, 512) for _ in range(GROUPS)],)
        timed = partial(lambda extents, repeats: run.time_selection(*extents, repeats), (*first, n, k))
        yield Selection("x".join(map(str, (*first, n, k))), timed)


def convolutions(run: Any, name: str, count: int, seed: int) -> Iterator[Selection]:
    every = [case for suite in CONV_SUITES for case in load_any_suite(suite) if isinstance(case, OperatorCase)]
    for case in sample(every, count, seed):
        at, window = shapes(case), window_of(case)
        extents = at["x"], at["w"]
        yield Selection(
            case.shape, partial(lambda e, w, repeats: run.time_selection(*e, repeats, **w), extents, window)
        )


def reductions(run: Any, name: str, count: int, seed: int) -> Iterator[Selection]:
    """Over the middle one of three axes."""
    draw = random.Random(seed)
    for _ in range(count):
        shape = log_uniform(draw, 4096), log_uniform(draw, 1 << 17), log_uniform(draw, 512)
        timed = partial(lambda shape, repeats: run.time_selection(shape, 1, repeats=repeats), shape)
        yield Selection("x".join(map(str, shape)), timed)


SAMPLES: dict[str, Callable[[Any, str, int, int], Iterator[Selection]]] = {
    "batch": batches,
    "grouped": batches,
    "conv2d": convolutions,
    "reduce": reductions,
}
"""How shapes of an operator are drawn; of all others as those of products."""


def sampled(run: Any, name: str, count: int, seed: int) -> list[Selection]:
    """`count` shapes of an operator of `operator_libraries`, `run` being its callable."""
    return list(SAMPLES.get(name, products)(run, name, count, seed))


def measured(run: Any, name: str, seed: int, count: int = SHAPES) -> Iterator[dict[str, Any]]:
    """Median and worst of an operator on each number of threads, then of the shapes whose regions are priced.

    Each is one line: `name`, `value` in microseconds, `note`. Leaves the number of threads as it was.
    """
    vortex: Any = importlib.import_module("vortex")
    asked, before = sampled(run, name, count, seed), vortex.get_num_threads()
    for threads in THREADS:
        vortex.set_num_threads(threads)
        told = f"selection of {name}, {threads} thread(s)"
        yield from summary(told, asked)
        if name == "gemm":
            yield from summary(f"{told}, regions priced", priced(run, threads, seed, count))
    vortex.set_num_threads(before)


def summary(name: str, asked: Sequence[Selection]) -> Iterator[dict[str, Any]]:
    """Median and worst; nothing of no shapes."""
    times = [(selection.microseconds(), selection.shape) for selection in asked]
    if times:
        worst, at = max(times)
        yield {
            "name": f"{name}, median",
            "value": statistics.median(us for us, _ in times),
            "note": f"{len(times)} shapes",
        }
        yield {"name": f"{name}, worst", "value": worst, "note": at}
