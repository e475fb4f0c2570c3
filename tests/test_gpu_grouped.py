"""Groups of rows in one launch: calls through the native door, the fake driver's launches in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_doubles import ExchangeTensor, StubDriver, aligned
from needs import an_emulator
from products import Unit, machine_code, unit
from test_codegen_cuda import an_nvrtc
from test_emulation import along_k, cuda_core, tensor_core
from test_gpu_end_to_end import assembled, emulating

from vortex import operators as ops
from vortex.codegen.cuda_form import form_of
from vortex.codegen.cuda_groups import grouped
from vortex.codegen.cuda_lower import KernelSource, alone
from vortex.errors import CodegenError, OperandError, ShapeError
from vortex.gpu_candidates import Backend, Variant
from vortex.gpu_grouped import GpuGroupedGemm
from vortex.gpu_sieve import backends
from vortex.gpu_variety import copies_fit
from vortex.rkernel import decompose
from vortex.specs import load_spec

OPERATOR = ops.GroupedGemm("float16")
VARIANTS = (
    Variant(tensor_core("float16"), False, False, 16),
    Variant(tensor_core("float16", "shared", 2), False, False, 2),
    Variant(cuda_core("float16"), True, False, 2),
    Variant(along_k("float16"), False, True, 16),
)


@pytest.fixture(scope="module")
def whole() -> Unit:
    return unit(VARIANTS, "sm_80", form_of(OPERATOR))


@pytest.fixture(scope="module")
def gemm(whole: Unit, stub_driver: StubDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuGroupedGemm]:
    stub_driver.reset()
    spec, folder = load_spec("a100"), tmp_path_factory.mktemp("grouped")
    stub_driver.describe(shared_per_block=spec.shared_per_block_bytes)
    made = GpuGroupedGemm(assembled(folder, "a100", whole, OPERATOR), 0)
    stub_driver.on_launch(emulating(made.library, whole))
    yield made
    stub_driver.reset()


def halves(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float16)


def operands(
    rows: list[int], n: int, k: int, *, turned_a: bool = False, turned_b: bool = False
) -> tuple[Any, Any, Any]:
    a, b = halves(sum(rows), k), halves(len(rows), k, n, seed=1)
    given = (
        ExchangeTensor(aligned(a.T if turned_a else a)),
        ExchangeTensor(aligned(b.swapaxes(1, 2) if turned_b else b)),
    )
    return *given, OPERATOR.reference(a, b, rows)


@an_emulator
class TestCalls:
    @pytest.mark.parametrize("rows", [[70, 0, 1, 130, 0], [3, 5, 2, 0, 7, 1]], ids=str)
    @pytest.mark.parametrize("index", range(len(VARIANTS)))
    def test_every_kernel_on_ragged_groups(self, gemm: GpuGroupedGemm, index: int, rows: list[int]):
        v = VARIANTS[index]
        n, k = 40, 2 * v.strategy.l1.k + (8 if v.vector_bytes == 16 else 3)
        a, b, expected = operands(rows, n, k, turned_a=v.transpose_a, turned_b=v.transpose_b)
        room = aligned(np.full((sum(rows), 64), 9, np.float16))
        flags = {"transpose_a": v.transpose_a, "transpose_b": v.transpose_b}
        plan = replace(gemm.plan(rows, 40, 64), index=index, chunk=k, raster=2)
        gemm.run_planned(plan, a, b, rows, ExchangeTensor(room[:, :n]), **flags)
        assert (room[:, :n] == expected).all() and (room[:, n:] == 9).all()

    def test_the_selected_kernel(self, gemm: GpuGroupedGemm):
        a, b, expected = operands([40, 3, 21], 24, 72)
        assert (gemm(a, b, [40, 3, 21]).array == expected).all()

    def test_more_groups_than_a_launch_has_room_for(self, gemm: GpuGroupedGemm, stub_driver: StubDriver):
        rows, before = [i % 3 for i in range(300)], len(stub_driver.launches)
        a, b, expected = operands(rows, 8, 8)
        assert (gemm(a, b, rows).array == expected).all()
        assert len(stub_driver.launches) == before + 2

    def test_the_matrix_of_another_group_shows(self, gemm: GpuGroupedGemm, whole: Unit, stub_driver: StubDriver):
        spoiled = Unit(whole.text.replace("(all.first + own.group)", "(0 * own.group)"), whole.kernels)
        stub_driver.on_launch(emulating(gemm.library, spoiled))
        a, b, expected = operands([40, 3, 21], 24, 72)
        assert not (gemm(a, b, [40, 3, 21]).array == expected).all()
        stub_driver.on_launch(emulating(gemm.library, whole))

    def test_sums_of_nothing_and_no_groups(self, gemm: GpuGroupedGemm):
        a, b, _ = operands([4, 3], 8, 0)
        out = ExchangeTensor(aligned(np.full((7, 8), 5, np.float16)))
        assert (gemm(a, b, [4, 3], out).array == 0).all()
        assert gemm(*operands([0, 0], 8, 8)[:2], [0, 0]).array.shape == (0, 8)

    def test_native_and_mirrored_choice_agree(self, gemm: GpuGroupedGemm):
        rows = [500, 0, 20, 3]
        plan, told = gemm.plan(rows, 256, 512), gemm.explain(rows, 256, 512)
        assert (plan.index, plan.splits) == (told.plan.index, 1) and "3 products 175x256x512" in str(told)


@an_emulator
class TestRefusals:
    @pytest.mark.parametrize("rows", [[4, 3], [4, 5, -1], [8], [4, 4, 0]], ids=str)
    def test_rows_that_do_not_fit(self, gemm: GpuGroupedGemm, rows: list[int]):
        a, b, _ = operands([4, 4], 8, 16)
        with pytest.raises(ShapeError, match="does not fit the groups"):
            gemm(a, b, rows)

    def test_ranks_and_fractions(self, gemm: GpuGroupedGemm):
        a, b, _ = operands([4, 4], 8, 16)
        with pytest.raises(ShapeError, match="whole number"):
            gemm(a, b, [4.5, 3.5])
        with pytest.raises(ShapeError, match="expected 3 axes"):
            gemm(a, a, [4, 4])
        with pytest.raises(ShapeError, match="rank"):
            gemm(a, b, [4, 4], ExchangeTensor(aligned(np.zeros((1, 8, 8), np.float16))))

    def test_an_output_over_an_operand(self, gemm: GpuGroupedGemm):
        room = aligned(halves(8, 8))
        with pytest.raises(OperandError, match=r"a .*overlaps"):
            gemm(ExchangeTensor(room), ExchangeTensor(aligned(halves(2, 8, 8))), [4, 4], ExchangeTensor(room))


class TestText:
    def test_a_kernel_without_operands_is_an_error(self):
        with pytest.raises(CodegenError, match="groups of rows"):
            grouped(KernelSource("odd", 'extern "C" __global__ void odd(int M) {\n}', (), (32, 1, 1), 0))

    def test_tma_s_descriptors_know_no_groups(self):
        assert Backend.HOPPER not in backends(decompose(OPERATOR, load_spec("h200")))

    @an_nvrtc
    def test_machine_code_stays_in_registers(self, whole: Unit):
        parts = (alone(kernel).source for _, kernel in whole.kernels)
        used = machine_code("\n".join([form_of(OPERATOR).prelude, *parts]), "sm_80").resources
        kept = [used[v.name] for v in VARIANTS if copies_fit(v.strategy, v.vector_bytes)]
        assert len(kept) == 3 and {(x.spills, x.stack) for x in kept} == {(0, 0)}
