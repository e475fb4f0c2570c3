"""Panels of a packed B that pass few rows abreast, as they do where pages are small and a line is a vector."""

import ctypes
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import compiled
from test_gemm import inside, integers, reals

from vortex import operators as ops
from vortex.affinity import cpu_flags
from vortex.launcher import GemmKernel
from vortex.plans import Grid, LaunchPlan, OperandB, Shape

LANES = 16
MOST = 10
"""Rows that it has kernels for."""


@pytest.fixture(scope="module")
def paged() -> GemmKernel:
    """A library for small pages."""
    return wide(compiled(ops.Gemm()))


def wide(gemm: GemmKernel) -> GemmKernel:
    if gemm.manifest.lanes < LANES:
        pytest.skip("panels pass abreast where a line is a vector")
    return gemm


DEPTH = 515
"""Steps of k; no whole number of those that kernels take at a time."""


def beyond_l2(gemm: GemmKernel, more: int) -> int:
    """Columns of a B of DEPTH that L2 does not keep: groups of panels, single ones, and `more` columns."""
    panel = gemm.manifest.panel
    return (int(gemm.manifest.rates.l2_bytes) * 2 // (4 * DEPTH * panel) | 3) * panel + more


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    pytest.importorskip("tvm")
    if "avx512vl" not in cpu_flags():
        pytest.skip("needs avx512vl")
    from vortex.codegen.cpu_abreast import ROWS, emit_abreast
    from vortex.codegen.link import link

    folder: Path = tmp_path_factory.mktemp("abreast")
    assert ROWS == MOST
    emit_abreast(range(1, MOST + 1), LANES, "x86-64-v4", folder / "abreast.o")
    link(folder / "abreast.so", [folder / "abreast.o"], [])
    return ctypes.CDLL(str(folder / "abreast.so"))


@pytest.mark.parametrize("rows", range(1, MOST + 1))
def test_sums_are_added_to_panel_by_panel(kernels: ctypes.CDLL, rows: int) -> None:
    """Panels of odd numbers of vectors too, of which not all are asked for; steps of k that are left over."""
    for panels, wide, asked, k in product((1, 3), (1, 2, 5), (1, 2, 3, 5), (1, 4, 7, 40)):
        if asked > wide:
            continue
        a, b, sums = integers(rows, k + 3)[:, :k], integers(panels, k * wide * LANES), integers(rows, 400)
        b = b.reshape(panels, k, wide * LANES)
        expected, columns = sums.copy(), asked * LANES
        for s in range(panels):
            expected[:, s * columns : (s + 1) * columns] += a @ b[s, :, :columns]
        getattr(kernels, f"vortex_abreast_{rows}")(
            *(ctypes.c_void_p(x.ctypes.data) for x in (a, b, sums)),
            *(ctypes.c_int64(x) for x in (panels, asked, k, k + 3, wide * LANES, k * wide * LANES, 400)),
        )
        assert np.array_equal(sums, expected), (panels, wide, asked, k)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("m", range(1, MOST + 2))
def test_rows_have_the_bits_of_tiles(paged: GemmKernel, m: int, threads: int) -> None:
    """Beside one more row than there are kernels for, by panels all whole and by a last one cut short."""
    tile = next((i, s) for i, s in enumerate(paged.manifest.strategies) if s.stage.tiled and not s.stage.swap)
    for n in (beyond_l2(paged, 0), beyond_l2(paged, 21)):
        a, b, expected = reals(m, DEPTH), reals(DEPTH, n), np.empty((m, n), np.float32)
        paged.run(LaunchPlan(*tile, Grid(1, 1), 0.0), a, b, expected)
        (_, left), packed = inside(a, 3, 10), paged.pack(b)
        for plan in (plan for plan in paged.plans(m, n, DEPTH, threads=threads, packed=True) if plan.grid.k == 1):
            room, out = inside(np.zeros((m, n), np.float32), 5, 2)
            paged.run(plan, left, packed, out)
            assert np.array_equal(out, expected), plan
            assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"


@pytest.mark.parametrize("m", [1, 6, 9])
def test_they_are_added_to_what_is_there(paged: GemmKernel, m: int) -> None:
    n = beyond_l2(paged, 3)
    a, b, before = integers(m, DEPTH), integers(DEPTH, n), integers(m, n)
    for plan in paged.plans(m, n, DEPTH, threads=2, packed=True):
        out = before.copy()
        paged.run(plan, a, paged.pack(b), out, accumulate=True)
        assert np.array_equal(out, before + a @ b), plan


@pytest.mark.parametrize("m", [1, 5, 8])
def test_a_chain_follows_the_sums_of_a_group(m: int) -> None:
    fused = wide(compiled(ops.Gemm(epilogue=ops.bias() >> ops.relu())))
    n = beyond_l2(fused, 5)
    a, b, bias = integers(m, DEPTH), integers(DEPTH, n), integers(1, n)[0]
    expected = np.maximum(a @ b + bias, 0)
    for plan in fused.plans(m, n, DEPTH, threads=2, packed=True):
        room, out = inside(np.zeros((m, n), np.float32), 5, 2)
        fused.run(plan, a, fused.pack(b), out, bias=bias)
        assert np.array_equal(out, expected), plan
        assert np.isnan(room[:, :5]).all() and np.isnan(room[:, -2:]).all(), f"{plan} wrote outside out"


def test_a_chain_on_a_comes_before_the_sums() -> None:
    begins = wide(compiled(ops.Gemm(prologue=ops.relu() >> ops.scale(2.0))))
    m, n = 3, beyond_l2(begins, 5)
    a, b = integers(m, DEPTH), integers(DEPTH, n)
    for plan in begins.plans(m, n, DEPTH, threads=2, packed=True):
        out = np.zeros((m, n), np.float32)
        begins.run(plan, a, begins.pack(b), out)
        assert np.array_equal(out, np.maximum(a, 0) * 2 @ b), plan


def test_no_other_infinity_or_nan_reaches_an_element(paged: GemmKernel) -> None:
    n = beyond_l2(paged, 7)
    a, b = integers(4, DEPTH), integers(DEPTH, n)
    a[1, 17], b[4, n - 1] = np.inf, np.nan
    plan = paged.manifest.selector().select(Shape(4, n, DEPTH, OperandB.PACKED), 1)
    out = np.zeros((4, n), np.float32)
    paged.run(plan, a, paged.pack(b), out)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(np.isfinite(out), np.isfinite(a @ b))
