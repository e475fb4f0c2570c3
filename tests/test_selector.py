"""The native selector against its Python mirror, and what both promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mirrors import mirror, regions_of
from priced import found

from vortex.compiler import MOST_STRATEGIES
from vortex.cost import NEVER
from vortex.errors import VortexError
from vortex.explain import explain
from vortex.hardware import HardwareSpec, spec_from
from vortex.launcher import GemmKernel
from vortex.operators import Gemm
from vortex.plans import Grid, OperandB, Shape, flat, grids
from vortex.polymerize import Plain, select
from vortex.regions import PATTERNS
from vortex.sieve import buffer_bytes
from vortex.specs import what_if

SHAPES = 100_000


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


@pytest.fixture(scope="module")
def shapes() -> list[tuple[Shape, int]]:
    return random_shapes(SHAPES, 1)


@pytest.fixture(scope="module")
def mirrored(gemm: GemmKernel, shapes: list[tuple[Shape, int]]) -> list[Plain]:
    return mirror(gemm.manifest.selector(), shapes)


def test_many_at_once_is_one_by_one(gemm: GemmKernel) -> None:
    deep = [(Shape(8, 8, 100_000), 2), (Shape(60, 70, 30_000, OperandB.TRANSPOSED), 3), (Shape(300, 200, 20_000), 1)]
    some, selector = [*random_shapes(300, 3), *deep], gemm.manifest.selector()
    plans, many = [selector.select(shape, threads) for shape, threads in some], mirror(selector, some)
    assert [plan.plan for plan in many] == plans
    assert [plan.family for plan in many] == [selector.family(shape) for shape, _ in some]
    cut = regions_of(selector, some, many)
    assert [cut.get(at, plan) for at, plan in enumerate(plans)] == [select(selector, *asked) for asked in some]


def test_the_mirror_picks_the_same_plan(
    gemm: GemmKernel, shapes: list[tuple[Shape, int]], mirrored: list[Plain]
) -> None:
    expected = [(plan.plan.index, plan.plan.grid) for plan in mirrored]
    different = [s for s, plan in zip(shapes, expected, strict=True) if gemm.native_choice(*s) != plan]
    assert not different, f"{len(different)} of {SHAPES} differ, the first {different[:3]}"


def test_the_mirror_cuts_the_same_regions(
    gemm: GemmKernel, shapes: list[tuple[Shape, int]], mirrored: list[Plain]
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


@pytest.mark.parametrize(
    ("threads", "parts", "expected", "blocks"), [(2, 2, 1, 1), (1, 2, 1, 1), (8, 2, 6, 4), (3, 2, 3, 3)]
)
def test_blocks_of_a_reduction_in_parts_are_so_many_tasks(threads: int, parts: int, expected: int, blocks: int) -> None:
    found = grids(threads, parts)
    assert len(set(found)) == len(found) == expected and {grid.k for grid in found} == {parts}
    assert max(grid.m * grid.n for grid in found) == blocks


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


def test_explanations_tell_what_half_an_l2_leaves(gemm: GemmKernel) -> None:
    """A user who halves L2 in a copy of the spec sees at which filter candidates fall away, and how many."""
    spec = spec_from(gemm.manifest.hardware, "the library's")
    halved = what_if(spec, {"l2.capacity_bytes": spec.memory("l2").capacity_bytes // 2})

    def told(hardware: HardwareSpec) -> dict[str, int]:
        manifest = replace(gemm.manifest, hardware=hardware.model_dump(), admitted=found(hardware).admitted)
        shape, selector = Shape(105, 1024, 12544), manifest.selector()
        text = str(explain(manifest, selector, shape, selector.select(shape, 2), 2))
        counts = text.partition("candidates admitted\n")[2].splitlines()
        return {name.strip(): int(count) for name, _, count in (line.rpartition(" ") for line in counts)}

    whole, half = told(spec), told(halved)
    counts = gemm.explain(105, 1024, 12544).sieve
    assert whole == counts, "of the same spec the sieve admits what the library's manifest says"
    assert {name for name in whole if half[name] < whole[name]} >= {"L1 FilterByCapacity", "L1 FilterByEffect"}
    assert all(half[name] == whole[name] for name in whole if not name.startswith("L1")), "what stands in registers"
    most = halved.level("L1").max_utilization * halved.memory("l2").capacity_bytes
    gone = set(found(spec).strategies) - set(found(halved).strategies)
    assert any(buffer_bytes(s.l1, s.stage, Gemm().item_bytes, s.l0.m) > most for s in gone)


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
    stages = [(plan, plan.strategy.stage) for plan in gemm.plans(64, 64, 64, threads=1)]
    foreign = [plan for plan, stage in stages if not (stage.pack_b or stage.dot or stage.swap or stage.held)]
    assert foreign
    for plan in foreign:
        with pytest.raises(VortexError, match="plan"):
            gemm.run(plan, a, a, np.empty_like(a), transpose_b=True)


def test_a_call_is_chosen_from_the_list_of_its_kind_of_b(gemm: GemmKernel) -> None:
    """What is on no list of it is not priced; whatever lists dot products for an unpacked B, both do."""
    selector, lists = gemm.manifest.selector(), dict(zip(OperandB, gemm.manifest.shortlists or (), strict=True))
    assert lists and all(list(those) == sorted(set(those)) for those in lists.values())
    assert set().union(*lists.values()) == set(range(len(gemm.strategies)))
    dots = [{i for i in lists[b] if gemm.strategies[i].stage.dot} for b in (OperandB.PLAIN, OperandB.TRANSPOSED)]
    assert dots[0] == dots[1]
    for b, those in lists.items():
        total = np.asarray(selector.costs(Shape(40, 300, 200, b), Grid(1, 1), 1).total)
        assert {int(i) for i in np.flatnonzero(total < NEVER)} <= set(those)
        assert len(those) <= MOST_STRATEGIES
    for shape, threads in random_shapes(2000, 5):
        assert gemm.native_choice(shape, threads)[0] in lists[shape.b]
        for region in gemm.native_regions(shape, threads)[1]:
            assert region[4] in lists[shape.b]
