"""The native selector of GPU kernels against its Python mirror, and what both promise."""

from __future__ import annotations

import ctypes
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_priced import A100, SPECS, selector
from hypothesis import given, settings
from hypothesis import strategies as st

from vortex.affinity import cpu_flags
from vortex.arithmetic import ArrayArithmetic
from vortex.errors import VortexError
from vortex.gpu_cost import options
from vortex.gpu_figures import GpuProblem
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, Extents, GpuSelector, Layout, parts_of, room

SHAPES = 100_000
MOST_EXTENT = 2**31 - 1
WORKSPACES = (0, 2**22, 2**26, 2**40)
TIMER = """
#include "gpu_door.h"
#include <time.h>
double seconds(const vx_gpu_shape *shape, int64_t workspace, int64_t repeats) {
  struct timespec start, end;
  vx_gpu_plan plan;
  volatile int32_t kept = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int64_t i = 0; i < repeats; i++) {
    vx_gpu_choose(shape, workspace, &plan);
    kept += plan.kernel;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
"""
PLAIN = """
#include "gpu_select.h"
#include <string.h>
/* How many costs differ in a bit between the code for every processor and that for processors with AVX2, or AVX-512. */
int32_t different(int32_t is_wide, int32_t group, float m, float n, float k, float room, float batch, float seen) {
  static vx_gpu_prices one, two;
  const vx_gpu_group *g = &vx_gpu_groups[group];
  int32_t blocks = (g->count + VX_GPU_LANES - 1) / VX_GPU_LANES, found = 0;
  vortex_gpu_costs(vx_gpu_figures + g->figures, one.totals, one.cuts, one.ideals, blocks, m, n, k, room, batch, seen);
  vx_gpu_pricing *other = is_wide ? vortex_gpu_costs_avx512 : vortex_gpu_costs_avx2;
  other(vx_gpu_figures + g->figures, two.totals, two.cuts, two.ideals, blocks, m, n, k, room, batch, seen);
  for (int32_t i = 0; i < g->count; i++)
    found += one.totals[i] != two.totals[i] || one.cuts[i] != two.cuts[i] || one.ideals[i] != two.ideals[i];
  return found;
}
"""


class Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_int32) for name in ("transpose_a", "transpose_b", "alignment")),
        ("seen", ctypes.c_float),
    )


class Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kernel", "splits", "chunk", "raster")),
        ("seconds", ctypes.c_float),
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        pytest.skip("links a shared library: needs a C compiler")
    native = pytest.importorskip("vortex.codegen.gpu_selector", reason="compiles with TVM, which is not installed")
    folder = tmp_path_factory.mktemp("selector")
    (folder / "timer.c").write_text(TIMER)
    (folder / "plain.c").write_text(PLAIN)
    native.build(selector(A100), folder / "selector.so", [folder / "timer.c", folder / "plain.c"])
    return folder / "selector.so"


@pytest.fixture(scope="session")
def choose(library: Path) -> ctypes.CDLL:
    calls = ctypes.CDLL(str(library))
    calls.vx_gpu_choose.restype = None
    calls.vx_gpu_choose.argtypes = (ctypes.POINTER(Shape), ctypes.c_int64, ctypes.POINTER(Plan))
    calls.seconds.restype = ctypes.c_double
    calls.seconds.argtypes = (ctypes.POINTER(Shape), ctypes.c_int64, ctypes.c_int64)
    return calls


def native(choose: ctypes.CDLL, extents: Extents, layout: Layout, alignment: int, workspace: int) -> tuple:
    plan = Plan()
    choose.vx_gpu_choose(ctypes.byref(Shape(*extents[:4], *layout, alignment, 1.0)), workspace, ctypes.byref(plan))
    return plan.kernel, plan.splits, plan.chunk, plan.raster, plan.seconds


def mirrored(chooser: GpuSelector, extents: np.ndarray, key: tuple[Layout, int], workspace: int) -> list[tuple]:
    """`GpuSelector.select` of many shapes at once: the same expressions, shapes down and kernels across."""
    ops, s = ArrayArithmetic(), chooser.columns[key]
    columns = extents.astype(np.float32).T[:, :, None]
    copies = np.array([room(workspace, int(m), int(n), int(batch)) for m, n, _, batch in extents], np.float32)[:, None]
    problem = GpuProblem(*columns[:3], copies, columns[3], np.float32(1))
    choices = options(ops, chooser.float32_rates, s, problem)
    totals = np.stack([cost.total for _, cost in choices])
    asked = np.stack([np.broadcast_to(np.float32(cut), totals[0].shape) for cut, _ in choices])
    best = totals.argmin(axis=0)[None]
    seconds = np.take_along_axis(totals, best, 0)[0]
    splits = np.take_along_axis(asked, best, 0)[0]
    rows = seconds.argmin(axis=1)
    found = []
    for place, row in enumerate(rows):
        plan = chooser.plan(Extents(*map(int, extents[place])), chooser.groups[key][row], int(splits[place, row]), 0.0)
        found.append((plan.index, plan.splits, plan.chunk, plan.raster, float(seconds[place, row])))
    return found


def random_extents(count: int, seed: int) -> np.ndarray:
    """Evenly over the logarithm up to 20 000; one in eight with an extent up to the largest there is, one in three with
    a batch."""
    rng = np.random.default_rng(seed)
    logs = rng.uniform(0, 9.9, (count, 3))
    logs[::8, rng.integers(3)] = rng.uniform(0, np.log(MOST_EXTENT), len(logs[::8]))
    batch = np.where(np.arange(count) % 3 == 1, rng.uniform(0, 8, count), 0.0)
    return np.maximum(np.exp(np.column_stack([logs, batch])).astype(np.int64), 1)


def test_the_mirror_picks_the_same_plan(choose: ctypes.CDLL) -> None:
    """Kernel, cut, raster and the bits of the predicted seconds, over every layout and alignment."""
    chooser = selector(A100)
    keys = sorted(chooser.columns)
    each = -(-SHAPES // (len(keys) * len(WORKSPACES)))
    different, tried = [], 0
    for seed, (key, workspace) in enumerate((key, size) for key in keys for size in WORKSPACES):
        extents = random_extents(each, seed)
        for start in range(0, each, 2000):
            part = extents[start : start + 2000]
            for shape, expected in zip(part, mirrored(chooser, part, key, workspace), strict=True):
                tried += 1
                if native(choose, Extents(*map(int, shape)), *key, workspace) != expected:
                    different.append((*map(int, shape), *key, workspace))
    assert tried >= SHAPES
    assert not different, f"{len(different)} of {tried} differ, the first {different[:3]}"


@pytest.mark.parametrize("flag", ["avx2", "avx512vl"])
def test_all_forms_of_the_code_agree_to_the_bit(choose: ctypes.CDLL, flag: str) -> None:
    if flag not in cpu_flags():
        pytest.skip(f"compares with another form of the code: needs a processor with {flag}")
    floats = [ctypes.c_float] * 6
    choose.different.argtypes = (ctypes.c_int32, ctypes.c_int32, *floats)
    for group in range(len(LAYOUTS) * len(ALIGNMENTS)):
        for m, n, k, batch in random_extents(300, group):
            assert choose.different(flag != "avx2", group, m, n, k, 1000.0, batch, 0.2) == 0, (group, m, n, k)


def test_many_at_once_is_one_by_one() -> None:
    chooser = selector(A100)
    for key in sorted(chooser.columns)[::3]:
        extents = random_extents(20, 5)
        one_by_one = [chooser.select(Extents(*map(int, row)), *key, 2**26) for row in extents]
        expected = [(plan.index, plan.splits, plan.chunk, plan.raster, plan.seconds) for plan in one_by_one]
        assert mirrored(chooser, extents, key, 2**26) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SPECS)),
    *[st.one_of(st.integers(1, 300), st.integers(1, MOST_EXTENT)) for _ in range(3)],
    st.sampled_from(LAYOUTS),
    st.sampled_from((2, 4, 6, 8, 16, 48, 256)),
    st.integers(0, 2**34),
)
def test_every_shape_is_served(name, m, n, k, layout, alignment, workspace) -> None:
    chooser = selector(SPECS[name])
    plan = chooser.select(Extents(m, n, k), layout, alignment, workspace)
    variant, depth = plan.variant, plan.variant.strategy.l1.k
    assert variant == chooser.variants[plan.index]
    assert (variant.transpose_a, variant.transpose_b) == layout
    assert alignment % variant.vector_bytes == 0
    assert plan.splits >= 1 and plan.chunk * plan.splits >= k > plan.chunk * (plan.splits - 1)
    assert plan.splits == 1 or (plan.chunk % depth == 0 and 4 * m * n * plan.splits <= workspace)
    assert 1 <= plan.raster <= 32 and 0 < plan.seconds < float("inf")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extremes_in_native_code(choose: ctypes.CDLL, layout: Layout) -> None:
    for extents in (
        Extents(1, 1, 1),
        Extents(MOST_EXTENT, 1, 1),
        Extents(1, 1, MOST_EXTENT),
        Extents(*[MOST_EXTENT] * 3),
    ):
        kernel, splits, chunk, _, seconds = native(choose, extents, layout, 2, 2**30)
        assert kernel >= 0 and splits >= 1 and chunk * splits >= extents.k and np.isfinite(seconds)


def test_ties_go_to_the_earlier_kernel() -> None:
    chooser = selector(A100)
    twice = replace(chooser, variants=chooser.variants * 2, costs=chooser.costs * 2)
    for extents in (Extents(1, 1, 1), Extents(333, 100, 7), Extents(4096, 4096, 4096)):
        assert twice.select(extents) == chooser.select(extents)


def test_narrow_kernels_serve_wide_operands_only_where_there_is_no_wide_one() -> None:
    chooser = selector(A100)
    for (layout, alignment), group in chooser.groups.items():
        for index in group:
            variant = chooser.variants[index]
            wider = [
                other.vector_bytes
                for other in chooser.variants
                if other.strategy == variant.strategy
                and (other.transpose_a, other.transpose_b) == layout
                and other.vector_bytes <= alignment
            ]
            assert variant.vector_bytes == max(wider)
    assert all(set(chooser.groups[layout, 2]) for layout in LAYOUTS)


def test_operands_that_no_kernel_takes_are_an_error(choose: ctypes.CDLL) -> None:
    chooser = selector(A100)
    with pytest.raises(VortexError, match="aligned to 1 bytes"):
        chooser.select(Extents(5, 5, 5), LAYOUTS[0], 1)
    wide = [variant for variant in chooser.variants if variant.vector_bytes == 16]
    alone = replace(chooser, variants=tuple(wide), costs=chooser.costs[: len(wide)])
    with pytest.raises(VortexError, match="no kernel"):
        alone.select(Extents(5, 5, 5), LAYOUTS[3], 8)


@pytest.mark.parametrize(
    ("splits", "k", "depth", "expected"),
    [
        (1, 100, 32, (1, 100)),
        (3, 96, 32, (3, 32)),
        (3, 97, 32, (2, 64)),
        (4, 5, 32, (1, 5)),
        (512, 2**31 - 1, 64, (512, 2**22)),
    ],
)
def test_parts_are_whole_stages(splits: int, k: int, depth: int, expected: tuple[int, int]) -> None:
    assert parts_of(splits, k, depth) == expected


def test_selection_is_quick_in_native_code(choose: ctypes.CDLL) -> None:
    """A ceiling that holds on slow and busy machines; docs/gpu-model.md has the measured figure."""
    shape = Shape(333, 444, 555, 1, 0, 0, 16, 1.0)
    assert min(choose.seconds(ctypes.byref(shape), 2**30, 2000) for _ in range(5)) / 2000 < 20e-6


def test_figures_survive_the_manifest() -> None:
    chooser = selector(A100)
    again = GpuSelector.from_json(chooser.variants, json.loads(json.dumps(chooser.to_json())))
    assert again == chooser
    with pytest.raises(VortexError, match="compile it again"):
        GpuSelector.from_json(chooser.variants[1:], chooser.to_json())


def test_alignment_classes_are_the_vector_widths() -> None:
    for dtype, narrowest in (("float16", 2), ("int8", 1)):
        found = {v.vector_bytes for v in selector(A100, dtype).variants}
        assert sorted(found, reverse=True) == [size for size in ALIGNMENTS if size >= narrowest]
