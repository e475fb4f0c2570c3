"""Which candidates become kernels: nothing left out beats the library by more than the tolerance, anywhere sampled."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_profiler import recording
from vortex.gpu_selector import ALIGNMENTS, LAYOUTS, Layout
from vortex.gpu_sieve import sieve
from vortex.gpu_variety import (
    COPIES,
    DOUBT,
    NARROW,
    Variety,
    choose,
    copies_fit,
    cover,
    domain,
    doubts,
    prices,
    serves,
    tolerance,
)
from vortex.operators import Gemm
from vortex.rkernel import decompose
from vortex.specs import load_spec

LARGEST = {"tensor_core": 220, "cuda_core": 220, "skinny": 120, "tensor_core_hopper": 120}
"""Kernels that the seconds of a build have room for: 90 s on two cores, 0.35 s each, with half of it to spare."""
CASES = (
    ("a100", "float16", Backend.TENSOR_CORE),
    ("a100", "float16", Backend.CUDA_CORE),
    ("a100", "float32", Backend.CUDA_CORE),
    ("a100", "float32", Backend.SKINNY),
    ("h200", "float16", Backend.HOPPER),
    ("h200", "tfloat32", Backend.HOPPER),
)


@cache
def chosen(hw: str, dtype: str, backend: Backend) -> Variety:
    return choose(decompose(Gemm(dtype), load_spec(hw)), backend)


@pytest.mark.parametrize(("hw", "dtype", "backend"), CASES)
class TestLibrary:
    def test_is_finite_and_diverse(self, hw: str, dtype: str, backend: Backend):
        variety = chosen(hw, dtype, backend)
        assert 8 <= len(variety.variants) <= LARGEST[backend]
        assert len({variant.name for variant in variety.variants}) == len(variety.variants)
        assert len({variant.strategy.l1 for variant in variety.variants}) >= 6
        assert variety.admitted[-1].count == len(variety.variants)

    def test_serves_every_layout_and_alignment(self, hw: str, dtype: str, backend: Backend):
        item = 4 if dtype in ("float32", "tfloat32") else 2
        groups = {(v.transpose_a, v.transpose_b, v.vector_bytes) for v in chosen(hw, dtype, backend).variants}
        for layout, size in product(LAYOUTS, NARROW):
            by_tma = backend is Backend.HOPPER and (size < 16 or (item == 4 and layout != Layout(False, True)))
            assert ((*layout, size) in groups) == (size >= item and not by_tma)

    def test_no_thread_copies_more_than_its_registers_hold(self, hw: str, dtype: str, backend: Backend):
        assert max(variant.copies for variant in chosen(hw, dtype, backend).variants) <= COPIES

    def test_nothing_left_out_is_much_better_on_any_sample(self, hw: str, dtype: str, backend: Backend):
        rkernel = decompose(Gemm(dtype), load_spec(hw))
        layout = Layout(False, True)
        everything = [Variant(s, *layout, 16) for s in sieve(rkernel, backend).strategies if serves(s, layout)]
        kept = [v for v in chosen(hw, dtype, backend).variants if Variant(v.strategy, *layout, 16) == v]
        shapes = domain(rkernel.hardware, rkernel.operator.item_bytes, backend)[::8]
        best = prices(rkernel.hardware, everything, shapes).min(axis=1)
        ours = prices(rkernel.hardware, kept, shapes).min(axis=1)
        slack = 1.02 if backend is Backend.SKINNY else 1.05  # tiles are chosen for one layout and serve all
        doubt = DOUBT if recording(rkernel.hardware).kernels else 1.0
        assert (ours <= best * (1 + doubt * tolerance(rkernel, backend, 16)) * slack).all()


class TestCover:
    def test_takes_the_fewest_that_serve_all(self):
        priced = np.array([[1.0, 1.04, 9.0], [9.0, 1.0, 9.0], [9.0, 9.0, 1.0]], np.float32)
        assert cover(priced, 0.05) == ([1, 2], 3)
        assert cover(priced, 0.01) == ([0, 1, 2], 3)

    def test_the_dominated_are_never_taken(self):
        random = np.random.default_rng(0)
        priced = random.uniform(1, 2, (50, 8)).astype(np.float32)
        priced[:, 3] = priced.min(axis=1) * 1.5
        chosen, near = cover(priced, 0.1)
        assert 3 not in chosen
        assert near <= 7

    def test_one_that_later_ones_make_useless_is_dropped(self):
        priced = np.array(
            [[1, 1, 9], [1, 1, 9], [1, 9, 1], [1, 9, 1], [9, 1, 9], [9, 9, 1]], np.float32
        )  # the first serves most rows, the other two serve all
        assert cover(priced, 0.0)[0] == [1, 2]

    def test_measured_kernels_come_first_and_others_where_they_gain_much(self):
        """Rows: a measured one is within the tolerance, is within twice that, is far off."""
        priced = np.array([[1.04, 1.0, 9.0], [1.08, 9.0, 1.0], [1.5, 1.0, 9.0]], np.float32)
        known = np.array([True, False, False])
        assert cover(priced, 0.05)[0] == [1, 2]
        assert cover(priced, 0.05, known)[0] == [0, 1]
        assert cover(priced[:2], 0.05, known)[0] == [0]
        assert cover(priced, 0.01, known)[0] == [1, 2]


class TestDomain:
    def test_reaches_from_one_to_what_the_device_holds(self):
        spec = load_spec("a100")
        shapes = domain(spec, 2, Backend.TENSOR_CORE)
        assert shapes.min() == 1
        assert 30_000 < shapes.max() < 84_000
        assert (np.median(shapes, axis=0) > 150).all()
        assert len({tuple(row) for row in shapes}) == len(shapes)

    def test_of_the_skinny_family_has_few_rows_or_few_columns(self):
        shapes = domain(load_spec("a100"), 2, Backend.SKINNY)
        assert (shapes[:, :2].min(axis=1) <= 16).all()
        assert (shapes[:, 0] > 16).any()
        assert (shapes[:, 1] > 16).any()

    def test_doubts_are_other_devices(self):
        spec = load_spec("a100")
        assert doubts(spec)[0] == spec
        assert len({device.fingerprint() for device in doubts(spec)}) == 4


def test_the_same_library_every_time():
    rkernel = decompose(Gemm("float32"), load_spec("a100"))
    assert choose(rkernel, Backend.CUDA_CORE) == chosen("a100", "float32", Backend.CUDA_CORE)


def test_a_backend_that_is_not_the_fastest_has_a_smaller_library():
    half = decompose(Gemm("float16"), load_spec("h200"))
    assert tolerance(half, Backend.HOPPER, 16) < tolerance(half, Backend.TENSOR_CORE, 16)
    assert tolerance(half, Backend.TENSOR_CORE, 16) == tolerance(half, Backend.CUDA_CORE, 16)
    plain = decompose(Gemm(), load_spec("h200"))
    assert tolerance(plain, Backend.CUDA_CORE, 16) == tolerance(half, Backend.HOPPER, 16)


def test_where_tma_cannot_read_mma_is_the_fastest() -> None:
    half = decompose(Gemm("float16"), load_spec("h200"))
    for size in (8, 4, 2):
        assert tolerance(half, Backend.TENSOR_CORE, size) < tolerance(half, Backend.CUDA_CORE, size)


def test_every_alignment_class_has_a_tolerance_and_tensor_core_kernels_for_bytes() -> None:
    assert set(NARROW) == set(ALIGNMENTS)
    bytes_ = sieve(decompose(Gemm("int8"), load_spec("a100")), Backend.TENSOR_CORE).strategies
    for size in ALIGNMENTS:
        for layout in LAYOUTS:
            assert any(serves(strategy, layout) and copies_fit(strategy, size) for strategy in bytes_), (size, layout)
