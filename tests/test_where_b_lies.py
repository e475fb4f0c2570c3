"""Where the rows of B begin in lines, and from which cache they come, matters to speed alone: elements are the same."""

from __future__ import annotations

import needs
import numpy as np
import pytest
from conftest import compiled
from lying import caches, integers, within

import vortex
from vortex import operators as ops
from vortex.launcher import GemmKernel

pytestmark = needs.a_compiler
SHIFTS = (0, 1, 4, 15, 16, 20, 31)
"""Elements between the beginning of a line and B: in either line of a pair."""


def placed(matrix: np.ndarray, shift: int, stride: int) -> np.ndarray:
    """A copy that begins `shift` elements after a line, its rows `stride` apart, amid elements that no product may take
    in."""
    memory, copy = within(*matrix.shape, shift, stride)
    memory[:] = np.nan
    copy[:] = matrix
    return copy


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("n", "stride"), [(512, 512), (1003, 1024), (640, 656), (300, 303)])
def test_every_strategy_by_few_rows(gemm: GemmKernel, shift: int, n: int, stride: int) -> None:
    """Of a k that takes one step of L1, and of one that takes several, with sums onto what is there."""
    for m, k in ((1, 40), (3, 7), (5, 1100), (13, 40), (14, 9)):
        a, b = integers(m, k), integers(k, n, seed=1)
        expected, lying = a @ b, placed(b, shift, stride)
        for plan in gemm.plans(m, n, k, threads=2, ldb=stride):
            out = np.full((m, n), np.nan, np.float32)
            gemm.run(plan, a, lying, out)
            assert np.array_equal(out, expected), plan
        gemm(a, lying, out=out, accumulate=True)
        assert np.array_equal(out, 2 * expected)


@pytest.mark.parametrize("shift", SHIFTS)
def test_fused_products(shift: int) -> None:
    """In the micro-kernels, and through sums in the output where k takes several steps."""
    fused = compiled(ops.Gemm(epilogue=ops.bias() >> ops.relu()))
    for m, n, k in ((4, 1008, 40), (9, 1024, 1100), (13, 640, 3)):
        a, b, bias = integers(m, k), integers(k, n, seed=1), integers(n, seed=2)
        expected = np.maximum(a @ b + bias, 0)
        for threads in (1, 2):
            vortex.set_num_threads(threads)
            assert np.array_equal(fused(a, placed(b, shift, n), bias=bias), expected), (m, n, k)


@pytest.mark.parametrize("m", [3, 7, 24, 61])
def test_weights_that_no_cache_has_room_for(gemm: GemmKernel, m: int) -> None:
    """Panels of pairs of lines; tiles of few rows share what comes next of packed ones."""
    n = 2048
    k = caches(gemm) // (2 * n) + 300
    a, b = integers(m, k), integers(k, n, seed=1)
    expected = a @ b
    given = [placed(b, shift, n) for shift in (0, 4, 16, 20)]
    for threads in (1, 2):
        vortex.set_num_threads(threads)
        for lying in (*given, gemm.pack(b)):
            assert np.array_equal(gemm(a, lying), expected)
    for plan in gemm.plans(m, n, k, threads=2):
        out = np.full((m, n), np.nan, np.float32)
        gemm.run(plan, a, given[3], out)
        assert np.array_equal(out, expected), plan
