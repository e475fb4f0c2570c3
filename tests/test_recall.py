"""Choices that a thread remembers: another shape, layout, kind of B or number of products never gets them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vortex
from vortex import operators as ops
from vortex.launcher import GemmKernel

SHAPES = list(itertools.product((1, 3, 17), (1, 16, 33, 90), (1, 16, 33, 90, 300)))
"""More than are remembered, so that entries are taken over. Where n is k, rows of a transposed B are as far apart as
plain ones."""


def integers(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Of few digits: sums of their products are exact in float32 whatever their order."""
    return generator.integers(-8, 9, shape).astype(np.float32)


def call_all(gemm: GemmKernel, seed: int) -> None:
    """Every shape in four kinds, each called twice, in an order of its own; raises where a result is wrong."""
    generator = np.random.default_rng(seed)
    work = [(shape, kind) for shape in SHAPES for kind in ("plain", "transposed", "packed", "a by columns")] * 2
    generator.shuffle(work)
    for (m, n, k), kind in work:
        a, b = integers(generator, m, k), integers(generator, k, n)
        if kind == "plain":
            c = gemm(a, b)
        elif kind == "transposed":
            c = gemm(a, np.ascontiguousarray(b.T).T)
        elif kind == "packed":
            c = gemm(a, gemm.pack(b))
        else:
            c = gemm(np.asfortranarray(a), b)
        np.testing.assert_array_equal(c, a @ b, err_msg=f"{m}x{n}x{k} {kind}")


def test_many_shapes_and_kinds_in_any_order(gemm: GemmKernel) -> None:
    for seed in range(3):
        call_all(gemm, seed)


def test_threads_remember_apart(gemm: GemmKernel) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: call_all(gemm, seed), range(4)))


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_and_single_products_of_one_shape(threads: int) -> None:
    kernel = vortex.compile(ops.BatchGemm())
    generator = np.random.default_rng(7)
    before = vortex.get_num_threads()
    vortex.set_num_threads(threads)
    try:
        for count in (1, 2, 1, 5, 2, 1):
            for shared in (False, True):
                a, b = integers(generator, count, 24, 40), integers(generator, 1 if shared else count, 40, 36)
                np.testing.assert_array_equal(kernel(a, b), a @ b)
    finally:
        vortex.set_num_threads(before)
