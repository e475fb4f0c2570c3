"""Epilogues of products of a batch and of groups of rows on GPUs: calls through the door, run in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from products import machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import along_k, bytes_core
from test_gpu_batch import VARIANTS, halves, laid_for
from test_gpu_end_to_end import assembled, emulating
from test_gpu_grouped import VARIANTS as OF_GROUPS

from vortex import operators as ops
from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_lower import alone
from vortex.epilogue import NOTHING, Epilogue
from vortex.errors import OperandError, ShapeError, UnknownNameError
from vortex.gpu_batch import GpuBatchGemm
from vortex.gpu_candidates import Variant
from vortex.gpu_grouped import GpuGroupedGemm
from vortex.gpu_variety import copies_fit
from vortex.operators import BatchGemm, GroupedGemm
from vortex.specs import load_spec

CHAIN = ops.bias() >> ops.relu() >> ops.scale(per="row", dtype="float16") >> ops.residual()
BATCHES = BatchGemm("float16", epilogue=CHAIN, out_dtype="float32")
GROUPS = GroupedGemm("float16", epilogue=CHAIN, out_dtype="float32")


def opened(driver: StubDriver, folder: Path, variants: tuple[Variant, ...], operator: Any, launcher: Any) -> Any:
    driver.reset()
    spec = load_spec("a100")
    driver.describe(shared_per_block=spec.shared_per_block_bytes)
    whole = unit(variants, spec.arch, form_of(operator))
    made = launcher(assembled(folder, "a100", whole, operator), 0)
    driver.on_launch(emulating(made.library, whole))
    return made


def room(*shape: int) -> ExchangeTensor:
    return ExchangeTensor(aligned(np.full(shape, np.nan, np.float32)))


def held(given: dict[str, Any]) -> dict[str, Any]:
    return {name: ExchangeTensor(array) for name, array in given.items()}


def of_batch(m: int, n: int, *batches: tuple[int, ...]) -> dict[str, Any]:
    """Those of the chain, each with batch axes of its own and strides that are not dense."""
    of_bias, of_scale, of_residual = batches
    return {
        "bias": halves(*of_bias, n, 2).astype(np.float32)[..., 0],
        "scale": halves(*of_scale, m, 3)[..., 1],
        "residual": halves(*of_residual, m, n + 5).astype(np.float32)[..., :n],
    }


@pytest.fixture(scope="class")
def batches(stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuBatchGemm]:
    yield opened(stub_driver, tmp_path_factory.mktemp("batches"), VARIANTS, BATCHES, GpuBatchGemm)
    stub_driver.reset()


@an_emulator
class TestBatches:
    @pytest.mark.parametrize(
        ("left", "right", "axes"),
        [
            pytest.param((3,), (3,), ((), (3,), (3,)), id="bias-shared"),
            pytest.param((2, 3), (2, 3), ((2, 3), (3,), (2, 1)), id="each-its-own-axes"),
            pytest.param((2, 1), (1, 3), ((1, 1), (2, 3), ()), id="one-for-all"),
            pytest.param((5,), (), ((), (5,), (5,)), id="rows-of-one-product"),
            pytest.param((5,), (), ((5,), (5,), (5,)), id="bias-of-each-product"),
        ],
    )
    def test_tensors_broadcast_along_the_batch(self, batches: GpuBatchGemm, left, right, axes):
        for m, n, k in ((40, 24, 72), (37, 11, 19), (1, 24, 40)):
            a, b, given = halves(*left, m, k), halves(*right, k, n, seed=1), of_batch(m, n, *axes)
            expected = BATCHES.reference(a, b, **given)
            out = room(*expected.shape)
            batches(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), out, **held(given))
            assert (out.array == expected).all(), (m, n, k)

    @pytest.mark.parametrize("index", range(len(VARIANTS)))
    @pytest.mark.parametrize("splits", [1, 3])
    def test_every_kernel_by_plan(self, batches: GpuBatchGemm, index: int, splits: int):
        v = VARIANTS[index]
        depth = v.strategy.l1.k
        m, n, k = 24, 40, 2 * depth + (8 if v.vector_bytes == 16 else 3)
        a, b, given = halves(2, 2, m, k), halves(2, 1, k, n, seed=2), of_batch(m, n, (2,), (2, 1), (2, 2))
        given_a, given_b = laid_for(v, a, b)
        out = aligned(np.full((2, 2, m, n), np.nan, np.float32))
        plan = replace(batches.plan(64, 64, 64), index=index, splits=splits, chunk=k if splits == 1 else depth)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        batches.run_planned(plan, given_a, given_b, ExchangeTensor(out), **flags, **held(given))
        assert (out == BATCHES.reference(a, b, **given)).all()

    def test_rows_go_on_only_where_every_tensor_does(self, batches: GpuBatchGemm, stub_driver: StubDriver):
        a, b = ExchangeTensor(aligned(halves(3, 16, 32))), ExchangeTensor(aligned(halves(32, 24)))
        whole = halves(3, 16, 24).astype(np.float32)
        dense = {"bias": whole[0, 0], "scale": halves(3, 16), "residual": whole}
        for changes, layers in (
            ({}, 1),
            ({"bias": whole[:, 0]}, 3),
            ({"scale": halves(16)}, 3),
            ({"residual": whole[1]}, 3),
            ({"residual": np.zeros((3, 17, 24), np.float32)[:, 1:]}, 3),
        ):
            batches(a, b, room(3, 16, 24), **held({**dense, **changes}))
            assert stub_driver.launches[-1].grid[1] == layers, changes

    def test_sums_of_no_products_are_finished_too(self, batches: GpuBatchGemm):
        given = of_batch(9, 7, (2,), (2,), (2,))
        a, b = (ExchangeTensor(aligned(np.zeros(shape, np.float16))) for shape in ((2, 9, 0), (2, 0, 7)))
        out = room(2, 9, 7)
        batches(a, b, out, **held(given))
        assert (out.array == BATCHES.reference(np.zeros((2, 9, 0)), np.zeros((2, 0, 7)), **given)).all()

    @pytest.mark.parametrize(
        ("name", "shape", "error"),
        [
            ("bias", (2, 8), ShapeError),
            ("bias", (1, 1, 1, 8), ShapeError),
            ("scale", (8,), ShapeError),
            ("residual", (3, 4, 9), ShapeError),
            ("residual", (8,), ShapeError),
        ],
    )
    def test_shapes(self, batches: GpuBatchGemm, name: str, shape: tuple[int, ...], error: type[Exception]):
        given = of_batch(4, 8, (), (), ()) | {name: np.zeros(shape, np.float16 if name == "scale" else np.float32)}
        a, b = ExchangeTensor(aligned(halves(3, 4, 8))), ExchangeTensor(aligned(halves(8, 8)))
        told = rf"{name} .*does not fit the output.*pass \[..., n\] per column, \[..., m\] per row"
        with pytest.raises(error, match=told):
            batches(a, b, room(3, 4, 8), **held(given))
        with pytest.raises(UnknownNameError, match=r"bias is missing; .*expects bias \[..., n\] float32"):
            batches(a, b, room(3, 4, 8))

    def test_a_tensor_in_the_output_of_another_product(self, batches: GpuBatchGemm):
        out = aligned(np.zeros((3, 4, 8), np.float32))
        given = held(of_batch(4, 8, (), (), ())) | {"residual": ExchangeTensor(out[2])}
        a, b = ExchangeTensor(aligned(halves(3, 4, 8))), ExchangeTensor(aligned(halves(3, 8, 8)))
        with pytest.raises(OperandError, match=r"residual .*overlaps"):
            batches(a, b, ExchangeTensor(out), **given)

    @an_nvrtc
    def test_machine_code_stays_in_registers(self):
        used = machine_code(unit(VARIANTS, "sm_80", form_of(BATCHES)).text, "sm_80").resources
        assert [(x.spills, x.stack) for x in used.values()] == [(0, 0)] * (len(VARIANTS) + 1)


def of_groups(rows: list[int], n: int, *, of_each: bool) -> dict[str, Any]:
    """Those of the chain, the bias one of each group or of all; strides are not dense."""
    m = sum(rows)
    biases = halves(len(rows), n + 3).astype(np.float32)[:, :n]
    return {
        "bias": biases if of_each else biases[0],
        "scale": halves(m, 2)[:, 1],
        "residual": halves(m, n + 5).astype(np.float32)[:, :n],
    }


@pytest.fixture(scope="class")
def grouped(stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuGroupedGemm]:
    yield opened(stub_driver, tmp_path_factory.mktemp("groups"), OF_GROUPS, GROUPS, GpuGroupedGemm)
    stub_driver.reset()


@an_emulator
class TestGroups:
    @pytest.mark.parametrize("of_each", [False, True])
    @pytest.mark.parametrize("index", range(len(OF_GROUPS)))
    def test_every_kernel_reads_what_its_group_does(self, grouped: GpuGroupedGemm, index: int, of_each: bool):
        v, rows, n = OF_GROUPS[index], [70, 0, 1, 130, 0], 40
        k = 2 * v.strategy.l1.k + (8 if v.vector_bytes == 16 else 3)
        a, b, given = halves(sum(rows), k), halves(len(rows), k, n, seed=1), of_groups(rows, n, of_each=of_each)
        out = aligned(np.full((sum(rows), n), np.nan, np.float32))
        plan = replace(grouped.plan(rows, 40, 64), index=index, chunk=k, raster=2)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        operands = *laid_for(v, a, b), rows, ExchangeTensor(out)
        grouped.run_planned(plan, *operands, **flags, **held(given))
        assert (out == GROUPS.reference(a, b, rows, **given)).all()

    def test_groups_of_later_launches(self, grouped: GpuGroupedGemm):
        rows = [i % 3 for i in range(300)]
        a, b, given = halves(sum(rows), 8), halves(300, 8, 8, seed=1), of_groups(rows, 8, of_each=True)
        out = room(sum(rows), 8)
        grouped(ExchangeTensor(aligned(a)), ExchangeTensor(aligned(b)), rows, out, **held(given))
        assert (out.array == GROUPS.reference(a, b, rows, **given)).all()

    @pytest.mark.parametrize("of_each", [False, True])
    def test_sums_of_no_products_are_finished_too(self, grouped: GpuGroupedGemm, of_each: bool):
        rows = [4, 0, 3]
        a, b, given = halves(7, 0), halves(3, 0, 8), of_groups(rows, 8, of_each=of_each)
        out = ExchangeTensor(aligned(np.full((7, 8), np.nan, np.float32)))
        grouped(ExchangeTensor(a), ExchangeTensor(b), rows, out, **held(given))
        assert (out.array == GROUPS.reference(a, b, rows, **given)).all()

    @pytest.mark.parametrize(("name", "shape"), [("bias", (2, 8)), ("scale", (3, 12)), ("residual", (4, 8))])
    def test_shapes(self, grouped: GpuGroupedGemm, name: str, shape: tuple[int, ...]):
        rows = [4, 4, 4]
        given = of_groups(rows, 8, of_each=True)
        given |= {name: np.zeros(shape, np.float16 if name == "scale" else np.float32)}
        told = rf"{name} .*does not fit the output.*pass \[n\] or \[groups, n\] per column, \[m\] per row"
        with pytest.raises(ShapeError, match=told):
            grouped(*(ExchangeTensor(halves(*x)) for x in ((12, 8), (3, 8, 8))), rows, room(12, 8), **held(given))

    @an_nvrtc
    def test_machine_code_stays_in_registers(self):
        made = unit(OF_GROUPS, "sm_80", form_of(GROUPS))
        parts = (alone(kernel).source for _, kernel in made.kernels)
        used = machine_code("\n".join([form_of(GROUPS).prelude, *parts]), "sm_80").resources
        kept = [used[v.name] for v in OF_GROUPS if copies_fit(v.strategy, v.vector_bytes)]
        assert len(kept) == 3 and {(x.spills, x.stack) for x in kept} == {(0, 0)}


BYTES = (
    Variant(bytes_core(), False, True, 16),
    Variant(bytes_core(), True, False, 16),
    Variant(bytes_core(rows=32), False, True, 1),
    Variant(along_k("int8"), False, True, 1),
)
REQUANTIZED = ops.scale() >> ops.cast("int8")


def whole_bytes(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-128, 128, shape).astype(np.int8)


@an_emulator
@pytest.mark.parametrize("chain", [NOTHING, REQUANTIZED], ids=["int32", "requantized"])
class TestBytes:
    """int8 in batches and in groups, as int32 sums and requantized by a scale of each column."""

    @pytest.mark.parametrize("index", range(len(BYTES)))
    def test_products_of_a_batch(self, stub_driver: StubDriver, tmp_path: Path, chain: Epilogue, index: int):
        v, operator = BYTES[index], BatchGemm("int8", epilogue=chain)
        gemm = opened(stub_driver, tmp_path, BYTES, operator, GpuBatchGemm)
        m, n, k = 80, 48, 144 if v.vector_bytes == 16 else 99
        a, b = whole_bytes(3, m, k), whole_bytes(3, k, n, seed=1)
        given = {"scale": np.linspace(2e-5, 1e-3, 3 * n, dtype=np.float32).reshape(3, n)} if chain else {}
        given_a, given_b = laid_for(v, a, b)
        expected = operator.reference(a, b, **given)
        out = aligned(np.full(expected.shape, 77, operator.store.out))
        plan = replace(gemm.plan(64, 64, 64, transpose_b=True), index=index, splits=1, chunk=k, raster=1)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        gemm.run_planned(plan, given_a, given_b, ExchangeTensor(out), **flags, **held(given))
        stub_driver.reset()
        assert (out == expected).all()

    @pytest.mark.parametrize("index", range(len(BYTES)))
    def test_groups_of_rows(self, stub_driver: StubDriver, tmp_path: Path, chain: Epilogue, index: int):
        v, operator, rows, n = BYTES[index], GroupedGemm("int8", epilogue=chain), [48, 0, 16, 80], 48
        gemm = opened(stub_driver, tmp_path, BYTES, operator, GpuGroupedGemm)
        k = 144 if v.vector_bytes == 16 else 99
        a, b = whole_bytes(sum(rows), k), whole_bytes(4, k, n, seed=1)
        given = {"scale": np.linspace(2e-5, 1e-3, 4 * n, dtype=np.float32).reshape(4, n)} if chain else {}
        expected = operator.reference(a, b, rows, **given)
        out = aligned(np.full(expected.shape, 77, operator.store.out))
        plan = replace(gemm.plan(rows, 64, 64, transpose_b=True), index=index, chunk=k, raster=1)
        operands = *laid_for(v, a, b), rows, ExchangeTensor(out)
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        gemm.run_planned(plan, *operands, **flags, **held(given))
        stub_driver.reset()
        assert (out == expected).all()
