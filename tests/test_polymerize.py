"""Several micro-kernels in one call: patterns, allocation, the native search against its mirror, and what runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from priced import found
from priced import selector as computed

import vortex
from vortex import OperandError
from vortex import polymerize as search
from vortex.arithmetic import F32
from vortex.launcher import GemmKernel
from vortex.plans import Grid, LaunchPlan, OperandB, Region, Shape
from vortex.polymerize import DERIVATIONS, GAIN
from vortex.regions import PATTERNS, Machine, maxmin
from vortex.specs import load_spec

RNG = np.random.default_rng(5)
WHOLE = Grid(1, 1)
BLOCKS = {
    1: (0, 2, 0, 1), 2: (0, 2, 1, 2), 3: (0, 2, 2, 3), 4: (2, 3, 0, 1), 5: (2, 3, 1, 3), 6: (3, 4, 0, 1),
    7: (3, 4, 1, 3),
}  # fmt: skip
"""Of the skeleton: rows and columns, from and to, on a sheet of 4 by 3."""


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


def region(row: int, column: int, rows: int, columns: int, task: float = 0.0, grid: Grid = WHOLE) -> Region:
    return Region(row, column, rows, columns, grid, 0, F32(task))


def sheets() -> list[list[Region]]:
    """Every pattern laid out on the sheet of the skeleton."""
    places = {(0, True): 2, (0, False): 1}
    patterns = [[region(0, 0, 4, 3)]]
    for parent, at, by_rows in DERIVATIONS:
        old = patterns[parent]
        target = old[at]
        wanted = places[(0, by_rows)]
        cut_at = wanted - (target.row if by_rows else target.column)
        cut_at = cut_at if 0 < cut_at < (target.rows if by_rows else target.columns) else 1
        one, other = search.cut(target, by_rows, cut_at)
        patterns.append([*old[:at], region(*one), region(*other), *old[at + 1 :]])
    return patterns


def test_nine_patterns_are_rectangles_of_the_seven_blocks() -> None:
    found = sheets()
    assert len(found) == len(PATTERNS) == 9
    seen = set()
    for regions in found:
        assert len(regions) <= 4
        owners = []
        for r in regions:
            cells = set(itertools.product(range(r.row, r.row + r.rows), range(r.column, r.column + r.columns)))
            blocks = frozenset(
                name for name, (y0, y1, x0, x1) in BLOCKS.items()
                if {(y, x) for y in range(y0, y1) for x in range(x0, x1)} <= cells
            )  # fmt: skip
            area = sum((y1 - y0) * (x1 - x0) for y0, y1, x0, x1 in (BLOCKS[name] for name in blocks))
            assert area == len(cells), "a region is a union of whole blocks"
            owners.append(blocks)
        assert frozenset().union(*owners) == BLOCKS.keys() and sum(map(len, owners)) == len(BLOCKS)
        seen.add(frozenset(owners))
    assert len(seen) == 9


@pytest.mark.parametrize(
    ("regions", "cores", "load"),
    [
        ([region(0, 0, 1, 1, 3.0, Grid(4, 1))], 2, 6.0),  # one region: waves of its tasks
        ([region(0, 0, 1, 1, 3.0, Grid(5, 1))], 4, 6.0),
        ([region(0, 0, 1, 1, 2.0, Grid(2, 1)), region(0, 0, 1, 1, 1.0, Grid(1, 2))], 2, 3.0),
        ([region(0, 0, 1, 1, 2.0), region(0, 0, 1, 1, 5.0)], 2, 5.0),
        ([region(0, 0, 1, 1, 1.0, Grid(3, 1)), region(0, 0, 1, 1, 3.0)], 2, 3.0),  # the long one first
        ([region(0, 0, 1, 1, 4.0, Grid(3, 1)), region(0, 0, 1, 1, 1.0, Grid(5, 1))], 4, 5.0),
    ],
)
def test_tasks_go_to_the_least_loaded_core(regions: list[Region], cores: int, load: float) -> None:
    assert maxmin(regions, cores) == load


def test_a_search_that_nothing_can_win_asks_nothing() -> None:
    """A plan whose tasks are alike leaves no core idle: its bound says so before anything is priced."""
    selector = computed(load_spec("epyc-zen5"), found(load_spec("epyc-zen5")).strategies[::400])
    shape, machine = Shape(1024, 1024, 1024), Machine.of(selector)
    even = LaunchPlan(0, selector.strategies[0], Grid(2, 1), 1.0, 2)
    with pytest.raises(StopIteration) as done:
        next(search.balance(shape, 2, machine, even))
    assert done.value.value is None


def cut_at_random(gemm: GemmKernel, shape: Shape, rng: np.random.Generator) -> LaunchPlan | None:
    """A random pattern of outer products on random grids; None where a cut finds no room."""
    names = [i for i, s in enumerate(gemm.strategies) if not s.stage.dot]
    regions = [region(0, 0, shape.m, shape.n)]
    step = gemm.manifest.panel if shape.b is OperandB.PACKED else 1
    for parent, at, by_rows in lineage(int(rng.integers(1, len(PATTERNS)))):
        del parent
        whole = regions[at]
        places = range(1, whole.rows) if by_rows else range(step, whole.columns, step)
        if not places:
            return None
        one, other = search.cut(whole, by_rows, int(rng.choice(places)))
        regions[at : at + 1] = [region(*one), region(*other)]
    served = {plan.index for plan in gemm.plans(*extents(shape), threads=1, **kind(shape)) if not plan.regions}
    able = [i for i in names if i in served]
    dressed = tuple(
        replace(r, index=int(rng.choice(able)), grid=Grid(*(int(x) for x in rng.integers(1, 3, 2)))) for r in regions
    )
    return LaunchPlan(dressed[0].index, gemm.strategies[dressed[0].index], dressed[0].grid, 0.0, 2, dressed, "x")


def lineage(pattern: int) -> list[tuple[int, int, bool]]:
    """The cuts that lead to a pattern, the first one first."""
    steps = []
    while pattern:
        steps.append(DERIVATIONS[pattern - 1])
        pattern = steps[-1][0]
    return steps[::-1]


def extents(shape: Shape) -> tuple[int, int, int]:
    return shape.m, shape.n, shape.k


def kind(shape: Shape) -> dict[str, bool]:
    return {
        "transpose_a": shape.a_is_col,
        "transpose_b": shape.b is OperandB.TRANSPOSED,
        "packed": shape.b is OperandB.PACKED,
    }


@pytest.mark.parametrize("b_is", list(OperandB))
@pytest.mark.parametrize("a_is_col", [False, True])
def test_any_regions_give_the_bits_of_one(gemm: GemmKernel, b_is: OperandB, a_is_col: bool) -> None:
    rng = np.random.default_rng(8)
    done = 0
    for _ in range(60):
        m, n, k = (int(x) for x in rng.integers(1, (90, 400, 150)))
        n += 300 * (b_is is OperandB.PACKED)
        shape = Shape(m, n, k, b_is, a_is_col=a_is_col)
        plan = cut_at_random(gemm, shape, rng)
        if plan is None:
            continue
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        given = np.ascontiguousarray(a.T) if a_is_col else a
        right = gemm.pack(b) if b_is is OperandB.PACKED else b
        if b_is is OperandB.TRANSPOSED:
            right = np.ascontiguousarray(b.T)
        flags = {"transpose_a": a_is_col, "transpose_b": b_is is OperandB.TRANSPOSED}
        one = next(p for p in gemm.plans(m, n, k, **kind(shape)) if not p.regions and not p.strategy.stage.dot)
        expected = gemm.run(one, given, right, np.empty((m, n), np.float32), **flags)
        out = np.full((m, n), np.nan, np.float32)
        assert np.array_equal(gemm.run(plan, given, right, out, **flags), expected), (shape, plan.regions)
        done += 1
    assert done > 20


def cut_calls(gemm: GemmKernel) -> Iterator[tuple[int, int, int, bool]]:
    """Shapes, and whether B is transposed, whose last vector is nearly empty: the selector cuts their residue off.

    Of weights that lie as [n, k] it is one of rows, of a B as it is multiplied one of columns.
    """
    rows = itertools.product((17, 18, 33, 34, 9, 10), (768, 2304), (768, 1024), (True,))
    columns = itertools.product((59, 150, 600), (65, 81), (1000, 3721), (False,))
    for m, n, k, turned in (*columns, *rows):
        if gemm.plan(m, n, k, threads=1, transpose_b=turned).regions:  # on several it may be for a bad last wave
            yield m, n, k, turned


def test_a_residue_has_the_same_bits_on_any_number_of_threads(gemm: GemmKernel) -> None:
    cases = list(cut_calls(gemm))
    if not cases:
        pytest.skip("this machine's costs cut no residue off")
    for m, n, k, turned in cases[:4]:
        a, b = RNG.standard_normal((m, k)).astype(np.float32), RNG.standard_normal((k, n)).astype(np.float32)
        given = np.ascontiguousarray(b.T) if turned else b
        results = []
        for threads in (1, 2, 3, 7):
            vortex.set_num_threads(threads)
            assert gemm.plan(m, n, k, transpose_b=turned).regions
            results.append(gemm(a, given, transpose_b=turned))
        assert all(np.array_equal(results[0], other) for other in results[1:])
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert np.abs(results[0] - exact).max() < 1e-3
        x, y, out = integers(m, k), integers(k, n), integers(m, n)
        added = out + x @ y
        right = np.ascontiguousarray(y.T) if turned else y
        assert np.array_equal(gemm(x, right, out, transpose_b=turned, accumulate=True), added)


def test_the_switch(gemm: GemmKernel) -> None:
    cases = list(cut_calls(gemm))
    if not cases:
        pytest.skip("this machine's costs cut no residue off")
    m, n, k, turned = cases[0]
    gemm.polymerize(False)
    try:
        assert not gemm.plan(m, n, k, transpose_b=turned).regions
        x, y = integers(m, k), integers(k, n)
        assert np.array_equal(gemm(x, np.ascontiguousarray(y.T) if turned else y, transpose_b=turned), x @ y)
    finally:
        gemm.polymerize(True)
    assert gemm.plan(m, n, k, transpose_b=turned).regions


def test_regions_are_explained(gemm: GemmKernel) -> None:
    cases = list(cut_calls(gemm))
    if not cases:
        pytest.skip("this machine's costs cut no residue off")
    m, n, k, turned = cases[0]
    lanes, (axis, extent) = gemm.manifest.lanes, ("rows", m) if turned else ("columns", n)
    explained = gemm.explain(m, n, k, transpose_b=turned)
    text = str(explained)
    assert "2 regions" in text and "dot products along k" in text and f"{axis} 0 to {extent - extent % lanes}" in text
    plan = gemm.plan(m, n, k, transpose_b=turned)
    terms = gemm.cost_terms(plan, m, n, k, transpose_b=turned)
    assert terms["regions"] + terms["start"] == pytest.approx(terms["total"]) == pytest.approx(plan.seconds)
    one = min(p.seconds for p in gemm.plans(m, n, k, transpose_b=turned) if not p.regions)
    assert plan.seconds < (1 + GAIN) / 2 * one


@pytest.mark.parametrize(
    "regions",
    [
        [(0, 0, 10, 64), (10, 0, 9, 64)],  # a row is missing
        [(0, 0, 11, 64), (10, 0, 10, 64)],  # one is there twice
        [(0, 0, 20, 32), (0, 0, 20, 32)],
        [(0, 0, 20, 63), (0, 64, 20, 1)],
        [(0, 0, 30, 64), (20, 0, -10, 64)],
        [(0, 0, 20, 16)] * 4,
        [(0, 0, 20, 64), (20, 0, 0, 64)],
        [(0, 0, 4, 64)] * 5,
    ],
)
def test_regions_that_are_not_the_output_are_refused(
    gemm: GemmKernel, regions: list[tuple[int, int, int, int]]
) -> None:
    a, b, out = integers(20, 8), integers(8, 64), integers(20, 64)
    served = next(p.index for p in gemm.plans(20, 64, 8, threads=1) if not p.strategy.stage.dot)
    parts = tuple(replace(region(*r), index=served) for r in regions)
    with pytest.raises(OperandError, match="plan"):
        gemm.run(LaunchPlan(served, gemm.strategies[served], Grid(1, 1), 0.0, 1, parts, "II"), a, b, out)
