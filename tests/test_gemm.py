"""Ring 2: results of a compiled library against NumPy, on data where float32 is exact unless a test says otherwise."""

from __future__ import annotations

import copy
import ctypes
import itertools
import mmap
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import psutil
import pytest
from conftest import CORES, compiled, dots
from legalized import legalize, zen5

import vortex
from vortex import DtypeError, OperandError, launcher
from vortex.affinity import cpu_flags
from vortex.families import DOT_KEPT
from vortex.launcher import GemmKernel
from vortex.operands import PackedOperand, aligned_zeros, zeros_for_constants
from vortex.operators import Gemm
from vortex.plans import Grid, LaunchPlan, OperandB, grids
from vortex.specs import what_if

RNG = np.random.default_rng(7)
NO_RESERVE = 0x4000  # Linux; in Python's mmap from 3.13 on
TRANSPOSES = list(itertools.product((False, True), repeat=2))


def integers(*shape: int) -> np.ndarray:
    """Small integers: every product and sum of them is exact in float32."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def reals(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def stored(matrix: np.ndarray, transposed: bool) -> np.ndarray:
    return np.ascontiguousarray(matrix.T) if transposed else matrix


def test_every_small_shape(gemm: GemmKernel) -> None:
    a, b = integers(33, 33), integers(33, 33)
    for m, n, k in itertools.product(range(1, 34), repeat=3):
        left, right = np.ascontiguousarray(a[:m, :k]), np.ascontiguousarray(b[:k, :n])
        assert np.array_equal(gemm(left, right), left @ right), (m, n, k)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
def test_small_shapes_of_every_layout(gemm: GemmKernel, transpose_a: bool, transpose_b: bool, packed: bool) -> None:
    """A sample of the same shapes, whose rows lie 33 elements apart."""
    rng, a, b = np.random.default_rng(33), stored(integers(33, 33), transpose_a), stored(integers(33, 33), transpose_b)
    for m, n, k in rng.integers(1, 34, (1500, 3)):
        left = a[:k, :m] if transpose_a else a[:m, :k]
        right = b[:n, :k] if transpose_b else b[:k, :n]
        flags = {"transpose_a": transpose_a} if packed else {"transpose_a": transpose_a, "transpose_b": transpose_b}
        given = gemm.pack(right, transpose=transpose_b) if packed else right
        expected = (left.T if transpose_a else left) @ (right.T if transpose_b else right)
        assert np.array_equal(gemm(left, given, **flags), expected), (m, n, k)


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
@pytest.mark.parametrize("seed", range(4))
def test_transposes_and_primes(gemm: GemmKernel, transpose_a: bool, transpose_b: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    primes = [1, 2, 3, 7, 13, 17, 31, 61, 127, 257, 509, 1021]
    for _ in range(40):
        m, n, k = rng.choice(primes, 3)
        a, b = integers(m, k), integers(k, n)
        c = gemm(stored(a, transpose_a), stored(b, transpose_b), transpose_a=transpose_a, transpose_b=transpose_b)
        assert np.array_equal(c, a @ b), (m, n, k)


@pytest.mark.parametrize(
    "shape", [(1, 1000, 700), (700, 1, 1000), (1000, 700, 1), (1, 1, 4000), (3000, 1, 1), (1, 3000, 1)]
)
def test_vectors(gemm: GemmKernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = integers(m, k), integers(k, n)
    assert np.array_equal(gemm(a, b), a @ b)
    assert np.array_equal(gemm(a, gemm.pack(b)), a @ b)


@pytest.mark.parametrize("kind", list(OperandB))
@pytest.mark.parametrize("transpose_a", [False, True])
def test_every_strategy_gives_the_same_bits(gemm: GemmKernel, kind: OperandB, transpose_a: bool) -> None:
    """Within a family: an element of the outer-product family is one chain of multiply-adds in the order of k."""
    rng = np.random.default_rng(11)
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    for _ in range(6):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, 6.5, 3)))
        n = max(n, 16) if packed else n  # fewer columns are packed for the dot family
        a, b = reals(m, k), reals(k, n)
        left, right = stored(a, transpose_a), gemm.pack(b) if packed else stored(b, transposed)
        flags = {"transpose_a": transpose_a, "transpose_b": transposed}
        plans = gemm.plans(m, n, k, threads=2, packed=packed, **flags)
        assert plans
        exact, expected = a.astype(np.float64) @ b.astype(np.float64), dict[bool, np.ndarray]()
        for plan in plans:
            out = np.full((m, n), np.nan, np.float32)
            gemm.run(plan, left, right, out, **flags)
            assert np.allclose(out, exact, rtol=1e-4, atol=1e-3), (m, n, k, plan)
            family = dots(gemm, plan)
            if len(family) == 1:
                assert np.array_equal(out, expected.setdefault(family.pop(), out)), (m, n, k, plan)


@pytest.mark.parametrize("short", [*range(1, 34), 47])
def test_dot_products_along_any_short_side(gemm: GemmKernel, short: int) -> None:
    """Of a transposed B, as many rows or columns as there are registers: in tiles, k in the pieces that L1 keeps."""
    for m, n, k in ((short, 53, 17), (short, 50, 1), (short, 49, 9001), (51, short, 33)):
        a, b = integers(m, k), integers(k, n)
        plans = [plan for plan in gemm.plans(m, n, k, transpose_b=True) if not plan.regions and plan.strategy.stage.dot]
        assert bool(plans) == (short <= gemm.manifest.rates.registers)
        for plan in plans:
            out = np.full((m, n), np.nan, np.float32)
            gemm.run(plan, a, stored(b, True), out, transpose_b=True)
            assert np.array_equal(out, a @ b), (m, n, k, plan)


@pytest.mark.parametrize("outside", ["l2_bytes", "outer_bytes"])
@pytest.mark.parametrize("k", [17, 97, 300, 3008])
def test_rows_from_outside_a_cache(gemm: GemmKernel, outside: str, k: int) -> None:
    """Short ones in tiles of fewer rows, long ones as streams, of A or of a transposed B, all of k at once or a page,
    and what is left of each task: elements are the same bits as of the few rows that are nearer."""
    long = 2 * round(getattr(gemm.manifest.rates, outside)) // (4 * k) + 5
    for short, over_b, threads in itertools.product((1, 2, 4, 5, 8), (False, True), (1, 2)):
        if not over_b and short > gemm.manifest.rates.dot_turned:
            continue
        m, n = (short, long) if over_b else (long, short)
        a, b = (np.resize(reals(997, k), (rows, k)) for rows in (m, n))
        out, few = np.full((m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
        plan = next(p for p in gemm.plans(m, n, k, threads=threads, transpose_b=over_b) if p.strategy.stage.dot)
        right = b if over_b else stored(b, True)
        gemm.run(plan, a, right, out, transpose_b=over_b)
        for part in np.array_split(np.arange(long), 8):
            cut = slice(part[0], part[-1] + 1)
            rows, columns = (slice(None), cut) if over_b else (cut, slice(None))
            inner = right[cut] if over_b else right
            whole = replace(plan, grid=Grid(1, 1, plan.grid.k))
            gemm.run(whole, a[rows], inner, few[rows, columns], transpose_b=over_b)
        assert np.array_equal(out, few), (m, n, k, plan)


@pytest.mark.parametrize("short", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("over_b", [False, True])
def test_columns_of_which_l2_keeps_a_piece(gemm: GemmKernel, short: int, over_b: bool) -> None:
    """Right, and elements are the same bits in any task and as of fewer rows."""
    k, long = round(2.7 * gemm.manifest.rates.l2_bytes / DOT_KEPT / 4), 23  # more than a piece in either half of k
    m, n = (short, long) if over_b else (long, short)
    a, b = (np.resize(reals(997, 1001), (rows, k)) for rows in (m, n))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    every = gemm.plans(m, n, k, threads=2, transpose_b=True)
    dots = next(plan for plan in every if not plan.regions and plan.strategy.stage.dot)
    plans = [replace(dots, grid=replace(grid, k=dots.grid.k)) for grid in grids(2)]
    found = [gemm.run(plan, a, b, np.full((m, n), np.nan, np.float32), transpose_b=True) for plan in plans]
    assert len(found) > 1 and np.allclose(found[0], exact, rtol=1e-4, atol=0.05)
    assert all(np.array_equal(found[0], other) for other in found)
    rows, columns = (m, 7) if over_b else (7, n)
    alone, out = replace(plans[0], grid=Grid(1, 1, plans[0].grid.k)), np.full((rows, columns), np.nan, np.float32)
    few = gemm.run(alone, a[:rows], b[:columns], out, transpose_b=True)
    assert np.array_equal(found[0][:rows, :columns], few)


@pytest.mark.parametrize("short", [6, 8, 10, 11, 24, 32])
@pytest.mark.parametrize("k", [1000, 1024, 2305])
def test_columns_that_lie_badly_in_l1(gemm: GemmKernel, short: int, k: int) -> None:
    """Rows that begin in the same sets, or within a line, by so many others that they are laid anew."""
    long_side = 20 * short + 3
    few, many = (np.empty(rows * k + 1, np.float32)[1:].reshape(rows, k) for rows in (short, long_side))
    few[:], many[:] = integers(short, k), integers(long_side, k)
    for a, b in ((few, many), (many, few)):
        shape = (len(a), len(b), k)
        plans = [plan for plan in gemm.plans(*shape, transpose_b=True, threads=2) if plan.strategy.stage.dot]
        assert (len(plans) > 1) == (short <= gemm.manifest.rates.registers)
        for plan in plans:
            out = np.full(shape[:2], np.nan, np.float32)
            gemm.run(plan, a, b, out, transpose_b=True)
            assert np.array_equal(out, a @ b.T), (shape, plan)


def test_few_columns_have_the_same_bits_on_any_number_of_threads(gemm: GemmKernel) -> None:
    """Where the dot family competes with outer products, one thread decides for all."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        m, n, k = int(np.exp(rng.uniform(0, 8))), int(rng.integers(1, 12)), int(np.exp(rng.uniform(0, 7.5)))
        a, b = reals(m, k), reals(k, n)
        results = []
        for count in (1, 2, 3, 7):
            vortex.set_num_threads(count)
            results += [gemm(a, b), gemm(b.T.copy(), a.T.copy()).T, gemm(a, b.T.copy(), transpose_b=True)]
        assert all(np.array_equal(results[i], results[i % 3]) for i in range(len(results))), (m, n, k)


def test_bits_do_not_depend_on_calls_or_threads(gemm: GemmKernel) -> None:
    for m, n, k in [(5, 70, 900), (130, 257, 1025), (300, 31, 64)]:
        a, b = reals(m, k), reals(k, n)
        results = []
        for count in (1, 2, 3, 5, 8):
            vortex.set_num_threads(count)
            results += [gemm(a, b), gemm(a, b), gemm(a, gemm.pack(b))]
        assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    "shape",
    [(17, 33, 10), (40, 64, 1000), (9, 50, 30000), (200, 300, 257), (500, 3, 9000), (4, 400, 5000), (1, 1, 99999)],
)
def test_error_within_the_bound_of_float32_summation(gemm: GemmKernel, shape: tuple[int, int, int]) -> None:
    """|computed - exact| <= gamma_k |A| |B| with gamma_k = k u / (1 - k u), u = 2^-24 (Higham, section 3.5).

    Whatever the order of the sum: every family, packed or not, and with one rounding more where it is accumulated.
    """
    m, n, k = shape
    a, b, c = reals(m, k), reals(k, n), reals(m, n)
    exact, magnitude = np.matmul(a, b, dtype=np.float64), np.matmul(np.abs(a), np.abs(b), dtype=np.float64)

    def bound(terms: int) -> float:
        return terms * 2.0**-24 / (1 - terms * 2.0**-24)

    turned = np.ascontiguousarray(b.T)
    for result in (gemm(a, b), gemm(a, turned, transpose_b=True), gemm(a, gemm.pack(b))):
        assert (np.abs(result - exact) <= bound(k) * magnitude).all()
    added = gemm(a, b, out=c.copy(), accumulate=True)
    assert (np.abs(added - (exact + c)) <= bound(k + 1) * (magnitude + np.abs(c))).all()


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
def test_leading_dimensions_and_alignment_are_free(gemm: GemmKernel, transpose_a: bool, transpose_b: bool) -> None:
    for offset in range(17):
        m, n, k = 29, 75, 41
        a, b = integers(m, k), integers(k, n)
        operands = []
        for matrix in (stored(a, transpose_a), stored(b, transpose_b), np.zeros((m, n), np.float32)):
            room = np.full((matrix.shape[0], matrix.shape[1] + 23), np.nan, np.float32)
            view = room[:, offset : offset + matrix.shape[1]]
            view[:] = matrix
            operands.append((room, view))
        (_, left), (_, right), (room, out) = operands
        assert gemm(left, right, out=out, transpose_a=transpose_a, transpose_b=transpose_b) is out
        assert np.array_equal(out, a @ b)
        assert np.isnan(np.delete(room, np.s_[offset : offset + n], axis=1)).all(), "wrote outside out"


def inside(matrix: np.ndarray, left: int, right: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of NaN, and in its middle a view that holds `matrix`."""
    room = np.full((matrix.shape[0], left + matrix.shape[1] + right), np.nan, np.float32)
    view = room[:, left : left + matrix.shape[1]]
    view[:] = matrix
    return room, view


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
def test_every_strategy_takes_any_stride(gemm: GemmKernel, transpose_a: bool, transpose_b: bool) -> None:
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    for m, n, k in [(37, 150, 60), (500, 6, 33), (5, 70, 300)]:
        a, b = integers(m, k), integers(k, n)
        (_, left), (_, right) = inside(stored(a, transpose_a), 3, 10), inside(stored(b, transpose_b), 1, 4)
        strides = {"lda": left.strides[0] // 4, "ldb": right.strides[0] // 4}
        for plan in gemm.plans(m, n, k, threads=2, **flags, **strides):
            room, out = inside(np.zeros((m, n), np.float32), 5, 2)
            gemm.run(plan, left, right, out, **flags)
            assert np.array_equal(out, a @ b), (m, n, k, plan)
            assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("apart", [256, 1024])
def test_rows_that_crowd_the_caches_change_no_bit(gemm: GemmKernel, transpose_a: bool, apart: int) -> None:
    """Rows a power of two apart are taken in shorter steps of k, in the same order."""
    m, n, k = 9, 100, 1203
    assert k > gemm.manifest.rates.crowded_rows and 4 * apart % gemm.manifest.rates.crowded_span == 0
    a, b, before = reals(m, k), reals(k, n), reals(m, n)
    (_, left), (_, right) = (
        inside(stored(a, transpose_a), 0, 0 if not transpose_a else apart - m),
        inside(b, 0, apart - n),
    )
    for plan in gemm.plans(m, n, k, transpose_a=transpose_a, ldb=apart, **({"lda": apart} if transpose_a else {})):
        close, crowded = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
        gemm.run(plan, stored(a, transpose_a), b, close, transpose_a=transpose_a)
        gemm.run(plan, left, right, crowded, transpose_a=transpose_a)
        assert np.array_equal(close, crowded), plan
    added = gemm(left, right, out=before.copy(), accumulate=True, transpose_a=transpose_a)
    assert np.allclose(added, before + a.astype("f8") @ b, rtol=1e-5, atol=1e-4)


@pytest.fixture(scope="module")
def narrow() -> GemmKernel:
    """A library for an L2 that is too small for most blocks of B."""
    sides = {"l2.capacity_bytes": 1 << 17, "l2.ways": 8, "l2.sets": 256, "l2.line_bytes": 64}
    outer = {"l3.capacity_bytes": 1 << 22, "l3.ways": 16, "l3.sets": 4096, "l3.line_bytes": 64}
    return vortex.compile(Gemm(), what_if(needs.few_register_tiles(), {**sides, **outer}))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_blocks_of_b_beyond_l2_change_no_bit(narrow: GemmKernel, transpose_b: bool, threads: int) -> None:
    """More than one of them, with a part of a panel left over, and a last step of k that is short."""
    away = [
        (index, s) for index, s in enumerate(narrow.strategies)
        if s.stage.pack_b and s.stage.tiled and 4 * s.l1.n * s.l1.k > narrow.manifest.rates.l2_buffer
    ]  # fmt: skip
    assert away
    for index, s in away:
        m, n, k = 3 * s.l0.m + 2, s.l1.n + s.l0.n + 3, s.l1.k + 5
        a, b, expected = reals(m, k), reals(k, n), np.empty((m, n), np.float32)
        whole = next((i, w) for i, w in enumerate(narrow.strategies) if w.stage.tiled and not w.stage.pack_b)
        narrow.run(LaunchPlan(*whole, Grid(1, 1), 0.0), a, b, expected)
        assert np.allclose(expected, a.astype("f8") @ b, rtol=1e-4, atol=1e-2)
        (_, left), (_, right) = inside(a, 3, 10), inside(stored(b, transpose_b), 1, 4)
        room, out = inside(np.zeros((m, n), np.float32), 5, 2)
        plan = LaunchPlan(index, s, Grid(1, threads), 0.0, threads)
        narrow.run(plan, left, right, out, transpose_b=transpose_b)
        assert np.array_equal(out, expected), plan
        assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"


@pytest.mark.parametrize("transpose_b", [False, True])
def test_steps_of_k_add_to_sums_that_no_second_cache_holds(gemm: GemmKernel, transpose_b: bool) -> None:
    """Each tile asks for C of the next one, also past the last row and the last column."""
    m, n, k = 523, 519, 1100
    a, b = integers(m, k), integers(k, n)
    expected, right = a @ b, np.ascontiguousarray(b.T) if transpose_b else b
    stepped = [plan for plan in gemm.plans(m, n, k, threads=2, transpose_b=transpose_b) if plan.strategy.l1.k < k]
    assert stepped
    for plan in stepped:
        _, out = inside(np.zeros((m, n), np.float32), 5, 2)
        gemm.run(plan, a, right, out, transpose_b=transpose_b)
        assert np.array_equal(out, expected), plan
        gemm.run(plan, a, right, out, transpose_b=transpose_b, accumulate=True)
        assert np.array_equal(out, 2 * expected), plan


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("paged", [False, True])
def test_kept_panels_change_no_bit(gemm: GemmKernel, paged: bool, threads: int) -> None:
    """Of many rows the first register tile copies its panel of B for the others: those of few rows read B itself."""
    gemm = compiled(Gemm()) if paged else gemm
    panel_room = gemm.manifest.rates.panel_room
    if not panel_room:
        pytest.skip("panels are kept where pages are small, and by no register tile of half lines")
    by_panels = [
        (index, s) for index, s in enumerate(gemm.manifest.strategies)
        if s.stage.tiled and s.l0.m >= 3 and not (s.stage.rows_first or s.stage.pack_b or s.stage.swap)
    ]  # fmt: skip
    assert by_panels
    for index, s in by_panels:
        depth = int(panel_room) // (s.l0.n + 2 * s.l0.m)
        m, n, k = threads * (5 * s.l0.m + 2), threads * 2 * s.l0.n + 5, 2 * depth + 3
        a, b, loose = reals(m, k), reals(k, n), np.empty((m, n), np.float32)
        (_, left), (_, right) = inside(a, 3, 10), inside(b, 1, 4)
        plan = LaunchPlan(index, s, Grid(threads, 1), 0.0, threads)
        room, out = inside(np.zeros((m, n), np.float32), 5, 2)
        gemm.run(plan, left, right, out)
        assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"
        for row in range(0, m, 3 * s.l0.m):
            rows = slice(row, min(row + 3 * s.l0.m, m))
            gemm.run(LaunchPlan(index, s, Grid(1, 1), 0.0), a[rows], b, loose[rows])
        assert np.array_equal(out, loose), plan
        assert np.allclose(out, a.astype("f8") @ b, rtol=1e-4, atol=1e-3)


def test_views_are_taken_as_transposed(gemm: GemmKernel) -> None:
    a, b = integers(50, 60), integers(60, 70)
    assert np.array_equal(gemm(np.asfortranarray(a), np.asfortranarray(b)), a @ b)
    assert np.array_equal(gemm(a.T, b.T, transpose_a=True, transpose_b=True), a @ b)
    assert gemm.pack(np.asfortranarray(b)).n == 70
    assert np.array_equal(gemm(a, gemm.pack(np.ascontiguousarray(b.T), transpose=True)), a @ b)


@pytest.mark.parametrize("n", [3, 40])
def test_few_columns_are_packed_on_cache_lines(gemm: GemmKernel, n: int) -> None:
    packed = gemm.pack(integers(70, n))
    assert packed.data.shape == ((n, 70) if packed.transposed else (70, n))
    assert packed.data.ctypes.data % 64 == packed.data.strides[0] % (4 * gemm.manifest.lanes) == 0


def test_bands_of_a_tall_a(gemm: GemmKernel) -> None:
    m, n, k = 2500, 70, 3000  # larger than most outermost caches keep of it: rows are walked in bands
    a, b, c = integers(m, k), integers(k, n), integers(m, n)
    expected = c + a @ b
    for operand in (b, gemm.pack(b)):
        out = c.copy()
        assert np.array_equal(gemm(a, operand, out=out, accumulate=True), expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("accumulate", [False, True])
def test_bands_of_a_turned_product(gemm: GemmKernel, threads: int, accumulate: bool) -> None:
    """Rows of B pass in bands that L2 keeps beside what is packed once for all of them."""
    m, k = 101, 700
    n = threads * (int(gemm.manifest.rates.l2_bytes) // (4 * k) * 2 + 37)  # twice of what it keeps, and some
    a, b, before = reals(m, k), reals(n, k), reals(m, n)
    exact = before * accumulate + a.astype("f8") @ b.T.astype("f8")
    first: np.ndarray | None = None
    (_, left), (_, right) = inside(a, 3, 10), inside(b, 1, 4)
    turned = [p for p in gemm.plans(m, n, k, transpose_b=True, threads=threads) if p.strategy.stage.swap]
    for plan in turned:
        room, out = inside(before.copy(), 5, 2)
        gemm.run(plan, left, right, out, transpose_b=True, accumulate=accumulate)
        assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"
        assert np.allclose(out, exact, rtol=1e-4, atol=1e-3), plan
        first = out.copy() if first is None else first
        assert np.array_equal(out, first), plan
    assert turned or not any(s.stage.swap and s.stage.pack_b for s in gemm.strategies)


def test_read_only_inputs(gemm: GemmKernel) -> None:
    a, b = integers(20, 30), integers(30, 40)
    a.flags.writeable = b.flags.writeable = False
    assert np.array_equal(gemm(a, b), a @ b)
    assert np.array_equal(gemm(a, gemm.pack(b)), a @ b)


def test_arrays_by_address_are_arrays_by_dlpack(gemm: GemmKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain matrices are read where they lie; what is none goes the general way, and so does all in other Pythons."""
    assert gemm._arrays is not launcher.left_unread and gemm._packed_arrays is not launcher.left_unread
    wide = integers(60, 90)
    swapped = wide[:20, :30].astype(">f4")
    cases = [(wide[:20, :30], wide[5:35, 3:44]), (wide.T[:20, :30], wide[:44, :30].T), (integers(1, 1), integers(1, 3))]
    found = []
    for by_address in (True, False):
        if not by_address:
            monkeypatch.setattr(gemm, "_arrays", launcher.left_unread)
            monkeypatch.setattr(gemm, "_packed_arrays", launcher.left_unread)
        for a, b in cases:
            room = np.full((a.shape[0], b.shape[1] + 3), 7, np.float32)
            for right in (b, gemm.pack(b)):
                out = gemm(a, right, out=room[:, : b.shape[1]])
                assert np.array_equal(out, a @ b) and (room[:, b.shape[1] :] == 7).all()
                found.append(gemm(a, right))
        for other in (swapped, swapped.astype(np.float64), np.array([["x"] * 30] * 20)):
            with pytest.raises((DtypeError, OperandError)):
                gemm(other, wide[:30, :30])
    assert all(map(np.array_equal, found[: len(found) // 2], found[len(found) // 2 :]))


def test_an_array_that_is_not_where_it_is_told_is_not_read(gemm: GemmKernel) -> None:
    reads, matrix = gemm.module.get_function("reads_arrays"), np.zeros((3, 8), np.float32)[:, 1:6]
    told = [id(matrix), matrix.ctypes.data, *matrix.shape, *matrix.strides]
    assert reads(*told) == 1
    for place in range(1, len(told)):
        assert reads(*(value + 4 * (place == at) for at, value in enumerate(told))) == 0
    assert not launcher.have_addresses(lambda *_told: 0)


def test_accumulate(gemm: GemmKernel) -> None:
    for m, n, k in [(1, 1, 1), (40, 50, 60), (7, 300, 2000), (5, 5, 0)]:
        a, b, c = integers(m, k), integers(k, n), integers(m, n)
        expected = c + a @ b
        gemm(a, b, out=c, accumulate=True)
        assert np.array_equal(c, expected)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (0, 4, 0)])
def test_empty_dimensions_are_as_numpys(gemm: GemmKernel, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = integers(m, k), integers(k, n)
    expected = a @ b
    assert np.array_equal(gemm(a, b), expected)
    out = np.full((m, n), 5, np.float32)
    assert np.array_equal(gemm(a, b, out=out), expected)
    assert np.array_equal(gemm(a, gemm.pack(b)), expected)


def test_nan_and_infinity_pass_through(gemm: GemmKernel) -> None:
    for place in itertools.product(range(0, 40, 13), range(0, 50, 17)):
        a, b = integers(40, 50), integers(50, 35)
        a[place] = np.nan
        c = gemm(a, b)
        assert np.isnan(c[place[0]]).all() and np.isnan(c).sum() == 35
    a, b = integers(20, 30), np.ones((30, 18), np.float32)
    a[3, 7] = np.inf
    assert np.isposinf(gemm(a, b)[3]).all()
    a[3, 9] = -np.inf
    assert np.isnan(gemm(a, b)[3]).all()
    b[:] = 0
    a[3, 9] = 0
    assert np.isnan(gemm(a, b)[3]).all(), "inf * 0 is NaN"


@pytest.mark.parametrize("kind", list(OperandB))
@pytest.mark.parametrize("transpose_a", [False, True])
def test_every_strategy_passes_nan_and_infinity_through(gemm: GemmKernel, kind: OperandB, transpose_a: bool) -> None:
    """As IEEE 754 says, element by element: what is infinite, of which sign, and what is no number."""
    packed, transposed = kind is OperandB.PACKED, kind is OperandB.TRANSPOSED
    flags = {"transpose_a": transpose_a, "transpose_b": transposed}
    for m, n, k in [(3, 200, 65), (300, 18, 7), (90, 6, 100), (33, 40, 50)]:
        n = max(n, 16) if packed else n
        a, b = integers(m, k), integers(k, n)
        for special, at in ((np.nan, 0.2), (np.inf, 0.5), (-np.inf, 0.99)):
            a[int(at * (m - 1)), int(at * k)] = special
            b[int((1 - at) * (k - 1)), int(at * n)] = special
        a[-1, k // 2], b[k // 3] = np.inf, 0  # and infinity times zero
        a[m // 2, k // 3] = np.inf
        with np.errstate(invalid="ignore"):
            expected = np.einsum("mk,kn->mn", a.astype(np.float64), b.astype(np.float64))
        left, right = stored(a, transpose_a), gemm.pack(b) if packed else stored(b, transposed)
        for plan in gemm.plans(m, n, k, threads=2, packed=packed, **flags):
            out = gemm.run(plan, left, right, np.zeros((m, n), np.float32), **flags)
            assert np.array_equal(np.isnan(out), np.isnan(expected)), plan
            assert np.array_equal(np.where(np.isnan(out), 0, out), np.where(np.isnan(expected), 0, expected)), plan
    assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()


def test_what_out_held_is_not_read(gemm: GemmKernel) -> None:
    a, b = integers(20, 30), integers(30, 40)
    assert np.array_equal(gemm(a, b, out=np.full((20, 40), np.nan, np.float32)), a @ b)
    assert np.isnan(gemm(a, b, out=np.full((20, 40), np.nan, np.float32), accumulate=True)).all()


def guarded(matrix: np.ndarray, at_end: bool, gap: int = 0) -> np.ndarray:
    """The same matrix in memory that ends (or begins) at a page nobody may touch; `gap` elements between its rows."""
    page, stride = mmap.PAGESIZE, matrix.shape[1] + gap
    count = max((matrix.shape[0] - 1) * stride + matrix.shape[1], 0)
    body = -(-max(4 * count, 1) // page) * page
    area = mmap.mmap(-1, body + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    for address in (start, start + page + body):
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0) == 0
    flat = np.frombuffer(area, np.float32, count, page + (body - 4 * count if at_end else 0))
    view = np.lib.stride_tricks.as_strided(flat, matrix.shape, (4 * stride, 4))
    view[:] = matrix
    return view


def touch_only_operands(path: str) -> None:
    gemm = vortex.load(path)
    vortex.set_num_threads(1)
    shapes = [(1, 1, 1), (3, 17, 5), (13, 31, 9), (14, 33, 7), (30, 15, 3), (2, 100, 40), (61, 65, 130), (99, 5, 70)]
    for (at_end, gap), (m, n, k) in itertools.product([(True, 0), (False, 0), (True, 37)], shapes):
        a, b = integers(m, k), integers(k, n)
        for transpose_a, transpose_b in TRANSPOSES:
            left = guarded(stored(a, transpose_a), at_end, gap)
            right = guarded(stored(b, transpose_b), at_end, gap)
            out = guarded(np.zeros((m, n), np.float32), at_end, gap)
            flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
            for plan in gemm.plans(m, n, k, threads=1, **flags):
                gemm.run(plan, left, right, out, **flags)
                assert np.array_equal(out, a @ b), (m, n, k, plan)
            packed = gemm.pack(right, transpose=transpose_b)
            gemm(left, packed, out=out, transpose_a=transpose_a)
            assert np.array_equal(out, a @ b), (m, n, k)
            gemm(left, right, out=out, accumulate=True, **flags)
            assert np.array_equal(out, 2 * (a @ b)), (m, n, k)


def run_in_child(target: object, *arguments: object, seconds: float = 120.0) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return None
    return child.exitcode


def test_nothing_outside_the_operands_is_touched(library_path: object) -> None:
    """Every strategy on operands between unmapped pages, in a child process: a stray access would kill it."""
    assert run_in_child(touch_only_operands, library_path) == 0


def stray(library_path: str) -> None:
    gemm = vortex.load(library_path)
    short = guarded(integers(4, 4), at_end=True)
    beyond = np.lib.stride_tricks.as_strided(short, (5, 4), short.strides)
    gemm(beyond, integers(4, 4))


def test_the_guard_pages_do_guard(library_path: object) -> None:
    assert run_in_child(stray, library_path) not in (0, None)


def test_an_a_past_two_to_the_31_elements(gemm: GemmKernel) -> None:
    needs.memory(4)
    k = 16
    m = 2**31 // k + 3
    a = np.zeros((m, k), np.float32)  # pages that are never written share one page of zeros
    a[-3:] = integers(3, k)
    b = integers(k, 1)
    outer = next(plan for plan in gemm.plans(m, 1, k, threads=2) if not plan.strategy.stage.dot)
    for c in (gemm(a, b), gemm.run(outer, a, b, np.empty((m, 1), np.float32))):
        assert np.array_equal(c[-3:], a[-3:] @ b) and not c[:-3].any()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_b_past_two_to_the_31_elements(gemm: GemmKernel, transposed: bool) -> None:
    needs.memory(4)
    k = 16
    n = 2**31 // k + 3
    b = np.zeros((n, k) if transposed else (k, n), np.float32)
    last = b[-3:].T if transposed else b[:, -3:]
    last[:] = integers(k, 3)
    a = integers(1, k)
    c = gemm(a, b, transpose_b=transposed)
    assert np.array_equal(c[:, -3:], a @ last) and not c[:, :-3].any()


def far_apart(matrix: np.ndarray) -> np.ndarray:
    """The same matrix with rows so far apart that the last begins past 2^31 elements, with no memory in between."""
    stride = 2**31 // (matrix.shape[0] - 1) + 7
    size = 4 * ((matrix.shape[0] - 1) * stride + matrix.shape[1])
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    view = np.lib.stride_tricks.as_strided(np.frombuffer(area, np.float32), matrix.shape, (4 * stride, 4))
    view[:] = matrix
    return view


@pytest.mark.parametrize(("transpose_a", "transpose_b"), TRANSPOSES)
def test_offsets_past_two_to_the_31_elements(gemm: GemmKernel, transpose_a: bool, transpose_b: bool) -> None:
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    for m, n, k in [(33, 50, 20), (70, 6, 40)]:
        a, b = integers(m, k), integers(k, n)
        left, right = far_apart(stored(a, transpose_a)), far_apart(stored(b, transpose_b))
        out = far_apart(np.zeros((m, n), np.float32))
        for plan in gemm.plans(m, n, k, threads=2, **flags):
            out[:] = np.nan
            gemm.run(plan, left, right, out, **flags)
            assert np.array_equal(out, a @ b), (m, n, k, plan)


def test_a_packed_operand_past_two_to_the_31_elements(gemm: GemmKernel) -> None:
    """Zeros that are never written, and last panels that are."""
    needs.memory(4)
    k, panel = 16, gemm.manifest.panel
    last = integers(k, 4 * panel)
    end = gemm.pack(last)
    n = (2**31 // (k * panel) + 5) * panel
    data = aligned_zeros(n * k)
    data[-end.data.size :] = end.data
    a = integers(2, k)
    c = gemm(a, PackedOperand(data, n, k, end.identity))
    assert np.array_equal(c[:, -4 * panel :], a @ last) and not c[:, : -4 * panel].any()


@pytest.mark.parametrize(("k", "n"), [(40, 1000), (40, 20), (300, 1)])
def test_a_copy_of_a_packed_operand_is_read_where_it_lies(gemm: GemmKernel, k: int, n: int) -> None:
    """In panels, as rows and along k; the memory of the first is given back."""
    a, b = integers(5, k), integers(k, n)
    packed = gemm.pack(b)
    copies = copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))
    del packed
    for copied in copies:
        assert copied.address == id(copied.data)
        assert np.array_equal(gemm(a, copied, out=np.empty((5, n), np.float32)), a @ b)


def test_what_is_laid_out_once_begins_on_a_huge_page() -> None:
    for count, page in ((1, 64), (2**17, 64), (2**18, 2 << 20), (3 * 2**18 + 1, 2 << 20), (2**20 + 5, 2 << 20)):
        room = zeros_for_constants(count)
        assert room.ctypes.data % page == 0 and room.size == count and room.dtype == np.float32 and not room.any()
        room[:] = 1.0
    with pytest.raises(MemoryError, match="no room"):
        zeros_for_constants(2**58)


def test_eight_threads_call_one_library(gemm: GemmKernel) -> None:
    """Plain operands of their own and one, plain or packed, that all share; refusals in between."""
    failures: list[object] = []
    shared = integers(50, 120)
    packed, exact = gemm.pack(shared), shared.astype(int)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(60):
            m, n, k = rng.integers(1, 120, 3)
            a, b, c = (rng.integers(-3, 4, extents) for extents in ((m, k), (k, n), (m, 50)))
            left, right, other = (x.astype(np.float32) for x in (a, b, c))
            if not np.array_equal(gemm(left, right), a @ b):
                failures.append((m, n, k))
            if not np.array_equal(gemm(other, packed if turn % 2 else shared), c @ exact):
                failures.append((m, "shared"))
            with pytest.raises(vortex.ShapeError):
                gemm(left, np.ones((k + 1, n), np.float32))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def multiply_in_child(gemm: GemmKernel) -> None:
    a, b = integers(300, 400), integers(400, 500)
    assert np.array_equal(gemm(a, b), a @ b)


def test_a_forked_child_computes(gemm: GemmKernel) -> None:
    multiply_in_child(gemm)  # the parent's pool has threads before the fork
    assert run_in_child(multiply_in_child, gemm, seconds=30) == 0
    multiply_in_child(gemm)


def test_calls_keep_no_memory(gemm: GemmKernel) -> None:
    """Neither of Python's nor of their own, with and without out."""
    a, b, c = reals(7, 33), reals(33, 50), np.empty((7, 50), np.float32)
    packed, process = gemm.pack(b), psutil.Process()

    def grown(calls: int) -> tuple[int, int]:
        resident, blocks = process.memory_info().rss, sys.getallocatedblocks()
        for _ in range(calls):
            gemm(a, b, out=c)
            gemm(a, packed, out=c)
            gemm(a, b)
        return process.memory_info().rss - resident, sys.getallocatedblocks() - blocks

    grown(1000)
    resident, blocks = grown(20_000)
    assert resident < 1 << 20 and blocks < 1000


def test_calls_do_not_hold_the_gil(gemm: GemmKernel) -> None:
    a, b = reals(1500, 1500), reals(1500, 1500)
    vortex.set_num_threads(1)
    ticks, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = ticks[0]
    gemm(a, b)
    during = ticks[0] - before
    done.set()
    counter.join()
    assert during > 100, "another Python thread stood still during a call"


def test_no_thread_is_pinned(gemm: GemmKernel) -> None:
    """TVM's thread pool would bind the main thread to one core, and all that it does from then on. A worker begins off
    the core of its caller, and is free when it has run for the first time: on a busy machine after the call."""
    vortex.set_num_threads(4)
    gemm(reals(500, 500), reals(500, 500))
    end = time.monotonic() + 10
    while pinned := [t for t in os.listdir("/proc/self/task") if os.sched_getaffinity(int(t)) != CORES]:
        assert time.monotonic() < end, pinned
        time.sleep(0.01)


PEER = """
import os, sys, time
import numpy, vortex
cores, (name, path) = os.sched_getaffinity(0), sys.argv[1:]
a, b = (numpy.ones((700, 700), numpy.float32) for _ in range(2))
if name == "torch":
    import torch
    call = lambda x=torch.from_numpy(a), y=torch.from_numpy(b): torch.mm(x, y)
else:
    call = lambda: a @ b
def seconds():
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
call()
before = seconds()
vortex.set_num_threads(2)
gemm = vortex.load(path)
for _ in range(20):
    gemm(a, b)
time.sleep(0.05)
assert os.sched_getaffinity(0) == cores
print(seconds() / before)
"""


@pytest.mark.emulate
@pytest.mark.skipif("avx512vl" in cpu_flags(), reason="other tests run such a library as it is")
@needs.a_compiler
def test_every_plan_of_nests_of_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for AVX-512, whose vectors AVX2 does in halves."""
    legalize(monkeypatch)
    gemm = vortex.compile(Gemm(), zen5(0.6))
    for m, n, k in ((1, 700, 40), (13, 200, 300), (97, 640, 33), (300, 100, 64), (700, 64, 128), (2000, 48, 9)):
        a, b = integers(m, k), integers(k, n)
        turned, packed = np.ascontiguousarray(b.T), gemm.pack(b)
        for right, asked in ((b, {}), (turned, {"transpose_b": True}), (packed, {"packed": True})):
            given = {"transpose_b": right is turned}
            for plan in gemm.plans(m, n, k, threads=2, **asked):
                out = gemm.run(plan, a, right, np.full((m, n), np.nan, np.float32), **given)
                assert np.array_equal(out, a @ b), plan


@pytest.mark.parametrize("peer", ["numpy", "torch"])
def test_others_in_the_process_are_not_slowed(library_path: Path, peer: str) -> None:
    """A pinned main thread would halve the speed of `torch.mm` on two cores. What else runs here may slow one try."""
    pytest.importorskip(peer)
    command = [sys.executable, "-c", PEER, peer, str(library_path)]
    slowed = []
    for _ in range(4):
        slowed.append(float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout))
        if slowed[-1] < 1.3:
            return
    pytest.fail(f"{peer} is {min(slowed):.2f} times slower after vortex has run")


def test_torch_tensors_come_back_as_torch_tensors(gemm: GemmKernel) -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.from_numpy(integers(33, 44)), torch.from_numpy(integers(44, 55))
    c = gemm(a, b)
    assert type(c) is torch.Tensor and torch.equal(c, a @ b)
    assert torch.equal(gemm(a, b.t().contiguous().t()), a @ b)
    weight = torch.nn.Linear(44, 12).weight
    with pytest.raises(vortex.OperandError, match=r"requires grad.*detach"):
        gemm(a, weight)
    assert torch.allclose(gemm(a, weight.detach(), transpose_b=True), a @ weight.detach().t(), atol=1e-4)
