"""No task of a call writes what is another's: run one by one, first to last or last to first, they give the same.

Where threads run them at once, what one writes over outputs of another stands in the end only if it comes last.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from conftest import few_tiles
from test_batch import opened
from test_conv import variant
from test_polymerize import cut_at_random

import vortex
from vortex.batch_launcher import BatchGemmKernel
from vortex.conv_launcher import ConvKernel
from vortex.conv_selector import ConvPlan
from vortex.grouped_launcher import GroupedGemmKernel
from vortex.launcher import GemmKernel
from vortex.library import Library
from vortex.operators import BatchGemm, Gemm, GroupedGemm, Reduce, Weights
from vortex.plans import Shape, grids
from vortex.threads import borrow_threads
from vortex.winograd_cost import BLOCKINGS, PANELS
from vortex.winograd_selector import VECTORS

pytestmark = needs.a_compiler
THREADS = 4
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FORK_JOIN = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
ORDERS: tuple[Callable[[range], Iterator[int]], ...] = (iter, reversed)


class Lent(ctypes.Structure):
    """The job of `runtime/lent.h`."""

    _fields_ = (("task", TASK), ("context", ctypes.c_void_p), ("tasks", ctypes.c_int64), ("next", ctypes.c_longlong))


@contextmanager
def running(order: Callable[[range], Iterator[int]]) -> Iterator[list[int]]:
    """Tasks run one after the other in this order; gives the number of each job's, as it is run."""
    counts: list[int] = []

    def run(body: Any, data: int, threads: int, flags: int) -> None:
        job = Lent.from_address(data)
        counts.append(job.tasks)
        for index in order(range(job.tasks)):
            job.task(job.context, index)

    lender = FORK_JOIN(run)
    vortex.set_num_threads(THREADS)
    borrow_threads(ctypes.cast(lender, ctypes.c_void_p).value or 0)
    try:
        yield counts
    finally:
        borrow_threads(0)


def tasks_of(call: Callable[[], np.ndarray], what: object = "") -> int:
    """How many tasks a call has at most, whose order is seen to change no bit of what it gives."""
    found, most = [], 1
    for order in ORDERS:
        with running(order) as counts:
            found.append(np.array(call()))
        most = max([most, *counts])
    assert np.array_equal(*found), what
    return most


def most_tasks(plans: Iterable[Any], run: Callable[[Any], np.ndarray]) -> int:
    """The same of every plan."""
    return max(tasks_of(partial(run, plan), plan) for plan in plans)


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def empty(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


@pytest.mark.parametrize("shape", [(70, 150, 90), (1500, 20, 33), (3, 900, 400), (1, 30, 5000)], ids=str)
def test_products(gemm: GemmKernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = reals(m, k), reals(k, n)
    turned, most = np.ascontiguousarray(b.T), []
    for right, asked in ((b, {}), (turned, {"transpose_b": True}), (gemm.pack(b), {"packed": True})):

        def run(plan: Any, right: Any = right) -> np.ndarray:
            return gemm.run(plan, a, right, empty(m, n), transpose_b=right is turned)

        most.append(most_tasks(gemm.plans(m, n, k, threads=THREADS, **asked), run))
    assert max(most) >= THREADS


def test_regions(gemm: GemmKernel) -> None:
    """Several micro-kernels for a product, which is cut anywhere."""
    rng, most = np.random.default_rng(8), 1
    for _ in range(40):
        m, n, k = (int(x) for x in rng.integers(1, (90, 400, 150)))
        if plan := cut_at_random(gemm, Shape(m, n, k), rng):
            a, b = reals(m, k), reals(k, n)
            most = max(most, tasks_of(lambda: gemm.run(plan, a, b, empty(m, n)), plan))  # noqa: B023
    assert most > THREADS


def test_batches(library_path: Path) -> None:
    bmm, grouped = (
        kind(opened(library_path, operator))
        for kind, operator in ((BatchGemmKernel, BatchGemm()), (GroupedGemmKernel, GroupedGemm()))
    )
    for count, m, n, k in ((7, 19, 45, 33), (2, 150, 300, 64), (50, 1, 70, 90)):
        a, b = reals(count, m, k), reals(count, k, n)
        plans = bmm.plans(count, m, n, k, threads=THREADS)
        assert most_tasks(plans, lambda plan: bmm.run(plan, a, b, empty(count, m, n))) >= THREADS  # noqa: B023
    rows = (40, 0, 3, 17, 128, 1)
    a, b = reals(sum(rows), 33), reals(len(rows), 33, 45)
    assert tasks_of(lambda: grouped(a, b, rows, out=empty(sum(rows), 45))) > 1


@pytest.fixture(scope="module", params=["nhwc", "nchw"])
def conv(request: pytest.FixtureRequest, conv_library: Library) -> ConvKernel:
    return variant(conv_library, layout=request.param)


class TestConvolutions:
    def seen(self, conv: ConvKernel, plans: list[ConvPlan], x: np.ndarray, w: np.ndarray, **where: int) -> set[int]:
        """How many tasks there are, of x [batch, height, width, channels]."""
        if conv.operator.layout == "nchw":
            x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        filters = conv.pack(w, groups=where.get("groups"))
        out = conv.operator.reference(x, w, **where).shape
        return {tasks_of(lambda: conv.run(plan, x, filters, empty(*out), **where), plan) for plan in plans}  # noqa: B023

    def test_winograd(self, conv: ConvKernel) -> None:
        """Panels of filters of which a block keeps PANELS: two tasks have one and five eighths of a block each."""
        filters = (3 * PANELS + 1) * VECTORS * conv.selector.lanes
        plans = [ConvPlan("winograd", False, 0, grid, 0.0, each) for grid in grids(THREADS) for each in BLOCKINGS]
        assert THREADS in self.seen(conv, plans, reals(2, 9, 10, 3), reals(filters, 3, 3, 3), padding=1)

    def test_directly(self, conv: ConvKernel) -> None:
        plans = [
            ConvPlan(family, walk, 0, grid, 0.0)
            for grid in grids(THREADS)
            for family, walk in (("direct", False), ("direct", True), ("lines", False))
        ]
        for channels, filters, groups in ((3, 200, 1), (40, 150, 1), (48, 36, 3)):
            able = [plan for plan in plans if channels == 3 or plan.family == "direct"]
            found = self.seen(
                conv, able, reals(5, 9, 11, channels), reals(filters, channels // groups, 3, 3), groups=groups
            )
            assert THREADS in found

    def test_depthwise(self, conv: ConvKernel) -> None:
        for side, channels in ((30, 40), (9, 600)):
            x, w = reals(2, side, side, channels), reals(channels, 1, 3, 3)
            plans = [ConvPlan("depthwise", False, 0, grid, 0.0) for grid in grids(THREADS)]
            assert THREADS in self.seen(conv, plans, x, w, padding=1, groups=channels)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reductions(kind: str) -> None:
    reduce, most = few_tiles(Reduce(kind)), 1
    for shape, axis in (((9, 4000, 7), 1), ((700, 300), 0), ((3, 200_000), 1)):
        most = max(most, tasks_of(lambda: reduce(reals(*shape), axis), shape))  # noqa: B023
    assert most >= THREADS


def test_words() -> None:
    gemm, most = few_tiles(Gemm(dtype="bfloat16", out_dtype="float32")), []
    for m, n, k in ((70, 150, 90), (3, 900, 1024)):
        a, b = ((reals(*extents).view(np.uint32) >> 16).astype(np.uint16) for extents in ((m, k), (k, n)))
        for right, packed in ((b, False), (gemm.pack(b), True)):
            plans = gemm.plans(m, n, k, threads=THREADS, packed=packed)
            most.append(most_tasks(plans, lambda plan: gemm.run(plan, a, right, empty(m, n))))  # noqa: B023
    assert max(most) >= THREADS


def test_quantized_weights() -> None:
    weights, most = Weights("int4", group=32), []
    gemm = few_tiles(Gemm(weights=weights))
    for m, n, k in ((70, 150, 96), (3, 900, 1024)):
        a, b = reals(m, k), gemm.pack(*weights.quantize(reals(k, n)))
        plans = gemm.plans(m, n, k, threads=THREADS)
        most.append(most_tasks(plans, lambda plan: gemm.run(plan, a, b, empty(m, n))))  # noqa: B023
    assert max(most) >= THREADS
