"""Emitted kernels of every family against NumPy, thread by thread. All kernels of all libraries: `make emulate`."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import pytest
from needs import an_emulator
from products import Case, Unit, cases, check, check_variants, unit

from vortex.candidates import Tile
from vortex.gpu_candidates import Backend, BlockStrategy, Variant
from vortex.gpu_sieve import backends
from vortex.gpu_variety import choose
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.specs import load_spec

pytestmark = an_emulator

LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]
SHAPES = 20
"""Ragged shapes on which every kernel of a library must be right."""
LIBRARIES = [(hw, dtype) for hw in ("a100", "h200") for dtype in ("float32", "tfloat32", "float16", "bfloat16")]
LIBRARIES += [("a100", "int8")]
SAMPLED = [("h200", "int8"), ("rtx3090", "float32"), ("rtx3090", "float16"), ("t4", "float32"), ("t4", "float16")]
"""Of these libraries every kernel in `STRIDE` that no library above has, on fewer shapes."""
STRIDE, FEW_SHAPES = 10, 6


def tensor_core(dtype: str, store: str = "direct", stages: int = 3) -> BlockStrategy:
    k = 8 if dtype == "tfloat32" else 16
    return BlockStrategy(
        Backend.TENSOR_CORE, dtype, Tile(32, 16, k), Tile(64, 32, 4 * k), Tile(16, 8, k), stages, store
    )


def turing(store: str = "direct", stages: int = 2) -> BlockStrategy:
    """m16n8k8, the next stage held in registers."""
    l0, l1, thread = Tile(32, 16, 16), Tile(64, 32, 64), Tile(16, 8, 8)
    return BlockStrategy(Backend.TENSOR_CORE, "float16", l0, l1, thread, stages, store)


def bytes_core(store: str = "direct", stages: int = 3, rows: int = 64) -> BlockStrategy:
    l0, l1 = Tile(rows // 2, 16, 32), Tile(rows, 64, 64)
    return BlockStrategy(Backend.TENSOR_CORE, "int8", l0, l1, Tile(16, 8, 32), stages, store)


def cuda_core(dtype: str, stages: int = 3) -> BlockStrategy:
    depth = 16 if dtype == "float32" else 32  # so that every thread copies as much of B as of A
    return BlockStrategy(Backend.CUDA_CORE, dtype, Tile(32, 16, 1), Tile(64, 32, depth), Tile(4, 4, 1), stages)


def few_threads() -> BlockStrategy:
    """A would be too many elements of a thread to be turned over, so B is not either."""
    return BlockStrategy(Backend.CUDA_CORE, "float32", Tile(128, 32, 1), Tile(128, 32, 8), Tile(16, 8, 1), 3)


def along_k(dtype: str) -> BlockStrategy:
    return BlockStrategy(Backend.SKINNY, dtype, Tile(4, 8, 128), Tile(4, 16, 256), Tile(4, 8, 4), 1)


def across_k(dtype: str) -> BlockStrategy:
    return BlockStrategy(Backend.SKINNY, dtype, Tile(128, 8, 8), Tile(128, 8, 32), Tile(4, 8, 8), 1)


def hopper(
    dtype: str, rows: int = 128, columns: int = 64, store: str = "shared", stages: int = 4, cluster: int = 1
) -> BlockStrategy:
    k = 8 if dtype == "tfloat32" else 16
    tile, thread = Tile(rows, columns, 4 * k), Tile(64, columns, k)
    return BlockStrategy(Backend.HOPPER, dtype, Tile(64, columns, k), tile, thread, stages, store, cluster)


def turned(dtype: str, rows: int, columns: int, stages: int) -> BlockStrategy:
    """Few rows of A on Hopper."""
    k = 8 if dtype == "tfloat32" else 16
    l0, l1 = Tile(rows, 64, k), Tile(rows, columns, 4 * k)
    return BlockStrategy(Backend.HOPPER, dtype, l0, l1, Tile(rows, 64, k), stages)


FAMILIES = {
    "tensor_core": [
        *(Variant(tensor_core("float16"), *layout, 16) for layout in LAYOUTS),
        *(Variant(tensor_core("float16", "shared", 2), False, False, size) for size in (8, 4, 2)),
        *(Variant(tensor_core("bfloat16", "shared"), *layout, 16) for layout in LAYOUTS[:2]),
        *(Variant(tensor_core("tfloat32"), *layout, 16) for layout in LAYOUTS),
        Variant(tensor_core("tfloat32"), True, False, 4),
        *(Variant(tensor_core("float16", stages=stages), False, True, 16) for stages in (1, 5)),
    ],
    "turing": [
        *(Variant(turing(), *layout, 16) for layout in LAYOUTS),
        *(Variant(turing("shared"), False, True, size) for size in (8, 2)),
        Variant(turing("shared", 1), False, False, 16),
        Variant(cuda_core("float32", 2), False, True, 16),
        Variant(cuda_core("float16", 2), True, False, 4),
        Variant(cuda_core("float16", 1), False, False, 16),
    ],
    "cuda_core": [
        *(Variant(cuda_core("float32"), *layout, 16) for layout in LAYOUTS),
        *(Variant(cuda_core("float32", 2), False, True, size) for size in (8, 4)),
        *(Variant(cuda_core("float16"), True, False, size) for size in (16, 2)),
        Variant(cuda_core("bfloat16", 4), False, False, 4),
    ],
    "full_rate": [
        *(Variant(cuda_core("float32"), *layout, 16) for layout in LAYOUTS),
        *(Variant(cuda_core("float32", 2), False, True, size) for size in (8, 4)),
        Variant(few_threads(), False, True, 16),
        Variant(cuda_core("float16"), True, False, 16),
    ],
    "skinny": [
        *(Variant(along_k(dtype), False, True, 16) for dtype in ("float32", "float16", "bfloat16")),
        *(Variant(along_k("float16"), False, False, size) for size in (16, 2)),
        *(Variant(across_k(dtype), True, False, 16) for dtype in ("float32", "float16")),
        Variant(across_k("float32"), True, True, 4),
    ],
    "bytes": [
        *(Variant(bytes_core(store), *layout, 16) for store in ("direct", "shared") for layout in LAYOUTS),
        *(Variant(bytes_core("shared", 2), False, False, size) for size in (8, 4)),
        *(Variant(bytes_core(rows=32), False, True, size) for size in (2, 1)),
        *(Variant(along_k("int8"), False, True, size) for size in (16, 1)),
        Variant(across_k("int8"), True, False, 16),
    ],
    "hopper": [
        *(Variant(hopper("float16"), *layout, 16) for layout in LAYOUTS),
        Variant(hopper("bfloat16", 64, 32, "direct", 2), False, False, 16),
        Variant(hopper("tfloat32", 128, 32, "direct"), False, True, 16),
        *(Variant(hopper("float16", 64, cluster=2), *layout, 16) for layout in LAYOUTS),
        Variant(hopper("bfloat16", 64, 192, stages=3, cluster=2), False, False, 16),  # three boxes for two blocks
        Variant(hopper("float16", 128, 16, "direct", 2, 2), False, True, 16),
        Variant(hopper("tfloat32", 64, 32, "direct", cluster=2), False, True, 16),
        *(Variant(turned("float16", 16, 64, 16), False, by_columns, 16) for by_columns in (False, True)),
        Variant(turned("bfloat16", 8, 128, 5), False, False, 16),
        Variant(turned("tfloat32", 32, 64, 3), False, True, 16),
    ],
}


def arch_of(variant: Variant) -> str:
    if variant.strategy.backend is Backend.HOPPER:
        return "sm_90a"
    is_turing = variant.strategy.dtype == "float16" and variant.strategy.thread == turing().thread
    return "sm_75" if is_turing else "sm_80"


def arch_of_family(family: str) -> str:
    """Of some variants the text depends on the architecture."""
    return "sm_90" if family == "full_rate" else arch_of(FAMILIES[family][0])


@cache
def compiled(family: str) -> Unit:
    return unit(FAMILIES[family], arch_of_family(family))


@pytest.mark.parametrize(
    ("family", "index"),
    [pytest.param(family, i, id=v.name) for family, variants in FAMILIES.items() for i, v in enumerate(variants)],
)
def test_a_kernel_of_every_kind(family: str, index: int):
    emulated = compiled(family)
    variant, kernel = emulated.kernels[index]
    for case in cases(variant, 4):
        check(variant, kernel, emulated.text, case)


@pytest.mark.parametrize("index", range(len(FAMILIES["hopper"])), ids=lambda index: FAMILIES["hopper"][index].name)
@pytest.mark.parametrize("timing", ["eager", "lazy", "random"])
def test_columns_that_every_tile_has_are_brought_once(index: int, timing: str):
    """More tiles than stages below one another, over one or two tiles of k, which stay where stages are a multiple."""
    variant, kernel = compiled("hopper").kernels[index]
    s = variant.strategy
    for depth in (1, 2):
        rows = ((s.stages + 3) * s.grid_tile.m - 8) if not s.is_turned else s.l1.m
        columns = s.l1.n - 8 if not s.is_turned else (s.stages + 3) * s.l1.n
        check(variant, kernel, compiled("hopper").text, Case(rows, columns, depth * s.l1.k - 8, timing, depth))


@pytest.mark.parametrize(("family", "index"), [(family, 1) for family in FAMILIES])
@pytest.mark.parametrize("timing", ["eager", "lazy"])
def test_offsets_beyond_32_bits(family: str, index: int, timing: str):
    """The third row of A and of C begins past 2^31 elements."""
    variant, kernel = compiled(family).kernels[index]
    check(variant, kernel, compiled(family).text, Case(3, 40, 96, timing, 0, leading=(1 << 30) + 64))


@pytest.mark.parametrize(
    ("family", "index", "most"),
    [
        pytest.param(family, i, most, id=FAMILIES[family][i].name)
        for family, i, most in [
            ("tensor_core", 0, 0.0),
            ("tensor_core", 3, 0.0),
            ("tensor_core", 4, 0.1),  # C through shared memory: conflicts at the end, none in the loop
            ("tensor_core", 9, 0.0),
            ("tensor_core", 11, 0.0),
            *(("bytes", i, 0.0) for i in (0, 1, 2)),
            *(("turing", i, 0.0) for i in (0, 3)),
            ("turing", 6, 0.2),
            *(("cuda_core", i, 0.0) for i in (0, 1, 2, 3, 6)),
            *(("full_rate", i, 0.0) for i in (0, 1, 2, 3)),
            ("skinny", 0, 1.0),
        ]
    ],
)
def test_no_race_and_no_bank_conflicts(family: str, index: int, most: float):
    """`most` conflicts for each access to shared memory."""
    variant = FAMILIES[family][index]
    alone = unit([variant], arch_of_family(family))
    counted = check(variant, alone.kernels[0][1], alone.text, next(cases(variant, 1)), traced=True)
    assert counted.shared_accesses > 0 and counted.shared_conflicts <= most * counted.shared_accesses


@pytest.mark.emulate
@pytest.mark.parametrize(("hw", "dtype"), LIBRARIES)
def test_all_kernels_of_a_library(hw: str, dtype: str):
    """Those known from an earlier library are left out."""
    check_all([variant for variant in library(hw, dtype) if (hw, dtype) == first_with(variant)], hw, SHAPES)


@pytest.mark.emulate
@pytest.mark.parametrize(("hw", "dtype"), SAMPLED)
def test_a_sample_of_the_kernels_of_a_library(hw: str, dtype: str):
    same_text = load_spec(hw).async_copy
    known = {variant for entry in LIBRARIES for variant in library(*entry) if same_text}
    check_all([variant for variant in library(hw, dtype) if variant not in known][::STRIDE], hw, FEW_SHAPES)


def check_all(variants: list[Variant], hw: str, shapes: int) -> None:
    """Two processes, like the least machine that builds a library."""
    parts = [variants[start::count] for count in [-(-len(variants) // 6)] for start in range(count)]
    arch = load_spec(hw).arch
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), multiprocessing.get_context("fork")) as pool:
        found = list(pool.map(check_variants, parts, [arch] * len(parts), [shapes] * len(parts)))
    wrong = [told for part in found for told in part]
    assert not wrong, "\n".join(wrong)


@cache
def library(hw: str, dtype: str) -> tuple[Variant, ...]:
    """Every kernel that compile() makes for a device and an element type."""
    rkernel = decompose(Gemm(dtype=dtype), load_spec(hw))
    return tuple(variant for backend in backends(rkernel) for variant in choose(rkernel, backend).variants)


def first_with(variant: Variant) -> tuple[str, str]:
    return next(entry for entry in LIBRARIES if variant in library(*entry))
