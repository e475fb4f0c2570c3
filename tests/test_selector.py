"""The native selector against its Python mirror, and what both promise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from vortex.cost import NEVER
from vortex.errors import VortexError
from vortex.launcher import GemmKernel
from vortex.plans import Family, Grid, LaunchPlan, OperandB, Shape, flat, grids
from vortex.polymerize import polymerize, select
from vortex.regions import PATTERNS, Answer, Machine, as_plan
from vortex.selector import DEEP, MOST_PARTS, Selector, problem

SHAPES = 50_000


def random_shapes(count: int, seed: int) -> list[tuple[Shape, int]]:
    rng = np.random.default_rng(seed)
    extents = np.exp(rng.uniform(0, 9.5, (count, 3))).astype(int)
    kinds = rng.integers(0, 3, count)
    col, padding, threads = rng.integers(0, 2, count), rng.integers(0, 64, (count, 2)), rng.choice([1, 2, 3, 8], count)
    shapes = []
    for (m, n, k), kind, is_col, (pad_a, pad_b), count_ in zip(extents, kinds, col, padding, threads, strict=True):
        b = list(OperandB)[kind]
        lda = int(m if is_col else k) + int(pad_a)
        ldb = int(k if b is OperandB.TRANSPOSED else n) + int(pad_b)
        shapes.append((Shape(int(m), int(n), int(k), b, lda, bool(is_col), ldb), int(count_)))
    return shapes


def native(gemm: GemmKernel, shape: Shape, threads: int) -> tuple[int, Grid]:
    plan = gemm.plan(
        shape.m, shape.n, shape.k, threads=threads, transpose_a=shape.a_is_col, lda=shape.lda, ldb=shape.ldb,
        transpose_b=shape.b is OperandB.TRANSPOSED, packed=shape.b is OperandB.PACKED,
    )  # fmt: skip
    return plan.index, plan.grid


@dataclass(frozen=True)
class Mirrored:
    """What the Python selector picks: without regions, on one thread, and the family of both."""

    plain: LaunchPlan
    alone: LaunchPlan
    family: Family


def mirror(selector: Selector, shapes: list[tuple[Shape, int]]) -> list[Mirrored]:
    """`Selector.select` of many shapes at once: the same expressions, shapes down and strategies across."""
    nothing = LaunchPlan(0, selector.strategies[0], Grid(1, 1), NEVER)
    chosen, alone = [nothing] * len(shapes), [nothing] * len(shapes)
    families = [selector.family(shape) if maybe_split(shape, selector) else None for shape, _ in shapes]
    known = {place: family for place, family in enumerate(families) if family}
    dots = selector.columns.dot
    for threads, splits in sorted(
        {(count, f.splits if f else 1) for (_, count), f in zip(shapes, families, strict=True)}
    ):
        places = [
            place
            for place, ((_, count), family) in enumerate(zip(shapes, families, strict=True))
            if count == threads and (family.splits if family else 1) == splits
        ]
        dot = np.array([family is not None and family.dot for family in (families[place] for place in places)])
        least = np.full(len(places), np.inf, np.float32)
        for grid in grids(threads, splits):
            total = selector.totals([problem(shapes[place][0], grid, threads, selector.rates) for place in places])
            if grid == Grid(1, 1):
                dot = dots[total.argmin(axis=1)]
            total = np.where(dots[None] == dot[:, None], total, np.float32(NEVER))
            index = total.argmin(axis=1)
            value = total[np.arange(len(places)), index]
            workers = min(threads, grid.m * grid.n * grid.k)
            for row in np.flatnonzero(value < least):
                strategy = selector.strategies[index[row]]
                chosen[places[row]] = LaunchPlan(int(index[row]), strategy, grid, float(value[row]), workers)
            if grid == Grid(1, 1):
                for row, place in enumerate(places):
                    alone[place] = chosen[place]
                    known.setdefault(place, Family(bool(dot[row]), 1))
            least = np.minimum(value, least)
    return [Mirrored(plain, single, known[at]) for at, (plain, single) in enumerate(zip(chosen, alone, strict=True))]


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


def maybe_split(shape: Shape, selector: Selector) -> bool:
    """Whether the families of a shape are worth asking for one by one: most shapes are not deep enough to be split."""
    return shape.k >= DEEP * max(shape.m, shape.n) and shape.m * shape.n * selector.rates.cores <= MOST_PARTS


@pytest.fixture(scope="module")
def shapes() -> list[tuple[Shape, int]]:
    return random_shapes(SHAPES, 1)


@pytest.fixture(scope="module")
def mirrored(gemm: GemmKernel, shapes: list[tuple[Shape, int]]) -> list[Mirrored]:
    return mirror(gemm.manifest.selector(), shapes)


def test_many_at_once_is_one_by_one(gemm: GemmKernel) -> None:
    some, selector = random_shapes(300, 3), gemm.manifest.selector()
    plans, many = [selector.select(shape, threads) for shape, threads in some], mirror(selector, some)
    assert [plan.plain for plan in many] == plans
    cut = regions_of(selector, some, many)
    assert [cut.get(at, plan) for at, plan in enumerate(plans)] == [select(selector, *asked) for asked in some]


def test_the_mirror_picks_the_same_plan(
    gemm: GemmKernel, shapes: list[tuple[Shape, int]], mirrored: list[Mirrored]
) -> None:
    expected = [(plan.plain.index, plan.plain.grid) for plan in mirrored]
    different = [s for s, plan in zip(shapes, expected, strict=True) if gemm.native_choice(*s) != plan]
    assert not different, f"{len(different)} of {SHAPES} differ, the first {different[:3]}"


def test_the_mirror_cuts_the_same_regions(
    gemm: GemmKernel, shapes: list[tuple[Shape, int]], mirrored: list[Mirrored]
) -> None:
    cut = regions_of(gemm.manifest.selector(), shapes, mirrored)
    assert cut, "no shape is cut into regions: nothing is compared"
    different = []
    for place, asked in enumerate(shapes):
        plan, (pattern, regions) = cut.get(place), gemm.native_regions(*asked)
        expected = flat(plan.regions) if plan else []
        if [x for region in regions for x in region] != expected or (plan and PATTERNS[pattern] != plan.pattern):
            different.append(asked)
    assert not different, f"{len(different)} of {SHAPES} differ, the first {different[:3]}"


def test_plan_reports_the_native_choice(gemm: GemmKernel) -> None:
    for shape, threads in random_shapes(200, 2):
        if not gemm.native_regions(shape, threads)[1]:
            assert native(gemm, shape, threads) == gemm.native_choice(shape, threads)


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 3), (4, 6), (6, 7)])
def test_grids(threads: int, expected: int) -> None:
    found = grids(threads)
    assert len(set(found)) == len(found) == expected
    assert found[0] == Grid(1, 1) and all(grid.m * grid.n <= threads for grid in found)


def test_selection_is_quick_in_native_code(gemm: GemmKernel) -> None:
    """A ceiling that holds on slow machines; docs/performance.md has the measured figure."""
    assert gemm.time_selection(333, 444, 555, 10_000) < 20e-6


def test_predictions_take_arrays(gemm: GemmKernel) -> None:
    m = np.array([[1, 10], [100, 1000]])
    seconds = gemm.predict(m, 64, 64)
    assert seconds.shape == (2, 2) and (np.diff(seconds.ravel()) > 0).all()
    assert seconds[1, 0] == gemm.predict(100, 64, 64)


def test_explanation(gemm: GemmKernel) -> None:
    explanation = gemm.explain(105, 1024, 12544)
    text = str(explanation)
    assert str(explanation.plan.strategy) in text and "runners-up" in text and "FilterByISA" in text
    # Several micro-kernels are one term.
    told = {"regions"} if explanation.plan.regions else {"compute", "dot_products"}
    assert told & {name for name, seconds in explanation.terms.items() if seconds > 0}
    assert explanation.rivals
    assert all(rival.seconds >= explanation.plan.seconds for rival, _ in explanation.rivals)


def test_the_dot_family_is_explained_as_one_term(gemm: GemmKernel) -> None:
    explanation = gemm.explain(2000, 2, 500, threads=1)
    dots = [plan for plan in gemm.plans(2000, 2, 500, threads=1) if plan.strategy.stage.dot]
    terms = gemm.cost_terms(dots[0], 2000, 2, 500)
    assert terms.keys() == {"dot_products", "start", "parts", "total"}
    assert terms["dot_products"] + terms["start"] == pytest.approx(terms["total"]) == pytest.approx(dots[0].seconds)
    assert "dot_products" in str(explanation) or "compute" in str(explanation)


def test_terms_that_print_as_nothing_are_left_out(gemm: GemmKernel) -> None:
    assert " 0.0 ns" not in str(gemm.explain(3, 4, 5)) and "(+0.0 ns)" not in str(gemm.explain(1, 1, 1))


def test_a_foreign_plan_is_refused(gemm: GemmKernel) -> None:
    a = np.ones((64, 64), np.float32)
    for plan in gemm.plans(64, 64, 64, threads=1):
        served = {p.index for p in gemm.plans(64, 64, 64, threads=1, transpose_b=True)}
        if plan.index not in served:
            with pytest.raises(VortexError, match="plan"):
                gemm.run(plan, a, a, np.empty_like(a), transpose_b=True)
