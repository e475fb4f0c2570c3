"""Families of kernels beside the outer products: their plans on every grid, with the bits of an outer product."""

import numpy as np
import pytest

from vortex.explain import Explanation, explain
from vortex.launcher import GemmKernel
from vortex.plans import LaunchPlan, Shape


def keeps_or_skips(gemm: GemmKernel, family: str) -> GemmKernel:
    """What measures slower than outer products everywhere is not in a library: then there is nothing to run."""
    if not any(getattr(strategy.stage, family) for strategy in gemm.strategies):
        pytest.skip(f"the analyzer kept no {family} strategy on this machine")
    return gemm


def plans_of(
    gemm: GemmKernel, family: str, m: int, n: int, k: int, *, packed: bool = False
) -> tuple[list[LaunchPlan], LaunchPlan]:
    """The plans of the family on every grid, at least one, and one of the outer products."""
    found = [plan for plan in gemm.plans(m, n, k, threads=2, packed=packed) if not plan.regions]
    plans = [plan for plan in found if getattr(plan.strategy.stage, family)]
    assert plans
    return plans, next(plan for plan in found if plan.strategy.stage.tiled)


def assert_bits_of_outer_products(
    gemm: GemmKernel, family: str, a: np.ndarray, b: np.ndarray, *, packed: bool = False
) -> None:
    (m, k), n = a.shape, b.shape[1]
    right = gemm.pack(b) if packed else b
    plans, outer = plans_of(gemm, family, m, n, k, packed=packed)
    expected, out = np.empty((2, m, n), np.float32)
    gemm.run(outer, a, right, expected)
    for plan in plans:
        out[:] = np.nan
        gemm.run(plan, a, right, out)
        assert np.array_equal(out, expected), (m, n, k, plan)


def assert_adds(gemm: GemmKernel, family: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Every plan of the family leaves c + a b, in `c` of integers."""
    (m, k), n = a.shape, b.shape[1]
    expected = c + a @ b
    for plan in plans_of(gemm, family, m, n, k)[0]:
        out = c.copy()
        gemm.run(plan, a, b, out, accumulate=True)
        assert np.array_equal(out, expected), (m, n, k, plan)


def explained(gemm: GemmKernel, family: str, m: int, n: int, k: int) -> Explanation:
    """Of the family's plan for the fewest threads, whether or not it is what this machine's costs choose: for one,
    unless they split k."""
    plan = min(plans_of(gemm, family, m, n, k)[0], key=lambda plan: plan.workers)
    return explain(gemm.manifest, gemm.manifest.selector(), Shape(m, n, k), plan, plan.workers)
