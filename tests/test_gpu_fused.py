"""Calls of libraries with an epilogue: the fake driver's launches run in the emulator, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_doubles import DLPackTensor, ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from test_emulation import along_k, cuda_core, tensor_core
from test_gpu_end_to_end import exact, opened

from vortex import operators as ops
from vortex.errors import DtypeError, OperandError, ShapeError, UnknownNameError
from vortex.gpu_candidates import Variant
from vortex.gpu_fused import FusedGpuGemm
from vortex.gpu_polymerize import GpuRegion
from vortex.gpu_selector import Extents

pytestmark = an_emulator

CHAIN = ops.bias() >> ops.relu() >> ops.scale(per="row", dtype="float16") >> ops.residual()
OPERATOR = ops.Gemm("float16", CHAIN, out_dtype="float32")
VARIANTS = (
    Variant(tensor_core("float16"), False, False, 16),
    Variant(tensor_core("float16", "shared", 2), False, False, 2),
    Variant(cuda_core("float16"), True, False, 16),
    Variant(along_k("float16"), False, True, 16),
    Variant(along_k("float16"), False, True, 2),
)


@pytest.fixture(scope="module")
def gemm(stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FusedGpuGemm]:
    made = opened(stub_driver, tmp_path_factory.mktemp("fused"), "a100", VARIANTS, OPERATOR)
    assert isinstance(made, FusedGpuGemm)
    yield made
    stub_driver.reset()


def tensors(m: int, n: int) -> dict[str, Any]:
    draw = np.random.default_rng(m * n)
    whole = draw.integers(-2, 3, (m, n + 5)).astype(np.float32)
    return {
        "bias": draw.integers(-2, 3, n).astype(np.float32),
        "scale": draw.integers(-2, 3, (m, 3)).astype(np.float16)[:, 0],
        "residual": whole[:, :n],
    }


def held(given: dict[str, Any], kind: type[DLPackTensor] = ExchangeTensor) -> dict[str, Any]:
    return {name: kind(array) for name, array in given.items()}


@pytest.mark.parametrize(
    ("m", "n", "k", "turned_a", "turned_b"),
    [(72, 40, 136, False, False), (70, 37, 99, False, False), (3, 40, 520, False, True), (5, 33, 77, False, True)],
)
@pytest.mark.parametrize("kind", [ExchangeTensor, DLPackTensor])
def test_calls_compute_the_chain(gemm, m: int, n: int, k: int, turned_a: bool, turned_b: bool, kind):
    a, b = exact(m, n, k, m)
    given = tensors(m, n)
    out = ExchangeTensor(aligned(np.full((m, n), np.nan, np.float32)))
    operands = ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b.T if turned_b else b))
    gemm(*operands, out, transpose_b=turned_b, stream=0, **held(given, kind))
    assert (out.array == OPERATOR.reference(a, b, **given)).all()


@pytest.mark.parametrize("index", range(len(VARIANTS)))
@pytest.mark.parametrize("splits", [1, 3])
def test_every_kernel_by_plan(gemm: FusedGpuGemm, index: int, splits: int):
    v = VARIANTS[index]
    depth = v.strategy.l1.k
    m, n, k = 24, 40, 2 * depth + (8 if v.vector_bytes == 16 else 3)
    a, b = exact(m, n, k, index)
    given_a, given_b = (
        ExchangeTensor(aligned(x.T if turned else x)) for x, turned in ((a, v.transpose_a), (b, v.transpose_b))
    )
    out = ExchangeTensor(aligned(np.full((m, n), np.nan, np.float32)))
    plan = replace(gemm.plan(64, 64, 64), index=index, splits=splits, chunk=k if splits == 1 else depth, raster=2)
    flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
    given = tensors(m, n)
    gemm.run_planned(plan, given_a, given_b, out, **flags, **held(given))
    assert (out.array == OPERATOR.reference(a, b, **given)).all()


@pytest.mark.parametrize("start", [(16, 0), (0, 32)])
@pytest.mark.parametrize("splits", [1, 3])
def test_both_regions_of_a_call_read_their_own_part_of_every_tensor(gemm: FusedGpuGemm, start, splits: int):
    v, (m, n) = VARIANTS[0], (24, 40)
    depth = v.strategy.l1.k
    k = 2 * depth + 8
    a, b = exact(m, n, k, 3)
    given, out = tensors(m, n), ExchangeTensor(aligned(np.full((m, n), np.nan, np.float32)))
    plan = replace(gemm.plan(64, 64, 64), index=0, splits=splits, chunk=k if splits == 1 else depth, raster=2)
    narrow = replace(plan, index=1, splits=1, chunk=k)
    both = (GpuRegion(0, 0, Extents(m, n, k), plan), GpuRegion(*start, Extents(m, n, k), narrow))
    gemm.run_planned(both, ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), out, **held(given))
    assert (out.array == OPERATOR.reference(a, b, **given)).all()


def test_a_sum_of_no_products_is_finished_too(gemm: FusedGpuGemm):
    given = tensors(9, 7)
    a, b = (ExchangeTensor(aligned(np.zeros(shape, np.float16))) for shape in ((9, 0), (0, 7)))
    out = ExchangeTensor(aligned(np.full((9, 7), np.nan, np.float32)))
    gemm(a, b, out, **held(given))
    assert (out.array == CHAIN.reference(np.zeros((9, 7)), **given)).all()


def test_wide_stores_want_the_output_s_own_alignment(gemm: FusedGpuGemm):
    """Rows of float32 on multiples of 4 bytes: no kernel may store two at a time."""
    a, b = exact(72, 40, 136, 1)
    given, room = tensors(72, 40), aligned(np.full((72, 41), np.nan, np.float32))
    gemm(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), ExchangeTensor(room[:, 1:]), **held(given))
    assert (room[:, 1:] == OPERATOR.reference(a, b, **given)).all() and np.isnan(room[:, 0]).all()


class TestRefusals:
    def call(self, gemm: FusedGpuGemm, **changes: Any) -> None:
        a, b = exact(8, 16, 24, 0)
        out = changes.pop("out", ExchangeTensor(aligned(np.zeros((8, 16), np.float32))))
        given = held(tensors(8, 16)) | changes
        given = {name: value for name, value in given.items() if value is not None}
        gemm(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), out, **given)

    def test_missing_and_unknown_tensors(self, gemm: FusedGpuGemm):
        with pytest.raises(
            UnknownNameError, match=r"bias is missing; .*expects bias \[n\] float32, scale \[m\] float16"
        ):
            self.call(gemm, bias=None)
        with pytest.raises(UnknownNameError, match="unknown operand 'wrong'"):
            self.call(gemm, wrong=ExchangeTensor(np.zeros(16, np.float32)))

    @pytest.mark.parametrize(
        ("name", "shape"),
        [("bias", (8,)), ("bias", (1, 16)), ("scale", (16,)), ("residual", (8, 17)), ("residual", (16,))],
    )
    def test_shapes(self, gemm: FusedGpuGemm, name: str, shape: tuple[int, ...]):
        dtype = np.float16 if name == "scale" else np.float32
        with pytest.raises(ShapeError, match=f"{name} .*does not fit the output"):
            self.call(gemm, **{name: ExchangeTensor(np.zeros(shape, dtype))})

    def test_dtypes(self, gemm: FusedGpuGemm):
        with pytest.raises(DtypeError, match=r"scale .*wrong dtype.*computes in float16"):
            self.call(gemm, scale=ExchangeTensor(np.zeros(8, np.float32)))
        with pytest.raises(DtypeError, match=r"out .*wrong dtype.*computes in float32"):
            self.call(gemm, out=ExchangeTensor(np.zeros((8, 16), np.float16)))

    def test_tensors_that_lie_in_the_output(self, gemm: FusedGpuGemm):
        room = aligned(np.zeros((8, 16), np.float32))
        with pytest.raises(OperandError, match="residual"):
            self.call(gemm, out=ExchangeTensor(room), residual=ExchangeTensor(room))

    def test_gradients(self, gemm: FusedGpuGemm):
        class Trained(ExchangeTensor):
            requires_grad = True  # type: ignore[assignment]  # a property there

        with pytest.raises(OperandError, match=r"bias requires grad"):
            self.call(gemm, bias=Trained(np.zeros(16, np.float32)))
