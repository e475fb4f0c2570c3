"""Calls that two kernels serve on a GPU: the native choice against its mirror, and what a cut promises."""

from __future__ import annotations

import ctypes
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from gpu_priced import A100, only, selector
from test_gpu_cost import KEY, LARGE, MIDDLE, SMALL

from vortex.gpu_door import Regions, Shape
from vortex.gpu_explain import explain
from vortex.gpu_polymerize import GAIN, STEP, GpuRegion, blocks_of, regions
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, Extents, GpuSelector

WORKSPACE = 2**26
SHAPES = 500
RAGGED = Extents(3700, 3000, 4096)
"""On an A100 the large tile leaves a partial wave that smaller ones finish sooner."""


@pytest.fixture(scope="module")
def few() -> GpuSelector:
    """A library that quantizes waves coarsely: two tiles, so that cuts are common."""
    return only(selector(A100), LARGE, SMALL)


def compiled(chooser: GpuSelector, folder: Path) -> ctypes.CDLL:
    if not shutil.which("cc"):
        pytest.skip("links a shared library: needs a C compiler")
    native = pytest.importorskip("vortex.codegen.gpu_selector", reason="compiles with TVM, which is not installed")
    native.build(chooser, folder / "selector.so")
    calls = ctypes.CDLL(str(folder / "selector.so"))
    arguments = (ctypes.POINTER(Shape), ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(Regions))
    calls.vx_gpu_divide.restype, calls.vx_gpu_divide.argtypes = None, arguments
    return calls


@pytest.fixture(scope="module")
def coarse(few: GpuSelector, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(few, tmp_path_factory.mktemp("coarse"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(selector(A100), tmp_path_factory.mktemp("full"))


def native(calls: ctypes.CDLL, extents: Extents, layout=LAYOUTS[0], alignment: int = 16, cut: bool = True) -> list:
    found = Regions()
    shape = Shape(*extents[:4], *layout, alignment, 1.0)
    calls.vx_gpu_divide(ctypes.byref(shape), WORKSPACE, cut, ctypes.byref(found))
    plans = [(p.kernel, p.splits, p.chunk, p.raster, p.seconds) for p in found.plans[: found.count]]
    return [*plans, (found.along_n, found.at)] if found.count > 1 else plans


def mirrored(found: tuple[GpuRegion, ...]) -> list:
    plans = [(p.index, p.splits, p.chunk, p.raster, p.seconds) for p in (region.plan for region in found)]
    last = found[-1]
    return [*plans, (int(last.column > 0), last.row + last.column)] if len(found) > 1 else plans


def random_extents(seed: int) -> list[Extents]:
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.uniform(4, 9.7, (SHAPES, 3))).astype(int)
    return [Extents(*(max(1, x // 8 * 8) if i % 2 else x for x in map(int, row))) for i, row in enumerate(rows)]


def test_the_mirror_cuts_in_the_same_places(coarse: ctypes.CDLL, few: GpuSelector) -> None:
    """Cut, kernels, parts and the bits of the predicted seconds, where many calls are cut, both ways."""
    cuts = {"m": 0, "n": 0}
    for extents in (*random_extents(0), RAGGED):
        found = regions(few, extents, *KEY, WORKSPACE)
        assert native(coarse, extents) == mirrored(found), extents
        if len(found) > 1:
            cuts["n" if found[1].column else "m"] += 1
    assert min(cuts.values()) >= 5, cuts


def test_the_mirror_agrees_over_all_layouts_of_a_library(full: ctypes.CDLL) -> None:
    chooser = selector(A100)
    for place, extents in enumerate(random_extents(1)):
        key = LAYOUTS[place % 4], ALIGNMENTS[place % 7 % 4]
        assert native(full, extents, *key) == mirrored(regions(chooser, extents, *key, WORKSPACE)), (extents, key)


def test_regions_cover_the_output_once_and_keep_its_alignment(few: GpuSelector) -> None:
    for extents in random_extents(0):
        found = regions(few, extents, *KEY, WORKSPACE)
        covered = sum(region.extents.m * region.extents.n for region in found)
        assert covered == extents.m * extents.n and all(region.extents.k == extents.k for region in found)
        assert (found[0].row, found[0].column) == (0, 0)
        if len(found) == 2:
            one, other = found
            assert (other.row, other.column) in ((one.extents.m, 0), (0, one.extents.n))
            assert max(other.row, other.column) % STEP == 0


def test_a_cut_is_predicted_to_pay(few: GpuSelector) -> None:
    plain, found = few.select(RAGGED, *KEY, WORKSPACE), regions(few, RAGGED, *KEY, WORKSPACE)
    assert len(found) == 2 and sum(region.plan.seconds for region in found) < GAIN * plain.seconds
    tiles, slots = blocks_of(few, found[0].extents, found[0].plan.index)
    assert -tiles % slots < slots / 4, "the first region is whole waves but for what whole rows of tiles leave"


def test_what_is_one_wave_or_many_products_is_not_cut(few: GpuSelector, coarse: ctypes.CDLL) -> None:
    for extents in (Extents(500, 500, 4096), Extents(64, 8, 20_000), RAGGED._replace(batch=2)):
        assert len(regions(few, extents, *KEY, WORKSPACE)) == 1 == len(native(coarse, extents))
    assert len(native(coarse, RAGGED)) == 3 and len(native(coarse, RAGGED, cut=False)) == 1


def test_a_single_kernel_still_cuts_what_it_computes_for_nothing() -> None:
    """Rows of a last tile that is nearly empty go to another kernel only if there is one."""
    alone = only(selector(A100), MIDDLE)
    assert all(len({r.plan.index for r in regions(alone, e, *KEY, WORKSPACE)}) == 1 for e in random_extents(2)[:40])


def test_the_explanation_shows_both_regions(few: GpuSelector) -> None:
    found = regions(few, RAGGED, *KEY, WORKSPACE)
    told = str(explain(few, RAGGED, *KEY, WORKSPACE, regions=found))
    assert "polymerized" in told and f"row {found[1].row}, column {found[1].column}" in told
    assert "polymerized" not in str(explain(few, RAGGED, *KEY, WORKSPACE, regions=found[:1]))


def test_searching_is_quick_in_native_code(full: ctypes.CDLL) -> None:
    """A ceiling that holds on slow and busy machines; `python -m eval.gpu.selection` measures it."""
    shape, found = Shape(*RAGGED[:4], 0, 0, 16, 1.0), Regions()

    def burst() -> float:
        start = time.perf_counter()
        for _ in range(500):
            full.vx_gpu_divide(ctypes.byref(shape), WORKSPACE, 1, ctypes.byref(found))
        return (time.perf_counter() - start) / 500

    assert min(burst() for _ in range(5)) < 40e-6
