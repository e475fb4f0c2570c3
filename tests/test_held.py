"""The held family: a kernel that keeps B in registers, against the outer products and against integers."""

from itertools import accumulate, product
from operator import attrgetter

import numpy as np
import pytest
from families import assert_adds, assert_bits_of_outer_products, explained, keeps_or_skips, plans_of
from priced import computed
from test_gemm import integers, reals

from vortex.candidates import held_strategies, longest_run
from vortex.codegen.cpu_held import runs
from vortex.cost import NEVER
from vortex.hardware import HardwareSpec
from vortex.launcher import GemmKernel
from vortex.plans import Grid, OperandB, Shape
from vortex.selector import Selector
from vortex.specs import cpus


@pytest.fixture(scope="module")
def held_gemm(gemm: GemmKernel) -> GemmKernel:
    return keeps_or_skips(gemm, "held")


def depth_of(of: GemmKernel | Selector) -> int:
    """Steps of k that its kernel holds of B: 23 in the registers of AVX-512, 7 in those of AVX2."""
    return next(strategy.l0.k for strategy in of.strategies if strategy.stage.held)


@pytest.mark.parametrize("registers", [8, 16, 32])
def test_runs_make_up_every_depth(registers: int) -> None:
    for rows in range(1, registers):
        for strategy in held_strategies(registers, rows, 16):
            depth = strategy.l0.k
            assert rows + depth + 1 <= registers
            assert 2 * longest_run(depth) <= depth + 1 or depth == 1
            parts = runs(depth)
            starts = [0, *accumulate(run.steps for run in parts)]
            assert [run.first for run in parts] == starts[:-1] and starts[-1] == depth
            for k in range(depth + 1):
                there = [run for run in parts if (k >= run.first + run.steps if run.whole else k & run.steps)]
                assert sum(run.steps for run in there) == k, (depth, k)


def test_no_held_kernel_without_registers_for_b() -> None:
    assert held_strategies(16, 15, 8) == ()
    assert held_strategies(16, 14, 8)[0].l0.k == 1


@pytest.mark.parametrize("packed", [False, True])
def test_every_short_k_has_the_bits_of_outer_products(held_gemm: GemmKernel, packed: bool) -> None:
    """Two steps of k at L1 among them; heights that leave rows over, every kernel with empty lanes; panels of B."""
    shapes = [(13, 101), (300, 230)] if packed else [(1, 5), (13, 16), (14, 2), (300, 21)]
    for k, (m, n) in product(range(1, 2 * depth_of(held_gemm) + 5), shapes):
        assert_bits_of_outer_products(held_gemm, "held", reals(m, k), reals(k, n), packed=packed)


def test_it_adds_to_what_is_there(held_gemm: GemmKernel) -> None:
    depth = depth_of(held_gemm)
    for m, n, k in [(3001, 12, min(depth, 8)), (2500, 16, depth), (4000, 7, 1)]:
        assert_adds(held_gemm, "held", integers(m, k), integers(k, n), integers(m, n))


def test_many_columns_and_strides(held_gemm: GemmKernel) -> None:
    m, n, k = 37, 200, 9
    a, b, wide = integers(m, k + 5)[:, :k], integers(k, n + 3)[:, :n], np.full((m, n + 7), 5, np.float32)
    for plan in plans_of(held_gemm, "held", m, n, k)[0]:
        held_gemm.run(plan, a, b, wide[:, :n])
        assert np.array_equal(wide[:, :n], a @ b) and (wide[:, n:] == 5).all()


def test_no_other_infinity_or_nan_reaches_an_element(held_gemm: GemmKernel) -> None:
    """Registers for steps that k does not have, and lanes past the last column, take no part."""
    a, b = integers(11, 6), integers(6, 7)
    a[3, 2], b[4, 5] = np.inf, np.nan
    for plan in plans_of(held_gemm, "held", 11, 7, 6)[0]:
        out = np.zeros((11, 7), np.float32)
        held_gemm.run(plan, a, b, out)
        with np.errstate(invalid="ignore"):
            assert np.array_equal(np.isfinite(out), np.isfinite(a @ b))


@pytest.mark.parametrize("spec", cpus(), ids=attrgetter("name"))
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_chosen_for_a_tall_product_of_short_k(spec: HardwareSpec, threads: int) -> None:
    costs = computed(spec)
    assert costs.select(Shape(5000, 12, min(depth_of(costs), 8)), threads).strategy.stage.held


def test_it_is_explained_as_one_term(held_gemm: GemmKernel) -> None:
    explanation = explained(held_gemm, "held", 5000, 12, min(depth_of(held_gemm), 8))
    assert "B held in registers" in str(explanation)
    assert set(explanation.terms) == {"held_products", "start", "parts", "total"}
    assert explanation.terms["held_products"] > 0


def test_a_transposed_b_is_turned_over_first(held_gemm: GemmKernel) -> None:
    """The bits of the same B as it lies: several blocks of columns among them, rows apart, and sums that are there."""
    depth = depth_of(held_gemm)
    for k, (m, n) in product((1, 2, depth - 1, depth, depth + 3), [(13, 101), (300, 230), (41, 2100)]):
        a, b, c = reals(m, k), reals(k, n), reals(m, n)
        turned = np.full((n, k + 3), np.nan, np.float32)
        turned[:, :k] = b.T
        for plan in plans_of(held_gemm, "held", m, n, k)[0]:
            for accumulate_ in (False, True):
                expected, out = c.copy(), c.copy()
                held_gemm.run(plan, a, b, expected, accumulate=accumulate_)
                held_gemm.run(plan, a, turned[:, :k], out, transpose_b=True, accumulate=accumulate_)
                assert np.array_equal(out, expected), (m, n, k, plan)


@pytest.mark.parametrize("spec", cpus(), ids=attrgetter("name"))
def test_it_is_priced_for_a_transposed_b_of_one_step(spec: HardwareSpec) -> None:
    costs = computed(spec)
    depth, held = depth_of(costs), [strategy.stage.held for strategy in costs.strategies]

    def priced(k: int, b: OperandB) -> float:
        return float(np.asarray(costs.costs(Shape(657, 3648, k, b), Grid(1, 1), 1).total)[held].min())

    assert priced(depth, OperandB.PLAIN) < priced(depth, OperandB.TRANSPOSED) < 1.5 * priced(depth, OperandB.PLAIN)
    assert priced(depth + 1, OperandB.TRANSPOSED) == np.float32(NEVER) > priced(depth + 1, OperandB.PLAIN)


def test_a_transposed_a_is_not_for_it(held_gemm: GemmKernel) -> None:
    """Its elements are not where the kernel looks for them."""
    k = min(depth_of(held_gemm), 8)
    shape = Shape(5000, 12, k, OperandB.PLAIN, a_is_col=True)
    assert not held_gemm.manifest.selector().select(shape, 1).strategy.stage.held
    plan = plans_of(held_gemm, "held", 5000, 12, k)[0][0]
    with pytest.raises(ValueError, match="given plan"):
        held_gemm.run(plan, integers(k, 5000), integers(k, 12), np.zeros((5000, 12), np.float32), transpose_a=True)
