"""A reduction in parts: when k is split, that it is right, and that the number of threads changes no bit of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from priced import found, selector

import vortex
from vortex.errors import OperandError
from vortex.launcher import GemmKernel
from vortex.plans import Family, Grid, OperandB, Shape, split_grids
from vortex.selector import DEEP, MOST_PARTS, Selector
from vortex.specs import cpus, load_spec

RNG = np.random.default_rng(23)
DEEP_SHAPES = [(1, 1, 300_000), (3, 5, 60_000), (32, 32, 50_000), (70, 33, 20_011), (6, 100, 9_999)]
TRANSPOSES = list(itertools.product((False, True), repeat=2))
SPECS = [spec.name for spec in cpus()]


def integers(*shape: int) -> np.ndarray:
    """Small integers: their products, and sums of 300,000 of them, are exact in float32."""
    return RNG.integers(-2, 3, shape).astype(np.float32)


def stored(matrix: np.ndarray, transposed: bool) -> np.ndarray:
    return np.ascontiguousarray(matrix.T) if transposed else matrix


def priced(name: str) -> Selector:
    spec = load_spec(name)
    strategies = found(spec).strategies
    return selector(spec, [*strategies[:: max(1, len(strategies) // 60)], strategies[-1]])


class TestChoice:
    @pytest.mark.parametrize("name", SPECS)
    def test_small_outputs_of_a_long_reduction_are_split(self, name: str) -> None:
        chosen = priced(name)
        if chosen.rates.cores < 2:
            pytest.skip(f"{name} has one core")
        plan = chosen.select(Shape(32, 32, 500_000), int(chosen.rates.cores))
        whole = chosen.least(Shape(32, 32, 500_000), chosen.near(Shape(32, 32, 500_000), 1), [(Grid(1, 1), 1)]).seconds
        assert plan.grid.k > 1 and plan.seconds < 0.9 * whole

    @pytest.mark.parametrize("name", SPECS)
    @pytest.mark.parametrize(
        "shape", [(512, 512, 512), (2000, 2000, 31_000), (1, 4096, 4096), (8, 8, 600), (4096, 1, 60_000)]
    )
    def test_others_are_not(self, name: str, shape: tuple[int, int, int]) -> None:
        m, n, k = shape
        assert k < DEEP * max(m, n) or m * n * k < 100_000
        assert priced(name).family(Shape(*shape)).splits == 1

    @pytest.mark.parametrize(("name", "splits"), [("epyc-zen4", 2), ("epyc-zen5", 2), ("epyc-zen3", 1)])
    def test_few_rows_are_where_a_core_waits_for_pieces_of_a_plain_b(self, name: str, splits: int) -> None:
        """On few cores, where few ways to cut k have to be priced."""
        two = replace(priced(name), rates=replace(priced(name).rates, cores=2.0))
        assert two.rates.pieced == (splits > 1) and two.family(Shape(1, 1024, 2048)).splits == splits
        for shape in (Shape(1, 16384, 512), Shape(1, 1024, 2048, OperandB.TRANSPOSED), Shape(8, 1024, 2048)):
            assert two.family(shape).splits == 1
        assert priced(name).rates.cores > 8 and priced(name).family(Shape(1, 1024, 2048)).splits == 1

    @settings(max_examples=25, deadline=None)
    @given(
        st.sampled_from(SPECS), st.integers(1, 300), st.integers(1, 300), st.integers(5_000, 600_000),
        st.sampled_from(OperandB), st.booleans(),
    )  # fmt: skip
    def test_the_family_is_the_same_on_any_number_of_threads(
        self, name: str, m: int, n: int, k: int, b: OperandB, is_col: bool
    ) -> None:
        chosen, shape = priced(name), Shape(m, n, k, b, a_is_col=is_col)
        plans = [chosen.select(shape, threads) for threads in (1, 2, 5, 64)]
        assert {Family(bool(plan.strategy.stage.dot), plan.grid.k) for plan in plans} == {chosen.family(shape)}

    def test_a_split_must_be_worth_it_and_cheap_on_one_thread(self) -> None:
        chosen = priced(SPECS[0])
        shapes = [Shape(m, n, k) for m, n, k in itertools.product((1, 16, 90), (1, 20, 128), (3000, 20_000, 500_000))]
        families = [chosen.family(shape) for shape in shapes]
        assert {family.splits > 1 for family in families} == {False, True}
        for shape, family in zip(shapes, families, strict=True):
            if family.splits > 1:
                alone = chosen.select(shape, 1).seconds
                whole = chosen.least(shape, chosen.near(shape, 1), [(Grid(1, 1), 1)]).seconds
                assert alone <= 1.1 * whole * (1 + 1e-5)

    def test_one_core_never_splits(self) -> None:
        chosen = priced(SPECS[0])
        alone = replace(chosen, rates=replace(chosen.rates, cores=1.0))
        assert alone.family(Shape(16, 16, 500_000)).splits == 1

    @pytest.mark.parametrize("cores", [2, 6, 64])
    def test_split_grids_use_all_cores(self, cores: int) -> None:
        grids = split_grids(cores)
        assert len(set(grids)) == len(grids) and all(g.m * g.n * g.k == cores and g.k > 1 for g in grids)
        assert Grid(1, 1, cores) in grids and MOST_PARTS > 0

    def test_adding_the_parts_is_priced(self) -> None:
        chosen, shape = priced(SPECS[0]), Shape(100, 100, 9_000)
        parts = [float(np.max(chosen.costs(shape, Grid(1, 1, count), 2).parts)) for count in (1, 2, 3)]
        assert parts[0] == 0 < parts[1] and parts[2] == pytest.approx(2 * parts[1], rel=1e-3)
        assert "k in 3 parts" in str(Grid(2, 1, 3)) and str(Grid(2, 1)) == "2x1"


class TestResults:
    @pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
    def test_every_plan_in_any_parts(self, gemm: GemmKernel, transpose_a: bool, transpose_b: bool) -> None:
        """Parts that are empty, too; and `out` with rows apart, whose gaps stay."""
        flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        for m, n, k in [(5, 37, 301), (33, 3, 100), (1, 1, 90), (9, 200, 17)]:
            a, b = integers(m, k), integers(k, n)
            for plan in gemm.plans(m, n, k, threads=2, **flags):
                for parts in (2, 3, 11):
                    out = np.full((m, n + 3), np.nan, np.float32)
                    cut = replace(plan, grid=replace(plan.grid, k=parts))
                    gemm.run(cut, stored(a, transpose_a), stored(b, transpose_b), out[:, :n], **flags)
                    assert np.array_equal(out[:, :n], a @ b), (m, n, k, cut)
                    assert np.isnan(out[:, n:]).all()

    @pytest.mark.parametrize("shape", DEEP_SHAPES)
    @pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
    def test_exact_sums(
        self, gemm: GemmKernel, shape: tuple[int, int, int], transpose_a: bool, transpose_b: bool
    ) -> None:
        m, n, k = shape
        a, b, added = integers(m, k), integers(k, n), integers(m, n)
        left, right = stored(a, transpose_a), stored(b, transpose_b)
        flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        out = added.copy()
        assert np.array_equal(gemm(left, right, **flags), a @ b)
        assert np.array_equal(gemm(left, right, out, accumulate=True, **flags), a @ b + added)
        if not transpose_b:
            assert np.array_equal(gemm(left, gemm.pack(b), transpose_a=transpose_a), a @ b)

    def test_the_number_of_threads_changes_no_bit(self, gemm: GemmKernel) -> None:
        split = 0
        for (m, n, k), (transpose_a, transpose_b) in itertools.product(DEEP_SHAPES, TRANSPOSES):
            a, b = (RNG.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
            left, right = stored(a, transpose_a), stored(b, transpose_b)
            flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
            split += gemm.plan(m, n, k, **flags).grid.k > 1
            results = []
            for count in (1, 2, 3, 7):
                vortex.set_num_threads(count)
                results += [gemm(left, right, **flags), gemm(left, right, **flags)]
            assert all(np.array_equal(result, results[0]) for result in results), (m, n, k)
        assert split or gemm.manifest.rates.cores < 2

    def test_a_plan_of_no_parts_is_refused(self, gemm: GemmKernel) -> None:
        a = np.ones((8, 8), np.float32)
        plan = gemm.plan(8, 8, 8)
        for parts in (0, -1, 40_000):
            with pytest.raises(OperandError, match="plan"):
                gemm.run(replace(plan, grid=replace(plan.grid, k=parts)), a, a, np.empty_like(a))
